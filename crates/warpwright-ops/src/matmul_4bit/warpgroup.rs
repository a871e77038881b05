//! Products of more rows on the tensor cores of sm_90a: tensor copies bring codes and `x` to shared memory, warpgroups decode the codes to
//! registers, where they are the left operand, and multiply them with `x`.
//!
//! Of the eight neighbours of a row that four lanes share as an operand each has two, so that a lane takes a byte of every word of codes: all
//! four load the words, which costs no more than one does.
//!
//! A slice of the common dimension has one scale a row. Up to 64 rows of `x` it multiplies the sums of the slice in f32; of more that would be
//! more than the tensor cores leave time for, and it multiplies the numbers, which are rounded then. Of e4m3 scales a slice of 64 has four a row,
//! which multiply the numbers, exactly. While the tensor cores multiply a slice the codes of the next are decoded.
//!
//! Blocks stay: each takes one tile of the result after the other, and copies run ahead across the end of a tile. Of a result of few tiles
//! the blocks of a cluster share out the common dimension of one: each leaves its sums where its stages were, and adds up those of all
//! blocks, in their order, for its share of the rows of `x`.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Halves, PanelTile, Part, Pipeline, PipelineState, TensorMapArg, WARP, WarpgroupSums};

use super::scales::{Decoder, Groups, Loaded, ScaleArgs, fill_map};
use super::table::{self, PairTable, TABLE_BYTES};
use super::tuning::{CHUNK, WarpgroupConfig};

kernel_args! {
    /// `y = x W^T + bias`
    pub(super) struct WarpgroupArgs => WarpgroupParams {
        x: TensorMapArg, weight: TensorMapArg, scale: ScaleArgs, bias: In<Elem>, y: Out<Elem>,
        m: u32, n: u32,
        /// Chunks of the common dimension, and those of a block of a cluster.
        chunks: u32, part: u32,
        /// Tiles along the rows of `x`, and all tiles.
        across: u32, tiles: u32,
        /// Slices from one row of the weight to the next, as scales count them, and the logarithm of how many share one.
        group_pitch: u32, group_shift: u32,
    }
}

/// Threads of a warpgroup, and the rows of the weight that it multiplies.
const GROUP: u32 = 128;
const GROUP_ROWS: u32 = 64;
/// The first of the named barriers at which warpgroups meet on their own.
const MEETING: u32 = 1;
/// Columns of results that a warpgroup turns in shared memory at once.
const TURNED: u32 = 16;
/// Elements from one of them to the next: no two lanes meet in a bank.
const TURNED_PITCH: u32 = GROUP_ROWS + 4;
/// Bytes of them.
pub(super) const TURNED_BYTES: u32 = TURNED * TURNED_PITCH * 4;
/// Neighbouring results that a thread stores.
const VECTOR: u32 = 8;

/// A product of more rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Warpgroup {
    pub(super) dtype: DType,
    pub(super) groups: Groups,
    pub(super) config: WarpgroupConfig,
    /// Whether each slice has a scale of its own.
    pub(super) fine: bool,
    pub(super) bias: bool,
}

/// A tile of the result, and the block's part of the common dimension.
struct Tile<'k> {
    /// The first row of the weight, and the first of `x`.
    row: U32<'k>,
    col: U32<'k>,
    /// The first chunk, and how many there are.
    first: U32<'k>,
    chunks: U32<'k>,
}

/// Stages of codes and of `x`.
type Stages<'k> = (PipelineState<'k>, PipelineState<'k>);

/// The state of a warpgroup before the products of a slice.
#[derive(Clone)]
struct Ahead<'k> {
    /// The chunk that codes are loaded from, the stage of `x`, and the one before, which products may still read.
    codes: PipelineState<'k>,
    x: PipelineState<'k>,
    before: PipelineState<'k>,
    /// The numbers of the slice, the codes of the next, and the scales of the chunk.
    a: Vec<U32<'k>>,
    words: Vec<U32<'k>>,
    loaded: Vec<Loaded<'k>>,
}
warpwright_dsl::carry!(Ahead { codes, x, before, a, words, loaded });

/// `sums` and `products`, whose rows have these scales.
fn added<'k>(sums: &[F32<'k>], products: &WarpgroupSums<'k>, scales: [F32<'k>; 2]) -> Vec<F32<'k>> {
    let each = (0..).zip(sums);
    each.map(|(i, sum)| products.at(i).mul_add(scales[(i / 2 % 2) as usize], *sum)).collect()
}

