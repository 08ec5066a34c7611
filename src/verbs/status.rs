//! `dlock status` and `dlock list`: who holds what. No token in either.

use std::path::Path;

use serde_json::{Value, json};

use crate::args::At;
use crate::lock::Claim;
use crate::outcome::Outcome;
use crate::{config, report, store};

/// The state of one resource: 0 held, 1 free; with a token 0 or 80.
pub fn status(at: At, token: Option<String>, json: bool, config_file: Option<&Path>) -> Outcome {
    let asked = config::place(at, config_file).and_then(|place| {
        let claim = match token {
            Some(text) => Some(config::claim(Some(text), &place.name)?),
            None => None,
        };
        Ok((claim, place))
    });
    let (claim, place): (Option<Claim>, _) = match asked {
        Ok(asked) => asked,
        Err(words) => return super::usage(&words),
    };
    let status = match super::ask(&place.store, |store| store.status(&place.name, claim.as_ref())) {
        Ok(status) => status,
        Err(outcome) => return outcome,
    };
    let outcome = match claim {
        Some(_) if status.held_by_claim => Outcome::Done,
        Some(_) => Outcome::NotHeld,
        None if status.holders.is_empty() => Outcome::Free,
        None => Outcome::Done,
    };
    let shown = store::shown(&place.store);
    let text = if json {
        let mut value = report::status_json(&status);
        value["store"] = json!(shown);
        report::document(&value)
    } else {
        report::status_text(&status, &shown)
    };
    report::print(&text, outcome)
}

/// All resources that are held or waited for.
pub fn list(prefix: &str, store: Option<String>, json: bool, config_file: Option<&Path>) -> Outcome {
    let url = match config::store(store, config_file) {
        Ok(url) => url,
        Err(words) => return super::usage(&words),
    };
    match super::ask(&url, |store| store.list(prefix)) {
        Ok(all) if json => report::print(&report::document(&Value::Array(all.iter().map(report::status_json).collect())), Outcome::Done),
        Ok(all) => report::print(&report::list_text(&all), Outcome::Done),
        Err(outcome) => outcome,
    }
}
