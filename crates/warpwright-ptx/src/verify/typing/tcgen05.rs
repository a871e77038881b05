//! The fifth generation of tensor cores.

use super::tensor::{count, only_register};
use super::{A, B, Width, predicate, register, result, source};
use crate::inst::*;
use crate::types::ScalarType::*;
use crate::verify::{Breach, Checker, Rule};

const ADDRESS: &str = "the address in tensor memory";
const COLUMNS: &str = "the number of columns";

/// An address in tensor memory is in a register.
fn memory(cx: &mut Checker<'_>, address: Address) {
    match address.base {
        AddressBase::Reg(r) => register(cx, r, U32, Width::Exact, ADDRESS),
        AddressBase::Symbol(_) | AddressBase::Absolute => {
            cx.report(Rule::Type3, Breach::NotRegister { operand: ADDRESS });
        }
    }
}

/// Columns are allocated as a power of two of at least 32.
fn columns(cx: &mut Checker<'_>, o: Operand) {
    source(cx, o, U32, COLUMNS);
    if let Operand::Imm(Imm::Int(columns)) = o
        && !matches!(columns, 32 | 64 | 128 | 256 | 512)
    {
        cx.report(Rule::Type10, Breach::TensorColumns { columns });
    }
}

pub(super) fn tcgen05(cx: &mut Checker<'_>, inst: &Tcgen05) {
    match inst {
        Tcgen05::Alloc { columns: n, .. } => columns(cx, *n),
        Tcgen05::Dealloc { memory, columns: n, .. } => {
            only_register(cx, *memory, U32, ADDRESS);
            columns(cx, *n);
        }
        Tcgen05::Load { access, dsts, memory: from } => {
            count(cx, "the result", dsts.len(), access.registers());
            dsts.iter().for_each(|r| result(cx, *r, B32));
            memory(cx, *from);
        }
        Tcgen05::Store { access, memory: to, srcs } => {
            count(cx, "the stored vector", srcs.len(), access.registers());
            srcs.iter().for_each(|o| only_register(cx, *o, B32, "the stored operand"));
            memory(cx, *to);
        }
        Tcgen05::Commit { multicast, .. } => {
            if let Some(mask) = multicast {
                source(cx, *mask, B16, "the mask of blocks");
            }
        }
        Tcgen05::Copy { memory: to, descriptor, .. } => {
            memory(cx, *to);
            source(cx, *descriptor, B64, "the matrix descriptor");
        }
        Tcgen05::Shift { memory: at, .. } => memory(cx, *at),
        Tcgen05::Mma(m) => {
            memory(cx, m.d);
            match m.a {
                Tcgen05Source::Descriptor(a) => source(cx, a, B64, A),
                Tcgen05Source::Memory(a) => memory(cx, a),
            }
            source(cx, m.b, B64, B);
            source(cx, m.descriptor, U32, "the instruction descriptor");
            if let Some(scales) = m.scales {
                memory(cx, scales.a);
                memory(cx, scales.b);
            }
            m.disabled.iter().for_each(|o| only_register(cx, *o, U32, "the mask of lanes"));
            predicate(cx, m.accumulate, "enable-input-d");
        }
        Tcgen05::Relinquish { .. } | Tcgen05::Wait { .. } | Tcgen05::Fence { .. } => {}
    }
}
