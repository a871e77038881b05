//! Classes of instructions, for counters.

use warpwright_ptx::{BinaryOp, Inst, ScalarType, Tcgen05, UnaryOp};

use crate::counters::Class;

/// The class that an instruction is counted under.
pub(crate) fn class_of(inst: &Inst) -> Class {
    match inst {
        Inst::Unary { op, ty, mods, .. } => match op {
            UnaryOp::Rsqrt | UnaryOp::Ex2 | UnaryOp::Lg2 | UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tanh => {
                Class::Special
            }
            UnaryOp::Rcp | UnaryOp::Sqrt if mods.approx => Class::Special,
            _ => class_of_type(*ty),
        },
        Inst::Binary { op: BinaryOp::Div, mods, .. } if mods.approx || mods.full => Class::Special,
        Inst::Binary { ty, .. }
        | Inst::Ternary { ty, .. }
        | Inst::Setp { ty, .. }
        | Inst::Set { ty, .. }
        | Inst::Bfi { ty, .. } => class_of_type(*ty),
        Inst::Lop3 { .. } | Inst::Dp4a { .. } => Class::Integer,
        Inst::Selp { .. }
        | Inst::Slct { .. }
        | Inst::Mov { .. }
        | Inst::Pack { .. }
        | Inst::Unpack { .. }
        | Inst::PredBinary { .. }
        | Inst::PredNot { .. }
        | Inst::PredMov { .. }
        | Inst::Cvta { .. }
        | Inst::Isspacep { .. } => Class::Move,
        Inst::Cvt { .. } => Class::Convert,
        Inst::Ld { .. } | Inst::St { .. } | Inst::Prefetch { .. } => Class::Memory,
        Inst::Atom { .. } => Class::Atomic,
        Inst::Shfl { .. }
        | Inst::Vote { .. }
        | Inst::Match { .. }
        | Inst::Redux { .. }
        | Inst::Activemask { .. }
        | Inst::Elect { .. } => Class::Warp,
        Inst::Barrier { .. } | Inst::WarpBarrier { .. } | Inst::Fence { .. } | Inst::Nanosleep { .. } => {
            Class::Sync
        }
        Inst::Brkpt
        | Inst::Trap
        | Inst::Call { .. }
        | Inst::PmEvent { .. }
        | Inst::GridDepControl { .. }
        | Inst::Opaque(_) => Class::Control,
        Inst::Dp2a { .. } | Inst::Video { .. } | Inst::Lop3Pred { .. } | Inst::Fns { .. } => Class::Integer,
        Inst::MinMax3 { ty, .. } => class_of_type(*ty),
        Inst::Mixed { .. } => Class::F32,
        Inst::CvtStochastic { .. } | Inst::CvtPack { .. } => Class::Convert,
        Inst::CreatePolicy { .. }
        | Inst::Alloca { .. }
        | Inst::StackSave { .. }
        | Inst::StackRestore { .. }
        | Inst::Mapa { .. }
        | Inst::GetCtaRank { .. } => Class::Move,
        Inst::Ldu { .. }
        | Inst::PrefetchUniform { .. }
        | Inst::PrefetchTensormap { .. }
        | Inst::Discard { .. }
        | Inst::ApplyPriority { .. }
        | Inst::LdMatrix { .. }
        | Inst::StMatrix { .. }
        | Inst::WmmaLoad { .. }
        | Inst::WmmaStore { .. }
        | Inst::CpAsync { .. }
        | Inst::BulkCopy(_)
        | Inst::BulkPrefetch { .. }
        | Inst::TensorCopy(_)
        | Inst::StBulk { .. }
        | Inst::StAsync { .. }
        | Inst::TensormapReplace { .. } => Class::Memory,
        Inst::AtomVector { .. } | Inst::BulkReduce(_) | Inst::RedAsync { .. } => Class::Atomic,
        Inst::MovMatrix { .. } => Class::Warp,
        Inst::Tcgen05(t) => match &**t {
            Tcgen05::Mma(_) => Class::Matrix,
            Tcgen05::Load { .. } | Tcgen05::Store { .. } | Tcgen05::Copy { .. } | Tcgen05::Shift { .. } => {
                Class::Memory
            }
            _ => Class::Sync,
        },
        Inst::Mma(_) | Inst::Wgmma(_) | Inst::Wmma(_) => Class::Matrix,
        Inst::WgmmaFence
        | Inst::WgmmaCommit
        | Inst::WgmmaWait { .. }
        | Inst::SetMaxNreg { .. }
        | Inst::CpAsyncCommit
        | Inst::CpAsyncWait { .. }
        | Inst::CpAsyncArrive { .. }
        | Inst::MbarrierInit { .. }
        | Inst::MbarrierInval { .. }
        | Inst::MbarrierArrive { .. }
        | Inst::MbarrierWait { .. }
        | Inst::MbarrierTx { .. }
        | Inst::MbarrierPendingCount { .. }
        | Inst::BulkCommit
        | Inst::BulkWait { .. }
        | Inst::TensormapCopyFence { .. }
        | Inst::ClusterBarrier { .. }
        | Inst::FenceRestricted { .. }
        | Inst::ProxyFence(_)
        | Inst::MbarrierInitFence => Class::Sync,
    }
}

fn class_of_type(ty: ScalarType) -> Class {
    use ScalarType::*;
    match ty {
        F32 | TF32 | F32x2 => Class::F32,
        F64 => Class::F64,
        F16 | F16x2 | BF16 | BF16x2 | E4M3x2 | E5M2x2 | E2M1x2 | E2M3x2 | E3M2x2 | UE8M0x2 | E4M3x4
        | E5M2x4 | E2M1x4 | E2M3x4 | E3M2x4 => Class::Half,
        Pred => Class::Move,
        B8 | B16 | B32 | B64 | B128 | U8 | U16 | U32 | U64 | S8 | S16 | S32 | S64 | U16x2 | S16x2 => {
            Class::Integer
        }
    }
}
