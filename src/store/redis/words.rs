//! What goes wrong with a Redis server, in its own words: whether waiting helps, and what next.

use redis::RedisError;

use super::Redis;
use super::url::Place;
use crate::lock::Name;
use crate::store::StoreError;

impl Redis {
    /// An answer that no version of a script gives.
    pub fn strange(&self) -> StoreError {
        StoreError::Unavailable(format!("{}: an answer that dlock does not understand", self.target.shown()))
    }

    /// A record of another version.
    pub fn alien(&self, layout: Option<String>) -> StoreError {
        let layout = layout.unwrap_or_default();
        StoreError::Denied(format!("{}: a record of layout {layout}, this dlock knows 2; use one version of dlock", self.target.shown()))
    }

    /// Why what a key holds is no lock.
    pub fn odd(&self, name: &Name, kind: Option<String>) -> String {
        let what = match kind.as_deref() {
            Some("string") | None => "a value not written by dlock".into(),
            Some(kind) => format!("a {kind}"),
        };
        let key = self.key(name);
        format!("{}: key {key} holds {what}; pick another name or prefix", self.target.shown())
    }

    /// An error as the user needs it.
    pub fn explain(&self, error: &RedisError) -> StoreError {
        let shown = self.target.shown();
        // The first of a pipeline's errors is the cause of the others.
        let server = error.clone().into_server_errors();
        let mut words = match server.as_deref().and_then(|errors| errors.first()) {
            Some((_, error)) => format!("{} {}", error.code(), error.details().unwrap_or_default()).trim_end().to_owned(),
            None => error.to_string(),
        };
        // What Redis says before a login depends on the length of the request.
        if words.contains("unauthenticated") {
            words = "NOAUTH Authentication required".into();
        }
        // What follows repeats the script, or arguments and with them the password.
        for rest in [", script: ", " script: ", ", with args beginning with"] {
            words.truncate(words.find(rest).unwrap_or(words.len()));
        }
        // One sentence of the server's is enough: protected mode has fifteen.
        words.truncate(words.find(". ").unwrap_or(words.len()));
        words.truncate(words.trim_end_matches('.').len());
        if let Some(password) = self.target.password.as_deref().filter(|text| text.len() > 3) {
            // (a shorter one would tear words, and is in none of the server's sentences that are left)
            words = words.replace(password, "***");
        }
        let has = |text: &str| words.contains(text);
        if has("MOVED") || has("CROSSSLOT") || has("ASK ") {
            return StoreError::Denied(format!("{shown}: {words}: this server is part of a cluster; use a single one"));
        }
        let login = ["NOAUTH", "WRONGPASS", "ERR invalid password"];
        if login.iter().any(|code| has(code)) {
            return StoreError::Denied(format!("{shown}: {words}; give the password by DLOCK_PASSWORD"));
        }
        if has("AUTH <password> called") {
            return StoreError::Denied(format!("{shown}: {words}; it wants no password, so give none"));
        }
        let person = ["NOPERM", "WRONGTYPE", "DENIED", "DB index is out of range", "can't run this command", "unknown command"];
        if person.iter().any(|code| has(code)) {
            return StoreError::Denied(format!("{shown}: {words}"));
        }
        if error.kind() == redis::ErrorKind::Parse {
            return StoreError::Denied(format!("{shown}: {words}; is this a Redis server?"));
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
}
