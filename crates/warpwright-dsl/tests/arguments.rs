//! Groups, arrays, strided tensors and optional ones as arguments of kernels.

mod support;

use support::{Arg, run};
use warpwright_dsl::prelude::*;
use warpwright_dsl::{IssueKind, record_module};
use warpwright_ptx::{ArgValue, Inst, ScalarType};

kernel_args! {
    /// A matrix and what its rows are multiplied by.
    struct ScaledArgs => ScaledParams { x: Strided<In<Elem>, 2>, factors: Optional<In<f32>> }
}

kernel_args! {
    /// `y = factor x`, `sums = sum(factor x)` of each row.
    struct RowsArgs => RowsParams { of: ScaledArgs, y: Strided<Out<Elem>, 2>, sums: Out<Elem>, sizes: [u32; 2] }
}

kernel_args! {
    /// The same without groups.
    struct FlatArgs => FlatParams {
        x: In<Elem>, x_row: u64, x_column: u64, factors: In<f32>, has_factors: u32,
        y: Out<Elem>, y_row: u64, y_column: u64, sums: Out<Elem>, rows: u32, columns: u32,
    }
}

const DTYPE: DType = DType::F16;

/// A thread for each row.
struct Rows;

impl KernelDef for Rows {
    type Args = RowsArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("rows".to_owned(), BlockDim::x(32))
            .dtypes(DTypes::all(DTYPE).with("sums", DType::F32))
    }

    fn build<'k>(&self, k: K<'k>, a: RowsParams<'k>) {
        let (row, [rows, columns]) = (k.thread_idx(), a.sizes);
        k.if_(row.lt(rows), || {
            let given = a.of.factors.is_given();
            let factor = a.of.factors.value.at(row).only_where(given, Fill::Zero).get::<f32>();
            let factor = given.select(factor, 1.0);
            let sum = k.fold(k.range(0u32, columns, 1u32), k.lit::<f32>(0.0), |column, sum| {
                let x = a.of.x.at([row, column]).get::<f32>() * factor;
                a.y.at([row, column]).set(x);
                sum + x
            });
            a.sums.at(row).set(sum);
        });
    }
}

/// The same with [`FlatArgs`].
struct FlatRows;

impl KernelDef for FlatRows {
    type Args = FlatArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("rows".to_owned(), BlockDim::x(32))
            .dtypes(DTypes::all(DTYPE).with("sums", DType::F32))
    }

    fn build<'k>(&self, k: K<'k>, a: FlatParams<'k>) {
        let row = k.thread_idx();
        k.if_(row.lt(a.rows), || {
            let given = a.has_factors.ne(0);
            let factor = a.factors.at(row).only_where(given, Fill::Zero).get::<f32>();
            let factor = given.select(factor, 1.0);
            let sum = k.fold(k.range(0u32, a.columns, 1u32), k.lit::<f32>(0.0), |column, sum| {
                let x = a.x.at(row.to_u64() * a.x_row + column.to_u64() * a.x_column).get::<f32>() * factor;
                a.y.at(row.to_u64() * a.y_row + column.to_u64() * a.y_column).set(x);
                sum + x
            });
            a.sums.at(row).set(sum);
        });
    }
}

const SM: Target = Target::sm(80);

#[test]
fn groups_are_the_parameters_of_their_fields_in_order() {
    let [nested, flat] = [record_module(&Rows, SM), record_module(&FlatRows, SM)]
        .map(|module| module.expect("a module").functions.remove(0));
    let names: Vec<&str> = nested.params.iter().map(|param| param.name.as_str()).collect();
    let of_group = ["of_x", "of_x_stride_0", "of_x_stride_1", "of_factors", "of_factors_given"];
    assert_eq!(names[..5], of_group);
    assert_eq!(names[5..], ["y", "y_stride_0", "y_stride_1", "sums", "sizes_0", "sizes_1"]);
    let types = |of: &warpwright_ptx::Function| of.params.iter().map(|p| p.ty).collect::<Vec<ScalarType>>();
    assert_eq!(types(&nested), types(&flat));
    let instructions = |of: &warpwright_ptx::Function| -> Vec<Inst> {
        of.blocks.iter().flat_map(|block| &block.instructions).map(|i| i.inst.clone()).collect()
    };
    assert_eq!(instructions(&nested), instructions(&flat));
}

