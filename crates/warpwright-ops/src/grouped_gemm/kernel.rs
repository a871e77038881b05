//! The kernel on tensor cores of sm_90a.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use crate::gemm::engine::{Blocks, Epilogue, Store, WorkArgs};
use crate::gemm::groups::{GroupArgs, Grouping};
use crate::gemm::tuning::PersistentConfig;

kernel_args! {
    /// Products of groups.
    pub(super) struct GroupedArgs => GroupedParams { work: WorkArgs, groups: GroupArgs }
}

/// Products of groups, by blocks that stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupedGemm {
    pub(super) dtype: DType,
    pub(super) grouping: Grouping,
    /// How a right factor is stored.
    pub(super) b: Major,
    pub(super) config: PersistentConfig,
    pub(super) store: Store,
}

impl GroupedGemm {
    pub(super) fn blocks(&self) -> Blocks {
        let Self { dtype, grouping, b, config, store } = *self;
        let a = if grouping == Grouping::M { Major::K } else { Major::Mn };
        let slices = config.tiles(dtype, a, b);
        Blocks { slices, part_of_b: slices.1, y: dtype, config, store, planes: None, turns: false }
    }
}

/// The name of a kernel.
pub(super) fn name(grouping: Grouping, dtype: DType, b: Major, layout: &str) -> String {
    let b = if b == Major::K { "t" } else { "n" };
    format!("{}_{dtype}_{b}_{layout}", super::op(grouping))
}

/// Sums are the results.
struct Sums;

impl<'k> Epilogue<'k> for Sums {
    type Rows = ();

    fn rows(&self, _: U32<'k>, _: &dyn Fn(u32) -> U32<'k>) {}
}

impl KernelDef for GroupedGemm {
    type Args = GroupedArgs;

    fn spec(&self) -> KernelSpec {
        let rows = if self.store == Store::Rows { "_rows" } else { "" };
        let layout = format!("{}{rows}", self.config.name());
        let name = name(self.grouping, self.dtype, self.b, &layout);
        KernelSpec::new(name, BlockDim::x(self.blocks().threads()))
            .dtypes(DTypes::all(self.dtype))
            .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, p: GroupedParams<'k>) {
        self.blocks().record(k, p.work, Some((self.grouping, p.groups)), &Sums);
    }
}
