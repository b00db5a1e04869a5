"""Tensors of wrapper subclasses, which graphs hold as they are, with fakes of the class around
fakes.

Capture does not see ``__torch_dispatch__``, which acts on the tensors inside; compilers unwrap
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from symshapes import (
    FakeTensorError,
    flatten,
    holds_mask,
    inner_tensor,
    inner_tensors,
    is_distributed,
    is_jagged,
    is_of_handler,
    is_wrapper,
    is_wrapper_class,
    ragged_size_of,
    ragged_source,
    rebuild,
    set_ragged_size,
    shards,
    with_history,
)

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.guards.records import GuardKind, changed
from bytecode_dynamo.guards.source import AttrSource, Source
from bytecode_dynamo.guards.step import describe
from bytecode_dynamo.guards.tensor_facts import TensorFacts
from bytecode_dynamo.guards.tensor_source import SizeSource
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.protocol import call_torch, raise_no_attribute
from bytecode_dynamo.state.requirements import require_class_attribute
from bytecode_dynamo.state.tracker import VariableTracker

from .constant import ConstantVariable, is_constant_value
from .placement import PlacementVariable

_DEFAULT: Any = torch.Tensor.__torch_function__
_NO_OVERRIDE = torch._C._disabled_torch_function_impl  # pyright: ignore
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True, slots=True)
class WrapperFacts:
    """The facts that a guard checks of a tensor of a subclass: its metadata, and that of the inner
    tensors of a wrapper. A predicate of GuardKind.CUSTOM.
    """

    facts: TensorFacts
    names: tuple[str, ...] = ()
    context: Any = None
    inner: tuple[WrapperFacts, ...] = ()

    def __call__(self, value: Any) -> bool:
        """Whether a value has these facts; sizes and strides of None match any."""
        facts = self.facts
        if (
            type(value) is not facts.type
            or TensorFacts.of(value, _open(facts.sizes), _open(facts.strides)) != facts
        ):
            return False
        if not self.names:
            return not is_wrapper(value)
        names, context = flatten(value)
        same = getattr(type(value), "__metadata_guard__", None)
        alike = context == self.context if same is None else same(self.context, context)
        if names != self.names or alike is not True:
            return False
        return all(inner(getattr(value, name)) for name, inner in zip(names, self.inner))

    def change(self, name: str, value: Any) -> str:
        """The failure as one line."""
        found = self.facts.failure(name, value)
        if found is not None or not self.names:
            return found or f"{name} was a plain tensor, now {describe(value)}"
        names, context = flatten(value)
        if names != self.names:
            return changed(f"{name}.__tensor_flatten__()[0]", list(self.names), list(names))
        for inner_name, inner in zip(names, self.inner):
            held = getattr(value, inner_name)
            if not inner(held):
                return inner.change(f"{name}.{inner_name}", held)
        return changed(f"{name}.__tensor_flatten__()[1]", self.context, context)


def _open(sizes: Any) -> list[int]:
    return [d for d, size in enumerate(sizes or ()) if size is None]


def refusal(value: Any) -> str | None:
    """The reason that a tensor with ``__torch_dispatch__`` cannot be in a graph, or None."""
    reason = refusal_of_class(type(value))
    if reason is None and holds_mask(value):
        reason = "its placement holds a mask"
    if reason is not None or (value.layout is not torch.strided and not is_jagged(value)):
        return reason or f"it has layout {value.layout}"
    try:
        held = list(inner_tensors(value))
    except Exception as error:  # attributes of the class may be missing while the constructor runs
        return (
            f"it has __torch_dispatch__, and its __tensor_flatten__ raises {type(error).__name__}"
        )
    # the local tensor of a distributed parameter requires grad, too, but gets none
    history = not is_distributed(type(value)) and not is_jagged(value)
    for inner in held:
        has_history = history and inner.requires_grad
        if type(inner) not in _PLAIN or has_history or inner.is_neg() or inner.is_conj():
            return (
                f"it has __torch_dispatch__, and a {type(inner).__name__} in it that is not a "
                f"plain tensor"
            )
    return None


def refusal_of_class(cls: Any) -> str | None:
    """The reason that a class's tensors cannot be in a graph, or None."""
    if not is_wrapper_class(cls):
        return "it has __torch_dispatch__"
    return None


