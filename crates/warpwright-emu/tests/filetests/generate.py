#!/usr/bin/env python3
"""Writes file tests of `run/` whose expected values are worked out here, in exact rational arithmetic.

    python3 generate.py [FOLDER]

Nothing of this comes from the emulator: numbers are `fractions.Fraction`, rounding follows IEEE 754, the rules of
modifiers and special values follow the PTX manual. Only approximate functions use mpmath, with the bound of the manual.
"""

import random
import sys
from fractions import Fraction
from pathlib import Path

OUT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "run")
RANDOM = random.Random(20)
INF, NAN = "inf", "nan"


class Format:
    def __init__(self, exponent, mantissa, kind="ieee"):
        self.e, self.m, self.kind = exponent, mantissa, kind
        self.bias = (1 << exponent - 1) - 1
        self.bits = 1 + exponent + mantissa
        self.sign = 1 << self.bits - 1
        self.nan = {"ieee": self.sign - 1, "e4m3": 0x7F}[kind]
        self.largest = {"ieee": ((1 << exponent) - 1 << mantissa) - 1, "e4m3": 0x7E}[kind]
        self.infinity = self.largest + 1

    def decode(self, bits):
        """(sign, value): the value is a Fraction, INF or NAN."""
        sign, magnitude = bits >> self.bits - 1 & 1, bits & self.sign - 1
        if magnitude > self.largest:
            infinite = self.kind == "ieee" and magnitude == self.infinity
            return sign, INF if infinite else NAN
        e, m = magnitude >> self.m, magnitude & (1 << self.m) - 1
        if e == 0:
            return sign, Fraction(m) * Fraction(2) ** (1 - self.bias - self.m)
        return sign, Fraction(m + (1 << self.m)) * Fraction(2) ** (e - self.bias - self.m)

    def encode(self, sign, value, mode="rn", finite=False):
        """`mode` is rn, rz, rm, rp or rna; `finite` keeps the largest number instead of infinity."""
        if value == NAN:
            return self.nan
        top = self.largest if finite or self.kind != "ieee" else self.infinity
        if value == INF:
            return sign << self.bits - 1 | top
        if value == 0:
            return sign << self.bits - 1
        # The spacing of numbers around the value.
        exponent = 0
        while Fraction(2) ** exponent > value:
            exponent -= 1
        while Fraction(2) ** (exponent + 1) <= value:
            exponent += 1
        step = Fraction(2) ** (max(exponent, 1 - self.bias) - self.m)
        n, rest = divmod(value, step)
        n = int(n)
        half = rest / step
        up = {
            "rn": half > Fraction(1, 2) or half == Fraction(1, 2) and n % 2 == 1,
            "rna": half >= Fraction(1, 2),
            "rz": False,
            "rm": half != 0 and sign == 1,
            "rp": half != 0 and sign == 0,
        }[mode]
        rounded = (n + up) * step
        if rounded > self.decode(self.largest)[1]:
            away = mode in ("rn", "rna") or mode == ("rm" if sign else "rp")
            return sign << self.bits - 1 | (top if away else self.largest)
        if rounded == 0:
            return sign << self.bits - 1
        exponent = 0
        while Fraction(2) ** exponent > rounded:
            exponent -= 1
        while Fraction(2) ** (exponent + 1) <= rounded:
            exponent += 1
        if exponent < 1 - self.bias:
            return sign << self.bits - 1 | int(rounded / Fraction(2) ** (1 - self.bias - self.m))
        m = int(rounded / Fraction(2) ** (exponent - self.m)) - (1 << self.m)
        return sign << self.bits - 1 | exponent + self.bias << self.m | m

    def is_subnormal(self, bits):
        return 0 < bits & self.sign - 1 < 1 << self.m


F16, BF16, F32, F64 = Format(5, 10), Format(8, 7), Format(8, 23), Format(11, 52)
E4M3, E5M2 = Format(4, 3, "e4m3"), Format(5, 2)
TF32 = Format(8, 10)


def add(x, y, mode="rn"):
    (s, a), (t, b) = x, y
    if NAN in (a, b) or a == INF == b and s != t:
        return 0, NAN
    if a == INF:
        return x
    if b == INF:
        return y
    total = (-a if s else a) + (-b if t else b)
    if total == 0:
        return (s if a == b == 0 and s == t else int(mode == "rm")), Fraction(0)
    return int(total < 0), abs(total)


def mul(x, y):
    (s, a), (t, b) = x, y
    if NAN in (a, b) or INF in (a, b) and 0 in (a, b):
        return 0, NAN
    if INF in (a, b):
        return s ^ t, INF
    return s ^ t, a * b


def flush(f, bits):
    return bits & f.sign if f.is_subnormal(bits) else bits


def modified(f, bits, mods):
    """`.ftz`, `.sat` and `.relu` of a result."""
    if "ftz" in mods:
        bits = flush(f, bits)
    sign, value = f.decode(bits)
    if "sat" in mods:
        if value == NAN or sign:
            return 0
        return f.encode(0, Fraction(1)) if value == INF or value > 1 else bits
    if "relu" in mods and sign and value != NAN:
        return 0
    return bits


