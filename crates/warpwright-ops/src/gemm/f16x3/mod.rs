//! Products of `f32` as three of `f16` (3xFP16): operands are split into pairs of a high and a low number by launches before, and a persistent kernel
//! adds the products of high numbers and, scaled, those of a high and a low one. Source of the scheme: Ootomo and Yokota, 2022 (arXiv 2203.03341), here with a
//! scale for each row of `op(a)` and column of `op(b)`.
//!
//! Pairs hold 24 bits of elements down to 2^-26 of the largest that they are added up with, and all are within 2^-51 of it. Rows and columns with
//! smaller elements are marked; a result of theirs that is so small that what is lacking could show is computed again in `f32`, as
//! are those of rows and columns that have no scale, for infinities, NaN or numbers beyond 2^63 or all below 2^-100.

mod kernel;
mod split;

use warpwright_dsl::prelude::*;
use warpwright_dsl::{PanelTile, TensorMapArg, WARP};
use warpwright_ptx::kernel::Kernel;
use warpwright_runtime::LaunchStep;

use super::engine::Store;
use super::epilogue::Program;
use super::tuning::PersistentConfig;
use super::{GemmArgs, GemmDesc, LINE, OP, Product};
use crate::PlanError;
use crate::plan::{self, small};

use kernel::{F16x3Args, F16x3Gemm, SourceArgs};
use split::{
    ColumnExtents, ExtentArgs, SplitArgs, SplitBothArgs, SplitBothRows, SplitCols, SplitColsArgs, SplitRows,
};

/// Elements of a vector of an operand whose rows begin at multiples of 16 bytes.
const VECTOR: usize = 4;

/// An operand, and where its pairs and scales are in the workspace.
struct Side {
    major: Major,
    /// Rows and columns in memory, and elements from one row to the next.
    sizes: [usize; 2],
    leading: usize,
    /// Matrices, and elements from one to the next.
    matrices: usize,
    stride: usize,
    /// Rows of `op(a)` or columns of `op(b)`.
    outer: usize,
    /// Bytes of the workspace in front of its planes, and its scales.
    planes: usize,
    scales: usize,
    /// The same in front of the extents of columns, of which scales are made where they lie along rows in memory.
    extents: usize,
}

impl Side {
    /// Elements of `f16` from one row of a plane to the next.
    const fn pitch(&self) -> usize {
        self.sizes[1].next_multiple_of(LINE / DType::F16.bytes())
    }

    /// Elements of a plane.
    const fn plane(&self) -> usize {
        self.sizes[0] * self.pitch()
    }

    /// Bytes of all planes.
    const fn plane_bytes(&self) -> usize {
        self.plane() * 2 * DType::F16.bytes() * self.matrices
    }

    /// Bytes of `each` words for all scales; what follows begins at a line.
    const fn scale_bytes(&self, each: usize) -> usize {
        (self.outer * each * self.matrices * DType::F32.bytes()).next_multiple_of(LINE)
    }

    /// Bytes of the extents of columns.
    fn extent_bytes(&self) -> usize {
        if self.major == Major::K { 0 } else { self.scale_bytes(2 * split::parts(self.sizes[0]).0) }
    }

    /// The matrices as they are split, which begin at `x`.
    fn source(&self, x: &In<Elem>) -> split::SourceArgs {
        let [rows, cols] = self.sizes.map(small);
        let (leading, stride) = (self.leading as u64, self.stride as u64);
        split::SourceArgs { x: x.clone(), rows, cols, leading, stride }
    }

    /// Them, and where their planes and scales go.
    fn split(&self, x: &In<Elem>) -> SplitArgs {
        SplitArgs {
            from: self.source(x),
            y: GemmArgs::workspace.arg_at(self.planes as u64),
            scales: GemmArgs::workspace.arg_at(self.scales as u64),
            leading: self.pitch() as u64,
            plane: self.plane() as u64,
        }
    }

    /// Elements to the next row of `op(a)` or column of `op(b)`, and to the next along the common dimension.
    const fn steps(&self) -> (usize, usize) {
        match self.major {
            Major::K => (self.leading, 1),
            Major::Mn => (1, self.leading),
        }
    }
}

impl GemmDesc {
    /// Both operands, and bytes of the workspace: of products that [have planes](super::tuning::has_planes), which are not too many to count.
    fn sides(&self) -> ([Side; 2], usize) {
        let ((major_a, major_b), (stored_a, stored_b)) = (self.major(), self.stored());
        let side = |major, sizes, leading, stride, outer| Side {
            major,
            sizes,
            leading,
            matrices: if stride == 0 { 1 } else { self.batch },
            stride,
            outer,
            planes: 0,
            scales: 0,
            extents: 0,
        };
        let mut sides = [
            side(major_a, stored_a, self.lda, self.stride_a, self.m),
            side(major_b, stored_b, self.ldb, self.stride_b, self.n),
        ];
        let mut end = 0;
        for side in &mut sides {
            side.planes = end;
            side.scales = side.planes + side.plane_bytes();
            side.extents = side.scales + side.scale_bytes(1);
            end = side.extents + side.extent_bytes();
        }
        (sides, end)
    }

    /// Elements of the workspace of products of pairs.
    pub(super) fn f16x3_scratch(&self) -> usize {
        self.sides().1 / DType::F32.bytes()
    }

