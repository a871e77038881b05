//! Instructions as typed data: one variant of [`Inst`] per operand shape, one operator enum per family.
//!
//! What is legal (types, modifiers, minimum version and target) is not decided here but in the table of
//! [`isa`](crate::isa). Passes visit operands through [`Inst::visit`], so that an analysis cannot miss a use.

use crate::types::*;

/// A virtual register of one function, an index into [`Function::registers`](crate::module::Function::registers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u32);

/// A basic block of one function, an index into [`Function::blocks`](crate::module::Function::blocks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// A named variable or parameter: an index into [`Function::symbols`](crate::module::Function::symbols).
///
/// Every name that an instruction can mention, module-scope variables and parameters included, has an entry there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SymbolId(pub u32);

/// A literal. Floats are kept as bits so that NaNs and signed zeros survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Imm {
    /// An integer literal, sign- or zero-extended to 64 bits as written.
    Int(i64),
    /// `0fXXXXXXXX`
    F32(u32),
    /// `0dXXXXXXXXXXXXXXXX`
    F64(u64),
}

/// A source operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// A literal.
    Imm(Imm),
    /// A special register; legal as the source of `mov` and `cvt` only.
    Special(SpecialReg),
    /// The address of a symbol plus a byte offset; legal as the source of `mov`.
    Symbol(SymbolId, i64),
}

impl From<Reg> for Operand {
    fn from(r: Reg) -> Self {
        Self::Reg(r)
    }
}

impl Operand {
    /// The integer literal `v`.
    pub const fn int(v: i64) -> Self {
        Self::Imm(Imm::Int(v))
    }

    /// The f32 literal `v`.
    pub const fn f32(v: f32) -> Self {
        Self::Imm(Imm::F32(v.to_bits()))
    }

    /// The f64 literal `v`.
    pub const fn f64(v: f64) -> Self {
        Self::Imm(Imm::F64(v.to_bits()))
    }
}

/// A predicate used as a source, possibly negated (`!%p1`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PredUse {
    /// The predicate register.
    pub reg: Reg,
    /// Whether it is negated.
    pub negated: bool,
}

/// What an address starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressBase {
    /// A register that holds an address.
    Reg(Reg),
    /// A variable or parameter.
    Symbol(SymbolId),
    /// An absolute address.
    Absolute,
}

/// `[base + offset]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Where it starts.
    pub base: AddressBase,
    /// Bytes added to the base.
    pub offset: i64,
}

impl Address {
    /// `[reg + offset]`
    pub const fn reg(reg: Reg, offset: i64) -> Self {
        Self { base: AddressBase::Reg(reg), offset }
    }

    /// `[symbol + offset]`
    pub const fn symbol(symbol: SymbolId, offset: i64) -> Self {
        Self { base: AddressBase::Symbol(symbol), offset }
    }
}

/// A component of `%tid`, `%ntid`, `%ctaid`, ...
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// `.x`
    X,
    /// `.y`
    Y,
    /// `.z`
    Z,
}

/// A special register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpecialReg {
    /// Thread index in the block.
    Tid(Axis),
    /// Block size.
    Ntid(Axis),
    /// Block index in the grid.
    Ctaid(Axis),
    /// Grid size.
    Nctaid(Axis),
    /// Block index in the cluster.
    ClusterCtaid(Axis),
    /// Cluster size.
    ClusterNctaid(Axis),
    /// Cluster index in the grid.
    ClusterId(Axis),
    /// Number of clusters in the grid.
    NclusterId(Axis),
    /// Any special register without components.
    Plain(PlainSpecial),
}

