//! Products whose few tiles all blocks share: each has as many slices of the common dimension as the others, and leaves the sums of what it has
//! of a tile to a launch that adds them in order.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{PanelTile, kernel_args, sum_of_parts};
use warpwright_ptx::kernel::Kernel;
use warpwright_runtime::LaunchStep;

use super::engine::{self, Blocks, RowSums, ShareArgs, Store, WorkArgs};
use super::epilogue::{EpilogueArgs, Outputs, Program, ResultArgs};
use super::persistent::Finish;
use super::tuning::{self, Config, PersistentConfig, Shape, Sharing};
use super::{GemmArgs, GemmDesc, Lengths, OP, Precision, Product, WIDE as ALIGNED};
use crate::PlanError;
use crate::plan::{self, Plan, Variant, small};

kernel_args! {
    /// The sums of parts of `op(a) op(b)`, one matrix behind the other, and of the rows of `op(a)`.
    pub(super) struct SharedArgs => SharedParams {
        work: WorkArgs, share: ShareArgs,
        sums: Out<Elem>,
        /// Pieces of rows that a warp adds up.
        pieces: u32,
    }
}

/// A product of matrices whose tiles all blocks share.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedGemm {
    pub(super) dtype: DType,
    /// How `op(a)` and `op(b)` are stored.
    pub(super) a: Major,
    pub(super) b: Major,
    pub(super) config: PersistentConfig,
    /// Whether rows of `op(a)` are added up.
    pub(super) sums: bool,
    /// Whether the result is the sum of several products.
    pub(super) several: bool,
}

impl SharedGemm {
    fn blocks(&self) -> Blocks {
        let Self { dtype, a, b, config, .. } = *self;
        Blocks {
            slices: config.tiles(dtype, a, b),
            part_of_b: config.part_of_b(dtype, b),
            y: DType::F32,
            config,
            store: Store::Panels,
            planes: None,
            turns: false,
        }
    }
}

impl KernelDef for SharedGemm {
    type Args = SharedArgs;

    fn spec(&self) -> KernelSpec {
        let sums = if self.sums { "_dbias" } else { "" };
        let several = if self.several { "_several" } else { "" };
        let name = format!("{}_shared{several}{sums}", self.config.name());
        KernelSpec::new(
            super::kernel::name(self.dtype, (self.a, self.b), &name, false),
            BlockDim::x(self.blocks().threads()),
        )
        .dtypes(DTypes::all(self.dtype).with("work.to", DType::F32).with("sums", DType::F32))
        .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, SharedParams { work, share, sums, pieces }: SharedParams<'k>) {
        let sums = RowSums { to: sums, pieces, part: Some(work.m.to_u64()) };
        let one = k.lit(1.0f32);
        let sizes = (work.m, work.n, work.ldy);
        let finish = Finish { program: Program::default(), sizes, factors: (one, one) };
        self.blocks().record_sharing(k, work, (share, self.several), self.sums.then_some(sums), &finish);
    }
}

kernel_args! {
    /// `y = activation(alpha sum of parts + beta c + bias)`, and `dbias`.
    pub(super) struct AddArgs => AddParams {
        partials: In<Elem>, sums: In<Elem>, to: ResultArgs, dbias: Out<Elem>,
        m: u32, n: u32,
        /// Elements from one row of a part to the next.
        pitch: u32,
        share: ShareArgs,
        pieces: u32,
        ldy: u64,
        epilogue: EpilogueArgs,
    }
}

/// Adds the parts of tiles that blocks share.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddShared {
    pub(super) dtype: DType,
    /// Rows and columns of a tile.
    pub(super) tile: (u32, u32),
    /// Elements of a thread, which divides the columns.
    pub(super) width: u32,
    /// Whether there are sums of rows.
    pub(super) sums: bool,
}

/// Threads of a block.
const THREADS: u32 = 128;
/// Elements of a thread where results are aligned.
const WIDE: u32 = 4;

