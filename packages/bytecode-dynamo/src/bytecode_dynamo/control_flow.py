"""Python programs with the meaning of torch functions that would start another compiler.

They are evaluated in place of the originals, and frames of the originals run them: the signatures are the same.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.utils import _pytree as pytree


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """``torch.cond``."""
    return true_fn(*operands) if pred else false_fn(*operands)


def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    """``torch._higher_order_ops.while_loop``."""
    while cond_fn(*carried_inputs):
        carried_inputs = body_fn(*carried_inputs)
    return carried_inputs


def map(f: Any, xs: Any, *args: Any) -> Any:
    """``torch._higher_order_ops.map``."""
    leaves, spec = pytree.tree_flatten(xs)
    rows = [f(pytree.tree_unflatten([leaf[k] for leaf in leaves], spec), *args) for k in range(leaves[0].shape[0])]
    return _stacked(rows, 0)


def scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    """``torch._higher_order_ops.scan``."""
    leaves, spec = pytree.tree_flatten(xs)
    count, carry, rows = leaves[0].shape[dim], init, []
    for k in reversed(range(count)) if reverse else range(count):
        carry, row = combine_fn(carry, pytree.tree_unflatten([leaf.select(dim, k) for leaf in leaves], spec))
        rows.append(row)
    return carry, _stacked(rows[::-1] if reverse else rows, 0)


def stack_module_state(models: Any) -> Any:
    """``torch.func.stack_module_state``."""
    if len(models) == 0:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({model.training for model in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to have the same training/eval mode.")
    if any(type(model) is not type(models[0]) for model in models):
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    states = [(dict(model.named_parameters()), dict(model.named_buffers())) for model in models]
    return tuple({name: _leaf([state[k][name] for state in states]) for name in states[0][k]} for k in range(2))


def _leaf(tensors: list[Any]) -> Any:
    wanted = {tensor.requires_grad for tensor in tensors}
    if len(wanted) > 1:
        raise RuntimeError("Expected all tensors of a name to have the same .requires_grad")
    stacked = torch.stack(tensors).detach()
    return stacked.requires_grad_() if wanted == {True} else stacked


def check_is_size(i: Any, message: Any = None, *, max: Any = None) -> None:
    """``torch._check_is_size``."""
    torch._check(i >= 0, message)
    if max is not None:
        torch._check(i <= max, message)


def _stacked(rows: list[Any], dim: int) -> Any:
    flat = [pytree.tree_flatten(row) for row in rows]
    columns = zip(*(leaves for leaves, _ in flat))
    return pytree.tree_unflatten([torch.stack(column, dim) for column in columns], flat[0][1])


_POLYFILLS = {"cond.py": cond, "while_loop.py": while_loop, "map.py": map, "scan.py": scan}


def polyfill_of(code: types.CodeType) -> types.FunctionType | None:
    """The program to run in place of a function of torch's, by its code."""
    found = _POLYFILLS.get(code.co_filename.rpartition("torch/_higher_order_ops/")[2])
    same = found is not None and found.__name__ == code.co_qualname and found.__code__.co_argcount == code.co_argcount
    return found if same else None
