//! Cases of attention.

use std::sync::Arc;

use warpwright_ops::attention::{
    AlibiSlopes, Alignment, AttentionArgs, AttentionBackwardArgs, AttentionBackwardDesc, AttentionDesc,
    AttentionOptions, Window, reference,
};
use warpwright_ops::plan::{Layout, Real};
use warpwright_ops::{Direction, Operation, PlanError};
use warpwright_ptx::DType;
use warpwright_runtime::{TensorMut, TensorRef};

use crate::budget::{self, Budget};
use crate::case::{Bench, Case, CaseError, Placed, Scope, Subject};
use crate::inputs::{Input, Random};
use crate::measure::{Comparison, Expected};
use crate::storage;

/// How the rows of a tensor lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// `[batch, sequence, heads, head_dim]`
    BySequence,
    /// `[batch, heads, sequence, head_dim]`
    ByHead,
}

/// Modifications of the scores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Modification {
    causal: bool,
    left: Option<u32>,
    right: Option<u32>,
    top_left: bool,
    softcap: Option<f64>,
    /// Extents of the bias that are 1.
    bias: Option<[bool; 4]>,
    alibi: Option<AlibiSlopes>,
    lengths: bool,
}

#[derive(Clone, Copy, Debug)]
struct Situation {
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    key_heads: usize,
    width: usize,
    value_width: usize,
    rows: Rows,
    /// Elements past an aligned address.
    lead: usize,
    /// The factor of normal queries and keys.
    spread: f64,
    /// Whether one key is NaN.
    nan: bool,
    modification: Modification,
}

const PLAIN: Situation = Situation {
    batch: 1,
    queries: 33,
    keys: 70,
    heads: 2,
    key_heads: 1,
    width: 32,
    value_width: 32,
    rows: Rows::BySequence,
    lead: 0,
    spread: 1.0,
    nan: false,
    modification: Modification {
        causal: false,
        left: None,
        right: None,
        top_left: false,
        softcap: None,
        bias: None,
        alibi: None,
        lengths: false,
    },
};

impl Situation {
    fn describe(&self) -> String {
        let mut text = format!("{} keys, {} kv heads", self.keys, self.key_heads);
        let m = self.modification;
        let mut add = |on: bool, word: &str| {
            if on {
                text.push_str(", ");
                text.push_str(word);
            }
        };
        add(self.value_width != self.width, &format!("values of {}", self.value_width));
        add(self.rows == Rows::ByHead, "heads first");
        add(self.lead > 0, "misaligned");
        add(self.spread != 1.0, &format!("spread {}", self.spread));
        add(self.nan, "one key NaN");
        add(m.causal, "causal");
        add(m.top_left, "top-left");
        add(m.left.is_some() || m.right.is_some(), "window");
        add(m.softcap.is_some(), "softcap");
        add(m.bias.is_some(), &format!("bias {:?}", m.bias.unwrap_or_default().map(u8::from)));
        add(m.alibi.is_some(), "alibi");
        add(m.lengths, "key lengths");
        text
    }

    fn layout(&self, [batch, rows, heads, width]: [usize; 4]) -> Layout {
        match self.rows {
            Rows::BySequence => Layout::contiguous([batch, rows, heads, width]),
            Rows::ByHead => {
                let Layout { strides: [b, h, r, d], .. } = Layout::contiguous([batch, heads, rows, width]);
                Layout { shape: [batch, rows, heads, width], strides: [b, r, h, d] }
            }
        }
    }

    fn q(&self) -> Layout {
        self.layout([self.batch, self.queries, self.heads, self.width])
    }

    fn k(&self) -> Layout {
        self.layout([self.batch, self.keys, self.key_heads, self.width])
    }

    fn v(&self) -> Layout {
        self.layout([self.batch, self.keys, self.key_heads, self.value_width])
    }

    fn o(&self) -> Layout {
        self.layout([self.batch, self.queries, self.heads, self.value_width])
    }

    fn bias(&self) -> Option<Layout> {
        let full = [self.batch, self.heads, self.queries, self.keys];
        self.modification
            .bias
            .map(|one| Layout::contiguous(std::array::from_fn(|i| if one[i] { 1 } else { full[i] })))
    }

    fn budget(&self, dtype: DType) -> Budget {
        // Without the usual factor of the softmax the products of wide rows are greater, too.
        let scores = self.spread * self.spread * (self.width as f64).sqrt();
        budget::attention(dtype, if self.spread > 1.0 { scores } else { 1.0 })
    }

