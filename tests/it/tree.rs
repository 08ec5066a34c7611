//! The whole tree of a command: signalled, swept and reaped, however it ends.

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::{Fixture, kill, lives, signal, text, until};
use crate::redis::{Site, on_each_store};

on_each_store!(
    a_stop_that_hits_command_and_dlock_together_still_releases,
    a_second_stop_during_the_sweep_still_releases,
    a_reader_that_stopped_reading_does_not_keep_a_lost_command_alive,
);

/// Reads what a command has written there, once it is whole.
fn written(path: &Path, lines: usize) -> Vec<String> {
    until("the command runs", || fs::read_to_string(path).is_ok_and(|text| text.matches('\n').count() >= lines));
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

fn start(at: &Fixture, options: &[&str], line: &str) -> Child {
    at.start(&[&["run", "-r", "x"], options, &["-c", line]].concat())
}

/// As `systemctl stop` does with all of a unit, and timeout(1) with its group.
fn a_stop_that_hits_command_and_dlock_together_still_releases(at: &Site) {
    for round in 0..10 {
        let pid = at.path(&format!("pid{round}"));
        let mut child = start(at, &["-t", "20s"], &format!("echo $$ > {}; exec sleep 50", pid.display()));
        let command = &written(&pid, 1)[0];
        kill(command, "TERM");
        signal(&child, libc::SIGTERM);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
        assert!(!at.held("x"), "round {round}");
    }
}

fn a_second_stop_during_the_sweep_still_releases(at: &Site) {
    let pid = at.path("pid");
    let line = format!("sh -c 'trap \"\" TERM; echo $$ > {}; while :; do sleep 0.1; done' & exec sleep 50", pid.display());
    let mut child = start(at, &["-t", "20s", "--kill-after", "700ms"], &line);
    let survivor = &written(&pid, 1)[0];
    signal(&child, libc::SIGTERM);
    sleep(Duration::from_millis(200));
    signal(&child, libc::SIGTERM);
    child.wait().unwrap();
    assert!(!lives(survivor) && !at.held("x"));
}

fn a_reader_that_stopped_reading_does_not_keep_a_lost_command_alive(at: &Site) {
    let pid = at.path("pid");
    let (reader, mut writer) = std::io::pipe().unwrap();
    let full = writer.try_clone().unwrap();
    std::thread::spawn(move || writer.write_all(&[b'x'; 1 << 20])); // blocks when the pipe is full
    sleep(Duration::from_millis(200));
    let line = format!("echo $$ > {}; exec sleep 50", pid.display());
    let mut run = at.dlock(&["run", "-v", "-r", "x", "-t", "2s", "-c", &line]);
    let mut child = run.stderr(OwnedFd::from(full)).stdout(Stdio::null()).spawn().unwrap();
    drop(run);
    let command = &written(&pid, 1)[0];
    let began = Instant::now();
    assert_eq!(at.code(&["break", "-r", "x", "--yes"]), 0);
    until("the command is gone", || !lives(command));
    assert_eq!(child.wait().unwrap().code(), Some(79));
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    assert!(!at.held("x"));
    drop(reader);
}

/// Known to be lost: two seconds at most, whatever the grace.
#[test]
fn a_loss_during_the_sweep_shortens_the_grace() {
    let at = Fixture::file();
    let pid = at.path("pid");
    let line = format!("sh -c 'trap \"\" TERM; echo $$ > {}; while :; do sleep 0.1; done' & exec sleep 50", pid.display());
    let mut child = start(&at, &["-t", "30s", "--kill-after", "9s"], &line);
    let survivor = &written(&pid, 1)[0];
    sleep(Duration::from_secs(9)); // the first heartbeat comes at 10 s
    signal(&child, libc::SIGTERM);
    assert_eq!(at.code(&["break", "-r", "x", "--yes"]), 0);
    let broken = Instant::now();
    child.wait().unwrap();
    assert!(!lives(survivor));
    assert!(broken.elapsed() < Duration::from_secs(6), "{:?}", broken.elapsed());
}

#[test]
fn whatever_signal_ends_the_command_its_helpers_end_with_it() {
    for number in [libc::SIGUSR1, libc::SIGALRM, libc::SIGHUP] {
        let at = Fixture::file();
        let pid = at.path("pid");
        let mut child = start(&at, &[], &format!("sleep 50 & echo $! > {}; wait", pid.display()));
        let helper = &written(&pid, 1)[0];
        signal(&child, number);
        assert_eq!(child.wait().unwrap().signal(), Some(number));
        assert!(!lives(helper) && !at.held("x"), "{number}");
    }
}

#[test]
fn a_helper_has_the_whole_grace_to_clean_up() {
    let at = Fixture::file();
    let mark = at.path("mark");
    let line = format!("sh -c 'trap \"sleep 0.7; touch {}; exit\" TERM; while :; do sleep 0.05; done' & wait", mark.display());
    let output = at.run(&["run", "-r", "x", "--max-runtime", "500ms", "--kill-after", "5s", "-c", &line]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert!(mark.exists());
}

#[test]
fn orphans_that_end_are_reaped_while_the_command_runs() {
    let at = Fixture::file();
    let line = "for i in $(seq 60); do sh -c 'true & exec true'; done; sleep 0.3; grep -c . /proc/$PPID/task/$PPID/children; \
        for p in $(cat /proc/$PPID/task/$PPID/children); do cut -d' ' -f3 /proc/$p/stat; done | grep -c Z; true";
    let output = at.run(&["run", "-r", "x", "-c", line]);
    let zombies: u32 = text(&output.stdout).lines().last().unwrap().parse().unwrap();
    assert!(output.status.success() && zombies < 5, "{output:?}");
}

/// What the caller ignored or closed is the command's as well.
#[test]
fn dispositions_and_closed_streams_reach_the_command() {
    let at = Fixture::file();
    let dlock = env!("CARGO_BIN_EXE_dlock");
    let by_shell = |line: &str| {
        let mut words = Command::new("sh");
        words.args(["-c", line]).env_clear().env("PATH", "/usr/bin:/bin").env("DLOCK_STORE", &at.store);
        words.output().unwrap()
    };
    let show = "grep SigIgn /proc/self/status; ls /proc/self/fd";
    for change in ["", "trap '' CHLD PIPE; ", "exec <&-; ", "exec 0<&- 2>&-; "] {
        let bare = by_shell(&format!("{change}exec sh -c '{show}'"));
        let under = by_shell(&format!("{change}exec {dlock} run -r x -c '{show}'"));
        assert_eq!(text(&under.stdout), text(&bare.stdout), "{change}");
    }
    assert_eq!(by_shell(&format!("{dlock} acquire -r y >&-")).status.code(), Some(71));
    assert!(!at.held("y"), "a token that nobody has seen");
}

#[test]
fn what_is_left_behind_is_ignored_waited_for_or_ended_as_asked() {
    let at = Fixture::file();
    let pid = at.path("pid");
    let line = format!(
        "setsid sh -c 'echo $$ > {}; exec sleep 1.5' >/dev/null 2>&1 & until [ -s {0} ]; do sleep 0.02; done; exit 4",
        pid.display()
    );
    for (survivors, lives_on, bounds) in [("ignore", true, 0..1400), ("kill", false, 0..1400), ("wait", false, 1400..8000)] {
        let began = Instant::now();
        assert_eq!(at.code(&["run", "-r", "x", "-t", "1s", "--survivors", survivors, "-c", &line]), 4, "{survivors}");
        assert!(bounds.contains(&began.elapsed().as_millis()), "{survivors}: {:?}", began.elapsed());
        let survivor = &written(&pid, 1)[0];
        assert_eq!(lives(survivor), lives_on, "{survivors}");
        assert!(!at.held("x"));
        kill(survivor, "KILL");
        fs::remove_file(&pid).unwrap();
    }
    assert_eq!(at.code(&["run", "-r", "x", "--survivors", "adopt", "--", "true"]), 64);
    // Told to stop while it waits, it ends them.
    let mut child = start(&at, &["--survivors", "wait"], &format!("setsid sleep 60 & echo $! > {}", pid.display()));
    let survivor = &written(&pid, 1)[0];
    sleep(Duration::from_millis(300));
    assert!(at.held("x") && lives(survivor));
    signal(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!lives(survivor) && !at.held("x"));
}

#[test]
fn what_systemd_says_to_the_pid_of_dlock_is_said_to_the_command() {
    let at = Fixture::file();
    let dlock = env!("CARGO_BIN_EXE_dlock");
    let line = format!("LISTEN_PID=$$ WATCHDOG_PID=1 exec {dlock} run -r x -c 'test $LISTEN_PID = $$ && test $WATCHDOG_PID = 1'");
    let mut words = Command::new("sh");
    words.args(["-c", &line]).env_clear().env("PATH", "/usr/bin:/bin").env("DLOCK_STORE", &at.store);
    assert!(words.status().unwrap().success());
}
