//! Attention under masks of tiles, both directions, on tensor cores of warps and of warpgroups and on ordinary arithmetic.

use warpwright_ops::attention::tuning::{Config, Mma, Simt, Wgmma, WgmmaSweep, WgmmaSweeps};
use warpwright_ops::attention::{
    Algorithm, AttentionBackwardDesc, AttentionDesc, AttentionOptions, BackwardAlgorithm, BlockMaskTables,
};
use warpwright_ops::plan::{Layout, Real, TensorSpec};
use warpwright_ptx::DType;

use crate::harness::{Survivor, Sweep, TARGET, plain, plans};

/// Queries, keys, elements of a head, and heads of queries and of keys: several tiles of a mask and one, which end with the sequences or are cut.
type Case = ([usize; 3], [usize; 2]);
const CASES: [Case; 6] = [
    ([150, 290, 64], [2, 1]),
    ([257, 130, 40], [1, 1]),
    ([128, 128, 64], [2, 2]),
    ([3, 1, 16], [1, 1]),
    ([20, 140, 64], [1, 1]),
    // The second tile of queries sees keys beyond those of the first.
    ([200, 400, 64], [1, 1]),
];

/// A pattern in which tiles are left out at both ends of lists, whole, and seen in part; a query and a key that see nothing, and in the last case
/// nothing at all.
fn sees([queries, keys]: [usize; 2], h: usize, query: usize, key: usize) -> bool {
    let near = query.abs_diff(key) < 90 && query != 7 && key != 11;
    let whole = query < 128 && (128..256).contains(&key);
    queries != 20 && (near || whole || h == 1 && (key == keys - 1 || query == queries - 1))
}

fn tables(extents: [usize; 2], heads: usize) -> BlockMaskTables {
    let [queries, keys] = extents;
    BlockMaskTables::from_fn([1, heads, queries, keys], |_, h, query, key| sees(extents, h, query, key))
        .expect("small")
}

fn desc(dtype: DType, ([queries, keys, width], [heads, key_heads]): Case, everything: bool) -> AttentionDesc {
    let layout = |rows, heads| Layout::contiguous([1, rows, heads, width]);
    let (q, k) = (layout(queries, heads), layout(keys, key_heads));
    let softcap = everything.then(|| Real::new(1.5));
    let block_mask = Some(tables([queries, keys], heads).shape);
    let options = AttentionOptions { block_mask, softcap, ..AttentionOptions::default() };
    AttentionDesc { dtype, q, k, v: k, o: q, options }
}

fn backward(forward: AttentionDesc) -> AttentionBackwardDesc {
    let (dy, dq, dk, dv) = (forward.o, forward.q, forward.k, forward.v);
    AttentionBackwardDesc { forward, dy, dq, dk, dv, dbias: false, dsinks: false }
}

fn fill(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let layout =
        |name| specs.iter().find(|spec| spec.name == name).and_then(|spec| spec.layout).expect("is there");
    let ([_, queries, heads, _], [_, keys, ..]) = (layout("q").shape, layout("k").shape);
    let tables = || tables([queries, keys], heads);
    let numbers = match specs[slot].name {
        "key_tiles" => tables().key_tiles,
        "query_tiles" => tables().query_tiles,
        "mask_bits" => tables().bits,
        _ => return plain(specs, slot),
    };
    numbers.into_iter().map(f64::from).collect()
}

const NEW_REGISTERS: &str = "products of a tile are in new registers, which nothing has written";
const FENCED_BEFORE: &str = "the products in front of them have a fence behind all writes";
const AS_ONE: &str = "the warp has read what is known of the columns before it waits for products as one";
const TOGETHER: &str = "where both tiles are read to the end they are given back together";
const ONE_EXCHANGE: &str = "one exchange for each tile, and barriers of the block between tiles";
/// A barrier of the warp before weights are exchanged.
const AGAIN: &str = "// What went before may still be read. k.@warp_barrier()";

