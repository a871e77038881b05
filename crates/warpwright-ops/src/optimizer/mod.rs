//! Optimizers over lists of parameters: AdamW, Adam and SGD, a launch for every 48 tensors.
//!
//! With the gradient `g` (over `grad_scale`; negated to go up), the parameter `p`, step `t` from 1 on:
//!
//! - AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101): `p <- p - lr weight_decay p`, then Adam without weight decay.
//! - Adam (Kingma & Ba 2015, arXiv:1412.6980): `g <- g + weight_decay p`, `m <- beta1 m + (1 - beta1) g`, `v <- beta2 v + (1 - beta2) g^2`,
//!   `p <- p - lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)`. With AMSGrad (Reddi et al. 2018) the largest `v` so far takes its
//!   place under the root.
//! - SGD: `g <- g + weight_decay p`; with momentum `b <- momentum b + (1 - dampening) g`, which is `g` at the first step, and `p <- p - lr b`, or
//!   with Nesterov's momentum `p <- p - lr (g + momentum b)`.
//!
//! These are `torch.optim.AdamW`, `Adam` and `SGD`. The learning rate, the number of steps made, the scale of the gradients and whether they overflowed
//! are on the device, so that a CUDA graph can be replayed; each step adds 1 to their number, and one whose gradients overflowed
//! changes nothing, as `torch.amp.GradScaler` has it.
//!
//! [`grad_norm`] is the norm of all gradients of a list, and [`clip_grad_norm`] multiplies them by `max_norm / (norm + 1e-6)` where that is below 1
//! (Pascanu et al. 2013, arXiv:1211.5063): blocks leave sums of squares in a workspace, one block adds them up in a fixed order, and nothing
//! is read back; gradients that need no clipping are not touched.
//!
//! Parameters of half types are computed in f32 and rounded once; their moments are of f32, and so is a `master` copy of the parameter, which
//! steps read and write in its place while `param` gets its rounding. Gradients have a type of their own, that of the parameters or f32.
//!
//! Moments of Adam and AdamW may be kept in 8 bits instead (Dettmers et al. 2022, "8-bit optimizers via block-wise quantization",
//! arXiv:2110.02861), parameter by parameter, as `bitsandbytes.optim.AdamW8bit` keeps them: [`BLOCK`] neighbouring elements have a code each and one f32,
//! their largest magnitude, of the signed [`dynamic_map`](crate::dynamic_map) for the first moment and of the unsigned one for the second. A
//! step reads the moments from their codes and computes as above in f32, with the hardware's square root and reciprocal; the parameter moves by the
//! new moments, which then become the codes of the nearest entries. A first moment below 0 stays below 0. A gradient that is infinite or NaN counts
//! as 0 there, because it would spoil its block, and a second moment that overflows as the largest number.

mod clip;
mod eight_bit;
mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
mod tuning;

use warpwright_dsl::Optional;
use warpwright_ptx::{DType, Target};

use crate::PlanError;
use crate::catalogue::Direction as Pass;
use crate::plan::{self, Operation, Plan, Real, Variant};
use crate::tensors::{InOutSlot, tensors};

pub use clip::{ClipGradNormArgs, ClipGradNormDesc, ClippedArgs, GradArgs, GradNormArgs, GradNormDesc, Norm};
pub use functions::{
    Adam8bitParameter, AdamParameter, SgdParameter, StepOptions, adam, adam8bit, adamw, adamw8bit,
    clip_grad_norm, grad_norm, sgd,
};
use kernel::{Direction, Prepare, Update};
use tuning::List;

/// Elements whose moments in 8 bits share a maximum.
pub const BLOCK: usize = 256;

/// Types of parameters that may have moments in 8 bits.
const EIGHT_BIT_DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Adam and AdamW.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Adam {
    /// Decay rates of the first and the second moment, from 0 to below 1.
    pub betas: [Real; 2],
    /// Added to the root of the second moment.
    pub eps: Real,
    /// Weight decay.
    pub weight_decay: Real,
    /// Whether the weight decay is apart from the gradient: AdamW.
    pub decoupled: bool,
    /// Whether the largest second moment so far takes the place of the second moment.
    pub amsgrad: bool,
}

