"""When a graph raises, the call runs again in eager mode, from the state before it.

Effects on Python objects are written after the graph, so they have not happened yet when the graph
raises. Only eager mode knows which effects come before the failing operator, which handler of the
program catches the exception, and which lines the traceback shows. So generated code catches the
exception and hands over to the original code with the original arguments.

This is sound if the effects of the graph itself can be undone: it may have written to existing
tensors, drawn random numbers, and changed torch's modes. The state needed for that is saved before
the graph: versions of tensors and, if an operator may refuse its data after an effect, random
states and the contents of small tensors. If a graph writes to more, or calls a function of the
program, its own exception is raised.
"""

from __future__ import annotations

import logging
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import torch
from symshapes import is_of_handler

from bytecode_dynamo.config import config
from bytecode_dynamo.counters import counters
from bytecode_dynamo.errors import ASSUMED, DynamoError
from bytecode_dynamo.guards.source import Source
from bytecode_dynamo.hook.frame_hook import Activated, Continuation

from .failing_graphs import CompiledGraph

log = logging.getLogger("bytecode_dynamo.reruns")

_C: Any = torch._C
_set_versions = _C._autograd._unsafe_set_version_counter
# Dispatch modes and saved-tensor hooks (of a checkpoint, for example) would see the graph's
# operators twice.
_top_hooks = _C._autograd._top_saved_tensors_default_hooks
MAX_SAVED = 8
"""The most tensors that a graph may write to and still run again."""
MAX_ELEMENTS = 4096
"""The most elements of a tensor whose contents are saved."""


@dataclass(frozen=True, slots=True, eq=False)
class Rerun:
    """Called by generated code when its graph has raised, and before the graph to save state."""

    code: CodeType
    """The original, with every argument positional."""
    sound: bool
    grad: bool
    handled: bool
    """Whether the program may catch the exception itself."""
    custom: bool
    """Whether an operator may raise exceptions of any class."""
    on_error: str | None
    generators: tuple[str, ...] = ()
    modes: bool = False
    written: tuple[Source, ...] = ()
    contents: bool = False
    """Whether the contents of written tensors are saved."""
    visible: bool = True
    """Whether each write changes the tensor's version."""
    whole: bool = False
    """Whether the program asked for one graph."""
    drawn_from: tuple[Any, ...] = ()
    """The generators of Python and NumPy that draw before the graph, or sources of them."""
    graph: CompiledGraph | None = None

    @property
    def keeps(self) -> bool:
        """Whether state has to be saved before the graph."""
        return bool(self.generators or self.modes or self.written or self.drawn_from)

    def keep(self, *values: Any) -> Any:
        """The state before the graph of the tensors written and the generators drawn from."""
        written, drawn_from = values[: len(self.written)], values[len(self.written) :]
        # Dispatch modes of the program would see the copies.
        contents = self.contents and not torch._C._len_torch_dispatch_stack()
        with torch._C.DisableTorchFunction():
            states = [
                *(_saved_state(made) for device in self.generators for made in _generators(device)),
                *map(_saved_state, drawn_from),
            ]
            return (
                [_SavedTensor(t, contents, self.visible) for t in written],
                states,
                _autocast() if self.modes else None,
            )

    def __call__(
        self, error: BaseException, kept: Any, closure: tuple[Any, ...], *arguments: Any
    ) -> Continuation | None:
        """The continuation that reruns the call; None to raise the graph's exception. The modes are
        those before the graph.
        """
        if self.modes:
            # frames hold context managers that the graph entered, which exit on release
            traceback.clear_frames(error.__traceback__)
        torch._C._set_grad_enabled(self.grad)
        if kept is not None and kept[2] is not None:
            _set_autocast(kept[2])
        if not (
            self.sound and isinstance(error, Exception) and self._is_of_operator(error)
        ) or is_of_handler(error):
            return None
        if torch._C._len_torch_dispatch_stack() or _top_hooks(True):
            return None
        if kept is not None and not _undo(*kept[:2]):
            return None
        counters["reruns"] += 1
        said = f"{type(error).__name__}: {error}"
        log.info(
            "the graph of %s raised %s; the call runs again in eager mode",
            self.code.co_qualname,
            said,
        )
        after = partial(self._unlike_eager, error)
        if self.handled:
            after = None
            if self.graph is not None:
                self.graph.suspect(error)
        function = FunctionType(
            self.code, sys._getframe(1).f_globals, self.code.co_name, None, closure or None
        )
        return Continuation(Activated(function, None, after), *arguments)

    def _is_of_operator(self, error: Exception) -> bool:
        """Whether an operator may have raised it: other exceptions are the backend's own."""
        home = type(error).__module__.partition(".")[0]
        return home in ("builtins", "torch") or (self.custom and not isinstance(error, DynamoError))

    def _unlike_eager(self, error: Exception) -> None:
        """Report that eager mode did not raise the graph's exception."""
        counters["fallbacks"] += 1
        assumed, whose = ASSUMED in str(error), ""
        if (self.on_error or config.fallback) == "error" or (self.whole and not assumed):
            raise error
        if not assumed:
            whose = " This is a defect of the backend."
            if self.graph is not None:
                self.graph.replace(error)
        code, said = self.code, f"{type(error).__name__}: {error}"
        warnings.warn(
            f"bytecode_dynamo: the compiled graph of {code.co_qualname} "
            f"({code.co_filename}:{code.co_firstlineno}) raised "
            f"{said}; eager mode does not: the result of this call is eager's.{whose}",
            stacklevel=2,
        )


