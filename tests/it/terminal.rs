//! A terminal of a test's own, and a command that writes down each signal that it gets.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};

use crate::harness::{Fixture, kill, until};

/// A pseudo terminal, and the leader of the session on it.
pub struct Terminal {
    master: Arc<File>,
    pub leader: Child,
    said: Arc<Mutex<Vec<u8>>>,
    closing: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    pub fn start(mut command: Command) -> Terminal {
        let (master, slave) = pair();
        command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave);
        // SAFETY: two system calls, which is all that a forked process may do.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let leader = command.spawn().unwrap();
        drop(command); // and with it our end of the slave
        let (master, said, closing) = (Arc::new(master), Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (from, to, over) = (Arc::clone(&master), Arc::clone(&said), Arc::clone(&closing));
        let reader = spawn(move || {
            let mut bytes = [0; 4096];
            while !over.load(SeqCst) {
                let mut poll = libc::pollfd { fd: from.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one valid structure.
                if unsafe { libc::poll(&raw mut poll, 1, 20) } <= 0 {
                    continue;
                }
                match (&*from).read(&mut bytes) {
                    Ok(read) if read > 0 => to.lock().unwrap().extend_from_slice(&bytes[..read]),
                    _ => return, // the last of the session is gone
                }
            }
        });
        Terminal { master, leader, said, closing, reader: Some(reader) }
    }

    pub fn types(&self, keys: &str) {
        (&*self.master).write_all(keys.as_bytes()).unwrap();
    }

    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap()).into_owned()
    }

    pub fn waits_for(&self, text: &str) {
        until(&format!("{text:?} on the terminal"), || {
            let said = self.said();
            assert!(!said.contains(text) || !said.contains("panicked"), "{said}");
            said.contains(text)
        });
    }

    /// Gives it another size.
    pub fn resize(&self, rows: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: `size` is initialised and only read.
        assert_eq!(unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }, 0);
    }

    /// Waits for the leader's end.
    pub fn ends(&mut self) -> ExitStatus {
        let mut ended = None;
        until(&format!("the session ends; so far: {}", self.said()), || {
            ended = self.leader.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }

    /// Hangs up: nobody holds the master any more.
    pub fn hang_up(&mut self) {
        self.closing.store(true, SeqCst);
        self.reader.take().unwrap().join().unwrap();
        self.master = Arc::new(File::open("/dev/null").unwrap());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let session = self.leader.id().to_string();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            if stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(3)) == Some(&session) {
                kill(entry.file_name().to_str().unwrap(), "KILL");
            }
        }
        let _ = self.leader.wait();
        self.closing.store(true, SeqCst);
    }
}

fn pair() -> (File, File) {
    // SAFETY: the descriptors are checked and ours alone; the name is a buffer of its own.
    unsafe {
        let master = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(master >= 0 && libc::grantpt(master) == 0 && libc::unlockpt(master) == 0);
        let mut name = [0; 64];
        assert_eq!(libc::ptsname_r(master, name.as_mut_ptr(), name.len()), 0);
        let slave = libc::open(name.as_ptr(), libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(slave >= 0);
        (File::from_raw_fd(master), File::from_raw_fd(slave))
    }
}

/// A command that blocks all signals and writes down those that come, with who sent them.
pub struct Log {
    path: PathBuf,
}

impl Log {
    pub fn at(at: &Fixture, name: &str) -> Log {
        Log { path: at.path(name) }
    }

    /// The program to run, in whose environment `SIGNAL_LOG` is the path.
    pub fn program() -> String {
        std::env::current_exe().unwrap().to_str().unwrap().to_owned()
    }

    pub fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Its pid, once it listens.
    pub fn pid(&self) -> String {
        let lines = || fs::read_to_string(&self.path).unwrap_or_default();
        until("the command listens", || lines().contains('\n'));
        lines().lines().next().unwrap().to_owned()
    }

    /// Number and si_code of each signal so far.
    pub fn all(&self) -> Vec<(i32, i32)> {
        let pair = |line: &str| line.split_once(' ').map(|(number, code)| (number.parse().unwrap(), code.parse().unwrap()));
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]); // the last line may be on its way
        whole.lines().filter_map(pair).collect()
    }

    pub fn count(&self, number: i32) -> usize {
        self.all().iter().filter(|(seen, _)| *seen == number).count()
    }

    /// Lets it end with status 0.
    pub fn end(&self) {
        fs::write(format!("{}.end", self.path()), "").unwrap();
    }
}

