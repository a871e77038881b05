//! The control-flow graph of a function: predecessors, orders, dominators and post-dominators.
//!
//! Everything is computed once, in time near linear in the number of edges (Cooper, Harvey and Kennedy, *A Simple, Fast
//! Dominance Algorithm*). Edges to blocks that do not exist are left out, so that a broken function can be analysed too.

use crate::inst::{BlockId, Terminator};
use crate::module::Function;

/// No block.
const NONE: u32 = u32::MAX;

/// The control-flow graph of one [`Function`].
#[derive(Clone, Debug)]
pub struct Cfg {
    successors: Edges,
    predecessors: Edges,
    /// Reachable blocks in reverse postorder; the entry first.
    order: Vec<BlockId>,
    /// Position in `order`, or `NONE`.
    position: Vec<u32>,
    /// Immediate dominator of each reachable block but the entry.
    idom: Vec<u32>,
    /// Entry and exit of each block in a walk of the dominator tree, so that dominance is two comparisons.
    interval: Vec<(u32, u32)>,
    /// Immediate post-dominator; `NONE` if only the end of the function post-dominates.
    ipdom: Vec<u32>,
}

/// Adjacency lists in one allocation.
#[derive(Clone, Debug)]
struct Edges {
    start: Vec<u32>,
    to: Vec<BlockId>,
}

impl Edges {
    /// Groups `(from, to)` pairs by `from`, keeping their order.
    fn group(blocks: usize, pairs: &[(u32, u32)]) -> Self {
        let mut start = vec![0u32; blocks + 1];
        for &(from, _) in pairs {
            start[from as usize + 1] += 1;
        }
        for i in 0..blocks {
            start[i + 1] += start[i];
        }
        let mut next = start.clone();
        let mut to = vec![BlockId(0); pairs.len()];
        for &(from, target) in pairs {
            let slot = &mut next[from as usize];
            to[*slot as usize] = BlockId(target);
            *slot += 1;
        }
        Self { start, to }
    }

    fn of(&self, block: u32) -> &[BlockId] {
        let at = block as usize;
        match (self.start.get(at), self.start.get(at + 1)) {
            (Some(&a), Some(&b)) => &self.to[a as usize..b as usize],
            _ => &[],
        }
    }
}

impl Cfg {
    /// Analyses `function`.
    pub fn new(function: &Function) -> Self {
        let n = function.blocks.len();
        let mut forward = Vec::with_capacity(2 * n);
        let mut seen = vec![NONE; n];
        for (from, block) in (0u32..).zip(&function.blocks) {
            for to in block.terminator.successors() {
                // A branch whose sides agree is one edge.
                if (to.0 as usize) < n && seen[to.0 as usize] != from {
                    forward.push((from, to.0));
                    seen[to.0 as usize] = from;
                }
            }
        }
        let backward: Vec<_> = forward.iter().map(|&(a, b)| (b, a)).collect();
        let successors = Edges::group(n, &forward);
        let predecessors = Edges::group(n, &backward);

        let order = if n == 0 { Vec::new() } else { reverse_postorder(n, 0, |b| successors.of(b)) };
        let position = positions(n, &order);
        let idom = dominators(&order, &position, |b| predecessors.of(b));
        let interval = intervals(&order, &idom);
        let ipdom = post_dominators(function, &successors);
        Self {
            successors,
            predecessors,
            order: order.into_iter().map(BlockId).collect(),
            position,
            idom,
            interval,
            ipdom,
        }
    }

    /// Number of blocks, unreachable ones included.
    pub fn len(&self) -> usize {
        self.position.len()
    }

    /// Whether the function has no blocks.
    pub fn is_empty(&self) -> bool {
        self.position.is_empty()
    }

    /// The blocks that may follow `block`, each once.
    pub fn successors(&self, block: BlockId) -> &[BlockId] {
        self.successors.of(block.0)
    }

    /// The blocks that `block` may follow, each once.
    pub fn predecessors(&self, block: BlockId) -> &[BlockId] {
        self.predecessors.of(block.0)
    }

    /// The reachable blocks so that each comes before its successors, back edges aside. The entry comes first.
    pub fn reverse_postorder(&self) -> &[BlockId] {
        &self.order
    }

    /// Position of a reachable block in [`Self::reverse_postorder`].
    pub fn position(&self, block: BlockId) -> Option<usize> {
        self.position.get(block.0 as usize).filter(|p| **p != NONE).map(|p| *p as usize)
    }

