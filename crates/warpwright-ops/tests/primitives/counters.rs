//! The work of each primitive at one size, in the emulator's counters: a change in a kernel's instructions or memory
//! behaviour shows up as a change in `counters.txt`, which `WARPWRIGHT_UPDATE=1 cargo test` rewrites.

use std::fmt::Write;
use std::path::Path;

use warpwright_ops::activation::{
    Activation, ActivationBackwardDesc, ActivationDesc, GatedActivation, GatedBackwardDesc, GatedDesc,
};
use warpwright_ops::attention::{
    AttentionBackwardDesc, AttentionDesc, AttentionOptions, BackwardAlgorithm, BlockMaskTables, CacheScale,
    Float8Cache, tuning,
};
use warpwright_ops::batch_norm::{
    BatchNorm, BatchNormBackwardDesc, BatchNormDesc, BatchNormInferenceBackwardDesc, BatchNormInferenceDesc,
    Layout, Momentum, Real,
};
use warpwright_ops::cast::CastDesc;
use warpwright_ops::causal_conv1d::{
    CausalConv1d, CausalConv1dBackwardDesc, CausalConv1dDesc, CausalConv1dUpdateDesc,
};
use warpwright_ops::chunk_scan::{ChunkScan, ChunkScanBackwardDesc, ChunkScanDesc};
use warpwright_ops::conv::{Axis, Conv, ConvBackwardDesc, ConvDesc};
use warpwright_ops::copy::{CatDesc, PermuteDesc, SplitDesc};
use warpwright_ops::cross_entropy::{CrossEntropyBackwardDesc, CrossEntropyDesc};
use warpwright_ops::cumsum::CumsumDesc;
use warpwright_ops::dynamic_map::Map;
use warpwright_ops::elementwise::{ElementwiseDesc, Expr, InputDesc};
use warpwright_ops::embedding::{EmbeddingBackwardDesc, EmbeddingDesc};
use warpwright_ops::gather_scatter::{GatherRowsDesc, IndexedRows, RowDotsDesc, ScatterRowsDesc};
use warpwright_ops::gemm::{GemmDesc, Precision};
use warpwright_ops::group_norm::{GroupNormBackwardDesc, GroupNormDesc, GroupShape};
use warpwright_ops::grouped_gemm::GroupedGemmDesc;
use warpwright_ops::kv_cache::{AppendKvCacheDesc, CacheRotation};
use warpwright_ops::layer_norm::{RowNorm, RowNormBackwardDesc, RowNormDesc};
use warpwright_ops::linear_cross_entropy::LinearCrossEntropyDesc;
use warpwright_ops::local_response_norm::{
    Coefficients, LocalResponseNormBackwardDesc, LocalResponseNormDesc,
};
use warpwright_ops::matmul_4bit::{Matmul4bitBackwardDesc, Matmul4bitDesc, Weight4bitDesc, WeightFormat};
use warpwright_ops::optimizer::{Adam, ClipGradNormDesc, GradNormDesc, Norm, OptimizerDesc, Rule, Sgd};
use warpwright_ops::plan::{Access, Layout as Layout4, View};
use warpwright_ops::pool::{
    Argmax, AvgPoolBackwardDesc, AvgPoolDesc, Divisor, MaxPoolBackwardDesc, MaxPoolDesc, Pool,
    SlidingWindows, Windows,
};
use warpwright_ops::quantize::nested::{DequantizeNestedDesc, QuantizeNestedDesc};
use warpwright_ops::quantize::{DequantizeDesc, NibbleOrder, QuantizeDesc, Scheme};
use warpwright_ops::quantize_dynamic::{self, DequantizeDynamicDesc, QuantizeDynamicDesc};
use warpwright_ops::quantize8::{Dequantize8Desc, Format, Problem, Quantize8Desc, Scaling};
use warpwright_ops::recurrent::tuning::Schedule;
use warpwright_ops::recurrent::{
    Biases, Cell, CellBackwardDesc, CellDesc, RecurrentBackwardDesc, RecurrentDesc,
};
use warpwright_ops::reduce::{ArgReduceDesc, ArgReduceFunction, ReduceDesc, ReduceFunction};
use warpwright_ops::resize::{Mode, ResizeBackwardDesc, ResizeDesc};
use warpwright_ops::rotary::{Pairing, RotaryBackwardDesc, RotaryDesc, RotaryTables};
use warpwright_ops::scaled_gemm::ScaledGemmDesc;
use warpwright_ops::selective_scan::{
    SelectiveScan, SelectiveScanBackwardDesc, SelectiveScanDesc, SelectiveScanUpdateDesc,
};
use warpwright_ops::softmax::{Softmax, SoftmaxBackwardDesc, SoftmaxDesc};
use warpwright_ops::topk::{TopkBackwardDesc, TopkDesc};
use warpwright_ops::{Operation, Plan, catalogue};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Binding, Counters, Device, EmulatorConfig, OnFinding, Tensor};
use warpwright_testkit::inputs::Input;
use warpwright_testkit::storage;

pub(crate) const TARGET: Target = Target::sm(90);
/// Whole blocks of every kernel.
const LEN: usize = 1 << 16;
const DTYPE: DType = DType::F32;
/// Length of the rows of operations on rows.
const ROW: usize = 4096;

