//! Locks on one Redis server, as `SET key token NX PX ttl`, so that other libraries' locks and ours
//! exclude each other.
//!
//! Every change is one Lua script and idempotent by token, so an answer that got lost may be asked for
//! again. The server's clock alone decides when a lease ends. What others may see (who, since when, who
//! waits) lies in side keys next to the plain key; the key itself holds nothing but the token.

use std::time::Duration;

use redis::{Connection, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisError, Value};

use super::{Acquired, Lost, Refreshed, Released, Status, Store, StoreError};
use crate::clock::{Moment, wall_us};
use crate::lock::{Claim, Holding, Keeping, Mode, Name, Owner, Request};

const ACQUIRE: &str = include_str!("redis/acquire.lua");
const REFRESH: &str = include_str!("redis/refresh.lua");
const RELEASE: &str = include_str!("redis/release.lua");
const BREAK: &str = include_str!("redis/break.lua");
const STATUS: &str = include_str!("redis/status.lua");

const CONNECT: Duration = Duration::from_secs(5);
const PASSWORD: &str = "cannot read the store URL; percent-encode the password, or give it by DLOCK_PASSWORD";

/// Checks a URL; contacts nothing. The error never repeats the URL, which may hold a password.
pub fn check(url: &str) -> Result<(), String> {
    Target::parse(url).map(drop)
}

/// Opens a store; the first call connects.
pub fn open(url: &str) -> Result<Box<dyn Store>, StoreError> {
    let target = Target::parse(url).map_err(StoreError::Denied)?;
    Ok(Box::new(Redis { target, connection: None, op: CONNECT, connect: CONNECT }))
}

/// The store for people: its URL without the password.
pub fn shown(url: &str) -> String {
    Target::parse(url).map_or_else(|_| "the store".into(), |target| target.shown())
}

/// The same URL without its password, for the environment of the command.
pub fn handed(url: &str) -> String {
    let (head, query) = url.split_once('?').unwrap_or((url, ""));
    let head = match head.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.split_once('@')?))) {
        Some((scheme, (login, rest))) => match login.split_once(':').map_or(login, |(user, _)| user) {
            "" => format!("{scheme}://{rest}"),
            user => format!("{scheme}://{user}@{rest}"),
        },
        None => head.to_owned(),
    };
    let kept: Vec<_> = query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("password=")).collect();
    if kept.is_empty() { head } else { format!("{head}?{}", kept.join("&")) }
}

/// Puts a password and a prefix into a URL that names none.
pub fn complete(url: &str, password: Option<&str>, prefix: Option<&str>) -> String {
    let named = Target::parse(url).is_ok_and(|target| target.password.is_some());
    let url = match (password, url.split_once("://")) {
        (Some(password), Some((scheme, rest))) if !named => {
            let password = super::percent_encoded(password);
            let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
            let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
            format!("{scheme}://{}:{password}@{host}{tail}", user.trim_end_matches(':'))
        }
        _ => url.to_owned(),
    };
    super::with_prefix(&url, prefix)
}

enum Place {
    Tcp(String, u16),
    Unix(String),
}

struct Target {
    place: Place,
    user: Option<String>,
    password: Option<String>,
    db: u32,
    prefix: String,
}

