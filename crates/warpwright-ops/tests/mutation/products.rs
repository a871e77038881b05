//! Products of matrices on tensor cores and on the ordinary units.

use warpwright_ops::Operation;
use warpwright_ops::activation::{Activation, GatedActivation};
use warpwright_ops::gemm::tuning::{self, Config, PersistentConfig, Tiled, Tiles, WarpgroupConfig};
use warpwright_ops::gemm::{
    ActivationLinearBackwardDesc, GatedActivationLinearBackwardDesc, GatedLinearDesc, GemmDesc,
    LinearActivationDesc,
};
use warpwright_ops::matmul_4bit::tuning::{
    self as four_bits, Config as FourBits, WarpgroupConfig as FourBitGroups,
};
use warpwright_ops::matmul_4bit::{Matmul4bitDesc, ScaleFormat, Weight4bitDesc, WeightFormat};
use warpwright_ops::plan::{Real, TensorSpec};
use warpwright_ops::quantize8::{Format, Scaling};
use warpwright_ops::scaled_gemm::{Accumulation, ScaledGemmDesc};
use warpwright_ptx::DType;
use warpwright_ptx::float8::e4m3_value;
use warpwright_runtime::LaunchStep;

use crate::harness::{Survivor, Sweep, TARGET, plain, plans};

/// Rows, columns and common dimension: whole tiles, one element less and more, several slices, one element. Those of more
/// than 512 are shared by blocks along the common dimension.
const SHAPES: [[usize; 3]; 10] = [
    [65, 66, 33],
    [63, 63, 200],
    [64, 64, 64],
    [1, 1, 1],
    [72, 136, 16],
    [8, 8, 24],
    [8, 13, 1000],
    [5, 3, 515],
    [9, 20, 1032],
    [65, 8, 128],
];
const ACTIVATIONS: [Option<Activation>; 7] = [
    Some(Activation::Silu),
    None,
    Some(Activation::GeluTanh),
    Some(Activation::Relu),
    Some(Activation::Sigmoid),
    Some(Activation::Tanh),
    Some(Activation::GeluErf),
];

/// A product; the rows of those that are not `narrow` begin at multiples of 16 bytes.
fn product(dtype: DType, transposed: bool, i: usize, narrow: bool) -> GemmDesc {
    // Each function of the sums, with the smallest product that has one.
    product_of(SHAPES.get(i).copied().unwrap_or([8, 8, 24]), dtype, transposed, i, narrow)
}

/// The same of this shape.
fn product_of([m, n, k]: [usize; 3], dtype: DType, transposed: bool, i: usize, narrow: bool) -> GemmDesc {
    let desc = GemmDesc::new(dtype, [m, n, k], transposed, !transposed);
    let pad = |elements: usize| if narrow { elements } else { elements.next_multiple_of(8) };
    let (lda, ldb, ldy) = (pad(desc.lda), pad(desc.ldb), pad(n));
    let (stride_a, stride_b, stride_y) = (lda * m.max(k), ldb * n.max(k), ldy * m);
    let batch = if k < 64 { 2 } else { 1 };
    let (beta, bias) = (Real::new([0.5, 0.0, -1.0][i % 3]), i % 4 < 2);
    let activation = ACTIVATIONS[i % ACTIVATIONS.len()];
    GemmDesc { lda, ldb, ldy, stride_a, stride_b, stride_y, batch, beta, bias, activation, ..desc }
}

/// Shapes, then functions.
const CASES: [usize; 17] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

const THREE_PANELS: &str = "three panels of a tile take turns in two places, and each waits for all stores before it: what one does not wait for, the next does";

const BEHIND_THE_LAST: &str =
    "behind the last tile of a block: arrivals at a barrier that nobody waits at are left";

const FENCE_OF_SLABS: &str =
    "the fence in front of the products of one slab is one for the sums of the other";

/// Of kernels with this in their names: one wait of those that warpgroups take turns by.
const fn behind_the_last(kernel: &'static str) -> Survivor {
    const AT: &str = "pub(super) fn wait(self) { self.k.@barrier_of(";
    Survivor::equivalent(kernel, AT, BEHIND_THE_LAST).at_most(1)
}

/// One fence of those in front of products.
const fn fence_of_slabs(kernel: &'static str) -> Survivor {
    Survivor::equivalent(kernel, "sums.@add_products(", FENCE_OF_SLABS).at_most(1)
}

const EMPTY_GROUPS: &str = "elements of two bytes are not copied asynchronously: groups are empty";

