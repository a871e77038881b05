//! Loads and stores of every type, tails, shared memory and collectives, in the emulator with every sanitizer on.

mod support;

use support::{Arg, Bytes, Map, bytes, run, same, values};
use warpwright_dsl::prelude::*;
use warpwright_dsl::{BuildError, Issue, IssueKind, WARP, record, warp_inclusive_sum, warp_reduce_lanes};
use warpwright_ptx::{ArgValue, float8};

const TARGETS: [Target; 2] = [Target::sm(75), Target::sm(80)];

fn copy<X: Bytes, Y: Bytes>(from: DType, to: DType, width: u32, target: Target, xs: &[X]) -> Vec<Y> {
    Map { single: same::<f32>, double: same::<f64>, from, to, width }.apply(target, xs)
}

/// The bfloat16 nearest to a number, ties to even, by comparing the two neighbours.
fn nearest_bf16(x: f64) -> u16 {
    nearest(x, 0x7f80, |bits| f64::from(f32::from_bits(u32::from(bits) << 16)))
}

fn nearest_f16(x: f64) -> u16 {
    nearest(x, 0x7c00, widen_f16)
}

fn widen_f16(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}

/// Bisection over the positive encodings below `infinity`, which grow with the number.
fn nearest(x: f64, infinity: u16, widen: impl Fn(u16) -> f64) -> u16 {
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    let x = x.abs();
    if x.is_nan() {
        return infinity + 1;
    }
    let (mut low, mut high) = (0, infinity);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if widen(middle) <= x { low = middle } else { high = middle }
    }
    // Infinity stands where the next finite number would be.
    let top = if high == infinity { 2.0 * widen(infinity - 1) - widen(infinity - 2) } else { widen(high) };
    let (down, up) = (x - widen(low), top - x);
    let bits = if x == f64::INFINITY || down > up || (down == up && low & 1 == 1) { high } else { low };
    sign | bits
}

fn is_nan16(bits: u16, infinity: u16) -> bool {
    bits & 0x7fff > infinity
}

/// Numbers at, and on either side of, the halfway points between 16-bit floats, and the special ones.
fn halfway_points(widen: impl Fn(u16) -> f64, infinity: u16) -> Vec<f32> {
    let mut xs =
        vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-45, -1e-45, f32::MAX, f32::MIN];
    xs.extend([f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)]);
    for bits in (0..infinity - 1).step_by(37) {
        let middle = ((widen(bits) + widen(bits + 1)) / 2.0) as f32;
        for x in [middle, middle.next_up(), middle.next_down()] {
            xs.extend([x, -x]);
        }
    }
    xs
}

#[test]
fn sixteen_bit_floats_round_to_nearest_even() {
    type Case = (DType, u16, fn(u16) -> f64, fn(f64) -> u16);
    let cases: [Case; 2] = [
        (DType::BF16, 0x7f80, |b| f64::from(f32::from_bits(u32::from(b) << 16)), nearest_bf16),
        (DType::F16, 0x7c00, widen_f16, nearest_f16),
    ];
    for (dtype, infinity, widen, nearest) in cases {
        let xs = halfway_points(widen, infinity);
        // From f64, also numbers that an intermediate f32 would move onto a tie.
        let close = |x: &f32| [f64::from(*x), f64::from(*x) * (1.0 + 1e-14), f64::from(*x) * (1.0 - 1e-14)];
        let wide: Vec<f64> = xs.iter().flat_map(close).collect();
        for target in TARGETS {
            for width in [1, 2, 8] {
                let got: Vec<u16> = copy(DType::F32, dtype, width, target, &xs);
                for (x, y) in xs.iter().zip(got) {
                    let want = nearest(f64::from(*x));
                    let both_nan = is_nan16(y, infinity) && is_nan16(want, infinity);
                    assert!(
                        y == want || both_nan,
                        "{x:e} as {dtype}: {y:#x}, not {want:#x}, {target} x{width}"
                    );
                }
                let got: Vec<u16> = copy(DType::F64, dtype, width, target, &wide);
                for (x, y) in wide.iter().zip(got) {
                    let want = nearest(*x);
                    let both_nan = is_nan16(y, infinity) && is_nan16(want, infinity);
                    assert!(
                        y == want || both_nan,
                        "{x:e} as {dtype}: {y:#x}, not {want:#x}, {target} x{width}"
                    );
                }
            }
        }
    }
}

