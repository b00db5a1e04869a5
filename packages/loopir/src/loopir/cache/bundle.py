"""Bundles: the artifacts of a store in one zip file, for another machine or another user.

An artifact contains code. The hashes in a bundle tell that it is complete, not who made it: import
only what you would run.
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loopir.errors import StoreError

from .store import MANIFEST, ArtifactStore, describe_content, parts_of_manifest

_NAME = re.compile(r"([0-9a-f]{64})(\.[\w.-]+)")


def export_bundle(store: ArtifactStore, path: Path) -> int:
    """Writes all artifacts of a store that match their manifests to a zip file; returns how many.

    The file is there when it is complete: until then a file of this name stays as it is. Raises
    StoreError if it can't be written.
    """
    count = 0
    with _errors(path, "write"):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as bundle:
                for artifact in store.artifacts():
                    if artifact.is_complete:
                        for end in ("", MANIFEST):
                            bundle.write(f"{artifact.path}{end}", f"{artifact.path.name}{end}")
                        count += 1
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return count


def import_bundle(store: ArtifactStore, path: Path) -> int:
    """Puts the artifacts of a bundle into a store; returns how many.

    Raises StoreError, and stores nothing, for a file that is no bundle, or of which a part is
    missing or changed.
    """
    with _errors(path, "read"), zipfile.ZipFile(path) as bundle:
        names = [name for name in bundle.namelist() if not name.endswith(MANIFEST)]
        for name in names:
            _read(bundle, name)
        for name in names:
            key, suffix, data, parts = _read(bundle, name)
            store.put(key, suffix, data, parts)
    return len(names)


def _read(bundle: zipfile.ZipFile, name: str) -> tuple[str, str, bytes, tuple[str, ...]]:
    """Key, suffix and bytes of an artifact, and the parts of its key."""
    match = _NAME.fullmatch(name)
    data, manifest = bundle.read(name), bundle.read(f"{name}{MANIFEST}").decode()
    if match is None or not manifest.startswith(describe_content(data, name)):
        raise ValueError(f"{name} is not what its manifest says")
    return match[1], match[2], data, parts_of_manifest(manifest)


@contextmanager
def _errors(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StoreError(f"can't {what} the bundle {path}: {reason}") from error
