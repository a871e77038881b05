//! A training step in a CUDA graph: a perceptron with one hidden layer, its loss, its gradients and the update of its weights are
//! planned, captured once and launched as often as there are batches. In the emulator the graph is the list of the launches.
//! The loss falls as that of the same training in plain Rust does.

use warpwright::activation::{
    Activation, ActivationArgs, ActivationBackwardArgs, ActivationBackwardDesc, ActivationDesc,
};
use warpwright::cross_entropy::{
    CrossEntropyArgs, CrossEntropyBackwardArgs, CrossEntropyBackwardDesc, CrossEntropyDesc,
};
use warpwright::matmul::{Addend, GemmArgs, GemmDesc};
use warpwright::{DType, Device, Error, Operation, Plan, Stream, Tensor, TensorMut, TensorRef};

const ROWS: usize = 16;
const INPUT: usize = 8;
const HIDDEN: usize = 12;
const CLASSES: usize = 3;
const RATE: f64 = 0.5;
const STEPS: usize = 20;

/// Numbers between -0.5 and 0.5 that look random.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

/// A product with its plan and its workspace.
struct Product {
    plan: Plan<GemmDesc>,
    workspace: Option<Tensor>,
}

impl Product {
    fn new(stream: &Stream, desc: &GemmDesc) -> Result<Self, Error> {
        let plan = desc.plan(stream.device().target())?;
        let workspace = plan.workspace(stream)?;
        Ok(Self { plan, workspace })
    }

    fn launch(
        &mut self,
        stream: &Stream,
        a: TensorRef<'_>,
        b: TensorRef<'_>,
        c: Addend<'_>,
        y: TensorMut<'_>,
    ) -> Result<(), Error> {
        let workspace = self.workspace.as_mut().map(Tensor::as_mut);
        Ok(self.plan.launch(stream, GemmArgs { a, b, c, bias: None, y, dbias: None, workspace })?)
    }
}

pub(crate) fn main() -> Result<(), Error> {
    let device = Device::best();
    let stream = device.new_stream()?;
    let target = device.target();
    let x = numbers(ROWS * INPUT, 1);
    // The class of a row is the place of the largest of its first numbers: something that can be learned.
    let class = |row: &[f32]| (1..CLASSES).fold(0, |best, at| if row[at] > row[best] { at } else { best });
    let classes: Vec<i64> = x.chunks(INPUT).map(|row| class(row) as i64).collect();
    let (w1, w2) = (numbers(INPUT * HIDDEN, 2), numbers(HIDDEN * CLASSES, 3));

    // Everything that the step reads and writes is allocated before the capture.
    let of_x = Tensor::from_slice_on(&stream, &x, &[ROWS, INPUT])?;
    let of_classes = Tensor::from_slice_on(&stream, &classes, &[ROWS])?;
    let mut of_w1 = Tensor::from_slice_on(&stream, &w1, &[INPUT, HIDDEN])?;
    let mut of_w2 = Tensor::from_slice_on(&stream, &w2, &[HIDDEN, CLASSES])?;
    let room = |shape: &[usize]| Tensor::empty_on(&stream, DType::F32, shape);
    let (mut h, mut a, mut da, mut dh) =
        (room(&[ROWS, HIDDEN])?, room(&[ROWS, HIDDEN])?, room(&[ROWS, HIDDEN])?, room(&[ROWS, HIDDEN])?);
    let (mut logits, mut dlogits) = (room(&[ROWS, CLASSES])?, room(&[ROWS, CLASSES])?);
    let (mut loss, mut lse, mut nll, mut count) = (room(&[])?, room(&[ROWS])?, room(&[ROWS])?, room(&[1])?);
    let dloss = Tensor::ones_on(&stream, DType::F32, &[])?;

    let f32s = |sizes, transpose_a, transpose_b| GemmDesc::new(DType::F32, sizes, transpose_a, transpose_b);
    // w = w - rate x^T dy: the product of the gradient and the update are one launch.
    let update = |sizes| GemmDesc { alpha: (-RATE).into(), beta: 1.0.into(), ..f32s(sizes, true, false) };
    let mut to_h = Product::new(&stream, &f32s([ROWS, HIDDEN, INPUT], false, false))?;
    let mut to_logits = Product::new(&stream, &f32s([ROWS, CLASSES, HIDDEN], false, false))?;
    let mut to_da = Product::new(&stream, &f32s([ROWS, HIDDEN, CLASSES], false, true))?;
    let mut update_w1 = Product::new(&stream, &update([INPUT, HIDDEN, ROWS]))?;
    let mut update_w2 = Product::new(&stream, &update([HIDDEN, CLASSES, ROWS]))?;
    let (activation, dtype, len) = (Activation::Tanh, DType::F32, ROWS * HIDDEN);
    let tanh = ActivationDesc { activation, dtype, len }.plan(target)?;
    let tanh_backward = ActivationBackwardDesc { activation, dtype, len }.plan(target)?;
    let forward = CrossEntropyDesc::new(dtype, DType::I64, [ROWS, CLASSES]);
    let cross_entropy = forward.plan(target)?;
    let cross_entropy_backward = CrossEntropyBackwardDesc { forward }.plan(target)?;
    let mut workspace = cross_entropy.workspace(&stream)?;

    // Compiled now: a capture that loads kernels takes long.
    for product in [&to_h, &to_logits, &to_da, &update_w1, &update_w2] {
        product.plan.warm_up(&device)?;
    }
    tanh.warm_up(&device)?;
    tanh_backward.warm_up(&device)?;
    cross_entropy.warm_up(&device)?;
    cross_entropy_backward.warm_up(&device)?;

    let graph = stream.capture(|s| {
        to_h.launch(s, of_x.as_ref(), of_w1.as_ref(), Addend::Absent, h.as_mut())?;
        tanh.launch(s, ActivationArgs { x: Some(h.as_ref()), y: a.as_mut() })?;
        to_logits.launch(s, a.as_ref(), of_w2.as_ref(), Addend::Absent, logits.as_mut())?;
        let args = CrossEntropyArgs {
            logits: logits.as_ref(),
            target: of_classes.as_ref(),
            loss: loss.as_mut(),
            lse: lse.as_mut(),
            nll: nll.as_mut(),
            count: Some(count.as_mut()),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        };
        cross_entropy.launch(s, args)?;
        let args = CrossEntropyBackwardArgs {
            logits: Some(logits.as_ref()),
            target: of_classes.as_ref(),
            lse: lse.as_ref(),
            nll: nll.as_ref(),
            dloss: dloss.as_ref(),
            count: Some(count.as_ref()),
            dlogits: dlogits.as_mut(),
        };
        cross_entropy_backward.launch(s, args)?;
        to_da.launch(s, dlogits.as_ref(), of_w2.as_ref(), Addend::Absent, da.as_mut())?;
        let args = ActivationBackwardArgs { x: h.as_ref(), dy: Some(da.as_ref()), dx: dh.as_mut() };
        tanh_backward.launch(s, args)?;
        update_w2.launch(s, a.as_ref(), dlogits.as_ref(), Addend::Result, of_w2.as_mut())?;
        update_w1.launch(s, of_x.as_ref(), dh.as_ref(), Addend::Result, of_w1.as_mut())?;
        // The closure returns the facade's error, so that `?` works on plans and launches alike.
        Ok::<_, Error>(())
    })?;

    let mut plain = Perceptron { w1, w2 };
    let mut first = None;
    for step in 0..STEPS {
        graph.launch(&stream)?;
        let got = loss.to_vec_on::<f32>(&stream)?[0];
        let want = plain.step(&x, &classes);
        assert!((got - want).abs() < 1e-4, "step {step}: loss {got} for {want}");
        first.get_or_insert(got);
        println!("{}: step {step:>2}, loss {got:.5}", device.name());
    }
    let last = loss.to_vec_on::<f32>(&stream)?[0];
    assert!(first.is_some_and(|first| last < 0.7 * first), "the loss falls");
    Ok(())
}

