//! Arithmetic, comparisons, moves and conversions.

use super::rest::Rest;
use super::{Parser, Read, rules};
use crate::inst::*;
use crate::text::lex::{Kind, Token};
use crate::types::*;

/// The longest operator name that is looked up, `bfind.shiftamt` and the like.
const MAX_NAME: usize = 32;

/// Modifiers of an arithmetic opcode.
struct Arith {
    mods: Modifiers,
    /// The operator's name in `spelled!` form: the opcode and the modifiers that select an operation.
    name: [u8; MAX_NAME],
    len: usize,
    types: [ScalarType; 2],
    type_count: usize,
    /// `.abs` that is not part of `.xorsign.abs`
    abs: bool,
}

/// Why modifiers make no opcode, with the index of the one at fault.
enum Refused {
    Unknown(usize),
    Repeated(usize),
}

/// An operator by the number of its sources.
#[derive(Clone, Copy)]
enum Operator {
    One(UnaryOp),
    Two(BinaryOp),
    Three(TernaryOp),
}

fn operator(name: &str) -> Option<Operator> {
    BinaryOp::from_name(name)
        .map(Operator::Two)
        .or_else(|| TernaryOp::from_name(name).map(Operator::Three))
        .or_else(|| UnaryOp::from_name(name).map(Operator::One))
}

/// Whether this is the opcode of some operator, so that a wrong modifier can be told from a wrong opcode.
fn is_head(head: &str) -> bool {
    if matches!(head, "cvt" | "slct") {
        return true;
    }
    let starts = |name: &str| name.split('.').next() == Some(head);
    BinaryOp::ALL.iter().any(|op| starts(op.name()))
        || TernaryOp::ALL.iter().any(|op| starts(op.name()))
        || UnaryOp::ALL.iter().any(|op| starts(op.name()))
}

