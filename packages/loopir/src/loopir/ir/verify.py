"""Checks of contract C4, which every kernel must satisfy before a code generator receives it."""

from __future__ import annotations

import itertools
import math

import sympy
import torch

from loopir.errors import VerificationError

from .evaluate import evaluate_expr
from .expr import symbols_of
from .kernel import STORED_8_BITS, Body, Instruction, Kernel, KernelBuffer, Range, Value
from .ops import OPS, REDUCED_DTYPES, REDUCTIONS, Domain, DtypeRule

STORAGE_ONLY = (torch.float16, torch.bfloat16, *STORED_8_BITS)
MOVES = {"load", "store", "cast", "bitcast", "where", "constant"}
ENUMERABLE = 4096


def check_kernel(kernel: Kernel) -> None:
    """Raises :class:`VerificationError` naming the clause that ``kernel`` violates.

    - C4.1 well-formed: bodies alternate between outer and inner, and none is empty; inner ones need
      a reduction
    - C4.2 SSA and scoping; names are unique over symbols, buffers and values
    - C4.3 dtypes follow the op table; no arithmetic in float16/bfloat16
    - C4.4 symbols of an index are in scope; accesses are in bounds (checked where the hints decide
      it)
    - C4.5 no point reads what another one stores (checked for equal buffers with affine indices)
    - C4.6 two points never store to the same location, except with mode "add" (checked where the
      hints decide it)
    - C4.7 ``indirect`` takes an integer value and a size over size symbols
    """
    _Checker(kernel).check()


def format_failing(kernel: Kernel, body: int, index: int) -> str:
    """The location of an instruction: kernel, body and position."""
    return f"kernel {kernel.name}, body {body}, instruction {index}"


