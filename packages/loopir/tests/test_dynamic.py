"""Symbolic sizes: one program, several sizes, no new guards."""

import math

import pytest
import torch
import torch.nn.functional as F
from loopir import Options, format_kernel
from loopir.lowering.context import LoweringContext
from loopir.lowering.record import SimplifyingRecorder
from loopir.lowering.scalar import scalar
from symshapes import FakeTensorMode

pytestmark = pytest.mark.filterwarnings("ignore:Raw SymInt")
WEIGHT, BIAS = torch.randn(64), torch.randn(64)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def batch_norm(x, w, g, b):
    y, mean, rstd = torch.ops.aten.native_batch_norm(
        torch.conv2d(x, w, padding=1), g, b, None, None, True, 0.1, 1e-5
    )
    return torch.relu(y), mean, rstd


CONV = [torch.randn(8, 3, 3, 3), torch.randn(8), torch.randn(8)]
CASES = {
    "pointwise": (lambda x: (x * 2 + 1).relu(), lambda n: [torch.randn(n, 5)], [[0]]),
    "softmax": (lambda x: x.softmax(-1), lambda n: [torch.randn(n, 5, n)], [[0, 2]]),
    "layernorm": (
        lambda x, w, b: F.layer_norm(x, (64,), w, b),
        lambda n: [torch.randn(n, 5, 64), WEIGHT, BIAS],
        [[0], [], []],
    ),
    "conv_batch": (batch_norm, lambda n: [torch.randn(n, 3, 16, 16), *CONV], [[0], [], [], []]),
    "conv_space": (batch_norm, lambda n: [torch.randn(2, 3, n, n), *CONV], [[2, 3], [], [], []]),
    "cat": (
        lambda x, y: torch.cat([x, y], 0).exp(),
        lambda n: [torch.randn(n, 5), torch.randn(n + 1, 5)],
        [[0], [0]],
    ),
    "mean": (
        lambda x: (x.mean(0), x.var(1), x.mean(), x * x.shape[0], x / x.numel()),
        lambda n: [torch.randn(n, 5)],
        [[0]],
    ),
    "upsample": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda n: [torch.randn(n, 3, 8, 8)],
        [[0]],
    ),
    "flatten_mm": (
        lambda x, y: (x.flatten(1) @ y).relu(),
        lambda n: [torch.randn(n, 4, 4), torch.randn(16, 5)],
        [[0], []],
    ),
    "arange": (lambda x: x + torch.arange(x.shape[1]), lambda n: [torch.randn(4, n)], [[1]]),
    "divided": (
        lambda x: (x.view(-1, 4).sum(1), x.reshape(2, -1).t() + 1),
        lambda n: [torch.randn(4 * n)],
        [[0]],
    ),
    "embedding": (
        lambda i, w, p: F.embedding(i, w) + p[: i.shape[1]],
        lambda n: [torch.randint(0, 9, (3, n)), torch.randn(9, 8), torch.randn(64, 8)],
        [[1], [], []],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_program_runs_all_sizes(run_dynamic, name):
    fn, make, dims = CASES[name]
    host = run_dynamic(fn, make, dims)
    divisions = [
        " // " in format_kernel(kernel) or " % " in format_kernel(kernel)
        for kernel in host.program.kernels
    ]
    assert name in ("divided", "upsample") or not any(divisions)


def test_layernorm_stays_one_kernel(run_dynamic):
    fn, make, dims = CASES["layernorm"]
    host = run_dynamic(fn, make, dims)
    assert host.launch_count == 1
    assert [str(size) for size in host.program.kernels[0].sizes] == ["s0"]


def test_unbacked_sizes_are_bound_by_their_operator():
    from loopir import Options, compile_graph
    from loopir.testing import EvaluatorCodeGenerator
    from primops import TensorMeta, contiguous_strides, prims
    from symshapes import ShapeEnv

    env = ShapeEnv()
    rows = env.create_unbacked(lower=0)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = TensorMeta((6,), (1,), torch.float32, torch.device("cpu"))
    found = graph.call_function(torch.ops.aten.nonzero.default, (x,))
    found.meta["val"] = TensorMeta((rows, 1), (1, rows), torch.int64, torch.device("cpu"))
    doubled = graph.call_function(prims.mul, (found, 2))
    doubled.meta["val"] = TensorMeta(
        (rows, 1), contiguous_strides((rows, 1)), torch.int64, torch.device("cpu")
    )
    graph.output((doubled,)).meta["val"] = (doubled.meta["val"],)
    gm = torch.fx.GraphModule({}, graph)
    host = compile_graph(
        gm, [], codegens={"cpu": EvaluatorCodeGenerator()}, options=Options(check=True)
    )
    for values in ([0.0, 1, 0, 2, 0, 3], [1.0] * 6, [0.0] * 6):
        tensor = torch.tensor(values)
        assert torch.equal(host(tensor)[0], tensor.nonzero() * 2)


def test_floats_and_bools_computed_from_sizes(run_dynamic):
    def fn(x):
        rows = x.shape[0]
        scaled = x * (rows / 4) + math.sqrt(3.0) * rows**0.5
        return scaled * torch.sym_max(rows, 5), torch.full((3,), rows / 8, device=x.device) + x[
            0, :3
        ]

    run_dynamic(fn, lambda n: (torch.randn(n, 4),), [[0]])


def test_symbolic_numbers_reach_extern_calls(run_dynamic):
    host = run_dynamic(
        lambda x: torch.addmm(x, x, x.t() @ x, alpha=x.shape[0] / 4),
        lambda n: (torch.randn(n, 4) / 3,),
        [[0]],
    )
    assert "alpha=" in host.source


def test_symbolic_bools_are_comparisons():
    rows = FakeTensorMode().from_real(torch.randn(8, 3), source="x", dynamic_dims=[0]).shape[0]
    ctx = LoweringContext(Options())
    recorder = SimplifyingRecorder(ctx.facts, {})
    scalar(recorder, rows > 7, torch.float32, ctx)
    assert [step.op for step in recorder.instructions] == ["index_expr", "index_expr", "lt", "cast"]
    scalar(recorder, rows / 2 < 3.5, torch.bool, ctx)
    assert recorder.instructions[-1].op == "lt" and recorder.instructions[-1].dtype is torch.bool
