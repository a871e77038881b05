//! Asynchronous copies, mbarriers and tensor maps.

use super::directives::space;
use super::rest::Rest;
use super::{Parser, Read, rules};
use crate::inst::*;
use crate::text::lex::Token;
use crate::types::*;

/// The dimensions in `1d` to `5d`.
fn dims(text: &str) -> Option<u8> {
    match text.as_bytes() {
        [n @ b'1'..=b'5', b'd'] => Some(n - b'0'),
        _ => None,
    }
}

impl<'a> Parser<'a> {
    /// `.L2::cache_hint` among the modifiers.
    pub(super) fn hinted(rest: &mut Rest<'a>) -> bool {
        rest.take("L2::cache_hint")
    }

    /// `, policy` if there is one.
    pub(super) fn next_policy(&mut self, hinted: bool) -> Read<Option<Reg>> {
        if !hinted {
            return Ok(None);
        }
        self.expect(b',')?;
        self.reg().map(Some)
    }

    /// `.sem.scope` as written, or weak.
    fn optional_ordering(rest: &mut Rest<'a>) -> Ordering {
        let semantics = rest.pick(|t| match t {
            "acquire" => Some(Semantics::Acquire),
            "release" => Some(Semantics::Release),
            "relaxed" => Some(Semantics::Relaxed),
            _ => None,
        });
        Ordering { semantics: semantics.unwrap_or(Semantics::Weak), scope: rest.pick(Scope::from_name) }
    }

    fn space_or_generic(rest: &mut Rest<'a>) -> StateSpace {
        rest.pick(space).unwrap_or(StateSpace::Generic)
    }

    /// `, 128`: the size of a cache line or tensor map.
    pub(super) fn next_128(&mut self) -> Read<()> {
        self.expect(b',')?;
        let at = self.token;
        match self.unsigned()? {
            128 => Ok(()),
            _ => Err(self.fail(rules::NUMBER, at, "the size is 128")),
        }
    }

    /// Everything under `cp`.
    pub(super) fn copy(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        let reduce = rest.take("reduce");
        self.require(&mut rest, &["async"])?;
        let bulk = rest.take("bulk");
        if bulk {
            return self.bulk(rest, reduce);
        }
        if rest.take("commit_group") {
            self.nothing_left(&rest)?;
            return Ok(Inst::CpAsyncCommit);
        }
        if rest.take("wait_all") {
            self.nothing_left(&rest)?;
            return Ok(Inst::CpAsyncWait { pending: None });
        }
        if rest.take("wait_group") {
            self.nothing_left(&rest)?;
            return Ok(Inst::CpAsyncWait { pending: Some(self.unsigned32()?) });
        }
        if rest.take("mbarrier") {
            self.require(&mut rest, &["arrive", "b64"])?;
            let noinc = rest.take("noinc");
            let space = Self::space_or_generic(&mut rest);
            self.nothing_left(&rest)?;
            return Ok(Inst::CpAsyncArrive { noinc, space, addr: self.address()? });
        }
        let cache = |t: &str| matches!(t, "ca" | "cg").then(|| CacheOp::from_name(t)).flatten();
        let cache = self.need(&mut rest, cache, "`.ca` or `.cg`")?;
        if rest.pick(space) != Some(StateSpace::Shared) || rest.pick(space) != Some(StateSpace::Global) {
            return Err(self.missing_modifier(head, "`.shared.global`"));
        }
        let hinted = Self::hinted(&mut rest);
        let l2_prefetch = rest.pick(L2Prefetch::from_name).unwrap_or(L2Prefetch::Default);
        self.nothing_left(&rest)?;
        let dst = self.address()?;
        let src = self.next_address()?;
        self.expect(b',')?;
        let bytes = self.unsigned32()?;
        let (mut limit, mut policy) = (SourceLimit::Full, None);
        if self.eat(b',') {
            match self.copy_operand()? {
                SourceLimit::Bytes(Operand::Reg(reg)) if hinted && !self.token.is(b',') => policy = Some(reg),
                other => {
                    limit = other;
                    policy = self.next_policy(hinted)?;
                }
            }
        }
        if hinted && policy.is_none() {
            return Err(self.unexpected("`,` and the cache policy"));
        }
        Ok(Inst::CpAsync { cache, l2_prefetch, dst, src, bytes, limit, policy })
    }

