"""`warpwright.torch.compiler`: graphs with operators of ours in them against PyTorch's, and what is left as it is."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.backends.debugging import aot_eager  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

import warpwright as ww  # noqa: E402
from compiled import Function, alone, compare, last, normal  # noqa: E402,F401
from warpwright.torch import _patch_rules, compiler  # noqa: E402


def rows(mask=None, heads=4, of_keys=4, length=6, **options):
    q, k, v = normal(2, heads, length, 8), normal(2, of_keys, length, 8), normal(2, of_keys, length, 8)
    return Function(lambda q, k, v, *given: F.scaled_dot_product_attention(q, k, v, mask(q, *given) if mask else None, **options), q, k, v)


def positions(q):
    length = q.shape[2]
    at = torch.arange(length, device=q.device)
    return at, at[None, :] <= at[:, None]


ATTENTION = {
    "plain": (rows(), [], ""),
    "causal": (rows(is_causal=True), [], ""),
    "scale": (rows(scale=0.7), [], ""),
    "grouped": (rows(of_keys=2, enable_gqa=True), [], ""),
    "causal mask": (rows(lambda q: positions(q)[1]), [], "a mask that is causal in every call"),
    "causal mask, broadcast": (rows(lambda q: positions(q)[1][None, None].expand(2, -1, -1, -1)), [], "a mask that is causal in every call"),
    "added": (
        rows(lambda q: torch.zeros(6, 6, dtype=q.dtype).masked_fill(~positions(q)[1], -math.inf)), [], "a mask that is causal in every call",
    ),
    "nothing masked": (rows(lambda q: torch.ones(1, 1, 1, q.shape[2], dtype=torch.bool)), [], "a mask that is none in every call"),
    "window": (rows(lambda q: positions(q)[1] & (positions(q)[0][None, :] > positions(q)[0][:, None] - 3)), [], ""),
    "a diagonal apart": (rows(lambda q: positions(q)[0][None, :] < positions(q)[0][:, None] + 2), [], ""),
    "distances": (rows(lambda q: (positions(q)[0][None, :] - positions(q)[0][:, None]).to(q.dtype)), [], ""),
    "given": (rows(lambda q, mask: mask), [torch.tensor([[True] * 6, [True] * 4 + [False] * 2])[:, None, None]], ""),
    "partly given": (
        rows(lambda q, mask: mask & positions(q)[1]), [torch.tensor([[True] * 6, [True] * 4 + [False] * 2])[:, None, None]], "",
    ),
    "dropout": (rows(dropout_p=1e-9), [], "no: dropout"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name):
    module, inputs, expected = ATTENTION[name]
    compare(module, inputs, [("attention", expected)])


def test_masks_with_gradients():
    module = Function(lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask), *(normal(2, 4, 6, 8) for _ in range(3)), normal(4, 6, 6))
    compare(module, [], [("attention", "")])


def test_masks_of_random_numbers_are_no_constants():
    def graph(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, torch.rand(6, 6) < 2)

    compare(Function(graph, *(normal(2, 4, 6, 8) for _ in range(3))), [], [("attention", "")])


def _columns(mask):
    mask[:, 4:] = False


def _a_view(mask):
    mask[:, 4:].transpose(0, 1).zero_()


@pytest.mark.parametrize("write", [_columns, _a_view])
def test_masks_that_are_written_to(write):
    def graph(q, k, v):
        mask = torch.ones(6, 6, dtype=torch.bool)
        write(mask)
        return F.scaled_dot_product_attention(q, k, v, mask)

    compare(Function(graph, *(normal(2, 4, 6, 8) for _ in range(3))), [], [("attention", "")])


@pytest.mark.parametrize("how", ["expand", "unsqueeze", "repeat_interleave", "of two numbers", "another order"])
def test_heads_that_were_repeated(how):
    def repeated(x, times=2):
        if how == "repeat_interleave":
            return x.repeat_interleave(times, 1)
        b, h, s, d = x.shape
        lifted = x.unsqueeze(2) if how == "unsqueeze" else x[:, :, None, :, :]
        if how == "another order":
            return x[:, None].expand(b, times, h, s, d).reshape(b, times * h, s, d)
        return lifted.expand(b, h, times, s, d).reshape(b, h * times, s, d)

    def graph(q, k, v):
        return F.scaled_dot_product_attention(q, repeated(k), repeated(v[:, :1], 4) if how == "of two numbers" else repeated(v), is_causal=True)

    module = Function(graph, normal(2, 4, 6, 8), normal(2, 2, 6, 8), normal(2, 2, 6, 8))
    compare(module, [], [("attention", "" if how in ("of two numbers", "another order") else "keys of 2 heads of queries")])


def test_attention_of_other_types_and_shapes():
    compare(rows(is_causal=True), [], [("attention", "no: attention of 32 and 64 bits")], dtype=torch.float32)
    module = Function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *(normal(4, 6, 8) for _ in range(3)))
    compare(module, [], [("attention", "no: not of four dimensions")])


def test_lengths_that_change():
    module = Function(lambda w, x: F.scaled_dot_product_attention(x * w, x, x, torch.ones(x.shape[2], x.shape[2], dtype=torch.bool).tril()), normal(1))
    compare(module, [normal(2, 4, 7, 8)], [("attention", "")], dynamic=2)
    torch._dynamo.reset()
    compare(module, [normal(2, 4, 7, 8)], [("attention", "no: heads and their elements")], dynamic=1)


class Block(nn.Module):
    """The end of a block of a residual net: which sum, which ReLU, and what happens in between."""

    def __init__(self, tail, channels=8):
        super().__init__()
        self.conv, self.norm, self.tail = nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), tail

    def forward(self, x, residual):
        return self.tail(self.norm, self.conv(x), residual)


IMAGES = {"disable": {"conv"}}


def _add_then_relu(norm, x, residual):
    return F.relu(norm(x) + residual)


def _iadd(norm, x, residual):
    y = norm(x)
    y += residual
    return F.relu(y, inplace=True)


def _over_the_residual(norm, x, residual):
    kept = residual * 1
    kept += norm(x)
    return F.relu(kept)


def _twice(norm, x, residual):
    y = norm(x)
    return F.relu(y) + y


def _sum_read_twice(norm, x, residual):
    y = norm(x) + residual
    return F.relu(y) * y


def _x_written(norm, x, residual):
    y = norm(x)
    x.mul_(0.5)
    return F.relu(y + residual) + x


def _residual_written(norm, x, residual):
    kept = residual * 1
    y = norm(x)
    kept.add_(1)
    return F.relu(y + kept)


def _view_written(norm, x, residual):
    y = F.batch_norm(x, None, None, residual[0, :, 0, 0], training=True)
    residual.mul_(2)
    return F.relu(y) + norm.weight.sum()


def _scaled(norm, x, residual):
    return F.relu(torch.add(norm(x), residual, alpha=2))


@pytest.mark.parametrize(
    "tail, expected",
    [
        (lambda norm, x, residual: norm(x), ""),
        (lambda norm, x, residual: F.relu(norm(x)), "with relu"),
        (lambda norm, x, residual: norm(x).relu_(), "with relu"),
        (_add_then_relu, "with residual and relu"),
        (lambda norm, x, residual: torch.relu(residual + norm(x)), "with residual and relu"),
        (_iadd, "with residual and relu"),
        (_over_the_residual, ""),
        (_twice, ""),
        (_sum_read_twice, ""),
        (_scaled, ""),
        (lambda norm, x, residual: F.relu(norm(x) + residual[:1]), ""),
        (_x_written, "no: mul_ writes in place"),
        (_residual_written, "no: add_"),
        (_view_written, "no: mul_ writes in place"),
    ],
)
def test_batch_norm(tail, expected):
    # PyTorch refuses gradients of what was read and then written.
    module = Block(tail).requires_grad_(tail not in (_x_written, _view_written))
    compare(module, [last(4, 3, 5, 5), last(4, 8, 5, 5)], [("batch_norm", expected)], **IMAGES)


def test_a_norm_between():
    """Statistics of another norm are written between a norm and its sum."""

    class Two(Block):
        def __init__(self):
            super().__init__(None)
            self.other = nn.BatchNorm2d(8)

        def forward(self, x, residual):
            y = self.norm(self.conv(x))
            return F.relu(y + self.other(residual))

    compare(Two(), [last(4, 3, 5, 5), last(4, 8, 5, 5)], [("batch_norm", "with residual and relu"), ("batch_norm", "")], **IMAGES)


def test_batch_norm_of_inference():
    compare(Block(_add_then_relu).eval(), [last(4, 3, 5, 5), last(4, 8, 5, 5)], [("batch_norm", "no: of inference")], **IMAGES)


def _residual_of_inference_written(norm, x, residual):
    y = norm(x)
    residual.add_(1)
    return F.relu(y + residual)


@pytest.mark.parametrize(
    "tail, expected",
    [
        (lambda norm, x, residual: norm(x), ["with batch norm"]),
        (lambda norm, x, residual: F.relu(norm(x)), ["with batch norm and relu"]),
        (lambda norm, x, residual: F.silu(norm(x), inplace=True), ["with batch norm and silu"]),
        (lambda norm, x, residual: norm(x) + residual, ["with batch norm and residual"]),
        (lambda norm, x, residual: F.silu(residual + norm(x)), ["with batch norm, residual and silu"]),
        (_add_then_relu, ["with batch norm, residual and relu"]),
        (_iadd, ["with batch norm, residual and relu"]),
        (lambda norm, x, residual: F.gelu(norm(x)), ["with batch norm"]),
        (_twice, ["with batch norm"]),
        (_scaled, ["with batch norm"]),
        (_residual_of_inference_written, ["", "no: of inference"]),
        (lambda norm, x, residual: norm(x) * x, ["", "no: of inference"]),
    ],
)
def test_convolutions_with_norms_of_inference(tail, expected):
    module = Block(tail).eval().requires_grad_(False)
    with torch.no_grad():
        module.norm.running_mean.normal_()
        module.norm.running_var.uniform_(0.5, 2)
        module.norm.weight.normal_()
        module.norm.bias.normal_()
    kinds = ["conv", "batch_norm"]
    compare(module, [last(4, 3, 5, 5), last(4, 8, 5, 5)], list(zip(kinds, expected)))
    if expected == ["with batch norm"]:
        for plain in (nn.BatchNorm2d(8, affine=False), nn.BatchNorm2d(8, eps=0.1)):
            module.norm = plain.eval().requires_grad_(False)
            torch._dynamo.reset()
            compare(module, [last(4, 3, 5, 5), last(4, 8, 5, 5)], [("conv", "with batch norm")])


def test_convolutions_whose_norms_learn():
    """Known statistics, and parameters that want gradients."""
    compare(Block(_add_then_relu).eval(), [last(4, 3, 5, 5), last(4, 8, 5, 5)], [("conv", ""), ("batch_norm", "no: of inference")])


def test_convolutions_that_pytorch_rounds(monkeypatch):
    """Of 32 bits, on a GPU whose setting is TF32; the emulator's products are exact."""
    monkeypatch.setattr(_patch_rules, "precision_of_pytorch", lambda device: "tf32")
    monkeypatch.setattr(_patch_rules, "_is_sm_90", lambda index: True)
    block = Block(_add_then_relu).eval().requires_grad_(False)
    compare(block, [last(4, 3, 5, 5), last(4, 8, 5, 5)], [("conv", "with batch norm, residual and relu")], dtype=torch.float32)
    compare(nn.Conv2d(4, 8, 3), [last(2, 4, 7, 7)], [("conv", "")], dtype=torch.float32)
    compare(nn.Conv2d(4, 8, 3, stride=2), [last(2, 4, 7, 7)], [("conv", "no: gradients of 32 bits")], dtype=torch.float32)


