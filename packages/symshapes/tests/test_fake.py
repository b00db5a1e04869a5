"""FakeTensor and FakeTensorMode: conversion, devices, constants, data-dependent ops, caching."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from symshapes import (
    DataDependentError,
    FakeTensor,
    FakeTensorError,
    FakeTensorMode,
    ShapeEnv,
    expr_of,
    hint_of,
    stride_relations,
    symbolic_strides,
)
from torch.testing._internal.two_tensor import TwoTensor


def test_from_real_keeps_metadata() -> None:
    mode = FakeTensorMode()
    t = torch.randn(3, 4, dtype=torch.float64).t().requires_grad_()
    f = mode.from_real(t, source="L['t']")
    assert (f.shape, f.stride(), f.dtype, f.device, f.requires_grad, f.is_leaf) == (
        t.shape, t.stride(), t.dtype, t.device, True, True,
    )  # fmt: skip
    assert f.fake_mode is mode and f.source == "L['t']"
    g = mode.from_real(t * 2)
    assert g.requires_grad and not g.is_leaf


def test_dynamic_dimensions_get_symbols_and_symbolic_strides() -> None:
    mode = FakeTensorMode()
    f = mode.from_real(torch.randn(3, 4, 5), source="L['x']", dynamic_dims=[0, -1])
    assert str(f.shape) == "torch.Size([s0, 4, s1])" and [str(s) for s in f.stride()] == [
        "4*s1",
        "s1",
        "1",
    ]
    assert f.is_contiguous() and not mode.shape_env.guards
    assert list(mode.shape_env.sources.values()) == [["L['x'].size(0)"], ["L['x'].size(2)"]]


def test_symbolic_strides_keep_layout() -> None:
    mode = FakeTensorMode()
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    f = mode.from_real(image, dynamic_dims="auto")
    assert f.is_contiguous(memory_format=torch.channels_last) and not f.is_contiguous()
    assert [str(s) for s in f.stride()] == ["s1*s2*s3", "1", "s1*s3", "s1"]
    rows = mode.from_real(torch.randn(8, 10)[:, :4], dynamic_dims=[0])
    assert [int(s) for s in rows.stride()] == [10, 1]


def test_relations_of_strides_to_sizes() -> None:
    assert stride_relations((2, 3, 4), (12, 4, 1)) == [{1}, {2}, set()]
    # one row of a wider buffer says nothing, and an empty dimension counts as one
    assert stride_relations((1, 8), (99, 1))[0] == {0, 1}
    assert stride_relations((3, 0, 5), (5, 5, 1))[0] >= {1}


def test_strides_that_sizes_do_not_explain_are_independent() -> None:
    size, stride = sympy.symbols("size stride", integer=True)
    given = {"independent": lambda dim: stride}
    assert symbolic_strides((2, 8), (10, 1), (2, size), **given) == [stride, 1]
    assert symbolic_strides((3, 2, 8), (16, 8, 1), (3, 2, size), **given) == [2 * size, size, 1]
    # the outer stride follows the inner one; a relation that failed before is not used
    assert symbolic_strides((3, 2, 8), (20, 10, 1), (3, 2, size), **given) == [
        2 * stride,
        stride,
        1,
    ]
    assert symbolic_strides((2, 8), (8, 1), (2, size), [(), ()], **given) == [stride, 1]


def test_sizes_zero_and_one_are_never_symbols() -> None:
    mode = FakeTensorMode()
    assert tuple(mode.from_real(torch.empty(1, 0, 7), dynamic_dims="auto").shape[:2]) == (1, 0)


def test_given_symbols_are_used() -> None:
    mode = FakeTensorMode()
    batch = mode.shape_env.create_symbol(4, "batch")
    a = mode.from_real(torch.randn(4, 2), symbols={0: batch})
    b = mode.from_real(torch.randn(4, 2), symbols={0: batch})
    assert expr_of((a + b).shape[0]) == expr_of(batch) and not mode.shape_env.guards


@pytest.mark.parametrize("dim", [3, -4])
def test_bad_dimension(dim: int) -> None:
    with pytest.raises(IndexError, match=f"dimension {dim} of a tensor with 3 dimensions"):
        FakeTensorMode().from_real(torch.randn(2, 2, 2), dynamic_dims=[dim])


def test_unsupported_layout() -> None:
    with pytest.raises(FakeTensorError, match="sparse"):
        FakeTensorMode().from_real(torch.eye(3).to_sparse())


def test_ops_run_outside_the_mode_and_factories_inside() -> None:
    mode = FakeTensorMode()
    x = mode.from_real(torch.randn(2, 3))
    assert isinstance(F.relu(x) @ x.t(), FakeTensor)
    assert type(torch.ones(2)) is torch.Tensor
    with mode, mode:
        assert isinstance(torch.ones(2) + torch.rand(2), FakeTensor)
        assert isinstance(torch.arange(3, dtype=torch.int32), FakeTensor)
    assert type(torch.ones(2)) is torch.Tensor


def test_shape_errors_are_eagers() -> None:
    mode = FakeTensorMode()
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        mode.empty((2, 3)) + mode.empty((2, 4))
    with pytest.raises(RuntimeError):
        mode.empty((2, 3)) @ mode.empty((2, 4))
    with pytest.raises(RuntimeError):
        mode.empty((2, 3)).view(7)
    with pytest.raises(IndexError):
        mode.empty((2, 3)).sum(2)


def test_real_operand_is_refused() -> None:
    with pytest.raises(FakeTensorError, match="real tensor"):
        FakeTensorMode().empty((2,)) + torch.ones(2)


def test_real_operand_is_refused_inside_the_mode() -> None:
    real = torch.ones(2)
    with FakeTensorMode() as mode, pytest.raises(FakeTensorError, match="real tensor"):
        mode.empty((2,)) + real


def test_subclasses_that_wrap_fakes_decide_first() -> None:
    mode = FakeTensorMode()
    pair = TwoTensor(mode.empty((2, 3)), mode.empty((2, 3)))
    assert type(mode.empty((2, 3)) + pair) is TwoTensor and type(pair.relu()) is TwoTensor
    with mode:
        assert type(mode.empty((2, 3)) * pair) is TwoTensor


def test_integers_alone_remember_the_size_they_are_made_of() -> None:
    mode = FakeTensorMode(ShapeEnv())
    size = mode.shape_env.create_symbol(8, upper=100)
    with mode:
        assert expr_of(torch.full((), size).known_number) == expr_of(size)
        assert torch.full((), size, dtype=torch.float32).known_number is None
        assert torch.full((1,), size).known_number is None


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)])
def test_symbolic_strides_answer_questions_of_formats(order: tuple[int, ...]) -> None:
    sizes = [(2, 4, 5, 6)[d] for d in order]
    real = torch.rand(sizes).permute([order.index(d) for d in range(4)])
    fake = FakeTensorMode().from_real(real, dynamic_dims="auto")
    nodes = [[n.node if isinstance(n, torch.SymInt) else fake.shape[0].node.wrap_int(n)
        for n in part]
             for part in (fake.shape, fake.stride())]  # fmt: skip
    first = nodes[0][0]
    assert bool(first.is_channels_last_strides_2d(*nodes).expr) is (order == (0, 2, 3, 1))
    assert not first.is_channels_last_strides_3d(*nodes).expr
    assert bool(first.is_contiguous(*nodes).expr) is real.is_contiguous()
    assert bool(first.is_channels_last_contiguous_2d(*nodes).expr) is real.is_contiguous(
        memory_format=torch.channels_last
    )


def test_two_modes_are_refused() -> None:
    with pytest.raises(FakeTensorError, match="two modes"):
        FakeTensorMode().empty((2, 3)) @ FakeTensorMode().empty((3, 2))


def test_devices() -> None:
    mode = FakeTensorMode()
    x = mode.empty((2, 3), device="cuda:0")
    y = mode.empty((3, 4), device="cuda:0")
    assert (x @ y).device == torch.device("cuda", 0)
    assert (x * mode.empty(())).device.type == "cuda"
    with pytest.raises(FakeTensorError, match="one device"):
        x + mode.empty((2, 3))
    with mode:
        assert x.to("cpu").device.type == "cpu"
        assert torch.zeros(3, device="cuda").device.type == "cuda"


def test_constants_have_values() -> None:
    mode = FakeTensorMode()
    with mode:
        assert torch.tensor(3).item() == 3
        assert torch.tensor([1, 2, 3])[1].item() == 2
        assert torch.tensor([1.5, 2.0]).tolist() == [1.5, 2.0]
        t = torch.tensor(3)
        t.add_(1)
        with pytest.raises(DataDependentError):
            t.item()


POSITIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t[1:-1:2],
    lambda t: torch.cat([t[:1] - 1, t[::2]]),
    lambda t: (t // 3).reshape(4, 3).T.flip(0),
    lambda t: t.to(torch.int32)[t % 5],
    lambda t: (t[None] <= t[:, None]).sum(1),
    lambda t: torch.stack([t, t * 2]).amax(0),
]


@pytest.mark.parametrize("function", POSITIONS)
def test_integers_of_arange_are_known(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    expected = function(torch.arange(12))
    with FakeTensorMode(ShapeEnv()):
        assert function(torch.arange(12)).tolist() == expected.tolist()
        assert function(torch.arange(12, device="meta")).known_value is None  # type: ignore[attr-defined]


def test_integers_of_arange_on_a_device_are_known() -> None:
    with FakeTensorMode(ShapeEnv()):
        t = torch.arange(6, device="cuda").narrow(0, 1, 4).to(torch.bfloat16)
        found: Any = torch.cat([t, t + 2]).to(torch.int64) // 2
        assert found.device.type == "cuda" and found.known_value.tolist() == [
            0,
            1,
            1,
            2,
            1,
            2,
            2,
            3,
        ]
        assert torch.div(t, 3).known_value is None  # type: ignore[attr-defined]


def test_integers_that_floats_hold_are_known() -> None:
    with FakeTensorMode(ShapeEnv()):
        t = torch.arange(200).to(torch.float32)
        distance = t[-1] - t[0] + 4 * t.new_ones(()).numel()
        assert distance.item() == 203
        assert torch.arange(distance, 0, -100, dtype=torch.int64).tolist() == [203, 103, 3]
        for unknown in (t / 3, t.sin(), t * 1e9, torch.add(t, t, alpha=0.5)):
            assert unknown.known_value is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "dtype, bound", [(torch.bfloat16, 256), (torch.float16, 2048), (torch.float32, 1 << 24)]
)
def test_integers_on_a_device_are_known_up_to_the_first_that_a_float_lacks(
    dtype: torch.dtype, bound: int
) -> None:
    with FakeTensorMode(ShapeEnv()):
        first = torch.arange(bound // 2 - 4, bound // 2, device="cuda").to(dtype)
        assert (first + (bound // 2)).tolist() == [bound - 4, bound - 3, bound - 2, bound - 1]
        assert (-first - (bound // 2)).tolist() == [4 - bound, 3 - bound, 2 - bound, 1 - bound]
        for unknown in (first + (bound // 2 + 1), first + (bound // 2 + 4), first * bound):
            assert unknown.known_value is None  # type: ignore[attr-defined]


def test_what_is_not_known_of_integers() -> None:
    with FakeTensorMode(ShapeEnv()):
        t = torch.arange(4)
        for unknown in (torch.empty_like(t), torch.randint_like(t, 9), torch.arange(2000)):
            assert unknown.known_value is None  # type: ignore[attr-defined]
        row = t[1:]
        t.mul_(2)
        assert row.known_value is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [1, 8, 9])
def test_small_constants_have_values(count: int) -> None:
    with FakeTensorMode(ShapeEnv()):
        known = torch.tensor(list(range(count))).known_value  # type: ignore[attr-defined]
    assert (known is not None) == (count <= 8)


@pytest.mark.parametrize("place", [0, 1])
def test_masks_beside_other_indices(place: int) -> None:
    mask, rows = torch.tensor([True, False, True]), torch.tensor([1, 0])
    mode = FakeTensorMode(ShapeEnv(allow_unbacked=True))

    def choose(x: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x[(mask, rows) if place == 0 else (rows, mask)]

    x = torch.randn(3, 3, 4)
    with mode:
        fake = choose(*map(mode.from_real, (x, mask, rows)))
    real = choose(x, mask, rows)
    assert fake.dim() == real.dim() and fake.shape[1:] == real.shape[1:]


def test_products_of_groups_keep_their_dtype() -> None:
    mode = FakeTensorMode(ShapeEnv())
    half = torch.bfloat16
    given = (
        torch.randn(8, 16, dtype=half),
        torch.randn(2, 16, 8, dtype=half),
        torch.tensor([4, 8], dtype=torch.int32),
    )
    with mode:
        a, b, ends = map(mode.from_real, given)
        assert torch._grouped_mm(a, b, ends, out_dtype=half).dtype is half
        with pytest.raises(RuntimeError, match="dtype"):
            torch._grouped_mm(a, b, ends, out_dtype=torch.float32)


def test_item_needs_unbacked_symbols() -> None:
    mode = FakeTensorMode()
    with pytest.raises(
        DataDependentError, match=r"_local_scalar_dense.*\n.*test_fake.py"
    ) as caught:
        mode.empty(()).item()
    assert "item()" in caught.value.user_line


def test_unbacked_results() -> None:
    env = ShapeEnv(allow_unbacked=True)
    mode = FakeTensorMode(env)
    x = mode.empty((3, 4))
    n = mode.empty((), dtype=torch.int64)
    assert n.item().node.expr == n.item().node.expr
    assert isinstance(x.sum().item(), torch.SymFloat)
    places = x.nonzero()
    assert places.shape[1] == 2 and expr_of(places.shape[0]) in env.unbacked
    assert env.bounds(expr_of(places.shape[0])) == (0, 12)
    picked = x[x > 0]
    assert (picked * 2 + 1).sum().shape == ()
    assert x.unique().dim() == 1
    n.add_(1)
    assert len({str(n.item()), str(n.item())}) == 1


def test_cached_results_are_fresh_tensors() -> None:
    mode = FakeTensorMode()
    x = mode.empty((2, 3))
    a, b = x.exp(), x.exp()
    assert mode.cache is not None and mode.cache.hits >= 1
    assert a is not b and not torch._C._is_alias_of(a, b)
    assert x.view(6)._base is None or torch._C._is_alias_of(x.view(6), x)


def test_cache_tells_numbers_apart() -> None:
    mode = FakeTensorMode()
    x = mode.empty((2,), dtype=torch.int64)
    assert (x * 2).dtype is torch.int64
    assert (x * 2.0).dtype is torch.float32
    assert (x * True).dtype is torch.int64


def test_guards_are_recorded_although_results_are_cached() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(env)
    a, b = (mode.from_real(torch.randn(4), dynamic_dims=[0]) for _ in range(2))
    with env.suppress_guards():
        a + b
    assert not env.guards
    a + b
    assert [str(g.expr) for g in env.guards] == ["Eq(s0, s1)"]


def test_views_share_storage_and_versions() -> None:
    mode = FakeTensorMode()
    x = mode.empty((2, 3))
    v = x[:, 1]
    assert torch._C._is_alias_of(v, x) and v._base is x
    before = x._version
    v.mul_(2)
    assert x._version == before + 1


def test_in_place_result_is_self() -> None:
    x = FakeTensorMode().empty((2, 3))
    assert x.add_(1) is x and x.mul_(x) is x
    with pytest.raises(RuntimeError):
        x.add_(FakeTensorMode.empty(x.fake_mode, (4, 2, 3)))
    with pytest.raises(RuntimeError):
        FakeTensorMode().empty((2,), dtype=torch.int64).add_(1.5)


def test_parameter_and_deepcopy() -> None:
    mode = FakeTensorMode()
    x = mode.from_real(torch.nn.Parameter(torch.randn(2, 3)))
    twin = copy.deepcopy(x.detach())
    assert twin.shape == x.shape and twin is not x
    assert repr(x) == "FakeTensor(shape=(2, 3), dtype=float32, device=cpu)"


def test_module_with_fake_parameters_trains() -> None:
    mode = FakeTensorMode()
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()
    )
    real = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    state = {k: mode.from_real(v) for k, v in real.items()}
    x = mode.from_real(torch.randn(5, 3, 8, 8), dynamic_dims=[0])
    with mode:
        out = torch.func.functional_call(net, state, (x,))
        out.sum().backward()
    assert hint_of(out.shape[0]) == 5 and str(out.shape) == "torch.Size([s0, 144])"
    assert state["0.weight"].grad is not None and state["0.weight"].grad.shape == (4, 3, 3, 3)
    assert not mode.shape_env.guards


@pytest.mark.parametrize(
    "call",
    [
        lambda x, t: x.to("cpu", torch.float64),
        lambda x, t: x.to("cpu", torch.float32),
        lambda x, t: torch.nn.functional.cross_entropy(x, t),
        lambda x, t: torch.fft.ifft(x),
        lambda x, t: x.tensor_split(2)[1],
    ],
)
def test_composite_operators_in_inference_mode(call):
    """They reached the meta kernels whole, with a second device or without an end."""
    x, t = torch.ones(2, 3), torch.tensor([0, 1])
    mode = FakeTensorMode(ShapeEnv())
    with torch.inference_mode():
        real, fake = call(x, t), call(mode.from_real(x), mode.from_real(t))
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
    assert (fake.is_inference(), fake.is_conj()) == (real.is_inference(), real.is_conj())


@pytest.mark.parametrize("op", [torch.std, torch.var, torch.std_mean, torch.var_mean])
@pytest.mark.filterwarnings("error")
def test_symbolic_sizes_give_no_warning_of_degrees_of_freedom(op) -> None:
    mode = FakeTensorMode()
    x = mode.from_real(torch.ones(4, 3), dynamic_dims="auto")
    with mode:
        op(x, 0)
