"""The signature of a captured program, for its file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from bytecode_dynamo import GuardKind, Output, WholeProgram
from symshapes import python_text
from symshapes.text.values import Unwritable, format_value
from torch.fx import Node
from torch.utils import _pytree as pytree

from torchstrata.errors import UsageError

from .facts import Need, NumberNeed, TensorNeed, ThreadState, ValueNeed, need_text
from .model_facts import named_tensors
from .model_guards import model_facts
from .recording import without_directories
from .signature import READS, Place, Signature

_READ = re.compile(rf"(.*)\.({'|'.join(READS)})\((\d*)\)")
_LOCAL = re.compile(r"^L\['(\w+)'\]")
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def build_signature(program: WholeProgram) -> Signature:
    """The signature of a program. Raises UsageError, with the user's line, for what no file can
    hold.
    """
    return _Builder(program).build()


def user_line(node: Node) -> str:
    """The innermost line of the user's that reads a node."""
    for reader in (*node.users, node):
        trace = str(reader.meta.get("stack_trace") or "").rstrip()
        if trace:
            return "\n" + "\n".join(trace.splitlines()[-2:])
    return ""


class _Builder:
    def __init__(self, program: WholeProgram) -> None:
        self.program = program
        self.arguments = program.inputs
        self.names = program.names_of_tensors
        self.state: dict[str, TensorNeed] = {}
        self.symbolic: set[int] = set()

    def build(self) -> Signature:
        """The signature."""
        program, arguments = self.program, self.arguments
        assert program.graph is not None
        inputs = tuple(map(self._input, program.graph.graph.find_nodes(op="placeholder")))
        symbols = {
            symbol.name: self._number(source.name)
            for symbol, source in program.shapes.symbols.items()
        }
        return Signature(
            parameters=tuple(self._parameters()),
            nesting=_dumps(arguments.spec, "the arguments"),
            names=tuple(_LOCAL.sub(r"\1", name) for name in arguments.names),
            needs=tuple(self._need(i, leaf) for i, leaf in enumerate(arguments.leaves)),
            inputs=inputs,
            result=self._result(),
            state=self.state,
            shared=tuple(self._shared()),
            symbols=symbols,
            conditions=tuple(
                (python_text(guard.expr), without_directories(guard.provenance))
                for guard in program.shapes.guards
            ),
            attributes=tuple(model_facts(program.guards)) if program.module is not None else (),
            thread=ThreadState.now(),
        )

    def _shared(self) -> Iterator[tuple[str, str]]:
        for name, tensor in named_tensors(self.program.module or torch.nn.Module()).items():
            known = self.names.get(id(tensor), name)
            if known != name and known in self.state:
                yield name, known

    def _parameters(self) -> Iterator[tuple[str, int, str | None]]:
        for parameter in self.arguments.signature.parameters.values():
            default = None
            if parameter.default is not parameter.empty:
                try:
                    default = format_value(parameter.default)
                except Unwritable as error:
                    raise UsageError(
                        f"can't save the default of the parameter {parameter.name}: {error}"
                    ) from error
            yield parameter.name, int(parameter.kind), default

    def _input(self, node: Node) -> Place:
        example, source = self.program.examples[node], str(node.meta["source"])
        if not isinstance(example, torch.Tensor):
            return self._number(source, node)
        if type(example) not in _PLAIN or example.is_conj() or example.is_neg():
            raise UsageError(
                f"can't save a program that takes {source}, a {type(example).__name__} that is a "
                f"subclass, or lazily conjugated or negated{user_line(node)}"
            )
        return self._tensor(example, source, user_line(node))

    def _tensor(self, value: torch.Tensor, source: str, line: str) -> Place:
        index = self.arguments.find(value)
        if index is not None:
            return "argument", index
        name = self.names.get(id(value))
        if name is None:
            raise UsageError(
                f"can't save a program that reads the tensor {source}, which is neither an "
                f"argument nor a parameter or buffer of the module; pass it, or register it as a "
                f"buffer{line}"
            )
        self.state[name] = TensorNeed.of(value)
        return "state", name

    def _number(self, source: str, node: Node | None = None) -> Place:
        index = self.arguments.places.get(source)
        if index is not None:
            self.symbolic.add(index)
            return "argument", index
        found = _READ.fullmatch(source)
        index = self.arguments.places.get(found[1]) if found else None
        if found is None or index is None:
            line = "" if node is None else user_line(node)
            raise UsageError(
                f"can't save a program that reads the number {source}, which is not an argument, "
                f"nor a size of one{line}"
            )
        return "read", index, found[2], *map(int, filter(None, [found[3]]))

    def _need(self, index: int, leaf: Any) -> Need | None:
        guards = [
            guard
            for guard in self.program.guards
            if self.arguments.places.get(guard.source.name) == index
        ]
        if isinstance(leaf, torch.Tensor):
            facts = next((g.expected for g in guards if g.kind is GuardKind.TENSOR), None)
            if facts is None:
                return None  # nothing reads it
            needed = TensorNeed(facts.dtype, facts.device, facts.requires_grad, facts.sizes,
                                facts.strides or (), leaf.is_inference())  # fmt: skip
            return needed
        if index in self.symbolic:
            return NumberNeed(type(leaf).__name__)
        try:
            need_text(ValueNeed(leaf))
        except Unwritable as error:
            if not guards:
                return None
            name = self.arguments.names[index]
            raise UsageError(f"can't save a program for the argument {name}: {error}") from error
        return ValueNeed(leaf)

    def _result(self) -> tuple[str, tuple[Place, ...]]:
        leaves, tree = pytree.tree_flatten(
            self.program.result, is_leaf=lambda value: isinstance(value, Output)
        )
        return _dumps(tree, "the result"), tuple(map(self._result_leaf, leaves))

    def _result_leaf(self, leaf: Any) -> Place:
        if isinstance(leaf, Output):
            return "output", leaf.place
        if isinstance(leaf, torch.Tensor):
            return self._tensor(leaf, "that it returns", "")
        is_number = isinstance(leaf, int | float) and not isinstance(leaf, bool)
        if is_number and self.program.shapes.symbols:
            raise UsageError(
                f"can't save a program whose result holds the number {leaf}, which may depend on a "
                f"symbolic size; return a tensor"
            )
        if not isinstance(leaf, _CONSTANTS):
            raise UsageError(
                f"can't save a program whose result holds a {type(leaf).__name__}; return tensors "
                f"and constants, nested as pytrees"
            )
        return "value", format_value(leaf)


def _dumps(tree: pytree.TreeSpec, what: str) -> str:
    try:
        return pytree.treespec_dumps(tree)
    except NotImplementedError as error:
        raise UsageError(f"can't save how {what} are nested: {error}") from error
