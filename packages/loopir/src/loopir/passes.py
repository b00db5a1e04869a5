"""Passes that a caller adds to the pipeline, on prim graphs (C3) or loop programs (C5).

A pass is called by its name, from an entry point of the group ``torchstrata.passes`` or as a
``GraphPass``. What it returns is checked, whatever the settings: a wrong pass is named before its
graph goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import primops
import torch

from .entry_points import find_installed
from .errors import ExtensionError, LoopIRError
from .ir.program import Program, check_program

PASSES = "torchstrata.passes"
LEVELS = ("prims", "loops")


@dataclass(frozen=True, slots=True)
class GraphPass:
    """A pass.

    Attributes:
        name: what messages and dumps call it.
        level: "prims": ``run`` takes a prim graph and returns one, or changes it and returns None;
            "loops": it takes a ``Program``, which is immutable, and returns one.
        run: the pass. It must keep inputs, outputs and meaning.
        key: text that changes whenever ``run`` would give something else, such as a version with
            its settings. Without one, programs that the pass may have changed are not cached.

    Raises ExtensionError for arguments of other kinds.
    """

    name: str
    level: str
    run: Callable[[Any], Any]
    key: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or "/" in self.name:
            raise ExtensionError(f"a pass's name is a word without '/', not {self.name!r}")
        if self.level not in LEVELS:
            levels = " or ".join(map(repr, LEVELS))
            raise ExtensionError(f"{self}: level is {self.level!r}; it must be {levels}")
        if not callable(self.run):
            raise ExtensionError(f"{self}: run must be callable, not {self.run!r}")
        if self.key is not None and not isinstance(self.key, str):
            raise ExtensionError(f"{self}: key must be a string or None, not {self.key!r}")

    def __str__(self) -> str:
        return f"pass {self.name!r}"

    def __call__(self, form: Any) -> Any:
        """The graph or program after the pass, checked. Raises ExtensionError."""
        before = _interface(form)
        try:
            result = self.run(form)
        except Exception as error:
            raise ExtensionError(f"{self} raised {type(error).__name__}: {error}") from error
        kind = torch.fx.GraphModule if self.level == "prims" else Program
        if result is None and self.level == "prims":
            result = form
        if not isinstance(result, kind):
            raise ExtensionError(
                f"{self} returned {type(result).__name__}; it must return a {kind.__name__}"
            )
        try:
            primops.check_prims(result) if self.level == "prims" else check_program(result)  # type: ignore[arg-type]
        except (primops.PrimopsError, LoopIRError) as error:
            raise ExtensionError(f"what {self} returned is wrong: {error}") from error
        for what, old, new in zip(("inputs", "outputs"), before, _interface(result)):
            if old != new:
                raise ExtensionError(f"{self} changed the {what}: {old} became {new}")
        return result


def _interface(form: Any) -> tuple[object, object]:
    """The inputs, and what the outputs are: what callers rely on."""
    if isinstance(form, Program):
        return form.inputs, len(form.outputs)
    names = tuple(node.name for node in form.graph.find_nodes(op="placeholder"))
    metas = form.graph.output_node().meta["val"]
    return names, tuple((getattr(m, "dtype", None), len(getattr(m, "shape", ()))) for m in metas)


def find_passes(chosen: Sequence[GraphPass | str]) -> tuple[GraphPass, ...]:
    """The passes, those given by name from installed packages. Raises ExtensionError for what is no
    pass, for a name that can't be found, and for two passes of one name.
    """
    if isinstance(chosen, str) or not isinstance(chosen, Sequence):
        raise ExtensionError(f"passes must be a list of passes or their names, not {chosen!r}")
    found = tuple(map(_pass, chosen))
    names = [item.name for item in found]
    for name in names:
        if names.count(name) > 1:
            raise ExtensionError(f"two passes are called {name!r}")
    return found


def _pass(given: object) -> GraphPass:
    found = find_installed(PASSES, "pass", given) if isinstance(given, str) else given
    if not isinstance(found, GraphPass):
        raise ExtensionError(
            f"a pass is a GraphPass or the name of an installed one; {given!r} is a "
            f"{type(found).__name__}"
        )
    return found


def keys_of(passes: Sequence[GraphPass]) -> tuple[str | None, ...]:
    """For a cache key: what each pass does; None for one that doesn't say."""
    return tuple(None if p.key is None else f"{p.level} {p.name} {p.key}" for p in passes)
