//! Cases of the scan of Mamba 2.

use std::sync::Arc;

use warpwright_ops::chunk_scan::reference::{Gradients, Head, Scaled, add};
use warpwright_ops::chunk_scan::{
    ChunkScan, ChunkScanArgs, ChunkScanBackwardArgs, ChunkScanBackwardDesc, ChunkScanDesc, DTYPES,
    PositionStrides, tuning,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Placed, Scope, Subject, view, view_mut};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::selective_scan::by_terms;
use crate::storage;

/// The elements of `x`, and the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Values {
    Normal,
    /// With a NaN in the first position of the second chunk.
    Special,
    /// Time steps that forget the state at once, and others that keep it as it is.
    Extreme,
}

/// The optional arguments of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// Neither `D`, bias nor `softplus`.
    Nothing,
    /// All of them.
    All,
    /// All of them, a state before and one behind.
    States,
    /// States, and positions that lie further apart than their elements.
    Apart,
}

#[derive(Debug)]
struct ScanSubject {
    direction: Direction,
    desc: ChunkScanDesc,
    values: Values,
    lead: usize,
}

/// The shape `[batch, len, heads, head_dim]`, groups and numbers of state.
type Situation = ([usize; 4], [usize; 2], Beside, Values);

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for direction in [Direction::Forward, Direction::Backward] {
        for dtype in DTYPES {
            for situation in situations(scope) {
                out.push(case(direction, dtype, situation));
            }
        }
    }
    out
}

fn case(direction: Direction, dtype: DType, (shape, sizes, beside, values): Situation) -> Case {
    let [groups, state] = sizes;
    let all = beside != Beside::Nothing;
    let packed = ChunkScan::new(dtype, shape, sizes);
    let PositionStrides { x, dt, b, c } = packed.strides;
    let strides = match beside {
        Beside::Apart => PositionStrides { x: x + 16, dt: dt + 3, b: b + 8, c: c + 24 },
        _ => packed.strides,
    };
    let scan = ChunkScan { strides, d: all, dt_bias: all, dt_softplus: all, ..packed };
    let states = matches!(beside, Beside::States | Beside::Apart);
    let desc = ChunkScanDesc {
        scan,
        initial_state: states,
        last_state: states,
        training: beside != Beside::Nothing,
    };
    Case {
        op: "chunk_scan",
        direction,
        dtype,
        shape: shape.to_vec(),
        input: format!("state {state}, groups {groups}, {beside:?}, {values:?}"),
        budget: budget::rounded_weights(budget::elementwise(dtype), dtype),
        subject: Arc::new(ScanSubject { direction, desc, values, lead: usize::from(shape[0] == 3) }),
    }
}

fn situations(scope: Scope) -> Vec<Situation> {
    use Beside::{All, Apart, Nothing, States};
    use Values::{Extreme, Normal, Special};
    let mut all = vec![
        ([0, 40, 2, 16], [1, 16], All, Normal),
        ([1, 0, 2, 16], [1, 16], States, Normal),
        ([1, 0, 0, 16], [1, 16], All, Normal),
        ([1, 100, 2, 32], [1, 32], All, Normal),
        ([2, 64, 3, 16], [3, 24], States, Normal),
        ([1, 130, 9, 32], [1, 16], States, Normal),
        ([1, 80, 2, 64], [1, 128], Apart, Normal),
        ([3, 33, 2, 13], [1, 7], States, Normal),
        ([1, 70, 4, 8], [2, 8], Nothing, Normal),
        ([1, 70, 2, 24], [1, 40], Apart, Extreme),
        ([1, 100, 1, 8], [1, 16], All, Special),
    ];
    if scope == Scope::Full {
        for len in [1, 2, 63, 64, 65, 127, 128, 129, 300] {
            all.push(([1, len, 2, 16], [1, 16], States, Normal));
        }
        for state in [1, 8, 31, 33, 64, 65, 129, 256] {
            all.push(([1, 70, 1, 16], [1, state], States, Normal));
        }
        for head_dim in [1, 8, 31, 33, 64, 65, 96, 128] {
            all.push(([1, 70, 1, head_dim], [1, 16], Apart, Normal));
        }
        all.push(([1, 20, 40, 8], [2, 16], States, Normal));
        all.push(([5, 20, 4, 8], [1, 16], States, Normal));
        all.push(([1, 200, 4, 64], [1, 64], All, Extreme));
    }
    all
}

/// The values of a case, rounded to their types; those of positions with what lies between them.
struct Tensors {
    x: Vec<f64>,
    dt: Vec<f64>,
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
    d: Option<Vec<f64>>,
    dt_bias: Option<Vec<f64>>,
    initial: Option<Vec<f64>>,
    dy: Vec<f64>,
    dlast: Option<Vec<f64>>,
}

