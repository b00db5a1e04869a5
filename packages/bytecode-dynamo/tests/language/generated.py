# ruff: noqa: E501
"""Random programs: statements drawn from the constructs of the language, over a few variables of known kinds.

Variables: ``x`` and ``y`` tensors of two rows and three columns, ``n`` and ``m`` ints, ``items`` a list, ``d`` a dict, ``s`` a
str, ``box`` an object with attributes; ``log`` is an argument that records the order of effects.
"""

from __future__ import annotations

import textwrap

from hypothesis import strategies as st

PRELUDE = """
import contextlib, functools, itertools
import torch

COUNT = 0
SHARED = [1]


class Box:
    kind = "box"

    def __init__(self, v, log):
        self.v, self.log = v, log

    def add(self, k, *, by=1):
        self.v = self.v + k * by
        return self

    @property
    def twice(self):
        return self.v * 2

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(("exit", kind and kind.__name__))
        return kind is KeyError

    def __len__(self):
        return 2

    def __getitem__(self, k):
        return self.v + k


class Keeping(dict):
    def __missing__(self, key):
        self[key] = len(self)
        return self[key]


def note(log, value):
    log.append(value)
    return value


def scaled(a, k=2, *rest, plus=0, **more):
    return a * k + len(rest) + plus + len(more)


def counting(n, log):
    for i in range(n):
        log.append(i)
        yield i
    return n


@contextlib.contextmanager
def tagged(log, name):
    log.append(name)
    try:
        yield name
    finally:
        log.append(name * 2)
"""

