//! The recorder behind [`K`](crate::K): instructions, blocks and issues of one kernel while it is being written.

use std::cell::RefCell;
use std::panic::Location;

use warpwright_ptx::{
    Block, BlockId, Function, Inst, Instruction, PredUse, Reg, RegKind, ScalarType, SourceLoc, StateSpace,
    Symbol, SymbolId, Target, TensorTransfer, Terminator, Variable,
};

use crate::error::{Issue, IssueKind};
use crate::prune;

/// Instructions after which recording stops: far above any real kernel, far below what exhausts memory.
pub(crate) const INSTRUCTION_BUDGET: usize = 50_000;

/// Issues that are kept; later ones are mostly consequences of the first.
const KEPT_ISSUES: usize = 16;

pub(crate) struct Recorder {
    target: Target,
    block_dim: [u32; 3],
    cluster: u32,
    state: RefCell<State>,
}

struct State {
    function: Function,
    module_variables: Vec<Variable>,
    drafts: Vec<Draft>,
    /// Blocks in layout order: a nested construct is laid out before the block that follows it, whichever was
    /// created first.
    layout: Vec<usize>,
    current: usize,
    instructions: usize,
    issues: Vec<Issue>,
    /// Set while a library routine records on behalf of a user's line.
    on_behalf: Option<&'static Location<'static>>,
    stores: bool,
    dynamic_shared: Option<SymbolId>,
}

#[derive(Default)]
struct Draft {
    instructions: Vec<Instruction>,
    terminator: Option<Terminator>,
    locations: Vec<SourceLoc>,
}

impl Recorder {
    pub(crate) fn new(function: Function, target: Target, block_dim: [u32; 3], cluster: u32) -> Self {
        Self {
            target,
            block_dim,
            cluster,
            state: RefCell::new(State {
                function,
                module_variables: Vec::new(),
                drafts: vec![Draft::default()],
                layout: vec![0],
                current: 0,
                instructions: 0,
                issues: Vec::new(),
                on_behalf: None,
                stores: false,
                dynamic_shared: None,
            }),
        }
    }

    pub(crate) fn target(&self) -> Target {
        self.target
    }

    pub(crate) fn block_dim(&self) -> [u32; 3] {
        self.block_dim
    }

    pub(crate) fn cluster(&self) -> u32 {
        self.cluster
    }

    #[track_caller]
    pub(crate) fn push(&self, guard: Option<PredUse>, inst: Inst) {
        let caller = Location::caller();
        let mut state = self.state.borrow_mut();
        let location = state.on_behalf.unwrap_or(caller);
        if state.instructions >= INSTRUCTION_BUDGET {
            if state.instructions == INSTRUCTION_BUDGET {
                state.instructions += 1;
                state.keep(location, IssueKind::Budget { limit: INSTRUCTION_BUDGET });
            }
            return;
        }
        state.instructions += 1;
        state.stores |= match &inst {
            Inst::St { space, .. } | Inst::Atom { space, .. } => {
                matches!(space, StateSpace::Global | StateSpace::Generic)
            }
            Inst::TensorCopy(copy) => {
                matches!(copy.transfer, TensorTransfer::Store { .. } | TensorTransfer::Reduce { .. })
            }
            _ => false,
        };
        let current = state.current;
        let draft = &mut state.drafts[current];
        draft.instructions.push(Instruction { guard, inst });
        draft.locations.push(SourceLoc::Rust(location));
    }

    pub(crate) fn new_reg(&self, ty: ScalarType, kind: RegKind) -> Reg {
        self.state.borrow_mut().function.new_reg(ty, kind)
    }

    pub(crate) fn new_variable(&self, variable: Variable) -> SymbolId {
        let mut state = self.state.borrow_mut();
        let index = u32::try_from(state.function.variables.len()).unwrap_or(u32::MAX);
        state.function.variables.push(variable);
        state.function.symbol(Symbol::LocalVariable(index))
    }

    /// Adds a module-scope variable, which `make` builds from its number, and returns its symbol.
    pub(crate) fn new_module_variable(&self, make: impl FnOnce(usize) -> Variable) -> SymbolId {
        let mut state = self.state.borrow_mut();
        let index = state.module_variables.len();
        state.module_variables.push(make(index));
        state.function.symbol(Symbol::ModuleVariable(u32::try_from(index).unwrap_or(u32::MAX)))
    }