pub(crate) const FENCE_OF_COPIES: &str = "the barrier of the block behind it shows the counts to its threads; that tensor copies need a fence to see them is not modelled";

const EVEN_ROWS: &str = "rows of results that copies reach begin at multiples of 16 bytes";

const SURVIVORS: [Survivor; 39] = [
    Survivor::equivalent(
        "_f16x3_",
        "other.@restart(high_a, low_b, 0..all)",
        "the fence in front of the products of large parts is one for the sums of the others",
    ),
    Survivor::equivalent("_s2_c1$", "let last = lane.@eq(WARP - 1) & odd", EVEN_ROWS),
    Survivor::equivalent("_s2_c1$", "let first = lane.@eq(0) & odd", EVEN_ROWS),
    Survivor::equivalent("_s2_c1$", "let first = lane.eq(0) & odd & col.@lt(n)", EVEN_ROWS),
    Survivor::missed(
        "matmul_4bit_mxfp4_e8m0_bf16_s64_",
        "exponent.@eq(255)",
        "sums of infinities of both signs are NaN, too",
    ),
    Survivor::missed(
        "_w16_c3",
        "k.wait_copies(config.stages - 2); k.@warp_barrier();",
        "all warps meet between any two runs of one where tiles have fewer runs than there are warps",
    ),
    Survivor::missed(
        "_w16_c3",
        "}); k.@wait_copies(config.stages - 2);",
        "a thread waits for its copies of x once more, before it multiplies, and copies come when they are started here",
    ),
    Survivor::missed(
        "matmul_4bit_expand_mxfp4_e8m0_bf16_shift_x8",
        "exponent.@eq(255)",
        "sums of infinities of both signs are NaN, too",
    ),
    Survivor::equivalent(
        "matmul_4bit_",
        "self.rows_of(next, (i + 1).@lt(total))",
        "what is loaded behind the last step of a block is not used",
    ),
    Survivor::equivalent(
        "matmul_4bit_",
        "eq(multiplying + WARP)",
        "the lane of the warp that starts copies may be any",
    ),
    Survivor::equivalent(
        "matmul_4bit_",
        "let leads = k.lane_idx().@eq(0);",
        "the lane that gives a stage back may be any",
    ),
    Survivor::equivalent(
        "matmul_4bit_",
        "k.if_(k.lane_idx().@eq(0), || self.x_pipeline",
        "the lane that gives a stage back may be any",
    ),
    Survivor::equivalent(
        "matmul_4bit_",
        "let whole = (p.n % VECTOR).@eq(0);",
        "results are stored by vectors or one by one",
    ),
    Survivor::equivalent(
        "matmul_4bit_",
        "// The last columns have been read. k.@barrier_of(group + MEETING, GROUP);",
        "in front of the first columns of a tile: the warps have met at its stages, of which there are fewer than slices here",
    )
    .at_most(1),
    Survivor::missed(
        "matmul_4bit_",
        "if behind == 0 { k.@warp_barrier();",
        "all lanes of a warp load at once here",
    ),
    Survivor::missed(
        "matmul_4bit_mxfp4_e8m0_bf16_wg_",
        "exponent.@eq(255)",
        "sums of infinities of both signs are NaN, too",
    ),
    Survivor::missed(
        "_wg_s32_",
        "sums.@wait(1)",
        "of every second slice no stage is given back; that operands in registers are read later is not modelled",
    )
    .at_most(4),
    Survivor::equivalent("_pack_", ".@le(end)", "a vector that ends with the row is copied by elements"),
    Survivor::equivalent(
        "_split_f16_",
        "exponent.@ge(",
        "a largest magnitude at the bound has pairs either way",
    ),
    Survivor::equivalent(
        "_split_f16_",
        "exponent.@le(",
        "a largest magnitude at the bound has pairs either way",
    ),
    Survivor::equivalent(
        "_split_f16_",
        "(extent.least + 1).@ge(",
        "pairs hold an element at the bound either way",
    ),
    Survivor::equivalent(
        "_split_f16_",
        "extent.largest.@eq(0)",
        "results of zeros are computed again: zeros",
    ),
    Survivor::equivalent("_v4", ".@bounded()", "rows are whole vectors"),
    Survivor::missed(
        "_f16x3_",
        "// A warp stores the rows that it has written. k.@warp_barrier();",
        "all lanes meet before at the vote on whether rows lack something, which orders their stores here",
    ),
    Survivor::equivalent(
        "_rows_",
        "// A warp stores the rows that it has written. k.@warp_barrier();",
        "elements of 16 bits go to the panel by an instruction at which all lanes meet",
    ),
    Survivor::missed("_wg_", "@publish_mbarriers()", FENCE_OF_COPIES),
    Survivor::missed("_wgp_", "@publish_mbarriers()", FENCE_OF_COPIES),
    Survivor::equivalent("_p2_", "copies(", EMPTY_GROUPS),
    Survivor::equivalent("_p2_", "pipeline_ahead(", EMPTY_GROUPS),
    Survivor::equivalent(
        "gemm",
        "* size - 1)).@eq(0)",
        "either shift leaves vectors to the path of single elements",
    ),
    behind_the_last("_d_"),
    fence_of_slabs("_d_"),
    behind_the_last("_z_"),
    fence_of_slabs("_z_"),
    Survivor::equivalent("_bias_saved", "copy(); k.@commit_stores();", THREE_PANELS).at_most(2),
    Survivor::equivalent("_bias_saved", "k.@wait_stores(if alternate", THREE_PANELS).at_most(2),
    Survivor::equivalent(
        "_bias_saved",
        "k.wait_stores(if alternate { PANELS - 1 } else { 0 })); k.@barrier_of(group + MEETING, GROUP);",
        THREE_PANELS,
    )
    .at_most(2),
    Survivor::equivalent(
        "_split",
        "(to_col + (width - 1)).@lt(n)",
        "parts have no gaps between their rows: where these are aligned, all vectors are whole",
    ),
    Survivor::equivalent(
        "_split",
        "self.epilogue.activation.@eq(first)",
        "parts are stored without a function",
    ),
];

