"""The kernel after a matrix product with a split sum (split-K): it adds the partial sums and runs
the epilogue.
"""

from __future__ import annotations

from dataclasses import replace

import sympy
import torch
from loopir import (
    Body,
    Call,
    Instruction,
    Kernel,
    KernelBuffer,
    Range,
    Stage,
    Template,
    Value,
    accessed,
    call,
    definitions,
    map_steps,
    steps_of,
    symbol,
    write_call,
)

from .product import Product

PARTIALS = "partials"


def sum_of_parts(template: Template, found: Product, partials: KernelBuffer, parts: int) -> Kernel:
    """The kernel after the product: adds its partial sums and the bias of addmm, rounds as in
    memory, and runs the epilogue.
    """
    stage = template.epilogue
    bodies, result = placed(stage, template, "e_")
    steps = steps_of(bodies)
    rows, columns = (item.symbol for item in stage.kernel.ranges[-2:])
    part = symbol("part")
    place = sympy.expand((part * found.m + rows) * found.n + columns)
    inner = (
        Instruction("p_load", "load", (PARTIALS, place, None, None), torch.float32),
        Instruction("p_sum", "reduce", ("sum", Value("p_load")), torch.float32),
    )
    total = _scaled_and_biased(found, template, (rows, columns))
    rounded = call("cast", total, dtype=stage.tensor.dtype)
    rounded = write_call(rounded, "p_rounded", torch.float32)
    loads = {str(step.result) for step in steps if step.op == "load" and step.args[0] == result}

    def used(step: Instruction) -> Instruction:
        args = (
            Value("p_rounded") if isinstance(arg, Value) and arg.name in loads else arg
            for arg in step.args
        )
        return replace(step, args=tuple(args))

    body = (*rounded, *(used(step) for step in steps if str(step.result) not in loads))
    touched = accessed(body)
    buffers = (*(buffer for buffer in template.buffers if buffer.name in touched), partials)
    reduction = (Range(part, sympy.Integer(parts)),)
    bodies = (Body(True, inner), Body(False, body))
    name = f"{template.name}_sum"
    return Kernel(
        name,
        template.device,
        buffers,
        (),
        stage.kernel.ranges,
        reduction,
        bodies,
        columns,
        origins=template.origins,
    )


def _scaled_and_biased(
    found: Product, template: Template, point: tuple[sympy.Symbol, ...]
) -> Call | Value:
    """``alpha * p_sum + beta * bias`` in float32."""

    def scaled(value: Call | Value, factor: float) -> Call | Value:
        return value if factor == 1 else call("mul", value, call("constant", float(factor)))

    value = scaled(Value("p_sum"), found.alpha)
    if found.bias is not None and found.beta != 0:
        view = found.bias
        terms = (
            symbol * step
            for symbol, step, size in zip(point[-len(view.shape) :], view.stride, view.shape)
            if size != 1
        )
        index = sympy.expand(view.offset + sum(terms))
        dtype = template.dtypes[view.buffer]
        bias = call("load", view.buffer, index, None, None, dtype=dtype)
        value = call("add", value, scaled(call("cast", bias), found.beta))
    return value


def placed(stage: Stage, template: Template, prefix: str) -> tuple[tuple[Body, ...], str]:
    """The stage's bodies over the template's buffers, with unique names, and the name of the tensor
    that has no memory.
    """
    hidden = f"{prefix}result"
    names = stage.operands(hidden, [buffer.name for buffer in template.buffers])
    buffers = dict(zip((buffer.name for buffer in stage.kernel.buffers), names))
    renamed = {name: f"{prefix}{name}" for name in definitions(stage.kernel.steps)}
    symbols = {symbol(old): symbol(new) for old, new in renamed.items()}

    def moved(position: int, step: Instruction, arg: object) -> object:
        if isinstance(arg, Value):
            return Value(renamed[arg.name])
        if isinstance(arg, sympy.Expr):
            return arg.xreplace(symbols)
        return buffers[str(arg)] if position == 0 and step.is_access else arg

    def own(step: Instruction) -> Instruction:
        args = tuple(moved(position, step, arg) for position, arg in enumerate(step.args))
        return replace(step, result=renamed.get(str(step.result)), args=args)  # type: ignore[arg-type]

    return map_steps(own, stage.kernel.bodies), hidden
