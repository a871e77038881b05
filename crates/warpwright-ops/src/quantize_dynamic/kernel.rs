//! The kernels: blocks that lie in the registers of a warp, or of a thread block, until their maximum is known; and codes back.

use warpwright_dsl::prelude::*;
use warpwright_dsl::rows::row_amax;

use crate::dynamic_map::device::{Coder, Codes, Decoder, THREADS};
use crate::dynamic_map::{MIN_ABSMAX, Map};

kernel_args! {
    /// `n` elements to codes, in `rounds` rounds of each thread block.
    pub(super) struct QuantizeArgs => QuantizeParams { x: In<Elem>, codes: Out<u8>, absmax: Out<f32>, n: u64, rounds: u32 }
}

/// Quantizes blocks.
pub(super) struct Quantize {
    pub(super) map: Map,
    pub(super) dtype: DType,
    /// A power of two from 256 to 4096.
    pub(super) block_size: u32,
    pub(super) width: u32,
}

/// Elements of a thread, of which there are at least a warp to a block.
const ELEMENTS: u32 = 8;

impl Quantize {
    /// Threads of a block of elements.
    fn team(&self) -> u32 {
        (self.block_size / ELEMENTS).min(THREADS)
    }

    /// Elements of a thread block in a round.
    pub(super) fn elements(&self) -> u32 {
        THREADS / self.team() * self.block_size
    }
}

impl KernelDef for Quantize {
    type Args = QuantizeArgs;

    fn spec(&self) -> KernelSpec {
        let Self { map, dtype, block_size, width } = self;
        let name = format!("quantize_{}_{dtype}_b{block_size}x{width}", map.name());
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(DTypes::all(*dtype))
    }

    fn build<'k>(&self, k: K<'k>, a: QuantizeParams<'k>) {
        let coder = Coder::new(k, self.map, false);
        k.after_previous_grid();
        k.barrier();
        let (team, width) = (self.team(), self.width);
        let thread = k.thread_idx();
        let first = k.block_idx_x().mul_wide(a.rounds * self.elements());
        let first = first + (thread >> team.trailing_zeros()).mul_wide(self.block_size);
        let end = (k.block_idx_x() + 1).mul_wide(a.rounds * self.elements()).min(a.n);
        k.for_each(k.range(first, end, u64::from(self.elements())), |block| {
            let start = block + (thread & (team - 1)).mul_wide(width);
            let step = team * width;
            let inside = (0..self.block_size / step).map(|v| (start + u64::from(v * step)).lt(a.n));
            let vectors = HeldVectors::new(k, start, step, width, inside.collect());
            let xs = vectors.load::<f32>(a.x, Fill::Zero);
            let absmax = k.group_combine(team, row_amax(k, &xs), |a: F32<'k>, b| a.maximum(b));
            let inverse = absmax.maximum(f64::from(MIN_ABSMAX)).rcp();
            for (v, (x, inside)) in xs.iter().zip(vectors.inside()).enumerate() {
                let at = vectors.first(a.codes).at(vectors.offset(v)).only_where(*inside, Fill::Zero);
                coder.codes(&x.lanes(), inverse).store(at);
            }
            k.if_((thread & (team - 1)).eq(0), || {
                a.absmax.at(block >> self.block_size.trailing_zeros()).set(absmax);
            });
        });
    }
}

kernel_args! {
    /// `n` codes to elements, in `rounds` rounds of each thread block; blocks have `1 << shift` elements.
    pub(super) struct DequantizeArgs => DequantizeParams {
        codes: In<u8>, absmax: In<f32>, y: Out<Elem>, n: u64, rounds: u32, shift: u32,
    }
}

/// Codes to elements.
pub(super) struct Dequantize {
    pub(super) map: Map,
    pub(super) dtype: DType,
    pub(super) width: u32,
}

impl Dequantize {
    /// Elements of a thread block in a round.
    pub(super) fn elements(&self) -> u32 {
        THREADS * ELEMENTS
    }
}

impl KernelDef for Dequantize {
    type Args = DequantizeArgs;

    fn spec(&self) -> KernelSpec {
        let Self { map, dtype, width } = self;
        let name = format!("dequantize_{}_{dtype}_x{width}", map.name());
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(DTypes::all(*dtype))
    }

    fn build<'k>(&self, k: K<'k>, a: DequantizeParams<'k>) {
        let decoder = Decoder::new(k, self.map);
        k.after_previous_grid();
        k.barrier();
        let width = self.width;
        let first = k.block_idx_x().mul_wide(a.rounds * self.elements());
        let end = (k.block_idx_x() + 1).mul_wide(a.rounds * self.elements()).min(a.n);
        let first = first + k.thread_idx().mul_wide(width);
        k.for_each(k.range(first, end, u64::from(self.elements())), |start| {
            let step = THREADS * width;
            let places: Vec<(u64, U64<'k>)> = (0..ELEMENTS / width)
                .map(|v| u64::from(v * step))
                .map(|offset| (offset, start + offset))
                .collect();
            let loaded: Vec<_> = places
                .iter()
                .map(|(offset, at)| {
                    let inside = at.lt(a.n);
                    let codes =
                        Codes::load(a.codes.at(start).at(*offset).only_where(inside, Fill::Zero), width);
                    let absmax = a.absmax.at(*at >> a.shift).only_where(inside, Fill::Zero).get::<f32>();
                    (inside, codes, absmax)
                })
                .collect();
            for ((offset, _), (inside, codes, absmax)) in places.iter().zip(loaded) {
                let y = decoder.values(&codes) * absmax;
                a.y.at(start).at(*offset).only_where(inside, Fill::Zero).store(y);
            }
        });
    }
}
