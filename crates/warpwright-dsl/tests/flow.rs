//! Control flow, in the emulator with every sanitizer on.

mod support;

use support::{Arg, bytes, run, values};
use warpwright_dsl::prelude::*;
use warpwright_ptx::ArgValue;

kernel_args! {
    /// One value in and one out for each thread.
    struct WordArgs => WordParams { x: In<u32>, y: Out<u32>, n: u32 }
}

/// A kernel of one block around a function of the thread's value and `n`.
struct Word<F>(F);

impl<F: for<'k> Fn(K<'k>, U32<'k>, U32<'k>) -> U32<'k>> KernelDef for Word<F> {
    type Args = WordArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("word", BlockDim::x(32))
    }

    fn build<'k>(&self, k: K<'k>, a: WordParams<'k>) {
        let thread = k.thread_idx();
        let y = (self.0)(k, a.x.at(thread).get(), a.n);
        a.y.at(thread).set(y);
    }
}

/// Results of the kernel on 0..32.
fn words(n: u32, f: impl for<'k> Fn(K<'k>, U32<'k>, U32<'k>) -> U32<'k>) -> Vec<u32> {
    let mut x = bytes(&(0..32).collect::<Vec<u32>>());
    let mut y = vec![0; 128];
    let scalar = Arg::Scalar(ArgValue::U32(n));
    run(&Word(f), Target::sm(75), 1, &mut [Arg::Buffer(&mut x), Arg::Buffer(&mut y), scalar]);
    values(&y)
}

#[track_caller]
fn assert_words(got: &[u32], want: impl Fn(u32) -> u32) {
    let want: Vec<u32> = (0..32).map(want).collect();
    assert_eq!(got, want);
}

#[test]
fn if_else_returns_the_value_of_the_arm_that_ran() {
    let got = words(7, |k, x, n| k.if_else(x.lt(n), || x * 10, || x + 100));
    assert_words(&got, |x| if x < 7 { x * 10 } else { x + 100 });
}

#[test]
fn branches_nest_and_return_tuples() {
    let got = words(3, |k, x, n| {
        let (a, b) =
            k.if_else((x & 1).eq(0), || (k.if_else(x.lt(16), || x + n, || x), x), || (x * 2, k.lit(1u32)));
        a * 1000 + b
    });
    assert_words(&got, |x| match x {
        x if x % 2 == 0 && x < 16 => (x + 3) * 1000 + x,
        x if x % 2 == 0 => x * 1000 + x,
        x => x * 2000 + 1,
    });
}

#[test]
fn fold_carries_several_values_and_swaps_them() {
    // Fibonacci: the next state uses the old value of each.
    let got = words(20, |k, x, n| {
        let start = (k.lit(0u32), k.lit(1u32));
        let (a, _) = k.fold(k.range(0, x.min(n), 1), start, |_, (a, b)| (b, a + b));
        a
    });
    let fibonacci = |n: u32| (0..n).fold((0u32, 1u32), |(a, b), _| (b, a + b)).0;
    assert_words(&got, |x| fibonacci(x.min(20)));
}

#[test]
fn fold_swaps_without_arithmetic() {
    let got = words(0, |k, x, _| {
        let (a, b) = k.fold(k.range(0, x, 1), (k.lit(1u32), k.lit(2u32)), |_, (a, b)| (b, a));
        a * 10 + b
    });
    assert_words(&got, |x| if x % 2 == 0 { 12 } else { 21 });
}

#[test]
fn ranges_step_and_can_be_empty() {
    let got = words(50, |k, x, n| k.fold(k.range(x, n, 7), k.lit(0u32), |i, sum| sum + i));
    assert_words(&got, |x| (x..50).step_by(7).sum());
    let got = words(5, |k, x, n| k.fold(k.range(x, n, 1), k.lit(9u32), |_, sum| sum + 1));
    assert_words(&got, |x| 9 + 5u32.saturating_sub(x));
}

#[test]
fn ends_are_recorded_where_a_loop_asks_for_them() {
    // An end that falls from round to round: asked for once, it would be passed by.
    let got = words(40, |k, x, n| {
        let end = k.shared::<u32>(32).at(k.thread_idx());
        end.set(n);
        k.fold_until(
            x,
            || end.get(),
            3,
            k.lit(0u32),
            |i, rounds| {
                end.set(n - i);
                rounds + 1
            },
        )
    });
    let rounds = |x: u32| {
        let (mut i, mut end, mut rounds) = (x, 40, 0);
        while i < end {
            end = 40 - i;
            rounds += 1;
            i += 3;
        }
        rounds
    };
    assert_words(&got, rounds);
}

#[test]
fn a_uniform_in_shared_memory_comes_back_in_every_thread() {
    let got = words(7, |k, x, n| {
        let shared = k.smem_uniform([n, n * 3, n + 1, n << 2]);
        k.barrier();
        let [a, b, c, d] = shared.get();
        k.fold(k.range(0, x, 1), a, |i, sum| {
            let [_, again, ..] = shared.get();
            sum + i * (again - b) + c - d + n * 3 - 1
        })
    });
    assert_words(&got, |_| 7);
}

