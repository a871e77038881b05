//! The fifth generation of tensor cores as text.

use super::Body;
use crate::inst::*;
use crate::types::*;

const fn group(pair: bool) -> &'static str {
    if pair { ".cta_group::2" } else { ".cta_group::1" }
}

impl Body<'_> {
    pub(super) fn tcgen05(&mut self, inst: &Tcgen05) {
        self.text("tcgen05");
        match inst {
            Tcgen05::Alloc { pair, space, addr, columns } => {
                self.out.push(format_args!(".alloc{}.sync.aligned", group(*pair)));
                self.own_shared(*space);
                self.text(".b32 ");
                self.address(*addr);
                self.comma(*columns);
            }
            Tcgen05::Dealloc { pair, memory, columns } => {
                self.out.push(format_args!(".dealloc{}.sync.aligned.b32 ", group(*pair)));
                self.operand(*memory);
                self.comma(*columns);
            }
            Tcgen05::Relinquish { pair } => {
                self.out.push(format_args!(".relinquish_alloc_permit{}.sync.aligned", group(*pair)));
            }
            Tcgen05::Load { access, dsts, memory } => {
                self.tcgen05_access("ld", *access, "pack");
                self.braced(dsts, Self::reg);
                self.text(", ");
                self.address(*memory);
                self.tcgen05_split(*access);
            }
            Tcgen05::Store { access, memory, srcs } => {
                self.tcgen05_access("st", *access, "unpack");
                self.address(*memory);
                self.tcgen05_split(*access);
                self.text(", ");
                self.braced(srcs, Self::operand);
            }
            Tcgen05::Wait { stores } => {
                self.out.push(format_args!(".wait::{}.sync.aligned", if *stores { "st" } else { "ld" }));
            }
            Tcgen05::Fence { after } => {
                self.out
                    .push(format_args!(".fence::{}_thread_sync", if *after { "after" } else { "before" }));
            }
            Tcgen05::Commit { pair, space, addr, multicast } => {
                self.out.push(format_args!(".commit{}.mbarrier::arrive::one", group(*pair)));
                self.own_shared(*space);
                self.text(if multicast.is_some() { ".multicast::cluster.b64 " } else { ".b64 " });
                self.address(*addr);
                if let Some(mask) = multicast {
                    self.comma(*mask);
                }
            }
            Tcgen05::Copy { pair, shape, multicast, packed, memory, descriptor } => {
                self.out.push(format_args!(".cp{}.{shape}", group(*pair)));
                if let Some(multicast) = multicast {
                    self.dot(multicast.name());
                }
                if let Some(packed) = packed {
                    self.out.push(format_args!(".b8x16.{packed}"));
                }
                self.text(" ");
                self.address(*memory);
                self.comma(*descriptor);
            }
            Tcgen05::Shift { pair, memory } => {
                self.out.push(format_args!(".shift{}.down ", group(*pair)));
                self.address(*memory);
            }
            Tcgen05::Mma(m) => self.tcgen05_mma(m),
        }
    }

    /// A state space that is one of shared memory; that of the block is written out.
    fn own_shared(&mut self, space: StateSpace) {
        if space == StateSpace::Shared {
            self.text(".shared::cta");
        } else {
            self.space(space);
        }
    }

    fn tcgen05_access(&mut self, name: &str, access: Tcgen05Access, packing: &str) {
        let Tcgen05Access { shape, count, packed, .. } = access;
        self.out.push(format_args!(".{name}.sync.aligned.{shape}.x{count}"));
        if packed {
            self.out.push(format_args!(".{packing}::16b"));
        }
        self.text(".b32 ");
    }

    fn tcgen05_split(&mut self, access: Tcgen05Access) {
        if access.shape == Tcgen05Shape::L16B32X2 {
            self.out.push(format_args!(", {}", access.split));
        }
    }

    fn tcgen05_mma(&mut self, m: &Tcgen05Mma) {
        self.out.push(format_args!(".mma{}.kind::{}", group(m.pair), m.kind));
        if let Some(scales) = m.scales {
            self.text(".block_scale");
            match scales.size {
                Some(Tcgen05ScaleSize::Vector(vector)) => self.out.push(format_args!(".scale_vec::{vector}")),
                Some(Tcgen05ScaleSize::Block(block)) => self.dot(block.name()),
                None => {}
            }
        }
        if m.shift {
            self.text(".ashift");
        }
        if let Some(collector) = m.collector {
            self.out.push(format_args!(".collector::a::{collector}"));
        }
        self.text(" ");
        self.address(m.d);
        self.text(", ");
        match m.a {
            Tcgen05Source::Descriptor(a) => self.operand(a),
            Tcgen05Source::Memory(a) => self.address(a),
        }
        self.comma(m.b);
        self.comma(m.descriptor);
        if let Some(scales) = m.scales {
            for scale in [scales.a, scales.b] {
                self.text(", ");
                self.address(scale);
            }
        }
        self.text(", ");
        if !m.disabled.is_empty() {
            self.braced(&m.disabled, Self::operand);
            self.text(", ");
        }
        self.reg(m.accumulate);
        if let Some(scale) = m.scale_d {
            self.out.push(format_args!(", {scale}"));
        }
    }
}
