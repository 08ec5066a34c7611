//! The cases of supervising a command: signals that pass through dlock, and what it inherits of them.
#![allow(unsafe_code)]

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::harness::{Fixture, kill, lives, signal, supervisor, text, until};
use crate::terminal::{Log, as_first, bash, ends, first_process, is_root};

fn logged(at: &Fixture, log: &Log) -> Child {
    let program = Log::program();
    let mut command = at.dlock(&["run", "-r", "x", "-t", "20s", "--", &program]);
    command.env("SIGNAL_LOG", log.path()).stdout(Stdio::null()).process_group(0);
    command.spawn().unwrap()
}

#[test]
fn supervision_13_each_signal_is_passed_on_once_and_ends_nothing_of_dlock() {
    let at = Fixture::file();
    let log = Log::at(&at, "log");
    let mut child = logged(&at, &log);
    log.pid();
    let mut all = vec![
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGALRM,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGPWR,
        libc::SIGSTKFLT,
        libc::SIGXCPU,
        libc::SIGXFSZ,
        libc::SIGCONT,
        libc::SIGWINCH,
        libc::SIGURG,
    ];
    all.extend(libc::SIGRTMIN()..=libc::SIGRTMAX());
    signal(&child, libc::SIGPIPE); // stays with dlock, which writes
    for number in &all {
        signal(&child, *number);
        until(&format!("signal {number} arrives"), || log.count(*number) > 0);
    }
    sleep(Duration::from_millis(200)); // a second delivery would have come
    let seen: Vec<_> = log.all().iter().map(|(number, _)| *number).collect();
    assert_eq!(seen, all);
    assert!(child.try_wait().unwrap().is_none() && at.held("x"));
    log.end();
    assert_eq!(ends(&mut child).code(), Some(0));
}

#[test]
fn supervision_14_what_ends_a_job_is_for_its_group_and_the_rest_for_the_command_alone() {
    let at = Fixture::file();
    let (helper, leader) = (Log::at(&at, "helper"), Log::at(&at, "leader"));
    let line = format!("SIGNAL_LOG={} \"$LOGGER\" & SIGNAL_LOG={} exec \"$LOGGER\"", helper.path(), leader.path());
    let mut command = at.dlock(&["run", "-r", "x", "-c", &line]);
    let mut child = command.env("LOGGER", Log::program()).stdout(Stdio::null()).spawn().unwrap();
    let pids = [helper.pid(), leader.pid()];
    for number in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGWINCH, libc::SIGALRM, libc::SIGRTMIN()] {
        signal(&child, number);
        until("the command hears it", || leader.count(number) == 1);
    }
    for number in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGCONT] {
        signal(&child, number);
        until("both hear it", || leader.count(number) == 1 && helper.count(number) == 1);
    }
    assert_eq!((leader.all().len(), helper.all().len()), (10, 5));
    helper.end();
    leader.end();
    ends(&mut child);
    assert!(pids.iter().all(|pid| !lives(pid)));
    // A shell that does not exec its last command: TERM leaves nothing of it.
    let mut child = at.dlock(&["run", "-r", "y", "-c", "sleep 83; true"]).env("MARK", log_mark(&at)).spawn().unwrap();
    until("both run", || crate::harness::marked(&log_mark(&at)).len() == 2);
    signal(&child, libc::SIGTERM);
    assert_eq!(ends(&mut child).signal(), Some(libc::SIGTERM));
    assert_eq!(crate::harness::marked(&log_mark(&at)), Vec::<String>::new());
}

fn log_mark(at: &Fixture) -> String {
    at.path("").display().to_string()
}

#[test]
fn supervision_18_a_signal_to_the_callers_group_arrives_once() {
    let at = Fixture::file();
    let log = Log::at(&at, "log");
    let mut child = logged(&at, &log);
    log.pid();
    for number in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        kill(&format!("-{}", child.id()), &number.to_string());
        until("it arrives", || log.count(number) > 0);
    }
    sleep(Duration::from_millis(200));
    assert_eq!(log.all().len(), 3, "{:?}", log.all());
    log.end();
    assert_eq!(ends(&mut child).code(), Some(0));
}

/// What a process ignores, and blocks, as hexadecimal masks.
fn masks(pid: &str) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    (mask("SigIgn:"), mask("SigBlk:"))
}

fn bit(number: i32) -> u64 {
    1 << (number - 1)
}

#[test]
fn supervision_21_what_was_ignored_stays_ignored() {
    let at = Fixture::file();
    let line = "trap '' HUP USR1 INT; exec \"$D\" run -r x -- sh -c 'echo $$ > \"$HOME/pid\"; exec sleep 60'";
    let mut child = bash(&at, line).spawn().unwrap();
    let pid = || fs::read_to_string(at.path("pid")).unwrap_or_default();
    until("the command runs", || pid().ends_with('\n'));
    let wanted = bit(libc::SIGHUP) | bit(libc::SIGUSR1) | bit(libc::SIGINT);
    assert_eq!(masks(pid().trim()).0 & (wanted | bit(libc::SIGTERM)), wanted);
    for number in [libc::SIGHUP, libc::SIGUSR1, libc::SIGINT] {
        signal(&child, number);
        kill(&supervisor(&child), &number.to_string());
    }
    sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none() && lives(&pid()));
    signal(&child, libc::SIGTERM);
    assert_eq!(ends(&mut child).signal(), Some(libc::SIGTERM));
    assert!(!lives(&pid()));
}

