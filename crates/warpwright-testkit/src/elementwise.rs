//! Cases of elementwise expressions and of dropout.

use std::sync::Arc;

use warpwright_ops::elementwise::reference::{self, Place};
use warpwright_ops::elementwise::{
    Binary, ElementwiseArgs, ElementwiseDesc, Expr, InputDesc, Operand, Unary,
};
use warpwright_ops::plan::{Real, View};
use warpwright_ops::{Direction, Dropout, Operation};
use warpwright_ptx::DType;
use warpwright_runtime::TensorRef;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Placed, Placement, Scope, Subject, view};
use crate::inputs::{Input, awkward_lengths};
use crate::measure::{Comparison, Expected};
use crate::storage;

/// The numbers `s0` and `s1` of expressions.
const SCALARS: [f64; 2] = [0.7, -1.3];
const INPUTS: [&str; 3] = ["x0", "x1", "x2"];
const OUTPUTS: [&str; 3] = ["y0", "y1", "y2"];
/// Columns that a narrowed matrix leaves out.
const LEFT_OUT: usize = 3;

/// How an input lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    Contiguous,
    /// The last two dimensions are swapped.
    Transposed,
    /// It is the first columns of a wider matrix.
    Narrowed,
}

#[derive(Clone, Debug)]
struct Source {
    dtype: DType,
    shape: Vec<usize>,
    lies: Lies,
}

#[derive(Clone, Debug)]
struct ElementwiseSubject {
    exprs: Vec<Expr>,
    /// Types of the outputs.
    dtypes: Vec<DType>,
    shape: Vec<usize>,
    sources: Vec<Source>,
    dropout: Option<Dropout>,
    input: Input,
    placement: Placement,
}

impl ElementwiseSubject {
    /// Expressions of contiguous tensors of one type.
    fn new(dtype: DType, exprs: &[&str], shape: &[usize], inputs: &[&[usize]]) -> Self {
        let parsed = |text: &&str| text.parse::<Expr>().expect("the text of an expression");
        let exprs: Vec<_> = exprs.iter().map(parsed).collect();
        let source = |shape: &&[usize]| Source { dtype, shape: shape.to_vec(), lies: Lies::Contiguous };
        let dropped = exprs.iter().any(Expr::has_dropout);
        Self {
            dtypes: vec![dtype; exprs.len()],
            exprs,
            shape: shape.to_vec(),
            sources: inputs.iter().map(source).collect(),
            dropout: dropped.then_some(Dropout { probability: 0.3, seed: 0x1234_5678_9abc, offset: 5 }),
            input: Input::Normal,
            placement: Placement::Apart,
        }
    }

    fn of(self, input: Input) -> Self {
        Self { input, ..self }
    }

    fn misaligned(self) -> Self {
        Self { placement: Placement::Misaligned, ..self }
    }

    fn in_place(self) -> Self {
        Self { placement: Placement::InPlace, ..self }
    }

    fn lying(mut self, input: usize, lies: Lies) -> Self {
        self.sources[input].lies = lies;
        self
    }

    fn typed(mut self, inputs: &[DType], outputs: &[DType]) -> Self {
        self.sources.iter_mut().zip(inputs).for_each(|(source, dtype)| source.dtype = *dtype);
        Self { dtypes: outputs.to_vec(), ..self }
    }

    fn describe(&self) -> String {
        let exprs: Vec<_> = self.exprs.iter().map(Expr::to_string).collect();
        let sources = self.sources.iter().map(|source| {
            let lies = match source.lies {
                Lies::Contiguous => "",
                Lies::Transposed => " transposed",
                Lies::Narrowed => " narrowed",
            };
            format!("{} {:?}{lies}", source.dtype, source.shape)
        });
        let placement = match self.placement {
            Placement::Apart => "",
            Placement::Misaligned => ", misaligned",
            Placement::InPlace => ", in place",
        };
        let sources: Vec<_> = sources.collect();
        format!("{} of {}, {}{placement}", exprs.join("; "), sources.join(", "), self.input.name())
    }

