"""Cases for `triton_kernels.py`: compiled without a GPU, references in numpy."""

import ml_dtypes
import numpy as np
import triton
import triton.language as tl
from scipy import special
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import triton_kernels as kernels
from case import Case, In, Out, Scalar

rng = np.random.default_rng(11)
f32 = lambda *s: rng.standard_normal(s).astype(np.float32)
bits = lambda x: np.ascontiguousarray(x).view(np.uint16 if x.dtype.itemsize == 2 else np.uint8)
POINTER = {"f4": "*fp32", "f2": "*fp16", "i4": "*i32", "i1": "*i8"}


def philox_uniform(seed, index):
    """Triton's `rand`: ten rounds of Philox 4x32, the first word as a number in [0, 1)."""
    mask = 0xFFFFFFFF
    c, k = [index, 0, 0, 0], [seed & mask, seed >> 32 & mask]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & mask, a >> 32 ^ c[3] ^ k[1], a & mask]
        k = [k[0] + 0x9E3779B9 & mask, k[1] + 0xBB67AE85 & mask]
    word = c[0] - (1 << 32) if c[0] >> 31 else c[0]
    word = -word - 1 if word < 0 else word
    return np.float32(word) * np.float32(4.6566127342e-10)


def uses():
    """(name, kernel, arguments, constants, grid, warps); an argument is (pointer type, In or Out) or a scalar."""
    x, y = f32(1000), f32(1000)
    p = "*fp32"
    yield "vector_add", kernels.vector_add, [(p, In(x)), (p, In(y)), (p, Out(x + y)), ("i32", 1000)], {"BLOCK": 256}, (4,), 4
    m = f32(5, 200)
    e = np.exp(m.astype(np.float64) - m.max(1, keepdims=True))
    yield "softmax", kernels.softmax, [(p, In(m)), (p, Out((e / e.sum(1, keepdims=True)).astype(np.float32), None, 1e-6)), ("i32", 200), ("i32", 200)], {"BLOCK": 256}, (5,), 4
    soft = (e / e.sum(1, keepdims=True)).astype(np.float32)
    yield "softmax_masked", kernels.softmax_masked, [(p, In(m)), (p, Out(soft, None, 1e-6)), ("i32", 200), ("i32", 200)], {"BLOCK": 256}, (5,), 4
    g = f32(5, 200)
    dx = soft * (g - (soft * g).sum(1, keepdims=True))
    yield "softmax_backward_masked", kernels.softmax_backward_masked, [(p, In(soft)), (p, In(g)), (p, Out(dx, None, 1e-5)), ("i32", 200)], {"BLOCK": 256}, (5,), 4
    w, rms = f32(200), 1 / np.sqrt((m.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5)
    yield "rms_norm_masked", kernels.rms_norm_masked, [(p, In(m)), (p, In(w)), (p, Out((m * rms * w).astype(np.float32), None, 2e-6)), ("i32", 200), ("fp32", 1e-5)], {"BLOCK": 256}, (5,), 4
    keep = np.array([philox_uniform(123, i) < np.float32(0.75) for i in range(512)])
    v = f32(512)
    yield "dropout", kernels.dropout, [(p, In(v)), (p, Out(np.where(keep, v / np.float32(0.75), 0).astype(np.float32), None, 1e-6)), ("i32", 512), ("fp32", 0.75), ("i32", 123)], {"BLOCK": 256}, (2,), 4
    x, w, b = f32(6, 300), f32(300), f32(300)
    d = x.astype(np.float64)
    mean, var = d.mean(1), d.var(1)
    rstd = 1 / np.sqrt(var + 1e-5)
    h = (d - mean[:, None]) * rstd[:, None]
    out = lambda a, t=2e-6: Out(a.astype(np.float32), None, t)
    yield "layernorm", kernels.layernorm, [(p, In(x)), (p, out(h * w + b)), (p, In(w)), (p, In(b)), (p, out(mean, 1e-5)), (p, out(rstd)), ("i32", 300), ("fp32", 1e-5)], {"BLOCK": 512}, (6,), 4
    g = f32(6, 300)
    wg = g.astype(np.float64) * w
    dx = (wg - (h * (h * wg).mean(1, keepdims=True) + wg.mean(1, keepdims=True))) * rstd[:, None]
    yield "layernorm_backward", kernels.layernorm_backward, [(p, out(dx, 1e-5)), (p, In(g)), (p, In(x)), (p, In(w)), (p, In(mean.astype(np.float32))), (p, In(rstd.astype(np.float32))),
        (p, Out((g * h).sum(0).astype(np.float32), np.zeros(300, np.float32), 1e-5)), ("i32", 300)], {"BLOCK": 512}, (6,), 4
    for name, make, kind, size in (("f16", np.float16, "*fp16", 4), ("bf16", ml_dtypes.bfloat16, "*bf16", 4), ("f32", np.float32, "*fp32", 4), ("fp8", ml_dtypes.float8_e5m2, "*fp8e5", 4)):
        a, b = rng.integers(-size, size + 1, (70, 80)).astype(make), rng.integers(-size, size + 1, (80, 50)).astype(make)
        c = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
        raw = (lambda v: v) if make == np.float32 else bits
        yield f"matmul_{name}", kernels.matmul, [(kind, In(raw(a))), (kind, In(raw(b))), (p, Out(c, None, 1e-6)), ("i32", 70), ("i32", 50), ("i32", 80)], \
            {"BM": 64, "BN": 32, "BK": 32, "OUT": tl.float32, "ZERO": 0.0}, (2, 2), 4
    a, b = rng.integers(-128, 128, (70, 64)).astype(np.int8), rng.integers(-128, 128, (64, 50)).astype(np.int8)
    yield "matmul_s8", kernels.matmul, [("*i8", In(a)), ("*i8", In(b)), ("*i32", Out(a.astype(np.int32) @ b.astype(np.int32))), ("i32", 70), ("i32", 50), ("i32", 64)], \
        {"BM": 64, "BN": 32, "BK": 32, "OUT": tl.int32, "ZERO": 0}, (2, 2), 4
    sizes = np.array([20, 70, 0, 33], np.int32)
    a, b = rng.integers(-4, 5, (123, 64)).astype(np.float16), rng.integers(-4, 5, (4, 64, 48)).astype(np.float16)
    edges = np.concatenate([[0], np.cumsum(sizes)])
    c = np.concatenate([a[edges[i] : edges[i + 1]].astype(np.float64) @ b[i].astype(np.float64) for i in range(4)]).astype(np.float32)
    yield "grouped_matmul", kernels.grouped_matmul, [("*fp16", In(bits(a))), ("*fp16", In(bits(b))), (p, Out(c, None, 1e-6)), ("*i32", In(sizes)), ("i32", 4), ("i32", 48), ("i32", 64)], \
        {"BM": 32, "BN": 32, "BK": 32}, (3,), 4
    for causal in (False, True):
        q, k, v = (f32(2, 90, 64).astype(np.float16) for _ in range(3))
        s = np.einsum("hid,hjd->hij", q.astype(np.float64), k.astype(np.float64)) * 0.125
        if causal:
            s = np.where(np.tril(np.ones((90, 90), bool)), s, -np.inf)
        e = np.exp(s - s.max(-1, keepdims=True))
        o = np.einsum("hij,hjd->hid", e / e.sum(-1, keepdims=True), v.astype(np.float64)).astype(np.float32)
        yield f"attention{'_causal' if causal else ''}", kernels.attention, [("*fp16", In(bits(q))), ("*fp16", In(bits(k))), ("*fp16", In(bits(v))), (p, Out(o, None, 2e-3)), ("i32", 90), ("fp32", 0.125)], \
            {"D": 64, "BM": 64, "BN": 32, "CAUSAL": causal}, (2, 2), 4
    v = rng.integers(-9, 9, 400).astype(np.int32)
    yield "cumulative_sum", kernels.cumulative_sum, [("*i32", In(v)), ("*i32", Out(np.cumsum(v, dtype=np.int32))), ("i32", 400)], {"BLOCK": 512}, (1,), 4
    v = f32(3, 128)
    yield "sort_rows", kernels.sort_rows, [(p, In(v)), (p, Out(np.sort(v, 1)))], {"COLUMNS": 128}, (3,), 2
    v = rng.integers(0, 64, 1024).astype(np.int32)
    yield "histogram", kernels.histogram, [("*i32", In(v)), ("*i32", Out(np.bincount(v, minlength=64).astype(np.int32), np.zeros(64, np.int32))), ("i32", 1024)], {"BLOCK": 512, "BINS": 64}, (2,), 4
    v = f32(500) * 2
    d = v.astype(np.float64)
    yield "gelu", kernels.gelu, [(p, In(v)), (p, out(0.5 * d * (1 + special.erf(d / np.sqrt(2))))), ("i32", 500)], {"BLOCK": 256}, (2,), 4
    v = f32(7, 100)
    yield "argmax_rows", kernels.argmax_rows, [(p, In(v)), ("*i32", Out(v.argmax(1).astype(np.int32))), ("i32", 100)], {"BLOCK": 128}, (7,), 4


KINDS = {"i32": "s32", "fp32": "f32"}


def cases(only):
    for name, kernel, arguments, constants, grid, warps in uses():
        if only not in name:
            continue
        names = [n for n in kernel.arg_names if n not in constants]
        signature = {n: kind for n, (kind, _) in zip(names, arguments)} | {n: "constexpr" for n in constants}
        for capability, target in ((80, "sm_80"), (90, "sm_90a")):
            source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
            made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, "ptx_version": 88})
            meta = made.metadata
            args = [v if kind.startswith("*") else Scalar(KINDS[kind], v) for kind, v in arguments]
            # Two pointers to scratch memory that nothing here uses.
            args += [Scalar("u64", 0)] * 2
            yield target, target, Case(name, meta.name, args, (*grid, 1, 1)[:3], (32 * meta.num_warps, 1, 1), shared=meta.shared, text=made.asm["ptx"])
