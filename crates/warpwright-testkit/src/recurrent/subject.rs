//! The run of a case: both passes on a device, held against the reference.

use warpwright_ops::gemm::Precision;
use warpwright_ops::plan::TensorSpec;
use warpwright_ops::recurrent::reference::{Net, Weights};
use warpwright_ops::recurrent::tuning::Schedule;
use warpwright_ops::recurrent::{
    Biases, Cell, CellArgs, CellBackwardArgs, CellBackwardDesc, CellDesc, RecurrentArgs,
    RecurrentBackwardArgs, RecurrentBackwardDesc, RecurrentDesc, WeightGradients, WeightRefs,
};
use warpwright_ops::{Direction, Dropout, Operation, Plan};
use warpwright_ptx::{DType, Target};

use super::situations::{How, Situation};
use crate::case::{Bench, CaseError, Placed, Subject, view_mut};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

/// Seed and offset of dropout.
const RANDOM: [u64; 2] = [0x1234_5678_9abc, 7];

/// A net and its pass.
#[derive(Debug)]
pub(super) struct RecurrentSubject {
    pub(super) desc: RecurrentDesc,
    pub(super) situation: Situation,
    pub(super) direction: Direction,
}

/// The tensors of a pass.
struct Pass {
    w_ih: Placed,
    w_hh: Placed,
    w_hr: Placed,
    b_ih: Placed,
    b_hh: Placed,
}

/// The plan of a forward pass.
enum Planned {
    Sequence(Plan<RecurrentDesc>),
    Cell(Plan<CellDesc>),
}

impl Planned {
    fn tensors(&self) -> &[TensorSpec] {
        match self {
            Self::Sequence(plan) => plan.tensors(),
            Self::Cell(plan) => plan.tensors(),
        }
    }
}

/// Room for the tensor called `name`, if there is one.
fn scratch(
    bench: &Bench<'_>,
    tensors: &[TensorSpec],
    name: &'static str,
) -> Result<Option<Placed>, CaseError> {
    let spec = tensors.iter().find(|spec| spec.name == name && spec.present);
    spec.map(|spec| bench.output(name, spec.dtype, spec.len, 0)).transpose()
}

/// The inputs of both passes of a net.
struct Given {
    net: Net,
    x_values: Vec<f64>,
    x: Placed,
    lengths: Placed,
    h0: Placed,
    c0: Placed,
    random: Placed,
    passes: Vec<Pass>,
}

/// The results of a forward pass.
struct Made {
    y: Placed,
    h_n: Placed,
    c_n: Placed,
    reserve: Option<Placed>,
}

impl RecurrentSubject {
    fn draw(&self, len: usize, salt: u64, scale: f64) -> Vec<f64> {
        let values = Input::Normal.values(len, salt << 32 | len as u64);
        values.into_iter().map(|v| storage::round(self.desc.dtype, scale * v)).collect()
    }

    /// Lengths with all, none and one of the time steps among them.
    fn lengths(&self) -> Vec<usize> {
        let steps = self.desc.steps;
        let all = [steps, steps.div_ceil(2), 0, 1];
        (0..self.desc.batch).map(|b| if self.desc.lengths { all[b % all.len()] } else { steps }).collect()
    }

    /// Gradients of a relu jump where a sum is 0. States that are rounded as on the device leave the same sums on the same side
    /// of it; those of a net without rounding would not, and one such sum changes everything that is behind it.
    fn kept(&self) -> fn(f64) -> f64 {
        match (self.desc.cell, self.desc.dtype) {
            (Cell::RnnRelu, DType::F16) => |h| storage::round(DType::F16, h),
            (Cell::RnnRelu, DType::BF16) => |h| storage::round(DType::BF16, h),
            (Cell::RnnRelu, DType::F32) => |h| storage::round(DType::F32, h),
            _ => |h| h,
        }
    }

