//! All steps of a pass in one launch: the blocks keep the recurrent weights on the chip, and hand each other what a step gives.

use std::fmt::Debug;
use std::marker::PhantomData;

use warpwright_dsl::prelude::*;

use super::gates::Cell;
use super::tuning::PersistentConfig;
use super::{RecurrentDesc, small};
use exchange::Exchange;
use gemm::{StepGemm, THREADS};

pub(super) mod backward;
pub(super) mod exchange;
pub(super) mod forward;
pub(super) mod gemm;
mod weights;

/// A direction in which a kernel goes through the steps of sequences.
pub(super) trait PassKind: Debug {
    /// Its name in those of kernels.
    const NAME: &'static str;
    /// Arguments that are f32 whatever the type of the elements.
    const SUMS: &'static [&'static str];

    /// The product of a step.
    fn gemm(desc: &RecurrentDesc, config: PersistentConfig) -> StepGemm;
}

/// The kernel of all steps of a pass.
#[derive(Debug)]
pub(super) struct Sequence<P> {
    cell: Cell,
    dtype: DType,
    hidden: u32,
    batch: u32,
    config: PersistentConfig,
    pub(super) exchange: Box<dyn Exchange>,
    pass: PhantomData<P>,
}

impl<P: PassKind> Sequence<P> {
    /// The steps of a net, if the exchange takes its sizes.
    pub(super) fn of(desc: &RecurrentDesc, config: PersistentConfig) -> Option<Self> {
        let exchange = exchange::of(config, P::gemm(desc, config))?;
        let (hidden, batch) = (small(desc.hidden), small(desc.batch));
        Some(Self { cell: desc.cell, dtype: desc.dtype, hidden, batch, config, exchange, pass: PhantomData })
    }

    fn kernel_spec(&self) -> KernelSpec {
        let Self { cell, dtype, hidden, batch, config, exchange, .. } = self;
        let name =
            format!("{}_{}_{}_h{hidden}_b{batch}_{config}", cell.name(), P::NAME, exchange.gemm().factors());
        let dtypes = P::SUMS.iter().fold(DTypes::all(*dtype), |dtypes, sums| dtypes.with(sums, DType::F32));
        KernelSpec::new(name, BlockDim::x(THREADS))
            .dtypes(dtypes)
            .min_blocks_per_sm(1)
            .cluster(exchange.cluster())
    }
}
