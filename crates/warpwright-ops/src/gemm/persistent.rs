//! Products whose tiles blocks compute that stay.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{TensorMapArg, kernel_args};
use warpwright_ptx::isa::DeviceLimits;
use warpwright_runtime::LaunchStep;

use super::engine::{self, Blocks, Epilogue, OrderArgs, RowSums, Store, WorkArgs};
use super::epilogue::{Columns, Even, Program, ResultArgs, ResultParams};
use super::tuning::{Config, PersistentConfig};
use super::{GemmArgs, GemmDesc, MAX_BOX_STRIDE, OP, Product};
use crate::PlanError;
use crate::plan::{self, small};

kernel_args! {
    /// `y = activation(alpha op(a) op(b) + beta c + bias)`
    pub(super) struct PersistentArgs => PersistentParams { work: WorkArgs, alpha: f32, beta: f32 }
}

/// A product of matrices whose tiles persistent blocks compute.
#[derive(Clone, Copy, Debug)]
pub(super) struct PersistentGemm {
    pub(super) dtype: DType,
    /// How `op(a)` and `op(b)` are stored.
    pub(super) a: Major,
    pub(super) b: Major,
    pub(super) config: PersistentConfig,
    pub(super) program: Program,
    pub(super) store: Store,
}

impl PersistentGemm {
    pub(super) fn blocks(&self) -> Blocks {
        let Self { dtype, a, b, config, store, .. } = *self;
        let part_of_b = config.part_of_b(dtype, b);
        Blocks {
            slices: config.tiles(dtype, a, b),
            part_of_b,
            y: dtype,
            config,
            store,
            planes: None,
            turns: false,
        }
    }

    fn finish<'k>(&self, PersistentParams { work, alpha, beta }: PersistentParams<'k>) -> Finish<'k> {
        Finish { program: self.program, sizes: (work.m, work.n, work.ldy), factors: (alpha, beta) }
    }
}

/// The epilogue of whole results: `activation(alpha sum + beta c + bias)`.
pub(crate) struct Finish<'k> {
    pub(crate) program: Program,
    /// Rows and columns of a result, and elements from one row to the next.
    pub(crate) sizes: (U32<'k>, U32<'k>, U64<'k>),
    /// `alpha` and `beta`.
    pub(crate) factors: (F32<'k>, F32<'k>),
}

