//! The door to the system: the one file with `unsafe`, each block justified.
//!
//! Signals are blocked and read from a signalfd instead of being handled: a handler would undo an
//! inherited "ignored" (nohup), lose what arrives between fork and exec, and hide who sent it.
//! That is why this file, and not signal-hook, stands here (signal-hook always installs a handler).
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

#[cfg(not(target_os = "linux"))]
compile_error!("dlock needs Linux 5.4 or later: pidfd, CLOCK_BOOTTIME timers and parent-death signals");

static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
static SIGCHLD_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
/// Which of the descriptors 0, 1 and 2 the caller had closed, by bits.
static WERE_CLOSED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn remember_the_caller() {
    // SAFETY: called once by the loader before main; sigaction with a null new action and F_GETFD only
    // read; madvise maps pages of the block that nothing has used yet, and may fail (before Linux 5.14).
    unsafe {
        libc::madvise(BLOCK.0.get().cast(), AT_ONCE, libc::MADV_POPULATE_WRITE);
        for (signal, ignored) in [(libc::SIGPIPE, &SIGPIPE_WAS_IGNORED), (libc::SIGCHLD, &SIGCHLD_WAS_IGNORED)] {
            let mut old: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut old) == 0 {
                ignored.store(old.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
            }
        }
        let closed = (0..3).filter(|fd| libc::fcntl(*fd, libc::F_GETFD) < 0).fold(0, |bits, fd| bits | 1 << fd);
        WERE_CLOSED.store(closed, Ordering::Relaxed);
    }
}

// SAFETY: `.init_array` holds pointers to functions that the loader calls before main, which is the
// only time to see what Rust's runtime then overwrites (SIGPIPE, closed standard streams).
#[unsafe(link_section = ".init_array")]
#[used]
static REMEMBER_THE_CALLER: extern "C" fn() = remember_the_caller;

/// Had the caller closed this standard stream? Rust's runtime has put /dev/null there since.
pub fn was_closed(fd: usize) -> bool {
    WERE_CLOSED.load(Ordering::Relaxed) & 1 << fd != 0
}

/// Memory for the first moments: from one static block until that is used up, then from the system.
///
/// A run of dlock lives for a millisecond and asks for some 60 KiB in a thousand pieces. The allocator
/// of musl maps and unmaps pages for them one by one, which was a third of the whole time.
struct Arena;

const ARENA: usize = 192 * 1024;
/// So much of it every run needs: mapped by one call, not by a page fault for each page.
const AT_ONCE: usize = 72 * 1024;

#[repr(align(4096))]
struct Block(UnsafeCell<[u8; ARENA]>);

// SAFETY: pieces of it are handed out to one owner each, by the atomic counter below.
unsafe impl Sync for Block {}

static BLOCK: Block = Block(UnsafeCell::new([0; ARENA]));
static USED: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Arena = Arena;

impl Arena {
    /// The offset of a piece of the block; `None` for memory of the system's.
    fn offset(piece: *mut u8) -> Option<usize> {
        (piece as usize).checked_sub(BLOCK.0.get() as usize).filter(|offset| *offset < ARENA)
    }

    /// Moves the end of what is used, if it is where it is thought to be.
    fn moved(from: usize, to: usize) -> bool {
        to <= ARENA && USED.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

// SAFETY: a piece lies in the block between two positions of USED, which only compare-and-swap moves,
// so no two live pieces overlap; USED falls only when its last piece is freed. Sizes can't overflow:
// `Layout` bounds them by isize::MAX. All else is the system allocator's.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        loop {
            let used = USED.load(Ordering::Acquire);
            let start = used.next_multiple_of(layout.align().min(4096));
            let end = start + layout.size();
            if end > ARENA || layout.align() > 4096 {
                // SAFETY: as asked of us.
                return unsafe { System.alloc(layout) };
            }
            if Arena::moved(used, end) {
                // SAFETY: start ≤ end ≤ ARENA.
                return unsafe { BLOCK.0.get().cast::<u8>().add(start) };
            }
        }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        match Arena::offset(piece) {
            Some(start) => drop(Arena::moved(start + layout.size(), start)),
            // SAFETY: as asked of us; it came from there.
            None => unsafe { System.dealloc(piece, layout) },
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(start) = Arena::offset(piece) else {
            // SAFETY: as asked of us; it came from there.
            return unsafe { System.realloc(piece, layout, size) };
        };
        if Arena::moved(start + layout.size(), start + size) {
            return piece; // the last one grows or shrinks where it is
        }
        // SAFETY: the caller vouches for `size`; old and new piece do not overlap, both being live.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                new.copy_from_nonoverlapping(piece, layout.size().min(size));
                self.dealloc(piece, layout);
            }
            new
        }
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// CLOCK_BOOTTIME in µs (clock_gettime(2)): counts suspend.
pub fn boottime_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place to write; the clock exists since Linux 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1000
}

