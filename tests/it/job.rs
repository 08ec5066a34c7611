//! The verbs inside a job, and what is printed for scripts.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::harness::{kill, signal, supervisor, text, until};
use crate::redis::{Site, on_each_store};

const DLOCK: &str = env!("CARGO_BIN_EXE_dlock");

on_each_store!(
    a_job_may_look_and_renew_and_not_end_its_own_run,
    lines_for_eval_are_enough_for_a_script,
    json_tells_the_owner_everything,
    no_release_leaves_the_lease_to_run_out,
    the_scripts_of_readme_keep_their_status,
);

fn a_job_may_look_and_renew_and_not_end_its_own_run(at: &Site) {
    let line = format!(
        "{DLOCK} status >&2 && {DLOCK} refresh -t 1s || exit 1
        {DLOCK} release; test $? = 64 || exit 2
        {DLOCK} break --yes; test $? = 64 || exit 3
        {DLOCK} release --token nonsense; test $? = 80 || exit 4
        {DLOCK} status >&2"
    );
    let output = at.run(&["run", "-r", "x", "--", "sh", "-c", &line]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert_eq!(text(&output.stderr).matches("kept by a dlock run").count(), 2, "{output:?}");
    assert!(!at.held("x"));
    // Somebody else's run may be broken from inside a job.
    let other = at.start(&["run", "-r", "other", "--", "sleep", "60"]);
    until("held", || at.held("other"));
    assert_eq!(at.code(&["run", "-r", "x", "--", DLOCK, "break", "-r", "other", "--yes"]), 0);
    assert_eq!(other.wait_with_output().unwrap().status.code(), Some(79));
}

fn lines_for_eval_are_enough_for_a_script(at: &Site) {
    let name = "it's; a $(name)";
    let script = "eval \"$(\"$0\" acquire -r \"$1\" --format env)\" || exit 9
        test \"$DLOCK_RESOURCE\" = \"$1\" && test \"$DLOCK_FENCING_TOKEN\" -gt 0 || exit 8
        \"$0\" status >/dev/null && \"$0\" refresh && \"$0\" release || exit 7
        \"$0\" release; exit $?";
    let mut words = Command::new("sh");
    words.args(["-c", script, DLOCK, name]).env_clear().env("PATH", "/usr/bin:/bin").env("DLOCK_STORE", &at.store);
    let output = words.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(80), "{output:?}");
    assert!(!at.held(name));
    let store = text(&at.run(&["acquire", "-r", name, "--format", "env"]).stdout);
    assert!(store.contains(&format!("export DLOCK_STORE='{}'\n", at.store)), "{store}");
    assert_eq!(at.code(&["acquire", "-r", name, "--format", "xml"]), 64);
}

fn json_tells_the_owner_everything(at: &Site) {
    let output = at.run(&["acquire", "-r", "x", "-t", "10s", "--format", "json"]);
    let lease: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((lease["resource"].as_str(), lease["ttl_ms"].as_u64()), (Some("x"), Some(10_000)));
    assert!(lease["fencing_token"].is_u64() && lease["expires_at"].as_str().unwrap().ends_with('Z'), "{lease}");
    let token = lease["token"].as_str().unwrap();
    let output = at.run(&["refresh", "-r", "x", "--token", token, "-t", "20s", "--json"]);
    let renewed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((renewed["ttl_ms"].as_u64(), renewed["token"].as_str()), (Some(20_000), None));
    assert!(at.run(&["refresh", "-r", "x", "--token", token]).stdout.is_empty());
    assert_eq!(at.status("x")["holders"][0]["kept_by"], "lease");
}

fn no_release_leaves_the_lease_to_run_out(at: &Site) {
    assert_eq!(at.code(&["run", "-r", "x", "-t", "2s", "--no-release", "--", "sh", "-c", "exit 5"]), 5);
    assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 75);
    assert_eq!(at.code(&["run", "-r", "x", "-w", "10s", "-t", "2s", "--", "true"]), 0);
    // What never ran leaves nothing behind.
    assert_eq!(at.code(&["run", "-r", "x", "--no-release", "--", "/nonexistent"]), 127);
    assert!(!at.held("x"));
}

/// The script of README, with its work replaced: released at its end, its status kept, and said so
/// where the lease had run out.
fn the_scripts_of_readme_keep_their_status(at: &Site) {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let script = readme.split("```sh\n").find(|block| block.starts_with("#!/bin/sh\nDLOCK_RESOURCE=deploy")).unwrap();
    let script = script.split("```").next().unwrap();
    assert!(script.contains("./migrate && ./restart"));
    let bin = at.path("bin");
    fs::create_dir_all(&bin).unwrap();
    let _ = std::os::unix::fs::symlink(DLOCK, bin.join("dlock"));
    let run = |work: &str| {
        let mut words = Command::new("sh");
        words.args(["-c", &script.replace("./migrate && ./restart", work)]).env_clear().env("DLOCK_STORE", &at.store);
        words.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).stdin(Stdio::null()).output().unwrap()
    };
    let output = run("dlock status >/dev/null && exit 7");
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(7), ""), "{output:?}");
    assert!(!at.held("deploy"));
    let output = run("dlock refresh -t 1s; sleep 1.3; exit 7");
    assert_eq!(output.status.code(), Some(7));
    assert!(text(&output.stderr).contains("the lease had run out"), "{output:?}");
    let held = at.run(&["acquire", "-r", "deploy", "-t", "2s"]);
    assert!(held.status.success());
    assert_eq!(run("exit 7").status.code(), Some(7), "it waits a minute at most");
}

/// A file store proves its holder's life by a kernel lock: a frozen one goes on.
#[test]
fn a_run_frozen_for_longer_than_its_ttl_goes_on_where_a_kernel_lock_keeps_it() {
    let at = Site::file();
    let child = at.start(&["run", "-r", "x", "-t", "1s", "--", "sh", "-c", "sleep 3; echo done"]);
    until("held", || at.held("x"));
    let hidden = supervisor(&child);
    signal(&child, libc::SIGSTOP);
    kill(&hidden, "STOP");
    sleep(Duration::from_secs(2));
    assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 75, "nobody enters while it lives");
    kill(&hidden, "CONT");
    signal(&child, libc::SIGCONT);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "done\n"), "{output:?}");
    assert!(!at.held("x"));
}

#[test]
fn a_run_whose_kernel_lock_proves_nothing_any_more_ends_lost() {
    let at = Site::file();
    let child = at.start(&["run", "-r", "x", "-t", "1s", "--", "sleep", "60"]);
    until("held", || at.held("x"));
    fs::remove_file(at.path("store/alive/bytes")).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(79));
}

#[test]
fn taking_over_from_the_dead_or_from_a_broken_record_is_said_once() {
    let at = Site::file();
    let mut child = at.start(&["run", "-r", "x", "-t", "1s", "--label", "gone", "--", "sleep", "60"]);
    until("held", || at.held("x"));
    kill(&supervisor(&child), "KILL");
    child.wait().unwrap();
    let output = at.run(&["run", "-r", "x", "-w", "10s", "--", "true"]);
    let words = text(&output.stderr);
    assert!(output.status.success() && words.contains(&format!("pid {}", child.id())) && words.contains("stopped renewing"), "{words}");
    let output = at.run(&["run", "-r", "x", "--", "true"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    fs::write(at.path("store/locks/x"), "garbage").unwrap();
    let output = at.run(&["run", "-r", "x", "--", "true"]);
    assert!(output.status.success() && text(&output.stderr).contains("store/locks/x could not be read"), "{output:?}");
}