class _Checker:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers: dict[str, KernelBuffer] = {buffer.name: buffer for buffer in kernel.buffers}
        self.dtypes: dict[str, torch.dtype] = {}
        self.symbols = {symbol.name for symbol in kernel.sizes}
        self.names: set[str] = set()
        self.where = f"kernel {kernel.name}"

    def fail(self, clause: str, message: str) -> VerificationError:
        return VerificationError(clause, f"{self.where}: {message}")

    def check(self) -> None:
        self._check_header()
        self._check_structure()
        for number, body in enumerate(self.kernel.bodies):
            self._check_body(number, body)
        self._check_roles()
        check_accesses(self.kernel)

    def _declare(self, name: str) -> None:
        if name in self.names:
            raise self.fail("C4.2", f"the name {name} is defined twice")
        self.names.add(name)

    def _check_header(self) -> None:
        kernel = self.kernel
        for name in [*(b.name for b in kernel.buffers), *(s.name for s in kernel.sizes)]:
            self._declare(name)
        for item in (*kernel.ranges, *kernel.reduction):
            self._declare(item.symbol.name)
            self._check_sizes_only(item.extent)
        for buffer in kernel.buffers:
            if buffer.role not in ("in", "out", "inout"):
                raise self.fail("C4.1", f"{buffer.name} has role {buffer.role!r}")
            self._check_sizes_only(buffer.numel)
        hinted = [symbol for symbol, _ in kernel.hints]
        if hinted != [symbol for symbol in kernel.sizes if symbol in hinted]:
            raise self.fail("C4.1", "hints follow the order of sizes and name only sizes")
        loops = {item.symbol for item in (*kernel.ranges, *kernel.reduction)}
        if kernel.vector_axis is not None and kernel.vector_axis not in loops:
            raise self.fail("C4.1", f"vector axis {kernel.vector_axis} is no loop of the kernel")
        if kernel.tile_axis is not None and kernel.tile_axis not in {
            r.symbol for r in kernel.ranges
        } - {kernel.vector_axis}:
            raise self.fail(
                "C4.1", f"tile axis {kernel.tile_axis} is no range beside the vector axis"
            )

    def _check_sizes_only(self, expr: sympy.Expr) -> None:
        unknown = {s.name for s in symbols_of(expr)} - {s.name for s in self.kernel.sizes}
        if unknown:
            raise self.fail(
                "C4.4", f"{expr} uses {sorted(unknown)}, which are no size symbols of the kernel"
            )

    def _check_structure(self) -> None:
        bodies = self.kernel.bodies
        if not bodies or any(not body.instructions for body in bodies):
            raise self.fail("C4.1", "a kernel has bodies, and no body is empty")
        if any(not a.inner and not b.inner for a, b in itertools.pairwise(bodies)):
            raise self.fail("C4.1", "two adjacent outer bodies are one body")
        if any(body.inner for body in bodies) != bool(self.kernel.reduction):
            raise self.fail("C4.1", "a kernel has a reduction exactly when it has inner bodies")

    def _check_body(self, number: int, body: Body) -> None:
        outer_dtypes, outer_symbols = dict(self.dtypes), set(self.symbols)
        loops = (*self.kernel.ranges, *self.kernel.reduction) if body.inner else self.kernel.ranges
        self.symbols |= {item.symbol.name for item in loops}
        for index, instruction in enumerate(body.instructions):
            self.where = format_failing(self.kernel, number, index)
            self._check_instruction(instruction, body)
            if (
                body.inner
                and instruction.op == "reduce"
                and instruction.result
                and instruction.dtype
            ):
                outer_dtypes[instruction.result] = instruction.dtype
        if body.inner:
            self.dtypes, self.symbols = outer_dtypes, outer_symbols

    def _check_instruction(self, step: Instruction, body: Body) -> None:
        if step.op not in OPS:
            raise self.fail("C4.2", f"unknown operation {step.op}")
        spec = OPS[step.op]
        operands = [arg for arg in step.args if isinstance(arg, Value)]
        for operand in operands:
            if operand.name not in self.dtypes:
                raise self.fail(
                    "C4.2",
                    f"{step.op} reads {operand.name}, which is not defined or not visible here",
                )
        if step.op != "load" and len(operands) != spec.arity:
            raise self.fail("C4.2", f"{step.op} takes {spec.arity} values, got {len(operands)}")
        dtypes = [self.dtypes[operand.name] for operand in operands]
        self._check_dtypes(step, dtypes)
        check = getattr(self, f"_check_{step.op}", None)
        if check is not None:
            check(step, dtypes, body)
        if step.result is None:
            return
        self._declare(step.result)
        if step.dtype is None:
            raise self.fail("C4.3", f"{step.result} has no dtype")
        self.dtypes[step.result] = step.dtype

    def _check_dtypes(self, step: Instruction, dtypes: list[torch.dtype]) -> None:
        spec = OPS[step.op]
        if step.op not in MOVES and any(dtype in STORAGE_ONLY for dtype in [*dtypes, step.dtype]):
            raise self.fail("C4.3", f"{step.op} in a 16-bit float: cast to float32 first")
        if step.op in ("load", "where", "indirect", "store", "reduce", "uniform", "uniform16"):
            return
        if len(set(dtypes)) > 1:
            raise self.fail("C4.3", f"{step.op} of {dtypes}: operands have one dtype")
        expected = {DtypeRule.SAME: dtypes[:1], DtypeRule.BOOL: [torch.bool]}.get(spec.rule)
        if expected and step.dtype != expected[0]:
            raise self.fail("C4.3", f"{step.op} of {expected[0]} is not {step.dtype}")
        if dtypes and not _accepts(spec.domain, dtypes[0]):
            raise self.fail("C4.3", f"{step.op} takes {spec.domain.value}, got {dtypes[0]}")

    def _check_load(self, step: Instruction, dtypes: list[torch.dtype], body: Body) -> None:
        name, index, mask, other = step.args
        buffer = str(name)
        if buffer not in self.buffers:
            raise self.fail("C4.2", f"load of unknown buffer {buffer}")
        if step.dtype != self.buffers[buffer].dtype:
            raise self.fail(
                "C4.3", f"load of {buffer} as {step.dtype}; it is {self.buffers[buffer].dtype}"
            )
        if (mask is None) != (other is None) or (mask is not None and dtypes != [torch.bool]):
            raise self.fail("C4.3", "a masked load has a bool mask and a number for the rest")
        self._check_index(index)

    def _check_store(self, step: Instruction, dtypes: list[torch.dtype], body: Body) -> None:
        name, index, _, mode = step.args
        buffer = str(name)
        if buffer not in self.buffers or mode not in (None, "add"):
            raise self.fail("C4.2", f"store to {buffer} with mode {mode!r}")
        if dtypes[0] != self.buffers[buffer].dtype:
            raise self.fail(
                "C4.3", f"store of {dtypes[0]} to {buffer}, which is {self.buffers[buffer].dtype}"
            )
        if mode == "add" and dtypes[0] in (*STORAGE_ONLY, torch.bool):
            raise self.fail("C4.3", f"store with mode 'add' of {dtypes[0]}")
        self._check_index(index)

    def _check_index_expr(self, step: Instruction, dtypes: list[torch.dtype], body: Body) -> None:
        self._check_index(step.args[0])

    def _check_indirect(self, step: Instruction, dtypes: list[torch.dtype], body: Body) -> None:
        if dtypes[0].is_floating_point or dtypes[0] is torch.bool:
            raise self.fail("C4.7", f"indirect of {dtypes[0]}")
        if not isinstance(step.args[1], sympy.Expr):
            raise self.fail("C4.7", "indirect needs a size expression")
        self._check_sizes_only(step.args[1])
        self.symbols.add(str(step.result))

    def _check_reduce(self, step: Instruction, dtypes: list[torch.dtype], body: Body) -> None:
        kind = step.args[0]
        if not body.inner or kind not in REDUCTIONS:
            raise self.fail(
                "C4.1",
                f"reduce {kind!r} belongs in an inner body, with a kind of {sorted(REDUCTIONS)}",
            )
        expected = REDUCED_DTYPES.get(str(kind), dtypes[0])
        if step.dtype != expected or (kind in ("any", "all")) != (dtypes[0] is torch.bool):
            raise self.fail("C4.3", f"reduce {kind!r} of {dtypes[0]} to {step.dtype}")

    def _check_scan(self, step: Instruction, dtypes: list[torch.dtype], body: Body) -> None:
        if not body.inner or len(self.kernel.reduction) != 1 or step.args[0] not in ("sum", "prod"):
            raise self.fail(
                "C4.1", "scan 'sum' or 'prod' belongs in an inner body over one reduction range"
            )

    def _check_uniform(self, step: Instruction, dtypes: list[torch.dtype], body: Body) -> None:
        if step.dtype != torch.float32 or dtypes != [torch.int64, torch.int64]:
            raise self.fail(
                "C4.3", f"{step.op} takes an int64 seed and counter and gives float32, got {dtypes}"
            )

    def _check_where(self, step: Instruction, dtypes: list[torch.dtype], body: Body) -> None:
        if dtypes[0] is not torch.bool or dtypes[1] != dtypes[2] or step.dtype != dtypes[1]:
            raise self.fail("C4.3", f"where of {dtypes} to {step.dtype}")

    def _check_index(self, index: object) -> None:
        if not isinstance(index, sympy.Expr):
            raise self.fail("C4.4", f"not an index expression: {index!r}")
        unknown = {s.name for s in symbols_of(index)} - self.symbols
        if unknown:
            raise self.fail("C4.4", f"index {index} uses {sorted(unknown)}, not in scope here")

    def _check_roles(self) -> None:
        self.where = f"kernel {self.kernel.name}"
        stored = {str(step.args[0]): step for _, step in _steps(self.kernel, "store")}
        for name, step in stored.items():
            if self.buffers[name].role == "in":
                raise self.fail("C4.5", f"store to {name}, which is an input")
            if step.args[3] == "add" and self.buffers[name].role != "inout":
                raise self.fail("C4.5", f"{name} is added to, so its role is 'inout'")
        for buffer in self.kernel.buffers:
            if buffer.role != "in" and buffer.name not in stored:
                raise self.fail("C4.5", f"{buffer.name} is an output that nothing stores to")


