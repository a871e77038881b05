//! Matrix products of four warps from shared memory (`wgmma`, sm_90a): A and B are tiles that copies brought there, the sums
//! stay in registers.
//!
//! With `group = lane / 4` and `quad = lane % 4`, warp `w` of the four has rows `16 w ..` of the 64, and its sums lie as those of
//! neighbouring [`Accumulator`](crate::Accumulator)s: sum `i` is at row `16 w + group + 8 (i / 2 % 2)` and column
//! `8 (i / 4) + 2 quad + i % 2`.
//!
//! Source: PTX ISA, "Asynchronous warpgroup level matrix instructions".

use std::ops::Range;

use warpwright_ptx::{
    Accumulate, Address, CacheHints, DType, Inst, MatrixType, Operand, Ordering, RegKind, ScalarType,
    StateSpace, TensorElement, TensorFill, TensorInterleave, TensorMap, TensorMode, TensorSwizzle, Wgmma,
    WgmmaSource,
};

use crate::context::K;
use crate::error::IssueKind;
use crate::flow::{Carry, RawReg, RawRegs};
use crate::mbarrier::{Mbarrier, TensorMapParam};
use crate::reg::{F32, I32, Reg, Source, U32, U64};

use super::reg::{RegTile, RowVector};
use super::shared::{Major, SharedTile, TileLayout};

/// Bytes of a row of a panel: what the swizzle permutes.
pub(super) const PANEL_BYTES: u32 = 128;
/// Bytes after which the swizzle repeats: eight rows.
const ATOM_BYTES: u32 = 8 * PANEL_BYTES;
/// Rows of one product.
const ROWS: u32 = 64;
/// The common dimension of one product of 16-bit elements.
const DEPTH: u32 = 16;
/// The same in bytes, for elements of any size.
const DEPTH_BYTES: u32 = 32;
/// Registers of a lane for 16 of the common dimension of A.
const A_WORDS: u32 = 4;

/// A part of a tile in shared memory, and its descriptor.
pub type Part<'k> = (PanelTile, U64<'k>);

/// A tile in shared memory as panels that `wgmma` reads: each 128 bytes wide, its rows one after the other with
/// their 16-byte pieces swizzled, as a tensor copy with [`TensorSwizzle::B128`] leaves a box. With [`Major::K`] a panel has
/// `outer` rows of [`width`](Self::width) of the common dimension; with [`Major::Mn`], for 16-bit elements, it has `depth` rows of 64 of
/// the outer one. Panels follow each other; of the last one products read only what belongs to the tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PanelTile {
    /// Type of the elements: `f16`, `bf16`, 8-bit floats or integers, or `f32`, which copies round to `tf32`.
    pub dtype: DType,
    /// Which index is contiguous in memory.
    pub major: Major,
    /// Rows of A, a multiple of 64, or columns of B, a multiple of 8 up to 256.
    pub outer: u32,
    /// How much of the common dimension it has, a multiple of that of one product, up to 256.
    pub depth: u32,
}

impl PanelTile {
    /// Elements of 16 bits of a panel's row.
    pub const WIDTH: u32 = PANEL_BYTES / 2;

    /// Elements of `dtype` of a panel's row.
    pub const fn width_of(dtype: DType) -> u32 {
        PANEL_BYTES / dtype.bytes() as u32
    }

    /// Elements of a panel's row.
    pub const fn width(self) -> u32 {
        Self::width_of(self.dtype)
    }

    /// Bytes of the tile: of whole panels.
    pub const fn bytes(self) -> u32 {
        self.panels() * self.rows() * PANEL_BYTES
    }

    /// Panels of the tile.
    const fn panels(self) -> u32 {
        let along = match self.major {
            Major::K => self.depth,
            Major::Mn => self.outer,
        };
        along.div_ceil(self.width())
    }

    /// The common dimension of one product.
    const fn step_depth(self) -> u32 {
        DEPTH_BYTES / self.dtype.bytes() as u32
    }

    /// Rows of a panel.
    pub(super) const fn rows(self) -> u32 {
        match self.major {
            Major::K => self.outer,
            Major::Mn => self.depth,
        }
    }

    /// Rows that one copy brings.
    const fn box_rows(self) -> u32 {
        if self.rows().is_multiple_of(Self::MAX_BOX) { Self::MAX_BOX } else { self.rows() }
    }

