"""The pass on hand-made C2 graphs."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from primops import (
    DEFAULT,
    ContractError,
    DecompositionError,
    DecompositionTable,
    DuplicateRuleError,
    FrozenTableError,
    PrimopsError,
    TensorMeta,
    UnknownOpError,
    check_prims,
    decompose,
    decomposition_report,
    evaluate,
    prims,
)
from primops.errors import user_line
from primops.testing import check_against_eager, trace
from primops.text import format_graph
from torch import fx

aten = torch.ops.aten
X = torch.randn(2, 3)
STACK = 'File "model.py", line 7, in forward\n    y = x.foo()'


def one_call(target, *args, val=X, **kwargs):
    """A graph of one call on ``x``; ``args`` follow x."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = X
    node = graph.call_function(target, (x, *args), kwargs)
    node.meta.update(
        {"stack_trace": STACK, "forward_node": "origin_node"}
        | ({} if val is None else {"val": val})
    )
    graph.output((node,))
    return fx.GraphModule(torch.nn.Module(), graph)


def targets(gm):
    """Prims by name, operators as they are; getitem left out."""
    calls = [
        n.target
        for n in gm.graph.nodes
        if n.op == "call_function" and n.target is not operator.getitem
    ]
    return [t if isinstance(t, torch._ops.OpOverload) else t.name for t in calls]


def prim_names(function, *inputs, **options):
    return targets(decompose(trace(function, *inputs), **options))


def test_metadata_is_kept():
    gm = decompose(one_call(aten.gelu.default))
    nodes = [n for n in gm.graph.nodes if n.op == "call_function"]
    assert len(nodes) > 2
    for node in nodes:
        assert node.meta["stack_trace"] == STACK
        assert node.meta["forward_node"] == "origin_node"
        assert node.meta["origin"] == "gelu_default"
        assert isinstance(node.meta["val"], TensorMeta)


def test_the_users_line_is_the_innermost_with_its_source():
    assert user_line(None) is None and user_line("no frames") == "no frames"
    outer = 'File "main.py", line 1, in <module>\n    model(x)\n'
    assert user_line(outer + STACK) == 'File "model.py", line 7, in forward: y = x.foo()'
    assert (
        user_line(outer + STACK + "\n        ^^^^^^^")
        == 'File "model.py", line 7, in forward: y = x.foo()'
    )


@pytest.mark.parametrize("device, takes_a_root", [("cpu", False), ("cuda", True)])
def test_half_roots_are_powers_on_the_cpu_alone(device, takes_a_root):
    half = TensorMeta((2, 3), (3, 1), torch.float16, torch.device(device))
    gm = one_call(aten.pow.Tensor_Scalar, 0.5, val=half)
    gm.graph.find_nodes(op="placeholder")[0].meta["val"] = half
    assert ("sqrt" in targets(decompose(gm))) is takes_a_root


def test_given_graph_is_left_alone():
    gm = one_call(aten.gelu.default)
    before = str(gm.graph)
    decompose(gm)
    assert str(gm.graph) == before


def block(x, w):
    y = F.layer_norm(F.linear(x, w), (3,))
    return F.softmax(F.gelu(y.view(3, 2)).t(), -1), y.abs().sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_idempotent(dtype):
    gm = check_against_eager(block, X.to(dtype), torch.randn(3, 3).to(dtype))
    again = decompose(gm)
    check_prims(again)
    assert format_graph(again) == format_graph(gm)


def test_result_runs_as_a_module():
    gm = decompose(trace(block, X, torch.eye(3)))
    assert "primops_prims_" in gm.code
    torch.testing.assert_close(tuple(gm(X, torch.eye(3))), block(X, torch.eye(3)))


def test_prim_graph_can_be_edited_and_recompiled():
    gm = decompose(trace(lambda x: x.neg(), X))
    node = next(n for n in gm.graph.nodes if n.target is prims.neg)
    node.target = prims.abs
    gm.recompile()
    assert torch.equal(gm(X)[0], X.abs())


def test_equal_calls_become_one():
    assert prim_names(lambda x: (x.exp() + x.exp()).sum() + x.exp().sum(), X).count("exp") == 1


