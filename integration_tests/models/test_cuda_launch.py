"""On a CUDA device: what plans and recordings promise about results, streams, capture, memory and
randomness.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import inductor_triton
import pytest
import torch
import torchstrata
from torch import nn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.manual_seed(0)
    torchstrata.reset()
    inductor_triton.counters.clear()
    with torchstrata.config.patch(fallback="error", verify="contracts"):
        yield


def network() -> nn.Module:
    return (
        nn.Sequential(
            nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.Softmax(-1)
        )
        .cuda()
        .double()
    )


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keep", [0, 1, 12], ids=["drop", "keep one", "keep all"])
@pytest.mark.parametrize("size", [16, 200_000], ids=["small", "large"])
def test_results_are_never_overwritten(keep: int, size: int) -> None:
    net = network().eval()
    compiled, kept = torchstrata.compile(net), []
    x = torch.empty(size, 64, device="cuda", dtype=torch.float64)
    with torch.no_grad():
        for number in range(12):
            x.copy_(torch.arange(64.0, device="cuda") + number)
            kept = (
                [*kept, (compiled(x), net(x[:1]))][-keep:] if keep else [(compiled(x), net(x[:1]))]
            )
            for out, expected in kept:
                close(out, expected.expand_as(out))
    assert inductor_triton.counters["recorded"] > 0


def test_results_of_launch_plans_are_never_overwritten() -> None:
    compiled = torchstrata.compile(lambda x: (x - x.amax(0), x * 2))
    kept = []
    for number in range(8):
        x = torch.randn(100, 64, device="cuda") + number
        kept.append((compiled(x), x))
    for (a, b), x in kept:
        close(a, x - x.amax(0))
        close(b, x * 2)
    assert inductor_triton.launch_counts()["graphs"] > 0


Clear = Callable[[torch.optim.Optimizer, int], None]
CLEARING: dict[str, tuple[str, Clear]] = {
    "before forward": ("forward", lambda optimizer, step: optimizer.zero_grad()),
    "before backward": ("backward", lambda optimizer, step: optimizer.zero_grad()),
    "kept tensors": ("forward", lambda optimizer, step: optimizer.zero_grad(set_to_none=False)),
    "accumulated": (
        "forward",
        lambda optimizer, step: optimizer.zero_grad() if step % 3 == 0 else None,
    ),
}


@pytest.mark.parametrize("where", CLEARING)
@pytest.mark.parametrize("keep", [False, True], ids=["drop", "keep loss"])
def test_training_equals_eager(where: str, keep: bool) -> None:
    place, clear = CLEARING[where]
    nets = [network()]
    nets.append(copy.deepcopy(nets[0]))
    calls = [nets[0], torchstrata.compile(nets[1])]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in nets]
    losses: list[list[torch.Tensor]] = [[], []]
    for step in range(12):
        x = torch.randn(256, 64, device="cuda", dtype=torch.float64)
        for call, optimizer, kept in zip(calls, optimizers, losses):
            if place == "forward":
                clear(optimizer, step)
            loss = (call(x) - x).square().mean()
            if place == "backward":
                clear(optimizer, step)
            loss.backward()
            optimizer.step()
            kept.append(loss.detach() if keep else loss.detach().clone())
        for a, b in zip(nets[1].parameters(), nets[0].parameters()):
            close(a, b)
    for a, b in zip(losses[1], losses[0]):
        close(a, b)


def test_a_second_backward() -> None:
    net = network()
    compiled = torchstrata.compile(net)
    for _ in range(6):
        x = torch.randn(256, 64, device="cuda", dtype=torch.float64, requires_grad=True)
        out = compiled(x).square().sum()
        first = torch.autograd.grad(out, x, retain_graph=True)[0]
        second = torch.autograd.grad(out, x)[0]
        (expected,) = torch.autograd.grad(net(x).square().sum(), x)
        close(first, expected)
        close(second, expected)


def test_two_forwards_before_their_backwards() -> None:
    net = network()
    compiled = torchstrata.compile(net)
    for _ in range(6):
        xs = [
            torch.randn(256, 64, device="cuda", dtype=torch.float64, requires_grad=True)
            for _ in range(3)
        ]
        outs = [compiled(x).square().sum() for x in xs]
        for x, out in zip(xs, outs):
            (expected,) = torch.autograd.grad(net(x).square().sum(), x)
            close(torch.autograd.grad(out, x)[0], expected)


def test_streams() -> None:
    net = network().eval()
    compiled = torchstrata.compile(net)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    x = torch.randn(512, 64, device="cuda", dtype=torch.float64)
    expected = net(x)
    with torch.no_grad():
        for number in range(18):
            stream = streams[number % 3]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(100_000)
                out = compiled(x)
            torch.cuda.current_stream().wait_stream(stream)
            close(out, expected)
            torch.cuda.synchronize()


@pytest.mark.parametrize("calls", [1, 8])
def test_capture_in_a_graph_of_the_user(calls: int) -> None:
    net = network().eval()
    compiled = torchstrata.compile(net)
    x = torch.randn(128, 64, device="cuda", dtype=torch.float64)
    with torch.no_grad():
        for _ in range(calls):
            compiled(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = compiled(x)
        for number in range(3):
            x.fill_(number / 7)
            x[:, 3] = 1
            graph.replay()
            close(out, net(x))


def test_random_numbers() -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).cuda()
    x = torch.ones(256, 64, device="cuda")

    def draws() -> list[torch.Tensor]:
        torch.manual_seed(5)
        return [compiled(x).clone() for _ in range(8)]

    compiled = torchstrata.compile(net)
    draws()
    first, second = draws(), draws()
    for number, out in enumerate(first):
        assert torch.equal(out, second[number])
        assert not any(torch.equal(out == 0, other == 0) for other in first[:number])
        assert 0.45 < (out == 0).float().mean().item() < 0.55


def test_mutation_of_buffers() -> None:
    nets = [nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).cuda().double()]
    nets.append(copy.deepcopy(nets[0]))
    compiled = torchstrata.compile(nets[1])
    for _ in range(8):
        x = torch.randn(4, 3, 16, 16, device="cuda", dtype=torch.float64)
        close(compiled(x), nets[0](x))
        for a, b in zip(nets[1].buffers(), nets[0].buffers()):
            close(a, b)


def test_parameters_that_move() -> None:
    net = network().eval()
    compiled = torchstrata.compile(net)
    x = torch.randn(128, 64, device="cuda", dtype=torch.float64)
    with torch.no_grad():
        for number in range(16):
            if number % 5 == 4:
                net[0].weight.data = torch.randn_like(net[0].weight)
            close(compiled(x), net(x))


def test_sizes_that_change() -> None:
    net = network().eval()
    compiled = torchstrata.compile(net, dynamic=True)
    with torch.no_grad():
        for size in (3, 7, 64, 3, 3, 3, 3, 64, 7, 1000, 64, 64, 64):
            x = torch.randn(size, 64, device="cuda", dtype=torch.float64)
            close(compiled(x), net(x))


def test_data_dependent_sizes_and_values_on_the_host() -> None:
    def select(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x[x > 0].exp().sum() + (x * scale).sum() + x.mean().item()

    compiled = torchstrata.compile(select)
    for number in range(6):
        x, scale = torch.randn(100, 64, device="cuda"), torch.tensor(float(number))
        close(compiled(x, scale), select(x, scale))


def test_results_outlive_what_made_them() -> None:
    net = network().eval()
    x = torch.randn(128, 64, device="cuda", dtype=torch.float64)
    with torch.no_grad():
        compiled = torchstrata.compile(net)
        for _ in range(6):
            out = compiled(x)
        expected = net(x)
        del compiled
        torchstrata.reset()
        junk = [torch.full((1 << 18,), 7.0, device="cuda") for _ in range(32)]
        close(out, expected)
        del junk


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_several_devices() -> None:
    for device in ("cuda:1", "cuda:0"):
        net = network().eval().to(device)
        compiled = torchstrata.compile(net)
        with torch.no_grad():
            for _ in range(6):
                x = torch.randn(128, 64, device=device, dtype=torch.float64)
                close(compiled(x), net(x))
