//! Which definition of a register reaches which use.
//!
//! Static single assignment beside the instructions: every definition has a number, and where several of a register come
//! together stands a merge, which is a definition too (Cytron and others, *Efficiently Computing Static Single Assignment
//! Form*; merges only of registers that some block reads before it assigns them, as Briggs and others have it). A definition
//! under a guard is one that also lets the one before it through.

use std::collections::HashMap;

use super::Checker;
use super::defs::Facts;
use crate::inst::{BlockId, Inst, Reg, Role};

/// A definition; the first one is that of the kernel's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Definition(u32);

impl Definition {
    /// Parameters, and registers that nothing has assigned.
    pub(super) const START: Self = Self(0);

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a definition stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) block: BlockId,
    /// The instruction; `None` for a merge at the start of the block.
    pub(super) instruction: Option<u32>,
}

/// Several definitions of one register that come together at the start of a block.
#[derive(Clone, Debug)]
pub(super) struct Merge {
    pub(super) definition: Definition,
    register: Reg,
    /// The definitions that reach the ends of the block's predecessors.
    pub(super) of: Vec<Definition>,
}

/// The definitions of a function and their uses. Blocks that nothing reaches are left out.
#[derive(Debug)]
pub(super) struct Reaching {
    origins: Vec<Origin>,
    merges: Vec<Vec<Merge>>,
    /// Number of the first instruction of each block.
    first: Vec<usize>,
    /// By number of an instruction: where its definitions begin in `operands`.
    start: Vec<usize>,
    /// Registers read and written, in the order of [`Inst::visit`].
    operands: Vec<Definition>,
    guards: Vec<Definition>,
    conditions: Vec<Definition>,
    /// Of definitions under a guard, those before them.
    before: HashMap<Definition, Definition>,
}

impl Reaching {
    pub(super) fn new(cx: &Checker<'_>, facts: &Facts) -> Self {
        let blocks = &cx.function.blocks;
        let mut this = Self {
            origins: vec![Origin { block: BlockId(0), instruction: None }],
            merges: vec![Vec::new(); blocks.len()],
            first: Vec::with_capacity(blocks.len()),
            start: Vec::new(),
            operands: Vec::new(),
            guards: Vec::new(),
            conditions: vec![Definition::START; blocks.len()],
            before: HashMap::new(),
        };
        for (b, block) in (0u32..).zip(blocks) {
            this.first.push(this.start.len());
            for (index, instruction) in (0u32..).zip(&block.instructions) {
                this.start.push(this.operands.len());
                instruction.inst.visit(|role, _| {
                    let definition = match role {
                        Role::Def => this.define(BlockId(b), Some(index)),
                        Role::Use => Definition::START,
                    };
                    this.operands.push(definition);
                });
            }
        }
        this.start.push(this.operands.len());
        this.guards = vec![Definition::START; this.start.len()];
        let registers = cx.function.registers.len();
        let merged: Vec<bool> = (0u32..)
            .take(registers)
            .map(|r| facts.of(Reg(r)).len() > 1 || facts.of(Reg(r)).iter().any(|s| s.guard.is_some()))
            .collect();
        this.place(cx, facts, &merged);
        Renaming::new(cx, &merged, &this).run(cx, &mut this);
        this
    }

    fn define(&mut self, block: BlockId, instruction: Option<u32>) -> Definition {
        let number = u32::try_from(self.origins.len()).unwrap_or(u32::MAX);
        self.origins.push(Origin { block, instruction });
        Definition(number)
    }

    pub(super) fn len(&self) -> usize {
        self.origins.len()
    }

    pub(super) fn origin(&self, definition: Definition) -> Origin {
        self.origins[definition.index()]
    }

    pub(super) fn merges(&self, block: BlockId) -> &[Merge] {
        &self.merges[block.0 as usize]
    }

    fn number(&self, block: BlockId, index: usize) -> usize {
        self.first[block.0 as usize] + index
    }

    /// The definitions that an instruction reads and makes, in the order of [`Inst::visit`].
    pub(super) fn operands(&self, block: BlockId, index: usize) -> &[Definition] {
        let number = self.number(block, index);
        &self.operands[self.start[number]..self.start[number + 1]]
    }

