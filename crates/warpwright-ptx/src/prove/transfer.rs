//! Transfer functions: the effect of instructions on the values of registers.

use std::rc::Rc;

use super::decide::within;
use super::poly::Poly;
use super::terms::{Array, Formula, Kind, Terms};
use super::walk::{State, Value, Walk, is_set};
use crate::inst::*;
use crate::module::Symbol;
use crate::types::{ScalarType, StateSpace, TypeClass};

/// Statements that a predicate consists of.
const FORMULA: usize = 48;

impl Value {
    fn is_small(&self) -> bool {
        match self {
            Self::Int(_) => true,
            Self::Bool(formula) => formula.size() <= FORMULA,
        }
    }
}

impl Walk<'_> {
    /// Runs an instruction.
    pub(super) fn execute(&mut self, state: &mut State, instruction: &Instruction) {
        let guard = instruction.guard.map(|g| self.predicate(state, g));
        if let Some(guard) = &guard {
            // The instruction runs where its guard holds.
            let mut running = state.clone();
            guard.each(&mut |one| running.conditions.push(one.clone()));
            self.effect(&running, &instruction.inst);
            for (r, value) in self.results(&running, &instruction.inst) {
                let old = state.values[r.0 as usize].take();
                state.values[r.0 as usize] = self.select(r, guard, value, old);
            }
        } else {
            self.effect(state, &instruction.inst);
            for (r, value) in self.results(state, &instruction.inst) {
                state.values[r.0 as usize] = value;
            }
        }
    }

    /// One of two values of a register.
    fn select(&mut self, r: Reg, when: &Formula, new: Option<Value>, old: Option<Value>) -> Option<Value> {
        match (new, old) {
            (new, old) if new == old => new,
            (Some(Value::Int(new)), Some(Value::Int(old))) => {
                let chosen = self.choice(when, &new, &old);
                Some(Value::Int(Rc::new(chosen)))
            }
            (Some(Value::Bool(new)), Some(Value::Bool(old))) if new.size() + old.size() <= FORMULA => {
                let is_new = Formula::All(vec![when.clone(), Formula::clone(&new)]);
                let is_old = Formula::All(vec![when.not(), Formula::clone(&old)]);
                Some(Value::Bool(Rc::new(Formula::Any(vec![is_new, is_old]))))
            }
            _ => self.anything(r, r.0),
        }
    }

    /// `a` where a statement holds and `b` elsewhere.
    fn choice(&mut self, when: &Formula, a: &Poly, b: &Poly) -> Poly {
        if a == b {
            return a.clone();
        }
        let alternatives = vec![(vec![when.clone()], a.clone()), (vec![when.not()], b.clone())];
        self.terms.atom(Kind::Choice { site: None, alternatives }).into()
    }

    /// A value of a register that is not followed.
    fn anything(&mut self, r: Reg, slot: u32) -> Option<Value> {
        if self.function.reg_type(r) == Some(ScalarType::Pred) {
            return Some(Value::Bool(Rc::new(is_set(&self.opaque(slot, 1)))));
        }
        let bits = self.width(r)?;
        Some(Value::Int(Rc::new(self.opaque(slot, bits))))
    }

    /// The new values of the registers that an instruction writes.
    fn results(&mut self, state: &State, inst: &Inst) -> Vec<(Reg, Option<Value>)> {
        if let Some((r, value)) = self.followed(state, inst).filter(|(_, value)| value.is_small()) {
            return vec![(r, Some(value))];
        }
        if let Inst::Setp { dst, dst_not, combine, .. } = inst
            && let Some(holds) = self.comparison(state, inst)
        {
            // The second predicate is that of the comparison that does not hold, combined in the same way.
            let mut with = |holds: Formula| match combine {
                Some((op, pred)) => {
                    let other = self.predicate(state, *pred);
                    combined(*op, holds, other)
                }
                None => holds,
            };
            let negated = dst_not.map(|r| (r, with(holds.not())));
            let both: Vec<_> = std::iter::once((*dst, with(holds))).chain(negated).collect();
            if both.iter().all(|(_, formula)| formula.size() <= FORMULA) {
                let value = |formula| Some(Value::Bool(Rc::new(formula)));
                return both.into_iter().map(|(r, formula)| (r, value(formula))).collect();
            }
        }
        if let Inst::Ld { space: StateSpace::Param, ty, dsts, addr, .. } = inst {
            let bytes = i64::from(ty.bytes());
            let dsts =
                (0..).zip(dsts).filter_map(|(at, r)| Some(((*r)?, addr.offset.checked_add(at * bytes)?)));
            let dsts: Vec<(Reg, i64)> = dsts.collect();
            let loaded = |(r, offset)| {
                let value = self.parameter(addr.base, offset, *ty, r).map(|p| Value::Int(Rc::new(p)));
                (r, value)
            };
            return dsts.into_iter().map(loaded).collect();
        }
        let mut slot = 0;
        let mut results = Vec::new();
        let loaded_bits = match inst {
            Inst::Ld { ty, .. } | Inst::Ldu { ty, .. } => match ty.class() {
                TypeClass::Unsigned | TypeClass::Bits => ty.bits(),
                _ => 64,
            },
            _ => 64,
        };
        inst.visit(|role, r| {
            if role == Role::Def {
                let value = match self.width(r) {
                    Some(bits) => Some(Value::Int(Rc::new(self.opaque(slot, bits.min(loaded_bits))))),
                    None => self.anything(r, slot),
                };
                results.push((r, value));
                slot += 1;
            }
        });
        results
    }

    /// The result of an instruction that is followed.
    fn followed(&mut self, state: &State, inst: &Inst) -> Option<(Reg, Value)> {
        match inst {
            Inst::PredBinary { op, dst, a, b } => {
                let [a, b] = [*a, *b].map(|reg| self.predicate(state, PredUse { reg, negated: false }));
                Some((*dst, Value::Bool(Rc::new(combined(*op, a, b)))))
            }
            Inst::PredNot { dst, a } => {
                let value = self.predicate(state, PredUse { reg: *a, negated: true });
                Some((*dst, Value::Bool(Rc::new(value))))
            }
            Inst::PredMov { dst, a: Operand::Reg(a) } => {
                let value = self.predicate(state, PredUse { reg: *a, negated: false });
                Some((*dst, Value::Bool(Rc::new(value))))
            }
            Inst::PredMov { dst, a: Operand::Imm(Imm::Int(a)) } => {
                let value = if *a == 0 { Formula::TRUE.not() } else { Formula::TRUE };
                Some((*dst, Value::Bool(Rc::new(value))))
            }
            _ => {
                let (dst, value) = self.number(state, inst)?;
                let bits = self.width(dst)?;
                Some((dst, Value::Int(Rc::new(value.wrapped(bits)))))
            }
        }
    }

    /// The result of an instruction on integers.
    fn number(&mut self, state: &State, inst: &Inst) -> Option<(Reg, Poly)> {
        match inst {
            Inst::Mov { dst, src, .. } => Some((*dst, self.operand(state, src)?)),
            // Addresses of global memory are the same in both; what becomes of others is not followed.
            Inst::Cvta { space: StateSpace::Global, dst, src, .. } => Some((*dst, self.operand(state, src)?)),
            Inst::Cvt { to, from, mods, dst, a, b: None } if *mods == Modifiers::NONE => {
                if to.is_float() || from.is_float() {
                    return None;
                }
                let p = self.operand(state, a)?;
                let wide = self.width(*dst)?;
                let p = if from.bits() < to.bits() { self.interpreted(state, &p, *from)? } else { p };
                // What is narrower than its register fills it.
                let p = if to.bits() < wide { self.interpreted(state, &p, *to)? } else { p };
                Some((*dst, p))
            }
            Inst::Unary { op, ty, dst, a, .. } if ty.is_integer() || ty.class() == TypeClass::Bits => {
                let p = self.operand(state, a)?;
                match op {
                    UnaryOp::Neg => Some((*dst, p.negated())),
                    UnaryOp::Not => Some((*dst, p.complement())),
                    _ => None,
                }
            }
            Inst::Binary { op, ty, mods, dst, a, b } if !ty.is_float() && *mods == Modifiers::NONE => {
                Some((*dst, self.binary(state, *op, *ty, a, b)?))
            }
            Inst::Ternary { op, ty, mods, dst, a, b, c } if !ty.is_float() && *mods == Modifiers::NONE => {
                let value = match op {
                    TernaryOp::MadLo => {
                        let product = self.binary(state, BinaryOp::MulLo, *ty, a, b)?;
                        product.plus(&self.operand(state, c)?)?
                    }
                    TernaryOp::MadWide => {
                        let product = self.binary(state, BinaryOp::MulWide, *ty, a, b)?;
                        product.plus(&self.operand(state, c)?)?
                    }
                    TernaryOp::Bfe if ty.class() == TypeClass::Unsigned => {
                        let [from, count] = [b, c].map(|o| self.operand(state, o)?.as_constant());
                        // Only the lowest eight bits of both count.
                        let (from, count) = (u8::try_from(from?).ok()?, u8::try_from(count?).ok()?);
                        let (from, count) = (u32::from(from), u32::from(count));
                        let p = self.operand(state, a)?;
                        let p = self.interpreted(state, &p, *ty)?;
                        self.field(&p, from, count.min(ty.bits().checked_sub(from)?))?
                    }
                    _ => return None,
                };
                Some((*dst, value))
            }
            Inst::Selp { ty, dst, a, b, pred } if !ty.is_float() => {
                let (a, b) = (self.operand(state, a)?, self.operand(state, b)?);
                let when = self.predicate(state, PredUse { reg: *pred, negated: false });
                Some((*dst, self.choice(&when, &a, &b)))
            }
            _ => None,
        }
    }

    fn binary(
        &mut self,
        state: &State,
        op: BinaryOp,
        ty: ScalarType,
        a: &Operand,
        b: &Operand,
    ) -> Option<Poly> {
        let bits = ty.bits();
        if bits > 64 || matches!(ty, ScalarType::U16x2 | ScalarType::S16x2) {
            return None;
        }
        let (p, q) = (self.operand(state, a)?, self.operand(state, b)?);
        match op {
            BinaryOp::Add => p.plus(&q),
            BinaryOp::Sub => p.minus(&q),
            BinaryOp::MulLo => p.wrapped(bits).times(&q.wrapped(bits)),
            BinaryOp::MulWide => self.interpreted(state, &p, ty)?.times(&self.interpreted(state, &q, ty)?),
            BinaryOp::MulHi => {
                let product = self.interpreted(state, &p, ty)?.times(&self.interpreted(state, &q, ty)?)?;
                self.terms.floor(&product, &Poly::constant(1i128 << bits)?)
            }
            BinaryOp::Shl => {
                let by = u32::try_from(q.wrapped(32).as_constant()?).ok()?;
                if by >= bits { Some(Poly::default()) } else { p.scaled(1i128 << by) }
            }
            BinaryOp::Shr => {
                let by = u32::try_from(q.wrapped(32).as_constant()?).ok()?.min(bits);
                let p = self.interpreted(state, &p, ty)?;
                self.terms.floor(&p, &Poly::constant(1i128 << by)?)
            }
            BinaryOp::Div | BinaryOp::Rem => {
                let [p, q] = [p, q].map(|p| self.interpreted(state, &p, ty));
                let (p, q) = (p?, q?);
                // Signed division rounds towards zero, which is down where nothing is negative.
                let signed = ty.class() == TypeClass::Signed;
                let high = (1i128 << bits) - 1;
                if signed && !within(&mut self.terms, &state.conditions, &p, 0, high) {
                    return None;
                }
                // What divides has to be positive in every launch: facts about quotients are facts wherever they are used.
                let of_launch = !self.terms.depends(&q, &|_, kind| {
                    !matches!(kind, Kind::Param(_) | Kind::Quotient(..) | Kind::Ntid(_) | Kind::Nctaid(_))
                });
                if !of_launch || !within(&mut self.terms, &[], &q, 1, high) {
                    return None;
                }
                let quotient = self.terms.floor(&p, &q)?;
                if op == BinaryOp::Div { Some(quotient) } else { p.minus(&quotient.times(&q)?) }
            }
            BinaryOp::Min | BinaryOp::Max => {
                let (p, q) = (self.interpreted(state, &p, ty)?, self.interpreted(state, &q, ty)?);
                let room = q.minus(&p)?;
                let first = Formula::AtLeast(if op == BinaryOp::Min { room } else { room.negated() });
                Some(self.choice(&first, &p, &q))
            }
            BinaryOp::And => {
                let (p, mask) = match (p.as_constant(), q.as_constant()) {
                    (_, Some(mask)) => (p, mask),
                    (Some(mask), _) => (q, mask),
                    _ => return None,
                };
                let mask = u64::try_from(mask.rem_euclid(1i128 << bits)).ok()?;
                let from = mask.trailing_zeros();
                if mask == 0 {
                    return Some(Poly::default());
                }
                let count = (mask >> from).trailing_ones();
                if from + count < 64 && mask >> (from + count) != 0 {
                    return None;
                }
                let p = if from == 0 { p } else { self.interpreted(state, &p, ty.to_bits())? };
                self.field(&p, from, count)?.scaled(1i128 << from)
            }
            BinaryOp::Or | BinaryOp::Xor => {
                // Numbers whose bits are apart are added.
                for (high, low) in [(&p, &q), (&q, &p)] {
                    for shift in 1..bits.min(31) {
                        let unit = 1i128 << shift;
                        if high.is_multiple_of(unit)
                            && within(&mut self.terms, &state.conditions, low, 0, unit - 1)
                        {
                            return high.plus(low);
                        }
                    }
                }
                let (p, q) =
                    (self.interpreted(state, &p, ty.to_bits())?, self.interpreted(state, &q, ty.to_bits())?);
                let most = self.terms.interval(&p).1?.max(self.terms.interval(&q).1?);
                let used = (128 - most.leading_zeros()).min(bits);
                // Bits that neither has are zero.
                let both = |low: u32| [&p, &q].iter().all(|p| p.is_multiple_of(1i128 << low));
                let low = (0..used).rev().find(|low| both(*low)).unwrap_or(0);
                let mut below = |bits: u32| {
                    let most = (1i128 << bits) - 1;
                    [&p, &q].iter().all(|p| within(&mut self.terms, &state.conditions, p, 0, most))
                };
                let used = (low + 1..used).find(|bits| below(*bits)).unwrap_or(used);
                if op == BinaryOp::Or {
                    return self.opaque(0, used - low).scaled(1i128 << low);
                }
                let unit: Poly = self.terms.atom(Kind::Xor { a: p, b: q, low, bits: used }).into();
                unit.scaled(1i128 << low)
            }
            _ => None,
        }
    }

    /// The number of `count` bits of a number, from bit `from` on.
    fn field(&mut self, p: &Poly, from: u32, count: u32) -> Option<Poly> {
        let shifted = self.terms.floor(p, &Poly::constant(1i128 << from)?)?;
        let modulus = 1i128 << count;
        let above = self.terms.floor(&shifted, &Poly::constant(modulus)?)?;
        shifted.minus(&above.scaled(modulus)?)
    }

    /// The number that the bits are in a type: with its sign, or without where it has none.
    pub(super) fn interpreted(&mut self, state: &State, p: &Poly, ty: ScalarType) -> Option<Poly> {
        match ty.class() {
            TypeClass::Signed => self.signed(&state.conditions, p, ty.bits()),
            _ => self.unsigned(&state.conditions, p, ty.bits()),
        }
    }

    pub(super) fn operand(&mut self, state: &State, operand: &Operand) -> Option<Poly> {
        match operand {
            Operand::Reg(r) => self.integer(state, *r),
            Operand::Imm(Imm::Int(value)) => Some(Poly::small(*value)),
            Operand::Imm(_) => None,
            Operand::Special(special) => self.special(*special),
            Operand::Symbol(symbol, offset) => {
                let base: Poly = self.terms.value(Kind::Base(self.variable(*symbol)?));
                base.plus_constant(i128::from(*offset))
            }
        }
    }

    pub(super) fn special(&mut self, special: SpecialReg) -> Option<Poly> {
        let terms = &mut self.terms;
        Some(match special {
            SpecialReg::Tid(axis) => terms.value(Kind::Tid(axis, 0)),
            SpecialReg::Ntid(axis) => terms.value(Kind::Ntid(axis)),
            SpecialReg::Ctaid(axis) => terms.value(Kind::Ctaid(axis, 0)),
            SpecialReg::Nctaid(axis) => terms.value(Kind::Nctaid(axis)),
            SpecialReg::Plain(PlainSpecial::LaneId) => {
                let linear = linear_thread(terms)?;
                let warp = terms.floor(&linear, &Poly::small(32))?;
                linear.minus(&warp.scaled(32)?)?
            }
            _ => return None,
        })
    }

    /// The array that a name stands for.
    pub(super) fn variable(&self, symbol: SymbolId) -> Option<Array> {
        let (array, variable) = match self.function.symbols.get(symbol.0 as usize)? {
            Symbol::ModuleVariable(at) => (Array::Module(*at), self.module.variables.get(*at as usize)?),
            Symbol::LocalVariable(at) => (Array::Function(*at), self.function.variables.get(*at as usize)?),
            _ => return None,
        };
        match (variable.space, variable.len) {
            (StateSpace::Param, _) => None,
            // All of them begin where the static variables end.
            (StateSpace::Shared, None) => Some(Array::Dynamic),
            _ => Some(array),
        }
    }

    /// The value loaded from a parameter.
    fn parameter(&mut self, base: AddressBase, offset: i64, ty: ScalarType, r: Reg) -> Option<Poly> {
        let bits = self.width(r)?;
        let AddressBase::Symbol(symbol) = base else { return Some(self.opaque(0, bits)) };
        let Some(Symbol::Param(position)) = self.function.symbols.get(symbol.0 as usize).copied() else {
            return Some(self.opaque(0, bits));
        };
        let param = &self.function.params[position as usize];
        let whole = offset == 0 && param.array.is_none() && param.ty.bits() == ty.bits();
        if whole && (param.pointer.is_some() || self.extents.contains_key(&Array::Param(position))) {
            return Some(self.terms.value(Kind::Base(Array::Param(position))));
        }
        if whole && !param.ty.is_float() && bits == ty.bits() {
            return Some(self.terms.value(Kind::Param(position)));
        }
        let used = if ty.class() == TypeClass::Signed { bits } else { bits.min(ty.bits()) };
        Some(self.terms.atom(Kind::Piece(position, offset, used)).into())
    }

    /// When a comparison of integers holds, by itself.
    fn comparison(&mut self, state: &State, inst: &Inst) -> Option<Formula> {
        let Inst::Setp { cmp, ty, a, b, .. } = inst else { return None };
        if ty.is_float() || ty.bits() > 64 {
            return None;
        }
        let (p, q) = (self.operand(state, a)?, self.operand(state, b)?);
        let unsigned = matches!(cmp, CmpOp::Lo | CmpOp::Ls | CmpOp::Hi | CmpOp::Hs);
        let ty = if unsigned { ty.to_bits() } else { *ty };
        let (p, q) = (self.interpreted(state, &p, ty)?, self.interpreted(state, &q, ty)?);
        let difference = p.minus(&q)?;
        Some(match cmp {
            CmpOp::Eq => Formula::equal(&difference),
            CmpOp::Ne => Formula::equal(&difference).not(),
            CmpOp::Lt | CmpOp::Lo => Formula::AtLeast(difference.complement()),
            CmpOp::Le | CmpOp::Ls => Formula::AtLeast(difference.negated()),
            CmpOp::Gt | CmpOp::Hi => Formula::AtLeast(difference.plus_constant(-1)?),
            CmpOp::Ge | CmpOp::Hs => Formula::AtLeast(difference),
            _ => return None,
        })
    }
}

/// The number of a thread in its block.
fn linear_thread(terms: &mut Terms) -> Option<Poly> {
    let [x, y, z] = [Axis::X, Axis::Y, Axis::Z].map(|axis| terms.value(Kind::Tid(axis, 0)));
    let [width, height] = [Axis::X, Axis::Y].map(|axis| terms.value(Kind::Ntid(axis)));
    x.plus(&width.times(&y.plus(&height.times(&z)?)?)?)
}

fn combined(op: BoolOp, a: Formula, b: Formula) -> Formula {
    match op {
        BoolOp::And => Formula::All(vec![a, b]),
        BoolOp::Or => Formula::Any(vec![a, b]),
        BoolOp::Xor => {
            let (not_a, not_b) = (a.not(), b.not());
            Formula::Any(vec![Formula::All(vec![a, not_b]), Formula::All(vec![not_a, b])])
        }
    }
}
