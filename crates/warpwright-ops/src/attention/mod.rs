//! Scaled dot-product attention in one pass over keys and values, and its gradients.
//!
//! `o = softmax(score) v` with `score = softcap(softmax_scale q k^T) + bias - slope distance`, where a query that sees no key
//! gives zeros. `lse`, the logarithm of the sum of exponentials, is minus infinity there; the gradients need it. The
//! online softmax is that of Milakov and Gimelshein (2018), the tiling and the backward pass are those of Dao et al. (2022,
//! 2023). No matrix of the scores is ever stored.
//!
//! | tensor | shape | |
//! |---|---|---|
//! | `q`, `o` | `[batch, queries, heads, head_dim]`, `o` with the values' head_dim | any strides, the last 1 |
//! | `k`, `v` | `[batch, keys, num_kv_heads, head_dim]`; head_dim up to 256, that of `v` may differ | any strides, the last 1 |
//! | `lse` | `[batch, heads, queries]`, f32, or f64 for f64 | contiguous |
//! | `bias` | `[batch, heads, queries, keys]`, each of them may be 1 | any strides |
//! | `slopes` | `[heads]` or `[batch, heads]`, f32 | contiguous |
//! | `key_lengths` | `[batch]`, i32 | contiguous |
//! | `query_offsets`, `key_offsets` | `[sequences + 1]`, i32: where packed sequences begin, see [`Packed`] | contiguous |
//! | `block_table` | `[batch, pages]`, i32: the pages of each sequence, see [`Paged`] | contiguous |
//! | `sinks` | `[heads]`, f32: a logit that takes part in the sum of exponentials and in nothing else | contiguous |
//! | `random` | `[2]`, i64: seed and offset of what is dropped | contiguous |
//!
//! `heads` is a multiple of `num_kv_heads`: query head `h` reads key head `h / (heads / num_kv_heads)`. A tensor
//! `[batch, heads, sequence, head_dim]` is one of other strides.
//!
//! The position of a query is its index with [`Alignment::TopLeft`], and its index plus keys minus queries with
//! [`Alignment::BottomRight`], which lets the last query see the last key. `causal` leaves it the keys up to its position, a
//! window those near it. With `key_lengths` the keys of each sequence end there, for positions too.
//!
//! Kernels follow no number out of a tensor: a key length is cut to the keys that there are, offsets to the rows of the tensor and to
//! what does not decrease, and a number of the block table to the pages that exist. What is on the host can be checked there:
//! [`check_key_lengths`], [`check_offsets`], [`check_block_table`].
//!
//! Dropout leaves out probabilities after the softmax: that of query `i` and key `j` is the element `2^28 row + j` of
//! [`Dropout`](crate::Dropout), where `row` is the number of the query's `lse`. Both directions drop the same ones, whatever their
//! tiles. Seed and offset are read on the device, so that a captured graph can draw anew.
//!
//! Up to 16 queries without dropout, and keys in pages, are for kernels that share out the keys of a head to many blocks; their
//! results are put together in a fixed order.
//!
//! Gradients of f64 with more than 128 elements a head do not fit the shared memory of sm_75: there they have no plan.
//!
//! Half types are computed in f32 and rounded once, probabilities to the type of the values; f32 and f64 throughout in
//! themselves. On tensor cores numbers of f32 are sums of two of fewer bits, with the errors of f32; for long sequences the workspace holds
//! copies of the inputs for that, of their size. Results are the same from run to run.

mod backward;
mod bias_gradient;
mod decode;
mod dropout;
mod engine;
mod forward;
mod functions;
mod options;
mod pairs;
mod parts;
pub mod reference;
pub(crate) mod samples;
mod score;
mod simt;
mod softmax;
mod streams;
mod tensor_core;
pub mod tuning;
mod warpgroup;

use warpwright_dsl::{Elem, In, KernelArgs, KernelDef, Optional, Out, Strided};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{LaunchStep, TensorRef};

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Layout, Operation, Plan, PlanParts, TensorSpec, Variant};
use crate::tensors::{InSlot, OutSlot, SlotSpec, tensors};

