//! dlock: flock(1) for a fleet. A command runs under a lease that is renewed while it runs, released
//! by compare-and-delete, and never outlived.
//!
//! A value moves one way and changes its type at each step, so that a half-checked value can't be
//! passed on:
//!
//! ```text
//! Args → Config → Request → (Store) → Lease → (Keeper + Watch + Child) → Outcome → exit code
//! ```
//!
//! | layer | modules | may name |
//! |---|---|---|
//! | 0 nouns | lock, pace, clock, sys, watch, outcome, args | lock, pace, clock, sys |
//! | 1 edges | store and store/*, child, signals | layer 0 |
//! | 2 loops | wait, keeper, config | layers 0, 1 |
//! | 3 join | supervise | all below |
//! | 4 words | report, verbs/* | all below |
//! | 5 door | lib, main | args, config, outcome, report, verbs |

use std::ffi::OsString;

mod args;
mod child;
mod clock;
mod config;
mod keeper;
mod lock;
pub mod outcome;
mod pace;
mod report;
mod signals;
mod store;
mod supervise;
mod sys;
mod verbs;
mod wait;
mod watch;

/// Runs one command line to its end. Never panics on bad input and never ends the process itself.
pub fn run(words: impl IntoIterator<Item = OsString>) -> outcome::Outcome {
    let tail = format!("Stores:\n{}\nExit status:\n{}", report::stores(), outcome::table());
    match args::parse(words, &tail) {
        Ok(args) => verbs::run(args),
        Err(args::Refused::Shown(text)) => report::print(&text, outcome::Outcome::Done),
        Err(args::Refused::Usage(text)) => report::fail(outcome::Outcome::Usage, text.trim_end().trim_start_matches("error: ")),
    }
}