#[test]
fn sixteen_bit_floats_widen_exactly() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    for target in TARGETS {
        for width in [1, 4, 16] {
            let bf16: Vec<f32> = copy(DType::BF16, DType::F32, width, target, &all);
            let f16: Vec<f32> = copy(DType::F16, DType::F32, width, target, &all);
            for (bits, (b, h)) in all.iter().zip(bf16.iter().zip(f16)) {
                assert_eq!(b.to_bits(), u32::from(*bits) << 16);
                let want = widen_f16(*bits) as f32;
                assert!(h == want || (h.is_nan() && want.is_nan()), "{bits:#x}: {h:e}, not {want:e}");
            }
        }
    }
}

type Float8 = (DType, fn(f64) -> u8, fn(u8) -> f64);
const FLOATS8: [Float8; 2] = [
    (DType::F8E4M3, float8::e4m3_bits, float8::e4m3_value),
    (DType::F8E5M2, float8::e5m2_bits, float8::e5m2_value),
];

#[test]
fn eight_bit_floats_widen_exactly() {
    let all: Vec<u8> = (0..=u8::MAX).collect();
    for (dtype, _, value) in FLOATS8 {
        for width in [1, 2, 4, 16] {
            let wide: Vec<f32> = copy(dtype, DType::F32, width, Target::sm(89), &all);
            for (bits, x) in all.iter().zip(wide) {
                let (x, want) = (f64::from(x), value(*bits));
                let same = x.to_bits() == want.to_bits() || (x.is_nan() && want.is_nan());
                assert!(same, "{dtype} {bits:#x}: {x:e}, not {want:e}");
            }
        }
    }
}

#[test]
fn eight_bit_floats_round_to_nearest_even_and_saturate() {
    for (dtype, nearest, value) in FLOATS8 {
        let max = f64::from(float8::largest(dtype).unwrap_or(0.0) as f32);
        let mut xs: Vec<f32> =
            vec![f32::NAN, 0.0, -0.0, 1e-45, 1e30, f32::INFINITY, f32::NEG_INFINITY, f32::MIN];
        for bits in 0..0x7b {
            let middle = ((value(bits) + value(bits + 1)) / 2.0) as f32;
            xs.extend([middle, -middle, middle.next_up(), middle.next_down(), value(bits) as f32]);
        }
        xs.extend([1.0, 1.01, 1.04, 1.1, 2.0].map(|f| (max * f) as f32));
        // From f64, also numbers that an intermediate f32 would move onto a tie.
        let close = |x: &f32| [1.0, 1.0 + 1e-14, 1.0 - 1e-14].map(|f| f64::from(*x) * f);
        let wide: Vec<f64> = xs.iter().flat_map(close).collect();
        for width in [1, 2, 4, 16] {
            let same = |x: f64, y: u8| y == nearest(x) || (x.is_nan() && value(y).is_nan());
            let got: Vec<u8> = copy(DType::F32, dtype, width, Target::sm(89), &xs);
            for (x, y) in xs.iter().zip(got) {
                assert!(same(f64::from(*x), y), "{x:e} as {dtype}: {y:#x} x{width}");
            }
            let got: Vec<u8> = copy(DType::F64, dtype, width, Target::sm(90), &wide);
            for (x, y) in wide.iter().zip(got) {
                assert!(same(*x, y), "{x:e} as {dtype}: {y:#x} x{width}");
            }
        }
    }
}

