//! [`Lanes`]: the elements of one vector access, one register each; [`tree`]: how many values become one.

use crate::context::K;
use crate::error::IssueKind;
use crate::float::Float;
use crate::reg::{Number, Reg, Scalar, Source};

/// Combines values pairwise as a balanced tree, which is shorter and rounds better than a chain. `None` if there are none.
pub fn tree<T>(values: impl IntoIterator<Item = T>, mut combine: impl FnMut(T, T) -> T) -> Option<T> {
    let mut level: Vec<T> = values.into_iter().collect();
    while level.len() > 1 {
        let mut next = Vec::with_capacity(level.len().div_ceil(2));
        let mut rest = level.into_iter();
        while let Some(a) = rest.next() {
            next.push(match rest.next() {
                Some(b) => combine(a, b),
                None => a,
            });
        }
        level = next;
    }
    level.pop()
}

/// The same of at least one value.
pub fn tree_of<T>(first: T, rest: impl IntoIterator<Item = T>, mut combine: impl FnMut(T, T) -> T) -> T {
    let (mut first, mut rest): (T, Vec<T>) = (first, rest.into_iter().collect());
    while !rest.is_empty() {
        let mut level = rest.into_iter();
        if let Some(second) = level.next() {
            first = combine(first, second);
        }
        let mut next = Vec::with_capacity(level.len().div_ceil(2));
        while let Some(a) = level.next() {
            next.push(match level.next() {
                Some(b) => combine(a, b),
                None => a,
            });
        }
        rest = next;
    }
    first
}

impl<'k> K<'k> {
    /// The values as one by a balanced [`tree`]. To have none is an issue, which `what` names: no register stands for nothing.
    #[track_caller]
    pub fn tree<T: Scalar>(
        self,
        what: &'static str,
        values: impl IntoIterator<Item = Reg<'k, T>>,
        combine: impl FnMut(Reg<'k, T>, Reg<'k, T>) -> Reg<'k, T>,
    ) -> Reg<'k, T> {
        tree(values, combine).unwrap_or_else(|| {
            self.issue(IssueKind::NoValues { what });
            self.fresh()
        })
    }
}

/// Elements that one thread loads or stores together. Mapping over them unrolls, and operators work lane by lane:
///
/// ```
/// use warpwright_dsl::prelude::*;
///
/// fn normalize<'k, A: Float>(x: &Lanes<'k, A>, mean: Reg<'k, A>, scale: &Lanes<'k, A>) -> Lanes<'k, A> {
///     (x - mean) * scale
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a recorded value that nothing reads is a mistake in the kernel"]
pub struct Lanes<'k, T: Scalar> {
    regs: Vec<Reg<'k, T>>,
}

impl<'k, T: Scalar> FromIterator<Reg<'k, T>> for Lanes<'k, T> {
    fn from_iter<I: IntoIterator<Item = Reg<'k, T>>>(iter: I) -> Self {
        Self { regs: iter.into_iter().collect() }
    }
}

impl<'k, T: Scalar> From<Reg<'k, T>> for Lanes<'k, T> {
    fn from(reg: Reg<'k, T>) -> Self {
        Self { regs: vec![reg] }
    }
}

impl<'k, T: Scalar> From<Vec<Reg<'k, T>>> for Lanes<'k, T> {
    fn from(regs: Vec<Reg<'k, T>>) -> Self {
        Self { regs }
    }
}

impl<'k, T: Scalar> std::ops::Index<usize> for Lanes<'k, T> {
    type Output = Reg<'k, T>;

    fn index(&self, index: usize) -> &Reg<'k, T> {
        &self.regs[index]
    }
}

impl<'k, T: Scalar> IntoIterator for Lanes<'k, T> {
    type Item = Reg<'k, T>;
    type IntoIter = std::vec::IntoIter<Reg<'k, T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.regs.into_iter()
    }
}

impl<'k, T: Scalar> Lanes<'k, T> {
    /// `width` lanes of a literal, each in a register of its own, as a loop changes them.
    #[track_caller]
    pub fn constant(k: K<'k>, value: impl Source<'k, T>, width: u32) -> Self {
        k.on_behalf(|| (0..width).map(|_| k.lit(value)).collect())
    }

    /// `width` times the same register.
    pub fn splat(value: Reg<'k, T>, width: u32) -> Self {
        Self { regs: vec![value; width as usize] }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.regs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.regs.is_empty()
    }

