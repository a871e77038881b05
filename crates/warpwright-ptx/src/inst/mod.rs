//! Instructions as typed data: one variant of [`Inst`] per operand shape, one operator enum per family.
//!
//! Legal types and modifiers, the least version and target are not decided here but in the table of
//! [`isa`](crate::isa). Passes visit operands through [`Inst::visit`], so that an analysis cannot miss a use.

mod asynchronous;
mod opaque;
mod operand;
mod operator;
mod tcgen05;
mod tensor;
mod video;
mod visit;
mod wmma;

pub use asynchronous::*;
pub use opaque::*;
pub use operand::*;
pub use operator::*;
pub use tcgen05::*;
pub use tensor::*;
pub use video::*;
pub use visit::Role;
pub use wmma::*;

use crate::types::*;

/// Whom a call calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Callee {
    /// A function by its name: the symbol of a [`Symbol::Function`](crate::module::Symbol::Function).
    Direct(SymbolId),
    /// The function whose address a register holds.
    Prototype {
        /// The address.
        address: Reg,
        /// Index into [`Function::prototypes`](crate::module::Function::prototypes).
        prototype: u32,
    },
    /// The same, where the address is known to be one of a list.
    OneOf {
        /// The address.
        address: Reg,
        /// Index into [`Function::call_targets`](crate::module::Function::call_targets).
        targets: u32,
    },
}

