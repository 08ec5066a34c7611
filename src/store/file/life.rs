//! Proof of life in a file store: kernel locks on single bytes of one common file, which end with
//! their process; and the removal of what the dead and the unused have left.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::disk::name_of;
use super::place::{digest, trouble};
use super::{Files, random};
use crate::lock::{Mode, Name};
use crate::store::StoreError;
use crate::sys;

/// What has not been used for this long is removed.
const UNUSED: Duration = Duration::from_secs(30 * 86_400);

/// What belongs to a kernel lock that this process holds: for a waiter, the pipe that it is woken by.
pub struct Proof {
    pub pipe: Option<File>,
}

/// The byte that a holder of this name locks, so that a live holder is known even where its record is
/// lost: alone, or with others that share. Those of waiters are random, and divide by four.
pub fn holder_byte(name: &Name) -> u64 {
    digest(name.as_str().as_bytes(), 1) << 2 | 2
}

/// The byte that the holder of a slot locks besides: nobody else gets that slot.
fn slot_byte(name: &Name, slot: u32) -> u64 {
    digest(&slot.to_le_bytes(), holder_byte(name)) << 2 | 2
}

impl Files {
    /// Does somebody hold the kernel lock of this byte? Where that can't be told, the deadline decides.
    pub fn is_alive(&self, id: u64) -> bool {
        self.proofs.contains_key(&id) || self.is_locked(id, false)
    }

    /// The same of a process that holds it alone.
    pub fn is_alive_alone(&self, id: u64) -> bool {
        self.is_locked(id, true)
    }

    fn is_locked(&self, id: u64, alone: bool) -> bool {
        self.open_bytes().is_some_and(|file| sys::byte_is_locked(&file, id, alone).unwrap_or(false))
    }

    fn open_bytes(&self) -> Option<File> {
        File::open(self.disk.dir.join("alive").join("bytes")).ok()
    }

    /// The same for many: the file is opened once.
    pub fn lives(&self) -> impl Fn(u64) -> bool {
        let file = std::cell::OnceCell::new();
        move |id| {
            self.proofs.contains_key(&id)
                || file.get_or_init(|| self.open_bytes()).as_ref().is_some_and(|file| sys::byte_is_locked(file, id, false).unwrap_or(false))
        }
    }

    /// Does the kernel lock that this process holds still prove anything to others? Not where the
    /// common file was deleted. (A lease of another process is not ours to judge.)
    pub fn still_proves(&self, id: Option<u64>) -> bool {
        let own = id.is_some_and(|id| self.proofs.contains_key(&id));
        !own || self.alive.as_ref().is_some_and(|file| self.disk.is_still(file, "alive", "bytes"))
    }

    /// Takes the kernel locks of a holder of this name, and tells the byte that is its own and its slot;
    /// `None` if another process is in the way, whatever the records say.
    pub fn prove_holder(&mut self, name: &Name, mode: Mode, free_slot: u32) -> Result<Option<(u64, Option<u32>)>, StoreError> {
        let byte = holder_byte(name);
        let Mode::Shared { limit } = mode else {
            return Ok(self.lock_byte(byte, false, false)?.then_some((byte, None)));
        };
        if !self.lock_byte(byte, true, false)? {
            return Ok(None);
        }
        let Some(limit) = limit else { return Ok(Some((self.lock_some_byte(false)?, None))) };
        // One whose record was lost may be in the slot that looks free.
        for slot in free_slot..limit {
            let own = slot_byte(name, slot);
            if self.lock_byte(own, false, false)? {
                return Ok(Some((own, Some(slot))));
            }
        }
        self.forget(byte);
        Ok(None)
    }

    /// Undoes the kernel locks of a holder of this name.
    pub fn forget_holder(&mut self, name: &Name, own: Option<u64>) {
        for id in own.into_iter().chain([holder_byte(name)]).filter(|id| self.proofs.contains_key(id)).collect::<Vec<_>>() {
            self.forget(id);
        }
    }