/// The same in plain Rust.
struct Perceptron {
    w1: Vec<f32>,
    w2: Vec<f32>,
}

/// `[rows, k]` by `[k, columns]`.
fn product(a: &[f32], b: &[f32], k: usize, columns: usize) -> Vec<f32> {
    let dot = |row: &[f32], column: usize| (0..k).map(|i| row[i] * b[i * columns + column]).sum::<f32>();
    a.chunks(k).flat_map(|row| (0..columns).map(move |column| dot(row, column))).collect()
}

/// `[rows, columns]` as `[columns, rows]`.
fn transposed(a: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| a.iter().skip(column).step_by(columns).copied()).collect()
}

impl Perceptron {
    /// One update; the loss before it.
    fn step(&mut self, x: &[f32], classes: &[i64]) -> f32 {
        let a: Vec<f32> = product(x, &self.w1, INPUT, HIDDEN).iter().map(|h| h.tanh()).collect();
        let mut dlogits = product(&a, &self.w2, HIDDEN, CLASSES);
        let mut loss = 0.0;
        for (row, class) in dlogits.chunks_mut(CLASSES).zip(classes) {
            let lse = row.iter().map(|logit| logit.exp()).sum::<f32>().ln();
            loss += (lse - row[*class as usize]) / ROWS as f32;
            row.iter_mut().for_each(|logit| *logit = (*logit - lse).exp() / ROWS as f32);
            row[*class as usize] -= 1.0 / ROWS as f32;
        }
        let da = product(&dlogits, &transposed(&self.w2, CLASSES), CLASSES, HIDDEN);
        let dh: Vec<f32> = da.iter().zip(&a).map(|(da, a)| da * (1.0 - a * a)).collect();
        let dw2 = product(&transposed(&a, HIDDEN), &dlogits, ROWS, CLASSES);
        let dw1 = product(&transposed(x, INPUT), &dh, ROWS, HIDDEN);
        let rate = RATE as f32;
        self.w2.iter_mut().zip(dw2).for_each(|(w, dw)| *w -= rate * dw);
        self.w1.iter_mut().zip(dw1).for_each(|(w, dw)| *w -= rate * dw);
        loss
    }
}
