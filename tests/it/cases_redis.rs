//! Failures that people have had with locks around jobs: Redis and its URLs.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::cases::{line, started};
use crate::harness::{Fixture, text, until};
use crate::redis::{Site, free_port};

#[test]
fn case_06_a_failed_release_is_a_warning() {
    let at = Site::redis();
    let go = at.path("go");
    let script = format!("READY; until [ -e '{}' ]; do sleep 0.02; done; exit 0", go.display());
    let (run, _) = started(&at, "y", "20s", &script);
    at.server().signal(libc::SIGKILL);
    fs::write(&go, "").unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(line(&output).contains("could not release 'y'") && line(&output).contains("expires"), "{output:?}");
}

#[test]
fn case_09_passwords_with_reserved_characters() {
    let at = Site::redis();
    let port = at.server().port();
    for (user, password) in [("jobs", ">p@ss:w/rd%#1"), ("az", ">aB3+x/y=")] {
        let made = at.server().ask(&["ACL", "SETUSER", user, "on", password, "~*", "&*", "+@all"]);
        assert!(made.starts_with("+OK"), "{made}");
    }
    let run = |login: &str, password: &str| {
        let mut command = at.dlock(&["run", "-r", "a", "-w", "20s", "--", "true"]);
        command.env("DLOCK_STORE", format!("redis://{login}127.0.0.1:{port}/0")).env("DLOCK_PASSWORD", password).output().unwrap()
    };
    for (login, password) in [("jobs:p%40ss%3Aw%2Frd%25%231@", ""), ("az:aB3+x%2Fy=@", ""), ("jobs@", "p@ss:w/rd%#1")] {
        let output = run(login, password);
        assert!(output.status.success() && output.stderr.is_empty(), "{login}: {output:?}");
    }
    let raw = run("jobs:p@ss:w/rd%#1@", "");
    assert_eq!(raw.status.code(), Some(64));
    assert!(line(&raw).contains("percent-encode the password") && line(&raw).contains("DLOCK_PASSWORD"));
    assert!(!line(&raw).contains("ss:w"), "{raw:?}");
    at.server().ask(&["CONFIG", "SET", "requirepass", "s"]);
    let began = Instant::now();
    for (login, words) in [
        ("jobs:wrong@", "redis://jobs:***@127.0.0.1:PORT/0: WRONGPASS invalid username-password pair or user is disabled;"),
        ("", "redis://127.0.0.1:PORT/0: NOAUTH Authentication required"),
    ] {
        let output = run(login, "");
        assert_eq!(output.status.code(), Some(77), "{output:?}");
        assert!(line(&output).contains(&words.replace("PORT", &port)), "{output:?}");
        assert!(!line(&output).contains("wrong@"));
    }
    assert!(began.elapsed() < Duration::from_secs(5), "a denial is not waited for");
}

/// Passes connections on to a port, from now on.
fn forward(from: u16, to: String) {
    let listener = TcpListener::bind(("127.0.0.1", from)).unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(format!("127.0.0.1:{to}"))) else { return };
            for (mut from, mut to) in
                [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server.try_clone().unwrap(), client.try_clone().unwrap())]
            {
                thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
}

