//! Masks and modifications of the scores as a descriptor names them, and the checks of a descriptor.

use warpwright_ptx::{DType, Target};

use super::score::ScoreKind;
use super::tuning::{self, Config, DecodeConfig, MAX_WIDTH, Work};
use super::{AttentionDesc, BlockMaskShape, Float8Cache, OP};
use crate::plan::{Layout, Real};
use crate::{Dropout, PlanError};

/// Where the positions of the queries begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Alignment {
    /// The last query stands at the last key.
    #[default]
    BottomRight,
    /// The first query stands at the first key.
    TopLeft,
}

/// The keys near a query's position that it sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Window {
    /// How many before it; `None` is all.
    pub left: Option<u32>,
    /// How many after it; `None` is all.
    pub right: Option<u32>,
}

/// Which slopes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlibiSlopes {
    /// `[heads]`
    PerHead,
    /// `[batch, heads]`
    PerBatchAndHead,
}

/// Masks and modifications of the scores; the default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AttentionOptions {
    /// The factor of the products, positive and finite; `None` is `1 / sqrt(head_dim)`.
    pub softmax_scale: Option<Real>,
    /// Whether a query sees no key after its position.
    pub causal: bool,
    /// The keys near its position that it sees.
    pub window: Window,
    /// Where the positions of the queries begin.
    pub alignment: Alignment,
    /// `score = softcap tanh(score / softcap)`, positive and finite.
    pub softcap: Option<Real>,
    /// The layout of a bias `[batch, heads, queries, keys]` that is added, of which each extent may be 1.
    pub bias: Option<Layout>,
    /// `slope |position - key|` is subtracted, with bottom-right positions.
    pub alibi: Option<AlibiSlopes>,
    /// Whether each sequence has a number of keys of its own, at most as many as there are.
    pub key_lengths: bool,
    /// Sequences of different lengths one after the other in the rows of a single batch.
    pub packed: Option<Packed>,
    /// Keys and values in pages of a cache.
    pub paged: Option<Paged>,
    /// Whether each head has a logit that takes part in the sum of exponentials and in nothing else.
    pub sinks: bool,
    /// The probability from 0 to 1 that a probability is dropped before it meets the values; those that are kept are
    /// multiplied by `1 / (1 - p)`. `lse` is without.
    pub dropout: Option<Real>,
    /// Keys and values of 8-bit floats.
    pub float8: Option<Float8Cache>,
    /// Which pairs see each other, as tiles: a [`BlockMask`](super::BlockMask).
    pub block_mask: Option<BlockMaskShape>,
}

impl AttentionOptions {
    /// With which modifications kernels for this are recorded.
    pub fn kind(&self) -> ScoreKind {
        ScoreKind {
            band: self.bounds().into_iter().any(|bound| bound < UNLIMITED),
            softcap: self.softcap.is_some(),
            bias: self.bias.is_some(),
            alibi: self.alibi.is_some(),
            lengths: self.key_lengths,
            packed: self.packed.is_some(),
            dropout: dropout(self).is_ok_and(|(threshold, _)| threshold > 0),
            blocks: self.block_mask.is_some(),
        }
    }

    /// How many keys a query sees before and after its position.
    fn bounds(&self) -> [i32; 2] {
        let bound = |bound: Option<u32>| {
            bound.map_or(UNLIMITED, |b| i32::try_from(b).unwrap_or(UNLIMITED).min(UNLIMITED))
        };
        [bound(self.window.left), if self.causal { 0 } else { bound(self.window.right) }]
    }
}

/// Sequences one after the other: `q` is `[1, all queries, heads, head_dim]`, `k` and `v` are likewise, and `lse` is
/// `[1, heads, all queries]`. Where they begin and end is in two tensors of `sequences + 1` row numbers, which
/// [`check_offsets`](super::check_offsets) checks on the host. Rows of no sequence are not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packed {
    /// Sequences.
    pub sequences: usize,
    /// Queries of the longest one at most.
    pub longest_queries: usize,
    /// Keys of the longest one at most.
    pub longest_keys: usize,
}

/// Keys and values in pages: `k` and `v` are `[pages, rows of a page, num_kv_heads, head_dim]`, and the keys of a sequence are
/// those of the pages that its row of the table names, in that order. The rows of a page are a power of two from 16 on. Numbers
/// that name no page read one that exists; [`check_block_table`](super::check_block_table) finds them on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Paged {
    /// Pages of a row of the table.
    pub pages: usize,
}

