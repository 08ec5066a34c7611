//! Two processes that watch each other, so that a KILL of either ends the command with all of its tree.
//!
//! ```text
//! caller → guard (the pid that the caller knows) → supervisor → the command and its tree
//! ```
//!
//! The guard is what the caller started. It forks the supervisor while there is no thread yet, passes
//! signals on, and waits. The supervisor asks the store and may block as long as that takes: a stop
//! before the command has started is the guard's to see, which kills the supervisor and releases what
//! it may have got. If the supervisor dies by surprise, the kernel kills the command (a parent-death
//! signal) and gives the guard, as the next subreaper, all that descends from it, to be killed. If it
//! stands still, the guard kills the tree before the lease is over. If the guard dies, the supervisor
//! ends the tree and releases. Once its command runs the supervisor is in a session of its own: a KILL
//! of the caller's whole group misses it, and Ctrl-Z at a terminal stops the command but no heartbeat.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use crate::clock::Moment;
use crate::outcome::Outcome;
use crate::signals::{Signals, ends};
use crate::sys::{self, Children, Ended, Page};
use crate::tree::{self, Looks, Others};

/// The shortest pause between two looks at the supervisor.
const PAUSE: Duration = Duration::from_millis(5);
/// How long one request may take before a lease is held, name resolution included (contract 8).
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// The guard kills so much later than its supervisor, if that lives, would have done it.
const GUARD_LATER: Duration = Duration::from_millis(20);
/// How long the release may take from a signal on.
const HURRY: Duration = Duration::from_millis(200);

/// What the guard did, for whoever words it.
pub enum Deed {
    /// The supervisor died: the command's tree was ended.
    Orphaned,
    /// The supervisor died before it had a lease.
    Bereft,
    /// The supervisor stands still: the command's tree was killed before the lease was over.
    Stalled,
    /// A request took too long.
    Unanswered,
}

/// Which of the two this process is now.
pub enum Side {
    /// The guard, after all has ended.
    Guard(Outcome),
    /// The supervisor.
    Supervisor(Link),
}

// Words of the shared page.
/// How far the supervisor is: one of the states below.
const STATE: usize = 0;
/// When the tree has to be dead at the latest: µs of CLOCK_BOOTTIME, 0 for never.
const KILL_AT: usize = 1;
/// Since when a request is under way: µs of CLOCK_BOOTTIME, 0 for none.
const ASKING: usize = 2;
/// How it all ended, from RELEASING on.
const OUTCOME: usize = 3;

// States. Only two may be reached from WAITING, and whoever gets there first wins.
const WAITING: u64 = 0;
const STARTED: u64 = 1;
const STOPPED: u64 = 2;
const RELEASING: u64 = 3;

/// The supervisor's end.
pub struct Link {
    page: &'static Page,
    guard: i32,
}

/// What the guard is told to do.
pub struct Orders<'a> {
    /// Bounds each request before a lease is held.
    pub bounded: bool,
    /// How often to look until the command runs: often enough to see when its tree has to be dead.
    pub look: Duration,
    /// Releases what a supervisor that was killed may have got.
    pub give_up: &'a dyn Fn(),
    /// Hears of what was done.
    pub say: &'a dyn Fn(Deed),
}

/// Splits this process in two; signals must be blocked and no thread be running. Returns at once in the
/// supervisor, and in the guard when all has ended.
pub fn split(signals: &Signals, orders: &Orders) -> io::Result<Side> {
    sys::become_subreaper()?;
    let others = tree::already_there()?;
    let page = sys::shared_page()?;
    let timer = sys::timer()?;
    let guard = sys::own_pid();
    match sys::fork()? {
        Some(supervisor) => {
            let mut guard = Guard { supervisor, page, signals, orders, others, looks: Looks::default(), killed: false, hurry: None };
            Ok(Side::Guard(guard.watch(&timer)))
        }
        None => {
            // While it waits it dies with its guard.
            sys::signal_on_parents_death(libc::SIGKILL)?;
            let link = Link { page, guard };
            if sys::own_pid() == 1 {
                link.ended(Outcome::System);
                return Err(io::Error::other(
                    "what dlock starts would get a pid namespace of its own, where /proc could not show it; use unshare --fork",
                ));
            }
            if link.is_orphaned() {
                sys::exit_now(0);
            }
            Ok(Side::Supervisor(link))
        }
    }
}

impl Link {
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.page.0[at]
    }

    /// Is the guard gone?
    pub fn is_orphaned(&self) -> bool {
        sys::parent() != self.guard
    }

    /// The pid that the caller knows.
    pub fn guard(&self) -> i32 {
        self.guard
    }

    /// Was the whole started as the first process of a container?
    pub fn is_first_process(&self) -> bool {
        self.guard == 1
    }

    /// A request begins, or ends.
    pub fn asking(&self, begins: bool) {
        self.word(ASKING).store(if begins { Moment::now().0.max(1) } else { 0 }, SeqCst);
    }

    /// The lease is granted, the command may start, and has to be dead by `kill_at`. Does not return where the guard was told to stop.
    pub fn start(&self, kill_at: Option<Moment>) -> io::Result<()> {
        self.kill_at(kill_at);
        if self.word(STATE).compare_exchange(WAITING, STARTED, SeqCst, SeqCst).is_err() {
            loop {
                std::thread::sleep(Duration::from_secs(1)); // the guard's KILL is on its way
            }
        }
        sys::become_subreaper()?;
        sys::rename(c"lease-keeper"); // so that `killall dlock` does not hit both
        // A signal that is ignored by default: it wakes this process, which then looks for its parent.
        sys::signal_on_parents_death(libc::SIGURG)
    }

    /// Tells when the tree has to be dead; `None` for never.
    pub fn kill_at(&self, at: Option<Moment>) {
        self.word(KILL_AT).store(at.map_or(0, |at| (at + GUARD_LATER).0.max(1)), SeqCst);
    }

    /// How it has ended: what is left of the tree was left on purpose, and only the release is to come.
    pub fn ended(&self, outcome: Outcome) {
        self.word(OUTCOME).store(outcome.packed(), SeqCst);
        self.word(STATE).store(RELEASING, SeqCst);
    }
}

