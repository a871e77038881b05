#!/usr/bin/env python3
"""Holds the bnb formats of `warpwright` against bitsandbytes itself, on the CPU.

Not part of the default suite, because PyTorch is large. Needs

    python3 -m venv venv && venv/bin/pip install torch bitsandbytes safetensors numpy
    cargo build --release
    venv/bin/python crates/warpwright-cli/tests/interop/bitsandbytes_roundtrip.py [--checkpoint model.safetensors]

Without --checkpoint, `warpwright demo` makes the input, in f32, f16 and bf16. For every format:

 1. bitsandbytes loads the output (QuantState.from_dict, as transformers does) and dequantizes it; every value must
    have the bits that `warpwright dequantize` gives it. FP4 has two codes for zero, which bitsandbytes' CPU path reads
    as +0 both: there the values must be equal as numbers.
 2. bitsandbytes quantizes the original weights; codes and absmax must be the same bytes, with two exceptions where its
    CPU path is not its CUDA path, which is the reference: the boundaries between FP4 codes differ in the last digits,
    so up to 0.1 % of the bytes may differ (weights that lie on a boundary, -0 for +0); and the 8-bit absmax of double
    quantization are placed by a table of coarse steps, so up to 0.5 % of them may differ. In both cases ours must not
    be the farther one.

Exit code 0 if all of that holds, 1 if not.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from bitsandbytes import functional as bnb
from safetensors.torch import load_file

FORMATS = [(code, double) for code in ("nf4", "fp4") for double in (False, True)]
PARTS = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", ".quant_state.bitsandbytes__")


def bits(tensor):
    """The tensor's bytes, so that comparison is exact and NaN equals itself."""
    return tensor.contiguous().view(torch.uint8)


def differing(a, b, as_numbers=False):
    """How many elements differ in any bit, or as numbers; all of them if the shapes do."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return max(a.numel(), b.numel())
    if as_numbers:
        return int((a != b).sum())
    size = a.element_size()
    return int((bits(a.flatten()).view(-1, size) != bits(b.flatten()).view(-1, size)).any(dim=1).sum())


def one_zero(packed, code):
    """Packed FP4 codes with -0 (8) turned into +0; other codes as they are."""
    if code != "fp4":
        return packed
    high, low = packed >> 4, packed & 15
    high, low = (torch.where(half == 8, 0, half) for half in (high, low))
    return high << 4 | low


def farther_absmax(ours, theirs, absmax, parts):
    """How many of our 8-bit absmax codes are farther from the absmax than those of bitsandbytes."""
    state = json.loads(bytes(next(v for k, v in parts.items() if "quant_state" in k).tolist()))
    blocks = parts["nested_absmax"].double().repeat_interleave(256)[: absmax.numel()]
    exact = (absmax - torch.tensor(state["nested_offset"], dtype=torch.float32)).double() / blocks
    levels = parts["nested_quant_map"].double()
    distance = lambda codes: (levels[codes.long()] - exact).abs()
    return int((distance(ours) > distance(theirs) + 1e-7).sum())


def farther_codes(ours, theirs, weight, absmax, levels, block_size):
    """How many of our codes stand for a value farther from the weight than those of bitsandbytes."""
    scale = absmax.double().repeat_interleave(block_size)[: weight.numel()]
    weight = weight.flatten().double()

    def distance(packed):
        codes = torch.stack([packed.flatten() >> 4, packed.flatten() & 15], dim=1).flatten()
        return (levels.double()[codes[: weight.numel()].long()] * scale - weight).abs()

    return int((distance(ours) > distance(theirs) + 1e-6 * scale).sum())


def run(binary, *arguments):
    done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{binary} {' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stderr}")


class Tally:
    """Numbers of one format on one checkpoint."""

    def __init__(self):
        self.weights = self.values = self.value_errors = self.code_errors = self.absmax_errors = 0
        self.code_bytes = self.absmax = self.farther = 0

    def holds(self, code, double):
        allowed = 0.005 * self.absmax if double else 0
        allowed_codes = 0.001 * self.code_bytes if code == "fp4" else 0
        return (
            self.weights > 0
            and self.value_errors == 0
            and self.code_errors <= allowed_codes
            and self.absmax_errors <= allowed
            and self.farther == 0
        )


def compare(original, quantized, restored, code, double, block_size):
    tally = Tally()
    for name in original:
        parts = {
            key.removeprefix(name + "."): value
            for key, value in quantized.items()
            if any(key.startswith(name + part) for part in PARTS)
        }
        if not parts:
            continue
        # from_dict takes the state out of the dictionary that it is given.
        state = bnb.QuantState.from_dict(dict(parts), device=torch.device("cpu"))
        theirs = bnb.dequantize_4bit(quantized[name], state)
        tally.weights += 1
        tally.values += theirs.numel()
        tally.value_errors += differing(theirs, restored[name], as_numbers=code == "fp4")

        packed, expected = bnb.quantize_4bit(
            original[name], blocksize=block_size, compress_statistics=double, quant_type=code
        )
        tally.code_errors += differing(one_zero(packed, code), one_zero(quantized[name], code))
        tally.code_bytes += packed.numel()
        _, plain = bnb.quantize_4bit(original[name], blocksize=block_size, quant_type=code)
        levels = parts["quant_map"]
        tally.farther += farther_codes(quantized[name], packed, original[name], plain.absmax, levels, block_size)
        absmax = parts["absmax"]
        tally.absmax += absmax.numel()
        tally.absmax_errors += differing(expected.absmax, absmax)
        if double:
            tally.farther += farther_absmax(absmax, expected.absmax, plain.absmax, parts)
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/release/warpwright")
    parser.add_argument("--checkpoint", type=pathlib.Path)
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--device", default="emulator", help="where warpwright runs")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        inputs = [options.checkpoint] if options.checkpoint else []
        if not inputs:
            for dtype in ("f32", "f16", "bf16"):
                inputs.append(folder / f"demo-{dtype}.safetensors")
                run(options.binary, "demo", "-o", inputs[-1], "--dtype", dtype)
        for source in inputs:
            original = load_file(source)
            for code, double in FORMATS:
                output, back = folder / "q.safetensors", folder / "back.safetensors"
                arguments = ["--format", f"bnb-{code}", "--block-size", options.block_size, "--force"]
                arguments += ["--double-quant"] if double else []
                run(options.binary, "quantize", source, "-o", output, "--device", options.device, *arguments)
                run(options.binary, "dequantize", output, "-o", back, "--device", options.device, "--force")
                tally = compare(
                    original, load_file(output), load_file(back), code, double, options.block_size
                )
                holds = tally.holds(code, double)
                failed += not holds
                print(
                    f"{'ok' if holds else 'FAILED':6} {source.name} {code}{' double' if double else ''}: "
                    f"{tally.weights} weights, {tally.value_errors} of {tally.values} values differ, "
                    f"{tally.code_errors} of {tally.code_bytes} bytes of codes, "
                    f"{tally.absmax_errors} of {tally.absmax} absmax; {tally.farther} of ours are farther"
                )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
