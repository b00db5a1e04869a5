"""How generated code creates a captured class again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bytecode_dynamo.reconstruction.value_builder import ValueBuilder
from bytecode_dynamo.state.effects import DELETED, Identity
from bytecode_dynamo.state.protocol import pairs_of
from bytecode_dynamo.variables.callable import KnownObjectVariable
from bytecode_dynamo.variables.function import FunctionVariable
from bytecode_dynamo.variables.mapping import DictVariable

Step = tuple[Any, tuple[Any, ...], dict[str, Any]]


@dataclass
class Recipe:
    """A chain of calls (function, arguments, keywords), each of which takes the previous result as
    its first argument.
    """

    made: Any
    """The stand-in for the result while capturing."""
    steps: tuple[Step, ...]
    key: Identity = field(init=False)

    def __post_init__(self) -> None:
        self.key = Identity(type(self.made))

    def build(self, gen: ValueBuilder) -> None:
        """Push the result, which is built once."""
        if self.key in gen.built:
            gen.emitter.load_fast(gen.built[self.key])
            return
        self._complete_functions(gen)
        name: str | None = None
        for function, args, named in self.steps:
            if name is not None:
                gen.emitter.load_callee_const(function)
                gen.emitter.load_fast(name)
                gen.push_all((*args, *named.values()))
                gen.emitter.call(1 + len(args) + len(named), list(named))
            else:
                gen.call(KnownObjectVariable(function), args, list(named.items()))
            name = gen.temporary()
            gen.emitter.store_fast(name)
        assert name is not None
        gen.emitter.load_fast(name)
        gen.keep(self.key)
        for attribute, held in gen.ctx.effects.attributes(self.key).items():
            gen.pending.append(
                lambda attribute=attribute, held=held: self._set(gen, attribute, held)
            )

    def _complete_functions(self, gen: ValueBuilder) -> None:
        """Build functions with attributes set by the program, such as ``__isabstractmethod__``."""
        gen.begin(self.key)
        for _, args, _ in self.steps:
            for held in (
                [value for _, value in pairs_of(gen.ctx, args[-1])]
                if args and isinstance(args[-1], DictVariable)
                else ()
            ):
                if (
                    isinstance(held, FunctionVariable)
                    and held.key is not None
                    and gen.ctx.effects.attributes(held.key)
                ):
                    gen.spill(held)
                    gen.flush()

    def _set(self, gen: ValueBuilder, attribute: str, held: Any) -> None:
        gen.emitter.load_callee_const(delattr if held is DELETED else setattr)
        gen.emitter.load_fast(gen.built[self.key])
        gen.load_const(attribute)
        if held is not DELETED:
            gen(held)
        gen.emitter.call(2 + (held is not DELETED))
        gen.emitter.pop()
