"""Compiles translation units: one compiler run per program. The artifact store keeps the library,
and each process loads it once.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from loopir import BuildError

from inductor_cpp.kernels.names import identifier, runtime_text

from .toolchain import HINT

if TYPE_CHECKING:
    from loopir import ArtifactStore, Kernel, KernelSource, Template

    from .toolchain import Toolchain

SPLIT_AT = 24
PLACEHOLDER = "kernel_"
DIVISION_BY_ZERO = 2
SUFFIX = ".so"
_loaded: dict[str, ctypes.CDLL] = {}


@dataclass(frozen=True, slots=True)
class Entry:
    """A C function in a library of this process: the library's key in the store, and a name."""

    library: str
    name: str

    @property
    def function(self) -> Any:
        return _loaded[self.library][self.name]


def build_kernels(
    sources: Sequence[KernelSource], store: ArtifactStore, toolchain: Toolchain
) -> list[Callable[..., None]]:
    """One callable per source. Raises BuildError."""
    entries, _ = build_entries(sources, store, toolchain)
    return [make_launcher(source.kernel, e.function) for source, e in zip(sources, entries)]


def build_entries(
    sources: Sequence[KernelSource], store: ArtifactStore, toolchain: Toolchain, more: str = ""
) -> tuple[list[Entry], str]:
    """The C entry of each source, and the key of the library with the functions of ``more``, which
    is text to append to the kernels.

    Kernels that differ only in their name are compiled once; more than SPLIT_AT distinct ones are
    compiled as two units in parallel. Raises BuildError with the command and the compiler's output.
    """
    bodies = [_nameless(source) for source in sources]
    distinct = sorted(set(bodies))
    middle = (len(distinct) + 1) // 2
    units = [distinct[:middle], distinct[middle:]] if len(distinct) > SPLIT_AT else [distinct]
    with ThreadPoolExecutor(len(units)) as pool:
        texts = [unit_text(unit) + (more if unit is units[-1] else "") for unit in units]
        libraries = list(pool.map(lambda text: load_library(text, store, toolchain), texts))
    entries = {}
    for unit, library in zip(units, libraries):
        entries |= {body: Entry(library, entry_name(n)) for n, body in enumerate(unit)}
    return [entries[body] for body in bodies], libraries[-1]


def entry_name(number: int) -> str:
    """The C name of kernel ``number`` of a translation unit."""
    return f"strata_kernel{number}"


def _nameless(source: KernelSource) -> str:
    """The code of a kernel without comments and without its name: equal for equal kernels."""
    code = "\n".join(
        line for line in source.text.splitlines() if not line.lstrip().startswith("//")
    )
    name = re.escape(identifier(source.kernel.name))
    return re.sub(rf"\b{name}(_units)?\b", lambda match: PLACEHOLDER + (match.group(1) or ""), code)


def unit_text(bodies: Sequence[str]) -> str:
    """A whole translation unit: the runtime header and the kernels under their entry names."""
    named = (
        re.sub(
            rf"\b{PLACEHOLDER}(_units)?\b", lambda m, n=n: entry_name(n) + (m.group(1) or ""), body
        )
        for n, body in enumerate(bodies)
    )
    return runtime_text() + "\n" + "\n\n".join(named) + "\n"


def load_library(text: str, store: ArtifactStore, toolchain: Toolchain) -> str:
    """Loads the shared library of a translation unit, from the store or compiled now, once per
    process; returns its key.
    """
    key = store.key("inductor_cpp", text, *toolchain.identity())
    load_unit(key, lambda: (text, toolchain), store)
    return key


def load_unit(key: str, unit: Callable[[], tuple[str, Toolchain]], store: ArtifactStore) -> None:
    """Loads the library ``key``; ``unit`` tells what to compile where the store doesn't have it."""
    if key not in _loaded or not store.use_again(key, SUFFIX):
        _loaded[key] = store.load(
            key, SUFFIX, lambda path: compile_unit(unit()[0], path, unit()[1]), open_library
        )


def reload_library(key: str, store: ArtifactStore) -> bool:
    """Loads a library that was built before; whether the store has it."""
    if key in _loaded and store.use_again(key, SUFFIX):
        return True
    library = store.open(key, SUFFIX, open_library)
    if library is not None:
        _loaded[key] = library
    return library is not None


def open_library(path: Path) -> ctypes.CDLL:
    """The shared library at ``path``."""
    return ctypes.CDLL(str(path))


def compile_unit(text: str, target: Path, toolchain: Toolchain) -> None:
    """Compiles ``text`` to the shared library ``target``."""
    with tempfile.TemporaryDirectory(prefix="strata-cpp-") as directory:
        source = Path(directory) / "kernels.cpp"
        source.write_text(text)
        command = toolchain.command(source, target)
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise BuildError(
                f"the C++ compiler can't be run: {error}. {HINT}", command=" ".join(command)
            ) from error
    if result.returncode:
        message = f"the C++ compiler failed with exit status {result.returncode}. {HINT}"
        raise BuildError(message, command=" ".join(command), output=result.stderr or result.stdout)


def make_launcher(kernel: Kernel | Template, function: Callable[..., int]) -> Callable[..., None]:
    """A callable taking the buffers' tensors and the sizes; raises IndexError when the kernel met
    an index out of range.

    ``launch.address`` is the entry's address and ``launch.argument_types`` one letter per argument
    (``p`` pointer, ``i`` int64), for hosts that call without Python.
    """
    buffers, sizes = len(kernel.buffers), len(kernel.sizes)
    function.argtypes = [ctypes.c_void_p] * buffers + [ctypes.c_int64] * sizes  # type: ignore[attr-defined]
    function.restype = ctypes.c_int  # type: ignore[attr-defined]

    def fail(error: int) -> None:
        if error == DIVISION_BY_ZERO:
            raise RuntimeError("ZeroDivisionError")
        raise IndexError(f"{kernel.name}: index out of range")

    code = launcher_code(buffers, sizes).replace(co_filename=f"<launcher of {kernel.name}>")
    launch = FunctionType(code, {"call": function, "fail": fail}, kernel.name)
    launch.address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type, attr-defined]
    launch.argument_types = "p" * buffers + "i" * sizes  # type: ignore[attr-defined]
    return launch


@cache
def launcher_code(tensors: int, sizes: int, *first: str, tabled: bool = False) -> CodeType:
    """The code of a function of tensors and sizes. It calls ``call`` with the globals named
    ``first``, then addresses and sizes, and passes an error to ``fail``. ``tabled``: the addresses
    go in one array of the global type ``addresses``.
    """
    names, ints = [f"t{n}" for n in range(tensors)], [f"i{n}" for n in range(sizes)]
    pointers = [f"{name}.data_ptr()" for name in names]
    pointers = [f"addresses({', '.join(pointers)})"] if tabled else pointers
    lines = [
        f"def launch({', '.join([*names, *ints])}):",
        f"    error = call({', '.join([*first, *pointers, *ints])})",
        "    if error:",
        "        fail(error)",
    ]
    scope: dict[str, FunctionType] = {}
    exec("\n".join(lines), {}, scope)
    return scope["launch"].__code__
