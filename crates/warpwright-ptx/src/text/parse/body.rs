//! Function bodies: scopes, labels and the cutting of statements into basic blocks.

use std::collections::{HashMap, HashSet};

use super::functions::{Label, List};
use super::names::Hashing;
use super::{Diagnostic, MAX_NESTING, Parser, Read, rules};
use crate::inst::*;
use crate::module::*;
use crate::text::lex::{Kind, Token};
use crate::types::ScalarType;

/// A function under construction.
pub(super) struct Body<'a> {
    pub(super) function: Function,
    /// The block that is being filled; its id is `function.blocks.len()`.
    instructions: Vec<Instruction>,
    locations: Vec<SourceLoc>,
    /// Whether control can reach the current block even if it is empty.
    referenced: bool,
    /// The enclosing scopes by their number, innermost last, for labels.
    scopes: Vec<u32>,
    /// The scope around each scope.
    parents: Vec<Option<u32>>,
    labels: HashMap<(u32, &'a str), BlockId, Hashing>,
    branches: Vec<PendingBranch<'a>>,
    /// Lists of labels, prototypes and targets, by their scope and name.
    pub(super) lists: HashMap<(u32, &'a str), List<'a>, Hashing>,
    symbols: HashMap<Symbol, SymbolId, Hashing>,
    /// Indices into the function's source lines.
    lines: HashMap<SourceLine, u32, Hashing>,
    /// Names of parameters and variables that are taken.
    pub(super) local_names: HashSet<String>,
    renamed: HashMap<String, u32>,
}

/// A branch to a label that may stand further down.
struct PendingBranch<'a> {
    block: usize,
    /// Which of the targets of an indexed branch.
    target: usize,
    label: Label<'a>,
    scope: u32,
}

/// The target of a branch until its label is known.
const PENDING: BlockId = BlockId(u32::MAX);

