"""The protocol of ``ShapeEnv`` that nodes, layout predicates and the solver use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import sympy

from .ranges import Interval


class Environment(Protocol):
    """Nodes are ``SymNode``s, expressions are SymPy's."""

    replacements: dict[sympy.Symbol, Any]
    unbacked: set[sympy.Symbol]
    facts: list[Any]

    def simplify(self, expr: Any) -> Any: ...

    def symbol_interval(self, symbol: sympy.Symbol) -> Interval: ...

    def is_recorded(self, expr: Any) -> bool: ...

    def statically_known(self, expr: Any, *, oblivious: bool = False) -> bool | None: ...

    def known(self, expr: Any) -> bool: ...

    def decide(
        self, node: Any, *, oblivious: bool = False, fallback: bool | None = None
    ) -> int | float | bool: ...

    def expect_true(self, node: Any) -> bool: ...

    def constant_node(self, value: int | float | bool) -> Any: ...

    def make(self, key: Any, build: Callable[[], Any], pytype: type, hint: Any) -> Any: ...
