//! Whole kernels of tensor-core instructions, with results that are known.

use half::bf16;
use warpwright_emu::{
    LaunchConfig, Memory, Options, Program, TensorElement, TensorMap, TensorSwizzle, launch,
};

/// Runs the only kernel of a module under all sanitizers; the last buffer comes back. `params` makes the parameters from
/// the addresses of the buffers.
fn run_with(
    text: &str,
    config: &LaunchConfig,
    buffers: &[Vec<u8>],
    params: impl Fn(&[u64]) -> Vec<u8>,
) -> Vec<u8> {
    let program = Program::load(text).unwrap_or_else(|e| panic!("{e}"));
    let entry = program.module().functions[0].name.clone();
    let memory = Memory::new();
    let mut addresses = Vec::new();
    for (i, data) in buffers.iter().enumerate() {
        let address = memory.alloc(data.len() as u64, &format!("buffer {i}")).expect("memory");
        memory.write(address, data).expect("inside the allocation");
        addresses.push(address);
    }
    let report = launch(&program, &entry, config, &params(&addresses), &memory, &Options::default())
        .unwrap_or_else(|e| panic!("{e}"));
    let findings: String = report.findings.iter().map(|f| f.render(None, text)).collect();
    assert!(findings.is_empty(), "{findings}");
    let mut out = vec![0; buffers.last().map_or(0, Vec::len)];
    memory.read(addresses[addresses.len() - 1], &mut out).expect("inside the allocation");
    out
}

/// The same with one warp and the buffers as parameters.
fn run(text: &str, buffers: &[Vec<u8>]) -> Vec<u8> {
    let params = |addresses: &[u64]| addresses.iter().flat_map(|a| a.to_le_bytes()).collect();
    run_with(text, &LaunchConfig::linear(1, 32), buffers, params)
}

/// A tensor map of boxes of 64x64 over a matrix of bf16.
fn map(base: u64, rows: u64, columns: u64) -> [u8; 128] {
    TensorMap::dense(base, TensorElement::BF16, &[columns, rows], &[64, 64], TensorSwizzle::B128).encode()
}

fn bf16_bytes(m: &[bf16]) -> Vec<u8> {
    m.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect()
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
    let number = |i: usize, step: usize| bf16::from_f32((i * step % 17) as f32 - 8.0);
    let a: Vec<bf16> = (0..16 * 16).map(|i| number(i, 5)).collect();
    let b: Vec<bf16> = (0..16 * 8).map(|i| number(i, 7)).collect();
    let out =
        words(&run(include_str!("kernels/mma_tile.ptx"), &[bf16_bytes(&a), bf16_bytes(&b), vec![0; 512]]));
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

#[test]
fn tiles_that_tensor_copies_bring() {
    let number = |i: usize, step: usize| bf16::from_f32((i * step % 13) as f32 - 6.0);
    let a: Vec<bf16> = (0..64 * 64).map(|i| number(i, 5)).collect();
    let b: Vec<bf16> = (0..64 * 64).map(|i| number(i, 7)).collect();
    let config = LaunchConfig { dynamic_shared: 16384, ..LaunchConfig::linear(1, 128) };
    let params = |at: &[u64]| [&map(at[0], 64, 64)[..], &map(at[1], 64, 64), &at[2].to_le_bytes()].concat();
    let buffers = [bf16_bytes(&a), bf16_bytes(&b), vec![0; 64 * 64 * 4]];
    let out = words(&run_with(include_str!("kernels/wgmma_tiles.ptx"), &config, &buffers, params));
    for (at, word) in out.iter().enumerate() {
        let (row, column) = (at / 64, at % 64);
        let want: f32 = (0..64).map(|k| a[64 * row + k].to_f32() * b[64 * column + k].to_f32()).sum();
        assert_eq!(f32::from_bits(*word), want, "row {row}, column {column}");
    }
}

#[test]
fn weights_from_registers_times_values() {
    let weights: Vec<f32> = (0..64 * 64).map(|i| (i * 5 % 11) as f32 - 5.0).collect();
    let values: Vec<bf16> = (0..64 * 128).map(|i| bf16::from_f32((i * 3 % 17) as f32 - 8.0)).collect();
    let config = LaunchConfig { dynamic_shared: 16384, ..LaunchConfig::linear(1, 128) };
    let params = |at: &[u64]| [&map(at[0], 64, 128)[..], &at[1].to_le_bytes(), &at[2].to_le_bytes()].concat();
    let weight_bytes = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
    let buffers = [bf16_bytes(&values), weight_bytes, vec![0; 64 * 128 * 4]];
    let out = words(&run_with(include_str!("kernels/wgmma_attention.ptx"), &config, &buffers, params));
    for (at, word) in out.iter().enumerate() {
        let (row, column) = (at / 128, at % 128);
        let want: f32 = (0..64).map(|k| weights[64 * row + k] * values[128 * k + column].to_f32()).sum();
        assert_eq!(f32::from_bits(*word), want, "row {row}, column {column}");
    }
}
