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
    /// `.target sm_90, debug`: compiled for a debugger. The printed text has no debug information and does not say so.
    pub debug: bool,
    /// Module-scope variables, in order.
    pub variables: Vec<Variable>,
    /// Kernels and device functions, in order. A function that is only declared has no blocks.
    pub functions: Vec<Function>,
    /// `.alias name, of;`: further names of device functions.
    pub aliases: Vec<Alias>,
    /// Module-level `.pragma` strings.
    pub pragmas: Vec<String>,
    /// `.file` entries: what the first number of a `.loc` means.
    pub files: Vec<SourceFile>,
}

impl Module {
    /// A module without content.
    pub fn new(version: PtxVersion, target: Target) -> Self {
        Self {
            version,
            target,
            debug: false,
            variables: Vec::new(),
            functions: Vec::new(),
            aliases: Vec::new(),
            pragmas: Vec::new(),
            files: Vec::new(),
        }
    }

    /// The kernels, in order.
    pub fn entries(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(|f| f.kind == FunctionKind::Entry)
    }

    /// The kernel called `name`.
    pub fn entry(&self, name: &str) -> Option<&Function> {
        self.entries().find(|f| f.name == name)
    }

    /// Bytes of the static shared memory of a function: its own variables, and those of the module that it mentions.
    pub fn static_shared_bytes(&self, function: &Function) -> u64 {
        let mentioned = function.symbols.iter().filter_map(|symbol| match symbol {
            Symbol::ModuleVariable(i) => self.variables.get(*i as usize),
            _ => None,
        });
        let shared = mentioned.chain(&function.variables).filter(|v| v.space == StateSpace::Shared);
        shared.fold(0u64, |at, variable| {
            let at = at.next_multiple_of(u64::from(variable.align.max(1)));
            at.saturating_add(variable.bytes().unwrap_or(u64::MAX))
        })
    }

    /// Takes out every kernel but `name`; device functions stay.
    pub fn retain_entry(&mut self, name: &str) {
        let kept =
            (0u32..).zip(&self.functions).filter(|(_, f)| f.kind != FunctionKind::Entry || f.name == name);
        let kept: Vec<u32> = kept.map(|(i, _)| i).collect();
        self.reorder_functions(&kept);
    }

    /// Keeps the functions with these indices, in this order, and renames what refers to them. What refers to a function
    /// that is left out refers to one that does not exist.
    pub(crate) fn reorder_functions(&mut self, order: &[u32]) {
        let mut new_index = vec![u32::MAX; self.functions.len()];
        for (new, old) in (0u32..).zip(order) {
            new_index[*old as usize] = new;
        }
        let renamed = |index: u32| new_index.get(index as usize).copied().unwrap_or(u32::MAX);
        let rename = |symbol: &mut Symbol| {
            if let Symbol::Function(index) = symbol {
                *index = renamed(*index);
            }
        };
        let mut old: Vec<Option<Function>> =
            std::mem::take(&mut self.functions).into_iter().map(Some).collect();
        self.functions = order.iter().filter_map(|i| old.get_mut(*i as usize)?.take()).collect();
        self.functions.iter_mut().flat_map(|f| &mut f.symbols).for_each(rename);
        let inside = self.functions.iter_mut().flat_map(|f| &mut f.variables);
        let initializers = self.variables.iter_mut().chain(inside).filter_map(|v| v.init.as_mut());
        initializers.flat_map(|i| &mut i.addresses).for_each(|a| rename(&mut a.symbol));
        for Alias { function, of } in &mut self.aliases {
            (*function, *of) = (renamed(*function), renamed(*of));
        }
    }

    /// The function that runs when function `index` is called: itself unless it is an alias.
    pub fn callee(&self, index: u32) -> Option<&Function> {
        let of = self.aliases.iter().find(|a| a.function == index).map_or(index, |a| a.of);
        self.functions.get(of as usize)
    }
}

/// `.alias function, of;`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alias {
    /// The further name: index into [`Module::functions`] of a declaration.
    pub function: u32,
    /// The definition that it names: index into [`Module::functions`] of a definition.
    pub of: u32,
}

/// `.file index "name"`
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceFile {
    /// The number by which `.loc` refers to it.
    pub index: u32,
    /// The name as written.
    pub name: String,
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
    /// `.common`: variables in global memory of which the linker keeps one.
    Common,
}

