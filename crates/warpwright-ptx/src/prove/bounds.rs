//! Whether accesses lie in their arrays and are aligned.

use super::decide::implies;
use super::terms::{Array, Formula};
use super::walk::{Access, Walk};
use super::{Decision, Gap, Reason, show};
use crate::types::StateSpace;

/// The default alignment of a contract's arrays in bytes.
const ALIGNMENT: u32 = 16;

/// Decides the bounds of a kernel.
pub(super) fn decide(walk: &mut Walk<'_>) -> Decision {
    let mut gaps = walk.gaps.clone();
    for at in 0..walk.accesses.len() {
        let access = walk.accesses[at].clone();
        if let Err(reason) = inside(walk, &access) {
            let reason = if walk.terms.is_spent() { Reason::TooLarge } else { reason };
            let mut gap = Gap::at(walk.function, access.block, access.index, reason);
            if let Some((block, index)) = walk.origin(&access.offset) {
                gap.other = Some(walk.function.blocks[block.0 as usize].location(index));
            }
            gaps.push(gap);
        }
    }
    Decision::of(walk.accesses.len(), gaps)
}

/// The alignment of an array in bytes.
fn alignment(walk: &Walk<'_>, array: Array) -> i128 {
    let variables = || walk.module.variables.iter().chain(&walk.function.variables);
    i128::from(match array {
        Array::Param(_) => ALIGNMENT,
        Array::Module(at) => walk.module.variables[at as usize].align,
        Array::Function(at) => walk.function.variables[at as usize].align,
        Array::Dynamic => {
            let dynamic = variables().filter(|v| v.space == StateSpace::Shared && v.len.is_none());
            dynamic.map(|v| v.align).min().unwrap_or(1)
        }
    })
}

fn inside(walk: &mut Walk<'_>, access: &Access) -> Result<(), Reason> {
    let array = show::array(walk, access.array);
    let Some(extent) = walk.extents.get(&access.array).cloned() else {
        return Err(Reason::NoExtent { array });
    };
    let offset = show::poly(walk, &access.offset);
    let room = extent.minus(&access.offset).and_then(|p| p.minus(&access.bytes));
    let Some(room) = room else { return Err(Reason::TooLarge) };
    if !implies(&mut walk.terms, &access.conditions, &Formula::AtLeast(access.offset.clone())) {
        return Err(Reason::BeforeStart { array, offset });
    }
    if !implies(&mut walk.terms, &access.conditions, &Formula::AtLeast(room)) {
        let extent = show::poly(walk, &extent);
        let bytes = show::poly(walk, &access.bytes);
        return Err(Reason::PastEnd { array, offset, bytes, extent });
    }
    let is_aligned =
        access.align <= alignment(walk, access.array) && access.offset.is_multiple_of(access.align);
    if is_aligned { Ok(()) } else { Err(Reason::Misaligned { array, offset, bytes: access.align as u64 }) }
}
