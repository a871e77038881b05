//! Which configuration computes what: pure functions of element type, head dimension and target.

use warpwright_dsl::prelude::*;
use warpwright_ptx::isa::DeviceLimits;

use super::kernels::mma::SLAB;
use super::kernels::simt::LANES;
pub use super::kernels::{
    DecodeMma, DecodeTma, Mma, Simt, SplitF16, Wgmma, WgmmaFused, WgmmaSweep, WgmmaSweeps,
};
pub use super::layout::{BlockLayout, BlockShape, DecodeLayout};
pub use super::score::ScoreKind;
use super::statistics_type;

/// Asynchronous copies and products 16 deep of both half types exist from here.
const TENSOR_CORE_SM: u32 = 80;
/// Largest head dimension.
pub const MAX_WIDTH: usize = 256;

/// How a block works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Config {
    /// With ordinary arithmetic.
    Simt(Simt),
    /// With the products of tensor cores.
    Mma(Mma),
}

/// How a block of the kernel for few queries works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecodeConfig {
    /// With ordinary arithmetic: all threads walk together.
    Simt(Simt),
    /// With the products of tensor cores: each warp walks alone.
    Mma(DecodeMma),
    /// The same, and tensor copies bring what it walks over.
    Tma(DecodeTma),
}

impl Config {
    /// The layout of a block.
    pub fn layout(&self) -> &dyn BlockLayout {
        match self {
            Self::Simt(layout) => layout,
            Self::Mma(layout) => layout,
        }
    }

    /// The specification of a kernel of that name and layout, whose argument `statistics` has the type of statistics.
    pub(super) fn spec(&self, name: String, dtype: DType, statistics: &'static str) -> KernelSpec {
        let layout = self.layout();
        KernelSpec::new(name, BlockDim::x(layout.threads()))
            .dtypes(DTypes::all(dtype).with(statistics, statistics_type(dtype)))
            .min_blocks_per_sm(layout.min_blocks_per_sm(dtype))
    }
}

impl DecodeConfig {
    /// The layout of a block.
    pub fn layout(&self) -> &dyn DecodeLayout {
        match self {
            Self::Simt(layout) => layout,
            Self::Mma(layout) => layout,
            Self::Tma(layout) => layout,
        }
    }
}

/// Up to here queries of a sequence share out its keys.
pub const FEW_QUERIES: usize = 16;
/// Most parts of the keys of a head.
const MAX_SPLITS: u64 = 128;

/// The configurations for few queries and keys of `dtype`, as [`configs`] gives them for many.
pub fn decode_configs(dtype: DType, target: Target, width: usize, granularity: u32) -> Vec<DecodeConfig> {
    let halves = matches!(dtype, DType::F16 | DType::BF16 | DType::F8E4M3) && target.sm >= TENSOR_CORE_SM;
    let of_tiles = [64u32, 128, 256].into_iter().find(|w| width <= *w as usize);
    let tensors = halves && granularity >= 8;
    let teams = of_tiles.filter(|_| tensors).and_then(|width| {
        // Copies on their way hide the latency of memory: four stages in one block of a multiprocessor, where they fit, are
        // faster than two in each of two blocks, which leave more parts to put together.
        let limit = whole_shared(target);
        let config = |stages| DecodeConfig::Mma(DecodeMma { warps: 4, stages, width });
        [4, 2].into_iter().map(config).find(|config| config.layout().shared_bytes(dtype, 1) + STATIC <= limit)
    });
    let Some(width) = tile_width(width) else { return Vec::new() };
    let simt = |vectors: bool| {
        let bytes = accumulate_bytes(dtype);
        let chunk = 16 / bytes;
        let vector = if vectors { chunk } else { 1 };
        let shapes = [(128, 8, false), (128, 4, false), (128, 4, true), (128, 2, true), (64, 2, true)];
        let shapes = shapes.map(|(threads, columns, shared_place)| {
            DecodeConfig::Simt(Simt { threads, slots: 1, columns, width, vector, shared_place })
        });
        let fits = |config: &DecodeConfig| {
            config.layout().tile_columns() >= LANES * chunk
                && config.layout().shared_bytes(dtype, 1) <= shared_limit(target)
        };
        shapes.into_iter().find(fits)
    };
    let without_teams = teams.is_none() && (tensors || dtype.is_float8());
    let vectors = granularity >= full_vector(dtype) && (!halves || without_teams);
    let wide = vectors.then(|| simt(true)).flatten();
    teams.into_iter().chain(wide).chain(simt(false)).collect()
}