    /// The fourth operand of `cp.async`: what it is depends on the type of its register.
    fn copy_operand(&mut self) -> Read<SourceLimit> {
        if self.token.is(b'!') {
            return Ok(SourceLimit::Ignore(self.predicate_reg()?));
        }
        Ok(match self.operand(ScalarType::U32)? {
            Operand::Reg(reg) if self.body.function.reg_type(reg) == Some(ScalarType::Pred) => {
                SourceLimit::Ignore(reg)
            }
            other => SourceLimit::Bytes(other),
        })
    }

    /// Everything under `cp.async.bulk` and `cp.reduce.async.bulk`.
    fn bulk(&mut self, mut rest: Rest<'a>, reduce: bool) -> Read<Inst> {
        if rest.take("tensor") {
            return self.tensor_copy(rest, reduce);
        }
        if rest.take("commit_group") {
            self.nothing_left(&rest)?;
            return Ok(Inst::BulkCommit);
        }
        if rest.take("wait_group") {
            let read = rest.take("read");
            self.nothing_left(&rest)?;
            return Ok(Inst::BulkWait { read, pending: self.unsigned32()? });
        }
        let hinted = Self::hinted(&mut rest);
        if rest.take("prefetch") {
            self.require(&mut rest, &["L2", "global"])?;
            self.nothing_left(&rest)?;
            let addr = self.address()?;
            let bytes = self.next_operand(ScalarType::U32)?;
            return Ok(Inst::BulkPrefetch { addr, bytes, policy: self.next_policy(hinted)? });
        }
        let dst_space = self.need(&mut rest, space, "the state space of its destination")?;
        let src_space = self.need(&mut rest, space, "the state space of its source")?;
        let counted = self.completion(&mut rest)?;
        let multicast = rest.take("multicast::cluster");
        let masked = rest.take("cp_mask");
        let op = if reduce {
            let op = self.need(&mut rest, BulkOp::from_name, "an operation such as `.add`")?;
            let noftz = rest.take("noftz");
            Some((op, noftz, self.need(&mut rest, ScalarType::from_name, "a type such as `.f32`")?))
        } else {
            None
        };
        self.nothing_left(&rest)?;
        let dst = self.address()?;
        let src = self.next_address()?;
        let bytes = self.next_operand(ScalarType::U32)?;
        let completion =
            if counted { Completion::Mbarrier(self.next_address()?) } else { Completion::BulkGroup };
        if let Some((op, noftz, ty)) = op {
            if src_space != StateSpace::Shared || multicast || masked {
                return Err(self.missing_modifier(rest.head, "`.shared::cta` as its source"));
            }
            let policy = self.next_policy(hinted)?;
            return Ok(Inst::BulkReduce(Box::new(BulkReduce {
                op,
                ty,
                noftz,
                dst_space,
                dst,
                src,
                bytes,
                completion,
                policy,
            })));
        }
        let multicast = if multicast { Some(self.next_operand(ScalarType::U16)?) } else { None };
        let policy = self.next_policy(hinted)?;
        let byte_mask = if masked { Some(self.next_operand(ScalarType::U16)?) } else { None };
        Ok(Inst::BulkCopy(Box::new(BulkCopy {
            dst_space,
            src_space,
            dst,
            src,
            bytes,
            completion,
            multicast,
            policy,
            byte_mask,
        })))
    }

    /// `.mbarrier::complete_tx::bytes` (true) or `.bulk_group`.
    fn completion(&mut self, rest: &mut Rest<'a>) -> Read<bool> {
        let counted = rest.take("mbarrier::complete_tx::bytes");
        if !counted {
            let what = "`.mbarrier::complete_tx::bytes` or `.bulk_group`";
            self.need(rest, |t| (t == "bulk_group").then_some(()), what)?;
        }
        Ok(counted)
    }

