//! The primitives: every case within its budget in the emulator and on a GPU, what is refused, what must not change, and the
//! judgment of NVIDIA's assembler.

mod accuracy;
mod attention;
mod attention_one_sweep;
mod batch_norm;
mod cast;
mod causal_conv1d;
mod conv;
mod copy;
mod counters;
mod cuda;
mod elementwise;
mod embedding;
mod emulator;
mod gemm;
mod gemm_f32;
mod gradients;
mod group_norm;
mod grouped_gemm;
mod kv_cache;
mod linear_cross_entropy;
mod matmul_4bit;
mod null_device;
mod optimizer;
mod plans;
mod pool;
mod ptxas;
mod quantize8;
mod recurrent;
mod reduce;
mod resize;
mod rotary;
mod row_norms;
mod rows;
mod scaled_gemm;
mod suite;
