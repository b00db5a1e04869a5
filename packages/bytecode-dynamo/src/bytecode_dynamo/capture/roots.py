"""A region's root frames: those of the compiled callable itself, not of its callees."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch

from bytecode_dynamo.bytecode import GENERATOR_FLAGS
from bytecode_dynamo.hook.disabling import innermost_function
from bytecode_dynamo.hook.frame_hook import FrameView
from bytecode_dynamo.hook.policy import is_captured_file, is_disabled

from .policy import Policy

MODULE_CALL = torch.nn.Module._wrapped_call_impl.__code__
_INSIDE = torch.nn.Module._call_impl.__code__
MODULE_CALLS = {
    MODULE_CALL,
    _INSIDE,
    *(each for each in _INSIDE.co_consts if isinstance(each, CodeType)),
}
"""Torch's functions between a module's call and its ``forward``."""


def captured_function(target: Any) -> Any:
    """The Python function whose frame is captured when ``target`` is called; None when its calls
    have no such frame.
    """
    function = innermost_function(target)
    if function is not None and is_captured_file(function.__code__.co_filename):
        return function
    return None


def is_graphed(function: Any) -> bool:
    """Whether frames of a function may become graphs."""
    return not (function.__code__.co_flags & GENERATOR_FLAGS or is_disabled(function))


def note_root(policy: Policy, code: CodeType) -> None:
    """Note that code is a root if a call of a compiled module reaches it now: its class and
    ``forward`` may have changed.
    """
    for reference in policy.modules:
        module = reference()
        if module is None:
            continue
        starts = [
            innermost_function(target) for target in (module, getattr(module, "forward", None))
        ]
        if any(function is not None and function.__code__ is code for function in starts):
            policy.roots.add(id(code))


def is_whole(policy: Policy, view: FrameView, original: CodeType) -> bool:
    """Whether a break in a frame is an error.

    Not in the functions before a ``forward`` with a frame of its own: a hook may break there, and
    ``forward`` is checked in its own frame.
    """
    if not policy.fullgraph or id(view.code) not in policy.roots:
        return False
    if original not in MODULE_CALLS:
        return True
    if view.code is not MODULE_CALL:
        return False
    forward = captured_function(getattr(view.locals[0], "forward", None))
    return forward is None or not is_graphed(forward)
