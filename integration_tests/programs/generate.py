"""Programs as Python source, composed of templates by a seed.

A template has a ``@body`` section or several, and optionally ``@defs`` (module level), ``@setup``
(makes state on ``st``), ``@between`` (changes state between calls) and ``@disturb`` (runs between
forward and backward). In a section

    <m>    is a value of type m in scope: a variable, an argument made for it, or an expression
    <m1>   the same value wherever the template says <m1>
    <m!>   a new variable, in scope for later statements; <m!1> is it again
    <m&>   a value that is a name, so that it can be assigned to
    <num>, <lit>, <word>   literals: int, float, str
    <#>    the template's number in this program
    <block>  statements, indented as it is

Types: m float (rows, 4), v float (4,), s float (), k int64 (rows, 4), b bool (rows, 4), i int, f
float, t str, q bool, l list of m, j list of int, d dict of m by str, a array (rows, 4), fn function
from m to m.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PLACE = re.compile(r"<([a-z]+|#)([!&]?)(\d*)>")
SECTION = re.compile(r"^@(\w+)$", re.MULTILINE)
ARGUMENTS = ("m", "v", "k", "i", "f", "t", "l", "j", "d", "a")
ROWS = ((3, 3, 3), (3, 3, 3), (3, 5, 2), (3, 3, 5), (2, 1, 3), (3, 5, 6), (3, 0, 3))
LAYOUTS = (
    "{}",
    "{}",
    "{}",
    "leaf({})",
    "leaf({})",
    "leaf({}) * 2",
    "{}.T.contiguous().T",
    "torch.cat([{}] * 2)[::2]",
    "{}.double()",
    "leaf({}.repeat(1, 2))[:, 2:6]",
)
EXPRESSIONS = {"s": "<m>.sum()", "b": "(<m> > <lit>)", "q": "(<i> > <num>)", "fn": "torch.sin"}

PRELUDE = """\
import collections, contextlib, dataclasses, enum, functools, itertools, math
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

LEAVES, LOG = [], []


def made(rows, call, kind=0):
    data = torch.remainder(torch.arange(rows * 4) * (3 + call) + kind, 11).reshape(rows, 4) * 0.25 - 1
    return data


def leaf(data):
    LEAVES.append(data.requires_grad_())
    return data
"""


@dataclass(frozen=True)
class Template:
    """One template's sections."""

    name: str
    sections: dict[str, list[str]]

    def get(self, section: str) -> list[str]:
        """The alternatives of a section."""
        return self.sections.get(section, [])


@cache
def templates() -> tuple[Template, ...]:
    """All templates, of all files."""
    found = []
    for path in sorted((Path(__file__).parent / "templates").glob("*.txt")):
        for number, text in enumerate(
            re.split(r"^==.*\n", path.read_text(), flags=re.MULTILINE)[1:]
        ):
            sections: dict[str, list[str]] = {}
            parts = SECTION.split(text)
            for name, body in zip(parts[1::2], parts[2::2]):
                sections.setdefault(name, []).append(body.strip("\n"))
            found.append(Template(f"{path.stem}{number}", sections))
        for line in ("\n" + path.read_text()).split("\n==")[0].splitlines():
            if line.strip() and not line.startswith("#"):
                found.append(Template(line, {"body": [line.replace("; ", "\n")]}))
    return tuple(found)