    fn desc(&self, dtype: DType) -> AttentionDesc {
        let m = self.modification;
        AttentionDesc {
            dtype,
            q: self.q(),
            k: self.k(),
            v: self.v(),
            o: self.o(),
            options: AttentionOptions {
                softmax_scale: (self.spread > 1.0).then(|| Real::new(1.0)),
                causal: m.causal,
                window: Window { left: m.left, right: m.right },
                alignment: if m.top_left { Alignment::TopLeft } else { Alignment::BottomRight },
                softcap: m.softcap.map(Real::new),
                bias: self.bias(),
                alibi: m.alibi,
                key_lengths: m.lengths,
            },
        }
    }
}

fn situations(scope: Scope) -> Vec<Situation> {
    let with = |modification| Situation { modification, ..PLAIN };
    let none = Modification::default();
    let mut all = vec![
        PLAIN,
        Situation { queries: 0, ..PLAIN },
        Situation { keys: 0, ..PLAIN },
        Situation {
            batch: 2,
            queries: 5,
            keys: 3,
            heads: 4,
            key_heads: 2,
            width: 64,
            value_width: 64,
            ..PLAIN
        },
        Situation { queries: 17, keys: 65, width: 40, value_width: 24, lead: 1, rows: Rows::ByHead, ..PLAIN },
        Situation { queries: 66, keys: 40, modification: Modification { causal: true, ..none }, ..PLAIN },
        with(Modification { causal: true, top_left: true, ..none }),
        with(Modification { left: Some(20), right: Some(3), ..none }),
        with(Modification { softcap: Some(1.5), ..none }),
        with(Modification { bias: Some([false; 4]), ..none }),
        with(Modification { alibi: Some(AlibiSlopes::PerHead), causal: true, ..none }),
        Situation {
            batch: 3,
            queries: 9,
            modification: Modification { lengths: true, causal: true, ..none },
            ..PLAIN
        },
        Situation {
            batch: 2,
            modification: Modification {
                causal: true,
                left: Some(30),
                softcap: Some(5.0),
                bias: Some([true, false, false, false]),
                alibi: Some(AlibiSlopes::PerBatchAndHead),
                lengths: true,
                ..none
            },
            ..PLAIN
        },
        Situation { nan: true, modification: Modification { causal: true, ..none }, ..PLAIN },
        Situation { spread: 30.0, ..PLAIN },
        Situation { queries: 20, keys: 37, heads: 1, width: 128, value_width: 128, ..PLAIN },
        Situation { queries: 20, keys: 37, heads: 1, width: 256, value_width: 192, ..PLAIN },
    ];
    if scope == Scope::Full {
        for width in [8, 16, 56, 64, 72, 96, 128, 200, 256] {
            let causal = Modification { causal: true, ..none };
            all.push(Situation {
                heads: 1,
                queries: 70,
                keys: 90,
                width,
                value_width: width,
                modification: causal,
                ..PLAIN
            });
        }
        for (queries, keys) in [(1, 1), (1, 200), (130, 1), (64, 64), (128, 128), (129, 257), (200, 63)] {
            for causal in [false, true] {
                let modification = Modification { causal, ..none };
                all.push(Situation {
                    heads: 1,
                    queries,
                    keys,
                    width: 64,
                    value_width: 64,
                    modification,
                    ..PLAIN
                });
            }
        }
        for bits in 1..16 {
            let bias = Some([8, 4, 2, 1].map(|bit| bits & bit != 0));
            all.push(Situation {
                batch: 2,
                queries: 5,
                keys: 9,
                modification: Modification { bias, ..none },
                ..PLAIN
            });
        }
        for (left, right) in [(Some(0), Some(0)), (None, Some(7)), (Some(7), None), (Some(100), Some(100))] {
            for top_left in [false, true] {
                let modification = Modification { left, right, top_left, ..none };
                all.push(Situation { queries: 90, keys: 150, heads: 1, modification, ..PLAIN });
            }
        }
        for lead in [1, 3] {
            all.push(Situation { lead, width: 64, value_width: 64, ..PLAIN });
        }
        all.push(Situation { width: 7, value_width: 13, ..PLAIN });
        all.push(Situation { heads: 6, key_heads: 2, rows: Rows::ByHead, ..PLAIN });
    }
    all
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for direction in [Direction::Forward, Direction::Backward] {
        for dtype in DType::FLOATS {
            for situation in situations(scope) {
                // A NaN reaches every gradient of the head; where one key has all the weight, gradients are differences
                // of numbers that the result was rounded to.
                let half = matches!(dtype, DType::F16 | DType::BF16);
                if direction == Direction::Backward && (situation.nan || half && situation.spread > 1.0) {
                    continue;
                }
                out.push(Case {
                    op: "attention",
                    direction,
                    dtype,
                    shape: situation.q().shape.to_vec(),
                    input: situation.describe(),
                    budget: situation.budget(dtype),
                    subject: Arc::new(AttentionSubject { direction, dtype, situation }),
                });
            }
        }
    }
    out
}

