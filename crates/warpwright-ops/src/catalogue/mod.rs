//! Every primitive of the library, as data: what the command line lists and what the assembler tests walk through.

mod options;
mod request;

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

pub use options::{
    BiasCount, Broadcast, Extents, FloatDType, IndexDType, Nonlinearity, OPTIONS, OpOptions, OptionSpec,
    Taken, Transpose,
};
pub(crate) use request::{Asked, distinct};
pub use request::{
    Planned, Request, RequestError, entry, forget_kernels, kernels, kernels_of, options_of, plan_named,
};

use crate::PlanError;

/// Which way an operation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Inputs to outputs.
    Forward,
    /// Gradients of the outputs to gradients of the inputs.
    Backward,
}

impl Direction {
    /// `forward` or `backward`
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// One primitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub op: &'static str,
    /// Which way it goes.
    pub direction: Direction,
    /// Element types.
    pub dtypes: &'static [DType],
    /// Architectures that it is assembled for in the tests; it runs on every later one too.
    pub targets: &'static [Target],
}

impl Entry {
    /// Both directions of a primitive of all floating-point types for all [`TARGETS`].
    pub(crate) fn both(op: &'static str) -> [Self; 2] {
        let entry = |direction| Self { op, direction, dtypes: &DType::FLOATS, targets: &TARGETS };
        [Direction::Forward, Direction::Backward].map(entry)
    }

    /// Other names of the field for what it computes, or for a case of it.
    pub fn aliases(&self) -> impl Iterator<Item = &'static str> {
        let op = self.op;
        let aliases = families().flat_map(|family| family.aliases);
        aliases.filter(move |(of, _)| *of == op).map(|(_, alias)| *alias)
    }
}

/// The architectures that every primitive without special needs is assembled for.
pub const TARGETS: [Target; 7] = [
    Target::sm(75),
    Target::sm(80),
    Target::sm(86),
    Target::sm(89),
    Target::sm(90),
    Target::sm(100),
    Target::sm(120),
];

/// A family of primitives, as its `samples.rs` says it.
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Other names for some of its primitives.
    pub(crate) aliases: &'static [(&'static str, &'static str)],
    pub(crate) entries: fn() -> Vec<Entry>,
    /// Plans the primitive that is asked for.
    pub(crate) plan: fn(&Asked<'_>) -> Result<Planned, PlanError>,
    /// Every kernel that a plan of the entry can hold.
    pub(crate) kernels: fn(&Entry, DType, Target) -> Result<Vec<Kernel>, PlanError>,
}

impl Family {
    /// Its primitives.
    pub fn entries(&self) -> Vec<Entry> {
        (self.entries)()
    }
}

/// The families, each with its primitives.
pub fn families() -> impl Iterator<Item = &'static Family> {
    crate::FAMILIES.iter().copied()
}

/// Every primitive, family by family.
pub fn catalogue() -> Vec<Entry> {
    families().flat_map(Family::entries).collect()
}

/// Every kernel variant of every primitive that is `wanted` and claims `target`, recorded as the iterator advances.
pub fn kernels_for(
    target: Target,
    wanted: impl Fn(&Entry) -> bool + Copy,
) -> impl Iterator<Item = Result<Kernel, PlanError>> {
    families().flat_map(move |family| {
        let claimed = move |entry: &Entry| entry.targets.contains(&target) && wanted(entry);
        let claimed = family.entries().into_iter().filter(claimed);
        claimed.flat_map(move |entry| {
            entry.dtypes.iter().flat_map(move |&dtype| match (family.kernels)(&entry, dtype, target) {
                Ok(kernels) => kernels.into_iter().map(Ok).collect::<Vec<_>>(),
                Err(e) => vec![Err(e)],
            })
        })
    })
}
