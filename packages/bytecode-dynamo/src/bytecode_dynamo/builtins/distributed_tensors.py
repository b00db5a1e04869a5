"""DTensor: the functions that change between local and global tensors are
single calls in the graph.
"""

from __future__ import annotations

import sys
from typing import Any

from symshapes import WrapperFunction

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import constructs_each
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import call_torch, constant_of, fold_call
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import Args
from bytecode_dynamo.variables.placement import PLACEMENTS
from bytecode_dynamo.variables.tensor import TensorVariable

_HOME = "torch.distributed.tensor"
_CALLS = frozenset(
    f"{_HOME}.{name}"
    for name in ("_api._ToTorchTensor", "_api._FromTorchTensor", "_redistribute.Redistribute")
)


@constructs_each(*PLACEMENTS)
def construct_placement(
    ctx: Context, name: str, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    module, _, own = name.rpartition(".")
    return fold_call(ctx, getattr(sys.modules[module], own), args, kwargs)


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def is_single_call(function: Any) -> bool:
    """Whether a ``torch.autograd.Function`` is not evaluated but called by the graph."""
    return _name_of(function) in _CALLS


def call_function(ctx: Context, function: Any, args: Args) -> VariableTracker:
    """``function.apply`` of a function for which ``is_single_call`` holds."""
    first, *rest = args
    name = function.__name__.strip("_")
    if not isinstance(first, TensorVariable):
        raise GraphBreak("BD018", f"{name} of {first.describe()}")
    others = tuple(constant_of(ctx, arg, f"an argument of DTensor's {name}") for arg in rest)
    return call_torch(ctx, OpaqueCall(WrapperFunction(function, others), name), [first])
