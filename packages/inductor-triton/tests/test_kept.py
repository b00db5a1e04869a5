"""Training through recordings that keep what only backward reads and write buffers back themselves
(contracts B6, B7).
"""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from inductor_triton.cuda_graphs import recording as recording_module
from inductor_triton.cuda_graphs import replay as replay_module
from inductor_triton.cuda_graphs.replay import GraphEffects, Replay, counters
from torch import nn

aotgrad = pytest.importorskip("aotgrad")


@pytest.fixture(name="pair")
def _pair(capturable):
    """Makes a module, its copy, and the copy compiled."""
    torch.manual_seed(0)
    compiler = partial(_compile, capturable)

    def make() -> tuple[nn.Module, nn.Module, Any]:
        net, other = Net(), Net()
        other.load_state_dict(net.state_dict())
        return (
            net,
            other,
            aotgrad.aot_module(other, forward_compiler=compiler, backward_compiler=compiler),
        )

    return make


def _host(function: Any, inputs: Sequence[str], outputs: Sequence[str | None]) -> Any:
    facts = SimpleNamespace(inputs=[("tensor", name) for name in inputs], outputs=outputs)
    text = SimpleNamespace(launchers={})
    return SimpleNamespace(
        function=function, facts=facts, text=text, writes_back=frozenset(), extern_ops=()
    )


def _compile(capturable: Any, gm: torch.fx.GraphModule, _: object) -> Replay:
    inputs = tuple(node.name for node in gm.graph.find_nodes(op="placeholder"))
    outputs: Any = gm.graph.output_node().args[0]
    host = _host(
        capturable(lambda *args: list(gm(*args))),
        inputs,
        [getattr(output, "name", None) for output in outputs],
    )
    return Replay(host, torch.device("cuda", 0), effects=GraphEffects.of(gm.meta))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.a(x)).tanh()
        self.total.add_(y.detach().sum(0))
        return self.b(y * y.sigmoid())


def same(net: nn.Module, other: nn.Module) -> None:
    for (name, a), b in zip(net.state_dict().items(), other.state_dict().values()):
        torch.testing.assert_close(b, a, msg=name)
    for (name, a), b in zip(net.named_parameters(), other.parameters()):
        torch.testing.assert_close(
            b.grad, a.grad, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("accumulate", [False, True])
def test_training(pair, accumulate: bool) -> None:
    net, other, compiled = pair()
    x = torch.randn(4, 8)
    buffers = list(zip(net.buffers(), other.buffers()))
    apart = [b._version - a._version for a, b in buffers]
    for step in range(12):
        x.copy_(torch.randn(4, 8))
        for module, call in ((net, net), (other, compiled)):
            if not accumulate or step % 3 == 0:
                module.zero_grad(set_to_none=True)
            call(x).square().sum().backward()
        same(net, other)
        assert [b._version - a._version for a, b in buffers] == apart
        with torch.no_grad():
            for p, q in zip(net.parameters(), other.parameters()):
                p.sub_(p.grad, alpha=0.01)
                q.sub_(q.grad, alpha=0.01)
    assert counters["replayed"] >= 8


def test_a_network_with_hundreds_of_parameters(capturable) -> None:
    """More than the 255 names that Python unpacks before a starred one."""
    compiler, width = partial(_compile, capturable), 300
    scales = [torch.rand(2).requires_grad_() for _ in range(width)]

    def product(*scales: torch.Tensor) -> torch.Tensor:
        return torch.stack([(scale.sin() * scale).tanh() for scale in scales]).sum()

    compiled = aotgrad.aot_function(product, forward_compiler=compiler, backward_compiler=compiler)
    expected = torch.autograd.grad(product(*scales), scales)
    for _ in range(5):
        torch.testing.assert_close(torch.autograd.grad(compiled(*scales), scales), expected)


def test_two_forwards_before_their_backwards(pair) -> None:
    net, other, compiled = pair()
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    for _ in range(12):
        for module, call in ((net, net), (other, compiled)):
            module.zero_grad(set_to_none=True)
            losses = [call(x).sum(), call(y).square().sum()]
            for loss in losses:
                loss.backward()
        same(net, other)
    assert counters["held"] > 0


def test_graphs_that_are_retained_and_freed(pair) -> None:
    net, other, compiled = pair()
    x = torch.randn(4, 8)
    for _ in range(8):
        for module, call in ((net, net), (other, compiled)):
            module.zero_grad(set_to_none=True)
            loss = call(x).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
        same(net, other)


def test_hooks_see_what_is_saved(pair) -> None:
    net, other, compiled = pair()
    x, seen = torch.randn(4, 8), []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.shape)
        return tensor.clone()

    for step in range(8):
        for module, call in ((net, net), (other, compiled)):
            module.zero_grad(set_to_none=True)
            if step % 2:
                with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
                    loss = call(x).square().sum()
            else:
                loss = call(x).square().sum()
            seen.clear() if module is net else None
            loss.backward()
        same(net, other)
        assert bool(seen) == bool(step % 2)


