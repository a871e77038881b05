//! Whether integers satisfy linear constraints: the simplex method for bounds on variables and rows (Dutertre and de Moura, *A Fast
//! Linear-Arithmetic Solver for DPLL(T)*, with Bland's rule), in exact arithmetic, and branch and bound.
//!
//! Only "no" is a result that anything is built on. Numbers that pass 128 bits, too many pivots and too many branches all
//! give up, which counts as "perhaps".

use std::cmp::Ordering;

use super::poly::gcd;

/// Pivots of one search.
const PIVOTS: u32 = 400;

/// How much may be done.
#[derive(Debug)]
pub(super) struct Effort {
    /// Systems in one search.
    pub(super) nodes: u32,
    pivots: u32,
    /// Entries of tableaus that are changed, over all searches.
    pub(super) work: u64,
}

impl Effort {
    /// A search that looks at so many systems and leaves less of `work` to others.
    pub(super) fn new(nodes: u32, work: u64) -> Self {
        Self { nodes, pivots: PIVOTS, work }
    }

    fn pivot(&mut self, entries: usize) -> Result<(), TooLarge> {
        self.pivots = self.pivots.checked_sub(1).ok_or(TooLarge)?;
        self.work = self.work.checked_sub(entries as u64).ok_or(TooLarge)?;
        Ok(())
    }
}

/// A fraction in lowest terms with a positive denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fraction {
    numerator: i128,
    denominator: i128,
}

/// A result that no longer fits.
struct TooLarge;

impl Fraction {
    const ZERO: Self = Self::integer(0);

    const fn integer(numerator: i128) -> Self {
        Self { numerator, denominator: 1 }
    }

    fn new(numerator: i128, denominator: i128) -> Result<Self, TooLarge> {
        if numerator == i128::MIN || denominator == i128::MIN || denominator == 0 {
            return Err(TooLarge);
        }
        if denominator == 1 {
            return Ok(Self { numerator, denominator });
        }
        let divisor = gcd(numerator.abs(), denominator.abs()) * denominator.signum();
        Ok(Self { numerator: numerator / divisor, denominator: denominator / divisor })
    }

    fn plus(self, other: Self) -> Result<Self, TooLarge> {
        if self.denominator == other.denominator {
            let sum = self.numerator.checked_add(other.numerator).ok_or(TooLarge)?;
            return Self::new(sum, self.denominator);
        }
        let left = self.numerator.checked_mul(other.denominator).ok_or(TooLarge)?;
        let right = other.numerator.checked_mul(self.denominator).ok_or(TooLarge)?;
        let denominator = self.denominator.checked_mul(other.denominator).ok_or(TooLarge)?;
        Self::new(left.checked_add(right).ok_or(TooLarge)?, denominator)
    }

    fn negated(self) -> Self {
        Self { numerator: -self.numerator, denominator: self.denominator }
    }

    fn minus(self, other: Self) -> Result<Self, TooLarge> {
        self.plus(other.negated())
    }

    fn times(self, other: Self) -> Result<Self, TooLarge> {
        if self.numerator == 0 || other.numerator == 0 {
            return Ok(Self::ZERO);
        }
        let numerator = self.numerator.checked_mul(other.numerator).ok_or(TooLarge)?;
        let denominator = self.denominator.checked_mul(other.denominator).ok_or(TooLarge)?;
        Self::new(numerator, denominator)
    }

    fn over(self, other: Self) -> Result<Self, TooLarge> {
        self.times(Self::new(other.denominator, other.numerator)?)
    }

    fn compare(self, other: Self) -> Result<Ordering, TooLarge> {
        if self.denominator == other.denominator {
            return Ok(self.numerator.cmp(&other.numerator));
        }
        let left = self.numerator.checked_mul(other.denominator).ok_or(TooLarge)?;
        let right = other.numerator.checked_mul(self.denominator).ok_or(TooLarge)?;
        Ok(left.cmp(&right))
    }

    fn floor(self) -> i128 {
        self.numerator.div_euclid(self.denominator)
    }
}

/// The least and the largest value of a variable, where there is one.
pub(super) type Bounds = (Option<i128>, Option<i128>);

/// Constraints on integers.
#[derive(Clone, Debug)]
pub(super) struct Simplex {
    /// Bounds of variables, then of rows.
    bounds: Vec<Bounds>,
    values: Vec<Fraction>,
    /// By row of the tableau: the basic variable as a sum of the nonbasic ones.
    basic: Vec<usize>,
    nonbasic: Vec<usize>,
    tableau: Vec<Vec<Fraction>>,
    variables: usize,
}

