"""The facts about a kernel that instruction selection uses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import sympy
import torch
from loopir import Instruction, definitions

from inductor_triton.kernels.passes.online_softmax import OnlinePair
from inductor_triton.spec import Config

from .indexing import Bounds
from .ops import NO_PRODUCTS

Dtypes = Mapping[str, torch.dtype]


@dataclass
class Facts:
    """Facts of a kernel before any instruction is replaced.

    Attributes:
        steps: the instructions of all bodies.
        dtypes: the buffers' dtypes; a buffer without one is a matrix operand of 16 bits.
        config: block sizes and grid.
        axes: the axis of the tiling that a loop symbol belongs to.
        symbol_bounds: the ranges of the loop symbols.
        index_type: the type of indices: ``int32``, ``int64`` or ``dynamic``.
        softmaxes: sums of exponentials of differences from a maximum. Each sum is at least 1, and
            no exponential is above 1.
        row: the loop symbol of a row whose elements stay in registers between two passes.
    """

    steps: Sequence[Instruction]
    dtypes: Dtypes
    config: Config | None = None
    axes: Mapping[sympy.Symbol, str] = field(default_factory=dict)
    symbol_bounds: Bounds = field(default_factory=dict)
    index_type: str = ""
    softmaxes: Sequence[OnlinePair] = ()
    row: sympy.Symbol | None = None
    narrow: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        # the summed exponentials are the same values that are divided by the sum
        terms = (str(pair.total.args[1]) for pair in self.softmaxes)
        self.narrow = narrow_values(self.steps, self.dtypes).union(terms)

    @cached_property
    def sums(self) -> frozenset[str]:
        """The sums of softmaxes."""
        return frozenset(str(pair.total.result) for pair in self.softmaxes)

    @cached_property
    def maxima(self) -> frozenset[str]:
        """The maxima of softmaxes."""
        return frozenset(str(pair.maximum.result) for pair in self.softmaxes)

    @cached_property
    def readers(self) -> Mapping[str, Sequence[Instruction]]:
        """The instructions that read each value."""
        found: dict[str, list[Instruction]] = defaultdict(list)
        for step in self.steps:
            for name in dict.fromkeys(step.reads):
                found[name].append(step)
        return found

    @cached_property
    def shared_products(self) -> frozenset[str]:
        """Products that are used more than once: if one were fused into an addition, one use would
        get the exact product and another the rounded one, so that not even ``x - x`` would be 0.
        """
        uses = Counter(name for step in self.steps for name in step.reads)
        products = definitions(step for step in self.steps if step.op not in NO_PRODUCTS)
        return frozenset(name for name in products if uses[name] > 1)

    @cached_property
    def value_axes(self) -> Mapping[str, frozenset[str]]:
        """The axes along which each value varies."""
        along: dict[str, frozenset[str]] = {}
        names = {symbol.name: frozenset((axis,)) for symbol, axis in self.axes.items()}
        for step in self.steps:
            if step.result is None:
                continue
            read = (along.get(name, names.get(name, frozenset())) for name in step.reads)
            along[step.result] = frozenset().union(*read)
            if step.op == "reduce":
                along[step.result] |= frozenset(self.axes.values())
                along[step.result] -= {"r"}
        return along

    def is_constant(self, name: str) -> bool:
        """Whether a value is a constant."""
        return any(step.result == name and step.op == "constant" for step in self.steps)

    def sum_before(self, name: str) -> str | None:
        """The sum of a softmax that is computed before the value ``name``, if any."""
        order = [*definitions(self.steps)]
        earlier = sorted(self.sums.intersection(order[: order.index(name)]))
        return earlier[0] if earlier else None

    def expr_axes(self, expr: sympy.Expr) -> frozenset[str]:
        """The axes along which an index varies."""
        return frozenset(self.axes[s] for s in expr.free_symbols if s in self.axes)  # type: ignore[index]


JUMPS = frozenset("floor ceil trunc round sign fmod remainder eq ne lt le".split())
"""Operations whose result jumps: a small error of an operand can become a large one."""


def narrow_values(steps: Sequence[Instruction], dtypes: Dtypes) -> frozenset[str]:
    """The values that are rounded to at most 16 bits on every path to memory, and before each jump.
    ``dtypes``: see :class:`Facts`.
    """
    wide: set[str] = set()
    for step in reversed(steps):
        if step.op == "cast" and step.dtype is not None and is_narrow(step.dtype):
            continue
        stores_narrow = step.op == "store" and is_narrow(
            dtypes.get(str(step.args[0]), torch.float16)
        )
        if (
            step.op == "indirect"
            or (step.op == "store" and not stores_narrow)
            or step.result in wide
            or jumps(step)
        ):
            wide.update(step.reads)
    return frozenset(step.result for step in steps if step.result is not None) - wide


def jumps(step: Instruction) -> bool:
    """Whether the result jumps where an operand changes a little; casts to integers truncate."""
    to_integer = step.op == "cast" and step.dtype is not None and not step.dtype.is_floating_point
    return to_integer or step.op in JUMPS


def is_narrow(dtype: torch.dtype) -> bool:
    """Whether a dtype is a float of at most 16 bits."""
    return dtype.is_floating_point and dtype.itemsize <= 2
