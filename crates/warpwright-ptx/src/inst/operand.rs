//! Operands: registers, literals, addresses, special registers.

use crate::types::spelled;

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
    /// The address of a symbol plus a byte offset; legal as the source of `mov`. In a call it names `.param` memory.
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

/// The base of an address.
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
        /// The two words of the address of a cooperative grid's workspace, the upper one first.
        EnvReg1 = "envreg1", EnvReg2 = "envreg2",
        ReservedSmemOffset1 = "reserved_smem_offset_1",
    }
}
