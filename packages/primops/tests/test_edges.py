"""Arguments at the edges of rules, against eager: sizes 0 and 1, dims from the end, other dtypes,
options that are rare.
"""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from primops import DEFAULT, decompose, decomposition_report
from primops.decompositions.creation import place
from primops.testing import check_against_eager, trace

aten = torch.ops.aten
FLOATS = (torch.float32, torch.bfloat16, torch.float64)
HALVES = (torch.bfloat16, torch.float16)
INTS = (torch.bool, torch.uint8, torch.int64)


def made(*shape, dtype=torch.float32):
    """Distinct numbers of both signs, in an order that no rule knows; for bool and uint8 their low
    bits.
    """
    count = torch.Size(shape).numel()
    numbers = (torch.arange(count) * 37 + 11) % 53 - 26
    if not dtype.is_floating_point:
        return (
            (
                numbers % 2
                if dtype is torch.bool
                else numbers % 100
                if dtype is torch.uint8
                else numbers
            )
            .to(dtype)
            .view(shape)
        )
    return (numbers.double() / 8 + torch.arange(count) / 512).to(dtype).view(shape)


def check(function, *inputs, calls=False):
    """By prims alone (unless ``calls``), in both ways to round where there is a choice."""
    for numerics in ("fast", "eager") if any(x.dtype in HALVES for x in inputs) else ("fast",):
        gm = check_against_eager(function, *inputs, numerics=numerics)
        assert calls or not decomposition_report(gm).externs, decomposition_report(gm).externs


def with_gradient(function):
    """``function`` of one tensor, then the gradient of a weighted sum of its float results."""

    def step(x):
        leaf = x.detach().requires_grad_()
        results = function(leaf)
        results = results if isinstance(results, tuple) else (results,)
        loss = sum((r * (r.detach().sin() + 2)).sum() for r in results if r.requires_grad)
        return (*(r.detach() for r in results), *torch.autograd.grad(loss, leaf))

    return step


# Windows
# --------------------------------------------------------------------------------------------------

# kernel, stride, padding, ceil_mode: with a last window that begins in the padding, at its edge,
# and before it
WINDOWS = [
    (2, 2, 0, False), (3, 2, 1, False), (3, 2, 1, True), (2, 2, 1, True), (2, 3, 1, True),
    (3, 1, 0, True), (1, 3, 0, True),
    (4, 3, 2, True), (5, 5, 0, True),
]  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_average_pool(window):
    for length, counts_padding in itertools.product((5, 6, 7), (True, False)):
        pool = partial(
            F.avg_pool1d,
            kernel_size=window[0],
            stride=window[1],
            padding=window[2],
            ceil_mode=window[3],
        )
        check(with_gradient(partial(pool, count_include_pad=counts_padding)), made(2, 3, length))
    check(with_gradient(pool), made(2, 3, 7, dtype=torch.bfloat16))
    kernel, stride, padding, ceil_mode = window
    for divisor in (None, 3):
        options = {"count_include_pad": False, "divisor_override": divisor, "ceil_mode": ceil_mode}
        flat = partial(
            F.avg_pool2d,
            kernel_size=(kernel, 2),
            stride=(stride, 1),
            padding=(padding, 1),
            **options,
        )
        check(with_gradient(flat), made(2, 6, 5))
    solid = partial(
        F.avg_pool3d,
        kernel_size=(1, kernel, 2),
        stride=(2, stride, 1),
        padding=(0, padding, 1),
        **options,
    )
    check(with_gradient(solid), made(1, 1, 3, 6, 4))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_max_pool(window):
    kernel, stride, padding, ceil_mode = window
    for length, dilation in itertools.product((9, 10), (1, 2)):
        options = {"dilation": dilation, "ceil_mode": ceil_mode, "return_indices": True}
        check(with_gradient(partial(F.max_pool1d, kernel_size=kernel, stride=stride,
            padding=padding, **options)),
              made(2, 2, length))  # fmt: skip
        pool = partial(
            F.max_pool2d,
            kernel_size=(kernel, 2),
            stride=(stride, 2),
            padding=(padding, 1),
            **options,
        )
        check(with_gradient(pool), made(2, length, 5))
    check(with_gradient(partial(F.max_pool3d, kernel_size=(2, kernel, 1), stride=(1, stride, 2),
        padding=(1, padding, 0))),
          made(1, 1, 3, 10, 3))  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_adaptive_pools(size):
    for pool in (F.adaptive_avg_pool1d, partial(F.adaptive_max_pool1d, return_indices=True)):
        check(with_gradient(lambda x, pool=pool: pool(x, size)), made(2, 3, 7))
    for pool in (F.adaptive_avg_pool2d, partial(F.adaptive_max_pool2d, return_indices=True)):
        check(with_gradient(lambda x, pool=pool: pool(x, (size, 2))), made(2, 7, 5))
    check(with_gradient(lambda x: F.adaptive_avg_pool3d(x, (2, size, 1))), made(1, 1, 3, 7, 2))


