//! Asynchronous copies, mbarriers, tensor maps and clusters.

use super::tensor::only_register;
use super::{A, B, C, policy, predicate, result, source};
use crate::inst::*;
use crate::isa;
use crate::types::ScalarType::{self, *};
use crate::types::{CacheOp, Ordering, Scope, Semantics, StateSpace};
use crate::verify::{Breach, Checker, Rule};

const BYTES: &str = "the number of bytes";
const BLOCKS: &str = "the mask of blocks";

#[allow(clippy::too_many_lines, reason = "one arm per instruction shape")]
pub(super) fn operands(cx: &mut Checker<'_>, inst: &Inst) {
    match *inst {
        Inst::CpAsync { cache, bytes, limit, policy: p, .. } => {
            let sizes: &[u32] = if cache == CacheOp::Cg { &[16] } else { &[4, 8, 16] };
            if !sizes.contains(&bytes) {
                cx.report(Rule::Type10, Breach::CpAsyncBytes { cache, bytes });
            }
            match limit {
                SourceLimit::Full => {}
                SourceLimit::Bytes(n) => {
                    source(cx, n, U32, BYTES);
                    if matches!(n, Operand::Imm(Imm::Int(n)) if !(0..=i64::from(bytes)).contains(&n)) {
                        cx.report(Rule::Type10, Breach::CpAsyncSource { bytes });
                    }
                }
                SourceLimit::Ignore(p) => predicate(cx, p, "the fourth operand"),
            }
            policy(cx, p);
        }
        Inst::MbarrierInit { count, .. } => source(cx, count, U32, "the count of arrivals"),
        Inst::MbarrierArrive { no_complete, expect_tx, ordering, space, dst, count, .. } => {
            order(cx, ordering, Semantics::Release, "mbarrier.arrive");
            if let Some(d) = dst {
                result(cx, d, B64);
            }
            if let Some(bytes) = expect_tx {
                source(cx, bytes, U32, BYTES);
            }
            if let Some(count) = count {
                source(cx, count, U32, "the count of arrivals");
            }
            if no_complete && count.is_none() {
                cx.report(Rule::Type8, Breach::NoCompleteWithoutCount);
            }
            if no_complete && expect_tx.is_some() || expect_tx.is_some() && count.is_some() {
                cx.report(Rule::Type8, Breach::ExpectingArrival);
            }
            if space == StateSpace::SharedCluster && (dst.is_some() || no_complete) {
                cx.report(Rule::Type8, Breach::RemoteArrival);
            }
        }
        Inst::MbarrierWait { try_wait, ordering, dst, phase, nanoseconds, .. } => {
            order(cx, ordering, Semantics::Acquire, "a wait on an mbarrier");
            match phase {
                MbarrierPhase::State(o) => source(cx, o, B64, "the state"),
                MbarrierPhase::Parity(o) => source(cx, o, U32, "the parity"),
            }
            if let Some(limit) = nanoseconds {
                source(cx, limit, U32, "the time limit");
                if !try_wait {
                    cx.report(Rule::Type8, Breach::TestWaitLimit);
                }
            }
            result(cx, dst, Pred);
        }
        Inst::MbarrierTx { ordering, bytes, .. } => {
            order(cx, ordering, Semantics::Relaxed, "a transaction count");
            source(cx, bytes, U32, BYTES);
        }
        Inst::MbarrierPendingCount { dst, state } => {
            source(cx, state, B64, "the state");
            result(cx, dst, U32);
        }
        Inst::BulkCopy(ref c) => {
            bulk_bytes(cx, c.bytes);
            bulk_spaces(cx, c.dst_space, c.src_space, c.completion);
            if let Some(blocks) = c.multicast {
                source(cx, blocks, U16, BLOCKS);
                if (c.dst_space, c.src_space) != (StateSpace::SharedCluster, StateSpace::Global) {
                    cx.report(Rule::Type8, Breach::MulticastBulk);
                }
            }
            if let Some(mask) = c.byte_mask {
                source(cx, mask, U16, "the mask of bytes");
                if c.completion != Completion::BulkGroup {
                    cx.report(Rule::Type8, Breach::ByteMask);
                }
            }
            policy(cx, c.policy);
            if c.policy.is_some() && c.dst_space != StateSpace::Global && c.src_space != StateSpace::Global {
                cx.report(Rule::Mem7, Breach::PolicyElsewhere);
            }
        }
        Inst::BulkReduce(ref r) => {
            bulk_bytes(cx, r.bytes);
            bulk_spaces(cx, r.dst_space, StateSpace::Shared, r.completion);
            let half_add = r.op == BulkOp::Add && matches!(r.ty, F16 | BF16);
            if half_add != r.noftz {
                cx.report(Rule::Type4, Breach::Noftz { op: r.op.name(), ty: r.ty, needed: half_add });
            }
            policy(cx, r.policy);
            if r.policy.is_some() && r.dst_space != StateSpace::Global {
                cx.report(Rule::Mem7, Breach::PolicyElsewhere);
            }
        }
        Inst::BulkPrefetch { bytes, policy: p, .. } => {
            bulk_bytes(cx, bytes);
            policy(cx, p);
        }
        Inst::TensorCopy(ref c) => tensor_copy(cx, c),
        Inst::StBulk { bytes, .. } => source(cx, bytes, U64, BYTES),
        Inst::StAsync { ty, ref srcs, order, .. } => {
            let widths: &[usize] = match order {
                AsyncOrder::Mbarrier(_) => &[1, 2, 4],
                AsyncOrder::Release { .. } => &[1],
            };
            if !widths.contains(&srcs.len()) || srcs.len() as u32 * ty.bytes() > 16 {
                cx.report(Rule::Type7, Breach::NoVector { elements: srcs.len(), ty });
            }
            for s in srcs {
                source(cx, *s, ty, "the stored operand");
            }
        }
        Inst::RedAsync { ty, b, .. } => source(cx, b, ty, B),
        Inst::TensormapReplace { field, index, value, .. } => {
            if index.is_some() != field.is_indexed() {
                cx.report(Rule::Type8, Breach::FieldIndex { field });
            }
            let ty = if field.is_wide() { B64 } else { B32 };
            let literal = matches!(
                field,
                TensormapField::ElementType
                    | TensormapField::InterleaveLayout
                    | TensormapField::SwizzleMode
                    | TensormapField::SwizzleAtomicity
                    | TensormapField::FillMode
            );
            if literal && !matches!(value, Operand::Imm(_)) {
                cx.report(Rule::Type3, Breach::FieldLiteral { field });
            } else {
                source(cx, value, ty, "the new value");
            }
        }
        Inst::Mapa { space, ty, dst, a, rank } => {
            cluster_address(cx, space, ty, a);
            source(cx, rank, U32, "the rank");
            result(cx, dst, ty);
        }
        Inst::GetCtaRank { space, ty, dst, a } => {
            cluster_address(cx, space, ty, a);
            result(cx, dst, U32);
        }
        Inst::CreatePolicy { dst, ref source } => create_policy(cx, dst, source),
        Inst::Alloca { ty, dst, bytes, .. } => {
            source(cx, bytes, ty, BYTES);
            result(cx, dst, ty);
        }
        Inst::StackSave { ty, dst: reg } | Inst::StackRestore { ty, src: reg } => result(cx, reg, ty),
        Inst::PmEvent { mask: false, value: value @ 16.. } => {
            cx.report(Rule::Type10, Breach::NoSuchEvent { event: value });
        }
        Inst::ClusterBarrier { arrive, semantics, .. } => {
            let takes = match semantics {
                Semantics::Weak => true,
                Semantics::Release | Semantics::Relaxed => arrive,
                Semantics::Acquire => !arrive,
                _ => false,
            };
            if !takes {
                cx.report(
                    Rule::Mem7,
                    Breach::NoSemantics { operation: "this half of a cluster barrier", semantics },
                );
            }
        }
        // The others have no operands besides addresses.
        _ => {}
    }
}

