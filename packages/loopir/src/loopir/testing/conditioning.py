"""Whether two results of a kernel differ only because it is ill-conditioned: shown, not assumed.

The evaluator runs again and again with each of its roundings off by an ULP, its additions to a
place in another order and its sums exact, at random. Where its own results then spread as far as a
code generator's result is away, any order of operations may give that result: the sine of a large
sum, the sign of a cancelled one. Where they do not, the result is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from loopir.ir.evaluate import evaluate_kernel
from loopir.ir.kernel import Kernel

RUNS = 64
MARGIN = 4


def perturbed_results(
    kernel: Kernel, inputs: Sequence[torch.Tensor], sizes: Sequence[int], runs: int = RUNS
) -> list[list[torch.Tensor]]:
    """The tensors after each of ``runs`` evaluations whose roundings are off by up to an ULP."""

    def rounding(x: torch.Tensor) -> torch.Tensor:
        step = torch.randint(-1, 2, x.shape).to(x.dtype)
        return torch.where(torch.isfinite(x), x * (1 + step * torch.finfo(x.dtype).eps), x)

    found = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(runs):
            tensors = [tensor.clone() for tensor in inputs]
            evaluate_kernel(kernel, tensors, sizes, rounding)
            found.append(tensors)
    return found


def unexplained(
    kernel: Kernel, inputs: Sequence[torch.Tensor], sizes: Sequence[int],
    actual: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor], rtol: float, atol: float,
) -> str | None:  # fmt: skip
    """None when every element of ``actual`` within the tolerances, or within ``MARGIN`` times the
    spread of the evaluator's perturbed results around ``expected``; else the first buffer and
    element that is not. ``inputs``: tensors before the run.
    """
    runs = perturbed_results(kernel, inputs, sizes)
    for number, buffer in enumerate(kernel.buffers):
        a, e = actual[number].double(), expected[number].double()
        wild = [run[number].double() for run in runs]
        spread = torch.stack([torch.where(w == e, 0.0, (w - e).abs()) for w in wild]).amax(0)
        fine = (
            (a == e)
            | ((a - e).abs() <= atol + rtol * e.abs() + MARGIN * spread)
            | (a.isnan() & e.isnan())
        )
        # infinities and NaN come and go
        odd = torch.stack([w.isnan() == a.isnan() for w in wild]).any(0) & spread.isnan()
        wrong = ~(fine | odd)
        if wrong.any():
            at = int(wrong.nonzero()[0])
            return (
                f"{buffer.name}[{at}]: {a[at]:.9g}, evaluator {e[at]:.9g}, whose spread is "
                f"{spread[at]:.3g}"
            )
    return None
