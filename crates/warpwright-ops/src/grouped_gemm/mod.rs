//! Products of groups of rows, as mixtures of experts and their gradients have them.
//!
//! | grouping | `a` | `b` | `y` |
//! |---|---|---|---|
//! | [`Grouping::M`] | `[m, k]` | `[groups, k, n]`, or `[groups, n, k]` if it is transposed | `[m, n]`: row `i` is row `i` of `a` times the matrix of its group |
//! | [`Grouping::K`] | `[k, m]` | `[k, n]` | `[groups, m, n]`: the transposed rows of `a` of a group times those of `b` |
//!
//! Matrices are row-major, and their rows may lie further apart than they are long. `ends` is `[groups]`, i32, on the device: for each group the
//! row behind its last, where the next begins. Groups may be empty and have any size, nothing is padded. Rows of a `y` behind the last group, and
//! the `y` of an empty group, are zeros.
//!
//! Kernels follow no number of `ends` out of a tensor: it is cut to the rows that there are, and a group that would end before it
//! begins is empty. The next one begins where that one began with [`Grouping::M`], and at the smaller number with [`Grouping::K`].
//! [`check_ends`] finds such numbers on the host.
//!
//! Sums are kept in f32. Their order depends on the shapes and the target alone, and not on where groups end. Any size and alignment is
//! computed; tensor cores are used for 16-bit types on sm_90 where rows begin at multiples of 16 bytes.
//!
//! Convention: `torch.nn.functional.grouped_mm` and its `offs`; DeepGEMM has the names of the groupings.

mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
mod simt;
pub mod tuning;

use warpwright_dsl::{Elem, In, KernelArgs, Major, PanelTile, TensorMapArg};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::PlanError;
use crate::catalogue::Direction;
use crate::gemm::engine::{self, OrderArgs, Store, WorkArgs};
use crate::gemm::epilogue::ResultArgs;
use crate::gemm::groups::GroupArgs;
use crate::gemm::tuning::PersistentConfig;
use crate::gemm::{Lengths, MAX_BOX_STRIDE, MAX_SIDE, Matrices, WIDE, plain};
use crate::plan::{self, Operation, Plan, Variant, small};
use crate::tensors::tensors;

pub use crate::gemm::groups::Grouping;
pub use functions::{grouped_matmul, grouped_matmul_k};
use kernel::{GroupedArgs, GroupedGemm};

/// The types that there are.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Products of groups of rows; see the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupedGemmDesc {
    /// Type of the elements: f32, f16 or bf16.
    pub dtype: DType,
    /// The dimension that is split into groups.
    pub grouping: Grouping,
    /// Groups.
    pub groups: usize,
    /// Rows of a result; with [`Grouping::M`] those of all groups.
    pub m: usize,
    /// Columns of a result.
    pub n: usize,
    /// The common dimension; with [`Grouping::K`] that of all groups.
    pub k: usize,
    /// Whether matrices of `b` are `[n, k]`, as the weight of a linear layer; not with [`Grouping::K`].
    pub transpose_b: bool,
    /// Elements from one row of `a` to the next.
    pub lda: usize,
    /// Elements from one row of a `b` to the next.
    pub ldb: usize,
    /// Elements from one row of a `y` to the next.
    pub ldy: usize,
}

impl GroupedGemmDesc {
    /// Products of matrices without gaps, of groups of the rows of `a`.
    pub const fn new(dtype: DType, groups: usize, [m, n, k]: [usize; 3], transpose_b: bool) -> Self {
        let ldb = if transpose_b { k } else { n };
        Self { dtype, grouping: Grouping::M, groups, m, n, k, transpose_b, lda: k, ldb, ldy: n }
    }

    /// The same of groups of the common dimension.
    pub const fn new_k(dtype: DType, groups: usize, [m, n, k]: [usize; 3]) -> Self {
        Self { grouping: Grouping::K, lda: m, ..Self::new(dtype, groups, [m, n, k], false) }
    }

    /// The name in the catalogue.
    pub(crate) const fn op(&self) -> &'static str {
        op(self.grouping)
    }

    /// How `a` and `b` are stored.
    const fn major(&self) -> (Major, Major) {
        match self.grouping {
            Grouping::M if self.transpose_b => (Major::K, Major::K),
            Grouping::M => (Major::K, Major::Mn),
            Grouping::K => (Major::Mn, Major::Mn),
        }
    }

    /// Rows of all groups.
    const fn rows(&self) -> usize {
        match self.grouping {
            Grouping::M => self.m,
            Grouping::K => self.k,
        }
    }

    /// Elements from one matrix of `b` and of `y` to the next; 0 if there is one.
    const fn strides(&self) -> (usize, usize) {
        match self.grouping {
            Grouping::M => (self.ldb.saturating_mul(if self.transpose_b { self.n } else { self.k }), 0),
            Grouping::K => (0, self.ldy.saturating_mul(self.m)),
        }
    }
}

