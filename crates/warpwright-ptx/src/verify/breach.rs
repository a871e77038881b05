//! How a module breaks a rule: one case for each thing that can be wrong, with the facts that its message shows.

use std::fmt;

use crate::inst::{AtomOp, Imm, PackedInteger, TensorCopyMode, TensormapField};
use crate::isa::ModifierError;
use crate::types::ScalarType::{self, BF16, BF16x2, F16, F16x2, F32, F64};
use crate::types::{CacheOp, L2Eviction, PtxVersion, Scope, Semantics, StateSpace, Target};

/// How a rule is broken. `Display` says it in words.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message of each case says what its fields are")]
pub enum Breach {
    // V-CFG
    #[error("the kernel has no block")]
    NoBlock,
    #[error("branch to block {to}, but the kernel has {blocks} blocks")]
    NoSuchBlock { to: u32, blocks: usize },
    #[error("this block cannot be reached")]
    Unreachable,
    #[error("no path from here ends the kernel: an endless loop")]
    Endless,
    #[error("control reaches the end of the function without `ret` or `exit`")]
    FallsOff,

    // V-DEF
    #[error("this register is a value and already has a definition")]
    SecondDefinition,
    #[error("the definition of this value does not come before the read on every path")]
    NotDominated,
    #[error("this .{ty} register is read but never assigned")]
    NeverAssigned { ty: ScalarType },
    #[error("this .{ty} register is read before it is assigned")]
    ReadBeforeAssigned { ty: ScalarType },
    #[error("this .{ty} register is not assigned on every path to this read")]
    NotAlwaysAssigned { ty: ScalarType },
    #[error("register {register} does not exist, the kernel has {registers}")]
    NoSuchRegister { register: u32, registers: usize },
    #[error("symbol {symbol} does not exist")]
    NoSuchSymbol { symbol: u32 },
    #[error("`{name}` is defined twice")]
    DefinedTwice { name: String },

    // V-USE
    #[error("the result is never used")]
    Unused,

    // V-TARGET
    #[error(".version {version} is newer than what is known here, {newest}, by which this is checked")]
    NewerVersion { version: PtxVersion, newest: PtxVersion },
    #[error("there is no target {target}")]
    NoSuchTarget { target: Target },
    #[error("target {target} needs .version {needed}, the module has {version}")]
    TargetNeedsVersion { target: Target, needed: PtxVersion, version: PtxVersion },
    #[error("its directives need .version {needed}, the module has {version}")]
    DirectivesNeedVersion { needed: PtxVersion, version: PtxVersion },
    #[error("this instruction needs .version {needed}, the module has {version}")]
    InstructionNeedsVersion { needed: PtxVersion, version: PtxVersion },
    #[error("its directives need sm_{sm} or later, the module is for {target}")]
    DirectivesNeedTarget { sm: u32, target: Target },
    #[error("this instruction needs sm_{sm} or later, the module is for {target}")]
    InstructionNeedsTarget { sm: u32, target: Target },
    #[error("this instruction exists on {} only, the module is for {target}", listed(only))]
    InstructionOnTargets { only: Vec<Target>, target: Target },
    #[error("static shared memory takes {bytes} bytes, {target} allows {limit}; use dynamic shared memory")]
    StaticShared { bytes: u64, target: Target, limit: u64 },
    #[error("the parameters take {bytes} bytes, .version {version} allows {limit}")]
    ParameterBytes { bytes: u64, version: PtxVersion, limit: u64 },
    #[error("{directive} has a dimension of 0")]
    ZeroDimension { directive: &'static str },
    #[error("{directive} asks for {threads} threads, a block has at most {limit}")]
    BlockThreads { directive: &'static str, threads: u64, limit: u64 },
    #[error(
        ".minnctapersm {blocks} with {threads} threads a block is ignored: a multiprocessor holds {limit} threads"
    )]
    MultiprocessorThreads { blocks: u32, threads: u64, limit: u64 },
    #[error(".minnctapersm is ignored without .maxntid or .reqntid")]
    MinBlocksAlone,
    #[error(".maxnreg {registers} is ignored: a thread has at most {limit} registers")]
    ThreadRegisters { registers: u32, limit: u32 },
    #[error("{first} and {second} exclude each other")]
    DirectivesExclude { first: &'static str, second: &'static str },
    #[error(".blocksareclusters needs .reqntid and .reqnctapercluster")]
    ClustersWithoutShape,
    #[error("a cluster of {blocks} blocks is not portable: at most {limit} unless the launch opts in")]
    PortableCluster { blocks: u64, limit: u64 },

