"""The pattern pipeline, read top to bottom."""

from __future__ import annotations

from collections.abc import Mapping

from symshapes.decisions import may
from torch import fx

from loopir.backend import CodeGenerator
from loopir.options import Options

from .attention import fuse_attention
from .bias import part_biases
from .cleanup import clean_up
from .contraction import offer_contractions
from .creation import create_where_read
from .fold import fold_batch_norms, fold_constants
from .grouped_queries import group_queries
from .layout import choose_layouts
from .match import keep_outputs, remove_dead
from .offered_attention import offer_attention
from .padding import pad_products
from .products import multiply_convolutions
from .scalars import move_scalars


def rewrite_patterns(
    gm: fx.GraphModule,
    codegens: Mapping[str, CodeGenerator] | None = None,
    options: Options | None = None,
) -> fx.GraphModule:
    """Rewrites a functional graph in place and returns it. The results stay the same up to
    rounding.

    Constants (``get_attr``) are folded; a batch norm with constant statistics is folded into its
    convolution; attention in its usual forms becomes one call, for which code generators may have
    operators, and which on the CPU does not repeat keys for a single query; padding, concatenation
    and bias additions are simplified; code generators may replace convolutions and linear layers
    together with the pointwise operations after them; small convolutions and patches in training
    become matrix products; biases of convolutions on CUDA devices become additions in loops; sizes
    of 16-bit products on CUDA devices are padded to multiples of 8; what the CPU makes from numbers
    for another device is made there, and scalars that it computes are copied together; convolution
    nets use channels-last where that is faster.
    """
    options = options or Options()
    if not options.patterns:
        return gm
    keep_outputs(gm)
    remove_dead(gm)
    if may("pattern", "fold_batch_norms"):
        fold_batch_norms(gm)
    clean_up(gm)
    if options.inference:
        fuse_attention(gm)
        if options.templates:
            offer_attention(gm, codegens or {})
        group_queries(gm)
    if may("pattern", "fold_constants"):
        fold_constants(gm, options.freeze)
    if not options.inference:
        multiply_convolutions(gm)
    if options.templates and may("pattern", "offer_contractions"):
        offer_contractions(gm, codegens or {}, options.inference)
    part_biases(gm)
    pad_products(gm)
    create_where_read(gm)
    if may("pattern", "move_scalars"):
        move_scalars(gm)
    if options.layouts and may("pattern", "choose_layouts"):
        choose_layouts(gm, options.inference)
    if may("pattern", "fold_constants"):
        fold_constants(gm)
    remove_dead(gm)
    return gm
