"""Operands that eager kernels refuse but meta kernels accept, by dtype or emptiness.

A graph's operators are assumed to succeed: dead ones are removed, and generated code may compute
what a kernel refuses. So each kernel is called once per process and kind of operands, with small
real tensors. A refusal counts only if it is about dtypes or emptiness: the same call must succeed
with other dtypes, or with elements. Everything else is left to the meta kernel, which knows the
sizes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

_KEY = torch._C.DispatchKey
_KeySet = torch._C.DispatchKeySet
_ABOVE = (  # keys that a program may have enabled
    _KeySet(_KEY.AutocastCPU)
    | _KeySet(_KEY.FuncTorchDynamicLayerFrontMode)
    | _KeySet(_KEY.FuncTorchDynamicLayerBackMode)
    | _KeySet(_KEY.Functionalize)
)
_SYMBOLIC: dict[type, Any] = {torch.SymInt: 1, torch.SymFloat: 1.0, torch.SymBool: True}
_NAMES = """
index index_put _unsafe_index_put _index_put_impl index_add index_copy index_fill index_reduce
index_select gather scatter scatter_add scatter_reduce take masked_fill masked_scatter where
embedding nll_loss_forward mse_loss smooth_l1_loss huber_loss binary_cross_entropy mm bmm addmm
baddbmm addbmm mv addmv dot vdot addr max min amax amin argmax argmin aminmax mode median nanmedian
kthvalue topk sort var std var_mean std_mean mean sum prod any all cumsum cumprod cummax cummin
logcumsumexp logsumexp norm linalg_vector_norm _softmax _log_softmax softplus gelu silu floor_divide
complex polar hardswish log_sigmoid_forward _cdist_forward linalg_cross _prelu_kernel
reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
replication_pad3d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d
upsample_bilinear2d upsample_bicubic2d _upsample_nearest_exact1d _upsample_nearest_exact2d
_adaptive_avg_pool2d _adaptive_avg_pool3d
"""
_ASKED = frozenset(_NAMES.split())
"""User-facing operators that are not pointwise, or not tagged as such."""
_TAKE_NOTHING = frozenset("var std var_mean std_mean".split())
"""Operators that accept tensors without elements, with a warning that a probe must not give."""
REPEATED = (
    "unsupported operation: more than one element of the written-to tensor refers to a single "
    "memory location. Please clone() the tensor before performing the operation."
)
# Other constants may settle a kind of call whose probe was inconclusive.
_MAX_TRIES = 2

Change = Callable[[torch.dtype], torch.dtype]
_OTHER_DTYPES: tuple[Change, ...] = (
    lambda dtype: torch.float32 if dtype.is_floating_point else dtype,
    lambda dtype: torch.int64 if _is_integer(dtype) else dtype,
    lambda dtype: torch.float32 if dtype is not torch.int64 else dtype,
    lambda dtype: torch.float32,
    lambda dtype: torch.int64,
)

_answers: dict[Any, str | None] = {}
_needs: dict[Any, bool] = {}
_tries: dict[Any, int] = {}


def check_operands(func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Raises RuntimeError for a call on CPU fakes that eager's kernel refuses.

    List writes are probed on every device: whether a result fits a dtype depends on none.
    """
    if not _can_ask(func):
        return
    parts: list[Any] = [func]
    is_anywhere = _writes_lists(func)
    if is_anywhere and any(map(_repeats_elements, args[0])):
        raise RuntimeError(REPEATED)
    if not all(_append_kinds(parts, value, is_anywhere) for value in (args, tuple(kwargs.items()))):
        return
    if (
        "symbolic" in parts
        and func._schema.name.removeprefix("aten::") not in _TAKE_NOTHING
        and _needs_elements(tuple(parts), func, args, kwargs)
        and _is_empty((args, kwargs))
    ):
        with torch._C._DisableTorchDispatch():
            args, kwargs = _with_zero_sizes(args), _with_zero_sizes(kwargs)
        parts = [func, "zero sizes"]
        _append_kinds(parts, (args, tuple(kwargs.items())), is_anywhere)
    key = tuple(parts)
    if key not in _answers:
        answer, is_final = _ask(func, args, kwargs)
        _tries[key] = _tries.get(key, 0) + 1
        if is_final or _tries[key] == _MAX_TRIES:
            _answers[key] = answer
    else:
        answer = _answers[key]
    if answer is not None and (_on_cpu(args) or "can't be cast" in answer):
        raise RuntimeError(answer)


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _writes_lists(func: Any) -> bool:
    return func._schema.is_mutable and func._schema.name.startswith("aten::_foreach_")


def _repeats_elements(t: torch.Tensor) -> bool:
    return any(
        type(step) is int and not step and bool(size > 1) for size, step in zip(t.shape, t.stride())
    )


def _on_cpu(args: tuple) -> bool:
    first = args[0][0] if isinstance(args[0], (list, tuple)) and args[0] else args[0]
    return not isinstance(first, torch.Tensor) or first.device.type == "cpu"