    // V-CALL
    #[error("only functions can be called")]
    NotFunction,
    #[error("the prototype of the call does not exist")]
    NoSuchPrototype,
    #[error("the targets of the call are not functions of one shape")]
    TargetsDiffer,
    #[error("the address of a function is a .{ty} register, not 64 bits")]
    FunctionAddress { ty: ScalarType },
    #[error("the call has {given} {role}s, {callee} has {wanted}")]
    CallCount { role: CallRole, given: usize, callee: CallTarget, wanted: usize },
    #[error("{role} {number} of the call: {misfit}")]
    CallOperand { role: CallRole, number: usize, misfit: CallMisfit },
    #[error("`{name}` is passed to a call; it has no address to take")]
    AddressOfCallParam { name: String },
    #[error("the store to `{name}`, which is passed to a call, has a guard")]
    GuardedCallParam { name: String },
    #[error("device function `{name}` is declared, but neither defined nor `.extern`")]
    NotDefined { name: String },
    #[error("`{name}` has {results} results in `.param` memory")]
    ResultsInMemory { name: String, results: usize },

    // V-CONV
    #[error(
        "{wait}, but it stands {} that only some of them may run{}",
        if *guarded { "under a guard" } else { "in code" },
        reason(depends_on.as_deref())
    )]
    Divergent { wait: WholeWarp, guarded: bool, depends_on: Option<String> },
    #[error("there is no barrier {barrier}, only 0 to {last}")]
    NoSuchBarrier { barrier: i64, last: i64 },
    #[error("a barrier counts whole warps: {threads} is not a positive multiple of {warp}")]
    BarrierThreads { threads: i64, warp: i64 },
    #[error("the lane mask names no lane")]
    EmptyMask,

    // V-MEM
    #[error("parameter `{name}` is aligned to {align}, not a power of two")]
    ParameterAlignment { name: String, align: u32 },
    #[error("parameter `{name}` is a predicate, which has no place in memory")]
    ParameterPredicate { name: String },
    #[error("`{name}` cannot be declared in .{space} here")]
    DeclaredIn { name: String, space: StateSpace },
    #[error("`{name}` is aligned to {align}, not a power of two")]
    VariableAlignment { name: String, align: u32 },
    #[error("`{name}` is a predicate, which has no place in memory")]
    VariablePredicate { name: String },
    #[error("`{name}` has more than 2^64 bytes")]
    VariableTooLarge { name: String },
    #[error("`{name}` has no size; only dynamic shared memory is declared without one")]
    VariableWithoutSize { name: String },
    #[error("the initial value of `{name}` is longer than its {bytes} bytes")]
    InitialValueTooLong { name: String, bytes: u64 },
    #[error("`{name}` is in .{space}, which has no initial values")]
    InitialValueIn { name: String, space: StateSpace },
    #[error("isspacep asks about a named state space")]
    IsspacepGeneric,
    #[error("cvta converts between the generic space and a named one")]
    CvtaGeneric,
    #[error("no {access} in .{space}{}", access.refusal())]
    AccessIn { access: Accesses, space: StateSpace },
    #[error("this accesses .{accessed}, but it is given {} of `{name}` in .{space}{}",
        if *generic { "the generic address" } else { "the address" },
        if *accessed == StateSpace::Generic { "; convert it with cvta" } else { "" })]
    WrongSpace { accessed: StateSpace, generic: bool, name: String, space: StateSpace },
    #[error("no vector atomic in .{space}")]
    VectorAtomicIn { space: StateSpace },
    #[error("no bulk copy from .{from} to .{to}")]
    BulkCopyBetween { from: StateSpace, to: StateSpace },
    #[error("addresses of blocks are in .shared::cluster, not in .{space}")]
    BlockAddressIn { space: StateSpace },
    #[error("`.nc` reads global memory only")]
    NonCoherentSpace,
    #[error("cache priorities have no meaning in .local")]
    LocalPriority,
    #[error("the address is a .{ty} register; .{space} addresses are {}-bit integers",
        if matches!(space, StateSpace::Shared | StateSpace::SharedCluster) { "32 or 64" } else { "64" })]
    AddressRegister { ty: ScalarType, space: StateSpace },
    #[error(
        "this {access} of {bytes} bytes is misaligned: it is at offset {offset} of `{name}`, aligned to {align}"
    )]
    Misaligned { access: Accesses, bytes: u64, offset: i64, name: String, align: u64 },
    #[error("this {access} of {bytes} bytes needs `{name}` aligned to {bytes}; it is declared with {align}")]
    DeclaredAlignment { access: Accesses, bytes: u64, name: String, align: u64 },
    #[error("this {access} of {bytes} bytes at offset {offset} leaves `{name}`, which has {} bytes",
        size.map_or_else(|| "dynamic".to_owned(), |n| n.to_string()))]
    OutOfBounds { access: Accesses, bytes: u64, offset: i64, name: String, size: Option<u64> },
    #[error("the kernel takes a pointer, but stores nothing outside its block")]
    NoEffect,
    #[error("`.nc` and a memory order exclude each other")]
    NonCoherentOrder,
    #[error("{operation} has no `.{semantics}`")]
    NoSemantics { operation: &'static str, semantics: Semantics },
    #[error("`.{semantics}` has no meaning in .{space}")]
    SemanticsIn { semantics: Semantics, space: StateSpace },
    #[error("`.{semantics}` takes no scope, `.{scope}` is written")]
    NeedlessScope { semantics: Semantics, scope: Scope },
    #[error("`.mmio` needs scope `.sys`")]
    MmioScope,
    #[error("`.{semantics}` needs a scope")]
    MissingScope { semantics: Semantics },
    #[error("{operation} has no scope `.{scope}`")]
    NoScope { operation: &'static str, scope: Scope },
    #[error("this {operation} has no `.{op}`")]
    NoCacheOp { operation: &'static str, op: CacheOp },
    #[error("`.{op}` and `.{semantics}` exclude each other")]
    CacheOpAndSemantics { op: CacheOp, semantics: Semantics },
    #[error("`.{op}` and `.{priority}` exclude each other")]
    CacheOpAndPriority { op: CacheOp, priority: &'static str },
    #[error("`.{semantics}` and cache hints exclude each other")]
    SemanticsAndHints { semantics: Semantics },
    #[error("cache priorities and policies have no meaning in .{space}")]
    HintsIn { space: StateSpace },
    #[error("`.{priority}` is for vectors of 32 bytes, not {bytes}")]
    PriorityOfVector { priority: L2Eviction, bytes: u32 },
    #[error("a store does not prefetch")]
    StorePrefetches,
    #[error("a cache policy concerns global memory")]
    PolicyElsewhere,

    // V-TYPE
    #[error("there is no `{form}`")]
    NoSuchForm { form: String },
    #[error("`{form}`: {error}")]
    Modifiers { form: String, error: ModifierError },
    #[error("{op}.{ty} {} `.noftz`", if *needed { "needs" } else { "has no" })]
    Noftz { op: &'static str, ty: ScalarType, needed: bool },
    #[error("{operand} is a .{ty} register, not a predicate")]
    NotPredicate { operand: &'static str, ty: ScalarType },
    #[error("{operand} is a .{ty} register where .{needed} is needed")]
    RegisterType { operand: &'static str, ty: ScalarType, needed: ScalarType },
    #[error("{operand} must be a register")]
    NotRegister { operand: &'static str },
    #[error("{operand} is {} literal where .{needed} is needed{}", kind(*literal), advice(*needed))]
    LiteralType { operand: &'static str, literal: Imm, needed: ScalarType },
    #[error("{field} is a literal")]
    FieldLiteral { field: TensormapField },
    #[error("{operand} is a special register; only mov and cvt read those")]
    SpecialOperand { operand: &'static str },
    #[error("{operand} is the address of a symbol; only mov and cvta take that")]
    SymbolOperand { operand: &'static str },
    #[error("mov.{ty} does not read this special register, which is a .{special}")]
    MovSpecial { ty: ScalarType, special: ScalarType },
    #[error("cvt from .{from} does not read this special register")]
    CvtSpecial { from: ScalarType },
    #[error("an address does not fit mov.{ty}")]
    MovAddress { ty: ScalarType },
    #[error("an address is a .u32 or .u64, not a .{ty}")]
    AddressType { ty: ScalarType },
    #[error("there is no vector of {elements} elements of .{ty}")]
    NoVector { elements: usize, ty: ScalarType },
    #[error("a vector of {elements} elements of .{ty} exists in global memory only")]
    GlobalVector { elements: usize, ty: ScalarType },
    #[error("{parts} parts do not make up a .{ty}")]
    Parts { parts: usize, ty: ScalarType },
    #[error("{values} values do not make up a .{ty}")]
    ConvertedValues { values: usize, ty: ScalarType },
    #[error("{fragment} has {registers} registers where {needed} are needed")]
    FragmentRegisters { fragment: &'static str, registers: usize, needed: usize },
    #[error("tensor memory is allocated in powers of two of 32 to 512 columns, not {columns}")]
    TensorColumns { columns: i64 },
    #[error("as many results as operands are needed")]
    VectorResults,
    #[error("{coordinates} coordinates of a tensor of {dims} dimensions, {needed} are needed")]
    TensorCoordinates { coordinates: usize, dims: usize, needed: usize },
    #[error("im2col needs a tensor of 3 to 5 dimensions, not {dims}")]
    Im2colDimensions { dims: usize },
    #[error("{offsets} offsets where {needed} are needed")]
    TensorOffsets { offsets: usize, needed: usize },
    #[error("this direction has no mode `.{mode}`")]
    TensorDirection { mode: TensorCopyMode },
    #[error("a group has 1 or 2 blocks")]
    CtaGroup,
    #[error("the second priority is first or unchanged")]
    SecondPriority,
    #[error("setp.{ty} has two results, one per half")]
    OneResultOfHalves { ty: ScalarType },
    #[error("match.any has no predicate result")]
    MatchAnyPredicate,
    #[error("bar.arrive needs a count of threads")]
    ArriveWithoutCount,
    #[error("cvt.pack to .{to} has no third operand, or needs one")]
    CvtPackOperand { to: PackedInteger },
    #[error("cas compares with one operand and stores another")]
    CasOperands,
    #[error("{op} takes one operand")]
    OneOperand { op: AtomOp },
    #[error("red has no {op}; use atom")]
    NoReduction { op: AtomOp },
    #[error("an arrival that does not complete needs a count")]
    NoCompleteWithoutCount,
    #[error("an arrival that expects bytes is a single one")]
    ExpectingArrival,
    #[error("an arrival at another block's mbarrier returns nothing; write `_`")]
    RemoteArrival,
    #[error("test_wait has no time limit")]
    TestWaitLimit,
    #[error("only copies from global memory to a cluster are multicast")]
    MulticastBulk,
    #[error("only copies to a cluster are multicast")]
    MulticastTensor,
    #[error("only copies to global memory have a mask of bytes")]
    ByteMask,
    #[error("a bulk copy from .{from} to .{to} completes through {}",
        if *mbarrier { "an mbarrier" } else { "a bulk group" })]
    BulkCompletion { from: StateSpace, to: StateSpace, mbarrier: bool },
    #[error("{field} has no index, or needs one")]
    FieldIndex { field: TensormapField },
    #[error("cp.async.{cache} does not copy {bytes} bytes")]
    CpAsyncBytes { cache: CacheOp, bytes: u32 },
    #[error("cp.async reads 0 to {bytes} bytes of its source")]
    CpAsyncSource { bytes: u32 },
    #[error("{bytes} bytes: a bulk copy moves a multiple of 16")]
    BulkBytes { bytes: i64 },
    #[error("{registers} registers: a multiple of 8 from 24 to 256 is needed")]
    MaxRegisters { registers: u32 },
    #[error("there is no event {event}, only 0 to 15")]
    NoSuchEvent { event: u16 },
}

fn listed(targets: &[Target]) -> String {
    targets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn reason(depends_on: Option<&str>) -> String {
    depends_on.map_or_else(String::new, |what| format!(": it depends on {what}"))
}

fn kind(literal: Imm) -> &'static str {
    match literal {
        Imm::Int(_) => "an integer",
        Imm::F32(_) => "an f32",
        Imm::F64(_) => "an f64",
    }
}

fn advice(ty: ScalarType) -> &'static str {
    match ty {
        F16 | F16x2 | BF16 | BF16x2 => {
            "; half-precision operands take no literals, move it to a register first"
        }
        F32 => "; write it as 0fXXXXXXXX or with a decimal point",
        F64 => "; write it as 0dXXXXXXXXXXXXXXXX or with a decimal point",
        _ => "",
    }
}

/// Kind of access of an instruction to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Accesses {
    /// Loads.
    Load,
    /// Stores.
    Store,
    /// Reads, modifies and writes at once.
    Atomic,
    /// Fetches into a cache.
    Prefetch,
    /// Loads or stores a row of `ldmatrix` or `stmatrix`.
    Matrix,
    /// Uses an mbarrier of the block.
    Barrier,
    /// Uses an mbarrier of any block of the cluster.
    RemoteBarrier,
    /// Copies in bulk or from a tensor, at 16 bytes.
    Bulk,
    /// Reads a tensor map.
    Map,
}

impl Accesses {
    /// Why a space refuses the access, where that is a property of the space.
    const fn refusal(self) -> &'static str {
        match self {
            Self::Store => ", which is read-only",
            Self::Load => " of a result, which is write-only",
            _ => "",
        }
    }
}

impl fmt::Display for Accesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Load => "load",
            Self::Store => "store",
            Self::Atomic => "atomic",
            Self::Prefetch => "prefetch",
            Self::Matrix => "matrix row",
            Self::Barrier | Self::RemoteBarrier => "mbarrier",
            Self::Bulk => "bulk copy",
            Self::Map => "tensor map",
        })
    }
}

/// An instruction for which the lanes of a warp come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WholeWarp {
    /// A barrier of the block.
    Barrier,
    /// A warp-wide operation whose mask names all lanes.
    Lanes,
    /// An `.aligned` instruction.
    Aligned,
}

impl fmt::Display for WholeWarp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Barrier => "this barrier must be reached by all lanes of a warp",
            Self::Lanes => "this operation names all lanes of the warp",
            Self::Aligned => "this aligned instruction is executed by a whole warp",
        })
    }
}

