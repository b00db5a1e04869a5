"""Rewrites of the functional graph (C2), before decomposition replaces the ATen operators."""

from .freeze import freeze
from .joint import lay_out_images
from .layout import has_images
from .rewrite import rewrite_patterns

__all__ = ["freeze", "has_images", "lay_out_images", "rewrite_patterns"]
