"""The state while one kernel is written, and the queries of its rules: every value is defined at
the outermost loop level where its operands are known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import sympy
from loopir import Instruction, Kernel, Value, flat_position

from inductor_cpp.kernels.passes.reuse import RowCache

from .access import as_expr, only_raised, stored_buffers, stride_along
from .dtypes import c_type
from .kernel_plan import Plan, Role
from .names import identifier
from .printer import print_index
from .scope import Binding, Block
from .tiles import Tiles

UNIT = 0


def write_block_bounds(plan: Plan, unit: Block) -> None:
    """Writes the start and end of a unit's part of the vector axis."""
    assert plan.axis is not None and plan.step is not None
    end = f"index_min(begin + {plan.step}, {print_index(plan.axis.extent)})"
    unit.add(f"const i64 begin = block * ({plan.step}), end = {end};")


@dataclass
class Emitter:
    """``levels`` are the open blocks: the unit loop, the lanes of POINTS, then the reduction loops
    of the current inner body. ``symbol_depth`` is the level at which each iteration symbol is
    known.
    """

    kernel: Kernel
    plan: Plan
    levels: list[Block]
    symbol_depth: dict[str, int]
    bindings: dict[str, Binding] = field(default_factory=dict)
    count: str = "full{}"
    inner: bool = False
    guards: dict[int, str] = field(default_factory=dict)
    epilogue: list[str] = field(default_factory=list)
    cascades: list[str] = field(default_factory=list)
    stored: frozenset[str] = frozenset()
    only_raised: frozenset[str] = frozenset()
    row_cache: RowCache = field(default_factory=RowCache)
    tiles: Tiles | None = None

    def __post_init__(self) -> None:
        self.stored = stored_buffers(self.kernel)
        self.only_raised = only_raised(self.kernel)

    # ---- questions ----

    @property
    def deepest(self) -> int:
        """The innermost open level."""
        return len(self.levels) - 1

    @property
    def lanes_open(self) -> bool:
        """Whether the current body runs once per vector step."""
        return self.plan.role is Role.POINTS or (self.plan.role is Role.REDUCTION and self.inner)

    def depth_of(self, step: Instruction) -> int:
        """The outermost level where the operands of ``step`` are known; effects are not moved."""
        if step.op in ("store", "reduce", "scan") or (
            step.op == "load" and step.args[0] in self.stored
        ):
            return self.deepest
        if step.op == "indirect" and self.guards:  # its check must not run if the loop doesn't
            return self.deepest
        depths = [
            self.bindings[name].depth
            if name in self.bindings
            else self.symbol_depth.get(name, UNIT)
            for name in step.reads
        ]
        return max(depths, default=UNIT)

    def varies(self, expr: sympy.Expr) -> bool:
        """Whether an index differs between the lanes of a step."""
        if not self.lanes_open or self.plan.axis is None:
            return False
        names = {symbol.name for symbol in expr.free_symbols}  # type: ignore[attr-defined]
        return self.plan.axis.symbol.name in names or any(
            self.bindings[name].vector for name in names & self.bindings.keys()
        )

    def operand(self, arg: object) -> Binding:
        """The binding of a value operand."""
        if not isinstance(arg, Value):
            raise TypeError(f"{self.kernel.name}: {arg!r} is not a value")
        return self.bindings[arg.name]

    # ---- text of operands and indices ----

    def as_vector(self, binding: Binding) -> str:
        """The value in all lanes."""
        if binding.vector or not self.lanes_open:
            return binding.text
        return f"splat<W>({binding.text})"

    def index(self, expr: object, lane: str | None = None) -> str:
        """An index as text: of lane 0, or of the lane named ``lane``."""
        symbols = {s.name: s for s in as_expr(expr).free_symbols if isinstance(s, sympy.Symbol)}
        replaced = {}
        for name, symbol in symbols.items():
            binding = self.bindings.get(name)
            if binding is not None:
                replaced[symbol] = (
                    f"{binding.lane_array}[{lane or 0}]" if binding.vector else binding.text
                )
        if (
            lane is not None
            and self.plan.axis is not None
            and self.plan.axis.symbol in symbols.values()
        ):
            axis = self.plan.axis.symbol
            replaced[axis] = f"({identifier(axis.name)} + {lane})"
        return print_index(as_expr(expr), replaced)

    def stride(self, expr: sympy.Expr) -> sympy.Expr | None:
        """The step between elements of consecutive lanes; None when it varies."""
        axis = self.plan.axis
        names = map(str, expr.free_symbols)
        if axis is None or any(self.bindings[n].vector for n in names if n in self.bindings):
            return None
        return stride_along(expr, axis.symbol)

    # ---- definitions ----

    def define(
        self,
        step: Instruction,
        text: str,
        *,
        vector: bool = True,
        depth: int | None = None,
        run_start: str | None = None,
    ) -> None:
        """Writes ``const T name = text;`` and binds the result. ``depth`` is the level, by default
        the outermost one at which the operands are known.
        """
        assert step.result is not None and step.dtype is not None
        depth = self.depth_of(step) if depth is None else depth
        name = identifier(step.result)
        kind = "auto" if vector else c_type(step.dtype)
        self.levels[depth].add(f"const {kind} {name} = {text};")
        self.bindings[step.result] = Binding(name, step.dtype, vector, depth, run_start)

    def row_position(self) -> str:
        """The position of lane 0 in a scratch row."""
        return print_index(flat_position(self.plan.inner))
