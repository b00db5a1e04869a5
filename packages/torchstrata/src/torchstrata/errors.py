"""Errors and warnings of ``torchstrata``."""

from __future__ import annotations

from loopir import StoreWarning as StoreWarning


class UsageError(ValueError):
    """A wrong argument of ``compile``, or a wrong option: the message says what is valid."""


class ArtifactError(ValueError):
    """A file of a saved program that can't be written or read, is damaged, or can't be trusted."""


class CompileError(RuntimeError):
    """A layer failed on a graph. ``layer`` is its package, ``where`` the user's lines."""

    def __init__(self, layer: str, where: str, cause: BaseException) -> None:
        self.layer = layer
        self.where = where
        location = f"\n  while compiling:\n{where}" if where else ""
        self.summary = f"{layer} failed: {type(cause).__name__}: {cause}{location}"
        super().__init__(
            f"{self.summary}\n"
            "  try: options={'fallback': 'eager'} to run this graph eagerly, or STRATA_DUMP=<dir> "
            "to see the stage before it"
        )


class FallbackWarning(UserWarning):
    """A graph runs eagerly because a layer of the compiler failed on it."""


class LockWarning(UserWarning):
    """Choices in a lock file no longer apply; they are made anew."""


class TraceWarning(UserWarning):
    """A trace is incomplete because describing or writing a part of it failed."""


class WrongResultError(RuntimeError):
    """A comparison (``verify=True``) found a stage whose result differs from that of the one
    before.
    """


class WrongResultWarning(UserWarning):
    """The same, found in a sample (``verify=0.01``)."""
