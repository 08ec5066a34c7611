//! The contract of a store, executable: one function a promise, one test a promise a store. Each opens
//! fresh connections and a random name, so that all may run side by side against one server.

use std::thread::scope;
use std::time::{Duration, Instant};

use dlock::lock::{Claim, Keeping, Mode, Name, Owner, Request, Token};
use dlock::store::{self, Acquired, Lost, Refreshed, Released, Store};

use crate::redis::Site;

pub type Opener<'a> = dyn Fn() -> Box<dyn Store> + Sync + 'a;

pub const LONG: Duration = Duration::from_secs(30);
pub const SHORT: Duration = Duration::from_millis(400);

pub fn name() -> Name {
    Name::new(&format!("conformance-{}", Token::random().as_str())).unwrap()
}

pub fn ask(name: &Name) -> Request {
    Request {
        claim: Claim { name: name.clone(), token: Token::random() },
        owner: Owner { user: "ann".into(), host: "hill".into(), pid: 42, program: "job".into(), label: Some("a b".into()) },
        mode: Mode::Exclusive,
        ttl: LONG,
        queue: false,
        keeping: Keeping::Lease,
        parent: None,
    }
}

pub fn fence(answer: &Acquired) -> u64 {
    match answer {
        Acquired::Granted { fence, .. } => fence.unwrap(),
        busy => panic!("not granted: {busy:?}"),
    }
}

pub fn busy(answer: &Acquired) -> bool {
    matches!(answer, Acquired::Busy { .. })
}

fn asking_twice_with_one_token_is_one_grant(open: &Opener) {
    let (mut one, mut two) = (open(), open());
    let request = ask(&name());
    let first = fence(&one.acquire(&request).unwrap());
    assert_eq!(fence(&two.acquire(&request).unwrap()), first);
    assert!(matches!(one.release(&request.claim, Keeping::Lease).unwrap(), Released::Freed));
    assert!(one.status(&request.claim.name, None).unwrap().holders.is_empty());
}

fn one_of_many_is_granted(open: &Opener) {
    let name = name();
    let granted = scope(|threads| {
        let all: Vec<_> = (0..8).map(|_| threads.spawn(|| !busy(&open().acquire(&ask(&name)).unwrap()))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).filter(|granted| *granted).count()
    });
    assert_eq!(granted, 1);
}

fn busy_names_the_holder_and_hides_the_token(open: &Opener) {
    let (mut one, mut two) = (open(), open());
    let request = ask(&name());
    one.acquire(&request).unwrap();
    let answer = two.acquire(&ask(&request.claim.name)).unwrap();
    let Acquired::Busy { holders, waiting, own_parent, .. } = &answer else { panic!("{answer:?}") };
    assert_eq!(holders[0].owner.as_ref().unwrap(), &request.owner);
    assert!(holders[0].expires_in > LONG / 2 && holders[0].expires_in <= LONG);
    assert_eq!((*waiting, *own_parent), (0, false));
    let status = two.status(&request.claim.name, None).unwrap();
    for shown in [format!("{answer:?}"), format!("{status:?}")] {
        assert!(!shown.contains(request.claim.token.as_str()), "{shown}");
    }
}

fn a_wrong_token_releases_and_renews_nothing(open: &Opener) {
    let mut store = open();
    let request = ask(&name());
    store.acquire(&request).unwrap();
    let wrong = ask(&request.claim.name).claim;
    assert!(matches!(store.release(&wrong, Keeping::Lease).unwrap(), Released::NotHeld(Some(_))));
    assert!(matches!(store.refresh(&wrong, LONG).unwrap(), Refreshed::Lost(Lost::Foreign(_))));
    assert!(store.status(&request.claim.name, Some(&request.claim)).unwrap().own.is_some());
    assert!(store.status(&request.claim.name, Some(&wrong)).unwrap().own.is_none());
}

fn renewal_never_creates(open: &Opener) {
    let mut store = open();
    let claim = ask(&name()).claim;
    assert!(matches!(store.refresh(&claim, LONG).unwrap(), Refreshed::Lost(Lost::Absent)));
    assert!(matches!(store.release(&claim, Keeping::Lease).unwrap(), Released::NotHeld(None)));
    assert!(store.status(&claim.name, None).unwrap().holders.is_empty());
}

