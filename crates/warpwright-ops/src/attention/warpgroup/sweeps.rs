//! How the sweeps for the gradients are laid out on sm_90a, and their launches.

use warpwright_dsl::{DType, Elem, In, K, KernelArgs, Major, PanelTile, TensorMapArg};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{Target, TensorElement, TensorFill, TensorInterleave, TensorMap, TensorSwizzle};
use warpwright_runtime::LaunchStep;

use super::super::backward::PlaceArgs;
use super::super::options::{self, Common};
use super::super::score::{ProblemArgs, ScoreKind};
use super::super::tuning::{self, Work};
use super::super::{AttentionBackwardArgs, AttentionBackwardDesc, AttentionInputs, Chosen, OP};
use super::backward::{WarpgroupArgs, WarpgroupSweep};
use super::{GROUP, GROUP_ROWS, boxes, reach, recorded};
use crate::PlanError;

/// Bytes of shared memory of a block, but for the barriers.
const SHARED: u32 = (227 << 10) - 512;
/// As many tiles as their barriers leave room for.
const MAX_TILES: u32 = 24;

/// How a block of the gradients is laid out: groups of four warps that have 64 rows each, and four warps more of which one thread
/// fetches tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SweepGroups {
    /// Groups that multiply, 1 to 3.
    pub groups: u32,
    /// Columns of a tile: a multiple of 16 up to 128.
    pub columns: u32,
    /// Tiles of columns in shared memory, at least 4: two for each step.
    pub tiles: u32,
    /// Elements of a row of a tile: a multiple of 64.
    pub width: u32,
    /// Whether the block's own rows are in registers.
    pub held: bool,
}

impl SweepGroups {
    /// Threads of a block.
    pub const fn threads(self) -> u32 {
        (self.groups + 1) * GROUP
    }

    /// Rows of a block.
    pub const fn rows(self) -> u32 {
        self.groups * GROUP_ROWS
    }

    /// Elements of an access to global memory.
    pub const fn vector(self) -> u32 {
        8
    }

    /// Whether there is such a kernel for rows of `width` elements.
    fn fits(self, work: Work, dtype: DType, width: usize) -> bool {
        let Self { groups, columns, tiles, width: own, .. } = self;
        (1..=3).contains(&groups)
            && columns.is_multiple_of(16)
            && (16..=128).contains(&columns)
            && (4..=MAX_TILES).contains(&tiles)
            && own.is_multiple_of(PanelTile::WIDTH)
            && (64..=256).contains(&own)
            && width <= own as usize
            && self.shared_bytes(dtype, work.own()) <= SHARED
    }

    /// Registers of a thread that multiplies, and of one that does not.
    pub(super) const fn registers(self) -> (u32, u32) {
        if self.groups == 3 { (160, 32) } else { (240, 24) }
    }

    /// The block's own rows.
    pub(super) const fn own(self, dtype: DType) -> PanelTile {
        PanelTile { dtype, major: Major::K, outer: self.rows(), depth: self.width }
    }

    /// A tile of columns as what the rows are multiplied with.
    pub(super) const fn of_products(self, dtype: DType) -> PanelTile {
        PanelTile { dtype, major: Major::K, outer: self.columns, depth: self.width }
    }

    /// The same tile as what weights are multiplied with.
    pub(super) const fn of_sums(self, dtype: DType) -> PanelTile {
        PanelTile { dtype, major: Major::Mn, outer: self.width, depth: self.columns }
    }

    /// Bytes of what is known of the columns of a tile: two numbers each.
    pub(super) const fn statistics_bytes(self) -> u32 {
        2 * self.columns * 4
    }

    /// Bytes of dynamic shared memory, with so many tiles of own rows.
    pub const fn shared_bytes(self, dtype: DType, own: u32) -> u32 {
        let tiles = self.tiles * (self.of_products(dtype).bytes() + self.statistics_bytes());
        K::TILE_SLACK + own * self.own(dtype).bytes() + tiles
    }

    pub(in crate::attention) fn name(self) -> String {
        let Self { groups, columns, tiles, width, held } = self;
        format!("wg{groups}c{columns}t{tiles}d{width}{}", if held { "h" } else { "" })
    }
}

/// Numbers of queries, `pitch` of one kind after the other: the two kinds of `columns` queries. Coordinates: query, kind.
fn statistics(tensor: &In<Elem>, [queries, kinds, pitch]: [u64; 3], columns: u32) -> TensorMapArg {
    let map = TensorMap {
        base: 0,
        element: TensorElement::F32,
        dims: vec![queries, kinds],
        strides: vec![pitch * 4],
        box_dims: vec![columns, 2],
        element_strides: vec![1; 2],
        interleave: TensorInterleave::None,
        swizzle: TensorSwizzle::None,
        fill: TensorFill::Zero,
    };
    TensorMapArg::over(tensor, map)
}

/// Queries of a head as what is known of them is laid out: rows of a tensor map are multiples of 16 bytes.
pub(in crate::attention) fn pitch(c: &Common) -> u32 {
    c.queries.next_multiple_of(4)
}

/// Queries of all heads, twice, that a tensor map can count.
const MAX_KINDS: u64 = 1 << 31;

/// The layouts of the sweeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sweeps {
    /// For the gradients of queries.
    pub queries: SweepGroups,
    /// For those of keys, and of values if those have no sweep of their own.
    pub keys: SweepGroups,
    /// For those of values.
    pub values: Option<SweepGroups>,
}

