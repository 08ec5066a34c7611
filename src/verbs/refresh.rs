//! `dlock refresh` and `dlock release`: the holder's own two verbs for scripts.

use std::path::Path;

use crate::args::At;
use crate::lock::{Holding, Keeping};
use crate::outcome::Outcome;
use crate::store::{Lost, Refreshed, Released, StoreError};
use crate::{config, report};

/// Renews a lease.
pub fn refresh(at: At, token: Option<String>, ttl: Option<String>, json: bool, config_file: Option<&Path>) -> Outcome {
    let (claim, ttl, store) = match config::refresh(at, token, ttl, config_file) {
        Ok(asked) => asked,
        Err(words) => return super::usage(&words),
    };
    match super::ask(&store, |store| store.refresh(&claim, ttl)) {
        Ok(Refreshed::Kept { ttl }) if json => report::print(&report::document(&report::renewed_json(&claim, ttl)), Outcome::Done),
        Ok(Refreshed::Kept { .. }) => Outcome::Done,
        Ok(Refreshed::Lost(Lost::Foreign(holding))) => not_held(claim.name.as_str(), Some(&holding)),
        Ok(Refreshed::Lost(Lost::Absent | Lost::Unproven(_))) => not_held(claim.name.as_str(), None),
        Ok(Refreshed::Lost(Lost::Odd(words))) => report::store_failed(&StoreError::Denied(words)),
        Ok(Refreshed::Lost(Lost::Broken { by })) => {
            report::fail(Outcome::NotHeld, &format!("'{}' was broken by {}", claim.name, report::who(&by)))
        }
        Err(outcome) => outcome,
    }
}

/// Releases a lease if the token holds it.
pub fn release(at: At, token: Option<String>, config_file: Option<&Path>) -> Outcome {
    let asked = config::place(at, config_file).and_then(|place| Ok((config::claim(token, &place.name)?, place.store)));
    let (claim, store) = match asked {
        Ok(asked) => asked,
        Err(words) => return super::usage(&words),
    };
    match super::ask(&store, |store| store.release(&claim, Keeping::Lease)) {
        Ok(Released::Freed) => Outcome::Done,
        Ok(Released::Kept(holding)) => super::usage(&own_run(claim.name.as_str(), &holding)),
        Ok(Released::NotHeld(holding)) => not_held(claim.name.as_str(), holding.as_deref()),
        Err(outcome) => outcome,
    }
}

/// Why a lease of a `run` can't be ended from inside of it.
pub fn own_run(name: &str, holding: &Holding) -> String {
    let who = holding.owner.as_ref().map(report::who).unwrap_or_default();
    format!("'{name}' is kept by a dlock run ({who}), which releases it when its command has ended; end the command instead")
}

fn not_held(name: &str, now: Option<&Holding>) -> Outcome {
    let now = match now.map(|holding| holding.owner.as_ref().map(report::who)) {
        Some(Some(owner)) => format!("it is held by {owner} now"),
        Some(None) => "it is held by a client that left no record now".into(),
        None => "it has expired or was released".into(),
    };
    report::fail(Outcome::NotHeld, &format!("'{name}' is not held by this token: {now}"))
}
