"""Rules for ``torch.optim``: the wrapper of ``step``, tensor scalars, grouping of tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.optim._adafactor import adafactor
from torch.optim.asgd import asgd
from torch.optim.optimizer import _get_value, _use_grad_for_differentiable  # pyright: ignore
from torch.optim.radam import radam

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import evaluates_call, evaluates_code, evaluates_each
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import (
    binary_operation,
    call_torch,
    get_attribute,
    new_dict,
    new_list,
    new_value,
)
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import Args, Kwargs
from bytecode_dynamo.variables.constant import NONE, ConstantVariable
from bytecode_dynamo.variables.sequence import new_tuple
from bytecode_dynamo.variables.tensor import TENSOR_METHODS, TensorVariable

_C: Any = torch._C


@evaluates_code(_use_grad_for_differentiable(lambda self: None))
def step(ctx: Context, function: Any, args: Args, kwargs: Kwargs) -> VariableTracker:
    differentiable = get_attribute(ctx, args[0], "defaults").get_item(
        ctx, ConstantVariable("differentiable")
    )
    with ctx.modes.grad_set(ctx, differentiable.truth(ctx)):
        return get_attribute(ctx, function, "__wrapped__").call(ctx, args, kwargs)


@evaluates_each(radam, asgd)
def capturable_step(
    ctx: Context, function: Any, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    """Takes the capturable form of an optimizer's step. The default form branches on the step
    count; this one computes the same with tensors, here in double precision as eager's Python
    numbers.
    """
    call = new_value(ctx, function.__wrapped__).call
    *columns, steps = (arg.unpack(ctx) for arg in args)
    devices = {t.fake.device for column in columns for t in column if isinstance(t, TensorVariable)}
    if len(devices) != 1 or kwargs["capturable"].truth(ctx):
        return call(ctx, list(args), kwargs)
    device, exactly, copy = map(ConstantVariable, (devices.pop(), torch.float64, True))
    exact = [step.call_method(ctx, "to", [device, exactly], {"copy": copy}) for step in steps]
    kwargs["capturable"] = ConstantVariable(True)
    result = call(ctx, [*args[:-1], new_list(ctx, exact)], kwargs)
    for step in steps:
        step.call_method(ctx, "add_", [ConstantVariable(1)], {})
    return result


@evaluates_call(adafactor)
def adafactor_step(
    ctx: Context, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    """Adafactor reads the norms of parameters as Python numbers, which become unbacked symbols."""
    settings = ctx.config
    ctx.config = replace(settings, capture_scalar_outputs=True)
    ctx.env.allow_unbacked = True  # permanently: the graph contains such numbers now
    try:
        return new_value(ctx, adafactor.__wrapped__).call(ctx, list(args), kwargs)  # type: ignore[attr-defined]
    finally:
        ctx.config = settings


def _fused(name: str, combine: str) -> Any:
    """``x.addcdiv_(a, b, value=v)`` with a tensor ``v``, which torch would read on the host."""

    def rule(
        ctx: Context, x: TensorVariable, *args: VariableTracker, **kwargs: VariableTracker
    ) -> VariableTracker:
        value = kwargs.get("value")
        if not isinstance(value, TensorVariable):
            return call_torch(ctx, name, [x, *args], kwargs)
        term = binary_operation(ctx, "*", call_torch(ctx, combine, list(args)), value)
        return call_torch(ctx, "add_", [x, term])

    return rule


TENSOR_METHODS["addcdiv_"] = _fused("addcdiv_", "div")
TENSOR_METHODS["addcmul_"] = _fused("addcmul_", "mul")


def _fused_each(function: Any, combine: str) -> Any:
    def rule(
        ctx: Context, xs: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker
    ) -> VariableTracker:
        scalars = args[2] if len(args) > 2 else kwargs.get("value", kwargs.get("scalars"))
        several = scalars is not None and issubclass(
            scalars.python_type(), (list, tuple, torch.Tensor)
        )
        each = scalars.unpack(ctx) if scalars is not None and several else []
        if not any(isinstance(scalar, TensorVariable) for scalar in each):
            return call_torch(ctx, function, [xs, *args], kwargs)
        first, second = (arg.unpack(ctx) for arg in args[:2])
        for x, a, b, scalar in zip(xs.unpack(ctx), first, second, each):
            term = binary_operation(ctx, "*", call_torch(ctx, combine, [a, b]), scalar)
            call_torch(ctx, "add_", [x, term])
        return NONE

    return rule


for _function, _combine in ((torch._foreach_addcdiv_, "div"), (torch._foreach_addcmul_, "mul")):
    evaluates_call(_function)(_fused_each(_function, _combine))


evaluates_call(torch.jit.annotate)(lambda ctx, annotation, value: value)


@evaluates_call(_get_value)
def get_value(ctx: Context, value: VariableTracker) -> VariableTracker:
    """Eager mode reads the step count and continues in double precision."""
    if not isinstance(value, TensorVariable) or not value.fake.dtype.is_floating_point:
        return value
    return value.call_method(ctx, "double", [], {})


@evaluates_call(_C._group_tensors_by_device_and_dtype)
def group_tensors(
    ctx: Context, lists: VariableTracker, with_indices: VariableTracker | None = None
) -> VariableTracker:
    columns = [column.unpack(ctx) for column in lists.unpack(ctx)]
    tensors = [item for item in columns[0] if isinstance(item, TensorVariable)]
    kinds = dict.fromkeys((tensor.fake.device, tensor.fake.dtype) for tensor in tensors)
    if len(tensors) != len(columns[0]):
        raise GraphBreak("BD018", "what is grouped by devices and dtypes is no list of tensors")
    counted = with_indices is not None and with_indices.truth(ctx)

    def group(kind: tuple[torch.device, torch.dtype]) -> VariableTracker:
        places = [
            i for i, tensor in enumerate(tensors) if (tensor.fake.device, tensor.fake.dtype) == kind
        ]
        lists = [new_list(ctx, [column[i] for i in places] if column else []) for column in columns]
        return new_tuple([new_list(ctx, lists), new_value(ctx, places if counted else [])])

    return new_dict(ctx, [(new_value(ctx, kind), group(kind)) for kind in kinds])
