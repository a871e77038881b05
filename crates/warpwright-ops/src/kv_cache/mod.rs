//! The next keys and values of sequences, written to the cache that attention reads, with rotary position embedding in the same launch.
//!
//! `key_lengths` are those that [attention](mod@crate::attention) takes: the keys of each sequence, the new ones with them. Step `i` of
//! `steps` new ones of a sequence with `n` keys stands at position `n - steps + i`, where its key, rotated by the angle of that position,
//! and its value go; its query is rotated by the same angle. The numbers are read on the device, so that a captured graph can run again
//! with others. Without `key_lengths` the new tokens are all that a sequence has.
//!
//! | tensor | shape | |
//! |---|---|---|
//! | `q`, `q_rotated` | `[batch, steps, heads, head_dim]`, if something is rotated and there are queries | any strides, the last 1 |
//! | `k`, `v` | `[batch, steps, num_kv_heads, head_dim]`; head_dim of `v` may differ | any strides, the last 1 |
//! | `cos`, `sin` | `[rows, rotary_dim / 2]`, or `[rows, rotary_dim]` with each number twice | contiguous; f32 or the type of `k` |
//! | `key_lengths` | `[batch]`, i32 | contiguous |
//! | `block_table` | `[batch, pages]`, i32: the pages of each sequence, see [`Paged`] | contiguous |
//! | `k_cache`, `v_cache` | `[batch, capacity, num_kv_heads, head_dim]`; with pages `[pages, rows of a page, num_kv_heads, head_dim]` | any strides, the last 1 |
//! | `k_scale`, `v_scale` | `[1]` or `[num_kv_heads]`, f32: those of a [`Float8Cache`] | contiguous |
//!
//! Pairs, tables and elements from `rotary_dim` on are those of [`rotary`](mod@crate::rotary): what has a position without a row in the tables
//! is NaN where it would be rotated. Without rotation keys are copied, and there are no queries.
//!
//! Caches may be of e4m3 beside queries, keys and values of f16 or bf16 (a [`Float8Cache`], from sm_89 on): `round(x / scale)` in f32, where `x` is
//! the element, rotated and not rounded before; to nearest even, what is beyond 448, infinities too, becomes 448, and NaN stays.
//!
//! Nothing is written outside of the caches, and nothing for tokens that have no place there: those of a negative position (a sequence of
//! length 0 keeps its place in a batch, and one of fewer keys than steps gets the last of them), of a position from `capacity` on, or of
//! a page that the table numbers below 0 or beyond the last. What is on the host can be checked there:
//! [`check_key_lengths`](crate::attention::check_key_lengths), [`check_block_table`](crate::attention::check_block_table). Two tokens with the same
//! place leave one of both there.
//!
//! The names are those of vLLM (Kwon et al. 2023, arXiv:2309.06180: `reshape_and_cache`), FlashAttention (`flash_attn_with_kvcache` with `k`, `v`
//! and `rotary_cos`) and FlashInfer (`append_paged_kv_cache`, whose lengths count the new tokens, too).

mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;

use warpwright_dsl::divide::DivisorArgs;
use warpwright_dsl::{Optional, Strided};
use warpwright_ptx::{DType, Target};

use crate::PlanError;
use crate::attention::{CacheScale, Float8Cache, Paged};
use crate::catalogue::Direction;
use crate::plan::{self, Layout, Operation, Plan, Variant, small};
use crate::rotary::kernel::{HeadsArgs, Rotate};
use crate::rotary::tuning::{Config, THREADS, heads_per_thread};
use crate::rotary::{Pairing, RotaryTables};
use crate::tensors::{InSlot, tensors};

pub use functions::*;

const OP: &str = "append_kv_cache";

/// How queries and new keys are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheRotation {
    /// Which elements are rotated together.
    pub pairing: Pairing,
    /// Elements of a head that are rotated, an even number.
    pub rotary_dim: usize,
    /// The tables, one for all sequences.
    pub tables: RotaryTables,
}

/// New keys and values on their way to the cache of their sequences.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AppendKvCacheDesc {
    /// Element type of queries, keys and values, and of caches that are not of 8-bit floats.
    pub dtype: DType,
    /// Layout of the queries, and of the rotated ones.
    pub q: Option<[Layout; 2]>,
    /// Layout of the new keys: `[batch, steps, num_kv_heads, head_dim]`.
    pub k: Layout,
    /// Layout of the new values.
    pub v: Layout,
    /// Layout of the cache of keys.
    pub k_cache: Layout,
    /// Layout of the cache of values.
    pub v_cache: Layout,
    /// How queries and keys are rotated; keys are copied without.
    pub rotation: Option<CacheRotation>,
    /// Whether there is a number of keys of each sequence.
    pub key_lengths: bool,
    /// Where the caches are pages.
    pub paged: Option<Paged>,
    /// Caches of e4m3, and their scales.
    pub float8: Option<Float8Cache>,
}

