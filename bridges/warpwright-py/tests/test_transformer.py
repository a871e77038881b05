"""`warpwright.torch.nn.Linear` in place of PyTorch's in a transformer: losses, gradients and parameters of some steps of training."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402

import warpwright.torch as wt  # noqa: E402

WIDTH, HEADS, LENGTH, CLASSES = 32, 2, 8, 11


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, HEADS, -1)).movedim((2, 3), (0, 2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.movedim(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.between(x))))


def model():
    return torch.nn.Sequential(Block(), Block(), torch.nn.Linear(WIDTH, CLASSES))


def swapped(module):
    """A copy of a module whose products are ours, with the same parameters."""
    module = copy.deepcopy(module)
    for child in list(module.modules()):
        for name, theirs in child.named_children():
            if type(theirs) is torch.nn.Linear:
                options = {"bias": theirs.bias is not None, "device": theirs.weight.device, "dtype": theirs.weight.dtype}
                ours = wt.nn.Linear(theirs.in_features, theirs.out_features, **options)
                ours.load_state_dict(theirs.state_dict())
                setattr(child, name, ours)
    return module


def train(model, x, target, steps=5):
    """Losses, gradients and parameters, step by step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, -2), target.flatten())
        loss.backward()
        gradients = {name: p.grad.double() for name, p in model.named_parameters()}
        optimizer.step()
        parameters = {f"{name} after": p.detach().double().clone() for name, p in model.named_parameters()}
        found.append({"loss": loss.detach().double(), "logits": logits.detach().double(), **gradients, **parameters})
    return found


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_training_is_that_of_pytorch(compiled, torch_device):
    torch.manual_seed(11)
    theirs = model()
    x, target = torch.randn(2, LENGTH, WIDTH), torch.randint(CLASSES, (2, LENGTH))
    exact = train(copy.deepcopy(theirs).double(), x.double(), target)
    theirs, x, target = theirs.to(torch_device), x.to(torch_device), target.to(torch_device)
    ours = swapped(theirs)
    assert sum(type(m) is wt.nn.Linear for m in ours.modules()) == 9
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    if compiled:
        torch._dynamo.reset()
        # On the CPU, inductor would need a C++ compiler.
        ours.compile(fullgraph=True, backend="inductor" if torch_device == "cuda" else "aot_eager")
    assert exact[-1]["loss"] < exact[0]["loss"]
    for mine, other, reference in zip(train(ours, x, target), train(theirs, x, target), exact):
        assert mine.keys() == other.keys() == reference.keys()
        for name, wanted in reference.items():
            error, usual = (float((f[name].cpu() - wanted).norm() / wanted.norm()) for f in (mine, other))
            assert error <= 2 * usual + 2**-22, name