def arithmetic(op, f, mods=()):
    def run(*bits):
        if "ftz" in mods:
            bits = [flush(f, b) for b in bits]
        x = [f.decode(b) for b in bits]
        mode = next((m for m in mods if m in ("rn", "rz", "rm", "rp")), "rn")
        if op == "add":
            r = add(x[0], x[1], mode)
        elif op == "sub":
            r = add(x[0], (x[1][0] ^ 1, x[1][1]), mode)
        elif op == "mul":
            r = mul(x[0], x[1])
        else:
            r = add(mul(x[0], x[1]), x[2], mode)
        return modified(f, f.encode(*r, mode), mods)

    return run


def extreme(largest, f, mods=()):
    def run(a, b):
        if "ftz" in mods:
            a, b = flush(f, a), flush(f, b)
        sign = a >> f.bits - 1 ^ b >> f.bits - 1 if "xorsign" in mods else 0
        if "xorsign" in mods:
            a, b = a & f.sign - 1, b & f.sign - 1
        x, y = f.decode(a), f.decode(b)
        if x[1] == NAN and y[1] == NAN or "NaN" in mods and NAN in (x[1], y[1]):
            return f.nan
        if x[1] == NAN:
            r = b
        elif y[1] == NAN:
            r = a
        else:
            # -0 is below +0.
            key = lambda v: ((-1 if v[0] else 1) * (Fraction(2) ** 2000 if v[1] == INF else v[1]), -v[0])
            r = (max if largest else min)((key(x), a), (key(y), b))[1]
        return r ^ (f.sign if sign else 0)

    return run


def packed(f, n=2):
    """A function of elements applied to each half."""

    def run(*words):
        width = {2: 16}[n]
        mask = (1 << width) - 1
        return f(*(w & mask for w in words)) | f(*(w >> width & mask for w in words)) << width

    return run


def values(f, count):
    """Interesting bit patterns of a format."""
    special = [0, f.sign, 1, f.sign | 1, (1 << f.m) - 1, 1 << f.m, f.largest, f.infinity, f.sign | f.infinity, f.nan]
    one = f.encode(0, Fraction(1))
    near = [one, one + 1, one - 1, f.sign | one, f.encode(0, Fraction(1, 3)), f.encode(1, Fraction(5, 2))]
    pool = special + near
    while len(pool) < count:
        pool.append(RANDOM.getrandbits(f.bits))
    return pool[:count] if count < len(special + near) else pool


def tuples(f, arity, count, pair=False):
    """Cases of operands of a format, or of packed pairs of it."""
    pool = [v for v in values(f, 24) if f.decode(v)[1] != NAN or v == f.nan]
    out = []
    for i in range(count):
        pick = lambda: RANDOM.choice(pool) if RANDOM.random() < 0.7 else f.encode(
            RANDOM.getrandbits(1), Fraction(RANDOM.randrange(1, 4096), RANDOM.choice([256, 512, 1024, 3])))
        out.append(tuple(pick() | (pick() << 16 if pair else 0) for _ in range(arity)))
    return out


REGISTER = {"u8": ".b16", "u16": ".b16", "u32": ".b32", "u64": ".b64", "s32": ".b32", "s64": ".b64", "f32": ".f32", "f64": ".f64",
            "f16": ".b16", "bf16": ".b16", "s16": ".b16"}
SIZE = {"u8": 1, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "u32": 4, "s32": 4, "f32": 4, "u64": 8, "s64": 8, "f64": 8}
LOAD = {"f16": "b16", "bf16": "b16"}


def value_text(ty, v):
    if ty in ("f32", "f64", "f16", "bf16"):
        return f"bits:{v:#x}"
    return str(v) if ty.startswith("s") else f"{v:#x}"


def write(name, comment, args, result, body, cases, version="7.0", target="sm_80", declare="", before="", ulp=0):
    """`cases` are (operands, result); operands are in %a, %b, %c and the result goes to %d."""
    names = "abcdefgh".replace("d", "")[: len(args)]
    lines = [f"// {comment}", f"// sig: f({', '.join(args)}) -> {result}"]
    for operands, want in cases:
        texts = ", ".join(value_text(t, v) for t, v in zip(args, operands))
        lines.append(f"// run: f({texts}) == {value_text(result, want)}" + (f" within {ulp} ulp" if ulp else ""))
    lines += [f".version {version}", f".target {target}", ".address_size 64"]
    lines += [before.strip()] if before.strip() else []
    params = ", ".join([f".param .u64 p{i}" for i in range(len(args))] + [".param .u64 out"])
    lines += ["", f".visible .entry f({params})", "{", "    .reg .b32 %t;", "    .reg .b64 %p<16>;"]
    lines += [f"    .reg {REGISTER[t]} %{n};" for n, t in zip(names, args)]
    lines += [f"    .reg {REGISTER[result]} %d;"]
    lines += [f"    {line.strip()}" for line in declare.strip().splitlines()]
    lines += ["", "    mov.u32 %t, %tid.x;"]
    for i, (n, t) in enumerate(zip(names, args)):
        lines += [f"    ld.param.u64 %p0, [p{i}];", f"    mul.wide.u32 %p1, %t, {SIZE[t]};", "    add.s64 %p2, %p0, %p1;",
                  f"    ld.global.{LOAD.get(t, t)} %{n}, [%p2];"]
    lines += [f"    {line.strip()}" for line in body.strip().splitlines()]
    lines += ["    ld.param.u64 %p0, [out];", f"    mul.wide.u32 %p1, %t, {SIZE[result]};", "    add.s64 %p2, %p0, %p1;",
              f"    st.global.{LOAD.get(result, result)} [%p2], %d;", "    ret;", "}", ""]
    (OUT / f"{name}.ptx").write_text("\n".join(lines))


