//! Cases of appending to the cache of keys and values.

use std::sync::Arc;

use warpwright_ops::attention::{CacheScale, Float8Cache, Paged};
use warpwright_ops::kv_cache::reference::{Places, place, position};
use warpwright_ops::kv_cache::{AppendKvCacheArgs, AppendKvCacheDesc, CacheRotation};
use warpwright_ops::plan::Layout;
use warpwright_ops::rotary::{Pairing, RotaryTables, reference};
use warpwright_ops::{Direction, Operation, PlanError};
use warpwright_ptx::DType;
use warpwright_runtime::TensorRef;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Placed, Scope, Subject, say};
use crate::inputs::{Input, Random};
use crate::measure::{Comparison, Expected};
use crate::storage;

/// How the tensors of a case lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// `[batch, steps, heads, head_dim]`
    BySteps,
    /// `[batch, heads, steps, head_dim]`
    ByHeads,
}

/// How queries and keys are rotated.
#[derive(Clone, Copy, Debug)]
struct Rotated {
    dim: usize,
    pairing: Pairing,
    repeated: bool,
    /// Whether the tables are f32, whatever the tensors are.
    wide: bool,
}

#[derive(Clone, Copy, Debug)]
struct Situation {
    batch: usize,
    steps: usize,
    /// Of queries, 0 without queries, and of keys.
    heads: [usize; 2],
    head_dim: usize,
    value_dim: usize,
    rotated: Option<Rotated>,
    /// Keys of a sequence that have a place.
    capacity: usize,
    /// Rows of a page, if the cache has pages.
    page: Option<usize>,
    /// Whether lengths are given, of which some are none.
    lengths: bool,
    /// Of queries, keys and values.
    new: Rows,
    /// Of the caches.
    cache: Rows,
    input: Input,
    /// Elements past an aligned address.
    lead: usize,
    in_place: bool,
    /// Scales of keys and values of a cache of e4m3.
    float8: Option<[CacheScale; 2]>,
}

#[derive(Debug)]
struct AppendSubject {
    dtype: DType,
    situation: Situation,
}

const HALVES: Rotated = Rotated { dim: 32, pairing: Pairing::Half, repeated: false, wide: false };

const PLAIN: Situation = Situation {
    batch: 3,
    steps: 1,
    heads: [5, 2],
    head_dim: 32,
    value_dim: 32,
    rotated: Some(HALVES),
    capacity: 32,
    page: None,
    lengths: true,
    new: Rows::BySteps,
    cache: Rows::BySteps,
    input: Input::Normal,
    lead: 0,
    in_place: false,
    float8: None,
};

const TENSOR: Option<[CacheScale; 2]> = Some([CacheScale::PerTensor; 2]);
const HEAD: Option<[CacheScale; 2]> = Some([CacheScale::PerHead; 2]);

