//! The embedded store: a directory on one machine.
//!
//! One record a resource, changed under one of 256 bucket locks that are never unlinked. No fsync for leases: a reboot is recognised by the boot id, and exclusion uses
//! CLOCK_BOOTTIME only. A `run` holds a kernel lock on one random byte of a common file for as long as
//! it lives; while it does nobody takes over, whatever the clock says, which also works between
//! containers, where pids mean nothing. Waiters do the same, and sleep on a named pipe each; a release
//! wakes the first.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Acquired, Lost, Refreshed, Released, Status, Store, StoreError};
use crate::clock::{Moment, boot_id, wall_us};
use crate::lock::{Claim, Holding, Keeping, Mode, Name, Owner, Request, Token};
use crate::sys;

/// The layout of a record; another one is refused, never guessed at.
const LAYOUT: u32 = 1;
/// A waiter that was woken and has not asked again after this long loses its place.
const WAKE_LIMIT: Duration = Duration::from_secs(2);
/// The first in line looks by itself this often: its holder may have died without a release.
const FIRST_LOOKS: Duration = Duration::from_secs(1);
/// Records are read and written by the page: what one call writes whole.
const PAGE: usize = 4096;
/// What has not been used for this long is removed.
const UNUSED: Duration = Duration::from_secs(30 * 86_400);
/// One release in so many looks for what has not been used.
const SWEEP_EVERY: u64 = 256;
/// All others look this often.
const OTHERS_LOOK: Duration = Duration::from_secs(15);

#[derive(Serialize, Deserialize)]
struct Record {
    layout: u32,
    name: Name,
    boot: String,
    holder: Option<Holder>,
    #[serde(default)]
    line: Vec<Waiter>,
    fence: u64,
}

#[derive(Serialize, Deserialize)]
struct Holder {
    token: Token,
    owner: Owner,
    mode: Mode,
    fence: u64,
    ttl_us: u64,
    deadline_us: u64,
    acquired_at_us: u64,
    heartbeat_us: u64,
    /// The byte whose kernel lock proves that this holder lives; none for `acquire`.
    alive: Option<u64>,
    #[serde(default)]
    broken_by: Option<Owner>,
}

#[derive(Serialize, Deserialize)]
struct Waiter {
    token: Token,
    owner: Owner,
    /// The byte whose kernel lock proves that it lives, and the name of the pipe that it sleeps on.
    alive: u64,
    since_us: u64,
    woken_us: Option<u64>,
}

/// The store in one directory.
pub struct Files {
    dir: PathBuf,
    boot: String,
    /// The kernel locks of this process, by their byte.
    proofs: HashMap<u64, Proof>,
}

/// A kernel lock that this process holds, and the pipe that it can be woken by.
struct Proof {
    _lock: File,
    pipe: Option<File>,
}

/// Checks a `file:` URL without touching the directory.
pub fn check(url: &str) -> Result<(), String> {
    directory(url).map(drop)
}

/// Opens the store; makes the directory only where it is the default of this user.
pub fn open(url: &str) -> Result<Box<dyn Store>, StoreError> {
    let (mut dir, prefix) = directory(url).map_err(StoreError::Denied)?;
    let boot = boot_id().map_err(|error| StoreError::Denied(format!("cannot read the boot id: {error}; is /proc mounted?")))?;
    if let Some(kind) = sys::remote_file_system(&dir) {
        return Err(StoreError::Denied(format!(
            "{} is on {kind}, whose locks do not hold between hosts; use a local directory or a network store",
            dir.display()
        )));
    }
    if !dir.is_dir() {
        if default_dir().as_deref() == Some(dir.as_path()) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|error| trouble(&dir, &error))?;
        } else {
            let error = match fs::metadata(&dir) {
                Ok(_) => io::Error::from(io::ErrorKind::NotADirectory),
                Err(error) => error,
            };
            return Err(StoreError::Denied(format!("the lock directory {}: {error}; make it first", dir.display())));
        }
    }
    if let Some(prefix) = prefix {
        let below = Files { dir, boot: boot.clone(), proofs: HashMap::new() };
        let sub = format!("prefix-{}", encode(&prefix));
        below.ensure_dir(&sub)?;
        dir = below.dir.join(sub);
    }
    Ok(Box::new(Files { dir, boot, proofs: HashMap::new() }))
}

/// The default directory of this user: it does not depend on the environment, which differs between
/// a login and cron.
pub fn default_dir() -> Option<PathBuf> {
    if sys::uid() == 0 {
        return Some("/var/lib/dlock".into());
    }
    sys::user().map(|(_, home)| Path::new(&home).join(".local/state/dlock"))
}

