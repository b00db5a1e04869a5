"""Trackers by family of Python values."""

from . import (  # noqa: F401 (each registers what it tracks)
    array,
    cached_function,
    existing_iterators,
    generator_modes,
    new_values,
    reporting,
    tensor_setters,
    wrap_tensor,
)  # fmt: skip
