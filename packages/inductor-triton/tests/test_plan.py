"""Launch plans against a driver made of callbacks: what is launched, when as a graph, which nodes
are patched.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from inductor_triton.launching.driver import PLAN_FUNCTIONS
from inductor_triton.launching.extension import _find_layout, load_extension
from loopir import ArtifactStore

P, I, L = ctypes.c_void_p, ctypes.c_uint, ctypes.c_ulonglong


class Node(ctypes.Structure):
    _fields_ = [
        ("function", P),
        *((name, I) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("values", P),
    ]


class Settings(ctypes.Structure):
    _fields_ = [
        *((name, I) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", P), ("attributes", ctypes.POINTER(ctypes.c_int)), ("count", I),
    ]  # fmt: skip


class FakeDriver:
    """Keeps what it is told in ``log``; ``graph`` is the parameters of the nodes; ``fails`` makes
    one function answer 1.
    """

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.graph: dict[int, Any] = {}
        self.before: list[int] = []
        self.capturing = False
        self.context = 7
        self.fails = ""
        self.counts = (3, 3)
        kinds = {
            "cuLaunchKernel": [P, I, I, I, I, I, I, I, P, ctypes.POINTER(P), P],
            "cuGraphCreate": [ctypes.POINTER(P), I],
            "cuGraphAddKernelNode_v2": [
                ctypes.POINTER(P),
                P,
                P,
                ctypes.c_size_t,
                ctypes.POINTER(Node),
            ],
            "cuGraphInstantiateWithFlags": [ctypes.POINTER(P), P, L],
            "cuGraphExecKernelNodeSetParams_v2": [P, P, ctypes.POINTER(Node)],
            "cuGraphLaunch": [P, P],
            "cuGraphDestroy": [P],
            "cuGraphExecDestroy": [P],
            "cuStreamIsCapturing": [P, ctypes.POINTER(ctypes.c_int)],
            "cuCtxGetCurrent": [ctypes.POINTER(P)],
            "cuCtxPushCurrent_v2": [P],
            "cuCtxPopCurrent_v2": [ctypes.POINTER(P)],
            "cuGraphAddDependencies_v2": [
                P,
                ctypes.POINTER(P),
                ctypes.POINTER(P),
                ctypes.POINTER(ctypes.c_ubyte),
                ctypes.c_size_t,
            ],
            "cuLaunchKernelEx": [ctypes.POINTER(Settings), P, ctypes.POINTER(P), P],
        }
        self._callbacks = []
        for name in PLAN_FUNCTIONS:
            kind = ctypes.CFUNCTYPE(ctypes.c_int, *kinds[name])
            self._callbacks.append(kind(lambda *args, name=name: self._answer(name, args)))
        self.table = b"".join(bytes(ctypes.cast(callback, P)) for callback in self._callbacks)

    def _answer(self, name: str, args: Any) -> int:
        if name == self.fails:
            return 1
        if name == "cuLaunchKernel":
            self.log.append(("launch", args[0], args[1], args[4], self._values(args[9])))
        elif name == "cuLaunchKernelEx":
            settings = args[0][0]
            assert settings.stream == 9 and settings.count == 1
            attribute = settings.attributes[0:3:2]
            self.log.append(
                ("early", attribute, args[1], settings.gx, settings.bx, self._values(args[2]))
            )
        elif name == "cuGraphAddDependencies_v2":
            self.log.append(("edge", args[1][0], args[2][0], args[3][0:8], args[4]))
        elif name == "cuGraphAddKernelNode_v2":
            self.before.append(args[3])
            args[0][0] = 100 + len(self.graph)
            self.graph[100 + len(self.graph)] = self._node(args[4][0])
        elif name == "cuGraphExecKernelNodeSetParams_v2":
            self.log.append(("patch", args[1] - 100))
            self.graph[args[1]] = self._node(args[2][0])
        elif name == "cuGraphLaunch":
            self.log.append(("graph", args[1], *self.graph.values()))
        elif name in ("cuGraphCreate", "cuGraphInstantiateWithFlags"):
            args[0][0] = 50
        elif name == "cuStreamIsCapturing":
            args[1][0] = int(self.capturing)
        elif name == "cuCtxGetCurrent":
            args[0][0] = self.context
        elif name in ("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuGraphExecDestroy"):
            self.log.append(name)
        return 0

    def _node(self, node: Node) -> tuple[Any, ...]:
        return (
            node.function,
            node.gx,
            node.bx,
            self._values(ctypes.cast(node.values, ctypes.POINTER(P))),
        )

    def _values(self, pointers: Any) -> tuple[int, ...]:
        return tuple(ctypes.c_uint64.from_address(pointers[i]).value for i in range(self.counts[0]))


@pytest.fixture(scope="module")
def extension(tmp_path_factory):
    made = load_extension(ArtifactStore(tmp_path_factory.mktemp("store")))
    if made is None:
        pytest.skip("no C compiler")
    return made


class Setting:
    """A plan of two launches, f(t0, t1 + 64, n) and g(t1, t0, 5), over a fake driver."""

    def __init__(self, extension: Any, flag: int = 0) -> None:
        self.driver = FakeDriver()
        self.asked: list[Any] = []
        self.stream = 9
        self.programs = 4
        self.extension = extension
        self.memory = 0
        self.early = self.second_early = False
        functions = (
            self.resolve,
            lambda device: self.stream,
            self.allocate,
            self.driver.log.append,
        )
        self.plan = extension.Plan("two", self.driver.table, 7, 0, 2, 1, functions, flag)

    def resolve(self, aligned: bytes, sizes: tuple[int, ...]) -> object:
        self.asked.append((aligned, sizes))
        first = (
            1000,
            self.programs,
            128,
            0,
            self.early,
            ((0, 0), (2 if self.memory else 1, 64), (-1, sizes[0])),
        )
        return self.extension.table(
            (first, (2000, 8, 256, 0, self.second_early, ((1, 0), (0, 0), (-1, 5)))), self.memory
        )

    def allocate(self, size: int, stream: int) -> int:
        self.driver.log.append(("allocate", size, stream))
        return 4096

    def run(self, a: torch.Tensor, b: torch.Tensor, size: int) -> list[Any]:
        self.driver.log.clear()
        self.plan(a, b, size)
        return list(self.driver.log)


def launches(a: torch.Tensor, b: torch.Tensor, size: int) -> list[Any]:
    x, y = a.data_ptr(), b.data_ptr()
    return [(1000, 4, 128, (x, y + 64, size)), (2000, 8, 256, (y, x, 5))]


A, B, C = (torch.zeros(64) for _ in range(3))


def test_first_calls_launch_one_by_one(extension):
    setting = Setting(extension)
    for _ in range(2):
        assert setting.run(A, B, 3) == [("launch", *entry) for entry in launches(A, B, 3)]
    assert setting.asked == [(b"\1\1", (3,))]


def test_kernels_that_wait_themselves_begin_early(extension):
    setting = Setting(extension)
    setting.early = True
    first, second = launches(A, B, 3)
    assert setting.run(A, B, 3) == [("early", [6, 1], *first), ("launch", *second)]
    setting.run(A, B, 3)
    assert setting.run(A, B, 3) == [("graph", 9, first, second)]
    assert setting.driver.before == [0, 1]


def test_an_edge_to_a_kernel_that_waits_itself(extension):
    setting = Setting(extension)
    setting.second_early = True
    for _ in range(2):
        setting.run(A, B, 3)
    edge = ("edge", 100, 101, [1, 0, 1, 0, 0, 0, 0, 0], 1)
    assert setting.run(A, B, 3) == [edge, ("graph", 9, *launches(A, B, 3))]
    assert setting.driver.before == [0, 0]


def test_later_calls_are_a_graph_that_is_patched(extension):
    setting = Setting(extension)
    for _ in range(2):
        setting.run(A, B, 3)
    assert setting.run(A, B, 3) == [("graph", 9, *launches(A, B, 3))]
    assert setting.run(A, B, 3) == [("graph", 9, *launches(A, B, 3))]
    assert setting.run(C, B, 3) == [("patch", 0), ("patch", 1), ("graph", 9, *launches(C, B, 3))]
    assert setting.run(C, B, 4) == [("patch", 0), ("patch", 1), ("graph", 9, *launches(C, B, 4))]
    setting.stream = 11
    assert setting.run(C, B, 4) == [("graph", 11, *launches(C, B, 4))]


def test_alignment_is_part_of_the_table(extension):
    setting = Setting(extension)
    setting.run(A, B[1:], 3)
    setting.run(A, B[4:], 3)
    assert setting.asked == [(b"\1\0", (3,)), (b"\1\1", (3,))]


def test_plain_launches_while_capturing_and_where_the_driver_refuses(extension):
    setting = Setting(extension)
    for _ in range(3):
        setting.run(A, B, 3)
    setting.driver.capturing = True
    assert setting.run(A, B, 3) == [("launch", *entry) for entry in launches(A, B, 3)]
    refused = Setting(extension)
    refused.driver.fails = "cuGraphInstantiateWithFlags"
    for _ in range(4):
        assert refused.run(A, B, 3) == [("launch", *entry) for entry in launches(A, B, 3)]


def test_launches_without_a_point_are_left_out(extension):
    setting = Setting(extension)
    setting.programs = 0
    for _ in range(4):
        assert setting.run(A, B, 3) == [("launch", *launches(A, B, 3)[1])]


def test_the_context_of_the_device_is_current(extension):
    setting = Setting(extension)
    setting.driver.context = 3
    log = setting.run(A, B, 3)
    assert (log[0], log[-1]) == ("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2")


def test_memory_for_intermediates(extension):
    setting = Setting(extension)
    setting.memory = 512
    log = setting.run(A, B, 3)
    assert log[0] == ("allocate", 512, 9)
    assert log[1] == ("launch", 1000, 4, 128, (A.data_ptr(), 4096 + 64, 3))
    assert log[-1] == 4096


def test_errors(extension):
    setting = Setting(extension)
    setting.driver.fails = "cuLaunchKernel"
    with pytest.raises(RuntimeError, match="launching two: CUDA driver error 1"):
        setting.run(A, B, 3)
    with pytest.raises(TypeError, match="two takes 2 tensors and 1 sizes"):
        setting.plan(A, B)
    with pytest.raises(AttributeError, match="data_ptr"):
        setting.plan(1, 2, 3)
    word = ctypes.c_int32(1)
    flagged = Setting(extension, ctypes.addressof(word))
    with pytest.raises(IndexError, match="index out of range in two"):
        flagged.run(A, B, 3)
    assert word.value == 0
    assert flagged.run(A, B, 3)


def test_a_plan_frees_its_graph(extension):
    setting = Setting(extension)
    for _ in range(3):
        setting.run(A, B, 3)
    driver = setting.driver
    del setting.plan
    assert driver.log[-1] == "cuGraphExecDestroy"


def test_places(extension):
    found = extension.places((A, 3, B), (2, 0))
    assert extension.lie_at((B, A), (0, 1), found)
    assert not extension.lie_at((A, B), (0, 1), found)
    assert not extension.lie_at((B,), (0,), found)
    with pytest.raises(IndexError):
        extension.places((A,), (1,))
    with pytest.raises(AttributeError):
        extension.places((3,), (0,))


def test_places_follow_changes_in_place(extension):
    tensor = torch.nn.Parameter(torch.zeros(6, 2))
    for change in (lambda t: t[1:], lambda t: t.clone(), lambda t: torch.nn.Parameter(t.clone())):
        found = extension.places((tensor,), (0,))
        assert extension.lie_at((tensor.view(-1),), (0,), found)
        tensor.data = change(tensor.data)
        assert not extension.lie_at((tensor,), (0,), found)


@pytest.mark.parametrize("count", (1, 16, 17, 40))
def test_each_place_of_many_is_compared(extension, count):
    class Own(torch.Tensor):
        pass

    kinds = (lambda t: t, torch.nn.Parameter, lambda t: t.as_subclass(Own))
    values = tuple(kinds[i % 3](torch.zeros(i + 2)) for i in range(count))
    positions = tuple(reversed(range(count)))
    found = extension.places(values, positions)
    assert extension.lie_at(values, positions, found)
    for position in positions:
        others = (*values[:position], values[position][1:], *values[position + 1 :])
        assert not extension.lie_at(others, positions, found)
        with pytest.raises(AttributeError):
            extension.lie_at((*values[:position], None, *values[position + 1 :]), positions, found)
    with pytest.raises(IndexError):
        extension.lie_at(values[:-1], positions, found)
    with pytest.raises(OverflowError):
        extension.lie_at(values, (1 << 80,) * count, found)


def test_places_without_a_layout(extension):
    extension.set_layout()
    try:
        test_places(extension)
        test_places_follow_changes_in_place(extension)
        assert extension.places((A,), (0,))[:8] == A.data_ptr().to_bytes(8, "little")
    finally:
        _find_layout(extension)
