"""Graph patterns: what is recognised computes the same, and what only looks alike is left alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from loopir import (
    Contraction,
    HostProgram,
    LoweringError,
    Offer,
    Options,
    Packed,
    TensorInput,
    compile_graph,
)
from loopir.patterns.layout import choose_layouts
from loopir.patterns.match import add_constant
from loopir.testing import EvaluatorCodeGenerator
from primops import TensorMeta
from primops.testing import trace
from torch import fx

EVALUATOR = EvaluatorCodeGenerator()


def build(
    fn: Callable,
    args: Sequence[torch.Tensor],
    static: int = 0,
    codegen: object = EVALUATOR,
    **options,
) -> HostProgram:
    """``fn`` compiled for inference; the last ``static`` arguments are parameters."""
    with torch.no_grad():
        graph = trace(fn, *args)
    placeholders = graph.graph.find_nodes(op="placeholder")
    for node in placeholders[len(placeholders) - static :]:
        node.meta["static"] = True
    settings = Options(check=True, threads=2, inference=True, **options)
    return compile_graph(graph, args, codegens={"cpu": codegen}, options=settings)  # type: ignore[dict-item]


def check(
    fn: Callable, *args: torch.Tensor, static: int = 0, tolerance: float = 1e-4, **options
) -> HostProgram:
    host = build(fn, args, static, **options)
    expected = fn(*args)
    (result,) = host(*args)
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert result.stride() == expected.stride()
    return host


def heads(depth: int = 8, keys: int = 6) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(2, 3, 5, depth),
        torch.randn(2, 3, keys, depth),
        torch.randn(2, 3, keys, depth),
    ]


SPELLINGS = {
    "divide": lambda q, k, v: (q @ k.transpose(-2, -1) / math.sqrt(8)).softmax(-1) @ v,
    "scale the query": lambda q, k, v: torch.softmax((q * 0.3) @ k.mT, dim=-1) @ v,
    "scale after": lambda q, k, v: torch.matmul(
        F.softmax(torch.matmul(q, k.transpose(2, 3)) * 0.125, dim=-1), v
    ),
    "plain": lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v,
    "dropout in evaluation": lambda q, k, v: (
        F.dropout(torch.softmax(q @ k.mT, -1), 0.1, training=False) @ v
    ),
    "heads merged after": lambda q, k, v: (
        (torch.softmax(q @ k.mT, -1) @ v).transpose(1, 2).reshape(2, 5, -1)
    ),
    "float softmax": lambda q, k, v: (
        torch.softmax(q @ k.mT, -1, dtype=torch.float32).to(q.dtype) @ v
    ),
    "three dims": lambda q, k, v: torch.bmm(
        torch.softmax(torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT) / 3, -1), v.flatten(0, 1)
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_attention_becomes_one_call(name: str) -> None:
    host = check(SPELLINGS[name], *heads())
    assert host.extern_ops == ("aten.scaled_dot_product_attention.default",)


def test_attention_of_half_operands_with_a_float_softmax() -> None:
    args = [x.bfloat16() for x in heads()]
    assert check(SPELLINGS["float softmax"], *args, tolerance=2e-2).extern_ops == (
        "aten.scaled_dot_product_attention.default",
    )


def test_masked_attention_keeps_rows_without_keys_nan() -> None:
    mask = torch.ones(5, 6, dtype=torch.bool).triu(2)
    mask[3] = True

    def fill(q, k, v, mask):
        return torch.softmax((q @ k.mT / 2).masked_fill(mask, -math.inf), -1) @ v

    def add(q, k, v, mask):
        return torch.softmax(q @ k.mT / 2 + mask, -1) @ v

    numbers = torch.zeros(5, 6).masked_fill(mask, -math.inf)
    for function, given in ((fill, mask), (add, numbers), (add, numbers.expand(2, 1, 5, 6))):
        host = check(function, *heads(), given)
        assert "aten.scaled_dot_product_attention.default" in host.extern_ops
        assert "aten.bmm.default" not in host.extern_ops


@pytest.mark.parametrize(
    "fn",
    [
        lambda q, k, v: torch.softmax(q @ k.mT, -2) @ v,
        lambda q, k, v: (torch.softmax(q @ k.mT, -1) * 2) @ v,
        lambda q, k, v: torch.softmax((q @ k.mT).masked_fill(k[..., :1].mT > 0, -1e4), -1) @ v,
        lambda q, k, v: torch.softmax((q @ k.mT + 1) * 2, -1) @ v,
        lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v[..., :4],
    ],
)
def test_what_is_no_attention_is_left_alone(fn: Callable) -> None:
    assert "aten.scaled_dot_product_attention.default" not in check(fn, *heads()).extern_ops


def test_probabilities_that_are_wanted_are_kept() -> None:
    def fn(q, k, v):
        weights = torch.softmax(q @ k.mT, -1)
        return weights @ v, weights

    args = heads()
    for result, expected in zip(build(fn, args)(*args), fn(*args), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


NORM = [torch.rand(8) + 0.5, torch.randn(8), torch.randn(8), torch.rand(8) + 0.1]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_goes_into_a_frozen_convolution(transposed: bool, groups: int) -> None:
    def fn(x, weight, gamma, beta, mean, variance):
        op = F.conv_transpose2d if transposed else F.conv2d
        return F.batch_norm(
            op(x, weight, groups=groups), mean, variance, gamma, beta, eps=1e-3
        ).relu()

    weight = torch.randn(4, 8 // groups, 3, 3) if transposed else torch.randn(8, 4 // groups, 3, 3)
    host = check(fn, torch.randn(2, 4, 7, 7), weight, *NORM, static=5, freeze=True)
    assert host.extern_ops == ("aten.convolution.default",)
    assert all(len(kernel.buffers) == 2 for kernel in host.program.kernels)


def test_batch_norm_in_training_stays() -> None:
    def fn(x, weight, gamma, beta, mean, variance):
        y = F.conv2d(x, weight)
        return torch.ops.aten._native_batch_norm_legit_functional(
            y, gamma, beta, mean, variance, True, 0.1, 1e-3
        )[0]

    check(fn, torch.randn(2, 4, 7, 7), torch.randn(8, 4, 3, 3), *NORM, static=5, freeze=True)


def test_only_frozen_parameters_are_constants() -> None:
    def fn(x, weight):
        return x @ (weight * 2).t().tanh()

    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    host = build(fn, (x, weight), static=1)
    frozen = build(fn, (x, weight), static=1, freeze=True)
    assert host.launch_count == 1 and frozen.launch_count == 0
    weight.mul_(3)
    torch.testing.assert_close(host(x, weight)[0], fn(x, weight))


def test_tables_and_masks_made_from_numbers_are_constants_when_frozen() -> None:
    def interactions(x):  # as in DLRM: products of pairs, the lower triangle of them
        pairs = torch.bmm(x, x.mT)
        rows, columns = torch.tril_indices(5, 5, offset=-1)
        keep = torch.ones(4, 10, dtype=torch.bool).tril()
        return pairs[:, rows, columns].masked_fill(keep, 0)

    x = torch.randn(4, 5, 6)
    host = check(interactions, x, static=0, freeze=True)
    assert host.launch_count == 1 and host.extern_ops == ("aten.bmm.default",)
    assert {t.dtype for t in host.program.constants.values()} == {torch.bool, torch.int64}


def test_padding_concatenation_and_bias_are_simplified() -> None:
    x, weight = torch.randn(2, 4, 7, 7), torch.randn(8, 4, 3, 3)
    host = check(lambda x, w: F.conv2d(F.pad(F.pad(x, (1, 1, 0, 0)), (0, 0, 2, 2)), w), x, weight)
    assert (
        "aten_convolution_default(" in host.source
        and ", [1, 1], [2, 1], [1, 1], False" in host.source
    )
    check(lambda x, w: F.conv2d(F.pad(x, (1, 0, 1, 0)), w), x, weight)
    check(lambda x, w: F.conv2d(F.pad(x, (1, 1), value=1.0), w), x, weight)
    host = check(
        lambda a, b, c: torch.cat([torch.cat([a, b], 1), c], 1),
        *(torch.randn(2, n) for n in (1, 2, 3)),
    )
    assert host.launch_count == 1
    host = check(lambda a, b, c: a @ b + c, torch.randn(3, 4), torch.randn(4, 5), torch.randn(5))
    assert host.extern_ops == ("aten.addmm.default",) and host.launch_count == 0


@pytest.mark.parametrize(
    ("function", "flag"),
    [
        (lambda x: torch.linalg.svd(x, full_matrices=False)[1], False),
        (lambda x: torch.linalg.svd(x)[2].abs(), True),
        (lambda x: torch.linalg.eigh(x @ x.mT)[0], False),
        (lambda x: torch.linalg.eigh(x @ x.mT, UPLO="U")[1].abs(), True),
    ],
)
def test_vectors_of_factorisations_are_made_if_they_are_read(
    function: Callable, flag: bool
) -> None:
    host = check(function, torch.rand(3, 3) + torch.eye(3))
    call = next(line for line in host.source.splitlines() if "aten__linalg" in line)
    assert call.endswith("False)") is not flag


class Offering:
    """Offers oneDNN's operators, with relu and addition, for whatever it is asked."""

    device = "cpu"
    generate = staticmethod(EVALUATOR.generate)
    build = staticmethod(EVALUATOR.build)

    def __init__(self) -> None:
        self.asked: list[Contraction] = []

    def offer(self, contraction: Contraction) -> Offer | None:
        self.asked.append(contraction)
        names = [step.name for step in contraction.steps]
        taken = 2 if names[:2] == ["add", "relu"] else 1 if names[:1] == ["relu"] else 0
        if contraction.kind == "linear":
            attribute = "relu" if taken == 1 else "none"
            arguments = (
                TensorInput(0, torch.contiguous_format),
                TensorInput(1),
                TensorInput(2),
                attribute,
                [],
                "",
            )
            return Offer(torch.ops.mkldnn._linear_pointwise.default, arguments, taken=min(taken, 1))
        stride, padding, dilation, _, _, groups = contraction.parameters
        last = torch.channels_last
        image, weight = (
            TensorInput(0, last),
            Packed(lambda w: w.contiguous(memory_format=last), (1,)),
        )
        rest = (TensorInput(2), padding, stride, dilation, groups)
        if taken == 2:
            arguments = (image, TensorInput(3, last), weight, *rest, "add", None, "relu", [], "")
            return Offer(torch.ops.mkldnn._convolution_pointwise.binary, arguments, 2, last)
        arguments = (image, weight, *rest, "relu" if taken else "none", [], "")
        return Offer(torch.ops.mkldnn._convolution_pointwise.default, arguments, taken, last)


