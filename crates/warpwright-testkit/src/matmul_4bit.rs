//! Cases of products with 4-bit weights.

use std::sync::Arc;

use warpwright_ops::matmul_4bit::tuning::{self, Config};
use warpwright_ops::matmul_4bit::{
    DTYPES, Matmul4bitArgs, Matmul4bitBackwardArgs, Matmul4bitBackwardDesc, Matmul4bitDesc, ScaleFormat,
    Weight4bitDesc, WeightFormat, reference,
};
use warpwright_ops::{Direction, Operation};
use warpwright_ptx::{DType, float8};

use crate::budget::{self, Budget};
use crate::case::{Bench, Case, CaseError, Placed, Scope, Subject, view, view_mut};
use crate::inputs::{Input, Random};
use crate::measure::{Comparison, Expected};
use crate::storage;

/// A product, and how it is tried.
#[derive(Clone, Debug)]
struct Product {
    desc: Matmul4bitDesc,
    /// Elements past an aligned address.
    lead: usize,
    /// Numbers among scales and `x`.
    special: Special,
    /// The kernel, where the target has it; otherwise the one that is chosen for the sizes.
    config: Option<Config>,
}

/// Numbers among ordinary ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Special {
    Nothing,
    /// Scales of 0 and NaN.
    Scales,
    /// Infinities and NaN in `x`.
    X,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    let names = warpwright_ops::catalogue();
    for format in WeightFormat::ALL {
        let name = format!("matmul_4bit_{}", format.name());
        let op = names.iter().find(|entry| entry.op == name).map_or("unknown", |entry| entry.op);
        for dtype in DTYPES {
            for product in situations(format, dtype, scope) {
                let d = product.desc.clone();
                let input = format!(
                    "groups of {}{}, scales {:?}, bias {}{}{}{}",
                    d.weight.group_size,
                    if d.weight.group_index { " in any order" } else { "" },
                    d.weight.scale,
                    d.bias,
                    product.config.map_or(String::new(), |c| format!(", {}", c.name())),
                    if product.special == Special::Nothing {
                        String::new()
                    } else {
                        format!(", {:?}", product.special)
                    },
                    if product.lead > 0 { ", misaligned" } else { "" },
                );
                let case = |direction, shape: [usize; 3], subject: Arc<dyn Subject>| Case {
                    op,
                    direction,
                    dtype,
                    shape: shape.to_vec(),
                    input: input.clone(),
                    budget: budget(&d, direction),
                    subject,
                };
                let shape = [d.m, d.weight.n, d.weight.k];
                // The gradient has one kernel for any shape.
                if product.config.is_none() && d.m % 2 == 1 {
                    let subject = Arc::new(Gradient(product.clone()));
                    out.push(case(Direction::Backward, shape, subject));
                }
                out.push(case(Direction::Forward, shape, Arc::new(product)));
            }
        }
    }
    out
}

/// Sums in f32 of products with weights that are rounded, to entries of a table or where the weight is expanded.
fn budget(d: &Matmul4bitDesc, direction: Direction) -> Budget {
    let table = budget::normalised(d.dtype);
    let expanded = direction == Direction::Backward || d.m > tuning::MAX_SIMT_ROWS;
    let rounds = d.weight.format == WeightFormat::Nf4 || expanded;
    if d.dtype != DType::F32 && rounds { budget::rounded_weights(table, d.dtype) } else { table }
}

