"""Dead draws of random numbers: in the graph, or made by the call where the graph computes on
another device.
"""

from __future__ import annotations

import pytest
import torch
from aotgrad.effect_plan import InputSpec
from aotgrad.graphs.dead_effects import kept_effects, mark_effects
from aotgrad.tracing.joint import trace_joint
from symshapes import FakeTensorMode, ShapeEnv


def layer_drop(x):
    for _ in range(2):
        torch.rand([])
    return x.sin() * torch.tensor(2.0)  # a number on the CPU


@pytest.mark.parametrize(("device", "drawn", "kept"), [("cuda:0", 2, 0), ("cpu", 0, 2)])
def test_draws_for_another_device(device, drawn, kept):
    mode = FakeTensorMode(ShapeEnv())
    x = mode.empty((4,), (1,), dtype=torch.float32, device=torch.device(device))
    program = lambda inputs, tracer, constant: layer_drop(inputs[0])  # noqa: E731
    joint = trace_joint(program, [InputSpec("x", x)], mode, grad_enabled=True)
    mark_effects(joint)
    assert [operator for operator, _, _ in joint.plan.eager_draws] == [
        torch.ops.aten.rand.default
    ] * drawn
    assert len(kept_effects(joint)) == kept
