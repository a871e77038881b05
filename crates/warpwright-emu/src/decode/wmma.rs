//! `wmma`, taken apart: loads and stores into accesses of single words or elements, products into those of `mma.sync`.
//!
//! Nobody but these instructions knows which lane holds which element, so fragments are laid out as those of `mma.sync`
//! are: blocks of eight rows of A and of eight columns of B, and 8x8 blocks of C and D, one behind the other.

use warpwright_ptx::{
    BitProduct, Inst, MatrixLayout, MatrixType, Operand, Ordering, Rounding, ScalarType, Wmma, WmmaMatrix,
    WmmaTile, isa,
};

use super::{Decoder, Result, index};
use crate::code::layout::Slot;
use crate::code::matrix::{Accumulator, MatrixOp, Mma, MmaBits, MmaF64, Rows};
use crate::code::memory::Access;
use crate::code::op::Op;
use crate::code::rows::{LANES, R1, R2, R3};

/// Elements of a word.
fn per_word(ty: MatrixType) -> u32 {
    (32 / ty.bits()).max(1)
}

/// Registers of an 8x8 block of C or D.
fn per_block(ty: MatrixType) -> usize {
    if ty == MatrixType::F16 { 1 } else { 2 }
}

/// Row and column of element `s` of a register in a lane.
fn place(tile: &WmmaTile, register: u32, s: u32, lane: u32) -> (u32, u32) {
    let (rows, columns) = tile.matrix.dimensions(tile.shape);
    let (g, t) = (lane / 4, lane % 4);
    let along =
        |blocks: u32| (8 * (register % blocks) + g, per_word(tile.ty) * (4 * (register / blocks) + t) + s);
    match tile.matrix {
        WmmaMatrix::A => along(rows / 8),
        WmmaMatrix::B => {
            let (column, row) = along(columns / 8);
            (row, column)
        }
        WmmaMatrix::C | WmmaMatrix::D => {
            let each = per_block(tile.ty) as u32;
            let (block, i) = (register / each, register % each + s);
            (8 * (block % (rows / 8)) + g, 8 * (block / (rows / 8)) + 2 * t + i)
        }
    }
}

/// The base and the strides of a tile's elements in memory.
struct Memory {
    base: u32,
    /// Bytes from one row or column to the next.
    stride: u32,
    /// Where addresses are put.
    address: u32,
}