impl KernelDef for AddShared {
    type Args = AddArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, tile: (rows, cols), width, sums } = *self;
        let sums = if sums { "_dbias" } else { "" };
        KernelSpec::new(format!("gemm_add_shared_{dtype}_{rows}x{cols}_v{width}{sums}"), BlockDim::x(THREADS))
            .dtypes(DTypes::all(dtype).with("partials", DType::F32).with("sums", DType::F32))
    }

    fn build<'k>(&self, k: K<'k>, p: AddParams<'k>) {
        let Self { tile: (rows, cols), width, .. } = *self;
        let at = k.block_idx_x() * THREADS + k.thread_idx();
        let per_row = p.n / width;
        let row = at / per_row;
        let col = (at - row * per_row) * width;
        let none = k.lit(0u64);
        let outputs = Outputs::new(p.to, p.epilogue, (p.ldy, none), (none, none));
        let results = || {
            let (_, parts) = p.share.parts(p.share.tile(row / rows, col / cols));
            let from = p.partials.at(row.mul_wide(p.pitch) + col.to_u64());
            let sums = sum_of_parts::<f32, _, _>(from, (parts, p.m.mul_wide(p.pitch)), width);
            outputs.finish(row, col, &sums);
        };
        if !self.sums {
            k.if_(row.lt(p.m), results);
            return;
        }
        k.if_else(row.lt(p.m), results, || {
            let row = at - per_row * p.m;
            k.if_(row.lt(p.m), || {
                let right = engine::tile_of_sums(row, rows, p.pieces);
                let (_, parts) = p.share.parts(p.share.tile(row / rows, right));
                let sum = sum_of_parts::<f32, _, _>(p.sums.at(row), (parts, p.m.to_u64()), 1);
                p.dbias.at(row).store(sum);
            });
        });
    }
}

impl GemmDesc {
    /// The product as blocks share it: where its result is the sum of several, with their slices one behind the other.
    fn shared_shape(&self, several: bool) -> Shape {
        let shape = self.shape();
        if !several {
            return shape;
        }
        // Slices of elements of any size are as deep as those of 16 bits here.
        let slices = shape.k.div_ceil(PanelTile::width_of(self.dtype).into());
        let k = slices.saturating_mul(PanelTile::WIDTH.into()).saturating_mul(shape.batch);
        Shape { k, batch: 1, ..shape }
    }

    /// How blocks share the tiles.
    pub(super) fn sharing(
        &self,
        target: Target,
        config: PersistentConfig,
        several: bool,
    ) -> Result<Sharing, PlanError> {
        Sharing::new(target, self.shared_shape(several), Config::Shared(config)).ok_or_else(|| {
            let expected = "one whose few tiles blocks can share, of a single product";
            Self::parameter("config", config.name(), expected)
        })
    }

    /// Elements from one row of a part to the next: tensor copies store vectors.
    fn pitch(&self) -> usize {
        self.n.next_multiple_of(WIDE as usize)
    }

    /// Elements of the parts of all tiles, and with those of sums of rows.
    pub(super) fn shared_partials(
        &self,
        target: Target,
        config: PersistentConfig,
        several: bool,
    ) -> Result<[usize; 2], PlanError> {
        let parts = self.sharing(target, config, several)?.parts as usize;
        let sums = self.m.checked_mul(self.pitch()).and_then(|len| len.checked_mul(parts));
        let rows = if self.sums_beside(Config::Shared(config)) { self.m * parts } else { 0 };
        let all = sums.and_then(|sums| Some([sums, sums.checked_add(rows)?]));
        all.ok_or_else(|| Self::parameter("m x n", self.m, "such that the workspace is addressable"))
    }

    /// The pieces of rows that a warp adds up.
    pub(super) fn pieces(&self, config: PersistentConfig) -> u32 {
        engine::pieces(config.rows, small(self.n.div_ceil(config.cols as usize)))
    }

