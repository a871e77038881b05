//! Cases of products of groups of rows.

use std::sync::Arc;

use warpwright_ops::Direction;
use warpwright_ops::grouped_gemm::tuning::{self, PersistentConfig};
use warpwright_ops::grouped_gemm::{DTYPES, GroupedGemmArgs, GroupedGemmDesc, Grouping, reference};
use warpwright_ptx::DType;

use crate::budget;
use crate::case::{Bench, Case, CaseError, Scope, Subject, say};
use crate::inputs::Input;
use crate::measure::{Comparison, Expected};
use crate::storage;

#[derive(Clone, Debug)]
struct Product {
    desc: GroupedGemmDesc,
    ends: Vec<i32>,
    /// Whether there are NaN and infinities in the rows of a group.
    special: bool,
    /// Elements past an aligned address.
    lead: usize,
    /// The kernel, where the target has it; otherwise the one that is chosen for the sizes.
    config: Option<PersistentConfig>,
}

/// Every case of the family.
pub(crate) fn cases(scope: Scope) -> Vec<Case> {
    let mut out = Vec::new();
    for (op, grouping) in [("grouped_gemm", Grouping::M), ("k_grouped_gemm", Grouping::K)] {
        for dtype in DTYPES {
            for subject in situations(grouping, dtype, scope) {
                let d = &subject.desc;
                let GroupedGemmDesc { lda, ldb, ldy, transpose_b, .. } = subject.desc;
                let of_b = if transpose_b { "b transposed" } else { "b as it is" };
                let mut input = format!("ends {:?}, {of_b}, ld {lda} {ldb} {ldy}", subject.ends);
                input.extend(subject.config.map(|config| format!(", {}", config.name())));
                say(&mut input, [(subject.special, ", special"), (subject.lead > 0, ", misaligned")]);
                out.push(Case {
                    op,
                    direction: Direction::Forward,
                    dtype,
                    shape: vec![d.groups, d.m, d.n, d.k],
                    input,
                    budget: budget::normalised(dtype),
                    subject: Arc::new(subject),
                });
            }
        }
    }
    out
}

/// A product of `sizes` of which the rows of the groups are those of `ends`.
fn product(grouping: Grouping, dtype: DType, ends: &[i32], sizes: [usize; 3], transpose_b: bool) -> Product {
    let desc = match grouping {
        Grouping::M => GroupedGemmDesc::new(dtype, ends.len(), sizes, transpose_b),
        Grouping::K => GroupedGemmDesc::new_k(dtype, ends.len(), sizes),
    };
    Product { desc, ends: ends.to_vec(), special: false, lead: 0, config: None }
}

/// The same, with a gap of `pad` elements behind each row.
fn padded(product: Product, pad: usize) -> Product {
    let d = product.desc;
    let desc = GroupedGemmDesc { lda: d.lda + pad, ldb: d.ldb + pad, ldy: d.ldy + pad, ..d };
    Product { desc, ..product }
}

fn situations(grouping: Grouping, dtype: DType, scope: Scope) -> Vec<Product> {
    let mut all = Vec::new();
    // `rows` of all groups, and the two other sides.
    let of = |ends: &[i32], rows: usize, [first, second]: [usize; 2], transpose_b: bool| {
        let sizes = match grouping {
            Grouping::M => [rows, first, second],
            Grouping::K => [first, second, rows],
        };
        product(grouping, dtype, ends, sizes, transpose_b)
    };
    let of_b: &[bool] = if grouping == Grouping::M { &[true, false] } else { &[false] };
    for &transpose_b in of_b {
        // Empty groups first, last and between, ends within tiles and slices, and rows behind them.
        all.push(of(&[0, 5, 5, 70, 140, 140], 150, [72, 80], transpose_b));
        all.push(of(&[130], 130, [24, 40], transpose_b));
        all.push(padded(of(&[33, 65, 129], 129, [40, 72], transpose_b), 8));
        all.push(padded(of(&[33, 65, 66], 70, [37, 45], transpose_b), 3));
        all.push(of(&[3, 20], 20, [35, 50], transpose_b));
        all.push(Product { lead: 1, ..of(&[20, 30], 40, [24, 32], transpose_b) });
        all.push(Product { special: true, ..of(&[40, 71, 100], 100, [32, 48], transpose_b) });
        // Numbers that no caller should give: they lead out of no tensor.
        all.push(of(&[-3, 40, 20, i32::MIN, 900, 60, i32::MAX], 150, [72, 80], transpose_b));
        for ends in [[0, 0].as_slice(), &[]] {
            all.push(of(ends, 20, [16, 24], transpose_b));
        }
        for (rows, sides) in [(0, [8, 8]), (10, [0, 8]), (10, [8, 0]), (10, [1, 1])] {
            all.push(of(&[(rows / 3) as i32, (rows / 2) as i32], rows, sides, transpose_b));
        }
        // Every kernel of sm_90a: more than a round of its ring, a whole tile and one that a group ends in.
        let sweeps = tuning::sweep().into_iter().filter(|config| config.height == 8 && dtype == DType::BF16);
        for config in tuning::configs().into_iter().chain(sweeps).filter(|_| dtype != DType::F32) {
            let (rows, cols) = (config.rows as usize, config.cols as usize);
            let depth = config.stages as usize * 64 + 40;
            let (ends, sides): (Vec<i32>, _) = match grouping {
                Grouping::M => {
                    (vec![5, rows as i32 + 7, rows as i32 + 7, 2 * rows as i32], [cols + 24, depth])
                }
                Grouping::K => (vec![5, 5, 64, depth as i32 + 64], [rows + 8, cols + 24]),
            };
            let all_rows = ends.last().map_or(0, |end| *end as usize + 3);
            all.push(Product { config: Some(config), ..of(&ends, all_rows, sides, transpose_b) });
        }
    }
    if scope == Scope::Full {
        for rows in [1, 2, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200] {
            for &transpose_b in of_b {
                let end = |part: usize| (rows * part / 5) as i32;
                let ends: Vec<i32> = [1, 2, 2, 5].map(end).to_vec();
                all.push(of(&ends, rows, [40, 24], transpose_b));
                all.push(of(&ends, rows, [rows, 48], transpose_b));
                all.push(of(&ends, rows, [24, rows], transpose_b));
                let many: Vec<i32> = (1..=40).map(|group| (rows * group / 40) as i32).collect();
                all.push(of(&many, rows, [24, 32], transpose_b));
            }
        }
    }
    all
}