/// The answer about a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// No solution.
    Nothing,
    /// Fractions, or integers.
    Solution,
}

impl Simplex {
    /// Variables with bounds, and rows: sums of variables that are at least a number.
    pub(super) fn new(variables: &[Bounds], rows: &[(Vec<(usize, i128)>, i128)]) -> Self {
        let n = variables.len();
        let mut bounds = variables.to_vec();
        bounds.extend(rows.iter().map(|(_, least)| (Some(*least), None)));
        let tableau = rows.iter().map(|(terms, _)| {
            let mut row = vec![Fraction::ZERO; n];
            terms.iter().for_each(|(at, coefficient)| row[*at] = Fraction::integer(*coefficient));
            row
        });
        Self {
            values: vec![Fraction::ZERO; n + rows.len()],
            basic: (n..n + rows.len()).collect(),
            nonbasic: (0..n).collect(),
            tableau: tableau.collect(),
            variables: n,
            bounds,
        }
    }

    /// Whether there is certainly no solution in integers.
    pub(super) fn refute(mut self, effort: &mut Effort) -> bool {
        self.start().is_ok_and(|()| self.search(effort).unwrap_or(false))
    }

    /// Brings the variables, which are not basic yet, into their bounds.
    fn start(&mut self) -> Result<(), TooLarge> {
        for at in 0..self.nonbasic.len() {
            self.clamp(at)?;
        }
        Ok(())
    }

    /// Moves a nonbasic variable to the nearest value in its bounds.
    fn clamp(&mut self, at: usize) -> Result<(), TooLarge> {
        let variable = self.nonbasic[at];
        let value = self.values[variable];
        let Some((_, target)) = self.violated(variable, value)? else { return Ok(()) };
        self.shift(at, target.minus(value)?)
    }

    fn shift(&mut self, at: usize, by: Fraction) -> Result<(), TooLarge> {
        let variable = self.nonbasic[at];
        self.values[variable] = self.values[variable].plus(by)?;
        for (row, basic) in self.tableau.iter().zip(&self.basic) {
            self.values[*basic] = self.values[*basic].plus(row[at].times(by)?)?;
        }
        Ok(())
    }

    /// The bound that a value breaks, and whether it is the lower one.
    fn violated(&self, variable: usize, value: Fraction) -> Result<Option<(bool, Fraction)>, TooLarge> {
        let (low, high) = self.bounds[variable];
        if let Some(low) = low.map(Fraction::integer)
            && value.compare(low)? == Ordering::Less
        {
            return Ok(Some((true, low)));
        }
        if let Some(high) = high.map(Fraction::integer)
            && value.compare(high)? == Ordering::Greater
        {
            return Ok(Some((false, high)));
        }
        Ok(None)
    }

    /// Finds values in all bounds.
    fn solve(&mut self, effort: &mut Effort) -> Result<Found, TooLarge> {
        if self.bounds.iter().any(|(low, high)| low.zip(*high).is_some_and(|(low, high)| low > high)) {
            return Ok(Found::Nothing);
        }
        loop {
            let mut worst: Option<(usize, bool, Fraction)> = None;
            for (row, basic) in self.basic.iter().enumerate() {
                if worst.is_none_or(|(other, ..)| *basic < self.basic[other])
                    && let Some((below, bound)) = self.violated(*basic, self.values[*basic])?
                {
                    worst = Some((row, below, bound));
                }
            }
            let Some((row, below, bound)) = worst else { return Ok(Found::Solution) };
            let mut entering: Option<usize> = None;
            for (at, variable) in self.nonbasic.iter().enumerate() {
                let coefficient = self.tableau[row][at].numerator;
                if coefficient == 0 || entering.is_some_and(|other| self.nonbasic[other] < *variable) {
                    continue;
                }
                let up = (coefficient > 0) == below;
                let value = self.values[*variable];
                let (low, high) = self.bounds[*variable];
                let free = match if up { high } else { low } {
                    None => true,
                    Some(end) => value.compare(Fraction::integer(end))? != Ordering::Equal,
                };
                if free {
                    entering = Some(at);
                }
            }
            let Some(at) = entering else { return Ok(Found::Nothing) };
            effort.pivot(self.basic.len() * self.nonbasic.len())?;
            let change = bound.minus(self.values[self.basic[row]])?.over(self.tableau[row][at])?;
            self.shift(at, change)?;
            self.pivot(row, at)?;
        }
    }

