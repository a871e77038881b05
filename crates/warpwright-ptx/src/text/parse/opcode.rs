//! From an opcode to the reader of its family.

use super::{Fail, Parser, Read, Severity, rules};
use crate::inst::*;
use crate::text::lex::Token;
use crate::types::ScalarType;

/// Types that PTX has and [`ScalarType`] does not.
const FOREIGN_TYPES: &[&str] =
    &["u8x4", "s8x4", "b1", "b4x16", "u4", "s4", "u2", "s2", "texref", "samplerref", "surfref"];

/// Modifiers that PTX has for instructions whose plain form is read.
const FOREIGN_MODIFIERS: &[&str] = &["rs", "scaled", "unified", "pack"];

/// The operator, and whether it has four lanes.
fn video_operator(name: &str) -> Option<(VideoOp, bool)> {
    let (op, lanes) = name.split_at_checked(name.len().checked_sub(1)?)?;
    let bytes = match lanes {
        "2" => false,
        "4" => true,
        _ => return None,
    };
    Some((VideoOp::from_name(op)?, bytes))
}

impl<'a> Parser<'a> {
    /// Everything but control flow. The opcode and its modifiers have been consumed.
    pub(super) fn operation(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        match head.text {
            "ld" => self.load(head, modifiers),
            "st" | "red" if matches!(modifiers, [first, ..] if matches!(first.text, "async" | "bulk")) => {
                self.store_async(head, modifiers)
            }
            "st" => self.store(head, modifiers),
            "prefetch" => self.prefetch(head, modifiers),
            "atom" | "red" => self.atomic(head, modifiers),
            "mov" => self.mov(head, modifiers),
            "cvt" => self.convert(head, modifiers),
            "cvta" => self.cvta(head, modifiers),
            "isspacep" => self.isspacep(head, modifiers),
            "setp" => self.setp(head, modifiers),
            "set" => self.set(head, modifiers),
            "selp" => self.selp(head, modifiers),
            "slct" => self.slct(head, modifiers),
            "bfi" => self.bfi(head, modifiers),
            "lop3" => self.lop3(head, modifiers),
            "dp4a" => self.dp4a(head, modifiers),
            "dp2a" => self.dp2a(head, modifiers),
            "fns" => {
                self.exactly(head, modifiers, &["b32"])?;
                let dst = self.reg()?;
                let mask = self.next_operand(ScalarType::B32)?;
                let base = self.next_operand(ScalarType::B32)?;
                Ok(Inst::Fns { dst, mask, base, offset: self.next_operand(ScalarType::S32)? })
            }
            "ldu" => self.load_uniform(head, modifiers),
            "prefetchu" => {
                self.exactly(head, modifiers, &["L1"])?;
                Ok(Inst::PrefetchUniform { addr: self.address()? })
            }
            "createpolicy" => self.create_policy(head, modifiers),
            "discard" | "applypriority" => self.cache_line(head, modifiers),
            "alloca" | "stacksave" | "stackrestore" => self.stack(head, modifiers),
            "pmevent" => self.performance_event(head, modifiers),
            "mma" => self.mma(head, modifiers),
            "ldmatrix" => self.load_matrix(head, modifiers),
            "stmatrix" => self.store_matrix(head, modifiers),
            "movmatrix" => self.move_matrix(head, modifiers),
            "wgmma" => self.wgmma(head, modifiers),
            "wmma" => self.wmma(head, modifiers),
            "tcgen05" => self.tcgen05(head, modifiers),
            "setmaxnreg" => self.set_max_registers(head, modifiers),
            "cp" => self.copy(head, modifiers),
            "mbarrier" => self.mbarrier(head, modifiers),
            "tensormap" => self.tensormap(head, modifiers),
            "mapa" | "getctarank" => self.cluster_address(head, modifiers),
            "griddepcontrol" => self.grid_control(head, modifiers),
            "shfl" => self.shuffle(head, modifiers),
            "vote" => self.vote(head, modifiers),
            "match" => self.match_lanes(head, modifiers),
            "redux" => self.redux(head, modifiers),
            "activemask" => {
                self.exactly(head, modifiers, &["b32"])?;
                Ok(Inst::Activemask { dst: self.reg()? })
            }
            "elect" => self.elect(head, modifiers),
            "bar" | "barrier" => self.barrier(head, modifiers),
            "membar" | "fence" => self.fence(head, modifiers),
            "nanosleep" => {
                self.exactly(head, modifiers, &["u32"])?;
                Ok(Inst::Nanosleep { duration: self.operand(ScalarType::U32)? })
            }
            "call" => self.call(head, modifiers),
            "trap" => self.exactly(head, modifiers, &[]).map(|()| Inst::Trap),
            "brkpt" => self.exactly(head, modifiers, &[]).map(|()| Inst::Brkpt),
            name => match video_operator(name) {
                Some((op, bytes)) => self.video(head, modifiers, op, bytes),
                None => self.arithmetic(head, modifiers),
            },
        }
    }

