//! The cases of supervising a command: how its tree is ended, and what becomes of it where dlock itself
//! ends or stands still.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::harness::{Fixture, kill, lives, marked, signal, supervisor, until};
use crate::proxy::{DARK, PASS, Proxy, SLOW, moments};
use crate::redis::{Site, on_each_store};
use crate::terminal::{Log, as_nobody, ends, is_root};

on_each_store!(
    supervision_39_a_stopped_command_hears_the_stop,
    supervision_40_the_whole_group_is_ended,
    supervision_41_who_left_group_and_session_is_ended_too,
    supervision_43_forks_do_not_run_away_from_the_walk,
);

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

fn mark(at: &Fixture) -> String {
    at.path("").display().to_string()
}

/// A run whose command has written the file `up`.
fn started(at: &Fixture, options: &[&str], line: &str) -> Child {
    let mut run = at.dlock(&[&["run", "-r", "x"], options, &["-c", line]].concat());
    run.env("MARK", mark(at)).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = run.spawn().unwrap();
    until("the command runs", || at.path("up").exists());
    child
}

/// Breaks the lease: the run has ended as lost, and nothing of its command is alive.
fn broken(at: &Fixture, child: Child) {
    assert_eq!(at.code(&["break", "-r", "x", "--yes"]), 0);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    assert_eq!(marked(&mark(at)), Vec::<String>::new());
    assert!(!at.held("x"));
}

/// D = asked + 1978 ms; KILL 100 ms before it, TERM the grace before that.
#[test]
fn supervision_38_term_and_then_kill_before_the_deadline() {
    let at = Site::redis();
    let line = "trap 'date +%s.%N >> \"$HOME/term\"' TERM; date +%s.%N >> \"$HOME/ticks\"; : > \"$HOME/up\"; \
        while :; do sleep 0.02; date +%s.%N >> \"$HOME/ticks\"; done";
    let began = now();
    let child = started(&at, &["-t", "2s", "--kill-after", "500ms"], line);
    at.server().signal(libc::SIGSTOP);
    let output = child.wait_with_output().unwrap();
    let ended = now();
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    assert_eq!(marked(&mark(&at)), Vec::<String>::new());
    let (term, ticks) = (moments(&at.path("term")), moments(&at.path("ticks")));
    let (first, last) = (ticks[0], ticks[ticks.len() - 1]);
    assert_eq!(term.len(), 1);
    // The lease was asked for between `began` and the first tick.
    assert!(term[0] > began + 1.35 && term[0] < first + 1.378 + 0.4, "TERM {} s after the start", term[0] - began);
    assert!(last - term[0] > 0.3, "the grace was {} s", last - term[0]);
    assert!(last < first + 1.978, "ran {} s", last - first);
    assert!(ended < last + 3.0, "a server that does not answer held it up for {} s", ended - last);
}

fn supervision_39_a_stopped_command_hears_the_stop(at: &Site) {
    let line = "trap 'echo heard > \"$HOME/heard\"; exit 0' TERM; : > \"$HOME/up\"; kill -STOP $$; sleep 60";
    let child = started(at, &["-t", "1s"], line);
    broken(at, child);
    assert!(at.path("heard").exists(), "TERM without CONT");
}

fn supervision_40_the_whole_group_is_ended(at: &Site) {
    let line = "sh -c 'trap \"\" TERM; sh -c \"while :; do sleep 0.1; done\"; :' & : > \"$HOME/up\"; exec sleep 60";
    let child = started(at, &["-t", "1s", "--kill-after", "200ms"], line);
    until("all run", || marked(&mark(at)).len() >= 3);
    broken(at, child);
}

fn supervision_41_who_left_group_and_session_is_ended_too(at: &Site) {
    let line = "(setsid sh -c 'trap \"\" TERM HUP; (setsid sh -c \"trap \\\"\\\" TERM HUP; : > \\\"$HOME/up\\\"; \
        while :; do sleep 0.1; done\" &); while :; do sleep 0.1; done' &); (setsid setsid sleep 60 &); exec sleep 60";
    let child = started(at, &["-t", "1s", "--kill-after", "200ms"], line);
    until("all run", || marked(&mark(at)).len() >= 4);
    broken(at, child);
}

