//! Gated linear units, `y = activation(x gate^T + gate_bias) * (x up^T + up_bias)` (Shazeer 2020, arXiv:2002.05202), as one product.
//!
//! On sm_90 a tile has as many columns of the gate as of the other factor, of the same results: slices of both weights lie one behind the other
//! in shared memory, and a thread has the two sums of a result, so that neither product goes to memory. Elsewhere, in f32 and f64, and where
//! blocks share the common dimension, two products, rounded to the type of the results, and the unit are launches of their own.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{PanelTile, TensorMapArg, TensorMapParam, kernel_args};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use super::engine::{
    Arriving, BesideArgs, BesideParams, Blocks, Epilogue, Joined, Loader, Pair, Place, Store, WorkArgs,
    WorkParams,
};
use super::epilogue::{Even, ResultArgs, ResultParams, pair_at, sums_dtype};
use super::lengths::Matrices;
use super::tuning::{self, PersistentConfig, Shape};
use super::{GemmDesc, MAX_BOX_STRIDE, MAX_SIDE, Part, WIDE};
use crate::PlanError;
use crate::activation::{GatedActivation, GatedArgs, GatedDesc, evaluate};
use crate::catalogue::Direction;
use crate::plan::embedded::value_of;
use crate::plan::{Operation, Plan, PlanParts, Variant, small};
use crate::tensors::tensors;

/// The name of the operation.
pub(super) const OP: &str = "gated_linear";

/// `y = activation(gate_out) * up_out` of `gate_out = x gate^T + gate_bias` and `up_out = x up^T + up_bias`, of matrices without gaps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GatedLinearDesc {
    /// Element type of all tensors.
    pub dtype: DType,
    /// Rows of `x` and `y`.
    pub rows: usize,
    /// Columns of `x`, and of both weights.
    pub in_features: usize,
    /// Columns of `y`: rows of each weight.
    pub out_features: usize,
    /// The unit.
    pub activation: GatedActivation,
    /// Whether there are biases of both products.
    pub bias: bool,
    /// Whether both products are results, too: the gradients need them.
    pub saved: bool,
}

tensors! {
    /// Tensors of [`GatedLinearDesc`].
    pub struct GatedLinearArgs<'a> {
        /// The rows, `[rows, in_features]`.
        x: In,
        /// The weight of the gate, `[out_features, in_features]`.
        gate: In,
        /// The weight of the other factor, of the same shape.
        up: In,
        /// The vector that is added to every row of `x gate^T`, `[out_features]`.
        gate_bias: Option<In>,
        /// The same of the other factor.
        up_bias: Option<In>,
        /// The argument of the activation, `[rows, out_features]`.
        gate_out: Option<Out>,
        /// The other factor, of the same shape.
        up_out: Option<Out>,
        /// The result, `[rows, out_features]`.
        y: Out,
        /// Scratch memory, if the plan needs some.
        workspace: Option<Out>,
    }
}

kernel_args! {
    /// The product, whose `b` is the gate.
    pub(super) struct GatedProductArgs => GatedProductParams { work: WorkArgs, up: TensorMapArg }
}

/// Such a product by persistent blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct GatedProduct {
    pub(super) dtype: DType,
    pub(super) config: PersistentConfig,
    pub(super) store: Store,
    pub(super) activation: GatedActivation,
}

impl GatedProduct {
    fn blocks(&self) -> Blocks {
        let Self { dtype, config, store, .. } = *self;
        let (slices, part_of_b) = (config.tiles(dtype, Major::K, Major::K), self.half());
        Blocks { slices, part_of_b, y: dtype, config, store, planes: None, turns: false }
    }

    /// The slice of a weight: half of that of a tile's columns.
    fn half(&self) -> PanelTile {
        let (_, both) = self.config.tiles(self.dtype, Major::K, Major::K);
        PanelTile { outer: both.outer / 2, ..both }
    }
}

