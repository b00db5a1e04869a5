# ruff: noqa
"""Torch objects in Python code: sizes, dtypes, devices, modules, pytrees, hooks, einops."""

import collections
import dataclasses
import math

import einops
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils import _pytree as pytree


def sizes(x):
    a, b = x.shape
    s = x.size()
    return (
        x.reshape(b, a),
        s[0] * s[1],
        len(s),
        s.numel(),
        tuple(s),
        s == (2, 3),
        s + (4,),
        s[1:],
        x.size(-1),
        torch.Size([1, 2]),
        list(s),
        math.prod(s),
        *x.shape,
    )


def dtypes_and_devices(x):
    d = x.dtype
    return (
        x.to(torch.float64), d.is_floating_point, d.itemsize, torch.finfo(d).max, torch.iinfo(torch.int8).min, x.device, torch.device("cpu").type, d == torch.float32,
        torch.finfo(torch.float32).eps, x.is_floating_point(), str(d), torch.promote_types(torch.int8, torch.float16), torch.get_default_dtype(), x.layout, d in (torch.float32,), x.device.index,
    )  # fmt: skip


def tensor_attributes(x):
    y = x.t()
    return (
        y,
        x.ndim,
        x.shape,
        x.is_contiguous(),
        y.stride(),
        x.requires_grad,
        x.is_leaf,
        x.T.shape,
        x.nbytes,
        x.element_size(),
        x.storage_offset(),
        x.grad,
        x.is_cuda,
        y.is_contiguous(),
        x.real,
    )


def tensor_attribute_set(x):
    y = x.clone()
    y.tag = "t"
    y.requires_grad_(True)
    return y * 2, y.tag, hasattr(x, "tag")


tensor_attribute_set.any_graphs = True


def in_place(x):
    x.add_(1)
    x[0] = 5
    x[:, 1] *= 2
    x.t_()
    x += 1
    return x


def indexing(x):
    m = x > 0
    i = torch.tensor([1, 0])
    return (
        x[0],
        x[:, 1],
        x[..., 0],
        x[None],
        x[i],
        x[1, 2],
        x[-1:],
        x[[0, 1]],
        x[(0, 1)],
        x[m.shape[0] - 1],
        torch.where(m, x, 0),
        x[:, [0, 2]],
    )


def constructors(x):
    return (
        torch.zeros(2, 3) + x, torch.arange(3), torch.tensor([[1, 2], [3, 4]]), torch.full((2,), 7.0), torch.eye(2), torch.linspace(0, 1, 3), x.new_zeros(2), x.new_tensor([1.0]),
        torch.ones_like(x), torch.empty(0), torch.tensor(3), torch.tensor([1.5, 2], dtype=torch.float64), torch.zeros(x.shape), torch.tensor([x.shape[0], 1]), torch.stack([x[0], x[1]]), torch.arange(6).view(2, -1),
    )  # fmt: skip


def tensor_of_tensors(x):
    return (
        torch.tensor([1, 2]) * x.sum(),
        torch.as_tensor([1.0, 2.0]),
        torch.cat([x, x]),
        torch.cat((x, x), dim=1),
    )


def operators_of_tensors(x):
    return (
        x + 1,
        1 - x,
        x**2,
        2**x,
        x // 2,
        x % 2,
        -x,
        abs(x),
        x @ x.T,
        x > 0,
        (x > 0) & (x < 1),
        ~(x > 0),
        x == x,
        round(x),
        1 / (x + 5),
        x != 1,
    )


def functions_with_several_results(x):
    values, indices = x.max(dim=1)
    top = torch.topk(x, 2)
    return (
        values,
        indices,
        top.values,
        top[1],
        torch.split(x, 1),
        x.chunk(3, dim=1),
        x.unbind(),
        x.sort(dim=1).indices,
        torch.var_mean(x),
        x.max(),
        torch.meshgrid(x[0], x[1], indexing="ij"),
    )


def detach_and_clone(x):
    w = x.clone().requires_grad_()
    y = (w * 2).detach()
    return y, y.requires_grad, w.data + 1


detach_and_clone.any_graphs = True


def item_breaks(x):
    n = x.sum().item()
    return x + n


