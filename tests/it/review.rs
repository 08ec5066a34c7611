//! What a review with fresh eyes found: ways in which a command outlived its lease, or went unheard.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::harness::{Fixture, kill, lives, signal, supervisor, text, until};
use crate::redis::Site;
use crate::terminal::{Terminal, ends, is_root};

/// A process in a session of its own whose first thread has ended; another one writes on and ignores
/// TERM. /proc shows it as a zombie.
const HEADLESS: &str = r#"
import ctypes, os, signal, sys, threading, time
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def on():
    while True:
        open(sys.argv[1], "a").write("x")
        time.sleep(0.1)
threading.Thread(target=on).start()
number = {"x86_64": 60}.get(os.uname().machine, 93)
ctypes.CDLL(None).syscall(number, 0)
"#;

#[test]
fn a_process_whose_first_thread_has_ended_is_ended_too() {
    let at = Fixture::file();
    let (ticks, script) = (at.path("ticks"), at.path("headless.py"));
    fs::write(&script, HEADLESS).unwrap();
    let line = format!("python3 {} {} & exec sleep 60", script.display(), ticks.display());
    let mut child = at.start(&["run", "-r", "x", "--max-runtime", "2s", "--kill-after", "500ms", "-c", &line]);
    let count = || fs::metadata(&ticks).map_or(0, |found| found.len());
    until("it ticks", || count() > 2);
    assert_eq!(ends(&mut child).code(), Some(124));
    let before = count();
    sleep(Duration::from_millis(500));
    assert_eq!(count(), before, "it ticks on");
    assert!(!at.held("x"));
}

#[test]
fn a_kill_of_the_whole_group_at_a_terminal_leaves_nothing_for_the_next_holder() {
    for round in 0..12 {
        let at = Fixture::file();
        let pid = at.path("pid");
        let line = format!("setsid sh -c 'echo $$ > {}; exec sleep 77' & wait", pid.display());
        let mut terminal = Terminal::start(at.dlock(&["run", "-r", "x", "-t", "5s", "-c", &line]));
        until("the descendant runs", || fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')));
        let pid = fs::read_to_string(&pid).unwrap().trim().to_owned();
        kill(&format!("-{}", terminal.leader.id()), "KILL");
        terminal.ends();
        assert_eq!(at.code(&["run", "-r", "x", "-w", "10s", "--", "true"]), 0);
        assert!(!lives(&pid), "round {round}");
    }
}

#[test]
fn a_proc_of_another_pid_namespace_is_refused_before_anything_starts() {
    let at = Fixture::file();
    let mark = at.path("mark");
    let way = if is_root() { ["-p", "-f"] } else { ["-Urp", "-f"] };
    let mut inside = Command::new("unshare");
    inside.args(way).arg(env!("CARGO_BIN_EXE_dlock")).args(["run", "-r", "x", "--", "touch"]).arg(&mark);
    let output = inside.env("DLOCK_STORE", &at.store).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(71), "{output:?}");
    assert!(text(&output.stderr).contains("another pid namespace") && !mark.exists(), "{output:?}");
    assert!(!at.held("x"));
}

#[test]
fn a_command_whose_time_passed_while_dlock_was_stopped_is_not_ended_in_silence() {
    let at = Site::redis();
    let child = at.start(&["run", "-r", "x", "-t", "2s", "--", "sleep", "60"]);
    until("it is held", || at.held("x"));
    let mut keeper = String::new();
    until("the command runs", || {
        keeper = supervisor(&child);
        !keeper.is_empty()
    });
    kill(&keeper, "STOP");
    signal(&child, libc::SIGSTOP);
    sleep(Duration::from_secs(3));
    kill(&keeper, "CONT");
    sleep(Duration::from_millis(300)); // it acts before its guard can
    signal(&child, libc::SIGCONT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    assert!(text(&output.stderr).contains("stopping the command"), "{output:?}");
}

#[test]
fn what_comes_after_the_commands_own_failure_does_not_change_its_status() {
    let at = Fixture::file();
    let line = "(trap '' TERM; while :; do sleep 0.1; done) & sleep 0.3; exit 3";
    for survivors in ["wait", "kill"] {
        let options = ["--survivors", survivors, "--max-runtime", "1s", "--kill-after", "300ms"];
        let words = [&["run", "-r", "x"], &options[..], &["-c", line]].concat();
        assert_eq!(at.code(&words), 3, "{survivors}");
        assert!(!at.held("x"));
    }
}
