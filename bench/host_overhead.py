#!/usr/bin/env python3
"""Host time of one call, in microseconds: ours beside PyTorch's own overhead, on small tensors.

    python3 bench/host_overhead.py [--out bench/data/host/NAME.jsonl]

Calls of each family are on tensors of a few rows; `compiled` is one of a hundred calls in a row inside `torch.compile`, without its launch of a
CUDA graph. Each sample is a burst of calls that stays below the depth of the launch queue, after a synchronisation, so no call waits
for the GPU; the least of the samples counts. Without a GPU the bursts are of empty tensors on the host, which take every
step but the launch. `empty_like` is the part of a call that makes the result.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import sys
import time
from typing import Any, Callable

import torch
import torch.nn.functional as F

import warpwright as ww
import warpwright.torch as wt

Calls = dict[str, Callable[[], Any]]
# A burst of calls with ten launches each must fit into the queue.
BURST, SAMPLES = 40, 250


def microseconds(calls: Calls, on_gpu: bool) -> dict[str, float]:
    """The least of the samples of each; they take turns, because the host's speed changes with time."""
    best = {who: float("inf") for who in calls}
    for call in calls.values():
        for _ in range(50):
            call()
    for _ in range(SAMPLES):
        for who, call in calls.items():
            if on_gpu:
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(BURST):
                call()
            best[who] = min(best[who], (time.perf_counter() - start) / BURST * 1e6)
    return best


def all_calls(device: str, n: int, compile_others: bool) -> dict[str, Calls]:
    """A call, and by whom."""
    x = torch.randn(n, device=device)
    dy, y = torch.randn_like(x), torch.empty_like(x)
    gate, up = (torch.randn(n, device=device, dtype=torch.bfloat16) for _ in range(2))
    w = torch.randn(n, device=device, requires_grad=True)
    aten = torch.ops.aten
    calls: dict[str, Calls] = {
        "silu": {"warpwright": lambda: ww.silu(x), "warpwright.torch": lambda: wt.silu(x), "torch": lambda: F.silu(x)},
        "silu, out=": {"warpwright": lambda: ww.silu(x, out=y), "torch": lambda: aten.silu.out(x, out=y)},
        "silu_backward": {
            "warpwright": lambda: ww.silu_backward(x, dy),
            "torch": lambda: aten.silu_backward(dy, x),
        },
        "swiglu": {"warpwright": lambda: ww.swiglu(gate, up), "torch": lambda: F.silu(gate) * up},
        "silu, recorded": {"warpwright.torch": lambda: wt.silu(w), "torch": lambda: F.silu(w)},
        "forward and backward of silu": {
            "warpwright.torch": lambda: wt.silu(w).backward(dy),
            "torch": lambda: F.silu(w).backward(dy),
        },
        "forward and backward of ten silu in a row": {
            "warpwright.torch": lambda: chain(wt.silu, w).backward(dy),
            "torch": lambda: chain(F.silu, w).backward(dy),
        },
        "empty_like": {"torch": lambda: torch.empty_like(x)},
    }
    calls |= layer_calls(device)
    if device == "cuda":
        calls["quantize_nf4"] = {"warpwright": lambda: ww.quantize_nf4(gate)}
        if importlib.util.find_spec("bitsandbytes"):
            import bitsandbytes.functional as bnb

            calls["quantize_nf4"]["bitsandbytes"] = lambda: bnb.quantize_4bit(gate, blocksize=64, quant_type="nf4")
        if compile_others:
            compiled = torch.compile(F.silu, dynamic=False)
            calls["silu"]["torch.compile"] = lambda: compiled(x)
    return calls


def layer_calls(device: str) -> dict[str, Calls]:
    """The layers of models: alone, recorded, and with the way back."""
    rows, images = (16, 2) if device == "cuda" else (0, 0)

    def bf16(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    x, image, q = bf16(rows, 256), bf16(images, 32, 8, 8), bf16(images, 4, 64, 64)
    weight, bias, matrix, kernel = bf16(256), bf16(256), bf16(256, 256), bf16(32, 32, 3, 3)
    of_channels, classes = (bf16(32), bf16(32)), torch.zeros(rows, device=device, dtype=torch.int64)
    inputs: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[torch.Tensor]]] = {
        "layer_norm": (lambda x, w, b: wt.layer_norm(x, 256, w, b), lambda x, w, b: F.layer_norm(x, (256,), w, b), [x, weight, bias]),
        "rms_norm": (lambda x, w: wt.rms_norm(x, 256, w), lambda x, w: F.rms_norm(x, (256,), w), [x, weight]),
        "group_norm": (lambda x, w, b: wt.group_norm(x, 8, w, b), lambda x, w, b: F.group_norm(x, 8, w, b), [image, *of_channels]),
        "softmax": (lambda x: wt.softmax(x, -1), lambda x: F.softmax(x, -1), [x]),
        "cross_entropy": (lambda x: wt.cross_entropy(x, classes), lambda x: F.cross_entropy(x, classes), [x]),
        "linear": (lambda x, w, b: wt.linear(x, w, b), F.linear, [x, matrix, bias]),
        "conv2d": (lambda x, w, b: wt.conv2d(x, w, b, padding=1), lambda x, w, b: F.conv2d(x, w, b, padding=1), [image, kernel, of_channels[1]]),
        "max_pool2d": (lambda x: wt.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 2), [image]),
        "attention": (lambda q: wt.scaled_dot_product_attention(q, q, q), lambda q: F.scaled_dot_product_attention(q, q, q), [q]),
    }
    calls: dict[str, Calls] = {}
    for name, (ours, torchs, tensors) in inputs.items():
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        dy = torch.ones_like(torchs(*tensors))
        by_whom = {"warpwright.torch": ours, "torch": torchs}
        calls[name] = {who: lambda f=f, t=tensors: f(*t) for who, f in by_whom.items()}
        calls[f"{name}, forward and backward"] = {
            who: lambda f=f, t=leaves, dy=dy: torch.autograd.grad(f(*t), t, dy) for who, f in by_whom.items()
        }
    return calls


def chain(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        x = function(x)
    return x


def measure(compile_others: bool = True) -> list[dict[str, Any]]:
    """One row for each call, with everyone's microseconds."""
    on_gpu = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if on_gpu else "cpu, empty tensors"
    print(f"host us per call ({where})")
    rows = []
    for what, calls in all_calls("cuda" if on_gpu else "cpu", 1024 if on_gpu else 0, compile_others).items():
        times = microseconds(calls, on_gpu)
        print(f"  {what:<44}" + ", ".join(f"{who} {us:.2f}" for who, us in times.items()), flush=True)
        rows.append({"op": what, "host_us": times, "gpu": where, "versions": {"torch": torch.__version__},
                     "date": datetime.date.today().isoformat()})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="write JSON lines here")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    args = parser.parse_args()
    rows = measure(not args.no_compile)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