def test_convolutions_of_groups():
    compare(nn.Conv2d(64, 64, 3, groups=16), [last(2, 64, 5, 5)], [("conv", "")])
    compare(nn.Conv2d(64, 64, 3, groups=2), [last(2, 64, 5, 5)], [("conv", "")])
    compare(nn.Conv2d(64, 64, 3, groups=32), [last(2, 64, 5, 5)], [("conv", "no: groups of several")])
    compare(nn.Conv2d(64, 64, 3, groups=8, stride=2), [last(2, 64, 5, 5)], [("conv", "no: gradients of groups")])
    compare(nn.Conv2d(64, 64, 3, groups=8, stride=2).requires_grad_(False), [last(2, 64, 5, 5)], [("conv", "")])


def test_images_whose_channels_come_first():
    """Inductor has them in another order between convolutions, which operators of ours would not."""
    expected = [("conv", "no: Inductor gives images"), ("batch_norm", "no: Inductor gives images")]
    compare(Block(_add_then_relu), [normal(4, 3, 5, 5), normal(4, 8, 5, 5)], expected)
    compare(Block(_add_then_relu), [last(4, 3, 5, 5), last(4, 8, 5, 5)], [("conv", ""), ("batch_norm", "with residual and relu")])
    module = Function(lambda w, x: F.batch_norm(x, None, None, w, w, training=True), normal(8))
    compare(module, [normal(4, 8, 5, 5)], [("batch_norm", "")])