#[test]
fn targets_without_eight_bit_floats_are_told() {
    for (from, to) in [(DType::F32, DType::F8E4M3), (DType::F8E5M2, DType::F32)] {
        let map = Map { single: same::<f32>, double: same::<f64>, from, to, width: 4 };
        let Err(BuildError::Issues { issues, .. }) = record(&map, Target::sm(86)) else {
            panic!("{from} to {to} was recorded for sm_86");
        };
        let told = |issue: &Issue| matches!(issue.kind, IssueKind::Target { needs: 89, got: 86, .. });
        assert!(issues.iter().any(told), "{issues:?}");
        assert!(record(&map, Target::sm(89)).is_ok());
    }
}

#[test]
fn signed_bytes_round_to_nearest_even_and_saturate_from_f32() {
    let mut xs: Vec<f32> = (-300..=300).map(|i| i as f32 / 2.0).collect();
    xs.extend([
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        1e-45,
        0.5f32.next_up(),
        -0.5f32.next_down(),
        1e20,
    ]);
    for width in [1, 2, 8] {
        let got: Vec<i8> = copy(DType::F32, DType::I8, width, Target::sm(75), &xs);
        for (x, y) in xs.iter().zip(got) {
            // Rust's conversion saturates, and makes 0 of NaN.
            assert_eq!(y, x.round_ties_even() as i8, "{x:e} x{width}");
        }
    }
    let all: Vec<i8> = (i8::MIN..=i8::MAX).collect();
    let wide: Vec<f32> = copy(DType::I8, DType::F32, 4, Target::sm(75), &all);
    assert!(all.iter().zip(&wide).all(|(x, y)| f32::from(*x) == *y), "{wide:?}");
}

#[test]
fn every_length_and_width_is_covered_without_touching_more() {
    for n in [0u64, 1, 3, 7, 8, 63, 64, 65, 511, 513] {
        for (dtype, width) in
            [(DType::F32, 1), (DType::F32, 8), (DType::BF16, 8), (DType::F64, 2), (DType::F16, 2)]
        {
            let size = dtype.bytes();
            // Small integers are exact in every type.
            let number = |i: u64| (i % 97) as f64;
            let mut x = Vec::new();
            for i in 0..n {
                match dtype {
                    DType::F64 => number(i).put(&mut x),
                    DType::F32 => (number(i) as f32).put(&mut x),
                    DType::BF16 => nearest_bf16(number(i)).put(&mut x),
                    _ => nearest_f16(number(i)).put(&mut x),
                }
            }
            let want = x.clone();
            // A guard behind the output shows a store that goes too far even inside the allocation.
            let mut y = vec![0xee; x.len() + 64];
            x.resize(x.len() + 16, 0);
            let map = Map { single: same::<f32>, double: same::<f64>, from: dtype, to: dtype, width };
            let grid = elementwise_grid(n, 64, width).expect("a small grid");
            let scalar = Arg::Scalar(ArgValue::U64(n));
            run(&map, Target::sm(80), grid[0], &mut [Arg::Buffer(&mut x), Arg::Buffer(&mut y), scalar]);
            let end = n as usize * size;
            assert_eq!(y[..end], want, "{dtype} x{width}, n = {n}");
            assert!(y[end..].iter().all(|b| *b == 0xee), "{dtype} x{width}, n = {n}: wrote past the end");
        }
    }
}

kernel_args! {
    /// Every integer type.
    struct IntegerArgs => IntegerParams {
        a: In<u8>, b: In<i8>, c: In<u16>, d: In<i16>, e: In<u64>, y: Out<i32>, bytes: Out<u8>, halves: Out<i16>, n: u64,
    }
}

struct Integers {
    width: u32,
}

impl KernelDef for Integers {
    type Args = IntegerArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("integers_x{}", self.width), BlockDim::x(32))
    }

    fn build<'k>(&self, k: K<'k>, p: IntegerParams<'k>) {
        elementwise(k, p.n, self.width, |i, w| {
            let unsigned = p.a.at(i).load(w).zip(p.c.at(i).load(w), |a, c| a * 2 + c);
            let signed = p.b.at(i).load(w).zip(p.d.at(i).load(w), |b, d| b * 3 - d);
            let wide = p.e.at(i).load(w).map(|e| (e >> 40).to_u32());
            let sum = unsigned.zip3(signed.clone(), wide, |u, s, e| u.to_i32() + s + e.to_i32());
            p.y.at(i).store(sum);
            p.bytes.at(i).store(unsigned);
            p.halves.at(i).store(signed);
        });
    }
}

