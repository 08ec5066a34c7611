//! The embedded store: a directory on one machine.
//!
//! One record a resource, changed under one of 256 bucket locks that are never unlinked. No fsync for
//! leases: a reboot is recognised by the boot id, and exclusion uses CLOCK_BOOTTIME only. A `run` holds
//! a kernel lock on one random byte of a common file for as long as it lives; while it does nobody
//! takes over, whatever the clock says, which also works between containers, where pids mean nothing.
//! Waiters do the same, and sleep on a named pipe each; a release wakes the first.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;
use std::time::Duration;

use super::{Acquired, After, Lost, Refreshed, Released, Status, Store, StoreError};
use crate::clock::{Moment, boot_id, wall_us};
use crate::lock::{Claim, Holding, Keeping, Mode, Name, Owner, Request, Waiting};
use crate::sys;

mod disk;
mod life;
mod line;
mod place;

use disk::{Disk, Found, Holder, Record, Waiter};
use life::{Proof, holder_byte};
pub use place::{check, complete, default_dir};
use place::{directory, trouble};

/// A waiter that was woken and has not asked again after this long loses its place.
const WAKE_LIMIT: Duration = Duration::from_secs(2);
/// One release in so many looks for what has not been used.
const SWEEP_EVERY: u64 = 256;
/// A live `run` whose record is lost.
const UNRECORDED: Holding = Holding {
    owner: None,
    mode: Mode::Exclusive,
    slot: None,
    fence: None,
    acquired_at_us: None,
    heartbeat_us: None,
    expires_in: Duration::ZERO,
    broken_by: None,
    keeping: Some(Keeping::Process),
};

/// The store in one directory.
pub struct Files {
    disk: Disk,
    boot: String,
    /// The kernel locks of this process, by their byte.
    proofs: HashMap<u64, Proof>,
    /// The common file whose bytes this process locks. The guard shares it: a lock ends when it is undone,
    /// or when the last of the two is gone.
    alive: Option<File>,
    /// The lease that this process keeps, should its record get lost.
    own: Option<Holder>,
    /// Waiters to be woken once the bucket is unlocked: they would only find it locked.
    to_wake: Vec<(u64, u8)>,
    /// Directories that are made before the first change: who only looks makes none.
    missing: Vec<PathBuf>,
    /// How long a call may wait for a bucket lock.
    op: Duration,
}

/// Opens the store. Its directory has to be there, unless it is the default of this user.
pub fn open(url: &str) -> Result<Box<dyn Store>, StoreError> {
    sys::clear_umask();
    let (base, prefix) = directory(url).map_err(StoreError::Denied)?;
    let boot = boot_id().map_err(|error| StoreError::Denied(format!("cannot read the boot id: {error}; is /proc mounted?")))?;
    let is_there = match fs::metadata(&base) {
        Ok(found) if found.is_dir() => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound && default_dir().as_deref() == Some(base.as_path()) => false,
        found => {
            let error = found.err().unwrap_or_else(|| io::ErrorKind::NotADirectory.into());
            return Err(StoreError::Denied(format!("the lock directory {}: {error}; make it first", base.display())));
        }
    };
    let existing = base.ancestors().find(|above| is_there || above.exists()).unwrap_or(&base);
    if let Some(kind) = sys::remote_file_system(existing) {
        return Err(StoreError::Denied(format!(
            "{} is on {kind}, whose locks do not hold between hosts; use a local directory or a network store",
            base.display()
        )));
    }
    let dir = prefix.map_or_else(|| base.clone(), |prefix| base.join(format!("prefix-{}", place::encode(&prefix))));
    let mut files = Files::new(dir.clone(), boot);
    if !is_there {
        files.missing.push(base.clone());
    }
    if dir != base && !dir.is_dir() {
        files.missing.push(dir);
    }
    Ok(Box::new(files))
}

fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1 << 2 // without the fixed bits
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl Files {
    fn new(dir: PathBuf, boot: String) -> Files {
        Files {
            disk: Disk { dir },
            boot,
            proofs: HashMap::new(),
            alive: None,
            own: None,
            to_wake: Vec::new(),
            missing: Vec::new(),
            op: Duration::from_secs(5),
        }
    }

    /// Makes what is missing of the directory.
    fn settle(&mut self) -> Result<(), StoreError> {
        for dir in std::mem::take(&mut self.missing) {
            match dir.parent().zip(dir.file_name().and_then(|name| name.to_str())) {
                Some((base, sub)) if sub.starts_with("prefix-") => Disk { dir: base.to_owned() }.ensure_dir(sub)?,
                _ => {
                    fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|error| trouble(&dir, &error))?;
                }
            }
        }
        Ok(())
    }

    /// Runs `work` under the bucket lock of a name.
    fn under_lock<T>(&mut self, name: &Name, work: impl FnOnce(&mut Self) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.settle()?;
        let bucket = self.disk.locked(name, self.op)?;
        let done = work(self);
        drop(bucket);
        for (id, what) in std::mem::take(&mut self.to_wake) {
            self.wake(id, what);
        }
        done
    }

    /// Reads a record and drops from it what is over: leases of another boot or past their deadline
    /// without a live holder, and waiters that died or were woken and never came. Tells besides what
    /// of a holder was dropped.
    fn load(&self, name: &Name) -> Result<(Record, Option<After>), StoreError> {
        let (now, lives) = (Moment::now().0, self.lives());
        let (mut record, mut after) = match self.disk.read(name)? {
            Found::Record(record) => (*record, None),
            Found::Nothing => (Record::new(name, &self.boot), None),
            Found::Broken(path) => (Record::new(name, &self.boot), Some(After::Unreadable(path.display().to_string()))),
        };
        let rebooted = record.boot != self.boot;
        if rebooted {
            record.boot.clone_from(&self.boot);
            record.line.clear();
        }
        record.holders.retain(|holder| {
            let stays = !rebooted && (now < holder.deadline_us || holder.alive.is_some_and(&lives));
            // A lease without a process is not renewed by anybody: that it ran out is no news.
            if !stays && holder.alive.is_some() {
                after = Some(After::Vanished(Box::new(holder.seen(now))));
            }
            stays
        });
        record.line.retain(|waiter| {
            let late = waiter.woken_us.is_some_and(|at| now > at.saturating_add(micros(WAKE_LIMIT)));
            let stays = !late && lives(waiter.alive);
            if !stays {
                let _ = fs::remove_file(self.disk.pipe_path(waiter.alive));
            }
            stays
        });
        Ok((record, after))
    }

    /// Puts back the holder of a record that got lost, if it is this process, whose kernel lock has kept
    /// others out meanwhile.
    fn restore(&self, record: &mut Record, claim: &Claim) {
        let own = self.own.as_ref().filter(|own| own.token == claim.token && self.still_proves(own.alive));
        let excludes = |holder: &Holder| holder.token == claim.token || holder.mode == Mode::Exclusive;
        if let Some(own) =
            own.filter(|own| !record.holders.iter().any(excludes) && (own.mode != Mode::Exclusive || record.holders.is_empty()))
        {
            record.fence = record.fence.max(own.fence);
            record.holders.push(own.clone());
        }
    }

    fn holdings(record: &Record) -> Vec<Holding> {
        let now = Moment::now().0;
        record.holders.iter().map(|holder| holder.seen(now)).collect()
    }

    fn state(&self, record: &Record, claim: Option<&Claim>) -> Status {
        let now = Moment::now().0;
        let mut holders = Self::holdings(record);
        if holders.is_empty() && self.is_alive(holder_byte(&record.name)) {
            holders.push(UNRECORDED);
        }
        Status {
            name: record.name.clone(),
            holders,
            waiters: record.line.iter().map(|waiter| waiter.seen(now)).collect(),
            last_fence: (record.fence > 0).then_some(record.fence),
            own: claim.and_then(|claim| record.holders.iter().position(|holder| holder.token == claim.token)),
        }
    }
}

impl Holder {
    fn seen(&self, now: u64) -> Holding {
        Holding {
            owner: Some(self.owner.clone()),
            mode: self.mode,
            slot: self.slot,
            fence: Some(self.fence),
            acquired_at_us: Some(self.acquired_at_us),
            heartbeat_us: Some(self.heartbeat_us),
            expires_in: Duration::from_micros(self.deadline_us.saturating_sub(now)),
            broken_by: self.broken_by.clone(),
            keeping: Some(if self.alive.is_some() { Keeping::Process } else { Keeping::Lease }),
        }
    }
}

