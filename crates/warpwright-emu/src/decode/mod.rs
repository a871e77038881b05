//! From the IR of one kernel to flat code with resolved operands.

mod alu;
mod asynchronous;
mod class;
mod cluster;
mod control;
mod convert;
mod copies;
mod defined;
mod functions;
mod layout;
mod matrix;
mod memory;
mod moves;
mod operand;
mod passing;
mod registers;
mod rows;
mod tensor;
mod wmma;

use std::collections::HashSet;

use warpwright_ptx::{
    Block, BlockId, Function, Inst, Instruction, Module, Operand, Reg, ScalarType, SourceLoc, Terminator,
};

use crate::code::definedness::{Check, Checked, FIRST, Mark};
use crate::code::function::{FunctionCode, function_address};
use crate::code::op::{Ins, Op};
use crate::code::{Code, Elided, Origin, Place};
use crate::counters::Class;
use crate::report::Position;
use functions::Reached;
use passing::Fate;
#[cfg(test)]
pub(crate) use passing::rule;
use registers::Registers;

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
    place: Place,
    /// Class of the next emitted instruction, taken by the first one.
    class: Option<Class>,
    /// Registers that are used or written after the instruction.
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
        place: Place::default(),
        class: None,
        wgmma: matrix::Registers::new(function),
    };
    decoder.place_shared(&functions)?;
    for (at, function) in functions.iter().enumerate() {
        (decoder.current, decoder.function) = (index(at), *function);
        decoder.decode_function()?;
    }
    for (f, at) in reached.functions.iter().zip(0..) {
        decoder.code.addresses.insert(function_address(*f), at);
    }
    decoder.code.layout = decoder.regs.layout;
    Ok(decoder.code)
}

impl Decoder<'_> {
    fn error<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(DecodeError { location: self.location, message: message.into() })
    }

    fn decode_function(&mut self) -> Result<()> {
        let function = self.function;
        let next_tracked = |code: &Code| FIRST as usize + code.tracked.len();
        let first_tracked = next_tracked(&self.code);
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
        self.starts.push(index(self.code.ins.len()));
        self.code.functions.push(FunctionCode {
            name: function.name.clone(),
            index: self.reached.functions.get(self.current as usize).copied().unwrap_or(u32::MAX),
            starts: self.starts.clone(),
            slots: self.regs.slots().to_vec(),
            start: (!function.is_declaration()).then_some(start),
            params: if self.in_kernel() { Vec::new() } else { self.places(&function.params, &params) },
            returns: self.places(&function.returns, &returns),
            frame,
            frame_row: self.frame_row,
            rows32: own.rows32,
            rows64: own.rows64,
            preds: own.preds,
            tracked: first_tracked..next_tracked(&self.code),
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
                self.stand(block, at, i);
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
            self.stand(block, at, block.instructions.len());
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

    /// Comes to an instruction, or to the terminator behind them.
    fn stand(&mut self, block: &Block, at: usize, instruction: usize) {
        self.place = Place { function: self.current, block: index(at), instruction: index(instruction) };
        self.location = match block.location(instruction) {
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
        let inst = &instruction.inst;
        let follows = analysis.follows && defined::is_local(inst);
        let fate = passing::fate(inst);
        let stored = follows || fate == Fate::Stored;
        if fate != Fate::Passed {
            let (mut used, handed_on) = passing::uses(inst);
            let sums = matrix::conditional_uses(inst);
            used.retain(|r| !sums.contains(r));
            if let (Inst::St { ty, .. }, false) = (inst, stored) {
                // Of what goes to memory only the bits of the type.
                self.check_bits(analysis, handed_on, passing::bits_of(*ty));
            }
            self.check(analysis, used);
            self.check_sums(analysis, inst)?;
        }
        let passed = self.pass(inst, analysis);
        self.touch(inst);
        if follows {
            // Before the access, which knows better.
            self.mark(inst, analysis);
        }
        self.class = Some(class::class_of(inst));
        let before = (self.code.loads.len(), self.code.stores.len());
        self.inst(inst)?;
        if stored {
            self.follow(inst, analysis, before);
        }
        self.pass_shuffled(inst, analysis);
        if self.class.is_some() {
            // Every instruction is counted, also one that does nothing here.
            self.emit(Op::Nothing);
        }
        if !follows && !passed {
            self.mark(inst, analysis);
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

    /// Emits that the tracked registers that an instruction writes are defined; those of a shuffle are as defined as what it reads.
    fn mark(&mut self, inst: &Inst, analysis: &defined::Analysis) {
        let mut tracked = Vec::new();
        inst.visit(|role, r| {
            let shuffled = matches!(inst, Inst::Shfl { dst, .. } if *dst == r);
            if role == warpwright_ptx::Role::Def && !shuffled {
                tracked.extend(analysis.slot(r));
            }
        });
        if !tracked.is_empty() {
            self.code.marks.push(Mark { tracked });
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
        self.check_bits(analysis, uses, u64::MAX);
    }

    /// The same of some bits of them.
    fn check_bits(&mut self, analysis: &defined::Analysis, uses: impl IntoIterator<Item = Reg>, bits: u64) {
        let checked = |r: Reg| {
            let ty = self.function.reg_type(r);
            Some(Checked {
                tracked: analysis.slot(r)?,
                ty,
                bits: bits & ty.map_or(u64::MAX, passing::bits_of),
            })
        };
        let mut registers: Vec<Checked> = uses.into_iter().filter_map(checked).collect();
        registers.dedup();
        if !registers.is_empty() {
            self.code.checks.push(Check { registers });
            let at = index(self.code.checks.len() - 1);
            let class = self.class.take();
            self.emit(Op::CheckDefined(at));
            self.class = class;
        }
    }

    fn emit(&mut self, op: Op) {
        self.code.ins.push(Ins { guard: self.guard.0, invert: self.guard.1, op });
        self.code.origins.push(Origin { position: self.location, class: self.class.take() });
        self.code.places.push(self.place);
    }

    /// Emits an instruction that prepares the one that is counted.
    fn emit_part(&mut self, op: Op) {
        let class = self.class.take();
        self.emit(op);
        self.class = class;
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
