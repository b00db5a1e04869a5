"""torch's operator database, decomposed and evaluated against eager, printed as a table.

    python -m packages.primops.tests.opinfo [--ops add,sum] [--dtypes float32,int64] [--samples 3]
    [--jobs 2] [--markdown FILE]

Every operator x dtype pair that eager supports on the CPU; forward, and backward where autograd has
one. A pair passes when all samples do by the rule of ``testing.oracle``. Random operators are
compared as ATen calls with equal seeds, then decomposed for sizes and dtypes.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import signal
import sys
import types
import unittest
import unittest.mock as mock
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from primops.decompositions import DEFAULT
from primops.evaluate import evaluate
from primops.externs import EXTERN_OPS, prim_of
from primops.opset import OPSET
from primops.passes import decompose, is_size_query
from primops.testing.oracle import assert_matches
from primops.testing.trace import tensors_in, trace
from primops.verify import check_prims
from torch.utils import _pytree as pytree

DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8,
    torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
LARGEST, SECONDS, TRIED = 20_000, 60, 60
VALUES_UNDEFINED = ("empty", "new_empty")

# Pairs that stay different, each looked into: a part of the reason that the sweep finds, and why it
# stays.
CANCELS = ("error", "terms that cancel: what is left is the rounding of a sum, whose order differs")
HALF_CANCELS = (
    "error",
    "terms that cancel: eager rounds both to the same number, `fast` rounds one (`eager` agrees)",
)
KNOWN: dict[str, tuple[str, str]] = {
    "masked.prod": (
        "NaN at other places",
        "prod_backward divides 0 by 0 in eager; traced, it takes the path without division",
    ),
    "float64:nn.functional.layer_norm": CANCELS,
    "float64:nn.functional.softmin": CANCELS,
    "float64:nn.functional.softmin.with_dtype": CANCELS,
    "float64:__rdiv__": CANCELS,
    "float32:signal.windows.nuttall": CANCELS,
    "float32:masked.softmax": CANCELS,
    "float32:nn.functional.normalize": (
        "error",
        "the gradient is zero but for rounding: normalised over one element",
    ),
    "bfloat16:nn.functional.normalize": HALF_CANCELS,
    "float16:nn.functional.normalize": HALF_CANCELS,
    "complex64:cov": (
        "error",
        "a product of complex matrices whose strides the graph keeps and eager's autograd does not",
    ),
}


@dataclass
class Outcome:
    """One operator in one dtype. ``status``: pass, known, fail, or skip (nothing to compare)."""

    op: str
    dtype: str
    status: str = "pass"
    reason: str = ""
    samples: int = 0
    prims: set[str] = field(default_factory=set)
    overloads: dict[str, str] = field(default_factory=dict)


@cache
def database() -> list[Any]:
    """The entries. torch's module wants a test library as a base class that nothing here uses."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    # it looks for a unittest among all callers, anew for each operator's samples
    for name in ("common_utils", "opinfo.core"):
        importlib.import_module(f"torch.testing._internal.{name}").extract_test_fn = lambda: None
    return importlib.import_module("torch.testing._internal.common_methods_invocations").op_db


