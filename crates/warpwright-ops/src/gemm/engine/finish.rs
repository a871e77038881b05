//! The end of a tile: results of a warpgroup's sums go to panels in shared memory, and from there to memory.

use std::collections::VecDeque;

use warpwright_dsl::prelude::*;
use warpwright_dsl::{OutputPanel, TensorMapParam};

use super::{
    BesideParams, Blocks, Context, Epilogue, GROUP, Joined, MEETING, PANELS, Pair, Place, ResultPanel, SLAB,
    Store,
};
use crate::gemm::epilogue::{Columns, Even, ResultParams};
use crate::gemm::rows::{LANE_REGISTERS, load_rows, place_rows, scatter_rows, scattered_rows, store_rows};

/// The lane's vectors of a panel of each tensor that an epilogue reads.
type Vectors<'k> = Vec<Vec<Lanes<'k, u32>>>;

/// Registers of a thread for vectors on their way.
const ON_THEIR_WAY: usize = 32;

/// The panels of a warpgroup's tile of the tensors that an epilogue reads: the first come to registers while the tile is multiplied, each
/// further one while those before it are finished, by loads of 16 bytes.
pub(super) struct Ahead<'k> {
    /// The tile of the warpgroup, from its first row on.
    place: Place<'k>,
    loaded: VecDeque<Vectors<'k>>,
    /// The number of the panel behind those, by slabs of rows.
    next: u32,
}

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

    /// Begins to load what an epilogue reads for the tile at `place`, where panels hold it: elements of 16 bits whose rows begin at multiples of
    /// 16 bytes.
    pub(super) fn ahead<'k, E: Epilogue<'k>>(
        &self,
        cx: &Context<'k>,
        epilogue: &E,
        place: Place<'k>,
    ) -> Option<Ahead<'k>> {
        if self.store != Store::Panels || self.y.bytes() != 2 {
            return None;
        }
        let tensors = epilogue.reads(&self.results(cx, place)).len();
        let mut ahead = Ahead { place, loaded: VecDeque::new(), next: 0 };
        for _ in 0..(ON_THEIR_WAY / LANE_REGISTERS).checked_div(tensors)?.max(1) {
            self.load_next(cx, epilogue, &mut ahead);
        }
        Some(ahead)
    }

    /// Begins to load the next panel of a tile, if there is one.
    fn load_next<'k, E: Epilogue<'k>>(&self, cx: &Context<'k>, epilogue: &E, ahead: &mut Ahead<'k>) {
        let (panel, place) = (self.panel(), ahead.place);
        let across = self.config.cols / panel.cols();
        let (slab, chunk) = (ahead.next / across, ahead.next % across);
        if slab == self.slabs() {
            return;
        }
        let (row, col) = (place.row + slab * SLAB, place.col + chunk * panel.cols());
        let load = |from| load_rows(cx.k, panel, from, (place.end, cx.p.n, cx.p.ldy), (row, col));
        ahead.loaded.push_back(epilogue.reads(&self.results(cx, place)).into_iter().map(load).collect());
        ahead.next += 1;
    }

    /// The numbers of the next panel in the order of its pairs, those of one tensor after the other, by way of the free panel at `at`.
    fn read_next<'k>(&self, cx: &Context<'k>, ahead: &mut Ahead<'k>, at: U32<'k>) -> Vec<Vec<[F32<'k>; 2]>> {
        let vectors = ahead.loaded.pop_front().unwrap_or_default();
        let through_panel = |(i, vectors)| {
            if i > 0 {
                // Lanes have taken those of the tensor before.
                cx.k.warp_barrier();
            }
            place_rows(cx.k, self.panel(), at, vectors);
            self.panel().take(at)
        };
        vectors.into_iter().enumerate().map(through_panel).collect()
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

    /// Stores the results of 64 rows, whose sums a warpgroup has; what its epilogue reads comes from `ahead`, where that brings it.
    pub(super) fn finish<'k, E: Epilogue<'k>>(
        &self,
        cx: &Context<'k>,
        epilogue: &E,
        sums: Vec<Pair<'k>>,
        place: Place<'k>,
        mut ahead: Option<&mut Ahead<'k>>,
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
                    self.free_panel(&panels);
                    self.store_panel(&panels, &stored, &values, mend);
                    continue;
                }
                let columns = self.columns(epilogue, &to, pairs, place.col + right);
                let ended = |read: &[Vec<[F32<'k>; 2]>]| -> Vec<Vec<[F32<'k>; 2]>> {
                    let result = |(i, (slot, col, sums)): (usize, &Joined<'k>)| {
                        let mut read = read.iter().map(|of_tensor| of_tensor[i]);
                        // The lane's rows follow one another.
                        if let Some(columns) = &columns {
                            return vec![epilogue.pair_onto(&to, &columns[i / 2], sums[0], read.next())];
                        }
                        let read: Vec<_> = read.collect();
                        let (row, col) = (place.row + down + *slot, place.col + right + *col);
                        epilogue.results(&to, &rows, ((row, *slot), col), sums, &read, even)
                    };
                    pairs.iter().enumerate().map(result).collect()
                };
                if let Some(ahead) = ahead.as_deref_mut() {
                    self.free_panel(&panels);
                    results = ended(&self.read_next(cx, ahead, at));
                } else {
                    results = ended(&[]);
                    self.free_panel(&panels);
                }
                let values: Vec<_> = results.iter().flat_map(|pair| pair[0]).collect();
                self.store_panel(&panels, &stored, &values, mend);
                if let Some(ahead) = ahead.as_deref_mut() {
                    self.load_next(cx, epilogue, ahead);
                }
            }
        }
    }

    /// Waits until nothing reads the panel any more that is written next.
    fn free_panel(&self, panels: &Panels<'_, '_>) {
        let Panels { cx, group, leader, alternate, .. } = *panels;
        let k = cx.k;
        if self.store == Store::Rows {
            // A warp stores the rows that it has written.
            k.warp_barrier();
            return;
        }
        // The panel may still be on its way to memory; panels alternate unless a tile ends with the one that the next begins with.
        k.if_(leader, || k.wait_stores(if alternate { PANELS - 1 } else { 0 }));
        k.barrier_of(group + MEETING, GROUP);
    }

    /// Stores the values of a panel that is free, once `mend` has put right what was written.
    fn store_panel<'k>(
        &self,
        panels: &Panels<'k, '_>,
        stored: &Stored<'k>,
        values: &[F32<'k>],
        mend: impl Fn(),
    ) {
        let Panels { cx, place, group, leader, .. } = *panels;
        let Stored { at, col, boxes, y } = *stored;
        let (k, p, panel) = (cx.k, cx.p, self.panel());
        let by_rows = || match &panels.scattered {
            Some(rows) => scatter_rows(k, panel, at, y, rows, (col, p.n)),
            None => store_rows(k, panel, at, y, (place.end, p.n, p.ldy), (place.row, col)),
        };
        panel.put(at, values);
        mend();
        if self.store == Store::Rows {
            k.warp_barrier();
            by_rows();
            return;
        }
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
