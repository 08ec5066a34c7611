//! Failures that people have had with locks around jobs: signals, other wrappers, a frozen machine,
//! a server that forgets.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::cases::{SLEEPS, end, line, started};
use crate::harness::{Fixture, kill, lives, signal, supervisor, text, until};
use crate::redis::{Redis, Site, on_each_store};

const DLOCK: &str = env!("CARGO_BIN_EXE_dlock");

on_each_store!(
    case_11_a_signal_is_for_the_command_and_the_lock_stays_until_its_end,
    case_11_a_signal_ends_what_the_command_started_too,
    case_11_a_command_that_ignores_term_has_its_grace_where_one_is_said,
    case_11_a_command_that_ignores_term_goes_on_under_the_lock,
    case_42_timeout_around_it,
    case_42_timeout_that_kills,
    case_42_wrappers_within,
    case_57_a_machine_that_was_frozen_for_long,
    case_57_a_machine_that_was_frozen_for_a_moment,
    case_57_the_process_group_alone_is_stopped,
);

/// Nobody else gets the lock now.
fn busy(at: &Fixture, name: &str) -> bool {
    let output = at.run(&["run", "-r", name, "-w", "0s", "--", "echo", "OVERLAP"]);
    assert!(output.status.code() == Some(75) && output.stdout.is_empty() || output.status.success(), "{output:?}");
    !output.status.success()
}

fn case_11_a_signal_is_for_the_command_and_the_lock_stays_until_its_end(at: &Site) {
    let script = "trap 'echo got; sleep 0.5; exit 3' TERM INT HUP QUIT USR1; READY; while :; do sleep 0.05; done";
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1] {
        let (run, pid) = started(at, "s", "30s", script);
        signal(&run, number);
        sleep(Duration::from_millis(200));
        assert!(busy(at, "s"), "signal {number}");
        let output = run.wait_with_output().unwrap();
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(3), "got\n"), "{output:?}");
        assert!(!lives(&pid) && !busy(at, "s"), "signal {number}");
    }
}

fn case_11_a_signal_ends_what_the_command_started_too(at: &Site) {
    let (mut run, _) = started(at, "g", "30s", "sleep 300 & echo $! > \"$HOME/grandchild\"; READY; wait; :");
    let grandchild = fs::read_to_string(at.path("grandchild")).unwrap();
    signal(&run, libc::SIGTERM);
    assert_eq!(run.wait().unwrap().signal(), Some(libc::SIGTERM));
    assert!(!lives(&grandchild) && !busy(at, "g"));
}

const IGNORES_TERM: &str = "trap '' TERM; echo $$ > \"$HOME/pid\"; while :; do sleep 0.05; done";

fn ignorant(at: &Fixture, options: &[&str]) -> (Child, String) {
    let _ = fs::remove_file(at.path("pid"));
    let child = at.start(&[&["run", "-r", "t"], options, &["-c", IGNORES_TERM]].concat());
    (child, written(at))
}

/// The pid that a command has written down.
fn written(at: &Fixture) -> String {
    until("the command runs", || fs::read_to_string(at.path("pid")).is_ok_and(|text| text.ends_with('\n')));
    fs::read_to_string(at.path("pid")).unwrap()
}

fn case_11_a_command_that_ignores_term_has_its_grace_where_one_is_said(at: &Site) {
    fs::write(at.path("settings"), "[defaults]\nkill_after = \"1500ms\"\n").unwrap();
    for options in [&["-t", "8s", "--kill-after", "1500ms"][..], &["-t", "8s", "--config", at.path("settings").to_str().unwrap()]] {
        let (run, pid) = ignorant(at, options);
        let began = Instant::now();
        signal(&run, libc::SIGTERM);
        sleep(Duration::from_millis(900));
        assert!(lives(&pid) && busy(at, "t"));
        let output = run.wait_with_output().unwrap();
        let took = began.elapsed();
        assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{output:?}");
        assert!(line(&output).contains("killed the command") && line(&output).contains("1500ms after TERM (--kill-after)"), "{output:?}");
        assert!(took >= Duration::from_millis(1500) && took < Duration::from_secs(5), "{took:?}");
        assert!(!lives(&pid) && !busy(at, "t"));
    }
}

