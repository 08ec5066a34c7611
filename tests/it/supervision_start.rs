//! The cases of supervising a command: the windows around its start and its end, what it leaves behind,
//! limits and arguments.
#![allow(unsafe_code)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::{Fixture, kill, lives, marked, signal, supervisor, text, until};
use crate::proxy::{DARK, Proxy};
use crate::redis::Site;
use crate::terminal::{as_first, as_nobody, bash, ends, is_root};

fn mark(at: &Fixture) -> String {
    at.path("").display().to_string()
}

/// Its output; fails where it takes ten seconds.
fn output(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    ends(&mut child);
    child.wait_with_output().unwrap()
}

/// A grant that took longer than its own TTL is no lease any more: it is asked for again.
#[test]
fn supervision_55_a_command_starts_with_at_least_half_of_its_lease() {
    let at = Site::redis();
    at.server().signal(libc::SIGSTOP);
    let mut run = at.dlock(&["run", "-r", "x", "-t", "2s", "-c", "\"$D\" status -r x --json"]);
    let child = run.env("D", env!("CARGO_BIN_EXE_dlock")).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    sleep(Duration::from_millis(2500));
    at.server().signal(libc::SIGCONT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let seen: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let left = seen["holders"][0]["expires_in_ms"].as_u64().unwrap();
    assert!(left > 700, "{left}"); // half of it, less what it took to look
    assert!(!at.held("x"));
}

/// A limit of the process to be.
fn limited(command: &mut Command, what: libc::__rlimit_resource_t, limit: u64) {
    // SAFETY: one system call on a structure of this stack, which is all that a forked process may do.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            if libc::setrlimit(what, &raw const limit) < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
}

#[test]
fn supervision_56_where_the_system_refuses_nothing_is_left() {
    let at = Fixture::file();
    let mut seen = Vec::new();
    for descriptors in 3..24 {
        let mut command = at.dlock(&["run", "-r", "x", "--", "/bin/true"]);
        limited(&mut command, libc::RLIMIT_NOFILE, descriptors);
        let output = output(command);
        // 127: the loader of the command found no descriptor.
        let code = output.status.code().unwrap_or_else(|| panic!("{descriptors}: {output:?}"));
        assert!([0, 69, 71, 77, 127].contains(&code), "{descriptors}: {output:?}");
        assert!(code == 0 || !output.stderr.is_empty(), "{descriptors}: {output:?}");
        // A command that ran keeps its status; a release that found no descriptor says so.
        assert!(!at.held("x") || code == 0 && text(&output.stderr).contains("could not release 'x'"), "{descriptors}: {output:?}");
        let _ = at.run(&["break", "-r", "x", "--yes"]);
        seen.push(code);
    }
    assert!(seen.contains(&71) && seen.last() == Some(&0), "{seen:?}");
    let (at, mut seen) = (Fixture::file(), Vec::new());
    for processes in 0..4 {
        let mut command = as_nobody(&at, &["run", "-r", "x", "--", "true"]);
        limited(&mut command, libc::RLIMIT_NPROC, processes);
        let output = output(command);
        assert!([Some(0), Some(71)].contains(&output.status.code()), "{processes}: {output:?}");
        assert!(output.status.success() || text(&output.stderr).starts_with("dlock: "), "{output:?}");
        assert!(!at.held("x"), "{processes}");
        seen.push(output.status.code().unwrap());
    }
    assert_eq!(seen[0], 71);
}

#[test]
fn supervision_57_a_signal_cuts_the_release_short() {
    let at = Site::redis();
    let proxy = Proxy::before(&at);
    let line = "echo $$ > \"$HOME/up\"; until [ -e \"$HOME/go\" ]; do sleep 0.02; done; exit 5";
    let mut child = at.start(&["run", "--store", &proxy.url, "-r", "x", "-t", "20s", "-c", line]);
    let pid = || fs::read_to_string(at.path("up")).unwrap_or_default();
    until("the command runs", || pid().ends_with('\n'));
    proxy.set(DARK);
    fs::write(at.path("go"), "").unwrap();
    until("the command is gone", || !lives(&pid()));
    sleep(Duration::from_millis(100));
    assert!(child.try_wait().unwrap().is_none(), "the release waits for its answer");
    let told = Instant::now();
    signal(&child, libc::SIGTERM);
    assert_eq!(ends(&mut child).code(), Some(5));
    assert!(told.elapsed() < Duration::from_millis(1200), "{:?}", told.elapsed());
}

/// A heartbeat that can't start is one that does not come: here for want of a thread.
#[test]
fn supervision_58_without_a_heartbeat_the_command_ends_before_its_lease() {
    let at = Site::redis();
    let mut run = as_nobody(&at, &["run", "-r", "x", "-t", "1500ms", "--", "sleep", "60"]);
    let child = run.env("MARK", mark(&at)).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    until("the command runs", || marked(&mark(&at)).len() == 1);
    let mut prlimit = Command::new("prlimit");
    prlimit.args(["--nproc=0", "--pid", &supervisor(&child)]);
    if is_root() {
        prlimit.uid(65534).gid(65534); // its own, whatever root may do here
    }
    assert!(prlimit.status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    assert!(began.elapsed() < Duration::from_millis(1500 + 2500), "{:?}", began.elapsed()); // the release included
    assert_eq!(marked(&mark(&at)), Vec::<String>::new());
}

#[test]
fn supervision_60_the_first_process_ends_what_is_left_before_it_releases() {
    let at = Fixture::file();
    let daemon =
        "trap '\"$D\" status -r x >/dev/null; echo $? > \"$HOME/held\"; exit' TERM; : > \"$HOME/up\"; while :; do sleep 0.05; done";
    fs::write(at.path("daemon"), daemon).unwrap();
    let line = "setsid sh \"$HOME/daemon\" & until [ -e \"$HOME/up\" ]; do sleep 0.02; done; exit 4";
    let mut run = as_first(&at, &["run", "-r", "x", "-t", "20s", "-c", line]);
    run.env("D", env!("CARGO_BIN_EXE_dlock")).env("MARK", mark(&at));
    assert_eq!(output(run).status.code(), Some(4));
    assert!(!at.held("x"));
    if crate::terminal::first_process().is_none() {
        let left = marked(&mark(&at)); // elsewhere it lives on
        assert!(!left.is_empty());
        left.iter().for_each(|pid| kill(pid, "KILL"));
        return;
    }
    assert_eq!(fs::read_to_string(at.path("held")).unwrap().trim(), "0", "held while it was told to end");
    assert_eq!(marked(&mark(&at)), Vec::<String>::new());
}

#[test]
fn supervision_61_the_first_process_leaves_no_zombies() {
    let at = Fixture::file();
    let line = "for i in $(seq 40); do sh -c 'true & exec true'; done; sleep 0.3; cat /proc/[0-9]*/stat | grep -c ') Z '; exit 7";
    let output = output(as_first(&at, &["run", "-r", "x", "-c", line]));
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    if crate::terminal::first_process().is_some() {
        assert!(text(&output.stdout).trim().parse::<u32>().unwrap() < 3, "{output:?}");
    }
}

#[test]
fn supervision_62_the_parent_of_a_daemon_while_dlock_runs_and_after() {
    let at = Fixture::file();
    let line =
        "(setsid sleep 30 >/dev/null 2>&1 & echo $! > \"$HOME/pid\"); : > \"$HOME/up\"; until [ -e \"$HOME/go\" ]; do sleep 0.02; done";
    let mut child = at.start(&["run", "-r", "x", "-c", line]);
    until("the daemon runs", || at.path("up").exists());
    let daemon = fs::read_to_string(at.path("pid")).unwrap().trim().to_owned();
    let parent = || {
        let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().to_owned()
    };
    let hidden = supervisor(&child);
    until("it is dlock's", || parent() == hidden);
    fs::write(at.path("go"), "").unwrap();
    assert_eq!(ends(&mut child).code(), Some(0));
    assert!(lives(&daemon));
    assert!(parent() != hidden && parent() != child.id().to_string());
    kill(&daemon, "KILL");
}

#[test]
fn supervision_65_a_reader_that_is_gone_changes_no_status() {
    let at = Fixture::file();
    let script = "\"$D\" run -v -r x -- sh -c 'sleep 0.2; exit 3' 2>&1 | true; echo rc=${PIPESTATUS[0]}; \
        \"$D\" run -v -r x -- sh -c 'exit 4' 2>/dev/full >/dev/full; echo rc=$?";
    let output = output(bash(&at, script));
    assert_eq!(text(&output.stdout), "rc=3\nrc=4\n", "{output:?}");
    assert!(!at.held("x"));
}

/// Linux takes 131071 bytes a string. What dlock adds to the environment makes the whole longer: a line
/// that just fits dlock does not fit its command.
#[test]
fn supervision_67_a_command_line_that_is_too_long() {
    let at = Fixture::file();
    let fits = "x".repeat(131_000);
    let output = at.dlock(&["run", "-r", "x", "--", "printf", "%s", &fits]).args(vec![&fits; 6]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 7 * fits.len()));
    let refused = (0..=4096_usize).rev().step_by(16).find_map(|slack| refused_with(&at, slack));
    let refused = refused.expect("a length that fits dlock and not its command");
    assert_eq!(refused.status.code(), Some(126), "{refused:?}");
    assert!(text(&refused.stderr).starts_with("dlock: cannot run '/bin/true'"), "{}", text(&refused.stderr));
    assert!(!at.held("x"));
}

/// A run of a command line that leaves so little of the limit; `None` where it went well, or where dlock
/// was too much already.
fn refused_with(at: &Fixture, slack: usize) -> Option<Output> {
    const LIMIT: usize = 128 * 1024; // for arguments and environment together: a quarter of the stack
    let mut command =
        at.dlock(&["run", "-r", "x", "--", "/bin/true", &"x".repeat(LIMIT.checked_sub(slack + 8)? / 2), &"x".repeat(LIMIT / 2)]);
    limited(&mut command, libc::RLIMIT_STACK, 512 * 1024);
    command.output().ok().filter(|output| !output.status.success())
}

#[test]
fn supervision_69_words_before_and_behind_the_command() {
    let at = Fixture::file();
    for (words, code, said) in [
        (&["--", "echo", "a", "--", "b"][..], 0, "a -- b\n"),
        (&["echo", "-n", "--ttl", "x"], 0, "--ttl x"),
        (&["echo", "--", "-r", "y"], 0, "-- -r y\n"),
        (&["--bogus", "echo", "a"], 64, ""),
        (&["--ttl", "--", "echo"], 64, ""),
        (&["--", "--bogus"], 127, ""),
        (&["--"], 64, ""),
        (&[], 64, ""),
    ] {
        let output = at.run(&[&["run", "-r", "x"], words].concat());
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(code), said), "{words:?}: {output:?}");
    }
}

