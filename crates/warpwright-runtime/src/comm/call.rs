//! Calls of a communicator as data, and what must hold of their tensors.

use std::fmt;

use warpwright_ptx::DType;

use super::{CommFailure, Reduction};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::view::{TensorMut, TensorRef};

/// Which call, and with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce(Reduction),
    AllGather,
    ReduceScatter(Reduction),
    Broadcast { root: usize },
    AllToAll,
    Barrier,
    Send { to: usize },
    Receive { from: usize },
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::AllReduce(_) => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter(_) => "reduce_scatter",
            Self::Broadcast { .. } => "broadcast",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
            Self::Send { .. } => "send",
            Self::Receive { .. } => "receive",
        }
    }

    const fn reduction(self) -> Option<Reduction> {
        match self {
            Self::AllReduce(reduction) | Self::ReduceScatter(reduction) => Some(reduction),
            _ => None,
        }
    }

    /// The rank that an argument names.
    const fn peer(self) -> Option<(&'static str, usize)> {
        match self {
            Self::Broadcast { root } => Some(("root", root)),
            Self::Send { to } => Some(("to", to)),
            Self::Receive { from } => Some(("from", from)),
            _ => None,
        }
    }
}

/// A call with its memory. Sizes are in elements of `dtype`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    pub(crate) dtype: DType,
    /// Elements of one rank's part: the count that all ranks have in common.
    pub(crate) count: u64,
    /// Where the rank's own elements are, and how many.
    pub(crate) source: (u64, u64),
    /// Where the result goes, and how many elements it has.
    pub(crate) target: (u64, u64),
}

impl Call {
    pub(crate) fn source_bytes(&self) -> u64 {
        self.source.1 * self.dtype.bytes() as u64
    }

    /// The same for two ranks if their calls belong together.
    pub(crate) fn signature(&self) -> Signature {
        Signature { kind: self.kind, dtype: self.dtype, count: self.count }
    }
}

/// The part of a collective call that its ranks must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(crate) kind: Kind,
    pub(crate) dtype: DType,
    pub(crate) count: u64,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, dtype, count } = self;
        match kind {
            Kind::Barrier => f.write_str("barrier"),
            Kind::AllReduce(reduction) | Kind::ReduceScatter(reduction) => {
                write!(f, "{}({reduction}) of {count} elements of {dtype}", kind.name())
            }
            Kind::Broadcast { root } => write!(f, "broadcast from {root} of {count} elements of {dtype}"),
            _ => write!(f, "{} of {count} elements of {dtype}", kind.name()),
        }
    }
}

/// A call and the tensors that it borrows.
#[derive(Debug)]
struct Queued<'a> {
    kind: Kind,
    x: Option<TensorRef<'a>>,
    y: Option<TensorRef<'a>>,
}

/// Calls that go out together: none of them waits for another, so that ranks may send to each other in any order, and many small
/// calls cost one launch. [`Communicator::run`](super::Communicator::run) runs them.
///
/// Tensors are contiguous. Collective calls (all but messages) stand in the same order on all ranks.
///
/// ```
/// # fn main() -> Result<(), warpwright_runtime::Error> {
/// use warpwright_runtime::comm::{CommOptions, Communicator, Group};
/// use warpwright_runtime::{Device, Tensor};
///
/// let devices = [Device::emulator(), Device::emulator()];
/// let ranks = Communicator::local(&devices, CommOptions::default())?;
/// std::thread::scope(|scope| {
///     for comm in &ranks {
///         scope.spawn(move || -> Result<(), warpwright_runtime::Error> {
///             let (stream, other) = (comm.device().stream()?, 1 - comm.rank());
///             let x = Tensor::from_slice_on(&stream, &[comm.rank() as f32], &[1])?;
///             let mut y = Tensor::zeros_on(&stream, x.dtype(), x.shape())?;
///             let mut group = Group::new();
///             group.send(other, &x).receive(other, &mut y);
///             comm.run(&stream, group)?;
///             assert_eq!(y.to_vec_on::<f32>(&stream)?, [other as f32]);
///             Ok(())
///         });
///     }
/// });
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Group<'a> {
    calls: Vec<Queued<'a>>,
}