impl Decoder<'_> {
    pub(super) fn wmma(&mut self, inst: &Inst) -> Result<()> {
        match inst {
            Inst::WmmaLoad { tile, dsts } => {
                let dsts: Vec<Slot> = dsts.iter().map(|d| self.slot(*d)).collect::<Result<_>>()?;
                self.wmma_load(tile, &dsts)
            }
            Inst::WmmaStore { tile, srcs } => self.wmma_store(tile, srcs),
            Inst::Wmma(m) => self.wmma_product(m),
            _ => self.error("not a matrix instruction"),
        }
    }

    fn wmma_load(&mut self, tile: &WmmaTile, dsts: &[Slot]) -> Result<()> {
        self.matrix_op(MatrixOp::Converge);
        let memory = self.wmma_memory(tile)?;
        let distinct = isa::wmma_distinct(tile.matrix, tile.shape, tile.ty);
        let (bytes, parts) = pieces(tile);
        let temps: Vec<u32> = (0..parts).map(|_| self.regs.temp32()).collect();
        for (r, dst) in dsts.iter().enumerate().take(distinct) {
            for s in 0..parts {
                self.wmma_address(tile, &memory, r as u32, s);
                let to = if parts == 1 { *dst } else { Slot::W(temps[s as usize]) };
                let access = self.wmma_access(tile, &memory, bytes, to);
                self.code.loads.push(access);
                let at = index(self.code.loads.len() - 1);
                self.emit(Op::Load(at));
            }
            let Slot::W(d) = *dst else { continue };
            match temps.as_slice() {
                [low, high] => self.emit(Op::Pack16(R2 { d, a: *low, b: *high })),
                [a, b, c, e] => {
                    let eight = self.regs.literal32(8);
                    for (low, high) in [(*a, *b), (*c, *e)] {
                        self.emit(Op::ShlW(R2 { d: high, a: high, b: eight }));
                        self.emit(Op::OrW(R2 { d: low, a: low, b: high }));
                    }
                    self.emit(Op::Pack16(R2 { d, a: *a, b: *c }));
                }
                _ => {}
            }
        }
        for (r, dst) in dsts.iter().enumerate().skip(distinct) {
            if let (Slot::W(d), Slot::W(a)) = (*dst, dsts[r % distinct]) {
                self.emit(Op::MovW(R1 { d, a }));
            }
        }
        Ok(())
    }

    fn wmma_store(&mut self, tile: &WmmaTile, srcs: &[Operand]) -> Result<()> {
        self.matrix_op(MatrixOp::Converge);
        let memory = self.wmma_memory(tile)?;
        let (bytes, parts) = pieces(tile);
        let part = self.regs.temp32();
        for (r, src) in srcs.iter().enumerate() {
            let value = self.source(src, if bytes == 8 { ScalarType::F64 } else { ScalarType::B32 })?;
            for s in 0..parts {
                let mut from = value;
                if let (Slot::W(a), 1..) = (value, s) {
                    let b = self.regs.literal32(8 * bytes * s);
                    self.emit(Op::ShrU32(R2 { d: part, a, b }));
                    from = Slot::W(part);
                }
                self.wmma_address(tile, &memory, r as u32, s);
                let access = self.wmma_access(tile, &memory, bytes, from);
                self.code.stores.push(access);
                let at = index(self.code.stores.len() - 1);
                self.emit(Op::Store(at));
            }
        }
        Ok(())
    }

    /// Copies of what the addresses depend on, because a load may write over it.
    fn wmma_memory(&mut self, tile: &WmmaTile) -> Result<Memory> {
        let (slot, offset) = self.address(&tile.addr)?;
        let base = self.regs.temp64();
        let wide = match slot {
            Slot::L(row) | Slot::Q(row) => row,
            Slot::W(a) => {
                self.emit(Op::ZextL(R1 { d: base, a }));
                base
            }
            Slot::P(_) => return self.error("a predicate is no address"),
        };
        let b = self.regs.literal64(offset as u64);
        self.emit(Op::AddI64(R2 { d: base, a: wide, b }));
        let (rows, columns) = tile.matrix.dimensions(tile.shape);
        let bits = tile.ty.bits();
        let stride = match &tile.stride {
            None => {
                let length = if tile.layout == MatrixLayout::Row { columns } else { rows };
                self.regs.literal64(u64::from(length * bits / 8))
            }
            Some(stride) => {
                let elements = self.l(stride, ScalarType::U32)?;
                let (d, b, three) =
                    (self.regs.temp64(), self.regs.literal64(u64::from(bits)), self.regs.literal32(3));
                self.emit(Op::MulI64(R2 { d, a: elements, b }));
                self.emit(Op::ShrU64(R2 { d, a: d, b: three }));
                d
            }
        };
        Ok(Memory { base, stride, address: self.regs.temp64() })
    }

    /// Computes the addresses of element `s` of a register.
    fn wmma_address(&mut self, tile: &WmmaTile, memory: &Memory, register: u32, s: u32) {
        let bits = u64::from(tile.ty.bits());
        let place = |lane: usize| {
            let (row, column) = place(tile, register, s, lane as u32);
            if tile.layout == MatrixLayout::Row { (row, column) } else { (column, row) }
        };
        let lines = std::array::from_fn::<u64, LANES, _>(|lane| u64::from(place(lane).0));
        let within = std::array::from_fn::<u64, LANES, _>(|lane| u64::from(place(lane).1) * bits / 8);
        let (a, c) = (self.regs.lanes64(lines), self.regs.lanes64(within));
        let d = memory.address;
        self.emit(Op::MadI64(R3 { d, a, b: memory.stride, c: memory.base }));
        self.emit(Op::AddI64(R2 { d, a: d, b: c }));
    }

    fn wmma_access(&mut self, tile: &WmmaTile, memory: &Memory, bytes: u32, slot: Slot) -> Access {
        let site = self.code.sites;
        self.code.sites += 1;
        Access {
            space: tile.space,
            bytes,
            sign: false,
            regs: vec![Some(slot)],
            keep: u32::MAX,
            addr: Slot::L(memory.address),
            offset: 0,
            ordering: Ordering::WEAK,
            site,
            tracked: None,
        }
    }

    fn wmma_product(&mut self, m: &Wmma) -> Result<()> {
        if m.a_ty == MatrixType::F64 {
            return self.wmma_f64(m);
        }
        let mut a = self.sources(&m.a, ScalarType::B32)?;
        let mut b = self.sources(&m.b, ScalarType::B32)?;
        let mut c = self.sources(&m.c, ScalarType::B32)?;
        let d = self.destinations(&m.d)?;
        let overwritten = |row: &u32| d.contains(row);
        let own = c.iter().zip(&d).all(|(c, d)| c == d || !overwritten(c));
        if a.iter().chain(&b).any(overwritten) || !own || c.len() != d.len() {
            for row in a.iter_mut().chain(&mut b).chain(&mut c) {
                let copy = self.regs.temp32();
                self.emit_part(Op::MovW(R1 { d: copy, a: *row }));
                *row = copy;
            }
        }
        // Halves meet floats: C becomes what the sums are, and D comes from them.
        let sums_ty = if m.c_ty == MatrixType::F32 { m.c_ty } else { m.d_ty };
        if m.c_ty != sums_ty {
            c = self.widen_halves(&c);
        }
        let sums = if m.d_ty == sums_ty { d.clone() } else { c.iter().map(|_| self.regs.temp32()).collect() };
        let (rows, columns, k) = m.shape.dimensions();
        let (tile_rows, blocks) = (rows.min(16) as usize, rows as usize / 8);
        let (in_tile, wide) = (tile_rows / 8, columns as usize / 8);
        let words = (k * m.a_ty.bits() / 32 / 4) as usize;
        let each = per_block(sums_ty);
        for (tile, column) in (0..blocks / in_tile).flat_map(|t| (0..wide).map(move |n| (t, n))) {
            let pick = |from: &[u32], first: usize, count: usize, step: usize| -> Vec<u32> {
                let all = (0..words).flat_map(|i| (first..first + count).map(move |r| r + step * i));
                all.filter_map(|r| from.get(r).copied()).collect()
            };
            let first = each * (column * blocks + tile * in_tile);
            let part = |from: &[u32]| from.get(first..first + each * in_tile).unwrap_or_default().to_vec();
            let a = self.four(&pick(&a, tile * in_tile, in_tile, blocks))?;
            let b = self.four(&pick(&b, column, 1, wide))?;
            let (c, d) = (self.four(&part(&c))?, self.four(&part(&sums))?);
            let op = self.wmma_tile_product(m, sums_ty, tile_rows, k as usize, [a, b, c, d])?;
            self.matrix_op(op);
        }
        if m.d_ty != sums_ty {
            for (d, pair) in d.iter().zip(sums.chunks_exact(2)) {
                self.emit(Op::F16x2FromF32(R2 { d: *d, a: pair[1], b: pair[0] }));
            }
        }
        Ok(())
    }

    fn wmma_tile_product(
        &self,
        m: &Wmma,
        sums_ty: MatrixType,
        rows: usize,
        k: usize,
        [a, b, c, d]: [Rows; 4],
    ) -> Result<MatrixOp> {
        if let Some(product @ (BitProduct::Xor | BitProduct::And)) = m.product {
            return Ok(MatrixOp::MmaBits(MmaBits { product, rows, a, b, c, d }));
        }
        let accumulator: Accumulator = self.accumulator(sums_ty, m.satfinite)?;
        let (a_element, b_element) = (self.element(m.a_ty)?, self.element(m.b_ty)?);
        Ok(MatrixOp::Mma(Mma { a_element, b_element, accumulator, rows, k, a, b, c, d }))
    }

    fn wmma_f64(&mut self, m: &Wmma) -> Result<()> {
        let op = MatrixOp::MmaF64(MmaF64 {
            rounding: m.rounding.unwrap_or(Rounding::Rn),
            rows: 8,
            a: self.sources(&m.a, ScalarType::F64)?,
            b: self.sources(&m.b, ScalarType::F64)?,
            c: self.sources(&m.c, ScalarType::F64)?,
            d: m.d.iter().map(|d| self.dst_l(*d)).collect::<Result<_>>()?,
        });
        self.matrix_op(op);
        Ok(())
    }

    /// Both halves of every word as floats, the lower first.
    fn widen_halves(&mut self, words: &[u32]) -> Vec<u32> {
        let sixteen = self.regs.literal32(16);
        let mut out = Vec::with_capacity(2 * words.len());
        for word in words {
            let (low, high) = (self.regs.temp32(), self.regs.temp32());
            self.emit_part(Op::ShrU32(R2 { d: high, a: *word, b: sixteen }));
            self.emit_part(Op::Zext16(R1 { d: low, a: *word }));
            for row in [low, high] {
                self.emit_part(Op::F32FromF16(R1 { d: row, a: row }));
                out.push(row);
            }
        }
        out
    }
}

/// Bytes of an access, and how many of them a register takes.
fn pieces(tile: &WmmaTile) -> (u32, u32) {
    let elements = match tile.matrix {
        WmmaMatrix::A | WmmaMatrix::B => per_word(tile.ty),
        WmmaMatrix::C | WmmaMatrix::D => per_word(tile.ty).min(2),
    };
    let along = if tile.matrix == WmmaMatrix::B { MatrixLayout::Col } else { MatrixLayout::Row };
    if elements == 1 || tile.layout == along {
        (tile.ty.register_bits() / 8, 1)
    } else {
        (tile.ty.bits() / 8, elements)
    }
}
