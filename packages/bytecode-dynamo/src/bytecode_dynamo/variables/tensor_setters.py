"""Assignment to attributes of tensors: by their classes, by ``__torch_function__``, by torch."""

from __future__ import annotations

import types
from typing import Any

import torch
from symshapes import is_wrapper
from torch.fx import Node

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.graph.opaque import OpaqueCall
from bytecode_dynamo.guards.records import ABSENT
from bytecode_dynamo.guards.source import AttrSource
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import dispatch_override, wrap_value
from bytecode_dynamo.state.requirements import example_of, require_class_attribute
from bytecode_dynamo.state.tracker import VariableTracker

from .attribute import class_source, find_in_class
from .input_state import TORCHS, was_leaf

SEEN = ("data", "requires_grad", "grad")
"""torch attributes that can be assigned; ``__torch_function__`` sees the assignment."""


def is_replaced(ctx: Context, x: Any, method: str, name: str) -> bool:
    """Whether the class overrides ``__setattr__``, ``__delattr__`` or the descriptor."""
    torchs = TORCHS[x.torch_class]
    if require_class_attribute(ctx, x.cls, method) is not torchs[method]:
        return True
    found = require_class_attribute(ctx, x.cls, name)
    if found is torchs.get(name, ABSENT) or isinstance(found, types.MemberDescriptorType):
        return False
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


def set_attribute(ctx: Context, x: Any, name: str, value: VariableTracker) -> None:
    """``x.name = value``."""
    if is_replaced(ctx, x, "__setattr__", name):
        _set_by_property(ctx, x, name, value)
    else:
        set_by_torch(ctx, x, name, value)


def set_by_torch(ctx: Context, x: Any, name: str, value: VariableTracker) -> None:
    """Set by torch's descriptor, or in the instance dict."""
    if name in SEEN and dispatch_override(ctx, "set_attr", name, [x, value], {}) is not None:
        return
    if name == "requires_grad":
        _set_requires_grad(ctx, x, value)
        return
    if name == "grad":
        _check_gradient(ctx, x, value)
    elif name == "data" and value.is_tensor:
        _set_data(ctx, x, value)
        return
    elif hasattr(torch.Tensor, name) or is_wrapper(x.fake):
        raise GraphBreak("BD020", f"assignment to {name!r} of {x.describe()}")
    ctx.effects.write((x.key(ctx), name), value)


def _set_by_property(ctx: Context, x: Any, name: str, value: VariableTracker) -> None:
    index, found = find_in_class(x.cls, name)
    setter: Any = require_class_attribute(ctx, x.cls, "__setattr__")
    plain = setter is TORCHS[x.torch_class]["__setattr__"]
    if not plain or not isinstance(found, property) or found.fset is None:
        raise GraphBreak(
            "BD020", f"assignment to {name!r} of {x.describe()}, whose class handles it"
        )
    source = AttrSource(class_source(ctx, x.cls, index, name), "fset")
    wrap_value(ctx, found.fset, source).call(ctx, [x, value], {})


def _set_requires_grad(ctx: Context, x: Any, value: VariableTracker) -> None:
    if value.python_type() is not bool or not (x.fake.is_leaf and was_leaf(ctx, x)):
        raise GraphBreak(
            "BD020", f"assignment to 'requires_grad' of {x.describe()}, which may be refused"
        )
    x.call_method(ctx, "requires_grad_", [value], {})


def _set_data(ctx: Context, x: Any, value: Any) -> None:
    """``x.data = value``: replace the contents, also in the fake; the history stays."""
    if _is_data_of(value.node, x.node):
        return
    if not ctx.host_effects:
        raise GraphBreak(
            "BD020",
            f"assignment to 'data' of {x.describe()}: compilers do not see that memory is "
            f"exchanged",
        )
    ctx.graph.require_no_alias(x.fake)
    if example_of(ctx, x) is not None:
        ctx.require_once(f"assignment to 'data' of {x.describe()}")
    if _layout(x.fake) != _layout(value.fake):  # earlier reads have the old value
        ctx.graph.change_metadata(x.fake)
    try:
        with ctx.mode:
            x.fake.data = value.fake
    except RuntimeError as error:
        raise GraphBreak("BD020", f"assignment to 'data' of {x.describe()}: {error}") from None
    ctx.from_arrays.pop(id(x.fake), None)  # earlier views keep the array's memory
    ctx.graph.add_host_call(SET_DATA, (x.node, value.node), val=x.fake)


def _check_gradient(ctx: Context, x: Any, value: Any) -> None:
    """Break for a gradient that does not fit; eager mode raises the error."""
    if value.is_tensor:
        fits = value.fake.shape == x.fake.shape and value.fake.dtype == x.fake.dtype
        if (
            fits
            and value.fake.device == x.fake.device
            and (example_of(ctx, x) is not None or x.fake.is_leaf)
        ):
            return
    elif value.is_none:
        return
    raise GraphBreak("BD020", f"assignment of {value.describe()} to the gradient of {x.describe()}")


def _layout(fake: torch.Tensor) -> tuple[Any, ...]:
    return fake.dtype, fake.device, tuple(fake.shape), fake.stride()


def _exchange_data(held: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    held.data = value
    return held


SET_DATA = OpaqueCall(_exchange_data, "set_data_")


def _is_data_of(node: Node, held: Node) -> bool:
    """Whether a node is ``held.data``, unchanged."""
    return node is held or (node.target is getattr and node.args == (held, "data"))
