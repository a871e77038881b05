//! Accesses to tensor memory as racecheck sees them; the rules are in `sanitize::racecheck::tensor`.

use super::super::{Issuer, Remark};
use crate::context::Context;
use crate::events::asynchronous::{Ends, Generic, Part};
use crate::events::{self, AccessKind, Strength};
use crate::report::{Other, Space, Tool};
use crate::tensor_memory::{Area, Cell, Touch, Touched, User};

/// How an instruction uses tensor memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Load,
    Store,
    Free,
    /// An asynchronous operation, which has a number, reads.
    Reads(u32),
    /// It writes.
    Writes(u32),
}

impl Use {
    const fn operation(self) -> Option<u32> {
        match self {
            Self::Reads(id) | Self::Writes(id) => Some(id),
            Self::Load | Self::Store | Self::Free => None,
        }
    }

    const fn writes(self) -> bool {
        matches!(self, Self::Store | Self::Free | Self::Writes(_))
    }

    const fn verb(self) -> &'static str {
        match self {
            Self::Load | Self::Reads(_) => "reads",
            Self::Store | Self::Writes(_) => "overwrites",
            Self::Free => "frees",
        }
    }
}

/// A fault between two accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clash {
    /// The operation may not have ended.
    Running,
    /// The load or store may not have been performed.
    NotWaited,
    /// No `tcgen05.fence::before_thread_sync` after the first.
    NoFenceBefore,
    /// No `tcgen05.fence::after_thread_sync` before the second.
    NoFenceAfter,
    /// Nothing orders them.
    Unordered,
}

impl Clash {
    const fn kind(self) -> &'static str {
        match self {
            Self::Running => "tensor-before-completion",
            Self::NotWaited => "tensor-missing-wait",
            Self::NoFenceBefore | Self::NoFenceAfter => "tensor-missing-fence",
            Self::Unordered => "tensor-unordered",
        }
    }

    const fn help(self) -> &'static str {
        match self {
            Self::Running => {
                "tcgen05.commit to an mbarrier behind the operation, and wait for the mbarrier's phase before this"
            }
            Self::NotWaited => {
                "tcgen05.wait::ld or wait::st in the warp that loads or stores, before it arrives at a barrier"
            }
            Self::NoFenceBefore => {
                "tcgen05.fence::before_thread_sync before the thread arrives at the barrier that orders them"
            }
            Self::NoFenceAfter => {
                "tcgen05.fence::after_thread_sync behind the wait for the barrier that orders them"
            }
            Self::Unordered => {
                "order them: fence::before_thread_sync, a barrier or an mbarrier, fence::after_thread_sync"
            }
        }
    }

    fn message(self, verb: &str, name: &str) -> String {
        match self {
            Self::Running => format!("{verb} tensor memory that a {name} may still be using"),
            Self::NotWaited => format!("{verb} tensor memory, and the {name} before it was not waited for"),
            Self::NoFenceBefore => {
                format!(
                    "{verb} tensor memory, and no tcgen05.fence::before_thread_sync follows the {name} before it"
                )
            }
            Self::NoFenceAfter => format!(
                "{verb} tensor memory behind a {name}, without tcgen05.fence::after_thread_sync behind what orders them"
            ),
            Self::Unordered => format!("{verb} tensor memory, and nothing orders this after a {name}"),
        }
    }
}

