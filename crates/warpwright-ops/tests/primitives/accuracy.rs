//! f32 GELU and SiLU are at most half as far again from the truth as PyTorch's, on standard normal input.

use warpwright_ops::Direction;
use warpwright_ptx::DType;
use warpwright_runtime::Device;
use warpwright_testkit::budget::{PYTORCH_F32_BACKWARD, PYTORCH_F32_FORWARD};
use warpwright_testkit::{Filter, cases, run_case};

#[test]
fn f32_functions_are_as_exact_as_pytorch() {
    let filter = Filter {
        ops: ["gelu_erf", "gelu_tanh", "silu"].map(str::to_owned).to_vec(),
        dtypes: vec![DType::F32],
        ..Filter::default()
    };
    let device = Device::emulator();
    let normal: Vec<_> =
        cases(&filter).into_iter().filter(|c| c.input == "normal" && c.shape[0] >= 4096).collect();
    assert_eq!(normal.len(), 6);
    for case in normal {
        let result = run_case(&device, &case);
        let pytorch = match case.direction {
            Direction::Forward => PYTORCH_F32_FORWARD,
            Direction::Backward => PYTORCH_F32_BACKWARD,
        };
        println!("{case}: {:.2e}, PyTorch {pytorch:.0e}", result.error);
        assert!(
            result.error <= 1.5 * pytorch,
            "{case}: {:.2e} against PyTorch's {pytorch:.0e}",
            result.error
        );
    }
}
