"""Functions behind ``functools.lru_cache``: results come from the cache."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from bytecode_dynamo.errors import GraphBreak, ObservedException, Retry
from bytecode_dynamo.guards.computed_source import ComputedSource
from bytecode_dynamo.guards.records import GuardKind, GuardRecord
from bytecode_dynamo.guards.source import AttrSource, ConstSource, DefaultsSource, Source
from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import Identity
from bytecode_dynamo.state.protocol import constant_of, wrap_value
from bytecode_dynamo.state.requirements import example_of
from bytecode_dynamo.state.tracker import VariableTracker

from .base import Args, Kwargs, Variable, realize
from .cache_lookup import (
    NOT_CACHED,
    CacheLookup,
    call_cached,
    count_early,
    is_counted,
    is_key,
    recall,
)
from .cached_result import (
    CacheAgrees,
    CacheFetch,
    as_existing,
    is_plain,
    is_tree,
    packed,
    symbolic_argument,
)
from .constant import ConstantVariable, SymbolicVariable
from .sequence import TupleVariable
from .tensor import TensorVariable
from .wrap import tracker_for


@dataclass(frozen=True, slots=True, eq=False)
class CachedFunctionVariable(Variable):
    """A cached function. A call gives the object that the cache holds, found again by a guard that
    asks the cache.

    What the cache does not hold is computed by the real function, while capturing, where that can't
    be told from a call in its place: the frame has done nothing so far, or the function depends on
    its arguments only and does nothing else. Elsewhere the graph breaks at the call.
    """

    function: VariableTracker
    value: Any = None

    def python_type(self) -> type:
        return type(self.value)

    def call(self, ctx: Context, args: Args, kwargs: Kwargs) -> VariableTracker:
        assert self.source is not None
        lookup, given = CacheLookup(tuple(kwargs)), [*args, *kwargs.values()]
        if any(_is_symbolic(ctx, arg) for arg in given):
            computed = self._computed(ctx, lookup.names, args, kwargs)
            if computed is not None:
                return computed
        parts = [self._argument(ctx, realize(ctx, arg)) for arg in given]
        values = tuple(value for value, _ in parts)
        source = ComputedSource(lookup, (self.source, *(place for _, place in parts)))
        result = lookup(self.value, *values)
        if result is NOT_CACHED:
            independent = self._is_independent(ctx, args, kwargs)
            if (
                independent is None
                or is_counted(self.value, lookup.names, values)
                or not (independent or self._is_first(ctx))
            ):
                ctx.guards.require(source, GuardKind.IDENTITY, NOT_CACHED)
                raise GraphBreak(
                    "BD002",
                    f"call of {self.function.describe()}, whose cache does not hold the result yet",
                    "call it once before, or do not cache what depends on more than its arguments",
                )
            result = self._ask(lookup.names, values)
            if not independent:
                raise Retry  # it may have changed values read before
        if lookup(self.value, *values) is not result:
            raise GraphBreak(
                "BD002", f"call of {self.function.describe()}, whose cache can't be read"
            )
        ctx.deferred.add(_CachedCall(self, lookup.names, tuple(given)))
        return wrap_value(ctx, result, source)

    def _argument(
        self, ctx: Context, arg: VariableTracker, symbolic: bool = False
    ) -> tuple[Any, Source]:
        """The value of an argument and the source for guards; ``symbolic``: of sizes, too."""
        what = f"an argument of the cached {self.function.describe()}"
        found = symbolic_argument(ctx, arg) if symbolic else None
        if found is not None:
            return found
        if symbolic and isinstance(arg, TupleVariable) and _is_symbolic(ctx, arg):
            parts = [self._argument(ctx, realize(ctx, item), True) for item in arg.items]
            return tuple(value for value, _ in parts), ComputedSource(
                packed, tuple(place for _, place in parts)
            )
        if _is_symbolic(ctx, arg) and not ctx.whole:
            raise GraphBreak("BD002", f"{arg.describe()} as {what}")
        key = arg.identity()
        if isinstance(arg, TensorVariable):
            value: Any = example_of(ctx, arg)
        else:
            exists = isinstance(key, Identity) and key.exists
            value = key.value if exists else constant_of(ctx, arg, what)  # pyright: ignore[reportAttributeAccessIssue]
        if (value is None and not arg.is_none) or not is_key(value):
            raise GraphBreak("BD002", f"{arg.describe()} as {what}")
        if isinstance(value, torch.Tensor) or isinstance(key, Identity):
            if arg.source is None:
                raise GraphBreak("BD002", f"{arg.describe()} as {what}")
            return value, arg.source
        return value, ConstSource(value)

    def _is_first(self, ctx: Context) -> bool:
        """Whether the frame has had no effect so far, so that the function may have any."""
        done = (
            ctx.graph.calls
            or ctx.modes.active(ctx)
            or ctx.modes.function_modes(ctx)
            or any(ctx.effects.changed())
        )
        return not done and all(isinstance(call, _CachedCall) for call in ctx.deferred.calls())

    def _computed(
        self, ctx: Context, names: tuple[str, ...], args: Args, kwargs: Kwargs
    ) -> VariableTracker | None:
        """The result for symbolic arguments, for which no entry can be looked up: what the function
        gives, if that is all it does. What depends on more than the arguments, or can be changed,
        is compared with the cache by a guard.
        """
        given = (*args, *kwargs.values())
        key = {place for arg in given for place in _places(ctx, arg)}
        with ctx.guards.asked() as asked:
            if not self._is_independent(ctx, args, kwargs, is_tree):
                return None
        result = self.function.call(ctx, args, kwargs)
        call = _CachedCall(self, names, given)
        if is_plain(result) and not any(_may_change(guard, key) for guard in asked):
            ctx.deferred.add(call)
            return result
        if self.value.cache_parameters()["typed"]:
            return None
        assert self.source is not None
        values, places = zip(*(self._argument(ctx, realize(ctx, arg), True) for arg in given))
        operands = (self.source, *places)
        if CacheLookup(names)(self.value, *values) is NOT_CACHED and not is_counted(
            self.value, names, values
        ):
            self._ask(names, values)
        held = CacheLookup(names)(self.value, *values)
        if held is NOT_CACHED or not CacheAgrees(names)(self.value, *values):
            return None
        ctx.guards.require(ComputedSource(CacheAgrees(names), operands), GuardKind.EQUALS, True)
        ctx.deferred.add(call)
        return as_existing(ctx, result, held, ComputedSource(CacheFetch(names), operands))

    def _is_independent(
        self,
        ctx: Context,
        args: Args,
        kwargs: Kwargs,
        fits: Callable[[Context, VariableTracker], bool] | None = None,
    ) -> bool | None:
        """Evaluate the function: whether it is pure, reads nothing that the frame has changed, and
        its result ``fits``; None if nothing is cached.
        """
        if (
            self.value.cache_parameters()["maxsize"] == 0
            or torch._C._are_functorch_transforms_active()
        ):
            return None
        if ctx.modes.active(ctx) or ctx.modes.function_modes(ctx):
            return False
        pending = {slot for slot, *_ in ctx.effects.changed()}
        effects, graph, events = ctx.effects.mark(), ctx.graph.mark(), len(ctx.mode.events)
        try:
            with ctx.effects.watched() as read:
                result = self.function.call(ctx, args, kwargs)
                if fits is not None and not fits(ctx, result):
                    return False
            if not pending.isdisjoint(read):
                return False
            outside = any(
                not isinstance(key, Identity) or key.exists
                for key in ctx.effects.written_since(effects)
            )
            acts = any(event != "refuse" for event in ctx.mode.events[events:])
            return not outside and not acts and ctx.graph.is_apart(graph)
        except GraphBreak:  # its behaviour is unknown
            return False
        except ObservedException:
            return None
        finally:
            ctx.graph.rollback(graph)
            ctx.effects.rollback(effects)
            ctx.modes.resync(ctx)
            del ctx.mode.events[events:]

    def _ask(self, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
        """Call the function now, as eager mode does."""
        cached = self.value
        compiling, torch.compiler._is_compiling_flag = torch.compiler._is_compiling_flag, False
        try:
            with torch._C._EnableTorchFunction():
                result = call_cached(cached, names, values)
        except Exception as error:
            raise GraphBreak(
                "BD002", f"{self.function.describe()} raised {type(error).__name__}"
            ) from error
        finally:
            torch.compiler._is_compiling_flag = compiling
        count_early(cached, names, values)
        return result

    def get_attr(self, ctx: Context, name: str) -> VariableTracker:
        if name == "__wrapped__":
            return self.function
        if name in ("cache_info", "cache_clear"):
            raise GraphBreak("BD014", f"{name} of a cached function")
        return self.function.get_attr(ctx, name)


_PLAIN = (int, float, bool, str, type(None))
_OF_CONTENTS = (
    GuardKind.EQUALS,
    GuardKind.TYPE_IS,
    GuardKind.LENGTH,
    GuardKind.DICT_KEYS,
    GuardKind.TENSOR,
)


def _may_change(guard: GuardRecord, key: set[Source]) -> bool:
    """Whether a guard reads contents that are neither in the call's key nor a default."""
    if guard.kind is GuardKind.CLASS_ATTR:
        return isinstance(guard.expected[1], (*_PLAIN, list, dict, set, torch.Tensor))
    known = isinstance(guard.source, (ConstSource, DefaultsSource)) or guard.source in key
    return guard.kind in _OF_CONTENTS and not known


