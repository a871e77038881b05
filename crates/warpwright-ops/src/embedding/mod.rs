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
mod kernel;
pub mod reference;
pub(crate) mod samples;
mod sort;
pub mod tuning;

use warpwright_dsl::divide::{DivisorArgs, WideDivisorArgs};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, Variant, small};
use crate::tensors::tensors;

pub use functions::*;

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
const fn words(index: DType) -> u32 {
    (index.bytes() / 4) as u32
}

impl EmbeddingDesc {
    /// Elements of the table and of the rows that are taken.
    fn check(&self) -> Result<[usize; 2], PlanError> {
        PlanError::check_floats(OP, "weight", self.dtype)?;
        if !INDICES.contains(&self.index) {
            let (got, expected) = (self.index, &INDICES);
            return Err(PlanError::DType { op: OP, tensor: "indices", got, expected });
        }
        for (name, extent) in
            [("num_embeddings", self.num_embeddings), ("dim", self.dim), ("count", self.count)]
        {
            if extent >= 1 << 30 {
                return Err(PlanError::refused(OP, name, extent, "below 2^30"));
            }
        }
        let len = |name, rows: usize| {
            let bytes = rows.checked_mul(self.dim).and_then(|n| n.checked_mul(self.dtype.bytes()));
            let addressed = bytes.filter(|n| i64::try_from(*n).is_ok());
            addressed.map(|_| rows * self.dim).ok_or_else(|| {
                let got = format!("[{rows}, {}]", self.dim);
                PlanError::refused(OP, name, got, "a tensor that can be addressed")
            })
        };
        Ok([len("weight", self.num_embeddings)?, len("y", self.count)?])
    }
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
        let mut variants = Vec::new();
        for width in tuning::widths(self.dtype, self.dim) {
            let vectors = taken / width as usize;
            let mut steps = Vec::new();
            if let Some(grid) = plan::cover(OP, vectors, tuning::GATHER_THREADS * tuning::UNROLL)? {
                let of_row = (self.dim / width as usize) as u64;
                let args = kernel::GatherArgs {
                    weight: Args::weight.arg(),
                    indices: Args::indices.arg(),
                    y: Args::y.arg(),
                    rows: self.num_embeddings as u64,
                    words: words(self.index),
                    vectors: vectors as u64,
                    of_row: WideDivisorArgs::new(of_row),
                    of_row_small: DivisorArgs::new(small(self.dim / width as usize)),
                };
                steps.push(plan::launch(
                    OP,
                    &kernel::Gather { dtype: self.dtype, width },
                    args,
                    target,
                    grid,
                )?);
            }
            variants.push(Variant { alignment: tuning::alignment(self.dtype, width), steps });
        }
        Ok(Plan::of(OP, Direction::Forward, target, tensors, variants))
    }
}

/// Where what backward keeps lies in its workspace, in 32-bit words.
#[derive(Clone, Copy, Debug)]
struct Workspace {
    /// Sorted rows and places, of both sides of a pass.
    keys: [u64; 2],
    places: [u64; 2],
    /// Counts of the digits of each tile.
    counts: u64,
    /// Where the places of each row begin.
    starts: u64,
    /// Sums of whole parts.
    partials: u64,
    words: usize,
}

impl EmbeddingBackwardDesc {
    fn workspace(&self) -> Result<Workspace, PlanError> {
        let EmbeddingDesc { dtype, num_embeddings, dim, count, .. } = self.forward;
        let mut end = 0usize;
        let mut take = |words: Option<usize>| {
            let first = end;
            // Sums are loaded in vectors.
            let next = words.and_then(|words| first.checked_add(words)?.checked_next_multiple_of(4));
            end = next.filter(|n| i64::try_from(*n).is_ok_and(|n| n < i64::MAX / 8)).ok_or_else(|| {
                let got = format!("[{num_embeddings}, {dim}] and {count} indices");
                PlanError::refused(OP, "workspace", got, "a workspace that can be addressed")
            })?;
            Ok::<_, PlanError>(first as u64 * 4)
        };
        let sums = dim.checked_mul(count / tuning::PART as usize);
        let sums = sums.and_then(|n| n.checked_mul(dtype.accumulator().bytes() / 4));
        let tiles = tuning::tiles(count).0;
        let keys = [take(Some(count))?, take(Some(count))?];
        let places = [take(Some(count))?, take(Some(count))?];
        let counts = take(tiles.checked_mul(tuning::DIGITS as usize))?;
        let starts = take(num_embeddings.checked_add(1))?;
        let partials = take(sums)?;
        Ok(Workspace { keys, places, counts, starts, partials, words: end })
    }

