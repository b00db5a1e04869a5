"""A program that asks for the active dispatch modes gets eager's answer."""

from __future__ import annotations

import bytecode_dynamo
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack


class Passing(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_number_of_modes_is_the_programs() -> None:
    bytecode_dynamo.reset()

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + len(_get_current_dispatch_mode_stack())

    compiled, x = bytecode_dynamo.optimize("eager")(f), torch.zeros(2)
    for _ in range(2):
        assert torch.equal(compiled(x), x)
        with Passing():
            expected, result = f(x), compiled(x)
        assert torch.equal(result, expected) and torch.equal(expected, x + 1)


class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.ops.aten.sin.default else result


@pytest.mark.parametrize("before", [False, True])
def test_modes_change_what_operators_give(before: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    bytecode_dynamo.reset()
    compiled, x = bytecode_dynamo.optimize("eager")(f), torch.ones(2)
    if before:
        compiled(x)
    with Doubling():
        expected, result = f(x), compiled(x)
    assert torch.equal(result, expected) and bytecode_dynamo.counters["fallbacks"] == 1


def test_tracers_see_what_a_compiled_function_does() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    compiled = bytecode_dynamo.optimize("eager")(lambda x: x.sin() + 1)
    compiled(torch.ones(2))
    assert [
        node.target
        for node in make_fx(compiled)(torch.ones(2)).graph.nodes
        if node.op == "call_function"
    ] == [
        torch.ops.aten.sin.default,
        torch.ops.aten.add.Tensor,
    ]


def test_the_stack_of_modes_is_popped_as_every_torch_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bytecode_dynamo.reset()
    pop = torch._C._pop_torch_dispatch_stack
    # torch 2.11 has no default
    monkeypatch.setattr(torch._C, "_pop_torch_dispatch_stack", lambda key: pop(key))
    with Passing():
        assert torch.equal(
            bytecode_dynamo.optimize("eager")(lambda x: x + 1)(torch.zeros(2)), torch.ones(2)
        )
