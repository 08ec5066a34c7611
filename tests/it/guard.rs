//! dlock itself is killed or stopped: nothing of its command is alive when somebody else gets the lock.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::{Fixture, kill, lives, marked, signal, supervisor, text, until};
use crate::redis::{Site, on_each_store};

on_each_store!(
    a_kill_of_the_guard_ends_the_whole_tree_and_releases,
    a_kill_of_the_guard_is_seen_whatever_the_caller_ignores,
    a_kill_of_the_supervisor_ends_the_whole_tree,
    a_kill_of_the_callers_group_ends_the_whole_tree_and_releases,
    a_killed_waiter_leaves_the_line,
    a_stop_of_the_guard_alone_changes_nothing,
    a_hundred_kills_at_random_moments_leave_nothing_alive_for_the_next_holder,
    four_hundred_stops_at_random_moments_leave_no_lock_and_no_command,
);

/// A command with a child that has left its group and session, whose parent has died, and that ignores
/// what can be ignored. Both write their pids.
const STUBBORN: &str = "trap '' TERM HUP INT; (setsid sh -c 'trap \"\" TERM HUP INT; echo $$ >> \"$PIDS\"; \
    while :; do sleep 0.2; done' &) ; echo $$ >> \"$PIDS\"; while :; do sleep 0.2; done";

fn start(at: &Fixture, ttl: &str, mark: &str) -> Child {
    let mut run = at.dlock(&["run", "-r", "x", "-t", ttl, "-c", STUBBORN]);
    run.env("PIDS", at.path("pids")).env("MARK", mark).stdout(Stdio::null()).stderr(Stdio::piped());
    run.process_group(0).spawn().unwrap()
}

fn pids(path: &Path) -> Vec<String> {
    until("the command and its child run", || fs::read_to_string(path).is_ok_and(|text| text.matches('\n').count() >= 2));
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

fn a_kill_of_the_guard_ends_the_whole_tree_and_releases(at: &Site) {
    let mut child = start(at, "30s", "m");
    let tree = pids(&at.path("pids"));
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    assert_eq!(at.code(&["run", "-r", "x", "-w", "10s", "--", "true"]), 0, "long before its lease would be over");
    assert!(tree.iter().all(|pid| !lives(pid)), "{tree:?}");
}

/// The kernel tells of that death by a signal; with this lease no heartbeat would see it for minutes.
fn a_kill_of_the_guard_is_seen_whatever_the_caller_ignores(at: &Site) {
    let line = format!(
        "trap '' HUP INT QUIT USR1 USR2 TERM CHLD CONT URG WINCH ALRM; exec {} run -r x -t 20m -c \"$1\"",
        env!("CARGO_BIN_EXE_dlock")
    );
    let mut caller = std::process::Command::new("sh");
    caller.args(["-c", &line, "sh", STUBBORN]).env("PIDS", at.path("pids")).env("DLOCK_STORE", &at.store);
    let mut child = caller.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().unwrap();
    let tree = pids(&at.path("pids"));
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    assert_eq!(at.code(&["run", "-r", "x", "-w", "15s", "--", "true"]), 0);
    assert!(tree.iter().all(|pid| !lives(pid)), "{tree:?}");
}

fn a_kill_of_the_supervisor_ends_the_whole_tree(at: &Site) {
    let child = start(at, "2s", "m");
    let tree = pids(&at.path("pids"));
    kill(&supervisor(&child), "KILL");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    assert!(text(&output.stderr).contains("was killed"), "{output:?}");
    assert!(tree.iter().all(|pid| !lives(pid)), "{tree:?}");
    assert_eq!(at.code(&["run", "-r", "x", "-w", "10s", "--", "true"]), 0);
}

/// As `timeout -k` and many CI runners do.
fn a_kill_of_the_callers_group_ends_the_whole_tree_and_releases(at: &Site) {
    let mut child = start(at, "30s", "m");
    let tree = pids(&at.path("pids"));
    kill(&format!("-{}", child.id()), "KILL");
    child.wait().unwrap();
    assert_eq!(at.code(&["run", "-r", "x", "-w", "10s", "--", "true"]), 0);
    assert!(tree.iter().all(|pid| !lives(pid)), "{tree:?}");
}

fn a_killed_waiter_leaves_the_line(at: &Site) {
    let mut holder = at.start(&["run", "-r", "x", "-t", "20s", "--", "sleep", "60"]);
    until("held", || at.held("x"));
    let waiters = || at.status("x")["waiters"].as_array().unwrap().len();
    let mut waiter = at.start(&["run", "-r", "x", "-w", "60s", "--", "true"]);
    until("in line", || waiters() == 1);
    let hidden = supervisor(&waiter);
    signal(&waiter, libc::SIGKILL);
    waiter.wait().unwrap();
    until("its supervisor is gone", || !lives(&hidden));
    until("out of line", || waiters() == 0);
    signal(&holder, libc::SIGTERM);
    holder.wait().unwrap();
}

fn a_stop_of_the_guard_alone_changes_nothing(at: &Site) {
    let child = at.start(&["run", "-r", "x", "-t", "1s", "-c", "sleep 2.5; echo done"]);
    until("held", || at.held("x"));
    signal(&child, libc::SIGSTOP);
    let end = Instant::now() + Duration::from_millis(1800);
    while Instant::now() < end {
        assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 75);
    }
    sleep(Duration::from_secs(1));
    signal(&child, libc::SIGCONT);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "done\n"), "{output:?}");
}

