"""Calls at the edges of rules: results as eager mode's, with plain sizes and with one that is
symbolic, and its errors.
"""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from symshapes import FakeTensorError, FakeTensorMode, ShapeEnv
from symshapes.testing import check_static, check_symbolic, with_gradients

aten = torch.ops.aten
A = torch.arange

# Of a float tensor of shape (n, 3) and others made from it.
CALLS = {
    "slices at both ends": lambda x: (x[5:], x[:5], x[-5:], x[:-5], x[1:3], x[-3:-1], x[3:1],
    x[2:2], x[:, -9:9], x[::3]),
    "slices of slices": lambda x: (x[1:][1:], x[:-1][:-1], x[1:-1], x[:3, 1:], x[1::2][:1]),
    "positions": lambda x: (x[0], x[-1], x[1], x.select(1, -3), x.narrow(0, 1, 1),
    x.narrow(1, 3, 0)),
    "new dims": lambda x: (x.unsqueeze(0), x.unsqueeze(-1), x.unsqueeze(-3), x[None, :, None],
    x.unsqueeze(1).squeeze(1)),
    "no dims to drop": lambda x: (x.squeeze(), x.squeeze(0), x.squeeze(-1), x[:, :1].squeeze(1),
    x[:1].squeeze()),
    "expanded": lambda x: (x.expand(2, -1, 3), x.expand(-1, -1), x[:, :1].expand(-1, 4),
    x[:, :1].expand(-1, 1), x[:, :0].t()),
    "viewed": lambda x: (x.view(-1), x.view(-1, 1), x.view(1, -1, 3), x.view(x.shape[0], -1),
    x.t().reshape(-1), x.view(3, -1)),
    "viewed without elements": lambda x: (x[:, :0].view(x.shape[0], 0), x[:, :0].reshape(0, 5),
    x[:0].view(-1, 3)),
    "transposed": lambda x: (x.t() + 1, x.t() * x.t(), x.t().exp(), x.mT.contiguous(),
    x.transpose(-1, -2).clone()),
    "broadcast": lambda x: (x + x[:1], x[:, :1] * x[:1], x + x[0], x.t() + x[:, 0],
    torch.where(x > 0, x[:1], 0.0)),
    "joined": lambda x: (torch.cat([x, x[:1]]), torch.cat([x, x[:0]]), torch.stack([x, x], -1),
    torch.cat([x, x], 1)),
    "padded": lambda x: (F.pad(x, (1, 2)), F.pad(x, (-1, 0, 0, 3)), F.pad(x, (0, 0, -1, 1))),
    "cut": lambda x: (*x.split([1, 2], 1), *x.chunk(2, 1), *x.unbind(1), *x.tensor_split(2, 1)),
    "repeated": lambda x: (x.repeat(2, 1), x.repeat(1, 0), x.repeat(2, 1, 1), x.tile(2),
    x.repeat_interleave(2, 0)),
    "reduced": lambda x: (x.sum(), x.mean(0), x.amax(1, True), x.sum((0, 1), True), x.prod(0),
    x.argmax(0), *x.max(1), x.any()),
    "reduced to doubles": lambda x: (x.sum(dtype=torch.float64), x.int().sum(0), (x > 0).sum(),
    x.int().prod(), x.cumsum(0)),
    "clamped": lambda x: (x.clamp(0), x.clamp(max=1), x.clamp(x[:1]), x.clamp(None, x),
    x.t().clamp(0, 1), x.int().clamp(0, 1)),
    "rounded division": lambda x: (x // 2, torch.div(x, 2, rounding_mode="trunc"), x.int() // 2,
    x.int() / 2, x % 2),
    "made": lambda x: (x.new_zeros(x.shape[0]), x.new_ones(2, x.shape[0]), torch.arange(x.shape[0]),
    torch.full_like(x, 2),
                       torch.full((x.shape[0],), True), torch.eye(x.shape[0]),
                       torch.zeros(x.shape[0], 0)),
    "numbers of sizes": lambda x: (x * x.shape[0], x + x.shape[0] / 2, torch.full((), x.shape[0]),
    x.shape[0] - x.int(),
                                   torch.full((), x.shape[0], dtype=torch.float32)),
    "products": lambda x: (x @ x.t(), x.t() @ x, x @ x[0], x[None] @ x.t()[None],
    torch.addmm(x[0], x, x.new_ones(3, 3)),
                           torch.addmm(x, x, x.new_ones(3, 3)), F.linear(x, x[:2]),
                           x[:, :0] @ x[:, :0].t()),
    "normalised": lambda x: (F.layer_norm(x, (3,)), F.layer_norm(x, (3,), x[0], x[1]), x.softmax(0),
    x.log_softmax(-1),
                             F.normalize(x), F.softmax(x[:, 0], -1)),
    "classes": lambda x: (F.one_hot(x.int().long().abs() % 3, 3), F.embedding(x.long() * 0, x[:2])),
    "distances": lambda x: (torch.cdist(x, x[:2]), F.pairwise_distance(x, x),
    F.cosine_similarity(x, x)),
    "parts replaced": lambda x: (x.select_scatter(x[0], 0, -1), x.slice_scatter(x[1:], 0, 1),
    x.slice_scatter(x[:, :2], 1, -2),
                                 x.t().select_scatter(x[:, 0], 0, 2), x[:3].diagonal_scatter(x[0])),
    "sorted": lambda x: (*x.sort(0), *x.topk(2, 1), x.argsort(1), *x.kthvalue(1, 1), *x.median(1),
    *x.mode(1)),
    "other dtypes": lambda x: (x.half() + 1, x.bfloat16() * x, x.int() + 1.5, x > 0, (x > 0) + 1,
    x.long() ** 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_metadata_is_eagers(name):
    def make(n):
        return [A(n * 3.0).view(n, 3)]

    check_symbolic(CALLS[name], make, 4, (2, 3, 7))
    check_static(CALLS[name], make, 4)
    if not name.startswith("viewed"):
        check_static(CALLS[name], lambda n: [A(n * 3.0).view(3, n).t()], 4)


@pytest.mark.parametrize("channels, groups", [(1, 1), (2, 1), (2, 2), (16, 1), (16, 16), (4, 2)])
@pytest.mark.parametrize("kernel", [1, 3])
def test_strides_of_convolutions_and_gradients(kernel, channels, groups):
    last = torch.channels_last
    for batch, formats, stride in itertools.product((1, 2, 16), ((0, 0), (1, 0), (0, 1)), (1, 2)):
        if stride == 2 and kernel == 3:
            continue

        def make(_, batch=batch, formats=formats):
            x, weight = (
                torch.randn(batch, channels, 4, 3),
                torch.randn(channels, channels // groups, kernel, kernel),
            )
            given = [
                y.contiguous(memory_format=last) if is_last else y
                for y, is_last in zip((x, weight), formats)
            ]
            return [y.requires_grad_() for y in given]

        call = with_gradients(
            lambda x, w, stride=stride: F.conv2d(x, w, None, stride, 1, 1, groups)
        )
        check_static(call, make)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_bags(mode, ends):
    for op, padding in itertools.product(
        (aten._embedding_bag, aten._embedding_bag_forward_only), (-1, 1)
    ):

        def call(weight, indices, offsets, op=op, padding=padding):
            return op(weight, indices, offsets, False, mode, False, None, ends, padding)

        for dtype in (torch.float32, torch.float64):
            check_static(
                call,
                lambda n, dtype=dtype: [
                    torch.rand(n, 3, dtype=dtype),
                    A(n),
                    torch.tensor([0, 2, n]),
                ],
            )


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "op", [aten.native_batch_norm.default, aten._native_batch_norm_legit_functional.default]
)
def test_statistics_of_batches(op, training):
    for shape in ((4, 3), (4, 3, 5, 2)):
        check_static(lambda x, s, op=op: op(x, s, s, s.clone(), s.clone(), training, 0.1, 1e-5),
                     lambda n, shape=shape: [torch.rand(shape), torch.rand(3)])  # fmt: skip


def F32(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


M, V, B = F32(4, 3), F32(3), F32(2, 4, 3)
D, I, H = M.double(), M.long(), M.bfloat16()
FEW = torch.tensor([4, 8], dtype=torch.int32)
GROUPS = F32(8, 16, dtype=torch.bfloat16), F32(2, 16, 8, dtype=torch.bfloat16)
# What eager mode refuses, of a function and its operands.
REFUSED = {
    "mm of vectors": (torch.mm, M, V),
    "mm of batches": (torch.mm, B, B.mT),
    "mm of sizes": (torch.mm, M, M),
    "mm of dtypes": (torch.mm, M, D.t()),
    "mm of integers and floats": (torch.mm, I, M.t()),
    "bmm of matrices": (torch.bmm, M, M.t()),
    "bmm of batches": (torch.bmm, B, F32(3, 3, 4)),
    "bmm of dtypes": (torch.bmm, B, B.mT.double()),
    "mv of dtypes": (torch.mv, M, V.double()),
    "mv of matrices": (torch.mv, M, M.t()),
    "dot of sizes": (torch.dot, V, M[:, 0]),
    "addmm of dtypes": (torch.addmm, V.double(), M, F32(3, 3)),
    "addmm of products of dtypes": (torch.addmm, V, M, F32(3, 3).double()),
    "addmm of sizes": (torch.addmm, F32(2), M, F32(3, 3)),
    "addmm of ranks": (torch.addmm, F32(1, 1, 3), M, F32(3, 3)),
    "addmv of ranks": (torch.addmv, M, M, V),
    "baddbmm of ranks": (torch.baddbmm, F32(1, 1, 1, 1), B, B.mT),
    "addbmm of ranks": (torch.addbmm, F32(1, 1, 4), B, B.mT),
    "addr of ranks": (torch.addr, F32(1, 1, 1), V, V),
    "softmax of a dim below": (lambda x: x.log_softmax(-3), M),
    "sums along a dim below": (lambda x: x.cumsum(-3), M),
    "sorted along a dim outside": (lambda x: x.sort(2), M),
    "matmul of numbers": (torch.matmul, M, F32()),
    "linear of sizes": (F.linear, M, M.t()),
    "linear with a bias of another dtype": (F.linear, M, M, F32(4).double()),
    "groups that end in int64": (torch._grouped_mm, *GROUPS, FEW.long()),
    "groups whose ends are a matrix": (torch._grouped_mm, *GROUPS, FEW[None]),
    "groups without ends": (torch._grouped_mm, *GROUPS),
    "softmax of integers": (lambda x: x.softmax(0), I),
    "softmax of bools": (lambda x: torch.softmax(x, -1), I > 0),
    "softmax of a dim": (lambda x: x.softmax(2), M),
    "layer_norm of a weight's dtype": (lambda x, w: F.layer_norm(x, (3,), w), D, V),
    "layer_norm of a half weight": (lambda x, w: F.layer_norm(x, (3,), w, w), M, H[0]),
    "layer_norm of a bias's dtype": (lambda x, w: F.layer_norm(x, (3,), None, w), M, V.double()),
    "layer_norm of sizes": (lambda x: F.layer_norm(x, (4,)), M),
    "layer_norm of a weight's size": (lambda x, w: F.layer_norm(x, (3,), w), M, F32(4)),
    "group_norm of a weight's dtype": (lambda x, w: F.group_norm(x, 1, w), M, V.double()),
    "batch_norm of a weight's dtype": (lambda x, w: F.batch_norm(x, None, None, w, w, True), D, V),
    "convolution of dtypes": (F.conv1d, F32(1, 2, 5), F32(2, 2, 3).double()),
    "convolution with a bias of another dtype": (F.conv1d, F32(1, 2, 5), F32(2, 2, 3),
    F32(2).double()),
    "convolution of channels": (F.conv1d, F32(1, 2, 5), F32(2, 3, 3)),
    "convolution with a large kernel": (F.conv1d, F32(1, 2, 2), F32(2, 2, 3)),
    "a new dim outside": (lambda x: x.unsqueeze(3), M),
    "a new dim below": (lambda x: x.unsqueeze(-4), M),
    "a dim outside": (lambda x: x.sum(2), M),
    "dims twice": (lambda x: x.sum((0, -2)), M),
    "a transposition outside": (lambda x: x.transpose(0, 2), M),
    "a position outside": (lambda x: x[:, 3], M),
    "a position below": (lambda x: x.select(1, -4), M),
    "a slice of no step": (lambda x: aten.slice.Tensor(x, 0, 0, 2, 0), M),
    "a slice of a dim outside": (lambda x: aten.slice.Tensor(x, 2, 0, 2), M),
    "narrow beyond the end": (lambda x: x.narrow(1, 1, 3), M),
    "expanded sizes": (lambda x: x.expand(4, 4), M),
    "expanded to fewer dims": (lambda x: x.expand(3), M),
    "expanded by a negative size": (lambda x: x.expand(-1, 4, 3), M),
    "views of other sizes": (lambda x: x.view(5, -1), M),
    "views of two unknown sizes": (lambda x: x.view(-1, -1), M),
    "views across strides": (lambda x: x.t().view(-1), M),
    "views of nothing": (lambda x: x[:, :0].view(0, -1), M),
    "views of nothing in size": (lambda x: x[:, :0].view(x.shape[0], 2), M),
    "broadcast": (torch.add, M, F32(2)),
    "joined sizes": (lambda x, y: torch.cat([x, y]), M, F32(4, 2)),
    "joined ranks": (lambda x, y: torch.cat([x, y]), M, V),
    "stacked sizes": (lambda x, y: torch.stack([x, y]), M, M.t()),
    "parts of other sizes": (lambda x: x.split([1, 1], 1), M),
    "reductions of nothing": (lambda x: x[:, :0].amax(1), M),
    "positions in nothing": (lambda x: x[:, :0].argmax(1), M),
    "means of integers": (lambda x: x.mean(), I),
    "negated bools": (lambda x: -x, I > 0),
    "differences of bools": (lambda x: x - x, I > 0),
    "shifts of floats": (lambda x: x << 1, M),
    "conjunctions of floats": (lambda x: x & x, M),
    "hardswish of integers": (F.hardswish, I),
    "logarithms of integers' sigmoids": (F.logsigmoid, I),
    "complex numbers of two dtypes": (torch.polar, M, D),
    "transposed convolutions of channels": (F.conv_transpose1d, F32(1, 2, 5), F32(3, 2, 3)),
    "rows at a matrix of positions": (lambda x, i: x.index_select(0, i), M, I * 0),
    "a position outside, replaced": (lambda x: x.select_scatter(x[0], 0, 9), M),
    "a position replaced by a number": (lambda x: x.select_scatter(x[0, 0], 0, 1), M),
    "a position of a dim outside, replaced": (lambda x: x.select_scatter(x[0], 2, 0), M),
    "a slice replaced by less": (lambda x: x.slice_scatter(x[:1], 0, 1), M),
    "a slice replaced by more": (lambda x: x.slice_scatter(x, 0, 1), M),
    "a diagonal replaced by a number": (lambda x: x.diagonal_scatter(x[0, :1]), M),
    "a diagonal of one dim replaced": (lambda x: x.diagonal_scatter(x[0], 0, 1, 1), M),
    "remainders by 0": (lambda x: (x % 1, x % 0), I),
    "quotients by 0": (lambda x: (x // 3, x // -1, x // 0), I),
    "negative powers of integers": (lambda x: (x**2, x**0, x**-1), I),
    "floats written to integers": (lambda x: x.clone().add_(1.5), I),
    "larger results written": (lambda x: x[:1].clone().add_(x), M),
    "clamps without bounds": (lambda x: x.clamp(), M),
    "classes of floats": (lambda x: F.one_hot(x, 3), M),
    "rows of floats": (lambda x, y: F.embedding(x, y), M, M),
    "masks of floats": (lambda x: torch.where(x, x, x), M),
    "gathered ranks": (lambda x, y: x.gather(1, y), M, I[0]),
    "scattered dtypes": (lambda x, y, z: x.scatter(1, y, z), M, I * 0, D),
}  # fmt: skip
# Refused by torch's own decompositions and meta kernels, with errors of their own.
OF_OTHER_TYPES = ("matmul of numbers", "views across strides", "parts of other sizes",
    "reductions of nothing",
                  "positions in nothing", "clamps without bounds", "shifts of floats",
                  "conjunctions of floats",
                  "hardswish of integers", "logarithms of integers' sigmoids")  # fmt: skip


@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_mode_refuses_is_refused(name, is_symbolic):
    function, *operands = REFUSED[name]
    try:
        function(*operands)
        raise AssertionError("eager mode takes it")
    except Exception as error:
        kind = type(error)
    mode = FakeTensorMode(ShapeEnv())
    fakes = [mode.from_real(x, dynamic_dims="auto" if is_symbolic else ()) for x in operands]
    with pytest.raises(Exception) as caught, mode:
        function(*fakes)
    kinds = (kind, RuntimeError) if kind is NotImplementedError else kind  # as meta kernels say it
    assert name in OF_OTHER_TYPES or issubclass(caught.type, kinds), caught.value


def test_a_symbolic_size_beside_a_plain_one_may_be_one():
    mode = FakeTensorMode(ShapeEnv())
    rows = mode.from_real(torch.ones(3, 4), dynamic_dims=(0,))
    with mode:
        assert torch.mm(torch.ones(4, 1), rows[2:]).shape == (4, 4)


@pytest.mark.parametrize(
    "name",
    ["mm of sizes", "bmm of batches", "addmm of sizes", "convolution of channels", "broadcast"],
)
def test_operands_of_two_devices_are_refused(name):
    shapes = {
        "mm of sizes": (torch.mm, (4, 3), (3, 2)), "bmm of batches": (torch.bmm, (2, 4, 3),
        (2, 3, 4)),
        "addmm of sizes": (lambda x, y: torch.addmm(x, y, y), (3, 3), (3, 3)),
        "convolution of channels": (F.conv1d, (1, 2, 5), (2, 2, 3)),
        "broadcast": (torch.add, (4, 3), (3,)),
    }  # fmt: skip
    function, first, second = shapes[name]
    mode = FakeTensorMode()
    with mode, pytest.raises(FakeTensorError, match="one device"):
        function(mode.empty(first, device="cuda:0"), mode.empty(second))


def test_results_of_other_sizes_strides_and_numbers_are_kept_apart():
    """What one call gave is not given to a call that differs in a size, a stride or a symbolic
    number alone.
    """
    mode = FakeTensorMode(ShapeEnv())
    x, y = (mode.from_real(torch.randn(n, 3), dynamic_dims=[0]) for n in (4, 5))
    with mode:
        assert len({str(z.exp().shape) for z in (x, y)}) == 2
        fixed = mode.empty((3, 1))
        for call in (
            lambda n: fixed.new_zeros([n]),
            lambda n: fixed.repeat(1, n),
            lambda n: fixed.expand(3, n),
            torch.arange,
        ):
            assert len({str(call(z.shape[0]).shape) for z in (x, y)}) == 2
        wide, tall = mode.empty((3, 4)), mode.empty((4, 3)).t()
        for call in (torch.exp, torch.sigmoid, torch.tanh):
            assert [call(z).stride() for z in (wide, tall)] == [(4, 1), (1, 3)]
    assert not mode.shape_env.guards


LAYOUTS = {
    "plain": lambda: torch.randn(4, 3, 8, 5),
    "gaps between places": lambda: torch.randn(4, 3, 8, 10)[..., ::2],
    "gaps between rows": lambda: torch.randn(8, 3, 8, 5)[::2],
    "channels last": lambda: torch.randn(4, 3, 8, 5).contiguous(memory_format=torch.channels_last),
    "channels last, gaps": lambda: torch.randn(4, 6, 8, 5).contiguous(
        memory_format=torch.channels_last
    )[:, ::2],
    "in another order": lambda: torch.randn(5, 8, 3, 4).permute(3, 2, 1, 0),
    "expanded": lambda: torch.randn(4, 3, 1, 5).expand(4, 3, 8, 5),
    "3 dims, gaps": lambda: torch.randn(4, 3, 16)[:, :, ::2],
    "2 dims, gaps": lambda: torch.randn(4, 6)[:, ::2],
    "2 dims turned": lambda: torch.randn(3, 4).t(),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_batch_norm(name, alike, training):
    def layouts(x, gradient, *per_channel):
        found = aten.native_batch_norm(x, *per_channel, training, 0.1, 1e-5)
        mean, scale = per_channel[2:]
        rest = (per_channel[0], mean, scale, mean, scale, training, 1e-5, [True] * 3)
        found += (*aten.native_batch_norm_backward(gradient, x, *rest),)
        return [(t.shape, t.stride()) for t in found]

    x, gradient = LAYOUTS[name](), LAYOUTS[name]()
    given = x, gradient if alike else gradient.contiguous(), *(torch.ones(3) for _ in range(4))
    mode = FakeTensorMode()
    fakes = [mode.from_real(t) for t in given]
    with mode:
        found = layouts(*fakes)
    assert found == layouts(*given)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_batch_norm_on_a_gpu(name, training):
    """As an H200 has them: the order of dimensions, and a gradient in one of two formats."""
    x = LAYOUTS[name]()
    with FakeTensorMode():
        fake = torch.empty_strided(x.shape, x.stride(), device="cuda")
        per_channel = [torch.ones(3, device="cuda") for _ in range(4)]
        found, *_ = aten.native_batch_norm(fake, *per_channel, training, 0.1, 1e-5)
        rest = (per_channel[0], *per_channel[:2], *per_channel[:2], training, 1e-5, [True] * 3)
        gradient, *_ = aten.native_batch_norm_backward(fake, fake, *rest)
    assert found.stride() == torch.empty_like(x).stride()
    order = torch.channels_last if name == "channels last" and training else torch.contiguous_format
    assert gradient.stride() == torch.empty_like(x, memory_format=order).stride()


def _images(*sizes):
    return torch.empty(sizes, device="cuda").to(memory_format=torch.channels_last)


ON_A_GPU = {
    "glu": lambda: aten.glu_backward(torch.ones(2, 2, 2, 4, device="cuda"), _images(2, 4, 2, 4), 1),
    "padding": lambda: aten.replication_pad2d_backward(
        torch.ones(5, 3, 4, 5, device="cuda"), _images(5, 3, 4, 4), [0, 1, 0, 0]
    ),
    "dropout": lambda: aten.native_dropout_backward(
        torch.ones(2, 3, 4, 5, device="cuda").mT, _images(2, 3, 5, 4) > 0, 2.0
    ),
    "much output padding": lambda: aten.convolution(
        _images(2, 2, 4, 4), _images(2, 2, 4, 5), None, [3, 2], [1, 2], [4, 4], True, [2, 3], 2
    ),
}


@pytest.mark.parametrize("name", ON_A_GPU)
def test_dense_results_on_a_gpu(name):
    """Whatever the operands' formats, as an H200 has them."""
    with FakeTensorMode():
        found = ON_A_GPU[name]()
    assert found.is_contiguous()


@pytest.mark.parametrize("source, target", [("cpu", "cuda:0"), ("cuda:0", "cpu")])
@pytest.mark.parametrize("options", [{}, {"memory_format": torch.contiguous_format}])
@pytest.mark.parametrize("shape", [(), (3, 4)])
def test_copy_to_a_device_alone(source, target, options, shape):
    with FakeTensorMode():
        x = torch.ones((), device=source).expand(shape)
        found = aten._to_copy(x, device=target, **options)
    assert found is not x and str(found.device) == target and found.is_contiguous()