needs_mkldnn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")


@needs_mkldnn
def test_offered_convolutions_take_what_follows() -> None:
    def fn(x, w1, w2, gamma, beta, mean, variance):
        y = F.batch_norm(F.conv2d(x, w1, padding=1), mean, variance, gamma, beta).relu()
        return F.relu(F.batch_norm(F.conv2d(y, w2, padding=1), mean, variance, gamma, beta) + y)

    codegen = Offering()
    args = (torch.randn(2, 4, 8, 8), torch.randn(8, 4, 3, 3), torch.randn(8, 8, 3, 3), *NORM)
    host = check(fn, *args, static=6, freeze=True, codegen=codegen)
    assert host.extern_ops == (
        "mkldnn._convolution_pointwise.default",
        "mkldnn._convolution_pointwise.binary",
    )
    assert host.launch_count == 2, "the image to channels-last, and the result back"
    assert [[step.name for step in c.steps] for c in codegen.asked] == [["relu"], ["add", "relu"]]
    assert all(c.constant == (False, True, True) for c in codegen.asked)


@needs_mkldnn
def test_offered_linears_see_the_tensor_before_flattening() -> None:
    def fn(x, weight, bias):
        return F.linear(x, weight, bias).relu() + 1

    codegen = Offering()
    host = check(
        fn, torch.randn(2, 3, 4), torch.randn(5, 4), torch.randn(5), static=2, codegen=codegen
    )
    assert host.extern_ops == ("mkldnn._linear_pointwise.default",)
    (contraction,) = codegen.asked
    assert [tuple(meta.shape) for meta in contraction.operands if meta] == [(2, 3, 4), (5, 4), (5,)]
    assert contraction.static == (False, True, True) and not any(contraction.constant)
    assert [(step.name, step.parameters) for step in contraction.steps] == [
        ("relu", ()),
        ("add", (1, 1)),
    ]


