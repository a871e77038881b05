//! Asynchronous operations in the race detector.
//!
//! An operation is recorded twice. In the shadow its accesses count as those of the issuing lane at the time of the
//! issue, so that everything that is not ordered before the issue, or after it, is an ordinary race. Beside that every
//! word of shared memory has a [`Cell`] that names the operations that write and read it: whoever touches the word must
//! also know that the operation has *ended*. The end is known to lanes that waited for their group, to lanes that saw
//! the mbarrier's phase complete, and to everyone who synchronised with them later; it travels in [`View`]s.
//!
//! A second knowledge says of which generic accesses the asynchronous proxy knows: `fence.proxy.async` copies a thread's
//! own into it, and it travels the same way. Bulk copies and `wgmma` that read a word which was written generically and
//! of which the proxy does not know are findings, and so are copies that overwrite it.

use super::shadow::{Id, SECTOR, Shadow};
use super::{Access, BlockRaces};
pub use crate::code::asynchronous::Proxied;
use crate::context::Context;
use crate::events::asynchronous::Ends;
pub use crate::events::asynchronous::{Cell, Cells, Generic, Part};
pub use crate::events::view::View;
use crate::report::Findings;

impl BlockRaces<'_> {
    /// Knowledge and actions of lanes until now, for others to [`accept`](Self::accept): a release.
    pub fn publish(&mut self, warp: u32, lanes: u32) -> View {
        let view = self.clocks.publish(warp, lanes);
        self.moved();
        view
    }

    /// Knowledge and actions of lanes before their last fence of cluster scope or wider: a relaxed arrival publishes them.
    pub fn publish_fenced(&mut self, warp: u32, lanes: u32) -> View {
        let view = self.clocks.publish_fenced(warp, lanes);
        self.moved();
        view
    }

    /// Lanes learn what others published: an acquire. `live` are the lanes of the warp that have not exited.
    pub fn accept(&mut self, warp: u32, lanes: u32, live: u32, published: &View) {
        self.clocks.accept(warp, lanes, live, published);
    }

    /// Lanes know that parts of operations have ended.
    pub fn accept_ends(&mut self, warp: u32, lanes: u32, live: u32, parts: &[u32]) {
        let mut view = View::default();
        view.add_ended(parts);
        self.clocks.accept(warp, lanes, live, &view);
    }

    /// Whether a lane knows that a part of an operation has ended.
    pub fn knows_end(&self, warp: u32, lane: u32, part: u32) -> bool {
        self.clocks.ask(warp, lane, |view| view.knows_end(part))
    }

    /// The present time of a warp; [`issue`](Self::issue) ends it.
    pub fn tick(&self, warp: u32) -> u32 {
        self.clocks.tick(warp)
    }

    /// Gives what a warp has just issued a time of its own.
    pub fn issue(&mut self, warp: u32) {
        self.clocks.issue(warp);
        self.moved();
    }

    /// Knowledge of those who see the end of an operation that a lane of this block issued at `tick`.
    pub fn ending(&self, warp: u32, lanes: u32, tick: u32, parts: &[u32]) -> View {
        let mut view = View::default();
        view.add(self.clocks.first_warp() + warp, lanes, tick);
        view.add_ended(parts);
        view
    }

    /// The same of an operation that releases: they learn what the lane knew, too.
    pub fn sending(&mut self, warp: u32, lanes: u32, parts: &[u32]) -> View {
        let mut view = self.publish(warp, lanes);
        view.add_ended(parts);
        view
    }

    /// `fence.proxy.async` of memories
    pub fn fence_proxy(&mut self, warp: u32, lanes: u32, live: u32, memories: &[Proxied]) {
        self.clocks.fence_proxy(warp, lanes, live, memories);
        self.moved();
    }

    /// Enters a generic write to a word.
    pub fn write_generic(&self, cell: &mut Cell, warp: u32, lane: u32, pc: u32) {
        *cell = Cell::written(self.moment(warp, lane, pc));
    }

    /// One lane accesses a range; `access.bytes` does not matter.
    pub fn one_lane(
        &mut self,
        shadow: &Shadow,
        offset: u64,
        bytes: u64,
        lane: u32,
        access: Access,
        findings: &mut Findings,
    ) {
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            // The largest power of two that fits; whole sectors are the quickest.
            let fits = 1u32 << (end - at).min(SECTOR).ilog2();
            let size = if at == 0 { fits } else { fits.min(1 << at.trailing_zeros().min(5)) };
            let access = Access { bytes: size, ..access };
            if u64::from(size) == SECTOR {
                self.contiguous(shadow, at, lane, 1, access, findings, &|_, _| false);
            } else {
                self.scattered(shadow, &[at; 32], 1 << lane, access, findings, &|_, _| false);
            }
            at += u64::from(size);
        }
    }

    /// Whether the asynchronous proxy knows of a generic write to a memory when a lane starts an operation.
    pub fn is_fenced(&self, memory: Proxied, warp: u32, lane: u32, write: Generic) -> bool {
        let number = 32 * write.rank + write.warp;
        self.clocks.ask(warp, lane, |view| view.unfenced(memory, number, 1 << write.lane, write.tick) == 0)
    }

    /// The first word of a range of global memory that a lane is about to read through the asynchronous proxy, but that a
    /// block of the cluster wrote generically without telling it, though ordered before. `generic` says whether a decoded
    /// instruction writes generically. Of other blocks the proxy's knowledge is not followed.
    pub fn unfenced_write(
        &self,
        shadow: &Shadow,
        (offset, bytes): (u64, u64),
        (warp, lane): (u32, u32),
        generic: &dyn Fn(u32) -> bool,
    ) -> Option<(u64, Generic)> {
        let end = offset + bytes;
        let mut at = offset / SECTOR * SECTOR;
        while at < end {
            let page = shadow.page(at, self.launch.generation, self.launch.exclusive)?;
            let sector = page.sector(at);
            let words = if sector.is_split() { page.words(sector) } else { None };
            let near = words.is_some() || self.is_in_cluster(sector.write_id());
            for word in (0..8u64).filter(|word| near && (offset..end).contains(&(at + 4 * word))) {
                let (id, lanes) = match words {
                    Some(words) => words[word as usize].write(),
                    None => (sector.write_id(), sector.write().1.word(word as u32)),
                };
                let Some(pc) = lanes.pc() else { continue };
                if id == Id::NONE || !self.is_in_cluster(id) || lanes.is_several() || !generic(pc) {
                    continue;
                }
                let write = Generic {
                    rank: id.block() - self.first_of_cluster(),
                    warp: id.warp(),
                    lane: lanes.of_bytes(lanes.mask()).trailing_zeros(),
                    pc,
                    tick: id.tick(),
                };
                // What is not even ordered is a race already.
                if !self.is_fenced(Proxied::Global, warp, lane, write) && self.knows(warp, lane, write) {
                    return Some((at + 4 * word, write));
                }
            }
            at += SECTOR;
        }
        None
    }

    /// Whether a lane knows of everything that a lane of a block of the cluster did up to `tick`.
    pub fn knows(&self, warp: u32, lane: u32, other: Generic) -> bool {
        let own = self.clocks.first_warp() / 32;
        let missing = if other.rank == own {
            self.clocks.unordered(other.warp, 1 << other.lane, other.tick, warp, 1 << lane)
        } else {
            let block = self.block.wrapping_sub(own).wrapping_add(other.rank);
            self.clocks.unordered_remote(block, other.warp, 1 << other.lane, other.tick, warp, 1 << lane)
        };
        missing == 0 || other.rank == own && other.warp == warp && other.lane == lane
    }

    /// The present action of a lane, as [`knows`](Self::knows) asks for it.
    pub fn moment(&self, warp: u32, lane: u32, pc: u32) -> Generic {
        Generic { rank: self.clocks.first_warp() / 32, warp, lane, pc, tick: self.clocks.tick(warp) }
    }

    /// Forgets ends of operations of which nobody will ask again.
    pub fn retain_ended(&mut self, wanted: &dyn Fn(u32) -> bool) {
        self.clocks.retain_ended(wanted);
    }
}

