//! Control flow on the device: branches that return values, loops with carried state.

use warpwright_ptx::{Inst, PredUse, RegKind, ScalarType, Terminator};

use crate::context::K;
use crate::error::IssueKind;
use crate::lanes::Lanes;
use crate::reg::{F32, F64, Integer, Pred, Reg, Scalar, Source, U32, U64};

/// A register without its Rust type, as [`Carry`] passes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawReg {
    /// The register.
    pub id: warpwright_ptx::Reg,
    /// The type that it is declared with.
    pub ty: ScalarType,
}

/// Registers from which a value of a known shape is built again.
#[derive(Debug)]
pub struct RawRegs {
    rest: std::vec::IntoIter<RawReg>,
}

impl RawRegs {
    pub(crate) fn new(regs: Vec<RawReg>) -> Self {
        Self { rest: regs.into_iter() }
    }

    /// The next register, or `fallback` if there is none.
    pub fn next_or(&mut self, fallback: warpwright_ptx::Reg) -> warpwright_ptx::Reg {
        self.rest.next().map_or(fallback, |r| r.id)
    }
}

/// Values that a branch can return and a loop can carry: registers, tuples, arrays, vectors, [`Lanes`], `()`, and structs through
/// [`carry!`](crate::carry).
pub trait Carry<'k>: Sized {
    /// Appends the registers in a fixed order.
    fn collect(&self, regs: &mut Vec<RawReg>);

    /// A value of the same shape with other registers, in the same order.
    fn rebuild(&self, regs: &mut RawRegs) -> Self;

    /// A value of the same shape whose words of 32 bits are what `f` makes of those of this one, in order. Registers of other than 32
    /// or 64 bits are an issue.
    #[doc(hidden)]
    #[track_caller]
    fn map_words(&self, k: K<'k>, mut f: impl FnMut(U32<'k>) -> U32<'k>) -> Self {
        let mut regs = Vec::new();
        self.collect(&mut regs);
        let moved = regs.iter().map(|&RawReg { id, ty }| {
            let id = match ty {
                ScalarType::B32 => f(Reg::from_id(k, id)).id(),
                ScalarType::F32 => F32::from_bits(f(Reg::<f32>::from_id(k, id).to_bits())).id(),
                ScalarType::F64 => {
                    let (low, high) = Reg::<f64>::from_id(k, id).to_bits().words();
                    F64::from_bits(U64::from_words(f(low), f(high))).id()
                }
                ScalarType::B64 => {
                    let (low, high) = Reg::<u64>::from_id(k, id).words();
                    U64::from_words(f(low), f(high)).id()
                }
                _ => {
                    k.issue(IssueKind::Shuffle { register: ty });
                    id
                }
            };
            RawReg { id, ty }
        });
        self.rebuild(&mut RawRegs::new(moved.collect()))
    }
}

impl<'k, T: Scalar> Carry<'k> for Reg<'k, T> {
    fn collect(&self, regs: &mut Vec<RawReg>) {
        regs.push(RawReg { id: self.id(), ty: T::REGISTER });
    }

    fn rebuild(&self, regs: &mut RawRegs) -> Self {
        Reg::from_id(self.k(), regs.next_or(self.id()))
    }
}

impl Carry<'_> for () {
    fn collect(&self, _: &mut Vec<RawReg>) {}

    fn rebuild(&self, _: &mut RawRegs) -> Self {}
}

impl<'k, C: Carry<'k>, const N: usize> Carry<'k> for [C; N] {
    fn collect(&self, regs: &mut Vec<RawReg>) {
        for item in self {
            item.collect(regs);
        }
    }

    fn rebuild(&self, regs: &mut RawRegs) -> Self {
        std::array::from_fn(|i| self[i].rebuild(regs))
    }
}

impl<'k, C: Carry<'k>> Carry<'k> for Vec<C> {
    fn collect(&self, regs: &mut Vec<RawReg>) {
        for item in self {
            item.collect(regs);
        }
    }

    fn rebuild(&self, regs: &mut RawRegs) -> Self {
        self.iter().map(|item| item.rebuild(regs)).collect()
    }
}

impl<'k, T: Scalar> Carry<'k> for Lanes<'k, T> {
    fn collect(&self, regs: &mut Vec<RawReg>) {
        for lane in self.iter() {
            lane.collect(regs);
        }
    }

    fn rebuild(&self, regs: &mut RawRegs) -> Self {
        self.iter().map(|lane| lane.rebuild(regs)).collect()
    }
}

macro_rules! tuples {
    ($($($name:ident $index:tt),+;)*) => {$(
        impl<'k, $($name: Carry<'k>),+> Carry<'k> for ($($name,)+) {
            fn collect(&self, regs: &mut Vec<RawReg>) {
                $(self.$index.collect(regs);)+
            }

            fn rebuild(&self, regs: &mut RawRegs) -> Self {
                ($(self.$index.rebuild(regs),)+)
            }
        }
    )*};
}

