//! The tensors that stand for a packed weight, and how its codes, scales and zero points lie in them.

use half::{bf16, f16};

use super::encode::{Rule, Scale};
use crate::args::PackedFormat;
use crate::checkpoint::schemes::packing::{Code, Packing};
use crate::checkpoint::{StoredType, TensorSpec};

impl Rule {
    /// How codes share words.
    pub(super) const fn packing(&self) -> Packing {
        match self.format {
            PackedFormat::Gptq => Packing::Down,
            PackedFormat::Awq => Packing::Interleaved,
            PackedFormat::CompressedTensorsInt4 => Packing::Along,
            PackedFormat::Mxfp4 | PackedFormat::Nvfp4 => Packing::Nibbles,
            PackedFormat::Fp8 => Packing::Bytes,
        }
    }

    /// The meaning of a code.
    pub(super) const fn code_kind(&self) -> Code {
        match self.format {
            PackedFormat::Fp8 => Code::E4m3,
            PackedFormat::Mxfp4 | PackedFormat::Nvfp4 => Code::E2m1,
            _ => Code::Unsigned(4),
        }
    }

    /// Bits of a code.
    pub(super) const fn bits(&self) -> u32 {
        self.code_kind().bits()
    }

    /// Rows that share scales.
    pub(super) const fn block_rows(&self) -> usize {
        if matches!(self.format, PackedFormat::Fp8) { 128 } else { 1 }
    }

    /// Whether a matrix can be stored so.
    pub(super) const fn fits(&self, [n, k]: [u64; 2]) -> bool {
        let whole = k.is_multiple_of(self.group_size as u64);
        match self.format {
            // What the kernels of AutoGPTQ and AutoAWQ ask for.
            PackedFormat::Gptq => whole && n.is_multiple_of(32) && k.is_multiple_of(32),
            PackedFormat::Awq => whole && n.is_multiple_of(8),
            PackedFormat::CompressedTensorsInt4 | PackedFormat::Mxfp4 | PackedFormat::Nvfp4 => whole,
            PackedFormat::Fp8 => true,
        }
    }

    /// The tensors of a weight whose key is `base` and `.weight`: codes, scales, then the rest.
    pub(super) fn specs(&self, base: &str, [n, k]: [u64; 2]) -> Vec<TensorSpec> {
        let groups = k.div_ceil(self.group_size as u64);
        let spec = |suffix: &str, dtype, shape: &[u64]| TensorSpec {
            name: format!("{base}.{suffix}"),
            dtype,
            shape: shape.to_vec(),
        };
        match self.format {
            PackedFormat::Gptq => vec![
                spec("qweight", StoredType::I32, &[k / 8, n]),
                spec("scales", self.scale_type, &[groups, n]),
                spec("qzeros", StoredType::I32, &[groups, n / 8]),
                spec("g_idx", StoredType::I32, &[k]),
            ],
            PackedFormat::Awq => vec![
                spec("qweight", StoredType::I32, &[k, n / 8]),
                spec("scales", self.scale_type, &[groups, n]),
                spec("qzeros", StoredType::I32, &[groups, n / 8]),
            ],
            PackedFormat::CompressedTensorsInt4 => {
                let mut specs = vec![
                    spec("weight_packed", StoredType::I32, &[n, k.div_ceil(8)]),
                    spec("weight_scale", self.scale_type, &[n, groups]),
                    spec("weight_shape", StoredType::I64, &[2]),
                ];
                if self.asymmetric {
                    specs.push(spec("weight_zero_point", StoredType::I32, &[n.div_ceil(8), groups]));
                }
                specs
            }
            PackedFormat::Mxfp4 => vec![
                spec("weight_packed", StoredType::U8, &[n, k / 2]),
                spec("weight_scale", StoredType::U8, &[n, groups]),
            ],
            PackedFormat::Nvfp4 => vec![
                spec("weight_packed", StoredType::U8, &[n, k / 2]),
                spec("weight_scale", StoredType::F8E4M3, &[n, groups]),
                spec("weight_global_scale", StoredType::F32, &[1]),
            ],
            PackedFormat::Fp8 => vec![
                spec("weight", StoredType::F8E4M3, &[n, k]),
                spec("weight_scale_inv", StoredType::F32, &[n.div_ceil(128), groups]),
            ],
        }
    }

    /// The bytes of all tensors but that of the codes, in the order of [`Rule::specs`]. `scales` are in rows of groups.
    pub(super) fn parts(&self, [n, k]: [usize; 2], scales: &[Scale]) -> Vec<Vec<u8>> {
        let groups = k.div_ceil(self.group_size);
        let by_rows: Vec<u8> = scales.iter().flat_map(|scale| self.scale_bytes(*scale)).collect();
        match self.format {
            PackedFormat::Gptq | PackedFormat::Awq => {
                let first: Vec<_> = (0..n * groups).map(|at| scales[at % n * groups + at / n]).collect();
                let bytes = first.iter().flat_map(|scale| self.scale_bytes(*scale)).collect();
                // Words of [G, N / 8] along N: GPTQ's as codes along K of a matrix [G, N], AWQ's as those of [N, G].
                let gptq = self.format == PackedFormat::Gptq;
                let mut zeros = vec![0; n / 8 * groups * 4];
                if gptq {
                    for (group, scales) in first.chunks_exact(n).enumerate() {
                        let codes: Vec<_> =
                            scales.iter().map(|scale| scale.zero.wrapping_sub(1) & 15).collect();
                        Packing::Along.pack(&mut zeros, groups, group, 4, &codes);
                    }
                } else {
                    for (row, scales) in scales.chunks_exact(groups).enumerate() {
                        let codes: Vec<_> = scales.iter().map(|scale| scale.zero).collect();
                        Packing::Interleaved.pack(&mut zeros, n, row, 4, &codes);
                    }
                }
                let mut parts = vec![bytes, zeros];
                if gptq {
                    let index = (0..k).flat_map(|column| ((column / self.group_size) as u32).to_le_bytes());
                    parts.push(index.collect());
                }
                parts
            }
            PackedFormat::CompressedTensorsInt4 => {
                let shape = [n as u64, k as u64].map(u64::to_le_bytes).concat();
                let mut parts = vec![by_rows, shape];
                if self.asymmetric {
                    let mut zeros = vec![0; n.div_ceil(8) * groups * 4];
                    for group in 0..groups {
                        let codes: Vec<_> = (0..n).map(|row| scales[row * groups + group].zero).collect();
                        Packing::Down.pack(&mut zeros, groups, group, 4, &codes);
                    }
                    parts.push(zeros);
                }
                parts
            }
            PackedFormat::Nvfp4 => vec![by_rows, self.global.to_le_bytes().to_vec()],
            PackedFormat::Mxfp4 | PackedFormat::Fp8 => vec![by_rows],
        }
    }

    fn scale_bytes(&self, scale: Scale) -> Vec<u8> {
        match self.scale_type {
            StoredType::F16 => f16::from_f32(scale.value).to_le_bytes().to_vec(),
            StoredType::BF16 => bf16::from_f32(scale.value).to_le_bytes().to_vec(),
            StoredType::F32 => scale.bits.to_le_bytes().to_vec(),
            _ => vec![scale.bits as u8],
        }
    }
}