impl Target {
    fn parse(url: &str) -> Result<Target, String> {
        let (scheme, rest) = url.split_once("://").ok_or("the store URL has no scheme")?;
        if rest.contains(['#', ' ']) {
            return Err(PASSWORD.into());
        }
        let unix = scheme == "redis+unix";
        let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        // An `@` where none belongs means that a password's `/`, `?` or `@` was taken for the URL's own.
        let cut = !authority.contains('@') && (!unix || !host.is_empty()) && tail.contains('@');
        if cut || login.contains(['@', '[', ']']) || (!unix && path.contains('@')) {
            return Err(PASSWORD.into());
        }
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let (mut user, mut password) = (decoded(user)?, decoded(password)?);
        let (mut prefix, mut db) = (None, String::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "prefix" => prefix = Some(decoded(value)?),
                "db" if unix => value.clone_into(&mut db),
                "password" if unix => password = decoded(value)?,
                "user" if unix => user = decoded(value)?,
                _ => return Err("the store URL has an unknown parameter after `?`".into()),
            }
        }
        let place = if unix {
            if !host.is_empty() || path.len() < 2 {
                return Err("the store URL needs the form redis+unix:///PATH".into());
            }
            Place::Unix(decoded(path)?)
        } else {
            path.trim_start_matches('/').clone_into(&mut db);
            let (name, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
                Some((name, port)) => (name, port.strip_prefix(':').unwrap_or(port)),
                None => host.split_once(':').unwrap_or((host, "")),
            };
            if name.is_empty() {
                return Err("the store URL names no host".into());
            }
            let port = if port.is_empty() { Ok(6379) } else { port.parse() };
            Place::Tcp(decoded(name)?, port.map_err(|_| "the port in the store URL is not a number below 65536")?)
        };
        let db = if db.is_empty() { Ok(0) } else { db.parse() };
        let db = db.map_err(|_| "the database in the store URL is not a number")?;
        let prefix = prefix.unwrap_or_else(|| "dlock:".into());
        if prefix.contains(['{', '}']) {
            return Err("the prefix must not contain braces".into());
        }
        let password = Some(password).filter(|text| !text.is_empty());
        Ok(Target { place, user: Some(user).filter(|text| !text.is_empty()), password, db, prefix })
    }

    fn shown(&self) -> String {
        let user = self.user.as_deref().unwrap_or("");
        let login = match (user, &self.password) {
            ("", None) => String::new(),
            (user, None) => format!("{user}@"),
            (user, Some(_)) => format!("{user}:***@"),
        };
        match &self.place {
            Place::Tcp(host, port) if host.contains(':') => format!("redis://{login}[{host}]:{port}/{}", self.db),
            Place::Tcp(host, port) => format!("redis://{login}{host}:{port}/{}", self.db),
            Place::Unix(path) if self.db == 0 => format!("redis+unix://{login}{path}"),
            Place::Unix(path) => format!("redis+unix://{login}{path}?db={}", self.db),
        }
    }
}

fn decoded(text: &str) -> Result<String, String> {
    super::percent_decoded(text).ok_or_else(|| PASSWORD.into())
}

/// Braces choose a cluster slot and end our side keys' names, so a name keeps none.
fn encoded(name: &str) -> String {
    name.replace('%', "%25").replace('{', "%7B").replace('}', "%7D")
}

fn glob(text: &str) -> String {
    text.chars().flat_map(|c| "*?[]^\\".contains(c).then_some('\\').into_iter().chain([c])).collect()
}

fn millis(span: Duration) -> String {
    span.as_millis().max(1).to_string()
}

struct Redis {
    target: Target,
    connection: Option<Connection>,
    op: Duration,
    /// Connecting before a lease is held may take longer than a call afterwards.
    connect: Duration,
}

impl Redis {
    fn key(&self, name: &Name) -> String {
        format!("{}{}", self.target.prefix, encoded(name.as_str()))
    }

    /// The keys that scripts take, in the order K, rec, line, seen, and then `more` side keys.
    fn keys(&self, name: &Name, more: &[&str]) -> Vec<String> {
        let key = self.key(name);
        let side = |suffix: &&str| format!("{}{{{key}}}:{suffix}", self.target.prefix);
        let sides: Vec<_> = ["rec", "line", "seen"].iter().chain(more).map(side).collect();
        std::iter::once(key).chain(sides).collect()
    }

