//! The cases of supervising a command at a terminal: job control, keys, hang-up.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::{Fixture, kill, lives, until};
use crate::redis::Site;
use crate::terminal::{Log, Terminal, as_first, bash, first_process};

/// What the kernel writes into siginfo for a key at the terminal.
const SI_KERNEL: i32 = 0x80;

fn bash_at(at: &Fixture, script: &str) -> Terminal {
    Terminal::start(bash(at, script))
}

/// dlock on a terminal with a command that logs its signals.
fn logged(at: &Fixture, log: &Log) -> Terminal {
    let program = Log::program();
    let mut command = at.dlock(&["run", "-r", "x", "--", &program]);
    command.env("SIGNAL_LOG", log.path());
    Terminal::start(command)
}

/// Long enough that a second delivery would have come.
fn settle() {
    sleep(Duration::from_millis(300));
}

#[test]
fn supervision_03_one_key_stops_a_loop_of_the_shell() {
    let at = Fixture::file();
    let mut terminal =
        bash_at(&at, "for i in 1 2 3; do \"$D\" run -r x -- sh -c 'echo started; exec sleep 20'; echo round=$i; done; echo after");
    terminal.waits_for("started");
    terminal.types("\x03");
    assert_eq!(terminal.ends().signal(), Some(libc::SIGINT), "{}", terminal.said());
    assert!(!terminal.said().contains("round=") && !terminal.said().contains("after"), "{}", terminal.said());
    until("the lock is free", || !at.held("x"));
}

#[test]
fn supervision_15_one_key_is_one_signal() {
    for (key, number) in [("\x03", libc::SIGINT), ("\x1c", libc::SIGQUIT)] {
        let at = Fixture::file();
        let log = Log::at(&at, "log");
        let mut terminal = logged(&at, &log);
        log.pid();
        terminal.types(key);
        until("the key arrives", || log.count(number) > 0);
        settle();
        assert_eq!(log.all(), [(number, SI_KERNEL)]);
        log.end();
        assert_eq!(terminal.ends().code(), Some(0));
    }
}

#[test]
fn supervision_16_what_a_program_sends_to_dlock_alone_is_passed_on_once() {
    for number in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1] {
        let at = Fixture::file();
        let log = Log::at(&at, "log");
        let mut terminal = logged(&at, &log);
        log.pid();
        crate::harness::signal(&terminal.leader, number);
        until("it arrives", || log.count(number) > 0);
        settle();
        assert_eq!(log.all(), [(number, libc::SI_USER)]);
        log.end();
        terminal.ends();
    }
}

#[test]
fn supervision_17_a_second_key_is_a_second_signal_and_ends_a_wait() {
    let at = Fixture::file();
    let log = Log::at(&at, "log");
    let mut terminal = logged(&at, &log);
    log.pid();
    for presses in 1..=2 {
        terminal.types("\x03");
        until("the key arrives", || log.count(libc::SIGINT) == presses);
        settle();
        assert_eq!(log.count(libc::SIGINT), presses);
    }
    // One that waits for the lock is told by the first.
    let mut waiter = Terminal::start(at.dlock(&["run", "-r", "x", "-w", "forever", "--", "true"]));
    waiter.waits_for("waiting for");
    until("in line", || !at.status("x")["waiters"].as_array().unwrap().is_empty());
    waiter.types("\x03");
    assert_eq!(waiter.ends().signal(), Some(libc::SIGINT));
    assert!(at.status("x")["waiters"].as_array().unwrap().is_empty());
    log.end();
    terminal.ends();
}

#[test]
fn supervision_18_a_signal_to_the_group_at_a_terminal_arrives() {
    let at = Fixture::file();
    let log = Log::at(&at, "log");
    let mut terminal = logged(&at, &log);
    log.pid();
    kill(&format!("-{}", terminal.leader.id()), "TERM");
    until("it arrives", || log.count(libc::SIGTERM) > 0);
    settle();
    // By the kernel and by dlock, which siginfo does not tell apart; without a terminal it is once.
    assert!(log.count(libc::SIGTERM) <= 2, "{:?}", log.all());
    log.end();
    terminal.ends();
}

