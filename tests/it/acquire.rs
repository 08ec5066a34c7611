//! Leases without a process, on each store: acquire, refresh, release, status, list.

use std::thread::sleep;
use std::time::Duration;

use crate::harness::text;
use crate::redis::{Site, on_each_store};

on_each_store!(
    acquire_prints_one_token_that_releases_once,
    an_expired_lease_is_not_refreshed_and_its_successor_stays,
    status_and_list_show_holders_without_their_tokens,
);

fn acquire(at: &Site, name: &str, ttl: &str) -> String {
    let output = at.run(&["acquire", "-r", name, "-t", ttl]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let line = text(&output.stdout);
    assert!(line.ends_with('\n') && line.lines().count() == 1, "{line:?}");
    line.trim().to_owned()
}

fn acquire_prints_one_token_that_releases_once(at: &Site) {
    let token = acquire(at, "r", "30s");
    assert_eq!(at.code(&["release", "-r", "r", "--token", "nonsense"]), 80);
    assert_eq!(at.code(&["release", "-r", "r", "--token", ""]), 64);
    assert_eq!(at.code(&["status", "-r", "r"]), 0);
    assert_eq!(at.code(&["status", "-r", "r", "--token", &token]), 0);
    assert_eq!(at.code(&["status", "-r", "r", "--token", "other"]), 80);
    assert_eq!(at.code(&["acquire", "-r", "r"]), 75);
    assert_eq!(at.code(&["release", "-r", "r", "--token", &token]), 0);
    assert_eq!(at.code(&["release", "-r", "r", "--token", &token]), 80);
    assert_eq!(at.code(&["status", "-r", "r"]), 1);
}

fn an_expired_lease_is_not_refreshed_and_its_successor_stays(at: &Site) {
    let old = acquire(at, "r", "2s");
    assert_eq!(at.code(&["refresh", "-r", "r", "--token", &old, "-t", "1s"]), 0);
    sleep(Duration::from_millis(1300));
    assert_eq!(at.code(&["refresh", "-r", "r", "--token", &old]), 80);
    let new = acquire(at, "r", "30s");
    assert_eq!(at.code(&["release", "-r", "r", "--token", &old]), 80);
    assert_eq!(at.code(&["status", "-r", "r", "--token", &new]), 0);
}

fn status_and_list_show_holders_without_their_tokens(at: &Site) {
    let tokens = [acquire(at, "team/a", "30s"), acquire(at, "team/b", "30s")];
    assert_eq!(at.status("team/a")["held"], true);
    let json: serde_json::Value = serde_json::from_slice(&at.run(&["list", "--json"]).stdout).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 2);
    for words in [&["list"][..], &["list", "--json"], &["status", "-r", "team/a"], &["status", "-r", "team/a", "--json"]] {
        let shown = text(&at.run(words).stdout);
        assert!(shown.contains("team/a"), "{words:?}: {shown}");
        assert!(tokens.iter().all(|token| !shown.contains(token.as_str())), "{words:?}: {shown}");
        assert!(words[0] != "list" || shown.contains("team/b"), "{shown}");
    }
    assert!(!text(&at.run(&["list", "team/b"]).stdout).contains("team/a"));
}
