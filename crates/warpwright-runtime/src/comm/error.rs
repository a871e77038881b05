//! Failures between ranks, as data.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use warpwright_ptx::DType;

use super::Reduction;

/// A failure of one rank in one operation of a communicator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} of {size}, {operation}: {failure}")]
#[non_exhaustive]
pub struct CommError {
    /// The rank that reports it.
    pub rank: usize,
    /// Ranks of the communicator.
    pub size: usize,
    /// The operation, such as `all_reduce`.
    pub operation: &'static str,
    /// The reason.
    pub failure: CommFailure,
}

/// Why an operation of a communicator failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommFailure {
    /// No library of NCCL could be loaded.
    #[error("NCCL cannot be loaded{}", list(tried))]
    NoLibrary {
        /// The files that were tried, each with the answer of the loader.
        tried: Vec<(PathBuf, String)>,
    },
    /// The library of NCCL is older than this crate needs.
    #[error("NCCL {found} at {} is too old, {needed} or later is needed", .path.display())]
    LibraryTooOld {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: NcclVersion,
        /// The oldest that will do.
        needed: NcclVersion,
    },
    /// A call of NCCL failed.
    #[error("{call} failed: {text} ({code}){}", if .detail.is_empty() { String::new() } else { format!(": {}", .detail) })]
    Nccl {
        /// The function.
        call: &'static str,
        /// The number of the error.
        code: i32,
        /// NCCL's sentence about it.
        text: String,
        /// The last message of NCCL's log, if there is one.
        detail: String,
    },
    /// Ranks did not arrive before the deadline.
    #[error("no answer after {after:?}{}", waiting(missing))]
    TimedOut {
        /// How long this rank has waited.
        after: Duration,
        /// The ranks that it has waited for; empty where the library does not tell.
        missing: Vec<usize>,
    },
    /// Another rank has failed, or has dropped its communicator.
    #[error("rank {other} is gone: {reason}")]
    Gone {
        /// The rank.
        other: usize,
        /// Its last words.
        reason: String,
    },
    /// The communicator was aborted, or has failed before, and cannot be used again.
    #[error("the communicator cannot be used any more: {reason}")]
    Unusable {
        /// The reason.
        reason: String,
    },
    /// Two ranks made different calls.
    #[error("this rank calls {this}, rank {other} calls {theirs}")]
    Mismatch {
        /// The other rank.
        other: usize,
        /// The call of this rank, with element type and count.
        this: String,
        /// The call of the other.
        theirs: String,
    },
    /// A rank that does not exist.
    #[error("{argument} is rank {got}, the communicator has {size}")]
    Rank {
        /// The argument.
        argument: &'static str,
        /// The value given.
        got: usize,
        /// Ranks that there are.
        size: usize,
    },
    /// A message from or to the rank itself.
    #[error("{argument} is this rank itself")]
    Itself {
        /// The argument.
        argument: &'static str,
    },
    /// A tensor has the wrong number of elements.
    #[error("{argument} has {got} elements, expected {expected}")]
    Count {
        /// The argument.
        argument: &'static str,
        /// Elements that it needs.
        expected: u64,
        /// Elements that it has.
        got: u64,
    },
    /// A number of elements that does not divide by the number of ranks.
    #[error("{argument} has {got} elements, which {size} ranks cannot share evenly")]
    Uneven {
        /// The argument.
        argument: &'static str,
        /// Elements that it has.
        got: u64,
        /// Ranks that there are.
        size: usize,
    },
    /// A reduction that the element type does not have.
    #[error("there is no {reduction} of {dtype}")]
    NoReduction {
        /// The reduction.
        reduction: Reduction,
        /// The element type.
        dtype: DType,
    },
    /// The ranks could not find each other.
    #[error("rendezvous at {place}: {reason}")]
    Rendezvous {
        /// An address, a file, or an environment variable.
        place: String,
        /// The reason.
        reason: String,
    },
    /// The devices of a communicator are no set of different devices of one kind.
    #[error("the devices of the ranks must be different, and all GPUs or all emulators: {devices}")]
    Devices {
        /// The devices by rank.
        devices: String,
    },
    /// Emulators of several processes.
    #[error("emulators are ranks of one process: make them with `Communicator::local`")]
    EmulatorProcess,
}

fn list(tried: &[(PathBuf, String)]) -> String {
    tried.iter().fold(String::new(), |text, (path, answer)| format!("{text}\n  {}: {answer}", path.display()))
}

fn waiting(missing: &[usize]) -> String {
    match missing {
        [] => String::new(),
        [one] => format!(" from rank {one}"),
        several => format!(" from ranks {several:?}"),
    }
}

/// A version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NcclVersion {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Patch number.
    pub patch: u32,
}

impl NcclVersion {
    /// From the number that `ncclGetVersion` returns: 10,000 for each major and 100 for each minor from 2.9 on.
    pub(crate) fn from_number(number: i32) -> Self {
        let number = u32::try_from(number).unwrap_or(0);
        let major = if number < 10_000 { 1000 } else { 10_000 };
        Self { major: number / major, minor: number % major / 100, patch: number % 100 }
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}
