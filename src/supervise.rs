//! One inbox, one loop: joins command, keeper, signals and watch. Each turn checks the deadline
//! first, so that nothing that happened while dlock slept can come before it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use crate::child::{self, Child};
use crate::clock::Moment;
use crate::config::{Run, Take};
use crate::guard::{self, Deed, Link, Side};
use crate::keeper::{Keeper, News};
use crate::lock::Lease;
use crate::outcome::Outcome;
use crate::signals::{self, Signals};
use crate::store::{self, After, Lost, Released, StoreError};
use crate::sys;
use crate::wait::{InTheWay, Taken};
use crate::watch::{Action, Watch, Why};

/// What happens, for whoever words it.
pub enum Event<'a> {
    /// The first try failed; asking goes on.
    Waiting(&'a Result<InTheWay, StoreError>),
    /// Busy to the end.
    Busy(&'a InTheWay),
    /// No lease because of an error.
    Failed(&'a StoreError),
    /// Granted.
    Granted(&'a Lease),
    /// It was granted over somebody's failure.
    TakenOver(&'a After),
    /// A renewal failed, and will be tried again.
    Late(&'a StoreError),
    /// The store says that the lease is gone.
    Lost(&'a Lost),
    /// The command is being stopped.
    Stopping(Why),
    /// The release failed: the lease runs out by itself.
    NotReleased(&'a str),
    /// The guard had to act.
    Guarded(Deed),
    /// The system refused something.
    Trouble(&'a str),
}

/// How long the release may take.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);
/// And how long from a signal on.
const HURRIED_LIMIT: Duration = Duration::from_millis(200);
/// How long one request may take before a lease is held, name resolution included (contract 8).
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// How often a killed tree is looked at until it is gone.
const SWEEP: Duration = Duration::from_millis(5);

/// Waits for the lease. A signal meanwhile leaves nothing behind.
pub fn obtain(take: &Take, keeper: &Keeper, signals: &Signals, link: Option<&Link>, say: &dyn Fn(Event)) -> Result<Lease, Outcome> {
    let failed = |error: StoreError| {
        say(Event::Failed(&error));
        match error {
            StoreError::Unavailable(_) => Outcome::Unavailable,
            StoreError::Denied(_) => Outcome::Denied,
        }
    };
    let bounded = take.patience.wait.is_some() || take.patience.tries.is_some();
    loop {
        let fds = [signals.fd().as_raw_fd(), keeper.wake().as_raw_fd()];
        if let Err(error) = sys::wait_readable(&fds, bounded.then_some(REQUEST_LIMIT)) {
            say(Event::Trouble(&error.to_string()));
            give_up(take, keeper);
            return Err(Outcome::System);
        }
        let orphaned = link.is_some_and(Link::is_orphaned).then_some(libc::SIGKILL);
        if let Some(number) = signals.told().or(orphaned) {
            give_up(take, keeper);
            return Err(Outcome::Signalled(number));
        }
        for news in keeper.news() {
            match news {
                News::Waiting(trouble) => say(Event::Waiting(&trouble)),
                News::Taken(Taken::Lease(lease, after)) => {
                    if let Some(after) = after {
                        say(Event::TakenOver(&after));
                    }
                    say(Event::Granted(&lease));
                    return Ok(lease);
                }
                News::Taken(Taken::Busy(way)) => {
                    say(Event::Busy(&way));
                    return Err(Outcome::Busy(take.busy_code));
                }
                News::Taken(Taken::Failed(error)) => return Err(failed(error)),
                News::Gone => {
                    give_up(take, keeper);
                    return Err(Outcome::Bug);
                }
                _ => {}
            }
        }
        if bounded && keeper.asking_for() >= REQUEST_LIMIT {
            give_up(take, keeper);
            let shown = store::shown(&take.store);
            return Err(failed(StoreError::Unavailable(format!("{shown}: no answer in 10s, name resolution included"))));
        }
    }
}

/// Leaves the line and whatever a request under way may still have got, on a fresh connection.
fn give_up(take: &Take, keeper: &Keeper) {
    let limit = Duration::from_millis(500);
    keeper.abandon(limit);
    let (url, claim, keeping) = (take.store.clone(), take.request.claim.clone(), take.request.keeping);
    let (done, ended) = std::sync::mpsc::channel();
    // In a thread of its own: a connection attempt must not hold up the exit.
    let started = std::thread::Builder::new().spawn(move || {
        if let Ok(mut store) = store::open(&url) {
            store.limit(limit);
            let _ = store.release(&claim, keeping);
        }
        let _ = done.send(());
    });
    if started.is_ok() {
        let _ = ended.recv_timeout(limit);
    }
}

/// Releases, bounded, and says so where it failed. It never changes the status; a signal that comes now
/// comes too late to stop anything, and only makes it hurry.
pub fn let_go(keeper: &Keeper, signals: &Signals, lost: bool, say: &dyn Fn(Event)) {
    keeper.release();
    let mut end = Moment::now() + RELEASE_LIMIT;
    loop {
        if signals.told().is_some() {
            end = end.min(Moment::now() + HURRIED_LIMIT);
        }
        for news in keeper.news() {
            match news {
                News::Released(answer) => {
                    match answer {
                        Ok(Released::Freed) => {}
                        _ if lost => {}
                        Ok(Released::NotHeld(_) | Released::Kept(_)) => say(Event::NotReleased("it was not held any more")),
                        Err(StoreError::Unavailable(words) | StoreError::Denied(words)) => say(Event::NotReleased(&words)),
                    }
                    return;
                }
                News::Gone => return,
                _ => {}
            }
        }
        let left = Moment::now().until(end);
        let fds = [keeper.wake().as_raw_fd(), signals.fd().as_raw_fd()];
        if left.is_zero() || sys::wait_readable(&fds, Some(left)).is_err() {
            if !lost {
                say(Event::NotReleased("no answer in time"));
            }
            return;
        }
    }
}

/// Takes the lock, runs the command under it, releases; and how it all ended.
pub fn run(run: Run, path: &Path, command: &[OsString], handed_store: String, say: &dyn Fn(Event)) -> Outcome {
    let trouble = |error: &io::Error| {
        say(Event::Trouble(&error.to_string()));
        Outcome::System
    };
    let split = child::can_be_watched()
        .and_then(|()| Signals::block())
        .and_then(|signals| Ok((guard::split(&signals, &|deed| say(Event::Guarded(deed)))?, signals)));
    let (link, signals) = match split {
        Ok((Side::Guard(outcome), _)) => return outcome,
        Ok((Side::Supervisor(link), signals)) => (link, signals),
        Err(error) => return trouble(&error),
    };
    let outcome = supervise(&run, path, command, handed_store, &link, &signals, say);
    link.done();
    outcome
}

fn supervise(
    run: &Run,
    path: &Path,
    command: &[OsString],
    handed_store: String,
    link: &Link,
    signals: &Signals,
    say: &dyn Fn(Event),
) -> Outcome {
    // All that may fail is made before the lease is asked for.
    let take = &run.take;
    let prepared =
        sys::timer().and_then(|timer| Ok((timer, Keeper::start(take.store.clone(), take.request.clone(), take.patience, Some(run.pace))?)));
    let (timer, keeper) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            say(Event::Trouble(&error.to_string()));
            return Outcome::System;
        }
    };
    let lease = match obtain(take, &keeper, signals, Some(link), say) {
        Ok(lease) => lease,
        Err(outcome) => return outcome,
    };
    let began = Moment::now();
    let overrun = run.max_runtime.map(|limit| began + limit);
    let deadline = (!store::kept_by_life(&run.take.store)).then_some(lease.deadline);
    let mut watch = Watch::new(run.pace, deadline, overrun, run.stop_on_loss);
    // A signal that came with the grant, or a lease that is almost over: never start.
    if let Some(number) = signals.told().or(link.is_orphaned().then_some(libc::SIGKILL)) {
        let_go(&keeper, signals, false, say);
        return Outcome::Signalled(number);
    }
    if !matches!(watch.tick(began), Action::Nothing) {
        let_go(&keeper, signals, true, say);
        let shown = store::shown(&run.take.store);
        let late = format!("{shown}: the answer came too late to use the lease; use a longer --ttl");
        say(Event::Failed(&StoreError::Unavailable(late)));
        return Outcome::Unavailable;
    }
    let child = match Child::start(path, command, &variables(&lease, handed_store), signals.mask()) {
        Ok(child) => child,
        Err((outcome, words)) => {
            say(Event::Trouble(&words));
            let_go(&keeper, signals, false, say);
            return outcome;
        }
    };
    link.kill_at(watch.last());
    // From here on a KILL of the caller's group is for the guard alone. (It can't fail: a forked process
    // leads no group.)
    let _ = sys::own_session();
    let mut session = Session { child, keeper: &keeper, signals, link, timer: &timer, watch, told: false, lost: false, gone: false, say };
    session.run();
    session.finish(run.pace.grace, run.release)
}

/// What the command finds in its environment besides the caller's.
fn variables(lease: &Lease, store: String) -> Vec<(&'static str, String)> {
    let mut all = vec![
        ("DLOCK_RESOURCE", lease.claim.name.to_string()),
        ("DLOCK_TOKEN", lease.claim.token.as_str().to_owned()),
        ("DLOCK_STORE", store),
    ];
    all.extend(lease.fence.map(|fence| ("DLOCK_FENCING_TOKEN", fence.to_string())));
    all.extend(lease.slot.map(|slot| ("DLOCK_SLOT", slot.to_string())));
    all
}

/// One command under one lease.
struct Session<'a> {
    child: Child,
    keeper: &'a Keeper,
    signals: &'a Signals,
    link: &'a Link,
    timer: &'a OwnedFd,
    watch: Watch,
    /// A signal that ends things was passed on, or the terminal gave it to the command.
    told: bool,
    /// The store says that the lease is gone.
    lost: bool,
    /// The keeper's thread is gone.
    gone: bool,
    say: &'a dyn Fn(Event<'_>),
}

impl Session<'_> {
    /// Until the command itself has ended.
    fn run(&mut self) {
        loop {
            let killing = self.turn();
            if self.child.has_ended() {
                return;
            }
            self.sleep(if killing { Moment::now() + SWEEP } else { self.watch.next() });
        }
    }

    /// After the command has ended: empty its tree unless it ended by itself, then release.
    fn finish(mut self, grace: Duration, release: bool) -> Outcome {
        self.hear(); // also what came together with the end
        let mut ended = Moment::now();
        let pid_1 = self.link.is_first_process();
        if self.told || self.watch.why().is_some() || pid_1 {
            let kill_at = ended + if self.told { grace } else { Duration::ZERO };
            if self.watch.why().is_none() {
                self.child.terminate();
            }
            self.child.reap();
            while !self.child.is_gone() {
                let mut killing = self.turn();
                if self.watch.why().is_none() && Moment::now() >= kill_at {
                    self.child.kill_tree();
                    killing = true;
                }
                self.sleep(if killing { Moment::now() + SWEEP } else { self.watch.next().min(kill_at) });
            }
            ended = Moment::now();
            self.turn();
        }
        self.lost |= !self.watch.provable(ended);
        if release {
            let_go(self.keeper, self.signals, self.lost, self.say);
        }
        let own = self.child.reap();
        match self.watch.why() {
            Some(Why::Overran) => Outcome::Overran,
            Some(Why::Silent | Why::Lost | Why::Orphaned) => Outcome::Lost,
            None if self.lost && own == Outcome::Ended(0) => Outcome::Lost,
            None => own,
        }
    }

    /// One look at everything, the clock first. Tells whether the tree is being killed.
    fn turn(&mut self) -> bool {
        if self.link.is_orphaned() && self.watch.why() != Some(Why::Orphaned) {
            self.watch.orphaned(Moment::now());
            self.child.kill_tree();
            (self.say)(Event::Stopping(Why::Orphaned));
        }
        let action = self.watch.tick(Moment::now());
        match action {
            Action::Nothing => {}
            Action::Terminate(why) => {
                self.child.terminate(); // first the deed, then the word
                (self.say)(Event::Stopping(why));
            }
            Action::Kill(_) => self.child.kill_tree(),
        }
        self.hear();
        matches!(action, Action::Kill(_))
    }

    /// What the keeper and the signals tell.
    fn hear(&mut self) {
        for news in self.keeper.news() {
            match news {
                News::Kept(deadline) => {
                    self.watch.kept(deadline);
                    self.link.kill_at(self.watch.last());
                }
                News::Late(error) => (self.say)(Event::Late(&error)),
                News::Lost(why) => self.lose(&why),
                News::Gone if !self.gone => {
                    self.gone = true;
                    self.lose(&Lost::Unproven("the heartbeat ended by a bug".into()));
                }
                _ => {}
            }
        }
        while let Some(signal) = self.signals.next() {
            self.told |= signals::ends(signal);
            if signal.number != libc::SIGCHLD && (self.child.has_own_group() || !signals::seen_by_group(signal)) {
                self.child.pass(signal, signals::for_group(signal));
            }
        }
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

    /// Until a signal or news comes, or this moment.
    fn sleep(&self, until: Moment) {
        let armed = sys::arm(self.timer, until.0);
        let fds = [self.signals.fd().as_raw_fd(), self.timer.as_raw_fd(), self.keeper.wake().as_raw_fd()];
        // What a dead thread leaves is always readable.
        let fds = if self.gone { &fds[..2] } else { &fds[..] };
        if armed.and_then(|()| sys::wait_readable(fds, None)).is_err() {
            std::thread::sleep(SWEEP); // without a timer the loop goes on by itself
        }
    }
}
