#!/usr/bin/env python3
"""From the start of a process to the first result of one kernel: ours, Triton's and torch.compile's, each with an empty
cache and with the cache of the run before.

    python3 bench/first_call.py [--out bench/data/first_call/NAME.jsonl]

Every measurement is a process of its own. `process` is all of it, `kernel` from the tensor on the GPU to the result on the
host, `load` the import of what the kernel needs beyond PyTorch.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PRELUDE = """
import time
start = time.perf_counter()
import torch
x = torch.randn(1 << 20, device="cuda")
torch.cuda.synchronize()
ready = time.perf_counter()
"""
POSTLUDE = """
float(y.reshape(-1)[0])
torch.cuda.synchronize()
done = time.perf_counter()
print("TIMES", loaded - ready, done - loaded, torch.cuda.get_device_name().replace(" ", "_"))
"""
CHILDREN = {
    "torch eager": "import torch.nn.functional as F\nloaded = time.perf_counter()\ny = F.silu(x)",
    "warpwright": "import warpwright\nloaded = time.perf_counter()\ny = warpwright.silu(x)",
    "warpwright.torch": "import warpwright.torch as wt\nloaded = time.perf_counter()\ny = wt.silu(x)",
    "Triton": """
import sys
sys.path.insert(0, DIRECTORY)
from triton_silu import silu
loaded = time.perf_counter()
y = silu(x)
""",
    "torch.compile": """
import torch.nn.functional as F
loaded = time.perf_counter()
y = torch.compile(F.silu)(x)
""",
}
# Triton reads the source of its kernels, so this one is a file.
TRITON = '''
import torch, triton, triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(y + at, v * tl.sigmoid(v), mask=at < n)

def silu(x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
'''


def child(code: str, environment: dict[str, str], directory: str) -> tuple[float, float, float, str] | str:
    source = f"DIRECTORY = {directory!r}\n{PRELUDE}{code}\n{POSTLUDE}"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True)
    process = time.perf_counter() - start
    line = next((line for line in done.stdout.splitlines() if line.startswith("TIMES")), None)
    if line is None:
        return (done.stderr.strip().splitlines() or ["no output"])[-1]
    load, kernel, gpu = line.split()[1:]
    return process, float(load), float(kernel), gpu.replace("_", " ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write JSON lines here")
    args = parser.parse_args()
    rows = []
    print(f"{'':<18}{'cache':<8}{'process s':>10}{'load ms':>10}{'kernel ms':>11}")
    for who, code in CHILDREN.items():
        directory = tempfile.mkdtemp()
        with open(os.path.join(directory, "triton_silu.py"), "w", encoding="utf-8") as f:
            f.write(TRITON)
        caches = ("WARPWRIGHT_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
        environment = os.environ | {name: os.path.join(directory, name) for name in caches}
        for state in ("cold", "warm"):
            times = child(code, environment, directory)
            if isinstance(times, str):
                print(f"{who:<18}{state:<8}  failed: {times}")
                break
            process, load, kernel, gpu = times
            print(f"{who:<18}{state:<8}{process:>10.2f}{load * 1e3:>10.1f}{kernel * 1e3:>11.1f}", flush=True)
            rows.append({"who": who, "cache": state, "process_s": process, "load_ms": load * 1e3, "kernel_ms": kernel * 1e3,
                         "gpu": gpu, "date": datetime.date.today().isoformat()})
        shutil.rmtree(directory, ignore_errors=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
