//! Events on standard error.

use crate::common::{Place, finish};

/// A command that plans, compiles and launches.
const CHECK: [&str; 5] = ["check", "softplus", "--device", "emulator", "--json"];

#[test]
fn events_are_on_standard_error_when_they_are_asked_for() {
    let place = Place::new();
    let quiet = place.run(&CHECK);
    assert_eq!((quiet.code, &*quiet.err), (Some(0), ""), "{}", quiet.out);

    let told = finish(place.command().args(CHECK).env("WARPWRIGHT_LOG", "warpwright=debug"));
    assert_eq!(told.code, Some(0), "{}", told.err);
    let has = |words: &[&str]| told.err.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(
        has(&["DEBUG warpwright::plan: planned", "op=\"softplus\"", "direction=\"forward\""]),
        "{}",
        told.err
    );
    assert!(has(&["warpwright::plan: recorded", "kernel=\"softplus_f32_x4"]), "{}", told.err);
    assert!(has(&["warpwright::compile: compiled", "microseconds="]), "{}", told.err);
    assert!(has(&["warpwright::cache: miss"]), "{}", told.err);
    assert!(
        has(&["operation{op=\"softplus\" direction=\"forward\"}: warpwright::launch: launch", "grid=["]),
        "{}",
        told.err
    );
    assert!(!told.out.contains("warpwright::"), "{}", told.out);

    let launches = finish(place.command().args(CHECK).env("WARPWRIGHT_LOG", "warpwright::launch=debug"));
    assert!(launches.err.contains("warpwright::launch: launch"), "{}", launches.err);
    assert!(!launches.err.contains("warpwright::plan"), "{}", launches.err);
}

#[test]
fn a_wrong_filter_says_what_to_write() {
    let place = Place::new();
    let ran = finish(place.command().arg("ops").env("WARPWRIGHT_LOG", "warpwright=loud"));
    assert_eq!((ran.code, &*ran.out), (Some(2), ""));
    assert!(ran.err.starts_with("error: WARPWRIGHT_LOG=warpwright=loud: "), "{}", ran.err);
    assert!(ran.err.contains("help: write TARGET=LEVEL"), "{}", ran.err);
    assert!(ran.err.contains("WARPWRIGHT_LOG=warpwright=debug"), "{}", ran.err);
}
