//! Every primitive of the library, as data: what the command line lists and what the assembler tests walk through.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use crate::{
    PlanError, activation, attention, batch_norm, cross_entropy, gemm, group_norm, layer_norm,
    local_response_norm, quantize, recurrent, softmax,
};

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
    /// Other names of the field for what it computes, or for a case of it.
    pub fn also(&self) -> &'static [&'static str] {
        match self.op {
            "gemm" => &["matmul"],
            "group_norm" => &["instance_norm"],
            _ => &[],
        }
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

/// What the catalogue asks of a family of primitives.
struct Family {
    name: &'static str,
    entries: fn() -> Vec<Entry>,
    kernels: fn(&Entry, DType, Target) -> Result<Vec<Kernel>, PlanError>,
}

/// The families; a new one adds its row here.
const FAMILIES: &[Family] = &[
    Family { name: "activation", entries: activation::entries, kernels: activation::kernels },
    Family { name: "attention", entries: attention::entries, kernels: attention::kernels },
    Family { name: "batch_norm", entries: batch_norm::entries, kernels: batch_norm::kernels },
    Family { name: "quantize", entries: quantize::entries, kernels: quantize::kernels },
    Family { name: "gemm", entries: gemm::entries, kernels: gemm::kernels },
    Family { name: "group_norm", entries: group_norm::entries, kernels: group_norm::kernels },
    Family { name: "layer_norm", entries: layer_norm::entries, kernels: layer_norm::kernels },
    Family {
        name: "local_response_norm",
        entries: local_response_norm::entries,
        kernels: local_response_norm::kernels,
    },
    Family { name: "recurrent", entries: recurrent::entries, kernels: recurrent::kernels },
    Family { name: "softmax", entries: softmax::entries, kernels: softmax::kernels },
    Family { name: "cross_entropy", entries: cross_entropy::entries, kernels: cross_entropy::kernels },
];

/// The families by name, with their primitives.
pub fn families() -> impl Iterator<Item = (&'static str, Vec<Entry>)> {
    FAMILIES.iter().map(|family| (family.name, (family.entries)()))
}

/// Every primitive, family by family.
pub fn catalogue() -> Vec<Entry> {
    FAMILIES.iter().flat_map(|f| (f.entries)()).collect()
}

/// Every kernel variant that tuning can choose for one primitive.
///
/// # Errors
/// [`PlanError`] if there is no such primitive, if it does not take `dtype`, or if its kernels do not build.
pub fn kernels(
    op: &str,
    direction: Direction,
    dtype: DType,
    target: Target,
) -> Result<Vec<Kernel>, PlanError> {
    for family in FAMILIES {
        for entry in (family.entries)() {
            if entry.op != op || entry.direction != direction {
                continue;
            }
            if !entry.dtypes.contains(&dtype) {
                return Err(PlanError::DType {
                    op: entry.op,
                    tensor: "the tensor",
                    got: dtype,
                    expected: entry.dtypes,
                });
            }
            return (family.kernels)(&entry, dtype, target);
        }
    }
    Err(PlanError::UnknownOperation { name: format!("{op} ({direction})") })
}

/// Every kernel variant of every primitive that is `wanted` and claims `target`, recorded as the iterator advances.
pub fn kernels_for(
    target: Target,
    wanted: impl Fn(&Entry) -> bool + Copy,
) -> impl Iterator<Item = Result<Kernel, PlanError>> {
    FAMILIES.iter().flat_map(move |family| {
        let claimed = move |entry: &Entry| entry.targets.contains(&target) && wanted(entry);
        let claimed = (family.entries)().into_iter().filter(claimed);
        claimed.flat_map(move |entry| {
            entry.dtypes.iter().flat_map(move |&dtype| match (family.kernels)(&entry, dtype, target) {
                Ok(kernels) => kernels.into_iter().map(Ok).collect::<Vec<_>>(),
                Err(e) => vec![Err(e)],
            })
        })
    })
}
