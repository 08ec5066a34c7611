//! The verbs: arguments in, outcome out. Each is seen whole in its own file.

use crate::args::{Args, Verb};
use crate::outcome::Outcome;
use crate::report;
use crate::store::{self, Store, StoreError};

mod acquire;
mod brk;
mod live;
mod refresh;
mod run;
mod status;

/// Runs one verb.
pub fn run(args: Args) -> Outcome {
    let config = args.config.as_deref();
    match args.verb {
        Verb::Run(args) => run::run(args, config),
        Verb::Acquire(args) => acquire::run(args.take, args.format.as_deref(), config),
        Verb::Refresh(args) => refresh::refresh(args.at, args.token, args.ttl, args.json, config),
        Verb::Release(args) => refresh::release(args.at, args.token, config),
        Verb::Status(args) => status::status(args, config),
        Verb::List(args) => status::list(args, config),
        Verb::Break(args) => brk::run(args, config),
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
