//! What ends a command early, and with which exit code.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use warpwright_ops::PlanError;
use warpwright_runtime::Error as DeviceError;

use crate::checkpoint::CheckpointError;
use crate::npy::NpyError;

/// How a command that ran to its end went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to complain about: exit code 0.
    Clean,
    /// The command did its work and found something wrong: exit code 1.
    Findings,
}

/// Why a command could not do its work: exit code 2.
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
    /// Any other file.
    #[error("{}: cannot {action}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The command line asks for something that cannot be.
    #[error("{message}")]
    Usage {
        /// What.
        message: String,
        /// The way out.
        help: Option<String>,
    },
    /// Standard output is gone.
    #[error("cannot write to standard output: {0}")]
    Stdout(#[source] io::Error),
    /// Ctrl-C, or a request to end.
    #[error("interrupted; nothing was left behind")]
    Interrupted,
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

    /// What the user can do about it.
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
            Self::Plan { .. } | Self::File { .. } | Self::Stdout(_) | Self::Interrupted => None,
        }
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            // The reader had enough, as in `warpwright ops | head`.
            Self::Stdout(source) if source.kind() == io::ErrorKind::BrokenPipe => 0,
            // What shells report for a program ended by Ctrl-C.
            Self::Interrupted => 130,
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
