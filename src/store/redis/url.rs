//! A Redis URL: read, completed, and shown without its password.

use crate::store::{percent_decoded, percent_encoded, with_prefix};

const PASSWORD: &str = "cannot read the store URL; percent-encode the password, or give it by DLOCK_PASSWORD";

/// Checks a URL; contacts nothing. The error never repeats the URL, which may hold a password.
pub fn check(url: &str) -> Result<(), String> {
    Target::parse(url).map(drop)
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
            let password = percent_encoded(password);
            let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
            let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
            format!("{scheme}://{}:{password}@{host}{tail}", user.trim_end_matches(':'))
        }
        _ => url.to_owned(),
    };
    with_prefix(&url, prefix)
}

/// Where the server listens.
pub enum Place {
    Tcp(String, u16),
    Unix(String),
}

/// What a URL says.
pub struct Target {
    pub place: Place,
    pub user: Option<String>,
    pub password: Option<String>,
    pub db: u32,
    pub prefix: String,
}

impl Target {
    /// Reads a URL. The error never repeats it.
    pub fn parse(url: &str) -> Result<Target, String> {
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

    /// For people: without the password.
    pub fn shown(&self) -> String {
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

/// Undoes percent-encoding.
pub fn decoded(text: &str) -> Result<String, String> {
    percent_decoded(text).ok_or_else(|| PASSWORD.into())
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
