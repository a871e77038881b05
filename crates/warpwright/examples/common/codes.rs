//! Weights of 4-bit codes as checkpoints store them: those that products read without unpacking.

use warpwright::matmul_4bit::{Weight4bit, WeightFormat};
use warpwright::quantize::{NibbleOrder, Quantized, QuantizedNested, Scheme};
use warpwright::{DType, Stream, Tensor, cat, dequantize, dequantize_nested};

use serde::Deserialize;

use super::Result;
use super::checkpoint::Checkpoint;

/// A matrix of codes, with what their numbers are multiplied by.
pub(crate) struct Codes {
    format: WeightFormat,
    /// Outputs and inputs.
    shape: [usize; 2],
    group_size: usize,
    codes: Tensor,
    scales: Tensor,
    zero_points: Option<Tensor>,
    /// Maxima and offset of scales that are codes themselves.
    nested: Option<[Tensor; 2]>,
    tensor_scale: Option<Tensor>,
    group_index: Option<Tensor>,
}

/// The JSON that bitsandbytes stores beside the codes of a weight.
#[derive(Deserialize)]
struct QuantState {
    blocksize: usize,
    shape: Vec<usize>,
    nested_offset: Option<f32>,
}

impl Codes {
    /// `LAYER.weight` as bitsandbytes (NF4, FP4), ModelOpt (NVFP4) and compressed-tensors (integers of 4 bits, NVFP4, MXFP4) store it; `None` if
    /// it is stored as floats.
    pub(crate) fn load(checkpoint: &mut Checkpoint, stream: &Stream, name: &str) -> Result<Option<Self>> {
        if let Some(codes) = Self::bitsandbytes(checkpoint, stream, name)? {
            return Ok(Some(codes));
        }
        let Some(layer) = name.strip_suffix(".weight") else { return Ok(None) };
        let has = |part: &str| checkpoint.contains(&format!("{layer}.{part}"));
        if has("weight_packed") {
            return if checkpoint.dtype(&format!("{name}_packed")) == Some(DType::U8) {
                Self::e2m1(checkpoint, stream, name, "_packed").map(Some)
            } else {
                Self::integers(checkpoint, stream, layer).map(Some)
            };
        }
        if has("weight_scale_2") {
            return Self::e2m1(checkpoint, stream, name, "").map(Some);
        }
        if has("qweight") {
            let advice = "warpwright convert FOLDER -o OUT --format compressed-tensors-int4";
            return Err(
                format!("{layer}.qweight: codes of GPTQ and AWQ lie in columns; first `{advice}`").into()
            );
        }
        Ok(None)
    }

    fn new(format: WeightFormat, shape: [usize; 2], group_size: usize, [codes, scales]: [Tensor; 2]) -> Self {
        let (zero_points, nested, tensor_scale, group_index) = (None, None, None, None);
        Self { format, shape, group_size, codes, scales, zero_points, nested, tensor_scale, group_index }
    }

    fn bitsandbytes(checkpoint: &mut Checkpoint, stream: &Stream, name: &str) -> Result<Option<Self>> {
        let formats = [(WeightFormat::Nf4, Scheme::Nf4), (WeightFormat::Fp4, Scheme::Fp4)];
        let key = |scheme: Scheme| format!("{name}.quant_state.bitsandbytes__{}", scheme.name());
        let Some((format, scheme)) = formats.into_iter().find(|(_, s)| checkpoint.contains(&key(*s))) else {
            return Ok(None);
        };
        let json = checkpoint.bytes(&key(scheme))?;
        let state: QuantState = serde_json::from_slice(&json).map_err(|e| format!("{name}: {e}"))?;
        let &[n, k] = state.shape.as_slice() else {
            return Err(format!("{name} has the shape {:?}, expected two dimensions", state.shape).into());
        };
        let codes = checkpoint.stored(stream, name)?;
        let len = codes.len();
        let scales = checkpoint.stored(stream, &format!("{name}.absmax"))?;
        let mut found = Self::new(format, [n, k], state.blocksize, [codes.reshape(&[len])?, scales]);
        if let Some(offset) = state.nested_offset {
            let maxima = checkpoint.stored(stream, &format!("{name}.nested_absmax"))?;
            found.nested = Some([maxima, Tensor::from_slice_on(stream, &[offset], &[1])?]);
        }
        Ok(Some(found))
    }

