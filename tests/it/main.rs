//! The tests of the binary, one file a behaviour.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod acquire; // acquire, status and list on every store
mod cases; // failures that people have had, on each store
mod cases_file; // those of the command line, of descriptors and of the file store
mod cases_redis; // those of Redis and of its URLs
mod cases_signals; // those of signals, other wrappers, frozen machines, servers that forget
mod config; // options over environment over files
#[macro_use]
mod conformance; // the contract of a store, one test a promise a store
mod disk; // what can happen to the files of a store
mod generated; // man pages, completions and README against the code
mod guard; // dlock itself is killed or stopped
mod harness; // stores of their own for each test, and the binary with a pinned environment
mod job; // the verbs inside a job, what is printed for scripts
mod lease; // acquire, refresh, release, status, list, break
mod line; // the line and those that share, as users see them
mod live; // --watch at a terminal
mod names; // names on every store
mod oracle; // what the commands write down of themselves under each fault
mod others; // other lock libraries on the same key
mod proxy; // a network that loses what passes
mod redis; // a real redis-server for one test
mod review;
mod run; // run: exit status, environment, signals, waiting, loss
mod sharing; // what outlived its lease once, found by a review
mod stores; // run on every store, and what only Redis can do
mod supervision; // the cases of supervision: exit status, and the list of all
mod supervision_kill; // how the tree is ended, and dlock itself
mod supervision_signals; // signals
mod supervision_start; // windows, descendants, limits, arguments
mod supervision_tty; // the cases of supervision at a terminal
mod terminal; // a terminal of a test's own, and a command that logs its signals
mod tidy; // the house rules
mod torture; // many at once, in all modes, killed at random
mod tree; // signals, sweeps and orphans
mod usage; // what is refused before anything is contacted
