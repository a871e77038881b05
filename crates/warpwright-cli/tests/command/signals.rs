//! Commands that are asked to end, and launches that a limit ends.
#![cfg(unix)]

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Place, finish, npy, npy_values, one_weight, weights};

/// A kernel `k(x)` with a 32-bit counter.
fn kernel(body: &str) -> String {
    format!(
        ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 x)\n{{\n.reg .pred %p<2>;\n\
         .reg .b32 %r<4>;\n.reg .b64 %rd<2>;\nmov.u32 %r1, 0;\n{body}\nld.param.u64 %rd1, [x];\n\
         st.global.u32 [%rd1], %r1;\nret;\n}}\n"
    )
}

fn endless() -> String {
    kernel("mov.u32 %r2, %tid.x;\nL:\nadd.u32 %r1, %r1, 1;\nsetp.ne.u32 %p1, %r2, 0xFFFF;\n@%p1 bra L;")
}

/// Ten thousand additions in a row.
fn straight() -> String {
    kernel(&"add.u32 %r1, %r1, 1;\n".repeat(10_000))
}

const RUN: [&str; 8] = ["run", "k.ptx", "--grid", "2", "--block", "64", "--device", "emulator"];

fn place(kernel: &str) -> Place {
    let place = Place::new();
    place.write("k.ptx", kernel);
    place.write("x.npy", npy(&[0.0; 64]));
    place
}

fn fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().expect("mkfifo");
    assert!(made.success());
}

fn send(signal: &str, child: &Child) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
    assert!(sent.expect("kill").success());
}

/// Starts the command, lets it get going, sends the signals, and gives the exit code, how long it took to end and what it
/// said.
fn interrupted(place: &Place, args: &[&str], signals: &[&str]) -> (Option<i32>, Duration, String) {
    let mut command = place.command();
    let mut child =
        command.args(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().expect("a child").is_none(), "{args:?} ended by itself");
    let begun = Instant::now();
    for signal in signals {
        send(signal, &child);
        std::thread::sleep(Duration::from_millis(20));
    }
    while child.try_wait().expect("a child").is_none() {
        if begun.elapsed() > Duration::from_secs(10) {
            child.kill().expect("it ends");
            panic!("{args:?} goes on after {signals:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = begun.elapsed();
    let output = child.wait_with_output().expect("a child");
    (output.status.code(), took, String::from_utf8(output.stderr).expect("text"))
}

/// Whether the tests, and so the commands that they start, run under `nohup`.
fn hangups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 != 0))
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn an_endless_kernel_ends_with_the_first_signal() {
    let place = place(&endless());
    let before = place.files();
    let array = ["--arg", "inout:x.npy:y.npy", "--html", "cost.html"];
    for extra in [&[][..], &["--sanitize", "none"]] {
        let args = [&RUN[..], &array, extra].concat();
        for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
            if signal == "HUP" && hangups_are_ignored() {
                continue;
            }
            let (ended, took, said) = interrupted(&place, &args, &[signal]);
            assert_eq!(ended, Some(code), "{signal}: {said}");
            assert!(took < SECOND, "{signal}: {took:?}");
            assert!(said.contains(&format!("interrupted by SIG{signal}")), "{said}");
            assert_eq!(place.files(), before, "nothing is left behind");
        }
    }
}

