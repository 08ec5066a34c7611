//! `dlock break`: end somebody else's lease, naming whom. A `run` is told and frees the lock when its
//! command is gone; a lease without a process is free at once.

use std::io::{self, BufRead, IsTerminal};
use std::path::Path;

use serde_json::json;

use crate::args::At;
use crate::lock::Keeping;
use crate::outcome::Outcome;
use crate::{config, report, store};

/// Breaks a lease; asks first at a terminal, and wants `--yes` elsewhere.
pub fn run(at: At, yes: bool, json: bool, config_file: Option<&Path>) -> Outcome {
    let place = match config::place(at, config_file) {
        Ok(place) => place,
        Err(words) => return super::usage(&words),
    };
    if let Ok(own) = config::claim(None, &place.name) {
        let status = match super::ask(&place.store, |store| store.status(&place.name, Some(&own))) {
            Ok(status) => status,
            Err(outcome) => return outcome,
        };
        let kept = status.holders.iter().find(|holding| holding.keeping == Some(Keeping::Process));
        if let Some(holding) = kept.filter(|_| status.held_by_claim) {
            return super::usage(&super::refresh::own_run(place.name.as_str(), holding));
        }
    }
    if !yes {
        if !io::stdin().is_terminal() {
            return super::usage("break ends somebody else's lease: give --yes where nobody can be asked");
        }
        let status = match super::ask(&place.store, |store| store.status(&place.name, None)) {
            Ok(status) => status,
            Err(outcome) => return outcome,
        };
        report::say(&format!("{}; end it? [y/N]", report::status_text(&status, &store::shown(&place.store)).trim_end()));
        let mut answer = String::new();
        if io::stdin().lock().read_line(&mut answer).is_err() || !answer.trim().eq_ignore_ascii_case("y") {
            return super::usage("nothing was broken");
        }
    }
    let by = config::owner("break".into(), None);
    match super::ask(&place.store, |store| store.break_lease(&place.name, &by)) {
        Ok(broken) if json => {
            let broken: Vec<_> = broken.iter().map(report::holding_json).collect();
            report::print(&report::document(&json!({"resource": place.name.as_str(), "broken": broken})), Outcome::Done)
        }
        Ok(broken) if broken.is_empty() => report::print(&format!("{}: was free\n", place.name), Outcome::Done),
        Ok(broken) => {
            let whom: Vec<_> =
                broken.iter().map(|lease| lease.owner.as_ref().map_or("a client that left no record".into(), report::who)).collect();
            report::print(&format!("{}: broke the lease of {}\n", place.name, whom.join("; ")), Outcome::Done)
        }
        Err(outcome) => outcome,
    }
}
