//! Calls: frames of the lanes, arguments and results, and the functions that a device's runtime provides.
//!
//! A call path (the calls that led to a function) is a node of a tree. Lanes on the same path share the node and may
//! run together; lanes at the same instruction on different paths do not. A node goes when its last lane returns or
//! ends, so there are never more than the lanes' depths together.

use warpwright_ptx::isa::DeviceLimits;

use super::definedness::Definedness;
use super::global::{alike, lane_value, lanes_of, set_lane};
use super::rows::{put_pred, put32, put64};
use crate::code::Code;
use crate::code::function::{Builtin, Call, FunctionCode, Place, Target};
use crate::code::layout::Slot;
use crate::code::rows::{LANES, Registers, Row32, Row64};
use crate::context::Context;
use crate::flow::{Flow, Outcome};
use crate::launch::Fault;
use crate::memory::POISON;
use crate::report::coordinates;
use crate::space::{FUNCTION_WINDOW, LOCAL_BASE, SLOT};
use crate::warp::{Group, Local, Warp};

/// Calls that a thread may be inside of.
const MAX_DEPTH: u32 = 4096;
/// Local memory that a thread may have, frames included.
pub(crate) const MAX_LOCAL: u64 = DeviceLimits::THREAD_LOCAL as u64;

/// The lanes that took the same calls.
#[derive(Debug)]
struct Node {
    /// The path of the caller; `None` in the kernel.
    parent: Option<u32>,
    depth: u32,
    /// Index into `Code::functions`.
    function: u32,
    /// Index into `Code::calls`.
    call: u32,
    /// The instruction to return to.
    resume: u32,
    /// Where the frame begins.
    base: u64,
    /// Lanes in this function or in one that it called; 0: the node is free.
    lanes: u32,
    /// Ends of the callers' frames.
    tops: [u64; LANES],
    /// The caller's rows, if the call saves them.
    rows32: Vec<Row32>,
    rows64: Vec<Row64>,
    preds: Vec<u32>,
    definedness: Definedness,
}

/// The call paths of a warp.
#[derive(Debug)]
pub(crate) struct Paths {
    nodes: Vec<Node>,
    /// The path that each lane is on.
    current: [Option<u32>; LANES],
    /// First byte after what each lane has in local memory.
    pub(crate) tops: [u64; LANES],
    /// Nodes with lanes.
    live: u32,
}

impl Default for Paths {
    fn default() -> Self {
        Self { nodes: Vec::new(), current: [None; LANES], tops: [LOCAL_BASE; LANES], live: 0 }
    }
}

impl Paths {
    /// All lanes are in the kernel, whose variables end at `end`.
    pub(crate) fn reset(&mut self, end: u64) {
        self.nodes.clear();
        self.current = [None; LANES];
        self.tops = [end; LANES];
        self.live = 0;
    }

    /// Whether all lanes are in the kernel.
    pub(crate) fn is_flat(&self) -> bool {
        self.live == 0
    }

    /// The path of the lowest lane of a group.
    pub(crate) fn of(&self, lanes: u32) -> Option<u32> {
        self.current.get(lanes.trailing_zeros() as usize).copied().flatten()
    }

    /// Calls that the lowest lane of a group is inside of.
    pub(crate) fn depth(&self, lanes: u32) -> u32 {
        self.of(lanes).map_or(0, |n| self.nodes[n as usize].depth)
    }

    /// The lanes of a group that are on the path of its lowest lane.
    pub(crate) fn same(&self, lanes: u32) -> u32 {
        let path = self.of(lanes);
        lanes_of(lanes).filter(|l| self.current[*l] == path).fold(0, |m, l| m | 1 << l)
    }

    /// Takes lanes that have ended out of their paths.
    pub(crate) fn end(&mut self, lanes: u32) {
        if self.live == 0 {
            return;
        }
        for node in &mut self.nodes {
            let before = node.lanes;
            node.lanes &= !lanes;
            self.live -= u32::from(before != 0 && node.lanes == 0);
        }
        lanes_of(lanes).for_each(|l| self.current[l] = None);
    }

    /// Where the frame of the lowest lane begins.
    fn base(&self, lanes: u32) -> u64 {
        self.of(lanes).map_or(0, |n| self.nodes[n as usize].base)
    }

