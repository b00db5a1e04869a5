"""The C part of launching (``native/plan.c``): built once per machine, kept in the artifact store, loaded once per process."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from importlib.resources import files
from pathlib import Path
from types import ModuleType

from loopir import ArtifactStore

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-fPIC", "-shared", "-fno-strict-aliasing")
_loaded: list[ModuleType | None] = []


def load_extension(store: ArtifactStore) -> ModuleType | None:
    """The module, or None, with one warning, where there is no C compiler or no header of Python: launches are slower then."""
    if not _loaded:
        try:
            _loaded.append(_load(_library(store)))
        except (OSError, ImportError, subprocess.SubprocessError) as error:
            why = (getattr(error, "stderr", None) or str(error)).strip()
            warnings.warn(f"launches go through Python, since their C part can't be built: {why}", RuntimeWarning, stacklevel=2)
            _loaded.append(None)
    return _loaded[0]


def loaded_extension() -> ModuleType | None:
    """The module if it was loaded before."""
    return _loaded[0] if _loaded else None


def launch_counts() -> dict[str, int]:
    """Graphs launched, kernels launched one by one, and graph nodes patched by launch plans since the process began."""
    counts = (0, 0, 0) if loaded_extension() is None else _loaded[0].counts()  # type: ignore[union-attr]
    return dict(zip(("graphs", "kernels", "patched"), counts, strict=True))


def _library(store: ArtifactStore) -> Path:
    source = files("inductor_triton").joinpath("native", "plan.c").read_text()
    key = store.key("plan", source, sys.version, sysconfig.get_platform(), *FLAGS)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return store.get(key, suffix) or store.put(key, suffix, lambda target: _compile(source, target))


def _compile(text: str, target: Path) -> None:
    candidates = [shlex.split(os.environ[name]) for name in ("CC",) if os.environ.get(name)] or [[name] for name in COMPILERS]
    command = next((candidate for candidate in candidates if shutil.which(candidate[0])), None)
    if command is None:
        raise OSError(f"no C compiler was found (tried {', '.join(candidate[0] for candidate in candidates)})")
    with tempfile.TemporaryDirectory(prefix="strata-plan-") as directory:
        source = Path(directory) / "plan.c"
        source.write_text(text)
        include = f"-I{sysconfig.get_paths()['include']}"
        subprocess.run([*command, *FLAGS, include, str(source), "-o", str(target)], check=True, capture_output=True, text=True)


def _load(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader("plan", str(path))
    spec = importlib.util.spec_from_file_location("plan", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
