//! What is refused before anything is contacted or started.

use crate::harness::{Fixture, text};

#[test]
fn bad_durations_are_usage_and_named() {
    let at = Fixture::file();
    for ttl in ["0", "0s", "-5s", "", "abc", "9999999999999h", " 5s", "367d", "500ms"] {
        let output = at.run(&["run", "-r", "x", &format!("--ttl={ttl}"), "--", "touch", at.path("mark").to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(64), "{ttl:?}: {output:?}");
        assert!(text(&output.stderr).contains(&format!("{ttl:?}")), "{ttl:?}: {output:?}");
    }
    assert!(!at.path("mark").exists());
    assert_eq!(at.code(&["run", "-r", "x", "--wait=-1s", "--", "true"]), 64);
}

#[test]
fn bad_names_are_usage() {
    let at = Fixture::file();
    for name in ["", "a\nb", "a\tb", &"x".repeat(256)] {
        assert_eq!(at.code(&["run", &format!("--resource={name}"), "--", "true"]), 64, "{name:?}");
    }
    assert_eq!(at.code(&["run", "--", "true"]), 64);
}

#[test]
fn odd_names_work_and_do_not_block_each_other() {
    let at = Fixture::file();
    let names = ["a/b", "a_b", "a b", "a%2Fb", "..", ".", "*", "{}", "日本語", "-x", "A", "a", "../../escape", &"x".repeat(255)];
    for name in names {
        assert!(at.run(&["acquire", &format!("--resource={name}")]).status.success(), "{name:?}");
    }
    let list = at.run(&["list", "--json"]);
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list.as_array().unwrap().len(), names.len());
    assert!(!at.path("escape").exists());
}

#[test]
fn unknown_options_stores_and_missing_commands_are_usage() {
    let at = Fixture::file();
    assert_eq!(at.code(&["run", "-r", "x", "--bogus", "true"]), 64);
    assert_eq!(at.code(&["run", "-r", "x", "--shared", "--slots", "2", "--", "true"]), 64);
    for slots in ["0", "-1", "1000001", "x", ""] {
        assert_eq!(at.code(&["run", "-r", "x", "--slots", slots, "--", "true"]), 64, "{slots}");
    }
    assert_eq!(at.code(&["run", "-r", "x", "--"]), 64);
    assert_eq!(at.code(&["run", "-r", "x", "-E", "600", "--", "true"]), 64);
    assert_eq!(at.code(&["run", "-r", "x", "-t", "10s", "--kill-after", "9s", "--", "true"]), 64);
    let output = at.run(&["run", "-r", "x", "--store", "bogus://u:S3CRETpw@h", "--", "true"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(!text(&output.stderr).contains("S3CRET"));
    assert_eq!(at.dlock(&["run", "-r", "x", "--", "true"]).env("DLOCK_STORE", "").status().unwrap().code(), Some(64));
}

#[test]
fn a_missing_directory_is_denied_and_not_made() {
    let at = Fixture::file();
    let missing = format!("file://{}", at.path("no/such").display());
    assert_eq!(at.code(&["run", "-r", "x", "--store", &missing, "--", "true"]), 77);
    assert!(!at.path("no").exists());
}

#[test]
fn help_shows_the_exit_codes_and_stores() {
    let output = Fixture::file().run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = text(&output.stdout);
    for word in ["file:///DIR", "79", "124", "127"] {
        assert!(help.contains(word), "{word}");
    }
}
