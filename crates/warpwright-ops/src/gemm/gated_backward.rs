//! The gradients of both factors of a gated unit from that of what a linear layer makes of it, as one product:
//! `h = dy op(weight)`, `dgate = h activation'(gate) up`, `dup = h activation(gate)`.
//!
//! On sm_90 it is one launch of f16 and bf16. Elsewhere the product, rounded to the type of the results, and the unit are launches of their own.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;
use warpwright_ptx::{DType, Target};

use super::activated::Layer;
use super::engine::{BesideArgs, BesideParams, Epilogue, WorkArgs, WorkParams};
use super::epilogue::{Even, ResultArgs, ResultParams, sums_dtype};
use super::persistent::PersistentGemm;
use super::tuning::PersistentConfig;
use super::{GemmDesc, Part};
use crate::PlanError;
use crate::activation::{GatedActivation, GatedBackwardArgs, GatedBackwardDesc, differentiate_gated};
use crate::catalogue::Direction;
use crate::plan::embedded::value_of;
use crate::plan::{Operation, Plan};
use crate::tensors::tensors;

/// The name of the operation.
pub(super) const OP: &str = "gated_activation_linear";

/// `h = dy op(weight)`, `dgate = h * activation'(gate) * up` and `dup = h * activation(gate)`, of matrices without gaps: the gradients of
/// `gate` and `up` from that of `y`, where `y` is what a linear layer makes of `activation(gate) * up`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GatedActivationLinearBackwardDesc {
    /// Element type of all tensors.
    pub dtype: DType,
    /// Rows of all but the weight.
    pub rows: usize,
    /// Columns of `gate` and `up`: what the layer takes.
    pub in_features: usize,
    /// Columns of `dy`: what it gives.
    pub out_features: usize,
    /// Whether the weight is `[in_features, out_features]`, and not `[out_features, in_features]`, as that of a linear layer.
    pub transpose_b: bool,
    /// The unit.
    pub activation: GatedActivation,
}

tensors! {
    /// Tensors of [`GatedActivationLinearBackwardDesc`].
    pub struct GatedActivationLinearBackwardArgs<'a> {
        /// The gradient of what the layer gave, `[rows, out_features]`.
        dy: In,
        /// The weight of the layer.
        weight: In,
        /// The argument of the activation, `[rows, in_features]`.
        gate: In,
        /// The other factor, of the same shape.
        up: In,
        /// The gradient of `gate`.
        dgate: Out,
        /// The gradient of `up`.
        dup: Out,
        /// Scratch memory, if the plan needs some.
        workspace: Option<Out>,
    }
}

kernel_args! {
    /// A product, whose `c` is the gate and whose `y` the gradient of the other factor.
    pub(super) struct FactorsArgs => FactorsParams { work: WorkArgs, up: In<Elem>, dgate: BesideArgs }
}

/// A product that becomes the gradients of both factors of a unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct FactorsGemm {
    pub(super) product: PersistentGemm,
    pub(super) activation: GatedActivation,
}

impl KernelDef for FactorsGemm {
    type Args = FactorsArgs;

    fn spec(&self) -> KernelSpec {
        let spec = self.product.spec();
        KernelSpec { name: format!("{}_d_{}", spec.name, self.activation.name()), ..spec }
    }

    fn build<'k>(&self, k: K<'k>, FactorsParams { work, up, dgate }: FactorsParams<'k>) {
        let epilogue = Gradients { work, up, dgate, activation: self.activation };
        self.product.blocks_in_turns().record(k, work, None, &epilogue);
    }
}

/// The epilogue that makes both gradients of a sum.
struct Gradients<'k> {
    work: WorkParams<'k>,
    up: Ptr<'k, Read, Elem>,
    dgate: BesideParams<'k>,
    activation: GatedActivation,
}

impl<'k> Epilogue<'k> for Gradients<'k> {
    type Rows = ();

    fn rows(&self, _: U32<'k>, _: &dyn Fn(u32) -> U32<'k>) {}

    fn beside(&self) -> Vec<BesideParams<'k>> {
        vec![self.dgate]
    }

    fn reads(&self, to: &ResultParams<'k>) -> Vec<Ptr<'k, Read, Elem>> {
        vec![to.c, self.up]
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
        let kept = self.work.kept(&self.reads(to), (row, col), read, even);
        let (gate, up) = (kept[0], kept[1]);
        let of = |i: usize| differentiate_gated(self.activation, (gate[i], up[i]), sums[0][i], to.y.dtype());
        let [(dgate, dup), (next_dgate, next_dup)] = [0, 1].map(of);
        vec![[dgate, next_dgate], [dup, next_dup]]
    }
}

impl GatedActivationLinearBackwardDesc {
    pub(super) const fn layer(&self) -> Layer {
        let Self { dtype, rows, in_features, out_features, transpose_b, activation } = *self;
        let product = GemmDesc::new(dtype, [rows, in_features, out_features], false, transpose_b);
        let names = ("dy", ["rows", "in_features", "out_features"]);
        Layer { op: OP, names, product, activation: activation.activation() }
    }

    fn plan_by(&self, target: Target, fused: Option<PersistentConfig>) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = GatedActivationLinearBackwardArgs<'a>;
        let layer = self.layer();
        let Self { dtype, activation, .. } = *self;
        let [dy, weight, len] = layer.lengths()?;
        let launch = |config| {
            let to = ResultArgs::new(Args::gate.arg(), In::address(0), Args::dup.arg());
            let (product, work, grid) =
                layer.work(target, config, [Args::dy.arg(), Args::weight.arg()], to)?;
            let dgate = layer.beside(&product, Args::dgate.arg());
            let values = FactorsArgs { work, up: Args::up.arg(), dgate }.values();
            product.blocks_in_turns().launch(OP, target, &FactorsGemm { product, activation }, grid, values)
        };
        let fused = fused.map(launch).transpose()?;
        let apart = |alignment, product: &Plan<GemmDesc>| {
            type Unit<'a> = GatedBackwardArgs<'a>;
            let (a, b, y) = (Args::dy.arg(), Args::weight.arg(), Args::dup.arg());
            let part = Part { a, b, bias: In::address(0), y, workspace: Args::workspace.arg() };
            let mut steps = part.steps(product, alignment);
            let places = [
                (value_of(&Unit::gate.arg::<Elem>()), value_of(&Args::gate.arg::<Elem>())),
                (value_of(&Unit::up.arg::<Elem>()), value_of(&Args::up.arg::<Elem>())),
                (value_of(&Unit::dy.arg::<Elem>()), value_of(&Args::dup.written::<Elem>())),
                (value_of(&Unit::dgate.arg::<Elem>()), value_of(&Args::dgate.arg::<Elem>())),
                (value_of(&Unit::dup.arg::<Elem>()), value_of(&Args::dup.arg::<Elem>())),
            ];
            let unit = GatedBackwardDesc { activation, dtype, len };
            steps.extend(unit.plan(target)?.embedded(alignment, &places));
            Ok(steps)
        };
        let tensors = |scratch| {
            Args::specs([
                Args::dy.holds(dtype, dy),
                Args::weight.holds(dtype, weight),
                Args::gate.holds(dtype, len),
                Args::up.holds(dtype, len),
                Args::dgate.holds(dtype, len),
                Args::dup.holds(dtype, len),
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

impl Operation for GatedActivationLinearBackwardDesc {
    type Args<'a> = GatedActivationLinearBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let layer = self.layer();
        layer.lengths()?;
        // The product by itself is written and read, and both results are written.
        self.plan_by(target, layer.fused(target, 2)?)
    }
}