#[test]
fn an_endless_kernel_ends_under_timeout() {
    let place = place(&endless());
    let begun = Instant::now();
    let mut command = Command::new("timeout");
    command.current_dir(place.path("")).args(["--kill-after=9", "1", env!("CARGO_BIN_EXE_warpwright")]);
    let ran = finish(command.args(RUN).args(["--arg", "in:x.npy"]));
    // What `timeout` reports for a command that it ended; 137 would be one that it had to kill.
    assert_eq!(ran.code, Some(124), "{}", ran.err);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[test]
fn checks_of_many_primitives_end_with_the_first_signal() {
    let place = Place::new();
    for args in
        [&["check", "--device", "emulator"][..], &["bench", "--device", "emulator", "--elements", "4000000"]]
    {
        for (signal, code) in [("INT", 130), ("TERM", 143)] {
            let (ended, took, said) = interrupted(&place, args, &[signal]);
            assert_eq!(ended, Some(code), "{said}");
            assert!(took < SECOND, "{args:?}: {took:?}");
        }
    }
    assert!(place.files().is_empty());
}

#[test]
fn conversions_leave_nothing_behind() {
    let place = Place::new();
    std::fs::create_dir(place.path("model")).expect("a folder");
    let weight = one_weight([4096, 4096], weights());
    for shard in ["1", "2"] {
        place.write(&format!("model/{shard}.safetensors"), &weight);
    }
    let index = json!({"weight_map": {"w": "1.safetensors", "v": "2.safetensors"}}).to_string();
    place.write(
        "model/2.safetensors",
        String::from_utf8_lossy(&weight[..60])
            .replace("\"w\"", "\"v\"")
            .into_bytes()
            .into_iter()
            .chain(weight[60..].iter().copied())
            .collect::<Vec<u8>>(),
    );
    place.write("model/model.safetensors.index.json", index);
    let quantize = [
        "quantize",
        "model",
        "-o",
        "q",
        "--format",
        "bnb-nf4",
        "--double-quant",
        "--verify",
        "--device",
        "emulator",
    ];
    for signals in [&["INT"][..], &["TERM"], &["INT", "INT"]] {
        let (ended, took, said) = interrupted(&place, &quantize, signals);
        assert_eq!(ended, Some(if signals[0] == "INT" { 130 } else { 143 }), "{said}");
        assert!(took < SECOND, "{took:?}");
        assert_eq!(place.files(), ["model"], "{said}");
    }
}

#[test]
fn a_pipe_that_nobody_writes_to_holds_no_command_up() {
    let place = place(&endless());
    fifo(&place.path("pipe"));
    fifo(&place.path("model.safetensors.index.json"));
    // Checkpoints and arrays are files.
    let refused: [&[&str]; 6] = [
        &["inspect", "pipe"],
        &["inspect", "model.safetensors.index.json"],
        &["inspect", "."],
        &["quantize", "pipe", "-o", "q", "--format", "int4"],
        &["dequantize", "pipe", "-o", "q"],
        &["run", "k.ptx", "--grid", "1", "--block", "1", "--arg", "in:pipe"],
    ];
    for args in refused {
        let ran = finish(
            Command::new("timeout")
                .arg("5")
                .arg(env!("CARGO_BIN_EXE_warpwright"))
                .args(args)
                .current_dir(place.path("")),
        );
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.err);
        assert!(ran.err.contains("is not a regular file"), "{args:?}: {}", ran.err);
    }
    // A text may come through a pipe, and waiting for it can be ended.
    for args in [&["lint", "pipe"][..], &["run", "pipe", "--grid", "1", "--block", "1"]] {
        for (signal, code) in [("INT", 130), ("TERM", 143)] {
            let (ended, took, said) = interrupted(&place, args, &[signal]);
            assert_eq!(ended, Some(code), "{said}");
            assert!(took < SECOND, "{args:?}: {took:?}");
            assert!(said.contains("interrupted by SIG"), "{said}");
        }
        let (ended, took, _) = interrupted(&place, args, &["INT", "TERM"]);
        assert_eq!(ended, Some(130), "the first signal counts");
        assert!(took < SECOND / 2, "the second one ends at once: {took:?}");
    }
    let text = place.path("k.ptx");
    let writer = std::thread::spawn({
        let pipe = place.path("pipe");
        move || std::fs::copy(text, pipe)
    });
    assert_eq!(place.run(&["lint", "pipe"]).code, Some(0));
    writer.join().expect("the writer").expect("the text is read");
}

