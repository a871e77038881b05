//! The fifth generation of tensor cores.

use super::directives::space;
use super::rest::Rest;
use super::{Parser, Read, rules};
use crate::inst::*;
use crate::text::lex::Token;
use crate::types::*;

/// Registers of the largest load or store.
const MAX_FRAGMENT: usize = 128;

/// Reads `x4`.
fn count(text: &str) -> Option<u8> {
    text.strip_prefix('x')?.parse().ok()
}

/// Reads `cta_group::1`: whether it is a pair of blocks.
fn group(text: &str) -> Option<bool> {
    match text.strip_prefix("cta_group::")? {
        "1" => Some(false),
        "2" => Some(true),
        _ => None,
    }
}

/// Reads `scale_vec::2X` or `block32`.
fn scale_size(text: &str) -> Option<Tcgen05ScaleSize> {
    match text.strip_prefix("scale_vec::") {
        Some(vector) => ScaleVector::from_name(vector).map(Tcgen05ScaleSize::Vector),
        None => Tcgen05Block::from_name(text).map(Tcgen05ScaleSize::Block),
    }
}

impl<'a> Parser<'a> {
    pub(super) fn tcgen05(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        let Some(name) = modifiers.first().map(|m| m.text) else {
            return Err(self.missing_modifier(head, "the name of an operation"));
        };
        rest.take(name);
        let inst = match name {
            "alloc" => self.tcgen05_alloc(rest)?,
            "dealloc" => {
                let pair = self.group(&mut rest)?;
                self.require(&mut rest, &["sync", "aligned", "b32"])?;
                self.nothing_left(&rest)?;
                let memory = self.operand(ScalarType::U32)?;
                Tcgen05::Dealloc { pair, memory, columns: self.next_operand(ScalarType::U32)? }
            }
            "relinquish_alloc_permit" => {
                let pair = self.group(&mut rest)?;
                self.require(&mut rest, &["sync", "aligned"])?;
                self.nothing_left(&rest)?;
                Tcgen05::Relinquish { pair }
            }
            "ld" if modifiers.iter().all(|m| m.text != "red") => self.tcgen05_load(rest)?,
            "st" => self.tcgen05_store(rest)?,
            "wait::ld" | "wait::st" => {
                self.require(&mut rest, &["sync", "aligned"])?;
                self.nothing_left(&rest)?;
                Tcgen05::Wait { stores: name == "wait::st" }
            }
            "fence::before_thread_sync" | "fence::after_thread_sync" => {
                self.nothing_left(&rest)?;
                Tcgen05::Fence { after: name == "fence::after_thread_sync" }
            }
            "commit" => self.tcgen05_commit(rest)?,
            "cp" => self.tcgen05_copy(rest)?,
            "shift" => {
                let pair = self.group(&mut rest)?;
                self.require(&mut rest, &["down"])?;
                self.nothing_left(&rest)?;
                Tcgen05::Shift { pair, memory: self.address()? }
            }
            "mma" if modifiers.iter().all(|m| !matches!(m.text, "sp" | "ws")) => {
                Tcgen05::Mma(self.tcgen05_mma(rest)?)
            }
            _ => return Err(self.unknown_opcode(head, modifiers)),
        };
        Ok(Inst::Tcgen05(Box::new(inst)))
    }

    fn group(&mut self, rest: &mut Rest<'a>) -> Read<bool> {
        self.need(rest, group, "`.cta_group::1` or `.cta_group::2`")
    }

    fn tcgen05_alloc(&mut self, mut rest: Rest<'a>) -> Read<Tcgen05> {
        let pair = self.group(&mut rest)?;
        self.require(&mut rest, &["sync", "aligned"])?;
        let space = rest.pick(space).unwrap_or(StateSpace::Generic);
        self.require(&mut rest, &["b32"])?;
        self.nothing_left(&rest)?;
        let addr = self.address()?;
        Ok(Tcgen05::Alloc { pair, space, addr, columns: self.next_operand(ScalarType::U32)? })
    }

    /// Modifiers of a load or store.
    fn tcgen05_access(&mut self, mut rest: Rest<'a>, packing: &str) -> Read<Tcgen05Access> {
        self.require(&mut rest, &["sync", "aligned"])?;
        let shape = self.need(&mut rest, Tcgen05Shape::from_name, "a shape such as `.32x32b`")?;
        let count = self.need(&mut rest, count, "a number of pieces such as `.x4`")?;
        let packed = rest.take(packing);
        self.require(&mut rest, &["b32"])?;
        self.nothing_left(&rest)?;
        Ok(Tcgen05Access { shape, count, packed, split: 0 })
    }

