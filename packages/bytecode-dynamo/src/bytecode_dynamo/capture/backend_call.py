"""Calling a backend, and checking what it does and returns (contract B)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from symshapes import Interrupted, allowed, is_of_handler
from torch.fx import GraphModule

from bytecode_dynamo.errors import BackendCompilerFailed, DynamoError
from bytecode_dynamo.hook.frame_hook import Activated


def call_backend(
    backend: Callable[..., Any], name: str, module: GraphModule, examples: list[Any]
) -> Activated:
    """The compiled graph, as a callable that is not captured again.

    Raises BackendCompilerFailed when the backend raises, writes to its example inputs, or returns
    something that can't be called. The first call raises it when the outputs are not a tuple or
    list with one value per output of the graph.
    """
    inputs = [
        (node.meta["source"], value)
        for node, value in zip(module.graph.find_nodes(op="placeholder"), examples)
    ]
    before = [_version(value) for _, value in inputs]
    count = len(module.graph.output_node().args[0])  # pyright: ignore[reportArgumentType]
    try:
        with allowed():
            compiled = backend(module, examples)
    except DynamoError:
        raise
    except Exception as error:
        if is_of_handler(error):
            raise Interrupted(error) from None
        raise BackendCompilerFailed(name, f"raised {type(error).__name__}: {error}") from error
    if not callable(compiled):
        raise BackendCompilerFailed(
            name, f"returned {type(compiled).__name__}, which can't be called"
        )
    changed = [
        source for (source, value), version in zip(inputs, before) if _version(value) != version
    ]
    if changed:
        raise BackendCompilerFailed(name, f"wrote to its example inputs: {', '.join(changed)} (B2)")
    return checked(compiled, name, count)


def _version(value: Any) -> int | None:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None


def checked(compiled: Callable[..., Any], name: str, count: int) -> Activated:
    """A compiled graph whose first call raises BackendCompilerFailed for outputs of another kind or
    number.
    """

    def first_call(*inputs: Any) -> Any:
        outputs = compiled(*inputs)
        if not isinstance(outputs, (tuple, list)):
            raise BackendCompilerFailed(
                name, f"gave a {type(outputs).__name__} as outputs, not a tuple or list (B1)"
            )
        if len(outputs) != count:
            raise BackendCompilerFailed(
                name, f"gave {len(outputs)} outputs for a graph with {count} (B1)"
            )
        made.function = compiled
        return outputs

    made = Activated(first_call, None)
    return made
