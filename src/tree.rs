//! All processes that descend from one, by a walk through /proc, so that each can be signalled.
//!
//! A walk that can't be done is an error and never an empty tree.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::time::Duration;

use crate::sys::{self, Children};

/// A living process.
pub struct Process {
    /// Its pid.
    pub pid: i32,
    /// The group that it is in.
    pub group: i32,
}

/// Processes that are none of the walk's, nor what descends from them: pid, and when each was started
/// (clock ticks since boot).
pub type Others = HashMap<i32, u64>;

struct Entry {
    parent: i32,
    group: i32,
    dead: bool,
    started: u64,
}

/// Can processes be looked at? Without a /proc that numbers them as this process does (that of its own
/// pid namespace) the tree can't be walked, so nothing is started.
pub fn can_be_walked() -> io::Result<()> {
    let own = fs::read_link("/proc/self")
        .map_err(|error| io::Error::new(error.kind(), format!("cannot look at /proc/self: {error}; is /proc mounted?")))?;
    if own.as_os_str() == sys::own_pid().to_string().as_str() {
        return Ok(());
    }
    Err(io::Error::other(
        "/proc is that of another pid namespace, so the command could not be stopped; mount one here (unshare --mount-proc)",
    ))
}

/// Fields of /proc/PID/stat (proc(5)). The name among them may hold any character, so they are counted
/// from its last parenthesis.
fn parse(stat: &[u8]) -> Option<Entry> {
    let after = stat.iter().rposition(|&byte| byte == b')')?;
    let text = String::from_utf8_lossy(stat.get(after + 2..)?).into_owned();
    let mut fields = text.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let threads: u32 = fields.nth(14)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    // A process whose first thread has ended looks like a zombie while the others go on.
    Some(Entry { parent, group, dead: state == "X" || state == "Z" && threads <= 1, started })
}

/// Every process by pid. Those that end meanwhile, or that this user may not see (hidepid), are left out.
fn processes() -> io::Result<HashMap<i32, Entry>> {
    let mut all = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        match fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => all.extend(parse(&stat).map(|entry| (pid, entry))),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH | libc::EACCES | libc::EPERM)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// The living descendants of a process. Orphans among them have come back to it, if it is a subreaper.
pub fn descendants(root: i32, others: &Others) -> io::Result<Vec<Process>> {
    Ok(beneath(&processes()?, root, others))
}

fn beneath(all: &HashMap<i32, Entry>, root: i32, others: &Others) -> Vec<Process> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        let children = all.iter().filter(|(pid, entry)| entry.parent == parent && others.get(pid) != Some(&entry.started));
        found.extend(children.map(|(pid, _)| *pid));
        next += 1;
    }
    let living = |pid| all.get(&pid).filter(|entry| pid != root && !entry.dead).map(|entry| Process { pid, group: entry.group });
    found.into_iter().filter_map(living).collect()
}

/// The pauses between two looks at a killed tree: short ones at first, longer where it takes its time.
pub struct Looks(Duration);

impl Default for Looks {
    fn default() -> Looks {
        Looks(Duration::from_millis(5))
    }
}

impl Looks {
    /// How long to wait before the next look.
    pub fn pause(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 5 / 4).min(Duration::from_millis(100));
        pause
    }
}

/// What descends from this process already: a shell may have started something before it became dlock
/// by `exec`.
pub fn already_there() -> io::Result<Others> {
    if sys::children()? == Children::None {
        return Ok(Others::new());
    }
    let all = processes()?;
    let there = beneath(&all, sys::own_pid(), &Others::new());
    Ok(there.into_iter().filter_map(|found| Some((found.pid, all.get(&found.pid)?.started))).collect())
}

/// Are all children of this process among these? False where that can't be told. What has ended, and is
/// not reaped, is a child still; and whatever loses its parent becomes one: so nothing else is left.
pub fn has_only(others: &Others) -> bool {
    let children = fs::read_to_string(format!("/proc/self/task/{}/children", sys::own_pid()));
    let known = |pid: &str| pid.parse().is_ok_and(|pid| others.contains_key(&pid));
    !others.is_empty() && children.is_ok_and(|children| children.split_whitespace().all(known))
}

/// Kills processes: stops all first, so that nothing forks away meanwhile.
pub fn kill(tree: &[Process]) {
    for signal in [libc::SIGSTOP, libc::SIGKILL] {
        for process in tree {
            let _ = sys::kill(process.pid, signal);
        }
    }
}

/// The values that two variables had together in the environment of each process above this one, the
/// nearest first, as far as this user may read them.
pub fn above(variables: [&str; 2]) -> Vec<[String; 2]> {
    let all = processes().unwrap_or_default();
    let mut found = Vec::new();
    let mut at = sys::own_pid();
    while let Some(entry) = all.get(&at).filter(|entry| entry.parent > 0) {
        at = entry.parent;
        let environ = fs::read(format!("/proc/{at}/environ")).unwrap_or_default();
        let value = |name: &str| {
            let of = |text: &[u8]| Some(text.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?.to_vec());
            environ.split(|byte| *byte == 0).find_map(of).and_then(|value| String::from_utf8(value).ok())
        };
        if let [Some(first), Some(second)] = variables.map(value) {
            found.push([first, second]);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pid: i32, state: &str, parent: i32, threads: u32, started: u64) -> (i32, Entry) {
        let stat = format!("{pid} (a) b) {state} {parent} 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 {threads} 0 {started} 1 2 3");
        (pid, parse(stat.as_bytes()).unwrap())
    }

    fn pids(all: &HashMap<i32, Entry>, others: &Others) -> Vec<i32> {
        let mut pids: Vec<i32> = beneath(all, 10, others).into_iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn looks_get_rarer_and_stay_bounded() {
        let mut looks = Looks::default();
        let pauses: Vec<Duration> = (0..40).map(|_| looks.pause()).collect();
        assert!(pauses[0] == Duration::from_millis(5) && pauses.is_sorted());
        assert_eq!(pauses[39], Duration::from_millis(100));
        assert!(pauses.iter().take_while(|pause| pause.as_millis() < 100).sum::<Duration>() < Duration::from_secs(1));
    }

    #[test]
    fn a_tree_has_all_that_lives_in_it_and_nothing_else() {
        let all = HashMap::from([
            line(1, "S", 0, 1, 1),
            line(10, "S", 1, 1, 5),
            line(11, "S", 10, 1, 6),
            line(12, "Z", 10, 1, 6),
            line(13, "Z", 10, 2, 6),
            line(14, "T", 12, 1, 7),
            line(15, "S", 1, 1, 7),
        ]);
        assert_eq!(pids(&all, &Others::new()), [11, 13, 14]);
        assert_eq!(pids(&all, &Others::from([(12, 6), (13, 9)])), [11, 13]); // 13 is not what it was
    }
}
