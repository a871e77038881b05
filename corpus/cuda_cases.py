"""References for the kernels in `kernels/*.cu`, in numpy."""

import math

import ml_dtypes
import numpy as np
from scipy import special

from case import Case, In, Out, Scalar

BF16 = ml_dtypes.bfloat16
rng = np.random.default_rng(7)
f32 = lambda *shape: rng.standard_normal(shape).astype(np.float32)
s32 = lambda v: Scalar("s32", int(v))
i32 = lambda low, high, *shape: rng.integers(low, high, shape, dtype=np.int64).astype(np.int32)


def half_bits(x):
    """Halves travel as 16-bit integers."""
    return np.ascontiguousarray(x).view(np.uint16)


def basic():
    n = 1000
    x, y = f32(n), f32(n)
    yield Case("vec_add", "vec_add", [In(x), In(y), Out(x + y), s32(n)], (8, 1, 1), (128, 1, 1))
    a = np.float32(1.5)
    # nvcc contracts to one fused operation.
    want = (a.astype(np.float64) * x + y).astype(np.float32)
    yield Case("saxpy_strided", "saxpy_strided", [Scalar("f32", 1.5), In(x), Out(want, y, 1e-7), s32(n)], (2, 1, 1), (128, 1, 1))
    m = f32(70, 45)
    yield Case("transpose", "transpose", [In(m), Out(np.ascontiguousarray(m.T)), s32(70), s32(45)], (2, 3, 1), (32, 8, 1))
    a, b = f32(40, 50), f32(50, 36)
    yield Case("matmul_tiled", "matmul_tiled", [In(a), In(b), Out((a.astype(np.float64) @ b).astype(np.float32), None, 1e-6), s32(40), s32(36), s32(50)],
               (3, 3, 1), (16, 16, 1))
    d = rng.standard_normal(300)
    p = np.concatenate([[0], d, [0]])
    yield Case("stencil_f64", "stencil_f64", [In(d), Out(0.25 * p[:-2] + 0.5 * p[1:-1] + 0.25 * p[2:], None, 1e-15), s32(300)], (3, 1, 1), (128, 1, 1),
               shared=130 * 8)
    start = np.arange(1, 201, dtype=np.uint32)

    def steps(v):
        count = 0
        while v != 1:
            v, count = (3 * v + 1 if v & 1 else v // 2), count + 1
        return count

    yield Case("collatz", "collatz", [In(start), Out(np.array([steps(int(v)) for v in start], np.uint32)), s32(200)], (2, 1, 1), (128, 1, 1))
    x, y = i32(-(1 << 31), 1 << 31, 128), i32(-(1 << 31), 1 << 31, 128)
    x[:4], y[:4] = [0, -1, 5, -(1 << 31)], [3, 7, 0, 1]
    yield Case("integer_mix", "integer_mix", [In(x), In(y), Out(np.array([integer_mix(int(a), int(b)) for a, b in zip(x, y)], np.int32)), s32(128)],
               (1, 1, 1), (128, 1, 1))
    x, y = (rng.integers(-(1 << 63), (1 << 63) - 1, 64, dtype=np.int64) for _ in range(2))
    y[:2] = [0, 3]
    yield Case("wide_integers", "wide_integers", [In(x), In(y), Out(np.array([wide_integers(int(a), int(b)) for a, b in zip(x, y)], np.int64)), s32(64)],
               (1, 1, 1), (64, 1, 1))
    v = f32(96) * 3
    w = v.astype(np.float64)
    columns = [np.sin(w) + np.cos(w), np.exp(w) + np.log1p(np.abs(w)), np.tanh(w) * special.erf(w), np.abs(w) ** 1.7,
               np.sqrt(np.abs(w)) + 1 / np.sqrt(np.abs(w) + 1) + np.cbrt(w), np.arctan2(w, 0.5) + np.fmod(w, 0.75),
               np.floor(w) + np.ceil(w) * 2 + np.rint(w) * 4 + np.trunc(w) * 8 + np.copysign(np.floor(np.abs(w) + 0.5), w) * 16,
               np.ldexp(w, 3) + np.copysign(1, w) + (w * w + w) + special.gammaln(np.abs(w) + 1)]
    yield Case("float_functions", "float_functions", [In(v), Out(np.stack(columns, 1).astype(np.float32), None, 2e-6), s32(96)], (3, 1, 1), (32, 1, 1))
    columns = [np.sin(w) + np.cos(w), np.exp(w) + np.log(np.abs(w) + 1), np.tanh(w) * special.erf(w), np.abs(w) ** 1.7,
               np.sqrt(np.abs(w)) + 1 / (w * w + 1) + 1 / np.sqrt(w * w + 2), np.arctan(w) + np.fmod(w, 0.75) + np.floor(w) + np.rint(w)]
    yield Case("double_functions", "double_functions", [In(w), Out(np.stack(columns, 1), None, 1e-14), s32(96)], (3, 1, 1), (32, 1, 1))
    v = np.array([1e5, -3e7, 1e20, 3e38, 105615.0, 12.5, 1e-30, 0.0], np.float32)
    yield Case("large_angles", "large_angles", [In(v), Out(np.array([math.sin(float(a)) for a in v], np.float32), None, 3e-7), s32(8)])
    v = (f32(64) * 1000).astype(np.float32)
    yield Case("conversions", "conversions", [In(v), Out(np.array([conversions(i, a) for i, a in enumerate(v)], np.int64).astype(np.int32)), s32(64)], (2, 1, 1))


U = 0xFFFFFFFF
signed = lambda v, n=32: ((v & (1 << n) - 1) ^ 1 << n - 1) - (1 << n - 1)
quotient = lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def integer_mix(x, y):
    u, v = x & U, y & U
    r = bin(u).count("1") ^ (32 - v.bit_length()) ^ ((u & -u).bit_length() << 4)
    r += signed(int(f"{u:032b}"[::-1], 2) >> 3)
    wide = v << 32 | u
    r = signed(r) ^ signed((wide << 7 >> 32 & U) + (wide >> 32 & U))
    pool = [wide >> 8 * i & 0xFF for i in range(8)]
    perm = sum(pool[0x3715 >> 4 * i & 7] << 8 * i for i in range(4))
    r += signed(perm ^ (x * y >> 32) ^ (u * v >> 32))
    low = lambda a: signed(a & 0xFFFFFF, 24)
    r = signed(r) ^ signed(low(x) * low(y) + (u & 0xFFFFFF) * (v & 0xFFFFFF))
    r += abs(x - y) + 5 + abs(u - v) + 9 + (x + y >> 1) + (x + y + 1 >> 1)
    if y:
        r += quotient(x, y) * 3 + (x - quotient(x, y) * y) + u // v + u % v
    r = signed(r) ^ signed((u << (v & 31)) ^ (x >> (v & 31)) ^ (u >> (v & 31)))
    m = abs(x) % 1000
    r += min(x, y) - max(x, y) + m
    add2 = (u + v & 0xFFFF) | ((u >> 16) + (v >> 16) & 0xFFFF) << 16
    diff4 = sum(abs((u >> 8 * i & 0xFF) - (v >> 8 * i & 0xFF)) << 8 * i for i in range(4))
    return signed(r + signed(add2 ^ diff4))


def wide_integers(x, y):
    mask = (1 << 64) - 1
    u, v = x & mask, y & mask
    r = signed(x * y + (x * y >> 64) + (u * v >> 64), 64)
    if y:
        q = quotient(x, y)
        r ^= signed(q + (x - q * y) + u // v, 64)
    r += bin(u).count("1") + (64 - v.bit_length()) + (u & -u).bit_length() + int(f"{v:064b}"[::-1], 2)
    w = u * v + u
    r = signed(r, 64) ^ signed((w >> 64) + (w >> 17 & mask), 64)
    return r ^ signed(u << (v & 63), 64) ^ x >> (v & 63)


def conversions(i, a):
    v = float(a)
    bits = lambda x: int(np.float32(x).view(np.int32))
    t = math.trunc(v)
    clamp = lambda k: max(0, min(U, k))
    first = bits(v)
    # The integer behind the bits, as a float rounded towards zero.
    exact, near = first, np.float32(first)
    toward = near if abs(int(near)) <= abs(exact) else np.nextafter(near, np.float32(0))
    return [t, signed(round(v) ^ clamp(t)), signed(t, 8) + (t & 0xFF) + signed(t, 16), signed(bits(v * 2) + math.ceil(v) - math.floor(v)),
            signed(t + signed(round(v * 1e6))), bits(toward) ^ bits(np.float32(i) * a)]


def block():
    n = 2000
    x = f32(n)
    parts = [np.concatenate([x[s : s + 256] for s in range(b * 256, n, 3 * 256)]).astype(np.float64).sum() for b in range(3)]
    yield Case("reduce_shared", "reduce_shared", [In(x), Out(np.array(parts, np.float32), None, 1e-5), s32(n)], (3, 1, 1), (256, 1, 1))
    d = rng.standard_normal(n)
    yield Case("reduce_shuffle", "reduce_shuffle", [In(d), Out(np.array([d.sum()]), None, 1e-12), s32(n)], (1, 1, 1), (256, 1, 1))
    parts = [np.concatenate([x[s : s + 128] for s in range(b * 128, n, 5 * 128)]).astype(np.float64).sum() for b in range(5)]
    yield Case("reduce_last_block", "reduce_last_block", [In(x), Out(np.array(parts, np.float32), None, 1e-5), Out(np.array([sum(parts)], np.float32), None, 1e-5), s32(n)],
               (5, 1, 1), (128, 1, 1))
    v = i32(-50, 50, 200)
    yield Case("scan_block", "scan_block", [In(v), Out(np.cumsum(v, dtype=np.int32)), s32(200)], (1, 1, 1), (256, 1, 1), shared=1024)
    b = rng.integers(0, 256, 3000, dtype=np.uint8)
    yield Case("histogram", "histogram", [In(b), Out(np.bincount(b, minlength=256).astype(np.uint32), np.zeros(256, np.uint32)), s32(3000)], (3, 1, 1), (128, 1, 1))
    k = rng.integers(0, 1 << 32, 512, dtype=np.uint64).astype(np.uint32)
    yield Case("bitonic_sort", "bitonic_sort", [Out(np.sort(k), k), s32(512)], (1, 1, 1), (128, 1, 1), shared=2048)
    yield atomics()
    yield Case("spin_lock", "spin_lock", [Out(np.zeros(1, np.int32), np.zeros(1, np.int32)), Out(np.array([2 * 64 * 2], np.int32), np.zeros(1, np.int32)), s32(2)],
               (2, 1, 1), (64, 1, 1))
    yield warp_intrinsics()
    v = i32(0, 30, 96)
    count = int((v > 10).sum())
    yield Case("block_votes", "block_votes", [In(v), Out(np.tile(np.array([count, int((v > 10).all()), int((v > 10).any())], np.int32), 96))], (1, 1, 1), (96, 1, 1))
    m = f32(4, 300)
    e = np.exp(m.astype(np.float64) - m.max(1, keepdims=True))
    yield Case("softmax_rows", "softmax_rows", [In(m), Out((e / e.sum(1, keepdims=True)).astype(np.float32), None, 1e-5), s32(300)], (4, 1, 1), (128, 1, 1))


def atomics():
    n = 300
    x = i32(-5000, 5000, n)
    v = [int(a) for a in x]
    fold = lambda f, start: __import__("functools").reduce(f, v, start)
    si0 = np.array([3, 4, 100, -100, 0, 0, 0, 0, 0], np.int32)
    si = np.array([3 + sum(v), 4 - sum(v), min([100] + v), max([-100] + v), 77, n, 128, 128, 44], np.int64).astype(np.int32)
    ui0 = np.array([U, 0, 9, 2, 3], np.uint32)
    inc, dec = 2, 3
    for _ in v:
        inc = 0 if inc >= 6 else inc + 1
        dec = 5 if dec == 0 or dec > 5 else dec - 1
    ui = np.array([fold(lambda r, a: r & ((a | 0xFF00) & U), U), fold(lambda r, a: r | a & 0xFF, 0), fold(lambda r, a: r ^ a & U, 9), inc, dec], np.uint32)
    mask = (1 << 64) - 1
    ul0 = np.array([1, 2, 3], np.uint64)
    ul = np.array([(1 + sum(a * a for a in v)) & mask, max([2] + [a & 0xFFFF for a in v]), fold(lambda r, a: r ^ (a << 32 & mask), 3)], np.uint64)
    remainder = [int(math.fmod(a, 1000)) for a in v]
    f = np.array([sum(a & 7 for a in v), max(0.0, max(remainder))], np.float32)
    d = np.array([sum((a & 15) * 0.5 for a in v)])
    return Case("atomics", "atomics", [In(x), Out(si, si0), Out(ui, ui0), Out(ul, ul0), Out(f, np.zeros(2, np.float32)), Out(d, np.zeros(1)), s32(n)],
                (3, 1, 1), (128, 1, 1), notes="mixes volatile reads with compare and swap")


def warp_intrinsics():
    x = i32(0, 90, 64)
    out = np.zeros((64, 10), np.uint32)
    for w in range(2):
        v = [int(a) for a in x[w * 32 : w * 32 + 32]]
        ballot = sum((a & 1) << i for i, a in enumerate(v))
        # Who else is in the branch is not promised; here the lanes that took it stay together.
        third = sum(1 << i for i in range(0, 32, 3))
        for i, a in enumerate(v):
            up = v[i - 3] if i >= 3 else a
            down = v[i + 5] if i // 8 == (i + 5) // 8 else a
            same = all(b // 1000 == v[0] // 1000 for b in v)
            xor = 0
            for b in v:
                xor ^= b
            out[w * 32 + i] = [ballot, any(b == 3 for b in v) * 2 + all(b < 100 for b in v), sum((b % 5 == a % 5) << j for j, b in enumerate(v)),
                               (U if same else 0) + int(same) & U, v[i * 7 % 32], up ^ down, sum(v), max(v) ^ xor, third if i % 3 == 0 else 0, v[i ^ 8]]
    return Case("warp_intrinsics", "warp_intrinsics", [In(x), Out(out)], (1, 1, 1), (64, 1, 1))


def functions():
    fib = [0, 1]
    for _ in range(20):
        fib.append(fib[-1] + fib[-2])
    yield Case("recursion", "recursion", [Out(np.array([fib[t % 13] for t in range(64)], np.int32))], (1, 1, 1), (64, 1, 1))

    def ackermann(m, n):
        return n + 1 if m == 0 else ackermann(m - 1, 1 if n == 0 else ackermann(m, n - 1))

    yield Case("deep_recursion", "deep_recursion", [Out(np.array([ackermann(t % 3, t % 5) for t in range(32)], np.int32))])
    n = 200
    x = f32(n)
    table = [lambda v: v * v, lambda v: v / np.float32(2), lambda v: -v]
    yield Case("function_pointers", "function_pointers", [In(x), Out(np.array([table[i % 3](table[i // 3 % 3](x[i])) for i in range(n)], np.float32)), s32(n)],
               (2, 1, 1), (128, 1, 1))
    area = np.array([x[i] * x[i] if i % 2 else np.float32(3) * x[i] * x[i] for i in range(64)], np.float32)
    yield Case("virtual_calls", "virtual_calls", [In(x[:64].copy()), Out(area), s32(64)], (1, 1, 1), (64, 1, 1))
    v = f32(64)
    want = [i + 2 + v[i] * 0.5 + v[i] * np.float32(0.5) + [v[i] * 0.5, 0.5, 1, 1.5, 2][i % 5] for i in range(64)]
    yield Case("structs", "structs", [In(v), Out(np.array(want, np.float64), None, 1e-7), s32(64)], (2, 1, 1))
    local = lambda t: sum(t * i + 1 for i in range(16)) if t % 2 else None
    shared = sum(3 * i + 1 for i in range(16))
    yield Case("local_pointers", "local_pointers", [Out(np.array([local(t) if t % 2 else shared for t in range(32)], np.int32))],
               notes="reads shared memory without a barrier after the fill by thread 0 of the same warp", sanitize="memcheck,initcheck,synccheck")
    k = i32(-2, 12, 256)
    pick = lambda i, v: {0: 11, 1: v * 7, 2: -4, 3: i, 4: v ^ i, 5: i * i, 6: 1 << (i & 15), 7: i % 3, 8: 99}.get(v, -1)
    yield Case("switches", "switches", [In(k), Out(np.array([pick(i, int(v)) for i, v in enumerate(k)], np.int32)), s32(256)], (2, 1, 1), (128, 1, 1))
    q = np.array([0.5, -1.25, 3.14159], np.float32)
    lines = [f"thread {i} has {float(q[i]):.3f} {'odd' if i % 2 else 'even'} {i * 10:5d}|{-i:<4d}|{chr(97 + i)} {255 - i:x} {10000000000 + i} %" for i in range(3)]
    yield Case("printing", "printing", [In(q), s32(3)], prints=lines)
    w = i32(0, 100, 32)
    yield Case("asserting", "asserting", [In(w), Out(w * 2), s32(100)])
    yield Case("asserting_false", "asserting", [In(w), Out(w * 2), s32(int(w.max()))], fault="v < limit")

    def listed(t):
        total = 0
        for value in reversed([i * (t + 1) for i in range(4 + t % 3)]):
            total = total * 3 + value
        return total

    yield Case("heap_list", "heap_list", [Out(np.array([listed(t) for t in range(32)], np.int32))])
    x = f32(100)
    taps = np.array([0.05, 0.1, 0.2, 0.3, 0.2, 0.1, 0.05], np.float32).astype(np.float64)
    p = np.concatenate([np.zeros(3), x, np.zeros(3)])
    want = [sum(taps[j] * p[i + j] for j in range(7)) + ord("o" if i & 1 else "e") for i in range(100)]
    yield Case("constant_filter", "constant_filter", [In(x), Out(np.array(want, np.float32), None, 1e-6), s32(100)], (1, 1, 1), (128, 1, 1))
    v = i32(0, 1000, 32)
    want = [int(v[16 + (t + 1) % 16]) * 2 if t & 16 else int(v[(t + 1) % 16]) + 5 for t in range(32)]
    yield Case("collectives_in_functions", "collectives_in_functions", [In(v), Out(np.array(want, np.int32))])


def narrow():
    n = 64
    h = lambda *s: (rng.standard_normal(s) * 4).astype(np.float16)
    fma = lambda a, b, c: (a.astype(np.float64) * b + c).astype(np.float16)
    x, y = h(n, 2), h(n, 2)
    yield Case("half_axpy", "half_axpy", [In(half_bits(x)), Out(half_bits(fma(np.array([1.5, -0.75], np.float16), x, y)), half_bits(y)), s32(n)], (1, 1, 1), (64, 1, 1))
    a, b = h(n), h(n)
    d = lambda v: v.astype(np.float64)
    toward = lambda v: np.where(np.abs(v.astype(np.float16).astype(np.float64)) > np.abs(v), np.nextafter(v.astype(np.float16), np.float16(0)), v.astype(np.float16))
    columns = [(d(a) + b), d(a) * b, np.clip(d(a) - b, 0, 1), np.maximum(d(a) * b + a, 0), np.maximum(a, b), np.where(a < b, -a, np.abs(b)),
               toward((a.astype(np.float32) * np.float32(3.1)).astype(np.float64)), np.floor(d(a)) + np.trunc(d(b))]
    yield Case("half_mix", "half_mix", [In(half_bits(a)), In(half_bits(b)), Out(half_bits(np.stack([c.astype(np.float16) for c in columns], 1))), s32(n)], (1, 1, 1), (64, 1, 1))
    y = y.copy()
    y[:10] = x[:10]
    y[5, 0] = np.nan
    out = np.stack([np.where(x > y, np.float16(1), np.float16(0)), np.fmin(x, y)], 1)
    bits = [int((x[i] == y[i]).all()) * 4 + int((~(x[i] >= y[i])).all()) * 2 + int(not x[i, 0] < y[i, 1]) for i in range(n)]
    yield Case("half_compare", "half_compare", [In(half_bits(x)), In(half_bits(y)), Out(half_bits(out)), Out(np.array(bits, np.uint32)), s32(n)], (1, 1, 1), (64, 1, 1))
    a, b = (rng.standard_normal(n) * 4).astype(BF16), (rng.standard_normal(n) * 4).astype(BF16)
    columns = [d(a) + d(b), d(a) * d(b), d(a) * d(b) + d(a), np.minimum(d(a), d(b)), (a.astype(np.float32) / np.float32(3)).astype(np.float64), -np.abs(d(b))]
    once = lambda v: v.astype(np.float32).astype(BF16)
    yield Case("bfloat_mix", "bfloat_mix", [In(half_bits(a)), In(half_bits(b)), Out(half_bits(np.stack([once(c) for c in columns], 1))), s32(n)], (1, 1, 1), (64, 1, 1))
    v = np.concatenate([f32(60) * 30, np.array([0, -0.0, 1e6, -1e6], np.float32)])
    e4 = np.clip(v, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    e5 = np.clip(v, -57344, 57344).astype(ml_dtypes.float8_e5m2)
    back = e4.astype(np.float32) + 2 * e5.astype(np.float32)
    yield Case("fp8_round_trip", "fp8_round_trip", [In(v), Out(e4.view(np.uint8)), Out(e5.view(np.uint8)), Out(back), s32(64)], (1, 1, 1), (64, 1, 1))
    a, b = i32(-(1 << 31), 1 << 31, 64), i32(-(1 << 31), 1 << 31, 64)
    byte = lambda v, i, s: signed(v >> 8 * i, 8) if s else v >> 8 * i & 0xFF
    word = lambda v, i: signed(v >> 16 * i, 16)

    def dots(p, q):
        total = 7 + 3 + 1 + 2
        for s in (True, False):
            total += sum(byte(p, i, s) * byte(q, i, s) for i in range(4))
        for high in (0, 2):
            total += sum(word(p, i) * byte(q, i + high, True) for i in range(2))
        return signed(total)

    yield Case("dot_bytes", "dot_bytes", [In(a), In(b), Out(np.array([dots(int(p) & U, int(q) & U) for p, q in zip(a, b)], np.int32)), s32(64)], (1, 1, 1), (64, 1, 1))
    v = np.abs(f32(40) * 3)
    total = float(sum(int(k) & 3 for k in v))
    yield Case("half_atomics", "half_atomics", [In(v), Out(half_bits(np.array([total, 0], np.float16)), np.zeros(2, np.uint16)),
               Out(half_bits(np.array([total, 40], np.float16)), np.zeros(2, np.uint16)), Out(half_bits(np.array([total, 0]).astype(BF16)), np.zeros(2, np.uint16)), s32(40)],
               (1, 1, 1), (64, 1, 1), sanitize="memcheck,initcheck,synccheck", notes="below sm_90 the header's loop of compare and swap starts with a plain load, a race by the rules of PTX")


def groups():
    x = i32(-100, 100, 64)
    out = []
    for t in range(64):
        tile = [int(v) for v in x[t // 8 * 8 : t // 8 * 8 + 8]]
        out.append(sum(tile) * 3 + max(tile) * 5 + sum(tile[: t % 8]) + t // 8)
    yield Case("tile_reduce", "tile_reduce", [In(x), Out(np.array(out, np.int32))], (1, 1, 1), (64, 1, 1))
    v = i32(0, 10, 64)
    ranks = [sum(int(v[j] < 6) for j in range(t // 32 * 32, t)) if v[t] < 6 else -1 for t in range(64)]
    yield Case("coalesced_counter", "coalesced_counter", [In(v), Out(np.array([(v < 6).sum()], np.int32), np.zeros(1, np.int32)), Out(np.array(ranks, np.int32)), s32(6)],
               (1, 1, 1), (64, 1, 1))
    a = f32(300)
    states = [a.astype(np.float64)]
    for _ in range(4):
        p = np.concatenate([[0], states[-1], [0]])
        states.append(0.5 * states[-1] + 0.25 * (p[:-2] + p[2:]))
    yield Case("grid_steps", "grid_steps", [Out(states[4].astype(np.float32), a, 1e-6), Out(states[3].astype(np.float32), np.zeros(300, np.float32), 1e-6), s32(300), s32(4)],
               (3, 1, 1), (64, 1, 1))
    q = f32(2, 40, 4)
    yield Case("async_copy_group", "async_copy_group", [In(q), Out(np.ascontiguousarray(q[:, ::-1, ::-1])), s32(40)], (2, 1, 1), (64, 1, 1), shared=640)
    x = f32(6, 128)
    want = sum(x[t].astype(np.float64) * (t + 1) for t in range(6))
    yield Case("pipeline_primitives", "pipeline_primitives", [In(x), Out(want.astype(np.float32), None, 1e-6), s32(6)], (1, 1, 1), (128, 1, 1))
    x = f32(5, 64)
    yield Case("pipeline_block", "pipeline_block", [In(x), Out(x.astype(np.float64).sum(0)[::-1].astype(np.float32), None, 1e-6), s32(5)], (1, 1, 1), (64, 1, 1))
    v = [int(k) for k in i32(0, 1000, 64)]
    start = np.array(v, np.int32)
    for r in range(3):
        v = [(v[t] + v[(t + 1) % 64]) ^ r for t in range(64)]
    yield Case("barrier_phases", "barrier_phases", [In(start), Out(np.array(v, np.int32))], (1, 1, 1), (64, 1, 1))
    yield Case("message_passing", "message_passing", [In(np.array([21], np.int32)), Out(np.array([42, 1], np.int32), np.zeros(2, np.int32)), Out(np.array([43], np.int32))],
               (2, 1, 1), (32, 1, 1))


def tensor():
    h = lambda *s: rng.integers(-4, 5, s).astype(np.float16)
    a, b = h(32, 32), h(32, 32)
    exact = lambda p, q: p.astype(np.float64) @ q.astype(np.float64)
    yield Case("wmma_half", "wmma_half", [In(half_bits(a)), In(half_bits(b)), Out(exact(a, b.T).astype(np.float32), None, 1e-6), s32(32)], (2, 2, 1))
    a, b = rng.integers(-4, 5, (32, 16)).astype(BF16), rng.integers(-4, 5, (16, 8)).astype(BF16)
    yield Case("wmma_bfloat", "wmma_bfloat", [In(half_bits(a)), In(half_bits(b)), Out((exact(a, b) + 1).astype(np.float32), None, 1e-6)])
    a, b = rng.integers(-128, 128, (16, 16)).astype(np.int8), rng.integers(-128, 128, (16, 16)).astype(np.int8)
    c = a.astype(np.int32) @ b.T.astype(np.int32) + 3
    yield Case("wmma_bytes", "wmma_bytes", [In(a), In(b), Out(np.ascontiguousarray(c.T))])
    a, b = rng.standard_normal((8, 4)), rng.standard_normal((8, 4))
    yield Case("wmma_double", "wmma_double", [In(a), In(b), Out(a @ b.T + 0.5, None, 1e-14)])
    a, b = rng.integers(-9, 10, (16, 8)).astype(np.float32), rng.integers(-9, 10, (16, 8)).astype(np.float32)
    yield Case("wmma_tf32", "wmma_tf32", [In(a), In(b), Out(exact(a, b.T).astype(np.float32), None, 1e-6)])
    a, b = h(16, 16), h(8, 16)
    yield Case("ldmatrix_mma", "ldmatrix_mma", [In(half_bits(a)), In(half_bits(b)), Out(exact(a, b.T).astype(np.float32), None, 1e-6)])


def hopper():
    only = ("sm_90a",)
    x = i32(-999, 999, 256)
    want = np.concatenate([x.reshape(4, 64)[b ^ 1][::-1] + (b & 1) * 1000 for b in range(4)]).astype(np.int32)
    yield Case("cluster_exchange", "cluster_exchange", [In(x), Out(want)], (4, 1, 1), (64, 1, 1), (2, 1, 1), targets=only)
    v = i32(0, 1 << 20, 700)
    yield Case("cluster_histogram", "cluster_histogram", [In(v), Out(np.bincount(v & 127, minlength=128).astype(np.int32)), s32(700)], (4, 1, 1), (64, 1, 1), (4, 1, 1), targets=only)
    x = i32(-999, 999, 512)
    yield Case("bulk_copy", "bulk_copy", [In(x), Out((x * 3 + np.tile(np.arange(256), 2)).astype(np.int32))], (2, 1, 1), (128, 1, 1), targets=only)
    a, b = rng.integers(-4, 5, (64, 16)).astype(BF16), rng.integers(-4, 5, (8, 16)).astype(BF16)
    want = (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32)
    yield Case("wgmma_plain", "wgmma_plain", [In(half_bits(a)), In(half_bits(b)), Out(want, None, 1e-6)], (1, 1, 1), (128, 1, 1), targets=only)


def seeded(cases):
    """The same numbers whatever ran before."""

    def run():
        global rng
        rng = np.random.default_rng(7)
        return list(cases())

    return run


FILES = {"basic": basic, "block": block, "functions": functions, "narrow": narrow, "groups": groups, "tensor": tensor, "hopper": hopper}
FILES = {name: seeded(cases) for name, cases in FILES.items()}
# Name, target, options.
VARIANTS = [("sm_80", "sm_80", []), ("sm_80-O0", "sm_80", ["-Xcicc", "-O0", "-Xptxas", "-O0"]), ("sm_80-G", "sm_80", ["-G"]),
            ("sm_90a", "sm_90a", ["-lineinfo"])]
