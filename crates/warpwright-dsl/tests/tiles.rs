//! Tiles in registers, in the emulator with every sanitizer on: the attention of one tile of keys, held against f64.

mod support;

use half::bf16;
use support::{Arg, bytes, run, values};
use warpwright_dsl::prelude::*;
use warpwright_dsl::record;

/// Queries, keys, and elements of a head.
const ROWS: usize = 32;
const KEYS: usize = 64;
const WIDTH: usize = 64;

kernel_args! {
    struct AttendArgs => AttendParams { q: In<Elem>, k: In<Elem>, v: In<Elem>, o: Out<Elem>, max: Out<f32> }
}

/// `o = softmax(q k^T) v` of one warp.
struct Attend;

impl KernelDef for Attend {
    type Args = AttendArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("attend".to_owned(), BlockDim::x(32))
            .dtypes(DTypes::all(DType::BF16).with("o", DType::F32))
    }

    fn build<'k>(&self, k: K<'k>, p: AttendParams<'k>) {
        let (atom, zero) = (MmaAtom::BF16, k.lit(0u32));
        let (rows, keys, width) = (ROWS as u32, KEYS as u32, WIDTH as u32);
        let [q, keys_tile, v] = [(p.q, rows), (p.k, keys), (p.v, keys)].map(|(data, rows)| {
            let tile = k.shared_tile(TileLayout::new(DType::BF16, rows, width));
            let copy = k.tile_copy(tile, data, k.lit(u64::from(width)), 16, (k.thread_idx(), 32));
            copy.start(zero, Bounds { rows: None, cols: None }, None);
            tile
        });
        k.commit_copies();
        k.wait_copies(0);
        k.barrier();

        let (q, keys_tile) = (q.reader_a(atom, Major::K, zero), keys_tile.reader_b(atom, Major::K, zero));
        let mut s = RegTile::<f32>::zero_sums(k, atom, rows, keys);
        for depth in (0..width).step_by(16) {
            let q: Vec<_> = (0..rows).step_by(16).map(|row| q.load(row, depth)).collect();
            for column in (0..keys).step_by(16) {
                s.mma(column, &q, &keys_tile.load_pair(column, depth));
            }
        }
        let max = s.row_max();
        let e = s.map(|row, _, s| (s - max[row]).exp());
        let weights = &e * &e.row_sum().map(|sum| 1.0 / sum);
        let v = v.reader_b(atom, Major::Mn, zero);
        let mut o = RegTile::<f32>::zero_sums(k, atom, rows, width);
        for depth in (0..keys).step_by(16) {
            let weights = weights.fragments(atom, depth);
            for column in (0..width).step_by(16) {
                o.mma(column, &weights, &v.load_pair(column, depth));
            }
        }
        let (row, column) = k.accumulator_origin();
        for (i, values) in (0..).zip(o.rows()) {
            let row = row + i * 8;
            for (at, pair) in (0..width).step_by(8).zip(values.chunks(2)) {
                p.o.at(row.mul_wide(width)).at(column + at).store(Lanes::from(pair.to_vec()));
            }
            p.max.at(row).only_where(column.eq(0), Fill::Zero).set(max[i as usize]);
        }
    }
}

fn numbers(count: usize, salt: usize, scale: f64) -> Vec<f64> {
    let number = |i: usize| (((i + salt) * 7919 % 1009) as f64 / 1009.0 - 0.5) * scale;
    (0..count).map(|i| bf16::from_f32(number(i) as f32).to_f64()).collect()
}

