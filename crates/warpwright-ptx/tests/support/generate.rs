//! Random modules over every shape of instruction. They follow the grammar, not the type rules.

mod families;

use warpwright_ptx::*;

/// Where the generator takes its decisions from. Zero is always the plainest choice, so that a shorter or smaller tape
/// gives a simpler module.
pub(crate) struct Choices<F>(pub(crate) F);

/// The most blocks of a function.
const MAX_BLOCKS: usize = 9;

const STORABLE: &[ScalarType] = &[
    ScalarType::B32,
    ScalarType::F32,
    ScalarType::Pred,
    ScalarType::B64,
    ScalarType::F64,
    ScalarType::B16,
    ScalarType::U32,
    ScalarType::S32,
    ScalarType::F16,
    ScalarType::F16x2,
    ScalarType::U64,
    ScalarType::S64,
    ScalarType::U16,
    ScalarType::S16,
    ScalarType::B8,
    ScalarType::U8,
    ScalarType::S8,
    ScalarType::B128,
];

impl<F: FnMut() -> u64> Choices<F> {
    fn below(&mut self, n: usize) -> usize {
        usize::try_from((self.0)() % n as u64).unwrap_or(0)
    }

    fn flag(&mut self) -> bool {
        self.below(4) == 3
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.flag() { Some(make(self)) } else { None }
    }

    fn u32(&mut self) -> u32 {
        u32::try_from((self.0)() & 0xFFFF_FFFF).unwrap_or(0)
    }

    /// A module with one or two kernels of up to `blocks` blocks.
    pub(crate) fn module(&mut self, blocks: usize) -> Module {
        let target = Target { sm: 75 + self.below(50) as u32, variant: TargetVariant::Plain };
        let mut module =
            Module::new(PtxVersion::new(6 + self.below(3) as u16, self.below(10) as u16), target);
        for i in 0..self.below(4) {
            let name = self.pick(&["tab", "%f", "$B", "dyn_"]);
            let space = self.pick(&[StateSpace::Global, StateSpace::Const, StateSpace::Shared]);
            let linkage = self.pick(&[Linkage::Internal, Linkage::Visible, Linkage::Weak, Linkage::Extern]);
            let variable = self.variable(format!("{name}{i}"), space, linkage);
            module.variables.push(variable);
        }
        for i in 0..=self.below(2) {
            let function = self.function(format!("kernel_{i}"), module.variables.len(), blocks);
            module.functions.push(function);
        }
        module
    }

    fn variable(&mut self, name: String, space: StateSpace, linkage: Linkage) -> Variable {
        let ty =
            self.pick(&[ScalarType::B8, ScalarType::F32, ScalarType::F64, ScalarType::U32, ScalarType::S64]);
        let array = self.flag() || self.flag();
        let align = 1 << self.below(8);
        if self.flag() && linkage == Linkage::Extern {
            let (managed, unified) = (false, None);
            let (len, array, init) = (None, true, None);
            return Variable { name, space, ty, align, len, array, linkage, init, managed, unified };
        }
        let len = if array { self.below(20) as u64 } else { 1 };
        let init = self.maybe(|c| {
            let elements = if array { c.below(len as usize + 1) } else { 1 };
            (0..elements * ty.bytes() as usize).map(|_| c.u32() as u8).collect()
        });
        let (managed, unified) = (false, None);
        Variable { name, space, ty, align, len: Some(len), array, linkage, init, managed, unified }
    }

