"""What a class says about how it was made (CPython, ``Include/object.h``)."""

from __future__ import annotations

IMMUTABLE = 1 << 8
"""``Py_TPFLAGS_IMMUTABLETYPE``: its attributes can't be set."""
HEAP_TYPE = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: it was made while the process ran, as those of Python code are."""


def native_base(cls: type) -> type:
    """The first class of the resolution order that is written in C."""
    return next(base for base in cls.__mro__ if not base.__flags__ & HEAP_TYPE)


def type_name(cls: type) -> str:
    """The name of a class in messages of the interpreter: classes written in C have their module's
    before it.
    """
    plain = not cls.__flags__ & IMMUTABLE or cls.__module__ == "builtins"
    return cls.__name__ if plain else f"{cls.__module__}.{cls.__name__}"
