//! Matrix products of four warps from shared memory (`wgmma`, sm_90a): A and B are tiles that copies brought there, the sums
//! stay in registers.
//!
//! With `group = lane / 4` and `quad = lane % 4`, warp `w` of the four has rows `16 w ..` of the 64, and its sums lie as those of
//! neighbouring [`Accumulator`](crate::Accumulator)s: sum `i` is at row `16 w + group + 8 (i / 2 % 2)` and column
//! `8 (i / 4) + 2 quad + i % 2`.
//!
//! Source: PTX ISA, "Asynchronous warpgroup level matrix instructions".

use warpwright_ptx::{
    Accumulate, DType, Inst, MatrixType, RegKind, ScalarType, TensorElement, TensorFill, TensorInterleave,
    TensorMap, TensorSwizzle, Wgmma, WgmmaSource,
};

use crate::context::K;
use crate::error::IssueKind;
use crate::flow::{Carry, RawReg, RawRegs};
use crate::reg::{F32, Reg, Source, U32, U64};
use crate::tile::Along;

/// Bytes of a row of a panel: what the swizzle permutes.
const PANEL_BYTES: u32 = 128;
/// Bytes after which the swizzle repeats: eight rows.
const ATOM_BYTES: u32 = 8 * PANEL_BYTES;
/// Rows of one product.
const ROWS: u32 = 64;
/// The common dimension of one product of 16-bit elements.
const DEPTH: u32 = 16;

/// A tile of 16-bit elements in shared memory as panels that `wgmma` reads: each 128 bytes wide, its rows one after the other with
/// their 16-byte pieces swizzled, as a tensor copy with [`TensorSwizzle::B128`] leaves a box. Along [`Along::K`] there is one
/// panel, `outer` rows of 64 of the common dimension; along [`Along::Outer`] a panel has 64 rows, of the common dimension, and 64
/// of the outer one lie beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PanelTile {
    /// Type of the elements: `f16` or `bf16`.
    pub dtype: DType,
    /// Which index runs along the rows in memory.
    pub along: Along,
    /// Rows of A or columns of B: 64, or a multiple of 128.
    pub outer: u32,
}

impl PanelTile {
    /// How much of the common dimension a tile has, and elements of a panel's row.
    pub const DEPTH: u32 = 64;

    /// Bytes of the tile.
    pub const fn bytes(self) -> u32 {
        self.outer * PANEL_BYTES
    }

    /// Rows of A or columns of B that one copy brings: boxes of a tile follow each other without gaps.
    pub const fn box_rows(self) -> u32 {
        match self.along {
            Along::K if self.outer < Self::MAX_BOX => self.outer,
            Along::K => Self::MAX_BOX,
            Along::Outer => Self::DEPTH,
        }
    }

    const MAX_BOX: u32 = 128;

    /// The map whose boxes fill the tile, from a batch of matrices with (`outer`, `depth`) elements that begins where it is
    /// bound; `leading` and `stride` are the bytes from one row and one matrix to the next, multiples of 16. Coordinates: along
    /// the row, the row, the matrix.
    pub fn map(self, (outer, depth): (u64, u64), leading: u64, (batch, stride): (u64, u64)) -> TensorMap {
        let (along, across, rows) = match self.along {
            Along::K => (depth, outer, self.box_rows()),
            Along::Outer => (outer, depth, Self::DEPTH),
        };
        TensorMap {
            base: 0,
            element: if self.dtype == DType::F16 { TensorElement::F16 } else { TensorElement::BF16 },
            dims: vec![along, across, batch],
            strides: vec![leading, stride],
            box_dims: vec![Self::DEPTH, rows, 1],
            element_strides: vec![1; 3],
            interleave: TensorInterleave::None,
            swizzle: TensorSwizzle::B128,
            fill: TensorFill::Zero,
        }
    }

    /// The descriptor of the operand at `address`, where the tile begins, or a multiple of 64 rows of A or columns of B further
    /// on. Add [`step`](Self::step) for more of the common dimension.
    #[track_caller]
    pub fn descriptor(self, address: U32<'_>) -> U64<'_> {
        let k = address.k();
        k.on_behalf(|| {
            let panel = Self::DEPTH * PANEL_BYTES;
            // Bytes between panels; rows of one panel follow each other, so it counts for nothing there.
            let leading = if self.along == Along::Outer { panel } else { 16 };
            let fixed =
                u64::from(leading >> 4) << 16 | u64::from(ATOM_BYTES >> 4) << 32 | Self::SWIZZLE_128 << 62;
            ((address >> 4) & 0x3FFF).to_u64() | fixed
        })
    }

    const SWIZZLE_128: u64 = 1;

    /// What is added to a descriptor for the common dimension from `depth` on, a multiple of 16.
    pub const fn step(self, depth: u32) -> u64 {
        let bytes = match self.along {
            Along::K => depth * 2,
            Along::Outer => depth * PANEL_BYTES,
        };
        (bytes >> 4) as u64
    }
}

impl<'k> K<'k> {
    /// Gives registers back until each thread of the four warps has `count` of them: from 24 on, a multiple of 8. A kernel that
    /// does so has bounds for threads and blocks, and each four warps have one number in all of their code from there on.
    #[track_caller]
    pub fn release_registers(self, count: u32) {
        self.emit(Inst::SetMaxNreg { increase: false, count });
    }

