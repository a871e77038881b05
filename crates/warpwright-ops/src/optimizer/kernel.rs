//! The kernels: one for the numbers that all parameters share, and one that moves the parameters of a list.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::tuning::{CHUNK, LIST, THREADS, VECTORS, WIDTH};

/// Places of the numbers that the first kernel leaves to the others.
mod shared {
    /// 1, or 0 where nothing moves.
    pub(super) const ACTIVE: u64 = 0;
    /// The factor of gradients.
    pub(super) const GRADIENT: u64 = 1;
    /// The factor of parameters, before the step.
    pub(super) const DECAY: u64 = 2;
    /// The factor of the direction.
    pub(super) const STEP: u64 = 3;
    /// The factor of the root of the second moment.
    pub(super) const SECOND: u64 = 4;
    /// The factors of the momentum and of a gradient that is added to it.
    pub(super) const MOMENTUM: u64 = 5;
    pub(super) const ADDED: u64 = 6;
    /// How many there are.
    pub(super) const COUNT: usize = 7;
}

/// How many numbers the first kernel leaves to the others.
pub(super) const SHARED: usize = shared::COUNT;

kernel_args! {
    /// The state of all parameters: `step` counts the steps that were made.
    pub(super) struct PrepareArgs => PrepareParams {
        lr: In<Elem>, step: InOut<f32>,
        grad_scale: Optional<In<f32>>, found_inf: Optional<In<f32>>,
        shared: Out<f64>,
        /// Natural logarithms of the decay rates of the moments.
        log_betas: [f64; 2],
        momentum: f64, dampening: f64,
        /// Of the parameters themselves.
        weight_decay: f64,
        /// 1, or -1 to go up.
        sign: f64,
    }
}

kernel_args! {
    /// Tensors of a list, of which each begins at the block `starts`.
    pub(super) struct UpdateArgs => UpdateParams {
        params: [InOut<Elem>; LIST],
        grads: [In<Elem>; LIST],
        firsts: [InOut<Elem>; LIST],
        seconds: [InOut<Elem>; LIST],
        largest: [InOut<Elem>; LIST],
        masters: [InOut<Elem>; LIST],
        lens: [u64; LIST],
        starts: [u32; LIST],
        shared: In<f64>,
        /// Decay rates of the moments, or of the momentum.
        betas: [f64; 2],
        eps: f64,
        /// Added to gradients, times the parameter.
        weight_decay: f64,
    }
}

/// The use that a step makes of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// First moment over the root of the second, or of the largest second moment so far.
    Adam { amsgrad: bool },
    /// The gradient itself.
    Plain,
    /// The momentum, or the gradient with it.
    Momentum { nesterov: bool },
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Self::Adam { amsgrad: false } => "adam",
            Self::Adam { amsgrad: true } => "amsgrad",
            Self::Plain => "sgd",
            Self::Momentum { nesterov: false } => "momentum",
            Self::Momentum { nesterov: true } => "nesterov",
        }
    }
}

/// The numbers of a step, by a single thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepare {
    /// The type that parameters are computed in.
    pub(super) wide: DType,
    pub(super) adam: bool,
}

impl AccumulateKernel for Prepare {
    type Args = PrepareArgs;

