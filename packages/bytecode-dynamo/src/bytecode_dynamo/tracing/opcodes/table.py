"""The table of opcode handlers: neutral operation -> function of (context, frame, instruction)."""

from __future__ import annotations

from collections.abc import Callable

from bytecode_dynamo.bytecode import Instruction, Op
from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.rule_table import RuleTable
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.frame import Frame

Handler = Callable[["Context", "Frame", Instruction], object]
HANDLERS: RuleTable[Op, Handler] = RuleTable()
evaluates = HANDLERS.register


UNSUPPORTED = (
    Op.IMPORT_STAR, Op.PRINT_EXPR, Op.CALL_INTRINSIC_2, Op.GET_AWAITABLE, Op.GET_AITER,
    Op.GET_ANEXT, Op.BEFORE_ASYNC_WITH,
    Op.END_ASYNC_FOR, Op.ASYNC_GEN_WRAP, Op.BUILD_INTERPOLATION, Op.BUILD_TEMPLATE,
)  # fmt: skip


@evaluates(*UNSUPPORTED)
def unsupported(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    raise GraphBreak("BD006", f"{instruction.op.name} in {frame.code.name}")
