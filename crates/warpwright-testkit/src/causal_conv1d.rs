//! Cases of the causal convolution along time.

use std::sync::Arc;

use warpwright_ops::causal_conv1d::reference::{Channel, Gradients, Scaled};
use warpwright_ops::causal_conv1d::{
    CausalConv1d, CausalConv1dArgs, CausalConv1dBackwardArgs, CausalConv1dBackwardDesc, CausalConv1dDesc,
    CausalConv1dUpdateArgs, CausalConv1dUpdateDesc, Layout,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Placed, Scope, Subject, view, view_mut};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

/// How a case goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Forward,
    Backward,
    Update,
}

/// Inputs beside the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    States,
    Sequences,
}

/// The elements of `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Values {
    Normal,
    /// Of few values, so that sums of halves are exact or nearly cancel.
    Structured,
    /// With infinities, NaN and zeros among them.
    Special,
}

#[derive(Debug)]
struct ConvSubject {
    kind: Kind,
    desc: CausalConv1dDesc,
    values: Values,
    lead: usize,
}

/// The shape `[batch, channels, len]`, taps, whether there is a bias and `silu`.
type Situation = ([usize; 3], usize, [bool; 2], Beside, Values);

const PLAIN: [bool; 2] = [false, false];
const BIAS: [bool; 2] = [true, false];
const SILU: [bool; 2] = [true, true];

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for kind in [Kind::Forward, Kind::Backward, Kind::Update] {
        let situations = if kind == Kind::Update { steps(scope) } else { situations(scope) };
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            for dtype in DType::FLOATS {
                for &(shape, width, [bias, silu], beside, values) in &situations {
                    let [batch, channels, len] = shape;
                    let conv = CausalConv1d { dtype, layout, batch, channels, len, width, bias, silu };
                    let strides = position_strides(kind, conv).into_iter();
                    out.extend(strides.map(|stride| case((kind, conv), (beside, values), stride)));
                }
            }
        }
    }
    out
}

/// Those of `x`: without gaps, and in some cases as a part of longer rows, of which vectors are whole and not.
fn position_strides(kind: Kind, conv: CausalConv1d) -> Vec<Option<usize>> {
    let CausalConv1d { layout, batch, channels, len, .. } = conv;
    let gaps = kind != Kind::Update && layout == Layout::ChannelsLast && batch == 2 && len > 40;
    if gaps { vec![None, Some(channels + 16), Some(channels + 3)] } else { vec![None] }
}

fn case(
    (kind, conv): (Kind, CausalConv1d),
    (beside, values): (Beside, Values),
    position_stride: Option<usize>,
) -> Case {
    let CausalConv1d { dtype, layout, batch, channels, len, width, silu, .. } = conv;
    let states = beside == Beside::States;
    let sequences = beside == Beside::Sequences;
    let desc =
        CausalConv1dDesc { conv, initial_states: states, final_states: states, sequences, position_stride };
    let gap = position_stride.map_or_else(String::new, |stride| format!(", rows {stride} apart"));
    Case {
        op: if kind == Kind::Update { "causal_conv1d_update" } else { "causal_conv1d" },
        direction: if kind == Kind::Backward { Direction::Backward } else { Direction::Forward },
        dtype,
        shape: vec![batch, channels, len],
        input: format!("{layout:?}, width {width}, {beside:?}, {values:?}, silu {silu}{gap}"),
        budget: budget::elementwise(dtype),
        subject: Arc::new(ConvSubject { kind, desc, values, lead: usize::from(batch == 3) }),
    }
}

fn situations(scope: Scope) -> Vec<Situation> {
    use Beside::{Nothing, Sequences, States};
    use Values::{Normal, Special, Structured};
    let mut all = vec![
        ([0, 8, 40], 4, SILU, Nothing, Normal),
        ([2, 16, 64], 4, SILU, Nothing, Normal),
        ([1, 8, 520], 3, BIAS, Nothing, Normal),
        ([2, 24, 16], 2, PLAIN, States, Normal),
        ([3, 8, 32], 4, SILU, States, Normal),
        ([2, 13, 41], 4, SILU, States, Normal),
        ([1, 5, 3], 4, SILU, States, Normal),
        ([2, 9, 2], 4, BIAS, States, Structured),
        ([2, 16, 1], 3, PLAIN, States, Normal),
        ([2, 8, 48], 4, SILU, Sequences, Normal),
        ([1, 11, 37], 3, BIAS, Sequences, Normal),
        ([2, 8, 24], 3, BIAS, Nothing, Special),
        ([2, 7, 35], 2, SILU, Sequences, Special),
        ([1, 16, 72], 4, PLAIN, Nothing, Structured),
    ];
    if scope == Scope::Full {
        for width in 2..=4 {
            for len in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 129, 255, 257, 1030] {
                all.push(([2, 3, len], width, SILU, States, Normal));
                all.push(([1, 8, len], width, SILU, Sequences, Normal));
            }
            for channels in [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 33, 129, 520] {
                all.push(([2, channels, 24], width, BIAS, Nothing, Normal));
            }
        }
        all.push(([1, 8, 5000], 4, SILU, Nothing, Normal));
        all.push(([70, 8, 8], 4, SILU, States, Normal));
    }
    all
}

