"""The comparison without a GPU: every case goes through, and what is written can be read."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

if sys.version_info < (3, 11):
    pytest.skip("suites are TOML, which Python reads from 3.11 on", allow_module_level=True)

import report  # noqa: E402
from comparison import charts, lab, suites  # noqa: E402

KEYS = "op case dtype direction ours_us other_us other ratio roofline error gpu driver versions commit date".split()


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dry")
    out, page = folder / "rows.jsonl", folder / "page.html"
    host = folder / "host.jsonl"
    command = [sys.executable, str(HERE / "compare.py"), "--dry-run", "--out", str(out), "--page", str(page), "--host", str(host)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(host.read_text())["host_us"]["warpwright"] > 0
    return done.stdout, [json.loads(line) for line in out.read_text().splitlines()], page.read_text()


def test_every_case_has_a_row(dry_run):
    table, rows, _ = dry_run
    cases = list(suites.load(HERE / "suites.toml", []))
    assert len(rows) == len(cases) == len({str(c) for c in cases})
    for r in rows:
        assert set(KEYS) <= set(r)
        assert r["ours_us"] > 0 and 0 < r["roofline"] <= 1.0
        assert r["ratio"] is None or r["ratio"] == pytest.approx(r["other_us"] / r["ours_us"])
        assert r["op"] in table


def test_bytes_are_those_of_the_operation():
    case = suites.Case("swiglu", "", (4, 8), "bf16", "backward")
    assert case.bytes == 32 * 2 * 5
    case = suites.Case("quantize_nf4", "", (100,), "f32", "forward")
    assert case.bytes == 400 + 50 + 8
    case = suites.Case("relu", "", (10,), "f64", "forward")
    assert case.bytes == 160
    case = suites.Case("rms_norm", "", (4, 8), "bf16", "forward", (("residual", True),))
    assert case.bytes == 32 * 2 * 4
    case = suites.Case("batch_norm", "", (4, 8), "bf16", "forward", (("relu", True), ("residual", True)))
    assert case.bytes == 32 * 2 * 3
    case = suites.Case("attention", "", (2, 8, 4, 16), "bf16", "backward")
    assert case.bytes == 2 * 8 * 4 * 16 * 2 * 8
    case = suites.Case("attention", "", (2, 8, 4, 16), "bf16", "forward", (("kv_heads", 2), ("queries", 1)))
    assert case.bytes == 2 * 2 * 2 * (4 + 8 * 2) * 16 and case.operations == 4 * 2 * 4 * 8 * 16
    case = suites.Case("attention", "", (2, 8, 4, 16), "bf16", "backward", (("value_width", 8),))
    assert case.bytes == 2 * 2 * 2 * 8 * 8 * (16 + 8) and case.operations == 2 * 2 * 4 * 8 * 8 * (3 * 16 + 2 * 8)
    options = (("dilation", 2), ("filters", 6), ("groups", 2), ("kernel", 3), ("padding", 1), ("stride", 2))
    case = suites.Case("conv", "", (2, 4, 9, 8), "bf16", "dx", options)
    results = 2 * 6 * 4 * 3
    assert case.bytes == 2 * (2 * 4 * 9 * 8 + 6 * 2 * 9 + results) and case.operations == 2 * results * 2 * 9
    terms = [suites.Case("conv", "", (2, 4, 9, 8), "f32", direction, options).terms for direction in ("forward", "dx", "dweight")]
    assert terms == [2 * 9, 3 * 9, 2 * 4 * 3]
    windows = (("kernel", 3), ("padding", 1), ("stride", 2))
    images, results = 2 * 4 * 9 * 8, 2 * 4 * 5 * 4
    case = suites.Case("avg_pool", "", (2, 4, 9, 8), "bf16", "backward", windows)
    assert case.bytes == 2 * (images + results)
    case = suites.Case("max_pool", "", (2, 4, 9, 8), "bf16", "forward", windows)
    assert case.bytes == 2 * (images + results)
    case = suites.Case("max_pool", "", (2, 4, 9, 8), "bf16", "backward", windows)
    assert case.bytes == 2 * (images + results) + results
    case = suites.Case("adaptive_max_pool", "", (2, 4, 9, 8), "f32", "backward", (("output", 3),))
    assert case.bytes == 4 * (images + 2 * 4 * 9) + 8 * 2 * 4 * 9
    case = suites.Case("resize", "", (2, 4, 9, 8), "bf16", "forward", (("mode", "nearest"), ("scale", 1.5)))
    assert case.bytes == 2 * (images + 2 * 4 * 13 * 12) and case.operations == 0
    case = suites.Case("causal_conv1d", "", (2, 4, 9), "bf16", "backward", (("width", 4),))
    assert case.bytes == 2 * 3 * 2 * 4 * 9
    case = suites.Case("selective_scan", "", (2, 4, 9), "bf16", "both", (("state_size", 4),))
    assert case.bytes == 2 * (4 + 7) * 2 * 4 * 9
    case = suites.Case("cross_entropy", "", (4, 8), "f32", "both")
    assert case.bytes == 32 * 4 * 3
    case = suites.Case("rotary_embedding", "", (2, 8, 4, 16), "bf16", "forward", (("kv_heads", 1),))
    assert case.bytes == 2 * 2 * 2 * 8 * 5 * 16
    case = suites.Case("append_kv_cache", "", (2, 8, 4, 16), "bf16", "forward", (("kv_heads", 1), ("capacity", 64)))
    assert case.bytes == 2 * 2 * 2 * 8 * 6 * 16
    moved = [suites.Case("embedding", "", (9, 8), "f32", d, (("count", 5),)).bytes for d in ("forward", "backward")]
    assert moved == [4 * 2 * 5 * 8, 4 * (5 + 9) * 8]
    case = suites.Case("topk", "", (9, 8), "bf16", "forward", (("k", 3),))
    assert case.bytes == 9 * (8 * 2 + 3 * 10)
    assert suites.Case("scatter_rows", "", (9, 8), "f32", "forward").bytes == 2 * 9 * 8 * 4
    case = suites.Case("adamw_step", "", (4, 8), "f32", "forward")
    assert case.bytes == 32 * 4 * 7


def test_convolutions_of_f32_have_both_precisions():
    cases = [case for case in suites.load(HERE / "suites.toml", ["conv"]) if case.dtype == "f32"]
    rounded = {str(case) for case in cases if case.factors == "tf32"}
    assert rounded == {f"{case}, tf32" for case in cases if case.factors == "f32"} and len(cases) == 2 * len(rounded)
    # What is compared with exact sums of exact factors, and of rounded ones.
    assert all((lab.budget(case) > 1e-4) == (case.factors == "tf32") for case in cases)


def test_references_of_images_read_contiguous_tensors(monkeypatch):
    """In which PyTorch's gradients are right, whatever the format of the case."""
    torch = pytest.importorskip("torch")
    from comparison import images
    from comparison.norms import channels_last

    read = []
    for case in suites.load(HERE / "suites.toml", ["max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool", "resize"]):
        if case.direction == "forward" or not case.option("channels_last") or case.dtype != "bf16":
            continue
        small = dataclasses.replace(case, shape=(2, 4, *[8] * (len(case.shape) - 2)))
        problem = images.PROBLEMS[case.op](small, torch.randn)
        assert not problem.x.is_contiguous()
        theirs = problem.theirs
        monkeypatch.setattr(problem, "theirs", lambda x, theirs=theirs: read.append(x) or theirs(x))
        dy = channels_last(torch.randn_like(theirs(problem.x)))
        (dx,) = problem.reference(dy)
        x = problem.x.double().contiguous().requires_grad_()
        (expected,) = torch.autograd.grad(theirs(x), x, dy.double().contiguous())
        assert read[-1].is_contiguous() and torch.equal(dx, expected)
    assert read


