//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{
    Layout, OP, SelectiveScan, SelectiveScanBackwardDesc, SelectiveScanDesc, SelectiveScanUpdateDesc, UPDATE,
};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, distinct};
use crate::plan::Operation;

/// The family.
pub(crate) const FAMILY: Family = Family { name: "selective_scan", aliases: &[], entries, plan, kernels };

/// Channels, and positions at the most, where nothing is said: those of a layer of Mamba.
const CHANNELS: usize = 2048;
const POSITIONS: usize = 2048;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let [forward, backward] = Entry::both(OP);
    vec![forward, backward, Entry { op: UPDATE, ..forward }]
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    let update = asked.entry.op == UPDATE;
    let [batch, channels, len] = asked.along_time([CHANNELS, POSITIONS], update);
    let scan = SelectiveScan {
        dtype: asked.dtype,
        layout: asked.layout(),
        batch,
        channels,
        len,
        state: o.state_size().unwrap_or(16),
        groups: o.groups().unwrap_or(1),
        d: true,
        gate: o.gate().is_some(),
        delta_bias: o.bias().is_some(),
        delta_softplus: true,
    };
    if update {
        return asked.plan(&SelectiveScanUpdateDesc { scan });
    }
    let states = o.states().is_some();
    let training = asked.entry.direction == Direction::Forward && o.training().is_some();
    let forward = SelectiveScanDesc { scan, initial_state: states, last_state: states, training };
    asked.either(&forward, &SelectiveScanBackwardDesc { forward })
}

/// A scan of few elements with all that there may be.
fn every_option(dtype: DType, layout: Layout, state: usize) -> SelectiveScan {
    SelectiveScan {
        dtype,
        layout,
        batch: 1,
        channels: 8,
        len: 8,
        state,
        groups: 1,
        d: true,
        gate: true,
        delta_bias: true,
        delta_softplus: true,
    }
}

/// Every kernel that a plan of `entry` can hold and that no entry before it has.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let layouts = [Layout::ChannelsFirst, Layout::ChannelsLast];
    let every = layouts.into_iter().flat_map(|layout| [15, 16, 31, 32, 63, 64].map(|state| (layout, state)));
    let every = every.map(|(layout, state)| {
        let scan = every_option(dtype, layout, state);
        SelectiveScanDesc { scan, initial_state: true, last_state: true, training: true }
    });
    if entry.op == UPDATE {
        let states = [4, 8, 16, 32, 64, 128, 256].into_iter().flat_map(|state| [state - 1, state]);
        return distinct(states.map(|state| {
            let scan = every_option(dtype, Layout::ChannelsLast, state);
            SelectiveScanUpdateDesc { scan }.plan(target).map(Into::into)
        }));
    }
    match entry.direction {
        Direction::Forward => distinct(every.map(|desc| desc.plan(target).map(Into::into))),
        Direction::Backward => {
            distinct(every.map(|forward| SelectiveScanBackwardDesc { forward }.plan(target).map(Into::into)))
        }
    }
}
