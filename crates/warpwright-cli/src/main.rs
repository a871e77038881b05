//! The `warpwright` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    warpwright_cli::main()
}
