//! Products beside an activation, as feed-forward layers that are trained have them: `y = activation(z)` of `z = x op(weight) + bias`, with
//! `z`, which the gradients need, beside `y` (cuBLASLt's epilogues with an auxiliary output); and `dz = (dy op(weight)) activation'(z)`, the
//! gradient of what the activation took from that of what the layer behind it gave.
//!
//! On sm_90 each is one launch of f16 and bf16. Elsewhere, in f32 and f64, and where blocks share the common dimension, the product and the
//! activation are launches of their own, and the product is rounded to the type of the results between them.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use super::engine::{BesideArgs, BesideParams, Blocks, Epilogue, WorkArgs, WorkParams};
use super::epilogue::{self, Columns, Even, Program, ResultArgs, ResultParams, pair_at, sums_dtype};
use super::persistent::{Finish, PersistentGemm};
use super::tuning::{self, PersistentConfig};
use super::{GemmDesc, MAX_SIDE, Part, WIDE};
use crate::PlanError;
use crate::activation::{
    Activation, ActivationArgs, ActivationBackwardArgs, ActivationBackwardDesc, ActivationDesc,
    differentiate, evaluate,
};
use crate::catalogue::Direction;
use crate::plan::embedded::value_of;
use crate::plan::{Operation, Plan, PlanParts, TensorSpec, Variant};
use crate::tensors::tensors;

/// The names of both operations.
pub(super) const FORWARD: &str = "linear_activation";
pub(super) const BACKWARD: &str = "activation_linear";

/// `z = x op(weight) + bias` and `y = activation(z)`, of matrices without gaps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinearActivationDesc {
    /// Element type of all tensors.
    pub dtype: DType,
    /// Rows of `x`, `z` and `y`.
    pub rows: usize,
    /// Columns of `x`.
    pub in_features: usize,
    /// Columns of `z` and `y`.
    pub out_features: usize,
    /// Whether the weight is `[out_features, in_features]`, as that of a linear layer, and not `[in_features, out_features]`.
    pub transpose_b: bool,
    /// Whether there is a bias.
    pub bias: bool,
    /// The function; one without a parameter.
    pub activation: Activation,
}

tensors! {
    /// Tensors of [`LinearActivationDesc`].
    pub struct LinearActivationArgs<'a> {
        /// The rows, `[rows, in_features]`.
        x: In,
        /// The weight.
        weight: In,
        /// The vector that is added to every row, `[out_features]`.
        bias: Option<In>,
        /// The argument of the activation, `[rows, out_features]`.
        z: Out,
        /// The result, of the same shape.
        y: Out,
        /// Scratch memory, if the plan needs some.
        workspace: Option<Out>,
    }
}

/// `dz = (dy op(weight)) * activation'(z)`, of matrices without gaps: the gradient of `z` from that of `y`, where `y` is what a linear layer
/// makes of `activation(z)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ActivationLinearBackwardDesc {
    /// Element type of all tensors.
    pub dtype: DType,
    /// Rows of all but the weight.
    pub rows: usize,
    /// Columns of `z` and `dz`: what the layer takes.
    pub in_features: usize,
    /// Columns of `dy`: what it gives.
    pub out_features: usize,
    /// Whether the weight is `[in_features, out_features]`, and not `[out_features, in_features]`, as that of a linear layer.
    pub transpose_b: bool,
    /// The function; one without a parameter.
    pub activation: Activation,
}

tensors! {
    /// Tensors of [`ActivationLinearBackwardDesc`].
    pub struct ActivationLinearBackwardArgs<'a> {
        /// The gradient of what the layer gave, `[rows, out_features]`.
        dy: In,
        /// The weight of the layer.
        weight: In,
        /// The argument of the activation, `[rows, in_features]`.
        z: In,
        /// The gradient of `z`.
        dz: Out,
        /// Scratch memory, if the plan needs some.
        workspace: Option<Out>,
    }
}

kernel_args! {
    /// A product, and where what the activation takes goes.
    pub(super) struct SavingArgs => SavingParams { work: WorkArgs, z: BesideArgs }
}

/// A product whose activation's argument is stored, too.
#[derive(Clone, Copy, Debug)]
pub(super) struct SavingGemm {
    /// With a bias and an activation.
    pub(super) product: PersistentGemm,
    pub(super) activation: Activation,
}

impl KernelDef for SavingGemm {
    type Args = SavingArgs;

    fn spec(&self) -> KernelSpec {
        let spec = self.product.spec();
        KernelSpec { name: format!("{}_z_{}", spec.name, self.activation.name()), ..spec }
    }

