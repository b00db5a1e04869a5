"""Calls of attention that a code generator's operator replaces, with keys that are not repeated."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from loopir import Attention, Options, compile_graph, rewrite_patterns
from loopir.ir.program import ExternCall
from loopir.testing import EvaluatorCodeGenerator
from primops.meta import contiguous
from primops.testing import trace
from symshapes import FakeTensorMode, ShapeEnv
from torch import fx

aten = torch.ops.aten
BATCH, HEADS, GROUPS, LENGTH, DEPTH = 2, 6, 3, 7, 8
LIBRARY = torch.library.Library("offered_attention_test", "DEF")
LIBRARY.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, float scale)"
    " -> Tensor"
)


def attended(query, key, value, mask, is_causal, scale):
    found = F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=is_causal, scale=scale, enable_gqa=True
    )
    return found.transpose(1, 2).contiguous().transpose(1, 2)


LIBRARY.impl("attention", attended, "CPU")
OPERATOR = torch.ops.offered_attention_test.attention.default


@dataclass(frozen=True, slots=True)
class Offering(EvaluatorCodeGenerator):
    asked: list[Attention] = field(default_factory=list)

    def offer_attention(self, attention: Attention):
        self.asked.append(attention)
        return OPERATOR if attention.query.shape[2] <= 4 else None


def repeated(x: torch.Tensor) -> torch.Tensor:
    batch, heads, length, depth = x.shape
    count = HEADS // GROUPS
    wide = x[:, :, None].expand(batch, heads, count, length, depth)
    return wide.reshape(batch, heads * count, length, depth)


def attention(query, key, value, mask=None, **options):
    return F.scaled_dot_product_attention(query, repeated(key), repeated(value), mask, **options)


def inputs(queries: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    query = torch.randn(BATCH, queries, HEADS, DEPTH).transpose(1, 2)
    return [query, *torch.randn(2, BATCH, GROUPS, LENGTH, DEPTH)]


MASK = torch.rand(BATCH, 1, 1, LENGTH) > 0.4
OF_HEADS = torch.rand(1, HEADS, 1, LENGTH) > 0.4


@pytest.mark.parametrize(
    ("function", "queries", "heads"),
    [
        (attention, 1, GROUPS),
        (attention, 3, GROUPS),
        (lambda q, k, v: attention(q, k, v, MASK, scale=0.3), 1, GROUPS),
        (lambda q, k, v: attention(q, k, v, OF_HEADS).transpose(1, 2).flatten(2) + 1, 2, GROUPS),
        (lambda q, k, v: attention(q.contiguous(), k, v, is_causal=True), 3, GROUPS),
        (lambda q, k, v: attention(q, k, k), 1, GROUPS),
        (lambda q, k, v: attention(q, k.repeat(1, 1, 1, 1), v), 1, GROUPS),
        (lambda q, k, v: F.scaled_dot_product_attention(q[:, ::2], k, v), 1, GROUPS),
        (
            lambda q, k, v: F.scaled_dot_product_attention(
                q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)
            ),
            1,
            HEADS,
        ),
        (attention, 5, None),
    ],
)
def test_values(function, queries, heads):
    args, codegen = inputs(queries), Offering()
    with torch.no_grad():
        graph, expected = trace(function, *args), function(*args)
    options = Options(check=True, inference=True)
    host = compile_graph(graph, args, codegens={"cpu": codegen}, options=options)
    (result,) = host(*args)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    assert result.stride() == expected.stride()
    nodes = [step.node for step in host.program.steps if isinstance(step, ExternCall)]
    calls = [node for node in nodes if node.op is OPERATOR]
    keys = [host.program.buffers[call.args[1].buffer].shape[1] for call in calls]
    assert keys == ([] if heads is None else [heads])
    assert [asked.key.shape[1] for asked in codegen.asked][-1:] == [heads or GROUPS]


def decoding(name: str, shape: tuple, length: int | torch.SymInt = 1024, **options: object):
    """A graph on a CUDA device: keys and values repeated, and one of the library's operators."""

    def meta(*shape):
        return contiguous(shape, torch.bfloat16, torch.device("cuda"))

    def add(op, *args, val, **kwargs):
        node = graph.call_function(op, args, kwargs)
        node.meta["val"] = val
        return node

    graph = fx.Graph()
    metas = {
        "query": meta(1, 8, shape[2], 64),
        "key": meta(1, 2, length, 64),
        "value": meta(1, 2, length, 64),
        "bias": meta(1, 1, 1, length),
    }
    nodes = {key: graph.placeholder(key) for key in metas}
    for key, node in nodes.items():
        node.meta["val"] = metas[key]
    repeats = []
    for key in ("key", "value"):
        wide = add(aten.unsqueeze.default, nodes[key], 2, val=meta(1, 2, 1, length, 64))
        shape5 = (1, 2, 4, length, 64)
        wide = add(aten.expand.default, wide, [*shape5], val=meta(*shape5))
        wide = add(aten.clone.default, wide, val=meta(*shape5))
        repeats.append(add(aten.view.default, wide, [1, 8, length, 64], val=meta(1, 8, length, 64)))
    bias = add(
        aten.expand.default, nodes["bias"], [*shape[:3], length], val=meta(*shape[:3], length)
    )
    masks = [] if "flash" in name else [bias, False]
    op = getattr(aten, name).default
    made = (meta(*shape), *[None] * 8)
    call = add(op, nodes["query"], *repeats, *masks, **options, val=made)
    graph.output((add(operator.getitem, call, 0, val=meta(*shape)),))
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize("kind", ["efficient", "flash", "cudnn"])
@pytest.mark.parametrize(
    ("options", "count"), [({}, 1), ({"scale": 0.3}, 1), ({"dropout_p": 0.1}, 0)]
)
def test_operators_of_cuda_devices_do_not_repeat_keys(kind, options, count):
    codegen = Offering("cuda")
    gm = decoding(f"_scaled_dot_product_{kind}_attention", (1, 8, 1, 64), **options)
    rewrite_patterns(gm, {"cuda": codegen}, Options(inference=True))
    calls = gm.graph.find_nodes(op="call_function", target=OPERATOR)
    assert len(calls) == count
    for call in calls:
        assert call.args[1].op == call.args[2].op == "placeholder"
        assert call.args[4:] == (False, options.get("scale", 0.125))
        assert not gm.graph.find_nodes(op="call_function", target=aten.clone.default)