item_breaks.graphs = 2


def data_dependent_branch(x):
    if x.sum() > 100:
        return x + 1
    return x - 1


data_dependent_branch.graphs = 2


def tolist_breaks(x):
    values = x.tolist()
    return x * values[0][0], values


tolist_breaks.graphs = 1
tolist_breaks.any_graphs = True


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3, bias=False) for _ in range(2)])
        self.heads = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Identity()})
        self.seq = nn.Sequential(collections.OrderedDict(first=nn.Tanh(), second=nn.Softmax(-1)))
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(3) * k) for k in range(2)])
        self.named = nn.ParameterDict({"w": nn.Parameter(torch.ones(3))})
        self.register_buffer("steps", torch.zeros(()))
        self.calls = 0
        for i, p in enumerate(self.parameters()):
            with torch.no_grad():
                p.fill_(0.1 * (i + 1))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x) * self.scales[i]
        for name, head in self.heads.items():
            x = head(x) if name in self.heads else x
        return self.seq(x) * self.named["w"] + len(self.layers)


class Counting(Net):
    def forward(self, x):
        self.calls += 1
        self.steps += 1
        self.cache = x
        return super().forward(x) + self.steps


NET = Net()
COUNTING = Counting()


def module_containers(x):
    return (
        NET(x),
        NET.layers[0](x),
        NET.seq.first(x),
        NET.seq[0] is NET.seq.first,
        NET.layers[-1](x),
        len(NET.seq),
        "a" in NET.heads,
        list(NET.heads),
        NET.layers[:1][0] is NET.layers[0],
    )


def module_queries(x):
    return (
        x + 1, len(list(NET.parameters())), [n for n, _ in NET.named_children()], sum(p.numel() for p in NET.parameters()), NET.training,
        [type(m).__name__ for m in NET.modules()], isinstance(NET.layers[0], nn.Linear), [n for n, _ in NET.named_parameters()], NET.layers[0].weight.shape, NET.get_submodule("seq.first") is NET.seq.first,
        sorted(NET.state_dict())[:2], [n for n, _ in NET.named_modules()][:3],
    )  # fmt: skip


def module_with_state(x):
    return COUNTING(x)


module_with_state.any_graphs = True


def module_made_inside(x):
    m = nn.Linear(3, 2)
    with torch.no_grad():
        m.weight.fill_(0.5)
        m.bias.fill_(1.0)
    return m(x)


module_made_inside.any_graphs = True


def functional_calls(x):
    return (
        F.relu(x),
        F.softmax(x, dim=-1),
        F.linear(x, torch.ones(2, 3)),
        F.pad(x, (1, 1)),
        F.layer_norm(x, (3,)),
        F.gelu(x),
        F.one_hot(torch.tensor([0, 2]), 3),
        F.mse_loss(x, x + 1),
        F.interpolate(x[None], size=5),
        F.normalize(x),
        F.dropout(x, 0.0),
    )


def pytrees(x):
    tree = {"a": [x, 1], "b": (x + 1, {"c": None})}
    leaves, spec = pytree.tree_flatten(tree)
    return (
        pytree.tree_map(lambda v: v * 2 if isinstance(v, torch.Tensor) else v, tree),
        len(leaves),
        pytree.tree_unflatten(leaves, spec),
        pytree.tree_leaves([1, [2]]),
    )


def einops_calls(x):
    y = einops.rearrange(x, "a b -> b a")
    z = einops.reduce(x, "a b -> a", "mean")
    return y, z, einops.repeat(x, "a b -> a b c", c=2), einops.rearrange(x, "(h w) c -> h w c", h=1)


def einsum(x):
    return torch.einsum("ij,kj->ik", x, x), torch.einsum("...j->...", x)


@dataclasses.dataclass
class Output(collections.OrderedDict):
    logits: torch.Tensor = None
    loss: torch.Tensor = None

    def __post_init__(self):
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if value is not None:
                self[f.name] = value


def model_output(x):
    o = Output(logits=x + 1)
    return o, o.logits * 2, list(o), o["logits"] is o.logits, o.loss