#[test]
fn integers_are_extended_and_truncated_by_their_type() {
    let n = 100usize;
    let hash = |i: usize| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let a: Vec<u8> = (0..n).map(|i| hash(i) as u8).collect();
    let b: Vec<i8> = (0..n).map(|i| (hash(i) >> 8) as i8).collect();
    let c: Vec<u16> = (0..n).map(|i| (hash(i) >> 16) as u16).collect();
    let d: Vec<i16> = (0..n).map(|i| (hash(i) >> 32) as i16).collect();
    let e: Vec<u64> = (0..n).map(hash).collect();
    for width in [1, 2, 4, 8, 16] {
        let (mut y, mut narrow, mut halves) = (vec![0; 4 * n], vec![0; n], vec![0; 2 * n]);
        let args = &mut [
            Arg::Buffer(&mut bytes(&a)),
            Arg::Buffer(&mut bytes(&b)),
            Arg::Buffer(&mut bytes(&c)),
            Arg::Buffer(&mut bytes(&d)),
            Arg::Buffer(&mut bytes(&e)),
            Arg::Buffer(&mut y),
            Arg::Buffer(&mut narrow),
            Arg::Buffer(&mut halves),
            Arg::Scalar(ArgValue::U64(n as u64)),
        ];
        let grid = elementwise_grid(n as u64, 32, width).expect("a small grid");
        run(&Integers { width }, Target::sm(75), grid[0], args);
        let (y, halves) = (values::<i32>(&y), values::<i16>(&halves));
        for i in 0..n {
            let unsigned = u32::from(a[i]) * 2 + u32::from(c[i]);
            let signed = i32::from(b[i]) * 3 - i32::from(d[i]);
            let sum = unsigned.cast_signed() + signed + ((e[i] >> 40) as u32).cast_signed();
            assert_eq!(
                (y[i], narrow[i], halves[i]),
                (sum, unsigned as u8, signed as i16),
                "element {i}, x{width}"
            );
        }
    }
}

kernel_args! {
    /// Quotients and remainders.
    struct DivideArgs => DivideParams { x: In<u64>, signed: In<i32>, y: Out<u64>, z: Out<i32>, n: u64 }
}

struct Divide;

impl KernelDef for Divide {
    type Args = DivideArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("divide".to_owned(), BlockDim::x(32))
    }

    #[allow(clippy::modulo_one, clippy::identity_op, reason = "one is the least power of two")]
    fn build<'k>(&self, k: K<'k>, p: DivideParams<'k>) {
        let i = k.global_idx_x();
        k.if_(i.lt(p.n), || {
            let x = p.x.at(i).get::<u64>();
            let low = x.words().0;
            let narrow =
                [low / 1, low % 1, low / 64, low % 64, low / (1 << 31), low % (1 << 31), low / 12, low % 12];
            let wide = [x / 64, x % 64, x / (1 << 40), x % (1 << 40), x / 12, x % 12];
            let all = narrow.into_iter().map(|part| part.to_u64()).chain(wide);
            for (place, part) in (0u64..).zip(all) {
                p.y.at(i * 14 + place).set(part);
            }
            let signed = p.signed.at(i).get::<i32>();
            p.z.at(i * 2).set(signed / 8);
            p.z.at(i * 2 + 1).set(signed % 8);
        });
    }
}

