#!/usr/bin/env python3
"""The errors of recurrent nets on a GPU beside those of PyTorch, both against PyTorch in f64 on the CPU.

    python3 bench/recurrent_accuracy.py --out bench/data/sequences/NAME.jsonl [--steps 1 2 1000 10000]

Norm-wise errors of the results and of every gradient, for LSTM and GRU of every type, from one place to ten thousand. A net is
wrong where its error is more than 1.5 times PyTorch's, and more than a few roundings of the type.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# What rounding a result costs, twice: less than that is no difference.
LEAST = {"f32": 1.2e-7, "f16": 4.2e-4, "bf16": 3.4e-3}
MOST = 1.5
BATCH, INPUT, HIDDEN = 4, 96, 128
NAMES = ("y", "h_n", "dx", "dh0", "dw_ih", "dw_hh", "db_ih", "db_hh")


def drawn(steps: int, kind: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """x, the first state, the weights, and the gradient of y, as the type keeps them."""
    torch.manual_seed(steps)
    gates = {"LSTM": 4, "GRU": 3}[kind]
    rows, scale = gates * HIDDEN, 1 / math.sqrt(HIDDEN)
    shapes = [(rows, INPUT), (rows, HIDDEN), (rows,), (rows,)]
    x, dy = torch.randn(steps, BATCH, INPUT), torch.randn(steps, BATCH, HIDDEN)
    weights = [(2 * torch.rand(shape) - 1) * scale for shape in shapes]
    state = torch.randn(1, BATCH, HIDDEN) / 2
    return [t.to(dtype) for t in (x, state, *weights, dy)]


def results(module: Any, tensors: list[torch.Tensor], device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """The results of the net, and its gradients."""
    x, h0, *weights, dy = (t.to(device, dtype) for t in tensors)
    module = module(INPUT, HIDDEN, device=device, dtype=dtype)
    with torch.no_grad():
        for parameter, weight in zip(module.parameters(), weights):
            parameter.copy_(weight)
    for leaf in (x, h0):
        leaf.requires_grad_()
    y, ends = module(x, (h0, h0.detach()) if module.mode == "LSTM" else h0)
    gradients = torch.autograd.grad(y, [x, h0, *module.parameters()], dy)
    h_n = ends[0] if isinstance(ends, tuple) else ends
    return [t.detach().to("cpu", torch.float64) for t in (y, h_n, *gradients)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write JSON lines here")
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 2, 1000, 10000])
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    from warpwright.torch import nn

    warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
    torch.backends.cudnn.allow_tf32 = False
    out = open(args.out, "w", encoding="utf-8") if args.out else None
    wrong = 0
    torch.set_num_threads(min(4, torch.get_num_threads()))
    gpu = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    print(gpu)
    print(f"{'net':<6}{'dtype':<6}{'steps':>6}  " + "".join(f"{name:>19}" for name in NAMES))
    for steps in args.steps:
        for kind in ("LSTM", "GRU"):
            for name, dtype in DTYPES.items():
                tensors = drawn(steps, kind, dtype)
                judge = results(getattr(torch.nn, kind), tensors, "cpu", torch.float64)
                errors = {}
                for who, module in (("warpwright", getattr(nn, kind)), ("torch", getattr(torch.nn, kind))):
                    found = results(module, tensors, args.device, dtype)
                    errors[who] = [float((f - j).norm() / j.norm()) for f, j in zip(found, judge)]
                pairs = list(zip(errors["warpwright"], errors["torch"]))
                bad = [n for n, (a, b) in zip(NAMES, pairs) if not a <= max(MOST * b, LEAST[name])]
                wrong += len(bad)
                line = "".join(f"{a:>10.1e} /{b:>7.1e}" for a, b in pairs)
                print(f"{kind:<6}{name:<6}{steps:>6}  {line}  {'WRONG: ' + ', '.join(bad) if bad else ''}", flush=True)
                if out:
                    entry = {"net": kind, "dtype": name, "steps": steps, "names": NAMES, "errors": errors, "gpu": gpu}
                    out.write(json.dumps(entry) + "\n")
                    out.flush()
    if out:
        out.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
