"""Kernels for AArch64 on any machine: a cross compiler builds a program that an emulator runs on
the buffers' bytes.
"""

from __future__ import annotations

import ctypes
import dataclasses
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from inductor_cpp import CppCodeGenerator, Toolchain
from inductor_cpp.building.build import _nameless, unit_text
from loopir import ArtifactStore, KernelSource

COMPILER = "aarch64-linux-gnu-g++"
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")
MOST_ARGUMENTS = 24
DRIVER = """
#include <stdio.h>
#include <stdlib.h>
typedef int (*kernel)(...);
extern "C" {{ {declarations} }}
kernel kernels[] = {{ {names} }};
extern "C" int omp_get_max_threads() {{ return 1; }}
extern "C" int omp_get_thread_num() {{ return 0; }}
extern "C" int omp_get_num_threads() {{ return 1; }}
extern "C" int omp_in_parallel() {{ return 0; }}
extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned, unsigned) {{ body(data); }}
int main(int, char** path) {{                 // header: kernel, arguments; each argument: bytes of a buffer, or -1 and a number
  FILE* file = fopen(path[1], "r+b");
  long head[2], size[{most}], value[{most}] = {{}};
  fread(head, 8, 2, file);
  for (long i = 0; i < head[1]; i++) {{
    fread(&size[i], 8, 1, file);
    if (size[i] < 0) {{ fread(&value[i], 8, 1, file); continue; }}
    value[i] = (long)aligned_alloc(64, (size[i] + 64) / 64 * 64);
    fread((void*)value[i], 1, size[i], file);
  }}
  int error = kernels[head[0]]({passed});
  rewind(file);
  for (long i = 0; i < head[1]; i++) if (size[i] > 0) fwrite((void*)value[i], 1, size[i], file);
  fclose(file);
  return error;
}}
"""


@dataclasses.dataclass
class EmulatedGenerator(CppCodeGenerator):
    """Launches start the emulator; they take tensors without gaps, and run on one thread."""

    features: tuple[str, ...]
    directory: Path

    @property
    def toolchain(self) -> Toolchain:
        version = subprocess.run(
            [COMPILER, "--version"], capture_output=True, text=True, check=True
        ).stdout
        return Toolchain(COMPILER, version, "neon", "", self.features)

    def build(
        self, sources: Sequence[KernelSource], store: ArtifactStore
    ) -> list[Callable[..., None]]:
        bodies = [_nameless(source) for source in sources]
        distinct = sorted(set(bodies))
        toolchain = self.toolchain
        text = unit_text(distinct)
        key = store.key("emulated", text, *toolchain.identity())
        program = store.get(key, ".elf") or store.put(
            key, ".elf", lambda target: self._compile(text, len(distinct), toolchain, target)
        )
        return [
            self._launcher(source, program, distinct.index(body))
            for source, body in zip(sources, bodies, strict=True)
        ]

    def _compile(self, text: str, count: int, toolchain: Toolchain, target: Path) -> None:
        names = [f"strata_kernel{number}" for number in range(count)]
        passed = ", ".join(f"value[{number}]" for number in range(MOST_ARGUMENTS))
        declarations = " ".join(f"int {name}(...);" for name in names)
        unit, driver = self.directory / "unit.cpp", self.directory / "driver.cpp"
        unit.write_text(text)
        driver.write_text(
            DRIVER.format(
                declarations=declarations,
                names=", ".join(names),
                most=MOST_ARGUMENTS,
                passed=passed,
            )
        )
        command = [
            COMPILER,
            *toolchain.flags,
            "-Wno-unused-result",
            "-static",
            str(unit),
            str(driver),
            "-o",
            str(target),
            "-lm",
        ]
        subprocess.run(command, check=True)

    def _launcher(self, source: KernelSource, program: Path, number: int) -> Callable[..., None]:
        def launch(*arguments: torch.Tensor | int) -> None:
            data = self.directory / "data"
            packed = [_packed(argument) for argument in arguments]
            data.write_bytes(struct.pack("qq", number, len(arguments)) + b"".join(packed))
            emulator = next(filter(None, map(shutil.which, EMULATORS)))
            run = subprocess.run([emulator, "-cpu", "max", program, data], check=False)
            if run.returncode:
                raise {1: IndexError, 2: RuntimeError}.get(run.returncode, OSError)(
                    f"{source.kernel.name}: {run.returncode}"
                )
            result, at = data.read_bytes(), 0
            for tensor in (
                argument for argument in arguments if isinstance(argument, torch.Tensor)
            ):
                ctypes.memmove(tensor.data_ptr(), result[at : at + tensor.nbytes], tensor.nbytes)
                at += tensor.nbytes

        return launch


def _packed(argument: torch.Tensor | int) -> bytes:
    if isinstance(argument, int):
        return struct.pack("qq", -1, argument)
    assert argument.is_contiguous()
    return struct.pack("q", argument.nbytes) + ctypes.string_at(
        argument.data_ptr(), argument.nbytes
    )


def emulated_generator(directory: Path, features: tuple[str, ...] = ()) -> EmulatedGenerator:
    """A generator for NEON, or a skipped test where a cross compiler or an emulator is missing."""
    if shutil.which(COMPILER) is None or not any(map(shutil.which, EMULATORS)):
        pytest.skip(f"needs {COMPILER} and {EMULATORS[0]}")
    return EmulatedGenerator(features, directory)