impl Adam {
    /// That of `torch.optim.AdamW` without arguments.
    pub const ADAMW: Self = Self { weight_decay: Real::new(1e-2), decoupled: true, ..Self::ADAM };
    /// That of `torch.optim.Adam` without arguments.
    pub const ADAM: Self = Self {
        betas: [Real::new(0.9), Real::new(0.999)],
        eps: Real::new(1e-8),
        weight_decay: Real::new(0.0),
        decoupled: false,
        amsgrad: false,
    };
}

/// Stochastic gradient descent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sgd {
    /// The factor of the momentum; 0 for none.
    pub momentum: Real,
    /// The part of gradients that is left out of the momentum.
    pub dampening: Real,
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
    /// Weight decay.
    pub weight_decay: Real,
}

impl Sgd {
    /// That of `torch.optim.SGD` without arguments.
    pub const PLAIN: Self = Self {
        momentum: Real::new(0.0),
        dampening: Real::new(0.0),
        nesterov: false,
        weight_decay: Real::new(0.0),
    };
}

/// How parameters move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// By the moments of their gradients.
    Adam(Adam),
    /// By their gradients.
    Sgd(Sgd),
}

impl Rule {
    /// The name in the catalogue.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adam(Adam { decoupled: true, .. }) => "adamw",
            Self::Adam(_) => "adam",
            Self::Sgd(_) => "sgd",
        }
    }

    const fn weight_decay(self) -> f64 {
        match self {
            Self::Adam(adam) => adam.weight_decay.get(),
            Self::Sgd(sgd) => sgd.weight_decay.get(),
        }
    }

    const fn is_decoupled(self) -> bool {
        matches!(self, Self::Adam(Adam { decoupled: true, .. }))
    }

    fn direction(self) -> Direction {
        match self {
            Self::Adam(Adam { amsgrad, .. }) => Direction::Adam { amsgrad },
            Self::Sgd(Sgd { momentum, .. }) if momentum.get() == 0.0 => Direction::Plain,
            Self::Sgd(Sgd { nesterov, .. }) => Direction::Momentum { nesterov },
        }
    }
}

/// A step of a list of parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OptimizerDesc {
    /// How they move.
    pub rule: Rule,
    /// Whether they move up the gradient.
    pub maximize: bool,
    /// Element type of the parameters.
    pub dtype: DType,
    /// Element type of the gradients: that of the parameters or [`DType::accumulator`] of it.
    pub grad_dtype: DType,
    /// Whether parameters of half types are kept in f32.
    pub master: bool,
    /// Whether gradients are divided by a scale.
    pub grad_scale: bool,
    /// Whether gradients may have overflowed.
    pub found_inf: bool,
    /// Elements of each parameter.
    pub lens: Vec<usize>,
    /// Whether the moments of each parameter are kept in 8 bits; empty if none are.
    pub eight_bit: Vec<bool>,
}

tensors! {
    /// Tensors of a parameter of [`OptimizerDesc`], all of as many elements.
    pub struct ParameterArgs<'a> {
        /// The gradient.
        grad: In,
        /// The parameter.
        param: InOut,
        /// The first moment of Adam, or the momentum of SGD, of [`DType::accumulator`]; zeros before the first step. Or codes of it, u8.
        first: Option<InOut>,
        /// The second moment of Adam, of the same type.
        second: Option<InOut>,
        /// The largest second moment of AMSGrad, of the same type.
        largest: Option<InOut>,
        /// The parameter in f32.
        master: Option<InOut>,
        /// The largest magnitudes of blocks of the first moment in 8 bits, f32; zeros before the first step.
        first_absmax: Option<InOut>,
        /// The largest elements of blocks of the second moment in 8 bits.
        second_absmax: Option<InOut>,
    }
}