/// Puts a prefix into a URL that names none; there is no password to a directory.
pub fn complete(url: &str, _password: Option<&str>, prefix: Option<&str>) -> String {
    super::with_prefix(url, prefix)
}

/// The directory, and the prefix: a store of its own below it.
fn directory(url: &str) -> Result<(PathBuf, Option<String>), String> {
    let form = "a file store is file:///DIR with an absolute path, and ?prefix= at most";
    let (path, query) = url
        .strip_prefix("file://")
        .unwrap_or(url)
        .split_once('?')
        .map_or((url.strip_prefix("file://").unwrap_or(url), None), |(path, query)| (path, Some(query)));
    let prefix = match query.map(|query| query.strip_prefix("prefix=").and_then(super::percent_decoded)) {
        None => None,
        Some(Some(prefix)) if !prefix.contains('&') => Some(prefix).filter(|prefix| !prefix.is_empty()),
        Some(_) => return Err(form.into()),
    };
    let path = super::percent_decoded(path).filter(|path| path.starts_with('/')).ok_or(form)?;
    Ok((PathBuf::from(path), prefix))
}

/// Words an I/O error: which path, the system's words, what next; and whether waiting can help.
fn trouble(path: &Path, error: &io::Error) -> StoreError {
    use io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    let at = path.display();
    match error.raw_os_error() {
        Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS) => {
            return StoreError::Denied(format!(
                "this file system does not support locks ({at}: {error}); use a local directory or a network store"
            ));
        }
        _ if error.kind() == Unsupported => return StoreError::Denied(format!("{at}: {error}")),
        _ => {}
    }
    match error.kind() {
        PermissionDenied => {
            let whose = fs::metadata(path)
                .or_else(|_| fs::metadata(path.parent().unwrap_or(path)))
                .map_or(String::new(), |found| format!(" (owner uid {}, mode {:04o})", found.uid(), found.mode() & 0o7777));
            StoreError::Denied(format!("{at}: {error}{whose}; use a directory that all its users may write (mode 1777)"))
        }
        ReadOnlyFilesystem | NotFound => StoreError::Denied(format!("{at}: {error}")),
        _ => StoreError::Unavailable(format!("{at}: {error}")),
    }
}

/// A name as a file name: letters, digits, `-`, `_` and `.` stay, all else is `%XX`; what would be too
/// long for a file name ends in a digest, and the record's own name tells the rest apart.
fn encode(name: &str) -> String {
    let mut out = String::new();
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => out.push(byte as char),
            b'.' if at > 0 => out.push('.'),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    if out.len() > 200 {
        // Two digests with different seeds, 128 bits; `~` can't come from the encoding above.
        out.truncate(160);
        out += &format!("~{:016x}{:016x}", digest(name.as_bytes(), 0), digest(name.as_bytes(), 0x9e37_79b9));
    }
    out
}

