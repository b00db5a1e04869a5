"""Rewrites of traced graphs: where a pattern matches, its result is computed by a replacement."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from symshapes import is_symbolic, statically_known_true
from symshapes.decisions import may

from aotgrad.errors import UserError, source_line

from .constants import is_random
from .passes import clean, size_symbols
from .trace import trace_program

Match = Callable[[torch.fx.Node], Sequence[Any] | None]
Replacement = Callable[..., torch.Tensor]

_COMMUTATIVE = frozenset(
    getattr(torch.ops.aten, name).Tensor
    for name in ("add", "mul", "bitwise_and", "bitwise_or", "bitwise_xor", "eq", "ne")
) | {torch.ops.aten.maximum.default, torch.ops.aten.minimum.default,
torch.ops.aten.logical_and.default}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pattern:
    """One rewrite.

    Attributes:
        name: shown in dumps beside what it made.
        match: for the node of a result, the replacement's arguments (nodes and plain values); None
            where it does not match.
        replacement: a function of tensors that computes the same result: shape, dtype and device
            are checked.
    """

    name: str
    match: Match
    replacement: Replacement


PATTERNS: dict[str, Pattern] = {}
"""What ``register_pattern`` has registered, by name, in order of application."""


def register_pattern(
    match_or_example: Callable[..., Any],
    replacement: Replacement,
    *,
    inputs: Sequence[Any] | None = None,
    name: str = "",
) -> Pattern:
    """Registers a rewrite for every graph that is compiled from now on.

    Args:
        match_or_example: with ``inputs``, a function of them whose ops are the pattern: its tensors
            match any tensors, its numbers only themselves. Without, a function ``match(node)``; see
            ``Pattern``.
        replacement: takes what was matched, in order, and returns one tensor.
        inputs: example tensors and numbers.
        name: the replacement's name by default. A later registration of the same name takes the
            place of the earlier.

    ``unregister_pattern(name)`` takes it back. Raises UserError for an example that has several
    results or random ops.
    """
    name = name or getattr(replacement, "__name__", "pattern")
    match = match_or_example if inputs is None else _matcher(match_or_example, inputs, name)
    if len(inspect.signature(match).parameters) != 1:
        raise UserError(
            f"pattern {name!r}: pass inputs=[...] with an example, or a match function of one node"
        )
    PATTERNS[name] = pattern = Pattern(name, match, replacement)
    return pattern


def unregister_pattern(name: str) -> None:
    """Takes a registered pattern back. Raises UserError when there is none of this name."""
    if PATTERNS.pop(name, None) is None:
        raise UserError(f"there is no pattern {name!r}; registered: {sorted(PATTERNS)}")


def apply_patterns(
    gm: torch.fx.GraphModule, patterns: Sequence[Pattern], *, keep_random: bool = False
) -> Counter[str]:
    """Rewrites every match, later nodes first, and cleans the graph; returns how often each pattern
    matched.
    """
    counts: Counter[str] = Counter()
    for pattern in patterns:
        for node in reversed(list(gm.graph.nodes)):
            is_candidate = node.op == "call_function" and node.users
            if not is_candidate or node.meta.get("rewritten_by") == pattern.name:
                continue
            try:
                arguments = pattern.match(node)
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                raise UserError(
                    f"pattern {pattern.name!r}: match({node.name}) raised "
                    f"{what}\n{source_line(node)}".rstrip()
                ) from error
            if arguments is not None and may("pattern", pattern.name, node):
                _rewrite(gm, node, pattern, arguments)
                counts[pattern.name] += 1
    if counts:
        clean(gm, keep_random=keep_random)
    return counts


# -- matching --------------------------------------------------------------------------------------


def _matcher(example: Callable[..., Any], inputs: Sequence[Any], name: str) -> Match:
    graph = _trace(example, inputs).graph
    results = graph.output_node().args[0]
    if (
        not isinstance(results, tuple)
        or len(results) != 1
        or getattr(results[0], "op", "") != "call_function"
    ):
        raise UserError(
            f"pattern {name!r}: the example must compute exactly one tensor and write to no input"
        )
    if any(is_random(n) for n in graph.nodes):
        raise UserError(f"pattern {name!r}: random ops cannot be matched")
    order = [
        n for n, x in zip(graph.find_nodes(op="placeholder"), inputs) if isinstance(x, torch.Tensor)
    ]

    def match(node: torch.fx.Node) -> Sequence[Any] | None:
        bound = _unify(results[0], node, {})
        return None if bound is None else [bound.get(p) for p in order]

    return match


def _unify(pattern: Any, value: Any, bound: dict[Any, Any]) -> dict[Any, Any] | None:
    """``bound`` with what makes ``pattern`` equal ``value``; None when nothing does."""
    if isinstance(pattern, torch.fx.Node):
        if pattern in bound:
            return bound if bound[pattern] is value else None
        if not isinstance(value, torch.fx.Node):
            return None
        if pattern.op == "placeholder":
            if isinstance(value.meta["val"], torch.Tensor):
                return {**bound, pattern: value}
            return None
        return _unify_calls(pattern, value, bound)
    if isinstance(pattern, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(pattern):
            return None
        for p, v in zip(pattern, value):
            found = _unify(p, v, bound)
            if found is None:
                return None
            bound = found
        return bound
    return bound if type(pattern) is type(value) and pattern == value else None


def _unify_calls(
    pattern: torch.fx.Node, node: torch.fx.Node, bound: dict[Any, Any]
) -> dict[Any, Any] | None:
    if (
        node.op != pattern.op
        or node.target != pattern.target
        or node.kwargs.keys() != pattern.kwargs.keys()
    ):
        return None
    kwargs = [pattern.kwargs[k] for k in pattern.kwargs], [node.kwargs[k] for k in pattern.kwargs]
    orders = [node.args]
    if node.target in _COMMUTATIVE and len(node.args) == 2:
        orders.append(node.args[::-1])
    for args in orders:
        found = _unify([*pattern.args, kwargs[0]], [*args, kwargs[1]], bound)
        if found is not None:
            return {**found, pattern: node}
    return None


# -- replacing -------------------------------------------------------------------------------------


def _trace(program: Callable[..., Any], inputs: Sequence[Any]) -> torch.fx.GraphModule:
    return trace_program(lambda values, *_: program(*values), inputs)


def _rewrite(
    gm: torch.fx.GraphModule, node: torch.fx.Node, pattern: Pattern, arguments: Sequence[Any]
) -> None:
    operands = [a for a in arguments if isinstance(a, torch.fx.Node)]
    symbols = set().union(*(size_symbols(a) for a in operands), size_symbols(node))
    binders = [
        n
        for n in gm.graph.nodes
        if is_symbolic(n.meta.get("val")) and n.meta["val"].node.expr in symbols
    ]
    expected = node.meta["val"]

    def program(*values: Any) -> Any:
        result = pattern.replacement(*values[len(binders) :])
        _check_same(pattern, node, result)
        if all(statically_known_true(a == b) for a, b in zip(result.stride(), expected.stride())):
            return result
        like = torch.empty_strided(
            expected.shape, expected.stride(), dtype=result.dtype, device=result.device
        )
        return like.copy_(result)

    given = [*binders, *arguments]
    traced = _trace(program, [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in given])
    results = traced.graph.output_node().args[0]
    result = results[0] if isinstance(results, tuple) and len(results) == 1 else None
    if not isinstance(result, torch.fx.Node):
        raise UserError(
            f"pattern {pattern.name!r}: the replacement must return one tensor and write to no "
            f"input"
        )
    env = dict(zip(traced.graph.find_nodes(op="placeholder"), given))
    with gm.graph.inserting_before(node):
        for made in traced.graph.nodes:
            if made.op in ("call_function", "get_attr"):
                env[made] = _copy(gm, traced, made, env, node, pattern)
    new = env[result]
    assert isinstance(new, torch.fx.Node)
    node.replace_all_uses_with(new)
    gm.graph.erase_node(node)


def _copy(
    gm: torch.fx.GraphModule, traced: torch.fx.GraphModule, made: torch.fx.Node,
    env: dict[Any, Any], node: torch.fx.Node,
    pattern: Pattern,
) -> torch.fx.Node:  # fmt: skip
    if made.op == "get_attr":
        name = f"{pattern.name}_{made.target}"
        gm.register_buffer(name, getattr(traced, str(made.target)), persistent=False)
        new = gm.graph.get_attr(name)
    else:
        new = gm.graph.node_copy(made, env.__getitem__)
    inherited = ("stack_trace", "forward_node", "is_backward", "recompute")
    new.meta = {k: node.meta[k] for k in inherited if k in node.meta} | {
        "val": made.meta["val"],
        "rewritten_by": pattern.name,
    }
    return new


def _is_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether shape, dtype and device are the same."""
    if a.dtype is not b.dtype or a.device != b.device or a.dim() != b.dim():
        return False
    return all(statically_known_true(m == n) for m, n in zip(a.shape, b.shape))


def _check_same(pattern: Pattern, node: torch.fx.Node, value: Any) -> None:
    expected = node.meta["val"]
    if isinstance(value, torch.Tensor) and _is_alike(value, expected):
        return
    raise UserError(
        f"pattern {pattern.name!r}: the replacement of {node.name} gives {_described(value)} "
        f"instead of {_described(expected)}\n{source_line(node)}".rstrip()
    )


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{value.dtype} {tuple(value.shape)} on {value.device}"
