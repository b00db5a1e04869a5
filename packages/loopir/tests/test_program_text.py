"""Programs as text: what they look like, what a reader makes of them, and what it refuses."""

import json
from contextlib import suppress

import primops
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loopir import (
    Options,
    ParseError,
    VerificationError,
    VersionError,
    build_host,
    check_program,
    compile_graph,
    format_program,
    generate,
    parse_program,
)
from loopir.cache.store import ArtifactStore
from loopir.cache.stored_program import StoredProgram
from loopir.testing import EvaluatorCodeGenerator, EvaluatorTemplates
from primops.testing import trace
from symshapes import FakeTensorMode
from symshapes.testing.texts import damaged_texts
from symshapes.text.values import Unwritable

from packages.loopir.tests.programs import random_program

aten = torch.ops.aten
EVALUATORS = {"cpu": EvaluatorTemplates()}
TEXT = """\
# loopir.program 1, loopir.kernel 1, primops.graph 6
@kernel(device='cpu', vector='x0')
def kernel0(in0: In('float32', 8), out0: Out('float32', 8)):
    for x0 in range(8):
        v0 = load(in0, [x0], 'float32')
        v1 = exp(v0)
        store(out0, [x0], v1)

def program(in_x: f32[2, 4], in_y: f32[4, 2]):
    buf0: f32[2, 4] = allocate()
    launch(kernel0, in_x, buf0)
    buf1: f32[2, 2] = call(ops.aten.mm.default, buf0, in_y)
    free(buf0)
    return (buf1, view(in_x, (4,), (2,), 1))
"""
BRANCHES = """\
# loopir.program 1, loopir.kernel 1, primops.graph 6
def body_0(in0: f32[3]) -> (f32[3],):
    sin: f32[3] = prims.sin(in0)
    return (sin,)

def body_1(in0: f32[3]) -> (f32[3],):
    cos: f32[3] = prims.cos(in0)
    add: f32[3] = prims.add(cos, 1)
    return (add,)

def program(in_p: bool[()], in_x: f32[3]):
    buf0: f32[3]
    (buf0,) = call(prims.cond, in_p, in_x, true_graph=graphs.body_0, false_graph=graphs.body_1)
    return (buf0,)
"""


def host_of(fn, args, templates=False, dynamic=False):
    """The compiled function; with symbolic rows if ``dynamic``."""
    codegen = EvaluatorTemplates() if templates else EvaluatorCodeGenerator()
    with FakeTensorMode() as mode:
        given = [mode.from_real(x, source=f"x{i}", dynamic_dims=[0]) for i, x in enumerate(args)]
        graph = primops.decompose(trace(fn, *given)) if dynamic else None
    graph = graph or primops.decompose(trace(fn, *args))
    options = Options(check=True, threads=1)
    return compile_graph(
        graph, given if dynamic else args, codegens={"cpu": codegen}, options=options
    )


def rebuilt(program):
    """The program read back from its text, built for the evaluator."""
    read = parse_program(format_program(program), program.constants)
    sources = generate(read, EVALUATORS)
    return build_host(read, sources, EVALUATORS, ArtifactStore())


def host_of_text(text):
    """The program of a text that is printed unchanged."""
    program = parse_program(text)
    assert format_program(program) == text
    return build_host(program, generate(program, EVALUATORS), EVALUATORS, ArtifactStore())


def test_values_of_a_text():
    x, y = torch.randn(2, 4), torch.randn(4, 2)
    product, part = host_of_text(TEXT)(x, y)
    torch.testing.assert_close(product, x.exp() @ y)
    assert torch.equal(part, x.flatten()[1::2]) and part.data_ptr() == x.data_ptr() + 4


@pytest.mark.parametrize("truth", [True, False])
def test_graphs_inside(truth):
    x = torch.randn(3)
    (result,) = host_of_text(BRANCHES)(torch.tensor(truth), x)
    torch.testing.assert_close(result, x.sin() if truth else x.cos() + 1)


def test_graphs_inside_are_stored_with_the_program_alone():
    program = parse_program(BRANCHES)
    host = build_host(program, generate(program, EVALUATORS), EVALUATORS, ArtifactStore())
    stored = json.loads(StoredProgram.write(host, EVALUATORS, {}, ()))
    assert "host" not in stored
    again = StoredProgram(stored, {}, ()).build(EVALUATORS, ArtifactStore())
    x = torch.randn(3)
    assert torch.equal(again(torch.tensor(True), x)[0], x.sin())


PROGRAMS = {
    "number": lambda x: x * float(x.shape[0]),
    "sizes": lambda x: (x.reshape(-1, 2) * x.shape[0]).sum(0),
    "several results": lambda x: x.topk(2)[0] + x.sum(),
    "unused result": lambda x: torch.sort(x)[0] * 2,
    "size of a result": lambda x: x.nonzero() * 2,
    "views": lambda x: (x.t() @ x[:, 1:]).relu(),
    "write": lambda x: x.add_(1).sin(),
    "random": lambda x: torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x),
    "constant": lambda x: x + torch.tensor([[1.0, 2.0, 3.0, 4.0]]),
    "product with an epilogue": lambda x: torch.nn.functional.gelu(x @ x.t()) + x.sum(),
    "nothing": lambda x: 3,
}


