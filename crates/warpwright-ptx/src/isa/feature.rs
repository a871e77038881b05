//! Requirements of instructions without a row of their own: one arm per shape.

use super::memory;
use super::set::{Misfit, Requirement, TypeSet};
use super::{tcgen05, tensor, wmma, wmma_tile};
use crate::inst::*;
use crate::types::{L2Prefetch, Ordering, ScalarType, Scope, Semantics, StateSpace};

/// Targets with `setmaxnreg` and `tensormap.replace`.
const SPECIFIC_90: &[u32] = &[90, 100, 101, 103, 110, 120, 121];
/// Targets with the tensor-memory features of sm_100.
const SPECIFIC_100: &[u32] = tcgen05::TARGETS;

const fn since(major: u16, minor: u16, sm: u32) -> Requirement {
    Requirement::new(major, minor, sm)
}

fn typed(types: TypeSet, ty: ScalarType, needs: Requirement) -> Result<Requirement, Misfit> {
    if types.contains(ty) { Ok(needs) } else { Err(Misfit::Types) }
}

/// Requirement of an asynchronous, tensor-core or cluster instruction; `BASE` for every other one.
///
/// # Errors
/// If there is no such form.
pub(super) fn feature(inst: &Inst) -> Result<Requirement, Misfit> {
    Ok(match inst {
        Inst::Mma(m) => tensor::mma(m)?,
        Inst::LdMatrix { tiles, .. } => tensor::matrix_tiles(*tiles, false)?,
        Inst::StMatrix { tiles, .. } => tensor::matrix_tiles(*tiles, true)?,
        Inst::MovMatrix { .. } => since(7, 8, 75),
        Inst::Wgmma(m) => tensor::wgmma(m)?,
        Inst::Tcgen05(t) => tcgen05::tcgen05(t)?,
        Inst::WmmaLoad { tile, .. } | Inst::WmmaStore { tile, .. } => wmma_tile(tile)?,
        Inst::Wmma(m) => wmma(m)?,
        Inst::WgmmaFence | Inst::WgmmaCommit | Inst::WgmmaWait { .. } => tensor::WGMMA_NEEDS,
        Inst::SetMaxNreg { .. } => Requirement::only(8, 0, SPECIFIC_90),
        Inst::CpAsync { l2_prefetch, limit, policy, .. } => {
            let hinted = *l2_prefetch != L2Prefetch::Default || policy.is_some();
            match limit {
                SourceLimit::Ignore(_) => since(7, 5, 80),
                _ if hinted => since(7, 4, 80),
                _ => since(7, 0, 80),
            }
        }
        Inst::CpAsyncCommit
        | Inst::CpAsyncWait { .. }
        | Inst::CpAsyncArrive { .. }
        | Inst::MbarrierInit { .. }
        | Inst::MbarrierInval { .. }
        | Inst::MbarrierPendingCount { .. } => since(7, 0, 80),
        Inst::MbarrierArrive { drop, no_complete, expect_tx, ordering, space, dst, count, .. } => {
            let far = ordering.scope == Some(Scope::Cluster) || ordering.semantics == Semantics::Relaxed;
            if *no_complete && far {
                return Err(Misfit::Types);
            }
            let plain_count = count.is_some() && !no_complete;
            let base = match (expect_tx, dst) {
                (Some(_), _) => since(8, 0, 90),
                (None, None) if !drop => since(7, 1, 80),
                (None, _) => since(7, 0, 80),
            };
            let counted = if plain_count { since(7, 8, 90) } else { Requirement::BASE };
            base.and(counted).and(of_mbarrier(*ordering, *space))
        }
        Inst::MbarrierWait { try_wait, ordering, space, phase, .. } => {
            let parity =
                if matches!(phase, MbarrierPhase::Parity(_)) { since(7, 1, 80) } else { since(7, 0, 80) };
            let base = if *try_wait { since(7, 8, 90) } else { parity };
            base.and(of_mbarrier(*ordering, *space))
        }
        Inst::MbarrierTx { .. } => since(8, 0, 90),
        Inst::BulkCopy(c) => {
            let here = if c.dst_space == StateSpace::Shared { since(8, 6, 90) } else { Requirement::BASE };
            let masked = if c.byte_mask.is_some() { since(8, 6, 100) } else { Requirement::BASE };
            since(8, 0, 90).and(here).and(masked)
        }
        Inst::BulkReduce(r) => {
            let row = memory::BULK_REDUCE.iter().find(|row| row.0 == r.op).ok_or(Misfit::Types)?;
            let into_global = r.dst_space == StateSpace::Global;
            typed(if into_global { row.1 } else { row.2 }, r.ty, since(8, 0, 90))?
        }
        Inst::BulkPrefetch { .. } | Inst::BulkCommit | Inst::BulkWait { .. } => since(8, 0, 90),
        Inst::TensorCopy(c) => tensor_copy(c),
        Inst::StBulk { .. } => since(8, 6, 100),
        Inst::StAsync { ty, order, .. } => {
            let released = TypeSet::of(&[
                ScalarType::B8,
                ScalarType::B16,
                ScalarType::U8,
                ScalarType::U16,
                ScalarType::S8,
                ScalarType::S16,
            ])
            .or(memory::ST_ASYNC);
            match order {
                AsyncOrder::Mbarrier(_) => typed(memory::ST_ASYNC, *ty, since(8, 1, 90))?,
                AsyncOrder::Release { .. } => typed(released, *ty, since(8, 7, 100))?,
            }
        }
        Inst::RedAsync { op, ty, order, .. } => {
            let row = memory::RED_ASYNC.iter().find(|row| row.0 == *op).ok_or(Misfit::Types)?;
            match order {
                AsyncOrder::Mbarrier(_) => typed(row.1, *ty, since(8, 1, 90))?,
                AsyncOrder::Release { .. } => typed(row.1, *ty, since(8, 7, 100))?,
            }
        }
        Inst::TensormapReplace { field: TensormapField::SwizzleAtomicity, .. } => {
            Requirement::only(8, 6, &[100, 101, 103, 110, 120, 121])
        }
        Inst::TensormapReplace { .. } => Requirement::only(8, 3, SPECIFIC_90),
        Inst::TensormapCopyFence { .. } => since(8, 3, 90),
        Inst::ClusterBarrier { semantics, .. } => {
            if *semantics == Semantics::Weak {
                since(7, 8, 90)
            } else {
                since(8, 0, 90)
            }
        }
        Inst::Mapa { .. } | Inst::GetCtaRank { .. } | Inst::GridDepControl { .. } => since(7, 8, 90),
        Inst::FenceRestricted { .. } => since(8, 6, 90),
        Inst::ProxyFence(fence) => match fence {
            ProxyFence::Alias => since(7, 5, 70),
            ProxyFence::Async(_) => since(8, 0, 90),
            ProxyFence::AsyncGeneric { .. } => since(8, 6, 90),
            ProxyFence::TensormapRelease(_) | ProxyFence::TensormapAcquire { .. } => since(8, 3, 90),
        },
        Inst::MbarrierInitFence => since(8, 0, 90),
        Inst::PrefetchTensormap { .. } => since(8, 0, 90),
        Inst::Prefetch { level: PrefetchLevel::L2EvictLast | PrefetchLevel::L2EvictNormal, .. }
        | Inst::CreatePolicy { .. }
        | Inst::Discard { .. }
        | Inst::ApplyPriority { .. } => since(7, 4, 80),
        Inst::Alloca { ty, .. } | Inst::StackSave { ty, .. } | Inst::StackRestore { ty, .. } => {
            typed(TypeSet::of(&[ScalarType::U32, ScalarType::U64]), *ty, since(7, 3, 52))?
        }
        Inst::Lop3Pred { .. } => since(8, 2, 70),
        Inst::Fns { .. } => since(6, 0, 30),
        Inst::Dp2a { .. } => since(5, 0, 61),
        Inst::Video { .. } => since(3, 0, 30),
        Inst::CvtPack { to, .. } => {
            if to.bits() >= 8 {
                since(6, 5, 72)
            } else {
                since(6, 5, 75)
            }
        }
        Inst::AtomVector { op, ty, srcs, .. } => {
            let fits = |row: &&(AtomOp, TypeSet, &[usize])| {
                row.0 == *op && row.1.contains(*ty) && row.2.contains(&srcs.len())
            };
            memory::ATOM_VECTOR.iter().find(fits).map(|_| memory::ATOM_VECTOR_NEEDS).ok_or(Misfit::Types)?
        }
        Inst::Atom { policy: Some(_), .. } => since(7, 4, 80),
        Inst::Opaque(o) => o.family.map_or(Requirement::BASE, foreign),
        _ => Requirement::BASE,
    })
}

