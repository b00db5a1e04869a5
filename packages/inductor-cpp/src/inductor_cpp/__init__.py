"""Vectorised C++/OpenMP kernels from loop kernels."""

from typing import TYPE_CHECKING

from loopir import lazy_names

if TYPE_CHECKING:
    from inductor_cpp.building.toolchain import Toolchain, detect_isa, doctor, find_toolchain
    from inductor_cpp.kernels.codegen import kernel_text

    from .generator import CppCodeGenerator, compile_graph

__version__ = "0.2.0"

__all__ = [
    "CppCodeGenerator",
    "Toolchain",
    "compile_graph",
    "detect_isa",
    "doctor",
    "find_toolchain",
    "kernel_text",
]

__getattr__, __dir__ = lazy_names(__name__)
