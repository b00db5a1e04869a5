"""Loads, stores and checked indices: scalar, contiguous, with a step, through tiles, or lane by
lane.
"""

from __future__ import annotations

from dataclasses import replace

import sympy
import torch
from loopir import Instruction, decide, kernel_label

from .access import as_expr, index_source
from .dtypes import c_type, literal
from .emitter import Emitter
from .kernel_plan import Role, hint_of
from .names import identifier, sums_of
from .printer import print_index
from .scope import Binding

STREAMED = 2 << 20
LOADS = {None: None, 0: "splat", 1: "load", 2: "load_even"}


def emit_load(e: Emitter, step: Instruction) -> None:
    """Scalar, contiguous, masked or gathered."""
    buffer, index, mask_arg, other = step.args
    expr, depth = as_expr(index), e.depth_of(step)
    mask = e.operand(mask_arg) if mask_arg is not None else None
    pointer, kind = identifier(str(buffer)), c_type(step.dtype)
    filler = literal(other if other is not None else 0, step.dtype)  # type: ignore[arg-type]
    vector_mask = mask is not None and mask.vector
    condition = " && ".join(filter(None, [mask.text if mask else "", e.guards.get(depth, "")]))
    if not e.varies(expr) and not vector_mask:
        text = f"{pointer}[{e.index(expr)}]"
        text = f"{condition} ? {text} : {filler}" if condition else text
        e.define(step, text, vector=False, depth=depth)
        return
    tile = e.tiles.load(step, set(e.bindings)) if e.tiles is not None else None
    if tile is not None:
        _define_loaded(e, step, tile, depth)
        return
    lane = _lane(e, pointer, kind, expr)
    fill = f"splat<W>({filler})"
    load, address = LOADS[_narrow_stride(e, expr, step.dtype)], f"{pointer} + {e.index(expr)}"
    if vector_mask:
        assert mask is not None
        rest = f"{e.count}, {mask.text}, {fill}"
        text = (
            f"{load}_if<W>({address}, {rest})" if load else f"gather_if<W, {kind}>({rest}, {lane})"
        )
    else:
        text = (
            f"{load}<W>({address}, {e.count})" if load else f"gather<W, {kind}>({e.count}, {lane})"
        )
        if load == "load" and not condition:
            _ask_ahead(e, expr, pointer)
            if e.tiles is not None:
                e.tiles.ask_for(str(buffer), expr, set(e.bindings))
            _define_loaded(e, step, address, depth)
            return
        text = f"{condition} ? {text} : {fill}" if condition else text
    e.define(step, text, depth=depth)


def _define_loaded(e: Emitter, step: Instruction, address: str, depth: int) -> None:
    """Consecutive elements; bfloat16 also as float32, which is cheaper than converting later."""
    e.define(step, f"load<W>({address}, {e.count})", depth=depth)
    if step.dtype is not torch.bfloat16:
        return
    assert step.result is not None
    binding = e.bindings[step.result]
    e.levels[depth].add(f"const auto raised_{binding.text} = load_raised<W>({address}, {e.count});")
    e.bindings[step.result] = replace(binding, raised=f"raised_{binding.text}")


def _ask_ahead(e: Emitter, expr: sympy.Expr, pointer: str) -> None:
    """Prefetches the row that the reduction reads some steps later, if the index is loaded."""
    bound = [s for s in expr.free_symbols if s.name in e.bindings]  # type: ignore[attr-defined]
    if (
        e.plan.role is not Role.POINTS
        or not e.inner
        or len(bound) != 1
        or e.bindings[bound[0].name].vector  # type: ignore[attr-defined]
    ):
        return
    symbol = e.plan.inner[-1].symbol
    source = index_source(e.kernel, bound[0].name)  # type: ignore[attr-defined]
    if source is None or symbol not in as_expr(source.args[1]).free_symbols:
        return
    numel = next(item.numel for item in e.kernel.buffers if item.name == source.args[0])
    later = print_index(as_expr(source.args[1]), {symbol: f"({identifier(symbol.name)} + AHEAD)"})
    place = (
        f"i64({identifier(str(source.args[0]))}[index_min({later}, {print_index(as_expr(numel))} - "
        f"1)])"
    )
    e.levels[e.deepest].add(
        f"ask_for_lanes<W>({pointer} + {print_index(expr, {bound[0]: place})});"  # type: ignore[dict-item]
    )


