//! Arguments and environment become a checked configuration: nothing is contacted here, and what
//! comes out needs no second look.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::args::{At, RunArgs, TakeArgs};
use crate::lock::{Claim, Keeping, Mode, Name, Owner, Request, SLOTS_MAX, Token, duration_words};
use crate::pace::{self, Pace};
use crate::wait::Patience;
use crate::{outcome, store, sys, tree};

mod files;

use files::Settings;

/// The lease length where nothing says another.
const TTL: &str = "30s";

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

/// What to do with processes that the command leaves behind when it ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survivors {
    /// They were left on purpose: release.
    Ignore,
    /// They are part of the job: keep the lock until they have ended.
    Wait,
    /// They were forgotten: end them before the release.
    Kill,
}

/// A command to be run under a lock.
pub struct Run {
    /// The lock.
    pub take: Take,
    /// The intervals of its lease.
    pub pace: Pace,
    /// Stop the command when the lease is lost.
    pub stop_on_loss: bool,
    /// What to do with what the command leaves behind.
    pub survivors: Survivors,
    /// Release the lease at the end, or let it run out.
    pub release: bool,
    /// How long the command may go on after a TERM that dlock passed on: as long as it likes, unless
    /// `--kill-after` is said.
    pub after_term: Option<Duration>,
    /// Stop the command after this long.
    pub max_runtime: Option<Duration>,
}

