//! From the wish for a lock to its end: parts this process from its guard, obtains the lease, starts the
//! command and hands both to their session.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use crate::child::{Child, NotStarted};
use crate::clock::Moment;
use crate::config::{Run, Take};
use crate::event::Event;
use crate::guard::{self, Deed, Link, Orders, Side};
use crate::lock::{Keeping, Lease};
use crate::outcome::Outcome;
use crate::session::{Kept, Session, let_go};
use crate::signals::{Signals, Twins};
use crate::store::{self, Store, StoreError};
use crate::sys;
use crate::tree::{self, Looks};
use crate::wait::{self, Taken};
use crate::watch::{Action, Watch};

/// How long the release after a stop may take, on a fresh connection.
const GIVE_UP_LIMIT: Duration = Duration::from_millis(500);
/// So many more files a run may have open at once: two timers, the heartbeat's pipe, a look at a process,
/// a new connection and the files of a name resolution.
const FILES: usize = 9;

/// Parts this process from its guard, and does `work` in the one that is not it, with the store. Ends as
/// `work` does, or as a signal or a fault demands before it has started anything.
pub fn guarded(take: &Take, say: &dyn Fn(Event), work: impl FnOnce(Box<dyn Store>, &Link, &Signals) -> Outcome) -> Outcome {
    let prepared = tree::can_be_walked().and_then(|()| Signals::block());
    let signals = match prepared {
        Ok(signals) => signals,
        Err(error) => {
            say(Event::Trouble(&error.to_string()));
            return Outcome::System;
        }
    };
    let opened = store::open(&take.store).and_then(|mut store| match take.request.keeping {
        Keeping::Process => store.prepare().map(|()| store),
        Keeping::Lease => Ok(store),
    });
    let store = match opened {
        Ok(store) => store,
        Err(error) => return failed(error, say),
    };
    if let Err(error) = sys::can_open(signals.fd(), FILES) {
        say(Event::Trouble(&format!("{error}: a run may need {FILES} more open files, to stop its command for one; raise ulimit -n")));
        return Outcome::System;
    }
    let orders = Orders {
        look: (take.request.ttl / 3).min(Duration::from_secs(10)),
        bounded: take.patience.wait.is_some() || take.patience.tries.is_some(),
        give_up: &|| give_up(take),
        say: &|deed| match deed {
            Deed::Unanswered => drop(failed(unanswered(take), say)),
            deed => say(Event::Guarded(deed)),
        },
    };
    match guard::split(&signals, &orders) {
        Ok(Side::Guard(outcome)) => {
            drop(store); // until here it has kept alive what is shared
            outcome
        }
        Ok(Side::Supervisor(link)) => {
            let outcome = work(store, &link, &signals);
            link.ended(outcome);
            sys::exit_now(0)
        }
        Err(error) => {
            say(Event::Trouble(&error.to_string()));
            Outcome::System
        }
    }
}

fn failed(error: StoreError, say: &dyn Fn(Event)) -> Outcome {
    say(Event::Failed(&error));
    match error {
        StoreError::Unavailable(_) => Outcome::Unavailable,
        StoreError::Denied(_) => Outcome::Denied,
    }
}

fn unanswered(take: &Take) -> StoreError {
    StoreError::Unavailable(format!("{}: no answer in 10s, name resolution included", store::shown(&take.store)))
}

/// Leaves the line and whatever a request under way may still have got, on a fresh connection.
fn give_up(take: &Take) {
    let (url, claim, keeping) = (take.store.clone(), take.request.claim.clone(), take.request.keeping);
    let (done, ended) = std::sync::mpsc::channel();
    // In a thread of its own: a connection attempt must not hold up the exit.
    let started = std::thread::Builder::new().spawn(move || {
        if let Ok(mut store) = store::open(&url) {
            store.limit(GIVE_UP_LIMIT);
            let _ = store.release(&claim, keeping);
        }
        let _ = done.send(());
    });
    if started.is_ok() {
        let _ = ended.recv_timeout(GIVE_UP_LIMIT);
    }
}

