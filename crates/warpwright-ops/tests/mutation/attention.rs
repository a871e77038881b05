//! Attention, both directions, on tensor cores and on ordinary arithmetic, without and with all modifications.

use warpwright_ops::attention::tuning::{
    Config, DecodeConfig, DecodeMma, DecodeTma, Mma, Simt, SplitF16, Wgmma, decode_configs,
};
use warpwright_ops::attention::{
    Algorithm, AlibiSlopes, AttentionBackwardDesc, AttentionDesc, AttentionOptions, BackwardAlgorithm,
    CacheScale, Float8Cache, Window,
};
use warpwright_ops::plan::{Layout, Plan, Real, TensorSpec};
use warpwright_ptx::DType;

use crate::harness::{Survivor, Sweep, TARGET, plain, plans};

#[derive(Clone, Copy, Debug)]
struct Case {
    queries: usize,
    keys: usize,
    width: usize,
    value_width: usize,
    heads: usize,
    key_heads: usize,
    causal: bool,
    left: Option<u32>,
}

const fn case(
    [queries, keys, width, value_width, heads, key_heads]: [usize; 6],
    causal: bool,
    left: Option<u32>,
) -> Case {
    Case { queries, keys, width, value_width, heads, key_heads, causal, left }
}

/// Tiles have 16 or 32 rows and 16 or 32 columns. They end with the sequences, one element before, one after; each of the
/// loops over tiles, that begin, pass and leave what all rows see, has several rounds; one query and one key.
const TENSOR_CORE: [Case; 9] = [
    case([33, 49, 64, 64, 2, 1], true, None),
    case([31, 40, 56, 40, 3, 3], false, Some(100)),
    case([64, 64, 64, 8, 1, 1], false, Some(20)),
    case([5, 17, 8, 64, 4, 2], true, Some(5)),
    case([1, 1, 64, 64, 1, 1], true, None),
    case([70, 96, 16, 64, 1, 1], true, Some(40)),
    case([40, 33, 64, 64, 1, 1], true, Some(3)),
    case([64, 31, 64, 16, 2, 2], false, Some(100)),
    case([5, 0, 64, 64, 1, 1], true, None),
];
const SIMT: [Case; 9] = [
    case([33, 65, 32, 32, 2, 1], true, None),
    case([15, 70, 28, 24, 3, 3], false, Some(100)),
    case([64, 96, 32, 4, 1, 1], false, Some(50)),
    case([5, 33, 4, 32, 4, 2], true, Some(5)),
    case([1, 1, 32, 32, 1, 1], true, None),
    case([50, 97, 12, 32, 1, 1], true, Some(80)),
    case([40, 33, 32, 32, 1, 1], true, Some(3)),
    case([64, 15, 32, 16, 2, 2], false, Some(100)),
    case([5, 0, 32, 32, 1, 1], true, None),
];

const BATCH: usize = 3;

/// Masks and modifications that a kernel has.
fn options(everything: bool, case: Case) -> AttentionOptions {
    if !everything {
        return AttentionOptions::default();
    }
    AttentionOptions {
        causal: case.causal,
        window: Window { left: case.left, right: None },
        softcap: Some(Real::new(1.5)),
        bias: Some(Layout::contiguous([BATCH, case.heads, case.queries, case.keys])),
        alibi: Some(AlibiSlopes::PerBatchAndHead),
        key_lengths: true,
        ..AttentionOptions::default()
    }
}

fn forward(dtype: DType, everything: bool, case: Case) -> AttentionDesc {
    let Case { queries, keys, width, value_width, heads, key_heads, .. } = case;
    let layout = |rows, heads, width| Layout::contiguous([BATCH, rows, heads, width]);
    AttentionDesc {
        dtype,
        q: layout(queries, heads, width),
        k: layout(keys, key_heads, width),
        v: layout(keys, key_heads, value_width),
        o: layout(queries, heads, value_width),
        options: options(everything, case),
    }
}

