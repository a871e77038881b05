#!/usr/bin/env python3
"""Turns bench/data into docs/performance/README.md, its pictures, and the table in README.md between its two markers.

    cargo xtask bench-report

For each case the newest row counts; rows of one file that come later are newer, files are ordered by date.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

from comparison import charts  # noqa: E402

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
PICTURE, PICTURE_END = "<!-- bench picture: begin -->", "<!-- bench picture: end -->"
# What the README shows of everything.
FEATURED = [
    ("quantize_nf4", "forward", "bf16"),
    ("dequantize_nf4", "forward", "bf16"),
    ("gelu_erf", "forward", "bf16"),
    ("gelu_erf", "backward", "bf16"),
    ("gelu_tanh", "forward", "bf16"),
    ("silu", "forward", "f32"),
    ("gelu_tanh", "forward", "f32"),
    ("swiglu", "forward", "bf16"),
    ("swiglu", "backward", "bf16"),
    ("quantize_int4", "forward", "bf16"),
    ("group_norm", "forward", "bf16"),
    ("batch_norm", "backward", "bf16"),
    ("softmax", "forward", "bf16"),
    ("rms_norm", "backward", "bf16"),
    ("local_response_norm", "backward", "bf16"),
    ("matmul", "forward", "bf16"),
    ("attention", "forward", "bf16"),
    ("attention", "backward", "bf16"),
    ("lstm", "forward", "bf16"),
    ("lstm", "both", "bf16"),
    ("lstm", "both", "f32"),
]


def load(folder: Path) -> list[dict[str, Any]]:
    """The rows of all files, older files first."""
    return [row for rows in by_date(folder) for row in rows]


def last_file(folder: Path) -> list[dict[str, Any]]:
    """The rows of the newest file."""
    return (by_date(folder) or [[]])[-1]


def by_date(folder: Path) -> list[list[dict[str, Any]]]:
    files = []
    for path in sorted(folder.glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if rows:
            files.append((max(r["date"] for r in rows), path.name, rows))
    return [rows for _, _, rows in sorted(files, key=lambda f: f[:2])]


def newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    latest = {}
    for r in rows:
        key = r["op"], r["direction"], r["dtype"], r["case"], r["gpu"]
        other = latest.get(key)
        # A case may be measured against some libraries in one run and against others in the next: the best of them counts.
        same = other is not None and (other["commit"], other["date"]) == (r["commit"], r["date"])
        if not same or (r["ratio"] or 1e9) <= (other["ratio"] or 1e9):
            latest[key] = r
    return list(latest.values())


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def line(r: dict[str, Any]) -> str:
    other = "-" if r["other"] is None else f"{r['other_us']:.1f} ({r['other']})"
    return (
        f"| {r['op']} | {r['direction']} | {r['dtype']} | {r['case']} | {r['ours_us']:.1f} | {r['roofline']:.2f} | {other} "
        f"| {number(r['ratio'], '.2f')} | {number(r['error'], '.1e')} |"
    )


def runs(rows: list[dict[str, Any]]) -> str:
    found = []
    for r in rows:
        versions = ", ".join(f"{k} {v}" for k, v in r["versions"].items())
        words = f"- {r['gpu']}, driver {r['driver']}, {r['date']}, commit `{r['commit']}`; {versions}"
        if words not in found:
            found.append(words)
    return "\n".join(found)


def by_gpu(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The rows of each GPU, of the one that has most first."""
    gpus = {r["gpu"]: [] for r in rows}
    for r in rows:
        gpus[r["gpu"]].append(r)
    return sorted(gpus.values(), key=len, reverse=True)


def table(heading: str, words: str, columns: list[str], lines: list[list[str]]) -> list[str]:
    """A section with a table; nothing if there is nothing to show."""
    if not lines:
        return []
    head = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return ["", f"## {heading}", "", words, "", *head, *("| " + " | ".join(cells) + " |" for cells in lines)]


