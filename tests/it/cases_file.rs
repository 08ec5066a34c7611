//! Failures that people have had with locks around jobs: the command line, descriptors, odd names and
//! the file store.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::cases::{SLEEPS, end, line, started};
use crate::harness::{Fixture, lives, text, until};
use crate::redis::{Site, on_each_store};

const DLOCK: &str = env!("CARGO_BIN_EXE_dlock");

on_each_store!(case_31_durations, case_41_odd_names, case_64_started_with_closed_streams,);

/// What a shell on this store makes of a script; `$D` is dlock.
fn shell(at: &Fixture, script: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env_clear().env("PATH", "/usr/bin:/bin").env("D", DLOCK).env("DLOCK_STORE", &at.store);
    command.current_dir(at.path("")).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn case_07_the_environment_of_cron() {
    let at = Fixture::file();
    let cron = |words: &[&OsStr]| {
        let output = at.dlock(&["run", "-r", "j", "--"]).args(words).env_remove("HOME").output().unwrap();
        (output.status.code().unwrap(), text(&output.stderr))
    };
    for (words, code, said) in [
        (&["mytool", "--fast"][..], 127, "cannot run 'mytool': not found in PATH=/usr/bin:/bin"),
        (&["/etc/passwd"], 126, "cannot run '/etc/passwd': not executable"),
        (&["cd", "/srv"], 127, "'cd' is a shell built-in: use sh -c '…'"),
        (&["X=1 env"], 127, "this looks like a shell line: use sh -c '…'"),
        (&["echo hi; echo there"], 127, "this looks like a shell line: use sh -c '…'"),
        (&["/no/such"], 127, "not found"),
    ] {
        let words: Vec<_> = words.iter().map(OsStr::new).collect();
        let (seen, words_said) = cron(&words);
        assert!(seen == code && words_said.contains(said) && words_said.lines().count() == 1, "{words:?}: {seen} {words_said}");
    }
    assert_eq!(cron(&[OsStr::from_bytes(b"\xff\xfe")]).0, 127);
    assert_eq!(cron(&[OsStr::new("true")]), (0, String::new()));
    let bare = Command::new(DLOCK).arg("--version").env_clear().output().unwrap();
    assert!(bare.status.success() && text(&bare.stdout).starts_with("dlock "), "{bare:?}");
}

/// dlock as another user than root: a copy where that user can reach it.
fn as_nobody(at: &Fixture, words: &[&str]) -> Output {
    let copy = at.path("dlock");
    if !copy.exists() {
        crate::harness::copy_program(DLOCK, &copy);
    }
    let mut command = Command::new(copy);
    command.args(words).env_clear().env("PATH", "/usr/bin:/bin").env("DLOCK_STORE", &at.store).current_dir("/");
    command.uid(65534).gid(65534).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn case_12_two_users_and_one_lock() {
    let at = Fixture::file();
    let mode = |path: &str, mode| fs::set_permissions(at.path(path), Permissions::from_mode(mode)).unwrap();
    // A shared directory stays shared whatever the umask of the first one was.
    mode("store", 0o1777);
    assert!(shell(&at, "umask 077; exec \"$D\" run -r etl -- true").status.success());
    let mut dirs = vec![at.path("store")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let found = entry.metadata().unwrap();
            assert_eq!(found.permissions().mode() & 0o666, 0o666, "{}", entry.path().display());
            if found.is_dir() {
                dirs.push(entry.path());
            }
        }
    }
    if !fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t") {
        return; // the rest needs a second user
    }
    mode("", 0o755);
    let shared = as_nobody(&at, &["run", "-r", "etl", "--", "echo", "ran"]);
    assert_eq!(text(&shared.stdout), "ran\n", "{shared:?}");
    assert!(as_nobody(&at, &["acquire", "-r", "e2", "-t", "20s"]).status.success());
    assert_eq!(at.code(&["run", "-r", "e2", "--", "true"]), 75, "root respects it");
    assert!(at.run(&["acquire", "-r", "e3", "-t", "20s"]).status.success());
    let user = |name: &str| at.status(name)["holders"][0]["owner"]["user"].as_str().unwrap().to_owned();
    assert_ne!(user("e2"), user("e3"));
    // One that is root's own is denied, with what to do.
    let own = Fixture::file();
    fs::set_permissions(own.path(""), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(own.path("store"), Permissions::from_mode(0o755)).unwrap();
    assert!(shell(&own, "umask 077; exec \"$D\" run -r etl -- true").status.success());
    let refused = as_nobody(&own, &["run", "-r", "etl", "--", "echo", "ran"]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(77), 0), "{refused:?}");
    for word in ["store", "owner uid 0", "mode 0", "use a directory"] {
        assert!(line(&refused).contains(word), "{word}: {refused:?}");
    }
}

