# ruff: noqa
"""``backward()`` inside, and ``torch.cond`` and its relatives."""

import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(0)


def _mlp():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


m1 = _mlp()
o1 = torch.optim.SGD(m1.parameters(), lr=0.1, momentum=0.9)


def step(x):
    loss = m1(x).pow(2).sum()
    o1.zero_grad()
    loss.backward()
    o1.step()
    return loss.detach()


m2 = _mlp()


def accumulate(x):
    for k in range(3):
        (m2(x * k).sum() / 3).backward()
    return [p.grad for p in m2.parameters()]


def strides(x):
    w = torch.ones(3, 2).t().requires_grad_(True)
    (w @ x.t()).sum().backward()
    return w.grad, w.grad.stride(), w


def shared(x):
    a = torch.ones(2, 3, requires_grad=True)
    b = torch.ones(2, 3, requires_grad=True)
    (a + b).sum().backward()
    a.grad.add_(1)
    return a.grad, b.grad


def expanded(x):
    a = torch.ones(3, requires_grad=True)
    a.sum().backward()
    return a.grad, a.grad.stride()


def twice(x):
    a = torch.ones(3, requires_grad=True)
    y = (a * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return a.grad


def twice_error(x):
    a = torch.ones(3, requires_grad=True)
    y = (a.exp() * x).sum()
    y.backward()
    try:
        y.backward()
    except RuntimeError as e:
        return str(e)[:40]


twice_error.any_graphs = True


def no_leaf(x):
    try:
        x.sum().backward()
    except RuntimeError as e:
        return x + 1, str(e)[:30]


no_leaf.any_graphs = True


def nonscalar(x):
    a = torch.ones(3, requires_grad=True)
    try:
        (a * x).backward()
    except RuntimeError as e:
        return str(e)[:40]


nonscalar.any_graphs = True


def unused(x):
    a, b = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    (a * x).sum().backward()
    return a.grad, b.grad


def none_grad(x):
    a = torch.ones(3, requires_grad=True)
    (a * x).sum().backward()
    a.grad = None
    (a * 2).sum().backward()
    return a.grad


def zero(x):
    a = torch.ones(3, requires_grad=True)
    (a * x).sum().backward()
    a.grad.zero_()
    (a * 2).sum().backward()
    return a.grad


def manual_sgd(x):
    w = torch.ones(3, requires_grad=True)
    for _ in range(3):
        ((x * w).sum() ** 2).backward()
        with torch.no_grad():
            w -= 0.01 * w.grad
            w.grad.zero_()
    return w, w.grad


def manual_sgd_data(x):
    w = torch.ones(3, requires_grad=True)
    for _ in range(3):
        ((x * w).sum() ** 2).backward()
        w.data -= 0.01 * w.grad
        w.grad = None
    return w


W = torch.ones(3, requires_grad=True)


def global_w(x):
    (x * W).sum().backward()
    return W.grad * 2


def leaf_out(x):
    a = torch.ones(3, requires_grad=True)
    (a * x).sum().backward()
    return a


def break_after(x):
    a = torch.ones(3, requires_grad=True)
    (a * x).sum().backward()
    print("b")
    return a.grad, a


break_after.any_graphs = True


def break_between(x):
    a = torch.ones(3, requires_grad=True)
    y = (a * x).sum()
    print("b")
    y.backward()
    return a.grad


break_between.any_graphs = True


def in_fn(x):
    def train(w):
        loss = (w * x).sum()
        loss.backward()
        return loss.item()

    w = torch.ones(3, requires_grad=True)
    l = train(w)
    return l, w.grad


in_fn.any_graphs = True
bn = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.0))


def bn_train(x):
    bn.train()
    bn(x).sum().backward()
    return bn[0].weight.grad, bn[1].running_mean


emb = nn.Embedding(5, 3)


def emb_train(x):
    (emb(torch.tensor([1, 2])) * x).sum().backward()
    return emb.weight.grad


def clip(x):
    w = torch.ones(3, requires_grad=True)
    (w * x).sum().backward()
    n = nn.utils.clip_grad_norm_([w], 0.5)
    return n, w.grad