    fn build<'k>(&self, k: K<'k>, SavingParams { work, z }: SavingParams<'k>) {
        let one = k.lit(1.0f32);
        let sizes = (work.m, work.n, work.ldy);
        let sum = Finish { program: self.product.program, sizes, factors: (one, one) };
        self.product.blocks_in_turns().record(k, work, None, &Saving { sum, activation: self.activation, z });
    }
}

/// The epilogue that stores the activation's argument and its result.
struct Saving<'k> {
    sum: Finish<'k>,
    activation: Activation,
    z: BesideParams<'k>,
}

impl<'k> Epilogue<'k> for Saving<'k> {
    type Rows = ();

    fn rows(&self, _: U32<'k>, _: &dyn Fn(u32) -> U32<'k>) {}

    fn beside(&self) -> Vec<BesideParams<'k>> {
        vec![self.z]
    }

    fn results(
        &self,
        to: &ResultParams<'k>,
        (): &(),
        at: ((U32<'k>, u32), U32<'k>),
        sums: &[[F32<'k>; 2]],
        read: &[[F32<'k>; 2]],
        even: Even,
    ) -> Vec<[F32<'k>; 2]> {
        self.sum.results(to, &(), at, sums, read, even)
    }

    fn columns(&self, to: &ResultParams<'k>, col: U32<'k>) -> Option<Columns<'k>> {
        let (program, n) = (self.sum.program, self.sum.sizes.1);
        program.bias.then(|| program.whole_columns(to, (col, n)))
    }

    fn pair_onto(
        &self,
        to: &ResultParams<'k>,
        columns: &Columns<'k>,
        sums: [F32<'k>; 2],
        _: Option<[F32<'k>; 2]>,
    ) -> [F32<'k>; 2] {
        self.sum.pair_onto(to, columns, sums, None)
    }

    fn last(&self, dtype: DType, beside: &[[F32<'k>; 2]]) -> [F32<'k>; 2] {
        beside[0].map(|z| evaluate(self.activation, z, dtype))
    }
}

kernel_args! {
    /// A product, whose `c` is what the activation took.
    pub(super) struct DerivativeArgs => DerivativeParams { work: WorkArgs }
}

/// A product times the derivative of an activation.
#[derive(Clone, Copy, Debug)]
pub(super) struct DerivativeGemm {
    pub(super) product: PersistentGemm,
    pub(super) activation: Activation,
}

impl KernelDef for DerivativeGemm {
    type Args = DerivativeArgs;

    fn spec(&self) -> KernelSpec {
        let spec = self.product.spec();
        KernelSpec { name: format!("{}_d_{}", spec.name, self.activation.name()), ..spec }
    }

    fn build<'k>(&self, k: K<'k>, DerivativeParams { work }: DerivativeParams<'k>) {
        self.product.blocks_in_turns().record(
            k,
            work,
            None,
            &Derivative { work, activation: self.activation },
        );
    }
}

impl<'k> WorkParams<'k> {
    /// Pairs of tensors that lie as the results do and that a layer kept: those that have been `read`, or else the ones at (`row`, `col`).
    pub(super) fn kept(
        &self,
        tensors: &[Ptr<'k, Read, Elem>],
        (row, col): (U32<'k>, U32<'k>),
        read: &[[F32<'k>; 2]],
        even: Even,
    ) -> Vec<[F32<'k>; 2]> {
        if !read.is_empty() {
            return read.to_vec();
        }
        let at = row.to_u64() * self.ldy + col.to_u64();
        let pair =
            |from: &Ptr<'k, Read, Elem>| pair_at(from.at(at), Some(row.lt(self.m)), (col, self.n), even.rows);
        tensors.iter().map(pair).collect()
    }
}

/// The epilogue that multiplies sums by the derivative of an activation.
struct Derivative<'k> {
    work: WorkParams<'k>,
    activation: Activation,
}

impl<'k> Epilogue<'k> for Derivative<'k> {
    type Rows = ();

    fn rows(&self, _: U32<'k>, _: &dyn Fn(u32) -> U32<'k>) {}

    fn reads(&self, to: &ResultParams<'k>) -> Vec<Ptr<'k, Read, Elem>> {
        vec![to.c]
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
        let z = self.work.kept(&self.reads(to), (row, col), read, even)[0];
        vec![[0, 1].map(|i| differentiate(self.activation, (z[i], sums[0][i]), to.y.dtype()))]
    }
}

impl PersistentGemm {
    /// The layout of blocks with much to do behind a product: warpgroups take turns where each can have a tile of its own, so that one
    /// multiplies while the other evaluates and stores.
    pub(super) fn blocks_in_turns(&self) -> Blocks {
        Blocks { turns: takes_turns(&self.config), ..self.blocks() }
    }
}

/// Whether each of two warpgroups can have the sums of a tile.
const fn takes_turns(config: &PersistentConfig) -> bool {
    config.groups == 2 && config.rows == 128 && config.cols == 128 && config.cluster == 1
}

/// Whether threads have registers for both an activation and its argument: of 64 rows a warpgroup, and of weights along the columns in half as
/// wide tiles, since addresses of their slices take more.
pub(super) fn has_registers(config: &PersistentConfig, b: Major) -> bool {
    config.rows == 64 * config.groups && (b == Major::K || config.cols < 256)
}

/// The greatest common dimension of products whose tiles take longer to finish than the smaller tiles of turns cost: these read more of the
/// L2 cache.
const MOST_IN_TURNS: usize = 4096;
/// The part that products in turns take of the time that the model gives for tiles that are multiplied and finished one after the other.
const IN_TURNS: f64 = 0.75;

/// A product and an activation, as all of these operations have them.
pub(super) struct Layer {
    pub(super) op: &'static str,
    /// The name of the left factor, and those of the rows, columns and common dimension of the product.
    pub(super) names: (&'static str, [&'static str; 3]),
    pub(super) product: GemmDesc,
    pub(super) activation: Activation,
}

impl Layer {
    /// Elements of the factors and the results.
    pub(super) fn lengths(&self) -> Result<[usize; 3], PlanError> {
        let GemmDesc { dtype, m, n, k, .. } = self.product;
        let (factor, sides) = self.names;
        PlanError::check_floats(self.op, factor, dtype)?;
        if let Some((name, side)) = sides.into_iter().zip([m, n, k]).find(|(_, side)| *side > MAX_SIDE) {
            return Err(PlanError::refused(self.op, name, side, "less than 2^31"));
        }
        if self.activation.parameter().is_some() || epilogue::code(Some(self.activation)).is_none() {
            let expected = "relu, gelu_erf, gelu_tanh, silu, sigmoid or tanh";
            return Err(PlanError::refused(self.op, "activation", self.activation.name(), expected));
        }
        let lengths = self.product.check()?;
        Ok([lengths.a, lengths.b, lengths.y])
    }

    /// Whether one product can be launched for tensors at multiples of 16 bytes.
    fn fits(&self, target: Target) -> bool {
        let product = &self.product;
        let read = product.dtype.bytes() == 2 && product.is_wide() && product.has_boxes();
        target.sm == 90 && read && product.m > 0 && product.n > 0
    }

    /// Whether threads have registers for what becomes of their sums.
    fn takes(&self, config: &PersistentConfig) -> bool {
        self.op != FORWARD || has_registers(config, self.product.major().1)
    }

    /// The layout of the one product, if that takes less time than a product by itself and `passes` tensors more that the activation reads or writes.
    pub(super) fn fused(&self, target: Target, passes: u64) -> Result<Option<PersistentConfig>, PlanError> {
        if !self.fits(target) {
            return Ok(None);
        }
        let GemmDesc { dtype, m, n, .. } = self.product;
        let shape = self.product.shape();
        let blocks = DeviceLimits::of(target).multiprocessors as usize;
        // Two tiles a block at least: one warpgroup has nothing to do beside another's only tile.
        let many = m.div_ceil(128).saturating_mul(n.div_ceil(128)) >= 2 * blocks;
        let turns = many && self.product.k <= MOST_IN_TURNS;
        let layouts = tuning::persistent_us(dtype, target, |_| shape)
            .filter(|(config, _)| self.takes(config) && (!turns || takes_turns(config)));
        let fastest = layouts.min_by(|a, b| a.1.total_cmp(&b.1));
        let bytes = (m as u64).saturating_mul(n as u64).saturating_mul(dtype.bytes() as u64);
        let apart = self.product.us(target)? + tuning::pass_us(bytes.saturating_mul(passes));
        let part = if turns { IN_TURNS } else { 1.0 };
        Ok(fastest.filter(|(_, us)| us * part <= apart).map(|(config, _)| config))
    }

    /// The kernel of a layout, its work and its blocks.
    pub(super) fn work(
        &self,
        target: Target,
        config: PersistentConfig,
        [a, b]: [In<Elem>; 2],
        to: ResultArgs,
    ) -> Result<(PersistentGemm, WorkArgs, u32), PlanError> {
        let desc = &self.product;
        let program = Program { bias: desc.bias, ..Program::default() };
        let (major_a, major_b) = desc.major();
        let (dtype, store) = (desc.dtype, desc.store());
        let kernel = PersistentGemm { dtype, a: major_a, b: major_b, config, program, store };
        let blocks = kernel.blocks();
        let maps = [
            desc.boxes(&a, blocks.slices.0, (desc.m, desc.lda), (1, 0)),
            desc.boxes(&b, blocks.part_of_b, (desc.n, desc.ldb), (1, 0)),
        ];
        let (work, grid) = desc.work(target, &blocks, maps, to, 1)?;
        Ok((kernel, work, grid))
    }

    /// Where a result beside `y` goes.
    pub(super) fn beside(&self, kernel: &PersistentGemm, to: Out<Elem>) -> BesideArgs {
        let desc = &self.product;
        let sizes = (desc.m as u64, desc.n as u64);
        BesideArgs {
            boxes: kernel.blocks().boxes_of_results(&to, sizes, desc.bytes(desc.ldy), (1, WIDE)),
            to,
        }
    }

    /// The plan of one launch, or of what `apart` gives for an alignment and the product by itself. `tensors` are those of a workspace of so
    /// many elements.
    pub(super) fn plan<O: Operation>(
        &self,
        (target, direction): (Target, Direction),
        launch: Option<LaunchStep>,
        apart: impl Fn(u64, &Plan<GemmDesc>) -> Result<Vec<LaunchStep>, PlanError>,
        tensors: impl FnOnce(usize) -> Vec<TensorSpec>,
    ) -> Result<Plan<O>, PlanError> {
        let GemmDesc { dtype, m, n, .. } = self.product;
        let product = self.product.plan(target)?;
        let mut variants = Vec::new();
        for alignment in [WIDE, dtype.bytes() as u64] {
            let steps = match &launch {
                _ if m == 0 || n == 0 => Vec::new(),
                Some(launch) if alignment == WIDE => vec![launch.clone()],
                _ => apart(alignment, &product)?,
            };
            variants.push(Variant { alignment, steps });
        }
        let sums = sums_dtype(dtype);
        let workspace_bytes = product.workspace_bytes();
        let scratch = usize::try_from(workspace_bytes).unwrap_or(usize::MAX).div_ceil(sums.bytes());
        let tensors = tensors(scratch);
        Ok(Plan::new(PlanParts { op: self.op, direction, target, tensors, variants, workspace_bytes }))
    }

    /// That a layout is one for the product.
    pub(super) fn check(&self, target: Target, config: PersistentConfig) -> Result<(), PlanError> {
        self.lengths()?;
        if self.fits(target) && config.cluster == 1 && self.takes(&config) {
            return Ok(());
        }
        let expected = "one for 16-bit elements on sm_90, of rows that begin at multiples of 16 bytes, whose threads have registers for two results";
        Err(PlanError::refused(self.op, "config", config.name(), expected))
    }
}

impl LinearActivationDesc {
    pub(super) const fn layer(&self) -> Layer {
        let Self { dtype, rows, in_features, out_features, transpose_b, bias, activation } = *self;
        let product = GemmDesc::new(dtype, [rows, out_features, in_features], false, transpose_b);
        let product = GemmDesc { bias, ..product };
        Layer { op: FORWARD, names: ("x", ["rows", "out_features", "in_features"]), product, activation }
    }

    fn plan_by(&self, target: Target, fused: Option<PersistentConfig>) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = LinearActivationArgs<'a>;
        let layer = self.layer();
        let Self { dtype, out_features, activation, bias, .. } = *self;
        let [x, weight, len] = layer.lengths()?;
        let of_bias = || if bias { Args::bias.arg() } else { In::address(0) };
        let launch = |config| {
            let to = ResultArgs::new(In::address(0), of_bias(), Args::y.arg());
            let (product, work, grid) =
                layer.work(target, config, [Args::x.arg(), Args::weight.arg()], to)?;
            let values = SavingArgs { work, z: layer.beside(&product, Args::z.arg()) }.values();
            let kernel = SavingGemm { product, activation };
            product.blocks_in_turns().launch(FORWARD, target, &kernel, grid, values)
        };
        let fused = fused.map(launch).transpose()?;
        let apart = |alignment, product: &Plan<GemmDesc>| {
            let (a, b, y) = (Args::x.arg(), Args::weight.arg(), Args::z.arg());
            let part = Part { a, b, bias: of_bias(), y, workspace: Args::workspace.arg() };
            let mut steps = part.steps(product, alignment);
            let places = [
                (value_of(&ActivationArgs::x.arg::<Elem>()), value_of(&Args::z.written::<Elem>())),
                (value_of(&ActivationArgs::y.arg::<Elem>()), value_of(&Args::y.arg::<Elem>())),
            ];
            steps
                .extend(ActivationDesc { activation, dtype, len }.plan(target)?.embedded(alignment, &places));
            Ok(steps)
        };
        let tensors = |scratch| {
            Args::specs([
                Args::x.holds(dtype, x),
                Args::weight.holds(dtype, weight),
                Args::bias.holds(dtype, out_features).optional(bias),
                Args::z.holds(dtype, len),
                Args::y.holds(dtype, len),
                Args::workspace.scratch(sums_dtype(dtype), scratch),
            ])
        };
        layer.plan((target, Direction::Forward), fused, apart, tensors)
    }

    /// The plan in which aligned tensors are multiplied by one kernel of this layout: one of 16-bit elements on sm_90.
    ///
    /// # Errors
    /// As [`plan`](Operation::plan); and if tensor copies cannot reach the tensors.
    pub fn plan_with(&self, target: Target, config: PersistentConfig) -> Result<Plan<Self>, PlanError> {
        self.layer().check(target, config)?;
        self.plan_by(target, Some(config))
    }
}

impl Operation for LinearActivationDesc {
    type Args<'a> = LinearActivationArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let layer = self.layer();
        layer.lengths()?;
        self.plan_by(target, layer.fused(target, 1)?)
    }
}

impl ActivationLinearBackwardDesc {
    pub(super) const fn layer(&self) -> Layer {
        let Self { dtype, rows, in_features, out_features, transpose_b, activation } = *self;
        let product = GemmDesc::new(dtype, [rows, in_features, out_features], false, transpose_b);
        Layer { op: BACKWARD, names: ("dy", ["rows", "in_features", "out_features"]), product, activation }
    }

    fn plan_by(&self, target: Target, fused: Option<PersistentConfig>) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = ActivationLinearBackwardArgs<'a>;
        let layer = self.layer();
        let Self { dtype, activation, .. } = *self;
        let [dy, weight, len] = layer.lengths()?;
        let launch = |config| {
            let to = ResultArgs::new(Args::z.arg(), In::address(0), Args::dz.arg());
            let (product, work, grid) =
                layer.work(target, config, [Args::dy.arg(), Args::weight.arg()], to)?;
            let kernel = DerivativeGemm { product, activation };
            product.blocks_in_turns().launch(
                BACKWARD,
                target,
                &kernel,
                grid,
                DerivativeArgs { work }.values(),
            )
        };
        let fused = fused.map(launch).transpose()?;
        let apart = |alignment, product: &Plan<GemmDesc>| {
            type Unit<'a> = ActivationBackwardArgs<'a>;
            let (a, b, y) = (Args::dy.arg(), Args::weight.arg(), Args::dz.arg());
            let part = Part { a, b, bias: In::address(0), y, workspace: Args::workspace.arg() };
            let mut steps = part.steps(product, alignment);
            let places = [
                (value_of(&Unit::x.arg::<Elem>()), value_of(&Args::z.arg::<Elem>())),
                (value_of(&Unit::dy.arg::<Elem>()), value_of(&Args::dz.written::<Elem>())),
                (value_of(&Unit::dx.arg::<Elem>()), value_of(&Args::dz.arg::<Elem>())),
            ];
            let unit = ActivationBackwardDesc { activation, dtype, len };
            steps.extend(unit.plan(target)?.embedded(alignment, &places));
            Ok(steps)
        };
        let tensors = |scratch| {
            Args::specs([
                Args::dy.holds(dtype, dy),
                Args::weight.holds(dtype, weight),
                Args::z.holds(dtype, len),
                Args::dz.holds(dtype, len),
                Args::workspace.scratch(sums_dtype(dtype), scratch),
            ])
        };
        layer.plan((target, Direction::Backward), fused, apart, tensors)
    }

    /// The plan in which aligned tensors are multiplied by one kernel of this layout: one of 16-bit elements on sm_90.
    ///
    /// # Errors
    /// As [`plan`](Operation::plan); and if tensor copies cannot reach the tensors.
    pub fn plan_with(&self, target: Target, config: PersistentConfig) -> Result<Plan<Self>, PlanError> {
        self.layer().check(target, config)?;
        self.plan_by(target, Some(config))
    }
}

impl Operation for ActivationLinearBackwardDesc {
    type Args<'a> = ActivationLinearBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let layer = self.layer();
        layer.lengths()?;
        self.plan_by(target, layer.fused(target, 2)?)
    }
}
