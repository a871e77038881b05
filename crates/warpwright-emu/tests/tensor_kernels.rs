//! Whole kernels of tensor-core instructions, with results that are known.

use half::bf16;
use warpwright_emu::{LaunchConfig, Memory, Options, Program, Report, launch};

/// Runs the only kernel of a module under all sanitizers, with one warp and the given buffers; the last one comes back.
fn run(text: &str, buffers: &[Vec<u8>]) -> Vec<u8> {
    let program = Program::load(text).unwrap_or_else(|e| panic!("{e}"));
    let entry = program.module().functions[0].name.clone();
    let memory = Memory::new();
    let mut params = Vec::new();
    let mut last = 0;
    for (i, data) in buffers.iter().enumerate() {
        last = memory.alloc(data.len() as u64, &format!("buffer {i}")).expect("memory");
        memory.write(last, data).expect("inside the allocation");
        params.extend(last.to_le_bytes());
    }
    let config = LaunchConfig::linear(1, 32);
    let report: Report = launch(&program, &entry, &config, &params, &memory, &Options::default())
        .unwrap_or_else(|e| panic!("{e}"));
    let findings: String = report.findings.iter().map(|f| f.render(None, text)).collect();
    assert!(findings.is_empty(), "{findings}");
    let mut out = vec![0; buffers.last().map_or(0, Vec::len)];
    memory.read(last, &mut out).expect("inside the allocation");
    out
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
}

#[test]
fn products_of_ones_and_twos() {
    let out = words(&run(include_str!("kernels/mma_half.ptx"), &[vec![0; 1024]]));
    assert!(out[..128].iter().all(|w| f32::from_bits(*w) == 32.5), "{out:x?}");
}

#[test]
fn matrices_of_their_own_addresses() {
    let out = words(&run(include_str!("kernels/ldmatrix.ptx"), &[vec![0; 512]]));
    for (at, word) in (0u32..).zip(out) {
        let (lane, m) = (at / 4, at % 4);
        let low = lane / 4 * 64 + 8 * m + 2 * (lane % 4);
        assert_eq!(word, low | (low + 1) << 16, "lane {lane}, register {m}");
    }
}

#[test]
fn a_tile_from_shared_memory() {
    let number = |i: usize, step: usize| bf16::from_f64((i * step % 17) as f64 - 8.0);
    let a: Vec<bf16> = (0..16 * 16).map(|i| number(i, 5)).collect();
    let b: Vec<bf16> = (0..16 * 8).map(|i| number(i, 7)).collect();
    let bytes = |m: &[bf16]| m.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect::<Vec<_>>();
    let out = words(&run(include_str!("kernels/mma_tile.ptx"), &[bytes(&a), bytes(&b), vec![0; 512]]));
    for (at, word) in out.iter().enumerate() {
        let (row, column) = (at / 8, at % 8);
        let want: f32 = (0..16).map(|k| a[16 * row + k].to_f32() * b[8 * k + column].to_f32()).sum();
        assert_eq!(f32::from_bits(*word), want, "row {row}, column {column}");
    }
}

#[test]
fn every_kind_of_product_of_zeros() {
    let out = run(include_str!("kernels/mma_kinds.ptx"), &[vec![0; 256]]);
    assert!(out.iter().all(|b| *b == 0), "{out:?}");
}
