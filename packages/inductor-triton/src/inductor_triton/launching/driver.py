"""The few CUDA driver calls for loading and launching, through ctypes: no compiler or headers
needed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from loopir import ToolError

MAX_DYNAMIC_SHARED = 8
INVALID_CONTEXT = 201
STATIC_SHARED_LIMIT = 48 * 1024
MOST_EARLY = 8192
"""Programs of a launch that begins early: each of them waits, which takes longer than it saves if
they are many.
"""
BEGINS_EARLY = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""
TRAILING_POINTERS = 2
"""Every Triton kernel takes a global and a profile scratch pointer after its own arguments."""


class DriverError(RuntimeError):
    """A CUDA driver call failed."""


@cache
def driver_library() -> ctypes.CDLL:
    """The driver library; raises ToolError if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ToolError(f"kernels for CUDA devices need the NVIDIA driver: {error}") from error


def _check(code: int, what: str) -> None:
    if code == 0:
        return
    text = ctypes.c_char_p()
    driver_library().cuGetErrorString(code, ctypes.byref(text))
    raise DriverError(f"{what}: {(text.value or b'unknown').decode()} ({code})")


@cache
def primary_context(device: int) -> ctypes.c_void_p:
    """The context of a device that torch also uses; retained for the life of the process."""
    library, handle, context = driver_library(), ctypes.c_int(), ctypes.c_void_p()
    _check(library.cuInit(0), "cuInit")
    _check(library.cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet")
    _check(
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "cuDevicePrimaryCtxRetain"
    )
    return context


PLAN_FUNCTIONS = (
    "cuLaunchKernel", "cuGraphCreate", "cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags",
    "cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch", "cuGraphDestroy", "cuGraphExecDestroy",
    "cuStreamIsCapturing",
    "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuLaunchKernelEx",
    "cuGraphAddDependencies_v2",
)  # fmt: skip
"""In the field order of ``Driver`` in ``native/plan.c``; drivers before CUDA 12.3 lack the last."""


@cache
def functions_table() -> bytes:
    """The addresses of PLAN_FUNCTIONS, 8 bytes each; 0 for those that the driver lacks."""
    library = driver_library()
    found = [getattr(library, name, ctypes.c_void_p()) for name in PLAN_FUNCTIONS]
    return b"".join(bytes(ctypes.cast(function, ctypes.c_void_p)) for function in found)


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Settings(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )  # fmt: skip


_EARLY = _Attribute(BEGINS_EARLY, 0, (1,))


class DeviceFunction:
    """A kernel loaded into the primary context of a device. ``early``: it waits for the launches
    ahead of it and may begin before they have ended.
    """

    def __init__(
        self, image: bytes, name: str, shared: int, threads: int, device: int, early: bool = False
    ) -> None:
        self.early = early
        self.shared = shared
        self.threads = threads
        self._context = primary_context(device)
        self._module = ctypes.c_void_p()
        self._function = ctypes.c_void_p()
        self._slots = threading.local()
        library = driver_library()
        _check(library.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")
        _check(library.cuModuleLoadData(ctypes.byref(self._module), image), "cuModuleLoadData")
        found = library.cuModuleGetFunction(
            ctypes.byref(self._function), self._module, name.encode()
        )
        _check(found, f"cuModuleGetFunction {name}")
        if shared > STATIC_SHARED_LIMIT:
            _check(
                library.cuFuncSetAttribute(self._function, MAX_DYNAMIC_SHARED, shared),
                "cuFuncSetAttribute",
            )

    @property
    def handle(self) -> int:
        """The driver's handle."""
        return self._function.value or 0

    def begins_early(self, programs: int) -> bool:
        """Whether a launch of so many programs begins before the one ahead of it has ended."""
        return self.early and programs <= MOST_EARLY

    def launch(self, programs: int, stream: int, arguments: Sequence[int]) -> None:
        """Queues ``programs`` blocks on ``stream``; ``arguments`` are device addresses and ints,
        each passed as 8 bytes.
        """
        values, pointers = self._argument_slots(len(arguments))
        # The driver copies the arguments before it returns, so this thread's next launch may
        # overwrite them.
        values[: len(arguments)] = arguments
        grid, block = (programs, 1, 1), (self.threads, 1, 1)
        request: tuple[Any, ...]
        if self.begins_early(programs):
            early = ctypes.pointer(_EARLY)
            settings = _Settings(grid, block, self.shared, _handle(stream), early, 1)
            launch = driver_library().cuLaunchKernelEx
            request = (ctypes.byref(settings), self._function, pointers, None)
        else:
            launch = driver_library().cuLaunchKernel
            request = (self._function, *grid, *block, self.shared, _handle(stream), pointers, None)
        code = launch(*request)
        if code == INVALID_CONTEXT:
            # A thread that has made no CUDA call yet has no context.
            _check(driver_library().cuCtxSetCurrent(self._context), "cuCtxSetCurrent")
            code = launch(*request)
        if code:
            _check(code, "launching a kernel")

    def _argument_slots(self, count: int) -> tuple[Any, Any]:
        """This thread's 8-byte argument slots, including the two extra ones of every Triton kernel,
        and the pointers to them. A 4-byte parameter is read from the low half of its slot: the host
        is little-endian.
        """
        slots = getattr(self._slots, "pair", None)
        if slots is None:
            count += TRAILING_POINTERS
            values = (ctypes.c_uint64 * count)()
            start = ctypes.addressof(values)
            slots = self._slots.pair = (
                values,
                (ctypes.c_void_p * count)(*(start + 8 * place for place in range(count))),
            )
        return slots


@lru_cache(64)
def _handle(stream: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(stream)
