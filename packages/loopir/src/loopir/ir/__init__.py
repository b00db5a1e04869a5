"""The loop IR: operations, kernels and programs, with their text form, checks and an evaluator."""

from typing import TYPE_CHECKING

from symshapes.lazy import lazy_names

if TYPE_CHECKING:
    from .program import ExternCall
    from .program_reader import parse_program
    from .program_text import format_program

__all__ = ["ExternCall", "format_program", "parse_program"]

__getattr__, __dir__ = lazy_names(__name__)
