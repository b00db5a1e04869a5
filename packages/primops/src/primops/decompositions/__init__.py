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
    max_pooling,
    normalization,
    pooling,
    quantization,
    random,
    reduction,
    scatter,
    slicing,
    special,
    strided,
    unfold,
    view,
)

_FAMILIES = (
    arithmetic, elementary, activation, view, slicing, reduction, normalization, batch_norm, loss,
    indexing, creation, random, pooling, max_pooling, unfold, interpolation, grid_sample, scatter,
    special, strided, linear, margin, foreach, embedding_bag, quantization,
)  # fmt: skip
DEFAULT = random.derivatives.merged(*(family.rules for family in _FAMILIES))

RANDOM_OPS = tuple(random.rules)
seeded_rule = random.seeded_rule
