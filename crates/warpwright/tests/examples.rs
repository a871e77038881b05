//! The examples run, and hold what they print against plain Rust.

#[path = "../examples/foreign_ptx.rs"]
mod foreign_ptx;
#[path = "../examples/gelu.rs"]
mod gelu;
#[path = "../examples/lstm_inference.rs"]
mod lstm_inference;
#[path = "../examples/raw_stream.rs"]
mod raw_stream;
#[path = "../examples/training_step.rs"]
mod training_step;
#[path = "../examples/vec_add.rs"]
mod vec_add;

macro_rules! run {
    ($($example:ident => $test:ident;)*) => {$(
        #[test]
        fn $test() {
            $example::main().expect("the example runs");
        }
    )*};
}

run! {
    foreign_ptx => foreign_ptx_is_tested;
    gelu => gelu_is_computed;
    lstm_inference => sequences_are_read;
    raw_stream => raw_memory_is_used;
    training_step => a_training_step_is_captured;
    vec_add => vectors_are_added;
}
