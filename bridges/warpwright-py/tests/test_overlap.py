"""Arrays that share memory: kernels see them share it, and operations refuse what they cannot do right, before they begin."""

from __future__ import annotations

import numpy as np
import pytest
from test_emulator import HEAD, LOAD_TILE, SCALE

import warpwright as ww

# The result comes first, so that an argument that is copied back after it would undo it.
SCALE_BACK = SCALE.replace(".param .u64 x, .param .u64 y", ".param .u64 y, .param .u64 x")
STORE_4 = (
    HEAD
    + """
.visible .entry store(.param .u64 x, .param .u64 y) {
    .reg .b64 %rd<3>; .reg .f32 %f<5>;
    ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];
    ld.global.f32 %f1, [%rd1]; mov.f32 %f2, 0f40000000; mov.f32 %f3, 0f40400000; mov.f32 %f4, 0f40800000;
    st.global.v4.f32 [%rd2], {%f1, %f2, %f3, %f4};
    ret;
}
"""
)


def numbers(count):
    return np.arange(1, count + 1, dtype=np.float32)


def test_views_of_one_buffer_share_it_in_a_kernel():
    for text, order in ((SCALE, slice(None)), (SCALE_BACK, slice(None, None, -1))):
        for source, result in ((slice(0, 32), slice(16, 48)), (slice(16, 48), slice(0, 64)), (slice(0, 64), slice(8, 40))):
            buffer, before = numbers(64), numbers(64)
            x, y = buffer[source], buffer[result]
            # One warp: every thread has loaded before the first stores.
            run = ww.run(text, grid=1, block=32, args=((x, y)[order]) + (10.0, 32), sanitize="none")
            assert run.ok, run.fault
            expected = before.copy()
            expected[result][:32] = 10 * before[source][:32]
            np.testing.assert_array_equal(buffer, expected)


def test_views_that_only_touch_are_apart():
    buffer = numbers(64)
    x, y = buffer[:32], buffer[32:]
    assert ww.run(SCALE, grid=1, block=32, args=(x, y, 10.0, 32)).ok
    np.testing.assert_array_equal(buffer, np.concatenate([numbers(32), 10 * numbers(32)]))
    # What lies behind the first view is not its own, although it is the second one's.
    run = ww.run(SCALE, grid=1, block=64, args=(x, np.empty(64, np.float32), 10.0, 64), sanitize="memcheck")
    assert [f.kind for f in run.findings] == ["out-of-bounds"]