/// Unsigned divisions by powers of two are none, those of signed numbers, which round towards zero, and by other numbers are.
#[test]
fn divisions_by_powers_of_two_are_shifts() {
    let xs: Vec<u64> =
        (0..70u64).map(|i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).chain([0, u64::MAX]).collect();
    let signed: Vec<i32> = xs.iter().map(|x| *x as i32).collect();
    let (mut y, mut z) = (vec![0; 14 * 8 * xs.len()], vec![0; 8 * xs.len()]);
    let args = &mut [
        Arg::Buffer(&mut bytes(&xs)),
        Arg::Buffer(&mut bytes(&signed)),
        Arg::Buffer(&mut y),
        Arg::Buffer(&mut z),
        Arg::Scalar(ArgValue::U64(xs.len() as u64)),
    ];
    run(&Divide, Target::sm(75), 3, args);
    let want = xs.iter().flat_map(|x| {
        let low = x & u64::from(u32::MAX);
        let narrow = [low, 0, low / 64, low % 64, low >> 31, low % (1 << 31), low / 12, low % 12];
        narrow.into_iter().chain([x / 64, x % 64, x >> 40, x % (1 << 40), x / 12, x % 12])
    });
    assert_eq!(values::<u64>(&y), want.collect::<Vec<_>>());
    let want: Vec<i32> = signed.iter().flat_map(|x| [x / 8, x % 8]).collect();
    assert_eq!(values::<i32>(&z), want);
    let kernel = record(&Divide, Target::sm(75)).expect("a kernel");
    let count = |op: &str| kernel.text().lines().filter(|line| line.trim_start().starts_with(op)).count();
    assert_eq!((count("div."), count("rem.")), (3, 3), "by 12 in both widths, and of signed numbers");
}

kernel_args! {
    /// One block reduces.
    struct ReduceArgs => ReduceParams { x: In<f32>, u: In<u32>, sums: Out<f32>, words: Out<u32>, wide: Out<f64>, n: u32 }
}

struct Reduce {
    threads: u32,
}

impl KernelDef for Reduce {
    type Args = ReduceArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("reduce_{}", self.threads), BlockDim::x(self.threads))
    }

    fn build<'k>(&self, k: K<'k>, a: ReduceParams<'k>) {
        let start = (k.lit::<f32>(0.0), k.lit(0u32), k.lit(u32::MAX));
        let (sum, total, least) = k.fold(k.block_strided_u32(a.n, 1), start, |i, (sum, total, least)| {
            let (x, u) = (a.x.at(i).get(), a.u.at(i).get());
            (sum + x, total + u, least.min(u))
        });
        let all = block_reduce(k, Sum, sum);
        let largest = block_reduce(k, Maximum, sum);
        let wide = block_reduce(k, Sum, sum.to_f64());
        let total = block_reduce(k, Sum, total);
        let least = block_reduce(k, Min, least);
        let t = k.thread_idx();
        a.sums.at(t * 2).set(all);
        a.sums.at(t * 2 + 1).set(largest);
        a.wide.at(t).set(wide);
        let group = warp_reduce_lanes(k, Max, 4, k.lane_idx());
        let votes = k.lane_idx().lt(5).ballot() + k.lane_idx().eq(7).vote_any().to_u32();
        for (slot, word) in [total, least, warp_inclusive_sum(k, t), group, votes].into_iter().enumerate() {
            a.words.at(t * 5 + slot as u32).set(word);
        }
    }
}

