//! `run` on each store, and what only Redis can do: vanish, refuse, stand still, hold foreign keys.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::harness::{kill, lives, signal, supervisor, text, until};
use crate::redis::{Redis, Site, free_port, on_each_store};

on_each_store!(
    a_good_run_passes_status_and_stdout_and_says_nothing,
    fences_rise,
    busy_is_75_and_starts_nothing,
    a_run_longer_than_its_ttl_keeps_the_lock,
    a_waiter_gets_the_lock_when_it_is_released,
    a_told_waiter_ends_and_leaves_the_line,
    a_killed_dlock_takes_its_command_along_and_the_lock_frees,
    a_broken_run_exits_79_with_its_command_dead,
    contenders_lose_no_update,
    stdin_reaches_the_command,
    no_descriptor_of_dlock_reaches_the_command,
);

/// A run whose command has written its pid.
fn started(at: &Site, ttl: &str) -> (Child, String) {
    let pid = at.path("pid");
    let line = format!("echo $$ > {}; exec sleep 60", pid.display());
    let child = at.start(&["run", "-r", "x", "-t", ttl, "--", "sh", "-c", &line]);
    until("the command runs", || fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')));
    (child, fs::read_to_string(&pid).unwrap())
}

fn end(mut child: Child) {
    signal(&child, libc::SIGTERM);
    child.wait().unwrap();
}

fn a_good_run_passes_status_and_stdout_and_says_nothing(at: &Site) {
    for code in [0, 1, 2, 64, 75, 127, 255] {
        let output = at.run(&["run", "-r", "x", "--", "sh", "-c", &format!("echo out; exit {code}")]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("out\n", ""));
    }
    let output = at.run(&["run", "-r", "x", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(output.status.signal(), Some(libc::SIGKILL));
    assert!(!at.held("x"));
}

fn fences_rise(at: &Site) {
    let line = "test \"$DLOCK_RESOURCE\" = x && test -n \"$DLOCK_TOKEN\" && echo $DLOCK_FENCING_TOKEN";
    let fence = || -> u64 { text(&at.run(&["run", "-r", "x", "-c", line]).stdout).trim().parse().unwrap() };
    let first = fence();
    assert!(fence() > first);
}

fn busy_is_75_and_starts_nothing(at: &Site) {
    let (holder, _) = started(at, "10s");
    let mark = at.path("mark");
    let touch = ["--", "touch", mark.to_str().unwrap()];
    let output = at.run(&[&["run", "-r", "x"], &touch[..]].concat());
    assert_eq!(output.status.code(), Some(75));
    let line = text(&output.stderr);
    assert!(line.starts_with("dlock: ") && line.lines().count() == 1, "{line}");
    assert!(line.contains("'x'") && line.contains(&format!("pid {}", holder.id())), "{line}");
    assert!(at.run(&[&["run", "-q", "-r", "x"], &touch[..]].concat()).stderr.is_empty());
    assert_eq!(at.code(&[&["run", "-E", "0", "-r", "x"], &touch[..]].concat()), 0);
    assert_eq!(at.code(&[&["run", "-w", "1s", "-r", "x"], &touch[..]].concat()), 75);
    assert!(!mark.exists());
    end(holder);
}

fn a_run_longer_than_its_ttl_keeps_the_lock(at: &Site) {
    let mut holder = at.start(&["run", "-r", "x", "-t", "2s", "--", "sleep", "5"]);
    until("held", || at.held("x"));
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 75);
        sleep(Duration::from_millis(300));
    }
    assert_eq!(holder.wait().unwrap().code(), Some(0));
    assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 0);
}

fn a_waiter_gets_the_lock_when_it_is_released(at: &Site) {
    let (holder, _) = started(at, "30s");
    let waiter = at.start(&["run", "-r", "x", "-w", "20s", "--", "echo", "mine"]);
    until("in line", || at.status("x")["waiters"].as_array().unwrap().len() == 1);
    end(holder);
    let output = waiter.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "mine\n", "{output:?}");
    // It asks by itself each second at the latest: the best of five hand-overs was not waited out.
    let gap = |_| {
        let holder = at.start(&["run", "-r", "y", "--", "sleep", "60"]);
        until("held", || at.held("y"));
        let waiter = at.start(&["run", "-r", "y", "-w", "20s", "--", "true"]);
        until("in line", || at.status("y")["waiters"].as_array().unwrap().len() == 1);
        end(holder);
        let freed = Instant::now();
        assert!(waiter.wait_with_output().unwrap().status.success());
        freed.elapsed()
    };
    assert!((0..5).map(gap).min().unwrap() < Duration::from_millis(400));
}