    /// The calls that the lowest lane of a group is inside of, innermost first: instruction and function.
    fn chain(&self, lanes: u32) -> impl Iterator<Item = &Node> {
        std::iter::successors(self.of(lanes), |n| self.nodes[*n as usize].parent)
            .map(|n| &self.nodes[n as usize])
    }

    /// A node for lanes that call; it may be there already.
    fn enter(&mut self, lanes: u32, (function, call, resume): (u32, u32, u32), base: u64) -> u32 {
        let parent = self.of(lanes);
        let fits = |n: &Node| {
            n.lanes != 0
                && n.parent == parent
                && n.resume == resume
                && n.function == function
                && n.base >= base
        };
        if let Some(at) = self.nodes.iter().position(fits) {
            self.nodes[at].lanes |= lanes;
            return at as u32;
        }
        let node = Node {
            parent,
            depth: self.depth(lanes) + 1,
            function,
            call,
            resume,
            base,
            lanes,
            tops: [0; LANES],
            rows32: Vec::new(),
            rows64: Vec::new(),
            preds: Vec::new(),
            definedness: Definedness::default(),
        };
        self.live += 1;
        match self.nodes.iter().position(|n| n.lanes == 0) {
            Some(at) => {
                self.nodes[at] = node;
                at as u32
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        }
    }
}

impl Context<'_> {
    /// Runs a call: the lanes of `exec` go on in the callee, the others behind the call.
    #[inline(never)]
    pub(super) fn call(&mut self, warp: &mut Warp, here: Group, exec: u32, at: u32) -> Flow {
        let flow = self.enter_callee(warp, here, exec, at);
        self.transferred(warp, flow)
    }

    /// Lanes go to the targets with their numbers in row `index`.
    #[inline(never)]
    pub(super) fn branch_indexed(&mut self, warp: &mut Warp, here: Group, index: u32, table: u32) -> Flow {
        let flow = self.enter_targets(warp, here, index, table);
        self.transferred(warp, flow)
    }

    /// How it goes on after a call or an indexed branch. Recursion without end is a way to spin.
    fn transferred(&self, warp: &mut Warp, flow: Flow) -> Flow {
        if flow == Flow::Stop {
            Flow::Leave(Outcome::Stopped)
        } else if warp.spin() {
            warp.spins = 0;
            Flow::Leave(self.turn_over())
        } else {
            flow
        }
    }

    fn enter_callee(&mut self, warp: &mut Warp, here: Group, exec: u32, at: u32) -> Flow {
        let code = self.code;
        let call = &code.calls[at as usize];
        let behind = here.pc + 1;
        warp.push(behind, here.mask & !exec, here.turn);
        match &call.target {
            Target::Function(f) => self.enter_function(warp, here, exec, at, *f),
            Target::Builtin(builtin) => {
                if self.builtin(warp, here.pc, exec, *builtin, call) == Flow::Stop {
                    return Flow::Stop;
                }
                warp.push(behind, exec, here.turn);
                Flow::Repick
            }
            Target::Missing(name) => {
                self.bad_call(warp, here.pc, exec, format!("calls `{name}`, which the module only declares"))
            }
            Target::Address(slot) => {
                let mut rest = exec;
                while rest != 0 {
                    let address = lane_value(&warp.regs, *slot, rest.trailing_zeros() as usize);
                    let lanes = lanes_of(rest)
                        .filter(|l| lane_value(&warp.regs, *slot, *l) == address)
                        .fold(0u32, |m, l| m | 1 << l);
                    rest &= !lanes;
                    let Some(f) = code.addresses.get(&address) else {
                        let message =
                            format!("calls {}, which is not the address of a function", what(address));
                        return self.bad_call(warp, here.pc, lanes, message);
                    };
                    if self.enter_function(warp, here, lanes, at, *f) == Flow::Stop {
                        return Flow::Stop;
                    }
                }
                Flow::Repick
            }
        }
    }

    fn enter_targets(&mut self, warp: &mut Warp, here: Group, index: u32, table: u32) -> Flow {
        let targets = &self.code.tables[table as usize];
        let numbers = warp.regs.r32[index as usize].0;
        let mut first = true;
        for (number, same) in alike(here.mask, numbers) {
            let Some(target) = targets.get(number as usize) else {
                let message = format!("takes branch {number} of {}", targets.len());
                return self.bad_call(warp, here.pc, same, message);
            };
            if first && self.checks.counters {
                self.counters.branch(same != here.mask);
            }
            first = false;
            warp.push(*target, same, here.turn);
        }
        Flow::Repick
    }