def full_name(op: Any) -> str:
    """Name and variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def short(dtype: torch.dtype) -> str:
    """``float32``."""
    return str(dtype).removeprefix("torch.")


class Sample:
    """A call of an operator as a function of its tensors; also of those that gradients are taken
    of.
    """

    def __init__(self, op: Any, sample: Any, backward: bool) -> None:
        self.op, self.backward = op, backward
        self.precision: torch.dtype | None = None  # of a run in another float dtype
        self.leaves, self.spec = pytree.tree_flatten(
            (sample.input, tuple(sample.args), dict(sample.kwargs))
        )
        self.places = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = [self.leaves[i].detach() for i in self.places]

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = [
            t.detach().requires_grad_() if self.backward and is_inexact(t) else t for t in tensors
        ]
        filled = list(self.leaves)
        for place, tensor in zip(self.places, given):
            filled[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, self.spec)
        if self.precision is not None and getattr(kwargs.get("dtype"), "is_floating_point", False):
            kwargs["dtype"] = self.precision
        with mock.patch("torch.manual_seed"):  # entries of random operators seed by themselves
            results = tensors_in(self.op.op(first, *args, **kwargs))
        plain = tuple(r.detach() for r in results)
        outputs = [r for r in results if r.requires_grad and is_inexact(r)]
        sources = [t for t in given if t.requires_grad]
        if not self.backward or not outputs or not sources:
            return plain
        weights = [
            torch.linspace(0.5, 1.5, r.numel(), dtype=torch.float64).reshape(r.shape).to(r.dtype)
            for r in outputs
        ]
        found = torch.autograd.grad(outputs, sources, weights, allow_unused=True)
        return (*plain, *(g for g in found if g is not None))


def is_inexact(t: torch.Tensor) -> bool:
    """Floating or complex."""
    return t.dtype.is_floating_point or t.dtype.is_complex


def samples_of(
    op: Any, dtype: torch.dtype, count: int
) -> Iterator[tuple[Sample, Sequence[torch.Tensor]]]:
    """Small samples of strided tensors that eager runs, spread over those that the operator has;
    with eager's results.
    """
    torch.manual_seed(0)
    backward = op.supports_autograd and is_inexact(torch.empty(0, dtype=dtype))
    found: list[Sample] = []
    for given in op.sample_inputs("cpu", dtype, requires_grad=False):
        leaves = [
            x
            for x in pytree.tree_leaves((given.input, given.args, given.kwargs))
            if isinstance(x, torch.Tensor)
        ]
        if (
            all(x.layout is torch.strided for x in leaves)
            and sum(x.numel() for x in leaves) <= LARGEST
        ):
            found.append(Sample(op, given, backward))
        if len(found) >= TRIED:
            break
    step = max(1.0, len(found) / count)
    for sample in [found[int(i * step)] for i in range(min(count, len(found)))]:
        for sample.backward in (backward, False) if backward else (False,):
            if (results := expected(sample)) and all(r.layout is torch.strided for r in results):
                yield sample, results
                break


def expected(
    sample: Sample, dtype: torch.dtype | None = None, via: torch.dtype | None = None
) -> Sequence[torch.Tensor] | None:
    """Eager's results, or None when it refuses. ``dtype``: of inputs converted to that float dtype,
    through ``via``.
    """

    def converted(t: torch.Tensor) -> torch.Tensor:
        for to in (via, dtype):
            if to is not None and is_inexact(t):
                t = t.to(to.to_complex() if t.dtype.is_complex else to)
        return t if dtype else replica(t)

    torch.manual_seed(0)
    sample.precision = dtype
    try:
        return sample(*map(converted, sample.tensors))
    except Exception:
        return None
    finally:
        sample.precision = None


def replica(t: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor with its memory, of which it may be a part."""
    copy = torch.empty(0, dtype=t.dtype).set_(
        t.untyped_storage().clone(), t.storage_offset(), t.size(), t.stride()
    )
    return copy.conj() if t.is_conj() else copy


def errors_in_double(sample: Sample) -> list[float]:
    """Eager's errors in float64, which has no wider judge: those of its float32 run, scaled by the
    rounding units.
    """
    single, exact = (
        expected(sample, torch.float32),
        expected(sample, torch.float64, via=torch.float32),
    )
    if single is None or exact is None:
        return []
    ratio = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    pairs = (
        (torch.view_as_real(x.resolve_conj()) if x.dtype.is_complex else x for x in pair)
        for pair in zip(single, exact)
    )
    return [
        ratio * (a.double() - b.double()).nan_to_num(0, 0, 0).abs().amax().item()
        if a.numel()
        else 0.0
        for a, b in pairs
    ]


