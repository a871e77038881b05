//! The kernel that moves parameters of a list whose moments are in 8 bits: a warp for each block of elements.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Element, Readable, Space};
use warpwright_ptx::isa::DeviceLimits;

use super::BLOCK;
use super::kernel::{Numbers, is_active};
use super::tuning::LIST;
use crate::dynamic_map::device::{Coder, Codes, Decoder, THREADS};
use crate::dynamic_map::{MIN_ABSMAX, Map, rounds};

/// Lanes of a warp.
const LANES: u32 = 32;
/// Elements of a lane.
const ELEMENTS: u32 = BLOCK as u32 / LANES;
/// Elements of a thread block in a round.
const ROUND: u32 = THREADS * ELEMENTS;

/// Elements of a thread block, of all `len` elements of a step.
pub(super) fn chunk(len: usize) -> u32 {
    ROUND * rounds(len, ROUND)
}

/// Blocks that a multiprocessor is to have room for: with five of them a thread has 48 registers, and nothing of it lies in memory. The assembler
/// would choose fewer registers by itself where there is room for six.
pub(super) fn resident(target: Target) -> u32 {
    (DeviceLimits::of(target).threads / THREADS).min(5)
}

kernel_args! {
    /// Tensors of a list, of which each begins at the block `starts`; blocks take `chunk` elements.
    pub(super) struct UpdateArgs => UpdateParams {
        params: [InOut<Elem>; LIST],
        grads: [In<Elem>; LIST],
        firsts: [InOut<u8>; LIST],
        seconds: [InOut<u8>; LIST],
        first_absmax: [InOut<f32>; LIST],
        second_absmax: [InOut<f32>; LIST],
        masters: [InOut<Elem>; LIST],
        lens: [u64; LIST],
        starts: [u32; LIST],
        chunk: u32,
        shared: In<f64>,
        /// Decay rates of the moments.
        betas: [f64; 2],
        eps: f64,
        /// Added to gradients, times the parameter.
        weight_decay: f64,
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    pub(super) dtype: DType,
    pub(super) grad: DType,
    /// Whether parameters are kept in f32, and `params` are their roundings.
    pub(super) master: bool,
    /// Blocks that a multiprocessor has room for; see [`resident`].
    pub(super) resident: u32,
}

/// A moment: codes, their maxima, and the tables between codes and values.
#[derive(Clone, Copy, Debug)]
struct Moment<'k> {
    codes: Ptr<'k, ReadWrite, u8>,
    absmax: Ptr<'k, ReadWrite, f32>,
    decoder: Decoder<'k>,
    coder: Coder<'k>,
}

/// Tensors of a parameter.
#[derive(Clone, Copy, Debug)]
struct Tensors<'k> {
    param: Ptr<'k, ReadWrite, Elem>,
    grad: Ptr<'k, Read, Elem>,
    master: Ptr<'k, ReadWrite, Elem>,
    first: Moment<'k>,
    second: Moment<'k>,
    len: U64<'k>,
}

/// The elements of a lane in a block: vectors, and of each whether it is there, unless all of them are.
struct Share<'k> {
    width: u32,
    first: U64<'k>,
    inside: Option<Vec<Pred<'k>>>,
}

impl<'k> Share<'k> {
    fn count(&self) -> u32 {
        ELEMENTS / self.width
    }

