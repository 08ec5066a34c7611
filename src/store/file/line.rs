//! The line of a file store: tickets in the record, each with the named pipe that its waiter sleeps on.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use super::disk::{Record, Waiter};
use super::{Files, UNRECORDED};
use crate::clock::Moment;
use crate::lock::{Request, Token};
use crate::store::{Acquired, StoreError};

/// The first in line looks by itself this often: its holder may have died without a release.
pub const FIRST_LOOKS: Duration = Duration::from_secs(1);
/// So many in front look that often: the second, since the first may be stopped, and one more, who is
/// told when it comes so near (`tell_near`).
const NEAR: usize = 3;
/// What is written to a waiter whose turn it may be.
pub const TURN: u8 = b'!';
/// What is written to one that has come near.
const COMES_NEAR: u8 = b'~';
/// All others look this often.
const OTHERS_LOOK: Duration = Duration::from_secs(15);

impl Files {
    /// The answer that it is somebody else's, or somebody else's turn; keeps a place in the line where
    /// that is asked for. `lost`: a live holder has it whose record does not say so.
    pub fn busy(&mut self, record: &mut Record, request: &Request, lost: bool) -> Result<Acquired, StoreError> {
        let token = &request.claim.token;
        let own_parent = request.parent.as_ref().is_some_and(|parent| record.holders.iter().any(|holder| holder.token == *parent));
        let place = record.line.iter().position(|waiter| waiter.token == *token);
        let ahead = place.unwrap_or(record.line.len());
        let joins = request.queue && !own_parent;
        let mut changed = false;
        let mut added = None;
        match place {
            Some(at) if joins => changed = record.line[at].woken_us.take().is_some(),
            None if joins => {
                let alive = self.prove_waiter()?;
                (added, changed) = (Some(alive), true);
                let since_us = Moment::now().0;
                record.line.push(Waiter {
                    token: token.clone(),
                    owner: request.owner.clone(),
                    mode: request.mode,
                    alive,
                    since_us,
                    woken_us: None,
                });
            }
            _ => {}
        }
        if !lost {
            changed |= self.wake_first(record);
        }
        if changed && let Err(error) = self.disk.save(record) {
            added.into_iter().for_each(|id| self.forget(id));
            return Err(error);
        }
        let mut holders = Self::holdings(record);
        if lost {
            holders.push(UNRECORDED);
        }
        let soonest = holders.iter().map(|holding| holding.expires_in + Duration::from_millis(1)).min();
        let look = if ahead < NEAR { FIRST_LOOKS } else { OTHERS_LOOK };
        Ok(Acquired::Busy {
            waiting: u32::try_from(record.line.len()).unwrap_or(u32::MAX),
            retry_in: if ahead < NEAR { soonest.unwrap_or(look).clamp(Duration::from_millis(200), look) } else { look },
            holders,
            own_parent,
        })
    }

    pub fn leave_line(&mut self, record: &mut Record, token: &Token) -> bool {
        let before = record.line.len();
        let gone: Vec<u64> = record.line.iter().filter(|w| w.token == *token).map(|w| w.alive).collect();
        record.line.retain(|waiter| waiter.token != *token);
        gone.into_iter().for_each(|id| self.forget(id));
        record.line.len() != before
    }

    /// Tells the one that has come near. (To be done with a release, not with a grant: a command waits for that.)
    pub fn tell_near(&mut self, record: &Record) {
        self.to_wake.extend(record.line.get(NEAR - 1).map(|waiter| (waiter.alive, COMES_NEAR)));
    }

    /// Wakes the first in line, once, if it may join the holders now; false where nothing has changed.
    pub fn wake_first(&mut self, record: &mut Record) -> bool {
        if !record.line.first().is_some_and(|first| record.fits(first.mode)) {
            return false;
        }
        let Some(first) = record.line.first_mut().filter(|first| first.woken_us.is_none()) else { return false };
        self.to_wake.push((first.alive, TURN));
        first.woken_us = Some(Moment::now().0); // one that can't be woken loses its place as well
        true
    }

    /// Wakes a waiter through its own pipe.
    pub fn wake(&self, id: u64, what: u8) {
        let opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(self.disk.pipe_path(id));
        if let Ok(mut pipe) = opened {
            let _ = pipe.write(&[what]);
        }
    }
}