use backward::PlaceArgs;
use forward::ResultArgs;
pub use functions::*;
use options::Common;
pub use options::{
    AlibiSlopes, Alignment, AttentionOptions, Packed, Paged, Window, check_block_table, check_key_lengths,
    check_offsets,
};
use score::{ProblemArgs, ScoreKind};
use tuning::{Config, DecodeConfig, Pairs, Sweeps, TensorCore, Work};

const OP: &str = "attention";

/// The type of `lse` and of the other sums over a row.
pub(crate) fn statistics_type(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// `o` and `lse` from queries, keys and values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionDesc {
    /// Element type of all tensors but `lse`, `slopes` and `key_lengths`.
    pub dtype: DType,
    /// Layout of the queries.
    pub q: Layout,
    /// Layout of the keys.
    pub k: Layout,
    /// Layout of the values.
    pub v: Layout,
    /// Layout of the result.
    pub o: Layout,
    /// Masks and modifications of the scores.
    pub options: AttentionOptions,
}

tensors! {
    /// The tensors that both directions read. Those that are optional are there if the descriptor says so.
    #[derive(Clone, Copy)]
    pub struct AttentionInputs<'a> {
        /// Queries.
        q: In,
        /// Keys.
        k: In,
        /// Values.
        v: In,
        /// What is added to the scores.
        bias: Option<In>,
        /// Slopes of the heads on the distance.
        slopes: Option<In>,
        /// Keys of each sequence.
        key_lengths: Option<In>,
        /// Where the queries of packed sequences begin and end.
        query_offsets: Option<In>,
        /// Where the keys of packed sequences begin and end.
        key_offsets: Option<In>,
        /// The pages of each sequence.
        block_table: Option<In>,
        /// A further logit of each head.
        sinks: Option<In>,
        /// Seed and offset of what is dropped.
        random: Option<In>,
    }
}

impl<'a> AttentionInputs<'a> {
    /// Queries, keys and values alone.
    pub const fn new(q: TensorRef<'a>, k: TensorRef<'a>, v: TensorRef<'a>) -> Self {
        Self {
            q,
            k,
            v,
            bias: None,
            slopes: None,
            key_lengths: None,
            query_offsets: None,
            key_offsets: None,
            block_table: None,
            sinks: None,
            random: None,
        }
    }
}

tensors! {
    /// Tensors of [`AttentionDesc`].
    pub struct AttentionArgs<'a> {
        /// What is read.
        inputs: Group<AttentionInputs>,
        /// The result.
        o: Out,
        /// Logarithms of the sums of exponentials.
        lse: Out,
        /// [`Plan::workspace`]
        workspace: Option<Out>,
    }
}

/// What plans of both directions say of the tensors that they read.
fn inputs(c: &Common, desc: &AttentionDesc) -> Vec<SlotSpec> {
    let (dtype, batch, heads) = (desc.dtype, c.batch as usize, desc.q.shape[2]);
    let AttentionOptions { bias, alibi, key_lengths, packed, paged, sinks, dropout, .. } = desc.options;
    let slopes = match alibi {
        Some(AlibiSlopes::PerBatchAndHead) => batch * heads,
        _ => heads,
    };
    let integers = |slot: InSlot, len, there| slot.holds(DType::I32, len).optional(there);
    let pages = paged.map_or(0, |paged| paged.pages);
    vec![
        AttentionInputs::q.laid_out(dtype, desc.q),
        AttentionInputs::k.laid_out(dtype, desc.k),
        AttentionInputs::v.laid_out(dtype, desc.v),
        match bias {
            Some(bias) => AttentionInputs::bias.laid_out(dtype, bias),
            None => AttentionInputs::bias.holds(dtype, 0).optional(false),
        },
        AttentionInputs::slopes.holds(DType::F32, slopes).optional(c.kind.alibi),
        integers(AttentionInputs::key_lengths, batch, key_lengths),
        integers(AttentionInputs::query_offsets, batch + 1, packed.is_some()),
        integers(AttentionInputs::key_offsets, batch + 1, packed.is_some()),
        integers(AttentionInputs::block_table, batch * pages, paged.is_some()),
        AttentionInputs::sinks.holds(DType::F32, heads).optional(sinks),
        AttentionInputs::random.holds(DType::I64, 2).optional(dropout.is_some()),
    ]
}