fn backward(dtype: DType, everything: bool, case: Case) -> AttentionBackwardDesc {
    let forward = forward(dtype, everything, case);
    let (dy, dq, dk, dv) = (forward.o, forward.q, forward.k, forward.v);
    AttentionBackwardDesc { forward, dy, dq, dk, dv, dbias: false, dsinks: false }
}

/// A barrier of the warp before weights are exchanged.
const AGAIN: &str = "// What went before may still be read. k.@warp_barrier()";
const ONE_FOR_EACH_TILE: &str = "one exchange for each tile, and barriers of the block between tiles";
const TWO_FOR_EACH_TILE: &str = "of two exchanges for each tile the first follows a barrier of the block";
/// The barrier in front of the first stage.
const START: &str = "what went before. k.@barrier()";
const NOTHING_READ: &str = "nothing has read a stage before the first one is filled";

const QUERY: &str = "query.@lt(self.queries)";
const NOT_WRITTEN: &str = "a query that does not exist is not written";
const SHIFT: &str = "p.bottom_right.@ne(0)";
const NO_BAND: &str = "without a band nobody asks where positions begin";
/// Whether a tile has all of its rows.
const COMPLETE: &str = "let complete = end.@le(self";
const NO_BIAS: &str = "without a bias rows that do not exist may take part";

const SURVIVORS: [Survivor; 18] = [
    Survivor::equivalent("attention_bf16_mma", START, NOTHING_READ),
    Survivor::equivalent("attention_backward_q_bf16_mma", START, NOTHING_READ),
    Survivor::equivalent("attention_f32_simt", AGAIN, ONE_FOR_EACH_TILE),
    Survivor::equivalent("attention_backward_q_f32_simt", AGAIN, ONE_FOR_EACH_TILE),
    Survivor::equivalent("x4s", AGAIN, ONE_FOR_EACH_TILE),
    // One in each of the loops over tiles.
    Survivor::equivalent("attention_backward_kv_f32_simt", AGAIN, TWO_FOR_EACH_TILE).at_most(3),
    Survivor::equivalent("simt", "@lt(walk.end)", "ordinary units load no tile ahead: nobody asks for one"),
    Survivor::equivalent("attention_bf16", QUERY, NOT_WRITTEN),
    Survivor::equivalent("attention_f32", QUERY, NOT_WRITTEN),
    Survivor::equivalent("attention_backward_q", QUERY, NOT_WRITTEN),
    Survivor::equivalent("d64$", "k.@commit_copies()", "the last tile copies nothing").at_most(1),
    Survivor::equivalent(
        "backward_kv_bf16_mma_w2s1c16d64$",
        "k.@wait_copies(0)",
        "the last tile copies nothing",
    ),
    Survivor::equivalent("d64$", SHIFT, NO_BAND),
    Survivor::equivalent("x4$", SHIFT, NO_BAND),
    Survivor::equivalent("x4s$", SHIFT, NO_BAND),
    Survivor::equivalent("d64$", COMPLETE, NO_BIAS),
    Survivor::equivalent("x4$", COMPLETE, NO_BIAS),
    Survivor::equivalent("x4s$", COMPLETE, NO_BIAS),
];

/// The fences in front of products of warpgroups.
const NEW_PRODUCTS: &str = "@WarpgroupSums::products(";
const NEW_REGISTERS: &str = "products of a tile are in new registers, which nothing has written";
const OLD_PRODUCTS: &str = "@add_products_of(";
const FENCED_BEFORE: &str = "the products in front of them have a fence behind all writes; behind the loops weights have been moved alone";

const ANY_KEYS: &str = "let any = seen.@gt(0i32)";
const THERE_ARE_KEYS: &str = "without a mask every block sees keys";

const ANY_ORDER: &str = "blocks take all tiles in any order";

