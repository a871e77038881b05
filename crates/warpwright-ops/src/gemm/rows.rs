//! Stores of panels of results by warps, where tensor copies cannot.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{OutputPanel, WARP};

use super::WIDE;

/// Stores a panel row by row, each warp its 16, in words of 32 bits wherever rows begin.
pub(super) fn store_rows<'k>(
    k: K<'k>,
    panel: OutputPanel,
    at: U32<'k>,
    y: Ptr<'k, Write, Elem>,
    (m, n, ldy): (U32<'k>, U32<'k>, U64<'k>),
    (row, col): (U32<'k>, U32<'k>),
) {
    let tile = panel.tile(at);
    let lane = k.lane_idx();
    let first = (k.warp_idx() & 3) * 16;
    let rows = (row + first + 16).min(m).max(row + first) - (row + first);
    k.for_each(k.range(0, rows, 1), |i| {
        let from = first + i;
        let of_row = y.at((row + from).to_u64() * ldy + col.to_u64());
        if panel.dtype.bytes() == 4 {
            let value = tile.at(from, lane).get::<f32>();
            of_row.at(lane.to_u64()).only_where((col + lane).lt(n), Fill::Zero).set(value);
            return;
        }
        let mine = lane * 2;
        let [low, high] = [0u64, 1].map(|i| tile.at(from, mine).at(i).get::<f32>());
        let odd = (of_row.address() & 2).ne(0);
        // Pairs begin at multiples of 4 bytes: with the lane's second element where the row does not.
        let next = low.shfl_down(1u32);
        let pair = [odd.select(high, low), odd.select(next, high)];
        let begins = col + mine + odd.select(1, 0);
        let of_pair = of_row.at(mine.to_u64()).at(odd.select(k.lit(1u32), 0).to_u64());
        let last = lane.eq(WARP - 1) & odd;
        let both = (begins + 1).lt(n) & !last;
        of_pair.only_where(both, Fill::Zero).store(Lanes::from(pair.to_vec()));
        of_pair.only_where(begins.lt(n) & !both, Fill::Zero).set(pair[0]);
        let first = lane.eq(0) & odd & col.lt(n);
        of_row.only_where(first, Fill::Zero).set(low);
    });
}

/// Registers of a lane's vectors of a panel.
pub(super) const LANE_REGISTERS: usize = 16;

/// Lanes that store a row of a panel, a vector each.
const LANES_OF_ROW: u32 = 8;

/// The rows of a panel of 16-bit elements that a lane stores a vector of, when its warp stores its 16.
pub(super) fn scattered_rows<'k>(k: K<'k>) -> impl Iterator<Item = U32<'k>> {
    let first = (k.warp_idx() & 3) * 16 + k.lane_idx() / LANES_OF_ROW;
    (0..16).step_by((WARP / LANES_OF_ROW) as usize).map(move |down| first + down)
}

/// Loads what a panel of 16-bit elements holds of the rows and columns from (`row`, `col`) on of a matrix of `m` rows and `n` columns, whose
/// rows begin at multiples of 16 bytes: a vector of each of the lane's rows.
pub(super) fn load_rows<'k>(
    k: K<'k>,
    panel: OutputPanel,
    from: Ptr<'k, Read, Elem>,
    (m, n, leading): (U32<'k>, U32<'k>, U64<'k>),
    (row, col): (U32<'k>, U32<'k>),
) -> Vec<Lanes<'k, u32>> {
    let col = col + mine_of_row(k, panel);
    let load = |down: U32<'k>| {
        let row = row + down;
        let at = from.at(row.to_u64() * leading + col.to_u64());
        at.cast::<u32>().only_where(row.lt(m) & col.lt(n), Fill::Zero).load(WIDE as u32 / 4)
    };
    scattered_rows(k).map(load).collect()
}

/// Stores the vectors of [`load_rows`] in the panel at `at`, for the warp to take them from there.
pub(super) fn place_rows<'k>(k: K<'k>, panel: OutputPanel, at: U32<'k>, vectors: Vec<Lanes<'k, u32>>) {
    let (tile, col) = (panel.tile(at), mine_of_row(k, panel));
    for (row, vector) in scattered_rows(k).zip(vectors) {
        tile.at(row, col).cast::<u32>().store(vector);
    }
    k.warp_barrier();
}

/// The first column of the lane's vectors of a panel.
fn mine_of_row(k: K<'_>, panel: OutputPanel) -> U32<'_> {
    k.lane_idx() % LANES_OF_ROW * (WIDE as u32 / panel.dtype.bytes() as u32)
}

/// Stores a panel of 16-bit elements to rows that begin anywhere, at multiples of 16 bytes: `rows` are those of the lane, whether they are
/// there, and where they begin.
pub(super) fn scatter_rows<'k>(
    k: K<'k>,
    panel: OutputPanel,
    at: U32<'k>,
    y: Ptr<'k, Write, Elem>,
    rows: &[(U32<'k>, Pred<'k>, U64<'k>)],
    (col, n): (U32<'k>, U32<'k>),
) {
    let words = WIDE as u32 / 4;
    let mine = k.lane_idx() % LANES_OF_ROW * (WIDE as u32 / panel.dtype.bytes() as u32);
    let tile = panel.tile(at);
    for (row, there, begin) in rows {
        let vector = tile.at(*row, mine).cast::<u32>().load::<u32>(words);
        let to = y.at(*begin + (col + mine).to_u64());
        to.only_where(*there & (col + mine).lt(n), Fill::Zero).cast::<u32>().store(vector);
    }
}