/// The expected gradients, in the order of the results.
struct Wanted {
    dx: Vec<Scaled>,
    ddt: Vec<Scaled>,
    da: Vec<Scaled>,
    db: Vec<Scaled>,
    dc: Vec<Scaled>,
    dd: Vec<Scaled>,
    ddt_bias: Vec<Scaled>,
    dinitial: Vec<Scaled>,
}

fn zeros(count: usize) -> Vec<Scaled> {
    vec![(0.0, 0.0); count]
}

impl ScanSubject {
    fn tensors(&self) -> Tensors {
        let ChunkScan { dtype, batch, len, heads, head_dim, state, groups, strides, .. } = self.desc.scan;
        let sums = DType::F32;
        let draw = |dtype: DType, count: usize, salt: u64, of: &dyn Fn(f64) -> f64| -> Vec<f64> {
            let values = Input::Normal.values(count, salt << 20 | len as u64);
            values.into_iter().map(|v| storage::round(dtype, of(v))).collect()
        };
        let same = |v: f64| v;
        let rows = |stride: usize, width: usize| match batch * len * width {
            0 => 0,
            _ => (batch * len - 1) * stride + width,
        };
        let scan = self.desc.scan;
        // Without softplus steps must be positive by themselves, or states grow beyond all bounds.
        let step = |v: f64| match (self.values, scan.dt_softplus) {
            (Values::Extreme, _) => 12.0 * v,
            (_, true) => v - 2.0,
            (_, false) => 0.1 * v.abs(),
        };
        let mut x = draw(dtype, rows(strides.x, heads * head_dim), 1, &same);
        if self.values == Values::Special {
            x[tuning::CHUNK as usize * strides.x] = f64::NAN;
        }
        let of_rows = groups * state;
        let states = batch * heads * head_dim * state;
        Tensors {
            x,
            dt: draw(dtype, rows(strides.dt, heads), 2, &step),
            a: draw(sums, heads, 3, &|v| -(0.1 + 2.0 * v.abs())),
            b: draw(dtype, rows(strides.b, of_rows), 4, &same),
            c: draw(dtype, rows(strides.c, of_rows), 5, &same),
            d: scan.d.then(|| draw(sums, heads, 6, &same)),
            dt_bias: scan.dt_bias.then(|| draw(sums, heads, 7, &same)),
            // Numbers of the type of `x`: the reference does not count the rounding of what is given.
            initial: self.desc.initial_state.then(|| draw(dtype, states, 8, &same)),
            dy: draw(dtype, batch * len * heads * head_dim, 9, &same),
            dlast: self.desc.last_state.then(|| draw(dtype, states, 10, &same)),
        }
    }

