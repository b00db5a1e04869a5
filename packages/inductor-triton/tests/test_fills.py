"""Fills in captured graphs become kernels: with a driver in Python that keeps graphs as
dictionaries.
"""

from __future__ import annotations

import ctypes

import pytest
from inductor_triton.cuda_graphs import fills


class Function:
    handle = 77


class Driver:
    """Graph 1: nodes in a chain, each a kernel (None) or the parameters of a fill; ``refuses``:
    functions that fail.
    """

    def __init__(self, chain, refuses=()):
        self.refuses = refuses
        self.things = {10 + i: thing for i, thing in enumerate(chain)}
        self.edges = {(10 + i, 11 + i) for i in range(len(chain) - 1)}
        self.kernels = {}

    def __getattr__(self, name):
        method = getattr(type(self), f"do_{name}", None)
        if method is None:
            raise AttributeError(name)
        return lambda *args: 1 if name in self.refuses else method(self, *args) or 0

    def tell(self, nodes, array, count):
        if array is not None:
            array[:] = nodes
        count._obj.value = len(nodes)

    def do_cuGraphGetNodes(self, graph, array, count):
        self.tell(sorted(self.things), array, count)

    def do_cuGraphNodeGetDependencies(self, node, array, count):
        self.tell([a for a, b in sorted(self.edges) if b == node.value], array, count)

    def do_cuGraphNodeGetDependentNodes(self, node, array, count):
        self.tell([b for a, b in sorted(self.edges) if a == node.value], array, count)

    def do_cuGraphNodeGetType(self, node, found):
        found._obj.value = 0 if self.things[node.value] is None else fills.MEMSET

    def do_cuGraphMemsetNodeGetParams(self, node, params):
        for name, value in self.things[node.value].items():
            setattr(params._obj, name, value)

    def do_cuGraphAddKernelNode_v2(self, made, graph, before, count, kernel):
        made._obj.value = 100 + len(self.kernels)
        self.things[made._obj.value] = None
        self.edges |= {(node, made._obj.value) for node in before[: count.value]}
        arguments = (ctypes.c_void_p * 3).from_address(kernel._obj.arguments)
        values = [
            kind.from_address(a).value
            for kind, a in zip((ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32), arguments)
        ]
        self.kernels[made._obj.value] = (
            kernel._obj.function,
            kernel._obj.grid,
            kernel._obj.block,
            *values,
        )

    def do_cuGraphAddDependencies(self, graph, sources, targets, count):
        self.edges |= set(zip(sources[: count.value], targets[: count.value]))

    def do_cuGraphDestroyNode(self, node):
        del self.things[node.value]
        self.edges = {edge for edge in self.edges if node.value not in edge}


def memset(**changed):
    return {"start": 4096, "pitch": 0, "value": 0, "element": 4, "width": 3, "height": 1} | changed


@pytest.fixture
def use(monkeypatch):
    def set_up(*chain, refuses=()):
        driver = Driver(chain, refuses)
        monkeypatch.setattr(fills, "driver_library", lambda: driver)
        monkeypatch.setattr(fills, "_fill", lambda device: Function)
        return driver

    return set_up


@pytest.mark.parametrize(
    ("changed", "count", "word"),
    [
        ({}, 3, 0),
        ({"value": 0x12345678, "width": 1000}, 1000, 0x12345678),
        ({"element": 1, "value": 0x1FF, "width": 8}, 2, 0xFFFFFFFF),
        ({"element": 2, "value": 0xABCD, "width": 2}, 1, 0xABCDABCD),
        ({"element": 1, "value": 7, "width": 4, "height": 3, "pitch": 4}, 3, 0x07070707),
    ],
)
def test_a_fill_becomes_a_kernel_in_its_place(use, changed, count, word):
    driver = use(None, memset(**changed), None)
    assert fills.fills_as_kernels(1, 0) == 1
    assert driver.kernels == {
        100: (77, -(-count // fills.THREADS), fills.THREADS, 4096, count, word)
    }
    assert driver.edges == {(10, 100), (100, 12)}
    assert set(driver.things.values()) == {None}


def test_fills_in_a_row_and_at_the_ends(use):
    driver = use(memset(), memset(), None, memset())
    assert fills.fills_as_kernels(1, 0) == 3
    assert driver.edges == {(100, 101), (101, 12), (12, 102)}


@pytest.mark.parametrize(
    "changed",
    [
        {"start": 4098},
        {"element": 1, "width": 5},
        {"width": 1 << 20},
        {"height": 2, "pitch": 512},
        {"width": 0},
    ],
    ids=str,
)
def test_other_fills_stay(use, changed):
    driver = use(None, memset(**changed), None)
    before = dict(driver.things), set(driver.edges)
    assert fills.fills_as_kernels(1, 0) == 0
    assert (driver.things, driver.edges) == before


@pytest.mark.parametrize(
    "function",
    [
        *(
            "cuGraphGetNodes",
            "cuGraphNodeGetType",
            "cuGraphMemsetNodeGetParams",
            "cuGraphNodeGetDependencies",
        ),
        *("cuGraphNodeGetDependentNodes", "cuGraphAddKernelNode_v2", "cuGraphAddDependencies"),
    ],
)
def test_a_driver_that_refuses_is_left_alone(use, function):
    driver = use(None, memset(), None, refuses=(function,))
    before = dict(driver.things), set(driver.edges)
    assert fills.fills_as_kernels(1, 0) == 0
    assert (driver.things, driver.edges) == before


def test_the_kernel_is_in_a_form_that_the_assembler_takes(tmp_path):
    tools = pytest.importorskip("triton.backends.nvidia").__path__
    import pathlib
    import subprocess

    assembler = next(
        (p for root in tools for p in pathlib.Path(root).rglob("ptxas*") if p.is_file()), None
    )
    if assembler is None:
        pytest.skip("no assembler")
    (tmp_path / "fill.ptx").write_bytes(fills.FILL.rstrip(b"\0"))
    for target in ("sm_80", "sm_90"):
        command = [
            str(assembler),
            f"-arch={target}",
            str(tmp_path / "fill.ptx"),
            "-o",
            str(tmp_path / "fill.cubin"),
        ]
        subprocess.run(command, check=True, capture_output=True)