spelled! {
    /// Special registers without components, spelled without the leading `%`.
    pub enum PlainSpecial {
        LaneId = "laneid", WarpId = "warpid", NwarpId = "nwarpid", SmId = "smid", NsmId = "nsmid", GridId = "gridid",
        LanemaskEq = "lanemask_eq", LanemaskLe = "lanemask_le", LanemaskLt = "lanemask_lt",
        LanemaskGe = "lanemask_ge", LanemaskGt = "lanemask_gt",
        Clock = "clock", ClockHi = "clock_hi", Clock64 = "clock64",
        GlobalTimer = "globaltimer", GlobalTimerLo = "globaltimer_lo", GlobalTimerHi = "globaltimer_hi",
        ClusterCtaRank = "cluster_ctarank", ClusterNctaRank = "cluster_nctarank",
        IsExplicitCluster = "is_explicit_cluster",
        TotalSmemSize = "total_smem_size", DynamicSmemSize = "dynamic_smem_size", AggrSmemSize = "aggr_smem_size",
    }
}

spelled! {
    /// One-source operators.
    pub enum UnaryOp {
        Neg = "neg", Abs = "abs", Not = "not", Cnot = "cnot", Popc = "popc", Clz = "clz", Brev = "brev",
        Bfind = "bfind", BfindShiftAmt = "bfind.shiftamt",
        Rcp = "rcp", Sqrt = "sqrt", Rsqrt = "rsqrt", Ex2 = "ex2", Lg2 = "lg2", Sin = "sin", Cos = "cos",
        Tanh = "tanh",
        /// `testp.*`: classifies a float; the destination is a predicate.
        TestFinite = "testp.finite", TestInfinite = "testp.infinite", TestNumber = "testp.number",
        TestNan = "testp.notanumber", TestNormal = "testp.normal", TestSubnormal = "testp.subnormal",
    }
}

spelled! {
    /// Two-source operators.
    pub enum BinaryOp {
        Add = "add", Sub = "sub", Mul = "mul", MulLo = "mul.lo", MulHi = "mul.hi", MulWide = "mul.wide",
        Mul24Lo = "mul24.lo", Mul24Hi = "mul24.hi",
        Div = "div", Rem = "rem", Min = "min", Max = "max",
        And = "and", Or = "or", Xor = "xor", Shl = "shl", Shr = "shr", Copysign = "copysign",
        AddCc = "add.cc", Addc = "addc", AddcCc = "addc.cc", SubCc = "sub.cc", Subc = "subc", SubcCc = "subc.cc",
        Bmsk = "bmsk.clamp", BmskWrap = "bmsk.wrap", Szext = "szext.clamp", SzextWrap = "szext.wrap",
    }
}

spelled! {
    /// Three-source operators.
    pub enum TernaryOp {
        Fma = "fma", Mad = "mad", MadLo = "mad.lo", MadHi = "mad.hi", MadWide = "mad.wide",
        Mad24Lo = "mad24.lo", Mad24Hi = "mad24.hi",
        MadLoCc = "mad.lo.cc", MadHiCc = "mad.hi.cc", MadcLo = "madc.lo", MadcHi = "madc.hi",
        MadcLoCc = "madc.lo.cc", MadcHiCc = "madc.hi.cc",
        Sad = "sad", Bfe = "bfe",
        ShfLWrap = "shf.l.wrap", ShfLClamp = "shf.l.clamp", ShfRWrap = "shf.r.wrap", ShfRClamp = "shf.r.clamp",
        Prmt = "prmt", PrmtF4e = "prmt.f4e", PrmtB4e = "prmt.b4e", PrmtRc8 = "prmt.rc8", PrmtEcl = "prmt.ecl",
        PrmtEcr = "prmt.ecr", PrmtRc16 = "prmt.rc16",
    }
}

/// Modifiers of an arithmetic instruction. What may be set for which operator is in [`isa`](crate::isa).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Modifiers {
    /// `.rn`, `.rz`, ...
    pub rounding: Option<Rounding>,
    /// `.approx`
    pub approx: bool,
    /// `.full` (`div.full`)
    pub full: bool,
    /// `.ftz`: subnormal inputs and results become zero.
    pub ftz: bool,
    /// `.sat`: clamp to \[0, 1\], or saturate integers.
    pub sat: bool,
    /// `.relu`: clamp negatives to 0.
    pub relu: bool,
    /// `.NaN`: min and max propagate NaN.
    pub nan: bool,
    /// `.xorsign.abs`
    pub xorsign_abs: bool,
    /// `.satfinite` (`cvt` only)
    pub satfinite: bool,
}

