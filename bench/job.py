#!/usr/bin/env python3
"""Times whole jobs, a process each: `warpwright quantize` and `dequantize` of a BF16 checkpoint as large as a real one, beside
bitsandbytes' way from the same file to the same format: load, quantize, save.

    python3 bench/job.py [--warpwright target/release/warpwright] [--gigabytes 4.16] [--out bench/data/job/NAME.jsonl]

The checkpoint holds 64 matrices of normal numbers. Jobs take turns, so that all of them see the same disk and the same cache of
files; seconds are those of the process, its start and the durable output included. The floor of the same minute stands beside
them: the input read by as many threads as the job has, and the output written and made durable by one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

MATRICES, ROWS = 64, 4096
BITSANDBYTES = """
import sys, torch
from safetensors.torch import load_file, save_file
from bitsandbytes.functional import quantize_4bit
out = {}
for name, weight in load_file(sys.argv[1]).items():
    codes, state = quantize_4bit(weight.cuda(), blocksize=64, quant_type="nf4", compress_statistics=sys.argv[3] == "double")
    out[name] = codes.cpu()
    out.update({f"{name}.{key}": value.cpu() for key, value in state.as_dict(packed=True).items()})
save_file(out, sys.argv[2], metadata={"format": "pt"})
"""


def write_checkpoint(path: Path, gigabytes: float) -> int:
    """Normal numbers of the spread of a trained layer; returns the bytes of all tensors."""
    import torch

    columns = max(64, int(gigabytes * 1e9 / (2 * MATRICES * ROWS)) // 64 * 64)
    size = 2 * ROWS * columns
    header = {
        f"model.layers.{i}.weight": {"dtype": "BF16", "shape": [ROWS, columns], "data_offsets": [i * size, (i + 1) * size]}
        for i in range(MATRICES)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(MATRICES):
            weight = torch.randn(ROWS, columns, device=device).mul_(0.02).bfloat16()
            file.write(weight.cpu().view(torch.uint8).numpy().tobytes())
        file.flush()
        os.fsync(file.fileno())
    return MATRICES * size


def process(command: list[str]) -> dict[str, Any]:
    """Seconds of wall clock and of all cores, and the most memory at a time."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = child.stdout.read() if child.stdout else b""
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"{' '.join(command[:4])} ...: exit status {child.returncode}\n{output.decode(errors='replace')[-2000:]}")
    return {"s": seconds, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss / 1e3}


def floor(source: Path, target: Path, bytes_out: int) -> dict[str, Any]:
    """Reads the input in parallel, then writes and synchronises as many bytes as the job writes."""
    size, piece = source.stat().st_size, 8 << 20
    start = time.perf_counter()
    with open(source, "rb") as file, ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(lambda at: len(os.pread(file.fileno(), piece, at)), range(0, size, piece)))
    read = time.perf_counter() - start
    block = os.urandom(piece)
    start = time.perf_counter()
    with open(target, "wb") as file:
        for at in range(0, bytes_out, piece):
            file.write(block[: bytes_out - at])
        file.flush()
        written = time.perf_counter() - start
        os.fsync(file.fileno())
    durable = time.perf_counter() - start
    target.unlink()
    return {"s": read + durable, "read_s": read, "write_s": written, "durable_s": durable}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", type=Path, default=Path("target/release/warpwright"))
    parser.add_argument("--gigabytes", type=float, default=4.16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files go; a temporary folder if there is none")
    parser.add_argument("--skip", nargs="*", default=[], help="jobs whose names begin so are left out")
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    args = parser.parse_args()
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        source, target, four_bit = (Path(folder) / f"{name}.safetensors" for name in ("in", "out", "nf4"))
        size = write_checkpoint(source, args.gigabytes)
        ours = str(args.warpwright.resolve())
        script = Path(folder) / "bnb.py"
        script.write_text(BITSANDBYTES)

        def quantize(*options: str) -> Callable[[], dict[str, Any]]:
            return lambda: process([ours, "quantize", str(source), "-o", str(target), "--force", "--format", *options])

        def bitsandbytes(kind: str) -> Callable[[], dict[str, Any]]:
            return lambda: process([sys.executable, str(script), str(source), str(target), kind])

        def dequantize(device: str) -> Callable[[], dict[str, Any]]:
            return lambda: process([ours, "dequantize", str(four_bit), "-o", str(target), "--force", "--device", device])

        process([ours, "quantize", str(source), "-o", str(four_bit), "--force", "--format", "bnb-nf4"])
        jobs: dict[tuple[str, str], Callable[[], dict[str, Any]]] = {}
        for device, name in [*([("cuda", gpu)] if gpu else []), ("emulator", "emulator")]:
            on = ("--device", device)
            jobs["quantize bnb-nf4", f"warpwright, {name}"] = quantize("bnb-nf4", *on)
            jobs["quantize bnb-nf4, double", f"warpwright, {name}"] = quantize("bnb-nf4", "--double-quant", *on)
            jobs["quantize bnb-nf4, double, verify", f"warpwright, {name}"] = quantize(
                "bnb-nf4", "--double-quant", "--verify", *on)
            jobs["quantize int4", f"warpwright, {name}"] = quantize("int4", *on)
            jobs["dequantize bnb-nf4", f"warpwright, {name}"] = dequantize(device)
        try:
            import bitsandbytes as bnb  # noqa: F401
            jobs["quantize bnb-nf4", f"bitsandbytes, {gpu or 'CPU'}"] = bitsandbytes("plain")
            jobs["quantize bnb-nf4, double", f"bitsandbytes, {gpu or 'CPU'}"] = bitsandbytes("double")
        except ImportError:
            print("bitsandbytes is not installed", file=sys.stderr)
        bytes_out = four_bit.stat().st_size
        jobs["quantize bnb-nf4", "floor"] = lambda: floor(source, target, bytes_out)
        jobs["dequantize bnb-nf4", "floor"] = lambda: floor(four_bit, target, size)
        jobs = {key: job for key, job in jobs.items() if not any(" / ".join(key).startswith(s) for s in args.skip)}
        found: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in jobs}
        for _ in range(args.rounds):
            for key, job in jobs.items():
                found[key].append(job())
        print(f"{size / 1e9:.2f} GB, {os.cpu_count()} cores")
        for (job, who), times in sorted(found.items()):
            middle = statistics.median(t["s"] for t in times)
            row = {
                "job": job, "who": who, "gb": round(size / 1e9, 3), "s": round(middle, 3),
                "all_s": [round(t["s"], 3) for t in times], "gb_per_s": round(size / 1e9 / middle, 2),
                **{k: round(statistics.median(t[k] for t in times), 3) for k in times[0] if k != "s"},
                "cores": os.cpu_count(), "gpu": gpu, "date": datetime.date.today().isoformat(),
            }
            print(f"{job:34} {who:28} {middle:7.2f} s  {row['gb_per_s']:6.2f} GB/s  "
                  + "  ".join(f"{k} {row[k]:.1f}" for k in times[0] if k != "s") + f"  {row['all_s']}", flush=True)
            if args.out:
                args.out.parent.mkdir(parents=True, exist_ok=True)
                with open(args.out, "a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
