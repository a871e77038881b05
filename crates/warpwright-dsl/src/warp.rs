//! Collective operations of the threads of a warp: shuffles, votes and reductions.
//!
//! All of them name the whole warp, so every lane must be active: call them outside of divergent branches.

use warpwright_ptx::{Inst, Operand, PredUse, ReduxOp, ScalarType, ShflMode, VoteMode};

use crate::context::K;
use crate::error::IssueKind;
use crate::float::Float;
use crate::flow::Carry;
use crate::reg::{Number, Pred, Reg, Scalar, Source, U32};

/// Threads of a warp.
pub const WARP: u32 = 32;

const ALL_LANES: Operand = Operand::int(0xffff_ffff);

/// `redux.sync` exists from here.
const REDUX_SM: u32 = 80;

/// An associative and commutative operation with an identity.
pub trait Reduction<T: Number>: Copy {
    /// The value that changes nothing.
    fn identity<'k>(self, k: K<'k>) -> Reg<'k, T>;

    /// The operation.
    fn combine<'k>(self, a: Reg<'k, T>, b: Reg<'k, T>) -> Reg<'k, T>;

    /// The instruction that does it for 32-bit integers of a whole warp.
    #[doc(hidden)]
    fn redux(self) -> Option<ReduxOp> {
        None
    }
}

/// Addition.
#[derive(Clone, Copy, Debug)]
pub struct Sum;
/// The largest; a number beats a NaN.
#[derive(Clone, Copy, Debug)]
pub struct Max;
/// The least; a number beats a NaN.
#[derive(Clone, Copy, Debug)]
pub struct Min;
/// The largest; a NaN beats every number.
#[derive(Clone, Copy, Debug)]
pub struct Maximum;
/// The least; a NaN beats every number.
#[derive(Clone, Copy, Debug)]
pub struct Minimum;

macro_rules! reductions {
    ($($ty:ty, $zero:expr, $lowest:expr, $highest:expr, $redux:literal;)*) => {$(
        reductions!(@op Sum, $ty, $zero, |a, b| a + b, $redux, Add);
        reductions!(@op Max, $ty, $lowest, |a, b| a.max(b), $redux, Max);
        reductions!(@op Min, $ty, $highest, |a, b| a.min(b), $redux, Min);
    )*};
    (@op $op:ident, $ty:ty, $identity:expr, |$a:ident, $b:ident| $combine:expr, $redux:literal, $redux_op:ident) => {
        impl Reduction<$ty> for $op {
            #[track_caller]
            fn identity<'k>(self, k: K<'k>) -> Reg<'k, $ty> {
                k.lit::<$ty>($identity)
            }

            #[track_caller]
            fn combine<'k>(self, $a: Reg<'k, $ty>, $b: Reg<'k, $ty>) -> Reg<'k, $ty> {
                $combine
            }

            fn redux(self) -> Option<ReduxOp> {
                $redux.then_some(ReduxOp::$redux_op)
            }
        }
    };
}

reductions! {
    f32, 0.0, f64::NEG_INFINITY, f64::INFINITY, false;
    f64, 0.0, f64::NEG_INFINITY, f64::INFINITY, false;
    u32, 0, u32::MIN, u32::MAX, true;
    i32, 0, i32::MIN, i32::MAX, true;
    u64, 0, u64::MIN, u64::MAX, false;
    i64, 0, i64::MIN, i64::MAX, false;
}

macro_rules! nan_reductions {
    ($($op:ident, $method:ident, $identity:expr;)*) => {$(
        impl<A: Float> Reduction<A> for $op {
            #[track_caller]
            fn identity<'k>(self, k: K<'k>) -> Reg<'k, A> {
                k.lit::<A>($identity)
            }

            #[track_caller]
            fn combine<'k>(self, a: Reg<'k, A>, b: Reg<'k, A>) -> Reg<'k, A> {
                a.$method(b)
            }
        }
    )*};
}