def cases(function, operands):
    return [(o, function(*o)) for o in operands]


def halves():
    """Arithmetic of halves, alone and packed."""
    for ty, f in (("f16", F16), ("bf16", BF16)):
        t = {"f16": "sm_80", "bf16": "sm_90"}[ty]
        v = {"f16": "7.0", "bf16": "7.8"}[ty]
        pair = [p[0] for p in tuples(f, 1, 12, True)]
        sign = lambda op: packed(lambda x: x ^ f.sign if op == "neg" else x & f.sign - 1)
        for op in ("neg", "abs"):
            write(f"{op}.{ty}x2", "Both halves; only the signs change.", ["u32"], "u32", f"{op}.{ty}x2 %d, %a;",
                  [((p,), sign(op)(p)) for p in pair])
        for op in ("min", "max"):
            for mods, text in (((), ""), (("NaN",), ".NaN"), (("xorsign",), ".xorsign.abs"), (("NaN", "xorsign"), ".NaN.xorsign.abs")):
                x = "xorsign" in mods
                g = extreme(op == "max", f, mods)
                more = dict(version="7.2" if x else "7.0", target="sm_86" if x else "sm_80")
                write(f"{op}{text}.{ty}x2", "Both halves.", ["u32", "u32"], "u32", f"{op}{text}.{ty}x2 %d, %a, %b;",
                      cases(packed(g), tuples(f, 2, 16, True)), **more)
                if x:
                    write(f"{op}{text}.{ty}", "The sign is that of the product.", ["u16", "u16"], "u16",
                          f"{op}{text}.{ty} %d, %a, %b;", cases(g, tuples(f, 2, 16)), **more)
        g = arithmetic("fma", f, ("relu",))
        write(f"fma.rn.relu.{ty}x2", "Negative halves become +0.", ["u32"] * 3, "u32", f"fma.rn.relu.{ty}x2 %d, %a, %b, %c;",
              cases(packed(g), tuples(f, 3, 16, True)), version=v if ty == "bf16" else "7.0", target=t)
    for op, n in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3)):
        for mods in (("sat",), ("ftz",), ("ftz", "sat")):
            rnd = ".rn" if op == "fma" else ""
            text = rnd + "".join(f".{m}" for m in mods)
            g = arithmetic(op, F16, mods)
            regs = ", ".join(["%a", "%b", "%c"][:n])
            write(f"{op}{text}.f16x2", "Both halves.", ["u32"] * n, "u32", f"{op}{text}.f16x2 %d, {regs};",
                  cases(packed(g), tuples(F16, n, 16, True)))
            write(f"{op}{text}.f16", "One half.", ["u16"] * n, "u16", f"{op}{text}.f16 %d, {regs};", cases(g, tuples(F16, n, 16)))
    for op in ("min", "max"):
        for mods, text in ((("xorsign",), ".xorsign.abs"), (("NaN", "xorsign"), ".NaN.xorsign.abs"), (("ftz",), ".ftz")):
            write(f"{op}{text}.f32", "Single precision.", ["f32"] * 2, "f32", f"{op}{text}.f32 %d, %a, %b;",
                  cases(extreme(op == "max", F32, mods), tuples(F32, 2, 16)), version="7.2", target="sm_86")
    # A comparison of each half.
    test = {
        "lt": lambda x, y: order(x, y) == -1, "ge": lambda x, y: order(x, y) in (0, 1), "eq": lambda x, y: order(x, y) == 0,
        "gtu": lambda x, y: order(x, y) in (1, None), "neu": lambda x, y: order(x, y) != 0, "nan": lambda x, y: order(x, y) is None,
    }

    def order(x, y):
        if NAN in (x[1], y[1]):
            return None
        key = lambda v: (-1 if v[0] else 1) * (Fraction(2) ** 2000 if v[1] == INF else v[1])
        return (key(x) > key(y)) - (key(x) < key(y))

    for ty, f in (("f16", F16), ("bf16", BF16)):
        more = dict(version="7.8", target="sm_90")
        one = f.encode(0, Fraction(1))
        for cmp, hit in test.items():
            g = lambda true: packed(lambda a, b: true if hit(f.decode(a), f.decode(b)) else 0)
            write(f"set.{cmp}.{ty}x2.{ty}x2", "1.0 in each half where true.", ["u32"] * 2, "u32",
                  f"set.{cmp}.{ty}x2.{ty}x2 %d, %a, %b;", cases(g(one), tuples(f, 2, 16, True)), **more)
            write(f"set.{cmp}.u32.{ty}x2", "All ones in each half where true.", ["u32"] * 2, "u32",
                  f"set.{cmp}.u32.{ty}x2 %d, %a, %b;", cases(g(0xFFFF), tuples(f, 2, 16, True)), **more)
            both = lambda a, b: (hit(f.decode(a & 0xFFFF), f.decode(b & 0xFFFF)) + 2 * hit(f.decode(a >> 16), f.decode(b >> 16)))
            write(f"setp.{cmp}.{ty}x2", "Bit 0: the lower halves, bit 1: the upper ones.", ["u32"] * 2, "u32",
                  f"setp.{cmp}.{ty}x2 %x|%y, %a, %b;\nselp.u32 %d, 1, 0, %x;\n@%y add.u32 %d, %d, 2;",
                  cases(both, tuples(f, 2, 16, True)), declare=".reg .pred %x, %y;", **more)


