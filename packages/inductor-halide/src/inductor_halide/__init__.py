"""Halide pipelines from loop kernels."""

from typing import TYPE_CHECKING

from loopir import lazy_names

if TYPE_CHECKING:
    from .generator import HalideCodeGenerator

__version__ = "0.2.0"

__all__ = ["HalideCodeGenerator"]

__getattr__, __dir__ = lazy_names(__name__)
