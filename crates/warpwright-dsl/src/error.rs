//! Errors that recording a kernel can meet.
//!
//! Operators cannot return a `Result`. The recorder therefore keeps the first issues with the Rust lines that caused
//! them, goes on with placeholder registers, and [`record`](crate::record) returns everything at the end.

use std::fmt;
use std::panic::Location;

use warpwright_ptx::kernel::KernelError;
use warpwright_ptx::{DType, ScalarType};

/// Why a kernel definition did not become a kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The definition asked for something that cannot be recorded.
    #[error("kernel `{kernel}` cannot be built:{}", listing(.issues))]
    Issues {
        /// Name of the kernel.
        kernel: String,
        /// The first issues in the order in which they were recorded.
        issues: Vec<Issue>,
    },
    /// The recorded module breaks a rule of the verifier.
    #[error("kernel `{kernel}` was recorded but does not verify: {source}")]
    Rejected {
        /// Name of the kernel.
        kernel: String,
        /// The finding of the verifier.
        source: KernelError,
    },
}

fn listing(issues: &[Issue]) -> String {
    issues.iter().map(|i| format!("\n  {i}")).collect()
}

/// One thing that is wrong, and the Rust line that recorded it.
#[derive(Clone, Debug, PartialEq)]
pub struct Issue {
    /// The line.
    pub location: &'static Location<'static>,
    /// The mistake.
    pub kind: IssueKind,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.location.file(), self.location.line(), self.kind)
    }
}

/// The kinds of [`Issue`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum IssueKind {
    /// The name is not a PTX identifier.
    #[error("`{name}` is not a PTX identifier")]
    Name {
        /// The name.
        name: String,
    },
    /// The block is empty or larger than any device allows.
    #[error("a block of {} x {} x {} threads is not possible (1 to 1024, z at most 64)", .dim[0], .dim[1], .dim[2])]
    Block {
        /// The dimensions.
        dim: [u32; 3],
    },
    /// The cluster is no power of two or larger than any device allows.
    #[error("a cluster of {blocks} blocks is not possible; use a power of two up to 16")]
    Cluster {
        /// Blocks of the cluster.
        blocks: u32,
    },
    /// A collective needs whole warps.
    #[error("{what} needs a block of whole warps, the block has {threads} threads")]
    PartialWarp {
        /// The collective.
        what: &'static str,
        /// Threads of the block.
        threads: u32,
    },
    /// An `Elem` argument has no run-time type.
    #[error("argument `{argument}` has no dtype; name it in `KernelSpec::dtypes`")]
    NoDType {
        /// The argument.
        argument: String,
    },
    /// `KernelSpec::dtypes` names an argument that is not an `Elem` pointer of the kernel.
    #[error("`dtypes` names `{argument}`, which is not an `Elem` argument of this kernel")]
    UnknownDType {
        /// The name.
        argument: String,
    },
    /// Arguments of two groups have one name in PTX, such as those at `a.b` and `a_b`.
    #[error("two arguments are the parameter `{parameter}`; rename a field")]
    SameParameter {
        /// The name.
        parameter: String,
    },
    /// A memory type cannot be accessed through a register type.
    #[error("{dtype} memory cannot be accessed through {register} registers")]
    Access {
        /// Type in memory.
        dtype: DType,
        /// Type of the register.
        register: ScalarType,
    },
    /// The instruction has no product of operands of this type.
    #[error("`{instruction}` does not multiply {dtype}")]
    Product {
        /// The instruction.
        instruction: &'static str,
        /// Type of the operands.
        dtype: DType,
    },
    /// The target is older than the instructions for this.
    #[error("{what} needs sm_{needs}, the target is sm_{got}")]
    Target {
        /// The construct, in words.
        what: &'static str,
        /// The first target that has them.
        needs: u32,
        /// The target.
        got: u32,
    },
    /// The number of lanes of a vector access is not a power of two up to 64.
    #[error("a vector access of {width} elements is not possible; use a power of two from 1 to 64")]
    Width {
        /// The number of elements.
        width: u32,
    },
    /// Two values that must have the same shape do not.
    #[error("{what}: the shapes differ ({left} and {right} registers)")]
    Shape {
        /// Which construct.
        what: &'static str,
        /// Registers of the first.
        left: usize,
        /// Registers of the second.
        right: usize,
    },
    /// An index cannot be divided without a remainder.
    #[error("an index whose steps are not multiples of {divisor} cannot be divided exactly")]
    InexactIndex {
        /// The divisor.
        divisor: u64,
    },
    /// A register that a shuffle cannot move.
    #[error("a shuffle cannot move a {register} register")]
    Shuffle {
        /// Its type.
        register: ScalarType,
    },
    /// A constant that must not be zero, or fit a field, does not.
    #[error("{what} of {value} is out of range")]
    Constant {
        /// The constant, in words.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// A combination of at least one value has none.
    #[error("{what}: no values to combine")]
    NoValues {
        /// The combination.
        what: &'static str,
    },
    /// The kernel has outputs but writes nothing.
    #[error("the kernel has output arguments but records no store")]
    NoStore,
    /// The instruction budget is used up, most likely by a host loop that unrolls.
    #[error("more than {limit} instructions: a Rust loop unrolls while recording; use k.fold or k.for_each")]
    Budget {
        /// The limit.
        limit: usize,
    },
}
