//! Masks given as data: which tiles of keys each tile of queries sees, and the bits of those that are seen in part.

use std::collections::HashMap;

use warpwright_runtime::{Stream, Tensor};

use super::kernels::dropout::Keys;
use super::options::{Common, parameter};
use super::score::{BlockMaskArgs, MASK_TILE, PART_WORDS};
use super::{AttentionInputs, AttentionOptions};
use crate::{Error, PlanError};

const NAME: &str = "block_mask";
/// Queries, and keys, of a tile.
const TILE: usize = MASK_TILE as usize;
/// Words of a row of bits.
const ROW_WORDS: usize = TILE / u32::BITS as usize;
/// Words of the bits of a tile, a row for each query.
const HALF: usize = TILE * ROW_WORDS;
/// The number of the bits of a tile that is seen as a whole.
const WHOLE: i32 = -1;

/// The extents of a [`BlockMask`] beside queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockMaskShape {
    /// 1, or the batch of the queries.
    pub batch: usize,
    /// 1, or the heads of the queries.
    pub heads: usize,
    /// Tiles of bits that there is room for.
    pub tiles: usize,
}

impl BlockMaskShape {
    /// Elements of `key_tiles`, `query_tiles` and `bits`; `None` beyond 2^63 bytes.
    pub(crate) fn lens(self, extents: [usize; 2]) -> Option<[usize; 3]> {
        let [of_queries, of_keys] = extents.map(|extent| extent.div_ceil(TILE));
        let lists = self.batch.checked_mul(self.heads)?;
        let list = |rows: usize, columns: usize| lists.checked_mul(rows)?.checked_mul(pitch(columns));
        let lens = [
            list(of_queries, of_keys)?,
            list(of_keys, of_queries)?,
            self.tiles.checked_mul(PART_WORDS as usize)?,
        ];
        lens.iter().all(|len| *len <= isize::MAX as usize / 4).then_some(lens)
    }

    /// Refuses what is no mask of a problem with these extents and options.
    pub(super) fn check(
        self,
        options: &AttentionOptions,
        [batch, heads, queries, keys]: [usize; 4],
    ) -> Result<(), PlanError> {
        let kind = options.kind();
        let beside = [
            (kind.band, "causal or window"),
            (kind.bias, "bias"),
            (kind.lengths, "key_lengths"),
            (kind.packed, "packed"),
            (options.paged.is_some(), "paged"),
            (options.float8.is_some(), "float8"),
        ];
        if let Some((_, name)) = beside.iter().find(|(there, _)| *there) {
            let expected = "neither another mask nor a bias, packed, paged or 8-bit keys beside it";
            return Err(parameter(NAME, format!("beside {name}"), expected));
        }
        if ![1, batch].contains(&self.batch) || ![1, heads].contains(&self.heads) {
            let got = format!("{} x {} of {batch} x {heads}", self.batch, self.heads);
            return Err(parameter(NAME, got, "batch and heads of q, each of them or 1"));
        }
        // Numbers of lists and of tiles have 32 bits, the latter with a sign.
        let lists = self.batch.checked_mul(self.heads);
        let most = lists.and_then(|lists| lists.checked_mul(queries.max(keys).div_ceil(TILE)));
        let small = most.is_some_and(|most| u32::try_from(most).is_ok()) && i32::try_from(self.tiles).is_ok();
        if !small || self.lens([queries, keys]).is_none() {
            return Err(parameter(NAME, format!("{self:?}"), "a mask that can be addressed"));
        }
        Ok(())
    }
}

/// Numbers of a list: how many entries, and of each that of the tile and that of its bits.
const fn pitch(columns: usize) -> usize {
    1 + 2 * columns
}

impl Common {
    /// The mask for a kernel whose rows are queries ([`Keys::Columns`]) or keys; `None` if there is none.
    pub(super) fn mask_args(&self, keys: Keys) -> Option<BlockMaskArgs> {
        let mask = self.mask?;
        let [of_queries, of_keys] = [self.queries, self.keys].map(|extent| extent.div_ceil(MASK_TILE));
        let (lists, rows, columns) = match keys {
            Keys::Columns => (AttentionInputs::key_tiles, of_queries, of_keys),
            Keys::Rows => (AttentionInputs::query_tiles, of_keys, of_queries),
        };
        // What is broadcast is the same for all; products were checked.
        let heads = mask.heads as u32;
        Some(BlockMaskArgs {
            lists: lists.arg(),
            bits: AttentionInputs::mask_bits.arg(),
            of_batch: if mask.batch == 1 { 0 } else { heads * rows },
            of_head: if mask.heads == 1 { 0 } else { rows },
            tiles: columns,
            parts: mask.tiles as u32,
        })
    }
}

