"""Packages whose public names load their modules when they are first used (PEP 562).

The ``__init__`` of such a package imports its public names under ``TYPE_CHECKING``, for type
checkers and documentation tools, and ends with ``__getattr__, __dir__ = lazy_names(__name__)``. The
same block, read from the source, says at run time which module has a name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec, resolve_name
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package some of whose public names may be names of its modules, too.

    The import system sets a package's attribute to a module of it that was loaded. This would hide
    the public object if the module happens to be loaded before the object is used.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in self.__dict__["_not_modules"] and _is_module_of(self, name, value)):
            super().__setattr__(name, value)


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package, whose ``__init__`` calls this at its end.

    Raises ImportError for a package without its source.
    """
    module = sys.modules[package]
    origins = dict(_origins(package))
    modules = {name for name, (origin, _) in origins.items() if origin == package}
    module.__dict__["_not_modules"] = origins.keys() - modules
    for name in origins:
        if name not in modules and _is_module_of(module, name, module.__dict__.get(name)):
            delattr(module, name)
    module.__class__ = LazyPackage

    def load(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        origin, original = origins[name]
        if name in modules:
            value = import_module(f"{origin}.{original}")
        else:
            value = getattr(import_module(origin), original)
        module.__dict__[name] = value
        return value

    def names() -> list[str]:
        return sorted({*module.__dict__, *origins} - {"_not_modules"})

    return load, names


def load_attribute(owner: Any, name: str) -> Any:
    """An attribute of any object, or a module of a lazy package that is not loaded yet. Raises
    AttributeError.
    """
    try:
        return getattr(owner, name)
    except AttributeError:
        path = f"{getattr(owner, '__name__', '')}.{name}"
        root = sys.modules.get(path.partition(".")[0])
        is_package = isinstance(owner, ModuleType) and hasattr(owner, "__path__")
        if is_package and isinstance(root, LazyPackage) and find_spec(path) is not None:
            return import_module(path)
        raise


def _is_module_of(package: ModuleType, name: str, value: object) -> bool:
    return isinstance(value, ModuleType) and value.__name__ == f"{package.__name__}.{name}"


def _origins(package: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """The names that a package imports under TYPE_CHECKING, each with its module and name there."""
    spec = sys.modules[package].__spec__
    get_source = getattr(spec and spec.loader, "get_source", None)
    source = get_source(package) if get_source is not None else None
    if source is None:
        raise ImportError(f"{package} needs the source of its __init__.py, which is not there")
    for block in ast.parse(source).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for statement in block.body:
                if isinstance(statement, ast.ImportFrom):
                    path = "." * statement.level + (statement.module or "")
                    origin = resolve_name(path, package)
                    for item in statement.names:
                        yield item.asname or item.name, (origin, item.name)