    fn case(self, op: &'static str, direction: Direction, dtype: DType) -> Case {
        let table = budget::elementwise(dtype);
        Case {
            op,
            direction,
            dtype,
            shape: self.shape.clone(),
            input: self.describe(),
            budget: if self.input == Input::Zero { table.of_alike() } else { table },
            subject: Arc::new(self),
        }
    }
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for dtype in DType::FLOATS {
        let subjects = shapes(dtype).into_iter().chain(types(dtype)).chain(functions(dtype, scope));
        out.extend(subjects.map(|subject| subject.case("elementwise", Direction::Forward, dtype)));
        for direction in [Direction::Forward, Direction::Backward] {
            let of = |subject: ElementwiseSubject| subject.case("dropout", direction, dtype);
            out.extend(dropouts(dtype, "dropout(x0)", 1, scope).into_iter().map(of));
        }
        let of = |subject: ElementwiseSubject| subject.case("dropout_add", Direction::Forward, dtype);
        out.extend(dropouts(dtype, "add(dropout(x0), x1)", 2, scope).into_iter().map(of));
    }
    out
}

/// Every way to read an input.
fn shapes(dtype: DType) -> Vec<ElementwiseSubject> {
    let sum = |shape: &[usize], inputs: &[&[usize]]| {
        ElementwiseSubject::new(dtype, &["add(x0, mul(s0, x1))"], shape, inputs)
    };
    vec![
        sum(&[0], &[&[0], &[0]]),
        sum(&[4099], &[&[4099], &[4099]]),
        sum(&[3, 87], &[&[3, 87], &[3, 87]]).misaligned(),
        sum(&[519], &[&[519], &[519]]).in_place(),
        sum(&[], &[&[], &[]]),
        // Spread over magnitudes: near one, rounding errors to 16 bits would be all alike.
        sum(&[2, 515], &[&[2, 515], &[1, 1]]).of(Input::Uniform),
        sum(&[2, 515], &[&[], &[2, 515]]),
        sum(&[7, 264], &[&[7, 264], &[264]]),
        sum(&[7, 264], &[&[264], &[7, 264]]).misaligned(),
        sum(&[7, 264], &[&[7, 264], &[264]]).in_place(),
        sum(&[9, 132], &[&[9, 1], &[9, 132]]),
        sum(&[5, 131], &[&[5, 131], &[131]]),
        sum(&[5, 131], &[&[5, 1], &[131]]),
        sum(&[3, 5, 2, 24], &[&[3, 1, 2, 1], &[5, 1, 24]]),
        sum(&[2, 3, 2, 3, 8], &[&[2, 1, 2, 1, 8], &[1, 3, 1, 3, 1]]),
        sum(&[300, 3], &[&[300, 3], &[3]]),
        sum(&[33, 40], &[&[33, 40], &[33, 40]]).lying(1, Lies::Transposed),
        sum(&[2, 33, 37], &[&[33, 37], &[2, 33, 37]]).lying(1, Lies::Transposed),
        sum(&[33, 40], &[&[33, 40], &[33, 40]]).lying(0, Lies::Narrowed),
        sum(&[1, 40], &[&[1, 40], &[1, 40]]).lying(0, Lies::Transposed),
    ]
}

