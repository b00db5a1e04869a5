"""Fixtures: running a kernel's text through the interpreter against loopir's evaluator, and CUDA
graphs on the CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from inductor_triton import Config, compile_ptx, generate_source
from inductor_triton.cuda_graphs import pool as pool_module
from inductor_triton.cuda_graphs.replay import counters
from loopir import check_kernel, evaluate_kernel, parse_kernel


def compare(actual: torch.Tensor, expected: torch.Tensor, ulps: float) -> None:
    """Equal, or for floats within ``ulps`` units in the last place of the larger of the value and
    1e-30; NaN equals NaN.
    """
    assert actual.dtype == expected.dtype
    if not expected.dtype.is_floating_point:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
        return
    epsilon = torch.finfo(expected.dtype).eps
    torch.testing.assert_close(actual, expected, rtol=ulps * epsilon, atol=1e-30, equal_nan=True)


@pytest.fixture
def run():
    """``run(text, *tensors, ...)`` checks every tensor after the launch and returns the source."""
    pytest.importorskip("triton")
    from inductor_triton.launching.interpret import interpreted

    def check(
        text: str,
        *tensors: torch.Tensor,
        sizes=(),
        ulps: float = 4,
        config: Config | None = None,
        ptx=(),
    ) -> str:
        kernel = parse_kernel(text)
        check_kernel(kernel)
        source = generate_source(kernel, config)
        expected = [tensor.clone() for tensor in tensors]
        actual = [tensor.clone() for tensor in tensors]
        evaluate_kernel(kernel, expected, sizes)
        interpreted(source)(*actual, *sizes)
        for got, wanted in zip(actual, expected):
            compare(got, wanted, ulps)
        for capability in ptx:
            assert f".target sm_{capability}" in compile_ptx(source, capability)
        return source.text

    return check


foreach_copy = torch._foreach_copy_


class FakeGraph:
    """Replays by running what was captured again and writing into the same results, and over what
    was free meanwhile.
    """

    current: FakeGraph | None = None
    let_go: list[torch.Tensor]
    free: dict[object, list[torch.Tensor]]

    def __init__(self, keep_graph: bool) -> None:
        self.captured: list[Callable[[], None]] = []
        self.ready = not keep_graph

    def raw_cuda_graph(self) -> int:
        return 0

    def instantiate(self) -> None:
        self.ready = True

    def replay(self) -> None:
        assert self.ready
        for again in self.captured:
            again()


@contextmanager
def capture(graph: FakeGraph, **options: object):
    free = FakeGraph.free.setdefault(options["pool"], [])
    free += FakeGraph.let_go
    FakeGraph.current, FakeGraph.let_go, free = graph, [], [*free]
    try:
        yield
        graph.captured.extend(partial(owner.fill_, 77) for owner in free)
    finally:
        FakeGraph.current = None


def captured_copy(targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """``torch._foreach_copy_``, also in a capture."""
    if FakeGraph.current is None:
        foreach_copy(targets, values)
    else:
        FakeGraph.current.captured.append(lambda: foreach_copy(targets, values))


def borrowed(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor without holding it: a graph keeps addresses."""
    size = tensor.untyped_storage().nbytes()
    if size == 0:
        return tensor.detach()
    memory = (ctypes.c_char * size).from_address(tensor.untyped_storage().data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(
        tensor.shape, tensor.stride(), tensor.storage_offset()
    )


def capturable(function: Callable[..., list[torch.Tensor]]) -> Callable[..., list[torch.Tensor]]:
    """``function`` as a host program's: captured, it computes nothing."""

    def run(*arguments: torch.Tensor) -> list[torch.Tensor]:
        graph = FakeGraph.current
        if graph is None:
            return function(*arguments)
        arguments = tuple(map(borrowed, arguments))
        results = function(*arguments)
        # the recording may let go of a result, the graph writes anyway
        memory = [result.detach() for result in results]

        def again() -> None:
            for old, new in zip(memory, function(*arguments)):
                old.copy_(new)

        graph.captured.append(again)
        for result in results:
            result.fill_(-1)
        return results

    return run


@pytest.fixture(name="capturable")
def _capturable(monkeypatch):
    """Makes host functions that can be captured; CUDA calls of recordings are fakes on the CPU.
    Everything lies in one segment, which every recording writes to.
    """
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False, raising=False)
    monkeypatch.setattr(
        "inductor_triton.cuda_graphs.graph_capture.fills_as_kernels", lambda graph, device: 0
    )
    FakeGraph.free, FakeGraph.let_go = {}, []
    let_go = pool_module.ResultBlock.let_go

    def kept_instead(memory: pool_module.ResultBlock) -> None:
        FakeGraph.let_go.append(memory.owner)
        let_go(memory)

    monkeypatch.setattr(pool_module.ResultBlock, "let_go", kept_instead)
    handles: list[tuple[int, int]] = []
    segment = {"address": 0, "total_size": 1 << 62}
    fake = {
        "CUDAGraph": FakeGraph,
        "graph": capture,
        "device": lambda index: nullcontext(),
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "memory_reserved": lambda index: 0,
        "memory_snapshot": lambda: [{**segment, "segment_pool_id": handle} for handle in handles],
        "graph_pool_handle": lambda: handles.append((0, len(handles))) or handles[-1],
        "Stream": lambda index: None,
        "current_stream": lambda index: None,
        "set_stream": lambda stream: None,
        "get_device_properties": lambda index: SimpleNamespace(total_memory=1 << 40),
    }
    for name, value in fake.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "_foreach_copy_", captured_copy)
    monkeypatch.setattr(pool_module, "_pools", {})
    counters.clear()
    return capturable
