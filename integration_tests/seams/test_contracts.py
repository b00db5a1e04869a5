"""Producer output passes the consumer, arrow by arrow, on small programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import aotgrad
import bytecode_dynamo
import inductor_cpp
import loopir
import primops
import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "pointwise": (lambda x, y: (x * y + 1).relu(), lambda: (torch.randn(4, 6), torch.randn(6))),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: (torch.randn(5, 17),)),
    "layernorm": (lambda x: F.layer_norm(x, (8,)), lambda: (torch.randn(3, 8),)),
    "matmul": (lambda x, y: F.gelu(x @ y), lambda: (torch.randn(4, 5), torch.randn(5, 6))),
    "views": (
        lambda x: x.view(2, 2, 6).transpose(1, 2).reshape(12, 2).sum(0),
        lambda: (torch.randn(4, 6),),
    ),
    "mutation": (lambda x: x.clone().add_(1).mul_(2).sin(), lambda: (torch.randn(4),)),
    "attention": (
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        lambda: (torch.randn(1, 2, 8, 16),),
    ),
    "cross entropy": (
        lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.long)),
        lambda: (torch.randn(4, 9),),
    ),
}


def capture(
    f: Callable[..., Any], inputs: Sequence[torch.Tensor], **options: Any
) -> list[torch.fx.GraphModule]:
    graphs = []

    def backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    bytecode_dynamo.optimize(backend, **options)(f)(*inputs)
    return graphs


def functional(
    f: Callable[..., Any], inputs: Sequence[torch.Tensor], **options: Any
) -> list[torch.fx.GraphModule]:
    graphs = []

    def compiler(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    backend = aotgrad.aot_backend(compiler)
    output = bytecode_dynamo.optimize(backend, **options)(f)(*inputs)
    if output.requires_grad:
        output.sum().backward()
    return graphs


@pytest.fixture(params=PROGRAMS)
def program(request):
    bytecode_dynamo.reset()
    f, inputs = PROGRAMS[request.param]
    torch.manual_seed(0)
    return f, inputs()


def leaves(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(x.detach().clone().requires_grad_() for x in inputs)


@pytest.mark.parametrize("dynamic", [False, True])
def test_captured_graph_is_c1(program, dynamic) -> None:
    f, inputs = program
    (graph,) = capture(f, inputs, dynamic=dynamic)
    bytecode_dynamo.check_captured(graph)


@pytest.mark.parametrize("dynamic", [False, True])
def test_aotgrad_takes_captured_graphs_and_gives_c2(program, dynamic) -> None:
    f, inputs = program
    graphs = functional(f, leaves(inputs), dynamic=dynamic)
    assert len(graphs) == 2
    for graph in graphs:
        aotgrad.check_functional(graph)


@pytest.mark.parametrize("dynamic", [False, True])
def test_primops_takes_functional_graphs_and_gives_c3(program, dynamic) -> None:
    f, inputs = program
    for graph in functional(f, leaves(inputs), dynamic=dynamic):
        primops.check_prims(primops.decompose(graph))


@pytest.mark.parametrize("dynamic", [False, True])
def test_loopir_takes_prim_graphs_and_gives_c4_and_c5(program, dynamic) -> None:
    f, inputs = program
    for graph in functional(f, leaves(inputs), dynamic=dynamic):
        result = loopir.schedule(loopir.lower(primops.decompose(graph)))
        loopir.check_program(result)
        for kernel in result.kernels:
            loopir.check_kernel(kernel)
            assert loopir.parse_kernel(loopir.format_kernel(kernel)) == kernel


@pytest.mark.parametrize("dynamic", [False, True])
def test_code_generator_takes_kernels(program, dynamic) -> None:
    f, inputs = program
    backend = aotgrad.aot_backend(lambda graph, example: inductor_cpp.compile_graph(graph, example))
    plain, compiled = leaves(inputs), leaves(inputs)
    expected, result = f(*plain), bytecode_dynamo.optimize(backend, dynamic=dynamic)(f)(*compiled)
    torch.testing.assert_close(result, expected)
    expected.square().sum().backward()
    result.square().sum().backward()
    for a, b in zip(plain, compiled, strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-5)


def test_torch_compile_can_use_the_stack_as_a_backend() -> None:
    import torchstrata

    compiled = torch.compile(lambda x: (x * 2).softmax(-1), backend=torchstrata.compile_fx)
    x = torch.randn(3, 5)
    torch.testing.assert_close(compiled(x), (x * 2).softmax(-1))


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_and_floats_of_torch_compile(dynamic: bool | None) -> None:
    import torchstrata

    graphs = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list) -> object:
        graphs.append(gm)
        return torchstrata.compile_fx(gm, example_inputs)

    def f(x: torch.Tensor, w: torch.Tensor, k: float) -> tuple[torch.Tensor, ...]:
        y = (x.sin() @ w).softmax(-1)
        longer = y * k if x.shape[0] > 8 else y + k
        return (
            longer.reshape(x.shape[0] * w.shape[1]),
            x.new_ones(x.shape[0] // 2),
            y.t().reshape(-1)[::2],
        )

    torch._dynamo.reset()
    compiled = torch.compile(f, backend=backend, dynamic=dynamic)
    for n, k in ((5, 0.5), (6, 0.5), (7, 1.5), (9, 1.5), (12, 1.5)):
        x, w = torch.randn(n, 3, requires_grad=True), torch.randn(3, n + 2, requires_grad=True)
        expected, result = f(x, w, k), compiled(x, w, k)
        torch.testing.assert_close(result, expected)
        gradients = [
            torch.autograd.grad(r[0].sum() + r[2].sum(), (x, w)) for r in (expected, result)
        ]
        torch.testing.assert_close(gradients[1], gradients[0])
    assert len(graphs) <= 4


def test_a_trace_with_symbolic_sizes_is_compiled_for_its_example() -> None:
    import torchstrata
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(5, 3)
    traced = make_fx(lambda x: (x @ x.T).reshape(x.shape[0] * x.shape[0]), tracing_mode="symbolic")(
        x
    )
    result = torchstrata.compile_fx(traced, [x])(x)
    torch.testing.assert_close(pytree.tree_leaves(result)[0], traced(x))
