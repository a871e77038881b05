//! Cases of the scan of selective state spaces.

use std::sync::Arc;

use warpwright_ops::selective_scan::reference::{Channel, Gradients, Scaled, add};
use warpwright_ops::selective_scan::{
    Layout, SelectiveScan, SelectiveScanArgs, SelectiveScanBackwardArgs, SelectiveScanBackwardDesc,
    SelectiveScanDesc, SelectiveScanUpdateArgs, SelectiveScanUpdateDesc, tuning,
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

/// The elements of `u`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Values {
    Normal,
    /// With infinities, NaN and zeros among them.
    Special,
    /// Time steps that forget the state at once, and others that keep it as it is.
    Extreme,
}

/// The optional arguments of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// Neither `D`, gate, bias nor `softplus`.
    Nothing,
    /// All of them.
    All,
    /// All of them, a state before and one behind.
    States,
    /// `D` and states.
    Bare,
}

#[derive(Debug)]
struct ScanSubject {
    kind: Kind,
    desc: SelectiveScanDesc,
    values: Values,
    lead: usize,
}

/// The shape `[batch, channels, len]`, numbers of state and groups.
type Situation = ([usize; 3], [usize; 2], Beside, Values);

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for kind in [Kind::Forward, Kind::Backward, Kind::Update] {
        let situations = if kind == Kind::Update { steps(scope) } else { situations(scope) };
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            for dtype in DType::FLOATS {
                for &(shape, sizes, beside, values) in &situations {
                    out.push(case(kind, (dtype, layout), shape, sizes, (beside, values)));
                }
            }
        }
    }
    out
}

fn case(
    kind: Kind,
    (dtype, layout): (DType, Layout),
    shape @ [batch, channels, len]: [usize; 3],
    [state, groups]: [usize; 2],
    (beside, values): (Beside, Values),
) -> Case {
    let all = matches!(beside, Beside::All | Beside::States);
    let scan = SelectiveScan {
        dtype,
        layout,
        batch,
        channels,
        len,
        state,
        groups,
        d: beside != Beside::Nothing,
        gate: all,
        delta_bias: all,
        delta_softplus: all,
    };
    let states = matches!(beside, Beside::States | Beside::Bare);
    let desc = SelectiveScanDesc { scan, initial_state: states, last_state: states, training: true };
    Case {
        op: if kind == Kind::Update { "selective_scan_update" } else { "selective_scan" },
        direction: match kind {
            Kind::Backward => Direction::Backward,
            _ => Direction::Forward,
        },
        dtype,
        shape: shape.to_vec(),
        input: format!("{layout:?}, state {state}, groups {groups}, {beside:?}, {values:?}"),
        budget: budget::elementwise(dtype),
        subject: Arc::new(ScanSubject { kind, desc, values, lead: usize::from(batch == 3) }),
    }
}

fn situations(scope: Scope) -> Vec<Situation> {
    use Beside::{All, Bare, Nothing, States};
    use Values::{Extreme, Normal, Special};
    let mut all = vec![
        ([0, 8, 40], [16, 1], All, Normal),
        ([2, 0, 40], [16, 1], All, Normal),
        ([2, 8, 0], [4, 1], States, Normal),
        ([2, 64, 64], [16, 1], All, Normal),
        ([1, 40, 72], [16, 1], Nothing, Normal),
        ([3, 32, 40], [16, 2], States, Normal),
        ([1, 13, 41], [5, 1], States, Normal),
        ([2, 24, 33], [24, 3], All, Normal),
        ([1, 16, 48], [64, 2], Bare, Normal),
        ([1, 5, 1], [1, 1], States, Normal),
        ([1, 36, 35], [16, 1], All, Extreme),
        ([1, 8, 24], [8, 1], Bare, Special),
    ];
    if scope == Scope::Full {
        for state in [1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64] {
            all.push(([1, 16, 40], [state, 1], States, Normal));
            all.push(([2, 12, 19], [state, 3], Bare, Normal));
        }
        for len in [1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 129, 1000] {
            all.push(([1, 8, len], [16, 1], States, Normal));
        }
        for channels in [1, 2, 3, 7, 8, 9, 31, 32, 33, 65, 200] {
            all.push(([2, channels, 40], [16, 1], All, Normal));
        }
        all.push(([70, 8, 8], [16, 1], States, Normal));
        all.push(([1, 128, 300], [16, 1], All, Extreme));
    }
    all
}

