//! Register rows: one value per lane, and the loop over lanes that the hot instructions expand to.
//!
//! Results are computed for all lanes into a local row and then stored, whole or blended under the execution mask. The
//! loop is written so that it vectorizes when it is inlined into a function with AVX2.

use std::hint::black_box;

use crate::code::rows::{FULL, LANES, R1, R2, R3, Registers, Row32, Row64};

/// Stores a result for the executing lanes.
#[inline(always)]
pub(crate) fn put32(row: &mut Row32, out: [u32; LANES], exec: u32) {
    if exec == FULL {
        row.0 = out;
    } else {
        // Opaque, or the optimiser moves the expansion of the mask in front of every instruction's dispatch.
        blend32(row, &out, black_box(exec));
    }
}

/// Takes the lanes of `exec` from `out`.
#[inline(always)]
pub(crate) fn blend32(row: &mut Row32, out: &[u32; LANES], exec: u32) {
    for (i, (row, out)) in row.0.iter_mut().zip(out).enumerate() {
        let keep = 0u32.wrapping_sub((exec >> i) & 1);
        *row ^= (*row ^ out) & keep;
    }
}

#[inline(always)]
pub(crate) fn put64(row: &mut Row64, out: [u64; LANES], exec: u32) {
    if exec == FULL {
        row.0 = out;
    } else {
        blend64(row, &out, black_box(exec));
    }
}

#[inline(always)]
pub(crate) fn blend64(row: &mut Row64, out: &[u64; LANES], exec: u32) {
    for (i, (row, out)) in row.0.iter_mut().zip(out).enumerate() {
        let keep = 0u64.wrapping_sub(u64::from((exec >> i) & 1));
        *row ^= (*row ^ out) & keep;
    }
}

/// Replaces the executing lanes of a predicate.
#[inline(always)]
pub(crate) fn put_pred(pred: &mut u32, value: u32, exec: u32) {
    *pred = *pred & !exec | value & exec;
}

/// A type of results: how those of the lanes are collected, and stored for the executing ones.
trait Lane {
    type Row;
    const EMPTY: Self::Row;
    fn set(row: &mut Self::Row, lane: usize, value: Self);
    fn put(regs: &mut Registers, d: u32, row: Self::Row, exec: u32);
}

impl Lane for u32 {
    type Row = [u32; LANES];
    const EMPTY: Self::Row = [0; LANES];

    #[inline(always)]
    fn set(row: &mut Self::Row, lane: usize, value: Self) {
        row[lane] = value;
    }

    #[inline(always)]
    fn put(regs: &mut Registers, d: u32, row: Self::Row, exec: u32) {
        put32(&mut regs.r32[d as usize], row, exec);
    }
}

impl Lane for u64 {
    type Row = [u64; LANES];
    const EMPTY: Self::Row = [0; LANES];

    #[inline(always)]
    fn set(row: &mut Self::Row, lane: usize, value: Self) {
        row[lane] = value;
    }

    #[inline(always)]
    fn put(regs: &mut Registers, d: u32, row: Self::Row, exec: u32) {
        put64(&mut regs.r64[d as usize], row, exec);
    }
}

impl Lane for bool {
    type Row = u32;
    const EMPTY: Self::Row = 0;

    #[inline(always)]
    fn set(row: &mut Self::Row, lane: usize, value: Self) {
        *row |= u32::from(value) << lane;
    }

    #[inline(always)]
    fn put(regs: &mut Registers, d: u32, row: Self::Row, exec: u32) {
        put_pred(&mut regs.pred[d as usize], row, exec);
    }
}

/// The shapes of vectorized operations: which rows are read, as what, and what becomes of the results. Each is a function of
/// a warp's registers, the executing lanes, the rows, and the operation of one lane.
macro_rules! shapes {
    ($($(#[$doc:meta])* $name:ident $operands:ident($($x:ident: $file:ident $from:ty),+) -> $to:ty;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name(regs: &mut Registers, exec: u32, o: $operands, f: impl Fn($($from),+) -> $to) {
            let mut out = <$to as Lane>::EMPTY;
            $(let $x = &regs.$file[o.$x as usize].0;)+
            for lane in 0..LANES {
                <$to as Lane>::set(&mut out, lane, f($($x[lane]),+));
            }
            <$to as Lane>::put(regs, o.d, out, exec);
        }
    )*};
}

shapes! {
    w1 R1(a: r32 u32) -> u32;
    w2 R2(a: r32 u32, b: r32 u32) -> u32;
    w3 R3(a: r32 u32, b: r32 u32, c: r32 u32) -> u32;
    l1 R1(a: r64 u64) -> u64;
    l2 R2(a: r64 u64, b: r64 u64) -> u64;
    l3 R3(a: r64 u64, b: r64 u64, c: r64 u64) -> u64;
    /// 64 bits shifted by 32.
    lw2 R2(a: r64 u64, b: r32 u32) -> u64;
    /// 64 bits from 32.
    widen1 R1(a: r32 u32) -> u64;
    /// 64 bits from twice 32.
    widen2 R2(a: r32 u32, b: r32 u32) -> u64;
    /// 64 bits from twice 32 and 64.
    widen3 R3(a: r32 u32, b: r32 u32, c: r64 u64) -> u64;
    /// 32 bits from 64.
    narrow1 R1(a: r64 u64) -> u32;
    /// A predicate from twice 32 bits.
    pw2 R2(a: r32 u32, b: r32 u32) -> bool;
    /// A predicate from twice 64 bits.
    pl2 R2(a: r64 u64, b: r64 u64) -> bool;
}

/// `a` where the predicate `c` holds, else `b`.
#[inline(always)]
pub(crate) fn select32(r: &mut Registers, exec: u32, o: R3) {
    let p = r.pred[o.c as usize];
    let mut out = r.r32[o.b as usize];
    blend32(&mut out, &r.r32[o.a as usize].0, p);
    put32(&mut r.r32[o.d as usize], out.0, exec);
}

#[inline(always)]
pub(crate) fn select64(r: &mut Registers, exec: u32, o: R3) {
    let p = r.pred[o.c as usize];
    let mut out = r.r64[o.b as usize];
    blend64(&mut out, &r.r64[o.a as usize].0, p);
    put64(&mut r.r64[o.d as usize], out.0, exec);
}

/// The lanes of `a` that `b` names, modulo the number of lanes.
#[inline(always)]
pub(crate) fn w2_gather(r: &mut Registers, exec: u32, d: u32, a: u32, b: u32) {
    let (a, b) = (&r.r32[a as usize].0, &r.r32[b as usize].0);
    let out = std::array::from_fn(|i| a[b[i] as usize % LANES]);
    put32(&mut r.r32[d as usize], out, exec);
}