fn supervision_43_forks_do_not_run_away_from_the_walk(at: &Site) {
    // Bounded, should nobody end it.
    let line = "trap '' TERM; : > \"$HOME/up\"; for i in $(seq 3000); do (setsid sleep 9 &); sleep 0.002; done; sleep 60";
    let child = started(at, &["-t", "1s", "--kill-after", "100ms"], line);
    broken(at, child);
    sleep(Duration::from_millis(100));
    assert_eq!(marked(&mark(at)), Vec::<String>::new());
}

#[test]
fn supervision_45_a_key_that_is_somebody_elses_leaves_two_seconds_at_most() {
    let at = Site::redis();
    let child = started(&at, &["-t", "9s", "--kill-after", "2500ms"], "trap '' TERM; : > \"$HOME/up\"; while :; do sleep 0.1; done");
    at.server().ask(&["SET", "dlock:x", "another", "PX", "60000"]);
    let taken = Instant::now(); // it is noticed by the next heartbeat, at the latest a third of the TTL later
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    assert!(taken.elapsed() < Duration::from_millis(3000 + 2000 + 700), "{:?}", taken.elapsed());
    assert!(taken.elapsed() > Duration::from_millis(1500), "{:?}", taken.elapsed());
    assert_eq!(marked(&mark(&at)), Vec::<String>::new());
}

#[test]
fn supervision_47_a_late_release_leaves_the_next_holder_alone() {
    let at = Site::redis();
    let child = started(&at, &["-t", "1s", "--on-lost", "continue"], ": > \"$HOME/up\"; until [ -e \"$HOME/go\" ]; do sleep 0.02; done");
    for pid in [child.id().to_string(), supervisor(&child)] {
        kill(&pid, "STOP");
    }
    until("the next holder", || at.code(&["acquire", "-q", "-r", "x", "-t", "60s"]) == 0);
    let holder = at.status("x")["holders"][0].clone();
    fs::write(at.path("go"), "").unwrap();
    kill(&supervisor(&child), "CONT");
    signal(&child, libc::SIGCONT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    assert_eq!(at.status("x")["holders"][0]["acquired_at"], holder["acquired_at"]);
}

/// Not the command itself, and not one whose parent-death signal the kernel has cleared, as it does for
/// a set-uid program.
#[test]
fn supervision_49_a_kill_of_either_part_ends_a_set_uid_command_and_its_children() {
    for hit_guard in [true, false] {
        let at = Fixture::file();
        let sleeper = at.path("sleeper");
        crate::harness::copy_program("/bin/sleep", &sleeper);
        fs::set_permissions(&sleeper, Permissions::from_mode(if is_root() { 0o4755 } else { 0o755 })).unwrap();
        let (path, up) = (sleeper.display(), at.path("up"));
        let line = format!("setsid {path} 61 & : > {}; exec {path} 60", up.display());
        let mut run = as_nobody(&at, &["run", "-r", "x", "-t", "2s", "-c", &line]);
        let mut child = run.env("MARK", mark(&at)).stderr(Stdio::null()).spawn().unwrap();
        until("both run", || marked(&mark(&at)).len() == 2 && up.exists());
        if hit_guard {
            signal(&child, libc::SIGKILL);
        } else {
            kill(&supervisor(&child), "KILL");
        }
        ends(&mut child);
        until("both are gone", || marked(&mark(&at)).is_empty());
        assert_eq!(at.code(&["run", "-r", "x", "-w", "10s", "--", "true"]), 0);
    }
}

#[test]
fn supervision_50_awake_after_the_deadline_it_kills_first() {
    let at = Site::redis();
    let child = started(&at, &["-t", "1s"], "trap 'echo heard > \"$HOME/heard\"' TERM; : > \"$HOME/up\"; while :; do sleep 0.02; done");
    let hidden = supervisor(&child);
    signal(&child, libc::SIGSTOP);
    kill(&hidden, "STOP");
    sleep(Duration::from_millis(1500));
    assert_eq!(at.code(&["acquire", "-q", "-r", "x", "-t", "60s"]), 0);
    assert!(!marked(&mark(&at)).is_empty(), "nobody was there to kill it");
    kill(&hidden, "CONT");
    until("the command is gone", || marked(&mark(&at)).is_empty());
    signal(&child, libc::SIGCONT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    assert!(!at.path("heard").exists(), "there is no time left to ask first");
    assert!(at.held("x"), "the lease of the next holder is untouched");
}

#[test]
fn supervision_51_the_clock_goes_on_while_the_machine_sleeps() {
    let at = Site::redis();
    let mut child = started(&at, &["-t", "20s"], ": > \"$HOME/up\"; exec sleep 60");
    // Timers by CLOCK_BOOTTIME (7), for a moment and not for a span (TFD_TIMER_ABSTIME).
    let mut timers = 0;
    for pid in [child.id().to_string(), supervisor(&child)] {
        for fd in fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap() {
            let fd = fd.unwrap().path();
            let info = || fs::read_to_string(&fd).unwrap_or_default();
            if info().contains("clockid:") {
                until("the timer is armed", || info().contains("settime flags: 01"));
                assert!(info().contains("clockid: 7"), "{}", info());
                timers += 1;
            }
        }
    }
    assert!(timers >= 2);
    signal(&child, libc::SIGTERM);
    ends(&mut child);
    // A lease of the file store is over once that clock says so; it alone is moved on here.
    let at = Fixture::file();
    let moved = |way: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args([way, "--boottime", "100000", env!("CARGO_BIN_EXE_dlock"), "run", "-q", "-r", "x", "--", "true"]);
        unshare.env_clear().env("PATH", "/usr/bin:/bin").env("DLOCK_STORE", &at.store).output().unwrap()
    };
    let Some(way) = ["-T", "-UrT"].into_iter().find(|way| moved(way).status.success()) else { return };
    assert_eq!(at.code(&["acquire", "-r", "x", "-t", "600s"]), 0);
    assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 75);
    assert_eq!(moved(way).status.code(), Some(0));
}

