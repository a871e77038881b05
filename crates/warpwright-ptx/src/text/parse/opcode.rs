//! From an opcode to the reader of its family.

use super::{Fail, Parser, Read, rules};
use crate::inst::*;
use crate::text::lex::Token;
use crate::types::ScalarType;

/// Types that PTX has and [`ScalarType`] does not.
const FOREIGN_TYPES: &[&str] = &[
    "f32x2",
    "u16x2",
    "s16x2",
    "u8x4",
    "s8x4",
    "e2m1x2",
    "e2m3x2",
    "e3m2x2",
    "ue8m0x2",
    "e4m3x4",
    "e5m2x4",
    "e2m1x4",
    "e2m3x4",
    "e3m2x4",
    "b1",
    "b4x16",
    "b6x16_p32",
    "u4",
    "s4",
    "u2",
    "s2",
    "texref",
    "samplerref",
    "surfref",
];

/// Modifiers that PTX has for instructions whose plain form is read.
const FOREIGN_MODIFIERS: &[&str] = &["oob", "rs", "scaled", "unified", "pack"];

/// Opcodes that PTX has and [`Inst`] does not.
const FOREIGN_OPCODES: &[&str] = &[
    "alloca",
    "applypriority",
    "clusterlaunchcontrol",
    "cp",
    "createpolicy",
    "discard",
    "dp2a",
    "fns",
    "getctarank",
    "griddepcontrol",
    "istypep",
    "ldmatrix",
    "ldu",
    "mapa",
    "mbarrier",
    "mma",
    "movmatrix",
    "multimem",
    "pmevent",
    "prefetchu",
    "setmaxnreg",
    "stackrestore",
    "stacksave",
    "stmatrix",
    "suld",
    "suq",
    "sured",
    "sust",
    "tcgen05",
    "tensormap",
    "tex",
    "tld4",
    "txq",
    "vabsdiff",
    "vabsdiff2",
    "vabsdiff4",
    "vadd",
    "vadd2",
    "vadd4",
    "vavrg2",
    "vavrg4",
    "vmad",
    "vmax",
    "vmax2",
    "vmax4",
    "vmin",
    "vmin2",
    "vmin4",
    "vset",
    "vset2",
    "vset4",
    "vshl",
    "vshr",
    "vsub",
    "vsub2",
    "vsub4",
    "wgmma",
    "wmma",
];

impl<'a> Parser<'a> {
    /// Everything but control flow. The opcode and its modifiers have been consumed.
    pub(super) fn operation(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        match head.text {
            "ld" => self.load(head, modifiers),
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
            _ => self.arithmetic(head, modifiers),
        }
    }

    /// An opcode that no family knows.
    pub(super) fn unknown_opcode(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Fail {
        if FOREIGN_OPCODES.contains(&head.text) {
            return self.unsupported_opcode(head, modifiers);
        }
        self.fail(rules::UNKNOWN, head, format!("unknown instruction {}", head.shown()))
    }

    /// Names the opcode with the parts that say which of its forms is meant.
    pub(super) fn unsupported_opcode(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Fail {
        let mut name = head.text.to_owned();
        for part in modifiers.iter().take(3).take_while(|m| ScalarType::from_name(m.text).is_none()) {
            // Shapes such as `.m16n8k16` belong to the operands.
            if part.text.starts_with('m') && part.text.bytes().any(|b| b.is_ascii_digit()) {
                break;
            }
            name.push('.');
            name.push_str(part.text);
            if part.text == "sync" {
                break;
            }
        }
        self.unsupported(head, &name)
    }

    pub(super) fn unknown_modifier(&mut self, head: Token<'a>, at: Token<'a>) -> Fail {
        if FOREIGN_TYPES.contains(&at.text) || FOREIGN_MODIFIERS.contains(&at.text) {
            let what = format!("{}.{}", head.text, at.text);
            return self.unsupported(at, &what);
        }
        let message = format!("`{}` does not take {}", head.text, at.shown());
        self.fail(rules::MODIFIER, at, message)
    }

    /// A modifier that PTX has for this instruction and the IR does not.
    pub(super) fn unsupported_modifier(&mut self, head: Token<'a>, at: Token<'a>) -> Fail {
        self.unsupported(at, &format!("{}.{}", head.text, at.text))
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
