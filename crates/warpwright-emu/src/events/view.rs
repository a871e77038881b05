//! Knowledge of threads of each other: views, releases and the logs of synchronization variables.
//!
//! Time in a block is one counter that advances at every synchronisation. Full block barriers set a *floor* up to
//! which everything is ordered, so ordinary kernels never get here. Other knowledge is a [`View`]: per warp of the
//! own block the time up to which its accesses are known ([`Known`]), and the releases of other blocks that were
//! acquired. The latter are not copied: a synchronisation variable keeps a [`Log`] of releases, and acquiring is
//! remembering the log and its length ([`Acquired`]). Whether an access of another block is known is a search through
//! these, which happens only when such an access is met.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::code::asynchronous::Proxied;

/// Locks; a worker that panicked while holding it leaves data that is still consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Accesses of one warp that are known: all lanes up to `base`, some lanes further.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    base: u32,
    further: Vec<(u32, u32)>,
}

impl Known {
    /// Which of `lanes` are not known up to `tick`.
    pub(crate) fn missing(&self, lanes: u32, tick: u32) -> u32 {
        if tick <= self.base {
            return 0;
        }
        self.further.iter().filter(|(_, t)| tick <= *t).fold(lanes, |rest, (known, _)| rest & !known)
    }

    /// Adds lanes up to `tick`.
    pub(crate) fn add(&mut self, lanes: u32, tick: u32) {
        if lanes == u32::MAX {
            self.base = self.base.max(tick);
        } else if tick > self.base && !self.further.iter().any(|(l, t)| lanes & !l == 0 && tick <= *t) {
            self.further.retain(|(l, t)| l & !lanes != 0 || *t > tick);
            self.further.push((lanes, tick));
        }
        let base = self.base;
        self.further.retain(|(_, t)| *t > base);
    }

    fn merge(&mut self, other: &Self) {
        self.add(u32::MAX, other.base);
        for &(lanes, tick) in &other.further {
            self.add(lanes, tick);
        }
    }
}

/// A variable's releases up to a length, which were acquired.
#[derive(Clone, Debug)]
pub(crate) struct Acquired {
    log: Arc<Log>,
    len: usize,
}

impl Acquired {
    pub(crate) fn same_log(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.log, &other.log)
    }
}

/// Knowledge of a thread beyond the floor of its block. Warps are numbered through the cluster: 32 for each block.
#[derive(Clone, Debug, Default)]
pub struct View {
    warps: Vec<Known>,
    remote: Vec<Acquired>,
    /// Asynchronous operations whose end is known, ascending.
    ended: Vec<u32>,
    /// Generic accesses that a proxy fence has made known to the asynchronous proxy, of each [`Proxied`] memory.
    fenced: [Vec<Known>; 2],
    tensor: TensorKnown,
}

/// Facts that `tcgen05.fence::before_thread_sync` and `tcgen05.commit` have made known of tensor memory. It is usable after
/// `tcgen05.fence::after_thread_sync`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TensorKnown {
    /// Accesses, by warp.
    accesses: Vec<Known>,
    /// Asynchronous operations that have ended, ascending.
    ended: Vec<u32>,
}

impl TensorKnown {
    /// Every access asks, and comparing slices of length 0 costs hundreds of cycles where `memcmp` loads from their dangling pointers.
    fn is_empty(&self) -> bool {
        self.accesses.is_empty() && self.ended.is_empty()
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        merge_known(&mut self.accesses, &other.accesses);
        for id in &other.ended {
            if let Err(at) = self.ended.binary_search(id) {
                self.ended.insert(at, *id);
            }
        }
    }

    /// Whether some of the lanes of a warp are known up to `tick`.
    pub(crate) fn knows(&self, warp: u32, lanes: u32, tick: u32) -> bool {
        self.accesses.get(warp as usize).is_some_and(|known| known.missing(lanes, tick) != lanes)
    }

    pub(crate) fn knows_end(&self, operation: u32) -> bool {
        self.ended.binary_search(&operation).is_ok()
    }
}