#[test]
fn supervision_20_a_hang_up_ends_the_command() {
    let line = "\"$D\" run -r x -- sh -c 'echo $$ > \"$HOME/pid\"; exec sleep 60'";
    for script in [line.to_owned(), format!("{line}; true")] {
        let at = Fixture::file();
        let mut terminal = bash_at(&at, &script);
        let pid = || fs::read_to_string(at.path("pid")).unwrap_or_default();
        until("the command runs", || pid().ends_with('\n'));
        terminal.hang_up();
        until("the command is gone", || !lives(&pid()));
        terminal.ends();
        until("the lock is free", || !at.held("x"));
    }
}

#[test]
fn supervision_28_a_command_of_a_script_reads_the_terminal() {
    let at = Fixture::file();
    let mut terminal =
        bash_at(&at, "\"$D\" run -r x -- sh -c 'echo started; exec head -n1'; echo rc=$?; \"$D\" run -r x -- stty -echo; echo rc2=$?");
    terminal.waits_for("started");
    terminal.types("typed line\n");
    terminal.waits_for("rc=0");
    assert_eq!(terminal.said().matches("typed line").count(), 2, "the echo and the command's: {}", terminal.said());
    terminal.waits_for("rc2=0"); // one that changes the terminal is not stopped either
    terminal.ends();
}

#[test]
fn supervision_29_the_terminal_is_left_to_who_has_it() {
    let at = Fixture::file();
    let script = "\"$D\" run -r x -- sh -c 'sleep 0.3; echo piped' | { read line < /dev/tty; echo \"line=$line\"; cat; }; echo rc=$?";
    let mut terminal = bash_at(&at, script);
    until("held", || at.held("x"));
    terminal.types("typed\n");
    terminal.waits_for("rc=0");
    assert!(terminal.said().contains("line=typed") && terminal.said().contains("piped"), "{}", terminal.said());
    assert_eq!(terminal.ends().code(), Some(0));
}

#[test]
fn supervision_30_stopped_by_a_key_and_resumed() {
    let at = Fixture::file();
    let command = "sh -c 'echo started; read line; echo \"read=$line\"'";
    let mut terminal =
        bash_at(&at, &format!("set -m; \"$D\" run -r x -- {command}; echo stopped=$?; sleep 0.3; fg >/dev/null; echo rc=$?"));
    terminal.waits_for("started");
    terminal.types("\x1a");
    terminal.waits_for(&format!("stopped={}", 128 + libc::SIGTSTP));
    sleep(Duration::from_millis(500));
    terminal.types("hello\n");
    terminal.waits_for("read=hello");
    terminal.waits_for("rc=0");
    terminal.ends();
}

/// A stop by a key does not reach what keeps the lease, so that it is renewed meanwhile.
#[test]
fn supervision_31_stopped_by_a_key_for_longer_than_the_ttl() {
    let at = Site::redis();
    let mut terminal = bash_at(
        &at,
        "set -m; \"$D\" run -r x -t 1s -- sh -c 'echo started; sleep 1; echo d\"\"one'; echo stopped=$?; read x; fg >/dev/null; echo rc=$?",
    );
    terminal.waits_for("started");
    terminal.types("\x1a");
    terminal.waits_for("stopped=");
    let stopped = Instant::now();
    while stopped.elapsed() < Duration::from_millis(2300) {
        assert_eq!(at.code(&["acquire", "-q", "-r", "x"]), 75);
        sleep(Duration::from_millis(50));
    }
    assert!(!terminal.said().contains("done"));
    terminal.types("\n");
    terminal.waits_for("done");
    terminal.waits_for("rc=0");
    terminal.ends();
}

#[test]
fn supervision_32_a_background_job_that_reads_is_stopped_and_goes_on_in_front() {
    let at = Fixture::file();
    let script = "set -m; \"$D\" run -r x -- sh -c 'read line; echo \"read=$line\"' & \
        until jobs | grep -q Stopped; do sleep 0.05; done; echo is-stopped; fg >/dev/null; echo rc=$?";
    let mut terminal = bash_at(&at, script);
    terminal.waits_for("is-stopped");
    terminal.types("hello\n");
    terminal.waits_for("read=hello");
    terminal.waits_for("rc=0");
    terminal.ends();
}

#[test]
fn supervision_33_a_word_from_the_background_stops_nothing() {
    let at = Fixture::file();
    let script = "set -m; stty tostop; \"$D\" run -v -r x -t 1s -- sleep 60 & wait $!; echo rc=$?";
    let mut terminal = bash_at(&at, script);
    until("held", || at.held("x"));
    assert_eq!(at.code(&["break", "-r", "x", "--yes"]), 0);
    terminal.waits_for("rc=79");
    assert!(terminal.said().contains("dlock: "), "{}", terminal.said());
    terminal.ends();
}