@needs_mkldnn
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w, b, y: y + F.linear(x, w, b),
        lambda x, w, b, y: y * F.linear(x, w, b).relu(),
        lambda x, w, b, y: torch.add(y, F.linear(x, w, b), alpha=2),
        lambda x, w, b, y: y - F.linear(x, w, b),
        lambda x, w, b, y: F.linear(x, w, b).view(3, 2, 5) + y.view(3, 2, 5),
        lambda x, w, b, y: torch.mm(x.view(6, 4), w.permute(1, 0)).view(2, 3, 5) + y,
        lambda x, w, b, y: (
            torch.mm(x.view(6, 4), w.transpose(-1, -2)).view(3, 2, 5).relu() + y.view(3, 2, 5)
        ),
        lambda x, w, b, y: F.linear(x, w, b) + y[0, 0],
        lambda x, w, b, y: F.linear(x, w, b) > y,
    ],
)
def test_what_follows_offered_linears_keeps_its_operands(fn: Callable) -> None:
    codegen = Offering()
    check(
        fn,
        torch.randn(2, 3, 4),
        torch.randn(5, 4),
        torch.randn(5),
        torch.randn(2, 3, 5),
        codegen=codegen,
    )
    for contraction in codegen.asked:
        assert all(
            parameter in (1, 2, None) for step in contraction.steps for parameter in step.parameters
        )