/// A variable in a state space, at module scope or inside a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// `.global`, `.shared`, `.const`, `.local`, or `.param` for the arguments and results of calls
    pub space: StateSpace,
    /// Element type.
    pub ty: ScalarType,
    /// Alignment in bytes.
    pub align: u32,
    /// Number of elements; `None` is `[]`: the dynamic shared memory of the launch, or an extern array.
    pub len: Option<u64>,
    /// Whether it is written as an array.
    pub array: bool,
    /// Linkage of module-scope variables.
    pub linkage: Linkage,
    /// Its contents at load; `None` if nothing is written.
    pub init: Option<Initializer>,
    /// `.attribute(.managed)`: the host shares the variable.
    pub managed: bool,
    /// `.attribute(.unified(a, b))`: the name under which all devices share the variable.
    pub unified: Option<[u64; 2]>,
}

/// Contents of a variable when its module is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Initializer {
    /// The bytes, shorter than the variable if the rest is zero; zero where an address goes.
    pub bytes: Vec<u8>,
    /// Addresses that the loader fills in, by ascending offset.
    pub addresses: Vec<InitialAddress>,
}

impl FromIterator<u8> for Initializer {
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> Self {
        Self { bytes: bytes.into_iter().collect(), addresses: Vec::new() }
    }
}

/// An address in an initializer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InitialAddress {
    /// Byte offset in the variable.
    pub at: u64,
    /// Bytes that it takes: 1 under a mask, otherwise the element.
    pub bytes: u32,
    /// Its target: a module variable or a function.
    pub symbol: Symbol,
    /// Bytes added to the address of the symbol.
    pub addend: i64,
    /// `generic(symbol)` instead of the address in the symbol's own space.
    pub generic: bool,
    /// `0xff00(symbol)` is `Some(1)`: only that byte of the address, least significant first.
    pub byte: Option<u8>,
}

impl Variable {
    /// Size in bytes; 0 for dynamic shared memory. `None` if it passes 2^64.
    pub fn bytes(&self) -> Option<u64> {
        self.len.unwrap_or(0).checked_mul(u64::from(self.ty.bytes()))
    }
}

/// A parameter of a kernel or device function, or a result of a device function.
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
    /// The register that holds a `.reg` parameter of a device function; `None` for one in `.param` memory.
    pub register: Option<Reg>,
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
        Self { name: name.into(), ty, array: None, align: ty.bytes(), pointer: None, register: None }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.ty.bytes()).saturating_mul(self.array.unwrap_or(1))
    }
}

/// Meaning of a name inside a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symbol {
    /// Index into [`Function::params`].
    Param(u32),
    /// Index into [`Module::variables`].
    ModuleVariable(u32),
    /// Index into [`Function::variables`].
    LocalVariable(u32),
    /// Index into [`Function::returns`].
    Return(u32),
    /// Index into [`Module::functions`].
    Function(u32),
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
    /// `.blocksareclusters`: the launch counts clusters instead of blocks.
    pub blocks_are_clusters: bool,
    /// `.noreturn`: calls of this device function do not come back.
    pub no_return: bool,
    /// `.abi_preserve`
    pub abi_preserve: Option<u32>,
    /// `.abi_preserve_control`
    pub abi_preserve_control: Option<u32>,
}

/// Who starts a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FunctionKind {
    /// `.entry`: a kernel that a host launches.
    #[default]
    Entry,
    /// `.func`: a device function that other functions call.
    Device,
}

/// The shape of a function that is called through its address (`.callprototype`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Prototype {
    /// Results in order.
    pub returns: Vec<PrototypeParam>,
    /// Parameters in order.
    pub params: Vec<PrototypeParam>,
    /// `.noreturn`
    pub no_return: bool,
    /// `.abi_preserve`
    pub abi_preserve: Option<u32>,
    /// `.abi_preserve_control`
    pub abi_preserve_control: Option<u32>,
}

/// A parameter or result of a [`Prototype`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrototypeParam {
    /// Its type.
    pub ty: ScalarType,
    /// Number of elements if it is an array.
    pub array: Option<u64>,
    /// Alignment in bytes.
    pub align: u32,
    /// Whether it is a register instead of `.param` memory.
    pub in_register: bool,
}

impl PrototypeParam {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.ty.bytes()).saturating_mul(self.array.unwrap_or(1))
    }
}

impl From<&Param> for PrototypeParam {
    fn from(p: &Param) -> Self {
        Self { ty: p.ty, array: p.array, align: p.align, in_register: p.register.is_some() }
    }
}

/// A `.pragma` inside a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pragma {
    /// The block that it stands in.
    pub block: BlockId,
    /// The instruction that it stands before; the number of instructions for the terminator.
    pub index: u32,
    /// The string.
    pub text: String,
}