@pytest.mark.parametrize("templates", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_text_reads_back_as_the_same_program(name, dynamic, templates):
    if dynamic and name == "size of a result":
        pytest.skip("its number of rows is known when it runs")
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    host = host_of(PROGRAMS[name], [x], templates, dynamic)
    text = format_program(host.program)
    assert format_program(parse_program(text, host.program.constants)) == text
    given = [torch.randn(10 if dynamic else 6, 4) for _ in range(2)]
    given[1].copy_(given[0])
    results = []
    for each, run in zip(given, (host, rebuilt(host.program)), strict=True):
        torch.manual_seed(1)
        results.append(run(each))
    assert len(results[0]) == len(results[1]) and torch.equal(*given)
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    program = random_program(seed)
    args = program.arguments()
    host = host_of(program, args, templates=seed % 2 == 1)
    for a, b in zip(host(*args), rebuilt(host.program)(*args), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("free(buf0)", "forget(buf0)", "line 13.*not a step"),
        ("allocate()", "allocate(reuses=3)", "expected a name"),
        ("kernel0, in_x", "kernel1, in_x", "no such kernel"),
        ("ops.aten.mm.default", "ops.aten.mm.other", "not a function"),
        ("ops.aten.mm.default", "builtins.eval", "not a function"),
        ("f32[4, 2]", "f33[4, 2]", "not a dtype"),
        ("f32[4, 2]", "f32[4/2]", "not an index expression"),
        ("def program", "def other", "not a function that a graph may call"),
        (TEXT[TEXT.index("def program") :], "", "no function program"),
        ("view(in_x, (4,)", "view(in_x, 4", "tuple of sizes"),
        ("return (buf1,", "return list(buf1,", "return statement with a tuple"),
        ("buf0: f32[2, 4] = allocate()", "in_x: f32[2, 4] = allocate()", "not the type of a new"),
        ("free(buf0)", "free(buf0, buf1)", "line 13"),
        ("def program(", "def program(a: f32[2], /, ", "plain parameter: a"),
        ("def kernel0(", "def kernel0(a: In('float32', 8), /, ", "plain parameter: a"),
        ("buf0: f32[2, 4] = allocate()", "buf0 = allocate()", "line 12.*not a value: buf0"),
    ],
)
def test_malformed_texts(old, new, message):
    assert old in TEXT
    with pytest.raises(ParseError, match=message):
        parse_program(TEXT.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "clause"),
    [
        ("    free(buf0)\n", "    free(buf0)\n    free(buf0)\n", "C5.2"),
        ("launch(kernel0, in_x, buf0)\n", "free(in_x)\n    launch(kernel0, in_x, buf0)\n", "C5.2"),
        ("launch(kernel0, in_x, buf0)", "launch(kernel0, in_x)", "C5.1"),
        ("launch(kernel0, in_x, buf0)", "launch(kernel0, in_x, buf9)", "C5.1"),
        ("buf0: f32[2, 4] = allocate()", "buf0: f64[2, 4] = allocate()", "C5.1"),
        ("buf0: f32[2, 4] = allocate()", "buf0: f32[s0, 4] = allocate()", "C5.3"),
        ("v1 = exp(v0)", "v1 = exp(v0)\n        v1 = exp(v0)", "C4"),
    ],
)
def test_programs_outside_the_contract(old, new, clause):
    assert old in TEXT
    with pytest.raises(VerificationError, match=clause):
        parse_program(TEXT.replace(old, new, 1))


def test_future_version():
    with pytest.raises(VersionError, match=r"version 7 of loopir\.program.*newer loopir"):
        parse_program(TEXT.replace("loopir.program 1", "loopir.program 7"))
    with pytest.raises(VersionError, match=r"version 9 of loopir\.kernel"):
        parse_program(TEXT.replace("loopir.kernel 1", "loopir.kernel 9"))


def test_function_without_a_text():
    library = torch.library.Library("loopir_text", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    host = host_of(lambda x: torch.ops.loopir_text.twice(x) + 1, [torch.ones(3)])
    assert "ops.loopir_text.twice.default" in format_program(host.program)
    host = host_of(lambda x: x.nonzero(), [torch.ones(3)])
    (step,) = (s for s in host.program.steps if hasattr(s, "node"))
    object.__setattr__(step.node, "op", lambda x: x)
    with pytest.raises(Unwritable, match="lambda"):
        format_program(host.program)


TEXTS = [TEXT, BRANCHES] + [
    format_program(host_of(PROGRAMS[name], [torch.randn(6, 4)], True, dynamic).program)
    for name in ("several results", "product with an epilogue")
    for dynamic in (False, True)
]


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(TEXTS).flatmap(damaged_texts))
def test_damaged_texts(text):
    with suppress(ParseError, VerificationError, primops.ContractError):
        check_program(parse_program(text))
