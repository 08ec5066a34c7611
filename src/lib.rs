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
//! A module may name only those above it here; a test reads the imports and holds it.
//!
//! | layer | modules | also |
//! |---|---|---|
//! | nouns | sys, clock, lock, pace, watch, outcome, args | `unsafe` in sys only, clap in args only |
//! | edges | store and store/*, tree, child, signals | know nothing of one another; each client crate in its one store file |
//! | loops | wait, config, keeper, guard | |
//! | join | event, session, supervise | tells what happens by a closure, and knows no words |
//! | words | report, verbs/* | printing in report only |
//! | door | lib, main | names args, outcome, report and verbs only |

use std::ffi::OsString;

mod args;
mod child;
#[doc(hidden)] // for the conformance suite, like the two below
pub mod clock;
mod config;
mod event;
mod guard;
mod keeper;
#[doc(hidden)]
pub mod lock;
pub mod outcome;
mod pace;
mod report;
mod session;
mod signals;
#[doc(hidden)]
pub mod store;
mod supervise;
mod sys;
mod tree;
mod verbs;
mod wait;
mod watch;

/// Runs one command line to its end. A panic, in whatever thread, is a bug: it says so without a
/// backtrace, which could hold a URL, and ends this process at once. Its partner (guard.rs) then ends
/// the command.
pub fn run(words: impl IntoIterator<Item = OsString>) -> outcome::Outcome {
    std::panic::set_hook(Box::new(|what| {
        let at = what.location().map_or(String::new(), |at| format!(" at {}:{}", at.file(), at.line()));
        report::say_beside(&format!("this is a bug in dlock{at}; please report it"));
        if let outcome::End::Exit(code) = outcome::Outcome::Bug.end() {
            outcome::exit(code);
        }
    }));
    let words: Vec<OsString> = words.into_iter().collect();
    let tail = || format!("Stores:\n{}\nExit status:\n{}", report::stores(), outcome::table());
    match args::parse(&words, tail) {
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