#[test]
fn supervision_70_one_string_is_run_by_sh_whatever_the_users_shell() {
    let at = Fixture::file();
    let mut command = at.dlock(&["run", "-r", "x", "-c", "exit 7"]);
    command.env("SHELL", "/bin/false");
    assert_eq!(output(command).status.code(), Some(7));
    let words = ["sh", "-c", "printf '%s|' \"$0\" \"$@\"; exit 8", "a  b", "$HOME;", ""];
    let output = at.run(&[&["run", "-r", "x", "--"], &words[..]].concat());
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(8), "a  b|$HOME;||"));
}

#[test]
fn supervision_73_one_wrapper_inside_another() {
    let at = Fixture::file();
    let stubborn = "trap '' TERM; : > \"$HOME/up\"; while :; do sleep 0.05; done";
    let mut outside = Command::new("timeout");
    outside.args(["-k", "0.3", "1.5", env!("CARGO_BIN_EXE_dlock"), "run", "-r", "x", "-t", "30s", "-c", stubborn]);
    outside.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", at.path("")).env("DLOCK_STORE", &at.store).env("MARK", mark(&at));
    let ended = outside.stdin(Stdio::null()).stderr(Stdio::null()).process_group(0).status().unwrap();
    assert!(ended.signal() == Some(libc::SIGKILL) || ended.code() == Some(137), "{ended:?}");
    assert!(at.path("up").exists());
    until("the command is gone", || marked(&mark(&at)).iter().all(|pid| comm(pid) == "timeout"));
    assert_eq!(at.code(&["run", "-r", "x", "-w", "10s", "--", "true"]), 0);
    assert_eq!(at.code(&["run", "-r", "x", "--", "timeout", "0.2", "sleep", "20"]), 124);
    let inner = format!("{} run -r x -w 20s -- true", env!("CARGO_BIN_EXE_dlock"));
    assert_eq!(at.code(&["run", "-r", "x", "-c", &inner]), 75);
}

