//! Operations and layers against burn's own on its CPU backend, where the emulator runs the kernels under its sanitizers.

mod common;
mod errors;
mod graph;
mod layers;
mod ops;
mod rnn;
mod training;