/// The state of a thread that does not change while its block runs.
struct Block<'k> {
    k: K<'k>,
    p: WarpgroupParams<'k>,
    kernel: Warpgroup,
    decoder: Decoder<'k>,
    table: PairTable<'k>,
    /// A chunk of codes, a row of which is a row of the weight, and what there is of `x` for a quarter of it.
    codes: PanelTile,
    x: PanelTile,
    /// Where the stages of both are, and where results are turned.
    codes_at: U32<'k>,
    x_at: U32<'k>,
    turned: U32<'k>,
    codes_pipeline: Pipeline<'k>,
    x_pipeline: Pipeline<'k>,
}

impl Warpgroup {
    /// Whether scales multiply numbers, so that sums stay with the tensor cores.
    fn scales_numbers(&self) -> bool {
        self.config.scales_weights() || self.groups.scales_numbers()
    }

    /// Type of the table of pairs: f16 where they are scaled and rounded, as it has more digits.
    fn table_dtype(&self) -> DType {
        if self.scales_numbers() && !self.groups.scales_numbers() { DType::F16 } else { self.dtype }
    }

    /// The tiles of codes and of `x` that copies bring.
    pub(super) fn tiles(&self) -> (PanelTile, PanelTile) {
        let tile =
            |dtype, outer| PanelTile { dtype, major: Major::K, outer, depth: PanelTile::width_of(dtype) };
        (tile(DType::U8, self.config.rows()), tile(self.dtype, self.config.cols))
    }
}

impl KernelDef for Warpgroup {
    type Args = WarpgroupArgs;

    fn spec(&self) -> KernelSpec {
        let ends = [self.fine, self.bias, false];
        let name = self.groups.product_name(self.dtype, &self.config.name(), ends);
        let dtypes = DTypes::NONE.with("bias", self.dtype).with("y", self.dtype);
        KernelSpec::new(name, BlockDim::x(self.config.threads()))
            .dtypes(self.groups.dtypes(dtypes))
            .cluster(self.config.cluster)
            .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, p: WarpgroupParams<'k>) {
        let config = self.config;
        let (codes, x) = self.tiles();
        // Stages of both, then the table, the map of nested scales, and the results that are turned.
        let codes_at = k.dynamic_shared_tiles();
        let x_at = codes_at + config.stages * codes.bytes();
        let table_at = codes_at + config.stage_bytes();
        let map_at = table_at + TABLE_BYTES;
        let of_table = self.table_dtype();
        table::fill(k, (self.groups.format, of_table), k.shared_at(table_at), config.threads());
        let map = self.groups.is_nested().then(|| k.shared_at::<f32>(map_at));
        map.into_iter().for_each(|map| fill_map(k, map));
        let turned = map_at + WarpgroupConfig::MAP_BYTES;
        let table = PairTable { k, dtype: of_table, copy: k.shared_at::<u8>(table_at).at(k.lane_idx() << 2) };
        let codes_pipeline = k.mbarrier_pipeline(config.stages);
        let x_pipeline = k.mbarrier_pipeline(config.x_stages);
        k.if_(k.thread_idx().eq(0), || {
            let warps = config.groups * GROUP / WARP;
            codes_pipeline.init(warps);
            x_pipeline.init(warps);
            k.publish_mbarriers();
        });
        k.after_previous_grid();
        // It reads the offset of nested scales, which the grid before may have written.
        let decoder = self.groups.decoder_with(p.scale, map);
        let kernel = *self;
        let block = Block {
            k,
            p,
            kernel,
            decoder,
            table,
            codes,
            x,
            codes_at,
            x_at,
            turned,
            codes_pipeline,
            x_pipeline,
        };
        block.run();
    }
}

impl<'k> Block<'k> {
    fn run(&self) {
        let (k, config) = (self.k, self.kernel.config);
        let multiplying = config.groups * GROUP;
        k.barrier();
        k.start_next_grid();
        let (fewer, more) = WarpgroupConfig::REGISTERS;
        k.if_else(
            k.thread_idx().ge(multiplying),
            || {
                k.release_registers(fewer);
                // Codes come from far: what they wait for is not what `x` waits for.
                k.if_(k.thread_idx().eq(multiplying), || self.fetch_codes());
                k.if_(k.thread_idx().eq(multiplying + WARP), || self.fetch_x());
            },
            || {
                k.claim_registers(more);
                self.multiply();
            },
        );
    }

