//! The kernels: one vector of elements a thread, whatever the function.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::math::{self, Weighted};
use super::tuning::Config;
use super::{Activation, GatedActivation};

kernel_args! {
    /// `y = f(x)`, with the parameter of a function that has one.
    pub(super) struct ForwardArgs => ForwardParams { x: In<Elem>, y: Out<Elem>, n: u64, parameter: f64 }
}

kernel_args! {
    /// `dx = dy f'(x)`, with the parameter of a function that has one.
    pub(super) struct BackwardArgs => BackwardParams {
        x: In<Elem>, dy: In<Elem>, dx: Out<Elem>, n: u64, parameter: f64,
    }
}

kernel_args! {
    /// `y = f(gate) up`
    pub(super) struct GatedForwardArgs => GatedForwardParams { gate: In<Elem>, up: In<Elem>, y: Out<Elem>, n: u64 }
}

kernel_args! {
    /// `dgate = dy up f'(gate)`, `dup = dy f(gate)`
    pub(super) struct GatedBackwardArgs => GatedBackwardParams {
        gate: In<Elem>, up: In<Elem>, dy: In<Elem>, dgate: Out<Elem>, dup: Out<Elem>, n: u64,
    }
}

/// The parts that all four kernels share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    pub(super) dtype: DType,
    pub(super) config: Config,
}

impl Common {
    fn name(self, op: &str, suffix: &str) -> String {
        format!("{op}{suffix}_{}_x{}", self.dtype, self.config.width)
    }

    fn block(self) -> BlockDim {
        BlockDim::x(self.config.threads)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Forward {
    pub(super) f: Activation,
    pub(super) common: Common,
}

impl AccumulateKernel for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(self.common.name(self.f.name(), ""), self.common.block())
            .dtypes(DTypes::all(self.common.dtype))
    }

    fn dtype(&self) -> DType {
        self.common.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>) {
        // Such a launch costs the host less, and begins while the grid before it drains.
        k.after_previous_grid();
        let dtype = self.common.dtype;
        let parameter = a.parameter.convert::<A>();
        let parameters = [parameter, parameter.rcp()];
        elementwise(k, a.n, self.common.config.width, |i, w| {
            let x = a.x.at(i).load::<A>(w);
            a.y.at(i).store(x.map(|x| math::forward(self.f, x, parameters, dtype)));
        });
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Backward {
    pub(super) f: Activation,
    pub(super) common: Common,
}

impl AccumulateKernel for Backward {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(self.common.name(self.f.name(), "_backward"), self.common.block())
            .dtypes(DTypes::all(self.common.dtype))
    }

    fn dtype(&self) -> DType {
        self.common.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>) {
        k.after_previous_grid();
        let dtype = self.common.dtype;
        let parameter = a.parameter.convert::<A>();
        elementwise(k, a.n, self.common.config.width, |i, w| {
            let (x, dy) = (a.x.at(i).load::<A>(w), a.dy.at(i).load::<A>(w));
            a.dx.at(i).store(x.zip(dy, |x, dy| math::backward(self.f, x, dy, parameter, dtype)));
        });
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct GatedForward {
    pub(super) f: GatedActivation,
    pub(super) common: Common,
}

impl AccumulateKernel for GatedForward {
    type Args = GatedForwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(self.common.name(self.f.name(), ""), self.common.block())
            .dtypes(DTypes::all(self.common.dtype))
    }

    fn dtype(&self) -> DType {
        self.common.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: GatedForwardParams<'k>) {
        k.after_previous_grid();
        let (f, dtype) = (Weighted::from(self.f), self.common.dtype);
        elementwise(k, a.n, self.common.config.width, |i, w| {
            let (gate, up) = (a.gate.at(i).load::<A>(w), a.up.at(i).load::<A>(w));
            a.y.at(i).store(gate.zip(up, |gate, up| math::weighted(f, gate, dtype) * up));
        });
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct GatedBackward {
    pub(super) f: GatedActivation,
    pub(super) common: Common,
}

impl AccumulateKernel for GatedBackward {
    type Args = GatedBackwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(self.common.name(self.f.name(), "_backward"), self.common.block())
            .dtypes(DTypes::all(self.common.dtype))
    }

    fn dtype(&self) -> DType {
        self.common.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: GatedBackwardParams<'k>) {
        k.after_previous_grid();
        let (f, dtype) = (Weighted::from(self.f), self.common.dtype);
        elementwise(k, a.n, self.common.config.width, |i, w| {
            let gate = a.gate.at(i).load::<A>(w);
            let up = a.up.at(i).load::<A>(w);
            let dy = a.dy.at(i).load::<A>(w);
            let jets: Vec<_> = gate.iter().map(|gate| math::weighted_jet(f, gate, dtype)).collect();
            let pairs = || jets.iter().copied().zip(dy.iter());
            let dgate: Lanes<'k, A> =
                pairs().zip(up.iter()).map(|((jet, dy), up)| dy * jet.derivative * up).collect();
            let dup: Lanes<'k, A> = pairs().map(|(jet, dy)| dy * jet.value).collect();
            a.dgate.at(i).store(dgate);
            a.dup.at(i).store(dup);
        });
    }
}
