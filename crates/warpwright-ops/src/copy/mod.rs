//! Copies: the dimensions of a tensor in another order, tensors joined along one, and a tensor in parts.
//!
//! Elements of every type are moved as the bytes they are, so a NaN keeps its payload. The gradient of [`permute()`] is the permutation
//! back, that of [`cat`] is [`split`] and the other way round.

mod functions;
mod kernel;
pub mod reference;
pub(crate) mod samples;
pub mod tuning;

use warpwright_dsl::divide::DivisorArgs;
use warpwright_dsl::{In, KernelArgs, Out};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{LaunchStep, TensorMut, TensorRef};

use crate::elementwise::walk::{MAX_OUTER, Walk, divisors};
use crate::plan::{self, Operation, Plan, TensorSpec, Variant, View, small};
use crate::tensors::{Arguments, tensors};
use crate::{Binding, Direction, PlanError};

pub use functions::{cat, permute, split};
use kernel::{Rows, RowsArgs, TILE_OUTER, Tiles, TilesArgs};
use tuning::{THREADS, Tile};

const PERMUTE: &str = "permute";
const CAT: &str = "cat";
const SPLIT: &str = "split";

/// Units that one launch copies at most, which its kernel counts in 31 bits.
const MAX_UNITS: u64 = 1 << 30;

/// The tensors that are joined or that one is split into, at most.
pub const MAX_PARTS: usize = 16;
const INPUTS: [&str; MAX_PARTS] =
    ["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15"];
const OUTPUTS: [&str; MAX_PARTS] =
    ["y0", "y1", "y2", "y3", "y4", "y5", "y6", "y7", "y8", "y9", "y10", "y11", "y12", "y13", "y14", "y15"];

/// `y` is `x` with its dimensions in another order, as `x.permute(axes).contiguous()` in PyTorch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PermuteDesc {
    /// Type of the elements.
    pub dtype: DType,
    /// Shape and strides of `x`.
    pub x: View,
    /// Which dimension of `x` each dimension of `y` is; every one once.
    pub axes: Vec<usize>,
}

tensors! {
    /// Tensors of [`PermuteDesc`].
    pub struct PermuteArgs<'a> {
        /// The elements.
        x: In,
        /// The same in the new order; contiguous.
        y: Out,
    }
}

/// `y` has the rows of every `x` behind each other, as `torch.cat` has them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CatDesc {
    /// Type of the elements.
    pub dtype: DType,
    /// Rows: the product of the extents before the dimension along which tensors are joined.
    pub outer: usize,
    /// Elements of a row of each tensor: the product of its extents from that dimension on. From 1 to [`MAX_PARTS`] tensors.
    pub lens: Vec<usize>,
}

/// Tensors of [`CatDesc`].
#[derive(Debug)]
pub struct CatArgs<'a> {
    /// The parts in order; contiguous.
    pub inputs: Vec<TensorRef<'a>>,
    /// The whole; contiguous.
    pub y: TensorMut<'a>,
}

impl<'a> Arguments<'a> for CatArgs<'a> {
    fn bindings(self) -> Vec<Binding<'a>> {
        self.inputs.into_iter().map(Binding::Input).chain([Binding::Output(self.y)]).collect()
    }
}

/// The inverse of [`CatDesc`], as `torch.split` followed by a copy of every part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SplitDesc {
    /// The operation that joins the parts.
    pub cat: CatDesc,
}

/// Tensors of [`SplitDesc`].
#[derive(Debug)]
pub struct SplitArgs<'a> {
    /// The whole; contiguous.
    pub x: TensorRef<'a>,
    /// The parts in order; contiguous.
    pub outputs: Vec<TensorMut<'a>>,
}

impl<'a> Arguments<'a> for SplitArgs<'a> {
    fn bindings(self) -> Vec<Binding<'a>> {
        [Binding::Input(self.x)].into_iter().chain(self.outputs.into_iter().map(Binding::Output)).collect()
    }
}

/// A place in the tensor of that number.
#[derive(Clone, Copy)]
struct Place {
    slot: u32,
    /// Bytes before it.
    offset: u64,
}

/// A copy over `walk`, whose two tensors are the input and the result.
struct Copying<'a> {
    op: &'static str,
    target: Target,
    /// Bytes of an element.
    element: u32,
    walk: &'a Walk,
    x: Place,
    y: Place,
}