impl AttentionDesc {
    fn rows(&self) -> usize {
        self.q.shape[0] * self.q.shape[2] * self.q.shape[1]
    }

    /// What forward kernels write.
    fn results(&self) -> ResultArgs {
        ResultArgs {
            o: Strided { data: AttentionArgs::o.arg(), strides: options::steps(&self.o) },
            lse: AttentionArgs::lse.arg(),
            sinks: Optional { value: AttentionInputs::sinks.arg(), given: self.options.sinks },
        }
    }

    fn outputs(&self) -> [(&'static str, &Layout); 1] {
        [("o", &self.o)]
    }
}

impl Operation for AttentionDesc {
    type Args<'a> = AttentionArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.planned(target, None)
    }
}

impl AttentionDesc {
    /// The plan with one given configuration, for comparisons.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, config: Config) -> Result<Plan<Self>, PlanError> {
        self.planned(target, Some(config))
    }

    /// The plan for few queries with one given configuration and number of parts, for comparisons.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_decode_with(
        &self,
        target: Target,
        config: DecodeConfig,
        splits: u32,
    ) -> Result<Plan<Self>, PlanError> {
        let c = Common::new(self, &self.outputs())?;
        let variants = self.decode_variants(&c, target, &[config], splits)?;
        Ok(self.with_variants(&c, target, variants, self.splits_bytes(splits)))
    }

    fn planned(&self, target: Target, config: Option<Config>) -> Result<Plan<Self>, PlanError> {
        let c = Common::new(self, &self.outputs())?;
        let layouts = [self.q, self.k, self.v, self.o];
        let usual = self.options.packed.is_none() && self.options.dropout.is_none();
        let few = (1..=tuning::FEW_QUERIES).contains(&self.q.shape[1]) && usual;
        if config.is_none() && (few || self.options.paged.is_some()) {
            let mut configs = c.decode_configs(self.dtype, target, &layouts)?;
            let mut splits = c.splits(self.dtype, target, configs[0]);
            if let Some((streams, of_streams)) = self.streams(&c, target, &layouts) {
                configs.retain(|config| !matches!(config, DecodeConfig::TensorCore(_)));
                configs.insert(0, DecodeConfig::Streams(streams));
                splits = of_streams;
            }
            let variants = self.decode_variants(&c, target, &configs, splits)?;
            return Ok(self.with_variants(&c, target, variants, self.splits_bytes(splits)));
        }
        let groups = match config {
            None => self.warpgroups(&c, target),
            Some(_) => None,
        };
        let configs = match config {
            Some(config) => vec![config],
            None => c.configs(self.dtype, Work::Forward, target, &layouts)?,
        };
        let mut variants = Vec::new();
        let mut workspace = 0;
        if let Some(groups) = groups {
            variants.push(self.warpgroup_variant(&c, target, groups, None)?);
        }
        if let Some(pairs) = self.pairs(&c, target).filter(|_| config.is_none()) {
            variants.push(Variant { alignment: 16, steps: self.pairs_steps(&c, target, pairs)? });
            workspace = Self::pairs_bytes(&c, pairs);
        }
        for config in configs {
            let alignment = alignment(self.dtype, config.vector());
            // One kernel for an alignment.
            if variants.iter().any(|variant: &Variant| variant.alignment == alignment) {
                continue;
            }
            let mut steps = Vec::new();
            let tiles = c.longest[0].div_ceil(config.rows());
            if let Some(grid) = c.grid(tiles, c.heads)? {
                let args = forward::ForwardArgs { problem: ProblemArgs::new(&c), results: self.results() };
                let def = forward::Forward { dtype: self.dtype, kind: c.kind, config };
                steps.push(step(&def, config, Work::Forward, self.dtype, target, grid, args.values())?);
            }
            variants.push(Variant { alignment, steps });
        }
        Ok(self.with_variants(&c, target, variants, workspace))
    }

    /// The layout for few queries whose tiles tensor copies bring, if they reach keys and values, and the number of parts.
    fn streams(&self, c: &Common, target: Target, layouts: &[Layout]) -> Option<(tuning::Streams, u32)> {
        let reached = options::granularity(layouts) >= 8 && warpgroup::reach(&[self.k, self.v]);
        let page = if self.options.paged.is_some() { self.k.shape[1] } else { usize::MAX };
        let layouts = tuning::stream_layouts(self.dtype, target, c.widest(), page);
        let units = |layout| c.units(DecodeConfig::Streams(layout));
        let first = *layouts.first().filter(|_| reached)?;
        tuning::streams(&layouts, target, units(first), c.keys.into())
    }

    /// The kernel for few queries, and where the keys are in several parts the one that puts them together.
    fn decode_variants(
        &self,
        c: &Common,
        target: Target,
        configs: &[DecodeConfig],
        splits: u32,
    ) -> Result<Vec<Variant>, PlanError> {
        let of = |config: &DecodeConfig| {
            let alignment = alignment(self.dtype, config.vector());
            Ok(Variant { alignment, steps: self.decode_steps(c, target, *config, splits)? })
        };
        configs.iter().map(of).collect()
    }

    fn decode_steps(
        &self,
        c: &Common,
        target: Target,
        config: DecodeConfig,
        splits: u32,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let (dtype, rows) = (self.dtype, self.rows() as u64);
        let key_heads = c.heads / c.group.max(1);
        let tiles = c.row_tiles(config);
        let Some(grid) = c.grid(tiles.saturating_mul(splits), key_heads)? else { return Ok(Vec::new()) };
        let logarithms = self.parts_bytes(splits);
        let page_rows = if self.options.paged.is_some() { self.k.shape[1] } else { 1 << 31 };
        let pages = self.options.paged.map_or(1, |_| self.k.shape[0]);
        let args = decode::DecodeArgs {
            problem: ProblemArgs::new(c),
            results: self.results(),
            parts: decode::PartArgs {
                o: AttentionArgs::workspace.arg(),
                lse: AttentionArgs::workspace.arg_at(logarithms),
                splits,
                rows,
            },
            pages: decode::PageArgs {
                table: Optional {
                    value: AttentionInputs::block_table.arg(),
                    given: self.options.paged.is_some(),
                },
                step: self.options.paged.map_or(0, |paged| paged.pages as u64),
                shift: page_rows.trailing_zeros(),
                count: u32::try_from(pages).unwrap_or(u32::MAX).min(i32::MAX.cast_unsigned()),
            },
        };
        let (args, kernel) = if let DecodeConfig::Streams(config) = config {
            let [keys, values] = config.panels(dtype);
            let args = decode::StreamArgs {
                of: args,
                k_boxes: warpgroup::boxes(&AttentionInputs::k.arg(), &self.k, keys)?,
                v_boxes: warpgroup::boxes(&AttentionInputs::v.arg(), &self.v, values)?,
            };
            let def = decode::StreamDecode { dtype, kind: c.kind, config };
            (args.values(), plan::recorded(OP, &def, target)?)
        } else {
            let def = decode::Decode { dtype, kind: c.kind, config };
            (args.values(), plan::recorded(OP, &def, target)?)
        };
        let first = LaunchStep::new(kernel, grid, args).with_dynamic_shared(config.shared_bytes(dtype));
        if splits == 1 {
            return Ok(vec![first]);
        }
        let ResultArgs { o, lse, sinks } = self.results();
        let args = parts::CombineArgs {
            parts: AttentionArgs::workspace.written(),
            part_lse: AttentionArgs::workspace.written_at(logarithms),
            splits,
            rows,
            sinks,
            o,
            lse,
            queries: c.queries,
            heads: c.heads,
            width: c.value_width,
        };
        let kernel = plan::recorded(OP, &parts::Combine { dtype, vector: config.result_vector() }, target)?;
        let Some(grid) = plan::cover(OP, self.rows(), 1)? else { return Ok(vec![first]) };
        Ok(vec![first, LaunchStep::new(kernel, grid, args.values())])
    }

    /// Bytes of the parts of the result, which their logarithms follow in the workspace.
    fn parts_bytes(&self, splits: u32) -> u64 {
        let size = statistics_type(self.dtype).bytes() as u64;
        (self.rows() as u64) * u64::from(splits) * self.v.shape[3] as u64 * size
    }

    /// Bytes of the parts and of their logarithms, where there is more than one part.
    fn splits_bytes(&self, splits: u32) -> u64 {
        if splits > 1 {
            self.parts_bytes(splits) / self.v.shape[3] as u64 * (self.v.shape[3] as u64 + 1)
        } else {
            0
        }
    }

    /// The plan with a workspace of so many bytes.
    fn with_variants(
        &self,
        c: &Common,
        target: Target,
        variants: Vec<Variant>,
        workspace_bytes: u64,
    ) -> Plan<Self> {
        let statistics = statistics_type(self.dtype);
        let outputs = [
            AttentionArgs::o.laid_out(self.dtype, self.o),
            AttentionArgs::lse.holds(statistics, self.rows()),
            AttentionArgs::workspace.scratch(statistics, workspace_bytes as usize / statistics.bytes()),
        ];
        let tensors = AttentionArgs::specs(inputs(c, self).into_iter().chain(outputs));
        let direction = Direction::Forward;
        Plan::new(PlanParts { op: OP, direction, target, tensors, variants, workspace_bytes })
    }
}

