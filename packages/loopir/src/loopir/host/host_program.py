"""The host program: a schedule and built kernels as readable Python source, and the function it
defines.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from loopir.backend import CodeGenerator, KernelSource, LinksRuns, OffersTemplates, Run
from loopir.cache.store import ArtifactStore
from loopir.errors import LoopIRError
from loopir.host.host_writer import HostWriter, op_name
from loopir.ir.kernel import Kernel
from loopir.ir.program import ExternCall, Program
from loopir.ir.template import Template

from .runs import Linked, cut_runs, peak_bytes

LONG = 20_000


def generate(program: Program, codegens: Mapping[str, CodeGenerator]) -> list[KernelSource]:
    """The source of every kernel of a program, in order, by the generator of its device type."""
    return [_generate(_codegen(codegens, kernel.device), kernel) for kernel in program.kernels]


def _generate(codegen: CodeGenerator, kernel: Kernel | Template) -> KernelSource:
    if isinstance(kernel, Template):
        assert isinstance(codegen, OffersTemplates)
        return codegen.generate_template(kernel)
    return codegen.generate(kernel)


def _codegen(codegens: Mapping[str, CodeGenerator], device: str) -> CodeGenerator:
    if device not in codegens:
        known = ", ".join(sorted(codegens)) or "none"
        raise LoopIRError(
            f"no code generator for device {device!r} (there are: {known}); pass "
            f"codegens={{{device!r}: ...}}"
        )
    return codegens[device]


class HostProgram:
    """What a program became. Calling it with the graph's inputs returns the list of its outputs.

    ``source`` is the text of the host function; ``kernel_count`` the kernels built,
    ``launch_count`` the launches per call, ``extern_count`` and ``extern_ops`` the extern calls per
    call and their names; ``program`` and ``sources`` are what it is made of. Called with one list
    of the inputs, a program with donated inputs empties the list and lets go of them early
    (contract B5); ``written`` is the host function itself, which always takes them so.
    """

    def __init__(
        self,
        program: Program,
        sources: Sequence[KernelSource],
        source: str,
        function: Callable[..., list],
        linked: Linked,
    ) -> None:
        self.program = program
        self._linked = linked
        self.sources = tuple(sources)
        self.source = source
        self._frees = bool(program.freed_inputs)
        self.function = self._own = (lambda *args: function([*args])) if self._frees else function
        self.written = function
        self.extern_ops = tuple(
            op_name(step.node.op) for step in program.steps if isinstance(step, ExternCall)
        )

    @property
    def takes_list(self) -> bool:
        """Whether a call with one list of the inputs frees some of them early."""
        return self._frees and self.function is self._own

    @property
    def writes_back(self) -> frozenset[int]:
        """The inputs that a call writes results back to (contract B6)."""
        return self.program.written_inputs

    @property
    def planned_peak(self) -> int:
        """The bytes that a call with the example sizes holds at most, beyond inputs and
        constants.
        """
        return peak_bytes(self.program, self._linked)

    @property
    def kernel_count(self) -> int:
        """Kernels built."""
        return len(self.program.kernels)

    @property
    def launch_count(self) -> int:
        """Kernel launches per call."""
        return self.program.launch_count

    @property
    def extern_count(self) -> int:
        """Extern calls per call."""
        return len(self.extern_ops)

    def __call__(self, *args: Any) -> list:
        if len(args) == 1 and type(args[0]) is list and self.takes_list:
            return self.written(self._in_memory(args[0]) if self.program.numbers else args[0])
        return self.function(*(self._in_memory(args) if self.program.numbers else args))

    def _in_memory(self, args: Sequence[Any]) -> list[Any]:
        """The arguments, floats as tensors."""
        given = list(args)
        for position, entry in enumerate(self.program.inputs):
            if isinstance(entry, str) and entry in self.program.numbers:
                device = self.program.buffers[entry].device
                given[position] = torch.full((), args[position], dtype=torch.float64, device=device)
        return given


def build_host(
    program: Program,
    sources: Sequence[KernelSource],
    codegens: Mapping[str, CodeGenerator],
    store: ArtifactStore,
) -> HostProgram:
    """Builds the kernels (all of one device together) and the host function around them. Raises
    BuildError.

    ``sources`` are those of ``generate``, ``codegens`` the generators by device type; built
    libraries are kept in ``store``.
    """
    devices = dict.fromkeys(kernel.device for kernel in program.kernels)
    linked = cut_runs(
        program, [device for device in devices if isinstance(_codegen(codegens, device), LinksRuns)]
    )
    launchers: dict[str, Callable[..., None]] = {}
    for device in devices:
        numbers = [i for i, kernel in enumerate(program.kernels) if kernel.device == device]
        codegen, own = _codegen(codegens, device), [sources[i] for i in numbers]
        if isinstance(codegen, LinksRuns):
            runs = {f"run{i}": r for i, r in enumerate(linked.runs) if r.calls[0].source in numbers}
            positions = {number: i for i, number in enumerate(numbers)}
            local = [_renumbered(run, positions) for run in runs.values()]
            names, built = list(runs), codegen.link(own, local, store)
        else:
            names, built = [program.kernels[i].name for i in numbers], codegen.build(own, store)
        launchers |= dict(zip(names, built, strict=True))
    makes_slabs = {d for d in devices if getattr(_codegen(codegens, d), "makes_slabs", False)}
    writer = HostWriter(program, linked, makes_slabs)
    source = writer.write()
    scope = {**writer.globals, **launchers}
    exec(_code(source, store), scope)
    return HostProgram(program, sources, source, scope["call"], linked)


def _code(source: str, store: ArtifactStore) -> CodeType:
    """The code of a host function's text; that of a long one is kept, since compiling it takes tens
    of milliseconds.
    """
    key = store.key("loopir.host.host_program", sys.version, source)
    path = store.get(key, ".code") if len(source) > LONG else None
    if path is not None:
        return marshal.loads(path.read_bytes())
    code = compile(source, f"<host program {key[:12]}>", "exec")
    if len(source) > LONG:
        store.put(key, ".code", marshal.dumps(code))
    return code


def _renumbered(run: Run, numbers: Mapping[int, int]) -> Run:
    return replace(
        run, calls=tuple(replace(call, source=numbers[call.source]) for call in run.calls)
    )
