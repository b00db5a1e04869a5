"""Defines the meaning of kernels by a slow and simple evaluator on torch tensors.

Points are evaluated together: a value is a tensor of shape (points, 1) in outer bodies, and
(points, reduction points) in inner ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import sympy
import torch

from loopir.errors import LoopIRError

from . import ops
from .expr import FloorDiv, Mod
from .kernel import Instruction, Kernel, Range, Value

CHUNK = 1 << 21
EXACT = frozenset(
    "load constant where neg abs floor ceil trunc round minimum maximum bitcast".split()
)
Rounding: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

TORCH_NAMES = {
    "not": "bitwise_not",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "floordiv": "floor_divide",
}
"""The operations that torch names differently, with torch's names."""
ELEMENTWISE: dict[str, Callable[..., torch.Tensor]] = {
    spec.name: getattr(torch, TORCH_NAMES.get(spec.name, spec.name))
    for spec in (*ops.UNARY, *ops.BINARY, *ops.COMPARISON, *ops.SELECTION)
}


def evaluate_expr(expr: sympy.Expr, values: dict[str, torch.Tensor | int]) -> torch.Tensor | int:
    """The value of an index expression; symbols come from ``values`` (ints or int64 tensors)."""
    if isinstance(expr, sympy.Symbol):
        return values[expr.name]
    if isinstance(expr, sympy.Integer):
        return int(expr)
    args = [evaluate_expr(arg, values) for arg in expr.args]  # type: ignore[arg-type]
    if isinstance(expr, sympy.Add):
        return sum(args[1:], args[0])
    if isinstance(expr, sympy.Mul):
        return math.prod(args[1:], start=args[0])  # type: ignore[return-value]
    if isinstance(expr, FloorDiv):
        return args[0] // args[1]
    if isinstance(expr, Mod):
        return args[0] % args[1]
    if isinstance(expr, sympy.Pow):
        return args[0] ** args[1]
    if isinstance(expr, sympy.Min | sympy.Max):
        return _extreme(args, isinstance(expr, sympy.Max))
    raise LoopIRError(f"not an index expression: {expr}")


def _extreme(args: list[torch.Tensor | int], largest: bool) -> torch.Tensor | int:
    if all(isinstance(arg, int) for arg in args):
        return max(args) if largest else min(args)
    result = torch.as_tensor(args[0])
    for arg in args[1:]:
        result = (torch.maximum if largest else torch.minimum)(result, torch.as_tensor(arg))
    return result


def philox_uniform(seed: torch.Tensor, counter: torch.Tensor, shared: bool = False) -> torch.Tensor:
    """``ops.uniform``: lane ``counter % 4`` of Philox4x32-10 at block ``counter // 4``, as float32
    in [0, 1); ``shared``: ``ops.uniform16``, of which two numbers share a lane.
    """
    seed, counter = torch.broadcast_tensors(seed.to(torch.int64), counter.to(torch.int64))
    low = 0xFFFFFFFF
    block = counter >> (3 if shared else 2)
    c = [
        block & low,
        (block >> 32) & low,
        torch.full_like(block, int(shared)),
        torch.zeros_like(block),
    ]
    k0, k1 = seed & low, (seed >> 32) & low
    for _ in range(7 if shared else 10):
        high0, low0 = _multiply(c[0], 0xD2511F53)
        high1, low1 = _multiply(c[2], 0xCD9E8D57)
        c = [high1 ^ c[1] ^ k0, low1, high0 ^ c[3] ^ k1, low0]
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    lane = (counter >> 1 if shared else counter) & 3
    word = torch.where(
        lane < 2, torch.where(lane == 0, c[0], c[1]), torch.where(lane == 2, c[2], c[3])
    )
    if shared:
        word = torch.where(counter & 1 == 1, (word >> 16) | ((word & 0xFFFF) << 16), word)
    return (word >> 8).to(torch.float32) * 2.0**-24


