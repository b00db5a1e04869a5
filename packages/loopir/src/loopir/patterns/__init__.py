"""Rewrites of the functional graph (C2) before decomposition, while operators still have their
names.
"""

from loopir.patterns.freeze import freeze
from loopir.patterns.joint import lay_out_images
from loopir.patterns.rewrite import rewrite_patterns

__all__ = ["freeze", "lay_out_images", "rewrite_patterns"]
