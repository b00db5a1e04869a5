"""Functional forms of operators that have none in ATen, defined in the library ``aotgrad``."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache
from itertools import compress
from typing import Any

import torch
from torch.utils import _pytree as pytree

from aotgrad.errors import Unsupported

from .functional import tensors_in
from .memory_overlap import overlaps, overlaps_itself

_LIBRARY = torch.library.Library("aotgrad", "FRAGMENT")
_ANNOTATION = re.compile(r"\([a-z]\w*!?\)")


def _signature(overload: torch._ops.OpOverload) -> str:
    return str(overload._schema).partition("(")[2]


def _factored(result: torch.Tensor, info: torch.Tensor, name: str, is_matrix: bool) -> torch.Tensor:
    torch.ops.aten._linalg_check_errors(info, name, is_matrix=is_matrix)
    return result.clone()


_LIBRARY.define("factored(Tensor result, Tensor info, str name, bool is_matrix) -> Tensor")
_LIBRARY.impl("factored", _factored, "CompositeExplicitAutograd")


def _polygamma(self: torch.Tensor, n: int) -> torch.Tensor:
    return self.copy_(torch.polygamma(n, self.clone()))  # backward reads the old values


_IN_PLACE: dict[Any, Callable[..., torch.Tensor]] = {torch.Tensor.polygamma_: _polygamma}
"""In-place functions that torch's functionalisation refuses, as ones that it takes."""


