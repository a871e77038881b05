//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{ChunkScan, ChunkScanBackwardDesc, ChunkScanDesc, DTYPES, NEEDS_SM, OP};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Planned, TARGETS, distinct};
use crate::plan::Operation;

/// The family.
pub(crate) const FAMILY: Family = Family {
    name: "chunk_scan",
    aliases: &[("chunk_scan", "ssd"), ("chunk_scan", "mamba2")],
    entries,
    plan,
    kernels,
};

/// Elements of a position, and positions at the most, where nothing is said: those of a layer of Mamba 2.
const WIDTH: usize = 2048;
const POSITIONS: usize = 2048;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    const { assert!(TARGETS[1].sm == NEEDS_SM) };
    let entry = |direction| Entry { op: OP, direction, dtypes: &DTYPES, targets: &TARGETS[1..] };
    [Direction::Forward, Direction::Backward].map(entry).to_vec()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    let head_dim = o.head_dim().unwrap_or(64);
    let of_heads = |heads: usize| heads.saturating_mul(head_dim).max(1);
    let [batch, width, len] = asked.along_time([o.heads().map_or(WIDTH, of_heads), POSITIONS], false);
    let heads = o.heads().unwrap_or((width / head_dim.max(1)).max(1));
    let sizes = [o.groups().unwrap_or(1), o.state_size().unwrap_or(128)];
    let scan = ChunkScan {
        d: true,
        dt_bias: o.bias().is_some(),
        dt_softplus: true,
        ..ChunkScan::new(asked.dtype, [batch, len, heads, head_dim], sizes)
    };
    let states = o.states().is_some();
    let training = asked.entry.direction == Direction::Forward && o.training().is_some();
    let forward = ChunkScanDesc { scan, initial_state: states, last_state: states, training };
    asked.either(&forward, &ChunkScanBackwardDesc { forward })
}

/// Every kernel that a plan of `entry` can hold and that no entry before it has.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let sizes =
        [32, 64, 128].into_iter().flat_map(|head_dim| [32, 64, 128, 256].map(|state| (head_dim, state)));
    let plan = |(head_dim, state)| {
        let scan = ChunkScan {
            d: true,
            dt_bias: true,
            dt_softplus: true,
            ..ChunkScan::new(dtype, [1, 64, 1, head_dim], [1, state])
        };
        let forward = ChunkScanDesc { scan, initial_state: true, last_state: true, training: true };
        match entry.direction {
            Direction::Forward => forward.plan(target).map(Into::into),
            Direction::Backward => ChunkScanBackwardDesc { forward }.plan(target).map(Into::into),
        }
    };
    // The largest tiles do not fit the shared memory of every target.
    distinct(sizes.map(plan).filter(|plan| !matches!(plan, Err(PlanError::SharedMemory { .. }))))
}