impl Waiter {
    fn seen(&self, now: u64) -> Waiting {
        let waited = Duration::from_micros(now.saturating_sub(self.since_us));
        Waiting { owner: self.owner.clone(), mode: self.mode, waited }
    }
}

impl Store for Files {
    fn prepare(&mut self) -> Result<(), StoreError> {
        self.settle()?;
        let alive = self.alive_bytes()?.metadata();
        if alive.is_ok_and(|alive| self.disk.is_narrower(alive.mode())) {
            self.disk.widen();
        }
        Ok(())
    }

    fn acquire(&mut self, request: &Request) -> Result<Acquired, StoreError> {
        let claim = &request.claim;
        self.under_lock(&claim.name, |store| {
            let (mut record, after) = store.load(&claim.name)?;
            if let Some(holder) = record.holders.iter_mut().find(|holder| holder.token == claim.token) {
                // The answer got lost, or came too late: the lease begins again.
                holder.ttl_us = micros(request.ttl);
                holder.deadline_us = (Moment::now() + request.ttl).0;
                let granted = Acquired::Granted { fence: Some(holder.fence), slot: holder.slot, ttl: request.ttl, after };
                store.disk.save(&mut record)?;
                return Ok(granted);
            }
            if record.fits(request.mode) && record.line.first().is_none_or(|first| first.token == claim.token) {
                let free_slot = record.free_slot();
                let proof = match (request.keeping, request.mode) {
                    (Keeping::Process, mode) => store.prove_holder(&claim.name, mode, free_slot)?.map(|(own, slot)| (Some(own), slot)),
                    (Keeping::Lease, Mode::Exclusive) => (!store.is_alive(holder_byte(&claim.name))).then_some((None, None)),
                    (Keeping::Lease, Mode::Shared { limit }) => {
                        (!store.is_alive_alone(holder_byte(&claim.name))).then_some((None, limit.map(|_| free_slot)))
                    }
                };
                let Some((alive, slot)) = proof else { return store.busy(&mut record, request, true) };
                store.leave_line(&mut record, &claim.token);
                let (now, wall) = (Moment::now(), wall_us());
                record.fence = record.fence.saturating_add(1).max(wall);
                let granted = Acquired::Granted { fence: Some(record.fence), slot, ttl: request.ttl, after };
                let holder = Holder {
                    token: claim.token.clone(),
                    owner: request.owner.clone(),
                    mode: request.mode,
                    slot,
                    fence: record.fence,
                    ttl_us: micros(request.ttl),
                    deadline_us: (now + request.ttl).0,
                    acquired_at_us: wall,
                    heartbeat_us: wall,
                    alive,
                    broken_by: None,
                };
                store.own = alive.map(|_| holder.clone());
                record.holders.push(holder);
                store.wake_first(&mut record); // the next one may share
                if let Err(error) = store.disk.save(&mut record) {
                    store.forget_holder(&claim.name, alive);
                    return Err(error);
                }
                return Ok(granted);
            }
            store.busy(&mut record, request, false)
        })
    }

    fn refresh(&mut self, claim: &Claim, ttl: Duration) -> Result<Refreshed, StoreError> {
        self.under_lock(&claim.name, |store| {
            let (mut record, _) = store.load(&claim.name)?;
            store.restore(&mut record, claim);
            let Some(holder) = record.holders.iter_mut().find(|holder| holder.token == claim.token) else {
                return Ok(Refreshed::Lost(match Self::holdings(&record).pop() {
                    Some(holding) => Lost::Foreign(Box::new(holding)),
                    None => Lost::Absent,
                }));
            };
            if let Some(by) = &holder.broken_by {
                return Ok(Refreshed::Lost(Lost::Broken { by: by.clone() }));
            }
            if !store.still_proves(holder.alive) {
                return Ok(Refreshed::Lost(Lost::Absent));
            }
            // A job that renews its own `run` must not shorten what that run counts on.
            let until = (Moment::now() + ttl).0;
            holder.deadline_us = if holder.alive.is_some() { until.max(holder.deadline_us) } else { until };
            holder.ttl_us = micros(ttl);
            holder.heartbeat_us = wall_us();
            store.disk.save(&mut record)?;
            Ok(Refreshed::Kept { ttl })
        })
    }

