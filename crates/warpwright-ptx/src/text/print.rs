//! The canonical text of a module.
//!
//! Two modules that differ only in register numbers, unused registers, block numbers or fall-through jumps print the
//! same: registers are numbered by class in order of appearance, labels in order of layout, and only blocks that a
//! printed branch names carry a label.

mod declare;
mod inst;

use crate::inst::*;
use crate::module::*;
use crate::types::*;

/// Text with the origin of each of its lines.
#[derive(Clone, Debug)]
pub struct Printed {
    /// The module text.
    pub text: String,
    /// `lines[i]` is where line `i + 1` of the text came from; [`SourceLoc::Unknown`] for declarations.
    pub lines: Vec<SourceLoc>,
}

/// The text of a module.
pub fn print(module: &Module) -> String {
    print_with_lines(module).text
}

/// The text of a module, with the origin of each line.
pub fn print_with_lines(module: &Module) -> Printed {
    let mut out = Text::default();
    out.line(format_args!(".version {}", module.version));
    out.line(format_args!(".target {}", module.target));
    out.line(format_args!(".address_size 64"));
    for pragma in &module.pragmas {
        out.line(format_args!(".pragma \"{pragma}\";"));
    }
    // What the bodies mention decides what is declared in front, and registers that are parameters get their names there.
    let defined = module.functions.iter().filter(|f| !f.is_declaration());
    let bodies: Vec<Body<'_>> = defined
        .map(|function| {
            let mut body = Body::new(module, function);
            body.param_registers();
            body.blocks();
            body
        })
        .collect();
    declare::module(&mut out, module, &bodies);
    for mut body in bodies {
        let function = body.function;
        out.line(format_args!(""));
        declare::head(&mut out, function, Some(&body));
        out.line(format_args!("{{"));
        body.registers(&mut out);
        for variable in &function.variables {
            out.text.push_str("    ");
            out.text.push_str(declare::linkage(variable.linkage));
            declare::variable(&mut out.text, module, variable);
            out.end(SourceLoc::Unknown);
        }
        body.prototypes(&mut out);
        out.text.push_str(&body.out.text);
        out.lines.append(&mut body.out.lines);
        out.line(format_args!("}}"));
    }
    declare::aliases(&mut out, module);
    Printed { text: out.text, lines: out.lines }
}

/// The opcode of an instruction with its modifiers, as it is printed.
pub fn mnemonic(inst: &Inst) -> String {
    let module = Module::new(PtxVersion::new(9, 0), Target::sm(75));
    let function = Function::entry("");
    let mut body = Body::new(&module, &function);
    body.inst(inst);
    body.out.text.split(' ').next().unwrap_or_default().to_owned()
}

/// Text under construction, one origin per finished line.
#[derive(Default)]
struct Text {
    text: String,
    lines: Vec<SourceLoc>,
}

impl Text {
    /// Ends the current line.
    fn end(&mut self, origin: SourceLoc) {
        self.text.push('\n');
        self.lines.push(origin);
    }

    /// A whole line that no instruction stands behind.
    fn line(&mut self, content: std::fmt::Arguments<'_>) {
        self.push(content);
        self.end(SourceLoc::Unknown);
    }

    fn push(&mut self, content: std::fmt::Arguments<'_>) {
        use std::fmt::Write as _;
        // Writing to a String cannot fail.
        let _ = self.text.write_fmt(content);
    }
}

/// The register name prefix of a type. No prefix plus digits is a prefix of another one plus digits.
const fn prefix(ty: ScalarType) -> &'static str {
    use ScalarType::*;
    match ty {
        Pred => "%p",
        B8 => "%b",
        U8 => "%bu",
        S8 => "%bs",
        B16 => "%h",
        U16 => "%hu",
        S16 => "%hs",
        F16 => "%hf",
        BF16 => "%hb",
        E4M3x2 => "%h4m",
        E5M2x2 => "%h5m",
        E2M3x2 => "%h2m3e",
        E3M2x2 => "%h3m2e",
        UE8M0x2 => "%h8m",
        E2M1x2 => "%b2m",
        E2M1x4 => "%h2m1e",
        E4M3x4 => "%r4m",
        E5M2x4 => "%r5m",
        E2M3x4 => "%r2m3e",
        E3M2x4 => "%r3m2e",
        U16x2 => "%rux",
        S16x2 => "%rsx",
        F32x2 => "%rdf",
        B32 => "%r",
        U32 => "%ru",
        S32 => "%rs",
        F16x2 => "%rh",
        BF16x2 => "%rb",
        TF32 => "%rt",
        F32 => "%f",
        B64 => "%rd",
        U64 => "%rdu",
        S64 => "%rds",
        F64 => "%fd",
        B128 => "%rq",
    }
}

