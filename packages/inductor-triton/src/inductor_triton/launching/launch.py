"""Launches built kernels on a CUDA device.

The call path is short on purpose: pick the variant, fetch its function, queue it on the current
stream. A C launch plan or a CUDA graph replaces :meth:`Launcher.__call__` by
:meth:`Launcher.prepare`, which returns the launch instead of running it.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from loopir import ArtifactStore, BuildError, KernelSource

from inductor_triton.spec import launch_spec

from .compile import ALIGNMENT, Binary, Variant, compile_all, example_variant, load_or_compile
from .driver import DeviceFunction
from .grid import fits_int32, program_counter

WARP = 32
OLDEST_CAPABILITY = 80
Loader = Callable[[Binary, int], DeviceFunction]
_loaded: dict[tuple[bytes, str, int], DeviceFunction] = {}
"""What is loaded stays, as a launch may be queued or recorded when its last owner goes; the same
code is not loaded again.
"""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: the function, the number of programs, and the arguments (addresses, then
    ints).
    """

    function: DeviceFunction
    programs: int
    arguments: tuple[int, ...]


def load_binary(binary: Binary, device: int) -> DeviceFunction:
    """Loads ``binary`` into the context of ``device``. Raises BuildError if the device cannot run
    it.
    """
    limit = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    if binary.shared > limit:
        raise BuildError(
            f"{binary.name} needs {binary.shared} bytes of shared memory, of which a block has "
            f"{limit}"
        )
    if binary.scratch:
        raise BuildError(
            f"{binary.name} needs {binary.scratch} bytes of global scratch memory, which launches "
            f"don't provide"
        )
    key = (hashlib.sha256(binary.image).digest(), binary.name, device)
    if key not in _loaded:
        threads = binary.num_warps * WARP
        _loaded[key] = DeviceFunction(
            binary.image, binary.name, binary.shared, threads, device, binary.early
        )
    return _loaded[key]


class UnsupportedDeviceError(BuildError):
    """The device is older than the oldest one that kernels are generated for."""


@cache
def capability_of(device: int) -> int:
    """The compute capability of a device, as ``90`` for 9.0. Raises UnsupportedDeviceError below
    OLDEST_CAPABILITY.
    """
    major, minor = torch.cuda.get_device_capability(device)
    if 10 * major + minor < OLDEST_CAPABILITY:
        raise UnsupportedDeviceError(
            f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}; kernels "
            f"need "
            f"{OLDEST_CAPABILITY / 10} or newer: move the inputs to such a device or to the CPU, "
            f"or run without compiling"
        )
    return 10 * major + minor


class ErrorFlag:
    """A word of pinned host memory that kernels set when an index is out of range.

    Reading it costs nothing, but a kernel sets it when it runs: unless the launcher waits, the
    error surfaces at a later launch.
    """

    def __init__(self) -> None:
        self._word = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=True)
        self.address = self._word.data_ptr()
        self._view = ctypes.c_int32.from_address(self.address)

    def check(self, name: str) -> None:
        """Raises IndexError, once, when a kernel has set the flag."""
        if self._view.value:
            self._view.value = 0
            raise IndexError(f"index out of range in {name} or a kernel launched before it")


@cache
def error_flag() -> ErrorFlag:
    """The flag of this process."""
    return ErrorFlag()


