"""Collectives of torch.distributed that write to a tensor, as Python around functional operators,
evaluated in their place.

What the functional operators compute is written without a gradient, as eager mode does.
"""

from __future__ import annotations

from typing import Any

import torch

_OPERATORS: Any = torch.ops._c10d_functional


def group_name(group: Any) -> str:
    """The name of a group (None: all ranks); known while capturing."""
    raise NotImplementedError


def group_size(group: Any) -> int:
    """The number of ranks in a group; known while capturing."""
    raise NotImplementedError


def root_of(group: Any, src: int | None, group_src: int | None) -> int:
    """The sender's rank in a group; known while capturing."""
    raise NotImplementedError


def reduction(op: Any) -> str:
    """The name of a reduction, ``"sum"`` for None; known while capturing."""
    raise NotImplementedError


def refuse_async(async_op: bool) -> None:
    """Break the graph if the caller wants a handle."""
    raise NotImplementedError


def _write(target: Any, pending: Any) -> None:
    with torch.no_grad():
        target.copy_(_OPERATORS.wait_tensor(pending).view(target.shape))


def all_reduce(tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> None:
    """``torch.distributed.all_reduce``."""
    refuse_async(async_op)
    _write(tensor, _OPERATORS.all_reduce(tensor, reduction(op), group_name(group)))


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> None:
    """``torch.distributed.broadcast``."""
    refuse_async(async_op)
    _write(tensor, _OPERATORS.broadcast(tensor, root_of(group, src, group_src), group_name(group)))


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> None:
    """``torch.distributed.all_gather_into_tensor``."""
    refuse_async(async_op)
    given = input_tensor.contiguous()
    _write(
        output_tensor,
        _OPERATORS.all_gather_into_tensor(given, group_size(group), group_name(group)),
    )


def all_gather(tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False) -> None:
    """``torch.distributed.all_gather``."""
    refuse_async(async_op)
    size = group_size(group)
    gathered = _OPERATORS.all_gather_into_tensor(
        tensor.contiguous().flatten(), size, group_name(group)
    )
    parts = _OPERATORS.wait_tensor(gathered).view(size, *tensor.shape).unbind(0)
    with torch.no_grad():
        for target, part in zip(tensor_list, parts, strict=True):
            target.copy_(part)


def reduce_scatter_tensor(
    output: Any, input: Any, op: Any = None, group: Any = None, async_op: bool = False
) -> None:
    """``torch.distributed.reduce_scatter_tensor``."""
    refuse_async(async_op)
    given = input.contiguous().view(group_size(group), -1)
    _write(
        output,
        _OPERATORS.reduce_scatter_tensor(
            given, reduction(op), group_size(group), group_name(group)
        ),
    )


def reduce_scatter(
    output: Any, input_list: Any, op: Any = None, group: Any = None, async_op: bool = False
) -> None:
    """``torch.distributed.reduce_scatter``."""
    refuse_async(async_op)
    given = torch.stack([each.flatten() for each in input_list])
    _write(
        output,
        _OPERATORS.reduce_scatter_tensor(
            given, reduction(op), group_size(group), group_name(group)
        ),
    )


def all_to_all_single(
    output: Any, input: Any, output_split_sizes: Any = None, input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> None:  # fmt: skip
    """``torch.distributed.all_to_all_single``."""
    refuse_async(async_op)
    size = group_size(group)
    given = input_split_sizes or [input.shape[0] // size] * size
    taken = output_split_sizes or [output.shape[0] // size] * size
    _write(
        output, _OPERATORS.all_to_all_single(input.contiguous(), taken, given, group_name(group))
    )
