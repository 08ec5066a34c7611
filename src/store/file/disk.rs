//! The records of a file store, and the bucket locks under which they change.
//!
//! A record is one page of JSON that one call writes in place, which a kill can't tear. Holders and line that
//! do not fit that page lie behind it, where the page says; new ones are written beside the old ones
//! before the page is. A record that can't be read is told as such: a run that died on a full disk may have left
//! it, or somebody's hand.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::place::{decode, digest, encode, trouble};
use super::random;
use crate::clock::Moment;
use crate::lock::{Mode, Name, Owner, Token};
use crate::store::StoreError;
use crate::sys;

/// The layout of a record; another one is refused, never guessed at.
const LAYOUT: u32 = 2;
/// Records are read and written by the page: what one call writes whole.
const PAGE: usize = 4096;

/// What is known of one resource.
#[derive(Serialize, Deserialize)]
pub struct Record {
    layout: u32,
    pub name: Name,
    pub boot: String,
    #[serde(default)]
    pub holders: Vec<Holder>,
    #[serde(default)]
    pub line: Vec<Waiter>,
    pub fence: u64,
    /// Where holders and line are, if they are not in this page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    apart: Option<Apart>,
}

/// A part of the file behind its first page.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Apart {
    /// By pages from the start of the file.
    page: u64,
    /// In bytes.
    len: usize,
    /// Of its bytes: half of a change shows.
    digest: u64,
}

impl Apart {
    fn end(self) -> u64 {
        self.page + self.len.div_ceil(PAGE) as u64
    }

    fn parse(self, bytes: &[u8]) -> Option<(Vec<Holder>, Vec<Waiter>)> {
        let start = usize::try_from(self.page).ok()?.checked_mul(PAGE)?;
        let part = bytes.get(start..start.checked_add(self.len)?)?;
        if self.page == 0 || digest(part, 0) != self.digest { None } else { serde_json::from_slice(part).ok() }
    }
}

/// One that holds it.
#[derive(Clone, Serialize, Deserialize)]
pub struct Holder {
    pub token: Token,
    pub owner: Owner,
    pub mode: Mode,
    #[serde(default)]
    pub slot: Option<u32>,
    pub fence: u64,
    pub ttl_us: u64,
    pub deadline_us: u64,
    pub acquired_at_us: u64,
    pub heartbeat_us: u64,
    /// The byte whose kernel lock proves that this holder lives, by its name; none for `acquire`.
    pub alive: Option<u64>,
    #[serde(default)]
    pub broken_by: Option<Owner>,
}

/// Who waits.
#[derive(Serialize, Deserialize)]
pub struct Waiter {
    pub token: Token,
    pub owner: Owner,
    pub mode: Mode,
    /// The byte whose kernel lock proves that it lives, and the name of the pipe that it sleeps on.
    pub alive: u64,
    pub since_us: u64,
    pub woken_us: Option<u64>,
}

impl Record {
    /// Nobody holds it, nobody waits.
    pub fn new(name: &Name, boot: &str) -> Record {
        Record { layout: LAYOUT, name: name.clone(), boot: boot.to_owned(), holders: Vec::new(), line: Vec::new(), fence: 0, apart: None }
    }

    /// May one in this mode join those that hold it now? The smallest limit of all decides.
    pub fn fits(&self, mode: Mode) -> bool {
        let exclusive = mode == Mode::Exclusive || self.holders.iter().any(|holder| holder.mode == Mode::Exclusive);
        let most = self.holders.iter().map(|holder| holder.mode.most()).chain([mode.most()]).min();
        if exclusive { self.holders.is_empty() } else { most.is_none_or(|most| self.holders.len() < most) }
    }

    /// The smallest number that none of the holders has.
    pub fn free_slot(&self) -> u32 {
        (0..).find(|slot| self.holders.iter().all(|holder| holder.slot != Some(*slot))).unwrap_or(0)
    }