/// Layouts whose tiles of keys and values of `dtype` tensor copies bring, for `rows` rows that read the same keys, of up to `width` elements, and pages of `page` keys. A
/// block has all rows where it can, up to 128. For up to 16 rows: a layout that fills a multiprocessor, and one of which it holds two
/// blocks.
pub fn tma_layouts(dtype: DType, target: Target, rows: u64, width: usize, page: usize) -> Vec<DecodeTma> {
    let fewest = SLABS.into_iter().find(|slabs| rows <= u64::from(slabs * SLAB)).unwrap_or(MOST_SLABS);
    let of = |slabs| tma_layouts_of(dtype, target, slabs, width, page);
    // What does not fit goes over the keys several times.
    let fitting = SLABS.into_iter().rev().filter(|slabs| *slabs <= fewest).map(of);
    fitting.into_iter().find(|layouts| !layouts.is_empty()).unwrap_or_default()
}

/// Slabs of rows of a block.
const SLABS: [u32; 4] = [1, 2, 4, MOST_SLABS];
const MOST_SLABS: u32 = 8;

fn tma_layouts_of(dtype: DType, target: Target, slabs: u32, width: usize, page: usize) -> Vec<DecodeTma> {
    const STAGES: std::ops::RangeInclusive<u32> = 2..=6;
    // Two warps for each scheduler where they share keys; one has enough to do with its own.
    let warps = if slabs == 1 { 4 } else { 8 };
    let copied = matches!(dtype, DType::F16 | DType::BF16 | DType::F8E4M3) && target.sm >= 90;
    let of_tiles = [64u32, 128, 256].into_iter().find(|w| width <= *w as usize);
    let Some(width) = of_tiles.filter(|_| copied) else { return Vec::new() };
    let deepest = |columns: u32, limit: u32| {
        let layout = |stages| DecodeTma { warps, slabs, stages, columns, width };
        STAGES.rev().map(layout).find(|layout| layout.shared_bytes(dtype, 1) + STATIC <= limit)
    };
    // More columns are more products that do not wait for each other.
    let alone = |limit| [32, 16].into_iter().filter(|c| *c as usize <= page).find_map(|c| deepest(c, limit));
    let limit = shared_limit(target);
    if is_data_center(target) && slabs > 1 {
        alone(whole_shared(target)).into_iter().collect()
    } else if is_data_center(target) {
        alone(whole_shared(target)).into_iter().chain(deepest(16, limit)).collect()
    } else {
        alone(limit).into_iter().collect()
    }
}

/// Static shared memory of those kernels, at most.
const STATIC: u32 = 4 << 10;

