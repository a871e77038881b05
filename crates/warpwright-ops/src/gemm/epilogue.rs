//! The epilogue of a tile: sums become `activation(alpha sum + beta c + bias)`, stored whatever the alignment. In a kernel with a factor of
//! each column that is in the place of `alpha`.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{VECTOR_BYTES, kernel_args};

use crate::activation::{Activation, evaluate};

/// The activations that an epilogue can apply, in the order of their numbers in a launch; 0 is none.
pub(crate) const ACTIVATIONS: [Activation; 6] = [
    Activation::Relu,
    Activation::GeluErf,
    Activation::GeluTanh,
    Activation::Silu,
    Activation::Sigmoid,
    Activation::Tanh,
];

/// The number of an activation in a launch; `None` if an epilogue cannot apply it.
pub(crate) fn code(activation: Option<Activation>) -> Option<u32> {
    let Some(activation) = activation else { return Some(0) };
    let at = ACTIVATIONS.iter().position(|known| *known == activation)?;
    u32::try_from(at + 1).ok()
}

/// `c` is added.
pub(crate) const HAS_C: u32 = 1;
/// `bias` is added.
pub(crate) const HAS_BIAS: u32 = 2;

kernel_args! {
    /// Where results go and what is added to them.
    pub(crate) struct ResultArgs => ResultParams {
        c: In<Elem>, bias: In<Elem>, y: Out<Elem>,
        /// A factor of each column.
        scale: Extra<In<Elem>>,
    }
}

impl ResultArgs {
    /// Where sums go that nothing is added to.
    pub(crate) const fn new(c: In<Elem>, bias: In<Elem>, y: Out<Elem>) -> Self {
        Self { c, bias, y, scale: Extra(None) }
    }
}

kernel_args! {
    /// The constants of an epilogue.
    pub(crate) struct EpilogueArgs => EpilogueParams {
        alpha: f64, beta: f64,
        /// [`HAS_C`], [`HAS_BIAS`].
        flags: u32,
        /// The number of the activation.
        activation: u32,
    }
}

impl EpilogueArgs {
    /// Sums are stored as they are.
    pub(crate) const NONE: Self = Self { alpha: 1.0, beta: 0.0, flags: 0, activation: 0 };
}

/// Where pairs of elements that begin at even columns lie at multiples of their size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Even {
    /// In the rows of `c`.
    pub(crate) rows: bool,
    /// In the bias.
    pub(crate) bias: bool,
}

/// An epilogue that is recorded into a kernel: `activation(alpha sum + beta c + bias)`, or `activation(scale sum + bias + c)`, without what is
/// not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Program {
    /// Whether `alpha` is not 1.
    pub(crate) scaled: bool,
    /// Whether there is a `c`.
    pub(crate) addend: bool,
    pub(crate) bias: bool,
    pub(crate) activation: Option<Activation>,
    /// Whether there is a factor of each column.
    pub(crate) scale: bool,
    /// Whether a `c` is added as it is. It lies as `y` does.
    pub(crate) residual: bool,
}

impl Program {
    /// A part of a kernel's name; nothing for sums as they are.
    pub(crate) fn name(self) -> String {
        let parts = [
            self.scaled.then_some("alpha"),
            self.addend.then_some("c"),
            self.scale.then_some("scale"),
            self.bias.then_some("bias"),
            self.residual.then_some("residual"),
            self.activation.map(Activation::name),
        ];
        parts.into_iter().flatten().map(|part| format!("_{part}")).collect()
    }

    /// `dtypes` of the arguments of a kernel whose results are `to`: with factors of columns these and the bias are of the type of sums.
    pub(crate) fn dtypes(self, dtypes: DTypes, dtype: DType) -> DTypes {
        let sums = sums_dtype(dtype);
        if self.scale { dtypes.with("to.scale", sums).with("to.bias", sums) } else { dtypes }
    }

