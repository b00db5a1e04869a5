"""Loop kernels as C++: decisions first, then the text."""

from typing import TYPE_CHECKING

from loopir import lazy_names

if TYPE_CHECKING:
    from .codegen import kernel_text

__all__ = ["kernel_text"]

__getattr__, __dir__ = lazy_names(__name__)