/// A side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallRole {
    /// An argument.
    Argument,
    /// A result.
    Result,
}

impl fmt::Display for CallRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Argument => "argument",
            Self::Result => "result",
        })
    }
}

/// The callee of a call as its shape is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallTarget {
    /// A function by name.
    Function(String),
    /// The prototype of an indirect call.
    Prototype,
    /// One of a list of targets.
    Targets,
}

impl fmt::Display for CallTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(name) => write!(f, "`{name}`"),
            Self::Prototype => f.write_str("the prototype"),
            Self::Targets => f.write_str("each target"),
        }
    }
}

/// The type of a parameter of a callee: `.b8[16]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamType {
    /// Type of the elements.
    pub ty: ScalarType,
    /// Elements of an array.
    pub len: Option<u64>,
}

impl fmt::Display for ParamType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ".{}", self.ty)?;
        self.len.map_or(Ok(()), |n| write!(f, "[{n}]"))
    }
}

/// Why an argument or result does not fit its parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message of each case says what its fields are")]
pub enum CallMisfit {
    #[error("`{name}` is not a `.param` variable")]
    NotParam { name: String },
    #[error("only `.param` variables are passed by name")]
    NotVariable,
    #[error("`{name}` is a parameter or result of the caller; copy it to a `.param` variable")]
    Formal { name: String },
    #[error("`{name}` is {given} where {wanted} is needed")]
    Type { name: String, given: ParamType, wanted: ParamType },
    #[error("`{name}` is aligned to {given}, the parameter to {wanted}")]
    Alignment { name: String, given: u32, wanted: u32 },
    #[error("a .{ty} register where {wanted} is needed")]
    Register { ty: ScalarType, wanted: ParamType },
    #[error("a literal where {wanted} is needed")]
    Literal { wanted: ParamType },
    #[error("a special register; move it to a register first")]
    Special,
}
