#!/usr/bin/env python3
"""Holds the checkpoint formats of `warpwright` against the code of the tools that own them, on the CPU.

    python3 -m venv venv && venv/bin/pip install torch transformers accelerate safetensors compressed-tensors auto-round gguf
    cargo build --release
    venv/bin/python bench/formats.py [--warpwright target/release/warpwright] [--keep FOLDER]

Three things are tried, and each prints a line with the number of values that differ:

 1. Ours read by theirs. A small Llama with random weights is quantized by `warpwright quantize` in every format. compressed-tensors
    decompresses its formats, its AutoAWQ converter reads awq, auto-round's GPTQ layer reads gptq, transformers reads fp8. Each gives
    the numbers that `warpwright dequantize` gives.
 2. Theirs read by ours. compressed-tensors compresses random weights in its formats, 2 to 8 bits; transformers' code for gpt-oss
    decodes random blocks; auto-round's GPTQ layer decodes random words in a random order of groups; the package gguf writes and decodes
    blocks of each type. Again the numbers must be the same.
 3. The folders of the formats of compressed-tensors, and of fp8, are loaded by `transformers.AutoModelForCausalLM`, and their logits
    compared with those of the model that `warpwright dequantize` makes.

Numbers are compared in f32 where their code computes in f32, else in the type that it computes in. Exit code 0 if all are the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy
import torch
import transformers
from auto_round_extension.torch.qlinear_torch_zp import QuantLinear
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
FORMATS = {
    "gptq": ["--group-size", "32"],
    "gptq --asymmetric": ["--group-size", "64"],
    "awq": ["--group-size", "32"],
    "compressed-tensors-int4": ["--group-size", "32"],
    "compressed-tensors-int4 --asymmetric": ["--group-size", "64", "--search"],
    "mxfp4": [],
    "nvfp4": ["--search"],
    "fp8": [],
}
failures = 0


def told(what: str, ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Prints how many values differ in any bit."""
    global failures
    count = differ = 0
    for name, value in theirs.items():
        count += value.numel()
        mine = ours[name]
        same = mine.shape == value.shape and mine.dtype == value.dtype
        differ += int((mine != value).logical_and(~(mine.isnan() & value.isnan())).sum()) if same else value.numel()
    failures += differ > 0 or count == 0
    print(f"{what:66} {count:7} values, {differ} differ")


