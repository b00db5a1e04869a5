"""Hypothesis strategies: calls of every prim on real tensors, with sizes 0 and 1 and every dtype a
prim takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from primops import prims
from primops.opset import OPSET
from primops.passes import decompose
from primops.prim import ExternPrim, Prim
from primops.promotion import COMPUTE_FLOATS, HALF_DTYPES, INTEGER_DTYPES
from primops.testing.trace import trace

Draw = Callable[..., Any]
# Unsigned integers wider than a byte lack kernels in eager torch.
INTEGERS = sorted(INTEGER_DTYPES - {torch.uint16, torch.uint32, torch.uint64}, key=str)
FLOATS = sorted(COMPUTE_FLOATS, key=str)
ALL = [*FLOATS, *sorted(HALF_DTYPES, key=str), *INTEGERS, torch.bool]
FLOAT_ONLY = frozenset(name for name, prim in OPSET.items() if "float" in prim.tags)
INTEGER_ONLY = frozenset({"shift_left", "shift_right", "gcd", "lcm"})
LOGICAL = frozenset({"bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor"})
DIVIDING = frozenset({"fmod", "remainder", "floor_div"})


@dataclass(frozen=True)
class PrimCall:
    """``prim(*operands, **params)``, valid by the prim's schema."""

    prim: Prim
    operands: tuple[Any, ...]
    params: dict[str, Any]

    def run(self) -> Any:
        """The reference's result."""
        return self.prim(*self.operands, **self.params)