nan_reductions! {
    Maximum, maximum, f64::NEG_INFINITY;
    Minimum, minimum, f64::INFINITY;
}

macro_rules! shuffles {
    ($($(#[$doc:meta])* $name:ident, $mode:ident, $clamp:literal, $arg:ident;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self, $arg: impl Source<'k, u32>) -> Self {
            self.k().shuffle(ShflMode::$mode, &self, $arg.operand(), $clamp)
        }
    )*};
}

impl<'k, T: Number> Reg<'k, T> {
    shuffles! {
        /// The value of the lane whose number differs in the bits of `mask`.
        shfl_xor, Bfly, 0x1f, mask;
        /// The value of the lane `delta` below; the first lanes keep their own.
        shfl_up, Up, 0, delta;
        /// The value of the lane `delta` above; the last lanes keep their own.
        shfl_down, Down, 0x1f, delta;
        /// The value of lane `lane` modulo 32.
        shfl_idx, Idx, 0x1f, lane;
    }
}

impl<'k> U32<'k> {
    /// The lanes that have the same value, one bit each.
    #[track_caller]
    pub fn match_any(self) -> Self {
        let dst = self.k().fresh::<u32>();
        self.k().emit(Inst::Match {
            all: false,
            ty: ScalarType::B32,
            dst: dst.id(),
            pred: None,
            a: self.operand(),
            mask: ALL_LANES,
        });
        dst
    }
}

impl<'k> Pred<'k> {
    /// Whether it holds in any lane.
    #[track_caller]
    pub fn vote_any(self) -> Self {
        self.vote(VoteMode::Any)
    }

    /// Whether it holds in all lanes.
    #[track_caller]
    pub fn vote_all(self) -> Self {
        self.vote(VoteMode::All)
    }

    /// One bit per lane.
    #[track_caller]
    pub fn ballot(self) -> U32<'k> {
        self.vote(VoteMode::Ballot)
    }

    #[track_caller]
    fn vote<T: Scalar>(self, mode: VoteMode) -> Reg<'k, T> {
        let dst = self.k().fresh::<T>();
        let src = PredUse { reg: self.id(), negated: false };
        self.k().emit(Inst::Vote { mode, dst: dst.id(), src, mask: ALL_LANES });
        dst
    }
}

