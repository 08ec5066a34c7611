//! Failures that people have had with locks around jobs, one test a case, on each store. What the
//! other files hold already is not repeated.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::{Fixture, lives, signal, supervisor, text, until};
use crate::redis::{Site, free_port, on_each_store};

const DLOCK: &str = env!("CARGO_BIN_EXE_dlock");

on_each_store!(
    case_01_busy_is_told_from_failed,
    case_02_a_power_cut_blocks_for_one_ttl_at_most,
    case_03_a_daemon_does_not_keep_the_lock,
    case_04_a_long_job_renews_at_little_cost,
    case_05_a_cancelled_job,
    case_06_status_of_the_command,
    case_13_a_hung_command_is_stopped_or_its_age_is_shown,
    case_14_who_holds_it_and_how_to_free_it,
    case_19_what_is_no_longer_ones_own,
    case_20_a_script_with_a_trap,
    case_23_waiters_pile_up,
    case_44_the_same_lock_inside_itself,
);

/// A run of `name` whose script has come to `READY`, and the script's pid.
pub fn started(at: &Fixture, name: &str, ttl: &str, script: &str) -> (Child, String) {
    let pid = at.path(&format!("pid of {}", name.replace('/', " ")));
    let _ = fs::remove_file(&pid); // of an earlier run
    let line = script.replacen("READY", &format!("echo $$ > '{}'", pid.display()), 1);
    let child = at.start(&["run", "-r", name, "-t", ttl, "--", "sh", "-c", &line]);
    until("the command runs", || fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')));
    (child, fs::read_to_string(&pid).unwrap().trim().to_owned())
}

pub const SLEEPS: &str = "READY; exec sleep 60";

pub fn end(mut child: Child) {
    signal(&child, libc::SIGTERM);
    child.wait().unwrap();
}

fn kill(how: &str, pid: &str) {
    Command::new("kill").args([how, pid]).stderr(Stdio::null()).status().unwrap();
}

/// What dlock said: one line, by its name.
pub fn line(output: &Output) -> String {
    let said = text(&output.stderr);
    assert!(said.starts_with("dlock: ") && said.lines().count() == 1, "{said:?}");
    said
}

fn token(at: &Fixture, name: &str, ttl: &str) -> String {
    let output = at.run(&["acquire", "-r", name, "-t", ttl]);
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).trim_end().to_owned()
}

fn case_01_busy_is_told_from_failed(at: &Site) {
    let (holder, _) = started(at, "nightly", "10s", SLEEPS);
    let mark = at.path("mark");
    let run = |options: &[&str]| at.run(&[&["run", "-r", "nightly"], options, &["--", "touch", mark.to_str().unwrap()]].concat());
    let busy = run(&["-w", "0s"]);
    assert_eq!(busy.status.code(), Some(75));
    for word in ["'nightly'", "@", &format!("pid {}", holder.id()), "since 2", "expires in"] {
        assert!(line(&busy).contains(word), "{word}: {busy:?}");
    }
    assert_eq!(at.code(&["run", "-r", "other", "-w", "0s", "--", "sh", "-c", "exit 1"]), 1);
    let quiet = run(&["-q"]);
    assert_eq!((quiet.status.code(), quiet.stdout.len(), quiet.stderr.len()), (Some(75), 0, 0));
    let away = run(&["-q", "--store", &format!("redis://127.0.0.1:{}/0", free_port())]);
    assert_eq!(away.status.code(), Some(69));
    line(&away);
    assert_eq!(run(&["-E", "0"]).status.code(), Some(0));
    let refused = run(&["-E", "600"]);
    assert_eq!(refused.status.code(), Some(64));
    assert!(line(&refused).contains("0–255"));
    assert!(!mark.exists());
    end(holder);
    assert_eq!(run(&[]).status.code(), Some(0));
    assert!(mark.exists());
}

