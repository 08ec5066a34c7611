//! What a store can be asked, what it answers, and the one table of stores.
//!
//! A store never sees a local instant and never decides when a lease is over for its holder: the
//! caller notes the time before it asks. Busy and lost are answers, not errors.

use std::time::Duration;

use crate::lock::{Claim, Holding, Keeping, Name, Owner, Request, Waiting};

pub mod file;
pub mod redis;

/// The answer to `acquire`.
#[derive(Debug)]
pub enum Acquired {
    /// The lease is the asker's.
    Granted {
        /// Fencing token.
        fence: Option<u64>,
        /// Slot number, with `--slots`.
        slot: Option<u32>,
        /// The TTL granted.
        ttl: Duration,
        /// What was in the way and is over, where the store can tell.
        after: Option<After>,
    },
    /// Somebody else's.
    Busy {
        /// Whose.
        holders: Vec<Holding>,
        /// How many wait in all.
        waiting: u32,
        /// Ask again after this long at the latest.
        retry_in: Duration,
        /// The job that dlock was started in holds it itself.
        own_parent: bool,
    },
}

/// What a lease was granted over: worth a word, since somebody's job has failed.
#[derive(Clone, Debug)]
pub enum After {
    /// A holder that stopped renewing.
    Vanished(Box<Holding>),
    /// A record, by its path, that could not be read.
    Unreadable(String),
}

/// The answer to `refresh`.
#[derive(Debug)]
pub enum Refreshed {
    /// Renewed.
    Kept {
        /// The TTL granted.
        ttl: Duration,
    },
    /// Not the asker's any more.
    Lost(Lost),
}

/// Why a lease is lost.
#[derive(Debug, Clone)]
pub enum Lost {
    /// The store has no such lease.
    Absent,
    /// Somebody else holds it.
    Foreign(Box<Holding>),
    /// Somebody broke it.
    Broken {
        /// Who.
        by: Owner,
    },
    /// What is there is no lock: its kind, in words.
    Odd(String),
    /// Its deadline has passed and the store can't be asked, for this reason.
    Unproven(String),
}

/// The answer to `release`.
#[derive(Debug)]
pub enum Released {
    /// It was the asker's and is free.
    Freed,
    /// It was not the asker's.
    NotHeld(Option<Box<Holding>>),
    /// A running `run` keeps it, and releases it itself when its command is gone.
    Kept(Box<Holding>),
}

/// The state of one resource.
#[derive(Clone, Debug)]
pub struct Status {
    /// The resource.
    pub name: Name,
    /// Its holders; none when free.
    pub holders: Vec<Holding>,
    /// Who waits, first in line first.
    pub waiters: Vec<Waiting>,
    /// The last fencing token granted.
    pub last_fence: Option<u64>,
    /// Which of the holders the claim is that was asked about.
    pub own: Option<usize>,
}

/// What goes wrong with a store. The text is whole: what was tried, and the store's own words.
#[derive(Clone, Debug)]
pub enum StoreError {
    /// Try later.
    Unavailable(String),
    /// Only a person can mend it.
    Denied(String),
}