/// The layout for `units` tiles of rows with `keys` keys of `dtype` each, and in how many parts these are shared out: so that all
/// multiprocessors have as much to read. What a block does before and after that is counted as bytes that are not read meanwhile.
pub fn tma_decode(
    layouts: &[DecodeTma],
    dtype: DType,
    target: Target,
    units: u64,
    keys: u64,
) -> Option<(DecodeTma, u32)> {
    const BEGIN_AND_END: u64 = 42 << 10;
    const LAUNCH: u64 = 105 << 10;
    let slots = multiprocessors(target);
    let cost = |layout: &DecodeTma, splits: u64| {
        let round = u64::from(layout.columns * layout.teams());
        let bytes = |keys: u64| keys * u64::from(layout.width) * 2 * dtype.bytes() as u64;
        let share = bytes(keys.div_ceil(round * splits) * round);
        let blocks = (units * splits).div_ceil(slots);
        // The memory is busy even if a few multiprocessors are not.
        let reading = (blocks * share).max(bytes(units * keys) / slots * 106 / 100);
        // Two blocks begin and end beside each other, and while one does the other copies.
        let most = if layout.slabs == 1 { 2 } else { 1 };
        let resident = u64::from(whole_shared(target) / layout.shared_bytes(dtype, 1)).clamp(1, most);
        let ends = if blocks.min(resident) > 1 { BEGIN_AND_END / 2 } else { BEGIN_AND_END / 8 * 9 };
        let join = if splits > 1 { LAUNCH } else { 0 };
        reading + blocks * ends + join
    };
    let all = layouts.iter().flat_map(|layout| {
        let rounds = keys.div_ceil(u64::from(layout.columns * layout.teams()));
        (1..=rounds.clamp(1, MAX_SPLITS)).map(move |splits| (layout, splits))
    });
    let (layout, splits) = all.min_by_key(|(layout, splits)| cost(layout, *splits))?;
    Some((*layout, splits as u32))
}

/// Every configuration that [`decode_configs`] and [`tma_decode`] can choose.
pub fn all_decode(dtype: DType, target: Target) -> Vec<DecodeConfig> {
    let widths = [32, 64, 128, 256];
    let of_width =
        |width| [8, 4].map(|granularity| decode_configs(dtype, target, width, granularity)).concat();
    let mut all: Vec<_> = widths.into_iter().flat_map(of_width).collect();
    for page in [16, 32] {
        for slabs in SLABS {
            let rows = u64::from(slabs * SLAB);
            let layouts = widths.into_iter().flat_map(|width| tma_layouts(dtype, target, rows, width, page));
            all.extend(layouts.map(DecodeConfig::Tma));
        }
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|config| seen.insert(*config));
    all
}

/// In how many parts the keys of a head are shared out: blocks come in waves, and what a block does beside its tiles takes
/// as long as a tile or two of each team; so does putting parts together. `tiles` are those of the longest sequence.
pub fn splits(config: DecodeConfig, dtype: DType, target: Target, units: u64, keys: u64) -> u32 {
    let resident =
        u64::from(whole_shared(target) / config.layout().shared_bytes(dtype, 1).max(1)).clamp(1, 2);
    let slots = multiprocessors(target) * resident;
    let rounds = keys.div_ceil(u64::from(config.layout().tile_columns() * config.layout().teams())).max(1);
    let cost = |splits: u64| {
        let waves = (units * splits).div_ceil(slots);
        waves * (rounds.div_ceil(splits) + 2) + 2 * u64::from(splits > 1)
    };
    (1..=rounds.min(MAX_SPLITS)).min_by_key(|splits| cost(*splits)).unwrap_or(1) as u32
}

/// The results of a block, which decide how much it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// The forward kernel: one tile of stationary rows, one sum.
    Forward,
    /// The sweep for the gradients of queries: two tiles of stationary rows, one sum.
    Queries,
    /// The sweep for the gradients of keys and values: two tiles of stationary rows, two sums.
    KeysAndValues,
    /// That for the gradients of keys alone: two tiles of stationary rows, one sum.
    Keys,
    /// That for the gradients of values alone: one tile of stationary rows, one sum.
    Values,
    /// The gradient of the bias: two tiles of stationary rows, a sum of the shape of their products.
    Bias,
}

impl Work {
    /// The sweeps for the gradients of keys and values: where both do not fit the registers, one after the other.
    pub const fn of_keys(config: Config) -> &'static [Self] {
        match config {
            Config::Mma(Mma { width: 256, .. } | Mma { width: 128, vector: 4, .. }) => {
                &[Self::Keys, Self::Values]
            }
            _ => &[Self::KeysAndValues],
        }
    }

    /// The sweeps that read copies.
    pub const fn of_split_f16(width: u32) -> &'static [Self] {
        match width {
            128 => &[Self::Queries, Self::Keys, Self::Values],
            _ => &[Self::Queries, Self::KeysAndValues],
        }
    }

    /// The gradients of a sweep in the names of kernels.
    pub(super) const fn gradients(self) -> &'static str {
        match self {
            Self::Forward | Self::Queries => "q",
            Self::KeysAndValues => "kv",
            Self::Keys => "k",
            Self::Values => "v",
            Self::Bias => "bias",
        }
    }

    /// Tiles of stationary rows.
    pub const fn stationary(self) -> u32 {
        if matches!(self, Self::Forward | Self::Values) { 1 } else { 2 }
    }

    const fn sums(self) -> u32 {
        if matches!(self, Self::KeysAndValues) { 2 } else { 1 }
    }

    const fn products(self) -> u32 {
        self.stationary()
    }
}