# Sizes
# --------------------------------------------------------------------------------------------------

MODES = {
    "nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "linear": (1,), "bilinear": (2,),
    "bicubic": (2,), "trilinear": (3,)
}  # fmt: skip


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_interpolation(mode, align):
    if align and mode.startswith("nearest"):
        return
    options = {} if mode.startswith("nearest") else {"align_corners": align}
    for spatial in MODES[mode]:
        x = made(
            1, 2, *(4, 3, 2)[:spatial], dtype=torch.bfloat16 if spatial == 1 else torch.float32
        )
        for size in ((1, 1, 1), (8, 3, 4), (3, 7, 5)):
            check(
                with_gradient(partial(F.interpolate, size=size[:spatial], mode=mode, **options)), x
            )
        for again in (None, False, True):
            scale = partial(
                F.interpolate, scale_factor=1.7, mode=mode, recompute_scale_factor=again, **options
            )
            check(with_gradient(scale), x)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_interpolation_of_bytes(mode):
    check(
        lambda x: F.interpolate(x, size=(7, 3), mode=mode),
        made(1, 2, 4, 5, dtype=torch.uint8),
        calls=True,
    )


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "constant"])
def test_padding(mode):
    for pad in ((2, 1), (0, 3), (3, 0), (-1, 2), (2, -2), (-1, -1), (0, 0)):
        check(with_gradient(lambda x, pad=pad: F.pad(x, pad, mode=mode)), made(2, 3, 5))
        if mode != "circular" or min(pad) >= 0:
            check(
                with_gradient(lambda x, pad=pad: F.pad(x, (1, 2, *pad), mode=mode)),
                made(2, 2, 5, 6),
            )
    check(with_gradient(lambda x: F.pad(x, (1, 2, 2, 0, 1, 1), mode=mode)), made(1, 1, 3, 4, 5))
    check(with_gradient(lambda x: F.pad(x, (2, 1), mode=mode)), made(2, 3, 5, dtype=torch.bfloat16))


# Functions of elements and of few tensors
# -------------------------------------------------------------------------------------

LOSSES = {
    "mse": F.mse_loss, "l1": F.l1_loss, "smooth l1": F.smooth_l1_loss,
    "smooth l1 at 0": partial(F.smooth_l1_loss, beta=0.0),
    "smooth l1 at 2": partial(F.smooth_l1_loss, beta=2.0), "huber": partial(F.huber_loss,
    delta=0.5),
    "soft margin": lambda x, y, **o: F.soft_margin_loss(x, y.sign(), **o), "kl": F.kl_div,
    "kl of logarithms": partial(F.kl_div, log_target=True), "poisson": partial(F.poisson_nll_loss,
    full=True),
    "poisson of counts": partial(F.poisson_nll_loss, log_input=False),
    "logits": lambda x, y, **o: F.binary_cross_entropy_with_logits(x, y.abs() / 8, **o),
}  # fmt: skip


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_loss(name, reduction):
    for dtype in (torch.float32, torch.bfloat16):
        target = made(4, 3, dtype=dtype).flip(0)
        check(
            with_gradient(lambda x, t=target: LOSSES[name](x, t, reduction=reduction)),
            made(4, 3, dtype=dtype),
            calls=True,
        )