def test_results_that_are_laid_out_otherwise_are_copied():
    gm = decoding("_scaled_dot_product_flash_attention", (1, 8, 2, 64))
    rewrite_patterns(gm, {"cuda": Offering("cuda")}, Options(inference=True))
    (call,) = gm.graph.find_nodes(op="call_function", target=OPERATOR)
    assert call.meta["val"].strides == (1024, 64, 512, 1)
    (copy,) = gm.graph.find_nodes(op="call_function", target=aten.clone.default)
    assert copy.args == (call,)
    assert copy.meta["val"].strides == (1024, 128, 64, 1)


@pytest.mark.parametrize("options", [Options(), Options(inference=True, templates=False)])
def test_graphs_of_training_and_without_templates_are_left_alone(options):
    gm = decoding("_scaled_dot_product_flash_attention", (1, 8, 1, 64))
    rewrite_patterns(gm, {"cuda": Offering("cuda")}, options)
    assert not gm.graph.find_nodes(op="call_function", target=OPERATOR)


@pytest.mark.filterwarnings("ignore:Raw SymInt")
@pytest.mark.parametrize("is_known", [True, False])
def test_lengths_may_be_symbols(is_known):
    rows = FakeTensorMode().from_real(torch.randn(8, 3), source="x", dynamic_dims=[0]).shape[0]
    length = rows if is_known else ShapeEnv().create_unbacked(lower=0)
    gm = decoding("_scaled_dot_product_efficient_attention", (1, 8, 1, 64), length)
    rewrite_patterns(gm, {"cuda": Offering("cuda")}, Options(inference=True))
    (call,) = gm.graph.find_nodes(op="call_function", target=OPERATOR)
    assert call.args[1].op == call.args[2].op == "placeholder"
