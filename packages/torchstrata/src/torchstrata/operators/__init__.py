"""Descriptions of operators outside torch, whose code is not part of a key by a version."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import bytecode_dynamo
import loopir
import torch
from symshapes import is_of_handler
from symshapes.text.names import find_target
from torch._ops import OpOverload, OpOverloadPacket

from .functions import Reached, digest, overloads
from .registrations import describe_registrations

_OF_THIS_PROCESS = frozenset(
    "aotgrad bytecode_dynamo symshapes inductor_cpp c10d _c10d_functional "
    "_c10d_functional_autograd _dtensor symm_mem".split()
)
"""Namespaces of operators whose operands name something of a process, such as a group."""

__all__ = ["describe_named", "describe_operators", "foreign_operators"]


def foreign_operators(graph: torch.fx.GraphModule) -> list[OpOverload | OpOverloadPacket]:
    """The operators outside torch that a graph calls."""
    found: dict[Any, None] = {}
    for node in graph.graph.nodes:
        target: Any = node.target
        is_operator = isinstance(target, OpOverload | OpOverloadPacket)
        if is_operator and not str(target).startswith("aten."):
            found.setdefault(target)
    return [*found]


def describe_named(names: Iterable[str]) -> tuple[str, list[OpOverload]] | None:
    """``describe_operators`` for names of ``format_target``; None where one has no operator now."""
    found = [*map(find_target, names)]
    try:
        return None if None in found else describe_operators(found)
    except loopir.Undescribed:
        return None


def describe_operators(
    targets: Iterable[OpOverload | OpOverloadPacket],
) -> tuple[str, list[OpOverload]]:
    """Everything that compilation may read of operators outside torch, as a hash ("" for none), and
    the overloads that it reaches. Raises Undescribed, which names the operator.
    """
    reached, texts = Reached(), list[str]()
    for op in (op for target in targets for op in overloads(target)):
        reached.operators.setdefault(op)
    patched = bytecode_dynamo.patches() if reached.operators else None
    if patched is not None:
        raise loopir.Undescribed(f"{patched} of the program, in torch's place,")
    described = list[OpOverload]()
    while len(described) < len(reached.operators):  # formulas call other operators
        op = [*reached.operators][len(described)]
        if op.namespace in _OF_THIS_PROCESS:
            raise loopir.Undescribed(op)
        try:
            texts.extend(describe_registrations(op, reached))
            texts.extend(reached.finish())
        except Exception as error:  # descriptions read objects of the program
            if is_of_handler(error):
                raise
            raise loopir.Undescribed(f"the operator {op}: {error}") from error
        described.append(op)
    return digest(texts) if texts else "", described
