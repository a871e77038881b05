#!/usr/bin/env python3
"""What one call costs the host, in microseconds: ours beside PyTorch's own overhead, on small tensors.

    python3 bench/host_overhead.py [--out HOST.jsonl]

Each sample is a burst of calls that stays below the depth of the launch queue, after a synchronisation, so no call waits
for the GPU; the least of the samples counts. Without a GPU the bursts are of empty tensors on the host, which take every
step but the launch. The parts (a stream, an empty result, a launch of PyTorch's) say where the time goes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from typing import Any, Callable

import torch
import torch.nn.functional as F

import warpwright as ww
import warpwright.torch as wt

BURST, SAMPLES = 100, 200


def microseconds(call: Callable[[], Any], on_gpu: bool) -> float:
    for _ in range(50):
        call()
    best = float("inf")
    for _ in range(SAMPLES):
        if on_gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(BURST):
            call()
        best = min(best, (time.perf_counter() - start) / BURST * 1e6)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="append JSON lines here")
    args = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device, n = ("cuda", 1024) if on_gpu else ("cpu", 0)
    x = torch.randn(n, device=device)
    dy, y = torch.randn_like(x), torch.empty_like(x)
    gate, up = (torch.randn(n, device=device, dtype=torch.bfloat16) for _ in range(2))
    w = torch.randn(n, device=device, requires_grad=True)
    aten = torch.ops.aten
    compiled = torch.compile(F.silu, dynamic=False)
    calls: list[tuple[str, str, Callable[[], Any]]] = [
        ("empty_like", "torch", lambda: torch.empty_like(x)),
        ("silu", "warpwright", lambda: ww.silu(x)),
        ("silu, out=", "warpwright", lambda: ww.silu(x, out=y)),
        ("silu", "warpwright.torch", lambda: wt.silu(x)),
        ("silu", "torch", lambda: F.silu(x)),
        ("silu, out=", "torch", lambda: aten.silu.out(x, out=y)),
        ("silu_backward", "warpwright", lambda: ww.silu_backward(x, dy)),
        ("silu_backward", "torch", lambda: aten.silu_backward(dy, x)),
        ("swiglu", "warpwright", lambda: ww.swiglu(gate, up)),
        ("swiglu", "torch", lambda: F.silu(gate) * up),
        ("forward and backward of silu", "warpwright.torch", lambda: wt.silu(w).backward(dy)),
        ("forward and backward of silu", "torch", lambda: F.silu(w).backward(dy)),
    ]
    if on_gpu:
        calls += [
            ("current stream", "torch", lambda: torch._C._cuda_getCurrentRawStream(0)),
            ("quantize_nf4", "warpwright", lambda: ww.quantize_nf4(gate)),
            ("silu", "torch.compile", lambda: compiled(x)),
        ]
    where = torch.cuda.get_device_name() if on_gpu else "cpu, empty tensors"
    rows = []
    print(f"host us per call ({where})")
    for what, who, call in calls:
        us = microseconds(call, on_gpu)
        rows.append({"kind": "host_overhead", "op": what, "who": who, "host_us": us, "gpu": where,
                     "versions": {"torch": torch.__version__}, "date": datetime.date.today().isoformat()})
        print(f"  {what:<32}{who:<20}{us:8.2f}", flush=True)
    if args.out:
        with open(args.out, "a", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
