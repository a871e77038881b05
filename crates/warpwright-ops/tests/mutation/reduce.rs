//! Reductions over dimensions.

use warpwright_ops::plan::TensorSpec;
use warpwright_ops::reduce::tuning::{Config, Layout, Pass};
use warpwright_ops::reduce::{ArgReduceDesc, ArgReduceFunction, ReduceDesc, ReduceFunction};
use warpwright_ptx::DType;
use warpwright_testkit::inputs::Input;

use crate::harness::{Survivor, Sweep, TARGET, plans};

/// Few numbers, each many times, behind results all of whose elements are infinite.
fn ties(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let values = Input::Normal.values(specs[slot].len, slot as u64).into_iter().map(f64::round);
    values.enumerate().map(|(i, x)| if i < 48 { f64::INFINITY } else { x }).collect()
}

/// Numbers none of which is like another.
fn normal(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    Input::Normal.values(specs[slot].len, slot as u64)
}

/// A pass over `[outer, n, inner]` in parts.
fn pass([outer, n, inner]: [u64; 3], part: u64, layout: Layout, width: u32) -> Pass {
    let threads = 64;
    Pass { outer, n, inner, part, config: Config { layout, width, threads } }
}

/// Shapes with the vectors of each round of a thread, ending at, before and behind each.
fn shapes(layout: Layout, width: u32) -> Vec<Pass> {
    let whole = |sizes: [u64; 3]| pass(sizes, sizes[1].max(1), layout, width);
    let wide = u64::from(width);
    match layout {
        Layout::Rows { team: 1 } => {
            let rows = [63, 64, 65].map(|outer| [outer, 2 * wide, 1]);
            rows.into_iter().chain([[3, wide, 1]]).map(whole).collect()
        }
        Layout::Rows { team } => {
            let round = wide * u64::from(team);
            // Rows of teams that are smaller than a warp are whole vectors.
            let odd = if team < 32 && width > 1 { wide } else { wide + 1 };
            let lengths = (0..=8).flat_map(|u| [round * u + odd, round * u + wide * 7]);
            // Each element of short rows is the least of some.
            lengths.map(|n| whole([if n < 64 { 40 } else { 3 }, n, 1])).collect()
        }
        Layout::Columns { .. } => {
            let rows = (0..=8).flat_map(|u| [16 * u + 1, 16 * u + 2, 16 * u + 16]);
            rows.map(|n| whole([2, n, 5 * wide])).collect()
        }
        Layout::Flat => {
            let around = [15, 16, 17].map(|outer| [outer, 2, 4 * wide]);
            (1..=9).map(|n| [3, n, 5 * wide]).chain(around).map(whole).collect()
        }
    }
}

const LAYOUTS: [(Layout, u32); 8] = [
    (Layout::Rows { team: 1 }, 4),
    (Layout::Rows { team: 8 }, 4),
    (Layout::Rows { team: 32 }, 4),
    (Layout::Rows { team: 64 }, 1),
    (Layout::Columns { lanes: 4 }, 4),
    (Layout::Columns { lanes: 4 }, 1),
    (Layout::Flat, 4),
    (Layout::Flat, 1),
];

/// The passes of a shape, and of one in parts, whose numbers are whole vectors.
fn with_parts(layout: Layout, width: u32) -> Vec<Vec<Pass>> {
    let all = shapes(layout, width);
    let in_parts = (layout != Layout::Flat).then(|| {
        let first = Pass { n: 32, part: 4, ..all[0] };
        vec![first, Pass { n: first.parts(), part: first.parts(), ..first }]
    });
    all.into_iter().map(|pass| vec![pass]).chain(in_parts).collect()
}

fn checks(function: ReduceFunction, layouts: &[(Layout, u32)]) {
    for &(layout, width) in layouts {
        let all = with_parts(layout, width);
        let numbers: Vec<usize> = (0..all.len()).collect();
        Sweep::new(normal).check(&plans(&numbers, |number: usize| {
            let pass = all[number][0];
            let shape = [pass.outer, pass.n, pass.inner].map(|extent| extent as usize).to_vec();
            let dtype = DType::F32;
            let desc = ReduceDesc { function, dtype, y_dtype: dtype, shape, dims: vec![1] };
            desc.plan_with(TARGET, &all[number]).expect("plan")
        }));
    }
}

#[test]
fn defects_of_sums_are_noticed() {
    checks(ReduceFunction::Mean, &LAYOUTS[..5]);
}

#[test]
#[ignore = "nightly: mutation-norms"]
fn defects_of_every_reduction_are_noticed() {
    checks(ReduceFunction::Sum, &LAYOUTS[5..]);
    checks(ReduceFunction::Amin, &LAYOUTS);
}

/// A bound that is wrong by one shows where equal elements follow each other and the first is in the set that comes second: few of the sets that are
/// merged have such positions.
const POSITIONS: &[Survivor] = &[
    Survivor::equivalent("position_f32_rows", "before = b_at.@lt(a_at)", "no two are neighbours").at_most(3),
    Survivor::equivalent("position_f32_rows", "team.@combine", "no two are neighbours").at_most(5),
    Survivor::equivalent("position_f32_columns", "tile.@halve_teams", "no two are neighbours").at_most(12),
];

/// Passes over the positions of parts do nothing else than the first ones do but for a load.
#[test]
#[ignore = "nightly: mutation-norms"]
fn defects_of_searches_are_noticed() {
    for (layout, width) in LAYOUTS {
        let all = with_parts(layout, width);
        let numbers: Vec<usize> = (0..all.len()).collect();
        let skipped = |name: &str| name.contains("of_parts");
        let sweep = Sweep { skipped, survivors: POSITIONS, ..Sweep::new(ties) };
        sweep.check(&plans(&numbers, |number: usize| {
            let passes = &all[number];
            let [outer, n, inner] =
                [passes[0].outer, passes[0].n, passes[0].inner].map(|extent| extent as usize);
            let (function, dtype) = (ArgReduceFunction::Argmin, DType::F32);
            let desc = ArgReduceDesc { function, dtype, outer, n, inner };
            desc.plan_with(TARGET, passes).expect("plan")
        }));
    }
}
