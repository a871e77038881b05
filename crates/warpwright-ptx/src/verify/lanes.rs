//! Numbers of threads: which values name the lane, and what is left of it after arithmetic.

use super::Checker;
use super::reaching::{Definition, Reaching};
use crate::inst::*;

/// Threads of a warp.
pub(super) const WARP: i64 = 32;

/// The lanes of a warp that have the same value: a value is the same in two lanes whose numbers differ only in bits that are not
/// set here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LaneBits(u8);

impl LaneBits {
    /// The same in all lanes.
    pub(super) const NONE: Self = Self(0);
    /// Perhaps different in any two lanes.
    pub(super) const ALL: Self = Self(31);

    pub(super) const fn any(self) -> bool {
        self.0 != 0
    }

    pub(super) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that both have.
    pub(super) const fn within(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// All bits but those that are set in `n`.
    pub(super) const fn without(n: i64) -> Self {
        Self::ALL.and(!n)
    }

    /// All bits that are set in `n`.
    pub(super) const fn of(n: i64) -> Self {
        Self::ALL.and(n)
    }

    /// Without the bits that are not set in `n`.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "five bits count")]
    const fn and(self, n: i64) -> Self {
        Self(self.0 & (n & 31) as u8)
    }

    /// Without the `n` lowest bits.
    fn from(self, n: i64) -> Self {
        self.and(-1i64 << n.clamp(0, 5))
    }
}

/// The relation of a value to the number of the lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Shape {
    #[default]
    Other,
    /// The number of the lane and a multiple of the warp size.
    Lane,
    /// A multiple of the warp size.
    Warps,
}

/// Numbers of threads as launch directives give them, and the values that are such numbers.
#[derive(Debug)]
pub(super) struct Sources {
    /// Rows of threads are whole warps, so that only `%tid.x` differs in a warp.
    whole_rows: bool,
    shapes: Vec<Shape>,
}

impl Sources {
    pub(super) fn new(cx: &Checker<'_>, reaching: &Reaching) -> Self {
        let dims = cx.function.directives.required_threads;
        let whole_rows = dims.is_some_and(|[x, y, z]| i64::from(x) % WARP == 0 || (y == 1 && z == 1));
        // Without a declared shape the row is taken to be whole: kernels that divide %tid.x by 32 assume it.
        let rows = whole_rows || dims.is_none();
        let mut this = Self { whole_rows, shapes: vec![Shape::Other; reaching.len()] };
        for b in cx.cfg.reverse_postorder() {
            for (index, instruction) in cx.function.blocks[b.0 as usize].instructions.iter().enumerate() {
                if instruction.guard.is_none() {
                    let inst = &instruction.inst;
                    let shape = this.shape(inst, rows, &|r| reaching.read((*b, index), inst, r));
                    if shape != Shape::Other
                        && let Some(made) = reaching.made(*b, index, inst)
                    {
                        this.shapes[made.index()] = shape;
                    }
                }
            }
        }
        this
    }

    fn shape(&self, inst: &Inst, rows: bool, read: &dyn Fn(Reg) -> Definition) -> Shape {
        use Shape::{Lane, Other, Warps};
        let of = |operand: &Operand| match operand {
            Operand::Reg(r) => self.shapes[read(*r).index()],
            Operand::Imm(Imm::Int(n)) if n % WARP == 0 => Warps,
            Operand::Special(SpecialReg::Ntid(Axis::X)) if rows => Warps,
            _ => Other,
        };
        let sum = |a: Shape, b: Shape| match (a, b) {
            (Lane, Warps) | (Warps, Lane) => Lane,
            (Warps, Warps) => Warps,
            _ => Other,
        };
        let product = |a: Shape, b: Shape| if a == Warps || b == Warps { Warps } else { Other };
        match inst {
            Inst::Mov { src: Operand::Special(s), .. } | Inst::Cvt { a: Operand::Special(s), .. } => {
                match s {
                    SpecialReg::Tid(Axis::X) if rows => Lane,
                    SpecialReg::Plain(PlainSpecial::LaneId) => Lane,
                    SpecialReg::Ntid(Axis::X) if rows => Warps,
                    _ => Other,
                }
            }
            Inst::Mov { src, .. } => of(src),
            Inst::Cvt { a, .. } => of(a),
            Inst::Binary { op: BinaryOp::Add, a, b, .. } => sum(of(a), of(b)),
            Inst::Binary { op: BinaryOp::MulLo | BinaryOp::MulWide, a, b, .. } => product(of(a), of(b)),
            Inst::Binary { op: BinaryOp::Shl, b: Operand::Imm(Imm::Int(5..)), .. } => Warps,
            Inst::Ternary { op: TernaryOp::MadLo | TernaryOp::MadWide, a, b, c, .. } => {
                sum(product(of(a), of(b)), of(c))
            }
            _ => Other,
        }
    }

