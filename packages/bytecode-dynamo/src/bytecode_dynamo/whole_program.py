"""Whole programs: one graph for a function or module and example arguments, without running it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from bytecode_dynamo.capture.policy import Backend, Captured
from bytecode_dynamo.guards.records import GuardRecord, ShapeGuards

from .api import optimize
from .config import config
from .errors import UserError


class Output(NamedTuple):
    """Stands for an output of the graph in the result of a whole program."""

    place: int


@dataclass(frozen=True, slots=True)
class WholeProgram:
    """A program that one graph computes.

    Attributes:
        target: the function or module.
        inputs: the arguments of the example call.
        graph: the captured graph (C1); None if the program computes nothing.
        compiled: what the backend returned for it.
        examples: the value of each placeholder.
        result: what the program returns, with an ``Output`` for each output of the graph.
        guards: what the program assumes.
        shapes: what it assumes of sizes.
    """

    target: Any
    inputs: Inputs
    graph: GraphModule | None
    compiled: Any
    examples: Mapping[Node, Any]
    result: Any
    guards: tuple[GuardRecord, ...]
    shapes: ShapeGuards

    @property
    def module(self) -> torch.nn.Module | None:
        """The module whose state the program reads: the target, or that of a bound method."""
        owner = getattr(self.target, "__self__", self.target)
        return owner if isinstance(owner, torch.nn.Module) else None

    @property
    def names_of_tensors(self) -> dict[int, str]:
        """The names of the module's parameters and buffers, by the ids of the tensors."""
        module = self.module or torch.nn.Module()
        named = [
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ]
        return {id(value): name for name, value in reversed(named)}


def capture_whole(
    fn: Any,
    backend: Backend,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    dynamic: bool | None = None,
) -> WholeProgram:
    """Captures all of ``fn(*args, **kwargs)`` as one graph and calls ``backend`` for it. Neither
    ``fn`` nor what ``backend`` returns runs, and the arguments stay as they are.

    Sizes must be those of the example, unless ``dynamic`` or ``mark_dynamic`` made them symbolic. A
    tensor that is passed twice counts as two.

    Raises Unsupported, with the line, for a program that would break the graph, and UserError for
    one that changes Python state.
    """
    args, kwargs = distinct((args, kwargs))
    captures: list[Captured] = []
    compiled: list[Any] = []
    examples: dict[Node, Any] = {}

    def on_capture(found: Captured) -> None:
        if found.changes:
            raise UserError(
                f"the program changes Python state, which no graph shows: "
                f"{', '.join(found.changes)}"
            )
        captures.append(found)

    def compile_only(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        examples.update(zip(gm.graph.find_nodes(op="placeholder"), example_inputs))
        count = len(gm.graph.output_node().args[0])  # pyright: ignore[reportArgumentType]
        compiled.append(backend(gm, example_inputs))
        return lambda *inputs: tuple(map(Output, range(count)))

    captured = optimize(compile_only, fullgraph=True, dynamic=dynamic, on_capture=on_capture)(fn)
    with config.patch(capture_scalar_outputs=True):  # the graph is for other numbers, too
        result = captured(*args, **kwargs)
    graphs = [found for found in captures if found.graph is not None]
    if len(graphs) > 1:
        raise UserError(f"{len(graphs)} frames were captured; pass a Python function or module")
    return WholeProgram(
        fn,
        Inputs(fn, args, kwargs),
        graphs[0].graph if graphs else None,
        compiled[-1] if graphs else None,
        examples,
        result,
        tuple(guard for found in captures for guard in found.guards),
        graphs[0].shapes if graphs else ShapeGuards(),
    )


def distinct(arguments: Any) -> Any:
    """The arguments with a copy in place of every tensor that came before: the graph is for
    different tensors.
    """
    seen: set[int] = set()

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or id(leaf) not in seen:
            seen.add(id(leaf))
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return pytree.tree_map(copy, arguments)


class Inputs:
    """The arguments of the example call: bound to the parameters, flattened, and named as sources
    name them.
    """

    def __init__(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.signature = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self.arguments = dict(bound.arguments)
        paths, self.spec = pytree.tree_flatten_with_path(self.arguments)
        self.leaves = [leaf for _, leaf in paths]
        self.names = [_path_name(path) for path, _ in paths]
        self.places = {name: index for index, name in enumerate(self.names)}
        by_position = {f"L['args'][{i}]": value for i, value in enumerate(args)}
        for name, value in (
            by_position | {f"L['kwargs'][{key!r}]": value for key, value in kwargs.items()}
        ).items():
            for path, leaf in pytree.tree_flatten_with_path(value)[0]:
                found = next((i for i, other in enumerate(self.leaves) if other is leaf), None)
                if found is not None:
                    self.places.setdefault(name + "".join(map(_step, path)), found)

    def find(self, value: Any) -> int | None:
        """The position of a tensor among the leaves."""
        return next((i for i, leaf in enumerate(self.leaves) if leaf is value), None)


def _path_name(path: tuple[Any, ...]) -> str:
    return f"L[{path[0].key!r}]" + "".join(map(_step, path[1:]))


def _step(key: Any) -> str:
    if isinstance(key, pytree.GetAttrKey):
        return f".{key.name}"
    return f"[{key.idx if isinstance(key, pytree.SequenceKey) else key.key!r}]"
