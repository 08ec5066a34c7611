//! What happens while a lock is taken and its command runs: values that are worded elsewhere.

use std::time::Duration;

use crate::guard::Deed;
use crate::lock::Lease;
use crate::store::{After, Lost, StoreError};
use crate::wait::InTheWay;
use crate::watch::Why;

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
    /// This process of the command's may not be killed.
    Refused(i32),
    /// The command is being stopped after this long (`--max-runtime`).
    Overran(Duration),
    /// The command went on for this long after TERM was passed on to it (`--kill-after`), and is killed.
    Outstayed(Duration),
    /// The release failed: the lease runs out by itself, in so long.
    NotReleased(&'a str, Duration),
    /// The guard had to act.
    Guarded(Deed),
    /// The system refused something.
    Trouble(&'a str),
}
