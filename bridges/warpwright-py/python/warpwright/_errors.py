"""The exceptions of warpwright. Each carries what the message says as data."""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """Base of all.

    op: the operation; argument: the argument concerned; expected, got: what it should be and what it is. Each is None
    where it does not apply.
    """

    def __init__(
        self,
        message: str = "",
        *,
        op: str | None = None,
        argument: str | None = None,
        expected: Any = None,
        got: Any = None,
        remarks: Any = (),
    ) -> None:
        super().__init__(message)
        self.op = op
        self.argument = argument
        self.expected = expected
        self.got = got
        self.remarks = list(remarks)


class ShapeError(Error, ValueError):
    """An array has the wrong shape or number of elements; expected and got are tuples, or numbers of elements."""


class DtypeError(Error, TypeError):
    """An array has the wrong element type; expected is its name, or a tuple of names."""


class DeviceError(Error, RuntimeError):
    """An array or a stream is on the wrong device, or there is no such device; expected and got are names as "cuda:0"."""


class LayoutError(Error, ValueError):
    """An array is not contiguous where it must be, read-only, misaligned, or overlaps another one."""


class ParameterError(Error, ValueError):
    """A number or name that the operation has no meaning for."""


class RankError(ParameterError):
    """Processes that call an operation together give it arguments that do not go together; rank: the process of the group whose
    argument differs from that of rank 0."""

    def __init__(self, message: str = "", *, rank: int | None = None, **data: Any) -> None:
        super().__init__(message, **data)
        self.rank = rank


class ArgumentError(Error, TypeError):
    """An argument is of the wrong kind, missing, or given where there is none."""


class OutOfMemoryError(Error, MemoryError):
    """Device memory is used up; expected is the number of bytes asked for, got the number free."""


class KernelError(Error, RuntimeError):
    """A kernel could not be compiled or launched, failed on the GPU, or was found defective by the emulator."""


class PtxError(Error, ValueError):
    """A PTX text cannot be run; remarks holds what `lint` says of it."""


def refused(op: str, argument: str, got: Any, expected: str) -> ParameterError:
    """The error of an argument that is `got`."""
    message = f"{op}: {argument} is {got!r}, expected {expected}"
    return ParameterError(message, op=op, argument=argument, expected=expected, got=got)


def misshapen(op: str, argument: str, got: Any, expected: Any) -> ShapeError:
    """The error of an array of shape `got`."""
    message = f"{op}: {argument} has shape {list(got)}, expected {list(expected)}"
    return ShapeError(message, op=op, argument=argument, expected=tuple(expected), got=tuple(got))


def misranked(op: str, argument: str, got: int, expected: Any) -> ShapeError:
    """The error of an array of `got` dimensions."""
    message = f"{op}: {argument} has {got} dimensions, expected {expected}"
    return ShapeError(message, op=op, argument=argument, expected=expected, got=got)


def renamed(error: Error, op: str, **names: str) -> Error:
    """The error of a native function as one of `op`, whose arguments have these names, with `.mT` behind those that the native
    function takes transposed."""
    start = f"{error.op}: {error.argument} "
    if (error.op == op and error.argument not in names) or not str(error).startswith(start):
        return error
    name, _, transposed = names.get(error.argument, error.argument).partition(".")
    rest, expected, got = str(error)[len(start) :], error.expected, error.got
    if transposed and isinstance(error, ShapeError) and isinstance(expected, tuple) and min(len(expected), len(got)) > 1:
        expected, got = ((*shape[:-2], shape[-1], shape[-2]) for shape in (expected, got))
        rest = f"has shape {list(got)}, expected {list(expected)}"
    return type(error)(f"{op}: {name} {rest}", op=op, argument=name, expected=expected, got=got)
