"""The swap matrix: each capture with each autograd and each generator on the eight models, by
training and inference, against eager mode.

    python -m integration_tests.seams.matrix                    all cells
    python -m integration_tests.seams.matrix ours theirs cpp    one capture, autograd, generator

``--json FILE`` adds the verdicts to a file, ``--from FILE`` takes them from there instead of
running; ``--write PAGE`` writes the page, ``--check PAGE`` fails where it says something else.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aotgrad
import bytecode_dynamo
import loopir
import torch
from inductor_cpp import CppCodeGenerator
from inductor_triton import TritonCodeGenerator
from loopir.testing import EvaluatorCodeGenerator
from torch.utils import _pytree as pytree

from integration_tests.models.zoo import ZOO, Entry
from integration_tests.rule import assert_by_rule, relative_errors, to_double
from integration_tests.thirdparty.plain_c import PlainCGenerator

Compiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]
Capture = Callable[[torch.nn.Module, tuple[Any, ...], Backend], Callable[..., Any]]


class NoGraph(Exception):
    """A capture has no graph of a model; the text is its reason."""


def ours(module: torch.nn.Module, inputs: tuple[Any, ...], backend: Backend) -> Callable[..., Any]:
    """bytecode-dynamo."""
    bytecode_dynamo.reset()
    return bytecode_dynamo.optimize(backend)(module)


def theirs(
    module: torch.nn.Module, inputs: tuple[Any, ...], backend: Backend
) -> Callable[..., Any]:
    """torch.compile's."""
    torch.compiler.reset()
    return torch.compile(module, backend=backend)


def export(
    module: torch.nn.Module, inputs: tuple[Any, ...], backend: Backend
) -> Callable[..., Any]:
    """The graph of torch.export, run by the backend."""
    try:
        program = torch.export.export(module, inputs)
    except Exception as error:
        raise NoGraph(str(error).strip().splitlines()[0]) from error
    graph = program.module(check_guards=False)
    graph.graph.set_codegen(torch.fx.graph.CodeGen())
    graph.recompile()
    compiled = None

    def run(*args: Any) -> Any:
        nonlocal compiled
        flat = pytree.tree_leaves(args)
        compiled = compiled or backend(graph, flat)
        return pytree.tree_unflatten(list(compiled(*flat)), program.call_spec.out_spec)

    return run


def our_autograd(compiler: Compiler) -> Backend:
    """aotgrad."""
    return aotgrad.aot_backend(compiler, compiler, inference_compiler=compiler)