    fn connect(&self) -> Result<Connection, RedisError> {
        let addr = match &self.target.place {
            Place::Tcp(host, port) => ConnectionAddr::Tcp(host.clone(), *port),
            Place::Unix(path) => ConnectionAddr::Unix(path.into()),
        };
        let info = addr
            .into_connection_info()?
            .set_tcp_settings(redis::io::tcp::TcpSettings::default().set_nodelay(true))
            .set_redis_settings(RedisConnectionInfo::default().set_skip_set_lib_name());
        let mut connection = redis::Client::open(info)?.get_connection_with_timeout(self.connect)?;
        // AUTH and SELECT by hand: the crate would send them before any timeout is set.
        connection.set_read_timeout(Some(self.connect))?;
        connection.set_write_timeout(Some(self.connect))?;
        if self.target.user.is_some() || self.target.password.is_some() {
            let password = self.target.password.as_deref().unwrap_or("");
            redis::cmd("AUTH").arg(&self.target.user).arg(password).exec(&mut connection)?;
        }
        if self.target.db != 0 {
            redis::cmd("SELECT").arg(self.target.db).exec(&mut connection)?;
        }
        Ok(connection)
    }

    /// One command. An idle connection may have died unnoticed, so it gets a second try on a fresh one.
    fn ask(&mut self, command: &redis::Cmd, wait: Duration) -> Result<Value, RedisError> {
        let wait = wait.max(Duration::from_millis(1));
        let start = Moment::now();
        loop {
            let reused = self.connection.take();
            let was_reused = reused.is_some();
            let mut connection = match reused {
                Some(connection) => connection,
                None => self.connect()?,
            };
            let answer = connection
                .set_read_timeout(Some(wait))
                .and_then(|()| connection.set_write_timeout(Some(wait)))
                .and_then(|()| command.query(&mut connection));
            match answer {
                Err(error) if error.is_io_error() || error.is_unrecoverable_error() => {
                    if !was_reused || start.until(Moment::now()) >= wait {
                        return Err(error);
                    }
                }
                answer => {
                    self.connection = Some(connection);
                    return answer;
                }
            }
        }
    }

