//! Locks on one Redis server, as `SET key token NX PX ttl`, so that other libraries' locks and ours
//! exclude each other.
//!
//! Every change is one Lua script and idempotent by token, so an answer that got lost may be asked for
//! again. The server's clock alone decides when a lease ends. What others may see (who, since when, who
//! waits) lies in side keys next to the plain key; the key itself holds nothing but the token.

use std::time::Duration;

use redis::{Connection, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult, Value};

use super::{Acquired, Lost, Refreshed, Released, Status, Store, StoreError};
use crate::clock::{Moment, wall_us};
use crate::lock::{Claim, Holding, Keeping, Name, Owner, Request, Waiting};

mod reply;
mod url;
mod words;

use reply::{holders, items, keeping, limit, mode, number, owner_of, word};
use url::{Place, Target, decoded};
pub use url::{check, complete, handed, shown};

const ACQUIRE: &str = concat!(include_str!("redis/head.lua"), include_str!("redis/acquire.lua"));
const REFRESH: &str = concat!(include_str!("redis/head.lua"), include_str!("redis/refresh.lua"));
const RELEASE: &str = concat!(include_str!("redis/head.lua"), include_str!("redis/release.lua"));
const BREAK: &str = concat!(include_str!("redis/head.lua"), include_str!("redis/break.lua"));
const STATUS: &str = concat!(include_str!("redis/head.lua"), include_str!("redis/status.lua"));

const CONNECT: Duration = Duration::from_secs(5);
/// What is pushed to a waiter whose turn it may be.
const TURN: &str = "1";
/// What is pushed to one that has come near: it looks as often as those in front (acquire.lua) from now on.
const NEAR: &str = "2";
/// So often.
const NEAR_LOOKS: Duration = Duration::from_secs(1);

/// Opens a store; the first call connects.
pub fn open(url: &str) -> Result<Box<dyn Store>, StoreError> {
    let target = Target::parse(url).map_err(StoreError::Denied)?;
    Ok(Box::new(Redis { target, connection: None, op: CONNECT, connect: CONNECT, resent: false, next: [None, None] }))
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
    /// The last request was sent twice: the first answer got lost.
    resent: bool,
    /// Who was first in line and who third at the last answer, by their tokens.
    next: [Option<String>; 2],
}

impl Redis {
    fn key(&self, name: &Name) -> String {
        format!("{}{}", self.target.prefix, encoded(name.as_str()))
    }

    /// The keys that scripts take, in the order of head.lua, and then `more` side keys.
    fn keys(&self, name: &Name, more: &[&str]) -> Vec<String> {
        let key = self.key(name);
        let side = |suffix: &&str| format!("{}{{{key}}}:{suffix}", self.target.prefix);
        let sides: Vec<_> = ["rec", "held", "line", "due", "asked", "waits"].iter().chain(more).map(side).collect();
        std::iter::once(key).chain(sides).collect()
    }

    fn connect(&self) -> RedisResult<Connection> {
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
        let mut greeting = redis::pipe();
        if self.target.user.is_some() || self.target.password.is_some() {
            let password = self.target.password.as_deref().unwrap_or("");
            greeting.cmd("AUTH").arg(&self.target.user).arg(password).ignore();
        }
        if self.target.db != 0 {
            greeting.cmd("SELECT").arg(self.target.db).ignore();
        }
        if !greeting.is_empty() {
            greeting.exec(&mut connection)?; // one write for both
        }
        Ok(connection)
    }

