"""The file of a saved program: a zip with a manifest in JSON, texts, and compiled libraries.

What it contains is code. Its hashes say that it is complete, not who made it: libraries and
generated source are run only from a file that this user owns and nobody else may write.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loopir

from torchstrata.errors import ArtifactError

FORMAT = "torchstrata.artifact"
VERSION = 1
MANIFEST, DIGEST = "manifest.json", "manifest.sha256"
READERS = ("torchstrata", "aotgrad", "loopir", "symshapes", "inductor_cpp", "inductor_triton")
_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Archive:
    """A file that was read and found complete.

    Attributes:
        path: where it was read.
        manifest: the JSON value of the manifest.
        parts: the content of the other members by name.
    """

    path: Path
    manifest: Mapping[str, Any]
    parts: Mapping[str, bytes]

    def text(self, name: str) -> str:
        """A member that is text."""
        return self.parts[name].decode()


def sources() -> list[list[str]]:
    """The packages that read the texts of a file, each with the hash of its files."""
    versions = loopir.package_versions(*READERS)
    return json.loads(json.dumps(versions[2:]))


def write_archive(path: Path, manifest: Mapping[str, Any], parts: Mapping[str, bytes]) -> None:
    """Writes a file, which is there when it is complete: until then one of this name stays as it
    is. Raises ArtifactError.
    """
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}
    head = {"format": FORMAT, "version": VERSION, **manifest, "files": hashes}
    text = json.dumps(head, indent=1).encode()
    members = {MANIFEST: text, DIGEST: hashlib.sha256(text).hexdigest().encode(), **parts}
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as bundle:
                for member, data in members.items():
                    info = zipfile.ZipInfo(member, _TIME)
                    bundle.writestr(info, data, zipfile.ZIP_DEFLATED)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ArtifactError(f"can't write {path}: {error.strerror or error}") from error


def read_archive(path: Path, trust: bool) -> Archive:
    """Reads a file. ``trust``: its code is to be run, so it must belong to this user and be
    writable for nobody else. Raises ArtifactError.
    """
    try:
        with path.open("rb") as file:
            if trust:
                _check_owner(path, os.fstat(file.fileno()))
            data = file.read()
    except OSError as error:
        raise ArtifactError(f"can't read {path}: {error.strerror or error}") from error
    with _errors(path), zipfile.ZipFile(io.BytesIO(data)) as bundle:
        text = bundle.read(MANIFEST)
        if bundle.read(DIGEST).decode() != hashlib.sha256(text).hexdigest():
            raise ValueError("the manifest is not what its hash says")
        manifest = json.loads(text)
        if manifest["format"] != FORMAT:
            raise ValueError(f"it is a {manifest['format']!r}")
        if manifest["version"] > VERSION:
            raise ArtifactError(
                f"{path} is of version {manifest['version']}, and this torchstrata reads versions "
                f"up to {VERSION}; install a newer one, or save the program again"
            )
        parts = {name: bundle.read(name) for name in manifest["files"]}
        for name, digest in manifest["files"].items():
            if hashlib.sha256(parts[name]).hexdigest() != digest:
                raise ValueError(f"{name} is not what its hash says")
    return Archive(path, manifest, parts)


def _check_owner(path: Path, status: os.stat_result) -> None:
    if not hasattr(os, "getuid"):
        return
    remedy = "load(..., trust=False) builds it again from its texts"
    for what, found in ((path, status), (path.absolute().parent, path.absolute().parent.stat())):
        is_directory = what != path
        if found.st_uid not in (os.getuid(), *([0] if is_directory else [])):
            raise ArtifactError(
                f"{path} contains code, and {what} belongs to user {found.st_uid}, not to "
                f"{os.getuid()}; {remedy}"
            )
        is_sticky = is_directory and found.st_mode & stat.S_ISVTX
        if found.st_mode & 0o022 and not is_sticky:
            raise ArtifactError(
                f"{path} contains code, and others may write to {what}; run chmod go-w {what}, or "
                f"{remedy}"
            )


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except ArtifactError:
        raise
    except Exception as error:  # zipfile, zlib and struct each raise their own
        reason = str(error) or type(error).__name__
        raise ArtifactError(f"{path} is no complete saved program: {reason}") from error
