"""The stack's own code generators, and which generator each device type has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import inductor_cpp
import inductor_triton
import loopir
import torch

from .config import Config
from .errors import CompileError

_OWN = {"cpu": ("cpp", "inductor_cpp"), "cuda": ("triton", "inductor_triton")}
"""By device type, the name and the package of the stack's own code generator."""

FOREIGN_DEADLINE = 300.0
"""Seconds that another package's code generator may take for a kernel's text, and for a build."""


def code_generators(
    config: Config,
    devices: Collection[str],
    chosen: Mapping[str, loopir.CodeGenerator | str] | None = None,
) -> dict[str, loopir.CodeGenerator]:
    """The code generators of the CPU, of CUDA where torch sees such a device, and of ``devices``.
    Raises CompileError.
    """
    defaults = _defaults(config)
    chosen = dict(chosen or {})
    own = [device for device, choice in chosen.items() if is_own_name(device, choice)]
    found = {device: defaults[device]() for device in own if chosen.pop(device)}
    try:
        usual = {"cpu", "cuda"} if torch.cuda.is_available() else {"cpu"}
        others = {*usual, *devices} - found.keys()
        found |= loopir.code_generators(others, chosen, defaults)
        return loopir.share_devices(found, defaults)
    except loopir.GeneratorError as error:
        raise CompileError("loopir", "", error) from error


def own_code_generators(
    config: Config, devices: Collection[str]
) -> dict[str, loopir.CodeGenerator]:
    """The stack's own code generators of the devices that have one, and no other."""
    return {device: make() for device, make in _defaults(config).items() if device in devices}


def _defaults(config: Config) -> dict[str, Callable[[], loopir.CodeGenerator]]:
    def cuda() -> loopir.CodeGenerator:
        return inductor_triton.TritonCodeGenerator(tune=config.tune, lock=config.tuning_lock)

    return {"cpu": lambda: inductor_cpp.CppCodeGenerator(), "cuda": cuda}


def own_generators() -> list[loopir.FoundGenerator]:
    """The code generators that the stack comes with."""
    classes = {"cpu": inductor_cpp.CppCodeGenerator, "cuda": inductor_triton.TritonCodeGenerator}
    return [
        loopir.FoundGenerator(name, device, package, classes[device])
        for device, (name, package) in _OWN.items()
    ]


def is_own(generator: loopir.CodeGenerator | None) -> bool:
    """Whether a code generator is one of those that the stack comes with."""
    kind = type(generator)
    own = ("CppCodeGenerator", "TritonCodeGenerator")
    packages = [package for _, package in _OWN.values()]
    return kind.__name__ in own and kind.__module__.partition(".")[0] in packages


def is_own_name(device: str, choice: object) -> bool:
    """Whether a choice is the name of the stack's own generator for a device type."""
    return device in _OWN and choice == _OWN[device][0]
