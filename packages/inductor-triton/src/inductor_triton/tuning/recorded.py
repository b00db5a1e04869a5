"""Configurations as recorded (``symshapes.choices``), instead of those that are preferred or
measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from loopir import Kernel, Template, choose, current_choices, kernel_label, using_choices

from inductor_triton.kernels.tiling import CONFIGURATIONS, config_of
from inductor_triton.products.product import (
    Product,
    has_descriptors,
    matmul_config,
    product_of,
    sizes_of,
)
from inductor_triton.spec import Config, format_config, parse_config

from .selection import Tuner

MEASURED = "measured configurations"
DEFAULT = "default"
"""The record of a kernel of which no configuration could be measured."""


def recorded_tiles(template: Template) -> Config:
    """The recorded tiles of a product, if they fit it; else those of the rules of thumb."""
    preferred = matmul_config(template)
    if current_choices() is None:
        return preferred
    fits, label = partial(_fits, template), kernel_label(template)
    return parse_config(choose(CONFIGURATIONS, label, format_config(preferred), fits))


def recorded_or_measured(tuner: Tuner, kernels: Sequence[Kernel | Template]) -> list[Config | None]:
    """For each kernel the recorded configuration, or the fastest; None for the default."""

    def chosen(kernel: Kernel | Template) -> Config | None:
        def measured() -> str:
            with using_choices(None):
                (config,) = tuner.choose([kernel])
            return DEFAULT if config is None else format_config(config)

        text = choose(MEASURED, kernel_label(kernel), measured, partial(_fits, kernel))
        return None if text == DEFAULT else parse_config(text)

    return [chosen(kernel) for kernel in kernels]


def _fits(kernel: Kernel | Template, text: str) -> bool:
    config = config_of(text)
    if config is None:
        return text == DEFAULT
    if not isinstance(kernel, Template):
        return not config.tma and config.split == 1
    found = product_of(kernel)
    return found is not None and _fits_product(kernel, found, config)


def _fits_product(template: Template, found: Product, config: Config) -> bool:
    _, _, n, k = sizes_of(template, found)
    if config.tf32 != found.tf32 or (config.tma and not has_descriptors(template, found)):
        return False
    if config.split > 1 and (k % (config.split * config.r) or template.sizes or found.ragged):
        return False
    return not template.epilogue.kernel.reduction or config.x >= n
