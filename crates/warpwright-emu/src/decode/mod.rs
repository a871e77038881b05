//! From the IR of one kernel to flat code with resolved operands.

mod alu;
pub(crate) mod asynchronous;
mod class;
mod cluster;
mod control;
mod convert;
mod copies;
mod defined;
pub(crate) mod functions;
mod layout;
mod matrix;
mod memory;
mod moves;
pub(crate) mod registers;
mod rows;
mod wmma;

use std::collections::{HashMap, HashSet};

use warpwright_ptx::{
    AddressBase, AtomOp, BarRedOp, BlockId, BoolOp, Function, Inst, Instruction, Module, Operand, Ordering,
    PlainSpecial, PredUse, ReduxOp, Reg, ScalarType, Scope, ShflMode, SourceLoc, SpecialReg, StateSpace,
    Symbol, SymbolId, Terminator, VoteMode,
};

use crate::counters::Class;
use crate::exec::matrix::{MatrixOp, Touch};
use crate::exec::ops::{Ins, Op};
use crate::exec::rows::{R1, R2};
use crate::report::Position;
use functions::{Call, FunctionCode, Reached};
use registers::{
    LaunchValue, Layout, Registers, Slot, SpecialTime, literal_bits, special_is_wide, special_time,
};

/// Where shared variables start. Address 0 is never one, so a kernel that takes 0 for its first variable is found out.
pub(crate) const SHARED_BASE: u64 = 0x400;
/// Where local variables start.
pub(crate) const LOCAL_BASE: u64 = 0x100;
/// Where constants start.
pub(crate) const CONST_BASE: u64 = 0x100;

/// An arithmetic instruction that is evaluated lane by lane.
#[derive(Debug)]
pub(crate) struct Scalar {
    pub(crate) inst: Inst,
    pub(crate) dst: Slot,
    /// Width of the destination register.
    pub(crate) dst_bits: u32,
    /// The complement of a `setp`.
    pub(crate) dst_not: Option<u32>,
    pub(crate) src: Vec<Slot>,
    /// Third predicate of `setp` and `set`: operator, predicate, whether it is negated.
    pub(crate) combine: Option<(BoolOp, u32, bool)>,
}

/// A load or store.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) space: StateSpace,
    /// Bytes of one element: 1, 2, 4 or 8.
    pub(crate) bytes: u32,
    /// Whether loads sign-extend.
    pub(crate) sign: bool,
    /// Destinations (`None`: `_`) or sources, one per element.
    pub(crate) regs: Vec<Option<Slot>>,
    /// Row of addresses.
    /// The bits that the 32-bit rows of destinations hold.
    pub(crate) keep: u32,
    pub(crate) addr: Slot,
    pub(crate) offset: i64,
    pub(crate) ordering: Ordering,
    /// Number of the memory instruction.
    pub(crate) site: u32,
    /// Where it may be one to local memory whose values are followed: the tracked registers among `regs`.
    pub(crate) tracked: Option<Vec<Option<u32>>>,
}

impl Access {
    /// Bytes of all elements, which is also the alignment.
    pub(crate) fn total(&self) -> u32 {
        self.bytes * self.regs.len() as u32
    }
}

/// An `atom` or `red`.
#[derive(Debug)]
pub(crate) struct Atomic {
    pub(crate) op: AtomOp,
    pub(crate) space: StateSpace,
    pub(crate) ty: ScalarType,
    pub(crate) ordering: Ordering,
    pub(crate) dst: Option<Slot>,
    pub(crate) addr: Slot,
    pub(crate) offset: i64,
    pub(crate) b: Slot,
    pub(crate) c: Option<Slot>,
    /// Destinations and sources of the elements of a vector behind the first, one after the other in memory.
    pub(crate) more: Vec<(Option<Slot>, Slot)>,
    pub(crate) site: u32,
}

