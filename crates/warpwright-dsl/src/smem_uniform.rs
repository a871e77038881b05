//! Values that are the same for all threads of a block, in shared memory instead of registers.

use crate::context::K;
use crate::mem::{Access, FixedElement, Ptr, Shared};
use crate::reg::{Number, Reg};

/// Numbers that are the same in all threads of a block; made by [`K::smem_uniform`].
#[derive(Clone, Copy, Debug)]
pub struct SmemUniform<'k, T: FixedElement, const N: usize> {
    at: Ptr<'k, Shared, T>,
}

impl<'k> K<'k> {
    /// Keeps `N` numbers, a power of two, that are the same in all threads of the block in shared memory: where registers are scarce,
    /// they take none between the places that [get](SmemUniform::get) them. The threads meet at a [`barrier`](Self::barrier) before the
    /// first of these, and come here only once. The assembler cannot know what memory holds behind a barrier, so neither does it keep
    /// what is computed from them.
    #[track_caller]
    pub fn smem_uniform<T, const N: usize>(self, numbers: [Reg<'k, T>; N]) -> SmemUniform<'k, T, N>
    where
        T: Number + FixedElement + Access<T>,
    {
        self.on_behalf(|| {
            let at = self.shared::<T>(N as u32);
            self.if_(self.thread_idx().eq(0), || at.store(numbers.to_vec()));
            SmemUniform { at }
        })
    }
}

impl<'k, T: Number + FixedElement + Access<T>, const N: usize> SmemUniform<'k, T, N> {
    /// The numbers, in new registers.
    #[track_caller]
    pub fn get(self) -> [Reg<'k, T>; N] {
        let numbers = self.at.load::<T>(N as u32);
        std::array::from_fn(|i| numbers[i])
    }
}