    fn script(&mut self, text: &str, keys: &[String], args: &[&str]) -> Result<Vec<Value>, StoreError> {
        let hash = redis::Script::new(text);
        let command = |verb: &str, script: &str| {
            let mut command = redis::cmd(verb);
            command.arg(script).arg(keys.len()).arg(keys).arg(args);
            command
        };
        let mut answer = self.ask(&command("EVALSHA", hash.get_hash()), self.op);
        if answer.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT")) {
            answer = self.ask(&command("EVAL", text), self.op);
        }
        match answer {
            Ok(Value::Array(items)) => Ok(items),
            Ok(_) => Err(self.strange()),
            Err(error) => Err(self.explain(&error)),
        }
    }

    /// Tells the next in line. Only a hint: it asks again by itself, so a failure here is none.
    fn wake(&mut self, name: &Name, token: Option<String>) {
        let Some(token) = token else { return };
        let Some(key) = self.keys(name, &[&format!("wake:{token}")]).pop() else { return };
        if self.ask(redis::cmd("RPUSH").arg(&key).arg(1), self.op).is_ok() {
            let _ = self.ask(redis::cmd("PEXPIRE").arg(&key).arg(5000), self.op);
        }
    }

    fn strange(&self) -> StoreError {
        StoreError::Unavailable(format!("{}: an answer that dlock does not understand", self.target.shown()))
    }

    fn odd(&self, name: &Name, kind: Option<String>) -> String {
        let what = match kind.as_deref() {
            Some("string") | None => "a value not written by dlock".into(),
            Some(kind) => format!("a {kind}"),
        };
        let key = self.key(name);
        format!("{}: key {key} holds {what}; pick another name or prefix", self.target.shown())
    }

    fn explain(&self, error: &RedisError) -> StoreError {
        let shown = self.target.shown();
        let mut words = match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => format!("{code} {detail}"),
            _ => error.to_string(),
        };
        if let Some(end) = words.find(", script: ").or_else(|| words.find(" script: ")) {
            words.truncate(end);
        }
        words.truncate(words.trim_end_matches('.').len());
        if let Some(password) = self.target.password.as_deref().filter(|text| text.len() > 3) {
            words = words.replace(password, "***");
        }
        let has = |text: &str| words.contains(text);
        if has("MOVED") || has("CROSSSLOT") || has("ASK ") {
            return StoreError::Denied(format!("{shown}: {words}: this server is part of a cluster; use a single one"));
        }
        let login = ["NOAUTH", "WRONGPASS", "ERR invalid password", "unauthenticated", "AUTH <password> called"];
        if login.iter().any(|code| has(code)) {
            return StoreError::Denied(format!("{shown}: {words}; give the password by DLOCK_PASSWORD"));
        }
        if has("NOPERM") || has("WRONGTYPE") || has("DB index is out of range") {
            return StoreError::Denied(format!("{shown}: {words}"));
        }
        if let (Place::Unix(path), true) = (&self.target.place, has("Permission denied") || has("os error 13")) {
            return StoreError::Denied(format!("{shown}: {words}; this user may not use the socket {path}"));
        }
        if error.is_timeout() {
            return StoreError::Unavailable(format!("{shown}: no answer in {}", crate::lock::duration_words(self.op)));
        }
        let next = if has("READONLY") { "; name the primary server, this one is a replica" } else { "" };
        StoreError::Unavailable(format!("{shown}: {words}{next}"))
    }

    fn look(&mut self, name: &Name, claim: Option<&Claim>) -> Result<Result<Status, String>, StoreError> {
        let keys = self.keys(name, &["fence"]);
        let answer = self.script(STATUS, &keys, &[claim.map_or("", |claim| claim.token.as_str())])?;
        if word(&answer, 0).as_deref() == Some("odd") {
            return Ok(Err(self.odd(name, word(&answer, 1))));
        }
        let waiters = items(&answer, 4).unwrap_or_default().iter().filter_map(|waiter| {
            let Value::Array(pair) = waiter else { return None };
            Some((owner_of(word(pair, 0)), Duration::from_millis(number(pair, 1)?)))
        });
        Ok(Ok(Status {
            name: name.clone(),
            holders: holding(&answer, 1).into_iter().collect(),
            waiters: waiters.collect(),
            last_fence: number(&answer, 3),
            held_by_claim: number(&answer, 2) == Some(1),
        }))
    }

    fn scan(&mut self, pattern: &str) -> Result<Vec<String>, StoreError> {
        let (mut cursor, mut found) = (String::from("0"), Vec::new());
        loop {
            let mut command = redis::cmd("SCAN");
            command.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
            let answer = self.ask(&command, self.op).map_err(|error| self.explain(&error))?;
            let Value::Array(page) = answer else { return Err(self.strange()) };
            let keys = items(&page, 1).unwrap_or_default();
            found.extend((0..keys.len()).filter_map(|at| word(keys, at)));
            cursor = word(&page, 0).ok_or_else(|| self.strange())?;
            if cursor == "0" {
                return Ok(found);
            }
        }
    }
}

