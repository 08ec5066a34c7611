//! What can happen to the files of a store: junk, other layouts, other kinds, other users.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use crate::harness::{Fixture, signal, text, until};

fn holder(at: &Fixture, seconds: &str) -> std::process::Child {
    let child = at.start(&["run", "-r", "x", "-t", "2s", "--label", "holder", "--", "sleep", seconds]);
    until("held", || at.held("x"));
    child
}

/// A live holder is known by its kernel lock: what happens to its record lets nobody in, and it puts
/// the record back.
#[test]
fn a_record_that_is_spoilt_or_deleted_under_a_live_run_lets_nobody_in() {
    for junk in [Some("garbage"), Some(""), None] {
        let at = Fixture::file();
        let child = holder(&at, "3");
        let record = at.path("store/locks/x");
        match junk {
            Some(text) => fs::write(&record, text).unwrap(),
            None => fs::remove_file(&record).unwrap(),
        }
        assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 75, "{junk:?}");
        assert_eq!(at.code(&["acquire", "-r", "x"]), 75, "{junk:?}");
        assert_eq!(at.code(&["status", "-r", "x"]), 0, "{junk:?}");
        until("put back", || text(&at.run(&["status", "-r", "x"]).stdout).contains("holder"));
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert!(!at.held("x"));
    }
}

#[test]
fn a_record_of_another_layout_is_refused_whatever_its_shape() {
    let at = Fixture::file();
    assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 0);
    for text in [r#"{"layout":1,"name":"x","holder":[1,2]}"#, r#"{"layout":7}"#] {
        fs::write(at.path("store/locks/x"), text).unwrap();
        assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 77, "{text}");
        assert_eq!(fs::read_to_string(at.path("store/locks/x")).unwrap(), text);
    }
}

#[test]
fn a_fence_that_can_not_rise_is_no_panic() {
    let at = Fixture::file();
    assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 0);
    let record = fs::read_to_string(at.path("store/locks/x")).unwrap();
    let (before, rest) = record.split_once("\"fence\":").unwrap();
    let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    fs::write(at.path("store/locks/x"), format!("{before}\"fence\":{}{after}", u64::MAX)).unwrap();
    assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 0);
}

#[test]
fn a_pipe_in_the_place_of_a_record_is_refused_at_once() {
    let at = Fixture::file();
    assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 0);
    fs::remove_file(at.path("store/locks/x")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(at.path("store/locks/x")).status().unwrap().success());
    let began = Instant::now();
    let output = at.run(&["run", "-r", "x", "--", "true"]);
    assert!(output.status.code() == Some(77) && text(&output.stderr).contains("no regular file"), "{output:?}");
    assert!(began.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_stopped_waiter_at_the_head_of_the_line_delays_by_seconds_only() {
    let at = Fixture::file();
    let mut held = holder(&at, "60");
    let waiters: Vec<_> = (1..=2)
        .map(|place| {
            let child = at.start(&["run", "-r", "x", "-w", "60s", "--", "true"]);
            until("in line", || at.status("x")["waiters"].as_array().unwrap().len() == place);
            child
        })
        .collect();
    signal(&waiters[0], libc::SIGSTOP);
    signal(&held, libc::SIGTERM);
    held.wait().unwrap();
    let began = Instant::now();
    let mut waiters = waiters.into_iter();
    let (mut first, mut second) = (waiters.next().unwrap(), waiters.next().unwrap());
    assert!(second.wait().unwrap().success());
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    signal(&first, libc::SIGCONT);
    assert!(first.wait().unwrap().success());
}

/// Who may write the store's directory may use what anybody has made in it, whatever umask was in force.
#[test]
fn what_one_user_makes_the_others_can_use() {
    let at = Fixture::file();
    fs::set_permissions(at.path("store"), fs::Permissions::from_mode(0o1777)).unwrap();
    let line = format!("umask 077; exec {} run -r x -- true", env!("CARGO_BIN_EXE_dlock"));
    let shell = std::process::Command::new("sh").args(["-c", &line]).env("DLOCK_STORE", &at.store).status().unwrap();
    assert!(shell.success());
    for (path, mode) in [("locks", 0o777), ("locks/x", 0o666), ("alive/bytes", 0o666), ("buckets", 0o777)] {
        let found = fs::metadata(at.path("store").join(path)).unwrap().mode() & 0o777;
        assert_eq!(found, mode, "{path}: {found:o}");
    }
}

/// Needs to be root, as it is about root.
#[test]
fn root_in_a_users_directory_does_not_lock_the_user_out() {
    let at = Fixture::file();
    if fs::metadata(at.path("store")).unwrap().uid() != 0 {
        return; // nothing of root's could be made here
    }
    const NOBODY: u32 = 65534;
    fs::set_permissions(at.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(at.path("store"), fs::Permissions::from_mode(0o700)).unwrap();
    chown(at.path("store"), Some(NOBODY), Some(NOBODY)).unwrap();
    assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 0);
    // Where the binary lies may be closed to others: a copy beside the store is not.
    let copy = at.path("dlock");
    crate::harness::copy_program(env!("CARGO_BIN_EXE_dlock"), &copy);
    let mut own = std::process::Command::new(&copy);
    own.args(["run", "-r", "x", "--", "true"]).env_clear().env("DLOCK_STORE", &at.store).env("PATH", "/usr/bin:/bin");
    let output = own.uid(NOBODY).gid(NOBODY).current_dir("/").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