impl Copying<'_> {
    /// Bytes, which wrap around as addresses do.
    fn bytes(&self, elements: i64) -> u64 {
        elements.cast_unsigned().wrapping_mul(self.element.into())
    }

    fn moved(&self, place: Place, elements: i64) -> (u32, u64) {
        (place.slot, place.offset.wrapping_add(self.bytes(elements)))
    }

    /// Steps of a tensor from the innermost dimension outwards, in bytes.
    fn steps_of<const N: usize>(&self, strides: impl DoubleEndedIterator<Item = i64>) -> [u64; N] {
        let mut from_inner = strides.rev();
        std::array::from_fn(|_| from_inner.next().map_or(0, |stride| self.bytes(stride)))
    }

    /// Bytes that a thread can move at once, where both tensors have the innermost dimension side by side.
    fn unit(&self) -> u32 {
        let [x, y] = [0, 1].map(|tensor| &self.walk.strides[tensor]);
        let side_by_side = |own: &[i64]| own.last() == Some(&1);
        if !side_by_side(x) || !side_by_side(y) {
            return self.element;
        }
        let outer = self.walk.extents.len() - 1;
        let steps = [x, y].into_iter().flat_map(|own| &own[..outer]);
        // Their magnitudes: multiples of a power of two are also those with a sign.
        let steps = steps.map(|step| step.unsigned_abs().wrapping_mul(self.element.into()));
        let inner = self.walk.inner() as u64 * u64::from(self.element);
        tuning::unit(self.element, steps.chain([inner, self.x.offset, self.y.offset]))
    }

    /// Launches that copy `unit` bytes at a time.
    fn rows(&self, unit: u32) -> Result<Vec<LaunchStep>, PlanError> {
        let width = unit / self.element;
        let outer = if self.walk.extents.len() <= 2 { 1 } else { MAX_OUTER };
        let kernel = plan::recorded(self.op, &Rows { unit, outer }, self.target)?;
        let mut steps = Vec::new();
        for part in self.walk.parts(width, MAX_UNITS) {
            let (units, extents) = part.vectors(width);
            let strides = |tensor: usize| {
                let mut own = self.walk.strides[tensor].clone();
                own.last_mut().into_iter().for_each(|inner| *inner *= i64::from(width));
                self.steps_of(own.into_iter())
            };
            let (x, y) = (self.moved(self.x, part.offsets[0]), self.moved(self.y, part.offsets[1]));
            let args = RowsArgs {
                x: In::slot_at(x.0, x.1),
                y: Out::slot_at(y.0, y.1),
                x_steps: strides(0),
                y_steps: strides(1),
                extents,
                units: small(units),
            };
            if let Some(grid) = plan::cover(self.op, units, THREADS)? {
                steps.push(LaunchStep::new(kernel.clone(), grid, args.values()));
            }
        }
        Ok(steps)
    }

    /// The dimension along which the input goes on, where the result goes on along another one.
    fn turned(&self) -> Option<usize> {
        let own = &self.walk.strides[0];
        if own.last() == Some(&1) { None } else { own.iter().position(|stride| *stride == 1) }
    }

    /// The launch that turns tiles, whose rows are along the dimension `axis`, and the tile.
    fn tiles(&self, axis: usize, paired: bool) -> Result<(Tile, Vec<LaunchStep>), PlanError> {
        let Walk { extents, strides } = self.walk;
        let last = extents.len() - 1;
        let matrix = [extents[axis], extents[last]];
        let tile = tuning::tile(self.element, matrix, paired);
        let kernel = plan::recorded(self.op, &Tiles(tile), self.target)?;
        let outside = |i: &usize| *i != axis && *i != last;
        let outer = || (0..=last).filter(outside);
        let blocks = [matrix[0].div_ceil(tile.a as usize), matrix[1].div_ceil(tile.b as usize)];
        let all = blocks.into_iter().chain(outer().map(|i| extents[i])).fold(1usize, usize::saturating_mul);
        if matrix.into_iter().any(|extent| extent >= 1 << 31) {
            let got = format!("{extents:?}");
            return Err(PlanError::refused(
                self.op,
                "shape",
                got,
                "of dimensions below 2^31 where they change places",
            ));
        }
        let args = TilesArgs {
            x: In::slot_at(self.x.slot, self.x.offset),
            y: Out::slot_at(self.y.slot, self.y.offset),
            extents: matrix.map(small),
            x_step: self.bytes(strides[0][last]),
            y_step: self.bytes(strides[1][axis]),
            x_outer: self.steps_of::<TILE_OUTER>(outer().map(|i| strides[0][i])),
            y_outer: self.steps_of::<TILE_OUTER>(outer().map(|i| strides[1][i])),
            tiles: blocks.map(|blocks| DivisorArgs::new(small(blocks))),
            outer: divisors(outer().map(|i| extents[i])),
        };
        let grid = plan::cover(self.op, all, 1)?;
        Ok((tile, grid.map(|grid| LaunchStep::new(kernel, grid, args.values())).into_iter().collect()))
    }

    /// Whether all steps of both tensors but those of the dimensions that change places are even, and these dimensions too.
    fn is_even(&self, axis: usize) -> bool {
        let Walk { extents, strides } = self.walk;
        let last = extents.len() - 1;
        let even = |own: &Vec<i64>, beside: usize| {
            own.iter().enumerate().all(|(i, stride)| i == beside || stride % 2 == 0)
        };
        let both = extents[axis].is_multiple_of(2) && extents[last].is_multiple_of(2);
        both && even(&strides[0], axis) && even(&strides[1], last)
    }

    /// The ways to do it, best first.
    fn variants(&self) -> Result<Vec<Variant>, PlanError> {
        if self.walk.extents.contains(&0) {
            return Ok(vec![Variant { alignment: 1, steps: Vec::new() }]);
        }
        let Some(axis) = self.turned() else { return in_rows(std::slice::from_ref(self), self.element) };
        let (tile, steps) = self.tiles(axis, self.is_even(axis))?;
        if !tile.pairs {
            return Ok(vec![Variant { alignment: 1, steps }]);
        }
        let single = self.tiles(axis, false)?.1;
        Ok(vec![Variant { alignment: 4, steps }, Variant { alignment: 1, steps: single }])
    }
}