impl Atomic {
    /// Bytes of all elements, which is also the alignment.
    pub(crate) fn total(&self) -> u32 {
        self.ty.bytes() * (1 + self.more.len() as u32)
    }
}

/// What moves the end of a thread's stack.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stack {
    Alloca { dst: Slot, bytes: Slot, align: u32 },
    Save { dst: Slot },
    Restore { src: Slot },
}

/// The source lanes of a shuffle whose `b` and `c` are literals.
#[derive(Debug)]
pub(crate) struct Pattern {
    pub(crate) source: [u8; 32],
    /// Lanes whose source is inside their segment.
    pub(crate) inside: u32,
    /// Lanes exchange with the lane whose number differs in these bits, if that is all.
    pub(crate) exchange: Option<u32>,
}

/// What lanes of a warp do together.
#[derive(Debug)]
pub(crate) enum CollectiveKind {
    Shuffle {
        mode: ShflMode,
        dst: u32,
        pred: Option<u32>,
        a: u32,
        b: u32,
        c: u32,
        fixed: Option<Box<Pattern>>,
    },
    /// `shfl.idx` over the whole warp.
    Lookup {
        dst: u32,
        a: u32,
        b: u32,
        c: u32,
    },
    Vote {
        mode: VoteMode,
        dst: Slot,
        src: u32,
        negated: bool,
    },
    Match {
        all: bool,
        dst: u32,
        pred: Option<u32>,
        a: Slot,
    },
    Redux {
        op: ReduxOp,
        ty: ScalarType,
        dst: u32,
        a: u32,
    },
    Elect {
        dst: Option<u32>,
        pred: u32,
    },
    /// `bar.warp.sync`
    Barrier,
    /// A tensor-core instruction: index into `Code::matrix`.
    Matrix(u32),
    /// `activemask`: no rendezvous.
    Activemask {
        dst: u32,
    },
}

#[derive(Debug)]
pub(crate) struct Collective {
    pub(crate) kind: CollectiveKind,
    /// Row of the member mask.
    pub(crate) mask: u32,
}

#[derive(Debug)]
pub(crate) enum BarrierDecoded {
    Sync,
    Arrive,
    Reduce { op: BarRedOp, dst: Slot, src: u32, negated: bool },
}

#[derive(Debug)]
pub(crate) struct BarrierOp {
    pub(crate) kind: BarrierDecoded,
    pub(crate) aligned: bool,
    pub(crate) id: u32,
    pub(crate) count: Option<u32>,
}

/// An instruction that concerns the blocks of a cluster.
#[derive(Debug)]
pub(crate) enum ClusterOp {
    /// `barrier.cluster.arrive`
    Arrive { aligned: bool, release: bool },
    /// `barrier.cluster.wait`
    Wait { aligned: bool },
    /// `mapa`, of generic addresses or of addresses in the shared window.
    Map { dst: Slot, a: Slot, rank: Slot, generic: bool },
    /// `getctarank`
    Rank { dst: Slot, a: Slot, generic: bool },
    /// `setmaxnreg`, which changes nothing here.
    SetMaxRegisters,
}

/// Definedness of registers that may be read before they are written: bit masks per lane, in slots of their own.
#[derive(Debug)]
pub(crate) struct Check {
    /// Tracked slot and the register's type for the report.
    pub(crate) slots: Vec<(u32, Option<ScalarType>)>,
}

#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) slots: Vec<u32>,
    /// Copies take over the definedness of these; empty: defined.
    pub(crate) from: Vec<u32>,
}

/// What a decoded instruction is for reports and counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) position: Position,
    /// `None` for the second half of an instruction that was decoded into several.
    pub(crate) class: Option<Class>,
}

/// A move that was left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elided {
    pub(crate) position: Position,
    pub(crate) class: Class,
    /// The instruction that runs as often as it would.
    pub(crate) next: u32,
}