/// Adds what `theirs` knows of each warp.
fn merge_known(ours: &mut Vec<Known>, theirs: &[Known]) {
    if ours.len() < theirs.len() {
        ours.resize(theirs.len(), Known::default());
    }
    for (ours, theirs) in ours.iter_mut().zip(theirs) {
        ours.merge(theirs);
    }
}

fn add_known(known: &mut Vec<Known>, warp: u32, lanes: u32, tick: u32) {
    let warp = warp as usize;
    if known.len() <= warp {
        known.resize(warp + 1, Known::default());
    }
    known[warp].add(lanes, tick);
}

impl View {
    pub(crate) fn is_empty(&self) -> bool {
        self.warps.is_empty()
            && self.remote.is_empty()
            && self.ended.is_empty()
            && self.fenced.iter().all(Vec::is_empty)
            && self.tensor.is_empty()
    }

    /// Adds operations whose end is known.
    pub(crate) fn add_ended(&mut self, operations: &[u32]) {
        for id in operations {
            if let Err(at) = self.ended.binary_search(id) {
                self.ended.insert(at, *id);
            }
        }
    }

    #[inline]
    pub(crate) fn knows_end(&self, operation: u32) -> bool {
        self.ended.binary_search(&operation).is_ok()
    }

    /// Forgets operations of which nobody will ask again.
    pub(crate) fn retain_ended(&mut self, wanted: &dyn Fn(u32) -> bool) {
        self.ended.retain(|id| wanted(*id));
        self.tensor.ended.retain(|id| wanted(id << 1));
    }

    /// Makes accesses of lanes to tensor memory known, and operations on it that have ended.
    pub(crate) fn add_tensor(&mut self, warp: u32, lanes: u32, tick: u32, ended: &[u32]) {
        add_known(&mut self.tensor.accesses, warp, lanes, tick);
        self.tensor.merge(&TensorKnown { accesses: Vec::new(), ended: ended.to_vec() });
    }

    /// The part that is about tensor memory.
    pub(crate) fn tensor(&self) -> &TensorKnown {
        &self.tensor
    }

    /// Knowledge of tensor memory, and nothing else: what relaxed synchronisation hands on.
    pub(crate) fn only_tensor(&self) -> Self {
        Self { tensor: self.tensor.clone(), ..Self::default() }
    }

    /// Makes everything that is known of the block's own accesses and of those of the cluster known to the
    /// asynchronous proxy of `memories`. `own` are the numbers of the block's warps and `floor` is the time up to which
    /// they are known.
    pub(crate) fn fence_proxy(&mut self, own: &std::ops::Range<u32>, floor: u32, memories: &[Proxied]) {
        let View { warps, fenced, .. } = self;
        for memory in memories {
            let fenced = &mut fenced[*memory as usize];
            merge_known(fenced, warps);
            for warp in own.clone() {
                add_known(fenced, warp, u32::MAX, floor);
            }
        }
    }

    /// Knowledge of the asynchronous proxy, and nothing else.
    pub(crate) fn only_fenced(self) -> Self {
        Self { fenced: self.fenced, ..Self::default() }
    }

    /// Which of the lanes of a warp have accesses up to `tick` of which the asynchronous proxy does not know.
    pub(crate) fn unfenced(&self, memory: Proxied, warp: u32, lanes: u32, tick: u32) -> u32 {
        self.fenced[memory as usize].get(warp as usize).map_or(lanes, |known| known.missing(lanes, tick))
    }

    /// Which of the lanes of a warp of this block are not known up to `tick`.
    pub(crate) fn missing(&self, warp: u32, lanes: u32, tick: u32) -> u32 {
        self.warps.get(warp as usize).map_or(lanes, |known| known.missing(lanes, tick))
    }

    pub(crate) fn add(&mut self, warp: u32, lanes: u32, tick: u32) {
        add_known(&mut self.warps, warp, lanes, tick);
    }

    /// Adds what another view knows.
    pub fn merge(&mut self, other: &Self) {
        merge_known(&mut self.warps, &other.warps);
        for (ours, theirs) in self.fenced.iter_mut().zip(&other.fenced) {
            merge_known(ours, theirs);
        }
        for acquired in &other.remote {
            self.add_remote(acquired);
        }
        self.add_ended(&other.ended);
        self.tensor.merge(&other.tensor);
    }