tensors! {
    /// Tensors of [`AppendKvCacheDesc`].
    pub struct AppendKvCacheArgs<'a> {
        /// Queries, if described, or `None` if `q_rotated` holds them.
        q: InPlace<q_rotated>,
        /// The new keys.
        k: In,
        /// The new values.
        v: In,
        /// Cosines, with a rotation.
        cos: Option<In>,
        /// Sines, with a rotation.
        sin: Option<In>,
        /// Keys of each sequence with the new ones, if described.
        key_lengths: Option<In>,
        /// The pages of each sequence, if described.
        block_table: Option<In>,
        /// The scale of keys of e4m3, if described.
        k_scale: Option<In>,
        /// The scale of values, likewise.
        v_scale: Option<In>,
        /// The rotated queries, if described.
        q_rotated: Option<Out>,
        /// The keys of all sequences, of which the new ones are written.
        k_cache: Out,
        /// The values of all sequences.
        v_cache: Out,
    }
}

/// Most keys of a sequence, as of attention.
const MAX_SEQUENCE: usize = 1 << 28;
/// Least rows of a page, as of attention.
const SMALLEST_PAGE: usize = 16;

fn refused(name: &'static str, got: impl ToString, expected: &'static str) -> PlanError {
    PlanError::refused(OP, name, got, expected)
}

/// The sizes of a cache.
struct Places {
    /// Keys of a sequence that have a place.
    capacity: usize,
    /// Pages that exist, or sequences without pages.
    count: usize,
    /// Pages of a sequence.
    pages: usize,
    /// The base-2 logarithm of the keys of a page; without pages above that of every capacity.
    shift: u32,
}

impl AppendKvCacheDesc {
    fn places(&self) -> Result<Places, PlanError> {
        let [count, rows, ..] = self.k_cache.shape;
        let Some(Paged { pages }) = self.paged else {
            if rows > MAX_SEQUENCE {
                return Err(refused("k_cache", format!("{:?}", self.k_cache.shape), "at most 2^28 keys"));
            }
            return Ok(Places { capacity: rows, count, pages: 0, shift: 31 });
        };
        if !rows.is_power_of_two() || rows < SMALLEST_PAGE {
            return Err(refused("rows of a page", rows, "a power of two from 16 on"));
        }
        let capacity = pages.checked_mul(rows).filter(|keys| *keys <= MAX_SEQUENCE);
        let capacity = capacity.ok_or_else(|| refused("paged", pages, "at most 2^28 keys"))?;
        Ok(Places { capacity, count, pages, shift: rows.trailing_zeros() })
    }

    fn check(&self) -> Result<Places, PlanError> {
        PlanError::check_floats(OP, "k", self.dtype)?;
        let [batch, steps, heads, head_dim] = self.k.shape;
        let [pages, rows, ..] = self.k_cache.shape;
        let value_dim = self.v.shape[3];
        let of_cache = if self.paged.is_some() { pages } else { batch };
        let queries = self.q.map_or(0, |[q, _]| q.shape[2]);
        let of_q = [batch, steps, queries, head_dim];
        let mut all = vec![
            ("k", self.k, self.k.shape, "a tensor of this shape"),
            ("v", self.v, [batch, steps, heads, value_dim], "[batch, steps, num_kv_heads, ..] of the keys"),
            (
                "k_cache",
                self.k_cache,
                [of_cache, rows, heads, head_dim],
                "[batch, capacity, num_kv_heads, head_dim] or [pages, rows, num_kv_heads, head_dim], as of k",
            ),
            (
                "v_cache",
                self.v_cache,
                [of_cache, rows, heads, value_dim],
                "the shape of k_cache with the head_dim of v",
            ),
        ];
        if let Some([q, q_rotated]) = self.q {
            all.push(("q", q, of_q, "[batch, steps, heads, head_dim] as of k"));
            all.push(("q_rotated", q_rotated, of_q, "the shape of q"));
        }
        for (name, layout, expected, words) in all {
            let got = || format!("{:?}", layout.shape);
            if layout.shape != expected {
                return Err(refused(name, got(), words));
            }
            let bytes = layout.elements().and_then(|n| n.checked_mul(self.dtype.bytes()));
            let few = [layout.shape[0], layout.shape[3]].iter().all(|n| i32::try_from(*n).is_ok());
            if bytes.is_none_or(|n| i64::try_from(n).is_err()) || !few {
                return Err(refused(name, got(), "a tensor that can be addressed"));
            }
            if !layout.rows_are_contiguous() {
                return Err(refused(name, format!("strides {:?}", layout.strides), "a last stride of 1"));
            }
        }
        let rotated = self.q.map(|[_, rotated]| ("q_rotated", rotated));
        let written = [("k_cache", self.k_cache), ("v_cache", self.v_cache)];
        for (name, layout) in written.into_iter().chain(rotated) {
            if !layout.is_without_overlap() {
                let got = format!("strides {:?} of {:?}", layout.strides, layout.shape);
                return Err(refused(name, got, "a layout without overlap"));
            }
        }
        if steps > MAX_SEQUENCE {
            return Err(refused("k", format!("{:?}", self.k.shape), "at most 2^28 steps"));
        }
        match self.rotation {
            Some(rotation) => self.check_rotation(rotation, head_dim)?,
            None if self.q.is_some() => return Err(refused("q", "given", "none where nothing is rotated")),
            None => {}
        }
        self.places()
    }

