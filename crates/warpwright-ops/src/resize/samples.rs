//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{Layout, Mode, OP, ResizeBackwardDesc, ResizeDesc};
use crate::catalogue::{Asked, Direction, Entry, Extents, Family, Planned, distinct};
use crate::{Operation, PlanError};

/// The family.
pub(crate) const FAMILY: Family =
    Family { name: "resize", aliases: &[(OP, "interpolate"), (OP, "upsample")], entries, plan, kernels };

/// Height and width, and channels of an image where nothing is said.
const SIDE: usize = 56;
const CHANNELS: usize = 64;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    Entry::both(OP).to_vec()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let o = &asked.options;
    let side = if asked.len < SIDE * SIDE { asked.len.isqrt().max(1) } else { SIDE };
    let input = o.image().unwrap_or(Extents(vec![side, side])).three(1);
    let output = o.output().map(|output| output.three(1));
    let output = output.unwrap_or(input.map(|n| if n == 1 { 1 } else { n.saturating_mul(2) }));
    let cells = input.iter().fold(1usize, |n, of| n.saturating_mul(*of)).max(1);
    let channels = o.channels().unwrap_or((asked.len / cells).clamp(1, CHANNELS));
    let batch = o.batch().unwrap_or((asked.len / cells.saturating_mul(channels).max(1)).max(1));
    let forward = ResizeDesc {
        dtype: asked.dtype,
        layout: asked.layout(),
        batch,
        channels,
        input,
        output,
        mode: o.mode().unwrap_or(Mode::Linear),
        align_corners: o.align_corners().is_some(),
        scale: [None; 3],
    };
    asked.either(&forward, &ResizeBackwardDesc { forward: forward.clone() })
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let any = [
        (Mode::Nearest, [1, 2, 2]),
        (Mode::Linear, [1, 1, 2]),
        (Mode::Linear, [1, 2, 2]),
        (Mode::Linear, [2, 2, 2]),
        (Mode::Cubic, [1, 2, 2]),
    ];
    let computed = [2, 4].into_iter().flat_map(|run| {
        any.map(|(mode, input)| {
            (Layout::ChannelsFirst, mode, input, [2 * input[0] - 1, 2 * input[1] - 1, 5 * run])
        })
    });
    let halved = (Layout::ChannelsFirst, Mode::Linear, [1, 6, 16], [1, 3, 8]);
    let last = any.map(|(mode, input)| (Layout::ChannelsLast, mode, input, input.map(|n| 2 * n - 1)));
    // Runs of every length, of which the longest has what a plan of any other extents has, too.
    let layouts = [(Layout::ChannelsFirst, 3), (Layout::ChannelsLast, 2)];
    let runs = layouts.into_iter().flat_map(|(layout, runs)| (0..runs).map(move |run| (layout, 1 << run)));
    let doubled = runs.flat_map(|(layout, run)| {
        let input = [1, 2, 3 * run];
        [Mode::Nearest, Mode::Linear, Mode::Cubic].map(|mode| (layout, mode, input, [1, 4, 6 * run]))
    });
    // Plans with vectors have single elements, too; doublings have either.
    let all = last
        .into_iter()
        .chain([halved])
        .chain(computed)
        .chain(doubled)
        .flat_map(|of| [8, 7].map(|channels| (of, channels)));
    distinct(all.map(|((layout, mode, input, output), channels)| {
        let (batch, align_corners, scale) = (1, false, [None; 3]);
        let forward =
            ResizeDesc { dtype, layout, batch, channels, input, output, mode, align_corners, scale };
        match entry.direction {
            Direction::Forward => forward.plan(target).map(Into::into),
            Direction::Backward => ResizeBackwardDesc { forward }.plan(target).map(Into::into),
        }
    }))
}
