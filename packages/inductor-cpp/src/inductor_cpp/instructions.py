"""Bodies to C++: every instruction goes to the outermost loop level at which its operands are known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import sympy
import torch
from loopir import Instruction, Kernel, Value

from inductor_cpp.access import (
    as_expr,
    index_source,
    only_raised,
    stored_buffers,
    stride_along,
)
from inductor_cpp.dtypes import c_type, literal
from inductor_cpp.elementwise import expression
from inductor_cpp.names import identifier
from inductor_cpp.plan import COMPARISONS, Plan, Role, hint_of, row_position
from inductor_cpp.printer import print_index
from inductor_cpp.reuse import Kept
from inductor_cpp.scope import Binding, Block
from inductor_cpp.tiles import Tiles

STREAMED = 2 << 20
UNIT = 0


@dataclass
class Emitter:
    """The state while one kernel is written. ``levels`` are the open blocks: the unit loop, the lanes of POINTS, then the
    reduction loops of the current inner body. ``symbol_depth`` says at which level an iteration symbol is known."""

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
    kept: Kept = field(default_factory=Kept)
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
        """The outermost level at which the operands of ``step`` are known; effects stay where they are written."""
        if step.op in ("store", "reduce", "scan") or (step.op == "load" and step.args[0] in self.stored):
            return self.deepest
        if step.op == "indirect" and self.guards:  # its check must not run where the loop doesn't
            return self.deepest
        depths = [
            self.bindings[name].depth if name in self.bindings else self.symbol_depth.get(name, UNIT) for name in step.reads
        ]
        return max(depths, default=UNIT)

    def varies(self, expr: sympy.Expr) -> bool:
        """Whether an index differs between the lanes of a step."""
        if not self.lanes_open or self.plan.axis is None:
            return False
        names = {symbol.name for symbol in expr.free_symbols}  # type: ignore[attr-defined]
        return self.plan.axis.symbol.name in names or any(self.bindings[name].vector for name in names & self.bindings.keys())

    def operand(self, arg: object) -> Binding:
        """The binding of a value operand."""
        if not isinstance(arg, Value):
            raise TypeError(f"{self.kernel.name}: {arg!r} is not a value")
        return self.bindings[arg.name]

    # ---- text of operands and indices ----

    def as_vector(self, binding: Binding) -> str:
        """The value in all lanes."""
        return binding.text if binding.vector or not self.lanes_open else f"splat<W>({binding.text})"

    def index(self, expr: object, lane: str | None = None) -> str:
        """An index as text: of lane 0, or of the lane named ``lane``."""
        symbols = {s.name: s for s in as_expr(expr).free_symbols if isinstance(s, sympy.Symbol)}
        replaced = {}
        for name, symbol in symbols.items():
            binding = self.bindings.get(name)
            if binding is not None:
                replaced[symbol] = f"{binding.lane_array}[{lane or 0}]" if binding.vector else binding.text
        if lane is not None and self.plan.axis is not None and self.plan.axis.symbol in symbols.values():
            axis = self.plan.axis.symbol
            replaced[axis] = f"({identifier(axis.name)} + {lane})"
        return print_index(as_expr(expr), replaced)

    def stride(self, expr: sympy.Expr) -> sympy.Expr | None:
        """The step between elements of consecutive lanes; None when it varies."""
        axis = self.plan.axis
        if axis is None or any(self.bindings[s.name].vector for s in expr.free_symbols if s.name in self.bindings):  # type: ignore[attr-defined]
            return None
        return stride_along(expr, axis.symbol)

    # ---- definitions ----

    def define(self, step: Instruction, text: str, *, vector: bool, depth: int, run_start: str | None = None) -> None:
        """Writes ``const T name = text;`` at ``depth`` and binds the result."""
        assert step.result is not None and step.dtype is not None
        name = identifier(step.result)
        kind = "auto" if vector else c_type(step.dtype)
        self.levels[depth].add(f"const {kind} {name} = {text};")
        self.bindings[step.result] = Binding(name, step.dtype, vector, depth, run_start)

    def emit(self, step: Instruction) -> None:
        """Writes one instruction."""
        rule = RULES.get(step.op, emit_elementwise)
        rule(self, step)

    def emit_kept(self, step: Instruction) -> None:
        """Writes an instruction of an inner body, or takes its result from a scratch row."""
        if step.result in self.kept.dropped:
            return
        row = self.kept.loaded.get(step.result or "")
        if row is not None:
            self.define(step, f"load<W>({row}.data + {self.row_position()}, {self.count})", vector=True, depth=self.deepest)
            return
        self.emit(step)
        row = self.kept.saved.get(step.result or "")
        if row is not None:
            assert step.result is not None and step.dtype is not None
            address = f"{row}.data + {self.row_position()}"
            self.levels[-1].add(f"store<W, {c_type(step.dtype)}>({address}, {self.bindings[step.result].text}, {self.count});")

    def row_position(self) -> str:
        """The place of lane 0 in a scratch row."""
        return print_index(row_position(self.plan.inner))


def emit_elementwise(e: Emitter, step: Instruction) -> None:
    """Scalar when all operands are; otherwise scalars are broadcast."""
    operands = [e.operand(arg) for arg in step.args]
    vector = any(operand.vector for operand in operands)
    texts = [e.as_vector(operand) if vector else operand.text for operand in operands]
    run_start = None
    if step.op == "add" and vector:
        starts = [operand.run_start if operand.vector else operand.text for operand in operands]
        uniform = [operand for operand in operands if not operand.vector]
        if len(uniform) == 1 and None not in starts:
            run_start = f"({starts[0]} + {starts[1]})"
    e.define(step, expression(step.op, texts, step.dtype), vector=vector, depth=e.depth_of(step), run_start=run_start)


def emit_cast(e: Emitter, step: Instruction) -> None:
    """To bfloat16 and back is one rounding, without packing; what was loaded is raised already."""
    operand = e.operand(step.args[0])
    if operand.raised is not None and step.dtype is torch.float32:
        assert step.result is not None
        e.bindings[step.result] = Binding(operand.raised, torch.float32, True, operand.depth)
        return
    if operand.exact is not None and step.dtype is torch.float32 and e.only_raised.issuperset(step.reads):
        e.define(step, f"rounded(tag<bf16>{{}}, {operand.exact})", vector=True, depth=e.depth_of(step))
        return
    emit_elementwise(e, step)
    assert step.result is not None
    if operand.vector and operand.dtype is torch.float32 and step.dtype is torch.bfloat16:
        e.bindings[step.result] = replace(e.bindings[step.result], exact=operand.text)


def emit_comparison(e: Emitter, step: Instruction) -> None:
    """Numbers that count up along the lanes are compared with one number by lane, in 32 bits."""
    operands = [e.operand(arg) for arg in step.args]
    counted = [operand.run_start is not None and operand.dtype is torch.int64 for operand in operands]
    if sum(counted) != 1 or operands[counted.index(False)].vector or operands[0].dtype != operands[1].dtype:
        emit_elementwise(e, step)
        return
    lane = f"splat<W>(lane_of<W>({operands[counted.index(False)].text}, {operands[counted.index(True)].run_start}))"
    texts = ["lane_numbers<W>()" if each else lane for each in counted]
    e.define(step, expression(step.op, texts, step.dtype), vector=True, depth=e.depth_of(step))


def emit_quotient(e: Emitter, step: Instruction) -> None:
    """A vector over a number takes its reciprocal once."""
    dividend, divisor = (e.operand(arg) for arg in step.args)
    if step.dtype is torch.float32 and dividend.vector and not divisor.vector:
        e.define(step, f"over({dividend.text}, {divisor.text})", vector=True, depth=e.depth_of(step))
    else:
        emit_elementwise(e, step)


def emit_division(e: Emitter, step: Instruction) -> None:
    """Integer division and remainders stop the kernel at a zero divisor, as ATen does."""
    divisor = e.operand(step.args[1])
    if not divisor.dtype.is_floating_point and not divisor.constant:
        zero = f"has_zero<W>({divisor.text}, {e.count})" if divisor.vector else f"{divisor.text} == 0"
        e.levels[e.deepest].add(f"if ({zero}) return DIVISION_BY_ZERO;")
    emit_elementwise(e, step)


def emit_constant(e: Emitter, step: Instruction) -> None:
    """A literal, used in place."""
    assert step.result is not None and step.dtype is not None
    number = step.args[0]
    if not isinstance(number, int | float):
        raise TypeError(f"{e.kernel.name}: {number!r} is not a number")
    e.bindings[step.result] = Binding(literal(number, step.dtype), step.dtype, False, UNIT, constant=number)


def emit_index_expr(e: Emitter, step: Instruction) -> None:
    """The value of an index: counted up along the lanes where it is linear, lane by lane elsewhere."""
    expr, depth, kind = as_expr(step.args[0]), e.depth_of(step), c_type(step.dtype)
    if not e.varies(expr):
        e.define(step, f"cast<{kind}>(i64({e.index(expr)}))", vector=False, depth=depth)
        return
    assert e.plan.axis is not None
    stride = stride_along(expr, e.plan.axis.symbol)
    bent = any(s.name in e.bindings and e.bindings[s.name].vector for s in expr.free_symbols)  # type: ignore[attr-defined]
    if stride is None or bent:
        text = f"gather<W, i64>({e.count}, [&](i64 k) LAMBDA -> i64 {{ return {e.index(expr, 'k')}; }})"
        e.define(step, f"cast<{kind}>({text})", vector=True, depth=depth)
        return
    base = e.index(expr)
    run_start = f"i64({base})" if stride == 1 and step.dtype is torch.int64 else None
    e.define(step, f"cast<{kind}>(iota<W>({base}, {e.index(stride)}))", vector=True, depth=depth, run_start=run_start)


def emit_load(e: Emitter, step: Instruction) -> None:
    """Scalar, contiguous, masked or gathered."""
    buffer, index, mask_arg, other = step.args
    expr, depth = as_expr(index), e.depth_of(step)
    mask = e.operand(mask_arg) if mask_arg is not None else None
    pointer, kind = identifier(str(buffer)), c_type(step.dtype)
    filler = literal(other if other is not None else 0, step.dtype)  # type: ignore[arg-type]
    vector_mask = mask is not None and mask.vector
    if not e.varies(expr) and not vector_mask:
        condition = " && ".join(filter(None, [mask.text if mask else "", e.guards.get(depth, "")]))
        text = f"{pointer}[{e.index(expr)}]"
        e.define(step, f"{condition} ? {text} : {filler}" if condition else text, vector=False, depth=depth)
        return
    tile = e.tiles.load(step, set(e.bindings)) if e.tiles is not None else None
    if tile is not None:
        _define_loaded(e, step, tile, depth)
        return
    lane = f"[&](i64 k) LAMBDA -> {kind} {{ return {pointer}[{e.index(expr, 'k')}]; }}"
    fill = f"splat<W>({filler})"
    load, address = LOADS[_narrow_stride(e, expr, step.dtype)], f"{pointer} + {e.index(expr)}"
    if vector_mask:
        assert mask is not None
        rest = f"{e.count}, {mask.text}, {fill}"
        text = f"{load}_if<W>({address}, {rest})" if load else f"gather_if<W, {kind}>({rest}, {lane})"
    else:
        text = f"{load}<W>({address}, {e.count})" if load else f"gather<W, {kind}>({e.count}, {lane})"
        condition = " && ".join(filter(None, [mask.text if mask else "", e.guards.get(depth, "")]))
        if load == "load" and not condition:
            _ask_ahead(e, expr, pointer)
            if e.tiles is not None:
                e.tiles.ask_for(str(buffer), expr, set(e.bindings))
            _define_loaded(e, step, address, depth)
            return
        text = f"{condition} ? {text} : {fill}" if condition else text
    e.define(step, text, vector=True, depth=depth)


def _define_loaded(e: Emitter, step: Instruction, address: str, depth: int) -> None:
    """Consecutive elements; bfloat16 ones also as float32, which costs less than what follows a load of its own."""
    e.define(step, f"load<W>({address}, {e.count})", vector=True, depth=depth)
    if step.dtype is not torch.bfloat16:
        return
    assert step.result is not None
    binding = e.bindings[step.result]
    e.levels[depth].add(f"const auto raised_{binding.text} = load_raised<W>({address}, {e.count});")
    e.bindings[step.result] = replace(binding, raised=f"raised_{binding.text}")


def _ask_ahead(e: Emitter, expr: sympy.Expr, pointer: str) -> None:
    """Has the row fetched that an index asks for some steps of the reduction later, where indices are read from memory."""
    bound = [s for s in expr.free_symbols if s.name in e.bindings]  # type: ignore[attr-defined]
    if e.plan.role is not Role.POINTS or not e.inner or len(bound) != 1 or e.bindings[bound[0].name].vector:  # type: ignore[attr-defined]
        return
    symbol = e.plan.inner[-1].symbol
    source = index_source(e.kernel, bound[0].name)  # type: ignore[attr-defined]
    if source is None or symbol not in as_expr(source.args[1]).free_symbols:
        return
    numel = next(item.numel for item in e.kernel.buffers if item.name == source.args[0])
    later = print_index(as_expr(source.args[1]), {symbol: f"({identifier(symbol.name)} + AHEAD)"})
    place = f"i64({identifier(str(source.args[0]))}[index_min({later}, {print_index(as_expr(numel))} - 1)])"
    e.levels[e.deepest].add(f"ask_for_lanes<W>({pointer} + {print_index(expr, {bound[0]: place})});")  # type: ignore[dict-item]


LOADS = {None: None, 0: "splat", 1: "load", 2: "load_even"}


def _narrow_stride(e: Emitter, expr: sympy.Expr, dtype: torch.dtype | None) -> int | None:
    """The step between lanes if there are instructions for it: 0 (masked), 1, or 2 with elements of at most four bytes."""
    stride = e.stride(expr)
    if stride is None or not stride.is_Integer or not 0 <= stride <= 2:
        return None
    return None if stride == 2 and dtype is not None and dtype.itemsize > 4 else int(stride)


def emit_store(e: Emitter, step: Instruction) -> None:
    """Contiguous, every second element, lane by lane, or added."""
    buffer, index, value_arg, mode = step.args
    expr, value = as_expr(index), e.operand(value_arg)
    pointer, target = identifier(str(buffer)), e.levels[e.deepest]
    dtype = next(item.dtype for item in e.kernel.buffers if item.name == buffer)
    kind = c_type(dtype)
    if not e.lanes_open:
        place = f"{pointer}[{e.index(expr)}]"
        target.add(f"add_to({place}, {value.text}, shared);" if mode == "add" else f"{place} = {value.text};")
        return
    text, address = e.as_vector(value), f"{pointer} + {e.index(expr)}"
    if buffer in e.plan.sums:
        target.add(f"{sums_of(str(buffer))}.merge<W>({e.index(expr)}, {text}, {e.count});")
        return
    tile = e.tiles.store(str(buffer), expr, dtype, set(e.bindings)) if e.tiles is not None and mode is None else None
    if tile is not None:
        target.add(f"store<W, {kind}>({tile}, {text}, {e.count});")
        return
    lane = f"[&](i64 k) LAMBDA -> {kind}& {{ return {pointer}[{e.index(expr, 'k')}]; }}"
    stride = _narrow_stride(e, expr, dtype)
    if stride == 1:
        if e.tiles is not None:
            e.tiles.ask_for(str(buffer), expr, set(e.bindings))
        elif mode is None and _streams(e, str(buffer)):
            target.add(f"ask_for_lanes<W, 1>({address} + WRITTEN_AHEAD / sizeof({kind}));")
        if value.exact is not None and mode is None:
            target.add(f"store_rounded<W>({address}, {value.exact}, {e.count});")
            return
        extra = ", shared" if mode == "add" else ""
        target.add(f"{'add_lanes' if mode == 'add' else 'store'}<W, {kind}>({address}, {text}, {e.count}{extra});")
    elif stride == 2 and mode is None:
        target.add(f"store_even<W, {kind}>({address}, {text}, {e.count});")
    elif mode == "add":
        target.add(f"scatter_add<W, {kind}>({e.count}, {text}, shared, {lane});")
    else:
        target.add(f"scatter<W, {kind}>({e.count}, {text}, {lane});")


def _streams(e: Emitter, buffer: str) -> bool:
    """Whether lines of ``buffer`` lie far away before they are written: a store waits for its line, for which the processor
    looks ahead less than for one that is read."""
    item = next(item for item in e.kernel.buffers if item.name == buffer)
    return not e.kernel.reduction and hint_of(e.kernel, as_expr(item.numel)) * item.dtype.itemsize >= STREAMED


def sums_of(buffer: str) -> str:
    """The name of what a thread's rows add to ``buffer``."""
    return f"{identifier(buffer)}_sums"


