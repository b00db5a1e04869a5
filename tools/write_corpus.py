"""Adds files to the corpora of loopir and primops: texts with inputs and results.

usage: python tools/write_corpus.py [--kernels N] [--graphs N] [--programs N]

Files that exist are kept: they say what texts mean, also those of older versions. Cases are left
out whose results depend on how a machine rounds. Run it for new operations; what a version step
adds to operations that have files needs cases with names of their own.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from math import inf, nan
from pathlib import Path
from typing import Any

import hypothesis
import primops
import primops.text
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from loopir import Options, check_kernel, compile_graph, format_program, parse_kernel
from loopir.ir.evaluate import evaluate_expr, evaluate_kernel
from loopir.ir.kernel import Kernel
from loopir.testing import CASES, Case, EvaluatorCodeGenerator, EvaluatorTemplates
from loopir.testing.conditioning import perturbed_results
from loopir.testing.corpus import FOLDER as LOOPS
from loopir.testing.corpus import run_kernel, write_kernel
from loopir.testing.differential import random_kernels
from loopir.testing.inputs import make_inputs
from primops import OPSET, prim_of
from primops.testing.backend import PrimGraph, graph_of, prim_graphs
from primops.testing.corpus import FOLDER as GRAPHS
from primops.testing.strategies import DIVIDING, GENERATED, PrimCall, prim_calls
from primops.testing.trace import trace
from symshapes import FakeTensorMode
from symshapes.testing.stored import TOLERANCES, assert_stored, format_case

from packages.loopir.tests.programs import random_program

LARGEST = 80  # elements of a tensor
FREE = {"svd", "eig", "eigh", "random_seed", "to_device"}
"""Prims whose results are not determined, or only up to a sign or a phase."""


BITS = {"bitcast", "nextafter"}
"""Prims that look at the bits of a number: exact, and different in float64."""


def write(folder: Path, name: str, text: str, values: Sequence[Any], results: Sequence[Any]) -> int:
    """Writes a file unless it exists or is too large; returns how many were written."""
    tensors = [x for x in (*values, *results) if isinstance(x, torch.Tensor)]
    path = folder / f"{name}.txt"
    if path.exists() or any(x.numel() > LARGEST or _overlaps(x) for x in tensors):
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(format_case(text, values, results))
    return 1


def _overlaps(x: torch.Tensor) -> bool:
    return any(step == 0 and size > 1 for size, step in zip(x.shape, x.stride(), strict=True))


# -- kernels ---------------------------------------------------------------------------------------


def small_cases() -> Iterator[Case]:
    """The kit's kernels over fewer points."""
    for case in CASES:
        text = case.text.replace("67", "9").replace("131", "9")
        yield Case(case.name, text, case.sizes[:1], case.limits, specials=case.specials)


def write_kernels(count: int) -> int:
    drawn_cases = [
        Case(f"random_{number:03}", write_kernel(kernel), ((3,) * len(kernel.sizes),))
        for number, kernel in enumerate(random_kernels(count, 32, max_extent=5))
    ]
    written = 0
    for case in (*small_cases(), *drawn_cases):
        kernel = parse_kernel(case.text)
        sizes = case.sizes[0]
        if _elements(kernel, sizes) > LARGEST:
            continue
        check_kernel(kernel)
        tensors = make_inputs(case, kernel, sizes, "cpu")
        values = [x for b, x in zip(kernel.buffers, tensors, strict=True) if b.role != "out"]
        try:
            results = run_kernel(kernel, [*values, *sizes])
        except IndexError:
            continue
        if _is_sure(kernel, tensors, sizes):
            written += write(
                LOOPS / "kernels", case.name, write_kernel(kernel), [*values, *sizes], results
            )
    return written


def _elements(kernel: Kernel, sizes: Sequence[int]) -> int:
    known: dict[str, Any] = {s.name: v for s, v in zip(kernel.sizes, sizes, strict=True)}
    return max(int(evaluate_expr(buffer.numel, known)) for buffer in kernel.buffers)


