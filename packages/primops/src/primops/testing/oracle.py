"""The rule by which results are equal: at most twice eager's own error, plus 4 ULP of the result's
scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from primops.evaluate import evaluate
from primops.passes import decompose
from primops.testing.trace import trace
from primops.verify import check_prims

ULPS = 4


def assert_matches(
    actual: Any,
    expected: Any,
    exact: Any = None,
    *,
    ulps: float = ULPS,
    where: str = "",
    eager_error: float = 0.0,
) -> None:
    """Raises AssertionError unless ``actual`` equals ``expected`` by the rule.

    Integers and bool are equal exactly. For floats, ``exact`` is the float64 result, if known: the
    error against it is at most twice that of ``expected`` (at least ``eager_error``), plus ``ulps``
    units in the last place of the largest finite element. ``where`` begins the message.
    """
    if not isinstance(expected, torch.Tensor):
        assert actual == expected, f"{where}: {actual} is not {expected}"
        return
    assert actual.shape == expected.shape, (
        f"{where}: shape {tuple(actual.shape)} is not {tuple(expected.shape)}"
    )
    assert actual.dtype == expected.dtype, f"{where}: dtype {actual.dtype} is not {expected.dtype}"
    if not expected.dtype.is_floating_point:
        assert torch.equal(actual, expected), f"{where}: {actual} is not {expected}"
        return
    reference = (expected if exact is None else exact).double()
    a, e = actual.double(), expected.double()
    assert torch.equal(a.isnan(), e.isnan()), (
        f"{where}: NaN at other places: {actual} and {expected}"
    )
    finite = e.isfinite() & a.isfinite()
    assert torch.equal(a[~finite & ~a.isnan()], e[~finite & ~e.isnan()]), (
        f"{where}: infinities differ: {actual}, {expected}"
    )
    if not finite.any():
        return
    reference = torch.where(reference.isfinite(), reference, e)[finite]
    scale = e[finite].abs().max().item()
    unit = torch.finfo(expected.dtype).eps * max(scale, torch.finfo(expected.dtype).tiny)
    error, own = ((x[finite] - reference).abs().max().item() for x in (a, e))
    eager_error = max(own, eager_error)
    allowed = 2 * eager_error + ulps * unit
    assert error <= allowed, (
        f"{where}: error {error:.3g}, allowed {allowed:.3g} (eager has {eager_error:.3g})"
    )


def check_against_eager(
    function: Callable[..., Any], *inputs: Any, numerics: str = "fast", **options: Any
) -> Any:
    """Traces ``function(*inputs)``, decomposes, checks C3, evaluates, and compares with eager.
    Returns the prim graph.

    ``numerics`` and ``options`` as ``primops.decompose`` takes them. The rule is
    ``assert_matches``, with eager's results in float64 where ``function`` has them; raises
    AssertionError.
    """
    gm = trace(function, *inputs)
    prim_graph = decompose(gm, numerics=numerics, **options)
    check_prims(prim_graph)
    results = evaluate(prim_graph, [x for x in inputs])
    expected = function(*inputs)
    exact = _in_double(function, inputs)
    expected = expected if isinstance(expected, (tuple, list)) else (expected,)
    for position, (actual, wanted) in enumerate(zip(results, expected)):
        assert_matches(
            actual, wanted, exact[position] if exact else None, where=f"output {position}"
        )
    return prim_graph


def _in_double(function: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Eager's results in float64, or None when the function has no such reading."""
    wide = [
        x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs
    ]
    try:
        results = function(*wide)
    except Exception:
        return None
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)
