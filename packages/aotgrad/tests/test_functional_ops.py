"""Operators without a functional form in ATen: custom ops that write to operands, oneDNN's
recurrent layer.
"""

from __future__ import annotations

import pytest
import torch
from aotgrad import Unsupported, aot_function, aot_module
from aotgrad.tracing.functional_ops import functional_overload
from torch.testing import assert_close


@torch.library.custom_op("aotgrad_tests::scale_all", mutates_args=("x", "others", "last"))
def scale_all(
    x: torch.Tensor,
    y: torch.Tensor,
    others: list[torch.Tensor],
    last: torch.Tensor | None,
    factor: float = 2.0,
) -> torch.Tensor:
    x.add_(y * factor)
    for t in others:
        t.mul_(factor)
    if last is not None:
        last.fill_(factor)
    return y + 1


@scale_all.register_fake
def _(x, y, others, last, factor=2.0):
    return torch.empty_like(y)


@torch.library.custom_op("aotgrad_tests::shift", mutates_args=("x",))
def shift(x: torch.Tensor, *, by: int = 3) -> None:
    x.add_(by)


def _program(x, y, a, b):
    z = x.clone()
    r = scale_all(z, y, [a, b], None)
    q = scale_all(z[1:], y[1:], [a], b, factor=1.5)
    shift(a)
    shift(x, by=5)
    return z, r, q, a * 1


def test_custom_ops_that_write_equal_eager():
    given = [torch.randn(3, 3) for _ in range(4)]
    mine, eager = [t.clone() for t in given], [t.clone() for t in given]
    assert_close(aot_function(_program, forward_compiler=lambda gm, _: gm)(*mine), _program(*eager))
    assert_close(mine, eager)


def test_one_tensor_written_as_two_operands():
    """Each written operand has a result of its own, which nobody else's writes change."""
    x, y = torch.ones(2), torch.full((2,), 3.0)
    functional = functional_overload(torch.ops.aotgrad_tests.scale_all.default, 3)
    own, first, second, third = functional(x, y, [y, x], None)
    assert_close(
        [own, first, second, third],
        [y * 2 + 1, torch.full((2,), 14.0), y * 2, torch.full((2,), 14.0)],
    )
    assert len({t.data_ptr() for t in (x, y, own, first, second, third)}) == 6


_LIBRARY = torch.library.Library("aotgrad_tests", "FRAGMENT")
_LIBRARY.define("doubled_(Tensor(a!) x) -> Tensor(a!)")
_LIBRARY.impl("doubled_", lambda x: x.mul_(2), "CompositeExplicitAutograd")
_LIBRARY.define("sum_and_norm(Tensor x, *, Tensor(a!) out) -> (Tensor, Tensor(a!))")
_LIBRARY.impl(
    "sum_and_norm", lambda x, *, out: (x.sum(), out.copy_(x.norm())), "CompositeExplicitAutograd"
)


def test_custom_ops_that_return_what_they_write():
    def program(x, out):
        y = torch.ops.aotgrad_tests.doubled_(x[1:])
        total, norm = torch.ops.aotgrad_tests.sum_and_norm(x, out=out)
        return y.mul_(3), total + norm, norm

    given = torch.randn(3, 3), torch.zeros(())
    mine, eager = [t.clone() for t in given], [t.clone() for t in given]
    compiled = aot_function(program, forward_compiler=lambda gm, _: gm)(*mine)
    assert_close(compiled, program(*eager))
    assert_close(mine, eager)
    assert compiled[2] is mine[1] and compiled[0]._base is mine[0]


def test_graphs_hold_the_functional_form():
    graphs = []
    aot_function(_program, forward_compiler=lambda gm, _: graphs.append(gm) or gm)(
        *(torch.randn(3, 3) for _ in range(4))
    )
    assert not any(
        getattr(n.target, "_schema", None) and n.target._schema.is_mutable
        for n in graphs[0].graph.nodes
    )


def test_operands_that_share_memory_are_refused():
    def program(x):
        return scale_all(x, x[0], [], None)

    with pytest.raises(Unsupported, match="shares memory"):
        aot_function(program, forward_compiler=lambda gm, _: gm)(torch.randn(3, 3))


@pytest.mark.parametrize("layers, both_ways", [(1, False), (2, True)])
def test_lstm_trains(layers, both_ways):
    lstm = torch.nn.LSTM(5, 6, layers, batch_first=True, bidirectional=both_ways)
    compiled = aot_module(lstm, forward_compiler=lambda gm, _: gm)
    x = torch.randn(2, 4, 5)
    gradients = []
    for run in (lstm, compiled):
        out, (h, c) = run(x)
        gradients.append(
            torch.autograd.grad(out.square().sum() + h.sum() + c.sum(), list(lstm.parameters()))
        )
    assert_close(gradients[1], gradients[0])