    /// Asks on the one connection. An idle one may have died unnoticed, so it gets a second try on a
    /// fresh one.
    fn ask<T>(&mut self, wait: Duration, question: impl Fn(&mut Connection) -> RedisResult<T>) -> RedisResult<T> {
        let wait = wait.max(Duration::from_millis(1));
        let start = Moment::now();
        self.resent = false;
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
                .and_then(|()| question(&mut connection));
            match answer {
                Err(error) if error.is_io_error() || error.is_unrecoverable_error() => {
                    if !was_reused || start.until(Moment::now()) >= wait {
                        return Err(error);
                    }
                    self.resent = true;
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
        let mut answer = self.ask(self.op, |to| command("EVALSHA", hash.get_hash()).query(to));
        if answer.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT")) {
            answer = self.ask(self.op, |to| command("EVAL", text).query(to));
        }
        match answer {
            Ok(Value::Array(items)) if word(&items, 0).as_deref() == Some("alien") => Err(self.alien(word(&items, 1))),
            Ok(Value::Array(items)) => Ok(items),
            Ok(_) => Err(self.strange()),
            Err(error) => Err(self.explain(&error)),
        }
    }

    /// Tells who is next, and who has come near. Only a hint: they ask again by themselves, so a failure here is none.
    fn wake(&mut self, name: &Name, tokens: [Option<String>; 2]) {
        let mut push = redis::pipe(); // one write for all
        for (token, what) in tokens.iter().zip([TURN, NEAR]) {
            let Some(token) = token else { continue };
            let Some(key) = self.keys(name, &[&format!("wake:{token}")]).pop() else { continue };
            push.cmd("RPUSH").arg(&key).arg(what).ignore().cmd("PEXPIRE").arg(&key).arg(5000).ignore();
        }
        if !push.is_empty() {
            let _ = self.ask(self.op, |to| push.exec(to));
        }
    }

    fn look(&mut self, name: &Name, claim: Option<&Claim>) -> Result<Result<Status, String>, StoreError> {
        let keys = self.keys(name, &["fence"]);
        let answer = self.script(STATUS, &keys, &[claim.map_or("", |claim| claim.token.as_str())])?;
        if word(&answer, 0).as_deref() == Some("odd") {
            return Ok(Err(self.odd(name, word(&answer, 1))));
        }
        let waiters = items(&answer, 4).iter().filter_map(|waiter| {
            let Value::Array(fields) = waiter else { return None };
            let waited = Duration::from_millis(number(fields, 1)?);
            Some(Waiting { owner: owner_of(word(fields, 0)), mode: mode(word(fields, 2).as_deref()), waited })
        });
        Ok(Ok(Status {
            name: name.clone(),
            holders: holders(&answer, 1),
            waiters: waiters.collect(),
            last_fence: number(&answer, 3),
            own: number(&answer, 2).and_then(|at| usize::try_from(at).ok()),
        }))
    }

    fn scan(&mut self, pattern: &str) -> Result<Vec<String>, StoreError> {
        let (mut cursor, mut found) = (String::from("0"), Vec::new());
        loop {
            let mut command = redis::cmd("SCAN");
            command.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
            let answer = self.ask(self.op, |to| command.query(to)).map_err(|error| self.explain(&error))?;
            let Value::Array(page) = answer else { return Err(self.strange()) };
            let keys = items(&page, 1);
            found.extend((0..keys.len()).filter_map(|at| word(keys, at)));
            cursor = word(&page, 0).ok_or_else(|| self.strange())?;
            if cursor == "0" {
                return Ok(found);
            }
        }
    }
}

impl Store for Redis {
    fn acquire(&mut self, request: &Request) -> Result<Acquired, StoreError> {
        let (name, token) = (&request.claim.name, request.claim.token.as_str());
        let keys = self.keys(name, &["fence", "ticket", &format!("wake:{token}")]);
        let json = serde_json::to_string(&request.owner).unwrap_or_default();
        let args = [
            token,
            &millis(request.ttl),
            if request.queue { "1" } else { "0" },
            request.parent.as_ref().map_or("", |parent| parent.as_str()),
            keeping(request.keeping),
            &limit(request.mode),
            &json,
        ];
        let answer = self.script(ACQUIRE, &keys, &args)?;
        match word(&answer, 0).as_deref() {
            Some("granted") => {
                self.wake(name, [word(&answer, 3), None]);
                self.next = [word(&answer, 4), word(&answer, 5)];
                let slot = number(&answer, 2).and_then(|slot| u32::try_from(slot).ok());
                Ok(Acquired::Granted { fence: number(&answer, 1), slot, ttl: request.ttl, after: None })
            }
            Some("busy") => Ok(Acquired::Busy {
                holders: holders(&answer, 1),
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
        match (word(&answer, 0).as_deref(), holders(&answer, 1).pop()) {
            (Some("kept"), _) => {
                self.next = [word(&answer, 1), word(&answer, 2)];
                Ok(Refreshed::Kept { ttl })
            }
            (Some("absent"), _) => Ok(Refreshed::Lost(Lost::Absent)),
            (Some("odd"), _) => Ok(Refreshed::Lost(Lost::Odd(self.odd(&claim.name, word(&answer, 1))))),
            (Some("broken"), _) => Ok(Refreshed::Lost(Lost::Broken { by: owner_of(word(&answer, 1)) })),
            (Some("foreign"), Some(holder)) => Ok(Refreshed::Lost(Lost::Foreign(Box::new(holder)))),
            _ => Err(self.strange()),
        }
    }

    fn release(&mut self, claim: &Claim, by: Keeping) -> Result<Released, StoreError> {
        let wake = |token: &str| format!("wake:{token}");
        let own = claim.token.as_str();
        let [next, third] = std::mem::take(&mut self.next).map(Option::unwrap_or_default);
        let keys = self.keys(&claim.name, &[&wake(own), &wake(&next), &wake(&third)]);
        let answer = self.script(RELEASE, &keys, &[own, keeping(by), &next, &third])?;
        if word(&answer, 0).as_deref() == Some("odd") {
            return Err(StoreError::Denied(self.odd(&claim.name, word(&answer, 1))));
        }
        self.wake(&claim.name, [word(&answer, 1), word(&answer, 2)]);
        match (word(&answer, 0).as_deref(), holders(&answer, 3).pop()) {
            (Some("freed"), _) => Ok(Released::Freed),
            // The first answer got lost, and it was this one.
            (Some("absent"), _) if self.resent => Ok(Released::Freed),
            (Some("absent" | "foreign"), holder) => Ok(Released::NotHeld(holder.map(Box::new))),
            (Some("kept"), Some(holder)) => Ok(Released::Kept(Box::new(holder))),
            _ => Err(self.strange()),
        }
    }

    fn break_lease(&mut self, name: &Name, by: &Owner, fence: Option<u64>) -> Result<Vec<Holding>, StoreError> {
        let keys = self.keys(name, &[]);
        let fence = fence.map_or(String::new(), |fence| fence.to_string());
        let answer = self.script(BREAK, &keys, &[&serde_json::to_string(by).unwrap_or_default(), &fence])?;
        match word(&answer, 0).as_deref() {
            Some("broken") => {
                self.wake(name, [word(&answer, 1), None]);
                Ok(holders(&answer, 2))
            }
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
        let mut end = Moment::now() + at_most;
        loop {
            let left = Moment::now().until(end);
            let mut command = redis::cmd("BLPOP");
            command.arg(&key).arg(format!("{:.3}", left.as_secs_f64().max(0.01)));
            match self.ask(left + Duration::from_secs(1), |to| command.query::<Value>(to)) {
                Ok(Value::Array(pair)) if word(&pair, 1).as_deref() == Some(NEAR) => end = end.min(Moment::now() + NEAR_LOOKS),
                Ok(_) => return Ok(()),
                Err(error) => {
                    let text = error.to_string().to_lowercase();
                    let forbidden = ["noperm", "unknown command", "not an integer"].iter().any(|word| text.contains(word));
                    if !forbidden && error.code() != Some("NOPERM") {
                        return Err(self.explain(&error));
                    }
                    // The jitter keeps waiters that may not block from asking in step.
                    std::thread::sleep(left.min(Duration::from_millis(150 + wall_us() % 100)));
                    return Ok(());
                }
            }
        }
    }

    fn limit(&mut self, op: Duration) {
        self.op = op.max(Duration::from_millis(1));
        self.connect = self.op.min(CONNECT);
    }
}
