"""The C++ compiler, the instruction set and the flags: found once, without trial builds."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from loopir import BuildError, SettingError, ToolError

ISAS = ("avx512", "avx2", "neon", "scalar")
MACHINE_FLAGS: dict[str, tuple[str, ...]] = {
    "avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
    "avx2": ("-march=x86-64-v3",),
    "neon": (),
    "scalar": (),
}
FEATURES = {
    "avx512": {
        "avx512bf16": ("avx512_bf16", "-mavx512bf16"),
        "avx512vbmi": ("avx512vbmi", "-mavx512vbmi"),
    },
    "neon": {"bf16": ("bf16", "-march=armv8.2-a+bf16")},
}
"""Instruction set to extensions that the runtime header knows how to use: name to the system's name
and the compiler's flag.
"""
FLAGS = (
    "-std=c++17", "-O2", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno", "-fwrapv",
    "-fno-exceptions",
    "-fno-rtti", "-fno-builtin-sinf", "-fno-builtin-cosf", "-fno-builtin-sin", "-fno-builtin-cos",
    "-Wno-psabi",
    "-Wno-ignored-attributes", "-fPIC",
)  # fmt: skip
"""Contraction stays off so that ``a * b - c`` equals eager's; the runtime header asks for fused
operations itself.
"""
LINK_FLAGS = ("-shared", "-nostdlib")
LIBRARIES = ("-lm", "-lgcc")
CANDIDATES = ("g++", "c++", "clang++")
HINT = (
    "Install a C++ compiler (Debian and Ubuntu: apt-get install g++), or name one in the "
    "environment variable STRATA_CXX."
)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler with what identifies it, the instruction set to compile for with its extra
    features, and the OpenMP runtime to link.
    """

    compiler: str
    version: str
    isa: str
    openmp: str
    features: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """All flags that decide the machine code."""
        extensions = FEATURES.get(self.isa, {})
        return (
            *FLAGS,
            *MACHINE_FLAGS[self.isa],
            *(extensions[feature][1] for feature in self.features),
        )

    def identity(self) -> tuple[str, ...]:
        """What the result of a build depends on, besides its source."""
        return (
            self.version,
            self.isa,
            platform.machine(),
            Path(self.openmp).name,
            *self.flags,
            *LINK_FLAGS,
            *LIBRARIES,
        )

    def command(self, source: Path, output: Path) -> list[str]:
        """The one command that compiles and links ``source``."""
        return [
            self.compiler,
            *self.flags,
            *LINK_FLAGS,
            str(source),
            "-o",
            str(output),
            self.openmp,
            *LIBRARIES,
        ]


@cache
def find_compiler(named: str | None, path: str | None) -> tuple[str, str]:
    """The compiler's path and version line. Raises ToolError when there is none or it does not
    answer, SettingError where it was named.
    """
    for candidate in [named] if named else CANDIDATES:
        found = shutil.which(candidate, path=path)
        if found is None:
            continue
        command = [found, "--version"]
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=60, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ToolError(
                f"the C++ compiler {found} can't be run: {error}. {HINT}", command=" ".join(command)
            ) from error
        if answer.returncode:
            raise ToolError(
                f"{found} is not a usable C++ compiler. {HINT}",
                command=" ".join(command),
                output=answer.stderr,
            )
        return found, answer.stdout.splitlines()[0] if answer.stdout else found
    if named:
        raise SettingError(
            f"can't find the C++ compiler {named!r} (from STRATA_CXX or CXX) on PATH. {HINT}"
        )
    raise ToolError(f"can't find a C++ compiler ({', '.join(CANDIDATES)}) on PATH. {HINT}")


def available_isas() -> tuple[str, ...]:
    """Those of ISAS that this processor has, the best first. Every AArch64 processor has NEON."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return ("neon",)
    best = {"AVX512": "avx512", "AVX2": "avx2"}.get(
        torch.backends.cpu.get_cpu_capability(), "scalar"
    )
    if best != "scalar" and _processor_flags() and "fma" not in _processor_flags():
        best = "scalar"
    return tuple(isa for isa in ISAS[ISAS.index(best) :] if isa != "neon")


def detect_isa() -> str:
    """The best of ISAS that this processor has; STRATA_CPU_ISA narrows it."""
    available = available_isas()
    asked = os.environ.get("STRATA_CPU_ISA", "").lower()
    if not asked:
        return available[0]
    if asked not in ISAS:
        raise SettingError(
            f"STRATA_CPU_ISA={asked!r}: unknown instruction set; one of {', '.join(ISAS)}"
        )
    if asked not in available:
        raise SettingError(f"STRATA_CPU_ISA={asked!r}: this processor only has {available[0]!r}")
    return asked


@cache
def _processor_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    lines = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
    return frozenset(next(lines, "").split())


def detect_features(isa: str) -> tuple[str, ...]:
    """Extensions beyond ``isa`` that the runtime header knows how to use and this processor has."""
    return tuple(
        name
        for name, (known_as, _) in FEATURES.get(isa, {}).items()
        if known_as in _processor_flags()
    )


@cache
def find_openmp() -> str:
    """libtorch's own OpenMP runtime: a second one in the process would fight it for the cores."""
    directory = Path(torch.__file__).parent / "lib"
    beside = Path(torch.__file__).parent.parent / "torch.libs"
    places = (directory, "libgomp*.so*"), (beside, "libgomp*.so*"), (directory, "libiomp5.so*")
    libraries = sorted(path for folder, pattern in places for path in folder.glob(pattern))
    return str(libraries[0]) if libraries else "-lgomp"


def find_toolchain() -> Toolchain:
    """The toolchain of this process, from STRATA_CXX, CXX, or the first of g++, c++, clang++ on
    PATH.
    """
    compiler, version = find_compiler(_named_compiler() or None, os.environ.get("PATH"))
    isa = detect_isa()
    return Toolchain(compiler, version, isa, find_openmp(), detect_features(isa))


def target() -> tuple[str, ...]:
    """What this process builds libraries for, and the compiler that its environment names. Needs no
    compiler.
    """
    isa = detect_isa()
    features, openmp = detect_features(isa), Path(find_openmp()).name
    return (platform.machine(), isa, *features, openmp, _named_compiler())


def _named_compiler() -> str:
    return os.environ.get("STRATA_CXX") or os.environ.get("CXX") or ""


def doctor() -> dict[str, str]:
    """What a build would use, as text: compiler, version, instruction set, OpenMP runtime, threads;
    or the problem.
    """
    found = {"openmp": find_openmp(), "threads": str(torch.get_num_threads())}
    try:
        toolchain = find_toolchain()
    except BuildError as error:
        return {"problem": str(error), **found}
    return {
        "compiler": toolchain.compiler,
        "version": toolchain.version,
        "isa": toolchain.isa,
        **found,
    }
