//! Warp-wide instructions, barriers and fences.

use super::{Parser, Read, rules};
use crate::inst::*;
use crate::text::lex::Token;
use crate::types::*;

impl<'a> Parser<'a> {
    /// The modifiers without `.sync`, which is demanded.
    fn synchronous(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Vec<Token<'a>>> {
        let rest: Vec<_> = modifiers.iter().copied().filter(|m| m.text != "sync").collect();
        match modifiers.len() - rest.len() {
            1 => Ok(rest),
            0 => {
                let message = format!("`{}` without `.sync` does not exist from sm_70 on", head.text);
                Err(self.fail(rules::UNSUPPORTED, head, message))
            }
            _ => Err(self.fail(rules::MODIFIER, head, "`.sync` is given twice")),
        }
    }

    pub(super) fn shuffle(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let rest = self.synchronous(head, modifiers)?;
        let Some(mode) = rest.first().and_then(|m| ShflMode::from_name(m.text)) else {
            return Err(self.missing_modifier(head, "`.up`, `.down`, `.bfly` or `.idx`"));
        };
        self.exactly(head, &rest[1..], &["b32"])?;
        let dst = self.reg()?;
        let pred = if self.eat(b'|') { Some(self.reg()?) } else { None };
        let a = self.next_operand(ScalarType::B32)?;
        let b = self.next_operand(ScalarType::B32)?;
        let c = self.next_operand(ScalarType::B32)?;
        let mask = self.next_operand(ScalarType::B32)?;
        Ok(Inst::Shfl { mode, dst, pred, a, b, c, mask })
    }

    pub(super) fn vote(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let rest = self.synchronous(head, modifiers)?;
        let Some(mode) = rest.first().and_then(|m| VoteMode::from_name(m.text)) else {
            return Err(self.missing_modifier(head, "`.all`, `.any`, `.uni` or `.ballot`"));
        };
        let ty = if mode == VoteMode::Ballot { "b32" } else { "pred" };
        self.exactly(head, &rest[1..], &[ty])?;
        let dst = self.reg()?;
        self.expect(b',')?;
        let src = self.predicate_source()?;
        let mask = self.next_operand(ScalarType::B32)?;
        Ok(Inst::Vote { mode, dst, src, mask })
    }

    pub(super) fn match_lanes(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let rest = self.synchronous(head, modifiers)?;
        let all = match rest.first().map(|m| m.text) {
            Some("all") => true,
            Some("any") => false,
            _ => return Err(self.missing_modifier(head, "`.any` or `.all`")),
        };
        let ty = self.only_type(head, &rest[1..])?;
        let (dst, pred) = self.dst_pair(ScalarType::B32)?;
        let a = self.next_operand(ty)?;
        let mask = self.next_operand(ScalarType::B32)?;
        Ok(Inst::Match { all, ty, dst, pred, a, mask })
    }

    pub(super) fn redux(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let rest = self.synchronous(head, modifiers)?;
        let Some(op) = rest.first().and_then(|m| ReduxOp::from_name(m.text)) else {
            return Err(self.missing_modifier(head, "an operation such as `.add`"));
        };
        let (abs, nan) = (rest.iter().any(|m| m.text == "abs"), rest.iter().any(|m| m.text == "NaN"));
        let rest: Vec<_> = rest[1..].iter().copied().filter(|m| !matches!(m.text, "abs" | "NaN")).collect();
        let ty = self.only_type(head, &rest)?;
        let dst = self.reg()?;
        let a = self.next_operand(ty)?;
        let mask = self.next_operand(ScalarType::B32)?;
        Ok(Inst::Redux { op, abs, nan, ty, dst, a, mask })
    }

    pub(super) fn elect(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        self.exactly(head, modifiers, &["sync"])?;
        let dst = self.reg_or_sink()?;
        self.expect(b'|')?;
        let pred = self.reg()?;
        let mask = self.next_operand(ScalarType::B32)?;
        Ok(Inst::Elect { dst, pred, mask })
    }