    fn add_remote(&mut self, acquired: &Acquired) {
        match self.remote.iter_mut().find(|a| Arc::ptr_eq(&a.log, &acquired.log)) {
            Some(ours) => ours.len = ours.len.max(acquired.len),
            None => self.remote.push(acquired.clone()),
        }
    }

    /// Forgets what the floor of a block covers, whose warps are `own`.
    pub(crate) fn forget_warps(&mut self, own: std::ops::Range<u32>) {
        if self.warps.len() <= own.end as usize && own.start == 0 {
            self.warps.clear();
            return;
        }
        for warp in self.warps.iter_mut().skip(own.start as usize).take(own.len()) {
            *warp = Known::default();
        }
    }

    /// Takes in an acquired log as a thread of `block`, which is one of the blocks of `cluster`: releases by these become
    /// knowledge of their warps. `beyond_block` says whether the reader's scope reaches other blocks.
    pub(crate) fn absorb(
        &mut self,
        acquired: &Acquired,
        block: u32,
        cluster: &std::ops::Range<u32>,
        beyond_block: bool,
    ) {
        let seen = self.remote.iter().find(|a| Arc::ptr_eq(&a.log, &acquired.log)).map_or(0, |a| a.len);
        if seen >= acquired.len {
            return;
        }
        let near: Vec<Arc<Release>> = {
            let entries = lock(&acquired.log.entries);
            cluster
                .clone()
                .flat_map(|b| {
                    entries
                        .of_block(b, acquired.len)
                        .take_while(|(at, _)| *at >= seen)
                        .filter(move |(_, r)| b == block || beyond_block && r.scope > 1)
                })
                .map(|(_, r)| r.clone())
                .collect()
        };
        for release in near {
            let first = 32 * release.block.wrapping_sub(cluster.start);
            self.add(first + release.warp, release.lanes, release.tick);
            if release.block != block {
                for warp in first..first + 32 {
                    self.add(warp, u32::MAX, release.floor);
                }
            }
            self.merge(&release.view);
        }
        if beyond_block {
            self.add_remote(acquired);
        }
    }

    /// Which of the lanes of a warp of another block are not known up to `tick`.
    pub(crate) fn missing_remote(&self, block: u32, warp: u32, lanes: u32, tick: u32) -> u32 {
        let mut rest = lanes;
        // Mostly what is asked for was acquired from its very block; what others knew of it is a long search.
        for acquired in &self.remote {
            let entries = lock(&acquired.log.entries);
            for (_, release) in entries.of_block(block, acquired.len).filter(|(_, r)| r.scope > 1) {
                rest = release.missing(warp, rest, tick);
                if rest == 0 {
                    return 0;
                }
            }
        }
        let mut visited: HashMap<*const Log, usize> = HashMap::new();
        let mut pending: Vec<Acquired> = self.remote.clone();
        while let Some(acquired) = pending.pop() {
            let from = visited.entry(Arc::as_ptr(&acquired.log)).or_insert(0);
            if *from >= acquired.len {
                continue;
            }
            let from = std::mem::replace(from, acquired.len);
            let entries = lock(&acquired.log.entries);
            let newer = entries.of_block(block, acquired.len).take_while(|(at, _)| *at >= from);
            for (_, release) in newer.filter(|(_, r)| r.scope > 1) {
                rest = release.missing(warp, rest, tick);
                if rest == 0 {
                    return 0;
                }
            }
            for release in entries.all.iter().take(acquired.len).skip(from).filter(|r| r.scope > 1) {
                pending.extend(release.view.remote.iter().cloned());
            }
        }
        rest
    }
}

/// Something that a thread published: its own accesses up to `tick` and what it knew.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) block: u32,
    pub(crate) warp: u32,
    pub(crate) lanes: u32,
    pub(crate) tick: u32,
    /// Everything in the block up to here is ordered before.
    pub(crate) floor: u32,
    /// 1 block, 2 cluster, 3 device.
    pub(crate) scope: u32,
    /// Number in its cluster of the block's first warp.
    pub(crate) base: u32,
    pub(crate) view: Arc<View>,
}

