"""Programs at the edges of lowering against eager: what operators get, effects without a result,
memory that is shared.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import sympy
import torch
import torch.nn.functional as F
from loopir import BuildError, Options, compile_graph, symbol
from loopir.host.runs import Slot, _meet, _place, size_in_bytes
from loopir.ir.node import Buffer
from loopir.testing import EvaluatorCodeGenerator
from primops import TensorMeta, prims
from primops.testing import trace

CPU = torch.device("cpu")
SQUARE = torch.randn(4, 4)
# What an operator is given: parts of buffers, transposed and repeated ones.
OPERANDS = {
    "transposed": lambda y: y.t(),
    "columns": lambda y: y[:, ::2],
    "a column": lambda y: y[:, 1],
    "rows": lambda y: y[1:3],
    "repeated": lambda y: y[:, :1].expand(4, 4),
    "a number repeated": lambda y: y[1, 1].expand(4, 4),
    "transposed columns": lambda y: y[:, ::2].t(),
    "all": lambda y: y,
    "turned": lambda y: y.flip(0),
    "another shape": lambda y: y.reshape(2, 8),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_operators_get_the_elements_that_the_program_gives_them(run, name):
    part = OPERANDS[name]
    run(lambda x: (torch.sort(part(x.exp()), -1)[0] + 1, x.exp()), SQUARE)
    run(lambda x: (torch.sort(part(x), -1)[0], torch.cummax(part(x.sin() * 2), 0)[1]), SQUARE)
    run(lambda x: torch.sort(part(x.t() + 1), 0)[0], SQUARE)


@pytest.mark.parametrize("name", OPERANDS)
def test_constants_are_returned_as_they_lie(compiled, name):
    held = torch.arange(16.0).view(4, 4)
    part = OPERANDS[name]
    host = compiled(lambda x: (part(held), x + 1), SQUARE)
    result, _ = host(SQUARE)
    assert torch.equal(result, part(held))
    assert result.stride() == part(held).stride() or not name.endswith("repeated")
    assert result.untyped_storage().data_ptr() != held.untyped_storage().data_ptr()


def test_checks_without_a_result_are_kept(compiled):
    def fn(x):
        torch._assert_async(x.sum() > 0, "not positive")
        return x + 1

    x = torch.ones(3)
    matched = compile_graph(
        trace(fn, x),
        (x,),
        codegens={"cpu": EvaluatorCodeGenerator()},
        options=Options(inference=True),
    )
    for host in (compiled(fn, x), matched):
        torch.testing.assert_close(host(x)[0], x + 1)
        with pytest.raises(RuntimeError, match="not positive"):
            host(-x)


EDGES = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.0,
    -1.0,
    2.5,
    -7.3,
    1e30,
    float("inf"),
    -float("inf"),
    float("nan"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floored_quotients_of_floats(run, dtype):
    left, right = (torch.tensor(x, dtype=dtype) for x in zip(*itertools.product(EDGES, EDGES)))
    run(
        lambda a, b: (
            a // b,
            torch.div(a, b, rounding_mode="trunc"),
            torch.remainder(a, b),
            torch.fmod(a, b),
        ),
        left,
        right,
    )
    run(lambda a: (a // 0.3, 7.0 // a, a // -2, a % -0.3), left)


def test_prims_whose_arguments_no_operator_gives():
    left, right = (torch.tensor(x) for x in zip(*itertools.product(EDGES, EDGES)))
    for prim, operands in ((prims.floor_div, (left, right)), (prims.remainder, (left, right))):
        graph = torch.fx.Graph()
        inputs = [graph.placeholder(name) for name in "ab"]
        call = graph.call_function(prim, tuple(inputs))
        for node, value in zip((*inputs, call), (*operands, expected := prim(*operands))):
            node.meta["val"] = TensorMeta.from_tensor(value)
        graph.output((call,)).meta["val"] = (call.meta["val"],)
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
        (result,) = compile_graph(module, operands, codegens={"cpu": EvaluatorCodeGenerator()})(
            *operands
        )
        assert torch.equal(result.isnan(), expected.isnan()), prim
        torch.testing.assert_close(result, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers(run, dtype):
    a, b = torch.arange(-9, 9).to(dtype), (torch.arange(18) % 4 + 1).to(dtype)
    run(
        lambda a, b: (
            a // b,
            a % b,
            torch.div(a, b, rounding_mode="trunc"),
            torch.fmod(a, b),
            a**3,
            a**0,
            a**1,
        ),
        a,
        b,
    )
    run(
        lambda a, b: (
            a.argmax(),
            a.argmin(0),
            a.sum(),
            a.prod(),
            a.amax(),
            (a > 2).any(),
            (a > 2).sum(),
            a / b,
        ),
        a,
        b,
    )


def run_patterns(fn, *args):
    """As ``run``, from the graph of operators, in which patterns are looked for."""
    host = compile_graph(
        trace(fn, *args),
        args,
        codegens={"cpu": EvaluatorCodeGenerator()},
        options=Options(check=True),
    )
    for result, expected in zip(host(*args), [fn(*args)], strict=True):
        torch.testing.assert_close(result, expected)
        assert result.stride() == expected.stride()


@pytest.mark.parametrize("dims", [(0, 0), (1, 1), (-1, 1), (0, -2), (0, 1), (1, 0), (-2, 1)])
def test_concatenations_of_concatenations(dims):
    inner, outer = dims
    run_patterns(
        lambda a, b: torch.cat([torch.cat([a, b], inner), torch.cat([a, b], inner) * 2], outer),
        SQUARE,
        SQUARE + 1,
    )
    run_patterns(
        lambda a, b: torch.cat(
            [torch.cat([a, b], inner).double(), torch.cat([a, b], inner)], outer
        ),
        SQUARE,
        SQUARE + 1,
    )


@pytest.mark.parametrize(
    "pads",
    [
        ((1, 1), (2, 0, 0, 3)),
        ((0, 0, 1, 2), (3, 1)),
        ((1, 2), (2, 1)),
        ((1, 0), (-1, 0)),
        ((2, 2), (1, 1)),
    ],
)
def test_pads_of_pads(pads):
    first, second = pads
    run_patterns(lambda x: F.pad(F.pad(x, first), second), SQUARE)
    run_patterns(lambda x: F.pad(F.pad(x, first, value=1.0), second, value=1.0), SQUARE)
    run_patterns(lambda x: F.pad(F.pad(x, first, value=1.0), second), SQUARE)


def test_inputs_are_freed_only_where_they_are_given_up(compiled):
    host = compiled(lambda x, y: ((x + 1).exp().sum(), y.sort()[0] * 2), SQUARE, SQUARE)
    assert host.program.freed_inputs == frozenset() and host.program.written_inputs == frozenset()


def test_a_failed_build_says_what_was_run():
    text = str(BuildError("no kernel", command="c++ -O3 a.cpp", output="a.cpp:1: error\n"))
    assert "no kernel\ncommand: c++ -O3 a.cpp\na.cpp:1: error\n  help: " in text
    assert "command" not in str(BuildError("no kernel"))


def test_memory_of_symbolic_size_in_use_at_once_does_not_overlap():
    size, spans = symbol("s0"), [(0, 1), (0, 3), (2, 3), (2, 6), (4, 5), (4, 6), (6, 7), (7, 8)]
    for chosen, fixed in itertools.product(itertools.combinations(spans, 5), range(6)):
        numels = [sympy.Integer(64) if i == fixed else size for i in range(5)]
        buffers = {
            f"b{i}": Buffer(f"b{i}", torch.float32, CPU, (n,), (sympy.Integer(1),))
            for i, n in enumerate(numels)
        }
        slots = [Slot([f"b{i}"], None, *span) for i, span in enumerate(chosen)]
        end = _place(slots, SimpleNamespace(buffers=buffers)).subs(size, 100)
        starts = [int(slot.offset.subs(size, 100)) for slot in slots]
        ends = [
            start + int(size_in_bytes(buffer).subs(size, 100))
            for start, buffer in zip(starts, buffers.values())
        ]
        assert max(ends) <= end
        for i, j in itertools.combinations(range(5), 2):
            assert not _meet(slots[i], slots[j]) or ends[i] <= starts[j] or ends[j] <= starts[i]
