"""Captured functions against the same without graphs."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
import warpwright.torch as wt  # noqa: E402

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: nothing is captured")


class Block(torch.nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm, self.inner = wt.nn.LayerNorm(64), torch.nn.Linear(64, 64)
        self.dropout = dropout

    def forward(self, x, *, scale=1.0):
        y = wt.silu(self.inner(self.norm(x)))
        q = y.view(*y.shape[:2], 1, 64)
        o = wt.attention(q, q, q, causal=True, dropout_p=self.dropout if self.training else 0.0)
        return {"y": scale * y + o.flatten(2), "mean": y.mean()}


def model_on(device, **options):
    torch.manual_seed(3)
    return Block(**options).to(device)


def test_what_is_not_captured_runs():
    """On the CPU, without tensors, and with arguments that cannot be hashed: the function itself."""
    model = model_on("cpu").eval()
    predict = wt.graphed(model)
    x = torch.randn(2, 3, 64)
    with torch.no_grad():
        found, expected = predict(x, scale=2.0), model(x, scale=2.0)
    assert all(torch.equal(found[k], expected[k]) for k in expected)
    assert wt.graphed(lambda n: n + 1)(4) == 5
    assert predict.replays == 0 and "1 calls without a graph: a tensor that is not on a GPU" in predict.report()
    y = predict(x.requires_grad_())["y"]
    assert y.requires_grad


@pytest.mark.parametrize("options, error", [({"warmup": 0}, "warmup is 0"), ({"limit": -1}, "limit is -1")])
def test_wrong_options(options, error):
    with pytest.raises(ValueError, match=f"graphed: {error}, expected at least 1"):
        wt.graphed(lambda: None, **options)
    with pytest.raises(TypeError, match="graphed: function is of type int, expected a callable"):
        wt.graphed(3)


@CUDA
def test_inference_is_that_without_graphs():
    model = model_on("cuda").eval()
    predict = wt.graphed(model, warmup=2, limit=2)
    torch.manual_seed(0)
    kept = []
    with torch.no_grad():
        for number in range(12):
            x = torch.randn(1 + number % 2, 5, 64, device="cuda")
            kept.append((predict(x, scale=3.0), model(x, scale=3.0)))
        # Results are not overwritten by later calls.
        for found, expected in kept:
            assert all(torch.equal(found[k], expected[k]) for k in expected)
        assert predict.replays == 8
        # A third shape has no graph, and neither has another scale.
        predict(torch.randn(7, 5, 64, device="cuda"), scale=3.0)
        predict(x, scale=1.0)
    assert predict.replays == 8 and "more than 2 kinds of arguments" in predict.report()


@CUDA
def test_parameters_may_change():
    model = model_on("cuda").eval()
    predict, x = wt.graphed(model), torch.randn(2, 5, 64, device="cuda")
    with torch.no_grad():
        for _ in range(5):
            predict(x)
        model.inner.weight.mul_(2)
        assert torch.equal(predict(x)["y"], model(x)["y"]) and predict.replays == 3
        model.inner.weight.data = model.inner.weight.data.clone() + 1
        assert torch.equal(predict(x)["y"], model(x)["y"]) and predict.replays == 3


@CUDA
@pytest.mark.parametrize("optimizers", [torch.optim, wt.optim], ids=["theirs", "ours"])
@pytest.mark.parametrize("autocast", [False, True])
def test_training_steps_are_bit_identical(autocast, optimizers):
    """With dropout, AdamW, and a scheduler's learning rate on the device."""
    losses, weights = [], []
    for captured in (False, True):
        model = model_on("cuda", dropout=0.25).train()
        rate = torch.tensor(1e-3, device="cuda")
        optimizer = optimizers.AdamW(model.parameters(), lr=rate, capturable=True)

        def step(x, target):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = F.mse_loss(model(x)["y"].float(), target)
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = wt.graphed(step) if captured else step
        torch.manual_seed(1)
        found = []
        for number in range(12):
            x, target = (torch.randn(2, 5, 64, device="cuda") for _ in range(2))
            rate.fill_(1e-3 / (1 + number))
            found.append(run(x, target))
        if captured:
            assert run.replays == 9, run.report()
        losses.append(torch.stack(found))
        weights.append([p.detach().clone() for p in model.parameters()])
    assert torch.equal(*losses)
    assert all(torch.equal(a, b) for a, b in zip(*weights))


@CUDA
def test_what_cannot_be_captured_is_told():
    x = torch.randn(3, 4, device="cuda")
    asks = wt.graphed(lambda x: x + x.sum().item())
    changes = wt.graphed(lambda x: x.add_(1))
    weight = torch.randn(4, 4, device="cuda", requires_grad=True)
    records = wt.graphed(lambda x: x @ weight)
    for _ in range(6):
        torch.testing.assert_close(asks(x), x + x.sum())
        before = x.clone()
        changes(x)
        assert torch.equal(x, before + 1)
        assert records(x).requires_grad
    for run, why in ((asks, "it cannot be captured"), (changes, "it changes an argument"), (records, "a result has a gradient")):
        assert run.replays == 0 and why in run.report(), run.report()
    # And other work goes on, as if nothing had been tried.
    assert torch.equal(wt.relu(x), torch.relu(x))
    torch.manual_seed(4)
    drawn = torch.randn(5, device="cuda")
    torch.manual_seed(4)
    captured = wt.graphed(lambda x: x + torch.randn(5, device="cuda"))
    assert torch.equal(captured(torch.zeros(5, device="cuda")), drawn)
