"""Functional forms of operators that have none in ATen, defined in the library ``aotgrad``."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch

from .errors import Unsupported

_LIBRARY = torch.library.Library("aotgrad", "FRAGMENT")
_ANNOTATION = re.compile(r"\([a-z]\w*!?\)")


def _signature(overload: torch._ops.OpOverload) -> str:
    return str(overload._schema).partition("(")[2]


def _rnn_layer(*args: Any) -> Any:
    """oneDNN's kernel keeps what backward reads only while grad mode is on; no argument tells it."""
    with torch.enable_grad():
        return torch.ops.aten.mkldnn_rnn_layer(*args)


_LIBRARY.define(f"rnn_layer_training({_signature(torch.ops.aten.mkldnn_rnn_layer.default)}")
_LIBRARY.impl("rnn_layer_training", _rnn_layer, "CompositeExplicitAutograd")


def _factored(result: torch.Tensor, info: torch.Tensor, name: str, is_matrix: bool) -> torch.Tensor:
    torch.ops.aten._linalg_check_errors(info, name, is_matrix=is_matrix)
    return result.clone()


_LIBRARY.define("factored(Tensor result, Tensor info, str name, bool is_matrix) -> Tensor")
_LIBRARY.impl("factored", _factored, "CompositeExplicitAutograd")


def is_mutable_custom(func: Any) -> bool:
    """Whether ``func`` is a custom overload that writes to operands and returns none of them."""
    return (
        isinstance(func, torch._ops.OpOverload)
        and func.namespace not in ("aten", "prim", "prims", "aotgrad")
        and func._schema.is_mutable
        and all(r.alias_info is None for r in func._schema.returns)
    )


def call_functional(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a mutable op by its functional form, then write the new values to its operands. Its own results.

    Eager's default for a custom one is to leave gradients as if it were not there.
    """
    if not isinstance(func, torch._ops.OpOverload):
        return _fused_step(func.__name__, args, kwargs)
    schema = func._schema
    values = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    values |= dict(zip((a.name for a in schema.arguments), args)) | kwargs
    written = [values[name] for name in _written(func)]
    storages = [t.untyped_storage()._cdata for v in values.values() for t in _tensors(v)]
    if any(storages.count(t.untyped_storage()._cdata) > 1 for v in written for t in _tensors(v)):
        raise Unsupported("AG013", f"{func} writes to an operand that shares memory with another one")
    targets = [t for v in written for t in _tensors(v)]
    out = functional_overload(func, len(targets))(*args, **kwargs)
    results = _as_tuple(out)
    with torch.no_grad():
        for old, new in zip(targets, results[len(schema.returns) :]):
            old.copy_(new)
    own = results[: len(schema.returns)]
    if not own:
        return None
    return own[0] if len(own) == 1 else own


def is_fused_step(name: str, args: tuple[Any, ...]) -> bool:
    """Whether it is ``torch._fused_adam_`` or of its kin, with an empty list, which torch's functionalisation refuses there."""
    return name.startswith("_fused_") and name.endswith("_") and any(isinstance(arg, list) and not arg for arg in args)


def _fused_step(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    results = getattr(torch.ops.aten, name[:-1])(*args, **kwargs)
    scaled = kwargs.get("grad_scale") is not None
    with torch.no_grad():
        for place, (olds, news) in enumerate(zip(args, results)):
            if place != 1 or scaled:  # the gradients
                for old, new in zip(olds, news):
                    old.copy_(new)


@cache
def functional_overload(base: torch._ops.OpOverload, copies: int) -> torch._ops.OpOverload:
    """``aotgrad::<namespace>_<name>_<copies>``: works on copies of the tensors that ``base`` writes to, of which there are
    ``copies`` in lists and alone, and returns them behind its results."""
    written, schema = _written(base), base._schema
    arguments, _, _ = _signature(base).rpartition(") ->")
    name = "_".join([*schema.name.split("::"), *schema.overload_name.split(), str(copies)])
    results = ", ".join([str(r.type) for r in schema.returns] + ["Tensor"] * copies)
    _LIBRARY.define(f"{name}({_ANNOTATION.sub('', arguments)}) -> ({results})")
    names = [a.name for a in schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        values = dict(zip(names, args)) | kwargs
        values |= {w: _copy(values[w]) for w in written if w in values}
        own = base(*(values[n] for n in names[: len(args)]), **{n: values[n] for n in kwargs})
        results = (*_as_tuple(own), *(t for w in written for t in _tensors(values.get(w))))
        return results[0] if len(results) == 1 else results

    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    return getattr(torch.ops.aotgrad, name).default


def _written(func: torch._ops.OpOverload) -> list[str]:
    return [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return () if results is None else results if isinstance(results, tuple) else (results,)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(t, torch.Tensor)]


def _copy(value: Any) -> Any:
    return [t.clone() for t in value] if isinstance(value, (list, tuple)) else None if value is None else value.clone()