/// The operation with a grouping.
pub(crate) const fn op(grouping: Grouping) -> &'static str {
    match grouping {
        Grouping::M => "grouped_gemm",
        Grouping::K => "k_grouped_gemm",
    }
}

/// Checks where groups of `rows` rows end: no number may be less than the one before it, or more than there are rows.
///
/// # Errors
/// Names the first number that does not fit.
pub fn check_ends(name: &'static str, ends: &[i32], rows: usize) -> Result<(), PlanError> {
    let mut before = 0;
    for (index, &end) in ends.iter().enumerate() {
        let refused =
            |expected| Err(PlanError::refused(op(Grouping::M), name, format!("{end} at {index}"), expected));
        if end < before {
            return refused("numbers from 0 on that do not decrease");
        }
        if usize::try_from(end).is_ok_and(|end| end > rows) {
            return refused("at most the rows of the tensor");
        }
        before = end;
    }
    Ok(())
}

tensors! {
    /// Tensors of [`GroupedGemmDesc`]. Matrices have the elements from the first to the last that is used.
    pub struct GroupedGemmArgs<'a> {
        /// The left factors.
        a: In,
        /// The right factors.
        b: In,
        /// `[groups]`, i32: the row behind the last of each group.
        ends: In,
        /// The results.
        y: Out,
    }
}

impl GroupedGemmDesc {
    fn refused(&self, parameter: &'static str, got: impl ToString, expected: &'static str) -> PlanError {
        PlanError::refused(self.op(), parameter, got, expected)
    }

    fn check(&self) -> Result<Lengths, PlanError> {
        if !DTYPES.contains(&self.dtype) {
            let (op, got, expected) = (self.op(), self.dtype, &DTYPES);
            return Err(PlanError::DType { op, tensor: "a", got, expected });
        }
        if self.grouping == Grouping::K && self.transpose_b {
            return Err(self.refused("transpose_b", true, "false where groups are of the common dimension"));
        }
        let sides = [("m", self.m), ("n", self.n), ("k", self.k), ("groups", self.groups)];
        for (name, side) in sides {
            if side >= MAX_SIDE {
                return Err(self.refused(name, side, "less than 2^31 - 1"));
            }
        }
        let length = |name, leading: usize, [count, rows, cols]: [usize; 3]| {
            let (op, stride, size) = (self.op(), rows.saturating_mul(leading), self.dtype.bytes());
            Matrices { op, leading: (name, leading), sides: [rows, cols], count, stride, size }.len()
        };
        let Self { groups, m, n, k, .. } = *self;
        let (a, b, y) = match self.grouping {
            Grouping::M if self.transpose_b => ([1, m, k], [groups, n, k], [1, m, n]),
            Grouping::M => ([1, m, k], [groups, k, n], [1, m, n]),
            Grouping::K => ([1, k, m], [1, k, n], [groups, m, n]),
        };
        Ok(Lengths {
            a: length("lda", self.lda, a)?,
            b: length("ldb", self.ldb, b)?,
            y: length("ldy", self.ldy, y)?,
        })
    }

    /// Whether tensor copies can reach rows that lie so many elements apart.
    fn is_reached(&self, leading: usize, stride: usize) -> bool {
        let bytes = |elements: usize| elements.saturating_mul(self.dtype.bytes());
        bytes(leading).is_multiple_of(WIDE as usize) && bytes(leading).max(bytes(stride)) < MAX_BOX_STRIDE
    }

    /// Whether tensor copies can bring `a` and `b` where both begin at multiples of 16 bytes.
    fn has_boxes(&self, target: Target) -> bool {
        let wide = target.sm == 90 && self.dtype.bytes() == 2 && self.k > 0 && self.groups > 0;
        wide && self.is_reached(self.lda, 0) && self.is_reached(self.ldb, self.strides().0)
    }

    /// The plan in which aligned tensors are multiplied by the kernel of `config`, one of [`tuning::configs`].
    ///
    /// # Errors
    /// As [`plan`](Operation::plan); and if the kernel's copies cannot reach the tensors.
    pub fn plan_with(&self, target: Target, config: PersistentConfig) -> Result<Plan<Self>, PlanError> {
        if !self.has_boxes(target) {
            let expected = "16-bit elements, on sm_90, with rows that begin at multiples of 16 bytes";
            return Err(self.refused("dtype", self.dtype, expected));
        }
        if config.cluster != 1 {
            return Err(self.refused("config", config.name(), "one without clusters"));
        }
        self.plan_choosing(target, Some(config))
    }