    /// The factors of dropout between the layers.
    fn factors(&self) -> Vec<Vec<f64>> {
        let RecurrentDesc { steps, batch, batch_first, layers, directions, .. } = self.desc;
        let Some(probability) = self.situation.dropout else { return Vec::new() };
        let [seed, offset] = RANDOM;
        let dropout = Dropout { probability: probability as f32, seed, offset };
        let scale = Dropout::scale(probability);
        let wide = directions * self.output();
        let factor = |layer: usize, at: usize| {
            let (row, element) = (at / wide, at % wide);
            let row = if batch_first { row % steps * batch + row / steps } else { row };
            let number = ((layer as u64) << 44) + (row * wide + element) as u64;
            if dropout.keeps(number) { scale } else { 0.0 }
        };
        (0..layers - 1).map(|layer| (0..self.results()).map(|at| factor(layer, at)).collect()).collect()
    }

    /// Elements of a hidden state of a sequence.
    fn output(&self) -> usize {
        if self.desc.projection > 0 { self.desc.projection } else { self.desc.hidden }
    }

    /// Elements of all hidden states, and of all cells.
    fn states(&self) -> [usize; 2] {
        let sequences = self.desc.layers * self.desc.directions * self.desc.batch;
        [sequences * self.output(), sequences * self.desc.hidden]
    }

    fn wide(&self) -> usize {
        self.desc.cell.gates() * self.desc.hidden
    }

    /// Elements of `y`.
    fn results(&self) -> usize {
        self.desc.steps * self.desc.batch * self.desc.directions * self.output()
    }

    fn weights(&self, index: usize) -> Weights {
        let RecurrentDesc { input, hidden, projection, directions, biases, .. } = self.desc;
        let input = if index < directions { input } else { directions * self.output() };
        let (scale, salt) = (1.0 / (hidden as f64).sqrt(), 10 * (index as u64 + 1));
        let bias = |given: bool, salt| {
            if given { self.draw(self.wide(), salt, scale) } else { vec![0.0; self.wide()] }
        };
        Weights {
            w_ih: self.draw(self.wide() * input, salt, scale),
            w_hh: self.draw(self.wide() * self.output(), salt + 1, scale),
            w_hr: self.draw(projection * hidden, salt + 4, scale),
            b_ih: bias(biases != Biases::Absent, salt + 2),
            b_hh: bias(biases == Biases::Two, salt + 3),
        }
    }

    fn given(&self, bench: &Bench<'_>) -> Result<Given, CaseError> {
        let RecurrentDesc { cell, dtype, steps, batch, input, hidden, directions, batch_first, .. } =
            self.desc;
        let ([states, cells], lead) = (self.states(), self.situation.lead);
        let net = Net {
            cell,
            sizes: [steps, batch, input, hidden],
            projection: self.desc.projection,
            directions,
            batch_first,
            lengths: self.lengths(),
            weights: (0..self.desc.layers * directions).map(|index| self.weights(index)).collect(),
            h0: if self.desc.h0 { self.draw(states, 6, 0.5) } else { vec![0.0; states] },
            c0: if self.desc.c0 { self.draw(cells, 7, 1.0) } else { vec![0.0; cells] },
            factors: self.factors(),
            kept: self.kept(),
        };
        let x_values = self.draw(steps * batch * input, 1, 1.0);
        let given = |name, values: &[f64]| bench.input(name, dtype, values, lead);
        let lengths: Vec<f64> = net.lengths.iter().map(|length| *length as f64).collect();
        let pass = |weights: &Weights| -> Result<Pass, CaseError> {
            Ok(Pass {
                w_ih: given("w_ih", &weights.w_ih)?,
                w_hh: given("w_hh", &weights.w_hh)?,
                w_hr: given("w_hr", &weights.w_hr)?,
                b_ih: given("b_ih", &weights.b_ih)?,
                b_hh: given("b_hh", &weights.b_hh)?,
            })
        };
        Ok(Given {
            x: given("x", &x_values)?,
            lengths: bench.input("lengths", DType::I32, &lengths, 0)?,
            h0: given("h0", &net.h0)?,
            c0: given("c0", &net.c0)?,
            random: bench.input("random", DType::I64, &RANDOM.map(|number| number as f64), 0)?,
            passes: net.weights.iter().map(pass).collect::<Result<_, _>>()?,
            net,
            x_values,
        })
    }

