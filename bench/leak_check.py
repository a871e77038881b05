#!/usr/bin/env python3
"""Calls our functions a million times and watches memory of the host and of the GPU: both must stay flat.

    python3 bench/leak_check.py [--calls 1000000] [--out bench/data/leak/NAME.jsonl]

Without a GPU the calls are of empty tensors on the host, which take every step but the launch, and of small ones in the
emulator for a hundredth of the calls.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import sys
from pathlib import Path

import torch

import warpwright as ww
import warpwright.torch as wt

# What allocators may keep between two looks.
HOST_SLACK, GPU_SLACK = 8 << 20, 2 << 20


def resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    return 0


def used() -> int:
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, help="write JSON lines here")
    args = parser.parse_args()
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
                     "gpu": torch.cuda.get_device_name() if on_gpu else "none", "date": datetime.date.today().isoformat()})
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