def test_ours_are_the_functions_of_their_references():
    """Of what stands between the large operations, on small tensors in the emulator."""
    torch = pytest.importorskip("torch")
    ww = pytest.importorskip("warpwright")
    from comparison import glue

    checked = set()
    for case in suites.load(HERE / "suites.toml", list(glue.PROBLEMS)):
        if case.dtype != "f32" and case.op not in ("append_kv_cache", "rotary_embedding"):
            continue
        options = dict(case.options) | ({"count": 5} if case.op == "embedding" else {})
        small = dataclasses.replace(case, shape=tuple(min(n, 8) for n in case.shape), options=tuple(options.items()))
        problem = glue.PROBLEMS[case.op](small, lambda shape, dtype=torch.float32: torch.randn(shape, dtype=dtype))
        dy = None if case.direction == "forward" else torch.randn(5, 8)
        ours = problem.ours(ww) if dy is None else problem.ours_backward(ww, dy)
        out = ours()
        found = ours(out=out)
        expected = problem.reference(dy)
        for a, b in zip(found if isinstance(found, tuple) else [found], expected):
            # Terms of a sum may cancel.
            assert float((a.double() - b).norm()) <= 1e-6 * float((b if b.dim() else problem.x).norm())
        problem.theirs(*problem.inputs)
        checked.add(case.op)
    assert checked == set(glue.PROBLEMS)


