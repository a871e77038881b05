//! Clusters, fences between proxies, and what else orders grids and blocks.

use super::directives::space;
use super::rest::Rest;
use super::{Parser, Read};
use crate::inst::*;
use crate::text::lex::Token;
use crate::types::*;

impl<'a> Parser<'a> {
    /// `barrier.cluster`, of which the first modifier has been looked at.
    pub(super) fn cluster_barrier(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        self.require(&mut rest, &["cluster"])?;
        let arrive = rest.take("arrive");
        if !arrive {
            self.need(&mut rest, |t| (t == "wait").then_some(()), "`.arrive` or `.wait`")?;
        }
        let semantics = rest.pick(|t| match t {
            "release" if arrive => Some(Semantics::Release),
            "relaxed" if arrive => Some(Semantics::Relaxed),
            "acquire" if !arrive => Some(Semantics::Acquire),
            _ => None,
        });
        let aligned = rest.take("aligned");
        self.nothing_left(&rest)?;
        Ok(Inst::ClusterBarrier { arrive, semantics: semantics.unwrap_or(Semantics::Weak), aligned })
    }

    /// `mapa` and `getctarank`.
    pub(super) fn cluster_address(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        let space = rest.pick(space).unwrap_or(StateSpace::Generic);
        let ty = self.need(&mut rest, ScalarType::from_name, "`.u32` or `.u64`")?;
        self.nothing_left(&rest)?;
        let dst = self.reg()?;
        self.expect(b',')?;
        let a = self.source(ty)?;
        if head.text == "getctarank" {
            return Ok(Inst::GetCtaRank { space, ty, dst, a });
        }
        Ok(Inst::Mapa { space, ty, dst, a, rank: self.next_operand(ScalarType::U32)? })
    }

    /// `fence.proxy`, `fence.mbarrier_init` and fences with a restriction.
    pub(super) fn special_fence(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        if rest.take("mbarrier_init") {
            self.require(&mut rest, &["release", "cluster"])?;
            self.nothing_left(&rest)?;
            return Ok(Inst::MbarrierInitFence);
        }
        let proxy = rest.take("proxy");
        let generic = proxy && rest.take("async::generic");
        let of_tensormap = proxy && rest.take("tensormap::generic");
        if generic || of_tensormap || !proxy {
            let acquire = rest.take("acquire");
            if !acquire {
                self.require(&mut rest, &["release"])?;
            }
            if !of_tensormap {
                let restricted =
                    if acquire { "sync_restrict::shared::cluster" } else { "sync_restrict::shared::cta" };
                self.require(&mut rest, &[restricted, "cluster"])?;
                self.nothing_left(&rest)?;
                return Ok(if generic {
                    Inst::ProxyFence(ProxyFence::AsyncGeneric { acquire })
                } else {
                    Inst::FenceRestricted { acquire }
                });
            }
            let scope = self.need(&mut rest, Scope::from_name, "a scope")?;
            self.nothing_left(&rest)?;
            if !acquire {
                return Ok(Inst::ProxyFence(ProxyFence::TensormapRelease(scope)));
            }
            let addr = self.address()?;
            self.next_128()?;
            return Ok(Inst::ProxyFence(ProxyFence::TensormapAcquire { scope, addr }));
        }
        if rest.take("alias") {
            self.nothing_left(&rest)?;
            return Ok(Inst::ProxyFence(ProxyFence::Alias));
        }
        self.need(
            &mut rest,
            |t| (t == "async").then_some(()),
            "`.alias`, `.async` or `.tensormap::generic`",
        )?;
        let space = rest.pick(space).unwrap_or(StateSpace::Generic);
        self.nothing_left(&rest)?;
        Ok(Inst::ProxyFence(ProxyFence::Async(space)))
    }

    pub(super) fn grid_control(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        let wait = rest.take("wait");
        if !wait {
            self.need(
                &mut rest,
                |t| (t == "launch_dependents").then_some(()),
                "`.wait` or `.launch_dependents`",
            )?;
        }
        self.nothing_left(&rest)?;
        Ok(Inst::GridDepControl { wait })
    }

    /// `alloca`, `stacksave` and `stackrestore`.
    pub(super) fn stack(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let ty = self.only_type(head, modifiers)?;
        let reg = self.reg()?;
        Ok(match head.text {
            "stacksave" => Inst::StackSave { ty, dst: reg },
            "stackrestore" => Inst::StackRestore { ty, src: reg },
            _ => {
                let bytes = self.next_operand(ty)?;
                let align = if self.eat(b',') { Some(self.unsigned32()?) } else { None };
                Inst::Alloca { ty, dst: reg, bytes, align }
            }
        })
    }

    pub(super) fn performance_event(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        let mask = rest.take("mask");
        self.nothing_left(&rest)?;
        let value = self.small(if mask { 0xFFFF } else { 15 })?;
        Ok(Inst::PmEvent { mask, value: u16::try_from(value).unwrap_or(0) })
    }
}
