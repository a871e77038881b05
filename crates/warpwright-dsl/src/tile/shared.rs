//! Matrices in shared memory whose rows and columns are both read without bank conflicts.
//!
//! Shared memory serves 128 bytes at once if they lie in different banks: eight chunks of 16 bytes whose numbers modulo 8
//! differ. A [`TileLayout`] places the chunks of its rows so that eight chunks of neighbouring rows at one place of the
//! row, and eight neighbouring chunks of a row, do: by exclusive-or of the chunk's number with the row's where the chunks
//! of a row are a power of two or a multiple of 8, and by rows an odd number of chunks apart elsewhere. Rows of `f64`
//! fragments take two chunks, so pairs of chunks are placed that way there.

use warpwright_ptx::{Address, DType, Inst, MatrixElement, MatrixShape, MatrixTiles, StateSpace};

use super::mma::{Fragment, MatrixA, MatrixB, MmaAtom};
use crate::context::K;
use crate::error::IssueKind;
use crate::mem::{Elem, Ptr, Shared};
use crate::reg::{F64, Source, U32};

/// Bytes of a chunk: one row of the 8 x 8 matrices of `ldmatrix`, the largest access of a lane.
pub(crate) const CHUNK: u32 = 16;
/// Bytes that shared memory serves at once.
const LINE: u32 = 128;

/// Shape and element type of a tile in shared memory, and where its elements lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TileLayout {
    /// Type of the elements.
    pub dtype: DType,
    /// Rows.
    pub rows: u32,
    /// Elements of a row, whose bytes are a multiple of 16.
    pub cols: u32,
}

impl TileLayout {
    /// A tile of `rows` x `cols` elements.
    pub const fn new(dtype: DType, rows: u32, cols: u32) -> Self {
        Self { dtype, rows, cols }
    }

    /// Elements of a chunk of 16 bytes.
    pub const fn chunk_elements(self) -> u32 {
        CHUNK / self.dtype.bytes() as u32
    }

    /// Bytes that stay together.
    const fn unit(self) -> u32 {
        if matches!(self.dtype, DType::F64) { 2 * CHUNK } else { CHUNK }
    }

    /// Units that shared memory serves at once.
    const fn phase(self) -> u32 {
        LINE / self.unit()
    }

    /// Units of a row.
    const fn units(self) -> u32 {
        (self.cols * self.dtype.bytes() as u32).div_ceil(self.unit())
    }

    /// How many values the exclusive-or takes; 1 if rows are apart by an odd number of units instead.
    const fn patterns(self) -> u32 {
        match self.units() {
            units if units.is_multiple_of(self.phase()) => self.phase(),
            units if units.is_power_of_two() => units,
            _ => 1,
        }
    }

    /// Bytes from one row to the next.
    pub const fn row_bytes(self) -> u32 {
        self.unit() * if self.patterns() == 1 { self.units() | 1 } else { self.units() }
    }

    /// Bytes of the tile.
    pub const fn bytes(self) -> u32 {
        self.rows * self.row_bytes()
    }

    /// The pattern that the bytes within `row` are combined with. Rows of less than a line share one, and a pattern.
    fn pattern<'k>(self, row: U32<'k>) -> Option<U32<'k>> {
        let patterns = self.patterns();
        let share = self.phase() / patterns;
        (patterns > 1).then(|| {
            let row = if share == 1 { row } else { row >> share.trailing_zeros() };
            (row & (patterns - 1)) << self.unit().trailing_zeros()
        })
    }

    /// The same of a row that is known.
    const fn constant_pattern(self, row: u32) -> u32 {
        let patterns = self.patterns();
        (row / (self.phase() / patterns)) % patterns * self.unit()
    }

    /// Bytes from the start of the tile to (`row`, chunk of `bytes` / 16).
    #[track_caller]
    pub(crate) fn offset<'k>(self, row: U32<'k>, bytes: U32<'k>) -> U32<'k> {
        let placed = self.pattern(row).map_or(bytes, |pattern| bytes ^ pattern);
        row.mul_add(self.row_bytes(), placed)
    }

    /// Whether rows that lie this far apart have the same pattern, so that moving by them adds a constant.
    pub(crate) const fn repeats_after(self, rows: u32) -> bool {
        self.patterns() == 1 || rows.is_multiple_of(self.phase())
    }
}

/// A tile in the block's shared memory.
#[derive(Clone, Copy, Debug)]
pub struct SharedTile<'k> {
    layout: TileLayout,
    base: U32<'k>,
}