    fn tensor_copy(&mut self, mut rest: Rest<'a>, reduce: bool) -> Read<Inst> {
        let dims = self.need(&mut rest, dims, "the number of dimensions, `.1d` to `.5d`")?;
        let hinted = Self::hinted(&mut rest);
        let mode = rest.pick(TensorCopyMode::from_name).unwrap_or(TensorCopyMode::Tile);
        let copy = |transfer, (map, coords), offsets, policy| {
            Inst::TensorCopy(Box::new(TensorCopy { transfer, dims, mode, map, coords, offsets, policy }))
        };
        if rest.take("prefetch") {
            self.require(&mut rest, &["L2", "global"])?;
            self.nothing_left(&rest)?;
            let place = self.tensor_place()?;
            let offsets = self.im2col_offsets(mode)?;
            let policy = self.next_policy(hinted)?;
            return Ok(copy(TensorTransfer::Prefetch, place, offsets, policy));
        }
        let dst_space = self.need(&mut rest, space, "the state space of its destination")?;
        let src_space = self.need(&mut rest, space, "the state space of its source")?;
        let counted = self.completion(&mut rest)?;
        let multicast = rest.take("multicast::cluster");
        let cta_group = rest.pick(|t| t.strip_prefix("cta_group::")?.parse().ok());
        let op = if reduce {
            Some(self.need(&mut rest, BulkOp::from_name, "an operation such as `.add`")?)
        } else {
            None
        };
        self.nothing_left(&rest)?;
        let stores = (dst_space, src_space) == (StateSpace::Global, StateSpace::Shared);
        let loads = src_space == StateSpace::Global
            && matches!(dst_space, StateSpace::Shared | StateSpace::SharedCluster);
        let fits = if stores { !counted && !multicast } else { loads && counted && !reduce };
        if !fits {
            let what = "`.shared::cluster.global` with an mbarrier or `.global.shared::cta.bulk_group`";
            return Err(self.missing_modifier(rest.head, what));
        }
        if stores {
            let place = self.tensor_place()?;
            let src = self.next_address()?;
            let policy = self.next_policy(hinted)?;
            let transfer = match op {
                Some(op) => TensorTransfer::Reduce { op, src },
                None => TensorTransfer::Store { src },
            };
            return Ok(copy(transfer, place, Vec::new(), policy));
        }
        let dst = self.address()?;
        self.expect(b',')?;
        let place = self.tensor_place()?;
        let barrier = self.next_address()?;
        let offsets = self.im2col_offsets(mode)?;
        let multicast = if multicast { Some(self.next_operand(ScalarType::U16)?) } else { None };
        let policy = self.next_policy(hinted)?;
        let transfer = TensorTransfer::Load { dst_space, dst, barrier, multicast, cta_group };
        Ok(copy(transfer, place, offsets, policy))
    }

    /// `[map, {coordinates}]`
    fn tensor_place(&mut self) -> Read<(Address, Vec<Operand>)> {
        self.expect(b'[')?;
        let map = self.address_inside()?;
        self.expect(b',')?;
        let coords = self.braced(|p| p.operand(ScalarType::S32))?;
        self.expect(b']')?;
        Ok((map, coords))
    }

    /// `, {offsets}` of the im2col modes.
    fn im2col_offsets(&mut self, mode: TensorCopyMode) -> Read<Vec<Operand>> {
        if !matches!(mode, TensorCopyMode::Im2col | TensorCopyMode::Im2colW | TensorCopyMode::Im2colW128) {
            return Ok(Vec::new());
        }
        self.expect(b',')?;
        self.braced(|p| p.operand(ScalarType::U16))
    }

