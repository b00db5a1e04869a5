"""Content-addressed files shared by many processes: built kernels and other results worth caching.

An artifact is ``<root>/<key[:2]>/<key><suffix>``; the ``.manifest`` file beside it states in plain
text its name, size and sha256 and the parts of its key. A file is loaded only if this user owns it
and it matches its manifest, so an incomplete, foreign, changed or swapped file is a miss and not a
crash. The manifest is renamed to its final name last. When the store exceeds its limit, the least
recently used artifacts are removed.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from platformdirs import user_cache_path

from loopir.errors import BuildError, StoreError, StoreWarning

from .exclusive import exclusive
from .key_parts import difference, shown

Opened = TypeVar("Opened")

FORMAT = "3"
DEFAULT_LIMIT = 2 << 30
LEFTOVER_SECONDS = 3600.0
PUTS_PER_CHECK = 64
MANIFEST = ".manifest"
"""The suffix, after that of an artifact, of the file that describes it."""
INSTEAD = "Until then, what is built is kept for this process only."


def default_root() -> Path:
    """The directory named by ``STRATA_CACHE_DIR``, else the user's cache directory
    (``~/.cache/torchstrata`` on Linux, or where ``XDG_CACHE_HOME`` says).
    """
    configured = os.environ.get("STRATA_CACHE_DIR")
    if configured:
        return Path(configured)
    try:
        return user_cache_path("torchstrata", appauthor=False)
    except RuntimeError:  # of a platformdirs that refuses what others leave as it is
        return Path("~/.cache/torchstrata")


@cache
def temporary_root() -> Path:
    """A directory of this process that is deleted when the process ends."""
    directory, owner = tempfile.mkdtemp(prefix="strata-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not when a forked child exits
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return Path(directory)


_warned: set[Path] = set()


def _warn_once(root: Path, message: str) -> None:
    if root not in _warned:
        _warned.add(root)
        warnings.warn(message, StoreWarning, stacklevel=2)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of a store: its path, its size in bytes, and when it was used last."""

    path: Path
    size: int
    used: float

    @property
    def key(self) -> str:
        """The key it was stored under."""
        return self.path.name.partition(".")[0]

    @property
    def suffix(self) -> str:
        """The suffix it was stored under."""
        return self.path.name.removeprefix(self.key)

    @property
    def is_complete(self) -> bool:
        """Whether it is what its manifest says."""
        return _matches(self.path)