    fn spec(&self) -> KernelSpec {
        let rule = if self.adam { "adam" } else { "sgd" };
        KernelSpec::new(format!("optimizer_prepare_{rule}_{}", self.wide), BlockDim::x(1))
            .dtypes(DTypes::all(self.wide))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: PrepareParams<'k>) {
        k.overlap_grids();
        let scalar = |of: warpwright_dsl::OptionalParam<'k, Ptr<'k, Read, f32>>, otherwise: f64| -> F64<'k> {
            let given = of.is_given();
            let value: F32<'k> = of.value.only_where(given, Fill::Zero).get();
            given.select(value, otherwise).to_f64()
        };
        let lr = p.lr.get::<A>().to_f64();
        let active = scalar(p.found_inf, 0.0).eq(0.0);
        let before: F32<'k> = p.step.get();
        let step = active.select(before + 1.0, before);
        p.step.set(step);
        let put = |at: u64, value: F64<'k>| p.shared.at(at).set(value);
        put(shared::ACTIVE, active.select(1.0, 0.0));
        put(shared::GRADIENT, p.sign / scalar(p.grad_scale, 1.0));
        put(shared::DECAY, 1.0 - lr * p.weight_decay);
        if self.adam {
            let [first, second] = p.log_betas.map(|log| 1.0 - (step.to_f64() * log).exp());
            put(shared::STEP, lr / first);
            put(shared::SECOND, second.sqrt().rcp());
        } else {
            // The first gradient is the momentum.
            let begun = step.gt(1.0);
            put(shared::STEP, lr);
            put(shared::MOMENTUM, begun.select(p.momentum, 0.0));
            put(shared::ADDED, begun.select(1.0 - p.dampening, 1.0));
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    pub(super) dtype: DType,
    pub(super) grad: DType,
    /// Whether parameters are kept in the wide type, and `params` are their roundings.
    pub(super) master: bool,
    pub(super) direction: Direction,
}

/// Tensors of a parameter.
#[derive(Clone, Copy, Debug)]
struct Tensors<'k> {
    param: Ptr<'k, ReadWrite, Elem>,
    grad: Ptr<'k, Read, Elem>,
    first: Ptr<'k, ReadWrite, Elem>,
    second: Ptr<'k, ReadWrite, Elem>,
    largest: Ptr<'k, ReadWrite, Elem>,
    master: Ptr<'k, ReadWrite, Elem>,
}

/// Elements that a thread moves together.
struct Loaded<'k, A: Accumulate> {
    param: Lanes<'k, A>,
    grad: Lanes<'k, A>,
    first: Option<Lanes<'k, A>>,
    second: Option<Lanes<'k, A>>,
    largest: Option<Lanes<'k, A>>,
}

/// The numbers of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers<'k, A: Accumulate> {
    pub(super) gradient: Reg<'k, A>,
    pub(super) decay: Reg<'k, A>,
    pub(super) step: Reg<'k, A>,
    pub(super) second: Reg<'k, A>,
    momentum: Reg<'k, A>,
    added: Reg<'k, A>,
    pub(super) betas: [Reg<'k, A>; 2],
    /// 1 less the betas.
    pub(super) rest: [Reg<'k, A>; 2],
    pub(super) eps: Reg<'k, A>,
    pub(super) weight_decay: Reg<'k, A>,
}

impl<'k, A: Accumulate> Numbers<'k, A> {
    /// From what the first kernel left, and from arguments: decay rates, eps, and the weight decay of gradients.
    pub(super) fn load(
        k: K<'k>,
        adam: bool,
        shared: Ptr<'k, Read, f64>,
        (betas, eps, weight_decay): ([F64<'k>; 2], F64<'k>, F64<'k>),
    ) -> Self {
        let number = |at: u64| shared.at(at).get::<f64>().convert::<A>();
        let has = |there: bool, at: u64| if there { number(at) } else { k.lit(0.0) };
        Self {
            gradient: number(shared::GRADIENT),
            decay: number(shared::DECAY),
            step: number(shared::STEP),
            second: has(adam, shared::SECOND),
            momentum: has(!adam, shared::MOMENTUM),
            added: has(!adam, shared::ADDED),
            betas: betas.map(|beta| beta.convert()),
            rest: betas.map(|beta| (1.0 - beta).convert()),
            eps: eps.convert(),
            weight_decay: weight_decay.convert(),
        }
    }
}

/// Whether anything moves.
pub(super) fn is_active<'k, A: Accumulate>(shared: Ptr<'k, Read, f64>) -> Pred<'k> {
    shared.at(shared::ACTIVE).get::<f64>().convert::<A>().ne(0.0)
}

impl Update {
    fn is_adam(&self) -> bool {
        matches!(self.direction, Direction::Adam { .. })
    }

    fn load<'k, A: Accumulate>(&self, t: Tensors<'k>, at: U64<'k>, width: u32) -> Loaded<'k, A> {
        let some = |there: bool, of: Ptr<'k, ReadWrite, Elem>| there.then(|| of.at(at).load::<A>(width));
        Loaded {
            param: if self.master { t.master.at(at).load(width) } else { t.param.at(at).load(width) },
            grad: t.grad.at(at).load(width),
            first: some(self.direction != Direction::Plain, t.first),
            second: some(self.is_adam(), t.second),
            largest: some(self.direction == Direction::Adam { amsgrad: true }, t.largest),
        }
    }

    fn step<'k, A: Accumulate>(&self, t: Tensors<'k>, n: Numbers<'k, A>, at: U64<'k>, x: Loaded<'k, A>) {
        let grad = (x.grad * n.gradient).zip(x.param.clone(), |g, p| p.mul_add(n.weight_decay, g));
        let direction = match (self.direction, x.first, x.second) {
            (Direction::Momentum { nesterov }, Some(first), _) => {
                let first = first * n.momentum + grad.clone() * n.added;
                t.first.at(at).store(first.clone());
                // That of the first step counts here.
                if nesterov { first.mul_add(n.betas[0], grad) } else { first }
            }
            (Direction::Adam { .. }, Some(first), Some(second)) => {
                let first = first * n.betas[0] + grad.clone() * n.rest[0];
                let second = second * n.betas[1] + grad.clone() * grad * n.rest[1];
                t.first.at(at).store(first.clone());
                t.second.at(at).store(second.clone());
                let bounding = match x.largest {
                    Some(largest) => {
                        let largest = largest.zip(second, Reg::maximum);
                        t.largest.at(at).store(largest.clone());
                        largest
                    }
                    None => second,
                };
                first.zip(bounding, |m, v| m / v.sqrt().mul_add(n.second, n.eps))
            }
            _ => grad,
        };
        let param = (x.param * n.decay).zip(direction, |p, d| p - d * n.step);
        if self.master {
            t.master.at(at).store(param.clone());
        }
        t.param.at(at).store(param);
    }
}