@pytest.mark.parametrize("tail, expected", [(F.silu, "with silu"), (lambda y: y, ""), (lambda y: F.silu(y) + y, ""), (F.gelu, "")])
def test_group_norm(tail, expected):
    module = Function(lambda w, b, x: tail(F.group_norm(x * w[:, None], 2, w, b)), normal(8), normal(8))
    compare(module, [normal(3, 8, 5)], [("group_norm", expected)])


def test_products():
    compare(nn.Linear(1024, 1027, bias=False), [normal(4, 1024)], [("linear", "")])
    compare(nn.Linear(16, 13), [normal(4, 16)], [("linear", "no: Inductor makes small")])
    compare(nn.Linear(16, 24, bias=False), [normal(4, 16)], [("linear", "no: products of 16 bits")])
    compare(nn.Linear(16, 13), [normal(4, 16)], [("linear", "no: products of 32 and 64 bits")], dtype=torch.float32)
    compare(nn.Conv2d(4, 8, 3, stride=2, padding=1), [last(2, 4, 7, 7)], [("conv", "")])
    compare(nn.Conv2d(8, 8, 3, groups=2), [last(2, 8, 9, 9)], [("conv", "no: groups of several")])
    compare(nn.Conv2d(4, 8, 3), [last(2, 4, 7, 7)], [("conv", "no: convolutions of 32")], dtype=torch.float32)
    compare(nn.Conv2d(4, 8, 3), [last(2, 4, 7, 7)], [], **IMAGES)