#[test]
fn supervision_22_a_caller_that_ignores_sigchld() {
    let at = Fixture::file();
    let mut child = bash(&at, "trap '' CHLD; exec \"$D\" run -r x -- sh -c 'exit 9'").spawn().unwrap();
    assert_eq!(ends(&mut child).code(), Some(9));
    assert!(!at.held("x"));
}

#[test]
fn supervision_23_a_mask_that_was_inherited_is_the_commands() {
    let at = Fixture::file();
    let mut command = at.dlock(&["run", "-r", "x", "-c", "echo $$ > \"$HOME/pid\"; exec sleep 60"]);
    let blocked = [libc::SIGTERM, libc::SIGUSR1, libc::SIGCHLD];
    // SAFETY: system calls on a set of this stack, which is all that a forked process may do.
    unsafe {
        command.pre_exec(move || {
            let mut set: libc::sigset_t = std::mem::zeroed();
            for number in blocked {
                libc::sigaddset(&raw mut set, number);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    let pid = || fs::read_to_string(at.path("pid")).unwrap_or_default();
    until("the command runs", || pid().ends_with('\n'));
    assert_eq!(masks(pid().trim()).1, blocked.iter().map(|number| bit(*number)).sum::<u64>());
    // dlock itself sees its signals all the same.
    signal(&child, libc::SIGINT);
    assert_eq!(ends(&mut child).signal(), Some(libc::SIGINT));
}

/// What is left of the group of a command that was reaped is not signalled by its number, which another
/// process may have by then: here one that was given it on purpose.
#[test]
fn supervision_27_a_pid_that_is_used_again_is_left_alone() {
    let at = Fixture::file();
    // The command ends by TERM and leaves one that ignores it, outside of its group, so that its number
    // is free again. The script then takes that number for a process of its own.
    let command = "(setsid sh -c 'trap \"\" TERM; echo up > \"$HOME/up\"; while :; do sleep 0.1; done' &); \
        until [ -s \"$HOME/up\" ]; do sleep 0.02; done; echo $$ > \"$HOME/pid\"; exec sleep 60";
    let script = format!(
        "\"$D\" run -r x -t 20s --kill-after 2s -c '{}' & run=$!; until [ -s \"$HOME/pid\" ]; do sleep 0.02; done; \
        pid=$(cat \"$HOME/pid\"); kill -TERM $run; while kill -0 $pid 2>/dev/null; do sleep 0.02; done; got=0; \
        for try in $(seq 200); do echo $((pid - 1)) > /proc/sys/kernel/ns_last_pid || break; sleep 60 & got=$!; \
        [ $got = $pid ] && break; kill $got; done; kill -0 $run && echo sweeping; wait $run; echo rc=$?; \
        [ $got = $pid ] && echo taken && kill -0 $got && echo alive",
        command.replace('\'', "'\\''")
    );
    if !is_root() || first_process().is_none() {
        return sweep_after_the_reap(&at); // without a PID namespace of one's own a number can't be chosen
    }
    let way = first_process().unwrap();
    let mut bash = bash(&at, &script);
    let words: Vec<_> = bash.get_args().map(std::ffi::OsStr::to_owned).collect();
    let mut unshare = std::process::Command::new(way[0]);
    unshare.args(&way[1..]).arg("bash").args(words).envs(bash.get_envs().filter_map(|(name, value)| Some((name, value?))));
    bash.stdin(Stdio::null());
    let output = unshare.output().unwrap();
    let said = text(&output.stdout);
    assert!(said.contains("sweeping") && said.contains("rc=143"), "{output:?}");
    assert!(!said.contains("taken") || said.contains("alive"), "{output:?}");
    assert!(said.contains("taken"), "the number was not given out again: {output:?}");
}

/// The weaker form: the sweep goes on after the command itself is reaped.
fn sweep_after_the_reap(at: &Fixture) {
    let line = "(setsid sh -c 'trap \"\" TERM; echo $$ > \"$HOME/up\"; while :; do sleep 0.1; done' &); \
        until [ -s \"$HOME/up\" ]; do sleep 0.02; done; echo $$ > \"$HOME/pid\"; exec sleep 60";
    let mut child = at.start(&["run", "-r", "x", "-t", "20s", "--kill-after", "1s", "-c", line]);
    until("the command runs", || fs::read_to_string(at.path("pid")).is_ok_and(|text| text.ends_with('\n')));
    signal(&child, libc::SIGTERM);
    let pid = fs::read_to_string(at.path("pid")).unwrap();
    until("the command is reaped", || !fs::exists(format!("/proc/{}", pid.trim())).unwrap());
    assert!(at.held("x"));
    assert_eq!(ends(&mut child).signal(), Some(libc::SIGTERM));
}

#[test]
fn supervision_04_the_first_process_exits_with_128_and_the_signal() {
    let at = Fixture::file();
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGKILL] {
        let ended = as_first(&at, &["run", "-r", "x", "-c", &format!("kill -{number} $$")]).status().unwrap();
        if first_process().is_some() {
            assert_eq!(ended.code(), Some(128 + number), "{ended:?}");
        } else {
            assert_eq!(ended.signal(), Some(number));
        }
        assert!(!at.held("x"));
    }
}