fn situations(format: WeightFormat, dtype: DType, scope: Scope) -> Vec<Product> {
    let mut all = Vec::new();
    let of = |m, [n, k]: [usize; 2], group_size| {
        let group_size = format.fixed_group_size().unwrap_or(group_size);
        let weight = Weight4bitDesc::new(format, [n, k], group_size);
        let desc = Matmul4bitDesc { dtype, m, weight, bias: m % 2 == 0 };
        Product { desc, lead: 0, special: Special::Nothing, config: None }
    };
    let scaled = |product: Product, scale| {
        let weight = Weight4bitDesc { scale, ..product.desc.weight };
        Product { desc: Matmul4bitDesc { weight, ..product.desc }, ..product }
    };
    let other = match format {
        WeightFormat::Nf4 | WeightFormat::Fp4 => ScaleFormat::Nested,
        WeightFormat::Mxfp4 => ScaleFormat::E8m0,
        WeightFormat::Nvfp4 => ScaleFormat::E4m3,
        _ => ScaleFormat::Float(DType::BF16),
    };
    // Streaming kernels: runs that end within a step, and slices that end within a run.
    all.push(of(1, [40, 1344], 64));
    all.push(scaled(of(2, [33, 640], 64), other));
    all.push(of(8, [17, 320], 128));
    all.push(of(3, [20, 160], 32));
    all.push(of(11, [50, 192], 64));
    all.push(scaled(of(18, [37, 256], 64), other));
    all.push(of(32, [9, 4608], 256));
    // Several tiles of a block, with fewer runs than there are warps.
    all.push(of(1, [4300, 768], 64));
    all.push(scaled(of(2, [2120, 256], 64), other));
    all.push(Product { special: Special::Scales, ..of(1, [24, 512], 64) });
    all.push(Product { special: Special::X, ..of(3, [24, 576], 64) });
    // One scale for a row, or for all.
    all.push(of(1, [18, 448], 1 << 20));
    // Any size and alignment on the ordinary units.
    all.push(of(3, [5, 37], 16));
    all.push(scaled(of(5, [7, 100], 24), other));
    all.push(Product { lead: 1, ..of(2, [6, 128], 64) });
    all.push(Product { lead: 1, ..of(10, [6, 64], 32) });
    // Expanded weights.
    all.push(of(72, [24, 64], 32));
    all.push(scaled(of(41, [19, 37], 15), other));
    all.push(Product { lead: 1, ..of(67, [16, 64], 64) });
    all.push(of(50, [21, 320], 64));
    all.extend([[0, 5, 64], [5, 0, 64], [3, 4, 0], [1, 1, 1]].map(|[m, n, k]| of(m, [n, k], 64)));
    if dtype == DType::BF16 {
        // Every kernel of sm_90: more tiles than blocks would take long, but more steps than one.
        for config in tuning::configs() {
            let rows = (config.col_tiles * 8 - 3) as usize;
            let k = (config.run() * (config.warps * config.runs + 1) + config.slice()) as usize;
            let slice = config.slice() as usize;
            let n = config.rows() as usize + 5;
            let k = match config.col_tiles {
                // More runs than warps, all of them whole.
                1 if config.stages > 0 => (config.run() * (config.warps + 1)) as usize,
                1 if config.warps == 8 => k,
                // Less than a step for all but the layouts that are the first of their kind.
                _ => 5 * slice,
            };
            let product = of(rows, [n, k], slice);
            if suits(&product.desc.weight, slice) {
                all.push(Product { config: Some(Config::Stream(config)), ..product });
            }
        }
    }
    if dtype != DType::F32 {
        // Warpgroups: rows behind the last tile, slices that share a scale, more rows than a tile has, stages that are used again; of a
        // cluster a last block that has less of the common dimension.
        for (i, config) in (0..).zip(tuning::warpgroup_configs()) {
            let (rows, cols) = (config.rows() as usize, config.cols as usize);
            let group = if i % 2 == 0 { config.slice as usize } else { 256 };
            let (m, n) = ([cols - 3, cols + 2][i % 2], rows + [8, 5][i / 2 % 2]);
            let chunks = if config.cluster > 1 { 2 * config.cluster as usize - 1 } else { [1, 3, 5][i % 3] };
            let product = of(m, [n, 256 * chunks], group);
            let sliced = suits(&product.desc.weight, config.slice as usize)
                && (format != WeightFormat::Nvfp4 || config.slice == 64);
            // Of f16, whose numbers come from another table, one of each kind of slices.
            if sliced && (dtype == DType::BF16 || i % 5 == 0) {
                let product = if i % 4 == 3 { scaled(product, other) } else { product };
                all.push(Product { config: Some(Config::Warpgroup(config)), ..product });
            }
        }
        all.push(Product { special: Special::Scales, ..of(20, [72, 512], 64) });
        all.push(Product { special: Special::X, ..of(33, [72, 512], 64) });
    }
    if matches!(format, WeightFormat::Int4 | WeightFormat::Int4Asymmetric) {
        let indexed = |product: Product| {
            let weight = Weight4bitDesc { group_index: true, ..product.desc.weight };
            Product { desc: Matmul4bitDesc { weight, ..product.desc }, ..product }
        };
        // Aligned and not, few rows and more.
        let of_shapes =
            [of(3, [9, 100], 24), of(1, [33, 256], 64), of(11, [19, 96], 20), of(9, [11, 41], 16)];
        all.extend(of_shapes.map(indexed));
        all.push(indexed(scaled(of(5, [7, 64], 1 << 20), other)));
    }
    if format == WeightFormat::Nvfp4 {
        // A group that ends with the row within vectors.
        all.push(of(72, [25, 72], 16));
    }
    if scope == Scope::Full {
        if format == WeightFormat::Nvfp4 && dtype == DType::BF16 {
            all.push(of(3000, [131, 512], 16));
        }
        for k in [2, 31, 32, 64, 96, 128, 256, 288, 1000, 2048, 11008] {
            for m in [1, 4, 9, 16, 17, 33] {
                all.push(of(m, [35, k], 64));
                all.push(scaled(of(m, [16, k], 32), other));
            }
        }
        // More tiles than blocks.
        all.push(of(1, [4500, 64], 64));
        all.push(of(20, [17_032, 512], 64));
    }
    all
}