def _accepts(domain: Domain, dtype: torch.dtype) -> bool:
    floating = dtype.is_floating_point
    if domain is Domain.FLOAT:
        return floating
    if domain is Domain.INTEGER:
        return not floating
    return domain is Domain.ANY or dtype is not torch.bool


def _steps(kernel: Kernel, op: str) -> list[tuple[Body, Instruction]]:
    return [(body, step) for body in kernel.bodies for step in body.instructions if step.op == op]


def check_accesses(kernel: Kernel) -> None:
    """Checks the parts of C4.4 to C4.6 that the hints decide, by enumerating small grids."""
    sizes: dict[str, torch.Tensor | int] = {symbol.name: value for symbol, value in kernel.hints}
    if any(size.name not in sizes for size in kernel.sizes):
        return
    spans = {buffer.name: int(evaluate_expr(buffer.numel, sizes)) for buffer in kernel.buffers}
    for body in kernel.bodies:
        loops = (*kernel.ranges, *kernel.reduction) if body.inner else kernel.ranges
        grid = _grid(loops, sizes)
        if grid is None:
            continue
        for step in body.instructions:
            if step.is_access:
                _check_access(kernel, step, grid, spans, sizes)
    _check_hazards(kernel)


def _grid(
    loops: tuple[Range, ...], sizes: dict
) -> tuple[dict[str, torch.Tensor], int, bool] | None:
    """The index values of all points, or of the corners if there are too many; None for an empty
    grid.
    """
    extents = [int(evaluate_expr(item.extent, sizes)) for item in loops]
    total = math.prod(extents)
    if total == 0:
        return None
    complete = total <= ENUMERABLE
    choices = [list(range(n)) if complete else sorted({0, n - 1}) for n in extents]
    points = torch.tensor(list(itertools.product(*choices)), dtype=torch.int64).reshape(
        math.prod(map(len, choices)), len(loops)
    )
    return {item.symbol.name: points[:, i] for i, item in enumerate(loops)}, len(points), complete


