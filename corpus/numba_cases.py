"""Kernels for Numba's CUDA target, and their cases."""

import math

import numpy as np
from numba import cuda, float32, float64, int32

from case import Case, In, Out, Scalar

rng = np.random.default_rng(13)


def axpy(a, x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = a * x[i] + y[i]


def block_sum(x, out, n):
    part = cuda.shared.array(128, float64)
    t = cuda.threadIdx.x
    total = 0.0
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        total += x[i]
    part[t] = total
    cuda.syncthreads()
    step = 64
    while step > 0:
        if t < step:
            part[t] += part[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        cuda.atomic.add(out, 0, part[0])


def mandelbrot(out, width, height):
    i = cuda.grid(1)
    if i < width * height:
        c = complex(-2.0 + 3.0 * (i % width) / width, -1.5 + 3.0 * (i // width) / height)
        z = 0j
        count = 0
        while count < 50 and z.real * z.real + z.imag * z.imag <= 4.0:
            z = z * z + c
            count += 1
        out[i] = count


def local_sort(x, out, n):
    i = cuda.grid(1)
    if i < n:
        values = cuda.local.array(8, float32)
        for j in range(8):
            values[j] = x[i * 8 + j]
        for a in range(1, 8):
            v = values[a]
            b = a - 1
            while b >= 0 and values[b] > v:
                values[b + 1] = values[b]
                b -= 1
            values[b + 1] = v
        for j in range(8):
            out[i * 8 + j] = values[j]


def special_functions(x, out, n):
    i = cuda.grid(1)
    if i < n:
        out[i] = math.sin(x[i]) * math.exp(-abs(x[i])) + math.sqrt(abs(x[i])) + math.atan(x[i]) ** 2


def warp_shuffle(x, out):
    t = cuda.threadIdx.x
    v = x[t]
    for d in (16, 8, 4, 2, 1):
        v += cuda.shfl_down_sync(0xFFFFFFFF, v, d)
    if t == 0:
        out[0] = v


def count_matches(x, out, n):
    i = cuda.grid(1)
    if i < n and x[i] % 3 == 0:
        cuda.atomic.max(out, 0, x[i])
        cuda.atomic.add(out, 1, 1)


def array(kind):
    """A dense array."""
    return kind[::1]


def expanded(args):
    """Numba passes an array as two handles, its number of elements and their size, its address, shape and strides."""
    for argument in args:
        if isinstance(argument, Scalar):
            yield argument
            continue
        data = argument.array if isinstance(argument, In) else argument.want
        size = data.dtype.itemsize
        yield from (Scalar("u64", 0), Scalar("u64", 0), Scalar("u64", data.size), Scalar("u64", size), argument, Scalar("u64", data.size), Scalar("u64", size))


def uses():
    x, y = rng.standard_normal(300).astype(np.float32), rng.standard_normal(300).astype(np.float32)
    a = np.float32(2.5)
    yield axpy, (float32, array(float32), array(float32), int32), [Scalar("f32", 2.5), In(x), Out((2.5 * x.astype(np.float64) + y).astype(np.float32), y, 1e-6), Scalar("s32", 300)], (3, 1, 1), (128, 1, 1)
    d = rng.standard_normal(1000)
    yield block_sum, (array(float64), array(float64), int32), [In(d), Out(np.array([d.sum()]), np.zeros(1), 1e-12), Scalar("s32", 1000)], (3, 1, 1), (128, 1, 1)

    def escape(i, w, h):
        c, z, count = complex(-2.0 + 3.0 * (i % w) / w, -1.5 + 3.0 * (i // w) / h), 0j, 0
        while count < 50 and z.real * z.real + z.imag * z.imag <= 4.0:
            z, count = z * z + c, count + 1
        return count

    want = np.array([escape(i, 20, 12) for i in range(240)], np.int32)
    yield mandelbrot, (array(int32), int32, int32), [Out(want), Scalar("s32", 20), Scalar("s32", 12)], (2, 1, 1), (128, 1, 1)
    v = rng.standard_normal((40, 8)).astype(np.float32)
    yield local_sort, (array(float32), array(float32), int32), [In(v), Out(np.sort(v, 1)), Scalar("s32", 40)], (2, 1, 1), (32, 1, 1)
    w = rng.standard_normal(100) * 3
    yield special_functions, (array(float64), array(float64), int32), [In(w), Out(np.sin(w) * np.exp(-np.abs(w)) + np.sqrt(np.abs(w)) + np.arctan(w) ** 2, None, 1e-14), Scalar("s32", 100)], (1, 1, 1), (128, 1, 1)
    k = rng.integers(0, 100, 32).astype(np.int32)
    yield warp_shuffle, (array(int32), array(int32)), [In(k), Out(np.array([k.sum()], np.int32))], (1, 1, 1), (32, 1, 1)
    k = rng.integers(0, 10000, 200).astype(np.int32)
    hit = k[k % 3 == 0]
    yield count_matches, (array(int32), array(int32), int32), [In(k), Out(np.array([hit.max(), len(hit)], np.int32), np.zeros(2, np.int32)), Scalar("s32", 200)], (2, 1, 1), (128, 1, 1)


def cases(only):
    for function, signature, args, grid, block in uses():
        if only not in function.__name__:
            continue
        for capability, target in (((8, 0), "sm_80"), ((9, 0), "sm_90")):
            text, _ = cuda.compile_ptx(function, signature, device=False, cc=capability)
            yield target, target, Case(function.__name__, entry_of(text), list(expanded(args)), grid, block, text=text)


def entry_of(text):
    line = next(line for line in text.splitlines() if ".entry" in line)
    return line.split(".entry")[1].strip().rstrip("(").strip()
