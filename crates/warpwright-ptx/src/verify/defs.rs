//! V-DEF: registers are assigned before they are read, and every name means something.

use std::collections::HashSet;

use super::{Breach, Checker, Rule, VerifyError, module_finding};
use crate::inst::{AddressBase, BlockId, Inst, Operand, PredUse, Reg, Role, SymbolId, Terminator};
use crate::module::{Module, RegKind, Symbol};

/// Where the registers of a function are defined.
pub(super) struct Facts {
    /// Definitions of register `r`: `sites[start[r]..start[r + 1]]`, in layout order.
    start: Vec<u32>,
    sites: Vec<Site>,
}

/// One definition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    pub(super) block: BlockId,
    pub(super) index: u32,
    /// The guard under which it happens.
    pub(super) guard: Option<PredUse>,
}

impl Facts {
    fn new(cx: &Checker<'_>) -> Self {
        let function = cx.function;
        let mut found: Vec<(u32, Site)> = Vec::new();
        for (b, block) in (0u32..).zip(&function.blocks) {
            for (i, instruction) in (0u32..).zip(&block.instructions) {
                instruction.inst.visit(|role, r| {
                    if role == Role::Def {
                        found.push((r.0, Site { block: BlockId(b), index: i, guard: instruction.guard }));
                    }
                });
            }
        }
        let n = function.registers.len();
        let mut start = vec![0u32; n + 1];
        for (r, _) in &found {
            start[*r as usize + 1] += 1;
        }
        for i in 0..n {
            start[i + 1] += start[i];
        }
        found.sort_by_key(|(r, _)| *r);
        Self { start, sites: found.into_iter().map(|(_, s)| s).collect() }
    }

    /// Every definition of `r`.
    pub(super) fn of(&self, r: Reg) -> &[Site] {
        let at = r.0 as usize;
        &self.sites[self.start[at] as usize..self.start[at + 1] as usize]
    }

    /// The instruction that defines `r` if there is one only and it has no guard.
    pub(super) fn single<'m>(&self, cx: &Checker<'m>, r: Reg) -> Option<&'m Inst> {
        match self.of(r) {
            [Site { block, index, guard: None }] => {
                Some(&cx.function.blocks.get(block.0 as usize)?.instructions.get(*index as usize)?.inst)
            }
            _ => None,
        }
    }
}

/// V-DEF-6 for the names of the module.
pub(super) fn check_names(module: &Module, findings: &mut Vec<VerifyError>) {
    let mut seen = HashSet::new();
    let functions = module.functions.iter().map(|f| &f.name);
    for name in module.variables.iter().map(|v| &v.name).chain(functions) {
        if !seen.insert(name) {
            module_finding(findings, Rule::Def6, "", Breach::DefinedTwice { name: name.clone() });
        }
    }
    for function in &module.functions {
        let mut seen = HashSet::new();
        let variables = function.variables.iter().map(|v| &v.name);
        for name in function.params.iter().map(|p| &p.name).chain(variables) {
            if !seen.insert(name) {
                module_finding(
                    findings,
                    Rule::Def6,
                    &function.name,
                    Breach::DefinedTwice { name: name.clone() },
                );
            }
        }
    }
}

/// V-DEF-5: whether everything that instructions name exists.
pub(super) fn check_references(cx: &mut Checker<'_>) -> bool {
    let before = cx.findings.len();
    let (module, function) = (cx.module, cx.function);
    let registers = function.registers.len();
    let symbol_exists = |id: SymbolId| match function.symbols.get(id.0 as usize) {
        Some(Symbol::Param(i)) => function.params.len() > *i as usize,
        Some(Symbol::ModuleVariable(i)) => module.variables.len() > *i as usize,
        Some(Symbol::LocalVariable(i)) => function.variables.len() > *i as usize,
        Some(Symbol::Return(i)) => function.returns.len() > *i as usize,
        Some(Symbol::Function(i)) => module.functions.len() > *i as usize,
        None => false,
    };
    cx.each(|cx, instruction| {
        let mut missing = None;
        instruction.inst.visit(|_, r| {
            if r.0 as usize >= registers {
                missing = Some(r);
            }
        });
        let missing = missing.or(instruction.guard.map(|g| g.reg).filter(|r| r.0 as usize >= registers));
        if let Some(r) = missing {
            cx.report(Rule::Def5, Breach::NoSuchRegister { register: r.0, registers });
        }
        if let Some(id) = symbol_of(&instruction.inst).filter(|id| !symbol_exists(*id)) {
            cx.report(Rule::Def5, Breach::NoSuchSymbol { symbol: id.0 });
        }
    });
    let mut branches = true;
    for (b, block) in (0u32..).zip(&function.blocks) {
        if let Some(reg) = block.terminator.condition()
            && reg.0 as usize >= registers
        {
            let breach = Breach::NoSuchRegister { register: reg.0, registers };
            cx.report_at(Rule::Def5, BlockId(b), block.instructions.len(), breach);
        }
        branches &= block.terminator.successors().all(|s| (s.0 as usize) < function.blocks.len());
    }
    branches && cx.findings.len() == before && !function.blocks.is_empty()
}

