"""The host program: the compiled host function, with the facts that calls and reports read."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch._ops import OpOverload

import loopir.host

if TYPE_CHECKING:
    from loopir.backend import KernelSource
    from loopir.ir.program import Program


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What calls and reports read of a program, without its loop IR.

    Attributes:
        frees_inputs: whether donated inputs are freed early.
        writes_back: the inputs to which a call writes results back (contract B6).
        numbers: the positions of inputs that callers pass as Python floats, with their devices.
        inputs: per input the name of a buffer or of a size, and which of the two it is.
        outputs: the buffer of each output, if it is one.
        devices: the devices of all buffers.
        binds_sizes: whether results of extern calls have sizes that only the call tells.
        kernel_count: the number of kernels.
        launch_count: kernel launches per call.
        extern_ops: the names of the operators that it calls.
        run_devices: the device types whose launches are joined to runs.
    """

    frees_inputs: bool
    writes_back: frozenset[int]
    numbers: Mapping[int, torch.device]
    inputs: tuple[tuple[Literal["tensor", "size"], str] | None, ...]
    outputs: tuple[str | None, ...]
    devices: frozenset[torch.device]
    binds_sizes: bool
    kernel_count: int
    launch_count: int
    extern_ops: tuple[str, ...]
    run_devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostText:
    """The host function as text: its source, the objects that it names, and per device type the
    callables, with their names, that the code generator made.
    """

    source: str
    objects: Mapping[str, object]
    launchers: Mapping[str, Mapping[str, Callable[..., None]]]

    def load(self) -> Callable[..., list]:
        """Compiles the function."""
        scope: dict[str, Any] = {"math": math}
        scope |= {name: direct(value) for name, value in self.objects.items()}
        for made in self.launchers.values():
            scope |= made
        name = hashlib.sha256(self.source.encode()).hexdigest()[:12]
        exec(compile(self.source, f"<host program {name}>", "exec"), scope)
        return scope["call"]


def direct(value: object) -> object:
    """The function behind a generator's operator, which is called without the dispatcher; other
    objects are returned as they are.
    """
    return getattr(value, "direct", value) if isinstance(value, OpOverload) else value


class HostProgram:
    """A compiled program. Calling it with the graph's inputs returns the list of its outputs.

    ``facts`` are its counts and properties, ``text`` its host function; ``program`` and ``sources``
    are the program and the kernel sources from which it was built; those of a cached one are made
    when they are asked for. A program with donated inputs that is called with one list of the
    inputs empties the list and frees the inputs early (contract B5); ``written`` is the host
    function itself, which takes one list if it frees inputs early.
    """

    def __init__(
        self,
        facts: HostFacts,
        text: HostText,
        function: Callable[..., list],
        parts: Callable[[], tuple[Program, Sequence[KernelSource]]],
    ) -> None:
        self.facts = facts
        self.text = text
        self._parts = functools.cache(parts)
        self.function = self._own = (
            (lambda *args: function([*args])) if facts.frees_inputs else function
        )
        self.written = function

    @property
    def program(self) -> Program:
        """The program in loop IR."""
        return self._parts()[0]

    @property
    def sources(self) -> tuple[KernelSource, ...]:
        """The sources of its kernels."""
        return tuple(self._parts()[1])

    @property
    def source(self) -> str:
        """The text of the host function."""
        return self.text.source

    @property
    def takes_list(self) -> bool:
        """Whether a call with one list of the inputs frees some of them early."""
        return self.facts.frees_inputs and self.function is self._own

    @property
    def writes_back(self) -> frozenset[int]:
        """The inputs to which a call writes results back (contract B6)."""
        return self.facts.writes_back

    @property
    def planned_peak(self) -> int:
        """The peak bytes of a call with the example sizes, without inputs and constants."""
        runs = loopir.host.cut_runs(self.program, self.facts.run_devices)
        return loopir.host.peak_bytes(self.program, runs)

    @property
    def kernel_count(self) -> int:
        """The number of built kernels."""
        return self.facts.kernel_count

    @property
    def launch_count(self) -> int:
        """Kernel launches per call."""
        return self.facts.launch_count

    @property
    def extern_ops(self) -> tuple[str, ...]:
        """The names of the operators that a call calls."""
        return self.facts.extern_ops

    @property
    def extern_count(self) -> int:
        """Extern calls per call."""
        return len(self.extern_ops)

    def __call__(self, *args: Any) -> list:
        if len(args) == 1 and type(args[0]) is list and self.takes_list:
            return self.written(self._in_memory(args[0]) if self.facts.numbers else args[0])
        return self.function(*(self._in_memory(args) if self.facts.numbers else args))

    def _in_memory(self, args: Sequence[Any]) -> list[Any]:
        """The arguments, with Python floats replaced by tensors."""
        given = list(args)
        for position, device in self.facts.numbers.items():
            given[position] = torch.full((), args[position], dtype=torch.float64, device=device)
        return given
