//! Rows by their indices: taken from a tensor, added up to one, and multiplied with those of another.
//!
//! | operation | |
//! |---|---|
//! | gather_rows | `y_i = f_i x[index_i]` |
//! | scatter_rows | `y_v = base_v + sum f_i x_i` over the `i` whose index is `v`, in their order |
//! | row_dots | `y_i = <a_i, b[index_i]>` |
//!
//! Factors `f` and `base` may be left out. Without factors gather_rows is `index_select` along the first dimension and scatter_rows `index_add`, in
//! PyTorch's words. They are each other's gradients, with the same factors, and row_dots gives those of the factors: of `x` gathered it multiplies
//! `dy` with `x`, of `x` scattered `x` with `dy`.
//!
//! | tensor | shape |
//! |---|---|
//! | `x` of gather_rows, `b` | `[rows, dim]` |
//! | `x` of scatter_rows, `a` | `[count, dim]` |
//! | `index` | `[count]`, i32 or i64 |
//! | `factors`, `y` of row_dots | `[count]`, of the type of the rows or of the one that they are summed in |
//!
//! Without factors rows are copied bit by bit. Sums of half types are in f32 and rounded once, in the order of the indices' places: they are sorted as
//! for the gradient of an [embedding], whose kernels these are. No float is added with an atomic. An index that is no
//! row gives NaN where a row is read, and is passed over where one is added to.

mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;

use warpwright_ptx::{DType, Target};

use crate::PlanError;
use crate::catalogue::Direction;
use crate::embedding::runs::{Places, Runs};
use crate::embedding::{self, Taken};
use crate::plan::{self, Operation, Plan, Variant};
use crate::tensors::tensors;

pub use functions::{ScatterOptions, gather_rows, row_dots, scatter_rows};

const GATHER: &str = "gather_rows";
const SCATTER: &str = "scatter_rows";
const DOTS: &str = "row_dots";

/// Rows by their indices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IndexedRows {
    /// Element type of the rows.
    pub dtype: DType,
    /// Element type of the indices: i64 or i32.
    pub index: DType,
    /// Rows that indices name.
    pub rows: usize,
    /// Elements of a row.
    pub dim: usize,
    /// Number of indices.
    pub count: usize,
}

/// Rows of a tensor, each times a factor if there are factors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GatherRowsDesc {
    /// The rows.
    pub of: IndexedRows,
    /// Element type of the factors: that of the rows or their accumulator.
    pub factors: Option<DType>,
}

/// Sums of rows, each times a factor if there are factors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScatterRowsDesc {
    /// The rows.
    pub of: IndexedRows,
    /// Element type of the factors: that of the rows or their accumulator.
    pub factors: Option<DType>,
    /// Whether the sums begin with the rows of another tensor.
    pub base: bool,
}

/// Products of rows of two tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowDotsDesc {
    /// The rows.
    pub of: IndexedRows,
    /// Element type of the products: that of the rows or their accumulator.
    pub y_dtype: DType,
}

tensors! {
    /// Tensors of [`GatherRowsDesc`].
    pub struct GatherRowsArgs<'a> {
        /// `[rows, dim]`
        x: In,
        /// `[count]`
        index: In,
        /// `[count]`
        factors: Option<In>,
        /// `[count, dim]`
        y: Out,
    }
}

tensors! {
    /// Tensors of [`ScatterRowsDesc`].
    pub struct ScatterRowsArgs<'a> {
        /// `[count, dim]`
        x: In,
        /// `[count]`
        index: In,
        /// `[count]`
        factors: Option<In>,
        /// `[rows, dim]`
        base: Option<In>,
        /// `[rows, dim]`
        y: Out,
        /// [`Plan::workspace`]
        workspace: Option<Out>,
    }
}

tensors! {
    /// Tensors of [`RowDotsDesc`].
    pub struct RowDotsArgs<'a> {
        /// `[count, dim]`
        a: In,
        /// `[rows, dim]`
        b: In,
        /// `[count]`
        index: In,
        /// `[count]`
        y: Out,
    }
}