/// Several outputs, and tensors of other types.
fn types(dtype: DType) -> Vec<ElementwiseSubject> {
    let gradients = ["mul(x0, x1)", "mul(x0, x2)", "sub(x1, s0)"];
    let of = |exprs: &[&str], count: usize| {
        let inputs = vec![&[5, 104][..]; count];
        ElementwiseSubject::new(dtype, exprs, &[5, 104], &inputs)
    };
    let mut all = vec![of(&gradients, 3), of(&gradients, 3).in_place()];
    for other in DType::FLOATS.into_iter().filter(|other| *other != dtype) {
        let product = "mul(silu(add(x0, 0.25)), x1)";
        all.push(of(&[product, "maximum(x0, x1)"], 2).typed(&[dtype, other], &[dtype, other]));
    }
    let masked = ["where(x0, x1, x2)", "where(gt(x1, x2), x0, 0)", "add(x0, x1)"];
    let bytes = [DType::U8, dtype, dtype];
    all.push(of(&masked, 3).typed(&bytes, &[dtype, DType::U8, dtype]));
    all.push(of(&masked, 3).typed(&bytes, &[dtype, DType::U8, dtype]).misaligned());
    all.push(of(&["le(x0, x1)"], 2).typed(&[dtype, dtype], &[DType::U8]).of(Input::Hostile));
    let row = ElementwiseSubject::new(dtype, &["where(x0, x1, -inf)"], &[6, 88], &[&[88], &[6, 88]]);
    all.push(row.typed(&[DType::U8, dtype], &[dtype]));
    all
}

/// Every function, and chains of them.
fn functions(dtype: DType, scope: Scope) -> Vec<ElementwiseSubject> {
    let of = |expr: &str, len: usize| {
        let count = expr.parse::<Expr>().expect("the text of an expression").input_count();
        ElementwiseSubject::new(dtype, &[expr], &[len], &vec![&[len][..]; count])
    };
    let mut all = Vec::new();
    for f in Unary::ALL.into_iter().filter(|f| *f != Unary::Dropout) {
        let expr = format!("{}(x0)", f.name());
        all.push(of(&expr, 261));
        if is_arithmetic(f) {
            all.push(of(&expr, 128).of(Input::Hostile));
        }
    }
    for f in Binary::ALL {
        let expr = format!("{}(x0, x1)", f.name());
        all.extend([of(&expr, 261), of(&expr, 1024).of(Input::Hostile)]);
    }
    let chains = [
        "silu(add(x0, mul(s0, x1)))",
        "sqrt(add(square(x0), exp(mul(x1, 0.5))))",
        "div(sub(x0, x1), add(2, abs(x0)))",
        "where(lt(x0, x1), neg(x0), tanh(x1))",
        "mul(add(x0, 1), add(x0, 1))",
        "add(add(x0, s0), mul(s1, s0))",
    ];
    all.extend(chains.map(|chain| of(chain, 515)));
    if scope == Scope::Full {
        let lengths = awkward_lengths().into_iter().map(|len| of(chains[0], len));
        all.extend(lengths.chain((1..=17).map(|len| of(chains[0], len).misaligned())));
        all.extend([Input::Uniform, Input::Ramp].map(|input| of(chains[0], 2048).of(input)));
        all.extend(Binary::ALL.map(|f| of(&format!("{}(x0, x1)", f.name()), 2048).of(Input::Magnitudes)));
    }
    all
}

/// Whether nothing of a function underflows on the way; the cases of the activations have what does.
fn is_arithmetic(f: Unary) -> bool {
    use Unary::{Abs, Exp, Log, Neg, Reciprocal, Relu, Rsqrt, Sqrt, Square};
    matches!(f, Neg | Abs | Square | Reciprocal | Sqrt | Rsqrt | Exp | Log | Relu)
}

fn dropouts(dtype: DType, expr: &str, inputs: usize, scope: Scope) -> Vec<ElementwiseSubject> {
    let of = |shape: &[usize]| ElementwiseSubject::new(dtype, &[expr], shape, &vec![shape; inputs]);
    let probability = |subject: ElementwiseSubject, probability| {
        let dropout = subject.dropout.map(|dropout| Dropout { probability, ..dropout });
        ElementwiseSubject { dropout, ..subject }
    };
    let mut all = vec![
        of(&[0]),
        of(&[1027]),
        of(&[3, 87]).misaligned(),
        of(&[519]).in_place(),
        of(&[9, 40]).lying(0, Lies::Transposed),
        of(&[9, 37]).lying(0, Lies::Transposed),
        of(&[131]).of(Input::Hostile),
        probability(of(&[64]), 0.0),
        probability(of(&[64]), 1.0),
    ];
    if scope == Scope::Full {
        all.extend(awkward_lengths().into_iter().map(|len| of(&[len])));
    }
    all
}

