//! The gradients of attention with `wgmma`, in sweeps for each and in one for all.

use warpwright_ops::attention::tuning::{WgmmaFused, WgmmaSweep, WgmmaSweeps};
use warpwright_ops::attention::{
    AttentionBackwardDesc, AttentionDesc, AttentionOptions, BackwardAlgorithm, Window,
};
use warpwright_ops::plan::{Layout, TensorSpec};
use warpwright_ptx::DType;

use crate::harness::{Survivor, Sweep, TARGET, plain, plans};

/// Queries, keys, head_dim of keys and of values, heads, key heads; whether later keys are hidden, and how many before are seen.
type Case = ([usize; 6], bool, Option<u32>);

/// Rows of a block, one less and more, of both kinds; tiles with and without masked pairs at both ends of what a block sees, several
/// rounds of the ring, and blocks that see nothing.
const CASES: [Case; 13] = [
    ([130, 100, 64, 64, 2, 1], true, None),
    ([64, 80, 64, 40, 1, 1], false, Some(20)),
    ([128, 64, 64, 64, 1, 1], false, Some(100)),
    ([20, 33, 40, 64, 2, 2], true, Some(5)),
    ([17, 1, 64, 64, 1, 1], true, None),
    ([70, 96, 64, 64, 1, 1], true, Some(40)),
    ([129, 47, 64, 64, 1, 1], true, Some(3)),
    ([47, 129, 64, 64, 1, 1], false, None),
    ([130, 100, 64, 64, 2, 1], false, None),
    ([128, 64, 64, 40, 4, 2], false, None),
    ([65, 81, 40, 64, 1, 1], false, None),
    ([20, 9, 64, 64, 1, 1], false, None),
    ([1, 20, 64, 64, 1, 1], false, None),
];

const BATCH: usize = 3;

const NEW_REGISTERS: &str = "products of a tile are in new registers, which nothing has written";

const FENCED_BEFORE: &str = "the products in front of them have a fence behind all writes; behind the loops weights have been moved alone";
const AS_ONE: &str = "the warp has read what is known of the columns before it waits for products as one";
const TOGETHER: &str = "where both tiles are read to the end they are given back together";
const GIVEN_BEFORE: &str = "this tile is given back before the one that is waited for in front of it";
const MULTIPLES: &str = "tiles and the parts that are whole begin at multiples of their columns";
const NO_BIAS: &str = "without a bias rows that do not exist may take part";

const NO_BAND: &str = "without a band nobody asks where positions begin";
const ZEROS: &str = "what lies behind the last row of a tensor, or of a sequence, are zeros in the tiles";
const ONE_HEAD: &str = "a block has queries of one head: nobody takes the turn after";

const SURVIVORS: [Survivor; 20] = [
    Survivor::missed(
        "_wg",
        "@publish_mbarriers()",
        "the barrier of the block behind it shows the counts to its threads; that tensor copies need a fence to see them is not modelled",
    ),
    Survivor::equivalent("_wg", "@WarpgroupSums::products(", NEW_REGISTERS),
    Survivor::equivalent("_wg", "@WarpgroupSums::products_of(", NEW_REGISTERS),
    Survivor::equivalent("_wg", "@add_products_of(", FENCED_BEFORE),
    Survivor::equivalent("_wg", "k.@warp_barrier()", AS_ONE),
    Survivor::equivalent("_kv_", "pipeline.@producer_acquire(pipe, first.bytes() + more)", TOGETHER),
    Survivor::equivalent("_v_", "pipeline.@producer_acquire(pipe, first.bytes() + more)", GIVEN_BEFORE),
    Survivor::equivalent("_wg", "masked | at.@lt(from)", MULTIPLES),
    Survivor::equivalent("_wg", "let complete = end.@le(self", NO_BIAS),
    Survivor::equivalent("d64$", "p.bottom_right.@ne(0)", NO_BAND),
    Survivor::equivalent("d64_lengths", "p.bottom_right.@ne(0)", NO_BAND),
    Survivor::equivalent("d64h_lengths", "p.bottom_right.@ne(0)", NO_BAND),
    Survivor::equivalent("_q_", "self.finished(k, pipe); pipeline.@next(pipeline.next(pipe))", ONE_HEAD),
    Survivor::equivalent("_q_", "self.finished(k, pipe); pipeline.next(pipeline.@next(pipe))", ONE_HEAD),
    Survivor::equivalent("d64_lengths", "let masked = at.@ge(walk.whole_end)", ZEROS),
    Survivor::equivalent("d64h_lengths", "let masked = at.@ge(walk.whole_end)", ZEROS),
    Survivor::equivalent("d64$", "let masked = at.@ge(walk.whole_end)", ZEROS),
    Survivor::equivalent("d64h$", "let masked = at.@ge(walk.whole_end)", ZEROS),
    Survivor::equivalent("d64h$", "p.bottom_right.@ne(0)", NO_BAND),
    Survivor::missed("_q_", "k.if_(left.@lt(", "weights of 0 leave out what is a number, as it is here"),
];

