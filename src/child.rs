//! The command: found, started, signalled, and ended with all that descends from it.
//!
//! The thread that reaps is the only one that signals. Until the leader is reaped its pid and group
//! can't be used by another process; afterwards neither is signalled. dlock is the subreaper: what
//! loses its parent becomes its child, so the tree is empty exactly when there is no child left.

use std::collections::HashMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::outcome::Outcome;
use crate::sys::{self, Children, Ended, Mask, Program, Signal};

/// A command that can't be run, found out before the lock is asked for.
pub struct NotRunnable {
    /// 126 or 127.
    pub outcome: Outcome,
    /// In words.
    pub words: String,
}

/// Looks a command up as execvp(3) would, and tells its path.
pub fn look_up(program: &OsStr) -> Result<PathBuf, NotRunnable> {
    let shown = program.to_string_lossy();
    let refuse = |outcome, why: String| Err(NotRunnable { outcome, words: format!("cannot run '{shown}': {why}") });
    let hint = if ["cd", "source", ".", "export", "set", "umask", "ulimit", "exec", "eval"].contains(&&*shown) {
        format!("; '{shown}' is a shell built-in: use sh -c '…'")
    } else if shown.contains([' ', ';', '&', '|']) {
        "; this looks like a shell line: use sh -c '…' or dlock run -c '…'".into()
    } else {
        String::new()
    };
    let runnable = |path: &Path| fs::metadata(path).map(|found| found.is_file() && sys::may_execute(path).is_ok());
    if program.as_bytes().contains(&b'/') {
        return match runnable(Path::new(program)) {
            Ok(true) => Ok(PathBuf::from(program)),
            Ok(false) => refuse(Outcome::NotExecutable, "not executable".into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => refuse(Outcome::NotFound, format!("not found{hint}")),
            Err(error) => refuse(Outcome::NotExecutable, error.to_string()),
        };
    }
    let dirs = env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut found = false;
    for dir in env::split_paths(&dirs).filter(|_| !program.is_empty()) {
        let path = dir.join(program);
        match runnable(&path) {
            Ok(true) => return Ok(path),
            Ok(false) => found = true,
            Err(_) => {}
        }
    }
    if found {
        return refuse(Outcome::NotExecutable, format!("not executable in PATH={}", dirs.to_string_lossy()));
    }
    refuse(Outcome::NotFound, format!("not found in PATH={}{hint}", dirs.to_string_lossy()))
}

/// A running command.
pub struct Child {
    pid: i32,
    own_group: bool,
    /// How the command itself ended, once it is reaped.
    ended: Option<Outcome>,
    /// One that could not be signalled was named.
    refused: bool,
}

/// Can processes be looked at? Without a /proc that numbers them as this process does (that of its own
/// pid namespace) the tree can't be walked, so nothing is started.
pub fn can_be_watched() -> io::Result<()> {
    let own = fs::read_link("/proc/self")
        .map_err(|error| io::Error::new(error.kind(), format!("cannot look at /proc/self: {error}; is /proc mounted?")))?;
    if own.as_os_str() == sys::own_pid().to_string().as_str() {
        return Ok(());
    }
    Err(io::Error::other(
        "/proc is that of another pid namespace, so the command could not be stopped; mount one here (unshare --mount-proc)",
    ))
}

impl Child {
    /// Starts a command that was looked up, with a few variables more, in a group of its own where
    /// there is no terminal. What systemd meant for the pid `known_as` is for the command.
    pub fn start(
        path: &Path,
        words: &[OsString],
        variables: &[(&str, String)],
        mask: Mask,
        known_as: i32,
    ) -> Result<Child, (Outcome, String)> {
        let own_group = !sys::has_terminal();
        let (known_as, mut of_pid) = (known_as.to_string(), Vec::new());
        let inherited = env::vars_os().filter(|(name, value)| {
            let systemd = ["LISTEN_PID", "WATCHDOG_PID"].into_iter().find(|of| name == of && *value == *known_as);
            of_pid.extend(systemd);
            systemd.is_none() && !variables.iter().any(|(ours, _)| name == ours)
        });
        let ours = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let environment: Vec<OsString> = inherited
            .chain(ours)
            .map(|(mut name, value)| {
                name.push("=");
                name.push(value);
                name
            })
            .collect();
        match Program::new(path.as_os_str(), words, &environment, &of_pid).and_then(|mut program| sys::spawn(&mut program, mask, own_group))
        {
            Ok(pid) => Ok(Child { pid, own_group, ended: None, refused: false }),
            Err(error) => {
                let (outcome, words) = match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => (Outcome::System, error.to_string()),
                    Some(libc::ENOENT) if path.exists() => (Outcome::NotFound, "its interpreter was not found".into()),
                    Some(libc::ENOENT) => (Outcome::NotFound, error.to_string()),
                    _ => (Outcome::NotExecutable, error.to_string()),
                };
                Err((outcome, format!("cannot run '{}': {words}", path.display())))
            }
        }
    }

    /// Passes a signal on: to the group where it is meant for it, else to the command itself.
    pub fn pass(&self, signal: Signal, to_group: bool) {
        if self.ended.is_none() {
            let to = if to_group && self.own_group { -self.pid } else { self.pid };
            let _ = sys::kill(to, signal.number);
        }
    }

    /// In a group of its own, or in the caller's at a terminal?
    pub fn has_own_group(&self) -> bool {
        self.own_group
    }

    /// Has the command itself ended? Reaps orphans that ended before it: they would fill the table of
    /// processes.
    pub fn has_ended(&self) -> bool {
        loop {
            match sys::children() {
                Ok(Children::Ended(pid)) if pid == self.pid => return true,
                Ok(Children::Ended(pid)) => sys::reap(pid),
                Ok(Children::Running) | Err(_) => return false,
                Ok(Children::None) => return true,
            }
        }
    }

    /// Did a signal end it? Asked before it is reaped.
    pub fn has_died(&self) -> bool {
        self.ended.is_none() && sys::has_died(self.pid)
    }

    /// Reaps the command and tells how it ended; waits for that if need be.
    pub fn reap(&mut self) -> Outcome {
        let pid = self.pid;
        *self.ended.get_or_insert_with(|| match sys::wait(pid) {
            Ok(Ended::Status(code)) => Outcome::Ended(u8::try_from(code).unwrap_or(u8::MAX)),
            Ok(Ended::Signal(signal)) => Outcome::Died(signal),
            Err(_) => Outcome::System,
        })
    }

    /// Is nothing of the tree left? To be asked once the command itself is reaped.
    pub fn is_gone(&self) -> bool {
        loop {
            match sys::children() {
                Ok(Children::Ended(pid)) => sys::reap(pid),
                Ok(Children::None) => return true,
                Ok(Children::Running) | Err(_) => return false,
            }
        }
    }

    /// Sends a signal to everything that descends from dlock, and to the command's group. Tells one that
    /// may not be signalled: all its uids are another user's.
    fn signal_tree(&self, signal: i32) -> Option<i32> {
        if self.own_group && self.ended.is_none() {
            let _ = sys::kill(-self.pid, signal);
        }
        let refuses = |pid: &i32| sys::kill(*pid, signal).is_err_and(|error| error.raw_os_error() == Some(libc::EPERM));
        // Who has it by the group does not get TERM twice.
        let group = (self.own_group && self.ended.is_none() && signal == libc::SIGTERM).then_some(self.pid);
        let mut tree = beneath(sys::own_pid(), group);
        if !self.own_group && self.ended.is_none() && !tree.contains(&self.pid) {
            tree.push(self.pid); // where no descriptor was left to walk with
        }
        tree.into_iter().filter(refuses).fold(None, |_, pid| Some(pid))
    }

    /// Asks the tree to end; what is stopped must run to hear it.
    pub fn terminate(&self) {
        self.signal_tree(libc::SIGTERM);
        self.signal_tree(libc::SIGCONT);
    }

    /// Kills what there is: stops all first, so that nothing forks away from the walk. Tells, once, one
    /// that may not be killed.
    pub fn kill_tree(&mut self) -> Option<i32> {
        self.signal_tree(libc::SIGSTOP);
        let refused = self.signal_tree(libc::SIGKILL).filter(|_| !self.refused);
        self.refused |= refused.is_some();
        refused
    }
}