/// Whether kernels multiply slices of this length with such scales.
fn suits(weight: &Weight4bitDesc, slice: usize) -> bool {
    weight.scale == ScaleFormat::E4m3 || weight.group_size.is_multiple_of(slice)
}

/// The tensors of a weight.
struct Weight {
    codes: Vec<f64>,
    scales: Vec<f64>,
    zero_points: Vec<f64>,
    nested_absmax: Vec<f64>,
    offset: f64,
    tensor_scale: f64,
    group_index: Vec<f64>,
}

impl Weight {
    fn new(product: &Product) -> Self {
        let desc = &product.desc.weight;
        let mut random = Random::new((desc.n * 1009 + desc.k) as u64);
        let mut bytes = |len: usize, below: u64| -> Vec<f64> {
            (0..len).map(|_| (random.bits() % below) as f64).collect()
        };
        let groups = desc.group_count();
        let codes = bytes(desc.code_bytes(), 256);
        let zero_points = bytes(if desc.format.has_zero_points() { groups } else { 0 }, 16);
        let mut scales: Vec<f64> = match desc.scale {
            ScaleFormat::Nested => bytes(groups, 256),
            ScaleFormat::E8m0 => bytes(groups, 9).into_iter().map(|e| e + 119.0).collect(),
            // Least ones and largest ones among them, of both signs.
            ScaleFormat::E4m3 => {
                let number = |byte: f64| float8::e4m3_value(byte as u8);
                bytes(groups, 256).into_iter().map(number).map(|v| if v.is_nan() { 1.0 } else { v }).collect()
            }
            ScaleFormat::Float(dtype) => Input::Normal
                .values(groups, 7)
                .into_iter()
                .map(|v| storage::round(dtype, 0.02 * (v.abs() + 0.5)))
                .collect(),
        };
        if product.special == Special::Scales {
            let nan = if desc.scale == ScaleFormat::E8m0 { 255.0 } else { f64::NAN };
            scales.iter_mut().skip(3).step_by(11).for_each(|scale| *scale = 0.0);
            scales.iter_mut().skip(5).step_by(29).for_each(|scale| *scale = nan);
        }
        let blocks = if desc.scale == ScaleFormat::Nested { groups.div_ceil(256) } else { 0 };
        let nested_absmax =
            Input::Normal.values(blocks, 8).into_iter().map(|v| f64::from((0.01 * v.abs()) as f32)).collect();
        let tensor_scale = if desc.scale == ScaleFormat::E4m3 { f64::from(0.003f32) } else { 1.0 };
        let columns = if desc.group_index { desc.k } else { 0 };
        let per_row = desc.k.div_ceil(desc.group_size).max(1);
        // In any order, and one that no group has.
        let group = |column: usize| if column == 5 { -1.0 } else { (column * 7 % per_row) as f64 };
        let group_index = (0..columns).map(group).collect();
        Self {
            codes,
            scales,
            zero_points,
            nested_absmax,
            offset: f64::from(0.02f32),
            tensor_scale,
            group_index,
        }
    }

    fn numbers(&self, desc: &Weight4bitDesc) -> Vec<f64> {
        let bytes = |values: &[f64]| values.iter().map(|v| *v as u8).collect::<Vec<_>>();
        let (codes, zero_points) = (bytes(&self.codes), bytes(&self.zero_points));
        reference::numbers(
            desc,
            reference::Operand {
                codes: &codes,
                scales: &self.scales,
                zero_points: &zero_points,
                nested: (&self.nested_absmax, self.offset),
                tensor_scale: self.tensor_scale,
                group_index: &self.group_index.iter().map(|v| *v as i32).collect::<Vec<_>>(),
            },
        )
    }

    fn place(
        &self,
        bench: &Bench<'_>,
        desc: &Weight4bitDesc,
        lead: usize,
    ) -> Result<PlacedWeight, CaseError> {
        let nested = desc.scale == ScaleFormat::Nested;
        let zero_points = desc.format.has_zero_points().then_some(&self.zero_points);
        Ok(PlacedWeight {
            codes: bench.input("weight", DType::U8, &self.codes, lead)?,
            scales: bench.input("scales", desc.scale.dtype(), &self.scales, lead)?,
            zero_points: bench.optional_input("zero_points", DType::U8, zero_points, lead)?,
            nested_absmax: bench.optional_input(
                "nested_absmax",
                DType::F32,
                nested.then_some(&self.nested_absmax),
                lead,
            )?,
            offset: bench.optional_input("offset", DType::F32, nested.then_some(&vec![self.offset]), 0)?,
            tensor_scale: bench.optional_input(
                "tensor_scale",
                DType::F32,
                (desc.scale == ScaleFormat::E4m3).then_some(&vec![self.tensor_scale]),
                0,
            )?,
            group_index: bench.optional_input(
                "group_index",
                DType::I32,
                desc.group_index.then_some(&self.group_index),
                lead,
            )?,
        })
    }
}