impl<'k> Epilogue<'k> for Finish<'k> {
    type Rows = ();

    fn rows(&self, _: U32<'k>, _: &dyn Fn(u32) -> U32<'k>) {}

    fn reads(&self, to: &ResultParams<'k>) -> Vec<Ptr<'k, Read, Elem>> {
        if self.program.residual || self.program.addend { vec![to.c] } else { Vec::new() }
    }

    fn columns(&self, to: &ResultParams<'k>, col: U32<'k>) -> Option<Columns<'k>> {
        let Program { scale, residual, .. } = self.program;
        // Panels bring elements of 16 bits.
        let brought = !residual || to.y.dtype().bytes() == 2;
        ((scale || residual) && brought).then(|| self.program.whole_columns(to, (col, self.sizes.1)))
    }

    fn pair_onto(
        &self,
        to: &ResultParams<'k>,
        columns: &Columns<'k>,
        sums: [F32<'k>; 2],
        residual: Option<[F32<'k>; 2]>,
    ) -> [F32<'k>; 2] {
        self.program.pair_onto(to, columns, sums, residual)
    }

    fn results(
        &self,
        to: &ResultParams<'k>,
        (): &(),
        ((row, _), col): ((U32<'k>, u32), U32<'k>),
        sums: &[[F32<'k>; 2]],
        read: &[[F32<'k>; 2]],
        even: Even,
    ) -> Vec<[F32<'k>; 2]> {
        let of = |sums: &[F32<'k>; 2]| {
            let sums = (*sums, read.first().copied());
            self.program.pair(to, self.sizes, self.factors, (row, col), sums, even)
        };
        sums.iter().map(of).collect()
    }
}

impl KernelDef for PersistentGemm {
    type Args = PersistentArgs;

    fn spec(&self) -> KernelSpec {
        let rows = if self.store == Store::Rows { "_rows" } else { "" };
        let name = format!("{}{rows}{}", self.config.name(), self.program.name());
        KernelSpec::new(
            super::kernel::name(self.dtype, (self.a, self.b), &name, false),
            BlockDim::x(self.blocks().threads()),
        )
        .dtypes(DTypes::all(self.dtype))
        .cluster(self.config.cluster)
        .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, p: PersistentParams<'k>) {
        self.blocks().record(k, p.work, None, &self.finish(p));
    }
}

kernel_args! {
    /// The same, and `dbias`, the sums of the rows of `op(a)`.
    pub(super) struct SummingArgs => SummingParams {
        product: PersistentArgs,
        dbias: Out<Elem>,
        /// Pieces of rows that a warp adds up.
        pieces: u32,
    }
}

/// A product of matrices and the sums of the rows of its left factor, which is stored along them.
#[derive(Clone, Copy, Debug)]
pub(super) struct SummingGemm(pub(super) PersistentGemm);

impl KernelDef for SummingGemm {
    type Args = SummingArgs;

    fn spec(&self) -> KernelSpec {
        let spec = self.0.spec();
        KernelSpec { name: format!("{}_dbias", spec.name), ..spec }
    }

    fn build<'k>(&self, k: K<'k>, SummingParams { product, dbias, pieces }: SummingParams<'k>) {
        let sums = RowSums { to: dbias, pieces, part: None };
        self.0.blocks().record_summing(k, product.work, sums, &self.0.finish(product));
    }
}

impl GemmDesc {
    /// The launch of products from a kernel whose blocks stay.
    pub(super) fn launch_persistent(
        &self,
        target: Target,
        config: PersistentConfig,
        product: Product,
    ) -> Result<LaunchStep, PlanError> {
        let Product { a, b, to, count, .. } = product;
        let (major_a, major_b) = self.major();
        let kernel = PersistentGemm {
            dtype: self.dtype,
            a: major_a,
            b: major_b,
            config,
            program: self.program(),
            store: self.store(),
        };
        let blocks = kernel.blocks();
        let maps = [
            self.boxes(&a, blocks.slices.0, (self.m, self.lda), (count, self.stride_a)),
            self.boxes(&b, blocks.part_of_b, (self.n, self.ldb), (count, self.stride_b)),
        ];
        let (work, grid) = self.work(target, &blocks, maps, to, count)?;
        let product = PersistentArgs { work, alpha: self.alpha.get() as f32, beta: self.beta.get() as f32 };
        if self.sums_beside(Config::Persistent(config)) {
            let pieces = self.pieces(config);
            let values = SummingArgs { product, dbias: GemmArgs::dbias.arg(), pieces }.values();
            return blocks.launch(OP, target, &SummingGemm(kernel), grid, values);
        }
        blocks.launch(OP, target, &kernel, grid, product.values())
    }

    /// The work of persistent blocks on `count` products, and how many blocks there are.
    pub(super) fn work(
        &self,
        target: Target,
        blocks: &Blocks,
        [a, b]: [TensorMapArg; 2],
        to: ResultArgs,
        count: usize,
    ) -> Result<(WorkArgs, u32), PlanError> {
        let order = blocks.config.order(OP, [self.m, self.n, count])?;
        let grid = blocks.config.blocks(target, &order);
        let (sizes, leading) = ((self.m as u64, self.n as u64), self.bytes(self.ldy));
        let work = WorkArgs {
            a,
            b,
            y_boxes: blocks.boxes_of_results(&to.y, sizes, leading, self.matrices(count, self.stride_y)),
            to,
            m: small(self.m),
            n: small(self.n),
            steps: small(self.k).div_ceil(blocks.slices.0.depth),
            order,
            ldy: self.ldy as u64,
            stride_y: self.stride_y as u64,
            batch_a: u32::from(self.stride_a > 0),
            batch_b: u32::from(self.stride_b > 0),
        };
        Ok((work, grid))
    }

    /// How results go to memory.
    pub(super) fn store(&self) -> Store {
        if self.has_boxes_of_results() { Store::Panels } else { Store::Rows }
    }

    /// Whether tensor copies can store `y` where it begins at a multiple of 16 bytes.
    fn has_boxes_of_results(&self) -> bool {
        let near = |elements: usize| elements.saturating_mul(self.dtype.bytes()) < MAX_BOX_STRIDE;
        let matrices = self.batch <= 1 || near(self.stride_y);
        let whole = engine::ends_whole(self.n, self.dtype);
        whole && self.is_aligned(self.ldy, self.stride_y) && near(self.ldy) && matrices
    }

    /// The epilogue of whole products, as kernels record it.
    pub(super) fn program(&self) -> Program {
        Program {
            scaled: self.alpha.get() != 1.0,
            addend: self.beta.get() != 0.0,
            bias: self.bias,
            activation: self.activation,
            ..Program::default()
        }
    }
}

impl PersistentConfig {
    /// The tiles of `count` products of `m` x `n` results, and their order.
    pub(crate) fn order(self, op: &'static str, [m, n, count]: [usize; 3]) -> Result<OrderArgs, PlanError> {
        let rows = (self.rows * self.cluster) as usize;
        let (down, across) = (m.div_ceil(rows), n.div_ceil(self.cols as usize));
        let tiles = down.saturating_mul(across).saturating_mul(count);
        let tiles = plan::cover(op, tiles, 1)?.map_or(0, |grid| grid[0]);
        let down = u32::try_from(down).unwrap_or(u32::MAX);
        let height = self.height.clamp(1, down);
        Ok(OrderArgs { down, across: u32::try_from(across).unwrap_or(u32::MAX), tiles, height })
    }

    /// Blocks of a launch: as many as run at once, if there are so many tiles.
    pub(crate) fn blocks(self, target: Target, order: &OrderArgs) -> u32 {
        let blocks = order.tiles.saturating_mul(self.cluster);
        blocks.min(DeviceLimits::of(target).multiprocessors / self.cluster * self.cluster)
    }
}