def test_scans_are_those_of_their_references():
    """In both orders and directions, on small tensors in the emulator."""
    torch = pytest.importorskip("torch")
    ww = pytest.importorskip("warpwright")
    wt = pytest.importorskip("warpwright.torch")
    from comparison import scans

    seen = set()
    for case in suites.load(HERE / "suites.toml", ["selective_scan"]):
        small = dataclasses.replace(case, shape=(2, 4, 7), dtype="f32")
        problem = scans.PROBLEMS[case.op](small, torch.randn)
        if case.direction == "forward":
            ours = problem.ours(ww)
            found, dy = [ours(out=ours())], None
            assert found[0].mT.is_contiguous() == bool(case.option("channels_last"))
        else:
            leaves = [x.detach().requires_grad_() for x in problem.inputs]
            y = problem.ours_recorded(wt)(*leaves)
            dy = torch.randn_like(y)
            found = torch.autograd.grad(y, leaves, dy)
        expected = problem.reference(dy)
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            assert float((a.double() - b).norm()) <= 2e-6 * float(b.norm())
        seen.add((case.direction, case.option("channels_last")))
    assert len(seen) == 4


def test_a_part_of_the_cases():
    command = [sys.executable, str(HERE / "compare.py"), "--dry-run", "relu", "--match", "backward bf16"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith("relu")]
    assert len(rows) == 1 and "backward" in rows[0]


def test_the_page_is_whole(dry_run):
    _, rows, page = dry_run
    open_tags = []

    class Check(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "line", "rect", "circle", "polygon"):
                open_tags.append(tag)

        def handle_endtag(self, tag):
            if tag not in ("line", "rect", "circle", "polygon"):
                assert open_tags.pop() == tag

    Check().feed(page)
    assert open_tags == []
    assert page.count("<svg") == 2 and "prefers-color-scheme: dark" in page
    assert page.count("<tr>") == 1 + len(rows)


def test_charts_are_xml_and_sorted(dry_run):
    rows = dry_run[1]
    for chart in (charts.ratios, charts.roofline, charts.families):
        ET.fromstring(chart(rows))
        ET.fromstring(chart([]))
    ratios = [r["ratio"] for r in charts.compared(rows)]
    assert ratios == sorted(ratios, reverse=True)


def test_operations_are_drawn_by_their_means():
    rows = [{"op": op, "ratio": ratio, "dtype": "f32", "direction": "forward", "case": "c", "other": "x"}
            for op, ratio in [("relu", 0.5), ("silu", 4.0), ("silu", 1.0)]]
    words = [text.text for text in ET.fromstring(charts.families(rows)).iter("{http://www.w3.org/2000/svg}text")]
    assert words.index("silu") < words.index("relu") and {"2.00x  2 cases", "0.50x  1 case"} <= set(words)


