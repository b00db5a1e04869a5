"""On a CUDA device: the conformance kit, launches on streams, variants, and errors."""

from __future__ import annotations

import primops
import pytest
import torch
import torch.nn.functional as F
from inductor_triton import TritonCodeGenerator
from loopir import ArtifactStore, compile_graph, parse_kernel
from loopir.testing import check_code_generator
from primops.testing import trace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DOUBLE = """
@kernel(device='cuda')
def double(in0: In('float32', s0), out: Out('float32', s0), s0: Size(hint=4096)):
    for i in range(s0):
        a = load(in0, [i], 'float32')
        b = add(a, a)
        store(out, [i], b)
"""
GATHER = """
@kernel(device='cuda')
def gather(table: In('float32', 200), idx: In('int64', 7), out: Out('float32', 70)):
    for i in range(7):
        for j in range(10):
            k = load(idx, [i], 'int64')
            t = indirect(k, 20)
            a = load(table, [10*t + j], 'float32')
            store(out, [10*i + j], a)
"""


def build(text, tmp_path, **options):
    generator = TritonCodeGenerator(**options)
    (launch,) = generator.build([generator.generate(parse_kernel(text))], ArtifactStore(tmp_path))
    return launch


def test_conformance():
    assert check_code_generator(TritonCodeGenerator(synchronous_errors=True)).passed > 0


@pytest.mark.parametrize("size", [0, 1, 15, 4096, 100_003])
@pytest.mark.parametrize("offset", [0, 1, 4])
def test_sizes_and_alignment(tmp_path, size, offset):
    launch = build(DOUBLE, tmp_path)
    x = torch.rand(size + offset, device="cuda")[offset:]
    y = torch.empty(size, device="cuda")
    launch(x, y, size)
    assert torch.equal(y, x + x)


def test_the_current_stream_is_used(tmp_path):
    launch = build(DOUBLE, tmp_path)
    x, y = torch.rand(4096, device="cuda"), torch.zeros(4096, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        launch(x, y, 4096)
        stopped = torch.cuda.Event()
        stopped.record()
    assert not stopped.query(), "the launch went to a stream that does not wait"
    torch.cuda.synchronize()
    assert torch.equal(y, x + x)


def test_capture_in_a_graph_of_the_user(tmp_path):
    launch = build(DOUBLE, tmp_path)
    x, y = torch.rand(4096, device="cuda"), torch.zeros(4096, device="cuda")
    launch(x, y, 4096)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(x, y, 4096)
    x.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((y == 6).all())


def test_an_index_out_of_range(tmp_path):
    table, out = torch.rand(200, device="cuda"), torch.zeros(70, device="cuda")
    indices = torch.tensor([0, 19, 20, 3, 7, 1, 0], device="cuda")
    exact = build(GATHER, tmp_path, synchronous_errors=True)
    with pytest.raises(IndexError, match="gather"):
        exact(table, indices, out)
    later = build(GATHER, tmp_path)
    later(table, indices, out)
    torch.cuda.synchronize()
    with pytest.raises(IndexError, match="gather"):
        later(table, indices.clamp(max=19), out)
    later(table, indices.clamp(max=19), out)
    assert torch.equal(out, table.reshape(20, 10)[indices.clamp(max=19)].reshape(-1))


@pytest.mark.parametrize("size", [(8192, 4096, 4096), (2048, 768, 3072), (500, 776, 264)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_matrix_products_with_loops(size, dtype):
    m, k, n = size
    x, w, b = (torch.randn(*s, device="cuda").to(dtype) for s in ((m, k), (n, k), (n,)))
    function = lambda x, w, b: F.gelu(F.linear(x, w / k**0.5, b))  # noqa: E731
    graph = primops.decompose(trace(function, x, w, b))
    host = compile_graph(
        graph, (x, w, b), codegens={"cuda": TritonCodeGenerator(templates="always")}
    )
    assert host.extern_count == 0
    for _ in range(3):
        (result,) = host(x, w, b)
        torch.testing.assert_close(
            result, function(x.float(), w.float(), b.float()).to(dtype), rtol=2e-2, atol=2e-2
        )


@pytest.mark.parametrize("size", [(70, 100, 90), (1024, 2048, 512)])
@pytest.mark.parametrize("precise", ["ieee", "tf32"])
def test_products_of_float32(size, precise):
    m, k, n = size
    x, w, b = (torch.randn(*s, device="cuda") for s in ((m, k), (n, k), (n,)))
    function = lambda x, w, b: F.linear(x, w / k**0.5, b).relu()  # noqa: E731
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precise
    try:
        graph = primops.decompose(trace(function, x, w, b))
        host = compile_graph(
            graph, (x, w, b), codegens={"cuda": TritonCodeGenerator(templates="always")}
        )
        assert host.extern_count == 0
        exact = function(x.double(), w.double(), b.double())
        ours, eager = (
            (result - exact).abs().max() for result in (host(x, w, b)[0], function(x, w, b))
        )
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert ours <= 2 * eager + 4e-7 * exact.abs().max()


@pytest.mark.parametrize("size", [(2, 24, 40, 7, 5), (4, 256, 64, 28, 28)])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_convolutions_of_single_points(size, layout):
    n, c, o, h, w = size
    x = torch.randn(n, c, h, w, device="cuda").to(torch.bfloat16, memory_format=layout)
    weight, bias = (torch.randn(*s, device="cuda").to(torch.bfloat16) for s in ((o, c, 1, 1), (o,)))
    function = lambda x, w, b: F.conv2d(x, w / c**0.5, b).relu() + 1  # noqa: E731
    graph = primops.decompose(trace(function, x, weight, bias))
    host = compile_graph(
        graph, (x, weight, bias), codegens={"cuda": TritonCodeGenerator(templates="always")}
    )
    assert host.extern_count == 0
    expected = function(x.float(), weight.float(), bias.float()).to(torch.bfloat16)
    torch.testing.assert_close(host(x, weight, bias)[0], expected, rtol=2e-2, atol=2e-2)


def test_tuning_measures_keeps_and_replays(tmp_path):
    x = torch.randn(4096, 4096, device="cuda")
    lock = tmp_path / "choices.lock"
    graph = primops.decompose(trace(lambda x: x.softmax(1), x))
    for _ in range(2):
        generator = TritonCodeGenerator(tune=True, lock=str(lock))
        host = compile_graph(
            graph, (x,), codegens={"cuda": generator}, store=ArtifactStore(tmp_path / "store")
        )
        torch.testing.assert_close(host(x)[0], x.softmax(1))
    assert torch.cuda.get_device_name() in lock.read_text()
