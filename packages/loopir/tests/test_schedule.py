"""Which kernels graphs become, as golden text, and why."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import sympy
import torch
import torch.nn.functional as F
from loopir import format_kernel, format_schedule
from loopir.ir.node import ExternNode, LoweredGraph, View
from loopir.schedule.dag import Dag
from loopir.schedule.fusion import Fusion
from loopir.schedule.group import Group

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def text(host):
    kernels = [format_kernel(replace(kernel, origins=())) for kernel in host.program.kernels]
    return "\n".join([*kernels, format_schedule(host.program), host.source])


def test_softmax(run, golden):
    host = run(lambda x: x.softmax(-1), torch.randn(4, 8, 64))
    assert host.launch_count == 1
    golden(text(host))


def test_layernorm(run, golden):
    host = run(
        lambda x, w, b: aten.native_layer_norm(x, [64], w, b, 1e-5),
        torch.randn(4, 8, 64),
        torch.randn(64),
        torch.randn(64),
    )
    assert host.launch_count == 1
    golden(text(host))


def test_layernorm_backward(run, golden):
    x, w, b = torch.randn(4, 8, 64), torch.randn(64), torch.randn(64)
    _, mean, rstd = aten.native_layer_norm(x, [64], w, b, 1e-5)

    def fn(g, x, mean, rstd, w, b):
        return aten.native_layer_norm_backward(g, x, [64], mean, rstd, w, b, [True] * 3)

    host = run(fn, torch.randn(4, 8, 64), x, mean, rstd, w, b)
    assert host.launch_count == 2  # rows for the input's gradient, columns for the weights'
    golden(text(host))


def test_conv_batchnorm_relu(run, golden):
    def fn(x, w, g, b):
        y, mean, rstd = aten.native_batch_norm(
            torch.conv2d(x, w, padding=1), g, b, None, None, True, 0.1, 1e-5
        )
        return torch.relu(y), mean, rstd

    host = run(
        fn, torch.randn(2, 3, 16, 16), torch.randn(8, 3, 3, 3), torch.randn(8), torch.randn(8)
    )
    assert (host.launch_count, host.extern_ops) == (1, ("aten.convolution.default",))
    golden(text(host))


def attention(x, qkv, out):
    b, t, c = x.shape
    q, k, v = (y.view(b, t, 4, c // 4).transpose(1, 2) for y in (x @ qkv).split(c, -1))
    scores = (q @ k.transpose(-1, -2)) * 0.25
    scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf")).softmax(
        -1
    )
    return x + F.gelu((scores @ v).transpose(1, 2).reshape(b, t, c) @ out)


def test_attention_block(run, golden):
    host = run(attention, torch.randn(2, 16, 64), torch.randn(64, 192), torch.randn(64, 64))
    golden(text(host))


def test_cross_entropy_forward_and_backward(run, golden):
    def fn(x, target):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            loss = F.cross_entropy(x, target)
            return loss.detach(), *torch.autograd.grad(loss, x)

    golden(text(run(fn, torch.randn(32, 100), torch.randint(0, 100, (32,)))))


def test_repeated_layers_share_kernels(run):
    def layers(x, w):
        for _ in range(6):
            x = F.gelu(F.layer_norm(x @ w, (64,))) + x
        return x

    host = run(layers, torch.randn(8, 64), torch.randn(64, 64) / 8, tolerance=1e-3)
    assert host.launch_count == 6 and host.kernel_count == 1


def test_siblings_that_share_reads_fuse(run):
    host = run(lambda x: (x.sin(), x.cos(), x.sum(1), x.amax(1)), torch.randn(64, 32))
    assert host.launch_count == 1


def test_transposed_consumer_fuses_by_reordering_its_loops(run):
    def fn(x):
        y = x.sin().exp()
        return y, y.t().cos().exp() + 1

    assert run(fn, torch.randn(20, 30)).launch_count == 1


def test_unrelated_work_stays_apart_and_says_why(run):
    host = run(lambda x: (x.sin(), x[:, 1:].sin().sum(0)), torch.randn(64, 33))
    assert host.launch_count == 2
    assert all(not decision.accepted and decision.reason for decision in host.program.decisions)


def test_parts_of_a_buffer_are_not_tried_with_each_other(run, monkeypatch):
    judge, tried = Fusion._judge, []
    monkeypatch.setattr(Fusion, "_judge", lambda *given: tried.append(given) or judge(*given))
    run(
        lambda *pieces: torch.cat([piece.sin() for piece in pieces], 1),
        *(torch.randn(50, 40 + i) for i in range(40)),
    )
    assert not tried


def test_cycle_through_an_extern_call_is_refused(run):
    def fn(x, w):
        y = x.sin().exp().tanh()
        return y + y @ w

    host = run(fn, torch.randn(16, 16), torch.randn(16, 16))
    assert host.launch_count == 2
    assert "mm.default (buf1) has to run between them" in format_schedule(host.program)


def dag_of(reads):
    """A call per item, which reads the results of those calls."""
    nodes = []
    for position, before in enumerate(reads):
        op, args = (
            SimpleNamespace(name=f"op{position}"),
            tuple(View(f"b{n}", (), (), sympy.Integer(0)) for n in before),
        )
        nodes.append(ExternNode(op, args, (), (f"b{position}",), True, (), ()))
    dag = Dag(LoweredGraph(nodes=nodes))
    return dag, list(dag.groups)


def merge(dag, left, right):
    a, b = dag.groups[left], dag.groups[right]
    if dag.step_between(a, b) is None:
        dag.replace(a, b, Group(left, None, [], [], [], min(a.first, b.first), max(a.last, b.last)))


def test_a_merged_group_leads_back_to_what_comes_before_its_end():
    dag, names = dag_of([[], [0], [], [2], [3]])
    merge(dag, names[0], names[4])
    merge(dag, names[1], names[2])  # 2 -> 3 -> 0 and 4 -> 1
    assert len(dag.order()) == 4


@pytest.mark.parametrize("number", range(20))
def test_groups_stay_in_an_order_however_they_are_merged(number):
    draw = random.Random(number)
    dag, _ = dag_of([draw.sample(range(position), min(position, 1)) for position in range(24)])
    for _ in range(40):
        if len(dag.groups) > 2:
            merge(dag, *draw.sample(sorted(dag.groups), 2))
    assert len(dag.order()) < 12


def test_internal_buffers_need_no_memory(run):
    host = run(
        lambda x: (lambda e: e / e.sum(-1, keepdim=True))((x * 2).exp().tanh().exp()),
        torch.randn(32, 64),
    )
    assert host.launch_count == 1
    assert host.source.count("empty_strided") == 1


def test_dead_buffers_are_reused(run):
    def fn(x, w):
        for _ in range(4):
            x = (x @ w).relu()
        return x

    source = run(fn, torch.randn(16, 16), torch.randn(16, 16)).source
    assert "empty_strided" not in source


def test_small_unrelated_steps_share_a_launch(run):
    counters = [torch.tensor(i) for i in range(8)]
    host = run(lambda *xs: tuple(x + 1 for x in xs), *counters)
    assert host.launch_count == 1
    assert "saves a launch" in format_schedule(host.program)


def test_operands_of_cat_are_computed_where_they_belong(run):
    def fn(x, y):
        return torch.stack([x.sin().exp().cos() * y.tanh(), (x.cos().exp() + y).tanh().sin()])

    host = run(fn, torch.randn(8, 16), torch.randn(8, 16))
    assert host.launch_count == 1 and host.source.count("empty_strided") == 1

    def product(x, w):
        return torch.cat([(x @ w).sin().exp().cos().tanh(), x], 1) @ w.repeat(2, 1)

    host = run(product, torch.randn(8, 16), torch.randn(16, 16), tolerance=1e-3)
    assert "fused: buf1 and buf1: saves a launch" in format_schedule(host.program)


def test_a_value_taken_apart_is_computed_in_its_parts(run):
    def gates(x, y):
        i, f, g, o = (x + y).chunk(4, 1)
        return f.sigmoid() * o.tanh() + i.sigmoid() * g.tanh()

    host = run(gates, torch.randn(8, 32), torch.randn(8, 32))
    assert host.launch_count == 1
