//! Arguments and environment become a checked configuration: nothing is contacted here, and what
//! comes out needs no second look.

use std::env;
use std::time::Duration;

use crate::args::{At, RunArgs, TakeArgs};
use crate::lock::{Claim, Keeping, Mode, Name, Owner, Request, Token};
use crate::pace::{self, Pace};
use crate::wait::Patience;
use crate::{outcome, store, sys};

/// Which resource in which store.
pub struct Place {
    /// The resource.
    pub name: Name,
    /// The store's URL; it may hold a password.
    pub store: String,
}

/// A lock to be taken.
pub struct Take {
    /// The store's URL; it may hold a password.
    pub store: String,
    /// What to ask of it.
    pub request: Request,
    /// How long to go on asking.
    pub patience: Patience,
    /// Status when busy.
    pub busy_code: u8,
    /// Say nothing when busy.
    pub quiet: bool,
    /// Say more.
    pub verbose: bool,
}

/// A command to be run under a lock.
pub struct Run {
    /// The lock.
    pub take: Take,
    /// The intervals of its lease.
    pub pace: Pace,
    /// Stop the command when the lease is lost.
    pub stop_on_loss: bool,
    /// Stop the command after this long.
    pub max_runtime: Option<Duration>,
}

/// Reads a duration: `500ms`, `30s`, `1h30m`; a bare number is seconds.
pub fn duration(option: &str, text: &str) -> Result<Duration, String> {
    let refuse = || format!("{option} {text:?} is no duration; write 500ms, 30s, 1h30m, or a number of seconds");
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err(refuse());
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map(Duration::from_secs).map_err(|_| refuse());
    }
    humantime::parse_duration(text).map_err(|_| refuse())
}

fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration("--ttl", text)?;
    if ttl.is_zero() {
        return Err(format!("--ttl {text:?}: a lease of no length is none; write 30s, say"));
    }
    if ttl > pace::TTL_MAX {
        return Err(format!("--ttl {text:?} is more than the longest lease, 366d"));
    }
    Ok(ttl)
}

fn filled(variable: &str) -> Result<Option<String>, String> {
    match env::var(variable) {
        Ok(text) if text.is_empty() => Err(format!("{variable} is set but empty; unset it, or give it a value")),
        Ok(text) => Ok(Some(text)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(format!("{variable} is not UTF-8")),
    }
}

/// The store: the option, else `DLOCK_STORE`, else this user's local directory.
pub fn store_url(option: Option<String>) -> Result<String, String> {
    let url = match option {
        Some(url) if url.is_empty() => return Err("--store is empty".into()),
        Some(url) => url,
        None => match filled("DLOCK_STORE")? {
            Some(url) => url,
            None => match store::file::default_dir() {
                Some(dir) => format!("file://{}", dir.display()),
                None => return Err("this user has no passwd entry and so no default directory; give --store file:///DIR".into()),
            },
        },
    };
    store::check(&url)?;
    Ok(url)
}

/// Which resource in which store.
pub fn place(at: At) -> Result<Place, String> {
    let name = match at.resource {
        Some(name) => name,
        None => filled("DLOCK_RESOURCE")?.ok_or("which resource? give -r NAME, or set DLOCK_RESOURCE")?,
    };
    Ok(Place { name: Name::new(&name)?, store: store_url(at.store)? })
}

/// The token: the option, else `DLOCK_TOKEN` where the resource is `DLOCK_RESOURCE`.
pub fn token(option: Option<String>, name: &Name) -> Result<Option<Token>, String> {
    match option {
        Some(text) => Token::new(&text).map(Some),
        None => Ok(inherited(name)),
    }
}

/// The token of the job that this dlock runs in, if it is about this resource.
fn inherited(name: &Name) -> Option<Token> {
    let same = env::var("DLOCK_RESOURCE").is_ok_and(|resource| resource == name.as_str());
    if same { env::var("DLOCK_TOKEN").ok().and_then(|text| Token::new(&text).ok()) } else { None }
}

/// A token that must be there.
pub fn claim(option: Option<String>, name: &Name) -> Result<Claim, String> {
    let token = token(option, name)?.ok_or("which lease? give --token, as acquire printed it, or set DLOCK_TOKEN and DLOCK_RESOURCE")?;
    Ok(Claim { name: name.clone(), token })
}

/// Refreshing is bounded like taking.
pub fn refresh_ttl(text: &str) -> Result<Duration, String> {
    ttl(text)
}

/// This process, as shown to others.
pub fn owner(program: String, label: Option<String>) -> Owner {
    let user = sys::user().map_or_else(|| format!("uid {}", sys::uid()), |(name, _)| name);
    Owner { user, host: sys::host(), pid: std::process::id(), program, label }
}

/// A lock to be taken by `acquire`, or by `run` for the named program.
pub fn take(args: TakeArgs, keeping: Keeping, program: String) -> Result<Take, String> {
    let ttl = ttl(&args.ttl)?;
    let wait = match args.wait.as_deref() {
        Some("forever") => Some(None),
        Some(text) => Some(Some(duration("--wait", text)?)),
        None => None,
    };
    let patience = Patience {
        wait: wait.unwrap_or(if args.retry_count.is_some() { None } else { Some(Duration::ZERO) }),
        tries: args.retry_count,
        delay: duration("--retry-delay", &args.retry_delay)?,
    };
    let busy_code = match args.busy_code {
        None => outcome::BUSY,
        Some(text) => text.parse().map_err(|_| format!("--busy-code {text:?} is not in 0–255"))?,
    };
    let place = place(args.at)?;
    let queue = wait.is_some_and(|wait| wait.is_none_or(|limit| !limit.is_zero()));
    let parent = inherited(&place.name);
    Ok(Take {
        store: place.store,
        request: Request {
            claim: Claim { name: place.name, token: Token::random() },
            owner: owner(program, args.label),
            mode: Mode::Exclusive,
            ttl,
            queue,
            keeping,
            parent,
        },
        patience,
        busy_code,
        quiet: args.quiet,
        verbose: args.verbose,
    })
}

/// A command to be run.
pub fn run(args: RunArgs, program: String) -> Result<Run, String> {
    let grace = args.kill_after.as_deref().map(|text| duration("--kill-after", text)).transpose()?;
    let max_runtime = args.max_runtime.as_deref().map(|text| duration("--max-runtime", text)).transpose()?;
    if max_runtime.is_some_and(|limit| limit.is_zero()) {
        return Err("--max-runtime 0 would stop the command before it starts".into());
    }
    let text = args.take.ttl.clone();
    let take = take(args.take, Keeping::Process, program)?;
    if take.request.ttl < pace::TTL_MIN {
        return Err(format!("--ttl {text:?} is too short to be renewed in time; run needs at least 1s"));
    }
    let pace = Pace::new(take.request.ttl, grace)?;
    Ok(Run { take, pace, stop_on_loss: args.on_lost == "stop", max_runtime })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_carry_units_and_a_bare_number_is_seconds() {
        assert_eq!(duration("-t", "30").unwrap(), Duration::from_secs(30));
        assert_eq!(duration("-t", "1m30s").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("-t", "500ms").unwrap(), Duration::from_millis(500));
        for bad in ["", "abc", "-5s", " 5s", "5S", "99999999999999999999"] {
            assert!(duration("-t", bad).is_err(), "{bad:?}");
        }
        assert!(ttl("9999999999999h").is_err());
        assert!(ttl("0").is_err() && ttl("0s").is_err() && ttl("367d").is_err() && ttl("366d").is_ok());
    }
}
