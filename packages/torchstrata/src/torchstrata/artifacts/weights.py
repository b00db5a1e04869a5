"""Parameters and buffers of a saved program: from a module, a safetensors file, or its own file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import safetensors
import safetensors.torch
import torch

from torchstrata.errors import ArtifactError, UsageError

from .archive import Archive
from .facts import TensorNeed

CONSTANTS, WEIGHTS = "constants.safetensors", "weights.safetensors"
"""Members of a file."""
Given: TypeAlias = str | os.PathLike[str] | Mapping[str, torch.Tensor] | None


@dataclass(frozen=True, slots=True)
class Owners:
    """The dictionaries that hold the parameters and buffers, which programs may replace, with their
    names there.
    """

    places: Mapping[str, tuple[Mapping[str, torch.Tensor | None], str]]

    @staticmethod
    def of(model: torch.nn.Module, names: Iterable[str]) -> Owners:
        """Those of a module."""
        places = {}
        for name in names:
            path, _, last = name.rpartition(".")
            owner = model.get_submodule(path)
            places[name] = (
                owner._parameters if last in owner._parameters else owner._buffers,
                last,
            )
        return Owners(places)

    def now(self) -> dict[str, torch.Tensor]:
        """The tensors by name."""
        return {name: owner[last] for name, (owner, last) in self.places.items()}  # type: ignore[misc]


def find_weights(
    archive: Archive, given: Given, need: Mapping[str, TensorNeed]
) -> dict[str, torch.Tensor]:
    """The tensors that a program needs: those given by name, else those of a safetensors file, else
    those in the program's file. Raises UsageError if there are none, ArtifactError for a file that
    can't be read.
    """
    if isinstance(given, Mapping):
        return dict(given)
    try:
        if given is not None:
            found = safetensors.torch.load_file(given)
        elif WEIGHTS in archive.parts:
            found = safetensors.torch.load(archive.parts[WEIGHTS])
        else:
            found = {}
    except (OSError, safetensors.SafetensorError) as error:
        raise ArtifactError(f"can't read the weights {given or archive.path}: {error}") from error
    if need and not found:
        raise UsageError(
            f"{archive.path} has no weights: pass the model, or weights= a safetensors file; "
            f"save(..., weights=True) keeps them in the file"
        )
    return {name: _placed(found[name], fact) for name, fact in need.items() if name in found}


def _placed(tensor: torch.Tensor, fact: TensorNeed) -> torch.Tensor:
    """The tensor on the device and in the layout that a program needs; as it is if it is another
    one, for a check to say so.
    """
    if tensor.shape != fact.sizes or tensor.dtype != fact.dtype:
        return tensor
    sizes: Sequence[int] = tensor.shape
    placed = torch.empty_strided(sizes, fact.strides, dtype=fact.dtype, device=fact.device)  # type: ignore[arg-type]
    return placed.copy_(tensor).requires_grad_(fact.requires_grad)


def to_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors in the format of safetensors, each with memory of its own."""
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    try:
        return safetensors.torch.save(plain)
    except (ValueError, KeyError, RuntimeError) as error:
        raise ArtifactError(f"can't write tensors: {error}") from error
