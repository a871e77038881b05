//! Asynchronous copies, mbarriers, and the fences between proxies.

use warpwright_ptx::{
    Address, AsyncOrder, Completion, Inst, MbarrierPhase, Operand, ProxyFence, ScalarType, SourceLimit,
    StateSpace, TensorCopyMode, TensorTransfer,
};

use super::{Decoder, Result, index};
use crate::code::asynchronous::{
    Arrive, Asynchronous, Bulk, Direction, End, Limit, Phase, Place, Proxied, Reduction, Remote, Tensor,
    WaitOn,
};
use crate::code::layout::Slot;
use crate::code::op::Op;

impl Decoder<'_> {
    /// Decodes an instruction of this family; `false` if it is of another one, or not executed.
    pub(super) fn asynchronous(&mut self, inst: &Inst) -> Result<bool> {
        let Some(decoded) = self.asynchronous_parts(inst)? else { return Ok(false) };
        self.code.proxies |=
            matches!(decoded, Asynchronous::Bulk(_) | Asynchronous::Tensor(_) | Asynchronous::FenceProxy(_));
        self.code.asynchronous.push(decoded);
        let at = index(self.code.asynchronous.len() - 1);
        self.emit(Op::Asynchronous(at));
        Ok(true)
    }

    fn place(&mut self, space: StateSpace, addr: &Address) -> Result<Place> {
        let (slot, offset) = self.address(addr)?;
        Ok(Place { space, slot, offset })
    }

    fn row(&mut self, operand: &Operand) -> Result<u32> {
        self.w(operand, ScalarType::U32)
    }

    fn optional_row(&mut self, operand: Option<&Operand>) -> Result<Option<u32>> {
        operand.map(|o| self.row(o)).transpose()
    }

    fn end(&mut self, completion: &Completion) -> Result<End> {
        Ok(match completion {
            Completion::Mbarrier(addr) => End::Mbarrier(self.place(StateSpace::SharedCluster, addr)?),
            Completion::BulkGroup => End::Group,
        })
    }

    fn mask(&mut self, operand: Option<&Operand>) -> Result<Option<Slot>> {
        operand.map(|o| self.source(o, ScalarType::B16)).transpose()
    }

    fn asynchronous_parts(&mut self, inst: &Inst) -> Result<Option<Asynchronous>> {
        use StateSpace::{Generic, Global, Shared, SharedCluster};
        Ok(Some(match inst {
            Inst::CpAsync { dst, src, bytes, limit, .. } => Asynchronous::Copy {
                dst: self.place(Shared, dst)?,
                src: self.place(Global, src)?,
                bytes: *bytes,
                limit: match limit {
                    SourceLimit::Full => Limit::Full,
                    SourceLimit::Bytes(n) => Limit::Bytes(self.row(n)?),
                    SourceLimit::Ignore(p) => Limit::Ignore(self.pred(*p)?),
                },
            },
            Inst::CpAsyncCommit => Asynchronous::CopyCommit,
            Inst::CpAsyncWait { pending } => Asynchronous::CopyWait { pending: *pending },
            Inst::CpAsyncArrive { noinc, space, addr } => {
                Asynchronous::CopyArrive { noinc: *noinc, at: self.place(*space, addr)? }
            }
            Inst::MbarrierInit { space, addr, count } => {
                Asynchronous::Init { at: self.place(*space, addr)?, count: self.row(count)? }
            }
            Inst::MbarrierInval { space, addr } => Asynchronous::Inval { at: self.place(*space, addr)? },
            Inst::MbarrierArrive { drop, no_complete, expect_tx, ordering, space, dst, addr, count } => {
                Asynchronous::Arrive(Arrive {
                    drop: *drop,
                    no_complete: *no_complete,
                    expect_tx: self.optional_row(expect_tx.as_ref())?,
                    count: self.optional_row(count.as_ref())?,
                    ordering: *ordering,
                    dst: dst.map(|d| self.slot(d)).transpose()?,
                    at: self.place(*space, addr)?,
                })
            }
            Inst::MbarrierWait { try_wait, ordering, space, dst, addr, phase, .. } => {
                Asynchronous::Wait(WaitOn {
                    suspends: *try_wait,
                    ordering: *ordering,
                    dst: self.pred(*dst)?,
                    at: self.place(*space, addr)?,
                    phase: match phase {
                        MbarrierPhase::Parity(p) => Phase::Parity(self.row(p)?),
                        MbarrierPhase::State(s) => Phase::State(self.source(s, ScalarType::B64)?),
                    },
                })
            }
            Inst::MbarrierTx { complete, space, addr, bytes, .. } => Asynchronous::Tx {
                complete: *complete,
                at: self.place(*space, addr)?,
                bytes: self.row(bytes)?,
            },
            Inst::MbarrierPendingCount { dst, state } => Asynchronous::PendingCount {
                dst: self.slot(*dst)?,
                state: self.source(state, ScalarType::B64)?,
            },
            Inst::BulkCopy(c) if c.byte_mask.is_none() => Asynchronous::Bulk(Bulk {
                dst: self.place(c.dst_space, &c.dst)?,
                src: self.place(c.src_space, &c.src)?,
                bytes: self.row(&c.bytes)?,
                end: self.end(&c.completion)?,
                multicast: self.mask(c.multicast.as_ref())?,
                reduction: None,
            }),
            Inst::BulkReduce(c) => Asynchronous::Bulk(Bulk {
                dst: self.place(c.dst_space, &c.dst)?,
                src: self.place(Shared, &c.src)?,
                bytes: self.row(&c.bytes)?,
                end: self.end(&c.completion)?,
                multicast: None,
                reduction: Some(Reduction { op: c.op, ty: Some(c.ty) }),
            }),
            Inst::BulkPrefetch { addr, bytes, .. } => {
                Asynchronous::BulkPrefetch { at: self.place(Global, addr)?, bytes: self.row(bytes)? }
            }
            Inst::BulkCommit => Asynchronous::BulkCommit,
            Inst::BulkWait { read, pending } => Asynchronous::BulkWait { read: *read, pending: *pending },
            Inst::TensorCopy(c) if matches!(c.mode, TensorCopyMode::Tile | TensorCopyMode::Im2col) => {
                let direction = match &c.transfer {
                    TensorTransfer::Load { cta_group: Some(_), .. } => return Ok(None),
                    TensorTransfer::Load { dst_space, dst, barrier, multicast, .. } => Direction::Load {
                        dst: self.place(*dst_space, dst)?,
                        barrier: self.place(SharedCluster, barrier)?,
                        multicast: self.mask(multicast.as_ref())?,
                    },
                    TensorTransfer::Store { src } => {
                        Direction::Store { src: self.place(Shared, src)?, reduction: None }
                    }
                    TensorTransfer::Reduce { op, src } => Direction::Store {
                        src: self.place(Shared, src)?,
                        reduction: Some(Reduction { op: *op, ty: None }),
                    },
                    TensorTransfer::Prefetch => Direction::Prefetch,
                };
                let map = self.place(Generic, &c.map)?;
                let coords = c.coords.iter().map(|o| self.row(o)).collect::<Result<_>>()?;
                let offset = |o| self.source(o, ScalarType::B16);
                let offsets = match c.mode {
                    TensorCopyMode::Im2col => Some(c.offsets.iter().map(offset).collect::<Result<_>>()?),
                    _ => None,
                };
                Asynchronous::Tensor(Tensor { direction, dims: usize::from(c.dims), map, coords, offsets })
            }
            Inst::StAsync { ty, addr, srcs, order: AsyncOrder::Mbarrier(barrier), .. } => {
                Asynchronous::Remote(Remote {
                    dst: self.place(SharedCluster, addr)?,
                    barrier: self.place(SharedCluster, barrier)?,
                    srcs: srcs.iter().map(|s| self.source(s, *ty)).collect::<Result<_>>()?,
                    ty: *ty,
                    op: None,
                })
            }
            Inst::RedAsync { op, ty, addr, b, order: AsyncOrder::Mbarrier(barrier), .. } => {
                Asynchronous::Remote(Remote {
                    dst: self.place(SharedCluster, addr)?,
                    barrier: self.place(SharedCluster, barrier)?,
                    srcs: vec![self.source(b, *ty)?],
                    ty: *ty,
                    op: Some(*op),
                })
            }
            Inst::TensormapReplace { field, space, addr, index, value } => Asynchronous::Replace {
                field: *field,
                at: self.place(*space, addr)?,
                index: *index,
                value: self.source(value, if field.is_wide() { ScalarType::B64 } else { ScalarType::B32 })?,
            },
            Inst::TensormapCopyFence { dst, src, .. } => {
                Asynchronous::CopyMap { dst: self.place(Global, dst)?, src: self.place(Shared, src)? }
            }
            Inst::StBulk { space, addr, bytes } => Asynchronous::Zero {
                at: self.place(*space, addr)?,
                bytes: self.source(bytes, ScalarType::B64)?,
            },
            Inst::ProxyFence(ProxyFence::Async(space)) => Asynchronous::FenceProxy(match space {
                Global => &[Proxied::Global],
                Shared | SharedCluster => &[Proxied::Shared],
                _ => &Proxied::ALL,
            }),
            Inst::ProxyFence(ProxyFence::AsyncGeneric { .. }) => Asynchronous::FenceProxy(&[Proxied::Shared]),
            Inst::ProxyFence(_) | Inst::PrefetchTensormap { .. } => Asynchronous::FenceOther,
            Inst::MbarrierInitFence => Asynchronous::FenceInit,
            _ => return Ok(None),
        }))
    }
}