/// FNV-1a, 64 bits (draft-eastlake-fnv): the same in every version of dlock, unlike std's hasher.
fn digest(bytes: &[u8], seed: u64) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325 ^ seed, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1 << 2 // without the fixed bits
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl Files {
    fn record_path(&self, name: &str) -> PathBuf {
        self.dir.join("locks").join(encode(name))
    }

    fn pipe_path(&self, id: u64) -> PathBuf {
        self.dir.join("line").join(format!("{id:016x}"))
    }

    /// Makes a directory of the store, writable to whom the store itself is.
    fn ensure_dir(&self, sub: &str) -> Result<(), StoreError> {
        let path = self.dir.join(sub);
        match fs::create_dir(&path) {
            Ok(()) => {
                let mode = fs::metadata(&self.dir).map_err(|error| trouble(&self.dir, &error))?.mode() & 0o777;
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(|error| trouble(&path, &error))
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(trouble(&path, &error)),
        }
    }

    /// Opens a file of the store, retrying once after making its directory. O_CREAT only when the
    /// file is absent: `fs.protected_regular` refuses it even to root in a sticky directory.
    fn open_shared(&self, sub: &str, name: &str) -> Result<File, StoreError> {
        let path = self.dir.join(sub).join(name);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(trouble(&path, &error)),
        }
        self.ensure_dir(sub)?;
        let made = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        match made {
            Ok(file) => {
                let mode = fs::metadata(&self.dir).map_or(0o600, |dir| dir.mode() & 0o666);
                file.set_permissions(fs::Permissions::from_mode(mode)).map_err(|error| trouble(&path, &error))?;
                Ok(file)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                OpenOptions::new().read(true).write(true).open(&path).map_err(|error| trouble(&path, &error))
            }
            Err(error) => Err(trouble(&path, &error)),
        }
    }

    /// Runs `work` under the bucket lock of a name. The lock ends with the file.
    fn under_lock<T>(&mut self, name: &Name, work: impl FnOnce(&mut Self) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let bucket = format!("{:02x}", digest(name.as_str().as_bytes(), 0) & 0xff);
        let path = self.dir.join("buckets").join(&bucket);
        for _ in 0..100 {
            let file = self.open_shared("buckets", &bucket)?;
            loop {
                match file.lock() {
                    Ok(()) => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(trouble(&path, &error)),
                }
            }
            // Somebody may have deleted the path in the meantime: then this lock means nothing.
            let ours = file.metadata().map_err(|error| trouble(&path, &error))?;
            if fs::metadata(&path).is_ok_and(|now| now.ino() == ours.ino() && now.dev() == ours.dev()) {
                return work(self);
            }
        }
        Err(StoreError::Unavailable(format!("{}: deleted again and again while it is used", path.display())))
    }

    /// Reads a record; `None` for none or a broken one, which a dead run may leave on a full disk.
    fn read(&self, name: &Name) -> Result<Option<Record>, StoreError> {
        let path = self.record_path(name.as_str());
        match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice::<Record>(&bytes) {
                Ok(record) if record.layout != LAYOUT => Err(StoreError::Denied(format!(
                    "{}: a record of layout {}, this dlock knows {LAYOUT}; use one version of dlock",
                    path.display(),
                    record.layout
                ))),
                Ok(record) if record.name == *name => Ok(Some(record)),
                Ok(_) => Err(StoreError::Denied(format!("{}: holds another resource's record", path.display()))),
                Err(_) => Ok(None),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(trouble(&path, &error)),
        }
    }

    /// Reads a record and drops from it what is over: leases of another boot or past their deadline
    /// without a live holder, and waiters that died or were woken and never came.
    fn load(&self, name: &Name) -> Result<Record, StoreError> {
        let now = Moment::now().0;
        let mut record = self.read(name)?.unwrap_or_else(|| Record {
            layout: LAYOUT,
            name: name.clone(),
            boot: self.boot.clone(),
            holder: None,
            line: Vec::new(),
            fence: 0,
        });
        if record.boot != self.boot {
            record.boot.clone_from(&self.boot);
            record.holder = None;
            record.line.clear();
        }
        if let Some(holder) = &record.holder {
            let lives = holder.alive.is_some_and(|id| self.is_alive(id));
            if !lives && now >= holder.deadline_us {
                record.holder = None;
            }
        }
        record.line.retain(|waiter| {
            let late = waiter.woken_us.is_some_and(|at| now > at + micros(WAKE_LIMIT));
            let stays = !late && self.is_alive(waiter.alive);
            if !stays {
                let _ = fs::remove_file(self.pipe_path(waiter.alive));
            }
            stays
        });
        Ok(record)
    }

    /// Writes a record. One that fits a page, as all but those with a long line do, is written in place
    /// by one call, which a kill can't tear and a full disk can't refuse; else it is written aside and
    /// renamed. (Renaming over a file makes ext4 allocate at once: 0.2 ms that a run would pay twice.)
    fn save(&self, record: &Record) -> Result<(), StoreError> {
        let path = self.record_path(record.name.as_str());
        let mut bytes = serde_json::to_vec(record).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        bytes.resize(bytes.len().max(PAGE), b'\n');
        if bytes.len() == PAGE
            && let Ok(file) = OpenOptions::new().write(true).open(&path)
            && file.metadata().is_ok_and(|now| now.len() == PAGE as u64)
            && file.write_at(&bytes, 0).is_ok_and(|written| written == PAGE)
        {
            return Ok(());
        }
        self.ensure_dir("locks")?;
        let aside = self.dir.join("locks").join(format!(".{:016x}", random()));
        let mode = fs::metadata(&self.dir).map_or(0o600, |dir| dir.mode() & 0o666);
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            fs::rename(&aside, &path)
        });
        written.map_err(|error| {
            let _ = fs::remove_file(&aside);
            trouble(&path, &error)
        })
    }

    /// Does somebody hold the kernel lock of this byte? Where that can't be told, the deadline decides.
    fn is_alive(&self, id: u64) -> bool {
        self.proofs.contains_key(&id)
            || File::open(self.dir.join("alive").join("bytes")).is_ok_and(|file| sys::byte_is_locked(&file, id).unwrap_or(false))
    }

    /// Takes the kernel lock of a random byte for as long as this process (and store) lives.
    fn prove_life(&mut self, with_pipe: bool) -> Result<u64, StoreError> {
        let path = self.dir.join("alive").join("bytes");
        let lock = self.open_shared("alive", "bytes")?;
        let mut id = random();
        while !sys::lock_byte(&lock, id).map_err(|error| trouble(&path, &error))? {
            id = random();
        }
        let pipe = if with_pipe { Some(self.make_pipe(id)?) } else { None };
        self.proofs.insert(id, Proof { _lock: lock, pipe });
        Ok(id)
    }

    fn make_pipe(&self, id: u64) -> Result<File, StoreError> {
        self.ensure_dir("line")?;
        let path = self.pipe_path(id);
        let mode = fs::metadata(&self.dir).map_or(0o600, |dir| dir.mode() & 0o666);
        sys::make_fifo(&path, mode)
            .and_then(|()| OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path))
            .map_err(|error| trouble(&path, &error))
    }

    fn forget(&mut self, id: u64) {
        if self.proofs.remove(&id).is_none_or(|proof| proof.pipe.is_some()) {
            let _ = fs::remove_file(self.pipe_path(id));
        }
    }

    /// Removes what nobody has used for 30 days: records of free locks (the wall clock keeps their
    /// fences rising) and what a crash left. Best effort, outside of any bucket lock.
    fn sweep(&mut self) {
        let old = |path: &Path| {
            let age = fs::metadata(path).and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
            age.is_some_and(|age| age > UNUSED)
        };
        let paths = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        for path in paths(self.dir.join("locks")).filter(|path| old(path)) {
            let name = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok()).map(|record| record.name);
            let Some(name) = name else {
                let _ = fs::remove_file(&path); // half a record, or one never renamed
                continue;
            };
            let _ = self.under_lock(&name, |store| {
                let record = store.load(&name)?;
                if record.holder.is_none() && record.line.is_empty() && old(&path) {
                    let _ = fs::remove_file(&path);
                }
                Ok(())
            });
        }
        for path in paths(self.dir.join("line")).filter(|path| old(path)) {
            let id = path.file_name().and_then(|name| u64::from_str_radix(name.to_str()?, 16).ok());
            if id.is_none_or(|id| !self.is_alive(id)) {
                let _ = fs::remove_file(&path);
            }
        }
    }

    fn leave_line(&mut self, record: &mut Record, token: &Token) -> bool {
        let before = record.line.len();
        let gone: Vec<u64> = record.line.iter().filter(|w| w.token == *token).map(|w| w.alive).collect();
        record.line.retain(|waiter| waiter.token != *token);
        gone.into_iter().for_each(|id| self.forget(id));
        record.line.len() != before
    }

    /// Wakes the first in line through its own pipe.
    fn wake_first(&self, record: &mut Record) {
        if let Some(first) = record.line.first_mut() {
            let opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(self.pipe_path(first.alive));
            if let Ok(mut pipe) = opened {
                let _ = pipe.write(b"!");
                first.woken_us.get_or_insert(Moment::now().0);
            }
        }
    }

    fn holdings(record: &Record) -> Vec<Holding> {
        let now = Moment::now().0;
        record.holder.iter().map(|holder| holder.seen(now)).collect()
    }

    fn state(record: &Record, claim: Option<&Claim>) -> Status {
        let now = Moment::now().0;
        Status {
            name: record.name.clone(),
            holders: Self::holdings(record),
            waiters: record.line.iter().map(|w| (w.owner.clone(), Duration::from_micros(now.saturating_sub(w.since_us)))).collect(),
            last_fence: (record.fence > 0).then_some(record.fence),
            held_by_claim: claim.is_some_and(|claim| record.holder.as_ref().is_some_and(|holder| holder.token == claim.token)),
        }
    }
}

