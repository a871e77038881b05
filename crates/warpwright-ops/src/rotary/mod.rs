//! Rotary position embedding: queries and keys rotated by angles of their positions, and its gradient.
//!
//! A head of `head_dim` elements has `rotary_dim / 2` pairs; pair `i` at position `p` is rotated by an angle `a = p theta_i`:
//!
//! - `y_1 = x_1 cos a - x_2 sin a`
//! - `y_2 = x_2 cos a + x_1 sin a`
//!
//! (Su et al. 2021, arXiv:2104.09864, equation 34.) Elements from `rotary_dim` on are copied. The gradient is the rotation back,
//! with `-sin a`, of the gradient of the result.
//!
//! | tensor | shape | |
//! |---|---|---|
//! | `q`, `q_rotated` | `[batch, steps, heads, head_dim]` | any strides, the last 1 |
//! | `k`, `k_rotated` | `[batch, steps, num_kv_heads, head_dim]`, if there are keys | any strides, the last 1 |
//! | `cos`, `sin` | `[rows, rotary_dim / 2]`, or `[batch, rows, ..]`; with [`RotaryTables::repeated`] `[.., rotary_dim]` | contiguous; f32 or the type of `q` |
//! | `positions` | `[batch, steps]` or `[steps]`, i32 or i64 | contiguous |
//!
//! [`Pairing`] says which elements make a pair. Tables of `rotary_dim` elements have each number twice, where the two elements of its
//! pair are: `cat(angles, angles)` with halves, as Llama's of the transformers package, `repeat_interleave(angles, 2)` with neighbours.
//! The second of the two is not read.
//!
//! Row `p` of the tables is that of position `p`. The position of a step is its index, or is read from `positions`. Elements of a
//! position that the tables have no row for are NaN where they would be rotated, and nothing is read.
//!
//! A result may replace its input exactly: then elements from `rotary_dim` on are left as they are. A tensor
//! `[batch, heads, steps, head_dim]` is one of other strides, and queries and keys of one fused tensor may be one `q` with all of their
//! heads. Half types are computed in f32 and rounded once.

mod functions;
pub(crate) mod kernel;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;

use warpwright_dsl::divide::DivisorArgs;
use warpwright_dsl::{In, Optional, Out, Strided};
use warpwright_ptx::{DType, Target};

use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Layout, Operation, Plan, TensorSpec, Variant, small};
use crate::tensors::tensors;
use tuning::Config;

pub use functions::*;

const OP: &str = "rotary_embedding";

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// `x[i]` and `x[i + rotary_dim / 2]`, as in GPT-NeoX and Llama.
    #[default]
    Half,
    /// `x[2 i]` and `x[2 i + 1]`, as in the paper and GPT-J.
    Interleaved,
}

/// The tables of cosines and sines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RotaryTables {
    /// Element type: f32 or that of the queries.
    pub dtype: DType,
    /// 1, or as many as the queries have, each with rows of its own.
    pub batch: usize,
    /// Positions of each.
    pub rows: usize,
    /// Whether a row has each number twice, where the elements of its pair are.
    pub repeated: bool,
}

/// The tensor of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RotaryPositions {
    /// Element type: i32 or i64.
    pub dtype: DType,
    /// 1, or as many as the queries have.
    pub batch: usize,
}

/// Queries, and keys if there are any, rotated by the angles of their positions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RotaryDesc {
    /// Element type of queries and keys.
    pub dtype: DType,
    /// Layout of the queries: `[batch, steps, heads, head_dim]`.
    pub q: Layout,
    /// Layout of the keys.
    pub k: Option<Layout>,
    /// Layout of the rotated queries.
    pub q_rotated: Layout,
    /// Layout of the rotated keys.
    pub k_rotated: Option<Layout>,
    /// Which elements are rotated together.
    pub pairing: Pairing,
    /// Elements of a head that are rotated, an even number.
    pub rotary_dim: usize,
    /// The tables.
    pub tables: RotaryTables,
    /// The positions; the index of the step if there are none.
    pub positions: Option<RotaryPositions>,
}

/// The gradients of [`RotaryDesc`]; its layouts of rotated tensors are those of the gradients that are given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RotaryBackwardDesc {
    /// The forward function.
    pub forward: RotaryDesc,
}

tensors! {
    /// The tables of the angles.
    #[derive(Clone, Copy)]
    pub struct RotaryAngles<'a> {
        /// Cosines.
        cos: In,
        /// Sines.
        sin: In,
        /// Positions, if described.
        positions: Option<In>,
    }
}

