#!/usr/bin/env python3
"""From the start of a process to the first result of one kernel: ours, Triton's and torch.compile's, each with an empty
cache and with the cache of the run before.

    python3 bench/first_call.py

Every measurement is a process of its own. `process` is all of it, `kernel` from the tensor on the GPU to the result on the
host, `load` the import of what the kernel needs beyond PyTorch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time

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
print("TIMES", loaded - ready, done - loaded)
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


def child(code: str, environment: dict[str, str], directory: str) -> tuple[float, float, float] | str:
    source = f"DIRECTORY = {directory!r}\n{PRELUDE}{code}\n{POSTLUDE}"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True)
    process = time.perf_counter() - start
    line = next((line for line in done.stdout.splitlines() if line.startswith("TIMES")), None)
    if line is None:
        return (done.stderr.strip().splitlines() or ["no output"])[-1]
    load, kernel = map(float, line.split()[1:])
    return process, load, kernel


def main() -> int:
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
            process, load, kernel = times
            print(f"{who:<18}{state:<8}{process:>10.2f}{load * 1e3:>10.1f}{kernel * 1e3:>11.1f}", flush=True)
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