    /// The reference of a sample's head.
    fn with_head<R>(&self, t: &Tensors, [sample, head]: [usize; 2], f: impl FnOnce(Head<'_>) -> R) -> R {
        let ChunkScan { len, heads, head_dim, state, groups, strides, dt_softplus, .. } = self.desc.scan;
        let group = head / (heads / groups);
        let rows = |values: &[f64], stride: usize, first: usize, width: usize| -> Vec<f64> {
            (0..len).flat_map(|l| values[(sample * len + l) * stride + first..][..width].to_vec()).collect()
        };
        f(Head {
            x: &rows(&t.x, strides.x, head * head_dim, head_dim),
            dt: &rows(&t.dt, strides.dt, head, 1),
            a: t.a[head],
            b: &rows(&t.b, strides.b, group * state, state),
            c: &rows(&t.c, strides.c, group * state, state),
            d: t.d.as_ref().map_or(0.0, |d| d[head]),
            dt_bias: t.dt_bias.as_ref().map_or(0.0, |bias| bias[head]),
            softplus: dt_softplus,
            initial_state: t.initial.as_ref().map(|states| self.state_of(states, sample, head)),
            head_dim,
            state,
        })
    }

    /// The part of a head in the states of all samples.
    fn state_of<'a, T>(&self, states: &'a [T], sample: usize, head: usize) -> &'a [T] {
        let ChunkScan { heads, head_dim, state, .. } = self.desc.scan;
        &states[(sample * heads + head) * head_dim * state..][..head_dim * state]
    }

    /// Samples and heads.
    fn heads(&self) -> impl Iterator<Item = [usize; 2]> + use<> {
        let ChunkScan { batch, heads, .. } = self.desc.scan;
        (0..batch).flat_map(move |sample| (0..heads).map(move |head| [sample, head]))
    }

    /// The results, the last states, and the saved ones.
    fn expected_forward(&self, t: &Tensors) -> [Vec<Scaled>; 3] {
        let ChunkScan { batch, len, heads, head_dim, state, .. } = self.desc.scan;
        let (of_state, chunks) = (head_dim * state, self.desc.scan.chunks());
        let mut y = zeros(batch * len * heads * head_dim);
        let mut last = zeros(batch * heads * of_state);
        let mut saved = zeros(batch * chunks * heads * of_state);
        for [sample, head] in self.heads() {
            let found = self.with_head(t, [sample, head], |head| head.forward());
            for (l, row) in found.y.chunks(head_dim).enumerate() {
                y[((sample * len + l) * heads + head) * head_dim..][..head_dim].copy_from_slice(row);
            }
            let copy = |to: &mut [Scaled], at: usize, l: usize| {
                to[at * of_state..][..of_state].copy_from_slice(&found.states[l * of_state..][..of_state]);
            };
            copy(&mut last, sample * heads + head, len);
            for chunk in 0..chunks {
                copy(&mut saved, (sample * chunks + chunk) * heads + head, chunk * tuning::CHUNK as usize);
            }
        }
        [y, last, saved]
    }

    fn forward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let (ChunkScan { dtype, .. }, lead, t) = (self.desc.scan, self.lead, self.tensors());
        let plan = self.desc.plan(bench.target())?;
        let inputs = Inputs::place(bench, dtype, &t, lead)?;
        let initial = bench.optional_input("initial_state", DType::F32, t.initial.as_ref(), lead)?;
        let [of_y, of_last, of_states] = self.expected_forward(&t);
        let mut y = bench.output("y", dtype, of_y.len(), lead)?;
        let mut last =
            bench.optional_output("last_state", DType::F32, (of_last.len(), lead), self.desc.last_state)?;
        let mut states =
            bench.optional_output("states", dtype, (of_states.len(), lead), self.desc.training)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = ChunkScanArgs {
                x: inputs.x.view()?,
                dt: inputs.dt.view()?,
                a: inputs.a.view()?,
                b: inputs.b.view()?,
                c: inputs.c.view()?,
                d: view(&inputs.d)?,
                dt_bias: view(&inputs.dt_bias)?,
                initial_state: view(&initial)?,
                y: y.view_mut()?,
                last_state: view_mut(&mut last)?,
                states: view_mut(&mut states)?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let mut found = bench.compare(&y, &Expected::all(&of_y))?;
        if let Some(states) = states {
            found = found.merge(bench.compare(&states, &Expected::all(&of_states))?);
        }
        if let Some(last) = last {
            found = found.merge(by_operands(dtype, bench.compare(&last, &Expected::all(&of_last))?));
        }
        Ok(found)
    }

    fn backward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let (ChunkScan { dtype, batch, len, heads, state, groups, .. }, lead, t) =
            (self.desc.scan, self.lead, self.tensors());
        let sums = DType::F32;
        let plan = ChunkScanBackwardDesc { forward: self.desc }.plan(bench.target())?;
        let inputs = Inputs::place(bench, dtype, &t, lead)?;
        let [.., saved] = self.expected_forward(&t);
        let saved: Vec<f64> = saved.iter().map(|state| storage::round(dtype, state.0)).collect();
        let states = bench.input("states", dtype, &saved, lead)?;
        let dy = bench.input("dy", dtype, &t.dy, lead)?;
        let dlast = bench.optional_input("dlast_state", sums, t.dlast.as_ref(), lead)?;
        let size = |list: &Option<Vec<f64>>| (list.as_ref().map_or(0, Vec::len), lead);
        let rows = batch * len * groups * state;
        let mut dx = bench.output("dx", dtype, t.dy.len(), lead)?;
        let mut ddt = bench.output("ddt", dtype, batch * len * heads, lead)?;
        let mut da = bench.output("da", sums, t.a.len(), lead)?;
        let mut db = bench.output("db", dtype, rows, lead)?;
        let mut dc = bench.output("dc", dtype, rows, lead)?;
        let mut dd = bench.optional_output("dd", sums, size(&t.d), t.d.is_some())?;
        let mut ddt_bias = bench.optional_output("ddt_bias", sums, size(&t.dt_bias), t.dt_bias.is_some())?;
        let of_initial = size(&t.initial);
        let mut dinitial = bench.optional_output("dinitial_state", sums, of_initial, t.initial.is_some())?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = ChunkScanBackwardArgs {
                x: inputs.x.view()?,
                dt: inputs.dt.view()?,
                a: inputs.a.view()?,
                b: inputs.b.view()?,
                c: inputs.c.view()?,
                d: view(&inputs.d)?,
                dt_bias: view(&inputs.dt_bias)?,
                states: states.view()?,
                dy: dy.view()?,
                dlast_state: view(&dlast)?,
                dx: dx.view_mut()?,
                ddt: ddt.view_mut()?,
                da: da.view_mut()?,
                db: db.view_mut()?,
                dc: dc.view_mut()?,
                dd: view_mut(&mut dd)?,
                ddt_bias: view_mut(&mut ddt_bias)?,
                dinitial_state: view_mut(&mut dinitial)?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let want = self.expected_backward(&t);
        let compare = |got: &Placed, want: &[Scaled]| bench.compare(got, &Expected::all(want));
        let mut worst = compare(&dx, &want.dx)?
            .merge(compare(&ddt, &want.ddt)?)
            .merge(compare(&db, &want.db)?)
            .merge(compare(&dc, &want.dc)?);
        let compare = |got: &Placed, want: &[Scaled]| {
            Ok::<_, CaseError>(by_operands(dtype, bench.compare(got, &Expected::all(want))?))
        };
        worst = worst.merge(by_terms(compare(&da, &want.da)?, &want.da));
        for (got, want) in [(&dd, &want.dd), (&ddt_bias, &want.ddt_bias)] {
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
        let ChunkScan { batch, len, heads, head_dim, state, groups, .. } = self.desc.scan;
        let rows = batch * len * groups * state;
        let mut want = Wanted {
            dx: zeros(t.dy.len()),
            ddt: zeros(batch * len * heads),
            da: zeros(heads),
            db: zeros(rows),
            dc: zeros(rows),
            dd: zeros(heads),
            ddt_bias: zeros(heads),
            dinitial: zeros(batch * heads * head_dim * state),
        };
        for [sample, head] in self.heads() {
            let at = |l: usize| (sample * len + l) * heads + head;
            let g: Gradients = self.with_head(t, [sample, head], |of| {
                let dy: Vec<f64> =
                    (0..len).flat_map(|l| t.dy[at(l) * head_dim..][..head_dim].to_vec()).collect();
                of.backward(&dy, t.dlast.as_ref().map(|d| self.state_of(d, sample, head)))
            });
            for l in 0..len {
                want.dx[at(l) * head_dim..][..head_dim].copy_from_slice(&g.dx[l * head_dim..][..head_dim]);
                want.ddt[at(l)] = g.ddt[l];
                let row = ((sample * len + l) * groups + head / (heads / groups)) * state;
                for n in 0..state {
                    add(&mut want.db[row + n], g.db[l * state + n]);
                    add(&mut want.dc[row + n], g.dc[l * state + n]);
                }
            }
            let first = (sample * heads + head) * head_dim * state;
            want.dinitial[first..][..head_dim * state].copy_from_slice(&g.dinitial_state);
            add(&mut want.da[head], g.da);
            add(&mut want.dd[head], g.dd);
            add(&mut want.ddt_bias[head], g.ddt_bias);
        }
        want
    }
}

