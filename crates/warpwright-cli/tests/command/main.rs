//! The command as a user runs it.

mod arguments;
mod checkpoints;
mod commands;
mod common;
mod costs;
mod formats;
mod fuzz;
mod gguf;
mod logging;
mod outputs;
mod paths;
mod prove;
mod schedules;
mod signals;
mod writers;
