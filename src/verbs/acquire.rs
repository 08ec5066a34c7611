//! `dlock acquire`: take the lease, print its token, leave no process behind.

use std::path::Path;

use crate::args::TakeArgs;
use crate::keeper::Keeper;
use crate::outcome::Outcome;
use crate::signals::{self, Signals};
use crate::supervise::{let_go, obtain};
use crate::{config, report, store};

/// Takes a lease. One whose token can't be printed is released again.
pub fn run(args: TakeArgs, config_file: Option<&Path>) -> Outcome {
    let take = match config::take(args, config_file) {
        Ok(take) => take,
        Err(words) => return super::usage(&words),
    };
    let voice =
        report::Voice { name: take.request.claim.name.clone(), store: store::shown(&take.store), quiet: take.quiet, verbose: take.verbose };
    let say = |event: crate::supervise::Event| voice.hear(&event);
    let started =
        Signals::block().and_then(|signals| Ok((signals, Keeper::start(take.store.clone(), take.request.clone(), take.patience, None)?)));
    let (signals, keeper) = match started {
        Ok(started) => started,
        Err(error) => return report::fail(Outcome::System, &error.to_string()),
    };
    let lease = match obtain(&take, &keeper, &signals, &say) {
        Ok(lease) => lease,
        Err(outcome) => return outcome,
    };
    if let Some(signal) = std::iter::from_fn(|| signals.next()).find(|signal| signals::ends(*signal)) {
        let_go(&keeper, &signals, false, &say);
        return Outcome::Signalled(signal.number);
    }
    let outcome = report::print(&format!("{}\n", lease.claim.token.as_str()), Outcome::Done);
    if outcome != Outcome::Done {
        let_go(&keeper, &signals, false, &say);
    }
    outcome
}
