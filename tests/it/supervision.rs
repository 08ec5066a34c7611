//! The cases of supervising a command: its exit status; and the list of all cases, which is whole.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use crate::harness::{Fixture, text, until};
use crate::redis::Site;
use crate::terminal::bash;

/// How many cases there are.
const CASES: u8 = 74;

/// Cases that a test of another name shows wholly.
const SHOWN_ELSEWHERE: &[(u8, &str)] = &[
    (1, "case_06_status_of_the_command"),
    (2, "dlock_dies_of_the_signal_that_its_command_died_of"),
    (6, "a_broken_run_exits_79_with_its_command_dead"),
    (9, "a_redis_that_is_down_is_69_but_a_missing_command_is_found_out_first"),
    (10, "case_06_a_failed_release_is_a_warning"),
    (19, "a_stop_that_hits_command_and_dlock_together_still_releases"),
    (24, "dispositions_and_closed_streams_reach_the_command"),
    (25, "four_hundred_stops_at_random_moments_leave_no_lock_and_no_command"),
    (44, "case_18_a_holder_that_is_cut_off_is_dead_before_anybody_else_gets_the_lock"),
    (48, "a_kill_of_the_guard_ends_the_whole_tree_and_releases"),
    (53, "a_told_waiter_leaves_nothing_behind"),
    (54, "four_hundred_stops_at_random_moments_leave_no_lock_and_no_command"),
    (59, "what_is_left_behind_is_ignored_waited_for_or_ended_as_asked"),
    (63, "dispositions_and_closed_streams_reach_the_command"),
    (64, "case_64_started_with_closed_streams"),
    (66, "stdin_reaches_the_command"),
    (68, "case_26_arguments_come_out_as_they_went_in"),
    (71, "case_07_the_environment_of_cron"),
    (72, "what_systemd_says_to_the_pid_of_dlock_is_said_to_the_command"),
];

/// Cases that can't be shown here, and why.
const NOT_SHOWN: &[(u8, &str)] = &[
    (26, "a stop between fork and exec: the new process makes some ten system calls there, and there is no hook to hold it"),
    (46, "a process that does not die of KILL (state D) needs a broken device or server, and --kill-wait is not built"),
];

#[test]
fn each_case_of_supervision_is_shown_or_has_its_reason() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let sources = fs::read_dir(dir).unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let names: Vec<String> = sources
        .flat_map(|text| {
            let of_line = |line: &str| Some(line.trim_start().strip_prefix("fn ")?.split('(').next()?.to_owned());
            text.lines().filter_map(of_line).collect::<Vec<_>>()
        })
        .collect();
    let mut ways: BTreeMap<u8, Vec<&str>> = (1..=CASES).map(|case| (case, Vec::new())).collect();
    for name in &names {
        if let Some(number) = name.strip_prefix("supervision_").and_then(|rest| rest.get(..2)?.parse().ok()) {
            let way = ways.get_mut(&number).unwrap_or_else(|| panic!("{name}: there is no such case"));
            if !way.contains(&"a test of its own") {
                way.push("a test of its own");
            }
        }
    }
    for (case, name) in SHOWN_ELSEWHERE {
        assert!(names.iter().any(|seen| seen == name), "{case}: there is no test {name}");
        ways.get_mut(case).unwrap().push(name);
    }
    for (case, why) in NOT_SHOWN {
        ways.get_mut(case).unwrap().push(why);
    }
    let wrong: Vec<_> = ways.iter().filter(|(_, ways)| ways.len() != 1).collect();
    assert!(wrong.is_empty(), "neither shown nor explained, or twice: {wrong:#?}");
}

#[test]
fn supervision_05_one_core_file_at_the_most_and_never_dlocks() {
    let at = Fixture::file();
    let core = |line: &str| {
        let mut command = bash(&at, &format!("ulimit -c unlimited; cd \"$HOME\"; exec {line}"));
        command.status().unwrap()
    };
    for number in [libc::SIGSEGV, libc::SIGQUIT, libc::SIGABRT] {
        let bare = core(&format!("sh -c 'kill -{number} $$'"));
        let before = fs::read_dir(at.path("")).unwrap().count();
        let under = core(&format!("\"$D\" run -r x -- sh -c 'kill -{number} $$'"));
        assert_eq!((under.signal(), under.core_dumped()), (Some(number), false), "bare: {bare:?}");
        // Of the command, and over the one of `bare` where all have one name.
        assert!(fs::read_dir(at.path("")).unwrap().count() <= before + 1);
    }
}