tensors! {
    /// Tensors of [`OptimizerDesc`].
    pub struct OptimizerArgs<'a> {
        /// The learning rate: one element of [`DType::accumulator`] of the parameters.
        lr: In,
        /// The number of steps that were made: one element of f32.
        step: InOut,
        /// The divisor of gradients: one element of f32.
        grad_scale: Option<In>,
        /// 0, or whatever else if gradients overflowed and nothing is to move: one element of f32.
        found_inf: Option<In>,
        /// Scratch memory; see [`Plan::workspace`].
        workspace: Option<Out>,
        /// Each parameter.
        parameters: Each<ParameterArgs>,
    }
}

impl OptimizerDesc {
    /// The name in the catalogue.
    pub fn op(&self) -> &'static str {
        match (self.rule, self.eight_bit.is_empty()) {
            (Rule::Adam(Adam { decoupled: true, .. }), false) => "adamw8bit",
            (Rule::Adam(_), false) => "adam8bit",
            (rule, _) => rule.name(),
        }
    }

    /// Whether the moments of a parameter are in 8 bits.
    fn is_eight_bit(&self, number: usize) -> bool {
        self.eight_bit.get(number).is_some_and(|eight_bit| *eight_bit)
    }

    fn check_eight_bit(&self) -> Result<(), PlanError> {
        let (op, given) = (self.op(), self.eight_bit.len());
        if given == 0 {
            return Ok(());
        }
        if given != self.lens.len() {
            return Err(PlanError::refused(
                op,
                "eight_bit",
                format!("of {given}"),
                "one for each of lens, or none",
            ));
        }
        if !EIGHT_BIT_DTYPES.contains(&self.dtype) {
            return Err(PlanError::DType {
                op,
                tensor: "param",
                got: self.dtype,
                expected: &EIGHT_BIT_DTYPES,
            });
        }
        match self.rule {
            Rule::Adam(Adam { amsgrad: false, .. }) => Ok(()),
            Rule::Adam(_) => Err(PlanError::refused(op, "amsgrad", true, "false for moments in 8 bits")),
            Rule::Sgd(_) => Err(PlanError::refused(op, "eight_bit", true, "none for SGD")),
        }
    }

    fn check(&self) -> Result<(), PlanError> {
        let (op, wide) = (self.op(), self.dtype.accumulator());
        self.check_eight_bit()?;
        PlanError::check_floats(op, "param", self.dtype)?;
        if self.grad_dtype != self.dtype && self.grad_dtype != wide {
            let expected = match self.dtype {
                DType::F64 => &[DType::F64][..],
                DType::F32 => &[DType::F32],
                DType::F16 => &[DType::F16, DType::F32],
                _ => &[DType::BF16, DType::F32],
            };
            return Err(PlanError::DType { op, tensor: "grad", got: self.grad_dtype, expected });
        }
        if self.master && wide == self.dtype {
            return Err(PlanError::refused(
                op,
                "master",
                true,
                "false for parameters that are not of a half type",
            ));
        }
        let within = |parameter, value: Real, fits: bool, expected| match fits {
            true => Ok(()),
            false => Err(PlanError::refused(op, parameter, format!("{value:?}"), expected)),
        };
        let positive = |parameter, value: Real| {
            within(parameter, value, value.get() >= 0.0 && value.get().is_finite(), "finite and at least 0")
        };
        match self.rule {
            Rule::Adam(Adam { betas, eps, weight_decay, .. }) => {
                for beta in betas {
                    within("betas", beta, (0.0..1.0).contains(&beta.get()), "from 0 to below 1")?;
                }
                positive("eps", eps)?;
                positive("weight_decay", weight_decay)?;
            }
            Rule::Sgd(Sgd { momentum, dampening, nesterov, weight_decay }) => {
                positive("momentum", momentum)?;
                within("dampening", dampening, dampening.get().is_finite(), "finite")?;
                positive("weight_decay", weight_decay)?;
                if nesterov && (momentum.get() == 0.0 || dampening.get() != 0.0) {
                    let expected = "false without momentum and with dampening";
                    return Err(PlanError::refused(op, "nesterov", true, expected));
                }
            }
        }
        let all = self.lens.iter().try_fold(0usize, |sum, len| sum.checked_add(*len));
        if all.and_then(|all| all.checked_mul(8)).is_none() {
            return Err(PlanError::refused(op, "lens", "too many", "so few that their bytes can be counted"));
        }
        Ok(())
    }

    /// Decay rates, eps, and the weight decay that is added to gradients.
    fn numbers(&self) -> ([f64; 2], f64, f64) {
        let weight_decay = if self.rule.is_decoupled() { 0.0 } else { self.rule.weight_decay() };
        match self.rule {
            Rule::Adam(adam) => (adam.betas.map(Real::get), adam.eps.get(), weight_decay),
            Rule::Sgd(sgd) => ([sgd.momentum.get(), 0.0], 0.0, weight_decay),
        }
    }

    /// Elements of each parameter in a list, and 0 behind the last.
    fn lens<const N: usize>(&self, list: &List) -> [u64; N] {
        std::array::from_fn(|i| list.items.get(i).map_or(0, |item| self.lens[item.number] as u64))
    }

    /// The launch over a list of parameters whose moments are in 8 bits.
    fn update_eight_bit(&self, list: &List, chunk: u32) -> eight_bit::UpdateArgs {
        type Args<'a> = OptimizerArgs<'a>;
        type Each<'a> = ParameterArgs<'a>;
        let slot = |i: usize, slot: InOutSlot| Args::parameters.of(list.number(i), slot).after();
        let (betas, eps, weight_decay) = self.numbers();
        eight_bit::UpdateArgs {
            params: std::array::from_fn(|i| slot(i, Each::param).read_write()),
            grads: std::array::from_fn(|i| Args::parameters.of(list.number(i), Each::grad).arg()),
            firsts: std::array::from_fn(|i| slot(i, Each::first).read_write()),
            seconds: std::array::from_fn(|i| slot(i, Each::second).read_write()),
            first_absmax: std::array::from_fn(|i| slot(i, Each::first_absmax).read_write()),
            second_absmax: std::array::from_fn(|i| slot(i, Each::second_absmax).read_write()),
            masters: std::array::from_fn(|i| slot(i, Each::master).read_write()),
            lens: self.lens(list),
            starts: std::array::from_fn(|i| list.start(i)),
            chunk,
            shared: Args::workspace.written(),
            betas,
            eps,
            weight_decay,
        }
    }

    /// The launch over a list of parameters.
    fn update(&self, list: &List) -> kernel::UpdateArgs {
        type Args<'a> = OptimizerArgs<'a>;
        type Each<'a> = ParameterArgs<'a>;
        let tensors = |slot: InOutSlot| {
            std::array::from_fn(|i| Args::parameters.of(list.number(i), slot).after().read_write())
        };
        let grad = |i: usize| Args::parameters.of(list.number(i), Each::grad).arg();
        let (betas, eps, weight_decay) = self.numbers();
        kernel::UpdateArgs {
            params: tensors(Each::param),
            grads: std::array::from_fn(grad),
            firsts: tensors(Each::first),
            seconds: tensors(Each::second),
            largest: tensors(Each::largest),
            masters: tensors(Each::master),
            lens: self.lens(list),
            starts: std::array::from_fn(|i| list.start(i)),
            shared: Args::workspace.written(),
            betas,
            eps,
            weight_decay,
        }
    }

    fn prepare(&self) -> kernel::PrepareArgs {
        type Args<'a> = OptimizerArgs<'a>;
        let (log_betas, momentum, dampening) = match self.rule {
            Rule::Adam(adam) => (adam.betas.map(|beta| beta.get().ln()), 0.0, 0.0),
            Rule::Sgd(sgd) => ([0.0; 2], sgd.momentum.get(), sgd.dampening.get()),
        };
        kernel::PrepareArgs {
            lr: Args::lr.arg(),
            step: Args::step.after().read_write(),
            grad_scale: Optional { value: Args::grad_scale.arg(), given: self.grad_scale },
            found_inf: Optional { value: Args::found_inf.arg(), given: self.found_inf },
            shared: Args::workspace.arg(),
            log_betas,
            momentum,
            dampening,
            weight_decay: if self.rule.is_decoupled() { self.rule.weight_decay() } else { 0.0 },
            sign: if self.maximize { -1.0 } else { 1.0 },
        }
    }
}