number = st.recursive(
    st.one_of(
        st.integers(-3, 4).map(str), st.sampled_from(["n", "m", "len(items)", "len(d)", "x.shape[1]", "len(s)", "COUNT"])
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(inner, st.sampled_from(["//", "%"]), inner).map(lambda p: f"({p[0]} {p[1]} ({p[2]} or 1))"),
        st.tuples(st.sampled_from(["abs", "int", "lambda_id"]), inner).map(
            lambda p: f"(lambda q: q)({p[1]})" if p[0] == "lambda_id" else f"{p[0]}({p[1]})"
        ),
        st.tuples(inner, inner).map(lambda p: f"max({p[0]}, {p[1]}, key=lambda q: -q)"),
        inner.map(lambda p: f"sum(q for q in range({p} % 4))"),
        inner.map(lambda p: f"note(log, {p})"),
        st.tuples(inner, inner).map(lambda p: f"({p[0]} if {p[0]} > {p[1]} else {p[1]})"),
    ),
    max_leaves=4,
)
tensor = st.recursive(
    st.sampled_from(["x", "y", "x[0]", "box.v", "box.twice", "box[1]", "scaled(x, 3, 1, plus=2, z=1)"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(inner, st.sampled_from(["+", "*"]), number).map(lambda p: f"({p[0]} {p[1]} ({p[2]}) % 3)"),
        st.tuples(
            st.sampled_from(["torch.sin", "torch.relu", "(lambda t: t.abs())", "functools.partial(torch.mul, other=2)"]), inner
        ).map(lambda p: f"{p[0]}({p[1]})"),
        inner.map(lambda p: f"torch.stack([t for t in ({p}, {p})]).sum(0)"),
        inner.map(lambda p: f"functools.reduce(torch.add, [{p}, {p}])"),
    ),
    max_leaves=3,
)
condition = st.one_of(
    st.tuples(number, st.sampled_from(["<", "==", ">=", "!="]), number).map(" ".join),
    st.sampled_from(
        ["items", "not d", "'a' in s", "n in items", "s in d", "isinstance(n, int)", "hasattr(box, 'extra')", "x.dim() == 2"]
    ),
    number.map(lambda p: f"any(q > {p} for q in items if isinstance(q, int))"),
)
breaking = st.sampled_from(["x.sum() > 0", "bool(y.max() > 1)"])

simple = st.one_of(
    tensor.map("x = {}".format), tensor.map("y = {}".format), number.map("n = {}".format), number.map("m = {}".format),
    number.map("n += {}".format), number.map("items.append({})".format), tensor.map("items.append({})".format),
    number.map("d[{}] = n".format), number.map("d.setdefault({}, []).append(m)".format), number.map("d.pop({}, None)".format),
    number.map("box.add({}, by=2)".format), number.map("box.extra = {}".format), tensor.map("log.append({})".format),
    number.map("s = f'{{s}}{{{}!r:>2}}'[-6:]".format), number.map("SHARED.append({})".format), number.map("log.append({})".format),
    number.map("a, *rest = [{}, 1, 2]; log.append(rest)".format),
    number.map("n, m = m, {}".format), number.map("items[:] = items[-3:] + [{}]".format), number.map("global_add({})".format),
    st.sampled_from(
        [
            "x.add_(1)", "x = x.clone(); x[0] = 1", "items.reverse()", "log.append(list(d))", "log.append(sorted(map(str, items[:2]))[:1])",
            "log.extend(zip(items, range(2)))", "keep = Keeping(a=1); log.append((keep['b'], keep['a'], dict(keep)))", "log.append(s.upper())",
            "log.append([i for i in itertools.islice(itertools.count(), 3)])", "gen = counting(3, log); log.append(next(gen)); log.append(list(gen))",
            "log.append({k: v for k, v in zip('ab', (n, m))})", "del box.extra", "items.pop()", "log.append(d[n])", "bump()", "n = counter()",
            "log.append(type(box).__name__ + Box.kind)", "n = (m := n + 1)", "assert n < 50, 'large'", "print('n', n)", "log.append(box is box.add(0))",
        ]
    ),
)  # fmt: skip


def block(lines: list[str]) -> str:
    return textwrap.indent("\n".join(lines), "    ")


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    body = st.lists(inner, min_size=1, max_size=3).map(block)
    return st.one_of(
        st.tuples(st.one_of(condition, condition, condition, breaking), body, body).map(lambda p: f"if {p[0]}:\n{p[1]}\nelse:\n{p[2]}"),
        st.tuples(st.sampled_from(["range(3)", "items[:2]", "enumerate('ab')", "list(d.items())[:2]", "counting(2, log)", "zip(items, 'ab')"]), body).map(
            lambda p: f"for i in {p[0]}:\n{p[1]}\n    if n > 20:\n        break\nelse:\n    log.append('else')"
        ),
        st.tuples(number, body).map(lambda p: f"k = 0\nwhile k < {p[0]} % 4:\n    k += 1\n{p[1]}\n    if k == 2:\n        continue"),
        st.tuples(body, st.sampled_from(["KeyError", "(AttributeError, IndexError)", "Exception"]), body).map(
            lambda p: f"try:\n{p[0]}\nexcept {p[1]} as error:\n    log.append((type(error).__name__, str(error)))\n{p[2]}\nfinally:\n    log.append('finally')"
        ),
        st.tuples(st.sampled_from(["box", "tagged(log, 't') as tag", "torch.no_grad()", "contextlib.suppress(KeyError)", "box as b, torch.no_grad()"]), body).map(
            lambda p: f"with {p[0]}:\n{p[1]}"
        ),
        st.tuples(number, body, body).map(lambda p: f"match {p[0]}:\n    case 0 | 1:\n{textwrap.indent(p[1], '    ')}\n    case q if q > 2:\n{textwrap.indent(p[2], '    ')}"),
        st.tuples(body, number).map(lambda p: f"def local(x, n, y=y):\n    m = 1\n{p[0]}\n    return n\nn = local(x, {p[1]})"),
    )  # fmt: skip


statement = st.recursive(simple, lambda inner: st.one_of(simple, compound(inner)), max_leaves=6)


@st.composite
def program(draw: st.DrawFn) -> str:
    """The text of a module with ``f(x, log)``."""
    lines = draw(st.lists(statement, min_size=1, max_size=5))

    setup = [
        "y, n, m, items, d, s = x + 1, 2, 3, [1, 2], {0: 1, 'a': 2}, 'a'",
        "box = Box(x * 2, log)",
        "c = 0",
        "def counter():\n    nonlocal c\n    c += 1\n    return c",
        "def bump():\n    log.append(c)",
        "def global_add(k):\n    global COUNT\n    COUNT += k % 2",
    ]
    result = "return x, y, n, m, items, d, s, box, c"
    return f"{PRELUDE}\n\ndef f(x, log):\n{block([*setup, *lines, result])}\n"
