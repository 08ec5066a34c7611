//! acquire, refresh, release, status, list and break: leases without a process.

use std::thread::sleep;
use std::time::Duration;

use crate::harness::{Fixture, lives, text, until};

fn acquire(at: &Fixture, name: &str, ttl: &str) -> String {
    let output = at.run(&["acquire", "-r", name, "-t", ttl]);
    assert!(output.status.success(), "{output:?}");
    let line = text(&output.stdout);
    assert_eq!(line.lines().count(), 1);
    line.trim().to_owned()
}

#[test]
fn a_lease_is_released_once_and_by_its_token_only() {
    let at = Fixture::file();
    let token = acquire(&at, "r", "30s");
    assert_eq!(at.code(&["release", "-r", "r", "--token", "nonsense"]), 80);
    assert_eq!(at.code(&["release", "-r", "r", "--token", ""]), 64);
    assert_eq!(at.code(&["release", "-r", "r"]), 64);
    assert!(at.held("r"));
    assert_eq!(at.code(&["status", "-r", "r", "--token", &token]), 0);
    assert_eq!(at.code(&["status", "-r", "r", "--token", "other"]), 80);
    let busy = at.run(&["acquire", "-r", "r"]);
    assert_eq!(busy.status.code(), Some(75));
    assert!(busy.stdout.is_empty());
    assert_eq!(at.code(&["release", "-r", "r", "--token", &token]), 0);
    assert_eq!(at.code(&["release", "-r", "r", "--token", &token]), 80);
    assert_eq!(at.code(&["status", "-r", "r"]), 1);
}

#[test]
fn an_expired_lease_can_not_be_refreshed_and_its_successor_is_left_alone() {
    let at = Fixture::file();
    let old = acquire(&at, "r", "1s");
    assert_eq!(at.code(&["refresh", "-r", "r", "--token", &old, "-t", "1s"]), 0);
    sleep(Duration::from_millis(1200));
    assert_eq!(at.code(&["refresh", "-r", "r", "--token", &old]), 80);
    let new = acquire(&at, "r", "30s");
    assert_eq!(at.code(&["release", "-r", "r", "--token", &old]), 80);
    assert_eq!(at.code(&["refresh", "-r", "r", "--token", &new, "-t", "30s"]), 0);
}

#[test]
fn status_and_list_tell_who_holds_it_and_never_the_token() {
    let at = Fixture::file();
    let token = acquire(&at, "team/prod", "30s");
    acquire(&at, "other", "30s");
    let json = at.status("team/prod");
    assert_eq!(json["held"], true);
    assert!(json["holders"][0]["owner"]["pid"].is_u64());
    assert!(json["holders"][0]["acquired_at"].as_str().unwrap().ends_with('Z'));
    for words in [vec!["status", "-r", "team/prod"], vec!["status", "-r", "team/prod", "--json"], vec!["list"], vec!["list", "--json"]] {
        let shown = text(&at.run(&words).stdout);
        assert!(shown.contains("team/prod") && !shown.contains(&token), "{shown}");
    }
    assert!(!text(&at.run(&["list", "oth"]).stdout).contains("team/prod"));
}

#[test]
fn a_broken_run_is_told_ends_its_command_and_exits_79() {
    let at = Fixture::file();
    let pid = at.path("pid");
    let line = format!("echo $$ > {}; exec sleep 60", pid.display());
    let child = at.start(&["run", "-r", "r", "-t", "2s", "--", "sh", "-c", &line]);
    until("the command runs", || std::fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')));
    assert_eq!(at.code(&["break", "-r", "r"]), 64, "nobody to ask, and no --yes");
    assert!(at.run(&["break", "-r", "r", "--yes"]).status.success());
    assert_eq!(at.code(&["run", "-r", "r", "--", "true"]), 75, "held until its tree is empty");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(79));
    assert!(text(&output.stderr).contains("broken by"), "{output:?}");
    assert!(!lives(&std::fs::read_to_string(&pid).unwrap()));
    assert!(!at.held("r"));
    acquire(&at, "r", "30s");
    assert!(at.run(&["break", "-r", "r", "--yes"]).status.success());
    assert!(!at.held("r"), "a lease without a process is free at once");
    assert!(at.run(&["break", "-r", "r", "--yes"]).status.success());
}

#[test]
fn a_broken_record_does_not_block() {
    let at = Fixture::file();
    assert_eq!(at.code(&["run", "-r", "a", "--", "true"]), 0);
    for junk in ["", "{", "garbage"] {
        std::fs::write(at.path("store/locks/a"), junk).unwrap();
        assert_eq!(at.code(&["run", "-r", "a", "--", "true"]), 0, "{junk:?}");
    }
}
