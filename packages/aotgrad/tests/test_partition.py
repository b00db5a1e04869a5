"""What the partitioners keep and repeat, and that both give right gradients."""

from __future__ import annotations

import itertools
import random

import networkx
import pytest
import torch
import torch.nn.functional as F
from aotgrad import (
    UserError,
    aot_backend,
    aot_function,
    memory_pareto,
    partition_default,
    partition_min_cut,
    run_eager,
)
from aotgrad.graphs.mincut import sink_side
from aotgrad.graphs.recorded_partition import RULE
from symshapes.choices import Choices


def partitions(f, *inputs):
    """Both partitions of a program's joint graph, and the results of running each."""
    found = {}

    def spy(which):
        def choose(view):
            found[which.__name__] = partition = which(view)
            return partition

        return choose

    for which in (partition_default, partition_min_cut):
        leaves = [torch.nn.Parameter(t.detach().clone()) for t in inputs]
        torch.manual_seed(0)
        aot_function(f, forward_compiler=run_eager, partition=spy(which))(*leaves).sum().backward()
        reference = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
        torch.manual_seed(0)
        f(*reference).sum().backward()
        for a, b in zip(leaves, reference):
            torch.testing.assert_close(a.grad, b.grad)
    return found["partition_default"], found["partition_min_cut"]


def randn(*shape, grad=True):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def operations(partition):
    return {str(n.target) for n in partition.saved if n.op != "placeholder"}


def test_pointwise_chain_keeps_one_value():
    default, cut = partitions(lambda x, w: (x @ w).sin().exp().tanh(), randn(8, 8), randn(8, 8))
    assert len(operations(default)) == 3
    assert operations(cut) == {"aten.mm.default"}
    assert cut.saved_bytes == 8 * 8 * 8
    assert set(cut.recomputed) == {"sin_default", "exp_default", "tanh_default"}


def test_inputs_are_free_but_heavy_ops_are_not_repeated():
    _, cut = partitions(lambda x, w, v: ((x @ w) @ v).relu(), randn(8, 8), randn(8, 8), randn(8, 8))
    assert "aten.mm.default" in operations(cut)
    assert not any("mm" in name for name in cut.recomputed)


def test_random_ops_are_never_repeated():
    default, cut = partitions(lambda x: F.dropout((x * 2).sin(), 0.5), randn(100))
    for partition in (default, cut):
        assert not any("dropout" in name or "bernoulli" in name for name in partition.recomputed)


def test_normalisation_is_repeated_from_its_statistics():
    def f(x, w, g, b):
        return F.relu(F.layer_norm(x @ w, (32,), g, b)) @ w

    inputs = randn(16, 32), randn(32, 32), randn(32), randn(32)
    default, cut = partitions(f, *inputs)
    assert cut.saved_bytes < 0.6 * default.saved_bytes
    assert not any("native_layer_norm" in name for name in cut.recomputed)


@pytest.mark.parametrize("returned", [True, False])
def test_log_softmax_is_repeated_from_a_copy_of_narrow_logits(returned):
    found, target = [], torch.randint(50, (2, 16))

    def f(x, w):
        logits = x @ w
        loss = F.cross_entropy(logits.float().view(-1, 50), target.view(-1))
        return (loss, logits) if returned else loss

    def spy(view):
        found.append(partition_min_cut(view))
        return found[-1]

    x, w = torch.randn(2, 16, 8).bfloat16(), torch.randn(8, 50).bfloat16()
    grads = []
    for call in (f, aot_function(f, forward_compiler=run_eager, partition=spy)):
        leaves = [t.clone().requires_grad_() for t in (x, w)]
        results = call(*leaves)
        loss = results[0] if returned else results
        if returned:
            with torch.no_grad():
                results[1].zero_()  # eager's backward does not read it
        loss.backward()
        grads.append([leaf.grad for leaf in leaves])
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert found[0].saved_bytes < 2 * 16 * 50 * 2 * 1.3
    assert not any(node.target is torch.ops.aten._log_softmax.default for node in found[0].saved)


def test_batch_norm_is_repeated_from_its_statistics():
    def f(x, w, g, b):
        y = F.batch_norm(
            F.conv2d(x, w),
            torch.zeros(4, dtype=x.dtype),
            torch.ones(4, dtype=x.dtype),
            g,
            b,
            training=True,
        )
        return F.conv2d(F.relu(y), w)

    default, cut = partitions(f, randn(2, 4, 8, 8), randn(4, 4, 3, 3), randn(4), randn(4))
    assert cut.saved_bytes < 0.6 * default.saved_bytes