/// Searches codes in a table of global memory, lane by lane, which stays in the caches. Attention writes 16 bytes of eight rows
/// at a time, as the accumulators of tensor cores lie, which is how products read what their activations took, reads the sums of the queries of a tile in pairs, and a word of each row of the bits of a mask. The indices of a vector of
/// maxima are twice its bytes or more, which a thread writes and reads 16 at a time; neighbouring cells have windows in common. The
/// positions of least elements of neighbouring columns are such a vector, too. Steps of a convolution read the taps of neighbouring
/// channels, which lie one after the other, for a few elements of each, and steps of a scan the parameters of such channels. The time steps of neighbouring heads lie beside each other, and a
/// state goes from and to the accumulators of tensor cores in 16 bytes of eight rows. The seed of dropout has 64 bits and is the same for all lanes,
/// which counts once for each half of a warp, and so do the numbers of an optimizer's step. Lanes that rotate two groups of heads of a token read the same row of a table, and all that append a head to a cache of 8-bit floats its scale. Indices are
/// sorted by a binary search and by scattering them. Lanes read the weight of their group's filters as products take it. A search for the largest elements reads them once more where they are, and their gradients go there. Lanes that decode 4-bit weights read the scales of eight rows, of a few bytes each.
const GATHERS: [&str; 54] = [
    "activation_linear backward",
    "gated_activation_linear backward",
    "conv of groups forward",
    "conv of groups backward",
    "gather_rows forward",
    "scatter_rows forward",
    "topk forward",
    "topk in parts forward",
    "topk backward",
    "quantize_nested forward",
    "attention forward",
    "attention backward",
    "attention one sweep",
    "attention forward of 80",
    "attention one sweep of 80",
    "attention decode",
    "attention decode of e4m3",
    "attention masked forward",
    "attention masked backward",
    "append_kv_cache e4m3 forward",
    "adaptive_max_pool forward",
    "adaptive_max_pool backward",
    "adaptive_avg_pool backward",
    "causal_conv1d_update forward",
    "selective_scan_update forward",
    "chunk_scan forward",
    "chunk_scan backward",
    "resize forward",
    "resize backward",
    "dropout forward",
    "dropout backward",
    "dropout_add forward",
    "rotary_embedding forward",
    "rotary_embedding backward",
    "append_kv_cache forward",
    "embedding backward",
    "argmin forward",
    "adamw forward",
    "adamw8bit forward",
    "adam forward",
    "adam8bit forward",
    "sgd forward",
    "matmul_4bit_nf4 forward",
    "matmul_4bit_nf4 backward",
    "matmul_4bit_fp4 forward",
    "matmul_4bit_fp4 backward",
    "matmul_4bit_int4 forward",
    "matmul_4bit_int4 backward",
    "matmul_4bit_int4_asymmetric forward",
    "matmul_4bit_int4_asymmetric backward",
    "matmul_4bit_mxfp4 forward",
    "matmul_4bit_mxfp4 backward",
    "matmul_4bit_nvfp4 forward",
    "matmul_4bit_nvfp4 backward",
];

/// Products of transposed matrices of few columns, whose small tiles meet some banks twice, a copy of such a matrix, and results in panels of `f32`.
const TRANSPOSED: [&str; 9] = [
    "conv of f32 backward",
    "conv in tf32 backward",
    "permute few columns forward",
    "lstm backward",
    "gru backward",
    "rnn backward",
    "lstm_cell backward",
    "gru_cell backward",
    "rnn_cell backward",
];

/// Lanes that look codes and thresholds up in tables of shared memory, each its own.
const LOOKS_UP: [&str; 6] = [
    "quantize_dynamic forward",
    "quantize_udynamic forward",
    "dequantize_dynamic forward",
    "dequantize_udynamic forward",
    "adamw8bit forward",
    "adam8bit forward",
];

/// Scans, which turn vectors along one dimension into rows along the other.
const SCANS: [&str; 3] =
    ["selective_scan forward", "selective_scan backward", "selective_scan_update forward"];

/// How the scales of each format are counted.
const SCALINGS: [Scaling; 3] = [Scaling::BlockWise1x128, Scaling::BlockWise128x128, Scaling::RowWise];

/// Runs a plan on aligned tensors, with every sanitizer.
pub(crate) fn count<O: Operation>(plan: &Plan<O>) -> Counters {
    let config = EmulatorConfig {
        target: TARGET,
        counters: true,
        // Of blocks that poll what others write, another worker would change how often.
        threads: 1,
        on_finding: OnFinding::Fail,
        ..EmulatorConfig::default()
    };
    let device = Device::emulator_with(config);
    let tensors: Vec<Tensor> = plan
        .tensors()
        .iter()
        .enumerate()
        .map(|(slot, spec)| match spec.access {
            Access::Read => {
                // Groups of 60 rows, which end within tiles.
                let values = match spec.name {
                    "key_lengths" => vec![200.0; spec.len],
                    // Of a mask, if there is one.
                    "key_tiles" => masked().key_tiles.into_iter().take(spec.len).map(f64::from).collect(),
                    "query_tiles" => masked().query_tiles.into_iter().take(spec.len).map(f64::from).collect(),
                    "mask_bits" => masked().bits.into_iter().take(spec.len).map(f64::from).collect(),
                    "ends" => (1..=spec.len).map(|group| 60.0 * group as f64).collect(),
                    // Every second row once, and one row as often as all of them.
                    "indices" | "index" if spec.dtype == DType::I32 => {
                        (0..spec.len).map(|i| if i % 2 == 0 { i as f64 } else { 7.0 }).collect()
                    }
                    // Eight elements of a row, all different.
                    "index" if spec.dtype == DType::I64 => {
                        (0..spec.len).map(|i| (i % 8 * 31) as f64).collect()
                    }
                    _ => Input::Normal.values(spec.len, slot as u64),
                };
                let bytes = storage::encode(spec.dtype, &values);
                Tensor::from_bytes(&device, spec.dtype, &bytes, &[spec.len]).expect("memory")
            }
            // What is updated is read, too.
            Access::Write if spec.may_replace_input => {
                let bytes = storage::encode(spec.dtype, &Input::Normal.values(spec.len, slot as u64));
                Tensor::from_bytes(&device, spec.dtype, &bytes, &[spec.len]).expect("memory")
            }
            Access::Write => Tensor::empty(&device, spec.dtype, &[spec.len]).expect("memory"),
        })
        .collect();
    let bindings: Vec<Binding> = tensors.iter().map(Tensor::binding).collect();
    let stream = device.stream().expect("stream");
    for step in plan.steps() {
        stream.launch(step, &bindings).expect("launch");
    }
    device.counters().expect("the emulator counts")
}

