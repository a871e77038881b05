"""Helpers of the functions of several files."""

import re
from typing import Any, Callable, TypeVar

from .. import _native

Function = TypeVar("Function", bound=Callable[..., Any])


def given(kind: Callable[..., Any], array: Any) -> Any:
    """An array as an operand of a kind, if there is one."""
    return None if array is None else kind(array)


def documented(function: Function, name: str, more: str) -> Function:
    """A function with the name of a native one, and its documentation with `more` behind it in place of what is said of `out`."""
    text = re.split(r"[.;]\s+`out`", getattr(_native, name).__doc__)[0].rstrip(".\n")
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{text}.\n\n{more}"
    return function


def no_gradient(op: str, argument: str) -> ValueError:
    """The error of a gradient that an operation does not give."""
    return ValueError(f"{op} gives no gradient of {argument}: pass jax.lax.stop_gradient({argument})")


def from_end(axis: int, rank: int) -> int:
    """A dimension counted from the last one, so that it stays where it is when others come before it."""
    return axis - rank if 0 <= axis < rank else axis
