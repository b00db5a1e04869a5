"""The table of opcode handlers: neutral operation -> function of (context, frame, instruction)."""

from __future__ import annotations

from collections.abc import Callable

from bytecode_dynamo.bytecode import Instruction, Op
from bytecode_dynamo.rule_table import RuleTable
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.frame import Frame

Handler = Callable[["Context", "Frame", Instruction], object]
HANDLERS: RuleTable[Op, Handler] = RuleTable()
evaluates = HANDLERS.register