    /// An opcode that no family knows.
    pub(super) fn unknown_opcode(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Fail {
        if Foreign::from_name(head.text).is_some() {
            let words = modifiers.iter().map(|m| m.text);
            let opcode: Vec<&str> = std::iter::once(head.text).chain(words).collect();
            let message =
                format!("`{}` is kept as text: it is not checked and not executed", opcode.join("."));
            self.report(Severity::Warning, rules::UNSUPPORTED, head, message);
            return Fail;
        }
        self.fail(rules::UNKNOWN, head, format!("unknown instruction {}", head.shown()))
    }

    pub(super) fn unknown_modifier(&mut self, head: Token<'a>, at: Token<'a>) -> Fail {
        if FOREIGN_TYPES.contains(&at.text) || FOREIGN_MODIFIERS.contains(&at.text) {
            let what = format!("{}.{}", head.text, at.text);
            return self.unsupported(at, &what);
        }
        let message = format!("`{}` does not take {}", head.text, at.shown());
        self.fail(rules::MODIFIER, at, message)
    }

    pub(super) fn missing_modifier(&mut self, head: Token<'a>, what: &str) -> Fail {
        self.fail(rules::MODIFIER, head, format!("`{}` needs {what}", head.text))
    }

    /// Sets a choice that an opcode makes once.
    pub(super) fn choose<T: PartialEq>(
        &mut self,
        head: Token<'a>,
        at: Token<'a>,
        place: &mut Option<T>,
        value: T,
    ) -> Read<()> {
        match place.replace(value) {
            None => Ok(()),
            Some(_) => {
                let message =
                    format!("{} contradicts or repeats a modifier of `{}` before it", at.shown(), head.text);
                Err(self.fail(rules::MODIFIER, at, message))
            }
        }
    }

    /// Demands just these modifiers.
    pub(super) fn exactly(
        &mut self,
        head: Token<'a>,
        modifiers: &[Token<'a>],
        expected: &[&str],
    ) -> Read<()> {
        for (i, modifier) in modifiers.iter().enumerate() {
            if expected.get(i) != Some(&modifier.text) {
                return Err(self.unknown_modifier(head, *modifier));
            }
        }
        match expected.get(modifiers.len()) {
            None => Ok(()),
            Some(missing) => Err(self.missing_modifier(head, &format!("`.{missing}`"))),
        }
    }

    /// Demands one type and nothing else.
    pub(super) fn only_type(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<ScalarType> {
        match modifiers {
            [] => Err(self.missing_modifier(head, "a type such as `.b32`")),
            [only] => ScalarType::from_name(only.text).ok_or_else(|| self.unknown_modifier(head, *only)),
            [first, second, ..] => {
                let at = if ScalarType::from_name(first.text).is_some() { *second } else { *first };
                Err(self.unknown_modifier(head, at))
            }
        }
    }
}