    fn bad_call(&mut self, warp: &Warp, pc: u32, exec: u32, message: String) -> Flow {
        let site = self.site(warp, exec.trailing_zeros() & 31);
        let message = format!("{message}{}", self.call_chain(warp, exec));
        self.fault.get_or_insert(Fault::Call {
            line: self.code.position(pc).line,
            block: self.block.coordinates,
            thread: coordinates(site.thread, self.shared.config.block),
            message,
        });
        Flow::Stop
    }

    /// ` (in f, called in line 3; in g, called in line 9)`
    fn call_chain(&self, warp: &Warp, lanes: u32) -> String {
        const SHOWN: usize = 8;
        let links: Vec<String> = warp
            .paths
            .chain(lanes)
            .take(SHOWN)
            .map(|n| {
                let line = self.code.position(n.resume.saturating_sub(1)).line;
                format!("in {}, called in line {line}", self.code.functions[n.function as usize].name)
            })
            .collect();
        if links.is_empty() {
            return String::new();
        }
        let more = warp.paths.depth(lanes) as usize - links.len();
        let more = if more > 0 { format!("; {more} more calls") } else { String::new() };
        format!(" ({}{more})", links.join("; "))
    }

    /// Lanes enter a function.
    fn enter_function(&mut self, warp: &mut Warp, here: Group, lanes: u32, at: u32, function: u32) -> Flow {
        let code = self.code;
        let (call, callee) = (&code.calls[at as usize], &code.functions[function as usize]);
        let Some(start) = callee.start else {
            let message = format!("calls `{}`, which the module only declares", callee.name);
            return self.bad_call(warp, here.pc, lanes, message);
        };
        if callee.params.len() != call.args.len() || callee.returns.len() != call.returns.len() {
            let message = format!(
                "calls `{}`, which takes {} arguments and returns {} results, with {} and {}",
                callee.name,
                callee.params.len(),
                callee.returns.len(),
                call.args.len(),
                call.returns.len()
            );
            return self.bad_call(warp, here.pc, lanes, message);
        }
        let top = lanes_of(lanes).map(|l| warp.paths.tops[l]).max().unwrap_or(0).next_multiple_of(16);
        let depth = warp.paths.depth(lanes);
        if depth >= MAX_DEPTH || top + callee.frame > MAX_LOCAL {
            let message = if depth >= MAX_DEPTH {
                format!("calls `{}` inside of {depth} other calls, the limit", callee.name)
            } else {
                format!(
                    "calls `{}`, whose frame passes the {MAX_LOCAL} bytes of local memory of a thread",
                    callee.name
                )
            };
            return self.bad_call(warp, here.pc, lanes, message);
        }
        let caller_base = warp.paths.base(lanes);
        let node = warp.paths.enter(lanes, (function, at, here.pc + 1), top);
        let base = warp.paths.nodes[node as usize].base;
        warp.local.extend(base + callee.frame);
        warp.local.forget(base, callee.frame, lanes);
        if call.saves {
            save(warp, node, &code.functions[call.caller as usize], code, lanes);
        }
        for (from, to) in call.args.iter().zip(&callee.params) {
            transfer(warp, lanes, (*from, caller_base), (*to, base));
        }
        for lane in lanes_of(lanes) {
            warp.paths.nodes[node as usize].tops[lane] = warp.paths.tops[lane];
            warp.paths.tops[lane] = base + callee.frame;
            warp.paths.current[lane] = Some(node);
            warp.regs.r64[callee.frame_row as usize].0[lane] = base;
        }
        for tracked in callee.tracked.clone() {
            warp.definedness.forget(tracked, lanes);
        }
        warp.push(start, lanes, here.turn);
        Flow::Repick
    }

