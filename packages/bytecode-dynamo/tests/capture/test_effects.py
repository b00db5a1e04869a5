"""Mutations of objects from outside are replayed after the graph, each once."""

from __future__ import annotations

import collections
import sys
import types

import bytecode_dynamo as bd
import pytest
import torch

TOTAL = 0


def test_list_arguments_are_mutated_in_place(check):
    def f(x, items):
        items.append(x + 1)
        items[0] = x
        items.insert(0, "first")
        return len(items)

    check(f, lambda: (torch.ones(2), [1, 2]))


def test_dict_keeps_order_and_identity():
    def f(x, d):
        d["b"] = x * 2
        del d["a"]
        d.setdefault("c", []).append(x)
        return d

    d = {"a": 1, "b": 2}
    assert bd.optimize("eager", fullgraph=True)(f)(torch.ones(2), d) is d
    assert list(d) == ["b", "c"]
    assert torch.equal(d["b"], torch.full((2,), 2.0))


def test_sets_deques_and_ordered_dicts(check):
    def f(x, s, q, o):
        s.add(3)
        s.discard(1)
        q.appendleft(x)
        q.pop()
        o.move_to_end("a")
        return x + len(s)

    check(
        f,
        lambda: (
            torch.ones(2),
            {1, 2},
            collections.deque([1, 2]),
            collections.OrderedDict(a=1, b=2),
        ),
    )


def test_attributes_of_objects(check):
    def f(x, o):
        o.count += 1
        o.last = x * o.count
        del o.gone
        return o.last

    check(f, lambda: (torch.ones(2), types.SimpleNamespace(count=1, gone=2)))


def test_aliased_containers_stay_aliased():
    def f(x, a, b):
        a.append(x)
        b.append(x + 1)
        return a is b

    shared = []
    captured = bd.optimize("eager", fullgraph=True)(f)
    assert captured(torch.ones(1), shared, shared) is True
    assert len(shared) == 2
    first, second = [], []
    assert captured(torch.ones(1), first, second) is False
    assert (len(first), len(second)) == (1, 1)


def test_global_and_closure_variables():
    count = 0

    def f(x):
        global TOTAL
        nonlocal count
        TOTAL += 1
        count += 2
        return x + TOTAL + count

    captured = bd.optimize("eager", fullgraph=True)(f)
    start = TOTAL
    for step in range(1, 4):
        assert torch.equal(captured(torch.zeros(1)), torch.tensor([float(start + step + 2 * step)]))
    assert (TOTAL - start, count) == (3, 6)


def test_class_attribute():
    class Registry:
        seen = 0

    def f(x):
        Registry.seen += 1
        return x + Registry.seen

    captured = bd.optimize("eager", fullgraph=True)(f)
    assert [captured(torch.zeros(1)).item() for _ in range(3)] == [1.0, 2.0, 3.0]
    assert Registry.seen == 3


def test_returned_closure_shares_its_cell():
    def f(x):
        n = 1

        def add():
            nonlocal n
            n += 1
            return n

        add()
        return x + n, add

    result, add = bd.optimize("eager", fullgraph=True)(f)(torch.zeros(1))
    assert result.item() == 2
    assert [add(), add()] == [3, 4]


def test_new_objects_are_built_once():
    class Node:
        def __init__(self, value):
            self.value = value
            self.parent = None

    def f(x):
        root = Node(x)
        child = Node(x + 1)
        child.parent = root
        root.child = child
        return root, [root, child]

    root, (first, second) = bd.optimize("eager", fullgraph=True)(f)(torch.ones(2))
    assert root is first
    assert second.parent is root
    assert root.child is second


def test_exception_keeps_effects_that_came_before():
    log = []

    def f(x):
        log.append(1)
        y = x + 1
        log.append(2)
        raise ValueError(f"rank {y.dim()}")

    captured = bd.optimize("eager")(f)
    for _ in range(2):
        with pytest.raises(ValueError, match="rank 1"):
            captured(torch.ones(2))
    assert log == [1, 2, 1, 2]


def test_batch_norm_buffers_are_updated():
    a, b = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    captured = bd.optimize("eager", fullgraph=True)(b.forward)
    for _ in range(3):
        x = torch.randn(4, 3)
        assert torch.equal(a(x), captured(x))
    assert all(torch.equal(p, q) for p, q in zip(a.buffers(), b.buffers(), strict=True))


def test_grad_mode_set_by_the_function_stays_set():
    def f(x):
        y = x * 2
        torch._C._set_grad_enabled(False)
        return y, x * 3

    w = torch.ones(2, requires_grad=True)
    try:
        y, z = bd.optimize("eager", fullgraph=True)(f)(w)
        assert (y.requires_grad, z.requires_grad, torch.is_grad_enabled()) == (True, False, False)
    finally:
        torch.set_grad_enabled(True)


def test_failed_capture_leaves_modes_alone():
    def f(x):
        with torch.no_grad():
            print("x")
        return x

    with pytest.raises(bd.exc.Unsupported):
        bd.optimize("eager", fullgraph=True)(f)(torch.ones(1))
    assert torch.is_grad_enabled()


def test_an_argument_in_a_cell_is_read_before_the_cell_is_written(check):
    class Holder:
        pass

    def f(x):
        holder = Holder()
        holder.v = x

        def double():
            nonlocal x
            x = x + x

        double()
        print(end="")
        return x, holder.v

    check(f, lambda: (torch.ones(2),), fullgraph=False)


def test_a_slot_is_deleted_once(check):
    class Slotted:
        __slots__ = ("p",)

    def f(x):
        held, texts = Slotted(), []
        held.p = 1
        for _ in range(2):
            try:
                del held.p
            except AttributeError as error:
                texts.append(str(error))
        return x + 1, texts

    check(f, lambda: (torch.ones(2),))


def test_entries_that_stay_are_not_written():
    """A state whose entries are looked at and stored again, as optimizers do, costs nothing after
    the graph.
    """

    def update(state):
        state["mean"] = state["mean"].mul_(2)
        state["step"] = state["step"]
        return state["mean"] + 1

    state = {"mean": torch.ones(2), "step": 3, "rest": [1]}
    compiled = bd.optimize("eager", fullgraph=True)(update)
    compiled(state)
    seen = []
    sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code.co_name))
    try:
        compiled(state)
    finally:
        sys.setprofile(None)
    assert "replace_dict" not in seen
    assert state["mean"].tolist() == [4, 4] and state["step"] == 3
