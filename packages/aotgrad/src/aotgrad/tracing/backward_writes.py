"""Refuses backward passes that write to tensors of the program.

A graph of backward has gradients as results, and no writes. Functions of autograd and hooks may
write to anything that they hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from aotgrad.errors import Unsupported

from .functional import current_value, is_functional
from .tracer import Tracer


@contextmanager
def refuses_writes(tracer: Tracer, named: Iterable[tuple[str, object]]) -> Iterator[None]:
    """A context that raises Unsupported at its end if one of these tensors was written to."""
    tensors = [(name, value) for name, value in named if is_functional(value)]
    before = [current_value(tensor) for _, tensor in tensors]
    yield
    for (name, tensor), value in zip(tensors, before):
        now = current_value(tensor)
        if now is not value:
            node = tracer.node_of(now)
            raise Unsupported("AG038", f"a backward pass writes to {name}", node=node)