impl Body<'_> {
    pub(super) fn new(function: Function) -> Self {
        Self {
            function,
            instructions: Vec::new(),
            locations: Vec::new(),
            referenced: true,
            scopes: Vec::new(),
            parents: Vec::new(),
            labels: HashMap::default(),
            branches: Vec::new(),
            lists: HashMap::default(),
            symbols: HashMap::default(),
            lines: HashMap::default(),
            local_names: HashSet::new(),
            renamed: HashMap::new(),
        }
    }

    fn current(&self) -> BlockId {
        BlockId(u32::try_from(self.function.blocks.len()).unwrap_or(u32::MAX))
    }

    fn after_current(&self, n: u32) -> BlockId {
        BlockId(self.current().0.saturating_add(n))
    }

    /// Ends the current block. Control reaches the next one only if something says so later.
    fn terminate(&mut self, terminator: Terminator, at: SourceLoc) {
        self.locations.push(at);
        self.function.blocks.push(Block {
            instructions: std::mem::take(&mut self.instructions),
            terminator,
            locations: std::mem::take(&mut self.locations),
        });
        self.referenced = false;
    }

    pub(super) fn scope(&self) -> u32 {
        self.scopes.last().copied().unwrap_or(0)
    }

    /// The scope around a scope.
    pub(super) fn parent(&self, scope: u32) -> Option<u32> {
        self.parents.get(scope as usize).copied().flatten()
    }

    /// The next instruction.
    fn here(&self) -> (BlockId, u32) {
        (self.current(), u32::try_from(self.instructions.len()).unwrap_or(u32::MAX))
    }

    /// Whether a pragma stands before the next instruction.
    fn has_pragma(&self) -> bool {
        self.function.pragmas.last().is_some_and(|p| (p.block, p.index) == self.here())
    }

    /// Pragmas that stand before the next instruction.
    pub(super) fn pragmas(&mut self, strings: Vec<String>) {
        let (block, index) = self.here();
        self.function.pragmas.extend(strings.into_iter().map(|text| Pragma { block, index, text }));
    }

    /// The number of a source line, added if it is new. A line at which something was inlined is the latest one of that
    /// place, which may itself have been inlined.
    pub(super) fn line_of(&mut self, [file, line, column]: [u32; 3], inlined_at: Option<u32>) -> u32 {
        let entry = SourceLine { file, line, column, inlined_at };
        let lines = &mut self.function.lines;
        *self.lines.entry(entry).or_insert_with(|| {
            lines.push(entry);
            u32::try_from(lines.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// From the next instruction on, this is the line.
    pub(super) fn start_line(&mut self, place: [u32; 3], inlined_at: Option<u32>) {
        let line = self.line_of(place, inlined_at);
        // An inlining further in refers to this place without saying where it was inlined itself.
        let bare = SourceLine { file: place[0], line: place[1], column: place[2], inlined_at: None };
        self.lines.insert(bare, line);
        let (block, index) = self.here();
        match self.function.line_starts.last_mut() {
            Some(last) if (last.block, last.index) == (block, index) => last.line = line,
            _ => self.function.line_starts.push(LineStart { block, index, line }),
        }
    }

    fn open_scope(&mut self) {
        let id = u32::try_from(self.parents.len()).unwrap_or(u32::MAX);
        self.parents.push(self.scopes.last().copied());
        self.scopes.push(id);
    }

    /// The block of a label, looked up from the inside out.
    fn find_label(&self, label: Label<'_>, scope: u32) -> Option<BlockId> {
        let numbered;
        let name = match label.number {
            Some(n) => {
                numbered = format!("{}{n}", label.name.text);
                numbered.as_str()
            }
            None => label.name.text,
        };
        let mut at = Some(scope);
        while let Some(scope) = at {
            if let Some(block) = self.labels.get(&(scope, name)) {
                return Some(*block);
            }
            at = self.parent(scope);
        }
        None
    }

    pub(super) fn symbol(&mut self, symbol: Symbol) -> SymbolId {
        let symbols = &mut self.function.symbols;
        *self.symbols.entry(symbol).or_insert_with(|| {
            symbols.push(symbol);
            SymbolId(u32::try_from(symbols.len() - 1).unwrap_or(u32::MAX))
        })
    }

    pub(super) fn push(&mut self, instruction: Instruction, at: SourceLoc) {
        self.instructions.push(instruction);
        self.locations.push(at);
    }
}

const fn location(at: Token<'_>) -> SourceLoc {
    SourceLoc::Ptx { line: at.line, column: at.column }
}

impl<'a> Parser<'a> {
    pub(super) fn start_function(&mut self, function: Function) {
        self.body = Body::new(function);
        self.names.start_function();
    }

    /// A name for a variable that no other variable or parameter of the function has.
    pub(super) fn unique_local(&mut self, name: &str) -> String {
        let mut unique = name.to_owned();
        if self.body.local_names.contains(name) {
            let counter = self.body.renamed.entry(unique.clone()).or_insert(0);
            loop {
                *counter += 1;
                unique = format!("{name}_{counter}");
                if !self.body.local_names.contains(&unique) && !self.names.is_known(&unique) {
                    break;
                }
            }
        }
        self.body.local_names.insert(unique.clone());
        unique
    }

    /// Reads a body from its `{` to its `}`.
    pub(super) fn body(&mut self) {
        // The names of the body share the scope of the parameters; its labels have their own.
        self.body.open_scope();
        self.advance();
        while !self.gave_up() {
            let from = self.checkpoint();
            let read = match self.token.kind {
                Kind::End => {
                    self.unexpected("`}`");
                    break;
                }
                Kind::Punct(b'}') => {
                    let at = location(self.advance());
                    self.close_scope();
                    if self.body.scopes.is_empty() {
                        self.end_of_body(at);
                        break;
                    }
                    Ok(())
                }
                Kind::Punct(b'{') => self.nested_scope(),
                Kind::Dot => self.body_directive(),
                Kind::Word => self.statement(),
                Kind::Punct(b'@') => self.guarded(),
                _ => Err(self.unexpected("an instruction")),
            };
            if read.is_err() {
                // The skipped text may have opened scopes whose `}` is still to come.
                for _ in 0..self.skip_statement(from).min(MAX_NESTING) {
                    self.open_scope();
                }
            }
        }
        if !self.body.scopes.is_empty() {
            self.end_of_body(SourceLoc::Unknown);
        }
        while !self.body.scopes.is_empty() {
            self.close_scope();
        }
        self.resolve_labels();
        self.rename_shadows();
    }

    /// The function that has been read.
    pub(super) fn finish_body(&mut self) -> Function {
        std::mem::replace(&mut self.body, Body::new(Function::entry(""))).function
    }

    fn open_scope(&mut self) {
        self.body.open_scope();
        self.names.open();
    }

    fn close_scope(&mut self) {
        self.body.scopes.pop();
        if !self.body.scopes.is_empty() {
            self.names.close();
        }
    }

    fn nested_scope(&mut self) -> Read<()> {
        let brace = self.token;
        if self.body.scopes.len() >= MAX_NESTING {
            self.fail(rules::LIMIT, brace, format!("more than {MAX_NESTING} nested scopes"));
            self.skip_braces();
            return Ok(());
        }
        self.advance();
        self.open_scope();
        Ok(())
    }

    /// Falling out of the body returns.
    fn end_of_body(&mut self, at: SourceLoc) {
        if self.body.referenced || !self.body.instructions.is_empty() {
            self.body.terminate(Terminator::Ret, at);
            self.body.function.falls_off = true;
        }
    }

    fn resolve_labels(&mut self) {
        for branch in std::mem::take(&mut self.body.branches) {
            let found = self.body.find_label(branch.label, branch.scope);
            if found.is_none() {
                let number = branch.label.number.map_or_else(String::new, |n| format!(" with number {n}"));
                let message = format!("there is no label {}{number} here", branch.label.name.shown());
                self.fail(rules::LABEL, branch.label.name, message);
            }
            let Some(block) = self.body.function.blocks.get_mut(branch.block) else { continue };
            match (&mut block.terminator, found) {
                (Terminator::Jump { to, .. } | Terminator::Branch { then: to, .. }, Some(found)) => {
                    *to = found;
                }
                (Terminator::BranchIndexed { targets, .. }, Some(found)) => {
                    if let Some(to) = targets.get_mut(branch.target) {
                        *to = found;
                    }
                }
                (terminator, None) => *terminator = Terminator::Ret,
                _ => {}
            }
        }
    }

    /// Gives a new name to each variable that hides a module variable or function which the function also uses.
    fn rename_shadows(&mut self) {
        let function = &self.body.function;
        let initial = function.variables.iter().flat_map(|v| &v.init).flat_map(|i| &i.addresses);
        let used: HashSet<&str> = (function.symbols.iter().chain(initial.map(|a| &a.symbol)))
            .filter_map(|symbol| match *symbol {
                Symbol::ModuleVariable(i) => self.module.variables.get(i as usize).map(|v| v.name.as_str()),
                Symbol::Function(i) => self.module.functions.get(i as usize).map(|f| f.name.as_str()),
                _ => None,
            })
            .collect();
        let hiding: Vec<(usize, String)> = (self.body.function.variables.iter().enumerate())
            .filter(|(_, variable)| used.contains(variable.name.as_str()))
            .map(|(i, variable)| (i, variable.name.clone()))
            .collect();
        for (index, name) in hiding {
            self.body.function.variables[index].name = self.unique_local(&name);
        }
    }

    /// `@%p instruction` or `@!%p instruction`
    fn guarded(&mut self) -> Read<()> {
        self.advance();
        let guard = self.predicate()?;
        let head = self.word("an instruction")?;
        if self.token.is(b':') {
            return Err(self.fail(
                rules::SYNTAX,
                head,
                "a guard stands before an instruction, not before a label",
            ));
        }
        self.instruction(head, Some(guard))
    }

    /// A label or an instruction.
    fn statement(&mut self) -> Read<()> {
        let head = self.advance();
        if self.token.is(b':') { self.label(head) } else { self.instruction(head, None) }
    }

    fn label(&mut self, name: Token<'a>) -> Read<()> {
        self.advance();
        if self.token.kind == Kind::Dot
            && matches!(self.token.text, "branchtargets" | "callprototype" | "calltargets")
        {
            return self.list(name);
        }
        let key = (self.body.scope(), name.text);
        if self.body.labels.contains_key(&key) {
            let message = format!("label {} is declared twice", name.shown());
            self.fail(rules::LABEL, name, message);
            return Ok(());
        }
        if !self.body.instructions.is_empty() || self.body.has_pragma() {
            let to = self.body.after_current(1);
            self.body.terminate(Terminator::Jump { to, uniform: false }, location(name));
        }
        self.body.referenced = true;
        let block = self.body.current();
        self.body.labels.insert(key, block);
        Ok(())
    }

    fn instruction(&mut self, head: Token<'a>, guard: Option<PredUse>) -> Read<()> {
        let mut modifiers = std::mem::take(&mut self.modifiers);
        modifiers.clear();
        while self.token.kind == Kind::Dot {
            modifiers.push(self.advance());
        }
        let read = match head.text {
            "bra" | "ret" | "exit" | "brx" => self.terminator(head, &modifiers, guard),
            _ => {
                let (at, said, complete) = (self.token, self.diagnostics.len(), self.complete);
                let mut read = self.operation(head, &modifiers);
                if read.is_err() && self.opcode_is_at_fault(at, said) {
                    read = self.opaque(head, &modifiers);
                    // The statement is in the module after all.
                    self.complete |= complete && read.is_ok();
                }
                read.and_then(|inst| {
                    self.expect(b';')?;
                    self.body.push(Instruction { guard, inst }, location(head));
                    Ok(())
                })
            }
        };
        self.modifiers = modifiers;
        read
    }

    /// Whether all that went wrong since `said` diagnostics lies in the opcode, the operands being still to be read.
    fn opcode_is_at_fault(&self, operands: Token<'_>, said: usize) -> bool {
        let untouched = (self.token.line, self.token.column) == (operands.line, operands.column);
        let new = self.diagnostics.get(said..).unwrap_or_default();
        let of_opcode =
            |d: &Diagnostic| matches!(d.rule, rules::UNKNOWN | rules::UNSUPPORTED | rules::MODIFIER);
        untouched && !new.is_empty() && new.iter().all(of_opcode)
    }

    fn terminator(&mut self, head: Token<'a>, modifiers: &[Token<'a>], guard: Option<PredUse>) -> Read<()> {
        let rest = match (head.text, modifiers) {
            ("brx", [idx, rest @ ..]) if idx.text == "idx" => rest,
            ("brx", _) => return Err(self.missing_modifier(head, "`.idx`")),
            (_, rest) => rest,
        };
        let uniform = match rest {
            [] => false,
            [uni] if uni.text == "uni" && head.text != "exit" => true,
            [other, ..] => return Err(self.unknown_modifier(head, *other)),
        };
        let scope = self.body.scope();
        let mut labels = Vec::new();
        let (end, scope) = match head.text {
            "bra" => {
                let name = self.word("a label")?;
                labels.push(Label { name, number: None });
                (Terminator::Jump { to: PENDING, uniform }, scope)
            }
            "brx" => {
                let (index, targets, scope) = self.indexed_branch()?;
                labels = targets;
                (Terminator::BranchIndexed { index, uniform, targets: vec![PENDING; labels.len()] }, scope)
            }
            "exit" => (Terminator::Exit, scope),
            _ => (Terminator::Ret, scope),
        };
        self.expect(b';')?;
        let at = location(head);
        let is_jump = matches!(end, Terminator::Jump { .. });
        match guard {
            // The block that leaves comes next, so that its lanes leave before the others go on.
            Some(pred) if !is_jump => {
                let (then, otherwise) = (self.body.after_current(1), self.body.after_current(2));
                let uniform = uniform && labels.is_empty();
                self.body.terminate(Terminator::Branch { pred, uniform, then, otherwise }, at);
            }
            _ => {}
        }
        let block = self.body.function.blocks.len();
        let pending = labels.into_iter().enumerate();
        let pending = pending.map(|(target, label)| PendingBranch { block, target, label, scope });
        self.body.branches.extend(pending);
        let end = match guard {
            Some(pred) if is_jump => {
                let otherwise = self.body.after_current(1);
                Terminator::Branch { pred, uniform, then: PENDING, otherwise }
            }
            _ => end,
        };
        self.body.terminate(end, at);
        self.body.referenced = guard.is_some();
        Ok(())
    }
}

impl<'a> Parser<'a> {
    /// The register of a name, made on first mention.
    pub(super) fn mention(&mut self, slot: super::names::Slot) -> Reg {
        let registers = &mut self.body.function.registers;
        self.names.mention(slot, |ty| {
            registers.push(RegInfo { ty, kind: RegKind::Variable });
            Reg(u32::try_from(registers.len() - 1).unwrap_or(u32::MAX))
        })
    }

    /// An instruction before the one that is being read.
    pub(super) fn insert(&mut self, inst: Inst) {
        self.body.push(inst.into(), location(self.token));
    }

    /// A register for a result that nobody reads, where the instruction cannot do without one.
    pub(super) fn unread(&mut self, ty: ScalarType) -> Reg {
        self.body.function.new_reg(ty, RegKind::Variable)
    }
}