    /// Exchanges a basic and a nonbasic variable.
    fn pivot(&mut self, row: usize, at: usize) -> Result<(), TooLarge> {
        let mut solved = std::mem::take(&mut self.tableau[row]);
        let inverse = Fraction::integer(1).over(solved[at])?;
        for (column, entry) in solved.iter_mut().enumerate() {
            *entry = if column == at { inverse } else { entry.times(inverse)?.negated() };
        }
        for other in self.tableau.iter_mut().filter(|other| !other.is_empty()) {
            let factor = std::mem::replace(&mut other[at], Fraction::ZERO);
            if factor.numerator != 0 {
                for (entry, more) in other.iter_mut().zip(&solved) {
                    *entry = entry.plus(factor.times(*more)?)?;
                }
            }
        }
        self.tableau[row] = solved;
        std::mem::swap(&mut self.basic[row], &mut self.nonbasic[at]);
        Ok(())
    }

    /// Whether there is no solution, found by splitting where a variable of a solution is no integer.
    fn search(&mut self, effort: &mut Effort) -> Result<bool, TooLarge> {
        effort.nodes = effort.nodes.checked_sub(1).ok_or(TooLarge)?;
        if self.solve(effort)? == Found::Nothing {
            return Ok(true);
        }
        let Some(split) = (0..self.variables).find(|v| self.values[*v].denominator != 1) else {
            return Ok(false);
        };
        let floor = self.values[split].floor();
        let mut below = self.clone();
        below.bounds[split].1 = Some(floor);
        below.settle(split)?;
        if !below.search(effort)? {
            return Ok(false);
        }
        self.bounds[split].0 = Some(floor + 1);
        self.settle(split)?;
        self.search(effort)
    }

    /// Brings a variable whose bounds have changed into them if it is not basic.
    fn settle(&mut self, variable: usize) -> Result<(), TooLarge> {
        match self.nonbasic.iter().position(|v| *v == variable) {
            Some(at) => self.clamp(at),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infeasible(variables: &[Bounds], rows: &[(Vec<(usize, i128)>, i128)]) -> bool {
        Simplex::new(variables, rows).refute(&mut Effort::new(50, u64::MAX))
    }

    const FREE: Bounds = (None, None);

    #[test]
    fn contradictions_are_found() {
        // x + y >= 3, x <= 1, y <= 1
        let small = (Some(0), Some(1));
        assert!(infeasible(&[small, small], &[(vec![(0, 1), (1, 1)], 3)]));
        assert!(!infeasible(&[small, small], &[(vec![(0, 1), (1, 1)], 2)]));
        // x < y < z < x
        let less = |a, b| (vec![(a, -1), (b, 1)], 1);
        assert!(infeasible(&[FREE; 3], &[less(0, 1), less(1, 2), less(2, 0)]));
        assert!(!infeasible(&[FREE; 3], &[less(0, 1), less(1, 2)]));
    }

    #[test]
    fn fractions_are_no_solutions() {
        // 1 <= 2 x - 2 y + ... : 3 x = 1 + 3 y has solutions in fractions only, and both are bounded.
        let bounded = (Some(-5), Some(5));
        let equal = [(vec![(0, 3), (1, -3)], 1), (vec![(0, -3), (1, 3)], -1)];
        assert!(infeasible(&[bounded, bounded], &equal));
    }

    /// Random small systems against trying all points.
    #[test]
    fn answers_agree_with_trying_all() {
        let mut state = 7u64;
        let mut next = |range: i128| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            i128::from(state >> 40).rem_euclid(2 * range + 1) - range
        };
        let (mut none, mut some) = (0, 0);
        for _ in 0..400 {
            let bounds = [(Some(-3), Some(3)); 3];
            let rows: Vec<_> =
                (0..4).map(|_| (vec![(0, next(4)), (1, next(4)), (2, next(4))], next(6))).collect();
            let mut points = (0..343i128).map(|p| [p % 7 - 3, p / 7 % 7 - 3, p / 49 - 3]);
            let holds = |p: &[i128; 3]| {
                rows.iter()
                    .all(|(terms, least)| terms.iter().map(|(at, c)| c * p[*at]).sum::<i128>() >= *least)
            };
            let exists = points.any(|p| holds(&p));
            let said = infeasible(&bounds, &rows);
            assert!(!(said && exists), "{rows:?}");
            none += u32::from(said);
            some += u32::from(exists);
        }
        assert!(none > 20 && some > 20, "{none} without, {some} with a solution");
    }
}
