//! Ranks that work together: collective operations and messages between the devices of several threads or processes.
//!
//! A [`Communicator`] is one rank of several. GPUs talk through NVIDIA's NCCL, whose library is looked up when the first communicator
//! is made and is never linked: one process for each GPU ([`Communicator::connect`]), or one thread for each
//! ([`Communicator::local`]). Emulators talk inside one process, any number of them, so that everything built on a communicator can be
//! tested without a GPU: there ranks that make different calls, or do not call at all, are errors that name them, and sums are formed
//! in the order of the ranks.
//!
//! | call | `x` | `y` | result |
//! |---|---|---|---|
//! | [`all_reduce`](Communicator::all_reduce) | n | n | the reduction of all `x`, on every rank |
//! | [`all_gather`](Communicator::all_gather) | n | ranks n | all `x` in the order of the ranks |
//! | [`reduce_scatter`](Communicator::reduce_scatter) | ranks n | n | part `rank` of the reduction of all `x` |
//! | [`broadcast`](Communicator::broadcast) | n | | `x` of one rank |
//! | [`all_to_all`](Communicator::all_to_all) | ranks n | ranks n | part `r` of `y` is part `rank` of the `x` of rank `r` |
//! | [`send`](Communicator::send), [`receive`](Communicator::receive) | n | n | a message |
//!
//! Calls only enqueue on the stream that they are given. On a GPU a rank that never arrives shows when the stream is waited for:
//! [`Communicator::synchronize`] waits with a deadline, and aborts. All ranks make the same collective calls in the same order. Sums
//! of f16 and bf16 are rounded once on emulators; NCCL rounds them as they pass from rank to rank, in an order of its own that
//! is the same in every run on the same machine.
//!
//! ```
//! # fn main() -> Result<(), warpwright_runtime::Error> {
//! use warpwright_runtime::comm::{CommOptions, Communicator, Reduction};
//! use warpwright_runtime::{Device, Tensor};
//!
//! let devices = [Device::emulator(), Device::emulator(), Device::emulator()];
//! let ranks = Communicator::local(&devices, CommOptions::default())?;
//! std::thread::scope(|scope| {
//!     let run = |comm: Communicator| -> Result<Vec<f32>, warpwright_runtime::Error> {
//!         let stream = comm.device().stream()?;
//!         let mut x = Tensor::from_slice_on(&stream, &[comm.rank() as f32, 1.0], &[2])?;
//!         comm.all_reduce_in_place(&stream, Reduction::Sum, &mut x)?;
//!         comm.synchronize(&stream)?;
//!         x.to_vec_on(&stream)
//!     };
//!     let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || run(comm))).collect();
//!     for thread in threads {
//!         assert_eq!(thread.join().expect("no panic")?, [3.0, 3.0]);
//!     }
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # Environment
//!
//! | variable | meaning |
//! |---|---|
//! | `WARPWRIGHT_NCCL` | the file of NCCL's library, or its folder; without it that which the process has loaded, that of the Python environment whose libraries are loaded, and that which the system's loader finds |
//! | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT` | as `torchrun` sets them, for [`Rendezvous::from_environment`] |
//! | `WARPWRIGHT_PORT` | the port of the rendezvous in place of `MASTER_PORT` |

mod call;
mod combine;
mod error;
mod in_process;
mod rendezvous;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

pub use self::call::Group;
pub(crate) use self::call::{Call, Kind, Signature};
use self::call::{Reason, Refusal};
pub use self::error::{CommError, CommFailure, NcclVersion};
use self::in_process::InProcess;
pub use self::rendezvous::Rendezvous;
use crate::backend::cuda::nccl;
use crate::device::{Device, DeviceId};
use crate::error::{Error, Result};
use crate::recording;
use crate::stream::Stream;
use crate::view::{TensorMut, TensorRef};

pub use crate::backend::cuda::nccl::NcclLibrary;
pub use crate::backend::cuda::peer_links;

/// How elements of all ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their sum over the number of ranks; not of whole numbers.
    Mean,
    /// Their product.
    Product,
    /// The least.
    Min,
    /// The largest.
    Max,
}

impl Reduction {
    /// All reductions.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Mean, Self::Product, Self::Min, Self::Max];
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Product => "product",
            Self::Min => "min",
            Self::Max => "max",
        })
    }
}

/// How a communicator behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommOptions {
    /// How long a rank waits for others: to connect, and for every call that waits.
    pub timeout: Duration,
}

impl Default for CommOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(600) }
    }
}

/// The link between two GPUs, as the driver tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerLink {
    /// The numbers of the GPUs.
    pub devices: [u32; 2],
    /// Whether kernels of the first can access memory of the second.
    pub access: bool,
    /// Whether atomic operations of the first on memory of the second are native, as over NVLink.
    pub atomics: bool,
    /// The driver's rank of the link's speed: lower is faster.
    pub performance_rank: i32,
}

