"""How a compiled result is judged: by its error against float64 eager, next to eager's own error.

One result (``assert_by_rule``): largest error <= 2 x eager's + 4 ULP of scale.

Results of a deep network (``assert_draws_by_rule``): the same bound for the median, over draws of
the inputs, of each tensor's largest error. One draw says little: a training step amplifies
differences in the last place a hundred times in a smooth network, and a thousand times where a ReLU
or a maximum goes the other way for one element, which happens to eager as often as to any other
correct program: eager without oneDNN, judged by eager with it, breaks the bound in some draw of
many tensors of a U-Net. Root mean squares over draws are no better there, since those few draws
make them. A gradient of four elements left over by a cancellation scatters by a factor of 100
between draws; there more decide (``benchmarks/cpu_models.py --check``: 64 where 16 do not suffice).
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree


def error_of(result: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """(largest absolute error, scale) over the finite values of ``exact``, in float64."""
    reference = exact.detach().double()
    finite = torch.isfinite(reference) & torch.isfinite(result)
    if not finite.any():
        return 0.0, 0.0
    return (result.detach().double() - reference)[finite].abs().max().item(), reference[
        finite
    ].abs().max().item()


def relative_errors(
    results: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]
) -> dict[str, float]:
    """Error over scale of each floating result."""
    errors = {
        name: error_of(value, exact[name])
        for name, value in results.items()
        if value.dtype.is_floating_point
    }
    return {name: error / scale if scale else 0.0 for name, (error, scale) in errors.items()}


def assert_by_rule(
    compiled: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor,
    what: str = "result",
    eager_error: float = 0.0,
) -> None:
    """Compiled error <= 2 x eager error + 4 ULP of scale; equal for integers and bools; same size,
    stride and dtype.

    Rounding errors of a deep network scatter: ``eager_error`` (over scale) may tell eager's error
    on other inputs of the same kind, and the larger one counts.
    """
    if not _comparable(compiled, eager, what):
        return
    own, scale = error_of(eager, exact)
    error, _ = error_of(compiled, exact)
    own = max(own, eager_error * scale)
    bound = 2 * own + 4 * torch.finfo(eager.dtype).eps * scale
    assert error <= bound, (
        f"{what}: error {error:.3g}, eager's {own:.3g}, bound {bound:.3g} at scale {scale:.3g}"
    )


def _comparable(compiled: torch.Tensor, eager: torch.Tensor, what: str) -> bool:
    """Same size, dtype, stride and finite values; integers equal. Whether floating errors remain to
    be compared.
    """
    assert compiled.shape == eager.shape, (
        f"{what}: shape {tuple(compiled.shape)}, eager {tuple(eager.shape)}"
    )
    assert compiled.dtype == eager.dtype, f"{what}: {compiled.dtype}, eager {eager.dtype}"
    assert compiled.stride() == eager.stride(), (
        f"{what}: stride {compiled.stride()}, eager {eager.stride()}"
    )
    if not eager.dtype.is_floating_point:
        assert torch.equal(compiled, eager), f"{what}: integers differ"
        return False
    assert torch.equal(torch.isfinite(compiled), torch.isfinite(eager)), (
        f"{what}: other values are not finite"
    )
    return True


def draw_errors(
    compiled: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, what: str = "result"
) -> tuple[float, float]:
    """Compiled's and eager's largest error over scale; all else must be as in
    ``assert_by_rule``.
    """
    if not _comparable(compiled, eager, what):
        return 0.0, 0.0
    error, scale = error_of(compiled, exact)
    return error / (scale or 1.0), error_of(eager, exact)[0] / (scale or 1.0)


def assert_draws_by_rule(
    draws: Sequence[tuple[float, float]], eps: float, what: str = "result"
) -> float:
    """``draw_errors`` of several draws: compiled's median <= 2 x eager's + 4 ``eps``.

    In no draw more than 4 x eager's largest or a tenth of the scale. Returns compiled's median over
    eager's plus ``eps``.
    """
    ours, own = (statistics.median(errors) for errors in zip(*draws, strict=True))
    worst, largest = (max(errors) for errors in zip(*draws, strict=True))
    shown = f"{what}: over {len(draws)} draws, relative to scale"
    assert ours <= 2 * own + 4 * eps, f"{shown}: median error {ours:.3g}, eager's {own:.3g}"
    assert worst <= max(4 * (largest + eps), 0.1), (
        f"{shown}: largest error {worst:.3g}, eager's {largest:.3g}"
    )
    return ours / (own + eps)


def to_double(value: Any) -> Any:
    """A deep copy with floating tensors in float64, complex ones in complex128, requires_grad kept;
    modules too.
    """
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).double()

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            wide = torch.complex128 if leaf.is_complex() else torch.float64
            return leaf.detach().to(wide).requires_grad_(leaf.requires_grad)
        return leaf

    return pytree.tree_map(convert, value)


def named_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Gradients and buffers, by name."""
    gradients = {
        f"grad of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None
    }
    return gradients | {f"buffer {name}": b.detach().clone() for name, b in model.named_buffers()}


def train_step(
    call: Callable[..., Any], model: torch.nn.Module, inputs: tuple[Any, ...]
) -> dict[str, torch.Tensor]:
    """Output, input gradients, parameter gradients and buffers after one forward and backward."""
    model.zero_grad(set_to_none=True)
    inputs = tuple(
        x.detach().clone().requires_grad_(x.dtype.is_floating_point) if torch.is_tensor(x) else x
        for x in inputs
    )
    output = call(*inputs)
    weights = (
        torch.linspace(-1, 1, output.numel(), dtype=torch.float64, device=output.device)
        .reshape(output.shape)
        .to(output.dtype)
    )
    (output * weights).sum().backward()
    results = {"output": output.detach()}
    results |= {
        f"grad of input {i}": x.grad
        for i, x in enumerate(inputs)
        if torch.is_tensor(x) and x.grad is not None
    }
    return results | named_state(model)