/// One place where locks live.
pub trait Store: Send {
    /// Opens what this process and its guard have to share, before they part.
    fn prepare(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Asks for a lease; asking again with the same token is the same lease.
    fn acquire(&mut self, request: &Request) -> Result<Acquired, StoreError>;
    /// Renews a lease; never creates one.
    fn refresh(&mut self, claim: &Claim, ttl: Duration) -> Result<Refreshed, StoreError>;
    /// Frees the lease if the token owns it, and leaves the line. Asked for as a `Keeping::Lease`, it
    /// spares a lease that a `run` keeps: its command may be alive.
    fn release(&mut self, claim: &Claim, by: Keeping) -> Result<Released, StoreError>;
    /// Ends others' leases: those without a process at once, a `run` is marked and told. All of them, or
    /// the one with this fencing token.
    fn break_lease(&mut self, name: &Name, by: &Owner, fence: Option<u64>) -> Result<Vec<Holding>, StoreError>;
    /// The state of a resource; `claim` asks besides whether this token holds it.
    fn status(&mut self, name: &Name, claim: Option<&Claim>) -> Result<Status, StoreError>;
    /// All resources that are held or waited for and whose names begin with `prefix`.
    fn list(&mut self, prefix: &str) -> Result<Vec<Status>, StoreError>;
    /// Returns when something may have changed, or after `at_most`. A hint, never an answer.
    fn await_change(&mut self, claim: &Claim, at_most: Duration) -> Result<(), StoreError>;
    /// The longest that the next calls may take.
    fn limit(&mut self, op: Duration);
}

/// A row of the table of stores.
pub struct Backend {
    /// The scheme of its URLs.
    pub scheme: &'static str,
    /// The form of its URLs, for help.
    pub form: &'static str,
    /// One line on what it is.
    pub about: &'static str,
    /// A live `run` keeps its lease whatever the clock says.
    by_life: bool,
    check: fn(&str) -> Result<(), String>,
    open: fn(&str) -> Result<Box<dyn Store>, StoreError>,
    shown: fn(&str) -> String,
    handed: fn(&str) -> String,
    complete: fn(&str, Option<&str>, Option<&str>) -> String,
}

/// All stores. Help, README and the message about unknown schemes come from here.
pub const BACKENDS: &[Backend] = &[
    Backend {
        scheme: "file",
        form: "file:///DIR",
        about: "a local directory; one machine",
        by_life: true,
        check: file::check,
        open: file::open,
        shown: str::to_owned,
        handed: str::to_owned,
        complete: file::complete,
    },
    Backend {
        scheme: "redis",
        form: "redis://[USER[:PW]@]HOST[:PORT][/DB]",
        about: "one Redis or Valkey",
        by_life: false,
        check: redis::check,
        open: redis::open,
        shown: redis::shown,
        handed: redis::handed,
        complete: redis::complete,
    },
    Backend {
        scheme: "redis+unix",
        form: "redis+unix:///PATH[?db=N]",
        about: "one Redis on a unix socket",
        by_life: false,
        check: redis::check,
        open: redis::open,
        shown: redis::shown,
        handed: redis::handed,
        complete: redis::complete,
    },
];

fn backend(url: &str) -> Result<&'static Backend, String> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    BACKENDS.iter().find(|row| row.scheme == scheme).ok_or_else(|| {
        let known: Vec<_> = BACKENDS.iter().map(|row| row.form).collect();
        format!("the store URL has no known scheme; known are {}", known.join(", "))
    })
}

/// Checks a URL without contacting anything. The error never repeats the URL: it may hold a password.
pub fn check(url: &str) -> Result<(), String> {
    (backend(url)?.check)(url)
}

/// Opens a checked URL.
pub fn open(url: &str) -> Result<Box<dyn Store>, StoreError> {
    (backend(url).map_err(StoreError::Denied)?.open)(url)
}

/// Does a live `run` keep its lease whatever the clock says?
pub fn kept_by_life(url: &str) -> bool {
    backend(url).is_ok_and(|row| row.by_life)
}

/// The store for people, without its password and without a connection to it.
pub fn shown(url: &str) -> String {
    backend(url).map_or_else(|_| "the store".into(), |row| (row.shown)(url))
}

/// The store's URL for the command's environment: complete but for its password.
pub fn handed(url: &str) -> String {
    backend(url).map_or_else(|_| String::new(), |row| (row.handed)(url))
}

/// Puts a password and a prefix into a URL that names none.
pub fn complete(url: &str, password: Option<&str>, prefix: Option<&str>) -> String {
    backend(url).map_or_else(|_| url.to_owned(), |row| (row.complete)(url, password, prefix))
}

/// Adds `?prefix=` where the URL has none.
fn with_prefix(url: &str, prefix: Option<&str>) -> String {
    match prefix {
        Some(prefix) if !url.contains("?prefix=") && !url.contains("&prefix=") => {
            let joint = if url.contains('?') { '&' } else { '?' };
            format!("{url}{joint}prefix={}", percent_encoded(prefix))
        }
        _ => url.to_owned(),
    }
}

/// The URL without a `?prefix=` of its own.
pub fn without_prefix(url: &str) -> String {
    let Some((head, query)) = url.split_once('?') else { return url.to_owned() };
    let kept: Vec<_> = query.split('&').filter(|pair| !pair.starts_with("prefix=")).collect();
    if kept.is_empty() { head.to_owned() } else { format!("{head}?{}", kept.join("&")) }
}

/// Everything but letters, digits and `-._~:` as `%XX` (RFC 3986; the colon is harmless in a value).
fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => out.push(char::from(byte)),
            _ => {
                use std::fmt::Write;
                let _ = write!(out, "%{byte:02X}");
            }
        }
        out
    })
}

/// Undoes percent-encoding; `None` for a `%` without two digits, or for what is no UTF-8 then.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            bytes.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}
