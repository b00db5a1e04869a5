"""Errors of this package: what failed, where, and what to try."""

from __future__ import annotations


class LoopIRError(Exception):
    """Base of every error that loopir raises on purpose. ``id`` is stable, and ``python -m
    torchstrata help ID`` explains it.
    """

    id = "LI000"

    def __str__(self) -> str:
        return f"{self.summary}\n  help: python -m torchstrata help {self.id}"

    @property
    def summary(self) -> str:
        """The message without the line that names the page."""
        return f"[{self.id}] {self.reason}"

    @property
    def reason(self) -> str:
        """The message alone."""
        return super().__str__()


class VerificationError(LoopIRError):
    """A kernel or program breaks a clause of contract C4 or C5."""

    id = "LI002"

    def __init__(self, clause: str, message: str) -> None:
        super().__init__(f"{clause}: {message}")
        self.clause = clause


class LoweringError(LoopIRError):
    """A graph node can't be lowered; names the node, its target and the user's line."""

    id = "LI003"


class BuildError(LoopIRError):
    """A code generator could not build its kernels; ``command`` and ``output`` tell what was run
    and what it said.
    """

    id = "LI004"

    def __init__(self, message: str, *, command: str = "", output: str = "") -> None:
        parts = [message]
        if command:
            parts.append(f"command: {command}")
        if output:
            parts.append(output.rstrip())
        super().__init__("\n".join(parts))
        self.command = command
        self.output = output


class ToolError(BuildError):
    """There is no compiler or driver that works: every build for the device would fail; says what
    to install.
    """


class SettingError(BuildError):
    """A variable of the environment names what this machine doesn't have: names the variable and
    what it may be.
    """


class StoreWarning(UserWarning):
    """Artifacts are kept in a temporary directory, for the directory that was meant can't be
    used.
    """


class StoreError(LoopIRError):
    """The artifact store can't be used: names the directory, the reason and what to try."""

    id = "LI005"


class ScheduleError(LoopIRError):
    """The scheduler met a state that its own rules exclude (a defect of this package)."""

    id = "LI006"


class GeneratorError(LoopIRError):
    """A code generator can't be found or made, raised, took too long, or returned something else
    than the protocol says; names it, and what it was asked.
    """

    id = "LI008"


class UnsupportedKernelError(LoopIRError):
    """A code generator says that it has no code for a kernel; carries its reason: the instruction,
    dtype or loop that it lacks.
    """

    id = "LI009"


class ExtensionError(LoopIRError):
    """A pass, or another extension by its name, can't be found or loaded, raised, or returned what
    breaks a contract; names it.
    """

    id = "LI010"


class GeneratorWarning(UserWarning):
    """A package offers a code generator that can't be loaded; others are used."""


class ExternError(LoopIRError):
    """An operator returned something else than its fake implementation said; names the operator,
    both, and the user's line.
    """

    id = "LI007"