impl<'a> Group<'a> {
    /// No calls.
    pub const fn new() -> Self {
        Self { calls: Vec::new() }
    }

    /// Whether there are no calls.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    fn add(&mut self, kind: Kind, x: Option<TensorRef<'a>>, y: Option<TensorMut<'a>>) -> &mut Self {
        self.calls.push(Queued { kind, x, y: y.map(TensorMut::into_reading) });
        self
    }

    /// `y` becomes the reduction of the `x` of all ranks; both have the same element type and number of elements.
    pub fn all_reduce(
        &mut self,
        reduction: Reduction,
        x: impl Into<TensorRef<'a>>,
        y: impl Into<TensorMut<'a>>,
    ) -> &mut Self {
        self.add(Kind::AllReduce(reduction), Some(x.into()), Some(y.into()))
    }

    /// `x` becomes the reduction of the `x` of all ranks.
    pub fn all_reduce_in_place(&mut self, reduction: Reduction, x: impl Into<TensorMut<'a>>) -> &mut Self {
        self.add(Kind::AllReduce(reduction), None, Some(x.into()))
    }

    /// `y` becomes the `x` of all ranks one after the other; it has as many elements for each rank as `x`.
    pub fn all_gather(&mut self, x: impl Into<TensorRef<'a>>, y: impl Into<TensorMut<'a>>) -> &mut Self {
        self.add(Kind::AllGather, Some(x.into()), Some(y.into()))
    }

    /// `y` becomes this rank's part of the reduction of the `x` of all ranks; `x` has as many elements for each rank as `y`.
    pub fn reduce_scatter(
        &mut self,
        reduction: Reduction,
        x: impl Into<TensorRef<'a>>,
        y: impl Into<TensorMut<'a>>,
    ) -> &mut Self {
        self.add(Kind::ReduceScatter(reduction), Some(x.into()), Some(y.into()))
    }

    /// `x` becomes that of rank `root`.
    pub fn broadcast(&mut self, root: usize, x: impl Into<TensorMut<'a>>) -> &mut Self {
        self.add(Kind::Broadcast { root }, None, Some(x.into()))
    }

    /// Part `r` of `x` goes to rank `r`, and part `r` of `y` comes from there; both have the same number of elements, a multiple of
    /// the number of ranks.
    pub fn all_to_all(&mut self, x: impl Into<TensorRef<'a>>, y: impl Into<TensorMut<'a>>) -> &mut Self {
        self.add(Kind::AllToAll, Some(x.into()), Some(y.into()))
    }

    /// `x` goes to rank `to`, which receives as many elements of the same type.
    pub fn send(&mut self, to: usize, x: impl Into<TensorRef<'a>>) -> &mut Self {
        self.add(Kind::Send { to }, Some(x.into()), None)
    }

    /// `y` comes from rank `from`.
    pub fn receive(&mut self, from: usize, y: impl Into<TensorMut<'a>>) -> &mut Self {
        self.add(Kind::Receive { from }, None, Some(y.into()))
    }

    pub(super) fn barrier(&mut self) -> &mut Self {
        self.add(Kind::Barrier, None, None)
    }

    /// The operation for messages of a failure.
    pub(super) fn name(&self) -> &'static str {
        match self.calls.as_slice() {
            [one] => one.kind.name(),
            _ => "group",
        }
    }

    /// The tensors of all calls.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &TensorRef<'a>> {
        self.calls.iter().flat_map(|call| call.x.iter().chain(&call.y))
    }

    /// The calls with their memory, if everything about them is right.
    pub(super) fn lower(&self, device: &Device, rank: usize, size: usize) -> Result<Vec<Call>, Refusal> {
        self.calls.iter().map(|call| call.lower(device, rank, size)).collect()
    }
}

