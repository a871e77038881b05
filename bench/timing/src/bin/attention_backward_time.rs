//! Times the attention backward kernels on a GPU, in microseconds: every `wgmma` layout beside those of `mma.sync`, and how far
//! their results are apart.
//!
//!     cargo run --release -p warpwright-timing --bin attention_backward_time [-- HEAD_DIM[v VALUE_HEAD_DIM] ...]
//!
//! `-- fused [HEAD_DIM ...]` times the layouts of one sweep for all gradients beside the two sweeps that are chosen, for several lengths
//! of the sequences, and says whether many runs give the same bits. `-- ptx DIR` writes the kernels' texts instead; `-- mma [HEAD_DIM ...]` times layouts of `mma.sync` under a mask, with dropout
//! and with the gradient of a bias.

use std::path::Path;
use std::rc::Rc;

use warpwright::attention::tuning::{self, Config, Mma, WgmmaFused, WgmmaSweep, WgmmaSweeps};
use warpwright::attention::{AttentionBackwardDesc, AttentionDesc, AttentionOptions, BackwardAlgorithm};
use warpwright::plan::{Access, Layout, Real, TensorSpec};
use warpwright::{DType, Device, Error, Operation, Plan, Stream, Target, Tensor};
use warpwright_timing::{heads_of, name_of, widths_of};

const TOKENS: usize = 16_384;
const SEQUENCE: usize = 4096;
const SAMPLES: usize = 9;

/// Layouts of the sweeps, what is chosen first.
fn layouts(widths: [u32; 2]) -> Vec<WgmmaSweeps> {
    let chosen = tuning::wgmma_sweeps(DType::BF16, Target::sm(90), widths, false);
    let [width, value_width] =
        chosen.map_or(widths, |sweeps| [sweeps.queries.width, sweeps.queries.value_width]);
    let of = |groups, columns, tiles, held| WgmmaSweep { groups, columns, tiles, width, value_width, held };
    let mut all: Vec<_> = chosen.into_iter().collect();
    let mut with = |queries, keys, values| all.push(WgmmaSweeps { queries, keys, values });
    match width {
        64 => {
            with(of(2, 128, 6, false), of(2, 64, 6, false), Some(of(2, 128, 6, false)));
            with(of(2, 64, 8, true), of(2, 64, 8, true), None);
        }
        128 => {
            with(of(2, 64, 8, false), of(2, 64, 8, false), Some(of(2, 128, 4, false)));
            with(of(2, 80, 6, false), of(2, 32, 8, false), Some(of(2, 64, 6, true)));
            with(of(2, 64, 6, true), of(2, 32, 8, false), None);
        }
        160 | 192 => {
            with(of(2, 48, 6, false), of(2, 48, 6, false), Some(of(2, 64, 6, false)));
            with(of(2, 32, 8, false), of(2, 32, 8, false), Some(of(2, 48, 8, false)));
            with(of(2, 64, 5, false), of(2, 64, 5, false), Some(of(2, 80, 5, false)));
            with(of(2, 64, 5, false), of(2, 16, 12, false), None);
        }
        _ => {
            with(of(2, 32, 6, false), of(2, 32, 6, false), Some(of(2, 64, 4, false)));
            with(of(2, 48, 4, false), of(2, 48, 4, false), Some(of(2, 32, 8, false)));
        }
    }
    all
}

fn problem(widths: [usize; 2], options: AttentionOptions) -> AttentionBackwardDesc {
    problem_of(widths, SEQUENCE, options)
}

fn problem_of(widths: [usize; 2], sequence: usize, options: AttentionOptions) -> AttentionBackwardDesc {
    let [q, v] =
        widths.map(|width| Layout::contiguous([TOKENS / sequence, sequence, heads_of(widths), width]));
    let dbias = options.bias.is_some();
    let forward = AttentionDesc { dtype: DType::BF16, q, k: q, v, o: v, options };
    AttentionBackwardDesc { forward, dy: v, dq: q, dk: q, dv: v, dbias, dsinks: false }
}

