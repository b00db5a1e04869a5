"""Hooks on tensors that backward does not come through."""

from __future__ import annotations

import pytest
import torch
import torchstrata


def beside(x, log):
    y = x * 3
    hooked = x * 2
    hooked.register_hook(lambda grad: log.append("hook"))
    return y, hooked.abs()


def after_write(x, log):
    x.neg_()
    hooked = x * 2
    hooked.register_hook(lambda grad: log.append("hook"))
    return x, hooked.abs()


def observe(call, program_result):
    log, leaf = [], torch.ones(2, requires_grad=True)
    result = call(leaf * 1, log)
    result[program_result].sum().backward()
    return log, leaf.grad.tolist()


@pytest.mark.parametrize("program_result", [0, 1])
@pytest.mark.parametrize("program", [beside, after_write])
def test_hook_runs_for_its_own_history_alone(program, program_result):
    expected = observe(program, program_result)
    assert observe(torchstrata.compile(program, backend="torchstrata"), program_result) == expected