// SAFETY: a pointer to a function that the loader calls before main. There this binary becomes the
// command of `Log` where it is asked to: with one thread, which the test runner would not have.
#[unsafe(link_section = ".init_array")]
#[used]
static LISTEN: extern "C" fn() = listen;

extern "C" fn listen() {
    let Some(path) = std::env::var_os("SIGNAL_LOG").map(PathBuf::from) else { return };
    let lasts = std::env::var("LISTEN_MS").map_or(30_000, |text| text.parse().unwrap_or(0));
    // SAFETY: the structures live on this stack and are initialised before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        let Ok(mut log) = File::options().create(true).append(true).open(&path) else { libc::_exit(99) };
        let _ = writeln!(log, "{}", libc::getpid());
        let end = PathBuf::from(format!("{}.end", path.display()));
        let pause = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        for _ in 0..lasts / 10 {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let number = libc::sigtimedwait(&raw const set, &raw mut info, &raw const pause);
            if number > 0 {
                let _ = writeln!(log, "{number} {}", info.si_code);
            } else if end.exists() {
                break;
            }
        }
        libc::_exit(0)
    }
}

const DLOCK: &str = env!("CARGO_BIN_EXE_dlock");

/// A bash with a script, in which `$D` is dlock and `$LOGGER` the command of `Log`.
pub fn bash(at: &Fixture, script: &str) -> Command {
    let mut command = Command::new("bash");
    command.args(["-c", script]).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", at.path("")).env("TERM", "dumb");
    command.env("D", DLOCK).env("DLOCK_STORE", &at.store).env("LOGGER", Log::program()).stdin(Stdio::null());
    command
}

/// Waits for a process, ten seconds at the most.
pub fn ends(child: &mut Child) -> ExitStatus {
    let mut ended = None;
    until("it ends", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    ended.unwrap()
}

pub fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t")
}

/// What makes dlock the first process of a PID namespace; `None` where that is not allowed.
pub fn first_process() -> Option<Vec<&'static str>> {
    let ways = [vec!["unshare", "-pf", "--mount-proc"], vec!["unshare", "-Urpf", "--mount-proc"]];
    ways.into_iter().find(|way| {
        let tried = Command::new(way[0]).args(&way[1..]).arg("true").stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    })
}

/// `dlock WORDS…` as the first process of a PID namespace, or as any other where that is not allowed.
pub fn as_first(at: &Fixture, words: &[&str]) -> Command {
    let Some(way) = first_process() else { return at.dlock(words) };
    let mut command = Command::new(way[0]);
    command.args(&way[1..]).arg(DLOCK).args(words).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", at.path(""));
    command.env("DLOCK_STORE", &at.store).stdin(Stdio::null());
    command
}

/// dlock by another user than root, from a copy where that user can reach it; by ourselves where we
/// are not root.
pub fn as_nobody(at: &Fixture, words: &[&str]) -> Command {
    use std::os::unix::fs::PermissionsExt;
    if !is_root() {
        return at.dlock(words);
    }
    let copy = at.path("dlock");
    if !copy.exists() {
        crate::harness::copy_program(DLOCK, &copy);
        fs::set_permissions(at.path(""), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::set_permissions(at.path("store"), fs::Permissions::from_mode(0o1777)).unwrap();
    }
    let mut command = Command::new(copy);
    command.args(words).env_clear().env("PATH", "/usr/bin:/bin").env("DLOCK_STORE", &at.store).current_dir("/");
    command.uid(65534).gid(65534).stdin(Stdio::null());
    command
}
