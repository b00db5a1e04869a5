"""The few CUDA driver calls that loading and launching take, through ctypes: no compiler and no headers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

from loopir import BuildError

MAX_DYNAMIC_SHARED = 8
INVALID_CONTEXT = 201
STATIC_SHARED_LIMIT = 48 * 1024
TRAILING_POINTERS = 2
"""Every Triton kernel takes a global and a profile scratch pointer after its own arguments."""


class DriverError(RuntimeError):
    """A CUDA driver call failed."""


@cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BuildError(f"kernels for CUDA devices need the NVIDIA driver: {error}") from error


def _check(code: int, what: str) -> None:
    if code == 0:
        return
    text = ctypes.c_char_p()
    _library().cuGetErrorString(code, ctypes.byref(text))
    raise DriverError(f"{what}: {(text.value or b'unknown').decode()} ({code})")


@cache
def primary_context(device: int) -> ctypes.c_void_p:
    """The context of a device that torch uses too; kept for the life of the process."""
    library, handle, context = _library(), ctypes.c_int(), ctypes.c_void_p()
    _check(library.cuInit(0), "cuInit")
    _check(library.cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet")
    _check(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "cuDevicePrimaryCtxRetain")
    return context


class DeviceFunction:
    """A kernel loaded into the primary context of a device."""

    def __init__(self, image: bytes, name: str, shared: int, threads: int, device: int) -> None:
        self.shared = shared
        self.threads = threads
        self._context = primary_context(device)
        self._module = ctypes.c_void_p()
        self._function = ctypes.c_void_p()
        library = _library()
        _check(library.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")
        _check(library.cuModuleLoadData(ctypes.byref(self._module), image), "cuModuleLoadData")
        found = library.cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode())
        _check(found, f"cuModuleGetFunction {name}")
        if shared > STATIC_SHARED_LIMIT:
            _check(library.cuFuncSetAttribute(self._function, MAX_DYNAMIC_SHARED, shared), "cuFuncSetAttribute")

    def launch(self, programs: int, stream: int, arguments: Sequence[int]) -> None:
        """Queues ``programs`` blocks on ``stream``; ``arguments`` are device addresses and ints, each passed as 8 bytes."""
        count = len(arguments) + TRAILING_POINTERS
        # A 4-byte parameter is read from the low half of its slot: the host is little-endian.
        values = (ctypes.c_uint64 * count)(*(value & 0xFFFFFFFFFFFFFFFF for value in arguments))
        start = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * count)(*(start + 8 * position for position in range(count)))
        grid, block = (programs, 1, 1), (self.threads, 1, 1)
        request = (self._function, *grid, *block, self.shared, ctypes.c_void_p(stream), pointers, None)
        code = _library().cuLaunchKernel(*request)
        if code == INVALID_CONTEXT:
            # A thread that has made no CUDA call yet has no context.
            _check(_library().cuCtxSetCurrent(self._context), "cuCtxSetCurrent")
            code = _library().cuLaunchKernel(*request)
        _check(code, "cuLaunchKernel")
