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

/// Runs one command line to its end, and never ends the process itself. A panic is a bug and says so
/// without a backtrace, which could hold a URL; a command that ran then dies with the process.
pub fn run(words: impl IntoIterator<Item = OsString>) -> outcome::Outcome {
    std::panic::set_hook(Box::new(|what| {
        let at = what.location().map_or(String::new(), |at| format!(" at {}:{}", at.file(), at.line()));
        report::say(&format!("this is a bug in dlock{at}; please report it"));
    }));
    let words: Vec<OsString> = words.into_iter().collect();
    std::panic::catch_unwind(|| one(words)).unwrap_or(outcome::Outcome::Bug)
}

fn one(words: Vec<OsString>) -> outcome::Outcome {
    let tail = format!("Stores:\n{}\nExit status:\n{}", report::stores(), outcome::table());
    match args::parse(words, &tail) {
        Ok(args) => verbs::run(args),
        Err(args::Refused::Shown(text)) => report::print(&text, outcome::Outcome::Done),
        Err(args::Refused::Usage(text)) => report::fail(outcome::Outcome::Usage, text.trim_end().trim_start_matches("error: ")),
    }
}

/// The flags as a table, for the completions and man pages that a test compares.
#[doc(hidden)]
pub use args::command;

/// The list of stores, as help and man page print it.
#[doc(hidden)]
pub use report::stores;
