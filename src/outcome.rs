//! How a call ended, and the only table of exit codes. `--help` prints this table and README is
//! compared with it.

use std::fmt::Write;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The verb did what it was asked.
    Done,
    /// The command ended with this status.
    Ended(u8),
    /// The command died of this signal.
    Died(i32),
    /// dlock itself was told to stop by this signal while it waited.
    Signalled(i32),
    /// `status` of a free resource.
    Free,
    /// A bad option, URL, duration or name.
    Usage,
    /// The store can't be used now.
    Unavailable,
    /// A bug in dlock: a panic that was caught.
    Bug,
    /// The system refused.
    System,
    /// Somebody else's; the code is `--busy-code`.
    Busy(u8),
    /// The store refuses until a person acts.
    Denied,
    /// The lease was lost and the command stopped.
    Lost,
    /// The token does not hold the lease.
    NotHeld,
    /// Stopped by `--max-runtime`.
    Overran,
    /// Found but not executable.
    NotExecutable,
    /// Not found.
    NotFound,
}

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By an exit status.
    Exit(u8),
    /// By a signal.
    Signal(i32),
}

/// The status of a busy resource where `--busy-code` says nothing.
pub const BUSY: u8 = 75;

impl Outcome {
    /// The way the process ends: one exhaustive match.
    pub fn end(self) -> End {
        End::Exit(match self {
            Outcome::Died(signal) | Outcome::Signalled(signal) => return End::Signal(signal),
            Outcome::Done => 0,
            Outcome::Ended(code) | Outcome::Busy(code) => code,
            Outcome::Free => 1,
            Outcome::Usage => 64,
            Outcome::Unavailable => 69,
            Outcome::Bug => 70,
            Outcome::System => 71,
            Outcome::Denied => 77,
            Outcome::Lost => 79,
            Outcome::NotHeld => 80,
            Outcome::Overran => 124,
            Outcome::NotExecutable => 126,
            Outcome::NotFound => 127,
        })
    }
}

impl Outcome {
    /// In one number, for the process that waits for this one.
    pub fn packed(self) -> u64 {
        match self.end() {
            End::Exit(code) => u64::from(code),
            End::Signal(signal) => 256 + u64::from(signal.unsigned_abs()),
        }
    }

    /// What ends in the same way.
    pub fn unpacked(packed: u64) -> Outcome {
        match (u8::try_from(packed), i32::try_from(packed)) {
            (Ok(code), _) => Outcome::Ended(code),
            (_, Ok(packed)) => Outcome::Died(packed - 256),
            _ => Outcome::Bug,
        }
    }
}

/// Exits at once: whatever is to be said or written has been.
pub fn exit(code: u8) -> ! {
    crate::sys::exit_now(code)
}

/// Dies of a signal, or exits with 128+N where that can't be done.
pub fn die_of(signal: i32) -> ! {
    crate::sys::die_of(signal)
}

/// The rows of the table: code, meaning, and whether the command started.
pub const TABLE: &[(&str, &str, &str)] = &[
    ("0–255", "the command's own, 128+N for death by signal N: it ran under the lock to its end", "yes"),
    ("64", "usage: bad option, URL, duration, name, configuration; nothing was contacted", "no"),
    ("69", "store unavailable: unreachable, timed out, loading, read-only, full: try later", "no"),
    ("70", "a bug in dlock", ""),
    ("71", "the system refused (fork, memory, descriptors); the lock was released", "no"),
    ("75", "busy, also when the wait ran out (--busy-code changes it)", "no"),
    ("77", "denied: password, ACL, file mode, foreign key, wrong kind of server: a person must act; never retried", "no"),
    ("79", "lease lost while the command ran; the command was stopped", "yes"),
    ("80", "not held: release, refresh or status of a lease that this token does not hold (any more)", "–"),
    ("124", "stopped by --max-runtime", "yes"),
    ("126", "found but not executable (looked up before the lock is asked for)", "no"),
    ("127", "not found (looked up before the lock is asked for)", "no"),
];

/// The table for people.
pub fn table() -> String {
    TABLE.iter().fold(String::new(), |mut out, (code, meaning, _)| {
        let _ = writeln!(out, "  {code:<5} {meaning}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_row() {
        for outcome in [
            Outcome::Usage,
            Outcome::Bug,
            Outcome::Unavailable,
            Outcome::System,
            Outcome::Busy(BUSY),
            Outcome::Denied,
            Outcome::Lost,
            Outcome::NotHeld,
            Outcome::Overran,
            Outcome::NotExecutable,
            Outcome::NotFound,
        ] {
            let End::Exit(code) = outcome.end() else { panic!("{outcome:?} ends by a signal") };
            assert!(TABLE.iter().any(|(row, ..)| *row == code.to_string()), "{code}");
        }
        assert_eq!(Outcome::Died(15).end(), End::Signal(15));
        for outcome in [Outcome::Ended(0), Outcome::Ended(255), Outcome::Died(9), Outcome::Lost, Outcome::Signalled(2)] {
            assert_eq!(Outcome::unpacked(outcome.packed()).end(), outcome.end());
        }
    }
}
