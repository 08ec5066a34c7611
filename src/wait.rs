//! Asking again until the lock is ours or patience ends.
//!
//! The deadline of a lease is counted here, from before the request was sent: it can only be
//! believed too short. Busy never becomes an error, and an unavailable store is asked again until the
//! wait ends; a denial is final.

use std::thread::sleep;
use std::time::Duration;

use crate::clock::{Moment, jittered};
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
}

/// Asks until the lock is ours or patience ends. `asking` hears when a request begins and ends, `say` of
/// the first failure.
pub fn take(
    store: &mut dyn Store,
    request: &Request,
    patience: &Patience,
    asking: &dyn Fn(bool),
    say: &mut dyn FnMut(&Result<InTheWay, StoreError>),
) -> Taken {
    let began = Moment::now();
    let end = patience.wait.map(|wait| began + wait);
    let mut tries = 0_u32;
    let mut late = 0;
    let mut after = None;
    loop {
        let asked = Moment::now();
        asking(true);
        let answer = store.acquire(request);
        asking(false);
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
                return Taken::Lease(Lease { claim: request.claim.clone(), fence, slot, ttl, asked, deadline }, after);
            }
            Ok(Acquired::Busy { holders, waiting, own_parent, retry_in, .. }) => {
                let way = InTheWay { holders, waiting, own_parent, waited };
                if own_parent {
                    return Taken::Busy(way);
                }
                (Ok(way), if request.queue { retry_in } else { jittered(patience.delay) })
            }
            Err(StoreError::Denied(words)) => return Taken::Failed(StoreError::Denied(words)),
            Err(error) => (Err(error), jittered(patience.delay.max(Duration::from_millis(200)))),
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
                sleep(left.min(Duration::from_millis(200)));
            }
        } else {
            sleep(left);
        }
    }
}