def windows_of_signals(dtype):
    for window in (
        torch.hann_window,
        torch.hamming_window,
        torch.blackman_window,
        torch.bartlett_window,
    ):
        for length, periodic in itertools.product((0, 1, 3, 9), (True, False)):
            yield window(length, periodic=periodic, dtype=dtype)


def ranges(dtype):
    yield torch.arange(0, 3, 0.7, dtype=dtype)
    yield torch.arange(2, -1, -0.5, dtype=dtype)
    for start, end, step in ((0, 7, 3), (7, 0, -3), (-5, 6, 2), (3, 3, 1), (6, 0, -2)):
        yield torch.arange(start, end, step, dtype=dtype)
    for steps in (0, 1, 2, 5):
        yield torch.linspace(-1.5, 2, steps, dtype=dtype)
        yield torch.logspace(-1, 1.5, steps, base=3, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("maker", [windows_of_signals, ranges])
def test_made_numbers(maker, dtype):
    check(lambda x: [y + x for y in maker(dtype)], torch.zeros((), dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("given", [torch.int32, torch.float16, torch.float64])
def test_steps_between_tensors(given, dtype):
    def steps(a, b):
        for count in (0, 1, 4):
            yield torch.linspace(a, b, count, dtype=dtype)
            yield torch.linspace(a, 2.5, count, dtype=dtype)
            yield torch.logspace(-1, b, count, dtype=dtype)

    check(
        lambda a, b: list(steps(a, b)), torch.tensor(1, dtype=given), torch.tensor(3, dtype=given)
    )


def test_devices_keep_their_number():
    assert place("cuda:1") == torch.device("cuda:1") and place("cpu") == torch.device("cpu")
    assert place(None, torch.device("meta")) == torch.device("meta")


ANY = (*FLOATS, *INTS, torch.int32)
MOVES = {
    "repeat": lambda x: (x.repeat(2, 1, 3), x.repeat(0, 1), x.repeat(1, 1)),
    "slices": lambda x: (x[:, 1:9], x[-9:2], x[5:], x[2:1], x[:, -2:-1], x[::2, 1::3],
    x.narrow(1, 4, 0)),
    "splits": lambda x: (*x.split(2), *x.split([1, 0, 2]), *x.chunk(5, 1), *x.tensor_split(4),
    *x[:0].split(2), *x.unbind(1)),
    "diagonals": lambda x: tuple(x.diagonal(k, *dims) for k in (-9, -2, 0, 1, 3,
    9) for dims in ((0, 1), (1, 0), (-1, -2))),
    "vectors on diagonals": lambda x: (torch.diag_embed(x), torch.diag_embed(x, 0, -2, -1),
    torch.diag_embed(x, 0, 1, 2)),
    "turned": lambda x: tuple(x.rot90(k, dims) for k in range(-1, 4) for dims in ((0, 1), (1, 0),
    (-1, 0))),
    "rolled": lambda x: (x.roll(1), x.roll((-7, 2), (0, 1)), x.roll(9, -1), x[:0].roll(1, 0)),
    "resized": lambda x: (aten.resize.default(x, [2, 5]), aten.resize_as.default(x, x[:2, :3]),
    aten.resize.default(x, [0])),
    "triangles": lambda x: tuple(f(x, k) for f in (torch.tril, torch.triu) for k in (-5, -1, 0, 2,
    7)),
    "masked": lambda x: (x.masked_fill(x > 0, 2), x.masked_fill(x > 0, 0),
    x.masked_fill(x > 0, torch.ones((), dtype=x.dtype))),
    "padded": lambda x: (F.pad(x, (1, 2), value=2), F.pad(x, (-1, 0, 0, 3), value=1),
    F.pad(x, (-3, -1))),
    "blocks": lambda x: torch.block_diag(x, x[0], x[1, 2], x[:1]),
    "stacked": lambda x: (torch.stack([x, x], -1), torch.cat([x, x[:0]]),
    torch.cat([x, x[:, :2]], -1), torch.hstack([x, x])),
    "flipped": lambda x: (x.flip(0, 1), x.flip(-1), x[:1].flip(0), x.flip([])),
    "other sizes": lambda x: (x[:, None].expand(3, 2, -1), x.unflatten(1, (2, -1)), x.movedim(0, 1),
    x.t().flatten()),
    "extremes": lambda x: (x.amax(0), x.amin((0, 1)), x.amax(), x.amin(-1, True), *x.max(0),
    *x.min(1, keepdim=True), x.max()),
    "places of extremes": lambda x: (x.argmax(), x.argmin(-1), x.argmax(0, True), x[0, 0].argmax(0),
    x[0, 0].amax()),
    "counted": lambda x: (x.count_nonzero(), x.count_nonzero(0), x.any(1), x.all(0, True), x.any(),
    x[:0].all(0), x[:0].any()),
    "diagonal replaced": lambda x: tuple(x.diagonal_scatter(x.diagonal(k) * 0, k) for k in (-1, 0,
    2)),
    "rows replaced": lambda x: (x.select_scatter(x[0], 0, -1),
    x.slice_scatter(x[:, :2], 1, -3, 9, 2), x.index_fill(1, AT, 1)),
    "added at places": lambda x: aten._unsafe_masked_index_put_accumulate(x[0], MASK, [FAR],
    x[1, :3]),
}  # fmt: skip
AT, FAR, MASK = torch.tensor([0, 3]), torch.tensor([1, 9, -9]), torch.tensor([True, True, False])


@pytest.mark.parametrize("dtype", ANY, ids=str)
@pytest.mark.parametrize("case", MOVES)
def test_elements_move(case, dtype):
    x = made(3, 4, dtype=dtype)
    if dtype is torch.bool and case in ("places of extremes", "added at places"):
        return
    check(MOVES[case], x, calls=True)
    if dtype is torch.float32:
        check(MOVES[case], x)
        if case != "resized":  # a matter of memory: only contiguous tensors come here
            check(MOVES[case], made(4, 3).t())


def test_chunks_of_tensors_side_by_side():
    for dtype, dim, chunks in itertools.product(
        (torch.float32, torch.bfloat16), (0, -2), (1, 2, 3)
    ):
        inputs = made(3, 2, dtype=dtype), made(5, 4, dtype=dtype), made(1, 1, dtype=dtype)
        check(lambda *x, dim=dim, chunks=chunks: aten._chunk_cat(list(x), dim % 2, chunks), *inputs)


def test_blocks_take_the_widest_dtype():
    check(
        lambda a, b, c: torch.block_diag(a, b, c),
        made(2, 3, dtype=torch.int32),
        made(2, dtype=torch.bfloat16),
        made(1, 1),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_counts_per_part(dtype):
    if dtype.is_floating_point:
        check(lambda x: (torch.histc(x, 5, -2, 3), torch.histc(x, 1, 0, 1)), made(40, dtype=dtype))


@pytest.mark.parametrize("given", [torch.float64, torch.int32, torch.bfloat16])
def test_memory_is_written_in_the_dtype_of_the_memory(given):
    src = made(2, 3).to(given)
    check(lambda x, src: torch.as_strided_scatter(x * 1, src, (2, 3), (1, 4)), made(3, 4), src)
    check(lambda x, src: torch.as_strided_scatter(x * 1, src, (2, 3), (1, 2)), made(2, 3), src)


@pytest.mark.parametrize("numbers", [FLOATS, INTS])
def test_angles(numbers):
    for dtype in numbers:
        x = made(6, dtype=dtype)
        check(
            torch.angle,
            torch.cat([x, torch.tensor([0.0, -0.0, float("nan")]).to(dtype)])
            if x.is_floating_point()
            else x,
        )


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax, aten._safe_softmax])
def test_softmax_of_few_elements(function):
    for shape, dim in (((), 0), ((0, 3), 1), ((3, 0), -1), ((1,), 0), ((2, 3), -2)):
        for dtype, result in (
            (torch.float32, None),
            (torch.bfloat16, None),
            (torch.bfloat16, torch.float32),
        ):
            check(
                lambda x, dim=dim, result=result: function(x, dim, dtype=result),
                made(*shape, dtype=dtype),
            )


@pytest.mark.parametrize("dtype", FLOATS)
def test_bilinear_forms(dtype):
    inputs = (
        made(4, 2, dtype=dtype) / 4,
        made(4, 3, dtype=dtype) / 4,
        made(5, 2, 3, dtype=dtype) / 4,
    )
    check(lambda a, b, w: F.bilinear(a, b, w), *inputs)


@pytest.mark.parametrize("decimals", [-1, 0, 1, 3])
def test_rounded_to_places(decimals):
    check(lambda x: x.round(decimals=decimals), made(30) * 7)


@pytest.mark.parametrize("base", INTS)
def test_powers_that_stay_calls(base):
    """Eager refuses negative powers of integers, and takes powers of bools in a dtype of its
    own.
    """
    rule = DEFAULT.get("pow.Tensor_Scalar")
    assert rule(made(3, dtype=base), True if base is torch.bool else -1) is NotImplemented


# Optimizers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("betas", [(0.0, 0.9), (0.9, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_adam_without_averages(dtype, betas):
    x = made(2, 3, dtype=dtype)
    options = {"lr": 0.1, "beta1": betas[0], "beta2": betas[1], "weight_decay": 0.1, "eps": 1e-6}

    def step(x, g, m, v, step):
        found = aten._fused_adam(
            [x], [g], [m], [v], [], [step], **options, amsgrad=False, maximize=False
        )
        return [t for group in found for t in group]

    check(step, x, x * 2, x + 1, x * x, torch.tensor(3.0))


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"])
def test_a_step_is_left_out_where_a_gradient_is_not_finite(name, found):
    state = [made(2, 3) * scale for scale in (1, 2, 3)]
    squares = [x * x for x in state]
    options = {"weight_decay": 0.1, "maximize": False, "lr": 0.1}
    more = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(found)}
    if name.startswith("_fused_adam"):
        options |= {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "amsgrad": True}
        lists = [
            state[:2],
            state[1:],
            [state[0] + 1, state[1] + 1],
            squares[:2],
            squares[1:],
            [torch.tensor(3.0), torch.tensor(1.0)],
        ]
    elif name == "_fused_sgd":
        options |= {"momentum": 0.9, "dampening": 0.1, "nesterov": False, "is_first_step": False}
        lists = [state[:2], state[1:], [state[0] + 1, state[1] + 1]]
    else:
        options |= {"lr_decay": 0.01, "eps": 1e-6}
        lists = [state[:2], state[1:], squares[:2], [torch.tensor(3.0), torch.tensor(1.0)]]
    flat, sizes = [x for group in lists for x in group], [len(group) for group in lists]

    def step(*tensors):
        rest = iter(tensors)
        groups = [[next(rest) for _ in range(size)] for size in sizes]
        results = getattr(aten, name)(*groups, **options, **more)
        return [x for group in results for x in group]

    check(step, *flat)


@pytest.mark.parametrize("gradients", [torch.float32, torch.bfloat16, torch.float64])
def test_scaled_gradients(gradients):
    def step(a, b, found, inverse):
        scaled, found = aten._amp_foreach_non_finite_check_and_unscale([a, b], found, inverse)
        return (*scaled, found)

    for last in (1.0, float("inf"), float("nan")):
        a, b = made(3, dtype=gradients), torch.tensor([0.5, last], dtype=gradients)
        check(step, a, b, torch.zeros(1), torch.tensor([0.3]))


# Random numbers
# --------------------------------------------------------------------------------------------------


def drawn(name, *args, **options):
    torch.manual_seed(7)
    return DEFAULT.get(name)(*args, **options)


@pytest.mark.parametrize(
    "low, high", [(0, 2), (-3, 4), (0, 64), (100, 400), (-(2**40), 2**40), (5, 6)]
)
def test_drawn_integers_fill_their_range(low, high):
    got = drawn("randint.low", low, high, [4000], dtype=torch.int64, device=torch.device("cpu"))
    assert got.dtype is torch.int64 and got.min() >= low and got.max() < high
    wanted = torch.full((), (low + high - 1) / 2, dtype=torch.float64)
    assert (got.double().mean() - wanted).abs() <= (high - low) * 0.025
    if high - low <= 400:
        assert set(got.tolist()) == set(range(low, high))
    assert 0.4 < (got % 2).double().mean() < 0.6 or high - low < 2 or (high - low) % 2


@pytest.mark.parametrize("dtype", FLOATS)
def test_draws_have_the_dtype_of_their_tensor(dtype):
    x = made(3000, dtype=dtype)
    for name in ("normal_functional", "log_normal", "exponential", "cauchy", "uniform", "random"):
        assert drawn(name, x).dtype is dtype, name
    assert drawn("geometric", x, 0.3).dtype is dtype and drawn("bernoulli.p", x, 0.3).dtype is dtype
    assert (drawn("log_normal", x, 1.0, 0.5).double().log().mean() - 1).abs() < 0.05


@pytest.mark.parametrize(
    "dtype, most",
    [(torch.float16, 2048), (torch.bfloat16, 256), (torch.bool, 1), (torch.int8, 126)],
)
def test_random_numbers_are_counted_exactly(dtype, most):
    x = torch.zeros(20_000, dtype=dtype)
    whole = drawn("random", x)
    assert whole.dtype is dtype and whole.double().min() == 0 and whole.double().max() == most
    if dtype is not torch.bool:
        assert set(drawn("random.to", x, 5).tolist()) == set(range(5))
        assert set(drawn("random.from", x, 3, 9).tolist()) == set(range(3, 9))
        assert set(drawn("random.from", x, **{"from": 3, "to": 9}).tolist()) == set(range(3, 9))


@pytest.mark.parametrize(
    ("p", "train"), [(0.5, False), (0.0, True), (0.0, None), (1.0, True), (1.0, False)]
)
def test_dropout_of_nothing_or_all_draws_nothing(p, train):
    check(lambda x: aten.native_dropout(x, p, train), made(4, 5))
    names = {
        str(node.target)
        for node in decompose(
            trace(lambda x: aten.native_dropout(x, p, train), made(4, 5))
        ).graph.nodes
    }
    assert not any("uniform" in name for name in names)


def test_gradients_of_dropout_have_a_float_dtype():
    rule = DEFAULT.get("native_dropout_backward")
    assert (
        rule(made(3, dtype=torch.int64), torch.tensor([True, False, True]), 2.0) is NotImplemented
    )


@pytest.mark.parametrize(
    "op, kwargs",
    [
        (aten.clamp_max.default, {"max": 0.5}),
        (aten.sum.dim_IntList, {"keepdim": True, "dim": [1]}),
        (aten.norm.ScalarOpt_dim, {"p": 2, "dim": [0]}),
        (aten.add.Scalar, {"other": 2.0, "alpha": 3}),
    ],
    ids=["clamp_max", "sum", "norm", "add"],
)
def test_arguments_by_keyword(op, kwargs):
    """A graph written by hand may name arguments that traces pass by position."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, 3, device="meta")
    node = graph.call_function(op, (x,), kwargs)
    example = made(2, 3)
    expected = op(example, **kwargs)
    node.meta["val"] = expected.to("meta")
    graph.output((node,))
    gm = decompose(torch.fx.GraphModule(torch.nn.Module(), graph))
    assert not decomposition_report(gm).externs
    torch.testing.assert_close(torch.fx.Interpreter(gm).run(example), (expected,))