fn situations(scope: Scope) -> Vec<Situation> {
    let neighbours = Rotated { pairing: Pairing::Interleaved, ..HALVES };
    let paged = Situation { page: Some(16), ..PLAIN };
    let mut all = vec![
        PLAIN,
        // Lengths of every kind, a row of pages too many and too few.
        Situation { batch: 8, steps: 3, rotated: Some(neighbours), ..PLAIN },
        Situation { batch: 8, steps: 3, ..paged },
        Situation { steps: 20, lengths: false, heads: [8, 8], value_dim: 16, ..PLAIN },
        Situation { rotated: None, heads: [0, 3], value_dim: 48, ..paged },
        Situation { rotated: None, heads: [0, 3], head_dim: 9, value_dim: 5, lead: 1, ..PLAIN },
        Situation { heads: [0, 9], new: Rows::ByHeads, cache: Rows::ByHeads, ..PLAIN },
        Situation {
            steps: 2,
            head_dim: 48,
            rotated: Some(Rotated { dim: 16, repeated: true, wide: true, ..HALVES }),
            in_place: true,
            cache: Rows::ByHeads,
            ..paged
        },
        Situation {
            steps: 2,
            head_dim: 20,
            value_dim: 6,
            rotated: Some(Rotated { dim: 8, repeated: true, ..neighbours }),
            in_place: true,
            ..PLAIN
        },
        Situation { head_dim: 9, rotated: Some(Rotated { dim: 6, wide: true, ..neighbours }), ..paged },
        Situation { steps: 0, ..PLAIN },
        // Caches of e4m3: rotated in both ways, copied, in pages, misaligned, and numbers beyond the largest.
        Situation { float8: TENSOR, ..PLAIN },
        Situation { batch: 8, steps: 3, rotated: Some(neighbours), float8: HEAD, ..paged },
        Situation { steps: 20, lengths: false, heads: [8, 8], value_dim: 16, float8: HEAD, ..PLAIN },
        Situation { rotated: None, heads: [0, 3], value_dim: 48, float8: TENSOR, ..paged },
        Situation { rotated: None, heads: [0, 3], head_dim: 9, value_dim: 5, lead: 1, float8: HEAD, ..PLAIN },
        Situation {
            steps: 2,
            heads: [3, 9],
            head_dim: 48,
            rotated: Some(Rotated { dim: 16, repeated: true, wide: true, ..HALVES }),
            in_place: true,
            cache: Rows::ByHeads,
            float8: HEAD,
            ..paged
        },
        Situation { steps: 17, input: Input::Hostile, float8: TENSOR, ..PLAIN },
        Situation {
            steps: 17,
            rotated: None,
            heads: [0, 2],
            input: Input::Magnitudes,
            float8: HEAD,
            ..PLAIN
        },
        Situation { steps: 17, input: Input::Hostile, ..PLAIN },
    ];
    if scope == Scope::Full {
        for head_dim in [2, 4, 16, 64, 80, 96, 128, 256] {
            for base in [HALVES, neighbours] {
                let rotated = Rotated { dim: head_dim, ..base };
                let whole = Situation { head_dim, value_dim: head_dim, rotated: Some(rotated), ..PLAIN };
                all.push(Situation { steps: 4, heads: [12, 3], ..whole });
                all.push(Situation {
                    batch: 8,
                    page: Some(32),
                    capacity: 96,
                    head_dim: 3 * head_dim,
                    rotated: Some(Rotated { repeated: true, wide: true, ..rotated }),
                    ..whole
                });
                all.push(Situation { lead: 1, cache: Rows::ByHeads, lengths: false, ..whole });
            }
        }
        // Enough threads for rounds of several heads on any device.
        let long = Situation { batch: 2, steps: 4500, heads: [17, 5], capacity: 8192, ..PLAIN };
        all.push(long);
        all.push(Situation { page: Some(256), lengths: false, ..long });
    }
    all
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for dtype in DType::FLOATS {
        let half = matches!(dtype, DType::F16 | DType::BF16);
        for situation in situations(scope).into_iter().filter(|s| half || s.float8.is_none()) {
            let Situation { batch, steps, heads, head_dim, value_dim, rotated, capacity, page, .. } =
                situation;
            let Situation { lengths, new, cache, input, lead, in_place, .. } = situation;
            let mut words = format!(
                "{}, {} heads of keys, values of {value_dim}, {capacity} places",
                input.name(),
                heads[1]
            );
            if let Some(Rotated { dim, pairing, repeated, wide }) = rotated {
                words.push_str(&format!(", {pairing:?} of {dim}"));
                words.push_str(if repeated { ", repeated tables" } else { "" });
                words.push_str(if wide { ", f32 tables" } else { "" });
            }
            if let Some(rows) = page {
                words.push_str(&format!(", pages of {rows}"));
            }
            say(
                &mut words,
                [
                    (lengths, ", lengths"),
                    (new == Rows::ByHeads, ", heads first"),
                    (cache == Rows::ByHeads, ", cache with heads first"),
                    (lead > 0, ", misaligned"),
                    (in_place, ", in place"),
                ],
            );
            if let Some(scales) = situation.float8 {
                words.push_str(&format!(", e4m3, {scales:?}"));
            }
            out.push(Case {
                op: "append_kv_cache",
                direction: Direction::Forward,
                dtype,
                shape: vec![batch, steps, heads[0], head_dim],
                input: words,
                // Codes of 8-bit floats are computed as kernels do.
                budget: if situation.float8.is_some() { budget::EXACT } else { budget::elementwise(dtype) },
                subject: Arc::new(AppendSubject { dtype, situation }),
            });
        }
    }
    out
}

fn laid_out(shape: [usize; 4], rows: Rows) -> Layout {
    let [batch, steps, heads, width] = shape;
    match rows {
        Rows::BySteps => Layout::contiguous(shape),
        Rows::ByHeads => {
            let [b, h, s, d] = Layout::contiguous([batch, heads, steps, width]).strides;
            Layout { shape, strides: [b, s, h, d] }
        }
    }
}

/// A tensor: its layout, and its elements as they lie in memory.
struct Filled {
    layout: Layout,
    values: Vec<f64>,
}