def nograd_ctx(x):
    w = torch.ones(3, requires_grad=True)
    y = (w * x).sum()
    with torch.no_grad():
        y.backward()
    return w.grad, torch.is_grad_enabled()


def hooked(x):
    w = torch.ones(3, requires_grad=True)
    y = w * x
    y.register_hook(lambda g: g * 2)
    y.sum().backward()
    return w.grad


def leaf_hook(x):
    w = torch.ones(3, requires_grad=True)
    w.register_hook(lambda g: g * 2)
    (w * x).sum().backward()
    return w.grad


leaf_hook.any_graphs = True


class AF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, g):
        return g * 3 * ctx.saved_tensors[0]


def af(x):
    w = torch.ones(3, requires_grad=True)
    (AF.apply(w) * x).sum().backward()
    return w.grad


from torch.utils.checkpoint import checkpoint


def ckpt(x):
    w = torch.ones(3, requires_grad=True)
    checkpoint(lambda a: (a * x).sin(), w, use_reentrant=False).sum().backward()
    return w.grad


def tup(x):
    w = torch.ones(3, requires_grad=True)
    v = torch.ones(3, requires_grad=True)
    torch.autograd.backward(
        (w * x, v * x),
        (torch.ones_like(x), None) if False else (torch.ones_like(x), torch.ones_like(x)),
    )
    return w.grad, v.grad


def view_leaf(x):
    w = torch.ones(6, requires_grad=True)
    (w.view(2, 3) * x).sum().backward()
    return w.grad


def cplx(x):
    w = torch.ones(3, dtype=torch.complex64, requires_grad=True)
    (w * x).abs().sum().backward()
    return w.grad


def half(x):
    w = torch.ones(3, dtype=torch.float16, requires_grad=True)
    (w.float() * x).sum().backward()
    return w.grad


def amp(x):
    w = nn.Parameter(torch.ones(3, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = (x @ w).sum()
    y.backward()
    return w.grad


def cond_tensor(x):
    return torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,))


def cond_closure(x):
    w = x * 2

    def t():
        return w + 1

    def f():
        return w.sin()

    return torch.cond(x.sum() > 100, t, f)


def cond_nested(x):
    def inner(y):
        return torch.cond(y.mean() > 0, lambda a: a * 2, lambda a: a * 3, (y,))

    return torch.cond(x.sum() > 0, inner, lambda t: t - 1, (x,))


def cond_tuple(x):
    return torch.cond(x.sum() > 0, lambda t: (t + 1, t * 2), lambda t: (t - 1, t / 2), (x,))


def cond_bool(x):
    return torch.cond(x.shape[0] > 1, lambda t: t + 1, lambda t: t - 1, (x,))


from torch._higher_order_ops import while_loop, associative_scan, map as tmap


def while_op(x):
    def c(i, t):
        return i < 3

    def b(i, t):
        return i + 1, t * 2

    return while_loop(c, b, (torch.tensor(0), x))


def assoc_scan(x):
    return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")


assoc_scan.inside_vmap = True


def assoc_scan_of_pairs(x):
    def both(a, b):
        return a[0] * b[0], b[0] * a[1] + b[1]

    return associative_scan(both, (x, x + 1), 0, reverse=True, combine_mode="generic")


assoc_scan_of_pairs.inside_vmap = True


def map_op(x):
    return tmap(lambda t, s: t * 2 + s, x, torch.tensor(1.0))


from torch._higher_order_ops.scan import scan


def scan_op(x):
    return scan(lambda c, t: (c + t, c * t), torch.zeros(3), x)


def while_two(x):
    return while_loop(lambda a, b: b.sum() < 20, lambda a, b: (a + 1, b.abs() + 1), (x, x * 1))


def while_closure(x):
    k = x.abs() + 1
    return while_loop(lambda a: a.sum() < 30, lambda a: (a + k,), (x,))


def scan_reverse(x):
    return scan(lambda c, t: (c + t, c * 2), x[0], x, reverse=True)


for _f in (step, accumulate, global_w, bn_train, emb_train):
    _f.any_graphs = True  # the second call finds gradients