impl Release {
    fn missing(&self, warp: u32, lanes: u32, tick: u32) -> u32 {
        if tick <= self.floor {
            return 0;
        }
        let own = warp == self.warp && tick <= self.tick;
        let rest = if own { lanes & !self.lanes } else { lanes };
        if rest == 0 { 0 } else { self.view.missing(self.base + warp, rest, tick) }
    }

    fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.view, &other.view)
            && (self.block, self.warp, self.lanes, self.tick, self.scope)
                == (other.block, other.warp, other.lanes, other.tick, other.scope)
    }
}

#[derive(Debug, Default)]
struct Entries {
    all: Vec<Arc<Release>>,
    by_block: HashMap<u32, Vec<usize>>,
}

impl Entries {
    /// Releases of a block among the first `len`, newest first, with their positions.
    fn of_block(&self, block: u32, len: usize) -> impl Iterator<Item = (usize, &Arc<Release>)> {
        let positions = self.by_block.get(&block).map_or(&[][..], Vec::as_slice);
        positions.iter().rev().filter(move |at| **at < len).filter_map(|at| Some((*at, self.all.get(*at)?)))
    }
}

/// The releases that a reader of a variable synchronises with: those of the last store and of the atomics since.
#[derive(Debug, Default)]
pub(crate) struct Log {
    entries: Mutex<Entries>,
}

impl Log {
    fn push(&self, release: &Arc<Release>) {
        let mut entries = lock(&self.entries);
        // A spinning thread publishes the same thing again and again.
        let repeated = entries.of_block(release.block, usize::MAX).take(32).any(|(_, r)| r.same(release));
        if !repeated {
            let at = entries.all.len();
            entries.all.push(release.clone());
            entries.by_block.entry(release.block).or_default().push(at);
        }
    }
}

/// The synchronisation variables of a launch, or those in a block's shared memory.
#[derive(Debug, Default)]
pub(crate) struct Variables {
    logs: HashMap<u64, Arc<Log>>,
}

impl Variables {
    /// A thread releases through the variable at `address`. A store begins a new log, a read-modify-write continues.
    pub(crate) fn publish(&mut self, address: u64, releases: &[Arc<Release>], store: bool) {
        if store {
            self.logs.remove(&address);
        }
        if releases.is_empty() {
            return;
        }
        let log = self.logs.entry(address).or_default();
        for release in releases {
            log.push(release);
        }
    }

    /// The releases that a thread that reads the variable may acquire.
    pub(crate) fn observe(&self, address: u64) -> Option<Acquired> {
        let log = self.logs.get(&address)?;
        let len = lock(&log.entries).all.len();
        Some(Acquired { log: log.clone(), len })
    }

