"""Triton kernels from loop kernels: source generation, compilation, and launch; without a GPU, an
interpreter.
"""

from typing import TYPE_CHECKING

from loopir import lazy_names

if TYPE_CHECKING:
    from inductor_triton.cuda_graphs.replay import Replay, accelerate, counters
    from inductor_triton.kernels.codegen import generate_source
    from inductor_triton.kernels.heuristics import Workload
    from inductor_triton.kernels.passes.split_reductions import Split, split_reduction
    from inductor_triton.launching.compile import Binary, Variant, compile_ptx
    from inductor_triton.launching.extension import launch_counts
    from inductor_triton.launching.launch import Launch, Launcher

    from .generator import TritonCodeGenerator, compile_graph
    from .spec import Config, LaunchSpec, launch_spec

__version__ = "0.2.0"

__all__ = [
    "Binary", "Config", "Launch", "LaunchSpec", "Launcher", "Replay", "Split",
    "TritonCodeGenerator", "Variant", "Workload",
    "accelerate", "compile_graph", "compile_ptx", "counters", "generate_source", "launch_counts",
    "launch_spec",
    "split_reduction",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
