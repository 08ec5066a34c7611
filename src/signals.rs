//! Signals become values: which one, and what it means for dlock.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::clock::Moment;
use crate::sys::{self, Mask, Signal};

/// The signals of this process, blocked before any thread starts.
pub struct Signals {
    fd: OwnedFd,
    mask: Mask,
}

impl Signals {
    /// Blocks them all; those ignored at the start stay ignored.
    pub fn block() -> io::Result<Signals> {
        let (fd, mask) = sys::block_signals()?;
        Ok(Signals { fd, mask })
    }

    /// Readable when a signal is there.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The caller's mask, for the command.
    pub fn mask(&self) -> Mask {
        self.mask
    }

    /// The next signal, if one is there.
    pub fn next(&self) -> Option<Signal> {
        sys::read_signal(&self.fd)
    }
}

impl Signals {
    /// The first signal among those that have come that would end a process.
    pub fn told(&self) -> Option<i32> {
        std::iter::from_fn(|| self.next()).find(|signal| ends(*signal)).map(|signal| signal.number)
    }
}

/// Signals reach the supervisor by two ways: passed on by its guard, and straight from whoever signals a
/// unit of systemd's or all processes, the guard among them. The two are one, wherever they come within
/// this time.
const TWINS: Duration = Duration::from_millis(100);

/// Makes one of two that are the same.
#[derive(Default)]
pub struct Twins {
    passed: Option<(i32, Moment)>,
    straight: Option<(Signal, Moment)>,
}

impl Twins {
    /// One has come. What is to be done now: nothing yet, where its twin may follow, and nothing more,
    /// where that was first.
    pub fn heard(&mut self, signal: Signal, now: Moment) -> [Option<Signal>; 2] {
        if !ends(signal) {
            return [None, Some(signal)];
        }
        if signal.passed {
            self.passed = Some((signal.number, now));
            self.straight = self.straight.filter(|(other, _)| other.number != signal.number);
            return [None, Some(signal)];
        }
        if self.passed.is_some_and(|(number, at)| number == signal.number && at.until(now) < TWINS) {
            return [None, None];
        }
        let before = self.straight.filter(|(other, _)| other.number != signal.number).map(|(other, _)| other);
        self.straight = Some((signal, now + TWINS));
        [before, None]
    }

    /// One whose twin has not come: it was meant for this process alone.
    pub fn alone(&mut self, now: Moment) -> Option<Signal> {
        self.straight.take_if(|(_, at)| now >= *at).map(|(signal, _)| signal)
    }

    /// When to ask for one again.
    pub fn next(&self) -> Moment {
        self.straight.map_or(Moment(u64::MAX), |(_, at)| at)
    }
}

/// Would this signal end a process that does nothing about it?
pub fn ends(signal: Signal) -> bool {
    !matches!(signal.number, libc::SIGCHLD | libc::SIGCONT | libc::SIGURG | libc::SIGWINCH)
}

/// Is it meant for the whole group of the command? The others would kill its helpers by default.
pub fn for_group(signal: Signal) -> bool {
    matches!(signal.number, libc::SIGHUP | libc::SIGINT | libc::SIGQUIT | libc::SIGTERM | libc::SIGCONT)
}

/// Has the terminal sent it to the command already, being in the same group? Hang-up goes to the
/// session leader only and is always passed on.
pub fn seen_by_group(signal: Signal) -> bool {
    signal.from_kernel && matches!(signal.number, libc::SIGINT | libc::SIGQUIT | libc::SIGWINCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_that_are_the_same_one_is_passed_on() {
        let signal = |number, passed| Signal { number, from_kernel: false, passed };
        let (straight, passed) = (signal(libc::SIGTERM, false), signal(libc::SIGTERM, true));
        let now = Moment(1_000_000);
        let mut twins = Twins::default();
        assert_eq!(twins.heard(straight, now), [None, None]);
        assert_eq!(twins.heard(passed, now), [None, Some(passed)]);
        assert_eq!(twins.heard(straight, now), [None, None]);
        assert_eq!((twins.alone(now + TWINS), twins.next()), (None, Moment(u64::MAX)));
        // One that stays alone is passed on in the end, or as soon as another comes.
        let later = now + TWINS * 3;
        assert_eq!(twins.heard(straight, later), [None, None]);
        assert_eq!((twins.next(), twins.alone(later)), (later + TWINS, None));
        assert_eq!(twins.alone(later + TWINS), Some(straight));
        let other = signal(libc::SIGHUP, false);
        assert_eq!(twins.heard(straight, later + TWINS), [None, None]);
        assert_eq!(twins.heard(other, later + TWINS), [Some(straight), None]);
        let cont = signal(libc::SIGCONT, false);
        assert_eq!(twins.heard(cont, later), [None, Some(cont)]);
    }
}
