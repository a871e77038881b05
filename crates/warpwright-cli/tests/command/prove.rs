//! `prove` as a user runs it, and what it says of our own kernels.

use serde_json::Value;

use crate::common::Place;

/// `x[i] += y[i]` for `i < n`; with another comparison, for one more.
fn add(comparison: &str) -> String {
    format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n
.visible .entry add(.param .u64 x, .param .u64 y, .param .u32 n)
{{
    .reg .pred %p<1>; .reg .b32 %r<5>; .reg .b64 %rd<5>; .reg .f32 %f<3>;
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    setp.{comparison}.u32 %p0, %r4, %r0;
    @%p0 bra DONE;
    mul.wide.u32 %rd2, %r4, 4;
    add.s64 %rd3, %rd0, %rd2;
    add.s64 %rd4, %rd1, %rd2;
    ld.global.f32 %f0, [%rd3];
    ld.global.f32 %f1, [%rd4];
    add.rn.f32 %f2, %f0, %f1;
    st.global.f32 [%rd3], %f2;
DONE:
    ret;
}}
"
    )
}

const PROVE: [&str; 6] = ["prove", "k.ptx", "--array", "x=n:f32", "--array", "y=n:f32"];
const GRID: [&str; 2] = ["--assume", "nctaid.x*ntid.x <= 4294967296"];

#[test]
fn a_guarded_kernel_is_proved() {
    let place = Place::new();
    place.write("k.ptx", add("ge"));
    let ran = place.run(&[&PROVE[..], &GRID].concat());
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("bounds: proved (3 accesses)"), "{}", ran.out);
    assert!(ran.out.contains("races: proved"), "{}", ran.out);
    assert!(ran.out.contains("assumed: ntid.y = 1: %tid.y is not read"), "{}", ran.out);
    // Without the assumption an index of 32 bits wraps in the largest grids.
    let ran = place.run(&PROVE);
    assert_eq!(ran.code, Some(3), "{}", ran.out);
    assert!(
        ran.out.contains("races: not decided\n  line 20: two threads of different blocks"),
        "{}",
        ran.out
    );
}

#[test]
fn a_refutation_runs_again() {
    let place = Place::new();
    place.write("k.ptx", add("gt"));
    let ran = place.run(&[&PROVE[..], &GRID].concat());
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    let again =
        ran.out.lines().find_map(|line| line.trim().strip_prefix("= again: warpwright ")).expect("a command");
    let words: Vec<&str> = again.split_whitespace().collect();
    let repeated = place.run(&words);
    assert_eq!(repeated.code, Some(1), "{}{}", repeated.out, repeated.err);
    for part in
        ["error[memcheck/out-of-bounds]: loads 4 bytes 0 bytes past the end of `x", "--> add, line 20"]
    {
        assert!(ran.out.contains(part) && repeated.out.contains(part), "{}{}", ran.out, repeated.out);
    }
    // As data.
    let ran = place.run(&[&PROVE[..], &GRID, &["--json"]].concat());
    let value: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(value["bounds"]["verdict"], "refuted");
    assert_eq!(value["bounds"]["finding"]["line"], 20);
    assert!(
        value["bounds"]["run"].as_str().is_some_and(|run| run.ends_with(words[words.len() - 1])),
        "{value:#}"
    );
    assert_eq!(value["races"]["verdict"], "proved");
    let ran = place.run(&[&PROVE[..4], &["--format", "sarif"]].concat());
    let value: Value = serde_json::from_str(&ran.out).expect("SARIF");
    let rules: Vec<&str> = value["runs"][0]["results"]
        .as_array()
        .expect("results")
        .iter()
        .filter_map(|result| result["ruleId"].as_str())
        .collect();
    assert!(rules.contains(&"memcheck/out-of-bounds") && rules.contains(&"prove/races"), "{rules:?}");
}

#[test]
fn contracts_that_do_not_fit_are_named() {
    let place = Place::new();
    place.write("k.ptx", add("ge"));
    let cases: [(&[&str], &str); 11] = [
        (&["--array", "z=n:f32"], "`z` is no parameter of the kernel"),
        (&["--array", "x=n"], "an array is COUNT:DTYPE"),
        (&["--array", "n:f32"], "has no name"),
        (&["--array", "x=m:f32"], "`m` is neither a parameter"),
        (&["--range", "n=5..1"], "a range is MIN..MAX"),
        (&["--range", "n=0..4294967296"], "does not fit the type"),
        (&["--range", "x=n"], "a range is"),
        (&["--assume", "n +"], "expected a number, a name or a parenthesis"),
        (&["--assume", "n / (n - n) > 0"], "divides by what may not be positive"),
        (&["--shared", "n n"], "expected an operator or the end"),
        (&["--entry", "other"], "holds no kernel `other`"),
    ];
    place.refuses(&["prove", "k.ptx"], &cases);
    place.refused(&["prove", "nowhere.ptx"], &["nowhere.ptx"]);
}

/// Emits an operation and proves its one kernel, of whose arrays `extent` says how long each is.
fn assert_proved(op: &[&str], extent: impl Fn(&str) -> String, more: &[&str]) {
    let place = Place::new();
    let emitted = place.run(&[&["emit"], op].concat());
    assert_eq!(emitted.code, Some(0), "{op:?}: {}", emitted.err);
    place.write("k.ptx", &emitted.out);
    let pointers =
        emitted.out.lines().filter_map(|line| line.trim().strip_prefix(".param .u64 .ptr .global "));
    let arrays: Vec<String> = pointers
        .map(|name| name.trim_end_matches(','))
        .map(|name| format!("{name}={}", extent(name)))
        .collect();
    assert!(!arrays.is_empty(), "{op:?}");
    let mut args = vec!["prove", "k.ptx"];
    arrays.iter().for_each(|array| args.extend(["--array", array]));
    args.extend(more);
    let ran = place.run(&args);
    assert_eq!(ran.code, Some(0), "{op:?}: {}{}", ran.out, ran.err);
}

#[test]
fn our_activations_are_proved() {
    for op in ["relu", "gelu_erf", "silu", "softplus", "swiglu", "geglu_tanh"] {
        for (dtype, backward) in [("f32", false), ("bf16", false), ("f64", true), ("f16", true)] {
            let direction: &[&str] = if backward { &["--backward"] } else { &[] };
            let args = [&[op, "--dtype", dtype], direction].concat();
            assert_proved(&args, |_| format!("n:{dtype}"), &[]);
        }
    }
    assert_proved(&["cast"], |name| format!("n:{}", if name == "x" { "f32" } else { "bf16" }), &[]);
}

#[test]
fn our_norms_and_softmax_are_proved() {
    let rows = ["--assume", "nctaid.x == rows"];
    let softmax = ["--assume", "n % 4 == 0", "--range", "n=1..4096"];
    assert_proved(&["softmax"], |_| "rows*n:f32".to_owned(), &[&rows[..], &softmax].concat());
    let norm = ["--assume", "len % 4 == 0", "--range", "len=1..4096"];
    for op in ["layer_norm", "rms_norm"] {
        let extent = |name: &str| match name {
            "weight" | "bias" => "len:f32".to_owned(),
            "mean" | "rstd" => "rows:f32".to_owned(),
            _ => "rows*len:f32".to_owned(),
        };
        assert_proved(&[op], extent, &[&rows[..], &norm].concat());
    }
}
