//! Cases of rotary position embedding.

use std::sync::Arc;

use warpwright_ops::plan::Layout;
use warpwright_ops::rotary::{
    Pairing, RotaryAngles, RotaryArgs, RotaryBackwardArgs, RotaryBackwardDesc, RotaryDesc, RotaryPositions,
    RotaryTables, reference,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject, both_ways, say, view};
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

#[derive(Clone, Copy, Debug)]
struct Situation {
    batch: usize,
    steps: usize,
    /// Of queries and of keys; 0 without keys.
    heads: [usize; 2],
    head_dim: usize,
    rotary_dim: usize,
    pairing: Pairing,
    repeated: bool,
    /// Whether the tables are f32, whatever the tensors are.
    wide_tables: bool,
    /// Whether each sample has tables of its own.
    tables_of_samples: bool,
    positions: Option<RotaryPositions>,
    /// Whether the tables have no row for some positions.
    stray: bool,
    rows: Rows,
    input: Input,
    /// Elements past an aligned address.
    lead: usize,
    in_place: bool,
}

#[derive(Debug)]
struct RotarySubject {
    direction: Direction,
    dtype: DType,
    situation: Situation,
}

const PLAIN: Situation = Situation {
    batch: 2,
    steps: 5,
    heads: [5, 2],
    head_dim: 32,
    rotary_dim: 32,
    pairing: Pairing::Half,
    repeated: false,
    wide_tables: false,
    tables_of_samples: false,
    positions: None,
    stray: false,
    rows: Rows::BySteps,
    input: Input::Normal,
    lead: 0,
    in_place: false,
};

fn positions(dtype: DType, batch: usize) -> Option<RotaryPositions> {
    Some(RotaryPositions { dtype, batch })
}

fn situations(scope: Scope) -> Vec<Situation> {
    let neighbours = Situation { pairing: Pairing::Interleaved, ..PLAIN };
    let mut all = vec![
        PLAIN,
        Situation { repeated: true, wide_tables: true, ..PLAIN },
        neighbours,
        Situation { repeated: true, ..neighbours },
        Situation { wide_tables: true, positions: positions(DType::I64, 2), stray: true, ..PLAIN },
        Situation { rotary_dim: 16, head_dim: 48, positions: positions(DType::I32, 1), ..PLAIN },
        Situation { rotary_dim: 8, head_dim: 20, in_place: true, ..neighbours },
        Situation { rows: Rows::ByHeads, tables_of_samples: true, ..PLAIN },
        Situation { rows: Rows::ByHeads, lead: 1, in_place: true, repeated: true, ..neighbours },
        Situation { rotary_dim: 6, head_dim: 9, ..PLAIN },
        Situation {
            rotary_dim: 2,
            head_dim: 3,
            heads: [9, 0],
            positions: positions(DType::I32, 2),
            ..neighbours
        },
        Situation { heads: [3, 0], steps: 0, ..PLAIN },
        Situation { steps: 40, input: Input::Hostile, ..PLAIN },
    ];
    if scope == Scope::Full {
        for head_dim in [2, 4, 8, 10, 16, 24, 64, 80, 96, 128, 256] {
            for base in [PLAIN, neighbours] {
                let whole = Situation { head_dim, rotary_dim: head_dim, heads: [12, 3], ..base };
                all.push(whole);
                all.push(Situation { repeated: true, wide_tables: true, rows: Rows::ByHeads, ..whole });
                all.push(Situation { head_dim: head_dim + head_dim / 2, lead: 1, ..whole });
                all.push(Situation { head_dim: 3 * head_dim, positions: positions(DType::I64, 2), ..whole });
            }
        }
        // Enough threads for rounds of several heads on any device.
        all.push(Situation { steps: 4500, heads: [17, 5], ..PLAIN });
        all.push(Situation { steps: 9000, heads: [9, 9], head_dim: 6, rotary_dim: 4, ..neighbours });
    }
    all
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for (direction, dtype, situation) in both_ways(&situations(scope)) {
        let Situation { batch, steps, heads, head_dim, rotary_dim, .. } = situation;
        let Situation { pairing, repeated, wide_tables, tables_of_samples, .. } = situation;
        let Situation { positions, stray, rows, input, lead, in_place, .. } = situation;
        let mut words = format!("{}, {pairing:?} of {rotary_dim}, {} heads of keys", input.name(), heads[1]);
        if let Some(RotaryPositions { dtype, batch }) = positions {
            words.push_str(&format!(", {dtype} positions of {batch}"));
        }
        say(
            &mut words,
            [
                (repeated, ", repeated tables"),
                (wide_tables, ", f32 tables"),
                (tables_of_samples, ", tables of samples"),
                (stray, ", stray positions"),
                (rows == Rows::ByHeads, ", heads first"),
                (lead > 0, ", misaligned"),
                (in_place, ", in place"),
            ],
        );
        out.push(Case {
            op: "rotary_embedding",
            direction,
            dtype,
            shape: vec![batch, steps, heads[0], head_dim],
            input: words,
            budget: budget::elementwise(dtype),
            subject: Arc::new(RotarySubject { direction, dtype, situation }),
        });
    }
    out
}

