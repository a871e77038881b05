//! A kernel of one's own: written in Rust, recorded as PTX, launched on the best device there is.

use std::error::Error;

use warpwright::dsl::prelude::*;
use warpwright::{Device, LaunchStep, Tensor};

kernel_args! {
    /// `c = a + b`
    pub struct AddArgs => AddParams { a: In<Elem>, b: In<Elem>, c: Out<Elem>, n: u64 }
}

struct Add {
    dtype: DType,
    width: u32,
}

impl KernelDef for Add {
    type Args = AddArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("add_{}_x{}", self.dtype, self.width), BlockDim::x(256))
            .dtypes(DTypes::all(self.dtype))
    }

    fn build<'k>(&self, k: K<'k>, args: AddParams<'k>) {
        elementwise(k, args.n, self.width, |i, width| {
            let (a, b) = (args.a.at(i).load::<f32>(width), args.b.at(i).load::<f32>(width));
            args.c.at(i).store(a.zip(b, |a, b| a + b));
        });
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::best();
    let stream = device.stream()?;
    let n = 1000;
    let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let a = Tensor::from_slice(&device, &values, &[n])?;
    let b = Tensor::from_slice(&device, &values, &[n])?;
    let c = Tensor::empty(&device, DType::F32, &[n])?;

    let add = Add { dtype: DType::F32, width: 4 };
    let kernel = record(&add, device.target())?;
    let grid = elementwise_grid(n as u64, 256, add.width).ok_or("too many elements for one launch")?;
    let args = AddArgs { a: In::slot(0), b: In::slot(1), c: Out::slot(2), n: n as u64 };
    let step = LaunchStep::new(kernel, grid, args.values());
    stream.launch(&step, &[a.binding(), b.binding(), c.binding()])?;

    let c = c.to_vec::<f32>()?;
    assert!(c.iter().zip(&values).all(|(c, a)| *c == a + a));
    println!("{}: 999 + 999 = {}", device.name(), c[999]);
    Ok(())
}
