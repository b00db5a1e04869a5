"""Every operator x dtype pair of torch's database through ``inductor_cpp.compile_graph``, against
eager.

    python -m integration_tests.operators.compiled [--ops add,sum] [--dtypes float32] [--jobs 2]
    [--shard 0/1] [--table FILE]

Forward, and backward where autograd has one. Pairs are traced and lowered in groups, whose kernels
are one translation unit, then run in a process that may crash: what it was running is that pair's
failure. Random operators are compared by sizes and dtypes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import inductor_cpp
import loopir
import torch
from loopir import ArtifactStore, BuildError
from primops import decompose
from primops.testing.trace import trace

from integration_tests.operators.batch import Batch
from packages.primops.tests import opinfo

GROUP, SECONDS = 40, 90
FORK = multiprocessing.get_context("fork")
Pair = tuple[str, str]
TITLE = """# Operators through the C++ back end

Every operator x dtype pair of torch's database that eager runs on the CPU, forward and backward, through
`inductor_cpp.compile_graph`, by
`python -m integration_tests.operators.compiled --log LOG --table docs/cpu_opinfo.md`.
""".splitlines()


@cache
def operators() -> dict[str, Any]:
    """The database by full name."""
    return {opinfo.full_name(op): op for op in opinfo.database()}


@dataclass
class Outcome:
    """``status``: pass, known (a difference that is explained), fail, crash, or skip (eager has no
    such pair).
    """

    op: str
    dtype: str
    status: str = "pass"
    reason: str = ""
    samples: int = 0
    kernels: int = 0


@dataclass
class Compiled:
    """One sample: its graph, eager's results, and the program."""

    sample: opinfo.Sample
    wanted: Sequence[torch.Tensor]
    graph: torch.fx.GraphModule
    program: loopir.HostProgram
    random: bool


def compile_pair(
    op: Any, dtype: torch.dtype, count: int, codegen: Batch, store: ArtifactStore
) -> list[Compiled]:
    """The pair's samples as programs of ``codegen``."""
    found = []
    for sample, wanted in opinfo.samples_of(op, dtype, count):
        torch.manual_seed(0)
        graph = trace(sample, *sample.tensors)
        targets = [
            node.target
            for node in graph.graph.nodes
            if isinstance(node.target, torch._ops.OpOverload)
        ]
        random = any(torch.Tag.nondeterministic_seeded in target.tags for target in targets)
        program = loopir.compile_graph(
            graph, sample.tensors, codegens={"cpu": codegen}, store=store
        )
        found.append(Compiled(sample, wanted, graph, program, random))
    return found


def check(compiled: Compiled, store: ArtifactStore) -> None:
    """Raises when the program gives other results than eager."""
    sample, wanted = compiled.sample, compiled.wanted
    values = not compiled.random and not opinfo.full_name(sample.op).startswith(
        opinfo.VALUES_UNDEFINED
    )
    results = compiled.program(*map(opinfo.replica, sample.tensors))
    try:
        opinfo.judge(results, wanted, sample, values)
    except AssertionError as error:
        # Between operators eager rounds to half, where large values become infinite; kernels don't,
        # unless they are asked to.
        if "infinities" not in str(error) or all(
            x.dtype not in (torch.float16, torch.complex32) for x in wanted
        ):
            raise
        prims = decompose(trace(sample, *sample.tensors), numerics="eager")
        program = inductor_cpp.compile_graph(prims, sample.tensors, store=store)
        opinfo.judge(program(*map(opinfo.replica, sample.tensors)), wanted, sample, values)


