"""Python's ``random``: generators whose state is known are run while capturing; draws of others are
made before the graph.

A state is known of a generator that the frame makes or seeds. What it draws is constant, and the
last state is set after the graph. Of other generators a number that is drawn is an input of the
graph, unknown while capturing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bytecode_dynamo.bytecode import Instruction
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.function_table import constructs, evaluates_each
from bytecode_dynamo.guards.source import AttrSource, Scope, Source, SourceEmitter, VariableSource
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import MISSING, Identity
from bytecode_dynamo.state.protocol import (
    constant_of,
    constants,
    fold_call,
    new_list,
    new_value,
    raising,
)
from bytecode_dynamo.state.tracker import VariableTracker
from bytecode_dynamo.variables.base import Variable
from bytecode_dynamo.variables.constant import NONE, SymbolicVariable
from bytecode_dynamo.variables.sequence import ListVariable
from bytecode_dynamo.variables.userobject import UserObjectVariable

FLOATS = ("random", "uniform", "triangular", "gauss", "normalvariate", "lognormvariate",
    "expovariate", "vonmisesvariate",
          "gammavariate", "betavariate", "paretovariate", "weibullvariate")  # fmt: skip
INTS = ("randint", "randrange", "getrandbits")
PICKS = ("choice", "choices", "sample", "shuffle")
_DRAWS = object()
_STATE = object()


class RandomVariable(UserObjectVariable):
    """A ``random.Random`` that the frame creates."""

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_const(_with_state, gen.ctx.effects.read((_STATE, self.key)))
        gen.keep(self.key)


def _with_state(state: Any) -> random.Random:
    made = random.Random()
    made.setstate(state)
    return made


@constructs(random.Random)
def make_random(ctx: Context, seed: VariableTracker | None = None) -> VariableTracker:
    known = None if seed is None else seed.as_constant(ctx)
    if known is None:
        raise GraphBreak("BD018", "a random.Random without a seed", "give random.Random a seed")
    made = RandomVariable(Identity(random.Random))
    ctx.effects.write((_STATE, made.key), random.Random(known).getstate())
    return made


@dataclass(frozen=True, slots=True, eq=False)
class StateWrite(Variable):
    """Sets the final state of an existing generator after the graph."""

    owner: UserObjectVariable

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call_method(self.owner, "setstate", gen.ctx.effects.read((_STATE, self.owner.key)))


def _set_state(ctx: Context, owner: UserObjectVariable, state: Any) -> None:
    slot = (_STATE, owner.key)
    if owner.key.exists and ctx.effects.read(slot) is MISSING:
        ctx.deferred.add(StateWrite(owner))
    ctx.effects.write(slot, state)


@evaluates_each(
    *(getattr(random.Random, name) for name in (*FLOATS, *INTS, *PICKS)),
    *(random.Random.seed, random.Random.getstate, random.Random.setstate),
)
def call_generator(
    ctx: Context,
    method: Any,
    owner: VariableTracker,
    *args: VariableTracker,
    **kwargs: VariableTracker,
) -> VariableTracker:
    name = method.__name__
    if not isinstance(owner, UserObjectVariable) or owner.key.cls is not random.Random:
        raise GraphBreak("BD018", f"random.{name} of {owner.describe()}")
    state = ctx.effects.read((_STATE, owner.key))
    if state is MISSING and name not in ("seed", "setstate"):
        return _draw_later(ctx, owner, name, args, kwargs)
    generator = random.Random()
    if state is not MISSING:
        generator.setstate(state)
    if name in PICKS:
        result = _pick(ctx, generator, name, args, kwargs)
    else:
        given, named = constants(ctx, args, kwargs)
        if name == "seed" and (given or [*named.values(), None])[0] is None:
            raise GraphBreak("BD018", "random.seed() without a seed", "give random.seed a number")
        result = fold_call(
            ctx, getattr(generator, name), [new_value(ctx, value) for value in given], kwargs
        )
    _set_state(ctx, owner, generator.getstate())
    return result


def _pick(
    ctx: Context, generator: random.Random, name: str, args: Any, kwargs: Any
) -> VariableTracker:
    """``choice(items)`` and its relatives: choose positions, then take the items."""
    items = args[0].unpack(ctx)
    rest, named = constants(ctx, args[1:], kwargs)
    positions = list(range(len(items)))
    with raising(ctx, IndexError, ValueError, TypeError):
        picked = getattr(generator, name)(positions, *rest, **named)
    if name == "choice":
        return items[picked]
    if name != "shuffle":
        return new_list(ctx, [items[k] for k in picked])
    if not isinstance(args[0], ListVariable):
        raise GraphBreak("BD018", f"shuffle of {args[0].describe()}")
    ctx.effects.write(args[0].key, tuple(items[k] for k in positions))
    return NONE


# -- draws before the graph ------------------------------------------------------------------------


class DrawSource(VariableSource):
    """A number drawn before the graph, kept in a variable of the frame."""

    text, load = "random number {}", SourceEmitter.load_fast

    @property
    def shown(self) -> str:
        return "a random number"

    def resolve(self, scope: Scope) -> Any:
        return None  # drawn after the guards, so none reads it


def _draw_variable(index: int) -> str:
    return f".random{index}"


def _draw_later(
    ctx: Context, owner: UserObjectVariable, name: str, args: Any, kwargs: Any
) -> VariableTracker:
    what = f"random.{name} of a generator whose state is not known while capturing"
    if name not in (*FLOATS, *INTS) or not ctx.dynamic.floats:
        raise GraphBreak("BD018", what)
    given = [constant_of(ctx, arg, "a bound of a random number") for arg in args]
    named = {
        key: constant_of(ctx, value, "a bound of a random number") for key, value in kwargs.items()
    }
    with raising(ctx, ValueError, TypeError):
        example = getattr(random.Random(0), name)(*given, **named)
    if type(example) is int and (
        name == "getrandbits" or not all(abs(bound) < 2**62 for bound in given)
    ):
        raise GraphBreak("BD018", what)
    generator: Any = owner.source or owner.key.source
    drawn = add_draw(ctx, generator, AttrSource(generator, name), given, named)
    bounds = (0, *given, *named.values())[len(given) + len(named) > 1 :][:2]
    return drawn_number(ctx, drawn, example, *(bounds if type(example) is int else ()))


def add_draw(
    ctx: Context, generator: Any, function: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> DrawSource:
    """Call a function of a generator before the graph, after the draws so far. Both are objects or
    sources of one; the generator is None if that makes it, or made it.
    """
    found = ctx.effects.read(_DRAWS, ())
    ctx.effects.write(_DRAWS, (*found, (generator, function, args, kwargs)))
    return DrawSource(_draw_variable(len(found)))


def drawn_from(ctx: Context) -> tuple[Any, ...]:
    """The generators that draw before the graph, as objects or sources."""
    drawn = (generator for generator, *_ in ctx.effects.read(_DRAWS, ()))
    return tuple(dict.fromkeys(generator for generator in drawn if generator is not None))


def drawn_number(ctx: Context, drawn: DrawSource, example: Any, *bounds: int) -> VariableTracker:
    """A number that is an input of the graph."""
    number = (
        ctx.env.create_unbacked(*bounds)
        if type(example) is int
        else ctx.env.create_unbacked_symfloat()
    )
    ctx.bind_symbol(number, drawn, example)
    return SymbolicVariable(number, source=drawn)


def draws(gen: ValueBuilder) -> list[Instruction]:
    """The code before the graph that makes the draws, in order."""
    emitter = SourceEmitter(gen.code, gen.emitter.position)
    for index, (_, function, args, kwargs) in enumerate(gen.ctx.effects.read(_DRAWS, ())):
        variable = _draw_variable(index)
        gen.locals.append(variable)
        if isinstance(function, Source):
            emitter.load_callee(partial(function.emit, emitter))
        else:
            emitter.load_callee_const(function)
        for value in (*args, *kwargs.values()):
            emitter.load_const(value)
        emitter.call(len(args) + len(kwargs), list(kwargs))
        emitter.store_fast(variable)
    return emitter.instructions
