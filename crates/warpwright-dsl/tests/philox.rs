//! Random words in the emulator and on the host.

mod support;

use support::{Arg, run, values};
use warpwright_dsl::prelude::*;
use warpwright_ptx::ArgValue;

kernel_args! {
    struct DrawArgs => DrawParams { out: Out<u32>, seed: u64, offset: u64, first: u64 }
}

struct Draw;

impl KernelDef for Draw {
    type Args = DrawArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("draw".to_owned(), BlockDim::x(64))
    }

    fn build<'k>(&self, k: K<'k>, a: DrawParams<'k>) {
        let philox = Philox::new(k, a.seed, a.offset);
        let words = philox.draw(a.first + k.thread_idx().to_u64());
        for (at, word) in (0u32..).zip(words) {
            a.out.at(k.thread_idx() * 4 + at).set(word);
        }
    }
}

#[test]
fn kernels_draw_what_the_host_draws() {
    let (seed, offset, first) = (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, u64::from(u32::MAX) - 20);
    let mut out = vec![0; 64 * 16];
    let scalars = [seed, offset, first].map(|value| Arg::Scalar(ArgValue::U64(value)));
    let mut args = vec![Arg::Buffer(&mut out)];
    args.extend(scalars);
    run(&Draw, Target::sm(75), 1, &mut args);
    drop(args);
    let want: Vec<u32> = (0..64).flat_map(|thread| Philox::words(seed, offset, first + thread)).collect();
    assert_eq!(values::<u32>(&out), want);
}