#[derive(Debug)]
struct AttentionSubject {
    direction: Direction,
    dtype: DType,
    situation: Situation,
}

/// The inputs of a case, in reference order, rounded to its type.
struct Inputs {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    dy: Vec<f64>,
    bias: Vec<f64>,
    slopes: Vec<f64>,
    lengths: Vec<usize>,
}

/// Element offsets of a layout in the order of its shape.
fn offsets(layout: &Layout) -> Vec<usize> {
    let [a, b, c, d] = layout.shape;
    let mut out = Vec::with_capacity(a * b * c * d);
    for i in 0..a {
        for j in 0..b {
            for l in 0..c {
                for m in 0..d {
                    let at = [i, j, l, m].into_iter().zip(layout.strides).map(|(i, s)| i as i64 * s);
                    out.push(at.sum::<i64>() as usize);
                }
            }
        }
    }
    out
}

fn scatter(values: &[f64], layout: &Layout) -> Vec<f64> {
    let mut out = vec![0.0; values.len()];
    for (value, at) in values.iter().zip(offsets(layout)) {
        out[at] = *value;
    }
    out
}

/// The order of memory.
fn lay_out(expected: Vec<Expected>, layout: &Layout) -> Vec<Expected> {
    let mut out = expected.clone();
    for (value, at) in expected.into_iter().zip(offsets(layout)) {
        out[at] = value;
    }
    out
}

impl AttentionSubject {
    fn inputs(&self) -> Inputs {
        let s = &self.situation;
        let draw = |len: usize, salt: u64, factor: f64| -> Vec<f64> {
            let values = Input::Normal.values(len, salt.wrapping_mul(1 << 20).wrapping_add(len as u64));
            values.into_iter().map(|v| storage::round(self.dtype, v * factor)).collect()
        };
        let elements = |layout: Layout| layout.elements().unwrap_or(0);
        let mut k = draw(elements(s.k()), 2, s.spread);
        if s.nan {
            // Of the last key but two.
            let row = s.key_heads * s.width;
            let at = (s.keys - 3) * row;
            k[at..at + row].fill(f64::NAN);
        }
        let mut bias = draw(s.bias().map_or(0, elements), 5, 1.0);
        let mut random = Random::new(9);
        for b in &mut bias {
            if random.bits().is_multiple_of(7) {
                *b = f64::NEG_INFINITY;
            }
        }
        Inputs {
            q: draw(elements(s.q()), 1, s.spread),
            k,
            v: draw(elements(s.v()), 3, 1.0),
            dy: draw(elements(s.o()), 4, 1.0),
            bias,
            slopes: (0..s.batch * s.heads).map(|i| 2f64.powi(-(i as i32 % 5) - 1)).collect(),
            lengths: (0..s.batch).map(|b| [s.keys / 2, 0, s.keys + 5][b % 3]).collect(),
        }
    }

