//! Operands: registers, literals, addresses, vectors, predicates.

use super::names::{Binding, Meaning, Slot};
use super::{Parser, Read, rules};
use crate::inst::*;
use crate::module::Symbol;
use crate::text::lex::{Kind, Token};
use crate::types::*;

/// The longest vector that any supported instruction takes.
const MAX_VECTOR: usize = 8;

/// Meaning of a name in operand position.
pub(super) enum Named {
    Reg(Reg),
    Symbol(SymbolId),
    Special(SpecialReg),
    /// `WARP_SZ`
    WarpSize,
}

/// A special register by its name, before its component.
enum Special {
    Plain(PlainSpecial),
    Vector(fn(Axis) -> SpecialReg),
}

fn special(name: &str) -> Option<Special> {
    let name = name.strip_prefix('%')?;
    Some(Special::Vector(match name {
        "tid" => SpecialReg::Tid,
        "ntid" => SpecialReg::Ntid,
        "ctaid" => SpecialReg::Ctaid,
        "nctaid" => SpecialReg::Nctaid,
        "cluster_ctaid" => SpecialReg::ClusterCtaid,
        "cluster_nctaid" => SpecialReg::ClusterNctaid,
        "clusterid" => SpecialReg::ClusterId,
        "nclusterid" => SpecialReg::NclusterId,
        _ => return PlainSpecial::from_name(name).map(Special::Plain),
    }))
}

/// Whether a name is that of a special register.
pub(super) fn is_special(name: &str) -> bool {
    special(name).is_some()
}

impl<'a> Parser<'a> {
    fn named(&mut self) -> Read<Named> {
        let at = self.advance();
        match self.declared(at)? {
            Some(named) => Ok(named),
            None if at.text == "WARP_SZ" => Ok(Named::WarpSize),
            None => self.special(at).map(Named::Special),
        }
    }

    /// Meaning of a name that has been declared.
    pub(super) fn declared(&mut self, at: Token<'a>) -> Read<Option<Named>> {
        Ok(match self.names.resolve(at.text) {
            Some(Meaning::Register(slot)) => {
                let slot = self.component(slot)?;
                Some(Named::Reg(self.mention(slot)))
            }
            Some(Meaning::Symbol(binding)) => {
                let symbol = match binding {
                    Binding::Param(i) => Symbol::Param(i),
                    Binding::Return(i) => Symbol::Return(i),
                    Binding::Function(i) => Symbol::Function(i),
                    Binding::Local(i) => Symbol::LocalVariable(i),
                    Binding::Module(i) | Binding::Register(i) => Symbol::ModuleVariable(i),
                };
                Some(Named::Symbol(self.body.symbol(symbol)))
            }
            None => None,
        })
    }

    /// The component of a vector register that is named behind it, or that `vector` is at.
    fn component(&mut self, slot: Slot) -> Read<Slot> {
        if slot.width() == 1 {
            return Ok(slot);
        }
        if let Some(n) = self.component {
            return Ok(slot.component(n));
        }
        let n = match (self.token.kind, self.token.text) {
            (Kind::Dot, "x" | "r") => 0,
            (Kind::Dot, "y" | "g") => 1,
            (Kind::Dot, "z" | "b") if slot.width() > 2 => 2,
            (Kind::Dot, "w" | "a") if slot.width() > 3 => 3,
            _ => return Err(self.unexpected("a component of the vector such as `.x`")),
        };
        self.advance();
        Ok(slot.component(n))
    }

    /// The components of the vector register that stands here as a whole.
    fn whole_vector(&self) -> Option<u32> {
        if self.token.kind != Kind::Word {
            return None;
        }
        let Some(Meaning::Register(slot)) = self.names.resolve(self.token.text) else { return None };
        let mut ahead = self.lexer;
        (slot.width() > 1 && ahead.next().kind != Kind::Dot).then(|| slot.width())
    }

