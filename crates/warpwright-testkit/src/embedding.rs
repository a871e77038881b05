//! Cases of embeddings.

use std::sync::Arc;

use warpwright_ops::embedding::{
    EmbeddingArgs, EmbeddingBackwardArgs, EmbeddingBackwardDesc, EmbeddingDesc, reference,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Placed, Scope, Subject, both_ways, say, view_mut};
use crate::inputs::{Input, Random};
use crate::measure::{Comparison, Expected};
use crate::storage;

#[derive(Clone, Copy, Debug)]
struct Situation {
    num_embeddings: usize,
    dim: usize,
    count: usize,
    index: DType,
    input: Input,
    padding_idx: Option<usize>,
    scale_grad_by_freq: bool,
    /// Whether some indices are no rows.
    stray: bool,
    /// Whether half of the indices are of one row.
    frequent: bool,
    /// Elements past an aligned address.
    lead: usize,
}

#[derive(Debug)]
struct EmbeddingSubject {
    direction: Direction,
    dtype: DType,
    situation: Situation,
}

const PLAIN: Situation = Situation {
    num_embeddings: 50,
    dim: 24,
    count: 70,
    index: DType::I64,
    input: Input::Normal,
    padding_idx: None,
    scale_grad_by_freq: false,
    stray: false,
    frequent: false,
    lead: 0,
};

fn situations(scope: Scope) -> Vec<Situation> {
    let mut all = vec![
        PLAIN,
        Situation { index: DType::I32, stray: true, padding_idx: Some(3), ..PLAIN },
        Situation { frequent: true, count: 300, scale_grad_by_freq: true, ..PLAIN },
        Situation { dim: 7, stray: true, frequent: true, count: 150, ..PLAIN },
        Situation { lead: 1, dim: 16, ..PLAIN },
        Situation { num_embeddings: 600, dim: 4, count: 2500, ..PLAIN },
        Situation { num_embeddings: 1, dim: 520, count: 40, ..PLAIN },
        Situation { count: 0, ..PLAIN },
        Situation { dim: 0, ..PLAIN },
        Situation { input: Input::Hostile, count: 40, dim: 33, num_embeddings: 2000, ..PLAIN },
    ];
    if scope == Scope::Full {
        all.push(Situation { num_embeddings: 1 << 18, dim: 2, count: 30, index: DType::I32, ..PLAIN });
        for dim in [1, 2, 3, 8, 31, 32, 64, 100, 256, 264, 1024, 1030] {
            all.push(Situation { dim, count: 133, stray: true, ..PLAIN });
            all.push(Situation { dim, count: 400, frequent: true, index: DType::I32, ..PLAIN });
            all.push(Situation {
                dim,
                num_embeddings: 3,
                count: 200,
                lead: 1,
                padding_idx: Some(0),
                ..PLAIN
            });
        }
        all.push(Situation { num_embeddings: 1000, dim: 4, count: 9000, frequent: true, ..PLAIN });
        all.push(Situation { num_embeddings: 5, dim: 2, count: 5000, scale_grad_by_freq: true, ..PLAIN });
    }
    all
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for (direction, dtype, situation) in both_ways(&situations(scope)) {
        let Situation { num_embeddings, dim, count, index, input, padding_idx, .. } = situation;
        let Situation { scale_grad_by_freq, stray, frequent, lead, .. } = situation;
        let mut words = format!("{}, {index} indices", input.name());
        say(
            &mut words,
            [
                (padding_idx.is_some(), ", a padding row"),
                (scale_grad_by_freq, ", means"),
                (stray, ", stray indices"),
                (frequent, ", a frequent row"),
                (lead > 0, ", misaligned"),
            ],
        );
        // Rows are copied; a sum in its own precision has as many roundings as a normalisation, a row of 16 bits one.
        let budget = match direction {
            Direction::Forward => budget::elementwise(dtype),
            Direction::Backward => budget::normalised(dtype),
        };
        out.push(Case {
            op: "embedding",
            direction,
            dtype,
            shape: vec![num_embeddings, dim, count],
            input: words,
            budget,
            subject: Arc::new(EmbeddingSubject { direction, dtype, situation }),
        });
    }
    out
}

