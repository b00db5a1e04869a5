"""Imports. A module that the program has not loaded yet is loaded while capturing."""

from __future__ import annotations

import builtins
import importlib.util
import sys
from collections.abc import Iterable
from types import ModuleType

from symshapes import unlocked

from bytecode_dynamo.bytecode import Instruction, Op
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import GuardKind
from bytecode_dynamo.guards.source import AttrSource, BuiltinSource, ConstSource, ItemSource
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import describe_slot
from bytecode_dynamo.state.frame import Frame
from bytecode_dynamo.state.protocol import get_attribute, raise_error, wrap_value

from .table import evaluates

_IMPORT = builtins.__import__


@evaluates(Op.IMPORT_NAME)
def import_name(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    level, names = (value.as_constant(ctx) for value in frame.pop_many(2))
    ctx.guards.require(BuiltinSource("__import__"), GuardKind.IDENTITY, builtins.__import__)
    if builtins.__import__ is not _IMPORT:
        raise GraphBreak(
            "BD002",
            "import while the program has replaced __import__",
            "import before the program replaces __import__",
        )
    package = frame.names.mapping.get("__package__") or frame.names.mapping.get("__name__", "")
    full = (
        importlib.util.resolve_name("." * level + instruction.arg, package)
        if level
        else instruction.arg
    )
    if not _is_loaded(full, names or ()):
        _load(ctx, full, names or ())
    if not names and not level:
        full = full.partition(".")[0]
    frame.push(
        wrap_value(
            ctx, sys.modules[full], ItemSource(AttrSource(ConstSource(sys), "modules"), full)
        )
    )


def _is_loaded(full: str, names: Iterable[str]) -> bool:
    """Whether an import of names from a module loads neither it nor a submodule."""
    module = sys.modules.get(full)
    if type(module) is not ModuleType or "__getattr__" in vars(module):
        return module is not None
    if not hasattr(module, "__path__"):
        return True
    absent = (f"{full}.{name}" for name in names if name != "*" and not hasattr(module, name))
    return all(name in sys.modules or importlib.util.find_spec(name) is None for name in absent)


def _load(ctx: Context, full: str, names: Iterable[str]) -> None:
    """Imports a module now, before the program runs, unless its code could see that: what the
    program has changed until here is changed when it runs.
    """
    changed = next(ctx.effects.changed(), None)
    if changed is not None:
        raise GraphBreak(
            "BD002",
            f"import of {full}, which is not loaded yet, after {describe_slot(changed[0])} has "
            f"changed",
            "import it at the top of the module",
        )
    try:
        with unlocked():  # it may wait for other threads
            _IMPORT(full, fromlist=(*names,))
    except ImportError as error:
        raise_error(ctx, type(error), *error.args)
    except Exception as error:
        raise GraphBreak(
            "BD002",
            f"import of {full}, which raises {type(error).__name__}",
            "import it at the top of the module",
        ) from error


@evaluates(Op.IMPORT_FROM)
def import_from(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    module = frame.stack[-1]
    frame.push(get_attribute(ctx, module, instruction.arg))