/// A decoded kernel.
#[derive(Debug, Default)]
pub(crate) struct Code {
    pub(crate) ins: Vec<Ins>,
    /// One per instruction.
    pub(crate) origins: Vec<Origin>,
    pub(crate) scalars: Vec<Scalar>,
    pub(crate) loads: Vec<Access>,
    pub(crate) stores: Vec<Access>,
    pub(crate) atomics: Vec<Atomic>,
    /// Line operations that touch no data: `discard` and `applypriority`.
    pub(crate) lines: Vec<Access>,
    pub(crate) stack: Vec<Stack>,
    pub(crate) collectives: Vec<Collective>,
    pub(crate) barriers: Vec<BarrierOp>,
    pub(crate) matrix: Vec<MatrixOp>,
    pub(crate) touches: Vec<Touch>,
    /// Registers that `wgmma` uses.
    pub(crate) flights: u32,
    pub(crate) clusters: Vec<ClusterOp>,
    pub(crate) specials: Vec<(Slot, SpecialReg)>,
    pub(crate) isspacep: Vec<(StateSpace, u32, Slot)>,
    pub(crate) fences: Vec<Scope>,
    pub(crate) asynchronous: Vec<asynchronous::Asynchronous>,
    /// Whether anything reads shared memory through the asynchronous proxy.
    pub(crate) proxies: bool,
    pub(crate) checks: Vec<Check>,
    pub(crate) marks: Vec<Mark>,
    /// What is wrong with each instruction that cannot be executed.
    pub(crate) unsupported: Vec<String>,
    pub(crate) calls: Vec<Call>,
    /// The kernel, then the functions that it can reach.
    pub(crate) functions: Vec<FunctionCode>,
    /// Functions by their addresses.
    pub(crate) addresses: HashMap<u64, u32>,
    /// Targets of indexed branches.
    pub(crate) tables: Vec<Vec<u32>>,
    /// Memory instructions that look up allocations.
    pub(crate) sites: u32,
    /// Moves that were left out.
    pub(crate) elided: Vec<Elided>,
    pub(crate) layout: Layout,
    /// Registers that may be read before they are written, in slots of `Warp::defined`.
    pub(crate) tracked: Vec<Slot>,
    /// End of the static shared variables, from address 0.
    pub(crate) shared_end: u64,
    /// Where dynamic shared memory starts.
    pub(crate) dynamic_base: u64,
    /// End of the local variables, from address 0.
    pub(crate) local_end: u64,
    /// Shared variables for reports: name, start, bytes (0: dynamic).
    pub(crate) shared_names: Vec<(String, u64, u64)>,
    pub(crate) local_names: Vec<(String, u64, u64)>,
}

/// Why a kernel cannot be decoded: the text is outside what the emulator runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DecodeError {
    pub(crate) location: Position,
    pub(crate) message: String,
}

type Result<T> = std::result::Result<T, DecodeError>;

/// State while decoding one function.
struct Decoder<'a> {
    module: &'a Module,
    function: &'a Function,
    code: Code,
    regs: Registers,
    reached: &'a Reached,
    /// The function that is being decoded: index into `Code::functions`.
    current: u32,
    /// First instruction of each block.
    starts: Vec<u32>,
    /// Offsets of the parameters: in the parameter buffer of the kernel, or in the frame of a function.
    params: Vec<u64>,
    /// Offsets of the results in the frame.
    returns: Vec<u64>,
    /// The row that holds where the frame begins.
    frame_row: u32,
    /// Addresses of the functions' own shared variables.
    shared: Vec<Vec<Option<u64>>>,
    module_shared: Vec<Option<u64>>,
    /// Offsets of local and `.param` variables in the frame.
    local: Vec<Option<u64>>,
    consts: &'a [u64],
    guard: (u32, u32),
    location: Position,
    /// Class of the next emitted instruction, taken by the first one.
    class: Option<Class>,
    /// What `wgmma` uses.
    wgmma: matrix::Registers,
}

fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Decodes a kernel and the functions that it reaches. `consts` holds the addresses of the module's constant variables.
pub(crate) fn decode(module: &Module, kernel: usize, consts: &[u64]) -> Result<Code> {
    let reached = Reached::new(module, index(kernel));
    let functions: Vec<&Function> =
        reached.functions.iter().filter_map(|f| module.functions.get(*f as usize)).collect();
    let Some(function) = functions.first().copied() else { return Ok(Code::default()) };
    let mut decoder = Decoder {
        module,
        function,
        code: Code::default(),
        regs: Registers::new(),
        reached: &reached,
        current: 0,
        starts: Vec::new(),
        params: Vec::new(),
        returns: Vec::new(),
        frame_row: 0,
        shared: Vec::new(),
        module_shared: Vec::new(),
        local: Vec::new(),
        consts,
        guard: (0, 0),
        location: Position::default(),
        class: None,
        wgmma: matrix::Registers::new(function),
    };
    decoder.place_shared(&functions)?;
    for (at, function) in functions.iter().enumerate() {
        (decoder.current, decoder.function) = (index(at), *function);
        decoder.decode_function()?;
    }
    for (f, at) in reached.functions.iter().zip(0..) {
        decoder.code.addresses.insert(functions::function_address(*f), at);
    }
    decoder.code.layout = decoder.regs.layout;
    Ok(decoder.code)
}

/// The register that an access takes its address from.
fn address_register(inst: &Inst) -> Option<Reg> {
    match inst {
        Inst::Ld { addr, .. } | Inst::St { addr, .. } => match addr.base {
            AddressBase::Reg(r) => Some(r),
            _ => None,
        },
        _ => None,
    }
}

