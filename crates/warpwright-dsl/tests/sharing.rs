//! Values that lanes share out, and pairs of 16-bit floats, in the emulator.

mod support;

use half::{bf16, f16};
use support::{Arg, Bytes, bytes, run, values};
use warpwright_dsl::prelude::*;
use warpwright_dsl::{Halves, WARP};
use warpwright_ptx::float8::e4m3_value;

kernel_args! {
    struct ShareArgs => ShareParams { x: In<u32>, combined: Out<u32>, first: Out<f64> }
}

/// Combines `count` values over groups of `lanes` and hands the first result back to the group.
struct Share {
    lanes: u32,
    count: u32,
}

impl KernelDef for Share {
    type Args = ShareArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("share_{}_{}", self.lanes, self.count), BlockDim::x(WARP))
    }

    fn build<'k>(&self, k: K<'k>, a: ShareParams<'k>) {
        let lane = k.lane_idx();
        let mine = (0..self.count).map(|i| a.x.at(lane * self.count + i).get()).map(|x| (x, x.to_f64()));
        let (least, sum) = k
            .warp_combine_each(self.lanes, mine.collect(), |a, b| (a.0.min(b.0), a.1 + b.1))
            .unwrap_or_else(|| (k.lit(0u32), k.lit(0.0)));
        a.combined.at(lane).set(least);
        let leader = lane & (WARP - self.lanes);
        a.first.at(lane).set(k.from_lane(leader, &sum));
    }
}

#[test]
fn every_lane_receives_its_share_of_the_results() {
    for (lanes, count) in [(1, 1), (2, 1), (2, 2), (8, 2), (8, 8), (16, 4), (32, 1), (32, 32)] {
        let x: Vec<u32> = (0..WARP * count).map(|i| i.wrapping_mul(0x9e37_79b9) >> 8).collect();
        let (mut combined, mut first) = (vec![0; 4 * 32], vec![0; 8 * 32]);
        let args = &mut [Arg::Buffer(&mut bytes(&x)), Arg::Buffer(&mut combined), Arg::Buffer(&mut first)];
        run(&Share { lanes, count }, Target::sm(75), 1, args);
        let (combined, first) = (values::<u32>(&combined), values::<f64>(&first));
        for lane in 0..WARP {
            let group = lane / lanes * lanes;
            let of = |value: u32| (group..group + lanes).map(move |l| (l * count + value) as usize);
            let value = lane % lanes / (lanes / count);
            let least = of(value).map(|at| x[at]).min();
            assert_eq!(Some(combined[lane as usize]), least, "lane {lane} of {lanes}, {count} values");
            let sum: f64 = of(0).map(|at| f64::from(x[at])).sum();
            assert_eq!(first[lane as usize], sum, "lane {lane} of {lanes}, {count} values");
        }
    }
}

kernel_args! {
    struct PairArgs => PairParams { x: In<Elem>, out: Out<f32> }
}

/// Per pair of words: maximum, minimum, first and second elements, negation.
struct Pairs {
    dtype: DType,
}

impl KernelDef for Pairs {
    type Args = PairArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("pairs_{}", self.dtype), BlockDim::x(WARP))
            .dtypes(DTypes::NONE.with("x", self.dtype))
    }

    fn build<'k>(&self, k: K<'k>, a: PairParams<'k>) {
        let at = k.thread_idx() * 4;
        let Some(words) = a.x.at(at).load_halves(4) else {
            // Too old: the elements one by one say so.
            return a.out.at(at).set(a.x.at(at).get::<f32>());
        };
        let [x, y] = [words[0], words[1]];
        let results: [Halves<'k>; 5] = [x.maximum(y), x.minimum(y), x.firsts(y), x.seconds(y), x.negated()];
        for (i, value) in (0u32..).zip(results.into_iter().flat_map(Halves::widen)) {
            a.out.at(k.thread_idx() * 10 + i).set(value);
        }
    }
}

fn pairs<T: Bytes + Copy>(dtype: DType, cast: impl Fn(f32) -> T, widen: impl Fn(T) -> f32) {
    let specials = [0.0, -0.0, 1.5, -1.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 65_000.0, 1e-7];
    let x: Vec<T> = (0..4 * 32).map(|i| cast(specials[i * i % 37 % specials.len()])).collect();
    let mut out = vec![0; 4 * 10 * 32];
    run(&Pairs { dtype }, Target::sm(80), 1, &mut [Arg::Buffer(&mut bytes(&x)), Arg::Buffer(&mut out)]);
    let out = values::<f32>(&out);
    for (x, out) in x.chunks(4).zip(out.chunks(10)) {
        let [a, b, c, d] = std::array::from_fn(|i| widen(x[i]));
        let pick = |a: f32, b: f32, first: bool| match (a.is_nan() || b.is_nan(), a == b) {
            (true, _) => f32::NAN,
            // Zeros are ordered by sign.
            (_, true) => {
                if a.is_sign_positive() == first {
                    a
                } else {
                    b
                }
            }
            _ => {
                if (a > b) == first {
                    a
                } else {
                    b
                }
            }
        };
        let want =
            [pick(a, c, true), pick(b, d, true), pick(a, c, false), pick(b, d, false), a, c, b, d, -a, -b];
        for (i, (got, want)) in out.iter().zip(want).enumerate() {
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{i}: {got} {want}");
        }
    }
}

#[test]
fn halves_compute_both_elements_at_once() {
    pairs(DType::F16, f16::from_f32, f16::to_f32);
    pairs(DType::BF16, bf16::from_f32, bf16::to_f32);
}

kernel_args! {
    struct BytePairArgs => BytePairParams { x: In<u8>, out: Out<f32> }
}

/// Per byte: the e4m3 number, and that of the next byte times two.
struct BytePairs;

impl KernelDef for BytePairs {
    type Args = BytePairArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("byte_pairs", BlockDim::x(WARP))
    }

    fn build<'k>(&self, k: K<'k>, a: BytePairParams<'k>) {
        let i = k.thread_idx();
        let [low, high] = [0u64, 1].map(|next| a.x.at(i).at(next).get::<u32>());
        let pair = Halves::from_e4m3(low | (high << 8) | (high << 24));
        // 1 and 2.
        let doubled = pair.times(pair.like(k.lit(0x4000_3c00u32)));
        for (at, value) in (0u32..).zip(doubled.widen()) {
            a.out.at(i * 2 + at).set(value);
        }
    }
}

#[test]
fn halves_of_e4m3_are_exact() {
    for sm in [75, 80, 89, 90] {
        for first in (0..256usize).step_by(32) {
            let x: Vec<u8> = (first..=first + 32).map(|byte| byte as u8).collect();
            let mut out = vec![0; 2 * 4 * 32];
            run(&BytePairs, Target::sm(sm), 1, &mut [Arg::Buffer(&mut x.clone()), Arg::Buffer(&mut out)]);
            let want = x.windows(2).flat_map(|x| [e4m3_value(x[0]), 2.0 * e4m3_value(x[1])]);
            for (i, (got, want)) in values::<f32>(&out).into_iter().zip(want).enumerate() {
                let want = want as f32;
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "sm_{sm} {first} {i}: {got} {want}");
            }
        }
    }
}
