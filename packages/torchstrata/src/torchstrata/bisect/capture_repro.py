"""Repros of captures: the text of a Python function with its arguments. What the captured function
returns, its graphs run as they are, is compared with what Python returns.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bytecode_dynamo
import torch
from torch.utils import _pytree as pytree

from torchstrata.errors import UsageError

from .compare import first_difference
from .evaluate import fresh
from .python_source import NotAlone, function_text, load_function, smaller_texts
from .repro import Repro, read_repro

SECONDS = 60.0


def keep_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], path: Path
) -> None:
    """Writes a repro of a call that is to come; none for a function or arguments that text can't
    hold.
    """
    try:
        text, tensors = function_text(function)
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        Repro("capture", "python", text, [*given.items()], tensors).write(path)
    except (NotAlone, UsageError, TypeError):
        path.unlink(missing_ok=True)


def replay_capture(repro: Repro) -> str:
    """How the captured function differs from Python; empty if it doesn't. Raises UsageError for one
    that returns what can't be compared.
    """
    function = load_function(repro.text, dict(repro.constants))
    values = [value for _, value in repro.inputs]
    given, same = fresh(values), fresh(values)
    returned = pytree.tree_leaves(function(*given))
    if not all(x is None or isinstance(x, (torch.Tensor, int, float)) for x in returned):
        raise UsageError("the function of this repro returns more than tensors and numbers")
    expected = [*returned, *given]
    bytecode_dynamo.reset()
    captured = bytecode_dynamo.optimize("eager", on_error="error")(function)
    try:
        actual = [*pytree.tree_leaves(captured(*same)), *same]
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    return first_difference(actual, expected)


def shrink_capture(path: Path, facts: Mapping[str, Any]) -> str:
    """Makes the function of a repro as short as it still differs; returns how. Empty, and the file
    is gone, if the function alone doesn't differ.
    """
    repro = replace(read_repro(path), facts=facts)
    said = _difference(repro)
    if not said:
        path.unlink()
        return ""
    end = time.monotonic() + SECONDS
    shrinks = True
    while shrinks and time.monotonic() < end:
        shrinks = False
        for text in smaller_texts(repro.text):
            found = _difference(candidate := replace(repro, text=text))
            if found and found.startswith("raises") == said.startswith("raises"):
                repro, said, shrinks = candidate, found, True
                break
    _without_unused(repro).write(path)
    return said


def _difference(repro: Repro) -> str:
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return replay_capture(repro)
    except Exception:
        return ""  # not every text is a program


def _without_unused(repro: Repro) -> Repro:
    used = {name: x for name, x in repro.constants.items() if name in repro.text}
    return replace(repro, constants=used)
