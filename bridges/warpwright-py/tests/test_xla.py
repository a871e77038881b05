"""The functions behind XLA's custom calls, called as XLA calls them, without JAX: on the host, and on a GPU if there is one."""

from __future__ import annotations

import ctypes as c
import json

import numpy as np
import pytest

import warpwright as ww
from warpwright import _native

POINTER, SIZE, INT, LONG = c.c_void_p, c.c_size_t, c.c_int32, c.c_int64
F32, S32 = 11, 4
INSTANTIATE, EXECUTE = 0, 3


class Struct(c.Structure):
    """A structure that begins with its size and a list of extensions."""

    def __init__(self, **fields):
        super().__init__(struct_size=c.sizeof(type(self)), **fields)


def struct(name, *fields, base=Struct, head=True):
    begin = [("struct_size", SIZE), ("extension", POINTER)] if head else []
    return type(name, (base,), {"_fields_": begin + list(fields)})


Extension = struct("Extension", ("struct_size", SIZE), ("kind", INT), ("next", POINTER), head=False)
Version = struct("Version", ("major", INT), ("minor", INT))
Metadata = struct("Metadata", ("struct_size", SIZE), ("version", Version), ("traits", c.c_uint32), ("state", LONG), head=False)
Found = struct("Found", ("base", Extension), ("metadata", c.POINTER(Metadata)), base=c.Structure, head=False)
ErrorArgs = struct("ErrorArgs", ("message", c.c_char_p), ("code", INT))
StreamArgs = struct("StreamArgs", ("context", POINTER), ("stream", POINTER))
AllocateArgs = struct("AllocateArgs", ("context", POINTER), ("size", SIZE), ("alignment", SIZE), ("data", POINTER))
FreeArgs = struct("FreeArgs", ("context", POINTER), ("size", SIZE), ("data", POINTER))
Buffer = struct("Buffer", ("dtype", INT), ("data", POINTER), ("rank", LONG), ("dims", c.POINTER(LONG)))
Span = struct("Span", ("data", c.c_char_p), ("len", SIZE), base=c.Structure, head=False)
Buffers = struct("Buffers", ("size", LONG), ("kinds", c.POINTER(INT)), ("items", c.POINTER(c.POINTER(Buffer))))
Attributes = struct("Attributes", ("size", LONG), ("kinds", c.POINTER(INT)), ("names", c.POINTER(c.POINTER(Span))), ("items", c.POINTER(POINTER)))
FUNCTIONS = ("create", "message", "destroy", "register", "stream", "type", "context", "set", "get", "allocate", "free")
Api = struct("Api", ("version", Version), ("internal", POINTER), *((name, POINTER) for name in FUNCTIONS))
Frame = struct(
    "Frame", ("api", c.POINTER(Api)), ("context", POINTER), ("stage", INT), ("arguments", Buffers), ("results", Buffers),
    ("attributes", Attributes), ("future", POINTER),
)
CALLBACK = c.CFUNCTYPE(POINTER, POINTER)


class Host:
    """Arrays of numpy."""

    which, stream = 0, None

    def take(self, array):
        return array.ctypes.data

    def give_back(self, address, array):
        pass

    allocate = free = None


class Cuda:
    """Copies on GPU 0, by the driver."""

    which = 1

    def __init__(self):
        try:
            self.driver = c.CDLL("libcuda.so.1")
        except OSError:
            pytest.skip("there is no NVIDIA driver")
        device, context, stream = INT(), POINTER(), POINTER()
        if self.driver.cuInit(0) or self.driver.cuDeviceGet(c.byref(device), 0):
            pytest.skip("the driver has no GPU")
        self.do("cuDevicePrimaryCtxRetain", c.byref(context), device)
        self.do("cuCtxSetCurrent", context)
        self.do("cuStreamCreate", c.byref(stream), 1)
        self.stream = stream.value

    def do(self, name, *arguments):
        assert getattr(self.driver, name)(*arguments) == 0, name

    def allocate(self, size):
        address = c.c_uint64()
        self.do("cuMemAlloc_v2", c.byref(address), SIZE(max(size, 1)))
        return address.value

    def free(self, address):
        self.do("cuStreamSynchronize", POINTER(self.stream))
        self.do("cuMemFree_v2", c.c_uint64(address))

    def take(self, array):
        address = self.allocate(array.nbytes)
        self.do("cuMemcpyHtoD_v2", c.c_uint64(address), POINTER(array.ctypes.data), SIZE(array.nbytes))
        return address

    def give_back(self, address, array):
        self.do("cuStreamSynchronize", POINTER(self.stream))
        self.do("cuMemcpyDtoH_v2", POINTER(array.ctypes.data), c.c_uint64(address), SIZE(array.nbytes))
        self.free(address)