def models(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each model the best time in PyTorch alone and the best with our operators, of one commit on one GPU: one with what PyTorch's compiler
    made, if there is any, of such one with a patched model, and of such the last one. Names say which GPU it is, but for that of the most."""
    runs_of: dict[tuple[Any, ...], dict[tuple[str, ...], dict[str, float]]] = {}
    for r in rows:
        if r.get("ms"):
            run = (r["date"], r["gpu"], r["commit"])
            runs_of.setdefault((r["model"], r["dtype"]), {}).setdefault(run, {})[r["variant"]] = r["ms"]
    found = []
    for (model, dtype), runs in runs_of.items():
        best = None
        for (date, gpu, _), times in runs.items():
            ours = [ms for variant, ms in times.items() if variant.startswith(("patched", "backend"))]
            others = [ms for variant, ms in times.items() if not variant.startswith(("patched", "backend"))]
            compiled, patched = (any(variant.startswith(made) for variant in times) for made in ("compile", "patched"))
            rank = compiled, patched, date
            if ours and others and (best is None or rank >= best[0]):
                best = rank, gpu, min(ours), min(others)
        if best:
            _, gpu, ours_ms, other_ms = best
            found.append({"name": f"{model} {dtype}", "gpu": gpu, "ours_ms": ours_ms, "other_ms": other_ms, "ratio": other_ms / ours_ms})
    usual = Counter(row["gpu"] for row in found).most_common(1)
    for row in found:
        if row["gpu"] != usual[0][0]:
            row["name"] += f", {short(row['gpu'])}"
    return found


def short(gpu: str) -> str:
    """`H100` of `NVIDIA H100 80GB HBM3`."""
    return gpu.removeprefix("NVIDIA ").split()[0]


def host_times(rows: list[dict[str, Any]]) -> list[str]:
    who = sorted({w for r in rows for w in r["host_us"]}, key=lambda w: (not w.startswith("warpwright"), w))
    where = f"{rows[0]['gpu']}, {rows[0]['date']}" if rows else ""
    words = f"In microseconds, on small tensors, with a queue that is never full: `python3 bench/host_overhead.py`. {where}."
    return table("Host time per call", words, ["call", *who],
                 [[r["op"], *(number(r["host_us"].get(w), ".2f") for w in who)] for r in rows])


def installed_sizes(rows: list[dict[str, Any]]) -> list[str]:
    words = "All files of a package as it lies on the disk: `python3 bench/install_sizes.py`."
    return table("Installed size", words, ["package", "version", "MB"],
                 [[r["package"], r["version"], f"{r['megabytes']:.1f}"] for r in rows])


def first_calls(rows: list[dict[str, Any]]) -> list[str]:
    where = f"{rows[0]['gpu']}, {rows[0]['date']}" if rows else ""
    words = ("From the start of a process to the first result of one kernel (`silu` of 2^20 elements), with an empty cache and "
             "with that of the run before. *process* is all of it, PyTorch's import and the context included; *import* what the "
             f"kernel needs beyond PyTorch; *kernel* from the tensor on the GPU to a result on the host: `python3 "
             f"bench/first_call.py`. {where}.")
    return table("First call", words, ["", "cache", "process, s", "import, ms", "kernel, ms"],
                 [[r["who"], r["cache"], f"{r['process_s']:.2f}", f"{r['load_ms']:.1f}", f"{r['kernel_ms']:.1f}"] for r in rows])


def jobs(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    first = rows[0]
    words = (f"Whole processes on a checkpoint of {first['gb']:.2f} GB of BF16 in 64 matrices, from its start to the durable output, medians "
             "in seconds, with the seconds of all cores and the most memory at a time. *floor* reads the input on all cores and "
             "writes as many bytes as the job, in the same minute. `python3 bench/job.py`. "
             f"{first['gpu']}, {first['cores']} cores, {first['date']}.")
    return table("Jobs", words, ["job", "who", "s", "GB/s", "core seconds", "MB"],
                 [[r["job"], r["who"], f"{r['s']:.2f}", f"{r['gb_per_s']:.2f}", number(r.get("cpu_s"), ".1f"), number(r.get("peak_mb"), ".0f")]
                  for r in sorted(rows, key=lambda r: (r["job"], r["s"]))])


def featured_jobs(rows: list[dict[str, Any]]) -> list[str]:
    """The README's table of jobs: a row each, a column for whoever does it."""
    rows = [r for r in rows if r["who"] != "floor"]
    if not rows:
        return []
    first = rows[0]
    who = sorted({r["who"] for r in rows}, key=lambda w: (not w.startswith("warpwright"), "emulator" in w, w))
    seconds = {(r["job"], r["who"]): f"{r['s']:.1f}" for r in rows}
    return [
        "",
        f"The command on a checkpoint of {first['gb']:.1f} GB of BF16, seconds of the whole process with {first['cores']} cores "
        f"(`python3 bench/job.py`, {first['gpu']}, {first['date']}; bitsandbytes loads, quantizes and saves):",
        "",
        "| job | " + " | ".join(who) + " |",
        "|---" * (len(who) + 1) + "|",
        *(f"| {job} | " + " | ".join(seconds.get((job, w), "-") for w in who) + " |" for job in sorted({r["job"] for r in rows})),
    ]


def memory(rows: list[dict[str, Any]]) -> list[str]:
    where = f"{rows[0]['gpu']}, {rows[0]['date']}" if rows else ""
    words = ("Resident memory of the process and memory of the GPU in use, while calls of all kinds go on, failing ones among "
             f"them: `python3 bench/leak_check.py`. {where}.")
    return table("Memory over a million calls", words, ["calls", "host, MB", "GPU, MB"],
                 [[str(r["calls"]), f"{r['host_mb']:.1f}", f"{r['gpu_mb']:.1f}"] for r in rows])


def memory_of_emulator(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    words = ("Resident memory of the process while the emulator runs kernels on arrays of numpy, failing calls among them: "
             f"`python3 bench/leak_check.py --emulator`. {rows[0]['date']}.")
    return table("Memory over a million calls in the emulator", words, ["calls", "host, MB"],
                 [[str(r["calls"]), f"{r['host_mb']:.1f}"] for r in rows])


def document(rows: list[dict[str, Any]], sections: list[list[str]], pages: list[str]) -> str:
    parts = [
        "# Performance",
        "",
        "Made by `cargo xtask bench-report` from [bench/data](../../bench/data); do not edit. Times are medians in microseconds of",
        "one launch with the L2 cache flushed, taken in turns with the other libraries in one process: `python3",
        "bench/compare.py`. *Roofline* is minimal bytes over time as a fraction of the bandwidth that a plain copy or addition",
        "reached in the same run; *other / ours* above 1 means that warpwright is faster; *error* is norm-wise, against f64, and for",
        "4-bit formats that of the format.",
        "",
        runs(rows),
        "",
        "![Time of the best other library over ours, by operation](families.svg)",
        "",
        "Every case has a bar in [ratios.svg](ratios.svg) and a point in [roofline.svg](roofline.svg), which shows the fraction of the memory bandwidth of the same run.",
        "",
        "![Time of a model in PyTorch over that with our operators](models.svg)",
        "",
        "Whole models: [models.md](models.md).",
    ]
    for of_gpu in by_gpu(rows):
        parts += [
            "",
            f"## {of_gpu[0]['gpu']}",
            "",
            "| operation | direction | dtype | case | us | roofline | best other, us | other / ours | error |",
            "|---|---|---|---|---|---|---|---|---|",
            *(line(r) for r in of_gpu),
        ]
    parts += [words for section in sections for words in section]
    if pages:
        parts += ["", "## Notes by family", "", "Floors, forms that were tried, and what they gave:", ""]
        parts += [f"- [{page.removesuffix('.md')}]({page})" for page in pages]
    return "\n".join(parts) + "\n"


def featured(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that the README shows: of the GPU that has all of them, and measured them last."""

    def of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = []
        for op, direction, dtype in FEATURED:
            fitting = [r for r in rows if (r["op"], r["direction"], r["dtype"]) == (op, direction, dtype)]
            if fitting:
                found.append(max(fitting, key=lambda r: r["ours_us"]))
        return found

    return max(map(of, by_gpu(rows)), key=lambda chosen: (len(chosen), min((r["date"] for r in chosen), default="")))


def where(chosen: list[dict[str, Any]]) -> tuple[str, str]:
    """The GPU and the dates of rows."""
    dates = sorted({r["date"] for r in chosen})
    return chosen[0]["gpu"], dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def picture(chosen: list[dict[str, Any]]) -> str:
    """The README's picture."""
    if not chosen:
        return ""
    gpu, date = where(chosen)
    return "\n".join([
        "![Time of the best other library over ours](docs/performance/featured.svg)",
        "",
        f"{gpu}, {date}, `python3 bench/compare.py`: [the rows](#speed).",
    ])


def excerpt(chosen: list[dict[str, Any]], job_rows: list[dict[str, Any]]) -> str:
    """The README's tables."""
    parts = []
    if chosen:
        gpu, date = where(chosen)
        parts += [
            f"{gpu}, driver {chosen[0]['driver']}, {date}; medians in microseconds, each in one run with the others.",
            "All rows: [docs/performance](docs/performance).",
            "",
            "| operation | case | us | roofline | best other, us | other / ours |",
            "|---|---|---|---|---|---|",
        ]
    for r in chosen:
        direction = "" if "quantize" in r["op"] else f" {r['direction']}"
        other = "-" if r["other"] is None else f"{r['other_us']:.0f} ({r['other']})"
        parts.append(
            f"| {r['op']}{direction} {r['dtype']} | {r['case']} | {r['ours_us']:.0f} | {r['roofline']:.2f} | {other} "
            f"| {number(r['ratio'], '.2f')} |"
        )
    return "\n".join(parts + featured_jobs(job_rows))


def written(root: Path = ROOT) -> dict[Path, str]:
    """Every file that follows from the data, and what must be in it."""
    rows = newest(load(HERE / "data"))
    # What one call costs depends on the machine, so all of it comes from one run: that of the newest file.
    data = HERE / "data"
    job_rows = last_file(data / "job")
    sections = [
        jobs(job_rows),
        host_times(last_file(data / "host")),
        first_calls(last_file(data / "first_call")),
        memory(last_file(data / "leak")),
        memory_of_emulator(last_file(data / "leak_emulator")),
        installed_sizes(sorted(last_file(data / "sizes"), key=lambda r: r["megabytes"])),
    ]
    rows.sort(key=lambda r: (r["op"].removeprefix("de"), r["op"], r["direction"] != "forward", r["dtype"], r["case"]))
    folder = root / "docs" / "performance"
    pages = sorted(p.name for p in folder.glob("*.md") if p.name != "README.md")
    # Pictures show one GPU, and so does the README.
    most, chosen = by_gpu(rows)[0], featured(rows)
    words = excerpt(chosen, job_rows)
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    for begin, end, new in ((BEGIN, END, words), (PICTURE, PICTURE_END, picture(chosen))):
        inside = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text, found = inside.subn(lambda _: f"{begin}\n{new}\n{end}", text)
        if not found:
            raise SystemExit(f"README.md has no {begin} ... {end}")
    return {
        folder / "README.md": document(rows, sections, pages),
        folder / "families.svg": charts.families(most),
        folder / "models.svg": charts.models(models(load(data / "models"))),
        folder / "ratios.svg": charts.ratios(most),
        folder / "roofline.svg": charts.roofline(most),
        folder / "featured.svg": charts.ratios(chosen),
        readme: text,
    }


def main() -> int:
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
