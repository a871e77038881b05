//! [`Packed`]: a vector of elements as it lies in memory, to be kept in half the registers.

use crate::context::K;
use crate::float::Float;
use crate::flow::{Carry, RawReg, RawRegs};
use crate::halves::Halves;
use crate::lanes::Lanes;
use crate::mem::{Access, Element, Ptr, Readable, Writable};
use crate::reg::{F32, Number, Reg, U32, U64};
use crate::storage::{load_halves, pack, store_halves, widen};
use warpwright_ptx::DType;

/// Consecutive elements of one vector access: 16-bit floats two to a register, all others one to a register.
#[derive(Clone, Debug)]
#[must_use = "a recorded value that nothing reads is a mistake in the kernel"]
pub struct Packed<'k, A: Number> {
    dtype: DType,
    width: usize,
    /// The elements if they are 16-bit floats, else nothing.
    words: Lanes<'k, u32>,
    /// The elements if they are not.
    lanes: Lanes<'k, A>,
}

impl<'k, A: Number> Carry<'k> for Packed<'k, A> {
    fn collect(&self, regs: &mut Vec<RawReg>) {
        self.words.collect(regs);
        self.lanes.collect(regs);
    }

    fn rebuild(&self, regs: &mut RawRegs) -> Self {
        let words = self.words.rebuild(regs);
        Self { words, lanes: self.lanes.rebuild(regs), ..*self }
    }
}

fn in_words(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

impl<'k, A: Float> Packed<'k, A> {
    /// `lanes` rounded to `dtype`, as a store would.
    #[track_caller]
    pub fn round(k: K<'k>, dtype: DType, lanes: Lanes<'k, A>) -> Self {
        let (width, none) = (lanes.len(), Vec::new());
        if in_words(dtype) {
            let words = k.on_behalf(|| pack(k, dtype, &lanes));
            return Self { dtype, width, words, lanes: none.into() };
        }
        Self { dtype, width, words: Vec::new().into(), lanes }
    }

    /// Elements of the 16-bit type `dtype` that lie two to a word, the first in the lower half.
    pub fn of_words(dtype: DType, words: &[U32<'k>]) -> Self {
        Self { dtype, width: 2 * words.len(), words: words.to_vec().into(), lanes: Vec::new().into() }
    }

    /// `lanes` as they are, one to a register.
    pub fn unrounded(lanes: Lanes<'k, A>) -> Self {
        Self { dtype: DType::F64, width: lanes.len(), words: Vec::new().into(), lanes }
    }

    /// The words of 16-bit elements, to compute with both halves at once; `None` for other elements, for a lone one, and
    /// where the target has no such instructions.
    pub fn halves(&self) -> Option<Vec<Halves<'k>>> {
        let exist =
            self.width >= 2 && self.words.iter().next().is_some_and(|w| Halves::exist(w.k(), self.dtype));
        exist.then(|| self.words.iter().map(|word| Halves::from_word(word, self.dtype)).collect())
    }

    /// `width` zeros.
    #[track_caller]
    pub fn zero(k: K<'k>, dtype: DType, width: u32) -> Self {
        let halves = in_words(dtype);
        let (words, lanes) = if halves { (width.div_ceil(2), 0) } else { (0, width) };
        k.on_behalf(|| Self {
            dtype,
            width: width as usize,
            words: (0..words).map(|_| k.lit(0u32)).collect(),
            lanes: (0..lanes).map(|_| k.lit(0.0)).collect(),
        })
    }
}

impl<'k, A: Number> Packed<'k, A> {
    /// The elements.
    #[track_caller]
    pub fn lanes(&self) -> Lanes<'k, A> {
        let Some(first) = self.words.iter().next() else { return self.lanes.clone() };
        first.k().on_behalf(|| {
            let widened = self.words.iter().flat_map(|word| widen(word, self.dtype));
            widened.take(self.width).map(Reg::convert).collect()
        })
    }

    /// The elements, widened once more: `zero` comes from [`K::opaque_zero`]. An assembler that sees the same widening
    /// twice would keep the wide elements in between, and with them twice the registers.
    #[track_caller]
    pub fn lanes_again(&self, zero: U32<'k>) -> Lanes<'k, A> {
        let dtype = self.dtype;
        zero.k().on_behalf(|| match (dtype, self.words.is_empty()) {
            (_, true) => self.lanes.clone(),
            (DType::BF16, _) => {
                let halves = |word: U32<'k>| [0x1044, 0x3244].map(|bytes| word.permute(zero, bytes));
                let wide = self.words.iter().flat_map(halves).take(self.width);
                wide.map(|bits| F32::from_bits(bits).convert()).collect()
            }
            _ => {
                let wide = self.words.iter().flat_map(|word| widen(word ^ zero, dtype));
                wide.take(self.width).map(Reg::convert).collect()
            }
        })
    }
}

impl<'k, S: Readable, E: Element> Ptr<'k, S, E> {
    /// [`load`](Self::load) without widening.
    #[track_caller]
    pub fn load_packed<A: Number>(self, width: u32) -> Packed<'k, A>
    where
        E: Access<A>,
    {
        let dtype = self.dtype();
        let (words, lanes) = if in_words(dtype) {
            (self.k.on_behalf(|| load_halves(self.place(), width)).into(), Vec::new().into())
        } else {
            (Vec::new().into(), self.load(width))
        };
        Packed { dtype, width: width as usize, words, lanes }
    }

    /// [`load_packed`](Self::load_packed) at each of some places, in elements from here.
    #[track_caller]
    pub fn load_each<A: Number>(self, places: &[U64<'k>], width: u32) -> Vec<Packed<'k, A>>
    where
        E: Access<A>,
    {
        let mut all = Vec::with_capacity(places.len());
        for &place in places {
            all.push(self.at(place).load_packed(width));
        }
        all
    }
}

impl<'k, S: Writable, E: Element> Ptr<'k, S, E> {
    /// [`store`](Self::store) of elements that have been rounded to the type in memory.
    #[track_caller]
    pub fn store_packed<A: Number>(self, elements: &Packed<'k, A>)
    where
        E: Access<A>,
    {
        if elements.words.is_empty() {
            self.store(elements.lanes.clone());
        } else {
            self.k.on_behalf(|| store_halves(self.place(), elements.width, &elements.words));
        }
    }
}