    /// Waits until each thread of the four warps can have `count` registers, up to 256, a multiple of 8.
    #[track_caller]
    pub fn claim_registers(self, count: u32) {
        self.emit(Inst::SetMaxNreg { increase: true, count });
    }
}

/// The sums of four neighbouring warps, whose first is a multiple of 4: 64 rows of `f32`. Between the first
/// [`mma`](Self::mma) and the [`wait`](Self::wait) that covers it they belong to the tensor cores.
#[derive(Clone, Debug)]
#[must_use = "a recorded value that nothing reads is a mistake in the kernel"]
pub struct WarpgroupSums<'k> {
    k: K<'k>,
    regs: Vec<RawReg>,
}

impl<'k> Carry<'k> for WarpgroupSums<'k> {
    fn collect(&self, regs: &mut Vec<RawReg>) {
        regs.extend(&self.regs);
    }

    fn rebuild(&self, regs: &mut RawRegs) -> Self {
        let regs = self.regs.iter().map(|r| RawReg { id: regs.next_or(r.id), ty: r.ty }).collect();
        Self { k: self.k, regs }
    }
}

impl<'k> WarpgroupSums<'k> {
    /// Zeros, of 64 x `cols` sums; `cols` is a multiple of 8 up to 256.
    #[track_caller]
    pub fn zero(k: K<'k>, cols: u32) -> Self {
        if !cols.is_multiple_of(8) || !(8..=256).contains(&cols) {
            k.issue(IssueKind::Constant {
                what: "the columns of a warpgroup's sums",
                value: u64::from(cols),
            });
        }
        k.on_behalf(|| {
            let zero = || {
                let id = k.rec().new_reg(ScalarType::F32, RegKind::Variable);
                k.emit(Inst::Mov { ty: ScalarType::F32, dst: id, src: 0.0f32.operand() });
                RawReg { id, ty: ScalarType::F32 }
            };
            Self { k, regs: (0..ROWS * cols / 128).map(|_| zero()).collect() }
        })
    }

    /// Adds products of 64 rows of A and the columns of B, 16 deep: `a` and `b` are descriptors of parts of such tiles. It is
    /// started, not finished.
    #[track_caller]
    pub fn mma(&self, (a_tile, a): (PanelTile, U64<'k>), (b_tile, b): (PanelTile, U64<'k>)) {
        let ty = if a_tile.dtype == DType::F16 { MatrixType::F16 } else { MatrixType::BF16 };
        self.k.emit(Inst::Wgmma(Box::new(Wgmma {
            n: u16::try_from(self.regs.len() * 2).unwrap_or(u16::MAX),
            k: DEPTH as u16,
            d_ty: MatrixType::F32,
            a_ty: ty,
            b_ty: ty,
            satfinite: false,
            sparsity: None,
            d: self.regs.iter().map(|r| r.id).collect(),
            a: WgmmaSource::Descriptor(a.as_operand()),
            b: b.as_operand(),
            accumulate: Accumulate::Always(true),
            negate_a: false,
            negate_b: false,
            transpose_a: a_tile.along == Along::Outer,
            transpose_b: b_tile.along == Along::Outer,
        })));
    }

    /// Adds the products of whole tiles, 64 deep, whose descriptors are `a` and `b`, as one group.
    #[track_caller]
    pub fn add_products(&self, (a_tile, a): (PanelTile, U64<'k>), (b_tile, b): (PanelTile, U64<'k>)) {
        self.k.on_behalf(|| {
            self.k.emit(Inst::WgmmaFence);
            for depth in (0..PanelTile::DEPTH).step_by(DEPTH as usize) {
                let at =
                    |tile: PanelTile, from: U64<'k>| if depth == 0 { from } else { from + tile.step(depth) };
                self.mma((a_tile, at(a_tile, a)), (b_tile, at(b_tile, b)));
            }
            self.k.emit(Inst::WgmmaCommit);
        });
    }

    /// Waits until at most the last `pending` groups are still being added.
    #[track_caller]
    pub fn wait(&self, pending: u32) {
        self.k.emit(Inst::WgmmaWait { pending });
    }

    /// Sum `i` of the lane, in the order of the module's description; after a [`wait`](Self::wait) for all.
    pub fn at(&self, i: u32) -> F32<'k> {
        Reg::from_id(self.k, self.regs[i as usize].id)
    }

    /// Pairs of neighbouring sums of the lane, with the row and column that lie between the lane's first sum and them.
    pub fn pairs(&self) -> impl Iterator<Item = (u32, u32, [F32<'k>; 2])> + '_ {
        (0..self.regs.len() as u32 / 2).map(|pair| {
            let (row, col) = (pair % 2 * 8, pair / 2 * 8);
            (row, col, [self.at(2 * pair), self.at(2 * pair + 1)])
        })
    }
}