const fn accumulate_bytes(dtype: DType) -> u32 {
    if matches!(dtype, DType::F64) { 8 } else { 4 }
}

/// Shared memory that a block may use: half of a multiprocessor's where that holds its tiles, all that there is elsewhere.
const fn shared_limit(target: Target) -> u32 {
    let device = DeviceLimits::of(target);
    if is_data_center(target) { device.shared_per_multiprocessor / 2 } else { device.shared_per_block }
}

/// Shared memory of a block that has a multiprocessor for itself.
const fn whole_shared(target: Target) -> u32 {
    DeviceLimits::of(target).shared_per_block
}

/// Whether half of a multiprocessor's shared memory holds the tiles of a block.
const fn is_data_center(target: Target) -> bool {
    whole_shared(target) > 128 << 10
}

fn multiprocessors(target: Target) -> u64 {
    DeviceLimits::of(target).multiprocessors.into()
}

/// Registers of a thread, of 32 bits, for sums and products; the rest is for operands and addresses.
const REGISTERS: u32 = 136;

/// The same beside the hyperbolic tangent of soft capping in double precision.
const CAPPED: u32 = 120;

/// Slots and columns of a thread, the most work for each access to shared memory first.
const SHAPES: [(u32, u32); 10] =
    [(8, 8), (4, 8), (8, 4), (4, 4), (2, 8), (2, 4), (1, 8), (1, 4), (2, 2), (1, 2)];

/// Elements of the widest access of ordinary arithmetic to global memory.
const fn full_vector(dtype: DType) -> u32 {
    16 / accumulate_bytes(dtype)
}

/// Elements of an access to global memory, in every kernel that is recorded.
pub fn vectors(dtype: DType) -> &'static [u32] {
    match dtype {
        DType::F64 => &[2, 1],
        DType::F32 => &[4, 1],
        _ => &[8, 4, 1],
    }
}

/// The widths of tiles of ordinary arithmetic.
pub const TILE_WIDTHS: [u32; 4] = [32, 64, 128, 256];

/// The width of the tiles for head dimensions up to `width`.
pub fn tile_width(width: usize) -> Option<u32> {
    TILE_WIDTHS.into_iter().find(|w| width <= *w as usize)
}

/// The configuration of ordinary arithmetic, `None` if nothing fits the target.
pub fn simt(
    dtype: DType,
    work: Work,
    target: Target,
    width: u32,
    vectors: bool,
    kind: ScoreKind,
) -> Option<Config> {
    let registers = if kind.softcap && dtype == DType::F64 { CAPPED } else { REGISTERS };
    let bytes = accumulate_bytes(dtype);
    let chunk = 16 / bytes;
    let vector = if vectors { chunk } else { 1 };
    let candidates = [false, true].into_iter().flat_map(|shared_place| {
        [128, 64].into_iter().flat_map(move |threads| {
            SHAPES.into_iter().map(move |(slots, columns)| Simt {
                threads,
                slots,
                columns,
                width,
                vector,
                shared_place,
            })
        })
    });
    let fits = |simt: &Simt| {
        let Simt { slots, columns, .. } = *simt;
        let words = (work.sums() * slots * width / LANES + work.products() * slots * columns) * bytes / 4;
        let shared = simt.shared_bytes(dtype, work.stationary());
        columns >= chunk && words <= registers && shared <= shared_limit(target)
    };
    candidates.into_iter().find(fits).map(Config::Simt)
}

