//! Products of `f32` on tensor cores are as exact as those on the ordinary units, whatever the numbers.

use warpwright_ops::gemm::tuning::{self, Config, PersistentConfig, SimtConfig, Tiled};
use warpwright_ops::gemm::{Addend, GemmArgs, GemmDesc};
use warpwright_ops::{Operation, Plan, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, EmulatorConfig, Tensor};
use warpwright_testkit::inputs::Input;

const SIDES: [usize; 2] = [40, 56];

/// The kernels that are wanted, with the target that they are taken for: each runs on the first that has it.
fn configs(wanted: impl Fn(&Config) -> bool) -> Vec<(Target, Config)> {
    let [older, newer] = [80, 90].map(Target::sm);
    let newest = |config: &Config| matches!(config, Config::F16x3(_));
    let of = |target| tuning::configs(DType::F32, target).into_iter().map(move |config| (target, config));
    let all = of(older).chain(of(newer).filter(|(_, config)| newest(config)));
    all.filter(|(_, config)| wanted(config)).collect()
}

/// Whether a kernel multiplies on tensor cores, as exactly as in `f32`.
fn splits(config: &Config) -> bool {
    matches!(config, Config::Tiled(Tiled::Split(_)) | Config::F16x3(_))
}

/// `a` times `b` transposed, both along the common dimension or both across it.
struct Product {
    a: Vec<f32>,
    b: Vec<f32>,
    k: usize,
    across: bool,
}

impl Product {
    /// With the numbers that `number` makes of one in a thousand and a standard normal one.
    fn new(k: usize, across: bool, number: impl Fn(usize, f64) -> [f64; 2]) -> Self {
        let [m, n] = SIDES;
        let drawn = |len: usize, side: usize| {
            let values = Input::Normal.values(len, (len + side) as u64);
            let places = (0..len).map(|i| (i * 7919 + side) % 1000);
            places.zip(values).map(|(at, value)| number(at, value)[side] as f32).collect()
        };
        Self { a: drawn(m * k, 0), b: drawn(n * k, 1), k, across }
    }

    fn desc(&self) -> GemmDesc {
        let [m, n] = SIDES;
        GemmDesc::new(DType::F32, [m, n, self.k], self.across, !self.across)
    }

    fn run(&self, target: Target, plan: &Plan<GemmDesc>) -> Vec<f32> {
        let device = Device::emulator_with(EmulatorConfig { target, ..EmulatorConfig::default() });
        let stream = device.stream().expect("stream");
        let tensor = |values: &[f32]| Tensor::from_slice(&device, values, &[values.len()]).expect("memory");
        let (a, b) = (tensor(&self.a), tensor(&self.b));
        let mut y = Tensor::empty(&device, DType::F32, &[SIDES[0] * SIDES[1]]).expect("memory");
        let mut workspace = plan.workspace(&stream).expect("memory");
        let args = GemmArgs {
            a: a.as_ref(),
            b: b.as_ref(),
            c: Addend::Absent,
            bias: None,
            y: y.as_mut(),
            dbias: None,
            workspace: workspace.as_mut().map(Tensor::as_mut),
        };
        plan.launch(&stream, args).expect("launch");
        let y = y.to_vec().expect("copy");
        assert!(device.findings().is_empty());
        y
    }

    fn with(&self, (target, config): (Target, Config)) -> Vec<f32> {
        self.run(target, &self.desc().plan_with(target, config).expect("plan"))
    }

    /// The same with the numbers at each place of the common dimension times a factor of `a` and one of `b`.
    fn times(mut self, factors: impl Fn(usize) -> [f64; 2]) -> Self {
        let (k, across) = (self.k, self.across);
        for ((side, values), outer) in [&mut self.a, &mut self.b].into_iter().enumerate().zip(SIDES) {
            for (i, value) in values.iter_mut().enumerate() {
                let place = if across { i / outer } else { i % k };
                *value = (f64::from(*value) * factors(place)[side]) as f32;
            }
        }
        self
    }

    /// The pairs of factors whose products element `i` of the result adds up.
    fn factors(&self, i: usize) -> impl Iterator<Item = [f32; 2]> {
        let ([m, n], k) = (SIDES, self.k);
        let at = move |x: &[f32], outer: usize, len: usize, p: usize| {
            if self.across { x[p * len + outer] } else { x[outer * k + p] }
        };
        (0..k).map(move |p| [at(&self.a, i / n, m, p), at(&self.b, i % n, n, p)])
    }