    fn with_problem<R>(&self, inputs: &Inputs, f: impl FnOnce(&reference::Problem<'_>) -> R) -> R {
        let s = &self.situation;
        let m = s.modification;
        let bias_layout = s.bias();
        let bias = |b: usize, h: usize, i: usize, j: usize| {
            let layout = bias_layout.unwrap_or(Layout::contiguous([1; 4]));
            let at = [b, h, i, j].into_iter().zip(layout.shape).zip(layout.strides);
            inputs.bias[at.map(|((i, n), s)| (i % n) * s as usize).sum::<usize>()]
        };
        let slope = |b: usize, h: usize| match m.alibi {
            Some(AlibiSlopes::PerBatchAndHead) => inputs.slopes[b * s.heads + h],
            _ => inputs.slopes[h],
        };
        f(&reference::Problem {
            batch: s.batch,
            queries: s.queries,
            keys: s.keys,
            heads: s.heads,
            key_heads: s.key_heads,
            width: s.width,
            value_width: s.value_width,
            scale: if s.spread > 1.0 { 1.0 } else { 1.0 / (s.width as f64).sqrt() },
            softcap: m.softcap,
            left: m.left.map(|n| n as usize),
            right: if m.causal { Some(0) } else { m.right.map(|n| n as usize) },
            bottom_right: !m.top_left,
            lengths: m.lengths.then_some(&inputs.lengths[..]),
            bias: m.bias.is_some().then_some(&bias),
            slope: m.alibi.is_some().then_some(&slope),
        })
    }

    fn statistics(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }
}

/// Expected values with their scales; `terms` are summed, whose factors below the normal numbers of f16 are rounded to
/// multiples of its least one.
fn expected(dtype: DType, terms: usize, values: &[f64], scales: &[f64]) -> Vec<Expected> {
    const LARGEST_FACTOR: f64 = 8.0;
    let least = if dtype == DType::F16 { 2f64.powi(-25) * LARGEST_FACTOR } else { 1e-32 };
    let underflow = terms.max(1) as f64 * least;
    values.iter().zip(scales).map(|(v, s)| Expected { value: *v, scale: *s, underflow }).collect()
}

struct Tensors {
    q: Placed,
    k: Placed,
    v: Placed,
    bias: Option<Placed>,
    slopes: Option<Placed>,
    lengths: Option<Placed>,
}

fn view<'p>(placed: &'p Placed, layout: &Layout) -> Result<TensorRef<'p>, CaseError> {
    Ok(shaped(placed.view()?, layout)?)
}

fn shaped<'p>(flat: TensorRef<'p>, layout: &Layout) -> Result<TensorRef<'p>, warpwright_runtime::Error> {
    let [a, b, c, d] = layout.shape;
    if layout.strides == Layout::contiguous(layout.shape).strides {
        return flat.reshape(&layout.shape);
    }
    flat.reshape(&[a, c, b, d])?.permute(&[0, 2, 1, 3])
}

fn view_mut<'p>(placed: &'p mut Placed, layout: &Layout) -> Result<TensorMut<'p>, CaseError> {
    let [a, b, c, d] = layout.shape;
    let flat = placed.view_mut()?;
    if layout.strides == Layout::contiguous(layout.shape).strides {
        return Ok(flat.reshape(&layout.shape)?);
    }
    Ok(flat.reshape(&[a, c, b, d])?.permute(&[0, 2, 1, 3])?)
}

impl AttentionSubject {
    fn place(&self, bench: &Bench<'_>, inputs: &Inputs) -> Result<Tensors, CaseError> {
        let s = &self.situation;
        let m = s.modification;
        let tensor = |name, values: &[f64], layout: Layout| {
            bench.input(name, self.dtype, &scatter(values, &layout), s.lead)
        };
        let slopes = match m.alibi {
            Some(AlibiSlopes::PerHead) => s.heads,
            _ => s.batch * s.heads,
        };
        let lengths: Vec<f64> = inputs.lengths.iter().map(|n| *n as f64).collect();
        Ok(Tensors {
            q: tensor("q", &inputs.q, s.q())?,
            k: tensor("k", &inputs.k, s.k())?,
            v: tensor("v", &inputs.v, s.v())?,
            bias: s.bias().map(|bias| tensor("bias", &inputs.bias, bias)).transpose()?,
            slopes: m
                .alibi
                .map(|_| bench.input("slopes", DType::F32, &inputs.slopes[..slopes], 0))
                .transpose()?,
            lengths: m.lengths.then(|| bench.input("key_lengths", DType::I32, &lengths, 0)).transpose()?,
        })
    }

    fn forward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let s = &self.situation;
        let plan = s.desc(self.dtype).plan(bench.target())?;
        let inputs = self.inputs();
        let result = self.with_problem(&inputs, |p| reference::forward(p, &inputs.q, &inputs.k, &inputs.v));
        let t = self.place(bench, &inputs)?;
        let mut o = bench.output("o", self.dtype, result.o.len(), s.lead)?;
        let mut lse = bench.output("lse", self.statistics(), result.lse.len(), 0)?;
        bench.launch(|stream| {
            let args = AttentionArgs {
                q: view(&t.q, &s.q())?,
                k: view(&t.k, &s.k())?,
                v: view(&t.v, &s.v())?,
                bias: t.bias.as_ref().zip(s.bias()).map(|(b, l)| view(b, &l)).transpose()?,
                slopes: t.slopes.as_ref().map(|x| self.slopes_view(x)).transpose()?,
                key_lengths: t.lengths.as_ref().map(Placed::view).transpose()?,
                o: view_mut(&mut o, &s.o())?,
                lse: lse.view_mut()?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let o =
            bench.compare(&o, &lay_out(expected(self.dtype, s.keys, &result.o, &result.o_scale), &s.o()))?;
        let expected_lse: Vec<_> = result
            .lse
            .iter()
            .map(|v| Expected { value: *v, scale: v.abs().max(4.0), underflow: 0.0 })
            .collect();
        let mut lse = bench.compare(&lse, &expected_lse)?;
        // Half types: products of exact elements, summed in f32; the budget is that of the result in its own eps.
        let eps = self.dtype.epsilon().unwrap_or(1.0) / self.statistics().epsilon().unwrap_or(1.0);
        lse.element /= eps;
        Ok(o.merge(lse))
    }

    fn slopes_view<'p>(&self, x: &'p Placed) -> Result<TensorRef<'p>, CaseError> {
        let s = &self.situation;
        Ok(match s.modification.alibi {
            Some(AlibiSlopes::PerBatchAndHead) => x.view()?.reshape(&[s.batch, s.heads])?,
            _ => x.view()?,
        })
    }

