//! Cases of copies in another order.

use std::sync::Arc;

use warpwright_ops::copy::{CatArgs, CatDesc, PermuteArgs, PermuteDesc, SplitArgs, SplitDesc, reference};
use warpwright_ops::plan::View;
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Placed, Scope, Subject};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

#[derive(Debug)]
struct Permutation {
    dtype: DType,
    shape: Vec<usize>,
    axes: Vec<usize>,
    input: Input,
    /// Elements past an aligned address.
    lead: usize,
}

#[derive(Debug)]
struct Joining {
    desc: CatDesc,
    split: bool,
    input: Input,
    lead: usize,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in DType::FLOATS {
        for (shape, axes, input, lead) in permutations(scope) {
            let words =
                format!("axes {axes:?}, {}{}", input.name(), if lead > 0 { ", misaligned" } else { "" });
            let subject = Permutation { dtype, shape: shape.clone(), axes, input, lead };
            all.push(case("permute", dtype, shape, words, Arc::new(subject)));
        }
        for (outer, lens, input, lead) in joinings(scope) {
            for (op, split) in [("cat", false), ("split", true)] {
                let words =
                    format!("parts {lens:?}, {}{}", input.name(), if lead > 0 { ", misaligned" } else { "" });
                let desc = CatDesc { dtype, outer, lens: lens.clone() };
                let shape = vec![outer, lens.iter().sum()];
                all.push(case(op, dtype, shape, words, Arc::new(Joining { desc, split, input, lead })));
            }
        }
    }
    all
}

fn case(op: &'static str, dtype: DType, shape: Vec<usize>, input: String, subject: Arc<dyn Subject>) -> Case {
    Case { op, direction: Direction::Forward, dtype, shape, input, budget: budget::EXACT, subject }
}

type Permuted = (Vec<usize>, Vec<usize>, Input, usize);

fn permutations(scope: Scope) -> Vec<Permuted> {
    let of = |shape: &[usize], axes: &[usize], input, lead| (shape.to_vec(), axes.to_vec(), input, lead);
    let mut all = vec![
        // Squares of tiles, with and without ends, in pairs and alone.
        of(&[130, 200], &[1, 0], Input::Hostile, 0),
        of(&[130, 200], &[1, 0], Input::Normal, 1),
        of(&[67, 129], &[1, 0], Input::Normal, 0),
        of(&[3, 66, 70], &[2, 0, 1], Input::Normal, 0),
        // Few of one dimension.
        of(&[2, 1000, 3], &[0, 2, 1], Input::Normal, 0),
        of(&[2, 5, 700], &[0, 2, 1], Input::Normal, 0),
        // Rows that stay whole, and nothing to do.
        of(&[3, 4, 5, 16], &[2, 0, 1, 3], Input::Normal, 0),
        of(&[3, 4, 5, 6], &[2, 1, 0, 3], Input::Normal, 1),
        of(&[4, 9, 2], &[0, 1, 2], Input::Normal, 0),
        of(&[2, 3, 4, 5, 6], &[4, 3, 2, 1, 0], Input::Normal, 0),
        of(&[2, 0, 3], &[2, 1, 0], Input::Normal, 0),
        of(&[1, 1], &[1, 0], Input::Normal, 0),
        of(&[], &[], Input::Normal, 0),
    ];
    if scope == Scope::Full {
        all.extend(Input::ALL.map(|input| of(&[66, 130], &[1, 0], input, 0)));
        for n in [1, 2, 7, 8, 9, 31, 63, 64, 65, 511, 513] {
            for m in [1, 2, 8, 9, 62, 65, 130] {
                all.push(of(&[2, n, m], &[0, 2, 1], Input::Normal, usize::from(n % 2 == 1)));
            }
        }
        let orders = [[0, 2, 1, 3], [0, 3, 1, 2], [0, 2, 3, 1], [3, 0, 1, 2], [3, 1, 2, 0], [1, 0, 3, 2]];
        all.extend(orders.map(|axes| of(&[3, 6, 10, 8], &axes, Input::Normal, 0)));
        all.extend(orders.map(|axes| of(&[2, 3, 65, 40], &axes, Input::Normal, 0)));
    }
    all
}

