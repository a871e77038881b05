//! `run`, `lint`, `emit`, `ops`, `devices`, `check` and `bench` as a user runs them.

use crate::common::{Place, npy, npy_values};
use serde_json::{Value, json};

/// `y[i] = 2 x[i]` for `i < n`; without the comparison where `guarded` is false.
fn double(guarded: bool) -> String {
    let guard = if guarded { "    setp.ge.u32 %p1, %r4, %r5;\n    @%p1 bra DONE;\n" } else { "" };
    format!(
        ".version 7.0
.target sm_75
.address_size 64

.visible .entry double(
    .param .u64 x,
    .param .u64 y,
    .param .u32 n
)
{{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<3>;
    .reg .b64 %rd<8>;

    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.u32 %r5, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
{guard}    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mul.wide.u32 %rd5, %r4, 4;
    add.s64 %rd6, %rd3, %rd5;
    ld.global.f32 %f1, [%rd6];
    add.f32 %f2, %f1, %f1;
    add.s64 %rd7, %rd4, %rd5;
    st.global.f32 [%rd7], %f2;
DONE:
    ret;
}}
"
    )
}

const RUN: [&str; 14] = [
    "run",
    "k.ptx",
    "--grid",
    "1",
    "--block",
    "64",
    "--device",
    "emulator",
    "--arg",
    "in:x.npy",
    "--arg",
    "out:y.npy:f32:50",
    "--arg",
    "u32:50",
];

fn place(kernel: &str) -> Place {
    let place = Place::new();
    place.write("k.ptx", kernel);
    let x: Vec<f32> = (0..50).map(|i| i as f32).collect();
    place.write("x.npy", npy(&x));
    place
}

#[test]
fn a_kernel_runs_on_arrays() {
    let place = place(&double(true));
    let ran = place.run(&[&RUN[..], &["--counters"]].concat());
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let expected: Vec<f32> = (0..50).map(|i| 2.0 * i as f32).collect();
    assert_eq!(npy_values(&place.path("y.npy")), expected);
    assert!(ran.out.contains("y.npy: f32 [50]"), "{}", ran.out);
    assert!(ran.out.contains("divergent_branches"), "{}", ran.out);
    // An output of an earlier run is replaced.
    let value = place.json(&[&RUN[..], &["--json"]].concat());
    assert_eq!(value["findings"], json!([]));
    assert_eq!(value["counters"]["global_loads.bytes"], 200);
    assert_eq!(value["counters"]["divergent_branches"], 1);
}

#[test]
fn an_array_may_go_in_and_out() {
    let place = place(&double(true));
    let args = [
        "run",
        "k.ptx",
        "--entry",
        "double",
        "--grid",
        "1,1",
        "--block",
        "50",
        "--device",
        "emulator",
        "--arg",
        "inout:x.npy:z.npy",
        "--arg",
        "out:y.npy:f32:5,10",
        "--arg",
        "u32:0x32",
        "--json",
    ];
    place.json(&args);
    assert_eq!(npy_values(&place.path("z.npy"))[49], 49.0);
    assert_eq!(npy_values(&place.path("y.npy"))[49], 98.0);
}

#[test]
fn a_bad_access_is_shown_with_its_line() {
    let place = place(&double(false));
    let ran = place.run(&RUN);
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("error[memcheck"), "{}", ran.out);
    assert!(ran.out.contains("ld.global.f32 %f1, [%rd6];") && ran.out.contains("^^^"), "{}", ran.out);
    let line = double(false).lines().position(|line| line.contains("ld.global")).expect("a load") + 1;
    let ran = place.run(&[&RUN[..], &["--json", "--force"]].concat());
    assert_eq!(ran.code, Some(1));
    let value: Value = serde_json::from_str(&ran.out).expect("JSON");
    let first = &value["findings"][0];
    assert_eq!((&first["tool"], &first["line"]), (&json!("memcheck"), &json!(line)));
    assert!(first["message"].is_string());
}