fn a_lease_runs_out_unless_it_is_renewed(open: &Opener) {
    let mut store = open();
    let (mut kept, mut left) = (ask(&name()), ask(&name()));
    (kept.ttl, left.ttl) = (SHORT, SHORT);
    store.acquire(&kept).unwrap();
    store.acquire(&left).unwrap();
    assert!(matches!(store.refresh(&kept.claim, LONG).unwrap(), Refreshed::Kept { .. }));
    std::thread::sleep(SHORT + Duration::from_millis(100));
    assert!(store.status(&kept.claim.name, Some(&kept.claim)).unwrap().own.is_some());
    assert!(matches!(store.refresh(&left.claim, LONG).unwrap(), Refreshed::Lost(Lost::Absent)));
    assert!(!busy(&store.acquire(&ask(&left.claim.name)).unwrap()));
    assert!(matches!(store.refresh(&left.claim, LONG).unwrap(), Refreshed::Lost(Lost::Foreign(_))));
}

fn fences_rise_across_release_and_expiry(open: &Opener) {
    let mut store = open();
    let name = name();
    let mut last = 0;
    for round in 0..4 {
        let mut request = ask(&name);
        request.ttl = if round % 2 == 0 { LONG } else { SHORT };
        let now = fence(&store.acquire(&request).unwrap());
        assert!(now > last, "{now} after {last}");
        last = now;
        if round % 2 == 0 {
            store.release(&request.claim, Keeping::Lease).unwrap();
        } else {
            std::thread::sleep(SHORT + Duration::from_millis(100));
        }
    }
    assert_eq!(store.status(&name, None).unwrap().last_fence, Some(last));
}

fn waiters_are_served_in_order_and_nobody_overtakes(open: &Opener) {
    let (mut holder, mut first, mut second, mut late) = (open(), open(), open(), open());
    let held = ask(&name());
    let queued = || Request { queue: true, ..ask(&held.claim.name) };
    let (one, two) = (queued(), queued());
    holder.acquire(&held).unwrap();
    assert!(busy(&first.acquire(&one).unwrap()));
    assert!(busy(&second.acquire(&two).unwrap()));
    assert!(busy(&first.acquire(&one).unwrap()), "asking again keeps the place");
    assert_eq!(holder.status(&held.claim.name, None).unwrap().waiters.len(), 2);
    holder.release(&held.claim, Keeping::Lease).unwrap();
    assert!(busy(&late.acquire(&ask(&held.claim.name)).unwrap()), "a newcomer does not overtake");
    assert!(busy(&second.acquire(&two).unwrap()));
    assert!(!busy(&first.acquire(&one).unwrap()));
    first.release(&one.claim, Keeping::Lease).unwrap();
    assert!(!busy(&second.acquire(&two).unwrap()));
    assert!(holder.status(&held.claim.name, None).unwrap().waiters.is_empty());
}

fn who_leaves_the_line_holds_nobody_up(open: &Opener) {
    let (mut holder, mut first, mut second) = (open(), open(), open());
    let held = ask(&name());
    let queued = || Request { queue: true, ..ask(&held.claim.name) };
    let (one, two) = (queued(), queued());
    holder.acquire(&held).unwrap();
    first.acquire(&one).unwrap();
    second.acquire(&two).unwrap();
    assert!(matches!(open().release(&one.claim, Keeping::Lease).unwrap(), Released::NotHeld(_)), "from a connection of its own");
    holder.release(&held.claim, Keeping::Lease).unwrap();
    assert!(!busy(&second.acquire(&two).unwrap()));
}

fn a_release_wakes_the_first_waiter(open: &Opener) {
    let (mut holder, mut waiter) = (open(), open());
    let held = ask(&name());
    let queued = Request { queue: true, ..ask(&held.claim.name) };
    holder.acquire(&held).unwrap();
    assert!(busy(&waiter.acquire(&queued).unwrap()));
    scope(|threads| {
        let waiting = threads.spawn(|| {
            let began = Instant::now();
            waiter.await_change(&queued.claim, Duration::from_secs(10)).unwrap();
            began.elapsed()
        });
        std::thread::sleep(Duration::from_millis(200));
        holder.release(&held.claim, Keeping::Lease).unwrap();
        let waited = waiting.join().unwrap();
        assert!(waited < Duration::from_secs(5), "{waited:?}");
    });
}

