"""The plain data of a program: bytes of calls, lifetimes of buffers."""

import loopir
import primops
import torch
from loopir import Options, compile_graph
from loopir.testing import EvaluatorCodeGenerator
from primops.testing import trace


def summary(fn, *args, **options):
    generators = {"cpu": EvaluatorCodeGenerator()}
    graph = primops.decompose(trace(fn, *args))
    host = compile_graph(graph, args, codegens=generators, options=Options(**options))
    return loopir.summarize(host.program)


def test_calls_have_bytes_and_operations():
    def fn(x, w):
        return ((x @ w).exp() @ w.t()).relu()

    found = summary(fn, torch.randn(4, 8), torch.randn(8, 16))
    calls = [(c.name, c.bytes_read, c.bytes_written, c.operations) for c in found.calls]
    assert calls == [
        ("aten.mm.default", 4 * 8 * 4 + 8 * 16 * 4, 4 * 16 * 4, 2 * 4 * 8 * 16),
        ("kernel0", 256, 256, 0),
        ("aten.mm.default", 256 + 512, 128, 2 * 4 * 8 * 16),
        ("kernel1", 128, 128, 0),
    ]
    assert [name for name, _ in found.calls[1].origins] == ["exp"]
    assert found.calls[2].reads[0] == found.calls[1].writes[0]


def test_buffers_live_from_their_first_write_to_their_last_read():
    def fn(x, w):
        return ((x @ w).exp() @ w.t()).relu()

    found = summary(fn, torch.randn(4, 8), torch.randn(8, 16), reuse=False)
    lives = {b.name: (b.kind, b.shape, b.size, b.birth, b.death) for b in found.buffers.values()}
    product, exp, second, result = (call.writes[0] for call in found.calls)
    assert lives[product] == ("intermediate", "[4, 16]", 256, 0, 2)
    assert lives[exp] == ("intermediate", "[4, 16]", 256, 1, 3)
    assert lives[second] == ("intermediate", "[4, 8]", 128, 2, 4)
    assert lives[result] == ("result", "[4, 8]", 128, 3, None)
    assert {kind for kind, *_ in lives.values()} == {"input", "intermediate", "result"}


def test_a_buffer_in_the_memory_of_a_dead_one_says_so():
    def fn(x, w):
        return ((x @ w).exp() @ w.t()).relu()

    found = summary(fn, torch.randn(4, 8), torch.randn(8, 16))
    product, exp = found.calls[0].writes[0], found.calls[1].writes[0]
    assert found.buffers[exp].memory == found.buffers[product].memory == product
    assert found.buffers[product].death == 2  # the launch that writes exp reads it