    /// Reads the bytes of a file; the end of its page is blank. A record of another layout, whatever its
    /// shape, is told by its number.
    pub fn parse(bytes: &[u8]) -> Result<Record, Option<u32>> {
        #[derive(Deserialize)]
        struct Layout {
            layout: u32,
        }
        let text = bytes.get(..PAGE).unwrap_or(bytes).trim_ascii_end();
        match serde_json::from_slice::<Record>(text) {
            Ok(mut record) if record.layout == LAYOUT => {
                if let Some(apart) = record.apart {
                    (record.holders, record.line) = apart.parse(bytes).ok_or(None)?;
                }
                Ok(record)
            }
            _ => Err(serde_json::from_slice::<Layout>(text).ok().map(|found| found.layout)),
        }
    }
}

/// What lies where a record belongs.
pub enum Found {
    /// Nothing.
    Nothing,
    /// Something that is no record, in this file.
    Broken(PathBuf),
    /// A record.
    Record(Box<Record>),
}

/// One directory.
pub struct Disk {
    pub dir: PathBuf,
}

impl Disk {
    /// The record of a name.
    pub fn record_path(&self, name: &str) -> PathBuf {
        self.dir.join("locks").join(encode(name))
    }

    /// The named pipe of a waiter.
    pub fn pipe_path(&self, id: u64) -> PathBuf {
        self.dir.join("line").join(format!("{id:016x}"))
    }

    /// Makes a file or directory of the store, to be used by whom the store's directory is: with its
    /// mode, and where root makes it in somebody's directory, with its owner. Nobody ever sees it half
    /// made. (The umask is not in the way: `sys::clear_umask`.)
    pub fn make<T>(&self, path: &Path, make: impl FnOnce(&Path, u32) -> io::Result<T>) -> io::Result<T> {
        let store = fs::metadata(&self.dir)?;
        let mode = store.mode() & 0o777;
        if sys::uid() != 0 || (store.uid(), store.gid()) == (0, 0) {
            return make(path, mode);
        }
        let aside = path.with_file_name(format!(".{:016x}", random()));
        let made = make(&aside, mode)?;
        chown(&aside, Some(store.uid()), Some(store.gid())).and_then(|()| sys::rename_new(&aside, path)).inspect_err(|_| {
            let _ = fs::remove_file(&aside).or_else(|_| fs::remove_dir(&aside));
        })?;
        Ok(made)
    }

    /// Was a file made when fewer people might use the store's directory than now?
    pub fn is_narrower(&self, mode: u32) -> bool {
        fs::metadata(&self.dir).is_ok_and(|dir| dir.mode() & 0o666 & !mode != 0)
    }

    /// Gives what is in the directory the mode that the directory has by now, as far as this user may.
    pub fn widen(&self) {
        let Ok(mode) = fs::metadata(&self.dir).map(|dir| dir.mode() & 0o777) else { return };
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        for sub in ["buckets", "locks", "line", "alive"].map(|sub| self.dir.join(sub)) {
            let _ = set(&sub, mode);
            for entry in fs::read_dir(&sub).into_iter().flatten().flatten() {
                let _ = set(&entry.path(), mode & 0o666);
            }
        }
    }

    /// Makes a directory of the store.
    pub fn ensure_dir(&self, sub: &str) -> Result<(), StoreError> {
        let path = self.dir.join(sub);
        match self.make(&path, |path, mode| fs::DirBuilder::new().mode(mode).create(path)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(trouble(&path, &error)),
            _ => Ok(()),
        }
    }