impl Holder {
    fn seen(&self, now: u64) -> Holding {
        Holding {
            owner: Some(self.owner.clone()),
            mode: self.mode,
            fence: Some(self.fence),
            acquired_at_us: Some(self.acquired_at_us),
            heartbeat_us: Some(self.heartbeat_us),
            expires_in: Duration::from_micros(self.deadline_us.saturating_sub(now)),
            broken_by: self.broken_by.clone(),
        }
    }
}

impl Store for Files {
    fn acquire(&mut self, request: &Request) -> Result<Acquired, StoreError> {
        let claim = &request.claim;
        self.under_lock(&claim.name, |store| {
            let mut record = store.load(&claim.name)?;
            if let Some(holder) = record.holder.as_ref().filter(|holder| holder.token == claim.token) {
                return Ok(Acquired::Granted { fence: Some(holder.fence), slot: None, ttl: Duration::from_micros(holder.ttl_us) });
            }
            let place = record.line.iter().position(|waiter| waiter.token == claim.token);
            let ahead = place.unwrap_or(record.line.len());
            if record.holder.is_none() && ahead == 0 {
                let alive = match request.keeping {
                    Keeping::Process => Some(store.prove_life(false)?),
                    Keeping::Lease => None,
                };
                store.leave_line(&mut record, &claim.token);
                let (now, wall) = (Moment::now(), wall_us());
                record.fence = (record.fence + 1).max(wall);
                let granted = Acquired::Granted { fence: Some(record.fence), slot: None, ttl: request.ttl };
                record.holder = Some(Holder {
                    token: claim.token.clone(),
                    owner: request.owner.clone(),
                    mode: request.mode,
                    fence: record.fence,
                    ttl_us: micros(request.ttl),
                    deadline_us: (now + request.ttl).0,
                    acquired_at_us: wall,
                    heartbeat_us: wall,
                    alive,
                    broken_by: None,
                });
                if let Err(error) = store.save(&record) {
                    alive.into_iter().for_each(|id| store.forget(id));
                    return Err(error);
                }
                return Ok(granted);
            }
            let own_parent =
                record.holder.as_ref().is_some_and(|holder| request.parent.as_ref().is_some_and(|parent| *parent == holder.token));
            if request.queue && !own_parent {
                match place {
                    Some(at) => record.line[at].woken_us = None,
                    None => {
                        let alive = store.prove_life(true)?;
                        record.line.push(Waiter {
                            token: claim.token.clone(),
                            owner: request.owner.clone(),
                            alive,
                            since_us: Moment::now().0,
                            woken_us: None,
                        });
                    }
                }
                if record.holder.is_none() {
                    store.wake_first(&mut record);
                }
                store.save(&record)?;
            }
            let holders = Self::holdings(&record);
            let soonest = holders.iter().map(|holding| holding.expires_in + Duration::from_millis(1)).min();
            let look = if ahead == 0 { FIRST_LOOKS } else { OTHERS_LOOK };
            Ok(Acquired::Busy {
                waiting: u32::try_from(record.line.len()).unwrap_or(u32::MAX),
                retry_in: if ahead == 0 { soonest.unwrap_or(look).clamp(Duration::from_millis(200), look) } else { look },
                holders,
                own_parent,
            })
        })
    }

