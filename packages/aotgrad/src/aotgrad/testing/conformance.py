"""A conformance kit for ahead-of-time autograd: fixed and random programs against eager mode.

What is checked is a function ``aot(function) -> compiled``, whose result is called like the
function and differentiated like it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from symshapes.testing.report import Report

from aotgrad.api import aot_function
from aotgrad.running.eager import run_eager

from .oracle import check_against_eager, observe

Aot = Callable[[Callable[..., Any]], Callable[..., Any]]

# x and w have sizes (3, 4); a line is the body of a function of them
BODIES = {
    "values and gradients": """
return (x * w).sin().sum()
return x @ w.t(), x.exp()
return torch.softmax(x, 1) * w, x.sum(0)
return torch.where(x > 0, x * w, w)
return x.unsqueeze(0) + w.expand(2, 3, 4)
return torch.cat([x, w]).cumsum(0)
return x.index_select(0, torch.tensor([2, 0, 2])) * w
return torch.nn.functional.layer_norm(x, (4,), w[0], w[1])
return x.to(torch.float32).mul(2).to(x.dtype) + w
return x.max(1).values + w.amin(1), x.argmax(1)
return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(w)
return x.sort(1).values * w.std(1, keepdim=True)
""",
    "parts without gradients": """
return x.detach() * w
return (x > w), x.long() + 1, x * w
return x.sum(), torch.ones(3), 5, None
y = x.clone(); y.requires_grad_(False) if not y.requires_grad else y; return y * w
y = torch.no_grad()(lambda: x * w)(); return y + x
return torch.zeros_like(x) + w.detach()
""",
    "views of inputs": """
return x.t(), x[1:], w
return x.view(4, 3) * 2, x.reshape(-1)
return x, x[0], x[0]
return x.diagonal(), x.unfold(1, 2, 1)
return w.expand(2, 3, 4), x.split(2, 1)
return x.detach(), x.view_as(x)
""",
    "writes to inputs": """
x.add_(w); return x
x.mul_(w).sin_(); return x.exp()
x[0] = w[1]; return x * w
x[:, 1:3] += 1; return x.sum()
x.t().mul_(2); return x
x.copy_(w); return w + x
y = x[1:]; y.fill_(2); return y, x
x.zero_(); return x + w
w.add_(1); x.mul_(w); return x
x.masked_fill_(x > 0, 2.0); return x.sum(0)
""",
    "writes to intermediates": """
y = x * 2; y.add_(w); return y
y = x.clone(); y[0] = w[0]; z = y[1:]; z.mul_(3); return y, z
y = x + w; z = y.view(-1); z[::2] = 0; return y
y = torch.empty(3, 4, dtype=x.dtype); y.copy_(x); y.mul_(w); return y
y = torch.zeros(3, 4, dtype=x.dtype); y[1] += w[1]; return y + x
y = x * w; v = y.t(); v.add_(1); y.mul_(2); return v, y
""",
    "results that alias": """
y = x * w; return y, y
y = x * w; return y, y.t(), y[0]
y = x * w; return y.view(-1), y.detach()
y = x.clone(); z = y.add_(1); return z, y, y is z
""",
}
INPUTS = ("leaves", "computed", "views")
STATEMENTS = (
    "x = x * w",
    "w = w + x.sin()",
    "x = x.t().reshape(3, 4)",
    "y = x[1:]; x = torch.cat([y, y, x])[:3]",
    "x = x.clone(); x[0] = w[1]",
    "x = x * 1; x.mul_(w)",
    "w = torch.where(x > 0, w, x)",
    "x = x - x.mean(1, keepdim=True)",
    "x = x.detach() + w",
    "w = w.flip(0).roll(1, 1)",
    "x = x / (w.abs() + 1)",
    "a.add_(w)",
    "b[0].mul_(2)",
    "a[:, ::2] = x[:, :2]",
    "x = x + a",
    "w = w * b.view(-1).view(3, 4)",
)
RESULTS = ("x", "x, w", "x, a", "x[1:], w.t()", "x.sum(), x", "a.view(-1), x * b")


def own_autograd(function: Callable[..., Any]) -> Callable[..., Any]:
    """This package's autograd, with eager kernels."""
    return aot_function(function, forward_compiler=run_eager)


def check_autograd(aot: Aot, *, programs: int = 0, strict: bool = True) -> Report:
    """Programs through an ahead-of-time autograd, against eager mode; see ``check_against_eager``
    for what is compared. Each program runs on leaves, on computed tensors and on views, where eager
    mode can run it.

    Args:
        aot: what is checked.
        programs: random programs to run besides the fixed ones.
        strict: raise AssertionError with the failures, if there are any.
    """
    report = Report("autograd", getattr(aot, "__name__", repr(aot)), "programs")
    for area, text in BODIES.items():
        for body in filter(None, text.split("\n")):
            for kind in INPUTS:
                _check(report, aot, area, body, kind)
    draw = random.Random(0)
    for _ in range(programs):
        statements = draw.choices(STATEMENTS, k=draw.randint(1, 6))
        body = "; ".join(["a, b = x, w", *statements, f"return {draw.choice(RESULTS)}"])
        _check(report, aot, "random programs", body, draw.choice(INPUTS), writes=False)
    if strict:
        report.raise_if_wrong()
    return report


def _check(report: Report, aot: Aot, area: str, body: str, kind: str, writes: bool = True) -> None:
    scope: dict[str, Any] = {"torch": torch}
    exec(f"def program(x, w):\n    {body}\n", scope)
    function, make = scope["program"], partial(_inputs, kind)
    try:
        observe(function, make, 0)
    except RuntimeError:
        return  # eager refuses it: a leaf is written to, or what backward reads
    with report.case(area, f"{body!r} on {kind}"):
        check_against_eager(function, make, compiled=aot(function), writes=writes)


def _inputs(kind: str) -> Sequence[torch.Tensor]:
    x, w = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    if kind == "leaves":
        return [x, w]
    if kind == "computed":
        return [x * 2, w.sin()]
    base = torch.cat([x, w]) * 1
    return [base[:3], base[3:]]