    /// The definition of an operand that an instruction reads.
    pub(super) fn read(&self, (block, index): (BlockId, usize), inst: &Inst, register: Reg) -> Definition {
        let mut operands = self.operands(block, index).iter();
        let mut found = Definition::START;
        inst.visit(|role, r| {
            let operand = operands.next();
            if role == Role::Use && r == register {
                found = operand.copied().unwrap_or(Definition::START);
            }
        });
        found
    }

    /// The definition that an instruction makes, if it is one only.
    pub(super) fn made(&self, block: BlockId, index: usize, inst: &Inst) -> Option<Definition> {
        let mut operands = self.operands(block, index).iter();
        let (mut made, mut several) = (None, false);
        inst.visit(|role, _| {
            if let (Role::Def, Some(definition)) = (role, operands.next()) {
                several |= made.replace(*definition).is_some();
            }
        });
        made.filter(|_| !several)
    }

    /// The definition of the guard of an instruction that has one.
    pub(super) fn guard(&self, block: BlockId, index: usize) -> Definition {
        self.guards[self.number(block, index)]
    }

    /// The definition of what the end of a block branches on.
    pub(super) fn condition(&self, block: BlockId) -> Definition {
        self.conditions[block.0 as usize]
    }

    /// The definition that one under a guard lets through.
    pub(super) fn before(&self, definition: Definition) -> Option<Definition> {
        self.before.get(&definition).copied()
    }

    /// Places merges in the dominance frontiers of the definitions.
    fn place(&mut self, cx: &Checker<'_>, facts: &Facts, merged: &[bool]) {
        let exposed = exposed(cx, merged);
        let frontiers = frontiers(cx);
        let mut has_merge = vec![u32::MAX; cx.function.blocks.len()];
        for r in (0u32..).zip(&exposed).filter(|(_, exposed)| **exposed).map(|(r, _)| r) {
            let mut todo: Vec<BlockId> = facts.of(Reg(r)).iter().map(|s| s.block).collect();
            while let Some(b) = todo.pop() {
                for at in &frontiers[b.0 as usize] {
                    if std::mem::replace(&mut has_merge[at.0 as usize], r) != r {
                        let definition = self.define(*at, None);
                        let merge = Merge { definition, register: Reg(r), of: Vec::new() };
                        self.merges[at.0 as usize].push(merge);
                        todo.push(*at);
                    }
                }
            }
        }
    }
}

/// The registers of several definitions that some block reads before it assigns them for certain.
fn exposed(cx: &Checker<'_>, merged: &[bool]) -> Vec<bool> {
    let mut exposed = vec![false; merged.len()];
    let mut assigned = vec![u32::MAX; merged.len()];
    for (b, block) in (0u32..).zip(&cx.function.blocks) {
        for instruction in &block.instructions {
            let guard = instruction.guard.map(|g| g.reg);
            if let Some(g) = guard {
                exposed[g.0 as usize] |= merged[g.0 as usize] && assigned[g.0 as usize] != b;
            }
            instruction.inst.visit(|role, r| {
                let at = r.0 as usize;
                if role == Role::Use || guard.is_some() {
                    exposed[at] |= merged[at] && assigned[at] != b;
                }
            });
            if guard.is_none() {
                instruction.inst.visit(|role, r| {
                    if role == Role::Def {
                        assigned[r.0 as usize] = b;
                    }
                });
            }
        }
        if let Some(r) = block.terminator.condition() {
            exposed[r.0 as usize] |= merged[r.0 as usize] && assigned[r.0 as usize] != b;
        }
    }
    exposed
}

/// The dominance frontier of each block.
fn frontiers(cx: &Checker<'_>) -> Vec<Vec<BlockId>> {
    let mut frontiers: Vec<Vec<BlockId>> = vec![Vec::new(); cx.function.blocks.len()];
    for b in cx.cfg.reverse_postorder() {
        let before = cx.cfg.predecessors(*b);
        let above = cx.cfg.immediate_dominator(*b);
        // The entry may be the head of a loop.
        if before.len() < 2 && above.is_some() {
            continue;
        }
        for p in before.iter().filter(|p| cx.cfg.is_reachable(**p)) {
            let mut at = Some(*p);
            while let Some(runner) = at.filter(|r| Some(*r) != above) {
                let frontier = &mut frontiers[runner.0 as usize];
                // Those above have it already.
                if frontier.last() == Some(b) {
                    break;
                }
                frontier.push(*b);
                at = cx.cfg.immediate_dominator(runner);
            }
        }
    }
    frontiers
}