/// A tensor of a case, with its values in the order of its elements.
struct Laid {
    placed: Placed,
    lies: Lies,
    shape: Vec<usize>,
}

impl Laid {
    fn new(
        bench: &Bench<'_>,
        name: &'static str,
        source: &Source,
        values: &[f64],
        lead: usize,
    ) -> Result<Self, CaseError> {
        let Source { dtype, ref shape, lies } = *source;
        let columns = shape.last().copied().unwrap_or(1);
        let rows = shape.len().checked_sub(2).map_or(1, |axis| shape[axis]);
        let memory: Vec<f64> = match lies {
            Lies::Contiguous => values.to_vec(),
            Lies::Transposed => {
                let matrices = values.chunks(rows * columns);
                let turned = |m: &[f64]| {
                    (0..columns)
                        .flat_map(|c| (0..rows).map(move |r| (r, c)))
                        .map(|(r, c)| m[r * columns + c])
                        .collect()
                };
                matrices.flat_map::<Vec<f64>, _>(turned).collect()
            }
            Lies::Narrowed => {
                let row = |row: &[f64]| [row, &[f64::NAN; LEFT_OUT]].concat();
                values.chunks(columns).flat_map(row).collect()
            }
        };
        let placed = bench.input(name, dtype, &memory, lead)?;
        Ok(Self { placed, lies, shape: shape.clone() })
    }

    fn view(&self) -> Result<TensorRef<'_>, CaseError> {
        let (view, mut shape) = (self.placed.view()?, self.shape.clone());
        let last = shape.len().saturating_sub(1);
        match self.lies {
            Lies::Contiguous => Ok(view.reshape(&shape)?),
            Lies::Transposed => {
                shape.swap(last - 1, last);
                let mut order: Vec<_> = (0..shape.len()).collect();
                order.swap(last - 1, last);
                Ok(view.reshape(&shape)?.permute(&order)?)
            }
            Lies::Narrowed => {
                shape[last] += LEFT_OUT;
                Ok(view.reshape(&shape)?.narrow(last, 0, self.shape[last])?)
            }
        }
    }
}

impl ElementwiseSubject {
    fn values(&self, number: usize) -> Vec<f64> {
        let Source { dtype, ref shape, .. } = self.sources[number];
        let len = shape.iter().product();
        let seed = 1000 * (number as u64 + 1) + 3 * number as u64;
        if dtype == DType::U8 {
            return (0..len).map(|i| [1.0, 0.0, 0.0, 2.0, 255.0][(i * i + i / 7) % 5]).collect();
        }
        self.input.values(len, seed).into_iter().map(|x| storage::round(dtype, x)).collect()
    }

