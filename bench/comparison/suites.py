"""Cases: what is measured, and the fewest bytes that it must move."""

from __future__ import annotations

import itertools
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

SIZES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2}
GATED = ("swiglu", "geglu", "geglu_tanh")
# Gates of the recurrent nets.
GATES = {"lstm": 4, "gru": 3, "lstm_cell": 4}
# Operations whose results are images of other extents.
IMAGES = ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool", "resize")
GROUP = 64
NESTED_BLOCK = 256
# Elements of a 4-bit weight that share a scale, and its bytes.
WEIGHT_GROUPS = {"nf4": (64, 4), "mxfp4": (32, 1), "nvfp4": (16, 1)}


# Tensors of the size of x that an operation reads and writes, forward and backward, where that is not 2 and 3.
TRAFFIC = {
    "adamw_step": (7, 0),
    "add": (3, 2),
    "cross_entropy": (1, 2),
    "dropout_add": (3, 3),
    "geglu": (3, 5),
    "geglu_tanh": (3, 5),
    "selective_scan": (4, 7),
    "sum": (1, 1),
    "swiglu": (3, 5),
}
# What an option adds to that.
MORE = {"residual": (2, 1), "mask": (1, 1)}


@dataclass(frozen=True)
class Case:
    op: str
    case: str
    shape: tuple[int, ...]
    dtype: str
    direction: str
    options: tuple[tuple[str, Any], ...] = ()

    def option(self, name: str, otherwise: Any = None) -> Any:
        return dict(self.options).get(name, otherwise)

    @property
    def factors(self) -> str:
        """The type that the factors of products are rounded to."""
        if self.op == "scaled_matmul":
            # Products of 8-bit integers are as fast.
            return "e4m3"
        return "tf32" if self.option("precision") == "tf32" else self.dtype

    @property
    def convolution(self) -> tuple[int, int, int, int]:
        """Elements of the images, the weight and the results of a convolution, and the products that each result is a sum of."""
        batch, channels, *extents = self.shape
        filters, kernel = self.option("filters"), self.option("kernel")
        span = self.option("dilation", 1) * (kernel - 1) + 1
        room = 2 * self.option("padding", 0) - span
        outputs = [(extent + room) // self.option("stride", 1) + 1 for extent in extents]
        terms = channels // self.option("groups", 1) * kernel ** len(extents)
        return self.elements, filters * terms, batch * filters * math.prod(outputs), terms

    @property
    def terms(self) -> int:
        """The products that each element of the result of a pass of a convolution is a sum of, at the most."""
        *_, results, terms = self.convolution
        channels, filters = self.shape[1], self.option("filters")
        return {"forward": terms, "dx": terms * filters // channels, "dweight": results // filters}[self.direction]

    @property
    def pixels(self) -> int:
        """Elements of the result of an operation on images that gives them other extents."""
        batch, channels, *extents = self.shape
        kernel, scale = self.option("kernel"), self.option("scale")
        room = 2 * self.option("padding", 0)
        if kernel:
            outputs = [(extent + room - kernel) // self.option("stride", kernel) + 1 for extent in extents]
        else:
            outputs = [math.floor(extent * scale) if scale else self.option("output") for extent in extents]
        return batch * channels * math.prod(outputs)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Each input read once, each output written once; vectors of channels or rows are left out."""
        n, size = self.elements, SIZES[self.dtype]
        if self.op == "matmul":
            rows, cols, depth = self.shape
            return (rows * depth + depth * cols + rows * cols) * size
        if self.op == "conv":
            # Of each pass one of them is the result.
            images, weight, results, _ = self.convolution
            return (images + weight + results * (2 if self.option("residual") else 1)) * size
        if self.op in IMAGES:
            # Of maxima a byte for each says where it is from, eight where windows are adaptive.
            numbered = "max" in self.op and (self.direction == "backward" or self.option("argmax", False))
            return (n + self.pixels) * size + numbered * self.pixels * (8 if "adaptive" in self.op else 1)
        if self.op == "scaled_matmul":
            rows, cols, depth = self.shape
            return (rows + cols) * depth + rows * cols * (4 if self.option("format") == "int8" else size)
        if self.op == "matmul_4bit":
            rows, cols, depth = self.shape
            group, of_scale = WEIGHT_GROUPS[self.option("format", "nf4")]
            return rows * (depth + cols) * size + cols * depth // 2 + cols * depth // group * of_scale
        if self.op == "gated_linear":
            rows, cols, depth = self.shape
            return (rows * (cols + depth) + 2 * cols * depth) * size
        if self.op == "grouped_matmul":
            groups, rows, cols, depth = self.shape
            # The same of either grouping: what is a result in one is a factor in the other.
            return (rows * (cols + depth) + groups * cols * depth) * size
        if self.op in GATES:
            *places, inputs, hidden = self.shape
            states = math.prod(places) * (inputs + hidden)
            forward = states + GATES[self.op] * hidden * (inputs + hidden)
            # Results and gradients of all inputs, which are as many.
            return forward * size * {"forward": 1, "both": 3}[self.direction]
        if self.op == "attention":
            batch, sequence, heads, width = self.shape
            rows = self.option("queries", sequence) * heads + sequence * self.option("kv_heads", heads)
            widths = width + self.option("value_width", width)
            # Queries, keys, values and result; in the other direction their gradients too.
            return batch * widths * rows * size * {"forward": 1, "backward": 2, "both": 3}[self.direction]
        if self.op == "linear_cross_entropy":
            rows, features, classes = self.shape
            return (rows + classes) * features * size * {"forward": 1, "both": 2}[self.direction]
        if self.op == "append_kv_cache":
            batch, steps, heads, width = self.shape
            return 2 * batch * steps * (heads + 2 * self.option("kv_heads")) * width * size
        if self.op == "rotary_embedding":
            batch, steps, heads, width = self.shape
            return 2 * batch * steps * (heads + self.option("kv_heads", heads)) * width * size
        if self.op == "embedding":
            # Rows that are taken are written, too; a gradient is written as a whole.
            taken = self.option("count") * self.shape[1]
            return (taken + (taken if self.direction == "forward" else n)) * size
        if self.op == "topk":
            # Values and indices.
            return n * size + n // self.shape[-1] * self.option("k") * (size + 8)
        if self.op == "cast":
            return n * (size + SIZES[self.option("to")])
        groups = -(-n // GROUP)
        if self.op.endswith("_nested"):
            return n * 4 + n + -(-n // NESTED_BLOCK) * 4
        if "quantize" in self.op:
            packed = -(-n // 2) + groups * 4 + (groups if "asymmetric" in self.op else 0)
            return n * size + packed
        forward, backward = TRAFFIC.get(self.op, (2, 3))
        for option, (more_forward, more_backward) in MORE.items():
            if self.option(option):
                forward, backward = forward + more_forward, backward + more_backward
        if self.op == "batch_norm" and self.option("residual"):
            # The sum is normalised and not kept.
            forward -= 1
        return n * size * {"forward": forward, "backward": backward, "both": forward + backward}[self.direction]

    @property
    def operations(self) -> int:
        """Floating-point operations of the matrix products that it must do; 0 where memory is the only bound."""
        if self.op in ("matmul", "scaled_matmul", "matmul_4bit"):
            return 2 * math.prod(self.shape)
        if self.op == "gated_linear":
            return 4 * math.prod(self.shape)
        if self.op == "grouped_matmul":
            return 2 * math.prod(self.shape[1:])
        if self.op == "linear_cross_entropy":
            return 2 * math.prod(self.shape) * {"forward": 1, "both": 3}[self.direction]
        if self.op == "conv":
            _, _, results, terms = self.convolution
            return 2 * results * terms
        if self.op in GATES:
            *places, inputs, hidden = self.shape
            forward = 2 * math.prod(places) * GATES[self.op] * hidden * (inputs + hidden)
            return forward * {"forward": 1, "both": 3}[self.direction]
        if self.op == "attention":
            batch, sequence, heads, width = self.shape
            queries = self.option("queries", sequence)
            pairs = sequence * (sequence + 1) // 2 if self.option("causal") else queries * sequence
            # Products of queries or keys, and of values or gradients of the result.
            of_keys, of_values = {"forward": (1, 1), "backward": (3, 2), "both": (4, 3)}[self.direction]
            elements = of_keys * width + of_values * self.option("value_width", width)
            return 2 * batch * heads * pairs * elements
        return 0

    def __str__(self) -> str:
        return f"{self.op} {self.direction} {self.dtype} {self.case}"


def load(path: Path, ops: list[str]) -> Iterator[Case]:
    """The cases of a file; of the operations named, if any are."""
    with open(path, "rb") as f:
        suites = tomllib.load(f)["suite"]
    for suite in suites:
        for part in suite.get("cases", [suite]):
            yield from _cases(suite, part, ops)


def _cases(suite: dict[str, Any], part: dict[str, Any], ops: list[str]) -> Iterator[Case]:
    """The cases of a part of a suite: of each type, and of images in both orders and of each precision if the suite says so."""
    for channels_last, precision in itertools.product(suite.get("channels_last", [None]), suite.get("precisions", ["full"])):
        options, case = dict(part.get("options", {})), part["case"]
        if channels_last:
            options["channels_last"], case = True, f"{case}, channels last"
        if precision != "full":
            options["precision"], case = precision, f"{case}, {precision}"
        for dtype in suite["dtypes"]:
            for op in suite["ops"]:
                for direction in part.get("directions", suite.get("directions", ["forward"])):
                    if not ops or op in ops:
                        yield Case(op, case, tuple(part["shape"]), dtype, direction, tuple(sorted(options.items())))
