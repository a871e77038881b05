//! Products of `f32` on tensor cores are as exact as those on the ordinary units, whatever the numbers.

use warpwright_ops::Plan;
use warpwright_ops::gemm::tuning::{self, Config, Tiled};
use warpwright_ops::gemm::{Addend, GemmArgs, GemmDesc};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, EmulatorConfig, Tensor};
use warpwright_testkit::inputs::Input;

const TARGET: Target = Target::sm(80);
const SIDES: [usize; 2] = [40, 56];

fn configs(wanted: impl Fn(&Tiled) -> bool) -> Vec<Config> {
    let all = tuning::configs(DType::F32, TARGET);
    all.into_iter().filter(|config| matches!(config, Config::Tiled(tiled) if wanted(tiled))).collect()
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

    fn run(&self, plan: &Plan<GemmDesc>) -> Vec<f32> {
        let device = Device::emulator_with(EmulatorConfig { target: TARGET, ..EmulatorConfig::default() });
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
            workspace: workspace.as_mut().map(Tensor::as_mut),
        };
        plan.launch(&stream, args).expect("launch");
        let y = y.to_vec().expect("copy");
        assert!(device.findings().is_empty());
        y
    }

    fn with(&self, config: Config) -> Vec<f32> {
        self.run(&self.desc().plan_with(TARGET, config).expect("plan"))
    }

    /// In double precision.
    fn exact(&self) -> Vec<f64> {
        let ([m, n], k) = (SIDES, self.k);
        let at = |x: &[f32], outer: usize, len: usize, p: usize| {
            f64::from(if self.across { x[p * len + outer] } else { x[outer * k + p] })
        };
        let element = |i: usize| (0..k).map(|p| at(&self.a, i / n, m, p) * at(&self.b, i % n, n, p)).sum();
        (0..m * n).map(element).collect()
    }
}

/// The difference's norm as a part of the result's.
fn error(got: &[f32], exact: &[f64]) -> f64 {
    let squares: f64 = exact.iter().map(|x| x * x).sum();
    let apart: f64 = got.iter().zip(exact).map(|(got, exact)| (f64::from(*got) - exact).powi(2)).sum();
    (apart / squares).sqrt()
}

/// The kernels on tensor cores against the best of the others.
fn compare(what: &str, k: usize, number: impl Fn(usize, f64) -> [f64; 2]) {
    for across in [false, true] {
        let product = Product::new(k, across, &number);
        let exact = product.exact();
        let errors = |configs: Vec<Config>| -> Vec<f64> {
            configs.into_iter().map(|config| error(&product.with(config), &exact)).collect()
        };
        let ordinary = errors(configs(|tiled| matches!(tiled, Tiled::Simt(c) if c.tiles.teams == 1)));
        let bound = 1.5 * ordinary.iter().copied().fold(f64::INFINITY, f64::min);
        let split = errors(configs(|tiled| matches!(tiled, Tiled::Split(_))));
        assert!(!split.is_empty() && bound < 1e-5, "{what}: {ordinary:?}");
        println!("{what}, across {across}: {split:?}, ordinary {ordinary:?}");
        assert!(split.iter().all(|error| *error <= bound), "{what}: {split:?} against {ordinary:?}");
    }
}

#[test]
fn products_on_tensor_cores_are_as_exact_as_others() {
    compare("normal", 4096, |_, x| [x; 2]);
    compare("of one sign", 4096, |_, x| [x.abs(); 2]);
    compare("few", 64, |_, x| [x; 2]);
    let spread = |at: usize, x: f64| x * 2f64.powi(at as i32 % 41 - 20);
    compare("of many sizes", 1024, |at, x| [spread(at, x); 2]);
    // Among them some that are not normal.
    compare("the least", 1024, |_, x| [x * 3e-38, x * 1e10]);
    compare("less than normal", 512, |_, x| [x * 1e-40, x * 1e12]);
    compare("the largest", 512, |_, x| [x.clamp(-4.0, 4.0) * 8e37, x * 1e-20]);
    compare("a few of the largest", 512, |at, x| [if at < 3 { 3.4e38 } else { x }, x * 1e-3]);
}

#[test]
fn what_is_not_finite_spreads_as_in_arithmetic() {
    let number = |at: usize, x: f64| {
        let special = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0];
        [special.get(at).copied().unwrap_or(x), special.get(at.wrapping_sub(500)).copied().unwrap_or(x)]
    };
    for across in [false, true] {
        let mut product = Product::new(24, across, number);
        // Not a number with all its bits set: the greatest word there is.
        product.a[0] = f32::from_bits(0x7fff_ffff);
        let exact = product.exact();
        let kinds = |wanted: fn(&&f64) -> bool| exact.iter().filter(wanted).count();
        assert!(
            kinds(|x| x.is_nan()) > 50 && kinds(|x| x.is_infinite()) > 50 && kinds(|x| x.is_finite()) > 50
        );
        for config in configs(|tiled| matches!(tiled, Tiled::Split(_))) {
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
        for config in configs(|tiled| matches!(tiled, Tiled::Split(_))) {
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
