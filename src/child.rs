//! The command: found, started, signalled, and ended with all that descends from it.
//!
//! The thread that reaps is the only one that signals. Until the leader is reaped its pid and group
//! can't be used by another process; afterwards neither is signalled. dlock is the subreaper: what
//! loses its parent becomes its child, so the tree is empty exactly when there is no child left.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::clock::Moment;
use crate::outcome::Outcome;
use crate::sys::{self, Children, Ended, Mask, Program, Signal};
use crate::tree::{self, Others};

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

/// Why a command was not started.
pub enum NotStarted {
    /// The time in which it might have started has passed.
    TooLate,
    /// 71, 126 or 127, and the system's words.
    Refused(Outcome, String),
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

impl Child {
    /// Starts a command that was looked up, with a few variables more, in a group of its own where
    /// there is no terminal; not after this moment. What systemd meant for the pid `known_as` is for the
    /// command.
    pub fn start(
        path: &Path,
        words: &[OsString],
        variables: &[(&str, String)],
        mask: Mask,
        known_as: i32,
        not_after: Option<Moment>,
    ) -> Result<Child, NotStarted> {
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
        let not_after = not_after.map_or(u64::MAX, |at| at.0);
        match Program::new(path.as_os_str(), words, &environment, &of_pid)
            .and_then(|mut program| sys::spawn(&mut program, mask, own_group, not_after))
        {
            Ok(pid) => Ok(Child { pid, own_group, ended: None, refused: false }),
            Err(error) => {
                let (outcome, words) = match error.raw_os_error() {
                    Some(libc::ETIME) => return Err(NotStarted::TooLate),
                    Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => (Outcome::System, error.to_string()),
                    Some(libc::ENOENT) if path.exists() => (Outcome::NotFound, "its interpreter was not found".into()),
                    Some(libc::ENOENT) => (Outcome::NotFound, error.to_string()),
                    _ => (Outcome::NotExecutable, error.to_string()),
                };
                Err(NotStarted::Refused(outcome, format!("cannot run '{}': {words}", path.display())))
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
        let refuses = |pid: &i32| sys::kill(*pid, signal).is_err_and(|error| error.raw_os_error() == Some(libc::EPERM));
        let group_refuses = self.own_group && self.ended.is_none() && refuses(&-self.pid);
        // Who has it by the group does not get TERM twice.
        let group = (self.own_group && self.ended.is_none() && signal == libc::SIGTERM).then_some(self.pid);
        let tree = tree::descendants(sys::own_pid(), &Others::new()).unwrap_or_default();
        let mut tree: Vec<i32> = tree.into_iter().filter(|process| Some(process.group) != group).map(|process| process.pid).collect();
        if !self.own_group && self.ended.is_none() && !tree.contains(&self.pid) {
            tree.push(self.pid); // where the walk failed
        }
        tree.into_iter().filter(refuses).fold(group_refuses.then_some(self.pid), |_, pid| Some(pid))
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