impl<'k> K<'k> {
    /// `value` as lane `lane` has it, a number below 32.
    #[track_caller]
    pub fn from_lane<C: Carry<'k>>(self, lane: impl Source<'k, u32>, value: &C) -> C {
        self.shuffle(ShflMode::Idx, value, lane.operand(), 0x1f)
    }

    /// Every register of `value` from another lane.
    #[track_caller]
    fn shuffle<C: Carry<'k>>(self, mode: ShflMode, value: &C, lane: Operand, clamp: i64) -> C {
        self.on_behalf(|| {
            value.map_words(self, |word| {
                let dst = self.fresh::<u32>();
                self.emit(Inst::Shfl {
                    mode,
                    dst: dst.id(),
                    pred: None,
                    a: Operand::Reg(word.id()),
                    b: lane,
                    c: Operand::int(clamp),
                    mask: ALL_LANES,
                });
                dst
            })
        })
    }

    /// Combines values of several registers over groups of `lanes` neighbouring lanes (a power of two up to 32) by a
    /// butterfly; every lane receives the result. All lanes receive the same bits if `combine` is commutative to the
    /// last bit.
    #[track_caller]
    pub fn warp_combine<C: Carry<'k>>(self, lanes: u32, value: C, combine: impl Fn(C, C) -> C) -> C {
        if !lanes.is_power_of_two() || lanes > WARP {
            self.issue(IssueKind::Constant { what: "a group of lanes", value: u64::from(lanes) });
            return value;
        }
        let mut value = value;
        let mut mask = lanes / 2;
        while mask > 0 {
            let other = self.shuffle(ShflMode::Bfly, &value, Operand::int(i64::from(mask)), 0x1f);
            value = combine(value, other);
            mask /= 2;
        }
        value
    }

    /// Combines each of several values over groups of `lanes` neighbouring lanes, with fewer shuffles than one by one.
    /// The lanes of a group share the results out: of `n` values, a power of two up to `lanes`, the first `lanes / n`
    /// lanes receive the first, and so on. `combine` as for [`warp_combine`](Self::warp_combine).
    #[track_caller]
    pub fn warp_combine_each<C: Carry<'k>>(
        self,
        lanes: u32,
        values: Vec<C>,
        combine: impl Fn(C, C) -> C,
    ) -> Option<C> {
        let count = u32::try_from(values.len()).unwrap_or(u32::MAX);
        if !count.is_power_of_two() || count > lanes || !lanes.is_power_of_two() || lanes > WARP {
            self.issue(IssueKind::Constant { what: "values to share out", value: u64::from(count) });
            return values.into_iter().next();
        }
        let (mut values, mut lanes) = (values, lanes);
        while values.len() > 1 {
            // The lanes of the upper half keep the upper half of the values and hand on the lower.
            lanes /= 2;
            let upper = self.on_behalf(|| (self.lane_idx() & lanes).ne(0));
            let high = values.split_off(values.len() / 2);
            let halve = |(low, high): (C, C)| {
                let (kept, sent) = (upper.select_all(&high, &low), upper.select_all(&low, &high));
                let other = self.shuffle(ShflMode::Bfly, &sent, Operand::int(i64::from(lanes)), 0x1f);
                combine(kept, other)
            };
            values = values.into_iter().zip(high).map(halve).collect();
        }
        values.pop().map(|value| self.warp_combine(lanes, value, combine))
    }
}

/// Combines the values of a warp; every lane receives the result.
#[track_caller]
pub fn warp_reduce<'k, T: Number, R: Reduction<T>>(k: K<'k>, op: R, value: Reg<'k, T>) -> Reg<'k, T> {
    match op.redux() {
        Some(redux) if k.target().sm >= REDUX_SM => {
            let dst = k.fresh::<T>();
            k.emit(Inst::Redux {
                op: redux,
                abs: false,
                nan: false,
                ty: T::TYPE,
                dst: dst.id(),
                a: value.operand(),
                mask: ALL_LANES,
            });
            dst
        }
        _ => warp_reduce_lanes(k, op, WARP, value),
    }
}

/// Combines the values of groups of `lanes` neighbouring lanes, a power of two; every lane receives its group's result.
#[track_caller]
pub fn warp_reduce_lanes<'k, T: Number, R: Reduction<T>>(
    k: K<'k>,
    op: R,
    lanes: u32,
    value: Reg<'k, T>,
) -> Reg<'k, T> {
    k.on_behalf(|| k.warp_combine(lanes, value, |a, b| op.combine(a, b)))
}

/// The sum of the values of the lanes below and of the lane itself.
#[track_caller]
pub fn warp_inclusive_sum<'k, T: Number>(k: K<'k>, value: Reg<'k, T>) -> Reg<'k, T> {
    k.on_behalf(|| inclusive_sum(k.lane_idx(), [1, WARP], value))
}

/// The same of the lanes `stride`, `2 stride` and so on below, in groups of `lanes`, both powers of two up to 32; `lane` is the number in
/// the group.
#[track_caller]
pub(crate) fn inclusive_sum<'k, T: Number>(
    lane: U32<'k>,
    [stride, lanes]: [u32; 2],
    value: Reg<'k, T>,
) -> Reg<'k, T> {
    lane.k().on_behalf(|| {
        (stride.trailing_zeros()..lanes.trailing_zeros()).fold(value, |sum, step| {
            let delta = 1 << step;
            let below = sum.shfl_up(delta);
            lane.ge(delta).select(sum + below, sum)
        })
    })
}
