//! Cases of recurrent nets.

mod situations;
mod subject;

use std::sync::Arc;

use warpwright_ops::Direction;
use warpwright_ops::gemm::Precision;
use warpwright_ops::plan::Real;
use warpwright_ops::recurrent::tuning::Schedule;
use warpwright_ops::recurrent::{Cell, RecurrentDesc};
use warpwright_ptx::DType;

use self::situations::{How, LONG, PLAIN, Situation, rounded, situations, trainings};
use self::subject::RecurrentSubject;
use crate::budget::Budget;
use crate::case::{Case, Scope};

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    // One cell is enough for long sequences.
    let of_lstm = |situation: &Situation| situation.projection > 0 || situation.sizes[0] >= LONG;
    let takes = |cell: Cell, situation: &Situation| cell.has_c() || !of_lstm(situation);
    for cell in Cell::ALL {
        for dtype in DType::FLOATS {
            let forward = situations(scope).into_iter().filter(|situation| takes(cell, situation));
            out.extend(forward.map(|situation| case(cell, dtype, situation, Direction::Forward)));
            let backward = trainings(scope).into_iter().filter(|situation| takes(cell, situation));
            out.extend(backward.map(|situation| case(cell, dtype, situation, Direction::Backward)));
        }
        let all = rounded().into_iter().filter(|situation| takes(cell, situation));
        out.extend(all.clone().map(|situation| case(cell, DType::F32, situation, Direction::Forward)));
        // The result of relu near 0 depends on the rounding of the sum, and the gradients with it.
        let all = all.filter(|situation| cell != Cell::RnnRelu && situation.training);
        out.extend(all.map(|situation| case(cell, DType::F32, situation, Direction::Backward)));
    }
    out
}

/// A net of `[time steps, sequences, elements of an input, units]` with first states, by the schedule that is given or as tuning says.
pub fn recurrent_case(
    cell: Cell,
    dtype: DType,
    sizes: [usize; 4],
    direction: Direction,
    schedule: Option<Schedule>,
) -> Case {
    let how = schedule.map_or(How::Tuned, How::Given);
    let training = direction == Direction::Backward;
    case(cell, dtype, Situation { sizes, how, training, ..PLAIN }, direction)
}

fn case(cell: Cell, dtype: DType, situation: Situation, direction: Direction) -> Case {
    let Situation { sizes, projection, layers, directions, batch_first, biases, state, .. } = situation;
    let desc = RecurrentDesc {
        projection,
        layers,
        directions,
        batch_first,
        biases,
        h0: state,
        c0: state && cell.has_c(),
        lengths: situation.lengths,
        training: situation.training,
        dropout: situation.dropout.map(Real::new),
        precision: situation.precision,
        ..RecurrentDesc::new(cell, dtype, sizes)
    };
    let order = if batch_first { "batch first" } else { "time first" };
    let Situation { how, lengths, lead, .. } = situation;
    let mut further = if projection > 0 { format!("projection {projection}, ") } else { String::new() };
    further.extend(situation.dropout.map(|probability| format!("dropout {probability}, ")));
    further.extend((situation.precision == Precision::Tf32).then_some("tf32, "));
    Case {
        op: if situation.is_cell { cell.cell_op() } else { cell.op() },
        direction,
        dtype,
        shape: sizes.to_vec(),
        input: format!(
            "{}, {further}{how}, {layers} x {directions}, {order}, biases {biases:?}, state {state}, lengths {lengths}, lead {lead}",
            cell.name(),
        ),
        budget: budget(cell, dtype, direction, situation),
        subject: Arc::new(RecurrentSubject { desc, situation, direction }),
    }
}

/// A hidden state is below 1 and carries the roundings of the states before it, which the gates damp. Norm-wise 1.5 times
/// what PyTorch reaches, for results and, backward, for the gradient of the recurrent weights, which errs most; cells without
/// gates damp nothing, and PyTorch's err by 3.8e-4 in f16 and 3.1e-3 in bf16. Elements that dropout keeps, and their roundings, are
/// `1 / (1 - p)` as large, once for each layer.
fn budget(cell: Cell, dtype: DType, direction: Direction, situation: Situation) -> Budget {
    let plain = cell.gates() == 1;
    let keeping = 1.0 - situation.dropout.filter(|probability| *probability < 1.0).unwrap_or(0.0);
    let grows = keeping.powi(1 - situation.layers as i32);
    let (norm, element) = match (dtype, direction) {
        (DType::F32, _) if situation.precision == Precision::Tf32 => rounded_budget(direction),
        (DType::F64, Direction::Forward) => (1e-13, 64.0),
        (DType::F64, Direction::Backward) => (2e-13, 64.0),
        (DType::F32, Direction::Forward) => (5.7e-7, 16.0),
        (DType::F32, Direction::Backward) => (1.38e-6, 16.0),
        (DType::F16, Direction::Forward) => (if plain { 5.7e-4 } else { 3.9e-4 }, 3.0),
        (DType::F16, Direction::Backward) => (7.5e-4, 3.0),
        (_, Direction::Forward) => (if plain { 4.6e-3 } else { 3.45e-3 }, 3.0),
        (_, Direction::Backward) => (6.3e-3, 3.0),
    };
    let (norm, element) = (norm * grows, element * grows);
    Budget { norm, element, norm_of_one: 2.0 * norm }
}

/// Factors have the 11 bits of `f16`. Inputs and weights are rounded, too, but what is handed on is not, so the bounds are those of
/// `f16` for a cell that damps nothing, in units of the eps of `f32`.
fn rounded_budget(direction: Direction) -> (f64, f64) {
    let [f16, f32] = [DType::F16, DType::F32].map(|dtype| dtype.epsilon().unwrap_or(1.0));
    let norm = if direction == Direction::Forward { 5.7e-4 } else { 7.5e-4 };
    (norm, 3.0 * f16 / f32)
}