fn a_told_waiter_ends_and_leaves_the_line(at: &Site) {
    let (holder, _) = started(at, "30s");
    let mut waiter = at.start(&["run", "-r", "x", "-w", "forever", "--", "true"]);
    until("in line", || at.status("x")["waiters"].as_array().unwrap().len() == 1);
    let told = Instant::now();
    signal(&waiter, libc::SIGTERM);
    assert_eq!(waiter.wait().unwrap().signal(), Some(libc::SIGTERM));
    assert!(told.elapsed() < Duration::from_secs(3));
    assert!(at.status("x")["waiters"].as_array().unwrap().is_empty());
    end(holder);
}

fn a_killed_dlock_takes_its_command_along_and_the_lock_frees(at: &Site) {
    let (mut holder, pid) = started(at, "2s");
    let killed = Instant::now();
    signal(&holder, libc::SIGKILL);
    holder.wait().unwrap();
    until("the command is gone", || !lives(&pid));
    assert!(killed.elapsed() < Duration::from_secs(2));
    assert_eq!(at.code(&["run", "-r", "x", "-w", "4s", "--", "true"]), 0);
}

fn a_broken_run_exits_79_with_its_command_dead(at: &Site) {
    let (holder, pid) = started(at, "3s");
    let broken = Instant::now();
    assert_eq!(at.code(&["break", "-r", "x", "--yes"]), 0);
    assert_eq!(holder.wait_with_output().unwrap().status.code(), Some(79));
    assert!(broken.elapsed() < Duration::from_secs(3));
    assert!(!lives(&pid));
}

fn contenders_lose_no_update(at: &Site) {
    let counter = at.path("n");
    fs::write(&counter, "0\n").unwrap();
    let line = format!("v=$(cat {0}); sleep 0.01; echo $((v+1)) > {0}", counter.display());
    scope(|threads| {
        for _ in 0..20 {
            threads.spawn(|| {
                for _ in 0..5 {
                    assert_eq!(at.code(&["run", "-q", "-r", "c", "-w", "60s", "-c", &line]), 0);
                }
            });
        }
    });
    assert_eq!(fs::read_to_string(&counter).unwrap().trim(), "100");
}

fn stdin_reaches_the_command(at: &Site) {
    let input = at.path("input");
    fs::write(&input, "some\nlines").unwrap();
    let output = at.dlock(&["run", "-r", "x", "--", "cat"]).stdin(fs::File::open(&input).unwrap()).output().unwrap();
    assert_eq!(text(&output.stdout), "some\nlines");
}

fn no_descriptor_of_dlock_reaches_the_command(at: &Site) {
    let line = "ls /proc/self/fd";
    let bare = std::process::Command::new("sh").args(["-c", line]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(text(&at.run(&["run", "-r", "x", "-c", line]).stdout), text(&bare.stdout));
}

#[test]
fn a_redis_that_is_down_is_69_but_a_missing_command_is_found_out_first() {
    let at = Site::file();
    let store = format!("redis://127.0.0.1:{}", free_port());
    let mark = at.path("mark");
    let run = |command: &[&str]| at.code(&[&["run", "-r", "x", "--store", &store, "--"], command].concat());
    assert_eq!(run(&["touch", mark.to_str().unwrap()]), 69);
    assert!(!mark.exists());
    assert_eq!(run(&["no-such-tool"]), 127);
    assert_eq!(run(&["/etc/passwd"]), 126);
}

#[test]
fn a_run_on_redis_is_two_requests_and_a_greeting_where_it_needs_one() {
    let at = Site::redis();
    let verbs = |lines: &[String]| -> Vec<String> {
        lines.iter().map(|line| line.split("] \"").nth(1).unwrap().split('"').next().unwrap().to_owned()).collect()
    };
    assert_eq!(at.code(&["run", "-r", "warm", "--", "true"]), 0);
    let lines = at.server().monitored(|| assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 0));
    assert_eq!(verbs(&lines), ["EVALSHA", "EVALSHA"], "{lines:?}");
    let answer = at.server().ask(&["ACL", "SETUSER", "jobs", "on", ">pw", "~*", "+@all"]);
    assert!(answer.starts_with("+OK"), "{answer}");
    let store = at.store.replace("://", "://jobs:pw@").replace("/0", "/3");
    let lines = at.server().monitored(|| assert_eq!(at.code(&["run", "-r", "x", "--store", &store, "--", "true"]), 0));
    assert_eq!(verbs(&lines), ["AUTH", "SELECT", "EVALSHA", "EVALSHA"], "{lines:?}");
}

