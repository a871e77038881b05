//! Which problems are computed from copies, and the launches of that.

use warpwright_dsl::{Elem, In, KernelArgs, Optional, Strided};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::LaunchStep;

use super::super::kernels::backward::PlaceArgs;
use super::super::kernels::split_f16::kernels::{
    Operands, SplitF16Forward, SplitF16ForwardArgs, SplitF16Sweep, SplitF16SweepArgs,
};
use super::super::kernels::split_f16::split::{SplitArgs, SplitCopy};
use super::super::kernels::split_f16::{TILE, TILES_OF_A_BLOCK};
use super::super::layout::BlockLayout;
use super::super::options::{self, Common};
use super::super::score::{ProblemArgs, ScoreKind};
use super::super::tuning::{self, Config, Mma, SplitF16, Work};
use super::super::{
    AttentionArgs, AttentionBackwardArgs, AttentionBackwardDesc, AttentionDesc, AttentionInputs, OP,
};
use crate::PlanError;
use crate::catalogue::Direction;
use crate::plan::{self, Layout, Variant};
use crate::tensors::{InSlot, OutSlot};

/// Most elements of a tensor that is copied.
const MOST: usize = 1 << 40;
/// Bytes of a pair, and of a factor.
const SIZE: u64 = 4;

/// The places of the copies in the workspace.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Places {
    width: u32,
    heads: [u32; 2],
    /// Rows of a head of queries and of keys.
    pitches: [u32; 2],
    batch: u32,
    workspace: OutSlot,
    /// Bytes of the workspace before them.
    before: u64,
}

/// Layouts of the kernel that reads copies and of the one that computes what they do not suit.
pub(in crate::attention) type Layouts = (SplitF16, Mma);

/// A tensor that is copied: number among the copies, the tensor, whether its rows are queries, and its layout.
type CopiedTensor<'a> = (u64, InSlot, bool, &'a Layout);

impl Places {
    fn new(c: &Common, width: u32, workspace: OutSlot, before: u64) -> Self {
        let whole = TILE * TILES_OF_A_BLOCK;
        let pitches = [c.queries, c.keys].map(|rows| rows.next_multiple_of(whole));
        Self { width, heads: [c.heads, c.heads / c.group.max(1)], pitches, batch: c.batch, workspace, before }
    }

    /// Rows of the copies of queries, or of keys.
    fn rows(&self, keys: usize) -> u64 {
        u64::from(self.batch) * u64::from(self.heads[keys]) * u64::from(self.pitches[keys])
    }

    /// Bytes of the copies in front of number `number`, and of all of them: queries, keys, values, and the gradient of the result.
    fn pairs(&self, number: u64) -> u64 {
        let keys = number.saturating_sub(1).min(2);
        let queries = number - keys;
        (queries * self.rows(0) + keys * self.rows(1)) * u64::from(self.width) * SIZE
    }

    fn factors(&self, number: u64) -> u64 {
        self.pairs(number) / u64::from(self.width * TILE)
    }

    /// Bytes of `copies` copies with their factors.
    fn bytes(&self, copies: u64) -> u64 {
        self.pairs(copies) + self.factors(copies)
    }

    /// The arguments of copies `numbers`, which are all that there are.
    fn written<const N: usize>(&self, numbers: [u64; N]) -> ([In<Elem>; N], [In<f32>; N]) {
        let at = |number, which: usize| self.offsets(number, N as u64)[which];
        let copies = numbers.map(|number| self.workspace.written_at(at(number, 0)));
        (copies, numbers.map(|number| self.workspace.written_at(at(number, 1))))
    }

    /// Offsets of pairs and factors of copy `number` of `copies`.
    fn offsets(&self, number: u64, copies: u64) -> [u64; 2] {
        [self.before + self.pairs(number), self.before + self.pairs(copies) + self.factors(number)]
    }
}

/// Whether kernels that read copies take a problem, and whether it has enough rows besides.
fn suits(c: &Common, dtype: DType, layouts: &[Layout], enough: u32) -> (bool, bool) {
    let small = layouts.iter().all(|layout| layout.elements().is_some_and(|n| n < MOST));
    let taken = dtype == DType::F32
        && small
        && !c.kind.packed
        && !c.kind.blocks
        && options::granularity(layouts) >= 4;
    (taken, taken && c.longest.iter().all(|rows| *rows >= enough))
}

