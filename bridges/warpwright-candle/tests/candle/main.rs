//! Operations and layers against candle's own compositions: on the CPU, where the emulator runs the kernels under its sanitizers, or with the
//! feature `cuda` on the first GPU.

mod common;
mod errors;
mod gaps;
mod graph;
mod layers;
mod ops;
mod rnn;
mod training;