def check(sample: Sample, wanted: Sequence[torch.Tensor], outcome: Outcome) -> None:
    """Raises when the decomposed graph gives other results than eager."""
    torch.manual_seed(0)
    graph = trace(sample, *sample.tensors)
    random = False
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            random |= torch.Tag.nondeterministic_seeded in node.target.tags
            if not is_size_query(node.target):
                outcome.overloads.setdefault(node.target.name(), kind_of(node.target.name()))
    values = not full_name(sample.op).startswith(VALUES_UNDEFINED)
    for numerics in ("fast", "eager"):
        prims = decompose(graph, fallback_random=random, numerics=numerics)
        check_prims(prims)
        outcome.prims |= {
            found.name for node in prims.graph.nodes if (found := prim_of(node.target))
        }
        torch.manual_seed(0)
        results = evaluate(prims, list(map(replica, sample.tensors)))
        try:
            judge(results, wanted, sample, values)
            break
        except AssertionError as error:
            # Without rounding to half between operators, nothing overflows there.
            if (
                numerics == "eager"
                or "infinities" not in str(error)
                or "float16" not in outcome.dtype
            ):
                raise
    if random:
        prims = decompose(graph)
        check_prims(prims)
        compare(evaluate(prims, sample.tensors), wanted, None, False)


def judge(
    results: Sequence[Any], wanted: Sequence[torch.Tensor], sample: Sample, values: bool
) -> None:
    """The rule, for each result. Within 4 ULP of eager it holds whatever the exact result is."""
    try:
        compare(results, wanted, None, values)
    except AssertionError:
        exact = expected(sample, torch.float64)
        double = any(
            t.dtype in (torch.float64, torch.complex128) for t in (*sample.tensors, *wanted)
        )
        compare(results, wanted, exact, values, errors_in_double(sample) if double else ())


