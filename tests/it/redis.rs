//! A real redis-server of a test's own, and a fixture on either store.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{Fixture, signal, until};

pub struct Redis {
    server: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Redis {
    pub fn start() -> Redis {
        Redis::start_with(&[])
    }

    pub fn start_with(options: &[&str]) -> Redis {
        let found = (0..5).find_map(|_| Redis::try_at(free_port(), options));
        found.expect("redis-server found no port in five tries")
    }

    /// A new and empty server in the place of one that has ended.
    pub fn again_at(port: &str) -> Redis {
        Redis::try_at(port.parse().unwrap(), &[]).expect("the port is free again")
    }

    fn try_at(port: u16, options: &[&str]) -> Option<Redis> {
        let dir = tempfile::tempdir().unwrap();
        let words = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()];
        let mut command = Command::new("redis-server");
        command.args(words).args(options).arg("--dir").arg(dir.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = command.spawn().unwrap_or_else(|error| match error.kind() {
            ErrorKind::NotFound => panic!("the tests need redis-server: install the package redis-server"),
            _ => panic!("redis-server: {error}"),
        });
        let mut ended = false;
        until("redis answers, or could not have its port", || {
            ended = server.try_wait().unwrap().is_some();
            ended || ask(port, &["PING"]).is_some_and(|answer| answer.starts_with("+PONG"))
        });
        (!ended).then_some(Redis { server, port, _dir: dir })
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub fn port(&self) -> String {
        self.port.to_string()
    }

    pub fn url_with_password(&self, password: &str) -> String {
        format!("redis://:{password}@127.0.0.1:{}/0", self.port)
    }

    /// One command as a client without a library sends it; the raw answer.
    pub fn ask(&self, words: &[&str]) -> String {
        ask(self.port, words).unwrap_or_else(|| panic!("redis gave no answer to {words:?}"))
    }

    /// What MONITOR tells while `work` goes on, without what scripts do.
    pub fn monitored(&self, work: impl FnOnce()) -> Vec<String> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        (&stream).write_all(b"*1\r\n$7\r\nMONITOR\r\n").unwrap();
        let mut lines = BufReader::new(&stream).lines().map(Result::unwrap);
        assert_eq!(lines.next().as_deref(), Some("+OK"));
        work();
        let mark = "end-of-the-watched-part";
        self.ask(&["ECHO", mark]);
        lines.take_while(|line| !line.contains(mark)).filter(|line| !line.contains(" lua] ")).collect()
    }

    pub fn signal(&self, number: i32) {
        signal(&self.server, number);
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn ask(port: u16, words: &[&str]) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = [0; 4096];
    let read = stream.read(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer[..read]).into_owned())
}

/// A fixture on one of the stores; derefs to it.
pub struct Site {
    at: Fixture,
    pub redis: Option<Redis>,
}

impl Site {
    pub fn file() -> Site {
        Site { at: Fixture::file(), redis: None }
    }

    pub fn redis() -> Site {
        let redis = Redis::start();
        let mut at = Fixture::file();
        at.store = redis.url();
        Site { at, redis: Some(redis) }
    }

    pub fn server(&self) -> &Redis {
        self.redis.as_ref().expect("a site on redis")
    }
}

impl std::ops::Deref for Site {
    type Target = Fixture;
    fn deref(&self) -> &Fixture {
        &self.at
    }
}

/// Runs `fn name(at: &Site)` as two tests, `name::file` and `name::redis`.
macro_rules! on_each_store {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[test]
            fn file() {
                super::$name(&crate::redis::Site::file());
            }
            #[test]
            fn redis() {
                super::$name(&crate::redis::Site::redis());
            }
        }
    )+};
}
pub(crate) use on_each_store;