impl Filled {
    /// Where the elements of a head begin.
    fn first(&self, index: [usize; 3]) -> usize {
        index.into_iter().zip(self.layout.strides).map(|(i, stride)| i * stride as usize).sum()
    }

    fn head(&self, index: [usize; 3]) -> &[f64] {
        &self.values[self.first(index)..][..self.layout.shape[3]]
    }

    fn unchanged(&self) -> Vec<Expected> {
        self.values.iter().map(|value| Expected::exactly(*value)).collect()
    }
}

/// A tensor that there may be, to read.
fn flat(x: &Option<Placed>) -> Result<Option<TensorRef<'_>>, CaseError> {
    x.as_ref().map(Placed::view).transpose()
}

impl AppendSubject {
    /// Pages in the table of a sequence, and pages that exist: one more than all sequences have.
    fn pages(&self) -> Option<(usize, usize)> {
        let Situation { batch, capacity, page, .. } = self.situation;
        page.map(|rows| (capacity.div_ceil(rows), batch * capacity.div_ceil(rows) + 1))
    }

    fn filled(&self, dtype: DType, shape: [usize; 4], rows: Rows, salt: u64) -> Filled {
        let layout = laid_out(shape, rows);
        let values = self.situation.input.values(shape.iter().product(), salt);
        Filled { layout, values: values.into_iter().map(|x| storage::round(dtype, x)).collect() }
    }

    fn cache_dtype(&self) -> DType {
        if self.situation.float8.is_some() { DType::F8E4M3 } else { self.dtype }
    }

    /// The scales of the keys (`which` 0) or values: no powers of two.
    fn scales(&self, which: usize) -> Option<Vec<f64>> {
        let heads = match self.situation.float8?[which] {
            CacheScale::PerTensor => 1,
            CacheScale::PerHead => self.situation.heads[1],
        };
        Some((0..heads).map(|head| f64::from(0.013 + 0.7 * head as f32 + which as f32)).collect())
    }

    /// The codes of a head of the keys or values where scales are given: in `f32`, step by step as the kernel computes.
    fn coded(&self, x: &[f32], which: usize, head: usize) -> Option<Vec<Expected>> {
        let scales = self.scales(which)?;
        let scale = scales[head % scales.len()] as f32;
        let code = |x: &f32| Expected::exactly(storage::round(DType::F8E4M3, f64::from(x / scale)));
        Some(x.iter().map(code).collect())
    }

    /// A head at a position, rotated in `f32`, step by step as the kernel computes.
    fn turned_f32(&self, x: &[f64], [cos, sin]: [&[f64]; 2], pairing: Pairing) -> Vec<f32> {
        let mut y: Vec<f32> = x.iter().map(|x| *x as f32).collect();
        for (pair, (cos, sin)) in cos.iter().zip(sin).enumerate() {
            let (cos, sin) = (*cos as f32, *sin as f32);
            let [first, second] = match pairing {
                Pairing::Half => [pair, pair + self.situation.rotated.map_or(0, |rotated| rotated.dim / 2)],
                Pairing::Interleaved => [2 * pair, 2 * pair + 1],
            };
            let [a, b] = [y[first], y[second]];
            (y[first], y[second]) = (a * cos - b * sin, b * cos + a * sin);
        }
        y
    }

    fn cache(&self, width: usize, salt: u64) -> Filled {
        let Situation { batch, heads, capacity, page, cache, .. } = self.situation;
        let [outer, rows] = match (self.pages(), page) {
            (Some((_, count)), Some(rows)) => [count, rows],
            _ => [batch, capacity],
        };
        self.filled(self.cache_dtype(), [outer, rows, heads[1], width], cache, salt)
    }

    fn lengths(&self) -> Option<Vec<i64>> {
        let Situation { batch, steps, capacity, lengths, .. } = self.situation;
        let (steps, all) = (steps as i64, capacity as i64);
        let each = [steps + 3, all, all / 2, all + 1, 0, steps - 1, -1, i64::from(i32::MIN)];
        lengths.then(|| (0..batch).map(|b| each[b % each.len()]).collect())
    }

    /// Pages from the last to the first, but for some that none has.
    fn table(&self) -> Option<Vec<i64>> {
        let (pages, count) = self.pages()?;
        let one = |at: usize| match at {
            4 => -1,
            6 => count as i64,
            9 => 1_000_000,
            _ => (count - 1 - at) as i64,
        };
        Some((0..self.situation.batch * pages).map(one).collect())
    }