tuples! {
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
}

/// Implements [`Carry`] for a struct whose listed fields (all of them) are `Carry`.
///
/// ```
/// use warpwright_dsl::prelude::*;
/// struct Moments<'k> {
///     count: F32<'k>,
///     mean: F32<'k>,
/// }
/// warpwright_dsl::carry!(Moments { count, mean });
/// ```
#[macro_export]
macro_rules! carry {
    ($name:ident $(<$($param:ident: $bound:path),+>)? { $($field:ident),+ $(,)? }) => {
        impl<'k $(, $($param: $bound),+)?> $crate::flow::Carry<'k> for $name<'k $(, $($param),+)?> {
            fn collect(&self, regs: &mut Vec<$crate::flow::RawReg>) {
                $($crate::flow::Carry::collect(&self.$field, regs);)+
            }

            fn rebuild(&self, regs: &mut $crate::flow::RawRegs) -> Self {
                Self { $($field: $crate::flow::Carry::rebuild(&self.$field, regs)),+ }
            }
        }
    };
}

/// The values of a loop: from `start` in steps while below `end`.
#[derive(Debug)]
pub struct Range<'k, T: Integer> {
    start: Reg<'k, T>,
    end: Reg<'k, T>,
    step: Reg<'k, T>,
}

impl<T: Integer> Clone for Range<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Integer> Copy for Range<'_, T> {}