/// The comparison of sums in f32 of products whose operands are rounded to `dtype`: elementwise in units of its eps.
fn by_operands(dtype: DType, found: Comparison) -> Comparison {
    let eps = |dtype: DType| dtype.epsilon().unwrap_or(1.0);
    Comparison { element: found.element * eps(DType::F32) / eps(dtype), ..found }
}

/// The inputs of a launch.
struct Inputs {
    x: Placed,
    dt: Placed,
    a: Placed,
    b: Placed,
    c: Placed,
    d: Option<Placed>,
    dt_bias: Option<Placed>,
}

impl Inputs {
    fn place(bench: &Bench<'_>, dtype: DType, t: &Tensors, lead: usize) -> Result<Self, CaseError> {
        let sums = DType::F32;
        Ok(Self {
            x: bench.input("x", dtype, &t.x, lead)?,
            dt: bench.input("dt", dtype, &t.dt, lead)?,
            a: bench.input("a", sums, &t.a, lead)?,
            b: bench.input("b", dtype, &t.b, lead)?,
            c: bench.input("c", dtype, &t.c, lead)?,
            d: bench.optional_input("d", sums, t.d.as_ref(), lead)?,
            dt_bias: bench.optional_input("dt_bias", sums, t.dt_bias.as_ref(), lead)?,
        })
    }
}

impl Subject for ScanSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match self.direction {
            Direction::Forward => self.forward(bench),
            Direction::Backward => self.backward(bench),
        }
    }

    fn layout(&self) -> String {
        let ChunkScan { head_dim, state, .. } = self.desc.scan;
        format!("{} {head_dim} {state}", self.direction)
    }
}
