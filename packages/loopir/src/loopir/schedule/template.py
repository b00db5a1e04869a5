"""Groups around an operator of a backend with pointwise groups fused into it, and the template that
such a group becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy

from loopir.ir.expr import FloorDiv, Mod, substitute, symbol
from loopir.ir.kernel import Instruction, Kernel, KernelBuffer, Range, Value
from loopir.ir.nest import map_leaves
from loopir.ir.node import Access, Buffer, ExternNode, LoopNode, LoweredGraph, View, expressions_in
from loopir.ir.simplify import ZERO, Facts, extents_of, linear_parts
from loopir.ir.template import Stage, Template, kernels_of

from .align import Substitution, refine
from .build import build_kernel
from .group import Group, Member


def offer_template(group: Group, graph: LoweredGraph) -> None:
    """Opens the group of an extern call for fusion: a loop copies the result from ``product``, a
    buffer that is never stored in memory.
    """
    node = group.extern
    assert node is not None
    (name,) = node.results
    buffer = graph.buffers[name] if name else None
    if buffer is None or any(size == 0 for size in buffer.shape) or node.aliases or node.binds:
        return
    group.product = f"product of {name}"
    graph.buffers[group.product] = replace(buffer, name=group.product)
    loops = _dims(buffer.shape, "d")
    at = sympy.Add(*(loop.symbol * step for loop, step in zip(loops, buffer.stride, strict=True)))
    value = Value("v0")
    program = (
        Instruction("v0", "load", (group.product, at, None, None), buffer.dtype),
        Instruction(None, "store", (buffer.name, at, value, None), None),
    )
    reads = (Access(group.product, at, False),)
    copy = LoopNode(
        buffer.name, "pointwise", tuple(loops), (), program, (), reads, at, node.origins
    )
    group.members = [Member(copy, False, {loop.symbol: loop.symbol for loop in loops})]
    group.ranges = loops


def is_operand(node: ExternNode, name: str) -> bool:
    """Whether a buffer is exactly one operand of the call."""
    return [view.buffer for view in node.views].count(name) == 1 and any(
        isinstance(a, View) and a.buffer == name for a in node.args
    )


def build_template(
    group: Group, graph: LoweredGraph, external: set[str]
) -> tuple[Template, tuple[str, ...]] | None:
    """The template of a group and the buffers to call it with; None when the loops can't be
    expressed by the operator's dims.
    """
    node = group.extern
    assert node is not None and group.product is not None
    product = graph.buffers[group.product]
    epilogue = _stage(
        group, graph, external, View(group.product, product.shape, product.stride, sympy.Integer(0))
    )
    prologues = []
    for name, producer in group.prologues:
        view = next(arg for arg in node.args if isinstance(arg, View) and arg.buffer == name)
        prologues.append((name, _stage(producer, graph, {name}, view)))
    if epilogue is None or any(stage is None for _, stage in prologues):
        return None
    return _assemble(node, graph, product, epilogue, prologues)


Built = tuple[Kernel, tuple[str, ...], str]


def _dims(shape: Sequence[sympy.Expr], prefix: str) -> list[Range]:
    return [Range(symbol(f"{prefix}{i}"), size) for i, size in enumerate(shape)]


def _stage(group: Group, graph: LoweredGraph, external: set[str], view: View) -> Built | None:
    """The kernel of the group over the dims of ``view``, if both visit the same memory once."""
    facts, loops = graph.facts, [*group.ranges, *group.reduction]
    symbols = [item.symbol for item in loops]
    index = next(index for index, _ in group.accesses(view.buffer))
    parts = linear_parts(facts.simplify(index, extents_of(loops)), symbols)
    if parts is None:
        return None
    strides = [parts[0].get(each, ZERO) for each in symbols]
    dims = _dims(view.shape, "x")
    whole = facts.is_dense([item.extent for item in loops], strides) and facts.is_dense(
        view.shape, view.stride
    )
    loops, own = _by_stride(loops, strides, facts), _by_stride(dims, view.stride, facts)
    change = _in_dims(loops, own) if whole and view.offset == parts[1] else None
    inside = dims[-1:] if group.reduction else []
    if change is None or not _takes_last(group, change, inside):
        return None
    members = [member.moved(None, change) for member in group.members]
    placed = replace(
        group, members=members, ranges=dims[: len(dims) - len(inside)], reduction=inside
    )
    kernel, buffers = build_kernel(placed, graph, external, keep_loops=True)
    return kernel, buffers, kernel.buffers[buffers.index(view.buffer)].name


def _takes_last(group: Group, change: Substitution, inside: Sequence[Range]) -> bool:
    """Whether a reduction covers exactly the last dim."""
    last = {item.symbol for item in inside}
    outer = set().union(*(change[item.symbol].free_symbols for item in group.ranges))
    inner = set().union(*(change[item.symbol].free_symbols for item in group.reduction))
    return inner <= last and not outer & last


def _by_stride(loops: Sequence[Range], strides: Sequence[sympy.Expr], facts: Facts) -> list[Range]:
    return [
        item
        for item, _ in sorted(
            zip(loops, strides, strict=True), key=lambda pair: -facts.hint(pair[1])
        )
    ]


def _in_dims(loops: Sequence[Range], dims: Sequence[Range]) -> Substitution | None:
    """Loops as functions of dims, if both visit the same memory; sorted by stride."""
    found = refine(dims, loops, ())
    if found is None:
        return None
    parts: Substitution = {}
    for dim in dims:
        own = [item for item, owner in found.loops if owner == dim.symbol]
        step: sympy.Expr = sympy.Integer(1)
        for i, item in reversed(list(enumerate(own))):
            value: sympy.Expr = dim.symbol if step == 1 else FloorDiv(dim.symbol, step)  # type: ignore[assignment]
            parts[item.symbol] = value if i == 0 else Mod(value, item.extent)  # type: ignore[assignment]
            step = step * item.extent
    return {old: substitute(expr, parts) for old, expr in found.right.items()}


def _assemble(
    node: ExternNode,
    graph: LoweredGraph,
    product: Buffer,
    epilogue: Built,
    prologues: Sequence[tuple[str, Built | None]],
) -> tuple[Template, tuple[str, ...]]:
    computed = {name: f"operand{i}" for i, (name, _) in enumerate(prologues)}
    built = [*(stage for _, stage in prologues if stage), epilogue]
    outs = {
        old
        for kernel, buffers, _ in built
        for old, b in zip(buffers, kernel.buffers, strict=True)
        if b.role != "in"
    }
    names = [view.buffer for view in node.views]
    names += [old for _, buffers, _ in built for old in buffers]
    names = [name for name in dict.fromkeys(names) if name not in computed and name != product.name]
    roles = ["out" if name in outs else "in" for name in names]
    own = {
        name: f"{role}{roles[:i].count(role)}"
        for i, (name, role) in enumerate(zip(names, roles, strict=True))
    }
    buffers = tuple(
        KernelBuffer(own[name], graph.buffers[name].dtype, role, graph.buffers[name].numel)
        for name, role in zip(names, roles, strict=True)
    )

    def stage(found: Built) -> Stage:
        kernel, used, inner = found
        places = [
            names.index(old) for old, b in zip(used, kernel.buffers, strict=True) if b.name != inner
        ]
        return Stage(replace(kernel, origins=()), inner, tuple(places))

    renames = own | computed

    def renamed(leaf: object) -> object:
        return replace(leaf, buffer=renames[leaf.buffer]) if isinstance(leaf, View) else leaf

    args, kwargs = map_leaves(renamed, (node.args, dict(node.kwargs)))
    template = Template(
        name="kernel",
        device=product.device.type,
        op=node.op,  # type: ignore[arg-type]
        args=args,
        kwargs=tuple(kwargs.items()),
        result=View("product", product.shape, product.stride, sympy.Integer(0)),
        buffers=buffers,
        sizes=(),
        epilogue=stage(epilogue),
        prologues=tuple((computed[name], stage(found)) for name, found in prologues if found),
        origins=tuple(
            dict.fromkeys((*node.origins, *(o for kernel, _, _ in built for o in kernel.origins)))
        ),
    )
    sizes = _sizes(template)
    hints = tuple((size, graph.facts.hints[size]) for size in sizes if size in graph.facts.hints)
    return replace(template, sizes=sizes, hints=hints), tuple(names)


def _sizes(template: Template) -> tuple[sympy.Symbol, ...]:
    exprs = expressions_in((template.args, dict(template.kwargs), template.result))
    exprs += [buffer.numel for buffer in template.buffers]
    found = {s for expr in exprs for s in expr.free_symbols}
    found |= {s for kernel in kernels_of(template) for s in kernel.sizes}
    return tuple(sorted(found, key=lambda s: (len(s.name), s.name)))  # type: ignore[attr-defined]
