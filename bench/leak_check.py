#!/usr/bin/env python3
"""Calls our functions a million times and watches memory of the host and of the GPU: both must stay flat.

    python3 bench/leak_check.py [--calls 1000000] [--out bench/data/leak/NAME.jsonl]
    python3 bench/leak_check.py --emulator [--out bench/data/leak_emulator/NAME.jsonl]

With `--emulator` every call runs kernels in the emulator, on arrays of numpy; PyTorch is not needed. Without that and without
a GPU the calls are of empty tensors on the host, which take every step but the launch, and of small ones in the emulator for
a hundredth of the calls.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import warpwright as ww

try:
    import torch

    import warpwright.torch as wt
except ImportError:
    torch = None

# What allocators may keep between two looks.
HOST_SLACK, GPU_SLACK = 8 << 20, 2 << 20


def resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    return 0


def used() -> int:
    if torch is None or not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def in_emulator() -> Callable[[int], None]:
    """Calls of kernels on arrays of the host."""
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    dy = np.ones_like(x)
    y = np.empty_like(x)

    def once(i: int) -> None:
        ww.silu(x, out=y)
        # The result is new memory, whose name the books of the emulator hold.
        ww.gelu_erf_backward(x, dy)
        if i % 10 == 0:
            ww.dequantize_nf4(*ww.quantize_nf4(x), x.shape)
        if i % 100 == 0:
            try:
                ww.silu(x.astype(np.int32))
            except ww.DtypeError:
                pass

    return once


def with_torch() -> Callable[[int], None]:
    """Calls of all kinds on tensors of the GPU, or on empty ones."""
    if torch is None:
        sys.exit("PyTorch is not installed: only --emulator works without it")
    on_gpu = torch.cuda.is_available()
    x = torch.randn(1024 if on_gpu else 0, device="cuda" if on_gpu else "cpu")
    dy = torch.randn_like(x)
    small = torch.randn(64)
    w = x.clone().requires_grad_()

    def once(i: int) -> None:
        y = ww.silu(x)
        ww.gelu_erf_backward(x, dy, out=y)
        if i % 10 == 0:
            ww.dequantize_nf4(*ww.quantize_nf4(x), x.shape)
            torch.from_dlpack(x)
        if i % 100 == 0:
            wt.silu(w).sum().backward()
            w.grad = None
            ww.silu(small)
            try:
                ww.silu(x.to(torch.int32))
            except ww.DtypeError:
                pass

    return once


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--emulator", action="store_true", help="run kernels in the emulator")
    parser.add_argument("--out", type=Path, help="write JSON lines here")
    args = parser.parse_args()
    once = in_emulator() if args.emulator else with_torch()
    gpu_name = torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else "none"
    done, looks = 0, 10
    rows = []
    for i in range(args.calls // 20):
        once(i)
    gc.collect()
    host, gpu = resident(), used()
    print(f"{'calls':>10}{'host MB':>10}{'GPU MB':>10}")
    for look in range(looks):
        for i in range(args.calls // 2 // looks):
            once(i)
        done += args.calls // 2 // looks * 2
        gc.collect()
        rows.append({"calls": done, "host_mb": resident() / 1e6, "gpu_mb": used() / 1e6,
                     "gpu": "emulator" if args.emulator else gpu_name, "date": datetime.date.today().isoformat()})
        print(f"{done:>10}{rows[-1]['host_mb']:>10.1f}{rows[-1]['gpu_mb']:>10.1f}", flush=True)
    grown, kept = resident() - host, used() - gpu
    flat = grown <= HOST_SLACK and kept <= GPU_SLACK
    print(f"{done} calls: host {grown / 1e6:+.2f} MB, GPU {kept / 1e6:+.2f} MB: {'flat' if flat else 'GROWS'}")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