def test_models_are_compared_within_a_run():
    times = {"a": {"eager": 9.0, "patched": 5.0, "compile+graphs": 4.0, "patched+graphs": 2.0}, "b": {"eager": 1.0, "backend": 3.0}}
    about = {"model": "m", "dtype": "bf16", "gpu": "NVIDIA H200", "date": "2026-11-28"}
    rows = [about | {"commit": commit, "variant": variant, "ms": ms} for commit, of in times.items() for variant, ms in of.items()]
    (found,) = report.models([*rows, about | {"commit": "a", "variant": "compile", "failed": "no"}])
    assert found == {"name": "m bf16", "gpu": "NVIDIA H200", "ours_ms": 2.0, "other_ms": 4.0, "ratio": 2.0}
    assert "2.00x  4.0 to 2.0 ms" in charts.models([found])
    assert report.models(rows[:1]) == []
    # As many variants without a compiler do not count against those with one.
    eager = [row | {"commit": "c", "variant": variant} for row, variant in zip(rows, ("eager", "graphs", "patched", "patched+graphs"))]
    assert report.models([*rows[:4], *eager]) == [found]
    # The last run counts, and says so where it is of another GPU than most.
    later = [row | {"date": "2026-11-29", "gpu": "NVIDIA H100 80GB HBM3", "ms": row["ms"] / 2} for row in rows[:4]]
    others = [row | {"model": model} for model in ("n", "o") for row in rows[:4]]
    names = {row["name"]: row["ours_ms"] for row in report.models([*rows, *later, *others])}
    assert names == {"m bf16, H100": 1.0, "n bf16": 2.0, "o bf16": 2.0}


def test_reports_take_the_newest_row():
    old = {"op": "relu", "case": "c", "dtype": "f32", "direction": "forward", "ours_us": 2.0, "other_us": 4.0, "other": "x",
           "ratio": 2.0, "roofline": 0.5, "error": 1e-7, "gpu": "g", "driver": "1", "versions": {}, "commit": "a",
           "date": "2026-01-01"}
    new = old | {"ours_us": 1.0, "ratio": 4.0, "date": "2026-02-01"}
    assert report.newest([old, new]) == [new]
    # Of two runs of one day against different libraries, the harder one counts.
    eager, compiled = new | {"ratio": 4.0}, new | {"ratio": 1.1, "other": "y"}
    assert report.newest([eager, compiled]) == report.newest([compiled, eager]) == [compiled]
    host = [{"op": "relu", "host_us": {"warpwright": 4.0, "torch": 5.0}, "gpu": "g", "date": "2026-02-01"}]
    sizes = [{"package": "warpwright", "version": "1", "megabytes": 4.97}]
    first = [{"who": "Triton", "cache": "cold", "process_s": 5.0, "load_ms": 1.0, "kernel_ms": 99.96, "gpu": "g", "date": "2026-02-01"}]
    leak = [{"calls": 1000, "host_mb": 7.0, "gpu_mb": 8.0, "gpu": "g", "date": "2026-02-01"}]
    jobs = [
        {"job": "quantize int4", "who": who, "gb": 4.0, "s": seconds, "gb_per_s": 4.0 / seconds, "cores": 16, "gpu": "G", "date": "2026-01-02"}
        for who, seconds in [("floor", 0.5), ("bitsandbytes, G", 12.0), ("warpwright, emulator", 3.0), ("warpwright, G", 1.0)]
    ]
    in_emulator = [{"calls": 1000, "host_mb": 9.0, "gpu_mb": 0.0, "gpu": "emulator", "date": "2026-02-01"}]
    assert "| 1000 | 9.0 |" in report.memory_of_emulator(in_emulator) and not report.memory_of_emulator([])
    sections = [report.host_times(host), report.first_calls(first), report.memory(leak), report.installed_sizes(sizes),
                report.memory([]), report.jobs(jobs), report.jobs([])]
    assert "| quantize int4 | 1.0 | 3.0 | 12.0 |" in report.featured_jobs(jobs)
    text = report.document([new], sections, ["activation.md"])
    assert "| Triton | cold | 5.00 | 1.0 | 100.0 |" in text and "| 1000 | 7.0 | 8.0 |" in text
    assert text.count("## Memory over a million calls") == 1
    assert "| relu | 4.00 | 5.00 |" in text and "| warpwright | 1 | 5.0 |" in text
    assert "| relu | forward | f32 | c | 1.0 | 0.50 | 4.0 (x) | 4.00 | 1.0e-07 |" in text
    assert "[activation](activation.md)" in text


