"""Whether two results differ by more than rounding explains.

The rule: the largest error of a result against float64 is at most four times eager's own error plus
16 ULP of the scale. That is twice of what a single kernel is tested for: here whole graphs are
compared, on one draw of the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

FACTOR, ULPS = 4, 16
UNKNOWN_ULPS = 256
"""The tolerance where there is no float64 result, as for random numbers."""


def first_difference(
    actual: Sequence[Any], expected: Sequence[Any], exact: Sequence[Any] | None = None
) -> str:
    """The first result that differs, with how; empty if none does.

    ``expected`` is eager's, ``exact`` the same in float64, if known.
    """
    if len(actual) != len(expected):
        return f"{len(actual)} results instead of {len(expected)}"
    known = exact if exact is not None and len(exact) == len(expected) else [None] * len(expected)
    for position, parts in enumerate(zip(actual, expected, known)):
        found = difference(*parts)
        if found:
            return f"result {position}: {found}"
    return ""


def difference(actual: Any, expected: Any, exact: Any = None) -> str:
    """How two values differ; empty if they don't. Sequences are compared part by part."""
    if isinstance(expected, (tuple, list)):
        if not isinstance(actual, (tuple, list)):
            return f"{type(actual).__name__} instead of {type(expected).__name__}"
        return first_difference(actual, expected, exact)
    if not isinstance(expected, torch.Tensor):
        same = actual == expected or (actual != actual and expected != expected)
        if isinstance(expected, float) and isinstance(actual, (int, float)):
            same = same or abs(actual - expected) <= 1e-6 * abs(expected)
        return "" if same else f"{actual!r} instead of {expected!r}"
    if not isinstance(actual, torch.Tensor):
        return f"{actual!r} instead of a tensor"
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        given, wanted = ((x.dtype, tuple(x.shape)) for x in (actual, expected))
        return f"{given} instead of {wanted}"
    if not expected.numel() or actual.layout is not torch.strided:
        return ""
    if not isinstance(exact, torch.Tensor) or exact.shape != expected.shape:
        exact = None
    return _of_elements(
        actual.detach(), expected.detach(), None if exact is None else exact.detach()
    )


def _of_elements(actual: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor | None) -> str:
    if not (expected.is_floating_point() or expected.is_complex()):
        wrong = actual != expected
        if exact is not None:  # an element that rounding decides says nothing
            wrong = wrong & (exact.to(expected.dtype) == expected)
        return _first(wrong, actual, expected)
    if expected.is_complex():
        parts = (
            x if x is None else torch.view_as_real(x.resolve_conj())
            for x in (actual, expected, exact)
        )
        actual, expected, exact = parts  # type: ignore[assignment]
    a, e = actual.double(), expected.double()
    reference = e if exact is None else exact.double()
    finite = torch.isfinite(e) & torch.isfinite(reference)
    wrong = finite & ~torch.isfinite(a)
    wrong |= ~torch.isfinite(e) & ~torch.isfinite(reference) & ~((a == e) | (a.isnan() & e.isnan()))
    if not wrong.any() and finite.any():
        eps, scale = torch.finfo(expected.dtype).eps, reference[finite].abs().max()
        own = (e - reference)[finite].abs().max()
        ulps = ULPS if exact is not None else UNKNOWN_ULPS
        bound = FACTOR * own + ulps * eps * scale
        wrong = finite & ((a - reference).abs() > bound)
    return _first(wrong, actual, expected)


def _first(wrong: torch.Tensor, actual: torch.Tensor, expected: torch.Tensor) -> str:
    count = int(wrong.sum())
    if not count:
        return ""
    place = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{count} of {wrong.numel()} elements differ, first at {list(place)}: "
        f"{actual[place].item():.9g} instead of {expected[place].item():.9g}"
    )
