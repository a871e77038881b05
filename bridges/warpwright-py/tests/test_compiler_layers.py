"""`warpwright.torch.compiler` and layers: feed-forward parts, products with biases, and attention of one product; what is left as it is."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._functorch.aot_autograd import make_boxed_func  # noqa: E402

from compiled import Function, alone, compare, normal  # noqa: E402,F401
from warpwright.torch import compiler  # noqa: E402

# Products beside what is looked at.
ALONE = {"disable": {"linear"}}


def gelu_new(x):
    """As models of transformers write it out."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def layers(act, between=lambda h: h, bias=True):
    """linear(between(act(linear(x)))); x is a parameter, so that its gradient is compared, too."""
    extents = ((2, 8, 16), (32, 16), (16, 32), *(((32,), (16,)) if bias else ()))

    def run(x, w1, w2, *biases):
        b1, b2 = biases or (None, None)
        return F.linear(between(act(F.linear(x, w1, b1))), w2, b2)

    return Function(run, *(normal(*shape) for shape in extents))


ACTIVATIONS = {
    "relu": (F.relu, "relu"),
    "torch.relu": (torch.relu, "relu"),
    "gelu": (F.gelu, "gelu_erf"),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), "gelu_tanh"),
    "written out": (gelu_new, "gelu_tanh"),
    "silu": (F.silu, "silu"),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_layers_around_an_activation(name, bias):
    act, called = ACTIVATIONS[name]
    compare(layers(act, bias=bias), [], [("mlp", f"of {called}")], **ALONE)


@pytest.mark.parametrize(
    "between",
    [
        lambda h: F.dropout(h, 0.0, True),
        lambda h: F.dropout(h, 0.5, False),
        lambda h: h.reshape(2, 8, 32).contiguous(),
        lambda h: F.dropout(h.view(2, 8, 32), 0.0),
    ],
)
def test_what_does_nothing_between_layers(between):
    compare(layers(F.gelu, between), [], [("mlp", "of gelu_erf")], **ALONE)


def test_layers_of_transposes():
    """As GPT-2 has them: weights of [in, out], and rows of two dimensions."""

    def run(x, w1, b1, w2, b2):
        h = gelu_new(torch.addmm(b1, x.view(-1, 16), w1).view(2, 8, 32))
        return torch.addmm(b2, h.view(-1, 32), w2).view(2, 8, 16)

    shapes = ((2, 8, 16), (16, 32), (32,), (32, 16), (16,))
    compare(Function(run, *(normal(*shape) for shape in shapes)), [], [("mlp", "of gelu_tanh")])


@pytest.mark.parametrize("act, unit", [(F.silu, "swiglu"), (F.gelu, "geglu"), (gelu_new, "geglu_tanh")])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_gated_layers(act, unit, bias, training):
    shapes = ((2, 8, 16), (32, 16), (32, 16), (16, 32), *(((32,), (32,), (16,)) if bias else ()))

    def run(x, gate, up, down, *biases):
        b1, b2, b3 = biases or (None,) * 3
        return F.linear(F.dropout(act(F.linear(x, gate, b1)) * F.linear(x, up, b2), 0.0), down, b3)

    module = Function(run, *(normal(*shape) for shape in shapes)).requires_grad_(training)
    compare(module, [], [("gated_mlp", f"of {unit}")], **ALONE)


@pytest.mark.parametrize("gated", [0, 1])
@pytest.mark.parametrize("bias", [True, False])
def test_gated_layers_of_one_product(gated, bias):
    shapes = ((2, 8, 16), (64, 16), (16, 32), *(((64,), (16,)) if bias else ()))

    def run(x, both, down, *biases):
        b1, b2 = biases or (None, None)
        halves = F.linear(x, both, b1).chunk(2, dim=-1)
        return F.linear(halves[1 - gated] * F.gelu(halves[gated]), down, b2)

    module = Function(run, *(normal(*shape) for shape in shapes))
    compare(module, [], [("gated_mlp", "no: halves of one product")], **ALONE)
    torch._dynamo.reset()
    compare(module.requires_grad_(False), [], [("gated_mlp", "of geglu")], **ALONE)


