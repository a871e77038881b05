//! Files that are named on the command line: outputs keep off inputs, and names do nothing to a terminal.

use crate::common::{Place, npy, one_weight, safetensors, weights};

const QUANTIZE: [&str; 3] = ["--format", "int4", "--device=emulator"];

/// Adds one to one number.
const KERNEL: &str = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 x) {
    .reg .f32 %f<3>;\n    .reg .b64 %rd<3>;\n    ld.param.u64 %rd1, [x];\n    cvta.to.global.u64 %rd2, %rd1;
    ld.global.f32 %f1, [%rd2];\n    add.rn.f32 %f2, %f1, 0f3F800000;\n    st.global.f32 [%rd2], %f2;\n    ret;\n}\n";

fn place_with_weight(name: &str) -> Place {
    let place = Place::new();
    place.write(name, one_weight([8, 64], weights()));
    place
}

/// The command must refuse, for a path that it would read and write, or write twice.
fn refused(place: &Place, args: &[&str]) {
    let told = place.refused(args, &["help: name another path"]);
    assert!(told.contains("is read as") || told.contains("is written twice"), "{args:?}: {told}");
}

#[test]
fn a_conversion_keeps_off_its_input() {
    let place = place_with_weight("w.safetensors");
    std::fs::create_dir(place.path("deep")).expect("made");
    let mut names = vec!["w.safetensors", "./deep/../w.safetensors", "."];
    #[cfg(unix)]
    {
        std::fs::hard_link(place.path("w.safetensors"), place.path("hard.safetensors")).expect("linked");
        std::os::unix::fs::symlink(place.path(""), place.path("way")).expect("linked");
        names.extend(["hard.safetensors", "way/w.safetensors", "way"]);
    }
    for output in names {
        let quantize = ["quantize", "w.safetensors", "-o", output, "--force"];
        refused(&place, &[&quantize[..], &QUANTIZE].concat());
        refused(&place, &["dequantize", "w.safetensors", "-o", output, "--force"]);
    }
    for report in ["w.safetensors", "q.safetensors", "deep/../q.safetensors"] {
        let quantize = ["quantize", "w.safetensors", "-o", "q.safetensors", "--force", "--report", report];
        refused(&place, &[&quantize[..], &QUANTIZE].concat());
    }
}