impl<'k> K<'k> {
    /// The tile that starts at `base`, whose address must be a multiple of 16.
    #[track_caller]
    pub fn tile_at(self, base: Ptr<'k, Shared, Elem>, layout: TileLayout) -> SharedTile<'k> {
        if layout.cols == 0 || !(layout.cols * layout.dtype.bytes() as u32).is_multiple_of(CHUNK) {
            self.issue(IssueKind::Constant { what: "a tile's row length", value: u64::from(layout.cols) });
        }
        SharedTile { layout, base: self.on_behalf(|| base.shared_address()) }
    }

    /// The tile that starts at the shared address `base`, a multiple of 16.
    pub fn tile_from(self, base: U32<'k>, layout: TileLayout) -> SharedTile<'k> {
        SharedTile { layout, base }
    }

    /// A tile in static shared memory.
    #[track_caller]
    pub fn shared_tile(self, layout: TileLayout) -> SharedTile<'k> {
        let elements = layout.bytes() / layout.dtype.bytes() as u32;
        self.tile_at(self.shared_elem(layout.dtype, elements), layout)
    }
}

impl<'k> K<'k> {
    /// `N` matrices of 8 x 8 elements of 16 bits, 1, 2 or 4 of them, whose rows lie anywhere in shared memory, 16 bytes each: lane `8 i + j`
    /// gives the address of row `j` of matrix `i`. Of each matrix a lane gets the elements `2 (lane % 4)` and the next one of row `lane / 4`,
    /// or of that column if the matrices are `transposed`. The whole warp is here.
    #[track_caller]
    pub fn matrices_at<const N: usize>(self, address: U32<'k>, transposed: bool) -> [U32<'k>; N] {
        if !matches!(N, 1 | 2 | 4) {
            self.issue(IssueKind::Constant { what: "the matrices of a load", value: N as u64 });
        }
        matrices(self, Address::reg(address.id(), 0), transposed)
    }
}

#[track_caller]
fn matrices<'k, const N: usize>(k: K<'k>, addr: Address, transposed: bool) -> [U32<'k>; N] {
    let dsts: [U32<'k>; N] = std::array::from_fn(|_| k.fresh());
    k.emit(Inst::LdMatrix {
        tiles: MatrixTiles {
            shape: MatrixShape::M8N8,
            count: N as u8,
            transposed,
            element: MatrixElement::B16,
        },
        space: StateSpace::Shared,
        dsts: dsts.iter().map(|r| r.id()).collect(),
        addr,
    });
    dsts
}

/// Which index of an operand is contiguous in memory: runs along the rows of the tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Major {
    /// The common index: A is stored `[m][k]`, B as `[n][k]`.
    K,
    /// The outer index: A is stored `[k][m]`, B as `[k][n]`. Not for [`MmaAtom::Tf32`].
    Mn,
}

impl<'k> SharedTile<'k> {
    /// The tile that starts at an address of shared memory, a multiple of 16.
    pub(crate) fn at_address(layout: TileLayout, base: U32<'k>) -> Self {
        Self { layout, base }
    }

    /// Its shape.
    pub fn layout(self) -> TileLayout {
        self.layout
    }

