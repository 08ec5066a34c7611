//! The house rules that a reader can't see at once: who may import whom, how long things get, and
//! which words stay out.

use std::fs;
use std::path::{Path, PathBuf};

/// A module may name only those above it; `lib.rs` carries the same order as a map.
const ORDER: &[&str] = &[
    "sys",
    "clock",
    "lock",
    "pace",
    "watch",
    "outcome",
    "args",
    "store",
    "tree",
    "child",
    "signals",
    "wait",
    "config",
    "keeper",
    "guard",
    "event",
    "session",
    "supervise",
    "report",
    "verbs",
];

/// Edges that know nothing of one another, and the door that knows only these.
const EDGES: &[&str] = &["store", "child", "signals"];
const DOOR: &[&str] = &["args", "outcome", "report", "verbs"];

fn sources(dir: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut dirs = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty());
    found
}

/// The part of a file that is not its tests.
fn code(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap()
}

fn module(path: &Path) -> String {
    let below = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    below.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

/// The modules of this crate that a text names: `crate::x`, also inside `use crate::{x, y}`.
fn named(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        let group = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
        for item in group.unwrap_or(rest).split(',') {
            let word: String = item.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            found.push(word);
            if group.is_none() {
                break;
            }
        }
    }
    found.retain(|word| !word.is_empty());
    found
}

#[test]
fn imports_point_one_way() {
    let place = |name: &str| ORDER.iter().position(|module| *module == name);
    for (path, text) in sources("src") {
        let own = module(&path);
        for other in named(code(&text)) {
            let allowed = match own.as_str() {
                "main" => false,
                "lib" => DOOR.contains(&other.as_str()),
                _ => {
                    let both_edges = EDGES.contains(&own.as_str()) && EDGES.contains(&other.as_str()) && own != other;
                    place(&own).expect(&own) >= place(&other).expect(&other) && !both_edges
                }
            };
            assert!(allowed, "{}: {own} may not name {other}", path.display());
        }
    }
}

#[test]
fn each_crate_has_its_one_room() {
    for (word, rooms) in [
        ("clap", &["args.rs", "lib.rs"][..]),
        ("redis::", &["redis.rs", "store.rs", "reply.rs", "words.rs"]),
        ("toml::", &["files.rs"]),
        ("unsafe", &["sys.rs"]),
        ("stdout()", &["report.rs"]),
        ("stderr()", &["report.rs"]),
        ("std::process::exit", &[]),
    ] {
        for (path, text) in sources("src") {
            let file = path.file_name().unwrap().to_str().unwrap();
            let used = code(&text).lines().any(|line| !line.trim_start().starts_with("//") && line.contains(word));
            assert!(!used || rooms.contains(&file), "{}: {word} belongs in {rooms:?}", path.display());
        }
    }
}

#[test]
fn files_open_with_what_they_are_for_and_stay_readable() {
    for (path, text) in sources("src").into_iter().chain(sources("tests")) {
        let shown = path.display();
        assert!(text.starts_with("//! "), "{shown}: opens with no paragraph");
        // sys.rs holds every `unsafe` there is, and so is allowed its length.
        let limit = if path.ends_with("sys.rs") { 800 } else { 450 };
        assert!(text.lines().count() <= limit, "{shown}: more than {limit} lines: is there a second idea in it?");
        let mut began = 0;
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("fn ") || line.contains(" fn ") {
                began = number;
            }
            if line == "}" || line == "    }" {
                assert!(number - began <= 110, "{shown}:{}: a function of {} lines", began + 1, number - began);
                began = number;
            }
        }
    }
}

#[test]
fn no_word_is_left_over() {
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("db", "g!"),
        concat!("unimple", "mented!"),
        concat!("#[ign", "ore"),
    ];
    for (path, text) in sources("src").into_iter().chain(sources("tests")) {
        for word in words {
            assert!(!text.contains(word), "{}: {word}", path.display());
        }
    }
}
