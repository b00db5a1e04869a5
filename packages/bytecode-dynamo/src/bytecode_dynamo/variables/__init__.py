"""Trackers by family of Python values."""

from . import (  # noqa: F401 (each registers what it tracks)
    array,
    cached_function,
    new_values,
    reporting,
    tensor_setters,
    underlying,
    wrap_tensor,
)  # fmt: skip