    /// The address of its first byte.
    pub fn base(self) -> U32<'k> {
        self.base
    }

    /// The tile of the same shape `bytes` further on, a multiple of 16.
    #[track_caller]
    pub fn moved(self, bytes: impl Source<'k, u32>) -> Self {
        Self { base: self.base + bytes, ..self }
    }

    /// A pointer to an element. What is read or written there together must lie within 16 aligned bytes.
    #[track_caller]
    pub fn at(self, row: U32<'k>, col: U32<'k>) -> Ptr<'k, Shared, Elem> {
        let k = self.base.k();
        k.on_behalf(|| {
            let bytes = col << (self.layout.dtype.bytes() as u32).trailing_zeros();
            // The pattern changes the number of the chunk alone.
            Ptr::new(k, (self.layout.offset(row, bytes) + self.base).id(), self.layout.dtype)
        })
    }

    /// The places that lie a constant number of rows and columns from (`row`, `col`). Lanes and constants must have no bits in
    /// common, in the row below 8 and in the column within 128 bytes: `row` below 4 and steps of 4, for example, or `row` a
    /// multiple of 8 and any step below 8.
    #[track_caller]
    pub fn point(self, row: U32<'k>, col: U32<'k>) -> TilePoint<'k> {
        row.k().on_behalf(|| {
            let within = col << (self.layout.dtype.bytes() as u32).trailing_zeros();
            self.point_at(row, within, None)
        })
    }

    /// The point at the byte `within` of `row`, `first` bytes further on.
    fn point_at(self, row: U32<'k>, within: U32<'k>, first: Option<U32<'k>>) -> TilePoint<'k> {
        let layout = self.layout;
        let base = row.mul_add(layout.row_bytes(), self.base);
        match layout.pattern(row) {
            Some(pattern) => {
                let within = within ^ pattern;
                TilePoint { layout, base, within: Some(first.map_or(within, |first| within ^ first)) }
            }
            None => {
                let base = base + within;
                TilePoint { layout, base: first.map_or(base, |first| base + first), within: None }
            }
        }
    }

    /// Reads fragments of A for `atom` from the tile: those of the rows of A from `origin` on, which is the same for the
    /// warp and a multiple of 8. If A is stored along its rows, what is read from one origin must lie within columns of
    /// the tile that begin at a multiple of their number, a power of two.
    #[track_caller]
    pub fn reader_a(self, atom: MmaAtom, major: Major, origin: U32<'k>) -> TileReader<'k, MatrixA> {
        self.reader(atom, major, origin, major == Major::K)
    }

    /// The same for B, with columns of B from `origin` on.
    #[track_caller]
    pub fn reader_b(self, atom: MmaAtom, major: Major, origin: U32<'k>) -> TileReader<'k, MatrixB> {
        self.reader(atom, major, origin, major == Major::Mn)
    }

    /// The lanes of `ldmatrix` name the rows of four 8 x 8 matrices. `down`: the second lies eight rows below the first
    /// and the third and fourth a chunk to the right; otherwise the second lies to the right.
    fn reader<Role>(self, atom: MmaAtom, major: Major, origin: U32<'k>, down: bool) -> TileReader<'k, Role> {
        let (layout, k) = (self.layout, self.base.k());
        if atom.dtype() != layout.dtype || (atom == MmaAtom::Tf32 && major == Major::Mn) {
            k.issue(IssueKind::Access { dtype: layout.dtype, register: warpwright_ptx::ScalarType::B32 });
        }
        k.on_behalf(|| {
            let lane = k.lane_idx();
            let (row, chunk) = match atom {
                // Elements one by one: `group` is the outer index, `quad` the common one.
                MmaAtom::F64 | MmaAtom::F64Deep if major == Major::K => (lane >> 2, lane & 3),
                MmaAtom::F64 | MmaAtom::F64Deep => (lane & 3, lane >> 2),
                _ if down => (lane & 15, lane >> 4),
                _ => ((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1),
            };
            let within =
                if atom.dtype() == DType::F64 { chunk << 3 } else { chunk << CHUNK.trailing_zeros() };
            let (row, first) = match major {
                Major::K => (row + origin, None),
                Major::Mn => (row, Some(origin << (layout.dtype.bytes() as u32).trailing_zeros())),
            };
            let point = self.point_at(row, within, first);
            TileReader { point, atom, major, role: std::marker::PhantomData }
        })
    }
}

/// A lane's place in a [`SharedTile`], from which constant distances cost nothing, or an exclusive-or that is the same in every
/// round of a loop; made by [`SharedTile::point`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a place records instructions but reads nothing"]
pub struct TilePoint<'k> {
    layout: TileLayout,
    /// The address but for what the pattern changes.
    base: U32<'k>,
    /// The bytes within a row, which the pattern changes.
    within: Option<U32<'k>>,
}

impl<'k> TilePoint<'k> {
    /// The same place `bytes` further on: in another stage of a pipeline, say. A multiple of 16.
    #[track_caller]
    pub fn moved(self, bytes: impl Source<'k, u32>) -> Self {
        Self { base: self.base + bytes, ..self }
    }

    /// A pointer to the element `rows` and `cols` from here.
    #[track_caller]
    pub fn at(self, rows: u32, cols: u32) -> Ptr<'k, Shared, Elem> {
        let k = self.base.k();
        k.on_behalf(|| {
            let (base, offset) = self.place(rows, cols * self.layout.dtype.bytes() as u32);
            Ptr::new(k, base.id(), self.layout.dtype).moved_bytes(offset)
        })
    }

    /// A register and what is added to it.
    fn place(&self, row: u32, col: u32) -> (U32<'k>, i64) {
        let down = row * self.layout.row_bytes();
        let Some(within) = self.within else { return (self.base, i64::from(down + col)) };
        // What the pattern can change is combined with the lane's, the rest added.
        let patterned = self.layout.unit() * self.layout.patterns();
        let within = match (col % patterned) ^ self.layout.constant_pattern(row) {
            0 => within,
            changed => within ^ changed,
        };
        (within + self.base, i64::from(down + col / patterned * patterned))
    }
}

/// Reads operand fragments of one warp from a [`SharedTile`]; made by [`SharedTile::reader_a`] and
/// [`reader_b`](SharedTile::reader_b). Everything that depends on the lane is computed when it is made.
#[must_use = "a reader records instructions but reads nothing"]
pub struct TileReader<'k, Role> {
    point: TilePoint<'k>,
    atom: MmaAtom,
    major: Major,
    role: std::marker::PhantomData<fn() -> Role>,
}

impl<Role> Clone for TileReader<'_, Role> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Role> Copy for TileReader<'_, Role> {}

impl<Role> std::fmt::Debug for TileReader<'_, Role> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {:?}, {:?}-major", self.atom, self.point.layout, self.major)
    }
}