def test_group_norm_is_repeated_from_its_statistics():
    def f(x, w, g, b):
        return F.conv2d(F.relu(F.group_norm(F.conv2d(x, w), 2, g, b)), w)

    default, cut = partitions(f, randn(2, 4, 8, 8), randn(4, 4, 3, 3), randn(4), randn(4))
    assert cut.saved_bytes < 0.7 * default.saved_bytes
    assert not any("native_group_norm" in name for name in cut.recomputed)


def test_a_repeated_normalisation_keeps_its_layout():
    def f(x, w):
        return F.layer_norm((x @ w).t(), (4,)).view(-1).sin().reshape(8, 4) @ w[:4]

    partitions(f, randn(4, 8), randn(8, 8))


def test_views_are_never_saved():
    _, cut = partitions(lambda x, w: (x @ w).t().reshape(-1)[3:].exp(), randn(4, 4), randn(4, 4))
    assert not operations(cut) & {"aten.t.default", "aten.view.default", "aten.slice.Tensor"}


def test_report_lists_bytes():
    _, cut = partitions(lambda x, w: (x @ w).sin(), randn(4, 4), randn(4, 4))
    assert "partition min_cut: 128 bytes saved beyond the inputs" in str(cut)


def test_backward_names_what_it_takes():
    graphs = []

    def keep(gm, inputs):
        graphs.append(gm)
        return gm.forward

    gm = torch.fx.symbolic_trace(lambda x, w: (x @ w).sin())
    aot_backend(keep)(gm, [randn(4, 4), randn(4, 4)])
    names = [n.name for n in graphs[1].graph.find_nodes(op="placeholder")]
    assert names == ["x", "w", "mm_default", "tangent_0"]


@pytest.mark.parametrize("seed", range(20))
def test_minimum_cut_equals_brute_force(seed):
    rng = random.Random(seed)
    size = 6
    edges = [
        (a, b, rng.randint(0, 9))
        for a in range(size)
        for b in range(size)
        if a != b and rng.random() < 0.5
    ]
    behind = sink_side(edges, 0, size - 1)
    late = [n in behind for n in range(size)]

    def cost(side):
        return sum(c for a, b, c in edges if not side[a] and side[b])

    sides = [(False, *middle, True) for middle in itertools.product((False, True), repeat=size - 2)]
    best = min(map(cost, sides))
    assert cost(late) == best
    assert sum(late) == min(sum(s) for s in sides if cost(s) == best)


@pytest.mark.parametrize("seed", range(20))
def test_minimum_cut_equals_networkx(seed):
    rng = random.Random(seed)
    size = 60
    pairs = [
        (a, b) for a in range(size) for b in range(size) if a < b < a + 9 and rng.random() < 0.5
    ]
    edges = [
        (a, b, None if a and b < size - 1 and rng.random() < 0.3 else rng.randint(0, 1 << 40))
        for a, b in pairs
    ]
    graph = networkx.DiGraph()
    graph.add_nodes_from((0, size - 1))
    for a, b, capacity in edges:
        graph.add_edge(a, b, **({} if capacity is None else {"capacity": capacity}))
    assert sink_side(edges, 0, size - 1) == networkx.minimum_cut(graph, 0, size - 1)[1][1]


def test_a_network_without_a_finite_cut_is_an_error():
    with pytest.raises(ValueError, match="must not be cut"):
        sink_side([(0, 1, None)], 0, 1)


def gradients(f, inputs, **choices):
    """Saved bytes beyond parameters, recomputed ops, gradients."""
    texts = {}
    compiled = aot_function(f, forward_compiler=run_eager, on_artifact=texts.__setitem__, **choices)
    torch.manual_seed(1)
    return texts, torch.autograd.grad(compiled(*inputs).sum(), inputs)


def deep(x, *weights):
    for w in weights:
        x = F.layer_norm(F.gelu(x @ w), x.shape[-1:])
    return x


def saved_bytes(texts):
    return int(texts["partition"].split(": ")[1].split(" ")[0])