    fn special(&mut self, at: Token<'a>) -> Read<SpecialReg> {
        let make = match special(at.text) {
            Some(Special::Plain(plain)) => return Ok(SpecialReg::Plain(plain)),
            Some(Special::Vector(make)) => make,
            None => {
                let message = match at.text.starts_with('%') {
                    true => format!("{} is neither declared nor a special register", at.shown()),
                    false => format!("{} is not declared", at.shown()),
                };
                return Err(self.fail(rules::NAME, at, message));
            }
        };
        let axis = match (self.token.kind, self.token.text) {
            (Kind::Dot, "x") => Axis::X,
            (Kind::Dot, "y") => Axis::Y,
            (Kind::Dot, "z") => Axis::Z,
            _ => return Err(self.unexpected("`.x`, `.y` or `.z`")),
        };
        self.advance();
        Ok(make(axis))
    }

    /// A register, as destination or where nothing else may stand.
    pub(super) fn reg(&mut self) -> Read<Reg> {
        let at = self.token;
        if at.kind != Kind::Word {
            return Err(self.unexpected("a register"));
        }
        match self.named()? {
            Named::Reg(reg) => Ok(reg),
            Named::Special(_) => {
                let message = format!("special register {} can only be read, by `mov` or `cvt`", at.shown());
                Err(self.fail(rules::OPERAND, at, message))
            }
            Named::Symbol(_) | Named::WarpSize => {
                Err(self.fail(rules::OPERAND, at, format!("{} is not a register", at.shown())))
            }
        }
    }

    /// A register, or `None` for `_`.
    pub(super) fn reg_or_sink(&mut self) -> Read<Option<Reg>> {
        if self.token.kind == Kind::Word && self.token.text == "_" && self.names.resolve("_").is_none() {
            self.advance();
            return Ok(None);
        }
        self.reg().map(Some)
    }

    /// A destination where `_` means a register that nobody reads.
    pub(super) fn dst(&mut self, ty: ScalarType) -> Read<Reg> {
        Ok(match self.reg_or_sink()? {
            Some(reg) => reg,
            None => self.unread(ty),
        })
    }

    /// `dst` or `dst|predicate`
    pub(super) fn dst_pair(&mut self, ty: ScalarType) -> Read<(Reg, Option<Reg>)> {
        let first = self.dst(ty)?;
        let second = if self.eat(b'|') { self.reg_or_sink()? } else { None };
        Ok((first, second))
    }

    /// `{!}p`
    pub(super) fn predicate(&mut self) -> Read<PredUse> {
        let negated = self.eat(b'!');
        Ok(PredUse { reg: self.reg()?, negated })
    }

    /// `{!}p` or a literal truth value, which goes through a register of its own.
    pub(super) fn predicate_source(&mut self) -> Read<PredUse> {
        match self.token.kind {
            Kind::Number | Kind::Punct(b'-') => {
                let value = self.immediate(ScalarType::Pred)?;
                let reg = self.unread(ScalarType::Pred);
                self.insert(Inst::PredMov { dst: reg, a: Operand::Imm(value) });
                Ok(PredUse { reg, negated: false })
            }
            _ => self.predicate(),
        }
    }

    /// The same as a plain register: a negated one is negated into a register of its own first.
    pub(super) fn predicate_reg(&mut self) -> Read<Reg> {
        let PredUse { reg, negated } = self.predicate_source()?;
        if !negated {
            return Ok(reg);
        }
        let dst = self.unread(ScalarType::Pred);
        self.insert(Inst::PredNot { dst, a: reg });
        Ok(dst)
    }

    /// A literal read as an operand of type `ty`, which decides what decimal fractions become.
    fn immediate(&mut self, ty: ScalarType) -> Read<Imm> {
        Ok(self.constant()?.to_imm(ty))
    }

    /// A register or literal.
    pub(super) fn operand(&mut self, ty: ScalarType) -> Read<Operand> {
        let at = self.token;
        match self.source(ty)? {
            Operand::Special(_) => {
                let message = format!("special register {} can only be read by `mov` or `cvt`", at.shown());
                Err(self.fail(rules::OPERAND, at, message))
            }
            Operand::Symbol(..) => {
                let message = format!("the address of {} has to be taken by `mov` first", at.shown());
                Err(self.fail(rules::OPERAND, at, message))
            }
            operand => Ok(operand),
        }
    }