/// Least rows of a page.
const SMALLEST_PAGE: usize = 16;
/// Longest sequence: sums of positions and window bounds stay in 32 bits.
const MAX_SEQUENCE: usize = 1 << 28;
/// Blocks of a grid along y and along z.
const MAX_GRID: u32 = 65535;
/// A window bound that leaves out nothing.
const UNLIMITED: i32 = 1 << 30;

/// A checked problem, as the kernels of both directions take it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    pub(super) kind: ScoreKind,
    pub(super) q: [u64; 3],
    pub(super) k: [u64; 3],
    pub(super) v: [u64; 3],
    pub(super) bias: [u64; 4],
    pub(super) slopes_batch: u64,
    /// Sequences.
    pub(super) batch: u32,
    /// Rows of the queries and of the keys of a batch.
    pub(super) queries: u32,
    pub(super) keys: u32,
    /// Queries and keys of the longest sequence.
    pub(super) longest: [u32; 2],
    pub(super) heads: u32,
    pub(super) group: u32,
    pub(super) width: u32,
    pub(super) value_width: u32,
    pub(super) left: i32,
    pub(super) right: i32,
    pub(super) bottom_right: u32,
    pub(super) scale: f64,
    pub(super) softcap: f64,
    /// Words from here on keep their pair, which is multiplied by `keeping`.
    pub(super) threshold: u32,
    pub(super) keeping: f64,
    pub(super) mask: Option<BlockMaskShape>,
}

pub(super) fn parameter(parameter: &'static str, got: String, expected: &'static str) -> PlanError {
    PlanError::Parameter { op: OP, parameter, got, expected }
}

