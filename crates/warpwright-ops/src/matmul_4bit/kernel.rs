//! Products of few rows: warps stream the weight, decode it in registers and multiply on tensor cores.
//!
//! The weight is the left operand of `m16n8k16`, its rows the rows, and `x`, transposed, the right one. The common index of a product may
//! run in any order as long as it is the same for both: of a slice of `32 words` elements each of the four lanes of a row takes
//! `8 words` neighbours, so that it loads its codes at once. All of them share a scale, which multiplies the sums of the slice; of e4m3 scales,
//! which are of 16 elements, each lane has its own, which multiplies its numbers.
//!
//! A byte of codes is looked up in a table of pairs in shared memory, of which each lane has a copy in a bank of its own.
//!
//! A block goes through tiles of rows of the weight, its warps through runs of four slices of the common dimension, and loads the
//! slices of the next run while it multiplies those of the last, or has them copied to shared memory (`staged`). Sums of the warps are added
//! in their order.

mod staged;

use warpwright_dsl::prelude::*;

use super::format::ScaleFormat;
use super::scales::{Groups, Loaded, ScaleArgs, fill_map};
use super::table::{self, PairTable, TABLE_BYTES};
use super::tuning::{ATOM_COLS, ATOM_ROWS, SLICES, StreamConfig};

kernel_args! {
    /// `y = x W^T + bias`, or the sums of a part of the common dimension
    pub(super) struct StreamArgs => StreamParams {
        x: In<Elem>, weight: In<u8>, scale: ScaleArgs, bias: In<Elem>, y: Out<Elem>,
        m: u32, n: u32, k: u32,
        /// How much of the common dimension a block along y of the grid takes.
        part: u32,
        /// Bytes from one row of `x` in shared memory to the next.
        x_pitch: u32,
        /// Slices from one row of the weight to the next, as scales count them, and the logarithm of how many share one.
        group_pitch: u32, group_shift: u32,
    }
}

/// A product of few rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) dtype: DType,
    pub(super) groups: Groups,
    pub(super) config: StreamConfig,
    /// Whether each slice has a scale of its own.
    pub(super) fine: bool,
    pub(super) bias: bool,
    /// Whether sums of parts are stored as they are, in f32, one matrix after the other.
    pub(super) parts: bool,
}

impl Stream {
    /// Whether scales multiply numbers, and not sums: those that have groups shorter than a slice.
    fn scales_numbers(&self) -> bool {
        self.groups.scales_numbers() || self.groups.scale == ScaleFormat::E8m0 && self.config.words == 2
    }
}

/// Codes and scales of a slice, as they were loaded: for each row of a lane.
#[derive(Clone, Debug)]
struct Slice<'k> {
    codes: Vec<Vec<U32<'k>>>,
    scales: Vec<Loaded<'k>>,
}
warpwright_dsl::carry!(Slice { codes, scales });

/// The rows of a lane in a tile of 16: pairs of both, and the scales of their sums, where these are scaled.
struct WeightTile<'k> {
    pairs: [Vec<U32<'k>>; 2],
    scales: Option<[F32<'k>; 2]>,
}

impl<'k> WeightTile<'k> {
    /// The operand of a product of the slice.
    fn fragment(&self, k: K<'k>, atom: MmaAtom, step: usize) -> Fragment<'k, MatrixA> {
        let [upper, lower] = &self.pairs;
        let i = 2 * step;
        Fragment::a(k, atom, &[upper[i], lower[i], upper[i + 1], lower[i + 1]])
    }
}

/// Where a warp is: the tile of the block, and the step in it.
#[derive(Clone, Copy)]
struct Position<'k> {
    tile: U32<'k>,
    step: U32<'k>,
}
warpwright_dsl::carry!(Position { tile, step });

/// A lane's rows of a tile, from which slices are loaded.
struct Rows<'k> {
    codes: Vec<Ptr<'k, Read, u8>>,
    /// The first slice of each, as scales count them.
    groups: Vec<U32<'k>>,
    /// Whether there is another tile; otherwise one place is read again and again.
    there: Pred<'k>,
}