fn steps(scope: Scope) -> Vec<Situation> {
    use Beside::{Bare, States};
    use Values::{Extreme, Normal};
    let mut all = vec![
        ([0, 8, 1], [16, 1], States, Normal),
        ([3, 40, 1], [16, 1], States, Normal),
        ([2, 13, 1], [5, 1], Bare, Normal),
        ([2, 32, 3], [32, 2], States, Extreme),
        ([2, 10, 1], [128, 2], States, Normal),
        ([1, 5, 2], [203, 1], States, Normal),
    ];
    if scope == Scope::Full {
        for len in 1..=8 {
            all.push(([2, 72, len], [16, 1], States, Normal));
        }
        for state in [1, 2, 4, 5, 8, 9, 16, 17, 31, 64, 65, 100, 127, 128, 129, 255, 256] {
            all.push(([2, 24, 1], [state, 3], States, Normal));
            all.push(([1, 9, 3], [state, 1], Bare, Normal));
        }
    }
    all
}

/// The values of a case, rounded to their types.
struct Tensors {
    u: Vec<f64>,
    delta: Vec<f64>,
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
    d: Option<Vec<f64>>,
    z: Option<Vec<f64>>,
    delta_bias: Option<Vec<f64>>,
    initial: Option<Vec<f64>>,
    dy: Vec<f64>,
    dlast: Option<Vec<f64>>,
}

/// The expected gradients, in the order of the results.
#[derive(Default)]
struct Wanted {
    du: Vec<Scaled>,
    ddelta: Vec<Scaled>,
    da: Vec<Scaled>,
    db: Vec<Scaled>,
    dc: Vec<Scaled>,
    dd: Vec<Scaled>,
    dz: Vec<Scaled>,
    ddelta_bias: Vec<Scaled>,
    dinitial: Vec<Scaled>,
}

impl ScanSubject {
    /// The place of a position of a channel of a sample.
    fn at(&self, [b, c, t]: [usize; 3]) -> usize {
        let SelectiveScan { layout, channels, len, .. } = self.desc.scan;
        match layout {
            Layout::ChannelsFirst => (b * channels + c) * len + t,
            Layout::ChannelsLast => (b * len + t) * channels + c,
        }
    }

    /// The place of a number of a row of `B` or `C`.
    fn row_at(&self, [b, g, t, n]: [usize; 4]) -> usize {
        let SelectiveScan { layout, len, state, groups, .. } = self.desc.scan;
        match layout {
            Layout::ChannelsFirst => ((b * groups + g) * state + n) * len + t,
            Layout::ChannelsLast => ((b * len + t) * groups + g) * state + n,
        }
    }

    fn tensors(&self) -> Tensors {
        let SelectiveScan { dtype, batch, channels, len, state, groups, .. } = self.desc.scan;
        let sums = dtype.accumulator();
        let draw = |dtype: DType, count: usize, salt: u64, of: &dyn Fn(f64) -> f64| -> Vec<f64> {
            let values = Input::Normal.values(count, salt << 20 | len as u64);
            values.into_iter().map(|v| storage::round(dtype, of(v))).collect()
        };
        let same = |v: f64| v;
        let (elements, rows, states) =
            (batch * channels * len, batch * groups * state * len, batch * channels * state);
        let scan = self.desc.scan;
        // Without softplus steps must be positive by themselves, or states grow beyond all bounds.
        let step = |v: f64| match (self.values, scan.delta_softplus) {
            (Values::Extreme, _) => 12.0 * v,
            (_, true) => v - 1.0,
            (_, false) => 0.3 * v.abs(),
        };
        let mut u = draw(dtype, elements, 1, &same);
        if self.values == Values::Special {
            let specials = [f64::INFINITY, f64::NAN, 0.0, f64::NEG_INFINITY, -0.0];
            u.iter_mut().skip(3).step_by(41).zip(specials.into_iter().cycle()).for_each(|(u, v)| *u = v);
        }
        Tensors {
            u,
            delta: draw(dtype, elements, 2, &step),
            a: draw(sums, channels * state, 3, &|v| -(0.1 + 2.0 * v.abs())),
            b: draw(dtype, rows, 4, &same),
            c: draw(dtype, rows, 5, &same),
            d: scan.d.then(|| draw(sums, channels, 6, &same)),
            z: scan.gate.then(|| draw(dtype, elements, 7, &|v| 2.0 * v)),
            delta_bias: scan.delta_bias.then(|| draw(sums, channels, 8, &same)),
            initial: self.desc.initial_state.then(|| draw(sums, states, 9, &same)),
            dy: draw(dtype, elements, 10, &same),
            dlast: self.desc.last_state.then(|| draw(sums, states, 11, &same)),
        }
    }

