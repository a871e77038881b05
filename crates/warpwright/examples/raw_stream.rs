//! Memory and streams of another library: an operation reads and writes raw addresses, and on a GPU runs on a raw `CUstream`.
//!
//! Here the other library is played by this one: it hands out numbers. PyTorch's are `tensor.data_ptr()` and
//! `torch.cuda.current_stream().cuda_stream`, those of the CUDA runtime a `float *` and a `cudaStream_t`.

use warpwright::activation::{Activation, ActivationArgs, ActivationDesc};
use warpwright::{DType, Device, Error, Operation, Tensor, TensorMut, TensorRef, interop};

const LEN: usize = 1000;

pub(crate) fn main() -> Result<(), Error> {
    let device = Device::best();
    let theirs = device.new_stream()?;
    let values: Vec<f32> = (0..LEN).map(|i| i as f32 / 100.0 - 5.0).collect();
    let x = Tensor::from_slice_on(&theirs, &values, &[LEN])?;
    let y = Tensor::zeros_on(&theirs, DType::F32, &[LEN])?;
    let (x_address, y_address) = (x.buffer().address(), y.buffer().address());

    let stream = if device.is_emulator() {
        // The emulator has no raw streams, and says so.
        assert!(interop::raw_stream(&theirs).is_err());
        theirs.clone()
    } else {
        let raw = interop::raw_stream(&theirs)?;
        interop::check_stream(&device, raw)?;
        // SAFETY: the stream is one of the device's primary context, and outlives this one.
        unsafe { interop::stream_from_raw(&device, raw)? }
    };

    let plan =
        ActivationDesc { activation: Activation::Silu, dtype: DType::F32, len: LEN }.plan(device.target())?;
    // SAFETY: both are LEN floats of this device that live until the stream was waited for, and nothing else writes them.
    let (x_view, y_view) = unsafe {
        (
            TensorRef::from_raw(&device, x_address, DType::F32, &[LEN], None)?,
            TensorMut::from_raw(&device, y_address, DType::F32, &[LEN], None)?,
        )
    };
    plan.launch(&stream, ActivationArgs { x: Some(x_view), y: y_view })?;
    stream.synchronize()?;

    let got = y.to_vec_on::<f32>(&theirs)?;
    for (x, got) in values.iter().zip(&got) {
        let want = x / (1.0 + (-x).exp());
        assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "silu({x}) = {got} for {want}");
    }
    println!("{}: silu of {LEN} floats at {x_address:#x}", device.name());
    Ok(())
}
