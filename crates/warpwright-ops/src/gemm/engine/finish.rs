//! The end of a tile: results of a warpgroup's sums go to panels in shared memory, and from there to memory.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{OutputPanel, TensorMapParam};

use super::{
    BesideParams, Blocks, Context, Epilogue, GROUP, Joined, MEETING, PANELS, Pair, Place, ResultPanel, SLAB,
    Store,
};
use crate::gemm::epilogue::{Columns, Even, ResultParams};
use crate::gemm::rows::{load_rows, place_rows, scatter_rows, scattered_rows, store_rows};

/// Vectors of what is added to a panel.
type Addends<'k> = Vec<Lanes<'k, u32>>;

/// A row of a panel, whether it is there, and where it begins.
type Scattered<'k> = (U32<'k>, Pred<'k>, U64<'k>);

/// A warpgroup's part in the panels of a tile.
struct Panels<'k, 'a> {
    cx: &'a Context<'k>,
    place: Place<'k>,
    group: U32<'k>,
    /// Whether the thread is the one that starts copies.
    leader: Pred<'k>,
    /// The lane's rows, where rows do not follow one another.
    scattered: Option<Vec<Scattered<'k>>>,
    /// Whether the panel before may still be on its way when one is written.
    alternate: bool,
}

/// Where a panel is in shared memory, its first column, and where it goes.
struct Stored<'k> {
    at: U32<'k>,
    col: U32<'k>,
    boxes: TensorMapParam<'k>,
    y: Ptr<'k, Write, Elem>,
}

impl Blocks {
    /// The results at `place`: where those of its matrix begin.
    fn results<'k>(&self, cx: &Context<'k>, place: Place<'k>) -> ResultParams<'k> {
        let ResultParams { c, y, .. } = cx.p.to;
        let matrix = place.matrix.to_u64() * cx.p.stride_y;
        ResultParams { c: c.at(matrix), y: y.at(matrix), ..cx.p.to }
    }

