//! Times attention forward with every kernel that there is for it, in microseconds and TFLOP/s: 16384 tokens, 2048 elements in
//! all heads, or 16 heads where they do not come out even, bf16.
//!
//!     cargo run --release -p warpwright-timing --bin attention_time [-- HEAD_DIM[v VALUE_HEAD_DIM],SEQUENCE,CAUSAL[,DROPOUT] ...]
//!
//! `192v128` are heads of 192 elements whose values have 128. With dropout, of so many hundredths, every block layout that is tried for it.

use warpwright::attention::tuning::{self, Config, Mma};
use warpwright::attention::{Algorithm, AttentionDesc, AttentionOptions};
use warpwright::plan::{Access, Layout, Real};
use warpwright::{DType, Device, Error, Plan, Stream, Target, Tensor};
use warpwright_timing::{heads_of, name_of, widths_of};

const TOKENS: usize = 16384;
const WIDTHS: [usize; 3] = [64, 128, 256];
const SEQUENCES: [usize; 6] = [512, 1024, 2048, 4096, 8192, 16384];
const SAMPLES: usize = 9;
/// A prime number: no two heads are alike.
const PERIOD: usize = 1_000_003;
/// Of so many elements of a result one is compared.
const COMPARED: usize = 61;

/// Normal numbers of 16 bits, in a fixed order, that come again after a while.
fn normal(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0
    };
    let mut out = Vec::with_capacity(2 * PERIOD + 4);
    while out.len() < 2 * PERIOD {
        let (radius, angle) = ((-2.0 * uniform().max(1e-7).ln()).sqrt(), std::f32::consts::TAU * uniform());
        for value in [radius * angle.cos(), radius * angle.sin()] {
            out.extend_from_slice(&((value.to_bits() + 0x8000) >> 16).to_le_bytes()[..2]);
        }
    }
    out.truncate(2 * PERIOD);
    out.into_iter().cycle().take(2 * len).collect()
}

/// Head dimensions of queries and keys and of values, sequence, causal, hundredths of dropout.
type Case = ([usize; 2], usize, bool, usize);

fn desc(([width, value_width], sequence, causal, dropout): Case) -> AttentionDesc {
    let of = |elements| {
        Layout::contiguous([TOKENS / sequence, sequence, heads_of([width, value_width]), elements])
    };
    let (q, v) = (of(width), of(value_width));
    let dropout = (dropout > 0).then(|| Real::new(dropout as f64 / 100.0));
    let options = AttentionOptions { causal, dropout, ..AttentionOptions::default() };
    AttentionDesc { dtype: DType::BF16, q, k: q, v, o: v, options }
}

/// The plan that tuning chooses, one without tensor copies, and those with each layout of warpgroups; with dropout, which these do not
/// take, others without tensor copies.
fn plans(desc: &AttentionDesc, target: Target) -> Vec<Plan<AttentionDesc>> {
    let [width, value_width] = [desc.q, desc.v].map(|layout| layout.shape[3] as u32);
    let widest = width.max(value_width);
    let mut mma: Vec<_> = tuning::mma(tuning::Work::Forward, target, widest as usize, desc.options.kind())
        .into_iter()
        .collect();
    if desc.options.dropout.is_some() {
        mma.extend([(4, 2, 64), (4, 2, 32), (4, 1, 64), (4, 1, 32), (8, 1, 64), (8, 1, 32)].map(
            |(warps, slabs, columns)| Config::Mma(Mma { warps, slabs, columns, width: widest, vector: 8 }),
        ));
    }
    let mut all: Vec<_> =
        mma.into_iter().filter_map(|config| desc.plan_with(target, config.into()).ok()).collect();
    for layout in tuning::wgmma_layouts([width, value_width]) {
        all.extend(desc.plan_with(target, Algorithm::Wgmma { layout, blocks: None }).ok());
    }
    all
}

fn kernel_name(plan: &Plan<AttentionDesc>) -> &str {
    plan.steps().first().map_or("", |step| step.kernel().name())
}