#[test]
fn blocks_of_every_shape_reduce_to_the_same_value_in_every_thread() {
    let n = 1003usize;
    // Integers, so that every order of summation gives the same sum.
    let x: Vec<f32> = (0..n).map(|i| ((i * 7919) % 201) as f32 - 100.0).collect();
    let u: Vec<u32> = (0..n).map(|i| (i as u32 + 3).wrapping_mul(0x9e37_79b9) >> 4).collect();
    for target in TARGETS {
        for threads in [32, 64, 96, 320] {
            let count = threads as usize;
            let (mut sums, mut words, mut wide) =
                (vec![0; 8 * count], vec![0; 20 * count], vec![0; 8 * count]);
            let args = &mut [
                Arg::Buffer(&mut bytes(&x)),
                Arg::Buffer(&mut bytes(&u)),
                Arg::Buffer(&mut sums),
                Arg::Buffer(&mut words),
                Arg::Buffer(&mut wide),
                Arg::Scalar(ArgValue::U32(n as u32)),
            ];
            run(&Reduce { threads }, target, 1, args);
            let partial = |t: usize| x.iter().skip(t).step_by(count).sum::<f32>();
            let (sum, largest) = (x.iter().sum::<f32>(), (0..count).map(partial).fold(f32::MIN, f32::max));
            let total = u.iter().fold(0u32, |s, v| s.wrapping_add(*v));
            let least = u.iter().min().copied().unwrap_or(0);
            let (sums, words, wide) = (values::<f32>(&sums), values::<u32>(&words), values::<f64>(&wide));
            for t in 0..count {
                assert_eq!(sums[2 * t..2 * t + 2], [sum, largest], "thread {t} of {threads} on {target}");
                assert_eq!(wide[t], f64::from(sum));
                let lane = t as u32 % WARP;
                let first = t as u32 - lane;
                let scan = (first..=t as u32).sum::<u32>();
                assert_eq!(words[5 * t..5 * t + 5], [total, least, scan, lane / 4 * 4 + 3, 0x1f + 1]);
            }
        }
    }
}

#[test]
fn a_nan_reaches_every_thread_through_maximum() {
    let x = [vec![1.0f32; 40], vec![f32::NAN], vec![2.0; 40]].concat();
    let u = vec![1u32; x.len()];
    for target in TARGETS {
        let (mut sums, mut words, mut wide) = (vec![0; 8 * 64], vec![0; 20 * 64], vec![0; 8 * 64]);
        let args = &mut [
            Arg::Buffer(&mut bytes(&x)),
            Arg::Buffer(&mut bytes(&u)),
            Arg::Buffer(&mut sums),
            Arg::Buffer(&mut words),
            Arg::Buffer(&mut wide),
            Arg::Scalar(ArgValue::U32(x.len() as u32)),
        ];
        run(&Reduce { threads: 64 }, target, 1, args);
        assert!(values::<f32>(&sums).iter().all(|v| v.is_nan()));
    }
}

kernel_args! {
    /// Looks words up.
    struct LookUpArgs => LookUpParams { y: Out<f32>, z: Out<u32> }
}

struct LookUp;

impl KernelDef for LookUp {
    type Args = LookUpArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("look_up".to_owned(), BlockDim::x(64))
    }

    fn build<'k>(&self, k: K<'k>, a: LookUpParams<'k>) {
        let squares = k.warp_table_f32(&std::array::from_fn(|i| (i * i) as f32));
        let table = k.constant_table::<u32>(&[10, 20, 30, 40]);
        let t = k.thread_idx();
        a.y.at(t).set(squares.get(t * 5));
        a.z.at(t).set(table.at(t & 3).get());
    }
}

#[test]
fn tables_are_looked_up() {
    let (mut y, mut z) = (vec![0; 256], vec![0; 256]);
    run(&LookUp, Target::sm(75), 1, &mut [Arg::Buffer(&mut y), Arg::Buffer(&mut z)]);
    let square = |t: u32| (t * 5 % 32).pow(2) as f32;
    assert_eq!(values::<f32>(&y), (0..64).map(square).collect::<Vec<_>>());
    assert_eq!(values::<u32>(&z), (0..64).map(|t| 10 + 10 * (t % 4)).collect::<Vec<_>>());
}

kernel_args! {
    /// Addresses by every kind of index.
    struct IndexArgs => IndexParams { x: In<u32>, y: Out<u32>, at: Out<u64> }
}

struct Indices;

