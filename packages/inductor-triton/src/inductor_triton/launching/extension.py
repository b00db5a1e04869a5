"""The C extension for launches (``native/``): built once per machine, stored as an artifact, loaded
once per process.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import torch
from loopir import ArtifactStore, BuildError, StoreError

COMPILERS = ("cc", "gcc", "clang")
SOURCES = ("places.c", "plan.c")
FLAGS = ("-O2", "-fPIC", "-shared", "-fno-strict-aliasing")
_loaded: list[ModuleType | None] = []


def load_extension(store: ArtifactStore) -> ModuleType | None:
    """The module; None, with one warning, if there is no C compiler or no Python header: launches
    are slower then.
    """
    if not _loaded:
        try:
            _loaded.append(_build(store))
        except (BuildError, StoreError, OSError, subprocess.SubprocessError) as error:
            why = (getattr(error, "stderr", None) or str(error)).strip()
            warnings.warn(
                f"launches go through Python, since their C part can't be built: {why}",
                RuntimeWarning,
                stacklevel=2,
            )
            _loaded.append(None)
    elif _loaded[0] is not None:
        _keep(_loaded[0], store)
    return _loaded[0]


def loaded_extension() -> ModuleType | None:
    """The module if it is already loaded."""
    return _loaded[0] if _loaded else None


def launch_counts() -> dict[str, int]:
    """The numbers of graphs launched, kernels launched one by one, and graph nodes patched by
    launch plans since the process began.
    """
    counts = (0, 0, 0) if loaded_extension() is None else _loaded[0].counts()  # type: ignore[union-attr]
    return dict(zip(("graphs", "kernels", "patched"), counts, strict=True))


@cache
def _source() -> str:
    sources = (files("inductor_triton").joinpath("native", name) for name in SOURCES)
    return "".join(source.read_text() for source in sources)


def _place(store: ArtifactStore) -> tuple[str, str]:
    """Key and suffix of the module."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return store.key("plan", _source(), suffix, *FLAGS), suffix


def _build(store: ArtifactStore) -> ModuleType:
    return store.load(*_place(store), lambda target: _compile(_source(), target), _load)


def _keep(module: ModuleType, store: ArtifactStore) -> None:
    """Copies the module to a store that lacks it: what is exported from there is complete."""
    key, suffix = _place(store)
    if not store.use_again(key, suffix):
        with suppress(OSError, StoreError):
            store.put(key, suffix, Path(str(module.__file__)).read_bytes())


def _compile(text: str, target: Path) -> None:
    candidates = [shlex.split(os.environ[name]) for name in ("CC",) if os.environ.get(name)] or [
        [name] for name in COMPILERS
    ]
    command = next((candidate for candidate in candidates if shutil.which(candidate[0])), None)
    if command is None:
        raise OSError(
            f"no C compiler was found (tried {', '.join(candidate[0] for candidate in candidates)})"
        )
    with tempfile.TemporaryDirectory(prefix="strata-plan-") as directory:
        source = Path(directory) / "plan.c"
        source.write_text(text)
        include = f"-I{sysconfig.get_paths()['include']}"
        subprocess.run(
            [*command, *FLAGS, include, str(source), "-o", str(target)],
            check=True,
            capture_output=True,
            text=True,
        )


def _load(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader("plan", str(path))
    spec = importlib.util.spec_from_file_location("plan", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    _find_layout(module)
    return module


def _find_layout(module: ModuleType) -> None:
    """Finds by experiment at which offsets tensors store their addresses, and passes them to the
    module; if a check fails, the module calls ``data_ptr()`` instead.
    """
    # its data pointer differs from the pointer that its deleter gets
    base = torch.frombuffer(bytearray(4096), dtype=torch.uint8)
    probes = (
        base[1237:],
        torch.nn.Parameter(torch.zeros(64, 64, device="cpu")[21:]),
        torch.zeros(3001, dtype=torch.bfloat16, device="cpu")[2963:].t(),
    )
    try:
        parts = [(id(t), t._cdata, t.untyped_storage()._cdata) for t in probes]
        storages = [t.untyped_storage().data_ptr() for t in probes]
        places = (
            _only_offset([(thing, tensor) for thing, tensor, _ in parts], 16, 48),
            _only_offset([(tensor, storage) for _, tensor, storage in parts], 0, 64),
            _only_offset([(storage, data) for (*_, storage), data in zip(parts, storages)], 0, 64),
            _only_offset(
                [
                    (tensor, int(probe.storage_offset()))
                    for (_, tensor, _), probe in zip(parts, probes)
                ],
                0,
                192,
            ),
        )
    except (AttributeError, LookupError):
        return
    module.set_layout(torch._C.TensorBase, *places)
    if not _sees_changes(module):
        module.set_layout()


def _only_offset(pairs: list[tuple[int, int]], start: int, end: int) -> int:
    """The one offset from each address at which the paired word is stored."""
    found = [
        o
        for o in range(start, end, 8)
        if all(ctypes.c_uint64.from_address(a + o).value == word for a, word in pairs)
    ]
    if len(found) != 1:
        raise LookupError
    return found[0]


def _sees_changes(module: ModuleType) -> bool:
    """Whether the module notices when a tensor's memory moves in place, or its offset changes."""
    tensor, other = (torch.zeros(8, device="cpu") for _ in range(2))
    changes = (
        lambda: setattr(tensor, "data", other),
        lambda: setattr(tensor, "data", other[2:]),
        lambda: tensor.resize_(1 << 16),
    )
    for change in changes:
        found = module.places((tensor,), (0,))
        kept = module.lie_at((tensor[:1],), (0,), found)
        change()
        if not kept or module.lie_at((tensor,), (0,), found):
            return False
    return True