    /// Lanes leave a function.
    #[inline(never)]
    pub(super) fn leave_function(&mut self, warp: &mut Warp, lanes: u32, turn: u32) {
        let code = self.code;
        let Some(at) = warp.paths.of(lanes) else { return };
        let (call, function, resume, base, parent) = {
            let n = &warp.paths.nodes[at as usize];
            (&code.calls[n.call as usize], &code.functions[n.function as usize], n.resume, n.base, n.parent)
        };
        let caller_base = parent.map_or(0, |n| warp.paths.nodes[n as usize].base);
        if call.saves {
            // The results may lie in rows that are about to change.
            let results: Vec<_> = function.returns.iter().map(|r| fetch(warp, *r, base)).collect();
            restore(warp, at, &code.functions[call.caller as usize], lanes);
            for ((to, from), values) in call.returns.iter().zip(&function.returns).zip(&results) {
                match values {
                    Some(values) => put(warp, lanes, *to, caller_base, values),
                    None => transfer(warp, lanes, (*from, base), (*to, caller_base)),
                }
            }
        } else {
            for (to, from) in call.returns.iter().zip(&function.returns) {
                transfer(warp, lanes, (*from, base), (*to, caller_base));
            }
        }
        let paths = &mut warp.paths;
        for lane in lanes_of(lanes) {
            paths.current[lane] = parent;
            paths.tops[lane] = paths.nodes[at as usize].tops[lane];
        }
        let node = &mut paths.nodes[at as usize];
        node.lanes &= !lanes;
        paths.live -= u32::from(node.lanes == 0);
        warp.push(resume, lanes, turn);
    }

    fn builtin(&mut self, warp: &mut Warp, pc: u32, exec: u32, builtin: Builtin, call: &Call) -> Flow {
        self.note_change();
        let base = warp.paths.base(exec);
        let argument =
            |warp: &Warp, i: usize, lane: usize| call.args.get(i).map_or(0, |p| read(warp, lane, *p, base));
        for lane in lanes_of(exec) {
            let arguments: [u64; 5] = std::array::from_fn(|i| argument(warp, i, lane));
            let result = match builtin {
                Builtin::Vprintf => self.vprintf(warp, pc, lane, arguments[0], arguments[1]),
                Builtin::Malloc => self.device_malloc(warp, pc, lane, arguments[0]),
                Builtin::Free => {
                    self.device_free(warp, pc, lane, arguments[0]);
                    0
                }
                Builtin::AssertFail => {
                    self.assertion(warp, pc, lane, arguments);
                    return Flow::Stop;
                }
            };
            if let Some(to) = call.returns.first() {
                let mut values = [0; LANES];
                values[lane] = result;
                put(warp, 1 << lane, *to, base, &values);
            }
        }
        Flow::Next
    }
}

/// An address in words.
fn what(address: u64) -> String {
    if address == 0 {
        "a null pointer".to_owned()
    } else if address & !SLOT == FUNCTION_WINDOW {
        format!("0x{address:x}, a function that this kernel was not seen to reach")
    } else {
        format!("0x{address:x}")
    }
}

/// The values of a place in a register, to be written after rows have changed; `None` if it is in memory.
fn fetch(warp: &Warp, place: Place, base: u64) -> Option<[u64; LANES]> {
    match place {
        Place::Register { .. } => Some(std::array::from_fn(|lane| read(warp, lane, place, base))),
        Place::Memory { .. } => None,
    }
}

/// Up to 8 bytes of a place.
fn read(warp: &Warp, lane: usize, place: Place, base: u64) -> u64 {
    match place {
        Place::Memory { offset, bytes } => {
            let bytes = (bytes.min(8) as u32).max(1).next_power_of_two();
            warp.local.load(lane, base + offset, bytes)
        }
        Place::Register { slot: Some(slot), .. } => value(&warp.regs, slot, lane),
        Place::Register { slot: None, .. } => 0,
    }
}

/// The value of a lane in a slot; 1 for a true predicate.
fn value(regs: &Registers, slot: Slot, lane: usize) -> u64 {
    match slot {
        Slot::P(p) => u64::from(regs.pred[p as usize] >> lane & 1),
        slot => lane_value(regs, slot, lane),
    }
}

fn put(warp: &mut Warp, lanes: u32, to: Place, base: u64, values: &[u64; LANES]) {
    match to {
        Place::Memory { offset, bytes } => {
            let bytes = (bytes.min(8) as u32).max(1).next_power_of_two();
            for lane in lanes_of(lanes) {
                warp.local.store(lane, base + offset, bytes, values[lane]);
                warp.local.set_undefined(lane, base + offset, bytes, 0);
            }
        }
        Place::Register { slot: Some(Slot::P(p)), .. } => {
            let bits = lanes_of(lanes).fold(0, |m, l| m | ((values[l] & 1) as u32) << l);
            put_pred(&mut warp.regs.pred[p as usize], bits, lanes);
        }
        Place::Register { slot: Some(slot), bits } => {
            for lane in lanes_of(lanes) {
                set_lane(&mut warp.regs, slot, lane, values[lane] & (u64::MAX >> (64 - bits.clamp(1, 64))));
            }
        }
        Place::Register { slot: None, .. } => {}
    }
}

