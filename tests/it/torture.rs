//! Many at once, in all modes, killed at random. The oracle is the kernel: each command locks a file as
//! its mode demands, without waiting, for as long as it lives; who finds it locked tells of an overlap.
//!
//! A short form runs with the others. `DLOCK_TORTURE=seconds,workers,seed` makes it a long one.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use crate::harness::{Fixture, until};
use crate::redis::{Site, on_each_store};

on_each_store!(no_mode_overlaps_and_nobody_is_lost);

/// A seeded sequence (SplitMix64, G. Steele et al. 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// What a command does: it locks, writes its fence down, and lives for a moment.
const COMMAND: &str = r#"
    case $MODE in exclusive) how=-x ;; *) how=-s ;; esac
    exec 8>>"$HOME/whole" 9>>"$HOME/slot${DLOCK_SLOT:-none}"
    flock -n $how 8 || exit 99
    if [ -n "$DLOCK_SLOT" ]; then
        [ "$DLOCK_SLOT" -lt 3 ] || exit 98
        flock -n -x 9 || exit 97
    fi
    echo "$MODE $DLOCK_FENCING_TOKEN" >> "$HOME/fences"
    [ -z "$NAP" ] || exec sleep "$NAP""#;

struct Tally {
    granted: AtomicUsize,
    faults: [AtomicUsize; 3],
}

fn worker(at: &Fixture, seed: u64, over: &AtomicBool, tally: &Tally) {
    let mut random = Random(seed);
    while !over.load(SeqCst) {
        let (mode, options) = match random.below(4) {
            0 | 1 => ("exclusive", &[][..]),
            2 => ("shared", &["--shared"][..]),
            _ => ("slots", &["--slots", "3"][..]),
        };
        let words = [&["run", "-r", "t", "-t", "2s", "-w", "60s"], options, &["-c", COMMAND]].concat();
        let nap = ["", "", "0.01", "0.05"][random.below(4) as usize];
        let mut command = at.dlock(&words);
        let mut child = command.env("MODE", mode).env("NAP", nap).stderr(Stdio::null()).spawn().unwrap();
        let fault = (random.below(6) == 0).then(|| random.below(3) as usize);
        if let Some(kind) = fault {
            sleep(Duration::from_millis(random.below(400)));
            if strike(&child, kind) {
                tally.faults[kind].fetch_add(1, SeqCst);
            }
        }
        let ended = ends_within(&mut child, Duration::from_secs(60));
        match ended {
            Some(0) => drop(tally.granted.fetch_add(1, SeqCst)),
            code if fault.is_none() => panic!("{mode} without a fault: {code:?}, seed {seed}"),
            // By a signal, or 69, 71, 79 for what a KILL has left behind.
            code => assert!(code.is_none_or(|code| [69, 71, 79].contains(&code)), "{mode}: {code:?}, seed {seed}"),
        }
    }
}

/// KILL of the process that the caller knows, KILL of the one that it has forked, or TERM.
fn strike(child: &Child, kind: usize) -> bool {
    let pid = child.id();
    let target = match kind {
        1 => {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            children.split_whitespace().next().map(str::to_owned)
        }
        _ => Some(pid.to_string()),
    };
    let name = if kind == 2 { "-TERM" } else { "-KILL" };
    target.is_some_and(|pid| Command::new("kill").args([name, &pid]).stderr(Stdio::null()).status().unwrap().success())
}

/// The exit status; `None` for a death by a signal. One that does not end is lost.
fn ends_within(child: &mut Child, limit: Duration) -> Option<i32> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(Instant::now() < end, "a waiter was lost: pid {}", child.id());
        sleep(Duration::from_millis(2));
    }
}

#[allow(clippy::print_stdout)] // the report of a long one
fn no_mode_overlaps_and_nobody_is_lost(at: &Site) {
    let long = std::env::var("DLOCK_TORTURE").unwrap_or_default();
    let mut long = long.split(',').map(|number| number.parse::<u64>().unwrap_or_default());
    let seconds = long.next().filter(|seconds| *seconds > 0).unwrap_or(6);
    let (workers, seed) = (long.next().unwrap_or(12), long.next().unwrap_or(1));
    let tally = Tally { granted: AtomicUsize::new(0), faults: [0; 3].map(AtomicUsize::new) };
    let over = AtomicBool::new(false);
    let failed = Mutex::new(Vec::new());
    scope(|threads| {
        for number in 0..workers {
            let (tally, over, failed) = (&tally, &over, &failed);
            let seed = seed * 1000 + number;
            threads.spawn(move || {
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker(at, seed, over, tally)));
                if done.is_err() {
                    failed.lock().unwrap().push(seed);
                    over.store(true, SeqCst);
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end && !over.load(SeqCst) {
            sleep(Duration::from_millis(50));
        }
        over.store(true, SeqCst);
    });
    assert!(failed.lock().unwrap().is_empty());
    let faults = tally.faults.each_ref().map(|count| count.load(SeqCst));
    println!("{} granted; KILL {}, KILL of the supervisor {}, TERM {}", tally.granted.load(SeqCst), faults[0], faults[1], faults[2]);
    assert!(tally.granted.load(SeqCst) > 20 && faults.iter().all(|count| *count > 0), "{faults:?}");
    rising(at);
    until("nothing is left", || {
        let status = at.status("t");
        status["holders"].as_array().unwrap().is_empty() && status["waiters"].as_array().unwrap().is_empty()
    });
    if at.redis.is_some() {
        // The hints to waiters that were killed end by themselves within 5 s.
        until("the server is empty but for the counters", || {
            let left = at.server().ask(&["KEYS", "*"]);
            ["}:fence", "}:ticket"].iter().all(|key| left.contains(key)) && left.starts_with("*2")
        });
    }
}

/// Who holds alone has a fence above all that were written down before it, and below all that come after.
fn rising(at: &Fixture) {
    let (mut highest, mut alone) = (0, 0);
    for line in fs::read_to_string(at.path("fences")).unwrap().lines() {
        let (mode, fence) = line.split_once(' ').unwrap();
        let fence: u64 = fence.parse().unwrap();
        assert!(fence > alone, "{line} after {alone}");
        if mode == "exclusive" {
            assert!(fence > highest, "{line} after {highest}");
            alone = fence;
        }
        highest = highest.max(fence);
    }
}