class Launcher:
    """A built kernel: called with its tensors, then its sizes (contract G)."""

    def __init__(
        self,
        source: KernelSource,
        store: ArtifactStore,
        flag: ErrorFlag | None = None,
        loader: Loader = load_binary,
        synchronous: bool = False,
    ) -> None:
        self.source = source
        self.spec = launch_spec(source)
        self.store = store
        self._flag = flag
        self._synchronous = synchronous
        self._loader = loader
        self._functions: dict[tuple[int, Variant], DeviceFunction] = {}
        self._tensors = len(self.spec.signature)
        self._programs = program_counter(self.spec)
        self._static_programs = None if self.spec.sizes else self._programs(())
        self._wide = self.spec.index == "int64"
        self._name = source.kernel.name
        self.trailing = self.spec.numbers if flag is None else (*self.spec.numbers, flag.address)
        self._known = (
            *([False] * len(self.spec.numbers)),
            *([] if flag is None else [flag.address % ALIGNMENT == 0]),
        )
        self.reports_errors = flag is not None

    def add(self, device: int, variant: Variant, binary: Binary) -> None:
        """Adds the code of a variant that was compiled ahead of time."""
        self._functions[device, variant] = self._loader(binary, device)

    def choose(
        self, divisible: Sequence[bool], sizes: Sequence[int], device: int
    ) -> tuple[DeviceFunction, int]:
        """The function for arguments whose divisibility by 16 is ``divisible``, compiled if need
        be, and the number of programs.
        """
        programs, variant = self.programs(sizes), self.variant(divisible, sizes)
        if (device, variant) not in self._functions and (programs or not self._functions):
            self.add(
                device,
                variant,
                load_or_compile(self.source, variant, capability_of(device), self.store),
            )
        function = self._functions.get((device, variant)) or next(iter(self._functions.values()))
        return function, programs

    def programs(self, sizes: Sequence[int]) -> int:
        """The number of programs of a launch."""
        return self._static_programs if self._static_programs is not None else self._programs(sizes)

    def variant(self, divisible: Sequence[bool], sizes: Sequence[int]) -> Variant:
        """The variant for arguments whose divisibility by 16 is ``divisible``."""
        wide = self._wide or (self.spec.index == "dynamic" and not fits_int32(self.spec, sizes))
        return Variant(
            wide, (*divisible, *(value % ALIGNMENT == 0 for value in sizes), *self._known)
        )

    def lacks(self, divisible: Sequence[bool], sizes: Sequence[int], device: int) -> bool:
        """Whether a launch has to compile a variant first."""
        variant = self.variant(divisible, sizes)
        return (device, variant) not in self._functions and self.programs(sizes) > 0

    def prepare(self, arguments: Sequence[object], device: int) -> Launch | None:
        """The launch of a call with ``arguments`` on ``device``; None if there are no points."""
        addresses = [tensor.data_ptr() for tensor in arguments[: self._tensors]]  # type: ignore[attr-defined]
        sizes: Sequence[int] = arguments[self._tensors :]  # type: ignore[assignment]
        if self.programs(sizes) == 0:
            return None
        function, programs = self.choose(
            [address % ALIGNMENT == 0 for address in addresses], sizes, device
        )
        last = addresses[len(addresses) - self.spec.workspace :]
        first = addresses[: len(addresses) - self.spec.workspace]
        return Launch(function, programs, (*first, *sizes, *self.trailing, *last))

    def __call__(self, *arguments: object) -> None:
        """Launches on the current stream of the tensors' device."""
        first = arguments[0]
        assert isinstance(first, torch.Tensor)
        device = first.get_device()
        if device != torch._C._cuda_getDevice():
            with torch.cuda.device(device):
                self._launch(arguments, device)
            return
        self._launch(arguments, device)

    def _launch(self, arguments: Sequence[object], device: int) -> None:
        if self._flag is not None:
            self._flag.check(self._name)
        launch = self.prepare(arguments, device)
        if launch is None:
            return
        launch.function.launch(
            launch.programs, torch._C._cuda_getCurrentRawStream(device), launch.arguments
        )
        if self._flag is not None and self._synchronous:
            torch.cuda.current_stream(device).synchronize()
            self._flag.check(self._name)


def build_launchers(
    sources: Sequence[KernelSource],
    store: ArtifactStore,
    *,
    synchronous_errors: bool = False,
    device: int | None = None,
) -> list[Launcher]:
    """Compiles the usual variant of each source for ``device`` or the current one; other variants
    are compiled when a call needs them.
    """
    if not torch.cuda.is_available():
        raise BuildError(
            "no CUDA device is available here; to run Triton kernels without one, use "
            "TritonCodeGenerator(interpret=True), "
            "and to see their machine code, compile_ptx"
        )
    device = torch.cuda.current_device() if device is None else device
    flag = error_flag() if any(launch_spec(source).errors for source in sources) else None
    variants = list(map(example_variant, sources))
    binaries = compile_all(list(zip(sources, variants)), capability_of(device), store)
    launchers = []
    for source, variant, binary in zip(sources, variants, binaries):
        own = flag if launch_spec(source).errors else None
        launcher = Launcher(source, store, own, synchronous=synchronous_errors)
        launcher.add(device, variant, binary)
        launchers.append(launcher)
    return launchers


def compile_variants(wanted: Iterable[tuple[Launcher, Variant]], device: int) -> None:
    """Compiles variants of launchers, which share a store, in parallel."""
    missing = list(dict.fromkeys(wanted))
    requests = [(launcher.source, variant) for launcher, variant in missing]
    binaries = compile_all(requests, capability_of(device), missing[0][0].store)
    for (launcher, variant), binary in zip(missing, binaries, strict=True):
        launcher.add(device, variant, binary)
