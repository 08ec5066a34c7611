//! Where a file store is, what its files are called, and how its troubles are worded.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::store::{StoreError, percent_decoded, with_prefix};
use crate::sys;

/// Checks a `file:` URL without touching the directory.
pub fn check(url: &str) -> Result<(), String> {
    directory(url).map(drop)
}

/// Puts a prefix into a URL that names none; there is no password to a directory.
pub fn complete(url: &str, _password: Option<&str>, prefix: Option<&str>) -> String {
    with_prefix(url, prefix)
}

/// The default directory of this user: it does not depend on the environment, which differs between
/// a login and cron.
pub fn default_dir() -> Option<PathBuf> {
    if sys::uid() == 0 {
        return Some("/var/lib/dlock".into());
    }
    sys::user().map(|(_, home)| Path::new(&home).join(".local/state/dlock"))
}

/// The directory, and the prefix: a store of its own below it.
pub fn directory(url: &str) -> Result<(PathBuf, Option<String>), String> {
    let form = "a file store is file:///DIR with an absolute path, and ?prefix= at most";
    let rest = url.strip_prefix("file://").unwrap_or(url);
    let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
    let prefix = match query.map(|query| query.strip_prefix("prefix=").and_then(percent_decoded)) {
        None => None,
        Some(Some(prefix)) if !prefix.contains('&') => Some(prefix).filter(|prefix| !prefix.is_empty()),
        Some(_) => return Err(form.into()),
    };
    let path = percent_decoded(path).filter(|path| path.starts_with('/')).ok_or(form)?;
    Ok((PathBuf::from(path), prefix))
}

/// Words an I/O error: which path, the system's words, what next; and whether waiting can help.
pub fn trouble(path: &Path, error: &io::Error) -> StoreError {
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
            let next = "use a directory that all its users may write (mode 1777); one that was widened later is widened inside by its owner's next run";
            StoreError::Denied(format!("{at}: {error}{whose}; {next}"))
        }
        ReadOnlyFilesystem | NotFound => StoreError::Denied(format!("{at}: {error}")),
        _ => StoreError::Unavailable(format!("{at}: {error}")),
    }
}

/// A name as a file name: letters, digits, `-`, `_` and `.` stay, all else is `%XX`; what would be too
/// long for a file name ends in a digest, and the record's own name tells the rest apart.
pub fn encode(name: &str) -> String {
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

/// The name that a file name was made from; `None` for one with a digest, and for what is no record.
pub fn decode(file: &str) -> Option<String> {
    percent_decoded(file).filter(|name| encode(name) == file)
}

/// FNV-1a, 64 bits (draft-eastlake-fnv): the same in every version of dlock, unlike std's hasher.
pub fn digest(bytes: &[u8], seed: u64) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325 ^ seed, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_names_share_a_file_and_none_leaves_the_directory() {
        let names = ["a/b", "a_b", "a%2Fb", "a b", "..", ".", "../x", "A", "a", "日本", "*", "{}", ".x"];
        let mut files: Vec<String> = names.iter().map(|name| encode(name)).collect();
        let long = "x".repeat(254);
        files.extend([encode(&format!("{long}1")), encode(&format!("{long}2")), encode(&"日".repeat(85))]);
        assert!(names.iter().all(|name| decode(&encode(name)).as_deref() == Some(name)));
        assert!(decode(".0123456789abcdef").is_none() && decode(&encode(&long)).is_none() && decode(&encode(&"日".repeat(85))).is_none());
        assert!(files.iter().all(|file| !file.contains('/') && !file.starts_with('.') && file.len() <= 200));
        files.sort();
        let all = files.len();
        files.dedup();
        assert_eq!(files.len(), all);
    }
}
