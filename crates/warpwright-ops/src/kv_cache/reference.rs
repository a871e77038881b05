//! Appending to a cache in plain f64 Rust: the oracle that kernels are held against.

/// Where the keys and values of a sequence lie.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// Keys of a sequence that have a place.
    pub capacity: usize,
    /// Pages that exist, and the rows of each, with the pages of each sequence; without, a sequence is a page.
    pub pages: Option<(usize, usize, &'a [i64])>,
}

/// The position of step `step` of `steps` new ones of a sequence that has `length` keys with them; negative is before its first key.
pub fn position(length: i64, steps: usize, step: usize) -> i64 {
    length - steps as i64 + step as i64
}

/// Page (or sequence) and row of a position of the sequence `batch`, if it has a place.
pub fn place(places: Places<'_>, batch: usize, position: i64) -> Option<[usize; 2]> {
    let row = usize::try_from(position).ok().filter(|row| *row < places.capacity)?;
    let Some((count, rows, table)) = places.pages else { return Some([batch, row]) };
    let number = table[batch * (places.capacity / rows) + row / rows];
    let page = usize::try_from(number).ok().filter(|page| *page < count)?;
    Some([page, row % rows])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_new_token_is_the_last_key() {
        assert_eq!((position(9, 3, 0), position(9, 3, 2)), (6, 8));
        assert_eq!((position(2, 3, 0), position(0, 1, 0)), (-1, -1));
    }

    #[test]
    fn tokens_without_a_place_have_none() {
        let whole = Places { capacity: 8, pages: None };
        assert_eq!(place(whole, 2, 7), Some([2, 7]));
        assert_eq!([-1, 8].map(|position| place(whole, 2, position)), [None, None]);
        let paged = Places { capacity: 32, pages: Some((3, 16, &[2, 0, -1, 3])) };
        assert_eq!([0, 17].map(|position| place(paged, 0, position)), [Some([2, 0]), Some([0, 1])]);
        assert_eq!([0, 17, 32].map(|position| place(paged, 1, position)), [None; 3]);
    }
}
