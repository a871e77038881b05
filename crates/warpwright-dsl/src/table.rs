//! Constant tables, and small ones that a warp holds in its registers.

use warpwright_ptx::{Inst, Linkage, Operand, ScalarType, ShflMode, StateSpace, Variable};

use crate::context::K;
use crate::error::IssueKind;
use crate::mem::{FixedElement, Ptr, Read};
use crate::reg::{Reg, Scalar, U32};

/// Entries of a [`WarpTable`]: one a lane.
pub const WARP_TABLE_LEN: usize = 32;

impl<'k> K<'k> {
    /// Read-only words in device memory that are loaded with the kernel, such as a table that is too large for
    /// immediates. `E` must have 4 bytes.
    #[track_caller]
    pub fn constant_table<E: FixedElement>(self, words: &[u32]) -> Ptr<'k, Read, E> {
        if E::FIXED.bytes() != size_of::<u32>() {
            self.issue(IssueKind::Constant { what: "a table element size", value: E::FIXED.bytes() as u64 });
        }
        let symbol = self.rec().new_module_variable(|index| Variable {
            name: format!("table{index}"),
            space: StateSpace::Global,
            ty: ScalarType::B32,
            align: 16,
            len: Some(words.len() as u64),
            array: true,
            linkage: Linkage::Internal,
            init: Some(words.iter().flat_map(|w| w.to_le_bytes()).collect()),
            managed: false,
            unified: None,
        });
        let base = self.fresh::<u64>();
        self.emit(Inst::Mov { ty: ScalarType::U64, dst: base.id(), src: Operand::Symbol(symbol, 0) });
        Ptr::new(self, base.id(), E::FIXED).non_coherent()
    }

    /// A table of 32 f32 values, held one a lane. Every lane of the warp must be active, here and at each look-up.
    #[track_caller]
    pub fn warp_table_f32(self, entries: &[f32; WARP_TABLE_LEN]) -> WarpTable<'k, f32> {
        let words = entries.map(f32::to_bits);
        WarpTable { mine: self.constant_table::<f32>(&words).at(self.lane_idx()).get() }
    }

    /// A table of 32 words, held one a lane. Every lane of the warp must be active, here and at each look-up.
    #[track_caller]
    pub fn warp_table_u32(self, entries: &[u32; WARP_TABLE_LEN]) -> WarpTable<'k, u32> {
        WarpTable { mine: self.constant_table::<u32>(entries).at(self.lane_idx()).get() }
    }
}

/// A table in the registers of a warp. A look-up is one shuffle: no memory, no bank conflicts.
#[derive(Clone, Copy, Debug)]
pub struct WarpTable<'k, T: Scalar> {
    mine: Reg<'k, T>,
}

impl<'k, T: Scalar> WarpTable<'k, T> {
    /// Entry `index` modulo 32: the hardware ignores the upper bits, so none need be masked off.
    #[track_caller]
    pub fn get(self, index: U32<'k>) -> Reg<'k, T> {
        let k = self.mine.k();
        let dst = k.fresh::<T>();
        k.emit(Inst::Shfl {
            mode: ShflMode::Idx,
            dst: dst.id(),
            pred: None,
            a: Operand::Reg(self.mine.id()),
            b: Operand::Reg(index.id()),
            c: Operand::int(0x1f),
            mask: Operand::int(0xffff_ffff),
        });
        dst
    }
}
