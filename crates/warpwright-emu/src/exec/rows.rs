//! Register rows: one value per lane, and the loops over lanes that the hot instructions expand to.
//!
//! Results are computed for all lanes into a local row and then stored, whole or blended under the execution mask. The
//! loops are written so that they vectorise when they are inlined into a function with AVX2.

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

#[inline(always)]
pub(crate) fn w1(r: &mut Registers, exec: u32, o: R1, f: impl Fn(u32) -> u32) {
    let mut out = [0; LANES];
    let a = &r.r32[o.a as usize].0;
    for i in 0..LANES {
        out[i] = f(a[i]);
    }
    put32(&mut r.r32[o.d as usize], out, exec);
}

#[inline(always)]
pub(crate) fn w2(r: &mut Registers, exec: u32, o: R2, f: impl Fn(u32, u32) -> u32) {
    let mut out = [0; LANES];
    let (a, b) = (&r.r32[o.a as usize].0, &r.r32[o.b as usize].0);
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    put32(&mut r.r32[o.d as usize], out, exec);
}

#[inline(always)]
pub(crate) fn w3(r: &mut Registers, exec: u32, o: R3, f: impl Fn(u32, u32, u32) -> u32) {
    let mut out = [0; LANES];
    let (a, b, c) = (&r.r32[o.a as usize].0, &r.r32[o.b as usize].0, &r.r32[o.c as usize].0);
    for i in 0..LANES {
        out[i] = f(a[i], b[i], c[i]);
    }
    put32(&mut r.r32[o.d as usize], out, exec);
}

#[inline(always)]
pub(crate) fn l1(r: &mut Registers, exec: u32, o: R1, f: impl Fn(u64) -> u64) {
    let mut out = [0; LANES];
    let a = &r.r64[o.a as usize].0;
    for i in 0..LANES {
        out[i] = f(a[i]);
    }
    put64(&mut r.r64[o.d as usize], out, exec);
}

#[inline(always)]
pub(crate) fn l2(r: &mut Registers, exec: u32, o: R2, f: impl Fn(u64, u64) -> u64) {
    let mut out = [0; LANES];
    let (a, b) = (&r.r64[o.a as usize].0, &r.r64[o.b as usize].0);
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    put64(&mut r.r64[o.d as usize], out, exec);
}

#[inline(always)]
pub(crate) fn l3(r: &mut Registers, exec: u32, o: R3, f: impl Fn(u64, u64, u64) -> u64) {
    let mut out = [0; LANES];
    let (a, b, c) = (&r.r64[o.a as usize].0, &r.r64[o.b as usize].0, &r.r64[o.c as usize].0);
    for i in 0..LANES {
        out[i] = f(a[i], b[i], c[i]);
    }
    put64(&mut r.r64[o.d as usize], out, exec);
}

/// 64 bits shifted by 32.
#[inline(always)]
pub(crate) fn lw2(r: &mut Registers, exec: u32, o: R2, f: impl Fn(u64, u32) -> u64) {
    let mut out = [0; LANES];
    let (a, b) = (&r.r64[o.a as usize].0, &r.r32[o.b as usize].0);
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    put64(&mut r.r64[o.d as usize], out, exec);
}

/// 64 bits from 32.
#[inline(always)]
pub(crate) fn widen1(r: &mut Registers, exec: u32, o: R1, f: impl Fn(u32) -> u64) {
    let mut out = [0; LANES];
    let a = &r.r32[o.a as usize].0;
    for i in 0..LANES {
        out[i] = f(a[i]);
    }
    put64(&mut r.r64[o.d as usize], out, exec);
}

/// 64 bits from twice 32.
#[inline(always)]
pub(crate) fn widen2(r: &mut Registers, exec: u32, o: R2, f: impl Fn(u32, u32) -> u64) {
    let mut out = [0; LANES];
    let (a, b) = (&r.r32[o.a as usize].0, &r.r32[o.b as usize].0);
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    put64(&mut r.r64[o.d as usize], out, exec);
}

/// 64 bits from twice 32 and 64.
#[inline(always)]
pub(crate) fn widen3(r: &mut Registers, exec: u32, o: R3, f: impl Fn(u32, u32, u64) -> u64) {
    let mut out = [0; LANES];
    let (a, b, c) = (&r.r32[o.a as usize].0, &r.r32[o.b as usize].0, &r.r64[o.c as usize].0);
    for i in 0..LANES {
        out[i] = f(a[i], b[i], c[i]);
    }
    put64(&mut r.r64[o.d as usize], out, exec);
}

/// 32 bits from 64.
#[inline(always)]
pub(crate) fn narrow1(r: &mut Registers, exec: u32, o: R1, f: impl Fn(u64) -> u32) {
    let mut out = [0; LANES];
    let a = &r.r64[o.a as usize].0;
    for i in 0..LANES {
        out[i] = f(a[i]);
    }
    put32(&mut r.r32[o.d as usize], out, exec);
}

/// A predicate from twice 32 bits.
#[inline(always)]
pub(crate) fn pw2(r: &mut Registers, exec: u32, o: R2, f: impl Fn(u32, u32) -> bool) {
    let mut out = 0;
    let (a, b) = (&r.r32[o.a as usize].0, &r.r32[o.b as usize].0);
    for i in 0..LANES {
        out |= u32::from(f(a[i], b[i])) << i;
    }
    put_pred(&mut r.pred[o.d as usize], out, exec);
}

/// A predicate from twice 64 bits.
#[inline(always)]
pub(crate) fn pl2(r: &mut Registers, exec: u32, o: R2, f: impl Fn(u64, u64) -> bool) {
    let mut out = 0;
    let (a, b) = (&r.r64[o.a as usize].0, &r.r64[o.b as usize].0);
    for i in 0..LANES {
        out |= u32::from(f(a[i], b[i])) << i;
    }
    put_pred(&mut r.pred[o.d as usize], out, exec);
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