def _read_twice(x, w1, w2):
    h = F.linear(x, w1)
    return F.linear(F.gelu(h), w2) + h.sum()


def _activation_read_twice(x, w1, w2):
    h = F.gelu(F.linear(x, w1))
    return F.linear(h, w2) + h.sum()


def _dropout(x, w1, w2):
    return F.linear(F.dropout(F.gelu(F.linear(x, w1)), 1e-9, True), w2)


def _other_columns(x, w1, w2):
    return F.linear(F.gelu(F.linear(x, w1)).view(2, 16, 16), w2[:, :16])


def _scaled(x, w1, w2):
    return F.linear(2 * F.gelu(F.linear(x, w1)), w2)


def _another_gelu(x, w1, w2):
    h = F.linear(x, w1)
    return F.linear(0.5 * h * (1.0 + torch.tanh(0.8 * (h + 0.044715 * torch.pow(h, 3.0)))), w2)


def _as_a_weight(x, w1, w2):
    """What is between is the weight of the layer behind it."""
    return F.linear(w2, F.gelu(F.linear(x, w1)[0]))


def _over_its_argument(x, w1, w2):
    return F.linear(F.relu(F.linear(x, w1), inplace=True), w2)


@pytest.mark.parametrize(
    "run", [_read_twice, _activation_read_twice, _dropout, _other_columns, _scaled, _another_gelu, _as_a_weight, _over_its_argument]
)
def test_what_is_no_layer(run):
    compare(Function(run, normal(2, 8, 16), normal(32, 16), normal(16, 32)), [], [], **ALONE)


def _product_of_others(x, w1, w2):
    return F.linear(F.silu(F.linear(x, w1)) * F.linear(x + 1, w1), w2)


def _product_with_no_product(x, w1, w2):
    return F.linear(F.silu(F.linear(x, w1)) * w1.sum(1), w2)


def _halves_of_three(x, w1, w2):
    a, b, _, _ = F.linear(x, w1).chunk(4, dim=-1)
    return F.linear(a * F.gelu(b), w2[:, :8])


@pytest.mark.parametrize("run", [_product_of_others, _product_with_no_product, _halves_of_three])
@pytest.mark.parametrize("training", [True, False])
def test_what_is_no_gated_layer(run, training):
    compare(Function(run, normal(2, 8, 16), normal(32, 16), normal(16, 32)).requires_grad_(training), [], [], **ALONE)


def test_layers_that_are_left():
    compare(layers(F.gelu), [], [("mlp", "no: products of 32 and 64 bits")], dtype=torch.float32, **ALONE)
    odd = Function(lambda x, w1, w2: F.linear(F.gelu(F.linear(x, w1)), w2), normal(2, 8, 16), normal(31, 16), normal(16, 31))
    compare(odd, [], [("mlp", "no: 8 does not divide")], **ALONE)

    def written(x, w1, w2):
        x = x * 1
        h = F.gelu(F.linear(x, w1))
        x.mul_(2)
        return F.linear(h, w2) + x

    module = Function(written, normal(2, 8, 16), normal(32, 16), normal(16, 32)).requires_grad_(False)
    compare(module, [], [("mlp", "no: mul_ writes in place")], **ALONE)
    mixed = Function(lambda x, w1, w2: F.linear(F.gelu(F.linear(x, w1).float()).to(x.dtype), w2), *(normal(*s) for s in ((2, 8, 16), (32, 16), (16, 32))))
    compare(mixed, [], [], **ALONE)


@pytest.mark.parametrize("training", [True, False])
def test_rows_that_change(training):
    module = Function(lambda w1, w2, x: F.linear(F.gelu(F.linear(x, w1)), w2), normal(32, 16), normal(16, 32)).requires_grad_(training)
    expected = "of gelu_erf" if training else "no: rows are not as many"
    compare(module, [normal(2, 7, 16)], [("mlp", expected)], dynamic=1, **ALONE)


