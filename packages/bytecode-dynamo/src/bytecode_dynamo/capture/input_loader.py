"""Loads a graph's inputs in one call into C: parameters lie many steps deep and share most steps.

The guards have just proved what the steps rely on, so nothing is tested again.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import Any

from bytecode_dynamo._hook import GuardProgram
from bytecode_dynamo.guards.compiler import Loads, by_level
from bytecode_dynamo.guards.paths import NoNativePath, PathBuilder
from bytecode_dynamo.guards.source import Scope, Source

WORTHWHILE = 4
"""Minimum extra inputs for the loader call to beat inline loads."""


def input_loader(sources: Sequence[Source], code: CodeType, scope: Scope) -> Loads | None:
    """The loader of the values of ``sources``; None where instructions do as well.

    ``scope`` is the call that was compiled. A source without a native path is passed itself.
    """
    paths = PathBuilder(code, scope)
    arguments: dict[Source, int] = {}

    def argument(source: Source, value: Any) -> Any:
        return paths.root(value, "ARGUMENT", arguments.setdefault(source, len(arguments)))

    wanted = []
    for source in sources:
        root = source.root
        if root not in paths.nodes:
            paths.nodes[root] = argument(root, root.resolve(scope))
        try:
            node = paths.node(source)
        except NoNativePath:
            node = argument(source, None)
        wanted.append(node.register)
    if len(sources) < len(arguments) + WORTHWHILE:
        return None
    program = GuardProgram(tuple(by_level(paths.roots)), paths.count, None, tuple(wanted))
    return Loads(tuple(sources), tuple(arguments), program)
