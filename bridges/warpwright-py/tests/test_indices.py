"""Numbers that say where something is: checked on the host, cut on a GPU, and found there on request."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from conftest import torch_cuda

import warpwright as ww


def attention(random, new=np.asarray, keys=64, **options):
    q, k, v = (new(random.standard_normal((2, n, 2, 16)).astype(np.float32)) for n in (3, keys, keys))
    return ww.attention(q, k, v, **options)


def i32(*numbers):
    return np.array(numbers, np.int32)


def calls(random, new):
    """Each kind of number: a call, the name of the argument, what fits, what does not, and what is said of it."""
    cache = new(random.standard_normal((5, 16, 2, 16)).astype(np.float32))
    q = new(random.standard_normal((2, 3, 2, 16)).astype(np.float32))
    rows = new(random.standard_normal((1, 10, 2, 16)).astype(np.float32))
    x = new(random.standard_normal((4, 2, 3)).astype(np.float32))
    weights = [tuple(new(random.standard_normal(s).astype(np.float32)) for s in ((16, 3), (16, 4), 16, 16))]
    logits = new(random.standard_normal((3, 7)).astype(np.float32))

    def paged(table, lengths=i32(40, 17)):
        return ww.attention(q, cache, cache, key_lengths=new(lengths), block_table=new(table))

    table = i32(1, 2, 3, -1, 4, 0, -7, 99).reshape(2, 4)
    wrong = table.copy()
    wrong[1, 1] = 5
    return [
        (lambda n: attention(random, new, key_lengths=new(n)), "key_lengths", i32(0, 64), i32(64, 65), "65 at 1"),
        (lambda n: attention(random, new, key_lengths=new(n)), "key_lengths", i32(1, 2), i32(-1, 70), "-1 at 0"),
        (lambda n: paged(table, n), "key_lengths", i32(40, 32), i32(48, 65), "65 at 1"),
        (paged, "block_table", table, wrong, "5 at [1, 1]"),
        (lambda n: paged(table, n), "block_table", i32(40, 32), i32(40, 33), "-7 at [1, 2]"),
        (
            lambda n: ww.attention(rows, rows, rows, cu_seqlens_q=new(n), cu_seqlens_k=new(n)),
            "cu_seqlens_q",
            i32(0, 4, 10),
            i32(0, 11, 10),
            "11 at 1",
        ),
        (lambda n: ww.lstm(x, weights, lengths=new(n)), "lengths", i32(4, 0), i32(4, 5), "5 at 1"),
        (lambda n: ww.cross_entropy(logits, new(n)), "target", np.array([6, -100, 0]), np.array([6, 7, -1]), "7 at 1"),
        (lambda n: ww.cross_entropy(logits, new(n)), "target", i32(0, 1, 2), i32(0, -1, 9), "-1 at 1"),
    ]


def test_the_host_is_checked(random):
    for call, argument, good, bad, got in calls(random, np.asarray):
        call(good)
        with pytest.raises(ww.ParameterError) as info:
            call(bad)
        assert (info.value.argument, info.value.got) == (argument, got)
        assert info.value.op in str(info.value) and argument in str(info.value)


def test_the_host_is_checked_in_every_direction(random):
    x = random.standard_normal((4, 2, 3)).astype(np.float32)
    weights = [tuple(random.standard_normal(s).astype(np.float32) for s in ((16, 3), (16, 4), 16, 16))]
    y, _, _, reserve = ww.lstm(x, weights, training=True)
    with pytest.raises(ww.ParameterError, match="5 at 0"):
        ww.lstm_backward(x, weights, y, reserve, y, lengths=i32(5, 1))
    logits = random.standard_normal((3, 7)).astype(np.float32)
    loss, lse, nll, count = ww.cross_entropy(logits, i32(0, 1, 2), statistics=True)
    with pytest.raises(ww.ParameterError, match="7 at 2"):
        ww.cross_entropy_backward(logits, i32(0, 1, 7), lse, nll, loss, count)
    q = random.standard_normal((2, 3, 2, 16)).astype(np.float32)
    o, lse = ww.attention(q, q, q)
    with pytest.raises(ww.ParameterError, match="4 at 1"):
        ww.attention_backward(q, q, q, o, lse, o, key_lengths=i32(3, 4))


def test_the_gpu_cuts_and_tells_on_request(random):
    torch = torch_cuda()
    new = lambda array: torch.from_numpy(array).cuda()  # noqa: E731
    for call, argument, good, bad, got in calls(random, new):
        call(bad)
        torch.cuda.synchronize()
        was = ww.validate_indices(True)
        try:
            call(good)
            with pytest.raises(ww.ParameterError) as info:
                call(bad)
            assert (info.value.argument, info.value.got) == (argument, got)
        finally:
            assert ww.validate_indices(was)


def test_the_switch_and_the_environment():
    assert ww.validate_indices(True) is False
    assert ww.validate_indices(False) is True
    for value, expected in (("1", "True"), ("0", "False")):
        code = "import warpwright as ww; print(ww.validate_indices(False))"
        environment = {"WARPWRIGHT_VALIDATE_INDICES": value, "PYTHONPATH": ":".join(sys.path)}
        found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert found.stdout.strip() == expected


def test_a_cache_without_pages(random):
    q = random.standard_normal((1, 3, 2, 16)).astype(np.float32)
    cache = np.zeros((0, 16, 2, 16), np.float32)
    o, lse = ww.attention(q, cache, cache, key_lengths=i32(0), block_table=i32(0).reshape(1, 1))
    assert not o.any() and np.isneginf(lse).all()
    with pytest.raises(ww.ParameterError):
        ww.attention(q, cache, cache, key_lengths=i32(1), block_table=i32(0).reshape(1, 1))
