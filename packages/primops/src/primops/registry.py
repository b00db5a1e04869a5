"""``DecompositionTable``: which function rewrites which operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from torch._ops import OpOverload, OpOverloadPacket

from primops.errors import DuplicateRuleError, FrozenTableError

Rule = Callable[..., Any]
AnyRule = TypeVar("AnyRule", bound=Rule)
Op = str | OpOverload | OpOverloadPacket


def op_name(op: Op) -> str:
    """``aten::add.Tensor`` for ``"add.Tensor"`` or the overload; the default overload has no
    suffix.
    """
    if isinstance(op, OpOverload):
        return op.name()
    if isinstance(op, OpOverloadPacket):
        return op._qualified_op_name
    return op if "::" in op else f"aten::{op}"


class DecompositionTable:
    """Operators (by name, so that tables need no torch version) to rules.

    A rule takes the operator's arguments, with tensors as real tensors, ``TensorMeta``s or graph
    values and sizes as ``int`` or ``SymInt``, and returns what the operator returns, computed by
    prims. It may return ``NotImplemented`` for arguments that it does not cover; the operator then
    stays an extern call.
    """

    def __init__(
        self,
        rules: dict[str, Rule] | None = None,
        auxiliary: dict[str, tuple[int, ...]] | None = None,
        *,
        key: str | None = None,
    ) -> None:
        """A table with the given rules, and auxiliary results, by full name.

        ``key``: text that changes whenever the rules would give something else, such as a version.
        Without one, compilers don't cache what was decomposed by the table.
        """
        self.key = key
        self._rules = dict(rules or {})
        self._auxiliary = dict(auxiliary or {})
        self._frozen = False

    def register(self, *ops: Op, auxiliary: tuple[int, ...] = ()) -> Callable[[AnyRule], AnyRule]:
        """Decorator that adds a rule. Raises DuplicateRuleError, and FrozenTableError once the
        table was used.

        ``auxiliary``: positions of results that only the operator's derivative uses, and whose
        dtype (or emptiness) differs between the kernels of devices. The pass gives them the form
        that the graph expects.
        """

        def add(rule: AnyRule) -> AnyRule:
            for op in ops:
                self.add(op, rule, auxiliary)
            return rule

        return add

    def add(self, op: Op, rule: Rule, auxiliary: tuple[int, ...] = ()) -> None:
        """Adds one rule; see ``register``."""
        name = op_name(op)
        if self._frozen:
            raise FrozenTableError(
                f"{name}: this table has been used; build a new one with `table | more`"
            )
        if name in self._rules:
            raise DuplicateRuleError(f"{name} has a rule already; `table | more` overrides one")
        self._rules[name] = rule
        if auxiliary:
            self._auxiliary[name] = auxiliary

    def auxiliary(self, op: Op) -> tuple[int, ...]:
        """Positions of the operator's auxiliary results; see ``register``."""
        return self._auxiliary.get(op_name(op), ())

    def get(self, op: Op) -> Rule | None:
        """The operator's rule, or None. Freezes the table."""
        self._frozen = True
        return self._rules.get(op_name(op))

    def merged(self, *others: DecompositionTable) -> DecompositionTable:
        """A new table with the rules of all. Raises DuplicateRuleError when two have the same
        operator.
        """
        result = DecompositionTable(self._rules, self._auxiliary)
        for other in others:
            for name, rule in other._rules.items():
                result.add(name, rule, other.auxiliary(name))
        return result

    def __or__(self, other: DecompositionTable) -> DecompositionTable:
        """A new table; rules of the right one win."""
        auxiliary = {n: p for n, p in self._auxiliary.items() if n not in other._rules}
        return DecompositionTable(self._rules | other._rules, auxiliary | other._auxiliary)

    def without(self, ops: Iterable[Op]) -> DecompositionTable:
        """A new table that leaves these operators alone; a packet or bare name stands for all its
        overloads.
        """
        dropped = {op_name(op) for op in ops}
        rules = {n: r for n, r in self._rules.items() if not dropped & {n, n.partition(".")[0]}}
        return DecompositionTable(rules, self._auxiliary)

    def __contains__(self, op: Op) -> bool:
        return op_name(op) in self._rules

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)
