//! Rows of a table by their indices, and the gradient of the table.
//!
//! - `y_i = weight[index_i]`
//! - `dweight_v = sum dy_i` over the `i` whose index is `v`, in the order of the `i`; zero where there are none.
//!
//! | tensor | shape |
//! |---|---|
//! | `weight`, `dweight` | `[num_embeddings, dim]` |
//! | `indices` | `[count]`, i32 or i64 |
//! | `y`, `dy` | `[count, dim]` |
//!
//! The meaning is that of `torch.nn.functional.embedding`: the row of `padding_idx` gets no gradient, and with
//! `scale_grad_by_freq` a row's sum is divided by the number of its terms. Forward is `index_select` along the first dimension,
//! and backward `index_add` to zeros.
//!
//! An index that is no row, where PyTorch stops the device, gives a row of NaN; nothing is read. Its gradient goes nowhere.
//!
//! Rows are copied bit by bit. Sums of half types are in f32 and rounded once, and they go in a fixed order: the indices are sorted with a
//! stable radix sort, so that equal ones follow each other in the order of their places, and long runs of equal ones are added up in parts
//! of [`tuning::PART`] that begin at multiples of it. No float is added with an atomic.

mod functions;
pub(crate) mod kernel;
pub mod reference;
pub(crate) mod runs;
pub(crate) mod samples;
mod sort;
pub mod tuning;

use warpwright_dsl::divide::{DivisorArgs, WideDivisorArgs};
use warpwright_dsl::{Elem, In, KernelDef, Out};
use warpwright_ptx::{DType, Target};

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Variant, small};
use crate::tensors::tensors;

pub use functions::*;
use runs::{Places, Runs};

const OP: &str = "embedding";

/// Types of indices.
const INDICES: [DType; 2] = [DType::I64, DType::I32];

/// Rows of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EmbeddingDesc {
    /// Element type of the table.
    pub dtype: DType,
    /// Element type of the indices: i64 or i32.
    pub index: DType,
    /// Rows of the table.
    pub num_embeddings: usize,
    /// Elements of a row.
    pub dim: usize,
    /// Number of indices.
    pub count: usize,
}

/// The gradient of the table of [`EmbeddingDesc`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EmbeddingBackwardDesc {
    /// The forward function.
    pub forward: EmbeddingDesc,
    /// A row that gets no gradient.
    pub padding_idx: Option<usize>,
    /// Whether each sum is divided by the number of its terms.
    pub scale_grad_by_freq: bool,
}

tensors! {
    /// Tensors of [`EmbeddingDesc`].
    pub struct EmbeddingArgs<'a> {
        /// `[num_embeddings, dim]`
        weight: In,
        /// `[count]`
        indices: In,
        /// `[count, dim]`
        y: Out,
    }
}

tensors! {
    /// Tensors of [`EmbeddingBackwardDesc`].
    pub struct EmbeddingBackwardArgs<'a> {
        /// `[count, dim]`
        dy: In,
        /// `[count]`
        indices: In,
        /// `[num_embeddings, dim]`
        dweight: Out,
        /// [`Plan::workspace`]
        workspace: Option<Out>,
    }
}

/// The number of 32-bit words of an index.
pub(crate) const fn words(index: DType) -> u32 {
    (index.bytes() / 4) as u32
}

