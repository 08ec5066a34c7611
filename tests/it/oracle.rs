//! The oracle: what each command writes down of itself shows whether two ever ran beside each other.
//! Each fault is met by a naive holder too, on which the oracle must find the overlap.

use std::fs;
use std::process::Child;
use std::thread::sleep;
use std::time::Duration;

use crate::harness::{Fixture, kill, marked, signal, supervisor, text, until};
use crate::proxy::{DARK, Proxy};
use crate::redis::{Redis, Site, on_each_store};

on_each_store!(
    a_killed_dlock_is_followed_by_nobody_too_early,
    a_killed_supervisor_is_followed_by_nobody_too_early,
    a_stopped_supervisor_is_followed_by_nobody_too_early,
    the_kill_of_a_script_around_acquire_is_seen_by_the_oracle,
);

/// Writes `token fence start|tick|end boottime` lines, `$LIFE` of them; ignores TERM, as does a
/// descendant that has left group, session and parent and ticks on where there is `$STUBBORN`.
const COMMAND: &str = r#"
    note() { read up _ < /proc/uptime; echo "$DLOCK_TOKEN $DLOCK_FENCING_TOKEN $1 $up" >> "$HOME/log"; }
    trap '' TERM HUP INT
    note start
    if [ -n "$STUBBORN" ]; then
        (setsid sh -c 'while read up _ < /proc/uptime; do
            echo "$DLOCK_TOKEN $DLOCK_FENCING_TOKEN tick $up" >> "$HOME/log"; sleep 0.02; done' &)
    fi
    while [ "$LIFE" -gt 0 ]; do LIFE=$((LIFE - 1)); note tick; sleep 0.02; done
    note end"#;

/// From the first to the last that one command wrote, in seconds since the machine was booted.
#[derive(Debug)]
struct Hold {
    token: String,
    fence: u64,
    first: f64,
    last: f64,
}

fn holds(at: &Fixture) -> Vec<Hold> {
    let mut all: Vec<Hold> = Vec::new();
    for line in fs::read_to_string(at.path("log")).unwrap_or_default().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [token, fence, _, when] = words[..] else { panic!("{line}") };
        let when: f64 = when.parse().unwrap();
        match all.iter_mut().find(|hold| hold.token == token) {
            Some(hold) => hold.last = hold.last.max(when),
            None => all.push(Hold { token: token.into(), fence: fence.parse().unwrap(), first: when, last: when }),
        }
    }
    all.sort_by(|one, other| one.first.total_cmp(&other.first));
    all
}

/// For how long the holder went on beside the next one, in seconds. All of `expected` commands ran, and
/// their fencing tokens rise.
fn overlap(at: &Fixture, expected: usize) -> f64 {
    let all = holds(at);
    assert_eq!(all.len(), expected, "{all:?}");
    assert!(all.windows(2).all(|pair| pair[0].fence < pair[1].fence), "{all:?}");
    let beside = |pair: &[Hold]| (pair[0].last - pair[1].first).max(0.0);
    all.windows(2).map(beside).fold(0.0, f64::max)
}

/// A holder that never ends by itself; `max-runtime` ends a naive one.
fn holder(at: &Fixture, store: &str, on_lost: &str) -> Child {
    let options = ["--store", store, "-t", "2s", "--kill-after", "300ms", "--on-lost", on_lost, "--max-runtime", "7s"];
    let mut run = at.dlock(&[&["run", "-r", "x"], &options[..], &["-c", COMMAND]].concat());
    run.env("LIFE", "100000").env("STUBBORN", "1").env("MARK", mark(at));
    let child = run.stderr(std::process::Stdio::piped()).spawn().unwrap();
    ticks(at);
    child
}

fn ticks(at: &Fixture) {
    until("ticking", || fs::read_to_string(at.path("log")).is_ok_and(|log| log.lines().count() > 6));
}

fn mark(at: &Fixture) -> String {
    at.path("").display().to_string()
}

/// Two that wait for the lock, and write too.
fn contenders(at: &Fixture) -> [Child; 2] {
    [(); 2].map(|()| {
        let mut run = at.dlock(&["run", "-r", "x", "-t", "2s", "-w", "40s", "-c", COMMAND]);
        run.env("LIFE", "15").stderr(std::process::Stdio::piped()).spawn().unwrap()
    })
}

