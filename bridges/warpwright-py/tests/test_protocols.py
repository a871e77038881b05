"""Arrays of libraries that nobody has heard of, through the protocols alone."""

from __future__ import annotations

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
