//! Times the gradients of linear layers, in microseconds with cold caches: as three launches, and with that of the bias beside that of the
//! weight.
//!
//!     cargo run --release -p warpwright-timing --bin linear_time [-- ROWS,OUT,IN ...]

use warpwright::matmul::GemmDesc;
use warpwright::reduce::{ReduceDesc, ReduceFunction};
use warpwright::{DType, Device, Error, Operation};
use warpwright_timing::{Cold, Ready, Shared};

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