def test_gradients_of_gradients(pair) -> None:
    net, other, compiled = pair()
    net.norm.eval(), other.norm.eval()
    x = torch.randn(4, 8, requires_grad=True)
    for _ in range(8):
        found = []
        for call in (net, compiled):
            (first,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
            found.append((first, *torch.autograd.grad(first.square().sum(), x)))
        for a, b in zip(*found):
            torch.testing.assert_close(b, a)


def test_losses_without_backward_let_go(pair) -> None:
    net, other, compiled = pair()
    x = torch.randn(4, 8)
    for _ in range(10):
        for call in (net, compiled):
            call(x)
        same_state = zip(net.state_dict().values(), other.state_dict().values())
        assert all(torch.allclose(a, b) for a, b in same_state)
    assert counters["replayed"] >= 7


@pytest.mark.parametrize("recorded", ["while backward is awaited", "before forward"])
def test_backward_has_the_memory_of_what_was_saved(pair, capturable, recorded: str) -> None:
    """What is recorded later may lie there, and does not replay while somebody waits for a
    backward.
    """
    net, other, compiled = pair()
    x, frozen = torch.randn(4, 8), torch.randn(8, 8)
    host = _host(capturable(lambda a, b: [(a @ b).tanh()]), ("a", "b"), ("c",))
    evaluate = Replay(host, torch.device("cuda", 0))
    for step in range(14):
        for module, call, value in (
            (net, net, lambda: (x @ frozen).tanh()),
            (other, compiled, lambda: evaluate(x, frozen)[0]),
        ):
            module.zero_grad(set_to_none=True)
            if 5 < step < 10 and recorded == "before forward":
                value()
            loss = call(x).square().sum()
            if step > (6 if recorded != "before forward" else 9):
                torch.testing.assert_close(value(), (x @ frozen).tanh())
            loss.backward()
        same(net, other)
        x.copy_(torch.randn(4, 8))
    forward = next(r for r in recordings() if r.results.released)
    assert not any(memory.busy() for memory in forward.results.blocks)


def test_saved_values_outlive_their_recording(pair) -> None:
    net, other, compiled = pair()
    x = torch.randn(4, 8)
    for step in range(8):
        for module, call in ((net, net), (other, compiled)):
            module.zero_grad(set_to_none=True)
            loss = call(x).square().sum()
            if step == 6 and module is other:
                for replay in replays():
                    replay._patterns.clear()
                gc.collect()
            loss.backward()
        same(net, other)


def test_a_backward_is_not_replayed_without_its_forward(pair) -> None:
    net, other, compiled = pair()
    x = torch.randn(4, 8)
    for step in range(8):
        if step == 5:
            for replay in replays():
                if replay._num_private:
                    replay._patterns.clear()
            gc.collect()
        for module, call in ((net, net), (other, compiled)):
            module.zero_grad(set_to_none=True)
            call(x).square().sum().backward()
        same(net, other)
        x.copy_(torch.randn(4, 8))


@pytest.mark.parametrize("seed", range(12))
def test_steps_in_any_order(pair, monkeypatch, seed: int) -> None:
    """Some steps run forward several times or skip backward; inputs move now and then, and
    recordings are dropped.
    """
    net, other, compiled = pair()
    draw = random.Random(seed)
    monkeypatch.setattr(recording_module, "IDLE_CALLS", draw.choice([0, 2, 16]))
    monkeypatch.setattr(replay_module, "SMALL", draw.choice([0, 1 << 20]))
    inputs = [torch.randn(4, 8) for _ in range(3)]
    for _ in range(12):
        usual = draw.choice(inputs)
        for pattern in patterns():
            if draw.random() < 0.2:
                pattern.recordings.clear()
        for _ in range(draw.choice([1, 3, 5])):
            chosen = [draw.choice([usual] * 5 + inputs) for _ in range(draw.choice([1, 1, 2]))]
            order = draw.sample(range(len(chosen)), draw.randint(len(chosen) > 1, len(chosen)))
            clears = draw.random() < 0.8
            for module, call in ((net, net), (other, compiled)):
                if clears:
                    module.zero_grad(set_to_none=True)
                losses = [call(x).square().sum() for x in chosen]
                for place in order:
                    losses[place].backward()
            same(net, other)
            draw.choice(inputs).copy_(torch.randn(4, 8))


def test_a_second_recorded_backward_has_forward_recorded_again(pair, monkeypatch) -> None:
    net, other, compiled = pair()
    monkeypatch.setattr(recording_module, "IDLE_CALLS", 0)
    x = torch.randn(4, 8)
    for step in range(16):
        for module, call in ((net, net), (other, compiled)):
            module.zero_grad(set_to_none=True)
            loss = call(x).square().sum()
            if step == 6 and module is other:
                for pattern in patterns():
                    if any(recording.given is not None for recording in pattern.recordings):
                        pattern.recordings.clear()
            loss.backward()
        same(net, other)
    # at least: the allocator may move an input once more, and both are recorded again
    assert counters["spent"] >= 1
    assert counters["recorded"] >= 4


def replays() -> list[Replay]:
    return [thing for thing in gc.get_objects() if type(thing) is Replay]


def patterns() -> list[recording_module.CallPattern]:
    return [pattern for replay in replays() for pattern in replay._patterns.values()]


def recordings() -> list[recording_module.Recording]:
    return [made for pattern in patterns() for made in pattern.recordings]
