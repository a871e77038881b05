//! Cases of conversions between types.

use std::sync::Arc;

use warpwright_ops::cast::{CastArgs, CastDesc, reference};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject};
use crate::inputs::{Input, awkward_lengths};
use crate::measure::{Comparison, Expected};
use crate::storage;

#[derive(Debug)]
struct CastSubject {
    desc: CastDesc,
    input: Input,
    /// Elements past an aligned address.
    lead: usize,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for from in DType::FLOATS {
        for to in DType::FLOATS {
            for (input, len, lead) in situations(scope) {
                out.push(Case {
                    op: "cast",
                    direction: Direction::Forward,
                    dtype: from,
                    shape: vec![len],
                    input: format!("to {to}, {}{}", input.name(), if lead > 0 { ", misaligned" } else { "" }),
                    budget: budget::EXACT,
                    subject: Arc::new(CastSubject { desc: CastDesc { from, to, len }, input, lead }),
                });
            }
        }
    }
    out
}

fn situations(scope: Scope) -> Vec<(Input, usize, usize)> {
    let mut all = vec![
        (Input::Normal, 0, 0),
        (Input::Normal, 4099, 0),
        (Input::Magnitudes, 1021, 0),
        (Input::Hostile, 515, 0),
        (Input::Hostile, 261, 1),
    ];
    if scope == Scope::Full {
        all.extend(Input::ALL.map(|input| (input, 2048, 0)));
        all.extend((1..=17).map(|n| (Input::Normal, n, 1)));
        all.extend(awkward_lengths().into_iter().map(|n| (Input::Normal, n, 0)));
    }
    all
}

impl Subject for CastSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let CastDesc { from, to, len } = self.desc;
        let plan = self.desc.plan(bench.target())?;
        let xs: Vec<f64> =
            self.input.values(len, len as u64).into_iter().map(|x| storage::round(from, x)).collect();
        let x = bench.input("x", from, &xs, self.lead)?;
        let mut y = bench.output("y", to, len, self.lead)?;
        bench.launch(|stream| Ok(plan.launch(stream, CastArgs { x: x.view()?, y: y.view_mut()? })?))?;
        let expected: Vec<_> = xs.iter().map(|&x| Expected::exactly(reference::cast(to, x))).collect();
        bench.compare(&y, &expected)
    }
}
