//! Cases of attention.

use std::sync::Arc;

use warpwright_ops::attention::tuning::{self, Work};
use warpwright_ops::attention::{
    Algorithm, AlibiSlopes, Alignment, AttentionArgs, AttentionBackwardArgs, AttentionBackwardDesc,
    AttentionDesc, AttentionInputs, AttentionOptions, BackwardAlgorithm, Packed, Paged, Window, reference,
};
use warpwright_ops::plan::{Layout, Real};
use warpwright_ops::{Direction, Dropout, Operation, Plan, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{TensorMut, TensorRef};

use crate::budget::{self, Budget};
use crate::case::{Bench, Case, CaseError, Placed, Scope, Subject};
use crate::inputs::{Input, Random};
use crate::measure::{Comparison, Expected};
use crate::storage;

mod situations;

use situations::situations;

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
    sinks: bool,
    /// Rows of a page.
    paged: Option<usize>,
    /// Whether the sequences are packed, each with some queries and keys less than the last.
    packed: bool,
    /// The probability that a probability is dropped.
    dropout: Option<f64>,
}

/// Which of the kernels computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// The one that tuning chooses, of any type.
    Chosen,
    /// Products of warps, whose tiles come by asynchronous copies.
    Warps,
    /// Few queries, whose keys tensor copies bring, where the target has them, in parts that another launch puts together.
    Parts,
    /// Products of warpgroups, where the target has them: what tuning chooses, in cases that would take other types too long.
    Wgmma,
    /// The same with few blocks that stay for all tiles of queries.
    Persistent,
    /// Products of `f32` from copies, in both directions, where the target has them: what tuning chooses for more rows.
    Copies,
}

/// How sizes of values and of gradients of the result are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    Alike,
    /// By 2^12 from one 64 rows to the next.
    OfTiles,
    /// One row of values, of the first head, is smaller by 2^30.
    OfRows,
}

impl Sizes {
    /// The factor of row `row` of head `head`.
    fn factor(self, row: usize, head: usize) -> f64 {
        match self {
            Self::Alike => 1.0,
            Self::OfTiles => 2f64.powi(12 * (row / 64 % 3) as i32 - 12),
            Self::OfRows if (row, head) == (5, 0) => 2f64.powi(-30),
            Self::OfRows => 1.0,
        }
    }
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
    unit: Unit,
    sizes: Sizes,
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
    unit: Unit::Chosen,
    sizes: Sizes::Alike,
    modification: Modification {
        causal: false,
        left: None,
        right: None,
        top_left: false,
        softcap: None,
        bias: None,
        alibi: None,
        lengths: false,
        sinks: false,
        paged: None,
        packed: false,
        dropout: None,
    },
};

