"""The rewrite API: examples, match functions, and what a replacement must not do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from aotgrad import (
    UserError,
    aot_backend,
    aot_function,
    register_pattern,
    run_eager,
    unregister_pattern,
)
from aotgrad.graphs.patterns import PATTERNS
from aotgrad.testing import capture_symbolically

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def no_patterns_left():
    yield
    PATTERNS.clear()


def compiled(f, *inputs):
    texts = {}
    out = aot_function(f, forward_compiler=run_eager, on_artifact=texts.__setitem__)(*inputs)
    return out, texts


def silu_example(x):
    return x * torch.sigmoid(x)


def fused_silu(x):
    return F.silu(x)


x = torch.randn(4, 6)


def test_an_example_matches_its_ops_in_any_shape():
    register_pattern(silu_example, fused_silu, inputs=[torch.randn(2)])
    out, texts = compiled(lambda a: (a @ a.t()).mul(torch.sigmoid(a @ a.t())).sum(), x)
    torch.testing.assert_close(out, F.silu(x @ x.t()).sum())
    assert texts["patterns"] == "fused_silu: 1 matches\n"
    assert "rewritten_by='fused_silu') = ops.aten.silu.default(mm_default)" in texts["joint"]
    assert "sigmoid.default" not in texts["joint"]


def test_commutative_operands_match_either_way():
    register_pattern(silu_example, fused_silu, inputs=[torch.randn(2)])
    assert "patterns" in compiled(lambda a: torch.sigmoid(a) * a, x)[1]


def test_equal_holes_need_equal_values():
    register_pattern(silu_example, fused_silu, inputs=[torch.randn(2)])
    assert "patterns" not in compiled(lambda a: a * torch.sigmoid(a + 1), x)[1]


def test_numbers_match_only_themselves():
    register_pattern(lambda a: a * 3, lambda a: a + a + a, inputs=[torch.randn(2)], name="triple")
    assert "patterns" in compiled(lambda a: (a * 3).sin(), x)[1]
    assert "patterns" not in compiled(lambda a: (a * 3.5).sin(), x)[1]


def test_a_match_function_sees_nodes():
    def match(node):
        return (
            [node.args[0], node.args[1]]
            if node.target is aten.pow.Tensor_Scalar and node.args[1] == 2
            else None
        )

    register_pattern(match, lambda a, exponent: a * a, name="square")
    out, texts = compiled(lambda a: a.pow(2) + a.pow(3), x)
    torch.testing.assert_close(out, x.pow(2) + x.pow(3))
    assert texts["patterns"] == "square: 1 matches\n"


def test_gradients_go_on_working():
    register_pattern(silu_example, fused_silu, inputs=[torch.randn(2)])
    a = x.double().requires_grad_()
    out, texts = compiled(lambda a: (a * torch.sigmoid(a)).exp(), a)
    assert "patterns" in texts
    torch.testing.assert_close(
        torch.autograd.grad(out.sum(), a), torch.autograd.grad(F.silu(a).exp().sum(), a)
    )


def test_symbolic_sizes():
    register_pattern(silu_example, fused_silu, inputs=[torch.randn(2)])
    graphs = []

    def keep(gm, inputs):
        graphs.append(gm)
        return run_eager(gm, inputs)

    gm = capture_symbolically(
        lambda a: a.reshape(-1) * torch.sigmoid(a.reshape(-1)), [x], {0: (0,)}
    )
    call = aot_backend(keep)(gm, [4, x])
    torch.testing.assert_close(call(7, torch.ones(7, 6))[0], F.silu(torch.ones(42)))
    assert graphs[0].graph.find_nodes(op="call_function", target=aten.silu.default)


def test_the_layout_of_the_result_is_kept():
    register_pattern(
        lambda a: a.sin(),
        lambda a: a.t().contiguous().t().sin(),
        inputs=[torch.randn(2, 2)],
        name="turned",
    )
    out, _ = compiled(lambda a: a.sin(), x)
    assert out.stride() == (6, 1)
    torch.testing.assert_close(out, x.sin())


def test_a_replacement_may_bring_constants():
    register_pattern(
        lambda a: a.cos(),
        lambda a: a.sin() * torch.tensor([1.0] * 5 + [2.0]),
        inputs=[torch.randn(2)],
        name="odd",
    )
    torch.testing.assert_close(
        compiled(lambda a: a.cos(), x)[0], x.sin() * torch.tensor([1.0] * 5 + [2.0])
    )


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        (
            lambda a: a.double(),
            r"gives torch.float64 \(4, 6\) on cpu instead of torch.float32 \(4, 6\)",
        ),
        (lambda a: a.sum(), r"gives torch.float32 \(\) on cpu instead of torch.float32 \(4, 6\)"),
        (lambda a: (a, a), "gives .* instead of"),
        (lambda a: a.add_(1), "must return one tensor and write to no input"),
    ],
)
def test_a_replacement_that_disagrees_is_an_error(replacement, message):
    register_pattern(lambda a: a.sin(), replacement, inputs=[torch.randn(2)], name="wrong")
    with pytest.raises(UserError, match=rf"(?s)pattern 'wrong'.*{message}"):
        compiled(lambda a: a.sin(), x)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (lambda a: (a.sin(), a.cos()), "exactly one tensor"),
        (lambda a: F.dropout(a), "random"),
        (lambda a: a, "exactly one"),
    ],
)
def test_an_example_that_cannot_be_matched_is_an_error(example, message):
    with pytest.raises(UserError, match=f"pattern 'p': .*{message}"):
        register_pattern(example, lambda a: a, inputs=[torch.randn(2)], name="p")


def test_an_example_without_inputs_is_an_error():
    with pytest.raises(UserError, match="pass inputs="):
        register_pattern(lambda a, b: a + b, lambda a, b: a, name="p")


def test_a_match_function_that_raises_is_named():
    register_pattern(lambda node: node.args[99], lambda a: a, name="p")
    with pytest.raises(UserError, match=r"pattern 'p': match\(.*\) raised IndexError"):
        compiled(lambda a: a.sin(), x)


def test_unregistering():
    register_pattern(silu_example, fused_silu, inputs=[torch.randn(2)])
    unregister_pattern("fused_silu")
    assert "patterns" not in compiled(lambda a: a * torch.sigmoid(a), x)[1]
    with pytest.raises(UserError, match="no pattern 'fused_silu'"):
        unregister_pattern("fused_silu")