fn breaking_a_lease_frees_it_and_breaking_a_run_tells_it(open: &Opener) {
    let mut store = open();
    let by = Owner { user: "boss".into(), ..Owner::default() };
    let lease = ask(&name());
    store.acquire(&lease).unwrap();
    assert_eq!(store.break_lease(&lease.claim.name, &by, None).unwrap().len(), 1);
    assert!(store.status(&lease.claim.name, None).unwrap().holders.is_empty());
    assert!(store.break_lease(&lease.claim.name, &by, None).unwrap().is_empty());

    let run = Request { keeping: Keeping::Process, ..ask(&name()) };
    let mut own = open();
    own.acquire(&run).unwrap();
    assert_eq!(store.break_lease(&run.claim.name, &by, None).unwrap().len(), 1);
    assert!(busy(&store.acquire(&ask(&run.claim.name)).unwrap()), "held until its tree is empty");
    assert_eq!(store.status(&run.claim.name, None).unwrap().holders[0].broken_by.as_ref().unwrap().user, "boss");
    let answer = own.refresh(&run.claim, LONG).unwrap();
    assert!(matches!(&answer, Refreshed::Lost(Lost::Broken { by }) if by.user == "boss"), "{answer:?}");
    assert!(matches!(own.release(&run.claim, Keeping::Process).unwrap(), Released::Freed));
}

fn what_a_run_keeps_is_released_by_that_run_alone(open: &Opener) {
    let run = Request { keeping: Keeping::Process, ..ask(&name()) };
    let (mut own, mut job) = (open(), open());
    own.acquire(&run).unwrap();
    assert!(matches!(job.release(&run.claim, Keeping::Lease).unwrap(), Released::Kept(_)));
    assert!(busy(&job.acquire(&ask(&run.claim.name)).unwrap()));
    assert!(matches!(own.release(&run.claim, Keeping::Process).unwrap(), Released::Freed));
}

fn a_job_that_renews_the_run_it_is_in_does_not_shorten_it(open: &Opener) {
    let run = Request { keeping: Keeping::Process, ..ask(&name()) };
    let (mut own, mut job) = (open(), open());
    own.acquire(&run).unwrap();
    job.refresh(&run.claim, Duration::from_millis(1)).unwrap();
    assert!(own.status(&run.claim.name, None).unwrap().holders[0].expires_in > LONG / 2);
    let lease = ask(&name());
    own.acquire(&lease).unwrap();
    own.refresh(&lease.claim, LONG / 4).unwrap();
    assert!(own.status(&lease.claim.name, None).unwrap().holders[0].expires_in <= LONG / 4, "one without a process may be");
}

fn a_job_that_asks_for_its_own_lock_is_told(open: &Opener) {
    let mut store = open();
    let held = ask(&name());
    store.acquire(&held).unwrap();
    let inner = Request { queue: true, parent: Some(held.claim.token.clone()), ..ask(&held.claim.name) };
    let answer = store.acquire(&inner).unwrap();
    assert!(matches!(answer, Acquired::Busy { own_parent: true, .. }), "{answer:?}");
    assert!(store.status(&held.claim.name, None).unwrap().waiters.is_empty());
}

fn names_are_told_apart_and_listed_as_given(open: &Opener) {
    let mut store = open();
    let base = name();
    let odd =
        ["a/b", "a_b", "a%2Fb", "a b", "..", "*", "a?b", "[a]", "{a}", "a}b{", "A", "a", "日本", "\u{e9}", "e\u{301}", "a:b", "'", "\""];
    for tail in odd {
        let request = ask(&Name::new(&format!("{base}{tail}")).unwrap());
        assert!(!busy(&store.acquire(&request).unwrap()), "{tail}");
    }
    let mut found: Vec<_> = store.list(base.as_str()).unwrap().into_iter().map(|status| status.name.as_str().to_owned()).collect();
    let mut wanted: Vec<_> = odd.iter().map(|tail| format!("{base}{tail}")).collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
    assert_eq!(store.list(&format!("{base}*")).unwrap().len(), 1, "a prefix is no pattern");
}

macro_rules! promises {
    ($($promise:ident),+ $(,)?) => {$(
        mod $promise {
            use super::*;

            #[test]
            fn file() {
                let at = Site::file();
                super::$promise(&|| store::open(&at.store).unwrap());
            }

            #[test]
            fn redis() {
                let at = Site::redis();
                super::$promise(&|| store::open(&at.store).unwrap());
            }
        }
    )+};
}

promises!(
    asking_twice_with_one_token_is_one_grant,
    one_of_many_is_granted,
    busy_names_the_holder_and_hides_the_token,
    a_wrong_token_releases_and_renews_nothing,
    renewal_never_creates,
    a_lease_runs_out_unless_it_is_renewed,
    fences_rise_across_release_and_expiry,
    waiters_are_served_in_order_and_nobody_overtakes,
    who_leaves_the_line_holds_nobody_up,
    a_release_wakes_the_first_waiter,
    breaking_a_lease_frees_it_and_breaking_a_run_tells_it,
    what_a_run_keeps_is_released_by_that_run_alone,
    a_job_that_renews_the_run_it_is_in_does_not_shorten_it,
    a_job_that_asks_for_its_own_lock_is_told,
    names_are_told_apart_and_listed_as_given,
);
