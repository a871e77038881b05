"""Feed-forward parts of patched models, whose activations are part of the products beside them: results, gradients, and what is left."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.backends.debugging import aot_eager  # noqa: E402

import warpwright.torch as wt  # noqa: E402
from warpwright.torch._patch_rules import mlp_rule  # noqa: E402


class Mlp(nn.Module):
    """A block as models of timm have it."""

    def __init__(self, act: Any = None, bias: bool = True, drop: float = 0.0) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(32, 64, bias=bias), nn.Linear(64, 32, bias=bias)
        self.act, self.drop1, self.norm, self.drop2 = act or nn.GELU(), nn.Dropout(drop), nn.Identity(), nn.Dropout(drop)

    def forward(self, x: Any) -> Any:
        x = self.fc1(x)
        x = self.act(x)
        x = self.drop1(x)
        x = self.norm(x)
        x = self.fc2(x)
        x = self.drop2(x)
        return x


class Gated(nn.Module):
    """A block as models of transformers have it."""

    def __init__(self, act: Any = None, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(32, 64, bias=bias) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(64, 32, bias=bias), act or nn.SiLU()

    def forward(self, x: Any) -> Any:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def sequence(act: Any = None, bias: bool = True, drop: float = 0.0) -> nn.Module:
    """As torchvision has it."""
    return nn.Sequential(nn.Linear(32, 64, bias=bias), act or nn.GELU(), nn.Dropout(drop), nn.Linear(64, 32, bias=bias), nn.Dropout(drop))


@pytest.fixture
def block() -> Callable[..., Any]:
    def make(cls: Any = Mlp, dtype: Any = torch.bfloat16, **options: Any) -> Any:
        torch.manual_seed(7)
        return cls(**options).to(dtype), torch.randn(2, 40, 32).to(dtype).requires_grad_()

    return make


def patch(model: Any, **options: Any) -> Any:
    return wt.patch(model, emulator=True, **{"sources": {__name__.split(".")[0]}, "enable": {"mlp"}, **options})


def calls(patched: Any, kind: str = "mlp") -> tuple[int, dict[str, int]]:
    """How many calls of a kind were ours, and those that were not."""
    left: dict[str, int] = {}
    found = [entry.replacement for entry in patched.replaced if entry.kind == kind]
    for replacement in found:
        for why, count in replacement.left.items():
            left[why] = left.get(why, 0) + count
    return sum(replacement.ran for replacement in found), left


def step(model: Any, x: Any) -> list[Any]:
    """The result and all gradients of a step."""
    x = x.detach().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.float().square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


def error(found: Any, exact: Any) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def agrees(ours: Any, theirs: Any, exact: Any) -> bool:
    """Whether ours errs no more than PyTorch: two roundings fewer, or none."""
    return all(error(a, c) <= 1.1 * error(b, c) for a, b, c in zip(ours, theirs, exact))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["gelu", "gelu tanh", "relu", "silu", "no bias", "sequence", "gated", "gated gelu", "gated bias"])
def test_steps(block: Any, case: str, dtype: Any) -> None:
    acts = {"gelu tanh": nn.GELU("tanh"), "relu": nn.ReLU(), "silu": nn.SiLU(), "gated gelu": nn.GELU()}
    cls = Gated if "gated" in case else sequence if case == "sequence" else Mlp
    model, x = block(cls, dtype, act=acts.get(case), **({"bias": "no" not in case} if "bias" in case else {}))
    exact, theirs = step(copy.deepcopy(model).double(), x.double()), step(model, x)
    patched = patch(model)
    ours = step(model, x)
    assert calls(patched) == (1, {}), patched.report()
    assert agrees(ours, theirs, exact)
    # The same without gradients, and of one row and none.
    with torch.no_grad():
        assert error(model(x), exact[0]) <= 1.1 * error(theirs[0], exact[0])
        assert model(x[0, 0]).shape == (32,) and model(x[:0]).shape == (0, 40, 32)
    patched.undo()
    assert all(torch.equal(a, b) for a, b in zip(step(model, x), theirs))


@pytest.mark.parametrize("name", ["GPT2", "ViT", "Llama", "CLIPVision"])
def test_models_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {
        "GPT2": {"n_embd": 32, "n_inner": 64, "n_layer": 2, "n_head": 2, "vocab_size": 23, "n_positions": 32, "bos_token_id": None, "eos_token_id": None},
        "ViT": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 4},
        "CLIPVision": {
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 4,
            "hidden_act": "gelu",
        },
        "Llama": {
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 16, "vocab_size": 23, "max_position_embeddings": 32,
        },
    }[name]
    torch.manual_seed(5)
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes)).bfloat16()
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if name in ("ViT", "CLIPVision"):
        inputs = {"pixel_values": torch.randn(2, 3, 16, 16).bfloat16()}
    else:
        inputs = {"input_ids": torch.randint(1, 23, (2, 12)), "use_cache": False}

    def run(of: Any, dtype: Any) -> list[Any]:
        of.zero_grad()
        found = of(**{k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in inputs.items()}).last_hidden_state
        (found.double() * torch.linspace(-1, 1, found.numel()).view(found.shape).sin()).sum().backward()
        return [found.detach(), *(p.grad for p in of.parameters() if p.grad is not None)]

    exact, theirs = run(copy.deepcopy(model).double(), torch.float64), run(model, torch.bfloat16)
    others = {"attention", "attention_mask", "fused", "layer_norm", "rms_norm", "rotary_embedding", "embedding", "activation", "gated_linear"}
    others -= {"gated_linear"} if name == "Llama" else set()
    with wt.patch(model, emulator=True, enable={"mlp"}, disable=others) as patched:
        ours = run(model, torch.bfloat16)
        assert calls(patched) == (2, {}), patched.report()

    def total(found: list[Any]) -> float:
        above = sum(float((a.double() - c).square().sum()) for a, c in zip(found, exact))
        return (above / sum(float(c.square().sum()) for c in exact)) ** 0.5

    assert total(ours) <= 1.1 * total(theirs)


@pytest.mark.parametrize("case", ["dropout", "hook", "forward", "another activation", "parametrized"])
def test_what_is_left(block: Any, case: str) -> None:
    options: dict[str, Any] = {"dropout": {"drop": 0.5}, "another activation": {"act": nn.Mish()}}.get(case, {})
    model, x = block(**options)
    seen: list[Any] = []
    if case == "hook":
        model.act.register_forward_hook(lambda *call: seen.append(call))
        model.fc2.register_forward_hook(lambda *call: seen.append(call))
    if case == "forward":
        model.fc1.forward = lambda x: 2 * F.linear(x, model.fc1.weight, model.fc1.bias)
    if case == "parametrized":
        nn.utils.parametrize.register_parametrization(model.fc2, "weight", nn.Identity())
    torch.manual_seed(3)
    theirs = step(model, x)
    torch.manual_seed(3)
    patched = patch(model)
    ours = step(model, x)
    assert calls(patched)[0] == 0, patched.report()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=5e-2)
    assert len(seen) == (4 if case == "hook" else 0)
    if case == "dropout":
        assert calls(patched)[1] == {"a dropout lies between the layers": 1}
        model.eval()
        step(model, x)
        assert calls(patched)[0] == 1


@pytest.mark.parametrize("cls", [Mlp, Gated])
def test_training_is_replaced_unless_it_is_disabled(block: Any, cls: type) -> None:
    model, x = block(cls)
    apart = copy.deepcopy(model)
    exact, theirs = step(copy.deepcopy(model).double(), x.double()), step(model, x)
    patched, without = patch(model, enable=()), patch(apart, enable=(), disable={"mlp", "activation", "fused"})
    assert agrees(step(model, x), theirs, exact) and calls(patched) == (1, {})
    assert all(torch.equal(a, b) for a, b in zip(step(apart, x), theirs))
    assert "mlp" not in {entry.kind for entry in without.replaced}
    with torch.no_grad():
        model(x)
    # A gated unit with its products is of a kind of its own.
    assert calls(patched)[0] == 1 + (cls is Mlp) and calls(patched, "gated_linear")[0] == (cls is Gated)


def test_autocast(block: Any) -> None:
    model, x = block(dtype=torch.float32)
    exact = step(copy.deepcopy(model).double(), x.double())
    with torch.autocast("cpu", torch.bfloat16):
        theirs = step(model, x)
    patched = patch(model, disable={"linear"})
    with torch.autocast("cpu", torch.bfloat16):
        ours = step(model, x)
    assert calls(patched) == (1, {}) and agrees(ours, theirs, exact), patched.report()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_extents_and_types_are_left() -> None:
    def reason(n: int, k: int, dtype: Any = torch.bfloat16, of_x: Any = torch.bfloat16) -> Any:
        like = {"dtype": dtype, "device": "meta"}
        return mlp_rule(torch.empty(n, k, **like), torch.empty(k, n, **like))(None, torch.empty(1024, k, dtype=of_x, device="meta"))

    assert reason(3072, 768) is None
    with torch.enable_grad():
        weight = torch.empty(8, 8, dtype=torch.bfloat16, device="meta", requires_grad=True)
        assert mlp_rule(weight)(None, torch.empty(4096, 8, dtype=torch.bfloat16, device="meta")) is None
    assert "8 does not divide" in reason(3073, 768)
    assert "32 and 64 bits" in reason(3072, 768, torch.float32, torch.float32)
    assert "another type" in reason(3072, 768, torch.float32)


@pytest.mark.parametrize("cls", [Mlp, Gated])
def test_compiled_copied_and_checkpointed(block: Any, cls: type) -> None:
    model, x = block(cls)
    exact, theirs = step(copy.deepcopy(model).double(), x.double()), step(model, x)
    patched = patch(model)
    ours = step(model, x)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(torch.equal(a, b) for a, b in zip(step(copied, x), ours))
    again = step(Checkpointed(model), x)
    assert all(torch.equal(a, b) for a, b in zip(again[:2], ours[:2]))
    torch._dynamo.reset()
    before = calls(patched)[0]
    seen: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if "warpwright" in str(node.target))
        return aot_eager(graph, inputs)

    assert agrees(step(torch.compile(model, backend=backend, fullgraph=True), x), theirs, exact)
    assert calls(patched)[0] == before and seen == [f"warpwright.{'mlp' if cls is Mlp else 'gated_mlp'}.default"]


class Checkpointed(nn.Module):
    """A model whose blocks are run again in the backward pass."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)
