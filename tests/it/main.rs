//! The tests of the binary, one file a behaviour.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod harness; // stores of their own for each test, and the binary with a pinned environment
mod lease; // acquire, refresh, release, status, list, break
mod run; // run: exit status, environment, signals, waiting, loss
mod usage; // what is refused before anything is contacted
