//! The parts of the `warpwright` command.
//!
//! This library exists so that the command's tests, examples and fuzz targets can reach its readers. Its API follows
//! the command's needs and carries no promise; programs use the `warpwright` crate.

#![forbid(unsafe_code)]

pub mod args;
pub mod checkpoint;
pub mod commands;
pub mod console;
pub mod convert;
pub mod error;
pub mod excerpt;
mod html;
pub mod interrupt;
pub mod logging;
pub mod npy;
pub mod op_options;
pub mod palette;
mod paths;
pub mod report;
mod sarif;
pub mod table;
pub mod units;

use std::process::ExitCode;

use clap::Parser;

use crate::console::Console;
use crate::error::Outcome;

/// The command: arguments of the process in, exit code out.
pub fn main() -> ExitCode {
    let cli = args::Cli::parse();
    interrupt::listen();
    let mut console = Console::new();
    let result =
        logging::start().and_then(|()| commands::dispatch(&cli.command, &mut console)).and_then(|outcome| {
            console.flush()?;
            Ok(outcome)
        });
    let code = match result {
        Ok(Outcome::Clean) => 0,
        Ok(Outcome::Findings) => 1,
        Ok(Outcome::NotDecided) => 3,
        Err(error) => {
            // Whatever stopped when the user asked for the end did so for that reason.
            let error = interrupt::check().err().unwrap_or(error);
            // What was already said comes before the error where both go to one terminal.
            let _ = console.flush();
            if !error.is_silent() {
                console.error(&error, error.help().as_deref());
            }
            error.exit_code()
        }
    };
    interrupt::exit_if_abandoned(code);
    ExitCode::from(code)
}
