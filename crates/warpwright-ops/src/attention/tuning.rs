//! Which configuration computes what: pure functions of element type, head dimension and target.

use warpwright_dsl::prelude::*;

use super::simt::LANES;
pub use super::simt::Simt;
pub use super::tensor_core::TensorCore;

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
    TensorCore(TensorCore),
}

impl Config {
    /// Threads of a block.
    pub const fn threads(self) -> u32 {
        match self {
            Self::Simt(simt) => simt.threads,
            Self::TensorCore(tensor) => tensor.threads(),
        }
    }

    /// Rows of a block.
    pub const fn rows(self) -> u32 {
        match self {
            Self::Simt(simt) => simt.rows(),
            Self::TensorCore(tensor) => tensor.rows(),
        }
    }

    /// Columns of a tile.
    pub const fn tile_columns(self) -> u32 {
        match self {
            Self::Simt(simt) => simt.tile_columns(),
            Self::TensorCore(tensor) => tensor.columns,
        }
    }

    /// Bytes of dynamic shared memory, with so many tiles of own rows.
    pub const fn shared_bytes(self, dtype: DType, own: u32) -> u32 {
        match self {
            Self::Simt(simt) => simt.shared_elements(own) * accumulate_bytes(dtype),
            Self::TensorCore(tensor) => tensor.shared_elements(own) * 2,
        }
    }

    /// Elements of an access to global memory.
    pub const fn vector(self) -> u32 {
        match self {
            Self::Simt(simt) => simt.vector,
            Self::TensorCore(_) => 8,
        }
    }

    /// Elements of a row of a tile.
    pub const fn width(self) -> u32 {
        match self {
            Self::Simt(simt) => simt.width,
            Self::TensorCore(tensor) => tensor.width,
        }
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::Simt(simt) => simt.name(),
            Self::TensorCore(tensor) => tensor.name(),
        }
    }
}

/// What a block does, as far as it decides how much it can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// The forward kernel: one tile of own rows, one sum.
    Forward,
    /// The sweep for the gradients of queries: two tiles of own rows, one sum.
    Queries,
    /// The sweep for the gradients of keys and values: two tiles of own rows, two sums.
    KeysAndValues,
    /// That for the gradients of keys alone: two tiles of own rows, one sum.
    Keys,
    /// That for the gradients of values alone: one tile of own rows, one sum.
    Values,
}

impl Work {
    /// The sweeps for the gradients of keys and values: where both do not fit the registers, one after the other.
    pub const fn of_keys(config: Config) -> &'static [Self] {
        match config {
            Config::TensorCore(TensorCore { width: 256, .. }) => &[Self::Keys, Self::Values],
            _ => &[Self::KeysAndValues],
        }
    }

    /// Tiles of own rows.
    pub const fn own(self) -> u32 {
        if matches!(self, Self::Forward | Self::Values) { 1 } else { 2 }
    }

    const fn sums(self) -> u32 {
        if matches!(self, Self::KeysAndValues) { 2 } else { 1 }
    }

    const fn products(self) -> u32 {
        self.own()
    }
}

const fn accumulate_bytes(dtype: DType) -> u32 {
    if matches!(dtype, DType::F64) { 8 } else { 4 }
}

/// Shared memory that a block may use: all that there is, or half where that leaves room for two blocks.
const fn shared_limit(target: Target) -> u32 {
    match target.sm {
        0..=79 => 64 << 10,
        80 | 87 => 82 << 10,
        86 | 89 | 120.. => 99 << 10,
        _ => 113 << 10,
    }
}

/// Registers of a thread, of 32 bits, for sums and products; the rest is for operands and addresses.
const REGISTERS: u32 = 136;

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

/// The width of the tiles for head dimensions up to `width`.
pub fn tile_width(width: usize) -> Option<u32> {
    [32u32, 64, 128, 256].into_iter().find(|w| width <= *w as usize)
}

/// The configuration of ordinary arithmetic, `None` if nothing fits the target.
pub fn simt(dtype: DType, work: Work, target: Target, width: u32, vectors: bool) -> Option<Config> {
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
        let shared = Config::Simt(*simt).shared_bytes(dtype, work.own());
        columns >= chunk && words <= REGISTERS && shared <= shared_limit(target)
    };
    candidates.into_iter().find(fits).map(Config::Simt)
}

/// The configuration of tensor cores, `None` if the target has none that fits.
pub fn tensor_core(work: Work, target: Target, width: usize) -> Option<Config> {
    let width = [64u32, 128, 256].into_iter().find(|w| width <= *w as usize)?;
    let config = |warps, slabs, columns| TensorCore { warps, slabs, columns, width };
    let choice = match (work, width) {
        (Work::Forward, 256) if target.sm >= 90 => config(8, 1, 64),
        (Work::Forward, 256) => config(4, 1, 32),
        (Work::Forward, _) => config(4, 2, 64),
        (Work::Queries, 64) => config(4, 2, 64),
        (Work::Queries, 128) => config(4, 2, 32),
        (_, 256) if target.sm >= 90 => config(8, 1, 32),
        (_, 256) => config(4, 1, 16),
        (_, 64) => config(4, 2, 32),
        _ => config(4, 1, 64),
    };
    (target.sm >= TENSOR_CORE_SM).then_some(Config::TensorCore(choice))
}

/// The configurations for a problem, best first; the last one takes any tensor whose elements are aligned. Elements of a
/// row and between rows are multiples of `granularity`, a power of two.
pub fn configs(dtype: DType, work: Work, target: Target, width: usize, granularity: u32) -> Vec<Config> {
    let halves = matches!(dtype, DType::F16 | DType::BF16);
    let tensor = if halves && granularity >= 8 { tensor_core(work, target, width) } else { None };
    let Some(width) = tile_width(width) else { return Vec::new() };
    // Half types without 16-byte rows are rare where there are tensor cores: one kernel takes them all.
    let wide = granularity >= full_vector(dtype) && !(halves && target.sm >= TENSOR_CORE_SM);
    let vectors = wide.then(|| simt(dtype, work, target, width, true)).flatten();
    tensor.into_iter().chain(vectors).chain(simt(dtype, work, target, width, false)).collect()
}

/// Every configuration that [`configs`] can choose.
pub fn all(dtype: DType, work: Work, target: Target) -> Vec<Config> {
    let mut all: Vec<Config> =
        [32, 64, 128, 256].into_iter().flat_map(|width| configs(dtype, work, target, width, 8)).collect();
    let mut seen = std::collections::HashSet::new();
    all.retain(|config| seen.insert(*config));
    all
}
