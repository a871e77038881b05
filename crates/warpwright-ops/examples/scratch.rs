#![allow(warnings, clippy::all)]
use std::rc::Rc;
use warpwright::attention::tuning::{self, WgmmaFused, WgmmaSweep, WgmmaSweeps, Work};
use warpwright::attention::{
    AttentionBackwardDesc, AttentionDesc, AttentionOptions, BackwardAlgorithm, Window,
};
use warpwright::plan::{Access, Layout, TensorSpec};
use warpwright::{DType, Device, Error, Operation, Plan, Stream, Target, Tensor};
use warpwright_runtime::{EmulatorConfig, OnFinding};

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
            Access::Read if spec.name == "key_lengths" => {
                let v: Vec<u8> =
                    (0..spec.len).flat_map(|b| ([100i32, 0, 1000][b % 3]).to_le_bytes()).collect();
                Tensor::from_bytes(device, spec.dtype, &v, &[spec.len])?
            }
            Access::Read if spec.len > 0 && spec.dtype == DType::BF16 => {
                Tensor::from_bytes(device, spec.dtype, &random(spec.len, slot as u64 + 1), &[spec.len])?
            }
            Access::Read => Tensor::zeros(device, spec.dtype, &[spec.len])?,
            Access::Write => Tensor::empty(device, spec.dtype, &[spec.len])?,
        }))
    };
    plan.tensors().iter().enumerate().map(tensor).collect()
}
fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor
        .to_bytes()
        .unwrap()
        .chunks_exact(2)
        .map(|p| f32::from_bits(u32::from(u16::from_le_bytes([p[0], p[1]])) << 16))
        .collect()
}
fn run<O: Operation>(stream: &Stream, plan: &Plan<O>, t: &[Rc<Tensor>]) {
    let b: Vec<_> = t.iter().map(|t| t.binding()).collect();
    for step in plan.steps() {
        stream.launch(step, &b).unwrap_or_else(|e| panic!("{}: {e}", step.kernel().name()));
        stream.synchronize().unwrap_or_else(|e| {
            println!("{}: {e}", step.kernel().name());
            std::process::exit(1)
        });
    }
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let kinds = [(false, false), (true, false), (true, true)];
    let desc = |[b, q, kk, h, kh, w, vw]: [usize; 7], causal: bool, lengths: bool, left: Option<u32>| {
        let l = |rows, heads, width| Layout::contiguous([b, rows, heads, width]);
        let options = AttentionOptions {
            causal,
            key_lengths: lengths,
            window: Window { left, right: None },
            ..Default::default()
        };
        let forward = AttentionDesc {
            dtype: DType::BF16,
            q: l(q, h, w),
            k: l(kk, kh, w),
            v: l(kk, kh, vw),
            o: l(q, h, vw),
            options,
        };
        AttentionBackwardDesc {
            dy: forward.o,
            dq: forward.q,
            dk: forward.k,
            dv: forward.v,
            dbias: false,
            dsinks: false,
            forward,
        }
    };
    if args[1] == "ptx" {
        for width in [64usize, 128] {
            for (causal, lengths) in kinds {
                for config in tuning::wgmma_fused_layouts(width) {
                    let d = desc([1, 512, 512, 1, 1, width, width], causal, lengths, None);
                    match d.plan_with(
                        Target::sm(90),
                        BackwardAlgorithm::WgmmaFused { layout: config, heads_at_once: None },
                    ) {
                        Ok(plan) => {
                            for step in plan.steps() {
                                std::fs::write(
                                    format!("{}/{}.ptx", args[2], step.kernel().name()),
                                    step.kernel().text(),
                                )
                                .unwrap();
                            }
                        }
                        Err(e) => println!("{e}"),
                    }
                }
            }
        }
        return;
    }
    let of = |columns, tiles, width, ds_buffers, dq_buffers, ahead| WgmmaFused {
        columns,
        tiles,
        width,
        ds_buffers,
        dq_buffers,
        ahead,
        early_values: dq_buffers == 1,
    };
    let cases: Vec<([usize; 7], bool, bool, Option<u32>, WgmmaFused)> = vec![
        ([1, 128, 128, 1, 1, 64, 64], false, false, None, of(64, 4, 64, 1, 1, false)),
        ([1, 200, 300, 2, 1, 64, 64], false, false, None, of(64, 4, 64, 1, 1, false)),
        ([2, 300, 300, 2, 2, 64, 64], true, false, None, of(64, 4, 64, 2, 2, false)),
        ([2, 300, 300, 2, 2, 64, 64], true, false, None, of(64, 5, 64, 2, 2, true)),
        ([1, 300, 400, 4, 2, 64, 40], true, false, Some(100), of(32, 3, 64, 1, 2, true)),
        ([3, 300, 300, 2, 1, 64, 64], true, true, None, of(128, 4, 64, 1, 1, false)),
        ([3, 300, 300, 2, 1, 64, 64], false, true, None, of(96, 4, 64, 2, 1, false)),
        ([1, 200, 300, 2, 1, 128, 128], false, false, None, of(64, 4, 128, 1, 1, false)),
        ([1, 300, 300, 2, 2, 128, 128], true, false, None, of(64, 4, 128, 2, 1, true)),
        ([1, 300, 300, 2, 2, 128, 128], true, false, None, of(64, 4, 128, 1, 2, true)),
        ([3, 300, 300, 2, 2, 128, 72], true, true, None, of(80, 4, 128, 1, 1, false)),
        ([1, 100, 300, 2, 2, 96, 128], true, true, Some(20), of(16, 4, 128, 1, 1, false)),
    ];
    let which: Vec<usize> = args[2..].iter().filter_map(|a| a.parse().ok()).collect();
    for (number, (sizes, causal, lengths, left, config)) in cases.into_iter().enumerate() {
        if !which.is_empty() && !which.contains(&number) {
            continue;
        }
        let d = desc(sizes, causal, lengths, left);
        for (seed, threads) in [(0, 1), (7, 2)] {
            let start = std::time::Instant::now();
            let device = Device::emulator_with(EmulatorConfig {
                target: Target::sm(90),
                seed,
                threads,
                on_finding: OnFinding::Fail,
                ..Default::default()
            });
            let stream = device.stream().unwrap();
            let forward = d.forward.plan(Target::sm(90)).unwrap();
            let of_forward = tensors(&device, &forward, &[]).unwrap();
            run(&stream, &forward, &of_forward);
            let named = |name: &str| forward.tensors().iter().position(|spec| spec.name == name).unwrap_or(0);
            let mut given: Vec<_> = ["q", "k", "v", "o", "lse", "key_lengths"]
                .map(|name| (name, Rc::clone(&of_forward[named(name)])))
                .to_vec();
            let n = d.dy.shape.iter().product::<usize>();
            given.push((
                "dy",
                Rc::new(Tensor::from_bytes(&device, DType::BF16, &random(n, 99), &[n]).unwrap()),
            ));
            let sweeps = tuning::wgmma_sweeps(DType::BF16, Target::sm(90), sizes[5].max(sizes[6])).unwrap();
            let mut results = Vec::new();
            for algorithm in [
                BackwardAlgorithm::Wgmma(sweeps),
                BackwardAlgorithm::WgmmaFused { layout: config, heads_at_once: None },
            ] {
                let plan = d.plan_with(Target::sm(90), algorithm).unwrap();
                let t = tensors(&device, &plan, &given).unwrap();
                run(&stream, &plan, &t);
                let r: Vec<_> = t
                    .iter()
                    .zip(plan.tensors())
                    .filter(|(_, s)| ["dq", "dk", "dv"].contains(&s.name))
                    .map(|(t, s)| (s.name, floats(t)))
                    .collect();
                results.push(r);
            }
            print!("case {number} seed {seed}: ");
            for (a, b) in results[0].iter().zip(&results[1]) {
                let (mut diff, mut norm, mut bad) = (0f64, 0f64, 0);
                for (x, y) in a.1.iter().zip(&b.1) {
                    if !x.is_finite() || !y.is_finite() {
                        bad += 1;
                        continue;
                    }
                    diff += f64::from(x - y).powi(2);
                    norm += f64::from(*x).powi(2);
                }
                print!("{} {:.2e} bad {bad}; ", a.0, (diff / norm).sqrt());
            }
            println!("{:.1} s", start.elapsed().as_secs_f32());
        }
    }
}
