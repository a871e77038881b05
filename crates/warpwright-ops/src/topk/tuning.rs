//! Which kernel runs for which shape, and how a search is cut into passes.

use warpwright_dsl::{VECTOR_BYTES, WARP};
use warpwright_ptx::DType;

/// Who searches a row, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// A warp, whose lanes sort their elements and give up the first of them one after the other.
    Warp,
    /// A block, whose threads form groups: the `k`-th best of the groups' best elements is a bound that few elements reach.
    Block {
        /// Groups, at least twice as many as elements are wanted: shared memory has room for what their bound leaves.
        groups: u32,
    },
}

/// A layout with the sizes of its accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Who searches.
    pub layout: Layout,
    /// Elements of a thread, a power of two.
    pub items: u32,
    /// Elements that a thread loads at once.
    pub width: u32,
}

impl Config {
    /// The part of a kernel's name.
    pub(super) fn name(self) -> String {
        let Self { layout, items, width } = self;
        match layout {
            Layout::Warp => format!("warp{items}_x{width}"),
            Layout::Block { groups } => format!("block{items}_of{groups}_x{width}"),
        }
    }

    /// Threads that search together.
    pub const fn team(self) -> u32 {
        match self.layout {
            Layout::Warp => WARP,
            Layout::Block { .. } => THREADS,
        }
    }

    /// Elements that they hold.
    pub const fn room(self) -> usize {
        self.team() as usize * self.items as usize
    }

    /// The configuration for rows of `n` elements; `vector` is the number of them that may be loaded at once. Nothing for more
    /// than [`MOST`] of a row that no warp holds.
    fn choose(dtype: DType, n: usize, k: usize, vector: u32) -> Option<Self> {
        let of_warp = (n.div_ceil(WARP as usize)).next_power_of_two() as u32;
        let (layout, items) = match (n, k) {
            (..=SHORT, _) => (Layout::Warp, of_warp),
            (_, ..=MOST) => {
                let items = if n <= (THREADS * FEW_ITEMS) as usize { FEW_ITEMS } else { most_items(dtype) };
                (Layout::Block { groups: groups(k) }, items)
            }
            (..=LONGEST_OF_WARP, _) => (Layout::Warp, of_warp),
            _ => return None,
        };
        let width = vector.min(items);
        let width = if n.is_multiple_of(width as usize) { width } else { 1 };
        Some(Self { layout, items, width })
    }
}

/// A search in `rows` rows of `n` elements, or in parts of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    /// Elements of a row.
    pub n: usize,
    /// The kernel, whose teams take as many elements as they hold.
    pub config: Config,
}

impl Pass {
    /// Parts of a row.
    pub const fn parts(&self) -> usize {
        self.n.div_ceil(self.config.room())
    }
}

/// The passes of a search for `k` of `n` elements: the first over the elements, the others over what the parts of the pass before
/// found. `vectors` says whether tensors begin at vectors. Nothing where there is no kernel for as many.
pub fn passes(dtype: DType, n: usize, k: usize, vectors: bool) -> Option<Vec<Pass>> {
    let (mut all, mut n) = (Vec::new(), n);
    loop {
        let vector = if vectors && all.is_empty() { vector(dtype) } else { 1 };
        let pass = Pass { n, config: Config::choose(dtype, n, k, vector)? };
        all.push(pass);
        match pass.parts() {
            ..=1 => return Some(all),
            parts => n = parts * k,
        }
    }
}

/// Where tensors begin that are read in vectors: multiples of so many bytes.
pub(super) const ALIGNMENT: u64 = VECTOR_BYTES as u64;
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Elements of rows that a warp takes in any case, and where more are wanted than a block finds.
const SHORT: usize = 256;
const LONGEST_OF_WARP: usize = 1024;
/// The most elements that a block finds.
pub const MOST: usize = 128;
/// Elements of a thread of blocks with short rows.
const FEW_ITEMS: u32 = 4;
/// Vectors of a thread that writes gradients.
pub(super) const GRADIENT_VECTORS: u32 = 4;

/// Elements of a thread of blocks with long rows.
const fn most_items(dtype: DType) -> u32 {
    if dtype.bytes() == 8 { 16 } else { 32 }
}

/// Groups of a block: twice as many as elements are wanted have a better bound.
const fn groups(k: usize) -> u32 {
    if k <= 64 { 128 } else { 256 }
}

/// Elements of a vector.
pub(super) const fn vector(dtype: DType) -> u32 {
    VECTOR_BYTES / dtype.bytes() as u32
}

/// Every configuration for elements of `dtype`: of a first pass, and of others.
pub fn all(dtype: DType) -> [Vec<Config>; 2] {
    let of = |items: &[u32], layouts: &[Layout], widths: &[u32]| -> Vec<Config> {
        let mut all = Vec::new();
        for (&items, &layout) in
            items.iter().flat_map(|items| layouts.iter().map(move |layout| (items, layout)))
        {
            for &width in widths {
                let config = Config { layout, items, width: width.min(items) };
                if !all.contains(&config) {
                    all.push(config);
                }
            }
        }
        all
    };
    let blocks = [Layout::Block { groups: 128 }, Layout::Block { groups: 256 }];
    let lengths = [FEW_ITEMS, most_items(dtype)];
    let widths = [vector(dtype), 1];
    let mut first = of(&[1, 2, 4, 8, 16, 32], &[Layout::Warp], &widths);
    first.extend(of(&lengths, &blocks, &widths));
    let mut others = of(&[1, 2, 4, 8], &[Layout::Warp], &[1]);
    others.extend(of(&lengths, &blocks, &[1]));
    [first, others]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_configuration_that_is_chosen_is_listed() {
        for dtype in DType::FLOATS {
            let all = all(dtype).map(|all| all.into_iter().collect::<HashSet<_>>());
            let mut chosen = [HashSet::new(), HashSet::new()];
            for n in [
                1,
                31,
                33,
                40,
                64,
                100,
                128,
                256,
                257,
                264,
                1000,
                1001,
                1024,
                1025,
                5000,
                8192,
                9001,
                20_000,
                128_256,
                1 << 20,
                1 << 28,
            ] {
                for k in [1, 2, 8, 64, 65, 128, 129, 1000] {
                    for vectors in [false, true] {
                        for (number, pass) in
                            passes(dtype, n, k.min(n), vectors).into_iter().flatten().enumerate()
                        {
                            let kind = usize::from(number > 0);
                            assert!(all[kind].contains(&pass.config), "{pass:?}");
                            assert!(
                                pass.config.width <= 1 || pass.n.is_multiple_of(pass.config.width as usize)
                            );
                            chosen[kind].insert(pass.config);
                        }
                    }
                }
            }
            assert_eq!(chosen[0], all[0], "{dtype}");
            assert!(chosen[1].is_subset(&all[1]), "{dtype}");
        }
    }

    #[test]
    fn passes_end_and_more_than_a_block_finds_is_refused() {
        let parts =
            |n, k| passes(DType::BF16, n, k, true).map(|all| all.iter().map(Pass::parts).collect::<Vec<_>>());
        assert_eq!(parts(128_256, 50), Some(vec![16, 1]));
        assert_eq!(parts(1 << 28, 128), Some(vec![32768, 512, 8, 1]));
        assert_eq!(parts(1024, 1000), Some(vec![1]));
        assert_eq!(parts(1025, 129), None);
    }
}