@dataclass
class Writer:
    """A program while it is written."""

    random: random.Random
    rows: tuple[int, ...]
    scope: dict[str, list[str]] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    values: list[list[str]] = field(default_factory=lambda: [[], [], []])
    defs: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    between: list[str] = field(default_factory=list)
    disturb: list[str] = field(default_factory=list)
    installed: list[tuple[Template, int]] = field(default_factory=list)
    count: int = 0

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def literal(self, kind: str) -> str | None:
        choice = self.random.choice
        match kind:
            case "num":
                return choice(("0", "1", "2", "3", "4", "-1", "5"))
            case "lit":
                return choice(("0.5", "2.0", "-1.0", "1.5", "0.25", "0.0", "3.0"))
            case "word":
                return choice(("'a'", "'b'", "'ab'", "''", "'relu'"))
        return None

    def value(self, kind: str, assignable: bool, after: str) -> str:
        """A value of a type in scope."""
        literal = self.literal(kind)
        if literal is not None:
            return literal
        known = self.scope.get(kind, [])
        if known and self.random.random() < 0.9:
            return self.random.choice(known[-4:] if self.random.random() < 0.7 else known)
        if kind in ARGUMENTS and not (known and len(self.arguments) >= 6):
            return self.argument(kind)
        if known:
            return self.random.choice(known)
        return self.fill(EXPRESSIONS[kind], 0) if not assignable else self.value("m", True, after)

    def argument(self, kind: str) -> str:
        """A new argument, with its value in each call."""
        name = self.name(f"{kind}_arg")
        self.arguments[name] = kind
        for call, value in enumerate(argument_values(self.random, kind, self.rows)):
            self.values[call].append(value)
        self.scope.setdefault(kind, []).insert(0, name)
        return name

    def fill(self, text: str, number: int) -> str:
        """A section with its places filled."""
        labels: dict[str, str] = {}
        new: list[tuple[str, str]] = []

        def replace(match: re.Match[str]) -> str:
            kind, mark, label = match.groups()
            if kind == "#":
                return str(number)
            if kind == "block":
                return match.group()
            key = f"{kind}{mark}{label}"
            if label and key in labels:
                return labels[key]
            if mark == "!":
                made = self.name(kind)
                new.append((kind, made))
            else:
                made = self.value(kind, mark == "&", text)
            labels[key] = made
            return made

        filled = "\n".join(PLACE.sub(replace, line) for line in text.split("\n"))
        for kind, name in new:
            self.scope.setdefault(kind, []).append(name)
        return filled

    def statement(self, depth: int) -> list[str]:
        """The lines of one statement."""
        again = self.installed and self.random.random() < 0.35
        if again:
            template, number = self.random.choice(self.installed)
        else:
            template, number = self.random.choice(templates()), self.name("")
            number = int(number)
            if template.get("defs") or template.get("setup"):
                self.install(template, number)
        lines = self.fill(self.random.choice(template.get("body")), number).split("\n")
        return [line for part in lines for line in self.expanded(part, depth)]

    def expanded(self, line: str, depth: int) -> list[str]:
        if "<block>" not in line:
            return [line]
        indent = line[: len(line) - len(line.lstrip())]
        kept = {kind: list(names) for kind, names in self.scope.items()}
        lines = (
            ["pass"]
            if depth > 1
            else [x for _ in range(self.random.randint(1, 2)) for x in self.statement(depth + 1)]
        )
        added = {
            name: kind for name, kind in self.arguments.items() if name not in kept.get(kind, ())
        }
        self.scope = kept
        for name, kind in added.items():
            self.scope.setdefault(kind, []).insert(0, name)
        return [indent + x for x in lines]

    def install(self, template: Template, number: int) -> None:
        """Definitions and state of a template, and what changes it."""
        self.installed.append((template, number))
        scope, self.scope = self.scope, {}
        try:
            self.defs += [self.fill(text, number) for text in template.get("defs")]
            self.setup += [self.fill(text, number) for text in template.get("setup")]
            changes = template.get("between")
            for text in self.random.sample(changes, min(len(changes), self.random.randint(0, 2))):
                when = self.random.choice(("True", "i == 1", "i == 2"))
                self.between += [f"if {when}:", *indented(self.fill(text, number).split("\n"))]
            for text in template.get("disturb"):
                if self.random.random() < 0.5:
                    self.disturb += self.fill(text, number).split("\n")
        finally:
            self.scope = scope