    /// The results of two neighbouring sums, the first of which is at an even column, with their numbers of `c` if these have been loaded.
    pub(crate) fn pair<'k>(
        self,
        to: &ResultParams<'k>,
        (m, n, ldy): (U32<'k>, U32<'k>, U64<'k>),
        (alpha, beta): (F32<'k>, F32<'k>),
        (row, col): (U32<'k>, U32<'k>),
        (sums, c): ([F32<'k>; 2], Option<[F32<'k>; 2]>),
        even: Even,
    ) -> [F32<'k>; 2] {
        let load = || {
            let from = to.c.at(row.to_u64() * ldy + col.to_u64());
            pair_at(from, Some(row.lt(m)), (col, n), even.rows)
        };
        let c = || c.unwrap_or_else(load);
        let mut values = sums;
        if self.scaled {
            values = values.map(|value| value * alpha);
        }
        if self.addend {
            let c = c();
            values = [0, 1].map(|i| c[i].mul_add(beta, values[i]));
        }
        let columns = self.columns(to, col, |from| pair_at(from, None, (col, n), even.bias));
        self.pair_onto(to, &columns, values, self.residual.then(c))
    }

    /// Factors and biases of two neighbouring columns from `col` on, as `load` brings them from where they are.
    fn columns<'k>(
        self,
        to: &ResultParams<'k>,
        col: U32<'k>,
        load: impl Fn(Ptr<'k, Read, Elem>) -> [F32<'k>; 2],
    ) -> Columns<'k> {
        let scale = to.scale.map(|scale| load(scale.at(col)));
        Columns { scale, bias: self.bias.then(|| load(to.bias.at(col))) }
    }

    /// The same of `n` columns, an even number of them, that begin at a multiple of the size of two.
    pub(crate) fn whole_columns<'k>(
        self,
        to: &ResultParams<'k>,
        (col, n): (U32<'k>, U32<'k>),
    ) -> Columns<'k> {
        self.columns(to, col, |from| {
            let pair = from.only_where(col.lt(n), Fill::Zero).load::<f32>(2);
            [pair[0], pair[1]]
        })
    }

    /// The results of sums of two neighbouring columns, and of what is added at the end where there is such.
    pub(crate) fn pair_onto<'k>(
        self,
        to: &ResultParams<'k>,
        columns: &Columns<'k>,
        sums: [F32<'k>; 2],
        residual: Option<[F32<'k>; 2]>,
    ) -> [F32<'k>; 2] {
        let mut values = sums;
        if let Some(scale) = columns.scale {
            values = [0, 1].map(|i| values[i] * scale[i]);
        }
        if let Some(bias) = columns.bias {
            values = [0, 1].map(|i| values[i] + bias[i]);
        }
        if let Some(residual) = residual {
            values = [0, 1].map(|i| values[i] + residual[i]);
        }
        let dtype = to.y.dtype();
        self.activation.map_or(values, |activation| values.map(|value| evaluate(activation, value, dtype)))
    }
}

/// Factors and biases of two neighbouring columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns<'k> {
    scale: Option<[F32<'k>; 2]>,
    bias: Option<[F32<'k>; 2]>,
}

/// Two neighbours of which the first is at column `col` of `n`, zeros where there are none; pairs lie at multiples of their size if `even`.
pub(super) fn pair_at<'k>(
    from: Ptr<'k, Read, Elem>,
    there: Option<Pred<'k>>,
    (col, n): (U32<'k>, U32<'k>),
    even: bool,
) -> [F32<'k>; 2] {
    let inside = |col: U32<'k>| there.map_or(col.lt(n), |there| there & col.lt(n));
    let (first, both) = (inside(col), inside(col + 1));
    if !even {
        return [(from, first), (from.at(1u64), both)]
            .map(|(at, there)| at.only_where(there, Fill::Zero).get::<f32>());
    }
    let pair = from.only_where(both, Fill::Zero).load::<f32>(2);
    let alone = from.only_where(first & !both, Fill::Zero).get::<f32>();
    let [low, high] = [0, 1].map(|i| pair[i]);
    [both.select(low, alone), high]
}

/// Where the results of a product go and what happens to them before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outputs<'k> {
    to: ResultParams<'k>,
    /// Elements from one row of `y`, and of `c`, to the next.
    leading: U64<'k>,
    epilogue: EpilogueParams<'k>,
}

