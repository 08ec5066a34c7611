//! `--watch`: a text at the terminal, drawn again in place once a second.
//!
//! No mode of the terminal is changed and no signal is caught: whatever ends this leaves the terminal as
//! it was, with the last text on it. Each drawing is one write.

use std::thread::sleep;
use std::time::Duration;

use crate::clock::{Moment, wall_us};
use crate::outcome::Outcome;
use crate::store::{self, Store, StoreError};
use crate::{report, sys};

/// How often.
const EVERY: Duration = Duration::from_secs(1);
/// The longest that one question may take: the view must stay alive.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// Shows what `ask` tells until a signal comes or the terminal goes. A store that fails at first is a
/// failure; later it is a line of the view, and asking goes on.
pub fn watch(url: &str, ask: impl Fn(&mut dyn Store) -> Result<String, StoreError>) -> Outcome {
    if !report::is_at_terminal() {
        return super::usage("--watch is for a terminal; ask with --json instead");
    }
    let mut store = match store::open(url) {
        Ok(store) => store,
        Err(error) => return report::store_failed(&error),
    };
    store.limit(ASK_LIMIT);
    let (mut drawn, mut shape, mut is_first) = (0, sys::terminal_size(1), true);
    loop {
        let began = Moment::now();
        let text = match ask(&mut *store) {
            Ok(text) => text,
            Err(error) if is_first => return report::store_failed(&error),
            Err(StoreError::Unavailable(words)) => format!("store unavailable: {words}\n"),
            Err(StoreError::Denied(words)) => format!("denied: {words}\n"),
        };
        is_first = false;
        let now_shape = sys::terminal_size(1);
        let (screen, lines) = screen(&format!("{}\n{text}", report::utc(wall_us())), now_shape);
        let start = match drawn {
            _ if now_shape != shape => "\x1b[H\x1b[2J".to_owned(), // the lines lie otherwise now
            0 => String::new(),
            up => format!("\x1b[{up}A"),
        };
        let outcome = report::print(&format!("\r{start}{screen}\x1b[J"), Outcome::Done);
        if outcome != Outcome::Done {
            return outcome;
        }
        (drawn, shape) = (lines, now_shape);
        sleep(EVERY);
        // Who was stopped meanwhile (Ctrl-Z, fg) finds the shell's words below its own, and starts anew.
        if began.until(Moment::now()) > EVERY + ASK_LIMIT {
            drawn = 0;
        }
    }
}

/// What fits of a text, each line cleared to its end, and how many lines that is.
fn screen(text: &str, (rows, columns): (usize, usize)) -> (String, usize) {
    let (fit, all) = (rows.saturating_sub(1).max(1), text.lines().count());
    let shown = if all > fit { fit.saturating_sub(1) } else { all };
    let more = (all > shown).then(|| format!("… {} lines more", all - shown));
    let mut out = String::new();
    for line in text.lines().take(shown).chain(more.as_deref()) {
        out.push_str(&report::cut(line, columns));
        out.push_str("\x1b[K\n");
    }
    (out, shown + usize::from(more.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_never_scrolls_and_no_line_wraps() {
        assert_eq!(screen("abc\ndef\n", (24, 80)), ("abc\x1b[K\ndef\x1b[K\n".into(), 2));
        assert_eq!(screen("abcdef\n日本語\n", (24, 6)), ("abcde\x1b[K\n日本\x1b[K\n".into(), 2));
        let (out, lines) = screen("1\n2\n3\n4\n5\n", (4, 80));
        assert_eq!((out.as_str(), lines), ("1\x1b[K\n2\x1b[K\n… 3 lines more\x1b[K\n", 3));
    }
}
