//! Cases of 4-bit quantization. Codes and scales must equal the reference exactly: the formats are defined to the bit.

use std::sync::Arc;

use warpwright_ops::quantize::nested::{
    BLOCK, DequantizeNestedArgs, DequantizeNestedDesc, QuantizeNestedArgs, QuantizeNestedDesc, workspace_len,
};
use warpwright_ops::quantize::reference::{self, Nested, Quantized};
use warpwright_ops::quantize::{
    DequantizeArgs, DequantizeDesc, NibbleOrder, QuantizeArgs, QuantizeDesc, Scheme, groups, packed_bytes,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject};
use crate::inputs::{Input, Random};
use crate::measure::{Comparison, Expected, compare};
use crate::storage;

/// A shape: elements, elements of a group, and elements past an aligned address.
type Layout = (usize, usize, usize);

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for scheme in Scheme::ALL {
        for dtype in DType::FLOATS {
            for (i, (input, (len, group_size, lead))) in situations(scope).into_iter().enumerate() {
                let order = NibbleOrder::ALL[i % NibbleOrder::ALL.len()];
                let subject = Packed { scheme, dtype, order, input, len, group_size, lead };
                let name = format!(
                    "{}, groups of {group_size}{}",
                    input.name(),
                    if lead > 0 { ", misaligned" } else { "" }
                );
                let case = |op: String, subject: Arc<dyn Subject>| Case {
                    op: known_name(&op),
                    direction: Direction::Forward,
                    dtype,
                    shape: vec![len],
                    input: name.clone(),
                    budget: budget::EXACT,
                    subject,
                };
                out.push(case(format!("quantize_{}", scheme.name()), Arc::new(Quantize(subject))));
                out.push(case(format!("dequantize_{}", scheme.name()), Arc::new(Dequantize(subject))));
            }
        }
    }
    for len in nested_lengths(scope) {
        let case = |op: &str, subject: Arc<dyn Subject>| Case {
            op: known_name(op),
            direction: Direction::Forward,
            dtype: DType::F32,
            shape: vec![len],
            input: "block maxima".to_owned(),
            budget: budget::EXACT,
            subject,
        };
        out.push(case("quantize_nested", Arc::new(QuantizeNested { len })));
        out.push(case("dequantize_nested", Arc::new(DequantizeNested { len })));
    }
    out
}

/// The catalogue's own copy of a name.
fn known_name(op: &str) -> &'static str {
    warpwright_ops::catalogue().into_iter().find(|e| e.op == op).map_or("unknown", |e| e.op)
}

fn situations(scope: Scope) -> Vec<(Input, Layout)> {
    let mut all = vec![
        (Input::Normal, (4099, 64, 0)),
        (Input::Normal, (8192, 64, 0)),
        (Input::Hostile, (515, 32, 0)),
        (Input::Magnitudes, (1021, 16, 0)),
        (Input::Offset, (700, 128, 0)),
        (Input::Normal, (9001, 4096, 0)),
        (Input::Normal, (333, 7, 0)),
        (Input::Uniform, (262, 1, 0)),
        (Input::Normal, (517, 64, 1)),
        (Input::Normal, (0, 64, 0)),
        (Input::Normal, (1, 64, 0)),
    ];
    if scope == Scope::Full {
        all.extend((1..=67).map(|n| (Input::Normal, (n, 64, 0))));
        for group_size in
            [1, 2, 3, 4, 8, 15, 16, 33, 96, 100, 256, 512, 768, 1000, 1024, 2048, 4096, 1 << 40, 1 << 63]
        {
            all.push((Input::Normal, (10_007, group_size, 0)));
            all.push((Input::Ramp, (4096, group_size, 1)));
            all.push((Input::Hostile, (641, group_size, 0)));
        }
        all.extend(Input::ALL.map(|input| (input, (2050, 64, 0))));
        all.push((Input::Normal, ((1 << 16) + 3, 64, 0)));
    }
    all
}

fn nested_lengths(scope: Scope) -> Vec<usize> {
    match scope {
        Scope::Quick => vec![1, 255, 257, 70_001],
        Scope::Full => vec![1, 2, 31, 33, 255, 256, 257, 511, 513, 2047, 2049, 70_001, 300_000],
    }
}