/// A number that differs from run to run.
fn random(below: u64) -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1 % below
}

fn a_hundred_kills_at_random_moments_leave_nothing_alive_for_the_next_holder(at: &Site) {
    for round in 0..100 {
        let mark = format!("{}-{round}", at.path("x").display());
        let mut child = start(at, "1s", &mark);
        sleep(Duration::from_micros(random(40_000)));
        // A supervisor that was killed can't release: a few of these are enough to wait for.
        if round % 20 == 19 {
            kill(&supervisor(&child), "KILL");
        } else {
            signal(&child, libc::SIGKILL);
        }
        let began = Instant::now();
        while at.code(&["acquire", "-q", "-r", "x", "-t", "1s"]) == 75 {
            assert!(began.elapsed() < Duration::from_secs(10), "round {round}: still held");
            sleep(Duration::from_millis(5));
        }
        assert_eq!(marked(&mark), Vec::<String>::new(), "round {round}");
        assert_eq!(at.code(&["break", "-r", "x", "--yes"]), 0);
        let _ = child.kill();
        child.wait().unwrap();
    }
}

fn four_hundred_stops_at_random_moments_leave_no_lock_and_no_command(at: &Site) {
    let mut held = 0;
    for round in 0..400 {
        let mark = format!("{}-{round}", at.path("y").display());
        let mut run = at.dlock(&["run", "-r", "x", "-t", "20s", "-c", "sleep 30; true"]);
        let mut child = run.env("MARK", &mark).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        sleep(Duration::from_micros(random(12_000)));
        signal(&child, libc::SIGTERM);
        child.wait().unwrap();
        assert_eq!(marked(&mark), Vec::<String>::new(), "round {round}");
        held += u32::from(at.held("x"));
        assert_eq!(held, 0, "round {round}: still held");
    }
}

/// Where the clock ends a lease, a supervisor that stands still has its command killed by the guard.
#[test]
fn a_supervisor_that_stands_still_has_its_command_killed_before_the_lease_is_over() {
    let at = Site::redis();
    let child = start(&at, "2s", "m");
    let tree = pids(&at.path("pids"));
    let hidden = supervisor(&child);
    kill(&hidden, "STOP");
    until("somebody else gets the lock", || at.code(&["acquire", "-q", "-r", "x", "-t", "30s"]) == 0);
    assert!(tree.iter().all(|pid| !lives(pid)), "{tree:?}");
    kill(&hidden, "CONT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    assert!(text(&output.stderr).contains("stands still"), "{output:?}");
    assert!(at.held("x"), "the other's lease is untouched");
}

#[test]
fn a_kill_of_the_supervisor_while_it_waits_starts_nothing_and_leaves_the_line() {
    let at = Site::redis();
    let mut holder = at.start(&["run", "-r", "x", "-t", "20s", "--", "sleep", "60"]);
    until("held", || at.held("x"));
    let mark = at.path("mark");
    let waiter = at.start(&["run", "-r", "x", "-w", "60s", "--", "touch", mark.to_str().unwrap()]);
    until("in line", || at.status("x")["waiters"].as_array().unwrap().len() == 1);
    kill(&supervisor(&waiter), "KILL");
    let output = waiter.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(71), "{output:?}");
    assert!(text(&output.stderr).contains("nothing was started"), "{output:?}");
    assert!(at.status("x")["waiters"].as_array().unwrap().is_empty() && !mark.exists());
    signal(&holder, libc::SIGTERM);
    holder.wait().unwrap();
}