/// The caller's signal mask, to be given back to the command.
#[derive(Clone, Copy)]
pub struct Mask(libc::sigset_t);

/// One signal as it came: its number, and whether the kernel (a terminal key) sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// Sent by the kernel, not by a process.
    pub from_kernel: bool,
    /// Passed on by the parent of this process, as `pass` does.
    pub passed: bool,
}

/// Blocks every signal that can be caught, and returns where to read them. SIGCHLD gets its default
/// first: a parent that ignored it would cost us the exit status.
pub fn block_signals() -> io::Result<(OwnedFd, Mask)> {
    // SAFETY: all structures live on this stack and are initialised by sigfillset before use;
    // signal(SIGCHLD, SIG_DFL) installs no handler.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set); // without those that the C library keeps for itself
        let spared = [
            libc::SIGKILL,
            libc::SIGSTOP,
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGSYS,
            libc::SIGABRT,
            libc::SIGTSTP,
            libc::SIGTTIN,
            libc::SIGTTOU,
            libc::SIGPIPE,
        ];
        for number in spared {
            libc::sigdelset(&raw mut set, number);
        }
        let mut old: libc::sigset_t = std::mem::zeroed();
        let error = libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut old);
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        let fd = check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok((OwnedFd::from_raw_fd(fd), Mask(old)))
    }
}

/// Was this signal ignored at the start? Then it stays so: nobody hears of it, though it comes, being
/// blocked. (Asked only when one has come: to ask about all of them costs every run 30 µs.)
fn is_ignored(number: i32) -> bool {
    // SAFETY: zeroed is a valid sigaction; with a null new action it only reads.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(number, std::ptr::null(), &raw mut now) == 0 && now.sa_sigaction == libc::SIG_IGN
    }
}

/// The next signal that was not ignored, if one is there.
pub fn read_signal(fd: &OwnedFd) -> Option<Signal> {
    loop {
        // SAFETY: zeroed is a valid siginfo; read gets its exact size.
        let (info, read) = unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let read = libc::read(fd.as_raw_fd(), (&raw mut info).cast(), size_of::<libc::signalfd_siginfo>());
            (info, read)
        };
        if read != size_of::<libc::signalfd_siginfo>() as isize {
            return None;
        }
        let (number, value) = (info.ssi_signo as i32, info.ssi_int as usize);
        if number == libc::SIGRTMIN() && info.ssi_code == libc::SI_QUEUE && info.ssi_pid as i32 == parent() && value & PASSED != 0 {
            return Some(Signal { number: (value & 0xff) as i32, from_kernel: value & FROM_KERNEL != 0, passed: true });
        }
        if !is_ignored(number) {
            return Some(Signal { number, from_kernel: info.ssi_code == libc::SI_KERNEL, passed: false });
        }
    }
}

/// Could this process open so many files more, now? (By copies of one that is open.)
pub fn can_open(one: &OwnedFd, more: usize) -> io::Result<()> {
    (0..more).map(|_| one.try_clone()).collect::<io::Result<Vec<OwnedFd>>>().map(drop)
}

/// A pipe, both ends closed on exec and not blocking.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors, which are ours alone afterwards.
    unsafe {
        check(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK))?;
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// Writes one byte to wake a reader; a full pipe has woken it already.
pub fn poke(fd: &OwnedFd) {
    // SAFETY: writes one byte from a static.
    unsafe { libc::write(fd.as_raw_fd(), b"!".as_ptr().cast(), 1) };
}

