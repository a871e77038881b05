//! GELU and its gradient on the best device there is.

use warpwright::{Device, Tensor, gelu_erf, gelu_erf_backward};

fn main() -> Result<(), warpwright::Error> {
    let device = Device::best(); // the GPU if there is one, else the emulator
    let stream = device.stream()?;
    let x = Tensor::from_slice(&device, &[-1.0f32, 0.0, 1.0, 2.0], &[2, 2])?;
    let dy = Tensor::from_slice(&device, &[1.0f32; 4], &[2, 2])?;
    let y = gelu_erf(&stream, &x)?;
    let dx = gelu_erf_backward(&stream, &x, &dy)?;
    println!("{}: y = {:?}, dx = {:?}", device.name(), y.to_vec::<f32>()?, dx.to_vec::<f32>()?);
    Ok(())
}