/// Every primitive of the library with its counters, in the order of the catalogue.
fn every_primitive() -> Vec<(String, Counters)> {
    let mut all = Vec::new();
    let mut add = |op: &str, direction: &str, counters| all.push((format!("{op} {direction}"), counters));
    let (dtype, len) = (DTYPE, LEN);
    for activation in Activation::ALL {
        let forward = ActivationDesc { activation, dtype, len }.plan(TARGET).expect("plan");
        add(forward.op(), "forward", count(&forward));
        let backward = ActivationBackwardDesc { activation, dtype, len }.plan(TARGET).expect("plan");
        add(backward.op(), "backward", count(&backward));
    }
    for activation in GatedActivation::ALL {
        let forward = GatedDesc { activation, dtype, len }.plan(TARGET).expect("plan");
        add(forward.op(), "forward", count(&forward));
        let backward = GatedBackwardDesc { activation, dtype, len }.plan(TARGET).expect("plan");
        add(backward.op(), "backward", count(&backward));
    }
    attention(&mut add);
    batch_norm(&mut add);
    let conversion = CastDesc { from: dtype, to: DType::BF16, len }.plan(TARGET).expect("plan");
    add(conversion.op(), "forward", count(&conversion));
    copies(&mut add);
    causal_conv1d(&mut add);
    chunk_scan(&mut add);
    selective_scan(&mut add);
    for (format, scaling) in Format::ALL.into_iter().zip(SCALINGS) {
        let problem = Problem { format, scaling, dtype, rows: 16, cols: LEN / 16 };
        let codes = Quantize8Desc { problem }.plan(TARGET).expect("plan");
        add(codes.op(), "forward", count(&codes));
        let back = Dequantize8Desc { problem }.plan(TARGET).expect("plan");
        add(back.op(), "forward", count(&back));
    }
    for (map, block_size) in Map::ALL.into_iter().zip([256, 4096]) {
        let problem = quantize_dynamic::Problem { map, dtype, len: LEN, block_size };
        let codes = QuantizeDynamicDesc { problem }.plan(TARGET).expect("plan");
        add(codes.op(), "forward", count(&codes));
        let back = DequantizeDynamicDesc { problem }.plan(TARGET).expect("plan");
        add(back.op(), "forward", count(&back));
    }
    let (rows, row) = (16, LEN / 16);
    for norm in RowNorm::ALL {
        let (eps, bias) = (Real::new(1e-5), norm == RowNorm::Layer);
        let forward = RowNormDesc {
            norm,
            dtype,
            rows,
            len: row,
            eps,
            weight: true,
            bias,
            residual: false,
            statistics: true,
        };
        add(norm.name(), "forward", count(&forward.plan(TARGET).expect("plan")));
        let backward = RowNormBackwardDesc { norm, dtype, rows, len: row, weight: true, bias, dz: false };
        add(norm.name(), "backward", count(&backward.plan(TARGET).expect("plan")));
    }
    let forward = LocalResponseNormDesc {
        dtype,
        images: 2,
        channels: 64,
        spatial: LEN / 128,
        size: 5,
        coefficients: Coefficients::default(),
    };
    add("local_response_norm", "forward", count(&forward.plan(TARGET).expect("plan")));
    let backward = LocalResponseNormBackwardDesc { forward };
    add("local_response_norm", "backward", count(&backward.plan(TARGET).expect("plan")));
    let axis = Axis::new(14, 3).with(1, 1, 1);
    let conv = Conv::new(DType::BF16, [2, 64, 128], axis, axis);
    let forward = ConvDesc::new(conv).plan(TARGET).expect("plan");
    add(forward.op(), "forward", count(&forward));
    let backward = ConvBackwardDesc { conv, dx: true, dweight: true, dbias: true };
    add(forward.op(), "backward", count(&backward.plan(TARGET).expect("plan")));
    let ends = ConvDesc { scale: true, bias: true, residual: true, ..ConvDesc::new(conv) };
    add("conv with ends", "forward", count(&ends.plan(TARGET).expect("plan")));
    for (name, precision) in [("conv of f32", Precision::Full), ("conv in tf32", Precision::Tf32)] {
        let conv = Conv { dtype: DType::F32, precision, ..conv };
        let plan = ConvBackwardDesc { conv, ..backward.clone() }.plan(TARGET);
        add(name, "backward", count(&plan.expect("plan")));
    }
    let conv = Conv { groups: 8, ..Conv::new(DType::BF16, [2, 64, 64], axis, axis) };
    add("conv of groups", "forward", count(&ConvDesc::new(conv).plan(TARGET).expect("plan")));
    let backward = ConvBackwardDesc { conv, dx: true, dweight: true, dbias: false };
    add("conv of groups", "backward", count(&backward.plan(TARGET).expect("plan")));
    elementwise(&mut add);
    pooling(&mut add);
    reductions(&mut add);
    cumulative_sums(&mut add);
    searches(&mut add);
    optimizers(&mut add);
    let (input, output) = ([1, 16, 16], [1, 32, 32]);
    let (layout, batch, channels, mode) = (Layout::ChannelsLast, 2, 32, Mode::Linear);
    let (align_corners, scale) = (false, [None; 3]);
    let forward = ResizeDesc { dtype, layout, batch, channels, input, output, mode, align_corners, scale };
    let plan = forward.plan(TARGET).expect("plan");
    add(plan.op(), "forward", count(&plan));
    let plan = ResizeBackwardDesc { forward }.plan(TARGET).expect("plan");
    add(plan.op(), "backward", count(&plan));
    let product = GemmDesc::new(dtype, [256, 128, 64], false, true).plan(TARGET).expect("plan");
    add(product.op(), "forward", count(&product));
    crate::feed_forward::count_all(&mut add);
    for groups in [
        GroupedGemmDesc::new(DType::BF16, 4, [256, 128, 64], true),
        GroupedGemmDesc::new_k(DType::BF16, 4, [128, 64, 256]),
    ] {
        let product = groups.plan(TARGET).expect("plan");
        add(product.op(), "forward", count(&product));
    }
    for (format, scaling) in Format::ALL.into_iter().zip(SCALINGS) {
        let product = ScaledGemmDesc::new(format, DType::BF16, [256, 128, 256], scaling);
        let product = product.plan(TARGET).expect("plan");
        add(product.op(), "forward", count(&product));
    }
    four_bits(&mut add);
    // How often a persistent kernel polls is not always the same.
    for cell in [Cell::Lstm, Cell::Gru, Cell::RnnTanh] {
        let sequence = RecurrentDesc::new(cell, dtype, [2, 16, 64, 64]);
        let sequence = RecurrentDesc { h0: true, c0: cell.has_c(), training: true, ..sequence };
        let forward = sequence.plan_with(TARGET, Schedule::Stepwise).expect("plan");
        add(forward.op(), "forward", count(&forward));
        let (dy, dh_n, dc_n, dx) = (true, false, false, true);
        let backward = RecurrentBackwardDesc { forward: sequence, dy, dh_n, dc_n, dx };
        let backward = backward.plan_with(TARGET, Schedule::Stepwise).expect("plan");
        add(forward.op(), "backward", count(&backward));
        let (batch, input, hidden, biases) = (16, 64, 64, Biases::Two);
        let single = CellDesc { cell, dtype, batch, input, hidden, biases, training: true };
        let forward = single.plan(TARGET).expect("plan");
        add(forward.op(), "forward", count(&forward));
        let backward = CellBackwardDesc { forward: single, dc_next: false };
        add(forward.op(), "backward", count(&backward.plan(TARGET).expect("plan")));
    }
    rotary(&mut add);
    append_kv_cache(&mut add);
    let (group_size, order) = (64, NibbleOrder::HighFirst);
    for scheme in Scheme::ALL {
        let to = QuantizeDesc { scheme, dtype, group_size, order, len }.plan(TARGET).expect("plan");
        add(to.op(), "forward", count(&to));
        let back = DequantizeDesc { scheme, dtype, group_size, order, len }.plan(TARGET).expect("plan");
        add(back.op(), "forward", count(&back));
    }
    let to = QuantizeNestedDesc { len }.plan(TARGET).expect("plan");
    add(to.op(), "forward", count(&to));
    let back = DequantizeNestedDesc { len }.plan(TARGET).expect("plan");
    add(back.op(), "forward", count(&back));
    let shape =
        GroupShape { batch: 2, channels: 32, spatial: 1024, groups: 4, layout: Layout::ChannelsFirst };
    let (weight, bias, silu, statistics) = (true, true, false, true);
    let desc = GroupNormDesc { dtype, shape, weight, bias, silu, statistics, eps: 1e-5.into() };
    let forward = desc.plan(TARGET).expect("plan");
    add(forward.op(), "forward", count(&forward));
    let (dweight, dbias) = (true, true);
    let desc = GroupNormBackwardDesc { dtype, shape, weight, bias, silu, dweight, dbias };
    let backward = desc.plan(TARGET).expect("plan");
    add(backward.op(), "backward", count(&backward));
    let (outer, n, inner, scale) = (LEN / ROW, ROW, 1, Real::new(1.0));
    for function in Softmax::ALL {
        let to = SoftmaxDesc { function, dtype, outer, n, inner, scale }.plan(TARGET).expect("plan");
        add(to.op(), "forward", count(&to));
        let back = SoftmaxBackwardDesc { forward: SoftmaxDesc { function, dtype, outer, n, inner, scale } };
        let back = back.plan(TARGET).expect("plan");
        add(back.op(), "backward", count(&back));
    }
    let target = DType::I64;
    let forward = CrossEntropyDesc::new(dtype, target, [outer, n]);
    let to = forward.plan(TARGET).expect("plan");
    add(to.op(), "forward", count(&to));
    let back = CrossEntropyBackwardDesc { forward }.plan(TARGET).expect("plan");
    add(back.op(), "backward", count(&back));
    let loss = LinearCrossEntropyDesc::new(dtype, target, [64, 128, 256]);
    add("linear_cross_entropy", "forward", count(&loss.plan(TARGET).expect("plan")));
    let chunks = LinearCrossEntropyDesc { dtype: DType::BF16, chunk_rows: Some(32), gradients: true, ..loss };
    add("linear_cross_entropy", "backward", count(&chunks.plan(TARGET).expect("plan")));
    let forward = EmbeddingDesc { dtype, index: DType::I32, num_embeddings: 600, dim: LEN / 512, count: 512 };
    let plan = forward.plan(TARGET).expect("plan");
    add(plan.op(), "forward", count(&plan));
    let desc = EmbeddingBackwardDesc { forward, padding_idx: None, scale_grad_by_freq: false };
    let plan = desc.plan(TARGET).expect("plan");
    add(plan.op(), "backward", count(&plan));
    rows_by_indices(&mut add);
    all
}