class Command:
    """The command under test."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder

    def run(self, *args: object) -> None:
        command = [str(self.path), *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")

    def restored(self, source: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """What `dequantize` makes of a checkpoint."""
        out = self.folder / f"{source.name}-{NAMES[dtype]}"
        self.run("dequantize", source, "-o", out, "--dtype", NAMES[dtype], "--device", "emulator", "--force")
        return load_file(out / "model.safetensors")


def checkpoint(folder: Path, tensors: dict[str, torch.Tensor], entry: dict[str, Any] | None) -> Path:
    """A folder with these tensors and a quantization entry."""
    folder.mkdir()
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    if entry is not None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": entry}))
    return folder


def modules(tensors: dict[str, torch.Tensor], suffix: str) -> list[str]:
    return [name.removesuffix(suffix) for name in tensors if name.endswith(suffix)]


def compressor(form: str) -> Any:
    return BaseCompressor.get_value_from_registry(form)


def decompressed(tensors: dict[str, torch.Tensor], entry: dict[str, Any]) -> dict[str, torch.Tensor]:
    """All weights as compressed-tensors gives them."""
    weights = QuantizationArgs.model_validate(entry["config_groups"]["group_0"]["weights"])
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    out = {}
    for module in modules(tensors, ".weight_packed"):
        own = {name.removeprefix(f"{module}."): value for name, value in tensors.items() if name.startswith(f"{module}.")}
        out[f"{module}.weight"] = compressor(entry["format"]).decompress(own, scheme)["weight"]
    return out


def gptq_layer(tensors: dict[str, torch.Tensor], module: str, bits: int, group: int) -> torch.Tensor:
    """A weight as auto-round's GPTQ layer multiplies by it."""
    scales, index = tensors[f"{module}.scales"], tensors[f"{module}.g_idx"]
    # With an index, their layer has no more outputs than inputs.
    ordered = bool((index == torch.arange(index.numel()) // group).all())
    layer = QuantLinear(bits, group, index.numel(), scales.shape[1], bias=False, g_idx=not ordered)
    layer.qweight, layer.qzeros, layer.scales = tensors[f"{module}.qweight"], tensors[f"{module}.qzeros"], scales.float()
    if not ordered:
        layer.g_idx = index
    return layer(torch.eye(index.numel())).T.contiguous()


def ours_read_by_theirs(command: Command, model: Path) -> None:
    for form, options in FORMATS.items():
        out = command.folder / form.replace(" ", "")
        command.run("quantize", model, "-o", out, "--format", *form.split(), *options)
        tensors = load_file(out / "model.safetensors")
        entry = json.loads((out / "config.json").read_text())["quantization_config"]
        if form.startswith("gptq"):
            theirs = {
                f"{module}.weight": gptq_layer(tensors, module, 4, entry["group_size"]) for module in modules(tensors, ".qweight")
            }
        elif form == "awq":
            converter = AutoAWQConverter.from_autoawq_config(entry)
            weights = {"num_bits": 4, "symmetric": False, "strategy": "group", "group_size": entry["group_size"]}
            changed = {"format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}}}
            theirs = decompressed(converter.process(dict(tensors)), changed)
        elif form == "fp8":
            reader = Fp8Dequantize(None)
            theirs = {
                f"{module}.weight": reader._dequantize_one(tensors[f"{module}.weight"], tensors[f"{module}.weight_scale_inv"])
                for module in modules(tensors, ".weight_scale_inv")
            }
        else:
            theirs = decompressed(tensors, entry)
        dtype = next(iter(theirs.values())).dtype
        told(f"ours, {form}, read by theirs in {NAMES[dtype]}", command.restored(out, dtype), theirs)


def theirs_read_by_ours(command: Command) -> None:
    random = torch.Generator().manual_seed(1)
    for bits in range(2, 9):
        for symmetric in (True, False):
            weight = torch.randn(40, 96, generator=random)
            settings = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": 32}
            scale = torch.rand(40, 3, generator=random) / 2**bits + 0.01
            low = -(2 ** (bits - 1))
            zero = torch.randint(low, -low, (40, 3), generator=random, dtype=torch.int8)
            state = {"weight": weight, "weight_scale": scale} | ({} if symmetric else {"weight_zero_point": zero})
            packed(command, f"pack-quantized, {bits} bits{'' if symmetric else ', zero points'}", "pack-quantized", settings, state)
    weight = torch.randn(40, 96, generator=random)
    nvfp4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
    scales = {"weight_scale": torch.rand(40, 6, generator=random) * 400 + 1, "weight_global_scale": torch.tensor([900.0])}
    packed(command, "nvfp4-pack-quantized", "nvfp4-pack-quantized", nvfp4, {"weight": weight} | scales)
    mxfp4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    powers = 2.0 ** torch.randint(-6, 2, (40, 3), generator=random).float()
    packed(command, "mxfp4-pack-quantized", "mxfp4-pack-quantized", mxfp4, {"weight": weight, "weight_scale": powers})
    mxfp8 = mxfp4 | {"num_bits": 8}
    packed(command, "mxfp8-quantized", "mxfp8-quantized", mxfp8, {"weight": weight, "weight_scale": powers / 64})
    for name, strategy, shape in (("row", "channel", (40, 1)), ("tensor", "tensor", (1,))):
        scale = torch.rand(*shape, generator=random) / 50 + 0.01
        for form, kind in (("int-quantized", "int"), ("float-quantized", "float")):
            settings = {"num_bits": 8, "type": kind, "strategy": strategy}
            packed(command, f"{form}, a scale for each {name}", form, settings, {"weight": weight, "weight_scale": scale})
    blocks = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    weight, scale = torch.randn(200, 300, generator=random), torch.rand(2, 3, generator=random) / 50 + 0.01
    packed(command, "float-quantized, blocks", "float-quantized", blocks, {"weight": weight, "weight_scale": scale})

    experts = {
        "e.gate_up_proj_blocks": torch.randint(0, 256, (3, 64, 2, 16), generator=random, dtype=torch.uint8),
        "e.gate_up_proj_scales": torch.randint(110, 135, (3, 64, 2), generator=random, dtype=torch.uint8),
    }
    source = checkpoint(command.folder / "gpt-oss", experts, {"quant_method": "mxfp4"})
    theirs = {"e.gate_up_proj": convert_moe_packed_tensors(*experts.values())}
    told("theirs, gpt-oss, read by ours in bf16", command.restored(source, torch.bfloat16), theirs)

    for bits in (2, 3, 4, 8):
        words = lambda *shape: torch.randint(-(2**31), 2**31, shape, generator=random, dtype=torch.int64).int()
        rows, columns, groups = 64, 128, 4
        tensors = {
            "l.qweight": words(columns * bits // 32, rows),
            "l.qzeros": words(groups, rows * bits // 32),
            "l.scales": (torch.rand(groups, rows, generator=random) / 10).half(),
            "l.g_idx": torch.randint(0, groups, (columns,), generator=random, dtype=torch.int32),
        }
        entry = {"quant_method": "gptq", "bits": bits, "group_size": 32, "sym": False, "desc_act": True}
        source = checkpoint(command.folder / f"gptq-{bits}", tensors, entry)
        ours, theirs = command.restored(source, torch.float32), gptq_layer(tensors, "l", bits, 32)
        # Their zero point of the highest stored code is 2^bits, AutoGPTQ's and ours is 0.
        stored = torch.stack([bits_of(tensors["l.qzeros"], n * bits, bits) for n in range(rows)])
        plain = (stored != 2**bits - 1)[:, tensors["l.g_idx"].long()]
        told(f"theirs, gptq, {bits} bits in a random order, read by ours in f32", {"l": ours["l.weight"][plain]}, {"l": theirs[plain]})


def gguf_read_by_ours(command: Command) -> None:
    random = numpy.random.default_rng(1)
    path = command.folder / "blocks.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    theirs = {}
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"):
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        values = random.standard_normal((6, 2 * elements), dtype=numpy.float32)
        try:
            blocks = gguf.quantize(values, kind)
        except NotImplementedError:
            # The package only reads these: random blocks, with scales in f16 that are numbers.
            blocks = random.integers(0, 256, (12, size), dtype=numpy.uint8)
            for at in (size - 2,) if name == "Q6_K" else (0, 2):
                blocks[:, at : at + 2] = random.standard_normal((12, 1)).astype(numpy.float16).view(numpy.uint8)
            blocks = blocks.reshape(6, 2 * size)
        key = f"blk.0.{name.lower()}.weight"
        writer.add_tensor(key, blocks, raw_dtype=kind)
        theirs[key] = torch.from_numpy(gguf.dequantize(blocks, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    out = command.folder / "blocks.safetensors"
    command.run("dequantize", path, "-o", out, "--dtype", "f32", "--device", "emulator")
    ours = load_file(out)
    for key, value in theirs.items():
        told(f"theirs, gguf {key.split('.')[2]}, read by ours in f32", ours, {key: value})


def bits_of(words: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """Bits of the stream of words in each row."""
    wide = words.long() & 0xFFFFFFFF
    bit = lambda at: wide[:, at // 32] >> at % 32 & 1
    return sum(bit(start + at) << at for at in range(count))


def packed(command: Command, what: str, form: str, settings: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
    """Compresses by compressed-tensors, and decompresses by both."""
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs.model_validate(settings))
    stored = compressor(form).compress(dict(state), scheme)
    entry = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {"weights": settings}}}
    name = "".join(letter if letter.isalnum() else "-" for letter in what)
    source = checkpoint(command.folder / name, {f"l.{key}": value for key, value in stored.items()}, entry)
    theirs = compressor(form).decompress(dict(stored), scheme)["weight"]
    told(f"theirs, {what}, read by ours in {NAMES[theirs.dtype]}", command.restored(source, theirs.dtype), {"l.weight": theirs})


def loaded_by_transformers(command: Command) -> None:
    tokens = torch.arange(24).reshape(2, 12) % 96
    for form in FORMATS:
        # The loaders of GPTQ and AWQ need kernels of a GPU. compressed-tensors 0.20 packs zero points, as 1. has seen, but the model
        # that it has transformers load into has room for those that are not packed.
        if form.startswith(("gptq", "awq")) or "--asymmetric" in form:
            continue
        source = command.folder / form.replace(" ", "")
        options = {"quantization_config": transformers.FineGrainedFP8Config(dequantize=True)} if form == "fp8" else {}
        with torch.no_grad():
            theirs = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, **options)(tokens).logits
            command.restored(source, torch.bfloat16)
            plain = command.folder / f"{source.name}-bf16"
            ours = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)(tokens).logits
        told(f"logits of transformers, {form}", {"logits": ours}, {"logits": theirs})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warpwright", type=Path, default=Path("target/release/warpwright"))
    parser.add_argument("--keep", type=Path, help="a folder that is to hold the files, and does not exist")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(exist_ok=args.keep is None)
        command = Command(args.warpwright.resolve(), folder)
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=96, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
        )
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        model.save_pretrained(folder / "model")
        ours_read_by_theirs(command, folder / "model")
        theirs_read_by_ours(command)
        gguf_read_by_ours(command)
        loaded_by_transformers(command)
    print("all the same" if failures == 0 else f"{failures} lines differ")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