    pub(super) fn mbarrier(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        let verb = rest.pick(|t| match t {
            "init" | "inval" | "arrive" | "arrive_drop" | "test_wait" | "try_wait" | "pending_count" => {
                Some(t.to_owned())
            }
            _ => None,
        });
        let verb = match verb {
            Some(verb) => verb,
            None => self.need(
                &mut rest,
                |t| matches!(t, "expect_tx" | "complete_tx").then(|| t.to_owned()),
                "an operation such as `.arrive`",
            )?,
        };
        let no_complete = rest.take("noComplete");
        let counts_bytes = verb.starts_with("arrive") && rest.take("expect_tx");
        let parity = rest.take("parity");
        let ordering = Self::optional_ordering(&mut rest);
        let space = Self::space_or_generic(&mut rest);
        self.require(&mut rest, &["b64"])?;
        self.nothing_left(&rest)?;
        Ok(match verb.as_str() {
            "init" => {
                let addr = self.address()?;
                Inst::MbarrierInit { space, addr, count: self.next_operand(ScalarType::U32)? }
            }
            "inval" => Inst::MbarrierInval { space, addr: self.address()? },
            "pending_count" => {
                let dst = self.reg()?;
                Inst::MbarrierPendingCount { dst, state: self.next_operand(ScalarType::B64)? }
            }
            "expect_tx" | "complete_tx" => {
                let complete = verb == "complete_tx";
                let addr = self.address()?;
                let bytes = self.next_operand(ScalarType::U32)?;
                Inst::MbarrierTx { complete, ordering, space, addr, bytes }
            }
            "arrive" | "arrive_drop" => {
                let dst = self.reg_or_sink()?;
                let addr = self.next_address()?;
                let expect_tx = if counts_bytes { Some(self.next_operand(ScalarType::U32)?) } else { None };
                let counted = !counts_bytes && self.token.is(b',');
                let count = if counted { Some(self.next_operand(ScalarType::U32)?) } else { None };
                let drop = verb == "arrive_drop";
                Inst::MbarrierArrive { drop, no_complete, expect_tx, ordering, space, dst, addr, count }
            }
            _ => {
                let dst = self.dst(ScalarType::Pred)?;
                let addr = self.next_address()?;
                let phase = if parity {
                    MbarrierPhase::Parity(self.next_operand(ScalarType::U32)?)
                } else {
                    MbarrierPhase::State(self.next_operand(ScalarType::B64)?)
                };
                let limited = self.token.is(b',');
                let nanoseconds = if limited { Some(self.next_operand(ScalarType::U32)?) } else { None };
                let try_wait = verb == "try_wait";
                Inst::MbarrierWait { try_wait, ordering, space, dst, addr, phase, nanoseconds }
            }
        })
    }

    /// `tensormap.replace` and `tensormap.cp_fenceproxy`.
    pub(super) fn tensormap(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        if rest.take("cp_fenceproxy") {
            self.require(&mut rest, &["global", "shared::cta", "tensormap::generic", "release"])?;
            let scope = self.need(&mut rest, Scope::from_name, "a scope")?;
            self.require(&mut rest, &["sync", "aligned"])?;
            self.nothing_left(&rest)?;
            let dst = self.address()?;
            let src = self.next_address()?;
            self.next_128()?;
            return Ok(Inst::TensormapCopyFence { scope, dst, src });
        }
        self.require(&mut rest, &["replace", "tile"])?;
        let field = self.need(&mut rest, TensormapField::from_name, "a field such as `.global_address`")?;
        let space = Self::space_or_generic(&mut rest);
        self.require(&mut rest, &["b1024", if field.is_wide() { "b64" } else { "b32" }])?;
        self.nothing_left(&rest)?;
        let addr = self.address()?;
        self.expect(b',')?;
        let index = if field.is_indexed() {
            let index = self.unsigned32()?;
            self.expect(b',')?;
            Some(index)
        } else {
            None
        };
        let ty = if field.is_wide() { ScalarType::B64 } else { ScalarType::B32 };
        Ok(Inst::TensormapReplace { field, space, addr, index, value: self.operand(ty)? })
    }