def _is_sure(kernel: Kernel, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> bool:
    """Whether results are the same, by the tolerances of a stored case, however it is rounded."""
    exact = [x.clone() for x in tensors]
    evaluate_kernel(kernel, exact, sizes)
    return all(_agree(run, exact) for run in perturbed_results(kernel, tensors, sizes, 16))


def _agree(results: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Whether two results differ by less than half of what a stored case allows."""
    half = {dtype: (rtol / 2, atol / 2) for dtype, (rtol, atol) in TOLERANCES.items()}
    try:
        assert_stored(list(results), list(others), half)
    except AssertionError:
        return False
    return True


# -- prim graphs -----------------------------------------------------------------------------------


def drawn(strategy: Any, count: int, number: int) -> list[Any]:
    """Values of a Hypothesis strategy."""
    found: list[Any] = []

    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.seed(number)
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


def write_graphs(count: int) -> int:
    """``count`` graphs with each prim, and twenty times as many of several."""
    written = 0
    for name in sorted({*GENERATED} - FREE):
        calls = drawn(prim_calls(name), 60 * count, 32)
        calls.sort(key=lambda call: -sum(x.numel() for x in _tensors(call) if x.numel() <= LARGEST))
        mixed = random.Random(32).sample(calls, len(calls))
        large = [*value_calls(name), *calls[:2]]
        written += write_some(name, map(graph_of, [*large, *mixed]), count + 3)
    return written + write_some("random", drawn(prim_graphs(), 40 * count, 32), 20 * count)


FLOATS = (-2.5, -1.5, -1.0, -0.5, 0.0, 0.3, 0.5, 1.0, 1.5, 2.5, 4.0, inf, -inf, nan)
INTEGERS = (-7, -3, -2, -1, 0, 1, 2, 3, 5, 8)


def value_calls(name: str) -> Iterator[PrimCall]:
    """Calls of an elementwise prim on every pair of some numbers."""
    prim = OPSET[name]
    if prim.group not in ("elementwise unary", "elementwise binary", "comparison"):
        return
    for dtype, numbers in ((torch.float32, FLOATS), (torch.int64, INTEGERS), (torch.bool, (0, 1))):
        values = torch.tensor(numbers, dtype=dtype)
        if name in DIVIDING and dtype is torch.int64:
            values = values[values != 0]
        if name in ("shift_left", "shift_right", "pow") and dtype is torch.int64:
            values = values[values >= 0]
        operands = [values]
        if len(prim.operands) == 2:
            values = values[
                : 8 if dtype is torch.int64 else None : 2 if dtype.is_floating_point else 1
            ]
            operands = [x.flatten() for x in torch.meshgrid(values, values, indexing="ij")]
        call = PrimCall(prim, tuple(x.clone() for x in operands), {})
        with suppress(Exception):  # a dtype that the prim doesn't take
            call.run()
            yield call


def _tensors(call: PrimCall) -> list[torch.Tensor]:
    return [x for x in call.operands if isinstance(x, torch.Tensor)]


def write_some(name: str, graphs: Iterable[PrimGraph], count: int) -> int:
    """Writes the first ``count`` different ones that are small, sure, and hold the prim ``name``."""
    written, texts = 0, set[str]()
    for graph in graphs:
        gm = primops.decompose(graph.graph)
        text = primops.text.format_graph(gm)
        held = {getattr(prim_of(n.target) or n.target, "name", "") for n in gm.graph.nodes}
        if written == count or text in texts or (name in OPSET and name not in held):
            continue
        texts.add(text)
        values = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in graph.inputs]
        results = primops.evaluate(gm, values)
        promoted = None if held & BITS else torch.float64
        wide = primops.evaluate(gm, values, promote_to=promoted)
        rounded = [
            w.to(r.dtype).clone(memory_format=torch.preserve_format) for w, r in zip(wide, results)
        ]
        if all(_agree([w], [r]) for w, r in zip(rounded, results, strict=True)):
            written += write(GRAPHS, f"{name}_{written:02}", text, values, results)
    return written


# -- programs --------------------------------------------------------------------------------------


FIXED: dict[str, Callable[..., Any]] = {
    "linear": lambda x, y: F.gelu(F.linear(x, y)) + x.sum(),
    "products": lambda x, y: (x @ y.t()).softmax(-1) @ y,
    "convolution": lambda x, y: F.conv1d(x[None], y[:, :3, None]).relu(),
    "dropout": lambda x, y: F.dropout(x, 0.5) * y.sum(),
    "topk": lambda x, y: x.topk(2)[0] + y[:3, :2],
    "views": lambda x, y: (x.t()[1:], y[:, ::2] * 2, x.reshape(-1)),
    "numbers": lambda x, y: (x * x.shape[0], y.sum() / y.numel()),
    "layer_norm": lambda x, y: F.layer_norm(x, (4,), y[0], y[1]),
    "index": lambda x, y: x.index_select(0, y[:, 0].gt(0).long()),
    "loss": lambda x, y: F.cross_entropy(x, y[:3].argmax(1)),
    "columns": lambda x, y: (x.sum(0), x.amax(1, keepdim=True), x.cumsum(0), y.std()),
    "join": lambda x, y: torch.cat([x, y]).sort(0)[0],
}


def write_programs(count: int) -> int:
    """Fixed programs, plain, with templates, and with symbolic rows; then random ones."""
    written = 0
    for name, program in FIXED.items():
        torch.manual_seed(0)
        args = [torch.randn(3, 4), torch.randn(4, 4)]
        for kind in ("plain", "templates", "symbolic"):
            written += write_program(f"{name}_{kind}", program, args, kind)
    for seed in range(count):
        program = random_program(seed, (1, 2, 3, 6))
        written += write_program(f"random_{seed:03}", program, program.arguments(), "plain")
    return written


def write_program(name: str, program: Callable[..., Any], args: list[Any], kind: str) -> int:
    """Writes a program whose results are those of eager float64, and which keeps its inputs."""
    generator = EvaluatorTemplates() if kind == "templates" else EvaluatorCodeGenerator()
    with FakeTensorMode() as mode:
        examples = [mode.from_real(x, source=f"x{i}", dynamic_dims=[0] if kind == "symbolic" else [])
                    for i, x in enumerate(args)]  # fmt: skip
        gm = primops.decompose(trace(program, *examples))
    host = compile_graph(
        gm, examples, codegens={"cpu": generator}, options=Options(check=True, threads=1)
    )
    text = format_program(host.program)
    if host.program.constants or (kind == "templates" and "@template" not in text):
        return 0
    inputs = [x.clone() for x in args]
    results = host(*inputs)
    exact = program(*(x.double() if x.is_floating_point() else x for x in args))
    pairs = zip(exact if isinstance(exact, tuple) else (exact,), results, strict=True)
    if all(map(torch.equal, args, inputs)) and all(
        isinstance(r, torch.Tensor) and _agree([w.to(r.dtype).contiguous()], [r.contiguous()])
        for w, r in pairs
    ):
        return write(LOOPS / "programs", name, text, args, results)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=250, help="random ones")
    parser.add_argument("--graphs", type=int, default=3, help="of each prim")
    parser.add_argument("--programs", type=int, default=300)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    print(f"{write_kernels(chosen.kernels)} kernels", flush=True)
    print(f"{write_graphs(chosen.graphs)} prim graphs", flush=True)
    print(f"{write_programs(chosen.programs)} programs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
