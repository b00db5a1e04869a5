"""Backward under ``vmap`` (``is_grads_batched=True``): the compiled graph runs once per tangent."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from aotgrad.errors import Unsupported

from .python_text import PythonWriter, tuple_text
from .retain_graph import Gradients, RetainedContext

_torch: Any = torch._C
# torch.autograd.grad uses the older vmap
_VMAP_MODE = _torch._dispatch_key_parse("VmapMode")


def write_batches(out: PythonWriter, names: Sequence[str]) -> None:
    """Writes the branch of ``function_backward`` that runs under ``vmap``."""
    with out.block(f"if {out.name('is_batched', is_batched)}():"):
        out(
            f"return {out.name('each_tangent', each_tangent)}(function_backward, ctx, "
            f"{tuple_text(names)})"
        )


def is_batched() -> bool:
    """Whether a ``vmap`` is active."""
    return _torch._are_functorch_transforms_active() or (
        _torch._dispatch_tls_is_dispatch_key_included(_VMAP_MODE)
    )


def each_tangent(
    backward: Callable[..., Gradients], ctx: Any, tangents: Sequence[torch.Tensor | None]
) -> Gradients:
    """``backward(ctx, *tangents)`` for each row of the batch of the innermost ``vmap``."""
    retained = RetainedContext(ctx, tangents)
    with _outside_vmap() as (level, batching):
        batches = [
            None if t is None else batching._remove_batch_dim(t, level, 1, 0) for t in tangents
        ]
        count = next((n for b in batches if b is not None and (n := len(b)) != 1), 1)
        rows = [
            backward(copy.copy(retained), *(b if b is None else b[i % len(b)] for b in batches))
            for i in range(count)
        ]
        gradients = [None if column[0] is None else torch.stack(column) for column in zip(*rows)]
    return tuple(None if g is None else batching._add_batch_dim(g, 0, level) for g in gradients)


@contextlib.contextmanager
def _outside_vmap() -> Iterator[tuple[int, Any]]:
    """Leaves the innermost vmap; gives its level and the module with its functions."""
    if not _torch._are_functorch_transforms_active():
        level = _torch._vmapmode_decrement_nesting() + 1
        try:
            yield level, torch
        finally:
            _torch._vmapmode_increment_nesting()
        return
    functorch = _torch._functorch
    innermost = functorch.peek_interpreter_stack()
    if innermost.key() != functorch.TransformType.Vmap:
        raise Unsupported(
            "AG035",
            f"backward of a compiled graph inside {innermost.key().name.lower()} of torch.func",
        )
    left = functorch.pop_dynamic_layer_stack()
    try:
        yield innermost.level(), functorch
    finally:
        functorch.push_dynamic_layer_stack(left)