impl AccumulateKernel for Update {
    type Args = UpdateArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, grad, master, direction } = *self;
        let master = if master { "_master" } else { "" };
        let name = format!("optimizer_{}_{dtype}_{grad}{master}", direction.name());
        let dtypes = DTypes::all(dtype).accumulated(["firsts", "seconds", "largest", "masters"]);
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(dtypes.with("grads", grad))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: UpdateParams<'k>) {
        k.overlap_grids();
        let block = k.block_idx_x();
        let (addresses, len, start) = k.search(LIST, &|i| block.ge(p.starts[i]), &|i| {
            let written = [p.params[i], p.firsts[i], p.seconds[i], p.largest[i], p.masters[i]];
            ((written.map(Ptr::address), p.grads[i].address()), p.lens[i], p.starts[i])
        });
        let ([param, first, second, largest, master], grad) = addresses;
        let t = Tensors {
            param: p.params[0].at_address(param),
            grad: p.grads[0].at_address(grad),
            first: p.firsts[0].at_address(first),
            second: p.seconds[0].at_address(second),
            largest: p.largest[0].at_address(largest),
            master: p.masters[0].at_address(master),
        };
        let n = Numbers::load(k, self.is_adam(), p.shared, (p.betas, p.eps, p.weight_decay));
        let chunk = (block - start).mul_wide(CHUNK);
        let end = (chunk + u64::from(CHUNK)).min(len);
        let together = param | first | second | largest | master | grad;
        // Null pointers of tensors that there are none of are aligned.
        let vectors = (together & 15).eq(0) & (chunk + u64::from(CHUNK)).le(len);
        let active = is_active::<A>(p.shared);
        k.if_(active & vectors, || {
            let first = chunk + k.thread_idx().mul_wide(WIDTH);
            let places: Vec<U64<'k>> = (0..VECTORS).map(|i| first + u64::from(i * THREADS * WIDTH)).collect();
            let loaded: Vec<Loaded<'k, A>> = places.iter().map(|at| self.load(t, *at, WIDTH)).collect();
            places.into_iter().zip(loaded).for_each(|(at, x)| self.step(t, n, at, x));
        });
        k.if_(active & !vectors, || {
            let range = k.range(chunk + k.thread_idx().to_u64(), end, u64::from(THREADS));
            k.for_each(range, |at| self.step(t, n, at, self.load(t, at, 1)));
        });
    }
}