/// The work of a communicator, behind which it does not matter who the ranks are.
pub(crate) trait Transport: Send + Sync + fmt::Debug {
    fn run(&self, stream: &Stream, calls: &[Call]) -> Result<(), Trouble>;
    /// Waits until the stream is idle, up to the time-out.
    fn synchronize(&self, stream: &Stream) -> Result<(), Trouble>;
    /// Ends the communicator, and what others wait for.
    fn abort(&self, reason: &str);
}

/// An error of a device, or one of the ranks, which the communicator puts its name to.
#[derive(Debug)]
pub(crate) enum Trouble {
    Device(Box<Error>),
    Ranks(CommFailure),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Device(Box::new(error))
    }
}

impl From<CommFailure> for Trouble {
    fn from(failure: CommFailure) -> Self {
        Self::Ranks(failure)
    }
}

/// One rank of several.
///
/// One thread at a time uses it; another waits. Dropping it tells ranks on emulators that this one is gone. On a GPU dropping it waits for its
/// calls on streams, up to the time-out, and aborts those that have not finished then.
pub struct Communicator {
    rank: usize,
    size: usize,
    device: Device,
    transport: Box<dyn Transport>,
}

impl Communicator {
    /// A communicator for each of several devices of this process, in the order of their ranks: different GPUs, or different emulators.
    /// Each goes to a thread of its own.
    ///
    /// # Errors
    /// [`Error::Comm`] if the devices are not that, or NCCL is not there or refuses.
    pub fn local(devices: &[Device], options: CommOptions) -> Result<Vec<Self>> {
        let size = devices.len();
        let failed = |rank| move |trouble| Error::from_trouble(rank, size, "Communicator::local", trouble);
        let emulators = devices.iter().filter(|device| device.is_emulator()).count();
        let twice = devices.iter().enumerate().any(|(n, device)| devices[..n].contains(device));
        if twice || (emulators != 0 && emulators != size) {
            let names: Vec<String> = devices.iter().map(|device| device.id().to_string()).collect();
            return Err(failed(0)(CommFailure::Devices { devices: names.join(", ") }.into()));
        }
        let transports: Vec<Box<dyn Transport>> = if emulators == size {
            InProcess::ranks(size, options.timeout).into_iter().map(|rank| Box::new(rank) as _).collect()
        } else {
            nccl::local(devices, options.timeout).map_err(|(rank, trouble)| failed(rank)(trouble))?
        };
        let ranks = transports.into_iter().zip(devices).enumerate();
        Ok(ranks
            .map(|(rank, (transport, device))| Self { rank, size, device: device.clone(), transport })
            .collect())
    }

    /// This process's rank on a GPU, after all processes of `rendezvous` have come.
    ///
    /// # Errors
    /// [`Error::Comm`] if ranks do not come in time, which are named on rank 0, NCCL is not there or refuses, or the device is an
    /// emulator.
    pub fn connect(device: &Device, rendezvous: &Rendezvous, options: CommOptions) -> Result<Self> {
        let (rank, size) = (rendezvous.rank(), rendezvous.size());
        let failed = |trouble| Error::from_trouble(rank, size, "Communicator::connect", trouble);
        if matches!(device.id(), DeviceId::Emulator(_)) {
            return Err(failed(CommFailure::EmulatorProcess.into()));
        }
        let id = rendezvous.share(nccl::unique_id, options.timeout).map_err(failed)?;
        let transport = nccl::connect(device, &id, rank, size, options.timeout);
        // If that failed the identity is spent, too.
        rendezvous.done();
        let transport = transport.map_err(failed)?;
        Ok(Self { rank, size, device: device.clone(), transport })
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Where the tensors of this rank are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn failed(&self, operation: &'static str, trouble: Trouble) -> Error {
        Error::from_trouble(self.rank, self.size, operation, trouble)
    }

    /// Enqueues the calls of a group.
    ///
    /// # Errors
    /// Before anything is enqueued: [`Error::WrongDevice`], [`Error::DType`], [`Error::NotContiguous`], [`Error::Overlap`] for the
    /// tensors, [`Error::Comm`] for counts and ranks. [`Error::Comm`] if other ranks make other calls or do not come, as far as the
    /// backend tells; [`Error::Capturing`] on emulators while the stream is captured.
    pub fn run(&self, stream: &Stream, group: Group<'_>) -> Result<()> {
        recording::not_recorded();
        stream.same_device(group.name(), "stream", &self.device)?;
        let calls =
            group.lower(&self.device, self.rank, self.size).map_err(|Refusal { operation, reason }| {
                match reason {
                    Reason::Tensor(error) => *error,
                    Reason::Call(failure) => self.failed(operation, failure.into()),
                }
            })?;
        if calls.is_empty() {
            return Ok(());
        }
        let outcome = self.transport.run(stream, &calls);
        // What has failed may have been enqueued in part.
        group.tensors().for_each(|tensor| tensor.used_on(stream));
        outcome.map_err(|trouble| self.failed(group.name(), trouble))
    }

    /// `y` becomes the reduction of the `x` of all ranks; both have the same element type and number of elements.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn all_reduce<'a>(
        &self,
        stream: &Stream,
        reduction: Reduction,
        x: impl Into<TensorRef<'a>>,
        y: impl Into<TensorMut<'a>>,
    ) -> Result<()> {
        self.one(stream, |group| group.all_reduce(reduction, x, y))
    }

