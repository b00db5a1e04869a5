"""Decompositions of ATen operators into prims, by family. ``DEFAULT`` holds them all."""

from primops.decompositions import (
    activation,
    arithmetic,
    batch_norm,
    creation,
    elementary,
    embedding_bag,
    foreach,
    grid_sample,
    indexing,
    interpolation,
    linear,
    loss,
    margin,
    normalization,
    pooling,
    quantization,
    random,
    reduction,
    scatter,
    special,
    strided,
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
    interpolation.rules,
    grid_sample.rules,
    scatter.rules,
    special.rules,
    strided.rules,
    linear.rules,
    margin.rules,
    foreach.rules,
    embedding_bag.rules,
    quantization.rules,
)

RANDOM_OPS = tuple(random.rules)
seeded_rule = random.seeded_rule
