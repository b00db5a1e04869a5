"""The table of opcode handlers: neutral operation -> function of (context, frame, instruction)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bytecode_dynamo.bytecode import Instruction, Op

if TYPE_CHECKING:
    from bytecode_dynamo.context import Context
    from bytecode_dynamo.frame import Frame

Handler = Callable[["Context", "Frame", Instruction], None]


class HandlerTable(dict[Op, Handler]):
    """Handlers by operation; a duplicate raises."""

    def register(self, *ops: Op) -> Callable[[Handler], Handler]:
        """Decorator: this function evaluates these operations."""

        def add(handler: Handler) -> Handler:
            for op in ops:
                if op in self:
                    raise ValueError(f"two handlers for {op.name}")
                self[op] = handler
            return handler

        return add


HANDLERS = HandlerTable()
evaluates = HANDLERS.register
