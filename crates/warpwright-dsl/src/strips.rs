//! Strips: consecutive cells of a row of an image that a thread loads together, with those beside them.

use crate::cells::Image;
use crate::context::K;
use crate::float::Float;
use crate::lanes::Lanes;
use crate::mem::{Access, Element, Fill, Ptr, Readable};
use crate::reg::{I32, Number, Pred, Reg, Scalar};

/// How the pixels of a row lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pixels {
    /// A pixel is one element, beside the next one.
    Elements,
    /// A thread has a vector of so many elements of each pixel.
    Vectors(u32),
}

impl Pixels {
    /// Elements of a thread's vector of a pixel.
    pub const fn width(self) -> u32 {
        match self {
            Self::Elements => 1,
            Self::Vectors(width) => width,
        }
    }
}

/// The values of cells beyond the ends of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// This.
    Fill(Fill),
    /// The first or the last cell.
    Nearest,
}

/// The cells of a strip. Rows consist of whole runs of `cells` of them, at one of which a thread's begin; with [`Pixels::Elements`] their
/// number is a power of two, and rows begin at multiples of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripShape {
    /// How pixels lie.
    pub pixels: Pixels,
    /// Cells before those of the thread.
    pub before: u32,
    /// Cells of the thread, all of which the row has.
    pub cells: u32,
    /// Cells behind them.
    pub behind: u32,
    /// The values of those that the row does not have.
    pub edge: Edge,
}

/// Part of a strip: one load.
#[derive(Clone, Copy, Debug)]
struct Part<'k> {
    /// The vectors of the row before it.
    at: I32<'k>,
    /// Elements behind those.
    offset: u32,
    /// Elements of the load.
    width: u32,
    /// Which of them are cells.
    cells: [u32; 2],
    /// Whether the row has it; `None` if it must.
    there: Option<Pred<'k>>,
}

/// The strips of a thread: the same columns of any rows.
#[derive(Clone, Debug)]
pub struct Strips<'k> {
    shape: StripShape,
    image: Image<'k>,
    parts: Vec<Part<'k>>,
}

impl<'k> Strips<'k> {
    /// Strips of rows of `columns` cells, whose own cells begin at `column`.
    #[track_caller]
    pub fn new(image: Image<'k>, shape: StripShape, column: I32<'k>, columns: I32<'k>) -> Self {
        let k = column.k();
        let parts = k.on_behalf(|| {
            let lead =
                if beside_is_a_vector(shape, shape.before) { shape.before.next_power_of_two() } else { 0 };
            let own = match (shape.pixels, lead) {
                (Pixels::Elements, 0) => column,
                (Pixels::Elements, lead) => column - lead.cast_signed(),
                (Pixels::Vectors(_), _) => column * image.pixel_pitch(),
            };
            let mut parts = beside(shape, [column, columns], (own, lead), image, true);
            parts.extend(match shape.pixels {
                Pixels::Elements => {
                    vec![Part {
                        at: own,
                        offset: lead,
                        width: shape.cells,
                        cells: [0, shape.cells],
                        there: None,
                    }]
                }
                Pixels::Vectors(width) => {
                    let one = |i: u32| Part {
                        at: if i == 0 { own } else { (column + i.cast_signed()) * image.pixel_pitch() },
                        offset: 0,
                        width,
                        cells: [0, 1],
                        there: None,
                    };
                    (0..shape.cells).map(one).collect()
                }
            });
            parts.extend(beside(shape, [column, columns], (own, lead), image, false));
            parts
        });
        Self { shape, image, parts }
    }