    /// The launches of a product whose tiles blocks share, or of the sum of all of the batch's if `several`.
    pub(super) fn shared_steps(
        &self,
        target: Target,
        config: PersistentConfig,
        several: bool,
        Product { a, b, to, epilogue, .. }: Product,
        steps: &mut Vec<LaunchStep>,
    ) -> Result<(), PlanError> {
        let sharing = self.sharing(target, config, several)?;
        let products = if several { self.batch } else { 1 };
        let (major_a, major_b) = self.major();
        let sums = self.sums_beside(Config::Shared(config));
        let kernel = SharedGemm { dtype: self.dtype, a: major_a, b: major_b, config, sums, several };
        let blocks = kernel.blocks();
        let [partials, _] = self.shared_partials(target, config, several)?;
        let pitch = self.pitch();
        let of_rows = (partials * DType::F32.bytes()) as u64;
        let order = config.order(OP, [self.m, self.n, 1])?;
        let y = GemmArgs::workspace.arg();
        let (rows, bytes) = ((self.m as u64, pitch as u64), (pitch * DType::F32.bytes()) as u64);
        let matrices = (sharing.parts.into(), self.m as u64 * bytes);
        let work = WorkArgs {
            a: self.boxes(&a, blocks.slices.0, (self.m, self.lda), (products, self.stride_a)),
            b: self.boxes(&b, blocks.part_of_b, (self.n, self.ldb), (products, self.stride_b)),
            y_boxes: blocks.boxes_of_results(&y, rows, bytes, matrices),
            to: ResultArgs::new(In::address(0), In::address(0), y),
            m: small(self.m),
            n: small(self.n),
            steps: sharing.steps,
            order,
            ldy: pitch as u64,
            stride_y: (self.m * pitch) as u64,
            batch_a: 0,
            batch_b: 0,
        };
        let pieces = self.pieces(config);
        let share = ShareArgs::new(&sharing, small(products));
        let values = SharedArgs { work, share, sums: GemmArgs::workspace.arg_at(of_rows), pieces };
        let grid = sharing.lines * sharing.blocks;
        steps.push(blocks.launch(OP, target, &kernel, grid, values.values())?);

        let whole = self.n.is_multiple_of(WIDE as usize) && self.ldy.is_multiple_of(WIDE as usize);
        let width = if whole { WIDE } else { 1 };
        let tile = (config.rows, config.cols);
        let values = AddArgs {
            partials: GemmArgs::workspace.written(),
            sums: GemmArgs::workspace.written_at(of_rows),
            to,
            dbias: GemmArgs::dbias.arg(),
            m: small(self.m),
            n: small(self.n),
            pitch: small(pitch),
            share: ShareArgs::new(&sharing, small(products)),
            pieces,
            ldy: self.ldy as u64,
            epilogue,
        };
        let threads = self.m * (self.n / width as usize) + if sums { self.m } else { 0 };
        let grid = plan::cover(OP, threads, THREADS)?.unwrap_or([1; 3]);
        let def = AddShared { dtype: self.dtype, tile, width, sums };
        steps.push(plan::launch(OP, &def, values, target, grid)?);
        Ok(())
    }

    /// The plan of the sum of all products of the batch, in `y` of one matrix, for tensors at multiples of 16 bytes of 16-bit elements, or `tf32`; `None` where
    /// blocks cannot share it. Products end within slices, whose rest is zeros.
    pub(crate) fn plan_of_sum(&self, target: Target) -> Result<Option<Plan<Self>>, PlanError> {
        let lengths = self.check()?;
        let multiplied = self.dtype.bytes() == 2 || self.precision == Precision::Tf32;
        let fits = target.sm == 90 && multiplied && self.is_wide() && self.has_boxes();
        if !fits || self.k == 0 {
            return Ok(None);
        }
        let Some(config) = tuning::choose_shared(self.dtype, target, self.shared_shape(true)) else {
            return Ok(None);
        };
        let mut steps = Vec::new();
        let product = Product {
            a: GemmArgs::a.arg(),
            b: GemmArgs::b.arg(),
            to: ResultArgs::new(GemmArgs::c.arg(), GemmArgs::bias.arg(), GemmArgs::y.arg()),
            count: self.batch,
            split: false,
            onto: false,
            epilogue: self.epilogue(),
        };
        self.shared_steps(target, config, true, product, &mut steps)?;
        let [_, scratch] = self.shared_partials(target, config, true)?;
        let matrix = self.m.saturating_sub(1).saturating_mul(self.ldy).saturating_add(self.n);
        let variants = vec![Variant { alignment: ALIGNED, steps }];
        Ok(Some(self.planned(target, &Lengths { y: matrix, ..lengths }, scratch, variants)))
    }
}

/// Every kernel of such products of a configuration.
pub(super) fn kernels(
    dtype: DType,
    (a, b): (Major, Major),
    target: Target,
    config: PersistentConfig,
) -> Result<Vec<Kernel>, PlanError> {
    let mut all = Vec::new();
    let def = SharedGemm { dtype, a, b, config, sums: false, several: false };
    let mut defs = Vec::new();
    if dtype.bytes() == 2 {
        defs.push(def);
        defs.extend((a == Major::Mn).then_some(SharedGemm { sums: true, ..def }));
    }
    if (a, b) == (Major::K, Major::K) {
        defs.push(SharedGemm { several: true, ..def });
    }
    for def in defs {
        all.push(plan::recorded(OP, &def, Target::specific(target.sm))?);
        for width in [1, WIDE] {
            let tile = (config.rows, config.cols);
            all.push(plan::recorded(OP, &AddShared { dtype, tile, width, sums: def.sums }, target)?);
        }
    }
    Ok(all)
}