/// Reads a duration: `500ms`, `30s`, `1h30m`; a bare number is seconds.
pub fn duration(option: &str, text: &str) -> Result<Duration, String> {
    let refuse = || format!("{option} {text:?} is no duration; write 500ms, 30s, 1h30m, or a number of seconds");
    // `1M` would be a month, and is more often a mistyped minute.
    if text.is_empty() || text.contains(|c: char| c.is_whitespace() || c == 'M') {
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

/// Exclusive, unless it is to be shared.
fn mode(shared: bool, slots: Option<&str>) -> Result<Mode, String> {
    let Some(text) = slots else { return Ok(if shared { Mode::Shared { limit: None } } else { Mode::Exclusive }) };
    let count = text.parse().ok().filter(|count| (1..=SLOTS_MAX).contains(count));
    count.map(|count| Mode::Shared { limit: Some(count) }).ok_or_else(|| format!("--slots {text:?} is no number from 1 to {SLOTS_MAX}"))
}

fn filled(variable: &str) -> Result<Option<String>, String> {
    match env::var(variable) {
        Ok(text) if text.is_empty() => Err(format!("{variable} is set but empty; unset it, or give it a value")),
        Ok(text) => Ok(Some(text)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(format!("{variable} is not UTF-8")),
    }
}

/// The files' settings for a resource: `--config`, else `DLOCK_CONFIG`, over the user's and the machine's.
fn settings(option: Option<&Path>, name: Option<&Name>) -> Result<Settings, String> {
    let variable = filled("DLOCK_CONFIG")?.map(PathBuf::from);
    files::read(option.or(variable.as_deref()), name)
}

/// The store: the option, else `DLOCK_STORE`, else the files, else this user's local directory. What
/// comes out is complete: password and prefix are in it.
fn store_url(option: Option<String>, settings: &Settings) -> Result<String, String> {
    let given = match option {
        Some(url) if url.is_empty() => return Err("--store is empty".into()),
        Some(url) => Some(url),
        None => filled("DLOCK_STORE")?,
    };
    let from_file = given.is_none();
    let url = match given {
        Some(url) => url,
        None => match settings.store.clone() {
            Some(url) => url,
            None if settings.require_store == Some(true) => {
                return Err("no store is named and the configuration requires one; give --store, or set DLOCK_STORE".into());
            }
            None => match store::file::default_dir() {
                Some(dir) => format!("file://{}", dir.display().to_string().replace('%', "%25").replace('?', "%3F")),
                None => return Err("this user has no passwd entry and so no default directory; give --store file:///DIR".into()),
            },
        },
    };
    if url.split_ascii_whitespace().count() > 1 {
        return Err("several stores at once (a quorum) are not in this version; name one".into());
    }
    store::check(&url)?;
    let prefix = filled("DLOCK_PREFIX")?;
    // The environment is nearer than a file, also where the file's URL names a prefix.
    let url = if from_file && prefix.is_some() { store::without_prefix(&url) } else { url };
    let prefix = prefix.or_else(|| settings.prefix.clone());
    // Empty is the same as unset here: a password is never required to be anything.
    let password = match env::var("DLOCK_PASSWORD") {
        Err(env::VarError::NotUnicode(_)) => return Err("DLOCK_PASSWORD is not UTF-8".into()),
        found => found.ok().filter(|text| !text.is_empty()),
    };
    let password = match (password, &settings.password_file) {
        (Some(text), _) => Some(text),
        (None, Some(path)) => {
            let text = fs::read_to_string(path).map_err(|error| format!("cannot read the password file {}: {error}", path.display()))?;
            Some(text.lines().next().unwrap_or_default().to_owned())
        }
        (None, None) => None,
    };
    let url = store::complete(&url, password.as_deref(), prefix.as_deref());
    store::check(&url)?;
    Ok(url)
}

/// The store for `list`, which names no resource.
pub fn store(option: Option<String>, config: Option<&Path>) -> Result<String, String> {
    store_url(option, &settings(config, None)?)
}

/// Which resource in which store.
pub fn place(at: At, config: Option<&Path>) -> Result<Place, String> {
    Ok(placed(at, config)?.0)
}

fn placed(at: At, config: Option<&Path>) -> Result<(Place, Settings), String> {
    let name = match at.resource {
        Some(name) => name,
        None => filled("DLOCK_RESOURCE")?.ok_or("which resource? give -r NAME, or set DLOCK_RESOURCE")?,
    };
    let name = Name::new(&name)?;
    let settings = settings(config, Some(&name))?;
    let store = store_url(at.store, &settings)?;
    Ok((Place { name, store }, settings))
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

/// The token of a job further up that holds this resource, where this dlock runs in the job of another.
fn inherited_from_above(name: &Name) -> Option<Token> {
    env::var_os("DLOCK_RESOURCE")?;
    let above = tree::above(["DLOCK_RESOURCE", "DLOCK_TOKEN"]);
    above.into_iter().find(|[resource, _]| resource == name.as_str()).and_then(|[_, token]| Token::new(&token).ok())
}

/// A token that must be there.
pub fn claim(option: Option<String>, name: &Name) -> Result<Claim, String> {
    let token = token(option, name)?.ok_or("which lease? give --token, as acquire printed it, or set DLOCK_TOKEN and DLOCK_RESOURCE")?;
    Ok(Claim { name: name.clone(), token })
}

/// A lease to be renewed, for how long, and its store.
pub fn refresh(at: At, token: Option<String>, length: Option<String>, config: Option<&Path>) -> Result<(Claim, Duration, String), String> {
    let (place, settings) = placed(at, config)?;
    let length = length.or(settings.ttl);
    Ok((claim(token, &place.name)?, ttl(length.as_deref().unwrap_or(TTL))?, place.store))
}

/// This process, as shown to others.
pub fn owner(program: String, label: Option<String>) -> Owner {
    let user = sys::user().map_or_else(|| format!("uid {}", sys::uid()), |(name, _)| name);
    Owner { user, host: sys::host(), pid: std::process::id(), program, label }
}

/// What `acquire` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The token and a newline.
    Token,
    /// `export` lines for a shell's `eval`.
    Env,
    /// One JSON document.
    Json,
}

/// A lock to be taken by `acquire`, and what to print of it.
pub fn take(args: TakeArgs, format: Option<&str>, config: Option<&Path>) -> Result<(Take, Format), String> {
    let format = match format {
        None | Some("token") => Format::Token,
        Some("env") => Format::Env,
        Some("json") => Format::Json,
        Some(other) => return Err(format!("--format {other:?} is none of token, env, json")),
    };
    Ok((taken(args, Keeping::Lease, "acquire".into(), config)?.0, format))
}

fn taken(args: TakeArgs, keeping: Keeping, program: String, config: Option<&Path>) -> Result<(Take, Settings), String> {
    let (place, settings) = placed(args.at, config)?;
    let length = args.ttl.as_deref().or(settings.ttl.as_deref()).unwrap_or(TTL);
    let wait = if args.no_wait { Some("0") } else { args.wait.as_deref().or(settings.wait.as_deref()) };
    let wait = match wait {
        Some("forever") => Some(None),
        Some(text) => Some(Some(duration("--wait", text)?)),
        None => None,
    };
    let patience = Patience {
        wait: wait.unwrap_or(if args.retry_count.is_some() { None } else { Some(Duration::ZERO) }),
        tries: args.retry_count,
        delay: duration("--retry-delay", args.retry_delay.as_deref().or(settings.retry_delay.as_deref()).unwrap_or("200ms"))?,
    };
    let busy_code = match args.busy_code {
        None => settings.busy_code.unwrap_or(outcome::BUSY),
        Some(text) => text.parse().map_err(|_| format!("--busy-code {text:?} is not in 0–255"))?,
    };
    let queue = wait.is_some_and(|wait| wait.is_none_or(|limit| !limit.is_zero()));
    let parent = inherited(&place.name).or_else(|| inherited_from_above(&place.name));
    let request = Request {
        claim: Claim { name: place.name, token: Token::random() },
        owner: owner(program, args.label),
        mode: mode(args.shared, args.slots.as_deref())?,
        ttl: ttl(length)?,
        queue,
        keeping,
        parent,
    };
    Ok((Take { store: place.store, request, patience, busy_code, quiet: args.quiet, verbose: args.verbose }, settings))
}

/// A command to be run.
pub fn run(args: RunArgs, command: &[OsString], config: Option<&Path>) -> Result<Run, String> {
    let Some(first) = command.first() else { return Err("no command: dlock run -r NAME -- CMD [ARG…]".into()) };
    let name = Path::new(first).file_name().unwrap_or(first).to_string_lossy().into_owned();
    let (mut take, settings) = taken(args.take, Keeping::Process, name, config)?;
    match settings.record_command.as_deref() {
        None | Some("name") => {}
        Some("full") => {
            let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
            take.request.owner.program = words.join(" ").chars().take(1000).collect();
        }
        Some(other) => return Err(format!("record_command {other:?} is neither \"name\" nor \"full\"")),
    }
    let span = |option: &str, given: Option<String>, set: Option<String>| given.or(set).map(|text| duration(option, &text)).transpose();
    let grace = span("--kill-after", args.kill_after, settings.kill_after)?;
    let max_runtime = span("--max-runtime", args.max_runtime, settings.max_runtime)?;
    if max_runtime.is_some_and(|limit| limit.is_zero()) {
        return Err("--max-runtime 0 would stop the command before it starts".into());
    }
    let stop_on_loss = match args.on_lost.or(settings.on_lost).as_deref() {
        None | Some("stop") => true,
        Some("continue") => false,
        Some(other) => return Err(format!("--on-lost {other:?} is neither stop nor continue")),
    };
    let survivors = match args.survivors.or(settings.survivors).as_deref() {
        None | Some("ignore") => Survivors::Ignore,
        Some("wait") => Survivors::Wait,
        Some("kill") => Survivors::Kill,
        Some(other) => return Err(format!("--survivors {other:?} is none of ignore, wait, kill")),
    };
    if take.request.ttl < pace::TTL_MIN {
        return Err(format!("--ttl {:?} is too short to be renewed in time; run needs at least 1s", duration_words(take.request.ttl)));
    }
    let pace = Pace::new(take.request.ttl, grace)?;
    Ok(Run { take, pace, stop_on_loss, survivors, release: !args.no_release, after_term: grace, max_runtime })
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
