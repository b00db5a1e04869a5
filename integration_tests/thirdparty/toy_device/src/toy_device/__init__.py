"""A device type "toy" as a vendor ships one: tensors, and a code generator by entry point."""

import ctypes
import subprocess
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import loopir
import torch


def _library() -> Path:
    source = Path(__file__).with_name("device.cpp")
    built = source.with_suffix(".so")
    if not built.exists():
        root = Path(torch.__file__).parent
        command = [
            "g++",
            "-shared",
            "-fPIC",
            "-std=c++20",
            "-O0",
            str(source),
            "-o",
            f"{built}.new",
        ]
        command += [f"-isystem{root}/include", f"-isystem{root}/include/torch/csrc/api/include"]
        command += [f"-L{root}/lib", "-ltorch_cpu", "-lc10"]
        subprocess.run(command, check=True)
        Path(f"{built}.new").rename(built)
    return built


ctypes.CDLL(str(_library()))
torch.utils.rename_privateuse1_backend("toy")

_module: Any = types.ModuleType("torch.toy")
_module.is_available = lambda: True
_module.device_count = lambda: 1
_module.current_device = lambda: 0
_module.is_initialized = lambda: True
_module._is_in_bad_fork = lambda: False
_module.manual_seed_all = lambda seed: None
_module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
torch._register_device_module("toy", _module)
torch.utils.generate_methods_for_privateuse1_backend()


class ToyCodeGenerator:
    """The evaluator for each kernel: tensors of the device have memory of the host."""

    device = "toy"
    launches = 0

    def generate(self, kernel: loopir.Kernel) -> loopir.KernelSource:
        return loopir.KernelSource(kernel, loopir.format_kernel(kernel))

    def build(
        self, sources: Sequence[loopir.KernelSource], store: loopir.ArtifactStore
    ) -> list[Callable[..., None]]:
        return [self._launcher(loopir.parse_kernel(source.text)) for source in sources]

    def _launcher(self, kernel: loopir.Kernel) -> Callable[..., None]:
        def launch(*args: Any) -> None:
            ToyCodeGenerator.launches += 1
            tensors = [_on_host(x) for x in args[: len(kernel.buffers)]]
            loopir.evaluate_kernel(kernel, tensors, args[len(kernel.buffers) :])

        return launch


def _on_host(x: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as one of the CPU."""
    count = x.untyped_storage().nbytes() // x.element_size()
    memory = (ctypes.c_char * (count * x.element_size())).from_address(
        x.untyped_storage().data_ptr()
    )
    whole = torch.frombuffer(memory, dtype=x.dtype, count=count)
    return whole.as_strided(x.shape, x.stride(), x.storage_offset())