def shapes(max_rank: int = 3, min_size: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes, often with sizes 0 and 1."""
    return st.lists(
        st.sampled_from([s for s in (0, 1, 2, 3, 5) if s >= min_size]), max_size=max_rank
    ).map(tuple)


@st.composite
def tensors(
    draw: Draw, dtype: torch.dtype, shape: tuple[int, ...], positive: bool = False
) -> torch.Tensor:
    """Seeded values in [-4, 4] (never 0 when ``positive``), contiguous, transposed or strided in
    memory.
    """
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    order = draw(st.permutations(range(len(shape))))
    stored = tuple(shape[dim] for dim in order)
    if dtype.is_floating_point:
        values = torch.rand(stored, generator=generator, dtype=torch.float64) * 8 - 4
    else:
        values = torch.randint(0 if dtype in (torch.bool, torch.uint8) else -4,
            2 if dtype is torch.bool else 5, stored,
                               generator=generator)  # fmt: skip
    values = values.to(dtype)
    if positive and dtype is not torch.bool:
        values = torch.where(values == 0, torch.ones_like(values), values).abs()
    values = values.permute([order.index(dim) for dim in range(len(shape))])
    if shape and draw(st.integers(0, 3)) == 0:  # every second element of a larger tensor
        return values.repeat_interleave(2, dim=-1)[..., ::2]
    return values


def _elementwise_dtypes(name: str) -> list[torch.dtype]:
    if name in FLOAT_ONLY:
        return FLOATS
    if name in INTEGER_ONLY:
        return INTEGERS
    if name in LOGICAL:
        return [*INTEGERS, torch.bool]
    return [*FLOATS, *INTEGERS]


@st.composite
def _elementwise(draw: Draw, name: str) -> PrimCall:
    dtype = draw(st.sampled_from(_elementwise_dtypes(name)))
    shape = draw(shapes())
    positive = name in DIVIDING or name in INTEGER_ONLY
    operands: list[Any] = [draw(tensors(dtype, shape, positive)) for _ in OPSET[name].operands]
    if len(operands) == 2 and draw(st.booleans()):
        number = draw(st.integers(1, 3))
        operands[draw(st.integers(0, 1))] = bool(number % 2) if dtype is torch.bool else number
    return PrimCall(OPSET[name], tuple(operands), {})


@st.composite
def _selection(draw: Draw, name: str) -> PrimCall:
    dtype, shape = draw(st.sampled_from(ALL)), draw(shapes())
    operands = (
        draw(tensors(torch.bool, shape)),
        draw(tensors(dtype, shape)),
        draw(tensors(dtype, shape)),
    )
    return PrimCall(prims.where, operands, {})


@st.composite
def _conversion(draw: Draw, name: str) -> PrimCall:
    source = draw(st.sampled_from(ALL))
    targets = (
        ALL
        if name == "convert"
        else [d for d in ALL if d.itemsize == source.itemsize and torch.bool not in (d, source)]
    )
    target = draw(st.sampled_from(targets or [source]))
    positive = not target.is_floating_point
    return PrimCall(
        OPSET[name], (draw(tensors(source, draw(shapes()), positive)),), {"dtype": target}
    )


def _factored(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Another shape with as many elements."""
    count = torch.Size(shape).numel()
    if count == 0:
        return draw(st.permutations(shape).map(tuple)) if shape else shape
    sizes: list[int] = []
    while count > 1 and len(sizes) < 4:
        divisor = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
        sizes.append(divisor)
        count //= divisor
    return (*sizes, count)


@st.composite
def _shape(draw: Draw, name: str) -> PrimCall:
    dtype = draw(st.sampled_from(ALL))
    shape = draw(shapes()) or (3,)
    rank = len(shape)
    a = draw(tensors(dtype, shape))
    dim = draw(st.integers(0, rank - 1))
    params: dict[str, Any]
    operands: tuple[Any, ...] = (a,)
    if name == "reshape":
        params = {"shape": _factored(draw, shape)}
    elif name == "permute":
        params = {"dims": tuple(draw(st.permutations(range(rank))))}
    elif name == "slice":
        start = draw(st.integers(0, shape[dim]))
        params = {
            "dim": dim,
            "start": start,
            "stop": draw(st.integers(start, shape[dim])),
            "step": draw(st.integers(1, 3)),
        }
    elif name == "flip":
        params = {"dims": tuple(sorted(draw(st.sets(st.integers(0, rank - 1)))))}
    elif name == "pad":
        low = tuple(draw(st.integers(-size, 2)) for size in shape)
        high = tuple(draw(st.integers(-(size + before), 2)) for size, before in zip(shape, low))
        params = {"low": low, "high": high, "value": draw(st.sampled_from([0, 1]))}
    elif name == "cat":
        sizes = [
            (*shape[:dim], draw(st.integers(0, 3)), *shape[dim + 1 :])
            for _ in range(draw(st.integers(0, 2)))
        ]
        operands, params = (a, *(draw(tensors(dtype, size)) for size in sizes)), {"dim": dim}
    else:
        return draw(_broadcast(a))
    return PrimCall(OPSET[name], operands, params)


@st.composite
def _broadcast(draw: Draw, a: torch.Tensor) -> PrimCall:
    rank = a.ndim + draw(st.integers(0, 2))
    dims = tuple(sorted(draw(st.permutations(range(rank)))[: a.ndim]))
    shape = [draw(st.integers(0, 3)) for _ in range(rank)]
    for size, dim in zip(a.shape, dims):
        shape[dim] = draw(st.integers(0, 3)) if size == 1 else size
    return PrimCall(prims.broadcast_in_dim, (a,), {"shape": tuple(shape), "dims": dims})


def _indices(size: int, shape: tuple[int, ...]) -> st.SearchStrategy[torch.Tensor]:
    count = torch.Size(shape).numel()
    return st.lists(st.integers(0, size - 1), min_size=count, max_size=count).map(
        lambda values: torch.tensor(values, dtype=torch.int64).reshape(shape)
    )


@st.composite
def _indexing(draw: Draw, name: str) -> PrimCall:
    shape = draw(shapes(min_size=1)) or (3,)
    dtype = draw(st.sampled_from(FLOATS if name in ("scatter_add", "index_put") else ALL))
    a = draw(tensors(dtype, shape))
    if name in ("index", "index_put"):
        dims = tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
        index_shape = draw(shapes(2, min_size=1))
        indices = tuple(draw(_indices(shape[dim], index_shape)) for dim in dims)
        if name == "index":
            return PrimCall(prims.index, (a, *indices), {"dims": dims})
        values = draw(tensors(dtype, tuple(prims.index(a, *indices, dims=dims).shape)))
        return PrimCall(prims.index_put, (a, values, *indices), {"dims": dims, "accumulate": True})
    dim = draw(st.integers(0, len(shape) - 1))
    index_shape = tuple(draw(st.integers(1, size)) for size in shape)
    index = draw(_indices(shape[dim], index_shape))
    if name == "gather":
        return PrimCall(prims.gather, (a, index), {"dim": dim})
    return PrimCall(OPSET[name], (a, index, draw(tensors(dtype, index_shape))), {"dim": dim})


@st.composite
def _reduction(draw: Draw, name: str) -> PrimCall:
    has_identity = name in ("sum", "prod", "any", "all", "cumsum", "cumprod")
    shape = draw(shapes(min_size=0 if has_identity else 1)) or (3,)
    a = draw(
        tensors(
            torch.bool if name in ("any", "all") else draw(st.sampled_from([*FLOATS, *INTEGERS])),
            shape,
        )
    )
    if name in ("argmax", "argmin", "cumsum", "cumprod"):
        return PrimCall(OPSET[name], (a,), {"dim": draw(st.integers(0, len(shape) - 1))})
    return PrimCall(
        OPSET[name], (a,), {"dims": tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1)))))}
    )


