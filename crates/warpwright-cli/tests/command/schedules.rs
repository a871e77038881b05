//! `run --schedules`: what only some orders of warps show.

use serde_json::Value;

use crate::common::{Place, npy};

/// Each of two warps takes a ticket and writes `x[slot]`: of the ticket, or of its own number.
fn tickets(slot: &str, value: &str) -> String {
    format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n
.visible .entry k(.param .u64 count, .param .u64 x)
{{
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<5>;
    ld.param.u64 %rd0, [count];
    ld.param.u64 %rd1, [x];
    mov.u32 %r0, %tid.x;
    and.b32 %r1, %r0, 31;
    setp.ne.u32 %p0, %r1, 0;
    @%p0 bra DONE;
    shr.u32 %r2, %r0, 5;
    atom.global.add.u32 %r3, [%rd0], 1;
    setp.lt.u32 %p1, %r3, %r2;
    selp.u32 %r4, 100, %r2, %p1;
    mul.wide.u32 %rd2, {slot}, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], {value};
DONE:
    ret;
}}
"
    )
}

const RUN: [&str; 7] = [
    "run",
    "k.ptx",
    "--grid=1",
    "--block=64",
    "--device=emulator",
    "--arg=inout:c.npy:d.npy",
    "--arg=out:x.npy:u32:2",
];

/// A place with a kernel and a counter of 0.
fn place(kernel: &str) -> Place {
    let place = Place::new();
    place.write("k.ptx", kernel);
    place.write("c.npy", npy(&[0.0]));
    place
}

/// The second warp leaves the array if it is first at the counter, which the usual order does not show.
#[test]
fn a_defect_of_another_order() {
    let place = place(&tickets("%r4", "%r2"));
    let ran = place.run(&RUN);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let ran = place.run(&[&RUN[..], &["--schedules", "16"]].concat());
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("memcheck/out-of-bounds"), "{}", ran.out);
    let at = ran.out.find("shown by --completion random:").expect("what shows it");
    let seed: String =
        ran.out[at..].chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    let again = place.run(&[&RUN[..], &["--completion", &format!("random:{seed}")]].concat());
    assert_eq!(again.code, Some(1), "{}{}", again.out, again.err);
}

/// Tickets that are stored depend on the order, which no sanitizer objects to.
#[test]
fn results_of_another_order() {
    let place = place(&tickets("%r2", "%r3"));
    let ran = place.run(&[&RUN[..], &["--schedules", "16", "--json"]].concat());
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let value: Value = serde_json::from_str(&ran.out).expect("JSON");
    let found = value["differences"].as_array().expect("a list");
    assert_eq!(found.len(), 1, "{value}");
    assert_eq!((&found[0]["element"], &value["findings"]), (&0.into(), &Value::Array(Vec::new())));
    let name = found[0]["array"].as_str().expect("a name");
    let ran = place.run(&[&RUN[..], &["--schedules", "16"]].concat());
    assert!(
        ran.out.contains(&format!("warning: `{name}` depends on the schedule: element 0")),
        "{}",
        ran.out
    );
    // What is stored by the number of the warp does not.
    place.write("k.ptx", tickets("%r2", "%r2"));
    let ran = place.run(&[&RUN[..], &["--schedules", "16"]].concat());
    assert!(ran.code == Some(0) && !ran.out.contains("depends"), "{}{}", ran.out, ran.err);
    place.refuses(&RUN, &[(&["--schedules", "0"], "--schedules")]);
}
