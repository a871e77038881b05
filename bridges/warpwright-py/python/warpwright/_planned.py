"""Calls of native functions as texts: the function, and its arguments with numbers in place of arrays.

A text says the same in every process, so that it may be kept in a compiled program. The native module finds what it has planned for a
text by the text; what it has not planned, it plans through `evaluate`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Sequence

from . import _native

_ARRAY, _TRANSPOSED = "array", "mT"


@dataclass(frozen=True)
class Operand:
    """An array of a call. transposed: the function is to see its last two dimensions exchanged."""

    array: Any
    transposed: bool = False


def encode(function: str, arguments: Sequence[Any], keywords: dict[str, Any]) -> tuple[str, list[Operand]]:
    """A call as a text, and its operands in the order of their numbers."""
    operands: list[Operand] = []

    def encoded(value: Any) -> Any:
        if isinstance(value, Operand):
            operands.append(value)
            number = {_ARRAY: len(operands) - 1}
            return {**number, _TRANSPOSED: True} if value.transposed else number
        return [encoded(v) for v in value] if isinstance(value, (list, tuple)) else value

    call = [function, encoded(arguments), {name: encoded(value) for name, value in sorted(keywords.items())}]
    return json.dumps(call, separators=(",", ":")), operands


def evaluate(text: str, arrays: Sequence[Any]) -> tuple[list[Any], Any]:
    """Makes a call on these arrays. Its results, and how they hang together: numbers of results in tuples, and None."""
    function, arguments, keywords = json.loads(text)

    def decoded(value: Any) -> Any:
        if isinstance(value, dict):
            array = arrays[value[_ARRAY]]
            return array.mT if _TRANSPOSED in value else array
        return tuple(decoded(v) for v in value) if isinstance(value, list) else value

    results: list[Any] = []

    def numbered(found: Any) -> Any:
        if found is None:
            return None
        if isinstance(found, (list, tuple)):
            return tuple(numbered(f) for f in found)
        results.append(found)
        return len(results) - 1

    found = getattr(_native, function)(*decoded(arguments), **{name: decoded(value) for name, value in keywords.items()})
    return results, numbered(found)
