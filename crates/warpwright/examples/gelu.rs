//! GELU and its gradient on the best device there is.

use warpwright::{Device, Tensor, gelu_erf, gelu_erf_backward};

pub(crate) fn main() -> Result<(), warpwright::Error> {
    let device = Device::best(); // the GPU if there is one, else the emulator
    let stream = device.stream()?;
    let x = Tensor::from_slice(&device, &[-1.0f32, 0.0, 1.0, 2.0], &[2, 2])?;
    let dy = Tensor::from_slice(&device, &[1.0f32; 4], &[2, 2])?;
    let y = gelu_erf(&stream, &x)?;
    let dx = gelu_erf_backward(&stream, &x, &dy)?;
    for (x, y) in [-1.0f32, 0.0, 1.0, 2.0].into_iter().zip(y.to_vec::<f32>()?) {
        // Abramowitz and Stegun 7.1.26, within 1.5e-7.
        let t = 1.0 / (1.0 + 0.327_591_1 * x.abs() / 2.0f32.sqrt());
        let poly =
            t * (0.254_829_6 + t * (-0.284_496_74 + t * (1.421_413_8 + t * (-1.453_152 + t * 1.061_405_4))));
        let erf = (1.0 - poly * (-x * x / 2.0).exp()).copysign(x);
        assert!((y - 0.5 * x * (1.0 + erf)).abs() < 1e-6, "gelu({x}) = {y}");
    }
    println!("{}: y = {:?}, dx = {:?}", device.name(), y.to_vec::<f32>()?, dx.to_vec::<f32>()?);
    Ok(())
}
