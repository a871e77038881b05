//! Loads, stores, atomics and address conversions.

use super::directives::space;
use super::rest::Rest;
use super::{Parser, Read, rules};
use crate::inst::*;
use crate::text::lex::Token;
use crate::types::*;

/// Modifiers of a memory instruction.
#[derive(Default)]
struct Access {
    space: Option<StateSpace>,
    semantics: Option<Semantics>,
    scope: Option<Scope>,
    cache: Option<CacheOp>,
    l1: Option<L1Eviction>,
    l2: Option<L2Eviction>,
    prefetch: Option<L2Prefetch>,
    policy: Option<()>,
    non_coherent: Option<()>,
    width: Option<usize>,
    ty: Option<ScalarType>,
}

impl Access {
    fn ordering(&self) -> Ordering {
        Ordering { semantics: self.semantics.unwrap_or(Semantics::Weak), scope: self.scope }
    }
}

fn semantics(text: &str) -> Option<Semantics> {
    Semantics::from_name(text)
}

impl<'a> Parser<'a> {
    fn access(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Access> {
        let mut access = Access::default();
        for (i, at) in modifiers.iter().enumerate() {
            let text = at.text;
            if let Some(ty) = ScalarType::from_name(text) {
                self.choose(head, *at, &mut access.ty, ty)?;
            } else if let Some(space) = space(text) {
                self.choose(head, *at, &mut access.space, space)?;
            } else if let Some(width @ ("v2" | "v4" | "v8")) = Some(text) {
                let width = usize::from(width.as_bytes()[1] - b'0');
                self.choose(head, *at, &mut access.width, width)?;
            } else if text == "nc" {
                self.choose(head, *at, &mut access.non_coherent, ())?;
            } else if text == "relaxed" && i > 0 && modifiers[i - 1].text == "mmio" {
                // `.mmio.relaxed` is one thing.
            } else if let Some(semantics) = semantics(text) {
                self.choose(head, *at, &mut access.semantics, semantics)?;
            } else if let Some(scope) = Scope::from_name(text) {
                self.choose(head, *at, &mut access.scope, scope)?;
            } else if let Some(op) = CacheOp::from_name(text) {
                self.choose(head, *at, &mut access.cache, op)?;
            } else if let Some(l1) = L1Eviction::from_name(text) {
                self.choose(head, *at, &mut access.l1, l1)?;
            } else if let Some(l2) = L2Eviction::from_name(text) {
                self.choose(head, *at, &mut access.l2, l2)?;
            } else if let Some(size) = L2Prefetch::from_name(text) {
                self.choose(head, *at, &mut access.prefetch, size)?;
            } else if text == "L2::cache_hint" {
                self.choose(head, *at, &mut access.policy, ())?;
            } else {
                return Err(self.unknown_modifier(head, *at));
            }
        }
        if access.ty.is_none() {
            return Err(self.missing_modifier(head, "a type such as `.f32`"));
        }
        Ok(access)
    }

    fn hints(&mut self, access: &Access) -> Read<CacheHints> {
        let policy = self.next_policy(access.policy.is_some())?;
        Ok(CacheHints {
            op: access.cache.unwrap_or(CacheOp::Default),
            l1: access.l1.unwrap_or(L1Eviction::Default),
            l2: access.l2.unwrap_or(L2Eviction::Default),
            l2_prefetch: access.prefetch.unwrap_or(L2Prefetch::Default),
            policy,
        })
    }

    pub(super) fn load(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let access = self.access(head, modifiers)?;
        let ty = access.ty.unwrap_or(ScalarType::B32);
        let dsts = self.vector(access.width.unwrap_or(1), Self::reg_or_sink)?;
        let addr = self.next_address()?;
        let hints = self.hints(&access)?;
        Ok(Inst::Ld {
            space: access.space.unwrap_or(StateSpace::Generic),
            ty,
            ordering: access.ordering(),
            hints,
            non_coherent: access.non_coherent.is_some(),
            dsts,
            addr,
        })
    }

    pub(super) fn load_uniform(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        let space = rest.pick(space).unwrap_or(StateSpace::Generic);
        let width = rest.pick(|t| match t {
            "v2" => Some(2),
            "v4" => Some(4),
            _ => None,
        });
        let ty = self.need(&mut rest, ScalarType::from_name, "a type such as `.f32`")?;
        self.nothing_left(&rest)?;
        let dsts = self.vector(width.unwrap_or(1), Self::reg_or_sink)?;
        Ok(Inst::Ldu { space, ty, dsts, addr: self.next_address()? })
    }

    pub(super) fn store(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let access = self.access(head, modifiers)?;
        if access.non_coherent.is_some() {
            return Err(self.fail(rules::MODIFIER, head, "`.nc` is for loads"));
        }
        let ty = access.ty.unwrap_or(ScalarType::B32);
        let addr = self.address()?;
        self.expect(b',')?;
        let srcs = self.vector(access.width.unwrap_or(1), |p| p.operand(ty))?;
        let hints = self.hints(&access)?;
        Ok(Inst::St {
            space: access.space.unwrap_or(StateSpace::Generic),
            ty,
            ordering: access.ordering(),
            hints,
            srcs,
            addr,
        })
    }

    pub(super) fn prefetch(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let (mut at_space, mut at_level, mut of_map) = (None, None, None);
        for at in modifiers {
            if let Some(space) = space(at.text) {
                self.choose(head, *at, &mut at_space, space)?;
            } else if let Some(level) = PrefetchLevel::from_name(at.text) {
                self.choose(head, *at, &mut at_level, level)?;
            } else if at.text == "tensormap" {
                self.choose(head, *at, &mut of_map, ())?;
            } else {
                return Err(self.unknown_modifier(head, *at));
            }
        }
        if of_map.is_some() && at_level.is_none() {
            let space = at_space.unwrap_or(StateSpace::Generic);
            return Ok(Inst::PrefetchTensormap { space, addr: self.address()? });
        }
        let Some(level) = at_level else {
            return Err(self.missing_modifier(head, "`.L1` or `.L2`"));
        };
        let addr = self.address()?;
        Ok(Inst::Prefetch { space: at_space.unwrap_or(StateSpace::Generic), level, addr })
    }

    pub(super) fn atomic(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let (mut sem, mut scope, mut at_space, mut op, mut noftz) = (None, None, None, None, None);
        let (mut ty, mut hint, mut width) = (None, None, None);
        for at in modifiers {
            if let Some(named) = ScalarType::from_name(at.text) {
                self.choose(head, *at, &mut ty, named)?;
            } else if let Some(named) = AtomOp::from_name(at.text) {
                self.choose(head, *at, &mut op, named)?;
            } else if let Some(named) = space(at.text) {
                self.choose(head, *at, &mut at_space, named)?;
            } else if let Some(named @ (Semantics::Relaxed | Semantics::Acquire | Semantics::Release)) =
                semantics(at.text)
            {
                self.choose(head, *at, &mut sem, named)?;
            } else if at.text == "acq_rel" {
                self.choose(head, *at, &mut sem, Semantics::AcqRel)?;
            } else if let Some(named) = Scope::from_name(at.text) {
                self.choose(head, *at, &mut scope, named)?;
            } else if at.text == "noftz" {
                self.choose(head, *at, &mut noftz, ())?;
            } else if at.text == "L2::cache_hint" {
                self.choose(head, *at, &mut hint, ())?;
            } else if let "v2" | "v4" | "v8" = at.text {
                self.choose(head, *at, &mut width, usize::from(at.text.as_bytes()[1] - b'0'))?;
            } else {
                return Err(self.unknown_modifier(head, *at));
            }
        }
        let Some(op) = op else { return Err(self.missing_modifier(head, "an operation such as `.add`")) };
        let Some(ty) = ty else { return Err(self.missing_modifier(head, "a type such as `.u32`")) };
        let (space, noftz) = (at_space.unwrap_or(StateSpace::Generic), noftz.is_some());
        let ordering = Ordering { semantics: sem.unwrap_or(Semantics::Weak), scope };
        if let Some(width) = width {
            let dsts = if head.text == "atom" {
                let dsts = if self.token.is(b'{') {
                    self.vector(width, Self::reg_or_sink)?
                } else {
                    // `_` alone drops all of them.
                    match self.reg_or_sink()? {
                        None => vec![None; width],
                        Some(_) => return Err(self.unexpected("a vector of registers")),
                    }
                };
                self.expect(b',')?;
                Some(dsts)
            } else {
                None
            };
            let addr = self.address()?;
            self.expect(b',')?;
            let srcs = self.vector(width, |p| p.operand(ty))?;
            let policy = self.next_policy(hint.is_some())?;
            return Ok(Inst::AtomVector { op, space, ty, ordering, noftz, dsts, addr, srcs, policy });
        }
        let dst = if head.text == "atom" {
            let dst = self.dst(ty)?;
            self.expect(b',')?;
            Some(dst)
        } else {
            if matches!(op, AtomOp::Exch | AtomOp::Cas) {
                return Err(self.fail(rules::MODIFIER, head, format!("`red` has no `.{op}`")));
            }
            None
        };
        let addr = self.address()?;
        let b = self.next_operand(ty)?;
        let c = if op == AtomOp::Cas { Some(self.next_operand(ty)?) } else { None };
        let policy = self.next_policy(hint.is_some())?;
        Ok(Inst::Atom { op, space, ty, ordering, noftz, dst, addr, b, c, policy })
    }

    pub(super) fn cvta(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let (mut to, mut at_space, mut ty) = (None, None, None);
        for at in modifiers {
            if at.text == "to" {
                self.choose(head, *at, &mut to, ())?;
            } else if let Some(named) = space(at.text) {
                self.choose(head, *at, &mut at_space, named)?;
            } else if let Some(named) = ScalarType::from_name(at.text) {
                self.choose(head, *at, &mut ty, named)?;
            } else {
                return Err(self.unknown_modifier(head, *at));
            }
        }
        let Some(space) = at_space else { return Err(self.missing_modifier(head, "a state space")) };
        let Some(ty) = ty else { return Err(self.missing_modifier(head, "a type, `.u64`")) };
        let dst = self.reg()?;
        self.expect(b',')?;
        let at = self.token;
        let src = self.source(ty)?;
        if matches!(src, Operand::Special(_)) {
            return Err(self.fail(rules::OPERAND, at, format!("{} is not an address", at.shown())));
        }
        Ok(Inst::Cvta { to_space: to.is_some(), space, ty, dst, src })
    }

    pub(super) fn isspacep(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let [only] = modifiers else {
            return Err(self.missing_modifier(head, "exactly one state space"));
        };
        let Some(space) = space(only.text) else { return Err(self.unknown_modifier(head, *only)) };
        let dst = self.reg()?;
        Ok(Inst::Isspacep { space, dst, a: self.next_operand(ScalarType::U64)? })
    }
}