class ArtifactStore:
    """A directory of verified artifacts. ``hits`` and ``misses`` count the results of :meth:`get`,
    ``used`` has the keys and suffixes of what was found or stored; ``limit`` is in bytes.

    If the directory can't be created, isn't writable, or belongs to another user, the first use
    raises :class:`StoreError`, and so does a ``put`` that fails. With ``or_temporary``, a directory
    that lasts as long as the process is used instead, with one warning; where there is none, bytes
    are not stored.
    """

    def __init__(
        self, root: Path | str | None = None, limit: int = DEFAULT_LIMIT, or_temporary: bool = False
    ) -> None:
        self.root = Path(root) if root is not None else default_root()
        self._meant = self.root
        self.limit = limit
        self._or_temporary = or_temporary
        self._warning = ""
        self.hits = 0
        self.misses = 0
        self.used: dict[tuple[str, str], None] = {}
        self._ready = False
        self._parts: dict[str, tuple[str, ...]] = {}
        self._puts = 0

    def key(self, *parts: str | bytes, **named: str) -> str:
        """A name for the content described by ``parts``, and by those that explanations call by a
        name; different splits of the same text give different keys.
        """
        digest = hashlib.sha256(FORMAT.encode())
        for part in (*parts, *named.values()):
            data = part.encode() if isinstance(part, str) else part
            digest.update(str(len(data)).encode() + b":")
            digest.update(data)
        name = digest.hexdigest()
        texts = (f"{label.replace('_', ' ')} {shown(part)}" for label, part in named.items())
        self._parts[name] = (*map(shown, parts), *texts)
        return name

    def parts_of(self, key: str) -> tuple[str, ...] | None:
        """The parts of a key of this object, or of an artifact."""
        return self._parts.get(key) or self._recorded(key)

    def explain_miss(self, key_a: str, key_b: str) -> str:
        """Which parts of two keys differ; the keys are from this object or from the store."""
        parts = [self.parts_of(key) for key in (key_a, key_b)]
        for key, found in zip((key_a, key_b), parts, strict=True):
            if found is None:
                return (
                    f"nothing is known of {key}: it was not made by this store, and no artifact "
                    f"has it"
                )
        a, b = (found or () for found in parts)
        lines = [
            f"part {i}: {difference(x, y)}"
            for i, (x, y) in enumerate(zip(a, b, strict=False))
            if x != y
        ]
        if len(a) != len(b):
            lines.append(f"{len(a)} parts became {len(b)}")
        return "\n".join(lines) or "the keys are the same"

    def _recorded(self, key: str) -> tuple[str, ...] | None:
        for path in sorted((self.root / key[:2]).glob(f"{key}*.manifest")):
            return parts_of_manifest(path.read_text(errors="replace"))
        return None

    def get(self, key: str, suffix: str) -> Path | None:
        """The artifact's path if it exists, complete and unchanged; else None."""
        for root in self._roots():
            path = _place(root, key, suffix)
            if _matches(path) and _is_touched(path):
                self.hits += 1
                self.used[key, suffix] = None
                return path
        self.misses += 1
        return None

    def use_again(self, key: str, suffix: str) -> bool:
        """Counts a hit of an artifact that the process has open; False if it is gone since."""
        found = any(_place(root, key, suffix).exists() for root in self._roots())
        if found:
            self.hits += 1
            self.used[key, suffix] = None
        return found

    def read(self, key: str, suffix: str) -> tuple[bytes, tuple[str, ...]]:
        """The bytes of an artifact and the parts of its key. Raises StoreError if it is gone."""
        path = self.get(key, suffix)
        if path is None:
            raise StoreError(f"the artifact {key}{suffix} is no longer in {self.root}")
        return path.read_bytes(), parts_of_manifest(_manifest(path).read_text())

    def put(
        self,
        key: str,
        suffix: str,
        data: bytes | Callable[[Path], None],
        parts: Sequence[str] = (),
    ) -> Path:
        """Stores ``data``, or what a producer writes to the path passed to it; returns the final
        path. ``parts``: those of a key that another store made.
        """
        if parts:
            self._parts[key] = tuple(parts)
        self.used[key, suffix] = None
        root = self._roots()[0]
        if self._warning:
            _warn_once(self._meant, self._warning)
        try:
            path = self._write(root, key, suffix, data)
        except StoreError as error:
            if not self._or_temporary:
                raise
            _warn_once(self._meant, f"{error.summary} {INSTEAD}")
            path = self._write_temporary(root, key, suffix, data)
        if self._puts % PUTS_PER_CHECK == 0:
            self.evict()
        self._puts += 1
        return path

    def _write_temporary(
        self, failed: Path, key: str, suffix: str, data: bytes | Callable[[Path], None]
    ) -> Path:
        """Stores in the temporary directory what the store can't take; bytes are dropped where that
        fails, too.
        """
        try:
            return self._write(temporary_root(), key, suffix, data)
        except (OSError, StoreError) as error:
            if not callable(data):
                return _place(failed, key, suffix)
            if isinstance(error, OSError):
                raise self._unusable(error) from error
            raise

    def _write(
        self, root: Path, key: str, suffix: str, data: bytes | Callable[[Path], None]
    ) -> Path:
        path = _place(root, key, suffix)
        try:
            self._make_private(path.parent)
            handle, name = tempfile.mkstemp(prefix=f".{key[:12]}-", suffix=suffix, dir=path.parent)
            os.close(handle)
        except OSError as error:
            raise self._unusable(error) from error
        temporary = Path(name)
        try:
            if callable(data):
                self._produce(data, temporary)
            else:
                temporary.write_bytes(data)
            self._publish(temporary, path, key)
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        return path

    def _produce(self, make: Callable[[Path], None], target: Path) -> None:
        """Calls a producer. A compiler's message about a full disk is an error of the store."""
        try:
            make(target)
        except BuildError as error:
            full = os.strerror(errno.ENOSPC)
            if full not in error.output:
                raise
            raise OSError(errno.ENOSPC, full) from error

    def _publish(self, temporary: Path, path: Path, key: str) -> None:
        """Renames a complete file, and then its manifest."""
        parts = enumerate(self._parts.get(key, ()))
        manifest = describe_content(temporary.read_bytes(), path.name) + "".join(
            f"part {i}: {part}\n" for i, part in parts
        )
        for place in filter(_is_directory, (path, _manifest(path))):
            shutil.rmtree(place)
        os.replace(temporary, path)
        note = temporary.with_name(temporary.name + ".manifest")
        try:
            note.write_text(manifest)
            os.replace(note, _manifest(path))
        finally:
            note.unlink(missing_ok=True)

    def open(self, key: str, suffix: str, open_: Callable[[Path], Opened]) -> Opened | None:
        """Opens an artifact with ``open_``; None if there is none, or none that can be opened."""
        path = self.get(key, suffix)
        if path is not None:
            with suppress(OSError, ImportError):
                return _opened(path, open_)
        return None

    def load(
        self, key: str, suffix: str, make: Callable[[Path], None], open_: Callable[[Path], Opened]
    ) -> Opened:
        """Opens an artifact with ``open_``. ``make`` writes it if there is none, or none that can
        be opened.

        Raises BuildError if the new artifact can't be opened either; it is then not kept.
        """
        found = self.open(key, suffix, open_)
        if found is not None:
            return found
        with self.hold(key) as has_waited:
            found = self.open(key, suffix, open_) if has_waited else None
            return self._make(key, suffix, make, open_) if found is None else found

    def _make(
        self, key: str, suffix: str, make: Callable[[Path], None], open_: Callable[[Path], Opened]
    ) -> Opened:
        opened: list[Opened] = []

        def write(target: Path) -> None:
            make(target)
            try:
                opened.append(_opened(target, open_))
            except (OSError, ImportError) as error:
                raise BuildError(
                    f"the compiler reported success, but what it wrote can't be loaded: {error}"
                ) from error

        self.put(key, suffix, write)
        return opened[-1]

    def hold(self, key: str) -> AbstractContextManager[bool]:
        """Within, other processes that hold the same key wait for this one; see ``exclusive``."""
        directory = self._roots()[0] / key[:2]
        with suppress(OSError):
            self._make_private(directory)
        return exclusive(directory / f".{key}.lock")

    def evict(self) -> int:
        """If the store exceeds its limit, removes the least recently used artifacts until it uses
        at most four fifths of it. Also removes files left behind by dead processes. Returns how
        many artifacts were removed.
        """
        for path in self.root.glob("??/.*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
                    path.unlink()
        found = self.artifacts()
        total = sum(artifact.size for artifact in found)
        removed = 0
        for artifact in found if total > self.limit else ():
            if total <= self.limit * 4 // 5:
                break
            with suppress(OSError):
                _manifest(artifact.path).unlink(missing_ok=True)
                artifact.path.unlink()
                total -= artifact.size
                removed += 1
        return removed

    def artifacts(self) -> list[Artifact]:
        """All artifacts, the least recently used first."""
        found = []
        for path in self.root.glob("??/[!.]*"):
            if path.suffix != MANIFEST:
                with suppress(OSError):
                    status = path.stat()
                    found.append(Artifact(path, status.st_size, status.st_mtime))
        return sorted(found, key=lambda artifact: (artifact.used, artifact.path))

    def keys(self, suffix: str) -> list[str]:
        """The keys of all artifacts with a suffix."""
        return sorted(path.name.removesuffix(suffix) for path in self.root.glob(f"??/*{suffix}"))

    def _roots(self) -> list[Path]:
        """The directory to write to, and those to read from."""
        if not self._ready:
            self._prepare()
        shared = [temporary_root()] if temporary_root.cache_info().currsize else []
        return list(dict.fromkeys([self.root, *(shared if self._or_temporary else [])]))

    def _prepare(self) -> None:
        try:
            self.check()
        except StoreError as error:
            if not self._or_temporary:
                raise
            self._warning = f"{error.summary} {INSTEAD}"
            with suppress(OSError, StoreError):  # put reports it where it matters
                self.root = temporary_root()
                self.check()
        self._ready = True

    def check(self) -> None:
        """Creates the directory if it doesn't exist. Raises :class:`StoreError` if it can't be
        used.
        """
        try:
            if self.root.parts[:1] == ("~",):
                raise FileNotFoundError(errno.ENOENT, "this user has no home directory")
            self._make_private(self.root)
        except OSError as error:
            raise self._unusable(error) from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise self._unusable(PermissionError(13, "not writable"))

    def _make_private(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
        if hasattr(os, "getuid") and status.st_uid != os.getuid():
            raise PermissionError(
                13, f"belongs to user {status.st_uid}, not to {os.getuid()}", str(directory)
            )
        if stat.S_IMODE(status.st_mode) & 0o022:
            raise PermissionError(
                13, "is writable by others, who could plant code in it", str(directory)
            )

    def _unusable(self, error: OSError) -> StoreError:
        reason = error.strerror or str(error)
        remedy = (
            "Free some space, or set STRATA_CACHE_DIR to a directory on another disk."
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else "Set STRATA_CACHE_DIR to a directory that you own and only you can write to, or "
            "fix its permissions (chmod 700)."
        )
        where = f" ({error.filename})" if error.filename else ""
        return StoreError(f"can't use the artifact store {self._meant}: {reason}{where}. {remedy}")


def _opened(path: Path, open_: Callable[[Path], Opened]) -> Opened:
    try:
        return open_(path)
    except (OSError, ImportError):
        # the store may be on a file system whose files can't be executed
        with tempfile.TemporaryDirectory(prefix="strata-") as directory:
            return open_(Path(shutil.copy(path, directory)))


def _place(root: Path, key: str, suffix: str) -> Path:
    return root / key[:2] / f"{key}{suffix}"


def _is_touched(path: Path) -> bool:
    """Notes that an artifact was used; False if another process has just evicted it."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError:  # a file system that is mounted read-only
        return True
    return True


def _matches(path: Path) -> bool:
    """Whether this user owns the artifact and its manifest, and whether these match."""
    try:
        for file in (path, _manifest(path)):
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode) or (
                hasattr(os, "getuid") and status.st_uid != os.getuid()
            ):
                return False
        return (
            _manifest(path).read_text().startswith(describe_content(path.read_bytes(), path.name))
        )
    except (OSError, UnicodeDecodeError):
        return False


def _manifest(path: Path) -> Path:
    return path.with_name(path.name + MANIFEST)


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def describe_content(data: bytes, name: str) -> str:
    """The first lines of the manifest of an artifact."""
    return (
        f"format: {FORMAT}\nname: {name}\nsize: {len(data)}\nsha256: "
        f"{hashlib.sha256(data).hexdigest()}\n"
    )


def parts_of_manifest(manifest: str) -> tuple[str, ...]:
    """The parts of an artifact's key, as its manifest shows them."""
    lines = manifest.splitlines()
    return tuple(line.partition(": ")[2] for line in lines if line.startswith("part "))