    fn release(&mut self, claim: &Claim, by: Keeping) -> Result<Released, StoreError> {
        let (answer, sweep) = self.under_lock(&claim.name, |store| {
            let (mut record, _) = store.load(&claim.name)?;
            store.restore(&mut record, claim);
            let left = store.leave_line(&mut record, &claim.token);
            let own = record.holders.iter().position(|holder| holder.token == claim.token);
            if let Some(holder) = own.map(|at| &record.holders[at]).filter(|holder| by == Keeping::Lease && holder.alive.is_some()) {
                return Ok((Released::Kept(Box::new(holder.seen(Moment::now().0))), false));
            }
            let holder = own.map(|at| record.holders.remove(at));
            if holder.is_some() || left {
                store.wake_first(&mut record);
                store.tell_near(&record);
                store.disk.save(&mut record)?;
            }
            let Some(holder) = holder else {
                return Ok((Released::NotHeld(Self::holdings(&record).pop().map(Box::new)), false));
            };
            if holder.alive.is_some() {
                store.forget_holder(&claim.name, holder.alive);
            }
            Ok((Released::Freed, holder.fence.is_multiple_of(SWEEP_EVERY)))
        })?;
        if sweep {
            self.sweep();
        }
        Ok(answer)
    }

    fn break_lease(&mut self, name: &Name, by: &Owner, fence: Option<u64>) -> Result<Vec<Holding>, StoreError> {
        self.under_lock(name, |store| {
            let (mut record, _) = store.load(name)?;
            if record.holders.is_empty() && store.is_alive(holder_byte(name)) {
                let why = "a live dlock run has it, and its record was lost; it puts it back at its next heartbeat: try again then";
                return Err(StoreError::Unavailable(format!("{}: {why}", store.disk.record_path(name.as_str()).display())));
            }
            let (now, mut broken) = (Moment::now().0, Vec::new());
            record.holders.retain_mut(|holder| {
                if fence.is_some_and(|fence| fence != holder.fence) {
                    return true;
                }
                broken.push(holder.seen(now));
                holder.broken_by = Some(by.clone());
                holder.alive.is_some_and(|id| store.is_alive(id))
            });
            if !broken.is_empty() {
                store.wake_first(&mut record);
                store.disk.save(&mut record)?;
            }
            Ok(broken)
        })
    }

    fn status(&mut self, name: &Name, claim: Option<&Claim>) -> Result<Status, StoreError> {
        if !self.missing.is_empty() {
            return Ok(self.state(&Record::new(name, &self.boot), claim));
        }
        // Reads without the bucket lock where it can't be had: a read-only directory still answers.
        let looked = self.under_lock(name, |store| Ok(store.state(&store.load(name)?.0, claim)));
        match looked {
            Err(StoreError::Denied(_)) if self.disk.dir.is_dir() => Ok(self.state(&self.load(name)?.0, claim)),
            looked => looked,
        }
    }

    fn list(&mut self, prefix: &str) -> Result<Vec<Status>, StoreError> {
        let mut all = Vec::new();
        for name in self.disk.names()?.into_iter().filter(|name| name.as_str().starts_with(prefix)) {
            let status = self.status(&name, None)?;
            if !status.holders.is_empty() || !status.waiters.is_empty() {
                all.push(status);
            }
        }
        all.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
        Ok(all)
    }

    fn await_change(&mut self, _claim: &Claim, at_most: Duration) -> Result<(), StoreError> {
        match self.proofs.values().find_map(|proof| proof.pipe.as_ref()) {
            Some(mut pipe) => {
                let mut end = Moment::now() + at_most;
                loop {
                    let left = Moment::now().until(end);
                    sys::wait_readable(&[pipe.as_raw_fd()], Some(left)).map_err(|error| StoreError::Unavailable(error.to_string()))?;
                    let mut bytes = [0; 64];
                    let read = pipe.read(&mut bytes).unwrap_or(0);
                    if read == 0 || bytes[..read].contains(&line::TURN) {
                        break; // also where nothing has come, and the time is over
                    }
                    end = end.min(Moment::now() + line::FIRST_LOOKS);
                }
            }
            None => std::thread::sleep(at_most),
        }
        Ok(())
    }

    fn limit(&mut self, op: Duration) {
        self.op = op;
    }
}
