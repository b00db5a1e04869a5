"""Hypothesis strategies: random programs, from templates drawn from the constructs of the language,
over a few variables of known kinds.

Variables: ``x`` and ``y`` tensors of two rows and three columns, ``n`` and ``m`` ints, ``items`` a
list, ``d`` a dict, ``s`` a str, ``members`` a set, ``queue`` a deque, ``box`` an object with
attributes, ``net`` a module; ``log`` is an argument that records the order of effects. In templates
``<N>`` stands for a number, ``<T>`` for a tensor, ``<C>`` for a condition and ``<B>`` for a block
of statements; ``<K>`` is a counter of its own at each depth. ``prelude.py`` has what they call.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

PRELUDE = (Path(__file__).parent / "prelude.py").read_text()
ALL = (
    "x, y, n, m, items, d, s, members, queue, named, slotted, colour, space, counts, groups, "
    "order, special"
)

LEAVES = {
    "N": ["n", "m", "1", "2", "0", "-3", "4", "len(items)", "len(d)", "x.shape[1]", "len(s)",
    "COUNT"],
    "T": ["x", "y", "x[0]", "box.v", "box.twice", "box[1]", "net(x)", "x.mean(0)",
    "torch.arange(3.0)"],
    "C": ["items", "not d", "members", "x.dim() == 2", "n", "hasattr(box, 'extra')", "n < m"],
    "S": ["n += 1", "x = x * 2", "log.append(n)", "items.append(n)", "d['a'] = n", "box.extra = m",
    "x.add_(1)", "bump()", "n = counter()", "pass"],
    "B": ["log.append(m)", "n += 2", "y = x + y", "box.add(n)"],
}  # fmt: skip

NUMBERS = [
    "(<N> + <N>)", "(<N> - <N>)", "(<N> * <N>)", "(<N> // (<N> or 1))", "(<N> % (<N> or 1))",
    "(lambda q: q)(<N>)", "abs(<N>)", "int(<N>)",
    "max(<N>, <N>, key=lambda q: -q)", "sum(q for q in range(<N> % 4))", "note(log, <N>)",
    "(<N> if <C> else <N>)", "doubled(<N>, plus=1)",
    "Special.half(<N>)", "(special + <N>)", "kind_of(<N>)", "Pair(<N>).c", "divmod(<N>, 3)[1]",
    "[0, 1, 2, 3][<N> % 4]", "int('%03d' % abs(<N>))",
    "len({<N>, 1, n})", "(lambda a, b=2, *c, k=m, **e: a - b + k + len(c))(*[<N>, 1], **{'k': 1})",
    "((<N> & 3 | 4 ^ 1) << 1)",
    "sum(v.get('q', <N>) if isinstance(v, dict) else 1 for v in [{'q': 2}, {}, 3])",
    "round(<N> / 3)", "min([<N>, <N>])", "(-<N>)", "(<N> ** 2 % 7)",
    "(<N> and <N>)", "(<N> or m)", "(lambda: n + <N>)()", "functools.partial(scaled, k=3)(<N>)",
    "functools.reduce(operator.add, [<N>, 1, <N>], 0)",
]  # fmt: skip
TENSORS = [
    "(<T> + <T>)", "(<T> - <T>)", "(<T> * <T>)", "(<T> + (<N>) % 3)", "(<T> * (<N>) % 3)",
    "torch.sin(<T>)", "torch.relu(<T>)", "(lambda t: t.abs())(<T>)",
    "functools.partial(torch.mul, other=2)(<T>)", "torch.stack([t for t in (<T>, <T>)]).sum(0)",
    "functools.reduce(torch.add, [<T>, <T>])",
    "sum([<T> * w for w in (1, 2)])", "doubled(<T>, plus=n)", "operator.add(<T>, 1)",
    "(lambda t, *, k=2: t * k)(<T>, k=3)", "[*map(torch.sin, (<T>,))][0]",
    "scaled(<T>, 3, 1, plus=2, z=1)", "net(<T>, times=2)", "special(<T>)",
    "torch.where(x > 0, x, y)", "x[:, 1:].sum(-1, keepdim=True)", "x.view(3, 2).t().reshape(2, 3)",
    "torch.cat([x, y], 1)[:, :3]", "x.max(0).values", "x.split(1)[1]", "torch.zeros_like(<T>)",
    "(<T> if <C> else <T>)", "<T>.to(torch.float64).float()", "-<T>", "x.T.reshape(2, 3)",
    "torch.nn.functional.linear(x, torch.eye(3))", "x @ x.t() @ x", "x.new_ones(3)",
    "torch.einsum('ij,ij->ij', x, x)", "torch.full((3,), <N>)", "x[<N> % 2]",
    "torch.tensor([1.0, 2, <N>])", "<T>.clone()", "<T>.detach()",
]  # fmt: skip
CONDITIONS = [
    "<N> < <N>", "<N> == <N>", "<N> >= <N>", "<N> != <N>", "'a' in s", "n in items", "s in d",
    "isinstance(n, int)", "any(q > <N> for q in items if isinstance(q, int))",
    "1 in members", "special == box", "3 in special", "callable(net)", "0 < n <= m < 9",
    "issubclass(type(special), Box)", "queue and queue[0] == 1", "colour is Colour.RED",
    "net.training", "x is y", "n and m or s", "all(k > 0 for k in members)", "named.first != 2",
    "getattr(box, 'extra', 0)", "x.shape == y.shape", "not (<C>)", "(<C>) and (<C>)",
    "(<C>) or (<C>)",
    "torch.is_tensor(items[-1] if items else 0)", "x.sum() > 0", "bool(y.max() > 1)",
    "int(x.sum()) % 2", "y.tolist() != x.tolist()",
]  # fmt: skip

SIMPLE = """
x = <T> | y = <T> | n = <N> | m = <N> | n += <N> | items.append(<N>) | items.append(<T>) | d[<N>] = n | d.setdefault(<N>, []).append(m) | d.pop(<N>, None)
box.add(<N>, by=2) | box.extra = <N> | log.append(<T>) | log.append(<N>) | log.append(bool(<C>)) | s = ('%s%2r' % (s, <N>))[-6:] | SHARED.append(<N>)
a, *rest = [<N>, 1, 2]; log.append(rest) | n, m = m, <N> | items[:] = items[-3:] + [<N>] | global_add(<N>) | x.add_(1) | x = x.clone(); x[0] = 1 | items.reverse()
log.append(list(d)) | log.append(sorted(map(str, items[:2]))[:1]) | log.extend(zip(items, range(2))) | keep = Keeping(a=1); log.append((keep['b'], keep['a'], dict(keep)))
log.append(s.upper()) | log.append([i for i in itertools.islice(itertools.count(), 3)]) | gen = counting(3, log); log.append(next(gen)); log.append(list(gen))
log.append({k: v for k, v in zip('ab', (n, m))}) | bump() | n = counter() | log.append(type(box).__name__ + Box.kind) | n = (m := n + 1) | print('n', n)
log.append(box is box.add(0)) | bytecode_dynamo.graph_break() | print('sum', float(x.sum())) | n = int(x.argmax()) % 5 | log.append(x.tolist()) | return x | return <N>
members.add(n) | members.discard(1) | members |= {n, m} | members -= {2} | log.append(sorted(members ^ {1, 2})) | log.append(members >= {1})
queue.append(n) | queue.appendleft(m) | queue.rotate(1) | queue.extend(items[:1]) | log.append(list(reversed(queue))) | named = named._replace(first=n) | log.append(named._asdict())
first, second = named; log.append(second) | log.append(named[-1]) | log.append(dataclasses.asdict(Pair(n))) | log.append((Pair(n) < Pair(3), Pair(n) == Pair(n, 1)))
pair = Pair(n, x); log.append(dataclasses.replace(pair, a=1).c) | slotted.p = n | slotted.q = n | log.append(hasattr(slotted, 'q')) | special.add(n, by=2) | special.level = n
special = Special.of(x, log) | log.append(Special.made) | log.append(special.zzz) | log.append([*special]) | a, b, *_ = special; log.append(a + b)
log.append(special < Special(x, log)) | log.append({special: 1}.get(Special(x, log))) | colour = Colour(2) | colour = Colour['RED'] | log.append([c.name for c in Colour]) | log.append(colour.value)
space.a += 1 | space.t = x | vars(space)['k'] = n | log.append(sorted(vars(space))) | counts[n] += 1 | log.append(list(counts.items())) | groups[n].append(m) | log.append(dict(groups))
order.move_to_end('a') | order['z'] = n | log.append(list(order)) | net.count.zero_() | net.weight.data.mul_(2) | net.train(not net.training) | net.extra = n
log.append([k for k, _ in net.named_parameters()]) | log.append(len(net.layers)) | net.layers[1] = torch.nn.Tanh() | it = echo(log); log.append(next(it)); log.append(it.send(n)); it.close()
it = echo(log); next(it); log.append(it.throw(ValueError('v'))); it.close() | log.append(list(chained(2, log))) | log.append(next(counting(0, log), 'none')) | log.append([*zip(counting(3, log), 'ab')])
log.extend(i for i in range(3) if i % 2) | log.append({k % 2 for k in items if isinstance(k, int)}) | log.append([(i, j) for i in range(2) for j in range(i)]) | log.append([[q + p for q in range(2)] for p in range(2)])
log.append(dict(zip('abc', itertools.count(n)))) | log.append([(k, list(g)) for k, g in itertools.groupby('aab')]) | log.append(list(itertools.chain([1], items[:1], (n,)))) | log.append(list(itertools.accumulate([1, n, 3])))
log.append(list(itertools.product('ab', repeat=2))[:2]) | log.append(list(itertools.combinations([1, n, 3], 2))) | log.append(list(itertools.takewhile(lambda q: q < n, range(4)))) | log.append(list(itertools.starmap(pow, [(2, 3)])))
items.sort(key=str) | log.append(sorted(d, key=str, reverse=True)) | items.insert(0, n) | items += (m,) | items *= 2 | del items[::2] | items[1:1] = [n] | log.append(items.count(1)) | log.append(items[::-1])
d = {**d, 'q': n} | d |= {'r': m} | d.update(u=1) | log.append(d.get('a')) | log.append([k for k in d if k != 0]) | d['list'] = items | d.clear() | log.append(list(d.values())[:1]) | log.append(d | {})
s += str(n) | s = s.replace('a', 'b') | s = '-'.join([s, 'c'])[-6:] | log.append(s.split('-')) | log.append('%d %s' % (n, s)) | log.append(f'{n:>4}#{m!r}#{s:.2}#{n=}') | log.append('{:02d}'.format(n)) | log.append(s[::-1]) | log.append(s.encode()[:1])
n = n if n else m | n, *items = [n, *items] | (n, m), k = (m, n), 1 | x, y = y, x | x.mul_(2) | x[:, 0] += 1 | x[x > 1] = 0 | y.zero_() | y.copy_(x) | x = x.clone() | x.requires_grad_(False)
torch.add(x, 1, out=y) | y = x.view(-1)[:3]; y.add_(1) | x.tag = n | log.append(getattr(x, 'tag', None)) | x += y | y = y.expand_as(x).contiguous() | x = x.detach().requires_grad_(); log.append((x * 2).sum().requires_grad)
kept = lambda: n; n += 1; log.append(kept()) | fs = [lambda q=q: q * 2 for q in range(3)]; log.append([g() for g in fs]) | log.append(operator.attrgetter('v.shape')(box)) | setattr(box, 'extra', n) | log.append(getattr(box, 'kind'))
box.v = y | Box.kind = s | box.__dict__['extra'] = m | log.append(box.__class__.__mro__[0].__name__) | log.append(isinstance(special, (Box, int))) | log.append(torch.is_grad_enabled())
log.append((x.shape, x.dtype, x.dim(), x.numel(), len(x))) | log.append([r.sum() for r in x]) | log.append(list(range(n, 0, -1))) | log.append(any(items[:1]) and all(d)) | log.append(min(d, key=str, default=0)) | log.append(round(n / 3, 2))
log.append(complex(n, 1) * 2) | log.append(bool(n) ^ True) | log.append(slice(0, n, 2).indices(5)) | log.append(hash((n, s)) == hash((n, s))) | log.append([i for i, _ in enumerate(reversed([*d]), 1)]) | log.append(next(iter(d), None))
log.append(np.float64(n) * 2) | log.append(types.SimpleNamespace(a=n).a) | cached(n); log.append(cached(2)) | log.append(list(filter(None, [0, n, m]))) | log.append(list(map(operator.add, [n], [m]))) | log.append(str(torch.finfo(x.dtype).eps > 0))
""".strip()  # fmt: skip
RAISING = """
members.remove(99) | queue.popleft() | del slotted.p | log.append(special.missing) | colour = Colour(9) | del box.extra | items.pop() | log.append(d[n]) | assert n < 3, 'large' | d['a'] += 1 | del d[0] | d.popitem() | items.remove(1) | log.append(items.index(2))
raise Failure(n) | raise KeyError(n) | raise Failure(n) from None | raise ValueError('v') from KeyError('k') | assert isinstance(n, str) | x = x / (n - n) | n = n // (m - m) | [][n] | {}['k'] | None.attr | int('q') | x = x + torch.ones(5) | next(counting(0, log)) | scaled() | x.view(7) | raise StopIteration | a, b = items | for k in d: d[k, n] = 1
y = x[x.long() + 9] | y = x[(x[:, 0] > 0).long() * 3] | log.append(x.index_select(0, torch.tensor([n, 5]))) | y = torch.gather(x, 0, x.long()) | x[torch.tensor([7])] = n | x.index_add_(0, torch.tensor([0, 9]), x) | y = torch.linalg.inv(x @ x.T * 0)
box.v = torch.tensor([n]) // x.long().sum().sub(x.long().sum()) | log.append(torch.nn.functional.embedding(x.long(), y)) | x.take(torch.arange(n, n + 6)).sum() | y = torch.nn.functional.one_hot(x.long()) | torch.repeat_interleave(x, x[0].long())
""".strip()  # fmt: skip

COMPOUND = [
    "if <C>:\n    <B>\nelse:\n    <B>",
    "if <C>:\n    <B>\nelif <C>:\n    <B>",
    "for i in <R>:\n    <B>\n    if n > 20:\n        break\nelse:\n    log.append('else')",
    "for i, j in enumerate(<R>):\n    log.append(i)\n    <B>\n    if i == 1:\n        continue\n   "
    " if i > 2:\n        break",
    "<K> = 0\nwhile <K> < <N> % 4:\n    <K> += 1\n    <B>\n    if <K> == 2:\n        continue",
    "<K> = 3\nwhile <K>:\n    <K> -= 1\n    try:\n        <B>\n        if <K> == 1:\n            "
    "break\n    finally:\n        log.append(<K>)\nelse:\n    log.append('no break')",
    "try:\n    <B>\nexcept <E> as error:\n    log.append((type(error).__name__, str(error)))\n    "
    "<B>\nfinally:\n    log.append('finally')",
    "try:\n    <B>\nexcept (ValueError, LookupError) as error:\n    log.append((error.args, "
    "type(error.__cause__).__name__))\n    raise Failure(n, 'again') from error\nelse:\n    <B>",
    "try:\n    try:\n        <B>\n    except TypeError:\n        log.append('type')\n        "
    "raise\nexcept Exception as error:\n    log.append(type(error.__context__).__name__)\n    <B>",
    "try:\n    <B>\n    return x + 1\nfinally:\n    log.append('leaving')\n    <B>",
    "with <W>:\n    <B>",
    "with <W>, <W>:\n    <B>\n    raise <E>",
    "match <N>:\n    case 0 | 1:\n        <B>\n    case q if q > 2:\n        <B>",
    "match <M>:\n    case [first, *others] | (first, others) if others:\n        <B>\n    case "
    "{'a': value, **rest}:\n        log.append((value, sorted(map(str, rest))))\n    case Pair(a=0 "
    "| 2) | Colour.BLUE:\n        log.append('class')\n    case str() as text:\n        "
    "log.append(text)\n    case _:\n        <B>",
    "def local(x, n, y=y):\n    m = 1\n    <B>\n    return n\nn = local(x, <N>) or 0",
    "def inner(k=n, *rest, t=x, **more):\n    nonlocal c, "
    + ALL
    + "\n    c += 1\n    n = k\n    <B>\n    return t * 2\nlog.append(inner()); "
    "log.append(inner(1, 2, z=3))",
    "def made():\n    nonlocal "
    + ALL
    + "\n    yield n\n    <B>\n    yield n + 1\nfor value in made():\n    log.append(value)",
    "def again(k):\n    if k <= 0:\n        return 0\n    return 1 + again(k - "
    "1)\nlog.append(again(n % 4))\n<B>",
    "class Local(Special):\n    extra = n\n\n    def add(self, k, *, by=1):\n        "
    "log.append(('local', k))\n        return super().add(k)\nspecial = Local(x, log); "
    "special.add(<N>)\n<B>",
    "box.held = []\nfor value in [<N>, <N>]:\n    with tagged(log, 'w'):\n        <B>\n    "
    "box.held.append(value)",
]
CHOICES = {
    "R": ["range(3)", "items[:2]", "list(d.items())[:2]", "counting(2, log)", "zip(items, 'ab')",
    "sorted(members)", "list(queue)", "order", "special", "echoes()", "x", "reversed(items)",
    "d.copy()", "map(str, items[:3])", "filter(None, [n, m])", "iter([1, n])", "order.items()",
    "NET.layers", "itertools.islice(itertools.count(n), 2)", "torch.ones(2).unbind()"],
    "E": ["KeyError", "(AttributeError, IndexError)", "Exception"],
    "W": ["box", "tagged(log, 't') as tag", "torch.no_grad()", "contextlib.suppress(KeyError)",
    "torch.enable_grad()", "contextlib.ExitStack() as stack", "contextlib.nullcontext(n) as null",
    "special as sp", "torch.set_grad_enabled(n > 1)", "torch.autocast('cpu', torch.bfloat16)"],
    "M": ["items", "d", "named", "s", "Pair(n, m)", "colour", "(n, (m, s))"],
}  # fmt: skip
STATEMENTS, RAISES = (
    [item for line in text.splitlines() for item in re.split(r" \| (?!=)(?![{]})", line)]
    for text in (SIMPLE, RAISING)
)
TEMPLATES = {"N": NUMBERS, "T": TENSORS, "C": CONDITIONS}
SETUP = """\
y, n, m, items, d, s = x + 1, 2, 3, [1, 2], {0: 1, 'a': 2}, 'a'
box, special, net = Box(x * 2, log), Special(x, log), NET
members, queue, named, slotted, colour = {1, 2}, collections.deque([1, 2], maxlen=4), Named(1), Slotted(1), Colour.RED
space, counts, groups = types.SimpleNamespace(a=1), collections.Counter('ab'), collections.defaultdict(list)
order = collections.OrderedDict(a=1, b=2)
c = 0
def counter():
    nonlocal c
    c += 1
    return c
