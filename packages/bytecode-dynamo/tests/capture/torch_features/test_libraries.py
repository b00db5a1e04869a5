"""Parts of torch that are Python around tensors, in one graph: distributions, fx modules,
collation, higher-order operators.

PYTEST_DONT_REWRITE: a rewritten assertion is another program.
"""

from __future__ import annotations

import bytecode_dynamo as bd
import pytest
import torch
import torch.distributions as D
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.fx._symbolic_trace import is_fx_tracing
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate


class Wrapper:
    def __init__(self, t):
        self.t = t

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args, kwargs = pytree.tree_map_only(Wrapper, lambda w: w.t, (args, kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, Wrapper, func(*args, **kwargs))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.b(self.a(x).relu())


torch.manual_seed(0)
NETS = [Net() for _ in range(3)]
TRACED = torch.fx.symbolic_trace(Net())


def normal(x):
    d = D.Normal(torch.zeros(3), torch.ones(3))
    return d.log_prob(x), d.entropy(), D.kl_divergence(d, d), D.Independent(d, 1).log_prob(x)


def categorical(x):
    d = D.Categorical(logits=x)
    return (
        d.log_prob(torch.zeros(4, dtype=torch.long)),
        d.probs,
        d.entropy(),
        D.Bernoulli(probs=x.sigmoid()).logits,
    )


def transformed(x):
    return D.TransformedDistribution(D.Normal(torch.zeros(3), 1.0), [D.ExpTransform()]).log_prob(
        x.exp()
    )


def collated(x):
    return default_collate([{"a": x, "b": 1}, {"a": x + 1, "b": 2}])


def ensemble(x):
    params, _ = stack_module_state(NETS)
    return vmap(lambda p, a: functional_call(NETS[0], p, (a,)), in_dims=(0, None))(params, x)


def cond(x):
    return torch.ops.higher_order.cond(
        x.sum() > 0, lambda a: (a.sin(),), lambda a: (a.cos(),), (x,)
    )


def while_loop(x):
    return torch.ops.higher_order.while_loop(
        lambda i, a: i.sum() < 5, lambda i, a: (i + 1, a + 1), (torch.zeros(()), x), ()
    )


def sizes(x):
    torch._check_is_size(x.shape[0])
    return (
        x + 1,
        torch.overrides.is_tensor_method_or_property(torch.Tensor.add),
        torch.distributed.is_gloo_available(),
    )


def class_namespace(x):
    return x + 1, "t" in Wrapper.__dict__, "__init__" in Wrapper.__dict__, len(Net.__dict__)


def asked_for_tracers(x):
    if torch._C._are_functorch_transforms_active() or is_fx_tracing():
        return x - 1
    return x + 1


@pytest.mark.parametrize(
    "f",
    (
        normal, categorical, transformed, collated, ensemble, cond, while_loop, sizes,
        class_namespace,
        lambda x: TRACED(x) + TRACED.a(x).sum(), lambda x: torch.sin(torch.add(Wrapper(x),
        Wrapper(x))).t,
        asked_for_tracers, lambda x: torch._shape_as_tensor(x) * 2,
    ),
)  # fmt: skip
def test_in_one_graph(check, f):
    check(f, lambda: (torch.linspace(-1, 2, 12).reshape(4, 3),))
    assert bd.counters["graphs"] == 1


def test_lazy_modules_with_symbolic_sizes():
    def make():
        layers = nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2)
        return nn.Sequential(*layers)

    results = []
    for wrap in (lambda m: m, bd.optimize("eager", fullgraph=True, dynamic=True)):
        torch.manual_seed(0)
        module = wrap(make())
        results.append([module(torch.randn(2 + k, 3, 8, 8)) for k in range(3)])
    assert all(map(torch.equal, *results))
    assert bd.counters["graphs"] == 1


# -- what is raised when data is bad ---------------------------------------------------------------


def asserting(x, log):
    log.append("before")
    assert (x < 3).all(), f"too large: {tuple(x.shape)}"
    x.add_(1)
    log.append("between")
    if (x > 3).any():
        raise ValueError("second")
    log.append("after")
    return x * 2


def catching(x, log):
    try:
        if torch.isnan(x).any():
            raise ValueError("nan")
    except ValueError as error:
        log.append(str(error))
        return x + 1
    return x * 2


def writing_much(x, log):
    for k in range(12):
        log[k].add_(1)
    if x.sum() > 3:
        raise KeyError("k")
    return x + log[0]


def otherwise(x, log):
    if not torch.isfinite(x).all():
        log.append("not finite")
        raise ValueError("not finite")
    else:
        return x + 1


@pytest.mark.parametrize("f", (asserting, catching, writing_much, otherwise))
def test_branches_that_raise_are_asserted(alike, f):
    region = bd.optimize("eager")(f)
    for value in (1.0, 1.0, 2.5, 9.0, float("nan"), 1.0):
        outcomes = []
        for call in (f, region):
            x, log = torch.full((3,), value), [torch.zeros(3) for _ in range(12)]
            try:
                result = call(x, log)
            except Exception as error:
                result = (type(error), str(error))
            outcomes.append((result, x, log))
        assert alike(*outcomes), [outcome[0] for outcome in outcomes]
    assert bd.counters["graph_breaks"] == (f is writing_much)
    assert not bd.counters["fallbacks"]


def test_backends_that_do_not_run_effects_get_no_assertion():
    def backend(gm, examples):
        return gm.forward

    backend.host_effects = False
    region = bd.optimize(backend)(asserting)
    assert torch.equal(region(torch.ones(3), []), torch.full((3,), 4.0))
    assert bd.counters["graph_breaks"] == 2


def flexible_attention(x, bias):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    documents = torch.arange(16) // 5
    near = create_block_mask(
        lambda b, h, q, k: documents[q] == documents[k], None, None, 16, 16, device="cpu"
    )
    causal = flex_attention(
        x,
        x * 2,
        x,
        score_mod=lambda s, b, h, q, k: torch.where(q >= k, s + bias[h, q - k], -torch.inf),
    )
    grouped = flex_attention(x, x[:, :2], x[:, 2:], block_mask=near, scale=0.5, enable_gqa=True)
    return (
        causal,
        grouped,
        flex_attention(x.transpose(1, 2), x.transpose(1, 2), x.transpose(1, 2)).stride(),
    )


@pytest.mark.filterwarnings("ignore")
def test_flexible_attention_is_one_graph():
    x, bias = torch.randn(1, 4, 16, 8), torch.randn(4, 16)
    expected = flexible_attention(x, bias)
    found = bd.optimize("eager", fullgraph=True)(flexible_attention)(x, bias)
    assert found[2] == expected[2]
    torch.testing.assert_close(found[:2], expected[:2])