#[test]
fn sanitizers_can_be_chosen() {
    // Reads y, which nothing wrote.
    let place = place(&double(true).replace("[%rd6]", "[%rd4]"));
    let ran = place.run(&RUN);
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("initcheck"), "{}", ran.out);
    let ran = place.run(&[&RUN[..], &["--force", "--sanitize", "memcheck"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.out);
    place.refuses(&RUN, &[(&["--force", "--sanitize", "leakcheck"], "there is no 'leakcheck'")]);
}

#[test]
fn clusters_are_given_and_resident_blocks_limited() {
    // All blocks wait for the last; every block stores the size of its cluster and its rank.
    let place = place(
        ".version 7.8
.target sm_90
.address_size 64
.visible .entry ranks(.param .u64 x, .param .u64 y)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .f32 %f<2>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %cluster_nctarank;
    mov.u32 %r3, %cluster_ctarank;
    mad.lo.u32 %r4, %r2, 10, %r3;
    cvt.rn.f32.u32 %f1, %r4;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.f32 [%rd4], %f1;
    mov.u32 %r6, %nctaid.x;
    sub.u32 %r6, %r6, 1;
    setp.eq.u32 %p1, %r1, %r6;
    @%p1 st.relaxed.gpu.global.u32 [%rd1], 1;
    @%p1 bra DONE;
WAIT:
    ld.relaxed.gpu.global.u32 %r5, [%rd1];
    setp.eq.u32 %p2, %r5, 0;
    @%p2 bra WAIT;
DONE:
    ret;
}
",
    );
    let base = [
        "run",
        "k.ptx",
        "--grid",
        "4",
        "--block",
        "1",
        "--device",
        "emulator",
        "--arg",
        "inout:x.npy:z.npy",
        "--arg",
        "out:y.npy:f32:4",
        "--force",
    ];
    let values = |extra: &[&str]| {
        let ran = place.run(&[&base[..], extra].concat());
        assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
        npy_values(&place.path("y.npy"))
    };
    assert_eq!(values(&["--cluster", "2"]), [20.0, 21.0, 20.0, 21.0]);
    assert_eq!(values(&["--cluster", "4,1,1", "--resident", "1"]), [40.0, 41.0, 42.0, 43.0]);
    assert_eq!(values(&[]), [10.0; 4]);
    // More blocks than any machine has workers.
    let many = base.map(|word| match word {
        "4" => "1024",
        "out:y.npy:f32:4" => "out:y.npy:f32:1024",
        other => other,
    });
    let ran = place.run(&[&many[..], &["--resident", "1"]].concat());
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("max_resident_blocks is 1"), "{}", ran.out);
}

#[test]
fn launches_that_cannot_be_are_usage_errors() {
    let place = place(&double(true));
    place.write("bad.npy", "not an array");
    let base = ["run", "k.ptx", "--grid", "1", "--block", "64", "--device", "emulator"];
    let cases: [(&[&str], &str); 11] = [
        (&[], "takes 3 arguments, got 0"),
        (&["--arg", "in:x.npy", "--arg", "in:x.npy", "--arg", "f32:1"], "is a u32, got f32"),
        (&["--arg", "in:nowhere.npy"], "nowhere.npy: cannot open"),
        (&["--arg", "in:bad.npy"], "bad.npy: is not an .npy file"),
        (&["--arg", "x.npy"], "--arg x.npy: has no kind"),
        (&["--arg", "out:y.npy:f32:5000000000000000"], "cannot"),
        (&["--entry", "triple"], "holds no kernel `triple`"),
        (&["--block", "2048"], ""),
        (&["--cluster", "2"], "is not a multiple of the cluster [2, 1, 1]"),
        (&["--cluster", "17"], "a cluster of [17, 1, 1] has 17 blocks; at most 16"),
        (&["--cluster", "2,x"], "--cluster"),
    ];
    for (args, expected) in cases {
        let args: Vec<&str> = if args.contains(&"--block") || args.contains(&"--cluster") {
            let rest = ["--device", "emulator", "--arg", "in:x.npy", "--arg", "in:x.npy", "--arg", "u32:1"];
            let block: &[&str] = if args.contains(&"--block") { &[] } else { &["--block", "64"] };
            [&["run", "k.ptx", "--grid", "1"], block, args, &rest].concat()
        } else {
            [&base[..], args].concat()
        };
        let told = place.refused(&args, &[expected]);
        assert!(told.starts_with("error: "), "{args:?}: {told}");
    }
}

