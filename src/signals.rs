//! Signals become values: which one, and what it means for dlock.

use std::io;
use std::os::fd::OwnedFd;

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
