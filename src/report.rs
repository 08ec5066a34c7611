//! Every word for people (stderr) and for scripts (stdout, JSON): one line an event, lower case, no
//! full stop. A stream that is closed or full is no reason to panic.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use crate::clock::wall_us;
use crate::event::Event;
use crate::guard::Deed;
use crate::lock::{Holding, Keeping, Lease, Mode, Name, Owner, duration_words};
use crate::outcome::Outcome;
use crate::store::{self, After, Lost, Status, StoreError};
use crate::sys;
use crate::wait::InTheWay;
use crate::watch::Why;

mod json;
mod table;

pub use json::{document, holding_json, lease_json, renewed_json, status_json};
pub use table::{cut, list_text};

/// Says one line on stderr.
pub fn say(words: &str) {
    let line = format!("dlock: {}\n", words.replace('\n', " "));
    let _ = sys::unstopped(|| io::stderr().lock().write_all(line.as_bytes()));
}

/// How long a word about a running command may take.
const PATIENCE: Duration = Duration::from_millis(50);

/// Says one line on stderr beside a running command, which a reader that has stopped reading (a full
/// pipe, Ctrl-S) must not hold up: the line is written by a thread of its own, and what it waits for
/// is waited for a moment, once. Later lines are then dropped.
pub fn say_beside(words: &str) {
    static STUCK: AtomicBool = AtomicBool::new(false); // cleared by the thread that gets through after all
    if STUCK.load(Ordering::Relaxed) {
        return;
    }
    STUCK.store(true, Ordering::Relaxed);
    let line = words.to_owned();
    let (done, heard) = channel();
    let started = Builder::new().spawn(move || {
        say(&line);
        STUCK.store(false, Ordering::Relaxed);
        let _ = done.send(());
    });
    if started.is_ok() {
        let _ = heard.recv_timeout(PATIENCE);
    } else {
        STUCK.store(false, Ordering::Relaxed);
        say(words); // no thread is to be had; should it block as well, the guard ends the command in time
    }
}

/// Says why, and passes the outcome on.
pub fn fail(outcome: Outcome, words: &str) -> Outcome {
    // A usage error of several lines keeps them: they are a list of what is possible.
    let line = format!("dlock: {words}\n");
    let _ = sys::unstopped(|| io::stderr().lock().write_all(line.as_bytes()));
    outcome
}

/// Prints a result on stdout; if that fails, the outcome is the system's refusal.
pub fn print(text: &str, outcome: Outcome) -> Outcome {
    if sys::was_closed(1) {
        return fail(Outcome::System, "cannot write to standard output: it is closed");
    }
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => outcome,
        // A reader that has seen enough is no news: die as others do.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Outcome::Died(libc::SIGPIPE),
        Err(error) => fail(Outcome::System, &format!("cannot write to standard output: {error}")),
    }
}

/// Is standard output a terminal?
pub fn is_at_terminal() -> bool {
    io::stdout().is_terminal()
}

/// A store's error.
pub fn store_failed(error: &StoreError) -> Outcome {
    match error {
        StoreError::Unavailable(words) => fail(Outcome::Unavailable, &format!("store unavailable: {words}")),
        StoreError::Denied(words) => fail(Outcome::Denied, &format!("denied: {words}")),
    }
}

/// The list of stores, from their table.
pub fn stores() -> String {
    store::BACKENDS.iter().fold(String::new(), |mut out, row| {
        let _ = writeln!(out, "  {:<38} {}", row.form, row.about);
        out
    })
}

/// Who, in a few words.
pub fn who(owner: &Owner) -> String {
    let label = owner.label.as_ref().map_or(String::new(), |label| format!(" ({})", printable(label)));
    let program = if owner.program.is_empty() { String::new() } else { format!(", {}", printable(&owner.program)) };
    format!("{}@{} pid {}{program}{label}", printable(&owner.user), printable(&owner.host), owner.pid)
}

/// What a terminal would act on is escaped.
fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] }).collect()
}

/// How it is shared, where it is: after a name.
fn mode_words(mode: Mode, slot: Option<u32>) -> String {
    match (mode, slot) {
        (Mode::Exclusive, _) => String::new(),
        (Mode::Shared { limit: None }, _) => ", shared".into(),
        (Mode::Shared { limit: Some(limit) }, Some(slot)) => format!(", slot {slot} of {limit}"),
        (Mode::Shared { limit: Some(limit) }, None) => format!(", one of {limit} slots"),
    }
}