const SWEEP: Sweep = Sweep {
    survivors: &SURVIVORS,
    by_line: true,
    // The sum for each query is mutated beside the other kernels.
    skipped: |kernel| kernel.contains("_delta_"),
    ..Sweep::new(plain)
};

fn problem(
    positions: bool,
    ([queries, keys, width, value_width, heads, key_heads], causal, left): Case,
) -> AttentionBackwardDesc {
    let layout = |rows, heads, width| Layout::contiguous([BATCH, rows, heads, width]);
    let [q, k] = [layout(queries, heads, width), layout(keys, key_heads, width)];
    let [v, o] = [layout(keys, key_heads, value_width), layout(queries, heads, value_width)];
    let limited = AttentionOptions {
        causal,
        window: Window { left, right: None },
        key_lengths: true,
        ..AttentionOptions::default()
    };
    let options = if positions { limited } else { AttentionOptions::default() };
    let forward = AttentionDesc { dtype: DType::BF16, q, k, v, o, options };
    AttentionBackwardDesc { forward, dy: o, dq: q, dk: k, dv: v, dbias: false, dsinks: false }
}

fn check(positions: bool, groups: u32, held: bool, apart: bool) {
    let of = WgmmaSweep { groups, columns: 16, tiles: 4, width: 64, value_width: 64, held };
    let sweeps = WgmmaSweeps { queries: of, keys: of, values: apart.then_some(of) };
    SWEEP.check(&plans(&CASES, |case| {
        problem(positions, case).plan_with(TARGET, BackwardAlgorithm::Wgmma(sweeps)).expect("plan")
    }));
}

#[test]
#[ignore = "nightly: mutation-gradients"]
fn defects_of_gradients_of_warpgroups_are_noticed() {
    check(true, 2, false, false);
}

#[test]
#[ignore = "nightly: mutation-gradients"]
fn defects_of_more_gradients_of_warpgroups_are_noticed() {
    check(true, 1, true, true);
    check(false, 2, false, true);
    check(false, 1, true, false);
}

/// Several tiles of keys and of queries, tiles of keys that nobody sees, and tiles of queries that see all keys but for those that are not
/// there; the rest as in [`CASES`].
const FUSED_CASES: [Case; 9] = [
    ([1, 20, 64, 64, 1, 1], false, None),
    ([70, 300, 64, 64, 2, 1], true, None),
    ([100, 140, 64, 40, 2, 2], true, Some(20)),
    ([300, 130, 40, 64, 1, 1], true, Some(100)),
    ([20, 9, 64, 64, 1, 1], false, None),
    ([70, 300, 64, 64, 2, 1], false, None),
    ([65, 129, 64, 64, 2, 2], false, Some(30)),
    ([130, 129, 64, 64, 1, 1], false, Some(30)),
    ([40, 127, 64, 64, 1, 1], false, None),
];

