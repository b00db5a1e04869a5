"""What a program holds: planned and measured, and the order of steps that holds least."""

import itertools
from dataclasses import dataclass

import primops
import pytest
import torch
import torch.nn.functional as F
from loopir import Options, compile_graph
from loopir.testing import EvaluatorCodeGenerator
from primops.testing import trace
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True)
class NoCode(EvaluatorCodeGenerator):
    """Kernels that do nothing, so that only what the program itself allocates is seen."""

    def build(self, sources, store):
        return [lambda *arguments: None for _ in sources]


def measured_peak(host, args):
    """Bytes that one call holds at most, by the profiler's record of allocations."""
    host(*args)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        results = host(*args)
    events = record.profiler.kineto_results.events()
    held, most = 0, 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    del results
    return most


def mlp(x, *weights):
    for w in weights:
        x = F.gelu(x @ w) + x.mean(1, keepdim=True)
    return x


def attention(x, qkv):
    q, k, v = (x @ qkv).chunk(3, -1)
    return ((q @ k.transpose(1, 2)).softmax(-1) @ v).relu(), q.sum(-1)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (mlp, (torch.randn(256, 64), *(torch.randn(64, 64) for _ in range(4)))),
        (attention, (torch.randn(4, 64, 32), torch.randn(32, 96))),
        (
            lambda x: (x.exp().sum(0), x.cumsum(1).sin(), x.t().contiguous() @ x),
            (torch.randn(128, 96),),
        ),
    ],
)
def test_planned_peak_is_the_measured_one(fn, args):
    host = compile_graph(
        primops.decompose(trace(fn, *args)),
        args,
        codegens={"cpu": NoCode()},
        options=Options(check=True),
    )
    measured = measured_peak(host, args)
    assert abs(host.planned_peak - measured) <= 0.02 * measured + 512, (host.planned_peak, measured)


def test_order_that_frees_first_is_taken_where_it_holds_less(run):
    def fn(x, w):
        wide = [(x * (i + 1)) @ w for i in range(8)]  # each is much larger than what is made of it
        return sum(torch.mm(y, y.t()).sum() for y in wide)

    host = run(fn, torch.randn(8, 16), torch.randn(16, 2048), tolerance=1e-2)
    assert host.planned_peak < 3 * 8 * 2048 * 4


def test_donated_inputs_in_a_list_are_freed_early():
    def fn(x, w):
        return torch.mm(torch.mm(torch.mm(x, w), w), w)

    args = (torch.randn(512, 64), torch.randn(64, 64))
    graph = primops.decompose(trace(fn, *args))
    graph.graph.find_nodes(op="placeholder")[0].meta["donated"] = True
    host = compile_graph(graph, args, codegens={"cpu": EvaluatorCodeGenerator()})
    assert host.takes_list
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        given = [args[0].clone(), args[1]]
        (result,) = host(given)
    sizes = [e.nbytes() for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    size = 512 * 64 * 4
    assert given == []
    assert sum(sizes) == size  # the input's memory went
    assert size + host.planned_peak == max(itertools.accumulate(sizes)) == 2 * size
    torch.testing.assert_close(result, fn(*args))
    torch.testing.assert_close(host(*args)[0], fn(*args))


WRITTEN = {
    "an operand": (lambda x, y: (x * 2 + y,), True),
    "read before": (lambda x, y: ((x.sum(0) * y).cumsum(1),), True),
    "read elsewhere": (lambda x, y: (x.flip(0) + y,), False),
    "an operator follows": (lambda x, y: (x + y, torch.mm(x + y, y)), False),
    "an index may be refused": (lambda x, y: (x + y, y[(x[0] > 1).long()]), False),
    "other strides": (lambda x, y: ((x.t() + y.t()).contiguous().t(),), False),
    "a result twice": (lambda x, y: ((z := x + y), z.view(-1)), False),
    "the old value is a result": (lambda x, y: (x + y, x), False),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_results_in_the_memory_of_inputs_they_are_written_to(case):
    fn, in_place = WRITTEN[case]
    args = (torch.rand(8, 8), torch.rand(8, 8))
    graph = primops.decompose(trace(fn, *args))
    graph.graph.find_nodes(op="placeholder")[0].meta["written"] = 0
    host = compile_graph(
        graph, args, codegens={"cpu": EvaluatorCodeGenerator()}, options=Options(check=True)
    )
    assert host.writes_back == ({0} if in_place else frozenset())
    given = [t.clone() for t in args]
    result = host(*given)[0]
    torch.testing.assert_close(result, fn(*args)[0])
    assert (result is given[0]) == in_place
    torch.testing.assert_close(given, [result if in_place else args[0], args[1]])
