"""What a caller plugs into the pipeline: code generators, passes, decompositions.

Each is an object, or the name of one that an installed package offers as an entry point.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeAlias, Union

import loopir
import primops

from .errors import UsageError
from .generators import is_own_name

if TYPE_CHECKING:
    from loopir import CodeGenerator, GraphPass
    from primops import DecompositionTable

DECOMPOSITIONS = "torchstrata.decompositions"
Tables: TypeAlias = Union["DecompositionTable", str, "Sequence[DecompositionTable | str]"]


@dataclass(frozen=True, slots=True)
class Extensions:
    """What is added to, or takes the place of, the stack's own.

    Attributes:
        codegens: by device type, a code generator or the name of the stack's own.
        passes: run in order on what each takes.
        decompositions: their rules win over ``primops.DEFAULT``'s, those of later ones over those
            of earlier ones.
    """

    codegens: tuple[tuple[str, CodeGenerator | str], ...] = ()
    passes: tuple[GraphPass, ...] = ()
    decompositions: tuple[DecompositionTable, ...] = ()

    def refuse_for(self, backend: object) -> None:
        """Raises UsageError if any is given: other backends take none."""
        given = next((field.name for field in fields(self) if getattr(self, field.name)), None)
        if given is not None:
            raise UsageError(f"{given} belong to the backend 'torchstrata', not to {backend!r}")

    @property
    def table(self) -> DecompositionTable:
        """The rules that are used."""
        return functools.reduce(operator.or_, self.decompositions, primops.DEFAULT)

    @property
    def keys(self) -> tuple[str | None, ...]:
        """For cache keys: what passes and decompositions do; None for one that doesn't say."""
        return (*loopir.keys_of(self.passes), *(table.key for table in self.decompositions))


def find_extensions(codegens: object, passes: object, decompositions: object) -> Extensions:
    """The extensions of a call, names replaced by what they stand for. Raises UsageError."""
    try:
        return Extensions(
            _code_generators(codegens),
            loopir.find_passes(passes),  # type: ignore[arg-type]
            _tables(decompositions),
        )
    except (loopir.GeneratorError, loopir.ExtensionError) as error:
        raise UsageError(str(error)) from error


def _code_generators(codegens: object) -> tuple[tuple[str, CodeGenerator | str], ...]:
    """The chosen generators by device type."""
    if codegens is None:
        return ()
    if not isinstance(codegens, Mapping) or not all(isinstance(name, str) for name in codegens):
        raise UsageError(
            f"codegens must map device types to code generators, such as {{'cpu': MyGenerator()}}, "
            f"not {codegens!r}"
        )
    others = {d: choice for d, choice in codegens.items() if not is_own_name(d, choice)}
    return tuple((dict(codegens) | loopir.code_generators((), others)).items())


def _tables(given: object) -> tuple[DecompositionTable, ...]:
    if given is None:
        return ()
    tables = given if isinstance(given, (list, tuple)) else (given,)
    return tuple(map(_table, tables))


def _table(given: object) -> DecompositionTable:
    kind = "decomposition table"
    found = loopir.find_installed(DECOMPOSITIONS, kind, given) if isinstance(given, str) else given
    if not isinstance(found, primops.DecompositionTable):
        raise UsageError(
            f"decompositions must be primops.DecompositionTable objects or names of installed "
            f"ones; {given!r} is a {type(found).__name__}"
        )
    return found
