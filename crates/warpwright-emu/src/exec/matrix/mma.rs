//! `mma.sync`: a tile of the product of two matrices that lie in the registers of a warp.

#[cfg(target_arch = "x86_64")]
use std::sync::LazyLock;

use warpwright_ptx::{BitProduct, Modifiers, Rounding, ScalarType, TernaryOp};

use super::aligned::{self, Step};
#[cfg(target_arch = "x86_64")]
use super::halves;
use super::tile::{Sum, Tile, popcounts};
use crate::code::matrix::{Mma, MmaBits, MmaF64};
use crate::code::rows::{LANES, Registers, Row32, Row64};
use crate::exec::rows::{put32, put64};
use crate::float;

/// Whether functions that are compiled with AVX2 and FMA may be called.
#[cfg(target_arch = "x86_64")]
pub(super) static VECTORS: LazyLock<bool> = LazyLock::new(crate::exec::run::has_vectors);

/// Whether functions that are compiled with AVX-512 may be called.
#[cfg(target_arch = "x86_64")]
pub(super) static WIDE_VECTORS: LazyLock<bool> = LazyLock::new(|| {
    *VECTORS
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
});

/// Runs a product for the lanes of `exec`; all of them take part in it.
pub(super) fn mma(tile: &mut Tile, regs: &mut Registers, exec: u32, op: &Mma) {
    #[cfg(target_arch = "x86_64")]
    {
        if *WIDE_VECTORS
            && halves::takes(op)
            && let Some(d) = avx512::halves(regs, op)
        {
            return put(regs, exec, op, &d);
        }
        if *WIDE_VECTORS {
            tile.widen();
            return avx512::mma(tile, regs, exec, op);
        }
        if *VECTORS {
            return avx2::mma(tile, regs, exec, op);
        }
    }
    multiply(tile, regs, exec, op, aligned::add);
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "calling a function with target features")]
mod avx2 {
    use super::{Mma, Registers, Tile, aligned, multiply};

    #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    fn with_features(tile: &mut Tile, regs: &mut Registers, exec: u32, op: &Mma) {
        multiply(tile, regs, exec, op, |tile, step| aligned::avx2::add(tile, step));
    }

    pub(super) fn mma(tile: &mut Tile, regs: &mut Registers, exec: u32, op: &Mma) {
        // SAFETY: called only if `VECTORS` says that all of these features were detected.
        unsafe { with_features(tile, regs, exec, op) }
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "calling a function with target features")]
mod avx512 {
    use super::{Mma, Registers, Row32, Tile, aligned, halves, multiply};

    pub(super) fn halves(regs: &Registers, op: &Mma) -> Option<[Row32; 4]> {
        // SAFETY: called only if `WIDE_VECTORS` says that all of these features were detected.
        unsafe { halves::multiply(regs, op) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    fn with_features(tile: &mut Tile, regs: &mut Registers, exec: u32, op: &Mma) {
        multiply(tile, regs, exec, op, |tile, step| aligned::avx512::add(tile, step));
    }

    pub(super) fn mma(tile: &mut Tile, regs: &mut Registers, exec: u32, op: &Mma) {
        // SAFETY: called only if `WIDE_VECTORS` says that all of these features were detected.
        unsafe { with_features(tile, regs, exec, op) }
    }
}

#[inline(always)]
pub(super) fn multiply(
    tile: &mut Tile,
    regs: &mut Registers,
    exec: u32,
    op: &Mma,
    add: impl Fn(&mut Tile, &Step),
) {
    let (a, a_len) = op.a.words(regs);
    let (b, b_len) = op.b.words(regs);
    let (c, c_len) = op.c.words(regs);
    tile.set_a(op.a_element, &a[..a_len], op.rows, false);
    tile.set_b(op.b_element, &b[..b_len]);
    tile.set_sums(op.accumulator, &c[..c_len]);
    tile.multiply(Sum::of_mma(op.a_element), op.accumulator, op.rows, op.k, add);
    // D may be written over C, so all of it is computed first.
    let mut d = [Row32::ZERO; 4];
    for (i, d) in d[..c_len].iter_mut().enumerate() {
        *d = tile.register(op.accumulator, i, c[i]);
    }
    put(regs, exec, op, &d);
}

#[inline(always)]
fn put(regs: &mut Registers, exec: u32, op: &Mma, d: &[Row32; 4]) {
    for (row, d) in op.d.as_slice().iter().zip(d) {
        put32(&mut regs.r32[*row as usize], d.0, exec);
    }
}

pub(super) fn mma_bits(regs: &mut Registers, exec: u32, op: &MmaBits) {
    let (a, a_len) = op.a.words(regs);
    let (b, b_len) = op.b.words(regs);
    let (c, c_len) = op.c.words(regs);
    let (a, b, c) = (&a[..a_len], &b[..b_len], &c[..c_len]);
    let d = match op.product {
        BitProduct::Xor => popcounts(a, b, c, op.rows, |a, b| a ^ b),
        BitProduct::And => popcounts(a, b, c, op.rows, |a, b| a & b),
    };
    for (row, d) in op.d.as_slice().iter().zip(d) {
        put32(&mut regs.r32[*row as usize], d.0, exec);
    }
}

/// Element `(g + 8 (i & 1), t + 4 (i >> 1))` of A and `(t + 4 i, g)` of B are register `i` of lane `4 g + t`; the sum of
/// every element of D is a chain of fused multiply-adds in the order of k, beginning with C.
pub(super) fn mma_f64(regs: &mut Registers, exec: u32, op: &MmaF64) {
    let blocks = op.rows / 8;
    let mods = Modifiers::rounded(op.rounding);
    let fma = |a: u64, b: u64, c: u64| {
        if op.rounding == Rounding::Rn {
            let sum = f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c));
            if sum.is_nan() { f64::NAN.to_bits() } else { sum.to_bits() }
        } else {
            float::ternary(TernaryOp::Fma, ScalarType::F64, &mods, a, b, c)
        }
    };
    let mut out = Vec::with_capacity(op.c.len());
    for (i, c) in op.c.iter().enumerate() {
        let mut d = regs.r64[*c as usize];
        for (lane, d) in d.0.iter_mut().enumerate() {
            let (block, g, n) = (i >> 1, lane / 4, 2 * (lane % 4) + (i & 1));
            for (r, b) in op.b.iter().enumerate() {
                let Some(a) = op.a.get(block + blocks * r) else { continue };
                let (a, b) = (&regs.r64[*a as usize].0, &regs.r64[*b as usize].0);
                for t in 0..4 {
                    *d = fma(a[4 * g + t], b[4 * n + t], *d);
                }
            }
        }
        out.push(d);
    }
    for (row, Row64(d)) in op.d.iter().zip(out) {
        put64(&mut regs.r64[*row as usize], d, exec);
    }
}

/// `movmatrix.trans`: the 8x8 matrix of 16-bit elements `(g, 2 t + half)` transposed.
pub(super) fn transpose(regs: &mut Registers, exec: u32, d: u32, a: u32) {
    let words = regs.r32[a as usize].0;
    let element = |row: usize, column: usize| words[4 * row + column / 2] >> (16 * (column % 2)) & 0xFFFF;
    let mut out = [0; LANES];
    for (lane, out) in out.iter_mut().enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        *out = element(2 * t, g) | element(2 * t + 1, g) << 16;
    }
    put32(&mut regs.r32[d as usize], out, exec);
}