impl KernelDef for GatedProduct {
    type Args = GatedProductArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, config, store, activation } = self;
        let rows = if *store == Store::Rows { "_rows" } else { "" };
        let name = format!("{OP}_{dtype}_{}{rows}_{}", config.name(), activation.name());
        KernelSpec::new(name, BlockDim::x(self.blocks().threads()))
            .dtypes(DTypes::all(*dtype))
            .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, GatedProductParams { work, up }: GatedProductParams<'k>) {
        let weights = Weights { work, up, a: self.blocks().slices.0, half: self.half() };
        self.blocks().record_loading(k, work, weights, &Unit(self.activation));
    }
}

kernel_args! {
    /// The same with biases, and with both factors as results.
    pub(super) struct FactorsArgs => FactorsParams {
        product: GatedProductArgs, up_bias: In<Elem>, gate: BesideArgs, up: BesideArgs,
    }
}

/// Such a product of factors that have biases, or are stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct GatedFactors {
    pub(super) product: GatedProduct,
    pub(super) bias: bool,
    pub(super) saved: bool,
}

impl KernelDef for GatedFactors {
    type Args = FactorsArgs;

    fn spec(&self) -> KernelSpec {
        let spec = self.product.spec();
        let [bias, saved] =
            [(self.bias, "_bias"), (self.saved, "_saved")].map(|(is, name)| if is { name } else { "" });
        KernelSpec { name: format!("{}{bias}{saved}", spec.name), ..spec }
    }

    fn build<'k>(&self, k: K<'k>, FactorsParams { product, up_bias, gate, up }: FactorsParams<'k>) {
        let GatedProductParams { work, up: of_up } = product;
        let blocks = self.product.blocks();
        let weights = Weights { work, up: of_up, a: blocks.slices.0, half: self.product.half() };
        let epilogue = Factors {
            unit: Unit(self.product.activation),
            cols: work.n,
            up_bias: self.bias.then_some(up_bias),
            beside: if self.saved { vec![gate, up] } else { Vec::new() },
        };
        blocks.record_loading(k, work, weights, &epilogue);
    }
}

/// The epilogue of a unit whose factors have biases, or are stored.
struct Factors<'k> {
    unit: Unit,
    /// Columns of the results.
    cols: U32<'k>,
    up_bias: Option<Ptr<'k, Read, Elem>>,
    beside: Vec<BesideParams<'k>>,
}

