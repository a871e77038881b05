#!/usr/bin/env python3
"""Trains models with PyTorch's operators and with ours (`warpwright.torch.patch`, and as a backend of `torch.compile`), and compares the curves of their losses.

    python3 bench/curves.py --out bench/data/models/NAME.jsonl [--models "gpt2;resnet50"] [--variants "eager;patched"] [--steps 500]

All runs of a model begin with the same weights of f32 and read the same batches in the same order, under autocast to the type of the model; AdamW makes the
steps. Language models read the bytes of this project's sources, others random inputs that come again. Training amplifies any difference of rounding, so
the measure of a distance is how far a run comes from itself: those that are `nudged` begin with weights that differ by 2^-20 of each. A line of the output
is a run: the mean loss of every so many steps, and the largest difference from `eager` among these means, as a part of eager's (of a tenth of its first,
where it is less). A run is off if that is more than twice the distance of those that are nudged and more than 1 %, or if one with a CUDA graph has other
bits than the same without. --tiny trains small models on the CPU for a few steps, ours in the emulator, to see that everything works.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import sys
from pathlib import Path
from typing import Any, Callable

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import models  # noqa: E402
from comparison import sources  # noqa: E402
from comparison.contender import installed  # noqa: E402
from comparison.lab import PACKAGES, about  # noqa: E402
from comparison.zoo import MODELS, Model  # noqa: E402

VARIANTS = ("eager", "eager, nudged", "patched", "patched, nudged", "patched+graphs", "backend")
NUDGED = {"eager, nudged": "eager", "patched, nudged": "patched"}
# The same work in the same order: results have the same bits.
SAME_BITS = {"patched+graphs": "patched"}
NUDGE = 2.0**-20
# Means of so many steps are compared.
WINDOW = 20
# How far a curve may be from eager's, as a part of it, and beside a nudged one.
NEAR, FACTOR = 0.01, 2.0
BATCHES = 16
# Bytes that language models read; the smallest vocabulary of --tiny has fewer.
SYMBOLS = 61


class Run:
    """A model in training. Calling it makes a step."""

    def __init__(self, model: Model, variant: str, args: argparse.Namespace) -> None:
        self.model, self.device = model, args.device
        torch.manual_seed(7)
        with torch.device(self.device):
            self.module, first = model.make(args.tiny)
        self.module.to(device=self.device, **self._form()).train()
        if variant in NUDGED:
            with torch.no_grad():
                for parameter in self.module.parameters():
                    parameter.mul_(1 + NUDGE)
        read = torch.tensor(list(sources.text(HERE.parent))) if "input_ids" in first else None
        self.batches = [self._batch(args, read, seed) for seed in range(BATCHES if args.steps > BATCHES else 2)]
        # What a graph reads has one place.
        self.inputs = {name: value.clone() for name, value in self.batches[0].items()}
        if variant.startswith("patched"):
            import warpwright.torch as wt
            from warpwright.torch._patch import SOURCES

            wt.patch(self.module, emulator=args.tiny, sources=(*SOURCES, "comparison"))
        self.called = self.module
        if variant == "backend":
            torch._dynamo.reset()
            self.called = models.compiled(self.module, "backend", args)
        on_gpu = self.device != "cpu"
        self.optimiser = torch.optim.AdamW(self.module.parameters(), args.lr, capturable=on_gpu)
        self.step: Callable[[], Any] = self._step
        if variant.endswith("+graphs") and on_gpu:
            import warpwright.torch as wt

            self.step = wt.graphed(self._step)

    def _form(self) -> dict[str, Any]:
        return {"memory_format": torch.channels_last} if self.model.channels_last else {}

    def _batch(self, args: argparse.Namespace, read: Any, seed: int) -> dict[str, Any]:
        """Inputs for a step, which come again, so that there is something to learn."""
        torch.manual_seed(1000 + seed)
        with torch.device(self.device):
            _, inputs = self.model.make(args.tiny)
        if read is not None:
            count, length = inputs["input_ids"].shape
            begins = torch.randint(len(read) - length, (count, 1), device="cpu")
            inputs["input_ids"] = inputs["labels"] = read[begins + torch.arange(length)] % SYMBOLS
        placed = {name: value.to(self.device) for name, value in inputs.items()}
        return {name: v.contiguous(**self._form()) if v.dim() == 4 else v for name, v in placed.items()}

    def _step(self) -> Any:
        half = self.model.factors == "bf16"
        with torch.autocast(self.device, torch.bfloat16) if half else contextlib.nullcontext():
            _, loss = self.model.loss(self.called, self.inputs)
        self.optimiser.zero_grad(set_to_none=False)
        loss.backward()
        self.optimiser.step()
        return loss.detach()

    def __call__(self, at: int) -> Any:
        for name, value in self.batches[at % len(self.batches)].items():
            self.inputs[name].copy_(value)
        return self.step().float().clone()


def curve(model: Model, variant: str, args: argparse.Namespace) -> list[float]:
    """The losses of a run."""
    run = Run(model, variant, args)
    return torch.stack([run(at) for at in range(args.steps)]).tolist()


def means(losses: list[float]) -> list[float]:
    return [sum(part) / len(part) for part in (losses[at : at + WINDOW] for at in range(0, len(losses), WINDOW))]


def apart(found: list[float], wanted: list[float]) -> float:
    """The largest difference of two curves, as a part of the second, or of a tenth of its first mean; infinite where a loss is no number."""
    wanted = means(wanted)
    distances = [abs(f - w) / max(abs(w), 0.1 * abs(wanted[0])) for f, w in zip(means(found), wanted)]
    return max((d if d == d else float("inf") for d in distances), default=0.0)


def verdict(losses: dict[str, list[float]], variant: str) -> str:
    """Nothing if a run is as it should be, or why it is not."""
    same = SAME_BITS.get(variant)
    if same in losses and losses[variant] != losses[same]:
        first = next(at for at, (a, b) in enumerate(zip(losses[variant], losses[same])) if a != b)
        return f"other bits than {same} from step {first} on"
    if variant.startswith("eager") or "eager" not in losses:
        return ""
    nudges = [apart(losses[nudged], losses[plain]) for nudged, plain in NUDGED.items() if nudged in losses and plain in losses]
    limit = max([NEAR, *(FACTOR * nudge for nudge in nudges)])
    distance = apart(losses[variant], losses["eager"])
    return f"{distance:.2%} from eager, at most {limit:.2%} expected" if distance > limit else ""


def train(model: Model, args: argparse.Namespace, take: Callable[[dict[str, Any]], None]) -> None:
    losses: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    for variant in args.variants:
        try:
            losses[variant] = curve(model, variant, args)
        except Exception as e:  # One that fails says so, and the others go on.
            failed[variant] = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0][:300]}"
        gc.collect()
        if args.device != "cpu":
            torch.cuda.empty_cache()
    # What is far follows from all of them.
    for variant in args.variants:
        row: dict[str, Any] = {"model": model.name, "dtype": model.factors, "variant": variant, "steps": args.steps, "lr": args.lr}
        row["off"] = failed[variant] if variant in failed else verdict(losses, variant)
        if variant in losses:
            row["losses"] = [float(f"{loss:.5g}") for loss in means(losses[variant])]
        if variant in losses and "eager" in losses:
            row["apart"] = float(f"{apart(losses[variant], losses['eager']):.3g}")
        take(row)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda text: [part.strip() for part in text.split(";")], default=["gpt2", "llama", "vit", "resnet50", "mamba"], help="those whose names begin so, with ; between them")
    parser.add_argument("--variants", type=lambda text: [part.strip() for part in text.split(";")], default=list(VARIANTS), help=f"of {'; '.join(VARIANTS)}, with ; between them")
    parser.add_argument("--steps", type=int, default=500, help="steps of a run")
    parser.add_argument("--lr", type=float, default=1e-4, help="learning rate")
    parser.add_argument("--out", type=Path, help="write JSON lines here")
    parser.add_argument("--commit", default=None, help="what to record; by default git's HEAD")
    parser.add_argument("--tiny", action="store_true", help="small models on the CPU")
    args = parser.parse_args()
    args.device = "cpu" if args.tiny else "cuda"
    # What the backend replaces by itself.
    args.enable, args.disable = set(), set()
    for variant in args.variants:
        if variant not in VARIANTS:
            parser.error(f"variant {variant!r}, expected one of {', '.join(VARIANTS)}")
    chosen = [m for m in MODELS if m.training and m.factors != "tf32" and any(m.name.startswith(name) for name in args.models)]
    if not chosen:
        parser.error(f"no model that is trained begins with {' or '.join(args.models)}")
    lab = about((*PACKAGES, "transformers", "timm")) if not args.tiny else {"gpu": "CPU", "driver": "", "versions": {}}
    made_by = {**lab, "commit": sources.commit() if args.commit is None else args.commit, "date": datetime.date.today().isoformat()}
    off = 0

    def take(row: dict[str, Any]) -> None:
        nonlocal off
        off += bool(row["off"])
        ends = f"{row['losses'][0]:9.4f}{row['losses'][-1]:9.4f}{row.get('apart', 0):9.2%}" if "losses" in row else " " * 27
        print(f"{row['model']:<28}{row['dtype']:<6}{row['variant']:<16}{ends}  {row['off'] or 'ok'}", flush=True)
        if args.out:
            with open(args.out, "a", encoding="utf-8") as out:
                out.write(json.dumps(row | made_by) + "\n")

    print(f"{'model':<28}{'dtype':<6}{'variant':<16}{'first':>9}{'last':>9}{'apart':>9}", flush=True)
    for model in chosen:
        if installed(model.needs):
            train(model, args, take)
        else:
            print(f"{model.name}: left out, {model.needs} is not installed", flush=True)
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