/// The ways to make copies whose dimensions keep their places, best first.
fn in_rows(copies: &[Copying<'_>], element: u32) -> Result<Vec<Variant>, PlanError> {
    let steps = |single: bool| -> Result<Vec<LaunchStep>, PlanError> {
        let unit = |copy: &Copying<'_>| if single { element } else { copy.unit() };
        let steps: Vec<_> = copies.iter().map(|copy| copy.rows(unit(copy))).collect::<Result<_, _>>()?;
        Ok(steps.into_iter().flatten().collect())
    };
    let best = copies.iter().map(Copying::unit).max().unwrap_or(element);
    let mut variants = Vec::new();
    if best > element {
        variants.push(Variant { alignment: best.into(), steps: steps(false)? });
    }
    // Single elements are where they are.
    variants.push(Variant { alignment: 1, steps: steps(true)? });
    Ok(variants)
}

/// Bytes of an element of a type.
fn size(dtype: DType) -> u32 {
    small(dtype.bytes())
}

impl Operation for PermuteDesc {
    type Args<'a> = PermuteArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let Self { dtype, x, axes } = self;
        let mut seen = vec![false; x.shape().len()];
        let known =
            axes.iter().all(|axis| seen.get_mut(*axis).is_some_and(|seen| !std::mem::replace(seen, true)));
        if !known || axes.len() != seen.len() {
            let got = format!("{axes:?} of {} dimensions", seen.len());
            return Err(PlanError::refused(PERMUTE, "axes", got, "every dimension once"));
        }
        let Some(len) = x.elements().filter(|len| len.checked_mul(dtype.bytes()).is_some()) else {
            let got = format!("{:?}", x.shape());
            return Err(PlanError::refused(PERMUTE, "shape", got, "of a tensor that can be addressed"));
        };
        let shape: Vec<_> = axes.iter().map(|axis| x.shape()[*axis]).collect();
        let strides: Vec<_> = axes.iter().map(|axis| x.strides()[*axis]).collect();
        let views = View::new(&shape, &strides).zip(View::contiguous(&shape));
        let Some((read, written)) = views else {
            let got = format!("{} dimensions", shape.len());
            return Err(PlanError::refused(PERMUTE, "shape", got, "of at most 8 dimensions"));
        };
        let walk = Walk::new(PERMUTE, &shape, &[("x", read), ("y", written)])?;
        let [x_slot, y_slot] = [0, 1].map(|slot| Place { slot, offset: 0 });
        let copying =
            Copying { op: PERMUTE, target, element: size(*dtype), walk: &walk, x: x_slot, y: y_slot };
        let variants = copying.variants()?;
        let tensors = vec![
            TensorSpec::read("x", *dtype, len).viewed(*x),
            TensorSpec::write("y", *dtype, len).viewed(written),
        ];
        Ok(Plan::of(PERMUTE, Direction::Forward, target, tensors, variants))
    }
}