struct Guard<'a> {
    supervisor: i32,
    page: &'static Page,
    signals: &'a Signals,
    orders: &'a Orders<'a>,
    /// What the caller had started before it became dlock: none of the command's.
    others: Others,
    /// Between two looks at a killed tree.
    looks: Looks,
    /// The tree of a supervisor that stands still was killed.
    killed: bool,
    /// A signal has come during the release: when to wait for it no longer.
    hurry: Option<Moment>,
}

impl Guard<'_> {
    fn word(&self, at: usize) -> u64 {
        self.page.0[at].load(SeqCst)
    }

    fn watch(&mut self, timer: &OwnedFd) -> Outcome {
        loop {
            while let Some(signal) = self.signals.next() {
                if signal.number == libc::SIGCHLD {
                    continue;
                }
                if ends(signal) && self.may_stop() {
                    self.abandon();
                    return Outcome::Signalled(signal.number);
                }
                if ends(signal) && self.word(STATE) == RELEASING {
                    self.hurry.get_or_insert(Moment::now() + HURRY);
                }
                // With its origin: what a terminal sent has reached the command already.
                let _ = sys::pass(self.supervisor, signal);
            }
            loop {
                match sys::children() {
                    Ok(Children::Ended(pid)) if pid == self.supervisor => return self.end(),
                    Ok(Children::Ended(pid)) => sys::reap(pid), // as the first process of a container
                    _ => break,
                }
            }
            let now = Moment::now();
            let next = match (self.word(STATE), self.hurry) {
                (WAITING, _) => match self.unanswered(now) {
                    Ok(next) => next,
                    Err(outcome) => return outcome,
                },
                (RELEASING, Some(end)) if now >= end => {
                    let _ = sys::kill(self.supervisor, libc::SIGKILL);
                    Moment(u64::MAX)
                }
                (RELEASING, Some(end)) => end,
                (RELEASING, None) => Moment(u64::MAX),
                _ => self.stalled(now),
            };
            let armed = sys::arm(timer, next.0);
            if armed.and_then(|()| sys::wait_readable(&[self.signals.fd().as_raw_fd(), timer.as_raw_fd()], None)).is_err() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Keeps the supervisor from starting a command, if it has not yet.
    fn may_stop(&self) -> bool {
        self.page.0[STATE].compare_exchange(WAITING, STOPPED, SeqCst, SeqCst).is_ok()
    }

    /// Ends a supervisor that has started nothing, and releases what it may have got.
    fn abandon(&self) {
        let _ = sys::kill(self.supervisor, libc::SIGKILL);
        let _ = sys::wait(self.supervisor);
        (self.orders.give_up)();
    }

    /// Gives up where a request has no answer. Tells when to look again.
    fn unanswered(&self, now: Moment) -> Result<Moment, Outcome> {
        let since = self.word(ASKING);
        if !self.orders.bounded || since == 0 {
            return Ok(now + self.orders.look);
        }
        let end = Moment(since) + REQUEST_LIMIT;
        if now < end || !self.may_stop() {
            return Ok(end.min(now + self.orders.look).max(now + PAUSE));
        }
        self.abandon();
        (self.orders.say)(Deed::Unanswered);
        Err(Outcome::Unavailable)
    }

    /// Kills the tree of a supervisor that has let its time pass. Tells when to look again.
    fn stalled(&mut self, now: Moment) -> Moment {
        let at = match self.word(KILL_AT) {
            0 => return Moment(u64::MAX), // no clock ends this lease
            at => Moment(at),
        };
        if now < at {
            self.killed = false;
            self.looks = Looks::default();
            return at;
        }
        if let Ok(tree) = tree::descendants(self.supervisor, &self.others) {
            if tree.is_empty() {
                return now + Duration::from_millis(100); // it has its own clock, and wakes up or ends
            }
            tree::kill(&tree);
            if !self.killed {
                self.killed = true;
                (self.orders.say)(Deed::Stalled);
            }
        }
        now + self.looks.pause()
    }

    /// The supervisor has ended. What it leaves was left on purpose where it came to its release; else
    /// it ends here.
    fn end(&mut self) -> Outcome {
        let own = sys::wait(self.supervisor);
        if self.word(STATE) == RELEASING {
            return Outcome::unpacked(self.word(OUTCOME));
        }
        self.looks = Looks::default();
        loop {
            match sys::children() {
                Ok(Children::Ended(pid)) => sys::reap(pid),
                Ok(Children::None) => break,
                Ok(Children::Running) | Err(_) => {
                    if tree::has_only(&self.others) {
                        break;
                    }
                    tree::kill(&tree::descendants(sys::own_pid(), &self.others).unwrap_or_default());
                    std::thread::sleep(self.looks.pause());
                }
            }
        }
        if self.word(STATE) == WAITING {
            (self.orders.give_up)();
        }
        match own {
            Ok(Ended::Status(_)) => Outcome::Bug, // it has said so
            _ if self.word(STATE) == WAITING => {
                (self.orders.say)(Deed::Bereft);
                Outcome::System
            }
            _ => {
                (self.orders.say)(Deed::Orphaned);
                Outcome::Lost
            }
        }
    }
}