const WARPGROUP_SURVIVORS: [Survivor; 17] = [
    Survivor::missed(
        "_wg",
        "@publish_mbarriers()",
        "the barrier of the block behind it shows the counts to its threads; that tensor copies need a fence to see them is not modelled",
    ),
    Survivor::equivalent("_wg", NEW_PRODUCTS, NEW_REGISTERS).at_most(3),
    Survivor::equivalent("_wg", OLD_PRODUCTS, FENCED_BEFORE).at_most(4),
    Survivor::equivalent("_wg", "self.keys.@producer_acquire(", "the first place has never been used")
        .at_most(1),
    Survivor::equivalent("_wg", "@barrier_of(self.group + TURNS", "the last turn is for nobody").at_most(1),
    Survivor::equivalent("d64s2as_", "tiles.@le(FEW)", ANY_ORDER),
    Survivor::equivalent("d64s2as_", "(round & 1).@ne(0)", ANY_ORDER),
    Survivor::equivalent("d64s2as_", "last.@lt(a", "the last round may begin at either end if it is whole"),
    Survivor::equivalent("d64s2ap$", SHIFT, NO_BAND),
    Survivor::equivalent("d64s2$", SHIFT, NO_BAND),
    Survivor::equivalent("d64s2as$", SHIFT, NO_BAND),
    Survivor::equivalent("d64s2ps$", SHIFT, NO_BAND),
    Survivor::equivalent("d64s2", COMPLETE, NO_BIAS),
    Survivor::equivalent("d64s2ap$", ANY_KEYS, THERE_ARE_KEYS),
    Survivor::equivalent("d64s2$", ANY_KEYS, THERE_ARE_KEYS),
    Survivor::equivalent("d64s2as$", ANY_KEYS, THERE_ARE_KEYS),
    Survivor::equivalent("d64s2ps$", ANY_KEYS, THERE_ARE_KEYS),
];
const OF_WARPGROUPS: Sweep = Sweep { survivors: &WARPGROUP_SURVIVORS, ..SWEEP };

const SWEEP: Sweep = Sweep { survivors: &SURVIVORS, by_line: true, ..Sweep::new(plain) };

fn tensor_core() -> (DType, Config, [Case; 9]) {
    let tensor = Mma { warps: 2, slabs: 1, columns: 16, width: 64, vector: 8 };
    (DType::BF16, Config::Mma(tensor), TENSOR_CORE)
}

fn simt(shared_place: bool) -> (DType, Config, [Case; 9]) {
    let simt = Simt { threads: 64, slots: 2, columns: 4, width: 32, vector: 4, shared_place };
    (DType::F32, Config::Simt(simt), SIMT)
}

fn plan_forward(
    (dtype, config, cases): (DType, Config, [Case; 9]),
    everything: bool,
) -> Vec<Plan<AttentionDesc>> {
    plans(&cases, |case| forward(dtype, everything, case).plan_with(TARGET, config.into()).expect("plan"))
}

fn plan_backward(
    (dtype, config, cases): (DType, Config, [Case; 9]),
    everything: bool,
) -> Vec<Plan<AttentionBackwardDesc>> {
    plans(&cases, |case| {
        backward(dtype, everything, case).plan_with(TARGET, [config; 2].into()).expect("plan")
    })
}

fn check(of: (DType, Config, [Case; 9]), everything: bool) {
    SWEEP.check(&plan_forward(of, everything));
    SWEEP.check(&plan_backward(of, everything));
}

/// Blocks of two groups with tiles of 16 keys: several rounds of the ring, tiles with and without masked pairs at both ends,
/// queries that see nothing.
const WARPGROUPS: [Case; 9] = [
    case([130, 100, 64, 64, 2, 1], true, None),
    case([64, 80, 64, 40, 1, 1], false, Some(100)),
    case([128, 64, 64, 64, 1, 1], false, Some(20)),
    case([20, 33, 40, 64, 2, 2], true, Some(5)),
    case([17, 1, 64, 64, 1, 1], true, None),
    case([70, 96, 64, 64, 1, 1], true, Some(40)),
    case([129, 47, 64, 64, 1, 1], true, Some(3)),
    case([128, 90, 64, 64, 1, 1], false, Some(100)),
    case([127, 64, 64, 64, 1, 1], false, Some(100)),
];

