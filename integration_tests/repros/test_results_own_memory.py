"""Results that eager gives memory of their own aliased an input, so that writing to one changed the
other.
"""

from __future__ import annotations

import pytest
import torch

from integration_tests.repros.backend import compiled

CASES = {
    "cat with an empty tensor": lambda x: torch.cat([x, x.new_zeros(0)]),
    "clone of a view that stays a call": lambda x: x.clone().resize_((3, 2)),
    "clone of a strided view": lambda x: torch.as_strided(x, (2, 3), (1, 2)).clone(),
}


@pytest.mark.parametrize("name", CASES)
def test_no_alias(name: str, tmp_path) -> None:
    x = torch.randn(6)
    call = compiled(CASES[name], (x,), tmp_path)
    (result,) = call(x)
    assert torch.equal(result, CASES[name](x))
    assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_dropout_that_drops_nothing_is_its_input(tmp_path) -> None:
    x = torch.randn(6)
    for function in (lambda x: torch.dropout(x, 0.0, True), lambda x: torch.dropout(x, 0.5, False)):
        (result,) = compiled(function, (x,), tmp_path)(x)
        assert result.data_ptr() == x.data_ptr()


def test_literals_are_made_at_each_call():
    import torchstrata

    compiled = torchstrata.compile(
        lambda x: (torch.tensor([1.0, 2.0]), x + torch.tensor([1.0, 2.0]))
    )
    for _ in range(2):
        literal, total = compiled(torch.ones(2))
        assert torch.equal(literal, torch.tensor([1.0, 2.0])) and torch.equal(
            total, torch.tensor([2.0, 3.0])
        )
        literal.add_(5)


RESOLVED = {
    "conj": (torch.conj, lambda z: z.resolve_conj()),
    "conj, function": (torch.conj, torch.resolve_conj),
    "conj, viewed": (torch.conj, lambda z: z[1:].resolve_conj().view(-1)),
    "neg": (torch._neg_view, lambda z: z.resolve_neg()),
    "neg of an imaginary part": (lambda z: z.conj().imag, torch.resolve_neg),
}


@pytest.mark.parametrize("name", RESOLVED)
@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
def test_resolved_inputs(name: str, backend: str) -> None:
    import torchstrata

    lazy, resolve = RESOLVED[name]
    z = torch.randn(3, 4, dtype=torch.cfloat)
    expected, stored = resolve(lazy(z)), z.clone()
    result = torchstrata.compile(resolve, backend=backend)(lazy(z))
    assert torch.equal(result, expected)
    assert (result.is_conj(), result.is_neg()) == (expected.is_conj(), expected.is_neg())
    result.zero_()
    assert torch.equal(z, stored)