fn joinings(scope: Scope) -> Vec<(usize, Vec<usize>, Input, usize)> {
    let mut all = vec![
        (1, vec![4099], Input::Hostile, 0),
        (3, vec![64, 128, 8], Input::Normal, 0),
        (3, vec![64, 128, 8], Input::Normal, 1),
        (5, vec![7, 0, 12, 1], Input::Normal, 0),
        (0, vec![3, 4], Input::Normal, 0),
    ];
    if scope == Scope::Full {
        all.extend((1..=16).map(|n| (n, (1..=n).map(|len| len * 4).collect(), Input::Normal, 0)));
        all.extend((1..=16).map(|n| (17 - n, vec![n; n], Input::Normal, n % 3)));
    }
    all
}

fn values(dtype: DType, input: Input, len: usize, seed: u64) -> Vec<f64> {
    input.values(len, seed).into_iter().map(|x| storage::round(dtype, x)).collect()
}

fn exactly(values: impl IntoIterator<Item = f64>) -> Vec<Expected> {
    values.into_iter().map(Expected::exactly).collect()
}

impl Subject for Permutation {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Self { dtype, shape, axes, input, lead } = self;
        let len = shape.iter().product();
        let xs = values(*dtype, *input, len, len as u64);
        let x_view = View::contiguous(shape).expect("at most 8 dimensions");
        let desc = PermuteDesc { dtype: *dtype, x: x_view, axes: axes.clone() };
        let plan = desc.plan(bench.target())?;
        let to: Vec<_> = axes.iter().map(|axis| shape[*axis]).collect();
        let x = bench.input("x", *dtype, &xs, *lead)?;
        let mut y = bench.output("y", *dtype, len, *lead)?;
        bench.launch(|stream| {
            let args = PermuteArgs { x: x.view()?.reshape(shape)?, y: y.view_mut()?.reshape(&to)? };
            Ok(plan.launch(stream, args)?)
        })?;
        bench.compare(&y, &exactly(reference::permute(&xs, shape, axes)))
    }
}

impl Subject for Joining {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Self { desc, split, input, lead } = self;
        let CatDesc { dtype, outer, lens } = desc;
        let parts: Vec<_> =
            (0..).zip(lens).map(|(seed, len)| values(*dtype, *input, outer * len, seed)).collect();
        let slices: Vec<_> = parts.iter().map(Vec::as_slice).collect();
        let whole = if *outer == 0 { Vec::new() } else { reference::cat(&slices, *outer) };
        let names = ["x0", "x1", "x2", "x3"].into_iter().chain(std::iter::repeat("x"));
        if !split {
            let plan = desc.plan(bench.target())?;
            let inputs: Vec<_> = names
                .zip(&parts)
                .map(|(name, part)| bench.input(name, *dtype, part, *lead))
                .collect::<Result<_, _>>()?;
            let mut y = bench.output("y", *dtype, whole.len(), *lead)?;
            bench.launch(|stream| {
                let inputs = inputs.iter().map(Placed::view).collect::<Result<_, _>>()?;
                Ok(plan.launch(stream, CatArgs { inputs, y: y.view_mut()? })?)
            })?;
            return bench.compare(&y, &exactly(whole));
        }
        let plan = SplitDesc { cat: desc.clone() }.plan(bench.target())?;
        let x = bench.input("x", *dtype, &whole, *lead)?;
        let mut outputs: Vec<_> = parts
            .iter()
            .map(|part| bench.output("y", *dtype, part.len(), *lead))
            .collect::<Result<_, _>>()?;
        bench.launch(|stream| {
            let outputs = outputs.iter_mut().map(Placed::view_mut).collect::<Result<_, _>>()?;
            Ok(plan.launch(stream, SplitArgs { x: x.view()?, outputs })?)
        })?;
        let compared = outputs.iter().zip(parts).map(|(output, part)| bench.compare(output, &exactly(part)));
        let all: Vec<Comparison> = compared.collect::<Result<_, _>>()?;
        Ok(all.into_iter().reduce(Comparison::merge).expect("at least one part"))
    }
}