/// A call that does not go out.
pub(super) struct Refusal {
    pub(super) operation: &'static str,
    pub(super) reason: Reason,
}

pub(super) enum Reason {
    Tensor(Box<Error>),
    Call(CommFailure),
}

impl Queued<'_> {
    fn lower(&self, device: &Device, rank: usize, size: usize) -> Result<Call, Refusal> {
        self.check_ranks(rank, size)
            .map_err(Reason::Call)
            .and_then(|()| self.check_tensors(device).map_err(|error| Reason::Tensor(Box::new(error))))
            .and_then(|()| self.describe(size).map_err(Reason::Call))
            .map_err(|reason| Refusal { operation: self.kind.name(), reason })
    }

    fn check_ranks(&self, rank: usize, size: usize) -> Result<(), CommFailure> {
        let Some((argument, got)) = self.kind.peer() else { return Ok(()) };
        if got >= size {
            return Err(CommFailure::Rank { argument, got, size });
        }
        if got == rank && !matches!(self.kind, Kind::Broadcast { .. }) {
            return Err(CommFailure::Itself { argument });
        }
        Ok(())
    }

    fn check_tensors(&self, device: &Device) -> Result<()> {
        let op = self.kind.name();
        for (argument, tensor) in [("x", &self.x), ("y", &self.y)] {
            let Some(tensor) = tensor else { continue };
            if tensor.device() != device {
                let (expected, got) = (device.id(), tensor.device().id());
                return Err(Error::WrongDevice { op, argument, expected, got });
            }
            if !tensor.is_contiguous() {
                let (shape, strides) = (tensor.shape().into(), tensor.strides().into());
                return Err(Error::NotContiguous { op, argument, shape, strides });
            }
        }
        if let (Some(x), Some(y)) = (&self.x, &self.y) {
            if x.dtype() != y.dtype() {
                return Err(Error::DType { op, argument: "y", expected: x.dtype(), got: y.dtype() });
            }
            if x.overlaps(y) {
                return Err(Error::Overlap { op, first: "x", second: "y" });
            }
        }
        Ok(())
    }

    fn describe(&self, size: usize) -> Result<Call, CommFailure> {
        let dtype = self.x.or(self.y).map_or(DType::U8, |tensor| tensor.dtype());
        if let Some(reduction) = self.kind.reduction().filter(|reduction| !reduction.takes(dtype)) {
            return Err(CommFailure::NoReduction { reduction, dtype });
        }
        let place = |tensor: Option<TensorRef<'_>>| tensor.map_or((0, 0), |t| (t.address(), t.len() as u64));
        let (source, target) = (place(self.x.or(self.y)), place(self.y));
        let ranks = size as u64;
        let expect = |argument, expected: Option<u64>, got| match expected {
            Some(expected) if expected == got => Ok(()),
            _ => Err(CommFailure::Count { argument, expected: expected.unwrap_or(u64::MAX), got }),
        };
        let count = match self.kind {
            Kind::AllGather => {
                expect("y", source.1.checked_mul(ranks), target.1)?;
                source.1
            }
            Kind::ReduceScatter(_) => {
                expect("x", target.1.checked_mul(ranks), source.1)?;
                target.1
            }
            Kind::AllToAll => {
                expect("y", Some(source.1), target.1)?;
                if source.1 % ranks != 0 {
                    return Err(CommFailure::Uneven { argument: "x", got: source.1, size });
                }
                source.1 / ranks
            }
            Kind::AllReduce(_) => {
                expect("y", Some(source.1), target.1)?;
                source.1
            }
            Kind::Broadcast { .. } | Kind::Barrier | Kind::Send { .. } | Kind::Receive { .. } => source.1,
        };
        // A message that comes has no elements of its own.
        let source = if matches!(self.kind, Kind::Receive { .. }) { (0, 0) } else { source };
        Ok(Call { kind: self.kind, dtype, count, source, target })
    }
}
