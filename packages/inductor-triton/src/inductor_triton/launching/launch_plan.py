"""Turns runs of launches into launch plans (contract G4): one call from Python, whatever the number
of kernels.

A :class:`Resolver` works out once what a plan launches at given sizes and alignments. The calls
themselves are C (``native/plan.c``), or Python if there is no C compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import sympy
import torch
from loopir import ArtifactStore, KernelBuffer, KernelSource, Place, Run, ceil_div

from inductor_triton.spec import by_source, parts_of, sequence_of

from .driver import DeviceFunction, functions_table, primary_context
from .extension import load_extension
from .grid import size_function
from .launch import ALIGNMENT, ErrorFlag, Launcher, compile_variants, error_flag

SCRATCH_ALIGNMENT = 256
KEPT_TABLES = 64
"""Most combinations of sizes and alignments whose tables are cached; beyond that the cache is
cleared.
"""


@dataclass(frozen=True, slots=True)
class Operation:
    """One launch: a pair (tensor, byte offset) per address and (-1, value) per number."""

    function: DeviceFunction
    programs: int
    arguments: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One launch of a run before its sizes are known."""

    launcher: Launcher
    places: tuple[Place, ...]
    sizes: tuple[sympy.Expr, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The launches of a run over ``tensors`` tensors and, after them, ``memory`` bytes for
    intermediates. ``name`` is that of its first kernel, ``device`` None for the current one.
    """

    name: str
    device: int | None
    calls: tuple[Call, ...]
    tensors: int
    sizes: tuple[str, ...]
    memory: sympy.Expr


_Launch = tuple[Launcher, list[tuple[int, int]], list[bool], tuple[int, ...]]


class Resolver:
    """Finds the launches of a run; called with one byte per tensor (whether it is aligned) and the
    sizes.
    """

    def __init__(
        self, plan: Plan, device: int, make: Callable[[tuple[Operation, ...], int], object]
    ) -> None:
        calls = plan.calls
        self.plan = plan
        self._device = device
        self._make = make
        self.siblings: Sequence[Resolver] = ()
        self._tables: dict[tuple[bytes, tuple[int, ...]], object] = {}
        exprs = [e for call in calls for e in (*(p.offset for p in call.places), *call.sizes)]
        self._evaluate = size_function((*exprs, plan.memory), plan.sizes)
        ends = [0]
        for call in calls:
            ends.append(ends[-1] + len(call.places) + len(call.sizes))
        self._spans = list(pairwise(ends))

    def __call__(self, aligned: bytes, sizes: tuple[int, ...]) -> object:
        """The table of a plan."""
        table = self._tables.get((aligned, sizes))
        if table is None:
            if len(self._tables) >= KEPT_TABLES:
                self._tables.clear()
            table = self._tables[aligned, sizes] = self._make(*self.resolve(aligned, sizes))
        return table

    def resolve(self, aligned: bytes, sizes: tuple[int, ...]) -> tuple[tuple[Operation, ...], int]:
        """The launches, with 0 programs for those that have no points, and the bytes of memory for
        intermediates.
        """
        launches, memory = self._launches(aligned, sizes)
        self._compile_missing(launches, sizes)
        operations = []
        for launcher, places, divisible, own in launches:
            function, programs = launcher.choose(divisible, own, self._device)
            numbers = ((-1, value) for value in (*own, *launcher.trailing))
            operations.append(Operation(function, programs, (*places, *numbers)))
        return tuple(operations), memory

    def _launches(self, aligned: bytes, sizes: tuple[int, ...]) -> tuple[list[_Launch], int]:
        """Launcher, places, their divisibility and sizes of each launch; the bytes of memory."""
        values = self._evaluate(*sizes)
        aligned += b"\1"
        launches: list[_Launch] = []
        for call, (start, end) in zip(self.plan.calls, self._spans):
            middle = start + len(call.places)
            offsets = zip(call.places, values[start:middle])
            places = [(place.parameter, offset) for place, offset in offsets]
            divisible = [bool(aligned[slot]) and offset % ALIGNMENT == 0 for slot, offset in places]
            launches.append((call.launcher, places, divisible, values[middle:end]))
        return launches, values[-1]

    def _compile_missing(self, launches: list[_Launch], sizes: tuple[int, ...]) -> None:
        """Compiles the variants that these launches lack, and in parallel to them those that the
        program's other plans will lack at the same sizes.
        """
        if not any(launch[0].lacks(*launch[2:], self._device) for launch in launches):
            return
        known = dict(zip(self.plan.sizes, sizes))
        together = list(launches)
        for other in self.siblings:
            if other is not self and known.keys() >= {*other.plan.sizes}:
                given = tuple(known[name] for name in other.plan.sizes)
                together += other._launches(b"\1" * other.plan.tensors, given)[0]
        wanted = [
            (launcher, launcher.variant(divisible, own))
            for launcher, _, divisible, own in together
            if launcher.lacks(divisible, own, self._device)
        ]
        compile_variants(wanted, self._device)


def link_runs(
    sources: Sequence[KernelSource],
    runs: Sequence[Run],
    store: ArtifactStore,
    build: Callable[..., list[Launcher]],
    synchronous: bool = False,
) -> list[Callable[..., None]]:
    """One callable per run. ``build`` compiles sources for a device and returns with the usual
    variant of each ready.
    """
    made: dict[int, list[list[Launcher]]] = {}
    plans = []
    for run in runs:
        device = device_index(run.device.index)
        if device not in made:
            made[device] = by_source(sources, build(parts_of(sources), device=device))
        plans.append(expand(run, sources, made[device]))
    return link_plans(plans, store, synchronous)


def device_index(given: int | None) -> int:
    """The index of a device; None stands for the current one."""
    return torch.cuda.current_device() if given is None else given


def reports_errors(launch: Any) -> bool:
    """Whether kernels of a linked run may report an index out of range."""
    return any(call.launcher.reports_errors for call in launch.resolver.plan.calls)


def link_plans(
    plans: Sequence[Plan], store: ArtifactStore, synchronous: bool = False
) -> list[Callable[..., None]]:
    """One callable per plan; its attribute ``resolver`` has the plan."""
    extension = load_extension(store)
    linked: list[Any] = [
        _link(plan, device_index(plan.device), extension, synchronous) for plan in plans
    ]
    resolvers = [call.resolver for call in linked]
    for resolver in resolvers:
        resolver.siblings = resolvers
    return linked


def _link(
    plan: Plan, device: int, extension: ModuleType | None, synchronous: bool
) -> Callable[..., None]:
    flag = error_flag() if any(call.launcher.reports_errors for call in plan.calls) else None
    name = plan.name
    if extension is None:
        resolver = Resolver(plan, device, lambda made, memory: (made, memory))
        call: Callable[..., None] = PythonPlan(name, plan.tensors, resolver, device, flag)
    else:
        make, context = extension.table, primary_context(device).value or 0
        resolver = Resolver(plan, device, lambda made, memory: make(tuple(map(_row, made)), memory))
        counts = (device, plan.tensors, len(plan.sizes))
        address = 0 if flag is None else flag.address
        call = extension.Plan(
            name, functions_table(), context, *counts, (resolver, *_runtime_functions()), address
        )
    if synchronous and flag is not None:
        call = _synchronous(call, flag, name, device)
        call.resolver = resolver  # type: ignore[attr-defined]
    return call


def _runtime_functions() -> tuple[Callable[..., Any], ...]:
    """torch's functions that return a device's current stream, allocate memory for a stream, and
    free it.
    """
    names = (
        "_cuda_getCurrentRawStream",
        "_cuda_cudaCachingAllocator_raw_alloc",
        "_cuda_cudaCachingAllocator_raw_delete",
    )
    return tuple(getattr(torch._C, name) for name in names)


def _row(operation: Operation) -> tuple[object, ...]:
    f = operation.function
    early = f.begins_early(operation.programs)
    return f.handle, operation.programs, f.threads, f.shared, early, operation.arguments


def expand(
    run: Run, sources: Sequence[KernelSource], launchers: Sequence[Sequence[Launcher]]
) -> Plan:
    """The launches of a run, with kernel sequences expanded; these share scratch memory behind the
    slab.
    """
    calls: list[Call] = []
    tensors = run.tensors - (run.slab != 0)
    start = ceil_div(run.slab, SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
    most = 0
    for call in run.calls:
        source, sequence = sources[call.source], sequence_of(sources[call.source])
        places = dict(
            zip((buffer.name for buffer in source.kernel.buffers), call.places, strict=True)
        )
        top = 0
        for buffer in sequence.scratch:
            places[buffer.name] = Place(tensors, start + top)
            top += -(-_nbytes(buffer) // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
        most = max(most, top)
        for part, launcher in zip(sequence.parts, launchers[call.source], strict=True):
            own = tuple(places[buffer.name] for buffer in part.kernel.buffers)
            calls.append(Call(launcher, own, call.sizes))
    return Plan(
        name=sources[run.calls[0].source].kernel.name,
        device=run.device.index,
        calls=tuple(calls),
        tensors=tensors,
        sizes=tuple(size.name for size in run.sizes),
        memory=start + most if most else run.slab,
    )


def _nbytes(buffer: KernelBuffer) -> int:
    return int(buffer.numel) * buffer.dtype.itemsize


def _synchronous(
    call: Callable[..., None], flag: ErrorFlag, name: str, device: int
) -> Callable[..., None]:
    def launch(*arguments: object) -> None:
        call(*arguments)
        torch.cuda.current_stream(device).synchronize()
        flag.check(name)

    return launch


class PythonPlan:
    """A launch plan for machines where the C extension can't be built: the same launches, one by
    one.
    """

    def __init__(
        self,
        name: str,
        tensors: int,
        resolve: Callable[[bytes, tuple[int, ...]], Any],
        device: int,
        flag: ErrorFlag | None,
    ) -> None:
        self._name, self._tensors, self.resolver = name, tensors, resolve
        self._device, self._flag = device, flag

    def __call__(self, *arguments: object) -> None:
        if self._flag is not None:
            self._flag.check(self._name)
        bases = [tensor.data_ptr() for tensor in arguments[: self._tensors]]  # type: ignore[attr-defined]
        aligned = bytes(base % ALIGNMENT == 0 for base in bases)
        operations, memory = self.resolver(aligned, arguments[self._tensors :])  # type: ignore[arg-type]
        slab = torch.empty(memory, dtype=torch.uint8, device=torch.device("cuda", self._device))
        bases.append(slab.data_ptr())
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        for made in operations:
            values = [value if slot < 0 else bases[slot] + value for slot, value in made.arguments]
            if made.programs:
                made.function.launch(made.programs, stream, values)


def run_calls(
    run: Run, sources: Sequence[KernelSource], calls: Sequence[Callable[..., None]]
) -> Callable[..., None]:
    """A run as calls with tensors, for kernels in the interpreter: slab memory is split into typed
    tensors.
    """
    names = [size.name for size in run.sizes]

    def launch(*arguments: object) -> None:
        given = run.tensors - (run.slab != 0)
        tensors, sizes = list(arguments[:given]), dict(zip(names, arguments[given:]))
        if run.slab != 0:
            device = next(t.device for t in tensors if isinstance(t, torch.Tensor))
            slab = torch.empty(_value(run.slab, sizes), dtype=torch.uint8, device=device)
            tensors.append(slab)
        for call in run.calls:
            kernel = sources[call.source].kernel
            views = [
                _typed(tensors[p.parameter], p, b, sizes)
                for p, b in zip(call.places, kernel.buffers, strict=True)
            ]
            calls[call.source](*views, *(_value(size, sizes) for size in call.sizes))

    return launch


def _typed(
    tensor: object, place: Place, buffer: KernelBuffer, sizes: dict[str, object]
) -> torch.Tensor:
    assert isinstance(tensor, torch.Tensor)
    if tensor.dtype == buffer.dtype and place.offset == 0:
        return tensor
    offset, count = _value(place.offset, sizes), _value(buffer.numel, sizes)
    if tensor.dtype == buffer.dtype:
        return tensor.as_strided(
            (count,), (1,), tensor.storage_offset() + offset // buffer.dtype.itemsize
        )
    return tensor.view(torch.uint8)[offset : offset + count * buffer.dtype.itemsize].view(
        buffer.dtype
    )


def _value(expr: sympy.Expr, sizes: dict[str, object]) -> int:
    return size_function((expr,), tuple(sizes))(*sizes.values())[0]