#[test]
fn one_tile_of_attention_is_that_of_f64() {
    let (q, k, v) =
        (numbers(ROWS * WIDTH, 1, 2.0), numbers(KEYS * WIDTH, 500, 2.0), numbers(KEYS * WIDTH, 77, 1.0));
    let encoded = |xs: &[f64]| bytes(&xs.iter().map(|x| bf16::from_f32(*x as f32)).collect::<Vec<_>>());
    let (mut q_bytes, mut k_bytes, mut v_bytes) = (encoded(&q), encoded(&k), encoded(&v));
    let (mut o, mut max) = (vec![0; ROWS * WIDTH * 4], vec![0; ROWS * 4]);
    run(
        &Attend,
        Target::sm(80),
        1,
        &mut [
            Arg::Buffer(&mut q_bytes),
            Arg::Buffer(&mut k_bytes),
            Arg::Buffer(&mut v_bytes),
            Arg::Buffer(&mut o),
            Arg::Buffer(&mut max),
        ],
    );
    let (o, max) = (values::<f32>(&o), values::<f32>(&max));
    for row in 0..ROWS {
        let dot = |key: usize| (0..WIDTH).map(|d| q[row * WIDTH + d] * k[key * WIDTH + d]).sum::<f64>();
        let scores: Vec<f64> = (0..KEYS).map(dot).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert!((f64::from(max[row]) - largest).abs() <= 1e-5, "{row}: {} is not {largest}", max[row]);
        let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
        for column in 0..WIDTH {
            let value = |key: usize| (scores[key] - largest).exp() / sum * v[key * WIDTH + column];
            let want: f64 = (0..KEYS).map(value).sum();
            let got = f64::from(o[row * WIDTH + column]);
            // Weights are rounded to bf16 and sum to 1, values are at most 1/2.
            assert!((got - want).abs() <= 0.5 / 256.0, "{row}, {column}: {got} is not {want}");
        }
    }
}

kernel_args! {
    struct SumArgs => SumParams { y: Out<f32> }
}

/// Operations on tiles of two rows that eight lanes share: lane `l` has elements `l` and `l + 8` of each.
struct Sums;

impl KernelDef for Sums {
    type Args = SumArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("sums".to_owned(), BlockDim::x(32))
    }

    fn build<'k>(&self, k: K<'k>, p: SumParams<'k>) {
        let lane = (k.lane_idx() & 7).to_f32();
        let row = (k.lane_idx() >> 3).to_f32();
        let of = |slot: f64| vec![lane + row * 100.0 + slot, lane + 8.0 + row * 100.0 + slot];
        let tile = RegTile::new(k, 8, vec![of(0.0), of(1000.0)]);
        let sums = (&tile + &tile).row_sum();
        let mut outer = RegTile::<f32>::zero(k, 8, 2, 2);
        outer.add_outer(&[lane, lane * 2.0], &[lane, row]);
        let outer = (&outer * k.lit(3.0f32)).row_max();
        let turned = tile.rotated(|row| row.iter().map(|x| *x * 0.0).collect());
        let turned = turned.row_sum();
        for (i, value) in (0u32..).zip([sums[0], sums[1], outer[0], outer[1], turned[0], turned[1]]) {
            let to = p.y.at((k.lane_idx() >> 3) * 6 + i);
            to.only_where((k.lane_idx() & 7).eq(0), Fill::Zero).set(value);
        }
    }
}

#[test]
fn lanes_share_rows() {
    let mut y = vec![0; 24 * 4];
    run(&Sums, Target::sm(80), 1, &mut [Arg::Buffer(&mut y)]);
    let y = values::<f32>(&y);
    for row in 0..4u16 {
        let of_row = f32::from(row);
        let sum = |slot: f32| 2.0 * (120.0 + 16.0 * (100.0 * of_row + slot));
        let largest = |factor: f32| 3.0 * factor * 7.0 * f32::max(7.0, of_row);
        let want = [sum(0.0), sum(1000.0), largest(1.0), largest(2.0), sum(1000.0) / 2.0, 0.0];
        assert_eq!(y[usize::from(row) * 6..][..6], want, "row {row}");
    }
}

/// A product that does not fit its tile.
struct Misfit;

impl KernelDef for Misfit {
    type Args = AttendArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("misfit".to_owned(), BlockDim::x(32))
            .dtypes(DTypes::all(DType::BF16).with("o", DType::F32))
    }

    fn build<'k>(&self, k: K<'k>, p: AttendParams<'k>) {
        let zero = k.lit(0u32);
        let tile = k.shared_tile(TileLayout::new(DType::BF16, 16, 16));
        let a = tile.reader_a(MmaAtom::BF16, Major::K, zero).load(0, 0);
        let b = tile.reader_b(MmaAtom::BF16, Major::K, zero).load_pair(0, 0);
        let mut sum = RegTile::<f32>::zero_sums(k, MmaAtom::BF16, 16, 8);
        sum.mma(0, &[a], &b);
        p.o.at(0u64).store(Lanes::from(sum.row(0).to_vec()));
    }
}

#[test]
fn a_product_that_does_not_fit_is_an_issue() {
    let error = record(&Misfit, Target::sm(80)).expect_err("two blocks of columns for a tile of one");
    assert!(error.to_string().contains("a product's tile"), "{error}");
}
