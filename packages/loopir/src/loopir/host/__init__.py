"""Host programs: Python code that allocates, launches and frees as a program specifies."""

from typing import TYPE_CHECKING

from symshapes.lazy import lazy_names

if TYPE_CHECKING:
    from .host_builder import build_host, generate
    from .host_program import HostProgram
    from .runs import cut_runs, peak_bytes

__all__ = ["HostProgram", "build_host", "cut_runs", "generate", "peak_bytes"]

__getattr__, __dir__ = lazy_names(__name__)