/// An answer that came 300 ms late counts from when it was asked for.
#[test]
fn supervision_52_a_lease_counts_from_the_question() {
    let at = Site::redis();
    let proxy = Proxy::before(&at);
    proxy.set(SLOW);
    let began = now();
    let line = "trap '' TERM; : > \"$HOME/up\"; while :; do date +%s.%N >> \"$HOME/ticks\"; sleep 0.02; done";
    let child = started(&at, &["--store", &proxy.url, "-t", "2s"], line);
    proxy.set(DARK);
    let output = child.wait_with_output().unwrap();
    proxy.set(PASS);
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    let ticks = moments(&at.path("ticks"));
    assert!(ticks[0] - began > 0.25, "the answer was not late");
    assert!(ticks[ticks.len() - 1] < began + 2.03, "ran {} s", ticks[ticks.len() - 1] - began);
}

/// Signals that come while the tree is being swept after a loss change nothing of that.
#[test]
fn supervision_45_a_signal_after_a_loss_changes_nothing() {
    let at = Fixture::file();
    let log = Log::at(&at, "log");
    let program = Log::program();
    let mut run = at.dlock(&["run", "-r", "x", "-t", "1s", "--kill-after", "250ms", "--", &program]);
    let mut child = run.env("SIGNAL_LOG", log.path()).stderr(Stdio::null()).spawn().unwrap();
    log.pid();
    assert_eq!(at.code(&["break", "-r", "x", "--yes"]), 0);
    until("it is told to stop", || log.count(libc::SIGTERM) > 0);
    signal(&child, libc::SIGINT);
    let ended = ends(&mut child);
    assert_eq!((ended.code(), ended.signal()), (Some(79), None));
    assert!(!lives(&log.pid()));
}
