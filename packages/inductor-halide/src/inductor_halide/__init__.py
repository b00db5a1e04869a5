"""Halide pipelines from loop kernels."""

from .generator import HalideCodeGenerator

__version__ = "0.2.0"

__all__ = ["HalideCodeGenerator"]