    /// Whether control can reach `block`.
    pub fn is_reachable(&self, block: BlockId) -> bool {
        self.position(block).is_some()
    }

    /// The closest block that every path from the entry to `block` passes before it; `None` for the entry and for
    /// unreachable blocks.
    pub fn immediate_dominator(&self, block: BlockId) -> Option<BlockId> {
        self.idom.get(block.0 as usize).filter(|d| **d != NONE).map(|d| BlockId(*d))
    }

    /// Whether every path from the entry to `b` passes `a`; a block dominates itself. False if either is unreachable.
    pub fn dominates(&self, a: BlockId, b: BlockId) -> bool {
        if !self.is_reachable(a) || !self.is_reachable(b) {
            return false;
        }
        let (a, b) = (self.interval[a.0 as usize], self.interval[b.0 as usize]);
        a.0 <= b.0 && b.1 <= a.1
    }

    /// The closest block that every path from `block` to the end passes after it; `None` if there is none or if the end
    /// cannot be reached from it.
    pub fn immediate_post_dominator(&self, block: BlockId) -> Option<BlockId> {
        self.ipdom.get(block.0 as usize).filter(|d| **d != NONE).map(|d| BlockId(*d))
    }

    /// The same among the reachable blocks that are kept, as if the others and the edges to them were not there. A way ends in a
    /// block that no kept one follows; from loops that no way leads out of it ends in their last block.
    pub fn post_dominators_among(&self, kept: &[bool]) -> Vec<Option<BlockId>> {
        let n = self.len();
        let end = u32::try_from(n).unwrap_or(NONE);
        let is_kept = |b: &BlockId| kept.get(b.0 as usize) == Some(&true);
        let mut straight = Vec::with_capacity(2 * n);
        let mut ends = vec![false; n];
        let mut todo = Vec::new();
        for b in self.order.iter().filter(|b| is_kept(b)) {
            let mut last = true;
            for s in self.successors(*b).iter().filter(|s| is_kept(s)) {
                straight.push((b.0, s.0));
                last = false;
            }
            if last {
                straight.push((b.0, end));
                ends[b.0 as usize] = true;
                todo.push(*b);
            }
        }
        // Blocks from the last one on: the first that does not come to an end closes an endless loop.
        for candidate in self.order.iter().rev().filter(|b| is_kept(b)) {
            while let Some(b) = todo.pop() {
                for p in self.predecessors(b).iter().filter(|p| is_kept(p)) {
                    if !std::mem::replace(&mut ends[p.0 as usize], true) {
                        todo.push(*p);
                    }
                }
            }
            if !std::mem::replace(&mut ends[candidate.0 as usize], true) {
                straight.push((candidate.0, end));
                todo.push(*candidate);
            }
        }
        let ipdom = dominators_from_end(n, &straight);
        ipdom.into_iter().map(|d| (d != NONE).then_some(BlockId(d))).collect()
    }

    /// Whether the edge goes back to a block that dominates its source: the edge of a natural loop.
    pub fn is_back_edge(&self, from: BlockId, to: BlockId) -> bool {
        self.dominates(to, from)
    }
}

/// Reverse postorder of what can be reached from `root`.
fn reverse_postorder<'a>(n: usize, root: u32, next: impl Fn(u32) -> &'a [BlockId]) -> Vec<u32> {
    let mut seen = vec![false; n];
    let mut order = Vec::with_capacity(n);
    let mut stack = vec![(root, 0usize)];
    seen[root as usize] = true;
    while let Some((block, edge)) = stack.last_mut() {
        if let Some(to) = next(*block).get(*edge) {
            *edge += 1;
            if !seen[to.0 as usize] {
                seen[to.0 as usize] = true;
                stack.push((to.0, 0));
            }
        } else {
            order.push(*block);
            stack.pop();
        }
    }
    order.reverse();
    order
}

fn positions(n: usize, order: &[u32]) -> Vec<u32> {
    let mut position = vec![NONE; n];
    for (i, b) in (0u32..).zip(order) {
        position[*b as usize] = i;
    }
    position
}

