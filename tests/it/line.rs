//! The line, and those that share, as users see them.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::{Fixture, kill, signal, supervisor, text, until};
use crate::redis::{Site, on_each_store};
use crate::terminal::{Terminal, ends};

on_each_store!(
    each_job_knows_its_slot_and_status_shows_it,
    a_busy_line_names_one_and_counts_the_others,
    one_of_several_is_broken_by_slot_or_holder,
    a_killed_holder_of_a_slot_frees_it,
    a_lost_share_stops_that_command_alone,
    waiters_run_once_and_in_order_whoever_of_them_is_killed,
    a_dead_head_delays_the_others_by_seconds_only,
    a_job_that_asks_for_its_own_slot_again_is_told,
);

fn in_line(at: &Fixture) -> usize {
    at.status("x")["waiters"].as_array().unwrap().len()
}

fn holders(at: &Fixture) -> usize {
    at.status("x")["holders"].as_array().unwrap().len()
}

fn started(at: &Fixture, options: &[&str], before: usize) -> Child {
    let child = at.start(&[&["run", "-r", "x", "-t", "5s"], options, &["--", "sleep", "60"]].concat());
    until("it is held", || holders(at) == before + 1);
    child
}

fn stop(mut child: Child) {
    signal(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
}

fn each_job_knows_its_slot_and_status_shows_it(at: &Site) {
    let slot = || text(&at.run(&["run", "-r", "x", "--slots", "3", "-c", "echo ${DLOCK_SLOT-none}"]).stdout).trim().to_owned();
    assert_eq!(slot(), "0");
    let first = started(at, &["--slots", "3"], 0);
    let second = started(at, &["--slots", "3", "--label", "two"], 1);
    assert_eq!(slot(), "2");
    let status = at.status("x");
    let of = |at: usize, field: &str| status["holders"][at][field].clone();
    assert_eq!((of(0, "mode"), of(0, "slots")), ("slot".into(), 3.into()));
    let mut slots = [of(0, "slot").as_u64().unwrap(), of(1, "slot").as_u64().unwrap()];
    slots.sort_unstable();
    assert_eq!(slots, [0, 1]);
    let words = text(&at.run(&["status", "-r", "x"]).stdout);
    assert!(words.contains("slot 0 of 3") && words.contains("slot 1 of 3"), "{words}");
    let listed = text(&at.run(&["list"]).stdout);
    assert!(listed.contains("and 1 more"), "{listed}");
    stop(first);
    assert_eq!(slot(), "0", "the lowest that is free");
    stop(second);
    let plain = at.run(&["run", "-r", "x", "--shared", "-c", "echo ${DLOCK_SLOT-none}"]);
    assert_eq!(text(&plain.stdout), "none\n");
    let lease = at.run(&["acquire", "-r", "x", "--slots", "2", "--format", "json"]);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&lease.stdout).unwrap()["slot"], 0);
}

