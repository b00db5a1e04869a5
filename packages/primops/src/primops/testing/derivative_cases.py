"""Calls of each prim that ``primops.testing.derivatives`` differentiates: in float64, away from
kinks and jumps, of several shapes, with repeated indices and factors of 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from primops import prims
from primops.prim import Prim

SHAPES = ((), (1,), (4,), (0, 3), (2, 3), (2, 1, 3))
DOMAINS: dict[str, tuple[tuple[float, float], ...]] = {
    **dict.fromkeys(("log", "log2", "sqrt", "rsqrt", "lgamma", "digamma", "trigamma"), ((0.4, 3),)),
    **dict.fromkeys(("asin", "acos", "erfinv"), ((-0.9, 0.9),)),
    **dict.fromkeys(("bessel_y0", "bessel_y1", "spherical_bessel_j0"), ((0.5, 4),)),
    **dict.fromkeys(("modified_bessel_k0", "modified_bessel_k1"), ((0.5, 3),)),
    **dict.fromkeys(("scaled_modified_bessel_k0", "scaled_modified_bessel_k1"), ((0.5, 3),)),
    **dict.fromkeys(("igamma", "igammac"), ((0.6, 3), (0.5, 4))),
    "log1p": ((-0.7, 2),), "tan": ((-1.2, 1.2),), "ndtri": ((0.2, 0.8),),
    "zeta": ((1.5, 4), (0.6, 3)), "div": ((-2, 2), (0.5, 2)), "pow": ((0.4, 2), (-2, 2)),
}  # fmt: skip
JUMPING = ("sign", "floor", "ceil", "trunc", "round")
DIVIDING = ("fmod", "remainder", "floor_div")
NUMBERS: dict[str, tuple[tuple[float | None, float | None], ...]] = {
    "pow": ((None, 3), (None, 0), (None, -0.5), (2.5, None)),
    "zeta": ((2, None),), "igamma": ((1.5, None),), "igammac": ((1.5, None),),
    **dict.fromkeys(DIVIDING, ((None, 0.75),)),
}  # fmt: skip
"""Numbers in the place of operands."""


@dataclass(frozen=True)
class Call:
    """``prim(*operands, **params)``."""

    prim: Prim
    operands: tuple[Any, ...]
    params: dict[str, Any]


def spaced(seed: int, shape: tuple[int, ...], low: float = -2, high: float = 2) -> torch.Tensor:
    """Shuffled float64 values, each in a part of [low, high] of its own, away from the middle."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel()
    within = 0.1 + 0.3 * torch.rand(count, generator=generator, dtype=torch.float64)
    parts = torch.randperm(count, generator=generator) + within
    return (parts / max(count, 1) * (high - low) + low).reshape(shape)