tensors! {
    /// Tensors of [`RotaryDesc`].
    pub struct RotaryArgs<'a> {
        /// The tables and the positions.
        angles: Group<RotaryAngles>,
        /// Queries, or `None` if `q_rotated` holds them.
        q: InPlace<q_rotated>,
        /// Keys, if described, or `None` if `k_rotated` holds them.
        k: InPlace<k_rotated>,
        /// The rotated queries.
        q_rotated: Out,
        /// The rotated keys, if described.
        k_rotated: Option<Out>,
    }
}

tensors! {
    /// Tensors of [`RotaryBackwardDesc`].
    pub struct RotaryBackwardArgs<'a> {
        /// The tables and the positions.
        angles: Group<RotaryAngles>,
        /// The gradient of the rotated queries, or `None` if `dq` holds it.
        dq_rotated: InPlace<dq>,
        /// The gradient of the rotated keys, if described, or `None` if `dk` holds it.
        dk_rotated: InPlace<dk>,
        /// The gradient of the queries.
        dq: Out,
        /// The gradient of the keys, if described.
        dk: Option<Out>,
    }
}

/// One of queries and keys on its way through a kernel.
struct Rotated {
    x: In<warpwright_dsl::Elem>,
    y: Out<warpwright_dsl::Elem>,
    from: Layout,
    to: Layout,
}

/// Whether a tensor has one of some types.
fn among(
    op: &'static str,
    tensor: &'static str,
    got: DType,
    expected: &'static [DType],
) -> Result<(), PlanError> {
    match expected.contains(&got) {
        true => Ok(()),
        false => Err(PlanError::DType { op, tensor, got, expected }),
    }
}

impl RotaryTables {
    /// Elements of a row.
    pub(crate) fn width(&self, rotary_dim: usize) -> usize {
        if self.repeated { rotary_dim } else { rotary_dim / 2 }
    }

    /// Whether they have a type for queries and keys of `dtype`.
    pub(crate) fn check_dtype(&self, op: &'static str, dtype: DType) -> Result<(), PlanError> {
        let expected: &'static [DType] = match dtype {
            DType::F32 => &[DType::F32],
            DType::F64 => &[DType::F32, DType::F64],
            DType::F16 => &[DType::F32, DType::F16],
            _ => &[DType::F32, DType::BF16],
        };
        among(op, "cos", self.dtype, expected)
    }

    /// Whether they can be addressed.
    pub(crate) fn check_size(&self, op: &'static str, rotary_dim: usize) -> Result<(), PlanError> {
        let width = self.width(rotary_dim);
        let len = self.batch.checked_mul(self.rows).and_then(|n| n.checked_mul(width));
        if len.and_then(|n| n.checked_mul(8)).is_none_or(|n| i64::try_from(n).is_err()) {
            let got = format!("[{}, {}, {width}]", self.batch, self.rows);
            return Err(PlanError::refused(op, "tables", got, "a tensor that can be addressed"));
        }
        Ok(())
    }
}

impl RotaryDesc {
    fn check(&self) -> Result<(), PlanError> {
        fn refused(name: &'static str, got: impl ToString, expected: &'static str) -> PlanError {
            PlanError::refused(OP, name, got, expected)
        }
        PlanError::check_floats(OP, "q", self.dtype)?;
        self.tables.check_dtype(OP, self.dtype)?;
        let [batch, steps, _, head_dim] = self.q.shape;
        let expected = "even, from 2 to head_dim";
        if !(2..=head_dim).contains(&self.rotary_dim) || !self.rotary_dim.is_multiple_of(2) {
            return Err(refused("rotary_dim", format!("{} of {head_dim}", self.rotary_dim), expected));
        }
        if self.k.is_some() != self.k_rotated.is_some() {
            let got = if self.k.is_some() { "absent" } else { "given" };
            return Err(refused("k_rotated", got, "given where k is"));
        }
        let mut all = vec![("q", self.q), ("q_rotated", self.q_rotated)];
        all.extend(self.k.map(|k| ("k", k)));
        all.extend(self.k_rotated.map(|k| ("k_rotated", k)));
        for (name, layout) in &all {
            let [b, s, _, d] = layout.shape;
            let shape = || format!("{:?}", layout.shape);
            if [b, s, d] != [batch, steps, head_dim] {
                return Err(refused(name, shape(), "[batch, steps, .., head_dim] of the queries"));
            }
            let bytes = layout.elements().and_then(|n| n.checked_mul(self.dtype.bytes()));
            if bytes.is_none_or(|n| i64::try_from(n).is_err()) || d > i32::MAX as usize {
                return Err(refused(name, shape(), "a tensor that can be addressed"));
            }
            if !layout.rows_are_contiguous() {
                return Err(refused(name, format!("strides {:?}", layout.strides), "a last stride of 1"));
            }
        }
        for (name, x, y) in
            [("q_rotated", Some(self.q), Some(self.q_rotated)), ("k_rotated", self.k, self.k_rotated)]
        {
            let (Some(x), Some(y)) = (x, y) else { continue };
            if x.shape != y.shape {
                return Err(refused(name, format!("{:?}", y.shape), "the shape of what is rotated"));
            }
        }
        self.check_tables(batch, steps)?;
        let Some(RotaryPositions { dtype, batch: of_positions }) = self.positions else { return Ok(()) };
        among(OP, "positions", dtype, &[DType::I64, DType::I32])?;
        if ![1, batch].contains(&of_positions) {
            return Err(refused("positions.batch", of_positions, "1 or the batch of the queries"));
        }
        Ok(())
    }

