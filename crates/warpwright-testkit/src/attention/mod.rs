//! Cases of attention.

use std::sync::Arc;

use warpwright_ops::attention::tuning::{self, Work};
use warpwright_ops::attention::{
    Algorithm, AlibiSlopes, AttentionArgs, AttentionBackwardArgs, AttentionBackwardDesc, AttentionDesc,
    AttentionInputs, BackwardAlgorithm, BlockMaskTables, reference,
};
use warpwright_ops::plan::Layout;
use warpwright_ops::{Direction, Dropout, Operation, Plan, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::TensorRef;

use crate::case::{Bench, Case, CaseError, Placed, Scope, Subject, view_mut};
use crate::inputs::{Input, Random};
use crate::measure::{Comparison, Expected};
use crate::storage;

mod situation;
mod situations;

use situation::{Modification, OFFSET, SEED, Situation, Unit};
use situations::situations;

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
                let float8 = situation.modification.float8.is_some();
                let skipped = situation.nan || paged || float8 || long || half && situation.spread > 1.0;
                let backward = direction == Direction::Backward;
                let has_unit = match situation.unit {
                    Unit::Chosen => true,
                    Unit::Copies => dtype == DType::F32,
                    Unit::Fused(_) => half && backward,
                    Unit::Wgmma if situation.modification.blocks.is_some() => half,
                    _ => half && !backward,
                };
                if !has_unit || float8 && !half || backward && skipped {
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
        let drawn = |dtype: DType, len: usize, salt: u64, factor: f64| -> Vec<f64> {
            let values = Input::Normal.values(len, salt.wrapping_mul(1 << 20).wrapping_add(len as u64));
            values.into_iter().map(|v| storage::round(dtype, v * factor)).collect()
        };
        let draw = |len: usize, salt: u64, factor: f64| drawn(self.dtype, len, salt, factor);
        // Keys or values of a cache, as attention reads them.
        let cached = |which: usize, len: usize, factor: f64| {
            let codes = drawn(s.cache_dtype(self.dtype), len, which as u64 + 2, factor);
            self.scaled(which, codes, |code, scale| code * scale)
        };
        let elements = |layout: Layout| layout.elements().unwrap_or(0);
        let (of_queries, of_keys) = (s.batch * s.queries * s.heads, s.batch * s.keys * s.key_heads);
        let mut k = cached(0, of_keys * s.width, s.spread);
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
        let mut v = sized(cached(1, of_keys * s.value_width, 1.0), s.keys, s.key_heads);
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

    /// Elements of keys (`which` 0) or values in reference order, each by `f` of itself and its scale.
    fn scaled(&self, which: usize, mut values: Vec<f64>, f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
        let s = &self.situation;
        let width = [s.width, s.value_width][which].max(1);
        if s.modification.float8.is_some() {
            for (at, x) in values.iter_mut().enumerate() {
                *x = f(*x, s.scale(which, at / width % s.key_heads.max(1)));
            }
        }
        values
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
            mask: m.blocks.is_some().then_some(&|b, h, i, j| s.sees(b, h, i, j)),
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
    let least =
        if matches!(dtype, DType::F16 | DType::F8E4M3) { 2f64.powi(-25) * LARGEST_FACTOR } else { 1e-32 };
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
    /// Of keys and values.
    scales: [Option<Placed>; 2],
    /// Of a mask: tiles of keys, tiles of queries, and bits.
    mask: Option<[Placed; 3]>,
}

impl AttentionSubject {
    fn place(&self, bench: &Bench<'_>, inputs: &Inputs) -> Result<Tensors, CaseError> {
        let s = &self.situation;
        let m = s.modification;
        let cached = |which: usize, name, values: &[f64], width: usize| {
            let codes = self.scaled(which, values.to_vec(), |x, scale| x / scale);
            self.tensor(bench, (name, s.cache_dtype(self.dtype)), &codes, [1, s.key_heads, width])
        };
        let scale = |name, which: usize| bench.optional_input(name, DType::F32, s.scales(which).as_ref(), 0);
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
        let mask = |tables: &BlockMaskTables| {
            let signed = |name, values: &[i32]| {
                let values: Vec<f64> = values.iter().map(|n| f64::from(*n)).collect();
                bench.input(name, DType::I32, &values, 0)
            };
            Ok::<_, CaseError>([
                signed("key_tiles", &tables.key_tiles)?,
                signed("query_tiles", &tables.query_tiles)?,
                signed("mask_bits", &tables.bits)?,
            ])
        };
        let bias = |layout: Layout| {
            let all = layout.elements().unwrap_or(0);
            bench.input("bias", self.dtype, &inputs.bias[..all], s.lead)
        };
        Ok(Tensors {
            q: self.tensor(bench, ("q", self.dtype), &inputs.q, [0, s.heads, s.width])?,
            k: cached(0, "k", &inputs.k, s.width)?,
            v: cached(1, "v", &inputs.v, s.value_width)?,
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
            scales: [scale("k_scale", 0)?, scale("v_scale", 1)?],
            mask: s.tables().as_ref().map(mask).transpose()?,
        })
    }

    /// A tensor of queries (`which` 0) or keys.
    fn tensor(
        &self,
        bench: &Bench<'_>,
        (name, dtype): (&'static str, DType),
        values: &[f64],
        [which, heads, width]: [usize; 3],
    ) -> Result<Placed, CaseError> {
        let s = &self.situation;
        let len = s.rows_layout(which, heads, width).elements().unwrap_or(0);
        let values = scatter(values, &s.places(which, heads, width), len);
        bench.input(name, dtype, &values, s.lead)
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
        let table = |i: usize| t.mask.as_ref().map(|tables| tables[i].view()).transpose();
        Ok(AttentionInputs {
            bias: t.bias.as_ref().zip(s.bias()).map(|(b, l)| b.laid_out(&l)).transpose()?,
            slopes: t.slopes.as_ref().map(|x| self.slopes_view(x)).transpose()?,
            key_lengths: flat(&t.lengths)?,
            query_offsets: query_offsets?,
            key_offsets: key_offsets?,
            block_table: flat(&t.table)?,
            sinks: flat(&t.sinks)?,
            random: flat(&t.random)?,
            k_scale: flat(&t.scales[0])?,
            v_scale: flat(&t.scales[1])?,
            key_tiles: table(0)?,
            query_tiles: table(1)?,
            mask_bits: table(2)?,
            ..AttentionInputs::new(t.q.laid_out(&s.q())?, t.k.laid_out(&s.k())?, t.v.laid_out(&s.v())?)
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
        let width = s.width.max(s.value_width);
        if let Unit::Fused(layout) = s.unit
            && target.sm == 90
        {
            let layouts = tuning::wgmma_fused_layouts(width);
            let algorithm = BackwardAlgorithm::WgmmaFused { layout: layouts[layout], heads_at_once: None };
            return desc.plan_with(target, algorithm);
        }
        let of = |work| tuning::split_f16(work, target, width, desc.forward.options.kind());
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
        let widths = [s.width as u32, s.value_width as u32];
        let groups = match s.modification.blocks {
            Some(_) => tuning::wgmma_of_blocks(widths),
            None => tuning::wgmma(widths, bias.is_some(), banded),
        };
        let hopper = target.sm == 90 && matches!(self.dtype, DType::F16 | DType::BF16);
        if let Some(groups) = groups.filter(|_| hopper && s.unit == Unit::Persistent) {
            let layout = tuning::Wgmma { persistent: true, ..groups };
            return desc.plan_with(target, Algorithm::Wgmma { layout, blocks: Some(FEW_BLOCKS) });
        }
        let few = s.queries <= tuning::FEW_QUERIES;
        let layout = match s.unit {
            Unit::Warps if few => {
                tuning::decode_configs(s.cache_dtype(self.dtype), target, width, 8).first().copied()
            }
            Unit::Parts => {
                let rows = (s.queries * s.heads / s.key_heads.max(1)) as u64;
                let layouts = tuning::tma_layouts(s.cache_dtype(self.dtype), target, rows, width, usize::MAX);
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
        let plan = match self.plan(&desc, bench.target()) {
            // Conversions of 8-bit floats are missing.
            Err(PlanError::Target { needs: 89, .. })
                if s.modification.float8.is_some() && bench.target().sm < 89 =>
            {
                return Ok(Comparison::default());
            }
            plan => plan?,
        };
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
                o: o.laid_out_mut(&s.o())?,
                lse: lse.view_mut()?,
                workspace: workspace.as_mut().map(warpwright_runtime::Tensor::as_mut),
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let of_result = expected(s.cache_dtype(self.dtype), s.keys, &result.o, &result.o_scale);
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
        let o_in = self.tensor(bench, ("o", self.dtype), &rounded, [0, s.heads, s.value_width])?;
        let dy = self.tensor(bench, ("dy", self.dtype), &inputs.dy, [0, s.heads, s.value_width])?;
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
                o: o_in.laid_out(&o)?,
                lse: lse.view()?,
                dy: dy.laid_out(&o)?,
                dq: dq.laid_out_mut(&q)?,
                dk: dk.laid_out_mut(&k)?,
                dv: dv.laid_out_mut(&v)?,
                dbias: of_bias.as_mut().zip(s.bias()).map(|(x, l)| x.laid_out_mut(&l)).transpose()?,
                dsinks: view_mut(&mut of_sinks)?,
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

    /// Values of pairs of queries and keys, summed over the dimensions that the bias is broadcast over.
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

    fn layout(&self) -> String {
        let s = &self.situation;
        let few = s.queries <= tuning::FEW_QUERIES;
        let float8 = s.modification.float8.is_some();
        format!("{:?}, {} wide, few queries {few}, e4m3 {float8}", s.unit, s.width.max(s.value_width))
    }
}
