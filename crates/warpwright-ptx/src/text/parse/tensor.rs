//! `mma`, `wgmma` and the matrix loads and stores.

use super::directives::space;
use super::rest::Rest;
use super::{Parser, Read, rules};
use crate::inst::*;
use crate::text::lex::{Kind, Token};
use crate::types::*;

/// Registers of the largest accumulator of `wgmma`.
const MAX_FRAGMENT: usize = 128;

/// Reads `m64n128k16`.
fn wgmma_shape(text: &str) -> Option<(u16, u16)> {
    let (n, k) = text.strip_prefix("m64n")?.split_once('k')?;
    Some((n.parse().ok()?, k.parse().ok()?))
}

/// Reads `x4`.
fn count(text: &str) -> Option<u8> {
    text.strip_prefix('x')?.parse().ok()
}

const fn register_type(ty: MatrixType) -> ScalarType {
    match ty {
        MatrixType::F64 => ScalarType::F64,
        MatrixType::F32 => ScalarType::F32,
        _ => ScalarType::B32,
    }
}

impl<'a> Parser<'a> {
    /// A small literal.
    pub(super) fn small(&mut self, most: u64) -> Read<u64> {
        let at = self.token;
        let value = self.unsigned()?;
        if value > most {
            return Err(self.fail(rules::NUMBER, at, format!("{} is more than {most}", at.shown())));
        }
        Ok(value)
    }

    fn matrix_type(&mut self, rest: &mut Rest<'a>) -> Read<MatrixType> {
        self.need(rest, MatrixType::from_name, "the types of its matrices")
    }

    /// `, {sources}`
    fn next_fragment(&mut self, ty: ScalarType) -> Read<Vec<Operand>> {
        self.expect(b',')?;
        self.braced(|p| p.operand(ty))
    }

    /// `, metadata, selector`
    fn sparsity(&mut self, ordered: bool) -> Read<Sparsity> {
        let metadata = self.next_operand(ScalarType::B32)?;
        self.expect(b',')?;
        let selector = u8::try_from(self.small(3)?).unwrap_or(0);
        Ok(Sparsity { ordered, metadata, selector })
    }

    /// `, data, {byte, thread}`
    fn scale(&mut self) -> Read<Scale> {
        let data = self.next_operand(ScalarType::B32)?;
        self.expect(b',')?;
        self.expect(b'{')?;
        let byte = self.operand(ScalarType::U16)?;
        let thread = self.next_operand(ScalarType::U16)?;
        self.expect(b'}')?;
        Ok(Scale { data, byte, thread })
    }

    pub(super) fn mma(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        let ordered = rest.take("sp::ordered_metadata");
        let sparse = ordered || rest.take("sp");
        self.require(&mut rest, &["sync", "aligned"])?;
        let shape = self.need(&mut rest, MmaShape::from_name, "a shape such as `.m16n8k16`")?;
        let a_layout = self.need(&mut rest, MatrixLayout::from_name, "`.row` for A")?;
        let b_layout = self.need(&mut rest, MatrixLayout::from_name, "`.col` for B")?;
        let kind = rest.pick(|t| MmaKind::from_name(t.strip_prefix("kind::")?));
        let scaled = rest.take("block_scale");
        let vector = rest.pick(|t| ScaleVector::from_name(t.strip_prefix("scale_vec::")?));
        let scale_ty =
            if scaled { Some(self.need(&mut rest, ScaleType::from_name, "`.ue8m0`")?) } else { None };
        let rounding = rest.pick(Rounding::from_name);
        let satfinite = rest.take("satfinite");
        let product = rest.pick(BitProduct::from_name);
        if product.is_some() {
            self.require(&mut rest, &["popc"])?;
        }
        let d_ty = self.matrix_type(&mut rest)?;
        let a_ty = self.matrix_type(&mut rest)?;
        let b_ty = self.matrix_type(&mut rest)?;
        let c_ty = self.matrix_type(&mut rest)?;
        self.nothing_left(&rest)?;
        let d = self.braced(|p| p.dst(register_type(d_ty)))?;
        let a = self.next_fragment(register_type(a_ty))?;
        let b = self.next_fragment(register_type(b_ty))?;
        let c = self.next_fragment(register_type(c_ty))?;
        let sparsity = if sparse { Some(self.sparsity(ordered)?) } else { None };
        let scale = match scale_ty {
            Some(ty) => Some(BlockScale { vector, ty, a: self.scale()?, b: self.scale()? }),
            None => None,
        };
        Ok(Inst::Mma(Box::new(Mma {
            shape,
            a_layout,
            b_layout,
            d_ty,
            a_ty,
            b_ty,
            c_ty,
            rounding,
            satfinite,
            product,
            kind,
            sparsity,
            scale,
            d,
            a,
            b,
            c,
        })))
    }