/// Elements of two tensors of rows of `dim` elements, the second with a row for each index. `tensors` are the names of the first, of the
/// indices and of the second.
pub(crate) fn sizes(
    op: &'static str,
    dtype: DType,
    index: DType,
    dim: usize,
    [(rows_name, rows), (count_name, count)]: [(&'static str, usize); 2],
    [first, indices, second]: [&'static str; 3],
) -> Result<[usize; 2], PlanError> {
    PlanError::check_floats(op, first, dtype)?;
    if !INDICES.contains(&index) {
        return Err(PlanError::DType { op, tensor: indices, got: index, expected: &INDICES });
    }
    for (name, extent) in [(rows_name, rows), ("dim", dim), (count_name, count)] {
        if extent >= 1 << 30 {
            return Err(PlanError::refused(op, name, extent, "below 2^30"));
        }
    }
    let len = |name, rows: usize| {
        let bytes = rows.checked_mul(dim).and_then(|n| n.checked_mul(dtype.bytes()));
        let addressed = bytes.filter(|n| i64::try_from(*n).is_ok());
        addressed.map(|_| rows * dim).ok_or_else(|| {
            let got = format!("[{rows}, {dim}]");
            PlanError::refused(op, name, got, "a tensor that can be addressed")
        })
    };
    Ok([len(first, rows)?, len(second, count)?])
}

impl EmbeddingDesc {
    /// Elements of the table and of the rows that are taken.
    fn check(&self) -> Result<[usize; 2], PlanError> {
        let Self { dtype, index, num_embeddings, dim, count } = *self;
        let rows = [("num_embeddings", num_embeddings), ("count", count)];
        sizes(OP, dtype, index, dim, rows, ["weight", "indices", "y"])
    }
}

/// Where rows are taken from, by which indices, and where they go.
pub(crate) struct Taken {
    pub(crate) x: In<Elem>,
    pub(crate) indices: In<u32>,
    pub(crate) y: Out<Elem>,
}

/// The ways to launch a kernel that takes `count` of `rows` rows of `dim` elements.
pub(crate) fn gathers<D: KernelDef>(
    op: &'static str,
    dtype: DType,
    index: DType,
    [rows, dim, count]: [usize; 3],
    places: &Taken,
    target: Target,
    kernel: impl Fn(u32, kernel::GatherArgs) -> (D, D::Args),
) -> Result<Vec<Variant>, PlanError> {
    let mut variants = Vec::new();
    for width in tuning::widths(dtype, dim) {
        let vectors = count * (dim / width as usize);
        let mut steps = Vec::new();
        if let Some(grid) = plan::cover(op, vectors, tuning::GATHER_THREADS * tuning::UNROLL)? {
            let of_row = (dim / width as usize) as u64;
            let args = kernel::GatherArgs {
                weight: places.x.clone(),
                indices: places.indices.clone(),
                y: places.y.clone(),
                rows: rows as u64,
                words: words(index),
                vectors: vectors as u64,
                of_row: WideDivisorArgs::new(of_row),
                of_row_small: DivisorArgs::new(small(dim / width as usize)),
            };
            let (def, args) = kernel(width, args);
            steps.push(plan::launch(op, &def, args, target, grid)?);
        }
        variants.push(Variant { alignment: tuning::alignment(dtype, width), steps });
    }
    Ok(variants)
}

impl Operation for EmbeddingDesc {
    type Args<'a> = EmbeddingArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = EmbeddingArgs<'a>;
        let [table, taken] = self.check()?;
        let tensors = Args::specs([
            Args::weight.holds(self.dtype, table),
            Args::indices.holds(self.index, self.count),
            Args::y.holds(self.dtype, taken),
        ]);
        let places = Taken { x: Args::weight.arg(), indices: Args::indices.arg(), y: Args::y.arg() };
        let (dtype, sizes) = (self.dtype, [self.num_embeddings, self.dim, self.count]);
        let variants = gathers(OP, dtype, self.index, sizes, &places, target, |width, args| {
            (kernel::Gather { dtype, width }, args)
        })?;
        Ok(Plan::of(OP, Direction::Forward, target, tensors, variants))
    }
}

impl Operation for EmbeddingBackwardDesc {
    type Args<'a> = EmbeddingBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = EmbeddingBackwardArgs<'a>;
        let EmbeddingDesc { dtype, index, num_embeddings, dim, count } = self.forward;
        let [table, taken] = self.forward.check()?;
        let padding_idx = self.padding_idx;
        if let Some(row) = padding_idx.filter(|row| *row >= num_embeddings) {
            let got = format!("{row} of {num_embeddings}");
            return Err(PlanError::refused(OP, "padding_idx", got, "a row of the table"));
        }
        let runs = Runs { op: OP, dtype, index, rows: num_embeddings, dim, count, padding_idx };
        let at = runs.workspace()?;
        let tensors = Args::specs([
            Args::dy.holds(dtype, taken),
            Args::indices.holds(index, count),
            Args::dweight.holds(dtype, table),
            Args::workspace.scratch(dtype.accumulator(), at.elements(dtype)),
        ]);
        let places = Places {
            x: Args::dy.arg(),
            indices: Args::indices.arg(),
            y: Args::dweight.arg(),
            workspace: Args::workspace,
        };
        let mean = u32::from(self.scale_grad_by_freq);
        let variants = runs.variants(
            &places,
            target,
            |width, args| (kernel::Parts { dtype, width }, args),
            |width, args| (kernel::Rows { dtype, width }, kernel::RowArgs { mean, ..args }),
        )?;
        Ok(Plan::of(OP, Direction::Backward, target, tensors, variants))
    }
}

/// Checks that each index is a row.
///
/// # Errors
/// Names the first that is none.
pub fn check_indices(indices: &[i64], num_embeddings: usize) -> Result<(), PlanError> {
    check_rows((OP, "indices"), indices, num_embeddings, "from 0 to below num_embeddings")
}

/// Checks that each index is one of `rows` rows, for an argument of an operation.
pub(crate) fn check_rows(
    (op, argument): (&'static str, &'static str),
    indices: &[i64],
    rows: usize,
    expected: &'static str,
) -> Result<(), PlanError> {
    let fits = |i: i64| usize::try_from(i).is_ok_and(|i| i < rows);
    match indices.iter().position(|i| !fits(*i)) {
        Some(at) => {
            let got = format!("{} at {at}", indices[at]);
            Err(PlanError::refused(op, argument, got, expected))
        }
        None => Ok(()),
    }
}