/// The gradients of [`AttentionDesc`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionBackwardDesc {
    /// The forward function.
    pub forward: AttentionDesc,
    /// Layout of the gradient of the result.
    pub dy: Layout,
    /// Layout of the gradient of the queries.
    pub dq: Layout,
    /// Layout of the gradient of the keys.
    pub dk: Layout,
    /// Layout of the gradient of the values.
    pub dv: Layout,
    /// Whether there is a gradient of the bias, contiguous and of its shape: the sum over what it is broadcast over.
    pub dbias: bool,
    /// Whether there is a gradient of the sinks.
    pub dsinks: bool,
}

tensors! {
    /// Tensors of [`AttentionBackwardDesc`].
    pub struct AttentionBackwardArgs<'a> {
        /// What the forward function read.
        inputs: Group<AttentionInputs>,
        /// The result.
        o: In,
        /// Logarithms of the sums of exponentials.
        lse: In,
        /// The gradient of the result.
        dy: In,
        /// The gradient of the queries.
        dq: Out,
        /// The gradient of the keys.
        dk: Out,
        /// The gradient of the values.
        dv: Out,
        /// The gradient of the bias, if described.
        dbias: Option<Out>,
        /// The gradient of the sinks, if described.
        dsinks: Option<Out>,
        /// [`Plan::workspace`]
        workspace: Option<Out>,
    }
}

