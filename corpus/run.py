#!/usr/bin/env python3
"""Compiles kernels with other people's compilers and holds the verifier and the emulator against the results.

    python3 corpus/run.py --cli target/release/warpwright [--scratch DIR] [--only TEXT] [--table FILE]

Needs network for the first run (PyPI) and a C++ compiler for nvcc. See README.md.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from toolchain import Toolchain  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cli", required=True, type=Path, help="the warpwright command")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/warpwright-corpus"))
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--table", type=Path, help="write the results as Markdown")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    return parser.parse_args()


TIMEOUT = 300


class Result:
    def __init__(self, source, name, variant):
        self.source, self.name, self.variant = source, name, variant
        self.parses = self.verifies = self.runs = self.clean = None
        self.message = ""

    @property
    def good(self):
        return bool(self.parses and self.verifies and self.runs and self.clean)


def npy(path, array):
    import numpy as np

    np.save(path, array)
    return path


def numpy_of(path, like):
    import numpy as np

    return np.load(path).view(like.dtype).reshape(like.shape)


def launch(cli, ptx, case, folder):
    """Runs a case; (message, None) if something is wrong, else (None, findings)."""
    from case import In, Out, Scalar, agree

    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    command = [cli, "run", ptx, "--entry", case.entry, "--device", "emulator", "--json", "--force", "--sanitize", case.sanitize]
    command += ["--grid", ",".join(map(str, case.grid)), "--block", ",".join(map(str, case.block)), "--shared", str(case.shared)]
    if tuple(case.cluster) != (1, 1, 1):
        command += ["--cluster", ",".join(map(str, case.cluster))]
    outputs = []
    for i, argument in enumerate(case.args):
        if isinstance(argument, Scalar):
            command += ["--arg", f"{argument.kind}:{argument.value}"]
        elif isinstance(argument, In):
            command += ["--arg", f"in:{npy(folder / f'in{i}.npy', argument.array)}"]
        elif isinstance(argument, Out):
            start = argument.start
            if start is None:
                # What nobody wrote must show.
                kind = {"u1": "u8", "i1": "i8", "u2": "u16", "i2": "i16", "f2": "f16", "u4": "u32", "i4": "i32", "f4": "f32", "i8": "i64", "f8": "f64", "u8": "u64"}[argument.want.dtype.str[1:]]
                shape = ",".join(map(str, argument.want.shape))
                command += ["--arg", f"out:{folder / f'out{i}.npy'}:{kind}:{shape}"]
            else:
                command += ["--arg", f"inout:{npy(folder / f'in{i}.npy', start)}:{folder / f'out{i}.npy'}"]
            outputs.append((i, argument))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"did not end in {TIMEOUT} s", None
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0], None
    fault = report.get("fault")
    if case.fault:
        return (None, []) if fault and case.fault in fault else (f"expected a fault with {case.fault!r}, got {fault!r}", None)
    if fault:
        return fault, None
    for i, output in outputs:
        same, error = agree(output.want, numpy_of(folder / f"out{i}.npy", output.want), output.tolerance)
        if not same:
            return f"argument {i} is off by {error:.3g}", report["findings"]
    if case.prints is not None:
        lines = sorted(line for p in report.get("printed", []) for line in p["text"].splitlines())
        if lines != sorted(case.prints):
            return f"printed {lines[:2]}, expected {sorted(case.prints)[:2]}", None
    return None, report["findings"]


@functools.cache
def lint(cli, ptx):
    """The errors of the parser and the verifier; None if the command failed."""
    done = subprocess.run([cli, "lint", ptx, "--json"], capture_output=True, text=True)
    try:
        return json.loads(done.stdout)["errors"]
    except (json.JSONDecodeError, KeyError):
        return None


@functools.cache
def verdict(toolchain, ptx, target):
    return toolchain.ptxas(ptx, target)


def check(cli, toolchain, scratch, source, variant, ptx, target, case):
    result = Result(source, case.name, variant)
    errors = lint(cli, ptx)
    if errors is None:
        result.parses, result.message = False, "lint failed"
        return result
    result.parses = not any(e["rule"].startswith("P-") for e in errors)
    complaint = verdict(toolchain, ptx, target)
    result.verifies = (not errors) == (complaint is None)
    if errors:
        result.message = f"line {errors[0].get('line')}: {errors[0].get('message')}"
        return result
    if not result.verifies:
        result.message = f"ptxas: {complaint}"
    message, findings = launch(cli, ptx, case, scratch / "runs" / source / variant / case.name)
    result.runs = message is None
    # Warnings are remarks about what does no harm here.
    findings = [f for f in findings or [] if f["severity"] == "error"]
    result.clean = not findings
    if message:
        result.message = message
    elif findings:
        result.message = f"{findings[0]['tool']} {findings[0]['kind']} in line {findings[0]['line']}: {findings[0]['message']}"
    return result


def texts(toolchain, scratch, only):
    """All (source, variant, PTX file, target, case)."""
    import cuda_cases
    import numba_cases
    import triton_cases

    folder = scratch / "ptx"
    folder.mkdir(parents=True, exist_ok=True)
    for file, cases in cuda_cases.FILES.items():
        cases = [c for c in cases() if only in c.name]
        for variant, target, options in cuda_cases.VARIANTS:
            chosen = [c for c in cases if c.targets is None or target in c.targets]
            if not chosen:
                continue
            ptx = folder / f"{file}-{variant}.ptx"
            source = HERE / "kernels" / f"{file}.cu"
            if not ptx.exists() or ptx.stat().st_mtime < source.stat().st_mtime:
                done = toolchain.nvcc(source, target, options, ptx)
                if done.returncode != 0:
                    print(f"nvcc {source.name} {variant}: {done.stderr.strip()[:300]}", file=sys.stderr)
                    continue
            for case in chosen:
                yield "nvcc", variant, ptx, target, case
    for source, module in (("triton", triton_cases), ("numba", numba_cases)):
        for variant, target, case in module.cases(only):
            ptx = folder / f"{source}-{case.name}-{variant}.ptx"
            ptx.write_text(case.text)
            yield source, variant, ptx, target, case


def table(results):
    lines = ["| source | variant | cases | parse | as ptxas | right result | no findings |", "|---|---|---|---|---|---|---|"]
    keys = sorted({(r.source, r.variant) for r in results})
    count = lambda rows, what: sum(bool(getattr(r, what)) for r in rows)
    for source, variant in [*keys, ("all", "")]:
        rows = [r for r in results if source == "all" or (r.source, r.variant) == (source, variant)]
        cells = [count(rows, w) for w in ("parses", "verifies", "runs", "clean")]
        lines.append(f"| {source} | {variant} | {len(rows)} | " + " | ".join(map(str, cells)) + " |")
    for title, rows in (
        ("What is left:", [r for r in results if not r.good]),
        ("As docs/foreign-ptx.md says:", [r for r in results if r.good and not r.clean]),
    ):
        if rows:
            lines += ["", title, ""]
            lines += [f"- {r.source} {r.variant} `{r.name}`: {r.message}" for r in rows]
    return "\n".join(lines) + "\n"


def main():
    options = arguments()
    toolchain = Toolchain(options.scratch)
    toolchain.install()
    if Path(sys.prefix).resolve() != (toolchain.scratch / "venv").resolve():
        # Numpy and the compilers are in the scratch folder.
        os.execv(toolchain.python, [str(toolchain.python), *sys.argv])
    cli, scratch = options.cli.resolve(), toolchain.scratch
    start = time.time()
    work = list(texts(toolchain, scratch, options.only))
    print(f"{len(work)} cases compiled in {time.time() - start:.0f} s", file=sys.stderr)
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda w: check(cli, toolchain, scratch, *w), work))
    text = table(results)
    print(text)
    if options.table:
        options.table.write_text(text)
    sys.exit(0 if all(r.good for r in results) else 1)


if __name__ == "__main__":
    main()