/// `count` indices of `rows` rows in a type. stray: every fifth is no row; frequent: about half of the others are one row.
pub(crate) fn row_indices([rows, count]: [usize; 2], index: DType, stray: bool, frequent: bool) -> Vec<i64> {
    // A row in the lower word.
    let high = if index == DType::I64 { 1 << 32 } else { i64::from(i32::MIN) };
    let mut random = Random::new(count as u64);
    let one = |i: usize| {
        let drawn = random.bits();
        match i % 5 {
            1 if stray => [-1, rows as i64, high, 2 * rows as i64][i / 5 % 4],
            _ if frequent && drawn & (1 << 40) > 0 => rows as i64 / 2,
            _ => (drawn % rows as u64) as i64,
        }
    };
    (0..count).map(one).collect()
}

impl EmbeddingSubject {
    fn desc(&self) -> EmbeddingDesc {
        let Situation { num_embeddings, dim, count, index, .. } = self.situation;
        EmbeddingDesc { dtype: self.dtype, index, num_embeddings, dim, count }
    }

    fn indices(&self) -> Vec<i64> {
        let Situation { num_embeddings, count, index, stray, frequent, .. } = self.situation;
        row_indices([num_embeddings, count], index, stray, frequent)
    }

    fn draw(&self, len: usize) -> Vec<f64> {
        let values = self.situation.input.values(len, len as u64);
        values.into_iter().map(|x| storage::round(self.dtype, x)).collect()
    }

    fn place_indices(&self, bench: &Bench<'_>, indices: &[i64]) -> Result<Placed, CaseError> {
        let values: Vec<f64> = indices.iter().map(|i| *i as f64).collect();
        bench.input("indices", self.situation.index, &values, self.situation.lead)
    }

    fn forward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Situation { num_embeddings, dim, count, lead, .. } = self.situation;
        let (indices, table) = (self.indices(), self.draw(num_embeddings * dim));
        let weight = bench.input("weight", self.dtype, &table, lead)?;
        let placed = self.place_indices(bench, &indices)?;
        let mut y = bench.output("y", self.dtype, count * dim, lead)?;
        let plan = self.desc().plan(bench.target())?;
        bench.launch(|stream| {
            let args = EmbeddingArgs { weight: weight.view()?, indices: placed.view()?, y: y.view_mut()? };
            Ok(plan.launch(stream, args)?)
        })?;
        let expected = reference::forward(&table, &indices, [num_embeddings, dim]);
        // Rows are copied, so nothing is rounded.
        let exact = |value| Expected { value, scale: f64::from(f32::MIN_POSITIVE), underflow: 0.0 };
        bench.compare(&y, &expected.into_iter().map(exact).collect::<Vec<_>>())
    }

    fn backward(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Situation { num_embeddings, dim, count, padding_idx, scale_grad_by_freq, lead, .. } =
            self.situation;
        let (indices, rows) = (self.indices(), self.draw(count * dim));
        let desc = EmbeddingBackwardDesc { forward: self.desc(), padding_idx, scale_grad_by_freq };
        let plan = desc.plan(bench.target())?;
        let dy = bench.input("dy", self.dtype, &rows, lead)?;
        let placed = self.place_indices(bench, &indices)?;
        let mut dweight = bench.output("dweight", self.dtype, num_embeddings * dim, lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = EmbeddingBackwardArgs {
                dy: dy.view()?,
                indices: placed.view()?,
                dweight: dweight.view_mut()?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let sums =
            reference::backward(&rows, &indices, [num_embeddings, dim], padding_idx, scale_grad_by_freq);
        let expected = sums.into_iter().map(Expected::from);
        bench.compare(&dweight, &expected.collect::<Vec<_>>())
    }
}

impl Subject for EmbeddingSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        match self.direction {
            Direction::Forward => self.forward(bench),
            Direction::Backward => self.backward(bench),
        }
    }
}