/// One instruction without its guard. Destinations come first.
///
/// Instructions with many operands (`mma`, `wgmma`, bulk and tensor copies) have a struct of their own, boxed so that the
/// others stay small. What has no variant is [`Inst::Opaque`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the operand names of the form in each variant's documentation")]
pub enum Inst {
    /// `op.mods.ty dst, a`
    Unary { op: UnaryOp, ty: ScalarType, mods: Modifiers, dst: Reg, a: Operand },
    /// `op.mods.ty dst, a, b`. `ty` is the source type of `mul.wide`.
    Binary { op: BinaryOp, ty: ScalarType, mods: Modifiers, dst: Reg, a: Operand, b: Operand },
    /// `op.mods.ty dst, a, b, c`. `ty` is the type of `a` and `b` of `mad.wide`.
    Ternary { op: TernaryOp, ty: ScalarType, mods: Modifiers, dst: Reg, a: Operand, b: Operand, c: Operand },
    /// `bfi.ty dst, a, b, pos, len`
    Bfi { ty: ScalarType, dst: Reg, a: Operand, b: Operand, pos: Operand, len: Operand },
    /// `lop3.b32 dst, a, b, c, lut`
    Lop3 { dst: Reg, a: Operand, b: Operand, c: Operand, lut: u8 },
    /// `dp4a.aty.bty dst, a, b, c` with `aty`, `bty` in {u32, s32}
    Dp4a { a_ty: ScalarType, b_ty: ScalarType, dst: Reg, a: Operand, b: Operand, c: Operand },
    /// `setp.cmp{.bool}{.ftz}.ty dst{|dst_not}, a, b{, {!}c}`
    Setp {
        cmp: CmpOp,
        combine: Option<(BoolOp, PredUse)>,
        ty: ScalarType,
        ftz: bool,
        dst: Reg,
        dst_not: Option<Reg>,
        a: Operand,
        b: Operand,
    },
    /// `set.cmp{.bool}{.ftz}.dty.ty dst, a, b{, {!}c}`: all ones or 1.0 where true
    Set {
        cmp: CmpOp,
        combine: Option<(BoolOp, PredUse)>,
        dst_ty: ScalarType,
        ty: ScalarType,
        ftz: bool,
        dst: Reg,
        a: Operand,
        b: Operand,
    },
    /// `selp.ty dst, a, b, p`: a if p else b
    Selp { ty: ScalarType, dst: Reg, a: Operand, b: Operand, pred: Reg },
    /// `slct{.ftz}.ty.cty dst, a, b, c`: a if c >= 0 else b; `cty` is s32 or f32
    Slct { ty: ScalarType, c_ty: ScalarType, ftz: bool, dst: Reg, a: Operand, b: Operand, c: Operand },
    /// `mov.ty dst, src`; `src` may be a register, literal, special register or symbol address
    Mov { ty: ScalarType, dst: Reg, src: Operand },
    /// `mov.ty dst, {parts}`: the first part is the lowest
    Pack { ty: ScalarType, dst: Reg, parts: Vec<Operand> },
    /// `mov.ty {dsts}, src`: `None` is the sink `_`
    Unpack { ty: ScalarType, dsts: Vec<Option<Reg>>, src: Operand },
    /// `and/or/xor/not.pred`
    PredBinary { op: BoolOp, dst: Reg, a: Reg, b: Reg },
    /// `not.pred dst, a`
    PredNot { dst: Reg, a: Reg },
    /// `mov.pred dst, a`
    PredMov { dst: Reg, a: Operand },
    /// `cvt.mods.to.from dst, a` and the packing form `cvt.mods.f16x2.f32 dst, a, b` (a is the upper half)
    Cvt { to: ScalarType, from: ScalarType, mods: Modifiers, dst: Reg, a: Operand, b: Option<Operand> },
    /// `cvta.space.u64 dst, src` (to generic) or `cvta.to.space.u64 dst, src`
    Cvta { to_space: bool, space: StateSpace, ty: ScalarType, dst: Reg, src: Operand },
    /// `isspacep.space dst, a`
    Isspacep { space: StateSpace, dst: Reg, a: Operand },
    /// `ld...{.vN}.ty dsts, [addr]`; `dsts.len()` is the vector width, `None` is the sink `_`
    Ld {
        space: StateSpace,
        ty: ScalarType,
        ordering: Ordering,
        hints: CacheHints,
        /// `.nc`: read-only data through the texture path
        non_coherent: bool,
        dsts: Vec<Option<Reg>>,
        addr: Address,
    },
    /// `st...{.vN}.ty [addr], srcs`
    St {
        space: StateSpace,
        ty: ScalarType,
        ordering: Ordering,
        hints: CacheHints,
        srcs: Vec<Operand>,
        addr: Address,
    },
    /// `prefetch{.space}.level [addr]`
    Prefetch { space: StateSpace, level: PrefetchLevel, addr: Address },
    /// `atom...op.ty dst, [addr], b{, c}`; without `dst` it is `red`. `noftz` is mandatory for half additions.
    /// Where no ordering is written (`Ordering::WEAK`) it is `.relaxed.gpu`.
    Atom {
        op: AtomOp,
        space: StateSpace,
        ty: ScalarType,
        ordering: Ordering,
        noftz: bool,
        dst: Option<Reg>,
        addr: Address,
        b: Operand,
        c: Option<Operand>,
        policy: Option<Reg>,
    },
    /// `shfl.sync.mode.b32 dst{|pred}, a, b, c, mask`
    Shfl { mode: ShflMode, dst: Reg, pred: Option<Reg>, a: Operand, b: Operand, c: Operand, mask: Operand },
    /// `vote.sync.mode dst, {!}src, mask`; `dst` is a `.b32` for ballot and a predicate otherwise
    Vote { mode: VoteMode, dst: Reg, src: PredUse, mask: Operand },
    /// `match.{any,all}.sync.ty dst{|pred}, a, mask`
    Match { all: bool, ty: ScalarType, dst: Reg, pred: Option<Reg>, a: Operand, mask: Operand },
    /// `redux.sync.op{.abs}{.NaN}.ty dst, a, mask`
    Redux { op: ReduxOp, abs: bool, nan: bool, ty: ScalarType, dst: Reg, a: Operand, mask: Operand },
    /// `activemask.b32 dst`
    Activemask { dst: Reg },
    /// `elect.sync dst|pred, mask`
    Elect { dst: Option<Reg>, pred: Reg, mask: Operand },
    /// `bar.sync`/`barrier.sync`, `bar.arrive`, `bar.red`; `aligned` prints as `bar`, otherwise `barrier`
    Barrier { kind: BarrierKind, aligned: bool, id: Operand, count: Option<Operand> },
    /// `bar.warp.sync mask`
    WarpBarrier { mask: Operand },
    /// `nanosleep.u32 t`
    Nanosleep { duration: Operand },
    /// `call{.uni} (returns), callee, (args){, prototype}`. Results go to registers or `.param` variables, arguments are
    /// registers, literals or `.param` variables ([`Operand::Symbol`] with offset 0).
    Call { callee: Callee, uniform: bool, returns: Vec<Operand>, args: Vec<Operand> },
    /// `brkpt`
    Brkpt,
    /// `trap`: aborts the grid. A terminator in effect, but PTX treats it as an ordinary instruction.
    Trap,