fn steps(scope: Scope) -> Vec<Situation> {
    use Beside::States;
    use Values::{Normal, Special};
    let mut all = vec![
        ([0, 8, 1], 4, SILU, States, Normal),
        ([3, 40, 1], 4, SILU, States, Normal),
        ([2, 13, 1], 3, BIAS, States, Normal),
        ([2, 16, 2], 4, PLAIN, States, Normal),
        ([1, 24, 5], 2, SILU, States, Normal),
        ([2, 8, 9], 4, BIAS, States, Special),
    ];
    if scope == Scope::Full {
        for width in 2..=4 {
            for len in 1..=8 {
                all.push(([2, 17, len], width, SILU, States, Normal));
                all.push(([3, 136, len], width, BIAS, States, Normal));
            }
        }
    }
    all
}

/// Values of rows, one for each sample and channel, and where they lie.
struct Rows {
    layout: Layout,
    shape: [usize; 3],
}

impl Rows {
    /// The place of a position of a channel of a sample.
    fn at(&self, [b, c, l]: [usize; 3]) -> usize {
        let [_, channels, len] = self.shape;
        match self.layout {
            Layout::ChannelsFirst => (b * channels + c) * len + l,
            Layout::ChannelsLast => (b * len + l) * channels + c,
        }
    }

    fn row<T: Copy>(&self, values: &[T], [b, c]: [usize; 2]) -> Vec<T> {
        (0..self.shape[2]).map(|l| values[self.at([b, c, l])]).collect()
    }

    /// The rows of every sample and channel as a tensor.
    fn gather(&self, mut row: impl FnMut([usize; 2]) -> Vec<Scaled>) -> Vec<Expected> {
        let [batch, channels, len] = self.shape;
        let mut out = vec![Expected::exactly(0.0); batch * channels * len];
        for b in 0..batch {
            for c in 0..channels {
                for (l, value) in row([b, c]).into_iter().enumerate() {
                    out[self.at([b, c, l])] = value.into();
                }
            }
        }
        out
    }
}

/// The values of a case, rounded to its type.
struct Tensors {
    x: Vec<f64>,
    dy: Vec<f64>,
    weight: Vec<f64>,
    bias: Option<Vec<f64>>,
    states: Option<Vec<f64>>,
    dstates: Option<Vec<f64>>,
    ids: Option<Vec<i32>>,
}

impl ConvSubject {
    fn conv(&self) -> CausalConv1d {
        self.desc.conv
    }

    fn rows(&self) -> Rows {
        let CausalConv1d { layout, batch, channels, len, .. } = self.conv();
        Rows { layout, shape: [batch, channels, len] }
    }

    fn states(&self) -> Rows {
        let CausalConv1d { layout, batch, channels, width, .. } = self.conv();
        Rows { layout, shape: [batch, channels, width - 1] }
    }

    fn draw(&self, len: usize, salt: u64) -> Vec<f64> {
        let dtype = self.conv().dtype;
        let values = Input::Normal.values(len, salt << 20 | self.conv().len as u64);
        let of = |v: f64| match self.values {
            Values::Structured => (2.0 * v).round() / 4.0,
            _ => v,
        };
        values.into_iter().map(|v| storage::round(dtype, of(v))).collect()
    }

    fn tensors(&self) -> Tensors {
        let CausalConv1d { batch, channels, len, width, bias, .. } = self.conv();
        let (elements, states) = (batch * channels * len, batch * channels * (width - 1));
        let mut x = self.draw(elements, 1);
        if self.values == Values::Special {
            let specials = [f64::INFINITY, f64::NAN, 0.0, f64::NEG_INFINITY, -0.0];
            x.iter_mut().skip(3).step_by(41).zip(specials.into_iter().cycle()).for_each(|(x, v)| *x = v);
        }
        // Sequences of a few positions, some of none, whose numbers come back.
        let id = |(b, l): (usize, usize)| [0, 0, 7, -1, 7, 7, 2, 0][(l / 5 + b) % 8];
        let ids = || (0..batch).flat_map(|b| (0..len).map(move |l| (b, l))).map(id).collect();
        Tensors {
            x,
            dy: self.draw(elements, 2),
            weight: self.draw(channels * width, 3),
            bias: bias.then(|| self.draw(channels, 4)),
            states: self.desc.initial_states.then(|| self.draw(states, 5)),
            dstates: self.desc.final_states.then(|| self.draw(states, 6)),
            ids: self.desc.sequences.then(ids),
        }
    }