/// The state of a thread that does not change while its block runs.
struct Block<'k> {
    k: K<'k>,
    p: StreamParams<'k>,
    kernel: Stream,
    decoder: super::scales::Decoder<'k>,
    table: PairTable<'k>,
    /// Where scales multiply numbers, the bytes of a slice's that are the lane's; and of e4m3 ones the factor of all sums.
    selector: Option<U32<'k>>,
    tensor_scale: Option<F32<'k>>,
    sums: Ptr<'k, Shared, f32>,
    /// The lane's elements of the rows of `x`.
    x: Vec<Ptr<'k, Shared, u32>>,
    warp: U32<'k>,
    /// The lane's row and its number in it.
    row: U32<'k>,
    quad: U32<'k>,
    /// The first slice of the part, and how many slices and runs it has.
    first: U32<'k>,
    slices: U32<'k>,
    runs: U32<'k>,
    /// Steps of a tile.
    steps: U32<'k>,
}

impl KernelDef for Stream {
    type Args = StreamArgs;

    fn spec(&self) -> KernelSpec {
        let ends = [self.fine, self.bias, self.parts];
        let name = self.groups.product_name(self.dtype, &self.config.name(), ends);
        let y = if self.parts { DType::F32 } else { self.dtype };
        let dtypes = DTypes::NONE.with("x", self.dtype).with("bias", self.dtype).with("y", y);
        KernelSpec::new(name, BlockDim::x(self.config.threads()))
            .dtypes(self.groups.dtypes(dtypes))
            .min_blocks_per_sm(self.config.blocks)
    }

    fn build<'k>(&self, k: K<'k>, p: StreamParams<'k>) {
        let config = self.config;
        // Tables, then sums, then stages, then x.
        let at = k.dynamic_shared::<u8>();
        table::fill(k, (self.groups.format, self.dtype), at.cast::<u32>(), config.threads());
        let map = self.groups.is_nested().then(|| at.at(u64::from(TABLE_BYTES)).cast::<f32>());
        map.into_iter().for_each(|map| fill_map(k, map));
        let fixed = config.fixed_bytes(self.groups.is_nested());
        let stages = at.at(u64::from(fixed - config.stages_bytes()));
        let sums = at.at(u64::from(fixed - config.stages_bytes() - config.sums_bytes())).cast::<f32>();
        let x = at.at(u64::from(fixed));
        k.after_previous_grid();
        let begin = k.block_idx_y() * p.part;
        let len = (begin + p.part).min(p.k) - begin;
        let (slice, run) = (config.slice().trailing_zeros(), config.run());
        let runs = (len + (run - 1)) >> run.trailing_zeros();
        let of_step = config.warps * config.runs;
        let (lane, warp) = (k.lane_idx(), k.warp_idx());
        let (row, quad) = (lane >> 2, lane & 3);
        let of_lane = |t: u32| {
            let row = (row + t * ATOM_COLS).min(p.m - 1);
            x.at(row * p.x_pitch + quad * (16 * config.words)).cast::<u32>()
        };
        let block = Block {
            k,
            p,
            kernel: *self,
            decoder: self.groups.decoder_with(p.scale, map),
            table: PairTable { k, dtype: self.dtype, copy: at.at(lane << 2) },
            selector: self.scales_numbers().then(|| match (self.groups.scale, config.words) {
                (ScaleFormat::E8m0, _) => (quad >> 1) | 0x4440,
                (_, 2) => (quad * 0x11) | 0x4400,
                _ => ((quad >> 1) * 0x11) | 0x4400,
            }),
            tensor_scale: self.groups.tensor_scale(p.scale),
            sums,
            x: (0..config.col_tiles).map(of_lane).collect(),
            warp,
            row,
            quad,
            first: begin >> slice,
            slices: len >> slice,
            runs,
            steps: (runs + (of_step - 1)) / of_step,
        };
        if config.stages > 0 {
            block.run_staged((begin, len), x, stages);
        } else {
            block.run((begin, len), x);
        }
    }
}