    /// `, split` of the shape that has two halves.
    fn tcgen05_split(&mut self, access: &mut Tcgen05Access) -> Read<()> {
        if access.shape == Tcgen05Shape::L16B32X2 {
            self.expect(b',')?;
            access.split = self.unsigned32()?;
        }
        Ok(())
    }

    fn tcgen05_load(&mut self, rest: Rest<'a>) -> Read<Tcgen05> {
        let mut access = self.tcgen05_access(rest, "pack::16b")?;
        let dst = |p: &mut Self| p.dst(ScalarType::B32);
        let dsts = if self.token.is(b'{') { self.braced_up_to(MAX_FRAGMENT, dst)? } else { vec![dst(self)?] };
        let memory = self.next_address()?;
        self.tcgen05_split(&mut access)?;
        Ok(Tcgen05::Load { access, dsts, memory })
    }

    fn tcgen05_store(&mut self, rest: Rest<'a>) -> Read<Tcgen05> {
        let mut access = self.tcgen05_access(rest, "unpack::16b")?;
        let memory = self.address()?;
        self.tcgen05_split(&mut access)?;
        self.expect(b',')?;
        let src = |p: &mut Self| p.operand(ScalarType::B32);
        let srcs = if self.token.is(b'{') { self.braced_up_to(MAX_FRAGMENT, src)? } else { vec![src(self)?] };
        Ok(Tcgen05::Store { access, memory, srcs })
    }

    fn tcgen05_commit(&mut self, mut rest: Rest<'a>) -> Read<Tcgen05> {
        let pair = self.group(&mut rest)?;
        self.require(&mut rest, &["mbarrier::arrive::one"])?;
        let space = rest.pick(space).unwrap_or(StateSpace::Generic);
        let multicast = rest.take("multicast::cluster");
        self.require(&mut rest, &["b64"])?;
        self.nothing_left(&rest)?;
        let addr = self.address()?;
        let multicast = if multicast { Some(self.next_operand(ScalarType::U16)?) } else { None };
        Ok(Tcgen05::Commit { pair, space, addr, multicast })
    }

    fn tcgen05_copy(&mut self, mut rest: Rest<'a>) -> Read<Tcgen05> {
        let pair = self.group(&mut rest)?;
        let shape = self.need(&mut rest, Tcgen05CopyShape::from_name, "a shape such as `.128x256b`")?;
        let multicast = rest.pick(Tcgen05Multicast::from_name);
        let packed = if rest.take("b8x16") {
            Some(self.need(&mut rest, Tcgen05Packed::from_name, "`.b6x16_p32` or `.b4x16_p64`")?)
        } else {
            None
        };
        self.nothing_left(&rest)?;
        let memory = self.address()?;
        let descriptor = self.next_operand(ScalarType::B64)?;
        Ok(Tcgen05::Copy { pair, shape, multicast, packed, memory, descriptor })
    }

    fn tcgen05_mma(&mut self, mut rest: Rest<'a>) -> Read<Tcgen05Mma> {
        let head = rest.head;
        let pair = self.group(&mut rest)?;
        let kind = |t: &str| Tcgen05Kind::from_name(t.strip_prefix("kind::")?);
        let kind = self.need(&mut rest, kind, "a kind such as `.kind::f16`")?;
        let scaled = rest.take("block_scale");
        let size = rest.pick(scale_size);
        if scaled != kind.is_scaled() || size.is_some() && !scaled {
            return Err(self.fail(
                rules::MODIFIER,
                head,
                "`.block_scale` goes with the kinds mxf8f6f4, mxf4 and mxf4nvf4, and only with them",
            ));
        }
        let shift = rest.take("ashift");
        let collector = rest.pick(|t| Tcgen05Collector::from_name(t.strip_prefix("collector::a::")?));
        self.nothing_left(&rest)?;
        let d = self.address()?;
        self.expect(b',')?;
        let a = if self.token.is(b'[') {
            Tcgen05Source::Memory(self.address()?)
        } else {
            Tcgen05Source::Descriptor(self.operand(ScalarType::B64)?)
        };
        let b = self.next_operand(ScalarType::B64)?;
        let descriptor = self.next_operand(ScalarType::B32)?;
        let scales = if scaled {
            Some(Tcgen05Scales { size, a: self.next_address()?, b: self.next_address()? })
        } else {
            None
        };
        self.expect(b',')?;
        let mut disabled = Vec::new();
        if self.token.is(b'{') {
            disabled = self.braced(|p| p.operand(ScalarType::B32))?;
            self.expect(b',')?;
        }
        let accumulate = self.predicate_reg()?;
        let scale_d = if self.eat(b',') { u8::try_from(self.small(15)?).ok() } else { None };
        Ok(Tcgen05Mma {
            pair,
            kind,
            scales,
            shift,
            collector,
            d,
            a,
            b,
            descriptor,
            disabled,
            accumulate,
            scale_d,
        })
    }
}
