"""Decompositions of ATen operators into prims, by family. ``DEFAULT`` holds them all."""

from primops.decompositions import (
    activation,
    arithmetic,
    batch_norm,
    creation,
    elementary,
    indexing,
    loss,
    normalization,
    pooling,
    random,
    reduction,
    view,
)

DEFAULT = arithmetic.rules.merged(
    elementary.rules,
    activation.rules,
    view.rules,
    reduction.rules,
    normalization.rules,
    batch_norm.rules,
    loss.rules,
    indexing.rules,
    creation.rules,
    random.rules,
    random.derivatives,
    pooling.rules,
)

RANDOM_OPS = tuple(random.rules)