    fn backward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let s = &self.situation;
        let forward = s.desc(self.dtype);
        let (q, k, v, o) = (s.q(), s.k(), s.v(), s.o());
        let desc = AttentionBackwardDesc { forward, dy: o, dq: q, dk: k, dv: v };
        let plan = match desc.plan(bench.target()) {
            // The one gap: double precision in 64 KB of shared memory.
            Err(PlanError::Parameter { parameter: "head_dim", .. })
                if self.dtype == DType::F64 && s.width > 128 && bench.target().sm < 80 =>
            {
                return Ok(Comparison::default());
            }
            plan => plan?,
        };
        let inputs = self.inputs();
        let (result, gradients) = self.with_problem(&inputs, |p| {
            (
                reference::forward(p, &inputs.q, &inputs.k, &inputs.v),
                reference::backward(p, &inputs.q, &inputs.k, &inputs.v, &inputs.dy),
            )
        });
        let t = self.place(bench, &inputs)?;
        let rounded: Vec<f64> = result.o.iter().map(|v| storage::round(self.dtype, *v)).collect();
        let o_in = bench.input("o", self.dtype, &scatter(&rounded, &o), s.lead)?;
        let dy = bench.input("dy", self.dtype, &scatter(&inputs.dy, &o), s.lead)?;
        let lse = bench.input("lse", self.statistics(), &result.lse, 0)?;
        let mut dq = bench.output("dq", self.dtype, gradients.dq.len(), s.lead)?;
        let mut dk = bench.output("dk", self.dtype, gradients.dk.len(), s.lead)?;
        let mut dv = bench.output("dv", self.dtype, gradients.dv.len(), s.lead)?;
        bench.launch(|stream| {
            let mut workspace = plan.workspace(stream)?;
            let args = AttentionBackwardArgs {
                q: view(&t.q, &q)?,
                k: view(&t.k, &k)?,
                v: view(&t.v, &v)?,
                bias: t.bias.as_ref().zip(s.bias()).map(|(b, l)| view(b, &l)).transpose()?,
                slopes: t.slopes.as_ref().map(|x| self.slopes_view(x)).transpose()?,
                key_lengths: t.lengths.as_ref().map(Placed::view).transpose()?,
                o: view(&o_in, &o)?,
                lse: lse.view()?,
                dy: view(&dy, &o)?,
                dq: view_mut(&mut dq, &q)?,
                dk: view_mut(&mut dk, &k)?,
                dv: view_mut(&mut dv, &v)?,
                workspace: workspace.as_mut().map(warpwright_runtime::Tensor::as_mut),
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let compare = |tensor: &Placed, values: &[f64], scales: &[f64], layout: &Layout| {
            let terms = s.keys.max(s.queries * s.heads / s.key_heads);
            let mut c =
                bench.compare(tensor, &lay_out(expected(self.dtype, terms, values, scales), layout))?;
            let norm = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>().sqrt();
            if norm(values) < 1e-9 * norm(scales) {
                // All terms cancel, as where a query sees one key: nothing to be relative to but the scales.
                c.norm = 0.0;
            }
            Ok::<_, CaseError>(c)
        };
        let g = &gradients;
        let (dk, dv) = (compare(&dk, &g.dk, &g.dk_scale, &k)?, compare(&dv, &g.dv, &g.dv_scale, &v)?);
        Ok(compare(&dq, &g.dq, &g.dq_scale, &q)?.merge(dk).merge(dv))
    }
}

impl Subject for AttentionSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match self.direction {
            Direction::Forward => self.forward(bench),
            Direction::Backward => self.backward(bench),
        }
    }
}
