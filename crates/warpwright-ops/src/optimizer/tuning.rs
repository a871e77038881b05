//! How lists of tensors are cut into launches and blocks.
//!
//! A step is bound by bytes: a thread has two vectors of each tensor in flight, and blocks end early, so that none is left alone at the end.

/// Tensors of a launch: their addresses are arguments, of which a launch takes 4 KB.
pub(super) const LIST: usize = 48;
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Elements of a vector.
pub(super) const WIDTH: u32 = 4;
/// Vectors of a thread.
pub(super) const VECTORS: u32 = 2;
/// Elements of a block.
pub(super) const CHUNK: u32 = THREADS * WIDTH * VECTORS;
/// Blocks of a launch.
const MAX_BLOCKS: u64 = (1 << 31) - 1;

/// A tensor of a launch, and its first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) number: usize,
    pub(super) start: u32,
}

/// The tensors of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct List {
    pub(super) items: Vec<Item>,
    pub(super) blocks: u32,
}

impl List {
    /// The number of the tensor in place `i`; that of any in places behind the last, where no block looks for one.
    pub(super) fn number(&self, i: usize) -> usize {
        self.items.get(i).map_or(0, |item| item.number)
    }

    /// The first block of the tensor in place `i`; behind the last, of none.
    pub(super) fn start(&self, i: usize) -> u32 {
        self.items.get(i).map_or(u32::MAX, |item| item.start)
    }
}

/// The launches for tensors of these lengths, in blocks of `chunk` elements; `None` if one alone has too many blocks.
pub(super) fn lists(lens: &[usize], chunk: u32) -> Option<Vec<List>> {
    let mut all: Vec<List> = Vec::new();
    for (number, &len) in lens.iter().enumerate().filter(|(_, len)| **len > 0) {
        let blocks = u32::try_from((len as u64).div_ceil(chunk.into())).ok()?;
        let fits =
            |list: &List| list.items.len() < LIST && u64::from(list.blocks) + u64::from(blocks) <= MAX_BLOCKS;
        if u64::from(blocks) > MAX_BLOCKS {
            return None;
        }
        match all.last_mut().filter(|list| fits(list)) {
            Some(list) => {
                list.items.push(Item { number, start: list.blocks });
                list.blocks += blocks;
            }
            None => all.push(List { items: vec![Item { number, start: 0 }], blocks }),
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_tensors_are_left_out_and_long_lists_are_cut() {
        let chunk = CHUNK as usize;
        let found = lists(&[0, 1, chunk, 0, chunk + 1], CHUNK).unwrap();
        let items = [(1, 0), (2, 1), (4, 2)].map(|(number, start)| Item { number, start });
        assert_eq!(found, [List { items: items.to_vec(), blocks: 4 }]);
        let found = lists(&[5; 100], CHUNK).unwrap();
        assert_eq!(found.iter().map(|list| list.items.len()).collect::<Vec<_>>(), [48, 48, 4]);
        assert_eq!(found[2].items[3], Item { number: 99, start: 3 });
        let half = chunk << 30;
        assert_eq!(lists(&[half, half - chunk, half], CHUNK).unwrap().len(), 2);
        assert_eq!(lists(&[1, half * 2], CHUNK), None);
        assert!(lists(&[], CHUNK).unwrap().is_empty());
    }
}
