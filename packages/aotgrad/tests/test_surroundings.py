"""Modules, reducers, hooks and checkpoints around and inside compiled programs; where nodes come
from.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from aotgrad import aot_backend, aot_function, aot_module, run_eager
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

F64 = torch.float64


class Tied(nn.Module):
    """Two layers with one weight, batch statistics, an average and a counter written under
    no_grad.
    """

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        with torch.no_grad():
            self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.count += 1
        return self.second(torch.relu(self.norm(self.first(x))))


def train(model, call):
    seen = []
    for seed in range(3):
        x = torch.randn(
            5, 4, dtype=F64, generator=torch.Generator().manual_seed(seed), requires_grad=True
        )
        y = call(x)
        y = y[0] if isinstance(y, tuple) else y
        y.sum().backward()
        seen += [y, x.grad]
    return seen, [p.grad for p in model.parameters()], [(b, b._version) for b in model.buffers()]


@pytest.mark.parametrize("entry", ["module", "backend"])
def test_tied_parameters_and_written_buffers(entry):
    def build():
        torch.manual_seed(0)
        return Tied().double() if entry == "module" else torch.fx.symbolic_trace(Tied().double())

    eager, ours = build(), build()
    example = [torch.randn(5, 4, dtype=F64, requires_grad=True)]
    call = (
        aot_module(ours, forward_compiler=run_eager)
        if entry == "module"
        else aot_backend(run_eager)(ours, example)
    )
    torch.testing.assert_close(train(ours, call), train(eager, eager))


def layers(count=4):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(count)))


def test_reducer_gets_full_buckets_in_order():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        observed = []
        for wrap in (nn.Sequential, lambda m: aot_module(m, forward_compiler=run_eager)):
            model, buckets = layers(), []

            def hook(state, bucket, buckets=buckets):
                buckets.append((bucket.index(), len(bucket.gradients())))
                future = torch.futures.Future()
                future.set_result(bucket.buffer())
                return future

            parallel = nn.parallel.DistributedDataParallel(wrap(model), bucket_cap_mb=0.0004)
            parallel.register_comm_hook(None, hook)
            for step in range(3):
                parallel(torch.ones(2, 8) * step).sum().backward()
            observed.append([p.grad for p in model.parameters()])
            starts = [i for i, (index, _) in enumerate(buckets) if index == 0]
            steps = [buckets[i:j] for i, j in zip(starts, [*starts[1:], None])]
            # buckets follow what arrived first in the first step
            assert len(steps) == 3 and len(steps[-1]) > 1
            assert all(
                [i for i, _ in step] == list(range(len(step))) and sum(n for _, n in step) == 8
                for step in steps
            )
        torch.testing.assert_close(*observed)
    finally:
        dist.destroy_process_group()


def test_module_hooks():
    def run(wrap):
        log, model = [], layers(2)
        call = wrap(model)
        call.register_full_backward_pre_hook(lambda m, grads: log.append(grads[0].clone()))
        call.register_full_backward_hook(
            lambda m, into, out: log.append([into[0].clone(), out[0].clone()])
        )
        call.register_forward_hook(lambda m, inputs, out: out * 2)
        x = torch.ones(2, 8, requires_grad=True)
        call(x).sum().backward()
        return log, x.grad

    torch.testing.assert_close(
        run(lambda m: aot_module(m, forward_compiler=run_eager)), run(nn.Sequential)
    )


def test_saved_tensors_are_packed_and_unpacked_once_each():
    packed, unpacked = [], []
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    compiled = aot_function(lambda x, w: (x * w).exp(), forward_compiler=run_eager)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t) or t, lambda t: unpacked.append(t) or t
    ):
        y = compiled(x, w)
    assert packed and not unpacked
    y.sum().backward()
    assert len(unpacked) == len(packed)
    torch.testing.assert_close(x.grad, (x * w).exp() * w)


def test_an_error_of_backward_comes_in_backward():
    def f(x):
        y = x.exp()
        return y.add_(1)  # overwrites what backward reads

    x = torch.randn(3, requires_grad=True)
    y = aot_function(f, forward_compiler=run_eager)(x)
    torch.testing.assert_close(y, x.exp() + 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_selective_checkpoint():
    def policy(ctx, op, *args, **kwargs):
        return (
            CheckpointPolicy.MUST_SAVE
            if op is torch.ops.aten.mm.default
            else CheckpointPolicy.PREFER_RECOMPUTE
        )

    def f(x, w):
        contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
        return checkpoint(
            lambda a, b: (a @ b).sin().exp(), x, w, use_reentrant=False, context_fn=contexts
        )

    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    gradients = [
        torch.autograd.grad(call(x, w).sum(), (x, w))
        for call in (aot_function(f, forward_compiler=run_eager), f)
    ]
    torch.testing.assert_close(*gradients)


def test_nodes_name_line_module_and_forward_node():
    graphs = []

    def keep(gm, inputs):
        graphs.append(gm)
        return run_eager(gm, inputs)

    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh()))
    aot_module(model, forward_compiler=keep)(torch.randn(2, 4)).sum().backward()
    forward, backward = graphs
    (tanh,) = forward.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh.default)
    assert list(tanh.meta["nn_module_stack"].values())[1:] == [
        ("1", nn.Sequential),
        ("1.0", nn.Tanh),
    ]
    derivative = next(n for n in backward.graph.nodes if n.meta.get("forward_node") == tanh.name)
    assert derivative.meta["nn_module_stack"] == tanh.meta["nn_module_stack"]

    aot_function(lambda x: x.sin(), forward_compiler=keep)(torch.randn(2))
    (sin,) = graphs[-1].graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    assert f'File "{__file__}"' in sin.meta["stack_trace"] and "x.sin()" in sin.meta["stack_trace"]
