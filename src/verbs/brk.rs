//! `dlock break`: end others' leases, naming whom. A `run` is told to stop, and frees the lock when its
//! command is gone; a lease without a process is free at once.

use std::io::{self, BufRead, IsTerminal};
use std::path::Path;

use serde_json::json;

use crate::args::BreakArgs;
use crate::lock::{Holding, Keeping, Name};
use crate::outcome::Outcome;
use crate::store::Status;
use crate::{config, report, store};

/// Breaks leases; asks first at a terminal, and wants `--yes` elsewhere.
pub fn run(args: BreakArgs, config_file: Option<&Path>) -> Outcome {
    let place = match config::place(args.at, config_file) {
        Ok(place) => place,
        Err(words) => return super::usage(&words),
    };
    if !args.yes && !io::stdin().is_terminal() {
        return super::usage("break ends somebody else's lease: give --yes where nobody can be asked");
    }
    let one = args.slot.is_some() || args.holder.is_some();
    let wanted = |holding: &Holding| match (args.slot, args.holder.as_deref()) {
        (Some(slot), _) => holding.slot == Some(slot),
        (None, Some(text)) => is_meant(holding, text),
        (None, None) => true,
    };
    let own = config::claim(None, &place.name).ok();
    let mut whom: Vec<Option<u64>> = vec![None];
    if one || own.is_some() || !args.yes {
        let status = match super::ask(&place.store, |store| store.status(&place.name, own.as_ref())) {
            Ok(status) => status,
            Err(outcome) => return outcome,
        };
        let meant: Vec<&Holding> = status.holders.iter().filter(|holding| wanted(holding)).collect();
        if let Some(words) = own_run(&place.name, &status, &meant) {
            return super::usage(&words);
        }
        if one && meant.is_empty() {
            return report::fail(Outcome::Usage, &nobody(&place.name, &status));
        }
        if args.holder.is_some() && meant.len() > 1 {
            return super::usage(&format!("--holder means {} holders of '{}'; give the fencing token of one", meant.len(), place.name));
        }
        // Whom a person was shown, and nobody who came later.
        let fences: Option<Vec<u64>> = meant.iter().map(|holding| holding.fence).collect();
        match fences {
            Some(fences) if one || !args.yes && !fences.is_empty() => whom = fences.into_iter().map(Some).collect(),
            _ if one => return super::usage("that holder left no record and so has no fencing token; break all of them"),
            _ => {}
        }
        if !args.yes && !is_confirmed(&status, &meant, &store::shown(&place.store)) {
            return super::usage("nothing was broken");
        }
    }
    let by = config::owner("break".into(), None);
    let broken = super::ask(&place.store, |store| {
        let mut broken = Vec::new();
        for fence in &whom {
            broken.extend(store.break_lease(&place.name, &by, *fence)?);
        }
        Ok(broken)
    });
    match broken {
        Ok(broken) if args.json => {
            let broken: Vec<_> = broken.iter().map(report::holding_json).collect();
            report::print(&report::document(&json!({"resource": place.name.as_str(), "broken": broken})), Outcome::Done)
        }
        Ok(broken) if broken.is_empty() => report::print(&format!("{}: was free\n", place.name), Outcome::Done),
        Ok(broken) => {
            let whom: Vec<_> = broken.iter().map(report::holder).collect();
            let what = if broken.len() == 1 { "the lease" } else { "the leases" };
            report::print(&format!("{}: broke {what} of {}\n", place.name, whom.join("; ")), Outcome::Done)
        }
        Err(outcome) => outcome,
    }
}

/// By its fencing token, its pid, or host and pid, as `status` shows them.
fn is_meant(holding: &Holding, text: &str) -> bool {
    let by_owner =
        holding.owner.as_ref().is_some_and(|owner| text == owner.pid.to_string() || text == format!("{}:{}", owner.host, owner.pid));
    by_owner || holding.fence.is_some_and(|fence| text == fence.to_string())
}

/// Why a job may not break the run that it is in: where that is one of those meant.
fn own_run(name: &Name, status: &Status, meant: &[&Holding]) -> Option<String> {
    let own = status.own.and_then(|at| status.holders.get(at))?;
    let is_meant = own.keeping == Some(Keeping::Process) && meant.iter().any(|holding| std::ptr::eq(*holding, own));
    is_meant.then(|| super::refresh::own_run(name.as_str(), own))
}

fn nobody(name: &Name, status: &Status) -> String {
    let all: Vec<_> = status.holders.iter().map(report::holder_with_fence).collect();
    let now = if all.is_empty() { "it is free".into() } else { format!("it is held by {}", all.join("; ")) };
    format!("no such holder of '{name}': {now}")
}

fn is_confirmed(status: &Status, meant: &[&Holding], store: &str) -> bool {
    let shown = Status { holders: meant.iter().map(|holding| (*holding).clone()).collect(), ..status.clone() };
    report::say(&format!("{}; end {}? [y/N]", report::status_text(&shown, store).trim_end(), if meant.len() > 1 { "them" } else { "it" }));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).is_ok() && answer.trim().eq_ignore_ascii_case("y")
}
