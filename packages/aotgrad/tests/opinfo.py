"""Every differentiable operator of torch's database through ``aot_function``: values, gradients,
gradients of gradients.

``python -m packages.aotgrad.tests.opinfo [names] [--table docs/aotgrad_opinfo.md]`` in the root of
the repository.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from aotgrad import aot_function, counters, run_eager
from torch.utils import _pytree as pytree

# a base of torch's own test classes, which nothing here uses
if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules["expecttest"] = stand_in

from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

# it looks for a unittest among all callers, anew for each operator's samples
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

LARGEST = 5_000  # elements of a sample
EMPTY = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}

# Operators that are not compiled: a part of the error that tells, and why.
EXPLAINED = {
    "cov": ("depends on tensor data", "the weights' values decide about a warning"),
    "index_reduce.prod": (
        "depends on tensor data",
        "the formula of its second derivative asks whether a value is zero",
    ),
    "prod": (
        "1 derivatives instead of 2",
        "traced, the product of one element is linear: no second derivative instead of zero",
    ),
    "scatter_reduce.prod": ("depends on tensor data", "as index_reduce.prod"),
    "narrow": ("depends on tensor data", "the start is read from a tensor"),
    "tensor_split": ("depends on tensor data", "the sections are read from a tensor"),
    "nn.functional.gaussian_nll_loss": (
        "depends on tensor data",
        "raises when a variance is negative: reads it",
    ),
    "to_sparse": ("_to_sparse", "a sparse result"),
    "sparse.sampled_addmm": ("Sparse CSR", "a sparse operand"),
    "sparse.mm.reduce": ("Sparse CSR", "a sparse operand"),
}


@dataclass(frozen=True)
class Outcome:
    """What became of one operator: ``pass``, ``exception`` (explained) or ``failure``, for one
    order of derivative.
    """

    op: str
    order: int
    status: str
    samples: int
    reason: str = ""


@dataclass(frozen=True)
class Case:
    """One sample as a function of tensors; everything else is in the closure."""

    call: Callable[..., tuple[Any, ...]]
    tensors: tuple[torch.Tensor, ...]
    text: str

    def leaves(self) -> list[torch.Tensor]:
        """Fresh tensors with the strides and offset of the sample's."""
        return [_replica(t) for t in self.tensors]


