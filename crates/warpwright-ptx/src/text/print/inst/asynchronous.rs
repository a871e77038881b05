//! Asynchronous copies, mbarriers, tensor maps, clusters and fences as text.

use super::Body;
use crate::inst::*;
use crate::types::*;

impl Body<'_> {
    /// `.space`, with the block's shared memory written as `.shared::cta`.
    fn explicit_space(&mut self, space: StateSpace) {
        if space == StateSpace::Shared { self.text(".shared::cta") } else { self.space(space) }
    }

    /// `.L2::cache_hint`
    fn hinted(&mut self, policy: Option<Reg>) {
        if policy.is_some() {
            self.text(".L2::cache_hint");
        }
    }

    fn comma_address(&mut self, addr: Address) {
        self.text(", ");
        self.address(addr);
    }

    /// `.space{.b64} [addr]` after a name.
    fn named(&mut self, name: &str, space: StateSpace, addr: Address) {
        self.text(name);
        self.space(space);
        self.text(".b64 ");
        self.address(addr);
    }

    pub(super) fn asynchronous(&mut self, inst: &Inst) {
        match *inst {
            Inst::CpAsync { cache, l2_prefetch, dst, src, bytes, limit, policy } => {
                self.text("cp.async");
                self.dot(cache.name());
                self.text(".shared.global");
                self.hinted(policy);
                if l2_prefetch != L2Prefetch::Default {
                    self.dot(l2_prefetch.name());
                }
                self.text(" ");
                self.address(dst);
                self.comma_address(src);
                self.out.push(format_args!(", {bytes}"));
                match limit {
                    SourceLimit::Full => {}
                    SourceLimit::Bytes(n) => self.comma(n),
                    SourceLimit::Ignore(pred) => self.comma(pred.into()),
                }
                self.policy(policy);
            }
            Inst::CpAsyncCommit => self.text("cp.async.commit_group"),
            Inst::CpAsyncWait { pending: None } => self.text("cp.async.wait_all"),
            Inst::CpAsyncWait { pending: Some(n) } => self.out.push(format_args!("cp.async.wait_group {n}")),
            Inst::CpAsyncArrive { noinc, space, addr } => {
                let name = if noinc { "cp.async.mbarrier.arrive.noinc" } else { "cp.async.mbarrier.arrive" };
                self.named(name, space, addr);
            }
            Inst::MbarrierInit { space, addr, count } => {
                self.named("mbarrier.init", space, addr);
                self.comma(count);
            }
            Inst::MbarrierInval { space, addr } => self.named("mbarrier.inval", space, addr),
            Inst::MbarrierArrive { drop, no_complete, expect_tx, ordering, space, dst, addr, count } => {
                self.text(if drop { "mbarrier.arrive_drop" } else { "mbarrier.arrive" });
                self.text(if no_complete { ".noComplete" } else { "" });
                self.text(if expect_tx.is_some() { ".expect_tx" } else { "" });
                self.ordering(ordering);
                self.space(space);
                self.text(".b64 ");
                self.or_sink(dst);
                self.comma_address(addr);
                for operand in [expect_tx, count].into_iter().flatten() {
                    self.comma(operand);
                }
            }
            Inst::MbarrierWait { try_wait, ordering, space, dst, addr, phase, nanoseconds } => {
                self.text(if try_wait { "mbarrier.try_wait" } else { "mbarrier.test_wait" });
                let (parity, operand) = match phase {
                    MbarrierPhase::State(o) => (false, o),
                    MbarrierPhase::Parity(o) => (true, o),
                };
                self.text(if parity { ".parity" } else { "" });
                self.ordering(ordering);
                self.space(space);
                self.text(".b64 ");
                self.reg(dst);
                self.comma_address(addr);
                self.comma(operand);
                if let Some(limit) = nanoseconds {
                    self.comma(limit);
                }
            }
            Inst::MbarrierTx { complete, ordering, space, addr, bytes } => {
                self.text(if complete { "mbarrier.complete_tx" } else { "mbarrier.expect_tx" });
                self.ordering(ordering);
                self.named("", space, addr);
                self.comma(bytes);
            }
            Inst::MbarrierPendingCount { dst, state } => {
                self.text("mbarrier.pending_count.b64");
                self.operands(dst, &[state]);
            }
            Inst::BulkCopy(ref copy) => self.bulk_copy(copy),
            Inst::BulkReduce(ref reduce) => self.bulk_reduce(reduce),
            Inst::TensorCopy(ref copy) => self.tensor_copy(copy),
            Inst::BulkPrefetch { addr, bytes, policy } => {
                self.text("cp.async.bulk.prefetch.L2.global");
                self.hinted(policy);
                self.text(" ");
                self.address(addr);
                self.comma(bytes);
                self.policy(policy);
            }
            Inst::BulkCommit => self.text("cp.async.bulk.commit_group"),
            Inst::BulkWait { read, pending } => {
                let read = if read { ".read" } else { "" };
                self.out.push(format_args!("cp.async.bulk.wait_group{read} {pending}"));
            }
            Inst::StBulk { space, addr, bytes } => {
                self.text("st.bulk");
                self.explicit_space(space);
                self.text(" ");
                self.address(addr);
                self.comma(bytes);
                self.text(", 0");
            }
            Inst::StAsync { space, ty, addr, ref srcs, order } => {
                self.text("st.async");
                self.async_order(order, space, false);
                if srcs.len() != 1 {
                    self.out.push(format_args!(".v{}", srcs.len()));
                }
                self.dot(ty.name());
                self.text(" ");
                self.address(addr);
                self.text(", ");
                self.vector(srcs, Self::operand);
                self.barrier_of(order);
            }
            Inst::RedAsync { op, space, ty, addr, b, order } => {
                self.text("red.async");
                self.async_order(order, space, true);
                self.dot(op.name());
                self.dot(ty.name());
                self.text(" ");
                self.address(addr);
                self.comma(b);
                self.barrier_of(order);
            }
            Inst::TensormapReplace { field, space, addr, index, value } => {
                self.out.push(format_args!("tensormap.replace.tile.{field}"));
                self.explicit_space(space);
                self.text(if field.is_wide() { ".b1024.b64 " } else { ".b1024.b32 " });
                self.address(addr);
                if let Some(index) = index {
                    self.out.push(format_args!(", {index}"));
                }
                self.comma(value);
            }
            Inst::TensormapCopyFence { scope, dst, src } => {
                self.text("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release");
                self.dot(scope.name());
                self.text(".sync.aligned ");
                self.address(dst);
                self.comma_address(src);
                self.text(", 128");
            }
            _ => {}
        }
    }

    /// How a store or reduction is ordered, with its space where that stands.
    fn async_order(&mut self, order: AsyncOrder, space: StateSpace, reduces: bool) {
        match order {
            AsyncOrder::Mbarrier(_) => {
                self.text(if reduces { ".relaxed.cluster" } else { "" });
                self.space(space);
                self.text(".mbarrier::complete_tx::bytes");
            }
            AsyncOrder::Release { mmio, scope } => {
                self.text(if mmio { ".mmio.release" } else { ".release" });
                self.dot(scope.name());
                self.space(space);
            }
        }
    }

    fn barrier_of(&mut self, order: AsyncOrder) {
        if let AsyncOrder::Mbarrier(addr) = order {
            self.comma_address(addr);
        }
    }

    fn completion(&mut self, completion: Completion) {
        self.text(match completion {
            Completion::Mbarrier(_) => ".mbarrier::complete_tx::bytes",
            Completion::BulkGroup => ".bulk_group",
        });
    }

    /// ` [dst], [src], bytes{, [mbar]}`
    fn bulk_operands(&mut self, dst: Address, src: Address, bytes: Operand, completion: Completion) {
        self.text(" ");
        self.address(dst);
        self.comma_address(src);
        self.comma(bytes);
        if let Completion::Mbarrier(addr) = completion {
            self.comma_address(addr);
        }
    }

    fn bulk_copy(&mut self, copy: &BulkCopy) {
        let BulkCopy { dst_space, src_space, dst, src, bytes, completion, multicast, policy, byte_mask } =
            *copy;
        self.text("cp.async.bulk");
        self.explicit_space(dst_space);
        self.explicit_space(src_space);
        self.completion(completion);
        self.text(if multicast.is_some() { ".multicast::cluster" } else { "" });
        self.hinted(policy);
        self.text(if byte_mask.is_some() { ".cp_mask" } else { "" });
        self.bulk_operands(dst, src, bytes, completion);
        if let Some(blocks) = multicast {
            self.comma(blocks);
        }
        self.policy(policy);
        if let Some(mask) = byte_mask {
            self.comma(mask);
        }
    }

    fn bulk_reduce(&mut self, reduce: &BulkReduce) {
        let BulkReduce { op, ty, noftz, dst_space, dst, src, bytes, completion, policy } = *reduce;
        self.text("cp.reduce.async.bulk");
        self.explicit_space(dst_space);
        self.text(".shared::cta");
        self.completion(completion);
        self.hinted(policy);
        self.dot(op.name());
        self.text(if noftz { ".noftz" } else { "" });
        self.dot(ty.name());
        self.bulk_operands(dst, src, bytes, completion);
        self.policy(policy);
    }

    fn tensor_copy(&mut self, copy: &TensorCopy) {
        let TensorCopy { transfer, dims, mode, map, coords, offsets, policy } = copy;
        self.text(match transfer {
            TensorTransfer::Load { .. } | TensorTransfer::Store { .. } => "cp.async.bulk",
            TensorTransfer::Reduce { .. } => "cp.reduce.async.bulk",
            TensorTransfer::Prefetch => "cp.async.bulk.prefetch",
        });
        self.out.push(format_args!(".tensor.{dims}d"));
        match transfer {
            TensorTransfer::Load { dst_space, multicast, cta_group, .. } => {
                self.explicit_space(*dst_space);
                self.out.push(format_args!(".global.{mode}.mbarrier::complete_tx::bytes"));
                self.text(if multicast.is_some() { ".multicast::cluster" } else { "" });
                if let Some(group) = cta_group {
                    self.out.push(format_args!(".cta_group::{group}"));
                }
            }
            TensorTransfer::Store { .. } => {
                self.out.push(format_args!(".global.shared::cta.{mode}.bulk_group"));
            }
            TensorTransfer::Reduce { op, .. } => {
                self.out.push(format_args!(".global.shared::cta.{op}.{mode}.bulk_group"));
            }
            TensorTransfer::Prefetch => self.out.push(format_args!(".L2.global.{mode}")),
        }
        self.hinted(*policy);
        self.text(" ");
        if let TensorTransfer::Load { dst, .. } = transfer {
            self.address(*dst);
            self.text(", ");
        }
        self.text("[");
        self.address_inside(*map);
        self.text(", ");
        self.braced(coords, Self::operand);
        self.text("]");
        match transfer {
            TensorTransfer::Load { barrier: addr, .. }
            | TensorTransfer::Store { src: addr }
            | TensorTransfer::Reduce { src: addr, .. } => self.comma_address(*addr),
            TensorTransfer::Prefetch => {}
        }
        if !offsets.is_empty() {
            self.text(", ");
            self.braced(offsets, Self::operand);
        }
        if let TensorTransfer::Load { multicast: Some(blocks), .. } = transfer {
            self.comma(*blocks);
        }
        self.policy(*policy);
    }

    /// Cache control, clusters, fences and the rest.
    pub(super) fn cluster(&mut self, inst: &Inst) {
        match *inst {
            Inst::PrefetchUniform { addr } => {
                self.text("prefetchu.L1 ");
                self.address(addr);
            }
            Inst::PrefetchTensormap { space, addr } => {
                self.text("prefetch");
                self.space(space);
                self.text(".tensormap ");
                self.address(addr);
            }
            Inst::Discard { space, addr } => {
                self.text("discard");
                self.space(space);
                self.text(".L2 ");
                self.address(addr);
                self.text(", 128");
            }
            Inst::ApplyPriority { space, addr } => {
                self.text("applypriority");
                self.space(space);
                self.text(".L2::evict_normal ");
                self.address(addr);
                self.text(", 128");
            }
            Inst::CreatePolicy { dst, ref source } => self.create_policy(dst, source),
            Inst::Alloca { ty, dst, bytes, align } => {
                self.arith("alloca", &Modifiers::NONE, ty);
                self.operands(dst, &[bytes]);
                if let Some(align) = align {
                    self.out.push(format_args!(", {align}"));
                }
            }
            Inst::StackSave { ty, dst: reg } => {
                self.arith("stacksave", &Modifiers::NONE, ty);
                self.operands(reg, &[]);
            }
            Inst::StackRestore { ty, src: reg } => {
                self.arith("stackrestore", &Modifiers::NONE, ty);
                self.operands(reg, &[]);
            }
            Inst::PmEvent { mask: true, value } => self.out.push(format_args!("pmevent.mask 0x{value:x}")),
            Inst::PmEvent { mask: false, value } => self.out.push(format_args!("pmevent {value}")),
            Inst::SetMaxNreg { increase, count } => {
                let direction = if increase { "inc" } else { "dec" };
                self.out.push(format_args!("setmaxnreg.{direction}.sync.aligned.u32 {count}"));
            }
            Inst::ClusterBarrier { arrive, semantics, aligned } => {
                self.text(if arrive { "barrier.cluster.arrive" } else { "barrier.cluster.wait" });
                if semantics != Semantics::Weak {
                    self.dot(semantics.name());
                }
                self.text(if aligned { ".aligned" } else { "" });
            }
            Inst::Mapa { space, ty, dst, a, rank } => {
                self.text("mapa");
                self.space(space);
                self.dot(ty.name());
                self.operands(dst, &[a, rank]);
            }
            Inst::GetCtaRank { space, ty, dst, a } => {
                self.text("getctarank");
                self.space(space);
                self.dot(ty.name());
                self.operands(dst, &[a]);
            }
            Inst::FenceRestricted { acquire } => self.restricted("fence", acquire),
            Inst::ProxyFence(fence) => self.proxy_fence(fence),
            Inst::MbarrierInitFence => self.text("fence.mbarrier_init.release.cluster"),
            Inst::GridDepControl { wait } => {
                self.text(if wait { "griddepcontrol.wait" } else { "griddepcontrol.launch_dependents" });
            }
            _ => {}
        }
    }

    fn restricted(&mut self, name: &str, acquire: bool) {
        self.text(name);
        self.text(if acquire {
            ".acquire.sync_restrict::shared::cluster.cluster"
        } else {
            ".release.sync_restrict::shared::cta.cluster"
        });
    }

    fn proxy_fence(&mut self, fence: ProxyFence) {
        match fence {
            ProxyFence::Alias => self.text("fence.proxy.alias"),
            ProxyFence::Async(space) => {
                self.text("fence.proxy.async");
                self.explicit_space(space);
            }
            ProxyFence::AsyncGeneric { acquire } => self.restricted("fence.proxy.async::generic", acquire),
            ProxyFence::TensormapRelease(scope) => {
                self.text("fence.proxy.tensormap::generic.release");
                self.dot(scope.name());
            }
            ProxyFence::TensormapAcquire { scope, addr } => {
                self.text("fence.proxy.tensormap::generic.acquire");
                self.dot(scope.name());
                self.text(" ");
                self.address(addr);
                self.text(", 128");
            }
        }
    }

    fn create_policy(&mut self, dst: Reg, source: &PolicySource) {
        match *source {
            PolicySource::Fractional { primary, secondary, fraction } => {
                self.text("createpolicy.fractional");
                self.priorities(primary, secondary);
                self.operands(dst, &[]);
                if let Some(fraction) = fraction {
                    self.comma(fraction);
                }
            }
            PolicySource::Range { space, primary, secondary, addr, primary_bytes, total_bytes } => {
                self.text("createpolicy.range");
                self.space(space);
                self.priorities(primary, secondary);
                self.operands(dst, &[]);
                self.comma_address(addr);
                self.comma(primary_bytes);
                self.comma(total_bytes);
            }
            PolicySource::Convert { property } => {
                self.text("createpolicy.cvt.L2.b64");
                self.operands(dst, &[property]);
            }
        }
    }

    fn priorities(&mut self, primary: L2Priority, secondary: Option<L2Priority>) {
        self.dot(primary.name());
        if let Some(secondary) = secondary {
            self.dot(secondary.name());
        }
        self.text(".b64");
    }
}
