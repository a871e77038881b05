//! The launches of a plan as they are collected, and where in memory they work.

use warpwright_dsl::{Element, In, InOut, KernelArgs, KernelDef, Out};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use crate::gemm::GemmDesc;
use crate::plan::{self, Real};
use crate::recurrent::persistent::exchange::Exchange;
use crate::recurrent::step::dropout::{self, DropoutArgs, DropoutKernel};
use crate::recurrent::step::sums::{Round, RoundArgs};
use crate::recurrent::{RecurrentDesc, WIDE, small, sums_of};
use crate::tensors::Slot;
use crate::{Dropout, PlanError};

/// The start of a part of memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct Place {
    slot: Slot,
    offset: u64,
}

impl Place {
    /// The start of the tensor at `slot`.
    pub(in crate::recurrent) fn of(slot: impl Into<Slot>) -> Self {
        Self { slot: slot.into(), offset: 0 }
    }

    /// The place `elements` of `dtype` further on.
    pub(in crate::recurrent) const fn after(self, elements: usize, dtype: DType) -> Self {
        Self { offset: self.offset + (elements * dtype.bytes()) as u64, ..self }
    }

    pub(in crate::recurrent) fn read<E: Element>(self) -> In<E> {
        self.slot.read_at(self.offset)
    }

    pub(in crate::recurrent) fn write<E: Element>(self) -> Out<E> {
        self.slot.write_at(self.offset)
    }

    pub(in crate::recurrent) fn both<E: Element>(self) -> InOut<E> {
        self.slot.read_write_at(self.offset)
    }
}

/// Memory of a tensor, handed out in parts.
pub(in crate::recurrent) struct Arena {
    slot: Slot,
    pub(in crate::recurrent) bytes: u64,
}

impl Arena {
    pub(in crate::recurrent) fn new(slot: impl Into<Slot>) -> Self {
        Self { slot: slot.into(), bytes: 0 }
    }

    pub(in crate::recurrent) fn take(&mut self, elements: usize, dtype: DType) -> Place {
        let place = Place { slot: self.slot, offset: self.bytes };
        self.bytes += ((elements * dtype.bytes()) as u64).next_multiple_of(WIDE);
        place
    }
}

/// Launches of one variant of a plan.
pub(in crate::recurrent) struct Launches<'d> {
    pub(in crate::recurrent) net: &'d RecurrentDesc,
    pub(in crate::recurrent) op: &'static str,
    pub(in crate::recurrent) target: Target,
    /// Whether tensors begin at multiples of 16 bytes.
    pub(in crate::recurrent) wide: bool,
    pub(in crate::recurrent) steps: Vec<LaunchStep>,
}

