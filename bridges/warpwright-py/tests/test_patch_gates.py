"""Gated feed-forward parts of patched models, whose products and unit are one launch: results, and what is left to PyTorch."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402
from warpwright.torch._patch_rules import gated_linear_rule  # noqa: E402

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "vocab_size": 23, "pad_token_id": 0, "max_position_embeddings": 16,
}


class Mlp(nn.Module):
    """A block as models of transformers have it."""

    def __init__(self, act: Any = None, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(32, 48, bias=bias) for _ in range(2))
        self.down_proj = nn.Linear(48, 32, bias=False)
        self.act_fn = nn.SiLU() if act is None else act

    def forward(self, x: Any) -> Any:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Turned(Mlp):
    def forward(self, x: Any) -> Any:
        return self.down_proj(self.up_proj(x) * F.silu(self.gate_proj(x)))


class OfTwo(Mlp):
    """Not a gated unit of one input."""

    def forward(self, x: Any) -> Any:
        y = x.flip(0)
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(y))


class Named(Mlp):
    """As T5 has it."""

    def forward(self, x: Any) -> Any:
        gated = self.act_fn(self.gate_proj(x))
        linear = self.up_proj(x)
        x = gated * linear
        return self.down_proj(x)


class Read(Mlp):
    """A factor is read afterwards."""

    def forward(self, x: Any) -> Any:
        gated = self.act_fn(self.gate_proj(x))
        linear = self.up_proj(x)
        x = gated * linear
        return self.down_proj(x + linear)


class Halves(nn.Module):
    """As Phi-3 has it."""

    def __init__(self, act: Any = None, bias: bool = False) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(32, 96, bias=bias)
        self.down_proj = nn.Linear(48, 32, bias=False)
        self.act_fn = nn.SiLU() if act is None else act

    def forward(self, x: Any) -> Any:
        up = self.gate_up_proj(x)
        gate, up = up.chunk(2, dim=-1)
        up = up * self.act_fn(gate)
        return self.down_proj(up)


class HalvesRead(Halves):
    def forward(self, x: Any) -> Any:
        up = self.gate_up_proj(x)
        gate, up = up.chunk(2, dim=-1)
        up = up * self.act_fn(gate)
        return self.down_proj(up + gate)


class OtherHalf(Halves):
    def forward(self, x: Any) -> Any:
        up = self.gate_up_proj(x)
        up, gate = up.chunk(2, dim=-1)
        up = up * self.act_fn(gate)
        return self.down_proj(up)


@pytest.fixture
def block() -> Callable[..., Any]:
    def make(cls: type = Mlp, dtype: Any = torch.bfloat16, **options: Any) -> Any:
        torch.manual_seed(7)
        return cls(**options).to(dtype), torch.randn(2, 5, 32).to(dtype)

    return make


def patch(model: Any, **options: Any) -> Any:
    return wt.patch(model, emulator=True, **{"sources": {__name__.split(".")[0]}, **options})


def calls(patched: Any, kind: str = "gated_linear") -> tuple[int, dict[str, int]]:
    """How many calls of a kind were ours, and those that were not."""
    left: dict[str, int] = {}
    found = [entry.replacement for entry in patched.replaced if entry.kind == kind]
    for replacement in found:
        for why, count in replacement.left.items():
            left[why] = left.get(why, 0) + count
    return sum(replacement.ran for replacement in found), left


def error(found: Any, exact: Any) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def agrees(ours: Any, theirs: Any, exact: Any) -> bool:
    """Whether ours errs no more than PyTorch, which rounds both products too."""
    return error(ours, exact) <= 1.1 * error(theirs, exact)


@pytest.mark.parametrize("name", ["Llama", "Gemma", "Phi3"])
def test_models_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(5)
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**SMALL)).bfloat16().eval()
    ids = {"input_ids": torch.randint(1, 23, (2, 6)), "use_cache": False}
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(**ids).last_hidden_state
        theirs = model(**ids).last_hidden_state
        with wt.patch(model, emulator=True) as patched:
            ours = model(**ids).last_hidden_state
            assert calls(patched) == (2, {}), patched.report()
        assert agrees(ours, theirs, exact)
        assert torch.equal(model(**ids).last_hidden_state, theirs)
    assert not any(key.startswith("_warpwright") for m in model.modules() for key in vars(m))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["silu", "gelu", "gelu tanh", "turned", "named", "halves", "bias", "named bias", "halves bias"])
def test_blocks(block: Any, case: str, dtype: Any) -> None:
    act = {"gelu": nn.GELU(), "gelu tanh": nn.GELU("tanh")}.get(case)
    cls = {"turned": Turned, "named": Named, "halves": Halves}.get(case.split()[0], Mlp)
    model, x = block(cls, dtype, act=act, bias="bias" in case)
    with torch.no_grad():
        exact, theirs = copy.deepcopy(model).double()(x.double()), model(x)
        patched = patch(model)
        assert agrees(model(x), theirs, exact)
        # One row, and none.
        assert agrees(model(x[0, 0]), theirs[0, 0], exact[0, 0])
        assert model(x[:0]).shape == (0, 5, 32)
    assert calls(patched) == (3, {}) and calls(patched, "fused") == (0, {}), patched.report()


@pytest.mark.parametrize("cls", [Mlp, Named, Halves])
def test_training_is_as_before(block: Any, cls: type) -> None:
    model, x = block(cls)
    apart = copy.deepcopy(model)
    patched, without = patch(model, disable={"mlp"}), patch(apart, disable={"gated_linear", "mlp"})
    found = []
    for each in (model, apart):
        y = each(x)
        y.square().sum().backward()
        found.append([y, *(p.grad for p in each.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found))
    ran, left = calls(patched)
    assert ran == 0 and list(left.values()) == [1] and "gradients" in next(iter(left))
    assert calls(patched, "fused") == calls(without, "fused") == (1, {})
    # Frozen weights and an input without a gradient record none.
    model.requires_grad_(False)
    model(x)
    assert calls(patched)[0] == 1
    model(x.clone().requires_grad_()).sum().backward()
    assert calls(patched)[0] == 1


def test_gradients_of_ours_are_asked_for(block: Any) -> None:
    model, x = block(dtype=torch.float32)
    exact = copy.deepcopy(model).double()
    exact(x.double()).square().sum().backward()
    patched = patch(model, enable={"gated_linear"})
    model(x).square().sum().backward()
    assert calls(patched) == (1, {})
    for ours, wanted in zip(model.parameters(), exact.parameters()):
        assert error(ours.grad, wanted.grad) < 2e-6


def test_what_watches_a_factor_sees_it(block: Any) -> None:
    model, x = block()
    theirs = model(x)
    patched = patch(model)
    seen: list[Any] = []
    handle = model.up_proj.register_forward_hook(lambda module, inputs, result: seen.append(result))
    with torch.no_grad():
        torch.testing.assert_close(model(x), theirs, rtol=2e-2, atol=2e-2)
        assert torch.equal(seen[0], F.linear(x, model.up_proj.weight))
        handle.remove()
        handle = nn.modules.module.register_module_forward_pre_hook(lambda module, inputs: seen.append(module))
        model(x)
        handle.remove()
        assert model.gate_proj in seen[1:] and model.up_proj in seen[1:]
        assert calls(patched) == (0, {"a factor has a hook": 2})
        # As Accelerate does where weights are elsewhere.
        model.gate_proj.forward = lambda x: 2 * F.linear(x, model.gate_proj.weight)
        doubled = F.linear(F.silu(2 * F.linear(x, model.gate_proj.weight)) * F.linear(x, model.up_proj.weight), model.down_proj.weight)
        torch.testing.assert_close(model(x), doubled, rtol=2e-2, atol=2e-2)
        del model.gate_proj.forward
        nn.utils.parametrize.register_parametrization(model.up_proj, "weight", nn.Identity())
        torch.testing.assert_close(model(x), theirs, rtol=2e-2, atol=2e-2)
        assert calls(patched)[0] == 0 and sum(calls(patched)[1].values()) == 4, patched.report()


@pytest.mark.parametrize("case", ["another input", "another activation", "read", "halves read", "other half"])
def test_what_is_left(block: Any, case: str) -> None:
    options = {"act": nn.Tanh()} if case == "another activation" else {}
    classes = {"another input": OfTwo, "read": Read, "halves read": HalvesRead, "other half": OtherHalf}
    model, x = block(classes.get(case, Mlp), **options)
    theirs = model(x)
    patched = patch(model)
    with torch.no_grad():
        torch.testing.assert_close(model(x), theirs, rtol=2e-2, atol=2e-2)
    assert "gated_linear" not in {entry.kind for entry in patched.entries}, patched.report()
    # The activation and the factor are one operation as before.
    alone = case in ("another activation", "read")
    assert calls(patched, "fused") == (0 if alone else 1, {}), patched.report()


def test_autocast_and_types(block: Any) -> None:
    model, x = block(dtype=torch.float32)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        theirs = model(x)
    patched = patch(model, disable={"linear"})
    with torch.no_grad():
        assert error(model(x), copy.deepcopy(model).double()(x.double())) < 2e-6
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(model(x), theirs, rtol=2e-2, atol=2e-2)
        assert calls(patched)[0] == 0 and len(calls(patched)[1]) == 2, patched.report()
        # Weights of 16 bits, and an argument of 32.
        model.bfloat16()
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(model(x), theirs, rtol=2e-2, atol=2e-2)
    assert calls(patched)[0] == 1, patched.report()


def test_few_rows_of_large_weights_are_left() -> None:
    def reason(rows: int, width: int, inner: int, layers: int = 2) -> Any:
        like = {"dtype": torch.bfloat16, "device": "meta"}
        weights = (torch.empty(2 // layers * inner, width, **like) for _ in range(layers))
        return gated_linear_rule(*weights)(None, torch.empty(2, rows // 2, width, **like))

    assert reason(64, 4096, 14336) is None and reason(2, 2048, 8192) is None
    assert reason(62, 4096, 14336) == reason(62, 4096, 14336, 1) == "products of few rows with large weights are faster in cuBLAS"


def test_transforms_are_left(block: Any) -> None:
    model, x = block()
    patched = patch(model, disable={"fused", "mlp"})
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(model)(x), model(x), rtol=2e-2, atol=2e-2)
    assert calls(patched) == (1, {"a functional transform is active": 1})
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    found = torch.func.grad(lambda p: torch.func.functional_call(model, p, x).float().sum())(parameters)
    model(x).float().sum().backward()
    for name, p in model.named_parameters():
        assert torch.equal(found[name], p.grad)


def test_compiled_and_copied(block: Any) -> None:
    model, x = block()
    exact, theirs = copy.deepcopy(model).double()(x.double()), model(x)
    patch(model)
    torch._dynamo.reset()
    graphs: list[Any] = []

    def seen(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, backend=seen, fullgraph=True)
    with torch.no_grad():
        ours = model(x)
        assert torch.equal(compiled(x), ours) and agrees(ours, theirs, exact)
        assert any("gated_linear" in str(node.target) for node in graphs[0].graph.nodes)
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(copied(x), ours)
            assert copied._warpwright_block["gated_linear"].ran > 0
    recorded = compiled(x)
    assert recorded.requires_grad
    assert not any("gated_linear" in str(node.target) for node in graphs[-1].graph.nodes)


def test_strict_and_disabled(block: Any) -> None:
    model, x = block()
    with torch.no_grad():
        with wt.patch(model, strict=True, sources={__name__}), pytest.raises(ww.DeviceError, match="gated_linear"):
            model(x)
        theirs = model(x)
        with patch(model, disable={"activation", "fused", "gated_linear"}) as patched:
            assert torch.equal(model(x), theirs) and not patched.replaced
        with patch(model, disable={"gated_linear"}) as patched:
            model(x)
            assert calls(patched, "fused") == (1, {}) and calls(patched) == (0, {})
        with patch(model, disable={"fused"}) as patched:
            model(x)
            assert calls(patched) == (1, {})