fn comm(pid: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// A program with all its uids root's can't be signalled by anybody else: dlock says so and holds on for
/// as long as that runs.
#[test]
fn supervision_74_what_may_not_be_stopped_is_named_and_not_left() {
    if !is_root() || Command::new("setpriv").arg("--version").output().is_err() {
        return; // a set-uid program of another user's can't be made
    }
    let at = Fixture::file();
    let tool = at.path("become-root");
    crate::harness::copy_program(std::fs::canonicalize(which("setpriv")).unwrap(), &tool);
    chown(&tool, Some(0), Some(0)).unwrap();
    fs::set_permissions(&tool, Permissions::from_mode(0o4755)).unwrap();
    let line = format!("exec {} --reuid=0 --regid=0 --clear-groups sleep 60", tool.display());
    let mut run = as_nobody(&at, &["run", "-r", "x", "-t", "1s", "-c", &line]);
    let mut child = run.env("MARK", mark(&at)).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until("it runs as root", || marked(&mark(&at)).iter().any(|pid| comm(pid) == "sleep"));
    let pid = marked(&mark(&at)).into_iter().find(|pid| comm(pid) == "sleep").unwrap();
    assert_eq!(at.code(&["break", "-r", "x", "--yes"]), 0);
    sleep(Duration::from_millis(1500));
    assert!(child.try_wait().unwrap().is_none() && at.held("x"), "it runs, and so does the lock");
    kill(&pid, "KILL");
    assert_eq!(ends(&mut child).code(), Some(79));
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(
        said.contains(&format!("cannot stop pid {pid} of the command: not permitted")) && said.matches("cannot stop").count() == 1,
        "{said}"
    );
    assert!(!at.held("x"));
}

fn which(tool: &str) -> String {
    ["/usr/bin", "/bin"].iter().map(|dir| format!("{dir}/{tool}")).find(|path| fs::exists(path).unwrap()).unwrap()
}