/// Every second row once, and one as often as all of them, with factors.
fn rows_by_indices(add: &mut dyn FnMut(&str, &str, Counters)) {
    let of = IndexedRows { dtype: DTYPE, index: DType::I32, rows: 600, dim: LEN / 512, count: 512 };
    let factors = Some(DTYPE);
    let plan = GatherRowsDesc { of: of.clone(), factors }.plan(TARGET).expect("plan");
    add(plan.op(), "forward", count(&plan));
    let plan = ScatterRowsDesc { of: of.clone(), factors, base: true }.plan(TARGET).expect("plan");
    add(plan.op(), "forward", count(&plan));
    let plan = RowDotsDesc { of, y_dtype: DTYPE }.plan(TARGET).expect("plan");
    add(plan.op(), "forward", count(&plan));
}

/// A few rows with a weight of 4 bits, and gradients of many.
fn four_bits(add: &mut dyn FnMut(&str, &str, Counters)) {
    for format in WeightFormat::ALL {
        let group = format.fixed_group_size().unwrap_or(32);
        let weight = Weight4bitDesc::new(format, [128, 2048], group);
        let forward = Matmul4bitDesc { dtype: DType::BF16, m: 8, weight, bias: true };
        let forward = forward.plan(TARGET).expect("plan");
        add(forward.op(), "forward", count(&forward));
        let weight = Weight4bitDesc::new(format, [128, 256], group);
        let backward = Matmul4bitBackwardDesc { dtype: DType::BF16, m: 64, weight };
        let backward = backward.plan(TARGET).expect("plan");
        add(backward.op(), "backward", count(&backward));
    }
}