    /// Opens a file of the store, retrying once after making its directory. O_CREAT only when the
    /// file is absent: `fs.protected_regular` refuses it even to root in a sticky directory.
    pub fn open_shared(&self, sub: &str, name: &str) -> Result<File, StoreError> {
        let path = self.dir.join(sub).join(name);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(trouble(&path, &error)),
        }
        self.ensure_dir(sub)?;
        let made = self.make(&path, |path, mode| OpenOptions::new().read(true).write(true).create_new(true).mode(mode & 0o666).open(path));
        match made {
            Ok(file) => Ok(file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                OpenOptions::new().read(true).write(true).open(&path).map_err(|error| trouble(&path, &error))
            }
            Err(error) => Err(trouble(&path, &error)),
        }
    }

    /// Takes the bucket lock of a name, within this time; it ends with the file. It is held for
    /// microseconds, but a process that is stopped just then holds it for as long as it is.
    pub fn locked(&self, name: &Name, at_most: Duration) -> Result<File, StoreError> {
        let bucket = format!("{:02x}", digest(name.as_str().as_bytes(), 0) & 0xff);
        let path = self.dir.join("buckets").join(&bucket);
        let end = Moment::now() + at_most;
        for _ in 0..100 {
            let file = self.open_shared("buckets", &bucket)?;
            let mut pause = Duration::from_micros(50);
            loop {
                match file.try_lock() {
                    Ok(()) => break,
                    Err(TryLockError::Error(error)) => return Err(trouble(&path, &error)),
                    Err(TryLockError::WouldBlock) if Moment::now() >= end => {
                        let why = "another dlock has held this lock for too long; is it stopped?";
                        return Err(StoreError::Unavailable(format!("{}: {why}", path.display())));
                    }
                    Err(TryLockError::WouldBlock) => {
                        std::thread::sleep(pause);
                        pause = (pause * 2).min(Duration::from_millis(5));
                    }
                }
            }
            // Somebody may have deleted the path in the meantime: then this lock means nothing.
            if self.is_still(&file, "buckets", &bucket) {
                return Ok(file);
            }
        }
        Err(StoreError::Unavailable(format!("{}: deleted again and again while it is used", path.display())))
    }

    /// Is an open file still the one that others find by its name?
    pub fn is_still(&self, file: &File, sub: &str, name: &str) -> bool {
        let now = fs::metadata(self.dir.join(sub).join(name));
        file.metadata().is_ok_and(|ours| now.is_ok_and(|now| now.ino() == ours.ino() && now.dev() == ours.dev()))
    }

    /// Reads a record.
    pub fn read(&self, name: &Name) -> Result<Found, StoreError> {
        let path = self.record_path(name.as_str());
        let refused = |why: String| Err(StoreError::Denied(format!("{}: {why}", path.display())));
        match read_regular(&path) {
            Ok(Some(bytes)) => match Record::parse(&bytes) {
                Ok(record) if record.name == *name => Ok(Found::Record(Box::new(record))),
                Ok(_) => refused("holds another resource's record".into()),
                Err(Some(layout)) if layout != LAYOUT => {
                    refused(format!("a record of layout {layout}, this dlock knows {LAYOUT}; use one version of dlock"))
                }
                Err(_) => Ok(Found::Broken(path)),
            },
            Ok(None) => refused("is no regular file; remove it".into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
            Err(error) => Err(trouble(&path, &error)),
        }
    }

    /// The names of all records.
    pub fn names(&self) -> Result<Vec<Name>, StoreError> {
        let dir = self.dir.join("locks");
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(trouble(&dir, &error)),
        };
        let files = entries.flatten().map(|entry| entry.path());
        Ok(files.filter_map(|path| name_of(&path)).collect())
    }

    /// Writes a record in place: a full disk can't refuse that, and renaming over a file makes ext4
    /// allocate at once, 0.2 ms that a run would pay twice. A new one is made aside and renamed.
    pub fn save(&self, record: &mut Record) -> Result<(), StoreError> {
        let path = self.record_path(record.name.as_str());
        let json = |value: &dyn Fn(&mut Vec<u8>) -> serde_json::Result<()>| {
            let mut bytes = Vec::with_capacity(PAGE);
            value(&mut bytes).map(|()| bytes).map_err(|error| StoreError::Unavailable(error.to_string()))
        };
        let before = record.apart.take();
        let mut first = json(&|to| serde_json::to_writer(to, record))?;
        let mut apart = None;
        if first.len() > PAGE {
            let rest = json(&|to| serde_json::to_writer(to, &(&record.holders, &record.line)))?;
            // Beside the old ones: in front of them where there is room.
            let fits_in_front = |old: &Apart| rest.len() <= (old.page as usize - 1) * PAGE;
            let page = before.filter(|old| !fits_in_front(old)).map_or(1, Apart::end);
            let (name, boot) = (record.name.clone(), record.boot.clone());
            let place = Apart { page, len: rest.len(), digest: digest(&rest, 0) };
            let head =
                Record { layout: LAYOUT, name, boot, holders: Vec::new(), line: Vec::new(), fence: record.fence, apart: Some(place) };
            first = json(&|to| serde_json::to_writer(to, &head))?;
            record.apart = Some(place);
            apart = Some((page * PAGE as u64, rest));
        }
        first.resize(PAGE, b'\n');
        let write = |file: &File| {
            if let Some((at, rest)) = &apart {
                file.write_all_at(rest, *at)?;
            }
            if file.write_at(&first, 0)? != PAGE {
                return Err(io::ErrorKind::WriteZero.into());
            }
            if apart.is_none() && before.is_some() { file.set_len(PAGE as u64) } else { Ok(()) }
        };
        if let Ok(file) = OpenOptions::new().write(true).open(&path)
            && file.metadata().is_ok_and(|now| now.len() >= PAGE as u64)
        {
            return write(&file).map_err(|error| trouble(&path, &error));
        }
        self.ensure_dir("locks")?;
        let aside = self.dir.join("locks").join(format!(".{:016x}", random()));
        let made = self.make(&aside, |path, mode| OpenOptions::new().write(true).create_new(true).mode(mode & 0o666).open(path));
        let written = made.and_then(|file| write(&file)).and_then(|()| fs::rename(&aside, &path));
        written.map_err(|error| {
            let _ = fs::remove_file(&aside);
            trouble(&path, &error)
        })
    }
}