    /// `dp2a.{lo|hi}.aty.bty dst, a, b, c`: 16-bit halves of `a` times two bytes of `b`
    Dp2a { high: bool, a_ty: ScalarType, b_ty: ScalarType, dst: Reg, a: Operand, b: Operand, c: Operand },
    /// `lop3.{or|and}.b32 dst|pred, a, b, c, lut, q`: `pred` is (result != 0) combined with `q`
    Lop3Pred {
        op: BoolOp,
        dst: Option<Reg>,
        pred: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
        lut: u8,
        q: PredUse,
    },
    /// `op{2|4}.dty.aty.bty{.sat}{.add} dst{.mask}, a{.select}, b{.select}, c`
    Video { form: VideoForm, dst: Reg, a: Operand, b: Operand, c: Operand },
    /// `fns.b32 dst, mask, base, offset`: the n-th set bit
    Fns { dst: Reg, mask: Operand, base: Operand, offset: Operand },
    /// `{min|max}.mods{.abs}.f32 dst, a, b, c`
    MinMax3 {
        max: bool,
        abs: bool,
        ty: ScalarType,
        mods: Modifiers,
        dst: Reg,
        a: Operand,
        b: Operand,
        c: Operand,
    },
    /// `{add|sub}.mods.f32.narrow dst, a, c` (a is narrow) and `fma.mods.f32.narrow dst, a, b, c` (a and b are narrow)
    Mixed {
        op: MixedOp,
        narrow: ScalarType,
        mods: Modifiers,
        dst: Reg,
        a: Operand,
        b: Option<Operand>,
        c: Operand,
    },
    /// `cvt.rs.mods.to.from dst, a, b, bits` and `cvt.rs.mods.tox4.from dst, {a, b, c, d}, bits`: stochastic rounding
    CvtStochastic {
        to: ScalarType,
        from: ScalarType,
        mods: Modifiers,
        dst: Reg,
        srcs: Vec<Operand>,
        bits: Operand,
    },
    /// `cvt.pack.sat.to.s32{.b32} dst, a, b{, c}`: `a` and `b` saturated and packed below the bits of `c`
    CvtPack { to: PackedInteger, dst: Reg, a: Operand, b: Operand, c: Option<Operand> },
    /// `ldu{.global}{.vN}.ty dsts, [addr]`: a load from an address that the warp agrees on
    Ldu { space: StateSpace, ty: ScalarType, dsts: Vec<Option<Reg>>, addr: Address },
    /// `atom...op{.noftz}.vN.ty {dsts}, [addr], {srcs}`; without `dsts` it is `red`. Atomic per element.
    AtomVector {
        op: AtomOp,
        space: StateSpace,
        ty: ScalarType,
        ordering: Ordering,
        noftz: bool,
        dsts: Option<Vec<Option<Reg>>>,
        addr: Address,
        srcs: Vec<Operand>,
        policy: Option<Reg>,
    },
    /// `prefetchu.L1 [addr]`
    PrefetchUniform { addr: Address },
    /// `prefetch{.space}.tensormap [addr]`; the space is `Generic`, `Param` or `Const`
    PrefetchTensormap { space: StateSpace, addr: Address },
    /// `discard{.global}.L2 [addr], 128`
    Discard { space: StateSpace, addr: Address },
    /// `applypriority{.global}.L2::evict_normal [addr], 128`
    ApplyPriority { space: StateSpace, addr: Address },
    /// `createpolicy...b64 dst, ...`
    CreatePolicy { dst: Reg, source: PolicySource },
    /// `alloca.ty dst, bytes{, align}`
    Alloca { ty: ScalarType, dst: Reg, bytes: Operand, align: Option<u32> },
    /// `stacksave.ty dst`
    StackSave { ty: ScalarType, dst: Reg },
    /// `stackrestore.ty src`
    StackRestore { ty: ScalarType, src: Reg },
    /// `pmevent{.mask} value`
    PmEvent { mask: bool, value: u16 },

    /// `mma.sync...`
    Mma(Box<Mma>),
    /// `ldmatrix.sync.aligned.shape.xN{.trans}{.shared}.element {dsts}, [addr]`
    LdMatrix { tiles: MatrixTiles, space: StateSpace, dsts: Vec<Reg>, addr: Address },
    /// `stmatrix.sync.aligned.shape.xN{.trans}{.shared}.element [addr], {srcs}`
    StMatrix { tiles: MatrixTiles, space: StateSpace, addr: Address, srcs: Vec<Operand> },
    /// `movmatrix.sync.aligned.m8n8.trans.b16 dst, a`
    MovMatrix { dst: Reg, a: Operand },
    /// `wmma.load.x.sync.aligned.layout.shape{.ss}.ty {dsts}, [addr]{, stride}`
    WmmaLoad { tile: Box<WmmaTile>, dsts: Vec<Reg> },
    /// `wmma.store.d.sync.aligned.layout.shape{.ss}.ty [addr], {srcs}{, stride}`
    WmmaStore { tile: Box<WmmaTile>, srcs: Vec<Operand> },
    /// `wmma.mma...`
    Wmma(Box<Wmma>),
    /// `wgmma.mma_async...`
    Wgmma(Box<Wgmma>),
    /// `wgmma.fence.sync.aligned`
    WgmmaFence,
    /// `wgmma.commit_group.sync.aligned`
    WgmmaCommit,
    /// `wgmma.wait_group.sync.aligned pending`
    WgmmaWait { pending: u32 },
    /// `tcgen05...`
    Tcgen05(Box<Tcgen05>),
    /// `setmaxnreg.{inc|dec}.sync.aligned.u32 count`
    SetMaxNreg { increase: bool, count: u32 },