/// Empties a pipe that was poked.
pub fn drain(fd: &OwnedFd) {
    let mut bytes = [0_u8; 64];
    // SAFETY: reads into a buffer of the given size; the descriptor does not block.
    while unsafe { libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) } > 0 {}
}

/// A timer on CLOCK_BOOTTIME (timerfd_create(2)).
pub fn timer() -> io::Result<OwnedFd> {
    // SAFETY: the returned descriptor is ours alone.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::timerfd_create(libc::CLOCK_BOOTTIME, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK))?)) }
}

/// Arms a timer for an absolute moment of CLOCK_BOOTTIME, µs; it fires at once if that is past.
pub fn arm(timer: &OwnedFd, at_us: u64) -> io::Result<()> {
    let at = at_us.max(1);
    let value = libc::itimerspec {
        it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
        it_value: libc::timespec { tv_sec: (at / 1_000_000) as _, tv_nsec: ((at % 1_000_000) * 1000) as _ },
    };
    // SAFETY: `value` is initialised; the old value is not asked for.
    check(unsafe { libc::timerfd_settime(timer.as_raw_fd(), libc::TFD_TIMER_ABSTIME, &raw const value, std::ptr::null_mut()) })?;
    Ok(())
}

/// Waits until one of the descriptors can be read; without a limit for as long as it takes.
pub fn wait_readable(fds: &[RawFd], at_most: Option<Duration>) -> io::Result<()> {
    let mut polls: Vec<libc::pollfd> = fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let limit = at_most.map_or(-1, |span| i32::try_from(span.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
    // SAFETY: `polls` is a valid array of the given length.
    let result = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, limit) };
    match check(result) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// Is there a controlling terminal? (tty(4); not `isatty`, which asks about a descriptor.)
pub fn has_terminal() -> bool {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/tty").is_ok()
}

/// Rows and columns of the terminal at this descriptor; 24 and 80 where it doesn't say.
pub fn terminal_size(fd: RawFd) -> (usize, usize) {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is a valid place to write.
    let known = unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size) } == 0 && size.ws_row > 0 && size.ws_col > 0;
    if known { (size.ws_row.into(), size.ws_col.into()) } else { (24, 80) }
}

/// A program with its arguments and environment, ready to be started: nothing is allocated between
/// the fork and the exec.
pub struct Program {
    path: CString,
    words: Vec<CString>,
    variables: Vec<CString>,
    /// Variables that are to hold the program's own pid: `NAME=` and room for the number.
    of_pid: Vec<Vec<u8>>,
}

impl Program {
    /// Refuses strings with a NUL inside. The variables `of_pid` get the pid of the program.
    pub fn new(path: &OsStr, words: &[OsString], variables: &[OsString], of_pid: &[&str]) -> io::Result<Program> {
        let text = |word: &OsString| CString::new(word.as_bytes()).map_err(io::Error::from);
        Ok(Program {
            path: CString::new(path.as_bytes())?,
            words: words.iter().map(text).collect::<io::Result<_>>()?,
            variables: variables.iter().map(text).collect::<io::Result<_>>()?,
            of_pid: of_pid.iter().map(|name| format!("{name}={}", "\0".repeat(12)).into_bytes()).collect(),
        })
    }
}

/// What the started process reads while its parent is suspended.
struct Start<'a> {
    path: &'a CStr,
    words: &'a [*const libc::c_char],
    by_shell: &'a [*const libc::c_char],
    variables: &'a [*const libc::c_char],
    /// Where the digits of the pid go; at least 12 bytes of zeros each.
    of_pid: &'a [*mut u8],
    mask: Mask,
    own_group: bool,
    parent: libc::pid_t,
    ignore_sigpipe: bool,
    ignore_sigchld: bool,
    closed: usize,
    umask: usize,
    /// µs of CLOCK_BOOTTIME.
    not_after: u64,
    error: libc::c_int,
}