def bump():
    log.append(c)
def global_add(k):
    global COUNT
    COUNT += k % 2
def echoes():
    return (q * 2 for q in (1, 2))"""
HOLE = re.compile(r"^( *)<B>$|<([NTCREWM])>", re.MULTILINE)


def fill(draw: st.DrawFn, template: str, depth: int) -> str:
    """Draw what stands in the holes of a template."""

    def hole(match: re.Match[str]) -> str:
        indent, kind = match.group(1), match.group(2)
        if indent is not None:
            body = "\n".join(statement(draw, depth - 1) for _ in range(draw(st.integers(1, 2))))
            return "\n".join(indent + line for line in body.splitlines())
        if kind in CHOICES:
            return draw(st.sampled_from(CHOICES[kind]))
        if depth <= 0 or draw(st.booleans()):
            return draw(st.sampled_from(LEAVES[kind]))
        return fill(draw, draw(st.sampled_from(TEMPLATES[kind])), depth - 1)

    return HOLE.sub(hole, template.replace("<K>", f"k{depth}"))


def statement(draw: st.DrawFn, depth: int) -> str:
    """A statement; compound ones down to a depth."""
    kind = draw(st.integers(0, 9))
    if kind >= 7 and depth > 0:
        return fill(draw, draw(st.sampled_from(COMPOUND)), depth)
    if kind == 6 and draw(st.booleans()):
        return draw(st.sampled_from(RAISES))
    if kind == 0:
        return draw(st.sampled_from(LEAVES["S"]))
    return fill(draw, draw(st.sampled_from(STATEMENTS)), 1)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """The text of a module with a function ``f(x, log)``, which ``arguments`` gives its
    arguments.
    """
    lines = "\n".join(statement(draw, 2) for _ in range(draw(st.integers(1, 5))))
    body = f"{SETUP}\n{lines}\nreturn {ALL}, box, c"
    return (
        PRELUDE
        + "\n\ndef f(x, log):\n"
        + "\n".join("    " + line for line in body.splitlines())
        + "\n"
    )


def arguments() -> list[Any]:
    """Fresh arguments of a program: a tensor of two rows and three columns, and an empty list."""
    return [torch.arange(6.0).reshape(2, 3) - 1.5, []]
