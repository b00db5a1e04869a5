"""The text form of functional graphs."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from aotgrad import ContractError, aot_function, format_functional, parse_functional
from hypothesis import HealthCheck, given, settings
from symshapes import ParseError, VersionError
from symshapes.testing.texts import damaged_texts

TEXT = """# aotgrad.graph 1
s0 = Size(lower=2, hint=3)

@meta(private_results=1)
def graph(s0: meta(size(s0), static=False), x: meta(f32[s0, 2], donated=True)):
    "File 'model.py', line 3, in f: return x.view(-1).exp()"
    mul: size(2*s0) = operator.mul(s0, 2)
    view: f32[2*s0] = ops.aten.view.default(x, [mul])
    exp: f32[2*s0] = ops.aten.exp.default(view)
    return (exp,)
"""


def test_a_graph_with_symbolic_sizes():
    gm = parse_functional(TEXT)
    assert format_functional(gm) == TEXT
    assert gm.meta == {"private_results": 1}
    x = torch.arange(6.0).view(3, 2)
    assert torch.equal(gm(3, x)[0], x.view(-1).exp())


def test_lines_can_be_left_out():
    assert "model.py" not in format_functional(parse_functional(TEXT), lines=False)


def test_what_is_read_is_checked():
    with pytest.raises(ContractError, match=r"C2\.2"):
        parse_functional(TEXT.replace("ops.aten.exp.default", "ops.aten.exp_.default"))


def test_a_newer_version_and_another_form_are_one_error():
    with pytest.raises(VersionError, match=r"version 2 of aotgrad\.graph.*install a newer aotgrad"):
        parse_functional(TEXT.replace("aotgrad.graph 1", "aotgrad.graph 2"))
    with pytest.raises(ParseError, match=r"this text is a primops\.graph, not a aotgrad\.graph"):
        parse_functional(TEXT.replace("aotgrad.graph 1", "primops.graph 6"))


def through_text(gm, inputs):
    text = format_functional(gm)
    again = parse_functional(text)
    assert format_functional(again) == text
    return again.forward


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x @ y).softmax(-1),
        lambda x, y: torch.nn.functional.dropout(x, 0.5).conj() * y.sum(),
        lambda x, y: torch.complex(x, x).conj().imag * y[0, 0],
        lambda x, y: x.t()[1:].unsqueeze(0).expand(2, -1, -1) + y.mean(),
        lambda x, y: torch.stack([*x.split([1, 2]), y[:2]][1:]).cumsum(0),
    ],
)
def test_forward_and_backward_run_from_their_texts(function):
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    compiled = aot_function(function, forward_compiler=through_text, backward_compiler=through_text)
    for run in (compiled, function):
        torch.manual_seed(0)
        result = run(x, y)
        grads = torch.autograd.grad(result.sum(), (x, y))
        if run is compiled:
            kept = result, grads
    assert torch.equal(kept[0], result)
    torch.testing.assert_close(kept[1], grads)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(damaged_texts(TEXT))
def test_damaged_texts_are_parse_errors(text):
    with suppress(ParseError, ContractError):
        parse_functional(text)