/// One quantized tensor.
#[derive(Clone, Copy, Debug)]
struct Packed {
    scheme: Scheme,
    dtype: DType,
    order: NibbleOrder,
    input: Input,
    len: usize,
    group_size: usize,
    lead: usize,
}

impl Packed {
    /// Values as the tensor holds them.
    fn values(&self) -> Vec<f64> {
        let values = self.input.values(self.len, self.len as u64 + self.group_size as u64);
        values.into_iter().map(|v| storage::round(self.dtype, v)).collect()
    }

    fn scale_dtype(&self) -> DType {
        self.scheme.scale_dtype(self.dtype)
    }

    /// The reference, with its scales in f64.
    fn reference(&self, x: &[f64]) -> Quantized<f64> {
        let Self { scheme, group_size, order, .. } = *self;
        if self.scale_dtype() == DType::F64 {
            return reference::quantize(x, scheme, group_size, order);
        }
        let Quantized { codes, scales, zero_points } =
            reference::quantize::<f32>(x, scheme, group_size, order);
        Quantized { codes, scales: scales.into_iter().map(f64::from).collect(), zero_points }
    }
}

#[derive(Debug)]
struct Quantize(Packed);

impl Subject for Quantize {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let p @ Packed { scheme, dtype, order, len, group_size, lead, .. } = self.0;
        let plan = QuantizeDesc { scheme, dtype, group_size, order, len }.plan(bench.target())?;
        let xs = p.values();
        let want = p.reference(&xs);
        let count = groups(len, group_size);
        let x = bench.input("x", dtype, &xs, lead)?;
        let mut codes = bench.output("codes", DType::U8, packed_bytes(len), 0)?;
        let mut scales = bench.output("scales", p.scale_dtype(), count, 0)?;
        let zeros = if scheme.has_zero_points() { count } else { 0 };
        let mut zero_points = bench.output("zero_points", DType::U8, zeros, 0)?;
        bench.launch(|stream| {
            let zero_points = scheme.has_zero_points().then(|| zero_points.view_mut()).transpose()?;
            let args = QuantizeArgs {
                x: x.view()?,
                codes: codes.view_mut()?,
                scales: scales.view_mut()?,
                zero_points,
            };
            Ok(plan.launch(stream, args)?)
        })?;

        let mut got = bench.read(&codes)?;
        let mut expected: Vec<f64> = want.codes.iter().map(|c| f64::from(*c)).collect();
        for (byte, (got, expected)) in got.iter_mut().zip(&mut expected).enumerate() {
            // The codes of a group with a NaN or an infinity mean nothing.
            let finite =
                [2 * byte, (2 * byte + 1).min(len - 1)].map(|i| want.scales[i / group_size].is_finite());
            if finite != [true, true] {
                (*got, *expected) = (0.0, 0.0);
            }
        }
        let expected: Vec<_> = expected.into_iter().map(Expected::exactly).collect();
        let codes = compare(DType::U8, &got, &expected, Bench::poison(DType::U8));
        let expected: Vec<_> = want.scales.iter().map(|s| Expected::exactly(*s)).collect();
        let scales = bench.compare(&scales, &expected)?;
        let expected: Vec<_> = want.zero_points.iter().map(|z| Expected::exactly(f64::from(*z))).collect();
        Ok(codes.merge(scales).merge(bench.compare(&zero_points, &expected)?))
    }
}

#[derive(Debug)]
struct Dequantize(Packed);

impl Subject for Dequantize {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let p @ Packed { scheme, dtype, order, len, group_size, lead, .. } = self.0;
        let plan = DequantizeDesc { scheme, dtype, group_size, order, len }.plan(bench.target())?;
        let q = p.reference(&p.values());
        let values: Vec<f64> = if p.scale_dtype() == DType::F64 {
            reference::dequantize(&q, len, scheme, group_size, order)
        } else {
            let scales = q.scales.iter().map(|s| *s as f32).collect();
            let q = Quantized { codes: q.codes.clone(), scales, zero_points: q.zero_points.clone() };
            reference::dequantize(&q, len, scheme, group_size, order).into_iter().map(f64::from).collect()
        };
        let expected: Vec<_> =
            values.into_iter().map(|v| Expected::exactly(storage::round(dtype, v))).collect();