    /// The results of one expression in a type.
    fn expected(&self, expr: &Expr, dtype: DType, values: &[Vec<f64>]) -> Vec<Expected> {
        let elements: usize = self.shape.iter().product();
        // Errors before the result is rounded count as much as they differ from that of a 16-bit type in the table.
        let halves = matches!(dtype, DType::F16 | DType::BF16);
        let weight = if halves { 0.125 } else { 1.0 };
        let double = dtype == DType::F64 || self.sources.iter().any(|source| source.dtype == DType::F64);
        let underflow = if double { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) };
        let of = |index: usize| {
            let sources = self.sources.iter().zip(values);
            let element = |(source, values): (&Source, &Vec<f64>)| {
                values[reference::broadcast_index(&source.shape, &self.shape, index)]
            };
            let inputs: Vec<f64> = sources.map(element).collect();
            let keeping = self.dropout.and_then(|dropout| {
                dropout.keeps(index as u64).then(|| Dropout::scale(dropout.probability.into()))
            });
            let place = Place { inputs: &inputs, scalars: &SCALARS, keeping };
            let found = reference::evaluate(expr, &place);
            let value = found.value;
            if dtype == DType::U8 {
                return Expected::exactly(f64::from(u8::from(value != 0.0)));
            }
            let more = (found.error - value.abs()).max(0.0);
            Expected { value, scale: value.abs() + weight * more, underflow }
        };
        (0..elements).map(of).collect()
    }

    fn desc(&self, views: &[View]) -> ElementwiseDesc {
        let inputs = self.sources.iter().zip(views);
        let scalars = self.exprs.iter().map(Expr::scalar_count).max().unwrap_or(0);
        ElementwiseDesc {
            outputs: self.exprs.clone(),
            dtypes: self.dtypes.clone(),
            shape: self.shape.clone(),
            inputs: inputs.map(|(source, view)| InputDesc { dtype: source.dtype, view: *view }).collect(),
            scalars: SCALARS[..scalars].iter().copied().map(Real::new).collect(),
            dropout: self.dropout.map(|dropout| Real::new(dropout.probability.into())),
        }
    }
}

impl Subject for ElementwiseSubject {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let lead = usize::from(self.placement == Placement::Misaligned);
        let values: Vec<_> = (0..self.sources.len()).map(|number| self.values(number)).collect();
        let sources = INPUTS.into_iter().zip(&self.sources).zip(&values);
        let laid = sources.map(|((name, source), values)| Laid::new(bench, name, source, values, lead));
        let laid = laid.collect::<Result<Vec<_>, _>>()?;
        let random = self.dropout.map(|dropout| {
            let numbers = [dropout.seed, dropout.offset].map(|number| number as f64);
            bench.input("random", DType::I64, &numbers, 0)
        });
        let random = random.transpose()?;
        let replaces = self.placement == Placement::InPlace;
        let elements: usize = self.shape.iter().product();
        let output = |number: usize, dtype: DType| match number {
            0 if replaces => bench.input(OUTPUTS[0], dtype, &values[0], lead),
            _ => bench.output(OUTPUTS[number], dtype, elements, lead),
        };
        let outputs = self.dtypes.iter().enumerate().map(|(number, dtype)| output(number, *dtype));
        let mut outputs = outputs.collect::<Result<Vec<_>, _>>()?;
        let views = laid.iter().map(Laid::view).collect::<Result<Vec<_>, _>>()?;
        let of_views: Vec<_> = views.iter().filter_map(View::of).collect();
        let plan = self.desc(&of_views).plan(bench.target())?;
        bench.launch(|stream| {
            let inputs = views.into_iter().enumerate().map(|(number, view)| match number {
                0 if replaces => Operand::Output(0),
                _ => Operand::Tensor(view),
            });
            let written = outputs.iter_mut().map(|y| Ok(y.view_mut()?.reshape(&self.shape)?));
            let args = ElementwiseArgs {
                inputs: inputs.collect(),
                random: view(&random)?,
                outputs: written.collect::<Result<_, CaseError>>()?,
            };
            Ok(plan.launch(stream, args)?)
        })?;
        // In units of the budget of the case.
        let case = budget::elementwise(self.dtypes[0]);
        let mut all = Comparison::default();
        for ((expr, dtype), y) in self.exprs.iter().zip(&self.dtypes).zip(&outputs) {
            let mut comparison = bench.compare(y, &self.expected(expr, *dtype, &values))?;
            let own = budget::elementwise(*dtype);
            if *dtype == DType::U8 {
                // Nothing may differ.
                comparison.element = if comparison.element > 0.0 { f64::INFINITY } else { 0.0 };
            } else {
                comparison.norm *= case.norm / own.norm;
                comparison.element *= case.element / own.element;
            }
            all = all.merge(comparison);
        }
        Ok(all)
    }
}
