//! What is generated is committed, and compared byte for byte; `DLOCK_WRITE=1` rewrites it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap_complete::Shell;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn same(path: &str, wanted: &[u8]) {
    if std::env::var_os("DLOCK_WRITE").is_some() {
        fs::write(root(path), wanted).unwrap();
    }
    let found = fs::read(root(path)).unwrap_or_default();
    assert!(found == wanted, "{path} is not of the same day as the code: run the tests once with DLOCK_WRITE=1");
}

/// The exit codes as a Markdown table, between the marks of README.
fn markdown() -> String {
    dlock::outcome::TABLE.iter().fold(
        "<!-- exit-codes -->\n| code | meaning | did the command start? |\n|---|---|---|\n".to_owned(),
        |mut out, (code, meaning, started)| {
            writeln!(out, "| {code} | {meaning} | {started} |").unwrap();
            out
        },
    )
}

fn roff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('–', "\\(en")
}

/// The exit codes and stores as man page sections, then the hand-written rest.
fn tail() -> String {
    let mut out = String::from(".SH \"EXIT STATUS\"\n");
    for (code, meaning, _) in dlock::outcome::TABLE {
        writeln!(out, ".TP\n{}\n{}", roff(code), roff(meaning)).unwrap();
    }
    out += ".SH STORES\n.nf\n";
    out += &roff(&dlock::stores());
    out += ".fi\n";
    out + &fs::read_to_string(root("man/tail.roff")).unwrap()
}

#[test]
fn completions_are_of_the_same_day() {
    for (shell, path) in
        [(Shell::Bash, "completions/dlock.bash"), (Shell::Zsh, "completions/_dlock"), (Shell::Fish, "completions/dlock.fish")]
    {
        let mut out = Vec::new();
        clap_complete::generate(shell, &mut dlock::command(), "dlock", &mut out);
        same(path, &out);
    }
}

#[test]
fn man_pages_are_of_the_same_day() {
    let mut command = dlock::command();
    command.build();
    let page = |command: &clap_mangen::Man| {
        let mut out = Vec::new();
        command.render(&mut out).unwrap();
        out
    };
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        let name = format!("dlock-{}", verb.get_name());
        let man = clap_mangen::Man::new(verb.clone().name(Box::leak(name.clone().into_boxed_str()) as &str)).title(name.to_uppercase());
        same(&format!("man/{name}.1"), &page(&man));
    }
    let mut main = page(&clap_mangen::Man::new(command).title("DLOCK"));
    main.extend(tail().bytes());
    same("man/dlock.1", &main);
}

#[test]
fn readme_has_the_table_of_exit_codes() {
    let readme = fs::read_to_string(root("README.md")).unwrap();
    let (before, rest) = readme.split_once("<!-- exit-codes -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- /exit-codes -->").unwrap();
    same("README.md", format!("{before}{}<!-- /exit-codes -->{after}", markdown()).as_bytes());
}