        let bytes = |b: &[u8]| b.iter().map(|c| f64::from(*c)).collect::<Vec<_>>();
        let codes = bench.input("codes", DType::U8, &bytes(&q.codes), lead)?;
        let scales = bench.input("scales", p.scale_dtype(), &q.scales, 0)?;
        let zero_points = bench.input("zero_points", DType::U8, &bytes(&q.zero_points), 0)?;
        let mut y = bench.output("y", dtype, len, lead)?;
        bench.launch(|stream| {
            let zero_points = scheme.has_zero_points().then(|| zero_points.view()).transpose()?;
            let args = DequantizeArgs {
                codes: codes.view()?,
                scales: scales.view()?,
                zero_points,
                y: y.view_mut()?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        bench.compare(&y, &expected)
    }
}

/// Block maxima as a weight matrix has them.
fn block_maxima(len: usize) -> Vec<f64> {
    let mut random = Random::new(len as u64);
    (0..len).map(|_| storage::round(DType::F32, 0.05 + 0.01 * random.normal())).collect()
}

#[derive(Debug)]
struct QuantizeNested {
    len: usize,
}

impl Subject for QuantizeNested {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let len = self.len;
        let plan = QuantizeNestedDesc { len }.plan(bench.target())?;
        let values = block_maxima(len);
        let x = bench.input("absmax", DType::F32, &values, 0)?;
        let mut codes = bench.output("codes", DType::U8, len, 0)?;
        let mut nested = bench.output("nested_absmax", DType::F32, groups(len, BLOCK), 0)?;
        let mut offset = bench.output("offset", DType::F32, 1, 0)?;
        let mut workspace = bench.output("workspace", DType::F64, workspace_len(), 0)?;
        bench.launch(|stream| {
            let args = QuantizeNestedArgs {
                absmax: x.view()?,
                codes: codes.view_mut()?,
                nested_absmax: nested.view_mut()?,
                offset: offset.view_mut()?,
                workspace: workspace.view_mut()?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
        // The mean is a sum in another order: it may round the other way once. What follows is defined by it.
        let mean = reference::quantize_nested(&values).offset;
        let got = bench.read(&offset)?[0];
        let slack = f64::from(f32::EPSILON) * f64::from(mean).abs();
        let near = (got - f64::from(mean)).abs() <= slack;
        let offset = compare(
            DType::F32,
            &[if near { f64::from(mean) } else { got }],
            &[Expected::exactly(f64::from(mean))],
            Bench::poison(DType::F32),
        );
        let (want_codes, want_nested) = reference::quantize_nested_with(&values, got as f32);
        let want: Vec<_> = want_codes.iter().map(|c| Expected::exactly(f64::from(*c))).collect();
        let codes = bench.compare(&codes, &want)?;
        let want: Vec<_> = want_nested.iter().map(|c| Expected::exactly(f64::from(*c))).collect();
        Ok(offset.merge(codes).merge(bench.compare(&nested, &want)?))
    }
}

#[derive(Debug)]
struct DequantizeNested {
    len: usize,
}

impl Subject for DequantizeNested {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let len = self.len;
        let plan = DequantizeNestedDesc { len }.plan(bench.target())?;
        let values: Vec<f32> = block_maxima(len).iter().map(|v| *v as f32).collect();
        let q: Nested = reference::quantize_nested(&values);
        let f64s = |v: &[f32]| v.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
        let codes: Vec<f64> = q.codes.iter().map(|c| f64::from(*c)).collect();
        let codes = bench.input("codes", DType::U8, &codes, 0)?;
        let nested = bench.input("nested_absmax", DType::F32, &f64s(&q.absmax), 0)?;
        let offset = bench.input("offset", DType::F32, &[f64::from(q.offset)], 0)?;
        let mut y = bench.output("absmax", DType::F32, len, 0)?;
        bench.launch(|stream| {
            let args = DequantizeNestedArgs {
                codes: codes.view()?,
                nested_absmax: nested.view()?,
                offset: offset.view()?,
                absmax: y.view_mut()?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let expected: Vec<_> =
            f64s(&reference::dequantize_nested(&q)).into_iter().map(Expected::exactly).collect();
        bench.compare(&y, &expected)
    }
}
