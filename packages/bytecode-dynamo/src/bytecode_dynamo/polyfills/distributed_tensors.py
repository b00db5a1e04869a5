"""How tensors of all ranks become one DTensor, as Python that is evaluated in torch's place: torch
talks to other ranks in ways that graphs do not hold.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from .collectives import group_name, root_of

_OPERATORS: Any = torch.ops._c10d_functional
_world: Any = torch.distributed
_DTYPES = sorted({x for x in vars(torch).values() if isinstance(x, torch.dtype)}, key=str)


def refuse(what: str) -> NoReturn:
    """Break the graph."""
    raise NotImplementedError


def distribute_tensor(
    tensor: Any, device_mesh: Any = None, placements: Any = None, *, src_data_rank: Any = 0
) -> Any:
    """``torch.distributed.tensor.distribute_tensor``."""
    kinds = _world.tensor
    if device_mesh is None or isinstance(tensor, kinds.DTensor):
        refuse("distribute_tensor of a DTensor, or without a mesh")
    if not tensor.is_leaf:
        raise RuntimeError(
            "`distribute_tensor` should be used to distribute leaf tensors! but found non-leaf "
            "tensor!"
        )
    placements = [kinds.Replicate()] * device_mesh.ndim if placements is None else list(placements)
    if len(placements) != device_mesh.ndim:
        raise ValueError(
            f"`placements` must have the same length as `device_mesh.ndim`! Found placements "
            f"length: {len(placements)}, and device_mesh.ndim: {device_mesh.ndim}."
        )
    if device_mesh.get_coordinate() is None:
        refuse("distribute_tensor in a rank outside of the mesh")
    if device_mesh.device_type != tensor.device.type:
        tensor = tensor.to(device_mesh.device_type)
    local = tensor.detach()
    for i, placement in enumerate(placements):
        if type(placement) is kinds.Replicate:
            local = _replicated(local, device_mesh, i, src_data_rank)
        elif type(placement) is kinds.Shard:
            dim = placement.dim % tensor.dim()
            placements[i] = kinds.Shard(dim)
            local = _shard(local, device_mesh, i, dim, src_data_rank)
        else:
            refuse("distribute_tensor with a placement that is no Shard or Replicate")
    result = kinds.DTensor.from_local(
        local, device_mesh, placements, shape=tensor.size(), stride=tensor.stride()
    )
    return result.requires_grad_() if tensor.requires_grad else result


def _replicated(local: Any, mesh: Any, i: int, source: Any) -> Any:
    local = local.contiguous()
    if source is not None:
        _world.broadcast(local, group=mesh.get_group(i), group_src=source)
    return local


def _shard(local: Any, mesh: Any, i: int, dim: int, source: Any) -> Any:
    if source is not None:
        group = mesh.get_group(i)
        sent = _OPERATORS.broadcast(
            local.contiguous(), root_of(group, None, source), group_name(group)
        )
        local = _OPERATORS.wait_tensor(sent)
    parts, rank = torch.chunk(local, mesh.size(i), dim), mesh.get_coordinate()[i]
    if rank < len(parts):
        return parts[rank].clone(memory_format=torch.contiguous_format)
    return local.new_empty([0 if d == dim else size for d, size in enumerate(local.shape)])


def checked_local(local: Any, mesh: Any, placements: Any, shape: Any) -> Any:
    """The argument of ``from_local`` with ``run_check=True``."""
    if mesh.get_coordinate() is None:
        refuse("from_local in a rank outside of the mesh")
    if _world.get_world_size() > 1:
        _check_metadata(local, not shape)
    for i, placement in enumerate(placements):
        if placement.is_replicate():
            local = _replicated(local, mesh, i, 0)
    return local


def _check_metadata(local: Any, with_sizes: bool) -> None:
    numbers = [_DTYPES.index(local.dtype), local.requires_grad]
    if with_sizes:
        numbers += [local.dim(), *local.shape, *local.stride()]
    own = torch.zeros(1, dtype=torch.int64, device=local.device)
    for number in numbers:  # ranks may have different dims: one number tells all of them apart
        own = own * 1000003 + number
    every = torch.empty(_world.get_world_size(), dtype=torch.int64, device=local.device)
    _world.all_gather_into_tensor(every, own)
    torch._assert_async(
        (every == own).all(),
        "Inconsistent tensor metadata (including shape and stride) across ranks.",
    )