def their_autograd(compiler: Compiler) -> Backend:
    """torch's AOTAutograd."""
    from torch._dynamo.backends.common import aot_autograd

    def boxed(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        compiled = compiler(graph, inputs)

        def call(args: list[Any]) -> Any:
            given = list(args)
            args.clear()
            return compiled(*given)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    return aot_autograd(fw_compiler=boxed, bw_compiler=boxed, inference_compiler=boxed)


def by_loops(make: Callable[[], loopir.CodeGenerator]) -> Compiler:
    """A generator of kernels, below this project's stages."""

    def compiler(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        generators = loopir.share_devices({"cpu": make()}, {"cpu": CppCodeGenerator})
        return loopir.compile_graph(graph, inputs, codegens=generators)

    return compiler


def by_inductor(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """torch's inductor, on the graph in the operators that it takes."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        examples = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
            if isinstance(x, torch.Tensor)
            else x
            for x in _examples(graph, inputs)
        ]
        decomposed = make_fx(graph, decomposition_table=select_decomp_table())(*examples)
    (output,) = decomposed.graph.find_nodes(op="output")
    results = pytree.arg_tree_leaves(*output.args)
    # inductor may lay out any other result anew
    output.meta["user_visible_output_idxs"] = [
        i for i, result in enumerate(results) if isinstance(result, torch.fx.Node)
    ]
    with torch._guards.tracing(torch._guards.TracingContext(mode)):
        compiled = compile_fx_inner(decomposed, examples)
    return lambda *args: compiled(list(args))


def _examples(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    values = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
    return [given if value is None else value for value, given in zip(values, inputs, strict=True)]


def halide() -> loopir.CodeGenerator:
    from inductor_halide import HalideCodeGenerator

    return HalideCodeGenerator()


CAPTURES: dict[str, Capture] = {"ours": ours, "theirs": theirs, "export": export}
AUTOGRADS = {"ours": our_autograd, "theirs": their_autograd}
GENERATORS: dict[str, Compiler] = {
    "cpp": by_loops(CppCodeGenerator),
    "triton": by_loops(lambda: TritonCodeGenerator(device="cpu", interpret=True)),
    "halide": by_loops(halide),
    "plain C": by_loops(PlainCGenerator),
    "evaluator": by_loops(EvaluatorCodeGenerator),
    "inductor": by_inductor,
}


@dataclass
class Cell:
    """What a combination did: the models that ran, and why others did not."""

    ran: list[str] = field(default_factory=list)
    no_graph: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """In a word."""
        return f"{len(self.ran)} of {len(ZOO)}"


def run_cell(capture: str, autograd: str, generator: str, entries: Sequence[Entry] = ZOO) -> Cell:
    """Trains and evaluates each model through a combination."""
    cell, started = Cell(), time.perf_counter()
    for entry in entries:
        try:
            with _quiet():
                for training in (False, True):
                    backend = AUTOGRADS[autograd](GENERATORS[generator])
                    _check(entry, training, lambda *a, b=backend: CAPTURES[capture](*a, b))
            cell.ran.append(entry.name)
        except NoGraph as error:
            cell.no_graph[entry.name] = str(error)
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            cell.refused[entry.name] = f"{type(error).__name__}: {lines[0][:160]}"
    cell.seconds = time.perf_counter() - started
    return cell


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


DRAWS = 8
USUAL_ERROR = 1e-5
"""Error over scale of float32 results that passes for rounding whatever eager's is."""


def _check(entry: Entry, training: bool, capture: Callable[..., Any]) -> None:
    """Judges one draw of the inputs by eager's largest errors over several draws: gradients that
    cancel, like those of an attention's key bias, scatter.
    """
    torch.manual_seed(0)
    module, drawn = entry.build().train(training), [entry.inputs(2) for _ in range(DRAWS)]
    for part in module.modules():  # random numbers differ between stacks
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if isinstance(part, torch.nn.MultiheadAttention):
            part.dropout = 0.0
    state = {name: value.clone() for name, value in module.state_dict().items()}
    errors: dict[str, float] = {}
    for inputs in reversed(drawn):
        module.load_state_dict(state)
        exact_module = to_double(module)
        exact = _results(exact_module, exact_module, to_double(inputs), training)
        eager = _results(module, module, inputs, training)
        for name, error in relative_errors(eager, exact).items():
            errors[name] = max(error, errors.get(name, USUAL_ERROR))
    module.load_state_dict(state)
    found = _results(capture(module, drawn[0]), module, drawn[0], training)
    assert found.keys() == eager.keys(), f"other gradients: {found.keys() ^ eager.keys()}"
    for name, value in found.items():
        assert_by_rule(value, eager[name], exact[name], name, errors[name])


def _results(
    call: Callable[..., torch.Tensor],
    module: torch.nn.Module,
    inputs: tuple[Any, ...],
    training: bool,
) -> dict[str, torch.Tensor]:
    """The result of a call, and in training the gradients of the parameters that it uses."""
    with torch.set_grad_enabled(training):
        result = call(*inputs)
        if not training:
            return {"result": result}
        named = dict(module.named_parameters())
        found = torch.autograd.grad(result.sum(), list(named.values()), allow_unused=True)
    gradients = {f"gradient of {n}": g for n, g in zip(named, found) if g is not None}
    return {"result": result.detach(), **gradients}


Names = tuple[str, str, str]
Cells = dict[Names, Cell]

PAGE = """# The swap matrix

Written by `python -m integration_tests.seams.matrix --write docs/swap_matrix.md`; `nox -s nightly` runs every cell and fails
where this page says something else. A cell is a capture, an autograd and a generator together: each of the eight models of
`integration_tests/models/zoo.py` runs in inference and in training, and results and gradients are judged by the rule of
`integration_tests/rule.py`. *ours* is this project's layer, *theirs* torch's; *export* runs the graph of `torch.export`. The
kernels of *triton* run in Triton's interpreter, *evaluator* computes kernels by torch's eager operators, and *plain C* is the
generator of `integration_tests/thirdparty`.

{table}

{whole} of {cells} cells run all eight models. {without} {have} no graph of a model, {refusing} of {cells} \
refuse a graph or compute something else.
{reasons}"""


def format_page(cells: Cells) -> str:
    """The page: verdicts by capture, autograd and generator, and the reasons below."""
    rows = ["| capture | autograd | " + " | ".join(GENERATORS) + " |"]
    rows.append("|---" * (2 + len(GENERATORS)) + "|")
    for capture, autograd in itertools.product(CAPTURES, AUTOGRADS):
        found = [cells.get((capture, autograd, generator)) for generator in GENERATORS]
        verdicts = ["not run" if cell is None else cell.verdict for cell in found]
        rows.append(f"| {capture} | {autograd} | {' | '.join(verdicts)} |")
    reasons: dict[tuple[str, str], list[Names]] = {}
    for names, cell in sorted(cells.items()):
        for model, reason in {**cell.no_graph, **cell.refused}.items():
            reasons.setdefault((model, reason), []).append(names)
    lines = ["", "| model | cells | reason |", "|---|---|---|"] if reasons else []
    for (model, reason), where in reasons.items():
        lines.append(f"| {model} | {_named(where)} | {reason.replace('|', chr(92) + '|')} |")
    without = sum(bool(cell.no_graph) for cell in cells.values())
    return PAGE.format(
        table="\n".join(rows),
        whole=sum(len(cell.ran) == len(ZOO) for cell in cells.values()),
        cells=len(cells),
        without=without,
        have="has" if without == 1 else "have",
        refusing=sum(bool(cell.refused) for cell in cells.values()),
        reasons="\n".join([*lines, ""]),
    )


def _named(where: list[Names]) -> str:
    for capture in CAPTURES:
        if {names for names in itertools.product([capture], AUTOGRADS, GENERATORS)} == set(where):
            return f"all with {capture}"
    return "; ".join(map(", ".join, where))


def read_cells(path: Path) -> Cells:
    """Verdicts that ``--json`` kept."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    return {tuple(names.split(", ")): Cell(**cell) for names, cell in kept.items()}  # type: ignore[misc]


def write_cells(path: Path, cells: Cells) -> None:
    """Adds verdicts to those that a file has."""
    joined = {", ".join(names): asdict(c) for names, c in {**read_cells(path), **cells}.items()}
    path.write_text(json.dumps(joined, indent=1, sort_keys=True) + "\n")


def run_cells(wanted: tuple[str | None, ...], keep: Path | None) -> Cells:
    """Runs the cells of the names wanted, None for any, and prints each."""
    cells: Cells = {}
    for names in itertools.product(CAPTURES, AUTOGRADS, GENERATORS):
        if any(w is not None and w != name for w, name in zip(wanted, names)):
            continue
        cell = cells[names] = run_cell(*names)
        if keep is not None:
            write_cells(keep, {names: cell})
        print(f"{', '.join(names)}: {cell.verdict}, {cell.seconds:.0f} s", flush=True)
        for model, reason in {**cell.no_graph, **cell.refused}.items():
            print(f"    {model}: {reason}", flush=True)
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("capture", nargs="?", choices=CAPTURES)
    parser.add_argument("autograd", nargs="?", choices=AUTOGRADS)
    parser.add_argument("generator", nargs="?", choices=GENERATORS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    parser.add_argument("--check", type=Path, metavar="PAGE")
    chosen = parser.parse_args()
    wanted = (chosen.capture, chosen.autograd, chosen.generator)
    if (chosen.write or chosen.check) and any(wanted):
        parser.error("a page is about all cells")
    cells = read_cells(chosen.source) if chosen.source else run_cells(wanted, chosen.json)
    page = format_page(cells)
    if chosen.write:
        chosen.write.write_text(page)
    if chosen.check:
        differs = page != chosen.check.read_text()
        if differs:
            print(f"{chosen.check} says something else than\n\n{page}")
        return int(differs)
    return int(any(cell.refused for cell in cells.values()))


if __name__ == "__main__":
    sys.exit(main())
