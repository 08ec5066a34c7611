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

/// The process that a running `dlock run` has forked to supervise its command.
pub fn supervisor(child: &Child) -> String {
    let pid = child.id();
    let path = format!("/proc/{pid}/task/{pid}/children");
    let mut found = String::new();
    until("the supervisor is there", || {
        found = std::fs::read_to_string(&path).unwrap_or_default();
        found.split(' ').any(|pid| !pid.is_empty())
    });
    found.split(' ').next().unwrap().to_owned()
}

/// Sends a signal to a process by its pid, as somebody at a shell would.
pub fn kill(pid: &str, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), "--", pid]).stderr(Stdio::null()).status().is_ok());
}

/// Living processes, other than dlock's own, that carry this mark in their environment: all that
/// descends from a command which was started with it.
pub fn marked(mark: &str) -> Vec<String> {
    let wanted = format!("MARK={mark}");
    let pids = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let of_mark = pids.filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit())).filter(|pid| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    });
    of_mark
        .filter(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            lives(pid) && !["dlock", "lease-keeper", "heartbeat"].contains(&name.trim())
        })
        .collect()
}

/// Copies a program, by a process of its own: were it open for writing here, a process that another
/// test starts meanwhile would hold it open too, and the system refuse to run it ("text file busy").
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    assert!(Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status().unwrap().success());
}
