//! Which probabilities are dropped. The pair of the query whose `lse` has the number `row` and of key `j` is the element
//! `2^28 row + j` of [`Dropout`](crate::Dropout), so a draw serves four neighbouring keys, and every kernel finds the same ones
//! whatever its tiles.
//!
//! The four keys of a draw lie in several lanes of a warp. These lanes share the draws of a tile out, and tell each other what they
//! found, a bit for each pair.

use warpwright_dsl::SmemUniform;
use warpwright_dsl::prelude::*;

use super::engine::Place;

/// Base-2 logarithm of the distance from the draws of one query to those of the next.
pub(in crate::attention) const DRAWS: u32 = 26;
/// Bits of a word that a lane has found: four for each draw.
const WORD: usize = 32;
const KEYS: usize = 4;

/// Which of a block's rows and columns are keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::attention) enum Keys {
    Columns,
    Rows,
}

/// The lanes that hold the keys of a draw: `4 / lanes` neighbouring ones each.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct DrawLanes {
    pub(in crate::attention) lanes: u32,
    /// Lanes from one to the next.
    pub(in crate::attention) step: u32,
}

/// Seed and offset of a launch.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) enum Seeds<'k> {
    Known(Philox<'k>),
    /// In shared memory: the state of Philox takes twenty registers, which are free between the tiles.
    Shared(SmemUniform<'k, u64, 2>),
}

impl<'k> Seeds<'k> {
    fn philox(self, k: K<'k>) -> Philox<'k> {
        match self {
            Self::Known(philox) => philox,
            Self::Shared(shared) => {
                let [seed, offset] = shared.get();
                Philox::new(k, seed, offset)
            }
        }
    }
}

/// The seeds of a launch's draws, and the head that they are for.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Draws<'k> {
    pub(in crate::attention) seeds: Seeds<'k>,
    pub(in crate::attention) threshold: U32<'k>,
    /// The number of the head's first query.
    pub(in crate::attention) first_row: U64<'k>,
}

/// Which pairs of a tile are kept.
#[derive(Clone, Debug)]
pub(in crate::attention) struct Kept<'k> {
    /// The words of each lane of the team, this lane's bits lowest.
    found: Vec<Vec<U32<'k>>>,
    /// Draws that the lane made for each slot.
    of_slot: usize,
    /// Neighbouring keys in a slot.
    together: usize,
}