/// How the terminator of a block is written.
enum Flow {
    /// Nothing is written: control falls into the next block, or the text before says it all.
    Fall,
    Bra {
        pred: Option<PredUse>,
        uniform: bool,
        to: BlockId,
    },
    /// Neither successor is the next block.
    Both {
        pred: PredUse,
        uniform: bool,
        then: BlockId,
        otherwise: BlockId,
    },
    /// The next block is nothing but `ret` or `exit` and belongs to this branch alone: `@%p ret;` stands for both.
    Leave {
        pred: PredUse,
        uniform: bool,
        exit: bool,
    },
    /// `brx.idx`
    Indexed {
        index: Reg,
        uniform: bool,
        targets: Vec<BlockId>,
    },
    Ret,
    Exit,
}

impl Flow {
    fn jump(to: BlockId, uniform: bool, next: Option<BlockId>, falls: bool) -> Self {
        if falls || Some(to) == next { Self::Fall } else { Self::Bra { pred: None, uniform, to } }
    }

    /// The blocks that the text names.
    fn targets(&self) -> impl Iterator<Item = BlockId> {
        let (pair, list) = match self {
            Self::Bra { to, .. } => ([Some(*to), None], &[][..]),
            Self::Both { then, otherwise, .. } => ([Some(*then), Some(*otherwise)], &[][..]),
            Self::Indexed { targets, .. } => ([None, None], targets.as_slice()),
            Self::Fall | Self::Leave { .. } | Self::Ret | Self::Exit => ([None, None], &[][..]),
        };
        pair.into_iter().flatten().chain(list.iter().copied())
    }
}

/// The body of one function, with names given on first use.
struct Body<'m> {
    module: &'m Module,
    function: &'m Function,
    out: Text,
    /// Number of each register within its class, once it has appeared.
    numbers: Vec<Option<u32>>,
    /// Registers that have appeared, by position in [`ScalarType::ALL`].
    counts: Vec<u32>,
    /// Follows every register prefix; keeps registers apart from parameters with names such as `%r1`.
    suffix: String,
    /// Number of the label of each block that needs one.
    labels: Vec<Option<u32>>,
    label_prefix: String,
    /// How many `.branchtargets` lists have been written.
    target_lists: u32,
    /// Indices of the functions that have been mentioned.
    mentioned: Vec<u32>,
    /// The pragmas that have not been written yet.
    pragmas: &'m [Pragma],
}

