"""Replaces small memory fills in a captured graph by kernels.

The driver launches a chain of kernels in constant time, whatever its length, but processes each
memset between them separately: fused attention has one per call, for its semaphores.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

from inductor_triton.launching.driver import DeviceFunction, driver_library

MEMSET = 2
"""The driver's node type for memory fills."""
LARGEST = 1 << 20
"""Largest fill, in bytes, that becomes a kernel; for larger ones the host's share of the time is
negligible.
"""
THREADS = 256
FILL = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry fill(.param .u64 start, .param .u64 count, .param .u32 word)
{
    .reg .pred %out;
    .reg .b32 %block, %threads, %thread, %word;
    .reg .b64 %start, %count, %index, %more;
    ld.param.u64 %start, [start];
    ld.param.u64 %count, [count];
    ld.param.u32 %word, [word];
    cvta.to.global.u64 %start, %start;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mul.wide.u32 %index, %block, %threads;
    cvt.u64.u32 %more, %thread;
    add.u64 %index, %index, %more;
    setp.ge.u64 %out, %index, %count;
    @%out bra done;
    shl.b64 %index, %index, 2;
    add.u64 %start, %start, %index;
    st.global.u32 [%start], %word;
done:
    ret;
}
\0"""
Node = ctypes.c_void_p


class _Memset(ctypes.Structure):
    _fields_ = (
        ("start", ctypes.c_uint64), ("pitch", ctypes.c_size_t), ("value", ctypes.c_uint),
        ("element", ctypes.c_uint),
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
    )  # fmt: skip

    def words(self) -> tuple[int, int] | None:
        """The number of 32-bit words to fill and their value; None unless the fill is a short
        contiguous range of words.
        """
        size = self.width * self.element * self.height
        contiguous = self.height == 1 or self.pitch == self.width * self.element
        if not contiguous or size % 4 or self.start % 4 or not 0 < size <= LARGEST:
            return None
        value = self.value & ((1 << 8 * self.element) - 1)
        return size // 4, int.from_bytes(
            value.to_bytes(self.element, "little") * (4 // self.element), "little"
        )


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p), *((name, ctypes.c_uint) for name in ("grid", "y", "z",
        "block", "by", "bz", "shared")),
        ("arguments", ctypes.c_void_p), ("extra", ctypes.c_void_p), ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )  # fmt: skip


@cache
def _fill(device: int) -> DeviceFunction:
    return DeviceFunction(FILL, "fill", 0, THREADS, device)


def fills_as_kernels(graph: int, device: int) -> int:
    """Replaces each small fill of a graph that is not instantiated yet by a kernel; returns how
    many it replaced. A fill stays as it was if the driver rejects the change.
    """
    nodes = _nodes("cuGraphGetNodes", Node(graph)) or ()
    return sum(_replace(graph, node, device) for node in nodes if _kind(node) == MEMSET)


def _replace(graph: int, node: int, device: int) -> bool:
    library, params = driver_library(), _Memset()
    if (
        library.cuGraphMemsetNodeGetParams(Node(node), ctypes.byref(params))
        or (words := params.words()) is None
    ):
        return False
    before, after = (
        _nodes(f"cuGraphNodeGet{which}", Node(node)) for which in ("Dependencies", "DependentNodes")
    )
    if before is None or after is None:
        return False
    values = ctypes.c_uint64(params.start), ctypes.c_uint64(words[0]), ctypes.c_uint32(words[1])
    arguments = (ctypes.c_void_p * 3)(*map(ctypes.addressof, values))
    shape = -(-words[0] // THREADS), 1, 1, THREADS, 1, 1, 0
    kernel = _Kernel(_fill(device).handle, *shape, ctypes.addressof(arguments), None, None, None)
    made = Node()
    count = ctypes.c_size_t(len(before))
    if library.cuGraphAddKernelNode_v2(
        ctypes.byref(made), Node(graph), _array(before), count, ctypes.byref(kernel)
    ):
        return False
    sources = _array([made.value or 0] * len(after))
    if after and library.cuGraphAddDependencies(
        Node(graph), sources, _array(after), ctypes.c_size_t(len(after))
    ):
        library.cuGraphDestroyNode(made)
        return False
    library.cuGraphDestroyNode(Node(node))
    return True


def _kind(node: int) -> int:
    found = ctypes.c_int(-1)
    driver_library().cuGraphNodeGetType(Node(node), ctypes.byref(found))
    return found.value


def _nodes(function: str, thing: Node) -> list[int] | None:
    """The nodes that a driver function returns, after a first call for their number; None if it
    fails.
    """
    ask, count = getattr(driver_library(), function), ctypes.c_size_t()
    if ask(thing, None, ctypes.byref(count)):
        return None
    found = (Node * count.value)()
    if count.value and ask(thing, found, ctypes.byref(count)):
        return None
    return [node or 0 for node in found]


def _array(nodes: Sequence[int]) -> ctypes.Array[Node]:
    return (Node * len(nodes))(*nodes)
