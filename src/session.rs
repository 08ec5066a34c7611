//! One inbox, one loop: joins command, keeper, signals and watch. Each turn checks the deadline
//! first, so that nothing that happened while dlock slept can come before it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use crate::child::Child;
use crate::clock::Moment;
use crate::config::{Run, Survivors};
use crate::event::Event;
use crate::guard::Link;
use crate::keeper::{Keeper, News};
use crate::lock::{Keeping, Lease};
use crate::outcome::Outcome;
use crate::signals::{self, Signals, Twins};
use crate::store::{Lost, Released, Store, StoreError};
use crate::sys::{self, Signal};
use crate::tree::Looks;
use crate::watch::{Action, Watch, Why};

/// How long the release may take.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// Releases, and says so where it failed. It never changes the status.
pub fn let_go(store: &mut dyn Store, lease: &Lease, lost: bool, say: &dyn Fn(Event)) {
    store.limit(RELEASE_LIMIT);
    told_free(store.release(&lease.claim, Keeping::Process), lease, lost, say);
}

fn told_free(answer: Result<Released, StoreError>, lease: &Lease, lost: bool, say: &dyn Fn(Event)) {
    let left = Moment::now().until(lease.deadline);
    match answer {
        Ok(Released::Freed) => {}
        _ if lost => {}
        Ok(Released::NotHeld(_) | Released::Kept(_)) => say(Event::NotReleased("it was not held any more", Duration::ZERO)),
        Err(StoreError::Unavailable(words) | StoreError::Denied(words)) => say(Event::NotReleased(&words, left)),
    }
}

/// Who has the store.
pub enum Kept {
    /// This thread, until the first heartbeat is due.
    Here(Box<dyn Store>, Moment),
    /// The heartbeat's.
    There(Keeper),
    /// Nobody any more.
    Gone,
}

/// One command under one lease.
pub struct Session<'a> {
    /// What was asked for.
    pub run: &'a Run,
    /// The command.
    pub child: Child,
    /// Its lease.
    pub lease: Lease,
    /// Who renews that.
    pub keeping: Kept,
    /// The store knows by itself that this process lives.
    pub by_life: bool,
    /// What this process is told.
    pub signals: &'a Signals,
    /// What the guard is told.
    pub link: &'a Link,
    /// Wakes this process at an absolute moment.
    pub timer: &'a OwnedFd,
    /// The judge.
    pub watch: Watch,
    /// A signal that ends things was passed on, or the terminal gave it to the command.
    pub told: bool,
    /// How long the command may go on after a TERM that was passed on; `None` for ever.
    pub after_term: Option<Duration>,
    /// The store says that the lease is gone.
    pub lost: bool,
    /// Between two looks at a killed tree.
    pub looks: Looks,
    /// Signals that may come twice.
    pub twins: Twins,
    /// Hears of all that happens.
    pub say: &'a dyn Fn(Event<'_>),
}

