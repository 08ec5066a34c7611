//! The flags: the only file that knows clap. What is parsed here is text; config.rs checks it.

use std::ffi::OsString;

use clap::error::{Error, ErrorKind};
use clap::{ArgMatches, Args as Group, Command, CommandFactory, FromArgMatches, Parser, Subcommand};

/// A lock around a command, on one machine or for a fleet.
#[derive(Parser, Debug)]
#[command(name = "dlock", version, about, disable_help_subcommand = true)]
pub struct Args {
    /// TOML file with defaults and overrides (default: $DLOCK_CONFIG)
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<std::path::PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Declares the verbs. clap's own derive would build the flags of all of them at every start; here
/// each is built when it is asked for, which saves a tenth of a short run.
macro_rules! verbs {
    ($(#[doc = $about:literal] $verb:ident = $name:literal($group:ident)),+ $(,)?) => {
        /// The verbs.
        #[derive(Debug)]
        pub enum Verb {
            $(#[doc = $about] $verb($group)),+
        }

        impl FromArgMatches for Verb {
            fn from_arg_matches(found: &ArgMatches) -> Result<Verb, Error> {
                match found.subcommand() {
                    $(Some(($name, found)) => <$group>::from_arg_matches(found).map(Verb::$verb),)+
                    _ => Err(Error::new(ErrorKind::MissingSubcommand)),
                }
            }

            fn update_from_arg_matches(&mut self, found: &ArgMatches) -> Result<(), Error> {
                *self = Verb::from_arg_matches(found)?;
                Ok(())
            }
        }

        impl Subcommand for Verb {
            fn augment_subcommands(command: Command) -> Command {
                command.subcommand_required(true)$(.subcommand(
                    Command::new($name).about($about.trim()).defer(|verb| <$group>::augment_args(verb).about($about.trim())),
                ))+
            }

            fn augment_subcommands_for_update(command: Command) -> Command {
                Verb::augment_subcommands(command)
            }

            fn has_subcommand(name: &str) -> bool {
                [$($name),+].contains(&name)
            }
        }
    };
}

verbs! {
    /// Take the lock, run a command, renew while it runs, release
    Run = "run"(RunArgs),
    /// Take the lock and print its token
    Acquire = "acquire"(AcquireArgs),
    /// Renew a lease
    Refresh = "refresh"(RefreshArgs),
    /// Release a lease if the token holds it
    Release = "release"(ReleaseArgs),
    /// Who holds it, who waits
    Status = "status"(StatusArgs),
    /// All locks in the store
    List = "list"(ListArgs),
    /// End somebody else's lease
    Break = "break"(BreakArgs),
}

/// `acquire`.
#[derive(Group, Debug)]
pub struct AcquireArgs {
    /// How to take the lock.
    #[command(flatten)]
    pub take: TakeArgs,
    /// What to print: token, env (lines for eval) or json [default: token]
    #[arg(long, value_name = "WHAT")]
    pub format: Option<String>,
}

/// `refresh`.
#[derive(Group, Debug)]
pub struct RefreshArgs {
    /// Resource and store.
    #[command(flatten)]
    pub at: At,
    /// The token that acquire printed (default: $DLOCK_TOKEN)
    #[arg(long)]
    pub token: Option<String>,
    /// New lease length [default: 30s]
    #[arg(short, long, value_name = "DUR", allow_hyphen_values = true)]
    pub ttl: Option<String>,
    /// One JSON document
    #[arg(long)]
    pub json: bool,
}

/// `release`.
#[derive(Group, Debug)]
pub struct ReleaseArgs {
    /// Resource and store.
    #[command(flatten)]
    pub at: At,
    /// The token that acquire printed (default: $DLOCK_TOKEN)
    #[arg(long)]
    pub token: Option<String>,
}

/// `status`.
#[derive(Group, Debug)]
pub struct StatusArgs {
    /// Resource and store.
    #[command(flatten)]
    pub at: At,
    /// Ask whether this token holds it
    #[arg(long)]
    pub token: Option<String>,
    /// One JSON document
    #[arg(long)]
    pub json: bool,
    /// Show it at the terminal, once a second, until a signal ends it
    #[arg(long, conflicts_with_all = ["json", "token"])]
    pub watch: bool,
}

/// `list`.
#[derive(Group, Debug)]
pub struct ListArgs {
    /// Only names that begin with this
    pub prefix: Option<String>,
    /// Where locks live (default: $DLOCK_STORE, else a local directory)
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// One JSON document
    #[arg(long)]
    pub json: bool,
    /// By name, or by age: the longest held first [default: name]
    #[arg(long, value_name = "WHAT")]
    pub sort: Option<String>,
    /// Show it at the terminal, once a second, until a signal ends it
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
}

/// `break`.
#[derive(Group, Debug)]
pub struct BreakArgs {
    /// Resource and store.
    #[command(flatten)]
    pub at: At,
    /// Only the holder of this slot
    #[arg(long, value_name = "N", conflicts_with = "holder")]
    pub slot: Option<u32>,
    /// Only this holder: its fencing token, or its pid or HOST:PID
    #[arg(long, value_name = "WHO")]
    pub holder: Option<String>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// One JSON document
    #[arg(long)]
    pub json: bool,
}

/// Which resource in which store.
#[derive(Group, Debug)]
pub struct At {
    /// What to lock
    #[arg(short, long, value_name = "NAME", allow_hyphen_values = true)]
    pub resource: Option<String>,
    /// Where locks live (default: $DLOCK_STORE, else a local directory)
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
}

/// How to take a lock.
#[derive(Group, Debug)]
pub struct TakeArgs {
    /// Resource and store.
    #[command(flatten)]
    pub at: At,
    /// Lease length [default: 30s]
    #[arg(short, long, value_name = "DUR", allow_hyphen_values = true)]
    pub ttl: Option<String>,
    /// How long to wait when busy
    #[arg(short, long, value_name = "DUR|forever", allow_hyphen_values = true, conflicts_with = "no_wait")]
    pub wait: Option<String>,
    /// Do not wait (the default)
    #[arg(short, long)]
    pub no_wait: bool,
    /// Try this many times more, without joining the line
    #[arg(long, value_name = "N")]
    pub retry_count: Option<u32>,
    /// Between those tries [default: 200ms]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub retry_delay: Option<String>,
    /// Share it with others that share it
    #[arg(short, long, conflicts_with = "slots")]
    pub shared: bool,
    /// Be one of at most N holders
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub slots: Option<String>,
    /// Exit status when busy
    #[arg(short = 'E', long, value_name = "N", allow_hyphen_values = true)]
    pub busy_code: Option<String>,
    /// Shown with the holder
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Say nothing when busy
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Say more
    #[arg(short, long)]
    pub verbose: bool,
}

/// `run`.
#[derive(Group, Debug)]
pub struct RunArgs {
    /// How to take the lock.
    #[command(flatten)]
    pub take: TakeArgs,
    /// Grace between TERM and KILL; if given, after a TERM passed on too [default: TTL/4, at most 10s]
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub kill_after: Option<String>,
    /// What to do with the command when the lease is lost: stop or continue [default: stop]
    #[arg(long, value_name = "WHAT")]
    pub on_lost: Option<String>,
    /// What it leaves behind after an end by itself: ignore, wait for or kill it [default: ignore]
    #[arg(long, value_name = "WHAT")]
    pub survivors: Option<String>,
    /// Stop the command after this long, exit 124
    #[arg(long, value_name = "DUR", allow_hyphen_values = true)]
    pub max_runtime: Option<String>,
    /// Let the lease run out by itself instead of releasing it
    #[arg(long)]
    pub no_release: bool,
    /// Run one string by /bin/sh -c
    #[arg(short = 'c', long, value_name = "STRING", conflicts_with = "command", allow_hyphen_values = true)]
    pub shell: Option<OsString>,
    /// The command, byte for byte
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// Why there are no arguments.
pub enum Refused {
    /// Help or version was asked for: to be printed.
    Shown(String),
    /// A mistake, in words.
    Usage(String),
}

/// The flags as a table: completions and man pages come from it.
pub fn command() -> Command {
    Args::command()
}

/// Parses a command line. `tail` is printed below the help, and not made where none is asked for.
pub fn parse(words: &[OsString], tail: impl FnOnce() -> String) -> Result<Args, Refused> {
    let parsed = command().try_get_matches_from(words).and_then(|found| Args::from_arg_matches(&found));
    parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp => {
            let again = command().after_help(tail()).try_get_matches_from(words);
            Refused::Shown(again.map_or_else(|help| help.to_string(), |_| String::new()))
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let verbs: Vec<_> = command().get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
            Refused::Usage(format!("what to do? {}; see --help", verbs.join(", ")))
        }
        ErrorKind::DisplayVersion => Refused::Shown(error.to_string()),
        _ => {
            // One line an event: what is wrong, without the usage that --help shows.
            let text = error.to_string();
            let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
            let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
            Refused::Usage(format!("{}; see --help", lines.join(" ")))
        }
    })
}
