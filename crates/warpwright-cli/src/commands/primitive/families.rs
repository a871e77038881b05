//! The descriptors of every family from options. Extents that are not named follow from the number of elements.

use warpwright_ops::activation::{
    Activation, ActivationBackwardDesc, ActivationDesc, GatedActivation, GatedBackwardDesc, GatedDesc,
};
use warpwright_ops::attention::{
    AlibiSlopes, AttentionBackwardDesc, AttentionDesc, AttentionOptions, Packed, Paged,
};
use warpwright_ops::batch_norm::{
    BatchNorm, BatchNormBackwardDesc, BatchNormDesc, BatchNormInferenceBackwardDesc, BatchNormInferenceDesc,
    Layout, Momentum,
};
use warpwright_ops::cross_entropy::{CrossEntropyBackwardDesc, CrossEntropyDesc, Reduction};
use warpwright_ops::gemm::{GemmDesc, Precision};
use warpwright_ops::group_norm::{GroupNormBackwardDesc, GroupNormDesc, GroupShape};
use warpwright_ops::layer_norm::{RowNorm, RowNormBackwardDesc, RowNormDesc};
use warpwright_ops::local_response_norm::{
    Coefficients, LocalResponseNormBackwardDesc, LocalResponseNormDesc,
};
use warpwright_ops::plan::{Layout as Strided, Real};
use warpwright_ops::quantize::nested::{DequantizeNestedDesc, QuantizeNestedDesc};
use warpwright_ops::quantize::{DequantizeDesc, NibbleOrder, QuantizeDesc, Scheme};
use warpwright_ops::recurrent::{
    Biases, Cell, CellBackwardDesc, CellDesc, RecurrentBackwardDesc, RecurrentDesc,
};
use warpwright_ops::softmax::{MaskKind, MaskedSoftmaxDesc, Softmax, SoftmaxBackwardDesc, SoftmaxDesc};
use warpwright_ops::{Direction, Entry, Operation, PlanError};
use warpwright_ptx::{DType, Target};

use super::Planned;
use crate::op_options::{self, Mask, Nonlinearity, Taken, Transpose};

/// Elements of a row that is normalised.
const ROW: usize = 4096;
/// Places and channels of an image that is normalised across channels.
const PLACES: usize = 55 * 55;
const CHANNELS: usize = 96;

/// What every family is given.
struct Asked<'a> {
    op: &'a str,
    backward: bool,
    dtype: DType,
    target: Target,
    /// Elements of the main tensor, about.
    len: usize,
    options: &'a Taken<'a>,
}

impl Asked<'_> {
    fn plan(&self, desc: &impl Operation) -> Result<Planned, PlanError> {
        desc.plan(self.target).map(Into::into)
    }

    /// The one way or the other.
    fn either(&self, forward: &impl Operation, backward: &impl Operation) -> Result<Planned, PlanError> {
        if self.backward { self.plan(backward) } else { self.plan(forward) }
    }

    fn layout(&self) -> Layout {
        if self.options.channels_last().is_some() { Layout::ChannelsLast } else { Layout::ChannelsFirst }
    }

    fn precision(&self) -> Precision {
        if self.options.tf32().is_some() { Precision::Tf32 } else { Precision::Full }
    }
}

/// Plans what `entry` names.
pub(super) fn plan(
    entry: &Entry,
    dtype: DType,
    target: Target,
    len: usize,
    options: &Taken<'_>,
) -> Result<Planned, PlanError> {
    let (op, backward) = (entry.op, entry.direction == Direction::Backward);
    let asked = Asked { op, backward, dtype, target, len, options };
    if let Some(activation) = Activation::from_name(op) {
        let forward = ActivationDesc { activation, dtype, len };
        return asked.either(&forward, &ActivationBackwardDesc { activation, dtype, len });
    }
    if let Some(activation) = GatedActivation::from_name(op) {
        let forward = GatedDesc { activation, dtype, len };
        return asked.either(&forward, &GatedBackwardDesc { activation, dtype, len });
    }
    if let Some(norm) = RowNorm::from_name(op) {
        return asked.row_norm(norm);
    }
    if let Some(function) = Softmax::from_name(op) {
        return asked.softmax(function);
    }
    if let Some(cell) = Cell::ALL.into_iter().find(|cell| cell.op() == op) {
        return asked.sequence(cell);
    }
    if let Some(cell) = Cell::ALL.into_iter().find(|cell| cell.cell_op() == op) {
        return asked.cell(cell);
    }
    match op {
        "attention" => asked.attention(),
        "batch_norm" | "batch_norm_inference" => asked.batch_norm(),
        "cross_entropy" => asked.cross_entropy(),
        "gemm" => asked.gemm(),
        "group_norm" => asked.group_norm(),
        "local_response_norm" => asked.local_response_norm(),
        _ => asked.quantize(),
    }
}