    fn check_tables(&self, batch: usize, steps: usize) -> Result<(), PlanError> {
        let tables = self.tables;
        if ![1, batch].contains(&tables.batch) {
            return Err(PlanError::refused(
                OP,
                "tables.batch",
                tables.batch,
                "1 or the batch of the queries",
            ));
        }
        if self.positions.is_none() && tables.rows < steps {
            let got = format!("{} for {steps} steps", tables.rows);
            return Err(PlanError::refused(OP, "tables.rows", got, "a row for each step"));
        }
        tables.check_size(OP, self.rotary_dim)
    }

    /// The specifications of the tables and the positions.
    fn angles(&self) -> Vec<crate::tensors::SlotSpec> {
        let len = self.tables.batch * self.tables.rows * self.tables.width(self.rotary_dim);
        let positions = self.positions.unwrap_or(RotaryPositions { dtype: DType::I64, batch: 0 });
        vec![
            RotaryAngles::cos.holds(self.tables.dtype, len),
            RotaryAngles::sin.holds(self.tables.dtype, len),
            RotaryAngles::positions
                .holds(positions.dtype, positions.batch * self.q.shape[1])
                .optional(self.positions.is_some()),
        ]
    }

    /// The plan for tensors in these places; `inverse` rotates back.
    fn plan_for<O: Operation>(
        &self,
        target: Target,
        tensors: Vec<TensorSpec>,
        [q, k]: [Rotated; 2],
        inverse: bool,
    ) -> Result<Plan<O>, PlanError> {
        let outputs = [("q", q.to), ("k", k.to)];
        if let Some((name, layout)) = outputs.iter().find(|(_, layout)| !layout.is_without_overlap()) {
            let got = format!("strides {:?} of {:?}", layout.strides, layout.shape);
            return Err(PlanError::refused(OP, name, got, "a result without overlap"));
        }
        let [batch, steps, _, head_dim] = self.q.shape;
        let layouts = [q.from, q.to, k.from, k.to];
        let mut variants = Vec::new();
        for config in tuning::configs(self, &layouts) {
            let chunks = config.chunks(self.rotary_dim, head_dim);
            let tokens = batch.saturating_mul(steps);
            let heads = [self.q, self.k.unwrap_or(Layout::contiguous([0; 4]))].map(|x| x.shape[2]);
            let group = tuning::heads_per_thread(tokens.saturating_mul(chunks.iter().sum()), heads, target);
            let groups = heads.map(|heads| heads.div_ceil(group));
            let threads = [chunks.iter().sum(), groups.iter().sum(), tokens];
            let threads = threads.into_iter().fold(1usize, usize::saturating_mul);
            let mut launches = Vec::new();
            if let Some(grid) = plan::cover(OP, threads, tuning::THREADS)? {
                if threads > i32::MAX as usize {
                    let blocks = u64::from(grid[0]);
                    let limit = (1 << 31) / u64::from(tuning::THREADS);
                    return Err(PlanError::TooLarge { op: OP, blocks, limit });
                }
                let def = kernel::Rotate { dtype: self.dtype, table: self.tables.dtype, config };
                let args = self.kernel_args(&config, [&q, &k], [threads, group], groups, inverse);
                launches.push(plan::launch(OP, &def, args, target, grid)?);
            }
            variants.push(Variant { alignment: config.alignment(self.dtype), steps: launches });
        }
        let direction = if inverse { Direction::Backward } else { Direction::Forward };
        Ok(Plan::of(OP, direction, target, tensors, variants))
    }