class Cache:
    def __init__(self):
        self.keys = []
        self.seen = 0

    def update(self, k, layer):
        if len(self.keys) <= layer:
            self.keys.append(k)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], k], dim=0)
        self.seen += k.shape[0]
        return self.keys[layer]


def cache_object(x):
    c = Cache()
    for _ in range(2):
        x = c.update(x, 0)
    return x, c.seen, c


def mask_and_dtype_logic(x):
    mask = torch.ones(2, 3, dtype=torch.bool).tril()
    filled = x.masked_fill(~mask, torch.finfo(x.dtype).min)
    return filled.softmax(-1), mask.any(), mask.sum()


def shape_arithmetic(x):
    b, n = x.shape
    return (
        x.view(b, 1, n).expand(-1, 2, -1).reshape(b * 2, n),
        x.unsqueeze(0).repeat(2, 1, 1).flatten(0, 1),
        x.reshape(-1),
        x.view(n, -1),
    )


def dtype_from_string(x):
    return (
        x.to(getattr(torch, "float16")),
        x.type(torch.int32),
        x.double().dtype,
        x.to("cpu"),
        x.type_as(torch.ones(1, dtype=torch.float64)),
        x.half().float(),
    )


def out_arguments(x):
    out = torch.empty(2, 3)
    torch.add(x, 1, out=out)
    return out * 2


def views_and_mutation(x):
    v = x.view(-1)
    v[0] = 100
    w = x[1]
    w.zero_()
    return x, v


def isinstance_of_tensors(x):
    p = NET.layers[0].weight
    return (
        x + 1,
        isinstance(p, nn.Parameter),
        isinstance(x, nn.Parameter),
        torch.is_tensor(x),
        type(p) is nn.Parameter,
        isinstance(x, torch.FloatTensor),
        hasattr(x, "foo"),
        p.requires_grad,
        callable(NET),
    )


def grad_of_graph(x):
    w = torch.ones(3, requires_grad=True)
    return (x * w).sum()


def data_structure_of_modules(x):
    stack = [nn.ReLU(), nn.Tanh()]
    for m in stack:
        x = m(x)
    return x


data_structure_of_modules.any_graphs = True


def torch_size_in_dict(x):
    cache = {}
    key = (x.shape, x.dtype, x.device)
    if key not in cache:
        cache[key] = x * 2
    return cache[key], len(cache)


def tensor_method_table(x):
    return (
        [getattr(x, name)() for name in ("sin", "cos", "exp", "sigmoid")],
        torch.Tensor.add(x, 1),
        torch.Tensor.dim(x),
        torch.ops.aten.add.Tensor(x, 1),
        torch.ops.aten.relu(x),
    )


def bool_of_size_one(x):
    return x + 1 if x.numel() and len(x) == 2 and x.dim() else x


def sum_of_losses(x):
    losses = {"a": x.mean(), "b": x.std()}
    return (
        sum(losses.values()),
        {k: v * 2 for k, v in losses.items()},
        torch.stack(list(losses.values())).max(),
    )


def default_dtype_query(x):
    return torch.tensor(1.5).dtype, x.new_ones(1).dtype, torch.zeros(1).device, x + 1


def memory_format(x):
    y = x[None, None].to(memory_format=torch.channels_last)
    return (
        y,
        y.is_contiguous(memory_format=torch.channels_last),
        torch.preserve_format == torch.preserve_format,
    )


def scalar_tensors(x):
    t = torch.tensor(2.0)
    return x * t, t.dim(), t.shape, t.numel(), x.sum().reshape(1), x.mean()[None]


def tensor_of_sizes(x):
    rows, columns = x.shape
    return (
        torch.tensor(rows) + x,
        torch.tensor([[rows, 1], [columns * 2, 3]]),
        torch.tensor([rows, 0.5], dtype=torch.float64),
    )


def methods_of_the_class(x):
    cls = torch.Tensor
    sums = (
        cls.__add__(x, 1),
        cls.__radd__(x, 1),
        cls.__rsub__(x, 1),
        cls.__lt__(x, 2),
        cls.__matmul__(x, x.T),
    )
    known = (
        cls.shape.__get__(x),
        cls.requires_grad.__get__(x),
        x.__hash__() == hash(x),
        torch.onnx.is_in_onnx_export(),
    )
    return sums, known