def full_name(op: Any) -> str:
    """The operator's name with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def dtype_of(op: Any) -> torch.dtype | None:
    """The dtype in which an operator is differentiated here; None when it has no derivative in
    double precision.
    """
    if not op.supports_autograd:
        return None
    backward = op.supported_backward_dtypes("cpu")
    return next((d for d in (torch.float64, torch.complex128) if d in backward), None)


def differentiable_operators(names: Sequence[str] = ()) -> list[Any]:
    """Entries of the database in order, all or those of the given full names."""
    return [
        op for op in op_db if dtype_of(op) is not None and (not names or full_name(op) in names)
    ]


def cases_of(op: Any, count: int) -> list[Case]:
    """Small samples, spread over those that the operator has, on which eager works."""
    torch.manual_seed(0)
    found = []
    for sample in op.sample_inputs("cpu", dtype_of(op), requires_grad=True):
        case = _case(op, sample)
        if sum(t.numel() for t in case.tensors) <= LARGEST and _eager_works(case):
            found.append(case)
        if len(found) == 60:
            break
    step = max(1, len(found) / count)
    return [found[int(i * step)] for i in range(min(count, len(found)))]


def _case(op: Any, sample: Any) -> Case:
    leaves, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> tuple[Any, ...]:
        filled = list(leaves)
        for place, tensor in zip(places, tensors):
            filled[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        return tuple(
            pytree.tree_leaves(sample.output_process_fn_grad(op.op(first, *args, **kwargs)))
        )

    text = str(
        pytree.tree_map_only(
            torch.Tensor, lambda t: f"[{'x'.join(map(str, t.shape))}]", (leaves[0], sample.args)
        )
    )
    return Case(call, tuple(leaves[i] for i in places), f"{text} {sample.kwargs}"[:200])


def _replica(t: torch.Tensor) -> torch.Tensor:
    if t.layout is not torch.strided:
        return t.detach().clone().requires_grad_(t.requires_grad)
    storage = t.detach().untyped_storage().clone()
    copy = torch.empty(0, dtype=t.dtype).set_(storage, t.storage_offset(), t.size(), t.stride())
    copy = copy.conj() if t.is_conj() else copy
    return copy.requires_grad_(t.requires_grad)


def _eager_works(case: Case) -> bool:
    try:
        return any(isinstance(o, torch.Tensor) for o in case.call(*case.leaves()))
    except Exception:
        return False


def derivatives(
    call: Callable[..., tuple[Any, ...]], inputs: Sequence[torch.Tensor], order: int
) -> list[list[Any]]:
    """Outputs, gradients of a weighted sum of them, and so on up to the given order."""
    torch.manual_seed(42)  # what the database's wrappers of random ops set, too
    found = [list(call(*inputs))]
    sources = [x for x in inputs if x.requires_grad]
    for level in range(1, order + 1):
        roots = [r for r in found[-1] if isinstance(r, torch.Tensor) and r.requires_grad]
        if not roots or not sources:
            break
        weights = [_weights(r) for r in roots]
        found.append(
            list(
                torch.autograd.grad(
                    roots, sources, weights, create_graph=level < order, allow_unused=True
                )
            )
        )
    return found


def _weights(t: torch.Tensor) -> torch.Tensor:
    flat = torch.linspace(0.5, 1.5, t.numel(), dtype=torch.float64).reshape(t.shape)
    return (torch.complex(flat, flat.flip(0)) if t.is_complex() and t.dim() else flat).to(t.dtype)


def compare(name: str, ours: list[list[Any]], eager: list[list[Any]]) -> None:
    """Raises AssertionError where the levels differ in structure, dtype, sizes or values."""
    assert len(ours) == len(eager), f"{len(ours) - 1} derivatives instead of {len(eager) - 1}"
    for what, got, expected in zip(("output", "gradient", "second derivative"), ours, eager):
        assert len(got) == len(expected), f"{len(got)} {what}s instead of {len(expected)}"
        for i, (a, b) in enumerate(zip(got, expected)):
            if not isinstance(b, torch.Tensor):
                assert a == b or (a != a and b != b), f"{what} {i}: {a!r} instead of {b!r}"
                continue
            assert isinstance(a, torch.Tensor), f"{what} {i}: {a!r} instead of a tensor"
            assert a.requires_grad == b.requires_grad, (
                f"{what} {i}: requires_grad is {a.requires_grad}"
            )
            if name in EMPTY:
                a = torch.empty_strided(a.shape, a.stride(), dtype=a.dtype).copy_(b)
            torch.testing.assert_close(a, b, equal_nan=True, msg=lambda text: f"{what} {i}: {text}")


def check_operator(op: Any, order: int, count: int) -> Outcome:
    """Compares samples of an operator with eager, derivatives up to ``order`` included."""
    name = full_name(op)
    cases = [case for case in cases_of(op, count) if _differentiates(case, order)]
    for case in cases:
        counters.clear()
        try:
            with warnings.catch_warnings(action="ignore"):
                ours = derivatives(
                    aot_function(case.call, forward_compiler=run_eager), case.leaves(), order
                )
                eager = derivatives(case.call, case.leaves(), order)
            compare(name, ours, eager)
            reason = (
                "runs eagerly: " + ", ".join(k for k in counters if k != "fallbacks")
                if counters
                else ""
            )
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if reason:
            sign, explanation = EXPLAINED.get(name, ("", ""))
            if sign and sign in reason:
                return Outcome(name, order, "exception", len(cases), explanation)
            return Outcome(name, order, "failure", len(cases), f"{reason} [{case.text}]")
    return Outcome(name, order, "pass", len(cases))


def _differentiates(case: Case, order: int) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            derivatives(case.call, case.leaves(), order)
    except Exception:
        return False
    return True


def table(outcomes: Iterable[Outcome]) -> str:
    """The document: counts, then every operator that did not pass, then those that did."""
    outcomes = list(outcomes)
    lines = [
        "# Operators under aotgrad",
        "",
        "Every differentiable operator of `torch.testing._internal`'s database, in float64 "
        "(complex128 where that is the",
        "only one): outputs and gradients through `aot_function` with eager compilers against "
        "eager torch. An exception is",
        "explained below, a failure is not. Generated by `nox -s opinfo`.",
        "",
        "| derivative | operators | samples | pass | exception | failure |",
        "|---|---|---|---|---|---|",
    ]
    for order, what in ((1, "first"), (2, "second")):
        of_order = [o for o in outcomes if o.order == order]
        counts = Counter(o.status for o in of_order)
        samples = sum(o.samples for o in of_order)
        numbers = [len(of_order), samples, counts["pass"], counts["exception"], counts["failure"]]
        lines.append(f"| {what} | " + " | ".join(map(str, numbers)) + " |")
    rest = [o for o in outcomes if o.status != "pass"]
    if rest:
        lines += ["", "| operator | derivative | status | reason |", "|---|---|---|---|"]
        lines += [
            f"| `{o.op}` | {o.order} | {o.status} | {o.reason.splitlines()[0].replace('|', '/')} |"
            for o in rest
        ]
    passed = dict.fromkeys(o.op for o in outcomes if o.status == "pass")
    return "\n".join([*lines, "", "Passed: " + " ".join(f"`{name}`" for name in passed), ""])


def sweep(names: Sequence[str], count: int) -> list[Outcome]:
    """All operators, or those named, first then second derivatives."""
    found = []
    for op in differentiable_operators(names):
        for order in (1, 2) if op.supports_gradgrad else (1,):
            outcome = check_operator(op, order, count)
            if outcome.status != "pass":
                print(
                    outcome.status,
                    outcome.op,
                    order,
                    outcome.reason[:400].replace("\n", " "),
                    flush=True,
                )
            found.append(outcome)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--count", type=int, default=3, help="samples per operator")
    parser.add_argument("--table", type=Path, help="where to write the table")
    options = parser.parse_args()
    outcomes = sweep(options.names, options.count)
    if options.table:
        options.table.write_text(table(outcomes))
    print(Counter((o.order, o.status) for o in outcomes))
    return int(any(o.status == "failure" for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