    fn plan_choosing(
        &self,
        target: Target,
        config: Option<PersistentConfig>,
    ) -> Result<Plan<Self>, PlanError> {
        let lengths = self.check()?;
        let mut variants = Vec::new();
        let work = lengths.y > 0;
        if work && self.has_boxes(target) {
            let config = config.unwrap_or_else(|| tuning::choose(target, self));
            variants.push(Variant { alignment: WIDE, steps: vec![self.boxed(target, config)?] });
        }
        let steps = if work { vec![self.plain(target)?] } else { Vec::new() };
        variants.push(Variant { alignment: 1, steps });
        let tensors = GroupedGemmArgs::specs([
            GroupedGemmArgs::a.holds(self.dtype, lengths.a),
            GroupedGemmArgs::b.holds(self.dtype, lengths.b),
            GroupedGemmArgs::ends.holds(DType::I32, self.groups),
            GroupedGemmArgs::y.holds(self.dtype, lengths.y),
        ]);
        Ok(Plan::of(self.op(), Direction::Forward, target, tensors, variants))
    }

    fn group_args(&self) -> GroupArgs {
        GroupArgs { ends: GroupedGemmArgs::ends.arg(), groups: small(self.groups), rows: small(self.rows()) }
    }

    /// Tiles of `rows` x `cols` at most.
    fn tiles(&self, (rows, cols): (usize, usize)) -> Result<u32, PlanError> {
        let down = match self.grouping {
            // Each group may end within a tile, and rows of none are one more.
            Grouping::M => (self.m / rows).saturating_add(self.groups + 1),
            Grouping::K => self.m.div_ceil(rows).saturating_mul(self.groups),
        };
        let tiles = down.saturating_mul(self.n.div_ceil(cols));
        Ok(plan::cover(self.op(), tiles, 1)?.map_or(0, |grid| grid[0]))
    }

    /// The launch with tensor copies.
    fn boxed(&self, target: Target, config: PersistentConfig) -> Result<LaunchStep, PlanError> {
        let bytes = |elements: usize| elements as u64 * self.dtype.bytes() as u64;
        let (stride_b, stride_y) = self.strides();
        let store = match self.grouping {
            _ if !(self.is_reached(self.ldy, stride_y) && engine::ends_whole(self.n, self.dtype)) => {
                Store::Rows
            }
            Grouping::M => Store::Whole,
            Grouping::K => Store::Panels,
        };
        let kernel =
            GroupedGemm { dtype: self.dtype, grouping: self.grouping, b: self.major().1, config, store };
        let blocks = kernel.blocks();
        let matrices =
            |stride: usize| if stride > 0 { (self.groups as u64, bytes(stride)) } else { (1, WIDE) };
        let map = |operand: &In<Elem>, tile: PanelTile, outer: usize, leading: usize, further| {
            TensorMapArg::over(operand, tile.map((outer as u64, self.k as u64), bytes(leading), &[further]))
        };
        let to = ResultArgs::new(In::address(0), In::address(0), GroupedGemmArgs::y.arg());
        let sizes = (self.m as u64, self.n as u64);
        // The scheduler of groups of rows counts its tiles itself.
        let tiles = self.tiles((config.rows as usize, config.cols as usize))?;
        let order = config.order(self.op(), [self.m, self.n, 1])?;
        let order = OrderArgs { tiles, ..order };
        let grid = config.blocks(target, &order);
        let values = GroupedArgs {
            work: WorkArgs {
                a: map(&GroupedGemmArgs::a.arg(), blocks.slices.0, self.m, self.lda, (1, WIDE)),
                b: map(&GroupedGemmArgs::b.arg(), blocks.slices.1, self.n, self.ldb, matrices(stride_b)),
                y_boxes: blocks.boxes_of_results(&to.y, sizes, bytes(self.ldy), matrices(stride_y)),
                to,
                m: small(self.m),
                n: small(self.n),
                steps: small(self.k).div_ceil(blocks.slices.0.depth),
                order,
                ldy: self.ldy as u64,
                stride_y: stride_y as u64,
                batch_a: 0,
                batch_b: u32::from(stride_b > 0),
            },
            groups: self.group_args(),
        }
        .values();
        blocks.launch(self.op(), target, &kernel, grid, values)
    }

    /// The launch that any target and alignment has.
    fn plain(&self, target: Target) -> Result<LaunchStep, PlanError> {
        let (a, b) = self.major();
        let kernel = simt::Simt { dtype: self.dtype, grouping: self.grouping, a, b };
        let side = plain::SIDE as usize;
        let grid = [self.tiles((side, side))?, 1, 1];
        let (stride_b, stride_y) = self.strides();
        let args = simt::SimtArgs {
            a: GroupedGemmArgs::a.arg(),
            b: GroupedGemmArgs::b.arg(),
            y: GroupedGemmArgs::y.arg(),
            m: small(self.m),
            n: small(self.n),
            depth: small(self.k),
            lda: self.lda as u64,
            ldb: self.ldb as u64,
            ldy: self.ldy as u64,
            stride_b: stride_b as u64,
            stride_y: stride_y as u64,
            groups: self.group_args(),
        };
        plan::launch(self.op(), &kernel, args, target, grid)
    }
}

impl Operation for GroupedGemmDesc {
    type Args<'a> = GroupedGemmArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_choosing(target, None)
    }
}
