"""`lint` and `run`."""

from __future__ import annotations

import numpy as np
import pytest

import warpwright as ww

HEAD = ".version 7.0\n.target sm_75\n.address_size 64\n"
SCALE = (
    HEAD
    + """
.visible .entry scale(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n) {
    .reg .b32 %r<6>; .reg .b64 %rd<6>; .reg .f32 %f<4>; .reg .pred %p;
    ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.f32 %f1, [a]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p ret;
    mul.wide.u32 %rd3, %r5, 4;
    add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4]; mul.rn.f32 %f3, %f2, %f1; st.global.f32 [%rd5], %f3;
    ret;
}
"""
)
REVERSE = (
    HEAD
    + """
.visible .entry reverse(.param .u64 x, .param .u64 y) .reqntid 256, 1, 1 {
    .reg .b32 %r<6>; .reg .b64 %rd<6>; .reg .f32 %f<3>;
    .shared .align 4 .b8 tile[1024];
    ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];
    mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, tile;
    cvt.u64.u32 %rd3, %r2; add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
    ld.global.f32 %f1, [%rd4]; add.u32 %r4, %r3, %r2; st.shared.f32 [%r4], %f1;
    BARRIER
    sub.u32 %r5, %r3, %r2; ld.shared.f32 %f2, [%r5+1020]; st.global.f32 [%rd5], %f2;
    ret;
}
"""
)


def test_runs_and_writes_in_place():
    x = np.arange(100, dtype=np.float32)
    y = np.full_like(x, np.nan)
    run = ww.run(SCALE, "scale", grid=2, block=64, args=(x, y, 0.5, 100))
    assert run.ok and run.findings == [] and run.fault is None
    np.testing.assert_array_equal(y, x / 2)
    np.testing.assert_array_equal(x, np.arange(100, dtype=np.float32))
    assert run.counters["blocks"] == 2 and run.counters["warps"] == 4
    assert run.counters["global_loads.bytes"] == 400
    by_line = {line: c for line, c in run.lines.items() if c["global_loads.bytes"]}
    (line,) = by_line
    assert "ld.global.f32" in SCALE.splitlines()[line - 1] and by_line[line]["global_loads.bytes"] == 400
    silent = ww.run(SCALE, grid=2, block=64, args=(x, y, 1.0, 100), counters=False)
    assert silent.counters == {} and silent.lines == {}


def test_one_array_twice_is_one_buffer():
    x = np.arange(64, dtype=np.float32)
    assert ww.run(SCALE, grid=1, block=64, args=(x, x, np.float32(2), np.int64(64))).ok
    np.testing.assert_array_equal(x, 2 * np.arange(64, dtype=np.float32))


def test_read_only_arrays_stay_as_they_are():
    x = np.arange(64, dtype=np.float32)
    x.flags.writeable = False
    assert ww.run(SCALE, grid=1, block=64, args=(x, x, 2.0, 64)).ok
    np.testing.assert_array_equal(x, np.arange(64))


def test_finds_an_access_out_of_bounds():
    x = np.zeros(60, dtype=np.float32)
    run = ww.run(SCALE, grid=1, block=64, args=(x, np.zeros(64, np.float32), 2.0, 64), sanitize="memcheck")
    assert not run.ok
    (finding,) = [f for f in run.findings if f.tool == "memcheck"]
    assert finding.severity == "error" and finding.count == 4 and finding.kernel == "scale"
    assert SCALE.splitlines()[finding.line - 1].strip().startswith("ld.global.f32")
    assert finding.thread == [60, 0, 0] and "memcheck" in str(finding)


