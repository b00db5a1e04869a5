"""The operator database against the compiled back end, printed as a table by operator.

    python -m integration_tests.operators.sweep --dtypes float32,int64 --ops add,sum --samples 4
    --generator cpp

Workers are processes of their own, so that a crash or a hang is one operator's failure.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import IO, Any

BEGIN, END = "@begin ", "@end "
SEVERITY = ("failure", "exception", "known", "data", "extern", "pass", "skip")


def main() -> int:
    """Parses options; 1 when something failed."""
    options = parse()
    if options.worker:
        return work(options)
    if options.saved:
        rows = [
            json.loads(line) for path in options.saved for line in path.read_text().splitlines()
        ]
        options.markdown.write_text(
            page(list({(row["dtype"], row["op"]): row for row in rows}.values()), options.generator)
        )
        return 0
    tasks = tasks_of(options)
    outcomes = supervise(tasks, options)
    report(outcomes, options)
    if options.markdown:
        options.markdown.write_text(page(outcomes, options.generator))
    return int(any(o["status"] == "failure" for o in outcomes))


def parse() -> argparse.Namespace:
    """Command line options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dtypes", default="float32,int64,bool,bfloat16,float64", help="comma-separated"
    )
    parser.add_argument(
        "--ops",
        default="",
        help="comma-separated full names, such as 'sum' or 'norm.inf' (default: all)",
    )
    parser.add_argument("--samples", type=int, default=4, help="samples per operator and dtype")
    parser.add_argument("--generator", choices=("cpp", "evaluator", "triton"), default="cpp")
    parser.add_argument("--form", default="", help="call in this form of forms.py, one dtype each")
    parser.add_argument("--layout", default="plain", help="of the operands: see layouts.py")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one operator")
    parser.add_argument(
        "--json", type=Path, help="keep the outcomes there, a line each; those kept count"
    )
    parser.add_argument("--markdown", type=Path, help="write a page of the outcomes there")
    parser.add_argument(
        "--from",
        dest="saved",
        type=Path,
        nargs="*",
        default=[],
        help="outcomes of earlier runs; nothing is run",
    )
    parser.add_argument("--all", action="store_true", help="list passes too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def tasks_of(options: argparse.Namespace) -> list[str]:
    """The operators asked for, in the database's order, in each dtype; of a form in one."""
    from integration_tests.operators.database import full_name, operators
    from integration_tests.operators.forms import usual_dtype

    ops = operators(options.ops.split(",") if options.ops else ())
    if options.form:
        return [f"{usual_dtype(op)}:{full_name(op)}" for op in ops]
    return [f"{dtype}:{full_name(op)}" for dtype in options.dtypes.split(",") for op in ops]


def work(options: argparse.Namespace) -> int:
    """A worker: reads tasks from standard input, one a line, and writes an outcome for each."""
    import torch
    from loopir import ArtifactStore

    from integration_tests.operators.check import DTYPES, check_operator
    from integration_tests.operators.database import full_name, operators
    from integration_tests.operators.forms import check_form

    torch.set_num_threads(1)
    table = {full_name(op): op for op in operators()}
    with tempfile.TemporaryDirectory() as directory:
        store = ArtifactStore(directory)
        for line in sys.stdin:
            dtype, _, name = line.strip().partition(":")
            print(BEGIN + line.strip(), flush=True)
            op, kind, count = table[name], DTYPES[dtype], options.samples
            if options.form:
                settings = {"cache_dir": os.environ.get("STRATA_CACHE_DIR", directory)}
                outcome = check_form(op, kind, options.form, count, options=settings)
            else:
                outcome = check_operator(op, kind, options.generator, store, count, options.layout)
            print(END + json.dumps(vars(outcome)), flush=True)
    return 0


def supervise(tasks: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs all tasks on a few workers; a worker that dies or hangs fails its task and is
    replaced.
    """
    saved = options.json.read_text().splitlines() if options.json and options.json.exists() else []
    outcomes: list[dict[str, Any]] = [json.loads(line) for line in saved]
    done = {f"{o['dtype']}:{o['op']}" for o in outcomes}
    waiting: queue.Queue[str] = queue.Queue()
    for task in tasks:
        if task not in done:
            waiting.put(task)
    log = options.json.open("a") if options.json else None
    threads = [
        threading.Thread(target=serve, args=(waiting, outcomes, options, log))
        for _ in range(options.workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if log:
        log.close()
    order = {task: i for i, task in enumerate(tasks)}
    return sorted(outcomes, key=lambda o: order.get(f"{o['dtype']}:{o['op']}", len(order)))


def serve(
    waiting: queue.Queue[str],
    outcomes: list[dict[str, Any]],
    options: argparse.Namespace,
    log: IO[str] | None,
) -> None:
    """Feeds one worker after another until no task is left."""
    worker = None
    while True:
        try:
            task = waiting.get_nowait()
        except queue.Empty:
            break
        worker = worker or start(options)
        outcome = ask(worker, task, options.timeout)
        if worker.poll() is not None:
            worker = None
        outcomes.append(outcome)
        if log:
            log.write(json.dumps(outcome) + "\n")
            log.flush()
    if worker:
        worker.stdin.close()  # type: ignore[union-attr]
        worker.wait()


def start(options: argparse.Namespace) -> subprocess.Popen[str]:
    """A worker process."""
    command = [sys.executable, "-m", "integration_tests.operators.sweep", "--worker"]
    command += ["--samples", str(options.samples), "--generator", options.generator]
    command += ["--form", options.form, "--layout", options.layout]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
    )


def ask(worker: subprocess.Popen[str], task: str, timeout: float) -> dict[str, Any]:
    """One task's outcome. Kills the worker when it takes too long."""
    assert worker.stdin and worker.stdout
    expired = threading.Event()

    def kill() -> None:
        expired.set()
        worker.kill()

    timer = threading.Timer(timeout, kill)
    timer.start()
    try:
        worker.stdin.write(task + "\n")
        worker.stdin.flush()
        for line in worker.stdout:
            if line.startswith(END):
                return json.loads(line.removeprefix(END))
    except BrokenPipeError:
        pass
    finally:
        timer.cancel()
    worker.wait()
    dtype, _, name = task.partition(":")
    reason = (
        f"took more than {timeout:.0f} s"
        if expired.is_set()
        else f"the process died with {worker.returncode}"
    )
    return {
        "op": name,
        "dtype": dtype,
        "status": "failure",
        "reason": reason,
        "samples": 0,
        "externs": [],
    }


def report(outcomes: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """A line per operator that did not pass (or per operator), then figures by dtype."""
    for outcome in sorted(outcomes, key=lambda o: SEVERITY.index(o["status"])):
        if options.all or outcome["status"] in ("failure", "exception", "known", "data"):
            note = outcome["reason"] or " ".join(outcome["externs"])
            print(f"{outcome['status']:9} {outcome['dtype']:8} {outcome['op']:40} {note[:240]}")
    print(f"\n{'dtype':9}" + "".join(f"{status:>10}" for status in reversed(SEVERITY)))
    for dtype in dict.fromkeys(o["dtype"] for o in outcomes):
        counts = Counter(o["status"] for o in outcomes if o["dtype"] == dtype)
        print(f"{dtype:9}" + "".join(f"{counts[status]:10}" for status in reversed(SEVERITY)))
    if options.form:
        samples, refused, failed = (
            sum(o.get(name, 0) for o in outcomes) for name in ("samples", "refused", "failed")
        )
        print(f"{samples} samples called, {failed} fail alone, {refused} refused by eager")


PAGE = """\
# The operator database through `{generator}`

Written by `python -m integration_tests.operators.sweep --generator {generator} --markdown PAGE` (`--from FILES` joins outcomes
that `--json` kept, later ones counting): pairs of operator and dtype, forward and, in float32, backward. *Passes*: equal to
eager by the rule of `integration_tests/rule.py`, and with its sizes, strides, dtypes and aliases; where no kernel of ours takes
part the operator is an extern call. *Data*: a branch depends on a tensor's values, where capture leaves the program to eager.
Pairs without a sample that eager runs are left out.
"""


def page(outcomes: list[dict[str, Any]], generator: str) -> str:
    """Counts by dtype, and every pair that does not pass with its reason."""
    dtypes = list(dict.fromkeys(o["dtype"] for o in outcomes))
    lines = [
        PAGE.format(generator=generator),
        "| dtype | samples each | pairs | pass | of them extern | data | known | exception | "
        "failure |",
    ]
    lines.append("|---|" + "---|" * 8)
    for dtype in [*dtypes, "all"]:
        count = Counter(o["status"] for o in outcomes if dtype in (o["dtype"], "all"))
        pairs, passed = sum(count.values()) - count["skip"], count["pass"] + count["extern"]
        cells = [
            f"{passed} ({passed / pairs:.2%})",
            *(count[status] for status in ("extern", "data", "known", "exception", "failure")),
        ]
        samples = (
            max(o["samples"] for o in outcomes if dtype == o["dtype"]) if dtype != "all" else ""
        )
        lines.append(f"| {dtype} | {samples} | {pairs} | {' | '.join(map(str, cells))} |")
    lines += ["", "| status | operator | dtypes | reason |", "|---|---|---|---|"]
    rest: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for outcome in outcomes:
        if outcome["status"] in ("failure", "exception", "known", "data"):
            rest.setdefault((outcome["status"], outcome["op"]), []).append(outcome)
    for (status, op), found in sorted(
        rest.items(), key=lambda item: (SEVERITY.index(item[0][0]), item[0][1])
    ):
        reason = found[0]["reason"].split(" [")[0].split(" of (")[0].replace("|", "/")
        lines.append(
            f"| {status} | {op} | {' '.join(o['dtype'] for o in found)} | {reason[:160]} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