fn masked(causal: bool) -> AttentionOptions {
    AttentionOptions { causal, ..AttentionOptions::default() }
}

/// Layouts of blocks without tensor copies, for all sweeps alike.
fn blocks(width: u32) -> [Config; 7] {
    [(4, 2, 64), (4, 2, 32), (4, 1, 64), (4, 1, 32), (8, 1, 64), (8, 1, 32), (4, 1, 16)]
        .map(|(warps, slabs, columns)| Config::Mma(Mma { warps, slabs, columns, width, vector: 8 }))
}

/// Plans with what is chosen and with each layout of blocks.
fn plans_of_blocks(
    desc: &AttentionBackwardDesc,
    target: Target,
) -> Result<Vec<Plan<AttentionBackwardDesc>>, Error> {
    let mut plans = vec![desc.plan(target)?];
    for config in blocks(widest(desc) as u32) {
        plans.extend(desc.plan_with(target, [config; 2].into()));
    }
    Ok(plans)
}

/// About normal numbers of 16 bits.
fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let sum: u64 = (0..4).map(|i| state >> (16 * i) & 0xffff).sum();
        (sum as f32 - 131_070.0) / 37_837.0
    };
    (0..len).flat_map(|_| ((next().to_bits() >> 16) as u16).to_le_bytes()).collect()
}

fn tensors<O: Operation>(
    device: &Device,
    plan: &Plan<O>,
    given: &[(&str, Rc<Tensor>)],
) -> Result<Vec<Rc<Tensor>>, Error> {
    let tensor = |(slot, spec): (usize, &TensorSpec)| {
        if let Some((_, tensor)) = given.iter().find(|(name, _)| *name == spec.name) {
            return Ok(tensor.clone());
        }
        Ok(Rc::new(match spec.access {
            Access::Read if spec.len > 0 && spec.dtype == DType::BF16 => {
                Tensor::from_bytes(device, spec.dtype, &random(spec.len, slot as u64 + 1), &[spec.len])?
            }
            Access::Read => Tensor::zeros(device, spec.dtype, &[spec.len])?,
            Access::Write => Tensor::empty(device, spec.dtype, &[spec.len])?,
        }))
    };
    plan.tensors().iter().enumerate().map(tensor).collect()
}

/// Microseconds of each step, medians.
fn time<O: Operation>(stream: &Stream, plan: &Plan<O>, tensors: &[Rc<Tensor>]) -> Result<Vec<f64>, Error> {
    let bindings: Vec<_> = tensors.iter().map(|tensor| tensor.binding()).collect();
    let mut all = vec![Vec::new(); plan.steps().len()];
    for _ in 0..SAMPLES {
        let mut events = vec![stream.record()?];
        for step in plan.steps() {
            stream.launch(step, &bindings)?;
            events.push(stream.record()?);
        }
        stream.synchronize()?;
        for (all, pair) in all.iter_mut().zip(events.windows(2)) {
            all.extend(pair[0].elapsed_us(&pair[1])?);
        }
    }
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
    };
    Ok(all.into_iter().map(median).collect())
}

fn floats(tensor: &Tensor) -> Result<Vec<f32>, Error> {
    let bytes = tensor.to_bytes()?;
    let word = |pair: &[u8]| u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16;
    Ok(bytes.chunks_exact(2).map(|pair| f32::from_bits(word(pair))).collect())
}

/// The norm of the difference over that of the second.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (difference / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
}

/// The longer one of a head of queries and of one of values.
fn widest(desc: &AttentionBackwardDesc) -> usize {
    desc.forward.q.shape[3].max(desc.forward.v.shape[3])
}