/// Queries with two rounds of heads and keys with one, in rows of 512 bytes.
fn rotary(add: &mut dyn FnMut(&str, &str, Counters)) {
    let [q, k] = [8, 4].map(|heads| Layout4::contiguous([1, 64, heads, 128]));
    let tables = RotaryTables { dtype: DTYPE, batch: 1, rows: 64, repeated: false };
    let forward = RotaryDesc {
        dtype: DTYPE,
        q,
        k: Some(k),
        q_rotated: q,
        k_rotated: Some(k),
        pairing: Pairing::Half,
        rotary_dim: 128,
        tables,
        positions: None,
    };
    let plan = forward.plan(TARGET).expect("plan");
    add(plan.op(), "forward", count(&plan));
    let plan = RotaryBackwardDesc { forward }.plan(TARGET).expect("plan");
    add(plan.op(), "backward", count(&plan));
}

/// A cache of 8-bit floats.
const FLOAT8: Option<Float8Cache> =
    Some(Float8Cache { k_scale: CacheScale::PerTensor, v_scale: CacheScale::PerHead });

/// The same heads on their way to a cache in which they are the last keys.
fn append_kv_cache(add: &mut dyn FnMut(&str, &str, Counters)) {
    let of = |rows, heads| Layout4::contiguous([1, rows, heads, 128]);
    let tables = RotaryTables { dtype: DTYPE, batch: 1, rows: 256, repeated: false };
    let desc = AppendKvCacheDesc {
        dtype: DTYPE,
        q: Some([of(64, 8); 2]),
        k: of(64, 4),
        v: of(64, 4),
        k_cache: of(256, 4),
        v_cache: of(256, 4),
        rotation: Some(CacheRotation { pairing: Pairing::Half, rotary_dim: 128, tables }),
        key_lengths: true,
        paged: None,
        float8: None,
    };
    let plan = desc.plan(TARGET).expect("plan");
    add(plan.op(), "forward", count(&plan));
    let tables = RotaryTables { dtype: DType::BF16, ..tables };
    let rotation = Some(CacheRotation { pairing: Pairing::Half, rotary_dim: 128, tables });
    let desc = AppendKvCacheDesc { dtype: DType::BF16, rotation, float8: FLOAT8, ..desc };
    let plan = desc.plan(TARGET).expect("plan");
    add(plan.op(), "e4m3 forward", count(&plan));
}

/// A causal mask as tiles.
fn masked() -> BlockMaskTables {
    BlockMaskTables::from_fn([1, 1, 200, 200], |_, _, query, key| key <= query).expect("small")
}

