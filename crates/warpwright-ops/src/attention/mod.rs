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
//!
//! `heads` is a multiple of `num_kv_heads`: query head `h` reads key head `h / (heads / num_kv_heads)`. A tensor
//! `[batch, heads, sequence, head_dim]` is one of other strides.
//!
//! The position of a query is its index with [`Alignment::TopLeft`], and its index plus keys minus queries with
//! [`Alignment::BottomRight`], which lets the last query see the last key. `causal` leaves it the keys up to its position, a
//! window those near it. With `key_lengths` the keys of each sequence end there, for positions too.
//!
//! Gradients of f64 with more than 128 elements a head do not fit the shared memory of sm_75: there they have no plan.
//!
//! Half types are computed in f32 and rounded once, probabilities to the type of the values; f32 and f64 throughout in
//! themselves. Results are the same from run to run.

mod backward;
mod engine;
mod forward;
mod functions;
mod options;
pub mod reference;
mod score;
mod simt;
mod tensor_core;
pub mod tuning;

use warpwright_dsl::{In, KernelArgs, KernelDef, Out};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{LaunchStep, TensorMut, TensorRef};

use crate::catalogue::{Direction, Entry};
use crate::plan::{self, Layout, Operation, Plan, PlanParts, TensorSpec, Variant};
use crate::{Binding, PlanError};

pub use functions::*;
use options::Common;
pub use options::{AlibiSlopes, Alignment, AttentionOptions, Window};
use score::ScoreKind;
use tuning::{Config, Simt, Work};

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

/// Tensors of [`AttentionDesc`].
#[derive(Debug)]
pub struct AttentionArgs<'a> {
    /// Queries.
    pub q: TensorRef<'a>,
    /// Keys.
    pub k: TensorRef<'a>,
    /// Values.
    pub v: TensorRef<'a>,
    /// What is added to the scores, if described.
    pub bias: Option<TensorRef<'a>>,
    /// Slopes of the heads on the distance, if described.
    pub slopes: Option<TensorRef<'a>>,
    /// Keys of each sequence, if described.
    pub key_lengths: Option<TensorRef<'a>>,
    /// The result.
    pub o: TensorMut<'a>,
    /// Logarithms of the sums of exponentials.
    pub lse: TensorMut<'a>,
}

/// The tensors that both directions read, in slot order.
fn inputs(c: &Common, desc: &AttentionDesc) -> Vec<TensorSpec> {
    let read = |name, layout: Layout| {
        TensorSpec::read(name, desc.dtype, layout.elements().unwrap_or(0)).laid_out(layout)
    };
    let AttentionOptions { bias, alibi, key_lengths, .. } = desc.options;
    let absent = |name| TensorSpec::read(name, desc.dtype, 0).optional(false);
    let batch = desc.q.shape[0];
    let slopes = match alibi {
        Some(AlibiSlopes::PerBatchAndHead) => batch * desc.q.shape[2],
        _ => desc.q.shape[2],
    };
    vec![
        read("q", desc.q),
        read("k", desc.k),
        read("v", desc.v),
        bias.map_or_else(|| absent("bias"), |bias| read("bias", bias)),
        TensorSpec::read("slopes", DType::F32, slopes).optional(c.kind.alibi),
        TensorSpec::read("key_lengths", DType::I32, batch).optional(key_lengths),
    ]
}

impl AttentionDesc {
    fn rows(&self) -> usize {
        self.q.shape[0] * self.q.shape[2] * self.q.shape[1]
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

    fn bind<'a>(args: Self::Args<'a>) -> Vec<Binding<'a>> {
        vec![
            args.q.into(),
            args.k.into(),
            args.v.into(),
            args.bias.into(),
            args.slopes.into(),
            args.key_lengths.into(),
            args.o.into(),
            args.lse.into(),
        ]
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

