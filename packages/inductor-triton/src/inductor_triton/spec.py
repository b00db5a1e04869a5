"""The facts that the launch of a generated source needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import sympy
from loopir import Kernel, KernelBuffer, KernelSource, Template

T = TypeVar("T")

INT32_LIMIT = 2**31 - 1
ERRORS = "errors"
INDEX = "INDEX"
PROGRAM = "tl.program_id(0)"


@dataclass(frozen=True, slots=True)
class Config:
    """A choice of blocks: elements per program along the point axes (``y``, ``x``) and the
    reduction (``r``), and warps.

    ``persistent``: one block has the whole reduction, so that inner values stay in registers
    between bodies. ``grid`` programs walk over all points (0: one program per block). ``tma``:
    Hopper's copy engine fetches the tiles. ``split`` is the number of parts into which the sum of a
    matrix product is split. ``tf32``: float32 operands of a matrix product are rounded to 10
    fraction bits.
    """

    x: int
    y: int = 1
    r: int = 1
    persistent: bool = False
    num_warps: int = 4
    num_stages: int = 1
    grid: int = 0
    tma: bool = False
    split: int = 1
    tf32: bool = False


def format_config(config: Config) -> str:
    """The fields of a configuration as ``name=value``."""
    return " ".join(f"{item.name}={int(getattr(config, item.name))}" for item in fields(config))


def parse_config(text: str) -> Config:
    """Parses the text of a configuration. Raises ValueError that names an unknown field."""
    kinds = {item.name: bool if item.type == "bool" else int for item in fields(Config)}
    values: dict[str, Any] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        if name not in kinds or not value.isdigit():
            raise ValueError(f"no field of a configuration: {part!r}")
        values[name] = kinds[name](int(value))
    return Config(**values)


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """How a kernel is launched: one program per point of ``batch`` and per block of each of
    ``blocks`` (extent, block size).

    ``signature`` has the Triton type of each tensor argument. Ints follow: one per size, then
    ``numbers``, which may differ between kernels with the same source; then the error flag if
    ``errors``.

    ``index`` is ``"int32"``, ``"int64"``, or ``"dynamic"``: decided at launch by whether all of
    ``limits`` fit 32 bits. With ``workspace``, one more address follows: memory for Triton's global
    scratch.
    """

    function: str
    signature: tuple[str, ...]
    sizes: tuple[str, ...]
    blocks: tuple[tuple[sympy.Expr, int], ...]
    batch: sympy.Expr
    config: Config
    index: str
    limits: tuple[sympy.Expr, ...]
    errors: bool
    workspace: bool = False
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sequence:
    """Sources that run in order instead of one kernel, and the buffers between them."""

    parts: tuple[KernelSource, ...]
    scratch: tuple[KernelBuffer, ...]


def sequence_of(source: KernelSource) -> Sequence:
    """The parts of a source; most have one."""
    found = dict(source.metadata).get("sequence")
    return found if isinstance(found, Sequence) else Sequence((source,), ())


def parts_of(sources: Iterable[KernelSource]) -> list[KernelSource]:
    """The parts of all sources."""
    return [part for source in sources for part in sequence_of(source).parts]


def by_source(sources: Iterable[KernelSource], built: Iterable[T]) -> list[list[T]]:
    """The objects built from ``parts_of(sources)``, as a list per source."""
    rest = iter(built)
    return [[next(rest) for _ in sequence_of(source).parts] for source in sources]


def in_order(
    kernel: Kernel | Template, parts: tuple[KernelSource, ...], scratch: tuple[KernelBuffer, ...]
) -> KernelSource:
    """The source of ``kernel`` that runs ``parts`` in order."""
    text = "\n\n".join(part.text for part in parts)
    return KernelSource(kernel, text, (("sequence", Sequence(parts, scratch)),))


def launch_spec(source: KernelSource) -> LaunchSpec:
    """The launch description in the metadata of a source of this package."""
    spec = dict(source.metadata).get("launch")
    if not isinstance(spec, LaunchSpec):
        raise TypeError(f"{source.kernel.name}: not a source of inductor_triton")
    return spec