pub(crate) const SWEEP: Sweep = Sweep { survivors: &SURVIVORS, by_line: true, ..Sweep::new(plain) };

/// Kernels whose warps share the common dimension: their stages go round only in parts that are longer than those here.
fn in_teams(name: &str) -> bool {
    ["_t2", "_t4"].into_iter().any(|teams| name.ends_with(teams) || name.contains(&format!("{teams}_")))
}

/// Tiles of these rows and columns, whatever tuning takes for products of such sizes.
fn tiles_of(dtype: DType, size: (u32, u32)) -> Config {
    let wanted = |config: &Config| match config {
        Config::Tiled(tiled) => {
            let Tiles { rows, cols, teams, .. } = *tiled.tiles();
            (rows, cols, teams) == (size.0, size.1, 1) && !matches!(tiled, Tiled::Split(_))
        }
        Config::Persistent(_) | Config::Shared(_) | Config::F16x3(_) | Config::Warpgroup(_) => false,
    };
    tuning::configs(dtype, TARGET).into_iter().find(wanted).expect("a kernel with such tiles")
}

fn products(dtype: DType, transposed: bool) {
    // Kernels of warpgroups and those that split their operands have sweeps of their own, whose products are long enough for their stages.
    let elsewhere = |name: &str| {
        in_teams(name)
            || ["_tf32x3_", "_wg_", "_wgp_", "_pack_"].into_iter().any(|apart| name.contains(apart))
    };
    Sweep { skipped: elsewhere, ..SWEEP }.check(&plans(&CASES, |i| {
        let narrow = i.is_multiple_of(2);
        let desc = product(dtype, transposed, i, narrow);
        let plan = match i {
            // The short products of f64 are in tiles whose stages go round in longer ones.
            10 if dtype == DType::F64 => {
                let long = product_of([73, 69, 80], dtype, transposed, i, false);
                long.plan_with(TARGET, tiles_of(dtype, (128, 64)))
            }
            _ if narrow => desc.plan(TARGET),
            _ => desc.plan_with(TARGET, tiles_of(dtype, (64, 64))),
        };
        plan.expect("plan")
    }));
}

/// Only what multiplies with `wgmma`, in small tiles: the ring of stages goes round in short products.
fn warpgroups(dtype: DType, transposed: bool, [rows, cols, stages]: [u32; 3]) {
    let sweep = Sweep { skipped: |name| !name.contains("_wg_"), ..SWEEP };
    let config = Config::Warpgroup(WarpgroupConfig { rows, cols, stages });
    sweep.check(&plans(&CASES, |i| {
        product(dtype, transposed, i, false).plan_with(TARGET, config).expect("plan")
    }));
}