impl Launches<'_> {
    /// The hidden state of pass `index` in the tensor at `slot`.
    pub(in crate::recurrent) fn state(&self, index: usize, slot: impl Into<Slot>) -> Place {
        Place::of(slot).after(index * self.net.state(), self.net.dtype)
    }

    /// The cells of pass `index` in the tensor at `slot`.
    pub(in crate::recurrent) fn cells(&self, index: usize, slot: impl Into<Slot>) -> Place {
        Place::of(slot).after(index * self.net.units(), self.net.dtype)
    }

    /// A kernel with a thread for each of `n` elements.
    pub(in crate::recurrent) fn over<D: KernelDef>(
        &mut self,
        def: &D,
        n: usize,
        args: &D::Args,
    ) -> Result<(), PlanError> {
        match plan::cover(self.op, n, def.spec().block.to_array()[0])? {
            Some(grid) => self.grid(def, grid, args),
            None => Ok(()),
        }
    }

    /// A kernel with `grid` blocks.
    pub(in crate::recurrent) fn grid<D: KernelDef>(
        &mut self,
        def: &D,
        grid: [u32; 3],
        args: &D::Args,
    ) -> Result<(), PlanError> {
        self.grid_with(def, grid, 0, args)
    }

    /// The same with `shared` bytes of dynamic shared memory.
    pub(in crate::recurrent) fn grid_with<D: KernelDef>(
        &mut self,
        def: &D,
        grid: [u32; 3],
        shared: u32,
        args: &D::Args,
    ) -> Result<(), PlanError> {
        let kernel = plan::recorded(self.op, def, self.target)?;
        self.steps.push(plan::launch_step(self.op, kernel, grid, args.values(), shared)?);
        Ok(())
    }

    /// The sums of a product of matrices of `[m, n, k]`, of which the first and the second may be stored transposed.
    pub(in crate::recurrent) fn product(
        &mut self,
        sizes: [usize; 3],
        transposed: [bool; 2],
        places: [Place; 3],
    ) -> Result<(), PlanError> {
        self.product_in_parts(sizes, transposed, places, (places[2], 1))
    }

    /// The same, of parts of the common dimension if that is faster: there is room for the sums of `most` of them.
    pub(in crate::recurrent) fn product_in_parts(
        &mut self,
        sizes: [usize; 3],
        [a_transposed, b_transposed]: [bool; 2],
        [a, b, to]: [Place; 3],
        (room, most): (Place, usize),
    ) -> Result<(), PlanError> {
        let product = GemmDesc::new(self.net.dtype, sizes, a_transposed, b_transposed);
        let product = GemmDesc { precision: self.net.precision, ..product };
        // The states of passes lie one behind the other.
        let wide = self.wide && [a, b].iter().all(|place| place.offset.is_multiple_of(WIDE));
        let y = |parts| if parts > 1 { room.write() } else { to.write() };
        let from = [a.read(), b.read()];
        let (step, parts) = product.sums_in_parts(self.target, wide, most as u64, from, y)?;
        self.steps.push(step);
        if parts == 1 {
            return Ok(());
        }
        let n = sizes[0] * sizes[1];
        let (sums, y, parts) = (room.read(), to.write(), u32::try_from(parts).unwrap_or(u32::MAX));
        let args = RoundArgs { sums, y, n: n as u64, stride: n as u64, parts };
        self.over(&Round { dtype: sums_of(self.net.dtype) }, n, &args)
    }

    /// Drops elements of `to` behind `layer`, of which there are as many sums as `parts` says, or none but the elements.
    pub(in crate::recurrent) fn drop(
        &mut self,
        layer: usize,
        [from, to, random]: [Place; 3],
        parts: Option<usize>,
    ) -> Result<(), PlanError> {
        let net = self.net;
        let (threshold, scale) = Dropout::constants(self.op, net.dropout.map_or(0.0, Real::get))?;
        let n = net.rows() * net.result();
        let [row_step, row_batch] = net.row_strides();
        let args = DropoutArgs {
            from: from.read(),
            to: to.write(),
            random: random.read(),
            stride: n as u64,
            draws: dropout::first_draw(layer),
            n: n as u64,
            width: small(net.result()),
            batch: small(net.batch),
            row_step,
            row_batch,
            parts: small(parts.unwrap_or(1)),
            threshold,
            scale,
        };
        self.over(&DropoutKernel { dtype: net.dtype, of_sums: parts.is_some() }, dropout::draws(n), &args)
    }

    /// A kernel of all steps, which exchanges vectors through `memory` and begins with those at `first`, if they are given.
    pub(in crate::recurrent) fn persistent<D: KernelDef>(
        &mut self,
        def: &D,
        exchange: &dyn Exchange,
        (memory, first): (Place, (Place, bool)),
        args: &D::Args,
    ) -> Result<(), PlanError> {
        self.steps.extend(exchange.prepare(self.op, self.target, memory, first)?);
        let kernel = plan::recorded(self.op, def, self.target)?;
        let grid = [exchange.blocks(small(self.net.batch)), exchange.gemm().groups, 1];
        let shared = exchange.memory().shared_bytes;
        let step = plan::launch_step(self.op, kernel, grid, args.values(), shared)?;
        self.steps.push(if exchange.is_cooperative() { step.cooperative_whole() } else { step });
        Ok(())
    }
}