/// The configuration of tensor cores, `None` if the target has none that fits. The hyperbolic tangent of soft capping takes so many
/// instructions and registers that more warps with less work each are faster. Draws of dropout, and
/// the loops around the gradient of a bias, do not leave the registers for larger tiles.
pub fn mma(work: Work, target: Target, width: usize, kind: ScoreKind) -> Option<Config> {
    let width = [64u32, 128, 256].into_iter().find(|w| width <= *w as usize)?;
    let config = |warps, slabs, columns| Mma { warps, slabs, columns, width, vector: 8 };
    let choice = match (work, width) {
        (Work::Forward, 64) if kind.softcap => config(4, 2, 32),
        (Work::Forward, 128) if kind.softcap => config(4, 1, 64),
        (Work::Forward | Work::Queries, 64) if kind.softcap || kind.dropout => config(4, 1, 64),
        (Work::Queries, 128) if kind.dropout && !kind.softcap => config(4, 1, 64),
        (Work::Bias, 64) => config(4, 1, 64),
        (_, 64 | 128) if kind.softcap => config(4, 1, 32),
        (Work::Forward, 256) if target.sm >= 90 && is_data_center(target) => config(8, 1, 64),
        (Work::Forward, 256) => config(4, 1, 32),
        (Work::Forward, 128) => config(4, 2, 32),
        (Work::Forward, _) => config(4, 2, 64),
        (Work::Queries, 64) => config(4, 2, 64),
        (Work::Queries | Work::Bias, 128) => config(4, 2, 32),
        (_, 256) if target.sm >= 90 && is_data_center(target) => config(8, 1, 32),
        (_, 256) => config(4, 1, 16),
        (_, 64) => config(4, 2, 32),
        _ => config(4, 1, 32),
    };
    (target.sm >= TENSOR_CORE_SM).then_some(Config::Mma(choice))
}

/// The same for `f32`, whose tiles are twice as large, and whose operands are split into two. Heads of up to 32 elements would fill half a
/// tile, those of more than 128 lack the registers. What modifications need does not fit beside two slabs of queries, nor, but for masks,
/// beside both sums of keys and values with 32 columns.
pub fn mma_tf32(work: Work, target: Target, width: usize, kind: ScoreKind) -> Option<Config> {
    let width = match width {
        33..=64 => 64,
        65..=128 => 128,
        _ => return None,
    };
    let shapes: &[_] = match (work, width) {
        (Work::Forward, 64) => &[(8, 1, 64), (8, 1, 32), (4, 1, 32), (4, 1, 16)],
        (Work::Queries, 64) if kind == ScoreKind::default() && target.sm < 100 => {
            &[(4, 2, 32), (4, 1, 32), (4, 1, 16)]
        }
        (Work::KeysAndValues, 64) if kind.softcap || kind.dropout || kind.packed => &[(4, 1, 16)],
        (_, 64) => &[(4, 1, 32), (4, 1, 16)],
        (Work::Forward, _) => &[(4, 1, 32), (4, 1, 16)],
        _ => &[(4, 1, 16)],
    };
    let config = |&(warps, slabs, columns): &(u32, u32, u32)| {
        Config::Mma(Mma { warps, slabs, columns, width, vector: 4 })
    };
    let within = |limit: u32| {
        shapes.iter().map(config).find(|c| c.layout().shared_bytes(DType::F32, work.stationary()) <= limit)
    };
    let whole = || if is_data_center(target) { within(whole_shared(target)) } else { None };
    if target.sm < TENSOR_CORE_SM { None } else { within(shared_limit(target)).or_else(whole) }
}

/// The layout for `f32` whose operands another kernel has split, and the one for what does not suit that; `None` where there is none.
pub fn split_f16(work: Work, target: Target, width: usize, kind: ScoreKind) -> Option<(SplitF16, Mma)> {
    let Config::Mma(tensors) = mma_tf32(work, target, width, kind)? else { return None };
    let (warps, slabs, columns) = match (work, tensors.width) {
        (Work::Forward, 64) => (8, 1, 64),
        (Work::Queries, 64) => (4, 1, 64),
        (_, 64) if !kind.softcap => (4, 1, 32),
        _ => (4, 1, 16),
    };
    Some((SplitF16 { warps, slabs, columns, width: tensors.width }, tensors))
}

