"""Traces ``torch.utils.checkpoint`` as a region of the graph, tagged for the partitioner (P1).

If it ran as it is, it would add the recomputation to the trace of backward, where it would merge
with the forward computation that it repeats.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import checkpoint

from aotgrad.torch_versions import CHECKPOINT_GENERATOR

from .tracer import Tracer

_tracing = threading.local()


@contextmanager
def checkpoints_as_regions(tracer: Tracer) -> Iterator[None]:
    """A context in which, in this thread, checkpointed functions run once and the nodes that they
    record are labelled with their region.
    """
    _install()
    before, _tracing.tracer = getattr(_tracing, "tracer", None), tracer
    try:
        yield
    finally:
        _tracing.tracer = before


@contextmanager
def _region(tracer: Tracer) -> Iterator[None]:
    if tracer.region is not None:  # nested regions belong to the outermost one
        yield
        return
    tracer.num_regions += 1
    tracer.region = -tracer.num_regions  # captured graphs number their regions from 0
    try:
        yield
    finally:
        tracer.region = None


def _without_reentrance(original: Callable[..., Iterator[None]]) -> Callable[..., Iterator[None]]:
    signature = inspect.signature(original)

    def generator(*args: Any, **kwargs: Any) -> Iterator[None]:
        tracer = getattr(_tracing, "tracer", None)
        if tracer is None:
            yield from original(*args, **kwargs)
            return
        given = signature.bind(*args, **kwargs).arguments
        forward_context, _ = given.get("context_fn", checkpoint.noop_context_fn)()
        with _region(tracer), forward_context:
            yield

    return generator


def _reentrant(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(function: Any, preserve: Any, *args: Any) -> Any:
        tracer = getattr(_tracing, "tracer", None)
        if tracer is None:
            return original(function, preserve, *args)
        differentiable = any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        with _region(tracer), torch.set_grad_enabled(torch.is_grad_enabled() and differentiable):
            return function(*args)

    return apply


def _install() -> None:
    if checkpoint.CheckpointFunction.apply.__module__ == __name__:
        return
    generator = _without_reentrance(getattr(checkpoint, CHECKPOINT_GENERATOR))
    setattr(checkpoint, CHECKPOINT_GENERATOR, generator)
    apply = _reentrant(checkpoint.CheckpointFunction.apply)
    checkpoint.CheckpointFunction.apply = staticmethod(apply)  # type: ignore[method-assign]