const GROUPED_LATER: &str = "these products end with those behind them, which are waited for together";
const FENCED_TOGETHER: &str = "the products in front of them have a fence behind all writes of weights";
const OF_ONE_STEP: &str = "both tiles of a step are given back together";

const FUSED_SURVIVORS: [Survivor; 10] = [
    Survivor::missed(
        "_wgfused",
        "@publish_mbarriers()",
        "the barrier of the block behind it shows the counts to its threads; that tensor copies need a fence to see them is not modelled",
    ),
    Survivor::missed(
        "_wgfused",
        "turns.@wait(turn)",
        "what bulk copies know of those of other blocks is not modelled beyond the turns",
    ),
    Survivor::equivalent("_wgfused", "@WarpgroupSums::products(", NEW_REGISTERS),
    Survivor::equivalent("_wgfused", "dv.@add_products_of(", GROUPED_LATER),
    Survivor::equivalent("_wgfused", "dk.@add_products_of(", FENCED_TOGETHER),
    Survivor::equivalent("_wgfused", "scores.@restart(", FENCED_TOGETHER),
    Survivor::equivalent("_wgfused", "been read. k.@warp_barrier()", AS_ONE),
    Survivor::equivalent("_wgfused", "pipeline.@producer_acquire(pipe, tile.bytes() + more)", OF_ONE_STEP),
    Survivor::equivalent("_wgfused", "let masked = at.@ge(walk.whole_end)", MULTIPLES),
    Survivor::equivalent("_wgfused", "masked | at.@lt(from)", MULTIPLES),
];

/// Keys of the sequences, of which one ends within a tile of keys by one.
const LENGTHS: [usize; BATCH] = [0, 127, 999];

/// As [`plain`], with keys and values that are no numbers where a sequence has none; and with scores and sums near -128, so that a key
/// of zeros has an infinite probability.
fn with_ends(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let spec = &specs[slot];
    if spec.name == "key_lengths" {
        return LENGTHS[..spec.len].iter().map(|length| *length as f64).collect();
    }
    let mut values = plain(specs, slot);
    let first = |width: usize| match spec.name {
        "q" => -4.0 * (width as f64).sqrt(),
        _ => 32.0,
    };
    if let Some(layout) = spec.layout.filter(|_| ["q", "k"].contains(&spec.name)) {
        let width = layout.shape[3];
        values.iter_mut().step_by(width).for_each(|value| *value = first(width));
    }
    if spec.name == "lse" {
        values.iter_mut().for_each(|value| *value -= 128.0);
    }
    let ends = specs.iter().any(|spec| spec.name == "key_lengths" && spec.len > 0);
    if let Some(layout) = spec.layout.filter(|_| ends && ["k", "v"].contains(&spec.name)) {
        let [_, rows, heads, width] = layout.shape;
        for (i, value) in values.iter_mut().enumerate() {
            let row = i / (heads * width);
            if row % rows >= LENGTHS[row / rows] {
                *value = f64::NAN;
            }
        }
    }
    values
}

const FUSED: Sweep =
    Sweep { survivors: &FUSED_SURVIVORS, by_line: true, skipped: |_| false, ..Sweep::new(with_ends) };

fn check_fused(positions: bool, ahead: bool) {
    let layout = WgmmaFused { columns: 32, tiles: 3, width: 64, ahead };
    let algorithm = BackwardAlgorithm::WgmmaFused { layout, heads_at_once: None };
    FUSED.check(&plans(&FUSED_CASES, |case| {
        problem(positions, case).plan_with(TARGET, algorithm).expect("plan")
    }));
}

#[test]
#[ignore = "nightly: mutation-gradients"]
fn defects_of_all_gradients_at_once_are_noticed() {
    check_fused(true, false);
    check_fused(false, true);
}