def test_memory_budget_trades_bytes_for_time():
    inputs = [randn(64, 32), *(torch.nn.Parameter(randn(32, 32)) for _ in range(8))]
    full, expected = gradients(deep, inputs)
    previous = saved_bytes(full)
    for budget in (0.75, 0.5, 0.25, 0.0):
        texts, found = gradients(deep, inputs, activation_memory_budget=budget)
        assert saved_bytes(texts) < previous
        assert budget == 0 or saved_bytes(texts) <= budget * saved_bytes(full)
        previous = saved_bytes(texts)
        assert (
            "<- chosen" in texts["partition"] and f"memory budget {budget:g}" in texts["partition"]
        )
        for a, b in zip(found, expected):
            torch.testing.assert_close(a, b)


def test_pareto_curve_falls_in_bytes_and_rises_in_cost():
    curves = []

    def partition(view):
        curves.append(memory_pareto(view))
        return partition_min_cut(view)

    gradients(
        deep,
        [randn(64, 32), *(torch.nn.Parameter(randn(32, 32)) for _ in range(8))],
        partition=partition,
    )
    (curve,) = curves
    assert len(curve) >= 3
    heavy = curve[1:]  # the first is the default, which repeats normalisations more cheaply
    assert [c.cost for c in heavy] == sorted(c.cost for c in heavy)


@pytest.mark.parametrize("budget", [0, 0.5])
def test_dropout_below_the_budget_draws_the_same_mask_again(budget):
    inputs = [randn(64, 32), torch.nn.Parameter(randn(32, 32))]

    def f(x, w):
        return F.dropout((x @ w).sin() @ w, 0.5).square()

    compiled = aot_function(f, forward_compiler=run_eager, activation_memory_budget=budget)
    y = compiled(*inputs)
    mask = (y != 0).to(y.dtype)
    (expected,) = torch.autograd.grad(
        (((inputs[0] @ inputs[1]).sin() @ inputs[1]) * mask * 2).square().sum(), inputs[0]
    )
    torch.testing.assert_close(torch.autograd.grad(y.sum(), inputs[0])[0], expected)


@pytest.mark.parametrize("budget", [-0.1, 1.1, "half", True])
def test_a_budget_outside_its_range_is_an_error(budget):
    with pytest.raises(UserError, match=r"activation_memory_budget is .* from 0 .* to 1"):
        aot_backend(run_eager, activation_memory_budget=budget)


def test_a_budget_needs_the_minimum_cut():
    with pytest.raises(UserError, match="needs partition 'min_cut', not 'default'"):
        aot_backend(run_eager, partition="default", activation_memory_budget=0.5)


def test_unknown_partitioner_is_an_error():
    with pytest.raises(
        UserError, match=r"unknown partition 'best'; choose one of \['default', 'min_cut'\]"
    ):
        aot_backend(run_eager, partition="best")


def checkpointed(gm):
    """Marks everything up to the last matrix product as one checkpoint."""
    calls = [n for n in gm.graph.nodes if n.op == "call_function" and not n.meta.get("is_backward")]
    last = max(i for i, n in enumerate(calls) if n.target is torch.ops.aten.mm.default)
    for node in calls[:last]:
        node.meta["recompute"] = 7


@pytest.mark.parametrize("partition", ["default", "min_cut"])
@pytest.mark.parametrize("fallback_random", [False, True])
def test_checkpoints_are_computed_again(partition, fallback_random):
    def f(x, w):
        return F.dropout(torch.sigmoid(x @ w) @ w, 0.5).exp() @ w

    inputs = [randn(16, 16), torch.nn.Parameter(randn(16, 16))]
    texts, found = gradients(
        f, inputs, partition=partition, passes=[checkpointed], fallback_random=fallback_random
    )
    again = texts["partition"].split("recomputed: ")[1].split(", ")
    assert "mm_default" in again and "mm_default_2" not in again
    assert ("random_seed" in texts["partition"]) is not fallback_random
    if fallback_random:
        torch.manual_seed(1)
        for a, b in zip(found, torch.autograd.grad(f(*inputs).sum(), inputs)):
            torch.testing.assert_close(a, b)


def test_a_checkpointed_mask_is_the_same_in_backward():
    def f(x):
        return F.dropout(x.sin(), 0.5).square() @ torch.eye(16, dtype=x.dtype)

    x = randn(16, 16)
    compiled = aot_function(f, forward_compiler=run_eager, passes=[checkpointed])
    y = compiled(x)
    mask = (y != 0).to(y.dtype)
    expected = torch.autograd.grad((x.sin() * mask * 2).square().sum(), x)[0]
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], expected)