/// Whether both have the shape of the second.
pub(super) fn same_shapes(pairs: &[(&'static str, &Layout, &Layout)]) -> Result<(), PlanError> {
    for (name, layout, model) in pairs {
        if layout.shape != model.shape {
            return Err(parameter(name, format!("{:?}", layout.shape), "the shape of its forward tensor"));
        }
        row_is_contiguous(name, layout)?;
    }
    Ok(())
}

fn row_is_contiguous(name: &'static str, layout: &Layout) -> Result<(), PlanError> {
    if !layout.rows_are_contiguous() {
        return Err(parameter(name, format!("strides {:?}", layout.strides), "a last stride of 1"));
    }
    Ok(())
}

/// Two elements of a result must not share a place.
pub(super) fn check_outputs(outputs: &[(&'static str, &Layout)]) -> Result<(), PlanError> {
    if let Some((name, layout)) = outputs.iter().find(|(_, layout)| !layout.is_without_overlap()) {
        let got = format!("strides {:?} of {:?}", layout.strides, layout.shape);
        return Err(parameter(name, got, "a layout without overlap"));
    }
    Ok(())
}

/// Pages are of caches: their keys and values have no gradients. What is absent has none either.
pub(super) fn trainable(desc: &AttentionDesc, dbias: bool, dsinks: bool) -> Result<(), PlanError> {
    let AttentionOptions { paged, bias, sinks, float8, .. } = desc.options;
    if let Some(float8) = float8 {
        return Err(parameter("float8", format!("{float8:?}"), "none where there are gradients"));
    }
    if let Some(paged) = paged {
        return Err(parameter("paged", format!("{paged:?}"), "none where there are gradients"));
    }
    if dbias && bias.is_none() {
        return Err(parameter("dbias", "true".into(), "a bias"));
    }
    if dsinks && !sinks {
        return Err(parameter("dsinks", "true".into(), "sinks"));
    }
    Ok(())
}

/// Keys of a sequence where a batch of the tensor, or a page, has `rows` of them.
fn paged_keys(options: &AttentionOptions, rows: usize) -> Result<usize, PlanError> {
    let Some(Paged { pages }) = options.paged else { return Ok(rows) };
    if !rows.is_power_of_two() || rows < SMALLEST_PAGE {
        return Err(parameter("rows of a page", rows.to_string(), "a power of two from 16 on"));
    }
    if !options.key_lengths || options.packed.is_some() {
        let got = format!("key_lengths {}, packed {:?}", options.key_lengths, options.packed);
        return Err(parameter("paged", got, "key_lengths and sequences that are not packed"));
    }
    let keys = pages.checked_mul(rows).filter(|keys| *keys <= MAX_SEQUENCE);
    keys.ok_or_else(|| parameter("paged", pages.to_string(), "at most 2^28 keys"))
}

/// Sequences, and the most queries and keys of one.
fn packed(options: &AttentionOptions, batch: usize, rows: [usize; 2]) -> Result<[usize; 3], PlanError> {
    let [queries, keys] = rows;
    let Some(Packed { sequences, longest_queries, longest_keys }) = options.packed else {
        return Ok([batch, queries, keys]);
    };
    if options.key_lengths {
        return Err(parameter("key_lengths", "true".into(), "sequences that are not packed"));
    }
    if batch != 1 {
        return Err(parameter("q", format!("a batch of {batch}"), "a batch of 1 that holds all sequences"));
    }
    for (longest, rows) in [(longest_queries, queries), (longest_keys, keys)] {
        if longest > rows {
            return Err(parameter("packed", format!("{longest} of {rows} rows"), "at most all rows"));
        }
    }
    Ok([sequences, longest_queries, longest_keys])
}

/// Checks where packed sequences begin and end in `rows` rows: one number more than there are sequences, the first not
/// negative, none below the one before it, the last at most `rows`. Returns the rows of the longest sequence.
///
/// # Errors
/// Names the first number that does not fit.
pub fn check_offsets(name: &'static str, offsets: &[i32], rows: usize) -> Result<usize, PlanError> {
    let mut before = 0;
    let mut longest = 0;
    for (index, &offset) in offsets.iter().enumerate() {
        let got = || format!("{offset} at {index}");
        if offset < before {
            return Err(parameter(name, got(), "numbers from 0 on that do not decrease"));
        }
        if usize::try_from(offset).is_ok_and(|offset| offset > rows) {
            return Err(parameter(name, got(), "at most the rows of the tensor"));
        }
        if index > 0 {
            longest = longest.max(offset - before);
        }
        before = offset;
    }
    if offsets.is_empty() {
        return Err(parameter(name, "no numbers".into(), "one more than sequences"));
    }
    Ok(usize::try_from(longest).unwrap_or(0))
}

/// Checks how many of `keys` keys of each sequence count.
///
/// # Errors
/// Names the first number that does not fit.
pub fn check_key_lengths(lengths: &[i32], keys: usize) -> Result<(), PlanError> {
    let fits = |length: i32| usize::try_from(length).is_ok_and(|length| length <= keys);
    match lengths.iter().position(|length| !fits(*length)) {
        Some(at) => {
            let got = format!("{} at {at}", lengths[at]);
            Err(parameter("key_lengths", got, "from 0 to the number of keys"))
        }
        None => Ok(()),
    }
}

/// Checks the pages of a cache that sequences of these lengths read: row `b` of the table, of `pages.pages` numbers, names those
/// of the first `lengths[b]` keys, `rows` in each. Numbers of the table beyond them are not looked at.
///
/// # Errors
/// Names the first number that is none of a page below `count`.
pub fn check_block_table(
    table: &[i32],
    pages: Paged,
    lengths: &[i32],
    rows: usize,
    count: usize,
) -> Result<(), PlanError> {
    let fits = |page: i32| usize::try_from(page).is_ok_and(|page| page < count);
    for (batch, (row, length)) in table.chunks(pages.pages.max(1)).zip(lengths).enumerate() {
        let read = usize::try_from(*length).unwrap_or(0).div_ceil(rows.max(1));
        if let Some(at) = row.iter().take(read).position(|page| !fits(*page)) {
            let got = format!("{} at [{batch}, {at}]", row[at]);
            return Err(parameter("block_table", got, "from 0 to below the number of pages"));
        }
    }
    Ok(())
}

/// The least word that keeps a pair, and what such a pair is multiplied by.
fn dropout(options: &AttentionOptions) -> Result<(u32, f64), PlanError> {
    let Some(probability) = options.dropout.map(Real::get) else { return Ok((0, 1.0)) };
    let constants = Dropout::constants(OP, probability)?;
    if options.paged.is_some() {
        return Err(parameter("dropout", probability.to_string(), "none where keys are in pages"));
    }
    Ok(constants)
}

fn factor(name: &'static str, value: f64) -> Result<f64, PlanError> {
    if value > 0.0 && value.is_finite() {
        return Ok(value);
    }
    Err(parameter(name, format!("{value:?}"), "positive and finite"))
}

impl Common {
    /// Checks a descriptor; `outputs` are written.
    pub(super) fn new(desc: &AttentionDesc, outputs: &[(&'static str, &Layout)]) -> Result<Self, PlanError> {
        let AttentionDesc { dtype, q, k, v, o, options } = desc;
        if !DType::FLOATS.contains(dtype) {
            return Err(PlanError::DType { op: OP, tensor: "q", got: *dtype, expected: &DType::FLOATS });
        }
        let [batch, queries, heads, width] = q.shape;
        let [pages, rows, key_heads, value_width] = v.shape;
        let keys = paged_keys(options, rows)?;
        let of_keys = if options.paged.is_some() { pages } else { batch };
        for (name, layout) in [("q", q), ("k", k), ("v", v), ("o", o)] {
            row_is_contiguous(name, layout)?;
            if layout.elements().and_then(|n| n.checked_mul(dtype.bytes())).is_none() {
                return Err(parameter(name, format!("{:?}", layout.shape), "a tensor that can be addressed"));
            }
            if layout.shape[1] > MAX_SEQUENCE {
                return Err(parameter(name, format!("{:?}", layout.shape), "at most 2^28 rows"));
            }
        }
        for (name, got) in [("head_dim of q", width), ("head_dim of v", value_width)] {
            if !(1..=MAX_WIDTH).contains(&got) {
                return Err(parameter(name, got.to_string(), "from 1 to 256"));
            }
        }
        let fits = [
            (
                "k",
                k.shape,
                [of_keys, rows, key_heads, width],
                "[batch, keys, num_kv_heads, head_dim] as of q and v",
            ),
            ("v", v.shape, [of_keys, rows, key_heads, value_width], "the batch of q"),
            ("o", o.shape, [batch, queries, heads, value_width], "the shape of q with the head_dim of v"),
        ];
        for (name, got, expected, words) in fits {
            if got != expected {
                return Err(parameter(name, format!("{got:?}"), words));
            }
        }
        if key_heads == 0 && heads > 0 || key_heads > 0 && !heads.is_multiple_of(key_heads) {
            return Err(parameter("num_kv_heads", format!("{key_heads} of {heads}"), "a divisor of heads"));
        }
        check_outputs(outputs)?;
        if let Some(float8) = options.float8.filter(|_| options.packed.is_some() || options.dropout.is_some())
        {
            let expected = "none where sequences are packed or something is dropped";
            return Err(parameter("float8", format!("{float8:?}"), expected));
        }
        if let Some(mask) = options.block_mask {
            mask.check(options, [batch, heads, queries, keys])?;
        }
        let (threshold, keeping) = dropout(options)?;
        let [sequences, longest_queries, longest_keys] = packed(options, batch, [queries, keys])?;
        let mut bias = [0; 4];
        if let Some(layout) = options.bias {
            let full = [sequences, heads, longest_queries, longest_keys];
            for axis in 0..4 {
                match layout.shape[axis] {
                    extent if extent == full[axis] => bias[axis] = layout.strides[axis].cast_unsigned(),
                    1 => {}
                    _ => {
                        let expected = "[batch, heads, queries, keys], each of them or 1";
                        return Err(parameter("bias", format!("{:?}", layout.shape), expected));
                    }
                }
            }
        }
        let scale = options.softmax_scale.map_or_else(|| 1.0 / (width as f64).sqrt(), Real::get);
        let [left, right] = options.bounds();
        // Extents fit: sequences were checked, widths are small, and more heads or batches than 2^32 have no grid.
        let small = |name: &'static str, n: usize| {
            u32::try_from(n).map_err(|_| parameter(name, n.to_string(), "below 2^32"))
        };
        Ok(Self {
            kind: options.kind(),
            q: q.steps(),
            k: k.steps(),
            v: v.steps(),
            bias,
            slopes_batch: match options.alibi {
                Some(AlibiSlopes::PerBatchAndHead) => heads as u64,
                _ => 0,
            },
            batch: small("batch", sequences)?,
            queries: small("queries", queries)?,
            keys: small("keys", keys)?,
            longest: [small("queries", longest_queries)?, small("keys", longest_keys)?],
            heads: small("heads", heads)?,
            group: small("heads", heads.checked_div(key_heads).unwrap_or(1))?,
            width: width as u32,
            value_width: value_width as u32,
            left,
            right,
            bottom_right: u32::from(options.alignment == Alignment::BottomRight),
            scale: factor("softmax_scale", scale)?,
            softcap: options.softcap.map_or(Ok(1.0), |cap| factor("softcap", cap.get()))?,
            threshold,
            keeping,
            mask: options.block_mask,
        })
    }

    /// The configurations for tensors of these layouts.
    pub(super) fn configs(
        &self,
        dtype: DType,
        work: Work,
        target: Target,
        layouts: &[Layout],
    ) -> Result<Vec<Config>, PlanError> {
        let (width, granularity) = (self.widest(), granularity(layouts));
        some_fits(tuning::configs(dtype, work, target, width, granularity, self.kind), width)
    }

    /// The configurations for few queries.
    pub(super) fn decode_configs(
        &self,
        desc: &AttentionDesc,
        target: Target,
    ) -> Result<Vec<DecodeConfig>, PlanError> {
        let (width, dtype) = (self.widest(), desc.cache_dtype());
        let of_all = granularity(&[desc.q, desc.k, desc.v, desc.o]);
        // Copies to tiles have 16 bytes of keys and values.
        let of_pieces = [desc.k, desc.v].iter().all(|layout| fits(layout, 16 / dtype.bytes()));
        let most = if dtype.is_float8() && !of_pieces { 4 } else { 8 };
        some_fits(tuning::decode_configs(dtype, target, width, of_all.min(most)), width)
    }

    pub(super) fn widest(&self) -> usize {
        self.width.max(self.value_width) as usize
    }

    /// Tiles of the rows that read one key head.
    pub(super) fn row_tiles(&self, config: DecodeConfig) -> u32 {
        let rows = u64::from(self.queries) * u64::from(self.group);
        u32::try_from(rows.div_ceil(u64::from(config.layout().rows()))).unwrap_or(u32::MAX)
    }

    /// In how many parts the keys of a head are shared out.
    pub(super) fn splits(&self, dtype: DType, target: Target, config: DecodeConfig) -> u32 {
        tuning::splits(config, dtype, target, self.units(config), self.keys.into())
    }

    /// Tiles of rows of all key heads and sequences.
    pub(super) fn units(&self, config: DecodeConfig) -> u64 {
        let key_heads = u64::from(self.heads / self.group.max(1));
        u64::from(self.row_tiles(config)) * key_heads * u64::from(self.batch)
    }

    /// The grid of `tiles` tiles of `heads` heads; `None` if it is empty.
    pub(super) fn grid(&self, tiles: u32, heads: u32) -> Result<Option<[u32; 3]>, PlanError> {
        for blocks in [heads, self.batch] {
            if blocks > MAX_GRID {
                return Err(PlanError::TooLarge { op: OP, blocks: blocks.into(), limit: MAX_GRID.into() });
            }
        }
        let grid = [tiles, heads, self.batch];
        Ok((!grid.contains(&0)).then_some(grid))
    }
}

/// The largest power of two up to 8 that divides the rows of all layouts and the distances between them.
pub(super) fn granularity(layouts: &[Layout]) -> u32 {
    let all_fit = |vector: &u32| layouts.iter().all(|layout| fits(layout, *vector as usize));
    [8, 4, 2].into_iter().find(all_fit).unwrap_or(1)
}

/// Whether rows, and the distances between them, are multiples of `vector` elements.
fn fits(layout: &Layout, vector: usize) -> bool {
    let mut axes = layout.shape[..3].iter().zip(&layout.strides);
    layout.shape[3].is_multiple_of(vector)
        && axes.all(|(extent, s)| *extent < 2 || s.unsigned_abs().is_multiple_of(vector as u64))
}

fn some_fits<C>(configs: Vec<C>, width: usize) -> Result<Vec<C>, PlanError> {
    if configs.is_empty() {
        let expected = "one that fits the shared memory of the target";
        return Err(parameter("head_dim", width.to_string(), expected));
    }
    Ok(configs)
}