impl Product {
    fn values(&self, len: usize, salt: u64) -> Vec<f64> {
        let values = Input::Normal.values(len, salt << 32 | len as u64);
        values.into_iter().map(|v| storage::round(self.desc.dtype, v)).collect()
    }

    /// Rows of the second group of an operand are of numbers that nothing cancels.
    fn spoil(&self, values: &mut [f64], leading: usize) {
        if let (true, &[first, second, ..]) = (self.special, &self.ends[..]) {
            let rows = &mut values[first as usize * leading..second as usize * leading];
            rows.iter_mut().step_by(5).for_each(|v| *v = f64::NAN);
            rows.iter_mut().skip(1).step_by(5).for_each(|v| *v = f64::INFINITY);
        }
    }
}

impl Subject for Product {
    fn run(&self, bench: &mut Bench<'_>) -> Result<Comparison, CaseError> {
        let desc = &self.desc;
        let plan = bench.plan(desc, self.config, GroupedGemmDesc::plan_with)?;
        let len = |name: &str| plan.tensor(name).map_or(0, |spec| spec.len);
        let (mut a_values, mut b_values) = (self.values(len("a"), 1), self.values(len("b"), 2));
        self.spoil(&mut a_values, desc.lda);
        if desc.grouping == Grouping::K {
            self.spoil(&mut b_values, desc.ldb);
        }
        let ends_values: Vec<f64> = self.ends.iter().map(|end| f64::from(*end)).collect();
        let a = bench.input("a", desc.dtype, &a_values, self.lead)?;
        let b = bench.input("b", desc.dtype, &b_values, self.lead)?;
        let ends = bench.input("ends", DType::I32, &ends_values, 0)?;
        let mut y = bench.output("y", desc.dtype, len("y"), self.lead)?;
        bench.launch(|stream| {
            let args = GroupedGemmArgs { a: a.view()?, b: b.view()?, ends: ends.view()?, y: y.view_mut()? };
            Ok(plan.launch(stream, args)?)
        })?;
        // What lies between the rows stays as it was.
        let (poison, got) = (Bench::poison(desc.dtype), bench.read(&y)?);
        let mut untouched = vec![true; got.len()];
        let (mut of_rows, mut expected) = (Vec::new(), Vec::new());
        let groups = reference::rows_of_groups(desc, &self.ends);
        let group_of =
            |row: usize| groups.iter().position(|rows| rows.contains(&row)).unwrap_or(groups.len());
        let results: Vec<(usize, usize, usize)> = match desc.grouping {
            _ if got.is_empty() => Vec::new(),
            Grouping::M => (0..desc.m).map(|row| (group_of(row), row, row)).collect(),
            Grouping::K => (0..groups.len() * desc.m).map(|at| (at / desc.m, at % desc.m, at)).collect(),
        };
        for (group, row, at) in results {
            for col in 0..desc.n {
                let at = at * desc.ldy + col;
                untouched[at] = false;
                let (value, scale) =
                    reference::element(desc, (&a_values, &b_values), &groups, (group, row, col));
                of_rows.push(got[at]);
                expected.push(Expected { value, scale, underflow: 0.0 });
            }
        }
        let damaged = (0..got.len()).find(|&at| untouched[at] && got[at].to_bits() != poison.to_bits());
        if let Some(at) = damaged {
            return Err(CaseError::Damage { tensor: "y", offset: (at * desc.dtype.bytes()) as i64 });
        }
        Ok(crate::measure::compare(desc.dtype, &of_rows, &expected, poison))
    }
}