extern "C" fn start(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `argument` is the Start of `spawn`, whose thread is suspended until exec or exit
    // (CLONE_VFORK); only system calls follow, no allocation and no lock.
    unsafe {
        let start = &mut *argument.cast::<Start>();
        let prepared = (!start.own_group || libc::setpgid(0, 0) == 0) && libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0;
        if !prepared {
            start.error = *libc::__errno_location();
            return 127;
        }
        if libc::getppid() != start.parent {
            return 127; // dlock died before the line above took effect
        }
        libc::signal(libc::SIGPIPE, if start.ignore_sigpipe { libc::SIG_IGN } else { libc::SIG_DFL });
        libc::signal(libc::SIGCHLD, if start.ignore_sigchld { libc::SIG_IGN } else { libc::SIG_DFL });
        for place in start.of_pid {
            let mut number = libc::getpid();
            let mut digits = 0;
            let mut rest = number;
            while rest > 0 {
                digits += 1;
                rest /= 10;
            }
            while digits > 0 {
                digits -= 1;
                *place.add(digits) = b'0' + (number % 10) as u8;
                number /= 10;
            }
        }
        if start.umask != NO_UMASK {
            libc::umask(start.umask as libc::mode_t);
        }
        for fd in 0..3 {
            if start.closed & 1 << fd != 0 {
                libc::close(fd);
            }
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const start.mask.0, std::ptr::null_mut());
        if boottime_us() >= start.not_after {
            start.error = libc::ETIME; // suspended, or starved, since its parent looked at the clock
            return 127;
        }
        libc::execve(start.path.as_ptr(), start.words.as_ptr(), start.variables.as_ptr());
        if *libc::__errno_location() == libc::ENOEXEC {
            // As execvp(3): a text without `#!` is a shell script.
            libc::execve(c"/bin/sh".as_ptr(), start.by_shell.as_ptr(), start.variables.as_ptr());
        }
        start.error = *libc::__errno_location();
        127
    }
}

/// Starts a program: in a group of its own where asked, dying with its parent, with the caller's
/// SIGPIPE disposition and signal mask. It shares our memory until exec (as posix_spawn(3) does),
/// which spares copying page tables and carries the error back without a pipe. Signals stay blocked
/// until the last step, so none can get lost or run a handler meanwhile. ETIME where CLOCK_BOOTTIME has
/// come to `not_after` µs, looked at right before the exec.
pub fn spawn(program: &mut Program, mask: Mask, own_group: bool, not_after: u64) -> io::Result<i32> {
    const STACK: usize = 16 * 1024;
    let pointers =
        |texts: &[CString]| -> Vec<*const libc::c_char> { texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect() };
    let words = pointers(&program.words);
    let mut by_shell = vec![c"sh".as_ptr(), program.path.as_ptr()];
    by_shell.extend(words.iter().skip(1));
    let mut variables = pointers(&program.variables);
    let of_pid: Vec<*mut u8> = program.of_pid.iter_mut().map(|text| text.as_mut_ptr()).collect();
    variables.splice(0..0, of_pid.iter().map(|text| text.cast_const().cast()));
    // SAFETY: each text is `NAME=` and zeros.
    let of_pid: Vec<*mut u8> = of_pid.iter().map(|text| unsafe { text.add(libc::strlen(text.cast())) }).collect();
    let mut data = Start {
        path: &program.path,
        words: &words,
        by_shell: &by_shell,
        variables: &variables,
        of_pid: &of_pid,
        mask,
        own_group,
        parent: i32::try_from(std::process::id()).unwrap_or(0),
        ignore_sigpipe: SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed),
        ignore_sigchld: SIGCHLD_WAS_IGNORED.load(Ordering::Relaxed),
        closed: WERE_CLOSED.load(Ordering::Relaxed),
        umask: UMASK.load(Ordering::Relaxed),
        not_after,
        error: 0,
    };
    let mut stack = Vec::<u128>::with_capacity(STACK / size_of::<u128>()); // not written: no page of it is touched
    // SAFETY: the stack is large enough for `start` (which calls system calls only), aligned to 16
    // bytes and grows down from its end; both it and `data` outlive the child's use of them, since
    // CLONE_VFORK suspends this thread until exec or exit.
    unsafe {
        let top = stack.as_mut_ptr().add(stack.capacity()).cast();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let pid = check(libc::clone(start, top, flags, (&raw mut data).cast()))?;
        if data.error != 0 {
            libc::waitpid(pid, std::ptr::null_mut(), 0);
            return Err(io::Error::from_raw_os_error(data.error));
        }
        Ok(pid)
    }
}

