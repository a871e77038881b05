//! Errors that end a command early, and their exit codes.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use warpwright_ops::catalogue::RequestError;
use warpwright_ops::{Direction, PlanError};
use warpwright_ptx::{JoinError, Target};
use warpwright_runtime::Error as DeviceError;

use crate::checkpoint::CheckpointError;
use crate::interrupt::Signal;
use crate::npy::NpyError;
use crate::op_options::flag;
use crate::paths::Shown;

/// How a command that ran to its end went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to complain about: exit code 0.
    Clean,
    /// The command did its work and found something wrong: exit code 1.
    Findings,
    /// The command did its work, and the question stays open: exit code 3.
    NotDecided,
}

/// The role of a file in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It reads it.
    Input,
    /// It writes it.
    Output,
}

/// Why a command could not do its work: exit code 2, or that of the signal that ended it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A checkpoint cannot be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// An array cannot be read.
    #[error(transparent)]
    Npy(#[from] NpyError),
    /// The device cannot do what it was asked for.
    #[error("{}{source}", context.as_ref().map(|what| format!("{what}: ")).unwrap_or_default())]
    Device {
        /// File or tensor that was being worked on.
        context: Option<String>,
        /// The runtime's error.
        #[source]
        source: Box<DeviceError>,
    },
    /// A primitive has no plan.
    #[error("{}", Chain(source))]
    Plan {
        /// Why.
        #[from]
        source: PlanError,
    },
    /// A primitive does not take an option.
    #[error("{op} ({direction}) has no option --{}", flag(option))]
    OpOption {
        /// The primitive.
        op: String,
        /// Which way it goes.
        direction: Direction,
        /// The name of the option.
        option: &'static str,
        /// The names of those that it takes.
        takes: Vec<&'static str>,
    },
    /// The primitive's kernels were never assembled for the target.
    #[error("{op} ({direction}) is not assembled for {target}")]
    Target {
        /// The primitive.
        op: String,
        /// Which way it goes.
        direction: Direction,
        /// The target that was asked for.
        target: Target,
        /// The targets that it has kernels for.
        supported: &'static [Target],
    },
    /// The kernels of a primitive do not go into one module.
    #[error("the kernels of {op} do not go into one module: {source}")]
    Join {
        /// The primitive.
        op: String,
        /// Why.
        #[source]
        source: JoinError,
    },
    /// Any other file.
    #[error("{}: cannot {action}: {source}", Shown(path))]
    File {
        /// The file.
        path: PathBuf,
        /// The action that failed.
        action: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// An output would take the place of a file that the command reads, or writes already.
    #[error("{}: is {}", Shown(output), match role { Use::Input => format!("read as {}", Shown(other)), Use::Output => "written twice".to_owned() })]
    OutputTaken {
        /// The output.
        output: PathBuf,
        /// The other name of the file.
        other: PathBuf,
        /// Its other role.
        role: Use,
    },
    /// A text is longer than any kernel.
    #[error("{}: is longer than {limit} bytes", Shown(path))]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The most that is read.
        limit: u64,
    },
    /// The command line asks for something that cannot be.
    #[error("{message}")]
    Usage {
        /// The request and why it cannot be.
        message: String,
        /// The way out.
        help: Option<String>,
    },
    /// Standard output is gone.
    #[error("cannot write to standard output: {0}")]
    Stdout(#[source] io::Error),
    /// Ctrl-C, or a request to end.
    #[error("interrupted by {signal}; nothing was left behind")]
    Interrupted {
        /// Who asked.
        signal: Signal,
    },
}

impl Error {
    /// A mistake on the command line.
    pub fn usage(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), help: Some(help.into()) }
    }

    /// A file that is no checkpoint and no array.
    pub fn file(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, action, source }
    }

    /// A device error while working on `context`.
    pub fn on(context: impl Into<String>) -> impl FnOnce(DeviceError) -> Self {
        let context = Some(context.into());
        move |source| Self::Device { context, source: Box::new(source) }
    }

    /// The user's remedy.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Checkpoint(error) => error.help(),
            Self::Npy(error) => error.help(),
            Self::Device { source, .. } => device_help(source),
            Self::File { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("check the path".to_owned())
            }
            Self::Plan { source: PlanError::UnknownOperation { .. } } => {
                Some("`warpwright ops` lists them".to_owned())
            }
            Self::Usage { help, .. } => help.clone(),
            Self::OpOption { takes, .. } => {
                let flags: Vec<_> = takes.iter().map(|name| format!("--{}", flag(name))).collect();
                Some(format!("it takes {}", flags.join(", ")))
            }
            Self::Target { supported, .. } => {
                let names: Vec<_> = supported.iter().map(ToString::to_string).collect();
                Some(format!("--target is one of {}", names.join(", ")))
            }
            Self::OutputTaken { .. } => {
                Some("name another path; --force does not replace what is in use".to_owned())
            }
            Self::Join { .. }
            | Self::Plan { .. }
            | Self::File { .. }
            | Self::TooLong { .. }
            | Self::Stdout(_)
            | Self::Interrupted { .. } => None,
        }
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            // The reader had enough, as in `warpwright ops | head`.
            Self::Stdout(source) if source.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Interrupted { signal } => signal.exit_code(),
            _ => 2,
        }
    }

    /// Whether there is anything to say.
    pub fn is_silent(&self) -> bool {
        self.exit_code() == 0
    }
}

impl From<DeviceError> for Error {
    fn from(source: DeviceError) -> Self {
        Self::Device { context: None, source: Box::new(source) }
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Option { op, direction, option, takes } => {
                Self::OpOption { op: op.to_owned(), direction, option, takes }
            }
            RequestError::Plan(source) => Self::Plan { source },
            other => Self::usage(other.to_string(), "`warpwright ops` lists what there is"),
        }
    }
}

/// An error with its causes behind it.
struct Chain<'a>(&'a dyn std::error::Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

fn device_help(error: &DeviceError) -> Option<String> {
    Some(match error {
        DeviceError::NoDriver(_) => {
            "install the NVIDIA driver, or use --device emulator; `warpwright devices` shows what was found"
                .to_owned()
        }
        DeviceError::NoSuchDevice { .. } => "`warpwright devices` lists them".to_owned(),
        DeviceError::DeviceName { .. } => "try --device auto".to_owned(),
        DeviceError::OutOfMemory { .. } => {
            "end what else uses the device, or use --device emulator".to_owned()
        }
        DeviceError::PtxTooNew { .. } => {
            "update the NVIDIA driver, or lower the module's .version".to_owned()
        }
        DeviceError::Target { .. } => {
            "name a device that the kernel is built for: `warpwright devices`".to_owned()
        }
        _ => return None,
    })
}
