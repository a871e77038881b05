//! The code of the guide (`docs/guide`), which `cargo test --doc` compiles and runs.

#[doc = include_str!("../../../docs/guide/src/first-use.md")]
mod first_use {}
#[doc = include_str!("../../../docs/guide/src/numerics.md")]
mod numerics {}
#[doc = include_str!("../../../docs/guide/src/observing.md")]
mod observing {}
#[doc = include_str!("../../../docs/guide/src/own-kernels.md")]
mod own_kernels {}
#[doc = include_str!("../../../docs/guide/src/performance.md")]
mod performance {}
#[doc = include_str!("../../../docs/guide/src/plans-and-graphs.md")]
mod plans_and_graphs {}
#[doc = include_str!("../../../docs/guide/src/several-gpus.md")]
mod several_gpus {}
#[doc = include_str!("../../../docs/guide/src/testing-ptx.md")]
mod testing_ptx {}