impl<'k> Block<'k> {
    fn run(&self, (begin, len): (U32<'k>, U32<'k>), x: Ptr<'k, Shared, u8>) {
        let (k, p) = (self.k, self.p);
        let rows = self.kernel.config.rows();
        let tiles = (p.n + (rows - 1)) / rows;
        let (first, blocks) = (k.block_idx_x(), k.grid_dim_x());
        let zero = k.lit(0u32);
        let start = Position { tile: first, step: zero };
        // Codes first: they come from far, and meanwhile x is copied.
        let slices = self.load_all(start, k.lit(true));
        self.copy_x(x, begin, len);
        k.wait_copies(0);
        k.barrier();
        k.start_next_grid();
        let of_block = (tiles - first + (blocks - 1)) / blocks;
        let total = of_block * self.steps;
        let state = (slices, self.zeros(), start, zero);
        let _ = k.fold(k.range(0, total, 1), state, |i, (mut slices, mut sums, at, turn)| {
            let last = (at.step + 1).eq(self.steps);
            let next = Position {
                tile: last.select(at.tile + blocks, at.tile),
                step: last.select(zero, at.step + 1),
            };
            let rows = self.rows_of(next, (i + 1).lt(total));
            for run in 0..self.kernel.config.runs {
                let (now, then) = (self.run_of(at.step, run), self.run_of(next.step, run));
                let of_run = (run * SLICES) as usize;
                sums = k.if_else(
                    now.lt(self.runs),
                    || {
                        let loaded = (0..SLICES).zip(&slices[of_run..]);
                        loaded.fold(sums.clone(), |sums, (slice, loaded)| {
                            self.multiplied(now, slice, loaded, sums)
                        })
                    },
                    || sums.clone(),
                );
                slices.splice(of_run..of_run + SLICES as usize, self.load(&rows, then));
            }
            let sums = k.if_else(
                last,
                || {
                    self.finish(at.tile, turn, &sums);
                    self.zeros()
                },
                || sums.clone(),
            );
            (slices, sums, next, last.select(turn + self.kernel.config.col_tiles, turn))
        });
    }