/// What is dropped in all cases that drop anything.
const SEED: u64 = 0x000f_1234_5678_9abc;
const OFFSET: u64 = 0x0005_0000_0003;

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
        add(self.unit == Unit::Warps, "products of warps");
        add(self.unit == Unit::Parts, "parts");
        add(self.unit == Unit::Copies, "copies");
        add(self.unit == Unit::Persistent, "persistent blocks");
        add(self.sizes == Sizes::OfTiles, "sizes of tiles far apart");
        add(self.sizes == Sizes::OfRows, "sizes of rows far apart");
        add(m.causal, "causal");
        add(m.top_left, "top-left");
        add(m.left.is_some() || m.right.is_some(), "window");
        add(m.softcap.is_some(), "softcap");
        add(m.bias.is_some(), &format!("bias {:?}", m.bias.unwrap_or_default().map(u8::from)));
        add(m.alibi.is_some(), "alibi");
        add(m.lengths, "key lengths");
        add(m.sinks, "sinks");
        add(m.paged.is_some(), &format!("pages of {}", m.paged.unwrap_or(0)));
        add(m.packed, "packed");
        add(m.dropout.is_some(), &format!("dropout {}", m.dropout.unwrap_or(0.0)));
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

    /// Queries and keys of each sequence.
    fn counts(&self) -> Vec<[usize; 2]> {
        let Self { queries, keys, .. } = *self;
        let packed = [[queries, keys], [queries / 2, keys / 3], [0, keys / 2], [queries / 3, 0]];
        let of = |b: usize| if self.modification.packed { packed[b % 4] } else { [queries, keys] };
        (0..self.batch).map(of).collect()
    }

    /// Where each sequence begins among the packed queries or keys, and how many there are.
    fn offsets(&self, which: usize) -> Vec<usize> {
        let mut out = vec![0];
        for counts in self.counts() {
            out.push(out.last().unwrap_or(&0) + counts[which]);
        }
        out
    }

    /// The layout of a tensor of queries (`which` 0) or keys.
    fn rows_layout(&self, which: usize, heads: usize, width: usize) -> Layout {
        if self.modification.packed {
            let all = self.offsets(which).pop().unwrap_or(0);
            return Layout::contiguous([1, all, heads, width]);
        }
        match self.modification.paged {
            Some(rows) if which == 1 => {
                Layout::contiguous([self.pages(rows) * self.batch + 1, rows, heads, width])
            }
            _ => self.layout([self.batch, [self.queries, self.keys][which], heads, width]),
        }
    }

    /// Pages of a sequence.
    fn pages(&self, rows: usize) -> usize {
        self.keys.div_ceil(rows)
    }

    /// The page of each part of a sequence: from the last one down, so that none lies where it would without a table.
    fn table(&self, rows: usize) -> Vec<usize> {
        (0..self.batch * self.pages(rows)).rev().collect()
    }

    /// Where the elements of a tensor `[batch, rows, heads, width]` of the reference lie in that of the kernel.
    fn places(&self, which: usize, heads: usize, width: usize) -> Vec<Option<usize>> {
        let layout = self.rows_layout(which, heads, width);
        if !self.modification.packed && (which == 0 || self.modification.paged.is_none()) {
            return offsets(&layout).into_iter().map(Some).collect();
        }
        let longest = [self.queries, self.keys][which];
        let (counts, firsts) = (self.counts(), self.offsets(which));
        let row_at = |b: usize, row: usize| match self.modification.paged {
            Some(rows) => self.table(rows)[b * self.pages(rows) + row / rows] * rows + row % rows,
            None => firsts[b] + row,
        };
        let mut out = Vec::new();
        for (b, count) in counts.iter().enumerate() {
            for row in 0..longest {
                let there = row < count[which];
                let first = if there { row_at(b, row) * heads * width } else { 0 };
                out.extend((0..heads * width).map(|at| there.then_some(first + at)));
            }
        }
        out
    }

    fn q(&self) -> Layout {
        self.rows_layout(0, self.heads, self.width)
    }

    fn k(&self) -> Layout {
        self.rows_layout(1, self.key_heads, self.width)
    }

    fn v(&self) -> Layout {
        self.rows_layout(1, self.key_heads, self.value_width)
    }

    fn o(&self) -> Layout {
        self.rows_layout(0, self.heads, self.value_width)
    }

    fn bias(&self) -> Option<Layout> {
        let keys = self.modification.paged.map_or(self.keys, |rows| self.pages(rows) * rows);
        let full = [self.batch, self.heads, self.queries, keys];
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
                packed: m.packed.then(|| Packed {
                    sequences: self.batch,
                    longest_queries: self.counts().iter().map(|c| c[0]).max().unwrap_or(0),
                    longest_keys: self.counts().iter().map(|c| c[1]).max().unwrap_or(0),
                }),
                paged: m.paged.map(|rows| Paged { pages: self.pages(rows) }),
                sinks: m.sinks,
                dropout: m.dropout.map(Real::new),
            },
        }
    }
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
                let paged = situation.modification.paged.is_some();
                // Backward has no kernels for few queries: their long caches would only take long.
                let long = situation.queries <= 16 && situation.keys >= 300;
                let skipped = situation.nan || paged || long || half && situation.spread > 1.0;
                let backward = direction == Direction::Backward;
                let has_unit = match situation.unit {
                    Unit::Chosen => true,
                    Unit::Copies => dtype == DType::F32,
                    _ => half && !backward,
                };
                if !has_unit || backward && skipped {
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
    sinks: Vec<f64>,
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

/// The memory of `len` elements; what has no place in the reference is NaN.
fn scatter(values: &[f64], places: &[Option<usize>], len: usize) -> Vec<f64> {
    let mut out = vec![f64::NAN; len];
    for (value, at) in values.iter().zip(places) {
        if let Some(at) = *at {
            out[at] = *value;
        }
    }
    out
}

/// The order of memory, all of which has a place in the reference.
fn lay_out(expected: &[Expected], places: &[Option<usize>]) -> Vec<Expected> {
    let mut out: Vec<_> = expected.iter().zip(places).filter_map(|(e, at)| at.map(|at| (at, *e))).collect();
    out.sort_by_key(|(at, _)| *at);
    out.into_iter().map(|(_, expected)| expected).collect()
}

impl AttentionSubject {
    fn inputs(&self) -> Inputs {
        let s = &self.situation;
        let m = s.modification;
        let draw = |len: usize, salt: u64, factor: f64| -> Vec<f64> {
            let values = Input::Normal.values(len, salt.wrapping_mul(1 << 20).wrapping_add(len as u64));
            values.into_iter().map(|v| storage::round(self.dtype, v * factor)).collect()
        };
        let elements = |layout: Layout| layout.elements().unwrap_or(0);
        let (of_queries, of_keys) = (s.batch * s.queries * s.heads, s.batch * s.keys * s.key_heads);
        let mut k = draw(of_keys * s.width, 2, s.spread);
        if s.nan {
            // Of the last key but two.
            let row = s.key_heads * s.width;
            let at = (s.keys - 3) * row;
            k[at..at + row].fill(f64::NAN);
        }
        // What lies beyond the last key of a page does not count.
        let lengths: Vec<usize> = (0..s.batch)
            .map(|b| [s.keys / 2, 0, s.keys + if m.paged.is_some() { 0 } else { 5 }][b % 3])
            .collect();
        let sized = |mut values: Vec<f64>, rows: usize, heads: usize| {
            for (at, row) in values.chunks_mut(s.value_width.max(1)).enumerate() {
                let factor = s.sizes.factor(at / heads.max(1) % rows.max(1), at % heads.max(1));
                row.iter_mut().for_each(|x| *x *= factor);
            }
            values
        };
        let mut v = sized(draw(of_keys * s.value_width, 3, 1.0), s.keys, s.key_heads);
        if m.lengths && m.paged.is_none() {
            // What lies behind the last key of a sequence is never looked at.
            for (x, width) in [(&mut k, s.width), (&mut v, s.value_width)] {
                let row = s.key_heads * width;
                for (rows, length) in x.chunks_mut((s.keys * row).max(1)).zip(&lengths) {
                    rows.iter_mut().skip(length * row).for_each(|x| *x = f64::NAN);
                }
            }
        }
        let mut bias = draw(s.bias().map_or(0, elements), 5, 1.0);
        let mut random = Random::new(9);
        for b in &mut bias {
            if random.bits().is_multiple_of(7) {
                *b = f64::NEG_INFINITY;
            }
        }
        Inputs {
            q: draw(of_queries * s.width, 1, s.spread),
            k,
            v,
            dy: sized(draw(of_queries * s.value_width, 4, 1.0), s.queries, s.heads),
            bias,
            slopes: (0..s.batch * s.heads).map(|i| 2f64.powi(-(i as i32 % 5) - 1)).collect(),
            lengths,
            sinks: (0..s.heads).map(|head| head as f64 - 1.5).collect(),
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
        let [query_lengths, packed_keys] =
            [0, 1].map(|i| s.counts().iter().map(|c| c[i]).collect::<Vec<_>>());
        let lengths = if m.packed { packed_keys } else { inputs.lengths.clone() };
        let keeping = m.dropout.map_or(1.0, Dropout::scale);
        let dropped = Dropout { probability: m.dropout.unwrap_or(0.0) as f32, seed: SEED, offset: OFFSET };
        let dropout = |b: usize, h: usize, i: usize, j: usize| {
            let row = self.lse_place(b, h, i).unwrap_or(0);
            if dropped.keeps(((row as u64) << 28) + j as u64) { keeping } else { 0.0 }
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
            lengths: (m.lengths || m.packed).then_some(&lengths[..]),
            query_lengths: m.packed.then_some(&query_lengths[..]),
            sink: m.sinks.then_some(&|head| inputs.sinks[head]),
            bias: m.bias.is_some().then_some(&bias),
            slope: m.alibi.is_some().then_some(&slope),
            dropout: m.dropout.is_some().then_some(&dropout),
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
    /// Of packed queries and keys.
    offsets: Option<[Placed; 2]>,
    table: Option<Placed>,
    sinks: Option<Placed>,
    random: Option<Placed>,
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
        let tensor = |name, values: &[f64], which: usize, heads: usize, width: usize| {
            self.tensor(bench, name, values, [which, heads, width])
        };
        let slopes = match m.alibi {
            Some(AlibiSlopes::PerHead) => s.heads,
            _ => s.batch * s.heads,
        };
        let integers = |name, dtype, values: &[usize]| {
            let values: Vec<f64> = values.iter().map(|n| *n as f64).collect();
            bench.input(name, dtype, &values, 0)
        };
        let numbers = [SEED, OFFSET].map(|n| n as usize);
        let offsets = || {
            Ok::<_, CaseError>([
                integers("query_offsets", DType::I32, &s.offsets(0))?,
                integers("key_offsets", DType::I32, &s.offsets(1))?,
            ])
        };
        let bias = |layout: Layout| {
            let all = layout.elements().unwrap_or(0);
            bench.input("bias", self.dtype, &inputs.bias[..all], s.lead)
        };
        Ok(Tensors {
            q: tensor("q", &inputs.q, 0, s.heads, s.width)?,
            k: tensor("k", &inputs.k, 1, s.key_heads, s.width)?,
            v: tensor("v", &inputs.v, 1, s.key_heads, s.value_width)?,
            bias: s.bias().map(bias).transpose()?,
            slopes: m
                .alibi
                .map(|_| bench.input("slopes", DType::F32, &inputs.slopes[..slopes], 0))
                .transpose()?,
            lengths: m.lengths.then(|| integers("key_lengths", DType::I32, &inputs.lengths)).transpose()?,
            offsets: m.packed.then(offsets).transpose()?,
            table: m
                .paged
                .map(|rows| integers("block_table", DType::I32, &self.table(inputs, rows)))
                .transpose()?,
            sinks: m.sinks.then(|| bench.input("sinks", DType::F32, &inputs.sinks, 0)).transpose()?,
            random: m.dropout.map(|_| integers("random", DType::I64, &numbers)).transpose()?,
        })
    }

    /// A tensor of queries (`which` 0) or keys.
    fn tensor(
        &self,
        bench: &Bench<'_>,
        name: &'static str,
        values: &[f64],
        [which, heads, width]: [usize; 3],
    ) -> Result<Placed, CaseError> {
        let s = &self.situation;
        let len = s.rows_layout(which, heads, width).elements().unwrap_or(0);
        let values = scatter(values, &s.places(which, heads, width), len);
        bench.input(name, self.dtype, &values, s.lead)
    }

    /// The pages; of those that hold no key that counts, a number that names none.
    fn table(&self, inputs: &Inputs, rows: usize) -> Vec<usize> {
        let s = &self.situation;
        let mut table = s.table(rows);
        for (b, pages) in table.chunks_mut(s.pages(rows).max(1)).enumerate() {
            pages.iter_mut().skip(inputs.lengths[b].div_ceil(rows)).for_each(|page| *page = 1_000_000);
        }
        table
    }

    fn arguments<'p>(&self, t: &'p Tensors) -> Result<AttentionInputs<'p>, CaseError> {
        let s = &self.situation;
        let flat = |x: &'p Option<Placed>| x.as_ref().map(Placed::view).transpose();
        let [query_offsets, key_offsets] =
            [0, 1].map(|i| t.offsets.as_ref().map(|offsets| offsets[i].view()).transpose());
        Ok(AttentionInputs {
            bias: t.bias.as_ref().zip(s.bias()).map(|(b, l)| view(b, &l)).transpose()?,
            slopes: t.slopes.as_ref().map(|x| self.slopes_view(x)).transpose()?,
            key_lengths: flat(&t.lengths)?,
            query_offsets: query_offsets?,
            key_offsets: key_offsets?,
            block_table: flat(&t.table)?,
            sinks: flat(&t.sinks)?,
            random: flat(&t.random)?,
            ..AttentionInputs::new(view(&t.q, &s.q())?, view(&t.k, &s.k())?, view(&t.v, &s.v())?)
        })
    }

    /// Where the kernel's `lse` of a query is, if there is that query.
    fn lse_place(&self, b: usize, h: usize, i: usize) -> Option<usize> {
        let s = &self.situation;
        if !s.modification.packed {
            return Some((b * s.heads + h) * s.queries + i);
        }
        let firsts = s.offsets(0);
        let all = firsts.last().copied().unwrap_or(0);
        (i < s.counts()[b][0]).then(|| h * all + firsts[b] + i)
    }

    /// `lse` of the reference in the order of the kernel's.
    fn lse_places(&self) -> Vec<Option<usize>> {
        let s = &self.situation;
        let of_head = |b: usize, h: usize| (0..s.queries).map(move |i| self.lse_place(b, h, i));
        (0..s.batch).flat_map(|b| (0..s.heads).flat_map(move |h| of_head(b, h))).collect()
    }

    fn backward_plan(
        &self,
        desc: &AttentionBackwardDesc,
        target: Target,
    ) -> Result<Plan<AttentionBackwardDesc>, PlanError> {
        let s = &self.situation;
        let of =
            |work| tuning::split_f16(work, target, s.width.max(s.value_width), desc.forward.options.kind());
        match of(Work::Queries).zip(of(Work::KeysAndValues)).filter(|_| s.unit == Unit::Copies) {
            Some((queries, keys)) => desc.plan_with(target, BackwardAlgorithm::SplitF16 { queries, keys }),
            None => desc.plan(target),
        }
    }

    fn plan(&self, desc: &AttentionDesc, target: Target) -> Result<Plan<AttentionDesc>, PlanError> {
        const PARTS: u32 = 3;
        const FEW_BLOCKS: u32 = 3;
        let s = &self.situation;
        let width = s.width.max(s.value_width);
        if let Some(layouts) = tuning::split_f16(Work::Forward, target, width, desc.options.kind())
            .filter(|_| s.unit == Unit::Copies)
        {
            return desc.plan_with(target, Algorithm::SplitF16(layouts.0, layouts.1));
        }
        let Modification { causal, left, right, bias, .. } = s.modification;
        let banded = causal || left.is_some() || right.is_some();
        let groups = tuning::wgmma(width as u32, bias.is_some(), banded);
        let hopper = target.sm == 90 && matches!(self.dtype, DType::F16 | DType::BF16);
        if let Some(groups) = groups.filter(|_| hopper && s.unit == Unit::Persistent) {
            let layout = tuning::Wgmma { persistent: true, ..groups };
            return desc.plan_with(target, Algorithm::Wgmma { layout, blocks: Some(FEW_BLOCKS) });
        }
        let few = s.queries <= tuning::FEW_QUERIES;
        let layout = match s.unit {
            Unit::Warps if few => tuning::decode_configs(self.dtype, target, width, 8).first().copied(),
            Unit::Parts => {
                let layouts = tuning::tma_layouts(self.dtype, target, width, usize::MAX);
                layouts.last().map(|layout| tuning::DecodeConfig::Tma(*layout))
            }
            _ => None,
        };
        let warps = tuning::mma(Work::Forward, target, width, desc.options.kind());
        match (layout, warps.filter(|_| s.unit == Unit::Warps)) {
            (Some(layout), _) => desc.plan_with(target, Algorithm::Decode { layout, splits: PARTS }),
            (None, Some(config)) => desc.plan_with(target, config.into()),
            (None, None) => desc.plan(target),
        }
    }

    fn forward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let s = &self.situation;
        let desc = s.desc(self.dtype);
        let plan = self.plan(&desc, bench.target())?;
        let inputs = self.inputs();
        let result = self.with_problem(&inputs, |p| reference::forward(p, &inputs.q, &inputs.k, &inputs.v));
        let t = self.place(bench, &inputs)?;
        let mut o = bench.output("o", self.dtype, s.o().elements().unwrap_or(0), s.lead)?;
        let places = self.lse_places();
        let mut lse = bench.output("lse", self.statistics(), places.iter().flatten().count(), 0)?;
        bench.launch(|stream| {
            let mut workspace = plan.workspace(stream)?;
            let args = AttentionArgs {
                inputs: self.arguments(&t)?,
                o: view_mut(&mut o, &s.o())?,
                lse: lse.view_mut()?,
                workspace: workspace.as_mut().map(warpwright_runtime::Tensor::as_mut),
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let of_result = expected(self.dtype, s.keys, &result.o, &result.o_scale);
        let o = bench.compare(&o, &lay_out(&of_result, &s.places(0, s.heads, s.value_width)))?;
        let expected_lse: Vec<_> = result
            .lse
            .iter()
            .map(|v| Expected { value: *v, scale: v.abs().max(4.0), underflow: 0.0 })
            .collect();
        let mut lse = bench.compare(&lse, &lay_out(&expected_lse, &places))?;
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
        let m = s.modification;
        let (dbias, dsinks) = (m.bias.is_some(), m.sinks);
        let desc = AttentionBackwardDesc { forward, dy: o, dq: q, dk: k, dv: v, dbias, dsinks };
        let plan = match self.backward_plan(&desc, bench.target()) {
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
        let o_in = self.tensor(bench, "o", &rounded, [0, s.heads, s.value_width])?;
        let dy = self.tensor(bench, "dy", &inputs.dy, [0, s.heads, s.value_width])?;
        let places = self.lse_places();
        let lse = scatter(&result.lse, &places, places.iter().flatten().count());
        let lse = bench.input("lse", self.statistics(), &lse, 0)?;
        let output =
            |name, layout: &Layout| bench.output(name, self.dtype, layout.elements().unwrap_or(0), s.lead);
        let (mut dq, mut dk, mut dv) = (output("dq", &q)?, output("dk", &k)?, output("dv", &v)?);
        let mut of_bias = s.bias().map(|bias| output("dbias", &bias)).transpose()?;
        let mut of_sinks = m.sinks.then(|| bench.output("dsinks", DType::F32, s.heads, 0)).transpose()?;
        bench.launch(|stream| {
            let mut workspace = plan.workspace(stream)?;
            let args = AttentionBackwardArgs {
                inputs: self.arguments(&t)?,
                o: view(&o_in, &o)?,
                lse: lse.view()?,
                dy: view(&dy, &o)?,
                dq: view_mut(&mut dq, &q)?,
                dk: view_mut(&mut dk, &k)?,
                dv: view_mut(&mut dv, &v)?,
                dbias: of_bias.as_mut().zip(s.bias()).map(|(x, l)| view_mut(x, &l)).transpose()?,
                dsinks: of_sinks.as_mut().map(Placed::view_mut).transpose()?,
                workspace: workspace.as_mut().map(warpwright_runtime::Tensor::as_mut),
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let terms = s.keys.max(s.queries * s.heads / s.key_heads);
        let compared = |tensor: &Placed, values: &[f64], scales: &[f64], laid_out: &[Expected]| {
            let mut c = bench.compare(tensor, laid_out)?;
            let norm = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>().sqrt();
            if norm(values) < 1e-9 * norm(scales) {
                // All terms cancel, as where a query sees one key: nothing to be relative to but the scales.
                c.norm = 0.0;
            }
            Ok::<_, CaseError>(c)
        };
        let compare = |tensor: &Placed, values: &[f64], scales: &[f64], of: [usize; 3]| {
            let [which, heads, width] = of;
            let expected = expected(self.dtype, terms, values, scales);
            compared(tensor, values, scales, &lay_out(&expected, &s.places(which, heads, width)))
        };
        let g = &gradients;
        let mut further = Comparison::default();
        if let Some((tensor, layout)) = of_bias.as_ref().zip(s.bias()) {
            let [values, scales] = [&g.ds, &g.ds_scale].map(|x| self.of_bias(x, &layout));
            let all = terms * s.batch * s.heads;
            further = further.merge(compared(
                tensor,
                &values,
                &scales,
                &expected(self.dtype, all, &values, &scales),
            )?);
        }
        if let Some(tensor) = &of_sinks {
            let of_sinks = expected(self.dtype, terms, &g.dsinks, &g.dsinks_scale);
            let mut c = compared(tensor, &g.dsinks, &g.dsinks_scale, &of_sinks)?;
            // They are f32 beside results of any type, whose errors the budget is about.
            let eps = self.dtype.epsilon().unwrap_or(1.0) / DType::F32.epsilon().unwrap_or(1.0);
            c.norm *= eps.min(1.0);
            c.element /= eps.max(1.0);
            further = further.merge(c);
        }
        let dk = compare(&dk, &g.dk, &g.dk_scale, [1, s.key_heads, s.width])?;
        let dv = compare(&dv, &g.dv, &g.dv_scale, [1, s.key_heads, s.value_width])?;
        Ok(compare(&dq, &g.dq, &g.dq_scale, [0, s.heads, s.width])?.merge(dk).merge(dv).merge(further))
    }

    /// What belongs to pairs of queries and keys, summed over what the bias is broadcast over.
    fn of_bias(&self, of_pairs: &[f64], bias: &Layout) -> Vec<f64> {
        let s = &self.situation;
        let mut out = vec![0.0; bias.elements().unwrap_or(0)];
        let all = Layout::contiguous([s.batch, s.heads, s.queries, s.keys]);
        for (index, value) in of_pairs.iter().enumerate() {
            let place = |axis: usize| index / all.strides[axis] as usize % all.shape[axis];
            let at = (0..4).map(|axis| place(axis) % bias.shape[axis] * bias.strides[axis] as usize);
            out[at.sum::<usize>()] += value;
        }
        out
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
