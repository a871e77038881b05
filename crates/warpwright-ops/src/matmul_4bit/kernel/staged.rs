//! Codes by way of shared memory: each warp copies its runs, whole lines of the weight, a few ahead of the one that it multiplies.
//!
//! Loads to registers take a vector of each of eight rows at once, and the cache spends a clock on every line that a load touches. A copy
//! touches half of them, waits for nothing, and needs no registers. Warps share nothing but the sums of a tile.

use warpwright_dsl::Stages;

use super::*;
use crate::matmul_4bit::tuning::{RUN_BYTES, STAGE_ROW_BYTES};

/// One of the runs that a warp takes: the number of its tile among those of the block, and its own in the tile.
#[derive(Clone, Copy)]
struct Place<'k> {
    tile: U32<'k>,
    run: U32<'k>,
}
warpwright_dsl::carry!(Place { tile, run });

/// Bytes of a copy.
const PIECE: u32 = 16;
/// Pieces of a row of a run, and rows that a warp copies at once.
const PIECES: u32 = STAGE_ROW_BYTES / PIECE;
const ROWS_AT_ONCE: u32 = 32 / PIECES;

/// The stages of a warp, as a lane sees them.
struct StagedRuns<'a, 'k> {
    block: &'a Block<'k>,
    /// Tiles of the block.
    tiles: U32<'k>,
    /// Where the lane's pieces go: in even and in odd groups of rows.
    to: [Ptr<'k, Shared, u8>; 2],
    /// The lane's codes of each slice, in the first of its rows.
    from: Vec<Ptr<'k, Shared, u8>>,
}

impl<'k> Block<'k> {
    /// Goes through the tiles of the block. `first_stage` is where the stages of the first warp begin.
    pub(super) fn run_staged(
        &self,
        (begin, len): (U32<'k>, U32<'k>),
        x: Ptr<'k, Shared, u8>,
        first_stage: Ptr<'k, Shared, u8>,
    ) {
        let (k, config) = (self.k, self.kernel.config);
        let stages = Stages { count: config.stages, bytes: RUN_BYTES };
        let staged = self.staged(first_stage.at(self.warp * stages.total_bytes()));
        let zero = k.lit(0u32);
        let start = staged.within_tile(Place { tile: zero, run: self.warp });
        // The first run and x are one group, so that nothing waits for more.
        staged.copy(start, zero);
        let scales = staged.scales(start);
        self.copy_x(x, begin, len);
        let ahead = (1..config.stages - 1).fold(staged.after(start), |place, stage| {
            staged.copy(place, k.lit(stage * RUN_BYTES));
            k.commit_copies();
            staged.after(place)
        });
        k.wait_copies(config.stages - 2);
        k.barrier();
        k.start_next_grid();
        let write = k.lit((config.stages - 1) * RUN_BYTES);
        let state = ((start, scales), (ahead, zero, write), zero);
        let _ = k.fold(k.range(0, staged.tiles, 1), state, |tile, (next, copies, turn)| {
            let (next, copies, sums) = k.while_(
                (next, copies, self.zeros()),
                |((place, _), _, _)| place.tile.eq(tile),
                |((place, scales), (ahead, read, write), sums)| {
                    // The run is there, and all lanes have read the stage that the next copies overwrite.
                    k.wait_copies(config.stages - 2);
                    k.warp_barrier();
                    staged.copy(ahead, write);
                    k.commit_copies();
                    let next = staged.after(place);
                    let of_next = staged.scales(next);
                    let first = place.run << config.slices().trailing_zeros();
                    let sums = (0..config.slices()).zip(scales).fold(sums, |sums, (slice, scales)| {
                        let loaded = Slice { codes: staged.codes(slice, read), scales };
                        self.products(first, slice, &loaded, &sums, None)
                    });
                    ((next, of_next), (staged.after(ahead), stages.after(read), stages.after(write)), sums)
                },
            );
            self.finish(k.block_idx_x() + tile * k.grid_dim_x(), turn, &sums);
            (next, copies, turn + config.col_tiles)
        });
    }