/// The same for two blocks that stay, of which one has more tiles: one tile of a head and several, with and without masks.
const PERSISTENT: [Case; 6] = [
    case([130, 100, 64, 64, 2, 1], true, None),
    case([64, 80, 64, 40, 1, 1], false, Some(100)),
    case([700, 20, 40, 64, 1, 1], true, Some(5)),
    case([17, 1, 64, 64, 1, 1], true, None),
    case([129, 47, 64, 64, 1, 1], true, Some(3)),
    case([128, 90, 64, 64, 1, 1], false, Some(100)),
];

fn warpgroups(everything: bool, ping_pong: bool, lazy_rescale: bool, persistent: bool) {
    let layout = Wgmma {
        groups: 2,
        columns: 16,
        width: 64,
        value_width: 64,
        stages: 2,
        ping_pong,
        lazy_rescale,
        persistent,
    };
    let cases: &[Case] = if persistent { &PERSISTENT } else { &WARPGROUPS };
    let blocks = persistent.then_some(2);
    OF_WARPGROUPS.check(&plans(cases, |case| {
        forward(DType::BF16, everything, case)
            .plan_with(TARGET, Algorithm::Wgmma { layout, blocks })
            .expect("plan")
    }));
}

#[test]
fn defects_of_attention_of_warpgroups_are_noticed() {
    warpgroups(true, true, false, false);
}

#[test]
#[ignore = "nightly: mutation-attention"]
fn defects_of_attention_of_warpgroups_that_stay_are_noticed() {
    warpgroups(true, true, false, true);
    warpgroups(false, true, false, true);
}

#[test]
#[ignore = "nightly: mutation-attention"]
fn defects_of_more_attention_of_warpgroups_are_noticed() {
    warpgroups(false, true, true, false);
    warpgroups(false, false, false, false);
    warpgroups(false, false, true, true);
}

#[test]
fn defects_of_attention_are_noticed() {
    check(tensor_core(), true);
}

#[test]
#[ignore = "nightly: mutation-attention"]
fn defects_of_attention_on_ordinary_units_are_noticed() {
    check(simt(false), true);
}

#[test]
#[ignore = "nightly: mutation-attention"]
fn defects_of_more_attention_are_noticed() {
    check(simt(true), true);
    for of in [tensor_core(), simt(false), simt(true)] {
        check(of, false);
    }
}

/// Few queries: tiles of 16 keys for two warps in two or three parts, in several rounds of their two stages, one tile, one key and none; more
/// rows than a block has.
const FEW: [Case; 7] = [
    case([1, 200, 64, 64, 4, 1], true, None),
    case([3, 130, 40, 64, 4, 2], true, Some(70)),
    case([9, 97, 64, 24, 2, 1], true, Some(100)),
    case([2, 16, 64, 64, 2, 2], true, None),
    case([1, 33, 64, 64, 1, 1], false, Some(5)),
    case([1, 1, 64, 64, 1, 1], true, None),
    case([16, 160, 64, 64, 2, 1], true, None),
];

/// In how many parts the keys of each are shared out.
const PARTS: [u32; 3] = [3, 1, 2];

/// Values are no numbers behind the last key of a sequence, whose tile lacks one.
fn nothing_behind(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    const LENGTHS: [usize; BATCH] = [0, 31, 999];
    let spec = &specs[slot];
    if spec.name == "key_lengths" {
        return LENGTHS[..spec.len].iter().map(|n| *n as f64).collect();
    }
    let mut values = plain(specs, slot);
    if let Some(Layout { shape: [_, keys, heads, width], .. }) = spec.layout.filter(|_| spec.name == "v") {
        let row = heads * width;
        for (rows, length) in values.chunks_mut(keys * row).zip(LENGTHS) {
            rows.iter_mut().skip(length * row).for_each(|x| *x = f64::NAN);
        }
    }
    values
}