struct Entry {
    parent: i32,
    group: i32,
    dead: bool,
}

/// Every process by pid, from /proc/PID/stat (proc(5)); the name in it may hold any character, so
/// the fields are counted from its last parenthesis.
fn processes() -> HashMap<i32, Entry> {
    let Ok(dir) = fs::read_dir("/proc") else { return HashMap::new() };
    let pids = dir.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let after = stat.iter().rposition(|&byte| byte == b')')?;
        let text = String::from_utf8_lossy(stat.get(after + 2..)?).into_owned();
        let mut fields = text.split(' ');
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        // A process whose first thread has ended looks like a zombie while the others go on.
        let threads: u32 = fields.nth(14)?.parse().ok()?;
        Some((pid, Entry { parent, group, dead: state == "X" || state == "Z" && threads <= 1 }))
    })
    .collect()
}

/// The values that two variables had together in the environment of each process above this one, the
/// nearest first, as far as this user may read them.
pub fn above(variables: [&str; 2]) -> Vec<[String; 2]> {
    let all = processes();
    let mut found = Vec::new();
    let mut at = sys::own_pid();
    while let Some(entry) = all.get(&at).filter(|entry| entry.parent > 0) {
        at = entry.parent;
        let environ = fs::read(format!("/proc/{at}/environ")).unwrap_or_default();
        let value = |name: &str| {
            let of = |text: &[u8]| Some(text.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.to_vec());
            environ.split(|byte| *byte == 0).find_map(of).and_then(|value| String::from_utf8(value).ok())
        };
        if let [Some(first), Some(second)] = variables.map(value) {
            found.push([first, second]);
        }
    }
    found
}

/// Kills processes: stops all first, so that nothing forks away meanwhile.
pub fn kill(pids: &[i32]) {
    for signal in [libc::SIGSTOP, libc::SIGKILL] {
        for pid in pids {
            let _ = sys::kill(*pid, signal);
        }
    }
}

/// The living descendants of a process. Orphans among them have come back to it, if it is a subreaper.
pub fn descendants(root: i32) -> Vec<i32> {
    beneath(root, None)
}

/// The same without those of a group.
fn beneath(root: i32, without: Option<i32>) -> Vec<i32> {
    let all = processes();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(all.iter().filter(|(_, entry)| entry.parent == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.retain(|pid| *pid != root && all.get(pid).is_some_and(|entry| !entry.dead && Some(entry.group) != without));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_run_is_told_apart() {
        assert!(look_up(OsStr::new("sh")).is_ok());
        assert!(look_up(OsStr::new("/etc/passwd")).is_err_and(|no| no.outcome == Outcome::NotExecutable));
        assert!(look_up(OsStr::new("/nonexistent")).is_err_and(|no| no.outcome == Outcome::NotFound));
        assert!(look_up(OsStr::new("")).is_err_and(|no| no.outcome == Outcome::NotFound));
        assert!(look_up(OsStr::new("cd /srv")).is_err_and(|no| no.words.contains("sh -c")));
    }
}