const SURVIVORS: [Survivor; 12] = [
    Survivor::equivalent(
        "_mma",
        "what went before. k.@barrier()",
        "nothing has read a stage before the first one is filled",
    ),
    Survivor::equivalent("_mma", "list.count.@gt(0)", "without a tile a copy that nobody reads"),
    Survivor::equivalent("attention_f32_simt", AGAIN, ONE_EXCHANGE),
    Survivor::equivalent("attention_backward_q_f32_simt", AGAIN, ONE_EXCHANGE),
    Survivor::equivalent(
        "attention_backward_kv_f32_simt",
        AGAIN,
        "of two exchanges for each tile the first follows a barrier of the block",
    )
    .at_most(1),
    Survivor::missed(
        "_wg",
        "@publish_mbarriers()",
        "the barrier of the block behind it shows the counts to its threads; that tensor copies need a fence to see them is not modelled",
    ),
    Survivor::equivalent("_wg", "@add_products_of(", FENCED_BEFORE).at_most(6),
    Survivor::equivalent("_wg", "@WarpgroupSums::products(", NEW_REGISTERS),
    Survivor::equivalent("_wg", "self.keys.@producer_acquire(", "the first place has never been used")
        .at_most(1),
    Survivor::equivalent("_wg", "@barrier_of(self.group + TURNS", "the last turn is for nobody").at_most(1),
    Survivor::equivalent("backward", "k.@warp_barrier()", AS_ONE),
    Survivor::equivalent("_kv_", "pipeline.@producer_acquire(pipe, first.bytes() + more)", TOGETHER),
];
const SWEEP: Sweep = Sweep { survivors: &SURVIVORS, by_line: true, ..Sweep::new(fill) };

fn check(dtype: DType, config: Config, everything: bool) {
    SWEEP.check(&plans(&CASES, |case| {
        desc(dtype, case, everything).plan_with(TARGET, config.into()).expect("plan")
    }));
    SWEEP.check(&plans(&CASES, |case| {
        backward(desc(dtype, case, everything)).plan_with(TARGET, [config; 2].into()).expect("plan")
    }));
}

#[test]
fn defects_of_masked_attention_are_noticed() {
    check(DType::BF16, Config::Mma(Mma { warps: 2, slabs: 1, columns: 16, width: 64, vector: 8 }), false);
}

fn of_warpgroups(groups: u32) {
    let layout = Wgmma {
        groups,
        columns: 16,
        width: 64,
        value_width: 64,
        stages: 2,
        ping_pong: true,
        lazy_rescale: false,
        persistent: false,
    };
    SWEEP.check(&plans(&CASES, |case| {
        let algorithm = Algorithm::Wgmma { layout, blocks: None };
        desc(DType::BF16, case, false).plan_with(TARGET, algorithm).expect("plan")
    }));
}

/// Blocks whose rows are in one tile of the mask.
#[test]
fn defects_of_masked_attention_of_warpgroups_are_noticed() {
    of_warpgroups(2);
}

/// Blocks whose rows are in two.
#[test]
#[ignore = "nightly: mutation-attention"]
fn defects_of_attention_of_warpgroups_under_two_lists_are_noticed() {
    of_warpgroups(3);
}

#[test]
#[ignore = "nightly: mutation-attention"]
fn defects_of_masked_sweeps_of_warpgroups_are_noticed() {
    let of = WgmmaSweep { groups: 2, columns: 32, tiles: 4, width: 64, value_width: 64, held: false };
    let sweeps = WgmmaSweeps { queries: of, keys: of, values: None };
    SWEEP.check(&plans(&CASES, |case| {
        let algorithm = BackwardAlgorithm::Wgmma(sweeps);
        backward(desc(DType::BF16, case, false)).plan_with(TARGET, algorithm).expect("plan")
    }));
}

#[test]
#[ignore = "nightly: mutation-attention"]
fn defects_of_more_masked_attention_are_noticed() {
    let simt = Simt { threads: 64, slots: 2, columns: 4, width: 64, vector: 4, shared_place: false };
    check(DType::F32, Config::Simt(simt), true);
    check(DType::BF16, Config::Mma(Mma { warps: 2, slabs: 1, columns: 16, width: 64, vector: 8 }), true);
}
