//! Searches for the largest elements of rows.

use std::collections::BTreeSet;

use warpwright_ops::Operation;
use warpwright_ops::plan::TensorSpec;
use warpwright_ops::topk::tuning::{Config, Layout, Pass};
use warpwright_ops::topk::{TopkBackwardDesc, TopkDesc};
use warpwright_ptx::DType;
use warpwright_testkit::inputs::Input;

use crate::harness::{Survivor, Sweep, TARGET, plans};

const SURVIVORS: &[Survivor] =
    &[Survivor::equivalent("topk", "at.@lt(NOTHING)", "rows have fewer elements than 2^31 - 1")];

/// A bound is shifted wherever its line is recorded: elements are compared in many places.
fn sweep() -> Sweep {
    Sweep { by_line: true, survivors: SURVIVORS, ..Sweep::new(ties) }
}

/// Few numbers next to each other, each many times. In whole blocks they descend, so that few threads have the least, behind those that come first.
fn ties(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let spec = &specs[slot];
    if spec.name == "index" {
        // Of rows of as many elements as there are: the ends of the row and of the parts of both kernels, and others.
        let (n, k) = (specs[2].len / 3, spec.len / 3);
        let ends = [0, 1023, 1024, 4095, 4096, n - 1];
        let ends = ends.into_iter().filter(|at| *at < n).collect::<BTreeSet<_>>();
        let others = (0..n).filter(|at| !ends.contains(at));
        let row: Vec<f64> = ends.iter().copied().chain(others).take(k).map(|at| at as f64).collect();
        return row.repeat(3);
    }
    let values = Input::Normal.values(spec.len, slot as u64).into_iter();
    let mut all: Vec<f64> = values.map(|x| 1.5 + (2.0 * x).round() * f64::from(f32::EPSILON)).collect();
    if spec.len.is_multiple_of(1024) {
        all.sort_by(|a, b| b.total_cmp(a));
    }
    all
}

fn checks(configs: &[(Config, &[[usize; 3]])]) {
    for (config, shapes) in configs {
        sweep().check(&plans(shapes, |[rows, n, k]: [usize; 3]| {
            let desc = TopkDesc { dtype: DType::F32, rows, n, k, largest: false };
            let mut passes = vec![Pass { n, config: *config }];
            while passes[passes.len() - 1].parts() > 1 {
                let found = passes[passes.len() - 1].parts() * k;
                passes.push(Pass { n: found, config: Config { width: 1, ..*config } });
            }
            desc.plan_with(TARGET, &passes).expect("plan")
        }));
    }
}

const WARP: Config = Config { layout: Layout::Warp, items: 4, width: 2 };
const BLOCK: Config = Config { layout: Layout::Block { groups: 128 }, items: 4, width: 2 };

#[test]
fn defects_of_warps_are_noticed() {
    let shapes: &[[usize; 3]] =
        &[[7, 2, 2], [8, 128, 33], [9, 66, 32], [17, 64, 64], [3, 126, 31], [40, 62, 1]];
    checks(&[(WARP, shapes)]);
}

#[test]
#[ignore = "nightly: mutation-norms"]
fn defects_of_every_search_are_noticed() {
    // The last rows take three passes, and a part of the second has fewer elements than are wanted.
    let few =
        [[3, 514, 9], [3, 512, 64], [2, 2, 2], [2, 1024, 64], [1, 1030, 7], [2, 3000, 1], [1, 18_432, 60]];
    let many =
        [[3, 514, 9], [3, 512, 128], [2, 2, 2], [2, 1024, 65], [1, 1030, 7], [2, 3000, 1], [1, 11_264, 100]];
    checks(&[(BLOCK, &few), (Config { layout: Layout::Block { groups: 256 }, ..BLOCK }, &many)]);
    // Two parts of a row by single elements, by pairs, and by vectors.
    sweep().check(&plans(&[2usize, 1024, 1026, 2050, 3074, 4096, 4098, 4100], |n| {
        TopkBackwardDesc { dtype: DType::F32, rows: 3, n, k: n.min(300) }.plan(TARGET).expect("plan")
    }));
}
