"""Which code generator a device type has: the caller's choice, a registered one, or one that an
installed package offers under ``torchstrata.code_generators``.

An entry point of this group is a name for a factory: a class or function without arguments whose
result is a ``CodeGenerator``. A name can be chosen for any program. A device type that nobody
registered a generator for takes the only one installed for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .backend import CodeGenerator
from .entry_points import Installed, installed
from .errors import GeneratorError, GeneratorWarning

GROUP = "torchstrata.code_generators"
Factory: TypeAlias = Callable[[], CodeGenerator]


@dataclass(frozen=True, slots=True)
class FoundGenerator:
    """A code generator that can be chosen.

    Attributes:
        name: what it is called: the entry point's name, or its class.
        device: its device type; empty if it can't be loaded.
        origin: the distribution and object that it comes from.
        factory: makes one; None if it can't be loaded.
        problem: why it can't be loaded.
    """

    name: str
    device: str
    origin: str
    factory: Factory | None
    problem: str = ""


_registered: dict[str, FoundGenerator] = {}


def register_code_generator(device_type: str, factory: Factory) -> None:
    """Makes ``factory()`` the code generator of a device type for this process.

    It comes before the one that the stack has for the device and those of installed packages, and
    after the ``codegens`` of a call. Raises GeneratorError for wrong arguments, and if another
    factory is registered for the device.
    """
    if not isinstance(device_type, str) or not device_type.isidentifier():
        raise GeneratorError(f"a device type is a word such as 'cpu', not {device_type!r}")
    if not callable(factory):
        raise GeneratorError(
            f"the factory for {device_type!r} must be callable without arguments, such as a class; "
            f"it is {factory!r}"
        )
    name = getattr(factory, "__qualname__", type(factory).__qualname__)
    origin = f"{getattr(factory, '__module__', None) or type(factory).__module__}:{name}"
    known = _registered.get(device_type)
    if known is not None and known.factory is not factory:
        raise GeneratorError(
            f"two code generators for device {device_type!r}: {known.origin} is registered, and "
            f"now {origin}; call unregister_code_generator({device_type!r}) first"
        )
    _registered[device_type] = FoundGenerator(name, device_type, origin, factory)


def unregister_code_generator(device_type: str) -> None:
    """Undoes ``register_code_generator``; nothing happens if the device has none."""
    _registered.pop(device_type, None)


def registered_code_generators() -> list[FoundGenerator]:
    """What ``register_code_generator`` was called with, by device type."""
    return [_registered[device] for device in sorted(_registered)]


def installed_code_generators() -> list[FoundGenerator]:
    """The generators of installed packages, by name; loads all of them."""
    return [_found(offer) for offer in installed(GROUP)]


def _found(offer: Installed) -> FoundGenerator:
    name, origin, factory, problem = offer.name, offer.origin, offer.value, offer.problem
    try:
        made: Any = None if problem else _device_owner(factory)
        if made is not None and not isinstance(made.device, str):
            problem = f"TypeError: its device is {made.device!r}, not a string"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        return FoundGenerator(name, "", origin, None, problem)
    return FoundGenerator(name, made.device, origin, factory)  # type: ignore[arg-type]


def _device_owner(factory: Any) -> Any:
    """The class if it says the device, else an instance."""
    return factory if isinstance(getattr(factory, "device", None), str) else factory()


def code_generators(
    devices: Collection[str],
    chosen: Mapping[str, CodeGenerator | str] | None = None,
    defaults: Mapping[str, Factory] | None = None,
) -> dict[str, CodeGenerator]:
    """The code generator of each device type that has one.

    Args:
        devices: device types.
        chosen: by device type, a generator or the name of an installed one.
        defaults: the factories that serve a device type unless something is chosen or registered.

    Raises GeneratorError for a choice that is none, and where two packages offer a generator for a
    device type and nothing says which.
    """
    result: dict[str, CodeGenerator] = {}
    for device in [*devices, *(chosen or {})]:
        if device in result:
            continue
        if chosen and device in chosen:
            result[device] = _chosen(device, chosen[device])
        elif device in _registered:
            result[device] = _made(_registered[device], device)
        elif defaults and device in defaults:
            result[device] = defaults[device]()
        elif (found := _installed_for(device)) is not None:
            result[device] = _made(found, device)
    return result


def _chosen(device: str, choice: CodeGenerator | str) -> CodeGenerator:
    if not isinstance(choice, str):
        return _checked(choice, device, f"codegens={{{device!r}: {choice!r}}}")
    offers = installed_code_generators()
    fitting = [found for found in offers if found.name == choice]
    if fitting:
        return _made(_only(fitting, f"called {choice!r}", "pass an instance"), device)
    known = ", ".join(map(_shown, offers)) or "none"
    raise GeneratorError(
        f"no code generator is called {choice!r}; installed are: {known}. Install its package, or "
        f"pass an instance"
    )


def _installed_for(device: str) -> FoundGenerator | None:
    offers = installed_code_generators()
    fitting = [found for found in offers if found.device == device]
    for found in offers:
        if found.problem:
            warnings.warn(_cannot_load(found), GeneratorWarning, stacklevel=2)
    if not fitting:
        return None
    advice = f"choose one with codegens={{{device!r}: {fitting[0].name!r}}}"
    return _only(fitting, f"for device {device!r}", advice)


def _only(fitting: Sequence[FoundGenerator], what: str, advice: str) -> FoundGenerator:
    if len(fitting) > 1:
        names = " and ".join(map(_shown, fitting))
        raise GeneratorError(f"{len(fitting)} code generators {what}: {names}; {advice}")
    return fitting[0]


def _shown(found: FoundGenerator) -> str:
    return f"{found.name!r} ({found.origin})"


def _cannot_load(found: FoundGenerator) -> str:
    return f"code generator {_shown(found)} can't be loaded: {found.problem}"


def _made(found: FoundGenerator, device: str) -> CodeGenerator:
    if found.factory is None:
        raise GeneratorError(_cannot_load(found))
    try:
        made = found.factory()
    except Exception as error:
        raise GeneratorError(
            f"code generator {_shown(found)} can't be made: {type(error).__name__}: {error}"
        ) from error
    return _checked(made, device, f"code generator {_shown(found)}")


def _checked(generator: CodeGenerator, device: str, origin: str) -> CodeGenerator:
    missing = [name for name in ("generate", "build") if not callable(getattr(generator, name, 0))]
    if missing:
        raise GeneratorError(f"{origin} is no CodeGenerator: it has no {' and no '.join(missing)}")
    found = getattr(generator, "device", None)
    if found != device:
        raise GeneratorError(f"{origin} is for device {found!r}, not for {device!r}")
    return generator