@pytest.mark.parametrize("alike", [True, False])
def test_sums_and_norms_behind_them(alike):
    def layer(w, b, x, y):
        z = x * w + y
        return F.layer_norm(z, (16,), w, b) + z

    def rms(w, b, x, y):
        z = x * w + y
        return F.rms_norm(z, (16,), w, 1e-6) * b + z

    y = normal(3, 5, 16) if alike else normal(16)
    expected = "with the sum before it" if alike else ""
    for kind, graph in (("layer_norm", layer), ("rms_norm", rms)):
        compare(Function(graph, normal(16), normal(16)), [normal(3, 5, 16), y], [(kind, expected)], enable={"layer_norm", "rms_norm"})


@pytest.mark.parametrize("write", [lambda z: z.mul_(2), lambda z: z.view(-1)[3:].zero_()])
def test_sums_that_are_written_before_their_norm(write):
    def graph(w, x, y):
        z = x + y
        write(z)
        return F.layer_norm(z, (16,), w, w)

    compare(Function(graph, normal(16)), [normal(3, 16), normal(3, 16)], [("layer_norm", "")], enable={"layer_norm"})


def head(convert, **options):
    def graph(w, x, target):
        logits = F.linear(x, w)
        logits = logits.float() if convert else logits
        return F.cross_entropy(logits.view(-1, w.shape[0]), target.view(-1), **options)

    return Function(graph, normal(24, 16))


LOSSES = {"enable": {"cross_entropy", "linear_cross_entropy"}, "disable": {"linear"}}
TARGETS = torch.tensor([[3, -100, 7], [0, 23, -100]])


@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"ignore_index": 7}, {"label_smoothing": 0.25}])
@pytest.mark.parametrize("convert", [True, False])
def test_cross_entropy(options, convert):
    target = TARGETS.clamp(min=0) if "ignore_index" in options else TARGETS
    inputs = [normal(2, 3, 16), target]
    about = "of logits before they are converted" if convert else ""
    compare(head(convert, **options), inputs, [("cross_entropy", about)], enable={"cross_entropy"}, disable={"linear"})
    compare(head(convert, **options), inputs, [("linear_cross_entropy", "without logits")], **LOSSES)


def test_logits_that_are_read():
    def graph(w, x, target):
        logits = F.linear(x, w)
        return F.cross_entropy(logits.float(), target), logits

    found = [("linear_cross_entropy", "no: its logits are not"), ("cross_entropy", "of logits before they are converted")]
    compare(Function(graph, normal(24, 16)), [normal(6, 16), TARGETS.view(-1)], found, **LOSSES)

    def converted(w, x, target):
        logits = F.linear(x, w).float()
        return F.cross_entropy(logits, target), logits

    found = [("linear_cross_entropy", "no: its logits are not"), ("cross_entropy", "")]
    compare(Function(converted, normal(24, 16)), [normal(6, 16), TARGETS.view(-1)], found, **LOSSES)