impl Sweeps {
    /// What is computed, in which layout.
    fn each(self) -> Vec<(Work, SweepGroups)> {
        let keys = if self.values.is_some() { Work::Keys } else { Work::KeysAndValues };
        let values = self.values.map(|values| (Work::Values, values));
        [(Work::Queries, self.queries), (keys, self.keys)].into_iter().chain(values).collect()
    }
}

/// Whether the sweeps have all modifications of the scores.
const fn has_kind(kind: ScoreKind) -> bool {
    let ScoreKind { band: _, softcap, bias, alibi, lengths: _, packed, dropout } = kind;
    !(softcap || bias || alibi || packed || dropout)
}

impl AttentionBackwardDesc {
    /// The configurations of the sweeps with `wgmma`, `None` where they do not take the problem.
    pub(in crate::attention) fn warpgroups(
        &self,
        c: &Common,
        target: Target,
        chosen: Option<Chosen>,
    ) -> Result<Option<Sweeps>, PlanError> {
        let desc = &self.forward;
        let all = [desc.q, desc.k, desc.v, desc.o, self.dy, self.dq, self.dk, self.dv];
        let halves = matches!(desc.dtype, DType::F16 | DType::BF16) && target.sm == 90;
        let fits = halves
            && reach(&[desc.q, desc.k, desc.v, self.dy])
            && options::granularity(&all) >= 8
            && has_kind(c.kind)
            && !self.dbias
            && u64::from(c.batch) * u64::from(c.heads) * 2 < MAX_KINDS;
        match chosen {
            Some(Chosen::Blocks(_) | Chosen::Copies(_)) => Ok(None),
            Some(Chosen::Groups(sweeps)) => {
                let fit =
                    sweeps.each().iter().all(|(work, config)| config.fits(*work, desc.dtype, c.widest()));
                if fits && fit {
                    return Ok(Some(sweeps));
                }
                let expected = "layouts for the head_dim, and a problem that kernels with wgmma take";
                let got = format!("{sweeps:?}");
                Err(PlanError::Parameter { op: OP, parameter: "sweeps", got, expected })
            }
            None if fits => Ok(tuning::sweeps(desc.dtype, target, c.widest())),
            None => Ok(None),
        }
    }

    pub(in crate::attention) fn warpgroup_steps(
        &self,
        c: &Common,
        target: Target,
        sweeps: Sweeps,
    ) -> Result<Vec<LaunchStep>, PlanError> {
        let places = PlaceArgs::apart(pitch(c));
        let mut steps = Vec::new();
        steps.extend(self.delta(c, target, sweeps.queries.vector(), &places)?);
        for (work, config) in sweeps.each() {
            steps.extend(self.warpgroup_sweep(c, target, work, config)?);
        }
        steps.extend(self.sink_gradient(c, target, &places)?);
        Ok(steps)
    }

    /// One sweep; `None` if there are no rows.
    fn warpgroup_sweep(
        &self,
        c: &Common,
        target: Target,
        work: Work,
        config: SweepGroups,
    ) -> Result<Option<LaunchStep>, PlanError> {
        let (desc, of_queries) = (&self.forward, work == Work::Queries);
        let dtype = desc.dtype;
        let (rows, heads) = if of_queries { (c.queries, c.heads) } else { (c.keys, c.heads / c.group) };
        let Some(grid) = c.grid(rows.div_ceil(config.rows()), heads)? else { return Ok(None) };
        let tensors = [
            (AttentionInputs::q, &desc.q),
            (AttentionBackwardArgs::dy, &self.dy),
            (AttentionInputs::k, &desc.k),
            (AttentionInputs::v, &desc.v),
        ];
        let (own, columns) = (config.own(dtype), config.of_products(dtype));
        let tiles = if of_queries { [own, own, columns, columns] } else { [columns, columns, own, own] };
        let order = if of_queries { [0, 1, 2, 3] } else { [2, 3, 0, 1] };
        let map = |at: usize| {
            let (slot, layout) = tensors[order[at]];
            boxes(&slot.arg(), layout, tiles[order[at]])
        };
        let kinds = u64::from(c.batch) * u64::from(c.heads) * 2;
        let places = [u64::from(c.queries), kinds, u64::from(pitch(c))];
        let workspace = AttentionBackwardArgs::workspace;
        let [first, second] = self.written(of_queries);
        let args = WarpgroupArgs {
            problem: ProblemArgs::new(c),
            own_first: map(0)?,
            own_second: map(1)?,
            columns_first: map(2)?,
            columns_second: map(3)?,
            statistics: workspace.written(),
            of_queries: statistics(&workspace.written(), places, config.columns),
            pitch: pitch(c),
            first,
            second,
        };
        let kernel = sweep(work, dtype, c.kind, config, target)?;
        let shared = config.shared_bytes(dtype, work.own());
        Ok(Some(LaunchStep::new(kernel, grid, args.values()).with_dynamic_shared(shared)))
    }
}

fn sweep(
    work: Work,
    dtype: DType,
    kind: ScoreKind,
    config: SweepGroups,
    target: Target,
) -> Result<Kernel, PlanError> {
    recorded(&WarpgroupSweep { work, dtype, kind, config }, target)
}

/// Every kernel that tuning can choose.
pub(in crate::attention) fn kernels(dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let mut out = Vec::new();
    for width in [64, 128, 256] {
        let Some(sweeps) = tuning::sweeps(dtype, target, width) else { continue };
        for (band, lengths) in [(false, false), (true, false), (true, true)] {
            let kind = ScoreKind { band, lengths, ..ScoreKind::default() };
            for (work, config) in sweeps.each() {
                out.push(sweep(work, dtype, kind, config, target)?);
            }
        }
    }
    Ok(out)
}
