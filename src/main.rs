//! Parse, call the library, exit as it says.

use dlock::outcome::{End, exit};

fn main() {
    match dlock::run(std::env::args_os()).end() {
        End::Exit(code) => exit(code),
        End::Signal(signal) => dlock::outcome::die_of(signal),
    }
}
