//! The nouns of dlock: names, tokens, owners, requests and leases.
//!
//! Every other file speaks in these types, so a value that exists here has been checked. Nothing in
//! this file reads a clock, touches a store or prints.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The longest name in bytes; what fits every store.
pub const NAME_MAX: usize = 255;

/// The name of a resource: 1 to 255 bytes of UTF-8 without control characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Name(String);

impl Name {
    /// Checks a name. The error says which rule was broken.
    pub fn new(text: &str) -> Result<Name, String> {
        if text.is_empty() {
            return Err("a resource name must not be empty".into());
        }
        if text.len() > NAME_MAX {
            return Err(format!("a resource name has at most {NAME_MAX} bytes; this one has {}", text.len()));
        }
        if text.chars().any(char::is_control) {
            return Err(format!("a resource name has no control characters: {text:?}"));
        }
        Ok(Name(text.to_owned()))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Proof of ownership. It is a secret: `Debug` hides it, and nothing but `acquire` prints it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token(String);

impl Token {
    /// A new random token (UUID version 4).
    pub fn random() -> Token {
        Token(uuid::Uuid::new_v4().to_string())
    }

    /// A token that somebody hands back. Printable ASCII without spaces, at most 128 bytes; other
    /// lock libraries' tokens fit as well.
    pub fn new(text: &str) -> Result<Token, String> {
        if text.is_empty() {
            return Err("the token is empty: did the acquire fail?".into());
        }
        if text.len() > 128 || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("a token is printable ASCII without spaces, at most 128 bytes".into());
        }
        Ok(Token(text.to_owned()))
    }

    /// The secret itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(***)")
    }
}

/// What a lease is proved with: what `acquire` prints and `release` takes.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The resource.
    pub name: Name,
    /// The secret that owns it.
    pub token: Token,
}

/// Who asks, as shown to others. Only shown: liveness is never decided from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// User name, or the uid where there is none.
    pub user: String,
    /// Host name.
    pub host: String,
    /// Process id on that host, in its own pid namespace.
    pub pid: u32,
    /// The program's name, without its arguments: they hold passwords.
    pub program: String,
    /// `--label`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// How a resource is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One holder.
    Exclusive,
    /// Any number of shared holders, or at most `limit` with a slot number each.
    Shared {
        /// The number of slots, for `--slots`.
        limit: Option<u32>,
    },
}

/// The most slots of one resource.
pub const SLOTS_MAX: u32 = 1_000_000;

impl Mode {
    /// How many holders, itself among them, one in this mode is content with.
    pub fn most(self) -> usize {
        match self {
            Mode::Exclusive => 1,
            Mode::Shared { limit: None } => usize::MAX,
            Mode::Shared { limit: Some(limit) } => limit as usize,
        }
    }
}

/// How the lease is kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// A live dlock renews it and proves with a kernel lock that it lives (`run`).
    Process,
    /// Nothing renews it but `refresh` (`acquire`).
    Lease,
}

/// What is asked of a store.
#[derive(Clone, Debug)]
pub struct Request {
    /// Resource and token.
    pub claim: Claim,
    /// Shown to others.
    pub owner: Owner,
    /// Exclusive or shared.
    pub mode: Mode,
    /// Lease length.
    pub ttl: Duration,
    /// Keep a place in the line when busy.
    pub queue: bool,
    /// `run` or `acquire`.
    pub keeping: Keeping,
    /// The token of the job that dlock was started in, if it holds this same resource.
    pub parent: Option<Token>,
}

/// A lease as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Who holds it; `None` for another library's lock, which left no record.
    pub owner: Option<Owner>,
    /// Exclusive or shared.
    pub mode: Mode,
    /// Its slot number, with `--slots`.
    pub slot: Option<u32>,
    /// Fencing token, where the store has one.
    pub fence: Option<u64>,
    /// When it was granted: wall clock, µs since 1970, for display only.
    pub acquired_at_us: Option<u64>,
    /// Last renewal: wall clock, µs since 1970, for display only.
    pub heartbeat_us: Option<u64>,
    /// What is left of the lease; zero where only a kernel lock keeps it.
    pub expires_in: Duration,
    /// Who broke it, if somebody did and its holder has not gone yet.
    pub broken_by: Option<Owner>,
    /// How it is kept alive; `None` for another library's lock.
    pub keeping: Option<Keeping>,
}

/// One that waits, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Who.
    pub owner: Owner,
    /// What for.
    pub mode: Mode,
    /// For how long by now.
    pub waited: Duration,
}

/// A granted lease. The deadline is counted by the one who asked, from before it asked.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Resource and token.
    pub claim: Claim,
    /// Fencing token.
    pub fence: Option<u64>,
    /// Slot number, with `--slots`.
    pub slot: Option<u32>,
    /// The TTL that the store granted.
    pub ttl: Duration,
    /// CLOCK_BOOTTIME before it was asked for.
    pub asked: crate::clock::Moment,
    /// CLOCK_BOOTTIME at which the lease is to be considered gone.
    pub deadline: crate::clock::Moment,
}

impl Lease {
    /// What a job finds in its environment: the same by `run` and by `acquire --format env`.
    pub fn variables(&self, store: Option<String>) -> Vec<(&'static str, String)> {
        let mut all = vec![("DLOCK_RESOURCE", self.claim.name.to_string()), ("DLOCK_TOKEN", self.claim.token.as_str().to_owned())];
        all.extend(self.fence.map(|fence| ("DLOCK_FENCING_TOKEN", fence.to_string())));
        all.extend(store.map(|store| ("DLOCK_STORE", store)));
        all.extend(self.slot.map(|slot| ("DLOCK_SLOT", slot.to_string())));
        all
    }
}

/// A duration in the form that options take: `500ms`, `30s`, `1m30s`, `2d4h`.
pub fn duration_words(span: Duration) -> String {
    let ms = span.as_millis();
    if ms < 10_000 && !ms.is_multiple_of(1000) {
        return format!("{ms}ms");
    }
    let mut rest = ms / 1000;
    let mut words = String::new();
    for (unit, size) in [("d", 86_400), ("h", 3600), ("m", 60)] {
        if rest >= size {
            words += &format!("{}{unit}", rest / size);
            rest %= size;
        }
    }
    if rest > 0 || words.is_empty() {
        words += &format!("{rest}s");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(Name::new("a/b {} 日本").is_ok());
        assert!(Name::new("").is_err());
        assert!(Name::new("a\nb").is_err());
        assert!(Name::new(&"x".repeat(255)).is_ok());
        assert!(Name::new(&"x".repeat(256)).is_err());
    }

    #[test]
    fn a_token_is_never_shown_by_debug() {
        let token = Token::random();
        assert!(!format!("{token:?}").contains(token.as_str()));
    }
}
