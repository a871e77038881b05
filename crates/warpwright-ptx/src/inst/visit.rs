//! The one walk over the operands of an instruction.

use super::*;

/// Whether an operand is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Written.
    Def,
    /// Read.
    Use,
}

/// The one match over operand slots behind [`Inst::visit`] and [`Inst::visit_mut`].
macro_rules! visit_body {
    ($self:ident, $f:ident, $($r:tt)+) => {{
        macro_rules! opnd { ($o:expr) => { if let Operand::Reg(r) = $o { $f(Role::Use, r) } } }
        macro_rules! optional { ($o:expr) => { if let Some(Operand::Reg(r)) = $o { $f(Role::Use, r) } } }
        macro_rules! addr { ($a:expr) => { if let AddressBase::Reg(r) = $($r)+ $a.base { $f(Role::Use, r) } } }
        match $self {
            Inst::Unary { dst, a, .. } | Inst::Isspacep { dst, a, .. } => { opnd!(a); $f(Role::Def, dst); }
            Inst::Binary { dst, a, b, .. } => { opnd!(a); opnd!(b); $f(Role::Def, dst); }
            Inst::Ternary { dst, a, b, c, .. } | Inst::Lop3 { dst, a, b, c, .. } | Inst::Dp4a { dst, a, b, c, .. }
            | Inst::Slct { dst, a, b, c, .. } => {
                opnd!(a); opnd!(b); opnd!(c); $f(Role::Def, dst);
            }
            Inst::Bfi { dst, a, b, pos, len, .. } => {
                opnd!(a); opnd!(b); opnd!(pos); opnd!(len); $f(Role::Def, dst);
            }
            Inst::Setp { combine, dst, dst_not, a, b, .. } => {
                opnd!(a); opnd!(b);
                if let Some((_, p)) = combine { $f(Role::Use, $($r)+ p.reg) }
                $f(Role::Def, dst);
                if let Some(d) = dst_not { $f(Role::Def, d) }
            }
            Inst::Set { combine, dst, a, b, .. } => {
                opnd!(a); opnd!(b);
                if let Some((_, p)) = combine { $f(Role::Use, $($r)+ p.reg) }
                $f(Role::Def, dst);
            }
            Inst::Selp { dst, a, b, pred, .. } => { opnd!(a); opnd!(b); $f(Role::Use, pred); $f(Role::Def, dst); }
            Inst::Mov { dst, src, .. } | Inst::Cvta { dst, src, .. } => { opnd!(src); $f(Role::Def, dst); }
            Inst::Pack { dst, parts, .. } => { for p in parts { opnd!(p); } $f(Role::Def, dst); }
            Inst::Unpack { dsts, src, .. } => { opnd!(src); for d in dsts { if let Some(d) = d { $f(Role::Def, d) } } }
            Inst::PredBinary { dst, a, b, .. } => { $f(Role::Use, a); $f(Role::Use, b); $f(Role::Def, dst); }
            Inst::PredNot { dst, a } => { $f(Role::Use, a); $f(Role::Def, dst); }
            Inst::PredMov { dst, a } => { opnd!(a); $f(Role::Def, dst); }
            Inst::Cvt { dst, a, b, .. } => {
                opnd!(a); optional!(b); $f(Role::Def, dst);
            }
            Inst::Ld { hints, dsts, addr, .. } => {
                addr!(addr);
                if let Some(p) = $($r)+ hints.policy { $f(Role::Use, p) }
                for d in dsts { if let Some(d) = d { $f(Role::Def, d) } }
            }
            Inst::St { hints, srcs, addr, .. } => {
                addr!(addr);
                for s in srcs { opnd!(s); }
                if let Some(p) = $($r)+ hints.policy { $f(Role::Use, p) }
            }
            Inst::Prefetch { addr, .. } => { addr!(addr); }
            Inst::Atom { dst, addr, b, c, policy, .. } => {
                addr!(addr); opnd!(b);
                optional!(c);
                if let Some(p) = policy { $f(Role::Use, p) }
                if let Some(d) = dst { $f(Role::Def, d) }
            }
            Inst::Shfl { dst, pred, a, b, c, mask, .. } => {
                opnd!(a); opnd!(b); opnd!(c); opnd!(mask); $f(Role::Def, dst);
                if let Some(p) = pred { $f(Role::Def, p) }
            }
            Inst::Vote { dst, src, mask, .. } => {
                $f(Role::Use, $($r)+ src.reg); opnd!(mask); $f(Role::Def, dst);
            }
            Inst::Match { dst, pred, a, mask, .. } => {
                opnd!(a); opnd!(mask); $f(Role::Def, dst);
                if let Some(p) = pred { $f(Role::Def, p) }
            }
            Inst::Redux { dst, a, mask, .. } => { opnd!(a); opnd!(mask); $f(Role::Def, dst); }
            Inst::Activemask { dst } => { $f(Role::Def, dst); }
            Inst::Elect { dst, pred, mask } => {
                opnd!(mask);
                if let Some(d) = dst { $f(Role::Def, d) }
                $f(Role::Def, pred);
            }
            Inst::Barrier { kind, id, count, .. } => {
                opnd!(id);
                optional!(count);
                if let BarrierKind::Reduce { dst, src, .. } = kind {
                    $f(Role::Use, $($r)+ src.reg); $f(Role::Def, dst);
                }
            }
            Inst::WarpBarrier { mask } => { opnd!(mask); }
            Inst::Nanosleep { duration } => { opnd!(duration); }
            Inst::Call { callee, returns, args, .. } => {
                if let Callee::Prototype { address, .. } | Callee::OneOf { address, .. } = callee {
                    $f(Role::Use, address);
                }
                for a in args { opnd!(a); }
                for r in returns { if let Operand::Reg(r) = r { $f(Role::Def, r) } }
            }
            Inst::Dp2a { dst, a, b, c, .. }
            | Inst::Video { dst, a, b, c, .. }
            | Inst::MinMax3 { dst, a, b, c, .. } => {
                opnd!(a); opnd!(b); opnd!(c); $f(Role::Def, dst);
            }
            Inst::Lop3Pred { dst, pred, a, b, c, q, .. } => {
                opnd!(a); opnd!(b); opnd!(c); $f(Role::Use, $($r)+ q.reg);
                if let Some(d) = dst { $f(Role::Def, d) }
                $f(Role::Def, pred);
            }
            Inst::Fns { dst, mask, base, offset } => {
                opnd!(mask); opnd!(base); opnd!(offset); $f(Role::Def, dst);
            }
            Inst::Mixed { dst, a, b, c, .. } => { opnd!(a); optional!(b); opnd!(c); $f(Role::Def, dst); }
            Inst::CvtStochastic { dst, srcs, bits, .. } => {
                for s in srcs { opnd!(s); }
                opnd!(bits); $f(Role::Def, dst);
            }
            Inst::Ldu { dsts, addr, .. } => {
                addr!(addr);
                for d in dsts { if let Some(d) = d { $f(Role::Def, d) } }
            }
            Inst::AtomVector { dsts, addr, srcs, policy, .. } => {
                addr!(addr);
                for s in srcs { opnd!(s); }
                if let Some(p) = policy { $f(Role::Use, p) }
                if let Some(dsts) = dsts { for d in dsts { if let Some(d) = d { $f(Role::Def, d) } } }
            }
            Inst::PrefetchUniform { addr } | Inst::PrefetchTensormap { addr, .. } | Inst::Discard { addr, .. }
            | Inst::ApplyPriority { addr, .. } | Inst::CpAsyncArrive { addr, .. } | Inst::MbarrierInval { addr, .. }
            | Inst::ProxyFence(ProxyFence::TensormapAcquire { addr, .. }) => { addr!(addr); }
            Inst::CreatePolicy { dst, source } => {
                match source {
                    PolicySource::Fractional { fraction, .. } => { optional!(fraction); }
                    PolicySource::Range { addr, primary_bytes, total_bytes, .. } => {
                        addr!(addr); opnd!(primary_bytes); opnd!(total_bytes);
                    }
                    PolicySource::Convert { property } => { opnd!(property); }
                }
                $f(Role::Def, dst);
            }
            Inst::Alloca { dst, bytes, .. } => { opnd!(bytes); $f(Role::Def, dst); }
            Inst::StackSave { dst, .. } => { $f(Role::Def, dst); }
            Inst::StackRestore { src, .. } => { $f(Role::Use, src); }
            Inst::Mma(m) => {
                for o in $($r)+ m.a { opnd!(o); }
                for o in $($r)+ m.b { opnd!(o); }
                for o in $($r)+ m.c { opnd!(o); }
                if let Some(s) = $($r)+ m.sparsity { opnd!($($r)+ s.metadata); }
                if let Some(s) = $($r)+ m.scale {
                    opnd!($($r)+ s.a.data); opnd!($($r)+ s.a.byte); opnd!($($r)+ s.a.thread);
                    opnd!($($r)+ s.b.data); opnd!($($r)+ s.b.byte); opnd!($($r)+ s.b.thread);
                }
                for d in $($r)+ m.d { $f(Role::Def, d); }
            }
            Inst::LdMatrix { dsts, addr, .. } => {
                addr!(addr);
                for d in dsts { $f(Role::Def, d); }
            }
            Inst::StMatrix { addr, srcs, .. } => {
                addr!(addr);
                for s in srcs { opnd!(s); }
            }
            Inst::MovMatrix { dst, a } => { opnd!(a); $f(Role::Def, dst); }
            Inst::WmmaLoad { tile, dsts } => {
                addr!(tile.addr);
                optional!($($r)+ tile.stride);
                for d in dsts { $f(Role::Def, d); }
            }
            Inst::WmmaStore { tile, srcs } => {
                addr!(tile.addr);
                optional!($($r)+ tile.stride);
                for s in srcs { opnd!(s); }
            }
            Inst::Wmma(m) => {
                for o in $($r)+ m.a { opnd!(o); }
                for o in $($r)+ m.b { opnd!(o); }
                for o in $($r)+ m.c { opnd!(o); }
                for d in $($r)+ m.d { $f(Role::Def, d); }
            }
            Inst::Wgmma(m) => {
                match $($r)+ m.a {
                    WgmmaSource::Descriptor(a) => { opnd!(a); }
                    WgmmaSource::Registers(registers) => { for o in registers { opnd!(o); } }
                }
                opnd!($($r)+ m.b);
                if let Some(s) = $($r)+ m.sparsity { opnd!($($r)+ s.metadata); }
                if let Accumulate::If(p) = $($r)+ m.accumulate { $f(Role::Use, p); }
                for d in $($r)+ m.d { $f(Role::Def, d); }
            }
            Inst::Tcgen05(t) => match $($r)+ **t {
                Tcgen05::Alloc { addr, columns, .. } => { addr!(addr); opnd!(columns); }
                Tcgen05::Dealloc { memory, columns, .. } => { opnd!(memory); opnd!(columns); }
                Tcgen05::Load { dsts, memory, .. } => {
                    addr!(memory);
                    for d in dsts { $f(Role::Def, d); }
                }
                Tcgen05::Store { memory, srcs, .. } => {
                    addr!(memory);
                    for s in srcs { opnd!(s); }
                }
                Tcgen05::Commit { addr, multicast, .. } => { addr!(addr); optional!(multicast); }
                Tcgen05::Copy { memory, descriptor, .. } => { addr!(memory); opnd!(descriptor); }
                Tcgen05::Shift { memory, .. } => { addr!(memory); }
                Tcgen05::Mma(m) => {
                    addr!(m.d);
                    match $($r)+ m.a {
                        Tcgen05Source::Descriptor(a) => { opnd!(a); }
                        Tcgen05Source::Memory(a) => { addr!(a); }
                    }
                    opnd!($($r)+ m.b);
                    opnd!($($r)+ m.descriptor);
                    if let Some(scales) = $($r)+ m.scales { addr!(scales.a); addr!(scales.b); }
                    for o in $($r)+ m.disabled { opnd!(o); }
                    $f(Role::Use, $($r)+ m.accumulate);
                }
                Tcgen05::Relinquish { .. } | Tcgen05::Wait { .. } | Tcgen05::Fence { .. } => {}
            },
            Inst::CpAsync { dst, src, limit, policy, .. } => {
                addr!(dst); addr!(src);
                match limit {
                    SourceLimit::Full => {}
                    SourceLimit::Bytes(n) => { opnd!(n); }
                    SourceLimit::Ignore(p) => { $f(Role::Use, p); }
                }
                if let Some(p) = policy { $f(Role::Use, p) }
            }
            Inst::MbarrierInit { addr, count, .. } => { addr!(addr); opnd!(count); }
            Inst::MbarrierArrive { expect_tx, dst, addr, count, .. } => {
                addr!(addr); optional!(expect_tx); optional!(count);
                if let Some(d) = dst { $f(Role::Def, d) }
            }
            Inst::MbarrierWait { dst, addr, phase, nanoseconds, .. } => {
                addr!(addr);
                match phase { MbarrierPhase::State(o) | MbarrierPhase::Parity(o) => { opnd!(o); } }
                optional!(nanoseconds);
                $f(Role::Def, dst);
            }
            Inst::MbarrierTx { addr, bytes, .. } | Inst::StBulk { addr, bytes, .. } => { addr!(addr); opnd!(bytes); }
            Inst::MbarrierPendingCount { dst, state } => { opnd!(state); $f(Role::Def, dst); }
            Inst::BulkCopy(c) => {
                addr!(c.dst); addr!(c.src); opnd!($($r)+ c.bytes);
                if let Completion::Mbarrier(a) = $($r)+ c.completion { addr!(a); }
                optional!($($r)+ c.multicast);
                if let Some(p) = $($r)+ c.policy { $f(Role::Use, p) }
                optional!($($r)+ c.byte_mask);
            }
            Inst::BulkReduce(c) => {
                addr!(c.dst); addr!(c.src); opnd!($($r)+ c.bytes);
                if let Completion::Mbarrier(a) = $($r)+ c.completion { addr!(a); }
                if let Some(p) = $($r)+ c.policy { $f(Role::Use, p) }
            }
            Inst::BulkPrefetch { addr, bytes, policy } => {
                addr!(addr); opnd!(bytes);
                if let Some(p) = policy { $f(Role::Use, p) }
            }
            Inst::TensorCopy(c) => {
                match $($r)+ c.transfer {
                    TensorTransfer::Load { dst, barrier, multicast, .. } => {
                        addr!(dst); addr!(barrier); optional!(multicast);
                    }
                    TensorTransfer::Store { src } | TensorTransfer::Reduce { src, .. } => { addr!(src); }
                    TensorTransfer::Prefetch => {}
                }
                addr!(c.map);
                for o in $($r)+ c.coords { opnd!(o); }
                for o in $($r)+ c.offsets { opnd!(o); }
                if let Some(p) = $($r)+ c.policy { $f(Role::Use, p) }
            }
            Inst::StAsync { addr, srcs, order, .. } => {
                addr!(addr);
                for s in srcs { opnd!(s); }
                if let AsyncOrder::Mbarrier(a) = order { addr!(a); }
            }
            Inst::RedAsync { addr, b, order, .. } => {
                addr!(addr); opnd!(b);
                if let AsyncOrder::Mbarrier(a) = order { addr!(a); }
            }
            Inst::CvtPack { dst, a, b, c, .. } => { opnd!(a); opnd!(b); optional!(c); $f(Role::Def, dst); }
            Inst::TensormapReplace { addr, value, .. } => { addr!(addr); opnd!(value); }
            Inst::TensormapCopyFence { dst, src, .. } => { addr!(dst); addr!(src); }
            Inst::Mapa { dst, a, rank, .. } => { opnd!(a); opnd!(rank); $f(Role::Def, dst); }
            Inst::GetCtaRank { dst, a, .. } => { opnd!(a); $f(Role::Def, dst); }
            Inst::Opaque(o) => {
                for piece in $($r)+ o.operands { if let Piece::Reg(r) = piece { $f(Role::Def, r) } }
            }
            Inst::Fence { .. } | Inst::Brkpt | Inst::Trap | Inst::PmEvent { .. } | Inst::WgmmaFence
            | Inst::WgmmaCommit | Inst::WgmmaWait { .. } | Inst::SetMaxNreg { .. } | Inst::CpAsyncCommit
            | Inst::CpAsyncWait { .. } | Inst::BulkCommit | Inst::BulkWait { .. } | Inst::ClusterBarrier { .. }
            | Inst::FenceRestricted { .. } | Inst::ProxyFence(_) | Inst::MbarrierInitFence
            | Inst::GridDepControl { .. } => {}
        }
    }};
}