fn case_11_a_command_that_ignores_term_goes_on_under_the_lock(at: &Site) {
    let (mut run, pid) = ignorant(at, &["-t", "1s"]);
    signal(&run, libc::SIGTERM);
    sleep(Duration::from_secs(3));
    assert!(lives(&pid) && busy(at, "t"));
    kill(pid.trim(), "KILL");
    assert_eq!(run.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(!busy(at, "t"));
}

/// dlock within another program, which is named with its options.
fn within(at: &Fixture, program: &[&str], ttl: &str, command: &[&str]) -> Output {
    let dlock = at.dlock(&[]);
    let mut outer = Command::new(program[0]);
    outer.args(&program[1..]).arg(DLOCK).args(["run", "-r", "w", "-t", ttl, "--"]).args(command).stdin(std::process::Stdio::null());
    outer.env_clear().envs(dlock.get_envs().filter_map(|(name, value)| Some((name, value?))));
    outer.output().unwrap()
}

fn case_42_timeout_around_it(at: &Site) {
    for timeout in [&["timeout", "1"][..], &["timeout", "--foreground", "1"]] {
        let began = Instant::now();
        let output = within(at, timeout, "10s", &["sh", "-c", "echo $$ > \"$HOME/pid\"; sleep 60; :"]);
        assert_eq!(output.status.code(), Some(124), "{timeout:?}: {output:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{timeout:?}: {:?}", began.elapsed());
        until("the command is gone", || !lives(&written(at))); // `timeout` waits for dlock alone
        assert!(!busy(at, "w"), "{timeout:?}");
    }
}

fn case_42_timeout_that_kills(at: &Site) {
    let output = within(at, &["timeout", "-k", "1", "1"], "4s", &["sh", "-c", IGNORES_TERM]);
    assert_eq!(output.status.code().or(output.status.signal().map(|number| 128 + number)), Some(137), "{output:?}");
    let next = at.run(&["run", "-r", "w", "-w", "6s", "--", "sh", "-c", &format!("! kill -0 {}", written(at))]);
    assert!(next.status.success(), "{next:?}");
    assert!(!lives(&written(at)));
}

fn case_42_wrappers_within(at: &Site) {
    let run = |command: &[&str]| at.run(&[&["run", "-r", "w", "--"], command].concat());
    for timeout in [&["timeout", "1", "sleep", "60"][..], &["timeout", "20", "timeout", "1", "sleep", "60"]] {
        assert_eq!(run(timeout).status.code(), Some(124));
    }
    let niceness = |output: Output| text(&output.stdout).trim().parse::<i32>().unwrap();
    let own = niceness(Command::new("nice").output().unwrap());
    assert_eq!(niceness(within(at, &["nice", "-n", "5"], "10s", &["nice"])), own + 5);
    assert_eq!(niceness(run(&["nice", "-n", "7", "nice"])), own + 7);
}

#[test]
fn case_42_what_was_ignored_stays_ignored() {
    let at = Fixture::file();
    let ignored = |output: Output| {
        assert!(output.status.success(), "{output:?}");
        let status = text(&output.stdout);
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim().to_owned();
        u64::from_str_radix(&mask, 16).unwrap() & 0x7fff_ffff // from 32 on they may have been ignored before us
    };
    let show = ["cat", "/proc/self/status"];
    let bits = |numbers: &[i32]| numbers.iter().fold(0, |mask, number| mask | 1 << (number - 1));
    assert_eq!(ignored(within(&at, &["env", "--default-signal"], "10s", &show)), 0);
    assert_eq!(
        ignored(within(&at, &["env", "--default-signal", "--ignore-signal=INT,HUP"], "10s", &show)),
        bits(&[libc::SIGINT, libc::SIGHUP])
    );
    assert_eq!(ignored(within(&at, &["env", "--default-signal", "--ignore-signal=PIPE"], "10s", &show)), bits(&[libc::SIGPIPE]));
    // Neither dlock nor its command ends by the signal, wherever it arrives.
    let script = "kill -HUP $PPID; kill -HUP $(cut -d' ' -f4 /proc/$PPID/stat); sleep 0.5; echo survived";
    let output = within(&at, &["nohup"], "10s", &["sh", "-c", script]);
    assert!(output.status.success() && text(&output.stdout) == "survived\n", "{output:?}");
    assert!(!at.held("w"));
}

const TICKS: &str = "echo $$ > \"$HOME/pid\"; while :; do echo >> \"$HOME/ticks\"; sleep 0.2; done";

/// A command that ticks, in a process group of its own together with its dlock.
fn ticking(at: &Fixture, ttl: &str) -> Child {
    let child =
        at.dlock(&["run", "-r", "z", "-t", ttl, "-c", TICKS]).process_group(0).stderr(std::process::Stdio::piped()).spawn().unwrap();
    written(at);
    child
}

fn ticks(at: &Fixture) -> u64 {
    fs::metadata(at.path("ticks")).map_or(0, |data| data.len())
}

/// All that a machine freezes, of one run; dlock first.
fn all_of(at: &Fixture, run: &Child) -> [String; 3] {
    [run.id().to_string(), supervisor(run), format!("-{}", written(at).trim())]
}

fn case_57_a_machine_that_was_frozen_for_long(at: &Site) {
    let run = ticking(at, "2s");
    let all = all_of(at, &run);
    all.iter().for_each(|pid| kill(pid, "STOP"));
    let before = ticks(at);
    sleep(Duration::from_secs(4));
    if at.redis.is_none() {
        // A live holder of this machine keeps its lock.
        assert!(busy(at, "z"));
        all.iter().for_each(|pid| kill(pid, "CONT"));
        until("it goes on", || ticks(at) > before);
        sleep(Duration::from_secs(1));
        assert!(busy(at, "z"));
        return end(run);
    }
    let (next, _) = started(at, "z", "2s", SLEEPS);
    let holder = at.status("z");
    all.iter().for_each(|pid| kill(pid, "CONT"));
    let woken = Instant::now();
    let output = run.wait_with_output().unwrap();
    assert!(woken.elapsed() < Duration::from_secs(2), "{:?}", woken.elapsed());
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    assert!(ticks(at) - before <= 2, "{} ticks", ticks(at) - before);
    sleep(Duration::from_millis(1200)); // the next one renews its own
    let still = at.status("z");
    let of = |status: &serde_json::Value| {
        [&["fencing_token"][..], &["owner", "pid"]].map(|path| path.iter().fold(&status["holders"][0], |at, name| &at[name]).as_u64())
    };
    assert_eq!(of(&still), of(&holder));
    assert_eq!(of(&still)[1], Some(next.id().into()));
    end(next);
    assert!(!busy(at, "z"));
}

fn case_57_a_machine_that_was_frozen_for_a_moment(at: &Site) {
    let run = ticking(at, "4s");
    let all = all_of(at, &run);
    for _ in 0..2 {
        all.iter().for_each(|pid| kill(pid, "STOP"));
        let before = ticks(at);
        sleep(Duration::from_millis(1500));
        all.iter().for_each(|pid| kill(pid, "CONT"));
        until("it goes on", || ticks(at) > before + 5);
        assert!(busy(at, "z"));
    }
    signal(&run, libc::SIGTERM);
    let output = run.wait_with_output().unwrap();
    assert_eq!((output.status.signal(), text(&output.stderr).as_str()), (Some(libc::SIGTERM), ""));
}

fn case_57_the_process_group_alone_is_stopped(at: &Site) {
    let run = ticking(at, "1s");
    kill(&format!("-{}", run.id()), "STOP");
    sleep(Duration::from_secs(3));
    assert!(busy(at, "z"), "the one that keeps it is not of that group");
    kill(&format!("-{}", run.id()), "CONT");
    let before = ticks(at);
    until("it goes on", || ticks(at) > before);
    end(run);
    assert!(!busy(at, "z"));
}

#[test]
fn case_17_what_the_next_one_got_is_not_touched() {
    let at = Site::redis();
    let (holder, pid) = started(&at, "r", "3s", SLEEPS);
    at.server().ask(&["FLUSHALL"]);
    let flushed = Instant::now();
    let (next, _) = started(&at, "r", "3s", SLEEPS);
    let token = at.server().ask(&["GET", "dlock:r"]);
    let output = holder.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("'r'") && said.contains("lost") && said.contains(&next.id().to_string()), "{said}");
    assert!(flushed.elapsed() < Duration::from_secs(4) && !lives(&pid), "{:?}", flushed.elapsed());
    assert_eq!(at.server().ask(&["GET", "dlock:r"]), token);
    sleep(Duration::from_millis(1500));
    assert_eq!(at.server().ask(&["GET", "dlock:r"]), token);
    end(next);
    assert!(!busy(&at, "r"));
}

/// What has a TTL goes first, and locks may be all that has one.
#[test]
fn case_17_a_server_that_evicts() {
    let mut at = Fixture::file();
    let redis = Redis::start_with(&["--maxmemory-policy", "volatile-ttl", "--maxmemory", "100mb"]);
    at.store = redis.url();
    let (holder, pid) = started(&at, "v", "3s", SLEEPS);
    redis.ask(&["CONFIG", "SET", "maxmemory", "1"]); // full as it is
    let full = Instant::now();
    let value = "x".repeat(1000);
    until("the lock is evicted", || {
        redis.ask(&["SET", "filler", &value]);
        redis.ask(&["EXISTS", "dlock:v"]).starts_with(":0")
    });
    let output = holder.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    assert!(full.elapsed() < Duration::from_secs(6) && !lives(&pid), "{:?}", full.elapsed());
    assert!(text(&output.stderr).contains("lost"), "{output:?}");
    let mark = at.path("mark");
    let refused = at.run(&["run", "-r", "v", "--", "touch", mark.to_str().unwrap()]);
    assert!(!refused.status.success() && line(&refused).contains("OOM") && !mark.exists(), "{refused:?}");
}
