//! `list` for people: a table.

use std::fmt::Write as _;
use std::time::Duration;

use super::{about, holder, printable, who};
use crate::clock::wall_us;
use crate::store::Status;

/// The table. At a terminal that is so wide it has a head and is cut to fit; elsewhere
/// each line tells by itself what its cells mean.
pub fn list_text(all: &[Status], columns: Option<usize>) -> String {
    let head = columns.filter(|_| !all.is_empty()).map(|_| ["NAME", "HELD", "LEFT", "WAITING", "HOLDER"].map(String::from));
    let rows: Vec<[String; 5]> = head.into_iter().chain(all.iter().map(|status| row(status, columns.is_none()))).collect();
    let widest = |at: usize| rows.iter().map(|row| row[at].chars().map(width).sum::<usize>()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(widest);
    rows.iter().fold(String::new(), |mut out, row| {
        let mut line = String::new();
        for (cell, widest) in row.iter().zip(widths) {
            let used: usize = cell.chars().map(width).sum();
            let _ = write!(line, "{cell}{:1$}  ", "", widest - used);
        }
        line.push_str(&row[4]);
        line.truncate(line.trim_end().len());
        out.push_str(&columns.map_or(line.clone(), |columns| cut(&line, columns)));
        out.push('\n');
        out
    })
}

fn row(status: &Status, in_words: bool) -> [String; 5] {
    let first = status.holders.first();
    let since = first.and_then(|holding| holding.acquired_at_us);
    let age = since.map_or("-".into(), |at| about(Duration::from_micros(wall_us().saturating_sub(at))));
    let left = first.map_or("-".into(), |holding| about(holding.expires_in));
    let holder = first.map_or("free".into(), |holding| {
        let broken = holding.broken_by.as_ref().map_or(String::new(), |by| format!(", broken by {} and ending", who(by)));
        let others = status.holders.len() - 1;
        let others = if others > 0 { format!(" and {others} more") } else { String::new() };
        format!("{}{broken}{others}", holder(holding))
    });
    let (name, waiting) = (printable(status.name.as_str()), status.waiters.len());
    if in_words && first.is_some() {
        [name, format!("held {age}"), format!("left {left}"), format!("{waiting} waiting"), holder]
    } else if in_words {
        [name, "free".into(), String::new(), format!("{waiting} waiting"), String::new()]
    } else {
        [name, age, left, waiting.to_string(), holder]
    }
}

/// How wide a character is at most: beyond ASCII it may take two columns.
fn width(c: char) -> usize {
    if c.is_ascii() { 1 } else { 2 }
}

/// So much of a line as does not wrap.
pub fn cut(line: &str, columns: usize) -> String {
    let mut used = 0;
    line.chars()
        .take_while(|c| {
            used += width(*c);
            used < columns
        })
        .collect()
}