    /// In double precision.
    fn exact(&self) -> Vec<f64> {
        let element = |i: usize| self.factors(i).map(|[a, b]| f64::from(a) * f64::from(b)).sum();
        (0..SIDES[0] * SIDES[1]).map(element).collect()
    }

    /// In single precision, one product after the other.
    fn in_order(&self) -> Vec<f32> {
        let element = |i: usize| self.factors(i).fold(0.0, |sum: f32, [a, b]| a.mul_add(b, sum));
        (0..SIDES[0] * SIDES[1]).map(element).collect()
    }
}

/// The difference's norm as a part of the result's.
fn error(got: &[f32], exact: &[f64]) -> f64 {
    let squares: f64 = exact.iter().map(|x| x * x).sum();
    let apart: f64 = got.iter().zip(exact).map(|(got, exact)| (f64::from(*got) - exact).powi(2)).sum();
    (apart / squares).sqrt()
}

/// The kernels on tensor cores against the best of the others, whose blocks share the common dimension here as theirs do; those that go
/// through all of it against sums in order.
fn compare(what: &str, k: usize, number: impl Fn(usize, f64) -> [f64; 2]) {
    compare_times(what, k, number, |_| [1.0; 2]);
}

/// The same with factors along the common dimension.
fn compare_times(
    what: &str,
    k: usize,
    number: impl Fn(usize, f64) -> [f64; 2],
    factors: impl Fn(usize) -> [f64; 2],
) {
    let of_one_team = |config: &Config| matches!(config, Config::Tiled(Tiled::Simt(SimtConfig { tiles, .. })) if tiles.teams == 1);
    for across in [false, true] {
        let product = Product::new(k, across, &number).times(&factors);
        let exact = product.exact();
        let errors = |configs: Vec<(Target, Config)>| -> Vec<f64> {
            configs.into_iter().map(|config| error(&product.with(config), &exact)).collect()
        };
        let ordinary = errors(configs(of_one_team));
        let bound = 1.5 * ordinary.iter().copied().fold(f64::INFINITY, f64::min);
        let in_order = error(&product.in_order(), &exact);
        let split = errors(configs(|config| matches!(config, Config::Tiled(Tiled::Split(_)))));
        let pairs = errors(configs(|config| matches!(config, Config::F16x3(_))));
        assert!(!split.is_empty() && !pairs.is_empty() && bound < 1e-5, "{what}: {ordinary:?}");
        println!(
            "{what}, across {across}: {split:?}, {pairs:?}, ordinary {ordinary:?}, in order {in_order:?}"
        );
        assert!(split.iter().all(|error| *error <= bound), "{what}: {split:?} against {ordinary:?}");
        let bound = 1.5 * in_order;
        assert!(pairs.iter().all(|error| *error <= bound), "{what}: {pairs:?} against {in_order:?}");
    }
}

#[test]
fn products_on_tensor_cores_are_as_exact_as_others() {
    compare("normal", 1024, |_, x| [x; 2]);
    compare("of one sign", 2048, |_, x| [x.abs(); 2]);
    compare("few", 64, |_, x| [x; 2]);
    compare("few of one sign", 96, |_, x| [x.abs(); 2]);
    let spread = |at: usize, x: f64| x * 2f64.powi(at as i32 % 41 - 20);
    compare("of many sizes", 1024, |at, x| [spread(at, x); 2]);
    // Among them some that are not normal.
    compare("the least", 1024, |_, x| [x * 3e-38, x * 1e10]);
    compare("less than normal", 512, |_, x| [x * 1e-40, x * 1e12]);
    compare("the largest", 512, |_, x| [x.clamp(-4.0, 4.0) * 8e37, x * 1e-20]);
    compare("a few of the largest", 512, |at, x| [if at < 3 { 3.4e38 } else { x }, x * 1e-3]);
    // Large times small: what is small beside the largest of its row is all that there is.
    let opposite = |place: usize| [40 - place as i32 % 81, place as i32 % 81 - 40].map(|e| 2f64.powi(e));
    compare_times("of opposite sizes", 512, |_, x| [x; 2], opposite);
    let alone = |place: usize| if place < 3 { [1e12, 0.0] } else { [1e-6, 1.0] };
    compare_times("beside the largest, alone", 256, |_, x| [x; 2], alone);
}