impl<'k> Epilogue<'k> for Factors<'k> {
    type Rows = ();

    fn rows(&self, _: U32<'k>, _: &dyn Fn(u32) -> U32<'k>) {}

    fn joined(&self, _: DType, sums: Vec<Pair<'k>>, col: U32<'k>) -> (Vec<Joined<'k>>, U32<'k>) {
        let (gates, ups) = sums.split_at(sums.len() / 2);
        let both =
            gates.iter().zip(ups).map(|(&(down, right, gate), (.., up))| (down, right, vec![gate, *up]));
        (both.collect(), col >> 1)
    }

    fn beside(&self) -> Vec<BesideParams<'k>> {
        self.beside.clone()
    }

    fn results(
        &self,
        to: &ResultParams<'k>,
        (): &(),
        (_, col): ((U32<'k>, u32), U32<'k>),
        sums: &[[F32<'k>; 2]],
        _read: &[[F32<'k>; 2]],
        even: Even,
    ) -> Vec<[F32<'k>; 2]> {
        let mut factors = [sums[0], sums[1]];
        if let Some(up_bias) = self.up_bias {
            for (factor, bias) in factors.iter_mut().zip([to.bias, up_bias]) {
                let bias = pair_at(bias.at(col), None, (col, self.cols), even.bias);
                *factor = [0, 1].map(|i| factor[i] + bias[i]);
            }
        }
        if self.beside.is_empty() { vec![self.last(to.y.dtype(), &factors)] } else { factors.to_vec() }
    }

    fn last(&self, dtype: DType, factors: &[[F32<'k>; 2]]) -> [F32<'k>; 2] {
        let [gate, up] = [factors[0], factors[1]];
        [0, 1].map(|i| self.unit.of(gate[i], up[i], dtype))
    }
}

/// Brings slices of both weights, one behind the other.
struct Weights<'k> {
    work: WorkParams<'k>,
    up: TensorMapParam<'k>,
    a: PanelTile,
    half: PanelTile,
}

impl<'k> Loader<'k> for Weights<'k> {
    fn steps(&self, _: &Place<'k>) -> U32<'k> {
        self.work.steps
    }

    fn begin(&self, place: &Place<'k>) -> (Vec<U32<'k>>, Vec<U32<'k>>) {
        (vec![place.col >> 1], vec![place.row.k().lit(0u32)])
    }

    fn fetch(&self, place: &Place<'k>, fixed: &[U32<'k>], at: &[U32<'k>], to: Arriving<'k>) {
        let (col, along) = (fixed[0], at[0]);
        self.a.fetch(self.work.a, to.a, (place.row, along), &[], to.done);
        self.half.fetch(self.work.b, to.b, (col, along), &[], to.done);
        self.half.fetch(self.up, to.b + self.half.bytes(), (col, along), &[], to.done);
    }

    fn advance(&self, at: &[U32<'k>]) -> Vec<U32<'k>> {
        vec![at[0] + self.a.depth]
    }
}

/// The epilogue: half of the columns are gates of the others.
struct Unit(GatedActivation);

impl Unit {
    fn of<'k>(&self, gate: F32<'k>, up: F32<'k>, dtype: DType) -> F32<'k> {
        evaluate(self.0.activation(), gate, dtype) * up
    }
}

impl<'k> Epilogue<'k> for Unit {
    type Rows = ();

    fn rows(&self, _: U32<'k>, _: &dyn Fn(u32) -> U32<'k>) {}

    fn joined(&self, dtype: DType, sums: Vec<Pair<'k>>, col: U32<'k>) -> (Vec<Joined<'k>>, U32<'k>) {
        let (gates, ups) = sums.split_at(sums.len() / 2);
        let unit = |gate, up| self.of(gate, up, dtype);
        let joined = gates.iter().zip(ups).map(|(&(down, right, gate), (.., up))| {
            (down, right, vec![[0, 1].map(|i| unit(gate[i], up[i]))])
        });
        (joined.collect(), col >> 1)
    }
}

/// Configurations whose tiles have a panel of results or more.
pub(super) fn has_panels(config: &PersistentConfig) -> bool {
    config.cols >= 2 * PanelTile::WIDTH
}

impl GatedLinearDesc {
    /// One of its products.
    const fn product(&self) -> GemmDesc {
        let Self { dtype, rows, in_features, out_features, bias, .. } = *self;
        GemmDesc { bias, ..GemmDesc::new(dtype, [rows, out_features, in_features], false, true) }
    }

    /// Elements of `x`, a weight and `y`.
    fn lengths(&self) -> Result<[usize; 3], PlanError> {
        let Self { dtype, rows, in_features, out_features, .. } = *self;
        PlanError::check_floats(OP, "x", dtype)?;
        let sides = [("rows", rows), ("in_features", in_features), ("out_features", out_features)];
        for (name, side) in sides {
            if side > MAX_SIDE {
                return Err(PlanError::refused(OP, name, side, "less than 2^31"));
            }
        }
        let len = |name, sides: [usize; 2]| {
            Matrices { op: OP, leading: (name, sides[1]), sides, count: 1, stride: 0, size: dtype.bytes() }
                .len()
        };
        Ok([
            len("in_features", [rows, in_features])?,
            len("in_features", [out_features, in_features])?,
            len("out_features", [rows, out_features])?,
        ])
    }

    /// Whether one product can be launched for tensors at multiples of 16 bytes.
    fn fits(&self, target: Target) -> Result<bool, PlanError> {
        let row = self.in_features.saturating_mul(self.dtype.bytes());
        let boxed = row.is_multiple_of(WIDE as usize) && (1..MAX_BOX_STRIDE).contains(&row);
        let [_, _, y] = self.lengths()?;
        Ok(target.sm == 90 && self.dtype.bytes() == 2 && boxed && y > 0)
    }

    /// The layout of the one product, if that takes less time than two and the unit.
    fn fused(&self, target: Target) -> Result<Option<PersistentConfig>, PlanError> {
        let Self { dtype, rows, in_features, out_features, .. } = *self;
        if !self.fits(target)? {
            return Ok(None);
        }
        let [m, n, k] = [rows, out_features, in_features].map(|side| side as u64);
        let both = Shape { m, n: 2 * n, k, batch: 1 };
        let found = tuning::persistent_us(dtype, target, |_| both).filter(|(config, _)| has_panels(config));
        let fastest = found.min_by(|a, b| a.1.total_cmp(&b.1));
        let apart = 2.0 * self.product().us(target)? + tuning::pass_us(3 * m * n * dtype.bytes() as u64);
        Ok(fastest.filter(|(_, us)| *us <= apart).map(|(config, _)| config))
    }

    /// The one launch.
    fn launch_fused(&self, target: Target, config: PersistentConfig) -> Result<LaunchStep, PlanError> {
        let Self { dtype, rows, in_features, out_features, activation, bias, saved } = *self;
        let store = self.product().store();
        let kernel = GatedProduct { dtype, config, store, activation };
        let blocks = kernel.blocks();
        // Tiles have twice as many columns as their results.
        let order = config.order(OP, [rows, out_features.saturating_mul(2), 1])?;
        let grid = config.blocks(target, &order);
        let row = |elements: usize| elements as u64 * dtype.bytes() as u64;
        let map = |x: &In<Elem>, tile: PanelTile, outer: usize| {
            TensorMapArg::over(x, tile.map((outer as u64, in_features as u64), row(in_features), &[]))
        };
        let y: Out<Elem> = GatedLinearArgs::y.arg();
        let boxes_of = |to: &Out<Elem>| {
            blocks.boxes_of_results(to, (rows as u64, out_features as u64), row(out_features), (1, WIDE))
        };
        let work = WorkArgs {
            a: map(&GatedLinearArgs::x.arg(), blocks.slices.0, rows),
            b: map(&GatedLinearArgs::gate.arg(), kernel.half(), out_features),
            y_boxes: boxes_of(&y),
            to: ResultArgs::new(In::address(0), self.bias(GatedLinearArgs::gate_bias.arg()), y.clone()),
            m: small(rows),
            n: small(out_features),
            steps: small(in_features).div_ceil(blocks.slices.0.depth),
            order,
            ldy: out_features as u64,
            stride_y: 0,
            batch_a: 0,
            batch_b: 0,
        };
        let up = map(&GatedLinearArgs::up.arg(), kernel.half(), out_features);
        let product = GatedProductArgs { work, up };
        if !(bias || saved) {
            return blocks.launch(OP, target, &kernel, grid, product.values());
        }
        // Where a factor is not stored it has a map all the same.
        let beside = |to: Out<Elem>| {
            let to = if saved { to } else { y.clone() };
            BesideArgs { boxes: boxes_of(&to), to }
        };
        let (gate, up) = (beside(GatedLinearArgs::gate_out.arg()), beside(GatedLinearArgs::up_out.arg()));
        let up_bias = self.bias(GatedLinearArgs::up_bias.arg());
        let values = FactorsArgs { product, up_bias, gate, up }.values();
        blocks.launch(OP, target, &GatedFactors { product: kernel, bias, saved }, grid, values)
    }

    /// A bias, if there are some.
    fn bias(&self, argument: In<Elem>) -> In<Elem> {
        if self.bias { argument } else { In::address(0) }
    }

    /// The launches of both products and the unit, and the bytes of their workspace. Factors that are not stored are where `y` will be and in
    /// the workspace.
    fn launches_apart(&self, target: Target, alignment: u64) -> Result<(Vec<LaunchStep>, u64), PlanError> {
        type Args<'a> = GatedLinearArgs<'a>;
        let Self { dtype, rows, out_features, activation, saved, .. } = *self;
        let plan = self.product().plan(target)?;
        let len = rows.saturating_mul(out_features);
        let ups = (len as u64).saturating_mul(dtype.bytes() as u64).next_multiple_of(WIDE);
        let ups = if saved { 0 } else { ups };
        let product = |b: In<Elem>, bias: In<Elem>, y: Out<Elem>| {
            let (a, workspace) = (Args::x.arg(), Args::workspace.arg_at(ups));
            Part { a, b, bias: self.bias(bias), y, workspace }.steps(&plan, alignment)
        };
        let ((to_gate, gate), (to_up, up)) = if saved {
            let read = (Args::gate_out.written::<Elem>(), Args::up_out.written::<Elem>());
            ((Args::gate_out.arg(), read.0), (Args::up_out.arg(), read.1))
        } else {
            let read = (Args::y.written::<Elem>(), Args::workspace.written::<Elem>());
            ((Args::y.arg(), read.0), (Args::workspace.arg(), read.1))
        };
        let mut steps = product(Args::gate.arg(), Args::gate_bias.arg(), to_gate);
        steps.extend(product(Args::up.arg(), Args::up_bias.arg(), to_up));
        let places = [
            (value_of(&GatedArgs::gate.arg::<Elem>()), value_of(&gate)),
            (value_of(&GatedArgs::up.arg::<Elem>()), value_of(&up)),
            (value_of(&GatedArgs::y.arg::<Elem>()), value_of(&Args::y.arg::<Elem>())),
        ];
        steps.extend(GatedDesc { activation, dtype, len }.plan(target)?.embedded(alignment, &places));
        Ok((steps, ups + plan.workspace_bytes()))
    }

    fn plan_by(&self, target: Target, fused: Option<PersistentConfig>) -> Result<Plan<Self>, PlanError> {
        let [x, weight, y] = self.lengths()?;
        let (dtype, mut bytes) = (self.dtype, 0);
        let mut variants = Vec::new();
        for alignment in [WIDE, dtype.bytes() as u64] {
            let steps = match fused {
                _ if y == 0 => Vec::new(),
                Some(config) if alignment == WIDE => vec![self.launch_fused(target, config)?],
                _ => {
                    let (steps, scratch) = self.launches_apart(target, alignment)?;
                    bytes = bytes.max(scratch);
                    steps
                }
            };
            variants.push(Variant { alignment, steps });
        }
        let sums = sums_dtype(dtype);
        let scratch = usize::try_from(bytes).unwrap_or(usize::MAX).div_ceil(sums.bytes());
        let tensors = GatedLinearArgs::specs([
            GatedLinearArgs::x.holds(dtype, x),
            GatedLinearArgs::gate.holds(dtype, weight),
            GatedLinearArgs::up.holds(dtype, weight),
            GatedLinearArgs::gate_bias.holds(dtype, self.out_features).optional(self.bias),
            GatedLinearArgs::up_bias.holds(dtype, self.out_features).optional(self.bias),
            GatedLinearArgs::gate_out.holds(dtype, y).optional(self.saved),
            GatedLinearArgs::up_out.holds(dtype, y).optional(self.saved),
            GatedLinearArgs::y.holds(dtype, y),
            GatedLinearArgs::workspace.scratch(sums, scratch),
        ]);
        let (direction, workspace_bytes) = (Direction::Forward, (scratch * sums.bytes()) as u64);
        Ok(Plan::new(PlanParts { op: OP, direction, target, tensors, variants, workspace_bytes }))
    }

    /// The plan in which aligned tensors are multiplied by one kernel of this layout: one of 16-bit elements on sm_90, whose tiles have 128
    /// columns or 256.
    ///
    /// # Errors
    /// As [`plan`](Operation::plan); and if tensor copies cannot reach the tensors.
    pub fn plan_with(&self, target: Target, config: PersistentConfig) -> Result<Plan<Self>, PlanError> {
        let fits = self.fits(target)? && has_panels(&config) && config.cluster == 1;
        let expected = "one for 16-bit elements on sm_90 whose tiles have at least 128 columns";
        if fits {
            return self.plan_by(target, Some(config));
        }
        Err(PlanError::refused(OP, "config", config.name(), expected))
    }
}

impl Operation for GatedLinearDesc {
    type Args<'a> = GatedLinearArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.plan_by(target, self.fused(target)?)
    }
}
