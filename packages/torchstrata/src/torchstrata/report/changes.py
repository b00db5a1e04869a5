"""Why a frame was compiled again, and what the program can do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .model import Change, Guard, Place

_CHANGE = re.compile(r"^(?:the )?(?P<what>.+?) (?:was|were|had) (?P<old>.+?), now (?P<new>.+)$")
_CONDITION = re.compile(
    r"^(?P<what>.+) was True, now False: (?P<values>.+?)(?:; the condition.*)?$"
)
_PROVENANCE = re.compile(r'the condition is from File "(.*?)", line (\d+)')
_SIZE = re.compile(r"^(?P<tensor>.+)\.size\((?P<dim>\d+)\)$")
_NUMBER = re.compile(r"^-?[\d.]+(e[+-]?\d+)?$")


def change_of(text: str | None, earlier: Sequence[Guard]) -> Change | None:
    """The parts of a reason as ``bytecode_dynamo`` words it. ``earlier`` are the guards of the
    function's earlier captures: one of them failed, and knows the line that required it.
    """
    if text is None:
        return None
    condition = _CONDITION.match(text)
    if condition:
        found = _PROVENANCE.search(text)
        asked = (found[1], int(found[2])) if found else None
        what = condition["what"]
        return Change(text, what, "True", f"False ({condition['values']})", asked, _of_sizes(what))
    match = _CHANGE.match(text)
    if match is None:
        return Change(text, text, "", "", None, _ADVICE_OTHERWISE)
    what, old, new = match["what"], match["old"], match["new"]
    return Change(text, what, old, new, _asked(what, earlier), advice(what, old, new))


def _asked(what: str, earlier: Sequence[Guard]) -> Place | None:
    size = _SIZE.match(what)
    wanted = {what, size["tensor"] if size else what, re.sub(r"^(type|len)\((.*)\)$", r"\2", what)}
    wanted.add(re.sub(r"\.(dtype|device|requires_grad|dim\(\)|stride\(\d+\))$", "", what))
    for guard in reversed(earlier):
        if guard.asked is not None and guard.on in wanted:
            return guard.asked
    return None


_ADVICE_OTHERWISE = "keep what changed as it was between calls"


def _of_sizes(what: str) -> str:
    return (
        f"the program compares sizes ({what}): sizes on the other side need a graph of their own; "
        f"compare outside of the compiled function if it happens often"
    )


def advice(what: str, old: str, new: str) -> str:
    """What avoids compiling again when ``what`` changes from ``old`` to ``new``."""
    size = _SIZE.match(what)
    if size:
        return (
            f"torchstrata.mark_dynamic({size['tensor']}, {size['dim']}) before the first call, or "
            f"compile(dynamic=True): one graph for all sizes"
        )
    for pattern, text in _ADVICE:
        if re.search(pattern, what):
            return text
    if old in ("True", "False", "None") or old.startswith(("'", '"')):
        return (
            "each value has its own graph, which is fine for a few; for many, branch outside of "
            "the compiled function, or use torch.where on a tensor"
        )
    if _NUMBER.match(old) and _NUMBER.match(new):
        return (
            "a number that changes becomes an input of the graph after this recompile; pass "
            "torch.tensor(number) to avoid even the first"
        )
    return _ADVICE_OTHERWISE


_ADVICE = (
    (r"\.dtype$", "convert the tensor to one dtype before the call"),
    (r"\.device$", "move the tensor to one device before the call"),
    (r"\.requires_grad$", "call it with tensors that all require a gradient, or under no_grad"),
    (r"\.dim\(\)$", "reshape to one number of dimensions before the call"),
    (r"\.stride\(\d+\)$", "call .contiguous() on the tensor before the call"),
    (r"^type\(", "pass the same type in each call"),
    (r"^len\(", "pass a list of one length, or stack the tensors into one"),
    (r"^keys of ", "pass dicts with the same keys in the same order"),
    (r"grad|autocast|inference|deterministic", "call it under one setting of torch"),
    (r"compiled code is gone", "keep the object alive between calls"),
    (r" is ", "pass either the same object or different ones in each call"),
)
