"""Results that eager gives memory of their own aliased an input, so that writing to one changed the other."""

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

    compiled = torchstrata.compile(lambda x: (torch.tensor([1.0, 2.0]), x + torch.tensor([1.0, 2.0])))
    for _ in range(2):
        literal, total = compiled(torch.ones(2))
        assert torch.equal(literal, torch.tensor([1.0, 2.0])) and torch.equal(total, torch.tensor([2.0, 3.0]))
        literal.add_(5)
