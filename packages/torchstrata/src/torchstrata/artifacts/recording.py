"""Keeps what a compilation makes of a captured graph, for a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import bytecode_dynamo
import loopir
import torch
from symshapes.text.values import Unwritable, format_value

from torchstrata.errors import UsageError

_DIRECTORIES = re.compile(r"""(File \\*["'])[^"'\n\\]*/""")


BINARIES = (".so", ".kernel")
"""The ends of the suffixes of artifacts that programs load."""


def without_directories(text: str) -> str:
    """A text with the user's lines, in which files have their names only."""
    return _DIRECTORIES.sub(r"\1", text)


@dataclass(slots=True)
class RecordedGraph:
    """What was compiled of one captured graph (``aotgrad``'s ``CacheEntry``).

    Attributes:
        lines: the user's lines, which are written out.
        data: always None: everything is compiled.
        captured: the text of the captured graph.
        calls: the text of its calls.
        programs: by direction the stored program and the metadata of the functional graph.
        constants: the tensors that texts name.
        artifacts: what was built: bytes and the parts of the key, by key and suffix.
        devices: the device types of its values.
    """

    lines: Sequence[str] = ()
    data: str | None = None
    captured: str = ""
    calls: str = ""
    programs: dict[str, tuple[str, str]] = field(default_factory=dict)
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    artifacts: dict[tuple[str, str], tuple[bytes, Sequence[str]]] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)

    def start(self, graph: torch.fx.GraphModule) -> None:
        """Writes the captured graph, before it is compiled. Raises UsageError."""
        try:
            self.captured = without_directories(bytecode_dynamo.format_captured(graph))
        except Unwritable as error:
            raise UsageError(f"can't save the program: {error}") from error
        self.devices = loopir.devices_of(graph)
        names = [str(node.target) for node in graph.graph.find_nodes(op="get_attr")]
        self.constants = {name: getattr(graph, name) for name in names}

    def __call__(self, *graph: Any) -> RecordedGraph:
        return self

    def constant_name(self, tensor: torch.Tensor) -> str:
        """The name of a tensor that a text needs."""
        known = {id(value): name for name, value in self.constants.items()}
        name = known.get(id(tensor), f"tensor_{len(self.constants)}")
        self.constants = {**self.constants, name: tensor}
        return name

    def compiled(self, what: str) -> Any:
        """Nothing is revived."""
        raise AssertionError(what)

    def put(self, write: Callable[[], str]) -> None:
        """See ``aotgrad.compiling.compiled_cache.CacheEntry``."""
        try:
            self.calls = without_directories(write())
        except Unwritable as error:
            raise UsageError(f"can't save the program: {error}") from error

    def record(
        self,
        what: str,
        host: loopir.HostProgram,
        codegens: Mapping[str, loopir.CodeGenerator],
        graph: torch.fx.GraphModule,
        store: loopir.ArtifactStore,
    ) -> None:
        """Keeps a compiled functional graph."""
        constants = {}
        for node in graph.graph.find_nodes(op="get_attr"):
            tensor = getattr(graph, str(node.target))
            constants[self.constant_name(tensor)] = tensor
        try:
            text = loopir.StoredProgram.write(host, codegens, constants, ())
            self.programs[what] = without_directories(text), format_value(dict(graph.meta))
        except Unwritable as error:
            raise UsageError(f"can't save the program: {error}") from error
        for key, suffix in store.used:
            if suffix.endswith(BINARIES):
                self.artifacts[key, suffix] = store.read(key, suffix)