    /// Runs `body` for each tile of the block, and hands on `state`. A cluster has one.
    fn for_each_tile<S: Carry<'k> + Clone>(&self, state: S, body: impl FnOnce(Tile<'k>, S) -> S) {
        let (k, p, config) = (self.k, self.p, self.kernel.config);
        let of = |tile: U32<'k>| {
            // Blocks beside each other read the same codes.
            let down = tile / p.across;
            let across = tile - down * p.across;
            let first = k.cluster_rank() * p.part;
            Tile {
                row: down * config.rows(),
                col: across * config.cols,
                first,
                chunks: (first + p.part).min(p.chunks) - first,
            }
        };
        if config.cluster > 1 {
            body(of(k.cluster_idx_x()), state);
        } else {
            let tiles = k.range(k.block_idx_x(), p.tiles, k.grid_dim_x());
            let _ = k.fold(tiles, state, |tile, state| body(of(tile), state));
        }
    }

    /// Copies the codes of all tiles, as places in their pipeline become free.
    fn fetch_codes(&self) {
        let (k, p, pipeline) = (self.k, self.p, self.codes_pipeline);
        self.for_each_tile(pipeline.start(k), |tile, state| {
            k.fold(k.range(0, tile.chunks, 1), state, |chunk, state| {
                let ready = pipeline.producer_acquire(state, self.codes.bytes());
                let to = state.stage().mul_add(self.codes.bytes(), self.codes_at);
                let along = (tile.first + chunk) * self.codes.depth;
                self.codes.fetch(p.weight, to, (tile.row, along), &[], ready);
                pipeline.next(state)
            })
        });
    }

    /// The same of `x`.
    fn fetch_x(&self) {
        let (k, p, pipeline) = (self.k, self.p, self.x_pipeline);
        let of_chunk = CHUNK / self.x.depth;
        self.for_each_tile(pipeline.start(k), |tile, state| {
            k.fold(k.range(0, tile.chunks * of_chunk, 1), state, |piece, state| {
                let ready = pipeline.producer_acquire(state, self.x.bytes());
                let to = state.stage().mul_add(self.x.bytes(), self.x_at);
                let along = (tile.first * of_chunk + piece) * self.x.depth;
                self.x.fetch(p.x, to, (tile.col, along), &[], ready);
                pipeline.next(state)
            })
        });
    }

    /// Multiplies all tiles, and stores the results.
    fn multiply(&self) {
        let k = self.k;
        let start = (self.codes_pipeline.start(k), self.x_pipeline.start(k));
        let tensor_scale = self.kernel.groups.tensor_scale(self.p.scale);
        self.for_each_tile(start, |tile, state| {
            let (state, sums) = self.sums(&tile, state);
            if self.kernel.config.cluster > 1 {
                let (share, sums) = self.sums_of_cluster(tile, &sums);
                self.finish(&share, &sums, tensor_scale);
                k.cluster_wait();
            } else {
                self.finish(&tile, &sums, tensor_scale);
            }
            state
        });
    }

    /// The lane's first row in a tile; it has another one eight further on.
    fn first_row(&self) -> U32<'k> {
        self.k.warp_idx() * 16 + (self.k.lane_idx() >> 2)
    }

    /// The sums of a tile, which lie as those of [`WarpgroupSums`].
    fn sums(&self, tile: &Tile<'k>, (codes, x): Stages<'k>) -> (Stages<'k>, Vec<F32<'k>>) {
        let (k, config) = (self.k, self.kernel.config);
        let groups = self.first_groups(tile);
        self.codes_pipeline.consumer_wait(codes);
        let loaded = self.load_scales(&groups, k.lit(0u32));
        let a = self.decoded(&self.words(codes, 0), &loaded[..2]);
        let ahead = Ahead { codes, x, before: x, a, words: self.words(codes, 1), loaded };
        let chunks = k.range(0, tile.chunks, 1);
        let (ahead, sums) = if self.kernel.scales_numbers() {
            let zeros = WarpgroupSums::zero_of(k, config.cols, self.kernel.dtype);
            let (ahead, sums) = k.fold(chunks, (ahead, zeros), |chunk, (ahead, sums)| {
                let ahead = self.chunk(tile, &groups, chunk, ahead, |_, a, b| {
                    sums.add_products_of(a, b);
                    sums.wait(1);
                });
                (ahead, sums)
            });
            sums.wait(0);
            (ahead, (0..config.cols / 2).map(|i| sums.at(i)).collect())
        } else {
            let zeros: Vec<F32<'k>> = (0..config.cols / 2).map(|_| k.lit(0.0)).collect();
            k.fold(chunks, (ahead, zeros), |chunk, (ahead, mut sums)| {
                let loaded = ahead.loaded.clone();
                let scales =
                    |slice| [0, 1].map(|row| self.decoder.scale(k, &self.of_slice(&loaded, slice)[row]));
                // The products of the slice before, which are added while those of this one are made. None are on their way from one chunk
                // to the next: the assembler would have those of each slice wait for the last.
                let mut before: Option<WarpgroupSums<'k>> = None;
                let ahead = self.chunk(tile, &groups, chunk, ahead, |slice, a, b| {
                    let products = WarpgroupSums::products_of(k, config.cols, a, b);
                    if let Some(before) = before.replace(products) {
                        before.wait(1);
                        sums = added(&sums, &before, scales(slice - 1));
                    }
                });
                if let Some(last) = before {
                    last.wait(0);
                    sums = added(&sums, &last, scales(CHUNK / config.slice - 1));
                }
                (ahead, sums)
            })
        };
        k.if_(k.lane_idx().eq(0), || self.x_pipeline.consumer_release(ahead.before));
        ((ahead.codes, ahead.x), sums)
    }

    /// Goes through the slices of a chunk: `multiply` starts the products of one, and waits for those of the slice before. While they are made
    /// the codes of the next are decoded, and those behind it loaded.
    fn chunk(
        &self,
        tile: &Tile<'k>,
        groups: &[U32<'k>; 2],
        chunk: U32<'k>,
        Ahead { mut codes, mut x, mut before, mut a, mut words, loaded }: Ahead<'k>,
        mut multiply: impl FnMut(u32, &[U32<'k>], Part<'k>),
    ) -> Ahead<'k> {
        let (k, config) = (self.k, self.kernel.config);
        let slices = CHUNK / config.slice;
        let leads = k.lane_idx().eq(0);
        let more = (chunk + 1).lt(tile.chunks);
        let next = self.load_scales(groups, (chunk + 1).min(tile.chunks - 1));
        for slice in 0..slices {
            let depth = slice * config.slice % self.x.depth;
            if depth == 0 {
                self.x_pipeline.consumer_wait(x);
            }
            let b = self.x.descriptor(x.stage().mul_add(self.x.bytes(), self.x_at));
            let b = if depth > 0 { b + self.x.step(depth) } else { b };
            multiply(slice, &a, (PanelTile { depth: config.slice, ..self.x }, b));
            if depth == 0 {
                // The products with the last stage have been made.
                let there = if slice > 0 { leads } else { leads & chunk.gt(0) };
                k.if_(there, || self.x_pipeline.consumer_release(before));
                before = x;
            }
            if depth + config.slice == self.x.depth {
                x = self.x_pipeline.next(x);
            }
            let of_next = if slice + 1 < slices { self.of_slice(&loaded, slice + 1) } else { &next[..2] };
            a = self.decoded(&words, of_next);
            words = match (slice + 2).checked_sub(slices) {
                None => self.words(codes, slice + 2),
                Some(behind) => {
                    if behind == 0 {
                        k.warp_barrier();
                        k.if_(leads, || self.codes_pipeline.consumer_release(codes));
                        codes = self.codes_pipeline.next(codes);
                        k.if_(more, || self.codes_pipeline.consumer_wait(codes));
                    }
                    let none = || words.iter().map(|_| k.lit(0u32)).collect();
                    k.if_else(more, || self.words(codes, behind), none)
                }
            };
        }
        Ahead { codes, x, before, a, words, loaded: next }
    }

    /// The scales of a slice, of all of its chunk.
    fn of_slice<'s>(&self, loaded: &'s [Loaded<'k>], slice: u32) -> &'s [Loaded<'k>] {
        &loaded[2 * slice as usize..][..2]
    }

    /// The first slice of the tile of each of the lane's rows, as scales count them. Rows behind the last are computed, and not stored.
    fn first_groups(&self, tile: &Tile<'k>) -> [U32<'k>; 2] {
        let (p, slices) = (self.p, CHUNK / self.kernel.config.slice);
        [0, GROUP_ROWS / 8].map(|down| {
            let row = (tile.row + self.first_row() + down).min(p.n - 1);
            row.mul_add(p.group_pitch, tile.first * slices)
        })
    }

    /// Loads the scales of a chunk of the tile: of each slice, those of the lane's rows.
    fn load_scales(&self, groups: &[U32<'k>; 2], chunk: U32<'k>) -> Vec<Loaded<'k>> {
        let slices = CHUNK / self.kernel.config.slice;
        let firsts = groups.map(|first| chunk.mul_add(slices, first));
        if self.kernel.groups.scales_numbers() {
            let rows = firsts.map(|first| self.decoder.load_e4m3_vector(first));
            return (0..slices as usize)
                .flat_map(|slice| rows.each_ref().map(|row| row[slice].clone()))
                .collect();
        }
        let shift = (!self.kernel.fine).then_some(self.p.group_shift);
        (0..slices)
            .flat_map(|slice| firsts.map(|first| self.decoder.load_slice(first, slice, shift)))
            .collect()
    }

    /// The words of codes of a slice of the chunk at `codes`: those of the lane's first row, then of the other.
    fn words(&self, codes: PipelineState<'k>, slice: u32) -> Vec<U32<'k>> {
        const PIECE: u32 = 16;
        let (k, lane) = (self.k, self.k.lane_idx());
        let pitch = self.codes.depth;
        let of_stage = codes.stage().mul_add(self.codes.bytes(), self.codes_at);
        // Pieces of a row are swizzled by its number, which the lane's rows have in common but for eights.
        let first = self.first_row().mul_add(pitch, of_stage) ^ ((lane >> 2) * PIECE);
        let pieces = self.kernel.config.slice / (2 * PIECE);
        let piece = |half: u32, piece: u32| {
            let at = first ^ ((slice * pieces + piece) * PIECE);
            k.shared_at::<u32>(at).at(u64::from(half * 8 * pitch / 4)).load::<u32>(PIECE / 4)
        };
        [0, 1].into_iter().flat_map(|half| (0..pieces).flat_map(move |i| piece(half, i))).collect()
    }

    /// The lane's numbers of a slice as the left operand, from its `words`.
    fn decoded(&self, words: &[U32<'k>], scales: &[Loaded<'k>]) -> Vec<U32<'k>> {
        let k = self.k;
        let selector = (k.lane_idx() & 3) | 0x4440;
        let of_row = |(words, loaded): (&[U32<'k>], &Loaded<'k>)| -> Vec<U32<'k>> {
            let minus = self.decoder.zero_point(loaded).map(|zero| self.table.minus(zero));
            let pairs = words.iter().map(|word| self.table.less(self.table.pair(*word, selector), minus));
            if self.kernel.groups.scales_numbers() {
                // A lane has a pair of every eight elements.
                let scales = self.decoder.all_halves(loaded, self.table.dtype);
                return pairs.enumerate().map(|(i, pair)| self.table.times(pair, scales[i / 2])).collect();
            }
            if !self.kernel.scales_numbers() {
                return pairs.collect();
            }
            let scale = self.decoder.scale(k, loaded);
            let times = self.kernel.groups.format.times(self.table.dtype);
            let scale = if times == 1.0 { scale } else { scale * times.recip() };
            let scaled = |pair| {
                let [low, high] = Halves::from_word(pair, self.table.dtype).widen();
                (low * scale).pack_with(high * scale, self.kernel.dtype)
            };
            pairs.map(scaled).collect()
        };
        let mut rows = words.chunks(words.len() / 2).zip(scales).map(of_row);
        let [upper, lower] = [0, 1].map(|_| rows.next().unwrap_or_default());
        let pairs = upper.chunks(2).zip(lower.chunks(2));
        pairs.flat_map(|(upper, lower)| [upper[0], lower[0], upper[1], lower[1]]).collect()
    }

    /// The block's share of the rows of `x` of a tile, and the sums of all blocks of the cluster for these. The threads have yet to wait for
    /// the cluster, whose other blocks read what this one has left in its shared memory. Threads that copied have ended, and nobody waits for
    /// them.
    fn sums_of_cluster(&self, tile: Tile<'k>, sums: &[F32<'k>]) -> (Tile<'k>, Vec<F32<'k>>) {
        const VECTOR: u32 = 4;
        let (k, config) = (self.k, self.kernel.config);
        let threads = config.groups * GROUP;
        let rank = k.cluster_rank();
        // One vector after the other, of all threads.
        let mine = k.shared_at::<f32>(self.codes_at).at(k.thread_idx() * VECTOR);
        let from_one_to_next = u64::from(threads * VECTOR);
        // Nothing is on its way to the stages, nor read from there.
        k.barrier_of(MEETING + config.groups, threads);
        for (i, vector) in (0..).zip(sums.chunks(VECTOR as usize)) {
            mine.at(i * from_one_to_next).store(Lanes::from(vector.to_vec()));
        }
        k.cluster_barrier();
        let vectors = sums.len() as u32 / VECTOR / config.cluster;
        let first = rank * (vectors * threads * VECTOR);
        let parts: Vec<Vec<F32<'k>>> = (0..config.cluster)
            .map(|block| {
                let theirs = mine.at(first).of_block(block);
                (0..u64::from(vectors))
                    .flat_map(|i| theirs.at(i * from_one_to_next).load::<f32>(VECTOR))
                    .collect()
            })
            .collect();
        k.cluster_arrive();
        let added =
            parts.into_iter().reduce(|sum, part| sum.into_iter().zip(part).map(|(a, b)| a + b).collect());
        let share = config.cols / config.cluster;
        (Tile { col: tile.col + rank * share, ..tile }, added.unwrap_or_default())
    }

    /// Stores the results of a tile. Neighbours along a row of `y` are rows of the sums, so these are turned in shared memory.
    fn finish(&self, tile: &Tile<'k>, sums: &[F32<'k>], tensor_scale: Option<F32<'k>>) {
        let (k, p) = (self.k, self.p);
        let (group, thread) = (k.thread_idx() / GROUP, k.thread_idx() % GROUP);
        let turned = k.shared_at::<f32>(group.mul_add(TURNED_BYTES, self.turned));
        let (down, right) = k.accumulator_origin();
        let mine = turned.at(right.mul_add(TURNED_PITCH, (k.warp_idx() & 3) * 16 + down));
        let (col, first) = (thread / (GROUP_ROWS / VECTOR), thread % (GROUP_ROWS / VECTOR) * VECTOR);
        let from = turned.at(col.mul_add(TURNED_PITCH, first));
        let column = tile.row + group * GROUP_ROWS + first;
        let scaled = self.kernel.scales_numbers();
        let times = if scaled { 1.0 } else { self.kernel.groups.format.times(self.kernel.dtype) };
        let columns = 2 * sums.len() as u32;
        for (turn, sums) in (0..).zip(sums.chunks((TURNED / 2) as usize)) {
            // The last columns have been read.
            k.barrier_of(group + MEETING, GROUP);
            for (i, sum) in (0u32..).zip(sums) {
                let (row, col) = (i / 2 % 2 * 8, i / 4 * 8 + i % 2);
                mine.at(u64::from(col * TURNED_PITCH + row)).set(*sum);
            }
            k.barrier_of(group + MEETING, GROUP);
            let result = tile.col + turn * TURNED + col;
            let there = result.lt(p.m) & column.lt(p.n);
            let there = if columns < TURNED { there & col.lt(columns) } else { there };
            k.if_(there, || {
                let values: Vec<F32<'k>> =
                    (0..VECTOR / 4).flat_map(|i| from.at(u64::from(4 * i)).load::<f32>(4)).collect();
                let values: Vec<F32<'k>> = if times == 1.0 {
                    values
                } else {
                    values.into_iter().map(|sum| sum * times.recip()).collect()
                };
                let values: Vec<F32<'k>> = match tensor_scale {
                    Some(factor) => values.into_iter().map(|sum| sum * factor).collect(),
                    None => values,
                };
                let y = p.y.at(result.mul_wide(p.n) + column.to_u64());
                let bias = self.kernel.bias.then(|| p.bias.at(column));
                let whole = (p.n % VECTOR).eq(0);
                k.if_else(
                    whole,
                    || {
                        let sums = match bias {
                            Some(bias) => {
                                let bias = bias.load::<f32>(VECTOR);
                                values.iter().zip(bias.iter()).map(|(sum, bias)| *sum + bias).collect()
                            }
                            None => values.clone(),
                        };
                        y.store(Lanes::from(sums));
                    },
                    || {
                        for (i, sum) in (0u32..).zip(&values) {
                            let there = (column + i).lt(p.n);
                            let at = u64::from(i);
                            let bias =
                                bias.map(|bias| bias.at(at).only_where(there, Fill::Zero).get::<f32>());
                            let sum = bias.map_or(*sum, |bias| *sum + bias);
                            y.at(at).only_where(there, Fill::Zero).set(sum);
                        }
                    },
                );
            });
        }
    }
}