    fn function(&mut self, name: String, module_variables: usize, blocks: usize) -> Function {
        let mut f = Function::entry(name);
        f.linkage = self.pick(&[Linkage::Visible, Linkage::Internal, Linkage::Weak]);
        for i in 0..self.below(4) {
            let name = self.pick(&["x", "%r", "$B", "_p"]);
            let ty = self.pick(&[ScalarType::U64, ScalarType::F32, ScalarType::B8, ScalarType::U16]);
            let mut param = Param::scalar(format!("{name}{i}"), ty);
            param.array = self.maybe(|c| 1 + c.below(128) as u64);
            param.align = self.maybe(|c| 1 << c.below(7)).unwrap_or(param.align);
            param.pointer = self.maybe(|c| PointerAttr {
                space: c.pick(&[StateSpace::Generic, StateSpace::Global, StateSpace::Shared]),
                align: c.maybe(|c| 1 << c.below(6)),
            });
            f.params.push(param);
            f.symbol(Symbol::Param(i as u32));
        }
        for i in 0..self.below(3) {
            let space = self.pick(&[StateSpace::Shared, StateSpace::Local]);
            let mut variable = self.variable(format!("local_{i}"), space, Linkage::Internal);
            variable.init = None;
            f.variables.push(variable);
            f.symbol(Symbol::LocalVariable(i as u32));
        }
        for i in 0..module_variables {
            f.symbol(Symbol::ModuleVariable(i as u32));
        }
        let d = &mut f.directives;
        let dims = |c: &mut Self| c.maybe(|c| [c.u32(), c.u32(), 1]);
        (d.max_threads, d.required_threads, d.cluster) = (dims(self), dims(self), dims(self));
        let number = |c: &mut Self| c.maybe(Self::u32);
        (d.min_blocks_per_sm, d.max_registers, d.max_cluster_rank) =
            (number(self), number(self), number(self));
        d.explicit_cluster = self.flag();
        for _ in 0..=self.below(24) {
            let ty = self.pick(STORABLE);
            f.new_reg(ty, RegKind::Variable);
        }
        let count = 1 + self.below(blocks.clamp(1, MAX_BLOCKS.max(blocks)));
        for _ in 0..count {
            let instructions = (0..self.below(4)).map(|_| self.instruction(&f)).collect();
            let terminator = self.terminator(&f, count);
            f.blocks.push(Block { instructions, terminator, locations: Vec::new() });
        }
        f
    }

    fn terminator(&mut self, f: &Function, blocks: usize) -> Terminator {
        let here = f.blocks.len();
        let target = |c: &mut Self| {
            // Near targets make fall-through, empty chains and guarded returns likely.
            let at = if c.flag() { c.below(blocks) } else { (here + 1 + c.below(2)).min(blocks - 1) };
            BlockId(at as u32)
        };
        match self.below(6) {
            0 | 1 => Terminator::Ret,
            2 => Terminator::Exit,
            3 => Terminator::Jump { to: target(self), uniform: self.flag() },
            _ => Terminator::Branch {
                pred: self.pred(f),
                uniform: self.flag(),
                then: target(self),
                otherwise: target(self),
            },
        }
    }

    fn reg(&mut self, f: &Function) -> Reg {
        Reg(self.below(f.registers.len()) as u32)
    }

    fn pred(&mut self, f: &Function) -> PredUse {
        PredUse { reg: self.reg(f), negated: self.flag() }
    }

    fn sink(&mut self, f: &Function) -> Option<Reg> {
        if self.flag() { None } else { Some(self.reg(f)) }
    }

    fn operand(&mut self, f: &Function) -> Operand {
        match self.below(6) {
            4 => Operand::Imm(self.imm()),
            5 => Operand::int(self.below(40) as i64 - 20),
            _ => self.reg(f).into(),
        }
    }

    fn imm(&mut self) -> Imm {
        let word = u64::from(self.u32()) << 32 | u64::from(self.u32());
        match self.below(5) {
            0 => Imm::F32(word as u32),
            1 => Imm::F64(word),
            2 => Imm::Int(self.pick(&[i64::MIN, i64::MAX, -1, 0, 0xFFFF_FFFF])),
            _ => Imm::Int(word.cast_signed()),
        }
    }

    fn offset(&mut self) -> i64 {
        self.pick(&[0, 4, -4, 16, i64::MAX, i64::MIN])
    }

    fn symbol(&mut self, f: &Function) -> Option<SymbolId> {
        if f.symbols.is_empty() { None } else { Some(SymbolId(self.below(f.symbols.len()) as u32)) }
    }

    fn source(&mut self, f: &Function) -> Operand {
        match (self.below(4), self.symbol(f)) {
            (2, _) => Operand::Special(self.special()),
            (3, Some(symbol)) => Operand::Symbol(symbol, self.offset()),
            _ => self.operand(f),
        }
    }

    fn special(&mut self) -> SpecialReg {
        let axis = self.pick(&[Axis::X, Axis::Y, Axis::Z]);
        match self.below(9) {
            0 => SpecialReg::Tid(axis),
            1 => SpecialReg::Ntid(axis),
            2 => SpecialReg::Ctaid(axis),
            3 => SpecialReg::Nctaid(axis),
            4 => SpecialReg::ClusterCtaid(axis),
            5 => SpecialReg::ClusterNctaid(axis),
            6 => SpecialReg::ClusterId(axis),
            7 => SpecialReg::NclusterId(axis),
            _ => SpecialReg::Plain(self.pick(PlainSpecial::ALL)),
        }
    }