fn plans(desc: &AttentionBackwardDesc, target: Target) -> Result<Vec<Plan<AttentionBackwardDesc>>, Error> {
    let width = widest(desc);
    let blocks = [tuning::Work::Queries, tuning::Work::KeysAndValues]
        .map(|work| tuning::mma(work, target, width, desc.forward.options.kind()));
    let [Some(queries), Some(keys)] = blocks else { return Ok(Vec::new()) };
    let mut plans = vec![desc.plan_with(target, [queries, keys].into())?];
    for configs in layouts([desc.forward.q, desc.forward.v].map(|layout| layout.shape[3] as u32)) {
        plans.extend(desc.plan_with(target, BackwardAlgorithm::Wgmma(configs)));
    }
    Ok(plans)
}

fn measure(
    (device, stream): (&Device, &Stream),
    what: &str,
    desc: &AttentionBackwardDesc,
    plans: Vec<Plan<AttentionBackwardDesc>>,
) -> Result<(), Error> {
    let forward = desc.forward.plan(device.target())?;
    let of_forward = tensors(device, &forward, &[])?;
    time(stream, &forward, &of_forward)?;
    let named = |name: &str| forward.tensors().iter().position(|spec| spec.name == name).unwrap_or(0);
    let given = ["q", "k", "v", "bias", "o", "lse"].map(|name| (name, Rc::clone(&of_forward[named(name)])));
    let elements = desc.dy.elements().unwrap_or(0);
    let dy = Tensor::from_bytes(device, DType::BF16, &random(elements, 99), &[elements])?;
    let given: Vec<_> = given.into_iter().chain([("dy", Rc::new(dy))]).collect();
    let mut first: Option<Vec<Vec<f32>>> = None;
    for plan in plans {
        let mut of_plan = tensors(device, &plan, &given)?;
        let names: Vec<_> = plan.steps().iter().map(|step| step.kernel().name().to_owned()).collect();
        let us = match plan.warm_up(device).map_err(Error::from).and_then(|_| time(stream, &plan, &of_plan)) {
            Ok(us) => us,
            Err(error) => {
                println!("{names:?}: {error}");
                continue;
            }
        };
        let gradients = of_plan.drain(..).zip(plan.tensors()).filter(|(_, spec)| {
            spec.access == Access::Write && ["dq", "dk", "dv", "dbias"].contains(&spec.name)
        });
        let gradients = gradients.map(|(tensor, _)| floats(&tensor)).collect::<Result<Vec<_>, _>>()?;
        let total: f64 = us.iter().sum();
        println!("{what}: {total:.0} us");
        names.iter().zip(&us).for_each(|(name, us)| println!("    {us:>9.1}  {name}"));
        match &first {
            None => first = Some(gradients),
            Some(first) => {
                let far = first.iter().zip(&gradients).map(|(a, b)| distance(b, a));
                println!("    apart {}", far.map(|x| format!("{x:.2e} ")).collect::<String>());
            }
        }
    }
    Ok(())
}

/// How often results are compared with those of the first run.
const RUNS: usize = 20;

/// The two sweeps, and all layouts of one sweep; the first of these with other numbers of heads side by side, too.
fn fused_algorithms(widths: [usize; 2], target: Target) -> Vec<(String, BackwardAlgorithm)> {
    let width = widths[0].max(widths[1]);
    let sweeps = tuning::wgmma_sweeps(DType::BF16, target, widths.map(|width| width as u32), false)
        .map(BackwardAlgorithm::Wgmma);
    let mut all: Vec<_> = sweeps.into_iter().map(|algorithm| ("two sweeps".to_owned(), algorithm)).collect();
    for (i, layout) in tuning::wgmma_fused_layouts(width).into_iter().enumerate() {
        let WgmmaFused { columns, tiles, width, ahead } = layout;
        let name =
            format!("d{width}, {columns} queries, {tiles} tiles{}", if ahead { ", ahead" } else { "" });
        all.push((name.clone(), BackwardAlgorithm::WgmmaFused { layout, heads_at_once: None }));
        let others = [1, 4, 16].map(Some).into_iter().filter(|_| i == 0);
        all.extend(others.map(|heads_at_once| {
            let heads = heads_at_once.unwrap_or(0);
            (format!("{name}, {heads} heads"), BackwardAlgorithm::WgmmaFused { layout, heads_at_once })
        }));
    }
    all
}