impl Modifiers {
    /// No modifier.
    pub const NONE: Self = Self {
        rounding: None,
        approx: false,
        full: false,
        ftz: false,
        sat: false,
        relu: false,
        nan: false,
        xorsign_abs: false,
        satfinite: false,
    };
    /// `.rn`
    pub const RN: Self = Self { rounding: Some(Rounding::Rn), ..Self::NONE };
    /// `.approx`
    pub const APPROX: Self = Self { approx: true, ..Self::NONE };

    /// Only the given rounding.
    pub const fn rounded(rounding: Rounding) -> Self {
        Self { rounding: Some(rounding), ..Self::NONE }
    }

    /// The same with `.ftz`.
    pub const fn with_ftz(self) -> Self {
        Self { ftz: true, ..self }
    }
}

spelled! {
    /// Comparisons. The `u` forms are true if an operand is NaN; `lo ls hi hs` compare unsigned integers.
    pub enum CmpOp {
        Eq = "eq", Ne = "ne", Lt = "lt", Le = "le", Gt = "gt", Ge = "ge",
        Lo = "lo", Ls = "ls", Hi = "hi", Hs = "hs",
        Equ = "equ", Neu = "neu", Ltu = "ltu", Leu = "leu", Gtu = "gtu", Geu = "geu", Num = "num", Nan = "nan",
    }
}

spelled! {
    /// How `setp` combines its comparison with a third predicate.
    pub enum BoolOp { And = "and", Or = "or", Xor = "xor" }
}

spelled! {
    /// Read-modify-write operators of `atom` and `red`.
    pub enum AtomOp {
        Add = "add", Min = "min", Max = "max", Inc = "inc", Dec = "dec", And = "and", Or = "or", Xor = "xor",
        Exch = "exch", Cas = "cas",
    }
}

spelled! {
    /// Which lane a shuffle reads.
    pub enum ShflMode { Up = "up", Down = "down", Bfly = "bfly", Idx = "idx" }
}

spelled! {
    /// What a vote returns.
    pub enum VoteMode { All = "all", Any = "any", Uni = "uni", Ballot = "ballot" }
}

spelled! {
    /// Operators of `redux.sync`.
    pub enum ReduxOp { Add = "add", Min = "min", Max = "max", And = "and", Or = "or", Xor = "xor" }
}

spelled! {
    /// Reductions on a barrier.
    pub enum BarRedOp { Popc = "popc", And = "and", Or = "or" }
}

spelled! {
    /// How far a prefetch reaches.
    pub enum PrefetchLevel { L1 = "L1", L2 = "L2" }
}

/// Cache behaviour of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheHints {
    /// `.ca`, `.cg`, `.cs`, ...
    pub op: CacheOp,
    /// `.L1::evict_*`
    pub l1: L1Eviction,
    /// `.L2::128B`, ...
    pub l2_prefetch: L2Prefetch,
    /// `.L2::cache_hint` with the 64-bit register that holds the policy.
    pub policy: Option<Reg>,
}

impl CacheHints {
    /// Nothing is said.
    pub const NONE: Self = Self {
        op: CacheOp::Default,
        l1: L1Eviction::Default,
        l2_prefetch: L2Prefetch::Default,
        policy: None,
    };
}

/// What a named barrier instruction does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the operand names of the form in each variant's documentation")]
pub enum BarrierKind {
    /// Arrive and wait.
    Sync,
    /// Arrive only; needs a count.
    Arrive,
    /// Arrive, wait and reduce a predicate; the destination is `.u32` for `popc` and a predicate otherwise.
    Reduce { op: BarRedOp, dst: Reg, src: PredUse },
}