/// Ordering and scope of an operation on an mbarrier come together.
fn order(cx: &mut Checker<'_>, ordering: Ordering, strongest: Semantics, what: &'static str) {
    let Ordering { semantics, scope } = ordering;
    if semantics == Semantics::Weak && scope.is_none() {
        return;
    }
    if semantics != strongest && semantics != Semantics::Relaxed {
        cx.report(Rule::Mem7, Breach::NoSemantics { operation: what, semantics });
    }
    match scope {
        Some(Scope::Cta | Scope::Cluster) => {}
        Some(scope) => cx.report(Rule::Mem7, Breach::NoScope { operation: what, scope }),
        None => cx.report(Rule::Mem7, Breach::MissingScope { semantics }),
    }
}

/// Bulk copies move multiples of 16 bytes.
fn bulk_bytes(cx: &mut Checker<'_>, bytes: Operand) {
    source(cx, bytes, U32, BYTES);
    if let Operand::Imm(Imm::Int(n)) = bytes
        && n % 16 != 0
    {
        cx.report(Rule::Type10, Breach::BulkBytes { bytes: n });
    }
}

/// The directions of a bulk copy, each with its kind of completion.
fn bulk_spaces(cx: &mut Checker<'_>, dst: StateSpace, src: StateSpace, completion: Completion) {
    use StateSpace::*;
    let counted = match (dst, src) {
        (SharedCluster, Global | Shared) | (Shared, Global) => true,
        (Global, Shared) => false,
        _ => {
            cx.report(Rule::Mem1, Breach::BulkCopyBetween { from: src, to: dst });
            return;
        }
    };
    if counted != matches!(completion, Completion::Mbarrier(_)) {
        cx.report(Rule::Type8, Breach::BulkCompletion { from: src, to: dst, mbarrier: counted });
    }
}