#[test]
fn what_is_not_finite_spreads_as_in_arithmetic() {
    let number = |at: usize, x: f64| {
        let special = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0];
        [special.get(at).copied().unwrap_or(x), special.get(at.wrapping_sub(500)).copied().unwrap_or(x)]
    };
    for across in [false, true] {
        let mut product = Product::new(24, across, number);
        // Not a number with all its bits set: the largest word there is.
        product.a[0] = f32::from_bits(0x7fff_ffff);
        let exact = product.exact();
        let kinds = |wanted: fn(&&f64) -> bool| exact.iter().filter(wanted).count();
        assert!(
            kinds(|x| x.is_nan()) > 50 && kinds(|x| x.is_infinite()) > 50 && kinds(|x| x.is_finite()) > 50
        );
        for config in configs(splits) {
            for (got, exact) in product.with(config).into_iter().zip(&exact) {
                let (got, exact) = (f64::from(got), *exact);
                let same = got.is_nan() && exact.is_nan() || got == exact;
                assert!(same || (got - exact).abs() <= 1e-5, "{got} for {exact}");
            }
        }
    }
}

#[test]
fn rows_do_not_depend_on_what_is_in_others() {
    for across in [false, true] {
        let mut product = Product::new(40, across, |_, x| [x; 2]);
        for config in configs(splits) {
            let first = product.a[0];
            let plain = product.with(config);
            product.a[0] = f32::NAN;
            let special = product.with(config);
            product.a[0] = first;
            let (row, others) = special.split_at(SIDES[1]);
            assert!(row.iter().all(|x| x.is_nan()) && others == &plain[SIDES[1]..]);
        }
    }
}

#[test]
fn pairs_are_for_large_products_and_layouts_with_room_for_them() {
    let target = Target::sm(90);
    let entries = |desc: &GemmDesc| {
        let plan = desc.plan(target).expect("plan");
        let names = plan.steps().iter().map(|step| step.kernel().name().to_owned());
        (names.collect::<Vec<_>>(), plan.workspace_bytes())
    };
    let large = |a, b| GemmDesc::new(DType::F32, [2048, 1024, 1536], a, b);
    let (names, workspace) = entries(&large(false, true));
    assert_eq!(names, ["gemm_split_f16_both_v4", "gemm_f32_kk_f16x3_wgp_128x128_g2_s6_c1"]);
    // Pairs of both, and a scale for each row and column; all begin at multiples of 16 bytes.
    let (pairs, scales) = ((2048 + 1024) * 1536 * 4, (2048 + 1024) * 4);
    assert!((pairs + scales..=pairs + scales + 64).contains(&workspace), "{workspace}");
    let (names, _) = entries(&large(true, false));
    let of_columns = ["gemm_column_extents_v4", "gemm_split_f16_cols_v4"];
    assert_eq!(names[..4], [of_columns, of_columns].concat());
    // Rows that begin anywhere are split element by element.
    let odd = GemmDesc { lda: 1537, ..large(false, true) };
    assert_eq!(entries(&odd).0[..2], ["gemm_split_f16_rows_v1", "gemm_split_f16_rows_v4"]);
    let small = GemmDesc::new(DType::F32, [64, 64, 64], false, true);
    assert!(entries(&small).0.iter().all(|name| !name.contains("f16x3")));

    let wide = configs(|config| matches!(config, Config::F16x3(_)));
    let Some((_, Config::F16x3(layout))) = wide.first() else { panic!("no layout of pairs") };
    for layout in [
        PersistentConfig { cols: 256, ..*layout },
        PersistentConfig { rows: 256, ..*layout },
        PersistentConfig { stages: 3, ..*layout },
    ] {
        let refused = small.plan_with(target, Config::F16x3(layout));
        assert!(
            matches!(&refused, Err(PlanError::Parameter { op: "gemm", parameter: "config", got, .. }) if *got == layout.name()),
            "{layout:?}: {refused:?}"
        );
    }
    let empty = GemmDesc::new(DType::F32, [64, 64, 0], false, true);
    let refused = empty.plan_with(target, Config::F16x3(*layout));
    assert!(matches!(refused, Err(PlanError::Parameter { op: "gemm", parameter: "k", .. })), "{refused:?}");
}