/// The symbol that an instruction names.
fn symbol_of(inst: &Inst) -> Option<SymbolId> {
    match inst {
        Inst::Mov { src: Operand::Symbol(id, _), .. } | Inst::Cvta { src: Operand::Symbol(id, _), .. } => {
            Some(*id)
        }
        Inst::Ld { addr, .. }
        | Inst::St { addr, .. }
        | Inst::Atom { addr, .. }
        | Inst::Prefetch { addr, .. } => match addr.base {
            AddressBase::Symbol(id) => Some(id),
            AddressBase::Reg(_) | AddressBase::Absolute => None,
        },
        _ => None,
    }
}

/// A read that no definition obviously covers.
struct Open {
    reg: Reg,
    block: BlockId,
    index: usize,
    /// The predicate that the reader has as its guard or selects by.
    under: Option<Reg>,
}

/// V-DEF-1 to V-DEF-4. References must exist.
pub(super) fn check(cx: &mut Checker<'_>) -> Facts {
    let facts = Facts::new(cx);
    let function = cx.function;
    for (r, info) in (0u32..).zip(&function.registers) {
        if info.kind == RegKind::Value
            && let [_, second, ..] = facts.of(Reg(r))
        {
            cx.report_at(Rule::Def1, second.block, second.index as usize, Breach::SecondDefinition);
        }
    }
    let mut open = Vec::new();
    // The block in which each register was last assigned, while walking the blocks in order.
    let mut assigned_in = vec![u32::MAX; function.registers.len()];
    for (b, block) in (0u32..).zip(&function.blocks) {
        let id = BlockId(b);
        if !cx.cfg.is_reachable(id) {
            continue;
        }
        for (index, instruction) in block.instructions.iter().enumerate() {
            let guard = instruction.guard.map(|g| g.reg);
            let under = match &instruction.inst {
                Inst::Selp { pred, .. } => Some(*pred),
                _ => guard,
            };
            let mut read = |r: Reg| use_of(cx, &facts, &assigned_in, &mut open, r, id, index, under);
            if let Some(g) = guard {
                read(g);
            }
            // Sums that the scale-d predicate discards may be undefined.
            let conditional = match &instruction.inst {
                Inst::Wgmma(w) => w.conditional_reads(),
                _ => &[],
            };
            instruction.inst.visit(|role, r| {
                if role == Role::Use && !conditional.contains(&r) {
                    read(r);
                }
            });
            if guard.is_none() {
                instruction.inst.visit(|role, r| {
                    if role == Role::Def {
                        assigned_in[r.0 as usize] = b;
                    }
                });
            }
        }
        if let Some(reg) = block.terminator.condition() {
            use_of(cx, &facts, &assigned_in, &mut open, reg, id, block.instructions.len(), None);
        }
    }
    resolve(cx, &facts, &open);
    facts
}

/// Judges one read, or leaves it for the data-flow analysis.
#[allow(clippy::too_many_arguments, reason = "the state of one walk, used in one place")]
fn use_of(
    cx: &mut Checker<'_>,
    facts: &Facts,
    assigned_in: &[u32],
    open: &mut Vec<Open>,
    reg: Reg,
    block: BlockId,
    index: usize,
    under: Option<Reg>,
) {
    if assigned_in[reg.0 as usize] == block.0 {
        return;
    }
    // A call assigns the parameters.
    if cx.function.params.iter().any(|p| p.register == Some(reg)) {
        return;
    }
    let dominating = |s: &Site| s.block != block && cx.cfg.dominates(s.block, block);
    let sites = facts.of(reg);
    if sites.iter().any(|s| s.guard.is_none() && dominating(s)) {
        return;
    }
    if cx.function.registers[reg.0 as usize].kind == RegKind::Value
        && let [site] = sites
    {
        let before = dominating(site) || (site.block == block && (site.index as usize) < index);
        if !before {
            cx.report_at(Rule::Def2, block, index, Breach::NotDominated);
            return;
        }
    }
    open.push(Open { reg, block, index, under });
}