class Xla:
    """As much of XLA as a call sees. held: memory that a call has allocated and not freed; errors: codes and messages."""

    def __init__(self, place, version=(0, 1)):
        self.place, self.held, self.errors, self.sizes = place, {}, [], []
        self.api = Api(version=Version(major=version[0], minor=version[1]))
        self.callbacks = [CALLBACK(f) for f in (self.create, self.stream, self.allocate, self.free)]
        for name, callback in zip(("create", "stream", "allocate", "free"), self.callbacks):
            setattr(self.api, name, c.cast(callback, POINTER))

    def create(self, args):
        args = ErrorArgs.from_address(args)
        self.errors.append((args.code, args.message.decode()))
        return 1

    def stream(self, args):
        StreamArgs.from_address(args).stream = self.place.stream
        return 0

    def allocate(self, args):
        args = AllocateArgs.from_address(args)
        # More is an error of XLA.
        assert args.alignment <= 16
        args.data = self.place.allocate(args.size)
        self.held[args.data] = args.size
        self.sizes.append(args.size)
        return 0

    def free(self, args):
        args = FreeArgs.from_address(args)
        assert self.held.pop(args.data) == args.size
        self.place.free(args.data)
        return 0

    def call(self, text, arguments, results, stage=EXECUTE, name=b"call"):
        """Whether a call on arrays does not fail."""
        arrays = [*arguments, *results]
        addresses = [self.place.take(a) for a in arrays]
        dims = [(LONG * a.ndim)(*a.shape) for a in arrays]
        kinds = {np.dtype(np.float32): F32, np.dtype(np.int32): S32}
        buffers = [
            Buffer(dtype=kinds[a.dtype], data=at, rank=a.ndim, dims=d) for a, at, d in zip(arrays, addresses, dims)
        ]

        def listed(some):
            n = len(some)
            return Buffers(size=n, kinds=(INT * n)(*[1] * n), items=(c.POINTER(Buffer) * n)(*map(c.pointer, some)))

        span, key = Span(data=text, len=len(text)), Span(data=name, len=len(name))
        attributes = Attributes(
            size=1, kinds=(INT * 1)(4), names=(c.POINTER(Span) * 1)(c.pointer(key)), items=(POINTER * 1)(c.addressof(span))
        )
        split = len(arguments)
        frame = Frame(
            api=c.pointer(self.api), stage=stage, arguments=listed(buffers[:split]), results=listed(buffers[split:]),
            attributes=attributes,
        )
        failed = CALLBACK(_native.xla_handlers()[self.place.which])(c.addressof(frame))
        for address, array in zip(addresses, arrays):
            self.place.give_back(address, array)
        assert not self.held and bool(failed) == bool(self.errors)
        return not failed


@pytest.fixture(params=[Host, Cuda])
def place(request):
    return request.param()


def text(function, *arguments, **keywords):
    return json.dumps([function, arguments, keywords]).encode()


X = np.linspace(-2, 2, 4 * 96, dtype=np.float32).reshape(4, 96)
W = np.linspace(0.5, 1.5, 96, dtype=np.float32)


def test_metadata():
    metadata = Metadata()
    found = Found(base=Extension(kind=1), metadata=c.pointer(metadata))
    for handler in _native.xla_handlers():
        frame = Frame(extension=c.addressof(found))
        metadata.traits = 7
        assert not CALLBACK(handler)(c.addressof(frame))
        assert (metadata.version.major, metadata.version.minor, metadata.traits) == (0, 1, 0)


def test_results_are_those_of_the_function(place):
    xla, y = Xla(place), np.empty_like(X)
    for _ in range(2):
        assert xla.call(text("layer_norm", {"array": 0}, [96], {"array": 1}, None, eps=1e-3), [X, W], [y]), xla.errors
        np.testing.assert_allclose(y, ww.layer_norm(X, 96, W, eps=1e-3), rtol=2e-6, atol=2e-6)


def test_scratch_memory_is_given_back(place):
    xla, y = Xla(place), np.empty_like(X)
    a = np.ascontiguousarray(X.reshape(1, 4, 96))
    dx, dw, db, mean, rstd = np.empty_like(X), np.empty_like(W), np.empty_like(W), *np.empty((2, 4), np.float32)
    norm = text("layer_norm", {"array": 0}, [96], {"array": 1}, {"array": 1}, statistics=True)
    assert xla.call(norm, [X, W], [y, mean, rstd]), xla.errors
    back = text("layer_norm_backward", *({"array": n} for n in range(4)), [96], {"array": 4}, True)
    assert xla.call(back, [X, X, mean, rstd, W], [dx, dw, db]), xla.errors
    for a, b in zip((dx, dw, db), ww.layer_norm_backward(X, X, mean, rstd, 96, W, True)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    # The sums of parts of the rows lie there on a GPU, whose memory XLA allocates.
    assert bool(xla.sizes) == (place.which == 1)


def test_transposed_factors(place):
    xla, y = Xla(place), np.empty((4, 4), np.float32)
    assert xla.call(text("matmul", {"array": 0}, {"array": 1, "mT": True}), [X, X.copy()], [y]), xla.errors
    np.testing.assert_allclose(y, X @ X.T, rtol=1e-5)


def test_refusals(place):
    relu, before = text("relu", {"array": 0}), np.full_like(X, 7)
    cases = [
        (relu, [X], [np.empty((4, 95), np.float32)], "results are"),
        (relu, [X], [], "results are"),
        (relu, [np.zeros((4, 96), np.int32)], [before], "i32"),
        (text("no function", {"array": 0}), [X], [before], "no function"),
        (b"no text", [X], [before], "warpwright"),
        (b"\xff", [X], [before], "is no text"),
        (text("layer_norm", {"array": 0}, [95]), [X], [before], "normalized_shape"),
        (text("relu", {"array": 0}, out={"array": 0}), [X], [before], "read-only"),
    ]
    for call, arguments, results, message in cases:
        xla = Xla(place)
        assert not xla.call(call, arguments, results)
        assert message in xla.errors[0][1], xla.errors
    assert (before == 7).all()
    xla = Xla(place)
    assert not xla.call(relu, [X], [before], name=b"other") and "no attribute" in xla.errors[0][1]
    xla = Xla(place, version=(0, 0))
    assert not xla.call(relu, [X], [before]) and "version 0.0" in xla.errors[0][1]
    assert (before == 7).all()


def test_other_stages_do_nothing(place):
    xla, y = Xla(place), np.full_like(X, 7)
    assert xla.call(text("relu", {"array": 0}), [X], [y], stage=INSTANTIATE)
    assert (y == 7).all()
