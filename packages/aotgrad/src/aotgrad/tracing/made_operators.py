"""Operators that traces define for custom operators, defined again for programs of the cache."""

from __future__ import annotations

from collections.abc import Iterable

from torch._ops import OpOverload

from .functional_ops import functional_name, functional_overload, is_mutable_custom
from .opaque_backward import backward_name, backward_of


def make_operator(name: str, bases: Iterable[OpOverload]) -> None:
    """Defines the operator ``name`` of the library ``aotgrad``, if a trace would define it for one
    of ``bases``.
    """
    for base in bases:
        count = name.removeprefix(f"{functional_name(base)}_")
        if is_mutable_custom(base) and count.isdecimal():
            functional_overload(base, int(count))
        elif name == backward_name(base):
            backward_of(base)