#[test]
fn a_folder_keeps_off_its_input() {
    let place = Place::new();
    let model = place.path("model");
    std::fs::create_dir(&model).expect("made");
    let write = |name: &str, bytes: &[u8]| std::fs::write(model.join(name), bytes).expect("written");
    write("m-1.safetensors", &one_weight([8, 64], weights()));
    write("config.json", b"{}");
    write("model.safetensors.index.json", br#"{"metadata": {}, "weight_map": {"w": "m-1.safetensors"}}"#);
    let index = "model/model.safetensors.index.json";
    for (input, output) in [("model", "model"), (index, "model"), ("model", "./model/"), (index, index)] {
        let quantize = ["quantize", input, "-o", output, "--force"];
        refused(&place, &[&quantize[..], &QUANTIZE].concat());
    }
    for report in
        ["model/config.json", index, "model/m-1.safetensors", "out/config.json", "out/m-1.safetensors"]
    {
        let quantize = ["quantize", "model", "-o", "out", "--force", "--report", report];
        refused(&place, &[&quantize[..], &QUANTIZE].concat());
    }
    let quantize = ["quantize", "model", "-o", "out", "--report", "out/r.html"];
    let ran = place.run(&[&quantize[..], &QUANTIZE].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(String::from_utf8_lossy(&place.read("out/r.html")).starts_with("<!doctype html>"));
}

#[test]
fn reports_are_checked_before_the_work() {
    let place = place_with_weight("w.safetensors");
    place.write("taken.html", "theirs");
    place.write("k.ptx", KERNEL);
    place.write("x.npy", npy(&[1.0]));
    let quantize = ["quantize", "w.safetensors", "-o", "q.safetensors", "--format=int4", "--report"];
    let run =
        ["run", "k.ptx", "--grid=1", "--block=1", "--device=emulator", "--arg=inout:x.npy:y.npy", "--html"];
    let bench = ["bench", "relu", "--device=emulator", "--elements=64", "--svg"];
    for (command, report, why) in [
        (&quantize[..], "taken.html", "exists already"),
        (&quantize, "no/r.html", "cannot create the file"),
        (&run, "no/r.html", "cannot create the file"),
        (&bench, "no/r.svg", "cannot create the file"),
        (&bench, ".", "is not a regular file"),
    ] {
        place.refused(&[command, &[report]].concat(), &[report, why]);
    }
}

#[test]
fn a_run_keeps_off_what_it_reads() {
    let place = Place::new();
    place.write("k.ptx", KERNEL);
    place.write("x.npy", npy(&[1.0]));
    place.write("z.npy", npy(&[5.0]));
    let run = ["run", "k.ptx", "--grid", "1", "--block", "1", "--device", "emulator", "--force"];
    std::fs::hard_link(place.path("x.npy"), place.path("hard.npy")).expect("linked");
    for args in [
        &["--arg", "inout:hard.npy:x.npy"][..],
        &["--arg", "inout:x.npy:k.ptx"],
        &["--arg", "inout:x.npy:x.npy"],
        &["--arg", "in:x.npy", "--arg", "out:./x.npy:f32:1"],
        &["--arg", "inout:x.npy:z.npy", "--arg", "in:z.npy"],
        &["--arg", "out:y.npy:f32:1", "--arg", "out:./y.npy:f32:1"],
        &["--arg", "in:x.npy", "--html", "x.npy"],
        &["--arg", "inout:x.npy:y.npy", "--html", "y.npy"],
        &["--arg", "in:x.npy", "--html", "k.ptx"],
    ] {
        refused(&place, &[&run[..], args].concat());
    }
}

/// Clears the screen, rings, and writes on from right to left.
#[cfg(unix)]
const HOSTILE: &str = "\u{1b}[2J\u{7}\u{202e}";

#[cfg(unix)]
#[test]
fn names_do_nothing_to_a_terminal() {
    let place = place_with_weight(&format!("{HOSTILE}.safetensors"));
    let named = |rest: &str| format!("{HOSTILE}{rest}");
    let (weight, array, kernel) = (named(".safetensors"), named(".npy"), named(".ptx"));
    place.write(&array, npy(&[1.0]));
    place.write(&kernel, KERNEL);
    place.write(&named("bad.ptx"), format!(".version 7.0 {HOSTILE}\n"));
    place.write(&named("bad.npy"), "no array");
    place.write(&named("bad.safetensors"), safetensors("{", b""));
    let shard = |name: &str| format!(r#"{{"weight_map": {{"w": {}}}}}"#, serde_json::json!(name));
    place.write("missing.json", shard(&named("-1.safetensors")));
    place.write("outside.json", shard(&named("/1.safetensors")));
    place.write("other.json", shard(&weight).replace("\"w\"", "\"\\u001b[2Jv\""));
    let launch = ["--grid", "1", "--block", "1", "--device", "emulator"];
    let arg = |kind: &str, name: &str| format!("--arg={kind}:{name}");
    for (code, args) in [
        (0, vec!["inspect".to_owned(), weight.clone()]),
        (
            0,
            vec![
                "quantize".into(),
                weight.clone(),
                "-o".into(),
                named("q.safetensors"),
                "--format=int4".into(),
            ],
        ),
        (0, vec!["dequantize".into(), named("q.safetensors"), "-o".into(), named("b.safetensors")]),
        (2, vec!["dequantize".into(), weight.clone(), "-o".into(), named("c.safetensors")]),
        (2, vec!["quantize".into(), named("q.safetensors"), "-o".into(), named("c"), "--format=int4".into()]),
        (2, vec!["quantize".into(), weight.clone(), "-o".into(), weight.clone(), "--format=int4".into()]),
        (2, vec!["inspect".into(), named("bad.safetensors")]),
        (2, vec!["inspect".into(), named("absent.safetensors")]),
        (2, vec!["inspect".into(), "missing.json".into()]),
        (2, vec!["inspect".into(), "outside.json".into()]),
        (2, vec!["inspect".into(), "other.json".into()]),
        (0, vec!["demo".into(), "-o".into(), named("d.safetensors")]),
        (2, vec!["demo".into(), "-o".into(), weight.clone()]),
        (0, vec!["lint".into(), kernel.clone()]),
        (1, vec!["lint".into(), named("bad.ptx")]),
        (2, vec!["lint".into(), named("absent.ptx")]),
        (0, vec!["run".into(), kernel.clone(), arg("inout", &format!("{array}:{}", named("y.npy")))]),
        (1, vec!["run".into(), kernel.clone(), arg("out", &format!("{}:f32:1", named("z.npy")))]),
        (2, vec!["run".into(), kernel.clone(), arg("in", &named("bad.npy"))]),
        (2, vec!["run".into(), kernel.clone(), arg("in", &named("absent.npy"))]),
        (2, vec!["run".into(), named("bad.ptx")]),
    ] {
        let more = if args[0] == "run" { &launch[..] } else { &[] };
        let args: Vec<&str> = args.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let ran = place.run(&args);
        assert_eq!(ran.code, Some(code), "{args:?}: {}{}", ran.out, ran.err);
        for text in [&ran.out, &ran.err] {
            let acted_on = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!text.contains(acted_on), "{args:?}: {text:?}");
        }
        let said = format!("{}{}", ran.out, ran.err);
        // `inspect` names no file, and what holds no quantized weights is the folder.
        let nameless = args[0] == "inspect" || said.contains("holds no quantized weights");
        assert!(said.contains("\\u{1b}[2J") || nameless, "{args:?}: {said}");
    }
}

/// A driver that does not start is not the same as none: its owner is told why the emulator runs.
#[cfg(target_os = "linux")]
#[test]
fn a_driver_that_does_not_start_is_told() {
    let place = place_with_weight("w.safetensors");
    place.write("k.ptx", KERNEL);
    place.write("x.npy", npy(&[1.0]));
    place.write(
        "driver.rs",
        r#"
            #[unsafe(no_mangle)]
            pub extern "C" fn cuDriverGetVersion(version: *mut i32) -> u32 { unsafe { *version = 12080 }; 0 }
            #[unsafe(no_mangle)]
            pub extern "C" fn cuInit(_flags: u32) -> u32 { 803 }
            #[unsafe(no_mangle)]
            pub extern "C" fn cuGetErrorName(_: u32, text: *mut *const u8) -> u32 {
                unsafe { *text = c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH".as_ptr().cast() }; 0
            }
            #[unsafe(no_mangle)]
            pub extern "C" fn cuGetErrorString(_: u32, text: *mut *const u8) -> u32 {
                unsafe { *text = c"system has unsupported display driver".as_ptr().cast() }; 0
            }
        "#,
    );
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let built = std::process::Command::new(rustc)
        .args(["--edition=2024", "--crate-type=cdylib", "-o", "libcuda.so", "driver.rs"])
        .current_dir(place.path(""))
        .output()
        .expect("rustc starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    for args in [
        &["check", "relu"][..],
        &["quantize", "w.safetensors", "-o", "q.safetensors", "--format", "int4"],
        &["dequantize", "q.safetensors", "-o", "b.safetensors"],
        &["bench", "relu", "--elements", "64"],
        &["run", "k.ptx", "--grid", "1", "--block", "1", "--arg", "inout:x.npy:y.npy"],
    ] {
        let with = crate::common::finish(place.command().args(args).env("LD_LIBRARY_PATH", place.path("")));
        assert_eq!(with.code, Some(0), "{args:?}: {}", with.err);
        let note = "note: no GPU is used: ";
        let why =
            "cuInit returned CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): system has unsupported display driver";
        assert!(with.err.contains(note) && with.err.contains(why), "{args:?}: {}", with.err);
    }
    let devices =
        crate::common::finish(place.command().arg("devices").env("LD_LIBRARY_PATH", place.path("")));
    assert!(devices.out.contains("CUDA      not used: ") && devices.out.contains("803"), "{}", devices.out);
}

/// Kernels are not loaded from a folder that others may write, and `devices` says so.
#[cfg(unix)]
#[test]
fn a_shared_cache_is_told() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let folder = place.path("shared");
    std::fs::create_dir(&folder).expect("made");
    let devices = |mode: u32| {
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).expect("ours");
        let mut command = place.command();
        crate::common::finish(command.arg("devices").env("WARPWRIGHT_CACHE_DIR", &folder)).out
    };
    let shown = folder.display();
    let refused = devices(0o777);
    assert!(
        refused.contains(&format!("cubins    off: {shown} can be written by others (mode 777)")),
        "{refused}"
    );
    let taken = devices(0o700);
    assert!(taken.contains(&format!("cubins    {shown}\n")), "{taken}");
    let off = crate::common::finish(place.command().arg("devices").env("WARPWRIGHT_CACHE", "0")).out;
    assert!(off.contains("cubins    off: WARPWRIGHT_CACHE is 0"), "{off}");
}
