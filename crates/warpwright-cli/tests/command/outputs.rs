//! Inputs and outputs of `run`: files that it may replace, and arrays of any size.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use crate::common::{Place, npy, npy_values};

/// `x[i] += 1` and `y[i] = x[i]` for 32 elements.
const INCREMENT: &str = ".version 7.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y)
{
    .reg .b32 %r<2>;
    .reg .f32 %f<3>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.f32 %f1, [%rd4];
    add.f32 %f2, %f1, 0f3F800000;
    st.global.f32 [%rd4], %f2;
    add.s64 %rd5, %rd2, %rd3;
    st.global.f32 [%rd5], %f2;
    ret;
}
";

const RUN: [&str; 8] = ["run", "k.ptx", "--grid", "1", "--block", "32", "--device", "emulator"];

fn place() -> Place {
    let place = Place::new();
    place.write("k.ptx", INCREMENT);
    place.write("x.npy", npy(&[1.5; 32]));
    place
}

fn run(place: &Place, x: &str, y: &str, extra: &[&str]) -> crate::common::Ran {
    place.run(&[&RUN[..], &["--arg", x, "--arg", y], extra].concat())
}

#[test]
fn arrays_of_an_earlier_run_are_replaced_and_other_files_with_force_alone() {
    let place = place();
    let (x, y) = ("inout:x.npy:z.npy", "out:y.npy:f32:32");
    for _ in 0..2 {
        let ran = run(&place, x, y, &[]);
        assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
        assert_eq!(npy_values(&place.path("y.npy")), [2.5; 32]);
        assert_eq!(npy_values(&place.path("z.npy")), [2.5; 32]);
        // The next run has something to replace that it would have written otherwise.
        place.write("y.npy", npy(&[0.0; 7]));
    }
    // No arrays, or no whole ones.
    let cut = &npy(&[0.0; 7])[..100];
    for theirs in [&b"a letter"[..], b"", b"\x93NUMPY", cut] {
        place.write("y.npy", theirs);
        place.refuses(&RUN, &[(&["--arg", x, "--arg", y], "y.npy: exists already")]);
    }
    assert_eq!(run(&place, x, y, &["--force"]).code, Some(0));
    assert_eq!(npy_values(&place.path("y.npy")), [2.5; 32]);
    assert_eq!(place.files(), ["k.ptx", "x.npy", "y.npy", "z.npy"]);
}

#[test]
fn what_a_run_reads_is_never_replaced() {
    let place = place();
    let y = "out:y.npy:f32:32";
    std::fs::create_dir(place.path("folder")).expect("a folder");
    let in_folder = format!("inout:x.npy:{}", place.path("folder/../x.npy").display());
    let cases: [(&str, &str, &[&str], &str); 7] = [
        ("inout:x.npy:x.npy", y, &[], "x.npy: is read as x.npy"),
        ("inout:x.npy:./x.npy", y, &[], "x.npy: is read as x.npy"),
        (&in_folder, y, &[], "x.npy: is read as x.npy"),
        ("in:x.npy", "out:x.npy:f32:32", &[], "x.npy: is read as x.npy"),
        ("in:x.npy", "out:k.ptx:f32:32", &[], "k.ptx: is read as k.ptx"),
        ("in:x.npy", y, &["--html", "x.npy"], "x.npy: is read as x.npy"),
        ("inout:x.npy:y.npy", y, &[], "y.npy: is written twice"),
    ];
    for (x, y, extra, expected) in cases {
        let ran = run(&place, x, y, &[&["--force"], extra].concat());
        assert_eq!(ran.code, Some(2), "{x} {y}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(expected), "{}", ran.err);
        assert_eq!(npy_values(&place.path("x.npy")), [1.5; 32]);
        assert_eq!(place.read("k.ptx"), INCREMENT.as_bytes());
    }
    #[cfg(unix)]
    {
        // Another name of the same file.
        std::os::unix::fs::symlink("x.npy", place.path("link.npy")).expect("a link");
        let ran = run(&place, "inout:link.npy:x.npy", y, &["--force"]);
        assert_eq!(ran.code, Some(2), "{}", ran.err);
        assert!(ran.err.contains("x.npy: is read as link.npy"), "{}", ran.err);
    }
}

/// A file of so many f32, of which nothing but the header is on the disk.
fn sparse(place: &Place, name: &str, elements: u64) {
    let header = npy(&[]);
    let text = String::from_utf8_lossy(&header[10..]).replace("(0,)", &format!("({elements},)"));
    let text = format!("{:<117}\n", text.trim_end());
    let mut file = File::create(place.path(name)).expect("a file");
    file.write_all(&header[..8]).expect("the magic");
    file.write_all(&(text.len() as u16).to_le_bytes()).expect("the length");
    file.write_all(text.as_bytes()).expect("the header");
    file.set_len(10 + text.len() as u64 + 4 * elements).expect("a sparse file");
}

/// Memory that the machine has left, where it tells.
fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(u64::MAX, |kib| kib << 10)
}

#[test]
fn an_array_that_does_not_fit_is_an_error() {
    let place = place();
    // More than an allocation may have; and 40 GB, unless the machine has room for them.
    let sizes = [1u64 << 38, 10_000_000_000];
    for elements in sizes.into_iter().filter(|n| n * 4 > available()) {
        sparse(&place, "x.npy", elements);
        let begun = Instant::now();
        let ran = run(&place, "in:x.npy", "out:y.npy:f32:32", &[]);
        assert_eq!(ran.code, Some(2), "{}{}", ran.out, ran.err);
        let expected = format!("cannot allocate {} bytes for `x.npy`", 4 * elements);
        assert!(ran.err.contains(&expected), "{}", ran.err);
        // The same for an array that is only written.
        let ran = run(&place, "in:x.npy", &format!("out:y.npy:f32:{elements}"), &[]);
        assert_eq!(ran.code, Some(2), "{}{}", ran.out, ran.err);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }
    assert_eq!(place.files(), ["k.ptx", "x.npy"]);
}

#[test]
fn large_arrays_go_through_in_parts() {
    // Three parts and a bit.
    let place = place();
    let elements = 3 * (1 << 20) + 5;
    let values: Vec<f32> = (0..elements).map(|i| (i % 1013) as f32).collect();
    place.write("x.npy", npy(&values));
    let ran =
        run(&place, "inout:x.npy:z.npy", &format!("out:y.npy:f32:{elements}"), &["--sanitize", "memcheck"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let z = npy_values(&place.path("z.npy"));
    let expected = values.iter().enumerate().map(|(i, v)| if i < 32 { v + 1.0 } else { *v });
    assert!(z.iter().copied().eq(expected));
    let y = npy_values(&place.path("y.npy"));
    assert_eq!(y.len(), elements);
    assert_eq!(y[..32], z[..32]);
    // What nothing wrote is NaN.
    assert!(y[32..].iter().all(|v| v.is_nan()));
}
