//! Cases of rows by their indices.

use std::sync::Arc;

use warpwright_ops::gather_scatter::{
    GatherRowsArgs, GatherRowsDesc, IndexedRows, RowDotsArgs, RowDotsDesc, ScatterRowsArgs, ScatterRowsDesc,
    reference,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget::{self, EXACT};
use crate::case::{Bench, Case, CaseError, Placed, Scope, Subject, say, view, view_mut};
use crate::embedding::row_indices;
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

#[derive(Clone, Copy, Debug)]
struct Situation {
    rows: usize,
    dim: usize,
    count: usize,
    index: DType,
    input: Input,
    factors: Factors,
    base: bool,
    /// Whether some indices are no rows.
    stray: bool,
    /// Whether half of the indices are of one row.
    frequent: bool,
    /// Elements past an aligned address.
    lead: usize,
}

/// The type of factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Factors {
    None,
    Own,
    Wide,
}

impl Factors {
    fn dtype(self, dtype: DType) -> Option<DType> {
        match self {
            Self::None => None,
            Self::Own => Some(dtype),
            Self::Wide => Some(dtype.accumulator()),
        }
    }
}

#[derive(Debug)]
struct RowsSubject {
    op: &'static str,
    dtype: DType,
    situation: Situation,
}

const OPS: [&str; 3] = ["gather_rows", "scatter_rows", "row_dots"];

const PLAIN: Situation = Situation {
    rows: 50,
    dim: 24,
    count: 70,
    index: DType::I64,
    input: Input::Normal,
    factors: Factors::None,
    base: false,
    stray: false,
    frequent: false,
    lead: 0,
};

fn situations(scope: Scope) -> Vec<Situation> {
    let mut all = vec![
        PLAIN,
        Situation { factors: Factors::Wide, base: true, ..PLAIN },
        Situation { index: DType::I32, stray: true, factors: Factors::Own, ..PLAIN },
        Situation { frequent: true, count: 300, base: true, ..PLAIN },
        Situation { frequent: true, count: 333, factors: Factors::Wide, ..PLAIN },
        Situation {
            dim: 7,
            stray: true,
            frequent: true,
            count: 150,
            factors: Factors::Own,
            base: true,
            ..PLAIN
        },
        Situation { lead: 1, dim: 16, factors: Factors::Wide, ..PLAIN },
        Situation { rows: 600, dim: 4, count: 2500, factors: Factors::Wide, ..PLAIN },
        Situation { rows: 1, dim: 1030, count: 40, ..PLAIN },
        Situation { rows: 3, dim: 1032, count: 9, factors: Factors::Own, ..PLAIN },
        Situation { count: 0, base: true, ..PLAIN },
        Situation { dim: 0, factors: Factors::Own, ..PLAIN },
    ];
    if scope == Scope::Full {
        for dim in [1, 2, 3, 8, 31, 32, 64, 100, 256, 264, 1024, 1030] {
            for (factors, base) in
                [(Factors::None, true), (Factors::Own, false), (Factors::Wide, true), (Factors::Wide, false)]
            {
                all.push(Situation { dim, count: 133, stray: true, factors, base, ..PLAIN });
                let index = DType::I32;
                all.push(Situation { dim, count: 400, frequent: true, index, factors, base, ..PLAIN });
                all.push(Situation { dim, rows: 3, count: 200, lead: 1, factors, base, ..PLAIN });
            }
        }
    }
    all
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for op in OPS {
        for dtype in DType::FLOATS {
            for situation in situations(scope) {
                let Situation { rows, dim, count, index, input, factors, base, stray, frequent, lead } =
                    situation;
                let mut words = format!("{}, {index} indices", input.name());
                say(
                    &mut words,
                    [
                        (factors == Factors::Own, ", factors"),
                        (factors == Factors::Wide, ", wide factors"),
                        (base, ", a base"),
                        (stray, ", stray indices"),
                        (frequent, ", a frequent row"),
                        (lead > 0, ", misaligned"),
                    ],
                );
                let y_dtype = if op == "row_dots" { factors.dtype(dtype).unwrap_or(dtype) } else { dtype };
                let budget = match (op, factors) {
                    ("gather_rows", Factors::None) => EXACT,
                    ("gather_rows", _) => budget::elementwise(dtype),
                    // A product of each term, and their sum.
                    _ => budget::normalised(y_dtype),
                };
                out.push(Case {
                    op,
                    direction: Direction::Forward,
                    dtype,
                    shape: vec![rows, dim, count],
                    input: words,
                    budget,
                    subject: Arc::new(RowsSubject { op, dtype, situation }),
                });
            }
        }
    }
    out
}

impl RowsSubject {
    fn of(&self) -> IndexedRows {
        let Situation { rows, dim, count, index, .. } = self.situation;
        IndexedRows { dtype: self.dtype, index, rows, dim, count }
    }

