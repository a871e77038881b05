//! Modules, entries, parameters, variables, blocks and source locations.

use std::panic::Location;

use crate::inst::*;
use crate::types::*;

/// A PTX module: the unit that the driver loads.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// `.version`
    pub version: PtxVersion,
    /// `.target`
    pub target: Target,
    /// Module-scope variables, in order.
    pub variables: Vec<Variable>,
    /// Kernels, in order.
    pub functions: Vec<Function>,
}

impl Module {
    /// A module without content.
    pub fn new(version: PtxVersion, target: Target) -> Self {
        Self { version, target, variables: Vec::new(), functions: Vec::new() }
    }

    /// The kernel called `name`.
    pub fn entry(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|f| f.name == name)
    }
}

/// Who can see a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Linkage {
    /// This module only.
    #[default]
    Internal,
    /// `.visible`
    Visible,
    /// `.extern`
    Extern,
    /// `.weak`
    Weak,
}

/// A variable in a state space, at module scope or inside a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// `.global`, `.shared`, `.const` or `.local`
    pub space: StateSpace,
    /// Element type.
    pub ty: ScalarType,
    /// Alignment in bytes.
    pub align: u32,
    /// Number of elements; `None` is `[]`, the dynamic shared memory of the launch.
    pub len: Option<u64>,
    /// Whether it is written as an array.
    pub array: bool,
    /// Linkage of module-scope variables.
    pub linkage: Linkage,
    /// Initial bytes, shorter than the variable if the rest is zero; `None` if nothing is written.
    pub init: Option<Vec<u8>>,
}

impl Variable {
    /// Size in bytes; 0 for dynamic shared memory. `None` if it passes 2^64.
    pub fn bytes(&self) -> Option<u64> {
        self.len.unwrap_or(0).checked_mul(u64::from(self.ty.bytes()))
    }
}

/// A kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Its type; `.b8` for byte arrays.
    pub ty: ScalarType,
    /// Number of elements if it is an array (`.param .align 64 .b8 map[128]`).
    pub array: Option<u64>,
    /// Alignment in bytes.
    pub align: u32,
    /// `.ptr` attributes: the space that it points to and the alignment of the pointee, as written.
    pub pointer: Option<PointerAttr>,
}

/// `.ptr{.space}{.align n}` of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PointerAttr {
    /// The state space; `Generic` if none is written.
    pub space: StateSpace,
    /// Alignment of the pointee.
    pub align: Option<u32>,
}

impl Param {
    /// A scalar parameter with its natural alignment.
    pub fn scalar(name: impl Into<String>, ty: ScalarType) -> Self {
        Self { name: name.into(), ty, array: None, align: ty.bytes(), pointer: None }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.ty.bytes()).saturating_mul(self.array.unwrap_or(1))
    }
}

/// What a name means inside a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symbol {
    /// Index into [`Function::params`].
    Param(u32),
    /// Index into [`Module::variables`].
    ModuleVariable(u32),
    /// Index into [`Function::variables`].
    LocalVariable(u32),
}

/// Whether a register may have several definitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegKind {
    /// One definition, which dominates its uses.
    Value,
    /// Assigned where and as often as needed: loop-carried state.
    Variable,
}

/// A virtual register.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RegInfo {
    /// Its type.
    pub ty: ScalarType,
    /// How it is defined.
    pub kind: RegKind,
}

/// Performance and cluster directives of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Directives {
    /// `.maxntid`
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`
    pub required_threads: Option<[u32; 3]>,
    /// `.minnctapersm`
    pub min_blocks_per_sm: Option<u32>,
    /// `.maxnreg`
    pub max_registers: Option<u32>,
    /// `.reqnctapercluster`
    pub cluster: Option<[u32; 3]>,
    /// `.explicitcluster`
    pub explicit_cluster: bool,
    /// `.maxclusterrank`
    pub max_cluster_rank: Option<u32>,
}

/// A kernel (`.entry`).
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Linkage; `Visible` for kernels that a host launches.
    pub linkage: Linkage,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Performance directives.
    pub directives: Directives,
    /// Registers, indexed by [`Reg`].
    pub registers: Vec<RegInfo>,
    /// Variables declared in the body.
    pub variables: Vec<Variable>,
    /// Every name that instructions mention, indexed by [`SymbolId`].
    pub symbols: Vec<Symbol>,
    /// Blocks in layout order, indexed by [`BlockId`]; the first is the entry. Control reaches a block only through
    /// terminators. The last block's terminator is never a jump to a block past the end.
    pub blocks: Vec<Block>,
}

impl Function {
    /// A kernel with an empty body.
    pub fn entry(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            linkage: Linkage::Visible,
            params: Vec::new(),
            directives: Directives::default(),
            registers: Vec::new(),
            variables: Vec::new(),
            symbols: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// Adds a register.
    pub fn new_reg(&mut self, ty: ScalarType, kind: RegKind) -> Reg {
        let id = Reg(u32::try_from(self.registers.len()).unwrap_or(u32::MAX));
        self.registers.push(RegInfo { ty, kind });
        id
    }

    /// The type of a register.
    pub fn reg_type(&self, r: Reg) -> Option<ScalarType> {
        self.registers.get(r.0 as usize).map(|i| i.ty)
    }

    /// The id of a symbol, adding it if it is new.
    pub fn symbol(&mut self, symbol: Symbol) -> SymbolId {
        let at = self.symbols.iter().position(|s| *s == symbol).unwrap_or_else(|| {
            self.symbols.push(symbol);
            self.symbols.len() - 1
        });
        SymbolId(u32::try_from(at).unwrap_or(u32::MAX))
    }

    /// Offsets of the parameters in the launch buffer, and its size.
    pub fn param_layout(&self) -> (Vec<u64>, u64) {
        let mut at = 0u64;
        let offsets = self
            .params
            .iter()
            .map(|p| {
                at = at.next_multiple_of(u64::from(p.align.max(1)));
                let here = at;
                at = at.saturating_add(p.bytes());
                here
            })
            .collect();
        (offsets, at)
    }
}

/// Where an instruction came from: the Rust line that recorded it, or the line of the text that was parsed.
#[derive(Clone, Copy, Debug)]
pub enum SourceLoc {
    /// Not known.
    Unknown,
    /// The Rust line that recorded it.
    Rust(&'static Location<'static>),
    /// 1-based line and column of the PTX text.
    Ptx {
        /// Line, from 1.
        line: u32,
        /// Column, from 1.
        column: u32,
    },
}

/// A basic block. Locations stand beside the instructions and do not take part in equality.
#[derive(Clone, Debug)]
pub struct Block {
    /// Instructions in order.
    pub instructions: Vec<Instruction>,
    /// How it ends.
    pub terminator: Terminator,
    /// One location per instruction, then one for the terminator; may be shorter (unknown).
    pub locations: Vec<SourceLoc>,
}

impl PartialEq for Block {
    fn eq(&self, other: &Self) -> bool {
        self.instructions == other.instructions && self.terminator == other.terminator
    }
}

impl Block {
    /// The location of instruction `index`, or of the terminator if `index == instructions.len()`.
    pub fn location(&self, index: usize) -> SourceLoc {
        self.locations.get(index).copied().unwrap_or(SourceLoc::Unknown)
    }
}