#[test]
fn case_16_half_of_the_line() {
    let at = Fixture::file();
    let half = shell(&at, "\"$D\" run -r h -- cd /tmp && touch mark");
    assert_eq!(half.status.code(), Some(127));
    assert!(!at.path("mark").exists());
    let inside = "\"$D\" run -r h -- sh -c 'cd / && \"$D\" run -q -r h -w 0s -- true || echo \"inside: held\"'";
    assert_eq!(text(&shell(&at, inside).stdout), "inside: held\n");
    let percent = shell(&at, "printf 'Y-%%m-%%d\\n' | \"$D\" run -r h -- sh -c 'cat; echo end'");
    assert_eq!(text(&percent.stdout), "Y-%m-%d\nend\n");
    assert_eq!(text(&shell(&at, "\"$D\" run -r h --shell 'echo hi; echo there'").stdout), "hi\nthere\n");
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    assert!(readme.contains("\\%") && readme.contains("MAILTO") && readme.contains("-c 'a && b > log'"));
}

#[test]
fn case_24_the_record_is_deleted_while_it_is_held() {
    for gone in ["all", "directory", "locks", "alive", "buckets"] {
        let at = Fixture::file();
        let (holder, pid) = started(&at, "r", "2s", SLEEPS);
        let store = at.path("store");
        if gone == "all" || gone == "directory" {
            fs::remove_dir_all(&store).unwrap();
            fs::create_dir(&store).unwrap();
        } else {
            for file in fs::read_dir(store.join(gone)).unwrap() {
                fs::remove_file(file.unwrap().path()).unwrap();
            }
        }
        if gone == "directory" {
            fs::remove_dir(&store).unwrap();
        }
        // The store forgot the lock: two may run until the next heartbeat, and no longer.
        sleep(Duration::from_millis(2500));
        assert!(!lives(&pid) || at.code(&["run", "-r", "r", "--", "true"]) != 0, "{gone}: two at once");
        let lived = lives(&pid);
        if lived {
            end(holder);
        } else {
            let output = holder.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(79), "{gone}: {output:?}");
        }
        if gone == "directory" {
            fs::create_dir(&store).unwrap();
        }
        assert_eq!(at.code(&["run", "-r", "r", "-w", "10s", "--", "true"]), 0, "{gone}");
    }
}

#[test]
fn case_24_a_live_lock_looks_fresh_to_a_cleaner() {
    let at = Fixture::file();
    let (holder, _) = started(&at, "m", "1s", SLEEPS);
    sleep(Duration::from_millis(2500));
    let age = |path: &Path| fs::metadata(path).unwrap().modified().unwrap().elapsed().unwrap();
    let youngest = fs::read_dir(at.path("store/locks")).unwrap().map(|file| age(&file.unwrap().path())).min().unwrap();
    assert!(youngest < Duration::from_millis(1500), "{youngest:?}");
    end(holder);
}