def approximations():
    """Within the bounds of the manual."""
    import mpmath

    mpmath.mp.prec = 200

    def wrap(f, function):
        def run(bits):
            sign, value = f.decode(bits)
            if value == NAN:
                return f.nan
            x = mpmath.mpf(-1 if sign else 1) * (mpmath.inf if value == INF else mpmath.mpf(value.numerator) / value.denominator)
            y = function(x)
            if y == mpmath.inf:
                return f.infinity
            if y == 0:
                return sign * f.sign if x == 0 else 0
            s, m, e, _ = y._mpf_
            return f.encode(int(s), Fraction(int(m)) * Fraction(2) ** int(e))

        return run

    pool = [F64.encode(0, Fraction(n, d)) for n, d in ((1, 1), (2, 1), (3, 1), (1, 3), (10**20, 7), (7, 10**20), (4, 1))] + [F64.largest, F64.infinity, 0, F64.sign]
    root = wrap(F64, lambda x: 1 / mpmath.sqrt(x) if x else mpmath.inf)
    wanted = [((p,), F64.sign | F64.infinity if p == F64.sign else root(p)) for p in pool]
    write("rsqrt.approx.f64", "Nearly full precision, unlike the flushing form.", ["f64"], "f64", "rsqrt.approx.f64 %d, %a;", wanted, ulp=2)

    points = lambda f: [f.encode(s, Fraction(n, d)) for s in (0, 1) for n, d in ((0, 1), (1, 8), (1, 3), (1, 1), (5, 2), (7, 1))]
    for ty, f in (("f16", F16), ("bf16", BF16)):
        more = dict(version="7.0", target="sm_75") if ty == "f16" else dict(version="7.8", target="sm_90")
        ex2 = "ex2.approx.f16" if ty == "f16" else "ex2.approx.ftz.bf16"
        for name, function, text in (("ex2", lambda x: mpmath.power(2, x), ex2), ("tanh", mpmath.tanh, f"tanh.approx.{ty}")):
            g = wrap(f, function)
            ends = [f.infinity, f.sign | f.infinity, f.nan]
            pool = points(f) + ends
            write(text, "Within the bound of the manual.", ["u16"], "u16", f"{text} %d, %a;", [((p,), g(p)) for p in pool], ulp=2, **more)
            packed_text = text[: -len(ty)] + ty + "x2"
            swapped = [(p | q << 16, g(p), g(q)) for p, q in zip(pool, pool[::-1])]
            for half in (0, 1):
                write(f"{packed_text}.{'upper' if half else 'lower'}", "One half of the result.", ["u32"], "u16",
                      f"{packed_text} %x, %a;\nmov.b32 {{%lo, %hi}}, %x;\nmov.b16 %d, %{'hi' if half else 'lo'};",
                      [((w,), r[half]) for w, *r in swapped], declare=".reg .b32 %x;\n.reg .b16 %lo, %hi;", ulp=2, **more)