    fn refresh(&mut self, claim: &Claim, ttl: Duration) -> Result<Refreshed, StoreError> {
        self.under_lock(&claim.name, |store| {
            let mut record = store.load(&claim.name)?;
            match &mut record.holder {
                Some(holder) if holder.token == claim.token => {
                    if let Some(by) = &holder.broken_by {
                        return Ok(Refreshed::Lost(Lost::Broken { by: by.clone() }));
                    }
                    holder.ttl_us = micros(ttl);
                    holder.deadline_us = (Moment::now() + ttl).0;
                    holder.heartbeat_us = wall_us();
                    store.save(&record)?;
                    Ok(Refreshed::Kept { ttl })
                }
                Some(holder) => Ok(Refreshed::Lost(Lost::Foreign(Box::new(holder.seen(Moment::now().0))))),
                None => Ok(Refreshed::Lost(Lost::Absent)),
            }
        })
    }

    fn release(&mut self, claim: &Claim) -> Result<Released, StoreError> {
        let (answer, sweep) = self.under_lock(&claim.name, |store| {
            let mut record = store.load(&claim.name)?;
            let left = store.leave_line(&mut record, &claim.token);
            let answer = match record.holder.take() {
                Some(holder) if holder.token == claim.token => {
                    store.wake_first(&mut record);
                    store.save(&record)?;
                    holder.alive.into_iter().for_each(|id| store.forget(id));
                    return Ok((Released::Freed, holder.fence.is_multiple_of(SWEEP_EVERY)));
                }
                other => {
                    record.holder = other;
                    Released::NotHeld(Self::holdings(&record).pop().map(Box::new))
                }
            };
            if left {
                if record.holder.is_none() {
                    store.wake_first(&mut record);
                }
                store.save(&record)?;
            }
            Ok((answer, false))
        })?;
        if sweep {
            self.sweep();
        }
        Ok(answer)
    }

