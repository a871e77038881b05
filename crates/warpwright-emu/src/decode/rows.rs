//! Which registers share a row: those that are never alive at the same place.
//!
//! PTX names a new register for almost every result, so a row for each would spread a warp's registers over far more
//! memory than the first cache holds. Here every register gets the interval of the text from its first to its last
//! live place (a linear scan), and registers with disjoint intervals take turns in a row. Rows are per lane and lanes
//! only write their own column, so divergence changes nothing.

use std::collections::HashSet;

use warpwright_ptx::{Function, Reg, Role, Terminator};

use super::copies::Place;

/// Blocks times registers beyond which every register gets a row of its own: the analysis takes a bit for each.
const MAX_ANALYSIS: usize = 1 << 28;

/// Bits of a set of registers.
#[derive(Clone)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    fn set(&mut self, i: usize) {
        if let Some(w) = self.0.get_mut(i / 64) {
            *w |= 1 << (i % 64);
        }
    }

    fn clear(&mut self, i: usize) {
        if let Some(w) = self.0.get_mut(i / 64) {
            *w &= !(1 << (i % 64));
        }
    }

    fn join(&mut self, other: &Self) -> bool {
        let mut changed = false;
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            changed |= b & !*a != 0;
            *a |= b;
        }
        changed
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(i, w)| {
            let mut rest = *w;
            std::iter::from_fn(move || {
                let bit = rest.checked_ilog2()?;
                rest &= !(1 << bit);
                Some(64 * i + bit as usize)
            })
        })
    }
}

/// The rows of one width.
#[derive(Default)]
struct Pool {
    /// Rows in use, with the end of the interval.
    active: Vec<(u32, u32)>,
    free: Vec<u32>,
    rows: u32,
}

impl Pool {
    /// A row for an interval; those whose interval is over are free again.
    fn take(&mut self, start: u32, end: u32) -> u32 {
        let free = &mut self.free;
        self.active.retain(|(row, last)| {
            let over = *last < start;
            if over {
                free.push(*row);
            }
            !over
        });
        let row = self.free.pop().unwrap_or_else(|| self.add());
        self.active.push((row, end));
        row
    }

    fn add(&mut self) -> u32 {
        self.rows += 1;
        self.rows - 1
    }
}

/// Where a register lives, numbered within its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assigned {
    /// Never mentioned.
    Nowhere,
    /// A row that it shares with others of its width.
    Row(u32),
    /// The row of another register, whose copy it is.
    Same(Reg),
}

/// Assigns rows. `elided` are the moves that do not run; `source` gives the register that such a move copies.
pub(crate) fn assign(
    function: &Function,
    elided: &HashSet<Place>,
    source: &dyn Fn(Place) -> Option<(Reg, Option<Reg>)>,
) -> Vec<Assigned> {
    let count = function.registers.len();
    // Copies stand for what they copy; copies of constants need no row.
    let mut same: Vec<Option<Reg>> = vec![None; count];
    let mut constant = vec![false; count];
    for place in elided {
        match source(*place) {
            Some((dst, Some(src))) => same[dst.0 as usize] = Some(src),
            Some((dst, None)) => constant[dst.0 as usize] = true,
            None => {}
        }
    }
    let root = |r: Reg| {
        let mut r = r;
        // Copies were found in dominance order, so chains are not circular.
        for _ in 0..count {
            match same.get(r.0 as usize).copied().flatten() {
                Some(next) => r = next,
                None => break,
            }
        }
        r.0 as usize
    };
    let intervals = if count.saturating_mul(function.blocks.len()) <= MAX_ANALYSIS {
        intervals(function, &root)
    } else {
        vec![Some((0, u32::MAX)); count]
    };
    let mut order: Vec<usize> = (0..count).filter(|r| intervals[*r].is_some() && !constant[*r]).collect();
    order.sort_by_key(|r| intervals[*r].map(|(start, _)| start));
    let mut assigned = vec![Assigned::Nowhere; count];
    let mut classes: [Pool; 4] = Default::default();
    for r in order {
        let Some((start, end)) = intervals[r] else { continue };
        assigned[r] = Assigned::Row(classes[class(function, r)].take(start, end));
    }
    for r in 0..count {
        if constant[r] {
            // Only used if the constant turns out not to fit.
            assigned[r] = Assigned::Row(classes[class(function, r)].add());
        } else if let Some(src) = same[r] {
            assigned[r] = Assigned::Same(src);
        }
    }
    assigned
}

/// 0 for up to 32 bits, 1 for 64, 2 for 128, 3 for predicates.
pub(crate) fn class(function: &Function, r: usize) -> usize {
    match function.registers.get(r).map_or(32, |i| i.ty.bits()) {
        1 => 3,
        64 => 1,
        128 => 2,
        _ => 0,
    }
}