/// They have run, one after the other.
fn ran(contenders: [Child; 2]) {
    for contender in contenders {
        let output = contender.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// The holder's exit status after it all, and that nothing of it is left.
fn ended(at: &Fixture, holder: Child) -> Option<i32> {
    let output = holder.wait_with_output().unwrap();
    assert_eq!(marked(&mark(at)), Vec::<String>::new(), "{}", text(&output.stderr));
    output.status.code()
}

fn a_killed_dlock_is_followed_by_nobody_too_early(at: &Site) {
    let run = holder(at, &at.store, "stop");
    let waiting = contenders(at);
    signal(&run, libc::SIGKILL);
    ran(waiting);
    assert_eq!((overlap(at, 3), ended(at, run)), (0.0, None));
}

fn a_killed_supervisor_is_followed_by_nobody_too_early(at: &Site) {
    let run = holder(at, &at.store, "stop");
    let waiting = contenders(at);
    kill(&supervisor(&run), "KILL");
    ran(waiting);
    assert_eq!((overlap(at, 3), ended(at, run)), (0.0, Some(79)));
}

fn a_stopped_supervisor_is_followed_by_nobody_too_early(at: &Site) {
    let run = holder(at, &at.store, "stop");
    let waiting = contenders(at);
    let hidden = supervisor(&run);
    kill(&hidden, "STOP");
    if at.redis.is_some() {
        ran(waiting);
        kill(&hidden, "CONT");
        assert_eq!((overlap(at, 3), ended(at, run)), (0.0, Some(79)));
    } else {
        sleep(Duration::from_secs(3)); // a live holder keeps it
        kill(&hidden, "CONT");
        ran(waiting);
        assert_eq!((overlap(at, 3), ended(at, run)), (0.0, Some(124)));
    }
}

/// What people write without `run`: nothing ends the work of a script that is killed.
fn the_kill_of_a_script_around_acquire_is_seen_by_the_oracle(at: &Site) {
    let dlock = env!("CARGO_BIN_EXE_dlock");
    let script = format!("eval \"$({dlock} acquire -r x -t 2s --format env)\" || exit; sh -c \"$COMMAND\"; {dlock} release -r x");
    let mut sh = std::process::Command::new("sh");
    sh.args(["-c", &script]).env("DLOCK_STORE", &at.store).env("HOME", at.path("")).env("COMMAND", COMMAND);
    let mut sh = sh.env("LIFE", "400").env("MARK", mark(at)).spawn().unwrap();
    ticks(at);
    let waiting = contenders(at);
    signal(&sh, libc::SIGKILL);
    sh.wait().unwrap();
    ran(waiting);
    marked(&mark(at)).iter().for_each(|pid| kill(pid, "KILL"));
    assert!(overlap(at, 3) > 0.4, "{:?}", holds(at));
}

#[test]
fn both_of_dlock_stopped_keep_the_lock_of_a_file_store() {
    let at = Site::file();
    let run = holder(&at, &at.store, "stop");
    let waiting = contenders(&at);
    let hidden = supervisor(&run);
    kill(&hidden, "STOP");
    signal(&run, libc::SIGSTOP);
    sleep(Duration::from_secs(3));
    signal(&run, libc::SIGCONT);
    kill(&hidden, "CONT");
    ran(waiting);
    assert_eq!((overlap(&at, 3), ended(&at, run)), (0.0, Some(124)));
}

/// A fault of the server or of the way there, on a holder that does or does not judge its lease: for
/// how long it went on beside the next one, and its exit status.
fn fault_of_redis(on_lost: &str, fault: impl FnOnce(&Site, &Proxy) -> Option<Redis>) -> (f64, Option<i32>) {
    let at = Site::redis();
    let proxy = Proxy::before(&at);
    let run = holder(&at, &proxy.url, on_lost);
    let waiting = contenders(&at);
    let next = fault(&at, &proxy);
    ran(waiting);
    let code = ended(&at, run);
    drop(next);
    (overlap(&at, 3), code)
}

/// Without the judgement the holder goes on beside the next one until `--max-runtime` ends it.
const NAIVE: &str = "continue";

fn cut(_: &Site, proxy: &Proxy) -> Option<Redis> {
    proxy.set(DARK);
    None
}

fn frozen(at: &Site, _: &Proxy) -> Option<Redis> {
    at.server().signal(libc::SIGSTOP);
    sleep(Duration::from_secs(3));
    at.server().signal(libc::SIGCONT);
    None
}

/// Killed, and back without its data after every lease of it is over.
fn killed(at: &Site, _: &Proxy) -> Option<Redis> {
    at.server().signal(libc::SIGKILL);
    sleep(Duration::from_secs(3));
    Some(Redis::again_at(&at.server().port()))
}

fn flushed(at: &Site, _: &Proxy) -> Option<Redis> {
    at.server().ask(&["FLUSHALL"]);
    None
}

fn deleted(at: &Site, _: &Proxy) -> Option<Redis> {
    let keys = at.server().ask(&["KEYS", "*x*"]);
    let keys: Vec<&str> = keys.lines().filter(|line| !line.starts_with(['*', '$'])).collect();
    assert!(!keys.is_empty());
    at.server().ask(&[&["DEL"], &keys[..]].concat());
    None
}

#[test]
fn who_is_cut_off_is_dead_before_the_next_one_starts() {
    assert_eq!(fault_of_redis("stop", cut), (0.0, Some(79)));
    let (overlap, code) = fault_of_redis(NAIVE, cut);
    assert!(overlap > 1.0 && code == Some(124), "{overlap} {code:?}");
}

#[test]
fn the_command_of_a_frozen_server_is_dead_before_the_next_one_starts() {
    assert_eq!(fault_of_redis("stop", frozen), (0.0, Some(79)));
    let (overlap, code) = fault_of_redis(NAIVE, frozen);
    assert!(overlap > 1.0 && code == Some(124), "{overlap} {code:?}");
}

#[test]
fn the_command_of_a_killed_server_is_dead_before_the_next_one_starts() {
    assert_eq!(fault_of_redis("stop", killed), (0.0, Some(79)));
    let (overlap, code) = fault_of_redis(NAIVE, killed);
    assert!(overlap > 1.0 && code == Some(124), "{overlap} {code:?}");
}

/// A server that forgets grants at once: bounded by the next renewal and the grace, 1 s here, and the
/// fencing token rises all the same.
fn found_out_by_the_next_renewal(fault: fn(&Site, &Proxy) -> Option<Redis>) {
    let (overlap, code) = fault_of_redis("stop", fault);
    assert!(overlap < 2.5 && code == Some(79), "{overlap} {code:?}");
    let (overlap, code) = fault_of_redis(NAIVE, fault);
    assert!(overlap > 3.5 && code == Some(124), "{overlap} {code:?}");
}

#[test]
fn a_flushed_server_is_found_out_by_the_next_renewal() {
    found_out_by_the_next_renewal(flushed);
}

#[test]
fn a_deleted_key_is_found_out_by_the_next_renewal() {
    found_out_by_the_next_renewal(deleted);
}
