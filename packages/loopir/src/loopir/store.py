"""Content-addressed files shared by many processes: built kernels and whatever else is worth keeping.

An artifact is ``<root>/<key[:2]>/<key><suffix>``; beside it ``.manifest`` says in plain text its size and sha256. A file is
loaded only if it matches, so a torn or foreign write is a miss and not a crash. The manifest is renamed into place last.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from loopir.errors import StoreError

FORMAT = "1"


def default_root() -> Path:
    """The directory named by ``STRATA_CACHE_DIR``, else ``~/.cache/torchstrata``."""
    configured = os.environ.get("STRATA_CACHE_DIR")
    return Path(configured) if configured else Path.home() / ".cache" / "torchstrata"


class ArtifactStore:
    """A directory of verified artifacts. ``hits`` and ``misses`` count the answers of :meth:`get`.

    Raises :class:`StoreError` on first use when the directory can't be made, isn't writable, or belongs to someone else.
    """

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()
        self.hits = 0
        self.misses = 0
        self._ready = False

    def key(self, *parts: str | bytes) -> str:
        """A name for the content described by ``parts`` (the parts' boundaries count)."""
        digest = hashlib.sha256(FORMAT.encode())
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            digest.update(str(len(data)).encode() + b":")
            digest.update(data)
        return digest.hexdigest()

    def get(self, key: str, suffix: str) -> Path | None:
        """The artifact's path when it is there, complete and unchanged."""
        path = self._path(key, suffix)
        if self._matches(path):
            self.hits += 1
            return path
        self.misses += 1
        return None

    def put(self, key: str, suffix: str, data: bytes | Callable[[Path], None]) -> Path:
        """Stores ``data``, or what a producer writes to the path it is given, and returns the final path."""
        path = self._path(key, suffix)
        try:
            self._make_private(path.parent)
            handle, name = tempfile.mkstemp(prefix=f".{key[:12]}-", suffix=suffix, dir=path.parent)
            os.close(handle)
        except OSError as error:
            raise self._unusable(error) from error
        temporary = Path(name)
        try:
            if callable(data):
                data(temporary)
            else:
                temporary.write_bytes(data)
            manifest = _describe(temporary)
            os.replace(temporary, path)
            note = temporary.with_name(temporary.name + ".manifest")
            note.write_text(manifest)
            os.replace(note, _manifest(path))
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            temporary.unlink(missing_ok=True)
        return path

    def _path(self, key: str, suffix: str) -> Path:
        if not self._ready:
            self._prepare()
        return self.root / key[:2] / f"{key}{suffix}"

    def _prepare(self) -> None:
        try:
            self._make_private(self.root)
        except OSError as error:
            raise self._unusable(error) from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise self._unusable(PermissionError(13, "not writable"))
        self._ready = True

    def _make_private(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
        if hasattr(os, "getuid") and status.st_uid != os.getuid():
            raise PermissionError(13, f"belongs to user {status.st_uid}, not to {os.getuid()}", str(directory))
        if stat.S_IMODE(status.st_mode) & 0o022:
            raise PermissionError(13, "is writable by others, who could plant code in it", str(directory))

    def _unusable(self, error: OSError) -> StoreError:
        reason = error.strerror or str(error)
        return StoreError(
            f"can't use the artifact store {self.root}: {reason}"
            f"{f' ({error.filename})' if error.filename else ''}. "
            "Set STRATA_CACHE_DIR to a directory that you own and only you can write to, or fix its permissions (chmod 700)."
        )

    @staticmethod
    def _matches(path: Path) -> bool:
        try:
            return _manifest(path).read_text() == _describe(path)
        except OSError:
            return False


def _manifest(path: Path) -> Path:
    return path.with_name(path.name + ".manifest")


def _describe(path: Path) -> str:
    data = path.read_bytes()
    return f"format: {FORMAT}\nsize: {len(data)}\nsha256: {hashlib.sha256(data).hexdigest()}\n"