/// Immediate dominators for a graph given in reverse postorder; the root's is `NONE`.
fn dominators<'a>(order: &[u32], position: &[u32], before: impl Fn(u32) -> &'a [BlockId]) -> Vec<u32> {
    let mut idom = vec![NONE; position.len()];
    let Some(&root) = order.first() else { return idom };
    idom[root as usize] = root;
    let mut changed = true;
    while changed {
        changed = false;
        for &block in &order[1..] {
            let mut best = NONE;
            for p in before(block) {
                if position[p.0 as usize] == NONE || idom[p.0 as usize] == NONE {
                    continue;
                }
                best = if best == NONE { p.0 } else { intersect(best, p.0, &idom, position) };
            }
            if idom[block as usize] != best {
                idom[block as usize] = best;
                changed = true;
            }
        }
    }
    idom[root as usize] = NONE;
    idom
}

/// The closest common ancestor of two blocks in the dominator tree built so far.
fn intersect(mut a: u32, mut b: u32, idom: &[u32], position: &[u32]) -> u32 {
    while a != b {
        while position[a as usize] > position[b as usize] {
            a = idom[a as usize];
        }
        while position[b as usize] > position[a as usize] {
            b = idom[b as usize];
        }
    }
    a
}

/// Numbers the dominator tree: a dominates b exactly if a's interval holds b's.
fn intervals(order: &[u32], idom: &[u32]) -> Vec<(u32, u32)> {
    let n = idom.len();
    let tree: Vec<_> =
        order.iter().filter(|b| idom[**b as usize] != NONE).map(|b| (idom[*b as usize], *b)).collect();
    let children = Edges::group(n, &tree);
    let mut interval = vec![(0, 0); n];
    let Some(&root) = order.first() else { return interval };
    let mut clock = 0;
    let mut stack = vec![(root, 0usize)];
    while let Some((block, edge)) = stack.last_mut() {
        if *edge == 0 {
            interval[*block as usize].0 = clock;
            clock += 1;
        }
        if let Some(child) = children.of(*block).get(*edge) {
            *edge += 1;
            stack.push((child.0, 0));
        } else {
            interval[*block as usize].1 = clock;
            clock += 1;
            stack.pop();
        }
    }
    interval
}

/// Immediate post-dominators: dominators of the reversed graph from one virtual end behind every `ret` and `exit`.
fn post_dominators(function: &Function, successors: &Edges) -> Vec<u32> {
    let n = function.blocks.len();
    let end = u32::try_from(n).unwrap_or(NONE);
    let mut straight = Vec::with_capacity(2 * n);
    for (b, block) in (0u32..).zip(&function.blocks) {
        if matches!(block.terminator, Terminator::Ret | Terminator::Exit) {
            straight.push((b, end));
        }
        straight.extend(successors.of(b).iter().map(|s| (b, s.0)));
    }
    dominators_from_end(n, &straight)
}