    /// The launches that split both operands.
    pub(super) fn split_operands(
        &self,
        target: Target,
        steps: &mut Vec<LaunchStep>,
    ) -> Result<(), PlanError> {
        let (sides, _) = self.sides();
        let sides: Vec<_> = sides.into_iter().zip([GemmArgs::a.arg(), GemmArgs::b.arg()]).collect();
        let vectors =
            |side: &Side| self.is_aligned(side.leading, side.stride) && side.sizes[1].is_multiple_of(VECTOR);
        if let [(a, x_a), (b, x_b)] = sides.as_slice()
            && a.major == Major::K
            && b.major == Major::K
            && vectors(a) == vectors(b)
        {
            let both = SplitBothArgs {
                sides: [a.split(x_a), b.split(x_b)],
                matrices: [a, b].map(|side| small(side.matrices)),
            };
            let kernel = plan::recorded(OP, &SplitBothRows { vectors: vectors(a) }, target)?;
            let grid = [small(self.m.max(self.n)), 2, small(a.matrices.max(b.matrices))];
            steps.push(LaunchStep::new(kernel, grid, both.values()));
            return Ok(());
        }
        for (side, x) in sides {
            let [rows, cols] = side.sizes;
            let vectors = vectors(&side);
            let (to, matrices) = (side.split(&x), small(side.matrices));
            if side.major == Major::K {
                let kernel = plan::recorded(OP, &SplitRows { vectors }, target)?;
                steps.push(LaunchStep::new(kernel, [small(rows), 1, matrices], to.values()));
                continue;
            }
            let strip = if vectors { WARP as usize * VECTOR } else { WARP as usize };
            let (parts, rows_of_part) = split::parts(rows);
            let (parts, rows_of_part) = (small(parts), small(rows_of_part));
            let grid = [small(cols.div_ceil(strip)), parts, matrices];
            let extents = GemmArgs::workspace.arg_at(side.extents as u64);
            let find = ExtentArgs { from: side.source(&x), extents, rows_of_part };
            let kernel = plan::recorded(OP, &ColumnExtents { vectors }, target)?;
            steps.push(LaunchStep::new(kernel, grid, find.values()));
            let extents = GemmArgs::workspace.written_at(side.extents as u64);
            let split = SplitColsArgs { to, extents, rows_of_part, parts };
            let kernel = plan::recorded(OP, &SplitCols { vectors }, target)?;
            steps.push(LaunchStep::new(kernel, grid, split.values()));
        }
        Ok(())
    }

    /// The launch of the product of operands that have been split; `a` and `b` are as they were.
    pub(super) fn launch_f16x3(
        &self,
        target: Target,
        config: PersistentConfig,
        product: Product,
    ) -> Result<LaunchStep, PlanError> {
        let Product { a, b, to, count, .. } = product;
        let (major_a, major_b) = self.major();
        let (store, program) = (self.store(), self.program());
        let kernel = F16x3Gemm { a: major_a, b: major_b, config, program, store };
        let blocks = kernel.blocks();
        let ([side_a, side_b], _) = self.sides();
        let map = |side: &Side, tile: PanelTile| {
            let bytes = |elements: usize| (elements * DType::F16.bytes()) as u64;
            let planes = (side.matrices as u64 * 2, bytes(side.plane()));
            let map = tile.map((side.outer as u64, self.k as u64), bytes(side.pitch()), &[planes]);
            TensorMapArg::over(&GemmArgs::workspace.written_at::<Elem>(side.planes as u64), map)
        };
        let maps = [map(&side_a, blocks.slices.0), map(&side_b, blocks.part_of_b)];
        let (work, grid) = self.work(target, &blocks, maps, to, count)?;
        let source = |side: &Side, x: In<Elem>| {
            let (outer, along) = side.steps();
            SourceArgs {
                x,
                scales: GemmArgs::workspace.written_at(side.scales as u64),
                outer: outer as u64,
                along: along as u64,
                stride: side.stride as u64,
            }
        };
        let values = F16x3Args {
            work,
            alpha: self.alpha.get() as f32,
            beta: self.beta.get() as f32,
            a: source(&side_a, a),
            b: source(&side_b, b),
            depth: small(self.k),
            least: split::least(self.k),
        };
        blocks.launch(OP, target, &kernel, grid, values.values())
    }
}

/// Every kernel that splits operands.
pub(super) fn split_kernels(target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut all = Vec::new();
    for vectors in [true, false] {
        all.push(plan::recorded(OP, &SplitRows { vectors }, target)?);
        all.push(plan::recorded(OP, &SplitBothRows { vectors }, target)?);
        all.push(plan::recorded(OP, &ColumnExtents { vectors }, target)?);
        all.push(plan::recorded(OP, &SplitCols { vectors }, target)?);
    }
    Ok(all)
}

/// The kernel of a product, as plans record it.
pub(super) fn product_kernel(
    (a, b): (Major, Major),
    target: Target,
    config: PersistentConfig,
    (program, store): (Program, Store),
) -> Result<Kernel, PlanError> {
    plan::recorded(OP, &F16x3Gemm { a, b, config, program, store }, Target::specific(target.sm))
}
