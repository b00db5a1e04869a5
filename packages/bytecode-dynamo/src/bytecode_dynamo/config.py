"""Settings of capture: a small typed record, changed by assignment or for a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Literal


@dataclass(slots=True)
class Config:
    """What can be set.

    fallback: what happens when this package itself fails on a frame: run it in eager mode and warn,
    or raise. recompile_limit: how many graphs one code object may have before it runs in eager mode
    (``fullgraph``: an error). inline_depth: how many calls deep functions are inlined.
    max_instructions: how many instructions one capture may evaluate.
    capture_scalar_outputs: whether ``item()`` becomes an unbacked symbol rather than a graph break;
    so with ``fullgraph``, too. verify: whether every captured graph is checked against contract C1.
    """

    fallback: Literal["eager", "error"] = "eager"
    recompile_limit: int = 8
    inline_depth: int = 200
    max_instructions: int = 5_000_000
    capture_scalar_outputs: bool = False
    verify: bool = False

    @contextmanager
    def patch(self, **changes: object) -> Iterator[None]:
        """Set fields for a block; an unknown name raises AttributeError."""
        names = {field.name for field in fields(self)}
        unknown = sorted(set(changes) - names)
        if unknown:
            raise AttributeError(
                f"config has no field {', '.join(unknown)}; fields: {', '.join(sorted(names))}"
            )
        old = {name: getattr(self, name) for name in changes}
        try:
            for name, value in changes.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in old.items():
                setattr(self, name, value)


config = Config()