def test_finds_a_missing_barrier():
    x = np.arange(256, dtype=np.float32)
    y = np.empty_like(x)
    bad = ww.run(REVERSE.replace("BARRIER", ""), "reverse", grid=1, args=(x, y))
    assert not bad.ok and "racecheck" in {f.tool for f in bad.findings}
    assert ww.run(REVERSE.replace("BARRIER", ""), "reverse", grid=1, args=(x, y), sanitize="none").findings == []
    some = ww.run(REVERSE.replace("BARRIER", ""), grid=1, args=(x, y), sanitize=["memcheck", "synccheck"])
    assert some.findings == []
    good = ww.run(REVERSE.replace("BARRIER", "bar.sync 0;"), "reverse", grid=1, args=(x, y))
    assert good.ok, good.findings
    np.testing.assert_array_equal(y, x[::-1])


def test_a_fault_is_told_and_nothing_is_written():
    text = HEAD + ".visible .entry stop(.param .u64 x) { trap; }\n"
    x = np.ones(4, np.float32)
    run = ww.run(text, grid=1, block=1, args=(x,))
    assert not run.ok and "trap" in run.fault
    np.testing.assert_array_equal(x, 1)
    endless = HEAD + ".visible .entry spin() { L: bra L; }\n"
    assert "limit" in ww.run(endless, grid=1, block=1, max_steps=1000).fault


PRINTING = (
    HEAD
    + """
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.global .align 1 .b8 text[7] = {37, 100, 33, 10, 0, 0, 0};
.visible .entry k()
{
    .local .align 8 .b8 depot[8]; .reg .b32 %r<3>; .reg .b64 %rd<4>;
    mov.u32 %r1, %tid.x; mov.u64 %rd1, depot; st.local.u32 [%rd1], %r1;
    cvta.local.u64 %rd2, %rd1; mov.u64 %rd3, text; cvta.global.u64 %rd3, %rd3;
    { .param .b64 f; .param .b64 a; .param .b32 v;
      st.param.b64 [f+0], %rd3; st.param.b64 [a+0], %rd2;
      call.uni (v), vprintf, (f, a); ld.param.b32 %r2, [v+0]; }
    ret;
}
"""
)


def test_printed_text():
    run = ww.run(PRINTING, "k", grid=1, block=3)
    assert run.ok and run.printed == ["0!\n", "1!\n", "2!\n"]


def test_what_cannot_run_is_refused():
    with pytest.raises(ww.PtxError) as info:
        ww.run(SCALE.replace("mul.rn.f32 %f3, %f2, %f1", "mul.rn.f32 %f3, %f2"), "scale", args=())
    assert info.value.remarks[0].severity == "error"
    with pytest.raises(ww.PtxError) as info:
        ww.run(SCALE, "no_such_kernel", args=())
    assert info.value.got == "no_such_kernel" and info.value.expected == ["scale"]
    with pytest.raises(ww.ArgumentError):
        ww.run(SCALE, "scale", args=(1,))
    with pytest.raises(ww.ParameterError):
        ww.run(SCALE, "scale", grid=(1, 2, 3, 4), args=(0, 0, 1.0, 0))
    with pytest.raises(ww.ParameterError):
        ww.run(SCALE, "scale", args=(0, 0, 1.0, 0), sanitize="leakcheck")
    x = np.zeros((4, 4), np.float32)
    with pytest.raises(ww.LayoutError):
        ww.run(SCALE, "scale", grid=1, block=4, args=(x.T, x, 1.0, 4))


def errors(text, target=None):
    return [r for r in ww.lint(text, target) if r.severity == "error"]


def test_lint_says_what_is_wrong_and_where():
    assert errors(SCALE) == []
    wrong = errors(SCALE.replace("ld.global.f32 %f2", "ld.global.f64 %f2"))
    assert len(wrong) == 1
    assert wrong[0].line > 0 and wrong[0].column > 0 and wrong[0].rule and wrong[0].message
    assert wrong[0].help is not None and wrong[0].notes == []
    assert "ld.global.f64" in SCALE.replace("ld.global.f32 %f2", "ld.global.f64 %f2").splitlines()[wrong[0].line - 1]
    assert errors("this is no PTX")
    assert errors(HEAD) == []


