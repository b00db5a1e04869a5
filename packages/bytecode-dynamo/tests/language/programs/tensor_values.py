# ruff: noqa
"""Tensors made of values, questions about tensors, their subclasses and attributes, and numbers of NumPy beside them."""

import functools

import numpy as np
import torch

SCALE, COUNT = np.float64(2.5), np.int32(3)
LAYERS = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.ReLU()])


def _tried(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__, str(error)


def sorted_without_a_key(x):
    items = [3, 1, 2]
    items.sort(key=None)
    return x + 1, items, sorted([2, 1], key=None, reverse=True)


def numbers_of_numpy(x):
    made = (
        torch.tensor(SCALE),
        torch.as_tensor([SCALE, 1]),
        torch.tensor([COUNT, 2]),
        torch.as_tensor(COUNT),
        torch.tensor([SCALE]),
    )
    return (
        made,
        x * float(SCALE),
        np.float32(1.5) + 1,
        type(np.float32(1.5) * 2),
        np.int64(7) // 2,
        np.dtype("float32").itemsize,
    )


def operands_of_numpy(x):
    return (
        _tried(lambda: x * SCALE),
        _tried(lambda: SCALE * x),
        _tried(lambda: x + COUNT),
        _tried(lambda: [1] * COUNT),
    )


operands_of_numpy.any_graphs = True


def tensors_of_tensors(x):
    a, b = x[0, 0], x[0, 1]
    options = (
        torch.tensor([a, b], dtype=torch.float64, device="cpu"),
        _tried(torch.tensor, [a, b], dtype=torch.int64),
    )
    return (
        torch.tensor([a, b]),
        options,
        torch.tensor((a, b), device="cpu"),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([]),
    )


tensors_of_tensors.any_graphs = True


def wrong_arrays(x):
    return (
        x + 1,
        _tried(torch.from_numpy, [1]),
        _tried(torch.from_numpy, x),
        _tried(torch.as_tensor, "a"),
        _tried(torch.tensor, None),
    )


wrong_arrays.any_graphs = True


def questions(x):
    y = x.t()
    found = (
        x.numel(),
        x.dim(),
        x.is_floating_point(),
        y.is_contiguous(),
        y.stride(),
        x.element_size(),
        x.nelement(),
        x.size(1),
    )
    asked = (
        torch.is_floating_point(x),
        torch.is_tensor(x),
        torch.numel(x),
        torch.is_complex(x),
        x.is_signed(),
        y.storage_offset(),
    )
    types = (
        torch.result_type(x, 1),
        torch.can_cast(torch.int, torch.float),
        torch.promote_types(torch.int, torch.float),
        x.get_device(),
    )
    return (
        x + 1,
        found,
        asked,
        types,
        x.is_same_size(y),
        y.is_set_to(y),
        x[1:].storage_offset(),
        x.is_leaf,
        x.is_shared(),
    )


questions.any_graphs = True


def unused_results_that_refuse(x):
    x[torch.tensor([5])]
    return x + 1


def unused_results(x):
    a, b = x.sum(), x.topk(1)
    x.split(1)[0]
    b[0], x.max(0).values
    return x + 1


class Plain(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Marked(torch.Tensor):
    tag = "class"

    @property
    def doubled(self):
        return self * 2

    @doubled.setter
    def doubled(self, value):
        self.half = value / 2

    def mean(self, *args):
        return "own mean"

    def named(self):
        return self.tag, type(self).__name__


def subclasses(x):
    plain, marked = x.as_subclass(Plain), (x + 1).as_subclass(Marked)
    types = [
        type(t)
        for t in (
            plain + 1,
            marked + 1,
            plain.sum(),
            marked[0],
            plain.detach(),
            marked.T,
            x + marked,
            plain + x,
        )
    ]
    marked.doubled = x
    marked.tag = "instance"
    marked.sum = lambda: "own sum"
    return (
        types,
        marked.half,
        marked.mean(),
        marked.sum(),
        marked.named(),
        Marked.tag,
        marked.doubled,
        marked.shape,
        marked.dtype,
    )


subclasses.any_graphs = True


def results_of_subclasses(x):
    base = x + 1
    marked = (x * 2).as_subclass(Marked)
    added = base.add_(marked)
    return (
        type(base),
        type(added),
        added is base,
        torch.equal(base, x * 3 + 1),
        type(torch.add(base, 1, out=base)),
    )


results_of_subclasses.any_graphs = True


def made_subclasses(x):
    first = torch.Tensor._make_subclass(Marked, x, False)
    second = torch.Tensor._make_subclass(Marked, x)
    third = torch.Tensor._make_subclass(Marked, x, True)
    return [(type(t), t.requires_grad) for t in (first, second, third)], first + 1


made_subclasses.any_graphs = True


def data_replaced(x):
    y = x + 1
    y.data = y.data
    z = x * 2
    z.data = y
    return y, z, z.data_ptr() == y.data_ptr()


data_replaced.any_graphs = True


def modules_by_index(x):
    kinds = [type(LAYERS[at]).__name__ for at in (0, 1, -1, -2)]
    return (
        LAYERS[-1](x),
        kinds,
        _tried(lambda: LAYERS[2]),
        _tried(lambda: LAYERS[-3]),
        len(LAYERS[1:]),
    )


modules_by_index.any_graphs = True


def modules_assigned_to(x):
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.ones(3))
    module.inner = torch.nn.ReLU()
    module.number = 3
    module.register_buffer("held", x + 1)
    module.held = x + 2
    module.weight = torch.nn.Parameter(torch.zeros(3))
    wrong = _tried(setattr, module, "weight", x), _tried(setattr, module, "inner", 3)
    names = (
        [*dict(module.named_parameters())],
        [*dict(module.named_buffers())],
        [*dict(module.named_modules())],
    )
    return module.inner(x) + module.weight + module.held, names, wrong, "number" in module.__dict__


modules_assigned_to.any_graphs = True


def functions_with_auxiliary_results(x):
    def f(a):
        return a.sin(), {"count": a.sum()}

    value, pullback, extra = torch.func.vjp(f, x, has_aux=True)
    gradient, more = torch.func.grad(lambda a: (a.sum(), a * 2), has_aux=True)(x)
    jacobian, held = torch.func.jacrev(f, has_aux=True)(x)
    plain, pull = torch.func.vjp(torch.cos, x)
    return value, pullback(x), extra, gradient, more, jacobian, held, plain, pull(x)


functions_with_auxiliary_results.any_graphs = functions_with_auxiliary_results.inside_vmap = True


class Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a.dim()


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return None


class Several(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        ctx.kept = 2
        return a * 2, 3, None, a.sum()


def functions_without_tensors(x):
    return x + 1, Counted.apply(x), Nothing.apply(x), Several.apply(x)


functions_without_tensors.any_graphs = True


@functools.lru_cache
def _doubled(n, names=()):
    return [n * 2, *names]


def cached_with_sizes(x):
    return x + _doubled(x.shape[0])[0], _doubled(x.shape[1], ("a",)), _doubled(3) is _doubled(3)


cached_with_sizes.any_graphs = True
