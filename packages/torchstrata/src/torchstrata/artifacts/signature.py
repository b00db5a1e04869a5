"""The signature of a saved program: how arguments become inputs of its graph, what they must be,
and how outputs become the result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from .conditions import read_conditions
from .facts import Json, Need, TensorNeed, ThreadState, need_text, read_need, read_value

Place: TypeAlias = tuple[Any, ...]
"""Where a value comes from: ``("argument", i)`` is a leaf of the arguments, ``("read", i, method,
*args)`` a number of a tensor among them, ``("state", name)`` a parameter or buffer, ``("output",
k)`` an output of the graph, ``("value", text)`` a constant.
"""
READS = ("size", "stride", "storage_offset", "item")
"""The methods of tensors that give the numbers of a program."""


@dataclass(frozen=True)
class Signature:
    """What a saved program takes and returns, and what it assumes.

    Attributes:
        parameters: name, kind and default of each, a default as the text of its value.
        nesting: the tree of the bound arguments, as torch writes it.
        names: the leaves of the arguments, as programs name them.
        needs: what the leaves must be; None is anything.
        inputs: where the inputs of the graph come from.
        state: the parameters and buffers that are read, by name.
        shared: further names of these in the module, each with the name in ``state``.
        symbols: where the value of each symbol comes from.
        conditions: on the symbols, as Python, each with the user's line.
        attributes: what the module's attributes were (``model_facts``).
        result: the tree of the result, and where its leaves come from.
        thread: the state of torch.
    """

    parameters: tuple[tuple[str, int, str | None], ...]
    nesting: str
    names: tuple[str, ...]
    needs: tuple[Need | None, ...]
    inputs: tuple[Place, ...]
    state: Mapping[str, TensorNeed]
    shared: tuple[tuple[str, str], ...]
    symbols: Mapping[str, Place]
    conditions: tuple[tuple[str, str], ...]
    attributes: tuple[tuple[str, str, str], ...]
    result: tuple[str, tuple[Place, ...]]
    thread: ThreadState

    def to_json(self) -> Json:
        """A JSON value."""
        return {
            "parameters": self.parameters,
            "nesting": self.nesting,
            "arguments": [[n, need_text(need)] for n, need in zip(self.names, self.needs)],
            "inputs": self.inputs,
            "state": {name: need_text(need) for name, need in self.state.items()},
            "shared": self.shared,
            "symbols": self.symbols,
            "conditions": self.conditions,
            "attributes": self.attributes,
            "result": self.result,
            "thread": self.thread.to_json(),
        }

    @staticmethod
    def from_json(stored: Json) -> Signature:
        """The signature of a JSON value. Raises ValueError, KeyError or TypeError."""
        nesting, places = stored["result"]
        state = {name: read_need(text) for name, text in stored["state"].items()}
        if not all(isinstance(need, TensorNeed) for need in state.values()):
            raise ValueError("a parameter or buffer that is no tensor")
        return Signature(
            tuple((name, kind, default) for name, kind, default in stored["parameters"]),
            stored["nesting"],
            tuple(name for name, _ in stored["arguments"]),
            tuple(read_need(text) for _, text in stored["arguments"]),
            tuple(map(tuple, stored["inputs"])),
            state,  # type: ignore[arg-type]
            tuple((name, known) for name, known in stored["shared"]),
            {name: tuple(place) for name, place in stored["symbols"].items()},
            tuple((text, line) for text, line in stored["conditions"]),
            tuple((kind, path, text) for kind, path, text in stored["attributes"]),
            (nesting, tuple(map(tuple, places))),
            ThreadState.from_json(stored["thread"]),
        )

    # -- calls -------------------------------------------------------------------------------------

    @cached_property
    def signature(self) -> inspect.Signature:
        """The parameters as Python has them."""
        return inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect._ParameterKind(kind),
                    default=inspect.Parameter.empty if default is None else read_value(default),
                )
                for name, kind, default in self.parameters
            ]
        )

    @cached_property
    def tree(self) -> pytree.TreeSpec:
        """The tree of the bound arguments."""
        return pytree.treespec_loads(self.nesting)

    @cached_property
    def _holds(self) -> Callable[..., bool]:
        return read_conditions([text for text, _ in self.conditions], self.symbols)

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], state: Mapping[str, torch.Tensor]
    ) -> tuple[list[Any], str | None]:
        """The leaves of arguments, and why this program is not for them, as one line, or None.
        Raises TypeError for arguments that don't fit the parameters.
        """
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        leaves, tree = pytree.tree_flatten(dict(bound.arguments))
        if tree != self.tree:
            return leaves, f"the arguments were nested as {self.tree}, now as {tree}"
        return leaves, self._problem(leaves, state)

    def _problem(self, leaves: Sequence[Any], state: Mapping[str, torch.Tensor]) -> str | None:
        changed = self.thread.problem(ThreadState.now())
        if changed is not None:
            return changed
        for name, fact in self.state.items():
            if not fact.holds(state[name]):
                return fact.problem(name, state[name])
        for need, name, leaf in zip(self.needs, self.names, leaves):
            found = None if need is None else need.problem(name, leaf)
            if found is not None:
                return found
        values = [fetch(place, leaves) for place in self.symbols.values()]
        if self._holds(*values):
            return None
        known = dict(zip(self.symbols, values))
        failed = (
            (text, line)
            for text, line in self.conditions
            if not read_conditions([text], self.symbols)(*values)
        )
        text, line = next(failed)
        return f"{text} does not hold for {known}" + (f" ({line})" if line else "")

    def nest(
        self, leaves: Sequence[Any], state: Mapping[str, torch.Tensor], outputs: Sequence[Any]
    ) -> Any:
        """The result of a call."""
        return pytree.tree_unflatten(
            [fetch(place, leaves, state, outputs) for place in self.result[1]], self._result_tree
        )

    @cached_property
    def _result_tree(self) -> pytree.TreeSpec:
        return pytree.treespec_loads(self.result[0])


_constant = cache(read_value)


def fetch(
    place: Place,
    leaves: Sequence[Any],
    state: Mapping[str, torch.Tensor] | None = None,
    outputs: Sequence[Any] = (),
) -> Any:
    """The value at a place."""
    match place:
        case ("argument", index):
            return leaves[index]
        case ("read", index, method, *args) if method in READS:
            return getattr(leaves[index], method)(*args)
        case ("state", name):
            return (state or {})[name]
        case ("output", index):
            return outputs[index]
        case ("value", text):
            return _constant(text)
    raise ValueError(f"not a place: {place}")