    /// `x` in memory: NaN in the gaps, which nobody may read.
    fn placed_x(&self, bench: &mut Bench<'_>, x: &[f64]) -> Result<Placed, CaseError> {
        let CausalConv1d { dtype, channels, .. } = self.conv();
        let Some(stride) = self.desc.position_stride else { return bench.input("x", dtype, x, self.lead) };
        let mut all = vec![f64::NAN; x.len() / channels * stride - (stride - channels)];
        for (row, to) in x.chunks(channels).zip(all.chunks_mut(stride)) {
            to[..channels].copy_from_slice(row);
        }
        bench.input("x", dtype, &all, self.lead)
    }

    /// The reference of a sample's channel.
    fn with_channel<R>(&self, t: &Tensors, at: [usize; 2], f: impl FnOnce(Channel<'_>) -> R) -> R {
        let CausalConv1d { len, width, silu, .. } = self.conv();
        let [b, c] = at;
        let states = t.states.as_ref().map(|states| self.states().row(states, at));
        f(Channel {
            x: &self.rows().row(&t.x, at),
            weight: &t.weight[c * width..][..width],
            bias: t.bias.as_ref().map_or(0.0, |bias| bias[c]),
            initial_states: states.as_deref(),
            seq_idx: t.ids.as_ref().map(|ids| &ids[b * len..][..len]),
            silu,
        })
    }

    fn expected_forward(&self, t: &Tensors) -> [Vec<Expected>; 2] {
        let y = self.rows().gather(|at| self.with_channel(t, at, |channel| channel.forward()));
        let last = |at| self.with_channel(t, at, |channel| channel.final_states());
        let exact = |at| last(at).into_iter().map(|v| (v, v.abs())).collect();
        [y, self.states().gather(exact)]
    }

    fn forward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let (dtype, lead, t) = (self.conv().dtype, self.lead, self.tensors());
        let plan = self.desc.plan(bench.target())?;
        let x = self.placed_x(bench, &t.x)?;
        let weight = bench.input("weight", dtype, &t.weight, lead)?;
        let bias = bench.optional_input("bias", dtype, t.bias.as_ref(), lead)?;
        let states = bench.optional_input("initial_states", dtype, t.states.as_ref(), lead)?;
        let ids = self.ids(bench, &t)?;
        let mut y = bench.output("y", dtype, t.x.len(), lead)?;
        let size = (t.states.as_ref().map_or(0, Vec::len), lead);
        let mut last = bench.optional_output("final_states", dtype, size, self.desc.final_states)?;
        bench.launch(|stream| {
            let args = CausalConv1dArgs {
                x: x.view()?,
                weight: weight.view()?,
                bias: view(&bias)?,
                initial_states: view(&states)?,
                seq_idx: view(&ids)?,
                y: y.view_mut()?,
                final_states: view_mut(&mut last)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let [of_y, of_last] = self.expected_forward(&t);
        let y = bench.compare(&y, &of_y)?;
        Ok(match last {
            Some(last) => y.merge(bench.compare(&last, &of_last)?),
            None => y,
        })
    }

    fn update(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let (dtype, lead, t) = (self.conv().dtype, self.lead, self.tensors());
        let plan = CausalConv1dUpdateDesc { conv: self.conv() }.plan(bench.target())?;
        let x = bench.input("x", dtype, &t.x, lead)?;
        let weight = bench.input("weight", dtype, &t.weight, lead)?;
        let bias = bench.optional_input("bias", dtype, t.bias.as_ref(), lead)?;
        let mut states = bench.input("states", dtype, t.states.as_ref().unwrap_or(&Vec::new()), lead)?;
        let mut y = bench.output("y", dtype, t.x.len(), lead)?;
        bench.launch(|stream| {
            let args = CausalConv1dUpdateArgs {
                x: x.view()?,
                weight: weight.view()?,
                bias: view(&bias)?,
                states: states.view_mut()?,
                y: y.view_mut()?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let [of_y, of_last] = self.expected_forward(&t);
        Ok(bench.compare(&y, &of_y)?.merge(bench.compare(&states, &of_last)?))
    }

    fn ids(&self, bench: &Bench<'_>, t: &Tensors) -> Result<Option<Placed>, CaseError> {
        let ids = t.ids.as_ref().map(|ids| ids.iter().map(|id| f64::from(*id)).collect::<Vec<_>>());
        bench.optional_input("seq_idx", DType::I32, ids.as_ref(), self.lead)
    }

    fn backward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let (dtype, lead, t) = (self.conv().dtype, self.lead, self.tensors());
        let plan = CausalConv1dBackwardDesc { forward: self.desc }.plan(bench.target())?;
        let x = self.placed_x(bench, &t.x)?;
        let dy = bench.input("dy", dtype, &t.dy, lead)?;
        let weight = bench.input("weight", dtype, &t.weight, lead)?;
        let bias = bench.optional_input("bias", dtype, t.bias.as_ref(), lead)?;
        let states = bench.optional_input("initial_states", dtype, t.states.as_ref(), lead)?;
        let dlast = bench.optional_input("dfinal_states", dtype, t.dstates.as_ref(), lead)?;
        let ids = self.ids(bench, &t)?;
        let mut dx = bench.output("dx", dtype, t.x.len(), lead)?;
        let mut dweight = bench.output("dweight", dtype, t.weight.len(), lead)?;
        let size = |list: &Option<Vec<f64>>| (list.as_ref().map_or(0, Vec::len), lead);
        let mut dbias = bench.optional_output("dbias", dtype, size(&t.bias), t.bias.is_some())?;
        let mut dinitial =
            bench.optional_output("dinitial_states", dtype, size(&t.states), t.states.is_some())?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = CausalConv1dBackwardArgs {
                x: x.view()?,
                weight: weight.view()?,
                bias: view(&bias)?,
                initial_states: view(&states)?,
                seq_idx: view(&ids)?,
                dy: dy.view()?,
                dfinal_states: view(&dlast)?,
                dx: dx.view_mut()?,
                dweight: dweight.view_mut()?,
                dbias: view_mut(&mut dbias)?,
                dinitial_states: view_mut(&mut dinitial)?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let (of_dx, of_initial, of_weight, of_bias) = self.expected_backward(&t);
        let mut worst = bench.compare(&dx, &of_dx)?.merge(bench.compare(&dweight, &of_weight)?);
        if let Some(dbias) = dbias {
            worst = worst.merge(bench.compare(&dbias, &of_bias)?);
        }
        if let Some(dinitial) = dinitial {
            worst = worst.merge(bench.compare(&dinitial, &of_initial)?);
        }
        Ok(worst)
    }

    /// `dx`, the gradients of the initial states, of the weight and of the bias.
    fn expected_backward(&self, t: &Tensors) -> (Vec<Expected>, Vec<Expected>, Vec<Expected>, Vec<Expected>) {
        let CausalConv1d { channels, width, .. } = self.conv();
        let (rows, states) = (self.rows(), self.states());
        let gradients = |at: [usize; 2]| -> Gradients {
            let dstates = t.dstates.as_ref().map(|dstates| states.row(dstates, at));
            self.with_channel(t, at, |channel| channel.backward(&rows.row(&t.dy, at), dstates.as_deref()))
        };
        let mut dweight = vec![(0.0, 0.0); channels * width];
        let mut dbias = vec![(0.0, 0.0); channels];
        let add = |to: &mut Scaled, from: Scaled| *to = (to.0 + from.0, to.1 + from.1);
        let dx = rows.gather(|at| {
            let d = gradients(at);
            d.dweight.iter().zip(&mut dweight[at[1] * width..]).for_each(|(from, to)| add(to, *from));
            add(&mut dbias[at[1]], d.dbias);
            d.dx
        });
        let initial = states.gather(|at| gradients(at).dinitial_states);
        let all = |list: Vec<Scaled>| list.into_iter().map(Expected::from).collect();
        (dx, initial, all(dweight), all(dbias))
    }
}

impl Subject for ConvSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match self.kind {
            Kind::Forward => self.forward(bench),
            Kind::Backward => self.backward(bench),
            Kind::Update => self.update(bench),
        }
    }

    fn layout(&self) -> String {
        let CausalConv1d { layout, width, silu, .. } = self.conv();
        format!(
            "{:?} {layout:?} {width} {silu} {} {}",
            self.kind,
            self.desc.sequences,
            self.desc.position_stride.is_some()
        )
    }
}