def argument_values(rng: random.Random, kind: str, rows: tuple[int, ...]) -> list[str]:
    """The source of an argument's value in each of three calls."""
    offset = rng.randint(0, 9)
    layout = rng.choice(LAYOUTS)
    if rng.random() < 0.2:
        layouts = [
            layout,
            layout,
            rng.choice(("{}", "leaf({})", "{}.double()", "{}.T.contiguous().T")),
        ]
    else:
        layouts = [layout] * 3
    tensors = [
        use.format(f"made({r}, {c}, {offset})") for c, (use, r) in enumerate(zip(layouts, rows))
    ]
    plain = [f"made({r}, {c}, {offset})" for c, r in enumerate(rows)]
    match kind:
        case "m":
            return tensors
        case "v":
            return [f"({text})[0]" if rng.random() < 0.8 else f"leaf(made(2, {c}, {offset})[1])"
                for c, text in enumerate(
                [use.format(f"made(2, {c}, {offset})") for c,
                use in enumerate(layouts)])]  # fmt: skip
        case "k":
            return [f"torch.remainder(({text} * 4).long(), 4)" for text in plain]
        case "i":
            return list(
                rng.choice(
                    (
                        ("2", "2", "3"),
                        ("1", "2", "3"),
                        ("0", "1", "4"),
                        ("3", "-1", "2"),
                        ("2", "True", "2"),
                    )
                )
            )
        case "f":
            return list(
                rng.choice(
                    (
                        ("0.5", "1.5", "2.5"),
                        ("2.0", "2.0", "-1.0"),
                        ("1.0", "0.0", "math.nan"),
                        ("0.5", "2", "0.5"),
                    )
                )
            )
        case "t":
            return list(
                rng.choice(
                    (
                        ("'a'", "'b'", "'a'"),
                        ("'x'", "'x'", "'xy'"),
                        ("'relu'", "'tanh'", "'nothing'"),
                    )
                )
            )
        case "l":
            lengths = rng.choice(((2, 2, 2), (2, 3, 1), (1, 1, 2), (2, 2, 0)))
            return ["[" + ", ".join([tensors[c]] * n) + "]" for c, n in enumerate(lengths)]
        case "j":
            return list(
                rng.choice(
                    (
                        ("[1, 2]", "[1, 2]", "[3, 1, 2]"),
                        ("[0, 2]", "[1]", "[]"),
                        ("[3, 2, 1]", "[1, 2, 3]", "[1, 2, 3]"),
                    )
                )
            )
        case "d":
            return [
                f"{{'a': {t}, 'b': {p}}}" if rng.random() < 0.8 else f"{{'b': {t}}}"
                for t, p in zip(tensors, plain)
            ]
        case "a":
            kind = rng.choice(("np.float32", "np.float32", "np.float64"))
            return [f"{text}.numpy().astype({kind})" for text in plain]
    raise ValueError(kind)


def indented(lines: list[str]) -> list[str]:
    """Lines, four spaces further in."""
    return ["    " + line for text in lines for line in text.split("\n")] or ["    pass"]


def generate(seed: int) -> str:
    """The source of a seed's program: State (a class), arguments(i), between(st, i), disturb(st, i,
    args) and KIND.
    """
    rng = random.Random(seed)
    writer = Writer(rng, rng.choice(ROWS))
    writer.argument("m")
    body: list[str] = []
    for _ in range(rng.randint(3, 9)):
        body += writer.statement(0)
    results = [name for names in writer.scope.values() for name in names]
    chosen = rng.sample(results, min(len(results), rng.randint(1, 4)))
    body.append(
        f"return {', '.join(chosen)}"
        if rng.random() < 0.7
        else f"return {{'r': [{', '.join(chosen)}]}}"
    )
    kind = rng.choice(("module", "module", "function", "method"))
    base = "nn.Module" if kind == "module" or rng.random() < 0.3 else "object"
    calls = [f"[{', '.join(values)}]" for values in writer.values]
    disturb = disturbance(rng, writer) + writer.disturb
    parts = [
        PRELUDE,
        *writer.defs,
        f"KIND = {kind!r}",
        f"class State({base}):\n    def __init__(st):\n        super().__init__()\n        "
        f"st.calls = 0",
        *("\n".join(indented(indented(text.split("\n")))) for text in writer.setup),
        f"    def forward(st, {', '.join(writer.arguments)}):",
        "\n".join(indented(indented(body))),
        "def arguments(i):\n    return ["
        + ", ".join(f"lambda: {call}" for call in calls)
        + "][i]()",
        "def between(st, i):\n    pass\n" + "\n".join(indented(writer.between)),
        f"def disturb(st, i, {', '.join(writer.arguments)}):\n    pass\n"
        + "\n".join(indented(disturb)),
    ]
    return "\n".join(parts) + "\n"


def disturbance(rng: random.Random, writer: Writer) -> list[str]:
    """What happens to arguments between forward and backward."""
    if rng.random() < 0.5:
        return []
    tensors = [name for name, kind in writer.arguments.items() if kind in "mv"]
    name = rng.choice(tensors)
    return rng.choice(
        (
            [f"with torch.no_grad():\n    {name}.mul_(2)"],
            [f"{name}.data.add_(1)"],
            [f"{name}.data = {name}.data + 1"],
            [f"with torch.no_grad():\n    {name}[:1] = 0"],
            [f"if not {name}.requires_grad:\n    {name}.add_(1)"],
        )
    )