/// Only persistent kernels, in small tiles, with everything that an epilogue can do: a kernel for each way to store, that all shapes
/// share. A block has several tiles, one after the other, where a batch has more of them than there are blocks.
fn persistent(dtype: DType, transposed: bool, cols: u32, cluster: u32) {
    let sweep = Sweep { skipped: |name| !name.contains("_wgp_"), ..SWEEP };
    let layout = PersistentConfig { rows: 128, cols, groups: 2, stages: 2, cluster, height: 2 };
    let cases: Vec<usize> = (0..2 * SHAPES.len()).collect();
    sweep.check(&plans(&cases, |i| {
        let shape @ [m, n, k] = SHAPES[i % SHAPES.len()];
        // Copies store rows of whole vectors.
        let n = if i < SHAPES.len() { n.next_multiple_of(8) } else { n };
        // One slice more than there are stages is enough where a batch makes many tiles.
        let many = [[72, 136, 16], [63, 63, 200]].contains(&shape);
        let desc = product_of([m, n, if many { k.min(136) } else { k }], dtype, transposed, i, false);
        let batch = if many { 140 } else { desc.batch };
        let desc = GemmDesc {
            batch,
            alpha: Real::new(0.5),
            beta: Real::new(-1.5),
            bias: true,
            activation: Some(Activation::Silu),
            ..desc
        };
        let anywhere = GemmDesc { ldy: desc.n | 1, stride_y: (desc.n | 1) * desc.m, ..desc.clone() };
        let desc = if i < SHAPES.len() { desc } else { anywhere };
        desc.plan_with(TARGET, Config::Persistent(layout)).expect("plan")
    }));
}

/// Only persistent kernels that add up rows beside the product, in small tiles: blocks with several tiles, rows that a tile shares with others in
/// every way, and ends within tiles and slices.
fn summing(dtype: DType, cols: u32, cluster: u32) {
    let sweep = Sweep { skipped: |name| !name.contains("_dbias"), ..SWEEP };
    let layout = PersistentConfig { rows: 128, cols, groups: 2, stages: 2, cluster, height: 2 };
    let tiles = [1, 2, 5, 20].map(|across| (cols * across) as usize);
    let mut shapes: Vec<_> = tiles.into_iter().map(|n| [72, n - 8, 200]).collect();
    shapes.extend([[128 * 46, 3 * cols as usize - 8, 24], [136, 16, 330], [1, 1, 1], [65, 67, 1000]]);
    let cases: Vec<usize> = (0..shapes.len()).collect();
    sweep.check(&plans(&cases, |i| {
        let [m, n, k] = shapes[i];
        let m = m.next_multiple_of(8);
        let desc = GemmDesc { bias_gradient: true, ..GemmDesc::new(dtype, [m, n, k], true, true) };
        let desc = GemmDesc { ldb: k.next_multiple_of(8), ..desc };
        desc.plan_with(TARGET, Config::Persistent(layout)).expect("plan")
    }));
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_sums_beside_products_are_noticed() {
    summing(DType::BF16, 64, 1);
    summing(DType::F16, 128, 2);
}

/// Small tiles of persistent blocks of so many columns.
const fn small_tiles(cols: u32) -> PersistentConfig {
    PersistentConfig { rows: 128, cols, groups: 2, stages: 2, cluster: 1, height: 2 }
}

/// Results that copies store and those that begin anywhere, of one tile and of several a block. Of the last two, each of two warpgroups that
/// take turns has several tiles of 128 columns, too.
const BESIDE: [[usize; 3]; 8] = [
    [65, 72, 40],
    [136, 200, 328],
    [8, 67, 328],
    [1, 1, 8],
    [128 * 70, 136, 24],
    [128 * 70, 129, 8],
    [128 * 270, 136, 72],
    [128 * 270, 129, 72],
];

/// Shapes of these in which each warpgroup has a part of every tile.
const ALONE: usize = 6;

/// Gated linear units in one launch, in small tiles.
#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_gated_linear_units_are_noticed() {
    let sweep = Sweep { skipped: |name| !name.starts_with("gated_linear_"), ..SWEEP };
    let cases: Vec<usize> = (0..ALONE).collect();
    for (cols, bias, saved) in
        [(128, false, false), (256, false, false), (128, true, true), (256, false, true)]
    {
        sweep.check(&plans(&cases, |i| {
            let [rows, out_features, in_features] = BESIDE[i];
            let (dtype, activation) = (DType::BF16, GatedActivation::Swiglu);
            let desc = GatedLinearDesc { dtype, rows, in_features, out_features, activation, bias, saved };
            desc.plan_with(TARGET, small_tiles(cols)).expect("plan")
        }));
    }
}

