"""Every decomposition against eager, in its three readings."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from primops import (
    DEFAULT,
    MetaReading,
    TensorMeta,
    check_prims,
    decompose,
    decomposition_report,
    evaluate,
    prims,
    reading_with,
)
from primops.builder import map_values
from primops.decompositions import RANDOM_OPS
from primops.testing import assert_matches, check_against_eager, trace

from packages.primops.tests.cases import CASES, calls

# No CPU kernel to compare with, or random (test_random.py).
NO_KERNEL = {
    "cudnn_batch_norm",
    "cudnn_batch_norm_backward",
    "_native_batch_norm_legit",
    "gather_backward",
    "index_select_backward",
    "_fused_rms_norm_backward",
    "native_norm",
    "_masked_scale",
    "_fused_dropout",
    "_embedding_bag_forward_only",  # the rule of _embedding_bag, whose test is below
}
NOT_COMPARED = {*(f"aten::{name}" for name in NO_KERNEL), *RANDOM_OPS}
UNDEFINED_VALUES = ("empty", "new_empty")


SWEEP = Path(__file__).parents[3] / "docs/primops_opinfo.md"


def overload(name: str):
    packet, _, suffix = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), suffix or "default")


def exact_result(op, args, kwargs):
    """The result in float64, or None where the operator has none."""
    widened = map_values(
        lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x,
        (args, kwargs),
    )
    try:
        return listed(op(*widened[0], **widened[1]))
    except Exception:
        return None


def listed(result):
    """Results in one flat list."""
    return (
        [x for part in result for x in listed(part)]
        if isinstance(result, (tuple, list))
        else [result]
    )


def compare(name, actual, expected, exact, ulps=4):
    for position, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if name.startswith(UNDEFINED_VALUES):
            assert (a.shape, a.dtype) == (e.shape, e.dtype)
        elif e is not None:
            reference = exact[position] if exact else None
            reference = reference if reference is not None and reference.shape == e.shape else None
            assert_matches(a, e, reference, ulps=ulps, where=f"{name}[{position}]")


def test_every_decomposition_has_a_case():
    """Or the operator database has it; docs/primops_opinfo.md lists what its sweep saw."""
    names = {name.removeprefix("aten::") for name in DEFAULT if name not in NOT_COMPARED}
    swept = set(
        SWEEP.read_text()
        .partition("ATen overloads, decomposed: ")[2]
        .partition("\n")[0]
        .rstrip(".")
        .replace("`", "")
        .split()
    )
    assert names - set(CASES) - swept == set()
    assert set(CASES) - {name.removeprefix("aten::") for name in DEFAULT} == set()


@pytest.mark.parametrize("name", sorted(DEFAULT))
def test_rule_takes_the_arguments_of_the_schema(name):
    schema = overload(name)._schema
    positional = [object() for argument in schema.arguments if not argument.kwarg_only]
    named = {argument.name: object() for argument in schema.arguments if argument.kwarg_only}
    inspect.signature(DEFAULT.get(name)).bind(*positional, **named)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_decomposition_equals_eager(name, dtype):
    op, rule = overload(name), DEFAULT.get(name)
    for args, kwargs in calls(name, dtype):
        try:
            expected = listed(op(*args, **kwargs))
        except (RuntimeError, NotImplementedError):
            assert dtype is torch.bfloat16, "the case is not valid"
            continue
        exact = exact_result(op, args, kwargs)
        real = rule(*args, **kwargs)
        if real is NotImplemented:
            continue
        compare(name, listed(real), expected, exact)
        check_meta_reading(rule, args, kwargs, listed(real))
        check_graph_reading(name, op, args, kwargs, expected, exact)


def check_meta_reading(rule, args, kwargs, expected):
    metas = map_values(
        lambda x: TensorMeta.from_tensor(x) if isinstance(x, torch.Tensor) else x, (args, kwargs)
    )
    with reading_with(MetaReading()):
        result = listed(rule(*metas[0], **metas[1]))
    for meta, real in zip(result, expected, strict=True):
        if real is not None:
            assert (meta.shape, meta.dtype) == (tuple(real.shape), real.dtype)


def check_graph_reading(name, op, args, kwargs, expected, exact):
    tensors = []
    map_values(lambda x: tensors.append(x) if isinstance(x, torch.Tensor) else None, (args, kwargs))

    def call(*given):
        found = iter(given)
        made = map_values(
            lambda x: next(found) if isinstance(x, torch.Tensor) else x, (args, kwargs)
        )
        return [x for x in listed(op(*made[0], **made[1])) if x is not None]

    gm = trace(call, *tensors)
    exact = exact and [x for x in exact if x is not None]
    for numerics in ("fast", "eager"):
        prim_graph = decompose(gm, numerics=numerics)
        check_prims(prim_graph)
        compare(name, evaluate(prim_graph, tensors), [x for x in expected if x is not None], exact)


def test_rms_norm_backward_is_the_derivative():
    x, w, grad = torch.randn(2, 3, 4), torch.randn(4), torch.randn(2, 3, 4)
    leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
    result = torch.nn.functional.rms_norm(leaves[0], (4,), leaves[1], 1e-5)
    expected = torch.autograd.grad(result, leaves, grad)
    rstd = (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
    actual = DEFAULT.get("_fused_rms_norm_backward")(grad, x, [4], rstd, w, [True, True])
    torch.testing.assert_close(actual, expected)
    half = DEFAULT.get("_fused_rms_norm_backward")(
        grad.bfloat16(), x.bfloat16(), [4], rstd, w.bfloat16(), [True, True]
    )
    assert [y.dtype for y in half] == [torch.bfloat16] * 2


@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_embeddings(mode, ends, padding):
    rows, offsets = torch.tensor([3, 1, 1, 0, 4]), torch.tensor([0, 2, 2, 4] + [5] * ends)
    weights = torch.rand(5) if mode == "sum" else None

    def step(table, *given):
        leaves = [x.detach().requires_grad_() for x in (table, *given)]
        scale = leaves[1] if given else None
        bags = torch.nn.functional.embedding_bag(
            rows,
            leaves[0],
            offsets,
            mode=mode,
            per_sample_weights=scale,
            include_last_offset=ends,
            padding_idx=padding,
        )
        return (bags.detach(), *torch.autograd.grad(bags, leaves, bags.detach() + 1))

    gm = check_against_eager(step, torch.randn(5, 3), *([] if weights is None else [weights]))
    assert not decomposition_report(gm).externs
    table = torch.ones(5, 3)
    graph = decompose(
        trace(lambda t, o: torch.nn.functional.embedding_bag(rows, t, o), table, offsets)
    )
    # bags start with the first row, and in the rows
    for wrong in (offsets + 1, torch.cat([offsets[:-1], torch.tensor([6])])):
        with pytest.raises(IndexError):
            evaluate(graph, [table, wrong])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_equal_length_need_no_places(mode, dtype):
    rows = torch.tensor([[3, 1, 1], [0, 4, 2]], dtype=dtype)

    def step(table):
        leaf = table.detach().requires_grad_()
        bags = torch.nn.functional.embedding_bag(rows, leaf, mode=mode, padding_idx=1)
        return bags.detach(), torch.autograd.grad(bags, leaf, bags.detach() + 1)[0]

    gm = check_against_eager(step, torch.randn(5, 3))
    assert not decomposition_report(gm).externs
    # into the gradient of the table
    assert [node.target for node in gm.graph.nodes].count(prims.index_put) == 1


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
@pytest.mark.parametrize("number", [-129, 300, 2**40, 7])
def test_integer_numbers_wrap(dtype, number):
    x = torch.arange(5).to(dtype)
    check_against_eager(
        lambda x: (x + number, number - x, x * number, x == number, x.bitwise_xor(number)), x
    )


def test_integers_round_as_the_half_operand_does():
    x, wide = torch.tensor([1.0, 0.5, 0.0], dtype=torch.float16), torch.tensor([2049, 70000, 2**40])
    gm = trace(lambda x, wide: (x + wide, x * wide), x, wide)
    for numerics in ("fast", "eager"):
        for got, wanted in zip(
            evaluate(decompose(gm, numerics=numerics), [x, wide]), (x + wide, x * wide)
        ):
            assert torch.equal(got.nan_to_num(7), wanted.nan_to_num(7))


EDGES = {
    "no dims": lambda x: (x.any(dim=()), x.all(dim=())),
    "sum as bool": lambda x: x.sum(dtype=torch.bool),
    "acosh below 1": lambda x: torch.acosh(x.to(torch.int64) - 2**62),
    "smooth l1 of nan": lambda x: torch.ops.aten.smooth_l1_loss_backward(
        x, x * float("nan"), x, 0, 1.0
    ),
    "threshold of integers": lambda x: torch.threshold(x.int(), 1, 7),
    "addcmul of integers": lambda x: torch.addcmul(x.int(), x.int(), x.int(), value=2.7),
    "ldexp of integers": lambda x: torch.ldexp(x.half(), x.int()),
}


@pytest.mark.parametrize("case", EDGES)
def test_edge_equals_eager(case):
    check_against_eager(EDGES[case], torch.tensor([[0.0, 1.0, 3.0]]))


def test_integers_are_padded_with_an_integer():
    graph = decompose(
        trace(lambda x: torch.nn.functional.pad(x, (1, 1), value=2.7), torch.arange(3))
    )
    (pad,) = graph.graph.find_nodes(op="call_function", target=prims.pad)
    assert type(pad.kwargs["value"]) is int and pad.kwargs["value"] == 2


JUMPS = {
    "argmax": lambda x: x.argmax(1),
    "bool": lambda x: (x * 2.0**-24).bool(),
    "ceil": torch.ceil,
    "compare": lambda x: x.abs() >= 2,
    "floor": torch.floor,
    "fmod": lambda x: torch.fmod(x, 3),
    "hardshrink": lambda x: torch.nn.functional.hardshrink(x, 2.0),
    "int": lambda x: x.int(),
    "isinf": lambda x: torch.isinf(x * 2.0**13),
    "max": lambda x: x.max(1)[1],
    "remainder": lambda x: x % 3,
    "round": torch.round,
    "sign": lambda x: torch.sign(x * 2.0**-24),
    "trunc": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", JUMPS)
def test_results_that_jump_read_what_eager_rounds(name: str, dtype: torch.dtype) -> None:
    """A rounding that is left out would become a whole step."""

    def function(x, y):
        return JUMPS[name](x / y)

    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-99, 99, (64, 64), generator=generator).to(dtype)
    y = torch.randint(1, 33, (64,), generator=generator).to(dtype)
    graph = decompose(trace(function, x, y))
    assert torch.equal(evaluate(graph, [x, y])[0], function(x, y))