def test_images_and_tables():
    compare(Function(lambda w, x: F.max_pool2d(x * w, 3, 2, 1), normal(1)), [normal(2, 4, 9, 9)], [("pool", "")], enable={"pool"})
    module = Function(lambda w, x: F.max_pool2d(x * w, 2, return_indices=True)[0], normal(1))
    compare(module, [normal(2, 4, 8, 8)], [("pool", "no: not a tensor")], enable={"pool"})
    table = nn.Embedding(10, 8, padding_idx=2)
    compare(table, [torch.tensor([[1, 2, 2], [9, 0, 1]])], [("embedding", "")], enable={"embedding"})
    compare(table.requires_grad_(False), [torch.tensor([[1, 2], [9, 0]])], [("embedding", "no: rows are read")], enable={"embedding"})


def test_integers_and_tensors_elsewhere():
    graph = torch.fx.symbolic_trace(lambda x: F.group_norm(x, 1))
    for node in graph.graph.nodes:
        node.meta["example_value"] = torch.zeros(2, 4)
    report = compiler.rewrite(graph)
    assert [(line.kind, line.why) for line in report.lines] == [("group_norm", "not on a GPU")]
    assert "0 of 1 replaced: nothing" in str(report)
    for node in graph.graph.nodes:
        node.meta["example_value"] = TwoTensor(torch.zeros(2, 4), torch.zeros(2, 4))
    assert [line.why for line in compiler.rewrite(graph, emulator=True).lines] == ["a TwoTensor"]
    assert str(compiler.rewrite(torch.fx.symbolic_trace(lambda x: x + 1))) == "nothing to replace"


def test_names_that_are_none():
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    for options in ({"enable": {"conf"}}, {"disable": ["conf"]}):
        with pytest.raises(ww.ParameterError) as raised:
            compiler.rewrite(graph, **options)
        assert (raised.value.got, raised.value.expected) == ("conf", compiler.KINDS)
    with pytest.raises(ww.ArgumentError) as raised:
        compiler.rewrite(graph, enable="conv")
    assert raised.value.argument == "enable"
    with pytest.raises(ww.ParameterError) as raised:
        compiler.backend(graph, [], options={"warpwright.enabled": {"conv"}})
    assert raised.value.argument == "options" and "warpwright.enabled" in str(raised.value)


def test_the_backend_by_its_name(monkeypatch):
    """PyTorch finds it, and what goes to Inductor has ours in it; modes and options that are not ours go on."""
    import torch._inductor.compile_fx as inductor

    seen = []

    def compile_fx(graph, inputs, config_patches=None):
        seen.append(config_patches)
        return aot_eager(graph, inputs)

    monkeypatch.setattr(inductor, "compile_fx", compile_fx)
    assert "warpwright" in torch._dynamo.list_backends()
    x, w = normal(2, 8, 5).bfloat16(), normal(8).bfloat16()
    call = lambda x, w: F.silu(F.group_norm(x, 2, w, w))  # noqa: E731
    compiler.reports.clear()
    options = {"warpwright.emulator": True, "epilogue_fusion": False}
    found = torch.compile(call, backend="warpwright", options=options)(x, w)
    assert (found.double() - call(x.double(), w.double())).norm() < 1e-2 * found.double().norm()
    assert "group_norm  with silu" in compiler.report()
    torch._dynamo.reset()
    torch.compile(call, backend="warpwright", mode="max-autotune-no-cudagraphs")(x, w)
    assert "not on a GPU" in compiler.report()
    torch._dynamo.reset()
    torch.compile(call, backend="warpwright")(x, w)
    # Operators of ours are where strides are kept.
    kept = {"comprehensive_padding": False}
    assert seen == [{**kept, "epilogue_fusion": False}, torch._inductor.list_mode_options("max-autotune-no-cudagraphs"), None]
    torch._dynamo.reset()
    torch.compile(lambda x: ww.torch.silu(x), backend="warpwright")(x)
    torch._dynamo.reset()
    torch.compile(lambda x: ww.torch.silu(x), backend="warpwright", options={"comprehensive_padding": True})(x)
    assert seen[3:] == [kept, {"comprehensive_padding": True}]


def test_with_inductor():
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:
        pytest.skip(f"Inductor has no C++ compiler: {error}")
    x, w = normal(2, 8, 5).bfloat16(), nn.Parameter(normal(8).bfloat16())
    call = lambda x: F.silu(F.group_norm(x + 1, 2, w, w)) * 2  # noqa: E731
    found = torch.compile(call, backend="warpwright", options={"warpwright.emulator": True})(x)
    found.sum().backward()
    exact = w.detach().double().requires_grad_()
    expected = F.silu(F.group_norm(x.double() + 1, 2, exact, exact)) * 2
    expected.sum().backward()
    assert (found.double() - expected).norm() < 1e-2 * expected.norm()
    assert (w.grad.double() - exact.grad).norm() < 2e-2 * exact.grad.norm()
