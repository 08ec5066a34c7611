//! A proxy in front of a server that can lose what passes through it, as a network does; and what dlock
//! makes of that.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use crate::harness::{text, until};
use crate::redis::Site;

pub const PASS: u8 = 0;
/// Nothing passes, and no end is told.
pub const DARK: u8 = 1;
/// Requests pass; the next answer is lost, with its connection.
const LOSE_ANSWER: u8 = 2;
/// Connections are cut at the next byte.
const CUT: u8 = 3;
/// Answers come 300 ms late.
pub const SLOW: u8 = 4;
/// Answers come 1.2 s late.
pub const LATE: u8 = 5;

pub struct Proxy {
    mode: Arc<AtomicU8>,
    pub url: String,
}

impl Proxy {
    pub fn before(at: &Site) -> Proxy {
        let target = at.server().port();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let mode = Arc::new(AtomicU8::new(PASS));
        let own = Arc::clone(&mode);
        spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(format!("127.0.0.1:{target}")) else { continue };
                let (up, down) = (Arc::clone(&own), Arc::clone(&own));
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                spawn(move || pump(from, to, &up, false));
                spawn(move || pump(server, client, &down, true));
            }
        });
        Proxy { mode, url }
    }

    pub fn set(&self, mode: u8) {
        self.mode.store(mode, SeqCst);
    }

    /// Has what was set happened?
    fn is_done(&self) -> bool {
        self.mode.load(SeqCst) == PASS
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, mode: &AtomicU8, answers: bool) {
    let mut bytes = [0; 65536];
    loop {
        let read = from.read(&mut bytes).unwrap_or(0);
        if read == 0 {
            if mode.load(SeqCst) != DARK {
                let _ = to.shutdown(Shutdown::Both);
            }
            return;
        }
        match mode.load(SeqCst) {
            DARK => continue,
            LOSE_ANSWER if answers => {
                mode.store(PASS, SeqCst);
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                return;
            }
            CUT => {
                mode.store(PASS, SeqCst);
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                return;
            }
            SLOW if answers => sleep(Duration::from_millis(300)),
            LATE if answers => sleep(Duration::from_millis(1200)),
            _ => {}
        }
        if to.write_all(&bytes[..read]).is_err() {
            return;
        }
    }
}

/// Lines of `date +%s.%N` in a file.
pub fn moments(path: &std::path::Path) -> Vec<f64> {
    fs::read_to_string(path).unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
}

#[test]
fn an_acquire_whose_answer_is_lost_is_one_grant() {
    let at = Site::redis();
    let proxy = Proxy::before(&at);
    proxy.set(LOSE_ANSWER);
    let line = "echo $DLOCK_FENCING_TOKEN";
    let output = at.run(&["run", "--store", &proxy.url, "-r", "x", "-w", "5s", "-c", line]);
    assert!(output.status.success() && proxy.is_done(), "{output:?}");
    let granted = text(&output.stdout).trim().to_owned();
    assert_eq!(at.status("x")["last_fencing_token"].to_string(), granted, "granted once");
    // Where nobody waits for a second try, what may have been granted is released.
    proxy.set(LOSE_ANSWER);
    assert_eq!(at.code(&["run", "--store", &proxy.url, "-r", "y", "-t", "60s", "--", "true"]), 69);
    assert!(proxy.is_done() && !at.held("y"));
}

#[test]
fn a_renewal_or_release_whose_answer_is_lost_is_no_loss() {
    let at = Site::redis();
    let proxy = Proxy::before(&at);
    for mode in [LOSE_ANSWER, CUT] {
        let go = at.path(&format!("go{mode}"));
        let line = format!("sleep 1.5; touch {0}.near; until [ -e {0} ]; do sleep 0.02; done", go.display());
        let child = at.start(&["run", "--store", &proxy.url, "-r", "x", "-t", "2s", "-c", &line]);
        until("held", || at.held("x"));
        proxy.set(mode);
        until("a renewal was hit", || proxy.is_done());
        let near = format!("{}.near", go.display());
        until("near the end", || fs::exists(&near).unwrap());
        proxy.set(mode);
        fs::write(&go, "").unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{mode}: {output:?}");
        assert!(!at.held("x"), "{mode}");
        proxy.set(PASS);
    }
}

#[test]
fn slow_answers_are_waited_for() {
    let at = Site::redis();
    let proxy = Proxy::before(&at);
    proxy.set(SLOW);
    let output = at.run(&["run", "--store", &proxy.url, "-r", "x", "-t", "4s", "--", "sleep", "3"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// A holder cut off from its store, without a word; somebody else waits for the lock by another way.
/// Tells the holder's last tick, the other's start, and how the holder ended.
fn cut_off(on_lost: &str) -> (f64, f64, Option<i32>) {
    let at = Site::redis();
    let proxy = Proxy::before(&at);
    let ticks = at.path("ticks");
    let line = format!("trap '' TERM; while :; do date +%s.%N >> {}; sleep 0.02; done", ticks.display());
    let options = ["run", "--store", &proxy.url, "-r", "x", "-t", "2s", "--on-lost", on_lost, "--max-runtime", "6s", "-c"];
    let holder = at.start(&[&options[..], &[&line]].concat());
    until("ticking", || moments(&ticks).len() > 3);
    proxy.set(DARK);
    let other = at.run(&["run", "-r", "x", "-w", "20s", "--", "date", "+%s.%N"]);
    let began: f64 = text(&other.stdout).trim().parse().unwrap_or_else(|_| panic!("{other:?}"));
    let output = holder.wait_with_output().unwrap();
    (*moments(&ticks).last().unwrap(), began, output.status.code())
}

#[test]
fn case_18_a_holder_that_is_cut_off_is_dead_before_anybody_else_gets_the_lock() {
    let (last, began, code) = cut_off("stop");
    assert!(last < began, "ran {} s beside the next holder", last - began);
    assert_eq!(code, Some(79));
}

/// The same with the judgement switched off: what shows that the test above can fail.
#[test]
fn case_18_without_the_judgement_the_two_overlap() {
    let (last, began, code) = cut_off("continue");
    assert!(last > began + 1.0, "{last} {began}");
    assert_eq!(code, Some(124));
}

#[test]
fn a_server_that_never_answers_a_release_holds_up_for_two_seconds_at_most() {
    let at = Site::redis();
    let proxy = Proxy::before(&at);
    let go = at.path("go");
    let line = format!("until [ -e {} ]; do sleep 0.02; done; exit 5", go.display());
    let child = at.start(&["run", "--store", &proxy.url, "-r", "x", "-t", "20s", "-c", &line]);
    until("held", || at.held("x"));
    proxy.set(DARK);
    fs::write(&go, "").unwrap();
    let began = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(text(&output.stderr).contains("could not release 'x', it expires in "), "{output:?}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
