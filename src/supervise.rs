//! One inbox, one loop: joins command, keeper, signals and watch. Each turn checks the deadline
//! first, so that nothing that happened while dlock slept can come before it.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use crate::child::Child;
use crate::clock::Moment;
use crate::config::{Run, Take};
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
    /// The system refused something.
    Trouble(&'a str),
}

/// How long the release may take.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);
/// How often a killed tree is looked at until it is gone.
const SWEEP: Duration = Duration::from_millis(5);

/// Waits for the lease. A signal meanwhile leaves nothing behind.
pub fn obtain(take: &Take, keeper: &Keeper, signals: &Signals, say: &dyn Fn(Event)) -> Result<Lease, Outcome> {
    loop {
        let fds = [signals.fd().as_raw_fd(), keeper.wake().as_raw_fd()];
        if let Err(error) = sys::wait_readable(&fds, None) {
            say(Event::Trouble(&error.to_string()));
            give_up(take, keeper);
            return Err(Outcome::System);
        }
        let told = std::iter::from_fn(|| signals.next()).find(|signal| signals::ends(*signal));
        if let Some(signal) = told {
            give_up(take, keeper);
            return Err(Outcome::Signalled(signal.number));
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
                News::Taken(Taken::Failed(error)) => {
                    say(Event::Failed(&error));
                    return Err(match error {
                        StoreError::Unavailable(_) => Outcome::Unavailable,
                        StoreError::Denied(_) => Outcome::Denied,
                    });
                }
                _ => {}
            }
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

/// Releases, bounded, and says so where it failed. It never changes the status.
pub fn let_go(keeper: &Keeper, signals: &Signals, lost: bool, say: &dyn Fn(Event)) {
    keeper.release();
    let end = Moment::now() + RELEASE_LIMIT;
    loop {
        let left = Moment::now().until(end);
        if left.is_zero() || std::iter::from_fn(|| signals.next()).any(signals::ends) {
            if !lost {
                say(Event::NotReleased("no answer in time"));
            }
            return;
        }
        for news in keeper.news() {
            if let News::Released(answer) = news {
                match answer {
                    Ok(Released::Freed) => {}
                    Ok(Released::NotHeld(_)) if lost => {}
                    Err(_) if lost => {}
                    Ok(Released::NotHeld(_) | Released::Kept(_)) => say(Event::NotReleased("it was not held any more")),
                    Err(StoreError::Unavailable(words) | StoreError::Denied(words)) => say(Event::NotReleased(&words)),
                }
                return;
            }
        }
        let fds = [signals.fd().as_raw_fd(), keeper.wake().as_raw_fd()];
        if sys::wait_readable(&fds, Some(left)).is_err() {
            return;
        }
    }
}

/// Takes the lock, runs the command under it, releases; and how it all ended.
pub fn run(run: Run, path: &Path, command: &[OsString], handed_store: String, say: &dyn Fn(Event)) -> Outcome {
    let trouble = |error: io::Error| {
        say(Event::Trouble(&error.to_string()));
        Outcome::System
    };
    // All that may fail is made before the lease is asked for.
    let prepared = Signals::block()
        .and_then(|signals| Ok((signals, sys::timer()?)))
        .and_then(|made| sys::become_subreaper().map(|()| made))
        .and_then(|(signals, timer)| {
            let take = &run.take;
            Ok((signals, timer, Keeper::start(take.store.clone(), take.request.clone(), take.patience, Some(run.pace))?))
        });
    let (signals, timer, keeper) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return trouble(error),
    };
    let lease = match obtain(&run.take, &keeper, &signals, say) {
        Ok(lease) => lease,
        Err(outcome) => return outcome,
    };
    let began = Moment::now();
    let overrun = run.max_runtime.map(|limit| began + limit);
    let deadline = (!store::kept_by_life(&run.take.store)).then_some(lease.deadline);
    let mut watch = Watch::new(run.pace, deadline, overrun, run.stop_on_loss);
    // A signal that came with the grant, or a lease that is almost over: never start.
    if let Some(signal) = std::iter::from_fn(|| signals.next()).find(|signal| signals::ends(*signal)) {
        let_go(&keeper, &signals, false, say);
        return Outcome::Signalled(signal.number);
    }
    let mut variables = vec![
        ("DLOCK_RESOURCE", lease.claim.name.to_string()),
        ("DLOCK_TOKEN", lease.claim.token.as_str().to_owned()),
        ("DLOCK_STORE", handed_store),
    ];
    if let Some(fence) = lease.fence {
        variables.push(("DLOCK_FENCING_TOKEN", fence.to_string()));
    }
    if let Some(slot) = lease.slot {
        variables.push(("DLOCK_SLOT", slot.to_string()));
    }
    let child = match Child::start(path, command, &variables, signals.mask()) {
        Ok(child) => child,
        Err((outcome, words)) => {
            say(Event::Trouble(&words));
            let_go(&keeper, &signals, false, say);
            return outcome;
        }
    };
    let mut told = false;
    let mut lost = false;
    while !child.has_ended() {
        act(watch.tick(Moment::now()), &child, say);
        for news in keeper.news() {
            match news {
                News::Kept(deadline) => watch.kept(deadline),
                News::Late(error) => say(Event::Late(&error)),
                News::Lost(why) => {
                    lost = true;
                    say(Event::Lost(&why));
                    act(watch.lost(Moment::now()), &child, say);
                }
                _ => {}
            }
        }
        while let Some(signal) = signals.next() {
            if signal.number == libc::SIGCHLD || (!child.has_own_group() && signals::seen_by_group(signal)) {
                continue;
            }
            told |= signals::for_group(signal) && signal.number != libc::SIGCONT;
            child.pass(signal, signals::for_group(signal));
        }
        if child.has_ended() {
            break;
        }
        let killing = watch.why().is_some() && matches!(watch.tick(Moment::now()), Action::Kill(_));
        let next = if killing { Moment::now() + SWEEP } else { watch.next() };
        let armed = sys::arm(&timer, next.0);
        let fds = [signals.fd().as_raw_fd(), keeper.wake().as_raw_fd(), timer.as_raw_fd()];
        if armed.and_then(|()| sys::wait_readable(&fds, None)).is_err() {
            std::thread::sleep(SWEEP); // without a timer the loop goes on by itself
        }
    }
    finish(&run, child, &keeper, &signals, &mut watch, told, lost, say)
}

fn act(action: Action, child: &Child, say: &dyn Fn(Event)) {
    match action {
        Action::Nothing => {}
        Action::Terminate(why) => {
            child.terminate(); // first the deed, then the word: stderr may block
            say(Event::Stopping(why));
        }
        Action::Kill(_) => child.kill_tree(),
    }
}

/// After the command has ended: empty its tree unless it ended by itself, then release.
#[expect(clippy::too_many_arguments, reason = "the state of one loop, handed on once")]
fn finish(
    run: &Run,
    child: Child,
    keeper: &Keeper,
    signals: &Signals,
    watch: &mut Watch,
    told: bool,
    mut lost: bool,
    say: &dyn Fn(Event),
) -> Outcome {
    let mut ended = Moment::now();
    if told || watch.why().is_some() || std::process::id() == 1 {
        if told && child.tree_lives() {
            child.terminate();
        }
        let kill_at = ended + if told { run.pace.grace } else { Duration::ZERO };
        while child.tree_lives() {
            for news in keeper.news() {
                match news {
                    News::Kept(deadline) => watch.kept(deadline),
                    News::Lost(_) => lost = true,
                    _ => {}
                }
            }
            let now = Moment::now();
            let stopping = watch.why().is_some() || lost;
            if now >= kill_at || matches!(watch.tick(now), Action::Kill(_)) || (stopping && !told) {
                child.kill_tree();
            }
            std::thread::sleep(SWEEP);
        }
        ended = Moment::now();
    }
    for news in keeper.news() {
        match news {
            News::Kept(deadline) => watch.kept(deadline),
            News::Lost(why) => {
                lost = true;
                say(Event::Lost(&why));
            }
            _ => {}
        }
    }
    lost |= !watch.provable(ended);
    let why = watch.why();
    if run.release {
        let_go(keeper, signals, lost, say);
    }
    let own = child.reap();
    match why {
        Some(Why::Overran) => Outcome::Overran,
        Some(Why::Silent | Why::Lost) => Outcome::Lost,
        None if lost && own == Outcome::Ended(0) => Outcome::Lost,
        None => own,
    }
}