/// From here on, queries and keys are enough for copies of the tensors to be worth it. The gradients read each of them more often.
pub const ENOUGH_ROWS_FORWARD: u32 = 384;
/// The same for the gradients.
pub const ENOUGH_ROWS_BACKWARD: u32 = 256;

/// Head dimensions of queries and keys, and of values, that the forward kernel of sm_90a is compiled for. In between, what others hold is
/// multiplied with zeros: every multiple of 16 would be four times as many kernels for at most a fifth of the products.
pub const FORWARD_WIDTHS: [[u32; 2]; 9] =
    [[64; 2], [80; 2], [96; 2], [112; 2], [128; 2], [160; 2], [192, 128], [192; 2], [256; 2]];

/// The same of the sweeps for the gradients. Heads of 65 to 112 elements come here with few queries alone.
pub const SWEEP_WIDTHS: [[u32; 2]; 6] = [[64; 2], [128; 2], [160; 2], [192, 128], [192; 2], [256; 2]];

/// The same of the kernel for all gradients at once, for the longer of both rows.
pub const FUSED_WIDTHS: [u32; 5] = [64, 80, 96, 112, 128];

/// The first of `all` that holds rows of `widths` elements.
fn holding(all: &[[u32; 2]], widths: [u32; 2]) -> Option<[u32; 2]> {
    all.iter().copied().find(|most| widths[0] <= most[0] && widths[1] <= most[1])
}

/// Layouts of the forward kernel of sm_90a for head dimensions up to `widths`, of queries and keys and of values, the one that is chosen
/// first; for comparisons.
pub fn wgmma_layouts(widths: [u32; 2]) -> Vec<Wgmma> {
    let Some([width, value_width]) = holding(&FORWARD_WIDTHS, widths) else { return Vec::new() };
    let layout = |(groups, columns, stages): (u32, u32, u32)| {
        let lazy_rescale = value_width > 128;
        let ping_pong = true;
        let chosen =
            Wgmma { groups, columns, width, value_width, stages, ping_pong, lazy_rescale, persistent: false };
        let others = [(true, !lazy_rescale), (false, lazy_rescale), (false, !lazy_rescale)]
            .map(|(ping_pong, lazy_rescale)| Wgmma { ping_pong, lazy_rescale, ..chosen });
        std::iter::once(chosen).chain(others)
    };
    let of_width: &[(u32, u32, u32)] = match [width, value_width] {
        [64, _] => &[(3, 128, 3), (2, 128, 3)],
        [80, _] => &[(3, 112, 3), (3, 96, 3), (2, 128, 2), (2, 160, 2)],
        [96, _] => &[(3, 112, 3), (3, 96, 3), (2, 128, 2), (2, 144, 2)],
        [112, _] => &[(2, 128, 2), (2, 144, 2), (3, 80, 3)],
        [128, _] => &[(2, 128, 2), (2, 112, 2)],
        [160, _] => &[(2, 112, 2), (2, 96, 2), (2, 80, 2)],
        [192, 128] => &[(2, 128, 2), (2, 112, 2)],
        [192, _] => &[(2, 112, 2), (2, 96, 2), (2, 80, 2)],
        _ => &[(2, 64, 2), (2, 80, 2)],
    };
    let both = |layout| [layout, Wgmma { persistent: true, ..layout }];
    of_width.iter().copied().flat_map(layout).flat_map(both).collect()
}

