//! `dlock status` and `dlock list`: who holds what. No token in either.

use std::path::Path;

use serde_json::{Value, json};

use super::live;
use crate::args::{ListArgs, StatusArgs};
use crate::lock::Claim;
use crate::outcome::Outcome;
use crate::store::Status;
use crate::{config, report, store, sys};

/// The state of one resource: 0 held, 1 free; with a token 0 or 80.
pub fn status(args: StatusArgs, config_file: Option<&Path>) -> Outcome {
    let asked = config::place(args.at, config_file).and_then(|place| {
        let claim = match args.token {
            Some(text) => Some(config::claim(Some(text), &place.name)?),
            None => None,
        };
        Ok((claim, place))
    });
    let (claim, place): (Option<Claim>, _) = match asked {
        Ok(asked) => asked,
        Err(words) => return super::usage(&words),
    };
    let shown = store::shown(&place.store);
    if args.watch {
        return live::watch(&place.store, |store| Ok(report::status_text(&store.status(&place.name, None)?, &shown)));
    }
    let status = match super::ask(&place.store, |store| store.status(&place.name, claim.as_ref())) {
        Ok(status) => status,
        Err(outcome) => return outcome,
    };
    let outcome = match claim {
        Some(_) if status.own.is_some() => Outcome::Done,
        Some(_) => Outcome::NotHeld,
        None if status.holders.is_empty() => Outcome::Free,
        None => Outcome::Done,
    };
    let text = if args.json {
        let mut value = report::status_json(&status);
        value["store"] = json!(shown);
        report::document(&value)
    } else {
        report::status_text(&status, &shown)
    };
    report::print(&text, outcome)
}

/// All resources that are held or waited for.
pub fn list(args: ListArgs, config_file: Option<&Path>) -> Outcome {
    let url = match config::store(args.store, config_file) {
        Ok(url) => url,
        Err(words) => return super::usage(&words),
    };
    let by_age = match args.sort.as_deref() {
        None | Some("name") => false,
        Some("age") => true,
        Some(other) => return super::usage(&format!("--sort {other:?}: write name or age")),
    };
    let prefix = args.prefix.unwrap_or_default();
    if args.watch {
        let shown = store::shown(&url);
        return live::watch(&url, |store| {
            let all = sorted(store.list(&prefix)?, by_age);
            let head = if all.len() == 1 { "1 lock".into() } else { format!("{} locks", all.len()) };
            Ok(format!("{head} ({shown})\n{}", report::list_text(&all, Some(usize::MAX))))
        });
    }
    let columns = report::is_at_terminal().then(|| sys::terminal_size(1).1);
    match super::ask(&url, |store| store.list(&prefix)).map(|all| sorted(all, by_age)) {
        Ok(all) if args.json => {
            report::print(&report::document(&Value::Array(all.iter().map(report::status_json).collect())), Outcome::Done)
        }
        Ok(all) => report::print(&report::list_text(&all, columns), Outcome::Done),
        Err(outcome) => outcome,
    }
}

/// By name, or the longest held first; what nobody holds, or nobody has dated, comes last.
fn sorted(mut all: Vec<Status>, by_age: bool) -> Vec<Status> {
    all.sort_by(|one, other| one.name.as_str().cmp(other.name.as_str()));
    if by_age {
        let since = |status: &Status| status.holders.iter().filter_map(|holding| holding.acquired_at_us).min();
        all.sort_by_key(|status| since(status).unwrap_or(u64::MAX));
    }
    all
}
