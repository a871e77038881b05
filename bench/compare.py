#!/usr/bin/env python3
"""Compares warpwright with PyTorch (eager and compiled), Liger and bitsandbytes on one GPU, in one run.

    python3 bench/compare.py --binary target/release/warpwright [--out bench/data/NAME.jsonl] [OP ...]

Both sides use the same shapes and the same recipe: CUDA events around each launch, after a 256 MB write and a
256 MB read that push the inputs out of the L2 cache and keep a backlog in front of the timed launch; the median is
reported. Ratios are other / ours: above 1, warpwright is faster. Liger and bitsandbytes are used where installed.
"""
import argparse
import datetime
import importlib.metadata
import json
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as F

FLUSH_BYTES = 256 << 20
SCHEMES = ("nf4", "fp4", "int4", "int4_asymmetric")
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}


class Timer:
    def __init__(self):
        self.write = torch.empty(FLUSH_BYTES // 4, device="cuda", dtype=torch.int32)
        self.read = torch.randn(FLUSH_BYTES // 4, device="cuda")

    def median_us(self, fn, repeats=60):
        for _ in range(3):
            fn()
        torch.cuda.synchronize()
        pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
        for start, end in pairs:
            self.write.zero_()
            self.read.sum()
            start.record()
            fn()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(s.elapsed_time(e) for s, e in pairs) * 1e3


def activation_cases(timer, dtype):
    """Yields (op, direction, who, us) on 2^28 elements."""
    aten = torch.ops.aten
    x = torch.randn(1 << 28, device="cuda", dtype=DTYPES[dtype])
    dy = torch.randn_like(x)
    forward = {
        "relu": lambda a: F.relu(a),
        "leaky_relu": lambda a: F.leaky_relu(a, 0.01),
        "gelu_erf": lambda a: F.gelu(a),
        "gelu_tanh": lambda a: F.gelu(a, approximate="tanh"),
        "silu": lambda a: F.silu(a),
        "sigmoid": lambda a: torch.sigmoid(a),
        "tanh": lambda a: torch.tanh(a),
    }
    backward = {
        "relu": lambda a, g: aten.threshold_backward(g, a, 0),
        "leaky_relu": lambda a, g: aten.leaky_relu_backward(g, a, 0.01, False),
        "gelu_erf": lambda a, g: aten.gelu_backward(g, a),
        "gelu_tanh": lambda a, g: aten.gelu_backward(g, a, approximate="tanh"),
        "silu": lambda a, g: aten.silu_backward(g, a),
        "sigmoid": lambda a, g: aten.sigmoid_backward(g, a),
        "tanh": lambda a, g: aten.tanh_backward(g, a),
    }
    for op, f in forward.items():
        yield op, "forward", "torch", timer.median_us(lambda: f(x))
        c = torch.compile(f, dynamic=False)
        yield op, "forward", "torch.compile", timer.median_us(lambda: c(x))
    for op, f in backward.items():
        yield op, "backward", "torch", timer.median_us(lambda: f(x, dy))
        c = torch.compile(f, dynamic=False)
        yield op, "backward", "torch.compile", timer.median_us(lambda: c(x, dy))


def gated_cases(timer, dtype):
    """Yields (op, direction, who, us) for swiglu and geglu on 8192 x 14336."""
    shape = (8192, 14336)
    gate, up, dy = (torch.randn(shape, device="cuda", dtype=DTYPES[dtype]) for _ in range(3))
    aten = torch.ops.aten
    forward = {"swiglu": lambda g, u: F.silu(g) * u, "geglu": lambda g, u: F.gelu(g) * u}
    backward = {
        "swiglu": lambda g, u, d: (aten.silu_backward(d * u, g), d * F.silu(g)),
        "geglu": lambda g, u, d: (aten.gelu_backward(d * u, g), d * F.gelu(g)),
    }
    for op in forward:
        f, b = forward[op], backward[op]
        yield op, "forward", "torch", timer.median_us(lambda: f(gate, up))
        cf = torch.compile(f, dynamic=False)
        yield op, "forward", "torch.compile", timer.median_us(lambda: cf(gate, up))
        cb = torch.compile(b, dynamic=False)
        yield op, "backward", "torch.compile", timer.median_us(lambda: cb(gate, up, dy))
    try:
        from liger_kernel.ops.geglu import geglu_forward
        from liger_kernel.ops.swiglu import swiglu_forward
    except ImportError:
        return
    yield "swiglu", "forward", "Liger", timer.median_us(lambda: swiglu_forward(gate, up))
    yield "geglu_tanh", "forward", "Liger", timer.median_us(lambda: geglu_forward(gate, up))


def quantise_cases(timer, dtype):
    """Yields (op, direction, who, us) for NF4 blocks of 64 on 2^28 elements."""
    try:
        import bitsandbytes.functional as bnb
    except ImportError:
        return
    x = torch.randn(1 << 14, 1 << 14, device="cuda", dtype=DTYPES[dtype])
    q, state = bnb.quantize_4bit(x, blocksize=64, quant_type="nf4")
    yield "quantize_nf4", "forward", "bitsandbytes", timer.median_us(
        lambda: bnb.quantize_4bit(x, blocksize=64, quant_type="nf4"), repeats=20)
    yield "dequantize_nf4", "forward", "bitsandbytes", timer.median_us(lambda: bnb.dequantize_4bit(q, state))


def ours(binary):
    """Our times as (op, direction, dtype) -> (case, result), and the device."""
    shapes = [
        ("2^28", 1 << 28, ["relu", "leaky_relu", "gelu_erf", "gelu_tanh", "silu", "sigmoid", "tanh"]),
        ("8192x14336", 8192 * 14336, ["swiglu", "geglu", "geglu_tanh"]),
        ("2^28, groups of 64", 1 << 28, [f"{d}quantize_{s}" for d in ("", "de") for s in SCHEMES]),
    ]
    rows = {}
    for case, elements, ops in shapes:
        command = [binary, "bench", *ops, "--device", "cuda:0", "--elements", str(elements), "--json"]
        output = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for result in output["results"]:
            rows[result["op"], result["direction"], result["dtype"]] = (case, result)
    return rows, output["device"], output["copy_gb_per_s"]


def errors(binary):
    """The largest norm-wise error of each (op, direction, dtype) against the f64 reference, on the device."""
    output = subprocess.run([binary, "check", "--device", "cuda:0", "--json"], capture_output=True, text=True).stdout
    worst = {}
    for case in json.loads(output)["cases"]:
        key = (case["op"], case["direction"], case["dtype"])
        worst[key] = max(worst.get(key, 0.0), case["error"] or 0.0)
    return worst


def versions():
    found = {}
    for package in ("torch", "triton", "bitsandbytes", "liger_kernel"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*")
    parser.add_argument("--binary", default="target/release/warpwright")
    parser.add_argument("--out")
    parser.add_argument("--commit", default="")
    args = parser.parse_args()

    mine, device, copy = ours(args.binary)
    worst = errors(args.binary)
    timer = Timer()
    others = {}
    for dtype in ("f32", "bf16"):
        for cases in (activation_cases, gated_cases, quantise_cases):
            for op, direction, who, us in cases(timer, dtype):
                others.setdefault((op, direction, dtype), []).append((us, who))
            torch._dynamo.reset()
            torch.cuda.empty_cache()

    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.split()[0]
    rows = []
    print(f"{device}, driver {driver}, copy {copy:.0f} GB/s")
    print(f"{'op':<26}{'direction':<10}{'dtype':<6}{'ours us':>9}{'roof':>6}{'other us':>10}{'ratio':>7}  who")
    for key, (case, result) in mine.items():
        op, direction, dtype = key
        if args.ops and op not in args.ops:
            continue
        us, who = min(others.get(key, [(None, None)]), key=lambda o: o[0] or float("inf"))
        time = result["median_us"]
        rows.append({
            "op": op, "case": case, "dtype": dtype, "direction": direction, "ours_us": time, "other_us": us,
            "other": who, "ratio": us / time if us else None, "roofline": result["roofline_fraction"],
            "error": worst.get(key), "gpu": torch.cuda.get_device_name(), "driver": driver,
            "versions": versions(), "commit": args.commit, "date": datetime.date.today().isoformat(),
        })
        shown = f"{us:>10.1f}{us / time:>7.2f}  {who}" if us else f"{'-':>10}{'-':>7}"
        print(f"{op:<26}{direction:<10}{dtype:<6}{time:>9.1f}{result['roofline_fraction']:>6.2f}{shown}")
    if args.out:
        with open(args.out, "w") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
