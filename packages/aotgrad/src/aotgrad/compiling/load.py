"""Compiled programs of a file: their calls run without a trace, and what was not compiled is
compiled when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from .compiled_cache import CachedProgram, CacheEntry, load, revive

if TYPE_CHECKING:
    from .compilation import Compilation

_LATE = ("other_mode", "overlapping", "double_backward", "partial_backward")


def load_compiled(
    entry: CacheEntry,
    compilation: Callable[[], Compilation],
    *,
    grad_enabled: bool,
    wrap_backward: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """The callable of ``entry.data``, with the graphs that ``entry.compiled`` gives.

    ``compilation`` makes the compilation of the same captured graph; it is called once, for inputs
    that share memory, the other grad mode, double backward, or backward from some results. Raises
    ParseError for damaged data.
    """
    late = _LateCalls(compilation, grad_enabled)
    cached = late.cached = load(entry, late.eager)
    return revive(cached, entry, {name: partial(late.call, name) for name in _LATE}, wrap_backward)


class _LateCalls:
    cached: CachedProgram

    def __init__(self, make: Callable[[], Compilation], grad_enabled: bool) -> None:
        self._make = make
        self._grad_enabled = grad_enabled

    @cached_property
    def _compilation(self) -> Compilation:
        return self._make()

    @cached_property
    def _calls(self) -> dict[str, Callable[..., Any]]:
        trace_spec = self._compilation.trace_spec(self._grad_enabled)
        return self._compilation.late_calls(self.cached, trace_spec)

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls one of them."""
        return self._calls[name](*arguments)

    def eager(self, *inputs: Any) -> Any:
        """Runs the program eagerly."""
        return self._compilation.eager(*inputs)
