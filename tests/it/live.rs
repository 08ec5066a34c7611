//! `status --watch` and `list --watch`: a live view at a terminal, quiet on the store.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::thread::sleep;
use std::time::Duration;

use crate::harness::{Fixture, signal, text, until};
use crate::redis::{Redis, Site};
use crate::terminal::Terminal;

fn view(at: &Fixture, words: &[&str]) -> Terminal {
    let mut command = at.dlock(words);
    command.arg("--watch");
    Terminal::start(command)
}

fn ends_by_key(terminal: &mut Terminal) {
    terminal.types("\x03");
    assert_eq!(terminal.ends().signal(), Some(libc::SIGINT), "{}", terminal.said());
}

#[test]
fn it_follows_a_lock_on_every_store_and_a_key_ends_it() {
    for at in [Site::file(), Site::redis()] {
        let mut terminal = view(&at, &["status", "-r", "x"]);
        terminal.waits_for("x: free");
        let mut holder = at.start(&["run", "-r", "x", "--label", "the-holder", "--", "sleep", "60"]);
        terminal.waits_for("the-holder");
        signal(&holder, libc::SIGTERM);
        holder.wait().unwrap();
        let before = terminal.said().matches("x: free").count();
        until("it is free again", || terminal.said().matches("x: free").count() > before);
        ends_by_key(&mut terminal);
        // In place, and no mode of the terminal was touched.
        let said = terminal.said();
        assert!(said.contains("\x1b[2A") && !said.contains("\x1b[?"), "{said}");
        assert!(!said.contains('"'), "no token, no JSON: {said}");
    }
}

#[test]
fn a_list_counts_and_is_cut_to_the_screen() {
    let at = Fixture::file();
    for name in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(at.code(&["acquire", "-r", name, "-t", "10m"]), 0);
    }
    let mut terminal = view(&at, &["list"]);
    terminal.waits_for("6 locks");
    terminal.resize(4);
    terminal.waits_for("lines more");
    assert!(terminal.said().contains("\x1b[H\x1b[2J"), "{}", terminal.said());
    ends_by_key(&mut terminal);
}

#[test]
fn it_asks_the_store_once_a_second() {
    let at = Site::redis();
    let mut terminal = view(&at, &["status", "-r", "x"]);
    terminal.waits_for("x: free");
    let lines = at.server().monitored(|| sleep(Duration::from_secs(4)));
    assert!((2..=5).contains(&lines.len()), "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("EVALSHA")), "{lines:?}");
    ends_by_key(&mut terminal);
}

#[test]
fn a_store_that_fails_meanwhile_is_a_line_of_it_and_asking_goes_on() {
    let at = Fixture::file();
    let redis = Redis::start();
    let (url, port) = (redis.url(), redis.port());
    let mut terminal = view(&at, &["status", "-r", "x", "--store", &url]);
    terminal.waits_for("x: free");
    drop(redis);
    terminal.waits_for("store unavailable: ");
    let before = terminal.said().matches("x: free").count();
    let _again = Redis::again_at(&port);
    until("it sees the server again", || terminal.said().matches("x: free").count() > before);
    ends_by_key(&mut terminal);
}

#[test]
fn what_can_not_be_shown_live_is_refused() {
    let at = Fixture::file();
    let piped = at.run(&["status", "-r", "x", "--watch"]);
    assert_eq!(piped.status.code(), Some(64), "{piped:?}");
    assert!(text(&piped.stderr).contains("--watch is for a terminal") && piped.stdout.is_empty(), "{piped:?}");
    assert_eq!(at.code(&["status", "-r", "x", "--watch", "--json"]), 64);
    assert_eq!(at.code(&["list", "--watch", "--json"]), 64);
    // At a terminal, a store that fails at once is a failure.
    fs::write(at.path("no-directory"), "").unwrap();
    let url = format!("file://{}", at.path("no-directory").display());
    let mut terminal = view(&at, &["status", "-r", "x", "--store", &url]);
    assert_eq!(terminal.ends().code(), Some(77), "{}", terminal.said());
}

#[test]
fn a_list_is_a_table_by_name_or_by_age_on_every_store() {
    for at in [Site::file(), Site::redis()] {
        let long = "n".repeat(60);
        for name in ["zebra", &long, "alpha"] {
            assert_eq!(at.code(&["acquire", "-r", name, "-t", "10m", "--label", &"words ".repeat(20)]), 0);
            sleep(Duration::from_millis(5)); // ages that differ
        }
        let names = |words: &[&str]| -> Vec<String> {
            let listed = text(&at.run(words).stdout);
            listed.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
        };
        assert_eq!(names(&["list"]), ["alpha", &long, "zebra"]);
        assert_eq!(names(&["list", "--sort", "age"]), ["zebra", &long, "alpha"]);
        let json: serde_json::Value = serde_json::from_slice(&at.run(&["list", "--sort", "age", "--json"]).stdout).unwrap();
        assert_eq!((&json[0]["resource"], &json[2]["resource"]), (&"zebra".into(), &"alpha".into()), "{json}");
        // Columns lie below one another, and in a file nothing is cut.
        let listed = text(&at.run(&["list"]).stdout);
        let columns: Vec<_> = listed.lines().map(|line| line.find("  0 waiting  ")).collect();
        assert!(columns[0].is_some() && columns.iter().all(|column| *column == columns[0]), "{listed}");
        assert!(listed.contains(&"words ".repeat(20)) && !listed.contains("NAME"), "{listed}");
        // At a terminal it has a head and fits.
        let mut terminal = Terminal::start(at.dlock(&["list"]));
        assert_eq!(terminal.ends().code(), Some(0));
        terminal.waits_for("zebra");
        let said = terminal.said();
        assert!(said.starts_with("NAME") && said.lines().all(|line| line.trim_end().len() < 80), "{said}");
    }
    assert_eq!(Fixture::file().code(&["list", "--sort", "size"]), 64);
}
