"""Python programs with the meaning of torch functions that would start another compiler.

They are evaluated in place of the originals, and frames of the originals run them: the signatures
are the same.
"""

from __future__ import annotations

import math
import types
from dataclasses import replace
from functools import partial
from inspect import CO_VARARGS
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bytecode_dynamo.bytecode import Emitter, Op, decode, encode

from . import nested


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """``torch.cond``."""
    return true_fn(*operands) if pred else false_fn(*operands)


def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    """``torch._higher_order_ops.while_loop``."""
    while cond_fn(*carried_inputs):
        carried_inputs = body_fn(*carried_inputs)
    return carried_inputs


def nested_region(func: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of a function that ``torch.compiler.nested_compile_region`` marked."""
    return func(*args, **kwargs)


def map(f: Any, xs: Any, *args: Any) -> Any:
    """``torch._higher_order_ops.map``."""
    leaves, spec = pytree.tree_flatten(xs)
    rows = [
        f(pytree.tree_unflatten([leaf[k] for leaf in leaves], spec), *args)
        for k in range(leaves[0].shape[0])
    ]
    return _stacked(rows, 0)


def scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    """``torch._higher_order_ops.scan``."""
    leaves, spec = pytree.tree_flatten(xs)
    dim %= leaves[0].dim()
    count, carry, rows = leaves[0].shape[dim], init, []
    for k in reversed(range(count)) if reverse else range(count):
        carry, row = combine_fn(
            carry, pytree.tree_unflatten([leaf.select(dim, k) for leaf in leaves], spec)
        )
        rows.append(row)
    stacked = _stacked(rows[::-1] if reverse else rows, 0)
    return carry, pytree.tree_map(
        lambda row: row.movedim(0, dim) if dim < row.dim() else row, stacked
    )


def associative_scan(
    combine_fn: Any, xs: Any, dim: Any, reverse: Any = False, combine_mode: Any = "pointwise"
) -> Any:
    """``torch._higher_order_ops.associative_scan``, in a number of steps that grows as the
    logarithm of the length (Blelloch, Prefix sums and their applications, 1990).
    """
    leaves, spec = pytree.tree_flatten(xs)
    if not leaves:
        raise ValueError("Expected at least 1 xs leaf")
    if combine_mode not in ("pointwise", "generic"):
        raise ValueError(
            f"Combine_mode must either 'pointwise' or 'generic', but got {combine_mode}"
        )
    if combine_mode == "pointwise" and any(leaf.device.type == "cpu" for leaf in leaves):
        raise ValueError(
            "For combine_mode='pointwise', all input tensors need to be on CUDA or XPU"
        )
    combine_rows = combine_fn if combine_mode == "pointwise" else torch.vmap(combine_fn)
    rows = [leaf.movedim(dim, 0) for leaf in leaves]
    if reverse:
        rows = [row.flip(0) for row in rows]
    rows = _prefixes(combine_rows, spec, rows)
    if reverse:
        rows = [row.flip(0) for row in rows]
    return pytree.tree_unflatten([row.movedim(0, dim) for row in rows], spec)


def _prefixes(combine_rows: Any, spec: Any, rows: list[Any]) -> list[Any]:
    """What rows up to each one combine to: the prefixes of pairs are those of odd places."""
    if rows[0].shape[0] < 2:
        return rows

    def combined(first: list[Any], second: list[Any]) -> list[Any]:
        both = (pytree.tree_unflatten(part, spec) for part in (first, second))
        return pytree.tree_leaves(combine_rows(*both))

    pairs = combined([row[:-1:2] for row in rows], [row[1::2] for row in rows])
    odd = _prefixes(combine_rows, spec, pairs)
    even = [row[:1] for row in rows]
    if rows[0].shape[0] > 2:
        rest = [row[2::2] for row in rows]
        before = [prefix[: rest[0].shape[0]] for prefix in odd]
        even = [torch.cat(parts) for parts in zip(even, combined(before, rest))]
    length = odd[0].shape[0]
    merged = [torch.stack((a[:length], b), 1).flatten(0, 1) for a, b in zip(even, odd)]
    return [torch.cat((both, a[length:])) for both, a in zip(merged, even)]


def wrap_with_autocast(
    self: Any,
    device_type: str,
    dtype: Any,
    enabled: bool,
    cache_enabled: bool | None,
    wrapped_func: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``torch.ops.higher_order.wrap_with_autocast``, which exported programs call."""
    with torch.autocast(device_type, dtype, enabled, cache_enabled):
        return wrapped_func(*args, **kwargs)


def wrap_with_set_grad_enabled(
    self: Any, enable_grad: bool, wrapped_func: Any, *args: Any, **kwargs: Any
) -> Any:
    """``torch.ops.higher_order.wrap_with_set_grad_enabled``, which exported programs call."""
    with torch.set_grad_enabled(enable_grad):
        return wrapped_func(*args, **kwargs)


def _enter_autocast(*vals: Any) -> Any:
    """``torch.amp.autocast_mode._enter_autocast``, which graphs of torch.compile call."""
    mode = torch.autocast(*vals)
    mode.__enter__()
    return mode


class _GraphFunction(torch.autograd.Function):
    """A function of autograd whose two directions are graphs."""

    @staticmethod
    def forward(ctx: Any, fwd: Any, bwd: Any, marks: Any, *args: Any) -> Any:
        output, ctx.saved = fwd(*args)
        ctx.bwd = bwd
        outputs = output if isinstance(output, (tuple, list)) else (output,)
        constant, dirty = marks
        if dirty:
            ctx.mark_dirty(*(outputs[k] for k in dirty))
        if constant:
            ctx.mark_non_differentiable(*(outputs[k] for k in constant))
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        found = ctx.bwd(*grads, *ctx.saved)
        return (None, None, None, *(found if isinstance(found, (tuple, list)) else (found,)))


def autograd_function_apply(
    self: Any,
    fwd: Any,
    bwd: Any,
    *args: Any,
    non_differentiable_idx: Any = (),
    saved_for_backward_idx: Any = (),
    dirty_idx: Any = (),
) -> Any:
    """``torch.ops.higher_order.autograd_function_apply``, which graphs of torch.compile call."""
    return _GraphFunction.apply(fwd, bwd, (non_differentiable_idx, dirty_idx), *args)


def item_of_each(value: Any, index: Any) -> Any:
    """``value[index]`` with zero-dimensional index tensors that differ across a batch."""
    value, numbers = _without_numbers(value, index)
    for dim, number in numbers:
        value = value[(slice(None),) * dim + (number.reshape(1),)]
    return value.squeeze([dim for dim, _ in numbers])


def set_item_of_each(target: Any, index: Any, value: Any) -> None:
    """``target[index] = value`` with such index tensors."""
    target, numbers = _without_numbers(target, index)
    # in a batch, dimensions before that of an index tensor change places with it
    target = target.movedim([dim for dim, _ in numbers], list(range(len(numbers))))
    if isinstance(value, torch.Tensor):
        value = value.expand(target.shape[len(numbers) :]).unsqueeze(0)
    target[tuple(number.reshape(1) for _, number in numbers)] = value


def _without_numbers(value: Any, index: Any) -> Any:
    """``value`` at the keys that are no tensors, and for each other one its dimension there."""
    keys = index if isinstance(index, tuple) else (index,)
    numbers, dim = [], 0
    for key in keys:
        if key is Ellipsis:
            dim += value.dim() - sum(k is not None and k is not Ellipsis for k in keys)
        else:
            if isinstance(key, torch.Tensor):
                numbers.append((dim, key))
            dim += key is None or isinstance(key, (slice, torch.Tensor))
    rest = tuple(slice(None) if isinstance(key, torch.Tensor) else key for key in keys)
    return value[rest], numbers


def linearize(func: Any, *primals: Any) -> Any:
    """``torch.func.linearize``: each tangent evaluates the function again."""
    return func(*primals), lambda *tangents: torch.func.jvp(func, primals, tangents)[1]


def stack_module_state(models: Any) -> Any:
    """``torch.func.stack_module_state``."""
    if len(models) == 0:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({model.training for model in models}) > 1:
        raise RuntimeError(
            "stack_module_state: Expected all models to have the same training/eval mode."
        )
    if any(type(model) is not type(models[0]) for model in models):
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    states = [(dict(model.named_parameters()), dict(model.named_buffers())) for model in models]
    return tuple(
        {name: _leaf([state[k][name] for state in states]) for name in states[0][k]}
        for k in range(2)
    )


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


def flex_attention(
    query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None,
    scale: Any = None,
    enable_gqa: bool = False, return_lse: bool = False, kernel_options: Any = None, *,
    return_aux: Any = None,
) -> Any:  # fmt: skip
    """``torch.nn.attention.flex_attention``: its functions see all elements at once, by indices
    that broadcast.
    """
    if query.device.type == "cpu" and (
        query.requires_grad or key.requires_grad or value.requires_grad
    ):
        raise NotImplementedError(
            "FlexAttention does not support backward on CPU. Please set the input requires_grad to "
            "False or use another device."
        )
    if not query.dim() == key.dim() == value.dim() == 4:
        raise NotImplementedError("NYI: query, key, and value must be 4D tensors")
    heads, groups = query.size(1), query.size(1) // key.size(1)
    if groups * key.size(1) != heads or (groups > 1 and not enable_gqa):
        raise ValueError(
            f"Expect query and key/value to have the same number of heads but got {heads} and "
            f"{key.size(1)}"
        )
    if block_mask is not None:
        lengths = query.size(-2), key.size(-2)
        if max(block_mask.BLOCK_SIZE) < _NO_BLOCKS and block_mask.seq_lengths != lengths:
            raise ValueError(
                f"block_mask was created for block_mask.shape={block_mask.shape} but got "
                f"q_len={lengths[0]} and kv_len={lengths[1]}."
            )
    scale = query.size(-1) ** -0.5 if scale is None else scale
    wants_highest = return_aux is not None and return_aux.max_scores
    found = None
    if not wants_highest and query.size(0) == key.size(0):
        wants_sums = return_lse or (return_aux is not None and return_aux.lse)
        found = _by_operator(query, key, value, score_mod, block_mask, scale, wants_sums)
    if found is None:
        out, sums, highest = _from_all_scores(query, key, value, score_mod, block_mask, scale)
    else:
        (out, sums), highest = found, None
    if return_aux is not None:
        aux_output = torch.nn.attention.flex_attention.AuxOutput  # type: ignore[attr-defined]
        return out, aux_output(
            lse=sums if return_aux.lse else None, max_scores=highest if wants_highest else None
        )
    return (out, sums) if return_lse else out


def one_operator(
    query: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, blocks: Any, block_size: Any,
    scale: Any, wants_sums: Any,
) -> Any:  # fmt: skip
    """Attention as one operator; None where that can't be, as in a frame that is not captured."""
    return None


_NO_BLOCKS = 1 << 30
"""The size of a block in masks that fit all lengths."""
_BLOCKS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


def _by_operator(
    query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: Any, wants_sums: bool
) -> Any:
    if block_mask is None:
        return one_operator(query, key, value, score_mod, None, None, (0, 0), scale, wants_sums)
    if block_mask.q_num_blocks is None:
        return None
    names = _BLOCKS if block_mask.full_kv_num_blocks is not None else _BLOCKS[:2]
    blocks = [getattr(block_mask, name) for name in names]
    blocks += [getattr(block_mask, name.replace("kv", "q")) for name in names]
    noop_mask = torch.nn.attention.flex_attention.noop_mask  # type: ignore[attr-defined]
    is_open = block_mask.mask_mod is noop_mask
    mask_mod = None if is_open else block_mask.mask_mod
    size = tuple(block_mask.BLOCK_SIZE)
    return one_operator(query, key, value, score_mod, mask_mod, blocks, size, scale, wants_sums)


def _from_all_scores(
    query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: Any
) -> Any:
    groups = query.size(1) // key.size(1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    precise = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(precise) @ key.to(precise).transpose(-2, -1) * scale
    places = _places(scores.shape, query.device)
    if score_mod is not None:
        scores = score_mod(scores, *places)
    if block_mask is not None:
        scores = torch.where(block_mask.mask_mod(*places), scores, -math.inf)
    out = torch._safe_softmax(scores, -1).to(query.dtype) @ value.to(query.dtype)
    if query.transpose(1, 2).is_contiguous():
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
    return out, scores.logsumexp(-1), scores.amax(-1)


def create_mask(mod_fn: Any, B: Any, H: Any, Q_LEN: int, KV_LEN: int, device: Any = None) -> Any:
    """The mask or score tensor of a ``flex_attention`` function of indices."""
    shape = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    places = _places(shape, device)
    if mod_fn.__code__.co_argcount - len(mod_fn.__defaults__ or ()) == 5:
        return ~mod_fn(torch.zeros(shape, device=device), *places).isneginf().expand(shape)
    return mod_fn(*places).expand(shape)


def _places(shape: Any, device: Any) -> list[Any]:
    lengths = [[size if k == dim else 1 for k in range(4)] for dim, size in enumerate(shape)]
    return [torch.arange(size, device=device).view(length) for size, length in zip(shape, lengths)]


_POLYFILLS = {
    **{
        (f"_higher_order_ops/{rule.__name__}.py", rule.__name__): rule
        for rule in (cond, while_loop, map, scan, associative_scan)
    },
    ("_higher_order_ops/invoke_subgraph.py", "invoke_subgraph_placeholder"): nested_region,
    ("_higher_order_ops/wrap.py", "WrapWithAutocast.__call__"): wrap_with_autocast,
    ("nested/_internal/nested_tensor.py", "NestedTensor.__torch_function__"): nested.torch_function,
    ("amp/autocast_mode.py", "_enter_autocast"): _enter_autocast,
    ("_functorch/autograd_function.py", "AutogradFunctionApply.__call__"): autograd_function_apply,
    ("_higher_order_ops/wrap.py", "WrapWithSetGradEnabled.__call__"): wrap_with_set_grad_enabled,
    **{
        ("nn/attention/flex_attention.py", rule.__name__): rule
        for rule in (flex_attention, create_mask)
    },
}


def polyfill_of(code: types.CodeType) -> types.FunctionType | None:
    """The polyfill of a torch function, by its code."""
    found = _POLYFILLS.get((code.co_filename.rpartition("/torch/")[2], code.co_qualname))
    return found if found is not None and found.__code__.co_argcount == code.co_argcount else None


def _spreading(function: Any) -> Any:
    return lambda *given: function(*given[:-1], *given[-1])


def code_calling(function: types.FunctionType) -> types.CodeType:
    """Code with the signature of ``function`` that calls it, for frames with other globals."""
    code = decode(function.__code__)
    names = code.varnames[: code.parameter_count]
    emit = Emitter()
    emit.emit(Op.RESUME, 0)
    spreads = bool(code.flags & CO_VARARGS)
    keywords = () if spreads else names[code.argcount :]
    callee = _spreading(function) if spreads else function
    emit.call_const(callee, [partial(emit.load_fast, name) for name in names], keywords)
    emit.emit(Op.RETURN_VALUE)
    made = {"consts": (None,), "names": (), "varnames": names, "cellvars": (), "freevars": ()}
    return encode(replace(code, instructions=emit.instructions, **made))