def _multiply(a: torch.Tensor, constant: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The high and low 32 bits of a 32 x 32 bit product, computed in int64, which the full product
    would overflow.
    """
    low_part = (a & 0xFFFF) * constant
    high_part = (a >> 16) * constant
    total = (high_part & 0xFFFF) * 65536 + low_part
    return ((high_part >> 16) + (total >> 32)) & 0xFFFFFFFF, total & 0xFFFFFFFF


def reduce_tensor(kind: str, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Reduces dimension 1 of ``value`` to size 1; see ``REDUCTIONS`` for the kinds."""
    if kind in ("sum", "prod"):
        return getattr(torch, kind)(
            value, dim=1, keepdim=True, dtype=torch.promote_types(value.dtype, dtype)
        ).to(dtype)
    if kind in ("any", "all", "argmax", "argmin"):
        return getattr(torch, kind)(value, dim=1, keepdim=True)
    if value.shape[1] == 0:
        limit = _limits(value.dtype)[kind == "min"]
        return torch.full((value.shape[0], 1), limit, dtype=dtype)
    return getattr(torch, f"a{kind}")(value, dim=1, keepdim=True)


def _limits(dtype: torch.dtype) -> tuple[float | int, float | int]:
    if dtype.is_floating_point:
        return -math.inf, math.inf
    if dtype is torch.bool:
        return False, True
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


@dataclass(slots=True)
class _Scope:
    """The values and index symbols that an instruction can read, and the shape of its result."""

    values: dict[str, torch.Tensor]
    symbols: dict[str, torch.Tensor | int]
    shape: tuple[int, int]

    def operands(self, step: Instruction) -> list[torch.Tensor]:
        return [self.values[arg.name] for arg in step.args if isinstance(arg, Value)]


class _Evaluation:
    """The state of one launch: flat views of the buffers, and the values of a chunk of points."""

    def __init__(
        self,
        kernel: Kernel,
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[int],
        rounding: Rounding | None,
        parts: int = 1,
    ) -> None:
        self.kernel, self.rounding, self.parts = kernel, rounding, parts
        self.factors = {
            step.result: tuple(map(str, step.args)) for step in kernel.steps if step.op == "mul"
        }
        self.sizes: dict[str, torch.Tensor | int] = {
            s.name: int(v) for s, v in zip(kernel.sizes, sizes, strict=True)
        }
        self.buffers = {}
        for buffer, tensor in zip(kernel.buffers, tensors, strict=True):
            numel = int(evaluate_expr(buffer.numel, self.sizes))
            if tensor.dtype != buffer.dtype:
                raise LoopIRError(
                    f"{kernel.name}: {buffer.name} is {buffer.dtype}, got {tensor.dtype}"
                )
            self.buffers[buffer.name] = torch.as_strided(tensor, (numel,), (1,))
        self.device = tensors[0].device if tensors else torch.device("cpu")

    def run(self) -> None:
        points, total = self._grid(self.kernel.ranges)
        inner, inner_total = self._grid(self.kernel.reduction)
        step = max(1, min(CHUNK // max(1, inner_total), -(-total // self.parts)))
        for start in range(0, total, step):
            chunk = {name: i[start : start + step].unsqueeze(1) for name, i in points.items()}
            row = {name: index.unsqueeze(0) for name, index in inner.items()}
            count = min(step, total - start)
            self._run_chunk({**self.sizes, **chunk}, row, count, inner_total)

    def _grid(self, ranges: tuple[Range, ...]) -> tuple[dict[str, torch.Tensor], int]:
        extents = [int(evaluate_expr(item.extent, self.sizes)) for item in ranges]
        total = math.prod(extents)
        flat = torch.arange(total, device=self.device)
        result = {}
        for item, extent in zip(reversed(ranges), reversed(extents), strict=True):
            result[item.symbol.name] = flat % max(extent, 1)
            flat = flat // max(extent, 1)
        return result, total

    def _run_chunk(self, symbols: dict, inner: dict, count: int, inner_count: int) -> None:
        values: dict[str, torch.Tensor] = {}
        for body in self.kernel.bodies:
            visible = {**symbols, **inner} if body.inner else symbols
            scope = _Scope(dict(values), visible, (count, inner_count if body.inner else 1))
            for instruction in body.instructions:
                self._step(instruction, scope)
                name = instruction.result
                if name is not None and (not body.inner or instruction.op == "reduce"):
                    values[name] = scope.values[name]
                    if instruction.op == "indirect":
                        symbols[name] = scope.values[name]

    def _step(self, step: Instruction, scope: _Scope) -> None:
        if step.op == "store":
            self._store(step, scope)
            return
        assert step.result is not None
        result = self._compute(step, scope)
        if self.rounding is not None and step.op not in EXACT and result.dtype.is_floating_point:
            for _ in range(_roundings(step, scope.shape[1])):
                result = self.rounding(result)
        scope.values[step.result] = result
        if step.op == "indirect":
            scope.symbols[step.result] = result

    def _compute(self, step: Instruction, scope: _Scope) -> torch.Tensor:
        op, dtype, operands, shape = step.op, step.dtype, scope.operands(step), scope.shape
        if op == "load":
            return self._load(step, scope)
        if op == "index_expr":
            return self._index(step.args[0], scope).to(dtype)
        if op == "constant":
            return torch.full((1, 1), step.args[0], dtype=dtype, device=self.device)  # type: ignore[arg-type]
        if op == "indirect":
            return self._indirect(operands[0], int(evaluate_expr(step.args[1], self.sizes)))  # type: ignore[arg-type]
        if op == "cast":
            return operands[0].to(dtype)
        if op == "bitcast":
            return operands[0].view(dtype)  # type: ignore[arg-type]
        if op in ("uniform", "uniform16"):
            return philox_uniform(*operands, shared=op == "uniform16")
        if (
            op in ("reduce", "scan")
            and self.rounding is not None
            and step.args[0] in ("sum", "prod")
        ):
            operands = [self._perturbed(step, operands[0].expand(shape), scope.values)]
        if op == "reduce":
            return reduce_tensor(str(step.args[0]), operands[0].expand(shape), dtype)  # type: ignore[arg-type]
        if op == "scan":
            scan = {"sum": torch.cumsum, "prod": torch.cumprod}[str(step.args[0])]
            return scan(operands[0].expand(shape), 1, dtype=dtype)
        return ELEMENTWISE[op](*operands)

    def _perturbed(
        self, step: Instruction, terms: torch.Tensor, values: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """The terms of a sum or product, at random either rounded once more or computed exactly,
        even if they are products, as in a fused multiply-add: single terms may overflow where their
        sum does not.
        """
        if self.rounding is None or not terms.dtype.is_floating_point:
            return terms
        if step.op == "scan" or bool(torch.rand(()) < 0.5):
            return self.rounding(terms)
        factors = self.factors.get(str(step.args[1]), (str(step.args[1]),))
        return math.prod(values[factor].double() for factor in factors).expand(terms.shape)  # type: ignore[union-attr, return-value]

    def _index(self, expr: object, scope: _Scope) -> torch.Tensor:
        value = evaluate_expr(expr, scope.symbols)  # type: ignore[arg-type]
        return torch.as_tensor(value, dtype=torch.int64, device=self.device).expand(scope.shape)

    def _indirect(self, value: torch.Tensor, size: int) -> torch.Tensor:
        value = value.to(torch.int64)
        if value.numel() and not bool(((value >= 0) & (value < size)).all()):
            raise IndexError(f"{self.kernel.name}: index out of range [0, {size})")
        return value

    def _load(self, step: Instruction, scope: _Scope) -> torch.Tensor:
        buffer, index, _, other = step.args
        flat = self.buffers[str(buffer)]
        positions, masks = self._index(index, scope), scope.operands(step)
        if not masks:
            return flat[self._checked(str(buffer), positions)]
        mask = masks[0].expand(scope.shape)
        positions = self._checked(str(buffer), torch.where(mask, positions, 0), mask)
        filler = torch.full((), other, dtype=flat.dtype, device=flat.device)  # type: ignore[arg-type]
        if flat.numel() == 0:
            return filler.expand(scope.shape)
        return torch.where(mask, flat[positions], filler)

    def _store(self, step: Instruction, scope: _Scope) -> None:
        buffer, index, _, mode = step.args
        flat, (value,) = self.buffers[str(buffer)], scope.operands(step)
        positions = self._checked(str(buffer), self._index(index, scope)).reshape(-1)
        source = value.expand(scope.shape).reshape(-1)
        if mode == "add" and self.rounding is not None:
            order = torch.randperm(len(source), device=self.device)
            positions, source = positions[order], source[order]
        flat.index_put_((positions,), source, accumulate=mode == "add")

    def _checked(
        self, buffer: str, positions: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        size = self.buffers[buffer].numel()
        wrong = (positions < 0) | (positions >= size)
        if mask is not None:
            wrong &= mask
        if positions.numel() and bool(wrong.any()):
            raise LoopIRError(
                f"{self.kernel.name}: an access of {buffer} is outside its {size} elements (C4.4)"
            )
        return positions


def _roundings(step: Instruction, terms: int) -> int:
    """The minimum number of roundings of a result in any order of computation: log2(n) for a sum of
    ``n`` terms.
    """
    adds_up = step.op == "reduce" and step.args[0] in ("sum", "prod")
    return max(1, terms.bit_length() - 1) if adds_up else 1


def evaluate_kernel(
    kernel: Kernel,
    tensors: Sequence[torch.Tensor],
    sizes: Sequence[int] = (),
    rounding: Rounding | None = None,
    parts: int = 1,
) -> None:
    """Runs ``kernel`` on ``tensors`` (in ``kernel.buffers`` order) in place, as a built kernel
    would; ``sizes`` are in ``kernel.sizes`` order.

    ``rounding`` is applied to the floating result of each operation, as often as any implementation
    must round it, and to the terms of sums and products (half of them, at random, are computed
    exactly instead); additions to the same element run in random order. With a ``rounding`` that
    errs by an ULP, results differ as much as any order of operations may make them differ. The
    points run one part after the other, in ``parts`` parts. Raises
    IndexError for an indirect index out of range (C4.7) and :class:`LoopIRError` for an access out
    of bounds.
    """
    _Evaluation(kernel, tensors, sizes, rounding, parts).run()
