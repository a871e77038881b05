//! The suite on a GPU. Without one it is skipped in so many words, and fails under `WARPWRIGHT_REQUIRE_GPU=1`.

use warpwright_runtime::Device;
use warpwright_testkit::Scope;

use crate::suite::{self, Sample};

#[test]
fn every_case_on_the_gpu() {
    match Device::cuda(0) {
        Ok(device) => suite::run(&device, Scope::Full, Sample::All),
        Err(e) => {
            let required = std::env::var_os("WARPWRIGHT_REQUIRE_GPU").is_some_and(|v| v == "1");
            assert!(!required, "WARPWRIGHT_REQUIRE_GPU=1, but there is no usable GPU: {e}");
            eprintln!("skipped: no usable GPU ({e})");
        }
    }
}