impl IndexedRows {
    /// Elements of the tensor with `rows` rows, and of that with a row for each index, whose names these are.
    fn sizes(
        &self,
        op: &'static str,
        [of_rows, of_places]: [&'static str; 2],
    ) -> Result<[usize; 2], PlanError> {
        let Self { dtype, index, rows, dim, count } = *self;
        let extents = [("rows", rows), ("count", count)];
        embedding::sizes(op, dtype, index, dim, extents, [of_rows, "index", of_places])
    }
}

impl Operation for GatherRowsDesc {
    type Args<'a> = GatherRowsArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = GatherRowsArgs<'a>;
        let IndexedRows { dtype, index, rows, dim, count } = self.of;
        let [all, taken] = self.of.sizes(GATHER, ["x", "y"])?;
        self.factors.map_or(Ok(()), |got| PlanError::check_own_or_wide(GATHER, "factors", got, dtype))?;
        let tensors = Args::specs([
            Args::x.holds(dtype, all),
            Args::index.holds(index, count),
            Args::factors.holds(self.factors.unwrap_or(dtype), count).optional(self.factors.is_some()),
            Args::y.holds(dtype, taken),
        ]);
        let places = Taken { x: Args::x.arg(), indices: Args::index.arg(), y: Args::y.arg() };
        let sizes = [rows, dim, count];
        let variants = match self.factors {
            None => embedding::gathers(GATHER, dtype, index, sizes, &places, target, |width, args| {
                (embedding::kernel::Gather { dtype, width }, args)
            }),
            Some(factors) => embedding::gathers(GATHER, dtype, index, sizes, &places, target, |width, of| {
                let args = kernel::GatherScaledArgs { of, factors: Args::factors.arg() };
                (kernel::GatherScaled { dtype, factors, width }, args)
            }),
        };
        Ok(Plan::of(GATHER, Direction::Forward, target, tensors, variants?))
    }
}

impl Operation for ScatterRowsDesc {
    type Args<'a> = ScatterRowsArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = ScatterRowsArgs<'a>;
        let IndexedRows { dtype, index, rows, dim, count } = self.of;
        let [all, given] = self.of.sizes(SCATTER, ["y", "x"])?;
        self.factors.map_or(Ok(()), |got| PlanError::check_own_or_wide(SCATTER, "factors", got, dtype))?;
        let runs = Runs { op: SCATTER, dtype, index, rows, dim, count, padding_idx: None };
        let tensors = Args::specs([
            Args::x.holds(dtype, given),
            Args::index.holds(index, count),
            Args::factors.holds(self.factors.unwrap_or(dtype), count).optional(self.factors.is_some()),
            Args::base.holds(dtype, all).optional(self.base),
            Args::y.holds(dtype, all).in_place(),
            Args::workspace.scratch(dtype.accumulator(), runs.workspace()?.elements(dtype)),
        ]);
        let places = Places {
            x: Args::x.arg(),
            indices: Args::index.arg(),
            y: Args::y.arg(),
            workspace: Args::workspace,
        };
        let (factors, base) = (self.factors, self.base);
        let sums = |width, of| {
            let args = kernel::ScatterArgs { of, factors: Args::factors.arg(), base: Args::base.arg() };
            (kernel::Scatter { dtype, factors, base, width }, args)
        };
        let variants: Vec<Variant> = match factors {
            None => {
                let parts = |width, args| (embedding::kernel::Parts { dtype, width }, args);
                runs.variants(&places, target, parts, sums)?
            }
            Some(factors) => {
                let parts = |width, of| {
                    let args = kernel::ScaledPartArgs { of, factors: Args::factors.arg() };
                    (kernel::ScaledParts { dtype, factors, width }, args)
                };
                runs.variants(&places, target, parts, sums)?
            }
        };
        Ok(Plan::of(SCATTER, Direction::Forward, target, tensors, variants))
    }
}

impl Operation for RowDotsDesc {
    type Args<'a> = RowDotsArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = RowDotsArgs<'a>;
        let IndexedRows { dtype, index, rows, dim, count } = self.of;
        let [all, taken] = self.of.sizes(DOTS, ["b", "a"])?;
        PlanError::check_own_or_wide(DOTS, "y", self.y_dtype, dtype)?;
        let tensors = Args::specs([
            Args::a.holds(dtype, taken),
            Args::b.holds(dtype, all),
            Args::index.holds(index, count),
            Args::y.holds(self.y_dtype, count),
        ]);
        let mut variants = Vec::new();
        for width in tuning::widths(dtype, dim) {
            let mut steps = Vec::new();
            if let Some(grid) = plan::cover(DOTS, count, tuning::DOT_THREADS / warpwright_dsl::WARP)? {
                let args = kernel::DotArgs {
                    a: Args::a.arg(),
                    b: Args::b.arg(),
                    index: Args::index.arg(),
                    y: Args::y.arg(),
                    words: embedding::words(index),
                    rows: rows as u64,
                    count: count as u64,
                    dim: dim as u64,
                };
                let def = kernel::Dots { dtype, y_dtype: self.y_dtype, width };
                steps.push(plan::launch(DOTS, &def, args, target, grid)?);
            }
            variants.push(Variant { alignment: tuning::alignment(dtype, width), steps });
        }
        Ok(Plan::of(DOTS, Direction::Forward, target, tensors, variants))
    }
}

/// Checks that each index of an operation is one of `rows` rows.
///
/// # Errors
/// Names the first that is none.
pub fn check_index(op: &'static str, index: &[i64], rows: usize) -> Result<(), PlanError> {
    embedding::check_rows((op, "index"), index, rows, "from 0 to below the number of rows")
}