/// The tables of a [`BlockMask`] on the host. Tiles have [`MASK_TILE`] queries and as many keys; there are `query_tiles` and `key_tiles` of
/// them, the last ones of which may be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockMaskTables {
    /// Batch, heads and tiles of bits.
    pub shape: BlockMaskShape,
    /// Queries and keys.
    pub extents: [usize; 2],
    /// `[batch, heads, query_tiles, 1 + 2 key_tiles]`: how many tiles of keys a tile of queries sees, then of each, in ascending order, its
    /// number and that of its bits, which is -1 where all pairs see each other. What follows is not looked at.
    pub key_tiles: Vec<i32>,
    /// `[batch, heads, key_tiles, 1 + 2 query_tiles]`: the same pairs of tiles, listed for each tile of keys.
    pub query_tiles: Vec<i32>,
    /// `[tiles, 2, 128, 4]`: whether pairs of a tile see each other. Bit `key % 32` of word `key / 32` of row `query` of the first half is that of
    /// a pair; in the second half they change places. Bits of keys that do not exist are 0.
    pub bits: Vec<i32>,
}

impl BlockMaskTables {
    /// The tables of a mask `[batch, heads, queries, keys]`, of which the first two may be 1, from a function of these four that says
    /// whether a query sees a key.
    ///
    /// # Errors
    /// [`PlanError::Parameter`] if it cannot be addressed.
    pub fn from_fn(
        [batch, heads, queries, keys]: [usize; 4],
        sees: impl Fn(usize, usize, usize, usize) -> bool,
    ) -> Result<Self, PlanError> {
        let extents = [queries, keys];
        let [of_queries, of_keys] = extents.map(|extent| extent.div_ceil(TILE));
        let empty = BlockMaskShape { batch, heads, tiles: 1 };
        let too_large = || {
            parameter(NAME, format!("{:?}", [batch, heads, queries, keys]), "a mask that can be addressed")
        };
        let [of_key_tiles, of_query_tiles, _] = empty.lens(extents).ok_or_else(too_large)?;
        let mut tables = Self {
            shape: empty,
            extents,
            key_tiles: vec![0; of_key_tiles],
            query_tiles: vec![0; of_query_tiles],
            bits: Vec::new(),
        };
        let mut known: HashMap<Vec<i32>, i32> = HashMap::new();
        for list in 0..batch * heads {
            for (row, column) in (0..of_queries).flat_map(|row| (0..of_keys).map(move |column| (row, column)))
            {
                let pair = |query: usize, key: usize| {
                    key < keys && query < queries && sees(list / heads, list % heads, query, key)
                };
                let Some(bits) = tile_bits([row, column], extents, pair) else { continue };
                let part = if bits.is_empty() {
                    WHOLE
                } else {
                    let next = i32::try_from(known.len()).map_err(|_| too_large())?;
                    *known.entry(bits).or_insert_with_key(|bits| {
                        tables.bits.extend(bits);
                        next
                    })
                };
                let rows = [
                    (&mut tables.key_tiles, list * of_queries + row, of_keys, column),
                    (&mut tables.query_tiles, list * of_keys + column, of_queries, row),
                ];
                for (lists, number, columns, tile) in rows {
                    let entries = &mut lists[number * pitch(columns)..][..pitch(columns)];
                    let at = 1 + 2 * entries[0] as usize;
                    entries[0] += 1;
                    // Tiles are below 2^28.
                    entries[at..at + 2].copy_from_slice(&[tile as i32, part]);
                }
            }
        }
        // Plans are for room, of which there are few sizes.
        tables.shape.tiles = known.len().max(1).next_power_of_two();
        let len = tables.shape.lens(extents).ok_or_else(too_large)?[2];
        tables.bits.resize(len, 0);
        Ok(tables)
    }