    fn planned(&self, target: Target, config: Option<Config>) -> Result<Plan<Self>, PlanError> {
        let c = Common::new(self, &self.outputs())?;
        let mut tensors = inputs(&c, self);
        let statistics = statistics_type(self.dtype);
        tensors.push(TensorSpec::write("o", self.dtype, self.o.elements().unwrap_or(0)).laid_out(self.o));
        tensors.push(TensorSpec::write("lse", statistics, self.rows()));
        let layouts = [self.q, self.k, self.v, self.o];
        let configs = match config {
            Some(config) => vec![config],
            None => c.configs(self.dtype, Work::Forward, target, &layouts)?,
        };
        let mut variants = Vec::new();
        for config in configs {
            let mut steps = Vec::new();
            let tiles = c.queries.div_ceil(config.rows());
            if let Some(grid) = c.grid(tiles, c.heads)? {
                let [batch, row, head] = options::steps(&self.o);
                let args = forward::ForwardArgs::new(&c, Out::slot(6), batch, row, head, Out::slot(7));
                let def = forward::Forward { dtype: self.dtype, kind: c.kind, config };
                steps.push(step(&def, config, Work::Forward, self.dtype, target, grid, args.values())?);
            }
            variants.push(Variant { alignment: alignment(self.dtype, config.vector()), steps });
        }
        let parts = PlanParts {
            op: OP,
            direction: Direction::Forward,
            target,
            tensors,
            variants,
            workspace_bytes: 0,
        };
        Ok(Plan::new(parts))
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
}

/// Tensors of [`AttentionBackwardDesc`].
#[derive(Debug)]
pub struct AttentionBackwardArgs<'a> {
    /// Queries.
    pub q: TensorRef<'a>,
    /// Keys.
    pub k: TensorRef<'a>,
    /// Values.
    pub v: TensorRef<'a>,
    /// What was added to the scores.
    pub bias: Option<TensorRef<'a>>,
    /// Slopes of the heads on the distance.
    pub slopes: Option<TensorRef<'a>>,
    /// Keys of each sequence.
    pub key_lengths: Option<TensorRef<'a>>,
    /// The result.
    pub o: TensorRef<'a>,
    /// Logarithms of the sums of exponentials.
    pub lse: TensorRef<'a>,
    /// The gradient of the result.
    pub dy: TensorRef<'a>,
    /// The gradient of the queries.
    pub dq: TensorMut<'a>,
    /// The gradient of the keys.
    pub dk: TensorMut<'a>,
    /// The gradient of the values.
    pub dv: TensorMut<'a>,
    /// [`Plan::workspace`]
    pub workspace: Option<TensorMut<'a>>,
}

impl Operation for AttentionBackwardDesc {
    type Args<'a> = AttentionBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        self.planned(target, None)
    }

    fn bind<'a>(args: Self::Args<'a>) -> Vec<Binding<'a>> {
        vec![
            args.q.into(),
            args.k.into(),
            args.v.into(),
            args.bias.into(),
            args.slopes.into(),
            args.key_lengths.into(),
            args.o.into(),
            args.lse.into(),
            args.dy.into(),
            args.dq.into(),
            args.dk.into(),
            args.dv.into(),
            args.workspace.into(),
        ]
    }
}

impl AttentionBackwardDesc {
    /// The plan with given configurations of the sweeps for the gradients of queries and of keys and values, for
    /// comparisons.
    ///
    /// # Errors
    /// As [`Operation::plan`].
    pub fn plan_with(&self, target: Target, configs: [Config; 2]) -> Result<Plan<Self>, PlanError> {
        self.planned(target, Some(configs))
    }

    fn planned(&self, target: Target, configs: Option<[Config; 2]>) -> Result<Plan<Self>, PlanError> {
        let Self { forward: desc, dy, dq, dk, dv } = self;
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
        let mut tensors = inputs(&c, desc);
        let spec = |spec: fn(_, _, _) -> TensorSpec, name, layout: &Layout| {
            spec(name, dtype, layout.elements().unwrap_or(0)).laid_out(*layout)
        };
        tensors.push(spec(TensorSpec::read, "o", &desc.o));
        tensors.push(TensorSpec::read("lse", statistics, desc.rows()));
        tensors.push(spec(TensorSpec::read, "dy", dy));
        tensors.extend(outputs.map(|(name, layout)| spec(TensorSpec::write, name, layout)));
        tensors.push(TensorSpec::workspace(statistics, desc.rows()));
        let layouts = [desc.q, desc.k, desc.v, desc.o, *dy, *dq, *dk, *dv];
        let [of_queries, of_keys] = match configs {
            Some(configs) => configs.map(|config| vec![config]),
            None => [
                c.configs(dtype, Work::Queries, target, &layouts)?,
                c.configs(dtype, Work::KeysAndValues, target, &layouts)?,
            ],
        };
        let mut variants = Vec::new();
        for (queries, keys) in of_queries.into_iter().zip(of_keys) {
            let vector = queries.vector().max(keys.vector());
            let mut steps = Vec::new();
            steps.extend(self.delta(&c, target, vector)?);
            steps.extend(self.sweep(&c, target, Work::Queries, queries)?);
            for work in Work::of_keys(keys) {
                steps.extend(self.sweep(&c, target, *work, keys)?);
            }
            variants.push(Variant { alignment: alignment(dtype, vector), steps });
        }
        let workspace_bytes = (desc.rows() * statistics.bytes()) as u64;
        let direction = Direction::Backward;
        Ok(Plan::new(PlanParts { op: OP, direction, target, tensors, variants, workspace_bytes }))
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
        let (rows, heads) = if queries { (c.queries, c.heads) } else { (c.keys, c.heads / c.group) };
        let tiles = rows.div_ceil(config.rows());
        let Some(grid) = c.grid(tiles, heads)? else { return Ok(None) };
        let first = if queries { &self.dq } else { &self.dk };
        let [dy, first, second] = [&self.dy, first, &self.dv].map(options::steps);
        let args = backward::SweepArgs::new(
            c,
            In::slot(8),
            dy[0],
            dy[1],
            dy[2],
            In::slot(7),
            In::slot(12),
            Out::slot(if queries { 9 } else { 10 }),
            first[0],
            first[1],
            first[2],
            Out::slot(11),
            second[0],
            second[1],
            second[2],
        );
        let dtype = self.forward.dtype;
        let def = backward::Sweep { work, dtype, kind: c.kind, config };
        step(&def, config, work, dtype, target, grid, args.values()).map(Some)
    }