    const MAX_BOX: u32 = 128;

    /// The map whose boxes fill the tile, from matrices with (`outer`, `depth`) elements of which the first begins where it is
    /// bound; `leading` are the bytes from one row to the next, `rest` how many there are along each further dimension and the bytes
    /// between them. Bytes are multiples of 16. Coordinates: along the row, the row, those of the matrix.
    pub fn map(self, (outer, depth): (u64, u64), leading: u64, rest: &[(u64, u64)]) -> TensorMap {
        let (along, across) = match self.major {
            Major::K => (depth, outer),
            Major::Mn => (outer, depth),
        };
        let mut map = TensorMap {
            base: 0,
            // Copies round what products would cut off.
            element: if self.dtype == DType::F32 { TensorElement::TF32 } else { self.dtype.into() },
            dims: vec![along, across],
            strides: vec![leading],
            mode: TensorMode::Tiled {
                box_dims: [self.width(), self.box_rows()].into_iter().chain(rest.iter().map(|_| 1)).collect(),
            },
            element_strides: vec![1; 2 + rest.len()],
            interleave: TensorInterleave::None,
            swizzle: TensorSwizzle::B128,
            fill: TensorFill::Zero,
        };
        for (count, stride) in rest {
            map.dims.push(*count);
            map.strides.push(*stride);
        }
        map
    }

    /// Starts the copies that fill the tile at `to`, with what begins at (`outer`, `depth`) of the matrix with the coordinates
    /// `rest`; `done` counts their bytes. For one thread.
    #[track_caller]
    pub fn fetch<'k>(
        self,
        from: TensorMapParam<'k>,
        to: U32<'k>,
        (outer, depth): (U32<'k>, U32<'k>),
        rest: &[U32<'k>],
        done: Mbarrier<'k>,
    ) {
        self.fetch_by(to, (outer, depth), rest, |to, coords| from.copy(to, coords, done));
    }

    /// The same to this place of each block of the cluster whose bit is set in `blocks`, as
    /// [`copy_to_blocks`](TensorMapParam::copy_to_blocks).
    #[track_caller]
    pub fn fetch_to_blocks<'k>(
        self,
        blocks: u32,
        from: TensorMapParam<'k>,
        to: U32<'k>,
        begin: (U32<'k>, U32<'k>),
        rest: &[U32<'k>],
        done: Mbarrier<'k>,
    ) {
        self.fetch_by(to, begin, rest, |to, coords| from.copy_to_blocks(blocks, to, coords, done));
    }

