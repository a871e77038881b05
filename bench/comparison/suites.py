"""Cases: what is measured, and the fewest bytes that it must move."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

SIZES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2}
GATED = ("swiglu", "geglu", "geglu_tanh")
GROUP = 64
NESTED_BLOCK = 256


@dataclass(frozen=True)
class Case:
    op: str
    case: str
    shape: tuple[int, ...]
    dtype: str
    direction: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Each input read once, each output written once."""
        n, size = self.elements, SIZES[self.dtype]
        groups = -(-n // GROUP)
        if self.op.endswith("_nested"):
            return n * 4 + n + -(-n // NESTED_BLOCK) * 4
        if "quantize" in self.op:
            packed = -(-n // 2) + groups * 4 + (groups if "asymmetric" in self.op else 0)
            return n * size + packed
        if self.op in GATED:
            return n * size * (3 if self.direction == "forward" else 5)
        return n * size * (2 if self.direction == "forward" else 3)

    def __str__(self) -> str:
        return f"{self.op} {self.direction} {self.dtype} {self.case}"


def load(path: Path, ops: list[str]) -> Iterator[Case]:
    """The cases of a file; of the operations named, if any are."""
    with open(path, "rb") as f:
        suites = tomllib.load(f)["suite"]
    for suite in suites:
        for dtype in suite["dtypes"]:
            for op in suite["ops"]:
                for direction in suite.get("directions", ["forward"]):
                    if not ops or op in ops:
                        yield Case(op, suite["case"], tuple(suite["shape"]), dtype, direction)