impl<'a> Parser<'a> {
    /// The modifiers of an arithmetic opcode; what is wrong with them is said here.
    fn arith(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Arith> {
        let read = Arith::read(head, modifiers);
        if let (Ok(Arith { abs: true, .. }), Some(at)) = (&read, modifiers.iter().find(|m| m.text == "abs"))
            && !matches!(head.text, "min" | "max")
        {
            return Err(self.unknown_modifier(head, *at));
        }
        read.map_err(|refused| {
            if !is_head(head.text) {
                return self.unknown_opcode(head, modifiers);
            }
            match refused {
                Refused::Unknown(at) => self.unknown_modifier(head, modifiers[at]),
                Refused::Repeated(at) => {
                    let at = modifiers[at];
                    self.fail(
                        rules::MODIFIER,
                        at,
                        format!("{} repeats or contradicts one before it", at.shown()),
                    )
                }
            }
        })
    }

    /// The modifiers that do not belong to any operator with this head: the one to complain about.
    fn wrong_selector(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> super::Fail {
        let is_known = |text: &str| {
            let flags = ["approx", "full", "ftz", "sat", "relu", "NaN", "satfinite", "xorsign", "abs"];
            flags.contains(&text)
                || ScalarType::from_name(text).is_some()
                || Rounding::from_name(text).is_some()
        };
        match modifiers.iter().find(|m| !is_known(m.text)) {
            Some(at) => self.unknown_modifier(head, *at),
            None => {
                let (mut seen, mut forms) = (Vec::new(), String::new());
                let names = BinaryOp::ALL.iter().map(|op| op.name());
                let names = names.chain(TernaryOp::ALL.iter().map(|op| op.name()));
                for name in names.chain(UnaryOp::ALL.iter().map(|op| op.name())) {
                    if let Some((first, rest)) = name.split_once('.')
                        && first == head.text
                        && !seen.contains(&rest)
                    {
                        seen.push(rest);
                        if !forms.is_empty() {
                            forms.push_str(" or ");
                        }
                        forms.push_str(&format!("`.{rest}`"));
                    }
                }
                self.missing_modifier(head, &forms)
            }
        }
    }

    pub(super) fn arithmetic(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let arith = self.arith(head, modifiers)?;
        let Some(op) = operator(arith.name()) else {
            return Err(if is_head(head.text) {
                self.wrong_selector(head, modifiers)
            } else {
                self.unknown_opcode(head, modifiers)
            });
        };
        let (ty, mods) = (arith.types[0], arith.mods);
        if let (2, [ScalarType::F32, narrow @ (ScalarType::F16 | ScalarType::BF16)], Some(op)) =
            (arith.type_count, arith.types, MixedOp::from_name(arith.name()))
        {
            return self.mixed(op, narrow, mods);
        }
        if arith.type_count != 1 {
            return Err(match modifiers.iter().filter(|m| ScalarType::from_name(m.text).is_some()).nth(1) {
                Some(second) => self.unknown_modifier(head, *second),
                None => self.missing_modifier(head, "a type such as `.f32`"),
            });
        }
        if ty == ScalarType::Pred {
            return self.predicate_logic(head, op);
        }
        let dst = self.reg()?;
        let a = self.next_operand(ty)?;
        let inst = match op {
            Operator::One(op) => Inst::Unary { op, ty, mods, dst, a },
            Operator::Two(op) => {
                let b = self.next_operand(ty)?;
                if matches!(op, BinaryOp::Min | BinaryOp::Max) && (arith.abs || self.token.is(b',')) {
                    let c = self.next_operand(ty)?;
                    let max = op == BinaryOp::Max;
                    return Ok(Inst::MinMax3 { max, abs: arith.abs, ty, mods, dst, a, b, c });
                }
                Inst::Binary { op, ty, mods, dst, a, b }
            }
            Operator::Three(op) => {
                let b = self.next_operand(ty)?;
                let c = self.next_operand(ty)?;
                Inst::Ternary { op, ty, mods, dst, a, b, c }
            }
        };
        Ok(inst)
    }

    /// `add.f32.f16` and its relatives.
    fn mixed(&mut self, op: MixedOp, narrow: ScalarType, mods: Modifiers) -> Read<Inst> {
        let dst = self.reg()?;
        let a = self.next_operand(narrow)?;
        let b = if op == MixedOp::Fma { Some(self.next_operand(narrow)?) } else { None };
        let c = self.next_operand(ScalarType::F32)?;
        Ok(Inst::Mixed { op, narrow, mods, dst, a, b, c })
    }

    /// `and.pred` and its relatives.
    fn predicate_logic(&mut self, head: Token<'a>, op: Operator) -> Read<Inst> {
        let op = match op {
            Operator::One(UnaryOp::Not) => None,
            Operator::Two(BinaryOp::And) => Some(BoolOp::And),
            Operator::Two(BinaryOp::Or) => Some(BoolOp::Or),
            Operator::Two(BinaryOp::Xor) => Some(BoolOp::Xor),
            _ => {
                let message = format!("`{}` does not work on predicates", head.text);
                return Err(self.fail(rules::MODIFIER, head, message));
            }
        };
        let dst = self.reg()?;
        self.expect(b',')?;
        let a = self.predicate_reg()?;
        let Some(op) = op else { return Ok(Inst::PredNot { dst, a }) };
        self.expect(b',')?;
        let b = self.predicate_reg()?;
        Ok(Inst::PredBinary { op, dst, a, b })
    }

    pub(super) fn mov(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let ty = self.only_type(head, modifiers)?;
        if self.token.is(b'{') {
            let dsts = self.braced(Self::reg_or_sink)?;
            return Ok(Inst::Unpack { ty, dsts, src: self.next_operand(ty)? });
        }
        let dst = self.reg()?;
        self.expect(b',')?;
        if self.token.is(b'{') {
            let parts = self.braced(|p| p.operand(ScalarType::B32))?;
            return Ok(Inst::Pack { ty, dst, parts });
        }
        if ty != ScalarType::Pred {
            return Ok(Inst::Mov { ty, dst, src: self.source(ty)? });
        }
        if self.eat(b'!') {
            return Ok(Inst::PredNot { dst, a: self.reg()? });
        }
        Ok(Inst::PredMov { dst, a: self.source(ty)? })
    }

    /// `cvt.rs`, which has been looked at, rounds with random bits.
    fn convert_stochastic(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let rest: Vec<_> = modifiers.iter().copied().filter(|m| m.text != "rs").collect();
        let arith = self.arith(head, &rest)?;
        if arith.name() != "cvt" || arith.type_count != 2 {
            return Err(self.missing_modifier(head, "a destination type and a source type"));
        }
        let [to, from] = arith.types;
        let dst = self.reg()?;
        self.expect(b',')?;
        let srcs = if self.token.is(b'{') {
            self.braced(|p| p.operand(from))?
        } else {
            vec![self.operand(from)?, self.next_operand(from)?]
        };
        let bits = self.next_operand(ScalarType::B32)?;
        Ok(Inst::CvtStochastic { to, from, mods: arith.mods, dst, srcs, bits })
    }

    fn convert_pack(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        self.require(&mut rest, &["pack", "sat"])?;
        let to = self.need(&mut rest, PackedInteger::from_name, "a type such as `.u8`")?;
        self.require(&mut rest, &["s32"])?;
        let appends = rest.take("b32");
        self.nothing_left(&rest)?;
        let dst = self.reg()?;
        let a = self.next_operand(ScalarType::S32)?;
        let b = self.next_operand(ScalarType::S32)?;
        let c = if appends { Some(self.next_operand(ScalarType::B32)?) } else { None };
        Ok(Inst::CvtPack { to, dst, a, b, c })
    }

    pub(super) fn convert(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        match modifiers {
            [first, ..] if first.text == "pack" => return self.convert_pack(head, modifiers),
            _ if modifiers.iter().any(|m| m.text == "rs") => return self.convert_stochastic(head, modifiers),
            _ => {}
        }
        let arith = self.arith(head, modifiers)?;
        if arith.name() != "cvt" {
            return Err(self.wrong_selector(head, modifiers));
        }
        if arith.type_count != 2 {
            return Err(self.missing_modifier(head, "a destination type and a source type"));
        }
        let [to, from] = arith.types;
        let dst = self.reg()?;
        self.expect(b',')?;
        let at = self.token;
        let a = self.source(from)?;
        if matches!(a, Operand::Symbol(..)) {
            let message = format!("the address of {} has to be taken by `mov` first", at.shown());
            return Err(self.fail(rules::OPERAND, at, message));
        }
        let b = if self.token.is(b',') { Some(self.next_operand(from)?) } else { None };
        Ok(Inst::Cvt { to, from, mods: arith.mods, dst, a, b })
    }

    pub(super) fn setp(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let (cmp, bool_op, ftz, types) = self.comparison(head, modifiers)?;
        let [Some(ty), None] = types else {
            return Err(self.missing_modifier(head, "exactly one type"));
        };
        let (dst, dst_not) = self.dst_pair(ScalarType::Pred)?;
        let a = self.next_operand(ty)?;
        let b = self.next_operand(ty)?;
        let combine = self.combined(bool_op)?;
        Ok(Inst::Setp { cmp, combine, ty, ftz, dst, dst_not, a, b })
    }

    pub(super) fn set(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let (cmp, bool_op, ftz, types) = self.comparison(head, modifiers)?;
        let [Some(dst_ty), Some(ty)] = types else {
            return Err(self.missing_modifier(head, "a destination type and a source type"));
        };
        let dst = self.reg()?;
        let a = self.next_operand(ty)?;
        let b = self.next_operand(ty)?;
        let combine = self.combined(bool_op)?;
        Ok(Inst::Set { cmp, combine, dst_ty, ty, ftz, dst, a, b })
    }

    #[allow(clippy::type_complexity, reason = "the four things that the modifiers of a comparison say")]
    fn comparison(
        &mut self,
        head: Token<'a>,
        modifiers: &[Token<'a>],
    ) -> Read<(CmpOp, Option<BoolOp>, bool, [Option<ScalarType>; 2])> {
        let (mut cmp, mut combine, mut ftz, mut types) = (None, None, None, [None; 2]);
        for at in modifiers {
            if let Some(ty) = ScalarType::from_name(at.text) {
                let place = if types[0].is_none() { &mut types[0] } else { &mut types[1] };
                self.choose(head, *at, place, ty)?;
            } else if let Some(op) = CmpOp::from_name(at.text) {
                self.choose(head, *at, &mut cmp, op)?;
            } else if let Some(op) = BoolOp::from_name(at.text) {
                self.choose(head, *at, &mut combine, op)?;
            } else if at.text == "ftz" {
                self.choose(head, *at, &mut ftz, ())?;
            } else {
                return Err(self.unknown_modifier(head, *at));
            }
        }
        match cmp {
            Some(cmp) => Ok((cmp, combine, ftz.is_some(), types)),
            None => Err(self.missing_modifier(head, "a comparison such as `.lt`")),
        }
    }

    fn combined(&mut self, op: Option<BoolOp>) -> Read<Option<(BoolOp, PredUse)>> {
        let Some(op) = op else { return Ok(None) };
        self.expect(b',')?;
        Ok(Some((op, self.predicate_source()?)))
    }

    pub(super) fn selp(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let ty = self.only_type(head, modifiers)?;
        let dst = self.reg()?;
        let a = self.next_operand(ty)?;
        let b = self.next_operand(ty)?;
        self.expect(b',')?;
        let PredUse { reg: pred, negated } = self.predicate_source()?;
        let (a, b) = if negated { (b, a) } else { (a, b) };
        Ok(Inst::Selp { ty, dst, a, b, pred })
    }

    pub(super) fn slct(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let arith = self.arith(head, modifiers)?;
        if arith.name() != "slct" {
            return Err(self.wrong_selector(head, modifiers));
        }
        let ftz = arith.mods.ftz;
        if arith.type_count != 2 {
            return Err(self.missing_modifier(head, "the type of the result and the type of the condition"));
        }
        let [ty, c_ty] = arith.types;
        let dst = self.reg()?;
        let a = self.next_operand(ty)?;
        let b = self.next_operand(ty)?;
        let c = self.next_operand(c_ty)?;
        Ok(Inst::Slct { ty, c_ty, ftz, dst, a, b, c })
    }

    pub(super) fn bfi(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let ty = self.only_type(head, modifiers)?;
        let dst = self.reg()?;
        let a = self.next_operand(ty)?;
        let b = self.next_operand(ty)?;
        let pos = self.next_operand(ScalarType::U32)?;
        let len = self.next_operand(ScalarType::U32)?;
        Ok(Inst::Bfi { ty, dst, a, b, pos, len })
    }

    pub(super) fn lop3(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let op = match modifiers {
            [op, rest @ ..] if matches!(op.text, "or" | "and") => {
                self.exactly(head, rest, &["b32"])?;
                if op.text == "or" { Some(BoolOp::Or) } else { Some(BoolOp::And) }
            }
            _ => {
                self.exactly(head, modifiers, &["b32"])?;
                None
            }
        };
        let (dst, pred) = if op.is_some() {
            let dst = self.reg_or_sink()?;
            self.expect(b'|')?;
            (dst, Some(self.reg()?))
        } else {
            (Some(self.reg()?), None)
        };
        let a = self.next_operand(ScalarType::B32)?;
        let b = self.next_operand(ScalarType::B32)?;
        let c = self.next_operand(ScalarType::B32)?;
        self.expect(b',')?;
        let at = self.token;
        let lut = self.unsigned()?;
        let Ok(lut) = u8::try_from(lut) else {
            return Err(self.fail(rules::NUMBER, at, "the table of `lop3` is between 0 and 255"));
        };
        match (op, pred, dst) {
            (Some(op), Some(pred), dst) => {
                self.expect(b',')?;
                let q = self.predicate_source()?;
                Ok(Inst::Lop3Pred { op, dst, pred, a, b, c, lut, q })
            }
            (_, _, Some(dst)) => Ok(Inst::Lop3 { dst, a, b, c, lut }),
            _ => Err(self.unexpected("a register")),
        }
    }

    pub(super) fn dp2a(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        let high = rest.take("hi");
        if !high {
            self.require(&mut rest, &["lo"])?;
        }
        let a_ty = self.need(&mut rest, ScalarType::from_name, "two types, each `.u32` or `.s32`")?;
        let b_ty = self.need(&mut rest, ScalarType::from_name, "two types, each `.u32` or `.s32`")?;
        self.nothing_left(&rest)?;
        let dst = self.reg()?;
        let a = self.next_operand(a_ty)?;
        let b = self.next_operand(b_ty)?;
        let c = self.next_operand(ScalarType::S32)?;
        Ok(Inst::Dp2a { high, a_ty, b_ty, dst, a, b, c })
    }

    pub(super) fn video(
        &mut self,
        head: Token<'a>,
        modifiers: &[Token<'a>],
        op: VideoOp,
        bytes: bool,
    ) -> Read<Inst> {
        let mut rest = Rest::new(head, modifiers);
        let word = |name: &str| {
            ScalarType::from_name(name).filter(|ty| matches!(ty, ScalarType::U32 | ScalarType::S32))
        };
        let mut types = [ScalarType::U32; 3];
        for ty in &mut types {
            *ty = self.need(&mut rest, word, "three types, each `.u32` or `.s32`")?;
        }
        let mut form = VideoForm::plain(op, bytes, types);
        form.saturate = rest.take("sat");
        form.accumulate = rest.take("add");
        self.nothing_left(&rest)?;
        let lanes = form.lanes();
        let dst = self.reg()?;
        if let Some(named) = self.lanes(bytes, lanes)? {
            form.mask = named.iter().fold(0, |mask, lane| mask | 1 << lane);
        }
        let mut operands = [Operand::int(0); 2];
        for (operand, select) in operands.iter_mut().zip(&mut form.select) {
            *operand = self.next_operand(ScalarType::U32)?;
            let at = self.token;
            if let Some(named) = self.lanes(bytes, 2 * lanes)? {
                if named.len() != lanes {
                    let message = format!("{} does not select {lanes} lanes", at.shown());
                    return Err(self.fail(rules::OPERAND, at, message));
                }
                named.iter().rev().zip(select).for_each(|(lane, to)| *to = *lane);
            }
        }
        let c = self.next_operand(ScalarType::U32)?;
        Ok(Inst::Video { form, dst, a: operands[0], b: operands[1], c })
    }

    /// The lanes that `.h` or `.b` and digits below `limit` name, at most four of them; `None` if there are none.
    fn lanes(&mut self, bytes: bool, limit: usize) -> Read<Option<Vec<u8>>> {
        let at = self.token;
        if at.kind != Kind::Dot {
            return Ok(None);
        }
        let digits = at.text.strip_prefix(if bytes { 'b' } else { 'h' }).unwrap_or_default();
        let lane = |digit: u8| digit.checked_sub(b'0').filter(|lane| usize::from(*lane) < limit);
        match digits.bytes().map(lane).collect::<Option<Vec<u8>>>() {
            Some(lanes) if (1..=4).contains(&lanes.len()) => {
                self.advance();
                Ok(Some(lanes))
            }
            _ => Err(self.fail(rules::OPERAND, at, format!("{} names no lanes", at.shown()))),
        }
    }

    pub(super) fn dp4a(&mut self, head: Token<'a>, modifiers: &[Token<'a>]) -> Read<Inst> {
        let [a_ty, b_ty] = modifiers else {
            return Err(self.missing_modifier(head, "two types, each `.u32` or `.s32`"));
        };
        let ty = |p: &mut Self, at: &Token<'a>| {
            ScalarType::from_name(at.text).ok_or_else(|| p.unknown_modifier(head, *at))
        };
        let (a_ty, b_ty) = (ty(self, a_ty)?, ty(self, b_ty)?);
        let dst = self.reg()?;
        let a = self.next_operand(a_ty)?;
        let b = self.next_operand(b_ty)?;
        let c = self.next_operand(ScalarType::S32)?;
        Ok(Inst::Dp4a { a_ty, b_ty, dst, a, b, c })
    }
}

impl Arith {
    fn read(head: Token<'_>, modifiers: &[Token<'_>]) -> Result<Self, Refused> {
        let mut arith = Self {
            mods: Modifiers::NONE,
            name: [0; MAX_NAME],
            len: 0,
            types: [ScalarType::Pred; 2],
            type_count: 0,
            abs: false,
        };
        if !arith.extend(head.text) {
            return Err(Refused::Unknown(0));
        }
        for (i, modifier) in modifiers.iter().enumerate() {
            let mods = &mut arith.mods;
            let flag = match modifier.text {
                "approx" => &mut mods.approx,
                "full" => &mut mods.full,
                "ftz" => &mut mods.ftz,
                "sat" => &mut mods.sat,
                "relu" => &mut mods.relu,
                "NaN" => &mut mods.nan,
                "satfinite" => &mut mods.satfinite,
                "oob" => &mut mods.oob,
                "xorsign" if modifiers.get(i + 1).is_some_and(|next| next.text == "abs") => {
                    &mut mods.xorsign_abs
                }
                "abs" if i > 0 && modifiers[i - 1].text == "xorsign" => continue,
                "abs" => &mut arith.abs,
                text => {
                    if let Some(ty) = ScalarType::from_name(text) {
                        *arith.types.get_mut(arith.type_count).ok_or(Refused::Unknown(i))? = ty;
                        arith.type_count += 1;
                    } else if let Some(rounding) = Rounding::from_name(text) {
                        if mods.rounding.replace(rounding).is_some() {
                            return Err(Refused::Repeated(i));
                        }
                    } else if !arith.extend(text) {
                        return Err(Refused::Unknown(i));
                    }
                    continue;
                }
            };
            if std::mem::replace(flag, true) {
                return Err(Refused::Repeated(i));
            }
        }
        Ok(arith)
    }

    /// Appends a part of the operator's name; false if no operator is that long.
    fn extend(&mut self, part: &str) -> bool {
        let dot = usize::from(self.len > 0);
        let end = self.len + dot + part.len();
        if end > MAX_NAME {
            return false;
        }
        if dot == 1 {
            self.name[self.len] = b'.';
        }
        self.name[self.len + dot..end].copy_from_slice(part.as_bytes());
        self.len = end;
        true
    }

    fn name(&self) -> &str {
        std::str::from_utf8(&self.name[..self.len]).unwrap_or("")
    }
}
