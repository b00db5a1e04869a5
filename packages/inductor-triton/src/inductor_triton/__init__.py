"""Triton kernels from loop kernels: source generation, compilation, and launch; without a GPU, an
interpreter.
"""

from inductor_triton.codegen import generate_source
from inductor_triton.compile import Binary, Variant, compile_ptx
from inductor_triton.extension import launch_counts
from inductor_triton.generator import TritonCodeGenerator, compile_graph
from inductor_triton.heuristics import Config, Workload
from inductor_triton.launch import Launch, Launcher
from inductor_triton.replay import Replay, accelerate, counters
from inductor_triton.spec import LaunchSpec, launch_spec
from inductor_triton.split import Split, split_reduction

__version__ = "0.2.0"

__all__ = [
    "Binary", "Config", "Launch", "LaunchSpec", "Launcher", "Replay", "Split",
    "TritonCodeGenerator", "Variant", "Workload",
    "accelerate", "compile_graph", "compile_ptx", "counters", "generate_source", "launch_counts",
    "launch_spec",
    "split_reduction",
]  # fmt: skip