fn a_busy_line_names_one_and_counts_the_others(at: &Site) {
    let holders = [started(at, &["--shared", "--label", "reader"], 0), started(at, &["--shared", "--label", "reader"], 1)];
    let writer = at.start(&["run", "-r", "x", "-w", "60s", "--label", "writer", "--", "true"]);
    until("in line", || in_line(at) == 1);
    let reader = at.start(&["run", "-r", "x", "-w", "60s", "--shared", "--", "true"]);
    until("in line", || in_line(at) == 2);
    let busy = at.run(&["run", "-r", "x", "--shared", "--", "true"]);
    let words = text(&busy.stderr);
    assert_eq!(busy.status.code(), Some(75), "{words}");
    for part in ["(reader), shared, since", "and 1 more", "2 waiting"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    let shown = text(&at.run(&["status", "-r", "x"]).stdout);
    assert!(shown.contains("waiter 1: ") && shown.contains("(writer), for") && shown.contains("waiter 2: "), "{shown}");
    let waiters = at.status("x")["waiters"].clone();
    assert_eq!((&waiters[0]["mode"], &waiters[0]["position"], &waiters[1]["mode"]), (&"exclusive".into(), &1.into(), &"shared".into()));
    holders.into_iter().for_each(stop);
    for mut waiter in [writer, reader] {
        assert!(waiter.wait().unwrap().success());
    }
}

fn one_of_several_is_broken_by_slot_or_holder(at: &Site) {
    let mut zero = started(at, &["--slots", "3"], 0);
    let mut one = started(at, &["--slots", "3"], 1);
    let two = started(at, &["--slots", "3"], 2);
    assert_eq!(at.code(&["break", "-r", "x", "--slot", "7", "--yes"]), 64);
    assert_eq!(at.code(&["break", "-r", "x", "--slot", "1"]), 64, "nobody can be asked");
    assert_eq!(holders(at), 3);
    let broken = at.run(&["break", "-r", "x", "--slot", "1", "--yes"]);
    assert!(text(&broken.stdout).contains(&format!("pid {}", one.id())), "{broken:?}");
    let by_pid = at.run(&["break", "-r", "x", "--holder", &zero.id().to_string(), "--yes", "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&by_pid.stdout).unwrap();
    assert_eq!((shown["broken"].as_array().unwrap().len(), &shown["broken"][0]["slot"]), (1, &0.into()));
    for broken in [&mut one, &mut zero] {
        assert_eq!(ends(broken).code(), Some(79));
    }
    assert_eq!(at.status("x")["holders"][0]["slot"], 2);
    let fence = at.status("x")["holders"][0]["fencing_token"].to_string();
    // At a terminal the person is shown whom it means.
    let mut terminal = Terminal::start(at.dlock(&["break", "-r", "x", "--holder", &fence]));
    terminal.waits_for("[y/N]");
    let shown = terminal.said();
    assert!(shown.contains(&format!("pid {}", two.id())) && shown.contains("slot 2 of 3"), "{shown}");
    terminal.types("y\n");
    assert_eq!(terminal.ends().code(), Some(0));
    assert_eq!(two.wait_with_output().unwrap().status.code(), Some(79));
}

fn a_killed_holder_of_a_slot_frees_it(at: &Site) {
    let holders = [started(at, &["--slots", "2"], 0), started(at, &["--slots", "2"], 1)];
    let mut waiter = at.start(&["run", "-r", "x", "--slots", "2", "-w", "60s", "-c", "exit $((10 + DLOCK_SLOT))"]);
    until("in line", || in_line(at) == 1);
    kill(&holders[1].id().to_string(), "KILL");
    assert_eq!(ends(&mut waiter).code(), Some(11));
    let [first, mut second] = holders;
    drop(second.wait());
    stop(first);
}

fn a_lost_share_stops_that_command_alone(at: &Site) {
    let (mut first, second) = (started(at, &["--shared"], 0), started(at, &["--shared"], 1));
    let mine = at.status("x")["holders"].as_array().unwrap().iter().find(|holder| holder["owner"]["pid"] == first.id()).cloned().unwrap();
    assert_eq!(at.code(&["break", "-r", "x", "--holder", &mine["fencing_token"].to_string(), "--yes"]), 0);
    assert_eq!(ends(&mut first).code(), Some(79));
    sleep(Duration::from_secs(2)); // more than a heartbeat
    assert_eq!(holders(at), 1);
    stop(second);
}

fn waiters_run_once_and_in_order_whoever_of_them_is_killed(at: &Site) {
    const WAITERS: usize = 30;
    let holder = started(at, &[], 0);
    let ran = at.path("ran");
    let mut waiters: Vec<Child> = (0..WAITERS)
        .map(|place| {
            let line = format!("echo {place} >> {}", ran.display());
            let waiter = at.dlock(&["run", "-r", "x", "-t", "5s", "-w", "60s", "-c", &line]).stderr(Stdio::null()).spawn().unwrap();
            until("in line", || in_line(at) == place + 1);
            waiter
        })
        .collect();
    let killed = [0, 3, 4, 11, 12, 13, 20, 29];
    for place in killed {
        let name = if place % 2 == 0 { "KILL" } else { "TERM" };
        match place % 3 {
            0 => kill(&supervisor(&waiters[place]), "KILL"),
            _ => kill(&waiters[place].id().to_string(), name),
        }
    }
    stop(holder);
    for (place, waiter) in waiters.iter_mut().enumerate() {
        assert_eq!(ends_in_a_minute(waiter), !killed.contains(&place), "{place}");
    }
    let order: Vec<usize> = fs::read_to_string(&ran).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(order, (0..WAITERS).filter(|place| !killed.contains(place)).collect::<Vec<_>>());
    until("the line is empty", || in_line(at) == 0 && holders(at) == 0);
}

fn ends_in_a_minute(child: &mut Child) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success();
        }
        assert!(Instant::now() < end, "not within a minute");
        sleep(Duration::from_millis(10));
    }
}

fn a_dead_head_delays_the_others_by_seconds_only(at: &Site) {
    let holder = started(at, &[], 0);
    let dead: Vec<Child> = (1..=2)
        .map(|place| {
            let waiter = at.start(&["run", "-r", "x", "-w", "60s", "--", "true"]);
            until("in line", || in_line(at) == place);
            waiter
        })
        .collect();
    let mut last = at.start(&["run", "-r", "x", "-w", "60s", "--", "true"]);
    until("in line", || in_line(at) == 3);
    for waiter in &dead {
        signal(waiter, libc::SIGSTOP);
        kill(&supervisor(waiter), "STOP");
    }
    stop(holder);
    let began = Instant::now();
    assert_eq!(ends(&mut last).code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(7), "{:?}", began.elapsed());
    for mut waiter in dead {
        kill(&supervisor(&waiter), "KILL");
        kill(&waiter.id().to_string(), "KILL");
        drop(waiter.wait());
    }
}