#[test]
fn a_wrong_redis_password_is_77_and_is_never_shown() {
    let at = Site::redis();
    let answer = at.server().ask(&["CONFIG", "SET", "requirepass", "the-right-one"]);
    assert!(answer.starts_with("+OK"), "{answer}");
    let store = at.server().url_with_password("S3CRETpw");
    let output = at.run(&["run", "-v", "-r", "x", "--store", &store, "--", "true"]);
    assert_eq!(output.status.code(), Some(77), "{output:?}");
    assert!(!text(&output.stderr).contains("S3CRETpw"));
    assert_eq!(at.code(&["run", "-r", "x", "--store", &at.server().url_with_password("the-right-one"), "--", "true"]), 0);
}

#[test]
fn a_redis_without_auth_does_not_make_us_repeat_the_password() {
    let at = Site::file();
    let server = Redis::start_with(&["--rename-command", "AUTH", ""]);
    for password in ["abc".to_owned(), "S3CRET".repeat(40)] {
        let output = at.run(&["run", "-v", "-r", "x", "--store", &server.url_with_password(&password), "--", "true"]);
        assert_eq!(output.status.code(), Some(77), "{output:?}");
        assert!(!text(&output.stderr).contains(&password[..3]), "{output:?}");
    }
}

#[test]
fn a_redis_user_who_may_not_write_records_leaves_no_key() {
    let at = Site::redis();
    at.server().ask(&["ACL", "SETUSER", "poor", "on", ">pw", "~*", "+@all", "-hset"]);
    let output = at.run(&["run", "-r", "x", "--store", &at.store.replace("://", "://poor:pw@"), "--", "true"]);
    assert_eq!(output.status.code(), Some(77), "{output:?}");
    assert!(at.server().ask(&["EXISTS", "dlock:x"]).starts_with(":0"));
}

#[test]
fn another_kind_of_server_is_77() {
    let at = Site::file();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let store = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().take(3) {
            let _ = std::io::Write::write_all(&mut stream.unwrap(), b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let output = at.run(&["run", "-r", "x", "--store", &store, "--", "true"]);
    assert_eq!(output.status.code(), Some(77), "{output:?}");
}

#[test]
fn who_does_not_wait_on_redis_does_not_wait_for_the_dead_either() {
    let at = Site::redis();
    let (mut holder, _) = started(&at, "1s");
    let waiters: Vec<_> = (1..=4)
        .map(|place| {
            let child = at.start(&["run", "-r", "x", "-w", "60s", "--", "true"]);
            until("in line", || at.status("x")["waiters"].as_array().unwrap().len() == place);
            child
        })
        .collect();
    kill(&supervisor(&holder), "KILL");
    holder.wait().unwrap();
    for mut waiter in waiters {
        signal(&waiter, libc::SIGKILL); // its supervisor dies with it
        waiter.wait().unwrap();
    }
    until("entered", || at.code(&["run", "-n", "-r", "x", "--", "true"]) == 0);
}

#[test]
fn a_foreign_redis_hash_is_77_and_left_as_it_is() {
    let at = Site::redis();
    at.server().ask(&["HSET", "dlock:x", "field", "theirs"]);
    assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 77);
    assert!(at.server().ask(&["HGET", "dlock:x", "field"]).contains("theirs"));
}

#[test]
fn a_foreign_redis_string_with_a_ttl_is_busy_and_left_as_it_is() {
    let at = Site::redis();
    at.server().ask(&["SET", "dlock:x", "theirs", "PX", "60000"]);
    assert_eq!(at.code(&["run", "-r", "x", "--", "true"]), 75);
    assert!(at.server().ask(&["GET", "dlock:x"]).contains("theirs"));
}

#[test]
fn a_flushed_redis_is_a_lost_lease() {
    let at = Site::redis();
    let (holder, pid) = started(&at, "3s");
    at.server().ask(&["FLUSHALL"]);
    let output = holder.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    assert!(!lives(&pid));
}

#[test]
fn a_redis_that_stands_still_costs_the_command_its_life_before_the_lease_is_over() {
    let at = Site::redis();
    let ticks = at.path("ticks");
    let line = format!("while :; do date +%s.%N >> {}; sleep 0.05; done", ticks.display());
    let holder = at.start(&["run", "-r", "x", "-t", "4s", "-c", &line]);
    until("ticking", || fs::read_to_string(&ticks).is_ok_and(|text| text.lines().count() > 3));
    // What is left of the lease now is what somebody else would have to wait.
    let left: f64 = at.server().ask(&["PTTL", "dlock:x"]).trim().trim_start_matches(':').parse().unwrap();
    at.server().signal(libc::SIGSTOP);
    let stopped = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let output = holder.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(79), "{output:?}");
    let ticks = fs::read_to_string(&ticks).unwrap();
    let last: f64 = ticks.lines().last().unwrap().parse().unwrap();
    assert!(last - stopped <= left / 1000.0, "ran {} s on, of {left} ms", last - stopped);
}
