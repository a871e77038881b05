//! Arguments of `run` that are no array of their own: tensor maps and pointers to arrays that have names, structures, lists.

use serde_json::json;

use crate::common::{Place, npy, npy_values};

/// Copies a tile of 8 by 4 floats: every parameter is a tensor map.
const MAPS: &str = "\
.version 8.0
.target sm_90
.address_size 64
.visible .entry copy(
    .param .align 64 .b8 from[128],
    .param .align 64 .b8 to[128]
)
{
    .reg .pred %p<3>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    .shared .align 128 .b8 tile[128];
    .shared .align 8 .b64 bar;
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p0, %r0, 0;
    mov.u32 %r1, tile;
    mov.u32 %r2, bar;
    mov.b64 %rd0, from;
    cvta.param.u64 %rd0, %rd0;
    mov.b64 %rd1, to;
    cvta.param.u64 %rd1, %rd1;
    @%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
    @%p0 fence.mbarrier_init.release.cluster;
    bar.sync 0;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
    @%p0 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd0, {0, 0}], [%r2];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0;
    @!%p1 bra WAIT;
    @%p0 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {0, 0}], [%r1];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    ret;
}
";

/// `y[i] = factor * x[i]` for `i < n`, of a structure of these, where there is a `y`.
const STRUCTURE: &str = "\
.version 7.0
.target sm_75
.address_size 64
.visible .entry scale(.param .align 8 .b8 all[32], .param .u64 skip)
{
    .reg .pred %p<3>;
    .reg .b32 %r<4>;
    .reg .f32 %f<3>;
    .reg .b64 %rd<6>;
    ld.param.u32 %r1, [all];
    ld.param.u64 %rd1, [all+8];
    ld.param.u64 %rd2, [all+16];
    ld.param.f32 %f1, [all+24];
    ld.param.u64 %rd3, [skip];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra DONE;
    setp.ne.u64 %p2, %rd3, 0;
    @%p2 bra DONE;
    mul.wide.u32 %rd4, %r2, 4;
    add.s64 %rd1, %rd1, %rd4;
    add.s64 %rd2, %rd2, %rd4;
    ld.global.f32 %f2, [%rd1];
    mul.rn.f32 %f2, %f2, %f1;
    st.global.f32 [%rd2], %f2;
DONE:
    ret;
}
";

const ON: [&str; 8] = ["run", "k.ptx", "--grid", "1", "--block", "32", "--device", "emulator"];

fn place(kernel: &str) -> Place {
    let place = Place::new();
    place.write("k.ptx", kernel);
    place.write("x.npy", npy(&(0..32).map(|i| i as f32).collect::<Vec<_>>()));
    place
}

fn numbers() -> Vec<f32> {
    (0..32).map(|i| i as f32).collect()
}

#[test]
fn a_kernel_may_take_tensor_maps_alone() {
    let place = place(MAPS);
    let args = [
        &ON[..],
        &["--array", "x=x.npy", "--array", "y=out:y.npy:f32:4,8"],
        &["--arg", "tensormap:x:f32:8x4::8x4:none", "--arg", "tensormap:y:f32:8x4::8x4:none", "--json"],
    ];
    assert_eq!(place.json(&args.concat())["findings"], json!([]));
    assert_eq!(npy_values(&place.path("y.npy")), numbers());
}

#[test]
fn pointers_may_stand_in_structures_and_be_null() {
    let place = place(STRUCTURE);
    let arrays = ["--array", "x=in:x.npy", "--array", "y=out:y.npy:f32:32"];
    let structure = "struct:u32:30,ptr:x+8,ptr:y,f32:0.5";
    let run =
        |last: &'static str| [&ON[..], &arrays, &["--arg", structure, "--arg", last, "--json"]].concat();
    assert_eq!(place.json(&run("null"))["findings"], json!([]));
    let expected: Vec<f32> = (2..32).map(|i| 0.5 * i as f32).collect();
    assert_eq!(npy_values(&place.path("y.npy"))[..30], expected);
    // One that is not null, to the middle of an array: the kernel leaves the results alone.
    place.json(&run("ptr:x+64"));
    assert_ne!(npy_values(&place.path("y.npy"))[..30], expected);
}

#[test]
fn arguments_may_come_from_a_list() {
    let place = place(STRUCTURE);
    let list = json!({
        "arrays": {"x": "x.npy", "y": "out:y.npy:f32:32"},
        "args": ["struct:u32:32,ptr:x,ptr:y,f32:2"],
    });
    place.write("list.json", list.to_string());
    let args = [&ON[..], &["--args-json", "list.json", "--arg", "null", "--json"]].concat();
    assert_eq!(place.json(&args)["findings"], json!([]));
    assert_eq!(npy_values(&place.path("y.npy")), numbers().iter().map(|x| 2.0 * x).collect::<Vec<_>>());
    // What is read is not written.
    let over = [&ON[..], &["--args-json", "list.json", "--arg", "null", "--html", "list.json"]].concat();
    place.refused(&over, &["list.json", "is read as"]);
    place.write("list.json", "{\"args\": [5]}");
    place.refused(&args, &["argument 0 is no text"]);
}

#[test]
fn names_that_lead_nowhere_are_usage_errors() {
    let place = place(STRUCTURE);
    let cases: [(&[&str], &str); 10] = [
        (&["--arg", "ptr:x"], "there is no array of this name"),
        (&["--arg", "ptr:0"], "0 arrays stand before it"),
        (&["--array", "x=x.npy"], "no argument is of it"),
        (&["--array", "x=x.npy", "--arg", "ptr:x+129"], "`x` has 128 bytes"),
        (&["--array", "x=x.npy", "--array", "x=x.npy", "--arg", "ptr:x"], "the name of another array"),
        (&["--array", "5=x.npy", "--arg", "ptr:5"], "has a name that is empty, a number"),
        (&["--array", "x.npy", "--arg", "ptr:x"], "has no name"),
        (&["--array", "x=nowhere.npy", "--arg", "ptr:x"], "nowhere.npy: cannot open"),
        (&["--array", "x=x.npy", "--arg", "tensormap:x:f32:8x5::8x4:none"], "the tensor has 160 bytes"),
        (&["--array", "x=x.npy", "--arg", "struct:u32:1,ptr:x", "--arg", "null"], "is a b8[32], got bytes"),
    ];
    place.refuses(&ON, &cases);
}