    /// The symbol of the launch's dynamic shared memory, of which a module has one.
    pub(crate) fn dynamic_shared(&self, align: u32) -> SymbolId {
        let known = self.state.borrow().dynamic_shared;
        if let Some(symbol) = known {
            return symbol;
        }
        let symbol = self.new_module_variable(|_| Variable {
            name: "dynamic_shared".to_owned(),
            space: StateSpace::Shared,
            ty: ScalarType::B8,
            align,
            len: None,
            array: true,
            linkage: warpwright_ptx::Linkage::Extern,
            init: None,
            managed: false,
            unified: None,
        });
        self.state.borrow_mut().dynamic_shared = Some(symbol);
        symbol
    }

    pub(crate) fn variable_count(&self) -> usize {
        self.state.borrow().function.variables.len()
    }

    /// Adds a parameter and returns its symbol.
    pub(crate) fn new_param(&self, param: warpwright_ptx::Param) -> SymbolId {
        let mut state = self.state.borrow_mut();
        let index = u32::try_from(state.function.params.len()).unwrap_or(u32::MAX);
        state.function.params.push(param);
        state.function.symbol(Symbol::Param(index))
    }

    #[track_caller]
    pub(crate) fn issue(&self, kind: IssueKind) {
        let caller = Location::caller();
        let mut state = self.state.borrow_mut();
        let location = state.on_behalf.unwrap_or(caller);
        state.keep(location, kind);
    }

    /// Marks everything that is recorded until the matching [`leave`](Self::leave) as coming from `location`, unless
    /// an outer routine has already said so.
    pub(crate) fn enter(&self, location: &'static Location<'static>) -> Option<&'static Location<'static>> {
        let mut state = self.state.borrow_mut();
        let before = state.on_behalf;
        state.on_behalf = before.or(Some(location));
        before
    }

    pub(crate) fn leave(&self, before: Option<&'static Location<'static>>) {
        self.state.borrow_mut().on_behalf = before;
    }

    /// A block that is not laid out yet.
    pub(crate) fn new_block(&self) -> BlockId {
        let mut state = self.state.borrow_mut();
        state.drafts.push(Draft::default());
        BlockId(u32::try_from(state.drafts.len() - 1).unwrap_or(u32::MAX))
    }

    /// Ends the current block.
    #[track_caller]
    pub(crate) fn terminate(&self, terminator: Terminator) {
        let caller = Location::caller();
        let mut state = self.state.borrow_mut();
        let location = state.on_behalf.unwrap_or(caller);
        let current = state.current;
        let draft = &mut state.drafts[current];
        draft.terminator = Some(terminator);
        draft.locations.push(SourceLoc::Rust(location));
    }

    /// Lays out `block` next and makes it current.
    pub(crate) fn place(&self, block: BlockId) {
        let mut state = self.state.borrow_mut();
        let at = block.0 as usize;
        state.layout.push(at);
        state.current = at;
    }

    pub(crate) fn has_stores(&self) -> bool {
        self.state.borrow().stores
    }

    /// The finished function, the module-scope variables that it uses, and the issues that were found.
    pub(crate) fn finish(self) -> (Function, Vec<Variable>, Vec<Issue>) {
        let mut state = self.state.into_inner();
        let mut new_id = vec![BlockId(0); state.drafts.len()];
        for (position, &draft) in state.layout.iter().enumerate() {
            new_id[draft] = BlockId(u32::try_from(position).unwrap_or(u32::MAX));
        }
        let rename = |b: BlockId| new_id.get(b.0 as usize).copied().unwrap_or(b);
        for &at in &state.layout {
            let draft = std::mem::take(&mut state.drafts[at]);
            let mut terminator = draft.terminator.unwrap_or(Terminator::Ret);
            terminator.rename_successors(rename);
            state.function.blocks.push(Block {
                instructions: draft.instructions,
                terminator,
                locations: draft.locations,
            });
        }
        prune::drop_unused(&mut state.function);
        (state.function, state.module_variables, state.issues)
    }
}

impl State {
    fn keep(&mut self, location: &'static Location<'static>, kind: IssueKind) {
        let issue = Issue { location, kind };
        if self.issues.len() < KEPT_ISSUES && !self.issues.contains(&issue) {
            self.issues.push(issue);
        }
    }
}