    fn zeros(&self) -> Vec<F32<'k>> {
        let config = self.kernel.config;
        (0..config.row_tiles * config.col_tiles * 4).map(|_| self.k.lit(0.0)).collect()
    }

    /// The run that the warp takes in a step.
    fn run_of(&self, step: U32<'k>, run: u32) -> U32<'k> {
        let config = self.kernel.config;
        step * (config.warps * config.runs) + (self.warp + run * config.warps)
    }

    /// Starts the copies of the part of `x`, 16 bytes each.
    fn copy_x(&self, to: Ptr<'k, Shared, u8>, begin: U32<'k>, len: U32<'k>) {
        let (k, p) = (self.k, self.p);
        k.for_each(k.range(k.thread_idx(), len >> 3, self.kernel.config.threads()), |piece| {
            k.for_each(k.range(0, p.m, 1), |row| {
                let from = p.x.at(row.mul_wide(p.k)).at(begin + (piece << 3));
                to.at(row * p.x_pitch + (piece << 4)).copy_16(from);
            });
        });
        k.commit_copies();
    }

    /// The first slice of a run. The last run begins early if it would go beyond the end, and repeats what others have.
    fn start_of(&self, run: U32<'k>) -> U32<'k> {
        (run << SLICES.trailing_zeros()).min(self.slices - SLICES)
    }

    /// The lane's rows of a tile.
    fn rows_of(&self, at: Position<'k>, there: Pred<'k>) -> Rows<'k> {
        let k = self.k;
        let (p, config) = (self.p, self.kernel.config);
        let base = p.weight.address();
        let bytes = (p.k >> 1).to_u64();
        let mut rows = Rows { codes: Vec::new(), groups: Vec::new(), there };
        for half in 0..2 * config.row_tiles {
            // Rows behind the last are computed, and not stored.
            let row = (at.tile * config.rows() + (self.row + half * (ATOM_ROWS / 2))).min(p.n - 1);
            let within =
                (self.first << (16 * config.words).trailing_zeros()) + self.quad * (4 * config.words);
            let address = row.to_u64().mul_add(bytes, base + within.to_u64());
            rows.codes.push(p.weight.non_coherent().at_address(there.select(address, base)));
            rows.groups.push(there.select(row * p.group_pitch + self.first, k.lit(0u32)));
        }
        rows
    }

    fn load_all(&self, at: Position<'k>, there: Pred<'k>) -> Vec<Slice<'k>> {
        let rows = self.rows_of(at, there);
        (0..self.kernel.config.runs).flat_map(|run| self.load(&rows, self.run_of(at.step, run))).collect()
    }

    /// Loads the slices of a run; of one behind the end, those of the last.
    fn load(&self, rows: &Rows<'k>, run: U32<'k>) -> Vec<Slice<'k>> {
        let (k, config, decoder) = (self.k, self.kernel.config, &self.decoder);
        let zero = k.lit(0u32);
        let start = rows.there.select(self.start_of(run), zero);
        let bytes = 16 * config.words;
        let codes: Vec<_> = rows.codes.iter().map(|row| row.at(start << bytes.trailing_zeros())).collect();
        let groups: Vec<_> = rows.groups.iter().map(|first| *first + start).collect();
        let slice = |slice: u32| {
            let words = |row: &Ptr<'k, Read, u8>| {
                let lanes = row.at(u64::from(slice * bytes)).cast::<u32>().load(config.words);
                lanes.into_iter().collect()
            };
            let scale = |group: &U32<'k>| {
                if self.selector.is_some() {
                    return decoder.load_e4m3(*group, slice, config.slice());
                }
                decoder.load_slice(*group, slice, (!self.kernel.fine).then_some(self.p.group_shift))
            };
            Slice { codes: codes.iter().map(words).collect(), scales: groups.iter().map(scale).collect() }
        };
        (0..SLICES).map(slice).collect()
    }

    /// `sums` and the products of a slice, unless the run before had it. Few products are worth being interleaved with those of the next
    /// slices, so they are made and thrown away. Of many a lane could not hold the operands, and a branch keeps them apart.
    fn multiplied(&self, run: U32<'k>, slice: u32, loaded: &Slice<'k>, sums: Vec<F32<'k>>) -> Vec<F32<'k>> {
        let start = self.start_of(run);
        let there = (start + slice).ge(run << SLICES.trailing_zeros());
        if self.kernel.config.col_tiles == 1 {
            return self.products(start, slice, loaded, &sums, Some(there));
        }
        let products = || self.products(start, slice, loaded, &sums, None);
        self.k.if_else(there, products, || sums.clone())
    }

    /// `sums` and the products of a slice of the run from `start` on, where it is there.
    fn products(
        &self,
        start: U32<'k>,
        slice: u32,
        loaded: &Slice<'k>,
        sums: &[F32<'k>],
        there: Option<Pred<'k>>,
    ) -> Vec<F32<'k>> {
        let (k, config) = (self.k, self.kernel.config);
        let atom = k.mma_atom(self.kernel.dtype);
        let tiles: Vec<WeightTile<'k>> =
            (0..config.row_tiles as usize).map(|tile| self.decoded(loaded, tile)).collect();
        let at = start << (config.slice() / 2).trailing_zeros();
        let mut out = sums.to_vec();
        for (col, x) in self.x.iter().enumerate() {
            let x = self.fragments(x.at(at).at(u64::from(slice * config.slice() / 2)), atom);
            for (tile, weight) in tiles.iter().enumerate() {
                let first = (tile * config.col_tiles as usize + col) * 4;
                let sums = &mut out[first..first + 4];
                let zero = Accumulator::zero(k, atom);
                // Sums that may be thrown away are no start.
                let continued = weight.scales.is_none() && there.is_none();
                let start = if continued { zero.like(Lanes::from(sums.to_vec())) } else { zero };
                let steps = x.iter().enumerate();
                let product = steps.fold(start, |sum, (step, b)| sum.mma(&weight.fragment(k, atom, step), b));
                for (i, (product, sum)) in product.lanes().iter().zip(sums).enumerate() {
                    let more = match weight.scales {
                        Some(scales) => product.mul_add(scales[i / 2], *sum),
                        None if continued => product,
                        None => product + *sum,
                    };
                    *sum = there.map_or(more, |there| there.select(more, *sum));
                }
            }
        }
        out
    }

    /// The pairs of a tile of rows, less their zero points, and the scale of each of the lane's rows, unless they have been multiplied by it.
    fn decoded(&self, loaded: &Slice<'k>, tile: usize) -> WeightTile<'k> {
        let pairs = |half: usize| {
            let (codes, scale) = (&loaded.codes[2 * tile + half], &loaded.scales[2 * tile + half]);
            let zero = self.decoder.zero_point(scale).map(|zero| self.table.minus(zero));
            let pair =
                |word: &U32<'k>, byte: u32| self.table.less(self.table.pair(*word, 0x4440 | byte), zero);
            let pairs = codes.iter().flat_map(|word| (0..4).map(|byte| pair(word, byte)).collect::<Vec<_>>());
            let Some(selector) = self.selector else {
                return pairs.collect();
            };
            let scale = self.decoder.halves(scale, selector, self.kernel.dtype);
            pairs.map(|pair| self.table.times(pair, scale)).collect()
        };
        let scale = |half: usize| self.decoder.scale(self.k, &loaded.scales[2 * tile + half]);
        WeightTile { pairs: [0, 1].map(pairs), scales: self.selector.is_none().then(|| [0, 1].map(scale)) }
    }

    /// The lane's elements of a slice of eight rows of `x`.
    fn fragments(&self, x: Ptr<'k, Shared, u32>, atom: MmaAtom) -> Vec<Fragment<'k, MatrixB>> {
        let vectors = (0..self.kernel.config.words).flat_map(|i| x.at(u64::from(4 * i)).load::<u32>(4));
        let words: Vec<U32<'k>> = vectors.collect();
        words.chunks(2).map(|pair| Fragment::b(self.k, atom, pair)).collect()
    }

    /// Adds the sums of the warps of a tile, eight columns at a time, and stores them. `turn` says which half of the memory for sums is
    /// free: it is so once all threads have come to the barrier behind the sums of the other.
    fn finish(&self, tile: U32<'k>, turn: U32<'k>, sums: &[F32<'k>]) {
        let (k, p, config) = (self.k, self.p, self.kernel.config);
        let (rows, pitch) = (config.rows(), config.sums_pitch());
        let of_warp = ATOM_COLS * pitch;
        let origin = self.quad * (2 * pitch) + self.row;
        for atom in 0..config.col_tiles {
            let half = self.sums.at(((turn + atom) & 1) * (config.warps * of_warp));
            let mine = half.at(self.warp * of_warp + origin);
            for slab in 0..config.row_tiles {
                let first = ((slab * config.col_tiles + atom) * 4) as usize;
                for (i, sum) in (0u32..).zip(&sums[first..first + 4]) {
                    let at = i % 2 * pitch + slab * ATOM_ROWS + i / 2 * (ATOM_ROWS / 2);
                    mine.at(u64::from(at)).set(*sum);
                }
            }
            k.barrier();
            // Columns that a warp reads lie four apart, so that they are in different banks.
            let (shift, i) = (rows.trailing_zeros(), k.thread_idx());
            let (row, of_half) = (i & (rows - 1), i >> shift);
            let col = ((of_half & 1) << 2) + (of_half >> 1);
            let (result, column) = (col + ATOM_COLS * atom, tile * rows + row);
            k.if_(i.lt(ATOM_COLS * rows) & result.lt(p.m) & column.lt(p.n), || {
                let from = half.at(col * pitch + row);
                let parts = (0..config.warps).map(|warp| from.at(u64::from(warp * of_warp)).get::<f32>());
                let sum = k.tree("sums of warps", parts.collect::<Vec<_>>(), |a, b| a + b);
                self.store(result, column, sum);
            });
        }
    }

    /// A result, or the sum of a part.
    fn store(&self, row: U32<'k>, column: U32<'k>, sum: F32<'k>) {
        let (k, p) = (self.k, self.p);
        let times = self.kernel.groups.format.times(self.kernel.dtype);
        let sum = if times == 1.0 { sum } else { sum * times.recip() };
        let sum = self.tensor_scale.map_or(sum, |factor| sum * factor);
        let sum = if self.kernel.bias { sum + p.bias.at(column).get::<f32>() } else { sum };
        let row = if self.kernel.parts { row + k.block_idx_y() * p.m } else { row };
        p.y.at(row.mul_wide(p.n) + column.to_u64()).set(sum);
    }
}