impl<'k> Outputs<'k> {
    /// Those of product `batch`, whose matrix has a number of its own among those of `y`; `leading` and `stride` are the elements from one row
    /// and matrix to the next.
    pub(crate) fn new(
        to: ResultParams<'k>,
        epilogue: EpilogueParams<'k>,
        (leading, stride): (U64<'k>, U64<'k>),
        (batch, matrix): (U64<'k>, U64<'k>),
    ) -> Self {
        let to = ResultParams { c: to.c.at(batch * stride), y: to.y.at(matrix * stride), ..to };
        Self { to, leading, epilogue }
    }

    /// Elements that are finished together.
    pub(super) fn width(self) -> u32 {
        (VECTOR_BYTES / self.to.y.dtype().bytes() as u32).min(8)
    }

    /// Whether vectors of [`width`](Self::width) elements of `c` and `y` lie at multiples of their size wherever columns
    /// are multiples of it.
    pub(super) fn aligned(self) -> Pred<'k> {
        let size = self.to.y.dtype().bytes() as u64;
        let bits = self.to.y.address() | self.to.c.address() | self.to.bias.address() | (self.leading * size);
        let bits = self.to.scale.map_or(bits, |scale| bits | scale.address());
        (bits & (u64::from(self.width()) * size - 1)).eq(0)
    }

    /// Finishes `width` neighbouring sums and stores them; `row` and `col` are those of the first.
    pub(super) fn finish<A: Accumulate>(self, row: U32<'k>, col: U32<'k>, sums: &Lanes<'k, A>) {
        self.finish_at(row.to_u64() * self.leading + col.to_u64(), col, sums);
    }

    /// The same of results from element `at` of `c` and `y` on, the bias of the first of which is at `col`.
    pub(crate) fn finish_at<A: Accumulate>(self, at: U64<'k>, col: U32<'k>, sums: &Lanes<'k, A>) {
        let k = col.k();
        let width = u32::try_from(sums.len()).unwrap_or(1);
        let scaled: Vec<_> = if let Some(scale) = self.to.scale {
            let scale = scale.at(col).load::<A>(width);
            sums.iter().zip(scale).map(|(sum, scale)| sum * scale).collect()
        } else {
            let alpha = self.epilogue.alpha.convert::<A>();
            sums.iter().map(|sum| sum * alpha).collect()
        };
        let with_c = k.if_else(
            (self.epilogue.flags & HAS_C).ne(0),
            || {
                let beta = self.epilogue.beta.convert::<A>();
                let c = self.to.c.at(at).load::<A>(width);
                scaled.iter().zip(c).map(|(sum, c)| c.mul_add(beta, *sum)).collect()
            },
            || scaled.clone(),
        );
        let with_bias = k.if_else(
            (self.epilogue.flags & HAS_BIAS).ne(0),
            || {
                let bias = self.to.bias.at(col).load::<A>(width);
                with_c.iter().zip(bias).map(|(sum, bias)| *sum + bias).collect()
            },
            || with_c.clone(),
        );
        let result =
            k.if_else(self.epilogue.activation.eq(0), || with_bias.clone(), || self.activated(1, &with_bias));
        self.to.y.at(at).store(Lanes::from(result));
    }

    /// The activation whose number is `first` or greater.
    fn activated<A: Accumulate>(self, first: u32, x: &[Reg<'k, A>]) -> Vec<Reg<'k, A>> {
        let k = self.epilogue.flags.k();
        let dtype = self.to.y.dtype();
        let this = |code: u32| -> Vec<_> {
            let f = ACTIVATIONS[code as usize - 1];
            x.iter().map(|x| evaluate(f, *x, dtype)).collect()
        };
        if first as usize == ACTIVATIONS.len() {
            return this(first);
        }
        k.if_else(self.epilogue.activation.eq(first), || this(first), || self.activated(first + 1, x))
    }
}

/// The sums of a tile in the block's dynamic shared memory, in place of the slices, in pairs that meet few bank conflicts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SumTile<'k> {
    tile: SharedTile<'k>,
    dtype: DType,
    rows: u32,
    cols: u32,
    teams: u32,
}