#[test]
fn lint_points_at_what_is_wrong() {
    let place = place(&double(true));
    let clean = place.json(&["lint", "k.ptx", "--json"]);
    assert_eq!(clean["errors"], json!([]));
    let broken =
        double(true).replace("add.f32 %f2, %f1, %f1;", "add.f32 %f2, %f1, %rd1;\n    frobnicate %r1;");
    place.write("bad.ptx", &broken);
    let ran = place.run(&["lint", "bad.ptx"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.out.contains("--> bad.ptx:") && ran.out.contains("frobnicate %r1;"), "{}", ran.out);
    let ran = place.run(&["lint", "bad.ptx", "--json"]);
    assert_eq!(ran.code, Some(1));
    let value: Value = serde_json::from_str(&ran.out).expect("JSON");
    let line = broken.lines().position(|line| line.contains("frobnicate")).expect("it is there") + 1;
    let hit = value["errors"].as_array().expect("a list").iter().find(|error| error["line"] == line);
    let hit = hit.unwrap_or_else(|| panic!("line {line} in {value:#}"));
    assert!(hit["rule"].as_str().is_some_and(|rule| rule.starts_with("P-")));
    assert_eq!(hit["column"], 5);
    assert!(hit["message"].as_str().is_some_and(|message| message.contains("frobnicate")));
}

#[test]
fn lint_survives_what_is_no_ptx() {
    let place = Place::new();
    for (name, bytes) in [("empty.ptx", &b""[..]), ("bytes.ptx", &[0xff, 0x00, 0x80, b'\n', b'{'])] {
        place.write(name, bytes);
        let ran = place.run(&["lint", name, "--json"]);
        assert_eq!(ran.code, Some(1), "{name}: {}", ran.err);
        let value: Value = serde_json::from_str(&ran.out).expect("JSON");
        assert!(value["errors"].as_array().is_some_and(|errors| !errors.is_empty()), "{name}");
    }
    place.refused(&["lint", "nowhere.ptx"], &["nowhere.ptx"]);
}

#[test]
fn lint_takes_the_target_as_the_assembler_does() {
    let place = place(&double(true));
    // Older code is assembled for newer targets.
    assert_eq!(place.run(&["lint", "k.ptx", "--target", "sm_90"]).code, Some(0));
    let newer = double(true).replace("sm_75", "sm_90").replace(".version 7.0", ".version 8.0");
    let place = self::place(&newer);
    let ran = place.run(&["lint", "k.ptx", "--target", "sm_80", "--json"]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    assert!(ran.out.contains("V-TARGET-"), "{}", ran.out);
}

#[test]
fn lint_warns_of_a_version_that_is_not_known() {
    for version in ["9.2", "9.4", "10.0"] {
        let place = place(&double(true).replace(".version 7.0", &format!(".version {version}")));
        let ran = place.run(&["lint", "k.ptx"]);
        assert_eq!(ran.code, Some(0), "{}", ran.out);
        let want = format!("warning[V-TARGET-8]: .version {version} is newer than what is known here, 9.1");
        assert!(ran.out.contains(&want), "{}", ran.out);
    }
    // What is not known of it is an error still, and says why that may be.
    let unknown = double(true).replace(".version 7.0", ".version 9.4").replace("add.f32", "frobnicate.f32");
    let ran = place(&unknown).run(&["lint", "k.ptx"]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    assert!(ran.out.contains("(the text is PTX 9.4, the newest known here is 9.1)"), "{}", ran.out);
}

#[test]
fn ops_lists_every_primitive() {
    let list = Place::new().json(&["ops", "--json"]);
    let list = list.as_array().expect("an array");
    let silu = list
        .iter()
        .find(|op| op["op"] == "silu" && op["direction"] == "backward")
        .expect("silu has a gradient");
    assert_eq!(silu["dtypes"], json!(["f32", "f64", "f16", "bf16"]));
    assert!(silu["targets"].as_array().is_some_and(|targets| targets.contains(&json!("sm_75"))));
    let table = Place::new().run(&["ops"]);
    assert!(table.out.contains("quantize_nf4"), "{}", table.out);
    assert!(table.out.contains("group_norm, instance_norm"), "{}", table.out);
}

#[test]
fn what_emit_prints_lint_accepts() {
    let place = Place::new();
    let attention = ["emit", "attention", "--dtype", "bf16", "--head-dim", "64", "--causal", "--heads", "8"];
    for (args, target) in [
        (&["emit", "group_norm", "--backward", "--channels-last", "--target", "sm_80"][..], "sm_80"),
        (&attention, "sm_90a"),
        (&["emit", "gru", "--backward", "--dtype", "f16", "--hidden", "128", "--steps", "9"], "sm_90a"),
    ] {
        let ran = place.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.err);
        assert!(ran.out.contains(&format!("\n.target {target}\n")), "{args:?}");
        let noted = ran.err.contains("instructions of sm_90a alone: the module is not for sm_90");
        assert_eq!(noted, target == "sm_90a", "{}", ran.err);
        place.write("k.ptx", &ran.out);
        let linted = place.run(&["lint", "k.ptx", "--target", target]);
        assert_eq!(linted.code, Some(0), "{args:?}: {}", linted.out);
        // Nothing is recorded for a result that nothing uses.
        assert!(!linted.out.contains("V-USE-1"), "{args:?}: {}", linted.out);
    }
    let value = place.json(&[&attention[..], &["--backward", "--json"]].concat());
    assert_eq!(value["target"], "sm_90a");
    let kernels = value["kernels"].as_array().expect("a list");
    let mut targets: Vec<_> = kernels.iter().map(|kernel| kernel["target"].as_str()).collect();
    for kernel in kernels {
        let (text, target) = (kernel["ptx"].as_str(), kernel["target"].as_str());
        let (text, target) = (text.expect("a text"), target.expect("a target"));
        assert!(text.contains(&format!("\n.target {target}\n")), "{}", kernel["entry"]);
    }
    targets.sort();
    targets.dedup();
    assert_eq!(targets, [Some("sm_90"), Some("sm_90a")]);
    for launch in value["launches"].as_array().expect("a list") {
        assert!(kernels.iter().any(|kernel| kernel["entry"] == launch["entry"]), "{}", launch["entry"]);
        assert!(launch["arguments"].as_array().is_some_and(|list| !list.is_empty()));
    }
    assert_eq!(
        value["tensors"][0],
        json!({
            "name": "q", "access": "read", "dtype": "bf16", "elements": 1048576, "present": true,
        })
    );
    let value = place.json(&["emit", "relu", "--elements", "1000", "--json"]);
    assert!(value["ptx"].as_str().is_some_and(|text| text.contains(".visible .entry")));
    assert_eq!(value["launches"][0]["block"], json!([256, 1, 1]));
}

#[test]
fn emit_says_what_it_does_not_take() {
    let place = Place::new();
    for (args, error, help) in [
        (&["emit", "gelu"][..], "no operation called `gelu (forward)`", "`warpwright ops` lists them"),
        (
            &["emit", "gemm", "--causal"],
            "gemm (forward) has no option --causal",
            "it takes --elements, --bias-gradient, --transpose, --m, --n, --k, --batch",
        ),
        (
            &["emit", "relu", "--head-dim", "64"],
            "relu (forward) has no option --head-dim",
            "it takes --elements",
        ),
        (
            &["emit", "quantize_nested", "--dtype", "bf16"],
            "quantize_nested: the tensor cannot be bf16; supported are f32",
            "",
        ),
        (
            &["emit", "relu", "--target", "sm_70"],
            "relu (forward) is not assembled for sm_70",
            "--target is one of sm_75, sm_80, sm_86, sm_89, sm_90, sm_100, sm_120",
        ),
        (
            &["emit", "relu", "--target", "sm_90a"],
            "relu (forward) is not assembled for sm_90a",
            "one of sm_75",
        ),
        (&["emit", "relu", "--target", "sm_9999"], "relu (forward) is not assembled for sm_9999", "sm_120"),
        (&["emit", "relu", "--elements", "0"], "launches nothing", "--elements 1024"),
        (
            &["emit", "attention", "--heads", "3", "--num-kv-heads", "2"],
            "attention: num_kv_heads is 2 of 3, must be a divisor of heads",
            "",
        ),
    ] {
        place.refused(args, &[error, help]);
    }
}

#[test]
fn check_holds_a_primitive_against_its_reference() {
    let place = Place::new();
    let value = place.json(&["check", "relu", "--device", "emulator", "--json"]);
    assert_eq!(value["failed"], 0);
    let cases = value["cases"].as_array().expect("a list");
    assert!(!cases.is_empty());
    for case in cases {
        assert_eq!((&case["op"], &case["ok"], &case["findings"]), (&json!("relu"), &json!(true), &json!([])));
        assert!(case["error"].as_f64() <= case["budget"].as_f64(), "{case}");
        assert!(case["dtype"].is_string() && case["shape"].is_array() && case["direction"].is_string());
    }
    place.refused(&["check", "relu", "gelu", "--device", "emulator"], &["no primitive called 'gelu'"]);
}

#[test]
fn check_takes_the_cases_whose_row_has_a_text() {
    let place = Place::new();
    let value = place.json(&["check", "relu", "--match", "bf16", "--device", "emulator", "--json"]);
    let cases = value["cases"].as_array().expect("a list");
    assert!(!cases.is_empty() && cases.iter().all(|case| case["dtype"] == "bf16"), "{value}");
    let none = ["check", "relu", "--match", "triangular", "--device", "emulator"];
    place.refused(&none, &["no case has the text \"triangular\""]);
}

#[test]
fn check_holds_ranks_against_one_device() {
    let place = Place::new();
    let args = [
        "check",
        "--ranks",
        "3",
        "collectives",
        "gradient_buckets",
        "sync_batch_norm",
        "--device",
        "emulator",
    ];
    let value = place.json(&[&args[..], &["--json"]].concat());
    assert_eq!((&value["failed"], &value["ranks"]), (&json!(0), &json!(3)));
    let cases = value["cases"].as_array().expect("a list");
    assert_eq!(value["of"], cases.len());
    assert!(cases.iter().all(|case| case["error"].as_f64() <= case["budget"].as_f64()), "{value}");
    let ran = place.run(&["check", "--ranks", "2", "collectives", "--device", "emulator"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains("1 cases, all within budget over 2 ranks"), "{}", ran.out);
    let cases: [(&[&str], &str); 6] = [
        (&["--ranks", "2", "relu"], "no operation over ranks called 'relu'"),
        (&["--launch", "processes"], "no ranks to start"),
        (&["--ranks", "2", "--launch", "environment"], "the environment says"),
        (&["--ranks", "2", "--device", "cuda:1"], "a device each"),
        (&["--ranks", "2", "--launch", "processes", "--device", "emulator"], "a GPU of its own"),
        (&["--ranks", "2", "--launch", "processes", "--json"], "every process says"),
    ];
    place.refuses(&["check"], &cases);
}

#[test]
fn bench_counts_on_the_emulator_and_says_so() {
    let place = Place::new();
    let args = ["bench", "relu", "--device", "emulator", "--elements", "4096"];
    let ran = place.run(&args);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains("the emulator has no times"), "{}", ran.out);
    let value = place.json(&[&args[..], &["--json"]].concat());
    let result = value["results"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|r| r["dtype"] == "f32" && r["direction"] == "forward");
    let result = result.expect("relu of f32");
    assert_eq!(result["counters"]["global_loads.bytes"], 4096 * 4);
    assert_eq!(result["counters"]["global_loads.sectors"], result["counters"]["global_loads.ideal_sectors"]);
    assert!(result.get("median_us").is_none());
}

#[test]
fn bench_tells_the_launches_of_a_primitive_with_its_options() {
    let place = Place::new();
    let args =
        ["bench", "layer_norm", "--device", "emulator", "--dtype", "f32", "--rows", "24", "--len", "96"];
    let value = place.json(&[&args[..], &["--launches", "--json"]].concat());
    let results = value["results"].as_array().expect("a list");
    assert!(results.iter().all(|result| result["dtype"] == "f32"));
    let backward = results.iter().find(|result| result["direction"] == "backward").expect("a gradient");
    let launches = backward["launches"].as_array().expect("a list");
    assert!(launches.len() > 1, "{launches:?}");
    let counted = |result: &Value| result["counters"]["global_stores.bytes"].as_u64().expect("bytes");
    assert_eq!(launches.iter().map(counted).sum::<u64>(), counted(backward));
    let forward = results.iter().find(|result| result["direction"] == "forward").expect("a result");
    assert_eq!(forward["launches"][0]["counters"]["global_stores.bytes"], 24 * 96 * 4);

    let ran = place.run(&args);
    assert!(!ran.out.contains("layer_norm_f32_"), "{}", ran.out);
    let refused = place.run(&["bench", "softmax", "--device", "emulator", "--head-dim", "64"]);
    assert_eq!(refused.code, Some(2), "{}", refused.out);
    assert!(refused.err.contains("softmax (forward) has no option --head-dim"), "{}", refused.err);
    let refused = place.run(&["bench", "relu", "--device", "emulator", "--dtype", "i32"]);
    assert!(refused.err.contains("none of these primitives takes that type"), "{}", refused.err);
}

#[test]
fn devices_always_has_the_emulator() {
    let value = Place::new().json(&["devices", "--json"]);
    let devices = value["devices"].as_array().expect("a list");
    assert!(devices.iter().any(|device| device["id"] == "emulator"));
    assert!(value["auto"].is_string() && value["links"].is_array());
    assert_ne!(value["nccl"].is_null(), value["nccl_unavailable"].is_null());
    let text = Place::new().run(&["devices"]);
    assert_eq!(text.code, Some(0));
    assert!(text.out.contains("--device auto runs on"), "{}", text.out);
}

#[test]
fn a_missing_driver_is_said() {
    let place = Place::new();
    if place.json(&["devices", "--json"])["cuda_unavailable"].is_null() {
        eprintln!("skipped: there is a GPU");
        return;
    }
    for command in [&["check", "relu"][..], &["fuzz", "--seeds", "1"]] {
        let args = [command, &["--device", "cuda:0"]].concat();
        place.refused(&args, &["error: CUDA cannot be used: ", "--device emulator"]);
    }
}

#[test]
fn off_a_terminal_there_are_no_escapes_and_no_progress() {
    let place = place(&double(false));
    for args in [&RUN[..], &["devices"], &["ops"], &["--help"], &["lint", "x.npy"]] {
        let ran = place.run(args);
        assert!(!ran.out.contains('\u{1b}') && !ran.err.contains('\u{1b}'), "{args:?}");
    }
}

#[test]
fn help_and_usage_have_the_customary_exit_codes() {
    let place = Place::new();
    for command in [
        "devices",
        "ops",
        "emit",
        "check",
        "quantize",
        "dequantize",
        "inspect",
        "demo",
        "run",
        "lint",
        "bench",
    ] {
        let ran = place.run(&[command, "--help"]);
        assert_eq!(ran.code, Some(0), "{command}");
        assert!(ran.out.contains("Usage: warpwright"), "{command}");
    }
    place.refuses(
        &[],
        &[(&[], "Usage: warpwright"), (&["frobnicate"], "unrecognized subcommand 'frobnicate'")],
    );
    assert_eq!(place.run(&["--version"]).out.trim(), concat!("warpwright ", env!("CARGO_PKG_VERSION")));
}