/// Products with an activation or its derivative in one launch, and with the gradients of gated units.
#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_products_beside_activations_are_noticed() {
    let sweep = Sweep { skipped: |name| !name.contains("_wgp_"), ..SWEEP };
    let (dtype, transpose_b) = (DType::BF16, true);
    for cols in [64, 128] {
        let in_turns: Vec<usize> = (0..if cols == 128 { BESIDE.len() } else { ALONE }).collect();
        sweep.check(&plans(&in_turns, |i| {
            let [rows, out_features, in_features] = BESIDE[i];
            let (bias, activation) = (true, Activation::Silu);
            let desc = LinearActivationDesc {
                dtype,
                rows,
                in_features,
                out_features,
                transpose_b,
                bias,
                activation,
            };
            desc.plan_with(TARGET, small_tiles(cols)).expect("plan")
        }));
        sweep.check(&plans(&in_turns, |i| {
            let [rows, in_features, out_features] = BESIDE[i];
            let activation = Activation::Silu;
            let desc = ActivationLinearBackwardDesc {
                dtype,
                rows,
                in_features,
                out_features,
                transpose_b,
                activation,
            };
            desc.plan_with(TARGET, small_tiles(cols)).expect("plan")
        }));
        sweep.check(&plans(&in_turns, |i| {
            let [rows, in_features, out_features] = BESIDE[i];
            let activation = GatedActivation::Swiglu;
            let desc = GatedActivationLinearBackwardDesc {
                dtype,
                rows,
                in_features,
                out_features,
                transpose_b,
                activation,
            };
            desc.plan_with(TARGET, small_tiles(cols)).expect("plan")
        }));
    }
}

/// Products of 8-bit matrices with scales, in persistent blocks with small tiles and on the ordinary units.
fn scaled(format: Format, (a, b): (Scaling, Scaling), accumulation: Accumulation) {
    let fill = |specs: &[TensorSpec], slot: usize| {
        let values = plain(specs, slot).into_iter();
        match specs[slot].dtype {
            DType::I8 => values.map(|value| (value * 60.0).clamp(-128.0, 127.0)).collect(),
            DType::F32 => values.map(|value| 0.1 + value.abs()).collect(),
            _ => values.collect(),
        }
    };
    let config = PersistentConfig { rows: 128, cols: 64, groups: 2, stages: 2, cluster: 1, height: 2 };
    // The last has more tiles than there are blocks.
    let shapes = [[65, 66, 33], [130, 70, 400], [1, 1, 1], [72, 136, 16], [8, 13, 1000], [8, 8960, 16]];
    let cases: Vec<usize> = (0..3 * shapes.len()).collect();
    Sweep { fill, ..SWEEP }.check(&plans(&cases, |i| {
        let [m, n, k]: [usize; 3] = shapes[i % shapes.len()];
        // With copies of results, with results that begin anywhere, and with operands that do.
        let kind = i / shapes.len();
        let boxed = kind < 2;
        let n = if kind == 0 { n.next_multiple_of(8) } else { n };
        let leading = if boxed { k.next_multiple_of(16) } else { k + 1 };
        let ldy = if kind == 0 { n + 8 } else { n + 3 };
        let desc = ScaledGemmDesc {
            lda: leading,
            ldb: leading,
            ldy,
            scaling_b: Some(b),
            bias: true,
            activation: Some(Activation::Silu),
            accumulation,
            ..ScaledGemmDesc::new(format, DType::BF16, [m, n, k], a)
        };
        let plan = if boxed { desc.plan_with(TARGET, config) } else { desc.plan(TARGET) };
        plan.expect("plan")
    }));
}

