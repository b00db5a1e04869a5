"""The only access to Triton, which is optional: everything else in this package works without."""

from __future__ import annotations

import importlib
import linecache
import os
import re
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

from loopir import ToolError, temporary_root

REQUIRED = (3, 6)


@cache
def load_triton() -> ModuleType:
    """The ``triton`` module; raises :class:`ToolError` when it is not installed or too old."""
    try:
        triton = importlib.import_module("triton")
    except ImportError as error:
        raise ToolError(
            f"kernels for CUDA devices need Triton, which can't be imported ({error}); install it "
            f"with 'pip install triton'"
        ) from error
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if version < REQUIRED:
        raise ToolError(
            f"Triton {triton.__version__} is too old; {'.'.join(map(str, REQUIRED))} or newer is "
            f"needed"
        )
    if not _is_writable(Path(triton.knobs.cache.dir)):
        triton.knobs.cache.dir = str(temporary_root() / "triton")
    return triton


@cache
def triton_version() -> str:
    """The version of the Triton that is installed, which is not imported if its wheel says it.
    Raises :class:`ToolError` without Triton.
    """
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return load_triton().__version__


def _is_writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK)


def load_interpreter() -> None:
    """Checks that Triton's interpreter can be used; raises :class:`ToolError` unless both Triton
    and NumPy, with which the interpreter computes, are installed.
    """
    load_triton()
    if load_optional("numpy") is None:
        raise ToolError(
            "Triton's interpreter computes with NumPy; install it with 'pip install numpy'"
        )


def load_part(name: str) -> ModuleType:
    """A submodule of Triton, such as ``runtime.interpreter``."""
    load_triton()
    return importlib.import_module(f"triton.{name}")


def load_optional(name: str) -> ModuleType | None:
    """A module that is only used if it is installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


DEFINED = re.compile(r"^def (\w+)\(", re.MULTILINE)
Key = tuple[str, tuple["Key", ...]]
"""The text of a device function, and the keys of those that it calls."""
_device_functions: dict[Key, object] = {}


def execute_kernel(text: str, function: str) -> Callable[..., object]:
    """``execute_source`` for Triton's compiler. Kernels share the device functions that have the
    same text and call the same ones, which Triton would otherwise parse and hash each time.
    """
    imports, *parts, kernel = text.split("\n\n\n")
    keys: dict[str, Key] = {}
    for part in parts:
        (name,) = DEFINED.findall(part)
        called = [other for other in keys if re.search(rf"\b{other}\b", part)]
        key = keys[name] = part, tuple(keys[other] for other in called)
        if key not in _device_functions:
            namespace = {other: _device_functions[keys[other]] for other in called}
            _execute(f"{imports}\n{part}", "device function", namespace)
            _device_functions[key] = namespace[name]
    namespace = {name: _device_functions[key] for name, key in keys.items()}
    _execute(f"{imports}\n{kernel}", function, namespace)
    return namespace[function]  # type: ignore[return-value]


def execute_source(text: str, function: str, **overrides: object) -> Callable[..., object]:
    """Runs the source of a kernel and returns the function of that name. ``overrides`` replace
    functions of the source.
    """
    namespace: dict[str, object] = {}
    _execute(text, function, namespace)
    namespace.update(overrides)
    return namespace[function]  # type: ignore[return-value]


def _execute(text: str, what: str, namespace: dict[str, object]) -> None:
    """Executes a source. Triton gets the source of functions from ``inspect``, which finds it in
    ``linecache`` under a made-up file name.
    """
    name = f"<{what} {hash(text) & 0xFFFFFFFFFFFF:x}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace["__name__"] = "inductor_triton_generated"
    exec(compile(text, name, "exec"), namespace)
