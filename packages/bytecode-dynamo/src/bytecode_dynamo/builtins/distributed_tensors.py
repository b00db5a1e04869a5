"""DTensor: the functions that change between local and global tensors are
single calls in the graph.
"""

from __future__ import annotations

import sys
from typing import Any

from symshapes import WrapperFunction, versions_of

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import constructs_each, evaluates_call
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.polyfills import distributed_tensors as polyfill
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import call_polyfill, call_torch, constant_of, fold_call
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.trace import TORCH_ROOT
from bytecode_dynamo.variables.base import Args, Kwargs
from bytecode_dynamo.variables.constant import ConstantVariable
from bytecode_dynamo.variables.function import FunctionVariable
from bytecode_dynamo.variables.placement import PLACEMENTS
from bytecode_dynamo.variables.tensor import TensorVariable

_HOME = "torch.distributed.tensor"
_API = TORCH_ROOT + "distributed/tensor/_api.py"
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
    if name == "FromTorchTensor" and rest[2].truth(ctx):
        mesh, placements, _, shape = rest[:4]
        first = call_polyfill(ctx, polyfill.checked_local, [first, mesh, placements, shape])
        rest[2] = ConstantVariable(False)
    if not isinstance(first, TensorVariable):
        raise GraphBreak("BD018", f"{name} of {first.describe()}")
    others = tuple(constant_of(ctx, arg, f"an argument of DTensor's {name}") for arg in rest)
    call = WrapperFunction(function, others, versions_of(first.fake))
    return call_torch(ctx, OpaqueCall(call, name), [first])


@evaluates_call(polyfill.refuse)
def refuse(ctx: Context, what: VariableTracker) -> None:
    raise GraphBreak("BD018", what.as_constant(ctx))


def evaluate(
    ctx: Context, function: FunctionVariable, args: Args, kwargs: Kwargs
) -> VariableTracker | None:
    """A call of ``distribute_tensor``; None for any other function."""
    code = function.code
    if code.co_qualname != "distribute_tensor" or code.co_filename != _API:
        return None
    return call_polyfill(ctx, polyfill.distribute_tensor, args, kwargs)