    /// The net, whose factors are rounded where that is possible.
    fn desc_for(&self, target: Target) -> RecurrentDesc {
        let precision = if target.sm < 80 { Precision::Full } else { self.desc.precision };
        RecurrentDesc { precision, ..self.desc.clone() }
    }

    fn planned(&self, target: Target) -> Result<Planned, CaseError> {
        if self.situation.is_cell {
            return Ok(Planned::Cell(self.cell().plan(target)?));
        }
        let desc = self.desc_for(target);
        let takes = |schedule| desc.plan_with(target, schedule).is_ok();
        let schedule = self.schedule(desc.schedule(target), takes);
        Ok(Planned::Sequence(desc.plan_with(target, schedule)?))
    }

    /// The schedule of a pass that tuning gives `tuned`; `takes` says whether one has a plan.
    fn schedule(&self, tuned: Schedule, takes: impl Fn(Schedule) -> bool) -> Schedule {
        match self.situation.how {
            How::Given(schedule) if takes(schedule) => schedule,
            How::Given(_) | How::Tuned => tuned,
        }
    }

    fn cell(&self) -> CellDesc {
        let RecurrentDesc { cell, dtype, batch, input, hidden, biases, training, .. } = self.desc;
        CellDesc { cell, dtype, batch, input, hidden, biases, training }
    }