impl<'k> Draws<'k> {
    /// The pairs of the tile at `place`; `pair` gives query and key of a row and a column of it.
    pub(in crate::attention) fn tile(
        &self,
        k: K<'k>,
        place: &Place<'k>,
        (keys, team, row_by_row): (Keys, DrawLanes, bool),
        pair: impl Fn(I32<'k>, I32<'k>) -> (I32<'k>, I32<'k>),
    ) -> Kept<'k> {
        let together = if keys == Keys::Columns { KEYS / team.lanes as usize } else { 1 };
        let firsts: Vec<u32> = place.columns.iter().copied().step_by(together).collect();
        // Too few columns to share out are drawn by every lane.
        let lanes = if firsts.len().is_multiple_of(team.lanes as usize) { team.lanes } else { 1 };
        let member = (k.lane_idx() >> team.step.trailing_zeros()) & (team.lanes - 1);
        // How far the columns lie from the first of the team that this lane draws: the same for every draw.
        let ahead = firsts[..lanes as usize].iter().zip(0u32..).skip(1);
        let ahead = ahead
            .fold(k.lit(0u32), |found, (column, number)| member.eq(number).select(column - firsts[0], found));
        let own: Vec<u32> = firsts.iter().copied().step_by(lanes as usize).collect();
        let philox = self.seeds.philox(k);
        let draw = |row: U32<'k>, column: u32, shift: u32| {
            let column = (place.first + ahead + column).to_i32();
            let (query, key) = pair(row.to_i32(), column);
            self.bits(philox, query, key, shift)
        };
        let words = if row_by_row && place.rows.len() > 1 && own.len() * KEYS <= WORD {
            Self::in_turn(k, place, &own, draw)
        } else {
            Self::at_once(place, &own, draw)
        };
        let first = k.lane_idx() & !(team.step * (team.lanes - 1));
        let lowest = member * together as u32;
        let found = (0..lanes).map(|other| {
            let of = |word: &U32<'k>| match lanes {
                1 => *word >> lowest,
                _ => k.from_lane(first + other * team.step, word) >> lowest,
            };
            words.iter().map(of).collect()
        });
        Kept { found: found.collect(), of_slot: own.len(), together }
    }

    /// The bits of all draws that a lane makes, which are of `columns` of each slot: `draw` gives those of a slot's row and a column
    /// from a place in a word on.
    fn at_once(
        place: &Place<'k>,
        columns: &[u32],
        draw: impl Fn(U32<'k>, u32, u32) -> U32<'k>,
    ) -> Vec<U32<'k>> {
        let mut words: Vec<U32<'k>> = Vec::new();
        let all = place.rows.iter().flat_map(|row| columns.iter().map(move |column| (*row, *column)));
        for (number, (row, column)) in all.enumerate() {
            let shift = (number % (WORD / KEYS) * KEYS) as u32;
            let bits = draw(row, column, shift);
            match words.last_mut().filter(|_| shift > 0) {
                Some(word) => *word = *word | bits,
                None => words.push(bits),
            }
        }
        words
    }

    /// The same in a loop over the slots, so that registers for one are enough.
    fn in_turn(
        k: K<'k>,
        place: &Place<'k>,
        columns: &[u32],
        draw: impl Fn(U32<'k>, u32, u32) -> U32<'k>,
    ) -> Vec<U32<'k>> {
        let (word, of_slot) = (WORD as u32, (columns.len() * KEYS) as u32);
        let all = of_slot * place.rows.len() as u32;
        let words: Vec<_> = (0..all.div_ceil(word)).map(|_| k.lit(0u32)).collect();
        let slots = k.range(0u32, place.rows.len() as u32, 1u32);
        let (words, _) = k.fold(slots, (words, place.rows.clone()), |_, (mut words, mut rows)| {
            let row = rows.remove(0);
            rows.push(row);
            let bits =
                columns.iter().zip((0u32..).step_by(KEYS)).map(|(column, shift)| draw(row, *column, shift));
            words.extend(bits.reduce(|a, b| a | b));
            // Those of the slots before move down.
            let down = |pair: &[U32<'k>]| match of_slot < word {
                true => (pair[0] >> of_slot) | (pair[1] << (word - of_slot)),
                false => pair[1],
            };
            (words.windows(2).map(down).collect(), rows)
        });
        words.into_iter().map(|w| if all < word { w >> (word - all) } else { w }).collect()
    }

    /// A bit for each of the four keys around `key`, from `shift` on: whether it is kept.
    fn bits(&self, philox: Philox<'k>, query: I32<'k>, key: I32<'k>, shift: u32) -> U32<'k> {
        let row = self.first_row + query.to_u64();
        let words = philox.draw((row << DRAWS) + (key.to_u32() >> 2).to_u64());
        let of = |number: usize| {
            let kept = words[number].ge(self.threshold);
            kept.select(1u32 << (shift + number as u32), 0u32)
        };
        (of(0) | of(1)) | (of(2) | of(3))
    }
}

impl<'k> Kept<'k> {
    fn at(&self, slot: usize, column: usize) -> Pred<'k> {
        let (draw, key) = (column / self.together, column % self.together);
        let lanes = self.found.len();
        let number = slot * self.of_slot + draw / lanes;
        let bit = number % (WORD / KEYS) * KEYS + key;
        (self.found[draw % lanes][number / (WORD / KEYS)] & (1u32 << bit)).ne(0)
    }

    /// The values of kept pairs, 0 for the others.
    pub(in crate::attention) fn of<A: Accumulate>(&self, values: &RegTile<'k, A>) -> RegTile<'k, A> {
        values.map(|row, column, value| self.at(row, column).select(value, 0.0))
    }
}