impl Asked<'_> {
    fn row_norm(&self, norm: RowNorm) -> Result<Planned, PlanError> {
        let o = self.options;
        let row = o.len().unwrap_or(self.len.clamp(1, ROW));
        let rows = o.rows().unwrap_or(self.len / row.max(1));
        let weight = o.no_affine().is_none();
        let bias = weight && norm == RowNorm::Layer;
        let residual = o.residual().is_some();
        let dtype = self.dtype;
        if self.backward {
            let desc = RowNormBackwardDesc { norm, dtype, rows, len: row, weight, bias, dz: residual };
            return self.plan(&desc);
        }
        let (eps, statistics) = (Real::new(norm.default_eps(dtype)), o.statistics().is_some());
        self.plan(&RowNormDesc { norm, dtype, rows, len: row, eps, weight, bias, residual, statistics })
    }

    fn softmax(&self, function: Softmax) -> Result<Planned, PlanError> {
        let o = self.options;
        let n = o.len().unwrap_or(self.len.clamp(1, ROW));
        let inner = o.inner().unwrap_or(1);
        let outer = o.rows().unwrap_or(self.len / n.saturating_mul(inner).max(1));
        let (dtype, scale) = (self.dtype, Real::new(1.0));
        if self.backward {
            return self.plan(&SoftmaxBackwardDesc { function, dtype, outer, n, inner, scale });
        }
        let softmax = SoftmaxDesc { function, dtype, outer, n, inner, scale };
        let mask = match o.mask() {
            None => return self.plan(&softmax),
            Some(Mask::Additive) => MaskKind::Additive,
            Some(Mask::Boolean) => MaskKind::Boolean,
        };
        self.plan(&MaskedSoftmaxDesc { softmax, mask, repeat: 1, period: 1 })
    }

    fn sequence(&self, cell: Cell) -> Result<Planned, PlanError> {
        let o = self.options;
        let cell = self.rnn(cell);
        let batch = o.batch().unwrap_or(1);
        let hidden = o.hidden().unwrap_or(64);
        let input = o.input().unwrap_or(hidden);
        let steps = o.steps().unwrap_or((self.len / hidden.max(1)).clamp(1, 1024));
        let forward = RecurrentDesc {
            projection: if cell == Cell::Lstm { o.projection().unwrap_or(0) } else { 0 },
            layers: o.layers().unwrap_or(1),
            directions: if o.bidirectional().is_some() { 2 } else { 1 },
            batch_first: o.batch_first().is_some(),
            biases: self.biases(),
            h0: true,
            c0: cell.has_c(),
            lengths: o.lengths().is_some(),
            dropout: o.dropout().map(Real::new),
            precision: self.precision(),
            training: self.backward || o.training().is_some(),
            ..RecurrentDesc::new(cell, self.dtype, [steps, batch, input, hidden])
        };
        let (dy, dh_n, dc_n, dx) = (true, false, false, true);
        let backward = RecurrentBackwardDesc { forward: forward.clone(), dy, dh_n, dc_n, dx };
        self.either(&forward, &backward)
    }

    fn cell(&self, cell: Cell) -> Result<Planned, PlanError> {
        let o = self.options;
        let cell = self.rnn(cell);
        let hidden = o.hidden().unwrap_or(self.len.isqrt().clamp(1, 4096));
        let forward = CellDesc {
            cell,
            dtype: self.dtype,
            batch: o.batch().unwrap_or(1),
            input: o.input().unwrap_or(hidden),
            hidden,
            biases: self.biases(),
            training: self.backward || o.training().is_some(),
        };
        self.either(&forward, &CellBackwardDesc { forward: forward.clone(), dc_next: false })
    }

    /// The cell of the function that was asked for; those with gates have theirs.
    fn rnn(&self, cell: Cell) -> Cell {
        match cell {
            Cell::RnnTanh | Cell::RnnRelu => match self.options.nonlinearity() {
                Some(Nonlinearity::Relu) => Cell::RnnRelu,
                _ => Cell::RnnTanh,
            },
            gated => gated,
        }
    }

    fn biases(&self) -> Biases {
        match self.options.biases() {
            Some(0) => Biases::Absent,
            Some(1) => Biases::One,
            _ => Biases::Two,
        }
    }

    fn attention(&self) -> Result<Planned, PlanError> {
        let o = self.options;
        // Heads of 128 elements, 16 of them where there is room.
        let head_dim = o.head_dim().unwrap_or(128);
        let value_head_dim = o.value_head_dim().unwrap_or(head_dim);
        let heads = o.heads().unwrap_or((self.len >> 17).clamp(1, 16));
        let num_kv_heads = o.num_kv_heads().unwrap_or(heads);
        let batch = o.batch().unwrap_or(1);
        let row = [batch, heads, head_dim].into_iter().fold(1, usize::saturating_mul);
        let queries = o.queries().unwrap_or((self.len / row.max(1)).max(1));
        let keys = o.keys().unwrap_or(queries);
        let packed =
            o.sequences().map(|sequences| Packed { sequences, longest_queries: queries, longest_keys: keys });
        // Pages are of caches, whose keys have no gradients.
        let page_size = if self.backward { None } else { o.page_size() };
        let (key_lengths, causal) = (o.key_lengths().is_some(), o.causal().is_some());
        let (bias, sinks) = (o.bias().is_some(), o.sinks().is_some());
        let paged = page_size.map(|rows| Paged { pages: keys.div_ceil(rows.max(1)) });
        // Every sequence has pages of its own.
        let of_keys = match (page_size, paged) {
            (Some(rows), Some(Paged { pages })) => [batch.saturating_mul(pages), rows],
            _ => [batch, keys],
        };
        let sequences = packed.map_or(batch, |packed| packed.sequences);
        let options = AttentionOptions {
            causal,
            window: o.window().unwrap_or_default(),
            softcap: o.softcap().map(Real::new),
            bias: bias.then(|| Strided::contiguous([sequences, heads, queries, keys])),
            alibi: o.alibi().map(|_| AlibiSlopes::PerHead),
            key_lengths: key_lengths || paged.is_some(),
            packed,
            paged,
            sinks,
            dropout: o.dropout().map(Real::new),
            ..AttentionOptions::default()
        };
        let of = |[batch, rows]: [usize; 2], heads, width| Strided::contiguous([batch, rows, heads, width]);
        let q = of([batch, queries], heads, head_dim);
        let k = of(of_keys, num_kv_heads, head_dim);
        let v = of(of_keys, num_kv_heads, value_head_dim);
        let y = of([batch, queries], heads, value_head_dim);
        let forward = AttentionDesc { dtype: self.dtype, q, k, v, o: y, options };
        if !self.backward {
            return self.plan(&forward);
        }
        let (dbias, dsinks) = (bias, sinks);
        self.plan(&AttentionBackwardDesc { forward, dy: y, dq: q, dk: k, dv: v, dbias, dsinks })
    }

    fn batch_norm(&self) -> Result<Planned, PlanError> {
        let o = self.options;
        // Images of 64 channels.
        let affine = o.no_affine().is_none();
        let norm = BatchNorm {
            parameter_dtype: o.parameter_dtype().unwrap_or(self.dtype),
            weight: affine,
            bias: affine,
            relu: o.relu().is_some(),
            ..BatchNorm::new(
                self.dtype,
                self.layout(),
                o.batch().unwrap_or((self.len >> 18).max(1)),
                o.channels().unwrap_or(64),
                o.spatial().unwrap_or((self.len >> 6).clamp(2, 4096)),
            )
        };
        let residual = o.residual().is_some();
        if self.op == "batch_norm_inference" {
            let forward = BatchNormInferenceDesc { norm, residual };
            return self.either(&forward, &BatchNormInferenceBackwardDesc { norm, dresidual: residual });
        }
        if self.backward {
            return self.plan(&BatchNormBackwardDesc { norm, dresidual: residual });
        }
        let momentum = o.track_running_stats().map(|_| Momentum::Exponential(Real::new(0.1)));
        self.plan(&BatchNormDesc { norm, residual, momentum })
    }

    fn group_norm(&self) -> Result<Planned, PlanError> {
        // As convolutional networks normalise them: 512 channels of 64 x 64 pixels in 32 groups for large ones.
        let o = self.options;
        let (channels, groups) = if self.len < 1 << 20 { (32, 8) } else { (512, 32) };
        let channels = o.channels().unwrap_or(channels);
        let groups = o.groups().unwrap_or(groups);
        let spatial = o.spatial().unwrap_or((self.len / channels.max(1)).clamp(1, 4096));
        let sample = channels.saturating_mul(spatial).max(1);
        let batch = o.batch().unwrap_or((self.len / sample).max(1));
        let shape = GroupShape { batch, channels, spatial, groups, layout: self.layout() };
        let (dtype, silu, affine) = (self.dtype, o.silu().is_some(), o.no_affine().is_none());
        let (weight, bias) = (affine, affine);
        if self.backward {
            let (dweight, dbias) = (affine, affine);
            return self.plan(&GroupNormBackwardDesc { dtype, shape, weight, bias, silu, dweight, dbias });
        }
        let (statistics, eps) = (true, Real::new(1e-5));
        self.plan(&GroupNormDesc { dtype, shape, weight, bias, silu, statistics, eps })
    }

    fn local_response_norm(&self) -> Result<Planned, PlanError> {
        let o = self.options;
        let spatial = o.spatial().unwrap_or(self.len.clamp(1, PLACES));
        let channels = o.channels().unwrap_or((self.len / spatial.max(1)).clamp(1, CHANNELS));
        let image = spatial.saturating_mul(channels).max(1);
        let images = o.batch().unwrap_or(self.len / image);
        let (size, coefficients) = (o.size().unwrap_or(5), Coefficients::default());
        let dtype = self.dtype;
        let forward = LocalResponseNormDesc { dtype, images, channels, spatial, size, coefficients };
        self.either(&forward, &LocalResponseNormBackwardDesc { forward: forward.clone() })
    }

    fn gemm(&self) -> Result<Planned, PlanError> {
        let o = self.options;
        // Square matrices.
        let side = (self.len / 3).isqrt().max(1);
        let of = |extent: Option<usize>| extent.unwrap_or(side);
        let (transpose_a, transpose_b) = match o.transpose().unwrap_or(Transpose::Nt) {
            Transpose::Nn => (false, false),
            Transpose::Nt => (false, true),
            Transpose::Tn => (true, false),
            Transpose::Tt => (true, true),
        };
        let sizes = [of(o.m()), of(o.n()), of(o.k())];
        self.plan(&GemmDesc {
            batch: o.batch().unwrap_or(1),
            beta: Real::new(o.beta().unwrap_or(0.0)),
            bias: o.bias().is_some(),
            activation: o.activation(),
            precision: self.precision(),
            ..GemmDesc::new(self.dtype, sizes, transpose_a, transpose_b)
        })
    }

    fn cross_entropy(&self) -> Result<Planned, PlanError> {
        let o = self.options;
        let classes = o.classes().unwrap_or(self.len.clamp(1, ROW));
        let forward = CrossEntropyDesc {
            dtype: self.dtype,
            target: o.index_dtype().unwrap_or(DType::I64),
            rows: o.rows().unwrap_or(self.len / classes.max(1)),
            classes,
            ignore_index: -100,
            label_smoothing: Real::new(o.label_smoothing().unwrap_or(0.0)),
            reduction: match o.reduction() {
                Some(op_options::Reduction::None) => Reduction::None,
                Some(op_options::Reduction::Sum) => Reduction::Sum,
                Some(op_options::Reduction::Mean) | None => Reduction::Mean,
            },
        };
        self.either(&forward, &CrossEntropyBackwardDesc { forward: forward.clone() })
    }

    fn quantize(&self) -> Result<Planned, PlanError> {
        let Self { op, dtype, len, .. } = *self;
        match op {
            "quantize_nested" => return self.plan(&QuantizeNestedDesc { len }),
            "dequantize_nested" => return self.plan(&DequantizeNestedDesc { len }),
            _ => {}
        }
        let group_size = self.options.block_size().unwrap_or(64);
        let scheme = |name: &str| Scheme::ALL.into_iter().find(|scheme| scheme.name() == name);
        let order = |scheme| match scheme {
            Scheme::Nf4 | Scheme::Fp4 => NibbleOrder::HighFirst,
            _ => NibbleOrder::LowFirst,
        };
        if let Some(scheme) = op.strip_prefix("quantize_").and_then(scheme) {
            return self.plan(&QuantizeDesc { scheme, dtype, group_size, order: order(scheme), len });
        }
        if let Some(scheme) = op.strip_prefix("dequantize_").and_then(scheme) {
            return self.plan(&DequantizeDesc { scheme, dtype, group_size, order: order(scheme), len });
        }
        Err(PlanError::UnknownOperation { name: op.to_owned() })
    }
}
