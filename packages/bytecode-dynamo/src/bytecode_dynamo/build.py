"""Builds the C extension ``_hook``: plain C, needs a compiler and the headers of the running
Python, nothing else.

``python src/bytecode_dynamo/build.py`` builds it next to the sources, for a checkout that is not
installed (by path, because the package cannot be imported without it;
``python -m bytecode_dynamo.build`` builds it again). ``hatch_build.py`` calls ``build`` when a
wheel is made or the package is installed. The file name carries the interpreter's tag, so builds
for several interpreters live side by side.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

MODULE = "_hook"
SOURCES = Path(__file__).parent / "native"
HELP = """
bytecode-dynamo could not build its C extension (bytecode_dynamo.{module}).

  {why}

It needs a C compiler and the headers of the Python that runs the build
({python}, Python {version}):
  Debian, Ubuntu:  apt install gcc libc6-dev python{version}-dev
  Fedora:          dnf install gcc python{version}-devel
  macOS:           xcode-select --install
Set CC to use another compiler.
"""


class BuildError(SystemExit):
    """The extension could not be built; the message says why and what to install."""

    def __init__(self, why: str) -> None:
        version = ".".join(map(str, sys.version_info[:2]))
        super().__init__(
            HELP.format(module=MODULE, why=why, python=sys.executable, version=version)
        )


def extension_name() -> str:
    """File name of the built module for the running interpreter."""
    return f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"


def find_compiler() -> list[str]:
    """The command of the C compiler: ``$CC``, the one Python was built with, or a common one;
    raises BuildError.
    """
    wanted = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = shlex.split(wanted)
    if shutil.which(command[0]):
        return command
    if os.environ.get("CC"):
        raise BuildError(f"CC is set to {wanted!r}, which was not found.")
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise BuildError("No C compiler was found (tried $CC, cc, gcc, clang).")


def build(target: Path) -> Path:
    """Compile the extension to ``target``; raises BuildError."""
    include = Path(sysconfig.get_path("include"))
    if not (include / "internal" / "pycore_frame.h").exists():
        raise BuildError(
            f"{include}/internal/pycore_frame.h is missing (the development headers of Python)."
        )
    link = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    command = [
        *find_compiler(),
        "-std=c11",
        "-O2",
        "-Wall",
        "-Wno-deprecated-declarations",
        "-fPIC",
        "-fvisibility=hidden",
    ]
    command += [*link, f"-I{include}", *map(str, sorted(SOURCES.glob("*.c"))), "-o", str(partial)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(
            f"The compiler failed (exit status {done.returncode}):\n  "
            f"{shlex.join(command)}\n{done.stderr[-4000:]}"
        )
    # In one step: a running process keeps the file it has mapped.
    os.replace(partial, target)
    return target


def main() -> None:
    """Build next to the sources."""
    print(build(Path(__file__).parent / extension_name()))


if __name__ == "__main__":
    main()
