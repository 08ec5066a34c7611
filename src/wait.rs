//! Asking again until the lock is ours or patience ends.
//!
//! The deadline of a lease is counted here, from before the request was sent: it can only be
//! believed too short. Busy never becomes an error, and an unavailable store is asked again until the
//! wait ends; a denial is final.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Moment;
use crate::lock::{Holding, Lease, Request};
use crate::pace;
use crate::store::{Acquired, After, Store, StoreError};

/// How long to go on asking.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// This long; `None` is for ever.
    pub wait: Option<Duration>,
    /// At most this many tries more.
    pub tries: Option<u32>,
    /// Between tries where nothing wakes us.
    pub delay: Duration,
}

/// Who is in the way.
#[derive(Clone, Debug)]
pub struct InTheWay {
    /// The holders.
    pub holders: Vec<Holding>,
    /// How many wait in all.
    pub waiting: u32,
    /// The job that dlock was started in is the holder.
    pub own_parent: bool,
    /// How long we have waited.
    pub waited: Duration,
}

/// How the asking ended.
pub enum Taken {
    /// With a lease, and what it was granted over.
    Lease(Lease, Option<After>),
    /// Without one.
    Busy(InTheWay),
    /// With an error.
    Failed(StoreError),
    /// Told to stop.
    Abandoned,
}

/// Lets the main thread stop the asking without a race: once `abandon` is set and `asking` is clear,
/// no further request is sent.
#[derive(Default)]
pub struct Switch {
    /// Since when a request is under way, µs of CLOCK_BOOTTIME; 0 for none.
    asking: AtomicU64,
    abandon: AtomicBool,
}

impl Switch {
    /// Stops the asking; waits a moment for a request that is under way.
    pub fn abandon(&self, at_most: Duration) {
        self.abandon.store(true, Ordering::SeqCst);
        let end = Moment::now() + at_most;
        while self.asking.load(Ordering::SeqCst) != 0 && Moment::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn ask<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        self.asking.store(Moment::now().0.max(1), Ordering::SeqCst);
        let answer = (!self.abandon.load(Ordering::SeqCst)).then(work);
        self.asking.store(0, Ordering::SeqCst);
        answer
    }

    /// How long the request that is under way has been.
    pub fn asking_for(&self) -> Duration {
        match self.asking.load(Ordering::SeqCst) {
            0 => Duration::ZERO,
            since => Moment(since).until(Moment::now()),
        }
    }
}

/// Asks until the lock is ours or patience ends. `say` hears of the first failure.
pub fn take(
    store: &mut dyn Store,
    request: &Request,
    patience: &Patience,
    switch: &Switch,
    say: &mut dyn FnMut(&Result<InTheWay, StoreError>),
) -> Taken {
    let began = Moment::now();
    let end = patience.wait.map(|wait| began + wait);
    let mut tries = 0_u32;
    let mut late = 0;
    let mut after = None;
    loop {
        let asked = Moment::now();
        let Some(answer) = switch.ask(|| store.acquire(request)) else { return Taken::Abandoned };
        let waited = began.until(Moment::now());
        let (trouble, pause) = match answer {
            Ok(Acquired::Granted { fence, slot, ttl, after: over }) => {
                after = after.or(over);
                let deadline = asked + ttl.saturating_sub(pace::drift(ttl));
                // A slow answer may leave too little of the lease: asking again renews it.
                if Moment::now().until(deadline) < ttl / 2 && late < 3 {
                    late += 1;
                    continue;
                }
                return Taken::Lease(Lease { claim: request.claim.clone(), fence, slot, ttl, deadline }, after);
            }
            Ok(Acquired::Busy { holders, waiting, own_parent, retry_in, .. }) => {
                let way = InTheWay { holders, waiting, own_parent, waited };
                if own_parent {
                    return Taken::Busy(way);
                }
                (Ok(way), if request.queue { retry_in } else { patience.delay })
            }
            Err(StoreError::Denied(words)) => return Taken::Failed(StoreError::Denied(words)),
            Err(error) => (Err(error), patience.delay.max(Duration::from_millis(200))),
        };
        let now = Moment::now();
        let over = end.is_some_and(|end| now >= end) || patience.tries.is_some_and(|most| tries >= most);
        if over {
            return match trouble {
                Ok(way) => Taken::Busy(way),
                Err(error) => Taken::Failed(error),
            };
        }
        if tries == 0 {
            say(&trouble);
        }
        tries = tries.saturating_add(1);
        let left = end.map_or(pause, |end| now.until(end).min(pause));
        if trouble.is_ok() && request.queue {
            // A hint only: ask again in any case, but not at once where it can't be waited for.
            if store.await_change(&request.claim, left).is_err() {
                std::thread::sleep(left.min(Duration::from_millis(200)));
            }
        } else {
            std::thread::sleep(left);
        }
    }
}
