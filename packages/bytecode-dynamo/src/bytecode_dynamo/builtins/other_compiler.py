"""Traces of torch's own compiler in the process: wrappers of functions and modules, decorators.

They are recognised by where their code is and by their attributes; that compiler is never imported.
"""

from __future__ import annotations

from collections.abc import Callable

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import get_attribute
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.trace import OTHER_COMPILER, TORCH_ROOT
from bytecode_dynamo.variables.base import Args, Kwargs
from bytecode_dynamo.variables.constant import ConstantVariable, SymbolicVariable
from bytecode_dynamo.variables.function import FunctionVariable
from bytecode_dynamo.variables.tensor import TensorVariable

from .torch_functions import allowed_rule, constant_result_rule

ORIGINAL, DISABLED = "_torchdynamo_orig_callable", "_torchdynamo_disable"
CONSTANT = "_dynamo_marked_constant"
_PASSED_THROUGH = ("wrap_inline.<locals>.inner", "OptimizedModule.__getattr__")
"""Wrappers that only query or call their target."""


SIZES = TORCH_ROOT + "fx/experimental/symbolic_shapes.py"


def _has_unknown(ctx: Context, x: VariableTracker) -> bool:
    """Whether a number or tensor size depends on data."""
    numbers = (
        x.fake.shape
        if isinstance(x, TensorVariable)
        else [x.value]
        if isinstance(x, SymbolicVariable)
        else []
    )
    return any(
        not isinstance(number, int) and number.node.expr.free_symbols & ctx.env.unbacked
        for number in numbers
    )


def _known(ctx: Context, x: VariableTracker) -> bool | None:
    if isinstance(x, SymbolicVariable):
        return ctx.env.statically_known(x.value.node.expr)
    return x.truth(ctx)


def _or(default: bool) -> Callable[..., bool]:
    def decide(ctx: Context, a: VariableTracker) -> bool:
        if not _has_unknown(ctx, a):
            return a.truth(ctx)
        known = _known(ctx, a)
        return default if known is None else known

    return decide


def _is_known(answer: bool) -> Callable[..., bool]:
    def decide(ctx: Context, x: VariableTracker) -> bool:
        return _known(ctx, x) is answer

    return decide


_DECISIONS: dict[str, Callable[..., bool]] = {
    "guard_or_false": _or(False),
    "guard_or_true": _or(True),
    "guard_size_oblivious": _or(False),
    "statically_known_true": _is_known(True),
    "statically_known_false": _is_known(False),
    "has_free_unbacked_symbols": _has_unknown,
}
"""Queries about data-dependent sizes."""


def evaluate(
    ctx: Context, function: FunctionVariable, args: Args, kwargs: Kwargs
) -> VariableTracker | None:
    """A call of something that the other compiler created or marked; None for any other function.

    Code that it compiled is evaluated from the original. A function that it was told to leave alone
    breaks the graph, unless torch itself wrapped it.
    """
    value, filename = function.value, function.code.co_filename
    if value is not None and CONSTANT in value.__dict__:
        return constant_result_rule(value)(ctx, *args, **kwargs)
    if filename == TORCH_ROOT + "__init__.py" and function.code.co_qualname == "compile":
        raise GraphBreak("BD018", "another compiler is asked to compile a function")
    if filename == SIZES and function.code.co_qualname in _DECISIONS:
        return ConstantVariable(_DECISIONS[function.code.co_qualname](ctx, *args, **kwargs))
    if not filename.startswith(OTHER_COMPILER):
        return None
    name = function.code.co_qualname
    if name == "nonstrict_trace.<locals>.wrapped" and value is not None:
        return allowed_rule(value.__wrapped__)(ctx, *args, **kwargs)
    if value is not None and ORIGINAL in value.__dict__:
        home = getattr(value.__dict__[ORIGINAL], "__module__", None) or ""
        if value.__dict__.get(DISABLED) and not home.startswith("torch.optim."):
            why = value.__dict__.get(f"{DISABLED}_msg")
            raise GraphBreak(
                "BD010",
                f"call of {value.__qualname__}, which is disabled{f' ({why})' if why else ''}",
            )
        return get_attribute(ctx, function, ORIGINAL).call(ctx, args, kwargs)
    if name == "OptimizedModule.__call__":
        return get_attribute(ctx, args[0], "_orig_mod").call(ctx, args[1:], kwargs)
    if name == "graph_break":
        raise GraphBreak("BD009", "graph_break()")
    if name == "is_compiling":
        return ConstantVariable(True)
    return None


def is_passed_through(function: FunctionVariable) -> bool:
    """Whether a function of the other compiler can be evaluated."""
    return (
        function.code.co_filename.startswith(OTHER_COMPILER)
        and function.code.co_qualname in _PASSED_THROUGH
    )