    /// The same from whether each query sees each key, `[batch, heads, queries, keys]` in row-major order.
    ///
    /// # Errors
    /// [`PlanError::Parameter`] if there are not as many, or the mask cannot be addressed.
    pub fn from_dense(shape: [usize; 4], sees: &[bool]) -> Result<Self, PlanError> {
        let [_, heads, queries, keys] = shape;
        if shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n)) != Some(sees.len()) {
            let got = format!("{} of {shape:?}", sees.len());
            return Err(parameter(NAME, got, "as many as the shape has"));
        }
        Self::from_fn(shape, |b, h, query, key| sees[((b * heads + h) * queries + query) * keys + key])
    }

    /// Refuses tables that are not those of a mask, as [`check_block_mask`] does.
    ///
    /// # Errors
    /// As [`check_block_mask`].
    pub fn check(&self) -> Result<(), PlanError> {
        check_block_mask(self.shape, self.extents, &self.key_tiles, &self.query_tiles, &self.bits)
    }
}

/// The bits of a tile both ways, none where all pairs of existing queries see each other; `None` where no pair does.
fn tile_bits(
    [row, column]: [usize; 2],
    [queries, keys]: [usize; 2],
    pair: impl Fn(usize, usize) -> bool,
) -> Option<Vec<i32>> {
    let mut bits = vec![0u32; 2 * HALF];
    let mut seen = 0;
    for query in 0..TILE.min(queries - row * TILE) {
        for key in 0..TILE.min(keys - column * TILE) {
            if pair(row * TILE + query, column * TILE + key) {
                seen += 1;
                bits[query * ROW_WORDS + key / 32] |= 1 << (key % 32);
                bits[HALF + key * ROW_WORDS + query / 32] |= 1 << (query % 32);
            }
        }
    }
    let all = TILE.min(queries - row * TILE) * TILE;
    match seen {
        0 => None,
        seen if seen == all => Some(Vec::new()),
        _ => Some(bits.into_iter().map(u32::cast_signed).collect()),
    }
}

/// Checks the tables of a mask over `[queries, keys]`, as [`BlockMaskTables`] describes them: counts and numbers of tiles in their ranges,
/// ascending; bits where they are needed, the same both ways, and none of keys that do not exist; the same pairs of tiles in both lists.
/// Kernels read nothing outside of the tensors whatever the numbers are, but results are those of another mask.
///
/// # Errors
/// [`PlanError::Parameter`] names the table, and the first place in it that does not fit.
pub fn check_block_mask(
    shape: BlockMaskShape,
    extents: [usize; 2],
    key_tiles: &[i32],
    query_tiles: &[i32],
    bits: &[i32],
) -> Result<(), PlanError> {
    let lens = shape.lens(extents).unwrap_or_default();
    for (name, len, expected) in [
        ("key_tiles", key_tiles.len(), lens[0]),
        ("query_tiles", query_tiles.len(), lens[1]),
        ("mask_bits", bits.len(), lens[2]),
    ] {
        if len != expected {
            return Err(parameter(name, format!("{len} numbers"), "as many as the mask's extents need"));
        }
    }
    let [of_queries, of_keys] = extents.map(|extent| extent.div_ceil(TILE));
    let by_query = entries("key_tiles", key_tiles, of_queries, of_keys, shape.tiles)?;
    let by_key = entries("query_tiles", query_tiles, of_keys, of_queries, shape.tiles)?;
    let cut = extents[1] % TILE;
    if let Some([list, row, column, _]) =
        by_query.iter().find(|entry| cut > 0 && entry[2] + 1 == of_keys && entry[3] == usize::MAX)
    {
        let got = format!("tile {column} of row {row} of list {list} as a whole");
        return Err(parameter("key_tiles", got, "bits of a tile that the last key cuts"));
    }
    let mut turned: Vec<_> =
        by_key.into_iter().map(|[list, column, row, part]| [list, row, column, part]).collect();
    turned.sort_unstable();
    if let Some(at) = (0..by_query.len().max(turned.len())).find(|at| by_query.get(*at) != turned.get(*at)) {
        let got = format!("{:?} for {:?}", turned.get(at), by_query.get(at));
        return Err(parameter("query_tiles", got, "the pairs of tiles of key_tiles"));
    }
    for [list, row, column, part] in by_query.into_iter().filter(|entry| entry[3] != usize::MAX) {
        let (tile, turned) = bits[part * 2 * HALF..][..2 * HALF].split_at(HALF);
        let bit = |words: &[i32], row: usize, column: usize| {
            words[row * ROW_WORDS + column / 32] >> (column % 32) & 1
        };
        for (query, key) in (0..TILE).flat_map(|query| (0..TILE).map(move |key| (query, key))) {
            let there = column * TILE + key < extents[1];
            let seen = bit(tile, query, key);
            let got = || {
                format!(
                    "bits {part}, query {query}, key {key}, for tile {column} of row {row} of list {list}"
                )
            };
            if seen != bit(turned, key, query) {
                return Err(parameter("mask_bits", got(), "the same both ways"));
            }
            if seen == 1 && !there {
                return Err(parameter("mask_bits", got(), "0 for keys that do not exist"));
            }
        }
    }
    Ok(())
}