fn a_job_that_asks_for_its_own_slot_again_is_told(at: &Site) {
    let inner = format!("{} run -r x --slots 1 -w 60s -- true", env!("CARGO_BIN_EXE_dlock"));
    let output = at.run(&["run", "-r", "x", "--slots", "1", "-c", &inner]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    assert!(text(&output.stderr).contains("already held by this job's own parent"), "{output:?}");
    assert_eq!(holders(at), 0);
}

#[test]
fn another_librarys_lock_and_those_that_share_exclude_each_other() {
    let at = Site::redis();
    let server = at.server();
    assert!(server.ask(&["SET", "dlock:x", "theirs", "NX", "PX", "60000"]).starts_with("+OK"));
    for options in [&["--shared"][..], &["--slots", "3"]] {
        let words = [&["run", "-r", "x"], options, &["--", "true"]].concat();
        let output = at.run(&words);
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        assert!(text(&output.stderr).contains("a client that left no record"), "{output:?}");
    }
    assert!(server.ask(&["GET", "dlock:x"]).contains("theirs"));
    server.ask(&["DEL", "dlock:x"]);
    let (one, two) = (started(&at, &["--slots", "3"], 0), started(&at, &["--shared"], 1));
    for _ in 0..2 {
        assert!(server.ask(&["SET", "dlock:x", "theirs", "NX", "PX", "60000"]).starts_with("$-1"), "it is free for others");
        let left: i64 = server.ask(&["PTTL", "dlock:x"]).trim().trim_start_matches(':').parse().unwrap();
        assert!((1..=5000).contains(&left), "{left}");
        sleep(Duration::from_secs(2));
    }
    stop(one);
    assert!(server.ask(&["SET", "dlock:x", "theirs", "NX", "PX", "60000"]).starts_with("$-1"), "one shares it still");
    stop(two);
    assert!(server.ask(&["EXISTS", "dlock:x"]).starts_with(":0"));
}

#[test]
fn a_hand_over_costs_the_server_the_same_however_many_wait() {
    let count = |waiters: usize| {
        let at = Site::redis();
        let holder = started(&at, &[], 0);
        let waiting: Vec<Child> =
            (0..waiters).map(|_| at.dlock(&["run", "-r", "x", "-w", "60s", "--", "true"]).stderr(Stdio::null()).spawn().unwrap()).collect();
        until("all in line", || in_line(&at) == waiters);
        at.server().ask(&["CONFIG", "RESETSTAT"]);
        stop(holder);
        for mut waiter in waiting {
            assert!(ends_in_a_minute(&mut waiter));
        }
        // What clients ask, and what the scripts do for it.
        let stats = at.server().ask(&["INFO", "commandstats"]);
        let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<usize>().ok();
        let all: usize = stats.lines().filter_map(calls).sum();
        let scripts: usize = stats.lines().filter(|line| line.starts_with("cmdstat_evalsha")).filter_map(calls).sum();
        (all as f64 / waiters as f64, scripts as f64 / waiters as f64)
    };
    let (few, many) = (count(4), count(40));
    assert!(many.0 < few.0 * 1.3 && many.1 < 6.0, "{few:?} {many:?}");
}

#[test]
fn the_mark_of_those_that_share_is_nobodys_token() {
    let at = Site::redis();
    let holder = started(&at, &["--shared"], 0);
    for verb in ["release", "refresh"] {
        assert_eq!(at.code(&[verb, "-r", "x", "--token", "dlock:shared"]), 80, "{verb}");
    }
    assert_eq!(at.code(&["status", "-r", "x", "--token", "dlock:shared"]), 80);
    assert!(at.server().ask(&["SET", "dlock:y", "dlock:shared", "PX", "60000"]).starts_with("+OK"), "of which nothing else is left");
    assert_eq!(at.code(&["run", "-r", "y", "--", "true"]), 75);
    assert_eq!(at.code(&["run", "-r", "y", "--shared", "--", "true"]), 75);
    stop(holder);
}

#[test]
fn a_record_of_another_version_is_refused_on_redis_too() {
    let at = Site::redis();
    let server = at.server();
    server.ask(&["SET", "dlock:x", "token", "PX", "60000"]);
    server.ask(&["HSET", "dlock:{dlock:x}:rec", "token", "9 process x -1 1 1 1\n{}\n"]);
    server.ask(&["SET", "dlock:y", "dlock:shared", "PX", "60000"]);
    server.ask(&["ZADD", "dlock:{dlock:y}:held", "9999999999999", "token"]);
    server.ask(&["HSET", "dlock:{dlock:y}:rec", "token", "9 process 0 -1 1 1 1\n{}\n"]);
    for name in ["x", "y"] {
        for words in [
            &["run", "-r", name, "--", "true"][..],
            &["run", "-r", name, "--shared", "--", "true"],
            &["status", "-r", name],
            &["release", "-r", name, "--token", "token"],
            &["refresh", "-r", name, "--token", "token"],
            &["break", "-r", name, "--yes"],
        ] {
            let output = at.run(words);
            assert_eq!(output.status.code(), Some(77), "{words:?}: {output:?}");
            assert!(text(&output.stderr).contains("layout 9"), "{words:?}: {output:?}");
        }
        assert!(server.ask(&["EXISTS", &format!("dlock:{name}")]).starts_with(":1"));
        assert!(server.ask(&["HLEN", &format!("dlock:{{dlock:{name}}}:rec")]).starts_with(":1"));
    }
}