/// Microseconds of whole plans, the median.
fn time_whole<O: Operation>(stream: &Stream, plan: &Plan<O>, tensors: &[Rc<Tensor>]) -> Result<f64, Error> {
    let bindings: Vec<_> = tensors.iter().map(|tensor| tensor.binding()).collect();
    let mut all = Vec::new();
    for _ in 0..SAMPLES {
        let begin = stream.record()?;
        for step in plan.steps() {
            stream.launch(step, &bindings)?;
        }
        let end = stream.record()?;
        stream.synchronize()?;
        all.extend(begin.elapsed_us(&end)?);
    }
    all.sort_by(f64::total_cmp);
    Ok(all.get(all.len() / 2).copied().unwrap_or(f64::NAN))
}

/// Times one problem with each algorithm.
fn measure_fused(
    (device, stream): (&Device, &Stream),
    desc: &AttentionBackwardDesc,
    inputs: &[(&str, Rc<Tensor>)],
) -> Result<(), Error> {
    let [batch, sequence, heads, width] = desc.forward.q.shape;
    let widths = [width, desc.forward.v.shape[3]];
    let causal = desc.forward.options.causal;
    let forward = desc.forward.plan(device.target())?;
    let of_forward = tensors(device, &forward, inputs)?;
    time(stream, &forward, &of_forward)?;
    let named = |name: &str| forward.tensors().iter().position(|spec| spec.name == name).unwrap_or(0);
    let given = ["q", "k", "v", "o", "lse"].map(|name| (name, Rc::clone(&of_forward[named(name)])));
    let given: Vec<_> = given.into_iter().chain(inputs.iter().cloned()).collect();
    let operations = 5.0 * (batch * heads) as f64 * (sequence * sequence * (widths[0] + widths[1])) as f64
        / if causal { 2.0 } else { 1.0 };
    println!("d{} sequence {sequence} {}", name_of(widths), if causal { "causal" } else { "full" });
    let mut first: Option<Vec<Vec<f32>>> = None;
    for (name, algorithm) in fused_algorithms(widths, device.target()) {
        let Ok(plan) = desc.plan_with(device.target(), algorithm) else { continue };
        let of_plan = tensors(device, &plan, &given)?;
        plan.warm_up(device)?;
        let us = time_whole(stream, &plan, &of_plan)?;
        let steps = time(stream, &plan, &of_plan)?;
        let steps: Vec<_> = steps.iter().map(|us| format!("{us:.0}")).collect();
        let rate = operations / us / 1e6;
        print!("  {us:>8.1} us {rate:>6.1} TFLOP/s ({}) {name}", steps.join(" + "));
        let written: Vec<_> = of_plan
            .iter()
            .zip(plan.tensors())
            .filter(|(_, spec)| spec.access == Access::Write && ["dq", "dk", "dv"].contains(&spec.name))
            .map(|(tensor, _)| tensor)
            .collect();
        // The others are sums of one block each.
        let bytes = || written[0].to_bytes();
        let before = bytes()?;
        if matches!(algorithm, BackwardAlgorithm::WgmmaFused { heads_at_once: None, .. }) {
            let bindings: Vec<_> = of_plan.iter().map(|tensor| tensor.binding()).collect();
            let mut others = 0;
            for _ in 0..RUNS {
                for step in plan.steps() {
                    stream.launch(step, &bindings)?;
                }
                stream.synchronize()?;
                others += usize::from(bytes()? != before);
            }
            print!("; {others} of {RUNS} runs differ");
        }
        let gradients = written.iter().map(|tensor| floats(tensor)).collect::<Result<Vec<_>, _>>()?;
        match &first {
            None => first = Some(gradients),
            Some(first) => {
                let far = first.iter().zip(&gradients).map(|(a, b)| distance(b, a));
                print!("; apart {}", far.map(|x| format!("{x:.1e} ")).collect::<String>());
                let largest = |(a, b): (&Vec<f32>, &Vec<f32>)| {
                    a.iter()
                        .zip(b)
                        .map(|(a, b)| (a - b).abs())
                        .fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a })
                };
                let most = first.iter().zip(&gradients).map(largest);
                print!("at most {}", most.map(|x| format!("{x:.1e} ")).collect::<String>());
            }
        }
        println!();
    }
    Ok(())
}