def _places(ctx: Context, arg: VariableTracker) -> Iterator[Source]:
    """The sources of the parts of an argument in the key."""
    arg = realize(ctx, arg)
    if arg.source is not None:
        yield arg.source
    if isinstance(arg, TupleVariable):
        for item in arg.items:
            yield from _places(ctx, item)


def _is_symbolic(ctx: Context, arg: VariableTracker) -> bool:
    arg = realize(ctx, arg)
    return isinstance(arg, SymbolicVariable) or (
        isinstance(arg, TupleVariable) and any(_is_symbolic(ctx, item) for item in arg.items)
    )


@dataclass(frozen=True, slots=True, eq=False)
class _CachedCall(Variable):
    """A call after the graph, which the cache counts."""

    function: CachedFunctionVariable
    names: tuple[str, ...]
    args: tuple[VariableTracker, ...]

    def reconstruct(self, gen: ValueBuilder) -> None:
        gen.call(
            ConstantVariable(recall), [ConstantVariable(self.names), self.function, *self.args]
        )


@tracker_for(functools._lru_cache_wrapper)
def wrap_cached(ctx: Context, value: Any, source: Source) -> VariableTracker:
    ctx.guards.require(source, GuardKind.IDENTITY, value)
    function = wrap_value(ctx, value.__wrapped__, AttrSource(source, "__wrapped__"))
    return ctx.effects.remember(value, CachedFunctionVariable(function, value, source=source))