    /// The reference of a sample's channel.
    fn with_channel<R>(&self, t: &Tensors, [b, c]: [usize; 2], f: impl FnOnce(Channel<'_>) -> R) -> R {
        let SelectiveScan { channels, len, state, groups, delta_softplus, .. } = self.desc.scan;
        let group = c / (channels / groups);
        let row = |values: &[f64]| -> Vec<f64> { (0..len).map(|l| values[self.at([b, c, l])]).collect() };
        let rows = |values: &[f64]| -> Vec<f64> {
            let at = |l: usize, n: usize| values[self.row_at([b, group, l, n])];
            (0..len).flat_map(|l| (0..state).map(move |n| (l, n))).map(|(l, n)| at(l, n)).collect()
        };
        let z = t.z.as_ref().map(|z| row(z));
        f(Channel {
            u: &row(&t.u),
            delta: &row(&t.delta),
            a: &t.a[c * state..][..state],
            b: &rows(&t.b),
            c: &rows(&t.c),
            d: t.d.as_ref().map_or(0.0, |d| d[c]),
            z: z.as_deref(),
            delta_bias: t.delta_bias.as_ref().map_or(0.0, |bias| bias[c]),
            softplus: delta_softplus,
            initial_state: t.initial.as_ref().map(|states| &states[(b * channels + c) * state..][..state]),
        })
    }

    /// The results, the last states, and the saved ones.
    fn expected_forward(&self, t: &Tensors) -> [Vec<Expected>; 3] {
        let SelectiveScan { dtype, batch, channels, len, state, .. } = self.desc.scan;
        let chunk = tuning::chunk(dtype) as usize;
        let chunks = len.div_ceil(chunk);
        let mut y = vec![(0.0, 0.0); t.u.len()];
        let mut last = vec![(0.0, 0.0); batch * channels * state];
        let mut saved = vec![(0.0, 0.0); batch * chunks * channels * state];
        for b in 0..batch {
            for c in 0..channels {
                let found = self.with_channel(t, [b, c], |channel| channel.forward());
                for (l, value) in found.y.into_iter().enumerate() {
                    y[self.at([b, c, l])] = value;
                }
                let copy = |to: &mut [Scaled], at: usize, l: usize| {
                    to[at * state..][..state].copy_from_slice(&found.states[l * state..][..state]);
                };
                copy(&mut last, b * channels + c, len);
                for number in 0..chunks {
                    copy(&mut saved, (b * chunks + number) * channels + c, number * chunk);
                }
            }
        }
        [Expected::all(&y), Expected::all(&last), Expected::all(&saved)]
    }

    fn forward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let (SelectiveScan { dtype, .. }, lead, t) = (self.desc.scan, self.lead, self.tensors());
        let sums = dtype.accumulator();
        let plan = self.desc.plan(bench.target())?;
        let inputs = Inputs::place(bench, dtype, &t, lead)?;
        let initial = bench.optional_input("initial_state", sums, t.initial.as_ref(), lead)?;
        let [of_y, of_last, of_states] = self.expected_forward(&t);
        let mut y = bench.output("y", dtype, t.u.len(), lead)?;
        let mut last =
            bench.optional_output("last_state", sums, (of_last.len(), lead), self.desc.last_state)?;
        let mut states = bench.output("states", sums, of_states.len(), lead)?;
        bench.launch(|stream| {
            let args = SelectiveScanArgs {
                u: inputs.u.view()?,
                delta: inputs.delta.view()?,
                a: inputs.a.view()?,
                b: inputs.b.view()?,
                c: inputs.c.view()?,
                d: view(&inputs.d)?,
                z: view(&inputs.z)?,
                delta_bias: view(&inputs.delta_bias)?,
                initial_state: view(&initial)?,
                y: y.view_mut()?,
                last_state: view_mut(&mut last)?,
                states: Some(states.view_mut()?),
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let found = bench.compare(&y, &of_y)?;
        let mut states = bench.compare_saved(dtype, &states, &of_states)?;
        if let Some(last) = last {
            states = states.merge(bench.compare_saved(dtype, &last, &of_last)?);
        }
        Ok(found.merge(states))
    }

    fn update(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let (SelectiveScan { dtype, .. }, lead, t) = (self.desc.scan, self.lead, self.tensors());
        let sums = dtype.accumulator();
        let plan = SelectiveScanUpdateDesc { scan: self.desc.scan }.plan(bench.target())?;
        let inputs = Inputs::place(bench, dtype, &t, lead)?;
        let mut state = bench.input("state", sums, t.initial.as_ref().unwrap_or(&Vec::new()), lead)?;
        let mut y = bench.output("y", dtype, t.u.len(), lead)?;
        bench.launch(|stream| {
            let args = SelectiveScanUpdateArgs {
                u: inputs.u.view()?,
                delta: inputs.delta.view()?,
                a: inputs.a.view()?,
                b: inputs.b.view()?,
                c: inputs.c.view()?,
                d: view(&inputs.d)?,
                z: view(&inputs.z)?,
                delta_bias: view(&inputs.delta_bias)?,
                state: state.view_mut()?,
                y: y.view_mut()?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let [of_y, of_last, _] = self.expected_forward(&t);
        Ok(bench.compare(&y, &of_y)?.merge(bench.compare_saved(dtype, &state, &of_last)?))
    }

    fn backward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let (SelectiveScan { dtype, .. }, lead, t) = (self.desc.scan, self.lead, self.tensors());
        let sums = dtype.accumulator();
        let plan = SelectiveScanBackwardDesc { forward: self.desc }.plan(bench.target())?;
        let inputs = Inputs::place(bench, dtype, &t, lead)?;
        let [_, _, saved] = self.expected_forward(&t);
        let saved: Vec<f64> = saved.iter().map(|state| storage::round(sums, state.value)).collect();
        let states = bench.input("states", sums, &saved, lead)?;
        let dy = bench.input("dy", dtype, &t.dy, lead)?;
        let dlast = bench.optional_input("dlast_state", sums, t.dlast.as_ref(), lead)?;
        let size = |list: &Option<Vec<f64>>| (list.as_ref().map_or(0, Vec::len), lead);
        let mut du = bench.output("du", dtype, t.u.len(), lead)?;
        let mut ddelta = bench.output("ddelta", dtype, t.u.len(), lead)?;
        let mut da = bench.output("da", sums, t.a.len(), lead)?;
        let mut db = bench.output("db", dtype, t.b.len(), lead)?;
        let mut dc = bench.output("dc", dtype, t.c.len(), lead)?;
        let mut dd = bench.optional_output("dd", sums, size(&t.d), t.d.is_some())?;
        let mut dz = bench.optional_output("dz", dtype, size(&t.z), t.z.is_some())?;
        let of_bias = size(&t.delta_bias);
        let mut ddelta_bias = bench.optional_output("ddelta_bias", sums, of_bias, t.delta_bias.is_some())?;
        let of_initial = size(&t.initial);
        let mut dinitial = bench.optional_output("dinitial_state", sums, of_initial, t.initial.is_some())?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = SelectiveScanBackwardArgs {
                u: inputs.u.view()?,
                delta: inputs.delta.view()?,
                a: inputs.a.view()?,
                b: inputs.b.view()?,
                c: inputs.c.view()?,
                d: view(&inputs.d)?,
                z: view(&inputs.z)?,
                delta_bias: view(&inputs.delta_bias)?,
                states: states.view()?,
                dy: dy.view()?,
                dlast_state: view(&dlast)?,
                du: du.view_mut()?,
                ddelta: ddelta.view_mut()?,
                da: da.view_mut()?,
                db: db.view_mut()?,
                dc: dc.view_mut()?,
                dd: view_mut(&mut dd)?,
                dz: view_mut(&mut dz)?,
                ddelta_bias: view_mut(&mut ddelta_bias)?,
                dinitial_state: view_mut(&mut dinitial)?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let want = self.expected_backward(&t);
        let compare = |got: &Placed, want: &[Scaled]| bench.compare(got, &Expected::all(want));
        let mut worst = compare(&du, &want.du)?
            .merge(compare(&ddelta, &want.ddelta)?)
            .merge(compare(&db, &want.db)?)
            .merge(compare(&dc, &want.dc)?);
        if let Some(dz) = &dz {
            worst = worst.merge(compare(dz, &want.dz)?);
        }
        let compare = |got: &Placed, want: &[Scaled]| bench.compare_saved(dtype, got, &Expected::all(want));
        worst = worst.merge(by_terms(compare(&da, &want.da)?, &want.da));
        for (got, want) in [(&dd, &want.dd), (&ddelta_bias, &want.ddelta_bias)] {
            if let Some(got) = got {
                worst = worst.merge(by_terms(compare(got, want)?, want));
            }
        }
        if let Some(dinitial) = &dinitial {
            worst = worst.merge(compare(dinitial, &want.dinitial)?);
        }
        Ok(worst)
    }

    fn expected_backward(&self, t: &Tensors) -> Wanted {
        let SelectiveScan { batch, channels, len, state, groups, .. } = self.desc.scan;
        let zeros = |count: usize| vec![(0.0, 0.0); count];
        let mut want = Wanted {
            du: zeros(t.u.len()),
            ddelta: zeros(t.u.len()),
            da: zeros(t.a.len()),
            db: zeros(t.b.len()),
            dc: zeros(t.c.len()),
            dd: zeros(channels),
            dz: zeros(t.u.len()),
            ddelta_bias: zeros(channels),
            dinitial: zeros(batch * channels * state),
        };
        for b in 0..batch {
            for c in 0..channels {
                let first = (b * channels + c) * state;
                let g: Gradients = self.with_channel(t, [b, c], |channel| {
                    let dy: Vec<f64> = (0..len).map(|l| t.dy[self.at([b, c, l])]).collect();
                    channel.backward(&dy, t.dlast.as_ref().map(|d| &d[first..][..state]))
                });
                for l in 0..len {
                    let at = self.at([b, c, l]);
                    (want.du[at], want.ddelta[at], want.dz[at]) = (g.du[l], g.ddelta[l], g.dz[l]);
                    for n in 0..state {
                        let at = self.row_at([b, c / (channels / groups), l, n]);
                        add(&mut want.db[at], g.db[l * state + n]);
                        add(&mut want.dc[at], g.dc[l * state + n]);
                    }
                }
                for n in 0..state {
                    add(&mut want.da[c * state + n], g.da[n]);
                    want.dinitial[first + n] = g.dinitial_state[n];
                }
                add(&mut want.dd[c], g.dd);
                add(&mut want.ddelta_bias[c], g.ddelta_bias);
            }
        }
        want
    }
}

/// The comparison of sums over all positions, of which there may be few, and which may be much smaller than their terms: its norm is in
/// units of that of the terms.
pub(crate) fn by_terms(found: Comparison, want: &[Scaled]) -> Comparison {
    let norm = |of: &dyn Fn(&Scaled) -> f64| -> f64 {
        want.iter().map(of).filter(|v| v.is_finite()).map(|v| v * v).sum::<f64>().sqrt()
    };
    let (values, terms) = (norm(&|s| s.0), norm(&|s| s.1));
    Comparison { norm: if terms > 0.0 { found.norm * values / terms } else { found.norm }, ..found }
}

/// The inputs of a launch.
struct Inputs {
    u: Placed,
    delta: Placed,
    a: Placed,
    b: Placed,
    c: Placed,
    d: Option<Placed>,
    z: Option<Placed>,
    delta_bias: Option<Placed>,
}

impl Inputs {
    fn place(bench: &Bench<'_>, dtype: DType, t: &Tensors, lead: usize) -> Result<Self, CaseError> {
        let sums = dtype.accumulator();
        Ok(Self {
            u: bench.input("u", dtype, &t.u, lead)?,
            delta: bench.input("delta", dtype, &t.delta, lead)?,
            a: bench.input("a", sums, &t.a, lead)?,
            b: bench.input("b", dtype, &t.b, lead)?,
            c: bench.input("c", dtype, &t.c, lead)?,
            d: bench.optional_input("d", sums, t.d.as_ref(), lead)?,
            z: bench.optional_input("z", dtype, t.z.as_ref(), lead)?,
            delta_bias: bench.optional_input("delta_bias", sums, t.delta_bias.as_ref(), lead)?,
        })
    }
}

impl Subject for ScanSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match self.kind {
            Kind::Forward => self.forward(bench),
            Kind::Backward => self.backward(bench),
            Kind::Update => self.update(bench),
        }
    }

    fn layout(&self) -> String {
        let SelectiveScan { layout, state, .. } = self.desc.scan;
        format!("{:?} {layout:?} {state}", self.kind)
    }
}