/// Requirement of the ordering and space of an operation on an mbarrier.
fn of_mbarrier(ordering: Ordering, space: StateSpace) -> Requirement {
    let order = match ordering.semantics {
        Semantics::Weak => Requirement::BASE,
        Semantics::Relaxed => since(8, 6, 90),
        _ => since(8, 0, 80),
    };
    let scope = ordering.scope.map_or(Requirement::BASE, memory::scope);
    let remote = if space == StateSpace::SharedCluster { since(8, 0, 90) } else { Requirement::BASE };
    order.and(scope).and(remote)
}

fn tensor_copy(c: &TensorCopy) -> Requirement {
    let into_block = matches!(c.transfer, TensorTransfer::Load { dst_space: StateSpace::Shared, .. });
    let paired = matches!(c.transfer, TensorTransfer::Load { cta_group: Some(_), .. });
    let place = if into_block { since(8, 6, 90) } else { Requirement::BASE };
    let mode = match c.mode {
        TensorCopyMode::Tile | TensorCopyMode::Im2col | TensorCopyMode::Im2colNoOffsets => Requirement::BASE,
        TensorCopyMode::Gather4 | TensorCopyMode::Im2colW if into_block => since(8, 6, 100),
        TensorCopyMode::Gather4
        | TensorCopyMode::Scatter4
        | TensorCopyMode::Im2colW
        | TensorCopyMode::Im2colW128 => Requirement::only(8, 6, SPECIFIC_100),
    };
    let pair = if paired { Requirement::only(8, 6, SPECIFIC_100) } else { Requirement::BASE };
    since(8, 0, 90).and(place).and(mode).and(pair)
}

/// Requirement of an opcode without a typed form.
const fn foreign(opcode: Foreign) -> Requirement {
    match opcode {
        Foreign::Tcgen05 => tcgen05::NEEDS,
        Foreign::ClusterLaunchControl => since(8, 6, 100),
        Foreign::Multimem => since(8, 1, 90),
        _ => Requirement::BASE,
    }
}