def test_what_is_committed_follows_from_the_data():
    found = report.written()
    stale = [str(path.relative_to(report.ROOT)) for path, text in found.items() if path.read_text() != text]
    assert not stale, f"run `cargo xtask bench-report`: {', '.join(stale)}"


def test_models_run_in_every_variant(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("warpwright")
    out = tmp_path / "rows.jsonl"
    variants = ["eager", "patched", "patched+compile+graphs"]
    command = [sys.executable, str(HERE / "models.py"), "--tiny", "--models", "mamba;dlrm", "--variants", ",".join(variants)]
    done = subprocess.run([*command, "--seconds", "0", "--out", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["model"], r["dtype"]) for r in rows[:: len(variants)]] == [
        ("mamba", "bf16"), ("dlrm", "bf16")
    ]
    for r in rows:
        assert r["ms"] > 0 and 0 < r["error"] < 0.03 and 0 < r["gradient_error"] < 0.03
        assert {"gpu", "driver", "versions", "commit", "date", "spread_ms"} <= set(r)
    assert all(r["replaced"] for r in rows if "patched" in r["variant"])
    assert all(r["left"] is not None for r in rows if r["variant"] == "patched")


def test_ranks_are_timed(tmp_path):
    """On two processes with gloo, where PyTorch's own take part as far as they run on CPUs."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("warpwright")
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("PyTorch has no gloo")
    out = tmp_path / "ranks.jsonl"
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    subprocess.run([*start, str(HERE / "parallel.py"), "--tiny", "--out", str(out)], check=True, env=environment, timeout=240)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["op"] for row in rows} == {"sync_batch_norm", "parallel_linear", "context_parallel_attention"}
    ours = [row for row in rows if row["who"].startswith(("warpwright", "exchange"))]
    assert len(ours) == 15 and all(row["us"] > 0 for row in ours), [row for row in ours if "us" not in row]


def test_a_variant_that_fails_costs_no_other():
    pytest.importorskip("torch")
    import argparse

    import models
    from comparison import zoo

    calls, rows = [], []

    def loss(module, inputs):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("as if out of memory\nand so on")
        return zoo._classes(module, inputs)

    model = dataclasses.replace(next(m for m in zoo.MODELS if m.name == "bilstm"), loss=loss)
    args = argparse.Namespace(tiny=True, device="cpu", variants=["eager", "graphs"], seconds=0, profile=[])
    models.run_model(model, args, rows.append)
    assert rows[0]["failed"] == "RuntimeError: as if out of memory" and "failed" not in rows[1] and rows[1]["ms"] > 0
    assert "failed" in models.shown(rows[0])


def test_kernels_of_others_are_told_from_ours():
    pytest.importorskip("torch")
    import models

    entries = "gemm_bf16_tn layer_norm_forward_bf16_vec attention_bf16_d128 conv_f16_nhwc relu_f32".split()
    others = ["void at::native::vectorized_elementwise_kernel<4>", "nvjet_tst_128x256", "triton_poi_fused_add_0", "Memset (Device)",
              "sm90_xmma_gemm_bf16", "cutlass_80_tensorop", "cudnn_generated_fort_native_sdpa", "fmha_cutlassF_bf16_aligned"]
    assert not any(models.OTHERS.search(name) for name in entries) and all(models.OTHERS.search(name) for name in others)


def test_curves_that_part_are_named():
    pytest.importorskip("torch")
    import curves

    plain = [4.0 / (1 + step / 100) for step in range(400)]
    off = lambda factor: [loss * factor for loss in plain]  # noqa: E731
    found = {"eager": plain, "patched": off(1.009), "patched+graphs": off(1.009), "backend": off(1.02)}
    assert curves.verdict(found, "patched") == "" == curves.verdict(found, "patched+graphs")
    assert "2.00% from eager, at most 1.00%" in curves.verdict(found, "backend")
    # As far as PyTorch is from itself.
    assert curves.verdict(found | {"eager, nudged": off(0.985)}, "backend") == ""
    found["patched+graphs"] = plain[:7] + found["patched"][7:]
    assert curves.verdict(found, "patched+graphs") == "other bits than patched from step 0 on"
    assert "inf" in curves.verdict(found | {"backend": [*plain[:-1], float("nan")]}, "backend")
