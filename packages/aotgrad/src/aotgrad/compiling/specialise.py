"""Generated dispatch of compiled functions: one expression recognises the arguments of a
compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from aotgrad.running.emit import PythonWriter

_LIMIT = 16  # arguments; for more of them the general path costs little in comparison
Call = Callable[[tuple[Any, ...]], Any]


def specialise_dispatch(
    args: Sequence[Any], call: Callable[..., Any], spec: pytree.TreeSpec, otherwise: Call
) -> Call:
    """A function of an argument tuple: ``call``, where the arguments are tensors of the same kinds,
    else ``otherwise``.

    Args:
        args: those that ``call`` was compiled for, outside autocast.
        call: takes the tensors, returns flat outputs.
        spec: pytree of the outputs.
        otherwise: returned as it is when ``args`` are not distinct tensors.
    """
    is_plain = all(isinstance(a, torch.Tensor) for a in args) and len({id(a) for a in args}) == len(
        args
    )
    if not is_plain or not 0 < len(args) <= _LIMIT:
        return otherwise
    out = PythonWriter()
    names = [f"x{i}" for i in range(len(args))]
    tests = [f"not {out.name('in_autocast', torch._C._is_any_autocast_enabled)}()"]
    if len(args) > 1:
        tests.append(f"len({{{', '.join(f'id({n})' for n in names)}}}) == {len(args)}")
    tests += [test for name, tensor in zip(names, args) for test in _tests(out, name, tensor)]
    out.enter("def dispatch(args):")
    out.enter(f"if len(args) == {len(args)}:")
    out(f"{', '.join(names)}, = args")
    out.enter(f"if {' and '.join(tests)}:")
    results = f"{out.name('compiled', call)}({', '.join(names)})"
    if spec.is_leaf():
        results = f"{results}[0]"
    elif spec.type is not tuple or not all(child.is_leaf() for child in spec.children()):
        results = (
            f"{out.name('unflatten', pytree.tree_unflatten)}({results}, {out.name('spec', spec)})"
        )
    out(f"return {results}")
    out.leave()
    out.leave()
    out(f"return {out.name('otherwise', otherwise)}(args)")
    return out.load("dispatch")[0]


def _tests(out: PythonWriter, name: str, like: torch.Tensor) -> Iterator[str]:
    yield f"type({name}) is {out.name(type(like).__name__, type(like))}"
    yield f"{name}.shape == {tuple(like.shape)}"
    yield f"{name}.requires_grad is {like.requires_grad}"
    if like.requires_grad:
        yield f"{name}.is_leaf is {like.is_leaf}"
    yield f"{name}.dtype is {out.name(str(like.dtype), like.dtype)}"
    if like.layout is torch.strided:
        yield f"{name}.stride() == {like.stride()}"
    yield f"{name}.layout is {out.name(str(like.layout), like.layout)}"
    yield f"{name}.device == {out.name(str(like.device), like.device)}"
