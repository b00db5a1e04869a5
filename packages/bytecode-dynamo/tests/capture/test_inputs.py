"""Inputs of graphs that are loaded in C: their order, containers on the way, what has no native
path, changes while it runs.
"""

from __future__ import annotations

import gc
import threading
import weakref

import bytecode_dynamo as bd
import pytest
import torch
from bytecode_dynamo import _hook
from bytecode_dynamo.capture import graph_code as module
from torch import nn

MODEL = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
TABLE = {"scale": torch.full((4,), 2.0)}


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})
        self.register_buffer("shift", torch.ones(4))
        self.held = [torch.full((4,), 3.0), (torch.full((4,), 5.0),)]

    @property
    def computed(self) -> torch.Tensor:
        return self.held[0]

    def forward(self, x: torch.Tensor, *more: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        x = x + self.shift + self.held[1][0] + self.computed + sum(more) + named["last"]
        return self.heads["b"](x) - self.heads["a"](x)


@pytest.fixture
def made(monkeypatch):
    """The loaders that captures make: what is passed, and the function."""
    found = []

    def recorded(*arguments):
        found.append(module.input_loader(*arguments))
        return found[-1]

    monkeypatch.setattr("bytecode_dynamo.capture.frame_capture.input_loader", recorded)
    return found


def test_tower(made):
    tower = Tower()
    captured = bd.optimize("eager")(tower)
    arguments = torch.randn(3, 4), torch.randn(4), torch.randn(4)
    for _ in range(3):
        named = {"last": torch.randn(4)}
        torch.testing.assert_close(captured(*arguments, **named), tower(*arguments, **named))
    assert made[0] is not None and len(made[0].roots) < 6
    with torch.no_grad():
        tower.layers[2].weight.mul_(2)
        tower.heads["a"].bias = nn.Parameter(torch.randn(2))
    tower.layers[1] = nn.Linear(4, 4)
    torch.testing.assert_close(captured(*arguments, **named), tower(*arguments, **named))


def test_global_module_and_closure(made):
    inner = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))

    @bd.optimize("eager")
    def f(x):
        return inner(MODEL(x)) * TABLE["scale"]

    x = torch.randn(2, 4)
    torch.testing.assert_close(f(x), inner(MODEL(x)) * TABLE["scale"])
    assert len(made[0].roots) == 4


def test_sizes_are_passed_themselves(made):
    tower = MODEL
    captured = bd.optimize("eager", dynamic=True)(lambda x: tower(x) * x.shape[0])
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(captured(x), tower(x) * rows)
    assert made[0] is not None


def test_few_inputs_are_loaded_by_instructions(made):
    layer = nn.Linear(4, 4)
    x = torch.randn(2, 4)
    torch.testing.assert_close(bd.optimize("eager")(layer)(x), layer(x))
    assert made == [None]


def test_after_a_break(made):
    tower = MODEL

    @bd.optimize("eager")
    def f(x):
        y = tower(x)
        bd.graph_break()
        return tower(y) + y

    x = torch.randn(2, 4)
    torch.testing.assert_close(f(x), tower(tower(x)) + tower(x))
    assert len(made) == 2


def test_a_changed_tree_is_an_error_not_a_crash(made):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    bd.optimize("eager")(model)(torch.randn(2, 4))
    arguments, load = made[0].roots, made[0].loader.load
    del model[1]
    with pytest.raises(RuntimeError, match="changed"):
        load(*(model if "self" in source.name else None for source in arguments))
    with pytest.raises(RuntimeError, match="changed"):
        load()


class Thing:
    pass


def called(box):
    pass


OPS = _hook.GUARD_OPS
ARGUMENT = (OPS["ARGUMENT"], 0, -1, 0)
FIRST = (OPS["ITEM"], 1, 0, list, 0)


def pair(python=None):
    """A loader that gives its argument, and a guard that keeps the first item of that for it: it
    shows who was asked.
    """
    loader = _hook.GuardProgram((ARGUMENT,), 1, None, (0,))
    return loader, _hook.GuardProgram((ARGUMENT, FIRST), 2, python, (1,), loader, (0,))


def test_a_check_hands_over_once_for_the_same_arguments():
    loader, guard = pair()
    box, other = [Thing()], [Thing()]
    assert guard.check(called, (box,))
    assert loader.load(box) == (box[0],)
    assert loader.load(box) == (box,)
    assert guard.check(called, (box,))
    assert loader.load(other) == (other,)
    assert pair()[0].load(box) == (box,)


def test_nothing_is_handed_over_after_another_check_or_with_python_guards():
    loader, guard = pair()
    box = [Thing()]
    assert guard.check(called, (box,)) and not guard.check(called, ([],))
    assert loader.load(box) == (box,)
    loader, guard = pair(lambda function, box: True)
    assert guard.check(called, (box,))
    assert loader.load(box) == (box,)


def test_what_is_handed_over_stays_with_the_thread_and_is_let_go():
    loader, guard = pair()
    box = [Thing()]
    found = []
    assert guard.check(called, (box,))
    thread = threading.Thread(target=lambda: found.append(loader.load(box)))
    thread.start()
    thread.join()
    assert found == [(box,)]
    held = weakref.ref(box[0])
    box.clear()
    assert held() is not None
    _hook.set_region(None)
    assert held() is None


def test_changes_between_guards_and_loading_are_not_seen():
    """A collection that runs between them may change the tree."""
    loader, guard = pair()
    box = [Thing()]
    first = box[0]
    assert guard.check(called, (box,))
    box[0] = Thing()
    assert loader.load(box) == (first,)


def test_parameters_that_are_replaced_are_freed():
    tower = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    captured = bd.optimize("eager")(tower)
    x = torch.randn(2, 4)
    for _ in range(3):
        before = weakref.ref(tower[1].weight)
        captured(x)
        tower[1].weight = nn.Parameter(torch.randn(4, 4))
        gc.collect()
        assert before() is None
        torch.testing.assert_close(captured(x), tower(x))


def test_recursion_and_shared_code_load_their_own():
    towers = [nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))) for _ in range(2)]

    @bd.optimize("eager")
    def f(tower, x):
        return tower(x)

    x = torch.randn(2, 4)
    for _ in range(3):
        for tower in towers:
            torch.testing.assert_close(f(tower, x), tower(x))
