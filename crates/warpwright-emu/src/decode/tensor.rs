//! The fifth generation of tensor cores.

use warpwright_ptx::{
    Address as Written, AddressBase, Inst, Operand, Reg, ScalarType, ScaleVector, StateSpace, Tcgen05,
    Tcgen05Block, Tcgen05Kind, Tcgen05Mma, Tcgen05ScaleSize, Tcgen05Source,
};

use super::{Decoder, Result, index};
use crate::code::asynchronous::{Asynchronous, Place};
use crate::code::matrix::MatrixOp;
use crate::code::op::Op;
use crate::code::tensor::{Address, LaneOp, Product, Scales, Source, WarpOp};

/// The registers that a load from tensor memory writes later.
pub(super) fn loaded(inst: &Inst) -> &[Reg] {
    match inst {
        Inst::Tcgen05(t) => match &**t {
            Tcgen05::Load { dsts, .. } => dsts,
            _ => &[],
        },
        _ => &[],
    }
}

/// Scales of a row of 32 bytes.
const fn per_row(kind: Tcgen05Kind, size: Option<Tcgen05ScaleSize>) -> u32 {
    match (kind, size) {
        (Tcgen05Kind::MxF8F6F4, _) => 1,
        (
            Tcgen05Kind::MxF4NvF4,
            Some(Tcgen05ScaleSize::Vector(ScaleVector::X4) | Tcgen05ScaleSize::Block(Tcgen05Block::B16)),
        ) => 4,
        _ => 2,
    }
}

impl Decoder<'_> {
    pub(super) fn tcgen05(&mut self, inst: &Tcgen05) -> Result<()> {
        if let Some(op) = self.warp_op(inst)? {
            self.matrix_op(MatrixOp::Tensor(op));
            return Ok(());
        }
        let op = self.lane_op(inst)?;
        self.code.proxies = true;
        self.code.asynchronous.push(Asynchronous::TensorCore(op));
        let at = index(self.code.asynchronous.len() - 1);
        self.emit(Op::Asynchronous(at));
        Ok(())
    }

    fn tensor_address(&mut self, address: Written) -> Result<Address> {
        let AddressBase::Reg(base) = address.base else {
            return self.error("an address in tensor memory is in a register");
        };
        Ok(Address { row: self.w(&Operand::Reg(base), ScalarType::U32)?, offset: address.offset as u32 })
    }

    fn warp_op(&mut self, inst: &Tcgen05) -> Result<Option<WarpOp>> {
        Ok(Some(match inst {
            Tcgen05::Alloc { space, addr, columns, .. } => {
                let (slot, offset) = self.address(addr)?;
                let at = Place { space: *space, slot, offset };
                WarpOp::Alloc { at, columns: self.w(columns, ScalarType::U32)? }
            }
            Tcgen05::Dealloc { memory, columns, .. } => WarpOp::Dealloc {
                memory: self.w(memory, ScalarType::U32)?,
                columns: self.w(columns, ScalarType::U32)?,
            },
            Tcgen05::Relinquish { .. } => WarpOp::Relinquish,
            Tcgen05::Load { access, dsts, memory } => WarpOp::Load {
                access: *access,
                memory: self.tensor_address(*memory)?,
                dsts: self.destinations(dsts)?,
                slots: self.wgmma.slots(dsts.iter().copied()),
            },
            Tcgen05::Store { access, memory, srcs } => WarpOp::Store {
                access: *access,
                memory: self.tensor_address(*memory)?,
                srcs: self.sources(srcs, ScalarType::B32)?,
            },
            Tcgen05::Wait { stores } => WarpOp::Wait { stores: *stores },
            _ => return Ok(None),
        }))
    }

    fn lane_op(&mut self, inst: &Tcgen05) -> Result<LaneOp> {
        Ok(match inst {
            Tcgen05::Fence { after } => LaneOp::Fence { after: *after },
            Tcgen05::Commit { space, addr, multicast, .. } => {
                let (slot, offset) = self.address(addr)?;
                // Without a space it is a generic address.
                let space = if *space == StateSpace::Generic { *space } else { StateSpace::SharedCluster };
                let multicast = multicast.as_ref().map(|m| self.source(m, ScalarType::B16)).transpose()?;
                LaneOp::Commit { at: Place { space, slot, offset }, multicast }
            }
            Tcgen05::Copy { pair, shape, multicast, packed: None, memory, descriptor } => LaneOp::Copy {
                pair: *pair,
                shape: *shape,
                multicast: *multicast,
                memory: self.tensor_address(*memory)?,
                descriptor: self.l(descriptor, ScalarType::B64)?,
            },
            Tcgen05::Copy { .. } => {
                return self.error("the emulator does not execute `tcgen05.cp` of packed elements");
            }
            Tcgen05::Mma(m) => LaneOp::Product(self.tcgen05_mma(m)?),
            _ => return self.error("the emulator does not execute `tcgen05.shift`"),
        })
    }

    fn tcgen05_mma(&mut self, m: &Tcgen05Mma) -> Result<Product> {
        if m.shift {
            return self.error("the emulator does not execute `tcgen05.mma` with `.ashift`");
        }
        Ok(Product {
            pair: m.pair,
            kind: m.kind,
            d: self.tensor_address(m.d)?,
            a: match m.a {
                Tcgen05Source::Descriptor(a) => Source::Descriptor(self.l(&a, ScalarType::B64)?),
                Tcgen05Source::Memory(a) => Source::Memory(self.tensor_address(a)?),
            },
            b: self.l(&m.b, ScalarType::B64)?,
            descriptor: self.w(&m.descriptor, ScalarType::U32)?,
            disabled: self.sources(&m.disabled, ScalarType::U32)?,
            accumulate: self.pred(m.accumulate)?,
            scale_d: m.scale_d.unwrap_or(0),
            scales: match m.scales {
                Some(scales) => Some(Scales {
                    a: self.tensor_address(scales.a)?,
                    b: self.tensor_address(scales.b)?,
                    per_row: per_row(m.kind, scales.size),
                }),
                None => None,
            },
        })
    }
}
