//! Which registers of a warp `wgmma` still uses, and whether it may use them.
//!
//! The registers of D, and of A if it is in registers, are in use from the issue of a `wgmma.mma_async` until a
//! `wgmma.wait_group` that covers its group. Registers that other instructions write need a `wgmma.fence` before `wgmma`
//! uses them, and so does D that others have read, or after a product of another shape. Moves are treated as what assemblers make of them: renamed
//! registers. A move hands the state of its source on, and needs no fence.

use crate::code::matrix::{Source, Wgmma};
use crate::context::Context;
use crate::report::{Event, Key, Severity, Tool};
use crate::warp::Warp;

/// The state of one register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flight {
    /// It is in use until this many groups are complete.
    until: u32,
    /// The instruction that uses it.
    pc: u32,
    /// Shape of the product that uses it as D, plus 1.
    shape: u32,
    /// Fences at its last use by `wgmma`, plus 1.
    used: u32,
    /// Fences at its last write by another instruction, plus 1.
    written: u32,
    /// Fences at its last read by another instruction, plus 1.
    read: u32,
}

/// The state of a warp.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    fences: u32,
    /// Groups committed.
    groups: u32,
    /// Groups known to be complete.
    complete: u32,
    /// The last product: its instruction and the number of groups that it needs complete.
    last: Option<(u32, u32)>,
    registers: Vec<Flight>,
    /// The `tcgen05.ld` that may still write each register, plus 1, and whether there is any.
    loads: Vec<u32>,
    loading: bool,
    /// Reads of shared memory, and how many groups are complete when they have ended.
    reads: Vec<(u32, u32)>,
}

impl Flights {
    /// For code that uses `registers` registers in `wgmma`.
    pub(crate) fn new(registers: u32) -> Self {
        let (registers, loads) = (vec![Flight::default(); registers as usize], vec![0; registers as usize]);
        Self { registers, loads, ..Self::default() }
    }

    /// Begins a block.
    pub(crate) fn reset(&mut self) {
        let (mut registers, mut loads) =
            (std::mem::take(&mut self.registers), std::mem::take(&mut self.loads));
        registers.fill(Flight::default());
        loads.fill(0);
        *self = Self { registers, loads, ..Self::default() };
    }

    /// A load from tensor memory writes registers later.
    pub(in crate::exec) fn load(&mut self, slots: &[u32], pc: u32) {
        for slot in slots {
            if let Some(load) = self.loads.get_mut(*slot as usize) {
                *load = pc + 1;
                self.loading = true;
            }
        }
    }

    /// Waits for all loads from tensor memory.
    pub(in crate::exec) fn wait_loads(&mut self) {
        if std::mem::take(&mut self.loading) {
            self.loads.fill(0);
        }
    }

    /// The load that may still write a register, if one may.
    fn loads(&self, slot: u32) -> Option<u32> {
        if self.loading { self.loads.get(slot as usize)?.checked_sub(1) } else { None }
    }

    pub(super) fn fence(&mut self) {
        self.fences += 1;
    }

    pub(super) fn commit(&mut self) {
        self.groups += 1;
    }

    /// Waits until at most `pending` groups are not complete.
    pub(super) fn wait(&mut self, pending: u32) {
        self.complete = self.complete.max(self.groups.saturating_sub(pending));
    }

    /// Enters the reads of the last product.
    pub(super) fn read(&mut self, id: u32) {
        self.reads.push((self.groups + 1, id));
    }

    /// Takes out the reads that have ended.
    pub(super) fn take_reads(&mut self) -> Vec<u32> {
        let (ended, kept) =
            std::mem::take(&mut self.reads).into_iter().partition(|(until, _)| *until <= self.complete);
        self.reads = kept;
        let ended: Vec<(u32, u32)> = ended;
        ended.into_iter().map(|(_, id)| id).collect()
    }

    pub(super) fn issue(&mut self, op: &Wgmma, pc: u32) {
        let (until, used) = (self.groups + 1, self.fences + 1);
        self.last = Some((pc, until));
        for (slots, shape) in [(&op.a_slots, 0), (&op.d_slots, op.shape + 1)] {
            for slot in slots {
                let Some(flight) = self.registers.get_mut(*slot as usize) else { continue };
                *flight = Flight { until, pc, shape, used, written: 0, read: 0 };
            }
        }
    }

    /// The instruction that uses a register, if one does.
    fn in_flight(&self, slot: u32) -> Option<u32> {
        self.registers.get(slot as usize).filter(|f| f.until > self.complete).map(|f| f.pc)
    }

    /// The last product if nobody waited for it.
    pub(crate) fn pending(&self) -> Option<u32> {
        self.last.filter(|(_, until)| *until > self.complete).map(|(pc, _)| pc)
    }