#[test]
fn defects_of_scaled_products_are_noticed() {
    scaled(Format::E4M3, (Scaling::BlockWise1x128, Scaling::BlockWise128x128), Accumulation::Promoted);
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_products_with_other_scales_are_noticed() {
    scaled(Format::E4M3, (Scaling::RowWise, Scaling::TensorWise), Accumulation::Promoted);
    scaled(Format::E5M2, (Scaling::BlockWise128x128, Scaling::BlockWise1x128), Accumulation::Fast);
    scaled(Format::Int8, (Scaling::RowWise, Scaling::RowWise), Accumulation::Fast);
}

/// Only copies of rows that begin anywhere: of one with more vectors than a warp has lanes, and of short ones.
fn packing(dtype: DType) {
    let sweep = Sweep { skipped: |name| !name.contains("_pack_"), ..SWEEP };
    let shapes = [[5, 3, 1099], [9, 6, 21], [1, 2, 300]];
    let cases: Vec<usize> = (0..2 * shapes.len()).collect();
    sweep.check(&plans(&cases, |i| {
        let transposed = i >= shapes.len();
        let desc = product_of(shapes[i % shapes.len()], dtype, transposed, 0, true);
        let (lda, ldb) = (desc.lda | 1, desc.ldb | 1);
        let (stride_a, stride_b) = (lda * desc.m.max(desc.k), ldb * desc.n.max(desc.k));
        let desc = GemmDesc { lda, ldb, stride_a, stride_b, ..desc };
        desc.plan_with(TARGET, tiles_of(dtype, (64, 64))).expect("plan")
    }));
}

#[test]
fn defects_of_packing_are_noticed() {
    packing(DType::BF16);
    packing(DType::F32);
}

/// Only what splits its operands; sums of products with a bias are too large for that.
fn splitting(transposed: bool) {
    let large = |specs: &[TensorSpec], slot: usize| {
        let factor = if slot < 2 && specs[3].present { 1e17 } else { 1.0 };
        plain(specs, slot).into_iter().map(|value| value * factor).collect()
    };
    let sweep = Sweep { fill: large, skipped: |name| !name.contains("_tf32x3_"), ..SWEEP };
    let small = |config: &Config| matches!(config, Config::Tiled(Tiled::Split(c)) if c.tiles.rows == 64);
    let config =
        tuning::configs(DType::F32, TARGET).into_iter().find(small).expect("a kernel with small tiles");
    let cases: Vec<usize> = (0..2 * CASES.len()).collect();
    sweep.check(&plans(&cases, |i| {
        let desc = product(DType::F32, transposed, i % CASES.len(), false);
        let desc = GemmDesc { bias: i >= CASES.len(), ..desc };
        desc.plan_with(TARGET, config).expect("plan")
    }));
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_products_of_split_operands_are_noticed() {
    splitting(true);
}

/// Only what multiplies pairs of `f16`, and splits its operands into them. Some elements are so small beside others that pairs do not hold them,
/// some products only of such, and some rows have no scale.
fn pairs(transposed: bool) {
    let fill = |specs: &[TensorSpec], slot: usize| {
        let values = plain(specs, slot).into_iter().enumerate();
        let factor = |i: usize| match (slot, i % 97) {
            (2.., _) => 1.0,
            // Some operands have no scales, and ordinary results.
            (0, _) if !specs[0].len.is_multiple_of(3) => 1e-32,
            (1, _) if !specs[0].len.is_multiple_of(3) => 1e32,
            (0, 13) => f64::INFINITY,
            (_, 5..=11) => 1e-11,
            (_, 20..=23) => 0.0,
            _ => 1.0,
        };
        values.map(|(i, value)| value * factor(i)).collect()
    };
    let skipped =
        |name: &str| !["_f16x3_", "_split_f16_", "_column_extents_"].iter().any(|part| name.contains(part));
    let layout = PersistentConfig { rows: 128, cols: 64, groups: 2, stages: 4, cluster: 1, height: 2 };
    // Whole tiles and parts of some, rows longer than a block reads at once, and blocks that have several tiles, with both ways to store.
    let shapes = [[65, 66, 33], [64, 64, 200], [5, 3, 515], [8, 72, 136], [8, 70, 136]];
    let cases: Vec<usize> = (0..2 * shapes.len()).collect();
    Sweep { fill, skipped, ..SWEEP }.check(&plans(&cases, |i| {
        let shape = shapes[i % shapes.len()];
        let desc = product_of(shape, DType::F32, transposed, i, i >= shapes.len());
        let batch = if shape[0] == 8 { 70 } else { desc.batch };
        let (alpha, activation) = (Real::new(0.5), Some(Activation::Silu));
        let beta = Real::new(-1.5);
        let desc = GemmDesc { batch, alpha, beta, bias: true, activation, ..desc };
        desc.plan_with(TARGET, Config::F16x3(layout)).expect("plan")
    }));
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_products_of_pairs_are_noticed() {
    pairs(false);
    pairs(true);
}

/// Only kernels whose warps share the common dimension. In the last two products, one shared by blocks as well and one not, every
/// team has so much that the stages go round.
fn teams(dtype: DType, transposed: bool) {
    for config in tuning::configs(dtype, TARGET) {
        let Config::Tiled(tiled) = config else { continue };
        let Tiles { teams, slice, stages, .. } = *tiled.tiles();
        if teams == 1 {
            continue;
        }
        let long = |batch: usize, parts: usize| {
            let k = (teams * slice * (stages + 2)) as usize * parts;
            let (stride_a, stride_b, stride_y) = (8 * k, 8 * k, 24);
            let lda = if transposed { 8 } else { k };
            let desc = GemmDesc::new(dtype, [3, 8, k], transposed, !transposed);
            GemmDesc { batch, lda, ldb: lda, stride_a, stride_b, stride_y, ..desc }
        };
        let sweep = Sweep { skipped: |name| !in_teams(name), ..SWEEP };
        let cases: Vec<usize> = (0..CASES.len() + 2).collect();
        sweep.check(&plans(&cases, |i| {
            let desc = match i - i.min(CASES.len()) {
                _ if i < CASES.len() => product(dtype, transposed, i, false),
                0 => long(70, 1),
                _ => long(44, 3),
            };
            let desc = GemmDesc { precision: config.precision(dtype), ..desc };
            desc.plan_with(TARGET, config).expect("plan")
        }));
    }
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_products_of_teams_are_noticed() {
    teams(DType::F32, true);
}

#[test]
fn defects_of_products_of_warpgroups_are_noticed() {
    warpgroups(DType::BF16, false, [64, 64, 2]);
    warpgroups(DType::F16, true, [128, 64, 3]);
}

#[test]
fn defects_of_persistent_products_are_noticed() {
    persistent(DType::BF16, false, 64, 1);
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_persistent_products_in_clusters_are_noticed() {
    persistent(DType::F16, true, 128, 2);
}

#[test]
fn defects_of_products_are_noticed() {
    products(DType::BF16, false);
    products(DType::F32, true);
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_more_products_are_noticed() {
    for (dtype, transposed) in
        [(DType::BF16, true), (DType::F32, false), (DType::F64, false), (DType::F64, true)]
    {
        products(dtype, transposed);
    }
    teams(DType::BF16, false);
    splitting(false);
}

/// The launch of warpgroups without clusters, or of warps that copy codes, in one block, which takes one tile after the other.
fn one_block(step: &LaunchStep) -> LaunchStep {
    let (step, name) = (step.clone(), step.kernel().name());
    let stays = name.contains("_wg_") && !name.contains("_p") || name.contains("_w16_c");
    if stays { step.with_grid([1, 1, 1]) } else { step }
}

/// Products with 4-bit weights: streaming kernels, warpgroups, one for any alignment, and expanded weights.
fn of_four_bits(format: WeightFormat, scale: Option<ScaleFormat>, configs: &[FourBits]) {
    of_groups(format, scale, configs, false);
}

/// The same, where the group of each column is given if they are `indexed`.
fn of_groups(format: WeightFormat, scale: Option<ScaleFormat>, configs: &[FourBits], indexed: bool) {
    let fill = |specs: &[TensorSpec], slot: usize| match (specs[slot].name, specs[slot].dtype) {
        // Nested scales are any byte, the first and the last of a table among them; exponents are near that of 1, but for the first rows,
        // of the least, and a NaN.
        ("scales", DType::U8) => {
            let nested = specs.iter().any(|spec| spec.name == "nested_absmax" && spec.present);
            let last = specs[slot].len - 1;
            let least = (specs[slot].len / 3).min(160);
            let byte = |i: usize| match i {
                _ if nested => i * 85 % 256,
                _ if i == last => 255,
                _ if i < least => 0,
                _ => 120 + i % 7,
            };
            (0..specs[slot].len).map(|i| byte(i) as f64).collect()
        }
        // The last group, one behind it, and -1 among them.
        ("group_index", _) => (0..specs[slot].len).map(|i| (i * 5 % 21) as f64 - 1.0).collect(),
        // The least and the largest ones, and a NaN.
        ("scales", DType::F8E4M3) => {
            let last = specs[slot].len - 1;
            let byte = |i: usize| if i == last { 0x7f } else { (i * 37 % 127) as u8 };
            (0..specs[slot].len).map(|i| e4m3_value(byte(i))).collect()
        }
        ("weight" | "zero_points", _) => (0..specs[slot].len).map(|i| (i * 37 % 256 % 251) as f64).collect(),
        _ => plain(specs, slot),
    };
    // Rows beyond a tile; stages that go round; slices that end within a run, and runs within a step; any size; more rows than are streamed.
    let shapes = [[3, 21, 576], [1, 53, 4352], [2, 40, 320], [3, 5, 33], [1, 3, 1], [70, 9, 64], [70, 4, 33]];
    let cases: Vec<usize> = (0..shapes.len() + 2 * configs.len()).collect();
    let skipped = |name: &str| name.starts_with("gemm_");
    Sweep { fill, skipped, launched: one_block, ..SWEEP }.check(&plans(&cases, |i| {
        let config = i.checked_sub(shapes.len()).map(|i| (configs[i / 2], i % 2 == 0));
        let [m, n, k] = match config {
            None => shapes[i],
            // More runs of a tile than warps, or fewer; of all tiles so many that stages go round.
            Some((FourBits::Stream(config), long)) if config.stages > 0 => {
                let (runs, tiles) = if long { (config.warps + 1, 3) } else { (3, 22) };
                let (rows, k) = (config.rows() * tiles + 5, config.run() * runs);
                [config.cols() as usize - 2, rows as usize, k as usize]
            }
            Some((FourBits::Stream(config), long)) => {
                let (slice, rows) = (config.slice() as usize, config.rows() as usize);
                let steps = (config.run() * config.warps * config.runs) as usize;
                [config.cols() as usize - 2, rows + 3, if long { steps + slice } else { 5 * slice }]
            }
            // Rows that no vector ends with; stages that are used again and again.
            Some((FourBits::Warpgroup(config), long)) => {
                let (rows, cols) = (config.rows() as usize, config.cols as usize);
                let chunks = if config.cluster > 1 { 2 * config.cluster as usize - 1 } else { 3 };
                [if long { cols + 1 } else { cols - 2 }, rows + 3, 256 * chunks]
            }
        };
        let group = match config {
            None => 32,
            Some((FourBits::Stream(config), _)) => config.slice() as usize,
            Some((FourBits::Warpgroup(config), _)) => config.slice as usize,
        };
        let mut weight = Weight4bitDesc::new(format, [n, k], format.fixed_group_size().unwrap_or(group));
        weight.scale = scale.unwrap_or(weight.scale);
        weight.group_index = indexed;
        // A bias would hide the least scales.
        let bias = i % 2 == 1 && format != WeightFormat::Mxfp4;
        let desc = Matmul4bitDesc { dtype: DType::BF16, m, weight, bias };
        let plan = match config {
            Some((config, _)) => desc.plan_with(TARGET, config),
            None => desc.plan(TARGET),
        };
        plan.expect("plan")
    }));
}

#[test]
fn defects_of_products_with_4_bit_weights_are_noticed() {
    of_four_bits(WeightFormat::Nf4, Some(ScaleFormat::Nested), &[]);
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_products_with_indexed_groups_are_noticed() {
    of_groups(WeightFormat::Int4, None, &[], true);
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_products_with_other_4_bit_weights_are_noticed() {
    let of = |words: u32| {
        let streams = four_bits::configs().into_iter().filter(|c| c.words == words).map(FourBits::Stream);
        let groups = four_bits::warpgroup_configs().into_iter().filter(|c| c.slice == 32 * words);
        // Of a cluster each block has a chunk or two.
        let few = groups.map(|c| match c.cluster {
            1 => FourBitGroups { stages: 2, x_stages: 2, ..c },
            _ => FourBitGroups { stages: 1, x_stages: 3, ..c },
        });
        streams.chain(few.map(FourBits::Warpgroup)).collect::<Vec<_>>()
    };
    of_four_bits(WeightFormat::Int4Asymmetric, None, &of(2));
    // Blocks of a cluster add their sums whatever the format is.
    let apart = |config: &FourBits| !matches!(config, FourBits::Warpgroup(config) if config.cluster > 1);
    // Two of its groups are a slice of codes that are copied.
    let staged = |config: &FourBits| matches!(config, FourBits::Stream(config) if config.stages > 0);
    let of_mxfp4 = of(1).into_iter().chain(of(2).into_iter().filter(staged)).filter(apart);
    of_four_bits(WeightFormat::Mxfp4, None, &of_mxfp4.collect::<Vec<_>>());
    let groups_of_32 =
        |config: &FourBits| matches!(config, FourBits::Warpgroup(config) if config.slice == 32);
    let of_nvfp4 = [of(2), of(1)].concat().into_iter().filter(|config| !groups_of_32(config)).filter(apart);
    of_four_bits(WeightFormat::Nvfp4, None, &of_nvfp4.collect::<Vec<_>>());
}