    #[track_caller]
    fn fetch_by<'k>(
        self,
        to: U32<'k>,
        (outer, depth): (U32<'k>, U32<'k>),
        rest: &[U32<'k>],
        copy: impl Fn(U32<'k>, &[U32<'k>]),
    ) {
        let (along, across, width) = match self.major {
            Major::K => (depth, outer, self.depth),
            Major::Mn => (outer, depth, self.outer),
        };
        to.k().on_behalf(|| {
            let mut to = to;
            for column in (0..width).step_by(self.width() as usize) {
                for row in (0..self.rows()).step_by(self.box_rows() as usize) {
                    if row + column > 0 {
                        to = to + self.box_rows() * PANEL_BYTES;
                    }
                    let further = |x: U32<'k>, by: u32| if by > 0 { x + by } else { x };
                    let mut coords = vec![further(along, column), further(across, row)];
                    coords.extend(rest);
                    copy(to, &coords);
                }
            }
        });
    }

    /// Zeroes the tile at `to`, which is [`Major::Mn`], from `depth` of the common dimension on: the share of `thread` of
    /// `threads` threads. [`K::fence_shared_copies`] and a barrier of these follow before it is multiplied.
    #[track_caller]
    pub fn clear_from<'k>(self, to: U32<'k>, depth: U32<'k>, (thread, threads): (U32<'k>, u32)) {
        const PIECE: u32 = 16;
        let k = to.k();
        k.on_behalf(|| {
            let pieces = PANEL_BYTES / PIECE;
            let first = depth.min(self.depth) * pieces + thread;
            k.for_each(k.range(first, self.depth * pieces, threads), |piece| {
                let at = piece.mul_add(PIECE, to);
                for panel in 0..self.panels() {
                    k.emit(Inst::St {
                        space: StateSpace::Shared,
                        ty: ScalarType::B32,
                        ordering: Ordering::WEAK,
                        hints: CacheHints::NONE,
                        srcs: vec![Operand::int(0); 4],
                        addr: Address::reg(at.id(), i64::from(panel * self.rows() * PANEL_BYTES)),
                    });
                }
            });
        });
    }

    /// The descriptor of the operand at `address`, where the tile begins, or a multiple of 64 rows of A or columns of B further
    /// on. Add [`step`](Self::step) for more of the common dimension.
    #[track_caller]
    pub fn descriptor(self, address: U32<'_>) -> U64<'_> {
        let k = address.k();
        k.on_behalf(|| {
            // Bytes between panels of the outer dimension.
            let leading = if self.major == Major::Mn { self.rows() * PANEL_BYTES } else { 16 };
            let fixed =
                u64::from(leading >> 4) << 16 | u64::from(ATOM_BYTES >> 4) << 32 | Self::SWIZZLE_128 << 62;
            ((address >> 4) & 0x3FFF).to_u64() | fixed
        })
    }

    const SWIZZLE_128: u64 = 1;

    /// Bytes from the tile to the part of it that begins at row of A or column of B `outer`, a multiple of 64.
    pub const fn part(self, outer: u32) -> u32 {
        match self.major {
            Major::K => outer * PANEL_BYTES,
            Major::Mn => outer / Self::WIDTH * self.rows() * PANEL_BYTES,
        }
    }

    /// The 16 rows of A from `row` on, a multiple of 8, in registers of a warp: what [`WarpgroupSums::products_of`] multiplies. The
    /// tile is at `address`, and is [`Major::K`].
    #[track_caller]
    pub fn rows_of<'k>(self, address: U32<'k>, row: U32<'k>) -> Vec<U32<'k>> {
        let layout = TileLayout::new(self.dtype, self.outer, Self::WIDTH);
        let k = address.k();
        k.on_behalf(|| {
            let atom = k.mma_atom(self.dtype);
            let panel = |first: u32| {
                let at = address + first / Self::WIDTH * self.rows() * PANEL_BYTES;
                let reader = SharedTile::at_address(layout, at).reader_a(atom, Major::K, row);
                let depths = (0..Self::WIDTH.min(self.depth - first)).step_by(DEPTH as usize);
                depths.flat_map(move |depth| reader.load(0, depth).words())
            };
            (0..self.depth).step_by(Self::WIDTH as usize).flat_map(panel).collect()
        })
    }

    /// The increment of a descriptor for the common dimension from `depth` on, a multiple of that of a product.
    pub const fn step(self, depth: u32) -> u64 {
        let bytes = match self.major {
            Major::K => {
                let (panel, within) = (depth / self.width(), depth % self.width());
                panel * self.rows() * PANEL_BYTES + within * self.dtype.bytes() as u32
            }
            Major::Mn => depth * PANEL_BYTES,
        };
        (bytes >> 4) as u64
    }

    /// The descriptor of the common dimension from `depth` on, of the tile with the descriptor `start`.
    #[track_caller]
    fn at(self, start: U64<'_>, depth: u32) -> U64<'_> {
        if depth == 0 { start } else { start + self.step(depth) }
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

/// The sums of four neighbouring warps, whose first is a multiple of 4: 64 rows of `f32`, or of `s32` where 8-bit integers are
/// multiplied. Between the first product and the [`wait`](Self::wait) that covers it they belong to the tensor cores.
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
    /// Zeros, of 64 x `cols` sums of floating-point products; `cols` is a multiple of 8 up to 256.
    #[track_caller]
    pub fn zero(k: K<'k>, cols: u32) -> Self {
        Self::zero_of(k, cols, DType::F32)
    }

    /// The same for products of elements of `dtype`.
    #[track_caller]
    pub fn zero_of(k: K<'k>, cols: u32, dtype: DType) -> Self {
        k.on_behalf(|| {
            let sums = Self::unset(k, cols, dtype);
            for reg in &sums.regs {
                let src = if reg.ty == ScalarType::S32 { Operand::int(0) } else { 0.0f32.operand() };
                k.emit(Inst::Mov { ty: reg.ty, dst: reg.id, src });
            }
            sums
        })
    }

    #[track_caller]
    fn unset(k: K<'k>, cols: u32, dtype: DType) -> Self {
        if !cols.is_multiple_of(8) || !(8..=256).contains(&cols) {
            k.issue(IssueKind::Constant {
                what: "the columns of a warpgroup's sums",
                value: u64::from(cols),
            });
        }
        let ty = if matches!(dtype, DType::I8 | DType::U8) { ScalarType::S32 } else { ScalarType::F32 };
        let new = |_| RawReg { id: k.rec().new_reg(ty, RegKind::Variable), ty };
        Self { k, regs: (0..ROWS * cols / 128).map(new).collect() }
    }

    #[track_caller]
    fn mma(&self, dtype: DType, (a, major_a): (WgmmaSource, Major), (b_tile, b): Part<'k>, adds: bool) {
        let of = |dtype| match dtype {
            DType::F16 => MatrixType::F16,
            DType::BF16 => MatrixType::BF16,
            DType::F32 => MatrixType::TF32,
            DType::F8E4M3 => MatrixType::E4M3,
            DType::F8E5M2 => MatrixType::E5M2,
            DType::I8 => MatrixType::S8,
            DType::U8 => MatrixType::U8,
            _ => {
                self.k.issue(IssueKind::Product { instruction: "wgmma", dtype });
                MatrixType::F16
            }
        };
        let integers = self.regs.first().is_some_and(|reg| reg.ty == ScalarType::S32);
        self.k.emit(Inst::Wgmma(Box::new(Wgmma {
            n: u16::try_from(self.regs.len() * 2).unwrap_or(u16::MAX),
            k: b_tile.step_depth() as u16,
            d_ty: if integers { MatrixType::S32 } else { MatrixType::F32 },
            a_ty: of(dtype),
            b_ty: of(b_tile.dtype),
            satfinite: false,
            sparsity: None,
            d: self.regs.iter().map(|r| r.id).collect(),
            a,
            b: b.as_operand(),
            accumulate: Accumulate::Always(adds),
            negate_a: false,
            negate_b: false,
            transpose_a: major_a == Major::Mn,
            transpose_b: b_tile.major == Major::Mn,
        })));
    }

    /// The products of whole tiles of the same depth, whose descriptors are `a` and `b`: `cols` columns of B. They are started, as
    /// one group, not finished.
    #[track_caller]
    pub fn products(k: K<'k>, cols: u32, a: Part<'k>, b: Part<'k>) -> Self {
        k.on_behalf(|| {
            let sums = Self::unset(k, cols, a.0.dtype);
            sums.group_of_tiles(a, b, 0..a.0.depth, false);
            sums
        })
    }

    /// Starts these sums anew, as one group: the products of a part of the depth of tiles whose descriptors are `a` and `b`. It begins and ends
    /// at multiples of what one instruction multiplies, 32 bytes of elements. After a [`wait`](Self::wait) for what was started before.
    #[track_caller]
    pub fn restart(&self, a: Part<'k>, b: Part<'k>, depths: Range<u32>) {
        self.k.on_behalf(|| self.group_of_tiles(a, b, depths, false));
    }

    /// Adds the products of whole tiles of the same depth, whose descriptors are `a` and `b`, as one group. They are started, not
    /// finished.
    #[track_caller]
    pub fn add_products(&self, a: Part<'k>, b: Part<'k>) {
        self.k.on_behalf(|| self.group_of_tiles(a, b, 0..a.0.depth, true));
    }

    #[track_caller]
    fn group_of_tiles(&self, (a_tile, a): Part<'k>, (b_tile, b): Part<'k>, depths: Range<u32>, adds: bool) {
        if a_tile.depth != b_tile.depth {
            let [left, right] = [a_tile.depth, b_tile.depth].map(|depth| depth as usize);
            self.k.issue(IssueKind::Shape { what: "products of tiles", left, right });
        }
        self.k.emit(Inst::WgmmaFence);
        let first = depths.start;
        for depth in depths.step_by(a_tile.step_depth() as usize) {
            let source = WgmmaSource::Descriptor(a_tile.at(a, depth).as_operand());
            let b = (b_tile, b_tile.at(b, depth));
            self.mma(a_tile.dtype, (source, a_tile.major), b, adds || depth > first);
        }
        self.k.emit(Inst::WgmmaCommit);
    }

    /// The products of an A in registers, as [`PanelTile::rows_of`] gives it, and the tile whose descriptor is `b`: `cols` columns
    /// of B. They are started, as one group, not finished.
    #[track_caller]
    pub fn products_of(k: K<'k>, cols: u32, a: &[U32<'k>], b: Part<'k>) -> Self {
        k.on_behalf(|| {
            let sums = Self::unset(k, cols, b.0.dtype);
            sums.group_of_registers(a, b, false);
            sums
        })
    }

    /// Adds the products of an A in registers, as [`packed`](Self::packed) gives it, and the tile whose descriptor is `b`, as one
    /// group. They are started, not finished.
    #[track_caller]
    pub fn add_products_of(&self, a: &[U32<'k>], b: Part<'k>) {
        self.k.on_behalf(|| self.group_of_registers(a, b, true));
    }

    #[track_caller]
    fn group_of_registers(&self, a: &[U32<'k>], (b_tile, b): Part<'k>, adds: bool) {
        let wanted = (b_tile.depth / DEPTH * A_WORDS) as usize;
        if a.len() != wanted {
            self.k.issue(IssueKind::Shape { what: "products of registers", left: wanted, right: a.len() });
        }
        self.k.emit(Inst::WgmmaFence);
        for (depth, words) in (0..).step_by(DEPTH as usize).zip(a.chunks(A_WORDS as usize)) {
            let source = WgmmaSource::Registers(words.iter().map(|word| word.as_operand()).collect());
            let b = (b_tile, b_tile.at(b, depth));
            self.mma(b_tile.dtype, (source, Major::K), b, adds || depth > 0);
        }
        self.k.emit(Inst::WgmmaCommit);
    }

    /// Values that lie as these sums, of a multiple of 16 columns, rounded to `dtype` as the A of a next product: the columns are
    /// its common dimension. Lanes keep their own elements.
    #[track_caller]
    pub fn packed(dtype: DType, values: &[F32<'k>]) -> Vec<U32<'k>> {
        values.chunks_exact(2).map(|pair| pair[0].pack_with(pair[1], dtype)).collect()
    }

    /// Replaces each sum by `f` of its number and it; after a [`wait`](Self::wait) for all.
    #[track_caller]
    pub fn replace(&self, f: impl Fn(u32, F32<'k>) -> F32<'k>) {
        self.k.on_behalf(|| {
            for (i, reg) in (0..).zip(&self.regs) {
                let src = f(i, self.at(i)).as_operand();
                self.k.emit(Inst::Mov { ty: ScalarType::F32, dst: reg.id, src });
            }
        });
    }

    /// The elements as a tile: two rows of the lane; after a [`wait`](Self::wait) for all.
    pub fn tile(&self) -> RegTile<'k, f32> {
        let row = |slot: u32| {
            let pairs = self.pairs().filter(move |(row, ..)| row / 8 == slot);
            pairs.flat_map(|(.., pair)| pair).collect()
        };
        RegTile::new(self.k, 4, vec![row(0), row(1)])
    }

    /// Multiplies each row by its factor; after a [`wait`](Self::wait) for all.
    #[track_caller]
    pub fn scale_rows(&self, factors: &RowVector<'k, f32>) {
        self.k.on_behalf(|| self.replace(|i, value| value * factors[(i / 2 % 2) as usize]));
    }

    /// Waits until at most the last `pending` groups are still being added.
    #[track_caller]
    pub fn wait(&self, pending: u32) {
        self.k.emit(Inst::WgmmaWait { pending });
    }

    /// Sum `i` of the lane, in the order of the module's description, integers rounded to `f32`; after a [`wait`](Self::wait) for all.
    #[track_caller]
    pub fn at(&self, i: u32) -> F32<'k> {
        let RawReg { id, ty } = self.regs[i as usize];
        if ty == ScalarType::S32 { self.integer(i).to_f32() } else { Reg::from_id(self.k, id) }
    }

    /// Sum `i` of products of integers; after a [`wait`](Self::wait) for all.
    pub fn integer(&self, i: u32) -> I32<'k> {
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