def test_lint_for_another_target():
    newer = (
        HEAD.replace("sm_75", "sm_80").replace("7.0", "7.8")
        + ".visible .entry f() { .reg .b32 %r<3>; mov.u32 %r1, 1; redux.sync.add.s32 %r2, %r1, 0xffffffff; ret; }\n"
    )
    assert errors(newer) == [] == errors(newer, "sm_90")
    assert "sm_80" in errors(newer, "sm_75")[0].message
    with pytest.raises(ww.ParameterError) as info:
        ww.lint(newer, target="turing")
    assert info.value.got == "turing"


def test_hostile_text_never_panics():
    for text in ["", "\0", ".version", ".version 99.9\n.target sm_9999", "{" * 1000, SCALE[:200], "ä" * 100]:
        ww.lint(text)
        with pytest.raises(ww.Error):
            ww.run(text, args=())


def stores(kind: str) -> str:
    """A kernel that stores the bytes of a parameter of a type."""
    width = {"b128": 16}.get(kind) or int(kind[1:]) // 8
    lines = [f"ld.param.u8 %r, [v+{i}]; st.global.u8 [%rd+{i}], %r;" for i in range(width)]
    return HEAD + (
        f".visible .entry store(.param .u64 y, .param .{kind} v) {{ .reg .b64 %rd; .reg .b32 %r;\n"
        "ld.param.u64 %rd, [y];\n" + "\n".join(lines) + "\nret; }\n"
    )


def stored(kind, value):
    y = np.zeros(16, np.uint8)
    run = ww.run(stores(kind), grid=1, block=1, args=(y, value))
    assert run.ok, run.findings or run.fault
    return y.tobytes()