/// List, row, column and bits of all entries, in this order; `usize::MAX` where a tile is seen as a whole.
fn entries(
    name: &'static str,
    lists: &[i32],
    rows: usize,
    columns: usize,
    parts: usize,
) -> Result<Vec<[usize; 4]>, PlanError> {
    let mut out = Vec::new();
    for (number, list) in lists.chunks_exact(pitch(columns)).enumerate() {
        let (list_number, row) = (number / rows.max(1), number % rows.max(1));
        let at = |what: &str, got: i32| format!("{what} {got} of row {row} of list {list_number}");
        let Some(count) = usize::try_from(list[0]).ok().filter(|count| *count <= columns) else {
            return Err(parameter(name, at("count", list[0]), "from 0 to the number of tiles"));
        };
        let mut next = 0;
        for entry in list[1..].chunks_exact(2).take(count) {
            let Some(column) = usize::try_from(entry[0]).ok().filter(|tile| (next..columns).contains(tile))
            else {
                return Err(parameter(name, at("tile", entry[0]), "ascending numbers of tiles"));
            };
            let part = match entry[1] {
                WHOLE => usize::MAX,
                part => match usize::try_from(part).ok().filter(|part| *part < parts) {
                    Some(part) => part,
                    None => {
                        return Err(parameter(name, at("bits", part), "-1, or the number of a tile of bits"));
                    }
                },
            };
            out.push([list_number, row, column, part]);
            next = column + 1;
        }
    }
    Ok(out)
}

/// A mask of attention as tiles on a device, for any number of calls: which pairs of queries and keys see each other, `[batch, heads, queries,
/// keys]`, of which the first two may be 1 for all. Kernels do not visit tiles of 128 x 128 pairs of which none do.
#[derive(Debug)]
pub struct BlockMask {
    shape: BlockMaskShape,
    extents: [usize; 2],
    pub(super) key_tiles: Tensor,
    pub(super) query_tiles: Tensor,
    pub(super) bits: Tensor,
}

impl BlockMask {
    /// A mask `[batch, heads, queries, keys]` from a function of these four that says whether a query sees a key.
    ///
    /// # Errors
    /// [`Error::Plan`] if it cannot be addressed, [`Error::Runtime`] if memory runs out.
    pub fn from_fn(
        stream: &Stream,
        shape: [usize; 4],
        sees: impl Fn(usize, usize, usize, usize) -> bool,
    ) -> Result<Self, Error> {
        Self::of_valid(stream, &BlockMaskTables::from_fn(shape, sees)?)
    }

    /// The same from whether each query sees each key, in row-major order.
    ///
    /// # Errors
    /// As [`from_fn`](Self::from_fn), and if there are not as many as the shape has.
    pub fn from_dense(stream: &Stream, shape: [usize; 4], sees: &[bool]) -> Result<Self, Error> {
        Self::of_valid(stream, &BlockMaskTables::from_dense(shape, sees)?)
    }

    /// The same from tables, which are checked.
    ///
    /// # Errors
    /// As [`check_block_mask`], and [`Error::Runtime`] if memory runs out.
    pub fn from_tables(stream: &Stream, tables: &BlockMaskTables) -> Result<Self, Error> {
        tables.check()?;
        Self::of_valid(stream, tables)
    }

    fn of_valid(stream: &Stream, tables: &BlockMaskTables) -> Result<Self, Error> {
        let tensor = |numbers: &[i32]| Tensor::from_slice_on(stream, numbers, &[numbers.len()]);
        Ok(Self {
            shape: tables.shape,
            extents: tables.extents,
            key_tiles: tensor(&tables.key_tiles)?,
            query_tiles: tensor(&tables.query_tiles)?,
            bits: tensor(&tables.bits)?,
        })
    }

    /// Batch and heads, and the tiles of bits that there is room for.
    pub const fn shape(&self) -> BlockMaskShape {
        self.shape
    }

    /// Queries and keys.
    pub const fn extents(&self) -> [usize; 2] {
        self.extents
    }
}
