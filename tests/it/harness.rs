//! Each test has a store of its own; the environment is pinned.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub struct Fixture {
    dir: tempfile::TempDir,
    pub store: String,
}

impl Fixture {
    pub fn file() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("store")).unwrap();
        let store = format!("file://{}/store", dir.path().display());
        Fixture { dir, store }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A `dlock VERB …` on this store.
    pub fn dlock(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlock"));
        command.args(words).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.dir.path());
        command.env("DLOCK_STORE", &self.store).stdin(Stdio::null());
        command
    }

    pub fn run(&self, words: &[&str]) -> Output {
        self.dlock(words).output().unwrap()
    }

    pub fn code(&self, words: &[&str]) -> i32 {
        let output = self.run(words);
        output.status.code().unwrap_or_else(|| panic!("{words:?}: {output:?}"))
    }

    pub fn start(&self, words: &[&str]) -> Child {
        self.dlock(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub fn held(&self, name: &str) -> bool {
        self.code(&["status", "-r", name]) == 0
    }

    pub fn status(&self, name: &str) -> serde_json::Value {
        serde_json::from_slice(&self.run(&["status", "-r", name, "--json"]).stdout).unwrap()
    }
}

/// Waits until something is so; fails after ten seconds.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !so() {
        assert!(Instant::now() < end, "not within 10 s: {what}");
        sleep(Duration::from_millis(20));
    }
}

/// Is a process alive? A zombie is not.
pub fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.trim()).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or("Z").starts_with('Z'))
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[allow(unsafe_code)]
pub fn signal(child: &Child, number: i32) {
    // SAFETY: the child is not reaped yet, so the pid is its own.
    unsafe { libc::kill(i32::try_from(child.id()).unwrap(), number) };
}
