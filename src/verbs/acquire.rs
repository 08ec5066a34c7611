//! `dlock acquire`: take the lease, print its token, leave no process behind.

use std::path::Path;

use crate::args::TakeArgs;
use crate::config::Format;
use crate::outcome::Outcome;
use crate::session::let_go;
use crate::supervise::{guarded, obtain};
use crate::{config, report, store};

/// Takes a lease. One whose token can't be printed is released again.
pub fn run(args: TakeArgs, format: Option<&str>, config_file: Option<&Path>) -> Outcome {
    let (take, format) = match config::take(args, format, config_file) {
        Ok(asked) => asked,
        Err(words) => return super::usage(&words),
    };
    let voice =
        report::Voice { name: take.request.claim.name.clone(), store: store::shown(&take.store), quiet: take.quiet, verbose: take.verbose };
    let say = |event: crate::event::Event| voice.hear(&event);
    guarded(&take, &say, |mut store, link, signals| {
        let lease = match obtain(&take, &mut *store, link, &say) {
            Ok(lease) => lease,
            Err(outcome) => return outcome,
        };
        if let Err(error) = link.start(None) {
            let_go(&mut *store, &lease, false, &say);
            return report::fail(Outcome::System, &error.to_string());
        }
        if let Some(number) = signals.told() {
            let_go(&mut *store, &lease, false, &say);
            return Outcome::Signalled(number);
        }
        let text = match format {
            Format::Token => format!("{}\n", lease.claim.token.as_str()),
            // A store that needs its password is left as the caller named it.
            Format::Env => report::exports(&lease, Some(store::handed(&take.store)).filter(|handed| *handed == take.store).as_deref()),
            Format::Json => report::lease_json(&lease, &voice.store),
        };
        let outcome = report::print(&text, Outcome::Done);
        if outcome != Outcome::Done {
            let_go(&mut *store, &lease, false, &say);
        }
        match outcome {
            Outcome::Died(_) => report::fail(Outcome::System, "nobody reads standard output: released again"),
            outcome => outcome,
        }
    })
}