    /// Takes the kernel lock of some byte, for a waiter, and makes the pipe that it sleeps on.
    pub fn prove_waiter(&mut self) -> Result<u64, StoreError> {
        self.lock_some_byte(true)
    }

    fn lock_some_byte(&mut self, with_pipe: bool) -> Result<u64, StoreError> {
        loop {
            let id = random();
            if self.lock_byte(id, false, with_pipe)? {
                return Ok(id);
            }
        }
    }

    /// Takes the kernel lock of a byte for as long as this process (and store) lives.
    fn lock_byte(&mut self, id: u64, shared: bool, with_pipe: bool) -> Result<bool, StoreError> {
        let path = self.disk.dir.join("alive").join("bytes");
        if !sys::lock_byte(self.alive_bytes()?, id, shared).map_err(|error| trouble(&path, &error))? {
            return Ok(false);
        }
        self.proofs.insert(id, Proof { pipe: None });
        if with_pipe {
            match self.make_pipe(id) {
                Ok(pipe) => drop(self.proofs.insert(id, Proof { pipe: Some(pipe) })),
                Err(error) => {
                    self.forget(id);
                    return Err(error);
                }
            }
        }
        Ok(true)
    }

    /// The common file, opened once, and again where somebody has put another one in its place.
    pub fn alive_bytes(&mut self) -> Result<&File, StoreError> {
        let opened = match self.alive.take().filter(|file| !self.proofs.is_empty() || self.disk.is_still(file, "alive", "bytes")) {
            Some(file) => file,
            None => self.disk.open_shared("alive", "bytes")?,
        };
        Ok(self.alive.insert(opened))
    }

    fn make_pipe(&self, id: u64) -> Result<File, StoreError> {
        self.disk.ensure_dir("line")?;
        let path = self.disk.pipe_path(id);
        self.disk
            .make(&path, |path, mode| sys::make_fifo(path, mode & 0o666))
            .and_then(|()| OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path))
            .map_err(|error| trouble(&path, &error))
    }

    pub fn forget(&mut self, id: u64) {
        let proof = self.proofs.remove(&id);
        if let (Some(_), Some(file)) = (&proof, &self.alive) {
            sys::unlock_byte(file, id);
        }
        if proof.is_none_or(|proof| proof.pipe.is_some()) {
            let _ = fs::remove_file(self.disk.pipe_path(id));
        }
    }

    /// Removes what nobody has used for 30 days: records of free locks (the wall clock keeps their
    /// fences rising) and what a crash left. Best effort, outside of any bucket lock.
    pub fn sweep(&mut self) {
        let old = |path: &Path| {
            let age = fs::metadata(path).and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
            age.is_some_and(|age| age > UNUSED)
        };
        let paths = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        for path in paths(self.disk.dir.join("locks")).filter(|path| old(path)) {
            let Some(name) = name_of(&path) else {
                if path.file_name().is_some_and(|file| file.as_encoded_bytes().starts_with(b".")) {
                    let _ = fs::remove_file(&path); // one that was never renamed
                }
                continue;
            };
            let _ = self.under_lock(&name, |store| {
                let (record, _) = store.load(&name)?;
                if record.holders.is_empty() && record.line.is_empty() && old(&path) {
                    let _ = fs::remove_file(&path);
                }
                Ok(())
            });
        }
        for path in paths(self.disk.dir.join("line")).filter(|path| old(path)) {
            let id = path.file_name().and_then(|name| u64::from_str_radix(name.to_str()?, 16).ok());
            if id.is_none_or(|id| !self.is_alive(id)) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::boot_id;
    use crate::lock::{Claim, Keeping, Owner, Request, Token};
    use crate::store::Store;

    #[test]
    fn what_nobody_has_used_for_30_days_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Files::new(dir.path().to_owned(), boot_id().unwrap());
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
                store.release(&request.claim, Keeping::Lease).unwrap();
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
}
