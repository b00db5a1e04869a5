"""Layouts in memory that a sample's tensors can be given."""

from __future__ import annotations

from collections.abc import Callable

import torch


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.ndim not in formats:
        return tensor
    return tensor.contiguous(memory_format=formats[tensor.ndim])


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.mT.contiguous().mT if tensor.ndim >= 2 else tensor


def _every_second(tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack([tensor, tensor], -1)[..., 0] if tensor.ndim else tensor


def _first_expanded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:1].expand(tensor.shape) if tensor.ndim else tensor


def _last_expanded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[..., :1].expand(tensor.shape) if tensor.ndim else tensor


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda tensor: tensor,
    "channels_last": _channels_last,
    "transposed": _transposed,
    "every_second": _every_second,
    "first_expanded": _first_expanded,
    "last_expanded": _last_expanded,
}
"""What is done to each floating tensor of a sample."""
