//! Time that counts suspend: CLOCK_BOOTTIME, and the boot id that says which boot it belongs to.
//!
//! A file of its own so that no rule about leases can be written with `Instant`, which stands still
//! while the machine sleeps (rust-lang/rust#87906), or with the wall clock, which jumps.

use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment of CLOCK_BOOTTIME, µs since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    /// Now.
    pub fn now() -> Moment {
        Moment(crate::sys::boottime_us())
    }

    /// How long until `later`; zero if it is past.
    pub fn until(self, later: Moment) -> Duration {
        Duration::from_micros(later.0.saturating_sub(self.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;
    fn sub(self, by: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(by.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// The wall clock, µs since 1970. For display and as the floor of fencing tokens only.
pub fn wall_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX))
}

/// A time that is up to a quarter longer or shorter, so that many who wait do not ask in step.
pub fn jittered(span: Duration) -> Duration {
    let random = uuid::Uuid::new_v4().as_u64_pair().1 % 1024;
    span.mul_f64(0.75 + 0.5 * random as f64 / 1024.0)
}

/// The id of this boot (random(4), /proc/sys/kernel/random/boot_id).
pub fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
