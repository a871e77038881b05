//! Checks a module and says everything that is wrong with it.
//!
//! The rules are numbered, one family per file: `typing` (V-TYPE), `defs` (V-DEF), `target` (V-TARGET), `memory`
//! (V-MEM), `calls` (V-CALL), `convergence` (V-CONV) and the shape of the graph (V-CFG). The verifier accepts what the assembler
//! accepts and refuses what it refuses; beyond that it finds reads of unassigned registers, accesses that are provably misaligned
//! or out of bounds, and barriers in divergent code, which the assembler lets pass. Its time is near linear in the size of the
//! module.

mod barriers;
mod breach;
mod calls;
mod convergence;
mod defs;
mod divergence;
mod lanes;
mod memory;
mod pressure;
mod reaching;
mod rule;
mod target;
mod typing;
mod usage;

pub use barriers::{BarrierSafety, barrier_safety};
pub use breach::{Accesses, Breach, CallMisfit, CallRole, CallTarget, ParamType, WholeWarp};
pub use convergence::BarrierViolation;
pub use pressure::{Pressure, register_pressure};
pub use rule::{Rule, Severity};

use crate::cfg::Cfg;
use crate::inst::{BlockId, Inst, Instruction, Reg};
use crate::module::{Function, Module, SourceLoc};
use crate::types::ScalarType;

/// A breach of a rule.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VerifyError {
    /// The rule.
    pub rule: Rule,
    /// How serious it is.
    pub severity: Severity,
    /// The kernel; empty for what concerns the module.
    pub function: String,
    /// The block.
    pub block: BlockId,
    /// The instruction in the block; the number of instructions for the terminator.
    pub index: usize,
    /// Where the instruction came from.
    pub location: SourceLoc,
    /// How it is broken. `Display` gives the message.
    pub breach: Breach,
    /// Other places that explain it.
    pub notes: Vec<Note>,
    /// The usual repair.
    pub help: Option<&'static str>,
}

/// A place that explains a finding elsewhere.
#[derive(Clone, Debug)]
pub struct Note {
    /// The place.
    pub location: SourceLoc,
    /// How it explains the finding.
    pub kind: NoteKind,
}

/// How a place explains a finding elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoteKind {
    /// A branch that lanes of a warp take differently.
    #[error("this branch splits the warp")]
    SplitsWarp,
    /// A value that lanes of a warp have differently.
    #[error("{0} differs between the lanes of a warp")]
    Differs(String),
}

impl std::fmt::Display for VerifyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{}]: {}", self.severity, self.rule, self.breach)?;
        if !self.function.is_empty() {
            write!(f, " (kernel `{}`, block {}, instruction {})", self.function, self.block.0, self.index)?;
        }
        match self.location {
            SourceLoc::Unknown => Ok(()),
            SourceLoc::Rust(at) => write!(f, "\n  at {}:{}:{}", at.file(), at.line(), at.column()),
            SourceLoc::Ptx { line, column } => write!(f, "\n  at line {line}, column {column}"),
        }?;
        for Note { location, kind } in &self.notes {
            match location {
                SourceLoc::Unknown => write!(f, "\n  note: {kind}"),
                SourceLoc::Rust(at) => write!(f, "\n  note: {kind} (at {}:{})", at.file(), at.line()),
                SourceLoc::Ptx { line, .. } => write!(f, "\n  note: {kind} (at line {line})"),
            }?;
        }
        self.help.map_or(Ok(()), |help| write!(f, "\n  help: {help}"))
    }
}

impl std::error::Error for VerifyError {}

/// Everything that is wrong with `module`: errors and warnings, function by function in order of position.
pub fn verify(module: &Module) -> Vec<VerifyError> {
    let mut findings = Vec::new();
    target::check_module(module, &mut findings);
    defs::check_names(module, &mut findings);
    memory::check_declarations(module, &mut findings);
    calls::check_definitions(module, &mut findings);
    for function in module.functions.iter().filter(|f| !f.is_declaration()) {
        let mut cx = Checker::new(module, function);
        cx.graph();
        target::check(&mut cx);
        // Later analyses index registers, symbols and blocks freely, so nothing may be missing.
        if defs::check_references(&mut cx) {
            typing::check(&mut cx);
            cx.each(calls::parameters);
            let facts = defs::check(&mut cx);
            memory::check(&mut cx, &facts);
            convergence::check(&mut cx, &facts);
            usage::check(&mut cx);
        }
        let mut of_function = cx.findings;
        of_function.sort_by_key(|e| (e.block, e.index, e.rule));
        findings.append(&mut of_function);
    }
    findings
}

/// Whether any finding is an error.
pub fn has_errors(findings: &[VerifyError]) -> bool {
    findings.iter().any(|e| e.severity == Severity::Error)
}

/// A finding about the module rather than an instruction.
fn module_finding(findings: &mut Vec<VerifyError>, rule: Rule, function: &str, breach: Breach) {
    findings.push(VerifyError {
        rule,
        severity: rule.severity(),
        function: function.to_owned(),
        block: BlockId(0),
        index: 0,
        location: SourceLoc::Unknown,
        breach,
        notes: Vec::new(),
        help: None,
    });
}

