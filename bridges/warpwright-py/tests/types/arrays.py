"""Uses of `warpwright` that type checkers must accept, and wrong ones, each with an ignored error that must be one. Nothing here runs."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import warpwright as ww
from typing_extensions import assert_type

F32: TypeAlias = npt.NDArray[np.float32]


def elements(x: F32, t: torch.Tensor) -> None:
    # A result is an array of the first argument's library, with the type of its elements.
    assert_type(ww.gelu_erf(x), F32)
    assert_type(ww.swiglu(x, up=x), F32)
    assert_type(ww.leaky_relu(x, 0.1, out=x), F32)
    assert_type(ww.softmax(x, dim=0, scale=0.5), F32)
    assert_type(ww.silu(t, stream=torch.cuda.current_stream()), torch.Tensor)
    dgate, dup = ww.geglu_backward(t, t, t)
    assert_type(dgate, torch.Tensor)
    assert_type(dup, torch.Tensor)

    ww.gelu_erf([1.0, 2.0])  # type: ignore
    ww.gelu_erf()  # type: ignore
    ww.gelu_erf(x, x)  # type: ignore
    ww.relu(x, result=x)  # type: ignore
    ww.softmax(x, dim="rows")  # type: ignore
    ww.swiglu(x)  # type: ignore


def other_types_and_shapes(x: F32, ids: npt.NDArray[np.int64]) -> None:
    codes, scales = ww.quantize_nf4(x, group_size=64)
    low: npt.NDArray[np.uint8] = codes & 15
    back: F32 = ww.dequantize_nf4(codes, scales, x.shape, dtype=np.float32)
    half: npt.NDArray[np.float16] = ww.cast(x, "float16")
    rows: F32 = ww.sum(np.zeros((2, 3), np.float32), 0)
    (count,) = ww.sum(np.zeros((2, 3), np.float32), dim=1).shape
    values, indices = ww.topk(x, 2, largest=False)
    assert_type(values, F32)
    first: npt.NDArray[np.int64] = indices[0]
    table: F32 = ww.embedding(x, ids)
    mask: npt.NDArray[np.bool_] = ww.elementwise("lt(x0, x1)", x, ids, dtype="bool")
    print(low, back, half, rows, count, first, table, mask)

    ww.quantize_nf4(x, group_size="64")  # type: ignore
    ww.dequantize_nf4(codes)  # type: ignore
    ww.topk(x)  # type: ignore
    a, b, c = ww.quantize_int4(x)  # type: ignore
    ww.elementwise("neg(x0)", x, scalars=1.0)  # type: ignore


def layers(x: F32, weight: F32, t: torch.Tensor) -> None:
    assert_type(ww.matmul(x, weight, bias=weight[0], activation="silu"), F32)
    assert_type(ww.conv(x, weight, None, stride=2, padding=[1, (0, 1)], activation="relu"), F32)
    o, lse = ww.attention(t, t, t, causal=True, window=(128, 0))
    assert_type(o, torch.Tensor)
    y, h_n, c_n = ww.lstm(t, [[t, t, t, t]], training=False)
    z, mean, rstd = ww.layer_norm(x, x.shape[-1], weight, statistics=True)
    h = ww.gru_cell(t, t, [t, t])
    ww.adamw_step([t], [t], [t], [t], t, t, betas=(0.9, 0.95), weight_decay=0.1)
    du, ddelta, dA, *_ = ww.selective_scan_backward(t, t, t, t, t, t, t, delta_softplus=True)
    assert_type(du, torch.Tensor)
    assert_type(ww.selective_scan_update(t, t, t, t, t, t, channels_last=True), torch.Tensor)
    dx, *_ = ww.chunk_scan_backward(t, t, t, t, t, t, t, dt_softplus=True)
    assert_type(dx, torch.Tensor)
    print(ddelta, dA)
    print(lse, y.shape, h_n, c_n, z, mean, rstd, h.shape)

    ww.matmul(x)  # type: ignore
    ww.conv(x, weight, strides=2)  # type: ignore
    ww.attention(t, t)  # type: ignore
    ww.chunk_scan(t, t, t, t)  # type: ignore
    ww.chunk_scan_backward(t, t, t, t, t, t)  # type: ignore
    ww.selective_scan(t, t, t, t)  # type: ignore
    ww.selective_scan_backward(t, t, t, t, t, t)  # type: ignore
    ww.attention(t, t, t, causal="yes")  # type: ignore
    ww.adamw_step(t, t, t, t)  # type: ignore


def ptx(text: str, x: F32, y: F32) -> Any:
    for remark in ww.lint(text, target="sm_90"):
        print(remark.rule, remark.line + 1, remark.message)
    outcome = ww.run(text, "add", grid=(1, 2), block=128, args=[x, y, 3], sanitize="racecheck")
    assert_type(outcome, ww.Run)
    assert_type([finding.thread for finding in outcome.findings], list[list[int]])

    ww.lint(text.encode())  # type: ignore
    ww.run(text, threads=128)  # type: ignore
    return outcome.races  # type: ignore


def errors(x: F32) -> None:
    try:
        ww.relu(x)
    except ww.ShapeError as error:
        wrong: ValueError = error
        assert_type(error.argument, str | None)
        print(wrong, error.expected, error.shape)  # type: ignore
