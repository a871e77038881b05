//! Kernels with a barrier removed or a bound shifted: a sanitizer or a number must give each of them away.

mod attention;
mod attention_blocks;
mod causal_conv1d;
mod chunk_scan;
mod clusters;
mod conv;
mod cumsum;
mod elementwise;
mod embedding;
mod gather_scatter;
mod gradients;
mod grouped_products;
mod harness;
mod kv_cache;
mod norms;
mod optimizer;
mod parts;
mod pools;
mod products;
mod recurrent;
mod reduce;
mod rotary;
mod rows;
mod selective_scan;
mod shared_products;
mod topk;
