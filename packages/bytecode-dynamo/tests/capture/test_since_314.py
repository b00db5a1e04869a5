"""What the language has since CPython 3.14, as text: earlier versions can't parse it."""

from __future__ import annotations

import linecache
import sys
import textwrap

import bytecode_dynamo as bd
import pytest
import torch

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="the syntax is new in CPython 3.14"
)

PROGRAMS = {
    "template": '''
        def f(x, name):
            y = x + 1
            made = t"{name!r:>6} and {x.shape[0]}"
            return y * 2, made.strings, [(i.value, i.expression, i.conversion, i.format_spec) for i in made.interpolations]
    ''',
    "template_in_a_loop": '''
        def f(x, name):
            out = []
            for k in range(3):
                x = x * 2
                out.append(t"{k}{name}".values)
            return x, out
    ''',
    "handlers_without_parentheses": '''
        def f(x, name):
            try:
                y = x + 1
                int(name)
            except TypeError, ValueError:
                return y * 2
            return y
    ''',
    "annotations_of_names_that_do_not_exist": '''
        def f(x, name):
            def inner(a: Undefined, b: name = 3) -> "text":
                return a + b
            return inner(x), inner.__defaults__, inner.__annotate__ is not None
    ''',
    "annotations_read": '''
        def f(x, name):
            def inner(a: int, b: name = 3) -> float:
                return a + b
            return inner(x), inner.__annotations__
    ''',
    "annotations_of_a_class": '''
        def f(x, name):
            class Point:
                a: int
                b: Undefined = 4
            return x + Point.b
    ''',
    "any_and_all_over_a_generator": '''
        def f(x, name):
            sizes = x.shape
            return x + any(s > 2 for s in sizes) + all(s > 2 for s in sizes), tuple(s + 1 for s in sizes)
    ''',
    "with_around_a_break": '''
        def f(x, name):
            with torch.no_grad() as nothing, Manager(name) as manager:
                y = x * 2
                print("", end="")
                y = y + 1
            return y, torch.is_grad_enabled(), manager.log
    ''',
    "with_that_swallows": '''
        def f(x, name):
            with Manager(name) as manager:
                y = x * 2
                print("", end="")
                raise KeyError(name)
            return y, manager.log
    ''',
}  # fmt: skip


class Manager:
    def __init__(self, name):
        self.log = [name]

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append(kind and kind.__name__)
        return kind is KeyError


@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_to_eager(name, alike) -> None:
    text = textwrap.dedent(PROGRAMS[name])
    filename = f"<{name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    space = {"torch": torch, "Manager": Manager, "__name__": __name__}
    exec(compile(text, filename, "exec", dont_inherit=True), space)
    x, captured = torch.ones(3, 2, requires_grad=True), bd.optimize("eager")(space["f"])
    for _ in range(2):
        assert alike(space["f"](x, "a"), captured(x, "a"))
    assert bd.counters["graphs"] > 0
