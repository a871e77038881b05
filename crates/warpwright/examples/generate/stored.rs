//! Checkpoints of codes of 4 bits, each beside the numbers that the codes stand for.

use std::collections::HashMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize};

use super::common::random::Random;

/// How the linear layers of a checkpoint are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Layout {
    ModelOptNvfp4,
    Nvfp4,
    Mxfp4,
    Int4,
    Int4Asymmetric,
    /// With the group of each column.
    Int4ActOrder,
}

/// The magnitudes of e2m1 (OCP Microscaling Formats 1.0, table 5).
const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// A tensor: its name, type, shape and bytes.
type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

/// The number of a code, before its scale, of the group of this number.
type Value = Box<dyn Fn(usize, u8) -> f64>;

/// The file with the weights of its linear layers replaced by random codes, and the numbers of all its tensors.
pub(super) fn of_codes(file: &[u8], layout: Layout) -> (Vec<u8>, HashMap<String, Vec<f64>>) {
    let file = SafeTensors::deserialize(file).expect("a safetensors file");
    let (mut random, mut stored, mut numbers) = (Random(11), Vec::<Stored>::new(), HashMap::new());
    for (name, view) in file.iter() {
        if let Some(layer) = name.strip_suffix("_proj.weight") {
            let &[n, k] = view.shape() else { unreachable!("a matrix") };
            let (parts, values) = matrix(&mut random, &format!("{layer}_proj"), [n, k], layout);
            stored.extend(parts);
            numbers.insert(name.to_owned(), values);
        } else {
            let value = |bytes: &[u8; 4]| f64::from(f32::from_le_bytes(*bytes));
            numbers.insert(name.to_owned(), view.data().as_chunks().0.iter().map(value).collect());
            stored.push((name.to_owned(), view.dtype(), view.shape().to_vec(), view.data().to_vec()));
        }
    }
    let views = stored.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("as many bytes as the shape has"))
    });
    (serialize(views, None).expect("a file"), numbers)
}

/// One layer: its tensors, and the numbers of its weight.
fn matrix(random: &mut Random, layer: &str, [n, k]: [usize; 2], layout: Layout) -> (Vec<Stored>, Vec<f64>) {
    let mut below = |limit: usize| (random.uniform() * limit as f64) as usize;
    let group = if layout == Layout::Mxfp4 { 32 } else { 16 };
    let groups = k / group;
    let codes: Vec<u8> = (0..n * k).map(|_| below(16) as u8).collect();
    let packed: Vec<u8> = codes.as_chunks().0.iter().map(|[low, high]| low | high << 4).collect();
    let of_group: Vec<usize> = match layout {
        Layout::Int4ActOrder => (0..k).map(|column| column * 5 % groups).collect(),
        _ => (0..k).map(|column| column / group).collect(),
    };
    let part = |name: &str, dtype, shape: &[usize], bytes: Vec<u8>| {
        (format!("{layer}.weight{name}"), dtype, shape.to_vec(), bytes)
    };
    let number = |value: f32| value.to_le_bytes().to_vec();
    let e2m1 = |code: u8| if code & 8 == 0 { E2M1[usize::from(code)] } else { -E2M1[usize::from(code & 7)] };
    let (parts, scales, value): (Vec<Stored>, Vec<f64>, Value) = match layout {
        Layout::ModelOptNvfp4 | Layout::Nvfp4 => {
            // e4m3 from 1 to 1.875.
            let steps: Vec<usize> = (0..n * groups).map(|_| below(8)).collect();
            let bytes = steps.iter().map(|step| 0x38 + *step as u8).collect();
            let whole = 1.0 / 32.0;
            let mut parts = vec![part("_scale", Dtype::F8_E4M3, &[n, groups], bytes)];
            if layout == Layout::Nvfp4 {
                parts.push(part("_packed", Dtype::U8, &[n, k / 2], packed));
                parts.push(part("_global_scale", Dtype::F32, &[1], number(1.0 / whole)));
            } else {
                parts.push(part("", Dtype::U8, &[n, k / 2], packed));
                parts.push(part("_scale_2", Dtype::F32, &[], number(whole)));
            }
            let scales = steps.iter().map(|step| (1.0 + *step as f64 / 8.0) * f64::from(whole));
            (parts, scales.collect(), Box::new(move |_, code| e2m1(code)))
        }
        Layout::Mxfp4 => {
            let exponents: Vec<u8> = (0..n * groups).map(|_| 122 + below(2) as u8).collect();
            let scales = exponents.iter().map(|e| f64::from(i32::from(*e) - 127).exp2()).collect();
            let parts = vec![
                part("_packed", Dtype::U8, &[n, k / 2], packed),
                part("_scale", Dtype::U8, &[n, groups], exponents),
            ];
            (parts, scales, Box::new(move |_, code| e2m1(code)))
        }
        Layout::Int4 | Layout::Int4Asymmetric | Layout::Int4ActOrder => {
            let scales: Vec<f32> = (0..n * groups).map(|_| 0.02 + 0.001 * below(16) as f32).collect();
            let bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
            let shape = [n as i64, k as i64].into_iter().flat_map(i64::to_le_bytes).collect();
            let mut parts = vec![
                part("_packed", Dtype::I32, &[n, k / 8], packed),
                part("_scale", Dtype::F32, &[n, groups], bytes),
                part("_shape", Dtype::I64, &[2], shape),
            ];
            let mut points = vec![8; n * groups];
            if layout == Layout::Int4Asymmetric {
                points = (0..n * groups).map(|_| 4 + below(8)).collect();
                let word = |at: usize| {
                    let (rows, group) = (at / groups * 8, at % groups);
                    (0..8).fold(0u32, |word, row| {
                        let point = points.get((rows + row) * groups + group).copied().unwrap_or(0);
                        word | (point as u32) << (4 * row)
                    })
                };
                let rows = n.div_ceil(8);
                let words = (0..rows * groups).flat_map(|at| word(at).to_le_bytes()).collect();
                parts.push(part("_zero_point", Dtype::I32, &[rows, groups], words));
            }
            if layout == Layout::Int4ActOrder {
                let index = of_group.iter().flat_map(|group| (*group as i32).to_le_bytes()).collect();
                parts.push(part("_g_idx", Dtype::I32, &[k], index));
            }
            let value = move |at: usize, code: u8| f64::from(code) - points[at] as f64;
            (parts, scales.iter().map(|scale| f64::from(*scale)).collect(), Box::new(value))
        }
    };
    let values = codes.iter().enumerate().map(|(at, code)| {
        let scale = at / k * groups + of_group[at % k];
        value(scale, *code) * scales[scale]
    });
    (parts, values.collect())
}