    fn check_rotation(&self, rotation: CacheRotation, head_dim: usize) -> Result<(), PlanError> {
        let CacheRotation { rotary_dim, tables, .. } = rotation;
        if !(2..=head_dim).contains(&rotary_dim) || !rotary_dim.is_multiple_of(2) {
            let got = format!("{rotary_dim} of {head_dim}");
            return Err(refused("rotary_dim", got, "even, from 2 to head_dim"));
        }
        tables.check_dtype(OP, self.dtype)?;
        tables.check_size(OP, rotary_dim)?;
        if tables.batch != 1 {
            return Err(refused("tables.batch", tables.batch, "1"));
        }
        Ok(())
    }

    /// The plan of one configuration.
    fn variant(&self, places: &Places, config: Config, target: Target) -> Result<Variant, PlanError> {
        type Args<'a> = AppendKvCacheArgs<'a>;
        let ([batch, steps, heads, head_dim], value_dim) = (self.k.shape, self.v.shape[3]);
        let queries = self.q.map_or(0, |[q, _]| q.shape[2]);
        let rotary_dim = self.rotation.map_or(0, |rotation| rotation.rotary_dim);
        let [rotating, copying] = config.chunks(rotary_dim, head_dim);
        let [_, value_copying] = config.chunks(0, value_dim);
        let (chunks, tokens) = (rotating + copying, batch.saturating_mul(steps));
        let of_heads = tokens.saturating_mul(chunks.max(value_copying));
        let group = heads_per_thread(of_heads, [queries, heads, heads], target);
        let [q_groups, groups] = [queries, heads].map(|heads| heads.div_ceil(group));
        let units = [(chunks, q_groups), (chunks, groups), (value_copying, groups)];
        let units = units.map(|(chunks, groups)| chunks.saturating_mul(groups));
        let [keys, values, threads] = [1, 2, 3].map(|parts| {
            let units = units[..parts].iter().fold(0usize, |sum, units| sum.saturating_add(*units));
            units.saturating_mul(tokens)
        });
        let part = |begin: usize, units: usize| kernel::PartArgs {
            begin: small(begin),
            units: DivisorArgs::new(small(units)),
        };
        let mut launches = Vec::new();
        if let Some(grid) = plan::cover(OP, threads, THREADS)? {
            if threads > i32::MAX as usize {
                let (blocks, limit) = (u64::from(grid[0]), (1 << 31) / u64::from(THREADS));
                return Err(PlanError::TooLarge { op: OP, blocks, limit });
            }
            let absent = Layout::contiguous([0; 4]);
            let [from_q, to_q] = self.q.unwrap_or([absent; 2]);
            let way = |x, from: &Layout, y, to: &Layout| HeadsArgs {
                x: Strided { data: x, strides: from.steps() },
                y: Strided { data: y, strides: to.steps() },
                heads: small(from.shape[2]),
            };
            let tables = self.rotation.map(|rotation| rotation.tables);
            let args = kernel::Args {
                q: way(Args::q.arg(), &from_q, Args::q_rotated.arg(), &to_q),
                k: way(Args::k.arg(), &self.k, Args::k_cache.arg(), &self.k_cache),
                v: way(Args::v.arg(), &self.v, Args::v_cache.arg(), &self.v_cache),
                cos: Args::cos.arg(),
                sin: Args::sin.arg(),
                cache: kernel::CacheArgs {
                    lengths: Optional { value: Args::key_lengths.arg(), given: self.key_lengths },
                    table: Optional { value: Args::block_table.arg(), given: self.paged.is_some() },
                    pages: small(places.pages),
                    shift: places.shift,
                    capacity: small(places.capacity),
                    count: small(places.count),
                },
                threads: small(threads),
                queries: part(0, units[0]),
                keys: part(keys, units[1]),
                values: part(values, units[2]),
                steps: DivisorArgs::new(small(steps)),
                chunks: DivisorArgs::new(small(chunks)),
                value_chunks: DivisorArgs::new(small(value_copying)),
                rotating: small(rotating),
                copying: small(copying),
                value_copying: small(value_copying),
                group: small(group),
                rotary_dim: small(rotary_dim),
                head_dim: small(head_dim),
                value_dim: small(value_dim),
                rows: tables.map_or(0, |tables| tables.rows as u64),
                row_len: small(tables.map_or(0, |tables| tables.width(rotary_dim))),
            };
            let table = tables.map_or(self.dtype, |tables| tables.dtype);
            let rotate = Rotate { dtype: self.dtype, table, config };
            launches.push(match self.float8 {
                Some(Float8Cache { k_scale, v_scale }) => {
                    let steps = [k_scale.step(), v_scale.step()];
                    let (k_scale, v_scale) = (Args::k_scale.arg(), Args::v_scale.arg());
                    let args = kernel::ScaledArgs { of: args, k_scale, v_scale, steps };
                    plan::launch(OP, &kernel::AppendScaled(rotate), args, target, grid)?
                }
                None => plan::launch(OP, &kernel::Append(rotate), args, target, grid)?,
            });
        }
        Ok(Variant { alignment: config.alignment(self.dtype), steps: launches })
    }
}