@st.composite
def _creation(draw: Draw, name: str) -> PrimCall:
    dtype, device = draw(st.sampled_from([*FLOATS, *INTEGERS])), torch.device("cpu")
    if name == "full":
        numbers = {"shape": draw(shapes()), "value": draw(st.integers(0, 9))}
        return PrimCall(prims.full, (), {**numbers, "dtype": dtype, "device": device})
    numbers = {
        "length": draw(st.integers(0, 9)),
        "start": draw(st.integers(0, 5)),
        "step": draw(st.integers(1, 3)),
    }
    return PrimCall(prims.iota, (), {**numbers, "dtype": dtype, "device": device})


@st.composite
def _random(draw: Draw, name: str) -> PrimCall:
    if name == "random_seed":
        return PrimCall(prims.random_seed, (), {"device": torch.device("cpu")})
    seed = torch.tensor(draw(st.integers(-(2**63), 2**63 - 1)), dtype=torch.int64)
    return PrimCall(
        getattr(prims, name),
        (seed,),
        {"shape": draw(shapes()), "offset": draw(st.integers(0, 2**40))},
    )


@st.composite
def _window(draw: Draw, name: str) -> PrimCall:
    shape = draw(shapes(min_size=1)) or (3,)
    dim = draw(st.integers(0, len(shape) - 1))
    params = {"dim": dim, "size": draw(st.integers(0, shape[dim])), "step": draw(st.integers(1, 3))}
    return PrimCall(prims.window, (draw(tensors(draw(st.sampled_from(ALL)), shape)),), params)


@st.composite
def _scatter_reduce(draw: Draw, name: str) -> PrimCall:
    call = draw(_indexing("scatter_add"))
    return PrimCall(
        prims.scatter_reduce,
        call.operands,
        {**call.params, "reduce": draw(st.sampled_from(["prod", "amax", "amin"]))},
    )


def _branch(function: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    return decompose(trace(function, *tensors))


@st.composite
def _control(draw: Draw, name: str) -> PrimCall:
    x, y = (draw(tensors(torch.float32, (3, *draw(shapes(1))))) for _ in range(2))
    if name == "cond":
        graphs = {"true_graph": _branch(lambda a: a + 1, x), "false_graph": _branch(torch.neg, x)}
        return PrimCall(prims.cond, (torch.tensor(draw(st.booleans())), x), graphs)
    if name == "call":
        graph = _branch(lambda a, b: (a * 2, b - 1), x, y)
        return PrimCall(prims.call, (x, y), {"graph": graph})
    if name == "while_loop":
        start = torch.ones(2) if y.numel() == 0 else y
        graphs = {
            "cond_graph": _branch(lambda a: a.sum() < 9, start),
            "body_graph": _branch(lambda a: a.abs() + 1, start),
        }
        return PrimCall(prims.while_loop, (start,), graphs)
    step = _branch(lambda s, a: (s * 0.5 + a, s - a), x[0], x[0])
    return PrimCall(
        prims.scan, (torch.zeros_like(x[0]), x), {"body_graph": step, "carried": 1, "length": 3}
    )


def _convolution(draw: Draw, dtype: torch.dtype) -> tuple[Any, ...]:
    """Operands of a convolution of 1 to 3 dims, also transposed, grouped, and channels last."""
    rank, groups, transposed = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.booleans())
    batch, inner, outer, *kernel = (draw(st.integers(1, 3)) for _ in range(3 + rank))
    sizes = [k * 2 + draw(st.integers(0, 2)) for k in kernel]
    weight = (groups * (inner if transposed else outer), outer if transposed else inner, *kernel)
    plain = torch.contiguous_format
    image, weights = (
        draw(tensors(dtype, s)).clone(memory_format=plain)
        for s in ((batch, groups * inner, *sizes), weight)
    )
    if rank == 2 and draw(st.booleans()):
        image = image.contiguous(memory_format=torch.channels_last)
    bias = draw(tensors(dtype, (groups * outer,))) if draw(st.booleans()) else None
    step, dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    padding = draw(st.integers(0, 0 if transposed else 1))
    return (
        image,
        weights,
        bias,
        [step] * rank,
        [padding] * rank,
        [dilation] * rank,
        transposed,
        [0] * rank,
        groups,
    )


