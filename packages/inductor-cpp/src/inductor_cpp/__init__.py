"""Vectorised C++/OpenMP kernels from loop kernels."""

from inductor_cpp.codegen import kernel_text
from inductor_cpp.generator import CppCodeGenerator, compile_graph
from inductor_cpp.toolchain import Toolchain, detect_isa, doctor, find_toolchain

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