    /// The launches that sort the indices, and where the sorted ones are.
    fn sort(&self, at: &Workspace, target: Target) -> Result<(Vec<LaunchStep>, usize), PlanError> {
        type Args<'a> = EmbeddingBackwardArgs<'a>;
        let EmbeddingDesc { index, num_embeddings, count, .. } = self.forward;
        let (tiles, tile) = tuning::tiles(count);
        let mut steps = Vec::new();
        if count == 0 {
            return Ok((steps, 0));
        }
        let passes = tuning::passes(num_embeddings);
        for pass in 0..passes {
            let (from, to) = (pass as usize % 2, (pass as usize + 1) % 2);
            let source = sort::SourceArgs {
                indices: Args::indices.arg(),
                words: words(index),
                rows: num_embeddings as u64,
                padding_idx: self.padding_idx.map_or(-1, |row| row as i64),
                keys: Args::workspace.written_at(at.keys[from]),
                places: Args::workspace.written_at(at.places[from]),
                count: small(count),
                tile,
                shift: pass * tuning::DIGIT_BITS,
            };
            let first = pass == 0;
            let grid = [small(tiles), 1, 1];
            let args = sort::CountArgs { source: source.clone(), counts: Args::workspace.arg_at(at.counts) };
            steps.push(plan::launch(OP, &sort::Count { first }, args, target, grid)?);
            let args = sort::ScatterArgs {
                source,
                counts: Args::workspace.written_at(at.counts),
                tiles: small(tiles),
                keys: Args::workspace.arg_at(at.keys[to]),
                places: Args::workspace.arg_at(at.places[to]),
            };
            steps.push(plan::launch(OP, &sort::Scatter { first }, args, target, grid)?);
        }
        Ok((steps, passes as usize % 2))
    }
}

impl Operation for EmbeddingBackwardDesc {
    type Args<'a> = EmbeddingBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = EmbeddingBackwardArgs<'a>;
        let EmbeddingDesc { dtype, index, num_embeddings, dim, count } = self.forward;
        let [table, taken] = self.forward.check()?;
        if let Some(row) = self.padding_idx.filter(|row| *row >= num_embeddings) {
            let got = format!("{row} of {num_embeddings}");
            return Err(PlanError::refused(OP, "padding_idx", got, "a row of the table"));
        }
        let at = self.workspace()?;
        let tensors = Args::specs([
            Args::dy.holds(dtype, taken),
            Args::indices.holds(index, count),
            Args::dweight.holds(dtype, table),
            Args::workspace.scratch(dtype.accumulator(), at.words * 4 / dtype.accumulator().bytes()),
        ]);
        let (sorting, sorted) = self.sort(&at, target)?;
        let mut variants = Vec::new();
        for width in tuning::widths(dtype, dim) {
            let vectors = dim / width as usize;
            let sums = kernel::SumArgs {
                dy: Args::dy.arg(),
                places: Args::workspace.written_at(at.places[sorted]),
                vectors: small(vectors),
                columns: DivisorArgs::new(small(vectors.div_ceil(tuning::LANES as usize))),
            };
            let columns = vectors.div_ceil(tuning::LANES as usize);
            let mut steps = Vec::new();
            let rows_grid = plan::cover(OP, num_embeddings.saturating_mul(columns), tuning::SUM_WARPS)?;
            if let (Some(grid), true) = (rows_grid, dim > 0) {
                tuning::check_warps(OP, num_embeddings.saturating_mul(columns))?;
                steps.clone_from(&sorting);
                let args = sort::StartsArgs {
                    keys: Args::workspace.written_at(at.keys[sorted]),
                    count: small(count),
                    rows: small(num_embeddings),
                    starts: Args::workspace.arg_at(at.starts),
                };
                let starts = plan::cover(OP, num_embeddings + 1, tuning::STARTS_THREADS)?;
                if let Some(grid) = starts {
                    steps.push(plan::launch(OP, &sort::Starts, args, target, grid)?);
                }
                let parts = count / tuning::PART as usize;
                if let Some(grid) = plan::cover(OP, parts.saturating_mul(columns), tuning::SUM_WARPS)? {
                    tuning::check_warps(OP, parts.saturating_mul(columns))?;
                    let args = kernel::PartArgs {
                        sums: sums.clone(),
                        keys: Args::workspace.written_at(at.keys[sorted]),
                        rows: small(num_embeddings),
                        parts: small(parts),
                        partials: Args::workspace.arg_at(at.partials),
                    };
                    steps.push(plan::launch(OP, &kernel::Parts { dtype, width }, args, target, grid)?);
                }
                let args = kernel::RowArgs {
                    sums,
                    starts: Args::workspace.written_at(at.starts),
                    partials: Args::workspace.written_at(at.partials),
                    rows: small(num_embeddings),
                    mean: u32::from(self.scale_grad_by_freq),
                    dweight: Args::dweight.arg(),
                };
                steps.push(plan::launch(OP, &kernel::Rows { dtype, width }, args, target, grid)?);
            }
            variants.push(Variant { alignment: tuning::alignment(dtype, width), steps });
        }
        Ok(Plan::of(OP, Direction::Backward, target, tensors, variants))
    }
}

/// Checks that each index is a row.
///
/// # Errors
/// Names the first that is none.
pub fn check_indices(indices: &[i64], num_embeddings: usize) -> Result<(), PlanError> {
    let fits = |i: i64| usize::try_from(i).is_ok_and(|i| i < num_embeddings);
    match indices.iter().position(|i| !fits(*i)) {
        Some(at) => {
            let got = format!("{} at {at}", indices[at]);
            Err(PlanError::refused(OP, "indices", got, "from 0 to below num_embeddings"))
        }
        None => Ok(()),
    }
}