#[test]
fn supervision_07_not_found_and_not_executable() {
    let at = Fixture::file();
    let file = |name: &str, what: &str, mode| {
        let path = at.path(name);
        fs::write(&path, what).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let plain = file("plain", "#!/bin/sh\n", 0o644);
    let no_interpreter = file("no-interpreter", "#!/no/such/shell\n", 0o755);
    let interpreter_is_dir = file("interpreter-is-dir", "#!/usr\n", 0o755);
    let below_a_file = format!("{plain}/x");
    let dir = at.path("").to_str().unwrap().to_owned();
    for (word, code, said) in [
        ("no-such-tool", 127, "no-such-tool"),
        ("/no/such/tool", 127, "/no/such/tool"),
        ("", 127, "''"),
        (&no_interpreter, 127, "interpreter"),
        (&plain, 126, &plain),
        (&dir, 126, &dir),
        (&below_a_file, 126, &below_a_file),
        (&interpreter_is_dir, 126, &interpreter_is_dir),
    ] {
        let output = at.run(&["run", "-r", "x", "--", word]);
        assert_eq!(output.status.code(), Some(code), "{word}: {output:?}");
        let line = text(&output.stderr);
        assert!(line.starts_with("dlock: ") && line.contains(said) && line.lines().count() == 1, "{word}: {line}");
        assert!(!at.held("x"), "{word}");
    }
    // Open for writing: the system refuses to run it.
    let busy = file("busy", "", 0o755);
    fs::copy("/bin/true", &busy).unwrap();
    let writer = fs::OpenOptions::new().append(true).open(&busy).unwrap();
    assert_eq!(at.code(&["run", "-r", "x", "--", &busy]), 126);
    drop(writer);
    assert!(!at.held("x"));
}

#[test]
fn supervision_08_a_text_without_an_interpreter_is_a_script() {
    let at = Fixture::file();
    let script = at.path("script");
    fs::write(&script, "echo hi \"$0\" \"$1\"; exit 5\n").unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    let output = at.run(&["run", "-r", "x", "--", script, "a b"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(5), format!("hi {script} a b\n")), "{output:?}");
}

#[test]
fn supervision_11_a_success_after_a_loss_is_none() {
    for (own, code) in [(0, 79), (3, 3)] {
        let at = Site::redis();
        let line = format!("echo up > {0}/up; until [ -e {0}/go ]; do sleep 0.02; done; exit {own}", at.path("").display());
        let mut run = at.dlock(&["run", "-r", "x", "-t", "1s", "--on-lost", "continue", "-c", &line]);
        let child = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        until("the command runs", || at.path("up").exists());
        at.server().ask(&["FLUSHALL"]);
        assert_eq!(at.server().ask(&["SET", "dlock:x", "another", "PX", "60000"]).trim(), "+OK");
        std::thread::sleep(std::time::Duration::from_millis(700)); // a heartbeat comes every third of the TTL
        fs::write(at.path("go"), "").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(text(&output.stderr).contains("lost"), "{output:?}");
        assert!(at.server().ask(&["GET", "dlock:x"]).contains("another"), "a release that is not ours to make");
    }
}

/// The other way, a descriptor that is told what happens, is not built.
#[test]
fn supervision_12_codes_that_a_command_may_use_too_can_be_changed() {
    let at = Fixture::file();
    for code in ["75", "69", "79", "124"] {
        assert_eq!(at.code(&["run", "-r", "x", "-c", &format!("exit {code}")]).to_string(), code);
    }
    let token = at.run(&["acquire", "-r", "x", "-t", "60s"]);
    assert!(token.status.success());
    assert_eq!(at.code(&["run", "-r", "x", "-E", "201", "--", "true"]), 201);
    for refused in ["256", "600", "-1", "x"] {
        assert_eq!(at.code(&["run", "-r", "x", "-E", refused, "--", "true"]), 64, "{refused}");
    }
}