def run_group(pairs: Sequence[Pair], count: int, log: str) -> None:
    """Compiles all pairs, then runs them; a line of ``log`` per outcome."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _stop)
    outcomes = [Outcome(*pair) for pair in pairs]
    codegen, programs = Batch(), []
    with tempfile.TemporaryDirectory() as directory, Path(log).open("a") as file:
        store = ArtifactStore(directory)
        for outcome in outcomes:
            programs.append(_guarded(outcome, lambda o: compile_pair(
                operators()[o.op], getattr(torch, o.dtype), count, codegen,
                store)) or [])  # fmt: skip
        try:
            codegen.flush(store)
        except BuildError:
            if len(pairs) > 1:
                raise
            outcomes[0].status, outcomes[0].reason = "fail", "the C++ compiler refuses the kernels"
        for outcome, compiled in zip(outcomes, programs):
            print("begin", file=file, flush=True)
            outcome.samples, outcome.kernels = (
                len(compiled),
                sum(c.program.kernel_count for c in compiled),
            )
            if outcome.status == "pass":
                _guarded(outcome, lambda _: [check(one, store) for one in compiled])
            if outcome.status == "pass" and not compiled:
                outcome.status = "skip"
            print(json.dumps(asdict(outcome)), file=file, flush=True)


def _stop(*_: Any) -> None:
    raise TimeoutError(f"took more than {SECONDS} s")


def _guarded(outcome: Outcome, function: Any) -> Any:
    """The function's result; what it raises becomes the outcome's reason."""
    signal.alarm(SECONDS)
    try:
        return function(outcome)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip().split("\n")[0][:300]
        mark, why = opinfo.KNOWN.get(f"{outcome.dtype}:{outcome.op}") or opinfo.KNOWN.get(
            outcome.op, ("", "")
        )
        outcome.status, outcome.reason = (
            ("known", why) if why and mark in reason else ("fail", reason)
        )
    finally:
        signal.alarm(0)


def sweep(
    pairs: Sequence[Pair], count: int, jobs: int, show: bool = True, log_file: Path | None = None
) -> list[Outcome]:
    """All pairs, in order. A group whose process dies is continued without the pair that it died
    of.

    What ``log_file`` has is not run again; new outcomes are appended to it as they come.
    """
    outcomes = [o for o in logged(log_file) if (o.op, o.dtype) in set(pairs)]
    done = {(o.op, o.dtype) for o in outcomes}
    left = [pair for pair in pairs if pair not in done]
    waiting = [left[i : i + GROUP] for i in range(0, len(left), GROUP)]
    running: dict[Any, tuple[Any, list[Pair], Path]] = {}
    with tempfile.TemporaryDirectory() as logs:
        while waiting or running:
            while waiting and len(running) < jobs:
                group, log = waiting.pop(0), Path(tempfile.mkstemp(dir=logs)[1])
                process = FORK.Process(target=run_group, args=(group, count, str(log)))
                process.start()
                running[process.sentinel] = (process, group, log)
            for sentinel in multiprocessing.connection.wait(list(running)):
                process, group, log = running.pop(sentinel)
                process.join()
                found, rest = _collect(log, group, process.exitcode)
                outcomes += found
                waiting = rest + waiting
                if log_file:
                    with log_file.open("a") as file:
                        file.writelines(json.dumps(asdict(o)) + "\n" for o in found)
                for outcome in found if show else ():
                    if outcome.status not in ("pass", "skip"):
                        print(
                            f"{outcome.status:5} {outcome.dtype:10} {outcome.op:40} "
                            f"{outcome.reason[:200]}",
                            flush=True,
                        )
    order = {pair: number for number, pair in enumerate(pairs)}
    return sorted(outcomes, key=lambda o: order[o.op, o.dtype])


def logged(log_file: Path | None) -> list[Outcome]:
    """The outcomes in a log."""
    lines = log_file.read_text().splitlines() if log_file and log_file.exists() else []
    return [Outcome(**json.loads(line)) for line in lines]


def _collect(log: Path, group: list[Pair], exitcode: int) -> tuple[list[Outcome], list[list[Pair]]]:
    """The outcomes of a group's process, and the groups still to run."""
    lines = log.read_text().splitlines()
    found = [Outcome(**json.loads(line)) for line in lines if line != "begin"]
    rest = group[len(found) :]
    if not rest:
        return found, []
    if lines or len(rest) == 1:
        found.append(Outcome(*rest[0], "crash", f"the process ended with {exitcode}"))
        return found, [rest[1:]] if rest[1:] else []
    return found, [rest[: len(rest) // 2], rest[len(rest) // 2 :]]


def pairs_of(names: Sequence[str], dtypes: Sequence[str] = ()) -> list[Pair]:
    """The pairs of operators with dtypes (default: all) that eager supports on the CPU."""
    wanted = dtypes or [opinfo.short(dtype) for dtype in opinfo.DTYPES]
    return [
        (n, d)
        for n in names
        for d in wanted
        if operators()[n].supports_dtype(getattr(torch, d), "cpu")
    ]


def figures(outcomes: Sequence[Outcome]) -> str:
    """Counts."""
    counts = Counter(o.status for o in outcomes)
    tried = len(outcomes) - counts["skip"]
    share = 100 * counts["pass"] / max(1, tried)
    return (
        f"{tried} pairs, {sum(o.samples for o in outcomes)} samples, "
        f"{sum(o.kernels for o in outcomes)} kernels: "
        f"{counts['pass']} pass ({share:.2f} %), {counts['known']} known, {counts['fail']} fail, "
        f"{counts['crash']} crash"
    )


def table(outcomes: Sequence[Outcome], left: int = 0) -> str:
    """The document: counts by dtype, then every pair that did not pass. ``left``: pairs that were
    not run.
    """
    lines = [
        *TITLE,
        "",
        figures(outcomes),
        *([f"{left} pairs were not run."] if left else []),
        "",
        "| dtype | pairs | pass | known | fail | crash |",
        "|---|---|---|---|---|---|",
    ]
    for dtype in dict.fromkeys(o.dtype for o in outcomes):
        counts = Counter(o.status for o in outcomes if o.dtype == dtype)
        numbers = [
            counts.total() - counts["skip"],
            *(counts[s] for s in ("pass", "known", "fail", "crash")),
        ]
        lines.append(f"| {dtype} | " + " | ".join(map(str, numbers)) + " |")
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for o in outcomes:
        if o.status not in ("pass", "skip"):
            reasons.setdefault((o.op, o.status, o.reason.replace("|", "\\|")), []).append(o.dtype)
    lines += ["", "| operator | dtype | status | reason |", "|---|---|---|---|"]
    lines += [
        f"| {op} | {' '.join(dtypes)} | {status} | {reason} |"
        for (op, status, reason), dtypes in reasons.items()
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Parses options; 1 when something failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", default="", help="comma-separated full names (default: all)")
    parser.add_argument("--dtypes", default="", help="comma-separated (default: all)")
    parser.add_argument("--samples", type=int, default=3, help="samples per pair")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument(
        "--shard", default="0/1", help="k/n: every n-th operator only, from the k-th"
    )
    parser.add_argument("--table", type=Path, help="write the document there")
    parser.add_argument(
        "--log",
        type=Path,
        help="append outcomes there, a line of JSON each; those in it are not run again",
    )
    parser.add_argument(
        "--page-of-log", action="store_true", help="run nothing: the table of what --log has"
    )
    options = parser.parse_args()
    names, dtypes = (list(filter(None, text.split(","))) for text in (options.ops, options.dtypes))
    first, step = map(int, options.shard.split("/"))
    torch.set_num_threads(1)
    if options.page_of_log:
        outcomes = logged(options.log)
        options.table.write_text(table(outcomes, len(pairs_of(list(operators()))) - len(outcomes)))
        return 0
    outcomes = sweep(
        pairs_of((names or list(operators()))[first::step], dtypes),
        options.samples,
        options.jobs,
        log_file=options.log,
    )
    print(figures(outcomes))
    if options.table:
        options.table.write_text(table(outcomes))
    return int(any(o.status in ("fail", "crash") for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