    fn indices(&self) -> Vec<i64> {
        let Situation { rows, count, index, stray, frequent, .. } = self.situation;
        row_indices([rows, count], index, stray, frequent)
    }

    fn draw(&self, dtype: DType, len: usize, seed: u64) -> Vec<f64> {
        let values = self.situation.input.values(len, seed);
        values.into_iter().map(|x| storage::round(dtype, x)).collect()
    }

    /// Factors, with their tensor.
    fn factors(&self, bench: &Bench<'_>) -> Result<Option<(Vec<f64>, Placed)>, CaseError> {
        let Situation { factors, count, lead, .. } = self.situation;
        let Some(dtype) = factors.dtype(self.dtype) else { return Ok(None) };
        let values = self.draw(dtype, count, 11);
        let placed = bench.input("factors", dtype, &values, lead)?;
        Ok(Some((values, placed)))
    }

    fn place_index(&self, bench: &Bench<'_>, index: &[i64]) -> Result<Placed, CaseError> {
        let values: Vec<f64> = index.iter().map(|i| *i as f64).collect();
        bench.input("index", self.situation.index, &values, self.situation.lead)
    }

    fn gather(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Situation { rows, dim, count, lead, .. } = self.situation;
        let (index, table) = (self.indices(), self.draw(self.dtype, rows * dim, 1));
        let x = bench.input("x", self.dtype, &table, lead)?;
        let (placed, factors) = (self.place_index(bench, &index)?, self.factors(bench)?);
        let mut y = bench.output("y", self.dtype, count * dim, lead)?;
        let desc = GatherRowsDesc { of: self.of(), factors: self.situation.factors.dtype(self.dtype) };
        let plan = desc.plan(bench.target())?;
        bench.launch(|stream| {
            let factors = factors.as_ref().map(|(_, placed)| placed.view()).transpose()?;
            let args = GatherRowsArgs { x: x.view()?, index: placed.view()?, factors, y: y.view_mut()? };
            Ok(plan.launch(stream, args)?)
        })?;
        let given = factors.as_ref().map(|(values, _)| &values[..]);
        let expected = reference::gather(&table, &index, given, [rows, dim]);
        let exact = given.is_none();
        let one = |value: f64| match exact {
            true => Expected::exactly(value),
            false => Expected { value, scale: value.abs(), underflow: f64::from(f32::MIN_POSITIVE) },
        };
        bench.compare(&y, &expected.into_iter().map(one).collect::<Vec<_>>())
    }

    fn scatter(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Situation { rows, dim, count, base, lead, .. } = self.situation;
        let (index, given) = (self.indices(), self.draw(self.dtype, count * dim, 2));
        let x = bench.input("x", self.dtype, &given, lead)?;
        let (placed, factors) = (self.place_index(bench, &index)?, self.factors(bench)?);
        let under = self.draw(self.dtype, rows * dim, 3);
        let base_of = base.then(|| bench.input("base", self.dtype, &under, lead)).transpose()?;
        let mut y = bench.output("y", self.dtype, rows * dim, lead)?;
        let desc = ScatterRowsDesc { of: self.of(), factors: self.situation.factors.dtype(self.dtype), base };
        let plan = desc.plan(bench.target())?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = ScatterRowsArgs {
                x: x.view()?,
                index: placed.view()?,
                factors: factors.as_ref().map(|(_, placed)| placed.view()).transpose()?,
                base: view(&base_of)?,
                y: y.view_mut()?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let factors = factors.as_ref().map(|(values, _)| &values[..]);
        let sums = reference::scatter(&given, &index, factors, base.then_some(&under[..]), [rows, dim]);
        let expected = sums.into_iter().map(Expected::from);
        bench.compare(&y, &expected.collect::<Vec<_>>())
    }

    fn dots(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Situation { rows, dim, count, factors, lead, .. } = self.situation;
        let y_dtype = factors.dtype(self.dtype).unwrap_or(self.dtype);
        let index = self.indices();
        let (left, right) = (self.draw(self.dtype, count * dim, 4), self.draw(self.dtype, rows * dim, 5));
        let a = bench.input("a", self.dtype, &left, lead)?;
        let b = bench.input("b", self.dtype, &right, lead)?;
        let placed = self.place_index(bench, &index)?;
        let mut y = bench.output("y", y_dtype, count, lead)?;
        let plan = RowDotsDesc { of: self.of(), y_dtype }.plan(bench.target())?;
        bench.launch(|stream| {
            let args = RowDotsArgs { a: a.view()?, b: b.view()?, index: placed.view()?, y: y.view_mut()? };
            Ok(plan.launch(stream, args)?)
        })?;
        let products = reference::dots(&left, &right, &index, [rows, dim]);
        let expected = products.into_iter().map(Expected::from);
        bench.compare(&y, &expected.collect::<Vec<_>>())
    }
}

impl Subject for RowsSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match self.op {
            "gather_rows" => self.gather(bench),
            "scatter_rows" => self.scatter(bench),
            _ => self.dots(bench),
        }
    }
}
