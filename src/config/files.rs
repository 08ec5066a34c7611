//! Configuration files: TOML with `[defaults]` and `[resource."PATTERN"]`, merged key by key.
//!
//! A nearer file wins over a farther one (`--config` or `DLOCK_CONFIG`, then the user's, then the
//! machine's); in one file a resource's table wins over the defaults, and of two patterns that fit the
//! longer one wins. An unknown key is a mistake, never ignored: it may have been meant to be safe.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::lock::Name;
use crate::sys;

/// The machine's file.
const MACHINE: &str = "/etc/dlock.toml";

/// What a file may set; options and environment win over all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Lease length.
    pub ttl: Option<String>,
    /// How long to wait when busy.
    pub wait: Option<String>,
    /// The store's URL.
    pub store: Option<String>,
    /// Namespace inside the store.
    pub prefix: Option<String>,
    /// A file whose first line is the store's password.
    pub password_file: Option<PathBuf>,
    /// Between tries.
    pub retry_delay: Option<String>,
    /// Grace between TERM and KILL.
    pub kill_after: Option<String>,
    /// `stop` or `continue`.
    pub on_lost: Option<String>,
    /// `ignore`, `wait` or `kill`.
    pub survivors: Option<String>,
    /// Longest run.
    pub max_runtime: Option<String>,
    /// Status when busy.
    pub busy_code: Option<u8>,
    /// `name` or `full`: what of the command others may see.
    pub record_command: Option<String>,
    /// No store named is a mistake, not the local directory: for fleets.
    pub require_store: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    defaults: Settings,
    #[serde(default)]
    resource: BTreeMap<String, Settings>,
}

impl Settings {
    /// Fills what is not set yet.
    fn or(self, other: Settings) -> Settings {
        Settings {
            ttl: self.ttl.or(other.ttl),
            wait: self.wait.or(other.wait),
            store: self.store.or(other.store),
            prefix: self.prefix.or(other.prefix),
            password_file: self.password_file.or(other.password_file),
            retry_delay: self.retry_delay.or(other.retry_delay),
            kill_after: self.kill_after.or(other.kill_after),
            on_lost: self.on_lost.or(other.on_lost),
            survivors: self.survivors.or(other.survivors),
            max_runtime: self.max_runtime.or(other.max_runtime),
            busy_code: self.busy_code.or(other.busy_code),
            record_command: self.record_command.or(other.record_command),
            require_store: self.require_store.or(other.require_store),
        }
    }
}

/// Reads all files for a resource, or for none (`list`). `named` must exist; the others may be absent.
pub fn read(named: Option<&Path>, name: Option<&Name>) -> Result<Settings, String> {
    let mut merged = Settings::default();
    if let Some(path) = named {
        let text = fs::read_to_string(path).map_err(|error| format!("cannot read the configuration {}: {error}", path.display()))?;
        merged = parse(&text, path, name)?;
    }
    let own = sys::user().map(|(_, home)| Path::new(&home).join(".config/dlock/config.toml"));
    for path in own.into_iter().chain([PathBuf::from(MACHINE)]) {
        match fs::read_to_string(&path) {
            Ok(text) => merged = merged.or(parse(&text, &path, name)?),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Err(format!("cannot read the configuration {}: {error}", path.display())),
        }
    }
    Ok(merged)
}

fn parse(text: &str, path: &Path, name: Option<&Name>) -> Result<Settings, String> {
    // Only the reason and the line: the text around a mistake may hold a password.
    let document: Document = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text.get(..span.start).unwrap_or("").matches('\n').count() + 1);
        format!("configuration {}, near line {line}: {}", path.display(), error.message())
    })?;
    let fits = |pattern: &str| name.is_some_and(|name| matches(pattern, name.as_str()));
    let mut tables: Vec<_> = document.resource.into_iter().filter(|(pattern, _)| fits(pattern)).collect();
    tables.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.len()));
    Ok(tables.into_iter().fold(Settings::default(), |merged, (_, table)| merged.or(table)).or(document.defaults))
}

/// `*` is any run of characters, `?` is one, all else is itself. Only the last `*` is ever tried again:
/// what an earlier one could take more of, the last can take as well.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut seen, mut star) = (0, 0, None);
    while seen < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(c) if *c == '?' || *c == name[seen] => {
                at += 1;
                seen += 1;
            }
            _ => {
                let Some((before, taken)) = star else { return false };
                star = Some((before, taken + 1));
                at = before + 1;
                seen = taken + 1;
            }
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str, name: &str) -> Result<Settings, String> {
        parse(text, Path::new("test.toml"), Some(&Name::new(name).unwrap()))
    }

    #[test]
    fn the_longer_pattern_wins_key_by_key_and_defaults_fill_the_rest() {
        let text = "[defaults]\nttl='1m'\nwait='5s'\nstore='file:///a'\n[resource.'db*']\nttl='2m'\nwait='forever'\n[resource.'db-prod']\nttl='3m'\n";
        let found = settings(text, "db-prod").unwrap();
        assert_eq!((found.ttl.as_deref(), found.wait.as_deref(), found.store.as_deref()), (Some("3m"), Some("forever"), Some("file:///a")));
        assert_eq!(settings(text, "other").unwrap().ttl.as_deref(), Some("1m"));
    }

    #[test]
    fn an_unknown_key_is_named_and_no_value_is_repeated() {
        let error = settings("[defaults]\nstore='redis://:S3CRET@h'\ntll='1m'\n", "x").unwrap_err();
        assert!(error.contains("tll") && error.contains("line 3") && !error.contains("S3CRET"), "{error}");
        let error = settings("[defaults]\nstore = redis://:S3CRET@h\n", "x").unwrap_err();
        assert!(!error.contains("S3CRET"), "{error}");
    }

    #[test]
    fn patterns_know_star_and_question_mark() {
        for (pattern, name, fits) in
            [("*", "", true), ("a*c", "abbc", true), ("a?c", "a日c", true), ("a?c", "ac", false), ("[a]", "a", false)].into_iter().chain([
                ("*b*", "abc", true),
                ("a*b*c", "a1b2c", true),
                ("a*b*c", "a1c2b", false),
                ("**", "x", true),
            ])
        {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
        assert!(!matches(&"*a".repeat(50), &("a".repeat(250) + "b")), "and in no time");
    }
}