    /// Launches the forward pass.
    fn forward(&self, bench: &mut Bench<'_>, given: &Given) -> Result<Made, CaseError> {
        let (desc, lead) = (&self.desc, self.situation.lead);
        let planned = self.planned(bench.target())?;
        let mut made = Made {
            y: bench.output("y", desc.dtype, self.results(), lead)?,
            h_n: bench.output("h_n", desc.dtype, self.states()[0], lead)?,
            c_n: bench.output("c_n", desc.dtype, self.states()[1], lead)?,
            reserve: None,
        };
        let mut reserve = scratch(bench, planned.tensors(), "reserve")?;
        let mut workspace = scratch(bench, planned.tensors(), "workspace")?;
        bench.launch(|stream| {
            let plan = match &planned {
                Planned::Sequence(plan) => plan,
                Planned::Cell(plan) => {
                    let args = CellArgs {
                        x: given.x.view()?,
                        h: given.h0.view()?,
                        c: desc.c0.then(|| given.c0.view()).transpose()?,
                        weights: pass_refs(&given.passes[0], desc)?,
                        h_next: made.h_n.view_mut()?,
                        c_next: if desc.cell.has_c() { Some(made.c_n.view_mut()?) } else { None },
                        reserve: view_mut(&mut reserve)?,
                        workspace: view_mut(&mut workspace)?,
                    };
                    return Ok(plan.launch(stream, args)?);
                }
            };
            let args = RecurrentArgs {
                x: given.x.view()?,
                lengths: desc.lengths.then(|| given.lengths.view()).transpose()?,
                h0: desc.h0.then(|| given.h0.view()).transpose()?,
                c0: desc.c0.then(|| given.c0.view()).transpose()?,
                random: desc.dropout.map(|_| given.random.view()).transpose()?,
                weights: given.passes.iter().map(|pass| pass_refs(pass, desc)).collect::<Result<_, _>>()?,
                y: made.y.view_mut()?,
                h_n: made.h_n.view_mut()?,
                c_n: if desc.cell.has_c() { Some(made.c_n.view_mut()?) } else { None },
                reserve: view_mut(&mut reserve)?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        made.reserve = reserve;
        Ok(made)
    }

    fn backward(&self, bench: &mut Bench<'_>, given: &Given) -> Result<Comparison, CaseError> {
        let made = self.forward(bench, given)?;
        let Some(reserve) = &made.reserve else { return Ok(Comparison::default()) };
        let (desc, lead) = (&self.desc, self.situation.lead);
        let (dtype, state) = (desc.dtype, self.situation.state);
        let ([states, cells], wide) = (self.states(), self.wide());
        let backward = RecurrentBackwardDesc {
            forward: self.desc_for(bench.target()),
            dy: true,
            dh_n: state,
            dc_n: state && desc.cell.has_c(),
            dx: true,
        };
        let is_cell = self.situation.is_cell;
        let of_cell = CellBackwardDesc { forward: self.cell(), dc_next: backward.dc_n };
        let target = bench.target();
        let takes = |schedule| backward.plan_with(target, schedule).is_ok();
        let schedule = self.schedule(backward.schedule(target), takes);
        let (plan, cell_plan) = (backward.plan_with(target, schedule)?, of_cell.plan(target)?);
        let dy_scale = if is_cell { 0.0 } else { 1.0 };
        let dy_values = self.draw(self.results(), 3, dy_scale);
        let of_end = |given: bool, len, salt| if given { self.draw(len, salt, 1.0) } else { vec![0.0; len] };
        let dh_values = of_end(backward.dh_n, states, 4);
        let dc_values = of_end(backward.dc_n, cells, 5);
        let input = |name, values: &[f64]| bench.input(name, dtype, values, lead);
        let (dy, dh_n, dc_n) =
            (input("dy", &dy_values)?, input("dh_n", &dh_values)?, input("dc_n", &dc_values)?);
        let output = |name, len| bench.output(name, dtype, len, lead);
        let mut dx = output("dx", given.x_values.len())?;
        let (mut dh0, mut dc0) = (output("dh0", states)?, output("dc0", cells)?);
        let of = |weights: &Weights| -> Result<Pass, CaseError> {
            Ok(Pass {
                w_ih: output("dw_ih", weights.w_ih.len())?,
                w_hh: output("dw_hh", weights.w_hh.len())?,
                w_hr: output("dw_hr", weights.w_hr.len())?,
                b_ih: output("db_ih", wide)?,
                b_hh: output("db_hh", wide)?,
            })
        };
        let mut gradients = given.net.weights.iter().map(of).collect::<Result<Vec<_>, _>>()?;
        let tensors = if is_cell { cell_plan.tensors() } else { plan.tensors() };
        let mut workspace = scratch(bench, tensors, "workspace")?;
        bench.launch(|stream| {
            if is_cell {
                let args = CellBackwardArgs {
                    x: given.x.view()?,
                    h: given.h0.view()?,
                    c: desc.c0.then(|| given.c0.view()).transpose()?,
                    reserve: reserve.view()?,
                    dh_next: dh_n.view()?,
                    dc_next: backward.dc_n.then(|| dc_n.view()).transpose()?,
                    weights: gradient_refs(&given.passes[0], &mut gradients[0], desc)?,
                    dx: dx.view_mut()?,
                    dh: dh0.view_mut()?,
                    dc: if desc.c0 { Some(dc0.view_mut()?) } else { None },
                    workspace: view_mut(&mut workspace)?,
                };
                return Ok(cell_plan.launch(stream, args)?);
            }
            let weights = gradients.iter_mut().zip(&given.passes);
            let weights = weights.map(|(to, pass)| gradient_refs(pass, to, desc));
            let args = RecurrentBackwardArgs {
                x: given.x.view()?,
                lengths: desc.lengths.then(|| given.lengths.view()).transpose()?,
                h0: desc.h0.then(|| given.h0.view()).transpose()?,
                c0: desc.c0.then(|| given.c0.view()).transpose()?,
                random: desc.dropout.map(|_| given.random.view()).transpose()?,
                y: made.y.view()?,
                reserve: reserve.view()?,
                dy: Some(dy.view()?),
                dh_n: backward.dh_n.then(|| dh_n.view()).transpose()?,
                dc_n: backward.dc_n.then(|| dc_n.view()).transpose()?,
                weights: weights.collect::<Result<_, _>>()?,
                dx: Some(dx.view_mut()?),
                dh0: if desc.h0 { Some(dh0.view_mut()?) } else { None },
                dc0: if desc.c0 { Some(dc0.view_mut()?) } else { None },
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let y = given.net.forward(&given.x_values).y;
        let want = given.net.backward(&given.x_values, &y, &dy_values, &dh_values, &dc_values);
        let mut all = bench.compare(&dx, &of_gradient(&want.dx))?;
        if desc.h0 {
            all = all.merge(bench.compare(&dh0, &of_gradient(&want.dh0))?);
        }
        if desc.c0 {
            all = all.merge(bench.compare(&dc0, &of_gradient(&want.dc0))?);
        }
        for (got, want) in gradients.iter().zip(&want.weights) {
            all = all.merge(bench.compare(&got.w_ih, &of_gradient(&want.w_ih))?);
            all = all.merge(bench.compare(&got.w_hh, &of_gradient(&want.w_hh))?);
            if desc.projection > 0 {
                all = all.merge(bench.compare(&got.w_hr, &of_gradient(&want.w_hr))?);
            }
            if desc.biases != Biases::Absent {
                all = all.merge(bench.compare(&got.b_ih, &of_gradient(&want.b_ih))?);
            }
            if desc.biases == Biases::Two {
                all = all.merge(bench.compare(&got.b_hh, &of_gradient(&want.b_hh))?);
            }
        }
        Ok(all)
    }
}

fn pass_refs<'a>(pass: &'a Pass, desc: &RecurrentDesc) -> Result<WeightRefs<'a>, CaseError> {
    Ok(WeightRefs {
        w_ih: pass.w_ih.view()?,
        w_hh: pass.w_hh.view()?,
        w_hr: (desc.projection > 0).then(|| pass.w_hr.view()).transpose()?,
        b_ih: (desc.biases != Biases::Absent).then(|| pass.b_ih.view()).transpose()?,
        b_hh: (desc.biases == Biases::Two).then(|| pass.b_hh.view()).transpose()?,
    })
}

fn gradient_refs<'a>(
    pass: &'a Pass,
    to: &'a mut Pass,
    desc: &RecurrentDesc,
) -> Result<WeightGradients<'a>, CaseError> {
    Ok(WeightGradients {
        w_ih: pass.w_ih.view()?,
        w_hh: pass.w_hh.view()?,
        w_hr: (desc.projection > 0).then(|| pass.w_hr.view()).transpose()?,
        dw_ih: to.w_ih.view_mut()?,
        dw_hh: to.w_hh.view_mut()?,
        dw_hr: if desc.projection > 0 { Some(to.w_hr.view_mut()?) } else { None },
        db_ih: if desc.biases == Biases::Absent { None } else { Some(to.b_ih.view_mut()?) },
        db_hh: if desc.biases == Biases::Two { Some(to.b_hh.view_mut()?) } else { None },
    })
}

/// The scale of a state is that of what the gates add up to.
fn of_state(values: &[f64]) -> Vec<Expected> {
    let scaled = |&value: &f64| Expected { value, scale: 1f64.max(value.abs()), underflow: 0.0 };
    values.iter().map(scaled).collect()
}

/// The scale of a gradient is that of the largest of its tensor: all are sums over the same time steps.
fn of_gradient(values: &[f64]) -> Vec<Expected> {
    let scale = values.iter().fold(1.0, |most: f64, value| most.max(value.abs()));
    values.iter().map(|&value| Expected { value, scale, underflow: 0.0 }).collect()
}

impl Subject for RecurrentSubject {
    fn layout(&self) -> String {
        format!("{}, {:?}", self.situation.how, self.desc.precision)
    }

    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let given = self.given(bench)?;
        if self.direction == Direction::Backward {
            return self.backward(bench, &given);
        }
        let made = self.forward(bench, &given)?;
        let want = given.net.forward(&given.x_values);
        let last = want.y.last().map_or(&[] as &[f64], Vec::as_slice);
        let mut all = bench.compare(&made.h_n, &of_state(&want.h_n))?;
        if !self.situation.is_cell {
            all = all.merge(bench.compare(&made.y, &of_state(last))?);
        }
        if !self.desc.cell.has_c() {
            return Ok(all);
        }
        Ok(all.merge(bench.compare(&made.c_n, &of_state(&want.c_n))?))
    }
}
