"""The stack's own code generators, and which generator each device type has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import inductor_cpp
import inductor_triton
import loopir

from .config import Config
from .errors import CompileError

OWN_GENERATORS = {
    found.device: found
    for found in (
        loopir.FoundGenerator("cpp", "cpu", "inductor_cpp", inductor_cpp.CppCodeGenerator),
        loopir.FoundGenerator(
            "triton", "cuda", "inductor_triton", inductor_triton.TritonCodeGenerator
        ),
    )
}
"""The code generators that the stack comes with, by device type."""

FOREIGN_DEADLINE = 300.0
"""Seconds that another package's code generator may take for a kernel's text, and for a build."""


def code_generators(
    config: Config,
    devices: Collection[str],
    chosen: Mapping[str, loopir.CodeGenerator | str] | None = None,
) -> dict[str, loopir.CodeGenerator]:
    """The code generators of the CPU, of CUDA and of ``devices``. Raises CompileError."""
    cuda = partial(inductor_triton.TritonCodeGenerator, tune=config.tune, lock=config.tuning_lock)
    defaults: dict[str, Callable[[], loopir.CodeGenerator]]
    defaults = {"cpu": inductor_cpp.CppCodeGenerator, "cuda": cuda}
    chosen = dict(chosen or {})
    own = [device for device, choice in chosen.items() if is_own_name(device, choice)]
    found = {device: defaults[device]() for device in own if chosen.pop(device)}
    try:
        others = {*defaults, *devices} - found.keys()
        found |= loopir.code_generators(others, chosen, defaults)
        return loopir.share_devices(found, defaults)
    except loopir.GeneratorError as error:
        raise CompileError("loopir", "", error) from error


def is_own(generator: loopir.CodeGenerator) -> bool:
    """Whether a code generator is one of those that the stack comes with."""
    return any(type(generator) is found.factory for found in OWN_GENERATORS.values())


def is_own_name(device: str, choice: object) -> bool:
    """Whether a choice is the name of the stack's own generator for a device type."""
    return device in OWN_GENERATORS and choice == OWN_GENERATORS[device].name
