"""Small tensors as text: the constants that a program makes, such as ``torch.tensor([1, 2])``."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import torch
from symshapes.text.values import format_value, parse_value

STORED = "stored_"
"""Begins the names of tensors that are stored; others are the captured graph's."""
LARGEST = 4096
"""The number of elements up to which a tensor is stored."""


def is_storable(tensor: torch.Tensor) -> bool:
    """Whether a tensor may be stored: small, plain, on the CPU."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_inference())
        and tensor.numel() <= LARGEST
    )


def constants_text(constants: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """The texts of those that are stored, by name."""
    return {
        name: format_value((tensor.dtype, tuple(tensor.shape), tensor.flatten().tolist()))
        for name, tensor in constants.items()
        if name.startswith(STORED)
    }


def read_constants(texts: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """The tensors of texts. Raises ParseError."""
    return {name: _read(text) for name, text in texts.items()}


def _read(text: str) -> torch.Tensor:
    dtype, shape, values = parse_value(ast.parse(text, mode="eval").body)
    return torch.tensor(values, dtype=dtype).reshape(shape)