/// Whole tiles and a part of one, under a causal mask.
fn attention(add: &mut dyn FnMut(&str, &str, Counters)) {
    let layout = Layout4::contiguous([1, 200, 2, 64]);
    let options = AttentionOptions { causal: true, ..AttentionOptions::default() };
    // Of the type that tensor cores take.
    let forward = AttentionDesc { dtype: DType::BF16, q: layout, k: layout, v: layout, o: layout, options };
    let plan = forward.plan(TARGET).expect("plan");
    add(plan.op(), "forward", count(&plan));
    let (dbias, dsinks) = (false, false);
    let desc =
        AttentionBackwardDesc { forward, dy: layout, dq: layout, dk: layout, dv: layout, dbias, dsinks };
    let plan = desc.plan(TARGET).expect("plan");
    add(plan.op(), "backward", count(&plan));
    let layout = tuning::wgmma_fused(64, u32::MAX).expect("a layout for heads of 64 elements");
    let algorithm = BackwardAlgorithm::WgmmaFused { layout, heads_at_once: None };
    add(plan.op(), "one sweep", count(&desc.plan_with(TARGET, algorithm).expect("plan")));
    let options = AttentionOptions { block_mask: Some(masked().shape), ..AttentionOptions::default() };
    let forward = AttentionDesc { options, ..desc.forward.clone() };
    let plan = forward.plan(TARGET).expect("plan");
    add(plan.op(), "masked forward", count(&plan));
    let plan = AttentionBackwardDesc { forward, ..desc.clone() }.plan(TARGET).expect("plan");
    add(plan.op(), "masked backward", count(&plan));
    // Rows that end within a panel, and groups with parts of different sizes.
    let layout = Layout4::contiguous([1, 200, 2, 80]);
    let forward = AttentionDesc { q: layout, k: layout, v: layout, o: layout, ..desc.forward };
    let plan = forward.plan(TARGET).expect("plan");
    add(plan.op(), "forward of 80", count(&plan));
    let desc =
        AttentionBackwardDesc { forward, dy: layout, dq: layout, dk: layout, dv: layout, dbias, dsinks };
    let layout = tuning::wgmma_fused(80, u32::MAX).expect("a layout for heads of 80 elements");
    let algorithm = BackwardAlgorithm::WgmmaFused { layout, heads_at_once: None };
    add(plan.op(), "one sweep of 80", count(&desc.plan_with(TARGET, algorithm).expect("plan")));
    // One query of each sequence: four heads share the rows of a tile.
    let (q, k) = (Layout4::contiguous([1, 1, 4, 64]), Layout4::contiguous([1, 700, 1, 64]));
    let decode = AttentionDesc { dtype: DType::BF16, q, k, v: k, o: q, options: AttentionOptions::default() };
    let plan = decode.plan(TARGET).expect("plan");
    add(plan.op(), "decode", count(&plan));
    let options = AttentionOptions { float8: FLOAT8, ..AttentionOptions::default() };
    let plan = AttentionDesc { options, ..decode }.plan(TARGET).expect("plan");
    add(plan.op(), "decode of e4m3", count(&plan));
}

/// A row for all rows, which is read as often as there are rows; dropout in both directions is one kernel.
fn elementwise(add: &mut dyn FnMut(&str, &str, Counters)) {
    let [x, y] = Expr::inputs();
    let shape = [16, LEN / 16];
    let of = |output: Expr, inputs: &[&[usize]]| {
        let input =
            |shape: &&[usize]| InputDesc { dtype: DTYPE, view: View::contiguous(shape).expect("rank") };
        let desc = ElementwiseDesc {
            dropout: output.has_dropout().then_some(Real::new(0.5)),
            outputs: vec![output],
            dtypes: vec![DTYPE],
            shape: shape.to_vec(),
            inputs: inputs.iter().map(input).collect(),
            scalars: Vec::new(),
        };
        count(&desc.plan(TARGET).expect("plan"))
    };
    add("elementwise", "forward", of((&x + &y).silu(), &[&shape, &shape[1..]]));
    for direction in ["forward", "backward"] {
        add("dropout", direction, of(x.dropout(), &[&shape]));
    }
    add("dropout_add", "forward", of(x.dropout() + y, &[&shape, &shape]));
}

/// Windows of 3 at every other cell, means side by side, and windows of two sizes; channels last.
fn pooling(add: &mut dyn FnMut(&str, &str, Counters)) {
    let pool = |windows| Pool {
        dtype: DTYPE,
        layout: Layout::ChannelsLast,
        batch: 2,
        channels: 32,
        input: [1, 32, 32],
        windows,
    };
    let mut maxima = |windows, argmax| {
        let forward = MaxPoolDesc { pool: pool(windows), argmax };
        let plan = forward.plan(TARGET).expect("plan");
        add(plan.op(), "forward", count(&plan));
        let plan = MaxPoolBackwardDesc { forward }.plan(TARGET).expect("plan");
        add(plan.op(), "backward", count(&plan));
    };
    let adaptive = Windows::Adaptive { output: [1, 7, 7] };
    let every_other = SlidingWindows { stride: [1, 2, 2], ..SlidingWindows::tiling([1, 3, 3]) };
    let padded = SlidingWindows { padding: [0, 1, 1], ..every_other };
    maxima(Windows::Sliding(padded), Argmax::Tap);
    maxima(adaptive, Argmax::Index);
    for windows in [Windows::Sliding(SlidingWindows::tiling([1, 2, 2])), adaptive] {
        let forward = AvgPoolDesc { pool: pool(windows), divisor: Divisor::PaddedCells };
        let plan = forward.plan(TARGET).expect("plan");
        add(plan.op(), "forward", count(&plan));
        let plan = AvgPoolBackwardDesc { forward }.plan(TARGET).expect("plan");
        add(plan.op(), "backward", count(&plan));
    }
}

