"""Meta rules against real execution, on generated calls of every prim.

    python -m packages.primops.tests.metas [--calls 200000] [--jobs 2] [--names add,sum] [--seed 0]

Shape, dtype, device and strides of each result must be what the meta rule says: from the operands
as they are, and (unless the prim is extern or control flow) from operands with symbolic sizes,
where the rule may not guard.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import warnings
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from primops.meta import TensorMeta, contiguous
from primops.opset import OPSET
from primops.prim import ExternPrim, MetaReading, reading_with
from primops.testing.strategies import GENERATED, PrimCall, prim_calls

from packages.primops.tests.symbolic import symbolic_size

BATCH = 500
HEALTH: Any = tuple(HealthCheck)
PHASES = (Phase.generate, Phase.shrink)
SIZES = ("shape", "length", "stop")


@dataclass
class Batch:
    """Calls of one prim: how many ran, how many of them symbolic, and the first error."""

    name: str
    calls: int = 0
    symbolic: int = 0
    error: str = ""


def check_meta(call: PrimCall) -> list[Any]:
    """Raises AssertionError when the meta rule and the reference disagree. Returns the results'
    metas.
    """
    results = _listed(call.run())
    metas = tuple(
        TensorMeta.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in call.operands
    )
    with reading_with(MetaReading()):
        inferred = _listed(call.prim(*metas, **call.params))
    for meta, result in zip(inferred, results, strict=True):
        assert (meta.shape, meta.dtype, meta.device) == (
            tuple(result.shape),
            result.dtype,
            result.device,
        ), (meta, result)
        pairs = zip(meta.shape, meta.strides, result.stride())
        assert result.numel() == 0 or all(a == b for size, a, b in pairs if size > 1), (
            meta,
            result.stride(),
        )
    return inferred


def check_symbolic(call: PrimCall, expected: Iterable[TensorMeta]) -> None:
    """Raises AssertionError when the meta rule on symbolic sizes does not stand for ``expected``,
    or guards.
    """
    symbols: dict[int, torch.SymInt] = {}

    def size(number: int) -> Any:
        return (
            symbols.setdefault(number, symbolic_size(f"s{number}", number))
            if number > 1
            else number
        )

    def parameter(name: str, value: Any) -> Any:
        if name not in SIZES:
            return value
        return (
            tuple(symbols.get(n, n) for n in value)
            if isinstance(value, tuple)
            else symbols.get(value, value)
        )

    operands = tuple(
        contiguous(tuple(map(size, x.shape)), x.dtype, x.device)
        if isinstance(x, torch.Tensor)
        else x
        for x in call.operands
    )
    params = {name: parameter(name, value) for name, value in call.params.items()}
    with reading_with(MetaReading()):
        found = _listed(call.prim(*operands, **params))
    for meta, wanted in zip(found, expected, strict=True):
        hints = tuple(
            n if isinstance(n, int) else n.node.hint for n in (*meta.shape, *meta.strides)
        )
        empty = 0 in wanted.shape
        assert hints[: meta.ndim] == wanted.shape and (
            empty or hints[meta.ndim :] == wanted.strides
        ), (meta, wanted)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def run_batch(name: str, count: int, seed: int) -> Batch:
    """``count`` calls of one prim; a failing one is shrunk."""
    batch = Batch(name)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    plain = isinstance(OPSET[name], ExternPrim) or "control" in OPSET[name].tags

    @seeded(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=HEALTH,
        phases=PHASES,
    )
    @given(prim_calls(name))
    def check(call: PrimCall) -> None:
        batch.calls += 1
        metas = check_meta(call)
        if not plain:
            batch.symbolic += 1
            check_symbolic(call, metas)

    try:
        check()
    except Exception as error:
        batch.error = f"{type(error).__name__}: {error}".strip()
    return batch


def main() -> int:
    """Parses options, prints mismatches and one line of counts; 1 when there is a mismatch."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=200_000, help="calls in all")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--names", default="", help="comma-separated prims (default: all that are generated)"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    names = list(filter(None, options.names.split(","))) or GENERATED
    each = -(-options.calls // len(names))
    rounds = -(-each // BATCH)
    tasks = [
        (name, -(-each // rounds), options.seed * rounds + i)
        for i in range(rounds)
        for name in names
    ]
    batches: list[Batch] = []
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        for batch in pool.map(run_batch, *zip(*tasks)):
            batches.append(batch)
            if batch.error:
                print(f"{batch.name}: {batch.error}", flush=True)
    failed = sorted({batch.name for batch in batches if batch.error})
    print(
        f"{sum(b.calls for b in batches)} calls of {len(names)} prims, "
        f"{sum(b.symbolic for b in batches)} symbolic, too: "
        f"{len(failed)} prims with a mismatch {failed or ''}"
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
