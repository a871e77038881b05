//! Warp instructions per second of one worker, without sanitizers and with all of them.
//!
//! `fma` is bound by arithmetic, `mma` by products of tensor cores, `copy` by contiguous loads and stores, and `norm` mixes
//! loads, arithmetic, shuffles, shared memory and barriers as a normalisation does; `masked` is `norm` with guarded loads, whose
//! definedness is followed to the results. Throughput is printed in elements, which are
//! warp instructions.

use std::borrow::Cow;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use warpwright_emu::{LaunchConfig, Memory, Options, Program, Sanitizers, launch};

struct Case {
    name: &'static str,
    text: Cow<'static, str>,
    config: LaunchConfig,
    params: Vec<u8>,
    memory: Memory,
}

fn cases() -> Result<Vec<Case>, Box<dyn std::error::Error>> {
    let floats = 64 * 2048u64;
    let buffer = |memory: &Memory, label: &str| -> Result<u64, Box<dyn std::error::Error>> {
        let address = memory.alloc(4 * floats, label)?;
        let data: Vec<u8> = (0..floats).flat_map(|i| ((i % 97) as f32 * 0.25).to_le_bytes()).collect();
        memory.write(address, &data)?;
        Ok(address)
    };
    let mut cases = Vec::new();
    let memory = Memory::new();
    let out = buffer(&memory, "out")?;
    let mut params = out.to_le_bytes().to_vec();
    params.extend(2000u32.to_le_bytes());
    let config = LaunchConfig::linear(2, 256);
    cases.push(Case { name: "fma", text: include_str!("kernels/fma.ptx").into(), config, params, memory });

    let memory = Memory::new();
    let mut params = buffer(&memory, "out")?.to_le_bytes().to_vec();
    params.extend(200u32.to_le_bytes());
    let config = LaunchConfig::linear(2, 128);
    cases.push(Case { name: "mma", text: include_str!("kernels/mma.ptx").into(), config, params, memory });

    let memory = Memory::new();
    let mut params = buffer(&memory, "x")?.to_le_bytes().to_vec();
    params.extend(buffer(&memory, "y")?.to_le_bytes());
    params.extend((floats as u32).to_le_bytes());
    let config = LaunchConfig::linear(4, 256);
    cases.push(Case { name: "copy", text: include_str!("kernels/copy.ptx").into(), config, params, memory });

    let text = include_str!("kernels/norm.ptx");
    let masked = text
        .replace(".entry norm", ".entry masked")
        .replace("setp.eq.u32 %p0, %r7, 0;", "setp.eq.u32 %p0, %r7, 0;\nsetp.lt.u32 %p1, %r7, 32;")
        .replace("ld.global", "@%p1 ld.global");
    for (name, text) in [("norm", text.into()), ("masked", masked.into())] {
        let memory = Memory::new();
        let mut params = buffer(&memory, "x")?.to_le_bytes().to_vec();
        params.extend(buffer(&memory, "y")?.to_le_bytes());
        cases.push(Case { name, text, config: LaunchConfig::linear(64, 256), params, memory });
    }
    Ok(cases)
}

fn interpreter(c: &mut Criterion) {
    let cases = cases().unwrap_or_else(|e| panic!("the benchmark's own kernels must run: {e}"));
    for case in &cases {
        let program = Program::load(&case.text).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let mut group = c.benchmark_group(case.name);
        group
            .warm_up_time(Duration::from_millis(300))
            .measurement_time(Duration::from_secs(1))
            .sample_size(20);
        let one_by_one = [
            ("none", Sanitizers::empty()),
            ("memcheck", Sanitizers::MEMCHECK),
            ("initcheck", Sanitizers::INITCHECK),
            ("racecheck", Sanitizers::RACECHECK),
            ("synccheck", Sanitizers::SYNCCHECK),
            ("all", Sanitizers::all()),
        ];
        for (name, sanitizers) in one_by_one {
            let options = Options { sanitizers, threads: 1, ..Options::default() };
            let run = || {
                launch(&program, case.name, &case.config, &case.params, &case.memory, &options)
                    .unwrap_or_else(|e| panic!("{}: {e}", case.name))
            };
            let report = run();
            assert!(report.is_clean(), "{}: {:?}", case.name, report.findings);
            group.throughput(Throughput::Elements(report.steps));
            group.bench_function(name, |b| b.iter(run));
        }
        group.finish();
    }
}

criterion_group!(benches, interpreter);
criterion_main!(benches);
