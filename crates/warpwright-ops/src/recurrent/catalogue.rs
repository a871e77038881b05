//! The family's rows of the catalogue, and the kernels of each.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::persistent::backward::SequenceBackward;
use super::persistent::exchange::FirstStates;
use super::persistent::forward::Sequence;
use super::step::fused_mma::FusedMma;
use super::step::{dropout, gemv, pointwise, projection, sums};
use super::tuning::{self, ExchangeKind, PersistentConfig, Schedule};
use super::{Cell, RecurrentDesc};
use crate::PlanError;
use crate::catalogue::{Direction, Entry, TARGETS};
use crate::gemm::Precision;
use crate::plan;

/// The names of the primitives.
const NAMES: [&str; 6] = ["lstm", "gru", "rnn", "lstm_cell", "gru_cell", "rnn_cell"];

/// The family's rows of the catalogue.
pub(crate) fn entries() -> Vec<Entry> {
    let of = |direction| NAMES.map(|op| Entry { op, direction, dtypes: &DType::FLOATS, targets: &TARGETS });
    [of(Direction::Forward), of(Direction::Backward)].concat()
}

/// Sizes that the persistent kernels of the catalogue are for: they know theirs.
const SAMPLES: [(usize, usize); 11] = [
    (1, 512),
    (16, 256),
    (16, 768),
    (32, 1024),
    (3, 32),
    (1, 1024),
    (64, 1024),
    (32, 2048),
    (64, 128),
    (64, 256),
    (4, 512),
];

/// Nets of these sizes.
fn samples(cell: Cell, dtype: DType, target: Target) -> impl Iterator<Item = RecurrentDesc> {
    Precision::of(dtype, target).iter().flat_map(move |&precision| {
        let of = move |(batch, hidden)| RecurrentDesc::new(cell, dtype, [2, batch, hidden, hidden]);
        SAMPLES.into_iter().map(of).map(move |desc| RecurrentDesc { precision, ..desc })
    })
}

/// The persistent kernel that a net has to itself.
fn persistent(desc: &RecurrentDesc, schedule: Schedule) -> Option<PersistentConfig> {
    match schedule {
        Schedule::Persistent(config) => Some(config)
            .filter(|config| desc.precision == Precision::Full || config.exchange.rounds(desc.precision)),
        Schedule::Stepwise => None,
    }
}

/// Every kernel that a plan can hold but those of products; the persistent ones, which know their sizes, for a few of them.
pub(crate) fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let op = entry.op;
    let mut all = Vec::new();
    for cell in Cell::ALL.into_iter().filter(|cell| cell.op() == op || cell.cell_op() == op) {
        if entry.direction == Direction::Backward {
            all.push(plan::recorded(op, &pointwise::Backward { cell, dtype, projected: false }, target)?);
            all.push(plan::recorded(op, &pointwise::Start { cell, dtype }, target)?);
            for desc in samples(cell, dtype, target).filter(|_| cell.op() == op) {
                if let Some(config) = persistent(&desc, tuning::choose_backward(&desc, target)) {
                    if config.exchange == ExchangeKind::Inband {
                        all.push(plan::recorded(op, &FirstStates { dtype }, target)?);
                    }
                    let sequence = SequenceBackward::of(&desc, config);
                    all.extend(sequence.map(|def| plan::recorded(op, &def, target)).transpose()?);
                }
            }
            continue;
        }
        let step = pointwise::Forward { cell, dtype, first: true, projected: false };
        all.push(plan::recorded(op, &step, target)?);
        for batch in [1, 2, 3, gemv::MOST_BATCH as u32] {
            if FusedMma::of(cell, dtype, [batch as usize, 1], target).is_none() {
                all.push(plan::recorded(op, &gemv::Gemv { cell, dtype, batch }, target)?);
            }
        }
        for def in
            FusedMma::BATCHES.into_iter().filter_map(|batch| FusedMma::of(cell, dtype, [batch, 1], target))
        {
            all.push(plan::recorded(op, &def, target)?);
        }
        if cell.cell_op() == op {
            continue;
        }
        all.push(plan::recorded(op, &pointwise::Forward { first: false, ..step }, target)?);
        for desc in samples(cell, dtype, target) {
            if let Some(config) = persistent(&desc, desc.schedule(target)) {
                if config.exchange == ExchangeKind::Inband {
                    all.push(plan::recorded(op, &FirstStates { dtype }, target)?);
                }
                let sequence = Sequence::of(&desc, config);
                all.extend(sequence.map(|def| plan::recorded(op, &def, target)).transpose()?);
            }
        }
    }
    if entry.direction == Direction::Backward && op == NAMES[0] {
        all.push(plan::recorded(op, &sums::Round { dtype }, target)?);
        all.push(plan::recorded(op, &sums::Columns { dtype }, target)?);
    }
    if op == NAMES[0] {
        for of_sums in [false, true] {
            all.push(plan::recorded(op, &dropout::DropoutKernel { dtype, of_sums }, target)?);
        }
        all.extend(projected(entry.direction, dtype, target)?);
    }
    Ok(all)
}

/// The kernels of an LSTM with a projection.
fn projected(direction: Direction, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let (cell, op) = (Cell::Lstm, NAMES[0]);
    if direction == Direction::Backward {
        let step = pointwise::Backward { cell, dtype, projected: true };
        let project = projection::Backward { dtype };
        return Ok(vec![plan::recorded(op, &step, target)?, plan::recorded(op, &project, target)?]);
    }
    let step = |first| pointwise::Forward { cell, dtype, first, projected: true };
    Ok(vec![
        plan::recorded(op, &step(true), target)?,
        plan::recorded(op, &step(false), target)?,
        plan::recorded(op, &projection::Forward { dtype }, target)?,
    ])
}