/// How a process ended.
pub enum Ended {
    /// With this status.
    Status(i32),
    /// By this signal.
    Signal(i32),
}

/// Was this child, which has ended and is not reaped yet, ended by a signal?
pub fn has_died(pid: i32) -> bool {
    // SAFETY: zeroed is a valid siginfo to be written to.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_PID, pid as libc::id_t, &raw mut info, flags) == 0
            && matches!(info.si_code, libc::CLD_KILLED | libc::CLD_DUMPED)
    }
}

/// Reaps a child, waiting for its end.
pub fn wait(pid: i32) -> io::Result<Ended> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place to write to.
        match check(unsafe { libc::waitpid(pid, &raw mut status, 0) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) if libc::WIFSIGNALED(status) => return Ok(Ended::Signal(libc::WTERMSIG(status))),
            Ok(_) => return Ok(Ended::Status(libc::WEXITSTATUS(status))),
        }
    }
}

/// Splits this process in two: the child's pid in the parent, `None` in the child. There must be one
/// thread only: the child would inherit the locks of all others, and not them.
pub fn fork() -> io::Result<Option<i32>> {
    // SAFETY: the caller has a single thread, so the child may go on like any other process.
    let pid = check(unsafe { libc::fork() })?;
    Ok((pid != 0).then_some(pid))
}

/// A few words of memory that this process shares with those that it forks.
pub struct Page(pub [AtomicU64; 8]);

/// Maps such words, zeroed, for as long as the process lives.
pub fn shared_page() -> io::Result<&'static Page> {
    // SAFETY: a new mapping of at least that size, aligned to a page, never unmapped; all-zero is a
    // valid Page.
    unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let at = libc::mmap(std::ptr::null_mut(), size_of::<Page>(), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(&*at.cast::<Page>()) }
    }
}

/// The pid of this process.
pub fn own_pid() -> i32 {
    // SAFETY: always succeeds.
    unsafe { libc::getpid() }
}

/// The pid of its parent.
pub fn parent() -> i32 {
    // SAFETY: always succeeds.
    unsafe { libc::getppid() }
}

/// The name that ps and killall know this process by; at most 15 bytes are kept.
pub fn rename(name: &CStr) {
    // SAFETY: `name` ends with NUL.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Has the kernel send a signal when the parent dies (PR_SET_PDEATHSIG). Its parent may be dead already.
pub fn signal_on_parents_death(signal: i32) -> io::Result<()> {
    // SAFETY: changes one attribute of this process.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) })?;
    Ok(())
}

/// Puts this process into a session of its own (setsid(2)); it fails for the leader of a group.
pub fn own_session() -> io::Result<()> {
    // SAFETY: changes one attribute of this process.
    check(unsafe { libc::setsid() })?;
    Ok(())
}

/// Passes a signal on to a child of ours, with the mark whether the kernel had sent it; `read_signal`
/// tells it there. It travels as the value of a real-time signal (sigqueue(3)), of which none is lost: a
/// second TERM is dropped while one that somebody else sent is pending.
pub fn pass(pid: i32, signal: Signal) -> io::Result<()> {
    let mark = PASSED | if signal.from_kernel { FROM_KERNEL } else { 0 };
    let value = libc::sigval { sival_ptr: (mark | signal.number as usize) as *mut libc::c_void };
    // SAFETY: the pid is an unreaped child's; the value is a number and never followed.
    match check(unsafe { libc::sigqueue(pid, libc::SIGRTMIN(), value) }) {
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => kill(pid, signal.number), // RLIMIT_SIGPENDING
        other => other.map(drop),
    }
}

const PASSED: usize = 0x6b65_0000;
const FROM_KERNEL: usize = 0x100;

/// Lets `work` write to the terminal from the background, which SIGTTOU would stop (`stty tostop`).
pub fn unstopped<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: both sets live on this stack; all zeros is an empty one.
    unsafe {
        let (mut set, mut old): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigaddset(&raw mut set, libc::SIGTTOU);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut old);
        let done = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        done
    }
}