impl Context<'_> {
    /// The same of all blocks of the cluster.
    pub(crate) fn retain_ended(&mut self, wanted: &dyn Fn(u32) -> bool) {
        let residents = self.cluster.residents.iter_mut().filter_map(|r| r.races.as_mut());
        residents.chain(&mut self.races).for_each(|races| races.retain_ended(wanted));
    }
}

impl Ends for BlockRaces<'_> {
    fn knows_end(&self, warp: u32, lane: u32, part: u32) -> bool {
        self.knows_end(warp, lane, part)
    }

    fn knows(&self, warp: u32, lane: u32, other: Generic) -> bool {
        self.knows(warp, lane, other)
    }

    fn is_fenced(&self, memory: Proxied, warp: u32, lane: u32, write: Generic) -> bool {
        self.is_fenced(memory, warp, lane, write)
    }

    fn knows_tensor(&self, warp: u32, lane: u32, other: Generic) -> bool {
        self.tensor_usable(warp, lane, |known| {
            known.knows(32 * other.rank + other.warp, 1 << other.lane, other.tick)
        })
    }

    fn knows_tensor_end(&self, warp: u32, lane: u32, operation: u32) -> bool {
        self.tensor_usable(warp, lane, |known| known.knows_end(operation))
    }

    fn has_tensor(&self, warp: u32, lane: u32, other: Generic) -> bool {
        let number = 32 * other.rank + other.warp;
        self.clocks.ask(warp, lane, |view| view.tensor().knows(number, 1 << other.lane, other.tick))
    }

    fn has_tensor_end(&self, warp: u32, lane: u32, operation: u32) -> bool {
        self.clocks.ask(warp, lane, |view| view.tensor().knows_end(operation))
    }
}