#[test]
fn a_text_that_never_ends_is_refused() {
    Place::new().refused(&["lint", "/dev/zero"], &["/dev/zero: is longer than 268435456 bytes"]);
}

#[test]
fn an_ignored_hangup_stays_ignored() {
    let place = place(&endless());
    let mut command = Command::new("nohup");
    command
        .current_dir(place.path(""))
        .arg(env!("CARGO_BIN_EXE_warpwright"))
        .args(RUN)
        .args(["--arg", "in:x.npy"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    std::thread::sleep(Duration::from_millis(400));
    send("HUP", &child);
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().expect("a child").is_none());
    send("TERM", &child);
    let status = child.wait().expect("a child");
    assert_eq!((status.code(), status.signal()), (Some(143), None));
}

#[test]
fn a_step_limit_ends_straight_code_and_grids() {
    let place = place(&straight());
    let out = ["--arg", "out:y.npy:u32:64", "--max-steps"];
    let run = |extra: &[&str]| place.run(&[&RUN[..], &out, extra].concat());
    let ran = run(&["5000"]);
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("passed the limit of 5000 warp instructions"), "{}", ran.out);
    assert!(ran.out.contains("stand at line") || ran.out.contains("stands at line"), "{}", ran.out);
    assert!(!place.path("y.npy").exists());
    // Four warps of ten thousand instructions: the limit is that of all of them.
    assert_eq!(run(&["39000"]).code, Some(1));
    let json = run(&["39000", "--json"]);
    let value: Value = serde_json::from_str(&json.out).expect("JSON");
    assert!(value["fault"].as_str().is_some_and(|fault| fault.contains("39000")), "{value}");
    let ran = run(&["41000", "--sanitize", "none"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert_eq!(npy_values(&place.path("y.npy"))[0].to_bits(), 10_000);
    place.refuses(&RUN, &[(&["--max-steps", "0"], "--max-steps")]);
}

#[test]
fn a_time_limit_ends_a_launch() {
    let place = place(&endless());
    let begun = Instant::now();
    let ran = place.run(&[&RUN[..], &["--arg", "inout:x.npy:y.npy", "--time-limit", "0.3"]].concat());
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
    assert!(begun.elapsed() < 2 * SECOND, "{:?}", begun.elapsed());
    // The limit is that of the command, so the launch, which begins later, has run for less.
    let told = ran.out.split_once("time limit after ").and_then(|(_, rest)| rest.split_once(" s;"));
    let seconds: f64 =
        told.and_then(|(number, _)| number.parse().ok()).unwrap_or_else(|| panic!("{}", ran.out));
    assert!(seconds > 0.0 && seconds <= begun.elapsed().as_secs_f64(), "{seconds}");
    assert!(!place.path("y.npy").exists());
    for bad in ["0", "-1", "x", "inf"] {
        place.refuses(&RUN, &[(&[&format!("--time-limit={bad}")], "--time-limit")]);
    }
}

#[test]
fn checks_have_limits() {
    let place = Place::new();
    let begun = Instant::now();
    let ran = place.run(&["check", "--device", "emulator", "--time-limit", "0.5"]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.out.contains("until the time limit of 0.5 s"), "{}", ran.out);
    assert!(begun.elapsed() < 3 * SECOND, "{:?}", begun.elapsed());
    let ran = place.run(&["check", "silu", "--device", "emulator", "--max-steps", "10", "--json"]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    let value: Value = serde_json::from_str(&ran.out).expect("JSON");
    let reasons = value["cases"].as_array().expect("cases").iter().filter_map(|case| case["reason"].as_str());
    assert!(reasons.filter(|reason| reason.contains("limit of 10 warp instructions")).count() > 3, "{value}");
    let value = place.json(&[
        "check",
        "silu",
        "--device",
        "emulator",
        "--max-steps",
        "100000000",
        "--time-limit",
        "600",
        "--json",
    ]);
    assert_eq!(value["failed"], json!(0));
}
