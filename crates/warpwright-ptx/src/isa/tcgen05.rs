//! Forms of the fifth generation of tensor cores.

use super::set::{Misfit, Requirement};
use crate::inst::*;

/// Targets with tensor memory.
pub(super) const TARGETS: &[u32] = &[100, 101, 103, 110];

/// Requirement of all of them.
pub(super) const NEEDS: Requirement = Requirement::only(8, 6, TARGETS);

/// Numbers of pieces of `tcgen05.ld` and `tcgen05.st`; the registers of a lane are at most 128.
fn access(access: Tcgen05Access) -> bool {
    access.count.is_power_of_two() && access.registers() <= 128
}

/// Which multicast the shapes of `tcgen05.cp` need.
fn copy(shape: Tcgen05CopyShape, multicast: Option<Tcgen05Multicast>) -> bool {
    use Tcgen05CopyShape as Shape;
    use Tcgen05Multicast as Multicast;
    match shape {
        Shape::R128B256 | Shape::R4B256 | Shape::R128B128 => multicast.is_none(),
        Shape::R64B128 => matches!(multicast, Some(Multicast::Pairs02And13 | Multicast::Pairs01And23)),
        Shape::R32B128 => multicast == Some(Multicast::All),
    }
}

/// How many scales a kind may have.
fn scales(kind: Tcgen05Kind, size: Option<Tcgen05ScaleSize>) -> bool {
    use Tcgen05Kind as Kind;
    use Tcgen05ScaleSize::{Block, Vector};
    match (kind, size) {
        (Kind::MxF8F6F4, None | Some(Vector(ScaleVector::X1) | Block(Tcgen05Block::B32)))
        | (Kind::MxF4, None | Some(Vector(ScaleVector::X2) | Block(Tcgen05Block::B32))) => true,
        (Kind::MxF4NvF4, Some(Vector(vector))) => vector != ScaleVector::X1,
        (Kind::MxF4NvF4, Some(Block(_))) => true,
        _ => false,
    }
}

fn mma(m: &Tcgen05Mma) -> Result<Requirement, Misfit> {
    let in_memory = matches!(m.a, Tcgen05Source::Memory(_));
    let masks = if m.pair { 8 } else { 4 };
    let scale_d = matches!(m.kind, Tcgen05Kind::F16 | Tcgen05Kind::TF32);
    let legal = m.scales.is_some() == m.kind.is_scaled()
        && m.scales.is_none_or(|s| scales(m.kind, s.size) && m.disabled.is_empty() && !m.shift)
        && (m.disabled.is_empty() || m.disabled.len() == masks)
        && (m.scale_d.is_none() || scale_d)
        && (!m.shift
            || in_memory && !matches!(m.collector, Some(Tcgen05Collector::Use | Tcgen05Collector::Fill)));
    if !legal {
        return Err(Misfit::Types);
    }
    // A size that is not written is one in elements.
    let blocks = m.scales.is_some_and(|s| !matches!(s.size, Some(Tcgen05ScaleSize::Vector(_))));
    Ok(match m.kind {
        Tcgen05Kind::I8 => Requirement::only(8, 6, &[100, 101, 110]),
        _ if blocks => Requirement::only(8, 8, TARGETS),
        Tcgen05Kind::MxF4NvF4 => Requirement::only(8, 7, TARGETS),
        _ => NEEDS,
    })
}

/// Requirement of an instruction of the family.
///
/// # Errors
/// If there is no such form.
pub(super) fn tcgen05(inst: &Tcgen05) -> Result<Requirement, Misfit> {
    let legal = match inst {
        Tcgen05::Load { access: a, .. } | Tcgen05::Store { access: a, .. } => access(*a),
        Tcgen05::Copy { shape, multicast, .. } => copy(*shape, *multicast),
        Tcgen05::Mma(m) => return mma(m),
        _ => true,
    };
    if legal { Ok(NEEDS) } else { Err(Misfit::Types) }
}
