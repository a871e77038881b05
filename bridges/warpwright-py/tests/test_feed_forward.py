"""Layers beside activations, and feed-forward layers as one node of the graph: results, gradients and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

import warpwright as ww

FUNCTIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu_erf": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}
UNITS = {"swiglu": "silu", "geglu": "gelu_erf", "geglu_tanh": "gelu_tanh"}


def slope(f, x):
    h = 1e-5
    return (f(x + h) - f(x - h)) / (2 * h)


def draw(*shapes, dtype=np.float64):
    random = np.random.default_rng(11)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("transposed", [False, True])
def test_layers_beside_activations(name, transposed):
    x, weight, bias, dy, weight2, z = draw((2, 5, 8), (6, 8), (6,), (2, 5, 4), (4, 6), (2, 5, 6))
    f = FUNCTIONS[name]
    # The same numbers, as they lie in memory of layers whose weights are transposes.
    lay = (lambda w: np.ascontiguousarray(w.T).T) if transposed else (lambda w: w)
    y, found = ww.linear_activation(x, lay(weight), bias, name)
    np.testing.assert_allclose(found, x @ weight.T + bias, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(y, f(x @ weight.T + bias), rtol=1e-12, atol=1e-12)
    y, found = ww.linear_activation(x, weight[:, ::-1], None, name)
    np.testing.assert_allclose(found, x @ weight[:, ::-1].T, rtol=1e-12, atol=1e-12)
    dz = ww.activation_linear_backward(dy, lay(weight2), z, name)
    np.testing.assert_allclose(dz, (dy @ weight2) * slope(f, z), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("unit", UNITS)
def test_units_and_their_gradients(unit):
    x, gate, up, gate_bias, up_bias, dy, down = draw((3, 7, 8), (6, 8), (6, 8), (6,), (6,), (3, 7, 4), (4, 6))
    f = FUNCTIONS[UNITS[unit]]
    g, u = x @ gate.T + gate_bias, x @ up.T + up_bias
    y, gate_out, up_out = ww.gated_linear_factors(x, gate, up, unit, gate_bias=gate_bias, up_bias=up_bias)
    for found, wanted in ((y, f(g) * u), (gate_out, g), (up_out, u)):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(ww.gated_linear(x, gate, up, unit, gate_bias=gate_bias, up_bias=up_bias), y)
    dgate, dup = ww.gated_activation_linear_backward(dy, down, g, u, unit)
    h = dy @ down
    np.testing.assert_allclose(dgate, h * slope(f, g) * u, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(dup, h * f(g), rtol=1e-12, atol=1e-12)


def test_what_is_refused():
    x, weight, bias, dy, z = draw((2, 8), (6, 8), (6,), (2, 6), (2, 8))
    for wrong in ((x[:, 1:], weight, bias), (x, weight, bias[1:]), (x, weight[0], None)):
        with pytest.raises(ww.ShapeError):
            ww.linear_activation(*wrong)
    for wrong in ((dy[:, 1:], weight, z), (dy, weight, z[:, 1:]), (dy, weight, z[1:])):
        with pytest.raises(ww.ShapeError):
            ww.activation_linear_backward(*wrong)
    with pytest.raises(ww.ShapeError, match="up"):
        ww.gated_activation_linear_backward(dy, weight, z, z[:, 1:])
    with pytest.raises(ww.DtypeError):
        ww.linear_activation(x, weight.astype(np.float32))
    for activation in ("softplus", "leaky_relu", "swish"):
        with pytest.raises(ww.ParameterError):
            ww.linear_activation(x, weight, None, activation)
    with pytest.raises(ww.ParameterError):
        ww.gated_activation_linear_backward(dy, weight, z, z, "silu")
    with pytest.raises(ww.ArgumentError, match="up_bias"):
        ww.gated_linear(x, weight, weight, gate_bias=bias)


torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402

import warpwright.torch as wt  # noqa: E402

ACTIVATIONS = {
    "relu": torch.relu,
    "gelu_erf": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def tensors(dtype, *shapes):
    torch.manual_seed(5)
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


MLP = ((2, 5, 8), (16, 8), (16,), (8, 16), (8,))
GATED = ((2, 5, 8), (16, 8), (16, 8), (8, 16), (16,), (16,), (8,))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_mlp(activation):
    x, w1, b1, w2, b2 = arguments = tensors(torch.float64, *MLP)
    expected = F.linear(ACTIVATIONS[activation](F.linear(x, w1, b1)), w2, b2)
    torch.testing.assert_close(wt.mlp(*arguments, activation), expected)
    with torch.no_grad():
        torch.testing.assert_close(wt.mlp(*arguments, activation), expected)
    assert torch.autograd.gradcheck(lambda *t: wt.mlp(*t, activation), arguments)
    # Without biases, and with what is frozen.
    assert torch.autograd.gradcheck(lambda x, w1, w2: wt.mlp(x, w1, None, w2, None, activation), (x, w1, w2))
    frozen = [t.detach() for t in arguments]
    for wanted in range(5):
        mixed = [t if i == wanted else frozen[i] for i, t in enumerate(arguments)]
        assert torch.autograd.gradcheck(lambda *t: wt.mlp(*t, activation), mixed)


@pytest.mark.parametrize("unit", UNITS)
def test_gradients_of_gated_mlp(unit):
    x, gate, up, down, gate_bias, up_bias, down_bias = arguments = tensors(torch.float64, *GATED)
    act = ACTIVATIONS[UNITS[unit]]
    expected = F.linear(act(F.linear(x, gate, gate_bias)) * F.linear(x, up, up_bias), down, down_bias)
    torch.testing.assert_close(wt.gated_mlp(*arguments, unit), expected)
    with torch.no_grad():
        torch.testing.assert_close(wt.gated_mlp(*arguments, unit), expected)
    assert torch.autograd.gradcheck(lambda *t: wt.gated_mlp(*t, unit), arguments)
    assert torch.autograd.gradcheck(lambda *t: wt.gated_mlp(*t, activation=unit), arguments[:4])


def test_transposes_have_gradients_as_they_lie():
    x, w1, b1, w2, b2 = tensors(torch.float64, (3, 8), (8, 16), (16,), (16, 8), (8,))
    wt.mlp(x, w1.t(), b1, w2.t(), b2).square().sum().backward()
    found = [t.grad for t in (x, w1, b1, w2, b2)]
    assert all(t.is_contiguous() for t in found)
    for t in (x, w1, b1, w2, b2):
        t.grad = None
    F.linear(F.gelu(F.linear(x, w1.t(), b1)), w2.t(), b2).square().sum().backward()
    for ours, t in zip(found, (x, w1, b1, w2, b2)):
        torch.testing.assert_close(ours, t.grad)


def distance(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("gated", [False, True])
def test_errors_are_no_larger_than_those_of_pytorch(dtype, gated):
    shapes = GATED if gated else MLP
    shapes = [tuple(16 * extent for extent in shape) for shape in shapes]
    drawn = [t.detach() * (t.shape[-1] ** -0.5 if t.dim() == 2 else 1) for t in tensors(dtype, *shapes)]

    def run(of, function):
        arguments = [t.to(of).requires_grad_() for t in drawn]
        y = function(*arguments)
        y.backward(torch.ones_like(y))
        return [y.detach(), *(t.grad for t in arguments)]

    def theirs(x, *rest):
        if gated:
            gate, up, down, gate_bias, up_bias, down_bias = rest
            return F.linear(F.silu(F.linear(x, gate, gate_bias)) * F.linear(x, up, up_bias), down, down_bias)
        w1, b1, w2, b2 = rest
        return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)

    exact, theirs_found = run(torch.float64, theirs), run(dtype, theirs)
    ours = run(dtype, wt.gated_mlp if gated else wt.mlp)
    for found, other, wanted in zip(ours, theirs_found, exact):
        assert distance(found, wanted) <= 1.1 * distance(other, wanted)


def gradients(function, arguments):
    arguments = [t.detach().requires_grad_(t.requires_grad) for t in arguments]
    y = function(*arguments)
    y.square().sum().backward()
    return [y.detach(), *(t.grad for t in arguments if t.requires_grad)]


@pytest.mark.parametrize("gated", [False, True])
def test_results_can_be_written_to(gated):
    arguments = tensors(torch.float64, *(GATED if gated else MLP))
    function = wt.gated_mlp if gated else wt.mlp
    torch._dynamo.reset()
    for call in (function, torch.compile(function, backend="aot_eager")):
        y = call(*arguments)
        (wanted,) = torch.autograd.grad(y.sum(), arguments[0], retain_graph=True)
        y = call(*arguments)
        y.mul_(2)
        (found,) = torch.autograd.grad(y.sum(), arguments[0])
        torch.testing.assert_close(found, 2 * wanted)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(gated, backend):
    """Results and gradients of what traces are those of direct calls, whichever are wanted."""
    function, shapes = (wt.gated_mlp, GATED) if gated else (wt.mlp, MLP)
    arguments = tensors(torch.float64, *shapes)
    for frozen in ([], [0], [1, 2], [len(shapes) - 1], range(len(shapes))):
        for i, t in enumerate(arguments):
            t.requires_grad_(i not in frozen)
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        if len(frozen) == len(shapes):
            torch.testing.assert_close(compiled(*arguments), function(*arguments))
            with torch.inference_mode():
                torch.testing.assert_close(compiled(*arguments), function(*arguments))
        else:
            for found, wanted in zip(gradients(compiled, arguments), gradients(function, arguments)):
                torch.testing.assert_close(found, wanted)


def test_compiled_with_extents_that_change():
    arguments = tensors(torch.float64, *MLP)
    torch._dynamo.reset()
    torch._dynamo.mark_dynamic(arguments[0], 1)
    found = torch.compile(wt.mlp, backend="aot_eager", fullgraph=True)(*arguments)
    torch.testing.assert_close(found, wt.mlp(*arguments))


def test_compiled_transposes():
    x, w1, b1, w2, b2 = tensors(torch.float64, (3, 8), (8, 16), (16,), (16, 8), (8,))
    function = lambda x, w1, b1, w2, b2: wt.mlp(x, w1.t(), b1, w2.t(), b2)  # noqa: E731
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for found, wanted in zip(gradients(compiled, (x, w1, b1, w2, b2)), gradients(function, (x, w1, b1, w2, b2))):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("requires", [False, True])
def test_opcheck(requires):
    x, w1, b1, w2, b2 = (t.requires_grad_(requires) for t in tensors(torch.float32, *MLP))
    ops = torch.ops.warpwright
    torch.library.opcheck(ops.mlp.default, (x, w1, b1, w2, b2, "gelu_erf"))
    torch.library.opcheck(ops.mlp.default, (x, w1, None, w2, None, "relu"))
    x, gate, up, down, gate_bias, up_bias, down_bias = (t.requires_grad_(requires) for t in tensors(torch.float32, *GATED))
    torch.library.opcheck(ops.gated_mlp.default, (x, gate, gate_bias, up, up_bias, down, down_bias, "swiglu"))
    torch.library.opcheck(ops.linear_bias.default, (x, gate, gate_bias))


def test_opcheck_of_launches():
    x, w1, b1, w2, b2 = (t.detach() for t in tensors(torch.float32, *MLP))
    dy, z = torch.ones(2, 5, 8), torch.ones(2, 5, 16)
    for name, arguments in {
        "linear_activated": (x, w1, b1, "gelu_erf"),
        "linear_activation": (x, w1, b1, "gelu_erf"),
        "activation_linear_backward": (dy, w2, z, "gelu_erf"),
        "gated_linear_factors": (x, w1, w1, "swiglu", None, None),
        "gated_activation_linear_backward": (dy, w2, z, z, "swiglu"),
        "linear_weight_backward": (x.flatten(0, 1), z.flatten(0, 1)),
    }.items():
        torch.library.opcheck(getattr(torch.ops.warpwright, f"_{name}").default, arguments)


def test_second_derivatives_and_tangents_are_refused():
    x, *rest = arguments = tensors(torch.float64, *MLP)
    for call in (wt.mlp, lambda *arguments: torch.ops.warpwright.mlp(*arguments, "gelu_erf")):
        (dx,) = torch.autograd.grad(call(*arguments).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            dx.sum().backward()
        with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="mlp"):
            call(torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x)), *rest)


def test_transformed_and_under_autocast():
    arguments = tensors(torch.float64, *MLP)
    expected = wt.mlp(*arguments)
    x, *rest = (t.detach() for t in arguments)
    grad = torch.func.grad(lambda x: wt.mlp(x, *rest).sum())(x)
    (wanted,) = torch.autograd.grad(expected.sum(), arguments[0])
    torch.testing.assert_close(grad, wanted)
    for function in (wt.mlp, torch.compile(wt.mlp, backend="aot_eager")):
        torch._dynamo.reset()
        single = [t.detach().float().requires_grad_() for t in arguments]
        with torch.autocast("cpu", torch.bfloat16):
            y = function(*single)
        y.sum().backward()
        assert y.dtype == torch.bfloat16 and all(t.grad.dtype == torch.float32 for t in single)
        assert distance(single[0].grad, wanted) < 2e-2


def test_errors_name_arguments():
    x, w1, b1, w2, b2 = (t.detach() for t in tensors(torch.float32, *MLP))
    for requires in (False, True):
        x = x.detach().requires_grad_(requires)
        for name, wrong in {
            "weight1": (x, w1[:, 1:], b1, w2, b2), "bias1": (x, w1, b1[1:], w2, b2), "weight2": (x, w1, b1, w2[:, 1:], b2),
            "bias2": (x, w1, b1, w2, b2[1:]),
        }.items():
            with pytest.raises(ww.ShapeError, match=name):
                wt.mlp(*wrong)
        with pytest.raises(ww.DtypeError, match="weight2"):
            wt.mlp(x, w1, b1, w2.half(), b2)
        with pytest.raises(ww.ParameterError):
            wt.mlp(x, w1, b1, w2, b2, "softplus")
        with pytest.raises(ww.ShapeError, match="down"):
            wt.gated_mlp(x, w1, w1, w2[:, 1:])
        with pytest.raises(ww.ParameterError):
            wt.gated_mlp(x, w1, w1, w2, activation="silu")