    /// The registers in memory order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Reg<'k, T>> {
        self.regs.iter().copied()
    }

    /// The registers in memory order.
    pub fn as_slice(&self) -> &[Reg<'k, T>] {
        &self.regs
    }

    /// `f` of each lane.
    pub fn map<U: Scalar>(&self, f: impl FnMut(Reg<'k, T>) -> Reg<'k, U>) -> Lanes<'k, U> {
        self.iter().map(f).collect()
    }

    /// `f` of each pair of lanes; the shorter operand decides.
    pub fn zip<U: Scalar, V: Scalar>(
        &self,
        other: Lanes<'k, U>,
        mut f: impl FnMut(Reg<'k, T>, Reg<'k, U>) -> Reg<'k, V>,
    ) -> Lanes<'k, V> {
        self.iter().zip(other).map(|(a, b)| f(a, b)).collect()
    }

    /// `f` of each triple of lanes; the shortest operand decides.
    pub fn zip3<U: Scalar, V: Scalar, W: Scalar>(
        &self,
        second: Lanes<'k, U>,
        third: Lanes<'k, V>,
        mut f: impl FnMut(Reg<'k, T>, Reg<'k, U>, Reg<'k, V>) -> Reg<'k, W>,
    ) -> Lanes<'k, W> {
        self.iter().zip(second).zip(third).map(|((a, b), c)| f(a, b, c)).collect()
    }

    /// Combines the lanes in order, starting from `init`.
    pub fn fold<C>(&self, init: C, f: impl FnMut(C, Reg<'k, T>) -> C) -> C {
        self.iter().fold(init, f)
    }

    /// The lanes as one value by a balanced [`tree`]; `None` if there are none.
    pub fn reduce(&self, f: impl FnMut(Reg<'k, T>, Reg<'k, T>) -> Reg<'k, T>) -> Option<Reg<'k, T>> {
        tree(self.iter(), f)
    }

    /// Several vectors of the same length as one, in order.
    pub fn concat(parts: impl IntoIterator<Item = Self>) -> Self {
        parts.into_iter().flatten().collect()
    }
}

impl<'k, T: Number> Lanes<'k, T> {
    /// The sum of the lanes as a balanced [`tree`]; `None` if there are none.
    #[track_caller]
    pub fn sum(&self) -> Option<Reg<'k, T>> {
        let first = self.regs.first()?;
        first.k().on_behalf(|| self.reduce(|a, b| a + b))
    }

    /// Each lane converted as [`Reg::convert`] does.
    #[track_caller]
    pub fn convert<U: Number>(&self) -> Lanes<'k, U> {
        let mut out = Vec::with_capacity(self.len());
        for lane in self.iter() {
            out.push(lane.convert());
        }
        out.into()
    }
}

/// The other operand of [`Lanes`] in an expression: other lanes, of which the shorter decide how many there are, or one
/// value for all of them.
pub trait LaneSource<'k, T: Scalar> {
    /// A register or a literal.
    type Lane: Source<'k, T>;

    /// The operand of a lane.
    fn lane(&self, lane: usize) -> Option<Self::Lane>;
}

impl<'k, T: Scalar> LaneSource<'k, T> for Lanes<'k, T> {
    type Lane = Reg<'k, T>;

    fn lane(&self, lane: usize) -> Option<Reg<'k, T>> {
        self.regs.get(lane).copied()
    }
}

impl<'k, T: Scalar> LaneSource<'k, T> for &Lanes<'k, T> {
    type Lane = Reg<'k, T>;

    fn lane(&self, lane: usize) -> Option<Reg<'k, T>> {
        self.regs.get(lane).copied()
    }
}

impl<'k, T: Scalar> LaneSource<'k, T> for Reg<'k, T> {
    type Lane = Self;

    fn lane(&self, _: usize) -> Option<Self> {
        Some(*self)
    }
}

impl<'k, A: Float> LaneSource<'k, A> for f64 {
    type Lane = Self;

    fn lane(&self, _: usize) -> Option<Self> {
        Some(*self)
    }
}

impl<'k, T: Number> Lanes<'k, T> {
    #[track_caller]
    fn beside<R: LaneSource<'k, T>>(&self, rhs: &R, f: impl Fn(Reg<'k, T>, R::Lane) -> Reg<'k, T>) -> Self {
        let Some(k) = self.regs.first().map(|lane| lane.k()) else { return self.clone() };
        k.on_behalf(|| (0..).zip(self.iter()).map_while(|(i, lane)| Some(f(lane, rhs.lane(i)?))).collect())
    }

    /// `self * a + b` of each lane, as [`Reg::mul_add`].
    #[track_caller]
    pub fn mul_add(&self, a: impl LaneSource<'k, T>, b: impl LaneSource<'k, T>) -> Self {
        let Some(k) = self.regs.first().map(|lane| lane.k()) else { return self.clone() };
        let one = |(i, lane): (usize, Reg<'k, T>)| Some(lane.mul_add(a.lane(i)?, b.lane(i)?));
        k.on_behalf(|| self.iter().enumerate().map_while(one).collect())
    }
}

macro_rules! operators {
    ($($trait:ident, $method:ident, $op:tt;)*) => {$(
        impl<'k, T: Number, R: LaneSource<'k, T>> std::ops::$trait<R> for &Lanes<'k, T> {
            type Output = Lanes<'k, T>;

            #[track_caller]
            fn $method(self, rhs: R) -> Lanes<'k, T> {
                self.beside(&rhs, |a, b| a $op b)
            }
        }

        impl<'k, T: Number, R: LaneSource<'k, T>> std::ops::$trait<R> for Lanes<'k, T> {
            type Output = Self;

            #[track_caller]
            fn $method(self, rhs: R) -> Self {
                self.beside(&rhs, |a, b| a $op b)
            }
        }
    )*};
}

operators! {
    Add, add, +;
    Sub, sub, -;
    Mul, mul, *;
}