    /// Loads what an epilogue adds to the panel at `place`, where panels hold it: elements of 16 bits whose rows begin at multiples of 16 bytes.
    pub(super) fn addends<'k, E: Epilogue<'k>>(
        &self,
        cx: &Context<'k>,
        epilogue: &E,
        place: Place<'k>,
    ) -> Option<Addends<'k>> {
        if self.store != Store::Panels || self.y.bytes() != 2 {
            return None;
        }
        let from = epilogue.residual(&self.results(cx, place))?;
        Some(load_rows(cx.k, self.panel(), from, (place.end, cx.p.n, cx.p.ldy), (place.row, place.col)))
    }

    /// Factors and biases of the pairs of a panel by columns, of which two rows have one; `col` is that of the lane's first sum.
    fn columns<'k, E: Epilogue<'k>>(
        &self,
        epilogue: &E,
        to: &ResultParams<'k>,
        pairs: &[Joined<'k>],
        col: U32<'k>,
    ) -> Option<Vec<Columns<'k>>> {
        let of = |both: &[Joined<'k>]| epilogue.columns(to, col + both[0].1);
        if self.store == Store::Panels { pairs.chunks(2).map(of).collect() } else { None }
    }

    /// Stores the results of 64 rows, whose sums a warpgroup has, and what is added to the first panel if it has been loaded.
    pub(super) fn finish<'k, E: Epilogue<'k>>(
        &self,
        cx: &Context<'k>,
        epilogue: &E,
        sums: Vec<Pair<'k>>,
        place: Place<'k>,
        mut loaded: Option<Addends<'k>>,
    ) {
        let (k, p, panel) = (cx.k, cx.p, self.panel());
        let (pairs, col) = epilogue.joined(self.y, sums, place.col);
        let place = Place { col, ..place };
        let to = self.results(cx, place);
        let group = k.thread_idx() / GROUP;
        let leader = (k.thread_idx() % GROUP).eq(0);
        let (down, right) = k.accumulator_origin();
        let down = down + (k.warp_idx() & 3) * 16;
        let rows = epilogue.rows(place.batch, &|slot| place.row + down + slot);
        let even = Even { rows: self.store != Store::Rows, bias: true };
        let scattered = scattered(cx, place);
        let beside = epilogue.beside();
        let of_matrix = |x: &BesideParams<'k>| (x.boxes, x.to.at(place.matrix.to_u64() * p.stride_y));
        let outputs: Vec<_> = beside.iter().map(of_matrix).chain([(p.y_boxes, to.y)]).collect();
        let (pairs_of_tile, per_panel) = (pairs.len(), (panel.cols() / 4) as usize);
        let alternate = (pairs_of_tile * outputs.len()).is_multiple_of(PANELS as usize * per_panel);
        let panels = Panels { cx, place, group, leader, scattered, alternate };
        let mut number = 0;
        for (chunk, pairs) in (0..).zip(pairs.chunks(per_panel)) {
            let mut results: Vec<Vec<[F32<'k>; 2]>> = Vec::new();
            for (output, (boxes, y)) in outputs.iter().enumerate() {
                let in_turn = number % PANELS * OutputPanel::BYTES;
                let at = cx.panels + group.mul_add(PANELS * OutputPanel::BYTES, in_turn);
                number += 1;
                let col = place.col + chunk * panel.cols();
                let mend = || {
                    let (tile, right) = (panel.tile(at), chunk * panel.cols());
                    let panel = ResultPanel { tile, row: place.row, col, right, batch: place.batch };
                    epilogue.mend(&to, &rows, &panel, pairs);
                };
                let stored = Stored { at, col, boxes: *boxes, y: *y };
                if output > 0 {
                    let result = |of_pair: &Vec<[F32<'k>; 2]>| match of_pair.get(output) {
                        Some(result) => *result,
                        None => epilogue.last(self.y, of_pair),
                    };
                    let values: Vec<_> = results.iter().flat_map(result).collect();
                    self.store_panel(&panels, &stored, || values.clone(), None::<fn() -> _>, mend);
                    continue;
                }
                let addends = loaded.take().or_else(|| self.addends(cx, epilogue, Place { col, ..place }));
                let columns = self.columns(epilogue, &to, pairs, place.col + right);
                let ended = |residual: Option<Vec<[F32<'k>; 2]>>| -> Vec<Vec<[F32<'k>; 2]>> {
                    let result = |(i, (slot, col, sums)): (usize, &Joined<'k>)| match &columns {
                        // The lane's rows follow one another.
                        Some(columns) => {
                            let residual = residual.as_ref().map(|all| all[i]);
                            vec![epilogue.pair_onto(&to, &columns[i / 2], sums[0], residual)]
                        }
                        None => {
                            let (row, col) = (place.row + down + *slot, place.col + right + *col);
                            epilogue.results(&to, &rows, ((row, *slot), col), sums, even)
                        }
                    };
                    pairs.iter().enumerate().map(result).collect()
                };
                let first = |results: &[Vec<[F32<'k>; 2]>]| results.iter().flat_map(|pair| pair[0]).collect();
                let Some(addends) = addends else {
                    results = ended(None);
                    let values: Vec<_> = first(&results);
                    self.store_panel(&panels, &stored, || values.clone(), None::<fn() -> _>, mend);
                    continue;
                };
                // The panel brings what is added, once it is free.
                let late = || {
                    if (chunk as usize + 1) * per_panel < pairs_of_tile {
                        loaded = self.addends(cx, epilogue, Place { col: col + panel.cols(), ..place });
                    }
                    place_rows(k, panel, at, addends);
                    first(&ended(Some(panel.take(at))))
                };
                self.store_panel(&panels, &stored, Vec::new, Some(late), mend);
            }
        }
    }

    /// Stores a panel, once `mend` has put right what was written: values that are there, or those that `late` makes when the panel is free.
    fn store_panel<'k>(
        &self,
        panels: &Panels<'k, '_>,
        stored: &Stored<'k>,
        values: impl Fn() -> Vec<F32<'k>>,
        late: Option<impl FnOnce() -> Vec<F32<'k>>>,
        mend: impl Fn(),
    ) {
        let Panels { cx, place, group, leader, alternate, .. } = *panels;
        let Stored { at, col, boxes, y } = *stored;
        let (k, p, panel) = (cx.k, cx.p, self.panel());
        let by_rows = || match &panels.scattered {
            Some(rows) => scatter_rows(k, panel, at, y, rows, (col, p.n)),
            None => store_rows(k, panel, at, y, (place.end, p.n, p.ldy), (place.row, col)),
        };
        if self.store == Store::Rows {
            // A warp stores the rows that it has written.
            k.warp_barrier();
            panel.put(at, &values());
            mend();
            k.warp_barrier();
            by_rows();
            return;
        }
        // The panel may still be on its way to memory; panels alternate unless a tile ends with the one that the next begins with.
        k.if_(leader, || k.wait_stores(if alternate { PANELS - 1 } else { 0 }));
        k.barrier_of(group + MEETING, GROUP);
        panel.put(at, &late.map_or_else(values, |late| late()));
        mend();
        k.fence_shared_copies();
        k.barrier_of(group + MEETING, GROUP);
        let copy = || boxes.store(at, &[col, place.row, place.matrix]);
        if self.store == Store::Whole {
            let whole = (place.row + SLAB).le(place.end);
            k.if_else(whole, || k.if_(leader, copy), by_rows);
            // One group for each panel, so that as many may be left: an empty one where warps have stored it.
            k.if_(leader, || k.commit_stores());
        } else {
            k.if_(leader, || {
                copy();
                k.commit_stores();
            });
        }
    }
}

/// The rows that a lane stores of a panel, where rows do not follow one another.
fn scattered<'k>(cx: &Context<'k>, place: Place<'k>) -> Option<Vec<Scattered<'k>>> {
    let loader = cx.loader.as_ref()?;
    let rows = scattered_rows(cx.k).map(|row| (row, place.row + row));
    rows.map(|(row, of_y)| Some((row, of_y.lt(place.end), loader.row(of_y)?))).collect()
}
