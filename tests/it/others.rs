//! Other lock libraries on the same key: redis-py's `Lock` and dlock exclude each other, both ways.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{signal, text, until};
use crate::redis::Site;

/// A Python with redis-py, which `./test` puts into a throw-away folder.
fn python(script: &str) -> Command {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/redis-py");
    assert!(library.join("redis").is_dir(), "redis-py is missing: ./test installs the package redis into target/redis-py");
    let mut command = Command::new("python3");
    command.args(["-c", script]).env("PYTHONPATH", library);
    command
}

const HOLD: &str = "
import redis, sys
lock = redis.Redis(port=int(sys.argv[1])).lock('dlock:job', timeout=30, blocking=False)
print(lock.acquire(), flush=True)
sys.stdin.readline()
lock.release()
";

#[test]
fn a_lock_of_redis_py_makes_dlock_busy_and_is_left_alone() {
    let at = Site::redis();
    let mut holder = python(HOLD).arg(at.server().port()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut answer = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    assert_eq!(answer.trim(), "True");
    let output = at.run(&["run", "-r", "job", "--", "touch", at.path("mark").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    assert!(text(&output.stderr).contains("a client that left no record"), "{output:?}");
    assert!(!at.path("mark").exists());
    holder.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(holder.wait().unwrap().success(), "redis-py still owned its lock");
    assert_eq!(at.code(&["run", "-r", "job", "--", "true"]), 0);
}

#[test]
fn a_lock_of_dlock_makes_redis_py_wait() {
    let at = Site::redis();
    let mut holder = at.start(&["run", "-r", "job", "-t", "5s", "--", "sleep", "60"]);
    until("held", || at.held("job"));
    let script = "
import redis, sys
print(redis.Redis(port=int(sys.argv[1])).lock('dlock:job', timeout=30, blocking=False).acquire())
";
    let ask = || text(&python(script).arg(at.server().port()).output().unwrap().stdout).trim().to_owned();
    assert_eq!(ask(), "False");
    signal(&holder, libc::SIGTERM);
    holder.wait().unwrap();
    assert_eq!(ask(), "True");
}
