"""Call targets as dotted names, and back: operator overloads, functions of torch and Python, prims.

A reader finds only functions of a few packages, and never calls anything. It imports only modules
of packages whose roots are lazy (``symshapes.lazy``), which those packages would load themselves.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Mapping
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from symshapes.lazy import LazyPackage, load_attribute

from .values import Unwritable

ROOTS: Mapping[str, Any] = {
    "torch": torch, "operator": operator, "math": math,
    "builtins": SimpleNamespace(getattr=getattr),
}  # fmt: skip
_PRIVATE = ("_C._nn", "_C._special", "_C._linalg", "_C._fft", "_C._sparse", "_C._nested")


def format_target(target: Any, roots: Mapping[str, Any] = ROOTS) -> str:
    """``ops.aten.add.Tensor``, ``torch.nn.functional.relu``, ``prims.add``. ``roots`` are the
    names that may come first. Raises Unwritable.
    """
    if isinstance(target, OpOverload):
        return f"ops.{target.namespace}.{target._schema.name.split('::')[1]}.{target._overloadname}"
    if isinstance(target, OpOverloadPacket):
        return f"ops.{target._qualified_op_name.replace('::', '.')}"
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", "")
    last = getattr(target, "__name__", name)
    module = (getattr(target, "__module__", None) or "torch").removeprefix("_")
    for dotted in (f"{module}.{name}", f"{module}.{last}", *(f"{r}.{last}" for r in roots),
                   *(f"torch.{place}.{last}" for place in _PRIVATE)):  # fmt: skip
        if _found(dotted, roots) is target:
            return dotted
    raise Unwritable(f"the function {module}.{name}")


def find_target(dotted: str, roots: Mapping[str, Any] = ROOTS) -> Any:
    """The inverse of ``format_target``; None for a name that stands for nothing."""
    if not dotted.startswith("ops."):
        return _found(dotted, roots)
    found = _operator(dotted)
    return _operator(dotted) if found is None and _defines_more(dotted.split(".")[1]) else found


def _operator(dotted: str) -> Any:
    try:
        found = reduce(getattr, dotted.split(".")[1:], torch.ops)
    except (AttributeError, RuntimeError):
        return None
    return found if isinstance(found, OpOverload | OpOverloadPacket) else None


def _defines_more(namespace: str) -> bool:
    """Loads the operators of a lazy package, which its module ``operators`` defines; whether that
    was still to be done.
    """
    module = f"{namespace}.operators"
    is_new = isinstance(sys.modules.get(namespace), LazyPackage) and module not in sys.modules
    if is_new and (is_new := find_spec(module) is not None):
        import_module(module)
    return is_new


def _found(dotted: str, roots: Mapping[str, Any]) -> Any:
    first, *names = dotted.split(".")
    root = roots.get(first)
    try:
        root = import_module(root) if isinstance(root, str) else root
        return reduce(load_attribute, names, root) if names else None
    except AttributeError:
        return None
