//! Parse, call the library, exit: the only place that ends the process.

use std::process::ExitCode;

use dlock::outcome::End;

fn main() -> ExitCode {
    match dlock::run(std::env::args_os()).end() {
        End::Exit(code) => ExitCode::from(code),
        End::Signal(signal) => dlock::outcome::die_of(signal),
    }
}