    fn tables(&self) -> RotaryTables {
        let Situation { capacity, rotated, .. } = self.situation;
        let wide = rotated.is_some_and(|rotated| rotated.wide);
        RotaryTables {
            dtype: if wide { DType::F32 } else { self.dtype },
            batch: 1,
            // The last positions have none.
            rows: capacity - capacity / 8,
            repeated: rotated.is_some_and(|rotated| rotated.repeated),
        }
    }

    /// Cosines and sines of each pair of each row, rounded.
    fn draw_tables(&self) -> [Vec<f64>; 2] {
        let (RotaryTables { dtype, rows, .. }, mut random) = (self.tables(), Random::new(11));
        let pairs = self.situation.rotated.map_or(0, |rotated| rotated.dim / 2);
        let angles: Vec<f64> = (0..rows * pairs).map(|_| 6.3 * random.unit()).collect();
        [f64::cos, f64::sin].map(|f| angles.iter().map(|a| storage::round(dtype, f(*a))).collect())
    }

    /// A table as it lies in memory.
    fn stored(&self, table: &[f64]) -> Vec<f64> {
        let Some(Rotated { dim, pairing, repeated, .. }) = self.situation.rotated else { return Vec::new() };
        let row = |row: &[f64]| match (repeated, pairing) {
            (false, _) => row.to_vec(),
            (true, Pairing::Half) => row.repeat(2),
            (true, Pairing::Interleaved) => row.iter().flat_map(|x| [*x, *x]).collect(),
        };
        table.chunks(dim / 2).flat_map(row).collect()
    }

    /// A head as it is stored at a position: of the queries, or of a key head.
    fn turned(
        &self,
        x: &[f64],
        [cos, sin]: &[Vec<f64>; 2],
        (position, key_head): (i64, Option<usize>),
    ) -> Vec<Expected> {
        let stored = |y: &[f32]| match key_head.and_then(|head| self.coded(y, 0, head)) {
            Some(codes) => codes,
            None => y.iter().map(|y| Expected::exactly(storage::round(self.dtype, f64::from(*y)))).collect(),
        };
        let Some(Rotated { dim, pairing, .. }) = self.situation.rotated else {
            return match self.situation.float8 {
                Some(_) => stored(&self.turned_f32(x, [&[], &[]], Pairing::Half)),
                None => x.iter().map(|x| Expected::exactly(*x)).collect(),
            };
        };
        let (pairs, rows) = (dim / 2, self.tables().rows);
        let row = usize::try_from(position).ok().filter(|row| *row < rows);
        let of = |table: &Vec<f64>| match row {
            Some(row) => table[row * pairs..][..pairs].to_vec(),
            None => vec![f64::NAN; pairs],
        };
        let (cos, sin) = (of(cos), of(sin));
        if self.situation.float8.is_some() {
            return stored(&self.turned_f32(x, [&cos, &sin], pairing));
        }
        let y = reference::forward(x, &cos, &sin, pairing);
        let scales = reference::scale(x, &cos, &sin, pairing);
        let one = |(value, scale)| Expected { value, scale, underflow: f64::from(f32::MIN_POSITIVE) };
        y.into_iter().zip(scales).map(one).collect()
    }

    fn desc(&self, [q, k, v, k_cache, v_cache]: [Layout; 5]) -> AppendKvCacheDesc {
        let Situation { heads, rotated, lengths, .. } = self.situation;
        let tables = self.tables();
        let rotation = |Rotated { dim, pairing, .. }| CacheRotation { pairing, rotary_dim: dim, tables };
        AppendKvCacheDesc {
            dtype: self.dtype,
            q: (heads[0] > 0).then_some([q; 2]),
            k,
            v,
            k_cache,
            v_cache,
            rotation: rotated.map(rotation),
            key_lengths: lengths,
            paged: self.pages().map(|(pages, _)| Paged { pages }),
            float8: self.situation.float8.map(|[k_scale, v_scale]| Float8Cache { k_scale, v_scale }),
        }
    }
}

