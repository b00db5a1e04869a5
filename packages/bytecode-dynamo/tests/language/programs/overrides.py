# ruff: noqa
"""``__torch_function__``: tensor subclasses, objects with it, modes entered inside."""

import torch, functools, types
import torch.nn as nn
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


class Meta(torch.Tensor):
    @staticmethod
    def __new__(cls, data, info=None):
        t = torch.as_tensor(data).as_subclass(cls)
        t.info = info
        return t

    def __repr__(self):
        return "Meta"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        r = super().__torch_function__(func, types, args, kwargs)
        info = next((a.info for a in args if isinstance(a, Meta) and hasattr(a, "info")), None)
        if isinstance(r, Meta):
            r.info = info
        return r

    @property
    def double(self):
        return self * 2

    def named(self, k):
        return self + k, self.info


def s_new(x):
    m = Meta(x, "i")
    y = m + 1
    return (
        y,
        y.info,
        m.double,
        m.named(3)[0],
        y.double.info,
        torch.sin(m).info,
        m.shape,
        m.sum().info,
        type(m.T).__name__,
    )


_m = Meta(torch.ones(2, 3), "g")


def s_glob(x):
    z = x + _m
    return z, z.info, _m.info, z.named(1), _m[0], _m.T, _m.shape, _m.dtype, len(_m), _m.size(0)


def s_arg(x):
    def f(t):
        return F.relu(t) * 2, t.mean(0), torch.cat([t, t]), torch.stack((t, x))

    return f(_m)


def s_inplace(x):
    m = x.clone().as_subclass(Meta)
    m.add_(1)
    m[0] = 5
    m += 2
    return m, x


def s_split(x):
    a, b, c = x.as_subclass(Meta).unbind(1)
    return a, b, c


def s_isinst(x):
    m = x.as_subclass(Meta)
    return (
        isinstance(m, Meta),
        isinstance(m, torch.Tensor),
        type(m) is Meta,
        isinstance(m + 1, Meta),
        isinstance(x, Meta),
        issubclass(Meta, torch.Tensor),
    )


def s_back(x):
    return x.as_subclass(Meta).as_subclass(torch.Tensor) * 2


class Hand:
    H = {}

    def __init__(self, v):
        self.v = v

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in cls.H or not all(issubclass(t, (torch.Tensor, Hand)) for t in types):
            return NotImplemented
        return cls.H[func](*args, **(kwargs or {}))


def _impl(f):
    def d(g):
        Hand.H[f] = g
        return g

    return d


@_impl(torch.mean)
def _mean(t):
    return t.v.mean() * 10


@_impl(torch.add)
def _add(a, b):
    return Hand((a.v if isinstance(a, Hand) else a) + (b.v if isinstance(b, Hand) else b))


@_impl(torch.nn.functional.relu)
def _relu(a, inplace=False):
    return Hand(a.v.relu())


@_impl(torch.Tensor.add)
def _tadd(a, b):
    return Hand(a + b.v)


def h_tab(x):
    h = Hand(x)
    return torch.mean(h), torch.add(h, 1).v, torch.add(x, h).v, F.relu(h).v, (x + h).v


def h_fail(x):
    try:
        torch.sin(Hand(x))
    except TypeError as e:
        return x + 1, "sin" in str(e)


class Log(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.n = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.n.append(getattr(func, "__name__", "?"))
        return func(*args, **(kwargs or {}))


def m_log(x):
    with Log() as l:
        y = torch.sin(x) + 1
        z = y.mean(0)
        F.relu(z)
        x.shape
    return y, z, l.n


class Scale(TorchFunctionMode):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def __torch_function__(self, func, types, args=(), kwargs=None):
        r = func(*args, **(kwargs or {}))
        return r * self.k if func is torch.add else r


def m_nest(x):
    with Scale(2), Scale(3):
        y = torch.add(x, 1)
    return y, torch.add(x, 1)


def m_break(x):
    with Scale(2):
        y = torch.add(x, 1)
        print("z")
        y = torch.add(y, 1)
    return y


m_break.any_graphs = True


def m_exc(x):
    try:
        with Scale(2):
            y = torch.add(x, 1)
            raise ValueError
    except ValueError:
        pass
    return torch.add(y, 1)


class Deco(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.zeros, torch.ones):
            kwargs.setdefault("dtype", torch.float64)
        return func(*args, **kwargs)


def m_factory(x):
    with Deco():
        y = torch.ones(2)
    return y, x


class PS(nn.Parameter):
    def __new__(cls, data, tag=None):
        s = torch.Tensor._make_subclass(cls, data, True)
        s.tag = tag
        return s


_ps = PS(torch.ones(3), "t")


class PMod(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = PS(torch.ones(3), "q")
        self.register_buffer("b", torch.ones(3))

    def forward(self, x):
        return x * self.p + self.b, self.p.tag


_pm = PMod()


def p_mod(x):
    return (
        _pm(x),
        _ps.tag,
        isinstance(_ps, nn.Parameter),
        [type(p).__name__ for p in _pm.parameters()],
        _ps * 2,
    )


def s_out_attr(x):
    m = x.as_subclass(Meta)
    m.info = [1]
    return m


def s_out_twice(x):
    m = x.as_subclass(Meta) + 1
    return m, [m], {"k": m}


def s_break(x):
    m = x.as_subclass(Meta)
    m.info = "b"
    print("s")
    y = m * 2
    return y, y.info, m


s_break.any_graphs = True


def s_dict(x):
    m = x.as_subclass(Meta)
    d = {m: 1}
    return d[m], m in d


def s_eq(x):
    m = x.as_subclass(Meta)
    return (m == m).all(), (m > 0).any(), m is m, m.requires_grad, m.is_leaf, m.device


class NoTF(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


_n = torch.ones(3).as_subclass(NoTF)


def s_notf(x):
    return x + _n, _n * 2, type(_n).__name__


class A1(torch.Tensor):
    pass


class B1(A1):
    pass


def s_prec(x):
    a, b = x.as_subclass(A1), x.as_subclass(B1)
    return type(a + b).__name__, type(b + a).__name__, a + b, type(x + a).__name__


def s_grad(x):
    w = torch.ones(3, requires_grad=True)
    s = (w * 2).as_subclass(A1)
    return (s * x).sum()


def s_numel(x):
    m = x.as_subclass(A1)
    return (
        m.numel(),
        m.dim(),
        m.ndim,
        m.stride(),
        m.is_contiguous(),
        m.view(-1),
        m.reshape(3, 2),
        m.to(torch.float64),
        m.float() is m,
        m.clone(),
        m.detach(),
        torch.zeros_like(m),
        m.new_zeros(2),
        m.max(1).values,
        m.sort()[0],
        m.tolist() if False else 0,
        m.data,
        m.grad,
        m.mT,
        m[m.shape[0] - 1],
        m @ m.T,
        -m,
        2 - m,
        2 / m,
        abs(m),
        m**2,
        m.abs().sqrt(),
        m.expand(2, 2, 3),
        m.sum(dim=0, keepdim=True),
        F.softmax(m, -1),
        F.linear(m, x),
        F.layer_norm(m, (3,)),
        torch.einsum("ij,kj->ik", m, m),
        torch.where(m > 0, m, 0),
    )