/// First and last live place of each register, in the order of the text. A register that is read and one that is
/// written by the same instruction count as alive together, because some instructions are decoded into several.
fn intervals(function: &Function, root: &dyn Fn(Reg) -> usize) -> Vec<Option<(u32, u32)>> {
    let count = function.registers.len();
    let live_in = liveness(function, root);
    let mut intervals: Vec<Option<(u32, u32)>> = vec![None; count];
    let mut at = 0u32;
    for (index, block) in function.blocks.iter().enumerate() {
        let start = at;
        let mut touch = |r: usize, at: u32| {
            let (first, last) = intervals[r].get_or_insert((at, at));
            *first = (*first).min(at);
            *last = (*last).max(at);
        };
        for r in live_in.get(index).into_iter().flat_map(Bits::iter) {
            touch(r, start);
        }
        if index == 0 {
            // A call writes all parameters at once.
            function.params.iter().filter_map(|p| p.register).for_each(|r| touch(root(r), start));
        }
        for instruction in &block.instructions {
            if let Some(guard) = instruction.guard {
                touch(root(guard.reg), at);
            }
            instruction.inst.visit(|_, r| touch(root(r), at));
            at += 1;
        }
        if let Some(decides) = block.terminator.condition() {
            touch(root(decides), at);
        }
        results(function, &block.terminator).for_each(|r| touch(root(r), at));
        for next in block.terminator.successors() {
            for r in live_in.get(next.0 as usize).into_iter().flat_map(Bits::iter) {
                touch(r, at);
            }
        }
        at += 1;
    }
    intervals
}

/// The registers that a return hands to the caller.
fn results<'a>(function: &'a Function, terminator: &Terminator) -> impl Iterator<Item = Reg> + 'a {
    let returns = if matches!(terminator, Terminator::Ret) { function.returns.as_slice() } else { &[] };
    returns.iter().filter_map(|p| p.register)
}

/// The registers that are alive where each block begins.
fn liveness(function: &Function, root: &dyn Fn(Reg) -> usize) -> Vec<Bits> {
    let count = function.registers.len();
    let mut live_in = vec![Bits::new(count); function.blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for (at, block) in function.blocks.iter().enumerate().rev() {
            let mut live = Bits::new(count);
            for next in block.terminator.successors() {
                if let Some(next) = live_in.get(next.0 as usize) {
                    live.join(next);
                }
            }
            if let Some(decides) = block.terminator.condition() {
                live.set(root(decides));
            }
            results(function, &block.terminator).for_each(|r| live.set(root(r)));
            for instruction in block.instructions.iter().rev() {
                // A guarded write leaves the other lanes' values alive.
                if instruction.guard.is_none() {
                    instruction.inst.visit(|role, r| {
                        if role == Role::Def {
                            live.clear(root(r));
                        }
                    });
                }
                instruction.inst.visit(|role, r| {
                    if role == Role::Use {
                        live.set(root(r));
                    }
                });
                if let Some(guard) = instruction.guard {
                    live.set(root(guard.reg));
                }
            }
            changed |= live_in[at].join(&live);
        }
    }
    live_in
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(body: &str) -> Vec<Assigned> {
        let text = format!(
            ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{{\n\
             .reg .pred %p<1>;\n.reg .b32 %r<6>;\n{body}\nret;\n}}\n"
        );
        let parsed = warpwright_ptx::text::parse(&text);
        assert!(!parsed.has_errors(), "{:?}", parsed.diagnostics);
        let function = &parsed.module.functions[0];
        let assigned = assign(function, &HashSet::new(), &|_| None);
        (0..assigned.len()).filter(|r| class(function, *r) == 0).map(|r| assigned[r]).collect()
    }

    #[test]
    fn registers_take_turns() {
        let r = rows("add.u32 %r0, 1, 1;\nadd.u32 %r1, %r0, 1;\nadd.u32 %r2, %r1, 1;\nadd.u32 %r3, %r2, 1;");
        assert_ne!(r[0], r[1]);
        assert_eq!(r[0], r[2]);
        assert_eq!(r[1], r[3]);
        assert_eq!(r.len(), 4);
    }

    #[test]
    fn what_lives_around_a_loop_keeps_its_row() {
        let r = rows(
            "mov.u32 %r0, 3;\nmov.u32 %r1, 0;\nL:\nadd.u32 %r2, %r1, %r0;\nadd.u32 %r1, %r2, 1;\n\
             setp.lt.u32 %p0, %r1, 9;\n@%p0 bra L;\nadd.u32 %r3, %r1, 1;",
        );
        // %r0 is read in every round, so nothing in the loop may take its row.
        assert!(r[1..3].iter().all(|x| *x != r[0]));
        assert_ne!(r[1], r[2]);
    }

    #[test]
    fn a_guarded_write_keeps_the_value_before() {
        let r = rows(
            "mov.u32 %r0, 1;\nsetp.eq.u32 %p0, 1, 1;\nadd.u32 %r1, 2, 2;\nadd.u32 %r2, %r1, 2;\n\
             @%p0 mov.u32 %r0, %r2;\nadd.u32 %r3, %r0, 1;",
        );
        assert_ne!(r[0], r[1]);
        assert_ne!(r[0], r[2]);
    }
}