/// Bytes of the results of a launch, and microseconds.
fn run(
    (device, stream): (&Device, &Stream),
    plan: &Plan<AttentionDesc>,
    inputs: &[Tensor],
) -> Result<(Vec<u8>, f64), Error> {
    let own: Vec<Tensor> = plan
        .tensors()
        .iter()
        .skip(inputs.len())
        .map(|spec| match spec.access {
            Access::Read => Tensor::zeros(device, spec.dtype, &[spec.len]),
            Access::Write => Tensor::empty(device, spec.dtype, &[spec.len]),
        })
        .collect::<Result<_, _>>()?;
    let bindings: Vec<_> = inputs.iter().chain(&own).map(Tensor::binding).collect();
    let launch = || plan.steps().iter().try_for_each(|step| stream.launch(step, &bindings));
    launch()?;
    let mut all = Vec::new();
    for _ in 0..SAMPLES {
        let start = stream.record()?;
        launch()?;
        let end = stream.record()?;
        stream.synchronize()?;
        all.extend(start.elapsed_us(&end)?);
    }
    all.sort_by(f64::total_cmp);
    let outputs: Vec<&Tensor> = own.iter().filter(|t| !t.shape().contains(&0)).collect();
    let bytes = outputs.first().map_or(Ok(Vec::new()), |o| o.to_bytes())?;
    Ok((bytes, all.get(all.len() / 2).copied().unwrap_or(f64::NAN)))
}

/// The distance of two results, relative to the first.
fn distance(a: &[u8], b: &[u8]) -> f64 {
    let value = |x: &[u8]| f64::from(f32::from_bits(u32::from(u16::from_le_bytes([x[0], x[1]])) << 16));
    let (mut error, mut norm) = (0.0, 0.0);
    for (a, b) in a.chunks_exact(2).zip(b.chunks_exact(2)).step_by(COMPARED) {
        let (a, b) = (value(a), value(b));
        error += (a - b) * (a - b);
        norm += a * a;
    }
    (error / norm).sqrt()
}

fn main() -> Result<(), Error> {
    let asked = std::env::args().skip(1).filter_map(|arg| {
        let (widths, rest) = arg.split_once(',')?;
        let parts: Vec<usize> = rest.split(',').filter_map(|part| part.parse().ok()).collect();
        let [sequence, causal, dropout @ ..] = &parts[..] else { return None };
        Some((widths_of(widths)?, *sequence, *causal > 0, dropout.first().copied().unwrap_or(0)))
    });
    let mut cases: Vec<Case> = asked.collect();
    if cases.is_empty() {
        for width in WIDTHS {
            for causal in [false, true] {
                cases.extend(SEQUENCES.map(|sequence| ([width; 2], sequence, causal, 0)));
            }
        }
    }
    let device = Device::best();
    let (stream, target) = (device.stream()?, device.target());
    println!("{}, {target}", device.name());
    let tensor = |(seed, layout): (u64, Layout)| {
        let len = layout.elements().unwrap_or(0);
        Tensor::from_bytes(&device, DType::BF16, &normal(len, seed), &[len])
    };
    let all: Vec<_> = cases.iter().map(|case| plans(&desc(*case), target)).collect();
    // The driver compiles kernels side by side.
    let kernels: std::collections::BTreeMap<&str, &Plan<AttentionDesc>> =
        all.iter().flatten().map(|plan| (kernel_name(plan), plan)).collect();
    let device_of_all = &device;
    std::thread::scope(|scope| {
        let compile = |plan| scope.spawn(move || Plan::warm_up(plan, device_of_all));
        let threads: Vec<_> = kernels.into_values().map(compile).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
    })?;
    for (case @ (widths, sequence, causal, dropout), plans) in cases.into_iter().zip(&all) {
        let elements = heads_of(widths) * (widths[0] + widths[1]);
        let operations =
            2.0 * TOKENS as f64 * elements as f64 * sequence as f64 / if causal { 2.0 } else { 1.0 };
        let desc = desc(case);
        let inputs = [(1, desc.q), (2, desc.k), (3, desc.v)].map(tensor);
        let inputs = inputs.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut first: Option<Vec<u8>> = None;
        for plan in plans {
            let (bytes, us) = run((&device, &stream), plan, &inputs)?;
            let kernel = kernel_name(plan);
            let apart = distance(first.get_or_insert_with(|| bytes.clone()), &bytes);
            let rate = operations / us / 1e6;
            println!(
                "d{} {sequence} causal={causal} dropout={dropout}% {us:9.1} us {rate:6.0} TFLOP/s  {kernel}, {apart:.1e}",
                name_of(widths)
            );
        }
    }
    Ok(())
}