/// Decides the open reads, 64 registers at a time: which may be unassigned, and which are on every path.
fn resolve(cx: &mut Checker<'_>, facts: &Facts, open: &[Open]) {
    let mut by_register: Vec<usize> = (0..open.len()).collect();
    by_register.sort_by_key(|i| open[*i].reg);
    let mut registers: Vec<Reg> = by_register.iter().map(|i| open[*i].reg).collect();
    registers.dedup();
    let mut verdicts = vec![Verdict::Assigned; open.len()];
    let mut rest = by_register.as_slice();
    for batch in registers.chunks(64) {
        let flow = Flow::new(cx, facts, batch);
        let here = rest.partition_point(|i| batch.binary_search(&open[*i].reg).is_ok());
        let (of_batch, later) = rest.split_at(here);
        rest = later;
        for at in of_batch {
            let o = &open[*at];
            let Ok(bit) = batch.binary_search(&o.reg) else { continue };
            // Definitions earlier in the block are guarded, or `use_of` would have been satisfied.
            let here = facts.of(o.reg).iter().any(|s| s.block == o.block && (s.index as usize) < o.index);
            let assigned = here || flow.assigned[o.block.0 as usize] & (1 << bit) != 0;
            let unassigned = flow.unassigned[o.block.0 as usize] & (1 << bit) != 0;
            verdicts[*at] = match (assigned, unassigned) {
                (false, _) => Verdict::Never,
                (true, true) if !excused(cx, facts, o) => Verdict::Maybe,
                _ => Verdict::Assigned,
            };
        }
    }
    // One finding per register: the rest are consequences.
    let mut told = HashSet::new();
    for (o, verdict) in open.iter().zip(verdicts) {
        let ty = cx.type_of(o.reg);
        let (rule, breach) = match verdict {
            Verdict::Assigned => continue,
            Verdict::Never if facts.of(o.reg).is_empty() => (Rule::Def3, Breach::NeverAssigned { ty }),
            Verdict::Never => (Rule::Def3, Breach::ReadBeforeAssigned { ty }),
            Verdict::Maybe => (Rule::Def4, Breach::NotAlwaysAssigned { ty }),
        };
        if told.insert((o.reg, rule)) {
            cx.report_at(rule, o.block, o.index, breach);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Assigned,
    Maybe,
    Never,
}

/// Whether guards explain why a read that the graph calls unassigned on some path is fine: the reader runs under the
/// predicate of a guarded definition, or two definitions have opposite guards.
fn excused(cx: &Checker<'_>, facts: &Facts, open: &Open) -> bool {
    let guards: Vec<PredUse> = facts.of(open.reg).iter().filter_map(|s| s.guard).collect();
    if guards.is_empty() {
        return false;
    }
    let opposite = |g: &PredUse| guards.contains(&PredUse { reg: g.reg, negated: !g.negated });
    if guards.iter().any(opposite) {
        return true;
    }
    let covers = |pred: Reg| guards.iter().any(|g| g.reg == pred);
    if open.under.is_some_and(covers) {
        return true;
    }
    // A branch on the same predicate on the way to the read.
    let mut at = cx.cfg.immediate_dominator(open.block);
    for _ in 0..64 {
        let Some(block) = at else { return false };
        match &cx.function.blocks[block.0 as usize].terminator {
            Terminator::Branch { pred, .. } if covers(pred.reg) => return true,
            _ => at = cx.cfg.immediate_dominator(block),
        }
    }
    false
}

/// State at the start of each block for up to 64 registers.
struct Flow {
    /// Registers that some path leaves unassigned.
    unassigned: Vec<u64>,
    /// Registers that some path assigns.
    assigned: Vec<u64>,
}

impl Flow {
    fn new(cx: &Checker<'_>, facts: &Facts, batch: &[Reg]) -> Self {
        let n = cx.function.blocks.len();
        let (mut always, mut sometimes) = (vec![0u64; n], vec![0u64; n]);
        for (bit, r) in batch.iter().enumerate() {
            for s in facts.of(*r) {
                sometimes[s.block.0 as usize] |= 1 << bit;
                if s.guard.is_none() {
                    always[s.block.0 as usize] |= 1 << bit;
                }
            }
        }
        let mut flow = Self { unassigned: vec![0; n], assigned: vec![0; n] };
        let all = if batch.len() == 64 { u64::MAX } else { (1 << batch.len()) - 1 };
        let mut changed = true;
        while changed {
            changed = false;
            for b in cx.cfg.reverse_postorder() {
                let at = b.0 as usize;
                let entry = if *b == cx.cfg.reverse_postorder()[0] { all } else { 0 };
                let (mut unassigned, mut assigned) = (entry, 0);
                for p in cx.cfg.predecessors(*b) {
                    let from = p.0 as usize;
                    if cx.cfg.is_reachable(*p) {
                        unassigned |= flow.unassigned[from] & !always[from];
                        assigned |= flow.assigned[from] | sometimes[from];
                    }
                }
                if (unassigned, assigned) != (flow.unassigned[at], flow.assigned[at]) {
                    (flow.unassigned[at], flow.assigned[at]) = (unassigned, assigned);
                    changed = true;
                }
            }
        }
        flow
    }
}