def _square(a: torch.Tensor) -> torch.Tensor:
    return a @ a.mT + torch.eye(len(a), dtype=a.dtype)


_EXTERN: dict[str, Callable[[Draw, torch.Tensor], tuple[Any, ...]]] = {
    "mm": lambda draw, a: (a, draw(tensors(a.dtype, (a.shape[1], draw(st.integers(0, 3)))))),
    "bmm": lambda draw, a: (
        a.expand(2, *a.shape),
        draw(tensors(a.dtype, (2, a.shape[1], draw(st.integers(0, 3))))),
    ),
    "convolution": lambda draw, a: _convolution(draw, a.dtype),
    "sort": lambda draw, a: (a, draw(st.integers(0, 1))),
    "topk": lambda draw, a: (a, draw(st.integers(0, a.shape[1]))),
    "kth": lambda draw, a: (a, draw(st.integers(1, len(a))), 0, draw(st.booleans())),
    "mode": lambda draw, a: (a, draw(st.integers(0, 1)), draw(st.booleans())),
    "search": lambda draw, a: (
        a.sort().values,
        draw(tensors(a.dtype, (len(a), draw(st.integers(0, 4))))),
    ),
    "logcumsumexp": lambda draw, a: (a, draw(st.integers(0, 1))),
    "running_extreme": lambda draw, a: (a, draw(st.integers(0, 1))),
    "masked_scatter": lambda draw, a: (a, draw(tensors(torch.bool, tuple(a.shape))), a + 1),
    "fft_r2c": lambda draw, a: (a, [draw(st.integers(0, 1))], 0, draw(st.booleans())),
    "fft_c2r": lambda draw, a: (torch.complex(a, a), [1], 2, 2 * a.shape[1] - 1),
    "fft_c2c": lambda draw, a: (torch.complex(a, a), [0], 0, True),
    "complex": lambda draw, a: (a, a),
    "cholesky": lambda draw, a: (_square(a),),
    "lu": lambda draw, a: (a,),
    "ldl": lambda draw, a: (_square(a),),
    "qr": lambda draw, a: (a, draw(st.sampled_from(["reduced", "complete"]))),
    "svd": lambda draw, a: (a, draw(st.booleans())),
    "eigh": lambda draw, a: (_square(a),),
    "eig": lambda draw, a: (_square(a),),
    "solve": lambda draw, a: (_square(a), a),
    "det": lambda draw, a: (_square(a),),
    "matrix_exp": lambda draw, a: (_square(a),),
    "as_strided": lambda draw, a: (a, [draw(st.integers(1, len(a))), 2], [1, 0]),
    "to_device": lambda draw, a: (a,),
    "resample": lambda draw, a: (a[None, None], [draw(st.integers(1, 5)), 3], draw(st.booleans())),
}


@st.composite
def _extern(draw: Draw, name: str) -> PrimCall:
    """Extern prims on a small matrix."""
    a = draw(
        tensors(draw(st.sampled_from(FLOATS)), (draw(st.integers(1, 4)), draw(st.integers(1, 4))))
    )
    return PrimCall(OPSET[name], _EXTERN[name](draw, a), {})


_BY_NAME: dict[str, Callable[[str], st.SearchStrategy[PrimCall]]] = {
    "window": _window,
    "scatter_reduce": _scatter_reduce,
    **dict.fromkeys(_EXTERN, _extern),
}
_BY_GROUP: dict[str, Callable[[str], st.SearchStrategy[PrimCall]]] = {
    "elementwise unary": _elementwise, "elementwise binary": _elementwise,
    "comparison": _elementwise,
    "selection": _selection, "conversion": _conversion, "shape": _shape, "indexing": _indexing,
    "reduction": _reduction,
    "scan": _reduction, "creation": _creation, "random": _random, "control flow": _control,
}  # fmt: skip
GENERATED = tuple(
    n
    for n, p in OPSET.items()
    if n in _BY_NAME or (p.group in _BY_GROUP and not isinstance(p, ExternPrim))
)
"""Prims that ``prim_calls`` makes calls of: all but the extern prims whose operands need a model of
their own.
"""


def prim_calls(name: str | None = None) -> st.SearchStrategy[PrimCall]:
    """Calls of one prim, or of any."""
    if name is not None:
        return (_BY_NAME.get(name) or _BY_GROUP[OPSET[name].group])(name)
    return st.sampled_from(GENERATED).flatmap(prim_calls)