    /// A register, literal, special register or symbol: the sources of `mov` and its relatives.
    pub(super) fn source(&mut self, ty: ScalarType) -> Read<Operand> {
        match self.token.kind {
            _ if self.at_constant() => Ok(Operand::Imm(self.immediate(ty)?)),
            Kind::Word => Ok(match self.named()? {
                Named::Reg(reg) => Operand::Reg(reg),
                Named::Special(special) => Operand::Special(special),
                Named::Symbol(symbol) => Operand::Symbol(symbol, self.offset()?),
                Named::WarpSize => Operand::int(32),
            }),
            _ => Err(self.unexpected("a register or literal")),
        }
    }

    /// `, operand`
    pub(super) fn next_operand(&mut self, ty: ScalarType) -> Read<Operand> {
        self.expect(b',')?;
        self.operand(ty)
    }

    /// `+n`, `+-n` or nothing.
    fn offset(&mut self) -> Read<i64> {
        if self.token.is(b'-') {
            return Err(self.unexpected("`+` before a negative offset, as in `[%rd1+-4]`"));
        }
        if !self.eat(b'+') {
            return Ok(0);
        }
        self.integer()
    }

    /// An integer literal with an optional sign.
    fn integer(&mut self) -> Read<i64> {
        let at = self.token;
        match self.immediate(ScalarType::S64)? {
            Imm::Int(v) => Ok(v),
            _ => Err(self.fail(rules::NUMBER, at, "expected an integer offset")),
        }
    }

    /// `[base+offset]`
    pub(super) fn address(&mut self) -> Read<Address> {
        self.expect(b'[')?;
        let address = self.address_inside()?;
        self.expect(b']')?;
        Ok(address)
    }

    /// `base+offset`
    pub(super) fn address_inside(&mut self) -> Read<Address> {
        let at = self.token;
        Ok(match at.kind {
            _ if self.at_constant() => Address { base: AddressBase::Absolute, offset: self.integer()? },
            Kind::Word => {
                let base = match self.named()? {
                    Named::Reg(reg) => AddressBase::Reg(reg),
                    Named::Symbol(symbol) => AddressBase::Symbol(symbol),
                    Named::Special(_) | Named::WarpSize => {
                        return Err(self.fail(
                            rules::OPERAND,
                            at,
                            format!("{} is not an address", at.shown()),
                        ));
                    }
                };
                Address { base, offset: self.offset()? }
            }
            _ => return Err(self.unexpected("an address")),
        })
    }

    /// `, [base+offset]`
    pub(super) fn next_address(&mut self) -> Read<Address> {
        self.expect(b',')?;
        self.address()
    }

    /// `{item, item, ...}`
    pub(super) fn braced<T>(&mut self, item: impl FnMut(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        self.braced_up_to(MAX_VECTOR, item)
    }

    /// The same with at most `most` items.
    pub(super) fn braced_up_to<T>(
        &mut self,
        most: usize,
        mut item: impl FnMut(&mut Self) -> Read<T>,
    ) -> Read<Vec<T>> {
        let at = self.token;
        self.expect(b'{')?;
        let mut items = Vec::with_capacity(4);
        loop {
            items.push(item(self)?);
            if items.len() > most {
                return Err(self.fail(rules::OPERAND, at, format!("a vector has at most {most} elements")));
            }
            if !self.eat(b',') {
                break;
            }
        }
        self.expect(b'}')?;
        Ok(items)
    }

    /// `width` items: one alone, more in braces.
    pub(super) fn vector<T>(
        &mut self,
        width: usize,
        mut item: impl FnMut(&mut Self) -> Read<T>,
    ) -> Read<Vec<T>> {
        let at = self.token;
        let items = if at.is(b'{') {
            self.braced(item)?
        } else if let Some(components) = self.whole_vector() {
            let from = self.checkpoint();
            let mut items = Vec::with_capacity(components as usize);
            for n in 0..components {
                self.restore(from);
                self.component = Some(n);
                let read = item(self);
                self.component = None;
                items.push(read?);
            }
            items
        } else {
            vec![item(self)?]
        };
        if items.len() == width {
            return Ok(items);
        }
        let message = format!("expected {width} elements, found {}", items.len());
        Err(self.fail(rules::OPERAND, at, message))
    }
}