impl<'k> SumTile<'k> {
    /// A tile of `rows` x `cols` sums, of which each of `teams` has a part.
    pub(super) fn new<A: Accumulate>(k: K<'k>, rows: u32, cols: u32, teams: u32) -> Self {
        let dtype = if A::DOUBLE { DType::F64 } else { DType::F32 };
        let units = cols * dtype.bytes() as u32 / DType::F64.bytes() as u32;
        let base = k.dynamic_shared_elem(DType::F64);
        Self { tile: k.tile_at(base, TileLayout::new(DType::F64, rows, units)), dtype, rows, cols, teams }
    }

    /// The tile that begins `bytes` further on.
    pub(super) fn moved(self, bytes: u32) -> Self {
        Self { tile: self.tile.moved(bytes), ..self }
    }

    /// The part of a team, if there are several.
    pub(super) fn of_team(self, team: Option<U32<'k>>) -> Self {
        let Some(team) = team else { return self };
        Self { tile: self.tile.moved(team * self.bytes()), ..self }
    }

    /// Bytes of a part.
    fn bytes(self) -> u32 {
        self.rows * self.cols * self.dtype.bytes() as u32
    }

    /// Sums, those of all teams added in order.
    fn load<A: Accumulate>(self, row: U32<'k>, col: U32<'k>, width: u32) -> Lanes<'k, A> {
        let at = self.at(row, col);
        let part = |team: u32| at.at(u64::from(team * self.rows * self.cols)).load::<A>(width);
        (1..self.teams).fold(part(0), |sums, team| sums.zip(part(team), |a, b| a + b))
    }

    /// A sum of a part, and those that follow it within 32 aligned bytes.
    pub(super) fn at(self, row: U32<'k>, col: U32<'k>) -> Ptr<'k, Shared, Elem> {
        if self.dtype == DType::F64 {
            return self.tile.at(row, col);
        }
        self.tile.at(row, col >> 1).retyped(self.dtype).at(col & 1)
    }
}

/// Finishes the sums of a tile: rows and columns from (`row`, `col`) on, those below `m` and `n`.
pub(super) fn finish_tile<'k, A: Accumulate>(
    k: K<'k>,
    outputs: Outputs<'k>,
    sums: SumTile<'k>,
    origin: (U32<'k>, U32<'k>),
    sizes: (U32<'k>, U32<'k>),
) {
    let place = |row: U32<'k>| row.to_u64() * outputs.leading;
    finish_tile_at::<A>(k, outputs, sums, origin, sizes, place);
}

/// The same of results whose rows begin at elements that `place` says.
pub(crate) fn finish_tile_at<'k, A: Accumulate>(
    k: K<'k>,
    outputs: Outputs<'k>,
    sums: SumTile<'k>,
    (row, col): (U32<'k>, U32<'k>),
    (m, n): (U32<'k>, U32<'k>),
    place: impl Fn(U32<'k>) -> U64<'k>,
) {
    let width = outputs.width();
    let aligned = outputs.aligned();
    let per_row = sums.cols / width;
    let units = k.range(k.thread_idx(), sums.rows * per_row, k.block_threads());
    k.for_each(units, |unit| {
        let (r, c) = (unit / per_row, (unit % per_row) * width);
        let (to_row, to_col) = (row + r, col + c);
        k.if_(to_row.lt(m) & to_col.lt(n), || {
            let whole = aligned & (to_col + (width - 1)).lt(n);
            let finish = |col: U32<'k>, sums: &Lanes<'k, A>| {
                outputs.finish_at(place(to_row) + col.to_u64(), col, sums);
            };
            k.if_else(
                whole,
                || finish(to_col, &sums.load::<A>(r, c, width)),
                || {
                    let left = (n - to_col).min(width);
                    k.for_each(k.range(0, left, 1), |i| {
                        finish(to_col + i, &sums.load::<A>(r, c + i, 1));
                    });
                },
            );
        });
    });
}

/// The type that sums of `dtype` are kept in.
pub(crate) fn sums_dtype(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The types of a kernel's arguments; parts of sums are stored as they are.
pub(crate) fn dtypes(dtype: DType, split: bool) -> DTypes {
    let dtypes = DTypes::all(dtype);
    if !split {
        return dtypes;
    }
    let sums = sums_dtype(dtype);
    dtypes.with("to", sums)
}