/// The walk over the dominator tree that gives uses their definitions.
struct Renaming {
    /// Blocks that each block dominates immediately.
    children: Vec<Vec<BlockId>>,
    merged: Vec<bool>,
    /// The definition of each register that holds now.
    current: Vec<Definition>,
    /// Definitions to restore on the way up.
    replaced: Vec<(Reg, Definition)>,
}

enum Step {
    Enter(BlockId),
    Leave(usize),
}

impl Renaming {
    fn new(cx: &Checker<'_>, merged: &[bool], reaching: &Reaching) -> Self {
        let mut children = vec![Vec::new(); cx.function.blocks.len()];
        for b in cx.cfg.reverse_postorder() {
            if let Some(above) = cx.cfg.immediate_dominator(*b) {
                children[above.0 as usize].push(*b);
            }
        }
        // A single definition reaches every use.
        let mut current = vec![Definition::START; merged.len()];
        for (b, block) in (0u32..).zip(&cx.function.blocks) {
            for (index, instruction) in block.instructions.iter().enumerate() {
                let mut operands = reaching.operands(BlockId(b), index).iter();
                instruction.inst.visit(|role, r| {
                    let operand = operands.next();
                    if let (Role::Def, Some(definition)) = (role, operand)
                        && !merged[r.0 as usize]
                    {
                        current[r.0 as usize] = *definition;
                    }
                });
            }
        }
        Self { children, merged: merged.to_vec(), current, replaced: Vec::new() }
    }

    fn run(mut self, cx: &Checker<'_>, reaching: &mut Reaching) {
        let mut steps = vec![Step::Enter(BlockId(0))];
        while let Some(step) = steps.pop() {
            match step {
                Step::Enter(b) => {
                    steps.push(Step::Leave(self.replaced.len()));
                    self.block(cx, reaching, b);
                    steps.extend(self.children[b.0 as usize].iter().map(|c| Step::Enter(*c)));
                }
                Step::Leave(depth) => {
                    for (r, definition) in self.replaced.drain(depth..).rev() {
                        self.current[r.0 as usize] = definition;
                    }
                }
            }
        }
    }

    fn assign(&mut self, r: Reg, definition: Definition) -> Definition {
        let old = std::mem::replace(&mut self.current[r.0 as usize], definition);
        self.replaced.push((r, old));
        old
    }

    fn block(&mut self, cx: &Checker<'_>, reaching: &mut Reaching, b: BlockId) {
        for merge in &reaching.merges[b.0 as usize] {
            self.assign(merge.register, merge.definition);
        }
        let block = &cx.function.blocks[b.0 as usize];
        for (index, instruction) in block.instructions.iter().enumerate() {
            let number = reaching.number(b, index);
            if let Some(g) = instruction.guard {
                reaching.guards[number] = self.current[g.reg.0 as usize];
            }
            let first = reaching.start[number];
            let mut at = first;
            instruction.inst.visit(|role, r| {
                if role == Role::Use {
                    reaching.operands[at] = self.current[r.0 as usize];
                }
                at += 1;
            });
            at = first;
            instruction.inst.visit(|role, r| {
                if role == Role::Def && self.merged[r.0 as usize] {
                    let definition = reaching.operands[at];
                    let old = self.assign(r, definition);
                    if instruction.guard.is_some() {
                        reaching.before.insert(definition, old);
                    }
                }
                at += 1;
            });
        }
        if let Some(r) = block.terminator.condition() {
            reaching.conditions[b.0 as usize] = self.current[r.0 as usize];
        }
        for s in cx.cfg.successors(b) {
            for merge in &mut reaching.merges[s.0 as usize] {
                merge.of.push(self.current[merge.register.0 as usize]);
            }
        }
    }
}