#[test]
fn launches_pass_what_groups_hold() {
    let args = RowsArgs {
        of: ScaledArgs {
            x: Strided { data: In::slot(0), strides: [7, 2] },
            factors: Optional { value: In::slot(1), given: false },
        },
        y: Strided { data: Out::slot_at(2, 8), strides: [5, 1] },
        sums: Out::slot(3),
        sizes: [3, 4],
    };
    let slot = |slot, offset| ArgValue::Slot { slot, offset };
    let of_group = [slot(0, 0), ArgValue::U64(7), ArgValue::U64(2), slot(1, 0), ArgValue::U32(0)];
    let values = args.values();
    assert_eq!(values[..5], of_group);
    let others =
        [slot(2, 8), ArgValue::U64(5), ArgValue::U64(1), slot(3, 0), ArgValue::U32(3), ArgValue::U32(4)];
    assert_eq!(values[5..], others);
}

/// A kernel that only declares.
struct Declared(DTypes);

impl KernelDef for Declared {
    type Args = RowsArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("declared".to_owned(), BlockDim::x(32)).dtypes(self.0.clone())
    }

    fn build<'k>(&self, _: K<'k>, a: RowsParams<'k>) {
        a.sums.at(0).set(a.of.x.data.at(0).get::<f32>());
    }
}

#[test]
fn types_are_those_of_the_innermost_path() {
    let dtypes = DTypes::all(DType::F32).with("of", DType::F16).with("of.x", DType::BF16);
    assert_eq!(dtypes.get("of.x"), Some(DType::BF16));
    assert_eq!(dtypes.get("of.y.0"), Some(DType::F16));
    assert_eq!(dtypes.get("offsets"), Some(DType::F32));
    let issues = |dtypes| match record_module(&Declared(dtypes), SM) {
        Err(BuildError::Issues { issues, .. }) => issues.into_iter().map(|issue| issue.kind).collect(),
        _ => Vec::new(),
    };
    assert_eq!(issues(DTypes::all(DType::F32).with("of", DType::F16)), []);
    let untyped = IssueKind::NoDType { argument: "of.x".to_owned() };
    assert_eq!(issues(DTypes::NONE.with("y", DType::F32).with("sums", DType::F32)), [untyped]);
    let unknown = |path: &str| IssueKind::UnknownDType { argument: path.to_owned() };
    let dtypes = DTypes::all(DType::F32).with("x", DType::F16).with("of.factors", DType::F16);
    assert_eq!(issues(dtypes), [unknown("x"), unknown("of.factors")]);
}

kernel_args! {
    /// Two arguments that PTX cannot tell apart.
    struct AlikeArgs => AlikeParams { sizes: [u32; 1], sizes_0: u32 }
}

struct Alike;

impl KernelDef for Alike {
    type Args = AlikeArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("alike".to_owned(), BlockDim::x(32))
    }

    fn build<'k>(&self, _: K<'k>, _: AlikeParams<'k>) {}
}

#[test]
fn two_arguments_of_one_name_are_refused() {
    let Err(BuildError::Issues { issues, .. }) = record_module(&Alike, SM) else { panic!("no issue") };
    let kinds: Vec<_> = issues.into_iter().map(|issue| issue.kind).collect();
    assert_eq!(kinds, [IssueKind::SameParameter { parameter: "sizes_0".to_owned() }]);
}

#[test]
fn strides_lead_to_elements_and_absent_factors_are_not_read() {
    const SIZES: [u32; 2] = [3, 4];
    let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
    let stored: Vec<u8> = (0..21u8).flat_map(|i| half(f32::from(i))).collect();
    for given in [true, false] {
        let mut x = stored.clone();
        let mut factors: Vec<u8> = [2.0f32, 3.0, -1.0].iter().flat_map(|f| f.to_le_bytes()).collect();
        let (mut y, mut sums) = (half(0.0).repeat(12), vec![0; 12]);
        let scalar = |value| Arg::Scalar(value);
        let (u32, u64) = (|x| scalar(ArgValue::U32(x)), |x| scalar(ArgValue::U64(x)));
        let of_factors = if given { Arg::Buffer(&mut factors) } else { scalar(ArgValue::Address(0)) };
        let args = &mut [
            Arg::Buffer(&mut x),
            u64(7),
            u64(2),
            of_factors,
            u32(u32::from(given)),
            Arg::Buffer(&mut y),
            u64(1),
            u64(3),
            Arg::Buffer(&mut sums),
            u32(SIZES[0]),
            u32(SIZES[1]),
        ];
        run(&Rows, SM, 1, args);
        let factors = if given { [2.0, 3.0, -1.0] } else { [1.0; 3] };
        for (row, factor) in factors.into_iter().enumerate() {
            let expected: Vec<f32> = (0..4).map(|column| factor * (7 * row + 2 * column) as f32).collect();
            for (column, value) in expected.iter().enumerate() {
                let at = 2 * (row + 3 * column);
                assert_eq!([y[at], y[at + 1]], half(*value), "row {row}, column {column}");
            }
            assert_eq!(sums[4 * row..][..4], expected.iter().sum::<f32>().to_le_bytes(), "row {row}");
        }
    }
}
