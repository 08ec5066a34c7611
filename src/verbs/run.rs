//! `dlock run`: look the command up, take the lock, run it, release.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::args::RunArgs;
use crate::outcome::Outcome;
use crate::{child, config, report, store, supervise};

/// Runs a command under a lock.
pub fn run(mut args: RunArgs, config_file: Option<&Path>) -> Outcome {
    let command: Vec<OsString> = match args.shell.take() {
        Some(line) => vec!["/bin/sh".into(), "-c".into(), line],
        None => std::mem::take(&mut args.command),
    };
    let run = match config::run(args, &command, config_file) {
        Ok(run) => run,
        Err(words) => return super::usage(&words),
    };
    let program = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    let path = match child::look_up(program) {
        Ok(path) => path,
        Err(no) => return report::fail(no.outcome, &no.words),
    };
    let shown_store = store::shown(&run.take.store);
    let voice =
        report::Voice { name: run.take.request.claim.name.clone(), store: shown_store, quiet: run.take.quiet, verbose: run.take.verbose };
    let handed = store::handed(&run.take.store);
    supervise::run(&run, &path, &command, handed, &|event| voice.hear(&event))
}
