//! The verbs: arguments in, outcome out. Each is seen whole in its own file.

use crate::args::{Args, Verb};
use crate::outcome::Outcome;
use crate::report;
use crate::store::{self, Store, StoreError};

mod acquire;
mod brk;
mod refresh;
mod run;
mod status;

/// Runs one verb.
pub fn run(args: Args) -> Outcome {
    let config = args.config.as_deref();
    match args.verb {
        Verb::Run(args) => run::run(args, config),
        Verb::Acquire { take, format } => acquire::run(take, format.as_deref(), config),
        Verb::Refresh { at, token, ttl, json } => refresh::refresh(at, token, ttl, json, config),
        Verb::Release { at, token } => refresh::release(at, token, config),
        Verb::Status { at, token, json } => status::status(at, token, json, config),
        Verb::List { prefix, store, json } => status::list(&prefix.unwrap_or_default(), store, json, config),
        Verb::Break { at, yes, json } => brk::run(at, yes, json, config),
    }
}

/// Opens a store and asks it one thing.
fn ask<T>(url: &str, work: impl FnOnce(&mut dyn Store) -> Result<T, StoreError>) -> Result<T, Outcome> {
    store::open(url).and_then(|mut store| work(&mut *store)).map_err(|error| report::store_failed(&error))
}

/// Words a usage error.
fn usage(words: &str) -> Outcome {
    report::fail(Outcome::Usage, words)
}