impl<'m> Body<'m> {
    fn new(module: &'m Module, function: &'m Function) -> Self {
        let names = || {
            // Parameters in registers take the names of the registers.
            let in_memory = |p: &&Param| p.register.is_none();
            let locals = function.params.iter().chain(&function.returns).filter(in_memory);
            let locals = locals.map(|p| p.name.as_str());
            locals
                .chain(module.functions.iter().map(|f| f.name.as_str()))
                .chain(function.variables.iter().map(|v| v.name.as_str()))
                .chain(module.variables.iter().map(|v| v.name.as_str()))
        };
        let is_numbered = |name: &str, prefix: &str, suffix: &str| {
            let rest = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix(suffix));
            rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
        };
        let mut suffix = String::new();
        while names()
            .filter(|n| n.starts_with('%'))
            .any(|n| ScalarType::ALL.iter().any(|ty| is_numbered(n, prefix(*ty), &suffix)))
        {
            suffix.push('_');
        }
        let mut label_prefix = String::from("$B");
        while names().any(|n| is_numbered(n, &label_prefix, "")) {
            label_prefix.push('_');
        }
        Self {
            module,
            function,
            out: Text::default(),
            numbers: vec![None; function.registers.len()],
            counts: vec![0; ScalarType::ALL.len()],
            suffix,
            labels: vec![None; function.blocks.len()],
            label_prefix,
            target_lists: 0,
            mentioned: Vec::new(),
            pragmas: &function.pragmas,
        }
    }

    /// Names the registers that are parameters, in the order of the signature.
    fn param_registers(&mut self) {
        for register in self.function.returns.iter().chain(&self.function.params).filter_map(|p| p.register) {
            self.number(register);
        }
    }

    /// The name of a register that has appeared.
    fn register_name(&self, reg: Reg) -> Option<String> {
        let info = self.function.registers.get(reg.0 as usize)?;
        let number = self.numbers.get(reg.0 as usize).copied().flatten()?;
        Some(format!("{}{}{number}", prefix(info.ty), self.suffix))
    }

    /// The block whose text control meets first when it goes to each block.
    ///
    /// It is the block itself unless that has nothing to print and falls into the next one.
    fn places(&self) -> Vec<usize> {
        let blocks = &self.function.blocks;
        let mut places: Vec<usize> = (0..blocks.len()).collect();
        // From the back, so that the places of all later blocks are known.
        for (i, block) in blocks.iter().enumerate().rev().skip(1) {
            let next = places[i + 1];
            let falls = |to: BlockId| to.0 as usize > i && places.get(to.0 as usize) == Some(&next);
            let leaves = matches!(
                block.terminator,
                Terminator::Ret | Terminator::Exit | Terminator::BranchIndexed { .. }
            );
            if block.instructions.is_empty() && !leaves && block.terminator.successors().all(falls) {
                places[i] = next;
            }
        }
        places
    }

    /// How the terminator of each block is written.
    fn flows(&self) -> Vec<Flow> {
        let blocks = &self.function.blocks;
        let places = self.places();
        let place = |id: BlockId| {
            let at = places.get(id.0 as usize).copied();
            BlockId(at.and_then(|at| u32::try_from(at).ok()).unwrap_or(id.0))
        };
        let mut flows: Vec<Flow> = Vec::with_capacity(blocks.len());
        let mut references = vec![0u32; blocks.len()];
        for (i, block) in blocks.iter().enumerate() {
            let next = places.get(i + 1).and_then(|at| u32::try_from(*at).ok()).map(BlockId);
            let flow = match block.terminator {
                Terminator::Ret => Flow::Ret,
                Terminator::Exit => Flow::Exit,
                Terminator::BranchIndexed { index, uniform, ref targets } => {
                    let targets = targets.iter().map(|t| place(*t)).collect();
                    Flow::Indexed { index, uniform, targets }
                }
                Terminator::Jump { to, uniform } => Flow::jump(place(to), uniform, next, places[i] != i),
                Terminator::Branch { pred, uniform, then, otherwise } => {
                    let (then, otherwise) = (place(then), place(otherwise));
                    let not = PredUse { reg: pred.reg, negated: !pred.negated };
                    if then == otherwise {
                        Flow::jump(then, uniform, next, places[i] != i)
                    } else if Some(otherwise) == next {
                        Flow::Bra { pred: Some(pred), uniform, to: then }
                    } else if Some(then) == next {
                        Flow::Bra { pred: Some(not), uniform, to: otherwise }
                    } else {
                        Flow::Both { pred, uniform, then, otherwise }
                    }
                }
            };
            // A conditional branch also refers to the next block, into which it falls.
            let falls_to = if matches!(flow, Flow::Bra { pred: Some(_), .. }) { next } else { None };
            for target in flow.targets().chain(falls_to) {
                if let Some(count) = references.get_mut(target.0 as usize) {
                    *count += 1;
                }
            }
            flows.push(flow);
        }
        for i in 0..flows.len() {
            if let Some(leave) = self.leave(&flows[i], i, &places, &references) {
                flows[places[i + 1]] = Flow::Fall;
                flows[i] = leave;
            }
        }
        flows
    }

    /// `@%p ret;` in place of a branch over a block that only returns and that nothing else leads to.
    fn leave(&self, flow: &Flow, index: usize, places: &[usize], references: &[u32]) -> Option<Flow> {
        let Flow::Bra { pred: Some(pred), uniform, to } = *flow else { return None };
        let next = *places.get(index + 1)?;
        let block = &self.function.blocks[next];
        let exit = match block.terminator {
            Terminator::Ret => false,
            // `exit` has no uniform form.
            Terminator::Exit if !uniform => true,
            _ => return None,
        };
        let over = places.get(next + 1).is_some_and(|after| *after == to.0 as usize);
        let pred = PredUse { reg: pred.reg, negated: !pred.negated };
        (over && block.instructions.is_empty() && references[next] == 1).then_some(Flow::Leave {
            pred,
            uniform,
            exit,
        })
    }

    fn blocks(&mut self) {
        let function = self.function;
        // What is written decides which blocks need labels, so it is settled for all blocks first.
        let flows = self.flows();
        let mut targets = vec![false; function.blocks.len()];
        for target in flows.iter().flat_map(Flow::targets) {
            if let Some(target) = targets.get_mut(target.0 as usize) {
                *target = true;
            }
        }
        let mut next = 0u32;
        for (label, target) in self.labels.iter_mut().zip(targets) {
            if target {
                *label = Some(next);
                next += 1;
            }
        }

        if function.blocks.is_empty() {
            self.out.line(format_args!("    ret;"));
        }
        for (index, (block, flow)) in function.blocks.iter().zip(&flows).enumerate() {
            if let Some(label) = self.labels[index] {
                self.out.line(format_args!("{}{label}:", self.label_prefix));
            }
            for (at, instruction) in block.instructions.iter().enumerate() {
                self.pragma_before(index, at);
                self.out.text.push_str("    ");
                self.guard(instruction.guard);
                self.inst(&instruction.inst);
                self.out.text.push(';');
                self.out.end(block.location(at));
            }
            self.pragma_before(index, usize::MAX);
            self.terminator(flow, block.location(block.instructions.len()));
        }
    }

    /// The pragmas that stand before instruction `at` of a block and have not been written.
    fn pragma_before(&mut self, block: usize, at: usize) {
        while let [first, rest @ ..] = self.pragmas
            && (first.block.0 as usize, first.index as usize) <= (block, at)
        {
            self.out.line(format_args!("    .pragma \"{}\";", first.text));
            self.pragmas = rest;
        }
    }

    fn terminator(&mut self, flow: &Flow, origin: SourceLoc) {
        let (pred, text, uniform) = match *flow {
            Flow::Fall => return,
            Flow::Indexed { index, uniform, ref targets } => {
                return self.indexed(index, uniform, targets, origin);
            }
            Flow::Bra { pred, uniform, to } => return self.bra(pred, uniform, to, origin),
            Flow::Both { pred, uniform, then, otherwise } => {
                self.bra(Some(pred), uniform, then, origin);
                return self.bra(None, uniform, otherwise, origin);
            }
            Flow::Leave { pred, uniform, exit } => (Some(pred), if exit { "exit" } else { "ret" }, uniform),
            Flow::Ret => (None, "ret", false),
            Flow::Exit => (None, "exit", false),
        };
        self.out.text.push_str("    ");
        self.guard(pred);
        self.out.text.push_str(text);
        self.out.text.push_str(if uniform { ".uni;" } else { ";" });
        self.out.end(origin);
    }

    fn bra(&mut self, pred: Option<PredUse>, uniform: bool, to: BlockId, origin: SourceLoc) {
        self.out.text.push_str("    ");
        self.guard(pred);
        self.out.text.push_str(if uniform { "bra.uni " } else { "bra " });
        self.label(to);
        self.out.text.push(';');
        self.out.end(origin);
    }

    fn label(&mut self, to: BlockId) {
        match self.labels.get(to.0 as usize).copied().flatten() {
            Some(label) => self.out.push(format_args!("{}{label}", self.label_prefix)),
            // A block that does not exist: the name makes the defect readable.
            None => self.out.push(format_args!("{}_missing{}", self.label_prefix, to.0)),
        }
    }

    /// The list of targets and the branch.
    fn indexed(&mut self, index: Reg, uniform: bool, targets: &[BlockId], origin: SourceLoc) {
        let list = self.target_lists;
        self.target_lists += 1;
        self.out.push(format_args!("{}x{list}: .branchtargets ", self.label_prefix));
        for (i, target) in targets.iter().enumerate() {
            if i > 0 {
                self.out.text.push_str(", ");
            }
            self.label(*target);
        }
        self.out.text.push(';');
        self.out.end(origin);
        self.out.text.push_str(if uniform { "    brx.idx.uni " } else { "    brx.idx " });
        self.reg(index);
        self.out.push(format_args!(", {}x{list};", self.label_prefix));
        self.out.end(origin);
    }

    fn guard(&mut self, guard: Option<PredUse>) {
        if let Some(PredUse { reg, negated }) = guard {
            self.out.text.push_str(if negated { "@!" } else { "@" });
            self.reg(reg);
            self.out.text.push(' ');
        }
    }

    fn reg(&mut self, reg: Reg) {
        let index = reg.0 as usize;
        let Some(info) = self.function.registers.get(index) else {
            return self.out.push(format_args!("%missing{}", reg.0));
        };
        let number = self.number(reg);
        self.out.push(format_args!("{}{}{number}", prefix(info.ty), self.suffix));
    }

    /// The number of a register within its class, given on first use.
    fn number(&mut self, reg: Reg) -> u32 {
        let index = reg.0 as usize;
        let (Some(info), Some(number)) = (self.function.registers.get(index), self.numbers.get_mut(index))
        else {
            return reg.0;
        };
        *number.get_or_insert_with(|| {
            let count = &mut self.counts[info.ty as usize];
            *count += 1;
            *count - 1
        })
    }

    /// The `.reg` lines of the registers that have appeared.
    fn registers(&self, out: &mut Text) {
        // Parameters have been declared, and have the lowest numbers of their class.
        let mut declared = vec![0u32; self.counts.len()];
        for p in self.function.returns.iter().chain(&self.function.params) {
            if let Some(ty) = p.register.and_then(|r| self.function.reg_type(r)) {
                declared[ty as usize] += 1;
            }
        }
        for (ty, (count, declared)) in ScalarType::ALL.iter().zip(self.counts.iter().zip(declared)) {
            let (prefix, suffix) = (prefix(*ty), &self.suffix);
            if declared == 0 && *count > 0 {
                out.line(format_args!("    .reg .{ty} {prefix}{suffix}<{count}>;"));
            }
            for n in declared..if declared == 0 { 0 } else { *count } {
                out.line(format_args!("    .reg .{ty} {prefix}{suffix}{n};"));
            }
        }
    }

    /// The prototypes and target lists of indirect calls.
    fn prototypes(&self, out: &mut Text) {
        for (i, prototype) in self.function.prototypes.iter().enumerate() {
            out.push(format_args!("{}p{i}: .callprototype ", self.label_prefix));
            declare::prototype(out, prototype);
            out.end(SourceLoc::Unknown);
        }
        for (i, targets) in self.function.call_targets.iter().enumerate() {
            out.push(format_args!("{}t{i}: .calltargets ", self.label_prefix));
            for (n, id) in targets.iter().enumerate() {
                let name = self.symbol_name(*id).unwrap_or("$missing");
                out.push(format_args!("{}{name}", if n > 0 { ", " } else { "" }));
            }
            out.text.push(';');
            out.end(SourceLoc::Unknown);
        }
    }

    fn symbol_name(&self, id: SymbolId) -> Option<&'m str> {
        let (module, function) = (self.module, self.function);
        match *function.symbols.get(id.0 as usize)? {
            Symbol::Param(i) => function.params.get(i as usize).map(|p| p.name.as_str()),
            Symbol::Return(i) => function.returns.get(i as usize).map(|p| p.name.as_str()),
            Symbol::ModuleVariable(i) => module.variables.get(i as usize).map(|v| v.name.as_str()),
            Symbol::LocalVariable(i) => function.variables.get(i as usize).map(|v| v.name.as_str()),
            Symbol::Function(i) => module.functions.get(i as usize).map(|f| f.name.as_str()),
        }
    }

    fn symbol(&mut self, id: SymbolId) {
        if let Some(Symbol::Function(i)) = self.function.symbols.get(id.0 as usize) {
            self.mentioned.push(*i);
        }
        match self.symbol_name(id) {
            Some(name) => self.out.text.push_str(name),
            None => self.out.push(format_args!("$missing{}", id.0)),
        }
    }
}
