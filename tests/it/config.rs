//! Where settings come from: options over environment over files, checked before anything is contacted.

use std::fs;

use crate::harness::{Fixture, text};

fn with(at: &Fixture, content: &str) -> String {
    let path = at.path("dlock.toml");
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_file_sets_what_options_and_environment_do_not() {
    let at = Fixture::file();
    let file = with(&at, "[defaults]\nttl = '77s'\n[resource.'db*']\nttl = '99s'\nbusy_code = 33\n");
    assert_eq!(at.code(&["--config", &file, "acquire", "-r", "db1"]), 0);
    let left = |name: &str| at.status(name)["holders"][0]["expires_in_ms"].as_u64().unwrap();
    assert!((90_000..=99_000).contains(&left("db1")));
    assert_eq!(at.code(&["acquire", "-r", "db1", "--config", &file]), 33);
    assert_eq!(at.code(&["acquire", "-r", "db1", "-E", "34", "--config", &file]), 34);
    assert!(at.dlock(&["acquire", "-r", "other"]).env("DLOCK_CONFIG", &file).output().unwrap().status.success());
    assert!((70_000..=77_000).contains(&left("other")));
    assert_eq!(at.code(&["acquire", "-r", "third", "-t", "10s", "--config", &file]), 0);
    assert!(left("third") <= 10_000);
}

#[test]
fn the_file_names_the_store_and_can_require_one() {
    let at = Fixture::file();
    let file = with(&at, &format!("[defaults]\nstore = '{}'\n", at.store));
    let bare = |words: &[&str]| {
        let mut command = at.dlock(words);
        command.env_remove("DLOCK_STORE");
        command.output().unwrap()
    };
    assert!(bare(&["acquire", "-r", "x", "--config", &file]).status.success());
    assert!(at.held("x"));
    let file = with(&at, "[defaults]\nrequire_store = true\n");
    let output = bare(&["acquire", "-r", "x", "--config", &file]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(text(&output.stderr).contains("requires one"));
}

#[test]
fn a_mistake_in_a_file_is_usage_and_names_file_and_key() {
    let at = Fixture::file();
    for (content, word) in [("[defaults]\ntll = '1m'\n", "tll"), ("[defaults]\nttl = 'abc'\n", "abc"), ("ttl = 3", "ttl"), ("[", "line 1")]
    {
        let file = with(&at, content);
        let output = at.run(&["acquire", "-r", "x", "--config", &file]);
        assert_eq!(output.status.code(), Some(64), "{content:?}: {output:?}");
        assert!(text(&output.stderr).contains(word), "{content:?}: {output:?}");
    }
    assert_eq!(at.code(&["acquire", "-r", "x", "--config", "/nonexistent.toml"]), 64);
    assert!(!at.held("x"));
}

#[test]
fn prefixes_are_worlds_of_their_own() {
    let at = Fixture::file();
    let acquire = |prefix: &str| at.dlock(&["acquire", "-r", "etl"]).env("DLOCK_PREFIX", prefix).output().unwrap().status.code();
    assert_eq!(acquire("staging:"), Some(0));
    assert_eq!(acquire("prod:"), Some(0));
    assert_eq!(acquire("prod:"), Some(75));
    assert_eq!(at.code(&["acquire", "-r", "etl"]), 0);
    let list = at.dlock(&["list", "--json"]).env("DLOCK_PREFIX", "prod:").output().unwrap();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&list.stdout).unwrap().as_array().unwrap().len(), 1);
}

#[test]
fn others_see_the_program_and_its_arguments_only_where_asked() {
    let at = Fixture::file();
    let file = with(&at, "[resource.open]\nrecord_command = 'full'\n");
    for name in ["open", "shut"] {
        let child = at.start(&["run", "-r", name, "--config", &file, "--", "sh", "-c", "exec 9>&1; sleep 5 # S3CRET"]);
        crate::harness::until("held", || at.held(name));
        let program = at.status(name)["holders"][0]["owner"]["program"].as_str().unwrap().to_owned();
        assert_eq!(program.contains("S3CRET"), name == "open", "{program}");
        crate::harness::signal(&child, libc::SIGTERM);
        child.wait_with_output().unwrap();
    }
}