impl KernelDef for Indices {
    type Args = IndexArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("indices".to_owned(), BlockDim::x(32))
    }

    fn build<'k>(&self, k: K<'k>, a: IndexParams<'k>) {
        let t = k.thread_idx();
        let index = Index::affine(k, (k.block_idx_x(), 256), (t, 8)).plus(4).plus_reg(k.lit(16u64));
        let found = [
            a.x.at(index).get(),
            a.x.at(index.div_exact(4)).get(),
            a.x.at(index.to_u64()).get(),
            a.x.at(t).at(2).get(),
        ];
        let mine = Index::affine(k, (k.block_idx_x(), 128), (t, 4));
        a.y.at(mine).store(Lanes::from(found.to_vec()));
        a.at.at(k.global_idx_x()).set(index.div_exact(2).to_u64());
    }
}

#[test]
fn indices_keep_their_structure_through_arithmetic() {
    let x: Vec<u32> = (0..1024).map(|i| i * 3 + 1).collect();
    let (mut y, mut at) = (vec![0; 2 * 32 * 16], vec![0; 2 * 32 * 8]);
    let args = &mut [Arg::Buffer(&mut bytes(&x)), Arg::Buffer(&mut y), Arg::Buffer(&mut at)];
    run(&Indices, Target::sm(75), 2, args);
    let (y, at) = (values::<u32>(&y), values::<u64>(&at));
    for global in 0..64usize {
        let (block, t) = (global / 32, global % 32);
        let index = block * 256 + t * 8 + 4 + 16;
        assert_eq!(
            y[4 * global..4 * global + 4],
            [x[index], x[index / 4], x[index], x[t + 2]],
            "thread {global}"
        );
        assert_eq!(at[global], index as u64 / 2);
    }
}

kernel_args! {
    struct GuardedArgs => GuardedParams { x: In<Elem>, y: Out<Elem>, n: u32 }
}

/// Copies the first `n` of 64 vectors; the others give the fill, doubled, to the thread's own place in the upper half.
struct Guarded {
    dtype: DType,
    width: u32,
    fill: Fill,
}

impl KernelDef for Guarded {
    type Args = GuardedArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("guarded".to_owned(), BlockDim::x(64)).dtypes(DTypes::all(self.dtype))
    }

    fn build<'k>(&self, k: K<'k>, a: GuardedParams<'k>) {
        let (thread, width) = (k.thread_idx(), self.width);
        let inside = thread.lt(a.n);
        let x = a.x.at(thread * width).only_where(inside, self.fill).load_packed::<f32>(width);
        let again = x.lanes_again(k.opaque_zero());
        a.y.at(thread * width).only_where(inside, Fill::Zero).store(x.lanes());
        a.y.at((thread + 64) * width).store(again.map(|x| x + x));
    }
}

#[test]
fn accesses_under_a_predicate_give_the_fill_elsewhere() {
    for (dtype, size) in [(DType::F32, 4usize), (DType::BF16, 2), (DType::F16, 2)] {
        for width in [1usize, 2, 8] {
            for (fill, value) in [(Fill::Zero, 0.0), (Fill::MinusInfinity, f32::NEG_INFINITY)] {
                let n = 37;
                // The input ends where the predicate does, so that a load that is made regardless is found.
                let values: Vec<f32> = (0..n * width).map(|i| i as f32 - 60.0).collect();
                let encode = |v: f32| match dtype {
                    DType::F32 => bytes(&[v]),
                    DType::BF16 => bytes(&[nearest_bf16(f64::from(v))]),
                    _ => bytes(&[nearest_f16(f64::from(v))]),
                };
                let all = |values: Vec<f32>| values.into_iter().flat_map(encode).collect::<Vec<u8>>();
                let mut x = all(values.clone());
                let mut y = all(vec![9.0; 128 * width]);
                let def = Guarded { dtype, width: width as u32, fill };
                let scalar = Arg::Scalar(ArgValue::U32(n as u32));
                run(&def, Target::sm(80), 1, &mut [Arg::Buffer(&mut x), Arg::Buffer(&mut y), scalar]);
                let mut want = values.clone();
                want.resize(64 * width, 9.0);
                want.extend(values.iter().map(|v| v + v));
                want.resize(128 * width, value);
                assert_eq!(y, all(want), "{dtype} x{width} {fill:?}, {size} bytes");
            }
        }
    }
}