impl Session<'_> {
    /// Until the command itself has ended, and then to the end.
    pub fn run(mut self) -> Outcome {
        loop {
            let killing = self.turn();
            if self.child.has_ended() {
                return self.finish();
            }
            let next = if killing { Moment::now() + self.looks.pause() } else { self.watch.next() };
            self.sleep(next);
        }
    }

    /// After the command has ended: empty its tree unless it ended by itself, then release.
    fn finish(mut self) -> Outcome {
        let mut ended = Moment::now();
        let by_itself = !self.watch.is_stopping() && self.watch.last().is_none_or(|last| ended < last);
        self.hear(); // also what came together with the end
        let mut sweep = self.must_sweep().then_some(ended + self.run.pace.grace);
        if sweep.is_some() || self.run.survivors == Survivors::Wait {
            if sweep.is_some() && !self.watch.is_stopping() {
                self.child.terminate(); // while its group can still be signalled as one
            }
            self.child.reap();
            while !self.child.is_gone() {
                let mut killing = self.turn();
                if sweep.is_none() && self.must_sweep() {
                    sweep = Some(Moment::now() + self.run.pace.grace);
                    self.child.terminate();
                }
                if !self.watch.is_stopping() && sweep.is_some_and(|at| Moment::now() >= at) {
                    self.kill();
                    killing = true;
                }
                let next =
                    if killing { Moment::now() + self.looks.pause() } else { self.watch.next().min(sweep.unwrap_or(Moment(u64::MAX))) };
                self.sleep(next);
            }
            ended = Moment::now();
            self.turn();
        }
        self.lost |= !self.watch.provable(ended);
        let own = self.child.reap();
        let outcome = match self.watch.why() {
            _ if by_itself && own != Outcome::Ended(0) => own, // what came later does not change it (decision 3)
            Some(Why::Overran) => Outcome::Overran,
            Some(Why::Silent | Why::Lost | Why::Orphaned) => Outcome::Lost,
            None | Some(Why::Told) if self.lost && own == Outcome::Ended(0) => Outcome::Lost,
            None | Some(Why::Told) => own,
        };
        self.link.ended(outcome);
        if self.run.release {
            self.release();
        }
        outcome
    }

    /// Was this an end that leaves nothing? Only one by itself may leave something on purpose, which one
    /// by a signal is not (a KILL of the caller's group at a terminal hits the command as well); and what
    /// the first process of a container leaves the kernel would kill after the release.
    fn must_sweep(&self) -> bool {
        self.told
            || self.child.has_died()
            || self.watch.why().is_some()
            || self.link.is_first_process()
            || self.run.survivors == Survivors::Kill
    }

    fn release(&mut self) {
        let keeper = match std::mem::replace(&mut self.keeping, Kept::Gone) {
            Kept::Here(mut store, _) => return let_go(&mut *store, &self.lease, self.lost, self.say),
            Kept::There(keeper) => keeper,
            Kept::Gone => return,
        };
        keeper.release();
        let end = Moment::now() + RELEASE_LIMIT;
        loop {
            for news in keeper.news() {
                match news {
                    News::Released(answer) => return told_free(answer, &self.lease, self.lost, self.say),
                    News::Gone => return,
                    _ => {}
                }
            }
            let left = Moment::now().until(end);
            if left.is_zero() || sys::wait_readable(&[keeper.wake().as_raw_fd()], Some(left)).is_err() {
                if !self.lost {
                    (self.say)(Event::NotReleased("no answer in time", Moment::now().until(self.lease.deadline)));
                }
                return;
            }
        }
    }

    /// One look at everything, the clock first. Tells whether the tree is being killed.
    fn turn(&mut self) -> bool {
        if self.link.is_orphaned() && self.watch.why() != Some(Why::Orphaned) {
            self.watch.orphaned(Moment::now());
            self.child.kill_tree();
            (self.say)(Event::Stopping(Why::Orphaned));
        }
        let was_stopping = self.watch.is_stopping();
        let action = self.watch.tick(Moment::now());
        match action {
            Action::Nothing => {}
            Action::Terminate(why) => {
                self.child.terminate(); // first the deed, then the word
                (self.say)(match self.run.max_runtime {
                    Some(limit) if why == Why::Overran => Event::Overran(limit),
                    _ => Event::Stopping(why),
                });
            }
            Action::Kill(why) => {
                self.kill();
                if !was_stopping && why != Why::Told {
                    (self.say)(Event::Stopping(why)); // too late for a TERM before
                }
                if let Some(limit) = self.after_term.take_if(|_| why == Why::Told) {
                    (self.say)(Event::Outstayed(limit));
                }
            }
        }
        self.hear();
        matches!(action, Action::Kill(_))
    }

    fn kill(&mut self) {
        self.child.kill_tree().into_iter().for_each(|pid| (self.say)(Event::Refused(pid)));
    }

    /// What the heartbeat and the signals tell.
    fn hear(&mut self) {
        self.start_heartbeat();
        let news = if let Kept::There(keeper) = &self.keeping { keeper.news() } else { Vec::new() };
        for news in news {
            match news {
                News::Kept(deadline) => {
                    self.lease.deadline = deadline;
                    self.watch.kept(deadline);
                    self.link.kill_at(self.watch.last());
                }
                News::Late(error) => (self.say)(Event::Late(&error)),
                News::Lost(why) => self.lose(&why),
                News::Gone => {
                    self.keeping = Kept::Gone;
                    self.lose(&Lost::Unproven("the heartbeat ended by a bug".into()));
                }
                News::Released(_) => {}
            }
        }
        while let Some(signal) = self.signals.next() {
            let now = Moment::now();
            for signal in self.twins.heard(signal, now).into_iter().flatten() {
                self.pass(signal);
            }
        }
        if let Some(signal) = self.twins.alone(Moment::now()) {
            self.pass(signal);
        }
    }

    fn pass(&mut self, signal: Signal) {
        self.told |= signals::ends(signal);
        if signal.number != libc::SIGCHLD && (self.child.has_own_group() || !signals::seen_by_group(signal)) {
            self.child.pass(signal, signals::for_group(signal));
            if let Some(limit) = self.after_term.filter(|_| signal.number == libc::SIGTERM) {
                self.watch.told(Moment::now() + limit);
            }
        }
    }

    /// Hands the store over once the first heartbeat is due.
    fn start_heartbeat(&mut self) {
        let now = Moment::now();
        let store = match std::mem::replace(&mut self.keeping, Kept::Gone) {
            Kept::Here(store, at) if now >= at => store,
            other => return self.keeping = other,
        };
        self.keeping = match Keeper::start(store, self.lease.clone(), self.run.pace, self.by_life) {
            Ok(keeper) => Kept::There(keeper),
            Err((error, store)) => {
                (self.say)(Event::Late(&StoreError::Unavailable(error.to_string())));
                Kept::Here(store, now + self.run.pace.op / 4)
            }
        };
    }

    fn lose(&mut self, why: &Lost) {
        self.lost = true;
        let action = self.watch.lost(Moment::now());
        if action == Action::Terminate(Why::Lost) {
            self.child.terminate();
        }
        (self.say)(Event::Lost(why));
        if action == Action::Terminate(Why::Lost) {
            (self.say)(Event::Stopping(Why::Lost));
        }
    }

    /// Until a signal or news comes, the heartbeat is due, or this moment.
    fn sleep(&self, until: Moment) {
        let mut fds = vec![self.signals.fd().as_raw_fd(), self.timer.as_raw_fd()];
        let until = match &self.keeping {
            Kept::Here(_, at) => until.min(*at),
            Kept::There(keeper) => {
                fds.push(keeper.wake().as_raw_fd());
                until
            }
            Kept::Gone => until,
        };
        let until = until.min(self.twins.next());
        if sys::arm(self.timer, until.0).and_then(|()| sys::wait_readable(&fds, None)).is_err() {
            std::thread::sleep(Duration::from_millis(5)); // without a timer the loop goes on by itself
        }
    }
}