    fn kernel_args(
        &self,
        config: &Config,
        heads: [&Rotated; 2],
        [threads, group]: [usize; 2],
        groups: [usize; 2],
        inverse: bool,
    ) -> kernel::Args {
        let [_, steps, _, head_dim] = self.q.shape;
        let [rotating, copying] = config.chunks(self.rotary_dim, head_dim).map(small);
        let [q, k] = heads.map(|of| kernel::HeadsArgs {
            x: Strided { data: of.x.clone(), strides: of.from.steps() },
            y: Strided { data: of.y.clone(), strides: of.to.steps() },
            heads: small(of.from.shape[2]),
        });
        let per_batch = |batch: usize, len: usize| if batch > 1 { len as u64 } else { 0 };
        let (positions, width) = (self.positions, self.tables.width(self.rotary_dim));
        kernel::Args {
            q,
            k,
            cos: RotaryAngles::cos.arg(),
            sin: RotaryAngles::sin.arg(),
            positions: Optional { value: RotaryAngles::positions.arg(), given: positions.is_some() },
            words: positions.map_or(0, |positions| (positions.dtype.bytes() / 4) as u32),
            threads: small(threads),
            chunks: DivisorArgs::new(rotating + copying),
            groups: DivisorArgs::new(small(groups.iter().sum())),
            steps: DivisorArgs::new(small(steps)),
            rotating,
            copying,
            q_groups: small(groups[0]),
            group: small(group),
            rotary_dim: small(self.rotary_dim),
            head_dim: small(head_dim),
            rows: self.tables.rows as u64,
            row_len: small(width),
            table_stride: per_batch(self.tables.batch, self.tables.rows * width),
            position_stride: per_batch(positions.map_or(1, |positions| positions.batch), steps),
            inverse: u32::from(inverse),
        }
    }
}

/// Layouts of keys that are not there.
const ABSENT: Layout = Layout::contiguous([0; 4]);

impl Operation for RotaryDesc {
    type Args<'a> = RotaryArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = RotaryArgs<'a>;
        self.check()?;
        let (k, k_rotated) = (self.k.unwrap_or(ABSENT), self.k_rotated.unwrap_or(ABSENT));
        let (given, dtype) = (self.k.is_some(), self.dtype);
        let mut specs = self.angles();
        specs.extend([
            Args::q.laid_out(dtype, self.q),
            Args::k.laid_out(dtype, k).optional(given),
            Args::q_rotated.laid_out(dtype, self.q_rotated).in_place(),
            Args::k_rotated.laid_out(dtype, k_rotated).in_place().optional(given),
        ]);
        let q = Rotated { x: Args::q.arg(), y: Args::q_rotated.arg(), from: self.q, to: self.q_rotated };
        let k = Rotated { x: Args::k.arg(), y: Args::k_rotated.arg(), from: k, to: k_rotated };
        self.plan_for(target, Args::specs(specs), [q, k], false)
    }
}

impl Operation for RotaryBackwardDesc {
    type Args<'a> = RotaryBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = RotaryBackwardArgs<'a>;
        let desc = &self.forward;
        desc.check()?;
        let (k, k_rotated) = (desc.k.unwrap_or(ABSENT), desc.k_rotated.unwrap_or(ABSENT));
        let (given, dtype) = (desc.k.is_some(), desc.dtype);
        let mut specs = desc.angles();
        specs.extend([
            Args::dq_rotated.laid_out(dtype, desc.q_rotated),
            Args::dk_rotated.laid_out(dtype, k_rotated).optional(given),
            Args::dq.laid_out(dtype, desc.q).in_place(),
            Args::dk.laid_out(dtype, k).in_place().optional(given),
        ]);
        let q = Rotated { x: Args::dq_rotated.arg(), y: Args::dq.arg(), from: desc.q_rotated, to: desc.q };
        let k = Rotated { x: Args::dk_rotated.arg(), y: Args::dk.arg(), from: k_rotated, to: k };
        desc.plan_for(target, Args::specs(specs), [q, k], true)
    }
}

/// Checks that the tables have a row for each position.
///
/// # Errors
/// Names the first position without one.
pub fn check_positions(positions: &[i64], rows: usize) -> Result<(), PlanError> {
    let fits = |p: i64| usize::try_from(p).is_ok_and(|p| p < rows);
    match positions.iter().position(|p| !fits(*p)) {
        Some(at) => {
            let got = format!("{} at {at}", positions[at]);
            Err(PlanError::refused(OP, "positions", got, "from 0 to below the rows of the tables"))
        }
        None => Ok(()),
    }
}