def compare(
    got: Sequence[Any], wanted: Sequence[torch.Tensor], exact: Sequence[torch.Tensor] | None,
    values: bool,
    own: Sequence[float] = (),
) -> None:  # fmt: skip
    """The rule, for each result."""
    if exact is None or len(exact) != len(wanted):
        exact = wanted
    for i, (a, b, c) in enumerate(zip(got, wanted, exact, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), (
            f"result {i}: {a.dtype}{list(a.shape)}, eager {b.dtype}{list(b.shape)}"
        )
        if not values:
            continue
        if b.dtype.is_complex:
            a, b, c = (torch.view_as_real(x.resolve_conj()) for x in (a, b, c.to(torch.complex128)))
        least = own[i] if len(own) == len(wanted) else 0.0
        assert_matches(a, b, c if c.shape == b.shape else b, where=f"result {i}", eager_error=least)


def kind_of(name: str) -> str:
    """Whether an overload has a decomposition, spells an extern prim (or is a custom operator), or
    is missing.
    """
    if name in DEFAULT:
        return "decomposed"
    return (
        "extern"
        if name.partition(".")[0] in EXTERN_OPS or not name.startswith("aten::")
        else "missing"
    )


def check_pair(op: Any, dtype: torch.dtype, count: int) -> Outcome:
    """One operator in one dtype."""
    outcome = Outcome(full_name(op), short(dtype), "skip")
    if not op.supports_dtype(dtype, "cpu"):
        return outcome
    signal.alarm(SECONDS)
    try:
        for sample, wanted in samples_of(op, dtype, count):
            outcome.status, outcome.samples = "pass", outcome.samples + 1
            check(sample, wanted, outcome)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip().split("\n")[0][:300]
        mark, why = KNOWN.get(f"{outcome.dtype}:{outcome.op}") or KNOWN.get(outcome.op, ("", ""))
        outcome.status, outcome.reason = (
            ("known", why) if why and mark in reason else ("fail", reason)
        )
    finally:
        signal.alarm(0)
    return outcome


def check_operator(name: str, dtypes: Sequence[str], count: int) -> list[Outcome]:
    """One operator in all dtypes; runs in a process of its own pool."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"took more than {SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    op = next(op for op in database() if full_name(op) == name)
    return [
        check_pair(op, dtype, count) for dtype in DTYPES if not dtypes or short(dtype) in dtypes
    ]


def sweep(names: Sequence[str], dtypes: Sequence[str], count: int, jobs: int = 1) -> list[Outcome]:
    """All pairs, in the database's order, in ``jobs`` processes. One that dies ends the sweep with
    an error.
    """
    chosen = [full_name(op) for op in database() if not names or full_name(op) in names]
    found: list[Outcome] = []
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for done, outcomes in enumerate(
            pool.map(check_operator, chosen, repeat(dtypes), repeat(count)), 1
        ):
            found += outcomes
            for outcome in outcomes:
                if outcome.status in ("fail", "known"):
                    print(
                        f"{outcome.status:5} {outcome.dtype:10} {outcome.op:40} "
                        f"{outcome.reason[:200]}",
                        flush=True,
                    )
            if done % 100 == 0:
                print(f"{done} of {len(chosen)} operators", file=sys.stderr, flush=True)
    return found


def figures(outcomes: Sequence[Outcome]) -> str:
    """Counts: pairs, prims, overloads."""
    pairs = Counter(o.status for o in outcomes)
    tried = sum(pairs.values()) - pairs["skip"]
    overloads = {name: kind for o in outcomes for name, kind in o.overloads.items()}
    kinds = Counter(overloads.values())
    used = set().union(*(o.prims for o in outcomes)) if outcomes else set()
    share = 100 * pairs["pass"] / max(1, tried)
    return (
        f"{tried} pairs, {pairs['pass']} pass ({share:.2f} %), {pairs['known']} known, "
        f"{pairs['fail']} fail\n"
        f"{len(used)} of {len(OPSET)} prims used, {len(overloads)} ATen overloads seen: "
        f"{kinds['decomposed']} with a "
        f"decomposition, {kinds['extern']} extern by design, {kinds['missing']} missing"
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: figures, pairs that differ, and overloads without a decomposition."""
    lines = ["# Decompositions against eager: the operator database", "",
             "Generated by `python -m packages.primops.tests.opinfo --jobs 2 --markdown "
             "docs/primops_opinfo.md`.", "",
             f"torch {torch.__version__}: {figures(outcomes)}", "",
             "| operator | dtype | status | reason |", "|---|---|---|---|"]  # fmt: skip
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for o in outcomes:
        if o.status in ("known", "fail"):
            reasons.setdefault((o.op, o.status, o.reason.replace("|", "\\|")), []).append(o.dtype)
    lines += [
        f"| {op} | {' '.join(dtypes)} | {status} | {reason} |"
        for (op, status, reason), dtypes in reasons.items()
    ]
    overloads = {name: kind for o in outcomes for name, kind in o.overloads.items()}
    for kind in ("decomposed", "extern", "missing"):
        listed = sorted(name.removeprefix("aten::") for name, k in overloads.items() if k == kind)
        lines += [
            "",
            f"ATen overloads, {kind}: "
            + (" ".join(f"`{name}`" for name in listed) or "none")
            + ".",
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Parses options; 1 when something failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ops",
        default="",
        help="comma-separated full names, such as 'sum' or 'norm.inf' (default: all)",
    )
    parser.add_argument("--dtypes", default="", help="comma-separated (default: all)")
    parser.add_argument("--samples", type=int, default=3, help="samples per pair")
    parser.add_argument("--markdown", type=Path, help="write the table there")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    names, dtypes = (list(filter(None, text.split(","))) for text in (options.ops, options.dtypes))
    outcomes = sweep(names, dtypes, options.samples, options.jobs)
    print(figures(outcomes))
    if options.markdown:
        options.markdown.write_text(table(outcomes))
    return int(any(o.status == "fail" for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