def picks(seed: int, size: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Indices, some of them equal."""
    return torch.randint(size, shape, generator=torch.Generator().manual_seed(seed))


def _pair(seed: int, name: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands of a binary prim."""
    domains = DOMAINS.get(name, ((-2, 2),) * 2)
    if name in DIVIDING:  # quotients off the integers
        divisor = spaced(seed, shape, 0.5, 2) * (1 - 2 * picks(seed, 2, shape))
        return divisor * (
            picks(seed + 1, 5, shape) - 2 + spaced(seed + 2, shape, 0.2, 0.8)
        ), divisor
    if "polynomial" in name:
        return spaced(seed, shape, -0.9, 0.9), picks(seed, 5, shape).double() + 0.25
    if name in ("maximum", "minimum", "atan2"):
        return tuple(spaced(seed, (*shape, 2)).unbind(-1))  # type: ignore[return-value]
    a, b = (spaced(seed + i, shape, *domain) for i, domain in enumerate(domains))
    return a, b


def _elementwise(prim: Prim) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for seed, shape in enumerate(SHAPES):
        if prim.name in JUMPING:
            steps = picks(seed, 5, shape) - 2
            yield (steps + spaced(seed, shape, 0.1, 0.4),), {}
        elif len(prim.operands) == 1:
            yield (spaced(seed, shape, *DOMAINS.get(prim.name, ((-2, 2),))[0]),), {}
        else:
            yield _pair(seed, prim.name, shape), {}
    if prim.name in ("maximum", "minimum"):
        equal = spaced(7, (3,))
        yield (equal, equal.clone()), {}
    if len(prim.operands) == 2 and "polynomial" not in prim.name:
        a, b = _pair(8, prim.name, (3,))
        for left, right in NUMBERS.get(prim.name, ((0.7, None), (None, 0.7))):
            yield (a if left is None else left, b if right is None else right), {}
    if prim is prims.pow:
        yield (torch.tensor([-1.5, -0.5, 0, 2.0], dtype=torch.float64), 3), {}


def _selection(prim: Prim) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for seed, shape in enumerate(SHAPES):
        cond = picks(seed, 2, shape).bool()
        yield (cond, spaced(seed, shape), spaced(seed + 1, shape)), {}
    cond = torch.tensor([True, False])
    yield (cond, 1.0, spaced(0, (2,))), {}
    yield (cond, spaced(0, (2,)), 1.0), {}


def _shape(prim: Prim) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    matrix, cube, empty = spaced(0, (2, 3)), spaced(1, (2, 3, 2)), spaced(2, (0, 3))
    row, scalar = spaced(3, (1, 3)), spaced(4, ())
    given: dict[Prim, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
        prims.convert: [((a,), {"dtype": torch.float64}) for a in (matrix, empty, scalar)],
        prims.broadcast_in_dim: [
            ((matrix,), {"shape": (2, 4, 3), "dims": (0, 2)}),
            ((row,), {"shape": (2, 4, 3), "dims": (1, 2)}),
            ((row,), {"shape": (1, 3), "dims": (0, 1)}),
            ((row,), {"shape": (0, 3), "dims": (0, 1)}), ((scalar,), {"shape": (2, 2), "dims": ()}),
            ((empty,), {"shape": (2, 0, 3), "dims": (1, 2)}),
        ],
        prims.reshape: [
            ((cube,), {"shape": (4, 3)}), ((scalar,), {"shape": (1, 1)}),
            ((row,), {"shape": (3,)}), ((empty,), {"shape": (5, 0)}),
        ],
        prims.permute: [
            ((cube,), {"dims": (2, 0, 1)}), ((cube,), {"dims": (0, 1, 2)}),
            ((empty,), {"dims": (1, 0)}), ((scalar,), {"dims": ()}),
        ],
        prims.slice: [
            ((spaced(5, (2, size)),), {"dim": 1, "start": start, "stop": stop, "step": step})
            for size, start, stop, step in (
                (5, 1, 4, 1), (5, 0, 5, 2), (5, 1, 5, 2), (5, 1, 4, 3), (5, 2, 2, 1), (5, 2, 2, 2),
                (1, 0, 1, 3), (0, 0, 0, 1),
            )
        ],
        prims.flip: [((cube,), {"dims": dims}) for dims in ((), (1,), (0, 2))]
        + [((empty,), {"dims": (0, 1)})],
        prims.pad: [
            ((matrix,), {"low": low, "high": high, "value": 1.5})
            for low, high in (
                ((0, 0), (0, 0)), ((1, 0), (0, 2)), ((-1, 2), (1, -2)), ((-1, -1), (-1, 0)),
                ((0, 5), (0, -6)), ((0, -5), (0, 6)),
            )
        ] + [((empty,), {"low": (1, 0), "high": (0, -1), "value": 0})],
        prims.cat: [
            ((matrix, row, spaced(6, (3, 3))), {"dim": 0}), ((matrix,), {"dim": 1}),
            ((matrix, spaced(6, (2, 0)), matrix + 1), {"dim": 1}), ((empty, row), {"dim": 0}),
        ],
        prims.window: [
            ((spaced(7, (2, 5)),), {"dim": 1, "size": size, "step": step})
            for size, step in ((1, 1), (3, 1), (2, 2), (2, 3), (5, 1), (0, 1), (0, 2))
        ] + [((cube,), {"dim": dim, "size": 2, "step": 1}) for dim in (0, 1)],
    }  # fmt: skip
    yield from given[prim]


def _indexing(prim: Prim) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    cube = spaced(0, (3, 2, 4))
    if prim in (prims.index, prims.index_put):
        for seed, (dims, shape) in enumerate(
            (((0,), (5,)), ((1,), (2, 2)), ((0, 2), (4,)), ((1, 2), (3, 2)), ((0, 1, 2), (7,)),
             ((2,), ()), ((2,), (0,)), ((1,), (1,)))
        ):  # fmt: skip
            indices = [picks(seed + dim, cube.shape[dim], shape) for dim in dims]
            if prim is prims.index:
                yield (cube, *indices), {"dims": dims}
                continue
            values = spaced(seed, tuple(prims.index(cube, *indices, dims=dims).shape))
            for accumulate in (True, False):
                yield (cube, values, *indices), {"dims": dims, "accumulate": accumulate}
        return
    for dim, shape in (
        (0, (5, 2, 4)),
        (1, (3, 2, 4)),
        (2, (2, 1, 6)),
        (0, (1, 1, 1)),
        (1, (3, 0, 4)),
    ):
        index = picks(dim, cube.shape[dim], shape)
        if prim is prims.gather:
            yield (cube, index), {"dim": dim}
        elif prim is prims.scatter_reduce:
            yield from _combined(cube, index, dim)
        else:
            yield (cube, index, spaced(dim + 1, shape)), {"dim": dim}


def _combined(
    cube: torch.Tensor, index: torch.Tensor, dim: int
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    size = cube.numel()
    both = spaced(dim, (size + index.numel(),))  # no two of them equal
    a, src = both[:size].reshape(cube.shape), both[size:].reshape(index.shape)
    for reduce in ("amax", "amin", "prod"):
        yield (a, index, src), {"dim": dim, "reduce": reduce}
    for threshold in (-1.0, 0.0):  # one factor in four is 0, or half of them
        yield (
            (_zeroed(a, threshold), index, _zeroed(src, threshold)),
            {"dim": dim, "reduce": "prod"},
        )


def _zeroed(a: torch.Tensor, threshold: float) -> torch.Tensor:
    return torch.where(a < threshold, 0.0, a)


def _reduction(prim: Prim) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    cube, ones, scalar = spaced(0, (3, 2, 4)), spaced(1, (1, 3, 1)), spaced(2, ())
    operands = [cube, ones]
    if prim not in (prims.amax, prims.amin):
        operands += [spaced(3, (2, 0, 3)), _zeroed(cube, -1.0), _zeroed(cube, 0.0)]
    if prim in (prims.cumsum, prims.cumprod):
        yield from (((a,), {"dim": dim}) for a in operands for dim in range(3))
        return
    yield (scalar,), {"dims": ()}
    yield from (((a,), {"dims": dims}) for a in operands for dims in ((), (0,), (1, 2), (0, 1, 2)))
    if prim in (prims.amax, prims.amin):
        doubled = torch.cat((cube, cube), dim=0)
        yield (doubled,), {"dims": (0,)}


GROUPS = {
    "elementwise unary": _elementwise, "elementwise binary": _elementwise,
    "selection": _selection, "conversion": _shape, "shape": _shape, "indexing": _indexing,
    "reduction": _reduction, "scan": _reduction,
}  # fmt: skip


def calls_of(prim: Prim) -> Iterator[Call]:
    """The calls of one prim; none when this module knows nothing of its group."""
    if prim.group in GROUPS:
        yield from (Call(prim, *call) for call in GROUPS[prim.group](prim))
