"""Python programs with the meaning of torch functions that would start another compiler.

They are evaluated in place of the originals, and frames of the originals run them: the signatures are the same.
"""

from __future__ import annotations

import types
from typing import Any


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """``torch.cond``."""
    return true_fn(*operands) if pred else false_fn(*operands)


def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    """``torch._higher_order_ops.while_loop``."""
    while cond_fn(*carried_inputs):
        carried_inputs = body_fn(*carried_inputs)
    return carried_inputs


_POLYFILLS = {"cond.py": cond, "while_loop.py": while_loop}


def polyfill_of(code: types.CodeType) -> types.FunctionType | None:
    """The program to run in place of a function of torch's, by its code."""
    found = _POLYFILLS.get(code.co_filename.rpartition("torch/_higher_order_ops/")[2])
    same = found is not None and found.__name__ == code.co_qualname and found.__code__.co_argcount == code.co_argcount
    return found if same else None
