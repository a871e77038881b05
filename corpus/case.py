"""A kernel, what it is given, and what it must compute."""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class In:
    """An array that the kernel reads."""

    array: np.ndarray


@dataclass
class Out:
    """An array that the kernel writes; `start` is what it holds before, poison if there is nothing."""

    want: np.ndarray
    start: np.ndarray = None
    tolerance: float = 0.0  # relative to the largest magnitude of the wanted array; 0 compares bits
    order: bool = False  # the order of the elements is open


@dataclass
class Scalar:
    """A number by value: u32, s32, u64, s64, f32 or f64."""

    kind: str
    value: object


@dataclass
class Case:
    name: str
    entry: str
    args: list
    grid: tuple = (1, 1, 1)
    block: tuple = (32, 1, 1)
    cluster: tuple = (1, 1, 1)
    shared: int = 0
    prints: list = None  # lines that the kernel prints, in any order
    fault: str = None  # the launch must end with a fault whose text contains this
    targets: tuple = None  # targets that the kernel can be built for; all by default
    notes: str = ""
    sanitize: str = "all"
    text: str = field(default=None, repr=False)  # PTX, where the case makes its own


def agree(want, got, tolerance):
    """Whether an array is what was wanted, and how far it is from it."""
    if tolerance == 0:
        same = want.tobytes() == got.tobytes()
        return same, 0.0 if same else float("nan")
    w, g = want.astype(np.float64), got.astype(np.float64)
    if not np.array_equal(np.isnan(w), np.isnan(g)):
        return False, float("nan")
    scale = max(float(np.nanmax(np.abs(w))), 1e-30) if w.size else 1.0
    error = float(np.nanmax(np.abs(w - g))) / scale if w.size else 0.0
    return error <= tolerance, error
