//! The lease of a running command: renewed by a thread of its own from the first heartbeat on, so that
//! no socket can hold up the judgement of the deadline; and released.
//!
//! The store moves into that thread and stays there: by construction no renewal follows a release. A
//! command that ends before the first heartbeat is due, as most of those in short loops do, never
//! needs the thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::Builder;
use std::time::Duration;

use crate::clock::Moment;
use crate::lock::{Keeping, Lease};
use crate::pace::{Pace, drift};
use crate::store::{Lost, Refreshed, Released, Store, StoreError};
use crate::sys;

/// What the thread tells.
pub enum News {
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
}

impl Keeper {
    /// Starts the thread, which renews at once. `by_life`: the store knows by itself that this process
    /// lives. The store comes back where no thread can be had.
    pub fn start(mut store: Box<dyn Store>, lease: Lease, pace: Pace, by_life: bool) -> Result<Keeper, (io::Error, Box<dyn Store>)> {
        let (wake, poke) = match sys::pipe() {
            Ok(ends) => ends,
            Err(error) => return Err((error, store)),
        };
        let (release, released) = channel();
        let (tell, news) = channel();
        // The store is sent after it: a thread that does not start must not take it along.
        let (hand, handed) = channel::<Box<dyn Store>>();
        let started = Builder::new().name("heartbeat".into()).spawn(move || {
            let tell = |what: News| {
                let _ = tell.send(what);
                sys::poke(&poke);
            };
            let Ok(mut store) = handed.recv() else { return };
            if keep(&mut *store, &lease, pace, by_life, &released, &tell) {
                tell(News::Released(store.release(&lease.claim, Keeping::Process)));
            }
        });
        if let Err(error) = started {
            return Err((error, store));
        }
        store.limit(pace.op);
        match hand.send(store) {
            Ok(()) => Ok(Keeper { release, news, wake }),
            Err(back) => Err((io::Error::other("the heartbeat thread ended at once"), back.0)),
        }
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

    /// Ends the renewals and releases; the answer comes as news.
    pub fn release(&self) {
        let _ = self.release.send(());
    }
}

/// Renews until told to release (true), or until the handle is dropped (false); after a loss it only
/// waits for that. An error is not a loss: it is tried again while there is time, and nothing is sent
/// after the deadline, unless this process keeps its lease `by_life` (a machine that slept finds it as it
/// was).
fn keep(store: &mut dyn Store, lease: &Lease, pace: Pace, by_life: bool, released: &Receiver<()>, tell: &dyn Fn(News)) -> bool {
    let mut deadline = lease.deadline;
    let mut pause = Duration::ZERO;
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