impl Operation for AppendKvCacheDesc {
    type Args<'a> = AppendKvCacheArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = AppendKvCacheArgs<'a>;
        if self.float8.is_some() {
            Float8Cache::check(OP, "k", self.dtype, target)?;
        }
        let (places, dtype, batch) = (self.check()?, self.dtype, self.k.shape[0]);
        let (cache, heads) = (if self.float8.is_some() { DType::F8E4M3 } else { dtype }, self.k.shape[2]);
        let scales = |slot: InSlot, scale: Option<CacheScale>| {
            slot.holds(DType::F32, scale.map_or(0, |scale| scale.len(heads))).optional(scale.is_some())
        };
        let absent = Layout::contiguous([0; 4]);
        let ([q, q_rotated], given) = (self.q.unwrap_or([absent; 2]), self.q.is_some());
        let rotates = self.rotation.is_some();
        let (table, len) =
            self.rotation.map_or((dtype, 0), |CacheRotation { rotary_dim, tables, .. }| {
                (tables.dtype, tables.rows * tables.width(rotary_dim))
            });
        let pages = batch.checked_mul(places.pages);
        let pages = pages.ok_or_else(|| refused("paged", places.pages, "a table that can be addressed"))?;
        let tensors = Args::specs([
            Args::q.laid_out(dtype, q).optional(given),
            Args::k.laid_out(dtype, self.k),
            Args::v.laid_out(dtype, self.v),
            Args::cos.holds(table, len).optional(rotates),
            Args::sin.holds(table, len).optional(rotates),
            Args::key_lengths.holds(DType::I32, batch).optional(self.key_lengths),
            Args::block_table.holds(DType::I32, pages).optional(self.paged.is_some()),
            scales(Args::k_scale, self.float8.map(|float8| float8.k_scale)),
            scales(Args::v_scale, self.float8.map(|float8| float8.v_scale)),
            Args::q_rotated.laid_out(dtype, q_rotated).in_place().optional(given),
            Args::k_cache.laid_out(cache, self.k_cache),
            Args::v_cache.laid_out(cache, self.v_cache),
        ]);
        let variants = tuning::configs(self).into_iter();
        let variants =
            variants.map(|config| self.variant(&places, config, target)).collect::<Result<_, _>>()?;
        Ok(Plan::of(OP, Direction::Forward, target, tensors, variants))
    }
}
