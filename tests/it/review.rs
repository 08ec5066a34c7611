//! What a review with fresh eyes found: ways in which a command outlived its lease, or went unheard.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::{Fixture, kill, lives, signal, supervisor, text, until};
use crate::proxy::{LATE, Proxy};
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

#[test]
fn with_too_few_descriptors_nothing_starts_and_with_enough_nothing_is_left() {
    let mut codes = Vec::new();
    for limit in 5..=22 {
        let at = Fixture::file();
        let pid = at.path("pid");
        let line = format!("setsid sh -c 'trap \"\" TERM; echo $$ > {}; while :; do sleep 0.1; done' & exec sleep 60", pid.display());
        let dlock =
            format!("ulimit -n {limit}; exec {} run -r x --max-runtime 500ms --kill-after 200ms -c \"$0\"", env!("CARGO_BIN_EXE_dlock"));
        let output = Command::new("sh").args(["-c", &dlock, &line]).env("DLOCK_STORE", &at.store).output().unwrap();
        let code = output.status.code().unwrap();
        match code {
            71 => assert!(!pid.exists(), "limit {limit}: started"),
            124 => assert!(!lives(&fs::read_to_string(&pid).unwrap()), "limit {limit}: left alive"),
            _ => assert!([69, 77].contains(&code) && !pid.exists(), "limit {limit}: {output:?}"), // the store can't be opened
        }
        assert!(!output.stderr.is_empty() && !at.held("x"), "limit {limit}");
        codes.push(code);
    }
    assert!(codes.contains(&71) && codes.ends_with(&[124, 124]), "{codes:?}");
}

#[test]
fn what_the_caller_had_started_before_survives_a_death_of_the_supervisor() {
    for busy in [false, true] {
        let at = Fixture::file();
        let other = busy.then(|| at.start(&["run", "-r", "x", "--", "sleep", "60"]));
        until("the other one holds it", || !busy || at.held("x"));
        let (earlier, mark) = (at.path("earlier"), at.path("mark"));
        let line = format!(
            "(sleep 77 & echo $! > {}; wait) 2>/dev/null & exec {} run -r x -w 60s -- sh -c 'echo $$ > {}; sleep 60'",
            earlier.display(),
            env!("CARGO_BIN_EXE_dlock"),
            mark.display()
        );
        let mut bash = Command::new("bash");
        let child = bash.args(["-c", &line]).env("DLOCK_STORE", &at.store).stderr(Stdio::piped()).spawn().unwrap();
        until("the earlier one is there", || fs::read_to_string(&earlier).is_ok_and(|text| text.ends_with('\n')));
        let earlier = fs::read_to_string(&earlier).unwrap();
        let mut keeper = String::new();
        let named = if busy { "dlock" } else { "lease-keeper" };
        until("the supervisor is there", || {
            let path = format!("/proc/{0}/task/{0}/children", child.id());
            let children = fs::read_to_string(path).unwrap_or_default();
            let is_it = |pid: &&str| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == named);
            keeper = children.split_whitespace().find(is_it).unwrap_or_default().to_owned();
            !keeper.is_empty() && (busy || mark.exists())
        });
        if busy {
            sleep(Duration::from_millis(300)); // in line
        }
        kill(&keeper, "KILL");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(if busy { 71 } else { 79 }), "{output:?}");
        assert!(lives(&earlier), "busy: {busy}");
        assert!(busy || !lives(&fs::read_to_string(&mark).unwrap()));
        kill(earlier.trim(), "KILL");
        if let Some(mut other) = other {
            signal(&other, libc::SIGTERM);
            other.wait().unwrap();
        }
    }
}

#[test]
fn a_command_that_would_get_a_pid_namespace_of_its_own_is_refused_in_words() {
    let at = Fixture::file();
    let way = if is_root() { "-p" } else { "-Urp" };
    let mut inside = Command::new("unshare");
    inside.arg(way).arg(env!("CARGO_BIN_EXE_dlock")).args(["run", "-r", "x", "--", "true"]);
    let output = inside.env("DLOCK_STORE", &at.store).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(71), "{output:?}");
    assert!(text(&output.stderr).contains("--fork"), "{output:?}");
    assert!(!at.held("x"));
}

/// Counts the TERMs that a command hears, while it lives.
fn counting(at: &Fixture) -> (String, impl Fn() -> String) {
    let log = at.path("log");
    let line = format!(
        "trap 'echo term >> {0}' TERM; echo up >> {0}; while ! [ -e {1} ]; do sleep 0.05; done",
        log.display(),
        at.path("end").display()
    );
    (line, move || fs::read_to_string(&log).unwrap_or_default())
}

