//! The thread that owns the store: it takes the lease, renews it while the command runs, and
//! releases it. The main thread only polls and is never held up by the network; by construction no
//! renewal follows a release.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::Builder;
use std::time::Duration;

use crate::clock::Moment;
use crate::lock::{Lease, Request};
use crate::pace::{Pace, drift};
use crate::store::{self, Lost, Refreshed, Released, Store, StoreError};
use crate::sys;
use crate::wait::{self, InTheWay, Patience, Switch, Taken};

/// What the thread tells.
pub enum News {
    /// The first try failed; asking goes on.
    Waiting(Result<InTheWay, StoreError>),
    /// The asking has ended.
    Taken(Taken),
    /// Renewed until.
    Kept(Moment),
    /// One renewal failed; there is time left.
    Late(StoreError),
    /// The lease is lost.
    Lost(Lost),
    /// The release has ended.
    Released(Result<Released, StoreError>),
    /// The thread is gone though nobody told it to go: a bug.
    Gone,
}

/// The handle of the thread.
pub struct Keeper {
    release: Sender<()>,
    news: Receiver<News>,
    wake: OwnedFd,
    switch: Arc<Switch>,
}

impl Keeper {
    /// Starts the thread, which asks at once. Without a pace it does not renew (`acquire`).
    pub fn start(url: String, request: Request, patience: Patience, pace: Option<Pace>) -> io::Result<Keeper> {
        let (wake, poke) = sys::pipe()?;
        let (release, released) = channel();
        let (tell, news) = channel();
        let switch = Arc::new(Switch::default());
        let mine = Arc::clone(&switch);
        Builder::new().name("keeper".into()).spawn(move || {
            let tell = |what: News| {
                let _ = tell.send(what);
                sys::poke(&poke);
            };
            let mut store = match store::open(&url) {
                Ok(store) => store,
                Err(error) => return tell(News::Taken(Taken::Failed(error))),
            };
            let taken = wait::take(&mut *store, &request, &patience, &mine, &mut |trouble| {
                tell(News::Waiting(trouble.clone()));
            });
            let (lease, after) = match taken {
                Taken::Lease(lease, after) => (lease, after),
                other => {
                    // A place in the line ends here, and what an answer that got lost may have granted.
                    let unsure = matches!(other, Taken::Failed(StoreError::Unavailable(_)));
                    if unsure || (request.queue && !matches!(other, Taken::Failed(_))) {
                        store.limit(Duration::from_millis(500));
                        let _ = store.release(&request.claim, request.keeping);
                    }
                    return tell(News::Taken(other));
                }
            };
            tell(News::Taken(Taken::Lease(lease.clone(), after)));
            if keep(&mut *store, &lease, pace, store::kept_by_life(&url), &released, &tell) {
                tell(News::Released(store.release(&lease.claim, request.keeping)));
            }
        })?;
        Ok(Keeper { release, news, wake, switch })
    }

    /// Readable when there is news.
    pub fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    /// What has happened since.
    pub fn news(&self) -> Vec<News> {
        sys::drain(&self.wake);
        let mut all = Vec::new();
        loop {
            match self.news.try_recv() {
                Ok(news) => all.push(news),
                Err(TryRecvError::Disconnected) if all.is_empty() => return vec![News::Gone],
                Err(_) => return all,
            }
        }
    }

    /// How long the request that is under way has been.
    pub fn asking_for(&self) -> Duration {
        self.switch.asking_for()
    }

    /// Ends the renewals and releases; the answer comes as news.
    pub fn release(&self) {
        let _ = self.release.send(());
    }

    /// Stops asking; afterwards a release on a fresh connection leaves nothing behind.
    pub fn abandon(&self, at_most: Duration) {
        self.switch.abandon(at_most);
    }
}

/// Renews until told to release, or until the lease is lost. An error is not a loss: it is tried
/// again while there is time, and nothing is sent after the deadline, unless this process keeps its
/// lease `by_life` (a machine that slept finds it as it was). False where nobody is left who could have
/// told: `acquire` drops the handle and its lease must outlive it.
fn keep(store: &mut dyn Store, lease: &Lease, pace: Option<Pace>, by_life: bool, released: &Receiver<()>, tell: &dyn Fn(News)) -> bool {
    let Some(pace) = pace else {
        return released.recv().is_ok();
    };
    store.limit(pace.op);
    let mut deadline = lease.deadline;
    let mut pause = pace.beat;
    loop {
        match released.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        let asked = Moment::now();
        if asked >= deadline && !by_life {
            break;
        }
        match store.refresh(&lease.claim, lease.ttl) {
            Ok(Refreshed::Kept { ttl }) => {
                deadline = asked + ttl.saturating_sub(drift(ttl));
                pause = pace.beat;
                tell(News::Kept(deadline));
            }
            Ok(Refreshed::Lost(lost)) => {
                tell(News::Lost(lost));
                break;
            }
            Err(StoreError::Unavailable(words) | StoreError::Denied(words)) if by_life && asked >= deadline => {
                tell(News::Lost(Lost::Unproven(words)));
                break;
            }
            Err(error) => {
                pause = (pace.op / 4).max(Duration::from_millis(20));
                tell(News::Late(error));
            }
        }
    }
    released.recv().is_ok()
}
