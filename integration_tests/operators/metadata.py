"""Fake tensors beside real ones: every operator that the database's samples dispatch, gradients
too, gives a fake of the dtype, sizes, strides and device that the kernel's result has.

    python -m integration_tests.operators.metadata --layouts transposed,first_expanded --ops sum,cat

Prints a line per operator and layout that differs; needs no compiler, and runs on any device.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from symshapes import DataDependentError, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from integration_tests.operators.check import DTYPES, replica, strided
from integration_tests.operators.database import full_name, operators
from integration_tests.operators.layouts import LAYOUTS

SAMPLES = 14
_FFT = "MKL puts batch dims of equal strides into an order of its own: a copy more"
_STATISTICS = "statistics for the backward stay in float32"
KNOWN = {
    "_fft_r2c.default": _FFT,
    "native_batch_norm.default": _STATISTICS,
    "_native_batch_norm_legit.no_stats": _STATISTICS,
    "ldexp.Tensor": "the strides of a broadcast operand count first, but in float32 alone",
    "nn.functional.conv_transpose3d channels_last: convolution": "strides as oneDNN wants them",
    "efficient_attention": "the random state is on the CPU unless a graph is captured",
    "cudnn_grid_sampler": "fakes never reach it",
    "conv_transpose1d transposed: convolution_backward": "cuDNN sees no format in one channel",
    "conv_transpose2d channels_last: convolution_backward": "as above",
    "renorm transposed: sub.Tensor": "a CPU operand of another dtype is cast, and dense then",
}
"""Differences that were looked into, by a part of their line, and why they stay."""


def facts(value: Any) -> list[tuple[Any, ...]]:
    """Dtype, sizes, strides and device of each tensor; strides only where they say something."""
    found = []
    for tensor in pytree.tree_leaves(value):
        if isinstance(tensor, torch.Tensor):
            sizes = tuple(tensor.shape)
            steps = zip(sizes, tensor.stride(), strict=True)
            strides = tuple(step for size, step in steps if size > 1) if tensor.numel() else None
            found.append((tensor.dtype, sizes, strides, tensor.device.type))
    return found


def _all_strided(value: Any) -> bool:
    tensors = [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
    return all(x.layout is torch.strided and not x.is_quantized for x in tensors)


@dataclass
class Beside(TorchDispatchMode):
    """Runs each operator on fakes of its arguments too, and keeps how the results differ."""

    differences: dict[Any, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        compared = not func._schema.is_mutable and func not in self.differences
        mode = FakeTensorMode()
        fakes = self._fakes(mode, (args, kwargs)) if compared else None
        result = func(*args, **kwargs)
        if fakes is not None and _all_strided(result):
            self._compare(func, mode, fakes, facts(result))
        return result

    def _fakes(self, mode: FakeTensorMode, arguments: Any) -> Any:
        if not _all_strided(arguments):
            return None
        return pytree.tree_map_only(torch.Tensor, lambda x: mode.from_real(x.detach()), arguments)

    def _compare(self, func: Any, mode: FakeTensorMode, fakes: Any, expected: Any) -> None:
        args, kwargs = fakes
        try:
            with mode:
                got = facts(func(*args, **kwargs))
        except DataDependentError:
            return
        except Exception as error:
            self.differences[func] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
            return
        if got != expected:
            given = [(str(t[0]).removeprefix("torch."), *t[1:3]) for t in facts(fakes)]
            self.differences[func] = f"of {given}: eager {expected}, fake {got}"


def samples_of(op: Any, dtype: torch.dtype, layout: str, device: str) -> Iterator[Any]:
    """The operator's first samples, their floating tensors in this layout."""
    gradients = op.supports_autograd and dtype.is_floating_point
    change = LAYOUTS[layout]
    for sample in list(op.sample_inputs(device, dtype, requires_grad=False))[:SAMPLES]:
        if not strided(sample):
            continue
        given = (sample.input, tuple(sample.args), dict(sample.kwargs))
        made = pytree.tree_map_only(
            torch.Tensor,
            lambda t: replica(change(t)).requires_grad_(gradients) if t.is_floating_point() else t,
            given,
        )
        if layout == "plain" or facts(made) != facts(given):
            yield made


def differences(
    op: Any, dtype: torch.dtype, layout: str = "plain", device: str = "cpu"
) -> list[str]:
    """How fakes differ from real results: a line for each operator that was dispatched."""
    beside = Beside()
    for first, args, kwargs in samples_of(op, dtype, layout, device):
        try:
            with beside:
                results = pytree.tree_leaves(op.op(first, *args, **kwargs))
                sums = [x.float().sum() for x in results if _has_gradient(x)]
                if sums:
                    torch.stack(sums).sum().backward()
        except Exception:  # what eager refuses
            continue
    lines = [
        f"{full_name(op)} {layout}: {str(func).removeprefix('aten.')} {text}"
        for func, text in beside.differences.items()
    ]
    return [line for line in lines if not any(known in line for known in KNOWN)]


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and value.is_floating_point()


def main() -> int:
    """Parses options and prints; 1 when something differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtypes", default="float32,bfloat16", help="comma-separated")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="comma-separated")
    parser.add_argument("--ops", default="", help="comma-separated full names (default: all)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="each N-th operator from I")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    first, step = map(int, options.shard.split("/"))
    failed = False
    for op in operators(list(filter(None, options.ops.split(","))))[first::step]:
        for dtype in map(DTYPES.__getitem__, options.dtypes.split(",")):
            if not op.supports_dtype(dtype, options.device):
                continue
            for layout in options.layouts.split(","):
                found = differences(op, dtype, layout, options.device)
                failed |= bool(found)
                print(*found, sep="\n", end="\n" if found else "", flush=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