/// The given layouts, if kernels take the problem with them.
fn chosen(taken: bool, c: &Common, target: Target, layouts: Layouts) -> Result<Layouts, PlanError> {
    let (split, tensors) = layouts;
    let fits = split.width == tensors.width && c.widest() <= split.width as usize && target.sm >= 80;
    if taken && fits && split.rows().max(tensors.rows()) <= TILE * TILES_OF_A_BLOCK {
        return Ok(layouts);
    }
    let expected = "layouts for the head_dim, and f32 in rows of 16 bytes";
    Err(PlanError::Parameter { op: OP, parameter: "layouts", got: format!("{layouts:?}"), expected })
}

fn recorded_copy(
    c: &Common,
    places: &Places,
    target: Target,
    (number, slot, queries, layout): CopiedTensor<'_>,
    copies: u64,
) -> Result<Option<LaunchStep>, PlanError> {
    let which = usize::from(!queries);
    let (heads, pitch) = (places.heads[which], places.pitches[which]);
    let Some(grid) = c.grid(pitch / TILE, heads)? else { return Ok(None) };
    let [pairs, factors] = places.offsets(number, copies);
    let args = SplitArgs {
        x: Strided { data: slot.arg(), strides: layout.steps() },
        rows: layout.shape[1] as u32,
        width: layout.shape[3] as u32,
        heads,
        pairs: places.workspace.arg_at(pairs),
        factors: places.workspace.arg_at(factors),
        pitch,
        lengths: Optional { value: AttentionInputs::key_lengths.arg(), given: c.kind.lengths && !queries },
    };
    let kernel = plan::recorded(OP, &SplitCopy { width: places.width }, target)?;
    Ok(Some(LaunchStep::new(kernel, grid, args.values())))
}

impl AttentionDesc {
    /// The layout of the kernel that reads copies, if it takes the problem.
    pub(in crate::attention) fn split_f16(&self, c: &Common, target: Target) -> Option<Layouts> {
        let (_, suits) = suits(c, self.dtype, &[self.q, self.k, self.v, self.o], tuning::ENOUGH_ROWS_FORWARD);
        tuning::split_f16(Work::Forward, target, c.widest(), c.kind)
            .filter(|_| suits && self.options.paged.is_none())
    }

    /// The layouts, if kernels that read copies take the problem with them.
    pub(super) fn check_split_f16(
        &self,
        c: &Common,
        target: Target,
        layouts: Layouts,
    ) -> Result<Layouts, PlanError> {
        let (taken, _) = suits(c, self.dtype, &[self.q, self.k, self.v, self.o], 0);
        chosen(taken && self.options.paged.is_none(), c, target, layouts)
    }

    /// The kernels that read copies.
    pub(super) fn split_f16_variant(
        &self,
        c: &Common,
        target: Target,
        layouts: Layouts,
    ) -> Result<Variant, PlanError> {
        Ok(Variant { alignment: 16, steps: self.split_f16_steps(c, target, layouts)? })
    }

    /// Bytes of the workspace that it takes.
    pub(in crate::attention) fn split_f16_bytes(c: &Common, (split, _): Layouts) -> u64 {
        Places::new(c, split.width, AttentionArgs::workspace, 0).bytes(3)
    }

    pub(in crate::attention) fn split_f16_steps(
        &self,
        c: &Common,
        target: Target,
        (split, tensors): Layouts,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let places = Places::new(c, split.width, AttentionArgs::workspace, 0);
        let mut steps = Vec::new();
        let copies = [
            (0, AttentionInputs::q, true, &self.q),
            (1, AttentionInputs::k, false, &self.k),
            (2, AttentionInputs::v, false, &self.v),
        ];
        for copied in copies {
            steps.extend(recorded_copy(c, &places, target, copied, 3)?);
        }
        let (copies, factors) = places.written([0, 1, 2]);
        let args = SplitF16ForwardArgs {
            problem: ProblemArgs::new(c),
            results: self.results(),
            copies,
            factors,
            pitches: places.pitches,
        };
        for from in [Operands::Copies(split), Operands::Tensors(tensors)] {
            let Some(grid) = c.grid(c.longest[0].div_ceil(from.layout().rows()), c.heads)? else { continue };
            let kernel = plan::recorded(OP, &SplitF16Forward { kind: c.kind, from }, target)?;
            let shared = from.layout().shared_bytes(DType::F32, 1);
            steps.push(plan::launch_step(OP, kernel, grid, args.values(), shared)?);
        }
        Ok(steps)
    }
}

impl AttentionBackwardDesc {
    fn layouts(&self) -> [Layout; 8] {
        let desc = &self.forward;
        [desc.q, desc.k, desc.v, desc.o, self.dy, self.dq, self.dk, self.dv]
    }

