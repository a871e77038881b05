//! Moments, combinations over blocks, and sums of columns, in the emulator.

mod support;

use support::{Arg, bytes, run, values};
use warpwright_dsl::prelude::*;
use warpwright_dsl::{COLUMN_SUM_LANES, column_sums};
use warpwright_ptx::ArgValue;

kernel_args! {
    struct MomentsArgs => MomentsParams { x: In<f32>, out: Out<f32>, n: u32 }
}

/// How the values of a group of threads become moments.
#[derive(Clone, Copy, Debug)]
enum Way {
    Push,
    MergeVectors,
}

struct GroupMoments {
    way: Way,
    block: u32,
    group: u32,
}

impl KernelDef for GroupMoments {
    type Args = MomentsArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("moments_{:?}_{}_{}", self.way, self.block, self.group),
            BlockDim::x(self.block),
        )
    }

    /// Every group takes `n` values; each thread writes the count, mean and variance that it received.
    fn build<'k>(&self, k: K<'k>, a: MomentsParams<'k>) {
        let thread = k.thread_idx();
        let (group, within) = (thread / self.group, thread % self.group);
        let x = a.x.at(group * a.n);
        let mine = match self.way {
            Way::Push => {
                let own = k.range(within, a.n, self.group);
                k.fold(own, Moments::empty(k), |i, m: Moments<'k, f32>| m.push(x.at(i).get()))
            }
            Way::MergeVectors => {
                let own = k.range(within * 4, a.n, self.group * 4);
                k.fold(own, Moments::empty(k), |i, m: Moments<'k, f32>| {
                    Moments::of(&x.at(i).load(4)).map_or(m, |other| m.merge(other))
                })
            }
        };
        let all = k.group_combine(self.group, mine, Moments::merge);
        for (at, value) in (0u32..).zip([all.count, all.mean, all.variance()]) {
            a.out.at(thread * 3 + at).set(value);
        }
    }
}

fn moments(way: Way, block: u32, group: u32, n: u32, value: impl Fn(u32) -> f32) {
    let groups = block / group;
    let x: Vec<f32> = (0..groups * n).map(value).collect();
    let mut out = vec![0; 12 * block as usize];
    let args = &mut [Arg::Buffer(&mut bytes(&x)), Arg::Buffer(&mut out), Arg::Scalar(ArgValue::U32(n))];
    run(&GroupMoments { way, block, group }, Target::sm(75), 1, args);
    let out = values::<f32>(&out);
    for (thread, got) in out.chunks(3).enumerate() {
        let number = thread / group as usize;
        let of_group = &x[number * n as usize..][..n as usize];
        let mean = of_group.iter().map(|&v| f64::from(v)).sum::<f64>() / f64::from(n);
        let square = of_group.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>();
        let variance = square / f64::from(n);
        let what = format!("{way:?}, thread {thread} of {block} in groups, n = {n}: {got:?}");
        assert_eq!(got[0], n as f32, "{what}");
        // The mean is rounded a few times, which its distance from the truth adds to the variance.
        let slack = 4.0 * f64::from(f32::EPSILON) * mean.abs();
        assert!((f64::from(got[1]) - mean).abs() <= slack + 1e-6, "{what}, mean {mean}");
        assert!(
            (f64::from(got[2]) - variance).abs() <= 2e-6 * variance + slack * slack,
            "{what}, {variance}"
        );
        let first = &out[3 * number * group as usize..][..3];
        assert!(got.iter().zip(first).all(|(a, b)| a.to_bits() == b.to_bits()), "{what}: not the same bits");
    }
}

fn wavy(i: u32) -> f32 {
    (i.wrapping_mul(0x9e37_79b9) >> 8) as f32 / 16_777_216.0 - 0.5
}

#[test]
fn every_thread_has_the_moments_of_its_group() {
    for way in [Way::Push, Way::MergeVectors] {
        for (block, group) in [(32, 1), (32, 8), (32, 32), (128, 32), (128, 64), (256, 256), (192, 64)] {
            for n in [4, 52, 1024] {
                moments(way, block, group, n, wavy);
            }
        }
    }
}

#[test]
fn a_large_mean_leaves_the_variance() {
    for way in [Way::Push, Way::MergeVectors] {
        moments(way, 128, 128, 2048, |i| 1e4 + 0.1 * wavy(i));
    }
}

kernel_args! {
    struct ColumnArgs => ColumnParams { x: In<f32>, y: Out<f32>, rows: u32, columns: u64 }
}

struct Columns {
    depth: u32,
}

impl KernelDef for Columns {
    type Args = ColumnArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("columns_{}", self.depth), BlockDim::xy(COLUMN_SUM_LANES, self.depth))
    }

    fn build<'k>(&self, k: K<'k>, a: ColumnParams<'k>) {
        column_sums::<f32, _, _>(k, a.x, a.rows, a.columns, |column, sum| a.y.at(column).set(sum));
    }
}

#[test]
fn columns_are_summed_for_any_shape() {
    for depth in [1, 4, 32] {
        for (rows, columns) in [(0, 5), (1, 1), (3, 31), (7, 32), (100, 33), (33, 70)] {
            let x: Vec<f32> = (0..rows * columns).map(|i| (i % 101) as f32 - 50.0).collect();
            let mut y = bytes(&vec![9.0f32; columns as usize]);
            let args = &mut [
                Arg::Buffer(&mut bytes(&x)),
                Arg::Buffer(&mut y),
                Arg::Scalar(ArgValue::U32(rows)),
                Arg::Scalar(ArgValue::U64(u64::from(columns))),
            ];
            run(&Columns { depth }, Target::sm(75), columns.div_ceil(COLUMN_SUM_LANES), args);
            let y = values::<f32>(&y);
            for (column, &got) in y.iter().enumerate() {
                let sum: f32 = x.iter().skip(column).step_by(columns as usize).sum();
                assert_eq!(got, sum, "column {column} of {rows} x {columns}, depth {depth}");
            }
        }
    }
}