/// A line of the source that a compiler translated, as `.loc` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceLine {
    /// [`SourceFile::index`]
    pub file: u32,
    /// Line, from 1; 0 if there is none.
    pub line: u32,
    /// Column, from 1; 0 if it is not known.
    pub column: u32,
    /// Index into [`Function::lines`] of the call that inlined this line.
    pub inlined_at: Option<u32>,
}

/// From this instruction on a line of the source holds, until the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LineStart {
    /// The block.
    pub block: BlockId,
    /// The instruction in it; the number of instructions for the terminator.
    pub index: u32,
    /// Index into [`Function::lines`].
    pub line: u32,
}

/// A kernel (`.entry`) or device function (`.func`).
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Kernel or device function.
    pub kind: FunctionKind,
    /// Linkage; `Visible` for kernels that a host launches.
    pub linkage: Linkage,
    /// Results of a device function in order; empty for kernels.
    pub returns: Vec<Param>,
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
    /// Shapes of the functions that [`Callee::Prototype`] calls.
    pub prototypes: Vec<Prototype>,
    /// Lists of the functions that [`Callee::OneOf`] calls: symbols of functions.
    pub call_targets: Vec<Vec<SymbolId>>,
    /// Blocks in layout order, indexed by [`BlockId`]; the first is the entry. Control reaches a block only through
    /// terminators. The last block's terminator is never a jump to a block past the end. A device function without
    /// blocks is a declaration.
    pub blocks: Vec<Block>,
    /// Whether the text of the body ends without `ret` or `exit`, so that the last block's terminator is implied.
    pub falls_off: bool,
    /// `.pragma` strings by position.
    pub pragmas: Vec<Pragma>,
    /// Lines of the original source, in the order of the text.
    pub lines: Vec<SourceLine>,
    /// Where in the function which line begins, by ascending position.
    pub line_starts: Vec<LineStart>,
}

impl Function {
    /// A kernel with an empty body.
    pub fn entry(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind: FunctionKind::Entry,
            linkage: Linkage::Visible,
            returns: Vec::new(),
            params: Vec::new(),
            directives: Directives::default(),
            registers: Vec::new(),
            variables: Vec::new(),
            symbols: Vec::new(),
            prototypes: Vec::new(),
            call_targets: Vec::new(),
            blocks: Vec::new(),
            falls_off: false,
            pragmas: Vec::new(),
            lines: Vec::new(),
            line_starts: Vec::new(),
        }
    }

    /// A device function that is declared and not defined.
    pub fn device(name: impl Into<String>) -> Self {
        Self { kind: FunctionKind::Device, linkage: Linkage::Internal, ..Self::entry(name) }
    }

    /// Whether this is a device function whose body is elsewhere.
    pub fn is_declaration(&self) -> bool {
        self.kind == FunctionKind::Device && self.blocks.is_empty()
    }

    /// How the function is called.
    pub fn prototype(&self) -> Prototype {
        Prototype {
            returns: self.returns.iter().map(Into::into).collect(),
            params: self.params.iter().map(Into::into).collect(),
            no_return: self.directives.no_return,
            abi_preserve: self.directives.abi_preserve,
            abi_preserve_control: self.directives.abi_preserve_control,
        }
    }

    /// The line of the original source behind instruction `index` of a block, and the calls that inlined it, innermost
    /// first; the terminator is `index == instructions.len()`.
    pub fn source_lines(&self, block: BlockId, index: usize) -> impl Iterator<Item = &SourceLine> {
        let place = (block, u32::try_from(index).unwrap_or(u32::MAX));
        let before = self.line_starts.partition_point(|s| (s.block, s.index) <= place);
        let first = before.checked_sub(1).map(|at| self.line_starts[at].line);
        let mut steps = 0;
        std::iter::successors(first.and_then(|id| self.lines.get(id as usize)), move |line| {
            steps += 1;
            // A cycle cannot be written in text.
            self.lines.get(line.inlined_at? as usize).filter(|_| steps < 64)
        })
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
    /// A block without locations.
    pub fn new(instructions: Vec<Instruction>, terminator: Terminator) -> Self {
        Self { instructions, terminator, locations: Vec::new() }
    }

    /// The location of instruction `index`, or of the terminator if `index == instructions.len()`.
    pub fn location(&self, index: usize) -> SourceLoc {
        self.locations.get(index).copied().unwrap_or(SourceLoc::Unknown)
    }
}