def emit_indirect(e: Emitter, step: Instruction) -> None:
    """Checks the value and binds its index symbol."""
    value, size = e.operand(step.args[0]), e.index(step.args[1])
    assert step.result is not None
    name, depth = identifier(step.result), e.depth_of(step)
    block = e.levels[depth]
    block.add(f"const {'auto' if value.vector else 'i64'} {name} = cast<i64>({value.text});")
    if value.vector:
        block.add(f"if (outside<W>({name}, {size}, {e.count})) return INDEX_OUT_OF_RANGE;")
        block.add(f"const lane_array<i64, W> {name}_at({name});")
    else:
        block.add(f"if (outside({name}, {size})) return INDEX_OUT_OF_RANGE;")
    e.bindings[step.result] = Binding(name, torch.int64, value.vector, depth, None, f"{name}_at" if value.vector else None)


def emit_uniform(e: Emitter, step: Instruction) -> None:
    """Random numbers; consecutive counters share their blocks."""
    seed, counter = e.operand(step.args[0]), e.operand(step.args[1])
    depth = e.depth_of(step)
    if not (seed.vector or counter.vector):
        e.define(step, f"uniform_of(i64({seed.text}), i64({counter.text}))", vector=False, depth=depth)
    elif seed.vector:
        e.define(step, f"uniform_lanes<W>(cast<i64>({seed.text}), cast<i64>({e.as_vector(counter)}))", vector=True, depth=depth)
    elif counter.run_start is not None:
        e.define(step, f"uniform_run(i64({seed.text}), {counter.run_start}, vec<f32, W>{{}})", vector=True, depth=depth)
    else:
        e.define(step, f"uniform_of(i64({seed.text}), cast<i64>({counter.text}))", vector=True, depth=depth)


def emit_uniform16(e: Emitter, step: Instruction) -> None:
    """Random numbers, one by one: masks of other devices."""
    seed, counter = e.operand(step.args[0]), e.operand(step.args[1])
    depth = e.depth_of(step)
    if seed.vector or counter.vector:
        lanes = f"cast<i64>({e.as_vector(seed)}), cast<i64>({e.as_vector(counter)})"
        e.define(step, f"uniform16_lanes<W>({lanes})", vector=True, depth=depth)
    else:
        e.define(step, f"uniform16_of(i64({seed.text}), i64({counter.text}))", vector=False, depth=depth)


RULES = {
    "constant": emit_constant,
    "index_expr": emit_index_expr,
    "load": emit_load,
    "store": emit_store,
    "indirect": emit_indirect,
    "uniform": emit_uniform,
    "uniform16": emit_uniform16,
    "cast": emit_cast,
    "div": emit_quotient,
    **dict.fromkeys(COMPARISONS, emit_comparison),
    "floordiv": emit_division,
    "remainder": emit_division,
    "fmod": emit_division,
}
"""Rules by operation; whatever is missing is elementwise. ``collective`` adds reduce and scan."""
