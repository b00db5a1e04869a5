"""Guards on the values that a capture read: classes, tensors, identities."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import torch

from bytecode_dynamo.class_flags import IMMUTABLE
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import ABSENT, GuardKind
from bytecode_dynamo.guards.source import (
    AttrSource,
    ConstSource,
    ItemSource,
    Source,
    globals_source,
)
from bytecode_dynamo.guards.tensor_facts import TensorFacts

from .context import Context
from .effects import DELETED, Identity
from .frame import GlobalNames
from .tracker import VariableTracker

MOST_COMPARED = 12


def pinned_alike(known: VariableTracker, source: Source) -> bool:
    """Whether guards already make both sources give the same object."""
    return known.pinned or isinstance(source, ConstSource) or isinstance(known.source, ConstSource)


def written_in_class(
    ctx: Context, cls: type, name: str, *, own: bool = False
) -> VariableTracker | None:
    """The value that the program assigned in a class or its bases; None if it did not."""
    for base in cls.__mro__[: 1 if own else None] if ctx.written_in_classes else ():
        held = ctx.effects.read((class_identity(ctx, base), name), None)
        if held is not None and held is not DELETED:
            return held
        if held is None and name in base.__dict__:
            return None
    return None


def require_class_attribute(ctx: Context, cls: type, name: str) -> Any:
    """Guard on a class attribute or its absence; returns it, or ABSENT."""
    written = (
        [base for base in cls.__mro__ if (base, name) in ctx.written_in_classes]
        if ctx.written_in_classes
        else ()
    )
    for base in written:
        held = ctx.effects.read((class_identity(ctx, base), name), None)
        if held is None or (held is DELETED and name not in base.__dict__):
            continue
        raise GraphBreak(
            "BD020",
            f"{name!r} of class {cls.__name__}, assigned to before, read through an instance",
        )
    found = next((base.__dict__[name] for base in cls.__mro__ if name in base.__dict__), ABSENT)
    ctx.guards.require(ConstSource(cls), GuardKind.CLASS_ATTR, (name, found))
    return found


def require_order(ctx: Context, cls: type) -> None:
    """Guard on the bases of a class."""
    if not cls.__flags__ & IMMUTABLE:
        ctx.guards.require(AttrSource(ConstSource(cls), "__mro__"), GuardKind.IDENTITY, cls.__mro__)


def require_no_global(ctx: Context, names: GlobalNames, name: str) -> None:
    """Guard that a module does not have a variable."""
    base = names.base or globals_source(names.mapping)
    ctx.guards.require(base, GuardKind.NO_ATTR, name)


def enum_members(ctx: Context, cls: type) -> list[Any]:
    """The members of an enumeration."""
    if not isinstance(cls, enum.EnumMeta):
        raise GraphBreak("BD012", f"iteration over class {cls.__name__}")
    names, found = ConstSource(cls._member_names_), ConstSource(cls._member_map_)
    ctx.guards.require(names, GuardKind.LENGTH, len(cls._member_names_))
    for k, name in enumerate(cls._member_names_):
        ctx.guards.require(ItemSource(names, k), GuardKind.EQUALS, name)
        ctx.guards.require(ItemSource(found, name), GuardKind.IDENTITY, cls._member_map_[name])
    return list(cls)


def require_tensor(
    ctx: Context, source: Source, value: torch.Tensor, fake: Any, dims: Sequence[int]
) -> None:
    """Guard on a tensor's metadata; strides that depend on symbols become conditions on
    sizes.
    """
    strides = [dim for dim, stride in enumerate(fake.stride()) if isinstance(stride, torch.SymInt)]
    ctx.guards.require(source, GuardKind.TENSOR, TensorFacts.of(value, dims, strides))
    for dim in strides:
        ctx.require_stride(source, dim, fake.stride()[dim])


def remember_tensor(ctx: Context, tracker: Any, value: torch.Tensor | None = None) -> None:
    """Record a fake's tracker; guard that inputs that may be written are distinct objects."""
    ctx.tensors[id(tracker.fake)] = tracker
    if value is None:
        return
    ctx.examples[id(tracker.fake)] = value
    if tracker.source is not None and not tracker.node.meta["static"]:
        for other in ctx.inputs[-MOST_COMPARED:]:
            ctx.guards.require(tracker.source, GuardKind.NOT_ALIASED, other)
        ctx.inputs.append(tracker.source)


def require_distinct(ctx: Context) -> None:
    """Guard that the objects that the frame changes are distinct from others that it reads."""
    for changed in {id(held): held for held in ctx.effects.written_since(0)}.values():
        if not isinstance(changed, Identity) or not changed.exists or changed.source is None:
            continue
        for other in ctx.effects.same_type(changed):
            if other.source is not None and not pinned_alike(other, changed.source):
                ctx.guards.require(changed.source, GuardKind.NOT_ALIASED, other.source)


def example_of(ctx: Context, tracker: Any) -> torch.Tensor | None:
    """The real tensor of an input."""
    return ctx.examples.get(id(tracker.fake)) if tracker.source is not None else None


def tensor_identity(ctx: Context, tracker: Any) -> Identity:
    """The identity that holds a tensor's attributes."""
    value = example_of(ctx, tracker)
    found = ctx.identities.get(id(tracker.fake))
    if found is None:
        made = (
            Identity(tracker.cls) if value is None else Identity(tracker.cls, value, tracker.source)
        )
        found = ctx.identities[id(tracker.fake)] = made
    return found


def globals_identity(ctx: Context, mapping: dict[str, Any]) -> Identity:
    """The identity that holds a module's variables."""
    return _identity(ctx, mapping, dict)


def class_identity(ctx: Context, cls: type) -> Identity:
    """The identity that holds a class's attributes."""
    return _identity(ctx, cls, type)


def _identity(ctx: Context, value: Any, cls: type) -> Identity:
    found = ctx.identities.get(id(value))
    if found is None:
        found = ctx.identities[id(value)] = Identity(cls, value, ConstSource(value))
    return found
