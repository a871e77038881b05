//! The effects of instructions on memory.

use super::Reason;
use super::decide::implies;
use super::poly::Poly;
use super::terms::{Array, Formula, Kind};
use super::walk::{Access, Action, Object, State, Until, Walk};
use crate::inst::*;
use crate::types::{Ordering, Scope, Semantics, StateSpace};

/// Bytes of an mbarrier.
const OBJECT: i64 = 8;
/// The unit of bulk copies, and the bytes of a row of a matrix that `ldmatrix` loads.
const GRAIN: i64 = 16;

impl Walk<'_> {
    /// Records what an instruction does to memory.
    pub(super) fn effect(&mut self, state: &State, inst: &Inst) {
        match inst {
            Inst::Ld { space: StateSpace::Param, addr, .. } => {
                if !matches!(addr.base, AddressBase::Symbol(_)) {
                    self.gap(Reason::Unmodelled("a parameter at a computed address".into()));
                }
            }
            Inst::Ld { space, ty, dsts, addr, .. } | Inst::Ldu { space, ty, dsts, addr } => {
                let bytes = i64::from(ty.bytes()) * dsts.len() as i64;
                self.access(state, Action::Load, *space, addr, bytes);
            }
            Inst::St { space, ty, srcs, addr, .. } => {
                let bytes = i64::from(ty.bytes()) * srcs.len() as i64;
                self.access(state, Action::Store, *space, addr, bytes);
            }
            Inst::Atom { space, ty, ordering, addr, .. } => {
                let action = Action::Atomic(scope(*ordering));
                self.access(state, action, *space, addr, i64::from(ty.bytes()));
            }
            Inst::LdMatrix { tiles, space, addr, .. } => {
                self.matrices(state, Action::Load, *tiles, *space, addr);
            }
            Inst::StMatrix { tiles, space, addr, .. } => {
                self.matrices(state, Action::Store, *tiles, *space, addr);
            }
            Inst::CpAsync { dst, src, bytes, limit, .. } => {
                self.copy(state, dst, src, i64::from(*bytes), *limit);
            }
            Inst::BulkCopy(copy)
                if copy.multicast.is_none()
                    && copy.byte_mask.is_none()
                    && [copy.dst_space, copy.src_space].contains(&StateSpace::Global) =>
            {
                let ends = (copy.dst_space, &copy.dst, copy.src_space, &copy.src);
                self.bulk(state, ends, &copy.bytes, copy.completion);
            }
            Inst::BulkReduce(copy) if copy.dst_space == StateSpace::Global => {
                let ends = (copy.dst_space, &copy.dst, StateSpace::Shared, &copy.src);
                self.bulk(state, ends, &copy.bytes, copy.completion);
            }
            Inst::MbarrierInit { space, addr, count } => {
                let count = self.operand(state, count).and_then(|count| count.as_constant());
                self.object(state, Action::Store, *space, addr, Object::Init { count });
            }
            Inst::MbarrierInval { space, addr } => {
                self.object(state, Action::Store, *space, addr, Object::Other);
            }
            Inst::MbarrierArrive {
                drop: false, expect_tx: Some(bytes), count: None, space, addr, ..
            } => {
                let bytes = self.operand(state, bytes).and_then(|bytes| bytes.as_constant());
                self.object(state, Action::Atomic(Scope::Cta), *space, addr, Object::Expect { bytes });
            }
            Inst::MbarrierArrive { space, addr, .. } | Inst::MbarrierTx { space, addr, .. } => {
                self.object(state, Action::Atomic(Scope::Cta), *space, addr, Object::Other);
            }
            Inst::MbarrierWait { space, addr, phase, .. } => {
                let parity = match phase {
                    MbarrierPhase::Parity(parity) => {
                        self.operand(state, parity).and_then(|p| p.as_constant())
                    }
                    MbarrierPhase::State(_) => None,
                };
                self.object(state, Action::Atomic(Scope::Cta), *space, addr, Object::Wait { parity });
            }
            // These only order what others do, or touch no memory that is followed.
            Inst::Barrier { .. }
            | Inst::WarpBarrier { .. }
            | Inst::Fence { .. }
            | Inst::FenceRestricted { .. }
            | Inst::ProxyFence(ProxyFence::Async(_))
            | Inst::MbarrierInitFence
            | Inst::MbarrierPendingCount { .. }
            | Inst::CpAsyncCommit
            | Inst::CpAsyncWait { .. }
            | Inst::BulkCommit
            | Inst::BulkWait { .. }
            | Inst::GridDepControl { .. }
            | Inst::Shfl { .. }
            | Inst::Vote { .. }
            | Inst::Match { .. }
            | Inst::Redux { .. }
            | Inst::Activemask { .. }
            | Inst::Elect { .. }
            | Inst::Nanosleep { .. }
            | Inst::PmEvent { .. }
            | Inst::Trap
            | Inst::Brkpt
            | Inst::Mma(_)
            | Inst::MovMatrix { .. }
            | Inst::SetMaxNreg { .. } => {}
            inst if !inst.has_side_effects() => {}
            inst => self.gap(Reason::Unmodelled(spelling(inst).into())),
        }
    }

    /// A generic access that is done with its instruction.
    fn access(&mut self, state: &State, action: Action, space: StateSpace, addr: &Address, bytes: i64) {
        self.found(state, action, space, addr, bytes, |access| access);
    }

    /// An access of `bytes` bytes at a multiple of as many, with what else is to be said of it.
    fn found(
        &mut self,
        state: &State,
        action: Action,
        space: StateSpace,
        addr: &Address,
        bytes: i64,
        with: impl FnOnce(Access) -> Access,
    ) {
        let base = match addr.base {
            AddressBase::Reg(r) => self.integer(state, r),
            AddressBase::Symbol(symbol) => {
                self.variable(symbol).map(|array| self.terms.value(Kind::Base(array)))
            }
            AddressBase::Absolute => None,
        };
        let address = base.and_then(|p| p.plus_constant(i128::from(addr.offset)));
        let found = address.ok_or(Reason::Address { of: None }).and_then(|p| self.resolve(&p));
        match found.and_then(|(array, offset)| Ok((array, offset, self.space_of(array, space)?))) {
            Ok((array, offset, space)) => {
                let (block, index) = self.here;
                let access = Access {
                    block,
                    index,
                    action,
                    bytes: Poly::small(bytes),
                    align: i128::from(bytes),
                    array,
                    space,
                    offset,
                    conditions: state.conditions.clone(),
                    until: Until::Done,
                    is_proxied: false,
                    is_of_warp: false,
                    object: None,
                };
                self.record(with(access));
            }
            Err(reason) => self.gap(reason),
        }
    }

    /// An access to an mbarrier.
    fn object(&mut self, state: &State, action: Action, space: StateSpace, addr: &Address, object: Object) {
        self.found(state, action, space, addr, OBJECT, |access| Access { object: Some(object), ..access });
    }

    /// `ldmatrix` and `stmatrix`: each of the first lanes gives the address of a row, of which other lanes have parts.
    fn matrices(
        &mut self,
        state: &State,
        action: Action,
        tiles: MatrixTiles,
        space: StateSpace,
        addr: &Address,
    ) {
        if tiles.shape != MatrixShape::M8N8 || tiles.element != MatrixElement::B16 {
            self.gap(Reason::Unmodelled("a matrix of other elements than those of 16 bits".into()));
            return;
        }
        let mut asked = state.clone();
        if tiles.count < 4
            && let Some(lane) = self.special(SpecialReg::Plain(PlainSpecial::LaneId))
            && let Some(room) = lane.negated().plus_constant(8 * i128::from(tiles.count) - 1)
        {
            asked.conditions.push(Formula::AtLeast(room));
        }
        self.found(&asked, action, space, addr, GRAIN, |access| Access { is_of_warp: true, ..access });
    }

    /// `cp.async`, which reads at most so many bytes as it writes.
    fn copy(&mut self, state: &State, dst: &Address, src: &Address, bytes: i64, limit: SourceLimit) {
        let until = Until::CopyGroup;
        let target = |access| Access { until, ..access };
        self.found(state, Action::Store, StateSpace::Shared, dst, bytes, target);
        let mut reads = state.clone();
        let mut length = Poly::small(bytes);
        match limit {
            SourceLimit::Full => {}
            SourceLimit::Ignore(reg) => {
                let reads_it = self.predicate(state, PredUse { reg, negated: true });
                reads_it.each(&mut |one| reads.conditions.push(one.clone()));
            }
            SourceLimit::Bytes(operand) => {
                let wanted =
                    self.operand(state, &operand).and_then(|p| self.unsigned(&state.conditions, &p, 32));
                let room = wanted.as_ref().and_then(|p| length.minus(p)).map(Formula::AtLeast);
                match wanted.zip(room) {
                    Some((wanted, room)) if implies(&mut self.terms, &state.conditions, &room) => {
                        reads.conditions.extend(wanted.plus_constant(-1).map(Formula::AtLeast));
                        length = wanted;
                    }
                    _ => self.gap(Reason::CopySize),
                }
            }
        }
        let source = |access| Access { until, bytes: length, ..access };
        self.found(&reads, Action::Load, StateSpace::Global, src, bytes, source);
    }

    /// A bulk copy or reduction: two accesses of the asynchronous proxy, and one to the mbarrier that counts its bytes.
    fn bulk(
        &mut self,
        state: &State,
        (dst_space, dst, src_space, src): (StateSpace, &Address, StateSpace, &Address),
        bytes: &Operand,
        completion: Completion,
    ) {
        let length = self.operand(state, bytes).and_then(|p| self.unsigned(&state.conditions, &p, 32));
        let Some(length) = length.filter(|length| length.is_multiple_of(i128::from(GRAIN))) else {
            self.gap(Reason::CopySize);
            return;
        };
        let mut moves = state.clone();
        moves.conditions.extend(length.plus_constant(-1).map(Formula::AtLeast));
        let until = match completion {
            Completion::BulkGroup => Until::BulkGroup,
            Completion::Mbarrier(addr) => {
                let mut place = None;
                let counted = Object::Complete { bytes: length.as_constant() };
                let (action, space) = (Action::Atomic(Scope::Cta), StateSpace::Shared);
                self.found(state, action, space, &addr, OBJECT, |access| {
                    place = access.place();
                    let until = Until::Phase(None);
                    Access { until, is_proxied: true, object: Some(counted), ..access }
                });
                Until::Phase(place)
            }
        };
        let end = |access| Access { until, bytes: length.clone(), is_proxied: true, ..access };
        self.found(&moves, Action::Store, dst_space, dst, GRAIN, end);
        self.found(&moves, Action::Load, src_space, src, GRAIN, end);
    }

    /// The array that an address is in, and how far behind its start.
    fn resolve(&self, address: &Poly) -> Result<(Array, Poly), Reason> {
        let is_base = |atom| matches!(self.terms.kind(atom), Kind::Base(_));
        let mut bases = address.atoms().filter(|atom| is_base(*atom));
        let (Some(base), None) = (bases.next(), bases.next()) else {
            return Err(self.unknown_address(address));
        };
        let Kind::Base(array) = *self.terms.kind(base) else { return Err(self.unknown_address(address)) };
        let offset = address.minus(&base.into()).ok_or_else(|| self.unknown_address(address))?;
        if self.terms.depends(&offset, &|_, kind| matches!(kind, Kind::Base(_))) {
            return Err(self.unknown_address(address));
        }
        Ok((array, offset))
    }

    fn unknown_address(&self, address: &Poly) -> Reason {
        Reason::Address { of: self.origin(address) }
    }

    /// Where the first unknown of a polynomial comes from that is a result of an instruction.
    pub(super) fn origin(&self, poly: &Poly) -> Option<(BlockId, usize)> {
        let found = std::cell::Cell::new(None);
        self.terms.depends(poly, &|_, kind| {
            let Kind::Opaque { site, .. } = kind else { return false };
            if site.index == u32::MAX || site.block == u32::MAX {
                return false;
            }
            found.set(Some((BlockId(site.block), site.index as usize)));
            true
        });
        found.get()
    }

    /// The space that an array is in, if an access may name it so.
    fn space_of(&self, array: Array, named: StateSpace) -> Result<StateSpace, Reason> {
        let space = match array {
            Array::Param(_) => StateSpace::Global,
            Array::Dynamic => StateSpace::Shared,
            Array::Module(at) => self.module.variables[at as usize].space,
            Array::Function(at) => self.function.variables[at as usize].space,
        };
        let is_named = match named {
            StateSpace::Generic => space == StateSpace::Global,
            // Without `mapa` an address is that of the own block.
            StateSpace::SharedCluster => space == StateSpace::Shared,
            named => named == space,
        };
        if is_named { Ok(space) } else { Err(Reason::Space) }
    }
}