def _check_access(
    kernel: Kernel, step: Instruction, grid: tuple, spans: dict[str, int], sizes: dict
) -> None:
    symbols, count, complete = grid
    name, index = str(step.args[0]), step.args[1]
    assert isinstance(index, sympy.Expr)
    if {s.name for s in symbols_of(index)} - set(symbols) - set(sizes):
        return
    positions = torch.as_tensor(evaluate_expr(index, {**sizes, **symbols})).expand(count)
    masked = step.op == "load" and step.args[2] is not None
    low, high = int(positions.min()), int(positions.max())
    if not masked and (low < 0 or high >= spans[name]):
        where = f"kernel {kernel.name}: {step.op} of {name} at [{index}]"
        raise VerificationError("C4.4", f"{where} reaches {low}..{high} of {spans[name]} elements")
    if (
        step.op == "store"
        and step.args[3] is None
        and complete
        and len(positions.unique()) != count
    ):
        raise VerificationError(
            "C4.6", f"kernel {kernel.name}: two points store to one location of {name} at [{index}]"
        )


def _check_hazards(kernel: Kernel) -> None:
    stores: dict[str, set[sympy.Expr]] = {}
    for _, step in _steps(kernel, "store"):
        if step.args[3] is None:
            stores.setdefault(str(step.args[0]), set()).add(step.args[1])  # type: ignore[arg-type]
    for _, step in _steps(kernel, "load"):
        written = stores.get(str(step.args[0]))
        if (
            written is not None
            and step.args[1] not in written
            and not _shifts_reduction(kernel, step.args[1], written)
        ):
            raise VerificationError(
                "C4.5",
                f"kernel {kernel.name}: load of {step.args[0]} at [{step.args[1]}], stored at "
                f"{sorted(map(str, written))}",
            )


def _shifts_reduction(kernel: Kernel, index: object, written: set[sympy.Expr]) -> bool:
    """Whether an index differs from a store's only within the reduction, so that both belong to the
    same point of ``ranges``.
    """
    loops = {item.symbol for item in kernel.ranges}
    return any(not ((index - other).free_symbols & loops) for other in written) and bool(
        kernel.reduction
    )  # type: ignore[operator]