def test_views_keep_their_alignment():
    base = np.zeros(64, np.float32)
    start = -(base.ctypes.data // 4) % 4
    buffer = base[start : start + 32]
    assert buffer.ctypes.data % 16 == 0
    buffer[:] = numbers(32)
    run = ww.run(STORE_4, grid=1, block=1, args=(buffer[1:9], buffer[4:12]))
    assert run.ok, run.findings or run.fault
    np.testing.assert_array_equal(buffer, [1, 2, 3, 4, 2, 2, 3, 4, *range(9, 33)])
    run = ww.run(STORE_4, grid=1, block=1, args=(buffer[1:9], buffer[5:13]))
    assert [f.kind for f in run.findings] == ["misaligned"] or "misaligned" in (run.fault or "")


def test_a_view_that_is_read_only_keeps_nothing_from_being_written():
    buffer = numbers(64)
    fixed = buffer[:32].view()
    fixed.flags.writeable = False
    assert ww.run(SCALE_BACK, grid=1, block=32, args=(buffer[16:48], fixed, 10.0, 32), sanitize="none").ok
    np.testing.assert_array_equal(buffer[16:48], 10 * numbers(32))


def test_a_tensor_map_over_a_view():
    buffer = np.zeros(12 * 16 + 32, np.float32)
    x = buffer[: 12 * 16].reshape(12, 16)
    x[:] = numbers(12 * 16).reshape(12, 16)
    y = buffer[11 * 16 + 8 :][:32].reshape(4, 8)
    expected = x[3:7, 4:12].copy()
    run = ww.run(LOAD_TILE, grid=1, block=32, args=(ww.TensorMap(x, (4, 8)), y, 3, 4), sanitize="none")
    assert run.ok, run.findings or run.fault
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(x[11, 8:], expected.ravel()[:8])


def refused(call, *arrays):
    """That a call is refused for an overlap, and leaves the arrays as they are."""
    before = [a.tobytes() for a in arrays]
    with pytest.raises(ww.LayoutError, match="overlap") as info:
        call()
    assert info.value.op and info.value.argument and info.value.got
    assert [a.tobytes() for a in arrays] == before


def test_a_result_that_overlaps_an_argument_in_part_is_refused():
    buffer, rest = numbers(4096), numbers(1024)
    x, y = buffer[:1024], buffer[512:1536]
    square = buffer[:1024].reshape(32, 32)
    shifted = buffer[32 : 32 + 1024].reshape(32, 32)
    for call in [
        lambda: ww.relu(x, out=y),
        lambda: ww.relu(y, out=x),
        lambda: ww.silu_backward(rest, x, out=y),
        lambda: ww.swiglu(rest, x, out=y),
        lambda: ww.swiglu_backward(rest, rest, x, out=(y, rest)),
        lambda: ww.softmax(square, out=shifted),
        lambda: ww.layer_norm(square, 32, out=shifted),
        lambda: ww.rms_norm(square, 32, out=shifted),
        lambda: ww.group_norm(square, 4, out=shifted),
        lambda: ww.batch_norm(square, training=True, out=shifted),
        lambda: ww.matmul(square, shifted + 0, out=shifted),
        lambda: ww.matmul(square + 0, square + 0, bias=buffer[:32], out=square),
        lambda: ww.local_response_norm(square.reshape(1, 32, 32), 5, out=shifted.reshape(1, 32, 32)),
        lambda: ww.dequantize_nf4(buffer.view(np.uint8)[:512], rest[:16], 1024, out=buffer[64 : 64 + 1024]),
    ]:
        refused(call, buffer, rest)


def test_results_that_overlap_each_other_are_refused():
    gate, up, dy = numbers(256), numbers(256), numbers(256)
    buffer = numbers(2048)
    square = numbers(256).reshape(16, 16)
    for call in [
        lambda: ww.swiglu_backward(gate, up, dy, out=(buffer[:256], buffer[:256])),
        lambda: ww.swiglu_backward(gate, up, dy, out=(buffer[:256], buffer[255:511])),
        lambda: ww.layer_norm_backward(square, square, buffer[:16], buffer[:16], 16, buffer[16:32], buffer[:16], out=(
            buffer[1024:1280].reshape(16, 16), buffer[1279:1295], buffer[1300:1316])),
        lambda: ww.batch_norm(square, buffer[:16], buffer[8:24], training=True),
        lambda: ww.batch_norm(square, buffer[:16], buffer[:16], training=True),
        lambda: ww.quantize_nf4(gate, out=(buffer.view(np.uint8)[:128], buffer[31:35])),
    ]:
        refused(call, buffer)


def test_the_very_argument_may_be_the_result_where_an_operation_says_so():
    for name, x in [
        ("silu", numbers(100)),
        ("softmax", numbers(100).reshape(4, 25)),
        ("log_softmax", numbers(100).reshape(4, 25)),
    ]:
        expected = getattr(ww, name)(x)
        assert getattr(ww, name)(x, out=x) is x
        np.testing.assert_array_equal(x, expected)
    gate, up, dy = numbers(64), 0.5 * numbers(64), 0.25 * numbers(64)
    expected = ww.swiglu_backward(gate, up, dy)
    ww.swiglu_backward(gate, up, dy, out=(gate, up))
    np.testing.assert_array_equal(gate, expected[0])
    np.testing.assert_array_equal(up, expected[1])
    # Two arguments may be one.
    x = numbers(64)
    expected = ww.swiglu(x, x)
    np.testing.assert_array_equal(ww.swiglu(x, x, out=x), expected)
    # Each row of a norm is read again after the first of it is written.
    square = numbers(64).reshape(8, 8)
    refused(lambda: ww.layer_norm(square, 8, out=square), square)


def test_strided_results():
    gate, up, dy = (numbers(12).reshape(3, 4) / k for k in (10, 20, 30))
    expected = ww.swiglu_backward(gate, up, dy)
    buffer = np.zeros((3, 8), np.float32)
    # Interleaved, side by side and one below the other, none of which share an element.
    for first, second in [
        (buffer[:, ::2], buffer[:, 1::2]),
        (buffer[:, :4], buffer[:, 4:]),
        (buffer[::-1, 3::-1], buffer[:, :3:-1]),
        (np.zeros((6, 4), np.float32)[::2], np.zeros((3, 4), np.float32)),
    ]:
        ww.swiglu_backward(gate, up, dy, out=(first, second))
        np.testing.assert_array_equal(first, expected[0])
        np.testing.assert_array_equal(second, expected[1])
    buffer[:] = 7
    for first, second in [
        (buffer[:, :4], buffer[:, 3:7]),
        (buffer[:, ::2], buffer[:, ::2]),
        (buffer[:, ::2], buffer[:, 1:5]),
        (buffer[:, :4], buffer[::-1, :4]),
        (buffer.ravel()[:12].reshape(3, 4), buffer[:, ::2]),
        (buffer[:, ::2], buffer.ravel()[:12].reshape(3, 4)),
    ]:
        refused(lambda first=first, second=second: ww.swiglu_backward(gate, up, dy, out=(first, second)), buffer)
    twice = np.lib.stride_tricks.as_strided(buffer, (3, 4), (0, 4), writeable=True)
    with pytest.raises(ww.LayoutError, match="share memory"):
        ww.relu(gate, out=twice)
    # A copy lies between a strided argument and a strided result.
    x = numbers(24).reshape(3, 8)
    expected = ww.silu(x[:, :4])
    ww.silu(x[:, :4], out=x[:, 2:6])
    np.testing.assert_array_equal(x[:, 2:6], expected)


def test_random_views_of_one_buffer(random):
    """A call on views of one buffer gives what it gives on copies of them, or is refused and changes nothing."""
    base = random.standard_normal(400).astype(np.float32)
    outcomes = []
    for _ in range(300):
        buffer = base.copy()

        def view():
            steps = random.choice([1, 2, 3, 6, 12, -1, -3], 2)
            span = int(sum(abs(s) * (n - 1) for s, n in zip(steps, (4, 6))))
            start = random.integers(0, 400 - span) - sum(min(s, 0) * (n - 1) for s, n in zip(steps, (4, 6)))
            return np.lib.stride_tricks.as_strided(buffer[int(start) :], (4, 6), tuple(int(4 * s) for s in steps))

        gate, up, dy, first, second = (view() for _ in range(5))
        if random.random() < 0.3:
            first, second = gate, up
        expected = ww.swiglu_backward(gate.copy(), up.copy(), dy.copy())
        try:
            ww.swiglu_backward(gate, up, dy, out=(first, second))
        except ww.LayoutError:
            outcomes.append(False)
            np.testing.assert_array_equal(buffer, base)
            continue
        outcomes.append(True)
        assert not np.shares_memory(first, second)
        np.testing.assert_array_equal(first, expected[0])
        np.testing.assert_array_equal(second, expected[1])
    assert 20 < sum(outcomes) < 280, sum(outcomes)


def test_the_same_rule_for_tensors(torch_device):
    """On the CPU and on the GPU what numpy's arrays are refused for is refused, and what they may is right."""
    import torch

    def made(count):
        return torch.arange(1, count + 1, dtype=torch.float32, device=torch_device) / 64

    def torch_refused(call, buffer):
        before = buffer.clone()
        with pytest.raises(ww.LayoutError, match="overlap"):
            call()
        assert torch.equal(buffer, before)

    buffer, rest = made(4096), made(1024)
    x, y = buffer[:1024], buffer[512:1536]
    square, shifted = x.view(32, 32), buffer[32 : 32 + 1024].view(32, 32)
    for call in [
        lambda: ww.relu(x, out=y),
        lambda: ww.silu_backward(rest, x, out=y),
        lambda: ww.swiglu_backward(rest, rest, x, out=(y, rest)),
        lambda: ww.swiglu_backward(rest, rest, rest + 0, out=(x, y)),
        lambda: ww.swiglu_backward(rest, rest, rest + 0, out=(x, x)),
        lambda: ww.softmax(square, out=shifted),
        lambda: ww.layer_norm(square, 32, out=square),
        lambda: ww.matmul(square, rest.view(32, 32), out=square),
        lambda: ww.batch_norm(rest.view(32, 32), buffer[:32], buffer[8:40], training=True),
        lambda: ww.swiglu_backward(
            *(rest[:512].view(32, 16),) * 3, out=(buffer[:1024].view(32, 32)[:, ::2], buffer[:1024].view(32, 32)[:, 2:18])
        ),
    ]:
        torch_refused(call, buffer)
    expected = ww.silu(x)
    assert torch.equal(ww.silu(x, out=x), expected) and torch.equal(x, expected)
    gate, up, dy = (made(12).view(3, 4) / k for k in (1, 2, 3))
    expected, both = ww.swiglu_backward(gate, up, dy), torch.zeros(3, 8, device=torch_device)
    ww.swiglu_backward(gate, up, dy, out=(both[:, ::2], both[:, 1::2]))
    assert torch.equal(both[:, ::2], expected[0]) and torch.equal(both[:, 1::2], expected[1])