/// The scope of an atomic operation.
fn scope(ordering: Ordering) -> Scope {
    match (ordering.semantics, ordering.scope) {
        (_, Some(scope)) => scope,
        (Semantics::Volatile, None) => Scope::Cta,
        (_, None) => Scope::Gpu,
    }
}

/// A word for an instruction that accesses memory in a way that is not followed.
fn spelling(inst: &Inst) -> &'static str {
    match inst {
        Inst::Call { .. } => "call",
        Inst::Prefetch { .. } | Inst::PrefetchUniform { .. } | Inst::PrefetchTensormap { .. } => "prefetch",
        Inst::AtomVector { .. } => "an atomic operation on a vector",
        Inst::WmmaLoad { .. } | Inst::WmmaStore { .. } | Inst::Wmma(_) => "wmma",
        Inst::Wgmma(_) | Inst::WgmmaFence | Inst::WgmmaCommit | Inst::WgmmaWait { .. } => "wgmma",
        Inst::Tcgen05(_) => "tcgen05",
        Inst::CpAsyncArrive { .. } => "cp.async.mbarrier.arrive",
        Inst::BulkCopy(_) | Inst::BulkReduce(_) => "a bulk copy between blocks, or of a part of its bytes",
        Inst::TensorCopy(_) => "a tensor copy",
        Inst::ClusterBarrier { .. } => "a barrier of a cluster",
        _ => "this instruction",
    }
}