fn tensor_copy(cx: &mut Checker<'_>, c: &TensorCopy) {
    let dims = usize::from(c.dims);
    let quad = matches!(c.mode, TensorCopyMode::Gather4 | TensorCopyMode::Scatter4);
    let coords = if quad { 5 } else { dims };
    if !(1..=5).contains(&dims) || (quad && dims != 2) || c.coords.len() != coords {
        let coordinates = c.coords.len();
        cx.report(Rule::Type7, Breach::TensorCoordinates { coordinates, dims, needed: coords });
    }
    let offsets = match c.mode {
        TensorCopyMode::Im2col => dims.saturating_sub(2),
        TensorCopyMode::Im2colW | TensorCopyMode::Im2colW128 => 2,
        _ => 0,
    };
    let stores = matches!(c.transfer, TensorTransfer::Store { .. } | TensorTransfer::Reduce { .. });
    let unrolls = matches!(
        c.mode,
        TensorCopyMode::Im2col
            | TensorCopyMode::Im2colNoOffsets
            | TensorCopyMode::Im2colW
            | TensorCopyMode::Im2colW128
    );
    if unrolls && dims < 3 {
        cx.report(Rule::Type7, Breach::Im2colDimensions { dims });
    } else if c.offsets.len() != if stores { 0 } else { offsets } {
        cx.report(Rule::Type7, Breach::TensorOffsets { offsets: c.offsets.len(), needed: offsets });
    }
    let fits = match c.mode {
        TensorCopyMode::Tile => true,
        TensorCopyMode::Scatter4 | TensorCopyMode::Im2colNoOffsets => stores,
        TensorCopyMode::Gather4
        | TensorCopyMode::Im2col
        | TensorCopyMode::Im2colW
        | TensorCopyMode::Im2colW128 => !stores,
    };
    if !fits {
        cx.report(Rule::Type4, Breach::TensorDirection { mode: c.mode });
    }
    for o in &c.coords {
        source(cx, *o, S32, "a coordinate");
    }
    for o in &c.offsets {
        source(cx, *o, U16, "an offset");
    }
    if let TensorTransfer::Load { dst_space, multicast, cta_group, .. } = &c.transfer {
        if let Some(blocks) = multicast {
            source(cx, *blocks, U16, BLOCKS);
            if *dst_space != StateSpace::SharedCluster {
                cx.report(Rule::Type8, Breach::MulticastTensor);
            }
        }
        if cta_group.is_some_and(|g| !matches!(g, 1 | 2)) {
            cx.report(Rule::Type4, Breach::CtaGroup);
        }
    }
    policy(cx, c.policy);
}