    fn break_lease(&mut self, name: &Name, by: &Owner) -> Result<Vec<Holding>, StoreError> {
        self.under_lock(name, |store| {
            let mut record = store.load(name)?;
            let broken = Self::holdings(&record);
            if let Some(holder) = &mut record.holder {
                holder.broken_by = Some(by.clone());
                let lives = holder.alive.is_some_and(|id| store.is_alive(id));
                if !lives {
                    record.holder = None;
                    store.wake_first(&mut record);
                }
                store.save(&record)?;
            }
            Ok(broken)
        })
    }

    fn status(&mut self, name: &Name, claim: Option<&Claim>) -> Result<Status, StoreError> {
        // Reads without the bucket lock where it can't be had: a read-only directory still answers.
        let looked = self.under_lock(name, |store| Ok(Self::state(&store.load(name)?, claim)));
        match looked {
            Err(StoreError::Denied(_)) if self.dir.is_dir() => Ok(Self::state(&self.load(name)?, claim)),
            looked => looked,
        }
    }

    fn list(&mut self, prefix: &str) -> Result<Vec<Status>, StoreError> {
        let dir = self.dir.join("locks");
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(trouble(&dir, &error)),
        };
        let mut all = Vec::new();
        for entry in entries.flatten().filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".")) {
            let name =
                fs::read(entry.path()).ok().and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok()).map(|record| record.name);
            if let Some(name) = name.filter(|name| name.as_str().starts_with(prefix)) {
                let status = self.status(&name, None)?;
                if !status.holders.is_empty() || !status.waiters.is_empty() {
                    all.push(status);
                }
            }
        }
        all.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
        Ok(all)
    }

    fn await_change(&mut self, claim: &Claim, at_most: Duration) -> Result<(), StoreError> {
        let ids: Vec<u64> = self.read(&claim.name)?.map_or(Vec::new(), |record| {
            record.line.into_iter().filter(|waiter| waiter.token == claim.token).map(|waiter| waiter.alive).collect()
        });
        match ids.first().and_then(|id| self.proofs.get(id)?.pipe.as_ref()) {
            Some(mut pipe) => {
                sys::wait_readable(&[pipe.as_raw_fd()], Some(at_most)).map_err(|error| StoreError::Unavailable(error.to_string()))?;
                let _ = pipe.read(&mut [0; 64]);
            }
            None => std::thread::sleep(at_most),
        }
        Ok(())
    }

    fn limit(&mut self, _op: Duration) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_used_for_30_days_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Files { dir: dir.path().to_owned(), boot: boot_id().unwrap(), proofs: HashMap::new() };
        let request = |name: &str| Request {
            claim: Claim { name: Name::new(name).unwrap(), token: Token::random() },
            owner: Owner::default(),
            mode: Mode::Exclusive,
            ttl: Duration::from_secs(60),
            queue: false,
            keeping: Keeping::Lease,
            parent: None,
        };
        for name in ["free", "held", "new"] {
            let request = request(name);
            store.acquire(&request).unwrap();
            if name != "held" {
                store.release(&request.claim).unwrap();
            }
        }
        fs::write(dir.path().join("locks/.aside"), "{").unwrap();
        let before = std::time::SystemTime::now() - UNUSED - Duration::from_secs(60);
        for name in ["free", "held", ".aside"] {
            OpenOptions::new().write(true).open(dir.path().join("locks").join(name)).unwrap().set_modified(before).unwrap();
        }
        store.sweep();
        let mut left: Vec<_> = fs::read_dir(dir.path().join("locks")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["held", "new"]);
    }

    #[test]
    fn no_two_names_share_a_file_and_none_leaves_the_directory() {
        let names = ["a/b", "a_b", "a%2Fb", "a b", "..", ".", "../x", "A", "a", "日本", "*", "{}", ".x"];
        let mut files: Vec<String> = names.iter().map(|name| encode(name)).collect();
        let long = "x".repeat(254);
        files.extend([encode(&format!("{long}1")), encode(&format!("{long}2")), encode(&"日".repeat(85))]);
        assert!(files.iter().all(|file| !file.contains('/') && !file.starts_with('.') && file.len() <= 200));
        files.sort();
        let all = files.len();
        files.dedup();
        assert_eq!(files.len(), all);
    }
}