    /// e2m1 in bytes: of NVFP4 with scales of e4m3 and one of the whole, of MXFP4 with powers of two.
    fn e2m1(checkpoint: &mut Checkpoint, stream: &Stream, name: &str, packed: &str) -> Result<Self> {
        let codes = checkpoint.stored(stream, &format!("{name}{packed}"))?;
        let &[n, half] = codes.shape() else {
            return Err(
                format!("{name}{packed} has the shape {:?}, expected two dimensions", codes.shape()).into()
            );
        };
        let scales = checkpoint.stored(stream, &format!("{name}_scale"))?;
        let (format, group_size) = match scales.dtype() {
            DType::F8E4M3 => (WeightFormat::Nvfp4, 16),
            _ => (WeightFormat::Mxfp4, 32),
        };
        let mut found = Self::new(format, [n, 2 * half], group_size, [codes, scales]);
        if format == WeightFormat::Nvfp4 {
            // compressed-tensors divides by the scale of the whole, ModelOpt multiplies.
            let is_divisor = !packed.is_empty();
            let scale = format!("{name}{}", if is_divisor { "_global_scale" } else { "_scale_2" });
            let value = checkpoint.number(stream, &scale)?;
            let factor = if is_divisor { value.recip() } else { value };
            found.tensor_scale = Some(Tensor::from_slice_on(stream, &[factor], &[1])?);
        }
        Ok(found)
    }

    /// Integers of 4 bits in words along the rows, and zero points, if there are any, in words along the columns.
    fn integers(checkpoint: &mut Checkpoint, stream: &Stream, layer: &str) -> Result<Self> {
        let name = |part: &str| format!("{layer}.weight_{part}");
        let words = checkpoint.shape(&name("packed"))?;
        let shape: Vec<usize> = checkpoint
            .integers(&name("shape"))?
            .into_iter()
            .map(usize::try_from)
            .collect::<std::result::Result<_, _>>()?;
        let scales = checkpoint.stored(stream, &name("scale"))?;
        let (&[n, k], &[rows, groups]) = (shape.as_slice(), scales.shape()) else {
            return Err(format!("{}: {shape:?}, and scales {:?}", name("shape"), scales.shape()).into());
        };
        if rows != n || groups == 0 || words != [n, k / 8] || !k.is_multiple_of(8) {
            let of = scales.shape();
            return Err(format!("{layer}: words {words:?} and scales {of:?} for [{n}, {k}] of 4 bits").into());
        }
        let codes =
            Tensor::from_bytes(stream.device(), DType::U8, &checkpoint.bytes(&name("packed"))?, &[n, k / 2])?;
        let mut found = Self::new(WeightFormat::Int4, [n, k], k.div_ceil(groups), [codes, scales]);
        if checkpoint.contains(&name("zero_point")) {
            // Eight rows of a group are a word.
            let words = checkpoint.bytes(&name("zero_point"))?;
            let point = |at: usize| {
                let (row, group) = (at / groups, at % groups);
                let byte = words.get((row / 8 * groups + group) * 4 + row % 8 / 2)?;
                Some(if row % 2 == 0 { byte & 15 } else { byte >> 4 })
            };
            let points = (0..n * groups).map(point).collect::<Option<Vec<u8>>>();
            let points = points.ok_or_else(|| format!("{}: too short", name("zero_point")))?;
            found.zero_points = Some(Tensor::from_slice_on(stream, &points, &[n, groups])?);
            found.format = WeightFormat::Int4Asymmetric;
        }
        if checkpoint.contains(&name("g_idx")) {
            let index: Vec<i32> = checkpoint
                .integers(&name("g_idx"))?
                .into_iter()
                .map(i32::try_from)
                .collect::<std::result::Result<_, _>>()?;
            found.group_index = Some(Tensor::from_slice_on(stream, &index, &[index.len()])?);
        }
        Ok(found)
    }