/// One function under examination.
struct Checker<'m> {
    module: &'m Module,
    function: &'m Function,
    cfg: Cfg,
    findings: Vec<VerifyError>,
    /// Where findings go: set by the walks.
    block: BlockId,
    index: usize,
}

impl<'m> Checker<'m> {
    fn new(module: &'m Module, function: &'m Function) -> Self {
        let cfg = Cfg::new(function);
        Self { module, function, cfg, findings: Vec::new(), block: BlockId(0), index: 0 }
    }

    /// Reports at the current position.
    fn report(&mut self, rule: Rule, breach: Breach) {
        let (block, index) = (self.block, self.index);
        self.report_at(rule, block, index, breach);
    }

    fn report_at(&mut self, rule: Rule, block: BlockId, index: usize, breach: Breach) {
        let location =
            self.function.blocks.get(block.0 as usize).map_or(SourceLoc::Unknown, |b| b.location(index));
        self.findings.push(VerifyError {
            rule,
            severity: rule.severity(),
            function: self.function.name.clone(),
            block,
            index,
            location,
            breach,
            notes: Vec::new(),
            help: None,
        });
    }

    /// Reports at the current position, with other places and what to do.
    fn report_with(&mut self, rule: Rule, breach: Breach, notes: Vec<Note>, help: Option<&'static str>) {
        self.report(rule, breach);
        if let Some(last) = self.findings.last_mut() {
            (last.notes, last.help) = (notes, help);
        }
    }

    /// Reports about the function as a whole.
    fn report_function(&mut self, rule: Rule, breach: Breach) {
        module_finding(&mut self.findings, rule, &self.function.name, breach);
    }

    /// Calls `f` for every instruction, with the position set.
    fn each(&mut self, mut f: impl FnMut(&mut Self, &'m Instruction)) {
        for (b, block) in (0u32..).zip(&self.function.blocks) {
            self.block = BlockId(b);
            for (i, instruction) in block.instructions.iter().enumerate() {
                self.index = i;
                f(self, instruction);
            }
        }
    }

    /// The type of a register; `Pred` for one that does not exist, which is reported elsewhere.
    fn type_of(&self, r: Reg) -> ScalarType {
        self.function.reg_type(r).unwrap_or(ScalarType::Pred)
    }

    /// V-CFG: the shape of the graph.
    fn graph(&mut self) {
        let function = self.function;
        let n = function.blocks.len();
        if n == 0 {
            self.report_function(Rule::Cfg1, Breach::NoBlock);
            return;
        }
        for (b, block) in (0u32..).zip(&function.blocks) {
            let id = BlockId(b);
            let end = block.instructions.len();
            for to in block.terminator.successors() {
                if to.0 as usize >= n {
                    self.report_at(Rule::Cfg1, id, end, Breach::NoSuchBlock { to: to.0, blocks: n });
                }
            }
            // Labels that mark the end of a function for debuggers stand before nothing.
            let end_mark = function.falls_off && b as usize == n - 1 && block.instructions.is_empty();
            if !self.cfg.is_reachable(id) && !end_mark {
                self.report_at(Rule::Cfg2, id, 0, Breach::Unreachable);
            }
        }
        if function.falls_off
            && let Some((block, last)) = function.blocks.last().zip(u32::try_from(n - 1).ok())
            && self.cfg.is_reachable(BlockId(last))
        {
            self.report_at(Rule::Cfg4, BlockId(last), block.instructions.len(), Breach::FallsOff);
        }
        // A branch out of the kernel has been reported; what lies behind it is not known.
        if !self.findings.iter().any(|e| e.rule == Rule::Cfg1) {
            self.endless();
        }
    }

    /// Reports the first block of each part of the graph from which no path ends the kernel.
    fn endless(&mut self) {
        let function = self.function;
        let mut ends = vec![false; function.blocks.len()];
        let mut todo = Vec::new();
        for (b, block) in (0u32..).zip(&function.blocks) {
            let traps = block.instructions.iter().any(|i| i.guard.is_none() && i.inst == Inst::Trap);
            if traps || block.terminator.successors().next().is_none() {
                ends[b as usize] = true;
                todo.push(BlockId(b));
            }
        }
        while let Some(b) = todo.pop() {
            for p in self.cfg.predecessors(b) {
                if !std::mem::replace(&mut ends[p.0 as usize], true) {
                    todo.push(*p);
                }
            }
        }
        let order = self.cfg.reverse_postorder().to_vec();
        for b in order {
            let is_first =
                self.cfg.predecessors(b).iter().all(|p| {
                    ends[p.0 as usize] || !self.cfg.is_reachable(*p) || self.cfg.is_back_edge(*p, b)
                });
            if !ends[b.0 as usize] && is_first {
                self.report_at(Rule::Cfg3, b, 0, Breach::Endless);
            }
        }
    }
}