impl Decoder<'_> {
    fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(DecodeError { location: self.location, message: message.into() })
    }

    fn decode_function(&mut self) -> Result<()> {
        let function = self.function;
        let first_tracked = self.code.tracked.len();
        let analysis = defined::Analysis::new(function, index(first_tracked));
        let copies = copies::find(function, &analysis.tracked);
        let assigned = rows::assign(function, &copies.iter().copied().collect(), &|place| {
            copies::parts(function, place)
        });
        let own = self.regs.begin(function, &assigned);
        self.wgmma = matrix::Registers::new(function);
        self.code.flights = self.code.flights.max(self.wgmma.count());
        self.frame_row = if self.in_kernel() { self.regs.literal64(0) } else { self.regs.new64() };
        let frame = self.place_frame()?;
        let start = index(self.code.ins.len());
        let (params, returns) = (self.params.clone(), self.returns.clone());
        self.blocks(&analysis, &copies)?;
        self.code.functions.push(FunctionCode {
            name: function.name.clone(),
            start: (!function.is_declaration()).then_some(start),
            params: if self.in_kernel() { Vec::new() } else { self.places(&function.params, &params) },
            returns: self.places(&function.returns, &returns),
            frame,
            frame_row: self.frame_row,
            rows32: own.rows32,
            rows64: own.rows64,
            preds: own.preds,
            tracked: first_tracked..self.code.tracked.len(),
        });
        Ok(())
    }

    fn blocks(&mut self, analysis: &defined::Analysis, copies: &[copies::Place]) -> Result<()> {
        let function = self.function;
        let first = self.code.ins.len();
        self.starts.clear();
        let elided = self.share_rows(copies)?;
        let tracked = analysis.tracked.iter().filter_map(|r| self.regs.slot(*r));
        self.code.tracked.extend(tracked);
        for (at, block) in function.blocks.iter().enumerate() {
            self.starts.push(index(self.code.ins.len()));
            for (i, instruction) in block.instructions.iter().enumerate() {
                self.locate(block.location(i));
                if elided.contains(&(index(at), i)) {
                    self.guard = (0, 0);
                    self.touch(&instruction.inst);
                    let next = index(self.code.ins.len());
                    let (position, class) = (self.location, class::class_of(&instruction.inst));
                    self.code.elided.push(Elided { position, class, next });
                } else {
                    self.regs.new_instruction();
                    if let Err(error) = self.instruction(instruction, analysis) {
                        self.unsupported(instruction, error)?;
                    }
                }
            }
            self.locate(block.location(block.instructions.len()));
            self.regs.new_instruction();
            self.terminator(&block.terminator, at, analysis)?;
        }
        self.resolve_targets(first);
        Ok(())
    }

    /// Gives the destinations of moves that need not run the rows of their sources.
    fn share_rows(&mut self, copies: &[copies::Place]) -> Result<HashSet<copies::Place>> {
        let function = self.function;
        let mut shared = HashSet::new();
        for &(block, i) in copies {
            let instruction = function.blocks.get(block as usize).and_then(|b| b.instructions.get(i));
            let (dst, slot) = match instruction.map(|i| &i.inst) {
                Some(Inst::Mov { ty, dst, src }) => (*dst, self.source(src, *ty)?),
                Some(Inst::Cvta { dst, src, .. }) => (*dst, self.source(src, ScalarType::U64)?),
                Some(Inst::Ld { ty, dsts, addr, .. }) => {
                    let [Some(dst)] = dsts.as_slice() else { continue };
                    (*dst, self.param_row(*dst, addr, *ty)?)
                }
                _ => continue,
            };
            // A narrower source would have to be extended.
            if self.regs.share(dst, slot) {
                shared.insert((block, i));
            }
        }
        Ok(shared)
    }

    fn locate(&mut self, location: SourceLoc) {
        self.location = match location {
            SourceLoc::Ptx { line, column } => Position { line, column },
            SourceLoc::Rust(_) | SourceLoc::Unknown => Position::default(),
        };
    }

    fn instruction(&mut self, instruction: &Instruction, analysis: &defined::Analysis) -> Result<()> {
        self.guard = (0, 0);
        if let Some(guard) = instruction.guard {
            self.check(analysis, [guard.reg]);
            self.guard = (self.pred(guard.reg)?, if guard.negated { u32::MAX } else { 0 });
        }
        let copy = defined::copies(&instruction.inst);
        let follows = analysis.follows && defined::is_local(&instruction.inst);
        if !copy {
            let mut uses = Vec::new();
            instruction.inst.visit(|role, r| {
                if role == warpwright_ptx::Role::Use {
                    uses.push(r);
                }
            });
            if follows && let Inst::St { srcs, .. } = &instruction.inst {
                uses.retain(|r| !srcs.contains(&Operand::Reg(*r)));
                if let Some(base) = address_register(&instruction.inst) {
                    uses.push(base);
                }
            }
            let sums = matrix::conditional_uses(&instruction.inst);
            uses.retain(|r| !sums.contains(r));
            self.check(analysis, uses);
            self.check_sums(analysis, &instruction.inst)?;
        }
        self.touch(&instruction.inst);
        if follows {
            // Before the access, which knows better.
            self.mark(&instruction.inst, analysis, copy);
        }
        self.class = Some(class::class_of(&instruction.inst));
        let before = (self.code.loads.len(), self.code.stores.len());
        self.inst(&instruction.inst)?;
        if follows {
            self.follow(&instruction.inst, analysis, before);
        }
        if self.class.is_some() {
            // Every instruction is counted, also one that does nothing here.
            self.emit(Op::Nothing);
        }
        if !follows {
            self.mark(&instruction.inst, analysis, copy);
        }
        Ok(())
    }

    /// Tells an access to local memory which of its registers are tracked.
    fn follow(&mut self, inst: &Inst, analysis: &defined::Analysis, (loads, stores): (usize, usize)) {
        let slot = |r: Option<Reg>| r.and_then(|r| analysis.slot(r));
        let (access, slots): (_, Vec<Option<u32>>) = match inst {
            Inst::Ld { dsts, .. } => {
                (self.code.loads.get_mut(loads), dsts.iter().map(|d| slot(*d)).collect())
            }
            Inst::St { srcs, .. } => {
                let register = |o: &Operand| if let Operand::Reg(r) = o { Some(*r) } else { None };
                (self.code.stores.get_mut(stores), srcs.iter().map(|o| slot(register(o))).collect())
            }
            _ => return,
        };
        if let Some(access) = access {
            // Registers of 128 bits are two elements.
            let each = access.regs.len() / slots.len().max(1);
            access.tracked = Some(slots.into_iter().flat_map(|s| std::iter::repeat_n(s, each)).collect());
        }
    }

    /// Emits that the tracked registers that an instruction writes are defined; of a copy, if what it copies is.
    fn mark(&mut self, inst: &Inst, analysis: &defined::Analysis, copy: bool) {
        let (mut from, mut marks) = (Vec::new(), Vec::new());
        inst.visit(|role, r| {
            if let Some(slot) = analysis.slot(r) {
                match role {
                    warpwright_ptx::Role::Def => marks.push(slot),
                    warpwright_ptx::Role::Use if copy => from.push(slot),
                    warpwright_ptx::Role::Use => {}
                }
            }
        });
        if !marks.is_empty() {
            self.code.marks.push(Mark { slots: marks, from });
            let at = index(self.code.marks.len() - 1);
            self.emit(Op::MarkDefined(at));
        }
    }

    /// Emits a stop in place of an instruction that cannot be decoded: it matters only if it is reached.
    fn unsupported(&mut self, instruction: &Instruction, error: DecodeError) -> Result<()> {
        if let Some(guard) = instruction.guard {
            self.guard = (self.pred(guard.reg)?, if guard.negated { u32::MAX } else { 0 });
        }
        self.code.unsupported.push(error.message);
        let at = index(self.code.unsupported.len() - 1);
        self.class = Some(class::class_of(&instruction.inst));
        self.emit(Op::Unsupported(at));
        Ok(())
    }

    /// Emits a check of the registers among `uses` that may be undefined.
    fn check(&mut self, analysis: &defined::Analysis, uses: impl IntoIterator<Item = Reg>) {
        let mut slots: Vec<(u32, Option<ScalarType>)> =
            uses.into_iter().filter_map(|r| Some((analysis.slot(r)?, self.function.reg_type(r)))).collect();
        slots.dedup();
        if !slots.is_empty() {
            self.code.checks.push(Check { slots });
            let at = index(self.code.checks.len() - 1);
            let class = self.class.take();
            self.emit(Op::CheckDefined(at));
            self.class = class;
        }
    }

    fn emit(&mut self, op: Op) {
        self.code.ins.push(Ins { guard: self.guard.0, invert: self.guard.1, op });
        self.code.origins.push(Origin { position: self.location, class: self.class.take() });
    }

    fn slot(&self, r: Reg) -> Result<Slot> {
        match self.regs.slot(r) {
            Some(slot) => Ok(slot),
            None => self.error(format!("register {} is not declared", r.0)),
        }
    }

    fn pred(&self, r: Reg) -> Result<u32> {
        match self.slot(r)? {
            Slot::P(p) => Ok(p),
            _ => self.error("a predicate register is wanted here"),
        }
    }

    /// A predicate as the instruction reads it: possibly negated into a temporary.
    fn pred_use(&mut self, p: PredUse) -> Result<u32> {
        let a = self.pred(p.reg)?;
        if !p.negated {
            return Ok(a);
        }
        let d = self.regs.temp_pred();
        self.emit_part(Op::PredNot(R1 { d, a }));
        Ok(d)
    }

    /// Emits an instruction that prepares the one that is counted.
    fn emit_part(&mut self, op: Op) {
        let class = self.class.take();
        self.emit(op);
        self.class = class;
    }

    /// The row of a source of up to 32 bits.
    fn w(&mut self, operand: &Operand, ty: ScalarType) -> Result<u32> {
        Ok(match self.source(operand, ty)? {
            Slot::W(row) => row,
            Slot::L(a) | Slot::Q(a) => {
                let d = self.regs.temp32();
                self.emit_part(Op::TruncL(R1 { d, a }));
                d
            }
            Slot::P(_) => return self.error("a predicate cannot be used as a value"),
        })
    }

    /// The row of a 64-bit source.
    fn l(&mut self, operand: &Operand, ty: ScalarType) -> Result<u32> {
        Ok(match self.source(operand, ty)? {
            Slot::L(row) | Slot::Q(row) => row,
            Slot::W(a) => {
                let d = self.regs.temp64();
                self.emit_part(Op::ZextL(R1 { d, a }));
                d
            }
            Slot::P(_) => return self.error("a predicate cannot be used as a value"),
        })
    }

    /// Where a source lives, whatever its width; literals take the width of `ty`.
    fn source(&mut self, operand: &Operand, ty: ScalarType) -> Result<Slot> {
        Ok(match operand {
            Operand::Reg(r) => self.slot(*r)?,
            Operand::Imm(imm) => {
                let bits = literal_bits(*imm, ty);
                if ty.bits() == 64 {
                    Slot::L(self.regs.literal64(bits))
                } else {
                    Slot::W(self.regs.literal32(bits as u32))
                }
            }
            Operand::Special(special) => self.special(*special),
            Operand::Symbol(symbol, offset) => self.symbol_address(*symbol, *offset, ty.bits() == 64)?,
        })
    }

    fn special(&mut self, special: SpecialReg) -> Slot {
        if special_time(special) != SpecialTime::Read {
            return self.regs.special(special);
        }
        let wide = special_is_wide(special) || special == SpecialReg::Plain(PlainSpecial::Clock64);
        let slot = if wide { Slot::L(self.regs.temp64()) } else { Slot::W(self.regs.temp32()) };
        self.code.specials.push((slot, special));
        let at = index(self.code.specials.len() - 1);
        self.emit_part(Op::Special(at));
        slot
    }

    /// The address of a symbol in its own space, as a constant row.
    fn symbol_address(&mut self, symbol: SymbolId, offset: i64, wide: bool) -> Result<Slot> {
        let Some(what) = self.function.symbols.get(symbol.0 as usize).copied() else {
            return self.error("unknown symbol");
        };
        let framed = self.frame_place(what);
        if let (Some((at, _)), false) = (framed, self.in_kernel()) {
            let (a, b) = (self.frame_row, self.regs.literal64(at.wrapping_add(offset as u64)));
            let d = self.regs.temp64();
            self.emit_part(Op::AddI64(R2 { d, a, b }));
            if wide {
                return Ok(Slot::L(d));
            }
            let low = self.regs.temp32();
            self.emit_part(Op::TruncL(R1 { d: low, a: d }));
            return Ok(Slot::W(low));
        }
        let base = match what {
            Symbol::Param(p) => self.params.get(p as usize).copied(),
            Symbol::Return(_) => framed.map(|f| f.0),
            Symbol::Function(f) => {
                let alias = self.module.aliases.iter().find(|a| a.function == f);
                Some(functions::function_address(alias.map_or(f, |a| a.of)))
            }
            Symbol::LocalVariable(v) => {
                let variable = self.function.variables.get(v as usize);
                if variable.is_some_and(|x| x.len.is_none()) {
                    Some(self.code.dynamic_base)
                } else {
                    let own = self.shared.get(self.current as usize).and_then(|s| s.get(v as usize));
                    own.copied().flatten().or(framed.map(|f| f.0))
                }
            }
            Symbol::ModuleVariable(v) => {
                let Some(variable) = self.module.variables.get(v as usize) else {
                    return self.error("unknown variable");
                };
                match variable.space {
                    StateSpace::Global => {
                        return Ok(self.regs.launch(LaunchValue::Global { index: v, offset }, wide));
                    }
                    StateSpace::Const => self.consts.get(v as usize).copied(),
                    _ if variable.len.is_none() => Some(self.code.dynamic_base),
                    _ => self.module_shared.get(v as usize).copied().flatten(),
                }
            }
        };
        let Some(base) = base else {
            return self.error("the symbol has no address that a kernel can take");
        };
        let address = base.wrapping_add(offset as u64);
        Ok(if wide {
            Slot::L(self.regs.literal64(address))
        } else {
            Slot::W(self.regs.literal32(address as u32))
        })
    }

    /// The row of the destination of an operation of up to 32 bits, and what to do afterwards to fill a wider register.
    fn dst_w(&mut self, r: Reg) -> Result<u32> {
        match self.slot(r)? {
            Slot::W(row) => Ok(row),
            _ => self.error("the destination has the wrong width"),
        }
    }

    fn dst_l(&mut self, r: Reg) -> Result<u32> {
        match self.slot(r)? {
            Slot::L(row) => Ok(row),
            _ => self.error("the destination has the wrong width"),
        }
    }

    /// Turns the blocks in jumps from instruction `first` on into instructions.
    fn resolve_targets(&mut self, first: usize) {
        let starts = &self.starts;
        let target = |block: u32| starts.get(block as usize).copied().unwrap_or(u32::MAX);
        for ins in self.code.ins.iter_mut().skip(first) {
            match &mut ins.op {
                Op::Jump { to } => *to = target(*to),
                Op::Branch { then, otherwise, .. } => {
                    *then = target(*then);
                    *otherwise = target(*otherwise);
                }
                Op::BranchIndexed { table, .. } => {
                    let targets = self.code.tables.get_mut(*table as usize);
                    targets.into_iter().flatten().for_each(|t| *t = target(*t));
                }
                _ => {}
            }
        }
    }

    fn terminator(&mut self, terminator: &Terminator, at: usize, analysis: &defined::Analysis) -> Result<()> {
        self.guard = (0, 0);
        match terminator {
            Terminator::Jump { to, .. } => {
                let counts =
                    self.code.elided.last().is_some_and(|move_| move_.next == index(self.code.ins.len()));
                if to.0 as usize == at + 1 && counts {
                    // Something has to run as often as the moves that were left out.
                    self.emit(Op::Nothing);
                } else if to.0 as usize != at + 1 {
                    self.class = Some(Class::Control);
                    self.emit(Op::Jump { to: to.0 });
                }
            }
            Terminator::Branch { pred, then, otherwise, .. } => {
                self.check(analysis, [pred.reg]);
                let BlockId(then) = *then;
                let invert = if pred.negated { u32::MAX } else { 0 };
                let pred = self.pred(pred.reg)?;
                self.class = Some(Class::Control);
                self.emit(Op::Branch { pred, invert, then, otherwise: otherwise.0 });
            }
            Terminator::BranchIndexed { index: number, targets, .. } => {
                self.check(analysis, [*number]);
                let number = self.w(&Operand::Reg(*number), ScalarType::U32)?;
                self.code.tables.push(targets.iter().map(|t| t.0).collect());
                let table = index(self.code.tables.len() - 1);
                self.class = Some(Class::Control);
                self.emit(Op::BranchIndexed { index: number, table });
            }
            Terminator::Ret if !self.in_kernel() => {
                self.check(analysis, function_results(self.function));
                self.class = Some(Class::Control);
                self.emit(Op::Return);
            }
            Terminator::Ret | Terminator::Exit => {
                self.class = Some(Class::Control);
                self.emit(Op::Exit);
            }
        }
        Ok(())
    }
}

/// The registers that a function returns.
fn function_results(function: &Function) -> impl Iterator<Item = Reg> {
    function.returns.iter().filter_map(|p| p.register)
}
