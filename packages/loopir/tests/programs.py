"""Random tensor programs: small functions on matrices that use every part of the compiler, for any
dtype and size.

A program is data, so that a failure shrinks; calling it runs eager torch on the arguments that
``arguments`` makes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

FLOATS = (torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *HALVES, *INTEGERS, *UNSIGNED, *COMPLEX, torch.bool)
SIZES = (0, 1, 2, 3, 6, 8)
Tensor = torch.Tensor
Rule = Callable[[Tensor, Tensor, int], Tensor]


def _bounded(x: Tensor) -> Tensor:
    if x.is_complex():
        return x / (1 + x.abs())
    return x.clamp(-3, 3) if x.is_floating_point() else x


def _fit(b: Tensor, a: Tensor) -> Tensor:
    """``b`` or its transpose, whichever has the shape of ``a``; else ``a`` itself."""
    return b if b.shape == a.shape else b.t() if b.t().shape == a.shape else a


def _unary(a: Tensor, b: Tensor, n: int) -> Tensor:
    if a.dtype is torch.bool:
        return a.logical_not()
    if a.is_complex():
        return (torch.neg, torch.exp, torch.conj_physical, torch.square)[n % 4](_bounded(a))
    if not a.is_floating_point():
        return (a.neg(), a.abs() if a.dtype is not torch.uint8 else a, a.bitwise_not(), a * 3 + 1)[
            n % 4
        ]
    return (torch.relu, torch.tanh, torch.exp, torch.neg, torch.sigmoid, torch.abs, F.gelu)[n % 7](
        _bounded(a)
    )


def _binary(a: Tensor, b: Tensor, n: int) -> Tensor:
    b = _fit(b, a)
    if a.dtype is torch.bool:
        return (a & b, a | b, a ^ b)[n % 3]
    if a.is_complex():
        return (torch.add, torch.mul, torch.sub)[n % 3](_bounded(a), b)
    return (torch.add, torch.mul, torch.maximum, torch.minimum, torch.sub)[n % 5](_bounded(a), b)


def _reduced(a: Tensor, b: Tensor, n: int) -> Tensor:
    dim = n % 2
    if a.dtype is torch.bool:
        return a ^ (a.any(dim, keepdim=True) if n % 4 < 2 else a.all(dim, keepdim=True))
    if a.is_complex():
        return a - a.mean(dim, keepdim=True)
    if n % 3 and a.shape[dim] != 0:
        return a - (a.amax(dim, keepdim=True) if n % 3 == 1 else a.amin(dim, keepdim=True))
    return (
        a + a.sum(dim, keepdim=True, dtype=a.dtype) // 8
        if not a.is_floating_point()
        else a - a.mean(dim, keepdim=True)
    )


def _normalised(a: Tensor, b: Tensor, n: int) -> Tensor:
    if not a.is_floating_point() or a.shape[1] == 0:
        return a
    return F.layer_norm(_bounded(a), a.shape[1:]) if n % 2 else _bounded(a).softmax(n % 4 // 2)


def _moved(a: Tensor, b: Tensor, n: int) -> Tensor:
    rolled = torch.cat([a[1:], a[:1]], 0)
    return (
        a.t(),
        rolled,
        a.flip(n % 2),
        a.reshape(-1).flip(0).reshape(a.shape),
        a.t().reshape(a.shape),
    )[n % 5]


def _joined(a: Tensor, b: Tensor, n: int) -> Tensor:
    b = _fit(b, a)
    if n % 3 == 0:
        return torch.cat([a, b], n % 2)[: a.shape[0], : a.shape[1]]
    if n % 3 == 1:
        return (
            torch.stack([a, b]).sum(0, dtype=a.dtype)
            if a.dtype is not torch.bool
            else torch.stack([a, b]).any(0)
        )
    return F.pad(a[:, 1:], (n % 2, 1 - n % 2), value=1) if a.shape[1] else a


def _scanned(a: Tensor, b: Tensor, n: int) -> Tensor:
    return (
        (_bounded(a) / 8 if a.is_floating_point() else a).cumsum(n % 2, dtype=a.dtype)
        if a.dtype is not torch.bool
        else a
    )


def _indexed(a: Tensor, b: Tensor, n: int) -> Tensor:
    rows = torch.arange(a.shape[0], device=a.device)
    back = a.shape[0] - 1 - rows
    if n % 3 == 0:
        return a[back]
    if n % 3 == 1:
        return a.gather(0, back.unsqueeze(1).expand(a.shape))
    return torch.zeros_like(a).index_add(0, rows // 2, a) if a.dtype is not torch.bool else a


def _converted(a: Tensor, b: Tensor, n: int) -> Tensor:
    if a.is_complex():
        return (
            torch.complex(a.imag, a.real) if n % 2 else a.to(torch.complex128).mul(0.5).to(a.dtype)
        )
    if a.is_floating_point():
        return a.to(torch.float64 if n % 2 else torch.float32).mul(0.5).to(a.dtype)
    return (
        a.to(torch.int64).add(1).to(a.dtype)
        if a.dtype is not torch.bool
        else a.to(torch.float32).ne(0)
    )


def _product(a: Tensor, b: Tensor, n: int) -> Tensor:
    return (
        (_bounded(a) @ _bounded(a).t()) @ _bounded(a) * 0.01
        if a.is_floating_point()
        else _bounded(a) * _bounded(a)
        if a.dtype is not torch.bool
        else a
    )


def _selected(a: Tensor, b: Tensor, n: int) -> Tensor:
    b = _fit(b, a)
    larger = a.real > b.real if a.is_complex() else a > b
    mask = larger if n % 2 else torch.ones(a.shape, dtype=torch.bool, device=a.device).triu(n % 3)
    return torch.where(mask, a, b) if n % 4 < 2 else a.masked_fill(mask, 1)


def _windowed(a: Tensor, b: Tensor, n: int) -> Tensor:
    """Pooling, upsampling, overlapping windows and strided slices, cut back to the shape."""
    rows, columns = a.shape
    if n % 4 == 0:
        return a.repeat_interleave(2, n % 2)[:rows, :columns]
    if n % 4 == 1:
        return torch.cat([a[::2], a[1::2]], 0)
    if not a.is_floating_point() or rows == 0 or columns == 0:
        return a
    image = F.pad(_bounded(a), (1, 1, 1, 1))[None, None]
    return (F.max_pool2d(image, 3, 1) if n % 4 == 2 else F.avg_pool2d(image, 3, 1))[0, 0]


def _scattered(a: Tensor, b: Tensor, n: int) -> Tensor:
    b = _fit(b, a)
    back = a.shape[0] - 1 - torch.arange(a.shape[0], device=a.device)
    if n % 3 == 0:
        return a.index_copy(0, back, b)
    if n % 3 == 1 or a.dtype is torch.bool:
        return a.scatter(0, back.unsqueeze(1).expand(a.shape), b)
    return _bounded(a).scatter_add(0, (back // 2).unsqueeze(1).expand(a.shape), _bounded(b))


def _written(a: Tensor, b: Tensor, n: int) -> Tensor:
    """Parts of a value overwritten through views of it: slices with steps, rows, diagonals, blocks
    of a folded dim.
    """
    b = _fit(b, a)
    rows, columns = a.shape
    if n % 5 == 0:
        return a.slice_scatter(b[n % 2 :: 2], 0, n % 2, None, 2)
    if n % 5 == 1 and rows:
        return a.select_scatter(b[0], 0, -1)
    if n % 5 == 2:
        return a.diagonal_scatter(b.diagonal(n % 2), n % 2)
    pair = torch.stack([a, b])
    if n % 5 == 3:
        return pair.transpose(0, 1).reshape(rows, 2 * columns)[:, :columns]
    return pair.index_put((torch.tensor([n % 2], device=a.device),), a.flip(0)[None]).reshape(
        2 * rows, columns
    )[n % 2 :: 2]


def _summarised(a: Tensor, b: Tensor, n: int) -> Tensor:
    """Statistics of rows or columns, broadcast back: several reductions over one range, positions
    of extremes, products.
    """
    dim = n % 2
    if a.shape[dim] == 0 or a.dtype is torch.bool:
        return a
    if a.is_complex():
        return a * _bounded(a).prod(dim, keepdim=True)
    if n % 4 < 2:
        place = (
            _bounded(a).argmax(dim, keepdim=True)
            if n % 3
            else _bounded(a).argmin(dim, keepdim=True)
        )
        return a + place.to(a.dtype)
    if not a.is_floating_point():
        return a * a.prod(dim, keepdim=True, dtype=a.dtype)
    variance, mean = torch.var_mean(_bounded(a), dim, correction=0, keepdim=True)
    return (_bounded(a) - mean) / (variance + 1).sqrt()


RULES: dict[str, Rule] = {
    "unary": _unary, "binary": _binary, "reduce": _reduced, "normalise": _normalised,
    "move": _moved, "join": _joined,
    "scan": _scanned, "index": _indexed, "convert": _converted, "product": _product,
    "select": _selected,
    "window": _windowed, "scatter": _scattered, "summary": _summarised, "write": _written,
}  # fmt: skip
UNSIGNED_CHOICES = {"join": (0, 2), "window": (0, 1), "write": (0, 2, 3), "convert": (0,)}
"""What eager has for unsigned integers of more than 8 bits; other rules compute on them in int64.
"""


def _step(rule: str, a: Tensor, b: Tensor, n: int) -> Tensor:
    if a.dtype not in UNSIGNED:
        return RULES[rule](a, b, n)
    if rule in UNSIGNED_CHOICES:
        return RULES[rule](a, b, UNSIGNED_CHOICES[rule][n % len(UNSIGNED_CHOICES[rule])])
    return RULES[rule](a.to(torch.int64), b.to(torch.int64), n).to(a.dtype)


@dataclass(frozen=True)
class TensorProgram:
    """``steps``: rule, positions of two operands among the values so far, and a choice. The last
    three values are returned.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    steps: tuple[tuple[str, int, int, int], ...]

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        values = list(arguments)
        for rule, first, second, choice in self.steps:
            values.append(
                _step(rule, values[first % len(values)], values[second % len(values)], choice)
            )
        return tuple(values[len(arguments) :][-3:])

    def arguments(self, shape: tuple[int, int] | None = None) -> list[Tensor]:
        """A matrix and one of its transpose's shape, the same on every call."""
        generator = torch.Generator().manual_seed(1)
        rows, columns = shape or self.shape
        drawn = [
            torch.randn(*size, generator=generator) for size in ((rows, columns), (columns, rows))
        ]
        if self.dtype is torch.bool:
            return [x > 0 for x in drawn]
        if self.dtype.is_complex:
            return [torch.complex(x, x.sin()).to(self.dtype) for x in drawn]
        return [
            (x if self.dtype.is_floating_point else (x * 4).round().abs()).to(self.dtype)
            for x in drawn
        ]


def random_program(seed: int, sizes: tuple[int, ...] = SIZES) -> TensorProgram:
    """The program of that number: without Hypothesis, which costs more than small programs do."""
    draw = random.Random(seed)
    steps = [
        (draw.choice(sorted(RULES)), draw.randrange(21), draw.randrange(21), draw.randrange(60))
        for _ in range(9)
    ]
    shape = draw.choice(sizes), draw.choice(sizes)
    return TensorProgram(shape, draw.choice(DTYPES), tuple(steps[: draw.randint(1, 9)]))


@st.composite
def tensor_programs(draw: st.DrawFn, sizes: tuple[int, ...] = SIZES) -> TensorProgram:
    """A program over a matrix with sides among ``sizes``."""
    step = st.tuples(
        st.sampled_from(sorted(RULES)), st.integers(0, 20), st.integers(0, 20), st.integers(0, 59)
    )
    shape = draw(st.tuples(st.sampled_from(sizes), st.sampled_from(sizes)))
    steps = draw(st.lists(step, min_size=1, max_size=9))
    return TensorProgram(shape, draw(st.sampled_from(DTYPES)), tuple(steps))
