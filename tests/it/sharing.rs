//! The contract of a store, continued: shared locks and slots.

use std::thread::scope;
use std::time::{Duration, Instant};

use dlock::lock::{Keeping, Mode, Name, Owner, Request};
use dlock::store::{self, Acquired, Lost, Refreshed, Released};

use crate::conformance::{LONG, Opener, SHORT, ask, busy, fence, name};
use crate::redis::Site;

fn shared(name: &Name) -> Request {
    Request { mode: Mode::Shared { limit: None }, ..ask(name) }
}

fn slots(name: &Name, limit: u32) -> Request {
    Request { mode: Mode::Shared { limit: Some(limit) }, ..ask(name) }
}

fn slot(answer: &Acquired) -> Option<u32> {
    match answer {
        Acquired::Granted { slot, .. } => *slot,
        busy => panic!("not granted: {busy:?}"),
    }
}

fn those_that_share_exclude_only_those_that_do_not(open: &Opener) {
    let mut store = open();
    let name = name();
    let (one, two, alone) = (shared(&name), shared(&name), ask(&name));
    let first = fence(&store.acquire(&one).unwrap());
    assert!(fence(&open().acquire(&two).unwrap()) > first, "each has a fence of its own");
    assert!(busy(&store.acquire(&alone).unwrap()));
    assert_eq!(fence(&store.acquire(&one).unwrap()), first, "asking again is the same lease");
    let status = store.status(&name, Some(&two.claim)).unwrap();
    assert_eq!(status.holders.iter().map(|holding| holding.mode).collect::<Vec<_>>(), [one.mode; 2]);
    assert!(status.own.is_some());
    assert!(matches!(store.release(&one.claim, Keeping::Lease).unwrap(), Released::Freed));
    assert!(matches!(store.release(&one.claim, Keeping::Lease).unwrap(), Released::NotHeld(Some(_))));
    assert!(busy(&store.acquire(&alone).unwrap()), "the other one shares it still");
    assert!(matches!(store.release(&two.claim, Keeping::Lease).unwrap(), Released::Freed));
    assert!(!busy(&store.acquire(&alone).unwrap()));
    assert!(busy(&store.acquire(&one).unwrap()) && busy(&store.acquire(&slots(&name, 5)).unwrap()));
}

fn each_that_shares_has_a_deadline_of_its_own(open: &Opener) {
    let mut store = open();
    let name = name();
    let (short, long) = (Request { ttl: SHORT, ..shared(&name) }, shared(&name));
    store.acquire(&short).unwrap();
    store.acquire(&long).unwrap();
    assert!(matches!(store.refresh(&long.claim, SHORT * 3).unwrap(), Refreshed::Kept { .. }));
    std::thread::sleep(SHORT + Duration::from_millis(100));
    assert!(matches!(store.refresh(&short.claim, LONG).unwrap(), Refreshed::Lost(_)));
    assert_eq!(store.status(&name, None).unwrap().holders.len(), 1);
    assert!(matches!(store.refresh(&long.claim, SHORT).unwrap(), Refreshed::Kept { .. }));
    assert!(busy(&store.acquire(&ask(&name)).unwrap()));
    std::thread::sleep(SHORT + Duration::from_millis(100));
    assert!(!busy(&store.acquire(&ask(&name)).unwrap()), "the last has run out");
}

fn slots_are_numbered_and_no_number_is_given_twice(open: &Opener) {
    let mut store = open();
    let name = name();
    let all: Vec<_> = (0..3).map(|_| slots(&name, 3)).collect();
    let given: Vec<_> = all.iter().map(|request| slot(&store.acquire(request).unwrap())).collect();
    assert_eq!(given, [Some(0), Some(1), Some(2)]);
    assert!(busy(&store.acquire(&slots(&name, 3)).unwrap()) && busy(&store.acquire(&ask(&name)).unwrap()));
    assert_eq!(slot(&store.acquire(&all[1]).unwrap()), Some(1), "asking again is the same slot");
    store.release(&all[1].claim, Keeping::Lease).unwrap();
    assert_eq!(slot(&store.acquire(&slots(&name, 3)).unwrap()), Some(1), "the lowest that is free");
    let mut seen: Vec<_> = store.status(&name, None).unwrap().holders.into_iter().filter_map(|holding| holding.slot).collect();
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2]);
}