    pub(crate) fn clear(&mut self) {
        self.logs.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.logs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(block: u32, warp: u32, lanes: u32, tick: u32, view: View) -> Arc<Release> {
        Arc::new(Release { block, warp, lanes, tick, floor: 0, scope: 3, base: 0, view: Arc::new(view) })
    }

    #[test]
    fn known_lanes_extend_the_base() {
        let mut known = Known::default();
        known.add(u32::MAX, 5);
        known.add(0b11, 9);
        known.add(0b1, 7); // adds nothing
        assert_eq!(known.missing(0b111, 5), 0);
        assert_eq!(known.missing(0b111, 6), 0b100);
        assert_eq!(known.missing(0b011, 9), 0);
        assert_eq!(known.missing(0b011, 10), 0b011);
        known.add(u32::MAX, 9);
        assert_eq!(known, Known { base: 9, further: vec![] });
    }

    #[test]
    fn a_log_prefix_says_which_blocks_are_known() {
        let mut variables = Variables::default();
        variables.publish(64, &[release(1, 0, 1, 4, View::default())], false);
        let early = variables.observe(64).expect("published");
        variables.publish(64, &[release(2, 3, 1, 6, View::default())], false);
        let late = variables.observe(64).expect("published");
        let mut view = View::default();
        view.absorb(&early, 9, &(9..10), true);
        assert_eq!(view.missing_remote(1, 0, 1, 4), 0);
        assert_eq!(view.missing_remote(1, 0, 1, 5), 1);
        assert_eq!(view.missing_remote(1, 0, 0b11, 4), 0b10);
        assert_eq!(view.missing_remote(2, 3, 1, 6), 1);
        view.absorb(&late, 9, &(9..10), true);
        assert_eq!(view.missing_remote(2, 3, 1, 6), 0);
    }

    #[test]
    fn knowledge_is_transitive() {
        let mut variables = Variables::default();
        variables.publish(0, &[release(1, 0, 1, 4, View::default())], false);
        let mut second = View::default();
        second.absorb(&variables.observe(0).expect("published"), 2, &(2..3), true);
        variables.publish(8, &[release(2, 0, 1, 1, second)], false);
        let mut third = View::default();
        third.absorb(&variables.observe(8).expect("published"), 3, &(3..4), true);
        assert_eq!(third.missing_remote(1, 0, 1, 4), 0);
        assert_eq!(third.missing_remote(1, 0, 1, 5), 1);
    }

    #[test]
    fn own_releases_become_knowledge_of_warps_and_a_store_starts_again() {
        let mut variables = Variables::default();
        variables.publish(0, &[release(7, 2, 0b100, 4, View::default())], false);
        let mut view = View::default();
        view.absorb(&variables.observe(0).expect("published"), 7, &(7..8), true);
        assert_eq!(view.missing(2, 0b110, 4), 0b010);
        variables.publish(0, &[], true);
        assert!(variables.observe(0).is_none());
    }

    #[test]
    fn block_scope_releases_stay_in_the_block() {
        let mut variables = Variables::default();
        let mut cta = release(1, 0, 1, 4, View::default());
        Arc::get_mut(&mut cta).expect("sole owner").scope = 1;
        variables.publish(0, &[cta], false);
        let mut view = View::default();
        view.absorb(&variables.observe(0).expect("published"), 2, &(2..3), true);
        assert_eq!(view.missing_remote(1, 0, 1, 4), 1);
    }

    #[test]
    fn releases_of_the_cluster_become_knowledge_of_its_warps() {
        let mut variables = Variables::default();
        variables.publish(0, &[release(9, 2, 0b100, 4, View::default())], false);
        let mut view = View::default();
        view.absorb(&variables.observe(0).expect("published"), 8, &(8..10), true);
        assert_eq!(view.missing(32 + 2, 0b110, 4), 0b010);
        assert_eq!(view.missing(2, 0b100, 4), 0b100);
        view.forget_warps(32..64);
        assert_eq!(view.missing(32 + 2, 0b100, 4), 0b100);
    }

    #[test]
    fn ends_and_proxy_fences_travel_with_views() {
        let mut view = View::default();
        view.add(3, u32::MAX, 7);
        assert_eq!(view.unfenced(Proxied::Shared, 3, 1, 7), 1);
        view.fence_proxy(&(0..4), 2, &[Proxied::Shared]);
        let unfenced = |warp, tick| view.unfenced(Proxied::Shared, warp, 1, tick);
        assert_eq!((unfenced(3, 7), unfenced(3, 8)), (0, 1));
        assert_eq!((unfenced(1, 2), unfenced(4, 1)), (0, 1));
        assert_eq!(view.unfenced(Proxied::Global, 1, 1, 2), 1);
        view.add_ended(&[9, 4, 9]);
        let mut other = View::default();
        other.merge(&view);
        assert!(other.knows_end(4) && other.knows_end(9) && !other.knows_end(5));
        assert_eq!(other.unfenced(Proxied::Shared, 3, 1, 7), 0);
        other.retain_ended(&|id| id > 4);
        assert!(!other.knows_end(4) && other.knows_end(9));
    }

    #[test]
    fn a_spinning_publisher_does_not_grow_the_log() {
        let mut variables = Variables::default();
        let once = release(1, 0, 1, 4, View::default());
        for _ in 0..100 {
            variables.publish(0, std::slice::from_ref(&once), false);
        }
        assert_eq!(variables.observe(0).expect("published").len, 1);
    }
}