impl Operation for OptimizerDesc {
    type Args<'a> = OptimizerArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = OptimizerArgs<'a>;
        type Each<'a> = ParameterArgs<'a>;
        self.check()?;
        let Self { rule, dtype, grad_dtype, master, ref lens, .. } = *self;
        let (op, wide, direction) = (self.op(), dtype.accumulator(), rule.direction());
        let adam = matches!(rule, Rule::Adam(_));
        let mut specs = vec![
            Args::lr.holds(wide, 1),
            Args::step.holds(DType::F32, 1),
            Args::grad_scale.holds(DType::F32, 1).optional(self.grad_scale),
            Args::found_inf.holds(DType::F32, 1).optional(self.found_inf),
            Args::workspace.scratch(DType::F64, kernel::SHARED),
        ];
        for (number, &len) in lens.iter().enumerate() {
            let slot = |slot: InOutSlot| Args::parameters.of(number, slot);
            let state = |state: InOutSlot, there: bool| there.then(|| slot(state).holds(wide, len));
            specs.push(Args::parameters.of(number, Each::grad).holds(grad_dtype, len));
            specs.push(Args::parameters.of(number, Each::param).holds(dtype, len));
            if self.is_eight_bit(number) {
                specs.extend([Each::first, Each::second].map(|codes| slot(codes).holds(DType::U8, len)));
                specs.extend(state(Each::master, master));
                let absmax = [Each::first_absmax, Each::second_absmax];
                specs.extend(absmax.map(|absmax| slot(absmax).holds(DType::F32, len.div_ceil(BLOCK))));
                continue;
            }
            specs.extend(state(Each::first, direction != Direction::Plain));
            specs.extend(state(Each::second, adam));
            specs.extend(state(Each::largest, direction == Direction::Adam { amsgrad: true }));
            specs.extend(state(Each::master, master));
        }
        let too_large = || PlanError::TooLarge { op, blocks: u64::MAX, limit: plan::MAX_BLOCKS };
        // Parameters without elements are in no list.
        let kept = |eight_bit: bool| -> Vec<usize> {
            let len = |(number, len): (usize, &usize)| {
                if self.is_eight_bit(number) == eight_bit { *len } else { 0 }
            };
            lens.iter().enumerate().map(len).collect()
        };
        let (wide_lens, eight_bit_lens) = (kept(false), kept(true));
        let lists = tuning::lists(&wide_lens, tuning::CHUNK).ok_or_else(too_large)?;
        let mut steps = vec![plan::launch(op, &Prepare { wide, adam }, self.prepare(), target, [1; 3])?];
        let def = Update { dtype, grad: grad_dtype, master, direction };
        for list in lists {
            steps.push(plan::launch(op, &def, self.update(&list), target, [list.blocks, 1, 1])?);
        }
        let chunk = eight_bit::chunk(eight_bit_lens.iter().sum());
        let resident = eight_bit::resident(target);
        let def = eight_bit::Update { dtype, grad: grad_dtype, master, resident };
        for list in tuning::lists(&eight_bit_lens, chunk).ok_or_else(too_large)? {
            let args = self.update_eight_bit(&list, chunk);
            steps.push(plan::launch(op, &def, args, target, [list.blocks, 1, 1])?);
        }
        // Kernels find out for each tensor where it begins.
        let variants = vec![Variant { alignment: 1, steps }];
        Ok(Plan::of(op, Pass::Forward, target, Args::specs(specs), variants))
    }
}