#[test]
fn a_term_for_all_processes_of_a_unit_reaches_the_command_once() {
    for round in 0..12 {
        let at = Fixture::file();
        let (line, words) = counting(&at);
        let child = at.start(&["run", "-r", "x", "-c", &line]);
        until("it runs", || words() == "up\n");
        let (guard, keeper) = (child.id().to_string(), supervisor(&child));
        let order = if round % 2 == 0 { [&keeper, &guard] } else { [&guard, &keeper] };
        let both = format!("kill -TERM {} {}", order[0], order[1]);
        assert!(Command::new("sh").args(["-c", &both]).status().unwrap().success());
        until("it hears it", || words() == "up\nterm\n");
        sleep(Duration::from_millis(250));
        assert_eq!(words(), "up\nterm\n", "round {round}");
        fs::write(at.path("end"), "").unwrap();
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
    }
}

#[test]
fn a_command_that_signals_its_own_parent_is_heard() {
    let at = Fixture::file();
    let mut child = at.start(&["run", "-r", "x", "-c", "sleep 0.2; kill -TERM $PPID; exec sleep 60"]);
    assert_eq!(ends(&mut child).signal(), Some(libc::SIGTERM));
}

/// Forks again and again in a session of its own, each parent ending at once, and writes when.
const CHAIN: &str = r#"
import os, sys, time
os.setsid()
end = time.time() + 4
while time.time() < end:
    if os.fork():
        os._exit(0)
    with open(sys.argv[1], "w") as out:
        out.write("%f" % time.clock_gettime(time.CLOCK_BOOTTIME))
"#;

#[test]
fn a_tree_that_forks_away_again_and_again_does_not_outlive_the_guard() {
    for _ in 0..3 {
        let at = Fixture::file();
        let (last, script) = (at.path("last"), at.path("chain.py"));
        fs::write(&script, CHAIN).unwrap();
        let line = format!("python3 {} {} & exec sleep 60", script.display(), last.display());
        let mut child = at.start(&["run", "-r", "x", "-t", "1s", "-c", &line]);
        until("it forks", || last.exists());
        kill(&supervisor(&child), "KILL");
        assert_eq!(ends(&mut child).code(), Some(79));
        sleep(Duration::from_millis(100)); // a write under way
        let before = fs::read_to_string(&last).unwrap();
        sleep(Duration::from_millis(300));
        assert_eq!(fs::read_to_string(&last).unwrap(), before);
    }
}

#[test]
fn who_is_alive_is_not_said_to_stand_still() {
    let at = Site::redis();
    let child = at.start(&["run", "-r", "x", "-t", "2s", "-c", "trap '' TERM; while :; do sleep 0.1; done"]);
    until("it is held", || at.held("x"));
    at.server().signal(libc::SIGSTOP);
    let output = child.wait_with_output().unwrap();
    at.server().signal(libc::SIGCONT);
    let words = text(&output.stderr);
    assert_eq!(output.status.code(), Some(79), "{words}");
    assert!(words.contains("could not be renewed in time") && !words.contains("stands still"), "{words}");
}

#[test]
fn the_first_in_line_looks_within_seconds_however_far_back_it_has_joined() {
    for at in [Site::file(), Site::redis()] {
        let holder = at.start(&["run", "-r", "x", "-t", "2s", "--", "sleep", "1"]);
        until("it is held", || at.held("x"));
        let mut waiters: Vec<_> = (1..=5)
            .map(|place| {
                let command = if place == 4 { "exec sleep 60" } else { "true" };
                let waiter = at.start(&["run", "-r", "x", "-t", "2s", "-w", "60s", "--label", &place.to_string(), "-c", command]);
                until("in line", || at.status("x")["waiters"].as_array().unwrap().len() == place);
                waiter
            })
            .collect();
        assert!(holder.wait_with_output().unwrap().status.success());
        until("the fourth holds it", || at.status("x")["holders"][0]["owner"]["label"] == "4");
        let keeper = supervisor(&waiters[3]);
        let both = format!("kill -KILL {keeper} {}", waiters[3].id());
        assert!(Command::new("sh").args(["-c", &both]).status().unwrap().success());
        let began = Instant::now();
        assert_eq!(ends(waiters.last_mut().unwrap()).code(), Some(0));
        assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
        waiters.iter_mut().for_each(|waiter| drop(waiter.wait()));
    }
}

#[test]
fn who_would_go_on_without_a_lease_does_not_start_without_one() {
    let at = Site::redis();
    let proxy = Proxy::before(&at);
    let mark = at.path("mark");
    proxy.set(LATE);
    let line = format!("touch {}", mark.display());
    let output = at.run(&["run", "-r", "x", "-t", "1s", "--on-lost", "continue", "--store", &proxy.url, "-c", &line]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(!mark.exists());
}