/// Whose it is, as far as is known.
pub fn holder(holding: &Holding) -> String {
    match &holding.owner {
        Some(owner) => who(owner),
        None if holding.keeping == Some(Keeping::Process) => "a live dlock run whose record was lost".into(),
        None => "a client that left no record".into(),
    }
}

/// The same with its fencing token.
pub fn holder_with_fence(holding: &Holding) -> String {
    let fence = holding.fence.map_or(String::new(), |fence| format!(", fencing token {fence}"));
    format!("{}{}{fence}", holder(holding), mode_words(holding.mode, holding.slot))
}

fn held(holding: &Holding) -> String {
    let mut words = holder(holding);
    if holding.owner.is_none() {
        if holding.keeping != Some(Keeping::Process) && !holding.expires_in.is_zero() {
            let _ = write!(words, ", expires in {}", about(holding.expires_in));
        }
        return words;
    }
    words += &mode_words(holding.mode, holding.slot);
    if let Some(at) = holding.acquired_at_us {
        let age = Duration::from_micros(wall_us().saturating_sub(at));
        let _ = write!(words, ", since {} ({} ago)", utc(at), about(age));
    }
    let _ = write!(words, ", expires in {}", about(holding.expires_in));
    if let Some(by) = &holding.broken_by {
        let _ = write!(words, ", broken by {} and ending", who(by));
    }
    words
}

fn about(span: Duration) -> String {
    let fine = if span < Duration::from_secs(10) { 100 } else { 1000 };
    duration_words(Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(0).div_ceil(fine) * fine))
}

/// A moment of the wall clock: ISO 8601, UTC.
pub fn utc(us: u64) -> String {
    let days = i64::try_from(us / 86_400_000_000).unwrap_or(0);
    let seconds = us / 1_000_000 % 86_400;
    // Civil date from days since 1970: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    let day = doy - (153 * mp + 2) / 5 + 1;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn in_the_way(way: &InTheWay) -> String {
    let mut words = match way.holders.first() {
        Some(holding) => format!("held by {}", held(holding)),
        None => "others wait in front".into(),
    };
    if way.holders.len() > 1 {
        let _ = write!(words, ", and {} more", way.holders.len() - 1);
    }
    if way.waiting > 0 {
        let _ = write!(words, ", {} waiting", way.waiting);
    }
    words
}

/// What to say of what happens under `run` and `acquire`.
pub struct Voice {
    /// The resource.
    pub name: Name,
    /// The store without its password.
    pub store: String,
    /// Nothing when busy.
    pub quiet: bool,
    /// More.
    pub verbose: bool,
}