fn word(items: &[Value], at: usize) -> Option<String> {
    match items.get(at)? {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

fn number(items: &[Value], at: usize) -> Option<u64> {
    word(items, at)?.parse().ok()
}

fn items(all: &[Value], at: usize) -> Option<&[Value]> {
    match all.get(at) {
        Some(Value::Array(items)) => Some(items),
        _ => None,
    }
}

fn owner_of(json: Option<String>) -> Owner {
    json.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// The holder at place `at`: its PTTL, and its record if dlock wrote one.
fn holding(all: &[Value], at: usize) -> Option<Holding> {
    let fields = items(all, at)?;
    let text = |at| word(fields, at).unwrap_or_default();
    let owner = (fields.len() > 1).then(|| Owner {
        user: text(1),
        host: text(2),
        pid: number(fields, 3).and_then(|pid| u32::try_from(pid).ok()).unwrap_or_default(),
        program: text(4),
        label: word(fields, 5),
    });
    Some(Holding {
        owner,
        mode: Mode::Exclusive,
        fence: number(fields, 8),
        acquired_at_us: number(fields, 6),
        heartbeat_us: number(fields, 7),
        expires_in: Duration::from_millis(number(fields, 0).unwrap_or_default()),
        broken_by: word(fields, 9).map(|json| owner_of(Some(json))),
    })
}

impl Store for Redis {
    fn acquire(&mut self, request: &Request) -> Result<Acquired, StoreError> {
        let (name, token) = (&request.claim.name, request.claim.token.as_str());
        let keys = self.keys(name, &["fence", "ticket", &format!("wake:{token}")]);
        let owner = &request.owner;
        let json = serde_json::to_string(owner).unwrap_or_default();
        let args = [
            token,
            &millis(request.ttl),
            if request.queue { "1" } else { "0" },
            request.parent.as_ref().map_or("", |parent| parent.as_str()),
            if request.keeping == Keeping::Process { "process" } else { "lease" },
            &owner.user,
            &owner.host,
            &owner.pid.to_string(),
            &owner.program,
            owner.label.as_deref().unwrap_or(""),
            &json,
        ];
        let answer = self.script(ACQUIRE, &keys, &args)?;
        match word(&answer, 0).as_deref() {
            Some("granted") => Ok(Acquired::Granted { fence: number(&answer, 1), slot: None, ttl: request.ttl }),
            Some("busy") => Ok(Acquired::Busy {
                holders: holding(&answer, 1).into_iter().collect(),
                waiting: number(&answer, 2).and_then(|n| u32::try_from(n).ok()).unwrap_or_default(),
                retry_in: Duration::from_millis(number(&answer, 3).unwrap_or(1000)),
                own_parent: number(&answer, 4) == Some(1),
            }),
            Some("odd") => Err(StoreError::Denied(self.odd(name, word(&answer, 1)))),
            _ => Err(self.strange()),
        }
    }

    fn refresh(&mut self, claim: &Claim, ttl: Duration) -> Result<Refreshed, StoreError> {
        let keys = self.keys(&claim.name, &[]);
        let answer = self.script(REFRESH, &keys, &[claim.token.as_str(), &millis(ttl)])?;
        match (word(&answer, 0).as_deref(), holding(&answer, 1)) {
            (Some("kept"), _) => Ok(Refreshed::Kept { ttl }),
            (Some("absent"), _) => Ok(Refreshed::Lost(Lost::Absent)),
            (Some("broken"), _) => Ok(Refreshed::Lost(Lost::Broken { by: owner_of(word(&answer, 1)) })),
            (Some("foreign"), Some(holder)) => Ok(Refreshed::Lost(Lost::Foreign(Box::new(holder)))),
            _ => Err(self.strange()),
        }
    }

    fn release(&mut self, claim: &Claim) -> Result<Released, StoreError> {
        let keys = self.keys(&claim.name, &[&format!("wake:{}", claim.token.as_str())]);
        let answer = self.script(RELEASE, &keys, &[claim.token.as_str()])?;
        self.wake(&claim.name, word(&answer, 1));
        match word(&answer, 0).as_deref() {
            Some("freed") => Ok(Released::Freed),
            Some("absent" | "foreign") => Ok(Released::NotHeld(holding(&answer, 2).map(Box::new))),
            _ => Err(self.strange()),
        }
    }

    fn break_lease(&mut self, name: &Name, by: &Owner) -> Result<Vec<Holding>, StoreError> {
        let keys = self.keys(name, &[]);
        let answer = self.script(BREAK, &keys, &[&serde_json::to_string(by).unwrap_or_default()])?;
        self.wake(name, word(&answer, 1).filter(|_| word(&answer, 0).as_deref() == Some("broken")));
        match word(&answer, 0).as_deref() {
            Some("none") => Ok(Vec::new()),
            Some("broken") => Ok(holding(&answer, 2).into_iter().collect()),
            Some("odd") => Err(StoreError::Denied(self.odd(name, word(&answer, 1)))),
            _ => Err(self.strange()),
        }
    }

    fn status(&mut self, name: &Name, claim: Option<&Claim>) -> Result<Status, StoreError> {
        self.look(name, claim)?.map_err(StoreError::Denied)
    }

    fn list(&mut self, prefix: &str) -> Result<Vec<Status>, StoreError> {
        let own = self.target.prefix.clone();
        let side = format!("{own}{{");
        let wanted = glob(&format!("{own}{}", encoded(prefix)));
        let mut keys = self.scan(&format!("{wanted}*"))?;
        keys.retain(|key| !key.starts_with(&side));
        // A resource that is free but waited for has a line and no key.
        let lines = self.scan(&format!("{}{wanted}*}}:line", glob(&side)))?;
        keys.extend(lines.iter().filter_map(|key| Some(key.strip_prefix(&side)?.strip_suffix("}:line")?.to_owned())));
        keys.sort();
        keys.dedup();
        let mut all = Vec::new();
        for key in keys {
            let Some(name) = key.strip_prefix(&own).and_then(|name| decoded(name).ok()) else { continue };
            let Ok(name) = Name::new(&name) else { continue };
            if self.key(&name) != key {
                continue;
            }
            if let Ok(status) = self.look(&name, None)?
                && !(status.holders.is_empty() && status.waiters.is_empty())
            {
                all.push(status);
            }
        }
        Ok(all)
    }

    fn await_change(&mut self, claim: &Claim, at_most: Duration) -> Result<(), StoreError> {
        let key = self.keys(&claim.name, &[&format!("wake:{}", claim.token.as_str())]).pop();
        let seconds = format!("{:.3}", at_most.as_secs_f64().max(0.01));
        match self.ask(redis::cmd("BLPOP").arg(key).arg(seconds), at_most + Duration::from_secs(1)) {
            Ok(_) => Ok(()),
            Err(error) => {
                let text = error.to_string().to_lowercase();
                if !["noperm", "unknown command", "not an integer"].iter().any(|word| text.contains(word)) && error.code() != Some("NOPERM")
                {
                    return Err(self.explain(&error));
                }
                // The jitter keeps waiters that may not block from asking in step.
                std::thread::sleep(at_most.min(Duration::from_millis(150 + wall_us() % 100)));
                Ok(())
            }
        }
    }

    fn limit(&mut self, op: Duration) {
        self.op = op.max(Duration::from_millis(1));
        self.connect = self.op.min(CONNECT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_any_characters_are_read_and_never_shown() {
        let target = Target::parse("redis://jobs:p%40ss%3Aw%2Frd%25%231@h:7401/3?prefix=x:").unwrap();
        assert_eq!(target.password.as_deref(), Some("p@ss:w/rd%#1"));
        assert_eq!((target.db, target.prefix.as_str()), (3, "x:"));
        assert_eq!(target.shown(), "redis://jobs:***@h:7401/3");
        assert_eq!(Target::parse("redis://az:aB3+x%2Fy=@h").unwrap().password.as_deref(), Some("aB3+x/y="));
        for raw in ["redis://jobs:p@ss:w/rd%#1@h", "redis://j:S3CRET@h:bad/0", "redis://j:S3CRET%zz@h"] {
            assert!(!check(raw).unwrap_err().contains("S3CRET"), "{raw}");
        }
    }

    #[test]
    fn password_and_prefix_are_put_into_a_url_without() {
        let full = complete("redis://jobs@h:1/2", Some("p@ss:w/rd%#1"), Some("x{"));
        assert_eq!(full, "redis://jobs:p%40ss:w%2Frd%25%231@h:1/2?prefix=x%7B");
        let target = Target::parse(&complete("redis+unix:///s?db=3", Some("a/b"), None)).unwrap();
        assert_eq!((target.password.as_deref(), target.db), (Some("a/b"), 3));
        assert_eq!(complete("redis://:own@h?prefix=a:", Some("other"), Some("b:")), "redis://:own@h?prefix=a:");
    }

    #[test]
    fn the_command_gets_the_url_without_its_password() {
        assert_eq!(handed("redis://jobs:S3CRET@h:1/2?prefix=p:"), "redis://jobs@h:1/2?prefix=p:");
        assert_eq!(handed("redis://:S3CRET@h"), "redis://h");
        assert_eq!(handed("redis+unix:///s?db=3&password=S3CRET"), "redis+unix:///s?db=3");
        assert_eq!(handed("redis://h:1/2"), "redis://h:1/2");
    }
}
