"""How `patch` and the compiler's backend are told of kinds, and their tables of what was replaced."""

from __future__ import annotations

from collections import Counter
from typing import Any, Collection, Iterable, List, Sequence, Set, Tuple

from .._errors import ArgumentError, ParameterError


def expect_names(op: str, argument: str, given: Any, expected: str) -> Set[str]:
    """A set of names, as `expected` calls them."""
    if isinstance(given, str) or not isinstance(given, Collection) or not all(isinstance(name, str) for name in given):
        raise ArgumentError(f"{op}: {argument} is {given!r}, expected {expected}", op=op, argument=argument, expected=expected, got=given)
    return set(given)


def expect_kinds(op: str, argument: str, given: Any, kinds: Tuple[str, ...], others: Collection[str] = (), or_others: str = "") -> Set[str]:
    """A set of names of kinds, or of others that there are."""
    names = expect_names(op, argument, given, "a set of names")
    for name in given:
        if name not in kinds and name not in others:
            message = f"{op}: {argument} has {name!r}, expected kinds ({', '.join(kinds)}){or_others}"
            raise ParameterError(message, op=op, argument=argument, expected=kinds, got=name)
    return names


def table(head: Sequence[str], lines: Iterable[Sequence[str]], replaced: List[str]) -> str:
    """Lines below a head, and how many were replaced, of which kinds."""
    rows = [head, *lines]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
    aligned = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths)), row[-1]]).rstrip() for row in rows]
    named = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(replaced).items())) or "nothing"
    return "\n".join([*aligned, "", f"{len(replaced)} of {len(rows) - 1} replaced: {named}"])