/// Copies an argument or a result.
fn transfer(warp: &mut Warp, lanes: u32, (from, from_base): (Place, u64), (to, to_base): (Place, u64)) {
    match (from, to) {
        (Place::Memory { offset: a, bytes: n }, Place::Memory { offset: b, bytes: m }) => {
            for lane in lanes_of(lanes) {
                warp.local.copy(lane, from_base + a, to_base + b, n.min(m));
            }
        }
        (Place::Register { slot: Some(Slot::Q(a)), .. }, Place::Register { slot: Some(Slot::Q(b)), .. }) => {
            for half in 0..2 {
                let row = warp.regs.r64[(a + half) as usize].0;
                put64(&mut warp.regs.r64[(b + half) as usize], row, lanes);
            }
        }
        _ => {
            let values = std::array::from_fn(|lane| read(warp, lane, from, from_base));
            put(warp, lanes, to, to_base, &values);
        }
    }
}

/// Keeps the rows of the caller in a node.
fn save(warp: &mut Warp, node: u32, caller: &FunctionCode, code: &Code, lanes: u32) {
    debug_assert!(caller.tracked.len() <= code.tracked.len(), "definedness of the caller");
    let node = &mut warp.paths.nodes[node as usize];
    node.rows32.resize(caller.rows32.len(), Row32::ZERO);
    node.rows64.resize(caller.rows64.len() + 1, Row64::ZERO);
    node.preds.resize(caller.preds.len(), 0);
    node.definedness.resize(caller.tracked.len());
    for (to, from) in node.rows32.iter_mut().zip(caller.rows32.clone()) {
        put32(to, warp.regs.r32[from as usize].0, lanes);
    }
    let wide = caller.rows64.clone().chain([caller.frame_row]);
    for (to, from) in node.rows64.iter_mut().zip(wide) {
        put64(to, warp.regs.r64[from as usize].0, lanes);
    }
    for (to, from) in node.preds.iter_mut().zip(caller.preds.clone()) {
        put_pred(to, warp.regs.pred[from as usize], lanes);
    }
    node.definedness.copy(0..caller.tracked.len(), &warp.definedness, caller.tracked.clone(), lanes);
}

/// Gives the caller its rows back.
fn restore(warp: &mut Warp, node: u32, caller: &FunctionCode, lanes: u32) {
    let node = &warp.paths.nodes[node as usize];
    for (from, to) in node.rows32.iter().zip(caller.rows32.clone()) {
        put32(&mut warp.regs.r32[to as usize], from.0, lanes);
    }
    let wide = caller.rows64.clone().chain([caller.frame_row]);
    for (from, to) in node.rows64.iter().zip(wide) {
        put64(&mut warp.regs.r64[to as usize], from.0, lanes);
    }
    for (from, to) in node.preds.iter().zip(caller.preds.clone()) {
        put_pred(&mut warp.regs.pred[to as usize], *from, lanes);
    }
    warp.definedness.copy(caller.tracked.clone(), &node.definedness, 0..caller.tracked.len(), lanes);
}

impl Local {
    /// Makes room up to address `end`.
    pub(crate) fn extend(&mut self, end: u64) {
        let words = end.div_ceil(4) as usize * LANES;
        if self.words.len() < words {
            self.words.resize(words, u32::from_ne_bytes([POISON; 4]));
            self.undefined.resize(words, u32::MAX);
        }
    }

    /// Makes a new frame what nobody wrote to.
    fn forget(&mut self, base: u64, bytes: u64, lanes: u32) {
        for word in base / 4..(base + bytes).div_ceil(4) {
            for lane in lanes_of(lanes) {
                let at = word as usize * LANES + lane;
                if let (Some(word), Some(undefined)) = (self.words.get_mut(at), self.undefined.get_mut(at)) {
                    (*word, *undefined) = (u32::from_ne_bytes([POISON; 4]), u32::MAX);
                }
            }
        }
    }

    /// Copies bytes and which of their bits are defined.
    fn copy(&mut self, lane: usize, from: u64, to: u64, bytes: u64) {
        for i in 0..bytes {
            let value = self.load(lane, from + i, 1);
            let undefined = self.undefined(lane, from + i, 1);
            self.store(lane, to + i, 1, value);
            self.set_undefined(lane, to + i, 1, undefined);
        }
    }
}