    /// Why a product needs a fence first, if it does.
    fn wants_fence(&self, op: &Wgmma) -> Option<&'static str> {
        if self.fences == 0 {
            return Some("no wgmma.fence stands before the first wgmma.mma_async of this warp");
        }
        let now = self.fences + 1;
        let flight = |slot: &u32| self.registers.get(*slot as usize).copied().unwrap_or_default();
        if op.a_slots.iter().chain(&op.d_slots).any(|s| flight(s).written == now) {
            return Some(
                "an instruction wrote registers that this one uses, and no wgmma.fence stands between them",
            );
        }
        if op.d_slots.iter().any(|s| flight(s).read == now) {
            return Some(
                "an instruction read sums that this one changes, and no wgmma.fence stands between them",
            );
        }
        let other = |f: Flight, shape: u32| f.used == now && f.until > self.complete && f.shape != shape;
        if op.d_slots.iter().any(|s| other(flight(s), op.shape + 1))
            || op.a_slots.iter().any(|s| other(flight(s), 0))
        {
            return Some(
                "a wgmma.mma_async of another shape uses the same registers, and no wgmma.fence stands between them",
            );
        }
        None
    }
}

impl Context<'_> {
    /// Registers that `wgmma` uses may be touched only when it has been waited for.
    pub(in crate::exec) fn touch(&mut self, warp: &mut Warp, pc: u32, exec: u32, at: u32) {
        let touch = &self.code.touches[at as usize];
        if let Some((src, dst)) = touch.copy {
            self.check_flight(warp, pc, exec, dst, "writes");
            let state = src.and_then(|s| warp.flights.registers.get(s as usize)).copied().unwrap_or_default();
            if let Some(to) = warp.flights.registers.get_mut(dst as usize) {
                *to = Flight { written: 0, read: 0, ..state };
            }
            if warp.flights.loading {
                let load = src.and_then(|s| warp.flights.loads.get(s as usize)).copied().unwrap_or(0);
                if let Some(to) = warp.flights.loads.get_mut(dst as usize) {
                    *to = load;
                }
            }
            return;
        }
        for (slots, verb) in [(&touch.reads, "reads"), (&touch.writes, "writes")] {
            for slot in slots {
                self.check_flight(warp, pc, exec, *slot, verb);
            }
        }
        let now = warp.flights.fences + 1;
        for slot in &touch.reads {
            if let Some(flight) = warp.flights.registers.get_mut(*slot as usize) {
                flight.read = now;
            }
        }
        for slot in &touch.writes {
            if let Some(flight) = warp.flights.registers.get_mut(*slot as usize) {
                flight.written = now;
            }
        }
    }

    fn check_flight(&mut self, warp: &Warp, pc: u32, exec: u32, slot: u32, verb: &'static str) {
        if let Some(load) = warp.flights.loads(slot) {
            self.early_use(warp, pc, exec, load, verb);
        }
        let Some(user) = warp.flights.in_flight(slot) else { return };
        if !self.checks.synccheck {
            return;
        }
        let line = self.code.position(user).line;
        self.finding(warp, pc, exec, Tool::Synccheck, "wgmma-in-flight", None, || {
            (
                format!("{verb} a register that the wgmma.mma_async in line {line} may still be using"),
                "commit the group and wait for it with wgmma.wait_group before touching its registers"
                    .to_owned(),
            )
        });
    }

    /// A register is used that a load from tensor memory may still write.
    #[cold]
    fn early_use(&mut self, warp: &Warp, pc: u32, exec: u32, load: u32, verb: &'static str) {
        if !self.checks.synccheck {
            return;
        }
        let line = self.code.position(load).line;
        let key = Key { tool: Tool::Synccheck, kind: "tensor-load-in-flight", pc, other_pc: None };
        for lane in crate::exec::global::lanes_of(exec) {
            let site = self.site(warp, lane as u32);
            // A warning: compilers move uses before the wait.
            self.findings.record(key, site, || Event {
                severity: Severity::Warning,
                message: format!("{verb} a register that the tcgen05.ld in line {line} may still be writing"),
                help: "tcgen05.wait::ld.sync.aligned before its registers are used".to_owned(),
                address: None,
                other: None,
            });
        }
    }

    pub(super) fn check_registers(&mut self, warp: &Warp, pc: u32, exec: u32, op: &Wgmma) {
        debug_assert!(matches!(op.a, Source::Registers(_)) || op.a_slots.is_empty());
        let Some(why) = warp.flights.wants_fence(op) else { return };
        self.finding(warp, pc, exec, Tool::Synccheck, "wgmma-without-fence", None, || {
            (
                why.to_owned(),
                "put wgmma.fence.sync.aligned before the first wgmma.mma_async of the batch".to_owned(),
            )
        });
    }

    /// A warp ends: nothing may be in flight.
    pub(in crate::exec) fn check_exit(&mut self, warp: &Warp) {
        let Some(pc) = warp.flights.pending() else { return };
        if !self.checks.synccheck {
            return;
        }
        let key = Key { tool: Tool::Synccheck, kind: "pending-wgmma", pc, other_pc: None };
        self.findings.record(key, self.site(warp, 0), || Event {
            severity: Severity::Error,
            message: "the warp ends without having waited for this wgmma.mma_async".to_owned(),
            help: "commit the group and wait for it with wgmma.wait_group 0".to_owned(),
            address: None,
            other: None,
        });
    }
}