/// Waits for the lease. What was not granted leaves nothing behind.
pub fn obtain(take: &Take, store: &mut dyn Store, link: &Link, say: &dyn Fn(Event)) -> Result<Lease, Outcome> {
    let request = &take.request;
    let taken = wait::take(store, request, &take.patience, &|begins| link.asking(begins), &mut |trouble| say(Event::Waiting(trouble)));
    let (outcome, unsure) = match taken {
        Taken::Lease(lease, after) => {
            if let Some(after) = after {
                say(Event::TakenOver(&after));
            }
            say(Event::Granted(&lease));
            return Ok(lease);
        }
        Taken::Busy(way) => {
            say(Event::Busy(&way));
            (Outcome::Busy(take.busy_code), request.queue)
        }
        // An answer that got lost may have been a grant.
        Taken::Failed(error) => {
            let unsure = matches!(error, StoreError::Unavailable(_));
            (failed(error, say), unsure)
        }
    };
    if unsure {
        store.limit(GIVE_UP_LIMIT);
        let _ = store.release(&request.claim, request.keeping);
    }
    Err(outcome)
}

/// Takes the lock, runs the command under it, releases; and how it all ended.
pub fn run(run: &Run, path: &Path, command: &[OsString], handed_store: String, say: &dyn Fn(Event)) -> Outcome {
    guarded(&run.take, say, |mut store, link, signals| {
        let lease = match obtain(&run.take, &mut *store, link, say) {
            Ok(lease) => lease,
            Err(outcome) => return outcome,
        };
        let began = Moment::now();
        let overrun = run.max_runtime.map(|limit| began + limit);
        let by_life = store::kept_by_life(&run.take.store);
        let mut watch = Watch::new(run.pace, (!by_life).then_some(lease.deadline), overrun, run.stop_on_loss);
        // All that may fail comes before the command.
        let timer = match sys::timer().and_then(|timer| link.start(watch.last()).map(|()| timer)) {
            Ok(timer) => timer,
            Err(error) => {
                say(Event::Trouble(&error.to_string()));
                let_go(&mut *store, &lease, false, say);
                return Outcome::System;
            }
        };
        // A signal that came with the grant, or a lease that is almost over: never start.
        if let Some(number) = signals.told().or(link.is_orphaned().then_some(libc::SIGKILL)) {
            let_go(&mut *store, &lease, false, say);
            return Outcome::Signalled(number);
        }
        let now = Moment::now();
        let started = match watch.tick(now) {
            Action::Nothing if watch.start_before().is_none_or(|end| now < end) => {
                let variables = lease.variables(Some(handed_store));
                Child::start(path, command, &variables, signals.mask(), link.guard(), watch.start_before())
            }
            _ => Err(NotStarted::TooLate),
        };
        let child = match started {
            Ok(child) => child,
            Err(NotStarted::TooLate) => {
                let_go(&mut *store, &lease, true, say);
                let shown = store::shown(&run.take.store);
                let words = format!("{shown}: the answer came too late to use the lease; use a longer --ttl");
                return failed(StoreError::Unavailable(words), say);
            }
            Err(NotStarted::Refused(outcome, words)) => {
                say(Event::Trouble(&words));
                let_go(&mut *store, &lease, false, say);
                return outcome;
            }
        };
        // From here on a KILL of the caller's group is for the guard alone. (It can't fail: a forked
        // process leads no group.)
        let _ = sys::own_session();
        let keeping = Kept::Here(store, lease.asked + run.pace.beat);
        Session {
            run,
            child,
            lease,
            keeping,
            by_life,
            signals,
            link,
            timer: &timer,
            watch,
            told: false,
            after_term: run.after_term,
            lost: false,
            looks: Looks::default(),
            twins: Twins::default(),
            say,
        }
        .run()
    })
}