def test_small_statistics_are_kept_rather_than_reduced_again():
    _, cut = partitions(lambda x: x / x.square().mean(-1, keepdim=True).sqrt(), randn(8, 4096))
    assert not any("mean" in name for name in cut.recomputed)


STEPS = {
    "bias": lambda x, w, b: F.relu(x @ w + b),
    "exp": lambda x, w, b: ((x @ w).sigmoid() + b.exp()).sin(),
    "norm": lambda x, w, b: F.relu(F.layer_norm(x @ w, (8,), b.cos(), b)) @ w.detach(),
    "cast": lambda x, w, b: x.to(torch.float32) @ w.detach().float() * b.float(),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("partition", ["default", "min_cut"])
@pytest.mark.parametrize(
    "make", [torch.nn.Parameter, lambda t: t.requires_grad_()], ids=["parameter", "leaf"]
)
def test_a_step_between_forward_and_backward_is_as_in_eager(name, partition, make):
    """What eager does not keep may be written to; what it keeps may not."""
    x, outcomes = randn(16, 8, grad=False), []
    values = randn(8, 8, grad=False), randn(8, grad=False)
    call = aot_function(STEPS[name], forward_compiler=run_eager, partition=partition)
    for f in (STEPS[name], call):
        w, b = (make(t.clone()) for t in values)
        y = f(x, w, b)
        with torch.no_grad():
            b.sub_(0.5)
        try:
            outcomes.append(torch.autograd.grad(y.sum(), [w, b], allow_unused=True))
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            outcomes.append(None)
    torch.testing.assert_close(outcomes[1], outcomes[0])


def test_a_gradient_of_a_gradient_reaches_a_leaf_that_was_copied():
    x, w, b = randn(16, 8, grad=False), *(torch.nn.Parameter(randn(*s)) for s in ((8, 8), (8,)))
    f = STEPS["exp"]
    found = []
    for call in (f, aot_function(f, forward_compiler=run_eager)):
        first = torch.autograd.grad(call(x, w, b).sum(), [w, b], create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), [w, b]))
    torch.testing.assert_close(found[1], found[0])


def recorded_gradients(choices, which, *inputs):
    """Gradients of a program whose choices are recorded."""
    leaves = [torch.nn.Parameter(t.detach().clone()) for t in inputs]

    def f(x, w):
        return torch.dropout((x @ w).sin().exp(), 0.5, True).tanh() @ w

    options = {"partition": which, "choices": lambda text: choices}
    torch.manual_seed(0)
    aot_function(f, forward_compiler=run_eager, **options)(*leaves).sum().backward()
    return [leaf.grad for leaf in leaves]


def test_a_recorded_partition_is_repeated():
    inputs = [randn(8, 8), randn(8, 8)]
    first, other = Choices(), Choices()
    expected = recorded_gradients(first, partition_min_cut, *inputs)
    recorded_gradients(other, partition_default, *inputs)
    assert first.made[RULE] != other.made[RULE]
    for known in (first, other):
        again = Choices(known.made)
        found = recorded_gradients(again, partition_min_cut, *inputs)
        torch.testing.assert_close(found, expected)
        assert (again.made, again.stale) == (known.made, [])


@pytest.mark.parametrize(
    "change", [lambda n: n[:1], lambda n: [*n, "gone"], lambda n: n * 2, lambda n: []]
)
def test_values_that_backward_cannot_use_are_stale(change):
    inputs = [randn(8, 8), randn(8, 8)]
    first = Choices()
    expected = recorded_gradients(first, partition_min_cut, *inputs)
    again = Choices({RULE: change(first.made[RULE])})
    torch.testing.assert_close(recorded_gradients(again, partition_min_cut, *inputs), expected)
    assert again.made[RULE] == first.made[RULE]
    assert "backward can't be computed from" in again.stale[0]


def test_a_narrow_copy_of_an_input_is_kept_rather_than_a_wide_one():
    def normalise(x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    found = []

    def spy(view):
        found.append(partition_min_cut(view))
        return found[-1]

    gradients = []
    for f in (normalise, aot_function(normalise, forward_compiler=run_eager, partition=spy)):
        x = torch.linspace(-3, 3, 64 * 32).view(64, 32).bfloat16().requires_grad_()
        y = f(x)
        x.data.zero_()  # eager's backward reads its float32 copy
        gradients += torch.autograd.grad(y, x, torch.ones_like(y))
    assert torch.equal(*gradients)
    assert found[0].saved_bytes <= 64 * 32 * 2 + 64 * 4
