"""Helpers of the functions of several files."""

from typing import Any, Callable


def given(kind: Callable[..., Any], array: Any) -> Any:
    """An array as an operand of a kind, if there is one."""
    return None if array is None else kind(array)


def from_end(axis: int, rank: int) -> int:
    """A dimension counted from the last one, so that it stays where it is when others come before it."""
    return axis - rank if 0 <= axis < rank else axis
