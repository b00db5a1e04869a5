"""Random programs over numbers of every origin: each value has a name of its own, in every graph,
program and text.
"""

from __future__ import annotations

import ast
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import aotgrad
import bytecode_dynamo
import loopir
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loopir.ir.program import Allocate, ExternCall, Program
from loopir.testing import EvaluatorCodeGenerator

SHARE = float(os.environ.get("STRATA_SHARE", "1"))
EXAMPLES = int(10_000 * SHARE) if os.environ.get("STRATA_PROFILE") == "thorough" else 80
NUMBERS = [
    "e",
    "g",
    "random.random()",
    "random.uniform(1, 2)",
    "x.sum().item()",
    "t.max().item()",
    "x.shape[0] / 3",
    "n * e",
]
NUMBERS += ["random.randint(1, 4)", "t.long().sum().item()", "y.numel()", "n"]
STATEMENTS = [
    "x = x * {number}",
    "y = y + {number}",
    "x = x + {number} * {number}",
    "t = t * {number}",
    "x, y = y, x",
]
STATEMENTS += [
    "x = torch.cat([x, y])",
    "y = y[1:]",
    "x = x.t().reshape(-1, 2)",
    "y = y.sum(0, keepdim=True).expand_as(x)",
]
STATEMENTS += [
    "x = x @ y.t() @ y",
    "x = torch.cat([x, x[x.sum(1) > 0]])",
    "y = (y > 0).nonzero() * {number}",
    "e = {number}",
]
STATEMENTS += [
    "x = torch.sort(x, 0).values",
    "y = torch.full((2, 2), {number})",
    "g = {number} + {number}",
]


@st.composite
def programs(draw: Callable[..., Any]) -> str:
    """The text of a function of ``x``, ``y`` (two columns), ``t``, two floats and an int."""
    lines = draw(st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=6))
    numbers = iter(draw(st.lists(st.sampled_from(NUMBERS), min_size=12, max_size=12)))
    body = [
        line.replace("{number}", "%s") % tuple(next(numbers) for _ in range(line.count("{number}")))
        for line in lines
    ]
    return "\n    ".join(["def program(x, y, t, e, g, n):", *body, "return x, y, t, e * g"])


def names_bound(program: Program) -> Iterator[str]:
    """Sizes and buffers, once for each place where they get a value or memory."""
    yield from (str(entry) for entry in program.inputs if entry is not None)
    yield from program.constants
    for step in program.steps:
        if isinstance(step, Allocate):
            yield step.buffer
        elif isinstance(step, ExternCall):
            yield from filter(None, step.node.results)
            yield from (str(bind.symbol) for bind in step.node.binds)


def numbers_bound(gm: torch.fx.GraphModule) -> Iterator[str]:
    """Symbols of floats that are inputs or read from tensors."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        binds = (
            node.op == "placeholder" or node.target is torch.ops.aten._local_scalar_dense.default
        )
        if binds and isinstance(value, torch.SymFloat):
            yield str(value.node.expr)


def repeated(names: Iterator[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def assigned_parameters(source: str) -> list[str]:
    """Parameters and objects of a host function that it gives another value."""
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    taken = {argument.arg for argument in function.args.args}
    called = {
        node.func.id
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    written = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return sorted(written & called | taken & called)


def compiler(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    assert not repeated(numbers_bound(gm)), gm.graph
    host = loopir.compile_graph(
        gm, inputs, codegens={"cpu": EvaluatorCodeGenerator()}, options=loopir.Options(check=True)
    )
    assert not repeated(names_bound(host.program)), gm.graph
    assert not assigned_parameters(host.source), host.source
    return aotgrad.run_eager(gm, inputs)


@given(programs(), st.sampled_from([None, True]), st.sampled_from([3, 5]))
@settings(max_examples=EXAMPLES)
def test_every_name_is_bound_once(text, dynamic, last):
    namespace: dict[str, Any] = {"torch": torch, "random": random}
    exec(text, namespace)
    bytecode_dynamo.reset()
    with bytecode_dynamo.config.patch(capture_scalar_outputs=True):
        compiled = bytecode_dynamo.optimize(aotgrad.aot_backend(compiler), dynamic=dynamic)(
            namespace["program"]
        )
        for e, n in ((0.75, 3), (0.5, last), (0.25, last)):
            x, y = (
                torch.linspace(-1, 2, 2 * n).reshape(n, 2),
                torch.linspace(2, -1, 8).reshape(4, 2),
            )
            arguments = (x, y, torch.tensor([0.5, 1.25]), e, e + 1.5, n)
            try:
                expected, state = run(namespace["program"], arguments)
            except RuntimeError:  # the sizes do not fit
                return
            results, after = run(compiled, arguments)
            torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
            assert after == state


def run(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, object]:
    """The results, and the state in which Python's random numbers are left."""
    random.seed(0)
    return function(*arguments), random.getstate()
