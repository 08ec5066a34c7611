//! Two processes that watch each other, so that a KILL of either ends the command with all of its tree.
//!
//! ```text
//! caller → guard (the pid that the caller knows) → supervisor → the command and its tree
//! ```
//!
//! The guard is what the caller started: it forks the supervisor before there is any thread, passes
//! signals on, waits, and ends as the supervisor ends. If the supervisor dies by surprise, the kernel
//! kills the command (a parent-death signal) and gives the guard, as the next subreaper, all that
//! descends from it, to be killed. If the supervisor stands still, the guard kills the tree before the
//! lease is over. If the guard dies, the supervisor ends the tree and releases. Once its command runs
//! the supervisor is in a session of its own: a KILL of the caller's whole group misses it, and a stop
//! at a terminal (Ctrl-Z) stops the command but no heartbeat.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::child;
use crate::clock::Moment;
use crate::outcome::Outcome;
use crate::signals::{Signals, ends};
use crate::sys::{self, Children, Ended, Page};

/// How often a killed tree is looked at until it is gone.
const SWEEP: Duration = Duration::from_millis(5);

/// What the guard does, for whoever words it.
pub enum Deed {
    /// The supervisor died: the command's tree was ended.
    Orphaned,
    /// The supervisor stands still: the command's tree was killed before the lease was over.
    Stalled,
}

/// Which of the two this process is now.
pub enum Side {
    /// The guard, after all has ended.
    Guard(Outcome),
    /// The supervisor.
    Supervisor(Link),
}

/// The supervisor's end.
pub struct Link {
    page: &'static Page,
    guard: i32,
}

/// Words of the shared page: 0 while the supervisor is at work, 1 when it has done all it had to do.
const DONE: usize = 0;
/// When the tree has to be dead at the latest: µs of CLOCK_BOOTTIME, 0 for never.
const KILL_AT: usize = 1;

/// Splits this process in two; signals must be blocked and no thread be running. Returns at once in the
/// supervisor, and in the guard when all has ended.
pub fn split(signals: &Signals, say: &dyn Fn(Deed)) -> io::Result<Side> {
    sys::become_subreaper()?;
    let page = sys::shared_page()?;
    let timer = sys::timer()?;
    let guard = sys::own_pid();
    match sys::fork()? {
        Some(supervisor) => Ok(Side::Guard(Guard { supervisor, page, signals, killed: false }.watch(&timer, say))),
        None => {
            sys::become_subreaper()?;
            sys::rename(c"lease-keeper"); // so that `killall dlock` does not hit both
            // A signal that a process ignores by default: it wakes this one, which then looks for its parent.
            sys::signal_on_parents_death(libc::SIGURG)?;
            Ok(Side::Supervisor(Link { page, guard }))
        }
    }
}

impl Link {
    /// Is the guard gone?
    pub fn is_orphaned(&self) -> bool {
        sys::parent() != self.guard
    }

    /// Was the whole started as the first process of a container?
    pub fn is_first_process(&self) -> bool {
        self.guard == 1
    }

    /// Tells when the tree has to be dead; `None` for never.
    pub fn kill_at(&self, at: Option<Moment>) {
        word(self.page, KILL_AT).store(at.map_or(0, |at| at.0.max(1)), Ordering::Release);
    }

    /// All is done: what is left of the tree was left on purpose.
    pub fn done(&self) {
        word(self.page, DONE).store(1, Ordering::Release);
    }
}

fn word(page: &'static Page, at: usize) -> &'static AtomicU64 {
    &page.0[at]
}

struct Guard<'a> {
    supervisor: i32,
    page: &'static Page,
    signals: &'a Signals,
    /// The tree of a supervisor that stands still was killed.
    killed: bool,
}

impl Guard<'_> {
    fn watch(mut self, timer: &OwnedFd, say: &dyn Fn(Deed)) -> Outcome {
        loop {
            while let Some(signal) = self.signals.next() {
                if signal.number != libc::SIGCHLD {
                    // With its origin: what a terminal sent has reached the command already.
                    let _ = sys::pass(self.supervisor, signal);
                }
            }
            loop {
                match sys::children() {
                    Ok(Children::Ended(pid)) if pid == self.supervisor => return self.end(say),
                    Ok(Children::Ended(pid)) => sys::reap(pid), // as the first process of a container
                    _ => break,
                }
            }
            let next = self.stalled(say);
            let armed = sys::arm(timer, next.0);
            if armed.and_then(|()| sys::wait_readable(&[self.signals.fd().as_raw_fd(), timer.as_raw_fd()], None)).is_err() {
                std::thread::sleep(SWEEP);
            }
        }
    }

    /// Kills the tree of a supervisor that has let its time pass. Tells when to look again.
    fn stalled(&mut self, say: &dyn Fn(Deed)) -> Moment {
        let at = match word(self.page, KILL_AT).load(Ordering::Acquire) {
            0 => return Moment(u64::MAX),
            at => Moment(at),
        };
        let now = Moment::now();
        if now < at {
            self.killed = false;
            return at;
        }
        let tree = child::descendants(self.supervisor);
        if tree.is_empty() {
            if self.killed {
                return Moment(u64::MAX); // until it wakes up and ends
            }
            return now + Duration::from_millis(100); // nothing started yet, or all ended: it has its own clock
        }
        child::kill(&tree);
        if !self.killed {
            self.killed = true;
            say(Deed::Stalled);
        }
        now + SWEEP
    }

    /// The supervisor has ended: so does the guard, and what it leaves unless it was done.
    fn end(&self, say: &dyn Fn(Deed)) -> Outcome {
        let own = match sys::wait(self.supervisor) {
            Ok(Ended::Status(code)) => Outcome::Ended(u8::try_from(code).unwrap_or(u8::MAX)),
            Ok(Ended::Signal(signal)) => Outcome::Died(signal),
            Err(_) => Outcome::System,
        };
        if word(self.page, DONE).load(Ordering::Acquire) != 0 {
            return own;
        }
        loop {
            match sys::children() {
                Ok(Children::Ended(pid)) => sys::reap(pid),
                Ok(Children::None) => break,
                Ok(Children::Running) | Err(_) => {
                    child::kill(&child::descendants(sys::own_pid()));
                    std::thread::sleep(SWEEP);
                }
            }
            // Signals are of no use any more: everything is being killed.
            while self.signals.next().is_some_and(ends) {}
        }
        say(Deed::Orphaned);
        match own {
            Outcome::Died(_) => Outcome::Lost,
            own => own,
        }
    }
}