def test_autocast_is_left():
    module = layers(F.gelu)
    reports = []

    def backend(graph, given):
        reports.append(compiler.rewrite(graph, emulator=True, **ALONE))
        return graph

    with torch.autocast("cpu", torch.bfloat16):
        expected = module()
        assert torch.equal(torch.compile(module, backend=backend)(), expected)
    assert [(line.kind, line.why) for line in reports[0].lines] == [("mlp", "of several types: bfloat16, float32")]


def launches(module, *inputs, **options):
    """Operators of ours in the graphs of both directions, and results and gradients."""
    seen = []

    def look(graph, given):
        seen.append([str(node.target).split(".")[1] for node in graph.graph.nodes if "warpwright" in str(node.target)])
        return make_boxed_func(graph.forward)

    def backend(graph, given):
        compiler.rewrite(graph, emulator=True, **options)
        return aot_autograd(fw_compiler=look, bw_compiler=look)(graph, given)

    torch.compile(module, backend=backend)(*inputs).sum().backward()
    return seen


def test_launches_of_layers():
    """Both directions are launches of ours and products of PyTorch's, which a compiler sees."""
    both = ["_activation_linear_backward", *["_linear_weight_backward"] * 2]
    assert launches(layers(F.gelu).bfloat16()) == [["_linear_activation"], both]
    torch._dynamo.reset()
    assert launches(layers(F.gelu, bias=False).bfloat16()) == [["_linear_activation"], ["_activation_linear_backward"]]


def one_product(x, weight, bias, causal=False):
    """As models of timm have it."""
    q, k, v = F.linear(x, weight, bias).reshape(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(2, 6, 16)


def of_transposes(x, weight, bias):
    """As GPT-2 has it."""
    parts = torch.addmm(bias, x.view(-1, 16), weight.t()).view(2, 6, 48).split(16, dim=2)
    q, k, v = (t.view(2, 6, -1, 8).transpose(1, 2) for t in parts)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 6, 16)


def of_others(x, weight, bias):
    """Queries that have been scaled are no part of the product any more."""
    q, k, v = F.linear(x, weight, bias).reshape(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q * 0.5, k, v).transpose(1, 2).reshape(2, 6, 16)


def copied(x, weight, bias):
    """As Whisper has it; a copy that kernels need not."""
    q, k, v = (t.contiguous() for t in F.linear(x, weight, bias).reshape(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 6, 16)


def written(x, weight, bias):
    """What was copied is written to afterwards."""
    whole = F.linear(x, weight, bias) * 1
    q, k, v = (t.contiguous() for t in whole.reshape(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0))
    whole.mul_(2)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 6, 16) + whole[..., :16]


PACKED = [(one_product, True), (of_transposes, True), (copied, True), (of_others, False), (written, False)]


@pytest.mark.parametrize("run, packed", PACKED)
def test_attention_of_one_product(run, packed):
    module = Function(run, normal(2, 6, 16), normal(48, 16), normal(48))
    compare(module, [], [("attention", "")], **ALONE)
    torch._dynamo.reset()
    if run is not of_transposes:
        compare(module, [], [("linear", "gradients of weight and bias at once"), ("attention", "")])
        torch._dynamo.reset()
    name = "_attention_qkvpacked" if packed else "_attention"
    assert launches(module.bfloat16(), **ALONE) == [[name], [f"{name}_backward"]]


def test_products_with_a_bias():
    module = Function(F.linear, normal(2, 6, 16), normal(48, 16), normal(48))
    compare(module, [], [("linear", "gradients of weight and bias at once")])
    torch._dynamo.reset()
    assert launches(module.bfloat16()) == [[], ["_linear_weight_backward"]]
    torch._dynamo.reset()
    # A frozen bias, or weight, has no gradient to share a launch.
    for frozen in (1, 2):
        module = Function(F.linear, normal(2, 6, 16), normal(48, 16), normal(48))
        module.weights[frozen].requires_grad_(False)
        compare(module, [], [("linear", "no: products of 16 bits")])