def test_scalars_of_every_type():
    for kind in ("u8", "s8", "b8", "u16", "s16", "b16", "u32", "s32", "b32", "u64", "s64", "b64", "b128"):
        bits = int(kind[1:])
        low = 0 if kind[0] == "u" else -(1 << (bits - 1))
        high = (1 << (bits - 1)) - 1 if kind[0] == "s" else (1 << bits) - 1
        for value in {low, -1 if low else 0, 0, 1, high // 3, high}:
            expected = (value % (1 << bits)).to_bytes(bits // 8, "little")
            assert stored(kind, value)[: bits // 8] == expected, (kind, value)
        for value in (low - 1, high + 1, -(1 << 200), 1 << 200):
            with pytest.raises(ww.ParameterError) as info:
                stored(kind, value)
            e = info.value
            assert (e.op, e.argument, e.got) == ("run", "v", repr(value))
            assert e.expected == f"an integer from {low} to {high} for .{kind}"
    assert stored("f32", 0.1)[:4] == np.float32(0.1).tobytes() == stored("b32", 0.1)[:4]
    assert stored("f64", 0.1)[:8] == np.float64(0.1).tobytes() == stored("b64", 0.1)[:8]
    # Rounded once: by way of single precision it would be the even neighbour.
    between = 1 + 2**-11 + 2**-40
    assert stored("f16", between)[:2] == np.float16(1 + 2**-10).tobytes()
    assert stored("f32", 3)[:4] == np.float32(3).tobytes()
    assert stored("f32", float("inf"))[:4] == np.float32("inf").tobytes()
    assert stored("u16", np.int64(7))[:2] == b"\7\0"
    for kind, value in (("f32", 1e39), ("b32", -1e39), ("f16", 65520.0), ("f64", 10**400)):
        with pytest.raises(ww.ParameterError) as info:
            stored(kind, value)
        assert (info.value.op, info.value.argument, info.value.got) == ("run", "v", repr(value))
    for kind, value, expected in (
        ("u32", 1.5, "an integer"),
        ("b128", 1.5, "an integer"),
        ("u64", None, "an integer"),
        ("f32", "one", "a number"),
        ("f64", 1j, "a number"),
    ):
        with pytest.raises(ww.ArgumentError) as info:
            stored(kind, value)
        assert (info.value.argument, info.value.expected) == ("v", f"{expected} for .{kind}")
        assert info.value.got == type(value).__name__
    with pytest.raises(ww.ArgumentError) as info:
        ww.run(HEAD + ".visible .entry k(.param .align 4 .b8 v[12]) { ret; }", args=(5,))
    assert info.value.expected == "bytes for .b8[12]"
    for wrong in (-1, (1, -1), 1 << 32, 1.5, "1", ()):
        with pytest.raises(ww.ParameterError) as info:
            ww.run(SCALE, grid=wrong, block=1, args=(0, 0, 1.0, 0))
        assert (info.value.op, info.value.argument, info.value.got) == ("run", "grid", wrong)


LOAD_TILE = """.version 8.0
.target sm_90
.address_size 64
.visible .entry load_tile(.param .align 64 .b8 map[128], .param .u64 y, .param .u32 row, .param .u32 column) {
    .reg .pred %p<2>; .reg .b32 %r<12>; .reg .b64 %rd<6>; .reg .f32 %f;
    .shared .align 128 .b8 tile[128];
    .shared .align 8 .b64 bar;
    mov.b64 %rd1, map; cvta.param.u64 %rd1, %rd1;
    ld.param.u64 %rd2, [y]; ld.param.u32 %r1, [row]; ld.param.u32 %r2, [column];
    mov.u32 %r3, %tid.x; mov.u32 %r4, tile; mov.u32 %r5, bar;
    setp.eq.u32 %p0, %r3, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r5], 1;
    @%p0 fence.proxy.async.shared::cta;
    bar.sync 0;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 %rd3, [%r5], 128;
    @%p0 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r4], [%rd1, {%r2, %r1}], [%r5];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], 0;
    @!%p1 bra WAIT;
    shl.b32 %r6, %r3, 2; add.u32 %r7, %r4, %r6; ld.shared.f32 %f, [%r7];
    cvt.u64.u32 %rd4, %r6; add.u64 %rd5, %rd2, %rd4; st.global.f32 [%rd5], %f;
    ret;
}
"""


def test_tensor_maps():
    x = np.arange(12 * 16, dtype=np.float32).reshape(12, 16)
    y = np.full((4, 8), np.nan, dtype=np.float32)
    tile = ww.TensorMap(x, (4, 8))
    assert tile.array is x
    run = ww.run(LOAD_TILE, grid=1, block=32, args=(tile, y, 3, 4))
    assert run.ok, run.findings or run.fault
    np.testing.assert_array_equal(y, x[3:7, 4:12])
    # What lies outside is zero, or NaN.
    assert ww.run(LOAD_TILE, grid=1, block=32, args=(tile, y, 10, 12)).ok
    np.testing.assert_array_equal(y[:2, :4], x[10:, 12:])
    assert not y[2:].any() and not y[:, 4:].any()
    assert ww.run(LOAD_TILE, grid=1, block=32, args=(ww.TensorMap(x, (4, 8), fill="nan"), y, 10, 12)).ok
    assert np.isnan(y[2:]).all()


def test_wrong_tensor_maps():
    x = np.zeros((12, 16), np.float32)
    for wrong in ({"swizzle": "48B"}, {"element": "f8"}, {"fill": "ones"}):
        with pytest.raises(ww.ParameterError):
            ww.TensorMap(x, (4, 8), **wrong)
    y = np.zeros((4, 8), np.float32)
    for wrong in (ww.TensorMap(x, (4,)), ww.TensorMap(x, (4, 300)), ww.TensorMap(x, (4, 8), element="f64")):
        with pytest.raises(ww.ParameterError):
            ww.run(LOAD_TILE, grid=1, block=32, args=(wrong, y, 0, 0))
