"""Captured graphs (contract C1), or any GraphModule with real example inputs, as programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from symshapes import FakeTensorMode, deferred, is_fake
from torch.autograd import grad_mode
from torch.utils import _pytree as pytree

from aotgrad.effect_plan import ConjugateView, InputSpec
from aotgrad.graphs.trace import fresh_fake, mode_for
from aotgrad.graphs.wrapper_subclasses import check_inner_tensors
from aotgrad.tracing.aliased_inputs import lazy_view_base
from aotgrad.tracing.interpret import run_captured
from aotgrad.tracing.joint import Program
from aotgrad.tracing.tracer import Tracer

from .compilation import Compilation
from .compile import CompileOptions
from .foreign_symbols import SymbolImporter, is_foreign, specialise_floats


def compile_captured(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> Callable[..., Any]:
    """A graph compiled for the grad mode that is on. Its own parameters and buffers become inputs
    that the caller does not pass; beside an input that is lazily conjugated or negated, the
    graph gets the stored value.
    """
    if not (torch.is_inference_mode_enabled() and leaves_inference_mode(gm.graph)):
        return _compile(gm, example_inputs, options)
    # called outside of inference mode, a graph can give ordinary tensors and gradients
    with torch.inference_mode(False):
        call = _compile(_in_inference_mode(gm), example_inputs, options)

    def run(*inputs: Any) -> Any:
        with torch.inference_mode(False):
            return call(*inputs)

    return run


def leaves_inference_mode(graph: torch.fx.Graph) -> bool:
    """Whether a captured graph has calls outside of the inference mode that is on around it."""
    entered = graph.find_nodes(op="call_function", target=grad_mode._enter_inference_mode)
    return any(node.args[0] is False for node in entered)


def _in_inference_mode(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with all its calls in inference mode."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        copies[node] = graph.node_copy(node)
    mode = graph.call_function(grad_mode._enter_inference_mode, (True,))
    for node in gm.graph.nodes:
        if node.op == "output":
            graph.call_function(grad_mode._exit_inference_mode, (mode,))
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return torch.fx.GraphModule(gm, graph)


@deferred()
def _compile(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> Callable[..., Any]:
    compilation, importer, lazy = _prepare(gm, example_inputs, options)
    call = compilation.variant(torch.is_grad_enabled())
    importer.report()
    if not lazy:
        return call
    return lambda *inputs: call(*inputs, *(lazy_view_base(inputs[i]) for i in lazy))


def compilation_of(gm: torch.fx.GraphModule, options: CompileOptions) -> Compilation:
    """The compilation of a captured graph, from which nothing is compiled yet."""
    examples = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    return _prepare(gm, examples, options)[0]


def _prepare(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> tuple[Compilation, SymbolImporter, list[int]]:
    check_inner_tensors(gm.graph)
    specialise_floats(gm.graph)
    placeholders = gm.graph.find_nodes(op="placeholder")
    symbolic = any(map(is_foreign, example_inputs))
    described = [
        _described(node, example, symbolic) for node, example in zip(placeholders, example_inputs)
    ]
    fake_mode = mode_for([v for v in (*described, *example_inputs) if not is_foreign(v)])
    importer = SymbolImporter(fake_mode)
    given = [
        _input(node, value, example, fake_mode)
        for node, value, example in zip(placeholders, importer.adopt(described), example_inputs)
    ]
    lifted = _owned_tensors(gm)
    distinct = {id(t): (name, t) for name, t in lifted.items()}
    lazy = _add_lazy_bases(given, example_inputs, len(distinct))

    def make_inputs() -> tuple[InputSpec, ...]:
        own = [
            InputSpec("self_" + name.replace(".", "_"), t, True, t.requires_grad, t.is_leaf)
            for name, t in distinct.values()
        ]
        return tuple(
            replace(s, value=fresh_fake(s.value, s.requires_grad, fake_mode)) if s.is_tensor else s
            for s in (*own, *given)
        )

    def eager(*inputs: Any) -> tuple[Any, ...]:
        return tuple(pytree.tree_leaves(run_captured(gm, inputs[: len(placeholders)])))

    place = {key: i for i, key in enumerate(distinct)}
    program = captured_program(gm, {name: place[id(t)] for name, t in lifted.items()})
    lifted_tensors = tuple(t for _, t in distinct.values())
    compilation = Compilation(
        program, make_inputs, lifted_tensors, eager, fake_mode, options, graph=gm
    )
    return compilation, importer, lazy


def _add_lazy_bases(
    specs: list[InputSpec], example_inputs: Sequence[Any], num_lifted: int
) -> list[int]:
    """Adds inputs for the stored values of lazily conjugated or negated ones, which become views of
    them. Returns the indices of the lazy ones.
    """
    lazy = [
        i
        for i, x in enumerate(example_inputs)
        if isinstance(x, torch.Tensor) and (x.is_conj() or x.is_neg())
    ]
    for i in lazy:
        x, spec = example_inputs[i], specs[i]
        base = ConjugateView(num_lifted + len(specs), x.is_conj(), x.is_neg())
        is_leaf = spec.is_leaf and not spec.requires_grad
        specs.append(replace(spec, name=f"{spec.name}_stored", is_leaf=is_leaf))
        specs[i] = replace(spec, requires_grad=False, is_leaf=False, view_of=base)
    return lazy


def captured_program(gm: torch.fx.GraphModule, lifted: Mapping[str, int] | None = None) -> Program:
    """A program that runs a captured graph. ``lifted``: names of the module's tensors that leading
    inputs stand for.
    """
    lifted = lifted or {}
    num_lifted, num_given = len(set(lifted.values())), len(gm.graph.find_nodes(op="placeholder"))

    def program(
        inputs: Sequence[Any], tracer: Tracer, wrap_constant: Callable[[torch.Tensor], torch.Tensor]
    ) -> Any:
        own, given = inputs[:num_lifted], inputs[num_lifted : num_lifted + num_given]
        substitutes = {id(t) for t in own}

        def enter(node: torch.fx.Node) -> None:
            tracer.origin = node

        def wrap(tensor: torch.Tensor) -> torch.Tensor:
            return tensor if id(tensor) in substitutes else wrap_constant(tensor)

        with with_tensors(gm, {name: own[i] for name, i in lifted.items()}):
            return run_captured(gm, given, enter=enter, wrap_constant=wrap)

    return program


def _described(node: torch.fx.Node, example: Any, symbolic: bool) -> Any:
    """The value that a graph notes for an input, else the example. Symbols of another front end
    count only if that one passes sizes.
    """
    noted = node.meta.get("val", node.meta.get("example_value", example))
    return (noted if symbolic else example) if is_foreign(noted) else node.meta.get("val", example)


def _input(node: torch.fx.Node, value: Any, example: Any, fake_mode: FakeTensorMode) -> InputSpec:
    """What is known of an input; the example is not kept."""
    if not isinstance(value, torch.Tensor):
        return InputSpec(node.name, value)
    requires_grad = (example if isinstance(example, torch.Tensor) else value).requires_grad
    static = bool(node.meta.get("static")) or isinstance(example, torch.nn.Parameter)
    is_leaf = static or (
        isinstance(example, torch.Tensor) and not is_fake(example) and example.is_leaf
    )
    return InputSpec(
        node.name, fresh_fake(value, requires_grad, fake_mode), static, requires_grad, is_leaf
    )


def _owned_tensors(gm: torch.fx.GraphModule) -> dict[str, torch.Tensor]:
    """Parameters and buffers that belong to the program's state rather than being constants of the
    graph.
    """
    tensors = named_tensors(gm)
    if not gm.graph.find_nodes(op="call_module"):
        read = {str(n.target) for n in gm.graph.find_nodes(op="get_attr")}
        tensors = {name: t for name, t in tensors.items() if name in read and t.requires_grad}
    return tensors


def named_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module; tied tensors under all their names."""
    parameters = module.named_parameters(remove_duplicate=False)
    return dict([*parameters, *module.named_buffers(remove_duplicate=False)])


@contextmanager
def with_tensors(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """While active, the module's parameters and buffers of these names are the given tensors."""
    places: list[tuple[dict[str, Any], str]] = []
    for name in tensors:
        owner_name, _, leaf = name.rpartition(".")
        owner = module.get_submodule(owner_name)
        places.append((owner._parameters if leaf in owner._parameters else owner._buffers, leaf))  # type: ignore[arg-type]
    originals = [table[leaf] for table, leaf in places]
    try:
        for (table, leaf), tensor in zip(places, tensors.values()):
            table[leaf] = tensor
        yield
    finally:
        for (table, leaf), original in zip(places, originals):
            table[leaf] = original