    /// `bar` is `barrier` with `.aligned`; both take `.cta`, which is the default.
    pub(super) fn barrier(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        if matches!((head.text, modifiers), ("barrier", [first, ..]) if first.text == "cluster") {
            return self.cluster_barrier(head, modifiers);
        }
        let rest: Vec<_> =
            modifiers.iter().copied().filter(|m| !matches!(m.text, "cta" | "aligned")).collect();
        let spelled_aligned = modifiers.iter().find(|m| m.text == "aligned");
        if let (Some(at), "bar") = (spelled_aligned, head.text) {
            return Err(self.unknown_modifier(head, *at));
        }
        let aligned = head.text == "bar" || spelled_aligned.is_some();
        match rest.iter().map(|m| m.text).collect::<Vec<_>>().as_slice() {
            ["warp", "sync"] if head.text == "bar" => {
                Ok(Inst::WarpBarrier { mask: self.operand(ScalarType::B32)? })
            }
            ["sync"] => {
                let id = self.operand(ScalarType::U32)?;
                let count = self.optional_operand()?;
                Ok(Inst::Barrier { kind: BarrierKind::Sync, aligned, id, count })
            }
            ["arrive"] => {
                let id = self.operand(ScalarType::U32)?;
                let count = self.optional_operand()?;
                Ok(Inst::Barrier { kind: BarrierKind::Arrive, aligned, id, count })
            }
            ["red", op, ty] => {
                let Some(op) = BarRedOp::from_name(op) else {
                    return Err(self.unknown_modifier(head, rest[1]));
                };
                if *ty != if op == BarRedOp::Popc { "u32" } else { "pred" } {
                    return Err(self.unknown_modifier(head, rest[2]));
                }
                self.barrier_reduction(aligned, op)
            }
            [] => Err(self.missing_modifier(head, "`.sync`, `.arrive` or `.red`")),
            _ => {
                let at =
                    rest.iter().find(|m| !matches!(m.text, "sync" | "arrive" | "red")).unwrap_or(&rest[0]);
                Err(self.unknown_modifier(head, *at))
            }
        }
    }

    fn optional_operand(&mut self) -> Read<Option<Operand>> {
        if self.token.is(b',') { self.next_operand(ScalarType::U32).map(Some) } else { Ok(None) }
    }

    /// `dst, id{, count}, {!}p`: whether there is a count shows only after the next operand.
    fn barrier_reduction(&mut self, aligned: bool, op: BarRedOp) -> Read<Inst> {
        let dst = self.reg()?;
        let id = self.next_operand(ScalarType::U32)?;
        self.expect(b',')?;
        let at = self.token;
        let (count, src) = if at.is(b'!') {
            (None, self.predicate()?)
        } else {
            let operand = self.operand(ScalarType::U32)?;
            if self.eat(b',') {
                (Some(operand), self.predicate()?)
            } else {
                let Operand::Reg(reg) = operand else {
                    return Err(self.fail(rules::OPERAND, at, "the last operand is a predicate"));
                };
                (None, PredUse { reg, negated: false })
            }
        };
        Ok(Inst::Barrier { kind: BarrierKind::Reduce { op, dst, src }, aligned, id, count })
    }

    /// `membar` reads as the `fence.sc` that it has meant since sm_70.
    pub(super) fn fence(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        if modifiers
            .iter()
            .any(|m| matches!(m.text, "proxy" | "mbarrier_init") || m.text.starts_with("sync_restrict"))
        {
            return self.special_fence(head, modifiers);
        }
        let (mut semantics, mut scope) = (None, None);
        for at in modifiers {
            let named = match (head.text, at.text) {
                ("membar", "cta") => Some(Scope::Cta),
                ("membar", "gl") => Some(Scope::Gpu),
                ("membar", "sys") => Some(Scope::Sys),
                ("membar", _) => None,
                (_, text) => Scope::from_name(text),
            };
            if let Some(named) = named {
                self.choose(head, *at, &mut scope, named)?;
            } else if let ("fence", Some(named)) = (head.text, FenceSemantics::from_name(at.text)) {
                self.choose(head, *at, &mut semantics, named)?;
            } else {
                return Err(self.unknown_modifier(head, *at));
            }
        }
        match scope {
            Some(scope) => {
                let default = if head.text == "membar" { FenceSemantics::Sc } else { FenceSemantics::AcqRel };
                Ok(Inst::Fence { semantics: semantics.unwrap_or(default), scope })
            }
            None => Err(self.missing_modifier(head, "a scope")),
        }
    }
}