/// Over the rows of a matrix, over its columns, and over all of it, in two passes.
fn reductions(add: &mut dyn FnMut(&str, &str, Counters)) {
    let (dtype, columns, rows) = (DTYPE, LEN / 64, 64);
    for (function, dims) in ReduceFunction::ALL.into_iter().zip([vec![0], vec![1], vec![0, 1], vec![1]]) {
        let desc = ReduceDesc { function, dtype, y_dtype: dtype, shape: vec![rows, columns], dims };
        add(function.name(), "forward", count(&desc.plan(TARGET).expect("plan")));
    }
    for (function, [outer, n, inner]) in
        ArgReduceFunction::ALL.into_iter().zip([[rows, columns, 1], [1, rows, columns]])
    {
        let desc = ArgReduceDesc { function, dtype, outer, n, inner };
        add(function.name(), "forward", count(&desc.plan(TARGET).expect("plan")));
    }
}

/// Along the rows of a matrix, along its columns, and along all of it, in tiles.
fn cumulative_sums(add: &mut dyn FnMut(&str, &str, Counters)) {
    for (how, [outer, n, inner]) in
        [("rows", [64, LEN / 64, 1]), ("columns", [1, 64, LEN / 64]), ("tiles", [1, LEN, 1])]
    {
        let desc = CumsumDesc { dtype: DTYPE, outer, n, inner, exclusive: false, reverse: false };
        let plan = desc.plan(TARGET).expect("plan");
        add(&format!("{} {how}", plan.op()), "forward", count(&plan));
    }
}

/// In short rows by warps, and in parts of a long one by blocks.
fn searches(add: &mut dyn FnMut(&str, &str, Counters)) {
    for (how, rows) in [("", LEN / 256), (" in parts", 1)] {
        let desc = TopkDesc { dtype: DTYPE, rows, n: LEN / rows, k: 8, largest: true };
        let plan = desc.plan(TARGET).expect("plan");
        add(&format!("{}{how}", plan.op()), "forward", count(&plan));
    }
    let desc = TopkBackwardDesc { dtype: DTYPE, rows: LEN / 256, n: 256, k: 8 };
    let plan = desc.plan(TARGET).expect("plan");
    add(plan.op(), "backward", count(&plan));
}

/// Whole blocks of one parameter, and of another.
fn optimizers(add: &mut dyn FnMut(&str, &str, Counters)) {
    let momentum = Sgd { momentum: Real::new(0.9), ..Sgd::PLAIN };
    for rule in [Rule::Adam(Adam::ADAMW), Rule::Adam(Adam::ADAM), Rule::Sgd(momentum)] {
        let (maximize, master, grad_scale, found_inf) = (false, false, true, false);
        let (dtype, grad_dtype, lens) = (DTYPE, DTYPE, vec![LEN / 2; 2]);
        let eight_bit = Vec::new();
        let desc = OptimizerDesc {
            rule,
            maximize,
            dtype,
            grad_dtype,
            master,
            grad_scale,
            found_inf,
            lens,
            eight_bit,
        };
        add(rule.name(), "forward", count(&desc.plan(TARGET).expect("plan")));
        if let Rule::Adam(_) = rule {
            let plan = OptimizerDesc { eight_bit: vec![true; 2], ..desc }.plan(TARGET).expect("plan");
            add(plan.op(), "forward", count(&plan));
        }
    }
    let grads = GradNormDesc { norm: Norm::L2, dtype: DTYPE, lens: vec![LEN / 2; 2] };
    let plan = grads.plan(TARGET).expect("plan");
    add(plan.op(), "forward", count(&plan));
    let plan = ClipGradNormDesc { grads, max_norm: Real::new(1.0) }.plan(TARGET).expect("plan");
    add(plan.op(), "forward", count(&plan));
}

/// Training with channels first, inference with channels last.
fn copies(add: &mut dyn FnMut(&str, &str, Counters)) {
    let permuted = |dtype, shape: &[usize], axes: &[usize]| {
        let x = View::contiguous(shape).expect("rank");
        count(&PermuteDesc { dtype, x, axes: axes.to_vec() }.plan(TARGET).expect("plan"))
    };
    let [rows, columns] = [128, LEN / 128];
    for dtype in [DType::U8, DType::BF16, DType::F32, DType::F64] {
        add(&format!("permute {dtype}"), "forward", permuted(dtype, &[rows, columns], &[1, 0]));
    }
    add("permute few columns", "forward", permuted(DTYPE, &[LEN / 4, 4], &[1, 0]));
    add("permute few rows", "forward", permuted(DTYPE, &[4, LEN / 4], &[1, 0]));
    add("permute rows", "forward", permuted(DTYPE, &[4, 4, LEN / 16], &[1, 0, 2]));
    let cat = CatDesc { dtype: DTYPE, outer: rows, lens: vec![columns / 2; 2] };
    add("cat", "forward", count(&cat.plan(TARGET).expect("plan")));
    add("split", "forward", count(&SplitDesc { cat }.plan(TARGET).expect("plan")));
}

fn causal_conv1d(add: &mut dyn FnMut(&str, &str, Counters)) {
    let whole = CausalConv1d {
        dtype: DTYPE,
        layout: Layout::ChannelsFirst,
        batch: 2,
        channels: 256,
        len: LEN / 512,
        width: 4,
        bias: true,
        silu: true,
    };
    let forward = CausalConv1dDesc {
        conv: whole,
        initial_states: false,
        final_states: false,
        sequences: false,
        position_stride: None,
    };
    add("causal_conv1d", "forward", count(&forward.plan(TARGET).expect("plan")));
    let backward = CausalConv1dBackwardDesc { forward }.plan(TARGET).expect("plan");
    add("causal_conv1d", "backward", count(&backward));
    let (layout, batch, channels) = (Layout::ChannelsLast, 16, 1024);
    let step = CausalConv1dUpdateDesc { conv: CausalConv1d { layout, batch, channels, len: 1, ..whole } };
    add("causal_conv1d_update", "forward", count(&step.plan(TARGET).expect("plan")));
}