def test_unused_calls_go():
    def f(x):
        x.exp()
        return x + 1

    assert prim_names(f, X) == ["add"]


SIMPLER = {
    "times one": (lambda x: x * 1 + 1.0, ["add"]),
    "two views": (lambda x: x.view(6).view(3, 2), ["reshape"]),
    "view there and back": (lambda x: x.view(6).view(2, 3) + 1, ["add"]),
    "transposed twice": (lambda x: x.t().t() + 1, ["add"]),
    "zeros": (lambda x: x * torch.zeros_like(x) + 1, ["mul", "add"]),
    "constants": (lambda x: x + (torch.ones(2, 3) * 2 + 1).exp(), ["add"]),
    "constants divided": (
        lambda x: x + torch.full((2, 3), 7.0).fmod(torch.full((2, 3), 4.0)).exp(),
        ["add"],
    ),
    "whole slice": (lambda x: x[0:2] + 1, ["add"]),
    "same dtype": (lambda x: x.to(torch.float32) + 1, ["add"]),
    "widened twice": (lambda x: x.half().float().double(), ["convert", "convert"]),
    "negated twice": (lambda x: x.neg().neg() + 1, ["add"]),
    "expanded twice": (
        lambda x: x[:, None].expand(2, 4, 3).expand(2, 4, 3),
        ["reshape", "broadcast_in_dim"],
    ),
    "flip of one": (lambda x: x[:1].flip(0) + 1, ["slice", "add"]),
    "largest of one": (lambda x: x[:1].amax(0) + 1, ["slice", "reshape", "add"]),
    "sum of one": (lambda x: x[:1, :1].sum() + 1, ["slice", "slice", "reshape", "add"]),
}


@pytest.mark.parametrize("case", SIMPLER)
def test_calls_are_simplified(case):
    function, expected = SIMPLER[case]
    assert targets(check_against_eager(function, X)) == expected


def test_division_by_zero_is_left_to_the_program():
    graph = trace(
        lambda x, y: x.fmod(y), torch.full((2, 3), 7), torch.ones(2, 3, dtype=torch.int64)
    )
    for node in [n for n in graph.graph.nodes if n.op == "placeholder"]:
        with graph.graph.inserting_after(node):
            value = (
                torch.ops.aten.full.default if node.name == "in0" else torch.ops.aten.zeros.default
            )
            made = graph.graph.call_function(
                value, ([2, 3], 7) if node.name == "in0" else ([2, 3],), {"dtype": torch.int64}
            )
        made.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(made)
    assert "fmod" in targets(decompose(graph))


EXACT = torch.tensor([0.0, -0.0, 1.5, float("inf"), float("nan")])


IDENTITIES = [
    lambda x: x + 0,
    lambda x: x - 0,
    lambda x: x * 1,
    lambda x: x / 1,
    lambda x: x**1,
    lambda x: x * 0,
]


@pytest.mark.parametrize("function", IDENTITIES)
def test_simplification_is_exact(function):
    (result,) = evaluate(decompose(trace(function, EXACT)), [EXACT])
    assert torch.equal(result.view(torch.int32), function(EXACT).view(torch.int32))


def test_fast_numerics_skip_rounding_between_operators():
    def f(x):
        return ((x + 1).view(-1) * 3).sin().sum()

    half = X.bfloat16()
    fast = decompose(trace(f, half))
    eager = decompose(trace(f, half), numerics="eager")
    assert targets(fast).count("convert") == 2
    assert targets(eager).count("convert") == 8
    assert torch.equal(evaluate(eager, [half])[0], f(half))


def test_conversion_of_the_program_always_rounds():
    def f(x):
        return x.bfloat16() + x.bfloat16()

    y = torch.tensor([1.00390625])
    (result,) = evaluate(decompose(trace(f, y)), [y])
    assert torch.equal(result, f(y))


