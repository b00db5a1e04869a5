"""Instructions without symbolic meaning: they run natively, between two graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bytecode_dynamo.bytecode import Instruction, Op
from bytecode_dynamo.errors import GraphBreak

from .table import evaluates

if TYPE_CHECKING:
    from bytecode_dynamo.context import Context
    from bytecode_dynamo.frame import Frame

UNSUPPORTED = (
    Op.LOAD_NAME, Op.STORE_NAME, Op.DELETE_NAME, Op.LOAD_CLASSDEREF, Op.LOAD_LOCALS, Op.LOAD_FROM_DICT_OR_DEREF,
    Op.LOAD_FROM_DICT_OR_GLOBALS, Op.IMPORT_STAR, Op.PRINT_EXPR,
    Op.SETUP_ANNOTATIONS, Op.CALL_INTRINSIC_2, Op.GET_AWAITABLE, Op.GET_AITER, Op.GET_ANEXT, Op.BEFORE_ASYNC_WITH,
    Op.END_ASYNC_FOR, Op.CLEANUP_THROW, Op.ASYNC_GEN_WRAP,
)  # fmt: skip


@evaluates(*UNSUPPORTED)
def unsupported(ctx: Context, frame: Frame, instruction: Instruction) -> None:
    raise GraphBreak("BD006", f"{instruction.op.name} in {frame.code.name}")
