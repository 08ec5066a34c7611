//! One TTL in, every interval of a lease out, with the inequality that makes them safe.
//!
//! `beat + 2·op + grace + settle + drift ≤ TTL`: after a renewal succeeded, one beat passes, two
//! attempts may fail, and there is still time to end the command politely and then by force before
//! the lease can be granted to somebody else.

use std::time::Duration;

use crate::lock::duration_words as words;

/// Leases of `run` are at least this long.
pub const TTL_MIN: Duration = Duration::from_secs(1);
/// The longest TTL: a year and a day.
pub const TTL_MAX: Duration = Duration::from_secs(366 * 86_400);

/// The intervals of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Between renewals.
    pub beat: Duration,
    /// Bound of one store call.
    pub op: Duration,
    /// Between TERM and KILL.
    pub grace: Duration,
    /// What a killed process may take to be gone: 99 ms were measured for one of 1 GB.
    pub settle: Duration,
    /// What the two clocks may differ by over one TTL.
    pub drift: Duration,
}

impl Pace {
    /// Paces a lease of `ttl`; `grace` is `--kill-after`, or a quarter of the TTL, at most 10 s.
    /// The error says what `--kill-after` may be at most.
    pub fn new(ttl: Duration, grace: Option<Duration>) -> Result<Pace, String> {
        let settle = Duration::from_millis(100).max(ttl / 20);
        let drift = drift(ttl);
        let beat = ttl / 3;
        let op = (ttl / 8).min(Duration::from_secs(5));
        let room = ttl.saturating_sub(beat + 2 * op + settle + drift);
        let grace = match grace {
            Some(asked) if asked > room => {
                return Err(format!(
                    "a grace of {} leaves no time to renew a lease of {}: use at most {}, or a longer --ttl",
                    words(asked),
                    words(ttl),
                    words(Duration::from_millis(u64::try_from(room.as_millis()).unwrap_or(u64::MAX)))
                ));
            }
            Some(asked) => asked,
            None => (ttl / 4).min(Duration::from_secs(10)).min(room),
        };
        Ok(Pace { beat, op, grace, settle, drift })
    }
}

/// What is taken off a TTL before it is believed: 1 % and 2 ms (the Redlock page's clock drift).
pub fn drift(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inequality_holds_for_every_ttl() {
        for ms in [1000_u64, 1001, 1500, 2000, 3000, 30_000, 600_000, 86_400_000] {
            let ttl = Duration::from_millis(ms);
            let pace = Pace::new(ttl, None).unwrap();
            assert!(pace.beat + 2 * pace.op + pace.grace + pace.settle + pace.drift <= ttl, "{ms}: {pace:?}");
            assert!(!pace.grace.is_zero());
        }
    }

    #[test]
    fn a_grace_that_breaks_the_inequality_is_refused() {
        assert!(Pace::new(Duration::from_secs(10), Some(Duration::from_secs(9))).is_err());
        assert!(Pace::new(Duration::from_secs(10), Some(Duration::from_secs(2))).is_ok());
    }
}