impl Voice {
    /// Words one event.
    pub fn hear(&self, event: &Event) {
        let name = printable(self.name.as_str());
        match event {
            Event::Waiting(Ok(way)) if !self.quiet => say_beside(&format!("waiting for '{name}': {}", in_the_way(way))),
            Event::Waiting(Err(StoreError::Unavailable(words))) => say_beside(&format!("waiting for '{name}': store unavailable: {words}")),
            Event::Waiting(_) => {}
            Event::Busy(_) if self.quiet => {}
            Event::Busy(way) if way.own_parent => {
                say_beside(&format!("busy: '{name}' is already held by this job's own parent, {}", in_the_way(way)))
            }
            Event::Busy(way) => {
                let waited =
                    if way.waited < Duration::from_millis(100) { String::new() } else { format!(", waited {}", about(way.waited)) };
                say_beside(&format!("busy: '{name}' is {}{waited} ({})", in_the_way(way), self.store));
            }
            Event::Failed(error) => match error {
                StoreError::Unavailable(words) => say_beside(&format!("cannot lock '{name}': store unavailable: {words}; try later")),
                StoreError::Denied(words) => say_beside(&format!("cannot lock '{name}': denied: {words}")),
            },
            Event::TakenOver(_) if self.quiet => {}
            Event::TakenOver(After::Vanished(before)) => {
                let who = before.owner.as_ref().map_or_else(|| "a client that left no record".into(), who);
                let heard = before.heartbeat_us.map_or(String::new(), |at| format!(", last heard of at {}", utc(at)));
                say_beside(&format!("took over '{name}': previous holder {who} stopped renewing{heard}"));
            }
            Event::TakenOver(After::Unreadable(path)) => {
                say_beside(&format!("took over '{name}': its record {path} could not be read and was replaced"));
            }
            Event::Granted(lease) if self.verbose => {
                let fence = lease.fence.map_or(String::new(), |fence| format!(", fencing token {fence}"));
                say_beside(&format!("locked '{name}' in {} for {}{fence}", self.store, duration_words(lease.ttl)));
            }
            Event::Late(StoreError::Unavailable(words) | StoreError::Denied(words)) if self.verbose => {
                say_beside(&format!("renewal of '{name}' failed, trying again: {words}"));
            }
            Event::Granted(_) | Event::Late(_) => {}
            Event::Lost(lost) => say_beside(&format!(
                "lock on '{name}' was lost: {}",
                match lost {
                    Lost::Absent => "its record is gone from the store".into(),
                    Lost::Foreign(holding) => format!("now held by {}", held(holding)),
                    Lost::Broken { by } => format!("broken by {}", who(by)),
                    Lost::Odd(words) => words.clone(),
                    Lost::Unproven(words) => format!("its deadline has passed and the store can't be asked: {words}"),
                }
            )),
            Event::Refused(pid) => {
                say_beside(&format!("cannot stop pid {pid} of the command: not permitted; '{name}' is kept until it ends"));
            }
            Event::Stopping(Why::Lost) => say_beside("stopping the command"),
            Event::Stopping(Why::Silent) => {
                say_beside(&format!("lock on '{name}' could not be renewed in time at {}: stopping the command", self.store));
            }
            Event::Stopping(Why::Orphaned) => say_beside("dlock was killed: killing the command"),
            Event::Guarded(Deed::Orphaned) => {
                say_beside(&format!("the process that kept '{name}' was killed: ended the command and all that it had started"));
            }
            Event::Guarded(Deed::Unanswered) => {}
            Event::Guarded(Deed::Bereft) => {
                say_beside(&format!("cannot lock '{name}': the process that asked for it was killed; nothing was started"));
            }
            Event::Guarded(Deed::Stalled) => {
                say_beside(&format!("the process that keeps '{name}' stands still: killed the command before its lease was over"));
            }
            Event::Stopping(Why::Overran | Why::Told) => say_beside("stopping the command after --max-runtime"),
            Event::Overran(limit) => say_beside(&format!("stopping the command after --max-runtime {}", duration_words(*limit))),
            Event::Outstayed(limit) => {
                say_beside(&format!("killed the command: it went on for {} after TERM (--kill-after)", duration_words(*limit)));
            }
            Event::NotReleased(words, left) if left.is_zero() => say_beside(&format!("could not release '{name}': {words}")),
            Event::NotReleased(words, left) => {
                say_beside(&format!("could not release '{name}', it expires in {}: {words}", about(*left)));
            }
            Event::Trouble(words) => say_beside(words),
        }
    }
}

/// `status` for people.
pub fn status_text(status: &Status, store: &str) -> String {
    let name = printable(status.name.as_str());
    let state = if status.holders.is_empty() { "free" } else { "held" };
    let mut out = format!("{name}: {state} ({store})\n");
    for holding in &status.holders {
        let fence = holding.fence.map_or(String::new(), |fence| format!(", fencing token {fence}"));
        let _ = writeln!(out, "  holder: {}{fence}", held(holding));
    }
    for (at, waiter) in status.waiters.iter().enumerate() {
        let what = mode_words(waiter.mode, None);
        let _ = writeln!(out, "  waiter {}: {}{what}, for {}", at + 1, who(&waiter.owner), about(waiter.waited));
    }
    out
}

/// A lease as lines for a shell's `eval`; the only place besides `lease_json` that shows a token.
pub fn exports(lease: &Lease, store: Option<&str>) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    lease.variables(store.map(str::to_owned)).iter().fold(String::new(), |mut out, (name, value)| {
        let _ = writeln!(out, "export {name}={}", quoted(value));
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Waiting;

    #[test]
    fn who_waits_is_shown_also_between_two_holders() {
        let owner = Owner { user: "ann".into(), host: "web1".into(), pid: 7, ..Owner::default() };
        let status = Status {
            name: Name::new("x").unwrap(),
            holders: Vec::new(),
            waiters: vec![Waiting { owner, mode: Mode::Shared { limit: Some(3) }, waited: Duration::from_secs(90) }],
            last_fence: None,
            own: None,
        };
        assert_eq!(status_text(&status, "here"), "x: free (here)\n  waiter 1: ann@web1 pid 7, one of 3 slots, for 1m30s\n");
        assert_eq!(list_text(&[status], None), "x  free    1 waiting\n");
    }

    #[test]
    fn times_are_utc() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_827_696_000_000), "2000-02-29T12:34:56Z");
        assert_eq!(utc(1_796_083_199_000_000), "2026-11-30T23:59:59Z");
    }
}