/// One of queries and keys: its layout, its elements, and what should become of them.
struct Heads {
    layout: Layout,
    x: Vec<f64>,
    expected: Vec<Expected>,
}

impl RotarySubject {
    fn tables(&self) -> RotaryTables {
        let s = &self.situation;
        RotaryTables {
            dtype: if s.wide_tables { DType::F32 } else { self.dtype },
            batch: if s.tables_of_samples { s.batch } else { 1 },
            rows: s.steps + 2,
            repeated: s.repeated,
        }
    }

    fn layout(&self, heads: usize) -> Layout {
        let Situation { batch, steps, head_dim, rows, .. } = self.situation;
        let shape = [batch, steps, heads, head_dim];
        match rows {
            Rows::BySteps => Layout::contiguous(shape),
            Rows::ByHeads => {
                let [b, h, s, d] = Layout::contiguous([batch, heads, steps, head_dim]).strides;
                Layout { shape, strides: [b, s, h, d] }
            }
        }
    }

    fn desc(&self) -> RotaryDesc {
        let Situation { heads, rotary_dim, pairing, positions, .. } = self.situation;
        let q = self.layout(heads[0]);
        let k = (heads[1] > 0).then(|| self.layout(heads[1]));
        let tables = self.tables();
        RotaryDesc {
            dtype: self.dtype,
            q,
            k,
            q_rotated: q,
            k_rotated: k,
            pairing,
            rotary_dim,
            tables,
            positions,
        }
    }

    /// Cosines and sines of each pair of each row of each table.
    fn draw_tables(&self) -> [Vec<f64>; 2] {
        let RotaryTables { dtype, batch, rows, .. } = self.tables();
        let pairs = self.situation.rotary_dim / 2;
        let mut random = Random::new(11);
        let angles: Vec<f64> = (0..batch * rows * pairs).map(|_| 6.3 * random.unit()).collect();
        [f64::cos, f64::sin].map(|f| angles.iter().map(|a| storage::round(dtype, f(*a))).collect())
    }

    /// A table as it lies in memory.
    fn stored(&self, table: &[f64]) -> Vec<f64> {
        let pairs = self.situation.rotary_dim / 2;
        let row = |row: &[f64]| match (self.situation.repeated, self.situation.pairing) {
            (false, _) => row.to_vec(),
            (true, Pairing::Half) => row.repeat(2),
            (true, Pairing::Interleaved) => row.iter().flat_map(|x| [*x, *x]).collect(),
        };
        table.chunks(pairs).flat_map(row).collect()
    }

    /// The positions as they lie in memory.
    fn draw_positions(&self) -> Option<Vec<i64>> {
        let Situation { steps, stray, positions, .. } = self.situation;
        // A row in the lower word.
        let high = if positions.is_some_and(|p| p.dtype == DType::I64) { 1 << 32 } else { 0 };
        let rows = self.tables().rows as i64;
        let mut random = Random::new(5);
        let one = |at: usize| match at % 4 {
            1 if stray => [-1, rows, i64::from(i32::MIN), rows - 1 + high][at / 4 % 4],
            _ => (random.bits() % rows as u64) as i64,
        };
        positions.map(|positions| (0..positions.batch * steps).map(one).collect())
    }