    fn address(&mut self, f: &Function) -> Address {
        let offset = self.offset();
        let base = match (self.below(4), self.symbol(f)) {
            (2, Some(symbol)) => AddressBase::Symbol(symbol),
            (3, _) => AddressBase::Absolute,
            _ => AddressBase::Reg(self.reg(f)),
        };
        Address { base, offset }
    }

    /// Any instruction type but a predicate.
    fn ty(&mut self) -> ScalarType {
        self.pick(&ScalarType::ALL[1..])
    }

    fn mods(&mut self) -> Modifiers {
        if !self.flag() {
            return Modifiers::NONE;
        }
        Modifiers {
            rounding: self.maybe(|c| c.pick(Rounding::ALL)),
            approx: self.flag(),
            full: self.flag(),
            ftz: self.flag(),
            sat: self.flag(),
            relu: self.flag(),
            nan: self.flag(),
            xorsign_abs: self.flag(),
            satfinite: self.flag(),
            oob: self.flag(),
        }
    }

    fn combine(&mut self, f: &Function) -> Option<(BoolOp, PredUse)> {
        self.maybe(|c| (c.pick(BoolOp::ALL), c.pred(f)))
    }

    fn ordering(&mut self, of: &[Semantics]) -> Ordering {
        Ordering { semantics: self.pick(of), scope: self.maybe(|c| c.pick(Scope::ALL)) }
    }

    fn hints(&mut self, f: &Function) -> CacheHints {
        if !self.flag() {
            return CacheHints::NONE;
        }
        CacheHints {
            op: self.pick(CacheOp::ALL),
            l1: self.pick(L1Eviction::ALL),
            l2: self.pick(L2Eviction::ALL),
            l2_prefetch: self.pick(L2Prefetch::ALL),
            policy: self.maybe(|c| c.reg(f)),
        }
    }

    fn instruction(&mut self, f: &Function) -> Instruction {
        Instruction { guard: self.maybe(|c| c.pred(f)), inst: self.inst(f) }
    }

