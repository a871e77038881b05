"""A contender: a function without arguments that leaves its results in tensors, and returns them. Where a call
spoils its inputs, its attribute `check` is a function that restores them first."""

from __future__ import annotations

import importlib.util
from typing import Any, Callable

Contender = Callable[[], Any]


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