@cache
def _can_ask(func: Any) -> bool:
    """Whether a probe is safe: it only affects its operands, and the kernel checks sizes.

    Backward kernels trust their sizes, so a probe could read out of bounds.
    """
    schema = getattr(func, "_schema", None)
    if schema is None or func.namespace != "aten" or "backward" in schema.name:
        return False
    if not schema.is_mutable and any(result.alias_info is not None for result in schema.returns):
        return False
    is_pointwise = (
        torch.Tag.pointwise in func.tags and torch.Tag.nondeterministic_seeded not in func.tags
    )
    name = schema.name.removeprefix("aten::").removesuffix("_")
    return is_pointwise or name in _ASKED or name.startswith("_foreach_")


def _append_kinds(parts: list[Any], value: Any, is_anywhere: bool) -> bool:
    """Appends what the answer may depend on; False for operands that cannot be probed."""
    if isinstance(value, torch.Tensor):
        can_run = is_anywhere or value.device.type == "cpu"
        if not can_run or value.layout is not torch.strided or value.is_quantized:
            return False
        sizes = (_extent(size) if type(size) is int else "symbolic" for size in value.shape)
        parts += (value.dtype, *sizes, "|")
        return True
    if isinstance(value, (list, tuple)):
        parts.append(len(value))
        return all(_append_kinds(parts, item, is_anywhere) for item in value)
    if type(value) in (int, float):
        parts += (type(value), (value > 0) - (value < 0))
    elif isinstance(value, (bool, str, torch.dtype)):
        parts += (type(value), value)
    else:
        parts.append(type(value))
    return True


def _extent(size: Any) -> int:
    """A dim of a probe: 0 and 1 stay since they broadcast; else 3, as ``cross`` needs."""
    return size if type(size) is int and size < 2 else 3


@contextmanager
def _real_kernels() -> Iterator[None]:
    """Within, operators on real tensors run eager's kernels, whatever is active outside."""
    with (
        torch._C._DisableTorchDispatch(),
        torch._C._DisablePythonDispatcher(),
        torch._C.DisableTorchFunction(),
    ):
        yield


def _ask(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[str | None, bool]:
    """Eager's error message or None, and whether it holds for all calls of this kind."""

    attempt = partial(_error_of, func, args, kwargs)
    with _real_kernels():
        # index 0 is in range; a divisor must not be 0; a symbolic size may meet a plain 1
        error = attempt(0) and attempt(1) and attempt(0, unknown=1)
        if error is None:
            return None, True
        accepts_others = any(
            attempt(fill, change) is None for change in _OTHER_DTYPES for fill in (0, 1)
        )
        wants_elements = (attempt(0, least=3) and attempt(1, least=3)) is None
        # a symbolic size beside one of 0 may be 0 as well
        if accepts_others or (wants_elements and attempt(0, unknown=0)):
            return error, True
    return None, False


def _needs_elements(key: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether eager's kernel accepts such operands unless their symbolic sizes are 0."""
    if key not in _needs:

        def fails(unknown: int) -> bool:
            errors = (_error_of(func, args, kwargs, fill, unknown=unknown) for fill in (0, 1))
            return all(error is not None for error in errors)

        with _real_kernels():
            _needs[key] = fails(0) and not fails(3)
    return _needs[key]


def _is_empty(tree: Any) -> bool:
    tensors = [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]
    return any(_is_zero(size) for tensor in tensors for size in tensor.shape)


def _is_zero(size: Any) -> bool:
    """Whether a symbolic size is 0, with a guard; a data-dependent one is assumed not to be."""
    if not isinstance(size, torch.SymInt):
        return False
    if size.node.expr.free_symbols & size.node.shape_env.unbacked:
        torch._check(size != 0)
        return False
    return bool(size == 0)


def _with_zero_sizes(tree: Any) -> Any:
    """Small tensors with size 0 where a symbolic one is 0."""

    def small(t: torch.Tensor) -> torch.Tensor:
        sizes = [0 if _is_zero(size) else _extent(size) for size in t.shape]
        return torch.empty(sizes, dtype=t.dtype, device="cpu")

    return pytree.tree_map_only(torch.Tensor, small, tree)


def _small(tree: Any, fill: int, change: Change | None, least: int, unknown: int) -> Any:
    """Small real operands: sizes are at least ``least``, symbolic ones ``unknown``."""

    def small(value: Any) -> Any:
        if isinstance(value, bool) and change is not None:
            return int(value)
        if not isinstance(value, torch.Tensor):
            return _SYMBOLIC.get(type(value), value)
        dtype = value.dtype if change is None else change(value.dtype)
        sizes = [
            max(least, _extent(size) if type(size) is int else unknown) for size in value.shape
        ]
        return torch.full(sizes, fill if _is_integer(dtype) else 1, dtype=dtype, device="cpu")

    return pytree.tree_map(small, tree)


def _error_of(
    func: Any,
    args: tuple,
    kwargs: dict[str, Any],
    fill: int,
    change: Change | None = None,
    least: int = 0,
    unknown: int = 3,
) -> str | None:
    """Eager's error message for operands like these, or None; the rest is as in ``_small``."""
    args, kwargs = _small((args, kwargs), fill, change, least, unknown)
    below = torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(_ABOVE)
    with below[0], below[1], torch._C._PreserveDispatchKeyGuard(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            func(*args, **kwargs)
        except Exception as error:
            return str(error)
    return None
