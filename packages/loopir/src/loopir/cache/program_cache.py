"""Cache of built programs, keyed by the functional graph.

A hit skips decomposition and fusion, and code generation where the libraries are in the store. A
graph that can't be described (``cache_key``) is compiled without the cache. The user's lines are
not part of the key: a hit gets the lines of the graph that was looked up.
"""

from __future__ import annotations

import json
import operator
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import symshapes
import torch
from symshapes.text.values import Unwritable

from loopir.source_line import user_line

from .cache_key import (
    Undescribed,
    describe,
    describe_constants,
    describe_generators,
    describe_graph,
    devices_of,
    environment_of,
    process_state,
)
from .stored_program import StoredProgram

if TYPE_CHECKING:
    from symshapes import ShapeEnv
    from symshapes.text.assumptions import Assumption

    from loopir.backend import CodeGenerator
    from loopir.host.host_program import HostProgram

    from .store import ArtifactStore

SUFFIX = ".program"


@dataclass(frozen=True, slots=True)
class ProgramCacheEntry:
    """The cache entry of one graph's program.

    Attributes:
        store: the store that contains the entry.
        key: the entry's key in the store.
        constants: the graph's constants by name.
        lines: the user's lines from which the graph's nodes come.
        env: the environment of its symbolic sizes, if it has some.
        assumed: the number of guards in it when the graph was looked up.
    """

    store: ArtifactStore
    key: str
    constants: Mapping[str, torch.Tensor]
    lines: Sequence[str]
    env: ShapeEnv | None = None
    assumed: int = 0

    @staticmethod
    def of(
        gm: torch.fx.GraphModule,
        codegens: Mapping[str, CodeGenerator],
        store: ArtifactStore,
        *settings: object,
    ) -> ProgramCacheEntry | None:
        """The cache entry of ``gm``; None if it can't be cached. ``settings``: everything else that
        the stages read, as plain values or dataclasses of them.
        """
        try:
            constants = constants_of(gm)
            generators = describe_generators(codegens, devices_of(gm))
            lines = list(dict.fromkeys(map(user_line, gm.graph.nodes)))
            numbers = {line: number for number, line in enumerate(lines)}
            graph = describe_graph(gm, lambda node: numbers[user_line(node)])
            graph = "\n".join([describe_constants(constants), graph])
            around = describe((process_state(), generators, settings))
        except Undescribed:
            return None
        key = store.key("loopir.cache.program_cache", around, graph)
        env = environment_of(gm)
        assumed = 0 if env is None else len(env.guards)
        return ProgramCacheEntry(store, key, constants, lines, env, assumed)

    def get(self) -> StoredProgram | None:
        """The program, if this process or another cached it; else None. What its compilation
        assumed of sizes is assumed here, too.
        """
        path = self.store.get(self.key, SUFFIX)
        if path is None:
            return None
        try:
            stored = json.loads(zlib.decompress(path.read_bytes()))
            if self.env is not None:
                symshapes.add_assumptions(self.env, stored["assumptions"])
        except (OSError, ValueError, KeyError, zlib.error):  # a file of another version is a miss
            return None
        return StoredProgram(stored, self.constants, self.lines)

    def put(self, host: HostProgram, codegens: Mapping[str, CodeGenerator]) -> None:
        """Caches a built program, unless it contains tensors other than the graph's constants, or
        functions without a text.
        """
        with suppress(Unwritable):
            text = StoredProgram.write(
                host, codegens, self.constants, self.lines, self._assumptions()
            )
            self.store.put(self.key, SUFFIX, zlib.compress(text.encode(), 1))

    def _assumptions(self) -> list[Assumption]:
        return [] if self.env is None else symshapes.format_assumptions(self.env, self.assumed)


def constants_of(gm: torch.fx.GraphModule) -> dict[str, torch.Tensor]:
    """The constants that a graph reads, by name. Raises Undescribed for others than tensors."""
    found: dict[str, torch.Tensor] = {}
    for node in gm.graph.find_nodes(op="get_attr"):
        value: Any = operator.attrgetter(str(node.target))(gm)
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise Undescribed(type(value))
        found[str(node.target)] = value
    return found