    /// The cells of row `row` of the image that `x` is the thread's first element of, or `fill` where `there` does not hold.
    #[track_caller]
    pub fn load<S: Readable, E: Element + Access<A>, A: Number>(
        &self,
        x: Ptr<'k, S, E>,
        [depth, row]: [I32<'k>; 2],
        there: Option<(Pred<'k>, Fill)>,
    ) -> Vec<Lanes<'k, A>> {
        row.k().on_behalf(|| self.cells(x, self.image.row_at(depth, row), there))
    }

    fn cells<S: Readable, E: Element + Access<A>, A: Number>(
        &self,
        x: Ptr<'k, S, E>,
        row: I32<'k>,
        there: Option<(Pred<'k>, Fill)>,
    ) -> Vec<Lanes<'k, A>> {
        let StripShape { pixels, before, cells, edge, .. } = self.shape;
        let mut last_at = None;
        let mut loaded: Vec<(Lanes<'k, A>, Option<Pred<'k>>)> = Vec::new();
        for part in &self.parts {
            // Parts that are a constant apart have one address.
            let base = match last_at {
                Some((at, base)) if at == part.at.id() => base,
                _ => x.at((row + part.at).mul_wide(pixels.width().cast_signed()).to_u64()),
            };
            last_at = Some((part.at.id(), base));
            let place = base.at(u64::from(part.offset));
            let of_fill = match (edge, part.there) {
                (Edge::Fill(fill), Some(part)) => Some((part, fill)),
                (Edge::Nearest, Some(part)) => Some((part, Fill::Zero)),
                (_, None) => None,
            };
            let guard = match (of_fill, there) {
                (Some((part, fill)), Some((row, _))) => Some((part & row, fill)),
                (part, row) => part.or(row),
            };
            let place = guard.map_or(place, |(p, fill)| place.only_where(p, fill));
            let lanes = place.load_packed::<A>(part.width).lanes();
            if pixels != Pixels::Elements {
                loaded.push((lanes, None));
                continue;
            }
            let [from, to] = part.cells.map(|i| i as usize);
            let chosen = part.there.filter(|_| edge == Edge::Nearest);
            loaded.extend(lanes.as_slice()[from..to].iter().map(|lane| (Lanes::from(*lane), chosen)));
        }
        let ends = [before as usize, (before + cells) as usize - 1];
        let [first, last] = ends.map(|i| loaded[i].0.clone());
        let nearest = |(i, (cell, there)): (usize, (Lanes<'k, A>, Option<Pred<'k>>))| {
            let end = if i < before as usize { &first } else { &last };
            there.map_or(cell.clone(), |there| cell.zip(end.clone(), |cell, end| there.select(cell, end)))
        };
        loaded.into_iter().enumerate().map(nearest).collect()
    }
}

/// Whether `count` cells beside those of the thread are one vector, which a row has or has not.
fn beside_is_a_vector(shape: StripShape, count: u32) -> bool {
    shape.pixels == Pixels::Elements && count > 0 && count.next_power_of_two() <= shape.cells
}

/// The parts of a strip before its own cells, or behind them.
fn beside<'k>(
    shape: StripShape,
    [column, columns]: [I32<'k>; 2],
    (own, lead): (I32<'k>, u32),
    image: Image<'k>,
    before: bool,
) -> Vec<Part<'k>> {
    let StripShape { pixels, cells, edge, .. } = shape;
    let count = if before { shape.before } else { shape.behind };
    if count == 0 {
        return Vec::new();
    }
    let first = if before { -count.cast_signed() } else { cells.cast_signed() };
    let width = count.next_power_of_two();
    if beside_is_a_vector(shape, count) {
        let (offset, used, there) = match before {
            true => (0, [width - count, width], column.gt(0)),
            false => (lead + cells, [0, count], (column + first).lt(columns)),
        };
        return vec![Part { at: own, offset, width, cells: used, there: Some(there) }];
    }
    // A row has all cells of a run, or none.
    let (run, cells) = (|i: i32| i.div_euclid(cells.cast_signed()), first..first + count.cast_signed());
    let runs: Vec<(i32, Pred<'k>)> = match edge {
        Edge::Nearest => Vec::new(),
        Edge::Fill(_) => {
            let mut runs: Vec<i32> = cells.clone().map(run).collect();
            runs.dedup();
            let there = |run: i32| {
                let at = column + run * shape.cells.cast_signed();
                (run, if before { at.ge(0) } else { at.lt(columns) })
            };
            runs.into_iter().map(there).collect()
        }
    };
    let one = |i: i32| {
        let at = column + i;
        let at = match edge {
            Edge::Nearest if before => at.max(0),
            Edge::Nearest => at.min(columns - 1),
            Edge::Fill(_) => at,
        };
        let there = runs.iter().find(|(number, _)| *number == run(i)).map(|(_, there)| *there);
        let at = if pixels == Pixels::Elements { at } else { at * image.pixel_pitch() };
        Part { at, offset: 0, width: pixels.width(), cells: [0, 1], there }
    };
    cells.map(one).collect()
}

/// A factor of a cell of a strip.
#[derive(Clone, Copy, Debug)]
pub enum Factor<'k, A: Scalar> {
    /// Known while recording.
    Fixed(f64),
    /// In a register.
    Of(Reg<'k, A>),
}

impl<'k, A: Float> Factor<'k, A> {
    /// `sum` and the cell times the factor; that alone if there is no sum yet.
    #[track_caller]
    pub fn add(self, k: K<'k>, cell: &Lanes<'k, A>, sum: Option<Lanes<'k, A>>) -> Lanes<'k, A> {
        k.on_behalf(|| match (self, sum) {
            (Self::Fixed(1.0), None) => cell.clone(),
            (Self::Fixed(1.0), Some(sum)) => sum + cell,
            (Self::Fixed(factor), None) => cell * factor,
            (Self::Fixed(factor), Some(sum)) => cell.mul_add(factor, sum),
            (Self::Of(factor), None) => cell * factor,
            (Self::Of(factor), Some(sum)) => cell.mul_add(factor, sum),
        })
    }
}