#[test]
fn loops_nest() {
    let got = words(6, |k, x, n| {
        k.fold(k.range(0, x, 1), k.lit(0u32), |i, sum| k.fold(k.range(0, n, 2), sum, |j, sum| sum + i * j))
    });
    assert_words(&got, |x| (0..x).map(|i| (0..6).step_by(2).map(|j| i * j).sum::<u32>()).sum());
}

#[test]
fn while_tests_before_each_round() {
    // Steps of the Collatz sequence.
    let got = words(0, |k, x, _| {
        let (_, steps) = k.while_(
            (x, k.lit(0u32)),
            |(value, _)| value.gt(1),
            |(value, steps)| ((value & 1).eq(0).select(value >> 1, value * 3 + 1), steps + 1),
        );
        steps
    });
    assert_words(&got, |mut x| {
        let mut steps = 0;
        while x > 1 {
            x = if x % 2 == 0 { x / 2 } else { 3 * x + 1 };
            steps += 1;
        }
        steps
    });
}

#[test]
fn predicates_combine_and_are_carried() {
    let got = words(10, |k, x, n| {
        let p = (x.lt(n) | x.eq(20)) & !x.eq(3) ^ x.eq(31);
        k.if_else(p, || (p, x), || (!p, k.lit(0u32))).0.to_u32() * 2 + p.to_u32()
    });
    assert_words(&got, |x| {
        let p = (x < 10 || x == 20) && x != 3 || x == 31;
        2 + u32::from(p)
    });
}

#[test]
fn lanes_and_structs_are_carried() {
    struct Extremes<'k> {
        low: U32<'k>,
        high: U32<'k>,
    }
    carry!(Extremes { low, high });
    let got = words(100, |k, x, n| {
        let start = (Extremes { low: n, high: k.lit(0u32) }, Lanes::from(vec![x, n]));
        let (extremes, lanes) = k.fold(k.range(0, 5, 1), start, |i, (e, lanes)| {
            let value = (x * 7 + i * 13) % 31;
            (Extremes { low: e.low.min(value), high: e.high.max(value) }, lanes.map(|lane| lane + i))
        });
        extremes.low * 1000 + extremes.high * 10_000_000 + lanes[0] + lanes[1]
    });
    assert_words(&got, |x| {
        let all: Vec<u32> = (0..5).map(|i| (x * 7 + i * 13) % 31).collect();
        let (low, high) = (all.iter().min().copied(), all.iter().max().copied());
        low.unwrap_or(0) * 1000 + high.unwrap_or(0) * 10_000_000 + x + 100 + 20
    });
}

#[test]
fn integer_operations_agree_with_rust() {
    let check = |got: Vec<u32>, want: fn(u32) -> u32| assert_words(&got, want);
    let h = |x: u32| x.wrapping_mul(0x9e37_79b9);
    fn hash(x: U32<'_>) -> U32<'_> {
        x * 0x9e37_79b9
    }
    assert_words(&words(0, |_, x, _| hash(x)), h);
    check(words(0, |_, x, _| hash(x).mul_hi(0xdead_beef)), |x| {
        ((u64::from(x.wrapping_mul(0x9e37_79b9)) * 0xdead_beef) >> 32) as u32
    });
    check(words(0, |_, x, _| hash(x).bit_field(5, 9)), |x| x.wrapping_mul(0x9e37_79b9) >> 5 & 0x1ff);
    check(words(0, |_, x, _| hash(x).to_i32().bit_field(5, 9).to_u32()), |x| {
        (((x.wrapping_mul(0x9e37_79b9) << 18) as i32) >> 23) as u32
    });
    check(words(0, |_, x, _| hash(x).with_bit_field(x, 8, 4)), |x| {
        x.wrapping_mul(0x9e37_79b9) & !0xf00 | (x & 15) << 8
    });
    check(words(0, |_, x, _| hash(x).permute(x, 0x4012)), |x| {
        let b = x.wrapping_mul(0x9e37_79b9).to_le_bytes();
        u32::from_le_bytes([b[2], b[1], b[0], x as u8])
    });
    check(words(0, |_, x, _| hash(x).lop3(x, 0x0f0f_0f0f, 0xca)), |x| {
        let a = x.wrapping_mul(0x9e37_79b9);
        a & x | !a & 0x0f0f_0f0f
    });
    check(words(0, |_, x, _| hash(x).funnel_shr(x, 12)), |x| {
        (((u64::from(x) << 32) | u64::from(x.wrapping_mul(0x9e37_79b9))) >> 12) as u32
    });
    check(words(0, |_, x, _| hash(x).dot4(hash(x + 1), 5)), |x| {
        let bytes = |v: u32| v.wrapping_mul(0x9e37_79b9).to_le_bytes();
        bytes(x).iter().zip(bytes(x + 1)).map(|(a, b)| u32::from(*a) * u32::from(b)).sum::<u32>() + 5
    });
    check(words(0, |_, x, _| hash(x).count_ones() * 100 + x.leading_zeros()), |x| {
        x.wrapping_mul(0x9e37_79b9).count_ones() * 100 + x.leading_zeros()
    });
    check(words(0, |_, x, _| 1000 - x * 3 / 2 % 5 + (!x >> 28) + 8 * x), |x| {
        1000 - x * 3 / 2 % 5 + (!x >> 28) + 8 * x
    });
    check(words(0, |_, x, _| (x.to_i32() - 16).to_f32().to_bits()), |x| ((x as i32 - 16) as f32).to_bits());
}