    fn inst(&mut self, f: &Function) -> Inst {
        let named_space = &StateSpace::ALL[1..];
        let (dst, a, b, c) = (self.reg(f), self.operand(f), self.operand(f), self.operand(f));
        let mask = self.operand(f);
        match self.below(44) {
            0 => Inst::Brkpt,
            1 => Inst::Unary { op: self.pick(UnaryOp::ALL), ty: self.ty(), mods: self.mods(), dst, a },
            2 | 3 => {
                Inst::Binary { op: self.pick(BinaryOp::ALL), ty: self.ty(), mods: self.mods(), dst, a, b }
            }
            4 | 5 => Inst::Ternary {
                op: self.pick(TernaryOp::ALL),
                ty: self.ty(),
                mods: self.mods(),
                dst,
                a,
                b,
                c,
            },
            6 => Inst::Bfi { ty: self.ty(), dst, a, b, pos: c, len: mask },
            7 => Inst::Lop3 { dst, a, b, c, lut: self.u32() as u8 },
            8 => Inst::Dp4a { a_ty: self.ty(), b_ty: self.ty(), dst, a, b, c },
            9 => Inst::Setp {
                cmp: self.pick(CmpOp::ALL),
                combine: self.combine(f),
                ty: self.ty(),
                ftz: self.flag(),
                dst,
                dst_not: self.maybe(|c| c.reg(f)),
                a,
                b,
            },
            10 => Inst::Set {
                cmp: self.pick(CmpOp::ALL),
                combine: self.combine(f),
                dst_ty: self.ty(),
                ty: self.ty(),
                ftz: self.flag(),
                dst,
                a,
                b,
            },
            11 => Inst::Selp { ty: self.ty(), dst, a, b, pred: self.reg(f) },
            12 => Inst::Slct { ty: self.ty(), c_ty: self.ty(), ftz: self.flag(), dst, a, b, c },
            13 => Inst::Mov { ty: self.ty(), dst, src: self.source(f) },
            14 => Inst::Pack { ty: self.ty(), dst, parts: vec![a, b, c][..2 + self.below(2)].to_vec() },
            15 => {
                let dsts = (0..2 + self.below(3)).map(|_| self.sink(f)).collect();
                Inst::Unpack { ty: self.ty(), dsts, src: a }
            }
            16 => Inst::PredBinary { op: self.pick(BoolOp::ALL), dst, a: self.reg(f), b: self.reg(f) },
            17 => Inst::PredNot { dst, a: self.reg(f) },
            18 => Inst::PredMov { dst, a: self.source(f) },
            19 => Inst::Cvt {
                to: self.ty(),
                from: self.ty(),
                mods: self.mods(),
                dst,
                a: if self.flag() { Operand::Special(self.special()) } else { a },
                b: self.maybe(|_| b),
            },
            20 => {
                let src = match (self.flag(), self.symbol(f)) {
                    (true, Some(symbol)) => Operand::Symbol(symbol, self.offset()),
                    _ => a,
                };
                Inst::Cvta {
                    to_space: self.flag(),
                    space: self.pick(named_space),
                    ty: ScalarType::U64,
                    dst,
                    src,
                }
            }
            21 => Inst::Isspacep { space: self.pick(named_space), dst, a },
            22 | 23 => {
                let dsts = (0..self.pick(&[1, 2, 4, 8])).map(|_| self.sink(f)).collect();
                Inst::Ld {
                    space: self.pick(StateSpace::ALL),
                    ty: self.ty(),
                    ordering: self.ordering(Semantics::ALL),
                    hints: self.hints(f),
                    non_coherent: self.flag(),
                    dsts,
                    addr: self.address(f),
                }
            }
            24 | 25 => {
                let srcs = (0..self.pick(&[1, 2, 4, 8])).map(|_| self.operand(f)).collect();
                Inst::St {
                    space: self.pick(StateSpace::ALL),
                    ty: self.ty(),
                    ordering: self.ordering(Semantics::ALL),
                    hints: self.hints(f),
                    srcs,
                    addr: self.address(f),
                }
            }
            26 => Inst::Prefetch {
                space: self.pick(StateSpace::ALL),
                level: self.pick(PrefetchLevel::ALL),
                addr: self.address(f),
            },
            27 => {
                let op = self.pick(AtomOp::ALL);
                let reduction = !matches!(op, AtomOp::Exch | AtomOp::Cas) && self.flag();
                Inst::Atom {
                    op,
                    space: self.pick(StateSpace::ALL),
                    ty: self.ty(),
                    ordering: self.ordering(&[
                        Semantics::Weak,
                        Semantics::Relaxed,
                        Semantics::Acquire,
                        Semantics::Release,
                        Semantics::AcqRel,
                    ]),
                    noftz: self.flag(),
                    dst: (!reduction).then_some(dst),
                    addr: self.address(f),
                    b,
                    c: (op == AtomOp::Cas).then_some(c),
                    policy: self.maybe(|c| c.reg(f)),
                }
            }
            28 => Inst::Shfl {
                mode: self.pick(ShflMode::ALL),
                dst,
                pred: self.maybe(|c| c.reg(f)),
                a,
                b,
                c,
                mask,
            },
            29 => Inst::Vote { mode: self.pick(VoteMode::ALL), dst, src: self.pred(f), mask },
            30 => match self.below(4) {
                0 => Inst::Match { all: true, ty: self.ty(), dst, pred: self.maybe(|c| c.reg(f)), a, mask },
                1 => Inst::Match { all: false, ty: self.ty(), dst, pred: None, a, mask },
                2 => Inst::Redux {
                    op: self.pick(ReduxOp::ALL),
                    abs: self.flag(),
                    nan: self.flag(),
                    ty: self.ty(),
                    dst,
                    a,
                    mask,
                },
                _ => Inst::Elect { dst: self.sink(f), pred: dst, mask },
            },
            31 => {
                let kind = match self.below(3) {
                    0 => BarrierKind::Sync,
                    1 => BarrierKind::Arrive,
                    _ => BarrierKind::Reduce { op: self.pick(BarRedOp::ALL), dst, src: self.pred(f) },
                };
                Inst::Barrier { kind, aligned: self.flag(), id: a, count: self.maybe(|_| b) }
            }
            32 => Inst::Fence { semantics: self.pick(FenceSemantics::ALL), scope: self.pick(Scope::ALL) },
            33 => match self.below(3) {
                0 => Inst::Trap,
                1 => Inst::WarpBarrier { mask },
                _ => Inst::Nanosleep { duration: a },
            },
            34 => Inst::Activemask { dst },
            _ => self.family(f),
        }
    }
}
