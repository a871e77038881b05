//! The tiles of keys that a mask lists for a block: those that any of its groups sees, in ascending order.

use warpwright_dsl::carry;
use warpwright_dsl::prelude::*;

use super::super::dropout::Keys;
use super::super::engine::Place;
use super::GROUP_ROWS;
use super::layouts::Wgmma;
use crate::attention::layout::BlockLayout;
use crate::attention::score::{BlockMaskParams, MASK_TILE, MaskTile, MaskTiles, QueryBlock};

/// The lists of a block as a group, or the thread that copies, knows them. The rows of a group are in one tile of the mask; those of a block
/// are in two where they are more.
#[derive(Clone, Copy)]
pub(super) struct KeyLists<'k> {
    /// That of the group's rows.
    own: MaskTiles<'k>,
    /// That of the block's rows in the other tile of the mask.
    other: Option<MaskTiles<'k>>,
}

/// How many tiles of each list lie behind.
#[derive(Clone, Copy)]
pub(super) struct KeyCursor<'k> {
    own: U32<'k>,
    other: U32<'k>,
}

carry!(KeyCursor { own, other });

impl<'k> KeyLists<'k> {
    pub(super) fn new(
        mask: BlockMaskParams<'k>,
        block: &QueryBlock<'k, f32>,
        config: Wgmma,
        group: U32<'k>,
    ) -> Self {
        let of = [block.head, block.batch];
        let list = |first: I32<'k>| MaskTiles::new(mask, Keys::Columns, of, first, config.columns);
        let first = block.first + (group * GROUP_ROWS).to_i32();
        if MASK_TILE.is_multiple_of(config.rows()) {
            return Self { own: list(first), other: None };
        }
        // There may be no queries behind those of the first tile.
        let whole = -MASK_TILE.cast_signed();
        let list = |first: I32<'k>| {
            MaskTiles::new_where(
                mask,
                Keys::Columns,
                of,
                first,
                config.columns,
                Some((first & whole).lt(block.span.queries)),
            )
        };
        let in_first = (first & whole).le(block.first);
        let other = in_first.select(block.first + MASK_TILE.cast_signed(), block.first);
        Self { own: list(first), other: Some(list(other)) }
    }

    /// The tile at a place of the lists, of which the first column is negative if there is none, and the place behind it.
    pub(super) fn next(&self, at: KeyCursor<'k>) -> (MaskTile<'k>, KeyCursor<'k>) {
        let key = |list: &MaskTiles<'k>, number: U32<'k>| {
            let tile = list.get(number);
            (tile, number.lt(list.count).select(tile.at.to_u32(), u32::MAX))
        };
        let (tile, own) = key(&self.own, at.own);
        let Some(list) = &self.other else {
            return (MaskTile { at: own.to_i32(), ..tile }, KeyCursor { own: at.own + 1, ..at });
        };
        let (_, other) = key(list, at.other);
        let (mine, theirs) = (own.le(other), other.le(own));
        let part = mine.select(tile.part, MaskTile::NOTHING);
        let behind = KeyCursor { own: at.own + mine.to_u32(), other: at.other + theirs.to_u32() };
        (MaskTile { at: own.min(other).to_i32(), part }, behind)
    }

    /// The first tile, and the place behind it. If there is none, that behind all columns, of which there are `all`, where nothing is seen.
    pub(super) fn first(&self, all: I32<'k>) -> (MaskTile<'k>, KeyCursor<'k>) {
        let zero = all.k().lit(0u32);
        let (tile, behind) = self.next(KeyCursor { own: zero, other: zero });
        let none = tile.at.lt(0);
        let at = none.select(self.own.end(all), tile.at);
        (MaskTile { at, part: none.select(MaskTile::NOTHING, tile.part) }, behind)
    }

    /// Scores of a tile, minus infinity where the group does not see the pair; `place` is that in the group.
    pub(super) fn masked(
        &self,
        k: K<'k>,
        tile: MaskTile<'k>,
        scores: RegTile<'k, f32>,
        place: &Place<'k>,
    ) -> RegTile<'k, f32> {
        match self.other {
            None => self.own.masked(k, tile, scores, place),
            Some(_) => {
                let some =
                    || self.own.select(&scores, place, |row| self.own.row_of_some(tile, row, place.first));
                k.if_else(tile.is_whole(), || scores.clone(), some)
            }
        }
    }

    /// The same of the first tile, whichever it is.
    pub(super) fn masked_first(
        &self,
        tile: MaskTile<'k>,
        scores: &RegTile<'k, f32>,
        place: &Place<'k>,
    ) -> RegTile<'k, f32> {
        self.own.select(scores, place, |row| self.own.row_of_any(tile, row, place.first))
    }
}