def test_copies_stay_copies():
    def f(x):
        return x.clone(), x.exp(), x.exp(), x + 0, x.t()

    gm = decompose(trace(f, X))
    check_prims(gm)
    outputs = gm.graph.output_node().args[0]
    assert len(set(outputs)) == 5 and not any(o.op == "placeholder" for o in outputs)
    assert targets(gm).count("convert") == 2
    assert format_graph(decompose(gm)) == format_graph(gm)


def test_extern_operands_keep_their_layout():
    def f(x):
        return aten.mm(x.t().contiguous(), x)

    gm = decompose(trace(f, X))
    copy, mm = (n for n in gm.graph.nodes if n.target in (prims.convert, aten.mm.default))
    assert mm.args[0] is copy and copy.meta["val"].strides == (2, 1)
    view = decompose(trace(lambda x: aten.mm(x.t(), x), X))
    permute = next(n for n in view.graph.nodes if n.target is prims.permute)
    assert permute.meta["val"].strides == (1, 3)


def test_kept_operators_stay():
    assert prim_names(F.gelu, X, keep=[aten.gelu.default]) == [aten.gelu.default]
    assert prim_names(lambda x: x + 1, X, keep=["add"]) == [aten.add.Tensor]


def test_tables_compose():
    mine = DecompositionTable()

    @mine.register(aten.gelu.default)
    def gelu(self, *, approximate="none"):
        return prims.maximum(self, 0)

    assert prim_names(F.gelu, X, table=DEFAULT | mine) == ["maximum"]
    with pytest.raises(DuplicateRuleError, match=r"aten::gelu"):
        DEFAULT.merged(mine)
    with pytest.raises(FrozenTableError, match="has been used"):
        DEFAULT.add("foo", gelu)


def test_random_operators_stay_on_request():
    names = prim_names(lambda x: F.dropout(x, 0.5), X, fallback_random=True)
    assert aten.bernoulli.p in names and "uniform" not in names


def test_one_seed_serves_all_random_calls():
    gm = decompose(trace(lambda x: F.dropout(F.dropout(x, 0.5), 0.5), X))
    assert targets(gm).count("random_seed") == 1
    assert [n.kwargs["offset"] for n in gm.graph.nodes if n.target is prims.uniform] == [0, 6]
    big = torch.ones(100, 100)
    torch.manual_seed(0)
    (result,) = evaluate(decompose(trace(lambda x: F.dropout(x, 0.25), big)), [big])
    assert abs((result == 0).float().mean() - 0.25) < 0.02
    assert torch.equal(result.unique(), torch.tensor([0, 1 / 0.75]))


def test_report_lists_extern_calls():
    gm = decompose(trace(lambda x: aten._reshape_alias_copy(x @ x.t(), [16], [1]).sort().values, X))
    report = decomposition_report(gm)
    assert report.externs == {
        "aten.mm.default": 1,
        "aten._reshape_alias_copy.default": 1,
        "aten.sort.default": 1,
    }
    assert report.extern_prims == {"mm": 1, "sort": 1}
    assert report.undeclared == ("aten._reshape_alias_copy.default",)
    assert "aten._reshape_alias_copy.default  (no decomposition)" in str(report)
    line = decomposition_report(
        decompose(one_call(aten._reshape_alias_copy.default, [4, 8], [8, 1]))
    ).lines["aten._reshape_alias_copy.default"]
    assert line == 'File "model.py", line 7, in forward: y = x.foo()'


# Bad input
# --------------------------------------------------------------------------------------------------


def contract_error(gm, clause, **options):
    with pytest.raises(ContractError, match=clause) as caught:
        decompose(gm, **options)
    assert caught.value.clause == clause


