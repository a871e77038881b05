#!/usr/bin/env python3
"""Compares warpwright with PyTorch (eager and compiled), cuDNN, Liger, QuACK and bitsandbytes on one GPU, in one process, in turns.

    python3 bench/compare.py --out bench/data/NAME.jsonl --page NAME.html [--host bench/data/host/NAME.jsonl] [OP ...]

Every case of bench/suites.toml: correctness against f64 first, then medians of CUDA events; with --host, the host's time per call on small
tensors too. Ratios are other / ours: above 1, warpwright is faster. The roofline is the bandwidth that the best
plain copy or addition of the same run reaches; for products also the rate of a large one of PyTorch. Libraries that are missing are left out. Needs the Python package
`warpwright` (bridges/warpwright-py) and PyTorch with CUDA; --dry-run needs neither and makes its numbers up.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from comparison import charts, suites  # noqa: E402
from comparison.lab import Fake, Gpu, Result, compile_as_here  # noqa: E402
from comparison.sources import commit  # noqa: E402


def row(case: suites.Case, result: Result, lab: Any, named: str) -> dict[str, Any] | None:
    """One line of the data; None if ours has no time."""
    ours = result.us.get("warpwright")
    if ours is None:
        return None
    others = {who: us for who, us in result.us.items() if who != "warpwright"}
    other = min(others, key=lambda who: others[who]) if others else None
    return {
        "op": case.op,
        "case": case.case,
        "dtype": case.dtype,
        "direction": case.direction,
        "ours_us": ours,
        "other_us": others[other] if other else None,
        "other": other,
        "ratio": others[other] / ours if other else None,
        "roofline": lab.floor_us(case) / ours,
        "error": result.error.get("warpwright"),
        "spread_us": result.spread.get("warpwright"),
        "bytes": case.bytes,
        "all_us": result.us,
        "failed": result.failed,
        "gpu": lab.gpu,
        "driver": lab.driver,
        "versions": lab.versions,
        "commit": named,
        "date": datetime.date.today().isoformat(),
    }


def chosen(args: argparse.Namespace) -> list[suites.Case]:
    """The cases that were asked for, in the order of the operations that were named."""
    cases = [case for case in suites.load(args.suites, args.ops) if args.match in str(case)]
    return sorted(cases, key=lambda case: args.ops.index(case.op)) if args.ops else cases


def warm(cases: list[suites.Case]) -> None:
    """Calls what compiles at its first call, which leaves it in the caches on the disk."""
    import torch
    from comparison.rivals import bench

    compile_as_here()
    for case in cases:
        contenders = bench(case).contenders()
        for who in ("torch.compile", "Liger", "QuACK"):
            try:
                contenders.get(who, lambda: None)()
            except Exception as e:
                print(f"{case}: {who}: {type(e).__name__}: {str(e)[:100]}", flush=True)
        del contenders
        torch.cuda.empty_cache()


def shown(entry: dict[str, Any]) -> str:
    other = f"{entry['other_us']:>10.1f}{entry['ratio']:>7.2f}  {entry['other']}" if entry["other"] else f"{'-':>10}{'-':>7}"
    name = f"{entry['op']:<27}{entry['direction']:<10}{entry['dtype']:<6}{entry['case']:<40}"
    return f"{name}{entry['ours_us']:>9.1f}{entry['roofline']:>6.2f}{entry['error']:>9.1e}{other}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", help="only these operations")
    parser.add_argument("--suites", type=Path, default=HERE / "suites.toml")
    parser.add_argument("--out", type=Path, help="write JSON lines here")
    parser.add_argument("--page", type=Path, help="write an HTML page with the charts here")
    parser.add_argument("--commit", default=None, help="what to record; by default git's HEAD")
    parser.add_argument("--repeats", type=int, default=30, help="timed launches of each contender")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: minutes faster")
    parser.add_argument("--who", action="append", default=[], help="of the others only this one; may be repeated")
    parser.add_argument("--match", default="", help="only cases whose line in the table holds this text")
    parser.add_argument("--seconds", type=float, default=0, help="begin no case after this many seconds; says what is left")
    parser.add_argument("--host", type=Path, help="measure the host's time per call too, and write it here as JSON lines")
    parser.add_argument("--warm", type=int, default=0, metavar="N", help="compile the others first, in N processes")
    parser.add_argument("--warm-part", default="", help=argparse.SUPPRESS)
    parser.add_argument("--dry-run", action="store_true", help="no GPU: made-up times")
    args = parser.parse_args()

    if args.warm_part:
        part, parts = map(int, args.warm_part.split("/"))
        warm(chosen(args)[part::parts])
        return 0
    if args.warm:
        began = time.monotonic()
        command = [sys.executable, __file__, *args.ops, "--suites", args.suites, "--match", args.match]
        running = [subprocess.Popen([*command, f"--warm-part={i}/{args.warm}"]) for i in range(args.warm)]
        for process in running:
            process.wait()
        print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
    lab: Any = Fake() if args.dry_run else Gpu(args.repeats, not args.no_compile, args.who)
    began = time.monotonic()
    named = commit() if args.commit is None else args.commit
    print(f"{lab.gpu}, driver {lab.driver}, {lab.bandwidth / 1e9:.0f} GB/s, {lab.versions}")
    head = f"{'op':<27}{'direction':<10}{'dtype':<6}{'case':<40}"
    print(f"{head}{'ours us':>9}{'roof':>6}{'error':>9}{'other us':>10}{'ratio':>7}  who", flush=True)
    rows, wrong = [], []
    out = open(args.out, "w", encoding="utf-8") if args.out else None
    left = 0
    for case in chosen(args):
        if args.seconds and time.monotonic() - began > args.seconds:
            left += 1
            if left == 1:
                print(f"out of time before {case}", flush=True)
            continue
        result = lab.measure(case)
        for who, why in result.failed.items():
            print(f"  {case}: {who} has no time: {why}", flush=True)
        entry = row(case, result, lab, named)
        if entry is None:
            times = ", ".join(f"{who} {us:.1f}" for who, us in sorted(result.us.items(), key=lambda item: item[1]))
            print(f"{case}: others {times}", flush=True)
            if "warpwright" in result.failed:
                wrong.append(str(case))
            continue
        rows.append(entry)
        print(shown(entry), flush=True)
        if out:
            # Line by line: a run that is cut off keeps what it has.
            out.write(json.dumps(entry) + "\n")
            out.flush()
    if args.host:
        print()
        with open(args.host, "w", encoding="utf-8") as f:
            for entry in lab.host():
                f.write(json.dumps(entry | {"driver": lab.driver, "commit": named}) + "\n")
    if out:
        out.close()
    if args.page:
        args.page.write_text(charts.page(rows), encoding="utf-8")
    if left:
        print(f"{left} cases not measured for lack of time")
    if wrong:
        print("\nno time because the result was wrong: " + "; ".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
