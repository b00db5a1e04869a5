"""The swap matrix: each capture with each autograd and each generator on the eight models, by
training and inference, against eager mode.

    python -m integration_tests.seams.matrix                    all cells
    python -m integration_tests.seams.matrix ours theirs cpp    one capture, autograd, generator
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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
from integration_tests.rule import assert_by_rule, to_double
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


def _check(entry: Entry, training: bool, capture: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    module, inputs = entry.build().train(training), entry.inputs(2)
    for part in module.modules():  # random numbers differ between stacks
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if isinstance(part, torch.nn.MultiheadAttention):
            part.dropout = 0.0
    exact_module, exact_inputs = to_double(module), to_double(inputs)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.set_grad_enabled(training):
        exact, eager = exact_module(*exact_inputs), module(*inputs)
        expected = _gradients(eager, module) if training else []
        module.load_state_dict(state)
        result = capture(module, inputs)(*inputs)
        assert_by_rule(result, eager, exact)
        if training:
            found = _gradients(result, module)
            precise = _gradients(exact, exact_module)
            for a, b, c in zip(found, expected, precise, strict=True):
                if b is not None:
                    assert_by_rule(a, b, c, "gradient", eager_error=1e-5)


def _gradients(result: torch.Tensor, module: torch.nn.Module) -> Sequence[torch.Tensor | None]:
    return torch.autograd.grad(result.sum(), list(module.parameters()), allow_unused=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("capture", nargs="?", choices=CAPTURES)
    parser.add_argument("autograd", nargs="?", choices=AUTOGRADS)
    parser.add_argument("generator", nargs="?", choices=GENERATORS)
    chosen = parser.parse_args()
    cells: dict[tuple[str, str, str], Cell] = {}
    for names in itertools.product(CAPTURES, AUTOGRADS, GENERATORS):
        wanted = (chosen.capture, chosen.autograd, chosen.generator)
        if any(w is not None and w != name for w, name in zip(wanted, names)):
            continue
        cell = cells[names] = run_cell(*names)
        print(f"{', '.join(names)}: {cell.verdict}, {cell.seconds:.0f} s", flush=True)
        for model, reason in {**cell.no_graph, **cell.refused}.items():
            print(f"    {model}: {reason}", flush=True)
    return int(any(cell.refused for cell in cells.values()))


if __name__ == "__main__":
    sys.exit(main())
