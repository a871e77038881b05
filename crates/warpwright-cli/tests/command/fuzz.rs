//! `fuzz`: random kernels.

use serde_json::Value;

use crate::common::Place;

#[test]
fn emulators_agree() {
    let place = Place::new();
    let ran = place.run(&["fuzz", "--seeds", "100..130", "--device", "emulator", "-o", "found"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(
        ran.out.starts_with("30 kernels, the same everywhere: emulator, emulator in another order;"),
        "{}",
        ran.out
    );
    let ran = place.run(&["fuzz", "--seeds", "7", "--device", "emulator", "--json"]);
    let value: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!((value["kernels"].as_u64(), value["found"].as_array().map(Vec::len)), (Some(1), Some(0)));
}

#[test]
fn ranges_levels_and_devices_that_are_none_are_refused() {
    let place = Place::new();
    let cases: [(&[&str], &str); 7] = [
        (&["--seeds", "5..5"], "has no number"),
        (&["--seeds", "9..3"], "has no number"),
        (&["--seeds", "x..3"], "\"x\": invalid digit"),
        (&["--seeds", "1..99999999999999999999"], "too large"),
        (&["--levels", "5"], "5 is not in 0..=4"),
        (&["--device", "tpu"], "names no device"),
        (&["--device", "cuda:x"], "names no device"),
    ];
    place.refuses(&["fuzz"], &cases);
    place.write("file", "");
    place.refused(&["fuzz", "--seeds", "1", "--device", "emulator", "-o", "file"], &["file: cannot make"]);
}