/// Reads a file; `None` for one that is no regular file, where reading could wait for ever.
pub fn read_regular(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(PAGE + 1); // one more: then the end is seen at once
    file.read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Whose record a file is, by its file name; a long name is looked up in the record itself.
pub fn name_of(path: &Path) -> Option<Name> {
    let file = path.file_name()?.to_str()?;
    if let Some(name) = decode(file) {
        return Name::new(&name).ok();
    }
    // Not under the bucket lock, whose name this is to tell: a reader may see half of a change.
    (0..10).find_map(|_| Some(Record::parse(&read_regular(path).ok()??).ok()?.name)).filter(|name| encode(name.as_str()) == file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_any_length_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk { dir: dir.path().to_owned() };
        let name = Name::new("x").unwrap();
        let path = disk.record_path("x");
        let mut record = Record::new(&name, "boot");
        for count in [0, 3, 40, 41, 400, 20, 200, 2, 100, 0] {
            record.line = (0..count)
                .map(|alive| Waiter {
                    token: Token::random(),
                    owner: Owner::default(),
                    mode: Mode::Shared { limit: Some(3) },
                    alive,
                    since_us: alive,
                    woken_us: None,
                })
                .collect();
            record.fence += 1;
            let before = fs::read(&path).unwrap_or_default();
            disk.save(&mut record).unwrap();
            let Ok(Found::Record(found)) = disk.read(&name) else { panic!("{count}: no record") };
            assert_eq!(found.line.iter().map(|waiter| waiter.alive).collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
            assert_eq!(found.fence, record.fence);
            // A kill between the two writes leaves what was before.
            let mut half = fs::read(&path).unwrap();
            if before.len() >= PAGE && half.len() >= before.len() && record.apart.is_some() {
                half[..PAGE].copy_from_slice(&before[..PAGE]);
                assert_eq!(Record::parse(&half).map(|found| found.fence).unwrap_or_default(), record.fence - 1);
            }
            record = *found;
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), PAGE as u64);
        // Half of a change is no record.
        record.line = (0..50)
            .map(|alive| Waiter {
                token: Token::random(),
                owner: Owner::default(),
                mode: Mode::Exclusive,
                alive,
                since_us: 0,
                woken_us: None,
            })
            .collect();
        disk.save(&mut record).unwrap();
        let mut torn = fs::read(&path).unwrap();
        torn[PAGE + 10] ^= 1;
        fs::write(&path, torn).unwrap();
        assert!(matches!(disk.read(&name), Ok(Found::Broken(_))));
    }
}
