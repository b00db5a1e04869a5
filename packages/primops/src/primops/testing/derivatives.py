"""Every derivative rule against finite differences in float64: ``python -m primops.testing
derivatives``.

The gradient of a random weighting of the result must be what a difference of fourth order gives,
element by element, within ``TOLERANCE`` of the larger of 1 and the largest gradient.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from symshapes.testing.report import Report

from primops.derivatives import DERIVATIVES, describe, vjp
from primops.derivatives.table import derivative_of
from primops.meta import TensorMeta
from primops.opset import OPSET
from primops.prim import MetaReading, Prim, reading_with
from primops.testing.derivative_cases import Call, calls_of

STEP = 1e-3
TOLERANCE = 1e-9
WEIGHTS = ((1, 8), (-1, -8), (2, -1), (-2, 1))  # of f(x + k * STEP), over 12 * STEP


@dataclass
class Score:
    """Calls of one prim: how many ran and agreed, how many derivatives they compared, and what
    failed.
    """

    prim: Prim
    calls: int = 0
    passed: int = 0
    elements: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)


def differentiable(call: Call) -> Iterator[int]:
    """Positions of the operands that have a derivative."""
    for position, operand in enumerate(call.operands):
        is_float = isinstance(operand, torch.Tensor) and operand.is_floating_point()
        if is_float and derivative_of(call.prim, position).rule is not None:
            yield position


def finite_difference(call: Call, position: int, weights: torch.Tensor) -> torch.Tensor:
    """The gradient of ``(weights * result).sum()`` in one operand, from nearby results."""
    operand = call.operands[position]
    flat = operand.reshape(-1)
    found = torch.zeros_like(flat)
    for element in range(flat.numel()):
        for steps, factor in WEIGHTS:
            moved = flat.clone()
            moved[element] += steps * STEP
            operands = list(call.operands)
            operands[position] = moved.reshape(operand.shape)
            found[element] += factor * (weights * call.prim(*operands, **call.params)).sum()
    return (found / (12 * STEP)).reshape(operand.shape)


def check_call(call: Call) -> int:
    """Raises AssertionError when a rule disagrees with the finite difference, or on metadata with
    itself. Returns the number of derivatives compared.
    """
    positions = set(differentiable(call))
    wanted = [position in positions for position in range(len(call.operands))]
    result = call.prim(*call.operands, **call.params)
    generator = torch.Generator().manual_seed(result.numel())
    weights = torch.rand(result.shape, generator=generator, dtype=torch.float64) + 0.5
    gradients = vjp(call.prim, weights, result, call.operands, call.params, wanted)
    metas = _on_metas(call, weights, result, wanted)
    elements = 0
    for position in sorted(positions):
        gradient, operand = gradients[position], call.operands[position]
        where = f"{call.prim.name}, operand {position} of {call}"
        assert gradient.shape == operand.shape and gradient.dtype is operand.dtype, where
        assert (metas[position].shape, metas[position].dtype) == (operand.shape, operand.dtype), (
            f"{where}: on metadata the gradient is {metas[position]}"
        )
        expected = finite_difference(call, position, weights)
        scale = max([1.0, *expected.abs().reshape(-1).tolist()])
        error = (gradient - expected).abs()
        assert bool((error <= TOLERANCE * scale).all()), (
            f"{where}: the rule gives {gradient.tolist()}, differences {expected.tolist()}"
        )
        elements += operand.numel()
    return elements


def _on_metas(call: Call, weights: Any, result: Any, wanted: list[bool]) -> tuple[Any, ...]:
    def meta(x: Any) -> Any:
        return TensorMeta.from_tensor(x) if isinstance(x, torch.Tensor) else x

    operands = [meta(x) for x in call.operands]
    with reading_with(MetaReading()):
        return vjp(call.prim, meta(weights), meta(result), operands, call.params, wanted)


def has_rule(prim: Prim) -> bool:
    """Whether any operand of the prim has a derivative."""
    return any(entry.rule is not None for entry in DERIVATIVES.get(prim, {}).values())


def check_derivatives(names: Iterable[str] = ()) -> list[Score]:
    """Scores of the prims named, by default of all that have a rule."""
    scores: list[Score] = []
    for prim in [OPSET[name] for name in names] or list(filter(has_rule, OPSET.values())):
        score, started = Score(prim), time.perf_counter()
        for call in calls_of(prim):
            score.calls += 1
            try:
                score.elements += check_call(call)
                score.passed += 1
            except Exception as error:  # a rule may fail in any way, and the others still count
                score.errors.append(f"{type(error).__name__}: {error}")
        if not score.calls:
            score.errors.append(f"{prim.name}: no calls in primops.testing.derivative_cases")
        score.seconds = time.perf_counter() - started
        scores.append(score)
    return scores


def report_of(scores: Iterable[Score]) -> Report:
    """The scores as a kit's report, an area for each prim."""
    report = Report("derivatives", "the derivatives of prims", "calls")
    for score in scores:
        area = report.area(score.prim.name)
        area.cases, area.seconds = max(score.calls, 1), score.seconds
        area.failures = [(score.prim.name, error) for error in score.errors]
    return report


def main(arguments: list[str]) -> int:
    """Prints a table of scores, what failed, and why the other prims have no derivative; 1 when
    something failed.
    """
    parser = argparse.ArgumentParser(prog="python -m primops.testing derivatives")
    parser.add_argument("prims", nargs="*", metavar="PRIM")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here, too")
    chosen = parser.parse_args(arguments)
    scores = check_derivatives(chosen.prims)
    report = report_of(scores)
    print(report.table())
    if report.failures:
        print(f"\n{report.failures_text()}")
    elements = sum(score.elements for score in scores)
    print(f"{len(scores)} prims, {report.passed} of {report.cases} calls, {elements} derivatives")
    if not chosen.prims:
        reasons: dict[str, list[str]] = {}
        for prim in OPSET.values():
            if not has_rule(prim):
                reasons.setdefault(describe(prim), []).append(prim.name)
        for reason, prims in reasons.items():
            print(f"{len(prims)} {reason or 'none stated'}: {' '.join(prims)}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(report.as_dict(), indent=1) + "\n")
    return int(bool(report.failures) or not report.passed)