    /// The sums of `dy o`; `None` if there are no queries.
    fn delta(&self, c: &Common, target: Target, vector: u32) -> Result<Option<LaunchStep>, PlanError> {
        let desc = &self.forward;
        let rows = desc.rows();
        let Some(grid) = plan::cover(OP, rows, backward::Delta::ROWS)? else { return Ok(None) };
        let [o, dy] = [options::steps(&desc.o), options::steps(&self.dy)];
        let args = backward::DeltaArgs {
            o: In::slot(6),
            o_batch: o[0],
            o_row: o[1],
            o_head: o[2],
            dy: In::slot(8),
            dy_batch: dy[0],
            dy_row: dy[1],
            dy_head: dy[2],
            delta: Out::slot(12),
            queries: c.queries,
            heads: c.heads,
            width: c.value_width,
            rows: rows as u64,
        };
        let kernel = plan::recorded(OP, &backward::Delta { dtype: desc.dtype, vector }, target)?;
        Ok(Some(LaunchStep::new(kernel, grid, args.values())))
    }
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

/// One architecture of each amount of shared memory and each set of instructions.
const TARGETS_OF_TESTS: [Target; 5] =
    [Target::sm(75), Target::sm(80), Target::sm(86), Target::sm(90), Target::sm(120)];

/// The family's rows of the catalogue.
pub(crate) fn entries() -> Vec<Entry> {
    let entry = |direction| Entry { op: OP, direction, dtypes: &DType::FLOATS, targets: &TARGETS_OF_TESTS };
    [Direction::Forward, Direction::Backward].map(entry).to_vec()
}

/// Kernels that a plan of `entry` can hold: each configuration with every modification, the usual ones without, and some
/// with one alone.
pub(crate) fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let plain = ScoreKind::default();
    let all = ScoreKind { band: true, softcap: true, bias: true, alibi: true, lengths: true };
    let alone = [
        ScoreKind { band: true, ..plain },
        ScoreKind { softcap: true, ..plain },
        ScoreKind { bias: true, ..plain },
        ScoreKind { alibi: true, ..plain },
        ScoreKind { lengths: true, ..plain },
    ];
    let mut out = Vec::new();
    let works: &[Work] = match entry.direction {
        Direction::Forward => &[Work::Forward],
        Direction::Backward => &[Work::Queries, Work::KeysAndValues],
    };
    for &planned in works {
        for config in tuning::all(dtype, planned, target) {
            let mut kinds = vec![all];
            match config {
                Config::TensorCore(_) => kinds.extend([plain, alone[0]]),
                Config::Simt(Simt { vector: 1, .. }) => {}
                Config::Simt(Simt { width: 64, .. }) if dtype == DType::F32 => {
                    kinds.push(plain);
                    kinds.extend(alone);
                }
                Config::Simt(_) => kinds.push(plain),
            }
            let works = if planned == Work::KeysAndValues { Work::of_keys(config) } else { &[planned] };
            for (&work, kind) in works.iter().flat_map(|work| kinds.iter().map(move |kind| (work, *kind))) {
                out.push(match work {
                    Work::Forward => plan::recorded(OP, &forward::Forward { dtype, kind, config }, target)?,
                    _ => plan::recorded(OP, &backward::Sweep { work, dtype, kind, config }, target)?,
                });
            }
        }
    }
    if entry.direction == Direction::Backward {
        for vector in tuning::vectors(dtype) {
            let def = backward::Delta { dtype, vector: *vector };
            out.push(plan::recorded(OP, &def, target)?);
        }
    }
    Ok(out)
}