#[test]
fn supervision_34_an_interactive_shell_as_the_command() {
    let at = Fixture::file();
    let mut terminal = bash_at(&at, "\"$D\" run -r x -- bash --norc -i; echo rc=$?");
    terminal.types("echo ready=$((40+2))\n");
    terminal.waits_for("ready=42");
    terminal.types("sh -c 'echo in-sl\"\"eep; exec sleep 60'\n");
    terminal.waits_for("in-sleep");
    terminal.types("\x03");
    terminal.types("echo alive=$((40+3))\n");
    terminal.waits_for("alive=43");
    assert!(at.held("x"));
    terminal.types("exit 3\n");
    terminal.waits_for("rc=3");
    terminal.ends();
}

#[test]
fn supervision_35_a_new_size_is_told_once() {
    let at = Fixture::file();
    let log = Log::at(&at, "log");
    let mut terminal = logged(&at, &log);
    log.pid();
    terminal.resize(33);
    until("it arrives", || log.count(libc::SIGWINCH) > 0);
    settle();
    assert_eq!(log.all(), [(libc::SIGWINCH, SI_KERNEL)]);
    crate::harness::signal(&terminal.leader, libc::SIGWINCH);
    until("one from a program too", || log.count(libc::SIGWINCH) == 2);
    log.end();
    terminal.ends();
}

#[test]
fn supervision_36_the_first_process_of_a_container_with_a_terminal() {
    let at = Fixture::file();
    let mut terminal = Terminal::start(as_first(&at, &["run", "-r", "x", "-c", "echo started; exec sleep 60"]));
    terminal.waits_for("started");
    terminal.types("\x03");
    let ended = terminal.ends();
    if first_process().is_some() {
        assert_eq!(ended.code(), Some(130), "{}", terminal.said());
    } else {
        assert_eq!(ended.signal(), Some(libc::SIGINT), "{}", terminal.said());
    }
    assert!(!at.held("x"));
}

#[test]
fn supervision_37_a_start_sends_no_signal() {
    let at = Fixture::file();
    let log = Log::at(&at, "log");
    let script = "for i in $(seq 60); do SIGNAL_LOG=$HOME/log LISTEN_MS=20 \"$D\" run -r x -- \"$LOGGER\" || echo failed; done; echo after";
    let mut terminal = bash_at(&at, script);
    terminal.waits_for("after");
    assert!(terminal.ends().success() && !terminal.said().contains("failed"), "{}", terminal.said());
    assert_eq!(log.all(), []);
    assert_eq!(fs::read_to_string(log.path()).unwrap().lines().count(), 60);
}

/// At a terminal the command is in the group of the script that called dlock: its tree is ended and
/// nobody else.
#[test]
fn supervision_42_the_script_and_its_other_children_live_on() {
    let at = Fixture::file();
    let stubborn = "trap \"\" TERM HUP; (setsid sh -c \"trap \\\"\\\" TERM HUP; while :; do sleep 0.1; done\" &); echo started; while :; do sleep 0.1; done";
    let script = format!(
        "sleep 60 & MARK=$HOME \"$D\" run -r x -t 1s --kill-after 200ms -- sh -c '{stubborn}'; echo AFTER rc=$?; kill -0 $! && echo sibling=alive"
    );
    let mut terminal = bash_at(&at, &script);
    terminal.waits_for("started");
    let mark = at.path("").display().to_string();
    until("both run", || crate::harness::marked(&mark).len() >= 2);
    assert_eq!(at.code(&["break", "-r", "x", "--yes"]), 0);
    terminal.waits_for("AFTER rc=79");
    assert_eq!(crate::harness::marked(&mark), Vec::<String>::new());
    terminal.waits_for("sibling=alive");
    assert_eq!(terminal.ends().code(), Some(0));
}

#[test]
fn a_terminal_that_hangs_up_is_noticed_by_a_command_without_dlock_too() {
    let mut command = Command::new("sleep");
    command.arg("60");
    let mut terminal = Terminal::start(command);
    terminal.hang_up();
    assert_eq!(terminal.ends().signal(), Some(libc::SIGHUP), "else the cases of a hang-up show nothing");
}
