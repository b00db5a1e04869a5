"""Error families of this package."""

from __future__ import annotations


class SymbolicError(RuntimeError):
    """Base of every error that this package raises on purpose."""


class DataDependentError(SymbolicError):
    """A decision or a size needs tensor data, which does not exist while tracing.

    Attributes:
        op: the op or expression that needs the data.
        user_line: the user's line, or an empty string.
    """

    def __init__(self, message: str, *, op: str = "", user_line: str = "") -> None:
        self.op = op
        self.user_line = user_line
        super().__init__(f"{message}\n  asked by {user_line}" if user_line else message)


class GuardOnDataDependent(DataDependentError):
    """A Python decision depends on unbacked symbols."""


class FakeTensorError(SymbolicError):
    """An op cannot run on fakes: mixed modes or devices, a real operand, unsupported layout."""


class FrozenEnvError(SymbolicError):
    """A guard was needed while the environment was frozen."""