# -- state before a graph --------------------------------------------------------------------------


class _SavedTensor:
    """A tensor that the graph writes to."""

    __slots__ = ("contents", "history", "layout", "memory", "tensor", "version", "written_before")

    def __init__(self, tensor: torch.Tensor, contents: bool, visible: bool) -> None:
        self.tensor = tensor
        self.written_before = 0 if tensor.is_inference() else tensor._version
        self.version = self.written_before if visible and not tensor.is_inference() else None
        self.contents = None
        if contents and tensor.numel() <= MAX_ELEMENTS:
            with torch.set_grad_enabled(tensor.grad_fn is not None):
                # the clone keeps the tensor's history, which a write replaces
                self.contents = tensor.clone()
        self.memory, self.layout, self.history = _memory(tensor), _layout(tensor), _history(tensor)

    def can_be_undone(self) -> bool:
        """Whether the tensor is unwritten, or its contents and history can be restored."""
        tensor = self.tensor
        if self.contents is None:
            return self.version is not None and self.version == tensor._version
        return _memory(tensor) == self.memory and (
            self._has_history() or self._can_restore_history()
        )

    def restore(self) -> None:
        """Restore contents, sizes and strides."""
        if self.contents is None:
            return
        if _layout(self.tensor) != self.layout:
            self.tensor.as_strided_(*self.layout)
        self._restore_contents(self.contents)
        if not self.tensor.is_inference():
            _set_versions((self.tensor,), (self.written_before,))

    def _restore_contents(self, contents: torch.Tensor) -> None:
        if self._has_history():
            into, contents = self.tensor.data, contents.detach()
            for dim, step in enumerate(into.stride()):
                # `copy_` refuses to write an element of an expanded tensor twice
                if step == 0 and into.shape[dim] > 1:
                    into, contents = into.narrow(dim, 0, 1), contents.narrow(dim, 0, 1)
            into.copy_(contents)
            return
        self.tensor.detach_()
        with torch.set_grad_enabled(contents.requires_grad):
            self.tensor.copy_(contents)

    def _has_history(self) -> bool:
        return _history(self.tensor) == self.history

    def _can_restore_history(self) -> bool:
        """False for views, which share their history, and for tensors with hooks; nothing undoes
        ``requires_grad_``.
        """
        tensor = self.tensor
        return not (
            tensor.grad_fn is None
            or tensor._is_view()
            or tensor.retains_grad
            or tensor._backward_hooks
        )


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _layout(tensor: torch.Tensor) -> tuple[Sequence[int], Sequence[int], int]:
    return tensor.shape, tensor.stride(), int(tensor.storage_offset())


def _history(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The identity of a tensor's history. A view recreates its ``grad_fn`` after each write to its
    base.
    """
    base = tensor._base if tensor._is_view() and tensor._base is not None else tensor
    return base.grad_fn, base.requires_grad, tensor.requires_grad


def _saved_state(generator: Any) -> Callable[[], object]:
    """The function that restores a random state: of torch's, Python's or NumPy's generators."""
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    if hasattr(generator, "bit_generator"):
        return partial(setattr, generator.bit_generator, "state", generator.bit_generator.state)
    return partial(generator.set_state, generator.get_state())


def _undo(tensors: Sequence[_SavedTensor], states: Sequence[Callable[[], object]]) -> bool:
    """Restore contents and random states; False, with nothing done, if that is impossible."""
    if not all(kept.can_be_undone() for kept in tensors):
        return False
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        for kept in tensors:
            kept.restore()
        for restore in states:
            restore()
    return True


def _generators(device: str) -> Sequence[Any]:
    if device == "cpu":
        return [torch.default_generator]
    return [torch.cuda.default_generators[torch.cuda.current_device()]]


DEVICES = ("cpu", "cuda")


def _autocast() -> tuple[Any, ...]:
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    devices = [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in DEVICES
    ]
    return nesting, torch.is_autocast_cache_enabled(), devices


def _set_autocast(state: tuple[Any, ...]) -> None:
    nesting, cached, devices = state
    while _autocast()[0] > nesting:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(cached)
    for device, enabled, dtype in devices:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