    /// The place of a vector.
    fn of<S: Space, E: Element>(&self, at: Ptr<'k, S, E>, vector: u32) -> Ptr<'k, S, E> {
        let place = at.at(self.first).at(u64::from(vector * LANES * self.width));
        match &self.inside {
            Some(inside) => place.only_where(inside[vector as usize], Fill::Zero),
            None => place,
        }
    }

    fn load(&self, at: Ptr<'k, impl Readable, Elem>) -> Lanes<'k, f32> {
        Lanes::concat((0..self.count()).map(|v| self.of(at, v).load(self.width)))
    }

    fn store(&self, at: Ptr<'k, ReadWrite, Elem>, x: &Lanes<'k, f32>) {
        for (v, x) in (0..).zip(x.as_slice().chunks(self.width as usize)) {
            self.of(at, v).store(Lanes::from(x.to_vec()));
        }
    }

    /// The values of codes, before they are multiplied by their maximum.
    fn values(&self, of: &Moment<'k>) -> Lanes<'k, f32> {
        let codes: Vec<Codes<'k>> =
            (0..self.count()).map(|v| Codes::load(self.of(of.codes, v), self.width)).collect();
        Lanes::concat(codes.iter().map(|codes| of.decoder.values(codes)))
    }

    /// 0 in place of what is not there.
    fn only_there(&self, x: Lanes<'k, f32>) -> Lanes<'k, f32> {
        match &self.inside {
            Some(inside) => {
                x.iter().enumerate().map(|(i, x)| inside[i / self.width as usize].select(x, 0.0)).collect()
            }
            None => x,
        }
    }

    /// Stores a moment as codes, by all lanes of a warp; `block` is its number.
    fn store_moment(&self, k: K<'k>, of: &Moment<'k>, block: U64<'k>, x: &Lanes<'k, f32>) {
        let mine = x.fold(k.lit(0.0), |most: F32<'k>, x| most.max(x.abs()));
        // Magnitudes are ordered as their bits are. What overflows is the largest number.
        let most = warp_reduce(k, Max, mine.to_bits()).min(f32::MAX.to_bits());
        let absmax = F32::from_bits(most);
        let inverse = absmax.max(f64::from(MIN_ABSMAX)).rcp();
        for (v, x) in (0..).zip(x.as_slice().chunks(self.width as usize)) {
            of.coder.codes(&Lanes::from(x.to_vec()), inverse).store(self.of(of.codes, v));
        }
        k.if_(k.lane_idx().eq(0), || of.absmax.at(block).set(absmax));
    }
}

impl Update {
    /// A block of elements by a warp.
    fn step<'k>(&self, k: K<'k>, t: &Tensors<'k>, n: Numbers<'k, f32>, block: U64<'k>, share: &Share<'k>) {
        let grad = share.load(t.grad);
        let param = if self.master { share.load(t.master) } else { share.load(t.param) };
        let (first, second) = (share.values(&t.first), share.values(&t.second));
        let [kept, kept_second] = [(&t.first, n.betas[0]), (&t.second, n.betas[1])]
            .map(|(of, beta)| of.absmax.at(block).get() * beta);
        let grad = (grad * n.gradient).zip(param.clone(), |g, p| {
            let g = p.mul_add(n.weight_decay, g);
            g.is_finite().select(g, 0.0)
        });
        let first = share.only_there(first.zip(grad.clone(), |m, g| m.mul_add(kept, g * n.rest[0])));
        let second = second.zip(grad, |v, g| v.mul_add(kept_second, g * n.rest[1] * g));
        let second = share.only_there(second);
        let direction =
            first.zip(second.clone(), |m, v| m * v.sqrt_approx().mul_add(n.second, n.eps).rcp_approx());
        let param = (param * n.decay).zip(direction, |p, d| p - d * n.step);
        if self.master {
            share.store(t.master, &param);
        }
        share.store(t.param, &param);
        // Every lane has read the maxima, which are overwritten.
        k.warp_barrier();
        share.store_moment(k, &t.first, block, &first);
        share.store_moment(k, &t.second, block, &second);
    }

    /// Elements of a vector: 16 bytes of the wider type, and as many codes.
    fn width(&self) -> u32 {
        16 / self.dtype.bytes().max(self.grad.bytes()).max(if self.master { 4 } else { 2 }) as u32
    }
}

impl KernelDef for Update {
    type Args = UpdateArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, grad, master, resident } = *self;
        let master = if master { "_master" } else { "" };
        let name = format!("optimizer_adam8bit_{dtype}_{grad}{master}");
        let dtypes = DTypes::all(dtype).with("masters", DType::F32).with("grads", grad);
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(dtypes).min_blocks_per_sm(resident)
    }

    fn build<'k>(&self, k: K<'k>, p: UpdateParams<'k>) {
        k.start_next_grid();
        let decoders = Map::ALL.map(|map| Decoder::new(k, map));
        let coders = Map::ALL.map(|map| Coder::new(k, map, map == Map::Signed));
        k.after_previous_grid();
        k.barrier();
        let block = k.block_idx_x();
        let (addresses, len, start) = k.search(LIST, &|i| block.ge(p.starts[i]), &|i| {
            let elements = [p.params[i], p.masters[i]].map(Ptr::address);
            let codes = [p.firsts[i], p.seconds[i]].map(Ptr::address);
            let absmax = [p.first_absmax[i], p.second_absmax[i]].map(Ptr::address);
            ((elements, codes, absmax, p.grads[i].address()), p.lens[i], p.starts[i])
        });
        let ([param, master], [first, second], absmax, grad) = addresses;
        let moment = |i: usize, codes: U64<'k>| Moment {
            codes: p.firsts[0].at_address(codes),
            absmax: p.first_absmax[0].at_address(absmax[i]),
            decoder: decoders[i],
            coder: coders[i],
        };
        let t = Tensors {
            param: p.params[0].at_address(param),
            grad: p.grads[0].at_address(grad),
            master: p.masters[0].at_address(master),
            first: moment(0, first),
            second: moment(1, second),
            len,
        };
        let n = Numbers::<f32>::load(k, true, p.shared, (p.betas, p.eps, p.weight_decay));
        let chunk = (block - start).mul_wide(p.chunk);
        let end = (chunk + p.chunk.to_u64()).min(len);
        // Null pointers of masters that there are none of are aligned.
        let aligned = ((param | master | grad | first | second) & 15).eq(0);
        let mine = chunk + k.warp_idx().mul_wide(BLOCK as u32);
        let width = self.width();
        k.if_(is_active::<f32>(p.shared), || {
            k.for_each(k.range(mine, end, u64::from(ROUND)), |at| {
                let number = at >> BLOCK.trailing_zeros();
                let whole = aligned & (at + BLOCK as u64).le(t.len);
                k.if_else(
                    whole,
                    || {
                        let first = at + k.lane_idx().mul_wide(width);
                        self.step(k, &t, n, number, &Share { width, first, inside: None });
                    },
                    || {
                        let first = at + k.lane_idx().to_u64();
                        let inside = (0..ELEMENTS).map(|i| (first + u64::from(i * LANES)).lt(t.len));
                        let share = Share { width: 1, first, inside: Some(inside.collect()) };
                        self.step(k, &t, n, number, &share);
                    },
                );
            });
        });
    }
}
