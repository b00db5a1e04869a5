"""Builds and loads libraries from translation units."""

from typing import TYPE_CHECKING

from loopir import lazy_names

if TYPE_CHECKING:
    from .build import build_kernels
    from .link import link_runs
    from .linked_run import describe_runs, reload_runs

__all__ = ["build_kernels", "describe_runs", "link_runs", "reload_runs"]

__getattr__, __dir__ = lazy_names(__name__)