/// The same on a device.
struct PlacedWeight {
    codes: Placed,
    scales: Placed,
    zero_points: Option<Placed>,
    nested_absmax: Option<Placed>,
    offset: Option<Placed>,
    tensor_scale: Option<Placed>,
    group_index: Option<Placed>,
}

impl Product {
    /// Numbers of the type of `x`.
    fn values(&self, len: usize, salt: u64) -> Vec<f64> {
        let values = Input::Normal.values(len, salt << 32 | len as u64);
        let mut values: Vec<f64> = values.into_iter().map(|v| storage::round(self.desc.dtype, v)).collect();
        if self.special == Special::X {
            values.iter_mut().skip(7).step_by(599).for_each(|v| *v = f64::INFINITY);
            values.iter_mut().skip(1100).step_by(997).for_each(|v| *v = f64::NAN);
        }
        values
    }
}

impl Subject for Product {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let desc = &self.desc;
        let plan = bench.plan(desc, self.config, Matmul4bitDesc::plan_with)?;
        let Matmul4bitDesc { dtype, m, weight: of_weight, bias: biased } = *desc;
        let Weight4bitDesc { n, k, .. } = of_weight;
        let weight = Weight::new(self);
        let (xs, biases) = (self.values(m * k, 1), self.values(n, 2));
        let x = bench.input("x", dtype, &xs, self.lead)?;
        let placed = weight.place(bench, &of_weight, self.lead)?;
        let bias = bench.optional_input("bias", dtype, biased.then_some(&biases), self.lead)?;
        let mut y = bench.output("y", dtype, m * n, self.lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = Matmul4bitArgs {
                x: x.view()?,
                weight: placed.codes.view()?,
                scales: placed.scales.view()?,
                zero_points: view(&placed.zero_points)?,
                nested_absmax: view(&placed.nested_absmax)?,
                offset: view(&placed.offset)?,
                tensor_scale: view(&placed.tensor_scale)?,
                group_index: view(&placed.group_index)?,
                bias: view(&bias)?,
                y: y.view_mut()?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let numbers = weight.numbers(&of_weight);
        let bias = biased.then_some(&biases[..]);
        let expected: Vec<Expected> = (0..m * n)
            .map(|i| reference::element(&of_weight, (&xs, &numbers), bias, (i / n, i % n)))
            .map(|(value, scale)| Expected { value, scale, underflow: 0.0 })
            .collect();
        bench.compare(&y, &expected)
    }

    fn layout(&self) -> String {
        let Matmul4bitDesc { m, weight, .. } = self.desc;
        let config = self.config.map_or(String::new(), Config::name);
        let sliced = weight.k.is_multiple_of(32) && weight.group_size.is_multiple_of(32) && self.lead == 0;
        let x = self.special == Special::X;
        format!("{x} {} {sliced} {} {config}", m.div_ceil(8).next_power_of_two(), weight.k > 4096)
    }
}

/// The gradient of a product by `x`.
#[derive(Debug)]
struct Gradient(Product);

impl Subject for Gradient {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let Matmul4bitDesc { dtype, m, weight: of_weight, .. } = self.0.desc;
        let Weight4bitDesc { n, k, .. } = of_weight;
        let plan = Matmul4bitBackwardDesc { dtype, m, weight: of_weight }.plan(bench.target())?;
        let weight = Weight::new(&self.0);
        let dys = self.0.values(m * n, 3);
        let dy = bench.input("dy", dtype, &dys, self.0.lead)?;
        let placed = weight.place(bench, &of_weight, self.0.lead)?;
        let mut dx = bench.output("dx", dtype, m * k, self.0.lead)?;
        let mut workspace = bench.workspace(&plan)?;
        bench.launch(|stream| {
            let args = Matmul4bitBackwardArgs {
                dy: dy.view()?,
                weight: placed.codes.view()?,
                scales: placed.scales.view()?,
                zero_points: view(&placed.zero_points)?,
                nested_absmax: view(&placed.nested_absmax)?,
                offset: view(&placed.offset)?,
                tensor_scale: view(&placed.tensor_scale)?,
                group_index: view(&placed.group_index)?,
                dx: dx.view_mut()?,
                workspace: view_mut(&mut workspace)?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        let numbers = weight.numbers(&of_weight);
        let expected: Vec<Expected> = (0..m * k)
            .map(|i| reference::gradient(&of_weight, (&dys, &numbers), (i / k, i % k)))
            .map(|(value, scale)| Expected { value, scale, underflow: 0.0 })
            .collect();
        bench.compare(&dx, &expected)
    }
}
