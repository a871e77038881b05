//! Functions that the runtime of a device provides to kernels: `vprintf`, `__assertfail`, `malloc` and `free`.

use super::format::{self, Spec};
use super::private::read_image;
use crate::context::Context;
use crate::heap::HeapBlock;
use crate::launch::{Fault, Printed};
use crate::memory::MemoryError;
use crate::report::{Space, Tool, coordinates};
use crate::space::classify;
use crate::warp::Warp;

/// Bytes that a string of a kernel may have.
const MAX_STRING: u64 = 64 * 1024;
/// Bytes that a block may print.
const MAX_PRINTED: usize = 64 << 20;

impl Context<'_> {
    /// Up to 8 bytes at a generic address; `None` outside of everything.
    fn read_generic(&self, warp: &Warp, lane: usize, address: u64, bytes: u32) -> Option<u64> {
        let (space, at) = classify(address);
        match space {
            Space::Global => {
                let mut value = [0; 8];
                self.shared.memory.read(at, value.get_mut(..bytes as usize)?).ok()?;
                Some(u64::from_le_bytes(value))
            }
            Space::Shared => {
                let shared = &self.block.shared;
                shared.covers(at, u64::from(bytes)).then(|| shared.load(at, bytes))
            }
            Space::Local => {
                (at + u64::from(bytes) <= warp.paths.tops[lane]).then(|| warp.local.load(lane, at, bytes))
            }
            Space::Const => Some(read_image(&self.shared.constants, at, bytes)),
            Space::Param => Some(read_image(self.shared.params, at, bytes)),
            Space::Generic | Space::Tensor => None,
        }
    }

    /// A string that ends with a zero byte, as long as it can be read.
    fn read_string(&self, warp: &Warp, lane: usize, address: u64) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for i in 0..MAX_STRING {
            match self.read_generic(warp, lane, address.wrapping_add(i), 1)? as u8 {
                0 => return Some(bytes),
                byte => bytes.push(byte),
            }
        }
        None
    }

    /// Reports a runtime function that was handed a bad address.
    fn bad_pointer(&mut self, warp: &Warp, pc: u32, lane: usize, message: &str, address: u64) {
        let place = classify(address);
        self.finding(warp, pc, 1 << lane, Tool::Memcheck, "bad-pointer", Some(place), || {
            (message.to_owned(), "pass the generic address of memory that is alive".to_owned())
        });
    }

    /// Prints; returns the number of arguments, or -1 if the format cannot be read.
    pub(super) fn vprintf(&mut self, warp: &Warp, pc: u32, lane: usize, format: u64, arguments: u64) -> u64 {
        let Some(text) = self.read_string(warp, lane, format) else {
            self.bad_pointer(warp, pc, lane, "the format of vprintf cannot be read", format);
            return u64::MAX;
        };
        let mut out = Vec::new();
        let (mut at, mut count, mut unreadable) = (arguments, 0, None);
        // Arguments follow each other, each at a multiple of its size.
        let mut next = |cx: &Self, bytes: u32| {
            at = at.next_multiple_of(u64::from(bytes));
            let value = cx.read_generic(warp, lane, at, bytes);
            if value.is_none() {
                unreadable.get_or_insert(at);
            }
            at += u64::from(bytes);
            count += 1;
            value.unwrap_or(0)
        };
        for piece in format::pieces(&text) {
            match piece {
                format::Piece::Text(bytes) => out.extend_from_slice(bytes),
                format::Piece::Value(mut spec) => {
                    if spec.width_argument {
                        spec.set_width(next(self, 4) as u32 as i32);
                    }
                    if spec.precision_argument {
                        spec.set_precision(next(self, 4) as u32 as i32);
                    }
                    let value = next(self, spec.bytes());
                    let string = if spec.is_string() { self.read_string(warp, lane, value) } else { None };
                    Spec::write(&spec, value, string.as_deref(), &mut out);
                }
            }
        }
        if let Some(address) = unreadable {
            self.bad_pointer(warp, pc, lane, "an argument of vprintf cannot be read", address);
        }
        self.print(warp, lane, &out);
        count
    }

    fn print(&mut self, warp: &Warp, lane: usize, text: &[u8]) {
        let site = self.site(warp, lane as u32);
        self.printed_bytes += text.len();
        if self.printed_bytes <= MAX_PRINTED {
            self.printed.push((
                self.block.linear,
                Printed {
                    block: self.block.coordinates,
                    thread: coordinates(site.thread, self.shared.config.block),
                    text: String::from_utf8_lossy(text).into_owned(),
                },
            ));
        }
    }

    pub(super) fn assertion(&mut self, warp: &Warp, pc: u32, lane: usize, arguments: [u64; 5]) {
        let [message, file, line, function, _] = arguments;
        let text = |cx: &Self, address| {
            cx.read_string(warp, lane, address)
                .map_or_else(|| "?".to_owned(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        let site = self.site(warp, lane as u32);
        let fault = Fault::Assertion {
            line: self.code.position(pc).line,
            block: self.block.coordinates,
            thread: coordinates(site.thread, self.shared.config.block),
            message: text(self, message).into(),
            file: text(self, file).into(),
            source_line: line as u32,
            function: text(self, function).into(),
        };
        self.fault.get_or_insert(fault);
    }

    /// Memory that stays until it is freed, also beyond the launch; 0 if there is none.
    pub(super) fn device_malloc(&mut self, warp: &Warp, pc: u32, lane: usize, bytes: u64) -> u64 {
        let line = self.code.position(pc).line;
        let Ok(address) = self.shared.memory.alloc(bytes, &format!("malloc in line {line}")) else {
            return 0;
        };
        let thread = self.site(warp, lane as u32).thread;
        let block = HeapBlock { block: self.block.linear, thread, line, bytes };
        self.shared.memory.heap.allocated(address, self.shared.heap_launch, block);
        address
    }

    pub(super) fn device_free(&mut self, warp: &Warp, pc: u32, lane: usize, address: u64) {
        if address == 0 {
            return;
        }
        let memory = self.shared.memory;
        let problem = match memory.free(address) {
            // Memory of the host is not the kernel's to free, but it is gone now.
            Ok(()) if memory.heap.freed(address) => None,
            Ok(()) | Err(MemoryError::NotTheStart { .. }) => {
                Some("free of an address that malloc did not return")
            }
            Err(MemoryError::Freed { .. } | MemoryError::FreedEarlier { .. }) => {
                Some("free of memory that was freed before")
            }
            Err(_) => Some("free of an address that is not inside any allocation"),
        };
        self.allocations.forget(address);
        if let Some(message) = problem {
            self.finding(
                warp,
                pc,
                1 << lane,
                Tool::Memcheck,
                "invalid-free",
                Some((Space::Global, address)),
                || {
                    (
                        message.to_owned(),
                        "free every address that malloc returned once, and nothing else".to_owned(),
                    )
                },
            );
        }
    }
}
