"""The text form of captured graphs."""

from __future__ import annotations

from contextlib import suppress

import bytecode_dynamo as bd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from symshapes import ParseError, VersionError
from symshapes.testing.texts import damaged_texts
from symshapes.text.values import Unwritable

TEXT = """# bytecode_dynamo.graph 1
s0 = Size(lower=2, hint=4)

def graph(l_x_size_0: meta(size(s0), source="L['x'].size(0)", static=False), \
l_x: meta(f32[s0, 2], source="L['x']", static=False)):
    'File "model.py", line 3, in f: return (x.view(-1) + 1).relu()'
    view: f32[2*s0] = method.view(l_x, -1)
    add: f32[2*s0] = operator.add(view, 1)
    relu: f32[2*s0] = torch.relu(add)
    return (relu,)
"""


def test_a_graph_with_symbolic_sizes():
    gm = bd.parse_captured(TEXT)
    assert bd.format_captured(gm) == TEXT
    x = torch.randn(4, 2)
    assert torch.equal(gm(4, x)[0], (x.view(-1) + 1).relu())


def test_what_is_read_is_checked():
    with pytest.raises(bd.ContractError, match=r"C1\.4"):
        bd.parse_captured(TEXT.replace(""", source="L['x']\"""", ""))


def test_a_newer_version_and_a_broken_text_are_one_error():
    with pytest.raises(VersionError, match="install a newer bytecode_dynamo"):
        bd.parse_captured(TEXT.replace("graph 1", "graph 2"))
    with pytest.raises(ParseError, match="line 4"):
        bd.parse_captured(TEXT.replace("):", ""))


def test_programs_run_from_the_texts_of_their_graphs():
    written = 0

    def backend(gm, example_inputs):
        nonlocal written
        text = bd.format_captured(gm)
        again = bd.parse_captured(text)
        assert bd.format_captured(again) == text
        written += 1
        return again.forward

    for program in PROGRAMS:
        bd.reset()
        result = bd.optimize(backend)(program)(torch.arange(8.0).view(4, 2))
        assert torch.equal(result, program(torch.arange(8.0).view(4, 2)))
    assert written == len(PROGRAMS)


PROGRAMS = [
    lambda x: torch.nn.functional.gelu(x) * x.shape[0],
    lambda x: torch.cat([x, x.t().reshape(4, 2)], dim=1)[:, ::2],
    lambda x: x.mul(2).add_(1).sum(dim=(0, 1), keepdim=True),
    lambda x: torch.ops.aten.clamp.default(x, 1.0, float("inf")),
    lambda x: x.to(torch.float16).float().split(1, 1)[1],
]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_a_function_of_the_program_is_named_with_the_users_line():
    def backend(gm, example_inputs):
        with pytest.raises(Unwritable, match=r"Square has no text form.*\n.*Square\.apply\(x\)"):
            bd.format_captured(gm)
        return gm.forward

    bd.optimize(backend)(lambda x: Square.apply(x))(torch.ones(2, requires_grad=True))


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(damaged_texts(TEXT))
def test_damaged_texts_are_parse_errors(text):
    with suppress(ParseError, bd.ContractError):
        bd.parse_captured(text)