/// How the forward kernel of sm_90a lays out its blocks for head dimensions up to `widths`, of queries and keys and of values. A bias, whose
/// places take registers, gets smaller blocks, and so do few tiles of keys of which a mask leaves out many.
pub fn wgmma(widths: [u32; 2], bias: bool, few: bool) -> Option<Wgmma> {
    let layout = wgmma_layouts(widths).first().copied()?;
    Some(match [layout.width, layout.value_width] {
        [64, _] if bias => Wgmma { groups: 2, columns: 112, ..layout },
        [64, _] if few => Wgmma { groups: 2, ..layout },
        [80 | 96, _] if bias => Wgmma { groups: 2, columns: 96, stages: 2, ..layout },
        [112 | 128, _] | [192, 128] if bias => Wgmma { columns: 96, ..layout },
        [160 | 192, _] if bias => Wgmma { columns: 80, ..layout },
        _ => layout,
    })
}

/// The same under a mask of tiles, which tiles of keys divide; rows of a block are in two of them at most.
pub fn wgmma_of_blocks(widths: [u32; 2]) -> Option<Wgmma> {
    let layout = wgmma_layouts(widths).first().copied()?;
    let columns = match layout.width {
        160 | 256 => 64,
        192 if layout.value_width > 128 => 64,
        _ => 128,
    };
    let (groups, stages) = if layout.width == 64 { (3, 3) } else { (2, 2) };
    Some(Wgmma { groups, columns, stages, ..layout })
}

/// Whether blocks go on to other tiles of `queries` queries when they have done one, so that the copies for the next run while the last
/// one is stored. Under a mask tiles differ, and many of them are shared out better as multiprocessors become free.
pub fn is_persistent(groups: Wgmma, uneven: bool, queries: u32) -> bool {
    let most = match groups.width {
        64 | 80 | 96 => u32::MAX,
        112 | 128 | 160 | 192 => 16,
        _ => 64,
    };
    !uneven || queries.div_ceil(groups.rows()) <= most
}

/// Persistent blocks: one for each multiprocessor.
pub(super) fn blocks(target: Target) -> u32 {
    multiprocessors(target) as u32
}

/// Up to here keys are few.
pub const FEW_KEYS: u32 = 1024;

/// Every layout that [`wgmma`] or [`wgmma_of_blocks`] can choose for modifications.
pub fn all_wgmma(dtype: DType, target: Target, kind: ScoreKind) -> Vec<Wgmma> {
    if !matches!(dtype, DType::F16 | DType::BF16) || target.sm != 90 {
        return Vec::new();
    }
    if kind.blocks {
        return FORWARD_WIDTHS.into_iter().filter_map(wgmma_of_blocks).collect();
    }
    let of = |few| FORWARD_WIDTHS.into_iter().filter_map(move |widths| wgmma(widths, kind.bias, few));
    let mut all: Vec<_> = of(false).collect();
    all.extend(of(kind.band).filter(|layout| !of(false).any(|other| other == *layout)));
    all
}

/// The sweeps for the gradients with `wgmma` for head dimensions up to `widths`, of queries and keys and of values, `None` if the target or
/// the type has none, or if others are faster. Under a mask of `blocks` tiles of columns divide its tiles.
pub fn wgmma_sweeps(dtype: DType, target: Target, widths: [u32; 2], blocks: bool) -> Option<WgmmaSweeps> {
    let halves = matches!(dtype, DType::F16 | DType::BF16);
    let [width, value_width] = holding(&SWEEP_WIDTHS, widths)?;
    let of = |columns, tiles| WgmmaSweep { groups: 2, columns, tiles, width, value_width, held: false };
    let held = |groups: WgmmaSweep| WgmmaSweep { held: true, ..groups };
    let choice = match [width, value_width] {
        [64, _] => WgmmaSweeps { queries: of(64, 8), keys: held(of(64, 8)), values: None },
        [128, _] => WgmmaSweeps { queries: held(of(64, 6)), keys: of(32, 8), values: None },
        [160, _] | [192, 128] => WgmmaSweeps { queries: of(64, 5), keys: of(32, 8), values: None },
        // From here on both sums would not leave enough registers.
        [192, _] => WgmmaSweeps {
            queries: of(64, 5),
            keys: of(if blocks { 32 } else { 48 }, 6),
            values: Some(of(64, 6)),
        },
        _ => WgmmaSweeps { queries: of(32, 6), keys: of(32, 6), values: Some(of(32, 8)) },
    };
    (halves && target.sm == 90).then_some(choice)
}