BAD_INPUT = {
    "mutating operator": (ContractError, "C2.2", lambda: one_call(aten.add_.Tensor, 1)),
    "no meta": (ContractError, "C2.3", lambda: one_call(aten.neg.default, val=None)),
    "foreign target": (ContractError, "C2.1", lambda: one_call(torch.sin)),
    "unknown operator": (
        UnknownOpError,
        "C3.1",
        lambda: one_call(aten._reshape_alias_copy.default, [4, 8], [8, 1]),
    ),
    "other shape": (
        DecompositionError,
        "C3.4",
        lambda: one_call(aten.neg.default, val=torch.ones(3, 2)),
    ),
    "other dtype": (
        DecompositionError,
        "C3.4",
        lambda: one_call(aten.neg.default, val=torch.ones(2, 3, dtype=torch.float64)),
    ),
    "other rank": (DecompositionError, "C3.4", lambda: one_call(aten.sum.dim_IntList, [0], val=X)),
    "too few results": (
        DecompositionError,
        "C2.3",
        lambda: one_call(aten.aminmax.default, val=(X.min(),)),
    ),
    "failing rule": (DecompositionError, "C3.1", lambda: one_call(aten.sum.dim_IntList, [5])),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_errors_name_node_operator_clause_and_line(case):
    error, clause, make = BAD_INPUT[case]
    gm = make()
    node = next(n for n in gm.graph.nodes if n.op == "call_function")
    with pytest.raises(error) as caught:
        decompose(gm, strict=True)
    operator_name = (
        str(node.target) if isinstance(node.target, torch._ops.OpOverload) else "torch.sin"
    )
    for part in (
        f"{clause}: ",
        f"%{node.name} ",
        operator_name,
        'File "model.py", line 7, in forward: y = x.foo()',
    ):
        assert part in str(caught.value)


def test_foreign_targets_are_refused():
    gm = one_call(aten.neg.default)
    next(n for n in gm.graph.nodes if n.op == "call_function").op = "call_method"
    contract_error(gm, "C2.1")


def test_output_must_be_a_tuple():
    gm = one_call(aten.neg.default)
    gm.graph.output_node().args = (gm.graph.output_node().args[0][0],)
    contract_error(gm, "C2.4")


def test_unknown_operator_under_strict():
    gm = one_call(aten._reshape_alias_copy.default, [4, 8], [8, 1])
    assert targets(decompose(gm)) == [aten._reshape_alias_copy.default]
    with pytest.raises(
        UnknownOpError, match=r"aten\._reshape_alias_copy\.default has no decomposition"
    ):
        decompose(gm, strict=True)
    decompose(one_call(aten.mm.default, X.t()), strict=True)


def test_unknown_numerics():
    with pytest.raises(PrimopsError, match="'bitwise'; choose one of"):
        decompose(one_call(aten.neg.default), numerics="bitwise")


def test_complex_stays_extern():
    gm = decompose(trace(lambda x: torch.view_as_complex(x.view(3, 2)) * 2, X))
    assert aten.mul.Tensor in targets(gm)


def test_getitem_of_extern_results():
    gm = decompose(trace(lambda x: torch.topk(x, 2)[0] + 1, X))
    check_prims(gm)
    assert operator.getitem in [n.target for n in gm.graph.nodes]
    assert torch.equal(evaluate(gm, [X])[0], torch.topk(X, 2)[0] + 1)


def test_numbers_for_tensors_become_one():
    """As in ``torch.div(16, 5, rounding_mode="trunc")``."""
    gm = one_call(aten.mul.Tensor, 2)
    node = next(n for n in gm.graph.nodes if n.target is aten.mul.Tensor)
    node.target, node.args, node.kwargs = aten.div.Tensor_mode, (16, 5), {"rounding_mode": "trunc"}
    node.meta["val"] = torch.div(torch.tensor(16), 5, rounding_mode="trunc")
    (result,) = evaluate(decompose(gm), [X])
    assert result.dtype is torch.int64 and result.item() == 3


HALVES = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)
STEPWISE = {
    "logit": torch.logit,
    "xlogy": torch.xlogy,
    "xlog1py": torch.special.xlog1py,
    "ldexp": torch.ldexp,
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "mse_loss": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "with logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", STEPWISE)
def test_eager_numerics_round_each_step(name, dtype):
    """On all halves, paired at random: bitwise."""
    x = HALVES.view(dtype)
    given = (
        [x]
        if name == "logit"
        else [x, x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]]
    )
    expected = STEPWISE[name](*given)
    (result,) = evaluate(decompose(trace(STEPWISE[name], *given), numerics="eager"), given)
    assert ((result == expected) | (result.isnan() & expected.isnan())).all()