    fn staged(&self, at: Ptr<'k, Shared, u8>) -> StagedRuns<'_, 'k> {
        let (k, config) = (self.k, self.kernel.config);
        let (first, blocks) = (k.block_idx_x(), k.grid_dim_x());
        let tiles = (self.p.n + (config.rows() - 1)) / config.rows();
        let lane = k.lane_idx();
        let (row, piece) = (lane >> PIECES.trailing_zeros(), lane & (PIECES - 1));
        let to = [0, 1].map(|odd| {
            let row = row + odd * ROWS_AT_ONCE;
            at.at((lane >> PIECES.trailing_zeros()) * STAGE_ROW_BYTES + ((piece ^ self.turned(row)) << 4))
        });
        // A slice is a piece, or two.
        let shift = (PIECE * config.words).trailing_zeros();
        let row = at.at(self.row * STAGE_ROW_BYTES + self.quad * (4 * config.words));
        let turned = self.turned(self.row) >> (config.words - 1);
        let from = (0..config.slices()).map(|slice| row.at((turned ^ slice) << shift)).collect();
        StagedRuns { block: self, tiles: (tiles - first + (blocks - 1)) / blocks, to, from }
    }

    /// The factor of an exclusive or with the numbers of the pieces of a row, so that rows that are read at once lie in different banks.
    fn turned(&self, row: U32<'k>) -> U32<'k> {
        if self.kernel.config.words == 2 { (row & 3) << 1 } else { row & 7 }
    }
}

impl<'k> StagedRuns<'_, 'k> {
    /// The place whose run may be one of a tile behind.
    fn within_tile(&self, place: Place<'k>) -> Place<'k> {
        let Block { k, runs, .. } = *self.block;
        k.while_(
            place,
            |place| place.run.ge(runs),
            |place| Place { tile: place.tile + 1, run: place.run - runs },
        )
    }

    /// The warp's next run.
    fn after(&self, place: Place<'k>) -> Place<'k> {
        self.within_tile(Place { run: place.run + self.block.kernel.config.warps, ..place })
    }

    /// The first row of the tile of a place.
    fn first_row(&self, place: Place<'k>) -> U32<'k> {
        let k = self.block.k;
        (k.block_idx_x() + place.tile * k.grid_dim_x()) * self.block.kernel.config.rows()
    }

    /// Starts the copies of a run to the stage at `stage`; none behind the last tile.
    fn copy(&self, place: Place<'k>, stage: U32<'k>) {
        let Block { k, p, first, kernel, .. } = *self.block;
        k.if_(place.tile.lt(self.tiles), || {
            let lane = k.lane_idx();
            let row = self.first_row(place) + (lane >> PIECES.trailing_zeros());
            let within = (first << (16 * kernel.config.words).trailing_zeros())
                + (place.run << STAGE_ROW_BYTES.trailing_zeros())
                + ((lane & (PIECES - 1)) << PIECE.trailing_zeros());
            let origin = p.weight.address() + within.to_u64();
            let bytes = (p.k >> 1).to_u64();
            for group in 0..ATOM_ROWS / ROWS_AT_ONCE {
                // Rows behind the last are computed, and not stored.
                let row = (row + group * ROWS_AT_ONCE).min(p.n - 1);
                let from = p.weight.at_address(row.to_u64().mul_add(bytes, origin));
                let to = self.to[(group % 2) as usize].at(u64::from(group * ROWS_AT_ONCE * STAGE_ROW_BYTES));
                to.at(stage).copy_16(from);
            }
        });
    }

    /// The lane's codes of a slice of the run in the stage at `stage`.
    fn codes(&self, slice: u32, stage: U32<'k>) -> Vec<Vec<U32<'k>>> {
        let words = self.block.kernel.config.words;
        let row = self.from[slice as usize].at(stage);
        let half =
            |half: u64| row.at(half * u64::from(ATOM_ROWS / 2 * STAGE_ROW_BYTES)).cast::<u32>().load(words);
        [0, 1].map(|i| half(i).into_iter().collect()).into()
    }

    /// Loads the scales of the slices of a run, of each of the lane's rows; behind the last tile, those of the last row.
    fn scales(&self, place: Place<'k>) -> Vec<Vec<Loaded<'k>>> {
        let Block { p, first, kernel, ref decoder, row, .. } = *self.block;
        let config = kernel.config;
        let shift = (!kernel.fine).then_some(p.group_shift);
        let start = first + (place.run << config.slices().trailing_zeros());
        let rows = [0, 1].map(|half| {
            let row = (self.first_row(place) + (row + half * (ATOM_ROWS / 2))).min(p.n - 1);
            decoder.load_slices(row * p.group_pitch + start, (config.slices(), config.slice()), shift)
        });
        let [upper, lower] = rows;
        upper.into_iter().zip(lower).map(|(upper, lower)| vec![upper, lower]).collect()
    }
}
