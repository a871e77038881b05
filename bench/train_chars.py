#!/usr/bin/env python3
"""Trains a net of characters on this project's sources, with our LSTM and with PyTorch's.

    python3 bench/train_chars.py --out bench/data/sequences/NAME.jsonl [--steps 300] [--dtype f32 --dtype bf16]

Both begin with the same weights and read the same batches. A line of the output is a run: its losses (bits per character) and what
an epoch takes, from the median step of the second half of the run.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from comparison import sources  # noqa: E402

SYMBOLS = 128
# How far the means of the last tenth of both runs may be from each other, in bits.
CLOSE = 0.02


class Model(torch.nn.Module):
    def __init__(self, lstm: Any, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(SYMBOLS, width)
        self.lstm = lstm(width, hidden, layers)
        self.head = torch.nn.Linear(hidden, SYMBOLS)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(symbols))[0])


def text(folder: Path) -> torch.Tensor:
    """All sources, with what is not ASCII left out."""
    return torch.tensor([byte for byte in sources.text(folder) if byte < SYMBOLS], dtype=torch.int64)


def train(lstm: Any, corpus: torch.Tensor, args: argparse.Namespace, dtype: str) -> dict[str, Any]:
    """A run: losses, and milliseconds of a step."""
    torch.manual_seed(1)
    model = Model(lstm, args.width, args.hidden, args.layers).to(args.device)
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    chance = torch.Generator().manual_seed(2)
    places = torch.arange(args.places + 1)
    losses, times = [], []
    on_gpu = args.device == "cuda"
    for _ in range(args.steps):
        at = torch.randint(len(corpus) - args.places - 1, (args.batch,), generator=chance)
        batch = corpus[places[:, None] + at].to(args.device)
        start, end = (torch.cuda.Event(enable_timing=True) if on_gpu else None for _ in range(2))
        if start:
            torch.cuda.synchronize()
            start.record()
        with torch.autocast(args.device, torch.bfloat16, enabled=dtype == "bf16"):
            scores = model(batch[:-1])
        loss = F.cross_entropy(scores.float().flatten(0, 1), batch[1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if end:
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        losses.append(loss.detach())
    step_ms = statistics.median(times[len(times) // 2 :]) if times else None
    bits = [round(float(loss) / math.log(2), 4) for loss in losses]
    return {"bits": bits, "step_ms": step_ms}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write JSON lines here")
    parser.add_argument("--text", type=Path, default=HERE.parent, help="the project's folder")
    parser.add_argument("--dtype", action="append", choices=["f32", "bf16"], default=[])
    parser.add_argument("--device", default="cuda")
    for name, value in (("steps", 300), ("batch", 32), ("places", 128), ("width", 128), ("hidden", 512), ("layers", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()

    from warpwright.torch import nn

    torch.backends.cudnn.allow_tf32 = False
    corpus = text(args.text)
    epoch = len(corpus) / (args.batch * args.places)
    gpu = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    print(f"{gpu}, {len(corpus)} characters, {epoch:.0f} steps an epoch")
    sizes = {name: getattr(args, name) for name in ("batch", "places", "width", "hidden", "layers")}
    entries, apart = [], False
    for dtype in args.dtype or ["f32", "bf16"]:
        ends = []
        for who, lstm in (("warpwright", nn.LSTM), ("torch", torch.nn.LSTM)):
            run = train(lstm, corpus, args, dtype)
            bits, step_ms = run["bits"], run["step_ms"]
            ends.append(statistics.mean(bits[-max(1, len(bits) // 10) :]))
            epoch_s = step_ms * epoch / 1e3 if step_ms else None
            shown = " ".join(f"{b:.3f}" for b in bits[:: max(1, len(bits) // 10)])
            print(f"{dtype:<5}{who:<11} {ends[-1]:.4f} bits at the end; epoch {epoch_s} s; {shown}", flush=True)
            entry = {"who": who, "dtype": dtype, "gpu": gpu, "characters": len(corpus), **sizes, **run}
            entries.append(entry | {"epoch_s": epoch_s})
        apart |= not abs(ends[0] - ends[1]) <= CLOSE
    if args.out:
        args.out.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