#[test]
fn case_26_arguments_come_out_as_they_went_in() {
    let at = Fixture::file();
    let words = ["a b", "", "*", "$HOME", "q'q", "\"", "new\nline", "日本", "--ttl", "-v", "--", "-h"];
    let output = at.dlock(&["run", "-r", "a", "--", "printf", "<%s>"]).args(words).output().unwrap();
    assert_eq!(text(&output.stdout), words.map(|word| format!("<{word}>")).concat());
    let output = at.dlock(&["run", "-r", "a", "--", "printf", "%s"]).arg(OsStr::from_bytes(b"\xff\xfe")).output().unwrap();
    assert_eq!(output.stdout, b"\xff\xfe");
    assert_eq!(at.run(&["run", "-r", "a", "cat", "-A", "/etc/hostname"]).stderr, b"");
    let help = at.run(&["run", "-r", "a", "--", "--help"]);
    assert_eq!(help.status.code(), Some(127));
    assert!(line(&help).contains("'--help'"));
    assert_eq!(at.code(&["run", "-r", "a", "--"]), 64);
    assert_eq!(at.code(&["run", "--", "true"]), 64);
    let same = "cd / && umask 027 && ulimit -n 99";
    let show = "'pwd; umask; ulimit -n; env | grep -v -e ^DLOCK_ -e ^_= -e ^SHLVL= | sort'";
    let bare = shell(&at, &format!("{same} && sh -c {show}"));
    assert!(!bare.stdout.is_empty());
    assert_eq!(text(&shell(&at, &format!("{same} && exec \"$D\" run -r a -- sh -c {show}")).stdout), text(&bare.stdout));
}