/// Times one sweep for all gradients.
fn fused((device, stream): (&Device, &Stream), all: &[[usize; 2]]) -> Result<(), Error> {
    let input = |(seed, name, elements): (u64, &'static str, usize)| {
        let tensor = Tensor::from_bytes(device, DType::BF16, &random(elements, seed), &[elements])?;
        Ok((name, Rc::new(tensor)))
    };
    for widths in all {
        let [q, v] = widths.map(|width| TOKENS * heads_of(*widths) * width);
        let inputs = [(1, "q", q), (2, "k", q), (3, "v", v), (99, "dy", v)].map(input);
        let inputs = inputs.into_iter().collect::<Result<Vec<_>, Error>>()?;
        for sequence in [4096, 1024, 16384, 512] {
            for causal in [false, true] {
                measure_fused((device, stream), &problem_of(*widths, sequence, masked(causal)), &inputs)?;
            }
        }
    }
    Ok(())
}

fn write(directory: &Path) -> Result<(), Error> {
    for widths in [[64; 2], [128; 2], [160; 2], [192, 128], [192; 2], [256; 2]] {
        for causal in [false, true] {
            let desc = problem(widths, masked(causal));
            for configs in layouts(widths.map(|width| width as u32)) {
                let plan = desc.plan_with(Target::sm(90), BackwardAlgorithm::Wgmma(configs))?;
                for step in plan.steps().iter().skip(1) {
                    let kernel = step.kernel();
                    let path = directory.join(format!("{}.ptx", kernel.name()));
                    std::fs::write(path, kernel.text()).unwrap_or_else(|e| eprintln!("{e}"));
                }
            }
        }
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, directory] = &args[..]
        && mode == "ptx"
    {
        return write(Path::new(directory));
    }
    let widths: Vec<[usize; 2]> = args.iter().filter_map(|arg| widths_of(arg)).collect();
    let device = Device::best();
    let (stream, target) = (device.stream()?, device.target());
    println!("{}, {target}", device.name());
    if args.first().is_some_and(|mode| mode == "fused") {
        return fused((&device, &stream), if widths.is_empty() { &[[128; 2], [64; 2]] } else { &widths });
    }
    let of_blocks = args.first().is_some_and(|mode| mode == "mma");
    for widths in if widths.is_empty() { vec![[64; 2], [128; 2], [256; 2]] } else { widths } {
        let bias = Some(Layout::contiguous([1, 1, SEQUENCE, SEQUENCE]));
        let dropout = Some(Real::new(0.1));
        let cases = [
            ("full", masked(false)),
            ("causal", masked(true)),
            ("causal, dropout", AttentionOptions { dropout, ..masked(true) }),
            ("bias", AttentionOptions { bias, ..masked(false) }),
        ];
        for (what, options) in cases.into_iter().take(if of_blocks { 4 } else { 2 }) {
            let desc = problem(widths, options);
            let plans = if of_blocks { plans_of_blocks(&desc, target)? } else { plans(&desc, target)? };
            measure((&device, &stream), &format!("d{} {what}", name_of(widths)), &desc, plans)?;
        }
    }
    Ok(())
}
