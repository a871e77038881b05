//! The family's rows of the catalogue, its descriptors from options, and kernels of every kind that expressions are compiled to.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::{Binary, ElementwiseDesc, Expr, InputDesc, OP, Unary};
use crate::PlanError;
use crate::catalogue::{Asked, Broadcast, Direction, Entry, Family, Planned, TARGETS, distinct};
use crate::plan::{Operation, Real, View};

/// The family.
pub(crate) const FAMILY: Family = Family {
    name: "elementwise",
    aliases: &[("elementwise", "add"), ("elementwise", "mul")],
    entries,
    plan,
    kernels,
};

const DROPOUT: &str = "dropout";
const DROPOUT_ADD: &str = "dropout_add";
/// Elements of a row where nothing is said.
const ROW: usize = 4096;
/// The probability that an element is dropped where nothing is said.
const PROBABILITY: f64 = 0.1;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    let one = |op, direction| Entry { op, direction, dtypes: &DType::FLOATS, targets: &TARGETS };
    let [forward, backward] = Entry::both(DROPOUT);
    vec![one(OP, Direction::Forward), forward, backward, one(DROPOUT_ADD, Direction::Forward)]
}

/// Expressions of tensors of one type that are broadcast to outputs of the same type.
fn desc(dtype: DType, outputs: Vec<Expr>, shape: &[usize], inputs: &[&[usize]]) -> ElementwiseDesc {
    let contiguous = |shape: &&[usize]| {
        View::contiguous(shape).map(|view| InputDesc { dtype, view }).into_iter().collect::<Vec<_>>()
    };
    let dropped = outputs.iter().any(Expr::has_dropout);
    let scalars = outputs.iter().map(Expr::scalar_count).max().unwrap_or(0);
    ElementwiseDesc {
        dtypes: vec![dtype; outputs.len()],
        outputs,
        shape: shape.to_vec(),
        inputs: inputs.iter().flat_map(contiguous).collect(),
        scalars: vec![Real::new(0.5); scalars],
        dropout: dropped.then_some(Real::new(PROBABILITY)),
    }
}

fn expression(op: &str) -> Expr {
    let [x, y] = Expr::inputs();
    match op {
        DROPOUT => x.dropout(),
        DROPOUT_ADD => x.dropout() + y,
        _ => x + y,
    }
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let Asked { entry, dtype, len, ref options, .. } = *asked;
    if entry.op != OP {
        let expr = expression(entry.op);
        let shape = [len];
        let inputs = vec![&shape[..]; expr.input_count()];
        let probability = options.dropout().unwrap_or(PROBABILITY);
        let desc = desc(dtype, vec![expr], &shape, &inputs);
        return asked.plan(&ElementwiseDesc { dropout: Some(Real::new(probability)), ..desc });
    }
    let expr = options.expr().unwrap_or_else(|| expression(OP));
    let probability = if expr.has_dropout() { options.dropout() } else { None };
    let row = options.len().unwrap_or(ROW.min(len.max(1)));
    let shape = [options.rows().unwrap_or(len / row.max(1)).max(1), row];
    let last = match options.broadcast() {
        None => shape,
        Some(Broadcast::Row) => [1, shape[1]],
        Some(Broadcast::Column) => [shape[0], 1],
    };
    let count = expr.input_count();
    // An expression of more has no plan.
    let mut inputs = vec![&shape[..]; count.min(super::MAX_INPUTS + 1)];
    inputs.last_mut().into_iter().for_each(|input| *input = &last);
    let desc = desc(dtype, vec![expr], &shape, &inputs);
    let dropout = desc.dropout.map(|usual| probability.map_or(usual, Real::new));
    asked.plan(&ElementwiseDesc { dropout, ..desc })
}

/// Kernels of every way to read an input and of every function, and those of `entry` of no length.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    if entry.op != OP {
        let expr = expression(entry.op);
        let inputs = vec![&[8][..]; expr.input_count()];
        return distinct([desc(dtype, vec![expr], &[8], &inputs).plan(target).map(Into::into)]);
    }
    distinct(samples(dtype).into_iter().map(|desc| desc.plan(target).map(Into::into)))
}

/// Descriptors that reach every way to read an input, every function, and mixed types.
pub(super) fn samples(dtype: DType) -> Vec<ElementwiseDesc> {
    let [x, y, z] = Expr::inputs();
    let sum = vec![&x + Expr::scalar(0) * &y];
    let of =
        |outputs: &[Expr], shape: &[usize], inputs: &[&[usize]]| desc(dtype, outputs.to_vec(), shape, inputs);
    let mut all = vec![
        of(&sum, &[64], &[&[64], &[64]]),
        of(&sum, &[64], &[&[64], &[]]),
        of(&sum, &[4, 16], &[&[4, 16], &[16]]),
        of(&sum, &[4, 12], &[&[12], &[4, 12]]),
        of(&sum, &[4, 16], &[&[4, 16], &[4, 1]]),
        of(&sum, &[4, 2, 16], &[&[4, 1, 16], &[2, 1]]),
        of(&sum, &[2, 2, 2, 2, 16], &[&[2, 1, 2, 1, 16], &[1, 2, 1, 2, 1]]),
        of(&[&x * &z, y.where_(&x, &z)], &[4, 16], &[&[4, 16], &[4, 16], &[16]]),
        of(&[(&x + &y).dropout()], &[4, 16], &[&[4, 16], &[16]]),
    ];
    // Rows of a transposed matrix, in half of the columns.
    let view = View::new(&[4, 16], &[1, 4]);
    all.extend(view.map(|view| {
        let plain = of(&sum, &[4, 16], &[&[4, 16], &[4, 16]]);
        ElementwiseDesc { inputs: vec![plain.inputs[0], InputDesc { dtype, view }], ..plain }
    }));
    // A mask in, a mask and another type out.
    let mixed = of(&[x.where_(&y, &z), x.lt(&z)], &[64], &[&[64], &[64], &[64]]);
    let mut inputs = mixed.inputs.clone();
    inputs[0].dtype = DType::U8;
    inputs[2].dtype = DType::F32;
    all.push(ElementwiseDesc { inputs, dtypes: vec![dtype, DType::U8], ..mixed });
    let functions: Vec<_> =
        Unary::ALL.into_iter().filter(|f| *f != Unary::Dropout).map(|f| x.unary(f)).collect();
    all.extend(functions.chunks(3).map(|functions| of(functions, &[64], &[&[64]])));
    let binary: Vec<_> = Binary::ALL.into_iter().map(|f| x.binary(f, &y)).collect();
    all.extend(binary.chunks(3).map(|functions| of(functions, &[64], &[&[64], &[64]])));
    all
}