    fn heads(&self, heads: usize, [cos, sin]: &[Vec<f64>; 2], positions: Option<&Vec<i64>>) -> Heads {
        let Situation { batch, steps, head_dim, rotary_dim, pairing, input, .. } = self.situation;
        let (layout, pairs, tables) = (self.layout(heads), rotary_dim / 2, self.tables());
        let len = layout.shape.iter().product();
        let values = input.values(len, (len + heads) as u64);
        let x: Vec<f64> = values.into_iter().map(|x| storage::round(self.dtype, x)).collect();
        let mut expected = vec![Expected::exactly(0.0); len];
        for (batch, step) in (0..batch).flat_map(|batch| (0..steps).map(move |step| (batch, step))) {
            let of = |count: usize| if count > 1 { batch } else { 0 };
            let position = match (positions, self.situation.positions) {
                (Some(all), Some(positions)) => all[of(positions.batch) * steps + step],
                _ => step as i64,
            };
            let row = usize::try_from(position).ok().filter(|row| *row < tables.rows);
            let at = |table: &Vec<f64>| match row {
                Some(row) => table[(of(tables.batch) * tables.rows + row) * pairs..][..pairs].to_vec(),
                None => vec![f64::NAN; pairs],
            };
            let (cos, sin) = (at(cos), at(sin));
            for head in 0..heads {
                let [b, s, h, _] = layout.strides.map(|stride| stride as usize);
                let first = batch * b + step * s + head * h;
                let x = &x[first..][..head_dim];
                let y = match self.direction {
                    Direction::Forward => reference::forward(x, &cos, &sin, pairing),
                    Direction::Backward => reference::backward(x, &cos, &sin, pairing),
                };
                let scales = reference::scale(x, &cos, &sin, pairing);
                for (i, (value, scale)) in y.into_iter().zip(scales).enumerate() {
                    let underflow = f64::from(f32::MIN_POSITIVE);
                    expected[first + i] = Expected { value, scale, underflow };
                }
            }
        }
        Heads { layout, x, expected }
    }
}

impl Subject for RotarySubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Situation { heads, positions, lead, in_place, .. } = self.situation;
        let (desc, tables, drawn) = (self.desc(), self.draw_tables(), self.draw_positions());
        let table = |name, values| bench.input(name, self.tables().dtype, &self.stored(values), lead);
        let (cos, sin) = (table("cos", &tables[0])?, table("sin", &tables[1])?);
        let drawn_values = drawn.as_ref().map(|all| all.iter().map(|p| *p as f64).collect::<Vec<f64>>());
        let dtype = positions.map_or(DType::I64, |positions| positions.dtype);
        let placed = bench.optional_input("positions", dtype, drawn_values.as_ref(), 0)?;
        let q = self.heads(heads[0], &tables, drawn.as_ref());
        let k = (heads[1] > 0).then(|| self.heads(heads[1], &tables, drawn.as_ref()));
        let input = |name, of: &Heads| bench.input(name, self.dtype, &of.x, lead);
        let output = |name, of: &Heads| match in_place {
            true => bench.input(name, self.dtype, &of.x, lead),
            false => bench.output(name, self.dtype, of.x.len(), lead),
        };
        let (x_q, mut y_q) = (input("q", &q)?, output("q_rotated", &q)?);
        let x_k = k.as_ref().map(|k| input("k", k)).transpose()?;
        let mut y_k = k.as_ref().map(|k| output("k_rotated", k)).transpose()?;
        let target = bench.target();
        bench.launch(|stream| {
            let angles = RotaryAngles { cos: cos.view()?, sin: sin.view()?, positions: view(&placed)? };
            let given = |x| if in_place { None } else { Some(x) };
            let of_q = given(x_q.laid_out(&q.layout)?);
            let of_k = match (&x_k, &k) {
                (Some(x), Some(k)) => given(x.laid_out(&k.layout)?),
                _ => None,
            };
            let to_q = y_q.laid_out_mut(&q.layout)?;
            let to_k = match (&mut y_k, &k) {
                (Some(y), Some(k)) => Some(y.laid_out_mut(&k.layout)?),
                _ => None,
            };
            match self.direction {
                Direction::Forward => {
                    let args = RotaryArgs { angles, q: of_q, k: of_k, q_rotated: to_q, k_rotated: to_k };
                    desc.plan(target)?.launch(stream, args)?;
                }
                Direction::Backward => {
                    let args =
                        RotaryBackwardArgs { angles, dq_rotated: of_q, dk_rotated: of_k, dq: to_q, dk: to_k };
                    RotaryBackwardDesc { forward: desc }.plan(target)?.launch(stream, args)?;
                }
            }
            Ok(())
        })?;
        let result = bench.compare(&y_q, &q.expected)?;
        match (&y_k, &k) {
            (Some(y), Some(k)) => Ok(result.merge(bench.compare(y, &k.expected)?)),
            _ => Ok(result),
        }
    }
}
