//! The records of a file store, and the bucket locks under which they change.
//!
//! A record is one page of JSON that one call writes in place, which a kill can't tear. One that can't
//! be read is told as such: a run that died on a full disk may have left it, or somebody's hand.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::place::{digest, encode, trouble};
use crate::clock::Moment;
use crate::lock::{Mode, Name, Owner, Token};
use crate::store::StoreError;

/// The layout of a record; another one is refused, never guessed at.
const LAYOUT: u32 = 1;
/// Records are read and written by the page: what one call writes whole.
const PAGE: usize = 4096;

/// What is known of one resource.
#[derive(Serialize, Deserialize)]
pub struct Record {
    layout: u32,
    pub name: Name,
    pub boot: String,
    pub holder: Option<Holder>,
    #[serde(default)]
    pub line: Vec<Waiter>,
    pub fence: u64,
}

/// Who holds it.
#[derive(Serialize, Deserialize)]
pub struct Holder {
    pub token: Token,
    pub owner: Owner,
    pub mode: Mode,
    pub fence: u64,
    pub ttl_us: u64,
    pub deadline_us: u64,
    pub acquired_at_us: u64,
    pub heartbeat_us: u64,
    /// The byte whose kernel lock proves that this holder lives; none for `acquire`.
    pub alive: Option<u64>,
    #[serde(default)]
    pub broken_by: Option<Owner>,
}

/// Who waits.
#[derive(Serialize, Deserialize)]
pub struct Waiter {
    pub token: Token,
    pub owner: Owner,
    /// The byte whose kernel lock proves that it lives, and the name of the pipe that it sleeps on.
    pub alive: u64,
    pub since_us: u64,
    pub woken_us: Option<u64>,
}

impl Record {
    /// Nobody holds it, nobody waits.
    pub fn new(name: &Name, boot: &str) -> Record {
        Record { layout: LAYOUT, name: name.clone(), boot: boot.to_owned(), holder: None, line: Vec::new(), fence: 0 }
    }

    /// Reads the bytes of a file; the end of its page is blank.
    pub fn parse(bytes: &[u8]) -> Option<Record> {
        serde_json::from_slice(bytes.trim_ascii_end()).ok()
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

    /// The mode of a new file: readable and writable by whom the directory is.
    pub fn file_mode(&self) -> u32 {
        fs::metadata(&self.dir).map_or(0o600, |dir| dir.mode() & 0o666)
    }

    /// Makes a directory of the store, writable to whom the store itself is.
    pub fn ensure_dir(&self, sub: &str) -> Result<(), StoreError> {
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
    pub fn open_shared(&self, sub: &str, name: &str) -> Result<File, StoreError> {
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
                file.set_permissions(fs::Permissions::from_mode(self.file_mode())).map_err(|error| trouble(&path, &error))?;
                Ok(file)
            }
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
        match fs::read(&path) {
            Ok(bytes) => match Record::parse(&bytes) {
                Some(record) if record.layout != LAYOUT => Err(StoreError::Denied(format!(
                    "{}: a record of layout {}, this dlock knows {LAYOUT}; use one version of dlock",
                    path.display(),
                    record.layout
                ))),
                Some(record) if record.name == *name => Ok(Found::Record(Box::new(record))),
                Some(_) => Err(StoreError::Denied(format!("{}: holds another resource's record", path.display()))),
                None => Ok(Found::Broken(path)),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
            Err(error) => Err(trouble(&path, &error)),
        }
    }

    /// Writes a record. One that fits a page, as all but those with a long line do, is written in place
    /// by one call, which a kill can't tear and a full disk can't refuse; else it is written aside and
    /// renamed. (Renaming over a file makes ext4 allocate at once: 0.2 ms that a run would pay twice.)
    pub fn save(&self, record: &Record) -> Result<(), StoreError> {
        let path = self.record_path(record.name.as_str());
        let mut bytes = Vec::with_capacity(PAGE);
        serde_json::to_writer(&mut bytes, record).map_err(|error| StoreError::Unavailable(error.to_string()))?;
        bytes.resize(bytes.len().max(PAGE), b'\n');
        if bytes.len() == PAGE
            && let Ok(file) = OpenOptions::new().write(true).open(&path)
            && file.metadata().is_ok_and(|now| now.len() == PAGE as u64)
            && file.write_at(&bytes, 0).is_ok_and(|written| written == PAGE)
        {
            return Ok(());
        }
        self.ensure_dir("locks")?;
        let aside = self.dir.join("locks").join(format!(".{:016x}", super::random()));
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.set_permissions(fs::Permissions::from_mode(self.file_mode()))?;
            fs::rename(&aside, &path)
        });
        written.map_err(|error| {
            let _ = fs::remove_file(&aside);
            trouble(&path, &error)
        })
    }
}
