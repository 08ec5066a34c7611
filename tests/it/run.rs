//! `dlock run`: the command's own status, its environment, signals, waiting and loss.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::{Fixture, lives, signal, text, until};

#[test]
fn the_commands_status_is_dlocks_own() {
    let at = Fixture::file();
    for code in [0, 1, 2, 64, 75, 79, 127, 255] {
        let output = at.run(&["run", "-r", "x", "--", "sh", "-c", &format!("echo out; exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
        assert_eq!((text(&output.stdout).as_str(), output.stderr.len()), ("out\n", 0));
    }
    assert!(!at.held("x"));
}

#[test]
fn dlock_dies_of_the_signal_that_its_command_died_of() {
    let at = Fixture::file();
    for number in [1, 2, 6, 9, 13, 15] {
        let output = at.run(&["run", "-r", "x", "--", "sh", "-c", &format!("kill -{number} $$")]);
        assert_eq!(output.status.signal(), Some(number), "{output:?}");
        assert!(!at.held("x"));
    }
}

#[test]
fn the_command_gets_resource_token_and_a_rising_fence() {
    let at = Fixture::file();
    let fence = || -> u64 {
        let output = at.run(&[
            "run",
            "-r",
            "x y",
            "--",
            "sh",
            "-c",
            "echo $DLOCK_FENCING_TOKEN; test \"$DLOCK_RESOURCE\" = 'x y' && test ${#DLOCK_TOKEN} = 36",
        ]);
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).trim().parse().unwrap()
    };
    let first = fence();
    assert!(fence() > first);
}

#[test]
fn busy_is_75_names_the_holder_and_starts_nothing() {
    let at = Fixture::file();
    let mut holder = at.start(&["run", "-r", "x", "--label", "night shift", "--", "sleep", "60"]);
    until("held", || at.held("x"));
    let mark = at.path("mark");
    let output = at.run(&["run", "-r", "x", "--", "touch", mark.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(75));
    let line = text(&output.stderr);
    assert!(line.starts_with("dlock: busy: 'x'") && line.lines().count() == 1, "{line}");
    assert!(line.contains(&format!("pid {}", holder.id())) && line.contains("night shift"), "{line}");
    let quiet = at.run(&["run", "-q", "-r", "x", "--", "touch", mark.to_str().unwrap()]);
    assert!(quiet.stderr.is_empty() && quiet.stdout.is_empty());
    assert_eq!(at.code(&["run", "-r", "x", "-E", "0", "--", "touch", mark.to_str().unwrap()]), 0);
    let waited = Instant::now();
    assert_eq!(at.code(&["run", "-r", "x", "-w", "1s", "--", "touch", mark.to_str().unwrap()]), 75);
    assert!(waited.elapsed() >= Duration::from_secs(1));
    assert!(!mark.exists());
    signal(&holder, libc::SIGTERM);
    assert_eq!(holder.wait().unwrap().signal(), Some(libc::SIGTERM));
    assert!(!at.held("x"));
}

#[test]
fn what_can_not_run_is_found_out_before_the_lock_is_asked_for() {
    let at = Fixture::file();
    assert_eq!(at.code(&["run", "-r", "x", "--", "no-such-tool"]), 127);
    assert_eq!(at.code(&["run", "-r", "x", "--", "/etc/passwd"]), 126);
    assert!(text(&at.run(&["run", "-r", "x", "--", "cd", "/srv"]).stderr).contains("built-in"));
    assert!(!at.path("store/locks").exists());
}

#[test]
fn arguments_and_stdin_pass_untouched() {
    let at = Fixture::file();
    let output = at.run(&["run", "-r", "x", "--", "printf", "<%s>", "a b", "", "*", "$HOME", "--ttl", "--", "-h"]);
    assert_eq!(text(&output.stdout), "<a b><><*><$HOME><--ttl><--><-h>");
    let output = at.run(&["run", "-r", "x", "sh", "-c", "echo $0 -v $1", "zero", "one"]);
    assert_eq!(text(&output.stdout), "zero -v one\n");
    let output = at.run(&["run", "-r", "x", "-c", "echo hi; echo there"]);
    assert_eq!(text(&output.stdout), "hi\nthere\n");
}

#[test]
fn none_of_dlocks_descriptors_reach_the_command() {
    let at = Fixture::file();
    let seen = |output: std::process::Output| text(&output.stdout);
    let line = "ls /proc/self/fd";
    let bare = std::process::Command::new("sh").args(["-c", line]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(seen(at.run(&["run", "-r", "x", "--", "sh", "-c", line])), seen(bare), "what the caller opened, and no more");
}

#[test]
fn a_run_longer_than_its_ttl_keeps_the_lock() {
    let at = Fixture::file();
    let mut holder = at.start(&["run", "-r", "x", "-t", "1s", "--", "sleep", "3"]);
    until("held", || at.held("x"));
    for _ in 0..10 {
        assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 75);
        sleep(Duration::from_millis(200));
    }
    assert_eq!(holder.wait().unwrap().code(), Some(0));
    assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 0);
}

#[test]
fn kill_of_dlock_ends_its_command_and_frees_the_lock_within_the_ttl() {
    let at = Fixture::file();
    let pid = at.path("pid");
    let line = format!("echo $$ > {}; exec sleep 60", pid.display());
    let mut holder = at.start(&["run", "-r", "x", "-t", "2s", "--", "sh", "-c", &line]);
    until("the command runs", || fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')));
    signal(&holder, libc::SIGKILL);
    holder.wait().unwrap();
    let pid = fs::read_to_string(&pid).unwrap();
    until("the command is gone", || !lives(&pid));
    assert_eq!(at.code(&["run", "-r", "x", "-w", "5s", "--", "true"]), 0);
}

#[test]
fn a_told_waiter_leaves_nothing_behind() {
    let at = Fixture::file();
    let mut holder = at.start(&["run", "-r", "x", "--", "sleep", "60"]);
    until("held", || at.held("x"));
    let mut waiter = at.start(&["run", "-r", "x", "-w", "forever", "--", "true"]);
    until("in line", || at.status("x")["waiters"].as_array().unwrap().len() == 1);
    let told = Instant::now();
    signal(&waiter, libc::SIGTERM);
    assert_eq!(waiter.wait().unwrap().signal(), Some(libc::SIGTERM));
    assert!(told.elapsed() < Duration::from_secs(2));
    assert!(at.status("x")["waiters"].as_array().unwrap().is_empty());
    signal(&holder, libc::SIGTERM);
    holder.wait().unwrap();
    assert_eq!(fs::read_dir(at.path("store/line")).unwrap().count(), 0);
}

#[test]
fn a_forwarded_signal_lets_the_command_decide() {
    let at = Fixture::file();
    let ready = at.path("ready");
    let line = format!("trap 'exit 3' TERM; touch {}; while :; do sleep 0.05; done", ready.display());
    let mut holder = at.start(&["run", "-r", "x", "--", "sh", "-c", &line]);
    until("ready", || ready.exists());
    signal(&holder, libc::SIGTERM);
    assert_eq!(holder.wait().unwrap().code(), Some(3));
    assert!(!at.held("x"));
}

#[test]
fn max_runtime_stops_the_whole_tree_with_124() {
    let at = Fixture::file();
    let pids = at.path("pids");
    let line = format!(
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ >> {0}; while :; do sleep 1; done' & echo $$ >> {0}; while :; do sleep 1; done",
        pids.display()
    );
    let output = at.run(&["run", "-r", "x", "--max-runtime", "1s", "--kill-after", "500ms", "--", "sh", "-c", &line]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    let pids = fs::read_to_string(&pids).unwrap();
    assert_eq!(pids.lines().count(), 2);
    assert!(pids.lines().all(|pid| !lives(pid)));
    assert!(!at.held("x"));
}

#[test]
fn max_runtime_ends_also_a_command_that_ignores_a_term_passed_on() {
    let at = Fixture::file();
    let ready = at.path("ready");
    let line = format!("trap '' TERM; touch {}; while :; do sleep 0.05; done", ready.display());
    let holder = at.start(&["run", "-r", "x", "--max-runtime", "2s", "--kill-after", "4s", "--", "sh", "-c", &line]);
    until("ready", || ready.exists());
    signal(&holder, libc::SIGTERM);
    // The grace that began with that TERM ends after the runtime: it is the runtime that is said.
    let output = holder.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert!(text(&output.stderr).contains("--max-runtime"), "{output:?}");
    assert!(!at.held("x"));
}

#[test]
fn a_daemon_left_on_purpose_lives_on_and_the_lock_is_free() {
    let at = Fixture::file();
    let pid = at.path("pid");
    let line = format!("setsid sleep 20 >/dev/null 2>&1 & echo $! > {}", pid.display());
    assert_eq!(at.code(&["run", "-r", "x", "--", "sh", "-c", &line]), 0);
    assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 0);
    let pid = fs::read_to_string(&pid).unwrap();
    assert!(lives(&pid));
    std::process::Command::new("kill").arg(pid.trim()).status().unwrap();
}

#[test]
fn the_same_lock_inside_itself_is_busy_at_once() {
    let at = Fixture::file();
    let began = Instant::now();
    let inner = format!("{} run -r x -w 20s -- true", env!("CARGO_BIN_EXE_dlock"));
    let output = at.run(&["run", "-r", "x", "--", "sh", "-c", &inner]);
    assert_eq!(output.status.code(), Some(75));
    assert!(text(&output.stderr).contains("own parent"), "{output:?}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn contenders_lose_no_update_and_leave_no_record_of_themselves() {
    let at = Fixture::file();
    let counter = at.path("n");
    fs::write(&counter, "0\n").unwrap();
    let line = format!("v=$(cat {0}); sleep 0.005; echo $((v+1)) > {0}", counter.display());
    let mut children = Vec::new();
    for _ in 0..40 {
        children.push(at.dlock(&["run", "-q", "-r", "c", "-w", "60s", "--", "sh", "-c", &line]).stderr(Stdio::null()).spawn().unwrap());
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(fs::read_to_string(&counter).unwrap().trim(), "40");
    assert_eq!(fs::read_dir(at.path("store/line")).unwrap().count(), 0);
    assert_eq!(text(&at.run(&["list"]).stdout), "");
}

#[test]
fn a_full_stderr_is_no_panic() {
    let at = Fixture::file();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = at.dlock(&["run", "-v", "-r", "x", "--", "sh", "-c", "exit 3"]).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(3));
}
