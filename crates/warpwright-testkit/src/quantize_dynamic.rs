//! Cases of blockwise quantization by the dynamic maps. Codes, maxima and elements must equal the reference exactly: every rounding is
//! defined.

use std::sync::Arc;

use warpwright_ops::dynamic_map::{Map, midpoints};
use warpwright_ops::quantize_dynamic::reference::{self, Quantized};
use warpwright_ops::quantize_dynamic::{
    BLOCK_SIZES, DTYPES, DequantizeDynamicArgs, DequantizeDynamicDesc, Problem, QuantizeDynamicArgs,
    QuantizeDynamicDesc,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for map in Map::ALL {
        let [quantize, dequantize] = match map {
            Map::Signed => ["quantize_dynamic", "dequantize_dynamic"],
            Map::Unsigned => ["quantize_udynamic", "dequantize_udynamic"],
        };
        for dtype in DTYPES {
            for (block_size, input, len, lead) in situations(scope) {
                let problem = Problem { map, dtype, len, block_size };
                let blocks = Blocks { problem, input, lead };
                let misaligned = if lead > 0 { ", misaligned" } else { "" };
                let name = input.map_or("thresholds", |input| input.name());
                let case = |op, subject: Arc<dyn Subject>| Case {
                    op,
                    direction: Direction::Forward,
                    dtype,
                    shape: vec![len],
                    input: format!("{name}, blocks of {block_size}{misaligned}"),
                    budget: budget::EXACT,
                    subject,
                };
                out.push(case(quantize, Arc::new(Quantize(blocks))));
                out.push(case(dequantize, Arc::new(Dequantize(blocks))));
            }
        }
    }
    out
}

/// Elements of a block, inputs (or numbers around all thresholds), number of elements, and elements past an aligned address.
fn situations(scope: Scope) -> Vec<(usize, Option<Input>, usize, usize)> {
    let mut all = Vec::new();
    for block_size in BLOCK_SIZES {
        all.extend([(block_size, None, 4096, 0), (block_size, None, 2047, 0)]);
        let lens = [
            (Input::Normal, 5000, 0),
            (Input::Hostile, 2056, 0),
            (Input::Hostile, 333, 0),
            (Input::Magnitudes, 9000, 0),
            (Input::Zero, 520, 0),
            (Input::Uniform, 4104, 1),
            (Input::Normal, 0, 0),
            (Input::Normal, 1, 0),
        ];
        all.extend(lens.map(|(input, len, lead)| (block_size, Some(input), len, lead)));
        if scope == Scope::Full {
            all.extend(Input::ALL.map(|input| (block_size, Some(input), 10_240, 0)));
            all.extend((1..=17).map(|len| (block_size, Some(Input::Normal), 256 * len - len % 9, len % 2)));
        }
    }
    all
}

/// A tensor in blocks.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    problem: Problem,
    /// `None` for the thresholds of the map and their neighbours, after a largest element of 1.
    input: Option<Input>,
    lead: usize,
}

impl Blocks {
    /// Values as the tensor holds them.
    fn values(&self) -> Vec<f64> {
        let Problem { map, dtype, len, .. } = self.problem;
        let values = match self.input {
            Some(input) => input.values(len, len as u64),
            None => {
                let bounds = midpoints(&map.values());
                let near = bounds.iter().flat_map(|b| [b.next_down(), *b, b.next_up()]);
                let near: Vec<f64> = near.map(f64::from).collect();
                // A block begins with its maximum.
                (0..len).map(|i| if i % 256 == 0 { 1.0 } else { near[(i - i / 256) % near.len()] }).collect()
            }
        };
        values.into_iter().map(|v| storage::round(dtype, v)).collect()
    }

    fn reference(&self, x: &[f64]) -> Quantized {
        let x: Vec<f32> = x.iter().map(|x| *x as f32).collect();
        reference::quantize(self.problem.map, &x, self.problem.block_size)
    }
}

#[derive(Debug)]
struct Quantize(Blocks);

impl Subject for Quantize {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let blocks @ Blocks { problem, lead, .. } = self.0;
        let plan = QuantizeDynamicDesc { problem }.plan(bench.target())?;
        let xs = blocks.values();
        let want = blocks.reference(&xs);
        let x = bench.input("x", problem.dtype, &xs, lead)?;
        let mut codes = bench.output("codes", DType::U8, problem.len, lead)?;
        let mut absmax = bench.output("absmax", DType::F32, problem.blocks(), lead)?;
        bench.launch(|stream| {
            let args =
                QuantizeDynamicArgs { x: x.view()?, codes: codes.view_mut()?, absmax: absmax.view_mut()? };
            Ok(plan.launch(stream, args)?)
        })?;
        let expected: Vec<_> = want.codes.iter().map(|q| Expected::exactly(f64::from(*q))).collect();
        let found = bench.compare(&codes, &expected)?;
        let expected: Vec<_> = want.absmax.iter().map(|s| Expected::exactly(f64::from(*s))).collect();
        Ok(found.merge(bench.compare(&absmax, &expected)?))
    }
}

#[derive(Debug)]
struct Dequantize(Blocks);

impl Subject for Dequantize {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let blocks @ Blocks { problem, lead, .. } = self.0;
        let Problem { map, dtype, len, block_size } = problem;
        let plan = DequantizeDynamicDesc { problem }.plan(bench.target())?;
        let reference = blocks.reference(&blocks.values());
        let codes: Vec<f64> = reference.codes.iter().map(|code| f64::from(*code)).collect();
        let absmax: Vec<f64> = reference.absmax.iter().map(|s| f64::from(*s)).collect();
        let codes = bench.input("codes", DType::U8, &codes, lead)?;
        let absmax = bench.input("absmax", DType::F32, &absmax, lead)?;
        let mut y = bench.output("y", dtype, len, lead)?;
        bench.launch(|stream| {
            let args =
                DequantizeDynamicArgs { codes: codes.view()?, absmax: absmax.view()?, y: y.view_mut()? };
            Ok(plan.launch(stream, args)?)
        })?;
        let values = reference::dequantize(map, &reference, block_size);
        let value = |v: f32| Expected::exactly(storage::round(dtype, f64::from(v)));
        bench.compare(&y, &values.into_iter().map(value).collect::<Vec<_>>())
    }
}