impl<'k> K<'k> {
    /// The integers from `start` below `end` in steps of `step`, which must be positive. `end + step` must not overflow
    /// the type.
    #[track_caller]
    pub fn range<T: Integer>(
        self,
        start: impl Source<'k, T>,
        end: impl Source<'k, T>,
        step: impl Source<'k, T>,
    ) -> Range<'k, T> {
        Range { start: start.reg(self), end: end.reg(self), step: step.reg(self) }
    }

    /// Runs `body` where `p` holds.
    #[track_caller]
    pub fn if_(self, p: Pred<'k>, body: impl FnOnce()) {
        let (then, join) = (self.rec().new_block(), self.rec().new_block());
        self.branch(p, then, join);
        self.rec().place(then);
        body();
        self.jump(join);
        self.rec().place(join);
    }

    /// Runs `then` where `p` holds and `otherwise` elsewhere; both arms return a value of the same shape.
    #[track_caller]
    pub fn if_else<C: Carry<'k>>(
        self,
        p: Pred<'k>,
        then: impl FnOnce() -> C,
        otherwise: impl FnOnce() -> C,
    ) -> C {
        let rec = self.rec();
        let (then_block, else_block, join) = (rec.new_block(), rec.new_block(), rec.new_block());
        self.branch(p, then_block, else_block);
        rec.place(then_block);
        let value = then();
        let (variables, result) = self.declare(&value);
        self.jump(join);
        rec.place(else_block);
        let other = otherwise();
        self.assign("if_else", &variables, &other);
        self.jump(join);
        rec.place(join);
        result
    }

    /// A loop with carried state: `body` takes the loop value and the state, and returns the next state. Returns the
    /// last one, or `init` if the range is empty.
    #[track_caller]
    pub fn fold<T: Integer, C: Carry<'k>>(
        self,
        range: Range<'k, T>,
        init: C,
        body: impl FnOnce(Reg<'k, T>, C) -> C,
    ) -> C {
        self.fold_until(range.start, || range.end, range.step, init, body)
    }

    /// [`fold`](Self::fold) of the integers from `start` below `end` in steps of `step`. The end is recorded where it is asked for, once
    /// a round, so that it need not stay in a register.
    #[track_caller]
    pub fn fold_until<T: Integer, C: Carry<'k>>(
        self,
        start: Reg<'k, T>,
        end: impl Fn() -> Reg<'k, T>,
        step: impl Source<'k, T>,
        init: C,
        body: impl FnOnce(Reg<'k, T>, C) -> C,
    ) -> C {
        let rec = self.rec();
        let step = step.reg(self);
        let (state_vars, state) = self.declare(&init);
        let (_, counter) = self.declare(&start);
        let (body_block, exit) = (rec.new_block(), rec.new_block());
        self.branch(start.lt(end()), body_block, exit);
        rec.place(body_block);
        let next = body(counter, state.rebuild(&mut RawRegs::new(state_vars.clone())));
        self.assign("fold", &state_vars, &next);
        let advanced = counter + step;
        self.mov(RawReg { id: counter.id(), ty: T::REGISTER }, RawReg { id: advanced.id(), ty: T::REGISTER });
        self.branch(advanced.lt(end()), body_block, exit);
        rec.place(exit);
        state
    }

    /// One of `count` values, by binary search in branches: the last whose `begins` holds, of which the first need not be asked.
    /// `begins` must hold of no value behind one of which it does not. Threads of a warp that look for the same value do not
    /// diverge.
    #[track_caller]
    pub fn search<C: Carry<'k>>(
        self,
        count: usize,
        begins: &impl Fn(usize) -> Pred<'k>,
        value: &impl Fn(usize) -> C,
    ) -> C {
        self.search_between(0, count, begins, value)
    }

    #[track_caller]
    fn search_between<C: Carry<'k>>(
        self,
        from: usize,
        end: usize,
        begins: &impl Fn(usize) -> Pred<'k>,
        value: &impl Fn(usize) -> C,
    ) -> C {
        if end - from <= 1 {
            return value(from);
        }
        let middle = usize::midpoint(from, end);
        self.if_else(
            begins(middle),
            || self.search_between(middle, end, begins, value),
            || self.search_between(from, middle, begins, value),
        )
    }

    /// Runs `body` for each value of the range.
    #[track_caller]
    pub fn for_each<T: Integer>(self, range: Range<'k, T>, body: impl FnOnce(Reg<'k, T>)) {
        self.fold(range, (), |i, ()| body(i));
    }

    /// Repeats `body` while `condition` holds of the state; it is tested before each round.
    #[track_caller]
    pub fn while_<C: Carry<'k>>(
        self,
        init: C,
        condition: impl FnOnce(&C) -> Pred<'k>,
        body: impl FnOnce(C) -> C,
    ) -> C {
        let rec = self.rec();
        let (state_vars, state) = self.declare(&init);
        let (head, body_block, exit) = (rec.new_block(), rec.new_block(), rec.new_block());
        self.jump(head);
        rec.place(head);
        let p = condition(&state);
        self.branch(p, body_block, exit);
        rec.place(body_block);
        let next = body(state.rebuild(&mut RawRegs::new(state_vars.clone())));
        self.assign("while_", &state_vars, &next);
        self.jump(head);
        rec.place(exit);
        state
    }

    /// Repeats `condition` until it holds.
    #[track_caller]
    pub fn until(self, condition: impl FnOnce() -> Pred<'k>) {
        let (head, exit) = (self.rec().new_block(), self.rec().new_block());
        self.jump(head);
        self.rec().place(head);
        let p = condition();
        self.branch(p, exit, head);
        self.rec().place(exit);
    }

    #[track_caller]
    fn branch(self, p: Pred<'k>, then: warpwright_ptx::BlockId, otherwise: warpwright_ptx::BlockId) {
        let pred = PredUse { reg: p.id(), negated: false };
        self.rec().terminate(Terminator::Branch { pred, uniform: false, then, otherwise });
    }

    #[track_caller]
    fn jump(self, to: warpwright_ptx::BlockId) {
        self.rec().terminate(Terminator::Jump { to, uniform: false });
    }

    #[track_caller]
    fn mov(self, dst: RawReg, src: RawReg) {
        self.emit(if dst.ty == ScalarType::Pred {
            Inst::PredMov { dst: dst.id, a: src.id.into() }
        } else {
            Inst::Mov { ty: dst.ty, dst: dst.id, src: src.id.into() }
        });
    }

    /// New variables of the shape of `value`, set to it.
    #[track_caller]
    fn declare<C: Carry<'k>>(self, value: &C) -> (Vec<RawReg>, C) {
        let mut regs = Vec::new();
        value.collect(&mut regs);
        let variables: Vec<RawReg> = regs
            .iter()
            .map(|src| {
                let dst = RawReg { id: self.rec().new_reg(src.ty, RegKind::Variable), ty: src.ty };
                self.mov(dst, *src);
                dst
            })
            .collect();
        let result = value.rebuild(&mut RawRegs::new(variables.clone()));
        (variables, result)
    }

    /// Sets the variables to `value`, all at once: a source that is itself one of the variables keeps its old value.
    #[track_caller]
    fn assign<C: Carry<'k>>(self, what: &'static str, variables: &[RawReg], value: &C) {
        let mut sources = Vec::new();
        value.collect(&mut sources);
        if sources.len() != variables.len() {
            self.issue(IssueKind::Shape { what, left: variables.len(), right: sources.len() });
            return;
        }
        for (source, own) in sources.iter_mut().zip(variables) {
            if source.id != own.id && variables.iter().any(|v| v.id == source.id) {
                let saved = RawReg { id: self.rec().new_reg(source.ty, RegKind::Value), ty: source.ty };
                self.mov(saved, *source);
                *source = saved;
            }
        }
        for (dst, src) in variables.iter().zip(&sources).filter(|(d, s)| d.id != s.id) {
            self.mov(*dst, *src);
        }
    }
}
