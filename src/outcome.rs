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

/// Dies of a signal, or exits with 128+N where that can't be done.
pub fn die_of(signal: i32) -> ! {
    crate::sys::die_of(signal)
}

/// The rows of the table: code and meaning.
pub const TABLE: &[(&str, &str)] = &[
    ("0–255", "the command's own; 128+N for death by signal N"),
    ("64", "usage: bad option, URL, duration or name; nothing was contacted"),
    ("69", "store unavailable: try later; the command did not start"),
    ("71", "the system refused (fork, memory, descriptors); the lock was released"),
    ("75", "busy, also when the wait ran out (--busy-code changes it)"),
    ("77", "denied by the store or the file system: a person must act"),
    ("79", "lease lost while the command ran; the command was stopped"),
    ("80", "not held: release, refresh or status of a lease that this token does not hold"),
    ("124", "stopped by --max-runtime"),
    ("126", "command found but not executable"),
    ("127", "command not found; looked up before the lock is asked for"),
];

/// The table for people.
pub fn table() -> String {
    TABLE.iter().fold(String::new(), |mut out, (code, meaning)| {
        let _ = writeln!(out, "  {code:<6} {meaning}");
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
            assert!(TABLE.iter().any(|(row, _)| *row == code.to_string()), "{code}");
        }
        assert_eq!(Outcome::Died(15).end(), End::Signal(15));
    }
}
