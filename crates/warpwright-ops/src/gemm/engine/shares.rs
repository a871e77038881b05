//! Blocks that share the slices of all tiles: each goes through as many as the others, whichever tiles they belong to.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::{Place, WorkParams};
use crate::gemm::tuning::{PersistentConfig, Sharing};

kernel_args! {
    /// Which slices of which tiles a block takes.
    pub(crate) struct ShareArgs => ShareParams {
        /// Lines of tiles, and slices of a tile and of a block.
        lines: u32, steps: u32, share: u32,
        /// Slices of a line.
        total: u32,
        /// 1 where the tiles of a line lie along the rows of the result, or 0.
        along: u32,
        /// Slices of a product, where a result is the sum of several.
        product: u32,
    }
}

impl ShareArgs {
    /// Of a result that is the sum of `products` alike.
    pub(crate) const fn new(sharing: &Sharing, products: u32) -> Self {
        let Sharing { along, lines, tiles, steps, share, .. } = *sharing;
        Self { lines, steps, share, total: tiles * steps, along: along as u32, product: steps / products }
    }
}

impl<'k> ShareParams<'k> {
    /// The first block of its line that has slices of tile `tile`, and how many have.
    pub(crate) fn parts(&self, tile: U32<'k>) -> (U32<'k>, U32<'k>) {
        let first = tile * self.steps / self.share;
        let last = ((tile + 1) * self.steps - 1) / self.share;
        (first, last - first + 1)
    }

    /// The tile of a line that the one so far down and right is.
    pub(crate) fn tile(&self, down: U32<'k>, right: U32<'k>) -> U32<'k> {
        self.along.eq(0).select(down, right)
    }

    /// The product that slice `step` is of, and which of its slices.
    pub(super) fn product(&self, step: U32<'k>) -> (U32<'k>, U32<'k>) {
        let product = step / self.product;
        (product, step - product * self.product)
    }

    /// Runs `body` for what a block has of each tile, and hands on its state.
    pub(super) fn for_each<C: Carry<'k>>(
        &self,
        k: K<'k>,
        p: WorkParams<'k>,
        config: PersistentConfig,
        first: C,
        body: impl FnOnce(Place<'k>, C) -> C,
    ) {
        let block = k.block_idx_x();
        let of_line = block / self.lines;
        let line = block - of_line * self.lines;
        let begin = of_line * self.share;
        let end = (begin + self.share).min(self.total);
        let _ = k.while_(
            (begin, first),
            |(at, _)| at.lt(end),
            |(at, state)| {
                let tile = at / self.steps;
                let first = at - tile * self.steps;
                let steps = (self.steps - first).min(end - at);
                let down = self.along.eq(0).select(tile, line);
                let right = self.along.eq(0).select(line, tile);
                let part = of_line - self.parts(tile).0;
                let place = Place {
                    row: down * config.rows,
                    col: right * config.cols,
                    end: p.m,
                    batch: k.lit(0u32),
                    matrix: part,
                    steps,
                    first: Some(first),
                    common: None,
                    tile,
                };
                (at + steps, body(place, state))
            },
        );
    }
}