fn chunk_scan(add: &mut dyn FnMut(&str, &str, Counters)) {
    let shape = ChunkScan::new(DType::BF16, [1, 128, 4, 64], [1, 64]);
    let scan = ChunkScan { d: true, dt_bias: true, dt_softplus: true, ..shape };
    let forward = ChunkScanDesc { scan, initial_state: false, last_state: false, training: true };
    add("chunk_scan", "forward", count(&forward.plan(TARGET).expect("plan")));
    let backward = ChunkScanBackwardDesc { forward }.plan(TARGET).expect("plan");
    add("chunk_scan", "backward", count(&backward));
}

fn selective_scan(add: &mut dyn FnMut(&str, &str, Counters)) {
    let whole = SelectiveScan {
        dtype: DTYPE,
        layout: Layout::ChannelsLast,
        batch: 1,
        channels: 64,
        len: 1024,
        state: 16,
        groups: 1,
        d: true,
        gate: true,
        delta_bias: true,
        delta_softplus: true,
    };
    let forward = SelectiveScanDesc { scan: whole, initial_state: false, last_state: false, training: true };
    add("selective_scan", "forward", count(&forward.plan(TARGET).expect("plan")));
    let backward = SelectiveScanBackwardDesc { forward }.plan(TARGET).expect("plan");
    add("selective_scan", "backward", count(&backward));
    let step = SelectiveScanUpdateDesc { scan: SelectiveScan { batch: 16, len: 1, ..whole } };
    add("selective_scan_update", "forward", count(&step.plan(TARGET).expect("plan")));
}

fn batch_norm(add: &mut dyn FnMut(&str, &str, Counters)) {
    let norm = |layout| BatchNorm::new(DTYPE, layout, 8, 8, LEN / 64);
    let (first, last) = (norm(Layout::ChannelsFirst), norm(Layout::ChannelsLast));
    let momentum = Some(Momentum::Exponential(Real::new(0.1)));
    let plan = BatchNormDesc { norm: first, residual: false, momentum }.plan(TARGET).expect("plan");
    add(plan.op(), "forward", count(&plan));
    let plan = BatchNormBackwardDesc { norm: first, dresidual: false }.plan(TARGET).expect("plan");
    add(plan.op(), "backward", count(&plan));
    let plan = BatchNormInferenceDesc { norm: last, residual: true }.plan(TARGET).expect("plan");
    add(plan.op(), "forward", count(&plan));
    let plan = BatchNormInferenceBackwardDesc { norm: last, dresidual: false }.plan(TARGET).expect("plan");
    add(plan.op(), "backward", count(&plan));
}

fn line(name: &str, c: &Counters) -> String {
    let mut line = format!("{name:<36}");
    let facts = [
        ("instructions", c.total_warp_instructions()),
        ("load_sectors", c.global_loads.sectors),
        ("store_sectors", c.global_stores.sectors),
        ("wavefronts", c.shared_wavefronts()),
        ("conflicts", c.bank_conflicts()),
        ("barriers", c.barriers),
        ("divergent", c.divergent_branches),
    ];
    for (name, value) in facts {
        let _ = write!(line, " {name} {value:>6}");
    }
    line + "\n"
}

#[test]
fn counters_are_as_recorded_and_traffic_is_dense() {
    let all = every_primitive();
    // Attention of few queries is another kernel, and so are gradients in one sweep and the tiles that copies turn; heads of 80 elements have
    // two more, groups of a convolution and masks of tiles one in each direction, what convolutions end with one, gradients of weights in `f32` and `tf32` one each, and caches of 8-bit floats one to read and one to append to. Sums go along rows, columns and tiles, and parts of rows are searched in two passes. Both factors of gated units are counted as results, too.
    let others = 6 + 9 + 3 + 2 + 1 + 2;
    assert_eq!(all.len(), catalogue().len() + others, "every primitive of the catalogue is counted");
    for (name, c) in &all {
        let (sectors, ideal) = (c.global_sectors(), c.ideal_global_sectors());
        let dense = 50 * (sectors - ideal) <= ideal;
        assert!(
            dense || GATHERS.contains(&name.as_str()),
            "{name}: {sectors} sectors where {ideal} would do"
        );
        let known = TRANSPOSED.iter().chain(&LOOKS_UP).chain(&SCANS).any(|known| known == name);
        assert!(c.bank_conflicts() == 0 || known, "{name}");
    }
    let text: String = all.iter().map(|(name, c)| line(name, c)).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/primitives/counters.txt");
    if std::env::var_os("WARPWRIGHT_UPDATE").is_some() {
        std::fs::write(&path, &text).expect("the file can be written");
    }
    let recorded = std::fs::read_to_string(&path).expect("tests/primitives/counters.txt");
    let changed: Vec<String> = text
        .lines()
        .filter(|line| !recorded.lines().any(|r| r == *line))
        .map(|line| {
            let name = line.get(..36).unwrap_or(line);
            let before = recorded.lines().find(|r| r.starts_with(name)).unwrap_or("(not recorded)");
            format!("- {before}\n+ {line}")
        })
        .collect();
    assert!(
        text == recorded,
        "the counters changed; if that is meant, run with WARPWRIGHT_UPDATE=1\n{}",
        changed.join("\n")
    );
}