    /// `st.async`, `red.async` and `st.bulk`; the first modifier has been looked at.
    pub(super) fn store_async(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        if rest.take("bulk") {
            rest.take("weak");
            let space = Self::space_or_generic(&mut rest);
            self.nothing_left(&rest)?;
            let addr = self.address()?;
            let bytes = self.next_operand(ScalarType::U64)?;
            self.expect(b',')?;
            let at = self.token;
            if self.unsigned()? != 0 {
                return Err(self.fail(rules::NUMBER, at, "`st.bulk` stores zeros"));
            }
            return Ok(Inst::StBulk { space, addr, bytes });
        }
        self.require(&mut rest, &["async"])?;
        let counted = rest.take("mbarrier::complete_tx::bytes");
        let mmio = rest.take("mmio");
        let mut scope = Scope::Cluster;
        if counted {
            if head.text == "red" {
                self.require(&mut rest, &["relaxed", "cluster"])?;
            } else {
                rest.take("weak");
            }
        } else {
            self.require(&mut rest, &["release"])?;
            scope = self.need(&mut rest, Scope::from_name, "a scope")?;
        }
        let space = Self::space_or_generic(&mut rest);
        let op = if head.text == "red" {
            Some(self.need(&mut rest, AtomOp::from_name, "an operation such as `.add`")?)
        } else {
            None
        };
        let width = rest.pick(|t| match t {
            "v2" => Some(2),
            "v4" => Some(4),
            _ => None,
        });
        let ty = self.need(&mut rest, ScalarType::from_name, "a type such as `.b32`")?;
        self.nothing_left(&rest)?;
        let addr = self.address()?;
        self.expect(b',')?;
        let srcs = self.vector(width.unwrap_or(1), |p| p.operand(ty))?;
        let order = if counted {
            AsyncOrder::Mbarrier(self.next_address()?)
        } else {
            AsyncOrder::Release { mmio, scope }
        };
        match (op, srcs.as_slice()) {
            (Some(op), [b]) => Ok(Inst::RedAsync { op, space, ty, addr, b: *b, order }),
            (Some(_), _) => Err(self.missing_modifier(head, "a single element")),
            (None, _) => Ok(Inst::StAsync { space, ty, addr, srcs, order }),
        }
    }

    pub(super) fn create_policy(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        if rest.take("cvt") {
            self.require(&mut rest, &["L2", "b64"])?;
            self.nothing_left(&rest)?;
            let dst = self.reg()?;
            let property = self.next_operand(ScalarType::B64)?;
            return Ok(Inst::CreatePolicy { dst, source: PolicySource::Convert { property } });
        }
        let range = rest.take("range");
        if !range {
            self.require(&mut rest, &["fractional"])?;
        }
        let space = Self::space_or_generic(&mut rest);
        let primary = self.need(&mut rest, L2Priority::from_name, "a priority such as `.L2::evict_last`")?;
        let secondary = rest.pick(L2Priority::from_name);
        self.require(&mut rest, &["b64"])?;
        self.nothing_left(&rest)?;
        let dst = self.reg()?;
        let source = if range {
            let addr = self.next_address()?;
            let primary_bytes = self.next_operand(ScalarType::U32)?;
            let total_bytes = self.next_operand(ScalarType::U32)?;
            PolicySource::Range { space, primary, secondary, addr, primary_bytes, total_bytes }
        } else {
            let written = self.token.is(b',');
            let fraction = if written { Some(self.next_operand(ScalarType::F32)?) } else { None };
            PolicySource::Fractional { primary, secondary, fraction }
        };
        Ok(Inst::CreatePolicy { dst, source })
    }

    /// `discard.L2` and `applypriority.L2::evict_normal`.
    pub(super) fn cache_line(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        let space = Self::space_or_generic(&mut rest);
        let discard = head.text == "discard";
        self.require(&mut rest, &[if discard { "L2" } else { "L2::evict_normal" }])?;
        self.nothing_left(&rest)?;
        let addr = self.address()?;
        self.next_128()?;
        Ok(if discard { Inst::Discard { space, addr } } else { Inst::ApplyPriority { space, addr } })
    }
}