    /// The layouts of the sweeps that read copies, if they take the problem, or those that somebody has chosen.
    pub(in crate::attention) fn split_f16(
        &self,
        c: &Common,
        target: Target,
        with: Option<[Layouts; 2]>,
    ) -> Result<Option<Vec<(Work, Layouts)>>, PlanError> {
        let (taken, suits) = suits(c, self.forward.dtype, &self.layouts(), tuning::ENOUGH_ROWS_BACKWARD);
        let of = |work| match with {
            Some([queries, keys]) => {
                let layouts = if work == Work::Queries { queries } else { keys };
                chosen(taken, c, target, layouts).map(Some)
            }
            None => Ok(tuning::split_f16(work, target, c.widest(), c.kind).filter(|_| suits)),
        };
        let Some((first, _)) = of(Work::Queries)? else { return Ok(None) };
        let sweeps = Work::of_split_f16(first.width).iter();
        sweeps.map(|work| Ok(of(*work)?.map(|layouts| (*work, layouts)))).collect()
    }

    /// Bytes of the workspace that they take.
    pub(in crate::attention) fn split_f16_bytes(c: &Common, sweeps: &[(Work, Layouts)]) -> u64 {
        sweeps.first().map_or(0, |(_, (split, _))| {
            Places::new(c, split.width, AttentionBackwardArgs::workspace, 0).bytes(4)
        })
    }

    /// All launches; the copies begin after so many bytes of the workspace.
    pub(in crate::attention) fn split_f16_steps(
        &self,
        c: &Common,
        target: Target,
        sweeps: &[(Work, Layouts)],
        before: u64,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let desc = &self.forward;
        let Some((_, (first, tensors))) = sweeps.first() else { return Ok(Vec::new()) };
        let places = Places::new(c, first.width, AttentionBackwardArgs::workspace, before);
        let copies = [
            (0, AttentionInputs::q, true, &desc.q),
            (1, AttentionInputs::k, false, &desc.k),
            (2, AttentionInputs::v, false, &desc.v),
            (3, AttentionBackwardArgs::dy, true, &self.dy),
        ];
        let statistics = PlaceArgs::interleaved(c);
        let mut steps = Vec::new();
        steps.extend(self.delta(c, target, tensors.vector, &statistics)?);
        for copied in copies {
            steps.extend(recorded_copy(c, &places, target, copied, 4)?);
        }
        for &(work, (split, tensors)) in sweeps {
            let queries = work == Work::Queries;
            let [of_queries, of_keys] = c.longest;
            let (rows, heads) = if queries { (of_queries, c.heads) } else { (of_keys, places.heads[1]) };
            let (copies, factors) = places.written([0, 1, 2, 3]);
            let sweep = self.sweep_args(c, queries);
            let args = SplitF16SweepArgs { sweep, copies, factors, pitches: places.pitches };
            for from in [Operands::Copies(split), Operands::Tensors(tensors)] {
                let Some(grid) = c.grid(rows.div_ceil(from.layout().rows()), heads)? else { continue };
                let kernel = plan::recorded(OP, &SplitF16Sweep { work, kind: c.kind, from }, target)?;
                let shared = from.layout().shared_bytes(DType::F32, work.stationary());
                steps.push(plan::launch_step(OP, kernel, grid, args.values(), shared)?);
            }
        }
        steps.extend(self.bias_gradient(c, target, Config::Mma(*tensors))?);
        steps.extend(self.sink_gradient(c, target, &statistics)?);
        Ok(steps)
    }
}

/// Every kernel that tuning can choose, with each of the modifications.
pub(in crate::attention) fn kernels(
    direction: Direction,
    target: Target,
    kinds: &[ScoreKind],
) -> Result<Vec<Kernel>, PlanError> {
    let mut out = Vec::new();
    for width in [64, 128] {
        let forward = direction == Direction::Forward;
        let works = if forward { &[Work::Forward][..] } else { Work::of_split_f16(width) };
        for (&work, &kind) in works.iter().flat_map(|work| kinds.iter().map(move |kind| (work, kind))) {
            let Some((split, tensors)) = tuning::split_f16(work, target, width as usize, kind) else {
                continue;
            };
            for from in [Operands::Copies(split), Operands::Tensors(tensors)] {
                out.push(match work {
                    Work::Forward => plan::recorded(OP, &SplitF16Forward { kind, from }, target)?,
                    _ => plan::recorded(OP, &SplitF16Sweep { work, kind, from }, target)?,
                });
            }
        }
        if forward && target.sm >= 80 {
            out.push(plan::recorded(OP, &SplitCopy { width }, target)?);
        }
    }
    Ok(out)
}