    /// `x` becomes the reduction of the `x` of all ranks.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn all_reduce_in_place<'a>(
        &self,
        stream: &Stream,
        reduction: Reduction,
        x: impl Into<TensorMut<'a>>,
    ) -> Result<()> {
        self.one(stream, |group| group.all_reduce_in_place(reduction, x))
    }

    /// `y` becomes the `x` of all ranks one after the other.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn all_gather<'a>(
        &self,
        stream: &Stream,
        x: impl Into<TensorRef<'a>>,
        y: impl Into<TensorMut<'a>>,
    ) -> Result<()> {
        self.one(stream, |group| group.all_gather(x, y))
    }

    /// `y` becomes this rank's part of the reduction of the `x` of all ranks.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn reduce_scatter<'a>(
        &self,
        stream: &Stream,
        reduction: Reduction,
        x: impl Into<TensorRef<'a>>,
        y: impl Into<TensorMut<'a>>,
    ) -> Result<()> {
        self.one(stream, |group| group.reduce_scatter(reduction, x, y))
    }

    /// `x` becomes that of rank `root`.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn broadcast<'a>(&self, stream: &Stream, root: usize, x: impl Into<TensorMut<'a>>) -> Result<()> {
        self.one(stream, |group| group.broadcast(root, x))
    }

    /// Part `r` of `x` goes to rank `r`, and part `r` of `y` comes from there.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn all_to_all<'a>(
        &self,
        stream: &Stream,
        x: impl Into<TensorRef<'a>>,
        y: impl Into<TensorMut<'a>>,
    ) -> Result<()> {
        self.one(stream, |group| group.all_to_all(x, y))
    }

    /// `x` goes to rank `to`. The stream goes on when it has been received: two ranks that send to each other do it in a [`Group`].
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn send<'a>(&self, stream: &Stream, to: usize, x: impl Into<TensorRef<'a>>) -> Result<()> {
        self.one(stream, |group| group.send(to, x))
    }

    /// `y` comes from rank `from`.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn receive<'a>(&self, stream: &Stream, from: usize, y: impl Into<TensorMut<'a>>) -> Result<()> {
        self.one(stream, |group| group.receive(from, y))
    }

    fn one<'a>(
        &self,
        stream: &Stream,
        add: impl for<'g> FnOnce(&'g mut Group<'a>) -> &'g mut Group<'a>,
    ) -> Result<()> {
        let mut group = Group::new();
        add(&mut group);
        self.run(stream, group)
    }

    /// Waits until every rank has come here, and everything before it on the stream has finished.
    ///
    /// # Errors
    /// As [`Communicator::run`] and [`Communicator::synchronize`].
    pub fn barrier(&self, stream: &Stream) -> Result<()> {
        self.one(stream, Group::barrier)?;
        self.synchronize(stream)
    }

    /// Waits for everything that was enqueued on `stream`, up to the time-out, and looks for failures of NCCL meanwhile. If there
    /// is one the communicator is aborted; tensors of calls that had not finished then hold anything.
    ///
    /// # Errors
    /// [`Error::Comm`]; [`Error::Capturing`]; [`Error::Fault`] if a kernel failed.
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        stream.same_device("Communicator::synchronize", "stream", &self.device)?;
        stream.forbid_capture("Communicator::synchronize")?;
        self.transport.synchronize(stream).map_err(|trouble| self.failed("synchronize", trouble))
    }

    /// Ends the communicator from any thread: calls that wait return, and later ones fail. Ranks of this process that wait for this one
    /// fail, too; those of others notice by their time-out.
    pub fn abort(&self) {
        self.transport.abort("it was aborted");
    }
}

impl Error {
    fn from_trouble(rank: usize, size: usize, operation: &'static str, trouble: Trouble) -> Self {
        match trouble {
            Trouble::Device(error) => *error,
            Trouble::Ranks(failure) => Self::Comm(Box::new(CommError { rank, size, operation, failure })),
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {} on {})", self.rank, self.size, self.device.id())
    }
}