def conversions():
    near = lambda f: [f.largest, f.largest + 1 if f.kind == "ieee" else f.largest]
    singles = [F32.encode(s, v) for s in (0, 1) for v in (
        Fraction(0), Fraction(1), Fraction(3, 2), Fraction(1, 3), Fraction(65504), Fraction(65519), Fraction(65520), Fraction(70000),
        Fraction(448), Fraction(449), Fraction(463), Fraction(464), Fraction(465), Fraction(57344), Fraction(61440), Fraction(1, 512),
        Fraction(1, 1024), Fraction(3, 2048), Fraction(1, 65536), Fraction(1, 131072), Fraction(2) ** -30, Fraction(2) ** 100,
        Fraction(17, 16), Fraction(19, 16))]
    singles += [F32.infinity, F32.sign | F32.infinity, F32.nan, F32.largest, 1, 0x3F801000, 0x3F803000, 0xBF801000, 0x3F800FFF]

    def convert(target, mode, mods, source=F32):
        def run(bits):
            sign, value = source.decode(bits)
            if value == NAN:
                return target.nan
            finite = "satfinite" in mods
            return modified(target, target.encode(sign, value, mode, finite), mods)

        return run

    one = [(b,) for b in singles]
    for ty, f in (("f16", F16), ("bf16", BF16)):
        for mode in ("rn", "rz"):
            for mods in (("satfinite",), ("relu",), ("relu", "satfinite")):
                text = f"cvt.{mode}.{'.'.join(mods)}"
                more = dict(version="8.1", target="sm_80")
                g = convert(f, mode, mods)
                write(f"{text}.{ty}.f32", "Clamped as the modifiers say.", ["f32"], "u16", f"{text}.{ty}.f32 %d, %a;", cases(g, one), **more)
                pairs = [(a, b) for (a,), (b,) in zip(one, one[::-1])]
                write(f"{text}.{ty}x2.f32", "The first source becomes the upper half.", ["f32", "f32"], "u32",
                      f"{text}.{ty}x2.f32 %d, %a, %b;", cases(lambda a, b: g(a) << 16 | g(b), pairs), **more)
    # tf32 keeps 13 zero bits below its mantissa.
    tf32 = lambda mode, mods: lambda b: (F32.nan if F32.decode(b)[1] == NAN else modified(
        F32, TF32.encode(*F32.decode(b), mode, "satfinite" in mods) << 13, mods))
    for mode, mods, v, t in (("rn", (), "7.8", "sm_90"), ("rz", (), "7.8", "sm_90"), ("rn", ("relu",), "7.8", "sm_90"),
                             ("rz", ("relu",), "7.8", "sm_90"), ("rna", ("satfinite",), "8.1", "sm_80"),
                             ("rn", ("satfinite",), "8.6", "sm_100"), ("rn", ("satfinite", "relu"), "8.6", "sm_100")):
        text = ".".join(["cvt", mode, *mods, "tf32.f32"])
        numbers = [o for o in one if F32.decode(o[0])[1] != NAN]
        write(text, "The upper 19 bits, rounded.", ["f32"], "u32", f"{text} %d, %a;", cases(tf32(mode, mods), numbers), version=v, target=t)
    for ty, f in (("e4m3x2", E4M3), ("e5m2x2", E5M2)):
        more = dict(version="8.1", target="sm_89")
        pairs = [(a, b) for (a,), (b,) in zip(one, one[::-1])]
        for mods in (("satfinite",), ("satfinite", "relu")):
            text = "cvt.rn." + ".".join(mods)
            g = convert(f, "rn", mods)
            write(f"{text}.{ty}.f32", "The first source becomes the upper byte.", ["f32", "f32"], "u16", f"{text}.{ty}.f32 %d, %a, %b;",
                  cases(lambda a, b: g(a) << 8 | g(b), pairs), **more)
            h = convert(f, "rn", mods, F16)
            words = [(F16.encode(*F32.decode(a)) | F16.encode(*F32.decode(b)) << 16,) for a, b in pairs]
            write(f"{text}.{ty}.f16x2", "Half by half.", ["u32"], "u16", f"{text}.{ty}.f16x2 %d, %a;",
                  cases(lambda w: h(w >> 16) << 8 | h(w & 0xFFFF), words), **more)
        for mods in ((), ("relu",)):
            text = "cvt.rn" + "".join(f".{m}" for m in mods)
            back = convert(F16, "rn", mods, f)
            words = [(b | (255 - b) << 8,) for b in range(0, 256, 5)]
            write(f"{text}.f16x2.{ty}", "Every number of 8 bits is a half.", ["u16"], "u32", f"{text}.f16x2.{ty} %d, %a;",
                  cases(lambda w: back(w >> 8) << 16 | back(w & 0xFF), words), **more)
    # bf16 and integers, other halves, f64.
    more = dict(version="7.8", target="sm_90")
    bf = [(b,) for b in values(BF16, 30) if BF16.decode(b)[1] != NAN or b == BF16.nan]
    for mode in ("rni", "rzi", "rmi", "rpi"):
        for width, signed in ((16, True), (32, True), (32, False), (64, True)):
            ty = f"{'s' if signed else 'u'}{width}"

            def to_integer(bits):
                sign, value = BF16.decode(bits)
                low, high = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)
                if value == NAN:
                    return (-(1 << 63) if signed else 1 << 63) if width == 64 else 0
                if value == INF:
                    return low if sign else high
                x = -value if sign else value
                floor = x.numerator // x.denominator
                r = {"rmi": floor, "rpi": -((-x.numerator) // x.denominator), "rzi": int(x), "rni": round(x)}[mode]
                return max(low, min(high, r))

            write(f"cvt.{mode}.{ty}.bf16", "Rounded to an integer and clamped.", ["u16"], ty, f"cvt.{mode}.{ty}.bf16 %d, %a;",
                  cases(to_integer, bf), **more)
    for ty, numbers in (("s32", [0, 1, -1, 255, 256, 257, -259, 2147483647, -2147483648, 16777217]),
                        ("u64", [0, 1, 511, 513, 1 << 63, (1 << 64) - 1, 123456789012345])):
        for mode in ("rn", "rz", "rm", "rp"):
            g = lambda v: BF16.encode(int(v < 0), Fraction(abs(v)), mode)
            write(f"cvt.{mode}.bf16.{ty}", "Rounded once.", [ty], "u16", f"cvt.{mode}.bf16.{ty} %d, %a;", [((v,), g(v)) for v in numbers], **more)
    halves_of = [(b,) for b in values(F16, 30) if F16.decode(b)[1] != NAN or b == F16.nan]
    write("cvt.rn.bf16.f16", "A half with fewer bits.", ["u16"], "u16", "cvt.rn.bf16.f16 %d, %a;", cases(convert(BF16, "rn", (), F16), halves_of), **more)
    write("cvt.rn.f16.bf16", "A half with a smaller range.", ["u16"], "u16", "cvt.rn.f16.bf16 %d, %a;", cases(convert(F16, "rn", (), BF16), bf), **more)
    write("cvt.f64.bf16", "Exact.", ["u16"], "u64", "cvt.f64.bf16 %d, %a;", [(b, convert(F64, "rn", (), BF16)(*b)) for b in bf if BF16.decode(b[0])[1] != NAN], **more)


def integers():
    word = lambda: RANDOM.choice([0, 1, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0x80FF7F01]) if RANDOM.random() < 0.4 else RANDOM.getrandbits(32)
    signed = lambda v, n: v - (1 << n) if v >> n - 1 & 1 else v
    for high in (0, 1):
        for s in (True, False):
            for t in (True, False):
                def dp2a(a, b, c):
                    total = c
                    for i in range(2):
                        x, y = a >> 16 * i & 0xFFFF, b >> 8 * (i + 2 * high) & 0xFF
                        total += (signed(x, 16) if s else x) * (signed(y, 8) if t else y)
                    return total & 0xFFFFFFFF

                name = f"dp2a.{'hi' if high else 'lo'}.{'s32' if s else 'u32'}.{'s32' if t else 'u32'}"
                write(name, "Two halves times two bytes.", ["u32"] * 3, "u32", f"{name} %d, %a, %b, %c;",
                      cases(dp2a, [(word(), word(), word()) for _ in range(12)]))

    def fns(mask, base, offset):
        if offset == 0:
            return base if mask >> base & 1 else 0xFFFFFFFF
        at, count = base, abs(offset) - 1
        while 0 <= at < 32:
            if mask >> at & 1:
                if count == 0:
                    return at
                count -= 1
            at += 1 if offset > 0 else -1
        return 0xFFFFFFFF

    write("fns.b32", "The n-th set bit from a base.", ["u32", "u32", "s32"], "u32", "fns.b32 %d, %a, %b, %c;",
          cases(fns, [(word(), RANDOM.randrange(32), RANDOM.randrange(-9, 10)) for _ in range(30)]))
    for op in ("or", "and"):
        for lut in (0xE8, 0x80):
            def lop(a, b, c):
                r = 0
                for i in range(32):
                    r |= (lut >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i
                hit, q = r != 0, c & 1 == 0
                return r ^ (0x55555555 if (hit or q if op == "or" else hit and q) else 0)

            write(f"lop3.{op}.b32.{lut:x}", "The predicate flips every other bit of the result.", ["u32"] * 3, "u32",
                  f"and.b32 %x, %c, 1;\nsetp.ne.u32 %q, %x, 0;\nlop3.{op}.b32 %d|%r, %a, %b, %c, {lut:#x}, !%q;\n@%r xor.b32 %d, %d, 0x55555555;",
                  cases(lop, [(word(), word(), word()) for _ in range(14)] + [(0, 0, 0), (0, 0, 1), (0, 1, 0)]),
                  version="8.2", declare=".reg .pred %q, %r;\n.reg .b32 %x;")
    for ty, n in (("u16", 16), ("s16", 16), ("u8", 8), ("s8", 8), ("u4", 4), ("s2", 2)):
        low, high = (0, (1 << n) - 1) if ty[0] == "u" else (-(1 << n - 1), (1 << n - 1) - 1)
        clamp = lambda v: max(low, min(high, v)) & (1 << n) - 1
        pool = [0, 1, -1, 5, -9, 127, 128, 255, 256, -128, -129, 32767, 32768, 65535, 65536, -32769, 2147483647, -2147483648]
        pairs = [(RANDOM.choice(pool), RANDOM.choice(pool), word()) for _ in range(16)]
        more = dict(version="6.5", target="sm_75")
        if n == 16:
            write(f"cvt.pack.sat.{ty}", "The first source becomes the upper half.", ["s32", "s32"], "u32", f"cvt.pack.sat.{ty}.s32 %d, %a, %b;",
                  cases(lambda a, b: clamp(a) << 16 | clamp(b), [p[:2] for p in pairs]), **more)
        else:
            write(f"cvt.pack.sat.{ty}", "Below the low bits of the third source.", ["s32", "s32", "u32"], "u32", f"cvt.pack.sat.{ty}.s32.b32 %d, %a, %b, %c;",
                  cases(lambda a, b, c: (c << 2 * n | clamp(a) << n | clamp(b)) & 0xFFFFFFFF, pairs), **more)
    half = lambda op, s: packed(lambda a, b: {"add": lambda: a + b & 0xFFFF, "min": lambda: min((signed(a, 16), a), (signed(b, 16), b))[1] if s else min(a, b),
                                              "max": lambda: max((signed(a, 16), a), (signed(b, 16), b))[1] if s else max(a, b)}[op]())
    for op in ("add", "min", "max"):
        for ty in ("u16x2", "s16x2"):
            write(f"{op}.{ty}", "Both halves.", ["u32"] * 2, "u32", f"{op}.{ty} %d, %a, %b;",
                  cases(half(op, ty == "s16x2"), [(word(), word()) for _ in range(14)]), version="8.0", target="sm_90")
    for op in ("min", "max"):
        relu = packed(lambda v: 0 if v >> 15 else v)
        write(f"{op}.relu.s16x2", "Negative halves become 0.", ["u32"] * 2, "u32", f"{op}.relu.s16x2 %d, %a, %b;",
              cases(lambda a, b: relu(half(op, True)(a, b)), [(word(), word()) for _ in range(14)]), version="8.0", target="sm_90")
        write(f"{op}.relu.s32", "Negative results become 0.", ["u32"] * 2, "u32", f"{op}.relu.s32 %d, %a, %b;",
              cases(lambda a, b: max(0, (min if op == "min" else max)(signed(a, 32), signed(b, 32))), [(word(), word()) for _ in range(14)]),
              version="8.0", target="sm_90")
    for ty, n in (("b16", 16), ("u64", 64), ("s32", 32)):
        args = [{16: "u16", 32: "u32", 64: "u64"}[n]] * 2
        wide = lambda: RANDOM.getrandbits(n)
        write(f"slct.{ty}.s32", "The first where the selector is not negative.", args + ["s32"], args[0], f"slct.{ty}.s32 %d, %a, %b, %c;",
              cases(lambda a, b, c: a if c >= 0 else b, [(wide(), wide(), c) for c in (0, 1, -1, 2147483647, -2147483648)]))
    selectors = [0, 0x80000000, F32.encode(0, Fraction(1)), F32.encode(1, Fraction(1)), F32.infinity, F32.sign | F32.infinity, F32.nan, 1, 0x80000001]

    def slct(ftz):
        def run(a, b, c):
            c = flush(F32, c) if ftz else c
            sign, value = F32.decode(c)
            return a if value != NAN and (value == 0 or not sign) else b
        return run

    for ftz in ("", ".ftz"):
        write(f"slct{ftz}.f64.f32", "NaN selects the second.", ["u64", "u64", "f32"], "u64", f"slct{ftz}.f64.f32 %x, %fa, %fb, %c;\nmov.b64 %d, %x;".replace("slct", "mov.b64 %fa, %a;\nmov.b64 %fb, %b;\nslct", 1),
              cases(slct(bool(ftz)), [(RANDOM.getrandbits(62), RANDOM.getrandbits(62), c) for c in selectors]), declare=".reg .f64 %x, %fa, %fb;")


def wide_singles():
    """Pairs of single precision, sm_100."""
    more = dict(version="8.6", target="sm_100")
    for op, n in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3)):
        for mods in (("rn",), ("rz",), ("rn", "ftz")):
            if op == "sub" and "ftz" in mods:
                continue
            g = arithmetic(op, F32, mods)
            two = lambda *w: g(*(x & 0xFFFFFFFF for x in w)) | g(*(x >> 32 for x in w)) << 32
            text = f"{op}.{'.'.join(mods)}.f32x2"
            lows, highs = tuples(F32, n, 14), tuples(F32, n, 14)
            words = [tuple(a | b << 32 for a, b in zip(x, y)) for x, y in zip(lows, highs)]
            write(text, "Both numbers.", ["u64"] * n, "u64", f"{text} %d, {', '.join(['%a', '%b', '%c'][:n])};", cases(two, words), **more)
    for op in ("add", "sub", "fma"):
        for narrow, f in (("f16", F16), ("bf16", BF16)):
            def mixed(*bits):
                x = [f.decode(b) for b in bits[:-1]]
                s, v = F32.decode(bits[-1])
                r = add(mul(*x), (s, v)) if op == "fma" else add(x[0], (s ^ (op == "sub"), v))
                return F32.encode(*r)

            args = ["u16"] * (2 if op == "fma" else 1) + ["f32"]
            regs = ["%a", "%b", "%c"][: len(args)]
            operands = [x + y for x, y in zip(tuples(f, len(args) - 1, 14), tuples(F32, 1, 14))]
            write(f"{op}.rn.f32.{narrow}", "A half and single precision.", args, "f32", f"{op}.rn.f32.{narrow} %d, {', '.join(regs)};", cases(mixed, operands), **more)
    for op in ("min", "max"):
        for mods, text in (((), ""), (("NaN",), ".NaN"), (("ftz",), ".ftz")):
            g = extreme(op == "max", F32, mods)
            # A NaN that counts stays; one that does not gives way to any number.
            three = lambda a, b, c: F32.nan if "NaN" in mods and NAN in [F32.decode(v)[1] for v in (a, b, c)] else g(g(a, b), c)
            write(f"{op}{text}.f32.3", "Three operands.", ["f32"] * 3, "f32", f"{op}{text}.f32 %d, %a, %b, %c;", cases(three, tuples(F32, 3, 16)), version="8.8", target="sm_100")


def vectors():
    """Vector reductions: each thread adds to its own elements, and the file returns them in turn."""
    more = dict(version="8.1", target="sm_90")
    for n in (2, 4):
        regs = ", ".join(f"%x{i}" for i in range(n))
        fill = "\n".join(f"add.rn.f32 %x{i}, %b, {F32_TEXT[i]};" for i in range(n))
        text = f"""
            mov.u64 %p8, buffer;\nmul.wide.u32 %p9, %t, {4 * n};\nadd.u64 %p8, %p8, %p9;
            st.global.v{n}.f32 [%p8], {{{', '.join(['%a'] * n)}}};
            {fill}
            red.global.add.v{n}.f32 [%p8], {{{regs}}};
            ld.global.v{n}.f32 {{{regs}}}, [%p8];
            mov.f32 %d, %x0;
            """ + "\n".join(f"fma.rn.f32 %d, %x{i}, {F32_TEXT[4 + i]}, %d;" for i in range(1, n))
        f = lambda op, *v: arithmetic(op, F32)(*v)

        def total(a, b):
            k = [F32.encode(0, Fraction(i)) for i in range(8)]
            x = [f("add", a, f("add", b, k[i])) for i in range(n)]
            d = x[0]
            for i in range(1, n):
                d = f("fma", x[i], k[4 + i], d)
            return d

        numbers = [(F32.encode(RANDOM.getrandbits(1), Fraction(RANDOM.randrange(1, 999), 8)), F32.encode(0, Fraction(RANDOM.randrange(99), 4))) for _ in range(8)]
        declare = f".reg .f32 {regs};"
        before = ".global .align 16 .b8 buffer[4096];"
        write(f"red.global.add.v{n}.f32", "Every element is added to.", ["f32", "f32"], "f32", text, cases(total, numbers), declare=declare, before=before, **more)
        atom = text.replace(f"red.global.add.v{n}.f32 [", f"atom.global.add.v{n}.f32 {{{', '.join(f'%y{i}' for i in range(n))}}}, [")
        atom += f"\nadd.rn.f32 %d, %d, %y{n - 1};"
        found = lambda a, b: f("add", total(a, b), a)
        write(f"atom.global.add.v{n}.f32", "Every element is added to, and the last one that was found too.", ["f32", "f32"], "f32", atom,
              cases(found, numbers), declare=declare + f"\n.reg .f32 {', '.join(f'%y{i}' for i in range(n))};", before=before, **more)
    for ty, f in (("f16", F16), ("bf16", BF16)):
        g = arithmetic("add", f)
        for n in (2, 4):
            regs = ", ".join(f"%x{i}" for i in range(n))
            text = f"""
                mov.u64 %p8, buffer;\nmul.wide.u32 %p9, %t, {4 * n};\nadd.u64 %p8, %p8, %p9;
                st.global.v{n}.b32 [%p8], {{{', '.join(['%a'] * n)}}};
                """ + "\n".join(f"add.u32 %x{i}, %b, {i};" for i in range(n)) + f"""
                red.global.add.noftz.v{n}.{ty}x2 [%p8], {{{regs}}};
                ld.global.v{n}.b32 {{{regs}}}, [%p8];
                mov.b32 %d, %x0;
                """ + "\n".join(f"mad.lo.u32 %d, %d, 31, %x{i};" for i in range(1, n))

            def total(a, b):
                d = 0
                for i in range(n):
                    d = d * 31 + packed(g)(a, b + i) & 0xFFFFFFFF
                return d

            numbers = [tuple(f.encode(0, Fraction(RANDOM.randrange(1, 99), 8)) | f.encode(1, Fraction(RANDOM.randrange(1, 99), 4)) << 16 for _ in range(2)) for _ in range(8)]
            write(f"red.global.add.noftz.v{n}.{ty}x2", "Every half of every element is added to.", ["u32", "u32"], "u32", text, cases(total, numbers),
                  declare=f".reg .b32 {regs};", before=".global .align 16 .b8 buffer[4096];", **more)


def video():
    """The two halves or four bytes of words, from the text of the manual."""
    word = lambda: RANDOM.choice([0, 0xFFFFFFFF, 0x80808080, 0x7F80FF01, 0x8000FFFF]) if RANDOM.random() < 0.3 else RANDOM.getrandbits(32)
    signed = lambda v, n: v - (1 << n) if v >> n - 1 & 1 else v

    def model(op, n, d, a_type, b_type, sat, add, mask, asel, bsel):
        bits = 32 // n

        def run(a, b, c):
            pool = [(w >> bits * i) & (1 << bits) - 1 for w in (a, b) for i in range(n)]
            total, merged = c, c
            for i in range(n):
                x, y = pool[asel[i]], pool[bsel[i]]
                x, y = (signed(x, bits) if a_type == "s32" else x), (signed(y, bits) if b_type == "s32" else y)
                t = {"vadd": x + y, "vsub": x - y, "vavrg": x + y + (x + y >= 0) >> 1, "vabsdiff": abs(x - y), "vmin": min(x, y), "vmax": max(x, y)}[op]
                if sat:
                    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if d == "s32" else (0, (1 << bits) - 1)
                    t = min(max(t, low), high)
                if mask >> i & 1:
                    total += t
                    merged = merged & ~(((1 << bits) - 1) << bits * i) | (t & (1 << bits) - 1) << bits * i
            return (total if add else merged) & 0xFFFFFFFF
        return run

    for op in ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"):
        for n, letter in ((2, "h"), (4, "b")):
            forms = [("u32", "u32", "u32", "", "", None), ("s32", "s32", "s32", "", "", None), ("s32", "s32", "u32", ".sat", "", None),
                     ("u32", "u32", "s32", ".sat", "", None), ("u32", "u32", "u32", "", ".add", None), ("s32", "s32", "s32", "", ".add", 1)]
            for d, s, t, sat, add, chosen in forms:
                everything, asel, bsel = (1 << n) - 1, list(range(n)), list(range(n, 2 * n))
                mask, text = everything, ("", "", "")
                if chosen:
                    mask, asel, bsel = 2, [RANDOM.randrange(2 * n) for _ in range(n)], [RANDOM.randrange(2 * n) for _ in range(n)]
                    text = (f".{letter}1",) + tuple(f".{letter}" + "".join(map(str, reversed(sel))) for sel in (asel, bsel))
                name = f"{op}{n}.{d}.{s}.{t}{sat}{add}"
                write(name + (".selected" if chosen else ""), "Video arithmetic, lane by lane.", ["u32"] * 3, "u32",
                      f"{name} %d{text[0]}, %a{text[1]}, %b{text[2]}, %c;",
                      cases(model(op, n, d, s, t, sat, add, mask, asel, bsel), [(word(), word(), word()) for _ in range(10)]))


F32_TEXT = [f"0f{F32.encode(0, Fraction(i)):08X}" for i in range(8)]


if __name__ == "__main__":
    halves()
    approximations()
    conversions()
    integers()
    wide_singles()
    vectors()
    video()