    /// `cp.async.{ca|cg}.shared.global{.L2::cache_hint}{.L2::128B} [dst], [src], bytes{, limit}{, policy}`
    CpAsync {
        /// `Ca` or `Cg`.
        cache: CacheOp,
        l2_prefetch: L2Prefetch,
        dst: Address,
        src: Address,
        bytes: u32,
        limit: SourceLimit,
        policy: Option<Reg>,
    },
    /// `cp.async.commit_group`
    CpAsyncCommit,
    /// `cp.async.wait_group pending`; `None` is `cp.async.wait_all`
    CpAsyncWait { pending: Option<u32> },
    /// `cp.async.mbarrier.arrive{.noinc}{.shared}.b64 [addr]`
    CpAsyncArrive { noinc: bool, space: StateSpace, addr: Address },
    /// `mbarrier.init{.shared}.b64 [addr], count`
    MbarrierInit { space: StateSpace, addr: Address, count: Operand },
    /// `mbarrier.inval{.shared}.b64 [addr]`
    MbarrierInval { space: StateSpace, addr: Address },
    /// `mbarrier.arrive{_drop}{.noComplete}{.expect_tx}{.sem.scope}{.space}.b64 dst, [addr]{, count}`.
    /// Where no ordering is written (`Ordering::WEAK`) it is `.release.cta`.
    MbarrierArrive {
        /// `arrive_drop`: later phases expect one arrival less.
        drop: bool,
        no_complete: bool,
        /// The bytes of `.expect_tx`, added before the arrival.
        expect_tx: Option<Operand>,
        ordering: Ordering,
        space: StateSpace,
        /// Receives the state; `None` is the sink `_`, the only choice for another block's barrier.
        dst: Option<Reg>,
        addr: Address,
        count: Option<Operand>,
    },
    /// `mbarrier.{test|try}_wait{.parity}{.sem.scope}{.shared}.b64 dst, [addr], phase{, nanoseconds}`.
    /// Where no ordering is written (`Ordering::WEAK`) it is `.acquire.cta`.
    MbarrierWait {
        /// `try_wait` may suspend the thread, `test_wait` does not.
        try_wait: bool,
        ordering: Ordering,
        space: StateSpace,
        dst: Reg,
        addr: Address,
        phase: MbarrierPhase,
        /// How long `try_wait` suspends at most.
        nanoseconds: Option<Operand>,
    },
    /// `mbarrier.{expect|complete}_tx{.relaxed.scope}{.space}.b64 [addr], bytes`
    MbarrierTx { complete: bool, ordering: Ordering, space: StateSpace, addr: Address, bytes: Operand },
    /// `mbarrier.pending_count.b64 dst, state`
    MbarrierPendingCount { dst: Reg, state: Operand },
    /// `cp.async.bulk...`
    BulkCopy(Box<BulkCopy>),
    /// `cp.reduce.async.bulk...`
    BulkReduce(Box<BulkReduce>),
    /// `cp.async.bulk.prefetch.L2.global{.L2::cache_hint} [addr], bytes{, policy}`
    BulkPrefetch { addr: Address, bytes: Operand, policy: Option<Reg> },
    /// `cp.async.bulk.tensor...`, `cp.reduce.async.bulk.tensor...`, `cp.async.bulk.prefetch.tensor...`
    TensorCopy(Box<TensorCopy>),
    /// `cp.async.bulk.commit_group`
    BulkCommit,
    /// `cp.async.bulk.wait_group{.read} pending`; `read` waits for the sources only
    BulkWait { read: bool, pending: u32 },
    /// `st.bulk{.shared::cta} [addr], bytes, 0`
    StBulk { space: StateSpace, addr: Address, bytes: Operand },
    /// `st.async{.shared::cluster}.mbarrier::complete_tx::bytes{.vN}.ty [addr], srcs, [barrier]` and
    /// `st.async{.mmio}.release.scope{.global}.ty [addr], src`
    StAsync { space: StateSpace, ty: ScalarType, addr: Address, srcs: Vec<Operand>, order: AsyncOrder },
    /// `red.async.relaxed.cluster{.shared::cluster}.mbarrier::complete_tx::bytes.op.ty [addr], b, [barrier]` and
    /// `red.async{.mmio}.release.scope{.global}.op.ty [addr], b`
    RedAsync { op: AtomOp, space: StateSpace, ty: ScalarType, addr: Address, b: Operand, order: AsyncOrder },
    /// `tensormap.replace.tile.field{.space}.b1024.ty [addr]{, index}, value`
    TensormapReplace {
        field: TensormapField,
        space: StateSpace,
        addr: Address,
        /// The dimension, for fields with one value per dimension.
        index: Option<u32>,
        value: Operand,
    },
    /// `tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.scope.sync.aligned [dst], [src], 128`
    TensormapCopyFence { scope: Scope, dst: Address, src: Address },