const FEW_SURVIVORS: [Survivor; 2] = [
    Survivor::missed(
        "_tma",
        "@publish_mbarriers()",
        "the barrier of the block behind it shows the counts to its threads; that tensor copies need a fence to see them is not modelled",
    ),
    Survivor::equivalent("d64$", SHIFT, NO_BAND),
];
const PARTS_SURVIVORS: [Survivor; 1] = [Survivor::equivalent(
    "_combine_",
    "@for_each(k.range(step",
    "rows end at multiples of four columns, and so do their accesses",
)];
const OF_FEW: Sweep = Sweep {
    survivors: &FEW_SURVIVORS,
    skipped: |name| name.contains("_combine_"),
    fill: nothing_behind,
    ..SWEEP
};
const OF_PARTS: Sweep =
    Sweep { survivors: &PARTS_SURVIVORS, skipped: |name| !name.contains("_combine_"), ..SWEEP };

/// Two teams, of as many warps as there are slabs of rows.
fn few(sweep: Sweep, everything: bool, slabs: u32) {
    let layout = DecodeTma { warps: 2 * slabs, slabs, stages: 2, columns: 16, width: 64 };
    let layout = DecodeConfig::Tma(layout);
    let plan = |(i, case): (usize, &Case)| {
        let desc = forward(DType::BF16, everything, *case);
        desc.plan_with(TARGET, Algorithm::Decode { layout, splits: PARTS[i % PARTS.len()] }).expect("plan")
    };
    sweep.check(&FEW.iter().enumerate().map(plan).collect::<Vec<_>>());
}

#[test]
fn defects_of_attention_of_few_queries_are_noticed() {
    few(OF_FEW, true, 1);
}

/// More parts than lanes, rows of several accesses of a lane.
#[test]
fn defects_of_putting_parts_together_are_noticed() {
    let config = decode_configs(DType::F32, TARGET, 256, 8)[0];
    let cases = [([1, 110, 8, 256, 1, 1], 70), ([1, 60, 8, 200, 1, 1], 33), ([1, 40, 8, 8, 1, 1], 8)];
    let plan = |(sizes, parts)| {
        let desc = forward(DType::F32, false, case(sizes, false, None));
        desc.plan_with(TARGET, Algorithm::Decode { layout: config, splits: parts }).expect("plan")
    };
    OF_PARTS.check(&cases.map(plan));
}

#[test]
#[ignore = "nightly: mutation-attention"]
fn defects_of_more_attention_of_few_queries_are_noticed() {
    // Without lengths all values count.
    few(Sweep { fill: plain, ..OF_FEW }, false, 1);
}

#[test]
fn defects_of_attention_of_queries_that_share_tiles_are_noticed() {
    few(OF_FEW, true, 2);
}

/// A last tile of one key, behind another of its warp.
const ONE_MORE: Case = case([1, 49, 64, 64, 1, 1], true, None);

const COPIED_AHEAD_SURVIVORS: [Survivor; 2] = [
    Survivor::equivalent("_mma", START, NOTHING_READ),
    Survivor::equivalent("_mma", "k.@wait_copies(0)", "the last tile copies nothing"),
];

/// The same problems over caches of e4m3, whose rows have whole pieces of 16 bytes.
fn few_of_float8(sweep: Sweep, everything: bool, layout: DecodeConfig) {
    let whole = |width: usize| width.next_multiple_of(16);
    let plan = |(i, case): (usize, &Case)| {
        let case = Case { width: whole(case.width), value_width: whole(case.value_width), ..*case };
        let desc = forward(DType::BF16, everything, case);
        let float8 = Some(Float8Cache { k_scale: CacheScale::PerHead, v_scale: CacheScale::PerTensor });
        let options = AttentionOptions { float8, ..desc.options };
        let algorithm = Algorithm::Decode { layout, splits: PARTS[i % PARTS.len()] };
        AttentionDesc { options, ..desc }.plan_with(TARGET, algorithm).expect("plan")
    };
    sweep.check(&FEW.iter().chain([&ONE_MORE]).enumerate().map(plan).collect::<Vec<_>>());
}

const FLOAT8_TMA: DecodeTma = DecodeTma { warps: 2, slabs: 1, stages: 2, columns: 16, width: 64 };

