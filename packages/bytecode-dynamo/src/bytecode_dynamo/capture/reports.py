"""The reports of captures that a policy keeps, and hands to whoever asked for them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import CodeType

from symshapes import unlocked
from torch.fx import GraphModule

from bytecode_dynamo.errors import BreakRecord
from bytecode_dynamo.state.context import Context
from bytecode_dynamo.state.effects import describe_slot, holds_already

from .policy import Captured, Kept, Policy
from .recompilation import where


def keep(
    policy: Policy,
    code: CodeType,
    module: GraphModule | None,
    stop: BreakRecord | None,
    seconds: float,
    recompiled: str | None,
) -> Kept:
    """Keep what a capture of some code gave, after ``seconds``."""
    graph = None if module is None else weakref.ref(module)
    kept = Kept(where(code), graph, stop, seconds, recompiled)
    policy.kept.append(kept)
    return kept


def hand_over(
    receive: Callable[[Captured], None],
    ctx: Context,
    code: CodeType,
    module: GraphModule | None,
    kept: Kept,
    recompiled: str | None,
) -> Captured:
    """Report a capture to the function that asked for it."""
    shapes = ctx.shape_guards()
    changes = tuple(
        dict.fromkeys(
            describe_slot(slot)
            for slot, _, now in ctx.effects.changed()
            if not holds_already(slot, now)
        )
    )
    guards = tuple(ctx.guards)
    found = Captured(code, module, kept.stop, guards, shapes, kept.seconds, changes, recompiled)
    with unlocked():
        receive(found)
    return found
