"""Rewrites of the functional graph (C2), before decomposition replaces the ATen operators."""

from .freeze import freeze
from .joint import lay_out_images
from .rewrite import rewrite_patterns

__all__ = ["freeze", "lay_out_images", "rewrite_patterns"]