#[test]
fn case_10_the_store_is_away() {
    let at = Fixture::file();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (closed, silent) = (free_port(), silent.local_addr().unwrap().port());
    for (place, why) in [
        (format!("127.0.0.1:{closed}"), "refused"),
        ("no-such-host.invalid:6379".into(), "name"),
        (format!("127.0.0.1:{silent}"), "no answer in"),
    ] {
        let began = Instant::now();
        let mark = at.path("mark");
        let output = at.run(&["run", "-r", "r", "--store", &format!("redis://{place}/0"), "--", "touch", mark.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        assert!(line(&output).contains(&place) && line(&output).to_lowercase().contains(why), "{output:?}");
        assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
        assert!(!mark.exists());
    }
    let store = format!("redis://127.0.0.1:{closed}/0");
    let words = |wait| ["run", "-r", "r", "--store", &store, "-w", wait, "--", "echo", "ran"].map(str::to_owned);
    let run = |wait| at.start(&words(wait).each_ref().map(String::as_str)).wait_with_output().unwrap();
    let over = run("1s");
    assert_eq!((over.status.code(), over.stdout.len()), (Some(69), 0), "{over:?}");
    // It comes while the run waits.
    let redis = Site::redis();
    let waiter = at.start(&words("30s").each_ref().map(String::as_str));
    sleep(Duration::from_millis(500));
    forward(closed, redis.server().port());
    let came = Instant::now();
    let output = waiter.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "ran\n", "{output:?}");
    assert!(came.elapsed() < Duration::from_secs(5), "{:?}", came.elapsed());
}

#[test]
fn case_22_staging_and_production_on_one_server() {
    let redis = Site::redis();
    for at in [&*redis, &Fixture::file()] {
        let under = |prefix: &str, words: &[&str]| at.dlock(words).env("DLOCK_PREFIX", prefix).output().unwrap();
        assert!(under("staging:", &["acquire", "-r", "etl", "-t", "30s"]).status.success());
        let run = ["run", "-r", "etl", "--", "echo", "ran"];
        assert_eq!(text(&under("prod:", &run).stdout), "ran\n");
        assert_eq!(text(&at.run(&run).stdout), "ran\n", "the default is a prefix of its own");
        let busy = under("staging:", &run);
        assert_eq!(busy.status.code(), Some(75));
        assert!(line(&busy).contains('@'), "{busy:?}");
        assert_eq!(text(&under("prod:", &["list"]).stdout), "");
        assert!(text(&under("staging:", &["list"]).stdout).starts_with("etl "));
    }
    let keys = redis.server().ask(&["KEYS", "*"]);
    assert!(keys.contains("\r\nstaging:etl\r\n"), "{keys}");
    let named = |key: &&str| key.contains("etl");
    assert!(keys.split("\r\n").filter(named).all(|key| ["staging:", "prod:", "dlock:"].iter().any(|prefix| key.starts_with(prefix))));
    let other = format!("redis://127.0.0.1:{}/3", redis.server().port());
    assert!(redis.run(&["run", "-r", "etl", "--store", &format!("{other}?prefix=staging:"), "--", "true"]).status.success());
}

#[test]
fn case_25_no_password_is_shown() {
    let at = Site::redis();
    let port = at.server().port();
    let verbs: [&[&str]; 5] = [
        &["run", "-v", "-r", "r", "--", "true"],
        &["status", "-r", "r"],
        &["list", "--json"],
        &["break", "-r", "r", "--yes"],
        &["release", "-r", "r", "--token", "SECRETtoken"],
    ];
    for store in [
        format!("redis://jobs:SECRETpw@127.0.0.1:{}/0", free_port()),
        format!("redis://jobs:SECRETpw@127.0.0.1:{port}/0"),
        "redis://jobs:SECRETpw@127.0.0.1:bad/0".into(),
        "redis://jobs:SECRETpw@127.0.0.1/x".into(),
        "redis://jobs:a@SECRETpw/b@h/0".into(),
        "redis+unix:///none?password=SECRETpw".into(),
        "redis+unix://:SECRETpw@/none".into(),
        "bogus://u:SECRETpw@h".into(),
    ] {
        for words in verbs {
            let output = at.dlock(words).env("DLOCK_STORE", &store).env("RUST_BACKTRACE", "1").env("RUST_LOG", "trace").output().unwrap();
            assert!([64, 69, 77].contains(&output.status.code().unwrap()), "{store} {words:?}: {output:?}");
            let said = text(&output.stderr) + &text(&output.stdout);
            assert!(!said.is_empty() && !said.contains("SECRET"), "{store} {words:?}: {said}");
        }
    }
    // From the environment it is in no process list, and the command does not get it.
    at.server().ask(&["ACL", "SETUSER", "ok", "on", ">SECRETpw", "~*", "&*", "+@all"]);
    let output = at.dlock(&["run", "-v", "-r", "r", "-c", "env | grep ^DLOCK; cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' '"]);
    let output = { output }.env("DLOCK_STORE", format!("redis://ok:SECRETpw@127.0.0.1:{port}/0")).output().unwrap();
    assert!(output.status.success() && text(&output.stderr).contains("locked 'r'"), "{output:?}");
    assert!(text(&output.stdout).contains("DLOCK_STORE=redis://ok@127.0.0.1"), "{output:?}");
    assert!(!text(&output.stdout).contains("ok:SECRETpw") && !text(&output.stderr).contains("SECRET"), "{output:?}");
}

#[test]
fn case_30_a_key_that_is_no_lock() {
    let at = Site::redis();
    let mark = at.path("mark");
    let refused = |verbs: &[&[&str]], what: &str| {
        for words in verbs {
            let began = Instant::now();
            let output = at.run(words);
            assert_eq!(output.status.code(), Some(77), "{words:?}: {output:?}");
            assert!(line(&output).contains(&format!("key dlock:k holds {what}")), "{words:?}: {output:?}");
            assert!(line(&output).contains("pick another name or prefix"));
            assert!(began.elapsed() < Duration::from_secs(3), "nothing to wait for");
        }
    };
    let run = ["run", "-r", "k", "-w", "20s", "--", "touch", mark.to_str().unwrap()];
    let verbs: [&[&str]; 4] = [&run, &["acquire", "-r", "k"], &["status", "-r", "k"], &["break", "-r", "k", "--yes"]];
    at.server().ask(&["HSET", "dlock:k", "a", "1"]);
    refused(&verbs, "a hash");
    for verb in ["refresh", "release"] {
        let code = at.code(&[verb, "-r", "k", "--token", "t"]);
        assert_eq!(code, 77, "{verb}");
    }
    assert!(at.server().ask(&["HGETALL", "dlock:k"]).contains("\r\na\r\n$1\r\n1"));
    at.server().ask(&["DEL", "dlock:k"]);
    at.server().ask(&["SET", "dlock:k", "some cache text"]);
    refused(&verbs, "a value not written by dlock");
    at.server().ask(&["SET", "dlock:k", "cached"]);
    for verb in ["refresh", "release"] {
        assert_eq!(at.code(&[verb, "-r", "k", "--token", "cached"]), 77, "no token, though it reads like one");
    }
    assert!(at.server().ask(&["GET", "dlock:k"]).contains("cached"));
    assert!(at.server().ask(&["PTTL", "dlock:k"]).starts_with(":-1"));
    assert!(!mark.exists());
    assert_eq!(text(&at.run(&["list"]).stdout), "");
    // The application's own key, without our prefix.
    at.server().ask(&["HSET", "free", "a", "1"]);
    assert_eq!(at.code(&["run", "-r", "free", "--", "true"]), 0);
}

#[test]
fn case_53_the_server_forgets_the_scripts() {
    let at = Site::redis();
    let run = at.start(&["run", "-r", "r", "-t", "1s", "--", "sleep", "3"]);
    until("held", || at.held("r"));
    for _ in 0..10 {
        at.server().ask(&["SCRIPT", "FLUSH"]);
        sleep(Duration::from_millis(200));
    }
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let token = text(&at.run(&["acquire", "-r", "q", "-t", "20s"]).stdout);
    for verb in ["refresh", "release"] {
        at.server().ask(&["SCRIPT", "FLUSH"]);
        let output = at.run(&[verb, "-r", "q", "--token", token.trim()]);
        assert!(output.status.success() && output.stderr.is_empty(), "{verb}: {output:?}");
    }
    let keys = at.server().ask(&["KEYS", "*"]);
    let kept = |key: &&str| key.starts_with("dlock:") && !key.ends_with(":fence");
    assert_eq!(keys.split("\r\n").filter(kept).count(), 0, "{keys}");
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn case_63_redis_on_a_unix_socket() {
    let at = Fixture::file();
    let path = at.path("s.sock");
    let path = path.to_str().unwrap();
    let mut server = Command::new("redis-server");
    server.args(["--port", "0", "--save", "", "--requirepass", "pw", "--unixsocketperm", "700", "--unixsocket", path]).arg("--dir");
    let _server = Server(server.arg(at.path("")).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    until("it listens", || UnixStream::connect(path).is_ok());
    let run = |store: &str, password: &str| {
        at.dlock(&["run", "-r", "r", "--", "true"]).env("DLOCK_STORE", store).env("DLOCK_PASSWORD", password).output().unwrap()
    };
    for (store, password) in [
        (format!("redis+unix://{path}?db=3&password=pw"), ""),
        (format!("redis+unix://:pw@{path}?db=3"), ""),
        (format!("redis+unix://{path}?db=3"), "pw"),
    ] {
        let output = run(&store, password);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
    let mut asked = UnixStream::connect(path).unwrap();
    asked.write_all(b"AUTH pw\r\nINFO keyspace\r\nQUIT\r\n").unwrap();
    let mut answer = String::new();
    asked.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("db3:keys=") && !answer.contains("db0:"), "{answer}");
    for (store, code, words) in [
        (format!("redis+unix://{path}"), 77, "NOAUTH Authentication required"),
        (format!("redis+unix://{path}.none"), 69, "s.sock.none: No such file"),
        ("redis+unix://s.sock".into(), 64, "redis+unix:///PATH"),
        (format!("unix://{path}"), 64, "redis+unix:///PATH"),
    ] {
        let output = run(&store, "");
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(line(&output).contains(words), "{output:?}");
    }
}

#[test]
fn case_06_the_warning_says_until_when() {
    let at = Site::redis();
    let go = at.path("go");
    let script = format!("READY; until [ -e '{}' ]; do sleep 0.02; done", go.display());
    let (run, _) = started(&at, "y", "20s", &script);
    at.server().signal(libc::SIGKILL);
    fs::write(&go, "").unwrap();
    let output = run.wait_with_output().unwrap();
    assert!(line(&output).contains("expires in "), "{output:?}");
}

#[test]
fn case_30_refresh_and_release_name_what_is_in_the_way() {
    let at = Site::redis();
    at.server().ask(&["HSET", "dlock:k", "a", "1"]);
    for verb in ["refresh", "release"] {
        let output = at.run(&[verb, "-r", "k", "--token", "t"]);
        assert!(line(&output).contains("key dlock:k holds a hash"), "{output:?}");
    }
}
