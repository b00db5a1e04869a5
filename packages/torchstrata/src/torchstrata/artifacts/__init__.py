"""Compiled programs as files. Loading one imports no compiler; the names below do."""

from typing import TYPE_CHECKING

from symshapes.lazy import lazy_names

if TYPE_CHECKING:
    from torchstrata.stages import autograd_options, compile_captured

__all__ = ["autograd_options", "compile_captured"]

__getattr__, __dir__ = lazy_names(__name__)
