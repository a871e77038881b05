//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::persistent::Sequence;
use super::persistent::backward::BackwardPass;
use super::persistent::exchange::FirstStates;
use super::persistent::forward::ForwardPass;
use super::step::fused_mma::FusedMma;
use super::step::{dropout, gemv, pointwise, projection, sums};
use super::tuning::{self, ExchangeKind, PersistentConfig, Schedule};
use super::{Biases, Cell, CellBackwardDesc, CellDesc, RecurrentBackwardDesc, RecurrentDesc};
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Family, Nonlinearity, Planned, TARGETS, Taken};
use crate::gemm::Precision;
use crate::plan::{self as plans, Real};

/// The family.
pub(crate) const FAMILY: Family = Family { name: "recurrent", aliases: &[], entries, plan, kernels };

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let op = asked.entry.op;
    if let Some(cell) = Cell::ALL.into_iter().find(|cell| cell.op() == op) {
        return plan_sequence(asked, of_function(&asked.options, cell));
    }
    match Cell::ALL.into_iter().find(|cell| cell.cell_op() == op) {
        Some(cell) => plan_cell(asked, of_function(&asked.options, cell)),
        None => Err(asked.unknown()),
    }
}

fn plan_sequence(asked: &Asked<'_>, cell: Cell) -> Result<Planned, PlanError> {
    let precision = asked.precision();
    let o = &asked.options;

    let batch = o.batch().unwrap_or(1);
    let hidden = o.hidden().unwrap_or(64);
    let input = o.input().unwrap_or(hidden);
    let steps = o.steps().unwrap_or((asked.len / hidden.max(1)).clamp(1, 1024));
    let forward = RecurrentDesc {
        projection: if cell == Cell::Lstm { o.projection().unwrap_or(0) } else { 0 },
        layers: o.layers().unwrap_or(1),
        directions: if o.bidirectional().is_some() { 2 } else { 1 },
        batch_first: o.batch_first().is_some(),
        biases: biases(o),
        h0: true,
        c0: cell.has_c(),
        lengths: o.lengths().is_some(),
        dropout: o.dropout().map(Real::new),
        precision,
        training: asked.is_backward() || o.training().is_some(),
        ..RecurrentDesc::new(cell, asked.dtype, [steps, batch, input, hidden])
    };
    let (dy, dh_n, dc_n, dx) = (true, false, false, true);
    let backward = RecurrentBackwardDesc { forward: forward.clone(), dy, dh_n, dc_n, dx };
    asked.either(&forward, &backward)
}

fn plan_cell(asked: &Asked<'_>, cell: Cell) -> Result<Planned, PlanError> {
    let o = &asked.options;

    let hidden = o.hidden().unwrap_or(asked.len.isqrt().clamp(1, 4096));
    let forward = CellDesc {
        cell,
        dtype: asked.dtype,
        batch: o.batch().unwrap_or(1),
        input: o.input().unwrap_or(hidden),
        hidden,
        biases: biases(o),
        training: asked.is_backward() || o.training().is_some(),
    };
    asked.either(&forward, &CellBackwardDesc { forward: forward.clone(), dc_next: false })
}

/// The cell of the function that was asked for; those with gates have theirs.
fn of_function(o: &Taken<'_>, cell: Cell) -> Cell {
    match cell {
        Cell::RnnTanh | Cell::RnnRelu => match o.nonlinearity() {
            Some(Nonlinearity::Relu) => Cell::RnnRelu,
            _ => Cell::RnnTanh,
        },
        gated => gated,
    }
}

fn biases(o: &Taken<'_>) -> Biases {
    match o.biases().map(|count| count.0) {
        Some(0) => Biases::Absent,
        Some(1) => Biases::One,
        _ => Biases::Two,
    }
}

/// The names of the primitives.
const NAMES: [&str; 6] = ["lstm", "gru", "rnn", "lstm_cell", "gru_cell", "rnn_cell"];

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
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
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let op = entry.op;
    let mut all = Vec::new();
    for cell in Cell::ALL.into_iter().filter(|cell| cell.op() == op || cell.cell_op() == op) {
        if entry.direction == Direction::Backward {
            all.push(plans::recorded(op, &pointwise::Backward { cell, dtype, projected: false }, target)?);
            all.push(plans::recorded(op, &pointwise::Start { cell, dtype }, target)?);
            for desc in samples(cell, dtype, target).filter(|_| cell.op() == op) {
                if let Some(config) = persistent(&desc, tuning::choose_backward(&desc, target)) {
                    if config.exchange == ExchangeKind::Inband {
                        all.push(plans::recorded(op, &FirstStates { dtype }, target)?);
                    }
                    let sequence = Sequence::<BackwardPass>::of(&desc, config);
                    all.extend(sequence.map(|def| plans::recorded(op, &def, target)).transpose()?);
                }
            }
            continue;
        }
        let step = pointwise::Forward { cell, dtype, first: true, projected: false };
        all.push(plans::recorded(op, &step, target)?);
        for batch in [1, 2, 3, gemv::MOST_BATCH as u32] {
            if FusedMma::of(cell, dtype, [batch as usize, 1], target).is_none() {
                all.push(plans::recorded(op, &gemv::Gemv { cell, dtype, batch }, target)?);
            }
        }
        for def in
            FusedMma::BATCHES.into_iter().filter_map(|batch| FusedMma::of(cell, dtype, [batch, 1], target))
        {
            all.push(plans::recorded(op, &def, target)?);
        }
        if cell.cell_op() == op {
            continue;
        }
        all.push(plans::recorded(op, &pointwise::Forward { first: false, ..step }, target)?);
        for desc in samples(cell, dtype, target) {
            if let Some(config) = persistent(&desc, desc.schedule(target)) {
                if config.exchange == ExchangeKind::Inband {
                    all.push(plans::recorded(op, &FirstStates { dtype }, target)?);
                }
                let sequence = Sequence::<ForwardPass>::of(&desc, config);
                all.extend(sequence.map(|def| plans::recorded(op, &def, target)).transpose()?);
            }
        }
    }
    if entry.direction == Direction::Backward && op == NAMES[0] {
        all.push(plans::recorded(op, &sums::Round { dtype }, target)?);
        all.push(plans::recorded(op, &sums::Columns { dtype }, target)?);
    }
    if op == NAMES[0] {
        for of_sums in [false, true] {
            all.push(plans::recorded(op, &dropout::DropoutKernel { dtype, of_sums }, target)?);
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
        return Ok(vec![plans::recorded(op, &step, target)?, plans::recorded(op, &project, target)?]);
    }
    let step = |first| pointwise::Forward { cell, dtype, first, projected: true };
    Ok(vec![
        plans::recorded(op, &step(true), target)?,
        plans::recorded(op, &step(false), target)?,
        plans::recorded(op, &projection::Forward { dtype }, target)?,
    ])
}
