"""Torch function modes around a frame: capture removes them from the thread and evaluates them.

A compiled graph contains the calls that the modes made, so it runs without them, too. The mode of
``torch.set_default_device`` stays if it is alone: a frame that it is around does not leave it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from bytecode_dynamo.guards.computed_source import ComputedSource
from bytecode_dynamo.guards.source import ConstSource, Source
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.tracker import VariableTracker

_C: Any = torch._C
STACK_SIZE, MODE_AT = _C._len_torch_function_stack, _C._get_function_stack_at
PUSH, POP = _C._push_on_torch_function_stack, _C._pop_torch_function_stack


def modes_around() -> tuple[Any, ...]:
    """The modes of the thread, outermost first, if one is among them that can be left before
    capture ends; else none.
    """
    modes = tuple(map(MODE_AT, range(STACK_SIZE())))
    return () if all(mode is _default_device() for mode in modes) else modes


def _default_device() -> Any:
    """The mode of ``torch.set_default_device``."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)


@contextmanager
def without(modes: Sequence[Any]) -> Iterator[None]:
    """Remove these modes, which are all, from the thread's stack."""
    for _ in modes:
        POP()
    try:
        yield
    finally:
        for mode in modes:
            PUSH(mode)


@contextmanager
def without_saved_tensors_hooks() -> Iterator[None]:
    """Remove saved-tensor hooks: they are for tensors that the graph saves, not for fakes."""
    autograd, held = _C._autograd, []
    while (hooks := autograd._top_saved_tensors_default_hooks(False)) is not None:
        held.append(hooks)
        autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for hooks in reversed(held):
            autograd._push_saved_tensors_default_hooks(*hooks)


@contextmanager
def within(modes: Sequence[Any]) -> Iterator[None]:
    """Put removed modes back while something runs that they do not see."""
    for mode in modes:
        PUSH(mode)
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        for _ in modes:
            POP()


def hidden_from(modes: Sequence[Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled graph, hidden from the modes around its call."""
    if not modes:
        return compiled

    @functools.wraps(compiled, updated=())
    def call(*args: Any) -> Any:
        with without(tuple(map(MODE_AT, range(STACK_SIZE())))):
            return compiled(*args)

    return call


def mode_source(index: int) -> Source:
    """The source of a torch function mode around the frame, counted from the outermost one."""
    return ComputedSource(MODE_AT, (ConstSource(index),))


def restack(gen: ValueBuilder, ctx: Context) -> Callable[[], None]:
    """Build the modes that the frame entered and did not leave; returns the function that writes
    the code that restores the stack.
    """
    before, now = ctx.modes.entry_function_modes, ctx.modes.function_modes(ctx)
    same = next(
        (k for k, (a, b) in enumerate(zip(before, now)) if not _is_same(a, b)),
        min(len(before), len(now)),
    )
    built = [gen.spill(mode) for mode in now[same:]]

    def write() -> None:
        for name in [None] * (len(before) - same) + built:
            gen.emitter.load_callee_const(POP if name is None else PUSH)
            if name is not None:
                gen.emitter.load_fast(name)
            gen.emitter.call(name is not None)
            gen.emitter.pop()

    return write


def _is_same(left: VariableTracker, right: VariableTracker) -> bool:
    return left is right or left.identity() is right.identity()