impl Inst {
    /// Calls `f` for every register that the instruction reads or writes, reads first. The guard is not included.
    pub fn visit(&self, mut f: impl FnMut(Role, Reg)) {
        // The one operand that is read and written.
        if let Self::Wgmma(m) = self
            && m.accumulate != Accumulate::Always(false)
        {
            m.d.iter().for_each(|r| f(Role::Use, *r));
        }
        let mut f = |role: Role, r: &Reg| f(role, *r);
        visit_body!(self, f, &);
    }

    /// The same with mutable access, to rename registers. Every operand is visited once; what is read and written comes as
    /// [`Role::Def`].
    pub fn visit_mut(&mut self, mut f: impl FnMut(Role, &mut Reg)) {
        visit_body!(self, f, &mut);
    }

    /// Whether the instruction reads or writes the carry flag, which is no register.
    pub fn uses_carry(&self) -> bool {
        use {BinaryOp as B, TernaryOp as T};
        match self {
            Self::Binary { op, .. } => {
                matches!(op, B::AddCc | B::Addc | B::AddcCc | B::SubCc | B::Subc | B::SubcCc)
            }
            Self::Ternary { op, .. } => {
                matches!(op, T::MadLoCc | T::MadHiCc | T::MadcLo | T::MadcHi | T::MadcLoCc | T::MadcHiCc)
            }
            _ => false,
        }
    }

