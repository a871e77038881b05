"""Triton kernels of our own, after the subjects of Triton's tutorials."""

import triton
import triton.language as tl


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out + i, tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


@triton.jit
def softmax(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + i, mask=i < columns, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * stride + i, e / tl.sum(e, axis=0), mask=i < columns)


@triton.jit
def softmax_masked(x, out, stride, columns, BLOCK: tl.constexpr):
    """Lanes that load nothing hold anything until they are replaced."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    v = tl.where(inside, tl.load(x + row * stride + i, mask=inside), -float("inf"))
    e = tl.where(inside, tl.exp(v - tl.max(v, axis=0)), 0.0)
    tl.store(out + row * stride + i, e / tl.sum(e, axis=0), mask=inside)


@triton.jit
def softmax_backward_masked(y, dy, dx, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    yv = tl.load(y + row * columns + i, mask=inside)
    product = tl.where(inside, yv * tl.load(dy + row * columns + i, mask=inside), 0.0)
    g = tl.load(dy + row * columns + i, mask=inside)
    tl.store(dx + row * columns + i, yv * (g - tl.sum(product, axis=0)), mask=inside)


@triton.jit
def rms_norm_masked(x, w, y, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    v = tl.load(x + row * columns + i, mask=inside)
    rstd = 1 / tl.sqrt(tl.sum(tl.where(inside, v * v, 0.0), axis=0) / columns + eps)
    tl.store(y + row * columns + i, v * rstd * tl.load(w + i, mask=inside), mask=inside)


@triton.jit
def dropout(x, out, n, keep, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, tl.where(tl.rand(seed, i) < keep, v / keep, 0.0), mask=i < n)


@triton.jit
def layernorm(x, y, w, b, mean_out, rstd_out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    v = tl.load(x + row * columns + i, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(v, axis=0) / columns
    d = tl.where(inside, v - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(d * d, axis=0) / columns + eps)
    tl.store(mean_out + row, mean)
    tl.store(rstd_out + row, rstd)
    tl.store(y + row * columns + i, d * rstd * tl.load(w + i, mask=inside) + tl.load(b + i, mask=inside), mask=inside)


@triton.jit
def layernorm_backward(dx, dy, x, w, mean, rstd, dw, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    g = tl.load(dy + row * columns + i, mask=inside, other=0.0)
    r = tl.load(rstd + row)
    h = (tl.load(x + row * columns + i, mask=inside, other=0.0) - tl.load(mean + row)) * r
    h = tl.where(inside, h, 0.0)
    p = tl.load(w + i, mask=inside, other=0.0) * g
    c1 = tl.sum(h * p, axis=0) / columns
    c2 = tl.sum(p, axis=0) / columns
    tl.store(dx + row * columns + i, (p - (h * c1 + c2)) * r, mask=inside)
    tl.atomic_add(dw + i, g * h, mask=inside)


@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, OUT: tl.constexpr, ZERO: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=OUT)
    for at in range(0, k, BK):
        av = tl.load(a + rows[:, None] * k + (at + inner)[None, :], mask=(rows[:, None] < m) & ((at + inner)[None, :] < k), other=ZERO)
        bv = tl.load(b + (at + inner)[:, None] * n + columns[None, :], mask=((at + inner)[:, None] < k) & (columns[None, :] < n), other=ZERO)
        total = tl.dot(av, bv, total, out_dtype=OUT)
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def grouped_matmul(a, b, c, sizes, groups, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Groups of rows of `a`, each times its own `b`; tiles are dealt round-robin to the programs."""
    tile = tl.program_id(0)
    first_tile = 0
    first_row = 0
    for g in range(groups):
        rows_of = tl.load(sizes + g)
        tiles = tl.cdiv(rows_of, BM) * tl.cdiv(n, BN)
        while tile >= first_tile and tile < first_tile + tiles:
            local = tile - first_tile
            row = local // tl.cdiv(n, BN) * BM + tl.arange(0, BM)
            column = local % tl.cdiv(n, BN) * BN + tl.arange(0, BN)
            inner = tl.arange(0, BK)
            total = tl.zeros((BM, BN), dtype=tl.float32)
            for at in range(0, k, BK):
                av = tl.load(a + (first_row + row)[:, None] * k + (at + inner)[None, :], mask=row[:, None] < rows_of, other=0)
                bv = tl.load(b + g * k * n + (at + inner)[:, None] * n + column[None, :], mask=column[None, :] < n, other=0)
                total = tl.dot(av, bv, total)
            tl.store(c + (first_row + row)[:, None] * n + column[None, :], total, mask=(row[:, None] < rows_of) & (column[None, :] < n))
            tile += tl.num_programs(0)
        first_tile += tiles
        first_row += rows_of


@triton.jit
def attention(q, k, v, out, length, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    head = tl.program_id(1) * length * D
    qv = tl.load(q + head + rows[:, None] * D + d[None, :], mask=rows[:, None] < length, other=0)
    m = tl.full((BM,), -float("inf"), tl.float32)
    s = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * BM, length) if CAUSAL else length
    for at in range(0, end, BN):
        columns = at + tl.arange(0, BN)
        kv = tl.load(k + head + columns[None, :] * D + d[:, None], mask=columns[None, :] < length, other=0)
        scores = tl.dot(qv, kv) * scale
        allowed = columns[None, :] < length
        if CAUSAL:
            allowed = allowed & (columns[None, :] <= rows[:, None])
        scores = tl.where(allowed, scores, -float("inf"))
        new = tl.maximum(m, tl.max(scores, axis=1))
        p = tl.exp(scores - new[:, None])
        fade = tl.exp(m - new)
        s = s * fade + tl.sum(p, axis=1)
        vv = tl.load(v + head + columns[:, None] * D + d[None, :], mask=columns[:, None] < length, other=0)
        acc = acc * fade[:, None] + tl.dot(p.to(vv.dtype), vv)
        m = new
    tl.store(out + head + rows[:, None] * D + d[None, :], acc / s[:, None], mask=rows[:, None] < length)


@triton.jit
def cumulative_sum(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.cumsum(tl.load(x + i, mask=i < n, other=0), axis=0), mask=i < n)


@triton.jit
def sort_rows(x, out, COLUMNS: tl.constexpr):
    i = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(out + i, tl.sort(tl.load(x + i)))


@triton.jit
def histogram(x, out, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.histogram(tl.load(x + i), BINS)
    tl.atomic_add(out + tl.arange(0, BINS), counts)


@triton.jit
def gelu(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n).to(tl.float32)
    tl.store(out + i, 0.5 * v * (1 + tl.erf(v * 0.7071067811865476)), mask=i < n)


@triton.jit
def argmax_rows(x, out, columns, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * columns + i, mask=i < columns, other=-float("inf"))
    tl.store(out + tl.program_id(0), tl.argmax(v, axis=0))