/// Orphans of the command come back to this process (PR_SET_CHILD_SUBREAPER).
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: changes one flag of this process.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) })?;
    Ok(())
}

/// Sends a signal to a process, or to a group where `pid` is negative.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: the caller holds the pid of an unreaped child or group, or of a descendant.
    check(unsafe { libc::kill(pid, signal) })?;
    Ok(())
}

/// The children of this process, seen as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Children {
    /// There are none.
    None,
    /// There are some, and none has ended that was not reaped.
    Running,
    /// This one has ended. It stays a zombie, so that its pid can't be used again.
    Ended(i32),
}

/// Looks at the children without reaping any (waitid(2), WNOWAIT).
pub fn children() -> io::Result<Children> {
    // SAFETY: zeroed is a valid siginfo to be written to.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        match check(libc::waitid(libc::P_ALL, 0, &raw mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT)) {
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Children::None),
            Err(error) => Err(error),
            Ok(_) if info.si_pid() == 0 => Ok(Children::Running),
            Ok(_) => Ok(Children::Ended(info.si_pid())),
        }
    }
}

/// Reaps one child that has ended.
pub fn reap(pid: i32) {
    // SAFETY: the status is not asked for.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
}

/// May this user execute the file? (faccessat(2), by the effective ids as execve(2) does)
pub fn may_execute(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `path` ends with NUL.
    check(unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) })?;
    Ok(())
}

/// Lets this process create files with exactly the modes that it asks for; the command gets the
/// caller's umask back.
pub fn clear_umask() {
    // SAFETY: changes one attribute of this process.
    let old = unsafe { libc::umask(0) };
    let _ = UMASK.compare_exchange(NO_UMASK, old as usize, Ordering::Relaxed, Ordering::Relaxed);
}

const NO_UMASK: usize = usize::MAX;
/// The umask of the caller, once it is cleared.
static UMASK: AtomicUsize = AtomicUsize::new(NO_UMASK);

/// Ends this process at once, without what an exit would clean up.
pub fn exit_now(code: u8) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code.into()) }
}

/// Dies of a signal, without a core file of its own; 128+N where the signal can't kill us (PID 1).
pub fn die_of(signal: i32) -> ! {
    // SAFETY: resets and unblocks one signal, sends it to this process, and ends it.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        libc::signal(signal, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut set, signal);
        libc::kill(libc::getpid(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::_exit(128 + signal)
    }
}

fn byte_lock(kind: libc::c_int, at: u64) -> libc::flock {
    // SAFETY: zeroed is a valid flock, and l_pid must be 0 for locks of an open file description.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = (at >> 1) as libc::off_t; // off_t is signed
    lock.l_len = 1;
    lock
}

/// Locks one byte of a file for as long as this open file description lives (fcntl(2),
/// F_OFD_SETLK), alone or with others that share it; false if somebody else has it. The byte need not exist.
pub fn lock_byte(file: &File, at: u64, shared: bool) -> io::Result<bool> {
    let lock = byte_lock(if shared { libc::F_RDLCK } else { libc::F_WRLCK }, at);
    // SAFETY: `lock` is initialised and only read.
    match check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Unlocks it again, also for the processes that share this open file description.
pub fn unlock_byte(file: &File, at: u64) {
    let lock = byte_lock(libc::F_UNLCK, at);
    // SAFETY: `lock` is initialised and only read.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
}

/// Has another open file description locked this byte, or (`alone`) locked it alone?
pub fn byte_is_locked(file: &File, at: u64, alone: bool) -> io::Result<bool> {
    let mut lock = byte_lock(if alone { libc::F_RDLCK } else { libc::F_WRLCK }, at);
    // SAFETY: `lock` is initialised, and may be written to.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) })?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

/// Makes a named pipe.
pub fn make_fifo(path: &Path, mode: u32) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `path` ends with NUL.
    check(unsafe { libc::mkfifo(path.as_ptr(), mode as libc::mode_t) })?;
    Ok(())
}

/// Renames to a name that nothing has yet (renameat2(2), RENAME_NOREPLACE).
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (CString::new(from.as_os_str().as_bytes())?, CString::new(to.as_os_str().as_bytes())?);
    let here = libc::AT_FDCWD;
    // SAFETY: both paths end with NUL.
    let result = unsafe { libc::syscall(libc::SYS_renameat2, here, from.as_ptr(), here, to.as_ptr(), libc::RENAME_NOREPLACE) };
    check(result as libc::c_int)?;
    Ok(())
}

/// The effective user id.
pub fn uid() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() }
}

