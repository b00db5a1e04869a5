"""Which ATen operators are extern prims."""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload

from primops.prim import ExternPrim, Prim
from primops.prims.extern import EXTERN_PRIMS

_BY_OPERATOR: dict[str, ExternPrim] = {
    name: prim for prim in EXTERN_PRIMS for name in prim.operators
}
EXTERN_OPS: frozenset[str] = frozenset(_BY_OPERATOR)


def prim_of(target: Any) -> Prim | None:
    """The prim that a node's target is or spells, or None."""
    if isinstance(target, Prim):
        return target
    if isinstance(target, OpOverload):
        return _BY_OPERATOR.get(target.name().partition(".")[0])
    return None


def is_declared_extern(op: OpOverload) -> bool:
    """Whether the operator spells an extern prim; operators of other namespaces (custom ones)
    always are extern.
    """
    return prim_of(op) is not None or not op.name().startswith("aten::")
