"""``ShapeEnv``: the symbols of one compilation, and the guards on them."""

from __future__ import annotations

import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import sympy
import torch
from sympy import S

from .errors import FrozenEnvError, GuardOnDataDependent
from .expr import FloorDiv, Mod, constant, python_value, substitute
from .guards import SizeGuard, current_user_line
from .node import SymNode
from .ranges import INF, TOP, Interval, bound
from .solver import decide_statically, narrowed, nonnegative_fact, orientations

_MISSING = object()  # a sentinel: a cached answer may be False or None
_CACHE_LIMIT = 200_000


class ShapeEnv:
    """Owns size symbols, their hints and ranges, and the list of guards on them.

    Every dynamic dimension has its own symbol. A Python decision on a symbolic value is made
    statically if possible. Otherwise the hint decides, and the outcome becomes a ``SizeGuard`` with
    the user's line. After an equality guard, equal sizes share one symbol.

    Attributes:
        guards: everything assumed about backed symbols beyond their declared bounds, in order.
        deferred_asserts: assumptions on unbacked symbols that the program must check at run time.
        hints: symbol -> value in the example call.
        sources: symbol -> source texts, such as ``L['x'].size(0)``.
        provenance: called when a guard is recorded; returns the user's current line.
        allow_unbacked: whether ``item()`` creates an unbacked symbol or raises DataDependentError.
        allow_unbacked_sizes: whether a result may have a data-dependent size, though ``item()``
            raises.
    """

    # torch reads these on any shape environment
    allow_dynamic_output_shape_ops = True
    allow_scalar_outputs = True
    prefer_deferred_runtime_asserts_over_guards = False
    _translation_validation_enabled = False

    def __init__(
        self,
        *,
        allow_unbacked: bool = False,
        allow_unbacked_sizes: bool = False,
        provenance: Callable[[], str] = current_user_line,
    ) -> None:
        self.allow_unbacked = allow_unbacked
        self.allow_unbacked_sizes = allow_unbacked_sizes
        self.provenance = provenance
        self.guards: list[SizeGuard] = []
        self.deferred_asserts: list[SizeGuard] = []
        self.hints: dict[sympy.Symbol, Any] = {}
        self.sources: dict[sympy.Symbol, list[str]] = {}
        self.replacements: dict[sympy.Symbol, Any] = {}
        self.ranges: dict[sympy.Symbol, Interval] = {}
        self.declared: dict[sympy.Symbol, Interval] = {}
        self.unbacked: set[sympy.Symbol] = set()
        # in turn; a repeated symbol appears again
        self.unbacked_order: list[sympy.Symbol] = []
        self._reused_unbacked: Iterator[sympy.Symbol] = iter(())
        self.facts: list[Any] = []  # expressions known to be >= 0
        self._true: set[Any] = set()
        self._suppressed = self._frozen = False
        self._nodes: dict[Any, SymNode] = {}
        self._constants: dict[Any, SymNode] = {}
        self._static: dict[Any, bool | None] = {}
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
        # read by torch's own fake tensors when they run over this environment
        self.fake_tensor_cache: dict[Any, Any] = {}
        self.pending_fresh_unbacked_symbols: list[Any] = []
        self.settings = ("symshapes",)

    # -- creation ----------------------------------------------------------------------------------

    def create_symbol(
        self, hint: int, source: str = "", lower: int | None = 2, upper: int | None = None
    ) -> torch.SymInt:
        """A fresh backed size in ``[lower, upper]``. Raises ValueError for a hint outside."""
        interval = Interval.between(lower, upper)
        if hint not in interval:
            raise ValueError(
                f"the example size {hint} of {source or 'a symbol'} is outside [{lower}, {upper}]"
            )
        return torch.SymInt(self._backed("s", interval, int, hint, source))

    def create_float(self, hint: float, source: str = "") -> torch.SymFloat:
        """A fresh backed float; the caller checks that it is finite."""
        return torch.SymFloat(self._backed("f", TOP, float, hint, source))

    def _backed(
        self, prefix: str, interval: Interval, pytype: type, hint: int | float, source: str
    ) -> SymNode:
        symbol = self._fresh(prefix, interval, pytype)
        self.hints[symbol] = hint
        self.sources[symbol] = [source] if source else []
        return SymNode(symbol, self, pytype, hint)

    def create_unbacked(
        self, lower: int | None = None, upper: int | None = None, *, source: str = ""
    ) -> torch.SymInt:
        """A fresh data-dependent integer, optionally with bounds."""
        node = self._unbacked("u", Interval.between(lower, upper), int)
        self.sources[node._expr] = [source] if source else []
        return torch.SymInt(node)

    def create_unbacked_symint(self, source: Any = None) -> torch.SymInt:
        return self.create_unbacked()

    def create_unbacked_symfloat(self) -> torch.SymFloat:
        return torch.SymFloat(self._unbacked("uf", TOP, float))

    def create_unbacked_symbool(self) -> torch.SymBool:
        node = self.create_unbacked(0, 1).node
        return torch.SymBool(node.eq(self.constant_node(1)))

    def restore_symbol(
        self,
        name: str,
        pytype: type = int,
        lower: int | None = None,
        upper: int | None = None,
        hint: int | float | None = None,
    ) -> sympy.Symbol:
        """The symbol of another environment with its bounds; without a hint it is unbacked."""
        if numbered := re.fullmatch(r"(\D+)(\d+)", name):
            prefix, number = numbered[1], int(numbered[2])
            self._numbers[prefix] = itertools.count(max(next(self._numbers[prefix]), number + 1))
        symbol = self._declare(name, Interval.between(lower, upper), pytype)
        if hint is None:
            self.unbacked.add(symbol)
        else:
            self.hints[symbol], self.sources[symbol] = hint, []
        return symbol

    def _fresh(self, prefix: str, interval: Interval, pytype: type) -> sympy.Symbol:
        """A new symbol. Its name is unique because symbols are looked up by name."""
        return self._declare(f"{prefix}{next(self._numbers[prefix])}", interval, pytype)

    def _declare(self, name: str, interval: Interval, pytype: type) -> sympy.Symbol:
        assumptions: dict[str, bool] = {"integer" if pytype is int else "real": True}
        if interval.lo >= 0:
            assumptions["positive" if interval.lo >= 1 else "nonnegative"] = True
        symbol = sympy.Symbol(name, **assumptions)
        self.ranges[symbol] = self.declared[symbol] = interval
        return symbol

    def _unbacked(self, prefix: str, interval: Interval, pytype: type) -> SymNode:
        """An unbacked symbol: the next one to repeat if it is of this kind, else a fresh one."""
        symbol = next(self._reused_unbacked, None)
        if (
            symbol is None
            or self.declared[symbol] != interval
            or bool(symbol.is_integer) != (pytype is int)
        ):
            symbol = self._fresh(prefix, interval, pytype)
            self.unbacked.add(symbol)
        self.unbacked_order.append(symbol)
        return SymNode(symbol, self, pytype, None)

    def is_unbacked_symint(self, symbol: sympy.Symbol) -> bool:
        return symbol in self.unbacked

    def constant_node(self, value: int | float | bool) -> SymNode:
        """The node of a Python number."""
        key = (type(value), value)
        node = self._constants.get(key)
        if node is None:
            node = self._constants[key] = SymNode(constant(value), self, type(value), value, value)
        return node

    def make(self, key: Any, build: Callable[[], Any], pytype: type, hint: Any) -> SymNode:
        """The node for an operation, memoised by ``key``; ``build`` gives its expression."""
        node = self._nodes.get(key)
        if node is not None and node.pytype is pytype:
            return node
        expr = build()
        value = python_value(expr)
        if value is not None:
            node = self.constant_node(pytype(value))
        else:
            node = SymNode(expr, self, pytype, None if hint is None else pytype(hint))
        if len(self._nodes) > _CACHE_LIMIT:
            self._nodes.clear()
        self._nodes[key] = node
        return node

    def wrap(self, expr: Any, pytype: type = int) -> Any:
        """``expr`` as a SymInt/SymFloat/SymBool, or a Python number when it is constant."""
        expr = sympy.sympify(expr)
        value = python_value(expr)
        if value is not None:
            return pytype(value)
        node = self._nodes.get((pytype, expr))
        if node is None:
            hint = None if expr.free_symbols & self.unbacked else self.evaluate(expr, self.hints)
            node = self.make((pytype, expr), lambda: self.simplify(expr), pytype, hint)
        if node.constant is not None:
            return node.constant
        return _SYM_TYPES[pytype](node)

    # -- what is known -----------------------------------------------------------------------------

    def simplify(self, expr: Any) -> Any:
        """``expr`` with all known equalities applied."""
        if self.replacements and not expr.is_number:
            used = {s: self.replacements[s] for s in expr.free_symbols if s in self.replacements}
            if used:
                return expr.xreplace(used)
        return expr

    def symbol_interval(self, symbol: sympy.Symbol) -> Interval:
        return self.ranges.get(symbol, TOP)

    def bounds(self, expr: Any) -> tuple[int | float, int | float]:
        """Inclusive bounds of a numeric expression; ``-inf``/``inf`` where unknown."""
        interval = bound(self.simplify(sympy.sympify(expr)), self.symbol_interval)
        return interval.lo, interval.hi

    def statically_known(self, expr: Any, *, oblivious: bool = False) -> bool | None:
        """True or False when that holds for all admissible sizes, else None. Never adds a guard.

        ``oblivious`` assumes that unbacked sizes are at least two.
        """
        if expr is S.true or expr is S.false:
            return expr is S.true
        key = (expr, oblivious)
        answer: Any = self._static.get(key, _MISSING)
        if answer is _MISSING:
            if len(self._static) > _CACHE_LIMIT:
                self._static.clear()
            answer = self._static[key] = decide_statically(self, self.simplify(expr), oblivious)
        return answer

    def is_recorded(self, expr: Any) -> bool:
        """Whether exactly this expression was assumed to be true."""
        return expr in self._true

    def evaluate(self, expr: Any, values: Mapping[sympy.Symbol, int | float]) -> int | float | bool:
        """The value of ``expr`` under ``values``. Raises KeyError when a symbol has none."""
        return substitute(sympy.sympify(expr), values)

    def hint_of(self, expr: Any) -> int | float | bool:
        """``expr``'s value in the example call. Raises GuardOnDataDependent if it is unbacked."""
        if expr.free_symbols & self.unbacked:
            raise self._data_dependent(expr)
        return substitute(expr, self.hints)

    def input_guards(self) -> list[SizeGuard]:
        """The declared bounds of backed symbols, which with ``guards`` are the full reuse
        condition.
        """
        guards = []
        for symbol in self.hints:
            interval, where = self.declared[symbol], ", ".join(self.sources.get(symbol, ()))
            if interval.lo != -INF:
                guards.append(SizeGuard(sympy.Ge(symbol, interval.lo, evaluate=False), where))
            if interval.hi != INF:
                guards.append(SizeGuard(sympy.Le(symbol, interval.hi, evaluate=False), where))
        return guards

    def failing_guards(self, values: Mapping[sympy.Symbol, int]) -> list[SizeGuard]:
        """The guards and declared bounds that new sizes violate; empty when the program may be
        reused.
        """
        return [g for g in (*self.input_guards(), *self.guards) if not g.holds(values)]

    # -- decisions ---------------------------------------------------------------------------------

    def decide(
        self, node: SymNode, *, oblivious: bool = False, fallback: bool | None = None
    ) -> int | float | bool:
        """The Python value of a node: static if possible, else by hint with a guard.

        Raises GuardOnDataDependent when the expression has unbacked symbols and neither
        ``fallback`` nor ``oblivious`` gives an answer.
        """
        expr = node.expr
        value = python_value(expr)
        if value is not None:
            return value
        if node.pytype is bool:
            return self._decide_bool(expr, node._hint, oblivious, fallback)
        if node._hint is None or expr.free_symbols & self.unbacked:
            low, high = self.bounds(expr)
            if node.pytype is int and low == high:
                return int(low)
            raise self._data_dependent(expr)
        self.add_guard(sympy.Eq(expr, constant(node._hint)))
        return node._hint

    def _decide_bool(self, expr: Any, hint: Any, oblivious: bool, fallback: bool | None) -> bool:
        """``hint`` is evaluated here when it is ``_MISSING``."""
        answer = self.statically_known(expr, oblivious=oblivious)
        if answer is not None:
            return answer
        if hint is None or expr.free_symbols & self.unbacked:
            if fallback is not None:
                return fallback
            if oblivious:
                return False
            raise self._data_dependent(expr)
        holds = bool(self.hint_of(expr) if hint is _MISSING else hint)
        self.add_guard(expr if holds else sympy.Not(expr))
        return holds

    def known(self, expr: Any) -> bool:
        """Decides a layout question: statically, else by hint with a guard; False if unbacked."""
        answer = self.statically_known(expr, oblivious=True)
        return self._decide_bool(expr, _MISSING, True, False) if answer is None else answer

    def expect_true(self, node: SymNode) -> bool:
        """Assumes ``node``: adds a guard, or a deferred assert when it has unbacked symbols."""
        expr = node.expr
        answer = self.statically_known(expr)
        if answer is not None:
            return answer
        if not expr.free_symbols & self.unbacked:
            return bool(self.decide(node))
        for part in sympy.And.make_args(expr):
            self._record(self.deferred_asserts, part)
        return True

    def add_guard(self, expr: Any) -> None:
        """Records ``expr``, which holds for the hints, and what follows from it."""
        if expr is S.true or expr in self._true or self._suppressed:
            return
        if self._frozen:
            raise FrozenEnvError(
                f"the shape environment is frozen, but {expr} would have to be assumed; "
                f"{self.provenance()}"
            )
        self._record(self.guards, expr)

    def _record(self, target: list[SizeGuard], expr: Any) -> None:
        target.append(SizeGuard(expr, self.provenance()))
        self._learn(expr, target is self.guards)
        self._static.clear()

    def _learn(self, expr: Any, replace: bool) -> None:
        """``replace``: merge equal symbols, which the check of a deferred assert must not."""
        self._true.add(expr)
        if isinstance(expr, sympy.And):
            for part in expr.args:
                self._learn(part, replace)
        elif isinstance(expr, sympy.Eq):
            if replace:
                self._learn_equality(expr.lhs, expr.rhs)
            else:
                for part in (sympy.Ge(expr.lhs, expr.rhs), sympy.Le(expr.lhs, expr.rhs)):
                    self._learn(part, replace)
            if isinstance(expr.lhs, Mod) and expr.rhs == 0:
                a, b = expr.lhs.args
                quotient: Any = FloorDiv(a, b)
                self.facts.append(b * quotient - a)  # the division is exact
        elif isinstance(expr, (sympy.Gt, sympy.Ge, sympy.Lt, sympy.Le)):
            fact = nonnegative_fact(expr)
            if fact is not None:
                self.facts.append(fact)
                self.ranges.update(narrowed(fact, self.symbol_interval))

    def _learn_equality(self, lhs: Any, rhs: Any) -> None:
        for symbol, value in orientations(lhs, rhs):
            if not symbol.is_Symbol or symbol in value.free_symbols or not value.is_integer:
                continue
            value = self.simplify(value)
            if symbol in value.free_symbols:
                continue
            if value.is_Symbol:  # the merged symbol inherits both ranges
                self.ranges[value] = self.symbol_interval(symbol) & self.symbol_interval(value)
            self.replacements = {
                s: e.xreplace({symbol: value}) for s, e in self.replacements.items()
            }
            self.replacements[symbol] = value
            self.facts = [self.simplify(f) for f in self.facts]
            self._true |= {self.simplify(e) for e in self._true}
            self._nodes.clear()
            return

    def _data_dependent(self, expr: Any) -> GuardOnDataDependent:
        line = self.provenance()
        return GuardOnDataDependent(
            f"cannot decide {expr}: it depends on tensor data", op=str(expr), user_line=line
        )

    @contextmanager
    def _with(self, **values: Any) -> Iterator[None]:
        """Within, these attributes have other values."""
        outer = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(outer)

    def suppress_guards(self) -> AbstractContextManager[None]:
        """Within, decisions are made by hints and nothing is recorded or learned."""
        return self._with(_suppressed=True)

    def reuse_unbacked(self, symbols: Sequence[sympy.Symbol]) -> AbstractContextManager[None]:
        """Within, unbacked symbols are these, in turn: for a program that is traced again."""
        return self._with(_reused_unbacked=iter(symbols))

    def freeze(self) -> AbstractContextManager[None]:
        """Within, a decision that would need a new guard raises FrozenEnvError."""
        return self._with(_frozen=True)

    @property
    def is_recording(self) -> bool:
        """False within ``suppress_guards``."""
        return not self._suppressed

    # -- names that torch calls --------------------------------------------------------------------

    replace = simplify
    guarding_hint_or_throw = hint_of
    ignore_fresh_unbacked_symbols = nullcontext  # they are never collected here

    def evaluate_sym_node(
        self, node: SymNode, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> Any:
        return self.decide(node, oblivious=size_oblivious, fallback=fallback_value)

    def evaluate_expr(self, expr: Any, hint: Any = None, *args: Any, **kwargs: Any) -> Any:
        pytype = bool if getattr(expr, "is_Boolean", False) else int
        value = self.hint_of(expr) if hint is None else hint
        return constant(self.decide(SymNode(expr, self, pytype, value)))

    def _maybe_evaluate_static(self, expr: Any, **kwargs: Any) -> Any:
        if expr.is_number:
            return expr
        answer = self.statically_known(expr) if getattr(expr, "is_Boolean", False) else None
        return None if answer is None else constant(answer)

    def optimization_hint(self, expr: Any, fallback: Any = None) -> Any:
        return fallback if expr.free_symbols & self.unbacked else self.hint_of(expr)

    def create_symintnode(
        self, symbol: Any, *, hint: int | None = None, source: Any = None
    ) -> torch.SymInt:
        return torch.SymInt(SymNode(symbol, self, int, hint))

    def _create_fx_call_function(self, *args: Any) -> tuple[None, bool]:
        return None, False

    def _constrain_range_for_size(
        self, symbol: sympy.Symbol, min: Any = None, max: Any = None
    ) -> None:
        self._constrain_range(symbol, 0 if min is None else min, max)

    def _constrain_range(self, symbol: Any, min: Any, max: Any) -> None:
        if not symbol.is_Symbol:
            return
        low = None if min is None or abs(min) >= sys.maxsize - 1 else int(min)
        high = None if max is None or max >= sys.maxsize - 1 else int(max)
        self.ranges[symbol] = self.symbol_interval(symbol) & Interval.between(low, high)
        self._static.clear()

    def _constrain_is_bounded(self, symbol: Any, upper: int) -> None:
        self._constrain_range(symbol, None, upper)


_SYM_TYPES: dict[type, Callable[[SymNode], Any]] = {
    int: torch.SymInt,
    float: torch.SymFloat,
    bool: torch.SymBool,
}
