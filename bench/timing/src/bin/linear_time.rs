//! Times linear layers, in microseconds with cold caches: their gradients as three launches, and with that of the bias beside that of the
//! weight; gated units as a product and the unit, and as one launch.
//!
//!     cargo run --release -p warpwright-timing --bin linear_time [-- ROWS,OUT,IN ...]

use warpwright::activation::{GatedActivation, GatedDesc};
use warpwright::matmul::{GatedLinearDesc, GemmDesc};
use warpwright::reduce::{ReduceDesc, ReduceFunction};
use warpwright::{DType, Device, Error, Operation};
use warpwright_timing::{Cold, Ready, Shared};

/// Of gated units: `OUT` is that of each weight.
const GATED: [[usize; 3]; 5] =
    [[8192, 8192, 2048], [4096, 14_336, 4096], [1024, 8192, 2048], [64, 14_336, 4096], [8, 8192, 2048]];
const SHAPES: [[usize; 3]; 3] = [[16_384, 4096, 4096], [8192, 1024, 4096], [8192, 3072, 1024]];
/// Rounds, each of which times every variant.
const ROUNDS: usize = 3;

fn main() -> Result<(), Error> {
    let device = Device::best();
    let target = device.target();
    println!("{}, {target}", device.name());
    let cold = Cold::new(&device)?;
    let asked = std::env::args().skip(1).filter_map(|arg| {
        let sides: Vec<usize> = arg.split(',').filter_map(|side| side.parse().ok()).collect();
        sides.try_into().ok()
    });
    let mut shapes: Vec<[usize; 3]> = asked.collect();
    if shapes.is_empty() {
        shapes = SHAPES.to_vec();
    }
    for sides in GATED {
        gated(&device, &cold, sides)?;
    }
    for [rows, out, inner] in shapes {
        let dtype = DType::BF16;
        let dx = GemmDesc::new(dtype, [rows, inner, out], false, false);
        let dweight = GemmDesc::new(dtype, [out, inner, rows], true, false);
        let both = GemmDesc { bias_gradient: true, ..dweight.clone() };
        let dbias = ReduceDesc {
            function: ReduceFunction::Sum,
            dtype,
            y_dtype: dtype,
            shape: vec![rows, out],
            dims: vec![0],
        };
        let ready = |desc: &GemmDesc| Ready::new(&device, &mut Shared::new(), desc.plan(target)?);
        let (dx, dweight, both) = (ready(&dx)?, ready(&dweight)?, ready(&both)?);
        let dbias = Ready::new(&device, &mut Shared::new(), dbias.plan(target)?)?;
        println!("rows, out, in {rows} {out} {inner}; {}", both.plan.steps()[0].kernel().name());
        for _ in 0..ROUNDS {
            let each = [cold.time(&dx)?, cold.time(&dweight)?, cold.time(&dbias)?, cold.time(&both)?];
            let three = cold.time_of(|stream| {
                dx.launch(stream)?;
                dweight.launch(stream)?;
                dbias.launch(stream)
            })?;
            let two = cold.time_of(|stream| {
                dx.launch(stream)?;
                both.launch(stream)
            })?;
            let [dx, dweight, dbias, both] = each;
            println!(
                "  dx {dx:.1}, dweight {dweight:.1}, dbias {dbias:.1}, dweight + dbias {both:.1}; all: {three:.1}, two launches {two:.1}"
            );
        }
    }
    Ok(())
}

/// A product with both weights, one behind the other, then the unit of its halves, as if they were apart; and both in one launch.
fn gated(device: &Device, cold: &Cold, [rows, out, inner]: [usize; 3]) -> Result<(), Error> {
    let (target, dtype, activation) = (device.target(), DType::BF16, GatedActivation::Swiglu);
    let product = GemmDesc::new(dtype, [rows, 2 * out, inner], false, true);
    let unit = GatedDesc { activation, dtype, len: rows * out };
    let (bias, saved) = (false, false);
    let both =
        GatedLinearDesc { dtype, rows, in_features: inner, out_features: out, activation, bias, saved };
    let product = Ready::new(device, &mut Shared::new(), product.plan(target)?)?;
    let unit = Ready::new(device, &mut Shared::new(), unit.plan(target)?)?;
    let both = Ready::new(device, &mut Shared::new(), both.plan(target)?)?;
    let names: Vec<_> = both.plan.steps().iter().map(|step| step.kernel().name()).collect();
    println!("gated, rows, out, in {rows} {out} {inner}; {}", names.join(" + "));
    for _ in 0..ROUNDS {
        let each = [cold.time(&product)?, cold.time(&unit)?, cold.time(&both)?];
        let two = cold.time_of(|stream| {
            product.launch(stream)?;
            unit.launch(stream)
        })?;
        let [product, unit, both] = each;
        println!("  product {product:.1}, unit {unit:.1}, two launches {two:.1}, one {both:.1}");
    }
    Ok(())
}