impl CatDesc {
    /// The parts and the whole, if there is a plan for them: their numbers of elements.
    fn check(&self, op: &'static str) -> Result<usize, PlanError> {
        let Self { dtype, outer, lens } = self;
        if lens.is_empty() || lens.len() > MAX_PARTS {
            return Err(PlanError::refused(op, "lens", format!("{} tensors", lens.len()), "from 1 to 16"));
        }
        let row = lens.iter().try_fold(0usize, |sum, len| sum.checked_add(*len));
        let whole = row.and_then(|row| row.checked_mul(*outer));
        let addressed =
            |len: &usize| len.checked_mul(dtype.bytes()).is_some_and(|bytes| bytes <= i64::MAX as usize);
        match row.zip(whole.filter(addressed)) {
            Some((row, _)) => Ok(row),
            None => {
                let got = format!("{lens:?} in {outer} rows");
                Err(PlanError::refused(op, "lens", got, "of tensors that can be addressed"))
            }
        }
    }

    /// The ways to copy all parts from or to their places in the whole, whose rows have `row` elements, best first.
    fn variants(
        &self,
        op: &'static str,
        target: Target,
        row: usize,
        joined: bool,
    ) -> Result<Vec<Variant>, PlanError> {
        let element = size(self.dtype);
        let mut copies = Vec::new();
        let mut before = 0usize;
        for (number, &len) in self.lens.iter().enumerate() {
            // The parts come before the whole where they are joined, and behind it where it is split.
            let of_part = Place { slot: small(number + usize::from(!joined)), offset: 0 };
            let of_whole = Place {
                slot: if joined { small(self.lens.len()) } else { 0 },
                offset: before as u64 * u64::from(element),
            };
            before += len;
            let shape = [self.outer, len];
            let views = View::contiguous(&shape).zip(View::new(&shape, &[row as i64, 1]));
            let Some((part, whole)) = views else { continue };
            let named = if joined { [("x", part), ("y", whole)] } else { [("x", whole), ("y", part)] };
            let walk = Walk::new(op, &shape, &named)?;
            copies.push((walk, if joined { (of_part, of_whole) } else { (of_whole, of_part) }));
        }
        let copies: Vec<_> = copies
            .iter()
            .filter(|(walk, _)| !walk.extents.contains(&0))
            .map(|(walk, (x, y))| Copying { op, target, element, walk, x: *x, y: *y })
            .collect();
        in_rows(&copies, element)
    }
}

impl Operation for CatDesc {
    type Args<'a> = CatArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let row = self.check(CAT)?;
        let variants = self.variants(CAT, target, row, true)?;
        let parts = INPUTS.into_iter().zip(&self.lens);
        let mut tensors: Vec<_> =
            parts.map(|(name, len)| TensorSpec::read(name, self.dtype, self.outer * len)).collect();
        tensors.push(TensorSpec::write("y", self.dtype, self.outer * row));
        Ok(Plan::of(CAT, Direction::Forward, target, tensors, variants))
    }
}

impl Operation for SplitDesc {
    type Args<'a> = SplitArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        let CatDesc { dtype, outer, ref lens } = self.cat;
        let row = self.cat.check(SPLIT)?;
        let variants = self.cat.variants(SPLIT, target, row, false)?;
        let mut tensors = vec![TensorSpec::read("x", dtype, outer * row)];
        let parts = OUTPUTS.into_iter().zip(lens);
        tensors.extend(parts.map(|(name, len)| TensorSpec::write(name, dtype, outer * len)));
        Ok(Plan::of(SPLIT, Direction::Forward, target, tensors, variants))
    }
}