fn case_31_durations(at: &Site) {
    let ttl = |text: &str| at.run(&["run", "-r", "t", &format!("--ttl={text}"), "--", "true"]);
    for bad in ["0", "0s", "-5s", "", "abc", " 5s", "5S", "1M", "9999999999999h", "10ms", "99999999999999999999"] {
        let refused = ttl(bad);
        assert_eq!(refused.status.code(), Some(64), "{bad:?}");
        assert!(line(&refused).contains(&format!("{bad:?}")), "{refused:?}");
    }
    for good in ["30", "1500ms", "1.5s", "1m30s", "366d", "1s"] {
        assert_eq!(ttl(good).status.code(), Some(0), "{good:?}");
    }
    for (wait, code) in [("-1s", 64), ("abc", 64), ("", 64), ("0", 0), ("0s", 0)] {
        assert_eq!(at.code(&["run", "-r", "t", &format!("--wait={wait}"), "--", "true"]), code, "{wait:?}");
    }
    // A bare number is seconds.
    assert!(at.run(&["acquire", "-r", "bare", "-t", "30"]).status.success());
    let left = at.status("bare")["holders"][0]["expires_in_ms"].as_u64().unwrap();
    assert!((15_000..=30_000).contains(&left), "{left}");
    // The shortest run there is, for some TTLs, and never lost.
    let run = at.start(&["run", "-r", "sub", "-t", "1s", "--", "sleep", "3"]);
    until("held", || at.held("sub"));
    for _ in 0..4 {
        assert_eq!(at.code(&["run", "-r", "sub", "--", "true"]), 75);
        sleep(Duration::from_millis(500));
    }
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn case_38_broken_records_and_directories() {
    let at = Fixture::file();
    let record = at.path("store/locks/a");
    let noise: Vec<u8> = (0..200_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert_eq!(at.code(&["run", "-r", "a", "--", "true"]), 0);
    for junk in [&b""[..], b"{", b"garbage", &noise] {
        fs::write(&record, junk).unwrap();
        let output = at.run(&["run", "-r", "a", "-t", "2s", "-w", "6s", "--", "echo", "ran"]);
        assert_eq!(text(&output.stdout), "ran\n", "{output:?}");
        assert!(line(&output).contains(record.to_str().unwrap()), "{output:?}");
    }
    // Under a live holder: two may run until its next heartbeat, and no longer.
    let (holder, pid) = started(&at, "a", "2s", SLEEPS);
    fs::write(&record, "").unwrap();
    sleep(Duration::from_millis(2500));
    assert!(!lives(&pid) || at.code(&["run", "-r", "a", "--", "true"]) == 75);
    if lives(&pid) {
        end(holder);
    } else {
        assert_eq!(holder.wait_with_output().unwrap().status.code(), Some(79));
    }
    fs::write(at.path("file"), "").unwrap();
    let store = format!("file://{}", at.path("file").display());
    let refused = at.run(&["run", "-r", "a", "--store", &store, "--", "true"]);
    assert_eq!(refused.status.code(), Some(77));
    assert!(line(&refused).contains("not a directory") && line(&refused).contains(at.path("file").to_str().unwrap()));
    assert_eq!(fs::read_to_string(at.path("file")).unwrap(), "");
}

fn case_41_odd_names(at: &Site) {
    let names = [
        "a/b",
        "a_b",
        "a b",
        "a%2Fb",
        "../../escape",
        "/etc/passwd",
        ".",
        "..",
        "-x",
        "x;drop table dlock",
        "it's",
        "a\"b",
        "*",
        "a:b",
        "{}",
        "日本語のジョブ",
        "\u{e9}",
        "e\u{301}",
        "A",
        "a",
        &("x".repeat(254) + "1"),
        &("x".repeat(254) + "2"),
    ];
    for name in names {
        let resource = format!("--resource={name}");
        assert_eq!(at.code(&["acquire", &resource, "-t", "60s"]), 0, "{name:?}");
        assert_eq!(at.code(&["run", &resource, "--", "true"]), 75, "{name:?}");
        assert_eq!(at.status(name)["resource"], name);
    }
    let list: serde_json::Value = serde_json::from_slice(&at.run(&["list", "--json"]).stdout).unwrap();
    let mut listed: Vec<_> = list.as_array().unwrap().iter().map(|one| one["resource"].as_str().unwrap()).collect();
    listed.sort_unstable();
    let mut wanted = names.to_vec();
    wanted.sort_unstable();
    assert_eq!(listed, wanted);
    assert!(!at.path("escape").exists() && !at.path("store/escape").exists());
    for (name, why) in [("", "empty"), ("a\nb", "control character"), ("a\tb", "control character"), (&"x".repeat(256), "255 bytes")] {
        let refused = at.run(&["run", &format!("--resource={name}"), "--", "true"]);
        assert_eq!(refused.status.code(), Some(64), "{name:?}");
        assert!(line(&refused).contains(why), "{refused:?}");
    }
    let refused = at.dlock(&["run", "-r"]).arg(OsStr::from_bytes(b"\xff")).args(["--", "true"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(64));
    assert!(text(&refused.stderr).contains("UTF-8"), "{refused:?}");
}

#[test]
fn case_45_output_is_passed_on_and_not_copied() {
    let at = Fixture::file();
    let noise: Vec<u8> = (0..4_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(at.path("big"), &noise).unwrap();
    assert!(at.run(&["run", "-r", "o", "--", "cat", at.path("big").to_str().unwrap()]).stdout == noise);
    let stdin = File::open(at.path("big")).unwrap();
    assert!(at.dlock(&["run", "-r", "o", "--", "cat"]).stdin(stdin).output().unwrap().stdout == noise);
    let odd = at.run(&["run", "-r", "o", "-c", r"printf '\377\376\200 e\342\202'; printf '\0' >&2"]);
    assert_eq!((&odd.stdout[..], &odd.stderr[..]), (&b"\xff\xfe\x80 e\xe2\x82"[..], &b"\0"[..]));
    // A line comes when it is written.
    let mut run = at.start(&["run", "-r", "o", "-c", "echo now; exec sleep 60"]);
    let mut first = String::new();
    BufReader::new(run.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    assert!(first == "now\n" && run.try_wait().unwrap().is_none());
    end(run);
    // A reader that goes ends the command by SIGPIPE, and the lock is free.
    let mut run = at.start(&["run", "-r", "o", "--", "env", "--default-signal=PIPE", "yes"]);
    run.stdout.take().unwrap().read_exact(&mut [0; 2]).unwrap();
    let ended = run.wait().unwrap();
    assert!(ended.signal() == Some(libc::SIGPIPE) || ended.code() == Some(128 + libc::SIGPIPE), "{ended:?}");
    assert_eq!(at.code(&["run", "-r", "o", "-w", "0s", "--", "true"]), 0);
    assert!(at.dlock(&["run", "-r", "日本", "--", "true"]).env("LC_ALL", "C").status().unwrap().success());
    let full = |words: &[&str]| {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = at.dlock(words).stdout(full).output().unwrap();
        (output.status.code(), text(&output.stderr).contains("No space left"))
    };
    assert_eq!(full(&["run", "-r", "o", "--", "true"]), (Some(0), false));
    assert_eq!(full(&["status", "-r", "o"]), (Some(71), true));
    assert_eq!(full(&["acquire", "-r", "o"]), (Some(71), true));
    assert!(!at.held("o"), "nobody has its token");
}

fn case_64_started_with_closed_streams(at: &Site) {
    let began = Instant::now();
    let seen = at.path("seen");
    let list = format!("ls -l /proc/$$/fd > {}", seen.display());
    for (streams, command, code) in [
        ("<&-", list.as_str(), 0),
        ("<&- >&- 2>&-", list.as_str(), 0),
        (">&- 2>&-", "echo to-stdout; echo to-stderr >&2; exit 3", 3),
        ("<&- >&- 2>&-", "cat; exit 6", 6),
        ("0<&- 1>&- 2>&-", "true", 0),
        ("7</dev/null", "exec <&7", 0),
    ] {
        let output = shell(at, &format!("exec \"$D\" run -r c -t 5s -- sh -c '{command}' {streams}"));
        assert_eq!(output.status.code(), Some(code), "{streams} {command}: {output:?}");
        if let Ok(seen) = fs::read_to_string(&seen) {
            let store = at.path("store");
            assert!(!seen.contains("socket:") && !seen.contains(store.to_str().unwrap()), "{seen}");
        }
    }
    assert!(seen.exists());
    let found = Command::new("grep").arg("-rl").arg("to-std").arg(at.path("store")).output().unwrap();
    assert!(found.stdout.is_empty(), "{found:?}");
    let status = shell(at, "exec \"$D\" status -r c >&-");
    assert!(!text(&status.stderr).contains("panic") && status.status.code().is_some_and(|code| code != 70), "{status:?}");
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[test]
fn case_12_a_directory_is_shared_after_its_first_use() {
    if !fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t") {
        return; // needs a second user
    }
    let at = Fixture::file();
    let mode = |path: &str, mode| fs::set_permissions(at.path(path), Permissions::from_mode(mode)).unwrap();
    mode("", 0o755);
    mode("store", 0o755);
    assert!(shell(&at, "umask 077; exec \"$D\" run -r etl -- true").status.success());
    mode("store", 0o1777);
    assert_eq!(at.code(&["run", "-r", "etl", "--", "true"]), 0); // the owner may mend the modes here
    let shared = as_nobody(&at, &["acquire", "-r", "e2", "-t", "20s"]);
    assert!(shared.status.success(), "{shared:?}");
    assert_eq!(at.code(&["run", "-r", "e2", "--", "true"]), 75);
}

#[test]
fn case_64_acquire_with_a_closed_stdout() {
    let at = Fixture::file();
    let output = shell(&at, "exec \"$D\" acquire -r q -t 30s >&-");
    assert_eq!(output.status.code(), Some(71), "{output:?}");
    assert!(!at.held("q"));
}
