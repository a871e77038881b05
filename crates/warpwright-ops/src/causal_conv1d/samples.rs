//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{
    CausalConv1d, CausalConv1dBackwardDesc, CausalConv1dDesc, CausalConv1dUpdateDesc, Layout, OP, UPDATE,
    WIDTHS,
};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, distinct};
use crate::plan::Operation;

/// The family.
pub(crate) const FAMILY: Family = Family { name: "causal_conv1d", aliases: &[], entries, plan, kernels };

/// Channels where nothing is said.
const CHANNELS: usize = 1024;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let [forward, backward] = Entry::both(OP);
    vec![forward, backward, Entry { op: UPDATE, ..forward }]
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    let update = asked.entry.op == UPDATE;
    let [batch, channels, len] = asked.along_time([CHANNELS, usize::MAX], update);
    let conv = CausalConv1d {
        dtype: asked.dtype,
        layout: asked.layout(),
        batch,
        channels,
        len,
        width: o.width().unwrap_or(4),
        bias: o.bias().is_some(),
        silu: o.silu().is_some(),
    };
    if update {
        return asked.plan(&CausalConv1dUpdateDesc { conv });
    }
    let states = o.states().is_some();
    let sequences = o.seq_idx().is_some();
    let forward = CausalConv1dDesc {
        conv,
        initial_states: states,
        final_states: states,
        sequences,
        position_stride: None,
    };
    asked.either(&forward, &CausalConv1dBackwardDesc { forward })
}

/// Every kernel that a plan of `entry` can hold and that no entry before it has.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let layouts = [Layout::ChannelsFirst, Layout::ChannelsLast];
    let every = || {
        let filters = WIDTHS.flat_map(|width| [false, true].map(|silu| (width, silu)));
        let filters = filters.flat_map(|filter| layouts.map(|layout| (layout, filter)));
        filters.map(|(layout, (width, silu))| CausalConv1d {
            dtype,
            layout,
            batch: 1,
            channels: 8,
            len: 8,
            width,
            bias: true,
            silu,
        })
    };
    let whole = || {
        let of = |sequences| {
            move |conv| CausalConv1dDesc {
                conv,
                initial_states: false,
                final_states: false,
                sequences,
                position_stride: None,
            }
        };
        every().flat_map(move |conv| [false, true].map(|sequences| of(sequences)(conv)))
    };
    let forward = || distinct(whole().map(|desc| desc.plan(target).map(Into::into)));
    if entry.op == UPDATE {
        // With channels last it has the kernels of whole samples.
        let found =
            distinct(every().map(|conv| CausalConv1dUpdateDesc { conv }.plan(target).map(Into::into)))?;
        let listed = forward()?;
        let new = found.into_iter().filter(|kernel| listed.iter().all(|known| known.name() != kernel.name()));
        return Ok(new.collect());
    }
    match entry.direction {
        Direction::Forward => forward(),
        Direction::Backward => {
            distinct(whole().map(|forward| CausalConv1dBackwardDesc { forward }.plan(target).map(Into::into)))
        }
    }
}