def _narrow_stride(e: Emitter, expr: sympy.Expr, dtype: torch.dtype | None) -> int | None:
    """The step between lanes if there are instructions for it: 0 (masked), 1, or 2 with elements of
    at most four bytes.
    """
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
        target.add(
            f"add_to({place}, {value.text}, shared);"
            if mode == "add"
            else f"{place} = {value.text};"
        )
        return
    text, stride = e.as_vector(value), _narrow_stride(e, expr, dtype)
    tile = (
        e.tiles.store(str(buffer), expr, dtype, set(e.bindings))
        if e.tiles is not None and mode is None
        else None
    )
    if tile is not None:
        target.add(f"store<W, {kind}>({tile}, {text}, {e.count});")
        return
    if stride == 1 and e.tiles is not None:
        e.tiles.ask_for(str(buffer), expr, set(e.bindings))
    if mode == "add":
        target.add(_add_vector(e, str(buffer), kind, expr, text, stride))
        return
    address = f"{pointer} + {e.index(expr)}"
    if stride == 1:
        if e.tiles is None and _streams(e, str(buffer)):
            target.add(f"ask_for_lanes<W, 1>({address} + WRITTEN_AHEAD / sizeof({kind}));")
        call = (
            f"store<W, {kind}>({address}, {text}"
            if value.exact is None
            else f"store_rounded<W>({address}, {value.exact}"
        )
        target.add(f"{call}, {e.count});")
    elif stride == 2:
        target.add(f"store_even<W, {kind}>({address}, {text}, {e.count});")
    else:
        target.add(f"scatter<W, {kind}>({e.count}, {text}, {_lane(e, pointer, kind + '&', expr)});")


def _add_vector(
    e: Emitter, buffer: str, kind: str, expr: sympy.Expr, text: str, stride: int | None
) -> str:
    """To a thread's own sums, as one total where the lanes meet, or lane by lane."""
    pointer, place = identifier(buffer), e.index(expr)
    if stride == 0 and kind in ("f32", "f64"):
        total = f"total<W, {kind}>({text}, {e.count})"
        if buffer in e.plan.sums:
            return f"{sums_of(buffer)}_part[{place}] += {total};"
        return f"add_to({pointer}[{place}], {total}, shared);"
    if buffer in e.plan.sums:
        return f"{sums_of(buffer)}.merge<W>({place}, {text}, {e.count});"
    if stride == 1:
        return f"add_lanes<W, {kind}>({pointer} + {place}, {text}, {e.count}, shared);"
    return (
        f"scatter_add<W, {kind}>({e.count}, {text}, shared, {_lane(e, pointer, kind + '&', expr)});"
    )


def _lane(e: Emitter, pointer: str, kind: str, expr: sympy.Expr) -> str:
    """The element of lane ``k``; ``kind`` is its type, or a reference to it."""
    return f"[&](i64 k) LAMBDA -> {kind} {{ return {pointer}[{e.index(expr, 'k')}]; }}"


def _streams(e: Emitter, buffer: str) -> bool:
    """Whether ``buffer`` is too large for the cache: its stores wait for lines, which processors
    prefetch less for stores than for loads.
    """
    item = next(item for item in e.kernel.buffers if item.name == buffer)
    is_large = hint_of(e.kernel, as_expr(item.numel)) * item.dtype.itemsize >= STREAMED
    label = lambda: f"{kernel_label(e.kernel)} {buffer}"  # noqa: E731
    return not e.kernel.reduction and decide("prefetched stores", label, is_large)


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
    e.bindings[step.result] = Binding(
        name, torch.int64, value.vector, depth, None, f"{name}_at" if value.vector else None
    )