impl Subject for AppendSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Situation { batch, steps, heads, head_dim, value_dim, lead, in_place, .. } = self.situation;
        let Situation { capacity, page, rotated, new, .. } = self.situation;
        let of = |heads, width, salt| self.filled(self.dtype, [batch, steps, heads, width], new, salt);
        let (q, k, v) = (of(heads[0], head_dim, 1), of(heads[1], head_dim, 2), of(heads[1], value_dim, 3));
        let (k_cache, v_cache) = (self.cache(head_dim, 4), self.cache(value_dim, 5));
        let (lengths, table, tables) = (self.lengths(), self.table(), self.draw_tables());
        let (mut of_q, mut of_k, mut of_v) = (q.unchanged(), k_cache.unchanged(), v_cache.unchanged());
        let pages = page.zip(self.pages()).zip(table.as_deref());
        let places =
            Places { capacity, pages: pages.map(|((rows, (_, count)), table)| (count, rows, table)) };
        let put = |to: &mut [Expected], first: usize, values: Vec<Expected>| {
            to[first..][..values.len()].copy_from_slice(&values);
        };
        for (b, step) in (0..batch).flat_map(|b| (0..steps).map(move |step| (b, step))) {
            let length = lengths.as_ref().map_or(steps as i64, |lengths| lengths[b]);
            let at = position(length, steps, step);
            for head in 0..heads[0] {
                let index = [b, step, head];
                put(&mut of_q, q.first(index), self.turned(q.head(index), &tables, (at, None)));
            }
            let Some([page, row]) = place(places, b, at) else { continue };
            for head in 0..heads[1] {
                let (from, to) = ([b, step, head], [page, row, head]);
                put(&mut of_k, k_cache.first(to), self.turned(k.head(from), &tables, (at, Some(head))));
                let whole: Vec<f32> = v.head(from).iter().map(|x| *x as f32).collect();
                let exact = || v.head(from).iter().map(|x| Expected::exactly(*x)).collect();
                put(&mut of_v, v_cache.first(to), self.coded(&whole, 1, head).unwrap_or_else(exact));
            }
        }
        let desc = self.desc([&q, &k, &v, &k_cache, &v_cache].map(|x| x.layout));
        let input = |name, of: &Filled| bench.input(name, self.dtype, &of.values, lead);
        let cache = |name, of: &Filled| bench.input(name, self.cache_dtype(), &of.values, lead);
        let scale =
            |name, which: usize| bench.optional_input(name, DType::F32, self.scales(which).as_ref(), 0);
        let integers = |name, numbers: &Option<Vec<i64>>| {
            let values = numbers.as_ref().map(|all| all.iter().map(|n| *n as f64).collect::<Vec<f64>>());
            bench.optional_input(name, DType::I32, values.as_ref(), 0)
        };
        let (x_q, x_k, x_v) = (input("q", &q)?, input("k", &k)?, input("v", &v)?);
        let (mut y_k, mut y_v) = (cache("k_cache", &k_cache)?, cache("v_cache", &v_cache)?);
        let (k_scale, v_scale) = (scale("k_scale", 0)?, scale("v_scale", 1)?);
        let mut y_q = match in_place {
            true => input("q_rotated", &q)?,
            false => bench.output("q_rotated", self.dtype, q.values.len(), lead)?,
        };
        let angles = |name, values: &[f64]| {
            let stored = rotated.map(|_| self.stored(values));
            bench.optional_input(name, self.tables().dtype, stored.as_ref(), lead)
        };
        let (cos, sin) = (angles("cos", &tables[0])?, angles("sin", &tables[1])?);
        let (key_lengths, block_table) =
            (integers("key_lengths", &lengths)?, integers("block_table", &table)?);
        let (target, given) = (bench.target(), heads[0] > 0);
        // Conversions of 8-bit floats are missing before.
        if self.situation.float8.is_some() && target.sm < 89 {
            return match desc.plan(target) {
                Err(PlanError::Target { needs: 89, .. }) => Ok(Comparison::default()),
                Err(other) => Err(other.into()),
                // A plan that there should not be fails as an infinite error.
                Ok(_) => Ok(Comparison { element: f64::INFINITY, ..Comparison::default() }),
            };
        }
        bench.launch(|stream| {
            let args = AppendKvCacheArgs {
                q: (given && !in_place).then(|| x_q.laid_out(&q.layout)).transpose()?,
                k: x_k.laid_out(&k.layout)?,
                v: x_v.laid_out(&v.layout)?,
                cos: flat(&cos)?,
                sin: flat(&sin)?,
                key_lengths: flat(&key_lengths)?,
                block_table: flat(&block_table)?,
                k_scale: flat(&k_scale)?,
                v_scale: flat(&v_scale)?,
                q_rotated: given.then(|| y_q.laid_out_mut(&q.layout)).transpose()?,
                k_cache: y_k.laid_out_mut(&k_cache.layout)?,
                v_cache: y_v.laid_out_mut(&v_cache.layout)?,
            };
            Ok(desc.plan(target)?.launch(stream, args)?)
        })?;
        let caches = bench.compare(&y_k, &of_k)?.merge(bench.compare(&y_v, &of_v)?);
        if !given {
            return Ok(caches);
        }
        Ok(caches.merge(bench.compare(&y_q, &of_q)?))
    }
}