def resolve_overload(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The overload that a call of a custom ``torch.ops.<namespace>.<name>`` resolves to, or what
    computes the same in a trace; ``func`` itself if it is anything else.
    """
    func = _IN_PLACE.get(func, func) if isinstance(func, Hashable) else func
    if not isinstance(func, torch._ops.OpOverloadPacket) or func._qualified_op_name.startswith(
        "aten::"
    ):
        return func
    return getattr(func, torch._C._jit_resolve_packet(func._qualified_op_name, *args, **kwargs))  # type: ignore[attr-defined]


def is_mutable_custom(func: Any) -> bool:
    """Whether ``func`` is a custom overload that writes to operands and returns no other alias."""
    return (
        isinstance(func, torch._ops.OpOverload)
        and func.namespace not in ("aten", "prim", "prims", "aotgrad")
        and func._schema.is_mutable
        and all(
            r.alias_info is None or _returned(func, r) is not None for r in func._schema.returns
        )
    )


def call_functional(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the functional form of a mutable op, writes the new values to its operands, and returns
    the op's own results.

    As in eager mode by default, autograd does not record a custom op.
    """
    if not isinstance(func, torch._ops.OpOverload):
        return _fused_step(func.__name__, args, kwargs)
    schema = func._schema
    values = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    values |= dict(zip((a.name for a in schema.arguments), args)) | kwargs
    targets = [t for name in _written(func) for t in tensors_in(values[name])]
    operands = {id(t): t for v in values.values() for t in tensors_in(v)}.values()
    if any(_may_share(target, other) for target in targets for other in operands):
        raise Unsupported(
            "AG013", f"{func} writes to an operand that shares memory with another one"
        )
    results = iter(_as_tuple(functional_overload(func, len(targets))(*args, **kwargs)))
    operand = [_returned(func, r) for r in schema.returns]
    own = tuple(next(results) if name is None else values[name] for name in operand)
    with torch.no_grad():
        for old, new in zip(targets, results):
            old.copy_(new)
    if not own:
        return None
    return own[0] if len(own) == 1 else own


def is_fused_step(name: str) -> bool:
    """Whether an op is a fused optimizer step such as ``torch._fused_adam_``.

    Torch's functionalisation refuses empty lists, and needs meta kernels that some steps don't
    have.
    """
    return name.startswith("_fused_") and name.endswith("_")


def _fused_step(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    functional = getattr(torch.ops.aten, name[:-1])
    results = functional(*args, **kwargs)
    given = dict(zip((a.name for a in functional.default._schema.arguments), args)) | kwargs
    written = [given[a.name] for a in functional.default._schema.arguments[: len(results)]]
    scaled = kwargs.get("grad_scale") is not None
    with torch.no_grad():
        for place, (olds, news) in enumerate(zip(written, results)):
            if place != 1 or scaled:  # the gradients
                for old, new in zip(olds, news):
                    # the kernel does not bump versions
                    with torch.autograd._unsafe_preserve_version_counter(old):
                        old.copy_(new)


@cache
def functional_overload(base: torch._ops.OpOverload, copies: int) -> torch._ops.OpOverload:
    """The overload ``aotgrad::<namespace>_<name>_<copies>``, which works on copies of the
    ``copies`` tensors that ``base`` writes to, and returns them after its own results.

    The overload ``consuming`` works in the operands' memory instead, for callers that no longer
    need the operands.
    """
    written, schema = _written(base), base._schema
    arguments, _, _ = _signature(base).rpartition(") ->")
    name = f"{functional_name(base)}_{copies}"
    is_own = [_returned(base, r) is None for r in schema.returns]
    results = ", ".join(
        [str(r.type) for r in compress(schema.returns, is_own)] + ["Tensor"] * copies
    )
    names = [a.name for a in schema.arguments]

    def runs(copy: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            values = dict(zip(names, args)) | kwargs
            copies = {id(t): copy(t) for w in written for t in tensors_in(values.get(w))}
            values = pytree.tree_map_only(torch.Tensor, lambda t: copies.get(id(t), t), values)
            own = base(*(values[n] for n in names[: len(args)]), **{n: values[n] for n in kwargs})
            results = (
                *compress(_as_tuple(own), is_own),
                *_distinct(t for w in written for t in tensors_in(values.get(w))),
            )
            return results[0] if len(results) == 1 else results

        return run

    for overload, given, copy in (
        (name, _ANNOTATION.sub("", arguments), _copy),
        (f"{name}.consuming", arguments, lambda t: t),
    ):
        _LIBRARY.define(f"{overload}({given}) -> ({results})")
        _LIBRARY.impl(overload, runs(copy), "CompositeExplicitAutograd")
    return getattr(torch.ops.aotgrad, name).default


def functional_name(base: torch._ops.OpOverload) -> str:
    """The name of ``functional_overload``, up to the number of copies."""
    schema = base._schema
    return "_".join([*schema.name.split("::"), *schema.overload_name.split()])


def _written(func: torch._ops.OpOverload) -> list[str]:
    return [
        a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write
    ]


def _returned(func: torch._ops.OpOverload, result: Any) -> str | None:
    """The written operand that the op returns as this result; None for a new tensor."""
    if result.alias_info is None or not result.alias_info.is_write:
        return None
    marks = result.alias_info.before_set
    aliased = ((a.name, a.alias_info) for a in func._schema.arguments if a.alias_info)
    return next((name for name, info in aliased if marks and info.before_set == marks), None)


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return () if results is None else results if isinstance(results, tuple) else (results,)


def _copy(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, on which an operator may rely."""
    return t.new_empty_strided(t.shape, t.stride()).copy_(t)


def _distinct(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    seen: set[int] = set()
    for t in tensors:
        yield t.clone() if id(t) in seen else t
        seen.add(id(t))


def _may_share(target: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a written tensor has elements in common with another one, or with itself."""
    return overlaps_itself(target) if target is other else overlaps(target, other)


def register_functional_kernels(graph: torch.fx.Graph) -> None:
    """Registers functional kernels for the custom operators in a graph that write to operands, for
    calls that are invisible to modes.
    """
    for node in graph.nodes:
        packet = node.target if isinstance(node.target, torch._ops.OpOverloadPacket) else None
        for func in [getattr(packet, o) for o in packet.overloads()] if packet else [node.target]:
            if is_mutable_custom(func):
                _register_functional_kernel(func)


@cache
def _register_functional_kernel(func: torch._ops.OpOverload) -> None:
    def run(*args: Any, **kwargs: Any) -> Any:
        return call_functional(func, args, kwargs)

    _libraries[func.namespace] = _libraries.get(func.namespace) or torch.library.Library(
        func.namespace, "FRAGMENT"
    )
    _libraries[func.namespace].impl(func, run, "Functionalize")


_libraries: dict[str, torch.library.Library] = {}