def make_fake(ctx: Context, value: torch.Tensor, source: Source, static: bool) -> Any:
    """The fake of an input, guarded."""
    shared = dict.fromkeys(ctx.dynamic.dims(value, source, static))
    try:
        fake, facts = _FakeMaker(ctx, value, shared, static).fake(value, source)
        fake = with_history(ctx.mode, fake, value)
        if not facts(value):
            raise TypeError("what __tensor_flatten__ gives is not equal to itself")
    except (FakeTensorError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise GraphBreak("BD007", f"{source.shown}, a {type(value).__name__}: {error}") from error
    ctx.guards.require(source, GuardKind.TYPE_IS, type(value))
    for name in ("__torch_dispatch__", "__tensor_flatten__", "__tensor_unflatten__"):
        require_class_attribute(ctx, type(value), name)
    ctx.guards.require(source, GuardKind.CUSTOM, facts)
    return fake


@dataclass(slots=True)
class _FakeMaker:
    """Creates fakes. A dynamic size shared by the outer and inner tensors is one symbol."""

    ctx: Context
    whole: torch.Tensor
    shared: dict[int, Any]
    static: bool

    def fake(self, value: Any, source: Source) -> tuple[Any, WrapperFacts]:
        """The fake of the outer or an inner tensor, and its guarded facts."""
        if not is_wrapper(value):
            dims = {*self.ctx.dynamic.dims(value, source, self.static)}
            dims |= {d for d in self.shared if self._is_shared(value, d)}
            sizes = {d: self._size(value, source, d) for d in dims}
            strides = self._strides(
                value, source, [*map(sizes.get, range(value.dim()), value.shape)]
            )
            fake = self.ctx.mode.from_real(
                value.detach(), source=source.name, symbols=sizes, strides=strides
            )
            return fake, WrapperFacts(self._facts(value, source, fake))
        names, context = flatten(value)
        if is_jagged(value):
            return self._jagged(value, source)
        if is_distributed(type(value)):
            return self._distributed(value, source)
        made = [self.fake(getattr(value, name), AttrSource(source, name)) for name in names]
        fakes = {name: fake for name, (fake, _) in zip(names, made)}
        sizes = [
            self._size(value, source, d) if self._is_shared(value, d) else size
            for d, size in enumerate(value.shape)
        ]
        fake = _rebuilt(value, fakes, context, sizes, self._strides(value, source, sizes))
        for d, size in enumerate(fake.shape):
            if isinstance(size, torch.SymInt):
                self.ctx.require_number(SizeSource(source, d), size)
        facts = self._facts(value, source, fake)
        return fake, WrapperFacts(facts, names, context, tuple(inner for _, inner in made))

    def _jagged(self, value: Any, source: Source) -> tuple[Any, WrapperFacts]:
        """A jagged tensor; its sizes follow from those inside."""
        names, context = value.__tensor_flatten__()
        inner = {name: getattr(value, name) for name in names}
        ragged = dict.fromkeys(names, 0) | {"_values": value._ragged_idx - 1}
        fakes, facts = {}, []
        for name, held in inner.items():
            place = AttrSource(source, name)
            self.shared = {} if self.ctx.dynamic.dynamic is False else {ragged[name]: None}
            self.shared = {d: None for d in self.shared if held.shape[d] >= 2}
            self.whole = held
            fakes[name], found = self.fake(held, place)
            facts.append(found)
        place = AttrSource(source, "_lengths" if "_lengths" in inner else "_offsets")
        share_ragged_size(self.ctx, ragged_source(inner), place, ragged_source(fakes), jagged=True)
        fake = _rebuilt(value, fakes, context, [], [])
        outer = TensorFacts.of(value, range(value.dim()))
        return fake, WrapperFacts(outer, tuple(names), context, tuple(facts))

    def _distributed(self, value: Any, source: Source) -> tuple[Any, WrapperFacts]:
        """A DTensor; a dynamic size with equal parts in all ranks is a multiple of the part."""
        names, context = flatten(value)
        local = value._local_tensor
        counts = {d: shards(value, d) for d in self.shared}
        even = {
            d: count
            for d, count in counts.items()
            if local.shape[d] >= 2 and value.shape[d] == count * local.shape[d]
        }
        self.shared, self.whole, self.static = dict.fromkeys(even), local, True
        fake, facts = self.fake(local, AttrSource(source, names[0]))
        sizes = list(value.shape)
        for d, count in even.items():
            sizes[d] = count * fake.shape[d]
            self.ctx.require_number(SizeSource(source, d), sizes[d])
        strides = self._strides(value, source, sizes)
        whole = _rebuilt(value, {names[0]: fake}, context, sizes, strides)
        return whole, WrapperFacts(self._facts(value, source, whole), names, context, (facts,))

    def _strides(self, value: torch.Tensor, source: Source, sizes: Any) -> list[Any]:
        return self.ctx.dynamic.strides(self.ctx, value, source, sizes, self.static)

    def _is_shared(self, value: torch.Tensor, d: int) -> bool:
        return d in self.shared and d < value.dim() and value.shape[d] == self.whole.shape[d]

    def _size(self, value: torch.Tensor, source: Source, d: int) -> torch.SymInt:
        is_shared = self._is_shared(value, d)
        size = self.shared[d] if is_shared else None
        if size is None:
            place = SizeSource(source, d)
            size = self.ctx.dynamic.new_size(self.ctx, value, place)
            self.ctx.bind_symbol(size, place, int(value.shape[d]))
        else:
            self.ctx.require_number(SizeSource(source, d), size)
        if is_shared:
            self.shared[d] = size
        return size

    def _facts(self, value: torch.Tensor, source: Source, fake: torch.Tensor) -> TensorFacts:
        strides = [d for d, stride in enumerate(fake.stride()) if isinstance(stride, torch.SymInt)]
        for d in strides:
            self.ctx.require_stride(source, d, fake.stride()[d])  # pyright: ignore[reportArgumentType]
        return TensorFacts.of(
            value,
            [d for d, size in enumerate(fake.shape) if isinstance(size, torch.SymInt)],
            strides,
        )


def may_be_offsets(value: Any) -> bool:
    """Whether an input can be the offsets or lengths of a jagged tensor."""
    return type(value) is torch.Tensor and value.dim() == 1 and not value.is_floating_point()


def share_ragged_size(
    ctx: Context, held: torch.Tensor, place: Source, fake: torch.Tensor, jagged: bool
) -> None:
    """Gives a fake of offsets or lengths the ragged size of inputs with the same tensor, guarded.

    ``jagged`` is whether it is inside of a jagged tensor.
    """
    same = None
    for other, source, other_fake, is_inside in ctx.dynamic.ragged:
        if place != source and (other is held or jagged or is_inside):
            kind = GuardKind.ALIASED if other is held else GuardKind.NOT_ALIASED
            ctx.guards.require(place, kind, source)
        same = other_fake if other is held else same
    if same is not None:
        set_ragged_size(fake, ragged_size_of(same))
    ctx.dynamic.ragged.append((held, place, fake, jagged))


def _rebuilt(
    value: Any, fakes: dict[str, Any], context: Any, sizes: list[Any], strides: list[Any]
) -> Any:
    """What ``__tensor_unflatten__`` of the class makes of the fakes; TypeError where it does not
    fit ``value``.
    """
    try:
        fake = rebuild(type(value), fakes, context, sizes, strides)
    except Exception as error:
        if is_of_handler(error):
            raise
        problem = f"__tensor_unflatten__ raises {type(error).__name__}: {error}"
        raise TypeError(problem) from error
    if type(fake) is not type(value):
        raise TypeError(f"__tensor_unflatten__ gives a {type(fake).__name__}")
    for what in ("shape", "dtype", "device"):
        old, new = getattr(value, what), getattr(fake, what)
        if what == "shape" and any(isinstance(size, torch.SymInt) for size in new):
            old, new = len(old), len(new)
        if old != new:
            raise TypeError(
                f"__tensor_unflatten__ gives a tensor with {what} {new}; it had {old} before"
            )
    return fake


def slot(ctx: Context, x: Any, name: str) -> VariableTracker | None:
    """What a slot of a DTensor or a length kept with a jagged tensor is; None for any other
    attribute.
    """
    if is_jagged(x.fake) and name in ("_min_seqlen_tensor", "_max_seqlen_tensor"):
        held = name in flatten(x.fake)[0]
        return _inner(ctx, x, name) if held else ConstantVariable(None)
    if not is_distributed(x.cls) or name not in ("_local_tensor", "_spec"):
        return None
    if name == "_spec":
        return PlacementVariable(x.fake._spec)
    return _inner(ctx, x, name)


def _inner(ctx: Context, x: Any, name: str) -> VariableTracker:
    known = ctx.tensors.get(id(getattr(x.fake, name)))
    if known is not None:
        return known
    with ctx.modes.without_overrides(ctx):
        return call_torch(ctx, inner_tensor, [x, ConstantVariable(name)])


def attribute(ctx: Context, x: Any, name: str) -> VariableTracker:
    """An attribute of a tensor that the graph computes."""
    fake: Any = x.fake
    held = fake.__dict__.get(name)
    if isinstance(held, torch.Tensor):
        if name not in flatten(fake)[0]:
            raise GraphBreak(
                "BD014",
                f"attribute {name!r} of {x.describe()}, which __tensor_flatten__ does not name",
            )
        return _inner(ctx, x, name)
    if name not in fake.__dict__ and is_distributed(x.cls):
        return raise_no_attribute(ctx, x.cls, name)
    if name in fake.__dict__ and is_constant_value(held):
        return ConstantVariable(held)
    raise GraphBreak("BD014", f"attribute {name!r} of {x.describe()}")
