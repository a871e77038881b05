"""`warpwright.torch.patch(model, graphs=True)`: calls without gradients, in graphs where there is a GPU."""

import copy
import pickle
from collections import namedtuple

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402
from warpwright.torch import _graphs  # noqa: E402

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: nothing is captured")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner, self.act = nn.LayerNorm(16), nn.Linear(16, 16), nn.SiLU()

    def forward(self, x, *, scale=1.0):
        return {"y": scale * self.act(self.inner(self.norm(x)))}


def net(device="cpu"):
    torch.manual_seed(3)
    return Net().to(device)


@pytest.mark.parametrize("make", [net, lambda: nn.LayerNorm(16), lambda: nn.Sequential(nn.GroupNorm(2, 16), nn.SiLU())])
def test_without_a_gpu_calls_have_no_graph(make):
    model, x = make(), torch.randn(2, 16)
    before, classes = model(x), [type(m) for m in model.modules()]
    with wt.patch(model, emulator=True, graphs=True) as patched:
        assert patched.report().endswith("calls without gradients:\nno calls")
        with torch.no_grad():
            torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-6)
        assert patched.report().endswith("calls without gradients:\n1 calls without a graph: a tensor that is not on a GPU")
        # Those with gradients are none of its business.
        y = model(x)
        assert (y["y"] if isinstance(y, dict) else y).requires_grad
        assert "1 calls" in patched.report().splitlines()[-1]
        assert isinstance(model, classes[0]) and type(model).__name__ == classes[0].__name__
        again = wt.patch(model, graphs=True)
        assert again.replaced == [] and "1 calls" in again.report()
        again.undo()
        with torch.inference_mode():
            model(x)
        assert "2 calls" in patched.report()
    assert [type(m) for m in model.modules()] == classes and not any(name.startswith("_warpwright") for name in vars(model))
    assert "gradients" not in patched.report()


def test_copies_have_graphs_of_their_own():
    model, x = net(), torch.randn(2, 16)
    patched = wt.patch(model, emulator=True, graphs=True)
    with torch.no_grad():
        wanted = model(x)["y"]
        for copied in (copy.deepcopy(model), copied_by_pickle(model)):
            assert type(copied) is type(model) and "_warpwright_graphs" not in vars(copied)
            assert torch.equal(copied(x)["y"], wanted) and copied.norm._warpwright.ran == 2
            assert vars(copied)["_warpwright_graphs"] is not vars(model)["_warpwright_graphs"]
    patched.undo()
    assert type(model) is Net
    with torch.no_grad():
        torch.testing.assert_close(model(x)["y"], wanted, rtol=1e-5, atol=1e-6)


def copied_by_pickle(model):
    return pickle.loads(pickle.dumps(model))


def test_compilers_and_classes_derived_since():
    model, x = net(), torch.randn(2, 16)
    patched = wt.patch(model, emulator=True, graphs=True)
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)(x)["y"]
    assert "no calls" in patched.report()
    torch.testing.assert_close(compiled, model(x)["y"].detach(), rtol=1e-5, atol=1e-6)
    ours = type(model)
    model.__class__ = type("FSDPNet", (ours,), {})
    with pytest.raises(ww.ArgumentError, match="FSDPNet"):
        patched.undo()
    model.__class__ = ours
    patched.undo()
    assert type(model) is Net
    model.forward = lambda x: x
    with pytest.raises(ww.ArgumentError, match="graphs=True expects a model whose forward is its class's"):
        wt.patch(model, graphs=True)
    assert type(model.norm) is nn.LayerNorm


class Cache:
    """What has a state."""


def test_objects_with_a_state_have_no_graph():
    plain = [None, 1, 2.0, "a", torch.float32, torch.device("cpu"), torch.relu, Cache, torch.channels_last, nn.ReLU(), torch.zeros(1)]
    assert _graphs._object_among(plain, "an argument") is None
    why = "a result is an object of class Cache, which has a state of its own"
    assert _graphs._object_among([1, Cache()], "a result") == why
    pair = namedtuple("pair", "a b")
    tree = pytree.tree_structure(((1, {"a": [torch.zeros(1), None]}), pair(1, 2)))
    assert _graphs._object_of(tree) is None
    register = getattr(pytree, "register_pytree_node", pytree._register_pytree_node)
    register(Cache, lambda cache: ([], None), lambda values, context: Cache())
    try:
        assert "an argument is an object of class Cache" in _graphs._object_of(pytree.tree_structure([{"a": Cache()}]))
    finally:
        pytree._deregister_pytree_node(Cache) if hasattr(pytree, "_deregister_pytree_node") else pytree.SUPPORTED_NODES.pop(Cache)


@CUDA
def test_calls_without_gradients_are_replays():
    model = net("cuda")
    xs = [torch.randn(2, 16, device="cuda") for _ in range(8)]
    wanted = [model(x, scale=2.0)["y"].detach() for x in xs]
    with wt.patch(model, graphs=True) as patched:
        with torch.inference_mode():
            found = [model(x, scale=2.0)["y"] for x in xs]
        # None is overwritten by a later one.
        for f, w in zip(found, wanted):
            torch.testing.assert_close(f, w, rtol=1e-2, atol=1e-3)
        assert "5 replayed, 3 without a graph: captured" in patched.report()
        loss = model(xs[0])["y"].sum()
        loss.backward()
        assert model.inner.weight.grad is not None
        copied = copy.deepcopy(model)
        with torch.no_grad():
            copied.inner.weight.mul_(2)
            assert not torch.equal(copied(xs[0])["y"], model(xs[0])["y"])
    assert type(model) is Net


@CUDA
def test_models_with_caches_are_not_captured():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 23}
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).cuda().eval()
    ids = torch.randint(1, 23, (1, 6), device="cuda")
    wanted = model.generate(ids, max_new_tokens=12, do_sample=False)
    with wt.patch(model, graphs=True) as patched:
        assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False), wanted)
        assert "has a state of its own" in patched.report() and vars(model)["_warpwright_graphs"].replays == 0
        with torch.no_grad():
            for _ in range(6):
                model(ids, use_cache=False)
        assert "3 replayed, 3 without a graph: captured" in patched.report()


@CUDA
@pytest.mark.parametrize("autocast", [False, True])
def test_bias_gradients_in_graphs_of_training_steps(autocast):
    torch.manual_seed(3)
    dtype = torch.float32 if autocast else torch.bfloat16
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to("cuda", dtype)
    twin = copy.deepcopy(model)
    x = torch.randn(512, 64, device="cuda", dtype=dtype)

    def step(module):
        for parameter in module.parameters():
            parameter.grad = None
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = module(x).float().square().mean()
        loss.backward()

    step(twin)
    with wt.patch(model) as patched:
        aside = torch.cuda.Stream()
        with torch.cuda.stream(aside):
            step(model)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(model)
        graph.replay()
        torch.cuda.synchronize()
        nodes = [entry.replacement for entry in patched.replaced if entry.kind == "linear_bias"]
        assert [node.ran for node in nodes] == ([] if autocast else [1, 1])
    for ours, theirs in zip(model.parameters(), twin.parameters()):
        assert ours.grad.dtype == dtype
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=2e-2, atol=2e-5)
