"""NumPy's generators: what the frame draws is drawn before the graph, in order.

Between ``numpy.random.seed(number)`` and the frame's end the numbers are known while capturing as
well: control flow may depend on them. So are those of a generator that the frame makes of a seed.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from bytecode_dynamo.errors import GraphBreak, NotConstant
from bytecode_dynamo.function_table import CONSTRUCTORS, evaluates_each
from bytecode_dynamo.guards.source import AttrSource, Source
from bytecode_dynamo.guards.tensor_source import ArraySource
from bytecode_dynamo.marker import Marker
from bytecode_dynamo.rule_table import RuleFor
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING, Identity
from bytecode_dynamo.state.protocol import constants, raising
from bytecode_dynamo.state.requirements import remember_tensor
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.array import ArrayVariable, as_array, numpy
from bytecode_dynamo.variables.attribute import BINDERS
from bytecode_dynamo.variables.base import Args, Kwargs, method_of_type
from bytecode_dynamo.variables.callable import CallableVariable, KnownObjectVariable
from bytecode_dynamo.variables.constant import NONE, ConstantVariable, is_constant_value
from bytecode_dynamo.variables.sequence import ListVariable
from bytecode_dynamo.variables.tensor import TensorVariable
from bytecode_dynamo.variables.userobject import UserObjectVariable
from bytecode_dynamo.variables.wrap import by_identity, tracker_for

from .python_random import DrawSource, add_draw, drawn_number

_STATE = Marker("state of a generator")
_MOST_KNOWN = 1024
OTHERS = ("get_state", "set_state", "bytes", "bit_generator", "spawn")
"""What generators have beside draws."""
PICKS = {
    "shuffle": (1, frozenset()),
    "permutation": (1, frozenset()),
    "choice": (3, frozenset({"size", "replace"})),
}
"""Draws of positions: the most arguments in order, and those by keyword, that are captured."""
_SIZE_AT = {"choice": 2, "integers": 3}
"""Draws of numbers of NumPy's types, which are arrays of no dimension for the size ``()``."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A method of a generator; without ``source`` the generator is NumPy's own."""

    name: str
    generator: Any
    source: Source | None = None

    @property
    def function(self) -> Any:
        """The method, or its source in the frame."""
        if self.source is None:
            return getattr(self.generator, self.name)
        return AttrSource(self.source, self.name)

    @property
    def what(self) -> str:
        return f"{self.name} of a {type(self.generator).__name__}"


@dataclass(frozen=True, slots=True, eq=False)
class SeededVariable(KnownObjectVariable):
    """A generator that the frame makes of a seed, before the graph like its draws; its value is
    another one.
    """

    always_rebuilt: ClassVar[bool] = False

    def as_constant(self, ctx: Context) -> Any:
        raise NotConstant(self.describe())

    def as_proxy(self, ctx: Context) -> Any:
        raise GraphBreak("BD018", f"{self.describe()} in a graph")

    def describe(self) -> str:
        return f"a {type(self.value).__name__}"

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        return method_of_type(ctx, self, name)

    def call_method(self, ctx: Context, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        method = getattr(type(self.value), name, None)
        if name[0] == "_" or name in OTHERS or not callable(method):
            raise GraphBreak("BD018", f"{name} of a {type(self.value).__name__}")
        return draw(ctx, Drawing(name, self.value, self.source), args, kwargs)


def make_seeded(
    ctx: Context, maker: Any, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    what = f"numpy.random.{maker.__name__}"
    if not _is_seeded(args, kwargs):
        raise GraphBreak("BD018", f"{what} without a seed", "give it a number")
    try:
        given, named = constants(ctx, args, kwargs)
    except NotConstant as error:
        raise GraphBreak("BD018", f"{what} with {error}") from None
    with raising(ctx, Exception):
        made = maker(*given, **named)
    ctx.effects.write((_STATE, id(made)), _state_of(made))
    return SeededVariable(made, source=add_draw(ctx, None, maker, given, named))


def draw_by_method(
    ctx: Context,
    method: Any,
    owner: VariableTracker,
    *args: VariableTracker,
    **kwargs: VariableTracker,
) -> VariableTracker:
    source = owner.source
    if not isinstance(owner, UserObjectVariable) or source is None:
        raise GraphBreak("BD018", f"{method.__name__} of {owner.describe()}")
    return draw(ctx, Drawing(method.__name__, owner.key.value, source), args, kwargs)


def draw_by_function(
    ctx: Context, function: Any, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    name = "seed" if function is numpy.random.seed else "random_sample"
    return draw(ctx, Drawing(name, numpy.random.mtrand._rand), args, kwargs)


def draw(ctx: Context, drawing: Drawing, args: Args, kwargs: Kwargs) -> VariableTracker:
    """What a method of a generator returns."""
    name = drawing.name
    if name in PICKS and (name == "shuffle" or (args and isinstance(args[0], ArrayVariable))):
        if not _picks_rows(drawing, args, kwargs):
            raise GraphBreak("BD018", f"{drawing.what} with these arguments")
        if name == "shuffle":
            return _shuffle(ctx, drawing, args[0])
        positions = _draw(ctx, drawing, [args[0].length(ctx), *args[1:]], kwargs)
        return args[0].get_item(ctx, positions)
    if name == "seed" and not _is_seeded(args, kwargs):
        raise GraphBreak("BD018", "numpy.random.seed() without a seed", "give it a number")
    return _draw(ctx, drawing, args, kwargs)


def _picks_rows(drawing: Drawing, args: Args, kwargs: Kwargs) -> bool:
    """Whether a call picks items of its first argument along the first axis, as indexing does."""
    most, names = PICKS[drawing.name]
    if not 0 < len(args) <= most or not names.issuperset(kwargs):
        return False
    if not isinstance(args[0], ArrayVariable):
        return True
    dims = args[0].tensor.fake.dim()
    is_legacy = not isinstance(drawing.generator, numpy.random.Generator)
    return dims == 1 or (dims > 1 and not (is_legacy and drawing.name == "choice"))


def _is_seeded(args: Any, kwargs: Kwargs) -> bool:
    return any(not value.is_none for value in (*args, *kwargs.values()))


def _shuffle(ctx: Context, drawing: Drawing, items: VariableTracker) -> VariableTracker:
    """``shuffle(items)``: draw positions, then put the items there."""
    permuting = replace(drawing, name="permutation")
    positions: Any = _draw(ctx, permuting, [items.length(ctx)], {})
    if isinstance(items, ArrayVariable):
        items.set_item(ctx, ConstantVariable(Ellipsis), items.get_item(ctx, positions))
        return NONE
    known = positions.tensor.fake.known_value
    if not isinstance(items, ListVariable) or known is None:
        raise GraphBreak("BD018", f"shuffle of {items.describe()} without a seed")
    held = items.unpack(ctx)
    ctx.effects.write(items.key, tuple(held[k] for k in known.tolist()))
    return NONE


def _draw(ctx: Context, drawing: Drawing, args: Args, kwargs: Kwargs) -> VariableTracker:
    try:
        given, named = constants(ctx, args, kwargs)
    except NotConstant as error:
        raise GraphBreak("BD018", f"{drawing.what} with {error}") from None
    slot = (_STATE, id(drawing.generator))
    state = ctx.effects.read(slot)
    generator = _like(drawing.generator, state)
    with raising(ctx, Exception):
        example = getattr(generator, drawing.name)(*given, **named)
    is_number = state is MISSING and isinstance(example, numpy.generic)
    if is_number and len(given) < _SIZE_AT.get(drawing.name, 0):
        named["size"], example = (), numpy.asarray(example)
    if state is not MISSING or drawing.name == "seed":
        ctx.effects.write(slot, _state_of(generator))
    is_own = isinstance(drawing.source, DrawSource)
    owner = None if is_own else drawing.source or drawing.generator
    source = add_draw(ctx, owner, drawing.function, given, named)
    if is_number and type(example) is numpy.ndarray:
        array: Any = _drawn_array(ctx, drawing, source, example, known=False)
        return as_array(array.tensor, scalar=True)
    if type(example) is numpy.ndarray:
        return _drawn_array(ctx, drawing, source, example, state is not MISSING)
    if example is None or (state is not MISSING and is_constant_value(example)):
        return ConstantVariable(example)
    if type(example) in (int, float) and ctx.dynamic.floats:
        return drawn_number(ctx, source, example)
    raise GraphBreak("BD018", f"{drawing.what} whose state is not known while capturing")


def _like(generator: Any, state: Any) -> Any:
    """A generator of the same kind: in a known state, else in any."""
    is_legacy = not isinstance(generator, numpy.random.Generator)
    made: Any = numpy.random.RandomState(0) if is_legacy else numpy.random.default_rng(0)
    if state is not MISSING and is_legacy:
        made.set_state(state)
    elif state is not MISSING:
        made.bit_generator.state = state
    return made


def _state_of(generator: Any) -> Any:
    if isinstance(generator, numpy.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def _drawn_array(
    ctx: Context, drawing: Drawing, source: DrawSource, example: Any, known: bool
) -> VariableTracker:
    try:
        tensor = torch.from_numpy(example)
    except TypeError:
        raise GraphBreak("BD018", f"{drawing.what}, which gives {example.dtype}") from None
    fake: Any = ctx.mode.from_real(tensor, source=source.name, symbols={})
    if known and tensor.numel() <= _MOST_KNOWN:
        fake.remember(tensor)
    node = ctx.graph.add_input(ArraySource(source), tensor, fake)
    held = TensorVariable(node, fake, torch.Tensor, source=ArraySource(source))
    remember_tensor(ctx, held)
    return ArrayVariable(Identity(numpy.ndarray), held, source=source)


def _register() -> None:
    kinds = numpy.random.RandomState, numpy.random.Generator
    for cython in {type(kinds[0].rand), type(numpy.random.seed)} - {types.MethodType}:
        tracker_for(cython)(by_identity(CallableVariable))
        BINDERS.setdefault(cython, BINDERS[types.MethodDescriptorType])
    for kind in kinds:
        evaluates_each(
            *(
                method
                for name, method in vars(kind).items()
                if name[0] != "_" and name not in OTHERS
            )
        )(draw_by_method)
    evaluates_each(numpy.random.default_rng)(make_seeded)
    CONSTRUCTORS[numpy.random.RandomState] = RuleFor(make_seeded, numpy.random.RandomState)
    evaluates_each(numpy.random.seed, numpy.random.ranf, numpy.random.sample)(draw_by_function)


if numpy is not None:
    _register()