impl<'k, Role> TileReader<'k, Role> {
    /// The product that it reads for.
    pub fn atom(&self) -> MmaAtom {
        self.atom
    }

    /// The same place `bytes` further on: in another stage of a pipeline, say. A multiple of 16.
    #[track_caller]
    pub fn moved(self, bytes: impl Source<'k, u32>) -> Self {
        Self { point: self.point.moved(bytes), ..self }
    }

    /// The lane's address at (outer index, common index) past the origin; `outer` a multiple of 8, `depth` of the
    /// atom's k.
    fn address(&self, outer: u32, depth: u32) -> Address {
        let bytes = self.point.layout.dtype.bytes() as u32;
        let (row, col) = match self.major {
            Major::K => (outer, depth * bytes),
            Major::Mn => (depth, outer * bytes),
        };
        let (base, offset) = self.point.place(row, col);
        Address::reg(base.id(), offset)
    }

    #[track_caller]
    fn matrices(&self, outer: u32, depth: u32, transposed: bool) -> [U32<'k>; 4] {
        matrices(self.point.base.k(), self.address(outer, depth), transposed)
    }

    #[track_caller]
    fn double(&self, outer: u32, depth: u32) -> F64<'k> {
        let k = self.point.base.k();
        let dst = k.fresh::<f64>();
        k.emit(Inst::Ld {
            space: StateSpace::Shared,
            ty: warpwright_ptx::ScalarType::F64,
            ordering: warpwright_ptx::Ordering::WEAK,
            hints: warpwright_ptx::CacheHints::NONE,
            non_coherent: false,
            dsts: vec![Some(dst.id())],
            addr: self.address(outer, depth),
        });
        dst
    }
}

impl<'k> TileReader<'k, MatrixA> {
    /// The fragment of A at row `m` past the origin and common index `depth`; multiples of the atom's m and k. The whole
    /// warp is here.
    #[track_caller]
    pub fn load(&self, m: u32, depth: u32) -> Fragment<'k, MatrixA> {
        let k = self.point.base.k();
        k.on_behalf(|| match self.atom {
            MmaAtom::F64 => Fragment::a(k, self.atom, &[self.double(m, depth)]),
            MmaAtom::F64Deep => {
                let places = [(m, depth), (m + 8, depth), (m, depth + 4), (m + 8, depth + 4)];
                Fragment::a(k, self.atom, &places.map(|(m, depth)| self.double(m, depth)))
            }
            _ => Fragment::a(k, self.atom, &self.matrices(m, depth, self.major == Major::Mn)),
        })
    }
}

impl<'k> TileReader<'k, MatrixB> {
    /// The fragments of B at columns `n` and `n + 8` past the origin and common index `depth`; `n` is a multiple of 16,
    /// `depth` of the atom's k. The whole warp is here.
    #[track_caller]
    pub fn load_pair(&self, n: u32, depth: u32) -> [Fragment<'k, MatrixB>; 2] {
        let k = self.point.base.k();
        k.on_behalf(|| match self.atom {
            MmaAtom::F64 => [n, n + 8].map(|n| Fragment::b(k, self.atom, &[self.double(n, depth)])),
            MmaAtom::F64Deep => [n, n + 8].map(|n| {
                let words = [depth, depth + 4].map(|depth| self.double(n, depth));
                Fragment::b(k, self.atom, &words)
            }),
            _ => {
                let [a, b, c, d] = self.matrices(n, depth, self.major == Major::Mn);
                [[a, b], [c, d]].map(|words| Fragment::b(k, self.atom, &words))
            }
        })
    }
}