fn the_smallest_number_of_slots_decides(open: &Opener) {
    let mut store = open();
    let name = name();
    let (two, five) = (slots(&name, 2), slots(&name, 5));
    assert_eq!(slot(&store.acquire(&five).unwrap()), Some(0));
    assert_eq!(slot(&store.acquire(&two).unwrap()), Some(1));
    assert!(busy(&store.acquire(&slots(&name, 5)).unwrap()), "a living holder is content with two only");
    assert!(busy(&store.acquire(&shared(&name)).unwrap()), "whoever shares counts");
    store.release(&two.claim, Keeping::Lease).unwrap();
    for _ in 0..4 {
        assert!(!busy(&store.acquire(&slots(&name, 5)).unwrap()));
    }
    assert!(busy(&store.acquire(&slots(&name, 2)).unwrap()));
}

fn one_of_many_gets_each_slot(open: &Opener) {
    let name = name();
    let mut given = scope(|threads| {
        let ask = || match open().acquire(&slots(&name, 3)).unwrap() {
            Acquired::Granted { slot, .. } => slot,
            Acquired::Busy { .. } => None,
        };
        let all: Vec<_> = (0..8).map(|_| threads.spawn(ask)).collect();
        all.into_iter().filter_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    given.sort_unstable();
    assert_eq!(given, [0, 1, 2]);
}

fn a_writer_in_line_stops_later_readers(open: &Opener) {
    let mut store = open();
    let name = name();
    let queued = |request: Request| Request { queue: true, ..request };
    let (early, writer, late, later) = (shared(&name), queued(ask(&name)), queued(shared(&name)), queued(shared(&name)));
    store.acquire(&early).unwrap();
    assert!(busy(&store.acquire(&writer).unwrap()));
    assert!(busy(&store.acquire(&late).unwrap()) && busy(&store.acquire(&later).unwrap()));
    assert!(busy(&store.acquire(&shared(&name)).unwrap()), "nor one that does not wait");
    let modes: Vec<_> = store.status(&name, None).unwrap().waiters.into_iter().map(|waiter| waiter.mode).collect();
    assert_eq!(modes, [writer.mode, late.mode, late.mode]);
    store.release(&early.claim, Keeping::Lease).unwrap();
    assert!(busy(&store.acquire(&late).unwrap()));
    assert!(!busy(&store.acquire(&writer).unwrap()));
    store.release(&writer.claim, Keeping::Lease).unwrap();
    assert!(busy(&store.acquire(&later).unwrap()), "in order");
    assert!(!busy(&store.acquire(&late).unwrap()) && !busy(&store.acquire(&later).unwrap()));
    assert_eq!(store.status(&name, None).unwrap().holders.len(), 2);
}

fn a_grant_to_one_that_shares_wakes_the_next_that_does(open: &Opener) {
    let (mut holder, mut one, mut two) = (open(), open(), open());
    let held = ask(&name());
    let queued = || Request { queue: true, ..shared(&held.claim.name) };
    let (first, second) = (queued(), queued());
    holder.acquire(&held).unwrap();
    assert!(busy(&one.acquire(&first).unwrap()) && busy(&two.acquire(&second).unwrap()));
    scope(|threads| {
        let began = Instant::now();
        let waiting = threads.spawn(|| {
            two.await_change(&second.claim, Duration::from_secs(10)).unwrap();
            !busy(&two.acquire(&second).unwrap())
        });
        std::thread::sleep(Duration::from_millis(200));
        holder.release(&held.claim, Keeping::Lease).unwrap();
        assert!(!busy(&one.acquire(&first).unwrap()));
        assert!(waiting.join().unwrap());
        assert!(began.elapsed() < Duration::from_secs(5));
    });
}

fn a_writer_that_leaves_the_line_lets_readers_through(open: &Opener) {
    let (mut store, mut reader) = (open(), open());
    let name = name();
    let queued = |request: Request| Request { queue: true, ..request };
    let (early, writer, late) = (shared(&name), queued(ask(&name)), queued(shared(&name)));
    store.acquire(&early).unwrap();
    store.acquire(&writer).unwrap();
    assert!(busy(&reader.acquire(&late).unwrap()));
    scope(|threads| {
        let began = Instant::now();
        let waiting = threads.spawn(|| {
            reader.await_change(&late.claim, Duration::from_secs(10)).unwrap();
            !busy(&reader.acquire(&late).unwrap())
        });
        std::thread::sleep(Duration::from_millis(200));
        store.release(&writer.claim, Keeping::Lease).unwrap();
        assert!(waiting.join().unwrap());
        assert!(began.elapsed() < Duration::from_secs(5));
    });
}

fn one_of_several_is_broken_by_its_fence(open: &Opener) {
    let mut store = open();
    let name = name();
    let by = Owner { user: "boss".into(), ..Owner::default() };
    let (lease, run) = (slots(&name, 3), Request { keeping: Keeping::Process, ..slots(&name, 3) });
    let mut own = open();
    let (first, second) = (fence(&store.acquire(&lease).unwrap()), fence(&own.acquire(&run).unwrap()));
    assert!(store.break_lease(&name, &by, Some(second + 1)).unwrap().is_empty());
    let broken = store.break_lease(&name, &by, Some(first)).unwrap();
    assert_eq!(broken.iter().map(|holding| (holding.fence, holding.slot)).collect::<Vec<_>>(), [(Some(first), Some(0))]);
    assert!(matches!(store.refresh(&lease.claim, LONG).unwrap(), Refreshed::Lost(_)));
    assert!(matches!(own.refresh(&run.claim, LONG).unwrap(), Refreshed::Kept { .. }), "the other one is not touched");
    assert_eq!(store.break_lease(&name, &by, None).unwrap().len(), 1);
    let answer = own.refresh(&run.claim, LONG).unwrap();
    assert!(matches!(&answer, Refreshed::Lost(Lost::Broken { by }) if by.user == "boss"), "{answer:?}");
    assert!(busy(&store.acquire(&ask(&name)).unwrap()), "held until its tree is empty");
    assert!(matches!(own.release(&run.claim, Keeping::Process).unwrap(), Released::Freed));
    assert!(!busy(&store.acquire(&ask(&name)).unwrap()));
}

fn a_job_that_waits_for_what_it_shares_itself_is_told(open: &Opener) {
    let mut store = open();
    let name = name();
    let held = shared(&name);
    store.acquire(&held).unwrap();
    let inner = |request: Request| Request { queue: true, parent: Some(held.claim.token.clone()), ..request };
    let answer = store.acquire(&inner(ask(&name))).unwrap();
    assert!(matches!(answer, Acquired::Busy { own_parent: true, .. }), "{answer:?}");
    assert!(!busy(&store.acquire(&inner(shared(&name))).unwrap()), "what can be had is had");
    store.acquire(&Request { queue: true, ..ask(&name) }).unwrap();
    let answer = store.acquire(&inner(shared(&name))).unwrap();
    assert!(matches!(answer, Acquired::Busy { own_parent: true, .. }), "behind a writer that waits for it: {answer:?}");
}

promises!(
    those_that_share_exclude_only_those_that_do_not,
    each_that_shares_has_a_deadline_of_its_own,
    slots_are_numbered_and_no_number_is_given_twice,
    the_smallest_number_of_slots_decides,
    one_of_many_gets_each_slot,
    a_writer_in_line_stops_later_readers,
    a_grant_to_one_that_shares_wakes_the_next_that_does,
    a_writer_that_leaves_the_line_lets_readers_through,
    one_of_several_is_broken_by_its_fence,
    a_job_that_waits_for_what_it_shares_itself_is_told,
);