    /// Modifiers of `ldmatrix` and `stmatrix`.
    fn tiles(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<(MatrixTiles, StateSpace)> {
        let mut rest = Rest::new(head, modifiers);
        self.require(&mut rest, &["sync", "aligned"])?;
        let shape = self.need(&mut rest, MatrixShape::from_name, "a shape such as `.m8n8`")?;
        let count = self.need(&mut rest, count, "`.x1`, `.x2` or `.x4`")?;
        let transposed = rest.take("trans");
        let space = rest.pick(space).unwrap_or(StateSpace::Generic);
        let element = if rest.take("b8x16") {
            let packed = |t: &str| match t {
                "b6x16_p32" => Some(MatrixElement::B6),
                "b4x16_p64" => Some(MatrixElement::B4),
                _ => None,
            };
            self.need(&mut rest, packed, "`.b6x16_p32` or `.b4x16_p64`")?
        } else {
            self.need(&mut rest, MatrixElement::from_name, "`.b16`")?
        };
        self.nothing_left(&rest)?;
        Ok((MatrixTiles { shape, count, transposed, element }, space))
    }

    pub(super) fn load_matrix(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let (tiles, space) = self.tiles(head, modifiers)?;
        let dsts = self.braced(|p| p.dst(ScalarType::B32))?;
        let addr = self.next_address()?;
        Ok(Inst::LdMatrix { tiles, space, dsts, addr })
    }

    pub(super) fn store_matrix(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let (tiles, space) = self.tiles(head, modifiers)?;
        let addr = self.address()?;
        let srcs = self.next_fragment(ScalarType::B32)?;
        Ok(Inst::StMatrix { tiles, space, addr, srcs })
    }

    pub(super) fn move_matrix(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        self.exactly(head, modifiers, &["sync", "aligned", "m8n8", "trans", "b16"])?;
        let dst = self.dst(ScalarType::B32)?;
        Ok(Inst::MovMatrix { dst, a: self.next_operand(ScalarType::B32)? })
    }

    pub(super) fn wmma(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        if rest.take("mma") {
            return self.wmma_product(rest);
        }
        let stores = rest.take("store");
        if !stores {
            self.require(&mut rest, &["load"])?;
        }
        let matrix = self.need(&mut rest, WmmaMatrix::from_name, "the matrix that it moves")?;
        if stores != (matrix == WmmaMatrix::D) {
            return Err(self.fail(rules::MODIFIER, head, "A, B and C are loaded and D is stored"));
        }
        self.require(&mut rest, &["sync", "aligned"])?;
        let layout = self.need(&mut rest, MatrixLayout::from_name, "`.row` or `.col`")?;
        let shape = self.need(&mut rest, WmmaShape::from_name, "a shape such as `.m16n16k16`")?;
        let space = rest.pick(space).unwrap_or(StateSpace::Generic);
        let ty = self.matrix_type(&mut rest)?;
        self.nothing_left(&rest)?;
        let dsts = if stores { Vec::new() } else { self.braced(|p| p.dst(register_type(ty)))? };
        let addr = if stores { self.address()? } else { self.next_address()? };
        let srcs = if stores { self.next_fragment(register_type(ty))? } else { Vec::new() };
        let stride = if self.token.is(b',') { Some(self.next_operand(ScalarType::U32)?) } else { None };
        let tile = Box::new(WmmaTile { matrix, layout, shape, space, ty, addr, stride });
        Ok(if stores { Inst::WmmaStore { tile, srcs } } else { Inst::WmmaLoad { tile, dsts } })
    }

    fn wmma_product(&mut self, mut rest: Rest<'a>) -> Read<Inst> {
        let product = rest.pick(BitProduct::from_name);
        if product.is_some() {
            self.require(&mut rest, &["popc"])?;
        }
        self.require(&mut rest, &["sync", "aligned"])?;
        let a_layout = self.need(&mut rest, MatrixLayout::from_name, "the layout of A")?;
        let b_layout = self.need(&mut rest, MatrixLayout::from_name, "the layout of B")?;
        let shape = self.need(&mut rest, WmmaShape::from_name, "a shape such as `.m16n16k16`")?;
        let rounding = rest.pick(Rounding::from_name);
        let d_ty = self.matrix_type(&mut rest)?;
        let second = self.matrix_type(&mut rest)?;
        // Factors of f16 are not written.
        let (a_ty, b_ty, c_ty) = match rest.pick(MatrixType::from_name) {
            None => (MatrixType::F16, MatrixType::F16, second),
            Some(third) => (second, third, self.matrix_type(&mut rest)?),
        };
        let satfinite = rest.take("satfinite");
        self.nothing_left(&rest)?;
        let d = self.braced(|p| p.dst(register_type(d_ty)))?;
        let a = self.next_fragment(register_type(a_ty))?;
        let b = self.next_fragment(register_type(b_ty))?;
        let c = self.next_fragment(register_type(c_ty))?;
        Ok(Inst::Wmma(Box::new(Wmma {
            shape,
            a_layout,
            b_layout,
            d_ty,
            a_ty,
            b_ty,
            c_ty,
            rounding,
            satfinite,
            product,
            d,
            a,
            b,
            c,
        })))
    }

    pub(super) fn wgmma(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        let (fence, commit, wait) = (rest.take("fence"), rest.take("commit_group"), rest.take("wait_group"));
        if fence || commit || wait {
            self.require(&mut rest, &["sync"])?;
            // The assembler does without, and means the same.
            rest.take("aligned");
            self.nothing_left(&rest)?;
            return Ok(if fence {
                Inst::WgmmaFence
            } else if commit {
                Inst::WgmmaCommit
            } else {
                Inst::WgmmaWait { pending: self.unsigned32()? }
            });
        }
        self.require(&mut rest, &["mma_async"])?;
        let sparse = rest.take("sp");
        self.require(&mut rest, &["sync", "aligned"])?;
        let (n, k) = self.need(&mut rest, wgmma_shape, "a shape such as `.m64n64k16`")?;
        let d_ty = self.matrix_type(&mut rest)?;
        let a_ty = self.matrix_type(&mut rest)?;
        let b_ty = self.matrix_type(&mut rest)?;
        let satfinite = rest.take("satfinite");
        if a_ty == MatrixType::B1 {
            self.require(&mut rest, &["and", "popc"])?;
        }
        self.nothing_left(&rest)?;
        let d = self.braced_up_to(MAX_FRAGMENT, |p| p.dst(register_type(d_ty)))?;
        self.expect(b',')?;
        let a = if self.token.is(b'{') {
            WgmmaSource::Registers(self.braced(|p| p.operand(ScalarType::B32))?)
        } else {
            WgmmaSource::Descriptor(self.operand(ScalarType::B64)?)
        };
        let b = self.next_operand(ScalarType::B64)?;
        let sparsity = if sparse { Some(self.sparsity(false)?) } else { None };
        self.expect(b',')?;
        let accumulate = if self.token.kind == Kind::Number {
            Accumulate::Always(self.small(1)? == 1)
        } else {
            Accumulate::If(self.predicate_reg()?)
        };
        let mut mma = Wgmma {
            n,
            k,
            d_ty,
            a_ty,
            b_ty,
            satfinite,
            sparsity,
            d,
            a,
            b,
            accumulate,
            negate_a: false,
            negate_b: false,
            transpose_a: false,
            transpose_b: false,
        };
        if mma.has_scales() {
            mma.negate_a = self.sign()?;
            mma.negate_b = self.sign()?;
        }
        if mma.has_transposes() {
            if matches!(mma.a, WgmmaSource::Descriptor(_)) {
                self.expect(b',')?;
                mma.transpose_a = self.small(1)? == 1;
            }
            self.expect(b',')?;
            mma.transpose_b = self.small(1)? == 1;
        }
        Ok(Inst::Wgmma(Box::new(mma)))
    }

    /// `, 1` or `, -1`: whether it is the latter.
    fn sign(&mut self) -> Read<bool> {
        self.expect(b',')?;
        let at = self.token;
        let negative = self.eat(b'-');
        match self.unsigned()? {
            1 => Ok(negative),
            _ => Err(self.fail(rules::NUMBER, at, "expected 1 or -1")),
        }
    }

    pub(super) fn set_max_registers(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        let increase = rest.take("inc");
        if !increase {
            self.require(&mut rest, &["dec"])?;
        }
        self.require(&mut rest, &["sync", "aligned", "u32"])?;
        self.nothing_left(&rest)?;
        Ok(Inst::SetMaxNreg { increase, count: self.unsigned32()? })
    }
}
