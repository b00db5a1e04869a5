"""The hook's callback: what becomes of a frame that no entry fits."""

from __future__ import annotations

from types import CodeType
from typing import Any

from symshapes import deferred

from bytecode_dynamo.bytecode import can_split
from bytecode_dynamo.config import config
from bytecode_dynamo.hook import policy as hook_policy
from bytecode_dynamo.hook.compiling import uncollected
from bytecode_dynamo.hook.frame_hook import (
    LOOK_AGAIN,
    RUN_ONCE,
    SKIP,
    STEP_ASIDE,
    Entry,
    FrameView,
    Region,
)
from bytecode_dynamo.hook.stance import current_stance
from bytecode_dynamo.polyfills.control_flow import code_calling, polyfill_of
from bytecode_dynamo.trace import OTHER_COMPILER

from .eager_frames import limit_reached, refuse, run_inside, surroundings
from .first_call import is_first_call
from .frame_capture import capture_frame
from .kept_frames import frame_keeper
from .lifetimes import holds_watched
from .observing import FrameReport, observed
from .policy import Policy
from .roots import note_root
from .turns import turns


def compile_frame(region: Region, policy: Policy, view: FrameView) -> Any:
    """The hook's callback: a cache entry for a frame, or what else to do with it."""
    code = view.code
    polyfill = polyfill_of(code)
    if polyfill is not None:
        return Entry(None, code_calling(polyfill))
    if (
        not hook_policy.is_captured_file(code.co_filename)
        or not can_split(code)
        or hook_policy.is_disabled(view.function)
    ):
        return STEP_ASIDE if code.co_filename.startswith(OTHER_COMPILER) else SKIP
    note_root(policy, code)
    stance = current_stance()
    if stance == "eager_on_recompile" or holds_watched(view):
        return RUN_ONCE
    if stance == "eager_then_compile" and is_first_call(region, policy, view):
        return RUN_ONCE
    if around := surroundings(view):
        return run_inside(policy, code, around)
    if stance == "fail_on_recompile":
        return refuse(region, policy, view)
    return _capture_in_turn(region, policy, view)


def _capture_in_turn(region: Region, policy: Policy, view: FrameView) -> Any:
    """Capture unless another thread captures this code, which may give the entry wanted here."""
    may_wait = True
    while True:
        with deferred(), turns.take(region, view.code, may_wait) as is_ours:
            if is_ours and region.changes != view.changes and may_wait:
                return LOOK_AGAIN
            if is_ours and len(region.entries(view.code)) >= config.recompile_limit:
                return limit_reached(policy, view)
            if is_ours:
                number = len(region.entries(view.code))
                with uncollected, observed(view, number) as report:
                    found = _find_or_capture(region, policy, view, report)
                _store(region, view.code, found)
                return found
        may_wait = turns.wait(region, view.code)
        if may_wait:
            return LOOK_AGAIN


def _find_or_capture(
    region: Region, policy: Policy, view: FrameView, report: FrameReport | None
) -> Any:
    keeper = frame_keeper(region, policy, view, report)
    if keeper is None:
        return capture_frame(region, policy, view, report, None)
    try:
        found = keeper.find()
        return found or capture_frame(region, policy, view, report, keeper)
    finally:
        keeper.close()


def _store(region: Region, code: CodeType, found: Any) -> None:
    """Store what a capture gave while other threads wait: the next one looks at the entries."""
    if isinstance(found, Entry):
        region.add(code, found)
    elif found is SKIP:
        region.skip(code)
