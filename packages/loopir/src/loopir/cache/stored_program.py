"""Programs of the cache as text: loop IR, from which everything can be built again, and the host
function, which is loaded without reading the loop IR.

A stored program is JSON. ``program`` is the text form of the program, ``constants`` tells what its
constants are called in the graph, and ``origins`` has the graph nodes and user lines of its kernels
and extern calls. ``host`` has the source of the host function, the objects that it names, the facts
about it, and each code generator's text about its callables; it is missing if one of them has no
text.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from symshapes.text.names import find_target, format_target
from symshapes.text.values import MISSING, Unwritable, format_value, parse_value

import loopir.host
import loopir.ir
from loopir.backend import CodeGenerator, KernelSource, StoresLaunchers
from loopir.host.generator_calls import ask, prepare
from loopir.host.host_program import HostFacts, HostProgram, HostText
from loopir.ir.host_functions import ROOTS, check_result

if TYPE_CHECKING:
    from loopir.ir.program import Program

    from .store import ArtifactStore

NAMES = {**ROOTS, "host": SimpleNamespace(**vars(ROOTS["host"]), check_result=check_result)}
"""The names that may begin the name of an object of a host function."""


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """A program of the cache.

    Attributes:
        stored: the JSON value.
        constants: the constants of the graph that was looked up, by name.
        lines: its user lines, which the text numbers.
    """

    stored: Mapping[str, Any]
    constants: Mapping[str, torch.Tensor]
    lines: Sequence[str]

    @staticmethod
    def read(
        text: str, constants: Mapping[str, torch.Tensor], lines: Sequence[str] = ()
    ) -> StoredProgram:
        """The program of a text. Raises ValueError for one that is no JSON."""
        return StoredProgram(json.loads(text), constants, lines)

    @staticmethod
    def write(
        host: HostProgram,
        codegens: Mapping[str, CodeGenerator],
        constants: Mapping[str, torch.Tensor],
        lines: Sequence[str],
        assumptions: Sequence[Sequence[str]] = (),
    ) -> str:
        """The JSON text of a built program. ``assumptions``: what its compilation assumed of sizes.

        Raises Unwritable if it calls functions, or contains tensors, that have no text.
        """
        program, leaf = host.program, _Leaf(constants, lines)
        stored: dict[str, Any] = {
            "program": loopir.ir.format_program(program),
            "constants": format_value(program.constants, leaf),
            "assumptions": assumptions,
            "origins": format_value([node.origins for node in _with_origins(program)], leaf),
        }
        with suppress(Unwritable):
            stored["host"] = _describe_host(host, codegens, leaf)
        return json.dumps(stored)

    def build(
        self,
        codegens: Mapping[str, CodeGenerator],
        store: ArtifactStore,
        deadline: float | None = None,
    ) -> HostProgram:
        """The program, built from ``store``, or again from loop IR where that lacks something.

        Raises ParseError for damaged text, BuildError and GeneratorError.
        """
        return self._load(codegens, store, deadline) or loopir.host.build_host(
            *self._parts(codegens, deadline), codegens, store, deadline
        )

    def _parts(
        self, codegens: Mapping[str, CodeGenerator], deadline: float | None
    ) -> tuple[Program, Sequence[KernelSource]]:
        constants = self._value(self.stored["constants"])
        program = loopir.ir.parse_program(self.stored["program"], constants)
        origins = iter(self._value(self.stored["origins"]))
        kernels = tuple(replace(kernel, origins=next(origins)) for kernel in program.kernels)
        steps = tuple(
            loopir.ir.ExternCall(replace(step.node, origins=next(origins)))
            if isinstance(step, loopir.ir.ExternCall)
            else step
            for step in program.steps
        )
        program = replace(program, kernels=kernels, steps=steps)
        return program, loopir.host.generate(program, codegens, deadline)

    def _load(
        self, codegens: Mapping[str, CodeGenerator], store: ArtifactStore, deadline: float | None
    ) -> HostProgram | None:
        stored, launchers = self.stored.get("host"), dict[str, dict[str, Callable[..., None]]]()
        if stored is None:
            return None
        for device, (names, described) in stored["launchers"].items():
            codegen = codegens[device]
            if not isinstance(codegen, StoresLaunchers):
                return None
            load = partial(codegen.load_launchers, described, store)
            made = ask(codegen, "load launchers", load, deadline)
            if made is None or len(made) != len(names):
                return None
            launchers[device] = dict(zip(names, made, strict=True))
        facts, text = (
            HostFacts(**self._value(stored["facts"])),
            HostText(stored["source"], self._value(stored["objects"]), launchers),
        )
        prepare(facts.extern_ops, codegens, store, deadline)
        parts = partial(self._parts, codegens, deadline)
        return HostProgram(facts, text, text.load(), parts)

    def _value(self, text: str) -> Any:
        return parse_value(ast.parse(text, mode="eval").body, self._leaf)

    def _leaf(self, node: ast.expr) -> Any:
        match node:
            case ast.Call(func=ast.Name(id="line"), args=[ast.Constant(value=int(number))]):
                return self.lines[number]
            case ast.Call(func=ast.Name(id="constant"), args=[ast.Constant(value=str(name))]):
                return self.constants[name]
            case ast.Attribute():
                found = find_target(ast.unparse(node), NAMES)
                return found if callable(found) else MISSING
        return MISSING


def _with_origins(program: Program) -> Iterator[Any]:
    """Kernels, then the nodes of extern calls."""
    yield from program.kernels
    yield from (step.node for step in program.steps if isinstance(step, loopir.ir.ExternCall))


def _describe_host(
    host: HostProgram, codegens: Mapping[str, CodeGenerator], leaf: _Leaf
) -> dict[str, Any]:
    launchers = {}
    for device, made in host.text.launchers.items():
        codegen, text = codegens[device], None
        if isinstance(codegen, StoresLaunchers):
            text = codegen.describe_launchers([*made.values()])
        if text is None:
            raise Unwritable(f"a callable of {type(codegen).__name__}")
        launchers[device] = [*made], text
    return {
        "source": host.source,
        "objects": format_value(dict(host.text.objects), leaf),
        "facts": format_value(asdict(host.facts), leaf),
        "launchers": launchers,
    }


class _Leaf:
    """Writes constants by name, user lines by number, and functions by their names."""

    def __init__(self, constants: Mapping[str, torch.Tensor], lines: Sequence[str]) -> None:
        self.names = {id(tensor): name for name, tensor in constants.items()}
        self.numbers = {line: number for number, line in enumerate(lines) if line}

    def __call__(self, value: Any) -> str | None:
        if type(value) is str and value in self.numbers:
            return f"line({self.numbers[value]})"
        if isinstance(value, torch.Tensor) and id(value) in self.names:
            return f"constant({self.names[id(value)]!r})"
        return format_target(value, NAMES) if callable(value) else None
