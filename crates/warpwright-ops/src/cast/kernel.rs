//! The kernel: one vector of elements a thread.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::tuning::Config;

kernel_args! {
    /// `y = x`, rounded to the type of `y`.
    pub(super) struct Args => Params { x: In<Elem>, y: Out<Elem>, n: u64 }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Cast {
    pub(super) from: DType,
    pub(super) to: DType,
    pub(super) config: Config,
}

impl AccumulateKernel for Cast {
    type Args = Args;

    fn spec(&self) -> KernelSpec {
        let Self { from, to, config } = self;
        KernelSpec::new(format!("cast_{from}_{to}_x{}", config.width), BlockDim::x(config.threads))
            .dtypes(DTypes::all(*from).with("y", *to))
    }

    /// The wider of the two types holds every element of the other, so that a store is the only rounding.
    fn dtype(&self) -> DType {
        if self.to == DType::F64 { self.to } else { self.from }
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: Params<'k>) {
        k.after_previous_grid();
        elementwise(k, a.n, self.config.width, |i, w| a.y.at(i).store(a.x.at(i).load::<A>(w)));
    }
}