/// Name and home directory of this user by the passwd entry, not by the environment.
pub fn user() -> Option<(String, String)> {
    static USER: std::sync::OnceLock<Option<(String, String)>> = std::sync::OnceLock::new();
    USER.get_or_init(|| {
        let table = std::fs::read("/etc/passwd").unwrap_or_default();
        user_in(&String::from_utf8_lossy(&table), uid()).or_else(look_up_user)
    })
    .clone()
}

/// Name and home directory in the text of passwd(5). The system's own look-up is asked only about users
/// who are not there: it costs a tenth of a millisecond with some C libraries, and pages with all.
fn user_in(table: &str, uid: u32) -> Option<(String, String)> {
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        match fields[..] {
            [name, _, id, _, _, home, _] if id.parse() == Ok(uid) && !name.is_empty() => Some((name.to_owned(), home.to_owned())),
            _ => None,
        }
    })
}

fn look_up_user() -> Option<(String, String)> {
    // SAFETY: getpwuid returns null or a pointer that stays valid until the next call; this process
    // asks before it has a second thread.
    unsafe {
        let entry = libc::getpwuid(uid());
        if entry.is_null() {
            return None;
        }
        let text = |at: *const libc::c_char| CStr::from_ptr(at).to_string_lossy().into_owned();
        Some((text((*entry).pw_name), text((*entry).pw_dir)))
    }
}

/// The host's name.
pub fn host() -> String {
    let mut name = [0_u8; 256];
    // SAFETY: writes at most that many bytes; the last one stays zero.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    CStr::from_bytes_until_nul(&name).map_or_else(|_| "unknown".into(), |name| name.to_string_lossy().into_owned())
}

/// Is this path on a file system whose locks mean nothing between hosts? Its name if so.
pub fn remote_file_system(path: &Path) -> Option<&'static str> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: zeroed is a valid place for statfs to write to.
    let kind = unsafe {
        let mut info: libc::statfs = std::mem::zeroed();
        if libc::statfs(path.as_ptr(), &raw mut info) != 0 {
            return None;
        }
        info.f_type as u64 & 0xffff_ffff
    };
    match kind {
        0x6969 => Some("nfs"),
        0x6573_5546 => Some("fuse"),
        0xff53_4d42 | 0xfe53_4d42 => Some("cifs"),
        0x0102_1997 => Some("9p"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_number_and_only_in_whole_lines() {
        let table = "root:x:0:0:root:/root:/bin/sh\nbroken:x:7\n:x:8:8::/:\njobs:x:1001:100:Jobs, nightly:/srv/jobs:\n+::::::\n";
        assert_eq!(user_in(table, 1001), Some(("jobs".into(), "/srv/jobs".into())));
        assert_eq!(user_in(table, 0), Some(("root".into(), "/root".into())));
        assert!(user_in(table, 7).is_none() && user_in(table, 8).is_none() && user_in("", 0).is_none());
    }

    #[test]
    fn nothing_is_started_after_its_time() {
        let (fd, mask) = block_signals().unwrap();
        drop(fd);
        let mut program = Program::new(OsStr::new("/bin/true"), &["true".into()], &[], &[]).unwrap();
        let late = spawn(&mut program, mask, false, boottime_us()).unwrap_err();
        assert_eq!(late.raw_os_error(), Some(libc::ETIME));
        let pid = spawn(&mut program, mask, false, u64::MAX).unwrap();
        assert!(matches!(wait(pid), Ok(Ended::Status(0))));
    }

    #[test]
    fn it_is_the_one_that_the_system_names() {
        assert_eq!(user(), look_up_user());
    }
}