#[test]
fn defects_of_attention_over_float8_are_noticed() {
    few_of_float8(OF_FEW, true, DecodeConfig::Tma(FLOAT8_TMA));
}

#[test]
#[ignore = "nightly: mutation-attention"]
fn defects_of_more_attention_over_float8_are_noticed() {
    few_of_float8(Sweep { fill: plain, ..OF_FEW }, false, DecodeConfig::Tma(FLOAT8_TMA));
    few_of_float8(OF_FEW, true, DecodeConfig::Tma(DecodeTma { warps: 4, slabs: 2, ..FLOAT8_TMA }));
    let copied_ahead = Sweep { survivors: &COPIED_AHEAD_SURVIVORS, ..OF_FEW };
    few_of_float8(copied_ahead, true, DecodeConfig::Mma(DecodeMma { warps: 2, stages: 2, width: 64 }));
}

/// Sequences of `f32` that end with a tile of a copy, before and after; two of a copy's tiles, and several of a block's.
const COPIED: [Case; 5] = [
    case([128, 128, 64, 64, 2, 2], true, None),
    case([33, 49, 40, 64, 4, 2], true, Some(40)),
    case([31, 63, 56, 40, 3, 3], false, Some(100)),
    case([64, 31, 64, 64, 1, 1], false, Some(100)),
    case([17, 1, 64, 64, 1, 1], true, None),
];

/// The last row of keys of the first head, and the first row of that of the second batch, are too small for their tiles: blocks of these heads read
/// the tensors themselves, those of the head in between do not.
fn sizes_apart(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let spec = &specs[slot];
    if spec.name == "key_lengths" {
        return vec![999.0, 37.0, 999.0];
    }
    let mut values = plain(specs, slot);
    if let Some(Layout { shape: [_, rows, heads, width], .. }) = spec.layout.filter(|_| spec.name == "k") {
        for at in [(rows - 1) * heads * width, rows * heads * width] {
            values[at..at + width].fill(2f64.powi(-30));
        }
    }
    values
}

const COPIED_SURVIVORS: [Survivor; 6] = [
    Survivor::equivalent("attention_pairs_", "EXPONENTS", "the bounds themselves suit as well"),
    Survivor::equivalent("_pairs_", START, NOTHING_READ),
    Survivor::equivalent("_mma_", START, NOTHING_READ),
    Survivor::equivalent("_pairs_", QUERY, NOT_WRITTEN),
    Survivor::equivalent("_mma_", QUERY, NOT_WRITTEN),
    Survivor::equivalent("attention_backward_q", QUERY, NOT_WRITTEN),
];
const OF_COPIES: Sweep = Sweep {
    survivors: &COPIED_SURVIVORS,
    fill: sizes_apart,
    skipped: |name| name.contains("_unpaired_"),
    ..SWEEP
};
/// All keys are too small for copies.
const OF_TENSORS: Sweep = Sweep {
    fill: |specs, slot| {
        let factor = if specs[slot].name == "k" { 2f64.powi(-60) } else { 1.0 };
        plain(specs, slot).iter().map(|x| x * factor).collect()
    },
    skipped: |name| !name.contains("_unpaired_"),
    ..OF_COPIES
};

#[test]
#[ignore = "nightly: mutation-attention"]
fn defects_of_attention_from_copies_are_noticed() {
    let pairs = SplitF16 { warps: 2, slabs: 1, columns: 16, width: 64 };
    let layouts = (pairs, Mma { warps: 2, slabs: 1, columns: 16, width: 64, vector: 4 });
    let forward = plans(&COPIED, |case| {
        forward(DType::F32, true, case)
            .plan_with(TARGET, Algorithm::SplitF16(layouts.0, layouts.1))
            .expect("plan")
    });
    let backward = plans(&COPIED, |case| {
        backward(DType::F32, true, case)
            .plan_with(TARGET, BackwardAlgorithm::SplitF16 { queries: layouts, keys: layouts })
            .expect("plan")
    });
    for sweep in [OF_COPIES, OF_TENSORS] {
        sweep.check(&forward);
        sweep.check(&backward);
    }
}