impl Context<'_> {
    /// Checks and enters an access to rectangles of tensor memory by the lowest lane of an issuer.
    pub(super) fn tensor_use(&mut self, issuer: Issuer, areas: &[Area], by: Use) {
        let Some(races) = &self.races else { return };
        let me = races.moment(issuer.warp, issuer.lane(), issuer.pc);
        let mut found: Vec<(Clash, Touch, Cell)> = Vec::new();
        let tensor = &mut self.block.shared.tensor;
        let user = match by.operation() {
            Some(id) => User::Operation(id),
            None => User::Warp { waited: false },
        };
        // What was fine or was found for one cell is so for others.
        let mut last: Option<Touch> = None;
        for area in areas {
            for (cell, touched) in tensor.touched(area) {
                let earlier = [touched.writer, if by.writes() { touched.reader } else { None }];
                for earlier in earlier.into_iter().flatten() {
                    if last == Some(earlier) {
                        continue;
                    }
                    last = Some(earlier);
                    let stored = touched.writer == Some(earlier);
                    let Some(clash) = clash(races, me, by, earlier, stored) else { continue };
                    let known = |(c, t, _): &(Clash, Touch, Cell)| *c == clash && t.by.pc == earlier.by.pc;
                    if !found.iter().any(known) {
                        found.push((clash, earlier, cell));
                    }
                }
                let touch = Touch { by: me, user };
                match by {
                    Use::Free => *touched = Touched::default(),
                    _ if by.writes() => *touched = Touched { writer: Some(touch), reader: None },
                    _ => touched.reader = Some(touch),
                }
            }
        }
        for (clash, earlier, cell) in found {
            self.report_tensor(issuer, by, (clash, earlier, cell));
        }
    }

    #[cold]
    fn report_tensor(&mut self, issuer: Issuer, by: Use, (clash, earlier, cell): (Clash, Touch, Cell)) {
        let Generic { rank, warp, lane, pc, .. } = earlier.by;
        let name = match self.cluster.asynchronous.operations.get(&match earlier.user {
            User::Operation(id) => id,
            User::Warp { .. } => 0,
        }) {
            Some(operation) => operation.name,
            None => "tcgen05.ld or tcgen05.st",
        };
        let site = Some(self.site_of(rank, warp, lane));
        let remark = Remark {
            message: clash.message(by.verb(), name),
            help: clash.help(),
            address: Some((Space::Tensor, u64::from(cell.address()))),
            other: Some(Other { site, pc: Some(pc), action: "used it" }),
        };
        match clash {
            // Compilers leave fences out that PTX asks for.
            Clash::NoFenceBefore | Clash::NoFenceAfter => {
                self.warn_of(issuer, Tool::Racecheck, clash.kind(), remark);
            }
            _ => self.report_of(issuer, Tool::Racecheck, clash.kind(), remark),
        }
    }

    /// A warp has waited for its loads or stores.
    pub(super) fn tensor_waited(&mut self, issuer: Issuer, stores: bool) {
        let Some(races) = &mut self.races else { return };
        let now = races.tick(issuer.warp);
        for touched in self.block.shared.tensor.all_touched() {
            let touch = if stores { &mut touched.writer } else { &mut touched.reader };
            if let Some(Touch { by, user: User::Warp { waited } }) = touch
                && by.warp == issuer.warp
                && !*waited
            {
                (*waited, by.tick) = (true, now);
            }
        }
        races.issue(issuer.warp);
    }

    /// A lane writes the address of an allocation to shared memory.
    pub(super) fn tensor_address_written(&mut self, issuer: Issuer, address: u64) {
        let Some(races) = &mut self.races else { return };
        let (warp, lane) = (issuer.warp, issuer.lane());
        let (kind, strength) = (AccessKind::Write, Strength::Weak);
        let access = events::Access { warp, pc: issuer.pc, bytes: 4, kind, strength };
        let shared = &mut self.block.shared;
        races.one_lane(&shared.races, address, 4, lane, access, &mut self.findings);
        for cell in shared.cells.range(address, 4) {
            races.write_generic(cell, warp, lane, issuer.pc);
        }
    }
}

/// The fault between an earlier access, which was a store or write if `stored`, and one that happens now.
fn clash(races: &impl Ends, me: Generic, by: Use, earlier: Touch, stored: bool) -> Option<Clash> {
    let (warp, lane, other) = (me.warp, me.lane, earlier.by);
    let same_warp = (other.rank, other.warp) == (me.rank, me.warp);
    match (earlier.user, by.operation()) {
        // Operations of a thread are in a pipeline.
        (User::Operation(_), Some(_)) if same_warp && other.lane == lane => None,
        (User::Operation(id), Some(_)) => {
            if races.knows_tensor(warp, lane, other) || races.knows_tensor_end(warp, lane, id) {
                None
            } else if races.has_tensor(warp, lane, other) || races.has_tensor_end(warp, lane, id) {
                Some(Clash::NoFenceAfter)
            } else if races.knows(warp, lane, other) {
                Some(Clash::NoFenceBefore)
            } else {
                Some(Clash::Unordered)
            }
        }
        (User::Operation(id), None) => {
            let ended =
                races.knows_end(warp, lane, Part::Writes.of(id)) || races.has_tensor_end(warp, lane, id);
            match by {
                _ if races.knows_tensor_end(warp, lane, id) => None,
                Use::Free if ended => None,
                _ if ended => Some(Clash::NoFenceAfter),
                _ => Some(Clash::Running),
            }
        }
        // Stores of a warp come one after the other, and so do its loads.
        (User::Warp { .. }, _)
            if same_warp
                && stored == matches!(by, Use::Store)
                && by.operation().is_none()
                && by != Use::Free =>
        {
            None
        }
        (User::Warp { waited: false }, _) => Some(Clash::NotWaited),
        (User::Warp { .. }, _) if same_warp => None,
        (User::Warp { .. }, _) => {
            if races.knows_tensor(warp, lane, other) {
                None
            } else if by == Use::Free {
                (!races.knows(warp, lane, other)).then_some(Clash::Unordered)
            } else if races.has_tensor(warp, lane, other) {
                Some(Clash::NoFenceAfter)
            } else if races.knows(warp, lane, other) {
                Some(Clash::NoFenceBefore)
            } else {
                Some(Clash::Unordered)
            }
        }
    }
}