    /// Whether executing the instruction matters beyond its destinations (memory, synchronisation, control).
    pub fn has_side_effects(&self) -> bool {
        match self {
            Self::Ld { ordering, .. } => *ordering != Ordering::WEAK,
            Self::Unary { .. }
            | Self::Binary { .. }
            | Self::Ternary { .. }
            | Self::Bfi { .. }
            | Self::Lop3 { .. }
            | Self::Lop3Pred { .. }
            | Self::Dp4a { .. }
            | Self::Dp2a { .. }
            | Self::Video { .. }
            | Self::Fns { .. }
            | Self::MinMax3 { .. }
            | Self::Mixed { .. }
            | Self::Setp { .. }
            | Self::Set { .. }
            | Self::Selp { .. }
            | Self::Slct { .. }
            | Self::Mov { .. }
            | Self::Pack { .. }
            | Self::Unpack { .. }
            | Self::PredBinary { .. }
            | Self::PredNot { .. }
            | Self::PredMov { .. }
            | Self::Cvt { .. }
            | Self::CvtStochastic { .. }
            | Self::CvtPack { .. }
            | Self::Cvta { .. }
            | Self::Isspacep { .. }
            | Self::Ldu { .. }
            | Self::Activemask { .. }
            | Self::CreatePolicy { .. }
            | Self::Mapa { .. }
            | Self::GetCtaRank { .. }
            | Self::MbarrierPendingCount { .. } => false,
            _ => true,
        }
    }
}
