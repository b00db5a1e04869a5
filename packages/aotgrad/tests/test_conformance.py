"""The conformance kit of autograd: ours passes, wrong ones are named by area."""

import pytest
import torch
from aotgrad.testing import check_autograd, own_autograd


def test_own_autograd_conforms():
    report = check_autograd(own_autograd, programs=100)
    assert report.passed == report.cases > 150
    assert report.areas["writes to inputs"].cases > 10


def test_lost_writes_are_found():
    def copying(function):
        compiled = own_autograd(function)
        return lambda x, w: compiled(x.clone(), w)

    report = check_autograd(copying, strict=False)
    failing = {area for area, found in report.areas.items() if found.failures}
    assert {"writes to inputs", "views of inputs"} <= failing
    assert "values and gradients" not in failing


def test_wrong_gradients_are_found():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    def doubling(function):
        return lambda x, w: function(Doubled.apply(x), w)

    with pytest.raises(AssertionError, match=r"doubling: \d+ of \d+ programs are wrong"):
        check_autograd(doubling)