/// Immediate dominators of `n` blocks in the reversed graph of these edges, from the virtual end, which is block `n`; none where that
/// dominates.
fn dominators_from_end(n: usize, straight: &[(u32, u32)]) -> Vec<u32> {
    let end = u32::try_from(n).unwrap_or(NONE);
    let reversed: Vec<_> = straight.iter().map(|(a, b)| (*b, *a)).collect();
    let (reversed, straight) = (Edges::group(n + 1, &reversed), Edges::group(n + 1, straight));
    let order = reverse_postorder(n + 1, end, |b| reversed.of(b));
    let position = positions(n + 1, &order);
    let mut ipdom = dominators(&order, &position, |b| straight.of(b));
    ipdom.truncate(n);
    for d in &mut ipdom {
        if *d == end {
            *d = NONE;
        }
    }
    ipdom
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inst::{PredUse, Reg};
    use crate::module::Block;

    /// A function with the given successors: none is `ret`, one is a jump, two a branch.
    fn graph(edges: &[&[u32]]) -> Function {
        let mut f = Function::entry("f");
        for e in edges {
            let terminator = match *e {
                [] => Terminator::Ret,
                [to] => Terminator::Jump { to: BlockId(*to), uniform: false },
                [a, b, ..] => Terminator::Branch {
                    pred: PredUse { reg: Reg(0), negated: false },
                    uniform: false,
                    then: BlockId(*a),
                    otherwise: BlockId(*b),
                },
            };
            f.blocks.push(Block { instructions: Vec::new(), terminator, locations: Vec::new() });
        }
        f
    }

    /// Blocks reachable from 0 without passing `without`.
    fn reach(edges: &[&[u32]], from: u32, without: Option<u32>) -> Vec<bool> {
        let mut seen = vec![false; edges.len()];
        let mut todo = vec![from];
        while let Some(b) = todo.pop() {
            if Some(b) == without || seen[b as usize] {
                continue;
            }
            seen[b as usize] = true;
            todo.extend(edges[b as usize]);
        }
        seen
    }

    /// Compares every relation with its definition.
    fn check(edges: &[&[u32]]) {
        let f = graph(edges);
        let cfg = Cfg::new(&f);
        let n = u32::try_from(edges.len()).unwrap_or(0);
        let reachable = reach(edges, 0, None);
        let ends = |from: u32, without: Option<u32>| {
            let seen = reach(edges, from, without);
            (0..n).any(|b| seen[b as usize] && edges[b as usize].is_empty())
        };
        for b in 0..n {
            assert_eq!(cfg.is_reachable(BlockId(b)), reachable[b as usize], "{edges:?} reachable {b}");
            for a in 0..n {
                let expected = reachable[a as usize]
                    && reachable[b as usize]
                    && (a == b || !reach(edges, 0, Some(a))[b as usize]);
                assert_eq!(cfg.dominates(BlockId(a), BlockId(b)), expected, "{edges:?} {a} dom {b}");
            }
            // The post-dominators of b other than itself form a chain; the immediate one is post-dominated by the rest.
            let chain: Vec<u32> = (0..n).filter(|&a| a != b && ends(b, None) && !ends(b, Some(a))).collect();
            let immediate =
                chain.iter().copied().find(|&a| chain.iter().all(|&c| c == a || !ends(a, Some(c))));
            assert_eq!(
                cfg.immediate_post_dominator(BlockId(b)).map(|p| p.0),
                immediate,
                "{edges:?} ipdom {b}"
            );
        }
    }

    #[test]
    fn diamonds_loops_and_unreachable_blocks_match_the_definitions() {
        check(&[&[]]);
        check(&[&[1, 2], &[3], &[3], &[]]);
        check(&[&[1], &[2, 3], &[1], &[]]);
        check(&[&[1, 2], &[], &[]]);
        check(&[&[2], &[2], &[]]);
        check(&[&[0]]);
        check(&[&[1, 2], &[2], &[1, 3], &[]]);
        check(&[&[1, 1], &[]]);
    }

    #[test]
    fn pseudo_random_graphs_match_the_definitions() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            u32::try_from(state % n).unwrap_or(0)
        };
        for _ in 0..300 {
            let n = 1 + random(8);
            let edges: Vec<Vec<u32>> =
                (0..n).map(|_| (0..random(3)).map(|_| random(u64::from(n))).collect()).collect();
            let edges: Vec<&[u32]> = edges.iter().map(Vec::as_slice).collect();
            check(&edges);
        }
    }

    #[test]
    fn blocks_that_are_not_kept_are_passed_over() {
        let among = |edges: &[&[u32]], left_out: &[usize]| {
            let mut kept = vec![true; edges.len()];
            left_out.iter().for_each(|b| kept[*b] = false);
            let found = Cfg::new(&graph(edges)).post_dominators_among(&kept);
            found.into_iter().map(|d| d.map(|b| b.0)).collect::<Vec<_>>()
        };
        // 0 branches to 1 and 2, and 1 may leave by 4 instead of going to 3.
        let early: &[&[u32]] = &[&[1, 2], &[4, 3], &[3], &[], &[]];
        assert_eq!(among(early, &[]), [None, None, Some(3), None, None]);
        assert_eq!(among(early, &[4]), [Some(3), Some(3), Some(3), None, None]);
        // A loop whose only way out is left out: the branch in it comes together in its last block.
        let around: &[&[u32]] = &[&[1], &[2, 3], &[4], &[4], &[1, 5], &[]];
        assert_eq!(among(around, &[5]), [Some(1), Some(4), Some(4), Some(4), None, None]);
        assert_eq!(among(around, &[]), [Some(1), Some(4), Some(4), Some(4), Some(5), None]);
    }

    #[test]
    fn an_edge_to_a_missing_block_is_left_out() {
        let cfg = Cfg::new(&graph(&[&[7]]));
        assert!(cfg.successors(BlockId(0)).is_empty());
        assert_eq!(cfg.reverse_postorder(), [BlockId(0)]);
        assert!(Cfg::new(&Function::entry("empty")).is_empty());
    }
}