    /// `barrier.cluster.{arrive|wait}{.sem}{.aligned}`; `Weak` if no semantics are written
    ClusterBarrier { arrive: bool, semantics: Semantics, aligned: bool },
    /// `mapa{.shared::cluster}.ty dst, a, rank`: the address of `a` in the block `rank` of the cluster
    Mapa { space: StateSpace, ty: ScalarType, dst: Reg, a: Operand, rank: Operand },
    /// `getctarank{.shared::cluster}.ty dst, a`
    GetCtaRank { space: StateSpace, ty: ScalarType, dst: Reg, a: Operand },
    /// `fence.semantics.scope`; `membar` reads as `fence.sc`
    Fence { semantics: FenceSemantics, scope: Scope },
    /// `fence.{acquire|release}.sync_restrict::*.cluster`: acquire for `.shared::cluster`, release for `.shared::cta`
    FenceRestricted { acquire: bool },
    /// `fence.proxy...`
    ProxyFence(ProxyFence),
    /// `fence.mbarrier_init.release.cluster`
    MbarrierInitFence,
    /// `griddepcontrol.{wait|launch_dependents}`
    GridDepControl { wait: bool },
    /// An instruction that the IR has no shape for.
    Opaque(Box<Opaque>),
}

/// An instruction with its optional guard (`@%p` or `@!%p`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// Lanes for which the guard is false skip the instruction.
    pub guard: Option<PredUse>,
    /// The operation.
    pub inst: Inst,
}

impl From<Inst> for Instruction {
    fn from(inst: Inst) -> Self {
        Self { guard: None, inst }
    }
}

/// How a basic block ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the operand names of the form in each variant's documentation")]
pub enum Terminator {
    /// Go to a block. Prints nothing if it is the next one.
    Jump { to: BlockId, uniform: bool },
    /// `then` where the predicate holds, `otherwise` elsewhere.
    Branch { pred: PredUse, uniform: bool, then: BlockId, otherwise: BlockId },
    /// `brx.idx{.uni} index, targets`: to the target with that number. Lanes with an index beyond the list go nowhere
    /// that is defined.
    BranchIndexed { index: Reg, uniform: bool, targets: Vec<BlockId> },
    /// End of the thread in an entry, return in a function.
    Ret,
    /// `exit`: end of the thread.
    Exit,
}

impl Terminator {
    /// The blocks that may follow.
    pub fn successors(&self) -> impl Iterator<Item = BlockId> {
        let (pair, list) = match self {
            Self::Jump { to, .. } => ([Some(*to), None], &[][..]),
            Self::Branch { then, otherwise, .. } => ([Some(*then), Some(*otherwise)], &[][..]),
            Self::BranchIndexed { targets, .. } => ([None, None], targets.as_slice()),
            Self::Ret | Self::Exit => ([None, None], &[][..]),
        };
        pair.into_iter().flatten().chain(list.iter().copied())
    }

    /// The register that decides where to go.
    pub fn condition(&self) -> Option<Reg> {
        match self {
            Self::Branch { pred, .. } => Some(pred.reg),
            Self::BranchIndexed { index, .. } => Some(*index),
            Self::Jump { .. } | Self::Ret | Self::Exit => None,
        }
    }

    /// Renames the blocks that may follow.
    pub fn rename_successors(&mut self, mut rename: impl FnMut(BlockId) -> BlockId) {
        match self {
            Self::Jump { to, .. } => *to = rename(*to),
            Self::Branch { then, otherwise, .. } => {
                *then = rename(*then);
                *otherwise = rename(*otherwise);
            }
            Self::BranchIndexed { targets, .. } => targets.iter_mut().for_each(|t| *t = rename(*t)),
            Self::Ret | Self::Exit => {}
        }
    }
}
