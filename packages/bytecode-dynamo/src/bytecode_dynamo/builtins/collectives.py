"""torch.distributed: a process's knowledge of its groups is constant and guarded; collectives are
operators in the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call, evaluates_each
from bytecode_dynamo.guards.records import Answer, GuardKind
from bytecode_dynamo.guards.source import ConstSource
from bytecode_dynamo.polyfills import collectives as collective
from bytecode_dynamo.rule_table import RuleFor
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import constant_of, constants, new_value, written_as
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.trace import TORCH_ROOT
from bytecode_dynamo.variables.base import Args, BoundRuleVariable, Kwargs
from bytecode_dynamo.variables.callable import KnownObjectVariable
from bytecode_dynamo.variables.constant import ConstantVariable
from bytecode_dynamo.variables.function import FunctionVariable
from bytecode_dynamo.variables.wrap import by_identity, tracker_for

FUNCTIONAL = TORCH_ROOT + "distributed/_functional_collectives.py"
_world: Any = getattr(torch.distributed, "distributed_c10d", None)


@dataclass(frozen=True, slots=True, eq=False)
class GroupVariable(KnownObjectVariable):
    """A process group or device mesh, whose attributes never change."""

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name in _SAID:
            return BoundRuleVariable(self, name)
        return new_value(ctx, getattr(self.value, name))

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name not in _SAID:
            raise GraphBreak("BD018", f"{name}() of a {type(self.value).__name__}")
        return new_value(ctx, _call(ctx, getattr(self.value, name), args, kwargs))

    def get_item(self, ctx: Context, key: VariableTracker) -> VariableTracker:
        return new_value(ctx, self.value[key.as_constant(ctx)])


_SAID = frozenset(
    "size rank name get_group get_rank get_local_rank get_coordinate get_all_groups".split()
)


tracker_for(
    "torch.distributed.distributed_c10d.ProcessGroup", "torch.distributed.device_mesh.DeviceMesh"
)(by_identity(GroupVariable))


def _call(ctx: Context, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    values = [constant_of(ctx, arg, "an argument of torch.distributed") for arg in args]
    named = {
        name: constant_of(ctx, value, "an argument of torch.distributed")
        for name, value in kwargs.items()
    }
    try:
        return function(*values, **named)
    except Exception as error:
        raise GraphBreak("BD018", f"torch.distributed.{function.__name__}: {error}") from None


def _known(
    ctx: Context, function: Any, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    """The answer of a function of the process's groups, guarded."""
    answer = _call(ctx, function, args, kwargs)
    values, named = constants(ctx, args, kwargs)
    gone = (RuntimeError, ValueError)  # of a group that was destroyed
    read = Answer("{}()", lambda now: now(*values, **named), answer, absent=gone)
    ctx.guards.require(ConstSource(function), GuardKind.CUSTOM, read)
    return new_value(ctx, answer)


_KNOWN = (
    "is_initialized", "get_rank", "get_world_size", "get_backend", "is_torchelastic_launched",
    "is_nccl_available",
    "is_gloo_available", "is_mpi_available", "is_ucc_available", "is_xccl_available",
    "is_backend_available",
    "get_process_group_ranks", "get_group_rank", "get_global_rank", "get_node_local_rank",
    "_get_default_group",
    "_get_group_size_by_name", "_get_group_size", "_resolve_process_group",
)  # fmt: skip


_IN_PLACE = {
    collective.all_reduce: ("all_reduce",),
    collective.broadcast: ("broadcast",),
    collective.all_gather: ("all_gather",),
    collective.all_gather_into_tensor: (
        "all_gather_into_tensor",
        "all_gather_single",
        "_all_gather_base",
    ),
    collective.reduce_scatter: ("reduce_scatter",),
    collective.reduce_scatter_tensor: (
        "reduce_scatter_tensor",
        "reduce_scatter_single",
        "_reduce_scatter_base",
    ),
    collective.all_to_all_single: ("all_to_all_single",),
}

if torch.distributed.is_available():
    tracker_for(torch.distributed.ReduceOp.RedOpType)(by_identity(KnownObjectVariable))
    evaluates_each(*(getattr(_world, name) for name in _KNOWN if hasattr(_world, name)))(_known)
    for _polyfill, _names in _IN_PLACE.items():
        evaluates_call(
            *{id(f): f for f in (getattr(_world, n) for n in _names if hasattr(_world, n))}.values()
        )(written_as(_polyfill))


def _world_group() -> Any:
    return _world.GroupMember.WORLD


if torch.distributed.is_available():
    evaluates_call(type(_world.GroupMember).WORLD.fget)(lambda ctx, cls: _known(ctx, _world_group))


def _name_of(group: Any) -> str:
    return (group or _world._get_default_group()).group_name


def _size_of(group: Any) -> int:
    return _world.get_world_size(group)


def _root_of(group: Any, src: int | None, group_src: int | None) -> int:
    if group_src is not None:
        return group_src
    return _world.get_group_rank(group or _world._get_default_group(), src)


for _asked, _answering in (
    (collective.group_name, _name_of),
    (collective.group_size, _size_of),
    (collective.root_of, _root_of),
):
    evaluates_call(_asked)(RuleFor(_known, _answering))


@evaluates_call(collective.reduction)
def reduction(ctx: Context, op: VariableTracker) -> VariableTracker:
    value = torch.distributed.ReduceOp.SUM if op.is_none else constant_of(ctx, op, "a reduction")
    names = {getattr(torch.distributed.ReduceOp, name.upper()): name for name in _REDUCTIONS}
    if value not in names:
        raise GraphBreak("BD018", f"a collective with {op.describe()}")
    return ConstantVariable(names[value])


_REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")


@evaluates_call(collective.refuse_async)
def refuse_async(ctx: Context, async_op: VariableTracker) -> None:
    if async_op.truth(ctx):
        raise GraphBreak(
            "BD018",
            "a collective with async_op=True",
            "use async_op=False, or a collective of torch.distributed._functional_collectives",
        )


def evaluate(
    ctx: Context, function: FunctionVariable, args: Args, kwargs: Kwargs
) -> VariableTracker | None:
    """A call inside of functional collectives that annotates the result; None for any other
    function.

    The collectives are evaluated as Python code: under a compiler they wait for their results.
    """
    if function.code.co_filename != FUNCTIONAL:
        return None
    name = function.code.co_qualname
    if name == "_are_we_tracing":
        return ConstantVariable(True)
    if name in ("_resolve_group", "_resolve_group_name", "_expand_group"):
        return _known(ctx, function.value, *args, **kwargs)
    return None