impl Operation for AttentionBackwardDesc {
    type Args<'a> = AttentionBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.planned(target, None)
    }
}

impl AttentionBackwardDesc {
    /// The plan with given configurations of the sweeps for the gradients of queries and of keys and values, for
    /// comparisons.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, configs: [Config; 2]) -> Result<Plan<Self>, PlanError> {
        self.planned(target, Some(Chosen::Blocks(configs)))
    }

    /// The same with `wgmma`.
    ///
    /// # Errors
    /// As [`Operation::plan`], and if the problem has something that these kernels do not take.
    pub fn plan_sweeps_with(&self, target: Target, sweeps: Sweeps) -> Result<Plan<Self>, PlanError> {
        self.planned(target, Some(Chosen::Groups(sweeps)))
    }

    /// The same with kernels that read copies: one layout for queries, one for keys and values.
    ///
    /// # Errors
    /// As [`Operation::plan`], and if the problem has something that these kernels do not take.
    pub fn plan_pairs_with(
        &self,
        target: Target,
        layouts: [(Pairs, TensorCore); 2],
    ) -> Result<Plan<Self>, PlanError> {
        self.planned(target, Some(Chosen::Copies(layouts)))
    }

    fn planned(&self, target: Target, chosen: Option<Chosen>) -> Result<Plan<Self>, PlanError> {
        let Self { forward: desc, dy, dq, dk, dv, dbias, dsinks } = self;
        options::trainable(desc, *dbias, *dsinks)?;
        let outputs = [("dq", dq), ("dk", dk), ("dv", dv)];
        let c = Common::new(desc, &desc.outputs())?;
        options::same_shapes(&[
            ("dy", dy, &desc.o),
            ("dq", dq, &desc.q),
            ("dk", dk, &desc.k),
            ("dv", dv, &desc.v),
        ])?;
        options::check_outputs(&outputs)?;
        let (dtype, statistics) = (desc.dtype, statistics_type(desc.dtype));
        let groups = self.warpgroups(&c, target, chosen)?;
        let workspace = match groups {
            Some(_) => 2 * c.batch as usize * c.heads as usize * warpgroup::sweeps::pitch(&c) as usize,
            None => 2 * desc.rows(),
        };
        let workspace_bytes = (workspace * statistics.bytes()) as u64;
        // What comes after it begins at an address like that of the workspace.
        let before = workspace_bytes.next_multiple_of(256);
        let pairs = match chosen {
            None => self.pairs(&c, target, None)?,
            Some(Chosen::Copies(layouts)) => self.pairs(&c, target, Some(layouts))?,
            Some(_) => None,
        };
        let workspace_bytes = match &pairs {
            Some(pairs) => before + Self::pairs_bytes(&c, pairs),
            None => workspace_bytes,
        };
        let tensors = self.tensors(&c, workspace_bytes);
        let layouts = [desc.q, desc.k, desc.v, desc.o, *dy, *dq, *dk, *dv];
        let [of_queries, of_keys, of_bias] = match chosen {
            Some(Chosen::Blocks([queries, keys])) => [queries, keys, queries].map(|config| vec![config]),
            Some(Chosen::Groups(_) | Chosen::Copies(_)) => [const { Vec::new() }; 3],
            None => [
                c.configs(dtype, Work::Queries, target, &layouts)?,
                c.configs(dtype, Work::KeysAndValues, target, &layouts)?,
                c.configs(dtype, Work::Bias, target, &layouts)?,
            ],
        };
        let mut variants = Vec::new();
        if let Some(configs) = groups {
            variants.push(Variant { alignment: 16, steps: self.warpgroup_steps(&c, target, configs)? });
        }
        if let Some(pairs) = pairs {
            variants.push(Variant { alignment: 16, steps: self.pairs_steps(&c, target, &pairs, before)? });
        }
        for ((queries, keys), bias) in of_queries.into_iter().zip(of_keys).zip(of_bias) {
            let vector = queries.vector().max(keys.vector());
            let alignment = alignment(dtype, vector);
            // One kernel for an alignment.
            if variants.iter().any(|variant: &Variant| variant.alignment == alignment) {
                continue;
            }
            let mut steps = Vec::new();
            let places = PlaceArgs::pairs(&c);
            steps.extend(self.delta(&c, target, vector, &places)?);
            steps.extend(self.sweep(&c, target, Work::Queries, queries)?);
            for work in Work::of_keys(keys) {
                steps.extend(self.sweep(&c, target, *work, keys)?);
            }
            steps.extend(self.bias_gradient(&c, target, bias)?);
            steps.extend(self.sink_gradient(&c, target, &places)?);
            variants.push(Variant { alignment, steps });
        }
        let direction = Direction::Backward;
        Ok(Plan::new(PlanParts { op: OP, direction, target, tensors, variants, workspace_bytes }))
    }

    /// What a plan with a workspace of so many bytes says of the tensors.
    fn tensors(&self, c: &Common, workspace_bytes: u64) -> Vec<TensorSpec> {
        let Self { forward: desc, dbias, dsinks, .. } = self;
        let (dtype, statistics) = (desc.dtype, statistics_type(desc.dtype));
        let of_bias = desc.options.bias.filter(|_| *dbias).map(|bias| Layout::contiguous(bias.shape));
        let others = [
            AttentionBackwardArgs::o.laid_out(dtype, desc.o),
            AttentionBackwardArgs::lse.holds(statistics, desc.rows()),
            AttentionBackwardArgs::dy.laid_out(dtype, self.dy),
            AttentionBackwardArgs::dq.laid_out(dtype, self.dq),
            AttentionBackwardArgs::dk.laid_out(dtype, self.dk),
            AttentionBackwardArgs::dv.laid_out(dtype, self.dv),
            match of_bias {
                Some(bias) => AttentionBackwardArgs::dbias.laid_out(dtype, bias),
                None => AttentionBackwardArgs::dbias.holds(dtype, 0).optional(false),
            },
            AttentionBackwardArgs::dsinks.holds(DType::F32, desc.q.shape[2]).optional(*dsinks),
            AttentionBackwardArgs::workspace
                .scratch(statistics, workspace_bytes as usize / statistics.bytes()),
        ];
        AttentionBackwardArgs::specs(inputs(c, desc).into_iter().chain(others))
    }

    /// What a sweep writes: its first gradient and that of the values.
    fn written(&self, queries: bool) -> [Strided<Out<Elem>, 3>; 2] {
        let first = match queries {
            true => (AttentionBackwardArgs::dq, &self.dq),
            false => (AttentionBackwardArgs::dk, &self.dk),
        };
        let strided = |(slot, layout): (OutSlot, &Layout)| Strided {
            data: slot.arg(),
            strides: options::steps(layout),
        };
        [first, (AttentionBackwardArgs::dv, &self.dv)].map(strided)
    }

    /// The gradient of the result.
    fn dy(&self) -> Strided<In<Elem>, 3> {
        Strided { data: AttentionBackwardArgs::dy.arg(), strides: options::steps(&self.dy) }
    }

    fn sweep_args(&self, c: &Common, queries: bool) -> backward::SweepArgs {
        let [first, second] = self.written(queries);
        let statistics = AttentionBackwardArgs::workspace.written();
        backward::SweepArgs { problem: ProblemArgs::new(c), dy: self.dy(), statistics, first, second }
    }

    /// One sweep; `None` if there are no rows.
    fn sweep(
        &self,
        c: &Common,
        target: Target,
        work: Work,
        config: Config,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let queries = work == Work::Queries;
        let [of_queries, of_keys] = c.longest;
        let (rows, heads) = if queries { (of_queries, c.heads) } else { (of_keys, c.heads / c.group) };
        let tiles = rows.div_ceil(config.rows());
        let Some(grid) = c.grid(tiles, heads)? else { return Ok(None) };
        let args = self.sweep_args(c, queries);
        let dtype = self.forward.dtype;
        let def = backward::Sweep { work, dtype, kind: c.kind, config };
        step(&def, config, work, dtype, target, grid, args.values()).map(Some)
    }

    /// The gradient of the bias; `None` if there is none.
    fn bias_gradient(
        &self,
        c: &Common,
        target: Target,
        config: Config,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let Some(bias) = self.forward.options.bias.filter(|_| self.dbias) else { return Ok(None) };
        let [batch, heads, rows, columns] = bias.shape;
        let tiles = |extent: usize, longest: u32, size: u32| {
            let all = u64::from(longest.div_ceil(size));
            // Where the bias has one for all queries or keys, one block has them all.
            if extent == 1 { 1 } else { all }
        };
        let along =
            tiles(rows, c.longest[0], config.rows()) * tiles(columns, c.longest[1], config.tile_columns());
        let along = u32::try_from(along).map_err(|_| PlanError::TooLarge {
            op: OP,
            blocks: along,
            limit: i32::MAX as u64,
        })?;
        let grid = [along, heads as u32, batch as u32];
        c.grid(along, c.heads)?;
        if grid.contains(&0) {
            return Ok(None);
        }
        let args = bias_gradient::BiasArgs {
            problem: ProblemArgs::new(c),
            dy: self.dy(),
            statistics: AttentionBackwardArgs::workspace.written(),
            dbias: Strided {
                data: AttentionBackwardArgs::dbias.arg(),
                strides: Layout::contiguous(bias.shape).strides.map(i64::cast_unsigned),
            },
            one: bias.shape.map(|extent| u32::from(extent == 1)),
            batches: c.batch,
            longest: c.longest,
        };
        let dtype = self.forward.dtype;
        let def = bias_gradient::BiasGradient { dtype, kind: c.kind, config };
        step(&def, config, Work::Bias, dtype, target, grid, args.values()).map(Some)
    }

    /// The gradients of the sinks; `None` if there are none.
    fn sink_gradient(
        &self,
        c: &Common,
        target: Target,
        places: &PlaceArgs,
    ) -> Result<Option<LaunchStep>, PlanError> {
        if !self.dsinks || c.heads == 0 {
            return Ok(None);
        }
        let args = bias_gradient::SinkArgs {
            problem: ProblemArgs::new(c),
            sinks: AttentionInputs::sinks.arg(),
            lse: AttentionBackwardArgs::lse.arg(),
            statistics: AttentionBackwardArgs::workspace.written(),
            dsinks: AttentionBackwardArgs::dsinks.arg(),
            batches: c.batch,
            places: places.clone(),
        };
        let kind = ScoreKind { packed: c.kind.packed, ..ScoreKind::default() };
        let def = bias_gradient::SinkGradient { dtype: self.forward.dtype, kind };
        Ok(Some(LaunchStep::new(plan::recorded(OP, &def, target)?, [c.heads, 1, 1], args.values())))
    }

    /// The sums of `dy o`; `None` if there are no queries.
    fn delta(
        &self,
        c: &Common,
        target: Target,
        vector: u32,
        places: &PlaceArgs,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let desc = &self.forward;
        let width = tuning::tile_width(c.value_width as usize).unwrap_or(tuning::MAX_WIDTH as u32);
        let def = backward::Delta { dtype: desc.dtype, vector, width };
        let Some([tiles, heads, _]) = c.grid(c.queries.div_ceil(def.rows()), c.heads)? else {
            return Ok(None);
        };
        // The rows of packed sequences are those of one batch.
        let grid = [tiles, heads, desc.q.shape[0] as u32];
        let args = backward::DeltaArgs {
            o: Strided { data: AttentionBackwardArgs::o.arg(), strides: options::steps(&desc.o) },
            dy: self.dy(),
            lse: AttentionBackwardArgs::lse.arg(),
            statistics: AttentionBackwardArgs::workspace.arg(),
            queries: c.queries,
            heads: c.heads,
            width: c.value_width,
            places: places.clone(),
        };
        let kernel = plan::recorded(OP, &def, target)?;
        Ok(Some(LaunchStep::new(kernel, grid, args.values())))
    }
}

/// Kernels of the sweeps that somebody has chosen.
#[derive(Clone, Copy)]
enum Chosen {
    Blocks([Config; 2]),
    Groups(Sweeps),
    Copies([pairs::Layouts; 2]),
}

/// Alignment in bytes of accesses of `vector` elements.
fn alignment(dtype: DType, vector: u32) -> u64 {
    (dtype.bytes() as u64 * u64::from(vector)).min(16)
}

fn step<D: KernelDef>(
    def: &D,
    config: Config,
    work: Work,
    dtype: DType,
    target: Target,
    grid: [u32; 3],
    args: Vec<warpwright_ptx::ArgValue>,
) -> Result<LaunchStep, PlanError> {
    let kernel = plan::recorded(OP, def, target)?;
    Ok(LaunchStep::new(kernel, grid, args).with_dynamic_shared(config.shared_bytes(dtype, work.own())))
}
