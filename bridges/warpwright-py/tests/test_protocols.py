"""Arrays of libraries that nobody has heard of, through the protocols alone."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest

import warpwright as ww


class Producer:
    """Speaks DLPack for a numpy array, with versions or as before there were any."""

    def __init__(self, array, versioned=True):
        self.array, self.versioned, self.calls = array, versioned, []

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **arguments):
        self.calls.append(arguments)
        if not self.versioned and "max_version" in arguments:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**arguments)


@pytest.mark.parametrize("versioned", [True, False])
def test_capsules_of_both_kinds(versioned, random):
    x = random.standard_normal((3, 5)).astype(np.float32)
    before = sys.getrefcount(x)
    producer = Producer(x, versioned)
    y = ww.relu(producer)
    np.testing.assert_array_equal(np.asarray(y), np.maximum(x, 0))
    # The host has no streams, so none is named.
    assert all("stream" not in call for call in producer.calls)
    assert producer.calls[0]["max_version"][0] == 1
    assert sys.getrefcount(x) - before == 1, "only the producer holds the array: the tensor was given back"


def test_memory_is_given_back_after_an_error_too():
    x = np.zeros((3, 5), dtype=np.int32)
    before = sys.getrefcount(x)
    for _ in range(10):
        with pytest.raises(ww.DtypeError):
            ww.relu(Producer(x))
        with pytest.raises(ww.ShapeError):
            ww.relu_backward(Producer(np.zeros(3, np.float32)), Producer(np.zeros(4, np.float32)))
    assert sys.getrefcount(x) == before


def test_out_of_another_library(random):
    x = random.standard_normal(32).astype(np.float32)
    y = Producer(np.zeros_like(x))
    assert ww.relu(x, out=y) is y
    np.testing.assert_array_equal(y.array, np.maximum(x, 0))


def test_read_only_memory_is_not_written():
    x = np.ones(4, dtype=np.float32)
    x.flags.writeable = False
    try:
        x.__dlpack__(max_version=(1, 0))
    except BufferError:
        pytest.skip("this numpy does not export read-only arrays")
    with pytest.raises(ww.LayoutError):
        ww.relu(np.ones(4, np.float32), out=Producer(x))


def test_broken_producers():
    class Nonsense(Producer):
        def __dlpack__(self, **arguments):
            return "no capsule"

    with pytest.raises(BufferError):
        ww.relu(Nonsense(np.ones(3, np.float32)))

    class Twice(Producer):
        def __init__(self, array):
            super().__init__(array)
            self.capsule = array.__dlpack__()

        def __dlpack__(self, **arguments):
            return self.capsule

    twice = Twice(np.ones(3, np.float32))
    ww.relu(twice)
    with pytest.raises(BufferError):
        ww.relu(twice)

    class Raises(Producer):
        def __dlpack__(self, **arguments):
            raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        ww.relu(Raises(np.ones(3, np.float32)))


def test_other_devices_are_refused():
    class Elsewhere(Producer):
        def __dlpack_device__(self):
            return (2, 99)

    # The capsule says where the memory is; a GPU that is announced is asked with a stream, which numpy refuses.
    with pytest.raises((ww.DeviceError, BufferError, RuntimeError, ValueError)):
        ww.relu(Elsewhere(np.ones(3, np.float32)))


def test_an_address_that_no_gpu_has():
    class Fake:
        __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}

    # Without a driver there is no device to look on; with one, the address is not among its memory.
    with pytest.raises(ww.DeviceError if ww.devices()[0]["device"] == "emulator" else ww.Error):
        ww.relu(Fake())


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Liar:
    """A producer whose tensor is what the test makes of it."""

    def __init__(self, data, extents, strides=None, ndim=None, device=(1, 0), announced=None, **fields):
        self.announced = announced or device
        self.keep = (ctypes.c_int64 * max(len(extents), 1))(*extents)
        self.steps = strides and (ctypes.c_int64 * max(len(strides), 1))(*strides)
        self.managed = DLManagedTensor()
        t = self.managed.tensor
        t.data, t.device_type, t.device_id = data, *device
        t.ndim, t.code, t.bits, t.lanes = len(extents) if ndim is None else ndim, 2, 32, 1
        t.shape = ctypes.cast(self.keep, ctypes.POINTER(ctypes.c_int64))
        if strides:
            t.strides = ctypes.cast(self.steps, ctypes.POINTER(ctypes.c_int64))
        for name, value in fields.items():
            setattr(t, name, value)

    def __dlpack_device__(self):
        return self.announced

    def __dlpack__(self, **arguments):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)


def test_producers_that_lie():
    memory = (ctypes.c_float * 8)(*range(-4, 4))
    at = ctypes.addressof(memory)
    np.testing.assert_array_equal(np.asarray(ww.relu(Liar(at, (8,)))), [0] * 5 + [1, 2, 3])
    assert np.asarray(ww.relu(Liar(None, (0, 3)))).shape == (0, 3)
    none = ctypes.POINTER(ctypes.c_int64)()
    for liar, kind, expected, got in [
        (Liar(None, (4,)), ww.LayoutError, "an address", 0),
        (Liar(None, (4,), byte_offset=64), ww.LayoutError, "an address", 0),
        (Liar(at, (-4,)), ww.ShapeError, "no negative number", -4),
        (Liar(at, (2, -(1 << 63))), ww.ShapeError, "no negative number", -(1 << 63)),
        (Liar(at, (0, -1)), ww.ShapeError, "no negative number", -1),
        (Liar(at, (4,), ndim=-1), ww.ShapeError, "no negative number", -1),
        (Liar(at, (4,), ndim=(1 << 31) - 1), ww.ShapeError, 8, (1 << 31) - 1),
        (Liar(at, (4,), shape=none), ww.ShapeError, 1, None),
        (Liar(at, (1 << 62,)), ww.ShapeError, None, None),
        (Liar(at, (1 << 40, 1 << 40)), ww.ShapeError, None, None),
        (Liar(at, (8,), strides=(-(1 << 60),)), ww.ShapeError, None, None),
        (Liar(at, (8,), strides=((1 << 62),)), ww.ShapeError, None, None),
        (Liar(at, (8,), byte_offset=(1 << 64) - 4), ww.ShapeError, None, None),
        (Liar(at, (8,), lanes=4), ww.DtypeError, ("f32", "f64", "f16", "bf16"), "float32x4"),
        (Liar(at, (8,), device=(2, -1), announced=(1, 0)), ww.DeviceError, "DLPack device 1:0", "DLPack device 2:-1"),
        (Liar(at, (8,), device=(7, 0)), ww.DeviceError, "cpu or cuda", "DLPack device 7:0"),
    ]:
        with pytest.raises(kind) as info:
            ww.relu(liar)
        assert (info.value.op, info.value.argument) == ("relu", "x")
        assert (info.value.expected, info.value.got) == (expected, got), info.value


def test_interfaces_that_lie():
    interface = {"shape": (4,), "typestr": "<f4", "data": (0, False), "version": 3}

    class Fake:
        def __init__(self, **changes):
            self.__cuda_array_interface__ = {**interface, **changes}

    for fake, kind in [
        (Fake(), ww.LayoutError),
        (Fake(shape=(-4,)), ww.ShapeError),
        (Fake(shape=(1 << 62,)), ww.ShapeError),
        (Fake(shape=(4, 4), strides=(4,)), ww.LayoutError),
        (Fake(shape=(1,) * 9), ww.ShapeError),
    ]:
        with pytest.raises(kind) as info:
            ww.relu(fake)
        assert (info.value.op, info.value.argument) == ("relu", "x")


def test_masked_arrays_are_refused(random):
    x = np.ma.masked_array([1.0, -2.0, 3.0], mask=[False, True, False]).astype(np.float32)

    class Derived(np.ma.MaskedArray):
        pass

    for masked in (x, x.view(Derived), np.ma.masked_array([1.0])):
        with pytest.raises(ww.ArgumentError, match="mask") as info:
            ww.relu(masked)
        assert (info.value.op, info.value.argument, info.value.got) == ("relu", "x", "MaskedArray")
        with pytest.raises(ww.ArgumentError, match="mask"):
            ww.relu(np.ones(3, np.float32), out=masked)
    np.testing.assert_array_equal(ww.relu(x.filled(0)), [1, 0, 3])
