"""What captured programs say about capture: functions that stay out of graphs, stand in them as
they are, or are known.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from bytecode_dynamo.builtins.settings import ANSWERS
from bytecode_dynamo.builtins.torch_functions import allowed_rule, constant_result_rule
from bytecode_dynamo.guards.source import ConstSource
from bytecode_dynamo.state.protocol import constant_of, wrap_value
from bytecode_dynamo.variables.constant import ConstantVariable

from .errors import GraphBreak, UserError
from .function_table import FUNCTIONS, evaluates_call

F = TypeVar("F", bound=Callable[..., Any])


def graph_break(msg: str = "") -> None:
    """End the graph here; without capture it does nothing. ``msg`` is shown as the reason."""


@evaluates_call(graph_break)
def _graph_break(ctx: Any, msg: Any = None) -> None:
    text = "" if msg is None else str(constant_of(ctx, msg, "the message of graph_break"))
    raise GraphBreak("BD009", f"graph_break(): {text}" if text else "graph_break()")


def is_compiling() -> bool:
    """Whether the caller is being captured (False when it runs as it is)."""
    return torch.compiler.is_compiling()


ANSWERS[is_compiling] = True
evaluates_call(is_compiling)(lambda ctx: ConstantVariable(True))


# -- functions with a meaning of their own ---------------------------------------------------------


def _each(fn: Any, name: str) -> Iterable[Callable[..., Any]]:
    for one in fn if isinstance(fn, (list, tuple)) else (fn,):
        if not callable(one):
            raise UserError(f"{name} needs something that can be called, not {type(one).__name__}")
        yield one


def allow_in_graph(fn: F) -> F:
    """Record calls of a function (or of each function in a list) as they are, without looking into
    it.

    The function gets and returns tensors, constants, and containers of them; it must not depend on
    state that can change nor have side effects: nothing that it reads is guarded, and compilers
    trace through it or call it. Also for subclasses of ``torch.autograd.Function``, whose ``apply``
    is meant. Returns its argument; raises UserError for what can't be called.
    """
    for one in _each(fn, "allow_in_graph"):
        target = (
            one.apply if isinstance(one, type) and issubclass(one, torch.autograd.Function) else one
        )
        FUNCTIONS.override(target, allowed_rule(target))
    return fn


def disallow_in_graph(fn: F) -> F:
    """End graphs at calls of a function (or of each function in a list), which then runs in eager
    mode.

    Undone by ``allow_in_graph``; what is compiled already stays until ``reset()``. Returns its
    argument; raises UserError for what can't be called.
    """
    for one in _each(fn, "disallow_in_graph"):
        FUNCTIONS.override(one, _disallowed(one))
    return fn


def _disallowed(function: Any) -> Any:
    def rule(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        raise GraphBreak(
            "BD018",
            f"call of {getattr(function, '__qualname__', function)}, which disallow_in_graph named",
        )

    return rule


def assume_constant_result(fn: F) -> F:
    """Call a function while capturing, with the real arguments, and take its result for a constant
    of the graph.

    It is not called again as long as the guards on its arguments hold. Raises UserError for what
    can't be called.
    """
    (one,) = _each(fn, "assume_constant_result")
    FUNCTIONS.override(one, constant_result_rule(one))
    return fn


def substitute_in_graph(
    original_fn: Callable[..., Any], *, skip_signature_check: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: while capturing, evaluate this Python function in place of calls of
    ``original_fn`` (often one written in C).

    Both must have the same meaning; the eager program goes on calling the original. Raises
    UserError for what is not a function, and TypeError when the signatures differ (unless
    ``skip_signature_check``).
    """
    if not callable(original_fn) or isinstance(original_fn, type):
        raise UserError(f"substitute_in_graph needs a function, not {original_fn!r}")

    def register(traceable_fn: Callable[..., Any]) -> Callable[..., Any]:
        if not isinstance(traceable_fn, types.FunctionType):
            raise UserError(
                f"the substitute must be a Python function, not {type(traceable_fn).__name__}"
            )
        if not skip_signature_check:
            _check_signatures(original_fn, traceable_fn)

        def rule(ctx: Any, *args: Any, **kwargs: Any) -> Any:
            return wrap_value(ctx, traceable_fn, ConstSource(traceable_fn)).call(
                ctx, list(args), kwargs
            )

        FUNCTIONS.override(original_fn, rule)
        return traceable_fn

    return register


def _check_signatures(original: Callable[..., Any], traceable: Callable[..., Any]) -> None:
    try:
        wanted = inspect.signature(original)
    except ValueError:
        return
    given = inspect.signature(traceable)

    def shape(signature: inspect.Signature) -> list[Any]:
        return [(p.name, p.kind, p.default) for p in signature.parameters.values()]

    if shape(wanted) != shape(given):
        name = getattr(original, "__qualname__", original)
        raise TypeError(
            f"the signature of the substitute, {given}, is not that of {name}, {wanted}"
        )