def test_packing_what_is_no_constant_is_an_error() -> None:
    with pytest.raises(LoweringError, match="packs an operand that is no constant"):
        build(
            lambda x, w: F.conv2d(x, w),
            (torch.randn(1, 4, 5, 5), torch.randn(8, 4, 3, 3)),
            codegen=Offering(),
        )


def test_convolution_nets_run_channels_last_in_inference() -> None:
    def fn(x, w1, w2):
        y = F.conv2d(x, w1, padding=1)
        return F.conv2d(F.max_pool2d(F.silu(y) + y, 2), w2), y.mean((2, 3))

    args = (torch.randn(2, 4, 8, 8), torch.randn(8, 4, 3, 3), torch.randn(8, 8, 3, 3))
    host = build(fn, args)
    for result, expected in zip(host(*args), fn(*args), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        assert result.stride() == expected.stride()
    layouts = [
        host.program.buffers[name].stride
        for step in host.program.steps
        for name in getattr(getattr(step, "node", None), "results", ())
    ]
    assert all(stride[1] == 1 for stride in layouts if len(stride) == 4)


@pytest.mark.parametrize(("device", "turned"), [("cpu", ["in0"]), ("cuda", ["in0", "in1", "in2"])])
def test_weights_are_turned_around_where_the_library_would_be_slower(
    device: str, turned: list[str]
) -> None:
    def fn(x, w1, w2):
        return F.conv2d(F.relu(F.conv2d(x, w1, padding=1)), w2, padding=1)

    with torch.no_grad():
        graph = trace(
            fn, *(torch.randn(s).bfloat16() for s in ((2, 8, 8, 8), (16, 8, 3, 3), (8, 16, 3, 3)))
        )
    for node in graph.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = replace(
                TensorMeta.from_tensor(node.meta["val"]), device=torch.device(device)
            )
    choose_layouts(graph, inference=True)
    copies = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert sorted(str(copy.args[0]) for copy in copies) == turned


def test_names_of_constants_stay_apart():
    """A constant that was erased leaves fewer buffers than names."""
    gm = fx.GraphModule(torch.nn.Module(), fx.Graph())
    output = gm.graph.output(())
    first, second = (add_constant(gm, torch.full((2,), k), output) for k in range(2))
    delattr(gm, first.target)
    third = add_constant(gm, torch.ones(3), output)
    assert getattr(gm, second.target).tolist() == [1, 1]
    assert getattr(gm, third.target).tolist() == [1, 1, 1]