/// The address operand of `mapa` and `getctarank`: a register as wide as the type, or a variable.
fn cluster_address(cx: &mut Checker<'_>, space: StateSpace, ty: ScalarType, a: Operand) {
    if !matches!(ty, U32 | U64) {
        cx.report(Rule::Type1, Breach::AddressType { ty });
    }
    if !matches!(space, StateSpace::Generic | StateSpace::SharedCluster) {
        cx.report(Rule::Mem1, Breach::BlockAddressIn { space });
    }
    if !matches!(a, Operand::Symbol(..)) {
        only_register(cx, a, ty, A);
    }
}

fn create_policy(cx: &mut Checker<'_>, dst: Reg, from: &PolicySource) {
    let secondary = |cx: &mut Checker<'_>, priority: Option<L2Priority>| {
        if matches!(priority, Some(L2Priority::Last | L2Priority::Normal)) {
            cx.report(Rule::Type4, Breach::SecondPriority);
        }
    };
    match *from {
        PolicySource::Fractional { secondary: second, fraction, .. } => {
            secondary(cx, second);
            if let Some(fraction) = fraction {
                source(cx, fraction, F32, "the fraction");
            }
        }
        PolicySource::Range { secondary: second, primary_bytes, total_bytes, .. } => {
            secondary(cx, second);
            source(cx, primary_bytes, U32, BYTES);
            source(cx, total_bytes, U32, BYTES);
        }
        PolicySource::Convert { property } => source(cx, property, B64, A),
    }
    result(cx, dst, B64);
}

/// A vector `atom` or `red`.
#[allow(clippy::too_many_arguments, reason = "the fields of the instruction")]
pub(super) fn atomic_vector(
    cx: &mut Checker<'_>,
    op: AtomOp,
    space: StateSpace,
    ty: ScalarType,
    noftz: bool,
    dsts: Option<&[Option<Reg>]>,
    srcs: &[Operand],
) {
    if !isa::ATOM_VECTOR.iter().any(|row| row.0 == op && row.1.contains(ty)) {
        return;
    }
    if !matches!(space, StateSpace::Generic | StateSpace::Global) {
        cx.report(Rule::Mem1, Breach::VectorAtomicIn { space });
    }
    let half = ty != F32;
    if half != noftz {
        cx.report(Rule::Type4, Breach::Noftz { op: op.name(), ty, needed: half });
    }
    for d in dsts.unwrap_or_default().iter().flatten() {
        result(cx, *d, ty);
    }
    if dsts.is_some_and(|d| d.len() != srcs.len()) {
        cx.report(Rule::Type7, Breach::VectorResults);
    }
    for s in srcs {
        source(cx, *s, ty, B);
    }
}

/// The third operand of `lop3` with a predicate, `dp2a` and their like.
pub(super) fn three(cx: &mut Checker<'_>, sources: [Operand; 3], ty: ScalarType) {
    for (o, what) in sources.into_iter().zip([A, B, C]) {
        source(cx, o, ty, what);
    }
}