/// Layouts of the kernel for all gradients at once, for head dimensions up to `width`, the one that is chosen first; for comparisons.
pub fn wgmma_fused_layouts(width: usize) -> Vec<WgmmaFused> {
    let Some(most) = FUSED_WIDTHS.into_iter().find(|most| width <= *most as usize) else { return Vec::new() };
    let of = |columns, ahead| WgmmaFused { columns, tiles: 4, width: most, ahead };
    match most {
        64 => vec![of(128, false), of(96, false)],
        128 => vec![of(64, false), of(64, true)],
        _ => vec![of(80, false), of(64, false), of(64, true)],
    }
}

/// The layout of the kernel for all gradients at once, `None` where the sweeps are faster.
pub fn wgmma_fused(width: usize, queries: u32) -> Option<WgmmaFused> {
    let enough = queries >= ENOUGH_QUERIES_FUSED;
    wgmma_fused_layouts(width).first().copied().filter(|_| enough)
}

/// From here on, queries are enough for one sweep: the fewest that were timed.
pub const ENOUGH_QUERIES_FUSED: u32 = 512;

/// Bytes of queries, of gradients of the result and of sums that heads side by side may have. What leaves the L2 cache is read once for
/// all blocks of a head that run at once.
const HEADS_BYTES: u64 = 64 << 20;

/// How many heads of keys are side by side in the order of the blocks of the kernel for all gradients at once: a power of two that divides
/// `heads`. The more there are, the fewer blocks of one head begin together, of which each waits for the one before; and the more queries are in
/// use at once.
///
/// Heads of 128 elements have about as many blocks side by side as there are multiprocessors, so that these have whole heads at once.
/// Heads of up to 64 elements, whose blocks have half as many steps in which to come apart, eight times as many.
pub fn heads_at_once(heads: u32, group: u32, [queries, keys]: [u32; 2], width: u32) -> u32 {
    let blocks = if width <= 64 { 1024 } else { 128 };
    let at_once = (blocks / keys.div_ceil(WgmmaFused::ROWS).max(1)).max(1);
    let bytes = (u64::from(group) * u64::from(queries.max(1))).saturating_mul(u64::from(width) * 8);
    let in_cache = u32::try_from(HEADS_BYTES / bytes.max(1)).unwrap_or(u32::MAX).max(1);
    let most = at_once.min(in_cache);
    (1 << most.ilog2()).min(1 << heads.trailing_zeros().min(31))
}

/// The configurations for a problem, best first; the last one takes any tensor whose elements are aligned. Elements of a
/// row and between rows are multiples of `granularity`, a power of two.
pub fn configs(
    dtype: DType,
    work: Work,
    target: Target,
    width: usize,
    granularity: u32,
    kind: ScoreKind,
) -> Vec<Config> {
    let halves = matches!(dtype, DType::F16 | DType::BF16);
    let tensor = match dtype {
        DType::F32 if granularity >= 4 => mma_tf32(work, target, width, kind),
        _ if halves && granularity >= 8 => mma(work, target, width, kind),
        _ => None,
    };
    let Some(width) = tile_width(width) else { return Vec::new() };
    // Half types without 16-byte rows are rare where there are tensor cores: one kernel takes them all.
    let wide = granularity >= full_vector(dtype) && !(halves && target.sm >= TENSOR_CORE_SM);
    let vectors = wide.then(|| simt(dtype, work, target, width, true, kind)).flatten();
    tensor.into_iter().chain(vectors).chain(simt(dtype, work, target, width, false, kind)).collect()
}

/// Every configuration that [`configs`] can choose.
pub fn all(dtype: DType, work: Work, target: Target, kind: ScoreKind) -> Vec<Config> {
    let of = |width| configs(dtype, work, target, width, 8, kind);
    let mut all: Vec<Config> = [32, 64, 128, 256].into_iter().flat_map(of).collect();
    let mut seen = std::collections::HashSet::new();
    all.retain(|config| seen.insert(*config));
    all
}