/// One instruction without its guard. Destinations come first.
///
/// The tensor-core and asynchronous families (`mma`, `ldmatrix`, `cp.async`, `mbarrier`, bulk copies, `wgmma`) get one
/// variant per operand shape in the same way.
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
    },
    /// `shfl.sync.mode.b32 dst{|pred}, a, b, c, mask`
    Shfl { mode: ShflMode, dst: Reg, pred: Option<Reg>, a: Operand, b: Operand, c: Operand, mask: Operand },
    /// `vote.sync.mode dst, {!}src, mask`; `dst` is a `.b32` for ballot and a predicate otherwise
    Vote { mode: VoteMode, dst: Reg, src: PredUse, mask: Operand },
    /// `match.{any,all}.sync.ty dst{|pred}, a, mask`
    Match { all: bool, ty: ScalarType, dst: Reg, pred: Option<Reg>, a: Operand, mask: Operand },
    /// `redux.sync.op.ty dst, a, mask`
    Redux { op: ReduxOp, ty: ScalarType, dst: Reg, a: Operand, mask: Operand },
    /// `activemask.b32 dst`
    Activemask { dst: Reg },
    /// `elect.sync dst|pred, mask`
    Elect { dst: Option<Reg>, pred: Reg, mask: Operand },
    /// `bar.sync`/`barrier.sync`, `bar.arrive`, `bar.red`; `aligned` prints as `bar`, otherwise `barrier`
    Barrier { kind: BarrierKind, aligned: bool, id: Operand, count: Option<Operand> },
    /// `bar.warp.sync mask`
    WarpBarrier { mask: Operand },
    /// `fence{.sc|.acq_rel|...}.scope`; `membar` reads as `fence.sc`
    Fence { sc: bool, scope: Scope },
    /// `nanosleep.u32 t`
    Nanosleep { duration: Operand },
    /// `brkpt`
    Brkpt,
    /// `trap`: aborts the grid. A terminator in effect, but PTX treats it as an ordinary instruction.
    Trap,
}

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
            Inst::Atom { dst, addr, b, c, .. } => {
                addr!(addr); opnd!(b);
                optional!(c);
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
            Inst::Fence { .. } | Inst::Brkpt | Inst::Trap => {}
        }
    }};
}

impl Inst {
    /// Calls `f` for every register that the instruction reads or writes, reads first. The guard is not included.
    pub fn visit(&self, mut f: impl FnMut(Role, Reg)) {
        let mut f = |role: Role, r: &Reg| f(role, *r);
        visit_body!(self, f, &);
    }

    /// The same with mutable access, to rename registers.
    pub fn visit_mut(&mut self, mut f: impl FnMut(Role, &mut Reg)) {
        visit_body!(self, f, &mut);
    }

    /// Whether executing the instruction matters beyond its destinations (memory, synchronisation, control).
    pub fn has_side_effects(&self) -> bool {
        matches!(
            self,
            Inst::St { .. }
                | Inst::Atom { .. }
                | Inst::Barrier { .. }
                | Inst::WarpBarrier { .. }
                | Inst::Fence { .. }
                | Inst::Nanosleep { .. }
                | Inst::Shfl { .. }
                | Inst::Vote { .. }
                | Inst::Match { .. }
                | Inst::Redux { .. }
                | Inst::Elect { .. }
                | Inst::Prefetch { .. }
                | Inst::Brkpt
                | Inst::Trap
        ) || matches!(self, Inst::Ld { ordering, .. } if *ordering != Ordering::WEAK)
    }
}

/// An instruction with its optional guard (`@%p` or `@!%p`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// Lanes for which the guard is false skip the instruction.
    pub guard: Option<PredUse>,
    /// What it does.
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
    /// End of the thread in an entry, return in a function.
    Ret,
    /// `exit`: end of the thread.
    Exit,
}

impl Terminator {
    /// The blocks that may follow.
    pub fn successors(&self) -> impl Iterator<Item = BlockId> {
        let pair = match self {
            Self::Jump { to, .. } => [Some(*to), None],
            Self::Branch { then, otherwise, .. } => [Some(*then), Some(*otherwise)],
            Self::Ret | Self::Exit => [None, None],
        };
        pair.into_iter().flatten()
    }
}