    /// Whether a definition is the number of the lane and a multiple of the warp size.
    fn is_lane(&self, definition: Definition) -> bool {
        self.shapes[definition.index()] == Shape::Lane
    }

    /// The bits of the lane's number on which the result of an operation with a literal depends, where it is on fewer
    /// than the operand depends on.
    pub(super) fn masked(&self, inst: &Inst, read: &dyn Fn(Reg) -> Definition) -> Option<LaneBits> {
        let lane = |r: &Reg| self.is_lane(read(*r)).then_some(LaneBits::ALL);
        match inst {
            Inst::Binary { op, a: Operand::Reg(r), b: Operand::Imm(Imm::Int(n)), .. } => match op {
                BinaryOp::Shr => Some(lane(r)?.from(*n)),
                BinaryOp::And => Some(lane(r)?.and(*n)),
                BinaryOp::Div if is_power(*n) => Some(lane(r)?.from(i64::from(n.trailing_zeros()))),
                BinaryOp::Rem if is_power(*n) => Some(lane(r)?.and(n - 1)),
                _ => None,
            },
            // Lanes on either side of a bound between groups of them.
            Inst::Setp { cmp, combine: None, a: Operand::Reg(r), b: Operand::Imm(Imm::Int(n)), .. } => {
                let bound = match cmp {
                    CmpOp::Lt | CmpOp::Lo | CmpOp::Ge | CmpOp::Hs => *n,
                    CmpOp::Le | CmpOp::Ls | CmpOp::Gt | CmpOp::Hi => n.wrapping_add(1),
                    _ => return None,
                };
                Some(lane(r)?.from(i64::from(bound.trailing_zeros())))
            }
            _ => None,
        }
    }

    /// Whether a special register differs between the lanes of a warp.
    pub(super) fn special(&self, register: SpecialReg) -> bool {
        use PlainSpecial::*;
        match register {
            SpecialReg::Tid(Axis::X) => true,
            SpecialReg::Tid(_) => !self.whole_rows,
            SpecialReg::Plain(
                LaneId | LanemaskEq | LanemaskLe | LanemaskLt | LanemaskGe | LanemaskGt | Clock | ClockHi
                | Clock64 | GlobalTimer | GlobalTimerLo | GlobalTimerHi,
            ) => true,
            SpecialReg::Ntid(_)
            | SpecialReg::Ctaid(_)
            | SpecialReg::Nctaid(_)
            | SpecialReg::ClusterCtaid(_)
            | SpecialReg::ClusterNctaid(_)
            | SpecialReg::ClusterId(_)
            | SpecialReg::NclusterId(_)
            | SpecialReg::Plain(_) => false,
        }
    }
}

const fn is_power(n: i64) -> bool {
    n > 0 && n.count_ones() == 1
}

/// The name of a special register that differs between lanes.
pub(super) fn special_name(s: SpecialReg) -> String {
    match s {
        SpecialReg::Tid(axis) => format!("`%tid.{}`", ["x", "y", "z"][axis as usize]),
        SpecialReg::Plain(p) => format!("`%{p}`"),
        _ => "a special register".to_owned(),
    }
}