    /// The weight as products take it.
    pub(crate) fn weight(&self) -> Weight4bit<'_> {
        Weight4bit {
            format: self.format,
            shape: self.shape,
            group_size: self.group_size,
            codes: &self.codes,
            scales: &self.scales,
            zero_points: self.zero_points.as_ref(),
            nested: self.nested.as_ref().map(|[maxima, offset]| (maxima, offset)),
            tensor_scale: self.tensor_scale.as_ref(),
            group_index: self.group_index.as_ref(),
        }
    }

    /// Rows of the matrix.
    pub(crate) fn outputs(&self) -> usize {
        self.shape[0]
    }

    /// One matrix with the rows of all, if their formats, inputs, groups and scales of the whole are the same. Nested scales, whose offsets
    /// differ, become floats, which are the same numbers in four times the bytes.
    pub(crate) fn joined(stream: &Stream, all: &[&Self]) -> Result<Option<Self>> {
        let Some(&first) = all.first() else { return Ok(None) };
        let mut factors = Vec::new();
        for codes in all {
            let factor =
                codes.tensor_scale.as_ref().map(|scale| scale.to_vec_on::<f32>(stream)).transpose()?;
            factors.push(factor);
        }
        let alike = |(codes, factor): (&&Self, &Option<Vec<f32>>)| {
            let [n, k] = codes.shape;
            codes.format == first.format
                && k == first.shape[1]
                && codes.group_size == first.group_size
                && codes.scales.dtype() == first.scales.dtype()
                && *factor == factors[0]
                && codes.group_index.is_none()
                // Groups and bytes of a flat format end with the rows.
                && (n * k).is_multiple_of(codes.group_size)
                && (n * k).is_multiple_of(2)
        };
        if !all.iter().zip(&factors).all(alike) {
            return Ok(None);
        }
        let codes = cat(stream, &all.iter().map(|codes| &codes.codes).collect::<Vec<_>>(), 0)?;
        let mut scales = Vec::new();
        for codes in all {
            scales.push(match &codes.nested {
                None => codes.scales.clone_on(stream)?,
                Some([maxima, offset]) => dequantize_nested(
                    stream,
                    &QuantizedNested {
                        codes: codes.scales.clone_on(stream)?,
                        nested_absmax: maxima.clone_on(stream)?,
                        offset: offset.clone_on(stream)?,
                    },
                )?,
            });
        }
        let scales = cat(stream, &scales.iter().collect::<Vec<_>>(), 0)?;
        let points: Vec<&Tensor> = all.iter().filter_map(|codes| codes.zero_points.as_ref()).collect();
        let rows = all.iter().map(|codes| codes.shape[0]).sum();
        let mut joined = Self::new(first.format, [rows, first.shape[1]], first.group_size, [codes, scales]);
        joined.zero_points = (!points.is_empty()).then(|| cat(stream, &points, 0)).transpose()?;
        joined.tensor_scale = first.tensor_scale.as_ref().map(|scale| scale.clone_on(stream)).transpose()?;
        Ok(Some(joined))
    }

    /// The matrix in floats of `dtype`, of codes of bitsandbytes.
    pub(crate) fn floats(self, stream: &Stream, dtype: DType) -> Result<Tensor> {
        let scheme = match self.format {
            WeightFormat::Nf4 => Scheme::Nf4,
            WeightFormat::Fp4 => Scheme::Fp4,
            other => {
                return Err(format!("a table of {}; only linear layers are read of it", other.name()).into());
            }
        };
        let scales = match self.nested {
            None => self.scales,
            Some([nested_absmax, offset]) => {
                dequantize_nested(stream, &QuantizedNested { codes: self.scales, nested_absmax, offset })?
            }
        };
        let quantized = Quantized {
            scheme,
            group_size: self.group_size,
            order: NibbleOrder::HighFirst,
            shape: self.shape.to_vec(),
            codes: self.codes,
            scales,
            zero_points: None,
        };
        Ok(dequantize(stream, &quantized, dtype)?)
    }

    /// Bytes that a product of a few rows reads.
    pub(crate) fn bytes(&self) -> u64 {
        let more = self.zero_points.iter().chain(self.nested.iter().map(|[maxima, _]| maxima));
        [&self.codes, &self.scales].into_iter().chain(more).map(|x| x.buffer().bytes()).sum()
    }
}