fn case_02_a_power_cut_blocks_for_one_ttl_at_most(at: &Site) {
    let (mut holder, pid) = started(at, "backup", "2s", SLEEPS);
    signal(&holder, libc::SIGKILL);
    kill("-9", &pid);
    holder.wait().unwrap();
    let soon = at.run(&["run", "-r", "backup", "-w", "0s", "--", "true"]);
    assert!(soon.status.success() || soon.status.code() == Some(75) && line(&soon).contains("expires in"), "{soon:?}");
    let began = Instant::now();
    let later = at.run(&["run", "-r", "backup", "-w", "15s", "--", "echo", "got-in"]);
    assert_eq!(text(&later.stdout), "got-in\n", "{later:?}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(text(&at.run(&["list"]).stdout), "");
}

#[test]
fn case_02_a_reboot_with_the_record_of_a_live_lock() {
    let at = Fixture::file();
    let copy = |from: &str, to: &str| {
        Command::new("cp").arg("-a").args([at.path(from), at.path(to)]).status().unwrap();
    };
    let (mut holder, pid) = started(&at, "b", "2s", SLEEPS);
    copy("store", "saved");
    kill("-9", &supervisor(&holder)); // a guard that is killed alone leaves one that tidies up
    signal(&holder, libc::SIGKILL);
    kill("-9", &pid);
    holder.wait().unwrap();
    fs::remove_dir_all(at.path("store")).unwrap();
    copy("saved", "store");
    let began = Instant::now();
    assert_eq!(at.code(&["run", "-r", "b", "-w", "15s", "--", "true"]), 0);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

fn case_03_a_daemon_does_not_keep_the_lock(at: &Site) {
    let pid = at.path("pid");
    let line = format!("setsid sleep 60 >/dev/null 2>&1 & echo $! > {}; exit 0", pid.display());
    let began = Instant::now();
    assert_eq!(at.code(&["run", "-r", "web", "-t", "10s", "-c", &line]), 0);
    assert!(began.elapsed() < Duration::from_secs(4));
    assert!(!at.held("web"));
    assert_eq!(at.code(&["run", "-r", "web", "-w", "0s", "--", "true"]), 0);
    let pid = fs::read_to_string(&pid).unwrap().trim().to_owned();
    assert!(lives(&pid));
    let open: Vec<_> = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|fd| fs::read_link(fd.unwrap().path()).unwrap()).collect();
    kill("-9", &pid);
    let dlocks = |path: &std::path::PathBuf| path.starts_with(at.path("store")) || path.to_string_lossy().starts_with("socket:");
    assert!(!open.iter().any(dlocks), "{open:?}");
}

/// User and system time of a process, in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

/// How many scripts the server has run.
fn scripts(at: &Site) -> u64 {
    let stats = at.server().ask(&["INFO", "commandstats"]);
    let calls = |line: &str| line.split_once("calls=").and_then(|(_, rest)| rest.split(',').next()?.parse::<u64>().ok()).unwrap();
    stats.lines().filter(|line| line.starts_with("cmdstat_evalsha:")).map(calls).sum()
}

fn case_04_a_long_job_renews_at_little_cost(at: &Site) {
    let (holder, _) = started(at, "long", "2s", SLEEPS);
    let lease = || at.status("long")["holders"][0].clone();
    let (before, busy) = (lease(), ticks(holder.id()));
    let asked = at.redis.as_ref().map(|_| scripts(at));
    sleep(Duration::from_secs(5));
    if let Some(asked) = asked {
        let asked = scripts(at) - asked;
        assert!((2..=9).contains(&asked), "{asked} requests in 2.5 TTLs");
    }
    assert!(ticks(holder.id()) - busy < 50, "{} ticks", ticks(holder.id()) - busy);
    let after = lease();
    assert_eq!(after["acquired_at"], before["acquired_at"]);
    assert!(after["expires_at"].as_str() > before["expires_at"].as_str(), "{before} {after}");
    assert_eq!(at.code(&["run", "-r", "long", "--", "true"]), 75);
    end(holder);
    assert_eq!(at.code(&["run", "-r", "long", "--", "true"]), 0);
}

fn case_05_a_cancelled_job(at: &Site) {
    // A step that stops when it is asked: both get the signal, as they stand in one group.
    let (mut holder, pid) = started(at, "deploy", "20s", "trap 'exit 130' INT; READY; while :; do sleep 0.05; done");
    signal(&holder, libc::SIGINT);
    kill("-INT", &pid);
    assert_eq!(holder.wait().unwrap().code(), Some(130));
    assert_eq!(at.code(&["run", "-r", "deploy", "-w", "0s", "--", "true"]), 0);
    // One that does not: the lock stays for as long as it runs.
    let (mut holder, pid) = started(at, "deploy", "3s", "trap '' INT TERM; READY; while :; do sleep 0.05; done");
    signal(&holder, libc::SIGINT);
    kill("-INT", &pid);
    for _ in 0..5 {
        let busy = at.code(&["run", "-r", "deploy", "-w", "0s", "--", "true"]) == 75;
        assert!(busy || !lives(&pid), "free, and the step still runs");
        sleep(Duration::from_millis(50));
    }
    signal(&holder, libc::SIGKILL);
    kill("-9", &pid);
    holder.wait().unwrap();
    assert_eq!(at.code(&["run", "-r", "deploy", "-w", "15s", "--", "true"]), 0);
}

fn case_06_status_of_the_command(at: &Site) {
    for code in [0, 1, 2, 3, 64, 69, 75, 79, 100, 124, 125, 126, 127, 255] {
        let output = at.run(&["run", "-r", "x", "--", "sh", "-c", &format!("echo out; echo err >&2; exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
        assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("out\n", "err\n"));
    }
    for number in [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV, libc::SIGABRT, libc::SIGHUP, libc::SIGINT, libc::SIGPIPE] {
        let line = format!("ulimit -c 0; kill -{number} $$");
        let output = at.run(&["run", "-r", "x", "-c", &line]);
        let status = output.status;
        assert!(status.signal() == Some(number) || status.code() == Some(128 + number), "{number}: {output:?}");
        assert!(output.stderr.is_empty() && output.stdout.is_empty(), "{output:?}");
    }
}

fn case_13_a_hung_command_is_stopped_or_its_age_is_shown(at: &Site) {
    let stopped = at.run(&["run", "-r", "dump", "-t", "5s", "--max-runtime", "1s", "--", "sleep", "60"]);
    assert_eq!(stopped.status.code(), Some(124), "{stopped:?}");
    assert!(line(&stopped).contains("--max-runtime"));
    assert_eq!(at.code(&["run", "-r", "dump", "-w", "0s", "--", "timeout", "-k", "1", "0.2", "sleep", "60"]), 124);
    assert!(!at.held("dump"));
    let (holder, _) = started(at, "dump2", "1s", SLEEPS);
    let since = at.status("dump2")["holders"][0]["acquired_at"].as_str().unwrap().to_owned();
    sleep(Duration::from_millis(1500));
    let busy = line(&at.run(&["run", "-r", "dump2", "--", "true"]));
    let status = text(&at.run(&["status", "-r", "dump2"]).stdout);
    for words in [busy, status] {
        assert!(words.contains(&format!("since {since} (")) && words.contains(" ago)"), "{words}");
    }
    end(holder);
}

fn case_14_who_holds_it_and_how_to_free_it(at: &Site) {
    let (holder, pid) = started(at, "team/prod", "3s", SLEEPS);
    let other = token(at, "other", "30s");
    let status = at.status("team/prod");
    assert_eq!(status["resource"], "team/prod");
    let lease = &status["holders"][0];
    assert_eq!(lease["owner"]["pid"].as_u64(), Some(holder.id().into()));
    for field in ["user", "host", "program"] {
        assert!(!lease["owner"][field].as_str().unwrap().is_empty(), "{field}: {status}");
    }
    assert!(lease["acquired_at"].as_str().unwrap().ends_with('Z') && lease["expires_at"].as_str().unwrap().ends_with('Z'), "{status}");
    assert!((1..=3000).contains(&lease["expires_in_ms"].as_u64().unwrap()), "{status}");
    let list: serde_json::Value = serde_json::from_slice(&at.run(&["list", "--json"]).stdout).unwrap();
    let names: Vec<_> = list.as_array().unwrap().iter().map(|one| one["resource"].as_str().unwrap()).collect();
    assert!(names.len() == 2 && names.contains(&"team/prod") && names.contains(&"other"), "{list}");
    assert!(!list.to_string().contains(&other));
    assert_eq!(at.code(&["status", "-r", "none"]), 1);
    assert_eq!(at.code(&["release", "-r", "team/prod"]), 64);
    assert!(at.held("team/prod"));
    let broken = at.run(&["break", "-r", "team/prod", "--yes"]);
    assert!(broken.status.success() && text(&broken.stdout).contains(&format!("pid {}", holder.id())), "{broken:?}");
    let evicted = holder.wait_with_output().unwrap();
    assert_eq!(evicted.status.code(), Some(79));
    assert!(text(&evicted.stderr).contains("broken by"), "{evicted:?}");
    assert!(!lives(&pid));
    assert_eq!(at.code(&["run", "-r", "team/prod", "-w", "0s", "--", "true"]), 0);
    assert_eq!(at.code(&["break", "-r", "team/prod", "--yes"]), 0);
    assert!(at.held("other"));
}

fn case_19_what_is_no_longer_ones_own(at: &Site) {
    let old = token(at, "r", "1s");
    until("expired", || !at.held("r"));
    let own = |verb: &str, token: &str| at.run(&[verb, "-r", "r", "--token", token]);
    let began = Instant::now();
    assert!(line(&own("refresh", &old)).contains("expired"));
    let new = token(at, "r", "30s");
    for verb in ["refresh", "release"] {
        let refused = own(verb, &old);
        assert_eq!(refused.status.code(), Some(80), "{refused:?}");
        assert!(line(&refused).contains("held by") && line(&refused).contains("pid"), "{refused:?}");
        assert_eq!(own(verb, "nonsense").status.code(), Some(80));
        assert_eq!(own(verb, "").status.code(), Some(64));
    }
    assert_eq!(at.code(&["run", "-r", "r", "-w", "0s", "--", "true"]), 75);
    let failed = at.run(&["acquire", "-r", "r", "-w", "0s"]);
    assert_eq!((failed.status.code(), failed.stdout.len()), (Some(75), 0));
    let codes = ["refresh", "release", "release"].map(|verb| own(verb, &new).status.code());
    assert_eq!(codes, [Some(0), Some(0), Some(80)]);
    assert!(began.elapsed() < Duration::from_secs(5), "nothing waits: {:?}", began.elapsed());
}

fn case_20_a_script_with_a_trap(at: &Site) {
    let script = format!(
        "T=$({DLOCK} acquire -r db -t 1s -w 0s) || exit $?
        trap 'rc=$?; {DLOCK} release -r db --token \"$T\" 2>/dev/null || echo \"release: $?\" >&2; exit $rc' EXIT
        for i in $1; do sleep $2; test \"$3\" != keep || {DLOCK} refresh -r db --token \"$T\" -t 1s || exit 99; done
        exit 7"
    );
    let run = |steps: &str, pause: &str, keep: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh", steps, pause, keep]).env_clear().env("PATH", "/usr/bin:/bin").env("DLOCK_STORE", &at.store);
        let output = shell.stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        text(&output.stderr)
    };
    assert_eq!(run("1", "0", "no"), "");
    assert!(!at.held("db"));
    assert_eq!(run("1 2 3 4 5 6 7 8", "0.2", "keep"), "");
    assert_eq!(run("1", "1.3", "no"), "release: 80\n");
    let output = at.run(&["acquire", "-r", "st", "-t", "30s"]);
    let shown = text(&output.stdout);
    let token = shown.strip_suffix('\n').unwrap();
    assert!(token.bytes().all(|byte| byte.is_ascii_graphic()) && output.stderr.is_empty(), "{output:?}");
    assert_eq!(at.code(&["release", "-r", "st", "--token", token]), 0);
}

fn case_23_waiters_pile_up(at: &Site) {
    const WAITERS: usize = 30;
    let (holder, _) = started(at, "p", "10s", SLEEPS);
    let began = Instant::now();
    assert_eq!(at.code(&["run", "-r", "p", "--", "true"]), 75, "without --wait nothing waits");
    assert!(began.elapsed() < Duration::from_secs(3));
    let ran = at.path("ran");
    let line_of = format!("echo $$ >> {}", ran.display());
    let mut waiters: Vec<_> = (0..WAITERS)
        .map(|_| at.dlock(&["run", "-r", "p", "-t", "10s", "-w", "60s", "-c", &line_of]).stderr(Stdio::null()).spawn().unwrap())
        .collect();
    until("all in line", || at.status("p")["waiters"].as_array().unwrap().len() == WAITERS);
    if at.redis.is_some() {
        let asked = scripts(at);
        sleep(Duration::from_secs(2));
        let asked = scripts(at) - asked;
        assert!(asked < 60, "{asked} requests of {WAITERS} waiters in 2 s");
        let clients = at.server().ask(&["INFO", "clients"]);
        let count: usize = clients.lines().find_map(|line| line.strip_prefix("connected_clients:")?.trim().parse().ok()).unwrap();
        assert!(count <= WAITERS + 3, "{clients}");
    }
    let memory = fs::read_to_string(format!("/proc/{}/status", waiters[0].id())).unwrap();
    let resident = memory.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    assert!(resident.unwrap() < 32 << 10, "{memory}");
    let mut told = waiters.pop().unwrap();
    signal(&told, libc::SIGTERM);
    assert_eq!(told.wait().unwrap().signal(), Some(libc::SIGTERM));
    let began = Instant::now();
    let late = at.run(&["run", "-r", "p", "-w", "1s", "-c", &line_of]);
    assert_eq!(late.status.code(), Some(75));
    assert!(text(&late.stderr).contains("waited 1"), "{late:?}");
    assert!((Duration::from_secs(1)..Duration::from_secs(5)).contains(&began.elapsed()), "{:?}", began.elapsed());
    end(holder);
    for mut waiter in waiters {
        assert!(waiter.wait().unwrap().success());
    }
    assert_eq!(fs::read_to_string(&ran).unwrap().lines().count(), WAITERS - 1, "those that gave up never start");
}

fn case_44_the_same_lock_inside_itself(at: &Site) {
    let inside =
        |name: &str, wait: &str| at.run(&["run", "-r", "n", "-t", "5s", "--", DLOCK, "run", "-r", name, "-w", wait, "--", "echo", "in"]);
    for wait in ["0s", "60s"] {
        let began = Instant::now();
        let refused = inside("n", wait);
        assert_eq!(refused.status.code(), Some(75));
        assert!(line(&refused).contains("own parent") && line(&refused).contains("pid "), "{refused:?}");
        assert!(refused.stdout.is_empty());
        assert!(began.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(text(&inside("m", "2s").stdout), "in\n");
    assert!(!at.held("n"));
    // Two that cross: each holds what the other one waits for.
    let cross = |own: &str, other: &str| {
        let both = format!("until [ -e '{}' ]; do sleep 0.02; done", at.path(&format!("pid of {other}")).display());
        let script = format!("{both}; exec {DLOCK} run -r {other} -t 5s -w 1s -- true");
        (own.to_owned(), script)
    };
    let runs = [cross("p", "q"), cross("q", "p")].map(|(own, script)| {
        let pid = at.path(&format!("pid of {own}"));
        at.start(&["run", "-r", &own, "-t", "5s", "-c", &format!("echo $$ > '{}'; {script}", pid.display())])
    });
    let codes = runs.map(|run| run.wait_with_output().unwrap().status.code().unwrap());
    assert!(codes.contains(&75) && codes.iter().all(|code| [0, 75].contains(code)), "{codes:?}");
    assert!(!at.held("p") && !at.held("q"));
}

#[test]
fn case_44_with_another_lock_between() {
    let at = Fixture::file();
    let began = Instant::now();
    let run = |name: &str| format!("{DLOCK} run -r {name} -t 5s -w 8s -- ");
    let output = at.run(&["run", "-r", "n", "-t", "5s", "-c", &format!("{}{}echo in", run("m"), run("n"))]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(75), 0), "{output:?}");
    assert!(began.elapsed() < Duration::from_secs(5), "{output:?}");
}
