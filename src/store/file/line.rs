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
const FIRST_LOOKS: Duration = Duration::from_secs(1);
/// All others look this often.
const OTHERS_LOOK: Duration = Duration::from_secs(15);

impl Files {
    /// The answer that it is somebody else's, or somebody else's turn; keeps a place in the line where
    /// that is asked for. `lost`: a live holder has it whose record does not say so.
    pub fn busy(&mut self, record: &mut Record, request: &Request, lost: bool) -> Result<Acquired, StoreError> {
        let token = &request.claim.token;
        let own_parent = record.holder.as_ref().is_some_and(|holder| request.parent.as_ref().is_some_and(|parent| *parent == holder.token));
        let place = record.line.iter().position(|waiter| waiter.token == *token);
        let ahead = place.unwrap_or(record.line.len());
        let joins = request.queue && !own_parent;
        let mut changed = joins;
        let mut added = None;
        match place {
            Some(at) if joins => record.line[at].woken_us = None,
            None if joins => {
                let alive = self.prove_waiter()?;
                added = Some(alive);
                let since_us = Moment::now().0;
                record.line.push(Waiter { token: token.clone(), owner: request.owner.clone(), alive, since_us, woken_us: None });
            }
            _ => {}
        }
        if record.holder.is_none() && !lost {
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
        // The second looks as often as the first, who may be stopped.
        let look = if ahead < 2 { FIRST_LOOKS } else { OTHERS_LOOK };
        Ok(Acquired::Busy {
            waiting: u32::try_from(record.line.len()).unwrap_or(u32::MAX),
            retry_in: if ahead < 2 { soonest.unwrap_or(look).clamp(Duration::from_millis(200), look) } else { look },
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

    /// Wakes the first in line through its own pipe, once; false where nothing has changed.
    pub fn wake_first(&self, record: &mut Record) -> bool {
        let Some(first) = record.line.first_mut().filter(|first| first.woken_us.is_none()) else { return false };
        let opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(self.disk.pipe_path(first.alive));
        if let Ok(mut pipe) = opened {
            let _ = pipe.write(b"!");
        }
        first.woken_us = Some(Moment::now().0); // one that can't be woken loses its place as well
        true
    }
}
